"""Steps vector envs with a policy and writes every row to a replay."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self, TypeVar, cast

import gymnasium
import numpy as np

from ...buffers import SequenceReplayBuffer
from ...buffers.base import forks
from ...buffers.base.errors import not_copied
from ...buffers.base.number_checks import check_whole, is_whole
from ...buffers.base.progress import Progress, progress_function
from ...buffers.base.row_guard import InterruptGuard
from ...buffers.base.untrusted_json import items, mapping, member, text, whole
from ...buffers.replay.writer import check_flush_seconds, check_stored_episodes
from ...buffers.sampling.requests import refuse_keywords
from ...wrappers.seeded_resets import ShardSeed, in_shard_of
from ..policies.as_policy import GivenPolicy, as_policy
from ..policies.policy import SeededPolicy, load_state_of, state_of, value_of
from ..policies.policy_caller import PolicyCaller
from .curves import Curves
from .report import CollectReport, EpisodeReport, StepReport, collect_status
from .reset_seeds import Reseed
from .result_reader import ResultReader
from .session import Session, SpaceWatch, spec_of_rows
from .step_loop import EpisodeCounter, StepLoop, StepMachine
from .step_result import EpisodeMetadata, InfoReader, MetadataOrFunction
from .steps_ahead import steps_ahead
from .vector_envs import (
    Vector,
    as_groups,
    declared_info,
    env_name,
    frame_skip,
    is_partial,
    tolerate_faults,
)
from .vector_stepper import InterleavedSteppers, Stepper

if TYPE_CHECKING:
    from ...buffers import Rollout
    from .rollout_writer import RolloutWriter

_LOG = logging.getLogger("stepwell.collectors")
_ReportT = TypeVar("_ReportT")

_PROGRESS_SECONDS = 0.2
_TIMES_THE_COST = 500
_MOST_SEED = 2**31  # every env takes seeds below
_MOST_SHARDS = 10_000  # each has 200,000 seeds then
_ENVS, _POLICY, _MINIBATCHES, _SHARDS = range(4)


class Collector:
    """Steps envs with a policy and records every row correctly under every autoreset mode.

    Use it as a context manager: on exit all rows are flushed and the envs are closed.

    Args:
        envs: A gymnasium vector env, or a single env, which is stepped as a vector of one; or a
            list of vector envs, which are stepped in turns: the policy computes for one while the
            others step. Their envs are numbered consecutively.
        policy: Chooses the actions: a function of (observation, is_first), see `Policy`, or of the
            observation alone; an object with a state, see `RecurrentPolicy`; ``"random"``; a model
            of Stable-Baselines3, which acts as `sb3_policy` of it; or a ``torch.nn.Module``, whose
            best actions are taken: the largest of its numbers ``[N, A]`` for a Discrete space, else
            its output ``[N, ...]``. `torch_policy` draws actions, and stores values.
        replay: Stores the rows; None steps and reports without storing anything.
        seed: The seeds of envs and policy are derived from it; None draws one. When a replay is
            continued, other seeds are derived than the first time.
        shard: ``(i, n)``, i from 1 to n: the part i of a data set that n machines collect with the
            same seed and different i. Every seed of a reset is then congruent to i modulo n, so
            that no two machines play an episode from the same seed; the policy's seed differs, too.
            None, and ``(1, 1)``: there is one machine only.
        reseed_steps: Env steps of an env after which its next episode begins with a seeded reset,
            so that it can be played again from there. That is for envs that do not seed all of
            their resets, as those of `make_atari(backend="native")` or of another maker, and where
            such a reset of one env is known to leave the others alone. None: only resets of all
            envs are seeded.
        info: Info fields to store, by name, each with the value that means "not there":
            ``{"lives": -1}``. Undeclared info is dropped, but for what the envs declare themselves,
            as those of `from_pettingzoo` do.
        metadata: JSON-able facts to store with every episode, ``{"task": "door"}``, or a function
            that is called with the env's index and the info of its reset and returns them. Sampling
            can be limited to episodes by them.
        frame_stack: Frames that the envs stack on the first axis of the observation; one frame a
            row is then stored. None reads it from what `make_atari` and `make_vec` declare, or from
            gymnasium's `FrameStackObservation` where only actions, rewards or ends are changed
            above it; 1 stores whole observations, as does a replay that already holds such.
        flush_seconds: No row waits longer than this, plus a step, to be stored durably.
        tolerate: Exceptions of the envs to answer over the Collector's life, as deaths of workers
            are: the open episode is cut, the env made again by its factory, an env object only
            reset, and it counts in ``report.restarts``. The next exception is raised. For envs of
            `make_vec`, `make_nes` and `make_atari(backend="python")`, and ``SyncVectorEnv``.
        store_state: Store the state that a `RecurrentPolicy` had before each row, as the extra
            ``"state"``, or ``"state/<key>"`` for each part of it.
        on_step: Called with the rows of each step or reset, which it must not change.
        on_episode: Called with each episode that counts, when it ends.
        log: Where to write curves while the run goes on: a folder for TensorBoard; ``"wandb"``, for
            the run of Weights & Biases, which is begun if there is none; or an object with a method
            ``add_scalar(tag, value, step)`` or ``log({tag: value})``. Points are returns and
            lengths of episodes, steps a second, and batches drawn for each step: docs/collecting.md

    Raises:
        ValueError: The env does not declare an autoreset mode, ``shard`` is no such pair, the
            policy takes other actions, ``tolerate`` is not for these envs, or ``log`` can be no
            folder.
        TypeError: The policy or ``log`` is none of these; or a space, an info field or the metadata
            cannot be stored.
        ImportError: TensorBoard or W&B, for ``log``, is not installed.

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

    _has_digest = True

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a Collector",
            "make one in each process, with envs and a folder of its own, or a LocalCollector",
        )

    def __init__(
        self,
        envs: Vector | gymnasium.Env[Any, Any] | Sequence[Vector],
        policy: GivenPolicy,
        replay: SequenceReplayBuffer | None = None,
        *,
        seed: int | None = None,
        shard: tuple[int, int] | None = None,
        reseed_steps: int | None = 50_000,
        info: Mapping[str, object] | None = None,
        metadata: MetadataOrFunction | None = None,
        frame_stack: int | None = None,
        flush_seconds: float = 10.0,
        tolerate: int = 0,
        store_state: bool = False,
        on_step: Callable[[StepReport], None] | None = None,
        on_episode: Callable[[EpisodeReport], None] | None = None,
        log: object = None,
    ) -> None:
        actor = as_policy(policy)
        if not (replay is None or isinstance(replay, SequenceReplayBuffer)):
            raise TypeError(
                f"replay: expected a SequenceReplayBuffer or None, got {type(replay).__name__}; "
                f"make one, with a path for a folder"
            )
        check_flush_seconds(flush_seconds)
        if reseed_steps is not None:
            check_whole("reseed_steps", reseed_steps, 1)
        check_whole("tolerate", tolerate, 0)
        self._groups = as_groups(envs, frame_stack)
        first, num_envs = self._groups[0], sum(group.num_envs for group in self._groups)
        reader = InfoReader(info, declared_info(first))
        self._spec = spec_of_rows(first, replay, reader, frame_stack)
        episode_metadata = EpisodeMetadata(metadata)
        self._faults = tolerate_faults(self._groups, tolerate)
        self._policy = actor
        self._replay = replay
        self._frame_skip = frame_skip(first)
        session = 0 if replay is None else len(replay.sessions)
        self._seeds = Seeds(seed, session, shard)
        if isinstance(actor, SeededPolicy):
            actor.begin(first.single_action_space, self._seeds.policy_rng())
        ahead = steps_ahead(self._groups, actor, metadata, reader.missing, self._spec.row_bytes)
        chooses = actor if ahead is None else ahead.choose
        self._call = PolicyCaller(
            chooses, first.single_action_space, self._spec, num_envs, store_state, ahead is None
        )
        self._minibatch_rng = self._seeds.minibatch_rng()
        self._counter = EpisodeCounter(num_envs)
        self._watch = SpaceWatch(self._spec, first.single_observation_space)
        write_session: Session | None = None
        if replay is not None:
            facts = {
                "policy": actor if isinstance(policy, str) else policy,
                "seed": self._seeds.seed,
                "session": session,
                "shard": self._seeds.shard,
                "reseed_steps": reseed_steps,
                "missing": reader.missing,
            }
            write_session = Session(
                replay,
                self._spec,
                self._groups,
                self._call.checker,
                facts,
                flush_seconds,
                self._watch,
                has_digest=self._has_digest,
            )
        layout = self._spec.observation
        self._machine = StepMachine(write_session, self._counter, layout, on_step, on_episode)
        reseed = None if reseed_steps is None else Reseed(reseed_steps, self._seeds.env_seed)
        steppers: list[Stepper] = []
        first_env = 0
        for group in self._groups:
            results = ResultReader(group, layout, reader, episode_metadata, first_env, reseed)
            steppers.append(Stepper(results, self._spec.action, ahead))
            first_env += group.num_envs
        self._stepper: Stepper | InterleavedSteppers = (
            steppers[0] if len(steppers) == 1 else InterleavedSteppers(steppers)
        )
        self._loop = StepLoop(self._stepper, self._call, self._counter, self._machine, ahead)
        self._curves = Curves(log, replay)
        if log is not None:
            self._machine.tell_curves = self._curves.counted
        self._is_closed = False
        # The time, the replay's bytes, and the rows outside of their space when a call began.
        self._began, self._bytes_before, self._outside_before = 0.0, 0, 0
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
        *_more: Never,
        steps: int | None = None,
        episodes: int | None = None,
        seeds: Sequence[int] | None = None,
        progress: Progress[CollectReport] = None,
        **_wrong: Never,
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
                because its env was restarted is played once more. With a shard, seeds of the shard.
            progress: True shows a line in a terminal or in a notebook, or a line of text every
                30 seconds where there is neither. Or a function that is called about five times a
                second with the report so far, less often after many thousands of episodes.

        Returns:
            Counts, returns and times of this call.

        Raises:
            ValueError: Not exactly one of the three is given, or it is not positive, or the policy
                returned something that the envs cannot take.
            TypeError: ``progress`` is neither True nor a function.
            SpecMismatch: The replay holds rows of another Spec.

        After an error or Ctrl-C all whole rows are flushed; a note on the error says what was kept.
        """
        if _more or _wrong:
            known = ("steps", "episodes", "seeds", "progress")
            refuse_keywords("collect", _wrong, known, _more)
        self._check_open()
        check_goal(steps, episodes, seeds, self._groups)
        own_seeds = None if seeds is None else self._seeds.own(seeds)
        count = episodes if own_seeds is None else len(own_seeds)
        status = partial(collect_status, steps=steps, episodes=count)
        with progress_function(progress, status) as report:
            with self._guarded() as guard:
                shown = Shown(report, self._reported)
                for _ in self._collecting(steps, episodes, own_seeds):
                    guard.check()
                    if report is not None:
                        shown.look()
                guard.check()
                self._curves.flush()
                self._report = done = self._reported()
            if report is not None:
                report(done)
        return done

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
        writer = self._machine.rollout_writer or self._new_rollout_writer()
        if out is not None:
            writer.check_out(out, steps)
        with self._guarded() as guard:
            for _ in self._rolling(writer, steps, out):
                guard.check()
            guard.check()
            self._curves.flush()
            rollout = self._finished(writer)
            self._report = self._reported()
        return rollout

    def state_dict(self) -> dict[str, Any]:
        """All that a new Collector needs to go on as if this one had never stopped.

        That is: the seeds; the actions of the open episodes, from which the envs are brought back;
        the state of the policy, where it has a ``state_dict``; the counts, and the open episodes in
        the replay. Rows are not in it: they are in the replay, whose `save_checkpoint` also keeps
        this state. Take it between two calls of `collect` or `rollout`.

        Returns:
            Plain values and numpy arrays, for `save_checkpoint`, or for ``torch.save``, whose
            files are read with ``weights_only=False``: load none that you do not trust.

        Raises:
            TypeError: The policy draws from a generator, and has no ``state_dict`` and
                ``load_state_dict``.
            ValueError: The Collector is closed, or others have written to the replay meanwhile.

        Example:
            >>> import gymnasium as gym
            >>> import stepwell as sw
            >>> def collector():
            ...     return sw.Collector(gym.make_vec("CartPole-v1", 4), sw.RandomPolicy(), seed=0)
            >>> first, second = collector(), collector()
            >>> report = first.collect(steps=100)
            >>> second.load_state_dict(first.state_dict())
            >>> first.rollout(8).reward.tolist() == second.rollout(8).reward.tolist()
            True
        """
        self._check_open()
        machine, writer = self._machine, self._machine.replay_writer
        if writer is not None and writer.is_outdated:
            raise ValueError(
                "state_dict: expected a replay that this Collector alone writes to, got one in "
                "which others have begun episodes; take the state before they do"
            )
        return {
            "version": 1,
            "envs": env_name(self._groups[0]),
            "num_envs": self._counter.num_envs,
            "seeds": self._seeds.state_dict(),
            "minibatches": self._minibatch_rng.bit_generator.state,
            "policy": state_of(self._policy),
            "policy_state": None if self._call.state is None else self._call.state.state_dict(),
            "counter": self._counter.state_dict(),
            "outside": self._watch.rows,
            "faults": self._faults.count,
            "is_open": not machine.needs_reset,
            "envs_state": self._stepper.state_dict(is_open=not machine.needs_reset),
            "writer": None if writer is None else writer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the Collector of a `state_dict` was: the same rows follow, bit for bit.

        Make this one as that one was made: the same envs, the same kind of policy, and the replay
        as it was, which `SequenceReplayBuffer.load_checkpoint` with ``exact=True`` restores. The
        envs play the actions of their open episodes again, which takes as long as it took them. If
        they do not show then what they showed before, as envs whose seeds do not say all, a warning
        says which env it was: the open episodes are cut, and all envs are reset.

        Args:
            state: The state. It may come from a file: all of it is checked.

        Raises:
            ValueError: It is no such state, or that of other envs; this Collector has collected
                already; or the replay holds other episodes than then. Where only a part of the
                state is wrong, this Collector is closed.
        """
        self._check_open()
        machine, counter = self._machine, self._counter
        if counter.total_steps or not machine.needs_reset or machine.replay_writer is not None:
            raise ValueError(
                "load_state_dict: expected a Collector that has not collected yet, got one that "
                "has; make a new one"
            )
        has_changed = False
        try:
            told = mapping(dict(state) if isinstance(state, Mapping) else state, "state")
            whole(member(told, "version"), "version", 1, 1)
            mine = env_name(self._groups[0]), counter.num_envs
            given = member(told, "envs"), member(told, "num_envs")
            if mine != given:
                raise ValueError(
                    f"envs: expected {given[1]} of {given[0]}, got {mine[1]} of {mine[0]}"
                )
            is_open = member(told, "is_open")
            if not isinstance(is_open, bool):
                raise ValueError(f"is_open: expected True or False, got {is_open!r}")
            self._check_replay(told.get("writer"), is_open=is_open)
            has_changed = True
            self._seeds.load_state_dict(member(told, "seeds"))
            forks.load_generator(self._minibatch_rng, member(told, "minibatches"))
            load_state_of(self._policy, member(told, "policy"))
            if self._call.state is not None:
                self._call.state.load_state_dict(member(told, "policy_state"))
            counter.load_state_dict(member(told, "counter"))
            self._watch.rows = whole(member(told, "outside"), "outside")
            self._faults.count = whole(member(told, "faults"), "faults", 0, self._faults.most)
            began = time.perf_counter()
            why = self._stepper.bring_back(member(told, "envs_state"), is_open=is_open)
        except Exception as error:
            if has_changed:  # half of a state is worse than none
                self.close()
            if not isinstance(error, TypeError | ValueError):
                raise
            raise ValueError(
                f"state: expected that of a Collector as this one, {error}; make a new Collector, "
                f"with envs, policy and replay as they were, or begin without the state"
            ) from error
        self._curves.begin(counter.total_steps)
        observed = None
        if is_open and not why:
            machine.needs_reset = False
            observed = self._loop.newest_observations
            seconds = time.perf_counter() - began
            _LOG.info("brought %d envs back in %.1f s", counter.num_envs, seconds)
        if machine.session is not None and told.get("writer") is not None:
            machine.session.continues = told["writer"], observed
        if why:
            _LOG.warning(
                "the envs could not be brought back: %s; their open episodes are cut, and all envs "
                "are reset",
                why,
            )

    def _check_replay(self, writer: object, *, is_open: bool) -> None:
        """Refuse a replay with other episodes than the one of a writer's state."""
        holds = self._replay is not None and self._replay.is_bound
        if holds != (writer is not None) or (self._replay is not None and is_open and not holds):
            there = "none" if is_open else "none, or an empty one"
            there = there if writer is None else "that with the rows until then"
            raise ValueError(f"replay: expected {there}, got {self._replay!r}")
        if writer is not None and self._replay is not None:
            check_stored_episodes(writer, self._replay)

    def close(self) -> None:
        """Store all rows and close the envs; closing twice has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._machine.close()
        finally:
            with contextlib.ExitStack() as stack:
                for group in self._groups:
                    stack.callback(group.close)
                stack.callback(self._curves.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
        from .rollout_writer import RolloutWriter

        return RolloutWriter(self._counter.num_envs, self._spec, self._call.state)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the Collector is closed: expected an open one; make a new one")

    def _collecting(
        self, steps: int | None, episodes: int | None, seeds: Sequence[int] | None
    ) -> Generator[None, bool | None]:
        """Collect until the goal is reached; yields before each vector step and at the end."""
        # Then all rows are stored. Sent True, it ends before the next step.
        machine = self._machine
        machine.rollout_writer = None
        if seeds is None:
            self._begin(None if episodes is None else self._counter.reserve(episodes))
            yield from self._stepping(steps)
        else:
            yield from self._playing(seeds)
        self._loop.receive_pending()
        machine.finish()
        machine.needs_reset = steps is None

    def _rolling(
        self, writer: RolloutWriter, steps: int, out: Rollout | None
    ) -> Generator[None, bool | None]:
        """Collect the rows of a rollout, with an item before each vector step."""
        # Then all rows are stored, and `_finished` returns the rollout.
        loop, machine = self._loop, self._machine
        machine.rollout_writer = writer
        self._begin(None)
        writer.begin(steps, out)
        loop.begin_rollout(writer)
        while machine.unresolved or not writer.is_complete:
            yield
            loop.step_rollout(writer)
        machine.finish()

    def _finished(self, writer: RolloutWriter) -> Rollout:
        """The rollout whose rows `_rolling` has collected."""
        counter = self._counter
        rollout = writer.finish(
            value_of(self._policy), counter.returns, counter.lengths, self._minibatch_rng
        )
        if self._replay is None:
            steps = len(rollout.reward)
            self._watch.see_rollout({k: rows[:steps] for k, rows in rollout.memory.items()})
        return rollout

    @contextlib.contextmanager
    def _guarded(self) -> Generator[InterruptGuard]:
        """Hold Ctrl-C back until a step is whole; on any error store the whole rows."""
        with InterruptGuard() as guard:
            try:
                yield guard
            except BaseException as error:
                self._machine.fail(error, self._stepper.drain)
                raise

    def _begin(self, numbers: Sequence[int] | None, seeds: Sequence[int] | None = None) -> None:
        """Reset the envs where that is due, and start to count the episodes of these numbers."""
        began = time.perf_counter()
        loop, machine, counter = self._loop, self._machine, self._counter
        loop.restart_clock()
        if machine.replay_writer is not None and machine.replay_writer.is_outdated:
            # Another Collector has written to the replay since this one did.
            machine.replay_writer.start_over()
            machine.needs_reset = True
        if machine.needs_reset or numbers is not None:
            machine.finish()
            cut = counter.cut_all()
            counter.begin(numbers, replaces=seeds is None)
            counter.cut = cut
            loop.reset(self._seeds.next_resets(counter.num_envs) if seeds is None else seeds)
            machine.needs_reset = False
        else:
            counter.begin()
        self._began, self._outside_before = began, self._watch.rows
        self._bytes_before = 0 if self._replay is None else self._replay.total_bytes

    def _playing(self, seeds: Sequence[int]) -> Generator[None, bool | None]:
        """One episode from each seed, N at a time; those that were cut are played once more."""
        counter, is_first = self._counter, True
        left = list(zip(seeds, counter.reserve(len(seeds)), strict=True))
        while left:
            wave, left = left[: counter.num_envs], left[counter.num_envs :]
            numbers = [number for _, number in wave]
            # Envs beyond the wave play too, and do not count.
            resets = [seed for seed, _ in wave]
            resets += [resets[0]] * (counter.num_envs - len(wave))
            if is_first:
                self._begin(numbers, resets)
                is_first = False
            else:
                self._machine.finish()
                counter.cut_all()
                counter.extend(numbers)
                self._loop.reset(resets)
            yield from self._stepping(None)
            left = [wave[env] for env in counter.lost] + left

    def _stepping(self, steps: int | None) -> Generator[None, bool | None]:
        """Step until the goal of steps is reached, or all counted episodes have ended."""
        loop, counter = self._loop, self._counter
        while self._machine.unresolved or not (
            counter.is_complete if steps is None else counter.steps >= steps
        ):
            if (yield):
                return
            # Each of N envs takes a step, or is reset: the goal is not reached before so many.
            left = sys.maxsize if steps is None else steps - counter.steps
            loop.step(max(1, -(-left // counter.num_envs)))
        yield

    def _reported(self) -> CollectReport:
        replay, counter, loop = self._replay, self._counter, self._loop
        writer = self._machine.replay_writer
        path = None if replay is None or replay.path is None else str(replay.path)
        return CollectReport(
            steps=counter.steps,
            frames=counter.steps * self._frame_skip,
            returns=tuple(counter.returns),
            lengths=tuple(counter.lengths),
            cut=counter.cut,
            restarts=counter.restarts,
            outside=self._watch.rows - self._outside_before,
            seconds=time.perf_counter() - self._began,
            env_seconds=loop.env_seconds,
            policy_seconds=loop.policy_seconds,
            write_seconds=loop.write_seconds,
            raw_bytes=0 if replay is None else counter.rows * self._spec.row_bytes,
            stored_bytes=0 if replay is None else replay.total_bytes - self._bytes_before,
            total_steps=0 if replay is None else replay.steps,
            digest="" if writer is None else writer.digest,
            path=path,
        )


@dataclass(eq=False)
class Shown(Generic[_ReportT]):
    """Calls a function with reports about five times a second, less often where they take long."""

    show: Callable[[_ReportT], None] | None
    report: Callable[[], _ReportT]  # makes the report so far
    clock: Callable[[], float] = time.perf_counter
    due: float | None = None  # time of the next report; None: a while after the first look

    def look(self) -> None:
        """Call the function, if it is time to."""
        now = self.clock()
        if self.due is None:
            self.due = now + _PROGRESS_SECONDS
        elif self.show is not None and now >= self.due:
            so_far = self.report()
            cost = self.clock() - now  # grows with the number of episodes
            self.show(so_far)
            self.due = self.clock() + max(_PROGRESS_SECONDS, _TIMES_THE_COST * cost)


class Seeds:
    """All seeds of a Collector, derived from the user's, or from one that is drawn for None."""

    # ``session`` is the number of the run within its store, so that a resumed run gets other seeds;
    # ``shard`` is ``(i, n)``, see `Collector`.

    def __init__(
        self, seed: int | None, session: int, shard: tuple[int, int] | None = None
    ) -> None:
        check_shard("shard", shard)
        if not (seed is None or isinstance(seed, int | np.integer)) or (seed or 0) < 0:
            raise ValueError(f"seed: expected a whole number >= 0 or None, got {seed!r}")
        self.seed = int(cast("int", np.random.SeedSequence(seed).entropy))
        self.session = session
        self.shard: tuple[int, int] | None = None
        self._count, self._sample = 1, 0
        self._key: tuple[int, ...] = (session,)
        if shard is not None and shard[1] > 1:
            part, self._count = map(int, shard)
            self.shard = part, self._count
            self._key = (session, _SHARDS, part, self._count)
            self._sample = ShardSeed(part % self._count, self._count)
        self._resets = 0

    def policy_rng(self) -> np.random.Generator:
        """A generator for the policy."""
        return forks.generator(self._sequence(_POLICY))

    def minibatch_rng(self) -> np.random.Generator:
        """A generator for the minibatches that learners draw from rollouts."""
        return forks.generator(self._sequence(_MINIBATCHES))

    def state_dict(self) -> dict[str, object]:
        """The seed, and how many resets of all envs there were."""
        shard = None if self.shard is None else list(self.shard)
        told = {"seed": str(self.seed), "session": self.session, "shard": shard}
        return {**told, "resets": self._resets}

    def load_state_dict(self, state: object) -> None:
        """Continue from a state of `state_dict`, also of another seed."""
        told = mapping(state, "seeds")
        seed, shard = stored_seed(member(told, "seed")), member(told, "shard")
        part = None if shard is None else tuple(items(shard, "shard", 2))
        resets = whole(member(told, "resets"), "resets")
        session = whole(member(told, "session"), "session")
        # In place, as others refer to this object.
        vars(self).update(vars(Seeds(seed, session, cast("Any", part))))
        self._resets = resets

    def next_envs_seed(self, num_envs: int) -> int:
        """A seed for the next reset of all envs; env i gets this plus i, below 2**31."""
        # With a shard they are not seeds, but the places of seeds among those of the shard.
        words = self._sequence(_ENVS, self._resets).generate_state(1, np.uint64)
        self._resets += 1
        return int(words[0] % np.uint64(_MOST_SEED // self._count - num_envs))

    def next_resets(self, num_envs: int) -> int | list[int]:
        """Seeds for the next reset of all envs: that of env 0, or of a shard one for each."""
        first = self.next_envs_seed(num_envs)
        if self.shard is None:
            return first
        places = range(first, first + num_envs)
        return [ShardSeed(k * self._count + self._sample, self._count) for k in places]

    def own(self, seeds: Sequence[int]) -> list[int]:
        """The user's seeds, from which others are derived; refuses those of another shard."""
        for seed in seeds:
            if (seed - self._sample) % self._count:
                raise ValueError(
                    f"seeds: expected seeds of shard {self.shard}, which are {int(self._sample)} "
                    f"modulo {self._count}, got {seed}; leave out those of other shards"
                )
        if self.shard is None:
            return list(map(int, seeds))
        return [ShardSeed(seed, self._count) for seed in seeds]

    def env_seed(self, env: int, number: int) -> int:
        """The seed of a reset of one env, by the count of those before it, below 2**31."""
        drawn = int(self._sequence(_ENVS, env, number).generate_state(1)[0]) >> 1
        return in_shard_of(self._sample, drawn)

    def _sequence(self, *key: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(*self._key, *key))


def stored_seed(value: object) -> int:
    """A seed from a state, in which it is a text, as JSON's numbers are smaller."""
    seed = text(value, "seed")
    if not seed.isdecimal() or len(seed) > 100:
        raise ValueError("seed: expected a whole number as a text")
    return int(seed)


def check_shard(name: str, shard: object) -> None:
    """Refuse a shard that is neither None nor ``(i, n)`` with 1 <= i <= n <= 10,000."""
    if shard is None:
        return
    if isinstance(shard, tuple | list):
        numbers = cast("Sequence[object]", shard)
        if len(numbers) == 2 and all(map(is_whole, numbers)):
            part, count = cast("Sequence[int]", numbers)
            if 1 <= part <= count <= _MOST_SHARDS:
                return
    raise ValueError(
        f"{name}: expected the number of a part and that of all parts, from 1 of n to n of n with "
        f"n up to {_MOST_SHARDS:,}, got {shard!r}; count the parts from 1"
    )


def check_goal(
    steps: int | None,
    episodes: int | None,
    seeds: Sequence[int] | None,
    groups: Sequence[Vector],
) -> None:
    """Refuse no goal, several goals, and one that these envs cannot reach."""
    if sum(goal is not None for goal in (steps, episodes, seeds)) != 1:
        raise ValueError(
            f"collect: expected one of steps, episodes and seeds, got steps={steps}, "
            f"episodes={episodes} and seeds={seeds}"
        )
    for name, value in (("steps", steps), ("episodes", episodes)):
        if value is not None:
            check_whole(name, value, 1)
    if seeds is None:
        return
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
