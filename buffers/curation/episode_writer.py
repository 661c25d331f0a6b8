"""Writes stored episodes, and transitions recorded elsewhere, into a replay."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, NoReturn

import numpy as np

from ..base.errors import SpecMismatch, not_copied
from ..replay.replay import SequenceReplayBuffer
from ..rows.digest import Digest
from ..rows.episode import Chunk, End, Episode
from ..rows.step_columns import are_equal, check_fields, check_names, has_final_row, inferred_spec
from ..spec.spec import Field, Spec
from ..storage.chunk_codec import ChunkDecoder, ChunkEncoder
from ..storage.chunk_index import Counters
from ..storage.disk.files import Files
from ..storage.disk.folder import StoreFolder
from ..storage.encoded_chunk import EncodedChunk

# Limits of one chunk of a whole episode, and of the memory for unwritten rows.
_CHUNK_ROWS = 4096
_CHUNK_BYTES = 32 << 20
_CHUNKS_A_FLUSH = 4096
# Of chunks that are written as they are, and mostly lie in mapped files. With one more they fill
# most of a segment, but never begin another one.
_ENCODED_BYTES = 60 << 20
_STREAM_CHUNK_ROWS = 512
_PENDING = int(End.PENDING)


@dataclass(frozen=True, slots=True)
class TransitionColumns:
    """Consecutive transitions of one env, arrays ``[T, ...]``, without a gap between two of them.

    Args:
        fields: By field name: observations, actions and extras of each row, and ``reward`` and
            ``info/...`` that the action led to. Frame-stacked observations are whole stacks.
        next_observation: Observations that each action led to, by field name.
        terminated: [T] bool: the MDP ended with the step.
        truncated: [T] bool: a time limit ended the episode with the step.
        cut: [T] bool: the recording stopped with the step.
        is_first: [T] bool: the row is that of a reset. None where this is not known: then every
            row that does not continue another one counts as that of a reset.
    """

    fields: Mapping[str, np.ndarray]
    next_observation: Mapping[str, np.ndarray]
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    is_first: np.ndarray | None = None

    @property
    def steps(self) -> int:
        """Number of transitions T."""
        return len(self.cut)

    @property
    def ends(self) -> np.ndarray:
        """[T] bool: the step is the last recorded one of its episode."""
        ends: np.ndarray = self.terminated | self.truncated | self.cut
        return ends


class EpisodeWriter:
    """Writes stored episodes, or consecutive transitions, into a replay.

    Episodes get new ids. `add_episode` collects chunks in memory and writes them together; call
    `flush` at the end. `add_transitions` writes at once. For rows that come step by step, and for
    whole episodes given as arrays, use `SequenceReplayBuffer.writer`.

    Args:
        replay: A replay. If nothing is stored in it yet, the first rows determine its Spec.
        on_flush: Called after every write.
        source: Name for error messages, and for the session that the writer adds to
            `SequenceReplayBuffer.sessions` with its first rows. With None a replay that already
            has a Spec gets no new session.
        with_digest: Compute the `digest`.

    Example:
        >>> import stepwell as sw
        >>> played, copied = sw.SequenceReplayBuffer(seed=0), sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), played, seed=0) as collector:
        ...     report = collector.collect(episodes=4)
        >>> writer = sw.buffers.EpisodeWriter(copied, source="long ones")
        >>> for episode in played.iter_episodes():
        ...     if episode.steps > 10:
        ...         writer.add_episode(episode)
        >>> writer.flush()
        >>> writer.steps == copied.steps
        True
    """

    def __reduce__(self) -> NoReturn:
        not_copied(
            "an EpisodeWriter", "make one in each process, with a replay that was opened there"
        )

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        on_flush: Callable[[], None] | None = None,
        *,
        source: str | None = None,
        with_digest: bool = True,
    ) -> None:
        check_replay("replay", replay)
        self._replay = replay
        self._on_flush = on_flush
        self._source = source or "EpisodeWriter"
        self._is_ready = replay.is_bound and source is None
        # Counted by the storage, so that an interrupt cannot make the count wrong.
        self._before = replay.storage.index.counters if replay.is_bound else Counters()
        self._waiting: list[Chunk | EncodedChunk] = []
        self._waiting_rows = self._waiting_bytes = 0
        # Pending rows, which the next chunk has again.
        self._superseded = self._waiting_superseded = 0
        self._next_id = self._before.next_episode
        self._digest = Digest() if with_digest else None
        self._added_rows = 0
        self._ends = array("q")
        """Rows added up to the end of each episode."""
        self._open: dict[int, _OpenEpisode] = {}

    @property
    def max_rows(self) -> int:
        """Rows that a chunk given to `add_episode` should have at most."""
        return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // self._row_bytes))

    @property
    def next_episode(self) -> int:
        """Id of the episode that `add_episode` adds next."""
        return max(self._next_id, self._counters.next_episode)

    @property
    def rows(self) -> int:
        """Rows written."""
        return self._counters.next_row_id - self._before.next_row_id

    @property
    def steps(self) -> int:
        """Env steps written; the row of a reset does not count."""
        return self._counters.total_steps - self._before.total_steps

    @property
    def episodes(self) -> int:
        """Number of completely written episodes."""
        return bisect_right(self._ends, self.rows)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the rows written, uncompressed."""
        return (self.rows - self._superseded) * self._row_bytes

    @property
    def digest(self) -> str:
        """Fingerprint of the rows written, 16 hexadecimal digits; empty without ``with_digest``."""
        return "" if self._digest is None else self._digest.hexdigest()

    def add_episode(self, episode: Episode | Iterable[Chunk | EncodedChunk]) -> None:
        """Add one whole episode.

        Args:
            episode: An Episode, or all chunks of one, the oldest first. Chunks need a replay that
                has a Spec. Encoded ones are written as they are.

        Raises:
            SpecMismatch: The replay holds other rows; nothing was added.
        """
        if isinstance(episode, Episode):
            self._prepare(episode.spec)
            chunks: Iterable[Chunk | EncodedChunk] = _chunk_of(episode).split(self.max_rows)
        else:
            chunks = episode
        self._next_id = self.next_episode
        is_pending = False
        for chunk in chunks:
            if self._is_full():
                self.flush()
            if isinstance(chunk, EncodedChunk):
                self._waiting.append(chunk.placed(episode=self._next_id, stream=chunk.stream))
                self._waiting_bytes += chunk.nbytes
            else:
                self._waiting.append(replace(chunk, episode=self._next_id))
                self._waiting_rows += chunk.rows
            self._waiting_superseded += is_pending
            is_pending = int(chunk.end) & _PENDING != 0
            self._added_rows += chunk.rows
        self._ends.append(self._added_rows)
        self._next_id += 1
        if self._is_full():
            self.flush()

    def add_transitions(self, streams: Mapping[int, TransitionColumns]) -> int:
        """Write transitions of some streams; they are durable when it returns.

        An episode that one call leaves open is continued by the next one if that begins with the
        observation that the episode's last action led to. So the batches of a collector give
        whole episodes.

        Args:
            streams: By the index of the env.

        Returns:
            Number of env steps written.

        Raises:
            SpecMismatch: The replay holds other rows; nothing was stored.
            TypeError: The streams are no mapping of `TransitionColumns`.
            ValueError: An array has another length than the others, a next observation is not the
                observation of the row after it, or an episode begins where the one before has not
                ended; nothing was stored.
        """
        values = streams.values() if isinstance(streams, Mapping) else [streams]
        for columns in values:
            if not isinstance(columns, TransitionColumns):
                raise TypeError(
                    f"{self._source}: expected TransitionColumns by the index of the env, got "
                    f"{type(columns).__name__}"
                )
            self._check_lengths(columns)
        streams = {stream: columns for stream, columns in streams.items() if columns.steps}
        if not streams:
            return 0
        spec = self._transition_spec(next(iter(streams.values())))
        shapes = {field.name: field.source_shape for field in spec.fields}
        observations = [field.name for field in spec.of_kind("observation")]
        for columns in streams.values():
            check_names(spec.names, columns.fields, self._source)
            check_names(observations, columns.next_observation, self._source)
            check_fields(spec, columns.fields, shapes, self._source)
            check_fields(spec, columns.next_observation, shapes, self._source)
        # All streams are checked before the first is stored, so that an error stores nothing.
        runs = {stream: self._runs(stream, columns) for stream, columns in streams.items()}
        for stream, columns in streams.items():
            for run in runs[stream]:
                self._check_run(spec, stream, columns, run)
        self._prepare(spec)
        # Episodes that wait take the next ids when they are written.
        if self._waiting:
            self.flush()
        next_id = self._replay.storage.index.next_episode
        still_open = dict(self._open)
        chunks: list[Chunk] = []
        ended = 0
        for stream, columns in streams.items():
            still_open.pop(stream, None)
            for run in runs[stream]:
                episode = run.before.episode if run.before else next_id
                next_id += run.before is None
                chunk, newest = _chunk_of_run(spec, stream, episode, columns, run)
                chunks += chunk.split(_STREAM_CHUNK_ROWS)
                if not chunk.end.is_final and run.stop == columns.steps:
                    still_open[stream] = newest
                else:
                    ended += 1
        self._write(chunks)
        # Only now, as an error of the write leaves the open episodes as they were.
        self._open = still_open
        self._added_rows = self.rows
        self._ends.extend([self._added_rows] * ended)
        return sum(columns.steps for columns in streams.values())

    def flush(self) -> None:
        """Write all episodes that were added; they are durable when it returns."""
        if self._waiting:
            self._write(self._waiting)
            self._superseded += self._waiting_superseded
            self._waiting, self._waiting_rows = [], 0
            self._waiting_bytes = self._waiting_superseded = 0
        if self._on_flush is not None:
            self._on_flush()

    @property
    def _counters(self) -> Counters:
        replay = self._replay
        return replay.storage.index.counters if replay.is_bound else self._before

    @property
    def _row_bytes(self) -> int:
        return max(1, self._replay.spec.row_bytes) if self._replay.is_bound else 1

    def _write(self, chunks: Sequence[Chunk | EncodedChunk]) -> None:
        plain = [chunk for chunk in chunks if isinstance(chunk, Chunk)]
        if len(plain) == len(chunks):
            self._replay.add(plain)
        else:
            encoder = ChunkEncoder(self._replay.spec)
            self._replay.add_encoded(
                [
                    EncodedChunk.of(encoder, chunk) if isinstance(chunk, Chunk) else chunk
                    for chunk in chunks
                ]
            )
        if self._digest is None:
            return
        decoder = ChunkDecoder(self._replay.spec)
        for chunk in chunks:
            self._digest.update(chunk if isinstance(chunk, Chunk) else chunk.decoded(decoder))

    def _is_full(self) -> bool:
        rows = self._waiting_rows
        return (
            (rows > 0 and rows * self._row_bytes >= _CHUNK_BYTES)
            or self._waiting_bytes >= _ENCODED_BYTES
            or rows >= _CHUNK_ROWS
            or len(self._waiting) >= _CHUNKS_A_FLUSH
        )

    def _prepare(self, spec: Spec) -> None:
        """Give the replay its Spec and session before the first rows, and compare Specs later."""
        if not self._is_ready:
            sessions = self._replay.sessions
            recipe = sessions[0].get("recipe", {}) if sessions else {}
            self._replay.bind(spec, {"source": self._source, "recipe": recipe})
            self._is_ready = True
        stored = self._replay.spec
        if spec is not stored and not _same_rows(stored, spec):
            raise SpecMismatch(
                f"{self._source}: expected rows like those of the replay, got others: "
                f"{stored.difference(spec)}; give another replay"
            )

    def _transition_spec(self, columns: TransitionColumns) -> Spec:
        if self._replay.is_bound:
            return self._replay.spec
        sample = {  # an episode of no step
            name: rows[: int(has_final_row(name))] for name, rows in columns.fields.items()
        }
        return inferred_spec(sample, self._source)

    def _check_lengths(self, columns: TransitionColumns) -> None:
        following = {f"next {name}": rows for name, rows in columns.next_observation.items()}
        flags = {name: getattr(columns, name) for name in ("terminated", "truncated", "is_first")}
        for name, rows in {**columns.fields, **following, **flags}.items():
            if rows is not None and len(rows) != columns.steps:
                raise ValueError(
                    f"{self._source}: expected {name} of {columns.steps:,} steps, got {len(rows):,}"
                )

    def _runs(self, stream: int, columns: TransitionColumns) -> list[_Run]:
        edges = [0, *(np.flatnonzero(columns.ends[:-1]) + 1).tolist(), columns.steps]
        runs: list[_Run] = []
        for start, stop in pairwise(edges):
            is_first = None if columns.is_first is None else bool(columns.is_first[start])
            before = self._open.get(stream) if start == 0 else None
            if before is not None and not _continues(before, columns, is_first):
                before = None
            first_row = before.number if before else int(is_first is False)
            runs.append(_Run(start, stop, before, first_row))
        return runs

    def _check_run(self, spec: Spec, stream: int, columns: TransitionColumns, run: _Run) -> None:
        inner = slice(run.start, run.stop - 1), slice(run.start + 1, run.stop)
        if columns.is_first is not None and columns.is_first[inner[1]].any():
            row = run.start + 1 + int(np.argmax(columns.is_first[inner[1]]))
            raise ValueError(
                f"{self._source}: expected row {row - 1} of env {stream} to be terminated or "
                f"truncated, as row {row} begins an episode, got neither; mark it"
            )
        for name, following in columns.next_observation.items():
            same = are_equal(following[inner[0]], columns.fields[name][inner[1]])
            if not same.all():
                row = run.start + int(np.argmin(same))
                raise ValueError(
                    f"{self._source}: expected the next {name} of row {row} of env {stream} to be "
                    f"that of row {row + 1}, got another; give steps that follow each other, or "
                    f"mark row {row} as truncated"
                )
            if spec[name].stack > 1:
                rows = columns.fields[name][run.start : run.stop]
                stacks = np.concatenate([rows, following[run.stop - 1 : run.stop]])
                _check_stacks(spec[name], stacks, run.first_row == 0)


