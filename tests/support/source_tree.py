"""The library's source files, as the tests that read code see them."""

from __future__ import annotations

import ast
import gc
import importlib
import pkgutil
from functools import cache
from pathlib import Path

import stepwell

FOLDERS = ("wrappers", "collectors", "buffers")
PACKAGE = Path(stepwell.__file__).parent  # the checkout, or where the wheel was installed
CHECKOUT = Path(__file__).parents[2]  # holds tests/, examples/, docs/ and README.md
PUBLIC_MODULES = """
stepwell
stepwell.buffers
stepwell.buffers.bridges
stepwell.buffers.bridges.formats
stepwell.buffers.bridges.publish
stepwell.buffers.dropin.dreamer
stepwell.buffers.dropin.fishyrl
stepwell.buffers.dropin.frame_history
stepwell.buffers.dropin.iris
stepwell.buffers.dropin.memmap
stepwell.buffers.dropin.sb3
stepwell.buffers.testing
stepwell.collectors
stepwell.wrappers
stepwell.wrappers.nes
stepwell.wrappers.testing
""".split()


@cache
def library_files() -> list[Path]:
    """The package's `__init__.py` and every module of the folders."""
    folders = [file for folder in FOLDERS for file in sorted((PACKAGE / folder).rglob("*.py"))]
    return [PACKAGE / "__init__.py", *folders]


@cache
def tree_of(file: Path) -> ast.Module:
    was_enabled = gc.isenabled()
    gc.disable()  # of 600,000 nodes it would look at those made before, for most of the time
    try:
        return ast.parse(file.read_text(encoding="utf-8"), str(file))
    finally:
        if was_enabled:
            gc.enable()


def folder_of(file: Path) -> str:
    """The folder that a file is in; the empty string for the package's own `__init__.py`."""
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def label(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def module_names(folder: str) -> list[str]:
    """Dotted names of a folder's modules, without `__main__`, which runs when it is imported."""
    package = importlib.import_module(f"stepwell.{folder}")
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    names = [package.__name__, *(module.name for module in found)]
    return [name for name in names if not name.endswith(".__main__")]
