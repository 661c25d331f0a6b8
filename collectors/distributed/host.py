"""Steps the groups of a collector in an actor."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Never, TypeAlias, cast

import gymnasium
import numpy as np

from ...buffers import Chunk, EncodedChunk, Rollout, SequenceReplayBuffer, Spec
from ...buffers.base.errors import RowsDiffer, StoreLocked
from ...buffers.base.package import __version__
from ...buffers.curation.stored_episode import StoredEpisode, stored_episodes
from ...buffers.replay.writer import OWN_LOOP
from ...buffers.rows.digest import Digest, DigestState
from ...buffers.rows.episode import End
from ...buffers.storage.chunk_codec import ChunkEncoder
from ...buffers.storage.disk.storage import DiskStorage
from ...buffers.storage.encoded_chunk import pack_chunks
from ...buffers.storage.ram import MemoryStorage, max_chunk_rows
from ...wrappers.seeded_resets import ShardSeed
from ...wrappers.workers.worker import seed_global_generators
from ..loop.collector import Collector
from ..loop.step_loop import EpisodeCounter
from ..loop.vector_envs import Vector
from ..policies.as_policy import GivenPolicy
from .folders import GroupFolder
from .messages import Call, CallTotals, GroupOptions, GroupStart, Opening, Payload, Piece

__all__ = ["GroupHost", "MakeEnvs", "MakePolicy", "RowsDiffer"]

MakeEnvs: TypeAlias = "Callable[[], Vector | gymnasium.Env[Any, Any] | Sequence[Vector]]"
"""Makes the envs of a group, in the actor; see `Collector`."""
MakePolicy: TypeAlias = "Callable[[], GivenPolicy]"
"""Makes the policy of a group, in the actor; see `Collector`."""

_ANSWER_SECONDS = 1.0
_PIECE_ROWS, _PIECE_BYTES = 4_096, 1 << 20
# A guess, as rows that are played again are not encoded; frames of games take a hundredth.
_COMPRESSED = 32
_LOCK_SECONDS, _LOCK_PAUSE_SECONDS = 30.0, 0.1
# Of a session that is known by its number alone: no recipe is compared with it.
_OTHER_SESSION: Mapping[str, object] = {"source": OWN_LOOP}


class GroupHost:
    """Steps some groups of a collector; it lives in an actor."""

    # Its methods are called one after the other. Errors of the user's code leave them as they are.

    def __init__(self, make_envs: MakeEnvs, make_policy: MakePolicy, options: GroupOptions) -> None:
        self.make_envs = make_envs
        self.make_policy = make_policy
        self.options = options
        self._groups: dict[int, _Group] = {}
        self._weights: dict[int, object] = {}
        self._newest = 0

    def begin(self, start: GroupStart, weights: Mapping[int, object]) -> int:
        """Make a group's envs and policy, in place of earlier ones; returns its number of envs."""
        # ``weights`` are those that its history needs, by version.
        before = self._groups.pop(start.group, None)
        if before is not None:
            before.close()
        self._weights |= weights
        self._newest = max([self._newest, *weights])
        self._groups[start.group] = group = _Group(self, start)
        return group.num_envs

    def load(self, version: int, weights: object) -> None:
        """Take weights for calls that follow."""
        # The policies get them when a call with that version begins, or with the next `advance` of
        # a run.
        self._weights[version] = weights
        self._newest = max(self._newest, version)

    def advance(self, group: int, call: Call) -> tuple[Piece, Payload]:
        """Step a group until it has 4,096 rows or the call ends, through the history first."""
        # It takes fewer rows where these are large: some 1 MB. After about a second the piece
        # before is returned once more, by its number and without its rows: where a piece ends does
        # not depend on time. In a run it does: then the piece has the rows that there are, or none.
        # Where the call has ended already, its last piece is returned once more. RowsDiffer: rows
        # that were played again are others than those in the group's store.
        one = self._group(group)
        one.expect(call)
        return one.advance(self._weights_for)

    def finish(self, group: int) -> tuple[Piece, Payload]:
        """End a run and store all rows; returns its last piece, after an error the rows before."""
        return self._group(group).finish()

    def state(self, group: int) -> dict[str, object]:
        """The state of a group's Collector, once its calls have ended."""
        return self._group(group).state_dict()

    def close(self) -> None:
        """Close the envs and the stores of all groups."""
        groups, self._groups = self._groups, {}
        with contextlib.ExitStack() as stack:
            for group in groups.values():
                stack.callback(group.close)

    def ping(self) -> str:
        """The version of stepwell here."""
        return __version__

    def _group(self, number: int) -> _Group:
        if number not in self._groups:
            raise ValueError(
                f"group: expected one of {sorted(self._groups)}, got {number}; begin it first"
            )
        return self._groups[number]

    def _weights_for(self, call: Call) -> tuple[int, object]:
        """The version that a call is to be played with, and its weights; forgets older ones."""
        version = max(call.version, self._newest) if call.kind == "run" else call.version
        if version and version not in self._weights:
            raise ValueError(
                f"weights of version {version}: expected them before call {call.number}, got "
                f"versions {sorted(self._weights)}; load them first"
            )
        weights = self._weights.get(version)
        oldest = min([version, *(each.oldest_version for each in self._groups.values())])
        self._weights = {k: each for k, each in self._weights.items() if k >= oldest}
        return version, weights


