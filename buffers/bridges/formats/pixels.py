"""Episodes of pictures and discrete actions, as IRIS and DIAMOND keep them in files of PyTorch's.

An episode of T steps has T rows of each array, pictures with their channels first.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np

from stepwell.buffers.bridges.formats.format import Source
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.episode_buffer import OBSERVED
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.optional_libraries import load_library
from stepwell.buffers.spec import Field, Spec
from stepwell.buffers.step_columns import joined, split

__all__ = [
    "Channels",
    "PixelImport",
    "PixelReader",
    "PixelSink",
    "PixelSteps",
    "PixelWriter",
    "Rounding",
    "arrays_of",
    "channels_of",
    "check_gapless",
    "ended_by",
    "frame_of",
    "is_number",
    "load_tensors",
    "save_tensors",
    "to_channels_first",
    "torch_for",
]

Channels = Literal["first", "last"]
_FEW = (1, 3, 4)  # numbers of channels of pictures
_PICKLE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class PixelImport:
    """Options for reading the files.

    Args:
        channels: Position of the pictures' channels: last, as in Gymnasium, or first.
    """

    channels: Channels = "last"


class PixelSteps(NamedTuple):
    """T steps of an episode.

    Args:
        observations: uint8 [T, C, H, W].
        actions: int64 [T].
        rewards: float32 [T].
        final: uint8 [1, C, H, W]: what came with the last step; none, [0, C, H, W], if it is
            unknown.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    final: np.ndarray


