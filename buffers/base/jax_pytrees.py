"""Batches as pytrees of JAX, which is not imported for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

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
