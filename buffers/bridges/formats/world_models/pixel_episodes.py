"""Episodes of pictures and button presses as IRIS and DIAMOND keep them: T of everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from stepwell.buffers.bridges.formats.record import rebuilt
from stepwell.buffers.bridges.formats.rounding import Rounding
from stepwell.buffers.curation.step_columns import joined, split
from stepwell.buffers.dropin.transition_writer import OBSERVED
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.spec import Field, Spec

__all__ = [
    "Channels",
    "ForeignPixels",
    "PixelColumns",
    "PixelImport",
    "PixelSteps",
    "channels_of",
    "frame_of",
    "from_channels_first",
    "to_channels_first",
]

Channels = Literal["first", "last"]
_FEW = (1, 3, 4)  # channels that pictures have


@dataclass(frozen=True, slots=True)
class PixelImport:
    """Options for reading such files; a data set that Stepwell wrote needs none.

    Args:
        channels: Where the channels of the pictures go: last, as Gymnasium has them, or first.
    """

    channels: Channels = "last"


class PixelSteps(NamedTuple):
    """T steps of an episode.

    Args:
        observations: uint8 [T, C, H, W].
        actions: int64 [T].
        rewards: float32 [T].
        final: uint8 [1, C, H, W]: what came with the last step; none, [0, C, H, W], where nobody
            knows.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    final: np.ndarray


