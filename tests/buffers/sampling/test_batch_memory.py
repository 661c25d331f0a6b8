"""The memory of large batches is used again, but not while it is referred to; or is refused."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec, Transitions
from stepwell.buffers.rows.row_memory import SpareMemory

ROWS = 400


@pytest.fixture
def replay() -> SequenceReplayBuffer:
    image = Field("observation", "uint8", (40, 40), "raw", stack=4)
    spec = Spec((image, Field("reward", "float64", (), "raw")), "observation", {})
    replay = SequenceReplayBuffer(seed=0, threads=1)
    replay.bind(spec, {})
    numbers = np.arange(ROWS)
    images = np.repeat((numbers % 251 + 1).astype(np.uint8), 40 * 40).reshape(-1, 40, 40)
    fields: dict[str, np.ndarray] = {"observation": images, "reward": numbers.astype(np.float64)}
    replay.add([Chunk(0, 0, 0, End.TERMINATED, fields)])
    return replay


def newest_frames(stacks: np.ndarray) -> list[int]:
    return stacks[..., -1, 0, 0].astype(int).ravel().tolist()


def expected(rewards: np.ndarray) -> list[int]:
    return (rewards.astype(int) % 251 + 1).ravel().tolist()


def address(batch: Any) -> int:
    where: int = batch.memory["observation"].__array_interface__["data"][0]
    return where


def test_memory_is_used_again_when_the_batch_is_gone(replay: SequenceReplayBuffer) -> None:
    found = set()
    for _ in range(20):
        batch = replay.sample_transitions(256)
        assert batch.memory["observation"].nbytes >= 1 << 20
        found.add(address(batch))
        assert newest_frames(batch.next_observation) == expected(batch.reward)
    assert len(found) == 2


@pytest.mark.proof
@pytest.mark.parametrize("part", ["batch", "view", "memoryview", "item", "memory"])
def test_memory_that_is_referred_to_keeps_its_values(
    replay: SequenceReplayBuffer, part: str
) -> None:
    keep: Any = {
        "batch": lambda batch: batch,
        "view": lambda batch: batch.observation[::2],
        "memoryview": lambda batch: memoryview(batch.memory["observation"]),
        "item": lambda batch: batch.next_observation[-1, -1],
        "memory": lambda batch: batch.memory,
    }[part]
    kept, copies = [], []
    for _ in range(12):
        batch = replay.sample_transitions(256)
        kept.append(keep(batch))
        copies.append(batch.memory["observation"].copy())
        del batch
        gc.collect()
        replay.sample_transitions(256)  # and this one is gone at once
    for held, copy in zip(kept, copies, strict=True):
        stacks = copy[:, :4]
        if part == "batch":
            assert (held.observation == stacks).all()
        elif part == "view":
            assert (held == stacks[::2]).all()
        elif part == "item":
            assert (held == copy[-1, -1]).all()
        else:
            rows = held["observation"] if part == "memory" else np.asarray(held)
            assert (rows == copy).all()


def test_threads_do_not_share_the_memory_of_a_batch(replay: SequenceReplayBuffer) -> None:
    def draw(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            one = replay.sample_transitions(256, rng=rng)
            other = replay.sample_transitions(256, rng=rng)
            for batch in (one, other):
                assert newest_frames(batch.next_observation) == expected(batch.reward)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(draw, range(4)))


# --- batches that do not fit ---

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
        (lambda replay, n: next(iter(replay.loader(Transitions(n)))), "a batch of {} items"),
    ],
    ids=["transitions", "sequences", "long", "episodes", "n_step", "loader"],
)
def test_a_batch_beyond_free_memory(
    replay: SequenceReplayBuffer,
    draw: Callable[[SequenceReplayBuffer, int], object],
    what: str,
    count: int,
) -> None:
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
