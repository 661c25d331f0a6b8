"""Worker processes of a DataLoader draw independently, or share an epoch without repeats."""

from __future__ import annotations

import copy
import importlib
import itertools
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import Batch, Chunk, End, SequenceReplayBuffer, Spec
from stepwell.buffers.sampling import torch_dataset as module
from stepwell.buffers.sampling.batch import TransitionBatch
from stepwell.buffers.sampling.requests import Episodes, Request, Sequences, Transitions

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")
DataLoader: Any = importlib.import_module("torch.utils.data").DataLoader

SPEC = Spec.from_spaces(spaces.Box(0, 2**40, (2,), np.int64), spaces.Discrete(10**6))
LENGTHS = (5, 12, 3, 20, 9)


def add_episodes(replay: SequenceReplayBuffer, first: int, lengths: tuple[int, ...]) -> None:
    """Whole episodes of the given lengths; each row holds its episode and place."""
    for episode, rows in enumerate(lengths, first):
        t = np.arange(rows)
        fields = {
            "observation": np.stack([np.full(rows, episode), t], 1),
            "action": t,
            "reward": t.astype(np.float64),
        }
        replay.add([Chunk(episode, 0, 0, End.TERMINATED, fields)])


def filled(path: Path | None) -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer(path, seed=0)
    replay.bind(SPEC, {})
    add_episodes(replay, 0, LENGTHS)
    return replay


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[SequenceReplayBuffer]:
    with filled(tmp_path / "store") as replay:
        yield replay


def ids_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.ids.tolist()]


def places_of(batches: Any) -> Counter[tuple[int, ...]]:
    """(episode, row) of each transition."""
    return Counter(tuple(place) for batch in batches for place in batch.observation.tolist())


EVERY_TRANSITION = Counter(
    (episode, t) for episode, rows in enumerate(LENGTHS) for t in range(rows - 1)
)


@pytest.mark.parametrize(
    "request_",
    [Sequences(4, length=3), Transitions(4), Episodes(2)],
    ids=lambda r: type(r).__name__,
)
def test_batches_equal_those_of_the_replay_as_tensors(
    on_disk: SequenceReplayBuffer, request_: Request
) -> None:
    dataset = on_disk.torch_dataset(request_, seed=7)
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    rng = np.random.default_rng([7, 0, 0, 0])
    for batch in itertools.islice(DataLoader(dataset, batch_size=None), 5):
        same: Any = on_disk.sample(request_, rng=rng)
        assert type(batch) is (TransitionBatch if isinstance(request_, Transitions) else Batch)
        for name in ("observation", "reward", "ids", "weights", "terminated"):
            tensor = getattr(batch, name)
            assert isinstance(tensor, torch.Tensor)
            np.testing.assert_array_equal(tensor.numpy(), getattr(same, name))


def test_each_worker_of_each_shard_has_its_own_generator(on_disk: SequenceReplayBuffer) -> None:
    for rank in (0, 1):
        dataset = on_disk.torch_dataset(Sequences(4, 3), seed=7, shard=(rank, 2))
        loader = DataLoader(dataset, batch_size=None, num_workers=2)
        drawn = [batch.ids.tolist() for batch in itertools.islice(loader, 6)]
        for worker in (0, 1):
            rng = np.random.default_rng([7, rank, worker, 0])
            own = [on_disk.sample(Sequences(4, 3), rng=rng).ids.tolist() for _ in range(3)]
            assert drawn[worker::2] == own


@pytest.mark.parametrize("persistent", [False, True])
def test_passes_draw_different_batches_and_runs_the_same(
    on_disk: SequenceReplayBuffer, persistent: bool
) -> None:
    def three_passes() -> list[list[int]]:
        dataset = on_disk.torch_dataset(Transitions(8), seed=1, epoch=True)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
        return [ids_of(loader) for _ in range(3)]

    passes = three_passes()
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(passes[2])
    assert three_passes() == passes


@pytest.mark.parametrize("workers", [(0,), (2,), (2, 0, 1)])
def test_an_epoch_has_each_item_once_over_all_workers_of_all_shards(
    on_disk: SequenceReplayBuffer, workers: tuple[int, ...]
) -> None:
    loaders = []
    for rank, count in enumerate(workers):
        shard = (rank, len(workers))
        dataset = on_disk.torch_dataset(Transitions(4), epoch=True, shard=shard)
        loaders.append(DataLoader(dataset, batch_size=None, num_workers=count))
    for _ in range(2):
        found: Counter[tuple[int, ...]] = Counter()
        for loader in loaders:
            found += places_of(loader)
        assert found == EVERY_TRANSITION


