"""Everything that can be drawn from a replay, by brute force, and what each draw contains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from stepwell.buffers import Batch, End, Field, Spec
from stepwell.buffers.sampling.batch import TransitionBatch
from stepwell.buffers.sampling.requests import Align, Episodes, Request, Sequences, Transitions
from support.rows.replay_rows import ModelEpisode, Played, Row, numbered, streams_of

FLAGS = ("is_first", "is_last", "terminated", "truncated", "cut")


class Item(NamedTuple):
    """A run of places, [burn_in + T], or one more with transitions; None where no row is."""

    places: tuple[Row | None, ...]

    @property
    def rows(self) -> list[Row]:
        """The rows of it that are stored."""
        return [row for row in self.places if row is not None]


class Transition(NamedTuple):
    """A transition of one step or more."""

    row: Row
    between: tuple[Row, ...]
    """The rows that followed, up to the next observation's."""


# What can be drawn


def sequences(episodes: Sequence[ModelEpisode], request: Sequences, stack: int = 1) -> list[Item]:
    """All sequences that a request can draw, whatever their probabilities."""
    frames = stack - 1 if request.stack else 0
    lines = streams_of(episodes) if request.borders == "cross" else [e.rows for e in episodes]
    found = [item for line in lines for item in _runs(line, request, frames)]
    if request.draw == "ends":
        ends = {episode.last.id for episode in episodes if episode.has_ended}
        return [item for item in found if _reaches(item, ends, request)]
    return found


def _runs(line: list[Row], request: Sequences, frames: int) -> Iterator[Item]:
    """The sequences of one line, from its oldest row on."""
    follower = request.align == "transition"
    width = request.length + follower
    # From where a first row's predecessors are missing for good, and up to where it has the rest.
    first, stop = 0, len(line) - width + 1
    if request.borders == "pad_after":
        stop = len(line) - follower
    elif request.borders == "pad_before":
        first = 1 + follower - width
    for start in range(first, stop):
        numbers = range(start - request.burn_in, start + width)
        # What comes before is stored, with a stack's frames, or the line begins with a reset.
        if numbers[0] - frames >= 0 or line[0].number == 0:
            yield Item(tuple(line[n] if 0 <= n < len(line) else None for n in numbers))


def _has_frames(row: Row, heads: Mapping[int, int], stack: int) -> bool:
    """The frames of the row's stack are stored, or lie before the reset."""
    return heads[row.episode] == 0 or row.number - (stack - 1) >= heads[row.episode]


def _reaches(item: Item, ends: set[int], request: Sequences) -> bool:
    """One of its main rows is the last row of an episode that the env ended."""
    main = item.places[request.burn_in :]
    return any(row is not None and row.id in ends for row in main)


def transitions(
    episodes: Sequence[ModelEpisode], request: Transitions, stack: int = 1
) -> list[Transition]:
    """All transitions that a request can draw, in order of the rows that they begin with."""
    heads = {episode.id: episode.head for episode in episodes}
    found: list[Transition] = []
    for episode in episodes:
        for place, row in enumerate(episode.rows[:-1]):
            step = Transition(row, tuple(episode.rows[place + 1 : place + 1 + request.n_step]))
            reaches = episode.has_ended and step.between[-1] == episode.last
            if (not request.stack or _has_frames(row, heads, stack)) and (
                request.draw != "ends" or reaches
            ):
                found.append(step)
    return found


def whole_episodes(
    episodes: Sequence[ModelEpisode], request: Episodes, stack: int = 1
) -> list[list[Row]]:
    """The rows of all episodes that can be drawn, from the first with a complete stack."""
    frames = stack - 1 if request.stack else 0
    found = [each.rows[frames if each.head > 0 else 0 :] for each in episodes]
    return [rows for rows in found if len(rows) > (request.align == "transition")]


def drawable(played: Played | Stored, request: Request, stack: int = 1) -> dict[int, Any]:
    """Everything that a request can draw, by the ids that batches give to it."""
    if isinstance(request, Transitions):
        return {step.row.id: step for step in transitions(played.episodes, request, stack)}
    if isinstance(request, Sequences):
        return by_id(sequences(played.episodes, request, stack), request)
    wholes = whole_episodes(played.episodes, request, stack)
    return {rows[0].id: Item(tuple(rows)) for rows in wholes}


# What a draw contains


class Stored(NamedTuple):
    """Rows that were not played into the replay that is drawn from."""

    spec: Spec
    episodes: Sequence[ModelEpisode]


