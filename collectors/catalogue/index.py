"""The index of a catalogue: a TOML file beside the archives of its data sets.

It may come from a stranger, as the archives may. So it holds nothing that is run: texts, numbers
and paths that stay in its folder, all checked before one is used, and no key that is not known.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from ...buffers.base.optional_libraries import load_library
from ...buffers.base.untrusted_files import GivenFiles
from ...buffers.base.untrusted_json import mapping, member, whole
from ...buffers.base.untrusted_json import text as any_text
from ...buffers.storage.disk.files import Files, replace_file

SHIPPED = Path(__file__).with_name("shipped") / "index.toml"
"""The index of Stepwell's own catalogue."""

_MOST_BYTES, _MOST_SETS, _MOST_VERSIONS, _LONGEST = 1 << 20, 1000, 50, 200
_FORMAT = "format"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*){0,3}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*){0,3}")
_SHA256, _DIGEST = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{16}")


class _Extra(NamedTuple):
    """A package beyond the core that the env of a data set needs."""

    module: str
    install: str  # argument of `pip install`
    games: str = ""  # our module that registers ids for its envs, where it has none itself


EXTRAS: Mapping[str, _Extra] = {
    "box2d": _Extra("Box2D", "'gymnasium[box2d]'"),
    "minigrid": _Extra("minigrid", "minigrid"),
    "mpe2": _Extra("mpe2", "mpe2 'stepwell[pettingzoo]'", ".games"),
    "nes": _Extra("cynes", "'stepwell[nes]'"),
}
"""What an index may ask for: nothing else is imported because a file names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set of a catalogue, as its index describes it.

    Args:
        name: Its name, such as "atari/pong-random".
        env: The id of its env.
        policy: What chose the actions, in words.
        steps: Env steps.
        episodes: Episodes, with those that were cut when the recording stopped.
        return_mean: Mean return of the whole episodes; NaN where there are none.
        return_std: Standard deviation of these returns.
        archive: Path of the archive, in the index's folder.
        archive_bytes: Bytes of it.
        store_bytes: Bytes of the rows in the store that was archived; made again, they take about
            as many.
        license: Licence of the archive.
        sha256: SHA-256 of the archive.
        digest: `SequenceReplayBuffer.digest` of the rows.
        versions: Versions of the packages with which it was made, by name.
        extra: What its env needs beyond the core, one of `EXTRAS`; empty for nothing.
        rom: Path of the cartridge, in the index's folder; empty for other envs than NES games, and
            where the user has to give it.
    """

    name: str
    env: str
    policy: str
    steps: int
    episodes: int
    return_mean: float
    return_std: float
    archive: str
    archive_bytes: int
    store_bytes: int
    license: str
    sha256: str
    digest: str
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    extra: str = ""
    rom: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)

    def load_extra(self) -> None:
        """Import what its env needs; ImportError says how to install it."""
        if self.extra:
            extra = EXTRAS[self.extra]
            load_library(extra.module, f"the data set {self.name}", install=extra.install)
            if extra.games:
                importlib.import_module(extra.games, __package__)


def read_index(path: str | os.PathLike[str] | None = None) -> dict[str, Dataset]:
    """The data sets of an index by their names; None is Stepwell's own."""
    file = SHIPPED if path is None else Path(path)
    found = file.stat()
    return dict(_read(file.absolute(), found.st_mtime_ns, found.st_size))


