"""A moment of a game: kept, written to a file, gone back to."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.console import Console, Image

FORMAT = 1
MOST_BYTES = 64 << 20  # a console has some hundred thousand
_FACTS = {"format": int, "cartridge": str, "sha256": str, "backend": str, "version": str}


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A console's state, the screen that was shown, and where the episode stood.

    Made by `NesEnv.snapshot`. It goes with one cartridge, one backend and one version of that
    backend. The env's random generator is not in it.

    Args:
        cartridge: Name of the cartridge.
        sha256: Of the cartridge.
        backend: That saved it.
        version: Of the backend's package.
        state: What the emulator saved: bytes, or with nes-py an object that cannot leave the
            process.
        screen: RGB [H, W, 3] uint8. Emulators do not keep it in their states.
        episode: Counters of the env, plain data.

    Example:
        >>> from stepwell.wrappers.nes.env import NesEnv
        >>> env = NesEnv("game.nes", game="game.toml")
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
        """See that a console can go back to it.

        Raises:
            ValueError: It was saved with another cartridge, backend or version, or its screen has
                another shape.
        """
        _check_same("cartridge", f"{cartridge.name}, {cartridge.sha256[:12]}", self._title())
        _check_same("backend", console.name, self.backend)
        _check_same(f"version of {console.name}", console.version, self.version)
        _check_episode(self.episode)
        if self.screen.shape != console.screen_shape or self.screen.dtype != np.uint8:
            raise ValueError(
                f"snapshot: expected a uint8 screen {console.screen_shape}, got "
                f"{self.screen.dtype} {self.screen.shape}; the snapshot is damaged"
            )

    def _title(self) -> str:
        return f"{self.cartridge}, {self.sha256[:12]}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a new file, without pickle.

        Raises:
            ValueError: Its backend's states cannot be written.
            FileExistsError: There is something at the path.
        """
        if not isinstance(self.state, bytes):
            raise ValueError(
                f"snapshot: expected a state of bytes, got one of {self.backend}, which cannot "
                "leave its process; play a boot script to the same place, or use another backend"
            )
        facts = {
            "format": FORMAT,
            "cartridge": self.cartridge,
            "sha256": self.sha256,
            "backend": self.backend,
            "version": self.version,
            "episode": dict(self.episode),
        }
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
                f"snapshot: expected a path where nothing is, got {os.fspath(path)!r}; "
                "choose another one, or remove what is there"
            ) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Snapshot:
        """Read one that `save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is no snapshot, or a damaged one.
        """
        if not Path(path).is_file():  # to open a pipe may never return
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
        except Exception as error:  # zipfile's, zlib's, numpy's: they have no class in common
            raise ValueError(
                f"snapshot: expected a file that Snapshot.save wrote, got {os.fspath(path)!r} "
                f"({error}); save it anew"
            ) from None
        return cls(
            facts["cartridge"],
            facts["sha256"],
            facts["backend"],
            facts["version"],
            state,
            screen,
            facts["episode"],
        )


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
    if not isinstance(table.get("episode"), dict):
        raise ValueError("'episode' is missing")


def _check_episode(episode: Mapping[str, Any]) -> None:
    """See that all is there that an env goes on with, before it changes anything."""
    play = episode.get("play")
    whole = (
        isinstance(episode.get("game"), dict)
        and isinstance(episode.get("tracker"), dict)
        and isinstance(episode.get("must_reset"), str)
        and isinstance(play, dict)
        and {"held", "frames", "truncated"} <= play.keys()
    )
    if not whole:
        raise ValueError(
            "snapshot: expected where the episode stood (game, tracker, play, must_reset), got "
            f"{sorted(episode)}; the snapshot is damaged: save it anew"
        )
