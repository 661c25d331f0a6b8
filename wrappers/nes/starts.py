"""The starts of episodes: boot scripts or snapshots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

import numpy as np

from .buttons import Boot, parse_boot
from .cartridge import Cartridge
from .console import Console, Image
from .snapshot import Snapshot

StartRule: TypeAlias = Literal["random", "cycle"]
Boots: TypeAlias = str | Sequence[str]
SnapshotSource: TypeAlias = Snapshot | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class StartState:
    """A state of a console and its screen."""

    state: object
    screen: Image


class StartStates:
    """The places where episodes may begin, at least one, and the rule that selects one."""

    # "random" draws uniformly with the env's generator; "cycle" takes them in turn: then
    # ``following`` is the index of the place where the next episode begins.

    def __init__(self, places: Sequence[StartState], rule: StartRule) -> None:
        if rule not in get_args(StartRule):
            raise ValueError(f"start_rule: expected 'random' or 'cycle', got {rule!r}")
        self.places = tuple(places)
        self._rule = rule
        self.following = 0

    @property
    def follow_seeds(self) -> bool:
        """True unless several starts are taken in turn, whatever the seed."""
        return self._rule == "random" or len(self.places) == 1

    def choose(self, generator: np.random.Generator, index: object = None) -> int:
        """Return the index of the place where the next episode begins: the options' if given."""
        count = len(self.places)
        if index is not None:
            if isinstance(index, bool) or index not in range(count):
                raise ValueError(
                    f"options['start']: expected a whole number from 0 to {count - 1}, "
                    f"got {index!r}"
                )
            return int(cast("int", index))
        if self._rule == "random":
            return int(generator.integers(count)) if count > 1 else 0
        place = self.following
        self.following = (place + 1) % count
        return place


def prepare_starts(
    cartridge: Cartridge,
    console: Console,  # just started, with the cartridge
    *,
    boot: Boots | None,  # one or several scripts; None takes the game's
    start: SnapshotSource | Sequence[SnapshotSource] | None,  # or their files, instead of scripts
    game_boot: str | None,  # of the RAM map; without one, episodes begin at power-on
) -> list[StartState]:
    """Play the boot scripts from power-on, or load the snapshots."""
    if start is not None:
        if boot is not None:
            raise ValueError(
                "boot and start: expected one of them, got both; omit boot, since a snapshot "
                "does not need it"
            )
        return [_start_state(one, cartridge, console) for one in _listed(start)]
    chosen = game_boot or "" if boot is None else boot
    texts = [chosen] if isinstance(chosen, str) else chosen
    if (
        not isinstance(texts, list | tuple)
        or not texts
        or not all(isinstance(t, str) for t in texts)
    ):
        raise ValueError(
            f"boot: expected a script such as 'NOOP 20, START 3', or a list of such, got {boot!r}"
        )
    scripts = [parse_boot(text) for text in texts]
    power_on = console.save()
    places: list[StartState] = []
    for script in scripts:
        console.load(power_on)
        play_boot(console, script)
        places.append(StartState(console.save(), console.screen()))
    return places


def play_boot(console: Console, boot: Boot) -> None:
    """Play a script; an empty one plays no frame."""
    for buttons, frames in boot:
        for _ in range(frames):
            console.frame(buttons)


def _listed(start: SnapshotSource | Sequence[SnapshotSource]) -> list[SnapshotSource]:
    if isinstance(start, Snapshot | str | os.PathLike):
        return [start]
    if not isinstance(start, list | tuple) or not start:
        raise ValueError(
            f"start: expected a Snapshot, the path of one, or a list of such, got {start!r}"
        )
    return list(start)


def _start_state(source: SnapshotSource, cartridge: Cartridge, console: Console) -> StartState:
    snapshot = source if isinstance(source, Snapshot) else Snapshot.load(source)
    snapshot.check(cartridge, console)
    console.load(snapshot.state)  # the emulator checks the rest
    return StartState(snapshot.state, snapshot.screen)
