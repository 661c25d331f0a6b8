"""Reports of a Collector: of a step, of an episode, of a whole call."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from ...buffers import Tree
from ...buffers.base.progress import Part, Status, rate
from ...buffers.base.progress import format_bytes as format_bytes


@dataclass(frozen=True, slots=True)
class CollectReport:
    """The report of one `Collector.collect` or `Collector.rollout`.

    Args:
        steps: Env steps taken, over all envs.
        frames: Emulator frames behind them: steps times the frame skip.
        returns: Sum of rewards of each episode that ended, in the order of their ends.
        lengths: Env steps of each of these episodes.
        cut: Episodes whose recording stopped before they ended (an env was restarted, or another
            call began from a reset).
        restarts: Envs that were restarted: their worker died, or they raised (``tolerate``).
        outside: Rows of a replay or a rollout whose observation is not in the env's space, or NaN.
        seconds: Wall-clock time, in seconds.
        env_seconds: Part of it spent waiting for the envs.
        policy_seconds: Part of it spent in the policy.
        write_seconds: Part of it spent writing; the envs step meanwhile.
        raw_bytes: Bytes of the new rows uncompressed, each frame counted once.
        stored_bytes: Bytes of the same rows as stored; the files on disk take more.
        total_steps: Env steps that were ever added to the replay.
        digest: Fingerprint of all rows this Collector recorded: equal seeds, equal digest.
        path: Folder of the store; None in RAM and without a replay.

    Example:
        >>> import stepwell as sw
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, sw.RandomPolicy(), seed=0) as collector:
        ...     report = collector.collect(episodes=3)
        >>> report.episodes, len(report.lengths), report.steps >= sum(report.lengths)
        (3, 3, True)
    """

    steps: int
    frames: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut: int
    restarts: int
    outside: int
    seconds: float
    env_seconds: float
    policy_seconds: float
    write_seconds: float
    raw_bytes: int
    stored_bytes: int
    total_steps: int
    digest: str
    path: str | None

    @property
    def episodes(self) -> int:
        """Episodes that ended."""
        return len(self.returns)

    @property
    def steps_per_second(self) -> float:
        """Env steps a second, over all envs."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def compression(self) -> float:
        """Ratio of uncompressed to stored bytes."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes > 0 else 0.0

    def to_json(self) -> dict[str, object]:
        """Plain data, including the derived numbers."""
        return {
            **asdict(self),
            "episodes": self.episodes,
            "steps_per_second": self.steps_per_second,
            "compression": self.compression,
        }

    def __str__(self) -> str:
        skip = self.frames // self.steps if self.steps else 1
        rate = self.steps_per_second
        parts = [f"{self.steps:,} steps", f"{rate:,.0f}/s"]
        if skip > 1:
            parts.append(f"{rate * skip:,.0f} frames/s")
        spread = ""
        if self.returns:
            spread = f"  return {np.mean(self.returns):.1f} ± {np.std(self.returns):.1f}"
        parts.append(f"{self.episodes:,} episodes{spread}")
        if self.stored_bytes:
            smaller = f" ({self.compression:.0f}x smaller)" if self.compression >= 1.5 else ""
            parts.append(f"rows of {format_bytes(self.stored_bytes)}{smaller}")
        lost = [f"{self.cut} cut"] if self.cut else []
        lost += [f"{self.restarts} restarted"] if self.restarts else []
        lost += [f"{self.outside:,} outside of the space"] if self.outside else []
        shares = "  ".join(f"{name} {part:.0%}" for name, _, part in self._shares())
        digest = [f"digest {self.digest}"] if self.digest else []
        where = [self.path] if self.path else []
        return "\n".join(("  ".join([*parts, *lost]), "  ".join([shares, *digest, *where])))

    def _shares(self) -> list[tuple[str, float, float]]:
        """The parts of the time: their names, seconds, and shares of the whole."""
        seconds = {
            "env": self.env_seconds,
            "policy": self.policy_seconds,
            "write": self.write_seconds,
        }
        return [(name, one, one / max(self.seconds, 1e-9)) for name, one in seconds.items()]

    def _repr_html_(self) -> str | None:
        from ...buffers.pictures.summaries import or_none  # only notebooks need it

        return or_none(self._html)

    def _html(self) -> str:
        from ...buffers.pictures.markup import section, sparkline, table
        from ...buffers.pictures.summaries import spread_text

        shares = ", ".join(f"{name} {s:,.2f} s ({part:.0%})" for name, s, part in self._shares())
        facts: dict[str, object] = {
            "steps": f"{self.steps:,} in {self.seconds:,.1f} s, {self.steps_per_second:,.0f}/s",
            "emulator frames": self.frames,
            "time": shares,
            "returns": spread_text(self.returns),
            "lengths": spread_text(self.lengths),
            "cut": self.cut,
            "restarts": self.restarts,
            "outside of the space": self.outside,
            "rows": f"{format_bytes(self.raw_bytes)}, stored as {format_bytes(self.stored_bytes)}",
            "steps of the replay": self.total_steps,
            "digest": self.digest,
            "path": "in RAM, or not stored" if self.path is None else self.path,
        }
        curve = sparkline(self.returns, f"returns of {self.episodes:,} episodes", has_caption=True)
        return section(type(self).__name__, table(facts.items()), curve)


class StepReport(NamedTuple):
    """The rows of a step, or of a reset, of n envs; the arrays cannot be written to.

    Args:
        env_ids: [n] int64: indices of the envs.
        observation: Observations ``[n, ...]``, nested, as the policy sees them.
        reward: [n] float64: reward of the step into these rows, 0 in a first row.
        is_first: [n] bool: the row of a reset.
        terminated: [n] bool: the MDP ended with this row.
        truncated: [n] bool: the env's clock ended the episode with this row.
        episode: [n] int64: number of the row's episode, counted by starts since the Collector was
            made; -1 where it does not count.
        total_steps: Env steps that the Collector has taken so far.

    Example:
        >>> import stepwell as sw
        >>> steps = []
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, sw.RandomPolicy(), seed=0, on_step=steps.append) as collector:
        ...     report = collector.collect(steps=4)
        >>> [(step.is_first.tolist(), step.total_steps) for step in steps]
        [([True, True], 0), ([False, False], 2), ([False, False], 4)]
    """

    env_ids: np.ndarray
    observation: Tree
    reward: np.ndarray
    is_first: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray
    total_steps: int


class EpisodeReport(NamedTuple):
    """An episode that ended.

    Args:
        episode: Its number, counted by starts since the Collector was made.
        env: Index of its env.
        total_reward: Sum of its rewards.
        steps: Its env steps.
        terminated: The MDP ended.
        truncated: The env's clock ended it.
        seed: Seed of the reset that began it; None where the env used its own generator.
        total_steps: Env steps that the Collector had taken when it ended.
    """

    episode: int
    env: int
    total_reward: float
    steps: int
    terminated: bool
    truncated: bool
    seed: int | None
    total_steps: int


def collect_status(
    report: CollectReport, *, steps: int | None = None, episodes: int | None = None
) -> Status:
    """The progress of `Collector.collect` to its goal: counts, speed, returns and size."""
    if steps is not None:
        fraction = min(1.0, report.steps / steps)
        parts = [Part(f"{report.steps:,} / {steps:,} steps"), *rate_parts(report)]
        parts.append(Part(f"{report.episodes:,} episodes", 4))
    else:
        fraction = min(1.0, report.episodes / (episodes or 1))
        parts = [Part(f"{report.episodes:,} / {episodes or 1:,} episodes")]
        parts += [Part(f"{report.steps:,} steps", 4), *rate_parts(report)]
    if report.returns:
        mean = sum(report.returns) / len(report.returns)
        parts.append(Part(f"return {mean:,.1f}", 2, "cyan"))
    if report.stored_bytes:
        ratio = report.compression
        smaller = f" {rate(ratio)}x smaller" if ratio >= 1.5 else ""
        parts.append(Part(f"rows of {format_bytes(report.stored_bytes)}{smaller}", 4))
    return Status(parts, fraction, report.seconds)


def rate_parts(report: CollectReport) -> list[Part]:
    """Env steps a second, and frames a second where some are skipped."""
    speed = report.steps_per_second
    parts = [Part(f"{rate(speed)} steps/s")]
    if report.frames > report.steps > 0:
        parts.append(Part(f"{rate(speed * report.frames / report.steps)} frames/s", 6))
    return parts
