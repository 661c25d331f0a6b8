"""Limits and memory of `MemoryStorage`; the storage contract tests the rest."""

from __future__ import annotations

import pytest

from stepwell.buffers import End, Field, MemoryStorage, Spec
from stepwell.buffers.testing import SPEC, chunk_of


def test_a_capacity_that_does_not_fit_in_memory_is_refused() -> None:
    fields = Field("observation", "float64", (1_000, 1_000), "raw"), SPEC["reward"]
    raw = Spec(fields, "observation", {})
    message = r"^capacity=10000000 .*\d+\.\d GB .*\d+\.\d GB"
    with pytest.raises(ValueError, match=message):
        MemoryStorage(raw, capacity=10_000_000)
    MemoryStorage(raw, capacity=1)


def test_rows_without_a_reward_are_refused() -> None:
    fields = tuple(field for field in SPEC.fields if field.name != "reward")
    with pytest.raises(ValueError, match=r"reward.* observation, action, extra/memory$"):
        MemoryStorage(Spec(fields, "observation", "action"))


def test_memory_of_evicted_chunks_is_freed() -> None:
    storage = MemoryStorage(SPEC, capacity=320, capacity_bytes=1 << 20)
    most = 0
    for episode in range(300):
        storage.add([chunk_of(episode, 0, 20, End.TERMINATED)])
        most = max(most, storage.nbytes)
    assert storage.nbytes <= most <= 1 << 20


@pytest.mark.parametrize("read", ["payload", "metadata", "encoded"])
def test_a_position_of_no_stored_chunk_is_refused(read: str) -> None:
    storage = MemoryStorage(SPEC, capacity=160)
    storage.add([chunk_of(episode, 0, 10, End.TERMINATED) for episode in range(60)])
    base, stop = storage.index.base, storage.index.base + len(storage.index)
    assert base > 0
    getattr(storage, read)(base)
    for position in (-1, 0, base - 1, stop, stop + 5):
        with pytest.raises(
            ValueError, match=rf"^position: .*\b{base} to {stop - 1}\b.* {position};"
        ):
            getattr(storage, read)(position)
