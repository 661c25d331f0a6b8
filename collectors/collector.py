"""Steps a vector env with a policy and puts every row into a replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TransformReward

from stepwell.buffers import SequenceReplayBuffer, Spec
from stepwell.buffers.spec import Field, default_codec
from stepwell.collectors.actions import PolicyCaller
from stepwell.collectors.arrival import Arrival, InfoReader
from stepwell.collectors.episode_facts import EpisodeFacts, EpisodeMetadata
from stepwell.collectors.interrupt import InterruptGuard
from stepwell.collectors.policy import Policy, SeededPolicy
from stepwell.collectors.recorder import Recorder
from stepwell.collectors.report import CollectReport
from stepwell.collectors.session import Seeds, describe, frame_skip, frame_stack_of
from stepwell.collectors.stepper import Stepper, Vector
from stepwell.collectors.tally import Tally

__all__ = ["Collector"]

_PROGRESS_SECONDS = 0.2


class Collector:
    """Steps envs with a policy and records every row, right under every autoreset mode.

    Use it as a context manager: at the end what was gathered is flushed and the envs are closed.

    Args:
        envs: A gymnasium vector env, or a single env, which is stepped as a vector of one.
        policy: Chooses the actions; see `Policy`.
        replay: Takes up the rows; None steps and reports without storing anything.
        seed: From it the seeds of envs and policy are derived; None draws one. A replay that is
            continued gets other seeds than the first time.
        info: Info fields to store, by name, each with the value that stands for "not there":
            ``{"lives": -1}``. Undeclared info is dropped.
        metadata: JSON-able facts to note about every episode, ``{"task": "door"}``, or a function
            that is called with the env's index and the info of its reset and returns them. Sampling
            can be limited to episodes by them.
        frame_stack: Frames that the envs stack on the first axis of the observation; one frame a
            row is then stored. None reads it from what `make_atari` and `make_vec` declare.
        flush_seconds: No row waits longer than this, plus a step, to be stored for good.

    Raises:
        ValueError: The env does not say how it resets its sub-envs.
        TypeError: A space, an info field or the metadata cannot be stored.

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
        envs: Vector | gymnasium.Env[Any, Any],
        policy: Policy,
        replay: SequenceReplayBuffer | None = None,
        *,
        seed: int | None = None,
        info: Mapping[str, object] | None = None,
        metadata: EpisodeMetadata | None = None,
        frame_stack: int | None = None,
        flush_seconds: float = 10.0,
    ) -> None:
        self._envs = _as_vector(envs)
        reader = InfoReader(info or {})
        stack, padding = frame_stack_of(self._envs, frame_stack)
        self._spec = Spec.from_spaces(
            self._envs.single_observation_space,
            self._envs.single_action_space,
            frame_stack=stack,
            stack_padding=padding,
            more=[_info_field(name, value) for name, value in reader.missing.items()],
        )
        facts = EpisodeFacts(metadata)
        self._stepper = Stepper(self._envs, self._spec.observation, reader, facts)
        self._policy = policy
        self._call = PolicyCaller(policy, self._envs.single_action_space, self._spec)
        self._replay = replay
        self._recorder: Recorder | None = None
        self._flush_seconds = flush_seconds
        self._frame_skip = frame_skip(self._envs)
        session = 0 if replay is None else len(replay.sessions)
        self._seeds = Seeds(seed, session)
        if isinstance(policy, SeededPolicy):
            policy.begin(self._envs.single_action_space, self._seeds.policy_rng())
        self._tally = Tally(self._envs.num_envs)
        self._arrivals: list[Arrival] = []
        self._unsure: np.ndarray | None = None
        self._is_counted = True
        self._needs_reset = True
        self._is_closed = False
        self._clock = {"env": 0.0, "policy": 0.0, "write": 0.0}

    def collect(
        self,
        *,
        steps: int | None = None,
        episodes: int | None = None,
        progress: Callable[[CollectReport], None] | None = None,
    ) -> CollectReport:
        """Gather steps, or whole episodes; when it returns they are stored for good.

        Args:
            steps: Env steps to take over all envs, at least: all N envs step at once, so up to
                N - 1 more may come. A later call goes on where this one stopped.
            episodes: Episodes to record: the first ones to *start* after a reset of all envs. What
                the envs play beside them is not recorded. Give either ``steps`` or ``episodes``.
            progress: Called about five times a second with the report so far.

        Returns:
            What was done, and where the time went.

        Raises:
            ValueError: Not exactly one number is given, or it is not positive, or the policy
                returned something that the envs cannot take.
            SpecMismatch: The replay holds other rows than these envs give.

        After an error or Ctrl-C all whole rows are flushed; a note on the error says what was kept.
        """
        self._check_goal(steps, episodes)
        with InterruptGuard() as guard:
            try:
                before = self._begin(episodes)
                due = time.perf_counter() + _PROGRESS_SECONDS
                while not self._is_reached(steps):
                    guard.check()
                    self._step()
                    if progress is not None and time.perf_counter() >= due:
                        progress(self._report(before))
                        due = time.perf_counter() + _PROGRESS_SECONDS
                self._settle()
                guard.check()
            except BaseException as error:
                self._rescue(error)
                raise
            self._needs_reset = episodes is not None
            report = self._report(before)
        if progress is not None:
            progress(report)
        return report

    def close(self) -> None:
        """Store what was gathered and close the envs; closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._settle()
        finally:
            self._envs.close()

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

    def _check_goal(self, steps: int | None, episodes: int | None) -> None:
        if self._is_closed:
            raise ValueError("the Collector is closed: expected an open one; make a new one")
        if (steps is None) == (episodes is None):
            raise ValueError(
                f"collect: expected either steps or episodes, got steps={steps} and "
                f"episodes={episodes}"
            )
        for name, value in (("steps", steps), ("episodes", episodes)):
            if value is not None and (int(value) != value or value < 1):
                raise ValueError(f"{name}: expected a whole number >= 1, got {value!r}")

    def _begin(self, episodes: int | None) -> _Before:
        """Reset the envs where that is due, and start the count."""
        started = time.perf_counter()
        if self._recorder is not None and self._recorder.is_overtaken:
            # Another Collector has written into the replay since this one did.
            self._recorder.begin_anew()
            self._needs_reset = True
        if self._needs_reset or episodes is not None:
            self._settle()
            cut = self._tally.forget()
            self._tally.begin(episodes)
            self._tally.cut = cut
            self._arrivals = self._stepper.reset(self._seeds.next_envs_seed(self._envs.num_envs))
            self._needs_reset, self._unsure = False, None
            self._count()
        else:
            self._tally.begin(None)
        self._clock = {"env": time.perf_counter() - started, "policy": 0.0, "write": 0.0}
        return _Before(started, 0 if self._replay is None else self._replay.total_bytes)

    def _is_reached(self, steps: int | None) -> bool:
        if not self._is_counted:  # whether an episode has ended is known after the next step only
            return False
        return self._tally.is_complete if steps is None else self._tally.steps >= steps

    def _step(self) -> None:
        """One vector step: the rows before it are written while the envs step."""
        began = time.perf_counter()
        action, chosen = self._call(self._stepper.observation, self._stepper.is_first)
        self._bind()
        decided = time.perf_counter()
        unsure, env_ids = self._unsure, self._stepper.env_ids
        self._stepper.send(action)
        sent = time.perf_counter()
        if unsure is None:
            self._write(chosen, env_ids)
        written = time.perf_counter()
        arrivals = self._stepper.receive()
        received = time.perf_counter()
        if unsure is not None:
            self._resolve(self._stepper.went_on(unsure))
            self._write(chosen, env_ids)
        self._arrivals, self._unsure = arrivals, self._stepper.unsure
        self._is_counted = False
        if self._unsure is None:
            self._count()
        self._clock["policy"] += decided - began
        self._clock["env"] += sent - decided + received - written
        self._clock["write"] += written - sent

    def _count(self) -> None:
        """Keep of the newest rows those that are to be recorded."""
        counted = [self._tally.count(arrival) for arrival in self._arrivals]
        self._arrivals = [arrival for arrival in counted if arrival is not None]
        self._is_counted = True

    def _resolve(self, going_on: np.ndarray) -> None:
        """Now it is known which episodes did not end with the newest rows."""
        self._arrivals[-1] = self._arrivals[-1].going_on(going_on)
        self._count()

    def _write(self, chosen: Mapping[str, np.ndarray], env_ids: np.ndarray | None) -> None:
        if self._recorder is not None:
            self._observe()
            self._recorder.act(chosen, env_ids)

    def _observe(self) -> None:
        """Begin the newest rows, each once, whatever happens."""
        arrivals, self._arrivals = self._arrivals, []
        if self._recorder is not None:
            for arrival in arrivals:
                self._recorder.observe(arrival)

    def _settle(self) -> None:
        """Store all there is, the newest rows too, from which no action was chosen yet."""
        if not self._is_counted and self._unsure is not None:
            self._resolve(self._unsure)
        if self._recorder is not None:
            self._observe()
            self._recorder.flush()

    def _bind(self) -> None:
        """Settle what the rows are, once the policy's extras are known."""
        if self._recorder is not None or self._replay is None:
            return
        spec = self._spec.with_more(self._call.extra_fields)
        self._replay.bind(spec, describe(self._envs, self._policy, self._seeds))
        self._recorder = Recorder(self._replay, self._envs.num_envs, self._flush_seconds)

    def _rescue(self, error: BaseException) -> None:
        """Flush what is whole and say so on the error."""
        self._needs_reset = True
        # Twice: where the newest rows cannot be stored those before them can.
        failures = [_tried(work) for work in (self._settle, self._settle, self._stepper.drain)]
        for failure in dict.fromkeys(failures):
            if failure not in ("", str(error)):
                error.add_note(f"then: {failure}")
        if self._recorder is not None:
            error.add_note(f"kept: {self._recorder.kept}")

    def _report(self, before: _Before) -> CollectReport:
        replay, tally = self._replay, self._tally
        path = None if replay is None or replay.path is None else str(replay.path)
        return CollectReport(
            steps=tally.steps,
            frames=tally.steps * self._frame_skip,
            returns=tuple(tally.returns),
            lengths=tuple(tally.lengths),
            cut=tally.cut,
            restarts=tally.restarts,
            seconds=time.perf_counter() - before.started,
            env_seconds=self._clock["env"],
            policy_seconds=self._clock["policy"],
            write_seconds=self._clock["write"],
            raw_bytes=0 if replay is None else tally.rows * self._spec.row_bytes,
            stored_bytes=0 if replay is None else replay.total_bytes - before.stored_bytes,
            total_steps=0 if replay is None else replay.steps,
            digest="" if self._recorder is None else self._recorder.digest,
            path=path,
        )


class _Before(NamedTuple):
    """How things stood when a collect began."""

    started: float
    stored_bytes: int


def _as_vector(envs: Vector | gymnasium.Env[Any, Any]) -> Vector:
    if isinstance(envs, VectorEnv):
        return envs
    if not isinstance(envs, gymnasium.Env):
        raise TypeError(
            f"envs: expected a gymnasium VectorEnv or Env, got {type(envs).__name__}; make one "
            f"with stepwell.make_atari, stepwell.make_vec or gymnasium.make_vec"
        )
    single = TransformReward(envs, _one_number)
    return SyncVectorEnv([lambda: single])


def _tried(work: Callable[[], None]) -> str:
    """Do it, and tell what went wrong."""
    try:
        work()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _one_number(reward: Any) -> float:
    """Gymnasium's vector envs refuse arrays of shape (1,)."""
    return float(np.asarray(reward).item())


def _info_field(name: str, missing: np.ndarray) -> Field:
    codec = default_codec(missing.dtype, missing.shape)
    return Field(f"info/{name}", missing.dtype.name, missing.shape, codec)
