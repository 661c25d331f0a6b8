"""Chooses episodes by a condition on their metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from stepwell.buffers.episode import End

__all__ = ["EpisodeFilter", "Where", "check_where", "chooses"]

Where: TypeAlias = "Mapping[str, object] | Callable[[Mapping[str, object]], bool]"
"""A condition on an episode's metadata: keys with the values that they must have, or a function
that returns True for the metadata of a chosen episode."""


class EpisodeFilter:
    """Remembers for each stored chunk whether its episode is chosen, decided once per episode.

    Args:
        where: The condition.

    Raises:
        TypeError: It is neither a mapping nor a function.
    """

    def __init__(self, where: Where) -> None:
        check_where(where)
        self._where = where
        self._verdicts = np.zeros(64, np.bool_)
        self._begin = 0
        self._known = 0

    def __str__(self) -> str:
        return f"where={self._where!r}"

    def update(
        self,
        records: np.ndarray,
        base: int,
        metadata: Callable[[int], Mapping[str, object]],
    ) -> EpisodeFilter:
        """Decide on the chunks that are new; returns itself.

        Args:
            records: All live records of the `ChunkIndex`.
            base: Position of the first one.
            metadata: Returns the metadata of the chunk at a position.
        """
        self._forget_before(base)
        if len(records) > len(self._verdicts):
            grown = np.zeros(2 * len(records), np.bool_)
            grown[: self._known] = self._verdicts[: self._known]
            self._verdicts = grown
        # Only new chunks: this is called before every draw.
        new = records[self._known :]
        places = enumerate(zip(new["previous"].tolist(), new["end"].tolist(), strict=True))
        for place, (previous, end) in places:
            index = self._known + place
            if previous >= base:  # the same episode
                verdict = self._verdicts[previous - base]
            else:
                is_lost = end & End.LOST
                verdict = not is_lost and chooses(self._where, metadata(index + base))
            self._verdicts[index] = verdict
        self._known = len(records)
        return self

    def verdicts(self, position: int, count: int) -> np.ndarray:
        """[count] bool: the episodes of ``count`` chunks from a position on are chosen."""
        return self._verdicts[position - self._begin : position - self._begin + count]

    def _forget_before(self, position: int) -> None:
        """Forget chunks that were evicted."""
        gone = min(position - self._begin, self._known)
        self._verdicts = self._verdicts[gone:].copy() if gone else self._verdicts
        self._known -= gone
        self._begin = position


def check_where(where: Where) -> None:
    """Refuse an invalid condition.

    Raises:
        TypeError: It is neither a mapping nor a function.
    """
    if not isinstance(where, Mapping) and not callable(where):
        raise TypeError(
            f"where: expected a mapping of metadata keys to values, or a function of the metadata, "
            f"got {where!r}"
        )


def chooses(where: Where, metadata: Mapping[str, object]) -> bool:
    """True if the condition holds for this metadata.

    Example:
        >>> chooses({"task": "door"}, {"task": "door", "seed": 3})
        True
        >>> chooses(lambda metadata: metadata["seed"] > 5, {"task": "door", "seed": 3})
        False
    """
    if not isinstance(where, Mapping):
        return bool(where(metadata))
    return all(key in metadata and _same(metadata[key], value) for key, value in where.items())


def _same(stored: object, wanted: object) -> bool:
    """Equal as in JSON: a tuple is a list, but True is not 1."""
    plain = list(wanted) if isinstance(wanted, tuple) else wanted
    return bool(stored == plain) and isinstance(stored, bool) == isinstance(plain, bool | np.bool_)
