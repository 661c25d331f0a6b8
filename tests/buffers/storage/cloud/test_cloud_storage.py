"""Reading an uploaded store: the same batches, few bytes, a bounded cache, damage told."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import (
    Chunk,
    CloudStorage,
    DiskStorage,
    End,
    Field,
    SequenceReplayBuffer,
    SpecMismatch,
    StoreCorrupt,
    StoreNotFound,
    StoreTooNew,
    copy_episodes,
)
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.cloud.chunk_cache import ChunkCache
from stepwell.buffers.storage.cloud.objects import Objects
from stepwell.buffers.storage.cloud.uploader import Uploader
from stepwell.buffers.storage.disk.segment import Segment
from stepwell.buffers.testing import SPEC, assert_holds, play
from support.cloud.faulty_objects import FaultyObjects, Place
from support.crash.disk_faults import NoSyncFiles
from support.disk_stores import create, filled

FRAMES = Spec(
    (
        Field("observation", "uint8", (64, 64), "raw"),
        Field("action", "int64", (), "raw"),
        Field("reward", "float64", (), "raw"),
    ),
    observation="observation",
    action="action",
)
ROWS, CHUNKS = 10, 600  # some 25 MB


def uploaded(folder: Path) -> Place:
    place = Place()
    Uploader(folder, place.connect()).upload()
    return place


def opened(place: Place, cache: Path, cache_bytes: int = 1 << 30, **more: bool) -> CloudStorage:
    return CloudStorage(place.connect(), ChunkCache(cache, cache_bytes), **more)


def read_all(storage: CloudStorage) -> None:
    for position in range(storage.index.base, storage.index.base + len(storage.index)):
        storage.payload(position)
        storage.metadata(position)


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of frames that do not compress."""
    folder = tmp_path_factory.mktemp("frames") / "store"
    rng = np.random.default_rng(0)
    with DiskStorage.create(folder, FRAMES, segment_bytes=4 << 20, files=NoSyncFiles()) as storage:
        for number in range(CHUNKS):
            rows: dict[str, np.ndarray] = {
                "observation": rng.integers(0, 256, (ROWS, 64, 64), np.uint8),
                "action": np.arange(ROWS),
                "reward": np.arange(ROWS) * 1.0,
            }
            storage.add([Chunk(number, 0, 0, End.TERMINATED, rows, {"number": number})])
    return folder


def test_a_store_reads_the_same_from_a_url(url: str, tmp_path: Path) -> None:
    chunks = filled(tmp_path / "store")
    Uploader(tmp_path / "store", Objects(url, is_writer=True)).upload(is_finished=True)
    with CloudStorage.open(url, cache=tmp_path / "cache") as storage:
        assert_holds(storage, chunks)
        assert storage.is_finished
    with (
        SequenceReplayBuffer.open(tmp_path / "store", read_only=True, seed=3) as expected,
        SequenceReplayBuffer.open(url, read_only=True, seed=3) as found,
    ):
        for _ in range(5):
            one, other = (each.sample_sequences(8, length=4) for each in (expected, found))
            np.testing.assert_array_equal(one.observation, other.observation)
            np.testing.assert_array_equal(one.ids, other.ids)
        assert found.digest() == expected.digest()
        target = SequenceReplayBuffer(tmp_path / "copy")
        with target:
            copy_episodes(found, target)
        with SequenceReplayBuffer.open(tmp_path / "copy", read_only=True) as copy:
            assert copy.digest() == expected.digest()


def test_urls_and_folders_are_read_as_one(url: str, tmp_path: Path) -> None:
    filled(tmp_path / "store")
    Uploader(tmp_path / "store", Objects(url, is_writer=True)).upload()
    with SequenceReplayBuffer.open([url, tmp_path / "store"], weights=[3, 1]) as both:
        assert both.sample_sequences(8, length=4).reward.shape == (8, 4)


def test_a_url_is_not_written_into(url: str, tmp_path: Path) -> None:
    filled(tmp_path / "store")
    Uploader(tmp_path / "store", Objects(url, is_writer=True)).upload()
    with pytest.raises(ValueError, match=rf"{url} is a URL.*read_only=True"):
        SequenceReplayBuffer.open(url)
    with pytest.raises(ValueError, match=rf"{url} is a URL.*read_only=True"):
        SequenceReplayBuffer(url)
    with CloudStorage.open(url, cache=tmp_path / "cache") as storage:
        refused: list[Callable[[], None]] = [
            lambda: storage.add([]),
            lambda: storage.add_encoded([]),
            lambda: storage.append_session({}),
            lambda: storage.keep_actions([]),
            lambda: storage.drop_before(1),
        ]
        for call in refused:
            with pytest.raises(ValueError, match=rf"{url} can only be read"):
                call()