def assert_drawn(
    played: Played | Stored,
    batch: Any,
    request: Request,
    stack: int = 1,
    known: Mapping[int, Any] | None = None,
) -> list[Any]:
    """All arrays of a batch are those of what has its ids; returns that.

    Args:
        played: The rows of the replay that the batch is from.
        batch: The batch.
        request: What was asked for.
        stack: Frames of a stack.
        known: What may be in the batch, by its ids; by default, all that can be drawn.
    """
    known = drawable(played, request, stack) if known is None else known
    contents, some = Contents(played.spec, played.episodes), drawn(batch, known)
    if isinstance(request, Transitions):
        assert isinstance(batch, TransitionBatch)
        assert_transitions(played.spec, contents, batch, some, request)
    else:
        assert isinstance(batch, Batch)
        longest = max(len(item.places) for item in some)
        padded = [Item(item.places + (None,) * (longest - len(item.places))) for item in some]
        assert_sequences(played.spec, contents, batch, padded, request)
    return some


class Contents:
    """Every stored row by its id, and a row of zeros for places without one."""

    def __init__(self, spec: Spec, episodes: Sequence[ModelEpisode]) -> None:
        self._spec = spec
        rows = [row for episode in episodes for row in episode.rows]
        ids = [row.id for row in rows]
        self._index = dict(zip(ids, range(len(ids)), strict=True))
        self._none = len(ids)
        self._frames = {(row.episode, row.number): self._index[row.id] for row in rows}
        self._columns = {
            name: np.concatenate([column, np.zeros_like(column[:1])])
            for name, column in numbered(rows or [Row(0, 0, 0, 0, True)]).items()
        }
        if not rows:
            self._columns = {name: column[1:] for name, column in self._columns.items()}
        marks = [mark for episode in episodes for mark in _marks(episode)]
        marks.append((False,) * len(FLAGS))
        self._flags: dict[str, np.ndarray] = dict(
            zip(FLAGS, np.array(marks, np.bool_).T, strict=True)
        )

    def column(self, name: str, rows: Sequence[Row | None], stack: bool = False) -> np.ndarray:
        """A field in some rows, [n, ...], or [n, k, ...] with stacks."""
        field = self._spec[name]
        column = self._columns[name]
        at = self._at(rows)
        if stack and field.stack > 1:
            at = np.array([self._stack(row, field) for row in rows], np.int64)
        found: np.ndarray = column[at]
        return found

    def flag(self, name: str, rows: Sequence[Row | None]) -> np.ndarray:
        """A flag of some rows, [n]."""
        flags: np.ndarray = self._flags[name][self._at(rows)]
        return flags

    def _at(self, rows: Sequence[Row | None]) -> np.ndarray:
        return np.array([self._none if row is None else self._index[row.id] for row in rows], int)

    def _stack(self, row: Row | None, field: Field) -> list[int]:
        """Positions of the frames of a row's stack."""
        if row is None:
            return [self._none] * field.stack
        padding = self._none
        if field.stack_padding == "repeat":
            padding = self._frames.get((row.episode, 0), self._none)
        numbers = range(row.number - field.stack + 1, row.number + 1)
        return [self._frames[row.episode, n] if n >= 0 else padding for n in numbers]


def _marks(episode: ModelEpisode) -> Iterator[tuple[bool, ...]]:
    """The flags of each row, in the order of FLAGS."""
    for row in episode.rows:
        is_last = row is episode.rows[-1]
        yield (
            row.number == 0,
            is_last,
            is_last and bool(episode.end & End.TERMINATED),
            is_last and bool(episode.end & End.TRUNCATED),
            is_last and not episode.has_ended,
        )


def item_id(item: Item, request: Sequences) -> int:
    """Id of the row that identifies a sequence among those of the request.

    It is the first row to learn from, or, where those before the reset are padding, the last one.
    """
    place = request.burn_in
    if request.borders == "pad_before":
        place = len(item.places) - 1 - (request.align == "transition")
    row = item.places[place]
    assert row is not None
    return row.id


def mask_of(item: Item, align: Align) -> list[bool]:
    """A mask of the places that are stored rows, or transitions."""
    if align == "arrival":
        return [row is not None for row in item.places]
    pairs = zip(item.places[:-1], item.places[1:], strict=True)
    return [a is not None and b is not None and a.episode == b.episode for a, b in pairs]


def by_id(items: Iterable[Item], request: Sequences) -> dict[int, Item]:
    """The items by their unique ids."""
    return {item_id(item, request): item for item in items}


def drawn(batch: Batch | TransitionBatch, items: Mapping[int, Any]) -> list[Any]:
    """The items of a batch; each must be one that can be drawn."""
    ids = batch.ids.tolist()
    for row in ids:
        assert row in items, f"what begins with the row of id {row} cannot be drawn"
    return [items[row] for row in ids]


