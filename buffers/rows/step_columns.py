"""Episodes as arrays: T + 1 observations and T of all other fields, and the Spec of such arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..base.errors import SpecMismatch
from ..spec.spec import (
    FIELD_KINDS,
    Field,
    Layout,
    Spec,
    exact_rewards,
    field_of,
    kind_of,
    plain_array,
)
from .episode import End, Episode

_Columns = Mapping[str, np.ndarray]


class Rounded:
    """Casts numbers to another dtype, and counts those that change."""

    def __init__(
        self,
        what: str,  # name of the numbers, for the note
        dtype: str,  # one of floats
    ) -> None:
        self._what = what
        self._dtype = np.dtype(dtype)
        self._count, self._largest = 0, 0.0

    @property
    def notes(self) -> list[str]:
        """A note with the number of changes so far, if there are any."""
        if not self._count:
            return []
        to = f"{self._what} rounded to {self._dtype}"
        return [f"{to}: {self._count:,}, by {self._largest:.3g} at most"]

    def cast(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers in the dtype, of rows of bools, whole numbers or floats."""
        kind, bits = numbers.dtype.kind, 8 * numbers.dtype.itemsize
        if kind == "b" or numbers.dtype == self._dtype:
            return numbers.astype(self._dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            found: np.ndarray = numbers.astype(self._dtype)
            if kind == "f":
                changed = (numbers != found) & (numbers == numbers)
            else:  # numpy compares whole numbers with floats as floats
                changed = (found >= 2.0**bits) | (found.astype(numbers.dtype) != numbers)
            change = np.abs(numbers.astype(np.longdouble) - found.astype(np.longdouble))
        self._count += int(changed.sum())
        self._largest = max(self._largest, float(change[changed].max(initial=0)))
        return found


def split(episode: Episode, *, stack: bool = False) -> dict[str, np.ndarray]:
    """An episode's rows aligned as T transitions; `joined` makes the rows of them again."""
    # Views where possible: [T + 1, ...] of observations and infos, the last of which came with the
    # last step, and [T, ...] of actions, extras and ``reward``.
    columns = with_stacks(episode) if stack else dict(episode.fields)
    for field in episode.spec.fields:
        if field.is_chosen:
            columns[field.name] = columns[field.name][:-1]
    columns["reward"] = columns["reward"][1:]
    return columns


def edges_of(episode: Episode) -> dict[str, np.ndarray]:
    """The values that `split` leaves out, [1, ...] by field name, if they are not all zeros."""
    # These are the reward of the first row, and the action of the last one. They are nonzero only
    # for episodes that lost their beginning, or in whose last step a worker died.
    rows = episode.fields
    edges = {field.name: rows[field.name][-1:] for field in episode.spec.fields if field.is_chosen}
    edges["reward"] = rows["reward"][:1]
    # Of bytes: -0.0 is kept, too.
    return {name: row for name, row in edges.items() if any(np.ascontiguousarray(row).tobytes())}


def joined(
    spec: Spec,
    # by field name, [T + 1, ...] for observations and infos, [T, ...] for the others
    columns: _Columns,
    edges: _Columns | None = None,  # as `edges_of` returns them; None for zeros
) -> dict[str, np.ndarray]:
    """All rows of an episode, [T + 1, ...] by field name."""
    rows: dict[str, np.ndarray] = {}
    for field in spec.fields:
        column = columns[field.name]
        edge = edges.get(field.name) if edges else None
        if edge is None:
            edge = np.zeros((1, *field.shape), field.numpy_dtype)
        if field.name == "reward":
            column = np.concatenate([edge, column])
        elif field.is_chosen:
            column = np.concatenate([column, edge])
        rows[field.name] = column
    return rows


def whole_episode(
    columns: Mapping[str, np.ndarray],  # as `joined` takes them; `reward` in any dtype of floats
    spec: Spec,
    where: str,  # name of the source, for error messages
    *,
    terminated: bool,
    truncated: bool,
) -> tuple[End, dict[str, np.ndarray]]:
    """The end and all rows of an episode of T steps, of arrays by field name, checked."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name}: expected True or False for the last step, got {flag!r}")
    arrays = {
        name: plain_array(f"{where}: {name}", column, ValueError)
        for name, column in columns.items()
    }
    inferred_spec(arrays, where)  # refuses other names and lengths
    check_names(spec.names, arrays, where)
    check_fields(spec, arrays, {field.name: field.shape for field in spec.fields}, where)
    if (terminated or truncated) and not len(arrays["reward"]):
        raise ValueError(
            f"{where}: expected at least one step in an episode that terminated or was truncated, "
            f"got 0"
        )
    arrays["reward"] = exact_rewards(arrays["reward"], f"{where}: reward")
    end = (End.TERMINATED if terminated else End.NONE) | (End.TRUNCATED if truncated else End.NONE)
    return end, joined(spec, arrays)


def check_names(names: Sequence[str], columns: _Columns, where: str) -> None:
    """Refuse columns that are not these fields."""
    if set(columns) != set(names):
        raise SpecMismatch(
            f"{where}: expected the fields {', '.join(sorted(names))}, which the replay holds, got "
            f"{', '.join(sorted(columns))}; give the same fields, or another replay"
        )


def check_fields(
    spec: Spec, columns: _Columns, shapes: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Refuse columns of other dtypes, or whose rows have other shapes."""
    for name, rows in columns.items():
        field = spec[name]
        is_right = rows.dtype == field.numpy_dtype
        if name == "reward":  # stored as float64, which holds every float32
            is_right = rows.dtype.kind == "f"
        if not is_right or rows.shape[1:] != shapes[name]:
            raise SpecMismatch(
                f"{where}: expected {name} of {field.dtype} {shapes[name]}, got {rows.dtype} "
                f"{rows.shape[1:]}; convert it, or give another replay"
            )


def with_stacks(episode: Episode) -> dict[str, np.ndarray]:
    """An episode's rows by field name, frame-stacked observations in full; see `stacks_of`."""
    rows = dict(episode.fields)
    for field in episode.spec.fields:
        if field.stack > 1:
            rows[field.name] = stacks_of(rows[field.name], field, episode.first_row)
    return rows


def stacks_of(
    frames: np.ndarray,
    field: Field,
    first_row: int = 0,  # place of the first frame in its episode
) -> np.ndarray:
    """Observations as the env gave them, [T, k, ...], from the frames [T, ...] that are stored."""
    # Returns a view into memory that the frames are copied into, once.
    if first_row:
        raise ValueError(
            f"field {field.name!r}: expected episodes from their first row on, got one whose first "
            f"{first_row:,} rows are not stored any more, so that its first stacks are unknown; "
            f"leave it out, or take single frames"
        )
    k = field.stack
    padding = np.zeros((k - 1, *field.shape), frames.dtype)
    if field.stack_padding == "repeat" and len(frames):
        padding[:] = frames[0]
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([padding, frames]), k, 0)
    return np.moveaxis(windows, -1, 1)


