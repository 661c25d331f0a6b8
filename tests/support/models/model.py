"""A slow model that is obviously right: single envs, stepped one by one, rows kept in lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

import stepwell as sw
from stepwell.buffers.episode import Episode

AnyEnv = gym.Env[Any, Any]


@dataclass(eq=False)
class ModelEpisode:
    """The rows of one env from a reset on; the last action is None: not chosen yet."""

    stream: int
    number: int
    observations: list[Any]
    rewards: list[float] = field(default_factory=lambda: [0.0])
    actions: list[Any] = field(default_factory=lambda: [None])
    terminated: bool = False
    truncated: bool = False

    @property
    def steps(self) -> int:
        return len(self.observations) - 1

    @property
    def has_ended(self) -> bool:
        return self.terminated or self.truncated


class Model:
    """N single envs in turns, as a vector env would step them, with a policy of one observation.

    Args:
        envs: One env for each stream.
        policy: The action for one observation.
        reset_takes_a_turn: NEXT_STEP autoreset; otherwise the env is reset in the turn of its end.
    """

    def __init__(
        self, envs: Sequence[AnyEnv], policy: Callable[[Any], Any], *, reset_takes_a_turn: bool
    ) -> None:
        self.envs = list(envs)
        self.policy = policy
        self.reset_takes_a_turn = reset_takes_a_turn
        self.current: list[ModelEpisode] = []
        self.started: list[ModelEpisode] = []
        self.chosen: list[ModelEpisode] = []
        self.open_slots: float = 0

    @property
    def episodes(self) -> list[ModelEpisode]:
        """The episodes that must be stored, in the order of their starts; a reset alone is none."""
        return [episode for episode in self.chosen if episode.steps]

    def reset(self, seed: int, episodes: float = float("inf")) -> None:
        """Reset all envs; so many of the episodes that begin from now on are recorded."""
        self.current, self.open_slots = [], episodes
        for stream, env in enumerate(self.envs):
            self.current.append(self._begin(stream, env.reset(seed=seed + stream)[0]))

    def collect(self, steps: int) -> int:
        """Step until at least so many steps were taken."""
        done = 0
        while done < steps:
            done += self._turn()
        return done

    def collect_episodes(self) -> int:
        """Step until all chosen episodes have ended."""
        done = 0
        while self.open_slots or not all(e.has_ended for e in self.current if e in self.chosen):
            done += self._turn()
        return done

    def _turn(self) -> int:
        steps = 0
        for stream, env in enumerate(self.envs):
            episode = self.current[stream]
            if episode.has_ended:
                self.current[stream] = self._begin(stream, env.reset()[0])
                continue
            action = self.policy(episode.observations[-1])
            observation, reward, terminated, truncated, _ = env.step(action)
            episode.actions[-1] = action
            episode.actions.append(None)
            episode.observations.append(copied(observation))
            episode.rewards.append(float(np.asarray(reward).item()))
            episode.terminated, episode.truncated = bool(terminated), bool(truncated)
            steps += any(episode is one for one in self.chosen)
        if not self.reset_takes_a_turn:
            for stream, env in enumerate(self.envs):
                if self.current[stream].has_ended:
                    self.current[stream] = self._begin(stream, env.reset()[0])
        return steps

    def _begin(self, stream: int, observation: Any) -> ModelEpisode:
        number = sum(episode.stream == stream for episode in self.started)
        episode = ModelEpisode(stream, number, [copied(observation)])
        self.started.append(episode)
        if self.open_slots > 0:
            self.open_slots -= 1
            self.chosen.append(episode)
        return episode


def copied(value: Any) -> Any:
    """A deep copy of a nested value."""
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(copied(part) for part in value)
    return np.array(value)


def same(stored: Any, expected: Any) -> bool:
    """Two nested values are equal, dtypes left aside."""
    if isinstance(expected, Mapping):
        return set(stored) == set(expected) and all(same(stored[k], expected[k]) for k in expected)
    if isinstance(expected, tuple):
        return len(stored) == len(expected) and all(map(same, stored, expected))
    return np.array_equal(np.asarray(stored), np.asarray(expected))


def row_of(value: Any, row: int) -> Any:
    """One row of a nested value of arrays [T, ...]."""
    if isinstance(value, Mapping):
        return {key: row_of(part, row) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(row_of(part, row) for part in value)
    return value[row]


def is_zero(value: Any) -> bool:
    """All parts of a nested value are 0."""
    if isinstance(value, Mapping):
        return all(map(is_zero, value.values()))
    if isinstance(value, tuple):
        return all(map(is_zero, value))
    return not np.any(value)


def assert_episode(stored: Episode, expected: ModelEpisode) -> None:
    """A stored episode holds exactly the model's rows."""
    where = f"stream {expected.stream}, episode {expected.number}"
    assert stored.stream == expected.stream, where
    assert stored.rows == len(expected.observations), where
    for row, observation in enumerate(expected.observations):
        assert same(row_of(stored.observation, row), observation), f"{where}, row {row}"
    for row, action in enumerate(expected.actions):
        given = row_of(stored.action, row)
        right = is_zero(given) if action is None else same(given, action)
        assert right, f"action of {where}, row {row}: stored {given}, expected {action}"
    assert stored.reward.tolist() == expected.rewards, where
    assert stored.is_first.tolist() == [True] + [False] * expected.steps, where
    last = [False] * expected.steps
    assert stored.is_last.tolist() == [*last, True], where
    assert stored.terminated.tolist() == [*last, expected.terminated], where
    assert stored.truncated.tolist() == [*last, expected.truncated], where
    assert stored.cut.tolist() == [*last, not expected.has_ended], where


def assert_stored(replay: sw.SequenceReplayBuffer, expected: Iterable[ModelEpisode]) -> None:
    """The replay holds exactly the model's episodes, in the order of their starts."""
    stored, wanted = list(replay.iter_episodes()), list(expected)
    found = [(e.stream, e.steps) for e in stored]
    assert found == [(e.stream, e.steps) for e in wanted]
    for one, other in zip(stored, wanted, strict=True):
        assert_episode(one, other)
    assert len({episode.id for episode in stored}) == len(stored)
    assert replay.steps == len(replay) == sum(episode.steps for episode in wanted)
