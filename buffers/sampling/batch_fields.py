"""Which fields a batch is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepwell.buffers.spec import Field, Layout, Spec

__all__ = ["BatchFields", "batch_dtype", "longest_stack", "pick", "under"]

# Rewards are stored exactly as the env gave them; learners compute in float32.
_BATCH_DTYPES = {"reward": np.dtype(np.float32)}


class BatchFields(NamedTuple):
    """The fields that are asked for.

    Args:
        chosen: Those that are wanted in every row.
        state: Those that are wanted of a sequence's first row.
    """

    chosen: tuple[Field, ...]
    state: tuple[Field, ...]

    @classmethod
    def of(cls, spec: Spec, fields: Sequence[str] | None, state: Sequence[str] = ()) -> BatchFields:
        """Look up the fields by name.

        Args:
            spec: All fields.
            fields: Names, or first parts of them, as in ``"extra"``; None for all.
            state: Names of extras, without their ``extra/``.

        Raises:
            ValueError: There is no such field.
        """
        extras = {f.name.removeprefix("extra/"): f for f in spec.fields if _is_in(f, {"extra"})}
        carried = [extras[name] for name in _checked("state", state, set(extras))]
        if fields is None:
            return cls(tuple(f for f in spec.fields if f not in carried), tuple(carried))
        parts = {part for field in spec.fields for part in _parts(field)}
        names = set(_checked("fields", fields, parts))
        return cls(tuple(f for f in spec.fields if _is_in(f, names)), tuple(carried))


def longest_stack(spec: Spec) -> int:
    """Frames of the longest stack among all fields: what is drawn does not depend on the choice."""
    return max((field.stack for field in spec.fields), default=1)


def batch_dtype(field: Field) -> np.dtype[np.generic]:
    """The dtype in which a field is handed out."""
    return _BATCH_DTYPES.get(field.name, field.numpy_dtype)


def pick(layout: Layout, leaves: Mapping[str, np.ndarray]) -> Any:
    """The nested value of a layout, without the parts that are not there; None without any."""
    if isinstance(layout, str):
        return leaves.get(layout)
    if isinstance(layout, Mapping):
        parts = {key: pick(part, leaves) for key, part in layout.items()}
        there = {key: value for key, value in parts.items() if value is not None}
        return there or None
    values = tuple(pick(part, leaves) for part in layout)
    return values if any(value is not None for value in values) else None


def under(prefix: str, leaves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fields of one kind, by their own names."""
    return {
        name.removeprefix(prefix): rows for name, rows in leaves.items() if name.startswith(prefix)
    }


def _checked(argument: str, names: Sequence[str], known: set[str]) -> Sequence[str]:
    """The names, all of which are known."""
    if isinstance(names, str):
        raise ValueError(f"{argument}: expected a list of names, got {names!r}: put it in a list")
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none: no extras are stored"
            raise ValueError(f"{argument} names {name!r}, expected some of: {there}")
    return names


def _is_in(field: Field, names: set[str]) -> bool:
    return not names.isdisjoint(_parts(field))


def _parts(field: Field) -> list[str]:
    """A field's name and the first parts of it: ``a``, ``a/b``, ``a/b/c``."""
    parts = field.name.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
