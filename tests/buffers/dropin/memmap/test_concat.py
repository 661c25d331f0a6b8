"""A ConcatReplayBuffer returns what one buffer with all the episodes returns."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers.dropin.memmap import ConcatReplayBuffer, ReplayBuffer
from support.examples import examples

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install 'stepwell[torch]'"
)
needs_original = pytest.mark.skipif(
    importlib.util.find_spec("memmap_replay_buffer") is None,
    reason="needs memmap-replay-buffer: pip install memmap-replay-buffer==0.2.3",
)

FIELDS: dict[str, Any] = {
    "state": ("float", (2,), 0.25),
    "action": ("int", (), 7),
    "done": "bool",
}
META: dict[str, Any] = {"task": "int"}
LENGTHS = [[3, 1, 5], [], [9, 2], [4]]


def episode(number: int, steps: int) -> dict[str, Any]:
    """Every value identifies the episode and the step."""
    time = np.arange(steps)
    return {
        "state": np.stack([np.full(steps, number), time], -1).astype(np.float32),
        "action": (number * 100 + time).astype(np.int32),
        "done": time == steps - 1,
        "task": number % 2,
    }


def fill(folder: str, numbered: Sequence[tuple[int, int]], room: int = 9, **more: Any) -> None:
    with closing(ReplayBuffer(folder, room, 9, fields=FIELDS, meta_fields=META, **more)) as buffer:
        buffer.store_episodes([episode(number, steps) for number, steps in numbered])


def fill_all(lengths: Sequence[Sequence[int]], prefix: str = "") -> list[str]:
    """Write one folder for each list of lengths, and `all` with all episodes."""
    numbered = list(enumerate(steps for part in lengths for steps in part))
    rest = iter(numbered)
    folders = [f"{prefix}part-{number}" for number in range(len(lengths))]
    for folder, part in zip(folders, lengths, strict=True):
        fill(folder, [next(rest) for _ in part])
    fill(f"{prefix}all", numbered, room=max(1, len(numbered)))
    return folders


@pytest.fixture
def both() -> Iterator[tuple[ConcatReplayBuffer, ReplayBuffer]]:
    folders = fill_all(LENGTHS)
    with (
        ConcatReplayBuffer(folders) as concat,
        closing(ReplayBuffer.from_folder("all", read_only=True)) as whole,
    ):
        yield concat, whole


def assert_equal(found: Any, expected: Any) -> None:
    """Compare two items, batches, or lists of them."""
    assert type(found).__name__ == type(expected).__name__
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_equal(list(found.values()), list(expected.values()))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_equal(a, b)
    else:
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert (found == expected).all()


MODES: list[dict[str, Any]] = [
    {},
    {"fields": ("action",)},
    {"fieldname_map": {"state": "seen"}, "include_metadata": False},
    {"slice_by_episode_len": False},
    {"return_episode_lens": False},
    {"filter_meta": {"task": 1}},
    {"timestep_level": True},
    {"timestep_level": True, "filter_fields": {"done": True}, "fields": ("state", "action")},
    {"n_steps": 3, "sequence_fields": ("action", "state")},
    {"n_steps": 1, "current_fields": ("state",), "next_fields": ("state",)},
]


@pytest.mark.parametrize("mode", range(len(MODES)))
def test_datasets_equal_those_of_one_buffer(
    mode: int, both: tuple[ConcatReplayBuffer, ReplayBuffer]
) -> None:
    found, expected = (buffer.dataset(**MODES[mode]) for buffer in both)
    assert len(found) == len(expected) > 0
    for place in (*range(len(expected)), -1, -len(expected)):
        assert_equal(found[place], expected[place])
    order = np.random.default_rng(0).permutation(len(expected)).tolist()
    for chosen in (order, order[:3], order[:1], [0, 0, -1]):
        assert_equal(list(found.__getitems__(chosen)), list(expected.__getitems__(chosen)))
        collated = (dataset.__getitems__(chosen).collated for dataset in (found, expected))
        assert_equal(*collated)
    for wrong in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match=rf"\b0\b.*\b{len(expected) - 1}\b.*\[{wrong}\]"):
            found[wrong]


LOADERS: list[dict[str, Any]] = [
    {"batch_size": 3},
    {"batch_size": 2, "return_mask": True, "to_named_tuple": ("state", "task", "_mask", "_lens")},
    {"batch_size": 4, "return_mask": True, "fieldname_map": {"state": "seen"}},
    {"batch_size": 5, "timestep_level": True, "drop_last": True},
    {"batch_size": 5, "timestep_level": True, "filter_meta": {"task": 1}},
    {"batch_size": 4, "n_steps": 2, "sequence_fields": ("action",)},
    {"batch_size": 3, "dataset_kwargs": {"slice_by_episode_len": False}},
    {"batch_size": 3, "fields": ("action",), "dataset_kwargs": {"include_metadata": False}},
]


@pytest.mark.parametrize("options", range(len(LOADERS)))
def test_loaders_equal_those_of_one_buffer(
    options: int, both: tuple[ConcatReplayBuffer, ReplayBuffer]
) -> None:
    found, expected = (list(buffer.dataloader(**LOADERS[options])) for buffer in both)
    assert_equal(found, expected)
    assert found


def test_shuffled_batches_equal_those_of_one_buffer(
    both: tuple[ConcatReplayBuffer, ReplayBuffer],
) -> None:
    import torch

    found, expected = (
        list(
            buffer.dataloader(
                4, timestep_level=True, shuffle=True, generator=torch.Generator().manual_seed(3)
            )
        )
        for buffer in both
    )
    assert_equal(found, expected)


@pytest.mark.parametrize(
    "names", [{}, {"fields": ("state",)}, {"meta_fields": ("task", "episode_lens")}]
)
def test_all_data_equals_that_of_one_buffer(
    names: Any, both: tuple[ConcatReplayBuffer, ReplayBuffer]
) -> None:
    found, expected = (buffer.get_all_data(**names) for buffer in both)
    assert sorted(found) == sorted(expected)
    assert_equal({name: found[name] for name in expected}, expected)


@settings(max_examples=examples(25))
@given(
    st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
    st.sampled_from(MODES),
)
def test_results_do_not_depend_on_how_episodes_are_split_over_folders(
    lengths: list[list[int]], seed: int, mode: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folders = fill_all(lengths, f"{root}/")
        with (
            ConcatReplayBuffer(folders) as concat,
            closing(ReplayBuffer.from_folder(f"{root}/all", read_only=True)) as whole,
        ):
            assert len(concat) == concat.num_episodes == len(whole)
            assert_equal(
                dict(sorted(concat.get_all_data().items())),
                dict(sorted(whole.get_all_data().items())),
            )
            if not len(whole):
                return
            found, expected = concat.dataset(**mode), whole.dataset(**mode)
            assert len(found) == len(expected)
            if not len(expected):
                return
            chosen = np.random.default_rng(seed).integers(0, len(expected), 6).tolist()
            assert_equal(list(found.__getitems__(chosen)), list(expected.__getitems__(chosen)))
            assert_equal([found[i] for i in chosen], [expected[i] for i in chosen])


def test_sizes_are_computed_over_all_buffers() -> None:
    for number, (episodes, room, most) in enumerate(((2, 4, 5), (0, 1, 30), (1, 7, 9))):
        with closing(
            ReplayBuffer(f"{number}", room, most, fields=FIELDS, meta_fields=META)
        ) as buffer:
            buffer.store_episodes([episode(number, 3)] * episodes)
    with ConcatReplayBuffer(["0", "1", "2"]) as concat:
        assert (len(concat), concat.num_episodes) == (3, 3)
        assert (concat.max_episodes, concat.max_timesteps) == (12, 30)
        assert concat.read_only
        assert concat.fieldnames == set(FIELDS)
        assert concat.meta_fieldnames == {"task", "episode_lens"}
        batch = next(iter(concat.dataloader(3, return_mask=True)))
        assert batch["_mask"].sum() == 9


def test_reading_buffers_without_episodes_is_refused() -> None:
    fill("a", [])
    fill("b", [])
    with ConcatReplayBuffer(["a", "b"]) as concat:
        assert len(concat) == 0
        assert concat.get_all_data() == {}
        for read in (concat.dataset, lambda: concat.dataloader(2)):
            with pytest.raises(ValueError, match=r"/a, .*/b, .*\b0\b"):
                read()


def test_refresh_shows_newly_stored_episodes() -> None:
    fill("a", [(0, 3)])
    fill("b", [(1, 2)])
    with ConcatReplayBuffer(["a", "b"]) as concat:
        for folder, number in (("a", 2), ("b", 3)):
            with closing(ReplayBuffer.from_folder(folder)) as writer:
                writer.store_episode(**episode(number, 4))
        assert len(concat) == 2
        assert concat.refresh()
        assert not concat.refresh()
        assert len(concat) == 4
        assert concat.get_all_data()["action"][:, 0].tolist() == [0, 200, 100, 300]


def test_writing_methods_are_refused(both: tuple[ConcatReplayBuffer, ReplayBuffer]) -> None:
    concat, _ = both
    for name in (
        "one_episode batched_episode store store_batch store_meta_batch store_episode "
        "store_episodes advance_episode update clear reset_ store_datapoint store_meta_datapoint "
        "store_batch_datapoint store_batch_meta_datapoint"
    ).split():
        with pytest.raises(NotImplementedError, match=r"ConcatReplayBuffer.*\bReplayBuffer"):
            getattr(concat, name)()
    concat.flush()
    assert len(concat) == 6


OTHER_FIELDS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({**FIELDS, "more": "int"}, META, r"other.* fields .*part.*'more'.*'int'"),
    (
        {name: FIELDS[name] for name in ("state", "action")},
        META,
        r"other.* fields .*part.*'done'.*'bool'",
    ),
    ({**FIELDS, "state": ("float", (3,))}, META, r"'state'.*'float', \(3,\).*'float', \(2,\)"),
    ({**FIELDS, "action": "float"}, META, r"'action'.*'float', \(\).*'int', \(\)"),
    (FIELDS, {}, r"meta_fields .*'task'.*'int', \(\)"),
    (FIELDS, {"task": ("int", 2)}, r"meta_fields .*'task'.*'int', \(2,\).*'int', \(\)"),
]


@pytest.mark.parametrize(("fields", "meta_fields", "problem"), OTHER_FIELDS, ids=range(6))
def test_buffers_with_different_fields_are_refused(
    fields: dict[str, Any], meta_fields: dict[str, Any], problem: str
) -> None:
    fill("part", [(0, 3)])
    ReplayBuffer("other", 3, 5, fields=fields, meta_fields=meta_fields).close()
    with pytest.raises(ValueError, match=problem):
        ConcatReplayBuffer(["part", "other"])


def test_folders_that_are_no_list_of_buffers_are_refused() -> None:
    fill("part", [(0, 3)])
    wrong: list[Any] = [[], "part"]
    for folders in wrong:
        with pytest.raises(ValueError, match=rf"folders.*{re.escape(repr(folders))}"):
            ConcatReplayBuffer(folders)
    with pytest.raises(ValueError, match="nowhere"):
        ConcatReplayBuffer(["part", "nowhere"])


def test_closing_twice_is_harmless() -> None:
    fill("part", [(0, 3)])
    concat = ConcatReplayBuffer(["part", "part"])
    assert len(concat) == 2, "a folder that is given twice counts twice"
    concat.close()
    concat.close()


@pytest.mark.full
def test_workers_read_all_folders(both: tuple[ConcatReplayBuffer, ReplayBuffer]) -> None:
    options: dict[str, Any] = {
        "timestep_level": True,
        "num_workers": 2,
        "multiprocessing_context": "forkserver",
        "to_named_tuple": ("state", "action"),
    }
    found, expected = both[0].dataloader(5, **options), both[1].dataloader(5, **options)
    assert_equal(list(found), list(expected))


@needs_original
def test_results_equal_those_of_the_original() -> None:
    original: Any = importlib.import_module("memmap_replay_buffer")
    for number, (room, most) in enumerate(((4, 9), (3, 5), (2, 12))):
        for kind, folder in (
            (original.ReplayBuffer, f"theirs-{number}"),
            (ReplayBuffer, f"ours-{number}"),
        ):
            buffer = kind(folder, room, most, fields=FIELDS, meta_fields=META)
            for place in range(0 if number == 1 else 2):
                buffer.store_episode(
                    **{n: np.asarray(v) for n, v in episode(number + place, 3 + number).items()}
                )
            buffer.flush()
            del buffer
    theirs = original.ConcatReplayBuffer([f"theirs-{number}" for number in range(3)])
    with ConcatReplayBuffer([f"ours-{number}" for number in range(3)]) as ours:
        for name in ("num_episodes", "max_episodes", "max_timesteps"):
            assert getattr(ours, name) == getattr(theirs, name)
        for options in MODES[0], MODES[6], {"n_steps": 2}:
            pairs = zip(ours.dataloader(3, **options), theirs.dataloader(3, **options), strict=True)
            for mine, other in pairs:
                assert_equal(dict(sorted(mine.items())), dict(sorted(other.items())))
        found, expected = ours.get_all_data(fields=("state",)), theirs.get_all_data(("state",))
        # After an episode's end the original has the default, or 0 where another buffer is longer.
        is_there = (expected["state"] != 0.25).all(-1) & (expected["state"] != 0).any(-1)
        assert found["state"].shape == expected["state"].shape
        assert (found["state"][is_there] == expected["state"][is_there]).all()