def test_there_is_nothing_at_a_url(url: str) -> None:
    with pytest.raises(StoreNotFound, match=rf"{url} holds no store"):
        SequenceReplayBuffer.open(url, read_only=True)


def test_actions_of_evicted_rows_are_uploaded(tmp_path: Path) -> None:
    envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
    with (
        SequenceReplayBuffer(tmp_path / "a", capacity=400) as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, reseed_steps=None) as collector,
    ):
        for _ in range(20):
            collector.collect(steps=100)
        place = uploaded(tmp_path / "a")
        with DiskStorage.open(tmp_path / "a", read_only=True) as disk:
            expected = list(disk.ledger)
    storage = opened(place, tmp_path / "cache")
    assert expected
    assert [each.metadata for each in storage.ledger] == [each.metadata for each in expected]
    for _ in range(2):  # from the place, from the cache
        for one, other in zip(opened(place, tmp_path / "cache").ledger, expected, strict=True):
            np.testing.assert_array_equal(one.fields["action"], other.fields["action"])
    name = next(name for name in place.objects if name.startswith("ledgers/"))
    place.objects[name] = place.objects[name][:-1] + b"?"
    fresh = opened(place, tmp_path / "other")
    with pytest.raises(StoreCorrupt, match=f"{name} is damaged"):
        fresh.ledger  # noqa: B018
    del place.objects[name]
    with pytest.raises(StoreCorrupt, match=f"{name} is missing"):
        fresh.ledger  # noqa: B018


