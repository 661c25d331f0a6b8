"""Players of Atari games that read the emulator's RAM: a few lines of rules each, no training."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Ram = np.ndarray
Rule = Callable[[Sequence[Ram], int], int]
"""The action for the RAM of now and of the two steps before, and for the last action."""

FIRE, RIGHT, LEFT = 1, 2, 3  # of Breakout; Pong's paddle goes up with RIGHT


class RamPolicy:
    """Chooses by the RAM of envs that run in this process (``num_workers=0``)."""

    def __init__(self, envs: Any, rule: Rule) -> None:
        self._emulators = [env.unwrapped.ale for env in envs.envs]
        self._rules = [rule] * len(self._emulators)
        self._seen = [[self._ram(one)] * 3 for one in self._emulators]
        self._last = [0] * len(self._emulators)

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> Any:
        """The actions [N]."""
        now = [self._ram(one) for one in self._emulators]
        self._seen = [[ram, *seen[:2]] for ram, seen in zip(now, self._seen, strict=True)]
        chosen = zip(self._rules, self._seen, self._last, strict=True)
        self._last = [rule(seen, last) for rule, seen, last in chosen]
        return np.array(self._last)

    @staticmethod
    def _ram(emulator: Any) -> Ram:
        return np.asarray(emulator.getRAM()).astype(int)


def pong(seen: Sequence[Ram], last: int) -> int:
    """Meet the ball with the paddle's upper edge, which makes it steep; else wait near the middle.

    An action moves the paddle by 9 pixels in its own step and by as many in the next.
    """
    (x, y), (x1, y1) = ((int(ram[49]), int(ram[54])) for ram in seen[:2])
    if y == 0:
        return 0
    goal = (y + 5 * 125) / 6
    if x > x1 and y1:
        goal = reflected(2 * y - y1, 44, 207)
    edge = int(seen[0][51]) + 1 + {LEFT: 9, RIGHT: -9}.get(last, 0)
    return LEFT if goal > edge + 5 else RIGHT if goal < edge - 5 else 0


def breakout(seen: Sequence[Ram], last: int) -> int:
    """Go to where the ball will come down; press FIRE where there is none.

    As in Pong, half of an action's way is gone in the next step: 11 pixels of 22.
    """
    (x, y), (x1, y1) = ((int(ram[99]), int(ram[101])) for ram in seen[:2])
    if y == 0:
        return FIRE
    goal = float(x)
    if y > y1:
        goal = reflected(x + (x - x1) * (187 - y) / (y - y1), 57, 200)
    paddle = int(seen[0][72]) + 8 + {RIGHT: 11, LEFT: -11}.get(last, 0)
    return RIGHT if goal > paddle + 6 else LEFT if goal < paddle - 6 else 0


def freeway(seen: Sequence[Ram], last: int) -> int:
    """Go up, whatever comes."""
    return 1


def reflected(place: float, low: float, high: float) -> float:
    """Where a ball is that two walls throw back."""
    place = (place - low) % (2 * (high - low))
    return low + min(place, 2 * (high - low) - place)
