"""Steps a vector env with a policy and puts every row into a replay."""

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
from stepwell.buffers.spec import Field, default_codec
from stepwell.collectors.callbacks import Callbacks
from stepwell.collectors.env_groups import as_groups, stepper_of
from stepwell.collectors.episode_counter import EpisodeCounter
from stepwell.collectors.episode_metadata import EpisodeMetadata, MetadataOrFunction
from stepwell.collectors.goal import check_goal, check_number, seeds_for_all
from stepwell.collectors.interrupt import InterruptGuard
from stepwell.collectors.policies.actions import PolicyCaller
from stepwell.collectors.policies.policy import AnyPolicy, SeededPolicy, check_policy, value_of
from stepwell.collectors.replay_writer import ReplayWriter
from stepwell.collectors.report import CollectReport, EpisodeReport, StepReport
from stepwell.collectors.session import Seeds, describe, frame_skip, frame_stack_of
from stepwell.collectors.step_loop import StepLoop
from stepwell.collectors.step_result import InfoReader
from stepwell.collectors.vector_envs import Vector

if TYPE_CHECKING:
    from stepwell.buffers import Rollout
    from stepwell.collectors.rollout_writer import RolloutWriter

__all__ = ["Collector"]

_PROGRESS_SECONDS = 0.2


