"""A batch that does not fit in memory is refused in one sentence, before memory is taken."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

import stepwell as sw
from stepwell.buffers.base.buffer_pool import SpareMemory

MANY = 10**12


@pytest.mark.parametrize("count", [MANY, 10**19])
@pytest.mark.parametrize(
    ("draw", "what"),
    [
        (lambda replay, n: replay.sample_transitions(n), "a batch of {} items"),
        (lambda replay, n: replay.sample_sequences(n, 8), "a batch of {} items"),
        (lambda replay, n: replay.sample_sequences(4, n), "a batch of 4 items"),
        (lambda replay, n: replay.sample_episodes(n), "a batch of {} items"),
        (lambda replay, n: replay.sample_transitions(4, n_step=n), "n_step={}"),
        (lambda replay, n: next(iter(replay.loader(sw.Transitions(n)))), "a batch of {} items"),
    ],
    ids=["transitions", "sequences", "long", "episodes", "n_step", "loader"],
)
def test_a_batch_beyond_free_memory(
    draw: Callable[[sw.SequenceReplayBuffer, int], object], what: str, count: int
) -> None:
    replay = sw.SequenceReplayBuffer(seed=0)
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=100)
    with pytest.raises(
        MemoryError,
        match=rf"^{what.format(count)} takes [\d.]+ GB of memory, expected at most the [\d.]+ GB "
        rf"that are free: (draw fewer, or shorter ones|take a smaller n_step)$",
    ):
        draw(replay, count)
    assert len(replay.sample_transitions(4).reward) == 4


def test_memory_that_cannot_be_had_leaves_no_half_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    with pytest.raises(MemoryError):
        SpareMemory(1 << 60).lend()
    gc.collect()
    assert seen == []
