"""The two tables of a Parquet data set: one row for each step, and one for each episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.parquet.columns import Column, Images, text_column
from stepwell.buffers.curation.step_columns import frames_of, joined, split, stacks_of
from stepwell.buffers.episode import Episode
from stepwell.buffers.spec import Field, Spec

__all__ = ["EPISODE_FILE", "EpisodeTable", "StepTable"]

EPISODE_FILE: Final = "episodes.parquet"
_FINAL: Final = "final/"
_NEXT: Final = "next_"
_COUNTS: Final = ("episode", "stream", "step")
_FLAGS: Final = ("is_first", "terminated", "truncated")


class StepTable:
    """The table of steps.

    Args:
        spec: The fields of every row.
        images: How pictures are held.
        stack: Whole stacks of frames instead of single ones.
        next_observation: Also what each step led to.
    """

    def __init__(
        self, spec: Spec, images: Images, *, stack: bool = False, next_observation: bool = False
    ) -> None:
        self._spec = spec
        self._stack = stack
        self._observations = [f for f in spec.fields if f.name.split("/")[0] == "observation"]
        after = self._observations if next_observation else []
        self._next = [field.name for field in after]
        held = [Column.of(f.name, f, images, stack=stack and f.stack > 1) for f in spec.fields]
        self.columns = [
            *(Column(name, "int64") for name in _COUNTS),
            *held,
            *(Column(name, "bool") for name in _FLAGS),
            *(Column.of(_NEXT + f.name, f, images, stack=stack and f.stack > 1) for f in after),
        ]
        self.needed = self.columns[: len(self.columns) - len(after)]
        """The columns that the way back needs."""

    def rows(self, episode: Episode, number: int) -> dict[str, np.ndarray]:
        """The rows of an episode's steps, [T, ...] by column name.

        Args:
            episode: One of the spec.
            number: Its place in the data set.

        Raises:
            ValueError: Stacks are wanted of an episode without its first rows.
        """
        columns = split(episode)
        steps = columns.steps
        observation = {
            field.name: self._given(field, columns.observation[field.name], episode.first_row)
            for field in self._observations
        }
        first = np.zeros(steps, np.bool_)
        first[:1] = episode.first_row == 0
        return {
            "episode": np.full(steps, number, np.int64),
            "stream": np.full(steps, episode.stream, np.int64),
            "step": np.arange(episode.first_row, episode.first_row + steps, dtype=np.int64),
            **{name: rows[:-1] for name, rows in observation.items()},
            **columns.action,
            "reward": columns.reward,
            **{name: rows[:-1] for name, rows in columns.info.items()},
            **columns.extra,
            "is_first": first,
            "terminated": columns.terminated,
            "truncated": columns.truncated,
            **{_NEXT + name: observation[name][1:] for name in self._next},
        }

    def fields(
        self, rows: Mapping[str, np.ndarray], edge: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """All rows of an episode, [T + 1, ...] by field name.

        Args:
            rows: What `rows` gave.
            edge: What `EpisodeTable.edge` gave.

        Raises:
            ValueError: Stacks are none.
        """
        found: dict[str, np.ndarray] = {}
        for field in self._spec.fields:
            column = rows[field.name]
            if self._stack and field.stack > 1:
                column = frames_of(column, field) if len(column) else column[:, -1]
            if field.name.split("/")[0] in ("observation", "info"):
                column = np.concatenate([column, edge[field.name]])
            found[field.name] = column
        return joined(self._spec, found, edge)

    def _given(self, field: Field, frames: np.ndarray, first_row: int) -> np.ndarray:
        is_stacked = self._stack and field.stack > 1
        return stacks_of(frames, field, first_row) if is_stacked else frames


class EpisodeTable:
    """The table of episodes.

    Args:
        spec: The fields of every row.
        images: How pictures are held.
    """

    def __init__(self, spec: Spec, images: Images) -> None:
        self._fields = [field for field in spec.fields if field.name != "reward"]
        self.columns = [
            *(Column(name, "int64") for name in ("episode", "stream", "steps", "first_row")),
            Column("return", "float64"),
            *(Column(name, "bool") for name in ("terminated", "truncated", "cut")),
            Column("end", "int64"),
            text_column("metadata"),
            *(Column.of(_FINAL + field.name, field, images) for field in self._fields),
            Column("first/reward", "float64"),
        ]

    def rows(self, episode: Episode, number: int) -> dict[str, np.ndarray]:
        """An episode's row, [1, ...] by column name.

        Args:
            episode: One of the spec.
            number: Its place in the data set.
        """
        with np.errstate(all="ignore"):  # rewards may be anything
            total = float(episode.reward[1:].sum())
        numbers: dict[str, Any] = {
            "episode": number,
            "stream": episode.stream,
            "steps": episode.steps,
            "first_row": episode.first_row,
            "return": total,
            "terminated": bool(episode.terminated[-1]),
            "truncated": bool(episode.truncated[-1]),
            "cut": bool(episode.cut[-1]),
            "end": int(episode.end),
            "metadata": json.dumps(dict(episode.metadata)),
        }
        return {
            **{name: np.array([value]) for name, value in numbers.items()},
            **{_FINAL + f.name: episode.fields[f.name][-1:] for f in self._fields},
            "first/reward": episode.reward[:1],
        }

    def facts(self, row: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What `record.rebuilt` is to be told of an episode, from its row."""
        return {
            "stream": int(row["stream"][0]),
            "first_row": int(row["first_row"][0]),
            "rows": int(row["steps"][0]) + 1,
            "end": int(row["end"][0]),
            "metadata": json.loads(str(row["metadata"][0])),
        }

    def edge(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What has no place among the steps, [1, ...] by field name."""
        return {
            **{field.name: row[_FINAL + field.name] for field in self._fields},
            "reward": row["first/reward"],
        }
