"""The data set of DIAMOND (Alonso et al., 2024): a file of tensors for each episode, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.format import Format, Reader, Source
from stepwell.buffers.bridges.formats.pixels import (
    Channels,
    PixelImport,
    PixelReader,
    PixelSteps,
    PixelWriter,
    arrays_of,
    check_gapless,
    ended_by,
    is_number,
    load_tensors,
    save_tensors,
    torch_for,
)
from stepwell.buffers.episode import End
from stepwell.buffers.given_files import GivenFiles

__all__ = ["DiamondExport", "DiamondFormat"]

_INFO: Final = "info.pt"
_FINAL: Final = "final_observation"
_DTYPES: Final = {
    "obs": "uint8",
    "act": "int64",
    "rew": "float32",
    "end": "uint8",
    "trunc": "uint8",
}
_USUAL: Final = (3, 64, 64)


@dataclass(frozen=True, slots=True)
class DiamondExport:
    """Options for writing DIAMOND's files.

    Args:
        observation: Key of the picture in a Dict observation.
        channels: Position of the channels of its pictures; none: inferred from the shape.
        static: Say in the data set that DIAMOND must not add to it.
    """

    observation: str | None = None
    channels: Channels | None = None
    static: bool = False


class DiamondFormat(Format):
    """``000/00/0/0.pt``, ``000/00/1/1.pt``, ... and ``info.pt``: T rows each, channels first.

    Each is a dict of ``obs`` uint8 [T, C, H, W], ``act`` int64 [T], ``rew`` float32 [T], ``end``
    and ``trunc`` uint8 [T], and ``info`` with the ``final_observation`` float32 [C, H, W] of -1 to
    1 where the env ended the episode. The folder is one data set: DIAMOND's ``static_dataset.path``
    is a folder that has one called ``train`` and one called ``test`` in it.
    """

    name = "diamond"
    about = "what DIAMOND, the diffusion world model, loads as its data set"
    install = "'stepwell[torch]'"
    export_options = DiamondExport
    import_options = PixelImport

    def writer(self, source: Source, options: DiamondExport) -> PixelWriter:
        """A writer of one folder."""
        return PixelWriter(
            source, "DIAMOND", options.observation, options.channels, _USUAL, _DiamondSink(options)
        )

    def reader(self, files: GivenFiles, options: PixelImport) -> Reader:
        """Open a folder that has ``info.pt`` in it."""
        if not files.path.is_dir():
            raise FileNotFoundError(f"{files.path}: expected a folder of DIAMOND's, got no folder")
        torch, folder = torch_for("DIAMOND"), files.path
        found = [file for file in folder.glob("*/*/*/*.pt") if is_number(file.stem)]
        numbers = _numbers(found, folder)
        counted = _counted(torch, files, folder / _INFO)
        if counted not in (None, len(numbers)):
            raise ValueError(
                f"{folder}: expected {counted:,} episodes, as {_INFO} says, got {len(numbers):,}; "
                f"put the missing files back, or remove {_INFO}"
            )

        def notes(unobserved: int) -> list[str]:
            found = ["streams and metadata are not recorded: all episodes are of stream 0"]
            if counted is None:
                found.append(
                    f"{_INFO} was not read: that no episode is missing at the end is not known"
                )
            if unobserved:
                found.append(
                    f"final observations of {unobserved:,} episodes are not recorded: the one "
                    f"before is repeated, and info/observed is False there"
                )
            return found

        def load(number: int) -> tuple[PixelSteps, End, Path]:
            return _load(torch, files, episode_file(folder, number))

        return PixelReader(numbers, load, options.channels, notes)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it among DIAMOND's sources."""
        return (
            "from data import Dataset  # in DIAMOND's src\n"
            f'dataset = Dataset("{path}")\n'
            "dataset.load_from_default_path()"
        )


def episode_file(folder: Path, number: int) -> Path:
    """The path at which DIAMOND keeps an episode.

    Example:
        >>> episode_file(Path("train"), 1234).as_posix()
        'train/200/30/4/1234.pt'
    """
    hundreds, tens, ones = number // 100 % 10, number // 10 % 10, number % 10
    return folder / f"{hundreds * 100:03d}" / f"{tens * 10:02d}" / str(ones) / f"{number}.pt"


