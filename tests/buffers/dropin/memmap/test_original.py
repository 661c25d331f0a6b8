"""Folders of memmap-replay-buffer are read as they were meant, or refused with one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import StoreCorrupt, StoreNotFound
from stepwell.buffers.dropin.memmap.original import OriginalEpisode, OriginalFolder, parse_config
from stepwell.buffers.given_files import GivenFiles
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
    """An episode that a folder must hold."""

    slot: int
    number: int
    steps: int


def assert_holds(folder: OriginalFolder, expected: list[Stored]) -> None:
    """Exactly these episodes in this order, every value as it was stored."""
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
    """A folder `old` in which two episodes of four are stored."""
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
    protocol=st.integers(0, 5),
)
def test_episodes_come_by_age_and_as_they_were_stored(
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
        sure = [note for note in original.left_out if not note.startswith("not left out")]
        assert len(sure) == bool(unfinished)
        if unfinished:
            assert f"being written in slot {slot}, {unfinished} steps so far" in sure[0]


def test_an_empty_folder_has_no_episodes() -> None:
    OriginalWriter(Path("old")).close()
    assert_holds(OriginalFolder("old"), [])
    assert OriginalFolder("old").left_out == ()


def test_the_config_has_all_fields(writer: OriginalWriter) -> None:
    config = OriginalFolder("old").config
    assert (config.max_episodes, config.max_timesteps, config.circular) == (4, 6, False)
    fields = {name: (field.dtype.name, field.shape) for name, field in config.fields.items()}
    assert fields == {
        "state": ("uint8", (2, 3)),
        "action": ("int32", (2,)),
        "reward": ("float32", ()),
        "done": ("bool", ()),
    }
    assert [field.info for field in config.fields.values()] == [
        ("uint8", (2, 3), 0),
        ("int", (2,), 7),
        ("float", (), 0.0),
        ("bool", (), False),
    ]
    assert [(field.name, field.info) for field in config.meta_fields.values()] == [
        ("task", ("int", (), 0)),
        ("goal", ("float", (2,), 0.5)),
    ]


def test_a_default_that_the_original_truncated_is_the_stored_one() -> None:
    fields = {"a": ("int", (), 2.9), "b": ("uint8", 2, 255), "c": ("bool", (), 3), "d": "float"}
    config = parse_config("config", {**CONFIG, "fields": fields})
    assert [field.info for field in config.fields.values()] == [
        ("int", (), 2),
        ("uint8", (2,), 255),
        ("bool", (), True),
        ("float", (), 0.0),
    ]


def test_reading_changes_nothing(writer: OriginalWriter) -> None:
    del writer
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path("old").iterdir()}
    folder_time = Path("old").stat().st_mtime_ns
    original = OriginalFolder("old")
    for episode in original:
        episode.fields["state"][:] = 0  # the caller's own
        episode.metadata["goal"][:] = 0
    assert_holds(original, [Stored(0, 0, 3), Stored(1, 1, 4)])
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in Path("old").iterdir()} == before
    assert Path("old").stat().st_mtime_ns == folder_time


def test_the_bytes_are_those_of_its_files(writer: OriginalWriter) -> None:
    del writer
    original = OriginalFolder("old")
    assert original.nbytes == sum(path.stat().st_size for path in Path("old").iterdir())
    assert original.disk_bytes > 0


def test_an_episode_that_was_given_up_is_left_out() -> None:
    """M1: after an exception in one_episode the original still serves its steps."""
    writer = OriginalWriter(Path("old"))
    writer.store(*tagged(0, 3))
    writer.begin(*tagged(1, 4), 1)
    writer.state["timestep_index"][()] = 0
    writer.close()
    original = OriginalFolder("old")
    assert_holds(original, [Stored(0, 0, 3)])
    assert original.left_out == (
        "slot 1, which holds an episode that was given up or being written, 4 steps",
    )


def test_an_episode_that_a_refused_one_was_written_over_is_left_out() -> None:
    """M2: a full buffer that is not circular overwrites episode 0 before it raises."""
    writer = OriginalWriter(Path("old"))
    for number in range(4):
        writer.store(*tagged(number, number + 2))
    assert_holds(OriginalFolder("old"), [Stored(n, n, n + 2) for n in range(4)])
    writer.begin(*tagged(9, 3), 0)
    writer.close()
    original = OriginalFolder("old")
    assert_holds(original, [Stored(n, n, n + 2) for n in range(1, 4)])
    assert original.left_out == ("the episode that was being written in slot 0, 3 steps so far",)


def test_the_oldest_episode_is_left_out_once_the_next_one_was_begun_over_it() -> None:
    """M3: the original then serves it as zeros, after a step the new one as if it were whole."""
    writer = OriginalWriter(Path("old"), circular=True)
    for number in range(5):
        writer.store(*tagged(number, number + 2))
    assert_holds(OriginalFolder("old"), [Stored(n % 4, n, n + 2) for n in range(1, 5)])
    writer.meta["_initted"][1] = True
    writer.data["state"][1] = 0
    writer.close()
    original = OriginalFolder("old")
    assert_holds(original, [Stored(n % 4, n, n + 2) for n in range(2, 5)])
    assert original.left_out == (
        "slot 1, whose episode was emptied for one that was never finished",
    )


def test_episodes_that_may_be_unfinished_too_are_noted() -> None:
    writer = OriginalWriter(Path("old"), circular=True)
    for number in range(4):
        writer.store(*tagged(number, 5))
    for slot in range(2):
        writer.begin(*tagged(9, 3), slot)
    writer.close()
    assert OriginalFolder("old").left_out == (
        "the episode that was being written in slot 0, 3 steps so far",
        "not left out, but doubtful: the episodes in slots 1 are as long as the unfinished one, "
        "and unfinished too if batched_episode wrote them",
    )


def test_episodes_that_a_batch_has_not_begun_over_are_not_doubtful() -> None:
    writer = OriginalWriter(Path("old"), circular=True)
    for number in range(4):
        writer.store(*tagged(number, 3))
    writer.meta["_initted"][:2] = False  # the last batch was of two
    writer.begin(*tagged(9, 3), 0)
    writer.close()
    assert OriginalFolder("old").left_out == (
        "the episode that was being written in slot 0, 3 steps so far",
    )


def test_a_process_that_was_killed_between_two_counters_costs_no_episode() -> None:
    writer = OriginalWriter(Path("old"))
    for number in range(3):
        writer.store(*tagged(number, number + 2))
    writer.state["num_episodes"][()] = 2
    writer.close()
    original = OriginalFolder("old")
    assert_holds(original, [Stored(n, n, n + 2) for n in range(3)])
    assert (
        "counters contradict each other (num_episodes 2, episode_index 3)" in original.left_out[0]
    )


def test_episodes_without_a_step_are_noted_and_left_out(writer: OriginalWriter) -> None:
    writer.meta["episode_lens"][0] = 0
    writer.close()
    original = OriginalFolder("old")
    assert_holds(original, [Stored(1, 1, 4)])
    assert original.left_out == ("1 episodes without a step",)


def save(name: str, array: Any) -> None:
    np.save(Path("old") / name, array, allow_pickle=True)


def cut(name: str, nbytes: int) -> None:
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
    *((partial(os.unlink, f"old/{n}"), f"{n} is missing") for n in (DATA, LENS, COUNT)),
    *((partial(cut, n, 0), f"{n} is damaged: expected an array of") for n in (DATA, LENS)),
    *((partial(cut, n, k), "is damaged") for n in (DATA, LENS, COUNT) for k in (5, 60, 129)),
    (lambda: save(DATA, np.full((4, 6), None)), "Python objects"),
    (lambda: save(LENS, np.array([{}] * 4)), "Python objects"),
    (lambda: save(COUNT, np.array({})), "Python objects"),
    (lambda: (Path("old") / DATA).write_bytes(pickle.dumps(os.getcwd)), "cannot be mapped"),
    (lambda: zipped(DATA), "cannot be mapped"),
    (
        lambda: header(DATA, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 10**15)}"),
        "is da",
    ),
    (lambda: header(DATA, "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 6)}"), "is dam"),
    (lambda: header(DATA, "{'descr': '<f4', 'fortran_order': 0, 'shape': 9}"), "cannot be mapped"),
    (lambda: header(DATA, "{'descr': 'O', 'fortran_order': False, 'shape': (4, 6)}"), "Python obj"),
    (lambda: header(DATA, "__import__('os').mkdir('run')"), "cannot be mapped"),
    (lambda: header(DATA, "(" * 900), "cannot be mapped"),
    (lambda: header(DATA, "{'descr': '<f4'"), "cannot be mapped"),
    (
        lambda: save(DATA, np.zeros((4, 5), np.float32)),
        "expected float32 (4, 6), got float32 (4, 5)",
    ),
    (
        lambda: save(DATA, np.zeros((6, 4), np.float32)),
        "expected float32 (4, 6), got float32 (6, 4)",
    ),
    (lambda: save(DATA, np.zeros((4, 6))), "expected float32 (4, 6), got float64 (4, 6)"),
    (lambda: save(DATA, np.zeros((4, 6), ">f4")), "expected float32 (4, 6), got >f4 (4, 6)"),
    (lambda: save(DATA, np.zeros((4, 6), "f4,i4")), "expected float32 (4, 6), got"),
    (lambda: save(COUNT, np.zeros(1, np.int32)), "expected int32 (), got int32 (1,)"),
    (
        lambda: save(COUNT, np.int32(-1)),
        "num_episodes.state.npy is damaged: expected 0 to 4, got -1",
    ),
    (lambda: save(COUNT, np.int32(5)), "expected 0 to 4, got 5"),
    (lambda: save("episode_index.state.npy", np.int32(4)), "expected 0 to 3, got 4"),
    (lambda: save("timestep_index.state.npy", np.int32(7)), "expected 0 to 6, got 7"),
    (lambda: save("timestep_index.state.npy", np.int32(-7)), "expected 0 to 6, got -7"),
    (
        lambda: save(LENS, np.array([3, 7, 0, 0], "i4")),
        "expected lengths of 0 to 6, got 7 for slot 1",
    ),
    (lambda: save(LENS, np.array([3, -1, 0, 0], "i4")), "got -1 for slot 1"),
]


@pytest.mark.parametrize(("damage", "problem"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_files_that_are_not_what_the_config_says_are_refused(
    damage: Callable[[], Any], problem: str, writer: OriginalWriter
) -> None:
    del writer
    damage()
    with pytest.raises(StoreCorrupt) as caught:
        OriginalFolder("old")
    text = str(caught.value)
    assert problem in text
    assert "\n" not in text
    assert text.startswith("old/")
    assert "copy" in text.split("; ")[-1]
    assert sorted(os.listdir()) == ["old"]


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
        sentence = "read"
        try:
            original = OriginalFolder(path)
            assert sum(episode.steps for episode in original) == original.steps
            assert len(original) <= 3
        except (StoreCorrupt, ValueError) as error:
            sentence = str(error)
        assert "\n" not in sentence
        assert sentence == "read" or sentence.startswith(str(path))


def test_a_file_that_is_a_folder_or_a_pipe_is_not_opened(writer: OriginalWriter) -> None:
    del writer
    as_folder(DATA)
    with pytest.raises(ValueError, match="regular file"):
        OriginalFolder("old")
    Path("old", DATA).rmdir()
    os.mkfifo(Path("old", DATA))
    with pytest.raises(ValueError, match="regular file"):
        OriginalFolder("old")


def test_a_folder_with_holes_takes_no_more_memory_than_there_is(writer: OriginalWriter) -> None:
    writer.store(*tagged(3, 5))
    writer.close()
    assert len(list(OriginalFolder("old", max_bytes=1000))) == len(OriginalFolder("old"))
    with pytest.raises(ValueError, match=r"old/?: .* 100 bytes"):
        OriginalFolder("old", max_bytes=100)
    original = OriginalFolder("old")
    original._files = GivenFiles(original.path, 50)
    with pytest.raises(ValueError, match="slot 0: "):
        list(original)


def test_a_link_out_of_the_folder_is_not_followed(writer: OriginalWriter) -> None:
    writer.close()
    Path("old", DATA).rename("mine.npy")
    Path("old", DATA).symlink_to(Path("mine.npy").resolve())
    with pytest.raises(ValueError, match="outside"):
        OriginalFolder("old")


def config(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**CONFIG, **changes}.items() if value != "gone"}


NESTED: Any = ()
for _ in range(3000):
    NESTED = (NESTED,)
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

BAD_CONFIGS: list[tuple[Any, str]] = [
    ([], "got a list"),
    (None, "got None"),
    ("max_episodes", "got 'max_episodes'"),
    (config(circular="gone"), "got none for 'circular'"),
    (config(h5py_compression="gzip"), "got one for 'h5py_compression'"),
    (config(circular=1), "got 1"),
    (config(max_episodes=0), "1 to 2147483647, got 0"),
    (config(max_episodes=-3), "got -3"),
    (config(max_episodes=True), "got True"),
    (config(max_timesteps=2.0), "1 to 2147483647, got 2.0"),
    (config(max_timesteps=10**5000), "got a larger one"),
    (config(max_timesteps=-(10**5000)), "got a smaller one"),
    (config(max_timesteps=NESTED), "got a tuple"),
    (config(max_timesteps=ENDLESS), "got a list"),
    (config(fields=[]), "fields to be a dict"),
    (config(fields={}), "got no field"),
    (config(fields=NESTED), "fields to be a dict"),
    (config(meta_fields=None), "meta_fields to be a dict"),
    (config(fields={"a": "double"}), "'a'"),
    (config(fields={"a": ()}), "'a'"),
    (config(fields={"a": ("int", 2, 0, 0)}), "'a'"),
    (config(fields={"a": ("int", "2")}), "'a'"),
    (config(fields={"a": ("int", (2, True))}), "'a'"),
    (config(fields={"a": ("int", (2, -1))}), "'a'"),
    (config(fields={"a": ("int", (1,) * 31)}), "'a'"),
    (config(fields={"a": ("int", 2, "0")}), "'a'"),
    (config(fields={"a": ("int", NESTED)}), "'a'"),
    (config(fields={"a": ENDLESS}), "'a'"),
    (config(fields={"a": 3}), "'a'"),
    (config(fields={"../a": "int"}), "got the name '../a'"),
    (config(fields={"/etc/a": "int"}), "got the name '/etc/a'"),
    (config(fields={"": "int"}), "got the name ''"),
    (config(meta_fields={"../a": "int"}), "got the name '../a'"),
    (config(meta_fields={"a\0": "int"}), "got the name"),
    (config(meta_fields={"reward": "int"}), "got 'reward' in both"),
    (config(fields={"episode_lens": "int"}), "got 'episode_lens' in both"),
    (
        config(meta_fields={"episode_lens": "float"}),
        "episode_lens to be 'int', got 'float'",
    ),
]


@pytest.mark.parametrize(("value", "problem"), BAD_CONFIGS, ids=range(len(BAD_CONFIGS)))
def test_a_config_that_the_original_does_not_write_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^old/metadata\.pkl: expected ") as caught:
        parse_config("old/metadata.pkl", value)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_that_would_run_something_is_refused_and_can_be_given_instead(
    writer: OriginalWriter,
) -> None:
    """M11: the original unpickles whatever stands in metadata.pkl."""
    del writer
    fields = {**FIELDS, "reward": ("float", (), np.float64(0.5))}
    Path("old/metadata.pkl").write_bytes(pickle.dumps({**CONFIG, "fields": fields}))
    with pytest.raises(ValueError, match=r"STACK_GLOBAL.*OriginalFolder\(folder"):
        OriginalFolder("old")
    assert_holds(OriginalFolder("old", config=CONFIG), [Stored(0, 0, 3), Stored(1, 1, 4)])


def test_a_config_that_makes_folders_makes_none(writer: OriginalWriter) -> None:
    """M11: this one would, if it were unpickled."""
    del writer
    Path("old/metadata.pkl").write_bytes(b"cos\nmkdir\n(Vtrapped\ntR.")
    with pytest.raises(ValueError, match=r"GLOBAL \('os mkdir'\)"):
        OriginalFolder("old")
    assert os.listdir() == ["old"]


def test_lengths_may_be_among_the_meta_fields(writer: OriginalWriter) -> None:
    del writer
    config = {**CONFIG, "meta_fields": {**META, "episode_lens": "int", "_initted": "bool"}}
    Path("old/metadata.pkl").write_bytes(pickle.dumps(config))
    original = OriginalFolder("old")
    assert_holds(original, [Stored(0, 0, 3), Stored(1, 1, 4)])
    assert list(original.config.meta_fields) == ["task", "goal"]


def test_other_folders_are_refused() -> None:
    Path("file").write_text("precious")
    Path("full").mkdir()
    Path("h5").mkdir()
    Path("h5/data.h5").write_bytes(b"")
    for folder, problem in (
        ("nowhere", "got no folder"),
        ("file", "got a file"),
        ("full", "metadata.pkl, got one without"),
        ("h5", "ReplayBufferH5PY"),
    ):
        with pytest.raises(StoreNotFound) as caught:
            OriginalFolder(folder)
        assert problem in str(caught.value)


def theirs(folder: Path) -> Any:
    """The original's own buffer, to read."""
    original: Any = importlib.import_module("memmap_replay_buffer")
    return original.ReplayBuffer.from_folder(folder, read_only=True)


