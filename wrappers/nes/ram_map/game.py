"""Games: a RAM map in memory, and the tracker that applies it to a running console."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from .tables import SIDES, integration, read_retro, read_tables
from .variables import Condition, RewardTerm, Variable

if TYPE_CHECKING:
    from ..cartridge import Cartridge

GameSource: TypeAlias = "Game | str | os.PathLike[str] | Mapping[str, Any]"

NES_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """The content of a RAM map; load one with `Game.load`.

    Args:
        name: Name of the game.
        boot: Boot script from power-on to the game, or None.
        actions: The game's own action list, or None.
        variables: The variables by name.
        reward: The terms of the reward; without terms the reward is 0.
        terminated: Condition for the end of the game; None: it never ends.
        life: The variable that counts lives, or None.
        stuck: Variables that change while the game continues; by default those of the reward.
        crops: Pixels to crop by name, (top, bottom, left, right), of the 240x256 picture.
        sha256: SHA-256 of the map's ROM files, in hexadecimal; empty: any ROM.
        sha1: SHA-1 of all bytes after the 16 bytes of header, in hexadecimal, as in stable-retro;
            empty: any ROM.

    Example:
        >>> lives = {"address": 0x13, "type": "|u1"}
        >>> over = {"lives": {"op": "zero"}}
        >>> game = Game.load({"vars": {"lives": lives}, "terminated": over})
        >>> ram = bytearray(2048)
        >>> tracker = game.tracker(ram.__getitem__)
        >>> ram[0x13] = 3
        >>> tracker.begin()
        >>> tracker.values(), tracker.terminated
        ({'lives': 3}, False)
    """

    name: str
    boot: str | None = None
    actions: tuple[str, ...] | None = None
    variables: Mapping[str, Variable] = field(default_factory=dict)
    reward: tuple[RewardTerm, ...] = ()
    terminated: Condition | None = None
    life: str | None = None
    stuck: tuple[str, ...] = ()
    crops: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    sha256: tuple[str, ...] = ()
    sha1: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Replace mappings by read-only views."""
        for name in ("variables", "crops"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Callable[[dict[str, object]], Game], tuple[dict[str, object]]]:
        """Pickle the recipe, as read-only views cannot be pickled."""
        return Game.load, (self.recipe(),)

    @classmethod
    def load(cls, source: GameSource | None) -> Game:
        """Load a RAM map.

        Args:
            source: One of:

                - None: no variables, reward 0, no end;
                - the path of a folder with stable-retro's data.json and scenario.json;
                - "retro:Name-Nes-v0": an integration of the installed stable-retro;
                - the tables of a RAM map, as from `Game.recipe`;
                - a `Game`, which is returned unchanged.

        Raises:
            FileNotFoundError: There is no such file or folder.
            ImportError: "retro:..." without stable-retro.
            TypeError: The source has another type.
            ValueError: The map is invalid, or uses Lua scripts.
        """
        if isinstance(source, Game):
            return source
        if source is None:
            return cls(name="unknown")
        if isinstance(source, Mapping):
            return cls(**read_tables(source, "game", "unknown"))
        if not isinstance(source, str | os.PathLike):
            raise TypeError(
                "game: expected None, a Game, a path, 'retro:Name-Nes-v0' or the tables of a RAM "
                f"map, got {type(source).__name__}; see Game.load"
            )
        text = os.fspath(source)
        if text.startswith("retro:"):
            return cls(**read_retro(integration(text.removeprefix("retro:"))))
        if Path(text).is_dir():
            return cls(**read_retro(Path(text)))
        expected = "a folder with data.json and scenario.json, or 'retro:Name-Nes-v0'"
        if not Path(text).exists():
            raise FileNotFoundError(
                f"game: expected {expected}, got {text!r}, which does not exist; check the path"
            )
        raise ValueError(
            f"game: expected {expected}, got the file {text!r}; give its folder if it is one of "
            "these, and write a map in TOML as such files (docs/nes.md)"
        )

    @property
    def watched(self) -> tuple[str, ...]:
        """Variables that show progress: `stuck`, or else those of the reward."""
        return self.stuck or tuple(dict.fromkeys(term.measured.var for term in self.reward))

    @property
    def can_terminate(self) -> bool:
        """True if the map defines the end of the game."""
        return self.terminated is not None

    def check_cartridge(self, cartridge: Cartridge) -> None:
        """Check that the map is for this cartridge.

        Raises:
            ValueError: The map is for other cartridges.
        """
        content = hashlib.sha1(cartridge.data[NES_HEADER_BYTES:], usedforsecurity=False).hexdigest()
        checks = (
            ("SHA-256", self.sha256, cartridge.sha256.lower()),
            ("SHA-1 (of all that follows the header)", self.sha1, content),
        )
        for kind, expected, got in checks:
            if expected and got not in expected:
                raise ValueError(
                    f"cartridge {cartridge.name!r}: expected one with the {kind} "
                    f"{' or '.join(expected)}, for which the RAM map {self.name!r} was made, got "
                    f"{got}; use that dump, or remove the digest from the map's rom.sha if its "
                    "addresses are valid for this one too"
                )

    def recipe(self) -> dict[str, object]:
        """Return the map as JSON data; equal games have equal recipes.

        `Game.load` makes an equal game from it.
        """
        digests = {"sha256": list(self.sha256), "sha1": list(self.sha1)}
        tables: dict[str, object] = {
            "boot": self.boot,
            "actions": None if self.actions is None else list(self.actions),
            "rom": {key: found for key, found in digests.items() if found} or None,
            "vars": {name: variable.recipe() for name, variable in self.variables.items()} or None,
            "reward": {term.name: term.recipe() for term in self.reward} or None,
            "terminated": self.terminated and self.terminated.recipe(),
            "life": self.life and {"var": self.life},
            "stuck": {"vars": list(self.stuck)} if self.stuck else None,
            "crop": {name: dict(zip(SIDES, crop, strict=True)) for name, crop in self.crops.items()}
            or None,
        }
        present = {key: table for key, table in tables.items() if table is not None}
        return {"name": self.name, **present}

    def tracker(self, peek: Callable[[int], int]) -> GameTracker:
        """Return a tracker for a console that plays the game.

        Args:
            peek: Returns the byte at an address of the RAM as a Python int.
        """
        return GameTracker(peek, self)


