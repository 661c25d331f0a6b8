"""Loaders return the same batches with and without workers, and accept any dataset."""

from __future__ import annotations

import importlib
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.dropin.memmap import (
    ReplayBuffer,
    ReplayDataset,
    ReplayDatasetNStep,
    ReplayDatasetTimestep,
    ReplayDatasetTimeWindow,
    ReplayDatasetTrajectory,
)

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")
data: Any = importlib.import_module("torch.utils.data")
LENGTHS = (5, 1, 3, 8)


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[ReplayBuffer]:
    made = ReplayBuffer(
        tmp_path / "buffer",
        max_episodes=10,
        max_timesteps=8,
        fields={"x": ("float", 2), "t": "int", "image": ("uint8", (9, 9))},
        meta_fields={"task": "int"},
        circular=True,
    )
    for number, length in enumerate(LENGTHS):
        t = np.arange(length)
        x = np.stack([np.full(length, number), t], 1)
        image = np.broadcast_to((16 * number + t)[:, None, None], (length, 9, 9))
        made.store_episode(x=x, t=t, image=image, task=number % 2)
    made.update([1, 3], x=[[[9.0, 9.0]]])
    yield made
    made.close()


MODES: dict[str, dict[str, Any]] = {
    "episodes": {"return_mask": True, "return_indices": True},
    "steps": {"timestep_level": True, "return_indices": True, "filter_meta": {"task": 1}},
    "transitions": {"n_steps": 3, "sequence_fields": ("t",), "return_indices": True},
    "named": {"to_named_tuple": ("x", "task", "_mask", "_lens"), "return_mask": True},
}


def plain(batch: Any) -> dict[str, Any]:
    batch = batch if isinstance(batch, dict) else batch._asdict()
    return {name: (str(value.dtype), value.tolist()) for name, value in batch.items()}


@pytest.mark.parametrize(
    ("mode", "start"),
    [
        *((mode, "fork") for mode in MODES),
        ("named", "spawn"),
        *(pytest.param(mode, "spawn", marks=pytest.mark.full) for mode in list(MODES)[:-1]),
    ],
)
def test_workers_return_the_same_batches(buffer: ReplayBuffer, mode: str, start: str) -> None:
    options = MODES[mode]
    alone = [plain(batch) for batch in buffer.dataloader(2, **options)]
    workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": start}
    shared = [plain(batch) for batch in buffer.dataloader(2, **options, **workers)]
    assert alone == shared
    assert len(alone) >= 2


def test_workers_draw_different_windows(buffer: ReplayBuffer) -> None:
    buffer.store_episode(t=np.arange(8))

    def starts(seed: int) -> list[int]:
        dataset = ReplayDatasetTimeWindow(buffer, 2, return_indices=True, seed=seed)
        subset = data.Subset(dataset, [4] * 40)
        generator = torch.Generator().manual_seed(1)
        loader = buffer.dataloader(20, dataset=subset, num_workers=2, generator=generator)
        return [int(start) for batch in loader for start in batch["_start"]]

    first = starts(0)
    assert first == starts(0) != starts(1)
    assert first[:20] != first[20:]  # two workers
    assert set(first) == set(range(7))


def test_datasets_can_be_pickled_and_opened_by_path(buffer: ReplayBuffer) -> None:
    for dataset in (
        ReplayDatasetTrajectory(buffer),
        ReplayDatasetTimestep(buffer, filter_fields={"t": 2}),
        ReplayDatasetNStep(buffer, 2),
    ):
        sent = pickle.loads(pickle.dumps(dataset))
        by_path = None
        if isinstance(dataset, ReplayDatasetNStep):
            by_path = type(dataset)(buffer.folder, 2)
        assert len(sent) == len(dataset)
        for other in filter(None, (sent, by_path)):
            assert [plain(item) for item in other] == [plain(item) for item in dataset]
    assert ReplayDataset is ReplayDatasetTrajectory
    sent_buffer = pickle.loads(pickle.dumps(buffer))
    assert sent_buffer.read_only
    assert sent_buffer.num_episodes == 4


def test_an_overwritten_episode_is_refused_after_unpickling(buffer: ReplayBuffer) -> None:
    sent = pickle.dumps(buffer.dataset())
    for _ in range(8):
        buffer.store_episode(t=[100])
    dataset = pickle.loads(sent)
    assert plain(dataset[2])["t"][1] == [0, 1, 2]
    with pytest.raises(NotEnoughData, match=rf"{re.escape(str(buffer.folder))}: .*\b1\b.*\b1\b"):
        dataset[1]


def test_other_collate_functions_receive_items(buffer: ReplayBuffer) -> None:
    dataset = buffer.dataset(fields=("x", "t"))
    items = [plain(item) for item in dataset]
    assert [len(item["t"][1]) for item in items] == list(LENGTHS)
    (batch,) = data.DataLoader(dataset, batch_size=4, collate_fn=list)
    assert [plain(item) for item in batch] == items
    got = dataset.__getitems__([3, -1, 0])
    assert [plain(item) for item in got[:2]] == [items[3], items[3]]
    assert plain(got[-1]) == items[0]
    for index in (4, -5):
        with pytest.raises(IndexError, match=rf"\b0\b.*\b3\b.*\[{index}\]"):
            dataset[index]
    with pytest.raises(IndexError, match="3"):
        got[3]
    steps = buffer.dataset(timestep_level=True)
    loader = data.DataLoader(steps, batch_size=6, shuffle=True)  # torch's own collate function
    assert sorted(t for batch in loader for t in batch["t"].tolist()) == sorted(
        t for length in LENGTHS for t in range(length)
    )


