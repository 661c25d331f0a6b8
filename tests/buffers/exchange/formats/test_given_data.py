"""Imports of data sets from untrusted sources: no code, no other files, bounded memory."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Field, SequenceReplayBuffer
from stepwell.buffers.base.untrusted_files import GivenFiles, parse_object
from stepwell.buffers.bridges import export_episodes, import_episodes
from support.exchanged_stores import imported, refused, tagged_store
from support.format_packages import require

MIB = 1 << 20


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's outside of the data set."""
    file = tmp_path / "elsewhere" / "data"
    file.parent.mkdir()
    file.write_bytes(bytes(range(200)))
    return file


def exported(tmp_path: Path, name: str, **options: object) -> Path:
    out = tmp_path / "given-v0"
    image = Field("observation", "uint8", (16, 16, 3), "zstd")
    export_episodes(tagged_store(image, episodes=2), name, out, options=options)
    return out


def put_npz(file: Path, **arrays: Any) -> None:
    usual: dict[str, Any] = {
        "observations": np.zeros((4, 2), np.float32),
        "actions": np.zeros(3, np.int64),
        "rewards": np.ones(3),
        "terminations": np.zeros(3, bool),
        "truncations": np.zeros(3, bool),
    }
    np.savez_compressed(file, **{**usual, **arrays})


# Files outside of the data set


def test_links_out_of_the_data_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    put_npz(tmp_path / "given" / "0.npz")
    put_npz(tmp_path / "mine.npz")
    (tmp_path / "link").symlink_to("given")
    (tmp_path / "given" / "1.npz").symlink_to("0.npz")
    replay = SequenceReplayBuffer()
    assert import_episodes("npz", tmp_path / "link", replay).episodes == 2
    (tmp_path / "given" / "2.npz").symlink_to(tmp_path / "mine.npz")
    refused("npz", tmp_path / "given", r"2\.npz.*mine\.npz.*cp -rL")


def test_a_pipe_or_a_device_is_not_opened(tmp_path: Path) -> None:
    put_npz(tmp_path / "0.npz")
    os.mkfifo(tmp_path / "1.npz")
    refused("npz", tmp_path, r"1\.npz.*pipe")
    (tmp_path / "1.npz").unlink()
    (tmp_path / "1.npz").mkdir()
    refused("npz", tmp_path, r"1\.npz.*folder")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("npz", "stepwell/store.json"),
        ("dreamerv3", "*.npz"),
        ("rlds", "features.json"),
        ("lerobot", "meta/info.json"),
        ("parquet", "episodes.parquet"),
        ("minari", "data/metadata.json"),
        ("minari", "data/main_data.hdf5"),
    ],
)
def test_pipes_are_refused_by_every_format(tmp_path: Path, name: str, file: str) -> None:
    require(name)
    out = exported(tmp_path, name)
    path = next(out.glob(file))
    path.unlink()
    os.mkfifo(path)
    refused(name, out, rf"{re.escape(path.name)}.*pipe")


# Memory


@pytest.mark.proof
def test_unpacked_size_is_checked_before_unpacking(tmp_path: Path) -> None:
    put_npz(tmp_path / "0.npz", observations=np.zeros((4, 3 * MIB), np.float32))
    assert (tmp_path / "0.npz").stat().st_size < MIB
    refused("npz", tmp_path, r"0\.npz.*40 MiB.*48 MiB.*max_bytes", max_bytes=40 * MIB)
    imported("npz", tmp_path, max_bytes=200 * MIB)


def forged_entry(file: Path, shape: str, descr: str = "|u1", data: bytes = b"") -> None:
    """An npz file with an array whose header gives a wrong shape."""
    put_npz(file)
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    entry = b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head.encode() + data
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("extras/x.npy", entry)


