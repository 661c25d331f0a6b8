"""The file of kept actions: torn ends, damage, other files in its place, and readers beside it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from stepwell.buffers import Chunk, DiskStorage, End, StoreCorrupt, repair, verify
from stepwell.buffers.errors import SpecMismatch, StoreTooNew
from stepwell.buffers.provenance.chains import chains_of
from stepwell.buffers.storage.disk import ledger_file
from support.crash.disk_faults import NoSyncFiles
from support.models.chain_model import ACTIONS, SPEC, ChainModel, rows_of

FILES = NoSyncFiles()


def kept(number: int, rows: int = 5, **metadata: object) -> Chunk:
    fields = rows_of(number, 0, rows)
    facts = {"session": 0, "stream_episode": number, "seed": 3, **metadata}
    return Chunk(0, 2, 0, End.TERMINATED, {name: fields[name] for name in ACTIONS}, facts)


def numbers(storage: DiskStorage) -> list[object]:
    return [chunk.metadata["stream_episode"] for chunk in storage.ledger]


def create(path: Path, **more: int) -> DiskStorage:
    return DiskStorage.create(path, SPEC, files=FILES, **more)  # type: ignore[arg-type]


def reopen(path: Path, *, read_only: bool = False, skip: bool = False) -> DiskStorage:
    how: Literal["skip", "raise"] = "skip" if skip else "raise"
    return DiskStorage.open(path, read_only=read_only, on_corrupt=how, files=FILES)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three records of kept actions."""
    path = tmp_path / "a"
    model = ChainModel()
    with create(path) as storage:
        storage.add([model_chunk for model_chunk in [chunk(model)]])
        for number in range(3):
            storage.keep_actions([kept(number)])
        assert numbers(storage) == [0, 1, 2]
    return path


def chunk(model: ChainModel) -> Chunk:
    model.begin_session()
    return model.chunk(0, 9, End.TERMINATED, is_seeded=True)


def records(path: Path) -> list[int]:
    """The offsets of the records."""
    data, found = (path / "ledger.bin").read_bytes(), [32]
    while found[-1] < len(data):
        found.append(found[-1] + 24 + int.from_bytes(data[found[-1] + 4 : found[-1] + 8], "little"))
    return found[:-1]


def poke(path: Path, offset: int, data: bytes = b"\xaa") -> None:
    with (path / "ledger.bin").open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_kept_actions_come_back_bit_by_bit(store: Path) -> None:
    with reopen(store, read_only=True) as storage:
        for number, found in enumerate(storage.ledger):
            expected = kept(number)
            assert (found.stream, found.first_row, found.end) == (2, 0, End.TERMINATED)
            assert found.metadata == expected.metadata
            for name, rows in expected.fields.items():
                assert found.fields[name].dtype == rows.dtype
                np.testing.assert_array_equal(found.fields[name], rows)
        assert [each.metadata for each in storage.ledger[1:]] == [
            kept(1).metadata,
            kept(2).metadata,
        ]


def test_nothing_is_kept_of_actions_that_do_not_fit(store: Path) -> None:
    before = (store / "ledger.bin").read_bytes()
    wrong = {**kept(3).fields, "action/a": np.zeros(5, np.int8)}
    with reopen(store) as storage:
        with pytest.raises(SpecMismatch, match=r"'action/a'.*int64.*int8"):
            storage.keep_actions([kept(3), Chunk(0, 0, 0, End.NONE, wrong, kept(4).metadata)])
        with pytest.raises(ValueError, match=r"session and stream_episode.*'seed': 3"):
            storage.keep_actions([kept(3), kept(3, stream_episode=None)])
        with pytest.raises(ValueError, match="rows with an action"):
            storage.keep_actions([kept(3, rows=0)])
        with pytest.raises(ValueError, match=rf"stream.*{1 << 32}\b.*{1 << 40}\b"):
            storage.keep_actions([kept(3), replace(kept(4), stream=1 << 40)])
        storage.keep_actions([])
        assert numbers(storage) == [0, 1, 2]
        storage.keep_actions([kept(3)])  # a refusal is no failure
    assert (store / "ledger.bin").read_bytes().startswith(before)


