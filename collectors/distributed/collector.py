"""Collects from groups of envs in other processes, and replaces those that die."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never, NoReturn, Self, TypeAlias, cast

import gymnasium

from ...buffers import SequenceReplayBuffer
from ...buffers.base import forks
from ...buffers.base.errors import SpecMismatch, StepwellError, not_copied
from ...buffers.base.number_checks import check_choice, check_positive, check_whole
from ...buffers.base.package import __version__
from ...buffers.base.progress import Progress, Status, check_progress, progress_function
from ...buffers.base.row_guard import InterruptGuard
from ...buffers.base.untrusted_json import items, mapping, member, whole
from ...buffers.replay.writer import check_flush_seconds
from ...buffers.rows.digest import DigestState
from ...buffers.sampling.requests import refuse_keywords
from ...buffers.storage.disk.storage import DiskStorage
from ..loop.collector import Seeds, Shown, check_goal, check_shard, stored_seed
from ..loop.curves import Curves
from ..loop.report import EpisodeReport
from ..loop.step_loop import check_function
from ..loop.vector_envs import Vector
from ..policies.as_policy import GivenPolicy
from .actor_pool import ActorPool, Answered, Died, Failed, Placement, Short
from .delivery import Delivery, Free, Mirror, Taken, Waiting
from .engine import ActorDied, Engine, Reference, RemoteError
from .folders import Folders, sessions_in
from .group_life import NO_CALL, GroupLife, another_seed, is_empty, shares_of
from .host import GroupHost, RowsDiffer
from .messages import Call, GroupOptions, Opening, Payload, Piece
from .report import (
    CallCounts,
    DistributedReport,
    GroupReport,
    distributed_status,
    gauges,
    prometheus_text,
)

if TYPE_CHECKING:
    from ...buffers import Rollout

GivenEnvs: TypeAlias = "Vector | gymnasium.Env[Any, Any] | Sequence[Vector]"
GivenReplay: TypeAlias = SequenceReplayBuffer | Folders | None
OnDeath: TypeAlias = Literal["repeat", "reseed"]

_LOG = logging.getLogger("stepwell.collectors")
_WAIT_SECONDS = 0.1
_WINDOW_BYTES = 256_000_000  # of pieces that wait for their turn
_HISTORY_BYTES = 256_000_000  # of weights that a replacement needs to play again
_GAUGE_SECONDS = 5.0
_CLOSE_SECONDS = 10.0
_FINISH_SECONDS = 5.0  # for rows before an error
_MOST_SESSIONS = 1 << 20
_UPLOAD_SECONDS = 600.0  # a group that writes to a URL uploads the rest when it is closed


class GroupLost(StepwellError):
    """A group's actors died more often than ``max_restarts``; the message has the last cause."""


class _Weights(NamedTuple):
    """Published weights."""

    reference: Reference
    nbytes: int


