"""Batches: their types, the fields and arrays they are made of, and nested values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ..base.optional_libraries import pytree
from ..base.other_names import OtherNames, missing_part
from ..spec.spec import ArrayTree, Field, Layout, Spec, prefixes
from .copies import Copies


class BatchParts(OtherNames):
    """The common ground of batches: parts by the names of stored fields, and displays."""

    __slots__ = ()

    def __repr__(self) -> str:
        return one_line(self)

    def _repr_html_(self) -> str | None:
        return batch_html(self)

    def __len__(self) -> int:
        """The number of items B."""
        batch: Any = self
        return len(batch.ids)

    def __getitem__(self, name: str) -> Any:
        """The part with the name of a stored field: ``reward``, ``info/lives``."""
        batch: Any = self
        if not isinstance(name, str):
            raise TypeError(
                f"batch[...]: expected the name of a field, as in batch['reward'], got {name!r}; "
                f"some of its items are batch.reward[...]"
            )
        kind, *path = name.split("/")
        if kind in ("info", "extra") and path:
            found, path = batch.info if kind == "info" else batch.extras, [name.partition("/")[2]]
        elif kind in {each.name for each in fields(batch) if each.repr}:
            found = getattr(batch, kind)
        else:
            raise KeyError(missing_part(batch, name))
        for key in path:
            try:
                found = found[int(key)] if isinstance(found, tuple) else found[key]
            except (IndexError, KeyError, TypeError, ValueError):
                raise KeyError(missing_part(batch, name)) from None
        return found


@pytree
@dataclass(frozen=True, slots=True, repr=False)
class Batch(BatchParts):
    """Sequences of rows, arrays ``[B, T, ...]`` in memory that the caller owns.

    Row ``t`` holds ``observation[:, t]``, the reward, info and flags that came with it, and the
    action chosen from it. With ``align="transition"`` reward, info and flags (all but ``is_first``)
    are the results of that action. With ``time_major=True`` the arrays are ``[T, B, ...]``,
    contiguous except for stacks and whole episodes, which are views. A field that was not requested
    is None, whatever its annotation.

    Args:
        observation: Observations, nested like the env's space; ``[B, T, k, ...]`` where stacks were
            requested, a view into ``[B, T + k - 1, ...]`` frames.
        action: Actions, nested like the env's space; zeros in the final row of an episode.
        reward: [B, T] float32: the reward of the step into this row, 0 in a first row.
        is_first: [B, T] bool: the row of a reset.
        is_last: [B, T] bool: terminated, truncated or cut.
        terminated: [B, T] bool: the MDP ended with this row: do not bootstrap from it.
        truncated: [B, T] bool: a time limit ended the episode with this row.
        cut: [B, T] bool: the recording stopped here, or this is the newest row.
        mask: [B, T] bool: this is a stored row (or transition), not padding.
        lengths: [B] int64: number of rows with ``mask`` in each sequence.
        info: Stored info fields, [B, T, ...] by name.
        extras: Stored policy extras, [B, T, ...] by name.
        ids: [B] int64: id of the row that each sequence was drawn by, stable and never reused: its
            first one after the burn-in, or with ``borders="pad_before"`` its last one.
        weights: [B] float32: importance weights of a draw by priorities, else ones.
        state: Extras of each sequence's first stored row alone, [B, ...] by name.
        next_observation: With ``align="transition"`` the observation after each action, a view;
            else None.
        burn_in: Number of leading rows that only warm up a recurrent state.
    """

    observation: ArrayTree
    action: ArrayTree
    reward: np.ndarray
    is_first: np.ndarray
    is_last: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    mask: np.ndarray
    lengths: np.ndarray
    info: Mapping[str, np.ndarray]
    extras: Mapping[str, np.ndarray]
    ids: np.ndarray
    weights: np.ndarray
    state: Mapping[str, np.ndarray]
    next_observation: ArrayTree = field(default=cast("ArrayTree", None))
    burn_in: int = 0
    memory: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], repr=False)
    """The memory behind the arrays, which ``out=`` uses for the next batch."""


@pytree
@dataclass(frozen=True, slots=True, repr=False)
class TransitionBatch(BatchParts):
    """Transitions of up to n steps, arrays ``[B, ...]`` in memory that the caller owns.

    The value to learn from is ``reward + discount * value(next_observation)``. A field that was not
    requested is None, whatever its annotation.

    Args:
        observation: Observations, nested like the env's space; ``[B, k, ...]`` where stacked.
        action: Actions chosen from them.
        reward: [B] float32: n-step return, the sum of ``gamma**i`` times the i-th reward.
        next_observation: Observations ``steps`` later, of the same form as ``observation``. Under
            frame stacking both are views into the frames, of which each is copied once.
        discount: [B] float32: ``gamma**steps``, or 0 where the MDP terminated.
        terminated: [B] bool: the MDP ended with the next observation: do not bootstrap from it.
        truncated: [B] bool: a time limit ended the episode there.
        cut: [B] bool: the recording stopped there, or it is the newest row.
        steps: [B] int64: env steps between the two, fewer than n at an episode's end.
        info: Stored info fields that came with the *next* observation, [B, ...] by name.
        extras: Stored policy extras of the action, [B, ...] by name.
        ids: [B] int64: id of each transition's first row, stable and never reused.
        weights: [B] float32: importance weights of a draw by priorities, else ones.
    """

    observation: ArrayTree
    action: ArrayTree
    reward: np.ndarray
    next_observation: ArrayTree
    discount: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    steps: np.ndarray
    info: Mapping[str, np.ndarray]
    extras: Mapping[str, np.ndarray]
    ids: np.ndarray
    weights: np.ndarray
    memory: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], repr=False)
    """The memory behind the arrays, which ``out=`` uses for the next batch."""


OpenTransitions: Any = type(
    "OpenTransitions", (BatchParts,), {"__slots__": TransitionBatch.__slots__}
)
"""Takes the values of a `TransitionBatch`, which it then becomes: the constructor of a frozen class
takes four times as long, a tenth of the time of a small batch."""


ChosenLayout: TypeAlias = "str | Mapping[str, ChosenLayout] | Sequence[ChosenLayout] | None"
"""A Layout without some parts: these are missing in a mapping, and None in a sequence."""


class BatchFields(NamedTuple):
    """The fields of a request."""

    chosen: tuple[Field, ...]  # of every row
    state: tuple[Field, ...]  # of a sequence's first row alone
    # arrays by name -> the nested value of an observation; None without such fields
    observation: Callable[[Mapping[str, np.ndarray]], Any]
    action: Callable[[Mapping[str, np.ndarray]], Any]  # the same of an action

    @classmethod
    def of(
        cls,
        spec: Spec,
        fields: Sequence[str] | None,  # names, or first parts of them, as "extra"; None for all
        state: Sequence[str] = (),  # names of extras, without their `extra/`
    ) -> BatchFields:
        """Look up the fields by name."""
        extras = {field.key: field for field in spec.of_kind("extra")}
        carried = [extras[name] for name in _checked("state", state, set(extras))]
        if fields is None:
            chosen = tuple(f for f in spec.fields if f not in carried)
            return cls(chosen, tuple(carried), *map(_picker, (spec.observation, spec.action)))
        layouts = {"observation": spec.observation, "action": spec.action}
        parts = {part for field in spec.fields for part in prefixes(field.name)}
        parts.update(*(_paths(name, layout) for name, layout in layouts.items()))
        names = set(_checked("fields", fields, parts))
        found = {f.name: f for f in spec.fields if not names.isdisjoint(prefixes(f.name))}
        return cls(
            tuple(found.values()),
            tuple(carried),
            *(_picker(_chosen_of(name, layout, names, found)) for name, layout in layouts.items()),
        )


def longest_stack(spec: Spec) -> int:
    """Frames of the longest stack of all fields: draws do not depend on the chosen fields."""
    return max((field.stack for field in spec.fields), default=1)


def _picker(layout: ChosenLayout) -> Callable[[Mapping[str, np.ndarray]], Any]:
    return itemgetter(layout) if isinstance(layout, str) else partial(_pick, layout)


def _pick(layout: ChosenLayout, leaves: Mapping[str, np.ndarray]) -> Any:
    """The nested value of a layout; None where nothing was chosen."""
    if layout is None:
        return None
    if isinstance(layout, str):
        return leaves[layout]
    if isinstance(layout, Mapping):
        return {key: _pick(part, leaves) for key, part in layout.items()}
    return tuple(_pick(part, leaves) for part in layout)


def under(prefix: str, leaves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fields of one kind, by their names without the kind."""
    return {
        name.removeprefix(prefix): rows for name, rows in leaves.items() if name.startswith(prefix)
    }


