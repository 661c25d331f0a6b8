"""A restored replay continues as the saved one; a checkpoint has the size of the state."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import DiskStorage, End, SequenceReplayBuffer, StoreCorrupt, StoreNotFound
from stepwell.buffers.storage.checkpoint import pack, unpack
from stepwell.buffers.testing import SPEC, Recording
from support.crash.disk_faults import NoSyncFiles


def filled(path: Path | None, episodes: int = 6) -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer(path, seed=3)
    replay.bind(SPEC, {})
    add(replay, Recording(), episodes)
    return replay


def add(replay: SequenceReplayBuffer, recording: Recording, episodes: int) -> None:
    for number in range(episodes):
        replay.add([recording.chunk(number % 2, 9, End.PENDING)])
        replay.add([recording.chunk(number % 2, 4, End.TERMINATED)])


def draw(replay: SequenceReplayBuffer, times: int = 5) -> list[int]:
    return [int(each) for _ in range(times) for each in replay.sample_sequences(7, 4).ids]


def test_it_draws_the_same_batches_after_a_crash_and_the_same_additions(tmp_path: Path) -> None:
    replay, recording = SequenceReplayBuffer(tmp_path / "a", seed=3), Recording()
    replay.bind(SPEC, {})
    add(replay, recording, 5)
    draw(replay)
    replay.save_checkpoint()
    shutil.copytree(tmp_path / "a", tmp_path / "killed")  # written, but not closed
    add(replay, recording, 3)
    expected = draw(replay)
    replay.close()
    other = Recording(next_episode=5)
    with SequenceReplayBuffer(tmp_path / "killed") as replay:
        replay.load_checkpoint()
        add(replay, other, 3)
        assert draw(replay) == expected


def test_checkpoints_have_names_and_are_replaced(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as replay:
        for updates in range(3):
            replay.save_checkpoint({"updates": updates})
        replay.save_checkpoint({"updates": 77}, name="best-1")
        assert replay.load_checkpoint() == {"updates": 2}
        assert replay.load_checkpoint("best-1") == {"updates": 77}
        with pytest.raises(StoreNotFound, match=r"'x'.* best-1, latest\b"):
            replay.load_checkpoint("x")
        with pytest.raises(ValueError, match=r"^name of a checkpoint: .*'\.\./a'"):
            replay.save_checkpoint(name="../a")
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True) as replay:
        assert replay.load_checkpoint("best-1") == {"updates": 77}
        with pytest.raises(ValueError, match="read_only=True"):
            replay.save_checkpoint()


def test_a_state_of_another_store_or_of_more_chunks_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one, filled(tmp_path / "b") as other:
        shutil.copytree(tmp_path / "a", tmp_path / "old")
        state = other.state_dict()
        expected = one.state_dict()["store"]
        with pytest.raises(ValueError, match=rf"store {state['store']}\b.* {expected}\b"):
            one.load_state_dict(state)
        add(one, Recording(next_episode=6), 1)
        state = one.state_dict()
    with SequenceReplayBuffer(tmp_path / "old") as old:
        before = old.state_dict()
        with pytest.raises(ValueError, match=r"\b14 chunks .*\b12\b"):
            old.load_state_dict(state)
        assert old.state_dict() == before


@pytest.mark.proof
def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as replay:
        replay.save_checkpoint({"weights": np.arange(40)})
        file = tmp_path / "a" / "checkpoint-latest.bin"
        whole = file.read_bytes()
        for place in range(len(whole)):
            data = bytearray(whole)
            data[place] ^= 1
            file.write_bytes(data)
            with pytest.raises(StoreCorrupt, match="'latest'"):
                replay.load_checkpoint()
        for length in (0, 5, 20, len(whole) - 1):
            file.write_bytes(whole[:length])
            with pytest.raises(StoreCorrupt, match="'latest'"):
                replay.load_checkpoint()
        file.write_bytes(whole)
        assert replay.load_checkpoint()["weights"].tolist() == list(range(40))


class CountingFiles(NoSyncFiles):
    """Counts the bytes that are written."""

    written = 0

    def pwrite(self, file: io.FileIO, data: memoryview, offset: int) -> int:
        self.written += len(data)
        return super().pwrite(file, data, offset)


def test_saving_writes_the_state_and_no_rows(tmp_path: Path) -> None:
    files = CountingFiles()
    storage = DiskStorage.create(tmp_path / "a", SPEC, files=files)
    replay, recording = SequenceReplayBuffer(seed=0), Recording()
    replay._use(storage)
    costs: list[int] = []
    for _ in range(3):
        add(replay, recording, 30)
        before = files.written
        replay.save_checkpoint({"weights": np.zeros(100)})
        costs.append(files.written - before)
    assert max(costs) < 2_000
    assert max(costs) - min(costs) < 20
    replay.close()


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**130), 2**130)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
)


@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_plain_values_are_restored(state: dict[str, Any]) -> None:
    state.pop("$array", None)
    try:
        packed = pack(state)
    except TypeError:
        assert "$array" in repr(state)
        return
    assert unpack(packed, "x") == state


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", ">f8", "<U3"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_restored_arrays_own_their_memory(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    found = unpack(pack({"a": {"b": [array, 3]}}), "x")["a"]["b"][0]
    assert found.dtype == array.dtype.newbyteorder("<")
    assert found.shape == shape
    assert np.array_equal(found, array)
    assert found.flags.writeable


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (object(), r"object\b"),
        ({1: 2}, r"\[1\]"),
        ({"$array": 1}, r"\['\$array'\]"),
        (float("nan"), r"float\b"),
        (np.array([None]), r"object\b"),
    ],
)
def test_unsupported_values_are_refused_before_anything_is_written(
    tmp_path: Path, bad: object, got: str
) -> None:
    with filled(tmp_path / "a") as replay:
        with pytest.raises(TypeError, match=rf"^a checkpoint.* {got}"):
            replay.save_checkpoint({"x": bad})
        assert not list((tmp_path / "a").glob("checkpoint*"))
        add(replay, Recording(next_episode=6), 1)  # the writer still works


@pytest.mark.parametrize("name", ["best/1", "", None])
def test_another_name_is_refused_and_the_writer_goes_on(tmp_path: Path, name: Any) -> None:
    with filled(tmp_path / "a") as replay:
        with pytest.raises(ValueError, match=rf"^name of a checkpoint: .*got {name!r}$"):
            replay.save_checkpoint(name=name)
        add(replay, Recording(next_episode=6), 1)


def test_a_forged_state_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    """The file was made by hand, with a right checksum."""
    with filled(tmp_path / "a") as replay:
        replay.sample_transitions(4, draw="priorities")
        before, state = replay.state_dict(), replay.state_dict()
        state["sampler"]["priorities"]["masses"] = np.full(3, np.nan)
        forged: list[tuple[dict[str, Any], str]] = [
            ({**state, "generator": {}}, "generator: .*PCG64"),
            (
                {**state, "generator": {**state["generator"], "uinteger": 1 << 99}},
                "generator: .*PCG64",
            ),
            ({**state, "pieces": "3"}, "pieces: .*'3'"),
            (
                {**state, "sampler": {"newest": [[1]], "priorities": None}},
                r"newest: .*\b3\b.*\b1\b",
            ),
            (state, "priorities: .*int64.*float64"),
            ({}, "store: .*none"),
        ]
        for each, message in forged:
            with pytest.raises(ValueError, match=message):
                replay.load_state_dict(each)
            replay.storage.save_checkpoint("x", {"replay": each, "learner": {}})  # type: ignore[attr-defined]
            with pytest.raises((StoreCorrupt, ValueError), match=message):
                replay.load_checkpoint("x")
            assert replay.state_dict()["generator"] == before["generator"]
        masses = replay.state_dict()["sampler"]["priorities"]["masses"]
        assert np.array_equal(masses, before["sampler"]["priorities"]["masses"])
