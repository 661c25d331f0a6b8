"""LeRobot's features: how the fields of a store are called there, and what each row is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.parquet.columns import Column
from stepwell.buffers.bridges.formats.png import picture_axes
from stepwell.buffers.curation.step_columns import split
from stepwell.buffers.episode import Episode
from stepwell.buffers.spec import Field, Spec

__all__ = ["FrameTable", "Place"]

_REWARD: Final = "next.reward"
_FLAGS: Final = ("next.done", "next.terminated", "next.truncated")
_COUNTS: Final = ("frame_index", "episode_index", "index", "task_index")


class Place:
    """Where an episode begins in a data set.

    Args:
        episode: Its number.
        index: Number of its first frame in the data set.
    """

    def __init__(self, episode: int, index: int) -> None:
        self.episode = episode
        self.index = index


class FrameTable:
    """The table of frames: a row for each env step, with the observation that it began with.

    Args:
        spec: The fields of every row.
        fps: Env steps a second, for the time stamps.

    Raises:
        ValueError: LeRobot cannot hold a field, or two would have one name.
    """

    def __init__(self, spec: Spec, fps: int) -> None:
        self._spec = spec
        self._fps = fps
        self.names = {field.name: _name(field) for field in spec.fields}
        """Feature names by field name."""
        twice = {n: f for f, n in self.names.items()}
        for field, name in self.names.items():
            if twice[name] != field or "/" in name:
                raise ValueError(
                    f"fields {field!r} and {twice[name]!r}: expected two names in LeRobot, got "
                    f"{name!r} for both; rename a key of the space"
                )
        self.columns = [
            *(self._column(field) for field in spec.fields),
            *(Column(name, "bool") for name in _FLAGS),
            Column("timestamp", "float32"),
            *(Column(name, "int64") for name in _COUNTS),
        ]

    @property
    def pictures(self) -> set[str]:
        """Names of features that are pictures."""
        return {column.name for column in self.columns if column.kind == "png"}

    def features(self) -> dict[str, dict[str, Any]]:
        """What ``meta/info.json`` says of them."""
        return {column.name: _feature(column) for column in self.columns}

    def rows(self, episode: Episode, place: Place) -> dict[str, np.ndarray]:
        """The rows of an episode's frames, [T, ...] by feature name."""
        columns = split(episode)
        steps = columns.steps
        frame = np.arange(steps, dtype=np.int64)
        with np.errstate(over="ignore"):
            reward = columns.reward.astype(np.float32)
        arrived = {**columns.observation, **columns.info}
        chosen = {**columns.action, **columns.extra}
        named = {**{name: rows[:-1] for name, rows in arrived.items()}, **chosen}
        flat = {
            self.names[name]: rows.reshape(steps) if rows.shape[1:] == (1,) else rows
            for name, rows in named.items()
        }
        return {
            **flat,
            _REWARD: reward,
            "next.done": columns.terminated | columns.truncated,
            "next.terminated": columns.terminated,
            "next.truncated": columns.truncated,
            "timestamp": (frame / self._fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(steps, place.episode, np.int64),
            "index": frame + place.index,
            "task_index": np.zeros(steps, np.int64),
        }

    def beside(self, episode: Episode) -> dict[str, np.ndarray]:
        """What `rows` has no place for: the last row, edges, and rewards that float32 rounds."""
        columns = split(episode)
        with np.errstate(over="ignore"):
            rounded = columns.reward.astype(np.float32).astype(np.float64)
        is_exact = rounded.tobytes() == np.ascontiguousarray(columns.reward).tobytes()
        arrived = {**columns.observation, **columns.info}
        return {
            **{f"final/{name}": rows[-1:] for name, rows in arrived.items()},
            **{f"edge/{name}": row for name, row in columns.edges.items()},
            **({} if is_exact else {"rewards": columns.reward}),
        }

    def fields(
        self, rows: Mapping[str, np.ndarray], beside: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What `step_columns.joined` takes: columns, and edges.

        Args:
            rows: What `rows` gave.
            beside: What `beside` gave.
        """
        found: dict[str, np.ndarray] = {}
        for field in self._spec.fields:
            column = rows[self.names[field.name]].reshape(-1, *field.shape)
            if field.name == "reward":
                column = beside.get("rewards", column.astype(np.float64))
            elif field.name.split("/")[0] in ("observation", "info"):
                column = np.concatenate([column, beside[f"final/{field.name}"]])
            found[field.name] = column
        start = "edge/"
        edges = {n.removeprefix(start): row for n, row in beside.items() if n.startswith(start)}
        return found, edges

    def _column(self, field: Field) -> Column:
        name = self.names[field.name]
        if field.name == "reward":
            return Column(name, "float32")
        if 0 in field.shape:
            raise ValueError(
                f"field {field.name!r}: expected at least one number a row, got shape "
                f"{field.shape}, which LeRobot cannot hold; leave it out of the env's space"
            )
        column = Column.of(name, field, "png")
        return Column(name, field.dtype) if field.shape == (1,) else column


def _name(field: Field) -> str:
    """The feature's name: LeRobot's own where it has one, else the field's with dots."""
    if field.name == "reward":
        return _REWARD
    first, _, rest = field.name.partition("/")
    if first != "observation":
        return field.name.replace("/", ".")
    if picture_axes(field) is not None:
        return f"observation.images.{rest.replace('/', '.')}" if rest else "observation.image"
    return f"observation.{rest.replace('/', '.') or 'state'}"


def _feature(column: Column) -> dict[str, Any]:
    if column.kind != "png":
        return {"dtype": column.dtype, "shape": list(column.shape or (1,)), "names": None}
    shape = column.shape
    if column.axes == "chw":
        shape = (*shape[1:], shape[0])
    return {
        "dtype": "image",
        "shape": [*shape, 1] if len(shape) == 2 else list(shape),
        "names": ["height", "width", "channels"],
    }