@pytest.mark.parametrize(
    ("shape", "descr", "match"),
    [
        (f"({2**62},)", "|u1", rf"'extras/x\.npy'.*{2**62}.*\b0 bytes"),
        ("(-1,)", "|u1", r"'extras/x\.npy'.*\(-1,\)"),
        ("(3,)", "|O", r"'extras/x\.npy'.*objects.*pickle"),
        ("(3,)", "|V8", r"'extras/x\.npy'.*\|V8 \(3,\)"),
        ("(" * 50, "|u1", "npz file"),
    ],
)
def test_array_headers_are_checked_against_the_archive(
    tmp_path: Path, shape: str, descr: str, match: str
) -> None:
    forged_entry(tmp_path / "0.npz", shape, descr)
    refused("npz", tmp_path, rf"0\.npz.*{match}")


def test_duplicate_and_encrypted_arrays_are_refused(tmp_path: Path) -> None:
    forged_entry(tmp_path / "0.npz", "(3,)", data=b"abc")
    with zipfile.ZipFile(tmp_path / "0.npz", "a") as archive:
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("extras/x.npy", b"")
    refused("npz", tmp_path, r"0\.npz.*'extras/x'.*twice")
    put_npz(tmp_path / "0.npz")
    data = bytearray((tmp_path / "0.npz").read_bytes())
    data[data.rfind(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "0.npz").write_bytes(data)
    refused("npz", tmp_path, r"0\.npz.*'truncations'.*encrypted")


def test_parquet_that_expands_beyond_max_bytes_is_refused(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = 4000
    big = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array([bytes(4 * MIB)], pa.binary())
    )
    flags = pa.array([False] * rows)
    columns = {"observation": big, "action": flags, "reward": flags, "terminated": flags}
    pq.write_table(
        pa.table(columns), tmp_path / "0.parquet", compression="zstd", store_schema=False
    )
    assert (tmp_path / "0.parquet").stat().st_size < 100_000
    refused("parquet", tmp_path, rf"'observation'.*{4 * MIB}|64 MiB", max_bytes=64 * MIB)
    # A list of 20 Mi numbers in one row
    zeros = pa.ListArray.from_arrays([0, 20 * MIB], pa.array(np.zeros(20 * MIB, np.uint8)))
    table = pa.table({"observation": zeros, "action": [0], "reward": [0], "terminated": [True]})
    pq.write_table(table, tmp_path / "0.parquet")
    assert (tmp_path / "0.parquet").stat().st_size < 100_000
    refused("parquet", tmp_path, r"0\.parquet.*64 MiB.*160 MiB", max_bytes=64 * MIB)


def test_picture_size_is_checked_before_decoding(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head + bytes(4)
    jpeg = b"\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x0b\x08" + struct.pack(">HH", 30_000, 30_000)
    for file in (picture, jpeg + bytes(9)):
        table = pa.table(
            {"observation": [file], "action": [0], "reward": [0], "terminated": [True]}
        )
        pq.write_table(table, tmp_path / "0.parquet")
        refused("parquet", tmp_path, r"'observation'.*64 MiB.*2,574 MiB", max_bytes=64 * MIB)
    bitmap = b"BM" + bytes(100)
    table = pa.table({"observation": [bitmap], "action": [0], "reward": [0], "terminated": [True]})
    pq.write_table(table, tmp_path / "0.parquet")
    refused("parquet", tmp_path, r"'observation'.*PNG.*\b102\b")


@pytest.mark.proof
def test_an_rlds_value_that_expands_beyond_its_feature_is_refused(tmp_path: Path) -> None:
    from stepwell.buffers.exchange.formats.file_columns import FileColumn
    from stepwell.buffers.exchange.formats.rlds import decode_feature
    from support.forged.data_sets import MAX_BYTES, _bomb

    feature = FileColumn("x", "uint8", (100,), "zlib")
    with pytest.raises(ValueError, match=r"'x'.*uint8 \(100,\).*\b100 bytes"):
        decode_feature(feature, [_bomb()], 1)
    assert MAX_BYTES > 100


# Links, code and damaged contents


@pytest.mark.parametrize("kind", ["external", "virtual", "soft", "link", "circle"])
@pytest.mark.parametrize("name", ["d3rlpy", "minari"])
def test_hdf5_reads_nothing_of_another_file(
    tmp_path: Path, secret: Path, name: str, kind: str
) -> None:
    h5py = pytest.importorskip("h5py")
    if name == "minari":
        pytest.importorskip("minari")
    out = exported(tmp_path, name)
    file = out if name == "d3rlpy" else out / "data" / "main_data.hdf5"
    place = "rewards_0" if name == "d3rlpy" else "episode_0/rewards"
    with h5py.File(file, "r+") as opened:
        shape = opened[place].shape
        del opened[place]
        if kind == "external":
            opened.create_dataset(place, shape, "u1", external=[(str(secret), 0, 100)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape, "u1")
            layout[:] = h5py.VirtualSource(str(secret), "x", shape)
            opened.create_virtual_dataset(place, layout)
        elif kind == "circle":
            opened[place] = opened["/"]
        else:
            link = h5py.SoftLink("/x") if kind == "soft" else h5py.ExternalLink(str(secret), "/")
            opened[place] = link
    refused(name, out, f"/{place}")


def test_minari_makes_no_env_that_a_data_set_names(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    out = exported(tmp_path, "minari")
    file = out / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["observation_space"]
    touched = tmp_path / "touched"
    for spec in (
        {"id": "Any-v0", "entry_point": "pathlib:Path.touch", "kwargs": {"self": str(touched)}},
        {"id": "CartPole-v1", "entry_point": "subprocess:run", "kwargs": {"args": "touch x"}},
        {"id": "CartPole-v1", "additional_wrappers": [{"entry_point": "subprocess:run"}]},
    ):
        file.write_text(json.dumps({**metadata, "env_spec": json.dumps(spec)}))
        refused("minari", out, rf"metadata\.json.*observation_space.*'{spec['id']}'")
    assert not touched.exists()


def test_invalid_and_deep_json_is_refused(tmp_path: Path) -> None:
    for text in (
        "[" * 100_000,
        '{"a":' * 200 + "1" + "}" * 200,
        "[1]",
        "\xff",
        '{"a": ' + "9" * 5000,
    ):
        with pytest.raises(ValueError, match=r"^here\b.*JSON"):
            parse_object(text, "here")
    assert parse_object('{"a": [[1]]}', "here") == {"a": [[1]]}
    (tmp_path / "x.json").write_bytes(b" " * 100)
    with pytest.raises(ValueError, match=r"x\.json.*\b99\b"):
        GivenFiles(tmp_path).read_bytes(tmp_path / "x.json", most=99)


def test_the_import_command_is_bounded_by_free_memory(tmp_path: Path) -> None:
    """The system bounds the memory where only the library knows the unpacked size."""
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux bounds the memory of a process")
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("minari")
    out = exported(tmp_path, "minari", data_format="arrow")
    file = out / "data" / "0" / "part-0.arrow"
    with pa.OSFile(str(file)) as raw:
        batch = pa.ipc.open_file(raw).get_batch(0)
    zeros = pa.array(np.zeros(len(batch) * 60 * MIB, np.uint8))
    wide = pa.FixedSizeListArray.from_arrays(zeros, 60 * MIB)
    batch = batch.set_column(0, "observations", wide)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(file), batch.schema, options=options) as writer:
        writer.write_batch(batch)
    assert file.stat().st_size < MIB
    program = (
        "import sys\n"
        "from stepwell.buffers.base import memory_limit as free_memory\n"
        "from stepwell.collectors.cli.app import main\n"
        "import pyarrow.dataset, minari, stepwell.buffers.bridges\n"
        f"free_memory.free_memory = lambda: {80 * MIB}\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["import", str(out), "--from", "minari", "--dry-run", "--max-bytes", "8GiB"]
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 2, run.stderr[-2000:]
    assert re.search(r"given-v0.*format minari.*memory", run.stderr)
