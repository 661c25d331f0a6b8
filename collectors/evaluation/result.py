"""The result of an evaluation: episodes, and statistics of their returns."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass

from .video import Video

_MOST_LINES = 20  # a longer table is shortened to its first and last rows
# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom.
_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_NORMAL_QUANTILE = 1.959964


@dataclass(frozen=True, slots=True)
class EvaluatedEpisode:
    """One episode of an evaluation.

    Args:
        episode: Its number, from 0 on, in the order of the starts or of the seeds given.
        seed: Seed of the reset that began it; None where its env used its own generator.
        total_reward: Its return: the sum of its rewards, undiscounted.
        steps: Its env steps.
        terminated: The MDP ended.
        truncated: The env's clock ended it.
    """

    episode: int
    seed: int | None
    total_reward: float
    steps: int
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate`.

    Args:
        episodes: The episodes, by number.
        videos: Videos of the recorded episodes, by number.

    Example:
        >>> episodes = [EvaluatedEpisode(i, None, 10.0 * i, 7, True, False) for i in range(3)]
        >>> evaluation = Evaluation(tuple(episodes))
        >>> evaluation.mean, evaluation.median, evaluation.returns
        (10.0, 10.0, (0.0, 10.0, 20.0))
        >>> [round(bound, 1) for bound in evaluation.confidence]
        [-14.8, 34.8]
        >>> print(evaluation)
        episode  seed  return  steps  end
              0     -     0.0      7  terminated
              1     -    10.0      7  terminated
              2     -    20.0      7  terminated
        3 episodes  21 steps  mean return 10.0, 95 % from -14.8 to 34.8
        median 10.0  min 0.0  max 20.0
    """

    episodes: tuple[EvaluatedEpisode, ...]
    videos: tuple[Video, ...] = ()

    @property
    def returns(self) -> tuple[float, ...]:
        """Return of each episode."""
        return tuple(one.total_reward for one in self.episodes)

    @property
    def mean(self) -> float:
        """Mean return."""
        return statistics.fmean(self.returns)

    @property
    def confidence(self) -> tuple[float, float]:
        """Bounds of a 95 % confidence interval for the mean return, by Student's t.

        It bounds the distance between the mean over these episodes and that over all episodes. It
        assumes independent episodes, and is too narrow for few and very skewed ones. Of a single
        episode the bounds are infinite.
        """
        count = len(self.episodes)
        if count < 2:
            return -math.inf, math.inf
        half = student_quantile(count - 1) * statistics.stdev(self.returns) / math.sqrt(count)
        return self.mean - half, self.mean + half

    @property
    def median(self) -> float:
        """Median return."""
        return statistics.median(self.returns)

    @property
    def min(self) -> float:
        """Least return."""
        return min(self.returns)

    @property
    def max(self) -> float:
        """Greatest return."""
        return max(self.returns)

    @property
    def steps(self) -> int:
        """Env steps of all episodes."""
        return sum(one.steps for one in self.episodes)

    def to_json(self) -> dict[str, object]:
        """Plain data, including the derived numbers; None for an infinite bound."""
        bounds = [bound if math.isfinite(bound) else None for bound in self.confidence]
        return {
            "episodes": [asdict(one) for one in self.episodes],
            "mean": self.mean,
            "confidence": bounds,
            "median": self.median,
            "min": self.min,
            "max": self.max,
            "steps": self.steps,
            "videos": [video.to_json() for video in self.videos],
        }

    def __str__(self) -> str:
        """A table of the episodes, shortened in the middle, and a summary line."""
        shown = [_row(one, self._decimals) for one in self.episodes]
        table = [("episode", "seed", "return", "steps", "end"), *shown]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [_line(cells, widths) for cells in table]
        if len(shown) > _MOST_LINES:
            half = _MOST_LINES // 2
            gap = f"... {len(shown) - 2 * half} more ..."
            lines = [*lines[: half + 1], gap.rjust(widths[0]), *lines[-half:]]
        return "\n".join([*lines, self._summary()])

    def _repr_html_(self) -> str | None:
        from ...buffers.pictures.summaries import or_none  # only notebooks need it

        return or_none(self._html)

    def _html(self) -> str:
        from ...buffers.pictures.markup import paragraph, section, sparkline, table

        count = len(self.episodes)
        heading = f"{type(self).__name__} of {count:,} episode{'s' if count != 1 else ''}"
        if not count:
            return section(heading)
        half = _MOST_LINES // 2
        gap = [(f"... {count - 2 * half} more ...",)] if count > _MOST_LINES else []
        first, last = (count, 0) if not gap else (half, half)
        rows = [
            *(_row(one, self._decimals) for one in self.episodes[:first]),
            *gap,
            *(_row(one, self._decimals) for one in self.episodes[count - last :]),
        ]
        return section(
            heading,
            *(paragraph(line) for line in self._summary().split("\n")[:_MOST_LINES]),
            sparkline(self.returns, f"returns of {count:,} episodes", has_caption=True),
            table(rows, ("episode", "seed", "return", "steps", "end")),
        )

    @property
    def _decimals(self) -> int:
        """Decimals of printed returns: more where they are small."""
        return 1 if max(map(abs, self.returns)) >= 10 else 3

    def _summary(self) -> str:
        def text(number: float) -> str:
            return f"{number:,.{self._decimals}f}"

        count = len(self.episodes)
        low, high = self.confidence
        spread = f", 95 % from {text(low)} to {text(high)}" if math.isfinite(low) else ""
        parts = [
            f"{count:,} episode{'s' if count > 1 else ''}",
            f"{self.steps:,} steps",
            f"mean return {text(self.mean)}{spread}",
        ]
        lines = ["  ".join(parts)]
        if count > 1:
            extremes = (("median", self.median), ("min", self.min), ("max", self.max))
            lines.append("  ".join(f"{name} {text(number)}" for name, number in extremes))
        lines += [str(video.path) for video in self.videos if video.path is not None]
        return "\n".join(lines)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to four decimals, for 1 or more degrees of freedom."""
    # Above 10 degrees of freedom by the expansion of Abramowitz and Stegun, Handbook of
    # mathematical functions, 1964, 26.7.5, whose first terms left out matter less than that.
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    x, n = _NORMAL_QUANTILE, float(freedom)
    first = (x**3 + x) / 4
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    fourth = (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160
    return x + first / n + second / n**2 + third / n**3 + fourth / n**4


def _row(one: EvaluatedEpisode, decimals: int) -> tuple[str, ...]:
    ends = [name for name in ("terminated", "truncated") if getattr(one, name)]
    seed = "-" if one.seed is None else str(one.seed)
    score = f"{one.total_reward:,.{decimals}f}"
    return str(one.episode), seed, score, f"{one.steps:,}", ", ".join(ends)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    *numbers, end = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join([*numbers, end.strip()])