@pytest.mark.proof
def test_a_spawned_worker_opens_the_folder_itself(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as replay:  # open for writing meanwhile
        dataset = replay.torch_dataset(Sequences(4, 3), epoch=True, stride=2)
        loader = DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn"
        )
        expected = sum(len(range(0, rows - 2, 2)) for rows in LENGTHS)
        batches = list(loader)
    assert len(set(ids_of(batches))) == len(ids_of(batches)) == expected
    assert all(isinstance(batch, Batch) for batch in batches)


def test_a_replay_in_ram_cannot_be_pickled() -> None:
    dataset = filled(None).torch_dataset(Sequences(4, 3))
    with pytest.raises(ValueError, match=r"\bRAM\b.*\bpath\b.*multiprocessing_context='fork'"):
        DataLoader(
            dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"
        ).__iter__()
    with pytest.raises(ValueError, match=r"\bRAM\b.*\bpath\b.*multiprocessing_context='fork'"):
        copy.deepcopy(dataset)


def test_a_replay_in_ram_can_be_forked() -> None:
    dataset = filled(None).torch_dataset(Transitions(4), epoch=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert places_of(loader) == EVERY_TRANSITION


def test_a_fork_while_another_thread_uses_a_replay_in_ram_is_refused() -> None:
    replay = filled(None)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with replay.storage.lock:
            held.set()
            release.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(20)
        loader = DataLoader(
            replay.torch_dataset(Transitions(4)),
            batch_size=None,
            num_workers=1,
            multiprocessing_context="fork",
        )
        with pytest.raises(RuntimeError, match=r"\breplay\b.*thread.*\bforked\b"):
            next(iter(loader))
    finally:
        release.set()
        thread.join()


def test_an_epoch_over_workers_refuses_a_replay_that_has_changed(
    on_disk: SequenceReplayBuffer,
) -> None:
    dataset = on_disk.torch_dataset(Transitions(4), epoch=True)
    add_episodes(on_disk, len(LENGTHS), (7,))
    with pytest.raises(ValueError, match=r"\b44 of 44 steps.*\b50 of 50\b"):
        list(DataLoader(dataset, batch_size=None, num_workers=1))


def test_workers_draw_from_episodes_that_are_stored_meanwhile(
    on_disk: SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LOOKS", 0.0)
    loader = DataLoader(on_disk.torch_dataset(Transitions(64)), batch_size=None, num_workers=1)
    batches = iter(loader)
    assert next(batches).observation[:, 0].max() < len(LENGTHS)
    add_episodes(on_disk, len(LENGTHS), (100,))
    for batch in itertools.islice(batches, 1000):
        if batch.observation[:, 0].max() == len(LENGTHS):
            return
    pytest.fail("the new episode was never drawn from")


def test_several_stores_are_opened_with_their_weights(tmp_path: Path) -> None:
    for name in "ab":
        filled(tmp_path / name).close()
    folders = [tmp_path / "a", tmp_path / "b"]
    with SequenceReplayBuffer.open(folders, weights=[1, 0]) as replay:
        dataset = pickle.loads(pickle.dumps(replay.torch_dataset(Transitions(50))))
        assert next(iter(dataset)).ids.max() < 1 << 48
        every = pickle.loads(pickle.dumps(replay.torch_dataset(Transitions(50), epoch=True)))
        assert places_of(every) == EVERY_TRANSITION + EVERY_TRANSITION


@pytest.mark.parametrize(
    ("request_", "options", "message"),
    [
        (Transitions(4, draw="newest"), {}, "draw='newest': "),
        (Sequences(4, 3, draw="priorities"), {}, "draw='priorities': "),
        (Transitions(4), {"shard": (2, 2)}, r"^shard: .*\(2, 2\)"),
        (Transitions(4), {"stride": 2}, r"^stride: .*\b1 .*epoch=True.*\b2\b"),
        (Transitions(4), {"seed": -1}, "^seed: .*>= 0.* -1"),
        (Transitions(0), {}, "^batch_size: .*>= 1.* 0"),
    ],
)
def test_invalid_arguments_are_refused(
    on_disk: SequenceReplayBuffer, request_: Request, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        on_disk.torch_dataset(request_, **options)