def test_the_end_of_an_append_that_never_returned_is_left_out(store: Path) -> None:
    whole = (store / "ledger.bin").read_bytes()
    last = records(store)[-1]
    unmarked = whole[: last + 12] + bytes(12) + whole[last + 24 :]
    for length in range(last, len(whole) + 1, 7):
        (store / "ledger.bin").write_bytes(unmarked[:length])
        expected = [0, 1, 2][: 3 if length == len(whole) else 2]
        with reopen(store, read_only=True) as storage:
            assert numbers(storage) == expected
        assert verify(store, files=FILES).is_whole
        with reopen(store) as storage:
            assert numbers(storage) == expected
            storage.keep_actions([kept(7)])
        with reopen(store, read_only=True) as storage:
            assert numbers(storage) == [*expected, 7]
    assert b"DONE" in (store / "ledger.bin").read_bytes()[12:]


@pytest.mark.parametrize("record", range(3))
@pytest.mark.parametrize("place", [0, 3, 5, 8, 11, 24, 26, 60, 90])
def test_a_changed_byte_of_a_record_is_reported_and_repaired(
    store: Path, record: int, place: int
) -> None:
    poke(store, records(store)[record] + place)
    what = rf"{store}/ledger.bin: the \d+ bytes at offset {records_of_whole(store)[record]}\b"
    left = [number for number in range(3) if number != record]
    with reopen(store, read_only=True) as storage:  # the rows do not depend on it
        assert storage.index.rows == 9
        with pytest.raises(StoreCorrupt, match=what):
            _ = storage.ledger
    with reopen(store, read_only=True, skip=True) as storage:
        assert numbers(storage) == left
    with pytest.raises(StoreCorrupt, match=what):
        reopen(store)
    report = verify(store, files=FILES)
    assert [damage.path for damage in report.damages] == [store / "ledger.bin"]
    assert not repair(store, files=FILES).is_done
    damaged = (store / "ledger.bin").read_bytes()
    repaired = repair(store, yes=True, files=FILES)
    assert [each.read_bytes() for each in repaired.kept] == [damaged]
    assert verify(store, files=FILES).is_whole
    with reopen(store) as storage:
        assert numbers(storage) == left
        storage.keep_actions([kept(9)])
        assert numbers(storage) == [*left, 9]