def test_episodes_of_a_callers_dataset_are_padded(buffer: ReplayBuffer) -> None:
    joined = data.ConcatDataset([buffer.dataset(), buffer.dataset()])
    (batch,) = buffer.dataloader(8, dataset=joined, return_mask=True)
    assert batch["image"].shape == (8, 8, 9, 9)
    assert batch["_mask"].sum(1).tolist() == 2 * list(LENGTHS)
    assert batch["t"][2].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_loader_options(buffer: ReplayBuffer) -> None:
    steps = sum(LENGTHS)
    loader = buffer.dataloader(4, timestep_level=True, drop_last=True, shuffle=True)
    assert (len(loader), sum(len(batch["t"]) for batch in loader)) == (steps // 4, 16)
    assert isinstance(loader, data.DataLoader)
    orders = [
        [
            plain(batch)
            for batch in buffer.dataloader(
                4, timestep_level=True, shuffle=True, generator=torch.Generator().manual_seed(seed)
            )
        ]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    (batch,) = buffer.dataloader(4, device="meta", fields=("t",))
    assert {value.device.type for value in batch.values()} == {"meta"}
    (batch,) = buffer.dataloader(
        4, fieldname_map={"t": "time", "_lens": "n"}, dataset_kwargs={"include_metadata": False}
    )
    assert sorted(batch) == ["image", "n", "time", "x"]
    assert batch["time"].shape == (4, 8)
    (batch,) = buffer.dataloader(
        4, return_mask=True, dataset_kwargs={"slice_by_episode_len": False}
    )
    assert batch["_mask"].shape == batch["t"].shape == (4, 8)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"n_steps": 2, "timestep_level": True}, r"n_steps.*timestep_level"),
        ({"return_mask": True, "n_steps": 2}, "return_mask"),
        ({"fields": ("x",), "to_named_tuple": ("x",)}, r"fields.*to_named_tuple"),
        ({"filter_fields": {"t": 1}}, r"filter_fields.*timestep_level=True.*n_steps"),
        ({"filter_fields": {"x": 1}, "n_steps": 1}, r"filter_fields.*\(\).*\(2,\).*'x'"),
        ({"filter_fields": {"y": 1}, "n_steps": 1}, r"filter_fields.*'y'.*x, t, image"),
        ({"filter_meta": {"y": 1}}, r"filter_meta.*'y'.*episode_lens, task"),
        ({"fields": ("y",)}, r"fields.*'y'.*x, t, image"),
        ({"fields": "x"}, r"fields.*'x'"),
        ({"n_steps": 0}, r"n_steps.*>= 1.*\b0\b"),
        ({"to_named_tuple": ("x", "_x")}, r"to_named_tuple.*'x'"),
        (
            {"dataset_kwargs": {"slice_by_episode_len": False, "return_episode_lens": False}},
            r"slice_by_episode_len=False.*return_episode_lens=True.*\bFalse",
        ),
    ],
)
def test_contradictory_loader_options_are_refused(
    buffer: ReplayBuffer, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        buffer.dataloader(2, **options)


def test_n_step_transitions_at_episode_ends_equal_the_originals(tmp_path: Path) -> None:
    made = ReplayBuffer(tmp_path / "edges", 3, 5, {"t": "int"})
    for length in (5, 1, 3):
        made.store_episode(t=np.arange(length))
    dataset = made.dataset(n_steps=3, sequence_fields=("t",), return_indices=True)
    got = [
        (i["_indices"].tolist(), int(i["next_t"]), i["seq_t"].tolist(), int(i["n_step_lens"]))
        for i in dataset
    ]
    assert got == [
        ([0, 0], 3, [0, 1, 2], 3),
        ([0, 1], 4, [1, 2, 3], 3),
        ([0, 2], 4, [2, 3, 0], 2),
        ([0, 3], 4, [3, 0, 0], 1),
        ([2, 0], 2, [0, 1, 0], 2),
        ([2, 1], 2, [1, 0, 0], 1),
    ]
    assert dataset.timepoints.tolist() == [place for place, *_ in got]
    assert dataset.indices.tolist() == [0, 2]
    assert dataset[-1]["_indices"].tolist() == [2, 1]
    made.close()


def test_a_filter_of_true_selects_equal_numbers(buffer: ReplayBuffer) -> None:
    assert len(buffer.dataset(filter_meta={"task": True})) == 2
    assert len(buffer.dataset(filter_meta={"episode_lens": 8})) == 1
    chosen = buffer.dataset(n_steps=1, filter_fields={"t": 2}, filter_meta={"task": 0})
    assert chosen.timepoints.tolist() == [[0, 2]]  # step 2 of episode 2 is its last
    assert chosen.indices.tolist() == [0, 2]
    chosen = buffer.dataset(n_steps=1, filter_fields={"t": 0}, filter_meta={"task": 0})
    assert chosen.timepoints.tolist() == [[0, 0], [2, 0]]


@pytest.mark.parametrize("with_metas", [True, False])
def test_an_episode_overwritten_during_a_read_is_refused(
    buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, with_metas: bool
) -> None:
    dataset = buffer.dataset(include_metadata=with_metas)
    take = SequenceReplayBuffer.take

    def slow_take(replay: SequenceReplayBuffer, request: Any, ids: np.ndarray) -> Any:
        rows = take(replay, request, ids)
        for _ in range(7):  # as another thread may do
            buffer.store_episode(t=[100])
        return rows

    monkeypatch.setattr(SequenceReplayBuffer, "take", slow_take)
    with pytest.raises(NotEnoughData, match=rf"{re.escape(str(buffer.folder))}: .*\b1\b.*\b1\b"):
        dataset[0]
