"""What makes the way back exact: facts about a store and its episodes as plain data."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.format import Source
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.spec import Spec

__all__ = ["Beside", "Record", "episode_facts", "rebuilt", "record_of"]

_VERSION: Final = 1
_MADE_BY: Final = "stepwell export"


class Record:
    """What a data set that Stepwell wrote says about the store that it came from.

    Args:
        spec: The fields of every row.
        sessions: Facts about the runs that gathered them.
        episodes: How many were written; None where nobody said so.
        steps: Their env steps.
    """

    def __init__(
        self,
        spec: Spec,
        sessions: Sequence[Mapping[str, object]],
        episodes: int | None = None,
        steps: int | None = None,
    ) -> None:
        self.spec = spec
        self.sessions = tuple(sessions)
        self.episodes = episodes
        self.steps = steps

    @classmethod
    def read(cls, text: str | bytes, where: object) -> Record:
        """Read what `record_of` wrote.

        Args:
            text: JSON.
            where: Where it was found, for the sentence of an error.

        Raises:
            ValueError: It is something else, or of a newer Stepwell.
        """
        data = _json_of(text)
        version = data.get("version") if data.get("made_by") == _MADE_BY else None
        if not isinstance(version, int):
            raise ValueError(f"{where}: expected a record of `{_MADE_BY}`, got something else")
        if version > _VERSION:
            raise ValueError(
                f"{where}: expected a record of version {_VERSION} at most, got {version}: it was "
                f"written by a newer Stepwell; update this one"
            )
        spec = Spec.from_json(data["spec"])
        return cls(spec, data["sessions"], data["episodes"], data["steps"])


def record_of(source: Source) -> str:
    """What to keep with a data set, as JSON in one line.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("CartPole-v1")
        >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
        >>> text = record_of(Source(spec=spec, sessions=[{"seed": 1}], episodes=3, steps=20))
        >>> Record.read(text, "here").spec == spec
        True
    """
    return json.dumps(
        {
            "made_by": _MADE_BY,
            "version": _VERSION,
            "spec": source.spec.to_json(),
            "sessions": list(source.sessions),
            "episodes": source.episodes,
            "steps": source.steps,
        }
    )


def episode_facts(episode: Episode) -> dict[str, Any]:
    """What to keep with an episode beside its rows, JSON-able; `rebuilt` takes it."""
    return {
        "stream": episode.stream,
        "first_row": episode.first_row,
        "rows": episode.rows,
        "end": int(episode.end),
        "metadata": dict(episode.metadata),
    }


def rebuilt(
    spec: Spec, number: int, fields: Mapping[str, np.ndarray], facts: Mapping[str, Any]
) -> Episode:
    """The episode that it was.

    Args:
        spec: The fields of every row.
        number: Its place in the data set.
        fields: All its rows, ``[T, ...]`` by field name.
        facts: What `episode_facts` gave.

    Raises:
        ValueError: Fields are missing, or have other shapes or dtypes than the Spec says.
    """
    for field in spec.fields:
        rows = fields.get(field.name)
        expected = (facts["rows"], *field.shape)
        if rows is None or rows.shape != expected or rows.dtype != field.numpy_dtype:
            got = "none" if rows is None else f"{rows.dtype} {rows.shape}"
            raise ValueError(
                f"episode {number}: expected {field.name!r} as {field.dtype} {expected}, got "
                f"{got}: the data set was changed since it was exported; remove Stepwell's record "
                f"of it to read what is there"
            )
    return Episode(
        spec,
        number,
        int(facts["stream"]),
        int(facts["first_row"]),
        End(int(facts["end"])),
        {field.name: fields[field.name] for field in spec.fields},
        facts["metadata"],
    )


def _json_of(text: str | bytes) -> dict[str, Any]:
    """A JSON object; an empty one where the text is something else."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


class Beside:
    """A folder ``stepwell/`` beside the files of a format that cannot hold everything.

    ``store.json`` is the record; ``000017.npz`` holds what the format lacks of episode 17, as
    arrays by names of the caller's choice, and its facts.

    Args:
        folder: The folder itself.
    """

    NAME: Final = "stepwell"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def found(cls, parent: Path) -> Beside | None:
        """What lies in a folder; None where Stepwell did not write it."""
        folder = parent / cls.NAME
        return cls(folder) if (folder / "store.json").is_file() else None

    def begin(self, source: Source) -> None:
        """Make the folder, with the record."""
        self.folder.mkdir()
        (self.folder / "store.json").write_text(record_of(source), encoding="utf-8")

    def record(self) -> Record:
        """Read the record.

        Raises:
            ValueError: It is none.
        """
        file = self.folder / "store.json"
        return Record.read(file.read_bytes(), file)

    def put(self, number: int, episode: Episode, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep an episode's facts, and arrays that the format lacks, compressed."""
        facts = np.frombuffer(json.dumps(episode_facts(episode)).encode(), np.uint8)
        # Any: numpy's own keywords have types that arrays do not have.
        named: dict[str, Any] = {"/facts": facts, **arrays}
        np.savez_compressed(self._file(number), **named)

    def take(self, number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The facts and the arrays of an episode.

        Raises:
            ValueError: There are none.
        """
        file = self._file(number)
        if not file.is_file():
            raise ValueError(
                f"{file}: expected what Stepwell noted about episode {number}, got nothing: the "
                f"data set was changed since it was exported; remove {self.folder} to read what is "
                f"there"
            )
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            return json.loads(found.pop("/facts").tobytes()), found
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                f"{file}: expected what Stepwell noted about episode {number}, got another or a "
                f"damaged file ({error}); remove {self.folder} to read what is there"
            ) from error

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"
