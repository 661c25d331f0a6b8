"""Keep infos and last observations unchanged until they are stored.

Gymnasium's vector envs lose two things before the caller sees them:

- In SAME_STEP mode ``info["final_obs"]`` holds the array that the env returned, and the env is
  reset immediately. An env that reuses its observation array has overwritten it by then.
- ``_add_info`` casts each env's info to the type of the first env's: 1/3 after 1 becomes 0.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from stepwell.wrappers.owned_copies import owned_value
from stepwell.wrappers.workers.infos import add_info

_NAME = "_stepwell_copy_last_observations"
_Leaves = Sequence[npt.NDArray[Any]]


class ExactInfos:
    """Context manager in which Gymnasium's vector envs return infos and last observations exactly.

    Enter it for each call of ``reset`` and ``step``. Inside, the vector env joins infos with
    `add_info`, and copies last observations before it resets an env. Vector envs with their own
    ``_add_info`` are not changed.

    Args:
        envs: The vector env, with or without vector wrappers.

    Example:
        >>> from gymnasium.vector import SyncVectorEnv
        >>> envs = SyncVectorEnv([lambda: gym.make("FrozenLake-v1")] * 2)
        >>> with ExactInfos(envs):
        ...     observation, info = envs.reset(seed=0)
        >>> info["prob"]
        array([1, 1])
        >>> envs.close()
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self._inner: Any = envs.unwrapped
        self._is_needed = type(self._inner)._add_info is VectorEnv._add_info
        self._is_prepared = False

    def prepare(self) -> None:
        """Make the workers of an `AsyncVectorEnv` copy last observations; only the first call acts.

        Raises:
            ValueError: The workers are not Gymnasium's own.
        """
        if self._is_prepared or not isinstance(self._inner, AsyncVectorEnv):
            return
        if self._inner.autoreset_mode is AutoresetMode.SAME_STEP:
            self._inner.set_attr(_NAME, copy_last_observations)
            if not all(self._inner.call(_NAME)):
                raise ValueError(
                    "AsyncVectorEnv in SAME_STEP mode: expected Gymnasium's own worker, got "
                    f"{self._inner.worker!r}, which cannot copy a last observation before the "
                    "reset; use autoreset mode NEXT_STEP, or stepwell.make_vec"
                )
        self._is_prepared = True

    def __enter__(self) -> None:
        if self._is_needed:
            self._inner._add_info = self._add_info

    def __exit__(self, *_: object) -> None:
        if self._is_needed:
            # Not through `vars`: an object whose `__dict__` was ever asked for is slower for good.
            try:  # takes less time than `contextlib.suppress`
                del self._inner._add_info
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


def copy_last_observations() -> bool:
    """Patch the env of an `AsyncVectorEnv` worker to copy last observations; called in the worker.

    The worker keeps its env in a local variable and resets it directly after the last step, so no
    command can run in between. The class is patched rather than the env, so that copies of the env
    (made by a planner) still work; there is no other env in this process.

    Returns:
        True if the env was found.
    """
    env = sys._getframe(1).f_locals.get("env")
    if not isinstance(env, gym.Env):
        return False
    vars(env).pop(_NAME, None)  # no longer needed
    of_class = inspect.isfunction(type(env).step) and "step" not in vars(env)
    owner: Any = type(env) if of_class else env  # pyright: ignore[reportUnknownVariableType]
    if not hasattr(owner.step, "copies_last"):
        owner.step = _copying(owner.step)
    return True


def _copying(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step function so that it returns copies at the end of an episode."""

    @functools.wraps(step)
    def copying(*args: Any) -> Any:  # the env, if `step` is the class's function, and the action
        observation, reward, terminated, truncated, info = step(*args)
        if terminated or truncated:
            observation, info = copy.deepcopy(observation), owned_value(info)
        return observation, reward, terminated, truncated, info

    vars(copying)["copies_last"] = True
    return copying


class OverwriteDetector:
    """Detects last observations that were overwritten, by their memory.

    For vector envs of other libraries, whose work between an env's last step and its reset is not
    visible. Values are not compared with those of the reset, since an episode may end where it
    began.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, npt.NDArray[Any], bytes]] = []

    def begin_step(self) -> None:
        """Take the last observations as they are now, if others than the env may write to them."""
        self._held = [(env, leaf, leaf.tobytes()) for env, leaf, _ in self._held]

    def overwritten(self, ended: npt.NDArray[np.bool_]) -> int | None:
        """Return an env whose last observation was overwritten by the following step, or None.

        Args:
            ended: Mask [N] of the envs whose episode ended in this step; they may reuse the array
                for their new last observation.
        """
        held, self._held = self._held, []
        for env, leaf, content in held:
            if not ended[env] and leaf.tobytes() != content:
                return env
        return None

    def is_lost(self, env: int, final: _Leaves, batch: _Leaves) -> bool:
        """Return True if a last observation shares memory with the observations of the reset.

        Args:
            env: Index of the env.
            final: Arrays of its last observation, not copied.
            batch: Arrays [N, ...] of the observations that the same step returned, not copied.
        """
        self._held += [(env, leaf, leaf.tobytes()) for leaf in final]
        return any(map(np.shares_memory, final, batch))
