"""Hashes of values that hold arrays, and what is in the files of data sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["content", "hash_of", "leaves", "sha"]


def sha(*parts: bytes | str) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode() if isinstance(part, str) else part)
        total.update(b"\0")
    return total.hexdigest()[:16]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays and other values in dataclasses, mappings and tuples, by name."""
    if is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
        value = {key: one for key, one in value.items() if key not in ("memory", "rng")}
    elif isinstance(value, tuple | list):
        value = {str(number): one for number, one in enumerate(value)}
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from leaves(value[key], f"{name}/{key}")
    else:
        yield name, value


def hash_of(value: Any) -> str:
    """A hash of names, dtypes, shapes and bytes, whatever the order in memory."""
    parts: list[bytes | str] = []
    for name, leaf in leaves(value):
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            parts += [name, leaf.dtype.str, str(leaf.shape), leaf.tobytes()]
        else:
            parts += [name, repr(leaf.tolist() if hasattr(leaf, "tolist") else leaf)]
    return sha(*parts)


def content(path: Path) -> Any:
    """What a file holds, without the versions of the programs that wrote it."""
    if path.suffix in (".h5", ".hdf5"):
        return hdf5_content(path)
    if path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        return [str(table.schema.remove_metadata()), plain(table.to_pylist())]
    if path.suffix == ".pt":
        import torch

        return plain(torch.load(path, weights_only=True))
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == ".json":
        return plain(json.loads(path.read_text()))
    return path.read_bytes()


def hdf5_content(path: Path) -> Any:
    import h5py

    held: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        held[name] = [plain(dict(node.attrs)), node[()] if hasattr(node, "dtype") else None]

    with h5py.File(path) as file:
        visit("/", file)
        file.visititems(visit)
    return held


def plain(value: Any) -> Any:
    """The same of arrays and dicts, less versions; pictures are decoded: their bytes are zlib's."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if "version" not in str(key)}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, bytes) and value.startswith(b"\x89PNG"):
        import cv2

        return cv2.imdecode(np.frombuffer(value, np.uint8), cv2.IMREAD_UNCHANGED)
    to_numpy = getattr(value, "numpy", None)  # of a tensor
    return value if to_numpy is None else to_numpy()
