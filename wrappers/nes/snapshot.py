"""Snapshots of a game, in memory and in files, and the starts of episodes."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard, cast, get_args

import numpy as np

from ...buffers.base.number_checks import check_choice
from ..snapshots import damaged
from .buttons import Boot, parse_boot
from .cartridge import Cartridge, Image
from .emulators import Console

FORMAT = 1
MOST_BYTES = 64 << 20  # a console's state has some hundred thousand
_TEXTS = ("cartridge", "sha256", "backend", "version")
_FACTS = {"format": int, **dict.fromkeys(_TEXTS, str), "episode": dict}


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a console, its screen, and the state of the episode.

    Made by `NesEnv.snapshot`. It is valid for one cartridge, one backend and one version of that
    backend. It does not contain the env's random generator.

    Args:
        cartridge: Name of the cartridge.
        sha256: SHA-256 of the cartridge.
        backend: The backend that saved it.
        version: Version of the backend's package.
        state: State of the emulator: bytes, or with nes-py an object that cannot be pickled.
        screen: RGB [H, W, 3] uint8, which the states of emulators do not contain.
        episode: Counters of the env, JSON data.

    Example:
        >>> from stepwell.wrappers.nes.env import NesEnv
        >>> env = NesEnv("game.nes", game="game")
        >>> _ = env.reset(seed=0)
        >>> snapshot = env.snapshot()
        >>> snapshot.save("start.state")
        >>> observation, info = env.restore(Snapshot.load("start.state"))
        >>> bool((observation == snapshot.screen).all()), info["lives"]
        (True, 3)
    """

    cartridge: str
    sha256: str
    backend: str
    version: str
    state: object
    screen: Image
    episode: Mapping[str, Any]

    def check(self, cartridge: Cartridge, console: Console) -> None:
        """Check that a console can load the snapshot.

        Raises:
            ValueError: It was saved with another cartridge, backend or version, or its screen has
                another shape.
        """
        title = f"{self.cartridge}, {self.sha256[:12]}"
        _check_same("cartridge", f"{cartridge.name}, {cartridge.sha256[:12]}", title)
        _check_same("backend", console.name, self.backend)
        _check_same(f"version of {console.name}", console.version, self.version)
        _check_episode(self.episode)
        if self.screen.shape != console.screen_shape or self.screen.dtype != np.uint8:
            raise ValueError(
                f"snapshot: expected a uint8 screen {console.screen_shape}, got "
                f"{self.screen.dtype} {self.screen.shape}; the snapshot is damaged"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the snapshot to a new file, without pickle.

        Raises:
            ValueError: The backend's states cannot be written.
            FileExistsError: The path exists.
        """
        if not isinstance(self.state, bytes):
            raise ValueError(
                f"snapshot: expected a state of bytes, got one of {self.backend}, which cannot "
                "be written to a file; play a boot script to the same place, or use another backend"
            )
        texts = {name: getattr(self, name) for name in _TEXTS}
        facts = {"format": FORMAT, **texts, "episode": dict(self.episode)}
        try:
            with open(path, "xb") as file:
                np.savez_compressed(
                    file,
                    facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
                    state=np.frombuffer(self.state, np.uint8),
                    screen=self.screen,
                )
        except FileExistsError:
            raise FileExistsError(
                f"snapshot: expected a path that does not exist, got {os.fspath(path)!r}; "
                "choose another path, or remove the file"
            ) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Snapshot:
        """Read a snapshot that `save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not a snapshot, or is damaged.
        """
        if not Path(path).is_file():  # opening a pipe may block forever
            raise FileNotFoundError(
                f"snapshot: expected a file that Snapshot.save wrote, got {os.fspath(path)!r}, "
                "which is no file; check the path"
            )
        try:
            with zipfile.ZipFile(path) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
            if size > MOST_BYTES:
                raise ValueError(f"it unpacks to {size:,} bytes")
            with np.load(path, allow_pickle=False) as arrays:
                facts = json.loads(arrays["facts"].tobytes())
                state, screen = arrays["state"].tobytes(), np.array(arrays["screen"])
            _check_facts(facts)
        except Exception as error:  # of zipfile, zlib and NumPy: they have no common base class
            raise ValueError(
                f"snapshot: expected a file that Snapshot.save wrote, got {os.fspath(path)!r} "
                f"({error}); save it again"
            ) from None
        texts = {name: facts[name] for name in _TEXTS}
        return cls(**texts, state=state, screen=screen, episode=facts["episode"])


def _check_same(what: str, expected: str, got: str) -> None:
    if expected != got:
        raise ValueError(
            f"snapshot of another {what}: expected {expected}, got {got}; "
            "save one with the same cartridge, backend and version, or use a boot script"
        )


def _check_facts(facts: object) -> None:
    if not isinstance(facts, dict):
        raise ValueError("its facts are no table")
    table = cast("dict[str, object]", facts)
    for name, kind in _FACTS.items():
        if not isinstance(table.get(name), kind):
            raise ValueError(f"{name!r} is missing")
    if table["format"] != FORMAT:
        raise ValueError(f"format {table['format']}, not {FORMAT}")


def _check_episode(episode: Mapping[str, Any]) -> None:
    """Check that the state of the episode is complete, before the env changes."""
    is_complete = (
        isinstance(episode.get("game"), dict)
        and isinstance(episode.get("tracker"), dict)
        and isinstance(episode.get("must_reset"), str)
    )
    play = episode.get("play")
    if not is_complete or not _is_play(play):
        raise ValueError(
            "snapshot: expected the state of the episode (game, tracker, play, must_reset) with "
            f"play (held, frames, truncated), got {sorted(episode)} with play {play!r}; the "
            "snapshot is damaged: save it again"
        )


def check_play(play: object) -> None:
    """Check how frames were played up to the start of an episode, which may come from anywhere."""
    if not _is_play(play) or play["truncated"]:
        raise damaged(f"expected buttons held, frames played and no end, got {play!r:.60}")


def _is_play(play: object) -> TypeGuard[dict[str, object]]:
    """True for what `NesEnv` saves: buttons held, frames played, and if a limit was reached."""
    table = cast("dict[str, object]", play) if isinstance(play, dict) else {}
    held, frames = table.get("held"), table.get("frames")
    are_numbers = type(held) is int and 0 <= held <= 255 and type(frames) is int and frames >= 0
    return are_numbers and isinstance(table.get("truncated"), bool)


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
        check_choice("start_rule", rule, get_args(StartRule))
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
        is_one = isinstance(start, Snapshot | str | os.PathLike)
        if not is_one and (not isinstance(start, list | tuple) or not start):
            raise ValueError(
                f"start: expected a Snapshot, the path of one, or a list of such, got {start!r}"
            )
        places: list[StartState] = []
        for source in cast("Sequence[SnapshotSource]", [start] if is_one else start):
            snapshot = source if isinstance(source, Snapshot) else Snapshot.load(source)
            snapshot.check(cartridge, console)
            console.load(snapshot.state)  # the emulator checks the rest
            places.append(StartState(snapshot.state, snapshot.screen))
        return places
    chosen = game_boot or "" if boot is None else boot
    texts = [chosen] if isinstance(chosen, str) else chosen
    is_list = isinstance(texts, list | tuple) and texts
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"boot: expected a script such as 'NOOP 20, START 3', or a list of such, got {boot!r}"
        )
    scripts = [parse_boot(text) for text in texts]
    power_on = console.save()
    places = []
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
