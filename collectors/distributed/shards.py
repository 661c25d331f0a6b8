"""A replay in the memory, or in the folders, of several actors."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from stepwell.buffers.digest import DigestState
from stepwell.buffers.errors import NotEnoughData, StepwellError
from stepwell.buffers.sampling.requests import (
    Align,
    BatchRequest,
    BatchT,
    Borders,
    Draw,
    Episodes,
    Hindsight,
    Request,
    Sequences,
    Transitions,
)
from stepwell.buffers.spec import Codec, Spec, check_codecs
from stepwell.buffers.storage.episode_filter import Where
from stepwell.buffers.storage.joined import ID_BITS
from stepwell.buffers.storage.memory import MemoryStorage, check_capacity
from stepwell.buffers.whole_numbers import check_whole
from stepwell.collectors.distributed.engine import (
    Actor,
    ActorDied,
    Answer,
    Engine,
    NotEnoughResources,
    Reference,
    RemoteError,
)
from stepwell.collectors.distributed.messages import Payload
from stepwell.collectors.distributed.shard_host import (
    ShardHost,
    ShardOptions,
    ShardState,
    shard_folder,
)

if TYPE_CHECKING:
    from stepwell.buffers.sampling.batch import Batch, Part, TransitionBatch
    from stepwell.buffers.sampling.sampler import Sampler

__all__ = ["ShardLost", "ShardedReplay", "Shards"]

OnDeath: TypeAlias = Literal["replace", "raise"]

_LOG = logging.getLogger("stepwell.collectors")
_MOST_REQUESTS = 8
_MOST_UNSTORED = 8
_WAIT_SECONDS = 1.0
_SHORT_SECONDS = 20.0
_MOST_DEATHS = 3


class ShardLost(StepwellError):
    """A shard died, and is not replaced; the message says which one, why, and what it held."""


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The declaration of a replay in several actors, for what does not fit one machine.

    Give it to a `LocalCollector` or `RayCollector` in place of a replay. Group g writes into shard
    ``g % count``; ``collector.replay`` is a `ShardedReplay`, which draws from all of them.

    Args:
        count: Number of shards, each of which is an actor of its own.
        capacity: Steps to keep at most, over all shards; each evicts its own oldest rows.
        capacity_bytes: Bytes of RAM or disk to use at most, over all shards.
        path: Folder in which each shard has a store ``shard-00000``, ``shard-00001``, ...: one that
            all machines see. None keeps the rows in the RAM of the actors.
        codecs: Codecs of fields, as in `SequenceReplayBuffer`.
        on_death: ``"replace"``: the place of a shard that dies is taken by another one. With a path
            it has all rows that were stored; without one it is empty: the rows of the dead one are
            lost, a warning in the log says how many, and `ShardedReplay.lost_shards` counts it.
            ``"raise"``: a death is an error, `ShardLost`.

    Raises:
        ValueError: A number is not positive, or a codec is unknown.
        TypeError: The path is no path, or the codecs are no mapping.

    Example:
        >>> Shards(count=8, capacity=100_000_000).count
        8
    """

    count: int
    capacity: int | None = None
    capacity_bytes: int | None = None
    path: str | os.PathLike[str] | None = None
    codecs: Mapping[str, Codec] = field(default_factory=dict[str, Codec])
    on_death: OnDeath = "replace"

    def __init__(
        self,
        count: int,
        *,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        path: str | os.PathLike[str] | None = None,
        codecs: Mapping[str, Codec] | None = None,
        on_death: OnDeath = "replace",
    ) -> None:
        check_whole("count", count, 1)
        check_capacity(capacity, capacity_bytes)
        check_codecs({} if codecs is None else codecs)
        if on_death not in ("replace", "raise"):
            raise ValueError(f"on_death: expected 'replace' or 'raise', got {on_death!r}")
        if path is not None and not isinstance(cast("object", path), str | os.PathLike):
            raise TypeError(f"path: expected a path or None, got {type(path).__name__}")
        for name, value in (
            ("count", count),
            ("capacity", capacity),
            ("capacity_bytes", capacity_bytes),
            ("path", path),
            ("codecs", dict(codecs or {})),
            ("on_death", on_death),
        ):
            object.__setattr__(self, name, value)


_NOTHING = ShardState(0, 0, 0, 0, 0, (), None)


