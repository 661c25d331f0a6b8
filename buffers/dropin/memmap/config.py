"""The configuration of a buffer: its fields, its limits, and the file that holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ...base.errors import StoreCorrupt, StoreTooNew
from ...base.number_checks import is_real, whole_number
from ...base.untrusted_json import items, mapping, member, parse, whole
from ...spec.spec import as_array
from ...storage.disk.files import Files, replace_file
from ...storage.disk.format import MOST_FACTS_BYTES

FieldType: TypeAlias = Literal["float", "int", "bool", "uint8"]

DTYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "int": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
}
"""The dtype of each field type."""

_FILE = "replay_buffer.json"
_FORMAT = "stepwell episodes of declared fields"
_VERSION = 1
_FILE_BYTES = 1 << 20


class MemmapField(NamedTuple):
    """A field of steps, or of episodes ("meta field")."""

    name: str
    type: FieldType  # "int" is int32, "float" is float32
    shape: tuple[int, ...]  # of one value
    default: float | int | bool  # fills every element of a missing value

    @classmethod
    def parse(cls, name: str, info: object) -> MemmapField:
        """Create a field from the original's notation: a type, (type, shape) or with a default."""
        parts = info if isinstance(info, tuple | list) else (info,)
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(
                f"name of a field: expected a Python identifier without a leading _, got {name!r}; "
                f"rename it"
            )
        if not 1 <= len(parts) <= 3 or not isinstance(parts[0], str) or parts[0] not in DTYPES:
            raise ValueError(
                f"field {name!r}: expected one of {', '.join(DTYPES)}, or a tuple of that, a "
                f"shape and a default, got {info!r}"
            )
        type_: Any = parts[0]
        sizes = parts[1] if len(parts) > 1 else ()
        shape = tuple(sizes) if np.iterable(sizes) else (sizes,)
        if not all(is_real(n) and n >= 1 and n % 1 == 0 for n in shape):
            raise ValueError(f"field {name!r}: expected a shape of numbers >= 1, got {sizes!r}")
        field = cls(name, type_, tuple(int(n) for n in shape), DTYPES[type_].type(0).item())
        if len(parts) < 3 or parts[2] is None:
            return field
        default = _as_array(f"default of field {name!r}", parts[2], field.dtype)
        if default.shape != ():
            raise ValueError(f"default of field {name!r}: expected one number, got {parts[2]!r}")
        return field._replace(default=default.item())

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its values."""
        return DTYPES[self.type]

    @property
    def row_bytes(self) -> int:
        """Bytes of one value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def full(self, lead: tuple[int, ...]) -> np.ndarray:
        """A new array ``[*lead, *shape]`` filled with the default."""
        return np.full((*lead, *self.shape), self.default, self.dtype)

    def convert(self, value: object, lead: tuple[int, ...] = ()) -> np.ndarray:
        """A value as an array ``[*lead, *shape]`` of the field's dtype; -1 is any length."""
        # It is not copied if possible. A trailing axis of length 1 is added or removed if that
        # makes the shape fit.
        array = _as_array(f"field {self.name!r}", value, self.dtype)
        fitting, own = array, array.shape[len(lead) :]
        if self.shape == () and own == (1,):
            fitting = array[..., 0]
        elif self.shape == (1,) and own == () and array.ndim >= len(lead):
            fitting = array[..., None]
        ahead = fitting.shape[: len(lead)]
        is_right = len(ahead) == len(lead) and all(
            n in (-1, got) for n, got in zip(lead, ahead, strict=True)
        )
        if not is_right or fitting.shape[len(lead) :] != self.shape:
            names = [*("any" if n < 0 else str(n) for n in lead), *map(str, self.shape)]
            raise ValueError(
                f"field {self.name!r}: expected an array of shape ({', '.join(names)}), got "
                f"{array.shape}; reshape it, or choose another shape for the field"
            )
        return fitting

    def to_json(self) -> list[object]:
        """Plain data for a JSON file; `from_json` reads it."""
        return [self.type, list(self.shape), to_plain(np.asarray(self.default))]

    @classmethod
    def from_json(cls, name: str, data: object) -> MemmapField:
        """Create a field from the data of `to_json`."""
        type_, shape, default = items(data, name, 3)
        # Strings are NaN and infinities.
        number = float(default) if isinstance(default, str) else default
        return cls.parse(name, (type_, tuple(items(shape, name)), number))

    def __str__(self) -> str:
        return f"{self.name}: {self.type} {self.shape}, default {self.default}"


def parse_fields(what: str, fields: Mapping[str, object]) -> dict[str, MemmapField]:
    """Create fields from the original's notation, by name."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"{what}: expected a dict of names and types, got {fields!r}")
    return {name: MemmapField.parse(name, info) for name, info in fields.items()}


def check_names(what: str, data: Mapping[str, object], known: Mapping[str, object]) -> None:
    """Reject empty data and unknown field names, in a call named ``what``."""
    if not data:
        raise ValueError(f"{what}: no data, expected some of the fields {', '.join(known)}")
    for name in data:
        if name not in known:
            raise ValueError(
                f"{what}: invalid field name {name!r}, expected some of: "
                f"{', '.join(known) or 'none, as the buffer has no such fields'}"
            )


def _as_array(what: str, value: object, dtype: np.dtype[Any]) -> np.ndarray:
    """A number, an array, a tensor on any device, or a list, in a dtype that holds all of it."""
    # Only float64 to float32 may round.
    if isinstance(value, list | tuple) and any(hasattr(each, "detach") for each in value):
        value = np.stack([as_array(each) for each in value])  # tensors, perhaps on a GPU
    array = as_array(value)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what}: expected numbers, got {array.dtype}: {value!r}")
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        cast_array = array.astype(dtype)
        if dtype.kind == "f" and array.dtype.kind == "f":
            is_changed = np.isinf(cast_array) & ~np.isinf(array)
        else:
            is_changed = cast_array.astype(array.dtype) != array
    if is_changed.any():
        first = array[is_changed].flat[0]
        raise ValueError(
            f"{what}: expected numbers that fit {dtype}, got {first} ({array.dtype}); convert it "
            f"first, or choose another type for the field"
        )
    return cast_array


def to_plain(array: np.ndarray) -> Any:
    """An array as nested lists of JSON values, exactly: NaN and infinities become strings."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    if array.ndim:
        return [to_plain(part) for part in array]
    return str(array.item())