def frame_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a picture, without the axis of a frame stack of length 1.

    Example:
        >>> frame_of((1, 64, 64, 3)), frame_of((64, 64, 3))
        ((64, 64, 3), (64, 64, 3))
    """
    return shape[1:] if len(shape) == 4 and shape[0] == 1 else shape


def channels_of(shape: tuple[int, ...], wanted: Channels | None = None) -> Channels | None:
    """The place of a picture's channels; None if it is not a picture, or has no axis for them.

    Args:
        shape: Shape of a frame.
        wanted: The position given by the user, for frames with three axes.

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
        channels: Position of their channels.
    """
    frames = frames.reshape(len(frames), *frame_of(frames.shape[1:]))
    if channels is None:
        frames = frames[:, None]
    elif channels == "last":
        frames = np.moveaxis(frames, -1, 1)
    return np.array(frames, order="C")


class PixelReader:
    """Reads numbered files, an episode of at least one step each; see `Reader`.

    The final observation of an episode may be missing: then the observation before is repeated,
    and ``info/observed`` is False there.

    Args:
        numbers: Numbers of the files, in order.
        load: Returns the steps of a file, their `End`, and the file itself.
        channels: Position of the channels in the result.
        notes: Returns the facts that the data set does not hold, one clause each, from the number
            of episodes without a final observation that were read.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        load: Callable[[int], tuple[PixelSteps, End, Path]],
        channels: Channels,
        notes: Callable[[int], Sequence[str]],
    ) -> None:
        self._numbers = numbers
        self._load = load
        self._channels: Channels = channels
        self._notes = notes
        first, _, _ = load(numbers[0])
        self._shape = first.observations.shape[1:]
        c, h, w = self._shape
        frame = (h, w, c) if channels == "last" else (c, h, w)
        fields = (
            Field("observation", "uint8", frame, "zstd"),
            Field("action", "int64", (), "narrow"),
            Field("reward", "float64", (), "narrow"),
            OBSERVED,
        )
        self.spec = Spec(fields, "observation", "action")
        self.sessions: Sequence[Mapping[str, object]] = ()
        self.episodes: int | None = len(numbers)
        self.steps: int | None = None
        self._unobserved = 0

    @property
    def notes(self) -> Sequence[str]:
        """Facts that the data set does not hold, one clause each."""
        return self._notes(self._unobserved)

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order of their numbers.

        Raises:
            ValueError: Pictures have another shape than those before.
        """
        for place, number in enumerate(self._numbers):
            steps, end, file = self._load(number)
            shape = steps.observations.shape[1:]
            if shape != self._shape:
                raise ValueError(
                    f"{file}: expected pictures of shape {self._shape}, as in the first file, got "
                    f"{shape}; import it separately"
                )
            is_observed = len(steps.final) > 0
            self._unobserved += not is_observed
            last = steps.final if is_observed else steps.observations[-1:]
            frames = np.concatenate([steps.observations, last])
            if self._channels == "last":
                frames = np.ascontiguousarray(np.moveaxis(frames, 1, -1))
            observed = np.ones(len(frames), np.bool_)
            observed[-1] = is_observed
            columns = {
                "observation": frames,
                "action": steps.actions,
                "reward": steps.rewards.astype(np.float64),
                OBSERVED.name: observed,
            }
            yield Episode(self.spec, place, 0, 0, end, joined(self.spec, columns), {})

    def close(self) -> None:
        """Do nothing: no file stays open between episodes."""


def _picture(spec: Spec, library: str, observation: str | None) -> Field:
    """The field that is the picture.

    Raises:
        ValueError: There is no picture, or there are several.
    """
    fields = spec.of_kind("observation")
    if observation is not None:
        names = (observation, f"observation/{observation}")
        fields = tuple(field for field in fields if field.name in names)
    if len(fields) != 1:
        known = ", ".join(field.name for field in spec.of_kind("observation"))
        got = "several" if observation is None else repr(observation)
        raise ValueError(
            f"{library} keeps one picture a step: expected the name of one of {known}, got {got}; "
            f"give option observation"
        )
    field = fields[0]
    if field.dtype != "uint8" or len(frame_of(field.shape)) not in (2, 3):
        raise ValueError(
            f"{library} keeps pictures: expected {field.name!r} as uint8 (H, W, C) or (H, W), got "
            f"{field.dtype} {field.shape}; choose another with option observation, or record frames"
        )
    return field


def _checked_channels(field: Field, library: str, wanted: Channels | None) -> Channels | None:
    """The place of the channels.

    Raises:
        ValueError: The position is ambiguous.
    """
    found = channels_of(field.shape, wanted)
    if found is None and len(frame_of(field.shape)) == 3:
        raise ValueError(
            f"{library} keeps pictures: expected {field.name!r} with {', '.join(map(str, _FEW))} "
            f"channels, got {field.shape}; say with option channels whether they are first or last"
        )
    return found


def _discrete_action(spec: Spec, library: str) -> Field:
    """The action's field.

    Raises:
        ValueError: The action space is not Discrete.
    """
    fields = spec.of_kind("action")
    field = fields[0]
    is_whole = np.can_cast(field.numpy_dtype, np.int64, "safe") and field.dtype != "bool"
    if len(fields) > 1 or field.shape or not is_whole:
        got = ", ".join(f"{field.name}: {field.dtype} {field.shape}" for field in fields)
        raise ValueError(
            f"{library} supports Discrete actions only: expected one whole number a step, got "
            f"{got}; number the combinations that you need with an action wrapper"
        )
    return field


class PixelSink(Protocol):
    """Writes the steps of episodes to files."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user of the data set, one clause each."""
        ...

    def begin(self, path: Path) -> None:
        """Begin writing into an empty folder."""
        ...

    def save(self, number: int, steps: PixelSteps, end: End) -> None:
        """Write an episode of one step or more.

        Args:
            number: Index of the episode.
            steps: Its steps.
            end: Its `End`.
        """
        ...

    def finish(self) -> None:
        """Write the remaining rows."""
        ...


