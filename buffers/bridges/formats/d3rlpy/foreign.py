"""d3rlpy's episodes that somebody else made, and what they cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepwell.buffers.curation.step_columns import inferred_spec, joined
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.spec import Spec

__all__ = ["ForeignEpisodes"]


class ForeignEpisodes:
    """Makes Stepwell's episodes of d3rlpy's four columns.

    Of N rows that end with a termination N steps are made, with an observation of zeros behind
    them, which is what d3rlpy's own transitions have there. Of N other rows N - 1 steps are made:
    what the last action led to is not known.

    Args:
        first: Columns of the first episode, which settles what the rows are; empty for none.
        where: What holds them, for the sentences of errors.

    Raises:
        ValueError: They are no episode.
    """

    def __init__(self, first: Mapping[str, Any], where: str) -> None:
        if not first:
            raise ValueError(f"{where}: expected at least one episode, got none")
        self._where = where
        self._terminated = self._open = 0
        named = self._named(0, first)
        spec = inferred_spec(named, where)
        if isinstance(first["observations"], list | tuple):
            names = [name for name in spec.names if name.startswith("observation/")]
            spec = replace(spec, observation=names)
        self.spec: Spec = spec

    @property
    def notes(self) -> Sequence[str]:
        """What the rows do not tell."""
        found = ["streams and metadata are not told: all episodes are of stream 0"]
        if self._terminated:
            found.append(
                f"last observations of terminated episodes are zeros, {self._terminated:,} in all, "
                f"as in d3rlpy's own transitions, which keep none"
            )
        if self._open:
            found.append(
                f"episodes without a termination are taken for truncated, {self._open:,} in all, "
                f"without the action and the reward of the last row: d3rlpy makes no transition "
                f"of it"
            )
        return found

    def episode(self, number: int, columns: Mapping[str, Any]) -> Episode:
        """An episode.

        Args:
            number: Its place.
            columns: ``observations``, ``actions``, ``rewards`` and ``terminated``.

        Raises:
            ValueError: Its rows are not like the first one's.
        """
        named = self._checked(number, columns)
        named["reward"] = named["reward"].astype(np.float64)
        is_terminated = bool(columns["terminated"])
        self._terminated += is_terminated
        self._open += not is_terminated
        rows = joined(self.spec, named, {})
        end = End.TERMINATED if is_terminated else End.TRUNCATED
        return Episode(self.spec, number, 0, 0, end, rows, {})

    def check(self, number: int, columns: Mapping[str, Any]) -> None:
        """Refuse an episode that `episode` would refuse."""
        self._checked(number, columns)

    def _checked(self, number: int, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Columns that are like the first one's."""
        named = self._named(number, columns)
        for field in self.spec.fields:
            rows = named.get(field.name, np.empty(0))
            is_float = field.name == "reward" and rows.dtype.kind in "biuf"
            if rows.shape[1:] != field.shape or (rows.dtype != field.numpy_dtype and not is_float):
                raise ValueError(
                    f"{self._where}: expected {field.name} of episode {number} as {field.dtype} "
                    f"{field.shape}, as in the first one, got {rows.dtype} {rows.shape[1:]}; leave "
                    f"that episode out"
                )
        return named

    def _named(self, number: int, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """T + 1 observations, T of all else, by field name.

        Raises:
            ValueError: The columns have other shapes.
        """
        shown = columns["observations"]
        is_several = isinstance(shown, list | tuple)
        parts = [np.asarray(part) for part in (shown if is_several else [shown])]
        action, reward = np.asarray(columns["actions"]), np.asarray(columns["rewards"])
        rows = len(action) if action.ndim else 0
        is_right = action.ndim == 2 and reward.shape in ((rows, 1), (rows,))
        if not rows or not is_right or any(p.shape[:1] != (rows,) for p in parts):
            raise ValueError(
                f"{self._where}: expected observations, actions [N, A] and rewards [N, 1] of "
                f"episode {number}, got {[part.shape for part in parts]}, {action.shape} and "
                f"{reward.shape}; mend it"
            )
        if action.dtype.kind in "iu" and action.shape[1] == 1:
            action = action[:, 0]
        if columns["terminated"]:
            parts = [np.concatenate([part, np.zeros_like(part[:1])]) for part in parts]
        else:
            action, reward = action[:-1], reward[:-1]
        names = [f"observation/{place}" for place in range(len(parts))]
        found = dict(zip(names if is_several else ["observation"], parts, strict=True))
        return {**found, "action": action, "reward": reward.reshape(-1)}