class Collector:
    """Steps envs with a policy and records every row, right under every autoreset mode.

    Use it as a context manager: at the end what was gathered is flushed and the envs are closed.

    Args:
        envs: A gymnasium vector env, or a single env, which is stepped as a vector of one; or a
            list of vector envs, which are stepped in turns: the policy computes for one while the
            others step. Their envs are numbered through.
        policy: Chooses the actions; see `Policy`, and `RecurrentPolicy` for one with a state.
        replay: Takes up the rows; None steps and reports without storing anything.
        seed: From it the seeds of envs and policy are derived; None draws one. A replay that is
            continued gets other seeds than the first time.
        info: Info fields to store, by name, each with the value that stands for "not there":
            ``{"lives": -1}``. Undeclared info is dropped.
        metadata: JSON-able facts to note about every episode, ``{"task": "door"}``, or a function
            that is called with the env's index and the info of its reset and returns them. Sampling
            can be limited to episodes by them.
        frame_stack: Frames that the envs stack on the first axis of the observation; one frame a
            row is then stored. None reads it from what `make_atari` and `make_vec` declare, or from
            gymnasium's `FrameStackObservation` where only actions, rewards or ends are changed
            above it; 1 stores whole observations, as does a replay that holds such already.
        flush_seconds: No row waits longer than this, plus a step, to be stored for good.
        store_state: Store the state that a `RecurrentPolicy` had before each row, as the extra
            ``"state"``, or ``"state/<key>"`` for each part of it.
        on_step: Called with the rows that each step or reset brought. It only looks.
        on_episode: Called with each episode that counts, when it ends.

    Raises:
        ValueError: The env does not say how it resets its sub-envs.
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
        info: Mapping[str, object] | None = None,
        metadata: MetadataOrFunction | None = None,
        frame_stack: int | None = None,
        flush_seconds: float = 10.0,
        store_state: bool = False,
        on_step: Callable[[StepReport], None] | None = None,
        on_episode: Callable[[EpisodeReport], None] | None = None,
    ) -> None:
        check_policy(policy)
        self._groups = as_groups(envs, frame_stack)
        first, num_envs = self._groups[0], sum(group.num_envs for group in self._groups)
        reader = InfoReader(info or {})
        if frame_stack is None and replay is not None and _holds_whole(replay, first):
            frame_stack = 1
        stack, padding = frame_stack_of(first, frame_stack)
        self._spec = Spec.from_spaces(
            first.single_observation_space,
            first.single_action_space,
            frame_stack=stack,
            stack_padding=padding,
            more=[_info_field(name, value) for name, value in reader.missing.items()],
        )
        facts = EpisodeMetadata(metadata)
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
        self._tally = EpisodeCounter(num_envs)
        layout = self._spec.observation
        describes = partial(describe, self._groups, policy, self._seeds)
        self._turns = StepLoop(
            stepper_of(self._groups, layout, reader, facts),
            self._call,
            self._tally,
            Callbacks(self._tally, layout, on_step, on_episode),
            # Nothing that holds the Collector: who drops it must get rid of the envs at once.
            None
            if replay is None
            else partial(_bound, replay, self._spec, self._call, describes, flush_seconds),
        )
        self._needs_reset = True
        self._is_closed = False
        self._report: CollectReport | None = None

    @property
    def report(self) -> CollectReport:
        """What the last `collect` or `rollout` did.

        Raises:
            ValueError: There was none yet.
        """
        if self._report is None:
            raise ValueError("no report: expected a collect or rollout before, got none yet")
        return self._report

    def collect(
        self,
        *,
        steps: int | None = None,
        episodes: int | None = None,
        seeds: Sequence[int] | None = None,
        progress: Callable[[CollectReport], None] | None = None,
    ) -> CollectReport:
        """Gather steps, or whole episodes; when it returns they are stored for good.

        Give one of ``steps``, ``episodes`` and ``seeds``.

        Args:
            steps: Env steps to take over all envs, at least: all N envs step at once, so up to
                N - 1 more may come. A later call goes on where this one stopped.
            episodes: Episodes to record: the first ones to *start* after a reset of all envs. What
                the envs play beside them is not recorded.
            seeds: Seeds of resets: one episode is recorded from each. All envs are reset for N of
                them at a time, so what is recorded does not depend on N. An episode that is cut
                because a worker process died is played once more.
            progress: Called about five times a second with the report so far.

        Returns:
            What was done, and where the time went.

        Raises:
            ValueError: Not exactly one number is given, or it is not positive, or the policy
                returned something that the envs cannot take.
            SpecMismatch: The replay holds other rows than these envs give.

        After an error or Ctrl-C all whole rows are flushed; a note on the error says what was kept.
        """
        self._check_open()
        check_goal(steps, episodes, seeds, self._groups)
        with self._guarded() as guard:
            self._turns.writer = None
            if seeds is None:
                before = self._begin(None if episodes is None else self._tally.reserve(episodes))
                self._step_until(steps, guard, progress, before)
            else:
                before = self._collect_seeds(seeds, guard, progress)
            self._turns.gather()
            self._turns.settle()
            guard.check()
            self._needs_reset = steps is None
            self._report = self._reported(before)
        if progress is not None:
            progress(self._report)
        return self._report

    def rollout(self, steps: int, *, out: Rollout | None = None) -> Rollout:
        """Gather the next T rows of each env for an on-policy learner.

        Episodes go on from one rollout to the next: 7 rows, then 13 equal 20. With a replay the
        rows are stored there too, as `collect` stores them, before this returns. Envs that answer a
        few at a time (ale-py's ``batch_size``) run ahead of each other: what they did beyond T rows
        begins the next rollout, with the extras that the policy gave then.

        Args:
            steps: Number of rows T of each env: T vector steps.
            out: An earlier rollout of the same shape, whose arrays are written anew: it takes time
                to find new memory for large ones.

        Returns:
            Arrays ``[T, N, ...]``, with the observations to bootstrap from. Their values are asked
            of the policy, where it has a method ``value``.

        Raises:
            ValueError: ``steps`` is no whole number >= 1, ``out`` is of another shape, or the
                policy returned something that the envs cannot take.
            SpecMismatch: The replay holds other rows than these envs give.

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
        check_number("steps", steps)
        writer = self._writer_of_rollouts()
        if out is not None:
            writer.check_out(out, steps)
        with self._guarded() as guard:
            self._turns.writer = writer
            before = self._begin(None)
            writer.begin(steps, out)
            self._turns.resume(writer)
            while self._turns.has_uncounted or not writer.is_complete:
                guard.check()
                self._turns.step_rollout()
            self._turns.settle()
            guard.check()
            tally = self._tally
            rollout = writer.finish(
                value_of(self._policy), tally.returns, tally.lengths, self._minibatch_rng
            )
            self._report = self._reported(before)
        return rollout

    def close(self) -> None:
        """Store what was gathered and close the envs; closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._turns.settle()
        finally:
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

    def _writer_of_rollouts(self) -> RolloutWriter:
        from stepwell.collectors.rollout_writer import RolloutWriter  # not for all to load

        writer = self._turns.writer
        return writer or RolloutWriter(self._tally.num_envs, self._spec, self._call.state)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the Collector is closed: expected an open one; make a new one")

    @contextlib.contextmanager
    def _guarded(self) -> Generator[InterruptGuard]:
        """After an error, or Ctrl-C between two steps, what is whole is stored."""
        with InterruptGuard() as guard:
            try:
                yield guard
            except BaseException as error:
                self._rescue(error)
                raise

    def _begin(self, numbers: Sequence[int] | None, seeds: Sequence[int] | None = None) -> _Before:
        """Reset the envs where that is due, and start the count of episodes of these numbers."""
        started = time.perf_counter()
        self._turns.restart_clock()
        recorder = self._turns.recorder
        if recorder is not None and recorder.is_overtaken:
            # Another Collector has written into the replay since this one did.
            recorder.begin_anew()
            self._needs_reset = True
        if self._needs_reset or numbers is not None:
            self._turns.settle()
            cut = self._tally.forget()
            self._tally.begin(numbers, replaces=seeds is None)
            self._tally.cut = cut
            drawn = self._seeds.next_envs_seed(self._tally.num_envs) if seeds is None else seeds
            self._turns.reset(drawn)
            self._needs_reset = False
        else:
            self._tally.begin()
        return _Before(started, 0 if self._replay is None else self._replay.total_bytes)

    def _collect_seeds(
        self,
        seeds: Sequence[int],
        guard: InterruptGuard,
        progress: Callable[[CollectReport], None] | None,
    ) -> _Before:
        """An episode from each seed, N at a time; once more where it was cut off."""
        tally, before = self._tally, None
        left = list(zip(map(int, seeds), tally.reserve(len(seeds)), strict=True))
        while left:
            wave, left = left[: tally.num_envs], left[tally.num_envs :]
            numbers = [number for _, number in wave]
            filled = seeds_for_all([seed for seed, _ in wave], tally.num_envs)
            if before is None:
                before = self._begin(numbers, filled)
            else:
                self._turns.settle()
                tally.forget()
                tally.go_on(numbers)
                self._turns.reset(filled)
            self._step_until(None, guard, progress, before)
            left = [wave[env] for env in tally.lost] + left
        assert before is not None  # there is at least one seed
        return before

    def _step_until(
        self,
        steps: int | None,
        guard: InterruptGuard,
        progress: Callable[[CollectReport], None] | None,
        before: _Before,
    ) -> None:
        """Step until so many steps were taken, or all episodes that count have ended."""
        due = time.perf_counter() + _PROGRESS_SECONDS
        while not self._is_reached(steps):
            guard.check()
            self._turns.step()
            if progress is not None and time.perf_counter() >= due:
                progress(self._reported(before))
                due = time.perf_counter() + _PROGRESS_SECONDS

    def _is_reached(self, steps: int | None) -> bool:
        if self._turns.has_uncounted:
            return False
        return self._tally.is_complete if steps is None else self._tally.steps >= steps

    def _rescue(self, error: BaseException) -> None:
        """Flush what is whole and say so on the error."""
        turns = self._turns
        self._needs_reset, turns.writer = True, None
        # Twice: where the newest rows cannot be stored those before them can.
        failures = [_tried(work) for work in (turns.settle, turns.settle, turns.drain)]
        for failure in dict.fromkeys(failures):
            if failure not in ("", str(error)):
                error.add_note(f"then: {failure}")
        if turns.recorder is not None:
            error.add_note(f"kept: {turns.recorder.kept}")

    def _reported(self, before: _Before) -> CollectReport:
        replay, tally, turns = self._replay, self._tally, self._turns
        path = None if replay is None or replay.path is None else str(replay.path)
        return CollectReport(
            steps=tally.steps,
            frames=tally.steps * self._frame_skip,
            returns=tuple(tally.returns),
            lengths=tuple(tally.lengths),
            cut=tally.cut,
            restarts=tally.restarts,
            seconds=time.perf_counter() - before.started,
            env_seconds=turns.env_seconds,
            policy_seconds=turns.policy_seconds,
            write_seconds=turns.write_seconds,
            raw_bytes=0 if replay is None else tally.rows * self._spec.row_bytes,
            stored_bytes=0 if replay is None else replay.total_bytes - before.stored_bytes,
            total_steps=0 if replay is None else replay.steps,
            digest="" if turns.recorder is None else turns.recorder.digest,
            path=path,
        )


class _Before(NamedTuple):
    """How things stood when a collect began."""

    started: float
    stored_bytes: int


def _bound(
    replay: SequenceReplayBuffer,
    spec: Spec,
    call: PolicyCaller,
    describes: Callable[[], dict[str, object]],
    flush_seconds: float,
) -> ReplayWriter:
    """Settle what the rows are, now that the policy's extras are known, and record them."""
    facts = describes()
    replay.bind(spec.with_more(call.extra_fields), facts)
    return ReplayWriter(replay, cast("int", facts["num_envs"]), flush_seconds)


def _holds_whole(replay: SequenceReplayBuffer, envs: Vector) -> bool:
    """Tell whether rows are there already that hold the observations as the envs give them."""
    shape = envs.single_observation_space.shape
    fields = replay.spec.fields if replay.is_bound else ()
    return any((f.name, f.shape, f.stack) == ("observation", shape, 1) for f in fields)


def _tried(work: Callable[[], None]) -> str:
    """Do it, and tell what went wrong."""
    try:
        work()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _info_field(name: str, missing: np.ndarray) -> Field:
    codec = default_codec(missing.dtype, missing.shape)
    return Field(f"info/{name}", missing.dtype.name, missing.shape, codec)
