"""Data sets of all formats, forged in many ways, and what an import may make of them."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.buffers import Field, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.exchange.formats.tfrecord import decoded, encoded, read_records, write_record
from stepwell.buffers.storage.disk.verify import verify
from stepwell.collectors.cli.errors import sentence_of
from stepwell.collectors.cli.exchange import import_data
from stepwell.collectors.cli.output import Output
from support.crash.hostile_runner import Canaries, Fault, Labels
from support.exchanged_stores import tagged_store
from support.forged.folders import at, dumps, paths_of
from support.forged.forgeries import change_json
from support.format_packages import missing
from support.libraries.original_memmap import OriginalWriter, tagged

__all__ = ["ForgedImports", "formats_here"]

MAX_BYTES = 64 << 20
NAMES = (
    *("npz", "d3rlpy", "minari", "minari-arrow", "dreamerv3", "parquet"),
    *("lerobot", "rlds", "memmap-replay-buffer"),
)
FIELDS = {"observation": "state", "action": "action", "reward": "reward", "terminated": "done"}
ODD: tuple[Any, ...] = (
    *(None, True, -0.5, 1e308, float("nan"), float("inf"), "", "x", "../../secret", "/etc/passwd"),
    *("\0", "a" * 5000, "\ud800", [], {}, [[]], {"a": {}}, "O", "object", "|V2000000000", "S9"),
)
DTYPES = ("uint8", "int8", "int64", "uint64", "float16", "float32", "float64", "bool", "complex64")


def formats_here() -> list[str]:
    """Those whose libraries are installed."""
    return [name for name in NAMES if not missing(name)]


class ForgedImports:
    """Imports a forged data set, by its number, and judges what came of it."""

    def __init__(self, folder: Path, formats: list[str]) -> None:
        warnings.simplefilter("ignore")
        self._folder = folder
        self._formats = formats
        self._templates = {name: _template(folder / "made", name) for name in formats}
        self._secret = folder / "secret"
        self._secret.mkdir()
        (self._secret / "data.npz").write_bytes(b"this must not be read or changed")
        self._canaries = Canaries(folder, frozenset({"case"}))

    def __call__(self, number: int) -> Labels:
        """Forge a data set, import it, and look at what there is."""
        rng = random.Random(number)
        name = self._formats[number % len(self._formats)]
        case = self._folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self._templates[name].parent, case / "given")
        given = case / "given" / self._templates[name].name
        forged = _forge(given, rng, self._secret)
        out = case / "store"
        said = self._imported(name, given, out, f"case {number} ({name}: {forged})")
        self._canaries.check(f"case {number} ({name}: {forged})")
        return {"format": name, "forged": forged.split(":")[0], "import": said}

    def _imported(self, name: str, given: Path, out: Path, what: str) -> str:
        format_ = name if name == "memmap-replay-buffer" else name.partition("-")[0]
        options = FIELDS if name == "memmap-replay-buffer" else {}
        try:
            settings = {"options": options, "max_bytes": MAX_BYTES}
            import_data(str(given), format_, out, settings, Output(quiet=True))
        except Exception as error:
            said = sentence_of(error)
            if said is None or isinstance(error, MemoryError):
                raise Fault(_signature(error), f"{what}: {error!r:.500}") from error
            left = [path.name for path in (out, out.with_name("store.part")) if path.exists()]
            if left:
                raise Fault("something is left", f"{what}: {left} after {said}") from error
            return "refused"
        report = verify(out)
        if not report.is_whole:
            raise Fault("not whole", f"{what}: {report}")
        return "done"


def _signature(error: Exception) -> str:
    places: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        places.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__} in {' '.join(places[-3:])}"


def _template(folder: Path, name: str) -> Path:
    """A data set of Stepwell's."""
    here = folder / name
    here.mkdir(parents=True)
    out = here / "given-v0"
    if name == "memmap-replay-buffer":
        writer = OriginalWriter(out)
        for number in range(3):
            writer.store(*tagged(number, number + 2))
        writer.close()
        return out
    image = Field("observation", "uint8", (16, 16, 3), "zstd")
    action = Field("action", "int64", (), "narrow")
    replay: SequenceReplayBuffer = tagged_store(image, action=action, episodes=4)
    options = {"data_format": "arrow"} if name == "minari-arrow" else {}
    options |= {"compress": "false"} if name == "npz" else {}
    export_episodes(replay, name.partition("-")[0], out, options=options)
    return out


