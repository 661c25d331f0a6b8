"""Follow documents as a new user does: `python .ci/try_guides.py WHEEL [DOCUMENT...]`.

For each document: a new virtual environment, the wheel with the extras that the document names and
nothing else, an empty folder, and every command and block that the document does not mark as shown
only. Takes half an hour for all of them, most of it for pip; needs the package index.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / "tests"), str(CHECKOUT / "examples")]

from demo_rom import write_demo  # noqa: E402
from support import documents  # noqa: E402

# Tables of all extras, and what only contributors install.
NAME_ALL = {"README.md", "docs/feeding.md", "docs/performance.md", "docs/architecture.md"}
NOT_OF_USERS = {"bridges", "browser", "dev", "docs", "peers"}
CONFLICTING = {"nes-py", "retro"}  # each needs another version of pyglet


def extras_of(name: str, text: str) -> set[str]:
    """The extras that a reader of the document has installed."""
    if name in NAME_ALL:
        return set()
    named = re.findall(r"(?:stepwell|\.)\[([\w,-]+)\]", text)
    return {each for names in named for each in names.split(",")} - NOT_OF_USERS - CONFLICTING


def follow(document: Path, wheel: Path, scratch: Path) -> str:
    """Run a document in an environment and a folder of its own; return what went wrong."""
    text = document.read_text(encoding="utf-8")
    extras = extras_of(document.relative_to(CHECKOUT).as_posix(), text)
    chosen = f"[{','.join(sorted(extras))}]" if extras else ""
    print(document.relative_to(CHECKOUT), chosen, flush=True)
    beside = re.findall(r"`pip install '(?:stepwell|\.)\[[\w,-]+\]' ([\w -]+)`", text)
    others = [word for words in beside for word in words.split()]
    others += ["pytest"] if "`pip install pytest`" in text else []
    venv.create(scratch / "venv", with_pip=True)
    python = scratch / "venv" / "bin" / "python"
    # Written by the new Python: `documents.script` names the command that lies beside it.
    script = scratch / f"{document.stem}_md.py"
    show = [str(python), str(CHECKOUT / "tests" / "support" / "documents.py"), str(document)]
    script.write_text(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
    (scratch / "empty").mkdir()
    if document.stem == "nes":  # the reader's cartridge
        write_demo(scratch / "empty")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(scratch)}
    for command in (
        [str(python), "-m", "pip", "install", "-q", f"{wheel}{chosen}", *others],
        [str(python), str(script)],
    ):
        run = subprocess.run(
            command,
            cwd=scratch / "empty",
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=1800,
        )
        if run.returncode:
            return "\n".join((run.stdout + run.stderr).splitlines()[-25:])
    return ""


def has_something_to_run(document: Path) -> bool:
    """True if a document has a command or a block that is not only shown."""
    return bool(documents.script(document.read_text(encoding="utf-8")).strip())


def main(wheel: str, *names: str) -> int:
    """Follow the named documents, or all of them; return the exit code."""
    every = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
    failed = {}
    for document in [CHECKOUT / name for name in names] or filter(has_something_to_run, every):
        with tempfile.TemporaryDirectory() as scratch:
            wrong = follow(document, Path(wheel).resolve(), Path(scratch))
        if wrong:
            failed[document] = wrong
            print(f"FAILED\n{wrong}", flush=True)
    print(f"{len(failed)} failed", *(path.relative_to(CHECKOUT) for path in failed), sep="\n  ")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
