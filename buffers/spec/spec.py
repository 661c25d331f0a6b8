"""Names, dtypes, shapes and codecs of the fields of one row."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
from gymnasium import spaces

from ..base.errors import SpecMismatch
from ..base.number_checks import check_choice, check_whole, is_whole
from ..base.untrusted_json import items, mapping, member, text, whole
from .exact_values import exactly

FieldKind = Literal["observation", "action", "reward", "info", "extra"]
"""The first part of a field's name."""

FIELD_KINDS: tuple[FieldKind, ...] = get_args(FieldKind)
"""All kinds, in the order of a Collector's Spec."""

Codec = Literal["patch", "zstd", "delta", "narrow", "raw"]
"""The form in which rows are stored: patch = the words that change from row to row, for images;
zstd = compressed blocks of rows; delta = compressed changes of bytes, which older stores hold, and
which is read but not written; narrow = the smallest dtype that holds the values exactly; raw = the
rows unchanged."""

Layout: TypeAlias = "str | Mapping[str, Layout] | Sequence[Layout]"
"""The structure of a nested value: a field's name, a mapping (Dict) or a sequence (Tuple)."""

Tree: TypeAlias = "np.ndarray | Mapping[str, Tree] | tuple[Tree, ...]"
"""A nested value: an array, or arrays under the keys of a Dict or the places of a Tuple space."""

ArrayTree: TypeAlias = np.ndarray
"""An array; for a Dict or Tuple space a dict or tuple of arrays, nested like the space.

To a type checker it is an array, which it nearly always is, so that ``batch.observation.shape``
needs no cast. ``batch.observation["image"]`` passes too, as arrays can be indexed by a name. Other
uses of a dict or tuple, such as ``items()``, need a cast.
"""

_CODECS: tuple[Codec, ...] = get_args(Codec)
_PADDINGS: tuple[Literal["zero", "repeat"], ...] = ("zero", "repeat")
_PLAIN_KINDS = "biufc"  # numbers alone: never bytes that numpy could interpret otherwise
_DTYPE_NAME = re.compile(r"[<>=|]?[A-Za-z?]{1,12}[0-9]{0,3}")
# More than any row needs. No memory is allocated for a file that claims more.
_MOST_ROW_BYTES, _MOST_AXES, _MOST_FIELDS = 1 << 32, 32, 4096
IMAGE_BYTES = 64
"""From here on a row of bytes is worth compressing."""

PATCHED_BYTES = 8 << 16
"""Bytes of a row of patches at most: the places of its words are numbers of 16 bits."""