def _forge(given: Path, rng: random.Random, secret: Path) -> str:
    """Change something, and return a description; Stepwell's record may be removed first."""
    if given.is_dir() and (given / "stepwell").is_dir() and rng.random() < 0.5:
        shutil.rmtree(given / "stepwell")
    changes: list[str] = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        files = [given] if given.is_file() else sorted(p for p in given.rglob("*") if p.is_file())
        if not files:
            break
        file = rng.choice(files)
        kinds = _BY_SUFFIX.get(file.suffix.split("-")[0], ())
        change = rng.choice([*kinds, *kinds, *kinds, *kinds, *_ANY])
        if ".tfrecord" in file.name and rng.random() < 0.7:
            change = _forge_records
        if change in (_link_out, _switch):  # the last one: the others must not follow it
            changes.append(change(file, rng, secret))
            break
        try:
            changes.append(f"{change(file, rng, secret)}: {file.name}")
        except Exception as error:  # it was forged before, and cannot be read by us either
            changes.append(f"nothing ({error!r:.80})")
    return ", ".join(changes)


def _flipped(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 2, 16])):
        place = rng.choice([rng.randrange(len(data)), rng.randrange(min(512, len(data)))])
        data[place] = rng.choice([0, 255, data[place] ^ 1 << rng.randrange(8)])


