"""What memmap-replay-buffer was made with, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

__all__ = ["OriginalConfig", "OriginalField", "checked_config"]

_DTYPES: Final = {"int": "int32", "float": "float32", "bool": "bool", "uint8": "uint8"}
_MOST: Final = 2**31 - 1  # the original counts in int32
_KEYS: Final = ("max_episodes", "max_timesteps", "fields", "meta_fields", "circular")
_INTERNAL: Final = {"episode_lens": "int", "_initted": "bool"}


@dataclass(frozen=True, slots=True)
class OriginalField:
    """A declared field.

    Args:
        name: Its name.
        kind: ``"float"`` (float32), ``"int"`` (int32), ``"bool"`` or ``"uint8"``.
        shape: Shape of one step's value, or of an episode's.
        default: What stands where nothing was stored; None for 0.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    default: int | float | bool | None

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the stored values."""
        return np.dtype(_DTYPES[self.kind])

    @property
    def info(self) -> str | tuple[Any, ...]:
        """The field as it is declared: its type, type and shape, or type, shape and default value.

        The default is the one that was stored: 0, where that of an int was 0.5.

        Example:
            >>> OriginalField("level", "int", (2,), 0.5).info
            ('int', (2,), 0)
        """
        if self.default is None:
            return (self.kind, self.shape) if self.shape else self.kind
        stored = self.default
        if self.kind != "float":
            stored = np.asarray(self.default).astype(self.dtype).item()
        return self.kind, self.shape, stored


@dataclass(frozen=True, slots=True)
class OriginalConfig:
    """The arguments that a folder was made with.

    Args:
        max_episodes: Slots for episodes.
        max_timesteps: Steps of the longest episode.
        fields: What a step has.
        meta_fields: What an episode has, less what the original adds itself.
        circular: Whether the oldest episodes go when it is full.
    """

    max_episodes: int
    max_timesteps: int
    fields: tuple[OriginalField, ...]
    meta_fields: tuple[OriginalField, ...]
    circular: bool


def checked_config(what: str, config: object) -> OriginalConfig:
    """Check the values of a config.

    Args:
        what: What to call it in an error.
        config: The original's arguments, by name.

    Raises:
        ValueError: An argument is missing, unknown, or makes no sense.

    Example:
        >>> config = checked_config(
        ...     "config",
        ...     dict(
        ...         max_episodes=10,
        ...         max_timesteps=50,
        ...         fields=dict(state=("uint8", (2, 2)), reward="float"),
        ...         meta_fields={},
        ...         circular=False,
        ...     ),
        ... )
        >>> [(field.name, str(field.dtype), field.shape) for field in config.fields]
        [('state', 'uint8', (2, 2)), ('reward', 'float32', ())]
    """
    given = _texts(what, "the config", config)
    odd = sorted(given.keys() ^ set(_KEYS))
    if odd:
        problem = "none for" if odd[0] in _KEYS else "one for"
        raise ValueError(
            f"{what}: expected values for {', '.join(_KEYS)} alone, got {problem} {odd[0][:80]!r}; "
            f"Stepwell reads what memmap-replay-buffer 0.1 and 0.2 wrote"
        )
    if not isinstance(given["circular"], bool):
        raise ValueError(
            f"{what}: expected circular to be True or False, got {_kind(given['circular'])}; it is "
            f"not a config of memmap-replay-buffer"
        )
    fields = _fields(what, "fields", given["fields"])
    meta_fields = _fields(what, "meta_fields", given["meta_fields"])
    _check_names(what, fields, meta_fields)
    return OriginalConfig(
        _whole(what, "max_episodes", given["max_episodes"]),
        _whole(what, "max_timesteps", given["max_timesteps"]),
        fields,
        tuple(field for field in meta_fields if field.name not in _INTERNAL),
        given["circular"],
    )


def _texts(what: str, part: str, value: object) -> Mapping[str, object]:
    """A mapping whose keys are text."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, object]", value)
        if all(isinstance(key, str) for key in mapping):
            return mapping
    raise ValueError(
        f"{what}: expected {part} to be a dict whose keys are names, got {_kind(value)}; it is not "
        f"a config of memmap-replay-buffer"
    )


def _fields(what: str, part: str, value: object) -> tuple[OriginalField, ...]:
    return tuple(_field(what, part, name, info) for name, info in _texts(what, part, value).items())


def _field(what: str, part: str, name: str, info: object) -> OriginalField:
    items = list(cast("tuple[object, ...]", info)) if isinstance(info, tuple | list) else [info]
    kind, shape, default = [*items, *(None, (), None)[len(items) :]][:3]
    if isinstance(shape, int) and not isinstance(shape, bool):
        shape = (shape,)
    is_known = isinstance(kind, str) and kind in _DTYPES and 1 <= len(items) <= 3
    if not (is_known and _is_shape(shape) and isinstance(default, int | float | None)):
        raise ValueError(
            f"{what}: expected {part} to be declared by a type ({', '.join(_DTYPES)}), a shape of "
            f"whole numbers and a default number, got another declaration of {name[:80]!r}; it is "
            f"not a config of memmap-replay-buffer"
        )
    sizes = tuple(cast("tuple[int, ...]", shape))
    return OriginalField(name, cast("str", kind), sizes, default)


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, tuple | list) or len(shape) > 30:  # numpy has at most 64 axes
        return False
    sizes = cast("tuple[object, ...]", shape)
    return all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _MOST
        for size in sizes
    )


def _check_names(
    what: str, fields: tuple[OriginalField, ...], meta_fields: tuple[OriginalField, ...]
) -> None:
    """Refuse names that could be none of the original's, such as the path of another file."""
    strange = [field.name for field in fields if not field.name.isidentifier()]
    strange += [field.name for field in meta_fields if set(field.name) & set("/\\\0")]
    if strange or not fields:
        got = f"the name {strange[0][:80]!r}" if strange else "no field"
        raise ValueError(
            f"{what}: expected fields with names such as 'state', got {got}; it is not a config "
            f"of memmap-replay-buffer"
        )
    twice = {field.name for field in fields} & ({f.name for f in meta_fields} | set(_INTERNAL))
    if twice:
        raise ValueError(
            f"{what}: expected fields and meta_fields of different names, got {min(twice)!r} in "
            f"both; it is not a config of memmap-replay-buffer"
        )
    for field in meta_fields:
        if (field.kind, field.shape) != (_INTERNAL.get(field.name, field.kind), field.shape):
            raise ValueError(
                f"{what}: expected {field.name} to be {_INTERNAL[field.name]!r}, got "
                f"{field.kind!r}; the lengths of the episodes cannot be told"
            )


def _whole(what: str, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise ValueError(
            f"{what}: expected {name} to be a whole number from 1 to {_MOST}, got {_kind(value)}; "
            f"it is not a config of memmap-replay-buffer"
        )
    return value


def _kind(value: object) -> str:
    """A value in few characters, however deep or long it is."""
    if isinstance(value, int) and abs(value) > _MOST:
        return "a larger one" if value > 0 else "a smaller one"
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"{value[:40]!r}" if isinstance(value, str) else f"a {type(value).__name__}"
