"""What a buffer is: the file that says so, and what differs from what is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from stepwell.buffers.dropin.memmap.declared import DeclaredField
from stepwell.buffers.errors import StoreCorrupt, StoreTooNew
from stepwell.buffers.storage.disk.files import Files, replace_file

__all__ = ["Config", "Marker", "is_buffer", "read_marker", "write_marker"]

_FILE = "replay_buffer.json"
_FORMAT = "stepwell episodes of declared fields"
_VERSION = 1
_FILE_BYTES = 1 << 20


class Config(NamedTuple):
    """What a buffer is made for.

    Args:
        max_episodes: Episodes to keep at most.
        max_timesteps: Steps of an episode at most.
        fields: What every step has, by name.
        meta_fields: What every episode has, by name.
        circular: The oldest episode makes room for a new one.
    """

    max_episodes: int
    max_timesteps: int
    fields: Mapping[str, DeclaredField]
    meta_fields: Mapping[str, DeclaredField]
    circular: bool

    @property
    def capacity(self) -> int | None:
        """Steps to keep in the store, so that the newest episodes are never evicted.

        What goes at once is a file, which holds up to a sixteenth of the capacity and the episode
        after it. An episode of up to a sixteenth is stored as one chunk, and so whole or not. Files
        of less than a MiB would cost more than they save. What is older than the oldest episode
        that counts is dropped besides.
        """
        if not self.circular:
            return None
        longest = self.max_timesteps
        row_bytes = sum(field.row_bytes for field in self.fields.values())
        file_rows = max(longest, _FILE_BYTES // row_bytes)
        return max(16 * file_rows, -(-(self.max_episodes + 1) * longest * 16 // 15) + 1)

    def to_json(self) -> dict[str, object]:
        """Plain data for a JSON file."""
        return {
            "max_episodes": self.max_episodes,
            "max_timesteps": self.max_timesteps,
            "circular": self.circular,
            "fields": {name: field.to_json() for name, field in self.fields.items()},
            "meta_fields": {name: field.to_json() for name, field in self.meta_fields.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        """What `to_json` described."""
        fields, metas = (
            {name: DeclaredField.from_json(name, each) for name, each in data[key].items()}
            for key in ("fields", "meta_fields")
        )
        limits = int(data["max_episodes"]), int(data["max_timesteps"])
        return cls(*limits, fields, metas, bool(data["circular"]))

    def difference(self, asked: Config) -> str | None:
        """The first thing in which ``asked`` differs, in words; None when the two are equal."""
        for name in ("max_episodes", "max_timesteps", "circular"):
            if getattr(self, name) != getattr(asked, name):
                return f"{name} is {getattr(self, name)}, got {getattr(asked, name)}"
        for kind in ("fields", "meta_fields"):
            mine, theirs = getattr(self, kind), getattr(asked, kind)
            for name in [*mine, *theirs]:
                if mine.get(name) != theirs.get(name):
                    there = mine.get(name, f"no {name!r}")
                    return f"{kind}: expected {there}, got {theirs.get(name, f'no {name!r}')}"
        return None


class Marker(NamedTuple):
    """What the file says.

    Args:
        config: What the buffer is.
        store: Number of the folder in which the episodes are: `clear` begins a new one.
    """

    config: Config
    store: int


def is_buffer(folder: Path) -> bool:
    """There is such a buffer in the folder."""
    return (folder / _FILE).exists()


def read_marker(folder: Path) -> Marker:
    """What the folder's file says.

    Raises:
        ValueError: There is none.
        StoreTooNew: A later version wrote it.
        StoreCorrupt: It is damaged.
    """
    path = folder / _FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(_missing(folder)) from None
    try:
        data = cast("dict[str, Any]", json.loads(text))
        if data["format"] == _FORMAT and data["version"] > _VERSION:
            raise StoreTooNew(
                f"{path} is of version {data['version']}, expected at most {_VERSION}: install a "
                f"newer Stepwell"
            )
        return Marker(Config.from_json(data), int(data["store"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(
            f"{path} is not what was written ({error!r}), expected a buffer's configuration: "
            f"restore it from a copy"
        ) from error


def write_marker(folder: Path, marker: Marker) -> None:
    """Replace the folder's file; when it returns the new one is durable."""
    data = {"format": _FORMAT, "version": _VERSION, "store": marker.store}
    text = json.dumps(data | marker.config.to_json(), indent=1, allow_nan=False)
    replace_file(Files(), folder / _FILE, text.encode())


def _missing(folder: Path) -> str:
    if (folder / "metadata.pkl").exists():
        return (
            f"{folder} was written by memmap-replay-buffer (metadata.pkl), expected a folder of "
            f"this class; make one of it: stepwell import {folder} --from memmap-replay-buffer "
            f"--out NEW"
        )
    return (
        f"{folder} holds no buffer, expected a folder with a {_FILE}, or with the metadata.pkl of "
        f"memmap-replay-buffer to convert: make one, or give another folder"
    )
