"""Which array of DreamerV3's a field of ours is, and in which dtype and shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepwell.buffers.bridges.formats.rounding import Rounding
from stepwell.buffers.bridges.formats.world_models.pixel_episodes import (
    Channels,
    channels_of,
    frame_of,
    from_channels_first,
    to_channels_first,
)
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.spec import Field, Spec

__all__ = ["FLAGS", "Key", "Keys"]

FLAGS = ("is_first", "is_last", "is_terminal")
_TAKEN = ("reward", *FLAGS, "stepid", "consec", "reset", "priority")
_PREFIXES = ("log", "enc", "dyn", "dec")
_WIDE = ("int64", "uint32", "uint64")  # numbers as DreamerV3 has them are int32


@dataclass(frozen=True, slots=True)
class Key:
    """An array of a chunk, and the field that it is.

    Args:
        name: Its name in the chunk.
        field: The field.
        is_picture: It is [T, H, W, C] there, whatever it is here.
        channels: Where the field's channels are; None where it has no axis for them.
    """

    name: str
    field: Field
    is_picture: bool = False
    channels: Channels | None = None

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Its dtype in the chunk."""
        if self.field.dtype in _WIDE:
            return np.dtype(np.int32)
        return np.dtype(np.float32) if self.field.dtype == "float64" else self.field.numpy_dtype

    def to_chunk(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the shape that they have in the chunk."""
        if not self.is_picture:
            return rows
        return np.moveaxis(to_channels_first(rows, self.channels), 1, -1)

    def from_chunk(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the shape that the field has."""
        if not self.is_picture:
            return rows
        return from_channels_first(np.moveaxis(rows, -1, 1), self.channels, self.field.shape)


class Keys:
    """StepLoop episodes into rows of chunks, and back.

    Args:
        spec: The fields of every row.
        observation: The array's name where the observation is no Dict; None: ``image`` for
            pictures, else ``vector``.
        channels: Where the channels of pictures are; None goes by the shape.

    Raises:
        ValueError: DreamerV3 uses a name for something else.
    """

    def __init__(self, spec: Spec, observation: str | None, channels: Channels | None) -> None:
        self._spec = spec
        self._rounding = Rounding()
        if observation is not None and not isinstance(spec.observation, str):
            raise ValueError(
                f"option observation: expected none, as the parts of this observation have names, "
                f"got {observation!r}; leave it out"
            )
        observed = [_observed(field, observation, channels) for field in _of(spec, "observation")]
        self._acted = [Key(_name(f, "action"), f) for f in _of(spec, "action")]
        self._keys = [*observed, *self._acted]
        names = [key.name for key in self._keys]
        for name in names:
            if name in _TAKEN or name.split("/")[0] in _PREFIXES or names.count(name) > 1:
                raise ValueError(
                    f"DreamerV3 keeps observations and actions by their keys: expected keys apart "
                    f"from {', '.join(_TAKEN)} and {', '.join(p + '/' for p in _PREFIXES)}, each "
                    f"once, got {name!r}; rename it with a wrapper, or give option observation"
                )

    @property
    def notes(self) -> list[str]:
        """What is not as it was, and what went beside."""
        found = list(self._rounding.notes)
        for key in self._keys:
            field = key.field
            if key.is_picture and (key.channels != "last" or len(field.shape) != 3):
                found.append(f"{field.name} {field.shape} is written as (H, W, C)")
            if key.dtype != field.numpy_dtype and field.dtype != "float64":
                found.append(f"{field.name} is written as {key.dtype}, exactly")
            if field.stack > 1:
                found.append(
                    f"{field.name} is written as single frames, not as stacks of {field.stack}"
                )
        others = self._beside()
        if others:
            found.append(
                f"DreamerV3 refuses arrays that it does not know: {', '.join(others)} "
                f"{'is' if len(others) == 1 else 'are'} kept beside"
            )
        return found

    def rows_of(self, episode: Episode) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Rows [T, ...] as chunks have them, and what goes beside.

        Raises:
            ValueError: A number is too large, or an action is below 0.
        """
        rows: dict[str, np.ndarray] = {}
        beside = {name: episode.fields[name] for name in self._beside()}
        for key in self._keys:
            rows[key.name], exact = self._converted(key, episode)
            if exact is not None:
                beside[key.field.name] = exact
        rows["reward"], exact = self._rounding.float32("reward", episode.reward)
        if exact is not None:
            beside["reward"] = exact
        flags = np.zeros((3, episode.rows), np.bool_)
        # An episode that lost its beginning is no part of the one before it.
        flags[0, 0] = True
        flags[1, -1] = episode.end.is_final
        flags[2, -1] = bool(episode.end & End.TERMINATED)
        return {**rows, **dict(zip(FLAGS, flags, strict=True))}, beside

    def fields_of(
        self, rows: Mapping[str, np.ndarray], beside: Mapping[str, np.ndarray], number: int
    ) -> dict[str, np.ndarray]:
        """All fields of an episode.

        Raises:
            ValueError: Some are missing, or have another dtype.
        """
        fields = dict(beside)
        for key in [*self._keys, Key("reward", self._spec["reward"])]:
            if key.field.name in fields:
                continue
            found = rows.get(key.name)
            if found is None or found.dtype != key.dtype:
                got = "none" if found is None else str(found.dtype)
                raise ValueError(
                    f"episode {number}: expected {key.name!r} as {key.dtype}, as it was exported, "
                    f"got {got}; remove Stepwell's record of it to read what is there"
                )
            fields[key.field.name] = key.from_chunk(found).astype(key.field.numpy_dtype)
        return fields

    def _converted(self, key: Key, episode: Episode) -> tuple[np.ndarray, np.ndarray | None]:
        """A field's rows as the chunk has them, and what they are exactly if that differs."""
        rows = episode.fields[key.field.name]
        if key in self._acted and rows.dtype.kind in "iu" and rows.min() < 0:
            raise ValueError(
                f"episode {episode.id}: expected {key.field.name!r} to count from 0, got "
                f"{rows.min()}; DreamerV3 makes one-hot vectors of them: number them from 0"
            )
        if rows.dtype == np.float64:
            return self._rounding.float32(key.field.name, rows)
        if rows.dtype != key.dtype and rows.size:
            low, high = int(rows.min()), int(rows.max())
            if low < -(2**31) or high >= 2**31:
                raise ValueError(
                    f"episode {episode.id}: expected {key.field.name!r} to fit into int32, as "
                    f"DreamerV3 has whole numbers, got {low} to {high}; make floats of them"
                )
        return key.to_chunk(rows).astype(key.dtype, copy=False), None

    def _beside(self) -> list[str]:
        """Names of the fields that no array is for."""
        return [name for name in self._spec.names if name.split("/")[0] in ("info", "extra")]


def _of(spec: Spec, part: str) -> list[Field]:
    return [field for field in spec.fields if field.name.split("/")[0] == part]


def _name(field: Field, alone: str) -> str:
    """The key of a Dict space's part, or what the only part is called."""
    _, slash, rest = field.name.partition("/")
    return rest if slash else alone


def _observed(field: Field, wanted: str | None, channels: Channels | None) -> Key:
    """The array that an observation is."""
    is_picture = field.dtype == "uint8" and len(frame_of(field.shape)) in (2, 3)
    name = _name(field, wanted or ("image" if is_picture else "vector"))
    if not is_picture:
        return Key(name, field)
    found = channels_of(field.shape, channels)
    # Of other shapes nobody knows; whatever stands last then counts as channels.
    return Key(name, field, True, found if len(frame_of(field.shape)) == 2 else found or "last")