def frame_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a picture, without the axis of one frame that envs have which could stack more.

    Example:
        >>> frame_of((1, 64, 64, 3)), frame_of((64, 64, 3))
        ((64, 64, 3), (64, 64, 3))
    """
    return shape[1:] if len(shape) == 4 and shape[0] == 1 else shape


def channels_of(shape: tuple[int, ...], wanted: Channels | None = None) -> Channels | None:
    """Where a picture's channels are; None where it is none, or has no axis for them.

    Args:
        shape: Shape of a frame.
        wanted: What the user says of frames of three axes.

    Example:
        >>> channels_of((64, 64, 3)), channels_of((3, 64, 64)), channels_of((84, 84))
        ('last', 'first', None)
    """
    shape = frame_of(shape)
    if len(shape) != 3:
        return None
    if wanted is not None:
        return wanted
    if shape[-1] in _FEW:
        return "last"
    return "first" if shape[0] in _FEW else None


def to_channels_first(frames: np.ndarray, channels: Channels | None) -> np.ndarray:
    """Frames [T, H, W], [T, H, W, C] or [T, C, H, W] as new memory [T, C, H, W].

    Args:
        frames: Pictures; each may have an axis of one frame in front.
        channels: Where their channels are.
    """
    frames = frames.reshape(len(frames), *frame_of(frames.shape[1:]))
    if channels is None:
        frames = frames[:, None]
    elif channels == "last":
        frames = np.moveaxis(frames, -1, 1)
    return np.array(frames, order="C")


def from_channels_first(
    frames: np.ndarray, channels: Channels | None, shape: tuple[int, ...]
) -> np.ndarray:
    """What `to_channels_first` was given.

    Args:
        frames: [T, C, H, W].
        channels: Where the channels go.
        shape: Of each frame, as it is to be.
    """
    if channels == "last":
        frames = np.moveaxis(frames, 1, -1)
    return np.ascontiguousarray(frames).reshape(len(frames), *shape)


class PixelColumns:
    """Takes episodes apart into what IRIS and DIAMOND keep and what goes beside, and joins them.

    Args:
        spec: The fields of every row.
        whose: Whose format it is: ``"IRIS"``.
        observation: Name of the field that is the picture, with or without ``observation/``; None
            where there is one field only.
        channels: Where a picture's channels are; None goes by the shape.

    Raises:
        ValueError: There is no picture, or actions are not those of a Discrete space.
    """

    def __init__(
        self, spec: Spec, whose: str, observation: str | None, channels: Channels | None
    ) -> None:
        self._spec = spec
        self._whose = whose
        self.picture = _picture(spec, whose, observation)
        self.channels: Channels | None = _checked_channels(self.picture, whose, channels)
        self._action = _button(spec, whose)
        self._rounding = Rounding()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a picture."""
        shape = frame_of(self.picture.shape)
        if len(shape) == 2:
            return (1, shape[0], shape[1])
        order = (2, 0, 1) if self.channels == "last" else (0, 1, 2)
        return (shape[order[0]], shape[order[1]], shape[order[2]])

    def notes(self, usual: tuple[int, int, int]) -> list[str]:
        """What to know of the pictures, and of what went beside.

        Args:
            usual: (C, H, W) that the format's own settings expect.
        """
        field, found = self.picture, list(self._rounding.notes)
        if self.shape != usual:
            found.append(
                f"pictures are {self.shape} (C, H, W), {self._whose}'s own settings expect {usual}"
            )
        if field.stack > 1:
            found.append(
                f"{field.name} is written as single frames, not as stacks of {field.stack}"
            )
        others = [name for name in self._beside() if name != "reward"]
        if others:
            found.append(f"{self._whose} has no place for {', '.join(others)}: kept beside")
        return found

    def steps_of(self, episode: Episode) -> tuple[PixelSteps, dict[str, np.ndarray]]:
        """What to write, and what goes beside.

        Raises:
            ValueError: An action is below 0.
        """
        columns = split(episode)
        actions = columns.action[self._action.name].astype(np.int64)
        if len(actions) and actions.min() < 0:
            raise ValueError(
                f"episode {episode.id}: expected actions that count from 0, got {actions.min()}; "
                f"{self._whose} looks each up in a table: number them from 0"
            )
        rewards, exact = self._rounding.float32("reward", columns.reward)
        pictures = columns.observation[self.picture.name]
        others = {**columns.observation, **columns.info, **columns.extra}
        beside = {
            "final": pictures[-1:],
            **{f"edge/{name}": row for name, row in columns.edges.items()},
            **{f"column/{name}": others[name] for name in self._beside()},
        }
        if exact is not None:
            beside["column/reward"] = exact
        frames = to_channels_first(pictures, self.channels)
        return PixelSteps(frames[:-1], actions, rewards, frames[-1:]), beside

    def episode(
        self,
        number: int,
        steps: PixelSteps | None,
        facts: Mapping[str, Any],
        beside: Mapping[str, np.ndarray],
    ) -> Episode:
        """The episode that was taken apart.

        Args:
            number: Its place in the data set.
            steps: What was written; None of an episode without a step.
            facts: What `Beside` kept.
            beside: What `steps_of` had put beside.

        Raises:
            ValueError: They do not belong together.
        """
        count = facts["rows"] - 1
        if steps is None:
            empty = np.zeros((0, *self.shape), np.uint8)
            steps = PixelSteps(empty, np.zeros(0, np.int64), np.zeros(0, np.float32), empty)
        shape = (count, *self.shape)
        if steps.observations.shape != shape:
            raise ValueError(
                f"episode {number}: expected pictures of shape {shape}, as they were exported, got "
                f"{steps.observations.shape}; remove Stepwell's record of it to read what is there"
            )
        pictures = from_channels_first(steps.observations, self.channels, self.picture.shape)
        columns = _below("column/", beside)
        columns.setdefault("reward", steps.rewards.astype(np.float64))
        columns[self._action.name] = steps.actions.astype(self._action.numpy_dtype)
        if "final" in beside:
            columns[self.picture.name] = np.concatenate([pictures, beside["final"]])
        missing = [field.name for field in self._spec.fields if field.name not in columns]
        if missing:
            raise ValueError(f"episode {number}: expected {missing[0]!r} beside it, got none")
        rows = joined(self._spec, columns, _below("edge/", beside))
        return rebuilt(self._spec, number, rows, facts)

    def _beside(self) -> list[str]:
        """Names of the fields for which there is no place."""
        taken = (self.picture.name, self._action.name, "reward")
        return [name for name in self._spec.names if name not in taken]


