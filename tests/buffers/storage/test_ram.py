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
