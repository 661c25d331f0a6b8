"""Objects that the user names on the command line as module:name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from typing import cast

__all__ = ["load_object", "refuse_signature"]


def load_object(option: str, name: str) -> object:
    """Import what "module:name" names, also from the current folder.

    Raises:
        ValueError: The module cannot be imported, or has no such name.

    Example:
        >>> load_object("--policy", "math:floor")(2.5)
        2
    """
    module_name, _, path = name.partition(":")
    found = _import(option, module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            callables = [one for one in dir(found) if callable(getattr(found, one, None))]
            near = difflib.get_close_matches(part, callables, n=1)
            hint = f"did you mean {near[0]}?" if near else "correct the part after the colon"
            raise ValueError(
                f"{option} {name}: expected {part!r} in {module_name}, got none; {hint}"
            )
        found = cast("object", getattr(found, part))
    return found


def refuse_signature(what: str, found: object, count: int, expected: str) -> None:
    """Refuse what cannot be called with so many arguments, before anything is done.

    Raises:
        ValueError: It takes other arguments.
    """
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not known: the first call will tell
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise ValueError(f"{what}: expected it to take {expected}, got {signature}") from None


def _import(option: str, name: str) -> object:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise ValueError(
                f"{option}: expected a module {name!r} in {here} or among the installed ones, got "
                f"none; correct the part before the colon"
            ) from None
        raise ValueError(
            f"{option}: module {name!r} cannot be imported: {_place(error)}"
            f"{type(error).__name__}: {error}"
        ) from error


def _place(error: Exception) -> str:
    """Where in the user's module it happened; a SyntaxError says so itself."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return ""
    users = [frame for frame in frames if "importlib" not in frame.filename]
    last = users[-1] if users else frames[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}: "
