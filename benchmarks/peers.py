"""Compares other libraries with Stepwell: measures the installed ones and names the others.

Each ``peer_*`` module uses one library as its own documentation advises, and imports it only when
it is asked for. All get the same rows, and return a function that does one unit of work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

import rounds

__all__ = ["Call", "Draw", "Rows", "available", "compare", "memcpy", "versions"]

Call: TypeAlias = Callable[[], object]
Draw: TypeAlias = Callable[[int], object]  # of so many
ReadyT = TypeVar("ReadyT")

_PIP_NAMES = {"stable_baselines3": "stable-baselines3"}
_PEERS = ("cpprb", "sheeprl", "stable-baselines3", "tianshou", "torch", "torchrl")
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
    *what: str,
    candidates: Mapping[str, Call],
    limit: str,
    count: int,
    units: float = 1.0,
    goal: float | None = None,
) -> list[rounds.Row]:
    """`rounds.compare` of short calls; the goal is that of candidates named ``stepwell...``.

    Args:
        *what: The topic and the case.
        candidates: By name, a call that does some units of work.
        limit: Name of the candidate that the others are measured by.
        count: Number of rounds.
        units: Units of work in one call.
        goal: The least ratio to the limit.
    """
    calls = {name: rounds.repeated(call, units) for name, call in candidates.items()}
    ours = [name for name in candidates if name.startswith(OURS)]
    goals = {} if goal is None else dict.fromkeys(ours, goal)
    return rounds.compare(*what, candidates=calls, limit=limit, count=count, goals=goals)


def versions() -> list[str]:
    """The peers that are installed, as `rounds.machine` wants them."""
    return rounds.installed(*_PEERS)
