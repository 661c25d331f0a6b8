"""Each known bug of the original has a test that shows it fixed."""

from __future__ import annotations

import enum
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


MOST = f"expected a whole number up to {1 << 62}"


def make(folder: Path, **options: Any) -> ReplayBuffer:
    arguments: dict[str, Any] = {"max_episodes": 4, "max_timesteps": 10, "fields": {"x": "float"}}
    return ReplayBuffer(folder, **(arguments | options))


def episodes(buffer: ReplayBuffer) -> list[Any]:
    """The field x of all stored episodes."""
    if not len(buffer):
        return []
    return [batch["x"][0].tolist() for batch in buffer.dataloader(1)]


def metas(buffer: ReplayBuffer, name: str) -> list[Any]:
    """A field of all stored episodes."""
    return [value for batch in buffer.dataloader(2) for value in batch[name].tolist()]


def play(buffer: ReplayBuffer, *values: float, **metas: object) -> None:
    with buffer.one_episode(**metas):
        for value in values:
            buffer.store(x=value)


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


# A value that is stored for each kind, as what.
HELD: dict[str, tuple[Any, Any]] = {
    "int": (np.uint8(200), 200),
    "uint8": (3.0, 3),
    "bool": (1, True),
    "float": ([0.1], np.float32(0.1)),
}


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
    with pytest.raises(ValueError, match=field), buffer.one_episode():
        buffer.store(x=value)
    with pytest.raises(ValueError, match=field):
        buffer.store_episode(x=array[None])
    with pytest.raises(ValueError, match=meta_field), buffer.one_episode(m=value):
        pass
    with pytest.raises(ValueError, match=meta_field), buffer.one_episode() as later:
        later["m"] = value
    assert len(buffer) == 0
    value, kept = HELD[kind]
    with buffer.one_episode(m=value):
        buffer.store(x=value)
    assert episodes(buffer) == [[kept]]
    assert metas(ReplayBuffer.from_folder(tmp_path, read_only=True), "m") == [kept]


def test_a_type_may_be_a_member_of_an_enum_of_text(tmp_path: Path) -> None:
    kind: Any = enum.Enum("kind", {"REAL": "float"}, type=str)
    play(make(tmp_path, fields={"x": kind.REAL}), 1.0)
    assert episodes(ReplayBuffer.from_folder(tmp_path, read_only=True)) == [[1.0]]


def test_unknown_fields_and_empty_steps_are_refused(tmp_path: Path) -> None:
    """M9: a misspelt field is an error, and so is a step without fields."""
    buffer = make(tmp_path, meta_fields={"task": "int"})
    with buffer.one_episode() as later:
        with pytest.raises(ValueError, match=r"store: .*'y'.* x"):
            buffer.store(x=1.0, y=2.0)
        with pytest.raises(ValueError, match=r"store: .* x"):
            buffer.store()
    with pytest.raises(ValueError, match=r"'tsk'.* task"), buffer.one_episode(tsk=1):
        pass
    with pytest.raises(ValueError, match=r"'tsk'.* task"), buffer.one_episode() as later:
        later["tsk"] = 1
    with pytest.raises(ValueError, match=r"store_episode: .*'y'.* x, task"):
        buffer.store_episode(y=[1.0])
    with pytest.raises(ValueError, match=r"store_episode: .* x, task"):
        buffer.store_episode()
    assert buffer.num_episodes == 0


def test_nothing_in_the_folder_is_a_pickle(tmp_path: Path) -> None:
    """M11: the configuration is JSON; a damaged one is an error."""
    buffer = make(tmp_path, meta_fields={"task": "int"})
    play(buffer, 1.0)
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fields": {}}, "fields: expected at least one"),
        ({"fields": {"task": ["int", [], 0]}}, "'task' twice"),
        ({"fields": {"x": ["int", [0], 0]}}, "numbers >= 1"),
        ({"fields": {"x": ["uint8", [], 300]}}, "fit uint8, got 300"),
        ({"fields": {"x": ["int", []]}}, "a list of 3 values"),
        ({"fields": {"_x": ["int", [], 0]}}, "'_x'"),
        ({"fields": ["x"]}, "fields: expected an object"),
        ({"meta_fields": None}, "meta_fields: expected an object"),
        ({"max_episodes": 0}, "max_episodes: expected a whole number from 1"),
        ({"max_timesteps": 2.0}, "max_timesteps: expected a whole number from 1"),
        ({"max_timesteps": 1 << 60, "circular": True}, r"room for max_episodes \* max_timesteps"),
        ({"circular": 1}, "circular: expected true or false"),
        ({"store": -1}, "store: expected a whole number from 0"),
        ({"version": "1"}, "version: expected a whole number"),
        ({"format": "mine"}, "format: expected"),
    ],
)
def test_a_forged_configuration_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    make(tmp_path, max_episodes=16, meta_fields={"task": ("float", (), np.nan)}).close()
    path = tmp_path / "replay_buffer.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config))
    ReplayBuffer.from_folder(tmp_path, read_only=True).close()
    path.write_text(json.dumps(config | change))
    for read_only in (True, False):
        with pytest.raises(StoreCorrupt, match=rf"replay_buffer\.json is damaged .*{words}"):
            ReplayBuffer.from_folder(tmp_path, read_only=read_only)


