"""Each known bug of the original has a test that shows it fixed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import NotEnoughData, SequenceReplayBuffer, StoreCorrupt, StoreTooNew
from stepwell.buffers.dropin.memmap import ReplayBuffer
from support.crash.other_processes import in_fork

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")


def make(folder: Path, **options: Any) -> ReplayBuffer:
    arguments: dict[str, Any] = {"max_episodes": 4, "max_timesteps": 10, "fields": {"x": "float"}}
    return ReplayBuffer(folder, **(arguments | options))


def episodes(buffer: ReplayBuffer) -> list[list[float]]:
    """The field x of all stored episodes."""
    if not len(buffer):
        return []
    return [item["x"].tolist() for item in buffer.dataset()]


def play(buffer: ReplayBuffer, *values: float, **metas: object) -> None:
    with buffer.one_episode(**metas):
        for value in values:
            buffer.store(x=value)


def test_an_aborted_episode_is_removed(tmp_path: Path) -> None:
    """M1: after three steps and an exception, nothing is counted or visible in the next episode."""
    buffer = make(tmp_path, meta_fields={"task": ("int", (), 7)})
    with contextlib.suppress(KeyboardInterrupt), buffer.one_episode(task=3):
        for value in (1.0, 2.0, 3.0):
            buffer.store(x=value)
        raise KeyboardInterrupt
    assert (buffer.num_episodes, len(buffer), buffer.timestep_index) == (0, 0, 0)
    play(buffer, 9.0)
    data = buffer.get_all_data()
    assert data["x"].tolist() == [[9.0]]
    assert data["task"].tolist() == [7]
    assert buffer.data["x"][0].tolist() == [9.0] + 9 * [0.0]


def test_a_full_buffer_refuses_new_episodes_and_is_unchanged(tmp_path: Path) -> None:
    """M2: neither store_episode nor a bare store overwrites the oldest episode."""
    buffer = make(tmp_path, max_episodes=1)
    full = r"\b1\b.*max_episodes=1\b.*\b0\b"
    buffer.store_episode(x=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=full):
        buffer.store_episode(x=[-1.0, -2.0])
    with pytest.raises(ValueError, match=full):
        buffer.store(x=-1.0)
    with pytest.raises(ValueError, match=full), buffer.one_episode():
        pass
    with pytest.raises(ValueError, match=full):
        buffer.store_batch(x=[-1.0])
    assert episodes(buffer) == [[1.0, 2.0, 3.0]]
    assert buffer.is_new_episode


def test_the_oldest_episode_is_kept_until_the_new_one_is_complete(tmp_path: Path) -> None:
    """M3: in a full ring an unfinished episode is not visible and hides no other."""
    buffer = make(tmp_path, max_episodes=2, circular=True)
    play(buffer, 1.0, 2.0)
    play(buffer, 3.0)
    with buffer.one_episode():
        assert episodes(buffer) == [[1.0, 2.0], [3.0]]
        buffer.store(x=99.0)
        assert episodes(buffer) == [[1.0, 2.0], [3.0]]
    assert episodes(buffer) == [[99.0], [3.0]]  # by slot: the oldest one was in slot 0


def test_a_killed_process_does_not_join_two_episodes(tmp_path: Path) -> None:
    """M4: after three steps and a kill, the next episode of two steps has two steps."""
    folder = tmp_path / "buffer"
    code = (
        "import os, sys\n"
        "from stepwell.buffers.dropin.memmap import ReplayBuffer\n"
        "buffer = ReplayBuffer(sys.argv[1], 4, 10, {'x': 'float'})\n"
        "for value in (1.0, 2.0, 3.0):\n"
        "    buffer.store(x=value)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, folder]).returncode == -9
    buffer = ReplayBuffer.from_folder(folder)
    assert buffer.num_episodes == 0
    play(buffer, 100.0, 101.0)
    assert episodes(buffer) == [[100.0, 101.0]]


def test_opening_a_folder_again_keeps_its_episodes(tmp_path: Path) -> None:
    """M5: stored episodes are removed only with overwrite=True."""
    play(make(tmp_path), 1.0)
    buffer = make(tmp_path)
    assert episodes(buffer) == [[1.0]]
    assert episodes(make(tmp_path, overwrite=True)) == []
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: .*\bclosed\b"):
        buffer.store(x=1.0)


def test_a_short_episode_takes_little_space(tmp_path: Path) -> None:
    """M6: 10 frames of at most 1,000 take the space of 10 frames."""
    fields = {"image": ("uint8", (84, 84))}
    buffer = make(tmp_path, max_episodes=100, max_timesteps=1000, fields=fields)
    noise = np.random.default_rng(0).integers(0, 256, (10, 84, 84), dtype=np.uint8)
    buffer.store_episode(image=noise)
    buffer.close()
    taken = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())
    assert noise.nbytes < taken < noise.nbytes + (128 << 10)  # 7.1 MB in the original


def test_a_step_does_not_sync_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M7: the disk is synced at the end of an episode, not at its steps."""
    files = importlib.import_module("stepwell.buffers.storage.disk.files")
    calls: list[object] = []
    buffer = make(tmp_path, max_timesteps=1000)
    play(buffer, 1.0)  # creates the first file
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(files.Files, name, lambda self, file: calls.append(file))
    with buffer.one_episode():
        for value in range(500):
            buffer.store(x=value)
        assert calls == []
    assert len(calls) == 1
    assert episodes(buffer)[1] == list(range(500))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", np.int64(2**40)),
        ("int", 2**40),
        ("uint8", 300),
        ("uint8", -1),
        ("int", 3.9),
        ("uint8", 0.7),
        ("bool", 2),
        ("int", float("nan")),
        ("float", 1e300),
        ("float", 2**24 + 1),
        ("float", "1"),
    ],
)
def test_a_number_that_the_dtype_cannot_hold_is_refused(
    tmp_path: Path, kind: str, value: Any
) -> None:
    """M8: no method casts a value to another one."""
    buffer = make(tmp_path, fields={"x": kind}, meta_fields={"m": kind})
    array = np.asarray(value)
    got = rf"(?<!\w){re.escape(str(array.ravel()[0]))}(?!\w)"
    field, meta_field = rf"'x'.*{got}", rf"'m'.*{got}"
    with pytest.raises(ValueError, match=field):
        buffer.store(x=value)
    with pytest.raises(ValueError, match=field):
        buffer.store_batch(x=[value, value])
    with pytest.raises(ValueError, match=field):
        buffer.store_episode(x=array[None])
    with pytest.raises(ValueError, match=meta_field), buffer.one_episode(m=value):
        pass
    buffer.discard_episode()
    buffer.store_episode(x=[1], m=1)
    with pytest.raises(ValueError, match=field):
        buffer.update(x=array[None, None])
    with pytest.raises(ValueError, match=meta_field):
        buffer.update(m=value)
    with pytest.raises(ValueError, match=field):
        buffer.store_datapoint(0, 0, "x", value)
    with pytest.raises(ValueError, match=meta_field):
        buffer.store_meta_datapoint(0, "m", value)
    assert buffer.get_all_data()["x"].tolist() == [[1]]
    assert buffer.get_all_data()["m"].tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("int", 3.0, 3),
        ("int", np.uint8(200), 200),
        ("int", True, 1),
        ("float", 0.1, np.float32(0.1)),
        ("float", 7, 7.0),
        ("float", float("inf"), np.inf),
        ("bool", 1, True),
        ("uint8", np.int64(255), 255),
        ("float", [2.0], 2.0),
    ],
)
def test_a_number_that_the_dtype_holds_is_stored(
    tmp_path: Path, kind: str, value: Any, kept: Any
) -> None:
    buffer = make(tmp_path, fields={"x": kind}, meta_fields={"m": kind})
    with buffer.one_episode(m=value):
        assert buffer.store(x=value).x == kept
    assert buffer.get_all_data()["x"].tolist() == [[kept]]
    assert ReplayBuffer.from_folder(tmp_path, read_only=True).meta_data["m"][0] == kept


