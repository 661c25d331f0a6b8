"""The columns of tables and records, as Parquet files and RLDS data sets hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from gymnasium import spaces

from ...base.untrusted_json import mapping
from ...spec.space_json import space_from_json, spaces_facts
from ...spec.spec import Field, Layout, Spec
from .pictures import Axes, picture_axes

Encoding = Literal["array", "raw", "zlib", "png", "jpeg", "text"]
"""The encoding of rows: numbers, the array's bytes, these bytes compressed, pictures, or texts."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file: its name or path there, the rows in numpy, and their encoding."""

    name: str
    dtype: str  # numpy's name of it; "str" for texts
    shape: tuple[int, ...] = ()  # of one row; -1 where a length is not known
    encoding: Encoding = "array"
    axes: Axes | None = None  # of a picture; None: something else, or not known
    classes: int = 0  # how many, where a row is one of them; else 0

    @classmethod
    def of(cls, name: str, field: Field, holder: str, *, stack: bool = False) -> FileColumn:
        """The column of a field, as numbers; whole stacks of frames are no pictures."""
        shape = field.source_shape if stack else field.shape
        dtype = field.numpy_dtype
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise ValueError(
                f"field {field.name!r}: expected numbers or booleans, got {field.dtype}, which a "
                f"{holder} cannot hold; convert it in a wrapper of the env"
            )
        axes = picture_axes(field) if shape == field.shape else None
        return cls(name, field.dtype, shape, axes=axes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in numpy; 0 for texts, and where a length is not known."""
        if -1 in self.shape:
            return 0
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def as_values(rows: np.ndarray, dtype: np.dtype[Any], where: str) -> np.ndarray:
    """Numbers in the dtype that a file declares for them, exactly."""
    with np.errstate(all="ignore"):
        found = rows.astype(dtype)
        if np.can_cast(rows.dtype, dtype, "safe") and dtype.kind != "c":
            return found
        back = found.astype(rows.dtype)
        is_nan = (back != back) & (rows != rows)
        changed = np.flatnonzero(~is_nan & ((back != rows) | ((found < 0) != (rows < 0))))
    if changed.size:
        value = rows.reshape(-1)[changed[0]]
        raise ValueError(
            f"{where}: expected values that {dtype} holds exactly, got {value}; declare another "
            f"dtype, or change the values"
        )
    return found


def check_classes(rows: np.ndarray, count: int, name: str, where: str) -> None:
    """Refuse a row that is none of the classes which a file declares."""
    if rows.size and not (rows.min() >= 0 and rows.max() < count):
        worst = rows.min() if rows.min() < 0 else rows.max()
        raise ValueError(
            f"{where}: expected {name!r} to be one of {count} classes, 0 to {count - 1}, as the "
            f"file declares, got {worst}; fill or leave such rows out"
        )


def as_flags(rows: np.ndarray, name: str, where: str) -> np.ndarray:
    """Flags [T], bool, of booleans or of zeros and ones."""
    if rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    if rows.ndim != 1 or not np.isin(rows, (0, 1)).all():
        raise ValueError(
            f"{where}: expected column {name!r} to hold true and false, or 0 and 1, got "
            f"{rows.dtype} of shape {rows.shape}; name another column"
        )
    return rows.astype(np.bool_)


def as_rewards(rows: np.ndarray, where: str) -> np.ndarray:
    """Rewards [T] as float64, exactly."""
    if rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    if rows.dtype.kind in "iu" and rows.size and abs(rows.astype(object)).max() > 2**53:
        raise ValueError(
            f"{where}: expected rewards that float64 holds exactly, got integers beyond 2**53; "
            f"scale them"
        )
    return rows.astype(np.float64)


def newest_spaces(sessions: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The spaces that the newest session recorded, under "spaces"; empty if none did."""
    recorded = [one["spaces"] for one in sessions if isinstance(one.get("spaces"), Mapping)]
    return {"spaces": recorded[-1]} if recorded else {}


def sessions_of(format_: str, declared: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    """The sessions of a data set of that format, which declares these facts."""
    return ({"recipe": {"source": format_}, **declared},) if declared else ()


def declared_spaces(
    spec: Spec, classes: Mapping[str, Sequence[str] | int], recorded: object = None
) -> tuple[Spec, dict[str, object]]:
    """Apply the spaces that a file declares: the Spec with their layout, and facts of a session."""

    # In the facts are `spaces`, as a `Collector` records them, where they fit the rows: any value
    # is one of a field that nothing is declared of. `classes` has numbers or names by field name;
    # `recorded` are spaces that Stepwell wrote into the file, not checked yet.
    def declared(name: str) -> spaces.Space[Any]:
        field, given = spec[name], classes.get(name)
        if given is None or field.shape:
            return any_values(field.shape, field.numpy_dtype)
        dtype: Any = field.numpy_dtype.type
        return spaces.Discrete(given if isinstance(given, int) else len(given), dtype=dtype)

    found: dict[str, object] = {}
    names = {name: list(each) for name, each in classes.items() if not isinstance(each, int)}
    if names:
        found["classes"] = names
    try:
        if recorded is not None:
            parts = mapping(recorded, "spaces")
            if _largest(parts) > max(math.prod(field.shape) for field in spec.fields):
                return spec, found  # bounds of that size would be made next
            both = [space_from_json(mapping(parts[n], n)) for n in ("observation", "action")]
        else:
            both = [space_of(layout, declared) for layout in (spec.observation, spec.action)]
        made = Spec.from_spaces(both[0], both[1])
    except (ValueError, TypeError, KeyError, OverflowError, AssertionError):
        return spec, found
    if not any(name in classes for name in made.names) and recorded is None:
        return spec, found
    ours, theirs = (
        {field.name: (field.dtype, field.shape) for field in one.of_kind("observation", "action")}
        for one in (spec, made)
    )
    if ours != theirs:
        return spec, found
    laid_out = Spec(spec.fields, made.observation, made.action)
    return laid_out, {**spaces_facts(both[0], both[1]), **found}


def _largest(data: object) -> int:
    """The most numbers of a space that JSON describes."""
    if isinstance(data, Mapping):
        shape = data.get("shape")
        sizes = shape if isinstance(shape, list) else []
        own = math.prod(size for size in sizes if isinstance(size, int))
        return max([own, *map(_largest, data.values())])
    return max(map(_largest, data), default=0) if isinstance(data, list) else 0


def space_of(layout: Layout, leaf: Callable[[str], spaces.Space[Any]]) -> spaces.Space[Any]:
    """The space of a layout, of the spaces of its fields."""
    if isinstance(layout, Mapping):
        return spaces.Dict({key: space_of(part, leaf) for key, part in layout.items()})
    if isinstance(layout, str):
        return leaf(layout)
    return spaces.Tuple([space_of(part, leaf) for part in layout])


def any_values(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    """The space of all values of a dtype."""
    low, high = -np.inf, np.inf
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype.kind == "b":
        low, high = 0, 1
    return spaces.Box(low, high, shape, cast("Any", dtype.type))
