"""An env of spaces without a fixed shape, whose values follow from its seed and the step."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
from gymnasium import spaces

from support.envs.fakes import EpisodesEnv

OBSERVATION = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 4), np.uint8),
        "mission": spaces.Text(12, min_length=0, charset="abcé "),
        "objects": spaces.Sequence(
            spaces.Dict({"name": spaces.Text(3), "place": spaces.Box(-1, 1, (2,))})
        ),
        "track": spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
        "graph": spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(4)),
        "points": spaces.Graph(spaces.Discrete(5), None),
        "either": spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,)), spaces.Text(4)]),
        "pair": spaces.Tuple([spaces.Text(2), spaces.MultiBinary(3)]),
    }
)
ACTION = spaces.Dict(
    {
        "say": spaces.Text(5, min_length=0),
        "move": spaces.OneOf([spaces.Discrete(4), spaces.Box(-1, 1, (2,))]),
        "plan": spaces.Sequence(spaces.Discrete(6)),
    }
)


def plain(value: Any) -> Any:
    """A value of any space in a form that can be compared, with dtypes and shapes."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in sorted(value.items())}
    if isinstance(value, spaces.GraphInstance):
        return [plain(value.nodes), plain(value.edges), plain(value.edge_links)]
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return (str(value.dtype), value.shape, np.asarray(value).tolist())
    return value


def value_at(space: spaces.Space[Any], seed: int, step: int) -> Any:
    """The observation of a step of an env with that seed."""
    own = copy.deepcopy(space)
    own.seed(seed % 1000 * 1000 + step)
    return own.sample()


def reward_of(action: Any) -> float:
    """A number that any other action would hardly give."""
    return zlib.crc32(repr(plain(action)).encode()) / 2**32


class OpenEnv(EpisodesEnv):
    """Observations are `value_at`, rewards `reward_of` the action; it ends after L steps."""

    def __init__(
        self,
        observation: spaces.Space[Any] = OBSERVATION,
        action: spaces.Space[Any] = ACTION,
        length: int = 4,
    ) -> None:
        super().__init__(length)
        self.observation_space = copy.deepcopy(observation)
        self.action_space = copy.deepcopy(action)
        self._seed = 0

    def observation(self) -> Any:
        return value_at(self.observation_space, self._seed, self.t)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode; without a seed that of the next one."""
        self._seed = self._seed + 1 if seed is None else seed
        return super().reset(seed=seed)[0], {"own_seed": self._seed}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The next observation."""
        assert self.action_space.contains(action), action
        observation, _, is_over, *_ = super().step(action)
        return observation, reward_of(action), is_over, False, {"own_seed": self._seed}
