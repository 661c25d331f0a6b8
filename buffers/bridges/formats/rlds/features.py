"""The features of a TFDS data set: what ``features.json`` says, and how each one is encoded."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from stepwell.buffers.bridges.formats.png import decoded_rows, encoded_rows, picture_axes
from stepwell.buffers.bridges.formats.rlds.example import Value
from stepwell.buffers.given_files import Room
from stepwell.buffers.spec import Field

__all__ = ["Encoding", "Feature", "features_json", "read_features"]

Encoding = Literal["none", "bytes", "zlib", "png", "text"]
"""How a tensor stands in an Example: as numbers, its bytes, compressed bytes, or a picture."""

_PACKAGE: Final = "tensorflow_datasets.core.features"
_DICT: Final = f"{_PACKAGE}.features_dict.FeaturesDict"
_STEPS: Final = f"{_PACKAGE}.dataset_feature.Dataset"
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
"""What TensorFlow does not decode from bytes."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One tensor of a step, or of an episode.

    Args:
        name: Its path, such as ``steps/observation/image``.
        dtype: numpy's name of the dtype; of a text ``"object"``.
        shape: Of one value; None where a length is not told.
        encoding: How it stands in an Example.
        is_lossy: It is a picture that lost something (JPEG).
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
        # An Example's floats are float32: others are kept as bytes, which TFDS reads as exactly.
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
            count: How many rows.
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
        """Bytes of a value; 0 where its size is not told."""
        if self.encoding == "text" or None in self.shape:
            return 0
        return math.prod(size or 0 for size in self.shape) * np.dtype(self.dtype).itemsize

    def _inflated(self, part: bytes, room: Room) -> bytes:
        """A compressed value, which is no longer than its feature says.

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
        """What ``features.json`` says of it."""
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
    """What ``features.json`` says, of features whose paths begin with ``steps`` or do not.

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
    """The features that ``features.json`` tells, by path, and those that are not understood.

    Raises:
        KeyError: It tells something else.
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
        return {"pythonClassName": _STEPS, "sequence": {"feature": found, "length": "-1"}}
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