class _Steps(Collector):
    """A Collector whose calls are stepped from outside."""

    _has_digest = False  # that of the outbox may continue another one

    def playing(self, call: Call) -> Generator[None, bool | None, Rollout | None]:
        """Play a call, with an item before each vector step."""
        # Then all rows are stored. Sent True, it ends before the next step, unless it is a rollout,
        # which the generator returns.
        if call.kind == "rollout":
            writer = self._machine.rollout_writer or self._new_rollout_writer()
            yield from self._rolling(writer, call.amount, None)
            # Without the memory of its arrays, which would be sent a second time.
            return replace(self._finished(writer), memory={})
        count = 1 if self._seeds.shard is None else self._seeds.shard[1]
        yield from self._collecting(
            {"steps": call.amount, "run": sys.maxsize}.get(call.kind),
            call.amount if call.kind == "episodes" else None,
            # All groups share the seeds of a call, so that these may be those of another shard.
            [ShardSeed(seed, count) if count > 1 else seed for seed in call.seeds] or None,
        )
        return None

    @property
    def counted(self) -> EpisodeCounter:
        """The counts of the present call."""
        return self._counter

    def totals(self, seconds: float) -> CallTotals:
        """The counts of the present call, which has taken so long."""
        report = self._reported()
        return CallTotals(
            *(report.steps, report.frames, report.cut, report.restarts, seconds),
            *(report.env_seconds, report.policy_seconds, report.write_seconds),
            *(report.raw_bytes, report.stored_bytes, report.outside),
        )

    def _check_replay(self, writer: object, *, is_open: bool) -> None:
        if writer is not None:  # else the outbox may know the fields of rows before there are any
            super()._check_replay(writer, is_open=is_open)

    def set_version(self, version: int) -> None:
        """Note another version with the rows that follow."""
        self._call.version = version

    def store_waiting(self) -> None:
        """Store the rows that wait for a chunk."""
        if self._machine.replay_writer is not None:
            self._machine.replay_writer.flush()

    def store_whole_rows(self, error: BaseException) -> None:
        """After an error, store the whole rows before it; notes on it say what failed then."""
        self._machine.fail(error, self._stepper.drain, says_what_is_kept=False)


