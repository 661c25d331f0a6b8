"""RLDS data sets, as TensorFlow Datasets (TFDS) read them, written and read without TensorFlow."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np

from stepwell.buffers.bridges.formats.format import Format, Reader, Source, Writer
from stepwell.buffers.bridges.formats.png import decoded_rows, encoded_rows, picture_axes
from stepwell.buffers.bridges.formats.tfrecord import (
    Value,
    decoded,
    encoded,
    load_crc32c,
    read_records,
    write_record,
)
from stepwell.buffers.bridges.rlds_steps import step_arrays
from stepwell.buffers.curation.step_columns import inferred_spec, joined
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.given_files import GivenFiles, Room
from stepwell.buffers.spec import Field, Spec, kind_of

__all__ = [
    "Feature",
    "RldsExport",
    "RldsFormat",
    "RldsImport",
    "dataset_info",
    "features_json",
    "read_features",
]

_SPLIT: Final = "train"


@dataclass(frozen=True, slots=True)
class RldsExport:
    """Options for writing an RLDS data set.

    Args:
        name: Name of the data set in TFDS: letters, digits and _.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
        file_mb: Approximate size at which a new file is begun, in megabytes.
    """

    name: str = "episodes"
    stack: bool = False
    file_mb: int = 256


@dataclass(frozen=True, slots=True)
class RldsImport:
    """Options for reading an RLDS data set.

    Args:
        split: Which split to read.
    """

    split: str = "train"


class RldsFormat(Format):
    """TFRecord files, ``features.json`` and ``dataset_info.json``: an example for each episode.

    An episode of T env steps has T + 1 ``steps``: ``observation``, the ``action`` chosen from it,
    the ``reward`` and ``discount`` that followed it, ``is_first``, ``is_last`` and
    ``is_terminal``; ``info/name`` came with the observation, ``extra/name`` with the action. The
    last step holds the *final* observation; its action, reward and discount are 0 and unused.
    ``episode_metadata`` has the stream, how the episode ended, and its metadata as JSON.
    """

    name = "rlds"
    about = "RLDS episodes of steps as TFDS reads them; needs no TensorFlow"
    install = "'stepwell[rlds]'"
    export_options = RldsExport
    import_options = RldsImport

    def writer(self, source: Source, options: RldsExport) -> Writer:
        """A writer of one folder."""
        load_crc32c()
        return _RldsWriter(source, options)

    def reader(self, files: GivenFiles, options: RldsImport) -> Reader:
        """Open a data set."""
        load_crc32c()  # raises now, rather than with the first record
        return _RldsReader(files, dataset_info(files), options)

    def loading(self, path: Path, out: str) -> str:
        """Lines of Python that load it."""
        return (
            "import tensorflow_datasets as tfds\n"
            f'episodes = tfds.builder_from_directory("{path}").as_dataset(split="{_SPLIT}")'
        )


class _RldsWriter:
    def __init__(self, source: Source, options: RldsExport) -> None:
        if not options.name.isidentifier() or not options.name.isascii() or options.file_mb < 1:
            raise ValueError(
                f"options of format rlds: expected a name of letters, digits and _, and file_mb of "
                f"1 or more, got {options.name!r} and {options.file_mb}; give others"
            )
        self._source = source
        self._options = options
        self._features = _EpisodeFeatures(source.spec, stack=options.stack)
        self._folder = Path()
        self._file: BinaryIO | None = None
        self._lengths: list[int] = []
        self._bytes = 0

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user of the data set, one clause each."""
        stacked = [f for f in self._source.spec.fields if f.stack > 1 and not self._options.stack]
        return (
            "the last step of an episode holds the final observation; its action, reward and "
            "discount have no meaning",
            "an episode without is_terminal was truncated or cut: see episode_metadata",
            *(
                f"{field.name} is one frame a step, of the env's stack of {field.stack}; option "
                f"stack=true writes stacks"
                for field in stacked
            ),
        )

    def begin(self, path: Path) -> None:
        self._folder = path
        tree = features_json(self._features.all)
        self._put("features.json", tree)
        self._open()

    def write(self, episode: Episode) -> None:
        record = encoded(self._features.values(episode))
        if self._file is not None and self._file.tell() >= self._options.file_mb * 1_000_000:
            self._open()
        assert self._file is not None
        write_record(self._file, record)
        self._lengths[-1] += 1
        self._bytes += len(record)

    def finish(self) -> None:
        self.close()
        count = len(self._lengths)
        for number in range(count):  # the number of files is part of their names
            self._part(number).rename(
                self._folder / f"{self._options.name}-{_SPLIT}.tfrecord-{number:05d}-of-{count:05d}"
            )
        split = {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "name": _SPLIT,
            "numBytes": str(self._bytes),
            "shardLengths": [str(length) for length in self._lengths],
        }
        info = {
            "description": "Episodes of steps, as RLDS has them, written by Stepwell.",
            "fileFormat": "tfrecord",
            "name": self._options.name,
            "splits": [split],
            "version": "1.0.0",
        }
        self._put("dataset_info.json", info)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self) -> None:
        self.close()
        self._file = self._part(len(self._lengths)).open("xb")
        self._lengths.append(0)

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:05d}.part"

    def _put(self, name: str, data: dict[str, Any]) -> None:
        text = json.dumps(data, indent=4, sort_keys=True)
        (self._folder / name).write_text(text, encoding="utf-8")


