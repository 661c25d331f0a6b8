"""Addresses of a game's RAM that did what a person saw, press by press, as in cheat finders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from ...wrappers.nes import NesEnv

_MOST_NAMED = 6
_DID = {"rose": np.greater, "fell": np.less, "stayed": np.equal}


class RamSearch:
    """Keeps the addresses whose byte did at each press what the press says."""

    def __init__(self, read: Callable[[], np.ndarray], line: str) -> None:
        self.read = read  # the RAM, uint8 [N]
        self._line = line  # of a map, to be formatted with an address
        self._seen: list[np.ndarray] = []  # the RAM at each press
        self._before: list[str] = []  # lines of searches before
        self.left: np.ndarray = np.arange(0)

    def press(self, kind: str, ram: np.ndarray) -> str:
        """Compare the RAM with that of the press before, and return what is left, as text."""
        note = ""
        if kind == "mark" or not self._seen:
            self._before = self.lines()
            self._seen, self.left = [ram], np.arange(len(ram))
        else:
            left = self.left[_DID[kind](ram[self.left], self._seen[-1][self.left])]
            if len(left):
                self.left = left
                self._seen.append(ram)
            else:  # a wrong key, mostly: it does not spoil the search
                note = f"none {kind}, still "
        bytes_now = [f"0x{at:02x}={self._seen[-1][at]}" for at in self._named()]
        return " ".join([f"{note}{len(self.left):,} left", *bytes_now])

    def lines(self) -> list[str]:
        """Return the line of each address that a search found, below one with its values."""
        if len(self._seen) < 2:
            return self._before
        found = [f"# left after {len(self._seen)} presses: {len(self.left):,}"]
        for at in self._named():
            values = " ".join(str(ram[at]) for ram in self._seen)
            found += [f"# at the presses: {values}", self._line.format(at)]
        return self._before + found

    def _named(self) -> np.ndarray:
        return self.left if len(self.left) <= _MOST_NAMED else self.left[:0]


def search_of(env: gymnasium.Env[Any, Any]) -> RamSearch:
    """Return a search in the RAM of a game."""
    inner: Any = env.unwrapped
    if isinstance(inner, NesEnv):
        return RamSearch(inner.ram, '"ram_0x{0:03x}": {{"address": {0}, "type": "|u1"}},')
    if hasattr(inner, "ale"):
        return RamSearch(inner.ale.getRAM, "env.unwrapped.ale.getRAM()[0x{0:02x}]")
    raise ValueError(
        f"watch: expected a cartridge (NesEnv) or an Atari game, got {env}; play it without watch"
    )
