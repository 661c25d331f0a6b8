"""Keep results of envs unchanged until they are stored.

Gymnasium's vector envs lose three things before the caller sees them:

- They cast observations to the dtype of the space, rewards to float64 and flags to bool: 300 in
  uint8 becomes 44, a reward of None NaN, and the flags [False, False] True.
- In SAME_STEP mode ``info["final_obs"]`` holds the array that the env returned, and the env is
  reset immediately. An env that reuses its observation array has overwritten it by then.
- ``_add_info`` casts each env's info to the type of the first env's: 1/3 after 1 becomes 0.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from .env_results import EnvResults, owned_value
from .workers.infos import add_info

_NAME = "_stepwell_exact_results"
_Leaves = Sequence[npt.NDArray[Any]]


class ExactInfos:
    """Context manager in which Gymnasium's vector envs return exactly what their envs return."""

    # Enter it for each call of ``reset`` and ``step``. Inside, the vector env, also below vector
    # wrappers, joins infos with `add_info`, and copies last observations before it resets an env;
    # the results of each env are checked by `EnvResults` before they are cast. Vector envs with
    # their own ``_add_info`` join infos as they do, and envs in the workers of others are not
    # checked.

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self._inner: Any = envs.unwrapped
        self._is_needed = type(self._inner)._add_info is VectorEnv._add_info
        self._is_sync = isinstance(self._inner, SyncVectorEnv)
        self._is_prepared = False
        self._given: list[Any] = []
        self._checked = _CheckedEnvs()

    def prepare(self) -> None:
        """Make the workers of an `AsyncVectorEnv` exact; only the first call acts."""
        # In the mode SAME_STEP they must be Gymnasium's own: ValueError.
        inner = self._inner
        if self._is_prepared or not isinstance(inner, AsyncVectorEnv):
            return
        is_needed = inner.autoreset_mode is AutoresetMode.SAME_STEP
        if is_needed or getattr(inner, "worker", None) is None:
            inner.set_attr(_NAME, make_exact)
            if not all(inner.call(_NAME)) and is_needed:
                raise ValueError(
                    "AsyncVectorEnv in SAME_STEP mode: expected Gymnasium's own worker, got "
                    f"{inner.worker!r}, which cannot copy a last observation before the reset; "
                    "use autoreset mode NEXT_STEP, or stepwell.make_vec"
                )
        self._is_prepared = True

    def __enter__(self) -> None:
        inner = self._inner
        if self._is_needed:
            inner._add_info = self._add_info
        if self._is_sync and type(inner.envs) is not _CheckedEnvs:
            if inner.envs is not self._given:
                space, mode = inner.single_observation_space, inner.autoreset_mode
                self._checked = _CheckedEnvs(
                    _CheckedEnv(inner.envs, k, space, mode) for k in range(len(inner.envs))
                )
                self._given = inner.envs
            inner.envs = self._checked

    def __exit__(self, *_: object) -> None:
        inner = self._inner
        if self._is_sync and inner.envs is self._checked:
            inner.envs = self._given
        if self._is_needed:
            # Not through `vars`: an object whose `__dict__` was ever asked for is slower for good.
            try:  # takes less time than `contextlib.suppress`
                del inner._add_info
            except AttributeError:
                pass

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        """Add an info; a `SyncVectorEnv` passes last observations before it resets the env."""
        if not env_info:
            return vector_infos
        if "final_obs" in env_info:
            env_info = {
                key: copy.deepcopy(value) if key == "final_obs" else owned_value(value)
                for key, value in env_info.items()
            }
        return add_info(vector_infos, env_info, env_num, self._inner.num_envs)


class _CheckedEnvs(list["_CheckedEnv"]):
    """The envs of a `SyncVectorEnv`, of which each checks its results."""


