"""The data set of IRIS (Micheli et al., 2023): a file of tensors for each episode."""

from __future__ import annotations

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

__all__ = ["IrisExport", "IrisFormat"]

_FOLDER: Final = "dataset"
_DTYPES: Final = {
    "observations": "uint8",
    "actions": "int64",
    "rewards": "float32",
    "ends": "int64",
    "mask_padding": "bool",
}
_USUAL: Final = (3, 64, 64)
_NOTES: Final = (
    "final observations are not recorded: the observation before is repeated, and info/observed is "
    "False there",
    "streams and metadata are not recorded: all episodes are of stream 0",
    "`ends` does not distinguish time limits from terminations: 1 is read as terminated, and 0 as "
    "a cut",
)


@dataclass(frozen=True, slots=True)
class IrisExport:
    """Options for writing IRIS's files.

    Args:
        observation: Key of the picture in a Dict observation.
        channels: Position of the channels of its pictures; none: inferred from the shape.
        truncated_ends: Set `ends` also where the env's clock ended an episode, as IRIS's own
            collector does; its world model then learns that the game was over.
    """

    observation: str | None = None
    channels: Channels | None = None
    truncated_ends: bool = False


class IrisFormat(Format):
    """``dataset/0.pt``, ``dataset/1.pt``, ...: T rows each, channels first.

    Each is a dict of ``observations`` uint8 [T, C, H, W], ``actions`` int64 [T], ``rewards``
    float32 [T], ``ends`` int64 [T] and ``mask_padding`` bool [T]. A checkpoint of IRIS has the
    same folder in it, so that its folder is what to import.
    """

    name = "iris"
    about = "what IRIS, the world model of transformers, loads as its data set"
    install = "'stepwell[torch]'"
    export_options = IrisExport
    import_options = PixelImport

    def writer(self, source: Source, options: IrisExport) -> PixelWriter:
        """A writer of one folder."""
        return PixelWriter(
            source, "IRIS", options.observation, options.channels, _USUAL, _IrisSink(options)
        )

    def reader(self, files: GivenFiles, options: PixelImport) -> Reader:
        """Open a folder that has ``dataset`` in it, or that folder itself."""
        path = files.path
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: expected a folder of IRIS's, got no folder")
        folder = path / _FOLDER if (path / _FOLDER).is_dir() else path
        torch = torch_for("IRIS")
        names = [file.stem for file in folder.glob("*.pt")]
        numbers = sorted(int(name) for name in names if is_number(name))
        if not numbers:
            raise ValueError(
                f"{folder}: expected files named 0.pt, 1.pt, ..., got none; give the folder that "
                f"has IRIS's folder {_FOLDER!r} in it"
            )
        check_gapless(numbers, folder, first=numbers[0])

        def load(number: int) -> tuple[PixelSteps, End, Path]:
            return _load(torch, files, folder / f"{number}.pt")

        return PixelReader(numbers, load, options.channels, lambda _: _NOTES)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it among IRIS's sources."""
        return (
            "from pathlib import Path\n"
            "from dataset import EpisodesDataset  # in IRIS's src\n"
            "dataset = EpisodesDataset()\n"
            f'dataset.load_disk_checkpoint(Path("{path / _FOLDER}"))'
        )


class _IrisSink:
    """Writes a file for each episode."""

    def __init__(self, options: IrisExport) -> None:
        self._truncated_ends = options.truncated_ends
        self._torch: Any = torch_for("IRIS")
        self._unended = 0
        self._folder = Path()

    @property
    def notes(self) -> Sequence[str]:
        found = ["IRIS keeps T observations of T steps: the final one is left out"]
        if self._unended:
            why = "cut" if self._truncated_ends else "truncated or cut"
            found.append(f"{self._unended:,} episodes were {why}: their `ends` are all 0")
        return found

    def begin(self, path: Path) -> None:
        # IRIS reads the name of every file in its folder as a number.
        self._folder = path / _FOLDER
        self._folder.mkdir()

    def save(self, number: int, steps: PixelSteps, end: End) -> None:
        is_end = bool(end & End.TERMINATED) or (self._truncated_ends and end.is_final)
        ends = np.zeros(len(steps.actions), np.int64)
        ends[-1] = is_end
        self._unended += not is_end
        arrays = {
            "observations": steps.observations,
            "actions": steps.actions,
            "rewards": steps.rewards,
            "ends": ends,
            "mask_padding": np.ones(len(ends), np.bool_),
        }
        # a tensor that shares memory with a longer array would be saved with all of it
        tensors = {name: self._torch.tensor(array) for name, array in arrays.items()}
        save_tensors(self._torch, tensors, self._folder / f"{number}.pt")

    def finish(self) -> None:
        pass


def _load(torch: Any, given: GivenFiles, file: Path) -> tuple[PixelSteps, End, Path]:
    """The steps of a file, how they ended, and the file itself.

    Raises:
        ValueError: It is not an IRIS episode.
    """
    arrays = arrays_of(torch, load_tensors(torch, given, file), _DTYPES, file)
    if not arrays["mask_padding"].all():
        raise ValueError(
            f"{file}: expected steps that were played, got padding too (mask_padding is False);"
            f" it holds a segment: leave it out"
        )
    observations = arrays["observations"]
    steps = PixelSteps(observations, arrays["actions"], arrays["rewards"], observations[:0])
    is_end = ended_by(arrays["ends"], "ends", file)
    return steps, End.TERMINATED if is_end else End.NONE, file
