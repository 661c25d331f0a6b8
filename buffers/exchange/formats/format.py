"""The protocol of a data set format, a writer and a reader of episodes, and all formats by name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from ...base.untrusted_files import GivenFiles
from ...rows.episode import Episode
from ...spec.spec import Spec
from ...storage.disk.publish import Kind
from .options import NoOptions

_FORMATS: Final = {
    "minari": "minari.format:MinariFormat",
    "d3rlpy": "d3rlpy:D3rlpyFormat",
    "hdf5": "flat_hdf5:FlatHdf5Format",
    "dreamerv3": "dreamer_v3:DreamerV3Format",
    "npz": "npz:NpzFormat",
    "parquet": "parquet:ParquetFormat",
    "lerobot": "lerobot:LeRobotFormat",
    "rlds": "rlds:RldsFormat",
    "memmap-replay-buffer": "memmap:MemmapFormat",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The store that is exported, as a writer sees it before the first episode.

    Args:
        spec: The fields of every row.
        sessions: Facts about the runs that gathered them; ``recipe`` describes the envs.
        episodes: Number of episodes to write.
        steps: Their env steps.
    """

    spec: Spec
    sessions: Sequence[Mapping[str, object]]
    episodes: int
    steps: int


class Writer(Protocol):
    """Writes one data set. Creating it raises if the rows cannot be written."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user of the data set, one clause each; there may be more at the end."""
        ...

    def begin(self, path: Path) -> None:
        """Begin the data set at the path of an existing empty folder, or empty file."""
        ...

    def write(self, episode: Episode) -> None:
        """Write an episode.

        Raises:
            ValueError: The format cannot hold it.
        """
        ...

    def finish(self) -> None:
        """Write the remaining rows. The data set is complete then; the caller renames it."""
        ...

    def close(self) -> None:
        """Close files; called last, also after an error. Can be called twice."""
        ...


class Reader(Protocol):
    """Reads one data set, one episode after the other.

    `Episode.id` counts from 0; the import assigns new ones.
    """

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        ...

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that recorded it; empty if they are unknown."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Facts that the data set does not hold, or not exactly; there may be more at the end."""
        ...

    @property
    def episodes(self) -> int | None:
        """The number of episodes, if it is known before they are read."""
        ...

    @property
    def steps(self) -> int | None:
        """Their env steps, if they are known before they are read."""
        ...

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written.

        Raises:
            ValueError: The data set has another format, or is damaged.
        """
        ...

    def close(self) -> None:
        """Close files. Can be called twice."""
        ...


class Format(Protocol):
    """A data set format. Creating one imports no library."""

    name: ClassVar[str]
    """Its name in `export_episodes` and after ``--to``."""
    about: ClassVar[str]
    """One line: the library of the format, and its purpose."""
    install: ClassVar[str | None] = None
    """The argument of ``pip install``, if more than Stepwell is needed, such as
    ``'stepwell[minari]'`` with its quotes."""
    kind: ClassVar[Kind] = "folder"
    """A data set is a folder, or a file."""
    export_options: ClassVar[type[Any] | None]
    """A frozen dataclass of options for writing, all with defaults; the class's docstring, with
    Google's ``Args:``, is what users read about them. None for a format that is only read."""
    import_options: ClassVar[type[Any]] = NoOptions
    """The same for reading."""

    def place(self, out: str, options: Any) -> Path:
        """The path at which a data set of that name lies: the name itself, by default.

        Raises:
            ValueError: The name is not valid for this format.
        """
        return Path(out)

    def writer(self, source: Source, options: Any) -> Writer:
        """Return a writer; no file is created yet.

        Raises:
            ValueError: The format cannot hold these rows, or an option is invalid.
            ImportError: A library is missing.
        """
        ...

    def reader(self, files: GivenFiles, options: Any) -> Reader:
        """Open the data set at the files' path, as `place` returns it.

        The data set may be hostile: only what ``files`` allows is opened, and memory is allocated
        after its size was checked.

        Raises:
            FileNotFoundError: There is no such path.
            ValueError: It is not a data set of this format.
            ImportError: A library is missing.
        """
        ...

    def loading(self, path: Path, out: str) -> str:
        """Lines of Python that load the data set."""
        ...


def format_names() -> list[str]:
    """Names of all formats.

    Example:
        >>> "minari" in format_names()
        True
    """
    return list(_FORMATS)


def format_of(name: str | Format) -> Format:
    """The format of that name, or the one given; the libraries that it needs are not imported."""
    if not isinstance(name, str):
        if not hasattr(name, "name"):
            raise TypeError(f"format: expected a name or a Format, got {type(name).__name__}")
        return name
    if name not in _FORMATS:
        near = difflib.get_close_matches(name.lower(), _FORMATS, 1)
        hint = f"did you mean {near[0]!r}?" if near else "see `stepwell formats`"
        if name in ("iris", "diamond"):
            hint = f"examples/exports/{name}.py writes it"
        raise ValueError(f"format: expected one of {', '.join(_FORMATS)}, got {name!r}; {hint}")
    module, _, made = _FORMATS[name].partition(":")
    found = importlib.import_module(f"stepwell.buffers.exchange.formats.{module}")
    format_: Format = getattr(found, made)()
    return format_