def test_a_loader_refuses_episodes_that_were_overwritten(tmp_path: Path) -> None:
    """M12: a loader never returns a newer episode in place of one of its own."""
    folder = re.escape(str(tmp_path))
    buffer = make(tmp_path, max_episodes=2, circular=True)
    play(buffer, 1.0)
    one = buffer.dataloader(1)
    play(buffer, 2.0)
    assert (len(one), len(buffer.dataloader(1))) == (1, 2)
    assert [batch["x"].tolist() for batch in one] == [[[1.0]]]
    both = buffer.dataloader(2, timestep_level=True)
    play(buffer, 3.0)
    with pytest.raises(NotEnoughData, match=rf"{folder}: .*\b1\b.*\b1\b"):
        next(iter(one))
    with pytest.raises(NotEnoughData, match=rf"{folder}: .*\b2\b.*\b1\b"):
        next(iter(both))
    assert both.dataset.__getitems__([1])["x"] == 2.0
    assert episodes(buffer) == [[3.0], [2.0]]


def test_numbers_are_stored_without_torch(tmp_path: Path) -> None:
    """M13: torch is imported only to return tensors."""
    code = (
        "import sys\n"
        "from stepwell.buffers.dropin.memmap import ReplayBuffer\n"
        "buffer = ReplayBuffer(sys.argv[1], 4, 10, {'x': 'float'}, {'task': 'int'})\n"
        "with buffer.one_episode(task=1):\n"
        "    buffer.store(x=1.0)\n"
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


def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (True, False):
        with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: .*'thesis\.txt'"):
            make(tmp_path, overwrite=overwrite)
    for read_only in (True, False):
        with pytest.raises(ValueError, match=r"nowhere.* replay_buffer\.json"):
            ReplayBuffer.from_folder(tmp_path / "nowhere", read_only=read_only)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "metadata.pkl").write_bytes(b"")
    for open_folder in (make, ReplayBuffer.from_folder):
        with pytest.raises(ValueError, match=r"memmap-replay-buffer.*OriginalFolder"):
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
    gc.disable()  # no reference cycle holds it
    try:
        del buffer
        got = in_fork(lambda: episodes(ReplayBuffer.from_folder(tmp_path)))
    finally:
        gc.enable()
    assert got == "[[1.0]]"


def test_a_reader_sees_the_episodes_of_its_opening(tmp_path: Path) -> None:
    def opened() -> ReplayBuffer:
        return ReplayBuffer.from_folder(tmp_path, read_only=True)

    writer = make(tmp_path, max_episodes=2, circular=True, meta_fields={"m": "int"})
    empty = opened()
    for number in range(3):
        play(writer, number, m=number)
    reader = opened()
    assert (len(empty), episodes(reader)) == (0, [[2.0], [1.0]])
    play(writer, 3.0, m=3)
    assert (episodes(reader), metas(reader, "m")) == ([[2.0], [1.0]], [2, 1])
    assert (episodes(opened()), metas(opened(), "m")) == ([[2.0], [3.0]], [2, 3])
    make(tmp_path, max_episodes=2, circular=True, meta_fields={"m": "int"}, overwrite=True)
    assert (len(reader), len(opened())) == (2, 0)  # its mapped files remain readable
    assert episodes(reader) == [[2.0], [1.0]]
    for call, name in ((reader.store, "store"), (reader.store_episode, "store_episode")):
        with pytest.raises(ValueError, match=rf"\b{name}\b.*read_only=False"):
            call(x=[1.0])
    with pytest.raises(ValueError, match=r"\bone_episode\b.*read_only=False"):
        play(reader, 1.0)


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
    assert np.isnan(metas(ReplayBuffer.from_folder(tmp_path), "f")[0])


