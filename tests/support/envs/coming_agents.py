"""A parallel env of PettingZoo whose agents come and go, and the slow log of what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

import stepwell as sw

NAMES = ("b", "a", "c10", "c9")  # neither sorted nor of one length
ORDER: list[str] = sorted(NAMES)
SEEN = spaces.Dict(
    {"mask": spaces.MultiBinary(3), "place": spaces.Box(-np.inf, np.inf, (3,), np.float32)}
)


class ComingAndGoing:
    """Agents come, end and come back by chance; observations name episode, agent and step."""

    metadata: ClassVar = {"name": "coming_and_going", "render_modes": []}

    def __init__(self, most_steps: int = 12) -> None:
        self.possible_agents = list(NAMES)
        self.agents: list[str] = []
        self.most_steps = most_steps

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return SEEN

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.rng = np.random.default_rng(seed)
        self.code = float(self.rng.integers(1, 1 << 20))
        self.t = 0
        self.agents = [name for name in NAMES if self.rng.random() < 0.5] or ["a"]
        return self._seen(self.agents), {name: {"born": 0} for name in self.agents}

    def step(self, actions: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        assert all(type(action) is int for action in actions.values())
        self.t += 1
        rewards = {name: float(self.rng.normal()) + actions[name] for name in self.agents}
        terminated = {name: self.rng.random() < 0.1 for name in self.agents}
        is_late = self.t >= self.most_steps
        truncated = {name: is_late or self.rng.random() < 0.1 for name in self.agents}
        acted = list(self.agents)
        self.agents = [name for name in acted if not (terminated[name] or truncated[name])]
        if not is_late:
            came = [n for n in NAMES if n not in acted and self.rng.random() < 0.2]
            self.agents = [*came, *self.agents]
        return self._seen({*acted, *self.agents}), rewards, terminated, truncated, {}

    def _seen(self, names: Any) -> dict[str, Any]:
        return {
            name: {
                "place": np.array([self.code, ORDER.index(name), self.t], np.float32),
                "mask": self.rng.integers(0, 2, 3).astype(np.int8),
            }
            for name in sorted(names)
        }


@dataclass
class Life:
    """One agent from its coming to its end, as the bare env gave it; rows T + 1."""

    agent: str
    seen: list[dict[str, np.ndarray]]
    action: list[int] = field(default_factory=list[int])
    reward: list[float] = field(default_factory=list[float])
    terminated: bool = False
    truncated: bool = False

    @property
    def key(self) -> tuple[int, ...]:
        """Episode, agent and step of the first row."""
        return key_of(self.seen[0]["place"])


def key_of(place: np.ndarray) -> tuple[int, ...]:
    return tuple(int(number) for number in place)


@dataclass
class JointRow:
    """One row of the bare env."""

    seen: dict[str, dict[str, np.ndarray]]
    live: list[str]
    reward: dict[str, float]
    terminated: dict[str, bool]
    truncated: dict[str, bool]


def play(
    seed: int, actions: list[dict[str, int]], **kwargs: Any
) -> tuple[list[JointRow], list[Life]]:
    """Step a bare env with given actions, and log its rows and the lives of its agents."""
    env = ComingAndGoing(**kwargs)
    seen, _ = env.reset(seed=seed)
    rows = [JointRow(seen, list(env.agents), {}, {}, {})]
    open_lives = {name: Life(name, [seen[name]]) for name in env.agents}
    lives = list(open_lives.values())
    for action in actions:
        acted = list(env.agents)
        seen, reward, terminated, truncated, _ = env.step({n: action[n] for n in acted})
        rows.append(JointRow(seen, list(env.agents), reward, terminated, truncated))
        for name in acted:
            life = open_lives[name]
            life.seen.append(seen[name])
            life.action.append(action[name])
            life.reward.append(reward[name])
            life.terminated, life.truncated = terminated[name], truncated[name]
        for name in env.agents:
            if name not in acted:
                open_lives[name] = Life(name, [seen[name]])
                lives.append(open_lives[name])
    return rows, lives


def joint_env(most_steps: int = 12) -> gymnasium.Env[Any, Any]:
    """The adapted env, by a name that other processes can import."""
    return sw.from_pettingzoo(ComingAndGoing(most_steps))
