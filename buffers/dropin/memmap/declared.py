"""The fields that a buffer declares, and values as arrays of exactly their dtype and shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from stepwell.buffers.spec import Codec

__all__ = [
    "Codecs",
    "DeclaredField",
    "FieldInfo",
    "FieldType",
    "as_array",
    "parse_fields",
    "to_plain",
]

FieldType: TypeAlias = Literal["float", "int", "bool", "uint8"]
Shape: TypeAlias = int | tuple[int, ...]
FieldInfo: TypeAlias = FieldType | tuple[FieldType, Shape] | tuple[FieldType, Shape, float]
Codecs: TypeAlias = Codec | Mapping[str, Codec] | None

_DTYPES: dict[str, np.dtype[Any]] = {
    "float": np.dtype(np.float32),
    "int": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
}


class DeclaredField(NamedTuple):
    """One declared field.

    Args:
        name: What it is called.
        kind: ``"float"`` (float32), ``"int"`` (int32), ``"bool"`` or ``"uint8"``.
        shape: Of one value.
        default: Stands where nothing is given, in every element.
    """

    name: str
    kind: FieldType
    shape: tuple[int, ...]
    default: float | int | bool

    @classmethod
    def of(cls, name: str, info: object) -> DeclaredField:
        """The field that a declaration means.

        Args:
            name: What it is called.
            info: Its type, or (type, shape), or (type, shape, default).

        Raises:
            ValueError: It is no such thing.
        """
        parts = info if isinstance(info, tuple | list) else (info,)
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(
                f"name of a field: expected a Python name that does not begin with _, got {name!r}"
            )
        if not 1 <= len(parts) <= 3 or parts[0] not in _DTYPES:
            raise ValueError(
                f"field {name!r}: expected one of {', '.join(_DTYPES)}, or a tuple of that, a "
                f"shape and a default, got {info!r}"
            )
        kind: Any = parts[0]
        given = parts[1] if len(parts) > 1 else ()
        shape = (given,) if isinstance(given, int | np.integer) else tuple(given)
        if any(isinstance(n, bool) or n != int(n) or n < 1 for n in shape):
            raise ValueError(f"field {name!r}: expected a shape of numbers >= 1, got {given!r}")
        plain = cls(name, kind, tuple(int(n) for n in shape), _DTYPES[kind].type(0).item())
        if len(parts) < 3 or parts[2] is None:
            return plain
        default = as_array(f"default of field {name!r}", parts[2], plain.dtype)
        if default.shape != ():
            raise ValueError(f"default of field {name!r}: expected one number, got {parts[2]!r}")
        return plain._replace(default=default.item())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy's dtype."""
        return _DTYPES[self.kind]

    @property
    def row_bytes(self) -> int:
        """Bytes of one value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def filled(self, lead: tuple[int, ...]) -> np.ndarray:
        """Arrays ``[*lead, *shape]`` of the default, in new memory."""
        return np.full((*lead, *self.shape), self.default, self.dtype)

    def values(self, value: object, lead: tuple[int, ...] = ()) -> np.ndarray:
        """A value as an array of this field's dtype; perhaps the value itself.

        A trailing axis of one is added or taken away where that makes it fit.

        Args:
            value: Numbers, arrays, tensors, or lists of them.
            lead: Expected axes before the field's own; -1 stands for any length.

        Raises:
            ValueError: The shape does not fit, or a number would be changed.
        """
        what = f"field {self.name!r}"
        array = as_array(what, value, self.dtype)
        fitting = self.with_trailing(array, len(lead))
        ahead = fitting.shape[: len(lead)]
        is_right = len(ahead) == len(lead) and all(
            n in (-1, got) for n, got in zip(lead, ahead, strict=True)
        )
        if not is_right or fitting.shape[len(lead) :] != self.shape:
            names = [*("any" if n < 0 else str(n) for n in lead), *map(str, self.shape)]
            raise ValueError(
                f"{what}: expected an array of shape ({', '.join(names)}), got {array.shape}; "
                f"reshape it, or declare another shape"
            )
        return fitting

    def with_trailing(self, array: np.ndarray, lead: int) -> np.ndarray:
        """The array with a trailing axis of one more or less, where that gives the shape."""
        own = array.shape[lead:]
        if self.shape == () and own == (1,):
            return array[..., 0]
        if self.shape == (1,) and own == () and array.ndim >= lead:
            return array[..., None]
        return array

    def to_json(self) -> list[object]:
        """Plain data for a JSON file; `of` reads it."""
        return [self.kind, list(self.shape), to_plain(np.asarray(self.default))]

    @classmethod
    def from_json(cls, name: str, data: Sequence[object]) -> DeclaredField:
        """The field that `to_json` described."""
        field = cls.of(name, tuple(data[:2]))
        return field._replace(default=np.asarray(data[2]).astype(field.dtype).item())

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} {self.shape}, default {self.default}"


def parse_fields(what: str, fields: Mapping[str, object]) -> dict[str, DeclaredField]:
    """The fields of a declaration, by name.

    Raises:
        ValueError: It declares something that cannot be kept.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"{what}: expected a dict of names and types, got {fields!r}")
    return {name: DeclaredField.of(name, info) for name, info in fields.items()}


def as_array(what: str, value: object, dtype: np.dtype[Any]) -> np.ndarray:
    """A value as an array of a dtype that keeps every number of it.

    Only a float64 that becomes a float32 may be rounded: that is what was declared.

    Args:
        what: What it is called in errors.
        value: A number, an array, a tensor of any device, or a list of them.
        dtype: What is wanted.

    Raises:
        ValueError: A number would be changed, or it is no array of numbers.
    """
    array = _numpy(value)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what}: expected numbers, got {array.dtype}: {value!r}")
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
        if dtype.kind == "f" and array.dtype.kind == "f":
            is_changed = np.isinf(cast) & ~np.isinf(array)
        else:
            is_changed = cast.astype(array.dtype) != array
    if is_changed.any():
        first = array[is_changed].flat[0]
        raise ValueError(
            f"{what}: expected numbers that {dtype} holds, got {first} ({array.dtype}), which it "
            f"does not; convert it yourself, or declare another type"
        )
    return cast


def to_plain(array: np.ndarray) -> Any:
    """An array as nested lists of JSON values, exactly: NaN and infinities become text."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    if array.ndim:
        return [to_plain(part) for part in array]
    return str(array.item())


def _numpy(value: object) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    detach: Any = getattr(value, "detach", None)
    if detach is not None:  # a tensor, whoever made it: torch is not needed to know it
        return np.asarray(detach().cpu().numpy())
    if isinstance(value, list | tuple) and any(hasattr(each, "detach") for each in value):
        return np.stack([_numpy(each) for each in value])
    return np.asarray(value)
