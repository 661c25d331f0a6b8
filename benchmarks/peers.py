"""Compares other libraries with Stepwell: measures the installed ones and names the others.

Each ``peer_*`` module uses one library as its own documentation advises, and imports it only when
it is asked for. All get the same rows, and return a function that does one unit of work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

import rounds

__all__ = ["EPILOG", "HEAD", "Call", "Draw", "Rows", "available", "compare", "memcpy", "versions"]

Call: TypeAlias = Callable[[], object]
Draw: TypeAlias = Callable[[int], object]  # of so many
ReadyT = TypeVar("ReadyT")

HEAD = (
    *("case", "library", "a second", "ratio to the limit: median", "min", "max"),
    *("stepwell to it: median", "min", "max", "a CPU second"),
)
_PIP_NAMES = {"stable_baselines3": "stable-baselines3"}
_PEERS = ("cpprb", "sheeprl", "stable-baselines3", "tianshou", "torch", "torchrl")
EPILOG = (
    "Others are measured where they are installed: "
    "pip install cpprb sheeprl stable-baselines3 tianshou torchrl"
)
_ROUND_SECONDS = 0.25  # one candidate, one round
OURS = "stepwell"


class Rows(NamedTuple):
    """Steps of one env after the other, as transition libraries see them.

    Args:
        observation: [n, ...]: what each step began with; a single frame where stacks are drawn.
        action: [n] int64.
        reward: [n] float32.
        is_end: [n] bool: the last step of an episode.
    """

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    is_end: np.ndarray

    @classmethod
    def of(cls, observation: np.ndarray, episode_rows: int) -> Rows:
        """Observations with actions, rewards, and ends of episodes of equal length."""
        rng = np.random.default_rng(1)
        count = len(observation)
        is_end = np.zeros(count, np.bool_)
        is_end[episode_rows - 1 :: episode_rows] = True
        is_end[-1] = True
        return cls(observation, rng.integers(0, 6, count), rng.random(count, np.float32), is_end)


def available(makers: Mapping[str, Callable[[], ReadyT]]) -> dict[str, ReadyT]:
    """Make each peer ready; print which ones are not installed.

    Args:
        makers: By the name of the line, a call that imports and fills it, and returns what to time.
    """
    ready: dict[str, ReadyT] = {}
    for name, make in makers.items():
        try:
            ready[name] = make()
        except ModuleNotFoundError as missing:
            package = (missing.name or name).split(".")[0]
            print(f"{name}: not installed (pip install {_PIP_NAMES.get(package, package)})")
    return ready


def memcpy(source: np.ndarray, rows: int) -> Call:
    """Copy consecutive rows from a random place into memory that is reused."""
    target = np.empty((rows, *source.shape[1:]), source.dtype)
    rng = np.random.default_rng(0)

    def run() -> None:
        start = int(rng.integers(len(source) - rows))
        np.copyto(target, source[start : start + rows])

    return run


def compare(
    what: str, candidates: Mapping[str, Call], limit: str, count: int, work: float = 1.0
) -> list[tuple[str, ...]]:
    """Lines of a table under `HEAD`.

    Args:
        what: The first column.
        candidates: By name, a call that does one unit of work; the first line named ``stepwell...``
            is the one that the others are compared with.
        limit: Name of the candidate that the others are measured by.
        count: Number of rounds.
        work: Units of work in one call.
    """
    clocks = {name: _Clock(call, work) for name, call in candidates.items()}
    measured = rounds.rates({name: clock.run for name, clock in clocks.items()}, count)
    ours = next(name for name in candidates if name.startswith(OURS))
    lines: list[tuple[str, ...]] = []
    for name in candidates:
        texts = [
            f"{ratio:.2f}"
            for one, other in ((name, limit), (ours, name))
            for ratio in _median_first(rounds.ratios(measured, one, other))
        ]
        rate = f"{np.median(measured[name]):,.0f}"
        lines.append((what, name, rate, *texts, f"{clocks[name].per_cpu_second:,.0f}"))
    return lines


def versions() -> list[str]:
    """The peers that are installed, as `rounds.machine` wants them."""
    return rounds.installed(*_PEERS)


def _median_first(ratios: tuple[float, float, float]) -> tuple[float, float, float]:
    low, middle, high = ratios
    return middle, low, high


class _Clock:
    """Repeats a call for a while, and adds up the CPU time that it takes."""

    def __init__(self, call: Call, work: float) -> None:
        self._call = call
        self._work = work
        self._cpu_seconds = self._done = 0.0
        call()
        began, times = time.perf_counter(), 0
        while time.perf_counter() - began < _ROUND_SECONDS / 5:
            call()
            times += 1
        self._times = 5 * times

    @property
    def per_cpu_second(self) -> float:
        return self._done / self._cpu_seconds

    def run(self) -> float:
        call, result = self._call, None
        began = time.process_time()
        for _ in range(self._times):
            result = call()  # each is let go only when the next one is there
        del result
        self._cpu_seconds += time.process_time() - began
        self._done += self._times * self._work
        return self._times * self._work