@dataclass(frozen=True, slots=True)
class Field:
    """One named column of a row.

    Args:
        name: ``observation``, ``action``, ``reward``, ``info/lives``, ``extra/log_prob``, ...; the
            parts of Dict and Tuple spaces are joined by ``/``.
        dtype: numpy's name of the dtype, for example ``"uint8"``.
        shape: Shape of one row. Under frame stacking the shape of one *frame*.
        codec: Form in which the rows are stored; all five are exact.
        stack: Frames in the env's observation, k >= 1. With k > 1 the env returns ``[k, *shape]``
            and one frame a row is stored.
        stack_padding: Frames before an episode's first one, ``"zero"`` or ``"repeat"``.

    Raises:
        TypeError: The dtype is not one of numbers or bools.
        ValueError: The name is of no kind, the codec or the padding is unknown, the shape has a
            length below 0, more than 32 axes, or more than 4 GiB a row, or the codec is patch or
            delta and a row has fewer than 64 bytes, or, for patch, more than 512 KiB.

    Example:
        >>> field = Field("observation/camera", "uint8", (84, 84), "zstd", stack=4)
        >>> field.kind, field.key, field.row_bytes, field.source_shape
        ('observation', 'camera', 7056, (4, 84, 84))
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: Codec
    stack: int = 1
    stack_padding: Literal["zero", "repeat"] = "zero"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.kind not in FIELD_KINDS:
            raise ValueError(
                f"name of a field: expected observation, action, reward, info/... or extra/..., "
                f"got {self.name!r}"
            )
        check_choice(f"codec of field {self.name!r}", self.codec, _CODECS)
        if self.dtype is None or np.dtype(self.dtype).kind not in _PLAIN_KINDS:
            raise TypeError(f"field {self.name!r}: expected a plain dtype, got {self.dtype}")
        check_choice(f"stack_padding of field {self.name!r}", self.stack_padding, _PADDINGS)
        are_whole = all(map(is_whole, (self.stack, *self.shape)))
        if not are_whole or min((self.stack - 1, *self.shape)) < 0 or len(self.shape) > _MOST_AXES:
            raise ValueError(
                f"field {self.name!r}: expected whole numbers, a stack >= 1 and at most "
                f"{_MOST_AXES} axes of lengths >= 0, got a stack of {self.stack} and the shape "
                f"{self.shape}"
            )
        # As they are read back from a file: names and plain numbers, also where NumPy's were given.
        if not isinstance(self.dtype, str):
            dtype = np.dtype(self.dtype)
            object.__setattr__(self, "dtype", dtype.name if dtype.isnative else dtype.str)
        object.__setattr__(self, "stack", int(self.stack))
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        # An empty axis must not hide a long one: numpy refuses such arrays, too.
        lengths = math.prod(max(1, length) for length in self.shape)
        if lengths * self.stack * self.numpy_dtype.itemsize > _MOST_ROW_BYTES:
            raise ValueError(
                f"field {self.name!r}: expected at most {_MOST_ROW_BYTES} bytes a row, got the "
                f"shape {self.source_shape} of {self.dtype}"
            )
        if self.codec in ("patch", "delta") and self.row_bytes < IMAGE_BYTES:
            raise ValueError(
                f"codec of field {self.name!r}: expected at least {IMAGE_BYTES} bytes a row for "
                f"{self.codec}, got {self.row_bytes}; choose zstd, narrow or raw"
            )
        if self.codec == "patch" and self.row_bytes > PATCHED_BYTES:
            raise ValueError(
                f"codec of field {self.name!r}: expected at most {PATCHED_BYTES} bytes a row for "
                f"patch, got {self.row_bytes}; choose zstd"
            )

    @property
    def kind(self) -> FieldKind:
        """The first part of the name, for example ``observation``."""
        return kind_of(self.name)

    @property
    def key(self) -> str:
        """The name without its kind: ``lives`` of ``info/lives``; empty for ``reward``."""
        return key_of(self.name)

    @property
    def is_chosen(self) -> bool:
        """True for a field that is stored with the action, False for one of the observation's."""
        return self.kind in ("action", "extra")

    @property
    def numpy_dtype(self) -> np.dtype[np.generic]:
        """The dtype, in this machine's byte order."""
        return np.dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, uncompressed."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape of one row as the env returns it: ``[stack, *shape]`` under frame stacking."""
        return (self.stack, *self.shape) if self.stack > 1 else self.shape

    def __str__(self) -> str:
        stack = f", stack of {self.stack} padded by {self.stack_padding}" if self.stack > 1 else ""
        return f"{self.name}: {self.dtype} {self.shape}, {self.codec}{stack}"


