"""Statistics of features, as LeRobot's policies use them to normalize their inputs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.formats.parquet.columns import Column

__all__ = ["RunningStats", "episode_stats"]

Stats = dict[str, np.ndarray]

_QUANTILES: Final = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_PICTURES: Final = 100
"""Pictures of an episode that are looked at, evenly spread."""
_NUMBERS: Final = 10_000_000
"""Numbers of an episode that are looked at; of more, evenly spread rows, but for the extremes."""


def episode_stats(column: Column, rows: np.ndarray) -> Stats:
    """Statistics over one episode: of each number of a row, or of each channel of pictures.

    Args:
        column: What the rows are.
        rows: [T, ...], T >= 1.

    Returns:
        ``min``, ``max``, ``mean``, ``std`` and quantiles, float64: of the shape of a row ((1,) for
        a single number), or (C, 1, 1) for pictures, whose values count from 0 to 1. ``count`` (1,)
        int64.

    Example:
        >>> stats = episode_stats(Column("x", "float32"), np.array([1.0, 3.0], np.float32))
        >>> stats["mean"], stats["q50"], stats["count"]
        (array([2.]), array([2.]), array([2]))
    """
    if column.kind == "png":
        return _picture_stats(column, rows)
    values = rows.reshape(len(rows), *(column.shape or (1,)))
    chosen = _spread(len(rows), max(1, _NUMBERS // max(1, values[0].size)))
    with np.errstate(all="ignore"):
        edges = {"min": values.min(0), "max": values.max(0)}
        exact = {name: edge.astype(np.float64) for name, edge in edges.items()}
    return {**_stats(values[chosen].astype(np.float64), len(rows)), **exact}


class RunningStats:
    """Statistics over many episodes, from those of each."""

    def __init__(self) -> None:
        self._now: Stats | None = None

    def add(self, stats: Stats) -> None:
        """Count an episode in.

        Quantiles of all rows cannot be told from those of episodes: the lowest of the lower ones
        and the highest of the upper ones are kept, which is what LeRobot does too.
        """
        old = self._now
        if old is None:
            self._now = stats
            return
        with np.errstate(all="ignore"):
            self._now = _both(old, stats)

    def to_json(self) -> dict[str, Any]:
        """Plain lists by name."""
        return {name: values.tolist() for name, values in (self._now or {}).items()}


def _picture_stats(column: Column, rows: np.ndarray) -> Stats:
    pictures = rows[_spread(len(rows), _PICTURES)]
    if column.axes == "hw":
        pictures = pictures[..., None]
    elif column.axes == "chw":
        pictures = np.moveaxis(pictures, 1, -1)
    pixels = pictures.reshape(-1, pictures.shape[-1]).astype(np.float64) / 255
    stats = _stats(pixels, len(pictures))
    return {n: v if n == "count" else v.reshape(-1, 1, 1) for n, v in stats.items()}


def _spread(count: int, at_most: int) -> np.ndarray:
    """Places of some of so many rows, evenly spread."""
    return np.round(np.linspace(0, count - 1, min(count, at_most))).astype(np.int64)


def _stats(values: np.ndarray, count: int) -> Stats:
    with np.errstate(all="ignore"):  # NaN and infinities are the env's own
        quantiles = np.quantile(values, list(_QUANTILES.values()), axis=0)
        return {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
            "count": np.array([count], np.int64),
            **dict(zip(_QUANTILES, quantiles, strict=True)),
        }


def _both(old: Stats, new: Stats) -> Stats:
    """Of two sets of rows together: Chan, Golub and LeVeque's way of joining variances."""
    counts = float(old["count"][0]), float(new["count"][0])
    total = sum(counts)
    share = counts[1] / total
    change = new["mean"] - old["mean"]
    variance = (
        old["std"] ** 2 * (1 - share) + new["std"] ** 2 * share + change**2 * share * (1 - share)
    )
    lower = {
        name: (np.minimum if part <= 0.5 else np.maximum)(old[name], new[name])
        for name, part in _QUANTILES.items()
    }
    return {
        "min": np.minimum(old["min"], new["min"]),
        "max": np.maximum(old["max"], new["max"]),
        "mean": old["mean"] + change * share,
        "std": np.sqrt(variance),
        "count": old["count"] + new["count"],
        **lower,
    }