class _CheckedEnv:
    """One of them, by its place in the list, where another one may be put later."""

    def __init__(
        self, envs: list[Any], place: int, space: gym.Space[Any], mode: AutoresetMode
    ) -> None:
        self._envs, self._place = envs, place
        self._results = _results_of(space, place, mode)
        self.step = self._results.stepping(envs, place)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        results, env = self._results, self._envs[self._place]
        return results.reset(results.call_reset(env.reset, seed, options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs[self._place], name)


def make_exact() -> bool:
    """Patch the env of an `AsyncVectorEnv` worker, in the worker; True if the env was found."""
    # Its results are checked, and its last observations copied: the worker keeps its env in a local
    # variable and resets it directly after the last step, so no command can run in between. The
    # class is patched rather than the env, so that copies of the env (made by a planner) still
    # work; there is no other env in this process.
    local = sys._getframe(1).f_locals
    env = local.get("env")
    if not isinstance(env, gym.Env):
        return False
    vars(env).pop(_NAME, None)  # no longer needed
    place, mode = local.get("index", 0), local.get("autoreset_mode")
    results = _results_of(env.observation_space, place, mode)
    for name, exact in (("step", _exact_step), ("reset", _exact_reset)):
        of_class = inspect.isfunction(getattr(type(env), name)) and name not in vars(env)
        owner: Any = type(env) if of_class else env  # pyright: ignore[reportUnknownVariableType]
        method = getattr(owner, name)
        if not hasattr(method, "is_exact"):
            setattr(owner, name, exact(method, env, results, of_class))
            vars(getattr(owner, name))["is_exact"] = True
    return True


def _exact_step(step: Any, env: Any, results: EnvResults, of_class: bool) -> Any:
    """Wrap a step function so that it checks, and returns copies at the end of an episode."""

    @functools.wraps(step)
    def exact(*args: Any) -> Any:  # the env, if `step` is the class's function, and the action
        result = step(*args)
        if of_class and args[0] is not env:
            return result
        observation, reward, terminated, truncated, info = results.step(result)
        if terminated or truncated:
            observation, info = copy.deepcopy(observation), owned_value(info)
        return observation, reward, terminated, truncated, info

    return exact


def _exact_reset(reset: Any, env: Any, results: EnvResults, of_class: bool) -> Any:
    """Wrap a reset function so that it checks."""

    @functools.wraps(reset)
    def exact(
        *args: Any, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:  # the env, if `reset` is the class's function
        if of_class and args[0] is not env:
            return reset(*args, seed=seed, options=options)
        return results.reset(results.call_reset(functools.partial(reset, *args), seed, options))

    return exact


def _results_of(space: gym.Space[Any], place: int, mode: AutoresetMode | None) -> EnvResults:
    in_same_step = mode is AutoresetMode.SAME_STEP
    return EnvResults(space, f"env {place}", in_same_step=in_same_step)


class OverwriteDetector:
    """Detects last observations that were overwritten, by their memory."""

    # For vector envs of other libraries, whose work between an env's last step and its reset is not
    # visible. Values are not compared with those of the reset, since an episode may end where it
    # began.

    def __init__(self) -> None:
        self._held: list[tuple[int, npt.NDArray[Any], bytes]] = []

    def begin_step(self) -> None:
        """Take the last observations as they are now, if others than the env may write to them."""
        self._held = [(env, leaf, leaf.tobytes()) for env, leaf, _ in self._held]

    def overwritten(self, ended: npt.NDArray[np.bool_]) -> int | None:
        """Return an env whose last observation the following step has overwritten, or None."""
        # Those whose episode ``ended`` [N] in this step may reuse the array for their new last one.
        held, self._held = self._held, []
        for env, leaf, content in held:
            if not ended[env] and leaf.tobytes() != content:
                return env
        return None

    def is_lost(self, env: int, final: _Leaves, batch: _Leaves) -> bool:
        """True if a last observation shares memory with the observations [N, ...] of the reset."""
        # Neither of them is copied: ``batch`` is what the same step returned.
        self._held += [(env, leaf, leaf.tobytes()) for leaf in final]
        return any(map(np.shares_memory, final, batch))
