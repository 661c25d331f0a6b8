"""`python -m stepwell.collectors.cli` is the command `stepwell`."""

import sys

from . import main

sys.exit(main())