def records_of_whole(path: Path) -> list[int]:
    size = len((path / "ledger.bin").read_bytes()) - 32
    return [32 + size // 3 * number for number in range(3)]


@pytest.mark.parametrize("place", [0, 8, 12, 20, 28])
def test_a_damaged_header_is_reported_and_repaired(store: Path, place: int) -> None:
    poke(store, place)
    with (
        reopen(store, read_only=True) as storage,
        pytest.raises(StoreCorrupt, match=rf"{store}/ledger.bin"),
    ):
        _ = storage.ledger
    assert not verify(store, files=FILES).is_whole
    repair(store, yes=True, files=FILES)
    with reopen(store) as storage:
        assert numbers(storage) == [0, 1, 2]


def test_the_ledger_of_another_store_is_not_taken(store: Path, tmp_path: Path) -> None:
    with create(tmp_path / "b") as other:
        other.keep_actions([kept(5)])
        name = other.store
    shutil.copy(tmp_path / "b" / "ledger.bin", store / "ledger.bin")
    with (
        reopen(store, read_only=True) as storage,
        pytest.raises(StoreCorrupt, match=f"{name}.*{storage.store}"),
    ):
        _ = storage.ledger
    repair(store, yes=True, files=FILES)
    with reopen(store) as storage:
        assert numbers(storage) == []


def test_a_ledger_of_a_later_version_is_refused_by_name(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "ledger.bin").unlink()
    monkeypatch.setattr(ledger_file, "FORMAT", 9)
    with reopen(store) as storage:
        storage.keep_actions([kept(0)])
    monkeypatch.undo()
    with reopen(store, read_only=True) as storage, pytest.raises(StoreTooNew, match="format 9"):
        _ = storage.ledger


def test_what_is_no_file_is_refused_by_name(store: Path, tmp_path: Path) -> None:
    (store / "ledger.bin").rename(tmp_path / "other")
    for make in (
        lambda path: path.symlink_to(tmp_path / "other"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ):
        make(store / "ledger.bin")
        with (
            reopen(store, read_only=True) as storage,
            pytest.raises(StoreCorrupt, match=rf"{store}/ledger.bin is a"),
        ):
            _ = storage.ledger
        with pytest.raises(StoreCorrupt, match=rf"{store}/ledger.bin is a"):
            reopen(store)
        assert not verify(store, files=FILES).is_whole
        repair(store, yes=True, files=FILES)
        assert verify(store, files=FILES).is_whole
        (store / "ledger.bin").unlink()


def test_a_ledger_with_a_second_name_is_not_written_to(store: Path, tmp_path: Path) -> None:
    os.link(store / "ledger.bin", tmp_path / "copy")
    before = (tmp_path / "copy").read_bytes()
    with reopen(store) as storage:
        storage.keep_actions([kept(3)])
        assert numbers(storage) == [0, 1, 2, 3]
    assert (tmp_path / "copy").read_bytes() == before
    assert (store / "ledger.bin").stat().st_nlink == 1


def test_a_file_that_claims_to_be_huge_takes_no_memory(store: Path) -> None:
    os.truncate(store / "ledger.bin", 1 << 40)  # takes no room on the disk
    with reopen(store, read_only=True) as storage:
        assert numbers(storage) == [0, 1, 2]
    with reopen(store) as storage:
        assert numbers(storage) == [0, 1, 2]
    assert (store / "ledger.bin").stat().st_size < 10_000


def test_a_reader_keeps_the_actions_that_its_rows_need(tmp_path: Path) -> None:
    """A writer that evicts, and writes a shorter ledger, changes nothing for those who read."""
    model = ChainModel()
    with create(tmp_path / "a", capacity=100, segment_bytes=4096) as storage:
        storage.append_session(model.begin_session())
        readers: list[DiskStorage] = []
        for number in range(60):
            end = End.TERMINATED if number % 2 else End.NONE
            storage.add([model.chunk(0, 7, end, is_seeded=number % 16 == 0)])
            readers.append(reopen(tmp_path / "a", read_only=True))
            if number % 10 == 9:
                for reader in readers:
                    model_then(model, reader)
        for reader in readers:
            model_then(model, reader)
            reader.refresh()
            model.check_chains(reader)
            reader.close()


def test_actions_of_a_damaged_chunk_are_not_kept(tmp_path: Path) -> None:
    """A wrong action with a right checksum would be worse than none."""
    model, path = ChainModel(), tmp_path / "a"
    with create(path, capacity=64, segment_bytes=4096) as storage:
        storage.append_session(model.begin_session())
        for number in range(8):
            storage.add([model.chunk(0, 4, End.TERMINATED, is_seeded=number == 0)])
        record = storage.index.record(4)
        with (path / f"segment-{record.segment:08}.bin").open("r+b") as file:
            file.seek(record.offset + record.nbytes - 60)
            file.write(b"damage")
        while storage.index.base < 4:
            storage.add([model.chunk(0, 4, End.TERMINATED, is_seeded=False)])
        while storage.index.base < 12:
            storage.add([model.chunk(0, 4, End.TERMINATED, is_seeded=False)])
        model.kept_rows(storage.ledger)  # compares them
        chains, unreachable = chains_of(storage)
        assert not chains
        assert len(unreachable) == storage.index.episodes
        assert len(storage.ledger) == 0
        storage.add([model.chunk(0, 4, End.TERMINATED, is_seeded=True)])
        (chain,) = chains_of(storage)[0]
        assert len(chain.plays) == 1


def model_then(model: ChainModel, reader: DiskStorage) -> None:
    """The chains of what a reader sees, which the model may have continued since."""
    then = ChainModel(dict(model.played))
    then.check_chains(reader)
