"""Ids, folders and options of Minari data sets."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gymnasium.envs.registration import EnvSpec


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
        author: Author of the data; this and the next ones are by default what a Minari data set
            declared, if the episodes were imported from one.
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


FACTS: Final = "minari"
"""Key of a session for what a data set declares about itself."""

_TEXTS: Final = ("dataset_id", "minari_version", "algorithm_name", "code_permalink", "description")
_LISTS: Final = ("author", "author_email", "combined_datasets", "requirements")
_NUMBERS: Final = ("ref_min_score", "ref_max_score", "num_episodes_average_score")
_ENVS: Final = ("env_spec", "eval_env_spec")
_OF_DATA: Final = (
    *("observation_space", "action_space", "data_format", "jpeg_encoding"),
    *("total_episodes", "total_steps", "dataset_size"),
)
_MOST_CHARS: Final = 1 << 16

_ID: Final = re.compile(r"(?:[-\w][-\w/]*[-\w]/)?[-\w]+-v\d+")
_NAME: Final = re.compile(r"[-\w]+-v\d+")


def default_root() -> Path:
    """The root of Minari's data sets: ``MINARI_DATASETS_PATH``, or the default in the home."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return Path(given) if given is not None else Path.home() / ".minari" / "datasets"


def place_of(out: str, root: str | None) -> Path:
    """The folder of a new data set, by its id or a path that begins with ``/``, ``.`` or ``~``."""
    # Either ends with a name such as random-v0. An id lies below the root, by default Minari's own.
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
    """Minari's id of the data set in a folder: its path from the root, its name if not below it."""
    place, base = Path(os.path.abspath(place)), Path(os.path.abspath(_root(root)))
    return place.relative_to(base).as_posix() if place.is_relative_to(base) else place.name


def declared(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Facts that untrusted metadata declare of a data set, and the names of invalid ones."""
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for key, value in metadata.items():
        if key in _OF_DATA or value is None:
            continue
        one = [value] if key in _LISTS and isinstance(value, str) else value
        if not _is_valid(key, one) or len(json.dumps(one)) > _MOST_CHARS:
            wrong.append(key)
        else:
            found[key] = one
    return found, wrong


def _is_valid(key: str, value: object) -> bool:
    if key in _TEXTS:
        return isinstance(value, str)
    if key in _LISTS:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if key in _NUMBERS:
        is_flag = isinstance(value, bool)
        return isinstance(value, int | float) and not is_flag and math.isfinite(value)
    if key in _ENVS:
        return isinstance(value, str) and _is_spec(value)
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _is_spec(text: str) -> bool:
    """True for the JSON of an env's spec, which loads no code; Minari drops older keys too."""
    for old in ('"order_enforce": true,', '"apply_api_compatibility": false,'):
        text = text.replace(old, "")
    try:
        EnvSpec.from_json(text.replace('"autoreset": false, ', ""))
    except Exception:  # whatever the constructors of gymnasium raise for other keys and types
        return False
    return True


def _root(root: str | None) -> Path:
    return default_root() if root is None else Path(root).expanduser()
