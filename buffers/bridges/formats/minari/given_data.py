"""What stands in a Minari data set, looked at before Minari's own reader is let at it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gymnasium as gym

from stepwell.buffers.bridges.formats.hdf5_columns import (
    check_group,
    datasets_of,
    open_given,
    take_column,
)
from stepwell.buffers.bridges.formats.minari.files import HDF5_NAME, INSTALL
from stepwell.buffers.bridges.formats.parquet.files import batches_of, open_file
from stepwell.buffers.bridges.formats.png import picture_bytes
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.given_files import GivenFiles, Room, parse_object

__all__ = ["GivenData"]

_FORMATS: Final = ("hdf5", "arrow", "parquet")
_MOST: Final = 2**31
_BATCH_ROWS: Final = 1024
_SPACES: Final = ("observation_space", "action_space")
_PASSED_OVER: Final = ("_", ".", "metadata.json")


class GivenData:
    """A folder ``data`` that anybody may have made.

    Minari makes the env that a data set names, which may be any function of any module, where the
    data set lacks its spaces; it follows HDF5's links into other files; and it unpacks whatever is
    there. So all of it is looked at first.

    Args:
        given: The data set.
        data: Its folder.

    Raises:
        ValueError: Its metadata lack something.
    """

    def __init__(self, given: GivenFiles, data: Path) -> None:
        self._given = given
        self._data = data
        file = data / "metadata.json"
        metadata = given.read_json(file)
        given_spaces = [name for name in _SPACES if name in metadata]
        for name in given_spaces:
            parse_object(str(metadata[name]), f"{file}: {name}")
        if given_spaces != list(_SPACES):
            _check_env(parse_object(str(metadata.get("env_spec")), f"{file}: env_spec"), file)
        counts = metadata.get("total_episodes"), metadata.get("total_steps")
        self.format = metadata.get("data_format")
        is_counted = all(type(n) is int and 0 <= n < _MOST for n in counts)
        if self.format not in _FORMATS or not is_counted:
            raise ValueError(
                f"{file}: expected data_format {', '.join(_FORMATS)}, total_episodes and "
                f"total_steps, got {self.format!r} and {counts}; fetch the data set again"
            )
        self.episodes, self.steps = int(counts[0] or 0), int(counts[1] or 0)
        if self.format == "hdf5":
            self._check_file()
        else:
            for number in range(self.episodes):
                for _ in self._files(number):
                    pass

    def metadata(self, number: int) -> dict[str, Any]:
        """What ``metadata.json`` of an episode says, of the formats that have one."""
        return self._given.read_json(self._data / str(number) / "metadata.json")

    def check(self, number: int) -> None:
        """See that an episode can be read, and that there is memory for it.

        Raises:
            ValueError: Something is wrong with it.
        """
        if self.format == "hdf5":  # its one file was looked at already
            return
        self.metadata(number)
        room = self._given.room(f"{self._data}: episode {number}")
        arrow = load_library("pyarrow", "Minari's format arrow", install=INSTALL)
        for file in self._files(number):
            try:
                for batch in self._batches(file):
                    # Where a list begins and ends stands in the file: it may point anywhere.
                    batch.validate(full=True)
                    room.take(batch.nbytes)
                    for column in batch.columns:
                        _take_pictures(column, room)
            except (arrow.ArrowException, OSError) as error:
                raise ValueError(
                    f"{file}: expected a whole file of columns, got another or a damaged one "
                    f"({str(error)[:200]}); fetch the data set again"
                ) from error

    def _check_file(self) -> None:
        """Look at all of ``main_data.hdf5``."""
        h5py = load_library("h5py", "Minari's format hdf5", install=INSTALL)
        path = self._data / HDF5_NAME
        with contextlib.closing(open_given(h5py, self._given, path)) as file:
            check_group(h5py, file, str(path), texts=True)
            for name in file:
                room = self._given.room(f"{path}: {name}")
                if not isinstance(file[name], h5py.Group):
                    raise ValueError(f"{path}: expected a group {name!r}, got a dataset; remove it")
                for column in datasets_of(h5py, file[name]):
                    take_column(column, room)

    def _files(self, number: int) -> Iterator[Path]:
        """The files of an episode that Minari reads."""
        folder = self._data / str(number)
        if not folder.is_dir():
            raise ValueError(
                f"{folder}: expected a folder of files for each episode, got none; fetch the data "
                f"set again"
            )
        for file in sorted(folder.iterdir()):
            self._given.file(file)
            if not file.name.startswith(_PASSED_OVER):
                yield file

    def _batches(self, file: Path) -> Iterator[Any]:
        if self.format == "parquet":
            arrow = load_library("pyarrow", "Minari's format parquet", install=INSTALL)
            parquet = load_library("pyarrow.parquet", "Minari's format parquet", install=INSTALL)
            with open_file((arrow, parquet), self._given, file) as opened:
                yield from batches_of(opened, self._given, _BATCH_ROWS)
            return
        ipc = load_library("pyarrow.ipc", "Minari's format arrow", install=INSTALL)
        with file.open("rb") as raw, ipc.open_file(raw) as opened:
            for place in range(opened.num_record_batches):
                yield opened.get_batch(place)


def _check_env(told: dict[str, Any], file: Path) -> None:
    """Refuse an env that gymnasium does not know just as it is told.

    Minari makes it to learn its spaces, which calls what it names as its entry point.

    Raises:
        ValueError: It is another one.
    """
    id_ = str(told.get("id"))
    if id_.startswith("ALE/"):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers its envs
    known = gym.registry.get(id_)
    same = known is not None and (told.get("entry_point"), told.get("kwargs") or {}) == (
        known.entry_point,
        known.kwargs,
    )
    if not same or told.get("additional_wrappers"):
        raise ValueError(
            f"{file}: expected observation_space and action_space, or an env_spec that gymnasium "
            f"has registered just so, got {id_[:80]!r}: to make that env could run anything; add "
            f"the spaces, as minari.serialization writes them"
        )


def _take_pictures(array: Any, room: Room) -> None:
    """Count what Minari makes of JPEG files."""
    kind = str(array.type)
    if kind.startswith("struct<"):
        for place in range(array.type.num_fields):
            _take_pictures(array.field(place), room)
    elif "binary" in kind:
        for value in array:
            room.take(picture_bytes(value.as_py() or b""))