def find_dataset(name: str, path: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set with this name; ValueError names the nearest ones where there is none."""
    found = read_index(path)
    if name not in found:
        short = {one.rpartition("/")[2]: one for one in found}
        wanted = str(name).lower()
        near = difflib.get_close_matches(wanted, found, 3, 0.5)
        near += [short[one] for one in difflib.get_close_matches(wanted, short, 3, 0.5)]
        nearest = ", ".join(dict.fromkeys(near)) or f"one of {len(found)}"
        raise ValueError(
            f"{name!r}: expected the name of a data set of {path or 'the catalogue'}, such as "
            f"{nearest}; `stepwell datasets` lists them"
        )
    return found[name]


def file_of(index: str | os.PathLike[str] | None, name: str) -> Path:
    """The path of a file that an index names, which must lie in its folder, through no link out."""
    folder = (SHIPPED if index is None else Path(index)).absolute().parent
    return GivenFiles(folder).file(folder / name)


def write_entry(path: Path, entry: Dataset) -> None:
    """Add an entry to an index, or replace the one with its name; the file may be new."""
    found = read_index(path) if path.exists() else {}
    found[entry.name] = entry
    data = index_text(found).encode()
    _parsed(data, path)  # what is written can be read
    replace_file(Files(), path, data)


def index_text(found: Mapping[str, Dataset]) -> str:
    """The TOML of an index, in the order of names."""
    lines = [f"{_FORMAT} = 1"]
    for name in sorted(found):
        lines += ["", f"[{_toml(name)}]"]
        for key, value in found[name].to_json().items():
            if key != "name" and value != "":
                lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, float):
        return repr(value)  # TOML knows nan
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in sorted(value.items()))
        return f"{{{inner}}}"
    return json.dumps(value, ensure_ascii=False)


@lru_cache(8)
def _read(path: Path, _: int, __: int) -> dict[str, Dataset]:  # again when the file has changed
    return _parsed(GivenFiles(path.parent).read_bytes(path, _MOST_BYTES), path)


def _parsed(data: bytes, path: Path) -> dict[str, Dataset]:
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected an index of data sets in TOML, got something else: {error}; name "
            f"another file, or correct it"
        ) from None
    try:
        whole(table.pop(_FORMAT, None), _FORMAT, 1, 1)
        if len(table) > _MOST_SETS:
            raise ValueError(f"expected at most {_MOST_SETS:,} data sets, got {len(table):,}")
        return {name: _entry(name, mapping(value, name)) for name, value in table.items()}
    except ValueError as error:
        raise ValueError(f"{path}: {error}; correct it") from None


def _entry(name: str, given: Mapping[str, object]) -> Dataset:
    checked_name(name)
    known = [one.name for one in fields(Dataset)]
    if unknown := sorted(set(given) - set(known[1:])):
        raise ValueError(f"{name}: expected keys such as {known[1]}, got {unknown[0][:40]!r}")

    get = partial(member, given)
    try:
        versions = mapping(given.get("versions", {}), "versions")
        if len(versions) > _MOST_VERSIONS:
            raise ValueError(f"versions: expected at most {_MOST_VERSIONS}, got {len(versions)}")
        return Dataset(
            name=name,
            env=checked_text(get("env"), "env"),
            policy=checked_text(get("policy"), "policy"),
            steps=whole(get("steps"), "steps"),
            episodes=whole(get("episodes"), "episodes", 1),
            return_mean=_number(get("return_mean"), "return_mean"),
            return_std=_number(get("return_std"), "return_std"),
            archive=_matched(get("archive"), "archive", _FILE, "a path in the index's folder"),
            archive_bytes=whole(get("archive_bytes"), "archive_bytes", 1),
            store_bytes=whole(get("store_bytes"), "store_bytes"),
            license=checked_text(get("license"), "license"),
            sha256=_matched(get("sha256"), "sha256", _SHA256, "64 hexadecimal digits"),
            digest=_matched(get("digest"), "digest", _DIGEST, "16 hexadecimal digits"),
            versions={
                checked_text(key, "versions"): checked_text(one, key)
                for key, one in versions.items()
            },
            extra=_extra(given.get("extra", "")),
            rom=_matched(given["rom"], "rom", _FILE, "a path in the index's folder")
            if "rom" in given
            else "",
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def checked_name(name: object) -> str:
    """The name, if a data set may have it."""
    return _matched(name, "name", _NAME, "a name such as atari/pong-random, in small letters")


def _extra(value: object) -> str:
    if value not in ("", *EXTRAS):
        raise ValueError(f"extra: expected one of {', '.join(EXTRAS)}, got {value!r:.80}")
    return str(value)


def checked_text(value: object, name: str) -> str:
    """The text, if an entry may have it."""
    found = any_text(value, name[:_LONGEST])
    if not 0 < len(found) <= _LONGEST or not found.isprintable():
        raise ValueError(
            f"{name[:_LONGEST]}: expected 1 to {_LONGEST} printable characters, got {found!r:.80}"
        )
    return found


def _matched(value: object, name: str, form: re.Pattern[str], words: str) -> str:
    found = checked_text(value, name)
    if not form.fullmatch(found):
        raise ValueError(f"{name}: expected {words}, got {found!r:.80}")
    return found


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a number, got {value!r:.80}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}: expected a number, got one that is too large") from None


def spread(mean: float, std: float) -> str:
    """A mean with its spread, for people: "-20.3 ± 0.8"."""
    return "-" if math.isnan(mean) else f"{mean:,.1f} ± {std:,.1f}"
