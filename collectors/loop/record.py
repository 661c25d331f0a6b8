"""Records an env under a loop of the caller's own: one line, and the loop stays as it is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, overload

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array

from ...buffers.base.errors import not_copied
from ...buffers.spec.spec import plain_array
from ...wrappers.env_results import EnvResults
from ...wrappers.envpool import from_envpool, is_pool
from ...wrappers.final_observations import ExactInfos
from ...wrappers.fixed_spaces import with_fixed_spaces
from ...wrappers.make_vector_env import require_spaces
from ...wrappers.workers.infos import add_info
from ...wrappers.workers.vector_env import checked_env
from .recording import BegunReset, BegunStep, RecordedSteps, ReplayOrPath
from .step_result import MetadataOrFunction
from .vector_envs import Vector

_Env = gymnasium.Env[Any, Any]
_Result = tuple[Any, Any, Any, Any, dict[str, Any]]
_Reset = tuple[Any, dict[str, Any]]
# Methods of vector envs that step them, past a wrapper that lacks them.
_STEPPING = ("step_async", "step_wait", "reset_async", "reset_wait", "send", "recv", "async_reset")


@overload
def record(
    env: VectorEnv[Any, Any, Any],
    replay: ReplayOrPath,
    *,
    info: Mapping[str, object] | None = None,
    metadata: MetadataOrFunction | None = None,
    frame_stack: int | None = None,
    flush_seconds: float = 10.0,
    log: object = None,
) -> RecordedVectorEnv: ...
@overload
def record(
    env: gymnasium.Env[Any, Any],
    replay: ReplayOrPath,
    *,
    info: Mapping[str, object] | None = None,
    metadata: MetadataOrFunction | None = None,
    frame_stack: int | None = None,
    flush_seconds: float = 10.0,
    log: object = None,
) -> RecordedEnv: ...
def record(
    env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
    replay: ReplayOrPath,
    *,
    info: Mapping[str, object] | None = None,
    metadata: MetadataOrFunction | None = None,
    frame_stack: int | None = None,
    flush_seconds: float = 10.0,
    log: object = None,
) -> RecordedEnv | RecordedVectorEnv:
    """Record every row of an env while a loop of your own steps it.

    The env that is returned is used in place of the given one. Its `reset` and `step` return what
    the given env returns, and the rows are stored as a `Collector` with the same actions would
    store them, in every autoreset mode. Two defects of gymnasium's vector envs are repaired: info
    values that they would cast to the type of the first env's keep theirs, and last observations
    that an env overwrites at once are the true ones.

    Rows are stored durably at least every ``flush_seconds``, by `flush` and `close`, when the env
    is dropped, and when the process ends. After an error of the env, or Ctrl-C in it, its step is
    not recorded, and the next call must be a reset. A reset in the middle of an episode cuts it.

    Several envs may be recorded into one replay, as those of a loop that steps single envs: each is
    a session, with streams of its own.

    Args:
        env: A gymnasium env or vector env.
        replay: Stores the rows; or the folder of a store, which is continued if it exists, and
            closed with the env.
        info: Info fields to store, by name, each with the value that means "not there":
            ``{"lives": -1}``.
        metadata: JSON-able facts to store with every episode, or a function that is called with the
            env's index and the info of its reset and returns them.
        frame_stack: Frames that the env stacks on the first axis of the observation, of which one a
            row is then stored; None reads it from the env, 1 stores whole observations.
        flush_seconds: No row waits longer than this, plus a step, to be stored durably.
        log: Where to write curves of returns, lengths and speed; see `Collector`.

    Returns:
        An env or a vector env, as the given one, with two more methods:
        ``log_extras(log_prob=..., value=...)`` notes values ``[N, ...]`` of the action that is
        stepped next (of a single env ``[...]``), which are stored with it; the first step
        determines their names, dtypes and shapes. ``flush()`` stores all rows.

    Raises:
        TypeError: The env or ``log`` is none, or a space, an info field or the metadata cannot be
            stored.
        ValueError: The vector env does not declare an autoreset mode. In `step`, before the env is
            stepped: the actions do not fit the action space, or the extras differ from those
            before. In `log_extras`: one is unknown, or no array of numbers.
        SpecMismatch: In the first `step`: the replay holds rows of other envs.
        ResetNeeded: In `step`: an env was not reset, or its last step failed.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = sw.record(gym.make_vec("CartPole-v1", num_envs=2), replay)
        >>> observation, info = envs.reset(seed=0)
        >>> for _ in range(5):
        ...     envs.log_extras(value=observation[:, 0])
        ...     observation, reward, terminated, truncated, info = envs.step(np.array([0, 1]))
        >>> envs.close()
        >>> replay.steps, replay.spec["extra/value"].dtype
        (10, 'float32')
    """
    if isinstance(env, VectorEnv):
        require_spaces(env)
        vector = env = from_envpool(env) if is_pool(env) else env
    elif isinstance(env, gymnasium.Env):
        # Never stepped: it declares what a Collector reads from vector envs.
        vector = SyncVectorEnv([lambda: checked_env(env)], autoreset_mode=AutoresetMode.DISABLED)
    else:
        raise TypeError(
            f"env: expected a gymnasium Env or VectorEnv, got {type(env).__name__}; {_advice(env)}"
        )
    recording = RecordedSteps(
        vector,
        replay,
        info=info,
        metadata=metadata,
        frame_stack=frame_stack,
        flush_seconds=flush_seconds,
        log=log,
        is_single=vector is not env,
    )
    if isinstance(env, VectorEnv):
        if hasattr(type(env), "send") and hasattr(type(env), "recv"):
            return _RecordedBySend(env, recording)
        if hasattr(type(env), "step_async") and hasattr(type(env), "step_wait"):
            return _RecordedByStepAsync(env, recording)
        return RecordedVectorEnv(env, recording)
    return RecordedEnv(env, recording)


class _Recorded:
    """Both kinds of recorded envs."""

    _recording: RecordedSteps

    def __reduce__(self) -> NoReturn:
        not_copied("a recorded env", "copy env.unwrapped, or record an env of its own")

    def flush(self) -> None:
        """Store all rows durably."""
        self._recording.flush()


class RecordedEnv(_Recorded, gymnasium.Wrapper[Any, Any, Any, Any]):
    """The single env that `record` returns."""

    def __init__(self, env: _Env, recording: RecordedSteps) -> None:
        super().__init__(env)
        self._recording = recording
        self._space = env.observation_space
        self._results = EnvResults(self._space, "the env")
        self._is_plain = isinstance(self._space, gymnasium.spaces.Box)
        is_fixed = with_fixed_spaces(env) is env
        self._one_action = _one_more_axis if is_fixed else partial(_batch_of_one, env.action_space)
        self._finalizer = weakref.finalize(self, recording.finish)

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """The spec of the env, which recording does not change."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> _Reset:
        """Reset the env, and record the first row of an episode."""
        recording = self._recording
        begun = recording.begin_reset(seed, options)
        with recording:
            result: _Reset = self._results.call_reset(self.env.reset, seed=seed, options=options)
            observation, info = self._results.reset(result)
            recording.finish_reset(begun, self._one(observation), add_info({}, info, 0, 1))
        return result

    def step(self, action: Any) -> _Result:
        """Step the env, and record the row."""
        recording = self._recording
        begun = recording.begin_step(self._one_action(action))
        with recording:
            result = self.env.step(action)
            observation, reward, terminated, truncated, info = self._results.step(result)
            read = add_info({}, info, 0, 1) if recording.reads_infos else {}
            numbers = np.array([reward]), np.array([terminated]), np.array([truncated])
            recording.finish_step(begun, (self._one(observation), *numbers, read))
        return result

    def log_extras(self, **arrays: Any) -> None:
        """Note values of the action that is stepped next, by name; they are stored with it."""
        self._recording.log_extras(
            {
                name: plain_array(f"extra {name!r}", one, ValueError)[None]
                for name, one in arrays.items()
            }
        )

    def close(self) -> None:
        """Store all rows, and close the env."""
        try:
            self._recording.close()
        finally:
            super().close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def _one(self, observation: Any) -> Any:
        """The checked observation as that of a vector of one."""
        if self._is_plain:
            return observation[None]
        return _batch_of_one(self._space, observation)