Encoding = Literal["none", "bytes", "zlib", "png", "text"]
"""The encoding of a tensor in an Example: as numbers, its bytes, compressed bytes, or a picture."""

_PACKAGE: Final = "tensorflow_datasets.core.features"
_DICT: Final = f"{_PACKAGE}.features_dict.FeaturesDict"
_STEPS_CLASS: Final = f"{_PACKAGE}.dataset_feature.Dataset"
_TENSOR: Final = f"{_PACKAGE}.tensor_feature.Tensor"
_IMAGE: Final = f"{_PACKAGE}.image_feature.Image"
_TEXT: Final = f"{_PACKAGE}.text_feature.Text"
_SMALL: Final = 64
"""Bytes of a row that need no compression."""
_DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_RAW_KINDS: Final = ("uint32", "uint64")
"""Dtypes that TensorFlow does not decode from bytes."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One tensor of a step, or of an episode.

    Args:
        name: Its path, such as ``steps/observation/image``.
        dtype: numpy's name of the dtype; of a text ``"object"``.
        shape: Shape of one value; None where a length is unknown.
        encoding: Encoding in an Example.
        is_lossy: The pictures are compressed lossily (JPEG).
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: Encoding = "none"
    is_lossy: bool = False

    @classmethod
    def of(cls, name: str, field: Field, *, stack: bool = False) -> Feature:
        """The feature of a field, encoded exactly.

        Args:
            name: Its path.
            field: The field.
            stack: Whole stacks of frames instead of single ones.

        Raises:
            ValueError: TFDS has no such dtype.
        """
        dtype = field.numpy_dtype
        shape = field.source_shape if stack else field.shape
        if dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise ValueError(
                f"field {field.name!r}: expected numbers or booleans, got {field.dtype}, which a "
                f"TFDS data set cannot hold; convert it in a wrapper of the env"
            )
        if not stack and picture_axes(field) == "hwc":
            return cls(name, field.dtype, shape, "png")
        size = math.prod(shape) * dtype.itemsize
        if dtype.name in _RAW_KINDS or (size and size <= _SMALL and dtype.kind in "biu"):
            return cls(name, field.dtype, shape)
        if dtype == np.float32 and size <= _SMALL and size:
            return cls(name, field.dtype, shape)
        # An Example's floats are float32: others are kept as bytes, which TFDS reads exactly.
        return cls(name, field.dtype, shape, "zlib" if size > _SMALL else "bytes")

    def encoded(self, rows: np.ndarray) -> Value:
        """Rows [n, ...] as a list of an Example."""
        if self.encoding == "text":
            return [str(text).encode() for text in rows.tolist()]
        if self.encoding == "png":
            return encoded_rows(rows, "hwc")
        little = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
        if self.encoding == "none":
            flat = np.ascontiguousarray(little).reshape(-1)
            if rows.dtype.kind == "f":
                return flat.astype(np.float32)
            return flat.view(np.int64) if rows.dtype == np.uint64 else flat.astype(np.int64)
        raw = [np.ascontiguousarray(row).tobytes() for row in little]
        return raw if self.encoding == "bytes" else [zlib.compress(part) for part in raw]

    def rows(self, value: Value | None, count: int, room: Room | None = None) -> np.ndarray:
        """The rows [count, ...] that a list of an Example holds.

        Args:
            value: The list.
            count: Number of rows.
            room: Memory that is left for them; None for any.

        Raises:
            ValueError: It holds something else, or more than there is memory for.
        """
        shape = tuple(-1 if size is None else size for size in self.shape)
        room = room or Room(self.name, 1 << 62)
        room.take(count * self._row_bytes)
        try:
            if self.encoding == "text":
                return np.array([part.decode() for part in _bytes(value)], np.str_)
            if self.encoding == "png":
                pictures = decoded_rows(_bytes(value), None if -1 in shape else shape, room=room)
                return pictures.astype(self.dtype, copy=False)
            if self.encoding == "none":
                flat = np.zeros(0) if value is None or isinstance(value, list) else value
                if self.dtype == "uint64":
                    flat = flat.astype(np.int64).view(np.uint64)
                return flat.astype(self.dtype).reshape(count, *shape)
            parts = _bytes(value)
            raw = parts if self.encoding == "bytes" else [self._inflated(p, room) for p in parts]
            little = np.dtype(self.dtype).newbyteorder("<")
            return np.frombuffer(b"".join(raw), little).astype(self.dtype).reshape(count, *shape)
        except (ValueError, zlib.error) as error:
            raise ValueError(
                f"feature {self.name!r}: expected {count:,} values of {self.dtype} {self.shape}, "
                f"got others ({error})"
            ) from error

    @property
    def _row_bytes(self) -> int:
        """Bytes of a value; 0 where its size is unknown."""
        if self.encoding == "text" or None in self.shape:
            return 0
        return math.prod(size or 0 for size in self.shape) * np.dtype(self.dtype).itemsize

    def _inflated(self, part: bytes, room: Room) -> bytes:
        """Decompress a value that is not longer than its feature allows.

        Raises:
            ValueError: It is.
        """
        size = room.left if None in self.shape else self._row_bytes
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(part, size + 1)
        if len(found) > size or not unpacker.eof:
            raise ValueError(f"a compressed value is not whole, or has more than {size:,} bytes")
        if None in self.shape:
            room.take(len(found))
        return found

    def to_json(self) -> dict[str, Any]:
        """Its description in ``features.json``."""
        if self.encoding == "text":
            return {"pythonClassName": _TEXT, "text": {}}
        sizes = [str(-1 if size is None else size) for size in self.shape]
        shape = {"dimensions": sizes} if sizes else {}
        if self.encoding == "png":
            image = {"dtype": self.dtype, "encodingFormat": "png", "shape": shape}
            return {"pythonClassName": _IMAGE, "image": image}
        tensor = {"dtype": self.dtype, "encoding": self.encoding, "shape": shape}
        return {"pythonClassName": _TENSOR, "tensor": tensor}


def features_json(features: Iterable[Feature]) -> dict[str, Any]:
    """The content of ``features.json``, for features whose paths begin with ``steps`` or do not.

    Raises:
        ValueError: One lies within another.
    """
    tree: dict[str, Any] = {}
    for feature in features:
        *path, last = feature.name.split("/")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
            if isinstance(node, Feature):
                break
        if isinstance(node, Feature) or last in node:
            raise ValueError(
                f"{feature.name!r} lies within another feature: expected keys without '/'; rename "
                f"a key of the space"
            )
        node[last] = feature
    return _node(tree)


def read_features(node: Mapping[str, Any]) -> tuple[dict[str, Feature], list[str]]:
    """The features in ``features.json`` by path, and the unsupported ones.

    Raises:
        KeyError: The file is malformed.
    """
    found: dict[str, Feature] = {}
    unknown: list[str] = []
    _read(node, "", found, unknown)
    return found, unknown


def _node(tree: Feature | Mapping[str, Any], name: str = "") -> dict[str, Any]:
    if isinstance(tree, Feature):
        return tree.to_json()
    features = {key: _node(part, key) for key, part in tree.items()}
    found = {"featuresDict": {"features": features}, "pythonClassName": _DICT}
    if name == "steps":
        return {"pythonClassName": _STEPS_CLASS, "sequence": {"feature": found, "length": "-1"}}
    return found


def _read(
    node: Mapping[str, Any], name: str, found: dict[str, Feature], unknown: list[str]
) -> None:
    if "featuresDict" in node:
        for key, part in node["featuresDict"]["features"].items():
            _read(part, f"{name}/{key}" if name else key, found, unknown)
    elif "sequence" in node and name == "steps":
        _read(node["sequence"]["feature"], name, found, unknown)
    elif "tensor" in node or "image" in node:
        kind = "tensor" if "tensor" in node else "image"
        facts = node[kind]
        sizes = [int(size) for size in facts.get("shape", {}).get("dimensions", [])]
        encoding: Any = "png" if kind == "image" else facts.get("encoding") or "none"
        dtype = facts.get("dtype") or "uint8"
        is_known = dtype in _DTYPES and len(sizes) <= 32 and all(-1 <= n < 2**40 for n in sizes)
        if encoding not in ("none", "bytes", "zlib", "png") or not is_known:
            unknown.append(name)
            return
        shape = tuple(None if size < 0 else size for size in sizes)
        found[name] = Feature(name, dtype, shape, encoding, facts.get("encodingFormat") == "jpeg")
    else:
        unknown.append(name)


def _bytes(value: Value | None) -> list[bytes]:
    """A list of bytes.

    Raises:
        ValueError: It is a list of numbers.
    """
    if value is None or not isinstance(value, list):
        if value is not None and len(value):
            raise ValueError("expected bytes, got numbers")
        return []
    return value


_NAME: Final = re.compile(r"[\w.-]+")
_STEPS: Final = "steps/"
_ABOUT: Final = "episode_metadata/"
_FLAGS: Final = ("is_first", "is_last", "is_terminal")
_PARTS: Final = ("observation", "action", "reward", "info", "extra")


class _EpisodeFeatures:
    """The features of an episode.

    Args:
        spec: The fields of every row.
        stack: Whole stacks of frames instead of single ones.

    Raises:
        ValueError: TFDS cannot hold a field.
    """

    def __init__(self, spec: Spec, *, stack: bool) -> None:
        self._spec = spec
        self._stack = stack
        self.steps = {
            **{
                f.name: Feature.of(_STEPS + f.name, f, stack=self._is_stack(f.stack))
                for f in spec.fields
            },
            "discount": Feature(f"{_STEPS}discount", "float32"),
            **{name: Feature(_STEPS + name, "bool") for name in _FLAGS},
        }
        """Features of each step, by field name."""
        self.about = {
            **{name: Feature(_ABOUT + name, "int64") for name in ("stream", "first_row")},
            **{name: Feature(_ABOUT + name, "bool") for name in ("terminated", "truncated", "cut")},
            "metadata": Feature(f"{_ABOUT}metadata", "object", (), "text"),
        }
        """Features of the whole episode."""

    @property
    def all(self) -> list[Feature]:
        """All features."""
        return [*self.steps.values(), *self.about.values()]

    def values(self, episode: Episode) -> dict[str, Value]:
        """An episode's lists, by feature name.

        Raises:
            ValueError: Stacks are wanted of an episode that lost its first rows.
        """
        arrays = step_arrays(episode, stack=self._stack)
        about = {
            "stream": episode.stream,
            "first_row": episode.first_row,
            "terminated": bool(episode.terminated[-1]),
            "truncated": bool(episode.truncated[-1]),
            "cut": bool(episode.cut[-1]),
            "metadata": json.dumps(dict(episode.metadata)),
        }
        return {
            **{f.name: f.encoded(arrays[name]) for name, f in self.steps.items()},
            **{f.name: f.encoded(np.array([about[name]])) for name, f in self.about.items()},
        }

    def _is_stack(self, stack: int) -> bool:
        return self._stack and stack > 1


def dataset_info(given: GivenFiles) -> dict[str, Any]:
    """Read ``dataset_info.json``, and ``features.json`` under "features".

    Raises:
        FileNotFoundError: There is no folder.
        ValueError: It is not a data set of TFDS in TFRecord files.
    """
    path = given.path
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of a TFDS data set, got none")
    try:
        info = given.read_json(path / "dataset_info.json")
        info["features"] = given.read_json(path / "features.json")
        file_format = info.get("fileFormat") or "tfrecord"
        if not _NAME.fullmatch(info["name"]):
            raise ValueError(f"the name {info['name'][:80]!r}")
        for split in info["splits"]:
            _ = str(split["name"]), [int(length) for length in split.get("shardLengths", [])]
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected a TFDS data set with dataset_info.json and features.json, got "
            f"something else ({error}); give the folder that holds them, such as "
            f"name/1.0.0"
        ) from error
    if file_format != "tfrecord":
        raise ValueError(
            f"{path}: expected files of the format tfrecord, got {file_format}; convert it "
            f"with TFDS"
        )
    return info


class _RldsReader:
    """Reads a foreign data set.

    Args:
        given: The folder.
        info: The result of `dataset_info`.
        options: Options of the import.

    Raises:
        ValueError: It lacks steps with observations, actions, rewards and flags.
    """

    def __init__(self, given: GivenFiles, info: Mapping[str, Any], options: RldsImport) -> None:
        self._given = given
        self._path = path = given.path
        self._files, self.episodes = _files(given, info, options.split)
        found, unknown = read_features(info["features"])
        self._features = {
            name.removeprefix(_STEPS): feature
            for name, feature in found.items()
            if name.startswith(_STEPS) and name.split("/")[1] in (*_PARTS, *_FLAGS)
        }
        used = {feature.name for feature in self._features.values()}
        self._unread = [*(name for name in found if name not in used), *unknown]
        parts = {name.partition("/")[0] for name in self._features}
        missing = [
            name for name in ("observation", "action", "reward", "is_last") if name not in parts
        ]
        if missing:
            raise ValueError(
                f"{path}: expected steps with observation, action, reward and is_last, got "
                f"{', '.join(sorted(found)) or 'none'}: there is no {missing[0]!r} that is numbers "
                f"or pictures; this is not an RLDS data set"
            )
        self._lost = 0
        first = next(iter(_examples(given, self._files, self.episodes)), None)
        if first is None:
            raise ValueError(f"{path}: expected at least one episode, got none")
        self.spec = self._episode(*first).spec
        self._lost = 0
        self.sessions: Sequence[Mapping[str, object]] = ()
        self.steps: int | None = None

    @property
    def notes(self) -> Sequence[str]:
        """Facts that the data set does not hold, one clause each."""
        lossy = [name for name, feature in self._features.items() if feature.is_lossy]
        jpeg = [f"{', '.join(lossy)}: JPEG, which is lossy"] if lossy else []
        unread = [f"not read: {', '.join(self._unread)}"] if self._unread else []
        lost = [
            f"{self._lost:,} episodes have a reward in their last step, which RLDS does not define "
            f"and which was left out"
        ]
        return (
            "streams and metadata are not recorded: all episodes are of stream 0",
            *jpeg,
            *unread,
            *(lost if self._lost else []),
        )

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order of the files."""
        for number, values, room in _examples(self._given, self._files, self.episodes):
            episode = self._episode(number, values, room)
            if episode.spec != self.spec:
                raise ValueError(
                    f"{self._path}: expected episodes of the same shapes, got another in episode "
                    f"{number}: {self.spec.difference(episode.spec)}"
                )
            yield episode

    def close(self) -> None:
        """Do nothing: only the iterator holds open files."""

    def _episode(self, number: int, values: Mapping[str, Value], room: Room) -> Episode:
        count = len(values.get(f"{_STEPS}is_last", ()))
        if not count:
            raise ValueError(f"{self._path}: expected steps in episode {number}, got none")
        rows = {name: f.rows(values.get(f.name), count, room) for name, f in self._features.items()}
        flags = {
            name: rows.pop(name, np.zeros(count, np.bool_)).astype(np.bool_) for name in _FLAGS
        }
        if flags["is_last"][:-1].any() or flags["is_terminal"][:-1].any():
            raise ValueError(
                f"{self._path}: expected is_last and is_terminal in the last step alone, got one "
                f"before it in episode {number}; this is not an RLDS data set"
            )
        self._lost += bool(rows["reward"][-1])
        end = End.NONE
        if flags["is_last"][-1]:
            end = End.TERMINATED if flags["is_terminal"][-1] else End.TRUNCATED
        if count == 1:
            end = End.NONE  # without a step it cannot have ended
        chosen = ("action", "extra", "reward")
        columns = {
            name: part[:-1] if kind_of(name) in chosen else part for name, part in rows.items()
        }
        columns["reward"] = columns["reward"].astype(np.float64)
        spec = inferred_spec(columns, f"{self._path}: episode {number}")
        return Episode(spec, number, 0, 0, end, joined(spec, columns), {})


