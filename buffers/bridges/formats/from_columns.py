"""What the fields are of columns that somebody else wrote."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepwell.buffers.bridges.stream_writer import layout_of
from stepwell.buffers.spec import Field, Layout, Spec, default_codec

__all__ = ["inferred_spec"]

_PARTS = ("observation", "action", "reward", "info", "extra")


def inferred_spec(columns: Mapping[str, np.ndarray], where: str) -> Spec:
    """The Spec of columns of steps, by their dtypes and shapes.

    Args:
        columns: As `step_columns.joined` takes them, by field name: ``observation`` or
            ``observation/key``, ``action`` likewise, ``reward`` [T], ``info/name``, ``extra/name``.
        where: What holds them, for the sentence of an error.

    Returns:
        The Spec; ``reward`` is float64 in it, whatever it is here.

    Raises:
        ValueError: A column is missing or no field, is not numbers, or has another length.

    Example:
        >>> spec = inferred_spec(
        ...     {
        ...         "observation/x": np.zeros((4, 2)),
        ...         "action": np.zeros(3, np.int64),
        ...         "reward": np.zeros(3),
        ...     },
        ...     "an example",
        ... )
        >>> spec.names, spec.observation
        (['observation/x', 'action', 'reward'], {'x': 'observation/x'})
    """
    if "reward" not in columns or columns["reward"].ndim != 1:
        raise ValueError(f"{where}: expected rewards of shape [T], got {_what(columns, 'reward')}")
    steps = len(columns["reward"])
    for name, column in columns.items():
        first = name.partition("/")[0]
        if first not in _PARTS:
            raise ValueError(
                f"{where}: expected columns {', '.join(_PARTS)}, got {name!r} too; leave it out or "
                f"name it info/{name}"
            )
        if column.dtype.kind not in "biufc":
            raise ValueError(f"{where}: expected {name!r} to be numbers, got {column.dtype}")
        rows = steps + (first in ("observation", "info"))
        if column.ndim == 0 or len(column) != rows:
            raise ValueError(
                f"{where}: expected {name!r} of {rows:,} rows beside {steps:,} rewards, got "
                f"{_what(columns, name)}"
            )
    observation, action = (_layout(part, columns, where) for part in ("observation", "action"))
    return Spec(tuple(_field(n, columns[n]) for n in _in_order(columns)), observation, action)


def _in_order(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Names with observations first, in the order in which a Collector would store them."""
    return sorted(columns, key=lambda name: _PARTS.index(name.partition("/")[0]))


def _field(name: str, column: np.ndarray) -> Field:
    dtype, shape = column.dtype, column.shape[1:]
    if name == "reward":
        return Field("reward", "float64", (), "narrow")
    return Field(name, dtype.name, shape, default_codec(dtype, shape))


def _layout(part: str, columns: Mapping[str, np.ndarray], where: str) -> Layout:
    """How columns ``part`` or ``part/key/...`` are nested.

    Raises:
        ValueError: There is none, or a key has two meanings.
    """
    names = [name for name in columns if name.partition("/")[0] == part]
    if not names:
        raise ValueError(f"{where}: expected {part!r}, got none")
    if part in names and len(names) > 1:
        raise ValueError(f"{where}: expected '{part}' or '{part}/...', got both; rename one")
    inner = [name for name in names if any(other.startswith(f"{name}/") for other in names)]
    if inner or f"{part}/" in names:
        raise ValueError(
            f"{where}: expected {(inner or [f'{part}/'])[0]!r} to be a column or to hold columns, "
            f"got both; rename one"
        )
    return layout_of(names, part)


def _what(columns: Mapping[str, np.ndarray], name: str) -> str:
    return f"shape {columns[name].shape}" if name in columns else "none"