def check_replay(name: str, value: object) -> None:
    """Refuse what is no replay."""
    if not isinstance(value, SequenceReplayBuffer):
        raise TypeError(
            f"{name}: expected a SequenceReplayBuffer, got {type(value).__name__}; make one, with "
            f"a path for a folder"
        )


def check_new(target: SequenceReplayBuffer) -> None:
    """Reject a target that holds something, or lies in a folder that does."""
    if target.is_bound:
        where = "in RAM" if target.path is None else str(target.path)
        raise ValueError(
            f"the target {where} is in use already ({target.steps:,} steps), expected a new "
            f"replay: give SequenceReplayBuffer(), or one in a new folder"
        )
    if target.path is not None:
        StoreFolder(target.path, Files()).check_unused()


class _OpenEpisode(NamedTuple):
    """An episode of a stream that may continue: no action from its newest row is known."""

    episode: int
    number: int  # place of the newest row in the episode
    # the newest row without its action, [1, ...] by field name; whole stacks
    row: Mapping[str, np.ndarray]
    is_cut: bool  # the recording stopped here, perhaps only for a while


class _Run(NamedTuple):
    """Transitions ``start .. stop`` of a stream, all of one episode."""

    start: int
    stop: int
    before: _OpenEpisode | None
    first_row: int


