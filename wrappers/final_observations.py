"""Keep what a vector env's envs gave from being changed before it is stored.

Gymnasium's vector envs lose two things, each before the caller can do anything about it:

- In SAME_STEP mode ``info["final_obs"]`` holds the array that the env returned, and the env is
  reset at once. An env that writes its observations into one array has then overwritten it.
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


class InfoKeeper:
    """Steps gymnasium's vector envs so that infos and last observations arrive as they were given.

    It is a context manager for each call of ``reset`` and ``step``: within it, the vector env
    joins infos with `add_info`, and last observations are copied before the reset that follows.
    Vector envs that join infos by themselves are left as they are.

    Args:
        envs: The vector env, under whatever vector wrappers.

    Example:
        >>> from gymnasium.vector import SyncVectorEnv
        >>> envs = SyncVectorEnv([lambda: gym.make("FrozenLake-v1")] * 2)
        >>> with InfoKeeper(envs):
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
        """Let worker processes of gymnasium's copy last observations; done once.

        Raises:
            ValueError: These workers cannot be made to.
        """
        if self._is_prepared or not isinstance(self._inner, AsyncVectorEnv):
            return
        if self._inner.autoreset_mode is AutoresetMode.SAME_STEP:
            self._inner.set_attr(_NAME, copy_last_observations)
            if not all(self._inner.call(_NAME)):
                raise ValueError(
                    "AsyncVectorEnv in SAME_STEP mode: expected gymnasium's own worker, got "
                    f"{self._inner.worker!r}, in which a last observation cannot be copied before "
                    "the reset; use autoreset mode NEXT_STEP, or stepwell.make_vec"
                )
        self._is_prepared = True

    def __enter__(self) -> None:
        if self._is_needed:
            self._inner._add_info = self._add_info

    def __exit__(self, *_: object) -> None:
        if self._is_needed:
            vars(self._inner).pop("_add_info", None)

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        """Called by SyncVectorEnv with a last observation before it resets the env."""
        if "final_obs" in env_info:
            env_info = {
                key: copy.deepcopy(value) if key == "final_obs" else owned_value(value)
                for key, value in env_info.items()
            }
        return add_info(vector_infos, env_info, env_num, self._inner.num_envs)


def copy_last_observations() -> bool:
    """Called in a worker process of gymnasium's AsyncVectorEnv: its env copies from now on.

    The worker keeps its env in a local variable and resets it in the same breath, so nothing that
    it can be asked to do comes between. The class is changed rather than the env, so that copies
    of the env (a planner's) stay whole; in this process there is no other env.

    Returns:
        Whether the env was found.
    """
    env = sys._getframe(1).f_locals.get("env")
    if not isinstance(env, gym.Env):
        return False
    vars(env).pop(_NAME, None)  # it has done its work
    of_class = inspect.isfunction(type(env).step) and "step" not in vars(env)
    owner: Any = type(env) if of_class else env  # pyright: ignore[reportUnknownVariableType]
    if not hasattr(owner.step, "copies_last"):
        owner.step = _copying(owner.step)
    return True


def _copying(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step, but what it returns at an episode's end is never written again."""

    @functools.wraps(step)
    def copying(*args: Any) -> Any:  # the env, where it is its class's step, and the action
        observation, reward, terminated, truncated, info = step(*args)
        if terminated or truncated:
            observation, info = copy.deepcopy(observation), owned_value(info)
        return observation, reward, terminated, truncated, info

    vars(copying)["copies_last"] = True
    return copying


class HeldFinals:
    """Finds last observations of which the memory proves that they are not, or do not stay, so.

    For vector envs of other makes: what they do between an env's last step and its reset cannot be
    seen. Equal values prove nothing, since an episode may end where it began.
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, npt.NDArray[Any], bytes]] = []

    def written(self, ended: npt.NDArray[np.bool_]) -> int | None:
        """An env of which the step after its end wrote into the array of its last observation.

        Args:
            ended: [N] envs whose episode ended with this step, whose arrays may have been used
                for that by right.
        """
        held, self._held = self._held, []
        for env, leaf, content in held:
            if not ended[env] and leaf.tobytes() != content:
                return env
        return None

    def is_lost(self, env: int, final: _Leaves, batch: _Leaves) -> bool:
        """Whether a last observation lies in the memory of the reset's, and has been lost there.

        Args:
            env: The env's index.
            final: The arrays of its last observation, uncopied.
            batch: The arrays [N, ...] of the observations that the same step returned, uncopied.
        """
        self._held += [(env, leaf, leaf.tobytes()) for leaf in final]
        return any(map(np.shares_memory, final, batch))
