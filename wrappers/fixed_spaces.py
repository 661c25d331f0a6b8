"""Wrappers that give texts, sequences, graphs and alternatives as arrays of a fixed shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, iterate

from ..buffers.spec.open_spaces import (
    check_lengths,
    decode,
    encode_batch,
    encode_parts,
    fixed_space,
    has_open_parts,
    join_values,
)
from .env_results import RecordedWrapper, reset_of, step_of


class FixedSpaces(RecordedWrapper[Any, Any]):
    """Give texts, sequences, graphs and alternatives as arrays, and take such actions as arrays.

    Each becomes a Dict of padded arrays with lengths and masks, as `fixed_space` describes it; the
    values are the same, exactly. `make_vec`, `Collector`, `record` and `evaluate` use this wrapper
    where an env needs it, so that it is only applied by hand to give more room.

    Args:
        env: Any env.
        lengths: The most characters or items by field name; see `fixed_space`.

    Raises:
        ValueError: In `reset` and `step`: a value is longer than there is room for.

    Example:
        >>> import gymnasium
        >>> from gymnasium import spaces
        >>> class Talking(gymnasium.Env):
        ...     observation_space, action_space = spaces.Text(8), spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         return "hello", {}
        >>> observation, info = FixedSpaces(Talking()).reset()
        >>> int(observation["length"]), observation["value"]
        (5, array([104, 101, 108, 108, 111,   0,   0,   0], dtype=uint8))
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], lengths: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(env, {"lengths": lengths})
        self.lengths = dict(lengths or {})
        check_lengths(self.lengths)
        self.observation_space = fixed_space(env.observation_space, "observation", lengths)
        self.action_space = fixed_space(env.action_space, "action", lengths)
        self._decodes = self.action_space is not env.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env."""
        observation, info = reset_of(self.env.reset(seed=seed, options=options), "the env")
        return self._encoded(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env with the action that the arrays hold."""
        if self._decodes:
            action = decode(self.action_space, action)
        observation, reward, terminated, truncated, info = step_of(self.env.step(action), "the env")
        return self._encoded(observation), reward, terminated, truncated, info

    def _encoded(self, observation: Any) -> Any:
        space = self.observation_space
        if space is self.env.observation_space:
            return observation
        return encode_parts(space, observation)


class FixedVectorSpaces(VectorWrapper):
    """`FixedSpaces` for a vector env whose envs are not wrapped one by one."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.single_observation_space = fixed_space(env.single_observation_space, "observation")
        self.single_action_space = fixed_space(env.single_action_space, "action")
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the envs."""
        given: Any = seed  # a list where the inner vector env takes one
        return self.encoded_reset(self.env.reset(seed=given, options=options))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the envs with the actions that the arrays hold."""
        inner = self.env.single_action_space
        if self.single_action_space is not inner:
            fixed = self.single_action_space
            items = [decode(fixed, one) for one in iterate(self.action_space, actions)]
            actions = join_values(inner, items)
        return self.encoded_step(self.env.step(actions))

    def encoded_actions(self, actions: Any) -> Any:
        """Actions of the inner envs as arrays."""
        space = self.single_action_space
        if space is self.env.single_action_space:
            return actions
        return encode_batch(space, actions, self.num_envs)

    def encoded_reset(self, result: tuple[Any, Any]) -> tuple[Any, Any]:
        """The result of a reset of the inner envs, with observations as arrays."""
        return self._encoded(result[0]), result[1]

    def encoded_step(
        self, result: tuple[Any, Any, Any, Any, Any]
    ) -> tuple[Any, Any, Any, Any, Any]:
        """The result of a step of the inner envs, with observations as arrays."""
        observation, reward, terminated, truncated, info = result
        if "final_obs" in info and self._is_changed:
            finals = np.empty(self.num_envs, object)
            for env, last in enumerate(info["final_obs"]):
                if last is not None:
                    finals[env] = encode_parts(self.single_observation_space, last)
            info = {**info, "final_obs": finals}
        return self._encoded(observation), reward, terminated, truncated, info

    @property
    def _is_changed(self) -> bool:
        return self.single_observation_space is not self.env.single_observation_space

    def _encoded(self, observation: Any) -> Any:
        if not self._is_changed:
            return observation
        space = self.single_observation_space
        singles = iterate(self.env.observation_space, observation)
        return join_values(space, [encode_parts(space, one) for one in singles])


def with_fixed_spaces(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap an env in `FixedSpaces`, if a space of it needs that."""
    is_open = has_open_parts(env.observation_space) or has_open_parts(env.action_space, empty=True)
    return FixedSpaces(env) if is_open else env


def with_fixed_vector_spaces(envs: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Wrap a vector env in `FixedVectorSpaces`, if a space of it needs that."""
    is_open = any(map(has_open_parts, (envs.single_observation_space, envs.single_action_space)))
    return FixedVectorSpaces(envs) if is_open else envs


def require_divisible(envs: VectorEnv[Any, Any, Any]) -> None:
    """Refuse a vector env of Gymnasium's with an empty Dict or Tuple in its actions."""
    # Its step would fail, as it cannot divide such actions among its envs.
    space = envs.single_action_space
    is_theirs = isinstance(envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
    if is_theirs and has_open_parts(space, empty=True) and not has_open_parts(space):
        raise ValueError(
            f"action space {space}: expected no empty Dict or Tuple in it, which Gymnasium's "
            f"vector envs cannot divide among envs; make the envs with stepwell.make_vec"
        )