class RecordedVectorEnv(_Recorded, VectorWrapper[Any, Any, Any, Any, Any]):
    """The vector env that `record` returns."""

    def __init__(self, env: Vector, recording: RecordedSteps) -> None:
        super().__init__(env)
        self._recording = recording
        self._exact_infos = ExactInfos(env)
        self._finalizer = weakref.finalize(self, recording.finish)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> _Reset:
        """Reset the envs, and record the first rows of episodes."""
        recording = self._recording
        begun = recording.begin_reset(seed, options)
        with recording:
            self._exact_infos.prepare()
            with self._exact_infos:
                observation, info = result = self.env.reset(seed=seed, options=options)
            recording.finish_reset(begun, observation, info)
        return result

    def step(self, actions: Any) -> _Result:
        """Step the envs, and record the rows."""
        recording = self._recording
        begun = recording.begin_step(actions)
        with recording:
            with self._exact_infos:
                result = self.env.step(actions)
            recording.finish_step(begun, result)
        return result

    def log_extras(self, **arrays: Any) -> None:
        """Note values of the actions that are stepped next, by name; they are stored with them."""
        self._recording.log_extras(arrays)

    def close(  # type: ignore[override]
        self, *, timeout: float | None = None, terminate: bool = False
    ) -> None:
        """Store all rows, and close the envs.

        Args:
            timeout: As of `AsyncVectorEnv`; other envs do not take it.
            terminate: The same.
        """
        given: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if terminate:
            given["terminate"] = True
        try:
            self._recording.close()
        finally:
            super().close(**given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _STEPPING:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)


