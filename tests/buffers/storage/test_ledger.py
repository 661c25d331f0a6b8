"""Rings keep the actions that stored episodes need to be played again, and no others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, DiskStorage, MemoryStorage, Storage
from stepwell.buffers.storage.chunk_codec import ChunkEncoder
from stepwell.buffers.storage.disk import storage as disk_storage
from stepwell.buffers.storage.ledger import action_spec
from support.crash.disk_faults import NoSyncFiles
from support.models.chain_model import SPEC, ChainModel, random_plan

shapes = st.fixed_dictionaries(
    {
        "capacity": st.sampled_from([16, 40, 100, 300, None]),
        "capacity_bytes": st.sampled_from([None, None, None, 1 << 16]),
    }
)


def file_bytes(chunks: list[Chunk]) -> int:
    encoder = ChunkEncoder(action_spec(SPEC))
    return sum(32 + sum(map(len, encoder.encode(chunk))) for chunk in chunks)


def play(
    storage: Storage, plan: list[Any], path: Path | None = None, *, has_bytes: bool
) -> ChainModel:
    """Store the chunks of a plan, and compare chains and ledger with the model's."""
    model = ChainModel()
    storage.append_session(model.begin_session())
    live = 0
    for number, step in enumerate(plan, 1):
        base = storage.index.base
        fresh = -1
        if step == "session":
            storage.append_session(model.begin_session())
        elif isinstance(step, float):
            oldest = int(storage.index.next_row_id * step)
            storage.drop_before(oldest)
        else:
            if step.is_cut:
                model.cut(step.stream)
            chunk = model.chunk(step.stream, step.rows, step.end, is_seeded=step.is_seeded)
            fresh = step.stream
            storage.add([chunk])
        if storage.index.base == base and number % 16:
            continue  # little has changed
        model.check_chains(storage)
        if storage.index.base != base:
            live = model.session
        kept = model.kept_rows(storage.ledger)
        needed = model.needed(storage, live_session=live)
        if storage.index.base != base:
            # A storage of so many bytes evicts before it stores the chunk.
            changed = fresh if has_bytes else -1
            assert {one for one in kept - needed if one[0].stream != changed} == set()
        if path is not None:
            with closing(DiskStorage.open(path, read_only=True, files=NoSyncFiles())) as reader:
                model.check_chains(reader)
                there = list(reader.ledger)
                needless = [each for each in there if not model.kept_rows([each]) <= kept]
                assert 2 * file_bytes(needless) <= max(
                    1, (path / "ledger.bin").stat().st_size if there else 1
                )
    return model


@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32), shape=shapes)
def test_a_ring_in_ram_keeps_what_chains_need(seed: int, shape: dict[str, Any]) -> None:
    has_bytes = shape["capacity_bytes"] is not None
    play(MemoryStorage(SPEC, **shape), random_plan(seed), has_bytes=has_bytes)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 32),
    shape=shapes,
    segment_bytes=st.sampled_from([4096, 20_000, 1 << 20]),
)
def test_a_ring_on_disk_keeps_what_chains_need(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    shape: dict[str, Any],
    segment_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("ring") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_storage, "_MIN_CAPACITY_BYTES", 1 << 14)
        storage = DiskStorage.create(
            path, SPEC, segment_bytes=segment_bytes, files=NoSyncFiles(), **shape
        )
    with closing(storage):
        model = play(
            storage, random_plan(seed), path, has_bytes=shape["capacity_bytes"] is not None
        )
        kept = model.kept_rows(storage.ledger)
    with closing(DiskStorage.open(path, files=NoSyncFiles())) as again:
        assert model.kept_rows(again.ledger) >= kept