class PixelWriter:
    """Writes episodes to a sink.

    Args:
        source: The episodes to write.
        library: Name of the format's library: ``"IRIS"``.
        observation: Name of the field that is the picture, with or without ``observation/``; None
            where there is one field only.
        channels: Position of a picture's channels; None: inferred from the shape.
        usual: (C, H, W) that the format's own settings expect.
        sink: Receives the episodes.

    Raises:
        ValueError: There is no picture, or actions are not those of a Discrete space.
    """

    def __init__(
        self,
        source: Source,
        library: str,
        observation: str | None,
        channels: Channels | None,
        usual: tuple[int, int, int],
        sink: PixelSink,
    ) -> None:
        self._spec = source.spec
        self._library = library
        self._picture = _picture(source.spec, library, observation)
        self._channels: Channels | None = _checked_channels(self._picture, library, channels)
        self._action = _discrete_action(source.spec, library)
        self._usual = usual
        self._sink = sink
        self._rounding = Rounding()
        self._saved = self._stepless = 0

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user of the data set, one clause each."""
        field, found = self._picture, [*self._sink.notes, *self._rounding.notes]
        shape = frame_of(field.shape)
        if len(shape) == 2:
            shape = (1, *shape)
        elif self._channels == "last":
            shape = (shape[2], *shape[:2])
        if shape != self._usual:
            found.append(
                f"pictures are {shape} (C, H, W), {self._library}'s settings expect {self._usual}"
            )
        if field.stack > 1:
            found.append(
                f"{field.name} is written as single frames, not as stacks of {field.stack}"
            )
        used = (field.name, self._action.name, "reward")
        others = [name for name in self._spec.names if name not in used]
        if others:
            found.append(f"{self._library} has no place for {', '.join(others)}: left out")
        if self._stepless:
            found.append(f"{self._stepless:,} episodes without a step are left out")
        return found

    def begin(self, path: Path) -> None:
        """Create the folders."""
        self._sink.begin(path)

    def write(self, episode: Episode) -> None:
        """Write an episode.

        Raises:
            ValueError: An action is below 0.
        """
        if not episode.steps:
            self._stepless += 1
            return
        columns = split(episode)
        actions = columns[self._action.name].astype(np.int64)
        if actions.min() < 0:
            raise ValueError(
                f"episode {episode.id}: expected actions that count from 0, got {actions.min()}; "
                f"{self._library} looks each up in a table: number them from 0"
            )
        rewards = self._rounding.float32("reward", columns["reward"])
        frames = to_channels_first(columns[self._picture.name], self._channels)
        steps = PixelSteps(frames[:-1], actions, rewards, frames[-1:])
        self._sink.save(self._saved, steps, episode.end)
        self._saved += 1

    def finish(self) -> None:
        """Write the remaining rows."""
        self._sink.finish()

    def close(self) -> None:
        """Do nothing: no file stays open between episodes."""


class Rounding:
    """Rounds columns to float32, and keeps the largest error of each.

    Example:
        >>> rounding = Rounding()
        >>> rounding.float32("reward", np.array([0.5, 0.1]))
        array([0.5, 0.1], dtype=float32)
        >>> rounding.notes
        ['reward is rounded to float32, by 1.5e-09 at most']
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}

    @property
    def notes(self) -> list[str]:
        """A clause for each column that float32 did not hold exactly."""
        return [
            f"{name} is rounded to float32, by {largest:.2g} at most"
            for name, largest in self._largest.items()
        ]

    def float32(self, name: str, column: np.ndarray) -> np.ndarray:
        """The column in float32.

        Args:
            name: The field's name.
            column: [T, ...] of any floats.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = column.astype(np.float32)
            back = rounded.astype(column.dtype)
            if back.tobytes() == np.ascontiguousarray(column).tobytes():
                return rounded
            off = np.abs(back - column)
        largest = float(np.max(off, initial=0.0, where=~np.isnan(off)))
        self._largest[name] = max(self._largest.get(name, 0.0), largest)
        return rounded


def torch_for(library: str) -> ModuleType:
    """PyTorch.

    Raises:
        ImportError: It is not installed.
    """
    return load_library("torch", f"{library}'s format", install="'stepwell[torch]'")


def load_tensors(torch: Any, given: GivenFiles, file: Path) -> dict[Any, Any]:
    """Load a dict that ``torch.save`` wrote; only tensors and plain values are unpickled.

    Args:
        torch: The library.
        given: The data set.
        file: The file.

    Raises:
        ValueError: It holds something else, is damaged, or too large.
    """
    _check_archive(given, file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zipfile's, torch's: they have no closer class in common
        raise ValueError(
            f"{file}: expected a dict of tensors as torch.save writes it, got another file, one "
            f"with objects in it, or a damaged one ({type(error).__name__}); fix or remove it"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected a dict of tensors, got a {type(found).__name__}")
    return found


def save_tensors(torch: Any, value: Mapping[str, Any], file: Path) -> None:
    """Write what `load_tensors` reads.

    On a full disk PyTorch's own writer reports only a wrong position in the file.

    Raises:
        OSError: It cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer)
    with file.open("xb") as opened:
        opened.write(buffer.getbuffer())