class DistributedCollector:
    """Steps groups of envs in actors, and stores what they record; the actors are an engine's.

    `LocalCollector` and `RayCollector` are subclasses: their constructors say how to start the
    engine, which the collector closes, and pass everything else on.

    Args:
        start_engine: Returns what starts, calls and kills the actors: called once no argument is
            refused any more.
        options: Those of the groups, as far as they do not follow from the replay.
        actors: Number of actors, at most as many as groups. They only place the groups.
        clock: Returns the time in seconds.

    The other arguments, and the errors, are those of these subclasses.
    """

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a collector of several processes",
            "make one, where the learner is: its groups of envs have processes of their own",
        )

    def __init__(
        self,
        start_engine: Callable[[], Engine],
        make_envs: Callable[[], GivenEnvs],
        make_policy: Callable[[], GivenPolicy],
        replay: GivenReplay,
        options: GroupOptions,
        *,
        actors: int,
        seed: int | None = None,
        in_flight: int = 2,
        max_restarts: int = 3,
        on_death: OnDeath = "repeat",
        start_seconds: float = 120.0,
        answer_seconds: float = 300.0,
        on_episode: Callable[[EpisodeReport], None] | None = None,
        log: object = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_closed = False
        self._is_running = False
        self._replay = replay
        for name, make in (("make_envs", make_envs), ("make_policy", make_policy)):
            _check_takes_nothing(name, make)
        groups, shard = options.groups, options.shard
        for name, number, least in (
            ("groups", groups, 1),
            ("actors", actors, 1),
            ("in_flight", in_flight, 1),
            ("max_restarts", max_restarts, 0),
            ("tolerate", options.tolerate, 0),
        ):
            check_whole(name, number, least)
        if actors > groups:
            raise ValueError(
                f"actors: expected at most {groups}, the number of groups, got {actors}; each "
                f"group is in one actor"
            )
        check_shard("shard", shard)
        check_shard("groups (with those of all shards)", (1, groups * (shard or (1, 1))[1]))
        check_choice("on_death", on_death, ("repeat", "reseed"))
        check_flush_seconds(options.flush_seconds)
        check_function("on_episode", on_episode)
        check_positive("start_seconds", start_seconds)
        check_positive("answer_seconds", answer_seconds)
        destination: str | Folders = "none"
        session = 0
        mirrored = replay if isinstance(replay, SequenceReplayBuffer) else None
        if mirrored is not None:
            destination = "ship"
            storage = mirrored.storage if mirrored.is_bound else None
            if isinstance(storage, DiskStorage) and storage.is_read_only:
                raise ValueError(
                    f"replay: {mirrored.path} was opened with read_only=True, expected a store "
                    f"to write into: open it without"
                )
            session = len(mirrored.sessions)
        elif isinstance(replay, Folders):
            destination, session = replay, sessions_in(replay)
        elif replay is not None:
            raise TypeError(
                f"replay: expected a SequenceReplayBuffer, Folders or None, got "
                f"{type(replay).__name__}"
            )
        self._seeds = Seeds(seed, session, shard)
        self._mirror: Mirror | None = None
        if mirrored is not None:
            self._mirror = Mirror(mirrored, groups, self._seeds)
        self._minibatch_rng = self._seeds.minibatch_rng()
        self._on_death = on_death
        self._on_episode = on_episode
        self._in_flight = in_flight
        self._max_restarts = max_restarts
        self._clock = clock
        self._options = options._replace(
            session=session,
            spec=None if self._mirror is None else self._mirror.spec,
            codecs={} if mirrored is None else mirrored.codecs,
            capacity=None if mirrored is None else mirrored.capacity,
            destination=destination,
        )
        self._placement = Placement(groups, actors)
        self._curves = Curves(log, mirrored)
        self._engine = start_engine()
        self._make_host = partial(GroupHost, make_envs, make_policy)
        self._pool = ActorPool(
            self._engine,
            partial(self._make_host, self._options),
            start_seconds=start_seconds,
            answer_seconds=answer_seconds,
            clock=clock,
        )
        # With the rows of each piece, and the session that its group was told.
        self._delivery = Delivery[tuple[Payload, int]](groups)
        self._groups = [GroupLife(self._seeds.seed, session) for _ in range(groups)]
        self._calls = 0
        self._version = 0
        self._weights: dict[int, _Weights] = {}
        self._opening: Opening | None = None
        self._num_envs: int | None = None
        self._largest = 0
        self._rollouts: dict[int, Rollout] = {}
        self._total_steps = 0
        self._steps_before = 0
        self._can_store = True
        """False once rows could not be stored: those that follow do not continue them."""
        self._counts = CallCounts([0] * groups)
        self._began = clock()
        self._next_gauges = self._began
        self._report: DistributedReport | None = None

    @property
    def report(self) -> DistributedReport:
        """The report of the last `collect`, `rollout` or `running`.

        Raises:
            ValueError: There was none yet.
        """
        if self._report is None:
            raise ValueError("no report: expected a collect or rollout before it, got none yet")
        return self._report

    @property
    def replay(self) -> GivenReplay:
        """The destination of the rows, as given."""
        return self._replay

    def collect(
        self,
        *_more: Never,
        steps: int | None = None,
        episodes: int | None = None,
        seeds: Sequence[int] | None = None,
        weights: object = None,
        progress: Progress[DistributedReport] = None,
        **_wrong: Never,
    ) -> DistributedReport:
        """Collect steps, or whole episodes; when it returns they are stored.

        Give one of ``steps``, ``episodes`` and ``seeds``. Each group gets a share that depends on
        nothing but its number, and the rows are stored in an order that depends on nothing but the
        seed: equal calls store equal data, whatever the number of actors, and whichever of them
        die.

        Args:
            steps: Env steps to take over all envs, at least: the N envs of a group step at once.
            episodes: Episodes to record, see `Collector.collect`.
            seeds: Seeds of resets: one episode is recorded from each. With a shard, seeds of it.
            weights: For the policies' ``load``; None keeps those that they have.
            progress: As in `Collector.collect`.

        Returns:
            Counts, returns and times of this call.

        Raises:
            ValueError: Not exactly one of the three is given, or it is not positive; or two groups
                differ: their rows, number of envs, recipe or version of stepwell.
            TypeError: ``progress`` is neither True nor a function.
            RemoteError: The user's code raised in an actor.
            GroupLost: A group's actors died more often than ``max_restarts``.
            NotEnoughResources: Actors cannot start.
            SpecMismatch: The replay holds other rows.

        After an error or Ctrl-C what came in is stored, a note on the error says what was kept, and
        the collector is closed.
        """
        if _more or _wrong:
            known = ("steps", "episodes", "seeds", "weights", "progress")
            refuse_keywords("collect", _wrong, known, _more)
        self._check_ready(weights)
        check_goal(steps, episodes, seeds, ())
        if seeds is not None:
            self._seeds.own(seeds)
        status = partial(distributed_status, steps=steps, episodes=episodes or len(seeds or ()))
        with progress_function(progress, status) as show:
            if steps is not None:
                call = Call(self._calls, "steps", steps)
            elif episodes is not None:
                call = Call(self._calls, "episodes", episodes)
            else:
                call = Call(self._calls, "seeds", seeds=tuple(map(int, seeds or ())))
            self._call(call, weights, show)
            if show is not None:
                show(self.report)
        return self.report

    def rollout(self, steps: int, *, weights: object = None, out: Rollout | None = None) -> Rollout:
        """Collect the next T rows of each env for an on-policy learner.

        With a replay the rows are stored there too.

        Args:
            steps: Number of rows T of each env.
            weights: For the policies' ``load``; None keeps those that they have.
            out: An earlier rollout of the same shape, whose arrays are reused.

        Returns:
            Arrays ``[T, groups * N, ...]``: the envs of group 0 first.

        Raises:
            ValueError: ``steps`` is no whole number >= 1, or ``out`` is of another shape.

        Errors of `collect` are raised here, too.
        """
        from ...buffers.replay.rollout import join_rollouts  # collect() does not need it

        self._check_ready(weights)
        check_whole("steps", steps, 1)
        self._call(Call(self._calls, "rollout", steps), weights)
        rollouts = [self._rollouts.pop(group) for group in range(len(self._groups))]
        return join_rollouts(rollouts, self._minibatch_rng, out)

    def running(
        self, *, weights: object = None, progress: Progress[DistributedReport] = None
    ) -> Run:
        """Collect in the background while a ``with`` block runs; rows are stored as they come.

        Args:
            weights: For the policies' ``load``; None keeps those that they have.
            progress: As in `Collector.collect`; a function is called in another thread.

        Returns:
            A context manager with `Run.publish`, which sends newer weights.

        Raises:
            ValueError: The collector is closed, or runs already, or the block is begun again.

        The data depends on time: see `Run`. A group whose actor dies goes on with a new seed.
        """
        self._check_ready(weights)
        return Run(self, weights, progress)

    def state_dict(self) -> dict[str, Any]:
        """All that a new collector needs to go on as if this one had never stopped.

        That is, for each group, what `Collector.state_dict` has, as its actor sends it; and the
        counts here. Neither rows nor weights are in it: save it with both, by `save_checkpoint` of
        the replay. Take it between two calls of `collect` and `rollout`, or two blocks of
        `running`.

        Returns:
            Plain values and numpy arrays. The number of actors does not matter, nor whether they
            are processes of this machine or of a cluster.

        Raises:
            RemoteError: The policy draws from a generator, and has no ``state_dict`` and
                ``load_state_dict``. The collector is closed then, as after an error of `collect`.
            ValueError: The collector is closed or runs, others have written to the replay
                meanwhile, or each group writes to a folder of its own.

        Example:
            >>> import stepwell as sw
            >>> def collector():
            ...     envs = lambda: sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
            ...     return sw.LocalCollector(envs, sw.RandomPolicy, groups=2, processes=1, seed=0)
            >>> with collector() as first:
            ...     report = first.collect(steps=100)
            ...     state = first.state_dict()
            ...     rewards = first.rollout(8).reward
            >>> with collector() as second:
            ...     second.load_state_dict(state)
            ...     print((second.rollout(8).reward == rewards).all())
            True
        """
        self._check_open()
        self._refuse_folders("state_dict")
        self._at_rest(with_states=True)
        lives = [
            {
                "seed": str(group.seed),
                "session": group.session,
                "attempt": delivered.attempt,
                "digest": delivered.state.as_json(),
                "collector": group.state,
            }
            for group, delivered in zip(self._groups, self._delivery.groups, strict=True)
        ]
        return {
            "version": 1,
            "groups": lives,
            "num_envs": self._num_envs,
            "seeds": self._seeds.state_dict(),
            "minibatches": self._minibatch_rng.bit_generator.state,
            "weights": self._version,
            "total_steps": self._total_steps,
            "mirror": None if self._mirror is None else self._mirror.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, weights: object = None) -> None:
        """Go on where the collector of a `state_dict` was: the same rows follow, bit for bit.

        Make this one as that one was made, with as many groups; see `Collector.load_state_dict`.
        The groups are begun, and their envs brought back, before this returns.

        Args:
            state: The state. It may come from a file: all of it is checked.
            weights: Those that the policies had last. None: the next call must be given some.

        Raises:
            ValueError: It is no such state, or that of other groups or envs; this collector has
                collected already; or the replay holds other episodes than then. Where a group
                refuses its part, this collector is closed.

        Errors of starting actors are raised as by `collect`.
        """
        self._check_open()
        self._refuse_folders("load_state_dict")
        if self._calls or any(group.has_begun for group in self._groups):
            raise ValueError(
                "load_state_dict: expected a collector that has not collected yet, got one that "
                "has; make a new one"
            )
        shared = None if weights is None else self._shared(weights)
        try:
            self._take_state(state, shared)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"state: expected that of a collector as this one, {error}; make a new collector, "
                f"with groups, envs, policies and replay as they were, or begin without the state"
            ) from error
        try:
            self._at_rest(with_states=False)
        except RemoteError as error:
            if error.kind != ValueError.__name__:
                raise
            raise ValueError(str(error).removeprefix(f"{error.kind}: ")) from error

    def metrics(self) -> dict[str, Any]:
        """Numbers about the present or last call, as plain data; ``"groups"`` has those of each."""
        return self._reported().metrics(
            lag=self._lag,
            waiting_bytes=self._delivery.waiting_bytes,
            running_actors=self._pool.actors,
        )

    def prometheus_text(self) -> str:
        """The `metrics` in Prometheus' text format, for an endpoint of your own."""
        return prometheus_text(self.metrics())

    def close(self) -> None:
        """Close the envs and end the actors; closing twice has no effect.

        Raises:
            RemoteError: A group could not close its store, or its envs.
            ValueError: It runs: the block with `running` ends first.
        """
        if self._is_closed:
            return
        self._check_open()
        errors: list[BaseException] = []
        try:
            errors = self._close_hosts()
        finally:
            self._end()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self._end()
        except Exception as second:
            error.add_note(f"closing failed too: {second}")

    def __repr__(self) -> str:
        """The groups, the actors, and the destination of the rows."""
        where = "no replay" if self._replay is None else self._where
        return (
            f"{type(self).__name__}(groups={len(self._groups)}, "
            f"actors={len(self._placement.places)}, writes to {where}, "
            f"{self._total_steps:,} steps)"
        )

    @property
    def _where(self) -> str:
        """The folder or URL that the rows go to; "RAM", or "" without a replay."""
        path = None if self._replay is None else self._replay.path
        return str(path) if path is not None else "" if self._replay is None else "RAM"

    @property
    def _mirrored_steps(self) -> int:
        """Env steps that a replay here has ever got."""
        return self._replay.steps if isinstance(self._replay, SequenceReplayBuffer) else 0

    @property
    def _sent(self) -> int:
        """Version of the newest weights that were sent; 0 before the first."""
        return max(self._weights, default=0)

    @property
    def _lag(self) -> int:
        """Versions between the newest weights and the oldest that a group acts with."""
        return self._version - min(counts.version for counts in self._counts.groups)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the collector is closed: expected an open one; make a new one")
        if self._is_running:
            raise ValueError("the collector runs: expected the end of the block with running()")

    def _check_ready(self, weights: object) -> None:
        """Refuse a call with policies that have not got back the weights of a state."""
        self._check_open()
        if weights is None and self._version and not self._weights:
            raise ValueError(
                f"weights: expected those of version {self._version}, which a state does not hold, "
                f"got None; give them to load_state_dict, or newer ones to this call"
            )

    def _refuse_folders(self, name: str) -> None:
        if isinstance(self._replay, Folders):
            raise ValueError(
                f"{name}: expected a replay beside the learner, or none, got {self._replay!r}, "
                f"whose stores do not go back to a checkpoint; give a SequenceReplayBuffer"
            )

    def _take_state(self, state: object, weights: _Weights | None) -> None:
        """Take a state over, but for the groups' own; where it is refused, nothing has changed."""
        told = mapping(dict(state) if isinstance(state, Mapping) else state, "state")
        whole(member(told, "version"), "version", 1, 1)
        lives = items(member(told, "groups"), "groups", len(self._groups))
        session, shard = self._options.session, self._options.shard
        seeds, rng = Seeds(0, session, shard), self._seeds.minibatch_rng()
        seeds.load_state_dict(member(told, "seeds"))
        if seeds.shard != self._seeds.shard:
            raise ValueError(f"shard: expected {seeds.shard}, got {self._seeds.shard}")
        forks.load_generator(rng, member(told, "minibatches"))
        num_envs = whole(member(told, "num_envs"), "num_envs", 1)
        version = whole(member(told, "weights"), "weights")
        total_steps = whole(member(told, "total_steps"), "total_steps")
        if weights is not None and not version:
            raise ValueError("weights: expected None, as the policies had none, got some")
        found: list[tuple[GroupLife, int]] = []
        for each in lives:
            life = mapping(each, "group")
            group = GroupLife(
                stored_seed(member(life, "seed")),
                whole(member(life, "session"), "session", 0, _MOST_SESSIONS),
                DigestState.from_json(member(life, "digest")),
                mapping(member(life, "collector"), "collector"),
            )
            found.append((group, whole(member(life, "attempt"), "attempt")))
        mirror = member(told, "mirror")
        if (mirror is None) != (self._mirror is None):
            there = "none" if mirror is None else "that with the rows until then"
            raise ValueError(f"replay: expected {there}, got {self._replay!r}")
        if self._mirror is not None:
            session = self._mirror.load_state_dict(mirror, seeds)
            self._options = self._options._replace(session=session, spec=self._mirror.spec)
            self._pool.make = partial(self._make_host, self._options)
        self._seeds, self._minibatch_rng, self._num_envs = seeds, rng, num_envs
        self._version, self._total_steps = version, total_steps
        self._groups = [group for group, _ in found]
        for number, (group, attempt) in enumerate(found):
            self._delivery.resume(number, attempt, group.base)
        self._counts = CallCounts([version] * len(found))
        if weights is not None:
            self._weights[version] = weights
        self._curves.begin(total_steps)

    def _at_rest(self, *, with_states: bool) -> None:
        """Let all groups be there, as the calls have left them, and tell their states if asked."""
        for group in self._groups:
            group.share, group.state = NO_CALL, None

        def is_left(number: int) -> bool:
            group = self._groups[number]
            return group.state is None if with_states else not group.is_there

        try:
            with InterruptGuard() as guard:
                while left := list(filter(is_left, range(len(self._groups)))):
                    for number in left:
                        self._ask_at_rest(number)
                    self._take_events()
                    guard.check()
        except BaseException:
            with contextlib.suppress(Exception):
                self._end()
            raise

    def _ask_at_rest(self, number: int) -> None:
        """Begin a group, let it play again what it must, or ask for its state."""
        group, place = self._groups[number], self._placement.place_of(number)
        if not self._pool.has_actor(place):
            self._start_actor(place)
        if not group.is_asked:
            self._begin_group(place, number)
        elif group.is_there and not group.pieces:
            if not self._delivery.groups[number].is_proved:
                self._ask_piece(place, number, "advance", NO_CALL)
            else:
                self._ask_piece(place, number, "state")

    def _close_hosts(self) -> list[BaseException]:
        """Let the actors close their groups; returns what they raised."""
        pool, open_places = self._pool, set[int]()
        for place in self._placement.places:
            if pool.has_actor(place) and pool.has_answered_at(place):
                pool.ask(place, "close")
                open_places.add(place)
        errors: list[BaseException] = []
        uploads = isinstance(self._replay, Folders) and self._replay.url is not None
        until = self._clock() + (_UPLOAD_SECONDS if uploads else _CLOSE_SECONDS)
        while open_places and self._clock() < until:
            for event in pool.events(_WAIT_SECONDS):
                if isinstance(event, Died):
                    open_places.discard(event.place)
                elif isinstance(event, Failed):
                    errors += self._failed(event)
                    open_places.discard(event.asked.place)
                elif isinstance(event, Answered) and event.asked.method == "close":
                    open_places.discard(event.asked.place)
        return errors

    def _end(self) -> None:
        """End the actors at once."""
        self._is_closed = True
        try:
            self._engine.close()
        finally:
            self._curves.close()

    # Calls

    def _call(
        self, call: Call, weights: object, show: Callable[[DistributedReport], None] | None = None
    ) -> None:
        """Make a call whose rows are a function of the seed, and store them in their order."""
        with self._kept_after_error(), InterruptGuard() as guard:
            self._begin(call, weights)
            shown = Shown(show, self._reported, self._clock)
            while not self._delivery.is_complete:
                guard.check()
                shown.look()
                self._go_on()
            guard.check()
            self._tell_end()

    def _begin(self, call: Call, weights: object) -> None:
        """Begin a call: give each group its share."""
        if weights is not None:
            self._version += 1
            self._publish(self._version, weights)
        call = call._replace(version=self._version)
        self._calls += 1
        self._began = self._clock()
        self._counts = CallCounts(each.version for each in self._counts.groups)
        self._rollouts = {}
        self._curves.start()
        self._steps_before = self._mirrored_steps
        shares = shares_of(call, len(self._groups))
        with_work = [group for group, share in enumerate(shares) if not is_empty(share)]
        for number in with_work:
            self._groups[number].begin(shares[number])
        self._delivery.begin(call.number, with_work, in_order=call.kind != "run")
        words = call.kind, call.amount
        _LOG.info("call %d of %d groups begins: %s %d", call.number, len(shares), *words)

    def _go_on(self) -> None:
        """Ask for pieces, wait for some, and store those whose turn it is."""
        self._ask()
        self._take_events()

    def _take_events(self) -> None:
        """Wait for what the actors answer, and store the pieces whose turn it is."""
        errors: list[BaseException] = []
        for event in self._pool.events(_WAIT_SECONDS):
            if isinstance(event, Answered):
                self._answered(event)
            elif isinstance(event, Died):
                errors += self._died(event)
            elif isinstance(event, Short):
                errors += self._short(event)
            else:
                errors += self._failed(event)
        for waiting in self._delivery.due():
            self._store(waiting)
        if errors:
            raise errors[0]
        if self._clock() >= self._next_gauges:
            self._next_gauges = self._clock() + _GAUGE_SECONDS
            for name, value, tags in gauges(self.metrics()):
                self._engine.gauge(name, value, tags)

    def _tell_end(self) -> None:
        """Note the report of a call that has ended, and write its curves."""
        self._curves.flush()
        self._report = self._reported()

    # What the actors are asked for

    def _ask(self) -> None:
        """Start actors and groups that are not there, and ask for as many pieces as may wait."""
        delivery, pool, free = self._delivery, self._pool, list[Free]()
        for place in self._placement.places:
            numbers = [
                number
                for number in self._placement.groups_of(place)
                if not delivery.groups[number].has_ended
            ]
            if numbers and not pool.has_actor(place):
                self._start_actor(place)
            for number in numbers:
                if not self._groups[number].is_asked:
                    self._begin_group(place, number)
            there = [number for number in numbers if self._groups[number].is_there]
            left = self._in_flight - pool.pieces(place) if there else 0
            if left > 0:
                free.append(Free(place, there, left))
        asked = sum(group.pieces for group in self._groups)
        room = _WINDOW_BYTES - delivery.waiting_bytes - asked * self._largest
        for place, number in delivery.to_ask(
            free, lambda number: self._groups[number].pieces, room, self._largest
        ):
            self._ask_piece(place, number, "advance", self._groups[number].share)

    def _ask_to_finish(self) -> None:
        """End the run of all groups; those that were not asked to begin are not begun any more."""
        for number, group in enumerate(self._groups):
            if self._delivery.groups[number].has_ended:
                continue
            if not group.is_asked:
                group.forget_call()
                self._delivery.end(number)
            elif group.is_there and not group.pieces:
                self._ask_piece(self._placement.place_of(number), number, "finish")

    def _ask_piece(self, place: int, number: int, method: str, *more: object) -> None:
        self._groups[number].pieces += 1
        attempt = self._delivery.groups[number].attempt
        self._pool.ask(place, method, number, *more, group=number, attempt=attempt)

    def _start_actor(self, place: int) -> None:
        """Start an actor, and give it the newest weights."""
        self._pool.start(place)
        if self._sent:
            self._pool.ask(place, "load", self._sent, self._weights[self._sent].reference)

    def _begin_group(self, place: int, number: int) -> None:
        """Begin a group in an actor, from the start or after a death."""
        group, delivery = self._groups[number], self._delivery
        group.use_newest(self._sent)
        if group.has_begun:
            if self._on_death == "reseed" or not group.can_repeat:
                self._take_new_seed(number, group.cause)
            elif not group.versions <= self._weights.keys():
                self._take_new_seed(number, "the weights of its first calls are not kept any more")
            else:
                delivery.repeat(number)
                _LOG.warning(
                    "group %d begins again in %s and plays %d pieces again: %s",
                    number,
                    self._pool.name(place),
                    delivery.groups[number].expected,
                    group.cause,
                )
        attempt, skip = delivery.groups[number].attempt, delivery.groups[number].expected
        start = group.start(number, attempt=attempt, skip=skip)
        weights = {
            version: self._engine.fetch(self._weights[version].reference)
            for version in sorted(group.versions - {self._sent})
        }
        self._pool.ask(place, "begin", start, weights, group=number, attempt=attempt)

    def _take_new_seed(self, number: int, why: str) -> None:
        """Let a group go on with other data: what it has stored is cut, and stays."""
        group, delivery, counts = self._groups[number], self._delivery, self._counts.groups[number]
        attempt = delivery.go_on(number)
        counts.reseeded += 1
        options = self._options
        new_seed = another_seed(self._seeds.seed, options.session, options.shard, number, attempt)
        session = group.session + 1
        if self._mirror is not None:
            session = self._mirror.go_on(number, new_seed)
        group.go_on(new_seed, session, delivery.groups[number].state)
        group.use_newest(self._sent)
        if is_empty(group.share):
            delivery.end(number)
        _LOG.warning("group %d goes on with a new seed, %d: %s", number, group.seed, why)

    # What comes in

    def _answered(self, event: Answered) -> None:
        asked, value = event.asked, event.value
        if asked.method in ("advance", "finish"):
            self._take(event, *value)
        elif event.is_late:
            return
        elif asked.method == "ping" and value != __version__:
            raise ValueError(
                f"{self._pool.name(asked.place)}: expected stepwell {__version__}, as "
                f"here, got {value}; install the same version everywhere"
            )
        elif asked.attempt != self._delivery.groups[asked.group].attempt:
            return
        elif asked.method == "state":
            self._groups[asked.group].pieces -= 1
            self._groups[asked.group].state = value
        elif asked.method == "begin":
            self._groups[asked.group].is_there = True
            num_envs = cast("int", value)
            if self._num_envs is None:
                self._num_envs = num_envs
            elif num_envs != self._num_envs:
                raise ValueError(
                    f"group {asked.group}: expected {self._num_envs} envs, as in the groups before "
                    f"it, got {num_envs}; make_envs must make the same in every group"
                )

    def _take(self, event: Answered, piece: Piece, reference: Reference) -> None:
        """Take a piece that came in, and fetch its rows where they are new."""
        asked, delivery = event.asked, self._delivery
        number = asked.group
        group = self._groups[number]
        if event.is_late or asked.attempt != delivery.groups[number].attempt:
            self._engine.forget(reference)
            return
        group.pieces -= 1
        payload = Payload()
        try:
            if not piece.is_repeat:
                payload = cast("Payload", self._engine.fetch(reference))
        except ActorDied as error:
            raise_on = self._died(self._pool.died(asked.place, str(error)))
            if raise_on:
                raise raise_on[0] from error
            return
        finally:
            self._engine.forget(reference)
        if not piece.is_repeat:
            self._check_opening(piece)
        nbytes = len(payload.chunks)
        taken = delivery.take(piece, (payload, group.session), nbytes)
        if taken is Taken.DIFFERS:
            self._must_differ(number)
        elif taken is Taken.TWICE and asked.method == "finish":
            delivery.end(number)  # its run had not begun
        elif taken is Taken.KEPT:
            group.count(piece)
            self._largest = max(self._largest, nbytes)
            self._counts.sent_bytes += nbytes
            if payload.rollout is not None:
                self._rollouts[number] = payload.rollout

    def _must_differ(self, number: int) -> None:
        """Begin a group anew with other data: what it played again is not what it has stored."""
        group = self._groups[number]
        group.leave()
        group.can_repeat = False
        group.cause = "rows that were played again differ from those stored"

    def _check_opening(self, piece: Piece) -> None:
        """Refuse a group whose rows are not those of the others."""
        opening = piece.opening
        if opening is None:
            return
        if self._opening is None:
            self._opening = opening
        difference = _difference(self._opening, opening)
        if difference:
            raise ValueError(
                f"group {piece.group}: expected the same rows as in the groups before it, but "
                f"{difference}; make_envs and make_policy must make the same in every group"
            )

    def _died(self, event: Died) -> list[BaseException]:
        """Note that an actor is gone; its groups begin again, or are lost."""
        self._counts.deaths += 1
        _LOG.warning("%s died: %s", event.name, event.cause)
        lost: list[BaseException] = []
        for number in self._placement.groups_of(event.place):
            group = self._groups[number]
            if not group.is_asked:
                continue
            group.leave()
            group.deaths += 1
            group.cause = event.cause
            self._counts.groups[number].restarts += 1
            if group.deaths > self._max_restarts:
                lost.append(
                    GroupLost(
                        f"group {number}: its actors died {group.deaths} times, which is more than "
                        f"max_restarts={self._max_restarts} allows; the last cause: {event.cause}"
                    )
                )
        return lost

    def _short(self, event: Short) -> list[BaseException]:
        """Give the groups of a place where no actor can start to others that run, or give up."""
        groups = self._placement.groups_of(event.place)
        has_begun = any(self._groups[number].has_begun for number in groups)
        for number in groups:
            self._groups[number].leave()
        if not (has_begun and self._pool.has_answered):
            return [event.error]
        self._placement.give_up(event.place)
        _LOG.warning("groups %s go to other actors: %s", list(groups), event.error)
        return []

    def _failed(self, event: Failed) -> list[BaseException]:
        """The error of the user's code, with the group and the actor that it came from."""
        asked = event.asked
        if isinstance(event.error, RemoteError) and event.error.kind == RowsDiffer.__name__:
            if asked.attempt == self._delivery.groups[asked.group].attempt:
                self._must_differ(asked.group)
            return []
        error = event.error
        if isinstance(error, RemoteError) and error.kind == SpecMismatch.__name__:
            error = SpecMismatch(str(error).removeprefix(f"{error.kind}: "))
            error.__cause__ = event.error
        where = f"in {self._pool.name(asked.place)}"
        error.add_note(f"group {asked.group}, {where}" if asked.group >= 0 else where)
        return [error]

    def _store(self, waiting: Waiting[tuple[Payload, int]]) -> None:
        """Store a piece, and count it."""
        piece, (payload, session) = waiting.piece, waiting.payload
        if self._mirror is not None and payload.chunks:
            assert self._opening is not None
            self._can_store = False
            self._mirror.open(self._opening)
            self._mirror.add(piece.group, payload, session)
            self._can_store = True
        counts = self._counts.groups[piece.group]
        counts.steps += piece.steps
        counts.rows += piece.rows
        counts.nbytes += piece.nbytes
        counts.version = piece.version
        counts.episodes += len(piece.episodes)
        if piece.totals is not None:
            counts.totals.append(piece.totals)
        self._total_steps += piece.steps
        ended = [
            episode._replace(
                episode=episode.episode * len(self._groups) + piece.group,
                env=piece.group * (self._num_envs or 1) + episode.env,
                total_steps=self._total_steps,
            )
            for episode in piece.episodes
        ]
        self._counts.returns += [episode.total_reward for episode in ended]
        self._counts.lengths += [episode.steps for episode in ended]
        self._curves.counted(ended, self._total_steps)
        if self._on_episode is not None:
            for episode in ended:
                self._on_episode(episode)

    # Weights

    def _shared(self, weights: object) -> _Weights:
        return _Weights(self._engine.share(weights), _nbytes_of(weights))

    def _publish(self, version: int, weights: object) -> None:
        """Send weights to all actors, and keep those that a replacement may need."""
        self._weights[version] = newest = self._shared(weights)
        for place in self._placement.places:
            if self._pool.has_actor(place):
                self._pool.ask(place, "load", version, newest.reference)
        needed = {old for group in self._groups if group.can_repeat for old in group.versions}
        kept = sum(each.nbytes for each in self._weights.values())
        for old in sorted(self._weights.keys() - {version}):
            if old not in needed or kept > _HISTORY_BYTES:
                kept -= self._weights[old].nbytes
                self._engine.forget(self._weights.pop(old).reference)

    # Errors and reports

    @contextlib.contextmanager
    def _kept_after_error(self) -> Generator[None]:
        """On any error store what came in, end the actors, and note what was kept."""
        try:
            yield
        except BaseException as error:
            notes: list[str] = []
            try:
                if isinstance(error, RemoteError | SpecMismatch) and self._can_store:
                    self._finish_rest()
                for waiting in self._delivery.rest() if self._can_store else ():
                    self._store(waiting)
            except Exception as second:
                if second is not error and str(second) != str(error):
                    notes.append(f"then: {second}")
            if self._mirror is not None:
                steps = self._mirrored_steps - self._steps_before
                notes.append(f"kept of this call: {steps:,} steps, in {self._where}")
            elif self._replay is not None:
                notes.append(f"kept: the rows that the groups have stored in {self._where}")
            with contextlib.suppress(Exception):
                self._end()
            for note in notes:
                error.add_note(note)
            raise

    def _finish_rest(self) -> None:
        """After an error in an actor, take the groups' whole rows, if they come soon."""
        # The group that failed has those before the error.
        pool, open_groups = self._pool, dict[int, int]()
        for place in self._placement.places:
            for number in self._placement.groups_of(place) if pool.has_actor(place) else ():
                if self._groups[number].is_there and not self._delivery.groups[number].has_ended:
                    self._ask_piece(place, number, "finish")
                    open_groups[number] = place
        until = self._clock() + _FINISH_SECONDS
        while open_groups and self._clock() < until:
            for event in pool.events(_WAIT_SECONDS):
                if isinstance(event, Answered):
                    self._answered(event)
                elif isinstance(event, Died):
                    open_groups = {k: at for k, at in open_groups.items() if at != event.place}
                if isinstance(event, Answered | Failed) and event.asked.method == "finish":
                    open_groups.pop(event.asked.group, None)

    def _reported(self) -> DistributedReport:
        counts = self._counts
        steps = sum(each.steps for each in counts.groups)
        actors = len(self._placement.places)
        # Totals come with the last piece of a call, steps with each one: until all have ended,
        # frames follow from the frame skip.
        totals = (each for group in counts.groups for each in group.totals if each.steps)
        skip = max((each.frames // each.steps for each in totals), default=1)
        row_bytes = 0 if self._opening is None else self._opening.spec.row_bytes
        digest = ""
        if self._mirror is not None and self._num_envs is not None:
            states = [group.state for group in self._delivery.groups]
            digest = DigestState.of_groups(states, self._num_envs).hexdigest()
        return DistributedReport(
            steps=steps,
            frames=steps * skip,
            returns=tuple(counts.returns),
            lengths=tuple(counts.lengths),
            cut=counts.total("cut"),
            restarts=counts.total("restarts"),
            outside=counts.total("outside"),
            seconds=self._clock() - self._began,
            # Actors work at the same time: the mean over them compares with the seconds of the
            # call.
            env_seconds=counts.total("env_seconds") / actors,
            policy_seconds=counts.total("policy_seconds") / actors,
            write_seconds=counts.total("write_seconds") / actors,
            raw_bytes=sum(each.rows for each in counts.groups) * row_bytes,
            stored_bytes=sum(each.nbytes for each in counts.groups),
            total_steps=self._mirrored_steps,
            digest=digest,
            path=None if self._where in ("RAM", "") else self._where,
            groups=tuple(
                GroupReport(
                    group=number,
                    actor=self._pool.name(self._placement.place_of(number)),
                    steps=each.steps,
                    episodes=each.episodes,
                    restarts=each.restarts,
                    reseeded=each.reseeded,
                    bytes=each.nbytes,
                    version=each.version,
                )
                for number, each in enumerate(counts.groups)
            ),
            actors=actors,
            deaths=counts.deaths,
            reseeded=sum(each.reseeded for each in counts.groups),
            version=self._version,
            sent_bytes=counts.sent_bytes,
        )


class _BlockRaised(Exception):
    """The block of a run has raised."""


class Run:
    """A collector that collects in the background; `DistributedCollector.running` makes it.

    The rows depend on the time at which weights arrive, and on deaths. Each group's rows are stored
    in their order; every row has the version of the weights that chose its action.

    Args:
        collector: The collector.
        weights: The first weights; None keeps those of the policies.
        progress: As in `Collector.collect`.
    """

    def __reduce__(self) -> NoReturn:
        not_copied("a run", "ask its collector for another one, with collector.running(...)")

    def __init__(
        self,
        collector: DistributedCollector,
        weights: object,
        progress: Progress[DistributedReport],
    ) -> None:
        self._collector = collector
        self._first = weights
        self._progress = progress
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._is_broken = False
        self._newest: tuple[int, object] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="stepwell-run", daemon=True)

    @property
    def version(self) -> int:
        """Version of the newest weights."""
        return self._collector._version

    @property
    def lag(self) -> int:
        """Versions between the newest weights and the oldest that a group's newest row has."""
        self._raise_error()
        return self._collector._lag

    @property
    def steps(self) -> int:
        """Env steps stored since the block began; an error of the run so far is raised here."""
        self._raise_error()
        return sum(each.steps for each in self._collector._counts.groups)

    @property
    def report(self) -> DistributedReport:
        """The report so far."""
        return self._collector._reported()

    def publish(self, weights: object) -> int:
        """Send newer weights to all groups; they act with them after their next piece.

        This returns at once. Weights that were not sent yet when newer ones come are left out.

        Args:
            weights: For the policies' ``load``; they are copied before this returns.

        Returns:
            Their version, as the rows have it in ``extra/policy_version``.

        Raises:
            ValueError: The block has ended.

        An error of the run so far is raised here, too: see `DistributedCollector.collect`.
        """
        self._raise_error()
        if self._ends.is_set() or not self._collector._is_running:
            raise ValueError("publish: expected a run whose block has not ended, got one that has")
        copied = copy.deepcopy(weights)
        with self._lock:
            self._collector._version += 1
            self._newest = self._collector._version, copied
            return self._newest[0]

    def __enter__(self) -> Self:
        collector = self._collector
        collector._check_open()
        if self._ends.is_set():
            raise ValueError("running: expected a new block, got one that has ended; call it again")
        check_progress(self._progress)
        collector._is_running = True
        try:
            with collector._kept_after_error():
                collector._begin(Call(collector._calls, "run"), self._first)
        except BaseException:
            collector._is_running = False
            raise
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._is_broken = error is not None
        self._ends.set()
        self._thread.join()
        self._collector._is_running = False
        if error is None:
            self._raise_error()
        elif self._error is not None and self._error is not error:
            if not isinstance(self._error, _BlockRaised):
                error.add_note(f"in the background: {self._error}")
            for note in self._error.__notes__:
                error.add_note(note)

    def _raise_error(self) -> None:
        """Raise the error of the background, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        collector = self._collector
        try:
            with (
                progress_function(self._progress, self._status) as show,
                collector._kept_after_error(),
            ):
                shown = Shown(show, collector._reported, collector._clock, due=0.0)
                while not self._ends.is_set():
                    self._send_newest()
                    collector._go_on()
                    shown.look()
                if self._is_broken:
                    raise _BlockRaised
                self._send_newest()  # the calls that follow act with them
                while not collector._delivery.is_complete:
                    collector._ask_to_finish()
                    collector._take_events()
                collector._tell_end()
        except BaseException as error:
            self._error = error

    def _send_newest(self) -> None:
        with self._lock:
            newest, self._newest = self._newest, None
        if newest is not None:
            self._collector._publish(*newest)

    def _status(self, report: DistributedReport) -> Status:
        return distributed_status(report, lag=self.lag)


def _check_takes_nothing(name: str, make: object) -> None:
    """Refuse what is known not to be a function that can be called without arguments."""
    if callable(make):
        try:
            signature = inspect.signature(make)
        except (TypeError, ValueError):  # some functions in C: the first call shows it
            return
        with contextlib.suppress(TypeError):
            signature.bind()
            return
    raise TypeError(
        f"{name}: expected a function without arguments, which is called in each actor and "
        f"returns what it makes, got {make!r}; give one, such as lambda: ..."
    )


def _difference(first: Opening, other: Opening) -> str:
    """The first difference between the rows of two groups in words; "" if there is none."""
    for name, was, now in (
        ("stepwell's version", first.stepwell, other.stepwell),
        ("the number of envs", first.num_envs, other.num_envs),
        ("the recipe", first.facts.get("recipe"), other.facts.get("recipe")),
        ("the env's spec", first.facts.get("env_spec"), other.facts.get("env_spec")),
    ):
        if was != now:
            return f"{name} was {was!r}, is {now!r}"
    return first.spec.difference(other.spec) or ""


def _nbytes_of(weights: object) -> int:
    """Bytes that weights take, about: those of the arrays in them."""
    if isinstance(weights, Mapping):
        return sum(map(_nbytes_of, cast("Mapping[object, object]", weights).values()))
    if isinstance(weights, list | tuple):
        return sum(map(_nbytes_of, cast("Sequence[object]", weights)))
    nbytes = getattr(weights, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(weights)
