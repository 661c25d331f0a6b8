"""The windows of one length that can be drawn, counted as pieces come and go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepwell.buffers.episode_filter import EpisodeFilter

__all__ = ["Shares", "Windows"]


class Shares(NamedTuple):
    """How often each of several joined stores is drawn from.

    Args:
        borders: [stores + 1] index of each store's first record, and the number of records.
        weights: [stores] share of the draws that goes to each store, of any sum.
    """

    borders: np.ndarray
    weights: np.ndarray


class Windows:
    """Running count of the windows of one length.

    A window belongs to the piece that holds its *last* row: then the number of a piece's windows
    does not change while its episode grows, and the running count is only ever continued.

    Args:
        length: Rows of a window.
        context: Rows before it that must still be stored, or lie before the episode's reset.
        chosen: Episodes that windows may lie in; None for all.
    """

    def __init__(self, length: int, context: int, chosen: EpisodeFilter | None) -> None:
        self._length = length
        self._context = context
        self._chosen = chosen
        self._running = np.zeros(64, np.int64)
        self._known = 0

    @property
    def total(self) -> int:
        """Number of windows."""
        return self._before(self._known)

    def forget_from(self, index: int) -> None:
        """Count the pieces from an index on again."""
        self._known = min(self._known, index)

    def update(self, records: np.ndarray, base: int) -> None:
        """Take up new pieces.

        Args:
            records: All live records.
            base: Position of the first one.
        """
        new = records[self._known :]
        if not len(new):
            return
        if len(records) > len(self._running):
            grown = np.zeros(2 * len(records), np.int64)
            grown[: self._known] = self._running[: self._known]
            self._running = grown
        counts = np.maximum(0, new["first_row"] + new["rows"] - self._lowest(new))
        if self._chosen is not None:
            counts *= self._chosen.verdicts(base + self._known, len(new))
        self._running[self._known : len(records)] = self.total + np.cumsum(counts)
        self._known = len(records)

    def draw(
        self, records: np.ndarray, count: int, rng: np.random.Generator, shares: Shares | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw windows uniformly over all, or by the stores' shares, with replacement.

        Returns:
            Indices of the records that hold the windows' last rows ``[count]``, and those rows
            ``[count]``, counted in their episodes.
        """
        if shares is None:
            numbers = rng.integers(self.total, size=count)
        else:
            numbers = self._draw_by(shares, count, rng)
        running = self._running[: self._known]
        index = np.searchsorted(running, numbers, side="right")
        place = numbers - np.where(index > 0, running[index - 1], 0)
        return index, self._lowest(records[index]) + place

    def stores_without(self, shares: Shares) -> np.ndarray:
        """Which of the stores that are to be drawn from have no window."""
        low, high = self._limits(shares)
        return np.flatnonzero((high == low) & (shares.weights > 0))

    def _draw_by(self, shares: Shares, count: int, rng: np.random.Generator) -> np.ndarray:
        """Choose a store for each window by its weight, then one of its windows."""
        low, high = self._limits(shares)
        stores = rng.choice(len(low), size=count, p=shares.weights / shares.weights.sum())
        return rng.integers(low[stores], high[stores])

    def _limits(self, shares: Shares) -> tuple[np.ndarray, np.ndarray]:
        """Number of each store's first window [stores], and of the one after its last."""
        limits = np.array([self._before(border) for border in shares.borders.tolist()])
        return limits[:-1], limits[1:]

    def _before(self, index: int) -> int:
        """Windows of the records before an index."""
        return int(self._running[index - 1]) if index else 0

    def _lowest(self, records: np.ndarray) -> np.ndarray:
        """The first row of each piece that can be a window's last."""
        first_start = records["head"] + np.where(records["head"] > 0, self._context, 0)
        lowest: np.ndarray = np.maximum(records["first_row"], first_start + self._length - 1)
        return lowest
