"""Envs whose observations contain env, episode and step, in spaces of Stable-Baselines3.

What each env did is known beforehand, as a plain list of episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

# Names of observation and action spaces.
Kind: TypeAlias = str
Action: TypeAlias = str
KINDS: tuple[Kind, ...] = ("vector", "image last", "image first", "dict", "discrete", "many")
ACTIONS: tuple[Action, ...] = ("discrete", "box", "many", "bits")
# Lengths and ends of the episodes of each env, gone through again and again.
PLANS = (
    ((3, "truncated"), (1, "terminated"), (4, "both"), (1, "truncated")),
    ((2, "terminated"), (5, "truncated"), (1, "both")),
    ((4, "truncated"), (2, "truncated"), (3, "terminated")),
)
_HIGH = 40  # more than any tag
_SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1e6, (4,), np.float32),
    "image last": spaces.Box(0, 255, (8, 9, 3), np.uint8),
    "image first": spaces.Box(0, 255, (3, 8, 9), np.uint8),
    "stack": spaces.Box(0, 255, (1, 8, 9), np.uint8),
    "discrete": spaces.Discrete(_HIGH**3),
    "many": spaces.MultiDiscrete([_HIGH, _HIGH, _HIGH]),
}
_SPACES["dict"] = spaces.Dict({key: _SPACES[key] for key in ("vector", "image last", "discrete")})
_ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(np.array([-1, -2, 0], np.float32), np.array([1, 2, 5], np.float32)),
    "many": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(2),
}


class Tag(NamedTuple):
    """The env, episode and step of an observation."""

    env: int
    episode: int
    step: int


def observation_of(kind: Kind, tag: Tag) -> Any:
    """Make the observation of a place."""
    env, episode, step = tag
    if kind == "dict":
        return {key: observation_of(key, tag) for key in ("vector", "image last", "discrete")}
    if kind == "vector":
        return np.array([env, episode, step, env * 7 + episode / 8 + step / 64], np.float32)
    if kind == "discrete":
        return np.int64((env * _HIGH + episode) * _HIGH + step)
    if kind == "many":
        return np.array([env, episode, step], np.int64)
    image = np.arange(8 * 9 * 3, dtype=np.uint8).reshape(8, 9, 3)
    image[0, 0], image[7, 8] = (env, episode, step), (step, env, episode)
    if kind == "stack":
        return image[None, ..., 0] + np.uint8(env * 31 + episode * 5 + step)
    return image if kind == "image last" else np.ascontiguousarray(np.moveaxis(image, -1, 0))


def tag_of(kind: Kind, observation: Any) -> Tag:
    """Read the place from an observation, in the env's layout or in SB3's."""
    if kind == "dict":
        tags = {tag_of(key, observation[key]) for key in ("vector", "image last", "discrete")}
        assert len(tags) == 1, tags
        return tags.pop()
    array = np.asarray(observation)
    if kind == "discrete":
        number = int(array.reshape(()))
        return Tag(number // _HIGH**2, number // _HIGH % _HIGH, number % _HIGH)
    if kind in ("vector", "many"):
        return Tag(*(int(part) for part in array[:3]))
    if array.shape == (3, 8, 9):
        array = np.moveaxis(array, 0, -1)
    tag = Tag(*(int(part) for part in array[0, 0]))
    np.testing.assert_array_equal(array, observation_of("image last", tag))
    return tag


def reward_of(tag: Tag, action: Any) -> float:
    """The reward of an action, exact as float32."""
    return tag.episode * 8 + tag.step + tag.env / 4 + float(np.sum(np.round(action))) / 16


def action_of(action: Action, tag: Tag) -> Any:
    """The action of a policy that computes it from the tag."""
    number = tag.episode * 5 + tag.step * 3 + tag.env
    if action == "discrete":
        return np.int64(number % 4)
    return np.array([(number % 5 - 2) / 2, number % 3 - 1, number % 6 % 5], np.float32)


def row_of(observation: Any, n: int) -> Any:
    """The observation of one env."""
    if isinstance(observation, dict):
        return {key: part[n] for key, part in observation.items()}
    return observation[n]


def joined(space: Any) -> Any:
    """SB3's network for dicts without the one for images in it, which needs larger ones."""
    import torch
    from stable_baselines3.common.preprocessing import get_flattened_obs_dim
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Joined(BaseFeaturesExtractor):
        def forward(self, seen: Any) -> Any:
            # In the space's order: SB3 passes last observations in the env's.
            return torch.cat([seen[key].flatten(1).float() for key in space.spaces], dim=1)

    return Joined(space, sum(map(get_flattened_obs_dim, space.spaces.values())))


class TagEnv(gym.Env[Any, Any]):
    """Shows its tag; episodes end as the plan says."""

    def __init__(
        self,
        tag: int = 0,
        kind: Kind = "vector",
        action: Action = "discrete",
        plan: Sequence[tuple[int, str]] = PLANS[0],
    ) -> None:
        self.tag, self.kind, self.plan = tag, kind, plan
        self.observation_space = _SPACES[kind]
        self.action_space = _ACTIONS[action]
        self.episode, self.t = -1, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return observation_of(self.kind, self._now), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = reward_of(self._now, action)
        self.t += 1
        length, end = self.plan[self.episode % len(self.plan)]
        over = self.t >= length
        terminated, truncated = over and end != "truncated", over and end != "terminated"
        return observation_of(self.kind, self._now), reward, terminated, truncated, {}

    @property
    def _now(self) -> Tag:
        return Tag(self.tag, self.episode, self.t)


def makers(kind: Kind, action: Action, envs: int = 3) -> list[Any]:
    """Functions that make the envs."""
    return [partial(TagEnv, tag, kind, action, PLANS[tag % 3]) for tag in range(envs)]


def vector_env(
    kind: Kind, action: Action, mode: AutoresetMode = AutoresetMode.SAME_STEP, envs: int = 3
) -> SyncVectorEnv:
    """The envs as a Collector takes them."""
    return SyncVectorEnv(makers(kind, action, envs), autoreset_mode=mode)
