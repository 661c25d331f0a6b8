"""Selects episodes by conditions on whole episodes."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.buffers.curation.stored_episode import StoredEpisode
from stepwell.buffers.storage.episode_filter import Where, check_where, chooses

__all__ = ["EpisodeSelection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSelection:
    """A condition on episodes: all given conditions must hold.

    Returns and steps are those of the stored rows, also for a cut episode.

    Args:
        where: Condition on the metadata: keys with their values, or a function of the metadata.
        ids: Ranges of episode ids.
        min_return: Least sum of rewards.
        max_return: Greatest sum of rewards.
        min_steps: Least number of env steps.
        max_steps: Greatest number of env steps.
        has_ended: True: terminated or truncated. False: ended by a cut.

    Raises:
        ValueError: A number is NaN, or a minimum is above its maximum.
        TypeError: ``where`` is neither a mapping nor a function.

    Example:
        >>> good = EpisodeSelection(min_return=18, has_ended=True)
        >>> good.to_json()
        {'min_return': 18, 'has_ended': True}
    """

    where: Where | None = None
    ids: tuple[range, ...] | None = None
    min_return: float | None = None
    max_return: float | None = None
    min_steps: int | None = None
    max_steps: int | None = None
    has_ended: bool | None = None

    def __post_init__(self) -> None:
        if self.where is not None:
            check_where(self.where)
        for name in ("return", "steps"):
            least, most = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            for end, value in (("min", least), ("max", most)):
                if value is None:
                    continue
                if not isinstance(value, numbers.Real) or math.isnan(value):
                    raise ValueError(
                        f"{end}_{name}: expected a number, got {value!r}: give another"
                    )
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"min_{name}: expected at most max_{name}={most}, got {least}: no episode can "
                    f"be both; swap them"
                )

    @property
    def is_empty(self) -> bool:
        """True if there is no condition, so that every episode is kept."""
        return not self.to_json()

    def __call__(self, episode: StoredEpisode) -> bool:
        """True if the episode is to be kept; its rewards are read last, and only if needed."""
        return (
            (self.ids is None or any(episode.id in ids for ids in self.ids))
            and (self.has_ended is None or episode.has_ended == self.has_ended)
            and _is_within(episode.steps, self.min_steps, self.max_steps)
            and (self.where is None or chooses(self.where, episode.metadata))
            and (
                (self.min_return is None and self.max_return is None)
                or _is_within(episode.total_reward, self.min_return, self.max_return)
            )
        )

    def to_json(self) -> dict[str, object]:
        """The conditions as plain data; a function by its name."""
        where, ids = self.where, self.ids
        facts: dict[str, object] = {
            "where": dict(where) if isinstance(where, Mapping) else _name_of(where),
            "ids": None if ids is None else [[one.start, one.stop - 1] for one in ids],
            "min_return": self.min_return,
            "max_return": self.max_return,
            "min_steps": self.min_steps,
            "max_steps": self.max_steps,
            "has_ended": self.has_ended,
        }
        return {name: value for name, value in facts.items() if value is not None}


def _is_within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _name_of(function: object) -> str | None:
    return None if function is None else str(getattr(function, "__qualname__", function))