def test_overwriting_frees_the_disk_space(tmp_path: Path) -> None:
    before = make(tmp_path)
    play(before, 1.0)
    buffer = make(tmp_path, overwrite=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "LOCK",
        "replay_buffer.json",
        "store-1",
    ]
    play(buffer, 5.0)
    assert episodes(ReplayBuffer.from_folder(tmp_path, read_only=True)) == [[5.0]]
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: .*\bclosed\b"):
        before.store(x=1.0)


def test_the_size_of_a_ring_is_bounded(tmp_path: Path) -> None:
    limits = {"max_episodes": 50, "max_timesteps": 1, "circular": True}
    short = make(tmp_path / "short", fields={"x": ("float", 640)}, **limits)
    for _ in range(1500):
        short.store_episode(x=np.zeros((1, 640)))
    assert len(short.replay.storage.index) < 1000  # of 1,500: files hold 409
    fields = {"image": ("uint8", (64, 64))}
    options = {"max_episodes": 3, "max_timesteps": 8, "fields": fields, "circular": True}
    buffer = make(tmp_path / "long", **options)
    noise = np.random.default_rng(0).integers(0, 256, (8, 64, 64), dtype=np.uint8)
    sizes = []
    for _ in range(300):
        buffer.store_episode(image=noise)
        sizes.append(buffer.replay.nbytes)
        assert len(buffer) == min(len(sizes), 3)
    assert max(sizes[150:]) <= max(sizes[:150]) < 8 << 20  # three of them are 98 kB
    (batch,) = buffer.dataloader(3)
    assert (batch["image"].numpy() == noise).all()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"fields": {}}, r"^fields: .*one"),
        ({"fields": {"x": "double"}}, r"'x'.*float, int, bool, uint8.*'double'"),
        ({"fields": {"x": ("uint8", (), 0.5)}}, r"default.*'x'.*uint8.*\b0\.5"),
        ({"fields": {"x": ("float", (0,))}}, r"'x'.*>= 1.*\(0,\)"),
        ({"fields": {"x": ("float", None)}}, r"'x'.*>= 1.*None"),
        ({"fields": {"x": (["float"], 3)}}, r"'x'.*float, int, bool, uint8.*\['float'\]"),
        ({"fields": {"_x": "float"}}, r"field.*'_x'"),
        ({"fields": {"a b": "float"}}, r"field.*'a b'"),
        ({"fields": {"m": "int"}}, r"fields.*meta_fields.*'m'"),
        ({"max_episodes": 10**20}, f"^max_episodes.*: {MOST}"),
        ({"max_timesteps": 10**20}, f"^max_timesteps.*: {MOST}"),
        (
            {"max_episodes": 1 << 40, "max_timesteps": 1 << 40, "circular": True},
            f"^room for.*: {MOST}",
        ),
    ],
)
def test_fields_and_limits_that_could_not_be_read_again_are_refused_before_any_file(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        make(tmp_path / "new", meta_fields={"m": "int"}, **options)
    assert not (tmp_path / "new").exists()


# Storing.


def test_a_second_open_episode_is_refused(tmp_path: Path) -> None:
    buffer = make(tmp_path)
    with buffer.one_episode():
        buffer.store(x=1.0)
        with pytest.raises(ValueError, match=r"^one_episode: "), buffer.one_episode():
            pass
        buffer.store_episode(x=[5.0, 6.0])  # stored first: the other one is still open
        buffer.store(x=2.0)
    assert episodes(buffer) == [[5.0, 6.0], [1.0, 2.0]]
    with pytest.raises(ValueError, match=r"^store: .*one_episode"):
        buffer.store(x=1.0)
    with pytest.raises(ValueError, match=r"max_timesteps=10\b.*\b11\b"):
        play(buffer, *range(11))
    assert buffer.num_episodes == 2


def test_stored_values_are_copies(tmp_path: Path) -> None:
    buffer = make(tmp_path, fields={"x": ("float", 2)}, meta_fields={"m": ("int", 2)})
    frame, task = np.zeros(2, np.float32), np.ones(2, np.int32)
    with buffer.one_episode(m=task):
        task[:] = 7
        for t in range(3):
            frame[:] = t
            buffer.store(x=frame)
    assert episodes(buffer) == [[[0, 0], [1, 1], [2, 2]]]
    assert metas(buffer, "m") == [[1, 1]]


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
