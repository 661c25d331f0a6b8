"""Transitions of other libraries, env by env, as the rows of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import SpecMismatch
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Field, Layout, Spec, default_codec

__all__ = ["Columns", "StreamWriter", "layout_of", "rows_spec"]

_CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class Columns:
    """Consecutive transitions of one env, arrays ``[T, ...]``; nothing lies between two of them.

    Args:
        chosen: Observations, actions and extras of each row, by field name; stacks in full.
        brought: ``reward`` and ``info/...``: what each action brought.
        following: Observations that each action led to, by field name.
        terminated: [T] bool: the MDP ended with the step.
        truncated: [T] bool: the env's clock ended the episode with the step.
        cut: [T] bool: the recording stopped with the step.
        is_first: [T] bool: the row is that of a reset; None where nobody knows, and then every row
            that does not continue another one is taken for one.
    """

    chosen: Mapping[str, np.ndarray]
    brought: Mapping[str, np.ndarray]
    following: Mapping[str, np.ndarray]
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    is_first: np.ndarray | None = None

    @property
    def ends(self) -> np.ndarray:
        """[T] bool: the step was the last one that is known of its episode."""
        found: np.ndarray = self.terminated | self.truncated | self.cut
        return found


class _Open(NamedTuple):
    """An episode that may go on: its newest row awaits its action.

    Args:
        episode: Its id.
        number: The row's place in it.
        row: What arrived with the row, ``[1, ...]``; stacks in full.
        is_cut: The recording stopped here, perhaps only for a while.
    """

    episode: int
    number: int
    row: Mapping[str, np.ndarray]
    is_cut: bool


class _Run(NamedTuple):
    """Transitions ``start .. stop`` of a stream, which lie in one episode."""

    start: int
    stop: int
    before: _Open | None
    first_row: int


def layout_of(names: Sequence[str], part: str) -> Layout:
    """How fields form the observation or the action, by their names.

    Example:
        >>> layout_of(["observation/a", "observation/b/c"], "observation")
        {'a': 'observation/a', 'b': {'c': 'observation/b/c'}}
        >>> layout_of(["action"], "action")
        'action'
    """
    if list(names) == [part]:
        return part
    heads: dict[str, list[str]] = {}
    for name in names:
        heads.setdefault(name.removeprefix(f"{part}/").split("/")[0], []).append(name)
    return {head: layout_of(below, f"{part}/{head}") for head, below in heads.items()}


def rows_spec(columns: Columns) -> Spec:
    """The fields that rows of such transitions have."""
    named = [*columns.chosen.items(), *columns.brought.items()]
    fields = [
        Field("reward", "float64", (), "narrow")
        if name == "reward"
        else Field(name, a.dtype.name, a.shape[1:], default_codec(a.dtype, a.shape[1:]))
        for name, a in named
    ]
    order = ("observation", "action", "reward", "info", "extra")
    fields.sort(key=lambda field: order.index(field.name.split("/")[0]))  # stable within a kind
    parts = {kind: [f.name for f in fields if f.name.split("/")[0] == kind] for kind in order}
    observation = layout_of(parts["observation"], "observation")
    return Spec(tuple(fields), observation, layout_of(parts["action"], "action"))


class StreamWriter:
    """Writes transitions into a replay as episodes of T + 1 rows.

    What one call leaves open goes on with the next one, if that begins with the very observation
    that was the last one: so batches of a collector give whole episodes.

    Args:
        replay: Where they go; bound here to the rows of the first transitions, unless it is.
        source: Where they are from: what errors and the replay's sessions say.
    """

    def __init__(self, replay: SequenceReplayBuffer, source: str) -> None:
        self._replay = replay
        self._source = source
        self._is_bound = False
        self._open: dict[int, _Open] = {}

    def add(self, streams: Mapping[int, Columns]) -> int:
        """Store transitions of some streams; when it returns they are kept for good.

        Args:
            streams: By the index of the env.

        Returns:
            How many env steps were stored.

        Raises:
            SpecMismatch: The replay holds other rows.
            ValueError: A next observation is not the observation of the row after it, or an episode
                begins where the one before has not ended; nothing was stored.
        """
        some = {stream: columns for stream, columns in streams.items() if len(columns.cut)}
        if not some:
            return 0
        spec = self._spec(next(iter(some.values())))
        for columns in some.values():
            self._check_fields(spec, columns)
        runs = {stream: self._runs(stream, columns) for stream, columns in some.items()}
        for stream, columns in some.items():
            for run in runs[stream]:
                self._check_run(spec, stream, columns, run)
        if not self._is_bound:
            sessions = self._replay.sessions
            recipe = sessions[0].get("recipe", {}) if sessions else {}
            self._replay.bind(spec, {"source": self._source, "recipe": recipe})
            self._is_bound = True
        following = self._replay.storage.table.next_episode
        still_open = dict(self._open)
        chunks: list[Chunk] = []
        for stream, columns in some.items():
            still_open.pop(stream, None)
            for run in runs[stream]:
                episode = run.before.episode if run.before else following
                following += run.before is None
                chunk, after = _chunk(spec, stream, episode, columns, run)
                chunks += chunk.split(_CHUNK_ROWS)
                if not chunk.end.is_final and run.stop == len(columns.cut):
                    still_open[stream] = after
        self._replay.add(chunks)
        self._open = still_open
        return sum(len(columns.cut) for columns in some.values())

    def _spec(self, columns: Columns) -> Spec:
        return self._replay.spec if self._replay.is_bound else rows_spec(columns)

    def _check_fields(self, spec: Spec, columns: Columns) -> None:
        given = {**columns.chosen, **columns.brought}
        if set(given) != set(spec.names):
            raise SpecMismatch(
                f"{self._source}: expected the fields {', '.join(sorted(spec.names))}, which the "
                f"replay holds, got {', '.join(sorted(given))}; give the others too, or another "
                f"replay"
            )
        for name, array in [*given.items(), *columns.following.items()]:
            field = spec[name]
            is_right = array.dtype == field.numpy_dtype
            if name == "reward":  # kept as float64, which holds every float32
                is_right = array.dtype.kind == "f"
            if not is_right or array.shape[1:] != field.source_shape:
                raise SpecMismatch(
                    f"{self._source}: expected {name} of {field.dtype} {field.source_shape}, got "
                    f"{array.dtype} {array.shape[1:]}; convert it, or give another replay"
                )

    def _runs(self, stream: int, columns: Columns) -> list[_Run]:
        """What lies in one episode each."""
        edges = [0, *(np.flatnonzero(columns.ends[:-1]) + 1).tolist(), len(columns.cut)]
        runs: list[_Run] = []
        for start, stop in pairwise(edges):
            is_first = None if columns.is_first is None else bool(columns.is_first[start])
            before = self._open.get(stream) if start == 0 else None
            if before is not None and not _continues(before, columns, is_first):
                before = None
            first_row = before.number if before else int(is_first is False)
            runs.append(_Run(start, stop, before, first_row))
        return runs

    def _check_run(self, spec: Spec, stream: int, columns: Columns, run: _Run) -> None:
        inner = slice(run.start, run.stop - 1), slice(run.start + 1, run.stop)
        if columns.is_first is not None and columns.is_first[inner[1]].any():
            row = run.start + 1 + int(np.argmax(columns.is_first[inner[1]]))
            raise ValueError(
                f"{self._source}: expected row {row - 1} of env {stream} to be terminated or "
                f"truncated, as row {row} begins an episode, got neither; mark it"
            )
        for name, following in columns.following.items():
            same = _equal_rows(following[inner[0]], columns.chosen[name][inner[1]])
            if not same.all():
                row = run.start + int(np.argmin(same))
                raise ValueError(
                    f"{self._source}: expected the next {name} of row {row} of env {stream} to be "
                    f"that of row {row + 1}, got another; give steps that follow each other, or "
                    f"mark row {row} as truncated"
                )
            if spec[name].stack > 1:
                chosen = columns.chosen[name][run.start : run.stop]
                stacks = np.concatenate([chosen, following[run.stop - 1 : run.stop]])
                _check_stacks(spec[name], stacks, run.first_row == 0)


def _continues(before: _Open, columns: Columns, is_first: bool | None) -> bool:
    """Whether the first row is the one that awaits its action.

    Behind a cut only one that is known not to be a reset's: a reset's may look the same.
    """
    if is_first or (before.is_cut and is_first is None):
        return False
    return all(
        bool(_equal_rows(before.row[name], columns.chosen[name][:1]).all())
        for name in columns.following
    )


def _equal_rows(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[n] bool: rows are the same, not-a-numbers included."""
    same = some == others
    if some.dtype.kind in "fc":
        same |= (some != some) & (others != others)
    found: np.ndarray = same.all(axis=tuple(range(1, same.ndim)))
    return found