class _DiamondSink:
    """Writes a file for each episode, and the counts at the end."""

    def __init__(self, options: DiamondExport) -> None:
        self._static = options.static
        self._torch: Any = torch_for("DIAMOND")
        self._path = Path()
        self._lengths: list[int] = []
        self._rewards: Counter[float] = Counter()
        self._ends: Counter[int] = Counter()
        self._cuts = 0

    @property
    def notes(self) -> Sequence[str]:
        if not self._cuts:
            return []
        return [
            f"{self._cuts:,} episodes were cut: `end` and `trunc` are all 0, and the final "
            f"observation is left out"
        ]

    def begin(self, path: Path) -> None:
        self._path = path

    def save(self, number: int, steps: PixelSteps, end: End) -> None:
        count = len(steps.actions)
        flags = np.zeros((2, count), np.uint8)
        flags[:, -1] = bool(end & End.TERMINATED), bool(end & End.TRUNCATED)
        tensor, info = self._torch.tensor, {}
        if end.is_final:
            # the same arithmetic as DIAMOND's own, so that its pictures are bit for bit the same
            info[_FINAL] = tensor(steps.final[0]).div(255).mul(2).sub(1)
        file = episode_file(self._path, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        arrays = (steps.observations, steps.actions, steps.rewards, *flags)
        tensors = {name: tensor(array) for name, array in zip(_DTYPES, arrays, strict=True)}
        save_tensors(self._torch, {**tensors, "info": info}, file)
        self._lengths.append(count)
        self._rewards.update(np.sign(steps.rewards).tolist())
        self._ends.update(flags[0].tolist())
        self._cuts += not end.is_final

    def finish(self) -> None:
        # DIAMOND keeps start_idx and lengths as numpy's arrays, which torch >= 2.6 does not
        # load. Tensors load, and work like arrays.
        lengths = self._torch.tensor(self._lengths, dtype=self._torch.int64)
        counts = {
            "is_static": self._static,
            "num_episodes": len(self._lengths),
            "num_steps": sum(self._lengths),
            "start_idx": lengths.cumsum(0) - lengths,
            "lengths": lengths,
            "counter_rew": self._rewards,
            "counter_end": self._ends,
        }
        save_tensors(self._torch, counts, self._path / _INFO)


def _numbers(files: Sequence[Path], folder: Path) -> list[int]:
    """The numbers of episodes, in order.

    Raises:
        ValueError: There is none, there is a gap, or a file lies where DIAMOND does not look.
    """
    numbers = sorted(int(file.stem) for file in files)
    check_gapless(numbers, folder, first=0)
    for file in files:
        if file != episode_file(folder, int(file.stem)):
            raise ValueError(
                f"{file}: expected it at {episode_file(folder, int(file.stem))}, where DIAMOND "
                f"looks for it; move it there"
            )
    if not numbers:
        raise ValueError(
            f"{folder}: expected files such as 000/00/0/0.pt, got none; give the folder that has "
            f"DIAMOND's {_INFO} in it, such as dataset/train"
        )
    return numbers


def _counted(torch: Any, given: GivenFiles, file: Path) -> int | None:
    """The number of episodes in ``info.pt``; None where it cannot be read without unpickling."""
    if not file.exists():
        return None
    given.file(file)
    try:
        count = load_tensors(torch, given, file).get("num_episodes")
    except ValueError:
        return None
    return count if isinstance(count, int) else None


def _load(torch: Any, given: GivenFiles, file: Path) -> tuple[PixelSteps, End, Path]:
    """The steps of a file, how they ended, and the file itself.

    Raises:
        ValueError: It is not a DIAMOND episode.
    """
    found = load_tensors(torch, given, file)
    arrays = arrays_of(torch, found, _DTYPES, file)
    end = End.NONE
    for name, flag in (("end", End.TERMINATED), ("trunc", End.TRUNCATED)):
        end |= flag if ended_by(arrays[name], name, file) else End.NONE
    info = found.get("info")
    final = info.get(_FINAL) if isinstance(info, dict) else None
    pictures = arrays["obs"]
    last = pictures[:0] if final is None else _byte_picture(torch, final, pictures, file)
    return PixelSteps(pictures, arrays["act"], arrays["rew"], last), end, file


def _byte_picture(torch: Any, final: Any, pictures: np.ndarray, file: Path) -> np.ndarray:
    """Convert a picture of -1 to 1 back to its bytes, [1, C, H, W].

    Raises:
        ValueError: It is not a picture of that shape.
    """
    shape = pictures.shape[1:]
    if not isinstance(final, torch.Tensor) or tuple(final.shape) != shape:
        got = tuple(final.shape) if hasattr(final, "shape") else type(final).__name__
        raise ValueError(
            f"{file}: expected {_FINAL!r} as a picture of shape {shape}, got {got}; repair or "
            f"remove it"
        )
    scaled = final.double().add(1).mul(127.5)
    # DIAMOND truncates instead of rounding, which makes 63 of 256 values one less
    whole = scaled.round()
    if not bool(((scaled - whole).abs() < 1e-3).all() & (whole >= 0).all() & (whole <= 255).all()):
        raise ValueError(
            f"{file}: expected {_FINAL!r} of bytes that were scaled to -1 to 1, got others; "
            f"fix or remove it"
        )
    picture: np.ndarray = whole.to(torch.uint8).numpy()[None]
    return picture