def test_unknown_fields_and_empty_steps_are_refused(tmp_path: Path) -> None:
    """M9: a misspelt field is an error, and so is a step without fields."""
    buffer = make(tmp_path, meta_fields={"task": "int"})
    with pytest.raises(ValueError, match=r"store: .*'y'.* x"):
        buffer.store(x=1.0, y=2.0)
    with pytest.raises(ValueError, match=r"store: .* x"):
        buffer.store()
    with pytest.raises(ValueError, match=r"store_batch: .* x"):
        buffer.store_batch()
    with pytest.raises(ValueError, match=r"'tsk'.* task"):
        with buffer.one_episode(tsk=1):
            pass
    with pytest.raises(ValueError, match=r"store_episode: .*'y'.* x, task"):
        buffer.store_episode(y=[1.0])
    with pytest.raises(ValueError, match=r"store_episode: .* x, task"):
        buffer.store_episode()
    with pytest.raises(ValueError, match=r"update: .*'y'.* x, task"):
        buffer.update(y=1.0)
    assert (buffer.num_episodes, buffer.timestep_index) == (0, 0)


def test_a_batch_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """M10: six episodes for four slots, or five for a ring of three, are an error."""
    buffer = make(tmp_path / "a")
    with pytest.raises(ValueError, match=r"max_episodes=4\b.*\b6\b"):
        buffer.store_batch(x=np.arange(6.0))
    ring = make(tmp_path / "b", max_episodes=3, circular=True)
    with pytest.raises(ValueError, match=r"max_episodes=3\b.*\b5\b"):
        with ring.batched_episode(5):
            pass
    play(buffer, 1.0)
    with pytest.raises(ValueError, match=r"\b4\b.*max_episodes=4\b.*\b3\b"):
        buffer.store_batch(x=np.arange(4.0))
    buffer.store_batch(x=np.arange(3.0))
    with pytest.raises(ValueError, match=r"\b3 episodes.*\b2 episodes"):
        buffer.store_batch(x=np.arange(2.0))
    with pytest.raises(ValueError, match=r"advance_episode: .*batch_size=3\b.*\b1\b"):
        buffer.advance_episode()
    buffer.advance_episode(3)
    assert episodes(buffer) == [[1.0], [0.0], [1.0], [2.0]]