def _check_stacks(field: Field, stacks: np.ndarray, begins: bool) -> None:
    """Raise SpecMismatch unless each stack is the one before, moved on by one frame."""
    right = bool((stacks[1:, :-1] == stacks[:-1, 1:]).all())
    if begins and right:
        first = stacks[0]
        right = (
            not first[:-1].any() if field.stack_padding == "zero" else (first == first[-1]).all()
        )
    if not right:
        raise SpecMismatch(
            f"field {field.name!r}: expected stacks of {field.stack} frames, each the one before "
            f"moved on by one and padded by {field.stack_padding} at a reset, got others; give "
            f"another replay"
        )


def _chunk(
    spec: Spec, stream: int, episode: int, columns: Columns, run: _Run
) -> tuple[Chunk, _Open]:
    """The rows of a run, and what is left to go on from."""
    rows = slice(run.start, run.stop)
    fields: dict[str, np.ndarray] = {}
    newest: dict[str, np.ndarray] = {}
    for field in spec.fields:
        name = field.name
        if name in columns.following:
            behind = columns.following[name][run.stop - 1 : run.stop]
            found = np.concatenate([columns.chosen[name][rows], behind])
            newest[name] = found[-1:]
            fields[name] = found[:, -1] if field.stack > 1 else found
        elif name in columns.brought:
            brought = columns.brought[name][rows].astype(field.numpy_dtype)
            before = run.before.row[name] if run.before else np.zeros_like(brought[:1])
            fields[name] = np.concatenate([before, brought])
            newest[name] = fields[name][-1:]
        else:  # nothing was chosen from the last row
            chosen = columns.chosen[name][rows]
            fields[name] = np.concatenate([chosen, np.zeros_like(chosen[:1])])
    last = run.stop - 1
    terminated = End.TERMINATED if columns.terminated[last] else End.NONE
    truncated = End.TRUNCATED if columns.truncated[last] else End.NONE
    end = terminated | truncated or End.PENDING
    starts_late = run.before is None and run.first_row > 0
    chunk = Chunk(episode, stream, run.first_row, end, fields, {}, starts_late)
    number = run.first_row + run.stop - run.start
    return chunk, _Open(episode, number, newest, bool(columns.cut[last]))
