"""Optional libraries: imported when needed, with an error that says what to install."""

from __future__ import annotations

import importlib
import re
from types import ModuleType


def load_library(
    module: str,  # dotted name
    wanted_for: str,  # name of the caller, for errors: "as_sb3_replay"
    *,
    install: str,  # argument of `pip install`: "'stepwell[sb3]'"
    # name of the installed package, if it is not the module's first part
    package: str | None = None,
    at_least: str | None = None,  # oldest supported version: "2.9"
) -> ModuleType:
    """Import an optional library, or a part of it."""
    top = module.partition(".")[0]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != top:
            raise ImportError(
                f"{wanted_for} needs {top}, which is installed but lacks {error.name}: "
                f"pip install {install}",
                name=top,
            ) from error
        if error.name != top:
            raise ImportError(
                f"{wanted_for} needs {error.name}, which the installed {top} does not have: "
                f"pip install -U {install}",
                name=top,
            ) from error
        raise ImportError(
            f"{wanted_for} needs {top}, which is not installed: pip install {install}", name=top
        ) from error
    if at_least is not None:
        _check_version(package or top, wanted_for, install, at_least)
    return found


def _check_version(package: str, wanted_for: str, install: str, at_least: str) -> None:
    """Reject an older version."""
    from importlib.metadata import PackageNotFoundError, version  # loads in some 10 ms

    try:
        installed = version(package)
    except PackageNotFoundError:  # a source tree on the path has no version
        return
    if _numbers(installed) < _numbers(at_least):
        raise ImportError(
            f"{wanted_for} needs {package} {at_least} or newer, got {installed}: "
            f"pip install -U {install}",
            name=package,
        )


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``"2.9.0a1"`` is (2, 9, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