def _checked(argument: str, names: Sequence[str], known: set[str]) -> Sequence[str]:
    """Return the names after checking that all are known."""
    is_list = isinstance(names, list | tuple | set | frozenset)
    if not (is_list and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{argument}: expected a list of names, got {names!r}: put it in a list")
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none: no extras are stored"
            raise ValueError(f"{argument} names {name!r}, expected some of: {there}")
    return names


def _paths(path: str, layout: Layout) -> list[str]:
    """Names of all parts of a layout, including empty Dicts and Tuples."""
    if isinstance(layout, str):
        return [path]
    return [path] + [one for name, part in _items(layout) for one in _paths(f"{path}/{name}", part)]


def _chosen_of(
    path: str, layout: Layout, names: Collection[str], fields: Collection[str]
) -> ChosenLayout:
    """The parts of a layout that have fields, and empty parts that are named."""
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


Memory: TypeAlias = "dict[str, np.ndarray]"
Shapes: TypeAlias = "dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]"
Seed: TypeAlias = "np.random.Generator | tuple[int, ...]"
"""An argument of `numpy.random.default_rng`: a generator to go on with, or a seed."""


Rest: TypeAlias = "tuple[list[tuple[Copies, np.ndarray]], list[Callable[[], object]]]"
"""The work on a batch that is done without the storage's lock: the copies of large fields with
their outputs, ``[rows, ...]`` and C-contiguous, and what is to be called when they are made."""


def stack_views(frames: np.ndarray, k: int, first: int, count: int) -> np.ndarray:
    """Stacks ``[B, count, k, ...]`` as views into frames ``[B, C, ...]``, C-contiguous."""
    # first: index of the first stack's first frame.
    batch, frame = frames.strides[:2]
    shape = (len(frames), count, k, *frames.shape[2:])
    strides = (batch, frame, frame, *frames.strides[2:])
    # A bare ndarray: as_strided takes as long as a small batch.
    return np.ndarray(shape, frames.dtype, frames, first * frame, strides)


def padding_before(
    frames: np.ndarray, missing: np.ndarray, field: Field
) -> list[Callable[[], object]]:
    """The work that fills the frames [B, C, ...] before an episode's first one as the env does."""
    # missing: [B] number of frames that are not stored. Mostly none are, and there is no work.
    of = missing.nonzero()[0].tolist()

    def pad() -> None:
        for b in of:
            count = int(missing[b])
            frames[b, :count] = frames[b, count] if field.stack_padding == "repeat" else 0

    return [pad] if of else []


def stack_copies(frames: np.ndarray, rows: np.ndarray, field: Field, out: np.ndarray) -> None:
    """Copy stacks that do not cross a reset or reach into padding."""
    # frames: [B, C + k - 1, ...] single ones, the newest of the first stack at k - 1.
    # rows: [B, C] each row's index in its episode, or -1 where there is no row.
    # out: [B, C, k, ...].
    k, (batch, columns) = field.stack, rows.shape
    age = np.arange(k)[::-1]
    row, place = rows[:, :, None], np.arange(columns)[None, :, None] + (k - 1)
    is_there = row >= age
    back = np.minimum(age, np.maximum(row, 0)) if field.stack_padding == "repeat" else age
    number = np.arange(batch)[:, None, None] * frames.shape[1] + place - back
    flat = frames.reshape(batch * frames.shape[1], *field.shape)
    target = out.reshape(batch * columns * k, *field.shape)
    flat.take(number.ravel(), axis=0, out=target, mode="clip")
    if field.stack_padding == "repeat":
        is_there = np.broadcast_to(row >= 0, is_there.shape)
    empty = np.flatnonzero(~is_there)
    if len(empty):
        target[empty] = 0


# Any: the type of the result is that of the tree.
def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every array of a nested value, and return a value of the same form."""
    # tree: an array, or mappings, tuples, named tuples and lists of such; None stays None.
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: map_tree(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [map_tree(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree)


def named_leaves(name: str, tree: object) -> Iterator[tuple[str, Any]]:
    """The arrays of a nested value, each with its path, as ``state/c/0``, for error messages."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from named_leaves(f"{name}/{key}", part)
    elif isinstance(tree, tuple | list):
        for place, part in enumerate(tree):
            yield from named_leaves(f"{name}/{place}", part)
    elif tree is not None:
        yield name, tree


def one_line(value: Any, **counts: int) -> str:
    """The class of a batch, `counts`, and the names, dtypes and shapes of its arrays."""
    numbers, leaves = _parts_of(value, counts)
    parts = [f"{name}={count}" for name, count in numbers.items()]
    arrays: dict[str, list[str]] = {}
    for name, leaf in leaves:
        form = f"{getattr(leaf, 'dtype', type(leaf).__name__)} {tuple(np.shape(leaf))}"
        arrays.setdefault(form, []).append(name)
    parts += [f"{', '.join(names)}: {form}" for form, names in arrays.items()]
    return f"{type(value).__name__}({'; '.join(parts)})"


def batch_html(value: Any, **counts: int) -> str | None:
    """`one_line` as HTML for notebooks, with ranges of values and the first frames."""
    from ..pictures.summaries import arrays_html, or_none  # only notebooks need it

    return or_none(lambda: arrays_html(type(value).__name__, *_parts_of(value, counts)))


def _parts_of(
    value: Any, counts: Mapping[str, int]
) -> tuple[dict[str, int], list[tuple[str, Any]]]:
    """The numbers of a batch, and its arrays, each with its path."""
    numbers, leaves = dict(counts), list[tuple[str, Any]]()
    for each in fields(value):
        part = getattr(value, each.name)
        if isinstance(part, int):
            numbers[each.name] = part
        elif each.repr:
            leaves += named_leaves(each.name, part)
    return numbers, leaves