def test_nothing_in_the_folder_is_a_pickle(tmp_path: Path) -> None:
    """M11: the configuration is JSON; a damaged one is an error."""
    buffer = make(tmp_path, meta_fields={"task": "int"})
    play(buffer, 1.0)
    buffer.update(x=2.0)
    buffer.close()
    names = {file.name for file in tmp_path.rglob("*")}
    assert not [name for name in names if name.endswith(".pkl")]
    path = tmp_path / "replay_buffer.json"
    config = json.loads(path.read_text())
    assert config["max_episodes"] == 4
    path.write_text(json.dumps(config | {"version": 99}))
    with pytest.raises(StoreTooNew, match=r"replay_buffer\.json.*\b99\b.*\b1\b"):
        ReplayBuffer.from_folder(tmp_path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(StoreCorrupt, match=r"replay_buffer\.json"):
        ReplayBuffer.from_folder(tmp_path)


def test_a_dataset_refuses_episodes_that_were_overwritten(
    tmp_path: Path,
) -> None:
    """M12: a dataset never returns a newer episode in place of its own."""
    folder = re.escape(str(tmp_path))
    buffer = make(tmp_path, max_episodes=2, circular=True)
    play(buffer, 1.0)
    dataset = buffer.dataset()
    play(buffer, 2.0)
    assert (len(dataset), len(buffer.dataset())) == (1, 2)
    assert dataset[0]["x"].tolist() == [1.0]
    both = buffer.dataset(timestep_level=True)
    play(buffer, 3.0)
    with pytest.raises(NotEnoughData, match=rf"{folder}: .*\b1\b.*\b1\b"):
        dataset[0]
    with pytest.raises(NotEnoughData, match=rf"{folder}: .*\b2\b.*\b1\b"):
        both.__getitems__([0, 1])
    assert both[1]["x"] == 2.0
    assert episodes(buffer) == [[3.0], [2.0]]
    buffer.clear()
    with pytest.raises(NotEnoughData, match=rf"{folder} .*store-0.*store-1"):
        both[1]


def test_windows_are_drawn_with_the_seed_of_the_dataset(tmp_path: Path) -> None:
    """M13: a dataset's seed determines its windows; numpy's global generator is not used."""
    from stepwell.buffers.dropin.memmap import ReplayDatasetTimeWindow

    buffer = make(tmp_path, max_timesteps=100)
    buffer.store_episode(x=np.arange(100.0))

    def starts(seed: int) -> list[int]:
        dataset = ReplayDatasetTimeWindow(buffer, 5, return_indices=True, seed=seed)
        return [int(dataset[0]["_start"]) for _ in range(20)]

    before = str(np.random.get_state())  # noqa: NPY002
    assert starts(1) == starts(1) != starts(2)
    assert str(np.random.get_state()) == before  # noqa: NPY002
    assert len(set(starts(3))) > 10


def test_numbers_are_stored_without_torch(tmp_path: Path) -> None:
    """M13: torch is imported only to return tensors."""
    code = (
        "import sys\n"
        "from stepwell.buffers.dropin.memmap import ReplayBuffer\n"
        "buffer = ReplayBuffer(sys.argv[1], 4, 10, {'x': 'float'}, {'task': 'int'})\n"
        "with buffer.one_episode(task=1):\n"
        "    buffer.store(x=1.0)\n"
        "buffer.update(x=2.0)\n"
        "assert buffer.data['x'][0, 0] == 2.0\n"
        "buffer.close()\n"
        "assert 'torch' not in sys.modules, 'loaded'\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code, tmp_path / "b"])
    assert run.returncode == 0


# Opening.


def test_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    make(tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_episodes": 5}, r"max_episodes\b.*\b4\b.*\b5\b"),
        ({"max_timesteps": 5}, r"max_timesteps\b.*\b10\b.*\b5\b"),
        ({"circular": True}, r"circular\b.*\bFalse\b.*\bTrue"),
        ({"fields": {"x": "int"}}, r"fields: .*x: float \(\), default 0\.0.*x: int"),
        ({"fields": {"x": "float", "y": "int"}}, r"fields: .*'y'.*y: int"),
        (
            {"meta_fields": {"m": ("bool", 3, True)}},
            r"meta_fields: .*'m'.*m: bool \(3,\), default True",
        ),
    ]
    for options, problem in cases:
        with pytest.raises(ValueError, match=problem):
            make(tmp_path, **options)
        with pytest.raises(ValueError, match=problem):
            make(tmp_path, read_only=True, **options)
    assert make(tmp_path, fields=...).shapes == {"x": ()}


def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (True, False):
        with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: .*'thesis\.txt'"):
            make(tmp_path, overwrite=overwrite)
    with pytest.raises(ValueError, match=r"nowhere.* replay_buffer\.json"):
        ReplayBuffer.from_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"nowhere.* replay_buffer\.json"):
        make(tmp_path / "nowhere", read_only=True)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "metadata.pkl").write_bytes(b"")
    for open_folder in (make, ReplayBuffer.from_folder):
        with pytest.raises(ValueError, match=r"stepwell import .* --from memmap-replay-buffer"):
            open_folder(tmp_path)


