"""What makes the way back exact: facts about a store and its episodes as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.format import Source
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.given_files import GivenFiles, Room, parse_object
from stepwell.buffers.spec import Spec

__all__ = [
    "Beside",
    "Record",
    "check_spec",
    "checked_facts",
    "episode_facts",
    "rebuilt",
    "record_of",
]

_VERSION: Final = 1
_MADE_BY: Final = "stepwell export"
_MOST: Final = 2**62
_ENDS: Final = End.TERMINATED | End.TRUNCATED | End.PENDING


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
        data = parse_object(text, where)
        version = data.get("version") if data.get("made_by") == _MADE_BY else None
        if type(version) is not int:
            raise ValueError(f"{where}: expected a record of `{_MADE_BY}`, got something else")
        if version > _VERSION:
            raise ValueError(
                f"{where}: expected a record of version {_VERSION} at most, got {version}: it was "
                f"written by a newer Stepwell; update this one"
            )
        try:
            spec = Spec.from_json(data["spec"])
            check_spec(spec, where)
            sessions, counts = data["sessions"], (data["episodes"], data["steps"])
            is_whole = isinstance(sessions, list) and all(isinstance(s, dict) for s in sessions)
            if not is_whole or any(n is not None and not _is_count(n) for n in counts):
                raise ValueError("sessions, episodes or steps are none")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"{where}: expected a record of `{_MADE_BY}`, got a damaged one "
                f"({' '.join(str(error).split())[:200]}); put it back from a copy"
            ) from error
        return cls(spec, sessions, *counts)


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
        ValueError: Fields are missing, or have other shapes or dtypes than the Spec says; or the
            facts are none.
    """
    _check_facts(facts, f"episode {number}")
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


def checked_facts(text: str | bytes, where: object) -> dict[str, Any]:
    """What `episode_facts` gave, from JSON.

    Args:
        text: JSON.
        where: Where it was found, for the sentence of an error.

    Raises:
        ValueError: It is something else.
    """
    facts = parse_object(text, where)
    _check_facts(facts, where)
    return facts


def check_spec(spec: Spec, where: object) -> None:
    """Refuse a Spec that no store could have.

    Args:
        spec: As a file tells it.
        where: What tells it, for the sentence of an error.

    Raises:
        ValueError: A name cannot be printed, or there is no reward.
    """
    for field in spec.fields:
        if not (field.name.isprintable() and field.name):
            raise ValueError(
                f"{where}: expected fields with names that can be printed, got "
                f"{field.name[:60]!r}; put it back from a copy"
            )
    if "reward" not in spec.names or spec["reward"].shape:
        raise ValueError(f"{where}: expected a field 'reward', got {spec.names}; put it back")


def _check_facts(facts: Mapping[str, Any], where: object) -> None:
    """Refuse facts that no episode has.

    Raises:
        ValueError: A number is none, or too large.
    """
    counts = [facts.get(name) for name in ("stream", "first_row", "rows", "end")]
    is_whole = all(map(_is_count, counts)) and isinstance(facts.get("metadata"), Mapping)
    if not is_whole or not facts["rows"] or facts["end"] & ~int(_ENDS):
        raise ValueError(
            f"{where}: expected stream, first_row, rows, end and metadata of an episode, got "
            f"{str(dict(facts))[:200]}; the data set was changed since it was exported"
        )


def _is_count(value: object) -> bool:
    """Whether it is a whole number of 0 or more that 64 bits can hold."""
    return type(value) is int and 0 <= value < _MOST


class Beside:
    """A folder ``stepwell/`` beside the files of a format that cannot hold everything.

    ``store.json`` is the record; ``000017.npz`` holds what the format lacks of episode 17, as
    arrays by names of the caller's choice, and its facts.

    Args:
        folder: The folder itself.
    """

    NAME: Final = "stepwell"

    def __init__(self, folder: Path, given: GivenFiles | None = None) -> None:
        self.folder = folder
        self._given = given or GivenFiles(folder)

    @classmethod
    def found(cls, given: GivenFiles) -> Beside | None:
        """What lies in a data set's folder; None where Stepwell did not write it."""
        folder = given.path / cls.NAME
        return cls(folder, given) if (folder / "store.json").exists() else None

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
        return Record.read(self._given.read_bytes(file), file)

    def told(self, name: str) -> dict[str, Any]:
        """What else a format noted for all episodes, in a JSON file of that name.

        Raises:
            ValueError: There is none, or it is damaged.
        """
        file = self.folder / name
        try:
            return self._given.read_json(file)
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"{file}: expected what Stepwell noted about the {file.stem}, got none ({error}): "
                f"remove {self.folder} to read what is there"
            ) from error

    def put(self, number: int, episode: Episode, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep an episode's facts, and arrays that the format lacks, compressed."""
        facts = np.frombuffer(json.dumps(episode_facts(episode)).encode(), np.uint8)
        # Any: numpy's own keywords have types that arrays do not have.
        named: dict[str, Any] = {"/facts": facts, **arrays}
        np.savez_compressed(self._file(number), **named)

    def take(
        self, number: int, room: Room | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The facts and the arrays of an episode.

        Args:
            number: Its place in the data set.
            room: The memory that the episode may still take.

        Raises:
            ValueError: There are none.
        """
        file = self._file(number)
        if not file.exists():
            raise ValueError(
                f"{file}: expected what Stepwell noted about episode {number}, got nothing: the "
                f"data set was changed since it was exported; remove {self.folder} to read what is "
                f"there"
            )
        try:
            found = self._given.read_arrays(file, room)
        except ValueError as error:
            raise ValueError(
                f"{error}; without {self.folder} the data set is read as anybody's"
            ) from error
        if "/facts" not in found:
            raise ValueError(
                f"{file}: expected what Stepwell noted about episode {number}, got arrays alone; "
                f"remove {self.folder} to read what is there"
            )
        return checked_facts(found.pop("/facts").tobytes(), file), found

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"
