"""Optional libraries: imported when needed, with an error that says what to install."""

# JAX, for which batches are pytrees, is not imported for that.

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from types import ModuleType
from typing import Any, TypeVar


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
        missing = error.name or ""
        if missing == top:
            what = f"{top}, which is not installed: pip install"
        elif missing.partition(".")[0] == top:
            what = f"{missing}, which the installed {top} does not have: pip install -U"
        else:
            what = f"{top}, which is installed but lacks {error.name}: pip install"
        raise ImportError(f"{wanted_for} needs {what} {install}", name=top) from error
    except ImportError as error:  # of its compiled part, above all
        raise ImportError(
            f"{wanted_for} needs {top}, which cannot be imported ({error}): pip install {install}",
            name=top,
        ) from error
    package = package or top
    installed = installed_version(package) if at_least else None  # None: a source tree on the path
    if installed and version_numbers(installed) < version_numbers(at_least or ""):
        raise ImportError(
            f"{wanted_for} needs {package} {at_least} or newer, got {installed}: "
            f"pip install -U {install}",
            name=package,
        )
    return found


def installed_version(package: str) -> str | None:
    """The version of an installed package, or None."""
    from importlib.metadata import PackageNotFoundError, version  # loads in some 10 ms

    try:
        return version(package)
    except (PackageNotFoundError, ValueError):  # ValueError: no name
        return None


def version_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release without a suffix: (0, 13, 0) for "0.13.0rc1"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


KindT = TypeVar("KindT", bound=type[Any])
_STATIC = ("burn_in",)
_waiting: list[type[Any]] = []


def pytree(kind: KindT) -> KindT:
    """Note a dataclass of arrays, for `tell_jax`."""
    _waiting.append(kind)
    return kind


def tell_jax() -> None:
    """Register the noted classes if the program has imported JAX; cheap enough for each draw."""
    if not _waiting:
        return
    jax: Any = sys.modules.get("jax.tree_util")
    if not hasattr(jax, "register_pytree_with_keys"):  # or its import has only begun
        return
    for kind in tuple(_waiting):
        with contextlib.suppress(ValueError):  # the program, or another thread, did it before
            _register(kind, jax)
        with contextlib.suppress(ValueError):
            _waiting.remove(kind)


def _register(kind: type[Any], jax: Any) -> None:
    names = [each.name for each in fields(kind) if each.name not in ("memory", *_STATIC)]
    static = [each.name for each in fields(kind) if each.name in _STATIC]
    keys = [jax.GetAttrKey(name) for name in names]

    def flatten(batch: Any) -> tuple[list[Any], tuple[Any, ...]]:
        parts = [getattr(batch, name) for name in names]
        return parts, tuple(getattr(batch, name) for name in static)

    def flatten_with_keys(batch: Any) -> tuple[list[Any], tuple[Any, ...]]:
        parts, facts = flatten(batch)
        return list(zip(keys, parts, strict=True)), facts

    def unflatten(facts: tuple[Any, ...], parts: Iterable[Any]) -> Any:
        # Without the memory of `out=`, which holds other arrays.
        return kind(**dict(zip(names, parts, strict=True)), **dict(zip(static, facts, strict=True)))

    jax.register_pytree_with_keys(kind, flatten_with_keys, unflatten, flatten)