def assert_sequences(
    spec: Spec,
    contents: Contents,
    batch: Batch,
    items: Sequence[Item],
    request: Sequences | Episodes,
) -> None:
    """All arrays of a batch-major batch are those of the items."""
    follower = request.align == "transition"
    now = [row for item in items for row in item.places[: len(item.places) - follower]]
    then = [row for item in items for row in item.places[follower:]]
    mask = np.array([mask_of(item, request.align) for item in items])
    shape = mask.shape
    _same("mask", batch.mask, mask)
    _same("lengths", batch.lengths, mask.sum(axis=1))
    if getattr(request, "draw", "") != "priorities":
        _same("weights", batch.weights, np.ones(len(items), np.float32))
    assert batch.burn_in == getattr(request, "burn_in", 0)
    for name in FLAGS:
        rows = now if name == "is_first" else then
        expected = contents.flag(name, rows).reshape(shape)
        # Where a reset follows on a final row, no flag but is_first means anything.
        where = mask if follower and name != "is_first" else None
        _same(name, getattr(batch, name), expected, where)
    carried = [f"extra/{name}" for name in getattr(request, "state", ())]
    wanted = request.fields or [name for name in spec.names if name not in carried]
    fields = list(fields_of(batch))
    assert [name for name, _, _ in fields] == [n for n in spec.names if chosen(n, wanted)]
    assert {f"extra/{name}" for name in batch.state} == set(carried)
    for name, array, is_next in [*fields, *next_fields_of(batch)]:
        arrived = follower and name.partition("/")[0] in ("reward", "info")
        column = contents.column(name, then if arrived or is_next else now, request.stack)
        expected = column.reshape(*shape, *column.shape[1:])
        is_stack = request.stack and spec[name].stack > 1
        # Beside the mask stand zeros, but in what is a view into rows that others see too.
        _same(name, array, expected, mask if follower or is_stack else None)
    for name, state in batch.state.items():
        first = contents.column(f"extra/{name}", [item.rows[0] for item in items])
        _same(f"state {name}", state, first)


def chosen(name: str, wanted: Sequence[str]) -> bool:
    """True if a field was requested, by its name or the first part of it."""
    return name in wanted or name.partition("/")[0] in wanted


def fields_of(batch: Batch | TransitionBatch) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Names and arrays of what a batch holds of the rows' own fields."""
    if batch.observation is not None:
        for key, array in cast("Any", batch.observation).items():
            yield f"observation/{key}", array, False
    if batch.action is not None:
        yield "action", batch.action, False
    if batch.reward is not None:
        yield "reward", batch.reward, False
    for kind, arrays in (("info", batch.info), ("extra", batch.extras)):
        for key, array in arrays.items():
            yield f"{kind}/{key}", array, False


def next_fields_of(batch: Batch | TransitionBatch) -> Iterator[tuple[str, np.ndarray, bool]]:
    """The observations that followed."""
    if batch.next_observation is not None:
        for key, array in cast("Any", batch.next_observation).items():
            yield f"observation/{key}", array, True


def assert_transitions(
    spec: Spec,
    contents: Contents,
    batch: TransitionBatch,
    steps: Sequence[Transition],
    request: Transitions,
) -> None:
    """All arrays of a batch are those of the transitions."""
    now = [step.row for step in steps]
    then = [step.between[-1] for step in steps]
    count = np.array([len(step.between) for step in steps])
    terminated = contents.flag("terminated", then)
    _same("ids", batch.ids, np.array([row.id for row in now]))
    _same("steps", batch.steps, count)
    if request.draw != "priorities":
        _same("weights", batch.weights, np.ones(len(steps), np.float32))
    _same("terminated", batch.terminated, terminated)
    _same("truncated", batch.truncated, contents.flag("truncated", then))
    _same("cut", batch.cut, contents.flag("cut", then))
    discount = np.where(terminated, 0.0, request.gamma**count)
    np.testing.assert_allclose(batch.discount, discount, rtol=1e-6)
    assert batch.discount.dtype == np.float32
    wanted = spec.names if request.fields is None else request.fields
    fields = list(fields_of(batch))
    assert [name for name, _, _ in fields] == [n for n in spec.names if chosen(n, wanted)]
    for name, array, is_next in [*fields, *next_fields_of(batch)]:
        if name == "reward":
            _same_returns(contents, array, steps, request.gamma)
            continue
        rows = then if is_next or name.startswith("info/") else now
        _same(name, array, contents.column(name, rows, request.stack))


def _same_returns(
    contents: Contents, found: np.ndarray, steps: Sequence[Transition], gamma: float
) -> None:
    returns = [
        sum(gamma**i * float(r) for i, r in enumerate(contents.column("reward", step.between)))
        for step in steps
    ]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, returns, rtol=1e-5, atol=1e-5)


def _same(name: str, found: Any, expected: np.ndarray, where: np.ndarray | None = None) -> None:
    """Equal shape and values, everywhere or where a mask says so."""
    assert isinstance(found, np.ndarray), name
    assert found.shape == expected.shape, f"{name}: {found.shape}, expected {expected.shape}"
    exact = np.float32 if name == "reward" else expected.dtype
    assert found.dtype == exact, f"{name}: {found.dtype}, expected {exact}"
    differs = found != expected
    if where is not None:
        differs = differs[where]
    assert not differs.any(), f"{name} differs at {np.argwhere(differs)[:3].tolist()}"