class _Group:
    """A group: its Collector, the outbox of its chunks, and its calls."""

    def __init__(self, host: GroupHost, start: GroupStart) -> None:
        self._start, options = start, host.options
        self._flush_seconds = options.flush_seconds
        part, count = options.shard or (1, 1)
        with contextlib.ExitStack() as stack:
            self._outbox = stack.enter_context(_Outbox(options, start))
            # All groups make the same envs and policies, and draw other numbers with them.
            seed_global_generators(start.seed, start.session)
            envs = host.make_envs()
            for one in envs if isinstance(envs, Sequence) else [envs]:
                if hasattr(one, "close"):  # what is no env is refused below
                    stack.callback(one.close)
            policy = host.make_policy()
            seed_global_generators(start.seed, start.session, start.group)
            self._collector = _Steps(
                envs,
                policy,
                None if options.destination == "none" else self._outbox,
                seed=start.seed,
                shard=((part - 1) * options.groups + start.group + 1, count * options.groups),
                reseed_steps=options.reseed_steps,
                tolerate=options.tolerate,
                info=options.info,
                metadata=options.metadata,
                frame_stack=options.frame_stack,
                flush_seconds=math.inf,  # pieces are the same in every attempt
                store_state=options.store_state,
            )
            if start.collector is not None:
                self._collector.load_state_dict(start.collector)
            stack.pop_all()
        self.num_envs = self._collector.counted.num_envs
        self._policy = policy
        self._load = _load_of(policy)
        self._version = 0
        if self._load is not None:
            self._collector.set_version(0)
        self._calls = deque(start.history)
        self._newest_call = max((call.number for call in start.history), default=-1)
        self._played: Generator[None, bool | None, Rollout | None] | None = None
        self._failure: BaseException | None = None
        # Counts of the present call, and those that went with earlier pieces of it.
        self._seconds, self._steps, self._episodes = 0.0, 0, 0
        self._flushed = time.monotonic()
        self._is_opened = False
        self._before = Piece(
            *(start.group, start.attempt, -1, -1, False, False, 0, 0, 0, 0, ()),
            *(start.state.hexdigest(), start.state, 0, None, None),
        )

    @property
    def oldest_version(self) -> int:
        """The oldest weights that the group may still need."""
        return min([self._version, *(call.version for call in self._calls)])

    def expect(self, call: Call) -> None:
        """Play the call after those before it; nothing changes where it is known already."""
        if call.number > self._newest_call:
            self._calls.append(call)
            self._newest_call = call.number

    def advance(self, weights_of: Callable[[Call], tuple[int, object]]) -> tuple[Piece, Payload]:
        """Step until a piece is full or the call ends; see `GroupHost.advance`."""
        # ``weights_of`` gives the version that a call is played with, and its weights.
        if self._failure is not None:
            raise ValueError(
                f"group {self._start.group} failed before: {self._failure}; begin it again"
            )
        if not self._calls:
            return self._again()
        call = self._calls[0]
        began = time.perf_counter()
        try:
            if self._played is None or call.kind == "run":
                self._use(*weights_of(call))
            if self._played is None:
                self._played = self._collector.playing(call)
                self._seconds, self._steps, self._episodes = 0.0, 0, 0
                self._flushed = time.monotonic()
            self._outbox.encodes = self._before.number + 1 >= self._start.skip
            has_ended, rollout = self._step(call, began + _ANSWER_SECONDS)
        except BaseException as error:
            self._failure, self._played = error, None
            self._collector.store_whole_rows(error)
            raise
        self._seconds += time.perf_counter() - began
        if not (has_ended or self._outbox.is_full or call.kind == "run"):
            return self._again()
        return self._piece(call, has_ended, rollout)

    def finish(self) -> tuple[Piece, Payload]:
        """End a run, or a call that failed; see `GroupHost.finish`."""
        call = self._calls[0] if self._calls else None
        if call is None or (self._played is None and self._failure is None):
            self._calls.clear()  # of a run that had not begun
            return self._again()
        if self._played is not None:
            with contextlib.suppress(StopIteration):
                self._played.send(True)
        return self._piece(call, True, None)

    def state_dict(self) -> dict[str, object]:
        """The state of the Collector."""
        return self._collector.state_dict()

    def close(self) -> None:
        """Close the envs and the store."""
        with contextlib.closing(self._outbox):
            self._collector.close()

    def _step(self, call: Call, until: float) -> tuple[bool, Rollout | None]:
        """Step until a piece is full, it is late, or the call ends: then True, and its rollout."""
        assert self._played is not None
        outbox, played = self._outbox, self._played
        is_run = call.kind == "run"
        while not outbox.is_full:
            try:
                next(played)
            except StopIteration as end:
                return True, cast("Rollout | None", end.value)
            if time.perf_counter() >= until:
                break
            if is_run and time.monotonic() - self._flushed >= self._flush_seconds:
                self._collector.store_waiting()
                self._flushed = time.monotonic()
                if outbox.chunks:
                    break
        return False, None

    def _use(self, version: int, weights: object) -> None:
        """Give the policy the weights of this version, unless it has them."""
        if version == self._version:
            return
        if self._load is None:
            raise TypeError(
                f"policy: expected one with a method load(weights), got "
                f"{type(self._policy).__name__}; give it that method, or publish no weights"
            )
        self._load(weights)
        self._version = version
        self._collector.set_version(version)

    def _piece(self, call: Call, is_last: bool, rollout: Rollout | None) -> tuple[Piece, Payload]:
        """The next piece, with all chunks of the outbox."""
        number = self._before.number + 1
        is_repeat = number < self._start.skip
        chunks, rows, nbytes, encoded = self._outbox.take_chunks()
        counted, state = self._collector.counted, self._outbox.digest_state
        opening = None
        if chunks and not is_repeat and not self._is_opened:
            opening, self._is_opened = self._outbox.opening, True
        piece = Piece(
            *(self._start.group, self._start.attempt, number, call.number, is_last, is_repeat),
            *(chunks, rows, counted.steps - self._steps, nbytes),
            *(tuple(counted.ended[self._episodes :]), state.hexdigest(), state),
            *(self._version, opening),
            self._collector.totals(self._seconds) if is_last else None,
        )
        self._steps, self._episodes = counted.steps, len(counted.ended)
        if is_last:
            self._calls.popleft()
            self._played = None
        self._before = piece._replace(opening=None)
        return piece, Payload() if is_repeat else Payload(pack_chunks(encoded), rollout)

    def _again(self) -> tuple[Piece, Payload]:
        """The piece before, without its rows: there is no other one yet."""
        return self._before._replace(is_repeat=False), Payload()


