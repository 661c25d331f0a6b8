"""Print the command that README.md marks with `<!-- run by .ci/run: NAME -->`, word for word."""

import re
import sys
from pathlib import Path


def marked_command(text: str, name: str) -> str:
    """The one line of the block below the mark.

    Raises:
        SystemExit: README.md has no such block, or more than one.
    """
    mark = re.escape(f"<!-- run by .ci/run: {name} -->")
    found: list[str] = re.findall(rf"^{mark}\n```bash\n(.+)\n```$", text, re.MULTILINE)
    if len(found) != 1:
        sys.exit(f"README.md has {len(found)} one-line bash blocks marked '{name}': expected 1")
    return found[0]


if __name__ == "__main__":
    readme = Path(__file__).parents[1] / "README.md"
    print(marked_command(readme.read_text(encoding="utf-8"), sys.argv[1]))
