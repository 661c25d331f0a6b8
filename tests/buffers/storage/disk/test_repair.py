"""`verify` finds damage, `repair` leaves it out, and the other rows stay as they were."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import (
    DiskStorage,
    End,
    SequenceReplayBuffer,
    StoreCorrupt,
    StoreFailed,
    repair,
    verify,
)
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.format import NextNumbers
from stepwell.buffers.storage.disk.segment import segment_path
from stepwell.buffers.testing import SPEC, chunk_of
from support.crash.disk_faults import FaultyFiles, Killed, NoSyncFiles
from support.crash.medium import Image, Medium, MediumFiles, restore
from support.disk_stores import poke
from support.forged.stores import header_of
from support.tiers import proofs_but

Rows = dict[tuple[int, int], bytes]  # (episode, row) -> the row's bytes
PENDING_ROW = 5  # of each episode: stored twice, the first time without its action


def make_store(path: Path, *, is_open: bool = False, episodes: int = 24) -> Rows:
    """Several segments; the last one sealed, or as a killed process leaves it."""
    storage = DiskStorage.create(path, SPEC, segment_bytes=12_000, files=NoSyncFiles())
    storage.append_session({"seed": 7, "recipe": {"game": "toy"}})
    for episode in range(episodes):
        storage.add([chunk_of(episode, 0, 6, End.PENDING, episode % 2)])
        storage.add([chunk_of(episode, 5, 6, End.NONE, episode % 2)])
        storage.add([chunk_of(episode, 11, 4, End.TERMINATED, episode % 2)])
    if is_open:
        copy = path.with_name("killed")
        shutil.copytree(path, copy)
        storage.close()
        shutil.rmtree(path)
        copy.rename(path)
    else:
        storage.close()
    with DiskStorage.open(path, read_only=True, files=NoSyncFiles()) as found:
        rows = read_rows(found)
    assert len(rows) == 15 * episodes
    return rows


def read_rows(storage: DiskStorage) -> Rows:
    """All rows that are left, read as users read them."""
    replay = SequenceReplayBuffer(seed=0)
    replay._use(storage)
    found: Rows = {}
    for episode in replay.iter_episodes():
        for place in range(episode.rows):
            assert (episode.id, episode.first_row + place) not in found
            found[episode.id, episode.first_row + place] = row_bytes(episode.fields, place)
    return found


def assert_true(left: Rows, true: Rows) -> None:
    """Every row is as written; before lost rows the earlier copy of a pending row may be read."""
    for (episode, place), row in left.items():
        allowed = {true[episode, place]}
        if place == PENDING_ROW:
            allowed.add(row_bytes(chunk_of(episode, 0, 6, End.PENDING).fields, PENDING_ROW))
        assert row in allowed, (episode, place)


def row_bytes(fields: Mapping[str, np.ndarray], place: int) -> bytes:
    return b"".join(fields[name][place].tobytes() for name in sorted(fields))


def middle(path: Path, number: int = 2) -> Path:
    return segment_path(path, number)


def newest(path: Path) -> Path:
    return max(path.glob("segment-*.bin"))


def flip_both_slots(path: Path) -> None:
    file = middle(path)
    for offset in header_of(path, 2).table_offsets:
        poke(file, offset + 128 * 1 + 60)


def swap_segments(path: Path) -> None:
    one, other = middle(path, 1), middle(path, 3)
    one.rename(path / "x")
    other.rename(one)
    (path / "x").rename(other)


def flip_data(path: Path) -> None:
    poke(middle(path), header_of(path, 2).data_offset + 700)


def flip_several_files(path: Path) -> None:
    poke(path / "manifest.json", 300)
    flip_data(path)
    poke(middle(path, 0), 50)


Damage = Callable[[Path], None]
# The damage and the most rows it may cost; chunks have 6, 6 or 4 rows.
ONE, SEGMENT = 6, 200
DAMAGES: dict[str, tuple[Damage, int]] = {
    "data": (flip_data, 2 * ONE),
    "both copies of a slot": (flip_both_slots, ONE),
    "a header": (lambda path: poke(middle(path), 50), 0),
    "a missing segment": (lambda path: middle(path).unlink(), SEGMENT),
    "the newest segment missing": (lambda path: newest(path).unlink(), SEGMENT),
    "a truncated segment": (
        lambda path: os.truncate(middle(path), header_of(path, 2).data_offset + 900),
        SEGMENT,
    ),
    "the manifest": (lambda path: poke(path / "manifest.json", 300), 0),
    "a missing manifest": (lambda path: (path / "manifest.json").unlink(), 0),
    "two swapped segments": (swap_segments, 2 * SEGMENT),
    "several files": (flip_several_files, 2 * ONE),
}


@pytest.mark.parametrize(
    "name", proofs_but(["the newest segment missing", "several files"], DAMAGES)
)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_store_is_repaired(tmp_path: Path, name: str, is_open: bool) -> None:
    path, (spoil, most) = tmp_path / "a", DAMAGES[name]
    true = make_store(path, is_open=is_open)
    spoil(path)
    before = {each: each.read_bytes() for each in path.glob("*.*")}
    found = verify(path, files=NoSyncFiles())
    assert not found.is_whole
    assert all(str(path) in damage.what for damage in found.damages)

    planned = repair(path, files=NoSyncFiles())
    assert not planned.is_done
    assert [d.what for d in planned.damages] == [d.what for d in found.damages]
    assert {each: each.read_bytes() for each in path.glob("*.*")} == before

    done = repair(path, yes=True, files=NoSyncFiles())
    assert done.is_done
    assert done.kept or "missing" in name
    for kept in done.kept:
        assert kept.read_bytes() in before.values()
    again = verify(path, files=NoSyncFiles())
    assert again.is_whole, again.damages
    with DiskStorage.open(path, files=NoSyncFiles()) as storage:
        left = read_rows(storage)
        assert_true(left, true)
        assert len(true) - len(left) <= most
        assert (len(left) == len(true)) == (most == 0)
        assert found.rows <= again.rows == len(left)  # a header may have been restored
        assert storage.sessions[0]["seed"] == 7
        check_new_ids(storage, true)
    with DiskStorage.open(path, read_only=True, files=NoSyncFiles()) as storage:
        assert read_rows(storage).items() >= left.items()
        assert len(read_rows(storage)) == len(left) + 5


def check_new_ids(storage: DiskStorage, true: Rows) -> None:
    """New episodes get ids that no lost episode had."""
    episode = storage.index.next_episode
    assert episode > max(each for each, _ in true)
    storage.add([chunk_of(episode, 0, 5, End.TERMINATED)])
    assert storage.index.records["row_id"][-1] >= 24 * (6 + 6 + 4)  # more than all used before


@pytest.mark.proof
@pytest.mark.parametrize(
    "name", [name for name in DAMAGES if "manifest" not in name and name != "several files"]
)
def test_a_reader_may_skip_damage(tmp_path: Path, name: str) -> None:
    path, (spoil, most) = tmp_path / "a", DAMAGES[name]
    true = make_store(path)
    spoil(path)
    with pytest.raises(
        StoreCorrupt,
        match=rf"{path}/segment-0000000\d\.bin\b.*(stepwell repair {path}|segment \d of store)",
    ):
        with DiskStorage.open(path, read_only=True, files=NoSyncFiles()) as storage:
            read_rows(storage)
    options = {"read_only": True, "on_corrupt": "skip"}
    with DiskStorage.open(path, files=NoSyncFiles(), **options) as storage:  # type: ignore[arg-type]
        left = read_rows(storage)
        assert_true(left, true)
        # A header that is damaged costs a reader its segment, which a repair would save.
        assert len(true) - len(left) <= max(most, SEGMENT if "header" in name else 0)
        assert (storage.lost_chunks > 0) == (len(left) < len(true))
        lost = storage.lost_chunks
        storage.refresh()
        assert storage.lost_chunks == lost
        assert read_rows(storage) == left


def test_skipping_damage_needs_read_only(tmp_path: Path) -> None:
    make_store(tmp_path / "a")
    with pytest.raises(ValueError, match=r"^on_corrupt='skip': .*read_only=True\b"):
        DiskStorage.open(tmp_path / "a", on_corrupt="skip")
    with pytest.raises(ValueError, match=r"^on_corrupt: .*'raise'.*'skip'.*'ignore'"):
        DiskStorage.open(tmp_path / "a", read_only=True, on_corrupt="ignore")  # type: ignore[arg-type]


def test_traces_of_a_crash_are_no_damage(tmp_path: Path) -> None:
    make_store(tmp_path / "a", is_open=True)
    last = newest(tmp_path / "a")
    poke(last, header_of(tmp_path / "a", int(last.stem[-8:])).table_offsets[1] + 40)
    found = verify(tmp_path / "a", files=NoSyncFiles())
    assert found.is_whole
    assert found.recovery.healed >= 1
    assert (found.rows, found.episodes, found.chunks) == (360, 24, 72)
    done = repair(tmp_path / "a", files=NoSyncFiles())
    assert done.is_done
    assert done.recovery == found.recovery
    assert not done.kept
    assert verify(tmp_path / "a", files=NoSyncFiles()).recovery == (0, 0)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["data", "a header", "a missing segment", "several files"])
@pytest.mark.parametrize(
    ("is_open", "stop"),
    [(False, Killed), (True, Killed), pytest.param(True, OSError, marks=pytest.mark.full)],
)
def test_a_repair_that_is_stopped_at_any_call_can_be_repeated(
    tmp_path: Path, name: str, is_open: bool, stop: type[BaseException]
) -> None:
    path, (spoil, _) = tmp_path / "a", DAMAGES[name]
    make_store(path, is_open=is_open)
    spoil(path)
    expected, must_be_kept = result_of_repair(path)
    fatal_call = 0
    while True:
        copy = Path(shutil.copytree(path, tmp_path / "copy"))
        files = FaultyFiles(fatal_call, stop, seed=fatal_call)
        with contextlib.suppress(Killed, OSError, StoreFailed):
            repair(copy, yes=True, files=files)
        check_repeated(copy, expected, must_be_kept)
        shutil.rmtree(copy)
        if not files.is_dead:
            break
        fatal_call += 1
    assert fatal_call > 10


@pytest.mark.proof
@pytest.mark.parametrize("name", ["data", "a header", "several files"])
def test_a_repair_that_loses_power_can_be_repeated(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    path, (spoil, _) = tmp_path / "a", DAMAGES[name]
    make_store(path, is_open=True)
    spoil(path)
    expected, must_be_kept = result_of_repair(path)
    root, rng, images = tmp_path / "medium", random.Random(name), list[Image]()
    shutil.copytree(path, root / "a")
    medium = Medium(root)
    files = MediumFiles(medium, lambda: images.append(medium.image(rng)), rng)
    repair(root / "a", yes=True, files=files)
    images += [medium.image(rng) for _ in range(3)]
    assert len(images) > 20
    for image in images if request.config.getoption("--full") else images[::3]:
        restore(image, tmp_path / "image")
        check_repeated(tmp_path / "image" / "a", expected, must_be_kept)


def check_repeated(path: Path, expected: Rows, must_be_kept: set[bytes]) -> None:
    """Repaired again, a store has the rows that it was to have, and keeps what it was to keep."""
    repair(path, yes=True, files=NoSyncFiles())
    assert verify(path, files=NoSyncFiles()).is_whole
    with DiskStorage.open(path, read_only=True) as storage:
        assert read_rows(storage) == expected
    assert must_be_kept <= {each.read_bytes() for each in path.rglob("segment-*.bin*")}


def result_of_repair(path: Path) -> tuple[Rows, set[bytes]]:
    """The rows of a repaired copy of the store, and the segments that are kept unchanged."""
    whole = Path(shutil.copytree(path, path.with_name("whole")))
    repair(whole, yes=True, files=NoSyncFiles())
    with DiskStorage.open(whole, read_only=True) as storage:
        rows = read_rows(storage)
    originals = {each.read_bytes() for each in path.glob("segment-*.bin")}
    return rows, originals & {each.read_bytes() for each in (whole / "damaged").glob("*")}


def test_a_slot_within_the_last_flush_of_an_open_segment_may_be_lost(tmp_path: Path) -> None:
    storage = DiskStorage.create(tmp_path / "made", SPEC, files=NoSyncFiles())
    storage.add([chunk_of(0, 0, 6, End.TERMINATED)])
    storage.add([chunk_of(episode, 0, 6, End.TERMINATED) for episode in (1, 2, 3)])
    path = Path(shutil.copytree(tmp_path / "made", tmp_path / "a"))
    storage.close()
    for offset in header_of(path).table_offsets:
        poke(middle(path, 0), offset + 128 * 2 + 60)
    assert repair(path, yes=True, files=NoSyncFiles()).is_done
    assert verify(path, files=NoSyncFiles()).is_whole
    with DiskStorage.open(path, read_only=True) as storage:
        assert {episode for episode, _ in read_rows(storage)} == {0, 1, 3}


def test_metadata_has_a_checksum_of_its_own(tmp_path: Path) -> None:
    make_store(tmp_path / "a", episodes=2)
    with DiskStorage.open(tmp_path / "a", read_only=True) as storage:
        offset = storage.index.record(0).offset
        nbytes = storage.index.record(0).nbytes
        text = segment_path(tmp_path / "a", 0).read_bytes().index(b'{"seed":0}', offset)
    poke(segment_path(tmp_path / "a", 0), offset + nbytes - 9)  # a row
    with DiskStorage.open(tmp_path / "a", read_only=True) as storage:
        assert storage.metadata(0) == {"seed": 0}
        with pytest.raises(StoreCorrupt, match=r"\brows 0 to 5 of episode 0\b"):
            storage.payload(0)
    poke(segment_path(tmp_path / "a", 0), text + 8)
    with (
        DiskStorage.open(tmp_path / "a", read_only=True) as storage,
        pytest.raises(StoreCorrupt, match=r"\brows 0 to 5 of episode 0\b"),
    ):
        storage.metadata(0)


@pytest.mark.parametrize(("place", "number"), [(0, 10**8 - 5), (2, 1 << 62), (4, 1 << 62)])
def test_a_writer_refuses_a_store_whose_numbers_are_used_up(
    tmp_path: Path, place: int, number: int
) -> None:
    """Found by forged folders: its rows were stored with numbers that no reader accepts."""
    with DiskStorage.create(tmp_path / "a", SPEC) as storage:
        storage.add([chunk_of(0)])
    folder = StoreFolder(tmp_path / "a", NoSyncFiles())
    manifest = folder.read_manifest()
    numbers = list(manifest.next)
    numbers[place] = number
    folder.write_manifest(replace(manifest, next=NextNumbers(*numbers)))
    DiskStorage.open(tmp_path / "a", read_only=True).close()
    with pytest.raises(StoreCorrupt, match=rf"{tmp_path}/a\b.*\b{number}\b"):
        DiskStorage.open(tmp_path / "a")
