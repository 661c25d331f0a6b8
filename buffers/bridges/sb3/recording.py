"""Transitions of several envs that come a step at a time, written as the rows of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from stepwell.buffers.episode_buffer import EpisodeBuffer
from stepwell.buffers.errors import SpecMismatch
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Spec, flatten

__all__ = ["TransitionRecorder"]


class TransitionRecorder:
    """Writes what a loop of another library steps into a replay.

    Args:
        replay: Where the rows go; bound here.
        spec: The fields of every row.
        num_envs: Number of envs N; env i writes stream i.
        facts: JSON-able facts about what the rows are, which must not change.

    Raises:
        SpecMismatch: The replay holds other rows.

    Example:
        >>> import gymnasium as gym
        >>> from stepwell.buffers import SequenceReplayBuffer
        >>> env = gym.make("CartPole-v1")
        >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
        >>> replay = SequenceReplayBuffer(seed=0)
        >>> recorder = TransitionRecorder(replay, spec, 1, {"maker": "an example"})
        >>> for step in range(3):
        ...     before, after = np.full((2, 1, 4), [[[step]], [[step + 1]]], np.float32)
        ...     flags = {"terminated": np.array([step == 2]), "truncated": np.array([False])}
        ...     recorder.add(before, after, np.array([1]), np.ones(1), **flags)
        >>> recorder.flush()
        >>> [(episode.steps, episode.terminated[-1].item()) for episode in replay.iter_episodes()]
        [(3, True)]
    """

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        spec: Spec,
        num_envs: int,
        facts: Mapping[str, object],
    ) -> None:
        replay.bind(spec, {"recipe": dict(facts), "num_envs": num_envs})
        self._replay = replay
        self._spec = replay.spec
        self._buffer = EpisodeBuffer(
            self._spec,
            num_envs,
            capacity=replay.capacity,
            next_episode=replay.storage.table.next_episode,
        )
        self._all = np.arange(num_envs)
        self._is_open = np.zeros(num_envs, np.bool_)
        self._newest: dict[str, np.ndarray] = {}  # what the last step led to
        self._added = replay.steps

    @property
    def waiting(self) -> int:
        """Steps that are not stored yet."""
        return self._added - self._replay.steps

    def add(
        self,
        observation: Any,
        next_observation: Any,
        action: Any,
        reward: np.ndarray,
        *,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        """Take up a step of all envs; everything is copied.

        Args:
            observation: ``[N, ...]``, nested like the env's space; stacks in full.
            next_observation: What the step led to, at an episode's end its true last observation.
            action: ``[N, ...]``, nested like the env's space.
            reward: [N] float64.
            terminated: [N] bool: the MDP ended with the step.
            truncated: [N] bool: the env's clock ended the episode with the step.

        Raises:
            SpecMismatch: Something has another dtype or shape, or is no stack of frames.
        """
        before = self._leaves(self._spec.observation, observation)
        after = self._leaves(self._spec.observation, next_observation)
        chosen = self._leaves(self._spec.action, action)
        self._begin(before)
        self._buffer.act(chosen)
        self._store_due()
        try:
            self._buffer.observe(
                {**after, "reward": reward},
                terminated=terminated if terminated.any() else None,
                truncated=truncated if truncated.any() else None,
            )
        except SpecMismatch:  # what the action brought is not known: nothing goes on from there
            self._buffer.cut()
            self._is_open[:] = False
            raise
        self._store_due()
        self._newest = {name: rows.copy() for name, rows in after.items()}
        self._is_open = ~(terminated | truncated)
        self._added += len(self._all)

    def flush(self) -> None:
        """Store all rows there are."""
        chunks = self._buffer.take(everything=True)
        if chunks:
            self._replay.add(chunks)

    def catch_up(self) -> None:
        """`flush`, unless less than a thousandth of what can be drawn would come in.

        Each flush makes a chunk for every env: so it is a thousandth for each of them, and a
        hundredth at most.
        """
        if self.waiting * 1000 >= len(self._replay) * min(10, len(self._all)):
            self.flush()

    def _begin(self, before: Mapping[str, np.ndarray]) -> None:
        """The row of a reset, for envs that do not go on from where they were."""
        is_first = ~self._is_open
        for name, rows in before.items():
            if self._newest:
                is_first |= (_bytes(rows) != _bytes(self._newest[name])).any(axis=1)
        envs = self._all[is_first]
        if len(envs):
            self._buffer.observe(
                {**{n: rows[envs] for n, rows in before.items()}, "reward": np.zeros(len(envs))},
                is_first=np.ones(len(envs), np.bool_),
                env_ids=None if len(envs) == len(self._all) else envs,
            )
            self._store_due()

    def _leaves(self, layout: Any, value: Any) -> dict[str, np.ndarray]:
        """The fields of a nested value, checked.

        Raises:
            SpecMismatch: One has another dtype or shape.
        """
        found: dict[str, np.ndarray] = {}
        for name, leaf in flatten(layout, value):
            rows, field = np.asarray(cast("Any", leaf)), self._spec[name]
            shape = (len(self._all), *field.source_shape)
            if rows.dtype != field.numpy_dtype or rows.shape != shape:
                raise SpecMismatch(
                    f"field {name!r}: expected {field.numpy_dtype} {shape}, got {rows.dtype} "
                    f"{rows.shape}; convert it before it is added"
                )
            found[name] = rows
        return found

    def _store_due(self) -> None:
        if self._buffer.is_due:
            chunks = self._buffer.take()
            if chunks:
                self._replay.add(chunks)


def _bytes(rows: np.ndarray) -> np.ndarray:
    """[N, bytes]: equal where the rows are, not-a-numbers included."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