class Config(NamedTuple):
    """The configuration of a buffer."""

    max_episodes: int  # slots for episodes
    max_timesteps: int  # of the longest episode
    fields: Mapping[str, MemmapField]  # of every step, by name
    meta_fields: Mapping[str, MemmapField]  # of every episode, by name
    circular: bool  # a new episode replaces the oldest one in a full buffer

    def checked(self) -> Config:
        """The configuration; ValueError without fields, with one twice, or with too much room."""
        if not self.fields:
            raise ValueError("fields: expected at least one, got none")
        twice = self.fields.keys() & self.meta_fields.keys()
        if twice:
            raise ValueError(
                f"fields and meta_fields must be disjoint: got {min(twice)!r} twice; rename one"
            )
        whole_number("room for max_episodes * max_timesteps steps", self.capacity or 1, 1)
        return self

    @property
    def capacity(self) -> int | None:
        """Capacity of the store in steps, large enough that it never evicts a live episode."""
        # The store evicts whole files. A file holds up to a sixteenth of the capacity plus the
        # episode that crosses that limit, and an episode of up to a sixteenth is stored as one
        # chunk, so completely or not at all. Files of less than a MiB would cost more than they
        # save. Episodes older than the oldest slot are dropped explicitly as well.
        if not self.circular:
            return None
        longest = self.max_timesteps
        row_bytes = sum(field.row_bytes for field in self.fields.values())
        file_rows = max(longest, _FILE_BYTES // row_bytes)
        return max(16 * file_rows, -(-(self.max_episodes + 1) * longest * 16 // 15) + 1)

    def to_json(self) -> dict[str, object]:
        """Plain data for a JSON file; `from_json` reads it."""
        return {
            "max_episodes": self.max_episodes,
            "max_timesteps": self.max_timesteps,
            "circular": self.circular,
            "fields": {name: field.to_json() for name, field in self.fields.items()},
            "meta_fields": {name: field.to_json() for name, field in self.meta_fields.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Config:
        """Create a configuration from the data of `to_json`."""
        fields, meta_fields = (
            {
                name: MemmapField.from_json(name, each)
                for name, each in mapping(member(data, key), key).items()
            }
            for key in ("fields", "meta_fields")
        )
        limits = [whole(member(data, key), key, 1) for key in ("max_episodes", "max_timesteps")]
        is_circular = member(data, "circular")
        if not isinstance(is_circular, bool):
            raise ValueError(f"circular: expected true or false, got {is_circular!r}")
        return cls(limits[0], limits[1], fields, meta_fields, is_circular).checked()

    def difference(self, other: Config) -> str | None:
        """Describe the first difference from another configuration; None if they are equal."""
        for name in ("max_episodes", "max_timesteps", "circular"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} is {getattr(self, name)}, got {getattr(other, name)}"
        for kind in ("fields", "meta_fields"):
            mine, theirs = getattr(self, kind), getattr(other, kind)
            for name in [*mine, *theirs]:
                if mine.get(name) != theirs.get(name):
                    expected = mine.get(name, f"no {name!r}")
                    return f"{kind}: expected {expected}, got {theirs.get(name, f'no {name!r}')}"
        return None


class Marker(NamedTuple):
    """The contents of the marker file, which makes a folder a buffer."""

    config: Config
    store: int  # the current store folder; `clear` starts the next one


def has_marker(folder: Path) -> bool:
    """True if the folder has a marker file."""
    return (folder / _FILE).exists()


def read_marker(folder: Path) -> Marker:
    """Read the marker file of a folder."""
    path = folder / _FILE
    try:
        with Files().open(path) as file:
            text = Files().pread(file, MOST_FACTS_BYTES, 0)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_marker(folder) from None
    try:
        data = parse(text)
        if member(data, "format") != _FORMAT:
            raise ValueError(f"format: expected {_FORMAT!r}, got another")
        version = whole(member(data, "version"), "version")
        if version > _VERSION:
            raise StoreTooNew(
                f"{path} has version {version}, expected at most {_VERSION}: install a newer "
                f"Stepwell"
            )
        return Marker(Config.from_json(data), whole(member(data, "store"), "store"))
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(
            f"{path} is damaged ({error}), expected a buffer's configuration: restore it from a "
            f"copy"
        ) from error


def write_marker(folder: Path, marker: Marker) -> None:
    """Replace the marker file; the new one is durable when this returns."""
    data = {"format": _FORMAT, "version": _VERSION, "store": marker.store}
    text = json.dumps(data | marker.config.to_json(), indent=1, allow_nan=False)
    replace_file(Files(), folder / _FILE, text.encode())


def missing_marker(folder: Path) -> ValueError:
    """The error for a folder without a marker file; it names how to read an original one."""
    if (folder / "metadata.pkl").exists():
        return ValueError(
            f"{folder} was written by memmap-replay-buffer (metadata.pkl), expected a folder of "
            f"this class: read its episodes with OriginalFolder, and store them in a new one"
        )
    return ValueError(
        f"{folder} holds no buffer, expected a folder with a {_FILE}: make one, or give another "
        f"folder"
    )