def _check_archive(given: GivenFiles, file: Path) -> None:
    """Raise unless the file is an archive of records, as written since PyTorch 1.6.

    Older files are a sequence of pickles, which can request any amount of memory.

    Raises:
        ValueError: It is something else, or unpacks to too much.
    """
    try:
        with zipfile.ZipFile(given.file(file)) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
        raise ValueError(
            f"{file}: expected a dict of tensors as torch.save writes it, got another file, or a "
            f"damaged one ({error}); fix or remove it"
        ) from error
    given.budget(file).take(sum(record.file_size for record in records))
    pickles = [r for r in records if r.filename.endswith("data.pkl")]
    if any(record.file_size > _PICKLE_BYTES for record in pickles):
        raise ValueError(
            f"{file}: expected tensors, got {pickles[0].file_size >> 20:,} MiB of plain values; "
            f"fix or remove it"
        )


def arrays_of(
    torch: Any, found: Mapping[Any, Any], dtypes: Mapping[str, str], file: Path
) -> dict[str, np.ndarray]:
    """Tensors of a file, checked.

    Args:
        torch: The library.
        found: The loaded dict.
        dtypes: The dtype of each tensor that must be there; the first is pictures
            [T, C, H, W], all others are [T].
        file: The file, for error messages.

    Raises:
        ValueError: One is missing, is not a tensor, or has another dtype, shape or length.
    """
    arrays: dict[str, np.ndarray] = {}
    steps = 0
    for name, dtype in dtypes.items():
        tensor: Any = found.get(name)
        if tensor is None or not isinstance(tensor, torch.Tensor):
            got = "none" if tensor is None else f"a {type(tensor).__name__}"
            raise ValueError(f"{file}: expected a tensor {name!r}, got {got}; fix or remove it")
        shape, kind = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        is_good = len(shape) == 4 if not arrays else shape == (steps,)
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.nbytes > tensor.untyped_storage().nbytes():  # one for many
            raise ValueError(
                f"{file}: expected {name!r} with all its numbers, got a tensor that has fewer; "
                f"fix or remove it"
            )
        if not is_good or kind != dtype:
            expected = "[T, C, H, W]" if not arrays else f"({steps},)"
            raise ValueError(
                f"{file}: expected {name!r} as {dtype} {expected}, got {kind} {shape}; repair or "
                f"remove it"
            )
        arrays[name] = tensor.detach().numpy()
        steps = shape[0]
    if not steps:
        raise ValueError(f"{file}: expected one step or more, got none; remove it")
    return arrays


def ended_by(flags: np.ndarray, name: str, file: Path) -> bool:
    """True if the last step has a flag.

    Raises:
        ValueError: Another one has it.
    """
    if flags[:-1].any():
        raise ValueError(
            f"{file}: expected {name!r} to be set in the last step alone, got it in step "
            f"{flags.argmax()} of {len(flags)}; write each episode to a separate file"
        )
    return bool(flags[-1])


def is_number(text: str) -> bool:
    """True if a file's name is the number of an episode, as these formats write it.

    Example:
        >>> is_number("17"), is_number("017"), is_number("\u0663")
        (True, False, False)
    """
    return text.isascii() and text.isdecimal() and text == str(int(text))


def check_gapless(numbers: Sequence[int], where: Path, *, first: int) -> None:
    """Raise if the numbers of episodes have a gap.

    Args:
        numbers: Numbers of the files, in order.
        where: Their folder.
        first: The number that is expected first.

    Raises:
        ValueError: One is.
    """
    for expected, number in enumerate(numbers, first):
        if expected != number:
            raise ValueError(
                f"{where}: expected episodes {first} to {numbers[-1]}, got none with the number "
                f"{expected}; put its file back, or renumber the later ones"
            )
