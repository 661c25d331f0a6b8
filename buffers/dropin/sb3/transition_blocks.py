"""Blocks of whole transitions of N envs, written to a replay as chunks of episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ...replay.replay import SequenceReplayBuffer
from ...rows.episode import Chunk, End

_ENDS = End.PENDING, End.TERMINATED, End.TRUNCATED  # by 0, and the values of the other two


@dataclass(slots=True, eq=False)
class _Open:
    """The open episode of an env: its id, the number of its newest row, and that row's reward."""

    episode: int | None  # None where no row of it was stored behind those left out
    row: int
    reward: float
    metadata: Mapping[str, object]


class BlockWriter:
    """Writes the transitions of N envs many steps at a time; env i writes stream i."""

    # The rows are those that `EpisodeBuffer.add` makes of the same transitions, one by one; that
    # one asks for each step what this one asks for each episode.

    def __init__(self, num_envs: int) -> None:
        self._open: list[_Open | None] = [None] * num_envs
        self._begun = [0] * num_envs  # episodes of each stream

    def add(
        self,
        replay: SequenceReplayBuffer,
        observed: Callable[[int, int, int], dict[str, np.ndarray]],
        action: Mapping[str, np.ndarray],
        reward: np.ndarray,
        *,
        ends: np.ndarray,
        begins: np.ndarray,
    ) -> np.ndarray:
        """Store T transitions ``[T, N, ...]`` by field: ids [T, N] of their observations' rows."""
        # Observations of an env before and after steps are asked for by its number and the steps'
        # ``start, stop``: [stop - start + 1, ...] by field, of the Spec's dtypes, and single frames
        # where they are stacked. `ends` [T, N] uint8 is `End.TERMINATED`, `End.TRUNCATED` or 0;
        # `begins` [T, N] bool: an episode begins with the observation. Elsewhere it is the next
        # observation before. An env without an open episode begins one in any case.
        steps, num_envs = reward.shape
        is_begin = self._begins(ends, begins)
        index = replay.storage.index
        position, episode = index.base + len(index), index.next_episode
        chunks: list[Chunk] = []
        for env in range(num_envs):
            # Each run of an episode has one row more than it has transitions.
            starts = [0, *(np.flatnonzero(is_begin[env, 1:]) + 1).tolist()]
            for start, stop in pairwise([*starts, steps]):
                run = self._open[env]
                if run is None or is_begin[env, start]:
                    run = _Open(None, 0, 0.0, {"stream_episode": self._begun[env]})
                    self._begun[env] += 1
                if is_late := run.episode is None:
                    run.episode = episode
                    episode += 1
                part = observed(env, start, stop)
                for name, taken in action.items():
                    # No action was chosen from the last row.
                    part[name] = np.zeros((stop - start + 1, *taken.shape[2:]), taken.dtype)
                    part[name][:-1] = taken[start:stop, env]
                gains = part["reward"] = np.empty(stop - start + 1)
                gains[0], gains[1:] = run.reward, reward[start:stop, env]
                end = _ENDS[ends.item(stop - 1, env)]
                facts = run.episode, env, run.row, end, part, run.metadata
                chunks.append(Chunk(*facts, starts_late=is_late and run.row > 0))
                if end is not End.PENDING:
                    self._open[env] = None
                else:
                    run.row += stop - start
                    run.reward = gains.item(-1)
                    self._open[env] = run
        replay.add(chunks)
        index = replay.storage.index  # a storage may have split the chunks
        ids, _ = transition_ids(index.records[position - index.base :])
        return ids.reshape(num_envs, steps).T

    def leave_out(self, reward: np.ndarray, *, ends: np.ndarray, begins: np.ndarray) -> None:
        """Count T transitions of each env as `add` does, without storing them."""
        steps = len(reward)
        is_begin = self._begins(ends, begins)
        for env, newest in enumerate(reward[-1].tolist()):
            begun = np.flatnonzero(is_begin[env])
            run = self._open[env]
            self._begun[env] += len(begun)
            if len(begun):
                run = _Open(None, -int(begun[-1]), 0.0, {"stream_episode": self._begun[env] - 1})
            assert run is not None
            run.episode, run.reward = None, newest
            run.row += steps
            self._open[env] = None if ends[-1, env] else run

    def _begins(self, ends: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """[N, T] bool: an episode begins with the transition."""
        is_begin = begins.T.copy()
        is_begin[:, 1:] |= ends.T[:, :-1] != 0
        is_begin[:, 0] |= [run is None for run in self._open]
        return is_begin

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


def transition_ids(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids [n] of the rows of some chunks from which an action was chosen, and streams [n]."""
    counts = records["stored_rows"] - (records["end"] != 0)  # not from the last row of these
    before = np.cumsum(counts) - counts
    ids: np.ndarray = np.repeat(records["row_id"] - before, counts) + np.arange(counts.sum())
    return ids, np.repeat(records["stream"], counts)


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
