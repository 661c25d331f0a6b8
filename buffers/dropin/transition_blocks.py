"""Blocks of whole transitions of N envs, written to a replay as chunks of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Spec

__all__ = ["BlockWriter", "differing"]


@dataclass(slots=True, eq=False)
class _Open:
    """The open episode of an env: its id, the number of its newest row, and that row's reward."""

    episode: int
    row: int
    reward: float
    metadata: Mapping[str, object]


class BlockWriter:
    """Writes the transitions of N envs many steps at a time.

    The rows are those that `EpisodeBuffer.add` makes of the same transitions, one by one; that one
    asks for each step what this one asks for each episode.

    Args:
        replay: The replay to write to; bound here.
        spec: The fields of a row: observations, actions and the reward.
        num_envs: Number of envs N; env i writes stream i.
        facts: JSON-able facts about what the rows are, which must not change.

    Raises:
        SpecMismatch: The replay holds other rows.

    Example:
        >>> from gymnasium import spaces
        >>> replay = SequenceReplayBuffer(seed=0)
        >>> spec = Spec.from_spaces(spaces.Box(0, 9, (1,)), spaces.Discrete(2))
        >>> writer = BlockWriter(replay, spec, 1, {})
        >>> seen = np.arange(4, dtype=np.float32).reshape(4, 1, 1)
        >>> ids = writer.add(
        ...     {"observation": seen[:3]},
        ...     {"observation": seen[1:]},
        ...     {"action": np.ones((3, 1), np.int64)},
        ...     np.ones((3, 1)),
        ...     ends=np.array([[0], [0], [1]], np.uint8),
        ...     begins=np.array([[True], [False], [False]]),
        ... )
        >>> ids.ravel(), replay.sample_episodes(1).observation.ravel()
        (array([0, 1, 2]), array([0., 1., 2., 3.], dtype=float32))
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
        self._open: list[_Open | None] = [None] * num_envs
        self._begun = [0] * num_envs  # episodes of each stream

    def add(
        self,
        observation: Mapping[str, np.ndarray],
        next_observation: Mapping[str, np.ndarray],
        action: Mapping[str, np.ndarray],
        reward: np.ndarray,
        *,
        ends: np.ndarray,
        begins: np.ndarray,
    ) -> np.ndarray:
        """Store T transitions of each env.

        Args:
            observation: Arrays ``[T, N, ...]`` by field name, of the Spec's dtypes; single frames
                of stacked observations.
            next_observation: The same of the observations that followed.
            action: Arrays ``[T, N, ...]`` by field name.
            reward: [T, N].
            ends: [T, N] uint8: `End.TERMINATED`, `End.TRUNCATED`, or 0.
            begins: [T, N] bool: an episode begins with the observation. Elsewhere it is the next
                observation before. An env without an open episode begins one in any case.

        Returns:
            [T, N] int64: ids of the rows of the observations.
        """
        steps, num_envs = reward.shape
        ids = np.empty((steps, num_envs), np.int64)
        index = self._replay.storage.index
        row_id, episode = index.next_row_id, index.next_episode
        chunks: list[Chunk] = []
        for env in range(num_envs):
            is_begin = begins[:, env].copy()
            is_begin[1:] |= ends[:-1, env] != 0
            is_begin[0] |= self._open[env] is None
            starts = np.flatnonzero(is_begin).tolist()
            if not starts or starts[0] > 0:
                starts.insert(0, 0)
            now = {name: rows[:, env] for name, rows in observation.items()}
            then = {name: rows[:, env] for name, rows in next_observation.items()}
            taken = {name: rows[:, env] for name, rows in action.items()}
            for start, stop in zip(starts, [*starts[1:], steps], strict=True):
                run = self._open[env]
                if run is None or is_begin[start]:
                    run = _Open(episode, 0, 0.0, {"stream_episode": self._begun[env]})
                    episode += 1
                    self._begun[env] += 1
                count = stop - start
                fields: dict[str, np.ndarray] = {}
                for name, rows in now.items():
                    fields[name] = np.concatenate([rows[start:stop], then[name][stop - 1 : stop]])
                for name, rows in taken.items():
                    fields[name] = made = np.empty((count + 1, *rows.shape[1:]), rows.dtype)
                    made[:count] = rows[start:stop]
                    made[count] = 0  # no action was chosen from the last row
                fields["reward"] = made = np.empty(count + 1)
                made[0] = run.reward
                made[1:] = reward[start:stop, env]
                end = End(int(ends[stop - 1, env]))
                chunks.append(
                    Chunk(
                        *(run.episode, env, run.row, end or End.PENDING),
                        fields,
                        run.metadata,
                    )
                )
                ids[start:stop, env] = np.arange(row_id, row_id + count)
                row_id += count + 1
                run.row += count
                run.reward = float(made[count])
                self._open[env] = None if end else run
        self._replay.add(chunks)
        return ids

    def cut(self) -> None:
        """End the recording of all open episodes."""
        self._open = [None] * len(self._open)

    def state(self) -> list[tuple[int, tuple[Any, ...] | None]]:
        """For each env the number of its episodes, and the open one; plain values."""
        return [
            (count, None if run is None else (run.episode, run.row, run.reward, dict(run.metadata)))
            for count, run in zip(self._begun, self._open, strict=True)
        ]

    def restore(self, state: Sequence[tuple[int, tuple[Any, ...] | None]]) -> None:
        """Continue as the writer of `state` would have."""
        self._begun = [count for count, _ in state]
        self._open = [None if run is None else _Open(*run) for _, run in state]

    def open_episodes(self) -> set[int]:
        """Ids of the episodes that the next transitions may continue."""
        return {run.episode for run in self._open if run is not None}


def differing(rows: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    """[T, N] bool: arrays ``[T, N, ...]`` differ in some byte; nan equals itself by bytes."""
    steps, num_envs = rows[0].shape[:2]
    found = np.zeros((steps, num_envs), np.bool_)
    for these, those in zip(rows, others, strict=True):
        if these.size:
            now, before = (
                np.ascontiguousarray(each).reshape(steps, num_envs, -1).view(np.uint8)
                for each in (these, those)
            )
            if now.shape[2] % 8 == 0:
                now, before = now.view(np.uint64), before.view(np.uint64)
            found |= (now != before).any(axis=2)
    return found
