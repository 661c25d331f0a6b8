"""Where episodes begin: after boot scripts, or at snapshots."""

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
class Place:
    """A state of a console, and the screen that goes with it."""

    state: object
    screen: Image


class Starts:
    """The places where episodes may begin, and the rule by which one is chosen.

    Args:
        places: At least one.
        rule: "random": each time uniformly, by the env's generator; "cycle": one after another.

    Raises:
        ValueError: The rule is unknown.
    """

    def __init__(self, places: Sequence[Place], rule: StartRule) -> None:
        if rule not in get_args(StartRule):
            raise ValueError(f"start_rule: expected 'random' or 'cycle', got {rule!r}")
        self.places = tuple(places)
        self._rule = rule
        self._next = 0

    def choose(self, generator: np.random.Generator, wanted: object = None) -> int:
        """Index of the place where the next episode begins.

        Args:
            generator: The env's.
            wanted: An index asked for; None lets the rule choose.

        Raises:
            ValueError: There is no such place.
        """
        count = len(self.places)
        if wanted is not None:
            if isinstance(wanted, bool) or wanted not in range(count):
                raise ValueError(
                    f"options['start']: expected a whole number from 0 to {count - 1}, "
                    f"got {wanted!r}"
                )
            return int(cast("int", wanted))
        if self._rule == "random":
            return int(generator.integers(count)) if count > 1 else 0
        index = self._next
        self._next = (index + 1) % count
        return index


def prepare_starts(
    cartridge: Cartridge,
    console: Console,
    *,
    boot: Boots | None,
    start: SnapshotSource | Sequence[SnapshotSource] | None,
    boot_of_game: str | None,
) -> list[Place]:
    """Play the boot scripts from power-on, or read the snapshots.

    Args:
        cartridge: What is in the console.
        console: One that has just been switched on.
        boot: A script or several; None takes the game's.
        start: A snapshot or several, or files of them, instead of scripts.
        boot_of_game: The RAM map's script; None where it has none: episodes begin at power-on.

    Raises:
        ValueError: Both were given, one makes no sense, or a snapshot does not fit.
        FileNotFoundError: There is no such file.
    """
    if start is not None:
        if boot is not None:
            raise ValueError(
                "boot and start: expected one of them, got both; a snapshot is already where a "
                "boot script leads"
            )
        return [_place_of(one, cartridge, console) for one in _listed(start)]
    chosen = boot_of_game or "" if boot is None else boot
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
    places: list[Place] = []
    for script in scripts:
        console.load(power_on)
        play_boot(console, script)
        places.append(Place(console.save(), console.screen()))
    return places


def play_boot(console: Console, boot: Boot) -> None:
    """Play a script; one of no parts is no frame."""
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


def _place_of(source: SnapshotSource, cartridge: Cartridge, console: Console) -> Place:
    snapshot = source if isinstance(source, Snapshot) else Snapshot.load(source)
    snapshot.check(cartridge, console)
    console.load(snapshot.state)  # the emulator checks the rest
    return Place(snapshot.state, snapshot.screen)
