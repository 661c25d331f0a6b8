"""Folders of memmap-replay-buffer, read as rows of transitions; they are not written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from stepwell.buffers.bridges.formats.format import Format, Source, Writer
from stepwell.buffers.dropin.memmap.original import OriginalFolder
from stepwell.buffers.dropin.memmap.transition_rows import RowNames, TransitionRows
from stepwell.buffers.episode import Episode
from stepwell.buffers.given_files import GivenFiles
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.disk.publish import Kind

__all__ = ["MemmapFormat", "MemmapImport", "left_out_notes"]


@dataclass(frozen=True, slots=True)
class MemmapImport:
    """Options of memmap-replay-buffer: the names of its fields, which each user chose.

    Args:
        observation: Field that actions are chosen from. Without the first three the command makes
            a folder for stepwell.buffers.dropin.memmap instead of a store.
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
    """``metadata.pkl`` and one array of [slots, steps] for each field, as `OriginalFolder` reads.

    A step's reward and flags go with the next row. An episode's final observation is not in the
    folder: its last row repeats the one before, and ``info/observed`` is False there.
    """

    name: ClassVar[str] = "memmap-replay-buffer"
    about: ClassVar[str] = "a folder of memmap-replay-buffer 0.1 or 0.2; import only"
    install: ClassVar[str | None] = None
    kind: ClassVar[Kind] = "folder"
    export_options: ClassVar[type[Any] | None] = None
    import_options: ClassVar[type[Any]] = MemmapImport

    def writer(self, source: Source, options: Any) -> Writer:
        """Not available: `export_options` is None."""
        raise NotImplementedError("import only")

    def reader(self, files: GivenFiles, options: MemmapImport) -> _Reader:
        """Open a folder."""
        return _Reader(OriginalFolder(files.path, max_bytes=files.max_bytes), options)

    def loading(self, path: Path, out: str) -> str:
        """Not available, as there is no writer."""
        raise NotImplementedError("import only")


class _Reader:
    def __init__(self, original: OriginalFolder, options: MemmapImport) -> None:
        self._original = original
        self._rows = TransitionRows(original.config, _row_names(original, options))
        self._has_flags = (options.terminated, options.truncated) != (None, None)
        self._episodes = 0

    @property
    def spec(self) -> Spec:
        return self._rows.spec

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        return ()

    @property
    def notes(self) -> Sequence[str]:
        notes = left_out_notes(self._original.left_out)
        stored = len(self._original)
        if self._episodes not in (0, stored):
            notes.append(
                f"{stored:,} {'episode' if stored == 1 else 'episodes'} of the folder became "
                f"{self._episodes:,}: flags end some before their last step"
            )
        if not self._has_flags:
            notes.append(
                "every episode ends with a cut, as no field was named that says how it ended "
                "(terminated, truncated)"
            )
        return notes

    @property
    def episodes(self) -> int | None:
        return None if self._has_flags else len(self._original)

    @property
    def steps(self) -> int | None:
        return self._original.steps

    def __iter__(self) -> Iterator[Episode]:
        self._episodes = 0
        for stored in self._original:
            for chunk in self._rows.chunks(stored, self._episodes):
                self._episodes += 1
                yield Episode(
                    spec=self.spec,
                    id=chunk.episode,
                    stream=chunk.stream,
                    first_row=chunk.first_row,
                    end=chunk.end,
                    fields=chunk.fields,
                    metadata=chunk.metadata,
                )

    def close(self) -> None:
        """Nothing is open."""


def left_out_notes(left_out: Sequence[str]) -> list[str]:
    """Return notes about episodes that are not read."""
    return [note if note.startswith("not left out") else f"left out: {note}" for note in left_out]


def _row_names(original: OriginalFolder, options: MemmapImport) -> RowNames:
    """Return the names of the fields.

    Raises:
        ValueError: One of those that are needed is missing.
    """
    observation, action, reward = options.observation, options.action, options.reward
    if observation is None or action is None or reward is None:
        names = {"observation": observation, "action": action, "reward": reward}
        missing = next(key for key, name in names.items() if name is None)
        fields = ", ".join(field.name for field in original.config.fields)
        raise ValueError(
            f"{missing}: expected the options observation, action and reward together, got none "
            f"for {missing}; name all three out of the fields {fields}"
        )
    return RowNames(
        observation=observation,
        action=action,
        reward=reward,
        terminated=options.terminated,
        truncated=options.truncated,
    )