class _Outbox(SequenceReplayBuffer):
    """The replay of a group: its chunks are on their way to the driver, or to the group's store."""

    def __init__(self, options: GroupOptions, start: GroupStart) -> None:
        super().__init__(
            capacity=options.capacity,
            codecs=options.codecs,
            storage=partial(_NoRows, options=options, start=start),
        )
        self._session = start.session
        self._digest = Digest(start.state)
        self._store: _GroupStore | None = None
        self.encodes = True
        """False while pieces are repeated: their chunks are not shipped."""
        self.chunks = 0
        """Number of chunks that wait for `take_chunks`."""
        self._rows = self._nbytes = self._taken_bytes = 0
        self._row_bytes = 0.0
        self._encoded: list[EncodedChunk] = []
        self._encoder: ChunkEncoder | None = None
        self.opening: Opening | None = None
        if options.spec is not None:
            self._use(self._make_storage(options.spec))
        if options.destination not in ("ship", "none"):
            self._store = _GroupStore(options, start)

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs before, of which only the number is known, and about this one."""
        return super().sessions or (_OTHER_SESSION,) * self._session

    @property
    def is_full(self) -> bool:
        """True when the chunks that wait make a piece: the same ones in every attempt."""
        return self._rows >= _PIECE_ROWS or self._rows * self._row_bytes >= _PIECE_BYTES

    @property
    def digest_state(self) -> DigestState:
        """The state of the digest of all rows so far."""
        return self._digest.state

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks that were encoded or stored."""
        return self._nbytes

    def bind(self, spec: Spec, session: Mapping[str, object], *, continues: bool = False) -> None:
        """Set the fields of a row; see `SequenceReplayBuffer.bind`."""
        super().bind(spec, session, continues=continues)
        num_envs = cast("int", session["num_envs"])
        self.opening = Opening(self.spec, session, num_envs, __version__)
        self._encoder = ChunkEncoder(self.spec)
        self._row_bytes = sum(
            field.row_bytes / (1 if field.codec == "raw" else _COMPRESSED)
            for field in self.spec.fields
        )
        if self._store is not None:
            self._store.bind(spec, session)

    def add(self, chunks: Sequence[Chunk], *_more: Never, **_wrong: Never) -> None:
        """Store the chunks, or keep them for the next piece."""
        super().add(chunks)
        assert self._encoder is not None  # bind was called
        parts = [part for chunk in chunks for part in chunk.split(max_chunk_rows(self.capacity))]
        if self._store is not None:
            self._nbytes += self._store.add(parts)
        elif self.encodes:
            for part in parts:
                # It refers to the writer's memory, which is used again for rows of later steps.
                encoded = EncodedChunk.of(self._encoder, part)
                self._nbytes += encoded.nbytes
                self._encoded.append(encoded)
        for part in parts:
            self._digest.update(part)
            self._rows += part.rows
        self.chunks += len(parts)

    def take_chunks(self) -> tuple[int, int, int, list[EncodedChunk]]:
        """Numbers of chunks since the last call, their rows and bytes, and those to be shipped."""
        taken = self.chunks, self._rows, self._nbytes - self._taken_bytes, self._encoded
        self.chunks, self._rows, self._taken_bytes, self._encoded = 0, 0, self._nbytes, []
        return taken

    def close(self) -> None:
        """Close the group's store."""
        if self._store is not None:
            self._store.close()

    def _rebind(self, spec: Spec) -> bool:
        return False  # the fields are those of a replay elsewhere, which has rows


