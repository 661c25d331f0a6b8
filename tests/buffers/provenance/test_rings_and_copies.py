"""Of rings and copies those episodes can be played again whose chain is stored from its reset."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import (
    Codec,
    DiskStorage,
    MemoryStorage,
    SequenceReplayBuffer,
    Storage,
    copy_episodes,
)
from stepwell.buffers.curation import copy
from stepwell.buffers.curation.stored_episode import StoredEpisode
from stepwell.buffers.storage.disk import storage as disk_storage
from support.crash.disk_faults import NoSyncFiles
from support.models.chain_model import SPEC, ChainModel, Rows, random_plan

shapes = st.fixed_dictionaries(
    {
        "capacity": st.sampled_from([16, 40, 100, 300, None]),
        "capacity_bytes": st.sampled_from([None, None, None, 1 << 16]),
    }
)


def play(storage: Storage, plan: list[Any], path: Path | None = None) -> None:
    """Store the chunks of a plan, and compare the chains with the model's."""
    model = ChainModel()
    storage.append_session(model.begin_session())
    for number, step in enumerate(plan, 1):
        base = storage.index.base
        if step == "session":
            storage.append_session(model.begin_session())
        elif isinstance(step, float):
            storage.drop_before(int(storage.index.next_row_id * step))
        else:
            if step.is_cut:
                model.cut(step.stream)
            chunk = model.chunk(step.stream, step.rows, step.end, is_seeded=step.is_seeded)
            storage.add([chunk])
        if storage.index.base == base and number % 16:
            continue  # little has changed
        model.check_chains(storage)
        if path is not None:
            with closing(DiskStorage.open(path, read_only=True, files=NoSyncFiles())) as reader:
                model.check_chains(reader)


@pytest.mark.proof
@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32), shape=shapes)
def test_chains_of_a_ring_in_ram(seed: int, shape: dict[str, Any]) -> None:
    play(MemoryStorage(SPEC, **shape), random_plan(seed))


@pytest.mark.full
@settings(deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    shape=shapes,
    segment_bytes=st.sampled_from([4096, 20_000, 1 << 20]),
)
def test_chains_of_a_ring_on_disk(
    tmp_path_factory: pytest.TempPathFactory, seed: int, shape: dict[str, Any], segment_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("ring") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_storage, "_MIN_CAPACITY_BYTES", 1 << 14)
        storage = DiskStorage.create(
            path, SPEC, segment_bytes=segment_bytes, files=NoSyncFiles(), **shape
        )
    with closing(storage):
        play(storage, random_plan(seed), path)


def recorded(seed: int, model: ChainModel, capacity: int | None = None) -> SequenceReplayBuffer:
    """A replay with the rows of a random plan."""
    replay = SequenceReplayBuffer(capacity=capacity)
    replay.bind(SPEC, model.begin_session())
    for step in random_plan(seed):
        if step == "session":
            replay.bind(SPEC, model.begin_session())
        elif isinstance(step, Rows):
            if step.is_cut:
                model.cut(step.stream)
            chunk = model.chunk(step.stream, step.rows, step.end, is_seeded=step.is_seeded)
            replay.add([chunk])
    return replay


def random_share(rng: random.Random) -> Callable[[StoredEpisode], bool]:
    share = rng.choice([0.2, 0.7, 1.0])
    return lambda episode: rng.random() < share


@pytest.mark.proof
@settings(deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    sources=st.integers(1, 2),
    capacity=st.sampled_from([None, None, 60, 200]),
    most=st.sampled_from([None, None, 40, 150]),
    codecs=st.sampled_from([{}, {"observation": "raw"}]),
    least_rows=st.sampled_from([1, 4, 8, 256]),
)
def test_chains_of_copies_of_copies(
    seed: int,
    sources: int,
    capacity: int | None,
    most: int | None,
    codecs: dict[str, Codec],
    least_rows: int,
) -> None:
    """Chunks are copied as they are from so many rows on; with other codecs all are decoded."""
    rng = random.Random(seed)
    models = [ChainModel(first_label=1_000 * number) for number in range(sources)]
    replays = [recorded(seed + number, each, capacity) for number, each in enumerate(models)]
    both = ChainModel.merged(models)
    for _ in range(3):
        target = SequenceReplayBuffer(capacity=most, codecs=codecs)
        try:
            with mock.patch.object(copy, "_LEAST_ROWS", least_rows):
                report = copy_episodes(
                    *(replays, target), keep=random_share(rng), duplicates="keep", digest=True
                )
        except ValueError:
            return  # nothing was chosen
        assert most is not None or target.digest() == report.digest
        both.check_chains(target.storage)
        replays = [target]


@pytest.mark.proof
@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_copy_of_stores_that_are_read_as_one_is_that_of_the_stores_in_a_list(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder, share = tmp_path_factory.mktemp("joined"), random.Random(seed).choice([0.2, 0.7, 1.0])
    models = [ChainModel(first_label=1_000 * number) for number in range(3)]
    paths = [folder / str(number) for number in range(3)]
    for number, model in enumerate(models):
        with SequenceReplayBuffer(paths[number]) as part:
            copy_episodes(recorded(seed + number, model), part)
    with ExitStack() as stack:
        both = stack.enter_context(SequenceReplayBuffer.open(paths, read_only=True))
        parts = [stack.enter_context(SequenceReplayBuffer.open(path)) for path in paths]
        targets: list[SequenceReplayBuffer] = []
        for source in (both, parts):
            rng, target = random.Random(seed), SequenceReplayBuffer()
            targets.append(target)
            try:
                copy_episodes(
                    source,
                    target,
                    keep=lambda _, rng=rng: rng.random() < share,  # type: ignore[misc]
                    duplicates="keep",
                )
            except ValueError:
                return  # nothing was chosen
        joined, merged = targets
        ChainModel.merged(models, sessions=1).check_chains(joined.storage)
        assert joined.digest() == merged.digest()
        assert stored_of(joined) == stored_of(merged)


def stored_of(replay: SequenceReplayBuffer) -> list[object]:
    """Place and metadata of every chunk, and the sessions but the last."""
    storage = replay.storage
    chunks = [storage.encoded(position) for position in range(len(storage.index))]
    return [
        [(each.episode, each.stream, each.data) for each in chunks],
        [dict(session) for session in replay.sessions[:-1]],
    ]