class ForeignPixels:
    """Makes episodes of files that Stepwell did not write.

    What an episode ended with is not always there: then the observation before stands in its
    place, and ``info/observed`` is False there.

    Args:
        shape: (C, H, W) of a picture.
        channels: Where the channels are to be.
    """

    def __init__(self, shape: tuple[int, ...], channels: Channels) -> None:
        self._channels: Channels = channels
        self._shape = shape
        c, h, w = shape
        frame = (h, w, c) if channels == "last" else (c, h, w)
        fields = (
            Field("observation", "uint8", frame, "zstd"),
            Field("action", "int64", (), "narrow"),
            Field("reward", "float64", (), "narrow"),
            OBSERVED,
        )
        self.spec = Spec(fields, "observation", "action")
        self.unobserved = 0

    def episode(self, number: int, steps: PixelSteps, end: End, where: object) -> Episode:
        """An episode of at least one step.

        Raises:
            ValueError: Its pictures have another shape than those before.
        """
        if steps.observations.shape[1:] != self._shape:
            raise ValueError(
                f"{where}: expected pictures of shape {self._shape}, as in the first file, got "
                f"{steps.observations.shape[1:]}; import it by itself"
            )
        is_observed = len(steps.final) > 0
        self.unobserved += not is_observed
        last = steps.final if is_observed else steps.observations[-1:]
        frames = np.concatenate([steps.observations, last])
        observed = np.ones(len(frames), np.bool_)
        observed[-1] = is_observed
        columns = {
            "observation": from_channels_first(
                frames, self._channels, self.spec["observation"].shape
            ),
            "action": steps.actions,
            "reward": steps.rewards.astype(np.float64),
            OBSERVED.name: observed,
        }
        return Episode(self.spec, number, 0, 0, end, joined(self.spec, columns, {}), {})


def _picture(spec: Spec, whose: str, observation: str | None) -> Field:
    """The field that is the picture.

    Raises:
        ValueError: There is none, or there are several.
    """
    fields = [field for field in spec.fields if field.name.split("/")[0] == "observation"]
    if observation is not None:
        names = (observation, f"observation/{observation}")
        fields = [field for field in fields if field.name in names]
    if len(fields) != 1:
        known = ", ".join(n for n in spec.names if n.split("/")[0] == "observation")
        got = "several" if observation is None else repr(observation)
        raise ValueError(
            f"{whose} keeps one picture a step: expected the name of one of {known}, got {got}; "
            f"give option observation"
        )
    field = fields[0]
    if field.dtype != "uint8" or len(frame_of(field.shape)) not in (2, 3):
        raise ValueError(
            f"{whose} keeps pictures: expected {field.name!r} as uint8 (H, W, C) or (H, W), got "
            f"{field.dtype} {field.shape}; choose another with option observation, or record frames"
        )
    return field


def _checked_channels(field: Field, whose: str, wanted: Channels | None) -> Channels | None:
    """Where the channels are.

    Raises:
        ValueError: Nobody can tell.
    """
    found = channels_of(field.shape, wanted)
    if found is None and len(frame_of(field.shape)) == 3:
        raise ValueError(
            f"{whose} keeps pictures: expected {field.name!r} with {', '.join(map(str, _FEW))} "
            f"channels, got {field.shape}; say with option channels whether they are first or last"
        )
    return found


def _button(spec: Spec, whose: str) -> Field:
    """The action's field.

    Raises:
        ValueError: The action space is not Discrete.
    """
    fields = [field for field in spec.fields if field.name.split("/")[0] == "action"]
    field = fields[0]
    is_whole = np.can_cast(field.numpy_dtype, np.int64, "safe") and field.dtype != "bool"
    if len(fields) > 1 or field.shape or not is_whole:
        got = ", ".join(f"{field.name}: {field.dtype} {field.shape}" for field in fields)
        raise ValueError(
            f"{whose} knows Discrete actions alone: expected one whole number a step, got {got}; "
            f"number the combinations that you need with an action wrapper"
        )
    return field


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