def test_a_batch_costs_the_chunks_that_it_touches(frames: Path, tmp_path: Path) -> None:
    place = uploaded(frames)
    total = sum(map(len, place.objects.values()))
    with SequenceReplayBuffer.of(opened(place, tmp_path / "cache")) as replay:
        objects = replay.storage._objects  # type: ignore[attr-defined]
        opening = objects.fetched_bytes
        assert opening < total // 20
        batch = replay.sample_sequences(16, length=8)
        touched = set((batch.ids // ROWS).ravel().tolist())
        chunk_bytes = int(replay.storage.index.records["nbytes"].max())
        assert objects.fetched_bytes - opening <= len(touched) * chunk_bytes
        assert len(touched) <= 16
        before = objects.fetched_bytes
    # The next process has them already.
    with SequenceReplayBuffer.of(opened(place, tmp_path / "cache")) as replay:
        for number in touched:
            replay.storage.payload(number)
        assert replay.storage._objects.fetched_bytes == opening  # type: ignore[attr-defined]
    assert before > opening


def test_facts_about_episodes_cost_one_request_a_segment(frames: Path, tmp_path: Path) -> None:
    storage = opened(uploaded(frames), tmp_path / "cache")
    objects = storage._objects
    assert isinstance(objects, FaultyObjects)
    before, fetched = len(objects.calls), objects.fetched_bytes
    assert [storage.metadata(number)["number"] for number in range(CHUNKS)] == [*range(CHUNKS)]
    assert len(objects.calls) - before == len(storage._state.uploaded) < CHUNKS / 10
    assert objects.fetched_bytes - fetched < 300 * CHUNKS


def test_reading_chunk_after_chunk_takes_few_requests(frames: Path, tmp_path: Path) -> None:
    storage = opened(uploaded(frames), tmp_path / "cache")
    objects = storage._objects
    assert isinstance(objects, FaultyObjects)
    before = len(objects.calls)
    for position in range(CHUNKS):
        storage.payload(position)
    assert len(objects.calls) - before < CHUNKS / 10


@pytest.mark.parametrize("order", ["forward", "random"])
def test_the_cache_is_bounded(order: str, frames: Path, tmp_path: Path) -> None:
    most, place = 4 << 20, uploaded(frames)
    readers = [opened(place, tmp_path / "cache", most) for _ in range(2)]
    own = tmp_path / "cache" / "notes.txt"
    positions = [*range(CHUNKS)] * 2
    if order == "random":
        random.Random(0).shuffle(positions)
    for count, position in enumerate(positions):
        readers[count % 2].payload(position)
        if count == 0:
            own.write_text("precious")
        assert bytes_below(tmp_path / "cache") <= most * 17 / 16
    assert bytes_below(tmp_path / "cache") > most / 2
    assert own.read_text() == "precious"


def test_without_room_for_a_cache_chunks_come_from_memory(frames: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = uploaded(frames)
    for cache, most in ((tmp_path / "file", 1 << 30), (tmp_path / "none", 0)):
        storage = opened(place, cache, most)
        read_all(storage)
        assert not (tmp_path / "none").exists()


def test_a_cache_with_other_bytes_is_not_believed(tmp_path: Path) -> None:
    chunks = filled(tmp_path / "store")
    place = uploaded(tmp_path / "store")
    read_all(opened(place, tmp_path / "cache"))
    rng = random.Random(0)
    for path in (tmp_path / "cache").rglob("*.chunk"):
        data = bytearray(path.read_bytes())
        kind = rng.randrange(4)
        if kind == 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data = data[:-1]
        path.unlink()
        if kind == 2:
            path.symlink_to("/etc/passwd")
        elif kind == 3:
            path.mkdir()
        else:
            path.write_bytes(data)
    assert_holds(opened(place, tmp_path / "cache"), chunks)


def test_a_changed_byte_is_told_or_harmless(tmp_path: Path) -> None:
    filled(tmp_path / "store", 6)
    place = uploaded(tmp_path / "store")
    whole = dict(place.objects)
    rng, told = random.Random(0), 0
    with DiskStorage.open(tmp_path / "store", read_only=True) as disk:
        expected = [bytes(disk.encoded(number).data) for number in range(len(disk.index))]
        facts = [disk.metadata(number) for number in range(len(disk.index))]
    for _ in range(300):
        name = rng.choice(sorted(whole))
        data = bytearray(whole[name])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        place.objects[name] = bytes(data)
        try:
            storage = opened(place, tmp_path / "cache", 0)
            for number, chunk in enumerate(expected):
                assert bytes(storage.encoded(number).data) == chunk
                assert storage.metadata(number) == facts[number]
        except StoreCorrupt as error:
            told += 1
            if f"s3://bucket/run/{name}" not in str(error):
                raise
        place.objects[name] = whole[name]
    assert told > 100


def test_the_bytes_of_a_chunk_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A test of the test above: without the comparison it fails.
    monkeypatch.setattr(Segment, "check", lambda *arguments: None)
    with pytest.raises(AssertionError):
        test_a_changed_byte_is_told_or_harmless(tmp_path)


@pytest.mark.parametrize("change", ["missing", "short", "empty"])
def test_an_object_that_is_not_whole_is_told_with_its_name(change: str, tmp_path: Path) -> None:
    filled(tmp_path / "store", 6)
    place = uploaded(tmp_path / "store")
    for name in sorted(place.objects):
        data = place.objects.pop(name)
        if change != "missing":
            place.objects[name] = b"" if change == "empty" else data[: len(data) // 2]
        expected: type[sw.StepwellError] = StoreCorrupt
        if name.startswith("manifests/") and change == "missing":
            expected = StoreNotFound
        with pytest.raises(
            expected, match="s3://bucket/run" + (f"/{name}" if change != "missing" else "")
        ):
            read_all(opened(place, tmp_path / "cache", 0))
        place.objects[name] = data
    read_all(opened(place, tmp_path / "cache", 0))


def test_damaged_chunks_are_left_out_on_request(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    place = uploaded(tmp_path / "store")
    name = next(name for name in sorted(place.objects) if name.endswith(".bin"))
    del place.objects[name]
    with pytest.raises(StoreCorrupt, match=f"{name} is missing"):
        opened(place, tmp_path / "cache")
    storage = opened(place, tmp_path / "cache", skip=True)
    assert storage.lost_chunks > 0
    read_all(storage)
    damaged = sorted(place.objects)[-1]
    assert damaged.endswith(".heads")
    other = damaged.replace(".heads", ".bin")
    data = bytearray(place.objects[other])
    with DiskStorage.open(tmp_path / "store", read_only=True) as disk:
        offset = disk.index.record(len(disk.index) - 1).offset
    data[offset + 9] ^= 1
    place.objects[other] = bytes(data)
    replay = SequenceReplayBuffer.of(opened(place, tmp_path / "more", skip=True))
    before = replay.lost_chunks
    assert list(replay.iter_episodes())
    assert replay.lost_chunks > before


def forged(place: Place, change: Callable[[dict[str, object]], None]) -> Place:
    """The place with another second line in its manifest, whose checksum is right."""
    name = max(name for name in place.objects if name.startswith("manifests/"))
    first, second, _ = place.objects[name].split(b"\n")
    body = json.loads(second)["body"]
    change(body)
    packed = json.dumps(body, separators=(",", ":")).encode()
    line = b'{"body":%b,"crc":"%08x"}' % (packed, crc32(packed))
    found = Place()
    found.objects = {**place.objects, name: b"\n".join([first, line, b""])}
    return found


FORGERIES: dict[str, dict[str, object]] = {
    "a number that is not that of the name": {"number": 7},
    "a name out of the folder": {"segments": [["../../../etc/passwd", 4096]]},
    "a segment too few": {"segments": []},
    "a top without bytes": {"segments": [["0" * 32, 0]]},
    "a top of many bytes": {"segments": [["0" * 32, 1 << 60]]},
    "a text for a list": {"segments": "many"},
    "a ledger without a length": {"ledger": ["0" * 32]},
    "a ledger of many bytes": {"ledger": ["0" * 32, 1 << 50]},
    "a ledger out of the folder": {"ledger": ["../" * 10 + "00", 5]},
    "a number for a truth": {"is_finished": 1},
    "no writer": {"writer": None},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_manifest_that_no_uploader_has_written_is_refused(forgery: str, tmp_path: Path) -> None:
    filled(tmp_path / "store", 1)
    place = uploaded(tmp_path / "store")
    read_all(opened(forged(place, lambda body: None), tmp_path / "cache"))
    with pytest.raises(StoreCorrupt, match=r"manifests/manifest-00000000\.json"):
        opened(forged(place, lambda body: body.update(FORGERIES[forgery])), tmp_path / "cache")


def test_a_manifest_of_a_later_version_says_so(tmp_path: Path) -> None:
    filled(tmp_path / "store", 1)
    place = forged(uploaded(tmp_path / "store"), lambda body: body.update(least_reader=99))
    with pytest.raises(StoreTooNew, match="upgrade stepwell"):
        opened(place, tmp_path / "cache")


def test_refresh_follows_the_uploads(tmp_path: Path) -> None:
    place = Place()
    with create(tmp_path / "store") as disk:
        uploader = Uploader(tmp_path / "store", place.connect())
        uploader.upload()
        storage = opened(place, tmp_path / "cache")
        assert len(storage.index) == 0
        assert not storage.refresh()
        chunks = play(disk, 5)
        disk.seal()
        assert not storage.refresh()
        uploader.upload()
        index = storage.index
        assert storage.refresh()
        assert len(index) == 0
        assert_holds(storage, chunks)
        disk.append_session({"began": "now"})
        uploader.upload()
        assert not storage.refresh()
        assert list(storage.sessions) == [{"began": "now"}]


def test_refresh_refuses_another_store(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    filled(tmp_path / "b")
    place, other = uploaded(tmp_path / "a"), uploaded(tmp_path / "b")
    storage = opened(place, tmp_path / "cache")
    newest = other.objects["manifests/manifest-00000000.json"]
    place.objects |= other.objects
    place.objects["manifests/manifest-00000000.json"] = newest
    assert not storage.refresh()  # the same number: nothing new
    place.objects["manifests/manifest-00000001.json"] = forged(
        other, lambda body: body.update(number=1)
    ).objects["manifests/manifest-00000000.json"]
    with pytest.raises((StoreCorrupt, SpecMismatch), match="another store"):
        storage.refresh()


def test_a_folder_of_another_store_is_not_uploaded_to_the_same_place(tmp_path: Path) -> None:
    filled(tmp_path / "a", 1)
    filled(tmp_path / "b", 1)
    place = uploaded(tmp_path / "a")
    before = dict(place.objects)
    with pytest.raises(sw.StepwellError, match="holds the store"):
        Uploader(tmp_path / "b", place.connect()).upload()
    assert place.objects == before


def test_what_is_there_is_not_sent_again(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    place = uploaded(tmp_path / "store")
    again = place.connect()
    uploader = Uploader(tmp_path / "store", again)
    uploader.upload()
    assert uploader.sent_bytes == 0
    assert not any(call.startswith("put") for call in again.calls)
    name = next(name for name in sorted(place.objects) if name.endswith(".bin"))
    place.objects[name] = place.objects[name][:-1]  # no object store does so
    third = Uploader(tmp_path / "store", place.connect())
    third.upload()
    assert third.sent_bytes == len(place.objects[name])
    read_all(opened(place, tmp_path / "cache"))


def test_the_rows_are_those_of_the_fields(tmp_path: Path) -> None:
    filled(tmp_path / "store", 2)
    storage = opened(uploaded(tmp_path / "store"), tmp_path / "cache")
    assert storage.spec == SPEC
    assert "s3://bucket/run" in repr(storage)
    storage.close()
    with pytest.raises(ValueError, match="s3://bucket/run is closed"):
        storage.payload(0)