def frames_of(stacks: np.ndarray, field: Field) -> np.ndarray:
    """The newest frames [T, ...] of stacks [T, k, ...], checked: `stacks_of` restores them."""
    frames = np.ascontiguousarray(stacks[:, -1])
    if not np.array_equal(stacks_of(frames, field), stacks):
        raise ValueError(
            f"field {field.name!r}: expected stacks of {field.stack} frames, each the one before "
            f"moved on by one frame and padded by {field.stack_padding}, got others; the data set "
            f"was changed since it was exported"
        )
    return frames


def inferred_spec(
    columns: _Columns,
    where: str,  # name of the source, for error messages
) -> Spec:
    """The Spec of columns, as `joined` takes them, by dtypes and shapes; ``reward`` is float64."""
    if "reward" not in columns or columns["reward"].ndim != 1:
        raise ValueError(
            f"{where}: expected rewards of shape [T], got {_shape_text(columns, 'reward')}"
        )
    steps = len(columns["reward"])
    for name, column in columns.items():
        kind = kind_of(name)
        if kind not in FIELD_KINDS:
            raise ValueError(
                f"{where}: expected columns {', '.join(FIELD_KINDS)}, got {name!r} too; leave it "
                f"out or name it info/{name}"
            )
        if column.dtype.kind not in "biufc":
            raise ValueError(f"{where}: expected {name!r} to be numbers, got {column.dtype}")
        rows = steps + has_final_row(name)
        if column.ndim == 0 or len(column) != rows:
            raise ValueError(
                f"{where}: expected {name!r} of {rows:,} rows with {steps:,} rewards, got "
                f"{_shape_text(columns, name)}"
            )
    observation, action = (_layout(kind, columns, where) for kind in ("observation", "action"))
    names = sorted(
        columns, key=lambda name: FIELD_KINDS.index(kind_of(name))
    )  # stable within a kind
    fields = tuple(
        Field("reward", "float64", (), "narrow")
        if name == "reward"
        else field_of(name, columns[name].dtype, columns[name].shape[1:])
        for name in names
    )
    return Spec(fields, observation, action)


def layout_of(names: Sequence[str], part: str) -> Layout:
    """The layout of the observation or the action: ``observation/b/c`` is ``{"b": {"c": ...}}``."""
    if list(names) == [part]:
        return part
    heads: dict[str, list[str]] = {}
    for name in names:
        heads.setdefault(name.removeprefix(f"{part}/").split("/")[0], []).append(name)
    return {head: layout_of(below, f"{part}/{head}") for head, below in heads.items()}


def has_final_row(name: str) -> bool:
    """True for a field with T + 1 rows for T steps: an observation or info; others have T."""
    return kind_of(name) in ("observation", "info")


def _layout(kind: str, columns: _Columns, where: str) -> Layout:
    names = [name for name in columns if kind_of(name) == kind]
    if not names:
        raise ValueError(f"{where}: expected {kind!r}, got none")
    if kind in names and len(names) > 1:
        raise ValueError(f"{where}: expected '{kind}' or '{kind}/...', got both; rename one")
    inner = [name for name in names if any(other.startswith(f"{name}/") for other in names)]
    if inner or f"{kind}/" in names:
        raise ValueError(
            f"{where}: expected {(inner or [f'{kind}/'])[0]!r} to be a column or to hold columns, "
            f"got both; rename one"
        )
    return layout_of(names, kind)


def _shape_text(columns: _Columns, name: str) -> str:
    return f"shape {columns[name].shape}" if name in columns else "none"


def are_equal(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[n] bool: two rows are the same, NaN included."""
    same = some == others
    if some.dtype.kind in "fc":
        same |= (some != some) & (others != others)
    equal: np.ndarray = same.all(axis=tuple(range(1, same.ndim)))
    return equal