def _chunk_of(episode: Episode) -> Chunk:
    return Chunk(
        episode.id,
        episode.stream,
        episode.first_row,
        episode.end,
        episode.fields,
        episode.metadata,
        episode.first_row > 0,
    )


def _same_rows(stored: Spec, spec: Spec) -> bool:
    """True if two Specs are equal but for the compression of fields."""
    codecs = {field.name: field.codec for field in stored.fields if field.name in spec.names}
    return stored.difference(spec.with_codecs(codecs)) is None


def _continues(before: _OpenEpisode, columns: TransitionColumns, is_first: bool | None) -> bool:
    """True if the first row is the newest row of an open episode."""
    # After a cut it must be known that the row is not a reset's, which may look the same.
    if is_first or (before.is_cut and is_first is None):
        return False
    return all(
        bool(are_equal(before.row[name], columns.fields[name][:1]).all())
        for name in columns.next_observation
    )


def _check_stacks(field: Field, stacks: np.ndarray, begins: bool) -> None:
    """Raise SpecMismatch unless each stack is the previous one, shifted by one frame."""
    right = bool((stacks[1:, :-1] == stacks[:-1, 1:]).all())
    if begins and right:
        first = stacks[0]
        right = (
            not first[:-1].any() if field.stack_padding == "zero" else (first == first[-1]).all()
        )
    if not right:
        raise SpecMismatch(
            f"field {field.name!r}: expected stacks of {field.stack} frames, each the previous one "
            f"shifted by one and padded by {field.stack_padding} at a reset, got others; give "
            f"another replay"
        )


