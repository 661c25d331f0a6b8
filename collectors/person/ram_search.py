"""Addresses of a game's RAM that did what a person saw, press by press, as in cheat finders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from ...wrappers.nes import NesEnv

_MOST_NAMED = 6
_DID = {"rose": np.greater, "fell": np.less, "stayed": np.equal}


def ram_of(env: gymnasium.Env[Any, Any]) -> tuple[Callable[[], np.ndarray], str]:
    """Return what reads the RAM, uint8 [N], and the line that reads a byte, to be formatted."""
    inner: Any = env.unwrapped
    if isinstance(inner, NesEnv):
        return inner.ram, '"ram_0x{0:03x}": {{"address": {0}, "type": "|u1"}},'
    if hasattr(inner, "ale"):
        return inner.ale.getRAM, "ram_0x{0:02x} = env.unwrapped.ale.getRAM()[0x{0:02x}]"
    raise ValueError(
        f"watch: expected a game with RAM, a cartridge (NesEnv) or an Atari game, got {env}; play "
        f"it without watch"
    )


class RamSearch:
    """Keeps the addresses whose byte did at each press what the press says."""

    def __init__(self, line: str) -> None:  # of a map, formatted with an address
        self._line = line
        self._seen: list[np.ndarray] = []  # the RAM at each press
        self._before: list[str] = []  # lines of searches before
        self._note = ""
        self.left: np.ndarray = np.arange(0)

    def press(self, kind: str, ram: np.ndarray) -> None:
        """Compare the RAM with that of the last press; ``"mark"`` and the first begin a search."""
        self._note = ""
        if kind == "mark" or not self._seen:
            self._before = self.lines()
            self._seen, self.left = [ram], np.arange(len(ram))
            return
        left = self.left[_DID[kind](ram[self.left], self._seen[-1][self.left])]
        if not len(left):  # a wrong key, mostly: it does not spoil the search
            self._note = f"none {kind}, still "
            return
        self.left = left
        self._seen.append(ram)

    def line(self) -> str:
        """Return the number of addresses that are left; with few, also the bytes there."""
        here = [f"0x{at:02x}={self._seen[-1][at]}" for at in self.left] if self._is_near() else []
        return " ".join([f"{self._note}{len(self.left):,} left", *here])

    def lines(self) -> list[str]:
        """Return the line of each address that a search found, below one with its values."""
        if len(self._seen) < 2:
            return self._before
        found = [f"# left after {len(self._seen)} presses: {len(self.left):,}"]
        for at in self.left if self._is_near() else ():
            values = " ".join(str(ram[at]) for ram in self._seen)
            found += [f"# at the presses: {values}", self._line.format(at)]
        return self._before + found

    def _is_near(self) -> bool:
        return len(self.left) <= _MOST_NAMED
