"""Ids, folders and options of Minari data sets."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = [
    "MinariExport",
    "MinariImport",
    "dataset_id",
    "default_root",
    "namespaces_of",
    "place_of",
    "source_of",
]


@dataclass(frozen=True, slots=True)
class MinariExport:
    """Options for writing a Minari data set.

    Args:
        root: Folder below which data sets lie; MINARI_DATASETS_PATH, or Minari's own, when none.
        data_format: Minari's storage format.
        compress: Compress columns exactly, hdf5 by gzip, arrow by zstd; transparent to Minari.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
        env: Source of the spaces and spec: "recorded" for the recorded env, as far as the store
            knows them, an id for those of an env that is made for that, or none for spaces made
            from the rows.
        author: Author of the data.
        author_email: Email address of the author.
        code_permalink: Link to the code that made the data.
        algorithm_name: Algorithm that chose the actions.
        description: Short description of the data.
        requirements: Requirements of the env for pip, separated by commas: "ale-py>=0.12".
    """

    root: str | None = None
    data_format: Literal["hdf5", "arrow"] = "hdf5"
    compress: bool = True
    stack: bool = True
    env: str | None = "recorded"
    author: str | None = None
    author_email: str | None = None
    code_permalink: str | None = None
    algorithm_name: str | None = None
    description: str | None = None
    requirements: str | None = None


@dataclass(frozen=True, slots=True)
class MinariImport:
    """Options for reading a Minari data set.

    Args:
        root: Folder below which data sets lie; MINARI_DATASETS_PATH, or Minari's own, when none.
        infos: Keep infos as fields info/name, where all episodes have them alike.
    """

    root: str | None = None
    infos: bool = True


_ID: Final = re.compile(r"(?:[-\w][-\w/]*[-\w]/)?[-\w]+-v\d+")
_NAME: Final = re.compile(r"[-\w]+-v\d+")


def default_root() -> Path:
    """The root of Minari's data sets: ``MINARI_DATASETS_PATH``, or the default in the home."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return Path(given) if given is not None else Path.home() / ".minari" / "datasets"


def place_of(out: str, root: str | None) -> Path:
    """The folder of a new data set.

    Args:
        out: An id, ``atari/pong/random-v0``, or a path that begins with ``/``, ``.`` or ``~`` and
            ends with a name such as ``random-v0``.
        root: The folder below which ids lie; None for Minari's own.

    Raises:
        ValueError: It is neither.

    Example:
        >>> place_of("cartpole/random-v0", "/data").as_posix()
        '/data/cartpole/random-v0'
        >>> place_of("cartpole", "/data")
        Traceback (most recent call last):
        ...
        ValueError: 'cartpole': expected an id of a Minari data set such as atari/pong/random-v0,
        or a path like ./random-v0, got neither; end it with a version, -v0, and give namespaces
        two letters or more
    """
    is_path = out.startswith(("/", ".", "~"))
    name = Path(out).name if is_path else out
    if not (_NAME if is_path else _ID).fullmatch(name) or "//" in name:
        raise ValueError(
            f"{out!r}: expected an id of a Minari data set such as atari/pong/random-v0, or a path "
            f"like ./random-v0, got neither; end it with a version, -v0, and give namespaces two "
            f"letters or more"
        )
    return Path(out).expanduser() if is_path else _root(root) / out


def source_of(source: str, root: str | None) -> Path:
    """The folder of a data set to read: that of an id, or else the path itself."""
    by_id = _root(root) / source
    is_id = _ID.fullmatch(source) is not None
    path = Path(source).expanduser()
    return by_id if is_id and (by_id.exists() or not path.exists()) else path


def dataset_id(place: Path, root: str | None) -> str:
    """Minari's id of the data set in a folder: its path from the root.

    Example:
        >>> dataset_id(Path("/data/atari/random-v0"), "/data")
        'atari/random-v0'
        >>> dataset_id(Path("/elsewhere/random-v0"), "/data")
        'random-v0'
    """
    place, base = Path(os.path.abspath(place)), Path(os.path.abspath(_root(root)))
    return place.relative_to(base).as_posix() if place.is_relative_to(base) else place.name


def namespaces_of(id_: str) -> list[str]:
    """The namespaces of an id.

    Example:
        >>> namespaces_of("atari/pong/random-v0")
        ['atari', 'atari/pong']
    """
    parts = id_.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _root(root: str | None) -> Path:
    return default_root() if root is None else Path(root).expanduser()
