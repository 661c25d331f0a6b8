"""Rows of steps that somebody else wrote, made into episodes, without anything made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepwell.buffers.curation.step_columns import inferred_spec
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.spec import Spec

__all__ = ["LoneSteps", "StepNotes", "as_flags"]

_EXACT: Final = 2**53


@dataclass(slots=True)
class StepNotes:
    """What was met on the way.

    Args:
        repeated: Terminated episodes whose last observation stands for the final one.
        lost: Episodes whose last reward, and truncation, could not be kept.
    """

    repeated: int = 0
    lost: int = 0

    def texts(self) -> list[str]:
        """A clause each."""
        found: list[str] = []
        if self.repeated:
            found.append(
                f"{self.repeated:,} terminated episodes have no final observation: the last one is "
                f"there twice, which no learner bootstraps from"
            )
        if self.lost:
            found.append(
                f"{self.lost:,} episodes that were not terminated have no final observation: they "
                f"end with a cut at their last one, without the reward that came after it"
            )
        return found


class LoneSteps:
    """Makes episodes of rows (observation, action, what the action brought).

    Without a final observation the last step of an episode leads nowhere. If it terminated, the
    last observation stands for the final one, for its value counts as 0 whatever it shows.
    Otherwise the episode is cut there: its last row has the action, and what that brought is not
    told, as in an episode in whose last step a worker died.

    Args:
        where: What holds them, for the sentence of an error.
    """

    def __init__(self, where: str) -> None:
        self.notes = StepNotes()
        self._where = where
        self.spec: Spec | None = None

    def settle(self, columns: Mapping[str, np.ndarray]) -> Spec:
        """Tell from some rows, of which there is at least one, what the fields are.

        Args:
            columns: [T, ...] by field name.

        Raises:
            ValueError: They make no Spec.
        """
        sample = {
            name: np.concatenate([rows[:1], rows[:1]]) if _arrives(name) else rows[:1]
            for name, rows in columns.items()
        }
        spec = inferred_spec(sample, self._where)
        if self.spec is not None and self.spec != spec:
            raise ValueError(
                f"{self._where}: expected the same columns everywhere, got others: "
                f"{self.spec.difference(spec)}; import the files by themselves"
            )
        self.spec = spec
        return spec

    def episode(
        self,
        number: int,
        columns: Mapping[str, np.ndarray],
        terminated: np.ndarray,
        truncated: np.ndarray,
        final: Mapping[str, np.ndarray] | None = None,
    ) -> Episode:
        """An episode of T >= 1 rows.

        Args:
            number: Its place in the data set.
            columns: [T, ...] by field name.
            terminated: [T] bool: the MDP ended with this step.
            truncated: [T] bool: the env's clock ended the episode with this step.
            final: The final observation, [1, ...] by field name; None if it is not told.

        Raises:
            ValueError: The flags stand within it, or rewards cannot be float64.
        """
        spec = self.settle(columns)
        for name, flags in (("terminated", terminated), ("truncated", truncated)):
            if flags[:-1].any():
                raise ValueError(
                    f"{self._where}: expected {name} to be set in the last step of an episode "
                    f"alone, got it in step {int(flags.argmax())} of episode {number}; name the "
                    f"column that tells episodes apart in the option episode"
                )
        end = (End.TERMINATED if terminated[-1] else End.NONE) | (
            End.TRUNCATED if truncated[-1] else End.NONE
        )
        rows = {**columns, "reward": _as_rewards(columns["reward"], self._where)}
        if final is None and not terminated[-1]:
            self.notes.lost += 1
            shifted = np.concatenate([[0.0], rows["reward"][:-1]])
            return Episode(spec, number, 0, 0, End.NONE, {**rows, "reward": shifted}, {})
        if final is None:
            self.notes.repeated += 1
            final = {}
        found = {name: _continued(name, part, final.get(name)) for name, part in rows.items()}
        return Episode(spec, number, 0, 0, end, found, {})


def as_flags(rows: np.ndarray, name: str, where: str) -> np.ndarray:
    """Flags [T], bool, of booleans or of zeros and ones.

    Raises:
        ValueError: They are something else.
    """
    if rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    if rows.ndim != 1 or not np.isin(rows, (0, 1)).all():
        raise ValueError(
            f"{where}: expected column {name!r} to hold true and false, or 0 and 1, got "
            f"{rows.dtype} of shape {rows.shape}; name another column"
        )
    return rows.astype(np.bool_)


def _arrives(name: str) -> bool:
    return name.partition("/")[0] in ("observation", "info")


def _continued(name: str, rows: np.ndarray, final: np.ndarray | None) -> np.ndarray:
    """A field's T + 1 rows, of T and of what came in the end."""
    if name == "reward":
        return np.concatenate([np.zeros(1), rows])
    if not _arrives(name):
        return np.concatenate([rows, np.zeros((1, *rows.shape[1:]), rows.dtype)])
    return np.concatenate([rows, rows[-1:] if final is None else final])


def _as_rewards(rows: np.ndarray, where: str) -> np.ndarray:
    """Rewards [T] as float64, exactly.

    Raises:
        ValueError: They do not fit.
    """
    if rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    if rows.dtype.kind in "iu" and rows.size and abs(rows.astype(object)).max() > _EXACT:
        raise ValueError(
            f"{where}: expected rewards that float64 holds exactly, got integers beyond 2**53; "
            f"scale them"
        )
    return rows.astype(np.float64)