def real(folder: str, circular: bool = True, max_episodes: int = 5) -> Any:
    """The original's own buffer, to write."""
    original: Any = importlib.import_module("memmap_replay_buffer")
    return original.ReplayBuffer(
        folder,
        max_episodes=max_episodes,
        max_timesteps=6,
        fields=dict(FIELDS),
        meta_fields=dict(META),
        circular=circular,
    )


def play(buffer: Any, number: int, steps: int) -> None:
    fields, meta = tagged(number, steps)
    with buffer.one_episode(**meta):
        for t in range(steps):
            buffer.store(**{name: values[t] for name, values in fields.items()})


def play_batch(buffer: Any, numbers: range, steps: int) -> None:
    played = [tagged(number, steps) for number in numbers]
    metas = {name: np.stack([meta[name] for _, meta in played]) for name in META}
    with buffer.batched_episode(len(numbers), **metas):
        for t in range(steps):
            buffer.store_batch(**{n: np.stack([f[n][t] for f, _ in played]) for n in FIELDS})


def their_episodes(folder: Path) -> dict[int, dict[str, np.ndarray]]:
    """What the original's loader serves, by slot."""
    buffer = theirs(folder)
    if not len(buffer):
        return {}
    items: Iterator[dict[str, Any]] = iter(buffer.dataset(return_indices=True))
    return {
        int(item["_index"]): {
            name: value.numpy() for name, value in item.items() if not name.startswith("_")
        }
        for item in items
    }