def test_two_buffers_of_one_process_share_the_folder(tmp_path: Path) -> None:
    one, other = make(tmp_path), ReplayBuffer.from_folder(tmp_path)
    play(one, 1.0)
    play(other, 2.0)
    assert episodes(one) == episodes(other) == [[1.0], [2.0]]
    assert str(tmp_path) in in_fork(lambda: ReplayBuffer.from_folder(tmp_path))  # locked
    assert in_fork(lambda: ReplayBuffer.from_folder(tmp_path, read_only=True).num_episodes) == "2"
    one.close()
    play(other, 3.0)
    assert "StoreLocked" in in_fork(lambda: ReplayBuffer.from_folder(tmp_path))
    other.close()
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: .*\bclosed\b"):
        play(other, 4.0)
    assert in_fork(lambda: ReplayBuffer.from_folder(tmp_path).num_episodes) == "3"


def test_a_garbage_collected_buffer_releases_its_folder(tmp_path: Path) -> None:
    buffer = make(tmp_path, meta_fields={"m": "int"})
    play(buffer, 1.0, m=2)
    buffer.update(x=3.0, m=4)
    gc.disable()  # no reference cycle holds it
    try:
        del buffer
        got = in_fork(lambda: episodes(ReplayBuffer.from_folder(tmp_path)))
    finally:
        gc.enable()
    assert got == "[[3.0]]"