class _ShardDied(Exception):
    """A shard died while it was asked, and was replaced: what it was asked for is void."""


class _Unstored(NamedTuple):
    """Rows that were sent to a shard, which has not said yet that they are stored."""

    answer: Answer
    arguments: tuple[object, ...]
    reference: Reference | None


@dataclass(slots=True)
class _Shard:
    """A shard as the driver sees it."""

    number: int
    actor: Actor
    generation: int = 0
    state: ShardState = _NOTHING
    unstored: deque[_Unstored] = field(default_factory=deque[_Unstored])
    requests: set[int] = field(default_factory=set[int])
    """Numbers of the requests that it knows."""
    masses: dict[int, int] = field(default_factory=dict[int, int])
    """Items that the requests can draw from, as long as nothing was sent to it since."""
    deaths: int = 0
    """Deaths since it last stored rows."""


class _Drawing(NamedTuple):
    """A batch that shards are asked for.

    Args:
        request: The request.
        parts: The shards, and their answers.
        places: For each of them the places [B] of its items in the batch.
    """

    request: Request
    parts: list[tuple[_Shard, int, Answer]]
    places: list[np.ndarray]


class ShardedReplay:
    """Draws batches from the shards of a collector, as one `SequenceReplayBuffer` would.

    ``collector.replay`` is one where the collector was given `Shards`. Each batch has items of
    several shards: their numbers are drawn in proportion to what the shards hold at that moment, so
    that every item of all shards is equally likely, as with one store. With ``draw="recent"`` each
    shard draws its own newer items more often. Modes ``"newest"`` and ``"priorities"`` are refused:
    they need one order of all rows, or priorities in one place.

    Its methods may be called by one thread at a time, while the collector runs, too.

    Args:
        engine: Starts, calls and kills the shards' actors; several threads may call it.
        shards: The declaration.
        seed: Seed of the draws; None draws one from the system.
        start_seconds: Seconds that a shard may take to start.
        answer_seconds: Seconds after which a shard that does not answer is killed and replaced.
        clock: Returns the time in seconds.

    Raises:
        ValueError: The folder is that of another number of shards.
        RemoteError: A shard could not open its folder.
        NotEnoughResources: Its actor cannot start.
    """

    def __init__(
        self,
        engine: Engine,
        shards: Shards,
        *,
        seed: int | None = None,
        start_seconds: float = 120.0,
        answer_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._declared = shards
        self._seconds = start_seconds, answer_seconds
        self._clock = clock
        self._rng = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._requests: dict[int, Request] = {}
        self._next_request = 0
        self._sampler: Sampler | None = None
        self._sessions: tuple[Mapping[str, object], ...] = ()
        self._spec: Spec | None = None
        self._is_closed = False
        self.lost_shards = 0
        """Shards that died with the rows that they held in RAM."""
        self._shards = [_Shard(k, self._started(k, 0)) for k in range(shards.count)]
        for shard in self._shards:
            self._look(shard)
        counts = [len(shard.state.sessions) for shard in self._shards]
        if len(set(counts)) > 1:
            raise ValueError(
                f"{shards.path}: expected shards with the same sessions, got {counts} of them: "
                f"this is not one set of shards; choose another folder"
            )
        first = self._shards[0].state
        self._sessions = first.sessions
        if first.spec is not None:
            self._use(first.spec)

    # Facts

    @property
    def path(self) -> Path | None:
        """Folder of the shards' stores; None in RAM."""
        return None if self._declared.path is None else Path(self._declared.path)

    @property
    def capacity(self) -> int | None:
        """Steps that a shard keeps at most; None keeps everything."""
        most = self._declared.capacity
        return None if most is None else -(-most // self._declared.count)

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs of fields by name: of all stored fields, else those that were given."""
        if self._spec is None:
            return dict(self._declared.codecs)
        return {one.name: one.codec for one in self._spec.fields}

    @property
    def is_bound(self) -> bool:
        """True once the fields of a row are known."""
        return self._spec is not None

    @property
    def spec(self) -> Spec:
        """The fields of every row.

        Raises:
            NotEnoughData: Nothing was collected yet.
        """
        if self._spec is None:
            raise NotEnoughData(
                f"the {len(self._shards)} shards are empty: expected at least one collected step, "
                f"got 0; collect first"
            )
        return self._spec

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that wrote here, the oldest first."""
        return self._sessions

    @property
    def steps(self) -> int:
        """Env steps ever stored in the shards that there are, including evicted ones."""
        return sum(shard.state.total_steps for shard in self._shards)

    @property
    def episodes(self) -> int:
        """Stored episodes, including unfinished and cut ones."""
        return sum(shard.state.episodes for shard in self._shards)

    @property
    def nbytes(self) -> int:
        """Bytes of RAM or disk that the stored chunks take."""
        return sum(shard.state.nbytes for shard in self._shards)

    @property
    def total_bytes(self) -> int:
        """The same: what was evicted is not counted."""
        return self.nbytes

    def __len__(self) -> int:
        """Env steps stored now."""
        return sum(shard.state.steps for shard in self._shards)

    def __repr__(self) -> str:
        path = "" if self._declared.path is None else f", path={str(self._declared.path)!r}"
        return (
            f"ShardedReplay(shards={len(self._shards)}{path}, steps={len(self)}, "
            f"episodes={self.episodes})"
        )

    def summary(self) -> list[dict[str, Any]]:
        """Numbers of each shard: its actor and process, steps, episodes, bytes, and folder."""
        return [
            {
                "shard": shard.number,
                "actor": shard.actor.name,
                "pid": shard.state.pid,
                "steps": shard.state.steps,
                "total_steps": shard.state.total_steps,
                "episodes": shard.state.episodes,
                "nbytes": shard.state.nbytes,
                "path": self._folder(shard.number),
            }
            for shard in self._shards
        ]

    def digest(self) -> str:
        """Fingerprint of all rows stored now: that of one replay with the same rows.

        Each shard decodes all its rows.
        """
        self._check_open()
        while True:
            with contextlib.suppress(_ShardDied):
                states = self._all("digest")
                streams = sorted(stream for state in states for stream in state.streams)
                return DigestState(tuple(streams)).hexdigest()

    # Writing

    def bind(self, spec: Spec, session: Mapping[str, object]) -> None:
        """Set the fields of a row, and record that a run begins to write.

        Args:
            spec: The fields of every row.
            session: JSON-able facts about the run.

        Raises:
            RemoteError: The shards hold other rows.
        """
        with self._lock:
            sessions = (*self._sessions, session)
            while True:
                with contextlib.suppress(_ShardDied):
                    states: list[ShardState] = self._all("bind", spec, sessions)
                    break
            self._sessions = states[0].sessions
            assert states[0].spec is not None
            self._use(states[0].spec)
            for shard, state in zip(self._shards, states, strict=True):
                shard.state = state
                shard.masses.clear()

    def add(
        self, group: int, num_envs: int, rows: Reference | Payload, session: int | None = None
    ) -> None:
        """Send the rows of a piece to the group's shard, and return at once.

        A shard with many unstored pieces is waited for. The rows of all pieces are stored after
        `settle`; a reference is forgotten then.

        Args:
            group: Number of the group.
            num_envs: Number of envs N of a group.
            rows: A payload with chunks, or a reference to one, which goes from its actor to the
                shard where the engine can do that.
            session: Number of their session here; None where it is that of the chunks.

        Raises:
            ShardLost: The shard died too often, or is not to be replaced.
            RemoteError: It could not store rows.
        """
        shard = self._shards[group % len(self._shards)]
        reference = None if isinstance(rows, Payload) else rows
        with self._lock:
            while len(shard.unstored) >= _MOST_UNSTORED:
                self._settle_oldest(shard)
            arguments = (group, num_envs, session, rows)
            answer = self._engine.call(shard.actor, "add", *arguments)
            shard.unstored.append(_Unstored(answer, arguments, reference))
            shard.masses.clear()
            waiting = {one.unstored[0].answer: one for one in self._shards if one.unstored}
            # An engine may show other answers, too.
            for ready in waiting.keys() & set(self._engine.wait(list(waiting), 0.0)):
                self._settle_oldest(waiting[ready])

    def settle(self) -> None:
        """Wait until all rows that were sent are stored.

        Raises:
            ShardLost: A shard died too often, or is not to be replaced.
            RemoteError: A shard could not store rows.
        """
        for shard in self._shards:
            with self._lock:
                while shard.unstored:
                    self._settle_oldest(shard)

    # Sampling

    def sample(
        self,
        request: BatchRequest[BatchT],
        *,
        out: BatchT | None = None,
        rng: np.random.Generator | None = None,
    ) -> BatchT:
        """Draw a batch for a request; see `SequenceReplayBuffer.sample`.

        Args:
            request: `Sequences`, `Transitions` or `Episodes`.
            out: A batch of an equal request, whose arrays are overwritten.
            rng: Source of randomness; the replay's own generator when None.

        Raises:
            NotEnoughData: No stored item fits the request.
            ValueError: The request is invalid, in itself or for this data, or needs one store.
            ShardLost: A shard died, and is not replaced.

        The ids of shard k begin at ``k << 48``, as those of several joined stores do.
        """
        generator = self._rng if rng is None else rng
        return self._finished(self._asked(cast("Request", request), generator), out, generator)

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        *,
        borders: Borders = "inside",
        draw: Draw = "steps",
        align: Align = "arrival",
        burn_in: int = 0,
        stack: bool = False,
        fields: Sequence[str] | None = None,
        state: Sequence[str] = (),
        time_major: bool = False,
        where: Where | None = None,
        out: Batch | None = None,
        rng: np.random.Generator | None = None,
    ) -> Batch:
        """Draw sequences of rows; see `SequenceReplayBuffer.sample_sequences`."""
        request = Sequences(
            batch_size,
            length,
            borders,
            draw,
            align,
            burn_in,
            stack,
            fields,
            state,
            time_major,
            where=where,
        )
        return self.sample(request, out=out, rng=rng)

    def sample_transitions(
        self,
        batch_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        draw: Draw = "steps",
        stack: bool = True,
        fields: Sequence[str] | None = None,
        where: Where | None = None,
        relabel: Hindsight | None = None,
        out: TransitionBatch | None = None,
        rng: np.random.Generator | None = None,
    ) -> TransitionBatch:
        """Draw transitions of up to n steps; see `SequenceReplayBuffer.sample_transitions`."""
        request = Transitions(
            batch_size, n_step, gamma, draw, stack, fields, where=where, relabel=relabel
        )
        return self.sample(request, out=out, rng=rng)

    def sample_episodes(
        self,
        batch_size: int,
        *,
        align: Align = "arrival",
        stack: bool = False,
        fields: Sequence[str] | None = None,
        time_major: bool = False,
        where: Where | None = None,
        rng: np.random.Generator | None = None,
    ) -> Batch:
        """Draw whole episodes; see `SequenceReplayBuffer.sample_episodes`."""
        return self.sample(Episodes(batch_size, align, stack, fields, time_major, where), rng=rng)

    def prefetch(
        self,
        request: BatchRequest[BatchT],
        *,
        depth: int = 2,
        rng: np.random.Generator | None = None,
    ) -> Iterator[BatchT]:
        """Batches without end, which the shards draw ahead while the caller uses one.

        A batch that is drawn ahead does not contain rows that come later.

        Args:
            request: As in `sample`.
            depth: Batches that are ready, or being drawn, while the caller has one, >= 1.
            rng: Source of randomness; the replay's own generator when None.

        Raises:
            ValueError: ``depth`` is no whole number >= 1, or the request is invalid.
        """
        check_whole("depth", depth, 1)
        self._check(cast("Request", request))
        return self._drawn_ahead(request, depth, self._rng if rng is None else rng)

    def count(self, request: BatchRequest[BatchT]) -> int:
        """The number of equally likely choices of a request: of items, or of episodes.

        Raises:
            ValueError: The request is invalid, in itself or for this data, or needs one store.
        """
        self._check(cast("Request", request))
        while True:
            with contextlib.suppress(_ShardDied), self._lock:
                return sum(self._masses(self._number_of(cast("Request", request))))

    def close(self) -> None:
        """Store what was sent, and release files and locks; the engine ends the actors."""
        self._is_closed = True
        self.settle()
        with contextlib.suppress(_ShardDied):
            self._all("close")
        if self._sampler is not None:
            self._sampler.close()

    # Draws

    def _drawn_ahead(
        self, request: BatchRequest[BatchT], depth: int, rng: np.random.Generator
    ) -> Generator[BatchT]:
        drawings: deque[_Drawing] = deque()
        while True:
            while len(drawings) < depth + 1:
                drawings.append(self._asked(cast("Request", request), rng))
            yield self._finished(drawings.popleft(), None, rng)

    def _asked(self, request: Request, rng: np.random.Generator) -> _Drawing:
        """Ask the shards for the parts of a batch."""
        self._check(request)
        while True:
            # Nothing is sent to a shard between the count of its items and the draw from them.
            with contextlib.suppress(_ShardDied), self._lock:
                number = self._number_of(request)
                sizes = _sizes(request, self._masses(number), rng)
                order = rng.permutation(request.batch_size)
                borders = np.cumsum([0, *sizes])
                parts: list[tuple[_Shard, int, Answer]] = []
                places: list[np.ndarray] = []
                for shard, size, first in zip(self._shards, sizes, borders, strict=False):
                    if size:
                        seed = int(rng.integers(1 << 62))
                        answer = self._engine.call(shard.actor, "sample", number, size, seed)
                        parts.append((shard, shard.generation, answer))
                        places.append(order[first : first + size])
                return _Drawing(request, parts, places)

    def _finished(self, drawing: _Drawing, out: BatchT | None, rng: np.random.Generator) -> BatchT:
        """Make a batch of what the shards have drawn; ask again where one has died."""
        assert self._sampler is not None
        while True:
            with contextlib.suppress(_ShardDied):
                found: list[Part] = []
                for shard, generation, answer in drawing.parts:
                    part: Part = self._result(shard, generation, answer)
                    ids = part.columns["ids"] + (shard.number << ID_BITS)
                    found.append(part._replace(columns={**part.columns, "ids": ids}))
                request = cast("BatchRequest[BatchT]", drawing.request)
                return self._sampler.join(request, found, drawing.places, out)
            drawing = self._asked(drawing.request, rng)

    def _masses(self, number: int) -> list[int]:
        """Items that a request can draw from in each shard, after all that was sent to it."""
        asked: list[tuple[_Shard, Answer]] = []
        for shard in self._shards:
            if number not in shard.masses:
                if number not in shard.requests:
                    reference = self._engine.share(self._requests[number])
                    told = self._engine.call(shard.actor, "remember", number, reference)
                    self._result(shard, shard.generation, told)
                    self._engine.forget(reference)
                    shard.requests.add(number)
                asked.append((shard, self._engine.call(shard.actor, "mass", number)))
        for shard, answer in asked:
            shard.masses[number] = self._result(shard, shard.generation, answer)
        return [shard.masses[number] for shard in self._shards]

    def _number_of(self, request: Request) -> int:
        """The number under which the shards know a request."""
        for number, known in self._requests.items():
            if type(known) is type(request) and known == request:
                return number
        if len(self._requests) >= _MOST_REQUESTS:
            oldest = min(self._requests)
            del self._requests[oldest]
            for shard in self._shards:
                shard.masses.pop(oldest, None)
        self._next_request += 1
        self._requests[self._next_request] = request
        return self._next_request

    def _check(self, request: Request) -> None:
        """Refuse an invalid request before any shard is asked."""
        self._check_open()
        _ = self.spec
        assert self._sampler is not None
        self._sampler.mass(cast("BatchRequest[Any]", request))

    def _check_open(self) -> None:
        if self._is_closed:
            place = "with their rows" if self.path is None else f"their rows are in {self.path}"
            raise ValueError(
                f"the {len(self._shards)} shards are closed, {place}: expected an open collector"
            )

    def _use(self, spec: Spec) -> None:
        """Check requests and join batches of these fields."""
        from stepwell.buffers.sampling.sampler import Sampler

        if self._spec != spec or self._sampler is None:
            self._spec, self._sampler = spec, Sampler(MemoryStorage(spec), 1, 0.0)

    # Actors

    def _folder(self, number: int) -> str | None:
        path = self._declared.path
        return None if path is None else str(shard_folder(os.fspath(path), number))

    def _started(self, number: int, generation: int) -> Actor:
        """Start the actor of a shard."""
        declared, path = self._declared, self._declared.path
        options = ShardOptions(
            number,
            declared.count,
            None if path is None else os.path.abspath(path),
            declared.capacity,
            declared.capacity_bytes,
            declared.codecs,
        )
        name = f"shard-{number}" + (f".{generation}" if generation else "")
        return self._engine.start(name, partial(ShardHost, options))

    def _look(self, shard: _Shard) -> None:
        """Wait until a shard has started, and see what it holds."""
        answer = self._engine.call(shard.actor, "state")
        shard.state = self._result(shard, shard.generation, answer, self._seconds[0])

    def _all(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of all shards, and wait for the results."""
        with self._lock:
            answers = [
                (shard, self._engine.call(shard.actor, method, *arguments))
                for shard in self._shards
            ]
            return [self._result(shard, shard.generation, answer) for shard, answer in answers]

    def _result(
        self, shard: _Shard, generation: int, answer: Answer, seconds: float | None = None
    ) -> Any:
        """Wait for an answer.

        Raises:
            _ShardDied: The shard is dead, or took too long; another one has its place.
            NotEnoughResources: It cannot start.
        """
        began = self._clock()
        short_since: float | None = None
        while answer not in self._engine.wait([answer], _WAIT_SECONDS):
            now = self._clock()
            shortage = self._engine.shortage(shard.actor)
            if shortage is None:
                short_since = None
            elif short_since is None:
                short_since = now
            elif now - short_since >= _SHORT_SECONDS:
                self._engine.kill(shard.actor)
                raise NotEnoughResources(shortage)
            if now - began < (self._seconds[1] if seconds is None else seconds):
                continue
            with self._lock:
                if shard.generation == generation:
                    self._replace(shard, "it did not answer")
            raise _ShardDied
        try:
            return self._engine.result(answer)
        except ActorDied as error:
            with self._lock:
                if shard.generation == generation:
                    self._replace(shard, str(error))
            raise _ShardDied from error

    def _replace(self, shard: _Shard, cause: str) -> None:
        """Start another actor in place of a dead one, and send it what was not stored."""
        self._engine.kill(shard.actor)
        path, held = self._folder(shard.number), shard.state.steps
        lost = "" if path else f", with the {held:,} env steps that it held in RAM"
        shard.deaths += 1
        if self._declared.on_death == "raise" or shard.deaths > _MOST_DEATHS:
            kept = f"; its rows are in {path}" if path else lost
            raise ShardLost(f"shard {shard.number} died: {cause}{kept}")
        _LOG.warning("shard %d died: %s; another one takes its place%s", shard.number, cause, lost)
        self.lost_shards += path is None
        shard.generation += 1
        shard.actor = self._started(shard.number, shard.generation)
        shard.requests.clear()
        shard.masses.clear()
        with contextlib.suppress(_ShardDied):
            # If it dies at once, the place is taken again within these calls.
            self._look(shard)
            if self._spec is not None:
                answer = self._engine.call(shard.actor, "bind", self._spec, self._sessions)
                shard.state = self._result(shard, shard.generation, answer)
            again, shard.unstored = shard.unstored, deque()
            for one in again:
                answer = self._engine.call(shard.actor, "add", *one.arguments)
                shard.unstored.append(one._replace(answer=answer))

    def _settle_oldest(self, shard: _Shard) -> None:
        """Wait until the oldest rows that were sent to a shard are stored."""
        oldest = shard.unstored[0]
        try:
            found = self._result(shard, shard.generation, oldest.answer)
        except _ShardDied:
            return  # it was sent to another one
        except RemoteError:
            shard.unstored.popleft()
            raise
        steps, total_steps, episodes, nbytes = found
        shard.state = shard.state._replace(
            steps=steps, total_steps=total_steps, episodes=episodes, nbytes=nbytes
        )
        shard.deaths = 0
        shard.unstored.popleft()
        if oldest.reference is not None:
            self._engine.forget(oldest.reference)


def _sizes(request: Request, masses: Sequence[int], rng: np.random.Generator) -> list[int]:
    """The number of items from each shard, in proportion to what they hold.

    Raises:
        NotEnoughData: There are no items, or too few different ones.
    """
    count, total = request.batch_size, sum(masses)
    is_distinct = not isinstance(request, Episodes) and request.draw == "distinct"
    least = count if is_distinct else 1
    if total < least:
        what = "whole episodes" if isinstance(request, Episodes) else "such items"
        raise NotEnoughData(
            f"{request}: expected at least {least} {what} in {len(masses)} shards, got {total}; "
            f"collect more, or request fewer or shorter ones"
        )
    if not is_distinct:
        shares = np.array(masses, np.float64) / total
        return [int(size) for size in rng.multinomial(count, shares / shares.sum())]
    numbers = rng.choice(total, count, replace=False, shuffle=False)
    shard = np.searchsorted(np.cumsum(masses), numbers, side="right")
    return [int(size) for size in np.bincount(shard, minlength=len(masses))]