def _files(given: GivenFiles, info: Mapping[str, Any], split: str) -> tuple[list[Path], int]:
    """The files of a split, and its episodes.

    Raises:
        ValueError: There is no such split, or files are missing.
    """
    path = given.path
    splits = {str(each["name"]): each for each in info["splits"]}
    if split not in splits:
        raise ValueError(
            f"{path}: expected a split {split!r}, got {', '.join(splits) or 'none'}; name one in "
            f"the option split"
        )
    lengths = [int(length) for length in splits[split].get("shardLengths", [])]
    prefix = f"{info['name']}-{split}.tfrecord"  # the split may be a pattern
    files = sorted(file for file in path.iterdir() if file.name.startswith(prefix))
    if len(files) != len(lengths) or not files:
        raise ValueError(
            f"{path}: expected {len(lengths)} files named {info['name']}-{split}.tfrecord-*, got "
            f"{len(files)}; fetch the data set again"
        )
    return files, sum(lengths)


def _examples(
    given: GivenFiles, files: Sequence[Path], expected: int | None
) -> Iterator[tuple[int, dict[str, Value], Room]]:
    """Each episode's number and lists, and the memory that is left for their content.

    Raises:
        ValueError: The number of records is not as expected.
    """
    number = 0
    for file in files:
        for record in read_records(given.file(file)):
            room = given.room(f"{file}: episode {number}")
            room.take(len(record))
            yield number, decoded(record, room), room
            number += 1
    if number != expected:
        raise ValueError(
            f"{files[0].parent}: expected {expected} episodes, as dataset_info.json says, got "
            f"{number}; fetch the data set again"
        )