def _numbered(data: bytearray, rng: random.Random) -> None:
    """A length or an offset in the file becomes another one."""
    kind = rng.choice(["<I", "<Q", "<H", ">I"])
    most = 2 ** (8 * struct.calcsize(kind)) - 1
    place = rng.randrange(max(1, len(data) - 8))
    struct.pack_into(kind, data, place, rng.choice([0, 1, most, most // 2, 1 << 20]) & most)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.choice([0, 1, len(data) // 2, max(0, len(data) - 1)]) :]


def _grown(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(100)


def _bytes(file: Path, rng: random.Random, secret: Path) -> str:
    change = rng.choice([_flipped, _flipped, _numbered, _numbered, _cut, _grown])
    data = bytearray(file.read_bytes())
    change(data, rng)
    file.write_bytes(data)
    return change.__name__


def _gone(file: Path, rng: random.Random, secret: Path) -> str:
    file.unlink()
    return "gone"


def _swapped(file: Path, rng: random.Random, secret: Path) -> str:
    other = rng.choice(sorted(p for p in file.parent.iterdir() if p.is_file()))
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)
    return "swapped"


def _twice(file: Path, rng: random.Random, secret: Path) -> str:
    shutil.copy(file, file.with_name(f"{rng.choice(['9', 'z', '000009', '..9'])}{file.suffix}"))
    return "twice"


def _link_out(file: Path, rng: random.Random, secret: Path) -> str:
    """A link, or a FIFO, in a file's place."""
    kind = rng.choice(["file", "folder", "circle", "device", "fifo", "folder for file"])
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder for file":
        file.mkdir()
    else:
        targets = {"file": secret / "data.npz", "folder": secret, "circle": file}
        file.symlink_to(targets.get(kind, Path("/dev/zero")))
    return f"{kind}: {file.name}"


def _switch(file: Path, rng: random.Random, secret: Path) -> str:
    """A folder of the data set that is a link to elsewhere."""
    folder = file.parent
    if folder.name in ("given", "given-v0"):  # it is what the user names, who may name a link
        return "nothing"
    shutil.rmtree(folder)
    folder.symlink_to(secret)
    return f"link: {folder.name}"


def _json(file: Path, rng: random.Random, secret: Path) -> str:
    if rng.random() < 0.1:
        depth = rng.choice([50, 200, 5000, 100_000])
        file.write_text("[" * depth + "]" * depth)
        return "deep"
    file.write_bytes(dumps(_changed(json.loads(file.read_text()), rng)))
    return "json"


def _changed(tree: Any, rng: random.Random) -> Any:
    """Nested JSON with something else in a place of it, or of the JSON within a text."""
    tree = copy.deepcopy(tree)
    if not isinstance(tree, dict | list) or not tree:
        return rng.choice(ODD)
    texts = [path for path in paths_of(tree) if str(at(tree, path)).startswith(('{"', '["', "[["))]
    texts = [path for path in texts if isinstance(at(tree, path), str)]
    if texts and rng.random() < 0.3:
        *above, last = rng.choice(texts)
        parent = at(tree, above)
        parent[last] = dumps(_changed(json.loads(parent[last]), rng)).decode("latin-1")
    else:
        change_json(rng, tree)
    return tree


def _npy_file(file: Path, rng: random.Random, secret: Path) -> str:
    if rng.random() < 0.5:
        np.save(file, _array(np.load(file), rng))
        return "npy array"
    with file.open("r+b") as opened:  # a file with a hole in it
        opened.truncate(rng.choice([200, 2**27]))
    return "npy length"


def _pickle(file: Path, rng: random.Random, secret: Path) -> str:
    config = pickle.loads(file.read_bytes())
    plain = _changed(json.loads(json.dumps(config)), rng)
    file.write_bytes(pickle.dumps(plain if rng.random() < 0.8 else Path("x")))
    return "pickle"


def _array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Another array in an array's place."""
    kind = rng.randrange(9)
    if kind == 0:
        return array[: rng.choice([0, 1, max(0, len(array) - 1)])] if array.ndim else array[None]
    if kind == 1:
        return np.concatenate([array, array]) if array.ndim else array.reshape(1, 1)
    if kind == 2:
        return array.astype(rng.choice(DTYPES))
    if kind == 3:
        return array[..., None]
    if kind == 4:
        return array.reshape(-1)
    if kind == 5:
        return np.full(array.shape, rng.choice([0, 1, 255, 127])).astype(array.dtype)
    if kind == 6 and array.dtype.kind == "f":
        return np.full(array.shape, rng.choice([np.nan, np.inf, -0.0, 1e30]), array.dtype)
    if kind == 7:
        text = array.tobytes()
        facts = dumps(_changed(json.loads(text), rng)) if text[:1] == b"{" else b"text"
        return np.frombuffer(facts, np.uint8)
    return np.array(rng.choice(["text", 1j, 2**40, b"\xff"]))


def _npz(file: Path, rng: random.Random, secret: Path) -> str:
    with zipfile.ZipFile(file) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(sorted(entries))
    kind = rng.choice(["array", "array", "head", "object", "gone", "name", "twice", "bomb", "text"])
    more: list[tuple[str, bytes]] = []
    if kind == "array":
        entries[name] = _npy(_array(np.load(io.BytesIO(entries[name])), rng))
    elif kind == "head":
        shape = rng.choice(["(2**62,)", "(-1,)", "(4611686018427387904, 4)", "()", "(1,)*40"])
        descr = rng.choice(["|u1", "|O", "<f8", "|V2147483647", "|S0", "x", "(3,)f4"])
        shape = repr(eval(shape))
        head = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
        head = rng.choice([head, head, "(" * 9000, head[:9], "-" * 9000 + "1", head * 300])
        raw = head.encode().ljust(118) + b"\n"
        entries[name] = b"\x93NUMPY\x01\0" + struct.pack("<H", len(raw) & 0xFFFF) + raw
    elif kind == "object":
        buffer = io.BytesIO()
        np.save(buffer, np.array([{"a": 1}], object))
        entries[name] = buffer.getvalue()
    elif kind == "gone":
        del entries[name]
    elif kind == "name":
        entries[rng.choice(["../../x.npy", "/x.npy", "x", "observations/a.npy", "\u00e9/.npy"])] = (
            entries.pop(name)
        )
    elif kind == "twice":
        more = [(name, entries[name])]
    elif kind == "bomb":
        entries[name] = _npy(np.zeros(MAX_BYTES + 1, np.uint8))
    else:
        entries[name] = b"no array"
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for entry, data in (*entries.items(), *more):
            archive.writestr(entry, data)
    if kind == "head" and rng.random() < 0.5:
        whole = bytearray(file.read_bytes())
        place = whole.rfind(b"PK\x01\x02")
        struct.pack_into("<I", whole, place + 24, rng.choice([0, 1, 2**31, 2**32 - 2]))
        file.write_bytes(whole)
    return f"npz {kind}"


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _hdf5(file: Path, rng: random.Random, secret: Path) -> str:
    import h5py

    other = str(secret / "data.npz")
    with h5py.File(file, "r+") as opened:
        names: list[str] = []
        opened.visit(names.append)
        name = rng.choice(names)
        old = opened[name]
        rows = old[()] if isinstance(old, h5py.Dataset) else np.zeros(3)

        def put(value: Any) -> None:
            opened[name] = value

        def virtual() -> None:
            layout = h5py.VirtualLayout((30,), "u1")
            layout[:] = h5py.VirtualSource(other, "x", (30,))
            opened.create_virtual_dataset(name, layout)

        make = partial(opened.create_dataset, name)
        kinds: dict[str, Callable[[], Any]] = {
            "array": lambda: put(_array(np.asarray(rows), rng)),
            "huge": lambda: make(rng.choice([(2**62,), (2**31,)]), "f4", chunks=(1,)),
            "chunk": lambda: make((1,), "f4", chunks=(2**28,), maxshape=(None,)),
            "external": lambda: make((30,), "u1", external=[(other, 0, 30)]),
            "virtual": virtual,
            "soft": lambda: put(h5py.SoftLink(rng.choice(["/", "/nowhere", f"/{name}"]))),
            "link": lambda: put(h5py.ExternalLink(other, "/")),
            "vlen": lambda: make((4,), h5py.vlen_dtype(np.uint8)),
            "text": lambda: put(rng.choice(["text", "{}", ["a", "b"]])),
            "reference": lambda: make((4,), h5py.ref_dtype),
            "gone": lambda: None,
            "group": lambda: opened.create_group(name).create_group("inner"),
            "circle": lambda: put(opened["/"]),
            "empty": lambda: put(h5py.Empty("f4")),
            "bomb": lambda: make(
                data=np.zeros(MAX_BYTES + 1, np.uint8), compression="gzip", chunks=(1 << 20,)
            ),
        }
        kind = rng.choice([*kinds, "array", "array", "attribute"])
        if kind == "attribute":
            value = rng.choice([*ODD[1:8], np.zeros(3), h5py.Empty("f"), 2**62])
            old.attrs[rng.choice([*old.attrs, "x", "a/b"])] = value
        else:
            del opened[name]
            kinds[kind]()
    return f"hdf5 {kind}"


def _parquet(file: Path, rng: random.Random, secret: Path) -> str:
    import pyarrow.parquet as pq

    table, kind = _changed_table(pq.read_table(file), rng)
    codec = rng.choice(["zstd", "gzip", "snappy", "none"])
    pq.write_table(table, file, compression=codec, row_group_size=rng.choice([3, 1000]))
    return f"parquet {kind}"


def _arrow(file: Path, rng: random.Random, secret: Path) -> str:
    import pyarrow as pa

    with pa.OSFile(str(file)) as raw:
        table, kind = _changed_table(pa.ipc.open_file(raw).read_all(), rng)
    options = pa.ipc.IpcWriteOptions(compression=rng.choice([None, "zstd", "lz4"]))
    with pa.ipc.new_file(str(file), table.schema, options=options) as writer:
        writer.write_table(table)
    return f"arrow {kind}"


def _changed_table(table: Any, rng: random.Random) -> tuple[Any, str]:
    """Another table, and what it is."""
    import pyarrow as pa

    name = rng.choice(table.column_names)
    place, rows = table.column_names.index(name), table.num_rows
    columns: dict[str, Callable[[], Any]] = {
        "type": lambda: pa.array([rng.choice([0, 1, 2**40, -3]) for _ in range(rows)]).cast(
            rng.choice(["int64", "float64", "string"])
        ),
        "null": lambda: pa.nulls(rows, table.schema.field(place).type),
        "bomb": lambda: pa.DictionaryArray.from_arrays(
            pa.array([0] * rows, pa.int32()), pa.array([bytes(4 << 20)], pa.binary())
        ),
        "text": lambda: pa.array(
            [rng.choice(["", "x", "{}", "\0", "a" * 9999]) for _ in range(rows)]
        ),
        "lists": lambda: pa.array([[1] * rng.randrange(4) for _ in range(rows)]),
        "offsets": lambda: pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(_offsets(rows, rng)), pa.py_buffer(bytes(100))]
        ),
    }
    tables: dict[str, Callable[[], Any]] = {
        "gone": lambda: table.remove_column(place),
        "cut": lambda: table.slice(0, rng.randrange(rows + 1)),
        "more": lambda: pa.concat_tables([table] * rng.choice([2, 30])),
        "name": lambda: table.rename_columns(
            [
                rng.choice(["", "x", "observation/../x", "action.y", each])
                if each == name
                else each
                for each in table.column_names
            ]
        ),
        "twice": lambda: table.append_column(name, table.column(place)),
        "metadata": lambda: table.replace_schema_metadata(
            {
                key: dumps(_changed(json.loads(text), rng)) if key.startswith(b"stepwell") else text
                for key, text in (table.schema.metadata or {}).items()
            }
        ),
    }
    kind = rng.choice([*columns, *tables])
    if kind in columns:
        return table.set_column(place, name, columns[kind]()), kind
    return tables[kind](), kind


def _offsets(rows: int, rng: random.Random) -> np.ndarray:
    return np.array([rng.choice([0, 5, -9, 2**30]) for _ in range(rows + 1)], np.int32)


def _forge_records(file: Path, rng: random.Random, secret: Path) -> str:
    records = list(read_records(file))
    place = rng.randrange(len(records))
    kind = rng.choice(["bytes", "values", "values", "gone", "twice", "empty"])
    if kind == "bytes":
        data = bytearray(records[place])
        for _ in range(rng.choice([1, 3])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        records[place] = bytes(data)
    elif kind == "values":
        values = decoded(records[place])
        name = rng.choice(sorted(values))
        value = values[name]
        if isinstance(value, list):
            odd = [b"", b"x", value[0] * 2 if value else b"", _bomb()]
            values[name] = [rng.choice([*value, *odd]) for _ in range(rng.choice([0, 1, 3, 5]))]
        else:
            values[name] = rng.choice([value[:0], value[:1], np.tile(value, 3), value * 0 - 1])
        if rng.random() < 0.2:
            del values[name]
        records[place] = encoded(values)
    elif kind == "gone":
        del records[place]
    elif kind == "twice":
        records.append(records[place])
    else:
        records[place] = b""
    with file.open("wb") as opened:
        for record in records:
            write_record(opened, record)
    return f"records {kind}"


def _bomb() -> bytes:
    import zlib

    return zlib.compress(bytes(MAX_BYTES + 1))


_Change = Callable[[Path, random.Random, Path], str]
_ANY: tuple[_Change, ...] = (
    *([_bytes] * 6),
    *(_gone, _swapped, _twice, _link_out, _switch),
)
_BY_SUFFIX: dict[str, tuple[_Change, ...]] = {
    ".json": (_json,),
    ".npz": (_npz,),
    ".hdf5": (_hdf5,),
    ".parquet": (_parquet,),
    ".arrow": (_arrow,),
    ".npy": (_npy_file,),
    ".pkl": (_pickle,),
    "": (_hdf5,),  # d3rlpy's file has no ending here
}
