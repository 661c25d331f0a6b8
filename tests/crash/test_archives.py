"""Archives that were changed, cut or forged: never a false row."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tarfile
import tracemalloc
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import zstandard

import stepwell as sw
from stepwell.buffers import RowsDiffer, SpecMismatch, StoreCorrupt, StoreTooNew, Unprovable
from support.archived import read_all, record, repacked
from support.envs.scrambled import ScrambledEnv
from support.examples import by_tier
from support.forged.folders import Store
from support.forged.forgeries import FORGERIES

REFUSALS = (ValueError, SpecMismatch, StoreCorrupt, StoreTooNew, Unprovable, RowsDiffer)
MOST_MEMORY = 64 << 20


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive beside its store."""
    folder = tmp_path_factory.mktemp("archives")
    with record(folder / "a", [[200]], has_info=True, reseed_steps=1) as replay:
        sw.archive(replay, folder / "a.swa", env=ScrambledEnv, lanes=1)
    return folder / "a.swa"


def test_every_changed_byte_is_found(archive: Path, tmp_path: Path) -> None:
    data, rng = archive.read_bytes(), np.random.default_rng(1)
    places = rng.integers(0, len(data), by_tier(100, 1_000, 10_000)).tolist()
    for place in {*places, *range(16), *range(len(data) - 40, len(data))}:
        changed = bytearray(data)
        changed[place] ^= int(rng.integers(1, 256))
        (tmp_path / "b.swa").write_bytes(changed)
        with pytest.raises((StoreCorrupt, StoreTooNew, ValueError), match=r"b\.swa"):
            read_all(tmp_path / "b.swa")


def test_a_file_that_is_cut_or_longer_is_refused(archive: Path, tmp_path: Path) -> None:
    data, path = archive.read_bytes(), tmp_path / "b.swa"
    lengths = np.random.default_rng(2).integers(0, len(data), by_tier(30, 300, 2_000)).tolist()
    others = [data[:length] for length in {*lengths, *range(60), len(data) - 1}]
    for other in [*others, data + b"\0", data + data[-36:], data[:500] + data]:
        path.write_bytes(other)
        with pytest.raises((StoreCorrupt, ValueError), match=r"b\.swa"):
            read_all(path)


@pytest.mark.proof
def test_forged_contents_are_refused_or_are_what_the_env_shows(
    archive: Path, tmp_path: Path
) -> None:
    """With the right checksums, as whoever writes an archive can make them."""
    seen = Counter[str]()
    rng = np.random.default_rng(3)
    tracemalloc.start()
    for number in range(by_tier(150, 600, 5_000)):
        forged = tmp_path / f"{number}.swa"
        repacked(archive, forged, partial(change, rng=rng))
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


def change(folder: Path, rng: Any) -> None:
    """Forge the store in a folder, under the right checksums."""
    names = [name for name in FORGERIES if not name.startswith("file")]
    store = Store.parse("an archive", folder)
    FORGERIES[names[int(rng.integers(len(names)))]].forge(store, Random(int(rng.integers(1 << 30))))
    store.acts.clear()
    shutil.rmtree(folder)
    store.write(folder)


def tar_of(*entries: tarfile.TarInfo, end: bytes = bytes(1024)) -> bytes:
    parts = [
        each.tobuf(tarfile.USTAR_FORMAT) + bytes(-(-each.size // 512) * 512) for each in entries
    ]
    return b"".join(parts) + end


def entry(name: str, size: int = 3, **changes: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size = size
    for key, value in changes.items():
        setattr(found, key, value)
    return found


TARS: dict[str, bytes] = {
    "a path out of the folder": tar_of(entry("../manifest.json")),
    "another file": tar_of(entry("LOCK")),
    "a link": tar_of(entry("manifest.json", 0, type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a long name": tar_of(entry("@LongLink", 500, type=tarfile.GNUTYPE_LONGNAME)),
    "a file twice": tar_of(entry("manifest.json"), entry("manifest.json")),
    "a file that is cut": tar_of(entry("manifest.json", 3000), end=b"")[:2000],
    "more than there is": entry("manifest.json", 1 << 32).tobuf(tarfile.USTAR_FORMAT),
    "no tar file": bytes(range(256)) * 4,
    "no manifest": tar_of(entry("segment-00000000.bin", 4096)),
}


def packed(folder: Path, contents: bytes) -> Path:
    """An archive of these contents, with the right checksum."""
    data = zstandard.ZstdCompressor().compress(contents)
    path = folder / "b.swa"
    path.write_bytes(data + struct.pack("<II", 0x184D2A50, 32) + hashlib.sha256(data).digest())
    return path


@pytest.mark.parametrize("kind", TARS)
def test_another_content_is_refused(tmp_path: Path, kind: str) -> None:
    path = packed(tmp_path, TARS[kind])
    with pytest.raises(StoreCorrupt, match=r"b\.swa is damaged"):
        read_all(path)
    assert os.listdir(tmp_path) == ["b.swa"]


def test_a_file_that_is_unpacked_to_very_many_bytes_is_refused(tmp_path: Path) -> None:
    size = (64 << 20) + (1 << 10) * 10_000
    path = packed(tmp_path, tar_of(entry("segment-00000000.bin", size)))
    assert path.stat().st_size < 10_000
    with pytest.raises(StoreCorrupt, match="bytes"):
        read_all(path)
