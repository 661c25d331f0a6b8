"""Steps vector envs with a policy and writes every row to a replay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import gymnasium
import numpy as np

from stepwell.buffers import SequenceReplayBuffer, Spec
from stepwell.buffers.replay_writer import ReplayWriter, check_flush_seconds
from stepwell.buffers.whole_numbers import check_whole, is_whole
from stepwell.collectors.interrupt import InterruptGuard
from stepwell.collectors.policies.policy import AnyPolicy, SeededPolicy, check_policy, value_of
from stepwell.collectors.policies.policy_caller import PolicyCaller
from stepwell.collectors.report import CollectReport, EpisodeReport, StepReport
from stepwell.collectors.reset_seeds import Reseed
from stepwell.collectors.session_facts import describe
from stepwell.collectors.session_writer import (
    begin_session,
    end_session,
    note_kept,
    spec_of_rows,
    stacks_are_known,
)
from stepwell.collectors.step_loop import EpisodeCounter, StepLoop
from stepwell.collectors.step_result import EpisodeMetadata, InfoReader, MetadataOrFunction
from stepwell.collectors.vector_envs import (
    Vector,
    as_groups,
    env_name,
    frame_skip,
    is_partial,
)
from stepwell.collectors.vector_stepper import stepper_of

if TYPE_CHECKING:
    from stepwell.buffers import Rollout
    from stepwell.collectors.rollout_writer import RolloutWriter

__all__ = ["Collector", "Seeds"]

_PROGRESS_SECONDS = 0.2
_MOST_SEED = 2**31  # every env takes seeds below
_ENVS, _POLICY, _MINIBATCHES = 0, 1, 2


class Collector:
    """Steps envs with a policy and records every row correctly under every autoreset mode.

    Use it as a context manager: on exit all rows are flushed and the envs are closed.

    Args:
        envs: A gymnasium vector env, or a single env, which is stepped as a vector of one; or a
            list of vector envs, which are stepped in turns: the policy computes for one while the
            others step. Their envs are numbered consecutively.
        policy: Chooses the actions; see `Policy`, and `RecurrentPolicy` for one with a state.
        replay: Stores the rows; None steps and reports without storing anything.
        seed: The seeds of envs and policy are derived from it; None draws one. When a replay is
            continued, other seeds are derived than the first time.
        reseed_steps: Env steps of an env after which its next episode begins with a seeded reset,
            so that it can be played again from there. That is for envs that do not seed all of
            their resets, as those of `make_atari(backend="native")` or of another maker, and where
            such a reset of one env is known to leave the others alone. None: only resets of all
            envs are seeded.
        info: Info fields to store, by name, each with the value that means "not there":
            ``{"lives": -1}``. Undeclared info is dropped.
        metadata: JSON-able facts to store with every episode, ``{"task": "door"}``, or a function
            that is called with the env's index and the info of its reset and returns them. Sampling
            can be limited to episodes by them.
        frame_stack: Frames that the envs stack on the first axis of the observation; one frame a
            row is then stored. None reads it from what `make_atari` and `make_vec` declare, or from
            gymnasium's `FrameStackObservation` where only actions, rewards or ends are changed
            above it; 1 stores whole observations, as does a replay that already holds such.
        flush_seconds: No row waits longer than this, plus a step, to be stored durably.
        store_state: Store the state that a `RecurrentPolicy` had before each row, as the extra
            ``"state"``, or ``"state/<key>"`` for each part of it.
        on_step: Called with the rows of each step or reset, which it must not change.
        on_episode: Called with each episode that counts, when it ends.

    Raises:
        ValueError: The env does not declare an autoreset mode.
        TypeError: The policy cannot be called with an observation and ``is_first``; or a space, an
            info field or the metadata cannot be stored.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = gym.make_vec("CartPole-v1", num_envs=4)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(episodes=3)
        >>> report.episodes, replay.episodes
        (3, 3)
    """

    def __init__(
        self,
        envs: Vector | gymnasium.Env[Any, Any] | Sequence[Vector],
        policy: AnyPolicy,
        replay: SequenceReplayBuffer | None = None,
        *,
        seed: int | None = None,
        reseed_steps: int | None = 50_000,
        info: Mapping[str, object] | None = None,
        metadata: MetadataOrFunction | None = None,
        frame_stack: int | None = None,
        flush_seconds: float = 10.0,
        store_state: bool = False,
        on_step: Callable[[StepReport], None] | None = None,
        on_episode: Callable[[EpisodeReport], None] | None = None,
    ) -> None:
        check_policy(policy)
        if not (replay is None or isinstance(replay, SequenceReplayBuffer)):
            raise TypeError(
                f"replay: expected a SequenceReplayBuffer or None, got {type(replay).__name__}; "
                f"make one, with a path for a folder"
            )
        check_flush_seconds(flush_seconds)
        if reseed_steps is not None:
            check_whole("reseed_steps", reseed_steps, 1)
        self._groups = as_groups(envs, frame_stack)
        first, num_envs = self._groups[0], sum(group.num_envs for group in self._groups)
        reader = InfoReader(info or {})
        self._spec = spec_of_rows(first, replay, reader, frame_stack)
        episode_metadata = EpisodeMetadata(metadata)
        self._policy = policy
        self._replay = replay
        self._frame_skip = frame_skip(first)
        session = 0 if replay is None else len(replay.sessions)
        self._seeds = Seeds(seed, session)
        if isinstance(policy, SeededPolicy):
            policy.begin(first.single_action_space, self._seeds.policy_rng())
        self._call = PolicyCaller(
            policy, first.single_action_space, self._spec, num_envs, store_state
        )
        self._minibatch_rng = self._seeds.minibatch_rng()
        self._counter = EpisodeCounter(num_envs)
        layout = self._spec.observation
        make_replay_writer: Callable[[], ReplayWriter] | None = None
        if replay is not None:
            # Holds no reference to the Collector, so that dropping it closes the envs without
            # waiting for the garbage collector.
            facts = partial(
                describe,
                self._groups,
                policy=policy,
                seed=self._seeds.seed,
                session=session,
                reseed_steps=reseed_steps,
                missing=reader.missing,
            )
            make_replay_writer = partial(
                _bind,
                replay,
                self._spec,
                self._call,
                facts,
                flush_seconds,
                known_stacks=stacks_are_known(self._groups, self._spec),
            )
        self._loop = StepLoop(
            stepper_of(
                self._groups,
                layout,
                reader,
                episode_metadata,
                None if reseed_steps is None else Reseed(reseed_steps, self._seeds.env_seed),
            ),
            self._call,
            self._counter,
            layout,
            on_step,
            on_episode,
            make_replay_writer,
        )
        self._needs_reset = True
        self._is_closed = False
        self._report: CollectReport | None = None

    @property
    def report(self) -> CollectReport:
        """The report of the last `collect` or `rollout`.

        Raises:
            ValueError: There was none yet.
        """
        if self._report is None:
            raise ValueError("no report: expected a collect or rollout before it, got none yet")
        return self._report

    def collect(
        self,
        *,
        steps: int | None = None,
        episodes: int | None = None,
        seeds: Sequence[int] | None = None,
        progress: Callable[[CollectReport], None] | None = None,
    ) -> CollectReport:
        """Collect steps, or whole episodes; when it returns they are stored durably.

        Give one of ``steps``, ``episodes`` and ``seeds``.

        Args:
            steps: Env steps to take over all envs, at least: all N envs step at once, so up to
                N - 1 more may be taken. A later call continues where this one stopped.
            episodes: Episodes to record: the first ones to *start* after a reset of all envs. What
                the envs play in addition is not recorded.
            seeds: Seeds of resets: one episode is recorded from each. All envs are reset for N of
                them at a time, so what is recorded does not depend on N. An episode that is cut
                because a worker process died is played once more.
            progress: Called about five times a second with the report so far.

        Returns:
            Counts, returns and times of this call.

        Raises:
            ValueError: Not exactly one of the three is given, or it is not positive, or the policy
                returned something that the envs cannot take.
            TypeError: ``progress`` cannot be called.
            SpecMismatch: The replay holds rows of another Spec.

        After an error or Ctrl-C all whole rows are flushed; a note on the error says what was kept.
        """
        self._check_open()
        _check_goal(steps, episodes, seeds, self._groups)
        if progress is not None and not callable(progress):
            raise TypeError(f"progress: expected a function of a CollectReport, got {progress!r}")
        with self._guarded() as guard:
            self._loop.rollout_writer = None
            if seeds is None:
                before = self._begin(None if episodes is None else self._counter.reserve(episodes))
                self._step_until(steps, guard, progress, before)
            else:
                before = self._collect_seeds(seeds, guard, progress)
            self._loop.receive_pending()
            self._loop.flush()
            guard.check()
            self._needs_reset = steps is None
            self._report = self._reported(before)
        if progress is not None:
            progress(self._report)
        return self._report

    def rollout(self, steps: int, *, out: Rollout | None = None) -> Rollout:
        """Collect the next T rows of each env for an on-policy learner.

        Episodes continue from one rollout to the next: 7 rows, then 13 equal 20. With a replay the
        rows are stored there too, as `collect` stores them, before this returns. Envs that answer a
        few at a time (ale-py's ``batch_size``) run ahead of each other: their rows beyond T begin
        the next rollout, with the extras that the policy returned then.

        Args:
            steps: Number of rows T of each env: T vector steps.
            out: An earlier rollout of the same shape, whose arrays are reused: allocating large
                ones takes time.

        Returns:
            Arrays ``[T, N, ...]``, with the observations to bootstrap from, and their values where
            the policy has a method ``value``.

        Raises:
            ValueError: ``steps`` is no whole number >= 1, ``out`` is of another shape, or the
                policy returned something that the envs cannot take.
            SpecMismatch: The replay holds rows of another Spec.

        Example:
            >>> import gymnasium as gym
            >>> import stepwell as sw
            >>> envs = gym.make_vec("CartPole-v1", num_envs=4)
            >>> with sw.Collector(envs, sw.RandomPolicy(), seed=0) as collector:
            ...     rollout = collector.rollout(steps=16)
            >>> rollout.observation.shape, rollout.reward.shape
            ((16, 4, 4), (16, 4))
        """
        self._check_open()
        check_whole("steps", steps, 1)
        writer = self._loop.rollout_writer or self._new_rollout_writer()
        if out is not None:
            writer.check_out(out, steps)
        with self._guarded() as guard:
            loop, counter = self._loop, self._counter
            loop.rollout_writer = writer
            before = self._begin(None)
            writer.begin(steps, out)
            loop.begin_rollout(writer)
            while loop.unresolved or not writer.is_complete:
                guard.check()
                loop.step_rollout()
            loop.flush()
            guard.check()
            rollout = writer.finish(
                value_of(self._policy), counter.returns, counter.lengths, self._minibatch_rng
            )
            self._report = self._reported(before)
        return rollout

    def close(self) -> None:
        """Store all rows and close the envs; closing twice has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._loop.flush()
        finally:
            if self._replay is not None and self._loop.replay_writer is not None:
                end_session(self._replay, self._loop.replay_writer)
            with contextlib.ExitStack() as stack:
                for group in self._groups:
                    stack.callback(group.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as second:
            if error is None:
                raise
            error.add_note(f"closing failed too: {second}")

    def __repr__(self) -> str:
        """The envs, the destination of the rows, and counts since this Collector was made."""
        target = "no replay"
        if self._replay is not None:
            target = "RAM" if self._replay.path is None else str(self._replay.path)
        counter = self._counter
        return (
            f"Collector({env_name(self._groups[0])}, num_envs={counter.num_envs}, writes to "
            f"{target}, {counter.total_steps:,} steps, {counter.total_episodes:,} episodes)"
        )

    def _new_rollout_writer(self) -> RolloutWriter:
        # Imported here: collect() does not need it.
        from stepwell.collectors.rollout_writer import RolloutWriter

        return RolloutWriter(self._counter.num_envs, self._spec, self._call.state)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the Collector is closed: expected an open one; make a new one")

    @contextlib.contextmanager
    def _guarded(self) -> Generator[InterruptGuard]:
        """Hold Ctrl-C back until a step is whole; on any error store the whole rows."""
        with InterruptGuard() as guard:
            try:
                yield guard
            except BaseException as error:
                self._flush_after_error(error)
                raise

    def _begin(
        self, numbers: Sequence[int] | None, seeds: Sequence[int] | None = None
    ) -> _CallStart:
        """Reset the envs where that is due, and start to count the episodes of these numbers."""
        started = time.perf_counter()
        loop, counter = self._loop, self._counter
        loop.restart_clock()
        if loop.replay_writer is not None and loop.replay_writer.is_outdated:
            # Another Collector has written to the replay since this one did.
            loop.replay_writer.start_over()
            self._needs_reset = True
        if self._needs_reset or numbers is not None:
            loop.flush()
            cut = counter.cut_all()
            counter.begin(numbers, replaces=seeds is None)
            counter.cut = cut
            loop.reset(self._seeds.next_envs_seed(counter.num_envs) if seeds is None else seeds)
            self._needs_reset = False
        else:
            counter.begin()
        return _CallStart(started, 0 if self._replay is None else self._replay.total_bytes)

    def _collect_seeds(
        self,
        seeds: Sequence[int],
        guard: InterruptGuard,
        progress: Callable[[CollectReport], None] | None,
    ) -> _CallStart:
        """One episode from each seed, N at a time; those that were cut are played once more."""
        counter, before = self._counter, None
        left = list(zip(map(int, seeds), counter.reserve(len(seeds)), strict=True))
        while left:
            wave, left = left[: counter.num_envs], left[counter.num_envs :]
            numbers = [number for _, number in wave]
            # Envs beyond the wave play too, and do not count.
            resets = [seed for seed, _ in wave]
            resets += [resets[0]] * (counter.num_envs - len(wave))
            if before is None:
                before = self._begin(numbers, resets)
            else:
                self._loop.flush()
                counter.cut_all()
                counter.extend(numbers)
                self._loop.reset(resets)
            self._step_until(None, guard, progress, before)
            left = [wave[env] for env in counter.lost] + left
        assert before is not None  # there is at least one seed
        return before

    def _step_until(
        self,
        steps: int | None,
        guard: InterruptGuard,
        progress: Callable[[CollectReport], None] | None,
        before: _CallStart,
    ) -> None:
        """Step until the goal of steps is reached, or all counted episodes have ended."""
        loop, counter = self._loop, self._counter
        due = time.perf_counter() + _PROGRESS_SECONDS
        while loop.unresolved or not (
            counter.is_complete if steps is None else counter.steps >= steps
        ):
            guard.check()
            loop.step()
            if progress is not None and time.perf_counter() >= due:
                progress(self._reported(before))
                due = time.perf_counter() + _PROGRESS_SECONDS

    def _flush_after_error(self, error: BaseException) -> None:
        """Flush the whole rows and add a note about them to the error."""
        loop = self._loop
        self._needs_reset, loop.rollout_writer = True, None
        # Twice: where the newest rows cannot be stored, those before them can.
        note_kept(error, [loop.flush, loop.flush, loop.drain], loop.replay_writer)

    def _reported(self, before: _CallStart) -> CollectReport:
        replay, counter, loop = self._replay, self._counter, self._loop
        path = None if replay is None or replay.path is None else str(replay.path)
        return CollectReport(
            steps=counter.steps,
            frames=counter.steps * self._frame_skip,
            returns=tuple(counter.returns),
            lengths=tuple(counter.lengths),
            cut=counter.cut,
            restarts=counter.restarts,
            seconds=time.perf_counter() - before.started,
            env_seconds=loop.env_seconds,
            policy_seconds=loop.policy_seconds,
            write_seconds=loop.write_seconds,
            raw_bytes=0 if replay is None else counter.rows * self._spec.row_bytes,
            stored_bytes=0 if replay is None else replay.total_bytes - before.stored_bytes,
            total_steps=0 if replay is None else replay.steps,
            digest="" if loop.replay_writer is None else loop.replay_writer.digest,
            path=path,
        )


class _CallStart(NamedTuple):
    """The time and the replay's size when a call began."""

    started: float
    stored_bytes: int


class Seeds:
    """All seeds of a Collector, derived from one.

    Args:
        seed: The user's seed; None draws one.
        session: Number of the run within its store, so that a resumed run gets other seeds.
    """

    def __init__(self, seed: int | None, session: int) -> None:
        if not (seed is None or isinstance(seed, int | np.integer)) or (seed or 0) < 0:
            raise ValueError(f"seed: expected a whole number >= 0 or None, got {seed!r}")
        self.seed = int(cast("int", np.random.SeedSequence(seed).entropy))
        self.session = session
        self._resets = 0

    def policy_rng(self) -> np.random.Generator:
        """A generator for the policy."""
        return np.random.default_rng(self._sequence(_POLICY))

    def minibatch_rng(self) -> np.random.Generator:
        """A generator for the minibatches that learners draw from rollouts."""
        return np.random.default_rng(self._sequence(_MINIBATCHES))

    def next_envs_seed(self, num_envs: int) -> int:
        """A seed for the next reset of all envs; env i gets this plus i, below 2**31."""
        words = self._sequence(_ENVS, self._resets).generate_state(1, np.uint64)
        self._resets += 1
        return int(words[0] % np.uint64(2**31 - num_envs))

    def env_seed(self, env: int, number: int) -> int:
        """The seed of a reset of one env, by the count of those before it, below 2**31."""
        return int(self._sequence(_ENVS, env, number).generate_state(1)[0]) >> 1

    def _sequence(self, *key: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(self.session, *key))


def _check_goal(
    steps: int | None,
    episodes: int | None,
    seeds: Sequence[int] | None,
    groups: Sequence[Vector],
) -> None:
    """Refuse a goal that cannot be reached.

    Raises:
        ValueError: Not exactly one is given, or these envs cannot reach it.
    """
    if sum(goal is not None for goal in (steps, episodes, seeds)) != 1:
        raise ValueError(
            f"collect: expected one of steps, episodes and seeds, got steps={steps}, "
            f"episodes={episodes} and seeds={seeds}"
        )
    for name, value in (("steps", steps), ("episodes", episodes)):
        if value is not None:
            check_whole(name, value, 1)
    if seeds is not None:
        _check_seeds(seeds, groups)


def _check_seeds(seeds: Sequence[int], groups: Sequence[Vector]) -> None:
    if isinstance(seeds, str | bytes) or not hasattr(seeds, "__len__") or not len(seeds):
        raise ValueError(f"seeds: expected a list of at least one whole number, got {seeds!r}")
    for seed in seeds:
        if not is_whole(seed) or not 0 <= seed < _MOST_SEED:
            raise ValueError(
                f"seeds: expected whole numbers from 0 to {_MOST_SEED - 1}, got {seed!r}"
            )
    if any(map(is_partial, groups)):
        raise ValueError(
            "seeds: expected envs that all answer at once, got ale-py's with a batch_size below "
            "num_envs, whose order of answers is the machine's; make them without batch_size"
        )


def _bind(
    replay: SequenceReplayBuffer,
    spec: Spec,
    call: PolicyCaller,
    describe_run: Callable[[], dict[str, object]],
    flush_seconds: float,
    *,
    known_stacks: bool,
) -> ReplayWriter:
    """Bind the replay to the rows' Spec, now that the policy's extras are known."""
    spec = spec.with_more(call.extra_fields)
    return begin_session(replay, spec, describe_run(), flush_seconds, known_stacks=known_stacks)
