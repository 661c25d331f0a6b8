"""`python -m stepwell.collectors.cli` is the command `stepwell`."""

import sys

from stepwell.collectors.cli import main

sys.exit(main())
