"""The cache of chunk locations is bounded and drops what was evicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import DiskStorage, End, NotEnoughData
from stepwell.buffers.storage import field_locator
from stepwell.buffers.storage.field_locator import RowCopier
from stepwell.buffers.testing import SPEC, chunk_of
from support.crash.disk_faults import NoSyncFiles


def test_few_segments_are_mapped_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.13 each mapped file holds a descriptor."""
    monkeypatch.setattr(field_locator, "_MAX_SEGMENTS", 3)
    with DiskStorage.create(tmp_path / "a", SPEC, segment_bytes=4_000, files=NoSyncFiles()) as made:
        for episode in range(40):
            made.add([chunk_of(episode, 0, 20, End.TERMINATED)])
        assert len(set(made.index.records["segment"].tolist())) > 8
        copier = RowCopier(made)
        copier.follow()
        rewards = np.empty(20)
        for position in (*range(40), *range(39, -1, -3)):
            copier.copy(position, made.index.record(position), 0, 20, [(2, rewards)])
            expected = chunk_of(position, 0, 20, End.TERMINATED).fields["reward"]
            assert rewards.tolist() == expected.tolist()
            assert len(copier._places._buffers) <= 3


@pytest.mark.proof
def test_evicted_chunks_are_dropped_and_refused(tmp_path: Path) -> None:
    with DiskStorage.create(
        tmp_path / "a", SPEC, capacity=160, segment_bytes=4_000, files=NoSyncFiles()
    ) as made:
        copier, rewards = RowCopier(made), np.empty(9)
        for episode in range(60):
            made.add([chunk_of(episode, 0, 9, End.TERMINATED)])
            copier.follow()
            index = made.index
            for position in range(index.base, index.base + len(index)):
                copier.copy(position, index.record(position), 0, 9, [(2, rewards)])
                assert rewards.tolist() == chunk_of(position, 0, 9).fields["reward"].tolist()
            assert len(copier._places.is_known) >= len(index)
        assert len(copier._places.is_known) < 120
        base = made.index.base
        with pytest.raises(NotEnoughData, match=rf"chunk {base - 1} .*\b{base}\b"):
            copier.copy(base - 1, made.index.record(base), 0, 9, [(2, rewards)])
