"""Archives that were changed, cut or forged, and restores that are killed: never a false row."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import (
    RowsDiffer,
    SpecMismatch,
    StoreCorrupt,
    StoreTooNew,
    Unprovable,
    copy_episodes,
)
from stepwell.buffers.provenance.archive_file import ArchiveFile
from support.archived import Section, contents_of, files_of, opened, record, repacked
from support.crash.killed_calls import killed_at
from support.envs.scrambled import ScrambledEnv
from support.examples import by_tier

REFUSALS = (ValueError, SpecMismatch, StoreCorrupt, StoreTooNew, Unprovable, RowsDiffer)
MOST_MEMORY = 64 << 20


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with every kind of section, beside the store ``a``."""
    folder = tmp_path_factory.mktemp("archives")
    with record(None, [[200]], has_info=True) as replay:
        with sw.SequenceReplayBuffer(folder / "a") as some:
            copy_episodes(replay, some, keep=lambda episode: episode.id % 3 == 2)
            sw.archive(some, folder / "a.swa", env=ScrambledEnv, lanes=1)
    assert {kind for kind, _ in sections_of(folder / "a.swa")} == {
        *("facts", "chunks", "folder", "rows", "checks", "ledger", "actions")
    }
    return folder / "a.swa"


def sections_of(path: Path) -> list[Section]:
    with ArchiveFile(path) as file:
        return file.sections


def test_every_changed_byte_is_found(archive: Path, tmp_path: Path) -> None:
    data, rng = archive.read_bytes(), np.random.default_rng(1)
    places = rng.integers(0, len(data), by_tier(300, 1_000, 10_000)).tolist()
    for place in {*places, *range(16), *range(len(data) - 40, len(data))}:
        changed = bytearray(data)
        changed[place] ^= int(rng.integers(1, 256))
        (tmp_path / "b.swa").write_bytes(changed)
        with pytest.raises((StoreCorrupt, StoreTooNew, ValueError), match=r"b\.swa"):
            opened(tmp_path / "b.swa")


def test_a_file_that_is_cut_or_longer_is_refused(archive: Path, tmp_path: Path) -> None:
    data, path = archive.read_bytes(), tmp_path / "b.swa"
    lengths = np.random.default_rng(2).integers(0, len(data), by_tier(100, 300, 2_000)).tolist()
    others = [data[:length] for length in {*lengths, *range(60), len(data) - 1}]
    for other in [*others, data + b"\0", data + data[-36:], data[:500] + data]:
        path.write_bytes(other)
        with pytest.raises((StoreCorrupt, ValueError), match=r"b\.swa"):
            opened(path)


def test_forged_contents_are_refused_or_are_what_the_env_shows(
    archive: Path, tmp_path: Path
) -> None:
    """With the right checksums, as whoever writes an archive can make them."""
    sections, seen = sections_of(archive), Counter[str]()
    rng = np.random.default_rng(3)
    tracemalloc.start()
    for number in range(by_tier(150, 600, 5_000)):
        forged, section = tmp_path / f"{number}.swa", sections[number % len(sections)]
        repacked(archive, forged, partial(change, section=section, rng=rng))
        tracemalloc.reset_peak()
        target = tmp_path / str(number)
        again = sw.SequenceReplayBuffer(target if number % 2 else None)
        try:
            sw.restore(forged, again, env=ScrambledEnv, lanes=1)
            seen["restored"] += 1
        except REFUSALS as error:
            seen[type(error).__name__] += 1
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
        if again.is_bound:
            proofs = list(sw.resimulate(again, env=ScrambledEnv, lanes=1))
            assert all(proof.reason != "differs" for proof in proofs)
        assert target.exists() == (again.is_bound and number % 2 == 1)
        again.close()
        forged.unlink()
    tracemalloc.stop()
    print(seen)
    assert seen["StoreCorrupt"] > 0
    assert seen["RowsDiffer"] > 0
    assert seen["restored"] > 0


def change(sections: dict[Section, bytes], section: Section, rng: Any) -> None:
    """Change some bytes of the contents of a section."""
    data = bytearray(sections[section])
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(data)))
        match int(rng.integers(4)):
            case 0:
                del data[place : place + int(rng.integers(1, 9))]
            case 1:
                data[place:place] = rng.bytes(int(rng.integers(1, 9)))
            case 2:
                data[place : place + 8] = b"\xff" * 8
            case _:
                data[place] = int(rng.integers(256))
        data = data or bytearray(1)
    sections[section] = bytes(data)


def test_a_section_that_declares_more_than_it_can_hold_is_refused(
    archive: Path, tmp_path: Path
) -> None:
    def grow(sections: dict[Section, bytes]) -> None:
        sections["rows", 2] = b"\0" * (63 << 20)  # 2 kB of zstd

    repacked(archive, tmp_path / "b.swa", grow)
    with pytest.raises(StoreCorrupt, match="more bytes"):
        opened(tmp_path / "b.swa")

    def bomb(sections: dict[Section, bytes]) -> None:
        sections["rows", 2] = b"\0" * (80 << 20)

    with pytest.raises(ValueError, match="67,108,864"):
        repacked(archive, tmp_path / "c.swa", bomb)


def test_a_killed_restore_leaves_no_store_or_a_whole_one(archive: Path, tmp_path: Path) -> None:
    def work(target: Path) -> None:
        with sw.SequenceReplayBuffer(target) as again:
            sw.restore(archive, again, env=ScrambledEnv, lanes=1)

    calls = killed_at(None, partial(work, tmp_path / "whole"))
    assert calls > 10
    assert files_of(tmp_path / "whole") == files_of(archive.with_suffix(""))
    is_there = 0
    for number in range(0, calls, by_tier(3, 1, 1)):
        target = tmp_path / f"{number}"
        assert killed_at(number, partial(work, target), number) == -1
        if target.exists():
            is_there += 1
            assert files_of(target) == files_of(archive.with_suffix(""))
            continue
        work(target)  # what is left over is in nobody's way
        assert files_of(target) == files_of(archive.with_suffix(""))
    assert 0 < is_there < calls


def test_a_killed_archive_leaves_no_file_or_a_whole_one(tmp_path: Path) -> None:
    with record(tmp_path / "a", [[40]]) as replay:
        before = contents_of(replay)

        def work(target: Path) -> None:
            sw.archive(replay, target, env=ScrambledEnv, lanes=1)

        calls = killed_at(None, partial(work, tmp_path / "whole.swa"))
        for number in range(calls):
            target = tmp_path / f"{number}.swa"
            assert killed_at(number, partial(work, target), number) == -1
            if not target.exists():
                work(target)
            assert target.read_bytes() == (tmp_path / "whole.swa").read_bytes()
    with sw.SequenceReplayBuffer() as again:
        sw.restore(tmp_path / "whole.swa", again, env=ScrambledEnv, lanes=1)
        assert contents_of(again) == before