@dataclass(frozen=True, slots=True)
class Spec:
    """The fields of one row, and their structure in observation and action.

    Two stores are compatible when their Specs are equal.

    Args:
        fields: All fields in their stored order; names are unique.
        observation: Structure of the observation.
        action: Structure of the action.

    Raises:
        ValueError: Two fields have the same name, there are more than 4096, or a structure has
            other leaves than names of its own fields.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("CartPole-v1")
        >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
        >>> [field.name for field in spec.fields]
        ['observation', 'action', 'reward']
        >>> print(spec["action"])
        action: int64 (), narrow
    """

    fields: tuple[Field, ...]
    observation: Layout
    action: Layout

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        if len(self.fields) > _MOST_FIELDS:
            raise ValueError(f"expected at most {_MOST_FIELDS} fields, got {len(self.fields)}")
        counts = Counter(field.name for field in self.fields)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ValueError(
                f"field names must be unique, {twice[0]!r} appears twice: rename a key"
            )
        for part in ("observation", "action"):
            names = {field.name for field in self.fields if field.kind == part}
            _check_layout(getattr(self, part), part, names)

    @classmethod
    def from_spaces(
        cls,
        observation_space: spaces.Space[object],
        action_space: spaces.Space[object],
        *,
        frame_stack: int = 1,
        stack_padding: Literal["zero", "repeat"] = "zero",
        more: Sequence[Field] = (),
    ) -> Spec:
        """Describe the rows of an env by its single (unbatched) spaces.

        Args:
            observation_space: One env's observation space. Texts, sequences, graphs and
                alternatives have the fields of their arrays; see `stepwell.wrappers.FixedSpaces`.
            action_space: One env's action space.
            frame_stack: Frames that the env stacks on the first axis of a Box observation.
            stack_padding: Frames before an episode's first one.
            more: Additional fields: ``info/...`` and ``extra/...``.

        Raises:
            TypeError: A space is none of Gymnasium's.
            ValueError: ``frame_stack`` does not fit the observation space.
        """
        check_whole("frame_stack", frame_stack, 1)
        fields: list[Field] = []
        observation = _layout_of("observation", observation_space, fields)
        if frame_stack > 1:
            fields[0] = _unstack(fields, frame_stack, stack_padding)
        action = _layout_of("action", action_space, fields)
        # Stored as the env gives it, exactly; learners get float32 (see Batch).
        fields.append(Field("reward", "float64", (), "narrow"))
        return cls((*fields, *more), observation, action)

    def __getitem__(self, name: str) -> Field:
        """The field with that name; KeyError when there is none."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def of_kind(self, *kinds: FieldKind) -> tuple[Field, ...]:
        """The fields of the given kinds, in their stored order.

        Example:
            >>> import gymnasium as gym
            >>> env = gym.make("CartPole-v1")
            >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
            >>> [field.name for field in spec.of_kind("action", "reward")]
            ['action', 'reward']
        """
        return tuple(field for field in self.fields if field.kind in kinds)

    @property
    def names(self) -> list[str]:
        """The fields' names in their stored order."""
        return [field.name for field in self.fields]

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row, uncompressed."""
        return sum(field.row_bytes for field in self.fields)

    @property
    def summary(self) -> str:
        """Names, dtypes and shapes of all fields, in one line.

        Example:
            >>> import gymnasium as gym
            >>> env = gym.make("CartPole-v1")
            >>> Spec.from_spaces(env.observation_space, env.action_space).summary
            'observation: float32 (4,); action: int64 (); reward: float64 ()'
        """
        return "; ".join(f"{each.name}: {each.dtype} {each.shape}" for each in self.fields)

    def with_more(self, fields: Sequence[Field]) -> Spec:
        """The same fields and additional ones: ``info/...`` and ``extra/...``."""
        return replace(self, fields=(*self.fields, *fields))

    def with_codecs(self, codecs: Mapping[str, Codec]) -> Spec:
        """The same fields, some of them with another codec.

        Args:
            codecs: Field name (or the first part of it, as in ``"observation"``) to codec.

        Raises:
            ValueError: No field has that name.

        Example:
            >>> import gymnasium as gym
            >>> env = gym.make("CartPole-v1")
            >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
            >>> spec.with_codecs({"observation": "zstd"})["observation"].codec
            'zstd'
        """
        parts = {part for field in self.fields for part in prefixes(field.name)}
        for name in codecs:
            if name not in parts:
                raise ValueError(
                    f"codecs names {name!r}, expected one of {', '.join(sorted(parts))}"
                )

        def codec_of(field: Field) -> Codec:
            chosen: list[Codec] = [codecs[part] for part in prefixes(field.name) if part in codecs]
            return chosen[-1] if chosen else field.codec

        return replace(
            self, fields=tuple(replace(field, codec=codec_of(field)) for field in self.fields)
        )

    def difference(self, other: Spec) -> str | None:
        """A description of the first difference from ``other``; None if the two are equal."""
        mine = {field.name: field for field in self.fields}
        theirs = {field.name: field for field in other.fields}
        for name in [*mine, *theirs]:
            if name not in theirs:
                return f"field {name!r} is missing"
            if name not in mine:
                return f"field {name!r} is not in the store"
            if mine[name] != theirs[name]:
                return f"field {name!r} was ({mine[name]}), is ({theirs[name]})"
        if list(mine) != list(theirs):
            return f"the order of the fields was {', '.join(mine)}, is {', '.join(theirs)}"
        for name in ("observation", "action"):
            was, new = getattr(self, name), getattr(other, name)
            if was != new:
                return f"the structure of the {name} was {was!r}, is {new!r}"
        return None

    def to_json(self) -> dict[str, object]:
        """Plain data for a JSON file; `from_json` reads it."""
        return {
            "fields": [{**asdict(field), "shape": list(field.shape)} for field in self.fields],
            "observation": self.observation,
            "action": self.action,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Spec:
        """The Spec that `to_json` described; the data is checked.

        Raises:
            ValueError: The data describes no Spec.

        Example:
            >>> import gymnasium as gym
            >>> env = gym.make("CartPole-v1")
            >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
            >>> Spec.from_json(spec.to_json()) == spec
            True
        """
        entries = items(member(data, "fields"), "fields")
        fields = tuple(_field_from_json(mapping(each, "field")) for each in entries)
        layouts = (member(data, part) for part in ("observation", "action"))
        return cls(fields, *cast("Iterable[Layout]", layouts))


def kind_of(name: str) -> FieldKind:
    """The kind of the field with that name: the first part of the name."""
    return cast("FieldKind", name.partition("/")[0])


def key_of(name: str) -> str:
    """The name of a field without its kind; empty if the kind is the whole name."""
    return name.partition("/")[2]


def as_written(spec: Spec) -> Spec:
    """The same fields with codecs that are written: what is read only becomes patches."""
    changed: dict[str, Codec] = {
        field.name: "patch" if field.row_bytes <= PATCHED_BYTES else "zstd"
        for field in spec.fields
        if field.codec == "delta"
    }
    return spec.with_codecs(changed)


def check_codecs(codecs: object) -> None:
    """Refuse codecs by field name, for `Spec.with_codecs`, that are invalid for any Spec."""
    if not isinstance(codecs, Mapping):
        raise TypeError(f"codecs: expected codecs by field name, got {codecs!r}")
    for name, codec in codecs.items():
        check_choice(f"codec of field {name!r}", codec, _CODECS)
        if codec == "delta":
            raise ValueError(
                f"codec of field {name!r}: delta is read, but no longer written; choose patch, "
                f"which is smaller and drawn from faster"
            )


def flatten(layout: Layout, value: object) -> Iterator[tuple[str, object]]:
    """Pairs of field name and leaf of a nested value, in the layout's order."""
    if isinstance(layout, str):
        yield layout, value
    elif isinstance(layout, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(layout):
            raise ValueError(f"expected a dict with the keys {sorted(layout)}, got {_shape(value)}")
        for key, part in layout.items():
            yield from flatten(part, value[key])
    else:
        if not isinstance(value, (tuple, list)) or len(value) != len(layout):
            raise ValueError(f"expected a tuple of {len(layout)}, got {_shape(value)}")
        for part, item in zip(layout, value, strict=True):
            yield from flatten(part, item)


def as_array(value: Any) -> np.ndarray:
    """A tensor of any device, with or without a graph, or another object, as an array."""
    # NumPy has no bfloat16: these numbers become float32, which holds each of them.
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.asarray(value)
    # The name of a dtype takes microseconds; that of bfloat16 is none of NumPy's own kinds.
    is_bfloat16 = array.dtype.kind == "V" and array.dtype.name == "bfloat16"
    return array.astype(np.float32) if is_bfloat16 else array


def plain_array(name: str, value: object, refusal: type[Exception] = SpecMismatch) -> np.ndarray:
    """A value as an array, without the mask of a masked one, of which no entry may be masked."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise refusal(
            f"{name}: expected numbers, got a masked array with masked entries, which have no "
            f"values; give them values with filled()"
        )
    try:
        return as_array(value)
    except Exception as error:  # of any library whose object it is
        raise refusal(
            f"{name}: expected numbers, got a {type(value).__name__} that is no array of them "
            f"({error}); convert it first"
        ) from None


def exact_rewards(rewards: np.ndarray, where: str = "reward") -> np.ndarray:
    """Rewards as float64, which must hold them exactly where they are whole numbers."""
    if rewards.dtype.kind not in "iu" or rewards.dtype.itemsize < 8:
        return rewards.astype(np.float64, copy=False)
    try:
        return exactly(rewards, np.dtype(np.float64), rewards.shape, where)
    except ValueError as error:
        raise SpecMismatch(str(error)) from None


def marks(name: str, flags: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Flags of that shape as bools: True or False, also as 1 or 0."""
    if flags.shape != shape:
        raise ValueError(f"{name}: expected one flag for each step, {shape}, got {flags.shape}")
    return exactly(flags, np.dtype(np.bool_), shape, name)


def unflatten(layout: Layout, leaves: Mapping[str, np.ndarray]) -> Tree:
    """The nested value made of leaves by field name."""
    if isinstance(layout, str):
        return leaves[layout]
    if isinstance(layout, Mapping):
        return {key: unflatten(part, leaves) for key, part in layout.items()}
    return tuple(unflatten(part, leaves) for part in layout)


def field_of(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """A field of that dtype and shape, with the default codec."""
    return Field(name, dtype.name, shape, default_codec(dtype, shape))


def default_codec(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Codec:
    """The codec for a dtype and shape: patch for images, narrow for integers, raw for floats."""
    row_bytes = math.prod(shape) * dtype.itemsize
    if dtype.itemsize == 1 and row_bytes >= IMAGE_BYTES:
        return "patch" if row_bytes <= PATCHED_BYTES else "zstd"
    return "narrow" if dtype.kind in "iub" else "raw"


def _layout_of(
    name: str,  # of the field, or of its parts
    space: spaces.Space[object],
    fields: list[Field],  # those so far
    *,
    is_padded: bool = False,  # the arrays have padding, which costs nothing when it is compressed
) -> Layout:
    """Append the fields of a space, and return the structure of its values."""
    if isinstance(space, spaces.Dict):
        other = [key for key in space.spaces if not isinstance(cast("object", key), str)]
        if other:
            raise TypeError(f"{name} space: expected keys that are text, got {other[0]!r}")
        is_padded |= hasattr(space, "original")  # a FixedSpace
        return {
            key: _layout_of(f"{name}/{key}", part, fields, is_padded=is_padded)
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return [
            _layout_of(f"{name}/{place}", part, fields, is_padded=is_padded)
            for place, part in enumerate(space.spaces)
        ]
    known = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(space, known):
        from .open_spaces import fixed_space  # few envs have such spaces

        return _layout_of(name, fixed_space(space, name), fields)
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())
    field = field_of(name, dtype, shape)
    fields.append(replace(field, codec="zstd") if is_padded and shape else field)
    return name


def _unstack(fields: list[Field], k: int, padding: Literal["zero", "repeat"]) -> Field:
    """The field of one frame of a stacked observation."""
    shapes = [field.shape for field in fields]
    if len(fields) != 1 or len(shapes[0]) < 2 or shapes[0][0] != k:
        got = ", ".join(map(str, shapes)) or "none"
        raise ValueError(
            f"frame_stack={k}: expected one observation of shape ({k}, ...), got {got}; leave "
            f"frame_stack out"
        )
    stacked = fields[0]
    shape = stacked.shape[1:]
    codec = default_codec(stacked.numpy_dtype, shape)
    return replace(stacked, shape=shape, codec=codec, stack=k, stack_padding=padding)


def _field_from_json(data: Mapping[str, object]) -> Field:
    """The field that `Spec.to_json` described."""
    name = text(member(data, "name"), "name of a field")
    where = f"of field {name[:200]!r}"
    dtype, codec, padding = (
        text(member(data, key), f"{key} {where}") for key in ("dtype", "codec", "stack_padding")
    )
    shape = items(member(data, "shape"), f"shape {where}")
    lengths = (whole(length, f"shape {where}", 0, _MOST_ROW_BYTES) for length in shape)
    stack = member(data, "stack")
    if not _DTYPE_NAME.fullmatch(dtype):
        raise ValueError(f"dtype {where}: expected the name of a dtype, got {dtype[:60]!r}")
    try:
        return Field(
            name=name,
            dtype=dtype,
            shape=tuple(lengths),
            codec=cast("Codec", codec),
            stack=whole(stack, f"stack {where}", 1, _MOST_ROW_BYTES),
            stack_padding=cast("Literal['zero', 'repeat']", padding),
        )
    except TypeError as error:  # unknown to numpy, or not plain
        raise ValueError(f"dtype {where}: {error}") from error


def _check_layout(layout: object, where: str, names: set[str]) -> None:
    """Refuse a layout whose leaves are no names of fields of its kind."""
    if isinstance(layout, dict | list):
        parts = layout.values() if isinstance(layout, dict) else layout
        for part in cast("Iterable[object]", parts):
            _check_layout(part, where, names)
    elif not isinstance(layout, str) or layout not in names:
        known = ", ".join(sorted(names)) or f"none, as there is no field {where!r}"
        raise ValueError(
            f"{where}: expected names of fields, of {known[:200]}, got {str(layout)[:60]!r}"
        )


def prefixes(name: str) -> list[str]:
    """The prefixes of a name and the name itself: ``a``, ``a/b``, ``a/b/c``."""
    parts = name.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _shape(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {sorted(map(str, value))}"
    return f"a {type(value).__name__}" + (
        f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    )
