"""A slow model that is obviously right: single envs, stepped one by one, rows kept in lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import stepwell as sw
from stepwell.buffers.rows.episode import Episode

AnyEnv = gym.Env[Any, Any]


@dataclass(eq=False)
class ModelEpisode:
    """The rows of one env from a reset on; the last action is None: not chosen yet."""

    stream: int
    number: int
    observations: list[Any]
    seed: int | None = None
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
        envs: One env for each stream; it may report the seed of a reset.
        policy: The action for one observation.
        mode: NEXT_STEP: a reset takes a turn. Otherwise it is in the turn of the episode's end.
        seed_of: The seed of an env's n-th reset that is seeded though not all envs are reset; None
            where no such reset is.
        reseed_steps: Steps of an env since its last seed, after which its next reset gets one. It
            never takes a turn. In DISABLED mode every reset gets one.
    """

    def __init__(
        self,
        envs: Sequence[AnyEnv],
        policy: Callable[[Any], Any],
        *,
        mode: AutoresetMode,
        seed_of: Callable[[int, int], int] | None = None,
        reseed_steps: int = 50_000,
    ) -> None:
        self.envs: Sequence[AnyEnv] = list(envs)
        self.policy = policy
        self.mode = mode
        self.seed_of = seed_of
        self.reseed_steps = 0 if mode is AutoresetMode.DISABLED else reseed_steps
        self.steps_since_seed = [0] * len(self.envs)
        self.reseeds = [0] * len(self.envs)
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
        for stream in range(len(self.envs)):
            self.current.append(self._reset(stream, seed + stream))

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
        for stream in range(len(self.envs)):
            if self.current[stream].has_ended:
                self.current[stream] = self._reset(stream)
            else:
                steps += self._step(stream)
        self._reset_ended()
        return steps

    def _step(self, stream: int) -> bool:
        """Step one env; tells if the step is recorded."""
        episode = self.current[stream]
        action = episode.actions[-1] = self.policy(episode.observations[-1])
        observation, reward, terminated, truncated, _ = self.envs[stream].step(action)
        self.steps_since_seed[stream] += 1
        episode.actions.append(None)
        episode.observations.append(copied(observation))
        episode.rewards.append(float(np.asarray(reward).item()))
        episode.terminated, episode.truncated = bool(terminated), bool(truncated)
        return any(episode is one for one in self.chosen)

    def _reset_ended(self) -> None:
        """The resets in the turn of an end: first those without a seed, as a vector env does."""
        ended = [stream for stream, one in enumerate(self.current) if one.has_ended]
        seeded = [
            stream
            for stream in ended
            if self.seed_of is not None and self.steps_since_seed[stream] >= self.reseed_steps
        ]
        if self.mode is AutoresetMode.SAME_STEP:
            for stream in ended:
                if stream in seeded:
                    self.envs[stream].reset()  # which the vector env does anyway; then once more
                else:
                    self.current[stream] = self._reset(stream)
        for stream in ended:
            if stream in seeded:
                assert self.seed_of is not None
                seed = self.seed_of(stream, self.reseeds[stream])
                self.reseeds[stream] += 1
                self.current[stream] = self._reset(stream, seed)
            elif self.mode is AutoresetMode.DISABLED:
                self.current[stream] = self._reset(stream)

    def _reset(self, stream: int, seed: int | None = None) -> ModelEpisode:
        observation, info = self.envs[stream].reset(seed=seed)
        seed = info.get("reset_seed", seed)
        if seed is not None:
            self.steps_since_seed[stream] = 0
        return self._started(stream, observation, seed)

    def _started(self, stream: int, observation: Any, seed: int | None) -> ModelEpisode:
        number = sum(episode.stream == stream for episode in self.started)
        episode = ModelEpisode(stream, number, [copied(observation)], seed)
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


def check_rows(replay: sw.SequenceReplayBuffer) -> None:
    """Every stored episode of a `CounterEnv` counts from 0 without a gap."""
    for episode in replay.iter_episodes():
        rows = np.asarray(episode.observation)
        assert rows[:, 1].tolist() == list(range(episode.rows))
        assert len(np.unique(rows[:, [0, 2]], axis=0)) == 1
    assert sum(e.steps for e in replay.iter_episodes()) == replay.steps


def assert_episode(stored: Episode, expected: ModelEpisode) -> None:
    """A stored episode holds exactly the model's rows."""
    where = f"stream {expected.stream}, episode {expected.number}"
    assert stored.stream == expected.stream, where
    assert stored.rows == len(expected.observations), where
    assert stored.metadata.get("seed") == expected.seed, where
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


def assert_stored(
    replay: sw.SequenceReplayBuffer, expected: Iterable[ModelEpisode], *, by_stream: bool = False
) -> None:
    """The replay holds exactly the model's episodes, in the order of their starts, or by stream."""
    stored, wanted = list(replay.iter_episodes()), list(expected)
    if by_stream:
        stored.sort(key=lambda e: (e.stream, e.id))
        wanted.sort(key=lambda e: (e.stream, e.number))
    found = [(e.stream, e.steps) for e in stored]
    assert found == [(e.stream, e.steps) for e in wanted]
    for one, other in zip(stored, wanted, strict=True):
        assert_episode(one, other)
    assert len({episode.id for episode in stored}) == len(stored)
    assert replay.steps == len(replay) == sum(episode.steps for episode in wanted)