def _chunk_of_run(
    spec: Spec, stream: int, episode: int, columns: TransitionColumns, run: _Run
) -> tuple[Chunk, _OpenEpisode]:
    """The rows of a run, and the state from which its episode may continue."""
    steps = slice(run.start, run.stop)
    fields: dict[str, np.ndarray] = {}
    newest: dict[str, np.ndarray] = {}
    for field in spec.fields:
        name = field.name
        rows = columns.fields[name][steps]
        if field.is_chosen:  # no action was chosen from the last row
            fields[name] = np.concatenate([rows, np.zeros_like(rows[:1])])
            continue
        if field.kind == "observation":
            last = columns.next_observation[name][run.stop - 1 : run.stop]
            rows = np.concatenate([rows, last])
            fields[name] = rows[:, -1] if field.stack > 1 else rows
        else:
            rows = rows.astype(field.numpy_dtype)
            first = run.before.row[name] if run.before else np.zeros_like(rows[:1])
            rows = fields[name] = np.concatenate([first, rows])
        newest[name] = rows[-1:]
    last_step = run.stop - 1
    terminated = End.TERMINATED if columns.terminated[last_step] else End.NONE
    truncated = End.TRUNCATED if columns.truncated[last_step] else End.NONE
    end = terminated | truncated or End.PENDING
    starts_late = run.before is None and run.first_row > 0
    chunk = Chunk(episode, stream, run.first_row, end, fields, {}, starts_late)
    number = run.first_row + run.stop - run.start
    return chunk, _OpenEpisode(episode, number, newest, bool(columns.cut[last_step]))