def test_a_reader_sees_new_episodes_after_a_refresh(tmp_path: Path) -> None:
    writer = make(tmp_path, max_episodes=2, circular=True, meta_fields={"m": "int"})
    reader = ReplayBuffer.from_folder(tmp_path, read_only=True)
    assert not reader.refresh()
    for number in range(3):
        play(writer, number, m=number)
    assert reader.num_episodes == 0
    assert reader.refresh()
    assert not reader.refresh()
    assert episodes(reader) == [[2.0], [1.0]]
    writer.update(0, x=7.0, m=9)
    assert episodes(reader) == [[2.0], [1.0]]
    assert reader.refresh()
    assert episodes(reader) == [[7.0], [1.0]]
    assert reader.meta_data["m"].tolist() == [9, 1]
    writer.clear()
    assert episodes(reader) == [[7.0], [1.0]]  # its mapped files remain readable
    assert reader.refresh()
    assert episodes(reader) == []
    for name in ("store", "store_batch", "store_episode", "update"):
        with pytest.raises(ValueError, match=rf"\b{name}\b.*read_only=False"):
            getattr(reader, name)(x=[1.0])
    for call in (reader.clear, reader.advance_episode):
        with pytest.raises(ValueError, match=rf"\b{call.__name__}\b.*read_only=False"):
            call()


def test_the_folder_contains_a_stepwell_store(tmp_path: Path) -> None:
    buffer = make(tmp_path, meta_fields={"m": "int", "f": "float"})
    play(buffer, 1.0, 2.0, m=3, f=float("nan"))
    path = buffer.replay.path
    buffer.close()
    assert path is not None
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        (episode,) = replay.iter_episodes()
        assert episode.observation["x"].tolist() == [1.0, 2.0]
        assert episode.metadata == {"m": 3, "f": "nan"}  # JSON has no NaN
        assert not episode.terminated.any()
    assert np.isnan(ReplayBuffer.from_folder(tmp_path).meta_data["f"][0])


def test_clearing_frees_the_disk_space(tmp_path: Path) -> None:
    buffer = make(tmp_path)
    play(buffer, 1.0)
    buffer.update(x=2.0)
    buffer.clear()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "LOCK",
        "replay_buffer.json",
        "store-1",
    ]
    play(buffer, 5.0)
    assert episodes(ReplayBuffer.from_folder(tmp_path, read_only=True)) == [[5.0]]


def test_the_size_of_a_ring_is_bounded(tmp_path: Path) -> None:
    fields = {"image": ("uint8", (64, 64))}
    options = {"max_episodes": 3, "max_timesteps": 8, "fields": fields, "circular": True}
    buffer = make(tmp_path, **options)
    noise = np.random.default_rng(0).integers(0, 256, (8, 64, 64), dtype=np.uint8)
    sizes = []
    for _ in range(300):
        buffer.store_episode(image=noise)
        sizes.append(buffer.replay.nbytes)
        assert buffer.get_all_data()["image"].shape[0] == min(len(sizes), 3)
    assert max(sizes[150:]) <= max(sizes[:150]) < 8 << 20  # three of them are 98 kB
    assert buffer.get_all_data()["image"].shape == (3, 8, 64, 64)


def test_a_ring_of_one_step_episodes_is_bounded(tmp_path: Path) -> None:
    limits = {"max_episodes": 500, "max_timesteps": 1, "circular": True}
    buffer = make(tmp_path, fields={"x": ("float", 64)}, **limits)
    for _ in range(30):
        buffer.store_episodes([{"x": np.zeros((1, 64))}] * 500)
    assert len(buffer.replay.storage.index) < 10_000  # of 15,000: files hold 4,096


# Storing.


def test_a_second_open_episode_is_refused(tmp_path: Path) -> None:
    buffer = make(tmp_path)
    buffer.store(x=1.0)
    problem = r"open episode.*\b1 steps.*advance_episode"
    with pytest.raises(ValueError, match=problem), buffer.one_episode():
        pass
    with pytest.raises(ValueError, match=problem), buffer.batched_episode(2):
        pass
    with pytest.raises(ValueError, match=r"\b1 episode\b.*\b2 episodes"):
        buffer.store_batch(x=[1.0, 2.0])
    buffer.store_episode(x=[5.0, 6.0])  # stored first: the other one is still open
    buffer.advance_episode()
    buffer.advance_episode()
    assert episodes(buffer) == [[5.0, 6.0], [1.0]]
    with buffer.one_episode():
        buffer.store(x=1.0)
        with pytest.raises(ValueError, match=r"advance_episode: .*one_episode"):
            buffer.advance_episode()
    with pytest.raises(ValueError, match=r"max_timesteps.*\b10\b"):
        play(buffer, *range(11))
    buffer.store_batch(x=[1.0])
    buffer.discard_episode()
    assert (buffer.num_episodes, buffer.timestep_index) == (3, 0)


