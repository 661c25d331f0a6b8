"""Which fields a batch is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stepwell.buffers.spec import Field, Layout, Spec, prefixes

__all__ = ["BatchFields", "ChosenLayout", "batch_dtype", "longest_stack", "pick", "under"]

ChosenLayout: TypeAlias = "str | Mapping[str, ChosenLayout] | Sequence[ChosenLayout] | None"
"""A Layout of which parts were left out: they lack in a mapping, and are None in a sequence."""

# Rewards are stored exactly as the env gave them; learners compute in float32.
_BATCH_DTYPES = {"reward": np.dtype(np.float32)}


class BatchFields(NamedTuple):
    """The fields that are asked for.

    Args:
        chosen: Those that are wanted in every row.
        state: Those that are wanted of a sequence's first row.
        observation: How the chosen ones form observations; None where none were asked for.
        action: How they form actions.
    """

    chosen: tuple[Field, ...]
    state: tuple[Field, ...]
    observation: ChosenLayout
    action: ChosenLayout

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
            chosen = tuple(f for f in spec.fields if f not in carried)
            return cls(chosen, tuple(carried), spec.observation, spec.action)
        layouts = {"observation": spec.observation, "action": spec.action}
        parts = {part for field in spec.fields for part in prefixes(field.name)}
        parts.update(*(_paths(name, layout) for name, layout in layouts.items()))
        names = set(_checked("fields", fields, parts))
        found = {field.name: field for field in spec.fields if _is_in(field, names)}
        return cls(
            tuple(found.values()),
            tuple(carried),
            *(_chosen_of(name, layout, names, found) for name, layout in layouts.items()),
        )


def longest_stack(spec: Spec) -> int:
    """Frames of the longest stack among all fields: what is drawn does not depend on the choice."""
    return max((field.stack for field in spec.fields), default=1)


def batch_dtype(field: Field) -> np.dtype[np.generic]:
    """The dtype in which a field is handed out."""
    return _BATCH_DTYPES.get(field.name, field.numpy_dtype)


def pick(layout: ChosenLayout, leaves: Mapping[str, np.ndarray]) -> Any:
    """The nested value of a layout; None where nothing was chosen."""
    if layout is None:
        return None
    if isinstance(layout, str):
        return leaves[layout]
    if isinstance(layout, Mapping):
        return {key: pick(part, leaves) for key, part in layout.items()}
    return tuple(pick(part, leaves) for part in layout)


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
    return not names.isdisjoint(prefixes(field.name))


def _paths(path: str, layout: Layout) -> list[str]:
    """Names of all parts of a layout, of empty Dicts and Tuples too."""
    if isinstance(layout, str):
        return [path]
    return [path] + [one for name, part in _items(layout) for one in _paths(f"{path}/{name}", part)]


def _chosen_of(
    path: str, layout: Layout, names: Collection[str], fields: Collection[str]
) -> ChosenLayout:
    """The parts of a layout of which there are fields, and the empty ones that are named."""
    if isinstance(layout, str):
        return layout if layout in fields else None
    if not layout:
        return layout if any(part in names for part in prefixes(path)) else None
    parts = {
        name: _chosen_of(f"{path}/{name}", part, names, fields) for name, part in _items(layout)
    }
    if all(part is None for part in parts.values()):
        return None
    if isinstance(layout, Mapping):
        return {name: part for name, part in parts.items() if part is not None}
    return list(parts.values())


def _items(
    layout: Mapping[str, Layout] | Sequence[Layout],
) -> Iterable[tuple[str, Layout]]:
    if isinstance(layout, Mapping):
        return layout.items()
    return [(str(place), part) for place, part in enumerate(layout)]
