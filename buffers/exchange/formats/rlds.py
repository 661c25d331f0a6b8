"""RLDS: episodes of a replay as steps; data sets of TFDS, written and read without TensorFlow."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypedDict

import numpy as np

from ...base.untrusted_files import GivenFiles, MemoryBudget, in_order
from ...base.untrusted_json import mapping, parse, whole
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode import RUN_FACTS, End, Episode
from ...rows.step_columns import has_final_row, inferred_spec, with_stacks
from ...spec.space_json import DTYPES
from ...spec.spec import Field, Layout, Spec, kind_of, unflatten
from .episode_reader import NO_STREAMS, EpisodeReader, FoundEpisode
from .file_columns import (
    Encoding,
    FileColumn,
    as_flags,
    as_rewards,
    as_values,
    check_classes,
    declared_spaces,
    newest_spaces,
    sessions_of,
)
from .format import STACK_OPTION, Format, Reader, Source, Writer, episode_facts, stack_notes
from .pictures import decoded_rows, encoded_rows
from .tfrecord import Value, decoded, encoded, load_crc32c, read_records, write_record

_SPLIT: Final = "train"


class RldsEpisode(TypedDict):
    """An episode in the form of RLDS."""

    steps: RldsSteps
    episode_metadata: dict[str, object]


def rlds_episodes(replay: SequenceReplayBuffer, *, stack: bool = False) -> Iterator[RldsEpisode]:
    """Yield the episodes of a replay in the form of RLDS.

    Args:
        replay: The replay; its episodes are read one at a time.
        stack: Give frame-stacked observations in full, as the env gave them; else single frames.

    Yields:
        ``{"steps": RldsSteps, "episode_metadata": {...}}``. An episode of T env steps has T + 1
        steps, each a dict of ``observation``, ``action``, ``reward`` (float64), ``discount``
        (float32), ``is_first``, ``is_last`` and ``is_terminal``, with ``info`` and ``extra`` where
        they were recorded. ``reward`` and ``discount`` of a step are the results of its action.
        The last step holds the final observation; its action, reward and discount are 0. An episode
        that ends without ``is_terminal`` was truncated or cut, as its metadata say.

    Raises:
        ValueError: ``stack=True``, and an episode lost its first rows.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     collected = collector.collect(episodes=2)
        >>> for episode in rlds_episodes(replay):
        ...     *others, last = episode["steps"]
        ...     print(last["is_last"], last["is_terminal"], others[-1]["discount"])
        True True 0.0
        True True 0.0
    """
    for episode in replay.iter_episodes():
        yield {
            "steps": RldsSteps(episode, stack=stack),
            "episode_metadata": episode_facts(episode),
        }


class RldsSteps:
    """The steps of an episode, iterable many times."""

    def __init__(self, episode: Episode, *, stack: bool = False) -> None:
        self.arrays = step_arrays(episode, stack=stack)
        """[T + 1, ...] by field name, and of ``discount`` and the flags."""
        spec = episode.spec
        self._layout: dict[str, Layout] = {
            "observation": spec.observation,
            "action": spec.action,
            **{name: name for name in ("reward", "discount", "is_first", "is_last", "is_terminal")},
        }
        for kind in ("info", "extra"):
            fields = spec.of_kind(kind)
            if fields:
                self._layout[kind] = {field.key: field.name for field in fields}

    def __len__(self) -> int:
        """Number of steps: one more than the env's."""
        return len(self.arrays["is_last"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each step as a nested dict of arrays and numbers."""
        for place in range(len(self)):
            step = {name: rows[place] for name, rows in self.arrays.items()}
            yield {name: unflatten(part, step) for name, part in self._layout.items()}


def step_arrays(episode: Episode, *, stack: bool = False) -> dict[str, np.ndarray]:
    """The steps of an episode of T env steps as arrays [T + 1, ...] by field name."""
    # `reward` is that of the step's action; further names are `discount` (float32), `is_first`,
    # `is_last` and `is_terminal`.
    rows = with_stacks(episode) if stack else dict(episode.fields)
    rows["reward"] = np.concatenate([episode.reward[1:], np.zeros(1)])
    discount = np.ones(episode.rows, np.float32)
    discount[-1] = 0
    discount[-2:-1] = not episode.terminated[-1]
    return {
        **rows,
        "discount": discount,
        "is_first": episode.is_first,
        "is_last": episode.is_last,
        "is_terminal": episode.terminated,
    }


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
    """TFRecord files, ``features.json`` and ``dataset_info.json``: an example for each episode."""

    # An episode of T env steps has T + 1 `steps`: `observation`, the `action` chosen from it, the
    # `reward` and `discount` that followed it, `is_first`, `is_last` and `is_terminal`; `info/name`
    # came with the observation, `extra/name` with the action. The last step holds the *final*
    # observation; its action, reward and discount are 0 and unused. `episode_metadata` has the
    # stream, how the episode ended, and its metadata as JSON.

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
        self._features = {
            **{
                f.name: feature_of(_STEPS + f.name, f, stack=options.stack)
                for f in source.spec.fields
            },
            "discount": FileColumn(f"{_STEPS}discount", "float32"),
            **{name: FileColumn(_STEPS + name, "bool") for name in _FLAGS},
        }
        self._folder = Path()
        self._file: BinaryIO | None = None
        self._lengths: list[int] = []
        self._bytes = 0

    @property
    def notes(self) -> Sequence[str]:
        stacked = [] if self._options.stack else stack_notes(self._source.spec, STACK_OPTION)
        return (
            "the last step of an episode holds the final observation; its action, reward and "
            "discount have no meaning",
            "an episode without is_terminal was truncated or cut: see episode_metadata",
            *stacked,
        )

    def begin(self, path: Path) -> None:
        self._folder = path
        features = [*self._features.values(), *_EPISODE_FEATURES.values()]
        self._put("features.json", features_json(features))
        if spaces := newest_spaces(self._source.sessions):
            self._put(_OWN_FACTS, {"stepwell": spaces})
        self._open()

    def write(self, episode: Episode) -> None:
        arrays = step_arrays(episode, stack=self._options.stack)
        facts = episode_facts(episode)
        facts["metadata"] = json.dumps(facts["metadata"])
        lists = {f.name: encode_feature(f, arrays[name]) for name, f in self._features.items()}
        for name, feature in _EPISODE_FEATURES.items():
            lists[feature.name] = encode_feature(feature, np.array([facts[name]]))
        record = encoded(lists)
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


_OWN_FACTS: Final = "metadata.json"
"""The file for facts that TFDS does not check."""
_ENCODINGS: Final[Mapping[str, Encoding]] = {"none": "array", "bytes": "raw", "zlib": "zlib"}
"""Encodings of tensors by TFDS's words."""
_PACKAGE: Final = "tensorflow_datasets.core.features"
_DICT: Final = f"{_PACKAGE}.features_dict.FeaturesDict"
_STEPS_CLASS: Final = f"{_PACKAGE}.dataset_feature.Dataset"
_TENSOR: Final = f"{_PACKAGE}.tensor_feature.Tensor"
_IMAGE: Final = f"{_PACKAGE}.image_feature.Image"
_TEXT: Final = f"{_PACKAGE}.text_feature.Text"
_SMALL: Final = 64
"""Bytes of a row that need no compression."""
_ARRAY_DTYPES: Final = ("uint32", "uint64")
"""Dtypes that TensorFlow does not decode from bytes."""


def feature_of(name: str, field: Field, *, stack: bool = False) -> FileColumn:
    """The feature of a field, encoded exactly, under a path such as ``steps/observation/image``."""
    column = FileColumn.of(name, field, "TFDS data set", stack=stack)
    size, dtype = column.row_bytes, field.numpy_dtype
    if column.axes == "hwc":
        return replace(column, encoding="png")
    is_exact = dtype.kind in "biu" or dtype == np.float32
    if dtype.name in _ARRAY_DTYPES or (is_exact and 0 < size <= _SMALL):
        return column
    # An Example's floats are float32: others are kept as bytes, which TFDS reads exactly.
    return replace(column, encoding="zlib" if size > _SMALL else "raw")


def encode_feature(column: FileColumn, rows: np.ndarray) -> Value:
    """Rows [n, ...] as a list of an Example."""
    if column.encoding == "text":
        return [str(text).encode() for text in rows.tolist()]
    if column.encoding == "png":
        return encoded_rows(rows, "hwc")
    little = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    if column.encoding == "array":
        flat = np.ascontiguousarray(little).reshape(-1)
        if rows.dtype.kind == "f":
            return flat.astype(np.float32)
        return flat.view(np.int64) if rows.dtype == np.uint64 else flat.astype(np.int64)
    raw = [np.ascontiguousarray(row).tobytes() for row in little]
    return raw if column.encoding == "raw" else [zlib.compress(part) for part in raw]


def decode_feature(
    column: FileColumn, value: Value | None, count: int, budget: MemoryBudget | None = None
) -> np.ndarray:
    """The rows [count, ...] that a list of an Example holds; any memory without a budget."""
    shape, dtype = column.shape, np.dtype(column.dtype)
    budget = budget or MemoryBudget(column.name, 1 << 62)
    budget.take(count * column.row_bytes)
    try:
        if column.encoding == "text":
            return np.array([part.decode() for part in _bytes(value)], np.str_)
        if column.encoding in ("png", "jpeg"):
            pictures = decoded_rows(_bytes(value), None if -1 in shape else shape, budget=budget)
            return as_values(pictures, dtype, column.name)
        if column.encoding == "array":
            flat = np.zeros(0) if value is None or isinstance(value, list) else value
            if dtype == np.uint64:
                flat = flat.astype(np.int64).view(np.uint64)
            return as_values(flat, dtype, column.name).reshape(count, *shape)
        parts = _bytes(value)
        if column.encoding == "zlib":
            parts = [_inflated(column, part, budget) for part in parts]
        found = np.frombuffer(b"".join(parts), dtype.newbyteorder("<"))
        return found.astype(dtype).reshape(count, *shape)
    except (ValueError, zlib.error) as error:
        raise ValueError(
            f"feature {column.name!r}: expected {count:,} values of {column.dtype} {shape}, "
            f"got others ({error})"
        ) from error


def _inflated(column: FileColumn, part: bytes, budget: MemoryBudget) -> bytes:
    """Decompress a value that is not longer than its feature allows."""
    is_unknown = -1 in column.shape
    size = budget.left if is_unknown else column.row_bytes
    unpacker = zlib.decompressobj()
    found = unpacker.decompress(part, size + 1)
    if len(found) > size or not unpacker.eof:
        raise ValueError(f"a compressed value is not whole, or has more than {size:,} bytes")
    if is_unknown:
        budget.take(len(found))
    return found


def _feature_json(column: FileColumn) -> dict[str, Any]:
    """The description of a feature in ``features.json``."""
    if column.encoding == "text":
        return {"pythonClassName": _TEXT, "text": {}}
    shape = {"dimensions": list(map(str, column.shape))} if column.shape else {}
    if column.encoding == "png":
        image = {"dtype": column.dtype, "encodingFormat": "png", "shape": shape}
        return {"pythonClassName": _IMAGE, "image": image}
    words = {encoding: word for word, encoding in _ENCODINGS.items()}
    tensor = {"dtype": column.dtype, "encoding": words[column.encoding], "shape": shape}
    return {"pythonClassName": _TENSOR, "tensor": tensor}


def features_json(features: Iterable[FileColumn]) -> dict[str, Any]:
    """The content of ``features.json``, for features whose paths begin with ``steps`` or do not."""
    tree: dict[str, Any] = {}
    for feature in features:
        *path, last = feature.name.split("/")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
            if isinstance(node, FileColumn):
                break
        if isinstance(node, FileColumn) or last in node:
            raise ValueError(
                f"{feature.name!r} lies within another feature: expected keys without '/'; rename "
                f"a key of the space"
            )
        node[last] = feature
    return _node(tree)


def _node(tree: FileColumn | Mapping[str, Any], name: str = "") -> dict[str, Any]:
    if isinstance(tree, FileColumn):
        return _feature_json(tree)
    features = {key: _node(part, key) for key, part in tree.items()}
    found = {"featuresDict": {"features": features}, "pythonClassName": _DICT}
    if name == "steps":
        return {"pythonClassName": _STEPS_CLASS, "sequence": {"feature": found, "length": "-1"}}
    return found


def _read(
    node: Mapping[str, Any], name: str, found: dict[str, FileColumn], unknown: list[str]
) -> None:
    """Add the features in ``features.json`` by path, and the unsupported ones."""
    if "featuresDict" in node:
        for key, part in node["featuresDict"]["features"].items():
            _read(part, f"{name}/{key}" if name else key, found, unknown)
    elif "sequence" in node and name == "steps":
        _read(node["sequence"]["feature"], name, found, unknown)
    elif "tensor" in node or "image" in node:
        facts = node["tensor"] if "tensor" in node else node["image"]
        shape = tuple(int(size) for size in facts.get("shape", {}).get("dimensions", []))
        encoding = _ENCODINGS.get(str(facts.get("encoding") or "none"))
        if "tensor" not in node:
            encoding = "jpeg" if facts.get("encodingFormat") == "jpeg" else "png"
        dtype = facts.get("dtype") or "uint8"
        if dtype in ("string", "object") and not shape and encoding == "array":
            found[name] = FileColumn(name, "str", (), "text")
            return
        # The file is untrusted: numpy must accept these axes, and their sizes as int64.
        is_known = dtype in DTYPES and len(shape) <= 32 and all(-1 <= n < 2**40 for n in shape)
        if encoding is None or not is_known:
            unknown.append(name)
        else:
            found[name] = FileColumn(name, dtype, shape, encoding)
    elif "text" in node:
        found[name] = FileColumn(name, "str", (), "text")
    elif "classLabel" in node:
        classes = int(node["classLabel"].get("numClasses", 0))
        found[name] = FileColumn(name, "int64", classes=min(max(0, classes), _MOST_CLASSES))
    else:
        unknown.append(name)


def _bytes(value: Value | None) -> list[bytes]:
    if value is None or not isinstance(value, list):
        if value is not None and len(value):
            raise ValueError("expected bytes, got numbers")
        return []
    return value


_NAME: Final = re.compile(r"[\w.-]+")
_STEPS: Final = "steps/"
_ABOUT: Final = "episode_metadata/"
_MOST_CLASSES: Final = 2**31
_MOST_VALUES: Final = 1000
_MOST_CHARACTERS: Final = 10_000
_LOST: Final = (
    "{} episodes have a reward in their last step, which RLDS does not define and which was left "
    "out"
)
_FLAGS: Final = ("is_first", "is_last", "is_terminal")
_PARTS: Final = ("observation", "action", "reward", "info", "extra")
_EPISODE_FEATURES: Final = {
    **{name: FileColumn(_ABOUT + name, "int64") for name in ("stream", "first_row")},
    **{name: FileColumn(_ABOUT + name, "bool") for name in ("terminated", "truncated", "cut")},
    "metadata": FileColumn(f"{_ABOUT}metadata", "str", (), "text"),
}


def dataset_info(given: GivenFiles) -> dict[str, Any]:
    """Read ``dataset_info.json``, and ``features.json`` under "features"."""
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


class _RldsReader(EpisodeReader):
    """Reads a foreign data set, described by what `dataset_info` returned."""

    def __init__(self, given: GivenFiles, info: Mapping[str, Any], options: RldsImport) -> None:
        self._given = given
        self._path = path = given.path
        self._files, self.episodes = _files(given, info, options.split)
        found: dict[str, FileColumn] = {}  # by path
        unknown: list[str] = []
        _read(info["features"], "", found, unknown)
        # As Stepwell writes it, an episode's metadata say all that its steps do not.
        self._is_own = {feature.name for feature in _EPISODE_FEATURES.values()} <= set(found)
        super().__init__(*([] if self._is_own else [NO_STREAMS]))
        self._features: dict[str, FileColumn] = {}
        self._texts: dict[str, FileColumn] = {}
        self._about: dict[str, FileColumn] = {}
        more: dict[str, FileColumn] = {}
        for name, feature in found.items():
            part = name.removeprefix(_STEPS)
            if part == name:
                is_few = -1 not in feature.shape and math.prod(feature.shape) <= _MOST_VALUES
                if name.startswith(_ABOUT) and is_few and feature.encoding in ("text", "array"):
                    self._about[name.removeprefix(_ABOUT)] = feature
            elif feature.encoding == "text":
                self._texts[part] = feature
            elif kind_of(part) in _PARTS + _FLAGS:
                self._features[part] = feature
            elif -1 not in feature.shape and not self._is_known(name):
                more[f"{'extra' if part == 'discount' else 'info'}/{part}"] = feature
        for name, feature in more.items():
            self._features.setdefault(name, feature)
        kept = [*self._features.values(), *self._texts.values(), *self._about.values()]
        used = {feature.name for feature in kept}
        if lossy := [name for name, f in self._features.items() if f.encoding == "jpeg"]:
            self._notes.add(f"{', '.join(lossy)}: JPEG, which is lossy")
        is_left = [name for name in found if name not in used and not self._is_known(name)]
        if unread := [*is_left, *unknown]:
            self._notes.add(f"not read: {', '.join(unread)}")
        self._changing: set[str] = set()
        kinds = set(map(kind_of, self._features))
        missing = [name for name in (*_PARTS[:3], "is_last") if name not in kinds]
        if missing:
            raise ValueError(
                f"{path}: expected steps with observation, action, reward and is_last, got "
                f"{', '.join(sorted(found)) or 'none'}: there is no {missing[0]!r} that is numbers "
                f"or pictures; this is not an RLDS data set"
            )
        first = next(self._found(), None)
        if first is None:
            raise ValueError(f"{path}: expected at least one episode, got none")
        self.spec, known = self._declared(inferred_spec(first.columns, first.where))
        self.sessions = sessions_of("rlds", known)

    def _declared(self, spec: Spec) -> tuple[Spec, Mapping[str, object]]:
        """The classes of actions and observations, and the spaces of an export of Stepwell."""
        file, recorded = self._path / _OWN_FACTS, None
        if self._is_own and file.exists():
            recorded = mapping(self._given.read_json(file).get("stepwell", {}), f"{file}: stepwell")
        classes = {
            name: self._names_of(feature) or feature.classes
            for name, feature in self._features.items()
            if feature.classes
        }
        return declared_spaces(spec, classes, (recorded or {}).get("spaces"))

    @property
    def notes(self) -> Sequence[str]:
        changing = ", ".join(sorted(self._changing))
        more = [f"not read where it is not one text an episode: {changing}"] if changing else []
        return [*super().notes, *more]

    def _found(self) -> Iterator[FoundEpisode]:
        for number, values, budget in _examples(self._given, self._files, self.episodes):
            yield self._episode(number, values, budget)

    def _episode(
        self, number: int, values: Mapping[str, Value], budget: MemoryBudget
    ) -> FoundEpisode:
        count = len(values.get(f"{_STEPS}is_last", ()))
        if not count:
            raise ValueError(f"{self._path}: expected steps in episode {number}, got none")
        rows = {
            name: decode_feature(f, values.get(f.name), count, budget)
            for name, f in self._features.items()
        }
        where = f"{self._path}: episode {number}"
        flags = {
            name: as_flags(rows.pop(name, np.zeros(count, np.bool_)), name, where)
            for name in _FLAGS
        }
        if flags["is_last"][:-1].any() or flags["is_terminal"][:-1].any():
            raise ValueError(
                f"{self._path}: expected is_last and is_terminal in the last step alone, got one "
                f"before it in episode {number}; this is not an RLDS data set"
            )
        rows["reward"] = as_rewards(rows["reward"], where)
        if rows["reward"][-1]:
            self._notes.count(_LOST)
        end = End.NONE
        if flags["is_last"][-1]:
            end = End.TERMINATED if flags["is_terminal"][-1] else End.TRUNCATED
        if count == 1:
            end = End.NONE  # without a step it cannot have ended
        columns = {name: part if has_final_row(name) else part[:-1] for name, part in rows.items()}
        for name, feature in self._features.items():
            if feature.classes and name in columns:
                check_classes(columns[name], feature.classes, feature.name, where)
        facts = self._metadata(values, count, budget)
        stream = 0
        if self._is_own:
            stream = whole(facts["stream"], f"{where}: stream", 0, _MOST_CLASSES)
            if count > 1:
                end &= End.NONE if facts["cut"] else ~End.TRUNCATED
                end |= End.TRUNCATED if facts["truncated"] else End.NONE
            try:
                facts = parse(str(facts["metadata"]).encode())
            except ValueError as error:
                raise ValueError(f"{where}: metadata: {error}; fetch the data set again") from error
        known = {
            (f"{_ABOUT}{name}" if name in RUN_FACTS and not self._is_own else name): fact
            for name, fact in facts.items()
            if not (self._is_own and name in RUN_FACTS)
        }
        return FoundEpisode(where, columns, end, known, stream=stream)

    def _metadata(
        self, values: Mapping[str, Value], count: int, budget: MemoryBudget
    ) -> dict[str, object]:
        """An episode's metadata in the file, and the texts that all of its steps share."""
        found: dict[str, object] = {}
        for name, feature in self._about.items():
            value: Any = decode_feature(feature, values.get(feature.name), 1, budget)[0].tolist()
            is_finite = feature.encoding == "text" or np.isfinite(value).all()
            if is_finite and (self._is_own or len(str(value)) <= _MOST_CHARACTERS):
                found[name] = value
        for name, feature in self._texts.items():
            texts = set(_bytes(values.get(feature.name)))
            try:
                (text,) = (each.decode() for each in texts)
            except ValueError:  # several, or no text
                self._changing.add(name)
            else:
                if len(text) <= _MOST_CHARACTERS:
                    found.setdefault(name, text)
        return found

    def _is_known(self, name: str) -> bool:
        """True for a feature that follows from the others, as Stepwell writes it."""
        return self._is_own and name == f"{_STEPS}discount"

    def _names_of(self, feature: FileColumn) -> list[str]:
        """The names of a feature's classes, from TFDS's file; empty if there is none that fits."""
        file = self._path / f"{feature.name.replace('/', '-')}.labels.txt"
        if not file.exists():
            return []
        names = self._given.read_bytes(file).decode(errors="replace").split("\n")
        names = names[:-1] if names[-1] == "" else names
        return names if len(names) == feature.classes else []


def _files(given: GivenFiles, info: Mapping[str, Any], split: str) -> tuple[list[Path], int]:
    """The files of a split, and its episodes."""
    path = given.path
    splits = {str(each["name"]): each for each in info["splits"]}
    if split not in splits:
        raise ValueError(
            f"{path}: expected a split {split!r}, got {', '.join(splits) or 'none'}; name one in "
            f"the option split"
        )
    lengths = [int(length) for length in splits[split].get("shardLengths", [])]
    prefix = f"{info['name']}-{split}.tfrecord"  # the split may be a pattern
    files = in_order(file for file in path.iterdir() if file.name.startswith(prefix))
    if len(files) != len(lengths) or not files:
        raise ValueError(
            f"{path}: expected {len(lengths)} files named {info['name']}-{split}.tfrecord-*, got "
            f"{len(files)}; fetch the data set again"
        )
    return files, sum(lengths)


def _examples(
    given: GivenFiles, files: Sequence[Path], expected: int | None
) -> Iterator[tuple[int, dict[str, Value], MemoryBudget]]:
    """Each episode's number and lists, and the memory that is left for their content."""
    number = 0
    for file in files:
        for record in read_records(given.file(file)):
            budget = given.budget(f"{file}: episode {number}")
            budget.take(len(record))
            yield number, decoded(record, budget), budget
            number += 1
    if number != expected:
        raise ValueError(
            f"{files[0].parent}: expected {expected} episodes, as dataset_info.json says, got "
            f"{number}; fetch the data set again"
        )