@needs_original
@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_the_original_wrote_comes_as_its_own_reader_gives_it(
    circular: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    buffer = real("old", circular)
    numbers: list[int] = []
    for number in range(5 if not circular else int(rng.integers(0, 14))):
        steps = int(rng.integers(1, 7))
        if rng.random() < 0.3:
            fields, meta = tagged(number, steps)
            buffer.store_episode(**fields, **{n: np.asarray(v) for n, v in meta.items()})
        else:
            play(buffer, number, steps)
        numbers.append(number)
    del buffer
    original = OriginalFolder("old")
    assert [int(one.metadata["task"]) for one in original] == numbers[-5:]
    assert original.left_out == ()
    assert_equal_to_theirs(list(original), their_episodes(Path("old")))


@needs_original
def test_batches_that_the_original_wrote_come_in_their_order() -> None:
    buffer = real("old", max_episodes=6)
    for first in range(0, 12, 2):
        play_batch(buffer, range(first, first + 2), 1 + first % 5)
    del buffer
    original = OriginalFolder("old")
    assert [int(one.metadata["task"]) for one in original] == list(range(6, 12))
    assert_equal_to_theirs(list(original), their_episodes(Path("old")))


@needs_original
def test_an_unfinished_batch_that_the_original_began_is_left_out() -> None:
    buffer = real("old", circular=False)
    play_batch(buffer, range(2), 4)
    fields, _ = tagged(9, 2)
    for t in range(2):
        buffer.store_batch(**{name: np.stack([v[t]] * 2) for name, v in fields.items()})
    del buffer
    original = OriginalFolder("old")
    assert [int(one.metadata["task"]) for one in original] == [0, 1]
    assert len(original.left_out) == 2
    assert_equal_to_theirs(
        list(original), {k: v for k, v in their_episodes(Path("old")).items() if k < 2}
    )


@needs_original
def test_what_the_original_lost_is_left_out() -> None:
    """M1, M2, M3: an episode that was given up, written over or emptied is not served."""
    gone = {"M1": 0, "M2": 0, "M3": 0}
    buffer = real("M1", circular=False)
    play(buffer, 0, 3)
    with suppress(ZeroDivisionError), buffer.one_episode():
        buffer.store(reward=1.0)
        buffer.store(reward=1 / 0)
    buffer = real("M2", circular=False)
    for number in range(5):
        play(buffer, number, 3)
    with pytest.raises(ValueError, match="full"):
        buffer.store_episode(reward=np.ones(2, np.float32))
    buffer = real("M3")
    for number in range(7):
        play(buffer, number, 3)
    with suppress(ZeroDivisionError), buffer.one_episode():
        raise ZeroDivisionError
    del buffer
    kept = {name: [int(one.metadata["task"]) for one in OriginalFolder(name)] for name in gone}
    assert kept == {"M1": [0], "M2": [1, 2, 3, 4], "M3": [3, 4, 5, 6]}
    for name in gone:
        served = their_episodes(Path(name))
        assert len(served) == len(kept[name]) + 1, "the original serves what it lost"
        slots = {one.slot for one in OriginalFolder(name)}
        assert_equal_to_theirs(
            list(OriginalFolder(name)), {k: v for k, v in served.items() if k in slots}
        )
        assert len(OriginalFolder(name).left_out) == 1
    shutil.rmtree("M1")


def assert_equal_to_theirs(
    ours: list[OriginalEpisode], their: dict[int, dict[str, np.ndarray]]
) -> None:
    assert sorted(one.slot for one in ours) == sorted(their)
    for one in ours:
        both = {**one.fields, **one.metadata}
        assert both.keys() == their[one.slot].keys()
        for name, value in their[one.slot].items():
            assert both[name].dtype == value.dtype, name
            assert both[name].tobytes() == value.tobytes(), name
