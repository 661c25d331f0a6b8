"""Folders of memmap-replay-buffer, read as rows of transitions; they are not written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from ...base.untrusted_files import GivenFiles
from ...dropin.memmap.config import MemmapField, to_plain
from ...dropin.memmap.original import OriginalEpisode, OriginalFolder
from ...rows.episode import End
from ...rows.episode_buffer import OBSERVED
from ...spec.spec import Field, Spec, field_of
from .episode_reader import EpisodeReader, FoundEpisode
from .format import Format

_SCALAR: Final = ((), (1,))
_FLAGS: Final = ("terminated", "truncated")


@dataclass(frozen=True, slots=True)
class MemmapImport:
    """Options of memmap-replay-buffer: the names of its fields, which each user chose.

    Args:
        observation: Field that actions are chosen from. The first three must be given.
        action: Field that is chosen.
        reward: Field that follows from the action.
        terminated: Field with 1 where the action ended the MDP; without it and truncated every
            episode ends with a cut.
        truncated: Field with 1 where the env's clock ended the episode.
    """

    observation: str | None = None
    action: str | None = None
    reward: str | None = None
    terminated: str | None = None
    truncated: str | None = None


class MemmapFormat(Format):
    """``metadata.pkl`` and an array of [slots, steps] for each field, as `OriginalFolder` reads."""

    name = "memmap-replay-buffer"
    about = "a folder of memmap-replay-buffer 0.1 or 0.2; import only"
    import_options = MemmapImport

    def reader(self, files: GivenFiles, options: MemmapImport) -> _MemmapReader:
        """Open a folder."""
        return _MemmapReader(OriginalFolder(files.path, max_bytes=files.max_bytes), options)


class _MemmapReader(EpisodeReader):
    """Converts the episodes of the folder to rows like those of a Collector."""

    # Rewards and flags move to the row after their step. The original has no observation after an
    # episode's last step: the last row repeats the one before, and its `info/observed` is False.
    # Other fields of steps become `extra/<name>`, fields of episodes become the metadata. A step
    # with a flag ends an episode; the steps after it start another one.

    def __init__(self, original: OriginalFolder, options: MemmapImport) -> None:
        super().__init__()
        self._original = original
        self._episodes = 0
        fields = original.config.fields
        purposes = {purpose: name for purpose, name in asdict(options).items() if name is not None}
        missing = [each for each in ("observation", "action", "reward") if each not in purposes]
        if missing:
            raise ValueError(
                f"{missing[0]}: expected the options observation, action and reward together, got "
                f"none for {missing[0]}; name all three out of the fields {', '.join(fields)}"
            )
        # Flags may be missing, unlike these three: then every episode ends with a cut.
        self._main = purposes
        self._flags = {flag: purposes[flag] for flag in _FLAGS if flag in purposes}
        _check_purposes(fields, purposes)
        self._extras = [name for name in fields if name not in purposes.values()]
        self.episodes = None if self._flags else len(original)
        self.steps = original.steps
        self.spec = Spec(
            (
                _row_field("observation", fields[self._main["observation"]]),
                _row_field("action", fields[self._main["action"]]),
                Field("reward", "float64", (), "narrow"),
                OBSERVED,
                *(_row_field(f"extra/{name}", fields[name]) for name in self._extras),
            ),
            "observation",
            "action",
        )

    @property
    def notes(self) -> Sequence[str]:
        notes = [
            note if note.startswith("not left out") else f"left out: {note}"
            for note in self._original.left_out
        ]
        stored = len(self._original)
        if self._episodes not in (0, stored):
            notes.append(
                f"{stored:,} {'episode' if stored == 1 else 'episodes'} of the folder became "
                f"{self._episodes:,}: flags end some before their last step"
            )
        if not self._flags:
            notes.append(
                "every episode ends with a cut, as no field was named that says how it ended "
                "(terminated, truncated)"
            )
        return notes

    def _found(self) -> Iterator[FoundEpisode]:
        self._episodes = 0
        for stored in self._original:
            yield from self._converted(stored)

    def _converted(self, episode: OriginalEpisode) -> Iterator[FoundEpisode]:
        """Convert an episode: to one, or to more if flags end it before its last step."""
        flags = {flag: _as_bools(flag, name, episode) for flag, name in self._flags.items()}
        is_last = np.zeros(episode.steps, np.bool_)
        for values in flags.values():
            is_last |= values
        is_last[-1] = True
        metadata = {name: to_plain(value) for name, value in episode.metadata.items()}
        start = 0
        for last in np.flatnonzero(is_last).tolist():
            end = End.NONE
            for flag, values in flags.items():
                end |= End[flag.upper()] if values[last] else End.NONE
            columns = self._columns(episode.fields, slice(start, last + 1))
            self._episodes += 1
            yield FoundEpisode(f"slot {episode.slot}", columns, end, metadata)
            start = last + 1

    def _columns(self, fields: Mapping[str, np.ndarray], steps: slice) -> dict[str, np.ndarray]:
        """The columns of some steps."""
        observation = fields[self._main["observation"]][steps]
        return {
            "observation": np.concatenate([observation, observation[-1:]]),
            "action": fields[self._main["action"]][steps],
            "reward": fields[self._main["reward"]][steps].reshape(-1).astype(np.float64),
            OBSERVED.name: np.arange(len(observation) + 1) < len(observation),
            **{f"extra/{name}": fields[name][steps] for name in self._extras},
        }


def _check_purposes(fields: Mapping[str, MemmapField], purposes: Mapping[str, str]) -> None:
    """Raise ValueError for an unknown field, one with two purposes, or one of a wrong shape."""
    used: dict[str, str] = {}
    for purpose, name in purposes.items():
        if name not in fields:
            raise ValueError(
                f"{purpose}: expected one of the fields {', '.join(fields)}, got {name!r}; name "
                f"another one"
            )
        if name in used:
            raise ValueError(
                f"{purpose}: expected another field than that of {used[name]}, got {name!r} for "
                f"both; name two"
            )
        used[name] = purpose
        if purpose not in ("observation", "action") and fields[name].shape not in _SCALAR:
            raise ValueError(
                f"{purpose}: expected a field of one number a step, got {name!r} of shape "
                f"{fields[name].shape}; name another one"
            )


def _row_field(name: str, field: MemmapField) -> Field:
    return field_of(name, field.dtype, field.shape)


def _as_bools(flag: str, name: str, episode: OriginalEpisode) -> np.ndarray:
    """A field of flags as bools [T]."""
    values = episode.fields[name].reshape(-1)
    odd = values[(values != 0) & (values != 1)]
    if odd.size:
        raise ValueError(
            f"{flag}: expected 0 or 1 in field {name!r} at every step, got {odd[0]} in slot "
            f"{episode.slot}; name a field that marks the ends"
        )
    bools: np.ndarray = values.astype(np.bool_)
    return bools