class _RecordedInHalves(RecordedVectorEnv):
    """A recorded vector env of which a step can be two calls."""

    env: Any
    _begun: BegunStep | None = None

    def _begin(self, begin: Any, actions: Any) -> None:
        begun = self._recording.begin_step(actions)
        with self._recording:
            begin(actions)
        self._begun = begun

    def _finish(self, finish: Callable[[], _Result]) -> _Result:
        begun, self._begun = self._begun, None
        with self._recording:
            with self._exact_infos:
                result = finish()
            if begun is not None:  # else the env itself has refused
                self._recording.finish_step(begun, result)
        return result


class _RecordedBySend(_RecordedInHalves):
    def send(self, actions: Any) -> None:
        self._begin(self.env.send, actions)

    def recv(self) -> _Result:
        return self._finish(self.env.recv)


class _RecordedByStepAsync(_RecordedInHalves):
    """A recorded vector env with `step_async` and `step_wait`, as an `AsyncVectorEnv`."""

    _begun_reset: BegunReset | None = None

    def step_async(self, actions: Any) -> None:
        self._begin(self.env.step_async, actions)

    def step_wait(self, timeout: float | None = None) -> _Result:
        return self._finish(partial(self.env.step_wait, timeout))

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        begun = self._recording.begin_reset(seed, options)
        with self._recording:
            self._exact_infos.prepare()
            self.env.reset_async(seed, options)
        self._begun_reset = begun

    def reset_wait(self, timeout: float | None = None) -> _Reset:
        begun, self._begun_reset = self._begun_reset, None
        with self._recording:
            with self._exact_infos:
                result: _Reset = self.env.reset_wait(timeout)
            if begun is not None:
                self._recording.finish_reset(begun, *result)
        return result


def _advice(given: object) -> str:
    if isinstance(given, str):
        return f"make it first, with gymnasium.make({given!r})"
    if isinstance(given, list | tuple):
        return "record each of them, or a gymnasium.vector.SyncVectorEnv of them"
    if isinstance(given, type) or callable(given):
        return "call it, and record the env that it makes"
    return "give one, or the gymnasium envs inside of it"


def _batch_of_one(space: gymnasium.Space[Any], value: Any) -> Any:
    """A value of any space as that of a vector of one."""
    empty: Any = create_empty_array(space, 1)
    return concatenate(space, [value], empty)


def _one_more_axis(value: Any) -> Any:
    """A value of a single env as that of a vector of one; parts of dicts and tuples are."""
    if isinstance(value, Mapping):
        return {key: _one_more_axis(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_one_more_axis, value))
    return plain_array("action", value, ValueError)[None]
