"""The starts of episodes: boot scripts or snapshots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

import numpy as np

from stepwell.wrappers.nes.buttons import Boot, parse_boot
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.console import Console, Image
from stepwell.wrappers.nes.snapshot import Snapshot

StartRule: TypeAlias = Literal["random", "cycle"]
Boots: TypeAlias = str | Sequence[str]
SnapshotSource: TypeAlias = Snapshot | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class StartState:
    """A state of a console and its screen."""

    state: object
    screen: Image


class StartStates:
    """The places where episodes may begin, and the rule that selects one.

    Args:
        places: At least one.
        rule: "random" draws uniformly with the env's generator; "cycle" takes them in turn.

    Attributes:
        following: Of "cycle", the index of the place where the next episode begins.

    Raises:
        ValueError: The rule is unknown.
    """

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
        """Return the index of the place where the next episode begins.

        Args:
            generator: The env's generator.
            index: The index from the reset options; None applies the rule.

        Raises:
            ValueError: There is no such place.
        """
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
    console: Console,
    *,
    boot: Boots | None,
    start: SnapshotSource | Sequence[SnapshotSource] | None,
    game_boot: str | None,
) -> list[StartState]:
    """Play the boot scripts from power-on, or load the snapshots.

    Args:
        cartridge: The cartridge in the console.
        console: A console that was just started.
        boot: One or several scripts; None takes the game's.
        start: One or several snapshots, or their files, instead of scripts.
        game_boot: The script of the RAM map; without one, episodes begin at power-on.

    Raises:
        ValueError: Both `boot` and `start` are set, or a script or a snapshot is invalid.
        FileNotFoundError: There is no such file.
    """
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
