"""Folders of memmap-replay-buffer are read correctly or refused with one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import StoreCorrupt, StoreNotFound
from stepwell.buffers.base.untrusted_files import GivenFiles
from stepwell.buffers.dropin.memmap import ReplayBuffer
from stepwell.buffers.dropin.memmap.original import OriginalFolder, parse_config
from support.examples import examples
from support.libraries.original_memmap import FIELDS, META, OriginalWriter, tagged

CONFIG = {
    "max_episodes": 4,
    "max_timesteps": 6,
    "fields": FIELDS,
    "meta_fields": META,
    "circular": False,
}

needs_original = pytest.mark.skipif(
    importlib.util.find_spec("memmap_replay_buffer") is None,
    reason="needs memmap-replay-buffer: pip install memmap-replay-buffer==0.2.3",
)


class Stored(NamedTuple):
    """An episode that a folder must contain."""

    slot: int
    number: int
    steps: int


def assert_holds(folder: OriginalFolder, expected: list[Stored]) -> None:
    """The folder contains exactly these episodes, in this order, with all values as stored."""
    found = list(folder)
    assert [episode.slot for episode in found] == [one.slot for one in expected]
    assert len(folder) == len(expected)
    assert folder.steps == sum(one.steps for one in expected)
    for episode, one in zip(found, expected, strict=True):
        fields, meta = tagged(one.number, one.steps)
        assert_same(episode.fields, fields)
        assert_same(episode.metadata, meta)
        assert episode.steps == one.steps


def assert_same(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].shape == np.shape(value), name
        assert (found[name] == value).all(), name
        assert found[name].flags.owndata, name


@pytest.fixture
def writer() -> OriginalWriter:
    """A folder `old` with two stored episodes of at most four."""
    made = OriginalWriter(Path("old"))
    for number in range(2):
        made.store(*tagged(number, number + 3))
    made.close()
    return made


@settings(max_examples=examples(60))
@given(
    max_episodes=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 6), max_size=12),
    circular=st.booleans(),
    unfinished=st.integers(0, 6),
    protocol=st.integers(4, 5),
)
def test_episodes_are_read_from_oldest_to_newest_with_their_values(
    max_episodes: int, lengths: list[int], circular: bool, unfinished: int, protocol: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old"
        writer = OriginalWriter(path, max_episodes, circular=circular, protocol=protocol)
        lengths = lengths if circular else lengths[:max_episodes]
        kept = [
            Stored(writer.store(*tagged(number, steps)), number, steps)
            for number, steps in enumerate(lengths)
        ][-max_episodes:]
        slot = int(writer.state["episode_index"])
        if unfinished:
            writer.begin(*tagged(99, unfinished), slot)
            kept = [one for one in kept if one.slot != slot]
        writer.close()
        original = OriginalFolder(path)
        assert_holds(original, kept)
        left_out = [note for note in original.left_out if re.search(r"\bslot \d", note)]
        assert len(left_out) == bool(unfinished)
        if unfinished:
            assert re.search(rf"\bslot {slot}\b.*\b{unfinished} steps", left_out[0])


def test_reading_does_not_change_the_folder(writer: OriginalWriter) -> None:
    del writer
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path("old").iterdir()}
    folder_time = Path("old").stat().st_mtime_ns
    original = OriginalFolder("old")
    for episode in original:
        episode.fields["state"][:] = 0  # a copy
        episode.metadata["goal"][:] = 0
    assert_holds(original, [Stored(0, 0, 3), Stored(1, 1, 4)])
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in Path("old").iterdir()} == before
    assert Path("old").stat().st_mtime_ns == folder_time


def aborted(writer: OriginalWriter) -> None:
    writer.begin(*tagged(9, 4), 2)
    writer.state["timestep_index"][()] = 0


def emptied(writer: OriginalWriter) -> None:
    writer.store(*tagged(4, 6))
    writer.meta["_initted"][1] = True
    writer.data["state"][1] = 0


def two_unfinished(writer: OriginalWriter) -> None:
    for slot in range(2):
        writer.begin(*tagged(9, 3), slot)


def later_batch(writer: OriginalWriter) -> None:
    writer.meta["_initted"][:2] = False  # the last batch was of two
    writer.begin(*tagged(9, 3), 0)


def killed(writer: OriginalWriter) -> None:
    writer.state["num_episodes"][()] = 2


def without_step(writer: OriginalWriter) -> None:
    writer.meta["episode_lens"][0] = 0


@pytest.mark.parametrize(
    ("stored", "circular", "harm", "kept", "notes"),
    [
        # M1: after an exception in one_episode the original still returns its steps.
        (2, False, aborted, [0, 1], [r"\bslot 2\b.*\b4 steps"]),
        # M2: a full buffer that is not circular overwrites episode 0 before it raises.
        (4, False, lambda w: w.begin(*tagged(9, 3), 0), [1, 2, 3], [r"\bslot 0\b.*\b3 steps"]),
        # M3: the original returns zeros for it, and after one step the unfinished new episode.
        (4, True, emptied, [2, 3, 4], [r"\bslot 1\b"]),
        (
            *(4, True, two_unfinished, None),  # rows of slot 1 may be those of the new one
            [r"\bslot 0\b.*\b3 steps", r"\bslots 1\b.*\bbatched_episode\b"],
        ),
        (4, True, later_batch, [1, 2, 3], [r"\bslot 0\b.*\b3 steps"]),
        (3, False, killed, [0, 1, 2], [r"num_episodes 2\b.*episode_index 3\b"]),
        (2, False, without_step, [1], [r"^1 episodes\b"]),
    ],
)
def test_lost_and_unfinished_episodes_are_left_out_and_noted(
    stored: int,
    circular: bool,
    harm: Callable[[OriginalWriter], None],
    kept: list[int] | None,
    notes: list[str],
) -> None:
    writer = OriginalWriter(Path("old"), circular=circular)
    for number in range(stored):
        writer.store(*tagged(number, number + 2))
    assert_holds(OriginalFolder("old"), [Stored(n, n, n + 2) for n in range(stored)])
    harm(writer)
    writer.close()
    original = OriginalFolder("old")
    if kept is not None:
        assert_holds(original, [Stored(n % 4, n, n + 2) for n in kept])
    assert len(original.left_out) == len(notes), original.left_out
    for note, pattern in zip(original.left_out, notes, strict=True):
        assert re.search(pattern, note), note


def save(name: str, array: Any) -> None:
    np.save(Path("old") / name, array, allow_pickle=True)


def truncate(name: str, nbytes: int) -> None:
    path = Path("old") / name
    path.write_bytes(path.read_bytes()[:nbytes])


def as_folder(name: str) -> None:
    (Path("old") / name).unlink()
    (Path("old") / name).mkdir()


def zipped(name: str) -> None:
    held = io.BytesIO()
    np.savez(held, a=np.zeros(3))
    (Path("old") / name).write_bytes(held.getvalue())


def header(name: str, text: str) -> None:
    raw = text.encode()
    (Path("old") / name).write_bytes(b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw)


DATA, LENS, COUNT = "reward.data.npy", "episode_lens.data.meta.npy", "num_episodes.state.npy"
BAD_FILES: list[tuple[Callable[[], Any], str]] = [
    *((partial(os.unlink, f"old/{n}"), rf"{n}.*metadata\.pkl") for n in (DATA, LENS, COUNT)),
    *((partial(truncate, n, 0), rf"{n}.*(float32|int32).*\b8 bytes.*\b0\b") for n in (DATA, LENS)),
    *(
        (partial(truncate, n, k), rf"{n}.*(float32|int32)")
        for n in (DATA, LENS, COUNT)
        for k in (5, 60, 129)
    ),
    (lambda: save(DATA, np.full((4, 6), None)), rf"{DATA}.*float32"),
    (lambda: save(LENS, np.array([{}] * 4)), rf"{LENS}.*int32"),
    (lambda: save(COUNT, np.array({})), rf"{COUNT}.*int32"),
    (lambda: (Path("old") / DATA).write_bytes(pickle.dumps(os.getcwd)), rf"{DATA}.*float32"),
    (lambda: zipped(DATA), rf"{DATA}.*float32.*PK"),
    *(
        (partial(header, DATA, text), rf"{DATA}.*float32")
        for text in (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 10**15)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 6)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': 9}",
            "{'descr': 'O', 'fortran_order': False, 'shape': (4, 6)}",
            "__import__('os').mkdir('run')",
            "(" * 900,
            "{'descr': '<f4'",
        )
    ),
    *(
        (partial(save, DATA, array), rf"{DATA}.*float32 \(4, 6\).*{got}")
        for array, got in (
            (np.zeros((4, 5), np.float32), r"float32 \(4, 5\)"),
            (np.zeros((6, 4), np.float32), r"float32 \(6, 4\)"),
            (np.zeros((4, 6)), r"float64 \(4, 6\)"),
            (np.zeros((4, 6), ">f4"), r">f4 \(4, 6\)"),
            (np.zeros((4, 6), "f4,i4"), r"<f4.*<i4.*\(4, 6\)"),
        )
    ),
    (lambda: save(COUNT, np.zeros(1, np.int32)), rf"{COUNT}.*int32 \(\).*int32 \(1,\)"),
    *(
        (partial(save, f"{name}.npy", np.int32(value)), rf"{name}.*\b0 to {most}\b.*{value}\b")
        for name, value, most in (
            ("num_episodes.state", -1, 4),
            ("num_episodes.state", 5, 4),
            ("episode_index.state", 4, 3),
            ("timestep_index.state", 7, 6),
            ("timestep_index.state", -7, 6),
        )
    ),
    (lambda: save(LENS, np.array([3, 7, 0, 0], "i4")), rf"{LENS}.*\b0 to 6\b.*\b7\b.*slot 1\b"),
    (lambda: save(LENS, np.array([3, -1, 0, 0], "i4")), rf"{LENS}.*\b0 to 6\b.*-1\b.*slot 1\b"),
]


@pytest.mark.parametrize(("damage", "problem"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_files_that_differ_from_the_config_are_refused(
    damage: Callable[[], Any], problem: str, writer: OriginalWriter
) -> None:
    del writer
    damage()
    with pytest.raises(StoreCorrupt, match=rf"^old/.*{problem}.*; .") as caught:
        OriginalFolder("old")
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir()) == ["old"]


@pytest.mark.proof
@settings(max_examples=examples(150))
@given(st.data())
def test_a_folder_with_changed_bytes_is_read_or_refused_with_one_sentence(
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "old"
        writer = OriginalWriter(path, 3, circular=True)
        for number in range(4):
            writer.store(*tagged(number, number + 2))
        writer.close()
        file = data.draw(st.sampled_from(sorted(path.iterdir(), key=str)))
        raw = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            spot = data.draw(st.integers(0, min(len(raw), 160) - 1) | st.integers(0, len(raw) - 1))
            raw[spot] = data.draw(st.integers(0, 255))
        length = data.draw(st.just(len(raw)) | st.integers(0, len(raw)))
        file.write_bytes(raw[:length])
        message = None
        try:
            original = OriginalFolder(path)
            assert sum(episode.steps for episode in original) == original.steps
            assert len(original) <= 3
        except (StoreCorrupt, ValueError) as error:
            message = str(error)
        assert message is None or message.startswith(str(path))
        assert message is None or "\n" not in message


def test_a_file_that_is_a_directory_or_a_pipe_is_not_opened(writer: OriginalWriter) -> None:
    del writer
    as_folder(DATA)
    with pytest.raises(ValueError, match=rf"^old/{DATA}: .*\bfolder\b"):
        OriginalFolder("old")
    Path("old", DATA).rmdir()
    os.mkfifo(Path("old", DATA))
    with pytest.raises(ValueError, match=rf"^old/{DATA}: .*\bpipe\b"):
        OriginalFolder("old")


def test_a_sparse_file_larger_than_max_bytes_is_refused(writer: OriginalWriter) -> None:
    writer.store(*tagged(3, 5))
    writer.close()
    assert len(list(OriginalFolder("old", max_bytes=1000))) == len(OriginalFolder("old"))
    with pytest.raises(ValueError, match=r"old/?: .* 100 bytes"):
        OriginalFolder("old", max_bytes=100)
    original = OriginalFolder("old")
    original._files = GivenFiles(Path("old"), 50)
    with pytest.raises(ValueError, match=r"old: slot 0: .* \b50 bytes.*max_bytes"):
        list(original)


def test_a_link_out_of_the_folder_is_not_followed(writer: OriginalWriter) -> None:
    writer.close()
    Path("old", DATA).rename("mine.npy")
    Path("old", DATA).symlink_to(Path("mine.npy").resolve())
    with pytest.raises(ValueError, match=rf"old/{DATA}: .*mine\.npy"):
        OriginalFolder("old")


def config(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**CONFIG, **changes}.items() if value != "gone"}


NESTED: Any = ()
for _ in range(3000):
    NESTED = (NESTED,)
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

BAD_CONFIGS: list[tuple[Any, str]] = [
    ([], r"\blist\b"),
    (None, r"\bNone\b"),
    ("max_episodes", r"'max_episodes'"),
    (config(circular="gone"), r"max_timesteps, .*'circular'"),
    (config(h5py_compression="gzip"), r"max_timesteps, .*'h5py_compression'"),
    (config(circular=1), r"\bcircular\b.*\b1\b"),
    (config(max_episodes=0), r"max_episodes\b.*\b1 to 2147483647\b.*\b0\b"),
    (config(max_episodes=-3), r"max_episodes\b.*-3\b"),
    (config(max_episodes=True), r"max_episodes\b.*\bTrue\b"),
    (config(max_timesteps=2.0), r"max_timesteps\b.*\b1 to 2147483647\b.*\b2\.0"),
    (config(max_timesteps=10**5000), r"max_timesteps\b.*\b2147483647\b.*\blarger\b"),
    (config(max_timesteps=-(10**5000)), r"max_timesteps\b.*\b2147483647\b.*\bsmaller\b"),
    (config(max_timesteps=NESTED), r"max_timesteps\b.*\btuple\b"),
    (config(max_timesteps=ENDLESS), r"max_timesteps\b.*\blist\b"),
    (config(fields=[]), r"\bfields\b.*\bdict\b.*\blist\b"),
    (config(fields={}), r"\bfields\b.*\bno field\b"),
    (config(fields=NESTED), r"\bfields\b.*\bdict\b.*\btuple\b"),
    (config(meta_fields=None), r"\bmeta_fields\b.*\bdict\b.*\bNone\b"),
    (config(fields={"a": "double"}), "'a'"),
    (config(fields={"a": ()}), "'a'"),
    (config(fields={"a": ("int", 2, 0, 0)}), "'a'"),
    (config(fields={"a": ("int", "2")}), "'a'"),
    (config(fields={"a": ("int", (2, True))}), "'a'"),
    (config(fields={"a": ("int", (2, -1))}), "'a'"),
    (config(fields={"a": ("int", (1,) * 31)}), "'a'"),
    (config(fields={"a": ("int", NESTED)}), "'a'"),
    (config(fields={"a": ENDLESS}), "'a'"),
    (config(fields={"a": 3}), "'a'"),
    (config(fields={"../a": "int"}), r"'\.\./a'"),
    (config(fields={"/etc/a": "int"}), r"'/etc/a'"),
    (config(fields={"": "int"}), r"\s''"),
    (config(meta_fields={"../a": "int"}), r"'\.\./a'"),
    (config(meta_fields={"a\0": "int"}), r"'a\\x00'"),
    (config(meta_fields={"reward": "int"}), r"\bfields\b.*\bmeta_fields\b.*'reward'"),
    (config(fields={"episode_lens": "int"}), r"\bfields\b.*\bmeta_fields\b.*'episode_lens'"),
    (config(meta_fields={"episode_lens": "float"}), r"episode_lens\b.*'int'.*'float'"),
]


@pytest.mark.parametrize(("value", "problem"), BAD_CONFIGS, ids=range(len(BAD_CONFIGS)))
def test_an_invalid_config_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"^old/metadata\.pkl: .*{problem}") as caught:
        parse_config("old/metadata.pkl", value)
    assert "\n" not in str(caught.value)


def test_a_config_that_cannot_be_read_safely_can_be_given_instead(writer: OriginalWriter) -> None:
    """M11: the original unpickles any metadata.pkl."""
    del writer
    fields = {**FIELDS, "reward": ("float", (), np.float64(0.5))}
    Path("old/metadata.pkl").write_bytes(pickle.dumps({**CONFIG, "fields": fields}))
    with pytest.raises(
        ValueError, match=r"^old/metadata\.pkl: .*STACK_GLOBAL.*OriginalFolder\(folder"
    ):
        OriginalFolder("old")
    Path("old/metadata.pkl").write_bytes(b"cos\nmkdir\n(Vtrapped\ntR.")
    with pytest.raises(ValueError, match=r"^old/metadata\.pkl: .*GLOBAL.*os mkdir"):
        OriginalFolder("old")
    assert os.listdir() == ["old"]  # the pickle was not run
    assert_holds(OriginalFolder("old", config=CONFIG), [Stored(0, 0, 3), Stored(1, 1, 4)])


def test_meta_fields_may_contain_episode_lens(writer: OriginalWriter) -> None:
    del writer
    config = {**CONFIG, "meta_fields": {**META, "episode_lens": "int", "_initted": "bool"}}
    Path("old/metadata.pkl").write_bytes(pickle.dumps(config))
    original = OriginalFolder("old")
    assert_holds(original, [Stored(0, 0, 3), Stored(1, 1, 4)])
    assert list(original.config.meta_fields) == ["task", "goal"]


def test_folders_without_a_buffer_of_the_original_are_refused() -> None:
    Path("file").write_text("precious")
    Path("full").mkdir()
    Path("h5").mkdir()
    Path("h5/data.h5").write_bytes(b"")
    for folder, problem in (
        ("nowhere", r"metadata\.pkl.*\bno folder"),
        ("file", r"metadata\.pkl.*\bfile\b"),
        ("full", r"metadata\.pkl"),
        ("h5", r"ReplayBufferH5PY.*data\.h5"),
    ):
        with pytest.raises(StoreNotFound, match=rf"^{folder}: .*{problem}"):
            OriginalFolder(folder)


@needs_original
@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_episodes_equal_those_that_the_original_reads(circular: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    theirs: Any = importlib.import_module("memmap_replay_buffer")
    buffer = theirs.ReplayBuffer("old", 6, 6, dict(FIELDS), dict(META), circular)
    numbers: list[int] = []
    for number in range(0, 6 if not circular else int(rng.integers(0, 16)), 2):
        steps = int(rng.integers(1, 7))
        played = [tagged(number + place, steps) for place in range(2)]
        together = {name: np.stack([each[0][name] for each in played]) for name in FIELDS}
        metas = {name: np.stack([each[1][name] for each in played]) for name in META}
        how = rng.choice(["one by one", "whole", "batch"])
        if how == "batch":
            with buffer.batched_episode(2, **metas):
                for t in range(steps):
                    buffer.store_batch(**{name: rows[:, t] for name, rows in together.items()})
        for place, (fields, meta) in enumerate(played):
            if how == "whole":
                buffer.store_episode(**fields, **{n: np.asarray(v) for n, v in meta.items()})
            elif how == "one by one":
                with buffer.one_episode(**meta):
                    for t in range(steps):
                        buffer.store(**{name: rows[t] for name, rows in fields.items()})
            numbers.append(number + place)
    batches = list(buffer.dataloader(1)) if numbers else []
    oldest = buffer.episode_index if circular and len(numbers) > 6 else 0
    del buffer
    original = OriginalFolder("old")
    assert [int(one.metadata["task"]) for one in original] == numbers[-6:]
    assert original.left_out == ()
    with ReplayBuffer("new", 6, 6, FIELDS, META, circular) as ours:
        for episode in original:
            ours.store_episode(**episode.fields, **episode.metadata)
        loaded = ours.dataloader(1) if numbers else ()
        for found, wanted in zip(loaded, batches[oldest:] + batches[:oldest], strict=True):
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                assert found[name].dtype == value.dtype, name
                assert found[name].numpy().tobytes() == value.numpy().tobytes(), name