class GameTracker:
    """Computes rewards and ends from the RAM, frame by frame; made by `Game.tracker`."""

    # Call `begin` on the first frame of an episode, `begin_step` before each step of the env, and
    # `advance` after every frame. Only the variables of the reward, the end and the stuck detector
    # are read in every frame; the others are read by `values`.

    def __init__(self, peek: Callable[[int], int], game: Game) -> None:
        variables, end, watched = game.variables, game.terminated, game.watched
        ended = [] if end is None else list(end.variables())
        paid = [term.measured.var for term in game.reward]
        # The watched variables first, so that they are one slice of the values.
        names = tuple(dict.fromkeys([*watched, *paid, *ended]))
        indices = {name: index for index, name in enumerate(names)}
        self._names = names
        self._watched = len(watched)
        self._readers = {name: variable.reader(peek) for name, variable in variables.items()}
        self._read_each_frame = tuple(self._readers[name] for name in names)
        self._pays = tuple(
            (term.name, term.pay(indices[term.measured.var], variables[term.measured.var]))
            for term in game.reward
        )
        self._is_over = None if end is None else end.test(indices, variables)
        self._life = None if game.life is None else self._readers[game.life]
        self._values: list[int] = [0] * len(names)
        self.terminated = False  # the game is over in the last frame
        self.still_frames = 0  # since a watched variable changed; 0 if there are none
        # Sum of each term since `begin_step`; a new dict for each step.
        self.reward_terms: dict[str, float] = {}
        self.begin_step()

    def begin(self) -> None:
        """Start an episode: changes are relative to the current RAM."""
        values = [read() for read in self._read_each_frame]
        self._values = values
        self.still_frames = 0
        self.terminated = self._is_over is not None and self._is_over(values, values)
        self.begin_step()

    def begin_step(self) -> None:
        """Start a step: set the sums of the terms to 0."""
        self.reward_terms = {name: 0.0 for name, _ in self._pays}

    def advance(self) -> float:
        """Process a frame, and return its reward."""
        old, new = self._values, [read() for read in self._read_each_frame]
        self._values = new
        total = 0.0
        for name, pay in self._pays:
            paid = pay(new, old)
            if paid:
                total += paid
                self.reward_terms[name] += paid
        if self._is_over is not None:
            self.terminated = self._is_over(new, old)
        watched = self._watched
        if watched:
            self.still_frames = self.still_frames + 1 if new[:watched] == old[:watched] else 0
        return total

    def values(self) -> dict[str, int]:
        """Read all variables of the map."""
        return {name: read() for name, read in self._readers.items()}

    def lives(self) -> int | None:
        """Read the life variable; None for a map without one."""
        return None if self._life is None else self._life()

    def save(self) -> dict[str, object]:
        """Return the state for `load` as JSON data."""
        return {
            "values": dict(zip(self._names, self._values, strict=True)),
            "terminated": self.terminated,
            "still_frames": self.still_frames,
            "reward_terms": dict(self.reward_terms),
        }

    def load(self, state: object) -> None:
        """Restore a state that `save` returned, of the same RAM map."""
        is_state = isinstance(state, Mapping) and state.keys() == self.save().keys()
        parts: Any = state if is_state else {}
        values, terms, still = map(parts.get, ("values", "reward_terms", "still_frames"))
        have_names = isinstance(values, Mapping) and isinstance(terms, Mapping)
        numbers = [*values.values(), *terms.values(), still] if have_names else [None]
        if not all(isinstance(number, int | float) for number in numbers):
            raise ValueError(
                f"tracker state: expected a state of GameTracker.save, got {state!r:.60}; "
                "save a snapshot of this env first"
            )
        names = [name for name, _ in self._pays]
        if set(values) != set(self._names) or set(terms) != set(names):
            raise ValueError(
                f"tracker state: expected the variables {sorted(self._names)} and the terms "
                f"{sorted(names)}, got {sorted(values)} and {sorted(terms)}; "
                "use the RAM map that it was saved with"
            )
        self._values = [values[name] for name in self._names]
        self.reward_terms = {name: float(terms[name]) for name in names}
        self.terminated = bool(parts["terminated"])
        self.still_frames = still
