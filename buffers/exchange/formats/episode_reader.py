"""The part of a reader that all formats share: columns of a data set become episodes, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any, Final

import numpy as np

from ...rows.episode import End, Episode
from ...rows.step_columns import Rounded, has_final_row, joined
from ...spec.spec import Spec

NO_STREAMS: Final = "streams are not recorded: all episodes are of stream 0"
NO_METADATA: Final = "streams and metadata are not recorded: all episodes are of stream 0"


class Notes:
    """Clauses for the user of a data set, each once; some of them count."""

    def __init__(self, *clauses: str) -> None:
        self._counts: dict[str, int | None] = dict.fromkeys(clauses)

    def add(self, clause: str) -> None:
        """Add a clause, if it is not there."""
        self._counts.setdefault(clause)

    def count(self, clause: str, more: int = 1) -> None:
        """Count what a clause tells of; its ``{}`` stands for the number."""
        self._counts[clause] = (self._counts.get(clause) or 0) + more

    def restart(self) -> None:
        """Count from zero again."""
        self._counts = {c: None if n is None else 0 for c, n in self._counts.items()}

    def __iter__(self) -> Iterator[str]:
        for clause, count in self._counts.items():
            if count is None:
                yield clause
            elif count:
                yield clause.replace("{}", f"{count:,}", 1)


@dataclass(slots=True)
class FoundEpisode:
    """An episode of T steps, as a data set holds it; nothing of it is checked yet."""

    where: str  # its name, for messages
    columns: dict[str, np.ndarray]  # as `joined` takes them; the rewards in any dtype
    end: End
    metadata: Mapping[str, object] = default(default_factory=dict)
    edges: Mapping[str, np.ndarray] = default(default_factory=dict)  # as `joined` takes them
    stream: int = 0
    first_row: int = 0
    steps: int | None = None  # T, if the data set tells it apart from the columns
    cure: str = "fix it, or leave that episode out"


class EpisodeReader:
    """A `Reader` of a format that says where its columns are, and nothing else."""

    # A subclass sets `spec`, most often the `inferred_spec` of its first episode, and gives
    # `_found`. All episodes are then compared with that Spec in one place.

    spec: Spec
    sessions: Sequence[Mapping[str, object]] = ()
    episodes: int | None = None
    steps: int | None = None

    def __init__(self, *notes: str) -> None:
        self._notes = Notes(*notes)
        self._rewards = Rounded("rewards", "float64")

    @property
    def notes(self) -> Sequence[str]:
        """Facts that the data set does not hold, or not exactly, one clause each."""
        return [*self._notes, *self._rewards.notes]

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written."""
        self._notes.restart()
        for number, found in enumerate(self._found()):
            yield self._checked(number, found)

    def close(self) -> None:
        """Close files; by default, only the iterator holds open ones."""

    def _found(self) -> Iterator[FoundEpisode]:
        raise NotImplementedError

    def _checked(self, number: int, found: FoundEpisode) -> Episode:
        """The episode, if its columns are those of the Spec."""
        where, columns, edges = found.where, found.columns, found.edges
        columns["reward"] = self._rewards.cast(columns["reward"])
        steps = len(columns["reward"]) if found.steps is None else found.steps
        if set(columns) != set(self.spec.names):
            raise ValueError(
                f"{where}: expected the columns {', '.join(self.spec.names)}, as in the first "
                f"episode, got {', '.join(columns)}; {found.cure}"
            )
        for field in self.spec.fields:
            rows = columns[field.name]
            expected = (steps + has_final_row(field.name), *field.shape)
            edge = edges.get(field.name)
            is_right = edge is None or (edge.dtype, edge.shape) == (rows.dtype, (1, *field.shape))
            if rows.shape != expected or rows.dtype != field.numpy_dtype or not is_right:
                raise ValueError(
                    f"{where}: expected {field.name!r} as {field.dtype} {expected} for {steps:,} "
                    f"steps, as in the first episode, got {rows.dtype} {rows.shape}; {found.cure}"
                )
        return Episode(
            self.spec,
            number,
            found.stream,
            found.first_row,
            found.end,
            joined(self.spec, columns, edges),
            found.metadata,
        )


def end_of(flags: Mapping[str, np.ndarray], where: str, cure: str) -> End:
    """The end that flags [T] of the steps mark: first of termination, then of truncation."""
    end = End.NONE
    for (name, marks), flag in zip(flags.items(), (End.TERMINATED, End.TRUNCATED), strict=True):
        if marks[:-1].any():
            raise ValueError(
                f"{where}: expected {name} to be set in the last step of an episode alone, got it "
                f"in step {int(marks.argmax())} of {len(marks):,} steps; {cure}"
            )
        end |= flag if marks[-1:].any() else End.NONE
    return end


def plain(value: Any) -> Any:
    """A value of a file as plain data for JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value if isinstance(value, str | int | float | None) else str(value)
