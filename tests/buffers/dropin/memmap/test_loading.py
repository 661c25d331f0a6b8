"""Loaders return the same batches with and without workers, and only the episodes of their time."""

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
from stepwell.buffers.dropin.memmap import ReplayBuffer

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
        meta_fields={"task": "int", "goal": ("float", 2)},
        circular=True,
    )
    for number, length in enumerate(LENGTHS):
        t = np.arange(length)
        x = np.stack([np.full(length, number), t], 1)
        image = np.broadcast_to((16 * number + t)[:, None, None], (length, 9, 9))
        made.store_episode(x=x, t=t, image=image, task=number % 2)
    yield made
    made.close()


MODES: dict[str, dict[str, Any]] = {
    "episodes": {"return_mask": True},
    "steps": {"timestep_level": True, "filter_meta": {"task": 1}},
    "transitions": {"n_steps": 3, "sequence_fields": ("t",)},
    "named": {"to_named_tuple": ("x", "task", "_mask", "_lens"), "return_mask": True},
}


def plain(batch: Any) -> dict[str, Any]:
    batch = batch if isinstance(batch, dict) else batch._asdict()
    return {name: (str(value.dtype), value.tolist()) for name, value in batch.items()}


@pytest.mark.parametrize(
    ("mode", "start"),
    [
        *((mode, "fork") for mode in MODES),
        pytest.param("named", "spawn", marks=pytest.mark.proof),
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


def test_an_overwritten_episode_is_refused_in_another_process_too(buffer: ReplayBuffer) -> None:
    dataset = pickle.loads(pickle.dumps(buffer.dataloader(2, fields=("t",)).dataset))
    for _ in range(8):
        buffer.store_episode(t=[100])
    assert plain(dataset.__getitems__([2]))["t"][1] == [[0, 1, 2]]
    with pytest.raises(NotEnoughData, match=rf"{re.escape(str(buffer.folder))}: .*\b1\b.*\b1\b"):
        dataset.__getitems__([1])


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
    (batch,) = buffer.dataloader(4, fields=("t",), fieldname_map={"t": "time", "_lens": "n"})
    assert sorted(batch) == ["goal", "n", "task", "time"]
    assert batch["time"].shape == (4, 8)
    names = ("task", "x", "_mask")
    (batch,) = buffer.dataloader(4, return_mask=True)
    (named,) = buffer.dataloader(4, return_mask=True, to_named_tuple=names)
    for name, value in zip(names, named, strict=True):
        assert torch.equal(value, batch[name])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"n_steps": 2, "timestep_level": True}, r"n_steps.*timestep_level"),
        ({"return_mask": True, "n_steps": 2}, "return_mask"),
        ({"return_mask": True, "timestep_level": True}, "return_mask"),
        ({"filter_meta": {"y": 1}}, r"filter_meta.*'y'.*task, goal"),
        ({"filter_meta": {"goal": 1}}, r"filter_meta.*'goal'.*\(2,\)"),
        ({"fields": ("y",)}, r"fields.*'y'.*x, t, image"),
        ({"sequence_fields": ("y",), "n_steps": 2}, r"sequence_fields.*'y'.*x, t, image"),
        ({"fields": "x"}, r"fields.*'x'"),
        ({"fieldname_map": {"y": "z"}}, r"fieldname_map.*'y'.*x, t, image, _lens, task"),
        ({"fieldname_map": {"x": "t"}}, r"fieldname_map.*'t' twice"),
        ({"fieldname_map": {"x": "next_t"}, "n_steps": 2}, r"fieldname_map.*'next_t' twice"),
        ({"n_steps": 0}, r"n_steps.*>= 1.*\b0\b"),
        ({"to_named_tuple": ("x", "_x")}, r"to_named_tuple.*'x'"),
        ({"to_named_tuple": ("a b",)}, r"to_named_tuple.*'a b'"),
        ({"to_named_tuple": ("y",)}, r"to_named_tuple: .*x, t, image, task.*'y'"),
        ({"batch_size": None}, "^batch_size: expected "),
        ({"collate_fn": list}, "^collate_fn: expected "),
        ({"dataset": [1]}, "^dataset: expected "),
    ],
)
def test_contradictory_loader_options_are_refused(
    buffer: ReplayBuffer, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        next(iter(buffer.dataloader(**{"batch_size": 2, **options})))


@pytest.mark.parametrize("fields", [None, ()])
def test_an_episode_overwritten_during_a_read_is_refused(
    buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...] | None
) -> None:
    """Other episodes are stored meanwhile, as another thread may do."""
    batches, take = iter(buffer.dataloader(1, fields=fields)), SequenceReplayBuffer.take

    def overwrite(*arguments: Any) -> Any:
        rows = take(*arguments) if arguments else None
        for _ in range(7):
            buffer.store_episode(t=[100])
        return rows

    monkeypatch.setattr(SequenceReplayBuffer, "take", overwrite)
    if fields is not None:  # values of episodes alone, after others have come
        overwrite()
    with pytest.raises(NotEnoughData, match=rf"{re.escape(str(buffer.folder))}: .*\b1\b.*\b1\b"):
        next(batches)


@pytest.mark.parametrize("mode", ["episodes", "steps", "transitions"])
def test_the_items_of_a_data_set_are_those_of_batches_of_one(
    buffer: ReplayBuffer, mode: str
) -> None:
    loader = buffer.dataloader(1, **MODES[mode])
    items = [plain(item) for item in loader.dataset]  # until an IndexError
    batches = [{name: value[0] for name, value in batch.items()} for batch in loader]
    assert items == [plain(batch) for batch in batches]
    assert plain(loader.dataset[-1]) == items[-1]