def test_stored_values_are_copies(tmp_path: Path) -> None:
    buffer = make(tmp_path, fields={"x": ("float", 2)}, meta_fields={"m": ("int", 2)})
    frame, task = np.zeros(2, np.float32), np.ones(2, np.int32)
    with buffer.one_episode(m=task):
        task[:] = 7
        for t in range(3):
            frame[:] = t
            buffer.store(x=frame)
    assert buffer.get_all_data()["x"].tolist() == [[[0, 0], [1, 1], [2, 2]]]
    assert buffer.meta_data["m"][0].tolist() == [1, 1]
    got = buffer.data["x"][0]
    got[:] = 9
    with pytest.raises(TypeError, match=r"'x'.*update"):
        buffer.data["x"][0] = 9
    values = np.full((1, 3, 2), 4.0, np.float32)
    buffer.update(x=values)
    values[:] = 5
    assert buffer.get_all_data()["x"].tolist() == [[[4, 4]] * 3]


def test_fields_that_cannot_be_stored_are_refused(tmp_path: Path) -> None:
    for fields, problem in [
        ({}, r"^fields: .*one"),
        ({"x": "double"}, r"'x'.*float, int, bool, uint8.*'double'"),
        ({"x": ("uint8", (), 0.5)}, r"default.*'x'.*uint8.*\b0\.5"),
        ({"x": ("float", (0,))}, r"'x'.*>= 1.*\(0,\)"),
        ({"_x": "float"}, r"field.*'_x'"),
        ({"a b": "float"}, r"field.*'a b'"),
        ({"episode_lens": "int"}, r"fields.*meta_fields.*'episode_lens'"),
        ({"m": "int"}, r"fields.*meta_fields.*'m'"),
    ]:
        with pytest.raises(ValueError, match=problem):
            make(tmp_path / "no", fields=fields, meta_fields={"m": "int"})
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"x": np.zeros((3, 2))}, r"'x'.*\(any\).*\(3, 2\)"),
        ({"x": 1.0}, r"'x'.*\(any\).*\(\)"),
        ({"x": []}, r"'x': 0"),
        ({"x": np.zeros(3), "y": np.zeros((2, 3))}, r"'x': 3, 'y': 2"),
        ({"x": np.zeros(11), "y": np.zeros((11, 3))}, r"\b11\b.*max_timesteps=10\b"),
        ({"m": 1}, r"\bx, y\b"),
        ({"x": np.zeros(3), "m": [1, 2]}, r"'m'.*\(\).*\(2,\)"),
    ],
)
def test_an_episode_that_does_not_fit_is_refused(
    tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    fields = {"x": "float", "y": ("float", 3)}
    buffer = make(tmp_path, fields=fields, meta_fields={"m": "int"})
    with pytest.raises(ValueError, match=problem):
        buffer.store_episode(**given)
    assert buffer.num_episodes == 0


# Updating.


def test_update_broadcasts_values_as_the_original_does(tmp_path: Path) -> None:
    fields = {"x": "float", "v": ("float", 2)}
    buffer = make(tmp_path, fields=fields, meta_fields={"m": ("int", 2)})
    for rows in (3, 1, 2):
        buffer.store_episode(x=np.zeros(rows))
    buffer.update(x=[[1.0, 2.0]])  # the same for all episodes; later steps keep their values
    assert buffer.get_all_data()["x"].tolist() == [[1, 2, 0], [1, 0, 0], [1, 2, 0]]
    buffer.update(1, x=5.0)  # a number: the first step
    buffer.update(indices=[2, 0], x=[[7.0], [8.0]])
    assert buffer.get_all_data()["x"].tolist() == [[8, 2, 0], [5, 0, 0], [7, 2, 0]]
    buffer.update(slice(1, None), v=torch.tensor([[1.0, 2.0], [3.0, 4.0]]))  # same in both elements
    assert buffer.get_all_data()["v"][1:, :2].tolist() == [[[1, 1], [0, 0]], [[3, 3], [4, 4]]]
    buffer.update(np.int64(0), m=[4, 5])
    buffer.update([1], m=6)
    assert buffer.get_all_data()["m"].tolist() == [[4, 5], [6, 6], [0, 0]]


def test_an_update_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    buffer = make(tmp_path, fields={"x": "float", "y": "int"})
    play(buffer, 1.0, 2.0)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (None, {}, r"^update: .* x, y"),
        (1, {"x": 0.0}, r"indices: .*\b0 to 0\b.*\[1\]"),
        ([-1], {"x": 0.0}, r"indices: .*\b0 to 0\b.*\[-1\]"),
        ([0, 0], {"x": 0.0}, r"indices: .*\[0, 0\]"),
        (0.5, {"x": 0.0}, r"indices: .*\b0\.5"),
        (0, {"x": [9.0, 9.0], "y": [0.5, 0.5]}, r"'y'.*int32.*\b0\.5"),
        (None, {"x": np.zeros((2, 2))}, r"'x'.*\(1, 2\).*\(2, 2\)"),
        (None, {"x": np.zeros(2)}, r"'x'.*\(2,\)"),
        (0, {"x": np.zeros(11)}, r"'x'.*max_timesteps=10\b.*\b11\b"),
    ]
    for indices, given, problem in cases:
        with pytest.raises(ValueError, match=problem):
            buffer.update(indices, **given)
    for slot, step, problem in [
        (0, 2, r"timestep_index: .*\b0 to 1\b.*\b2\b"),
        (1, 0, r"indices: .*\b0 to 0\b.*\[1\]"),
    ]:
        with pytest.raises(ValueError, match=problem):
            buffer.store_datapoint(slot, step, "x", 1.0)
    assert episodes(buffer) == [[1.0, 2.0]]
    assert not (tmp_path / "updates-0").exists()