class _NoRows(MemoryStorage):
    """The storage of an outbox: it counts rows and episodes, and keeps none."""

    def __init__(
        self,
        spec: Spec,
        *,
        capacity: int | None = None,  # of the replay, as the one below; not needed
        capacity_bytes: int | None = None,
        options: GroupOptions,
        start: GroupStart,
    ) -> None:
        super().__init__(spec)
        goes_on = start.collector is not None and start.collector.get("writer") is not None
        for _ in range(start.session + goes_on):
            self.append_session(_OTHER_SESSION)
        # Chunks may continue the newest episodes of a run that goes on.
        for number, stream in start.state.streams if goes_on else ():
            rows = {"reward": np.broadcast_to(0.0, stream.rows)}
            self._note([Chunk(stream.episode, number, 0, End.PENDING, rows)])
        # Else other ids than those of earlier attempts, whose episodes are cut.
        self.index.next_episode = start.state.next_episode

    def add(self, chunks: Sequence[Chunk], *_more: Never, **_wrong: Never) -> None:
        """Check and count the chunks."""
        self.index.check(chunks)
        self._note(chunks)

    def _note(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.index.append(chunk, 0, 0, 0)
        self.index.drop_segment(0)


class _GroupStore:
    """The folder of one group, which may hold the first chunks of a session already."""

    # Rows that come again are compared with those stored. What follows them is stored.

    def __init__(self, options: GroupOptions, start: GroupStart) -> None:
        self._folder = GroupFolder(
            *(options.destination, start.group, start.attempt),
            supersedes=start.state == DigestState(),  # else these are other rows
        )
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self._replay = SequenceReplayBuffer(
                    self._folder.path, capacity=options.capacity, codecs=options.codecs
                )
                break
            except StoreLocked:  # by an actor that is about to end
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOCK_PAUSE_SECONDS)
        self._session = start.session
        self._stored: dict[tuple[int, int], StoredEpisode] = {}
        self._newest: dict[int, int] = {}
        """For each stream, the number within it of the newest episode of this session."""
        self._ids: dict[int, tuple[int, int]] = {}
        """For each stream the id of its newest episode as it is given, and as it is stored."""
        self._differs = False
        sessions = len(self._replay.sessions)
        if sessions > start.session + (start.attempt > 0):
            self._replay.close()
            raise ValueError(
                f"{self._folder.path}: expected a store of {start.session} sessions, as in the "
                f"other groups, got {sessions}; give an empty folder, or one of the same groups"
            )
        if sessions > start.session:  # its newest episodes go on
            cast("DiskStorage", self._replay.storage).continue_episodes()
            for episode in stored_episodes(self._replay.storage):
                if episode.metadata.get("session") == self._session:
                    number = cast("int", episode.metadata["stream_episode"])
                    self._stored[episode.stream, number] = episode
                    newest = self._newest.get(episode.stream, -1)
                    self._newest[episode.stream] = max(newest, number)

    def bind(self, spec: Spec, facts: Mapping[str, object]) -> None:
        """Begin the session, unless an earlier attempt has."""
        while len(self._replay.sessions) < self._session:
            self._replay.bind(spec, _OTHER_SESSION)
        if len(self._replay.sessions) == self._session:
            self._replay.bind(spec, facts)

    def add(self, chunks: Sequence[Chunk]) -> int:
        """Store chunks that are not stored yet, compare the others; returns the bytes stored."""
        if self._differs:
            raise self._difference()
        rest: list[Chunk] = []
        for chunk in chunks:
            number = cast("int", chunk.metadata["stream_episode"])
            stored = self._stored.get((chunk.stream, number))
            if number < self._newest.get(chunk.stream, -1):
                self._compare(chunk, stored)
                continue
            if stored is not None:
                self._ids[chunk.stream] = chunk.episode, stored.id
                left = self._without_stored(chunk, stored)
                if left is None:
                    continue
                chunk = left
            rest.append(chunk)
        if not rest:
            return 0
        self._stored, self._newest = {}, {}  # all that comes now is new
        before = self._replay.total_bytes
        self._replay.add(self._numbered(rest))
        self._folder.after_add(cast("DiskStorage", self._replay.storage))
        return self._replay.total_bytes - before

    def close(self) -> None:
        """Close the store, and upload the rest of it."""
        self._replay.close()
        self._folder.close()

    def _without_stored(self, chunk: Chunk, stored: StoredEpisode) -> Chunk | None:
        """The part of a chunk that is not stored; None where all of it is."""
        self._compare(chunk, stored)
        settled, is_pending = _settled(stored.first_row + stored.rows, stored.end)
        if _settled(chunk.first_row + chunk.rows, chunk.end) <= (settled, is_pending):
            return None
        known = max(0, settled - chunk.first_row)
        fields = {name: rows[known:] for name, rows in chunk.fields.items()}
        return replace(chunk, first_row=chunk.first_row + known, fields=fields, place=None)

    def _compare(self, chunk: Chunk, stored: StoredEpisode | None) -> None:
        """Compare the rows that are stored, and have an action in both, or are the last ones."""
        if stored is None:  # evicted
            return
        begin = max(chunk.first_row, stored.first_row)
        stop = min(
            _settled(chunk.first_row + chunk.rows, chunk.end)[0],
            _settled(stored.first_row + stored.rows, stored.end)[0],
        )
        if begin >= stop:
            return
        rows = stored.read(begin, stop)
        part = slice(begin - chunk.first_row, stop - chunk.first_row)
        if any(rows[name].tobytes() != chunk.fields[name][part].tobytes() for name in rows):
            self._differs = True
            raise self._difference()

    def _numbered(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks with the ids of their episodes in the store."""
        free, numbered = self._replay.storage.index.next_episode, list[Chunk]()
        for chunk in chunks:
            given, stored = self._ids.get(chunk.stream, (-1, -1))
            if chunk.episode != given:
                stored, free = free, free + 1
                self._ids[chunk.stream] = chunk.episode, stored
            numbered.append(replace(chunk, episode=stored))
        return numbered

    def _difference(self) -> RowsDiffer:
        return RowsDiffer(
            f"{self._replay.path}: rows that were played again differ from those stored: expected "
            f"envs and a policy that depend on the seed alone"
        )


def _settled(stop: int, end: End) -> tuple[int, int]:
    """The row after the last one that is complete, and 1 if one without an action follows."""
    is_pending = int(end & End.PENDING != 0)
    return stop - is_pending, is_pending


def _load_of(policy: object) -> Callable[[object], object] | None:
    """The policy's method ``load``; None where it has none, or one of the class, as models do."""
    found = getattr(policy, "load", None)
    is_own = inspect.isroutine(found) and not inspect.isclass(getattr(found, "__self__", None))
    return cast("Callable[[object], object]", found) if is_own else None