def test_a_step_of_the_open_episode_can_be_changed(tmp_path: Path) -> None:
    buffer = make(tmp_path, meta_fields={"m": "int"})
    play(buffer, 1.0)
    with buffer.one_episode():
        buffer.store(x=2.0)
        buffer.store_datapoint(1, 0, "x", 3.0)
        buffer.store_meta_datapoint(1, "m", 4)
        buffer.store_meta_datapoint(0, "m", 5)
    buffer.store_batch_datapoint([0, 1], 0, "x", [8.0, 9.0])
    assert episodes(buffer) == [[8.0], [9.0]]
    assert buffer.meta_data["m"].tolist() == [5, 4, 0, 0]


def test_repeated_updates_take_bounded_space(tmp_path: Path) -> None:
    buffer = make(tmp_path, max_timesteps=20_000)
    buffer.store_episode(x=np.zeros(20_000))
    for value in range(300):
        buffer.update(x=np.full((1, 20_000), value))
        assert len(list((tmp_path / "updates-0").glob("segment*"))) <= 3
    taken = sum(file.stat().st_size for file in (tmp_path / "updates-0").iterdir())
    assert taken < 20 << 20  # 300 of them are 24 MB
    buffer.close()
    assert ReplayBuffer.from_folder(tmp_path).data["x"][0, 19_999] == 299.0


def test_updates_of_overwritten_episodes_are_dropped(tmp_path: Path) -> None:
    buffer = make(tmp_path, max_episodes=2, circular=True, meta_fields={"m": "int"})
    play(buffer, 1.0)
    play(buffer, 2.0)
    buffer.update(x=[[7.0]], m=8)
    reader = ReplayBuffer.from_folder(tmp_path, read_only=True)
    play(buffer, 3.0)
    assert reader.refresh()
    buffers = [buffer, reader, ReplayBuffer.from_folder(tmp_path, read_only=True)]
    for each in buffers:
        assert episodes(each) == [[3.0], [7.0]]
        assert each.meta_data["m"].tolist() == [0, 8]
        updates = each.stored.updates
        assert [updates.of("x", number) for number in (0, 2)] == [None, None]
        assert list(updates.metas["m"]) == [1]


def test_damaged_updates_are_errors(tmp_path: Path) -> None:
    buffer = make(tmp_path)
    play(buffer, 1.0)
    buffer.update(x=np.full((1, 1), 1.2345678))  # bytes that occur once in the file
    buffer.close()
    (file,) = (tmp_path / "updates-0").glob("segment*")
    data = file.read_bytes()
    assert data.count(np.float32(1.2345678).tobytes()) == 1
    file.write_bytes(data.replace(np.float32(1.2345678).tobytes(), np.float32(3).tobytes()))
    damaged = ReplayBuffer.from_folder(tmp_path, read_only=True)
    assert damaged.num_episodes == 1
    with pytest.raises(StoreCorrupt, match=r"updates-0/segment-00000000\.bin"):
        damaged.get_all_data()
