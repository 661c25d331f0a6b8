"""What is known about a game: where its numbers lie in RAM, what pays, when it is over."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from stepwell.wrappers.nes.ram_map.retro_files import integration, read_retro
from stepwell.wrappers.nes.ram_map.toml_map import RamMap, read_map, read_toml
from stepwell.wrappers.nes.ram_map.variables import Condition, RewardTerm, Variable

if TYPE_CHECKING:
    from stepwell.wrappers.nes.cartridge import Cartridge

GameSource: TypeAlias = "Game | str | os.PathLike[str] | Mapping[str, Any]"

NES_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """What a RAM map tells about a game; read one with `Game.load`.

    Args:
        name: What the game is called.
        boot: A script of buttons that leads from power-on to the game, or None.
        actions: The game's own action list, or None.
        variables: The variables by name.
        reward: The summands of the reward; none: the reward is 0.
        terminated: When the game is over; None: never.
        life: The variable that counts lives, or None.
        stuck: Variables that change as long as the game goes on; none: those of the reward.
        crops: By name the pixels to cut, (top, bottom, left, right), of the 240x256 picture.
        sha256: SHA-256 of the ROM files that the map is for, in hexadecimal; none: any.
        sha1: SHA-1 of all that follows the 16 bytes of header, in hexadecimal; none: any. It is
            what stable-retro keeps.

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
        """Keep views that nobody can write through."""
        for name in ("variables", "crops"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Callable[[dict[str, object]], Game], tuple[dict[str, object]]]:
        """Travel to worker processes by the recipe, as read-only views cannot be pickled."""
        return Game.load, (self.recipe(),)

    @classmethod
    def load(cls, source: GameSource | None) -> Game:
        """Read what is known about a game.

        Args:
            source: One of:

                - None: nothing is known. No variables, reward 0, never over;
                - the path of a RAM map, a .toml file;
                - the path of a folder with stable-retro's data.json and scenario.json;
                - "retro:Name-Nes-v0": an integration of the installed stable-retro;
                - the tables of a RAM map, as `tomllib` or `Game.recipe` gives them;
                - a `Game`, which is given back.

        Raises:
            FileNotFoundError: There is no such file or folder.
            ImportError: "retro:..." without stable-retro.
            TypeError: The source is none of these.
            ValueError: Something in the map is wrong, or it uses Lua scripts.
        """
        if isinstance(source, Game):
            return source
        if source is None:
            return cls(name="unknown")
        if isinstance(source, Mapping):
            return cls(**read_map(source, "game", "unknown"))
        if not isinstance(source, str | os.PathLike):
            raise TypeError(
                "game: expected None, a Game, a path, 'retro:Name-Nes-v0' or the tables of a RAM "
                f"map, got {type(source).__name__}; see Game.load"
            )
        return cls(**_read(os.fspath(source)))

    @property
    def watched(self) -> tuple[str, ...]:
        """Variables that tell whether the game goes on: `stuck`, or else those of the reward."""
        return self.stuck or tuple(dict.fromkeys(term.measured.var for term in self.reward))

    @property
    def can_terminate(self) -> bool:
        """Whether the map tells when the game is over."""
        return self.terminated is not None

    def check_cartridge(self, cartridge: Cartridge) -> None:
        """See that the map is for this cartridge.

        Raises:
            ValueError: It is for others.
        """
        behind = hashlib.sha1(cartridge.data[NES_HEADER_BYTES:], usedforsecurity=False).hexdigest()
        checks = (
            ("SHA-256", self.sha256, cartridge.sha256.lower()),
            ("SHA-1 (of all that follows the header)", self.sha1, behind),
        )
        for kind, expected, got in checks:
            if expected and got not in expected:
                raise ValueError(
                    f"cartridge {cartridge.name!r}: expected one with the {kind} "
                    f"{' or '.join(expected)}, for which the RAM map {self.name!r} was made, got "
                    f"{got}; use that dump, or take the digest out of the map's [rom] if its "
                    "addresses hold for this one too"
                )

    def recipe(self) -> dict[str, object]:
        """All that the map tells, as JSON has it: equal games have equal recipes.

        `Game.load` makes an equal game of it.
        """
        digests = {"sha256": list(self.sha256), "sha1": list(self.sha1)}
        sides = ("top", "bottom", "left", "right")
        tables: dict[str, object] = {
            "boot": self.boot,
            "actions": None if self.actions is None else list(self.actions),
            "rom": {key: found for key, found in digests.items() if found} or None,
            "vars": {name: variable.recipe() for name, variable in self.variables.items()} or None,
            "reward": {term.name: term.recipe() for term in self.reward} or None,
            "terminated": self.terminated and self.terminated.recipe(),
            "life": self.life and {"var": self.life},
            "stuck": {"vars": list(self.stuck)} if self.stuck else None,
            "crop": {name: dict(zip(sides, crop, strict=True)) for name, crop in self.crops.items()}
            or None,
        }
        given = {key: table for key, table in tables.items() if table is not None}
        return {"name": self.name, **given}

    def tracker(self, peek: Callable[[int], int]) -> GameTracker:
        """Follow a console that plays the game.

        Args:
            peek: Gives the byte at an address of the RAM as a Python int.
        """
        return GameTracker(
            peek,
            self.variables,
            reward=self.reward,
            terminated=self.terminated,
            watched=self.watched,
            life=self.life,
        )


def _read(text: str) -> RamMap:
    if text.startswith("retro:"):
        return read_retro(integration(text.removeprefix("retro:")))
    path = Path(text)
    if path.is_dir():
        return read_retro(path)
    if path.suffix.lower() == ".toml":
        return read_toml(path)
    if not path.exists():
        raise FileNotFoundError(
            f"game: expected a .toml file, a folder with data.json and scenario.json, or "
            f"'retro:Name-Nes-v0', got {text!r}, which does not exist; check the path"
        )
    raise ValueError(
        f"game: expected a .toml file, a folder with data.json and scenario.json, or "
        f"'retro:Name-Nes-v0', got the file {text!r}; "
        "rename it to .toml if it is one, or give its folder if it is stable-retro's"
    )


class GameTracker:
    """Reads what a game's RAM map tells, frame by frame; made by `Game.tracker`.

    Call `begin` on the first frame of an episode, `begin_step` before each step of the env, and
    `advance` after every frame. Only variables that the reward, the end and the stuck detector need
    are read in every frame; the others when asked for.

    Args:
        peek: Gives the byte at an address of the RAM as a Python int.
        variables: All variables by name.
        reward: The summands of the reward.
        terminated: When the game is over; None: never.
        watched: Variables whose standing still is counted.
        life: The variable that counts lives, or None.

    Attributes:
        terminated: Whether the game is over in the frame that was read last.
        still_frames: Frames since one of those watched changed; 0 if there are none.
        reward_terms: What each term paid since `begin_step`; a new dict for each step.
    """

    def __init__(
        self,
        peek: Callable[[int], int],
        variables: Mapping[str, Variable],
        *,
        reward: Sequence[RewardTerm] = (),
        terminated: Condition | None = None,
        watched: Sequence[str] = (),
        life: str | None = None,
    ) -> None:
        ended = [] if terminated is None else list(terminated.variables())
        paid = [term.measured.var for term in reward]
        # The watched ones first, so that they are one slice of the values.
        names = tuple(dict.fromkeys([*watched, *paid, *ended]))
        indices = {name: index for index, name in enumerate(names)}
        self._names = names
        self._watched = len(watched)
        self._readers = {name: variable.reader(peek) for name, variable in variables.items()}
        self._read_each_frame = tuple(self._readers[name] for name in names)
        self._pays = tuple(
            (term.name, term.pay(indices[term.measured.var], variables[term.measured.var]))
            for term in reward
        )
        self._is_over = None if terminated is None else terminated.test(indices, variables)
        self._life = None if life is None else self._readers[life]
        self._values: list[int] = [0] * len(names)
        self.terminated = False
        self.still_frames = 0
        self.reward_terms: dict[str, float] = {}
        self.begin_step()

    def begin(self) -> None:
        """Start an episode: changes are counted from what is in RAM now."""
        values = [read() for read in self._read_each_frame]
        self._values = values
        self.still_frames = 0
        self.terminated = self._is_over is not None and self._is_over(values, values)
        self.begin_step()

    def begin_step(self) -> None:
        """Start a step: the terms' sums begin at 0."""
        self.reward_terms = {name: 0.0 for name, _ in self._pays}

    def advance(self) -> float:
        """Read the RAM after a frame.

        Returns:
            The reward of the frame.
        """
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
        """All variables of the map, read now."""
        return {name: read() for name, read in self._readers.items()}

    def lives(self) -> int | None:
        """The life variable, read now; None for a map without one."""
        return None if self._life is None else self._life()

    def save(self) -> dict[str, object]:
        """What `load` needs to go on from here, as JSON has it."""
        return {
            "values": dict(zip(self._names, self._values, strict=True)),
            "terminated": self.terminated,
            "still_frames": self.still_frames,
            "reward_terms": dict(self.reward_terms),
        }

    def load(self, state: object) -> None:
        """Go on from where `save` was called.

        Raises:
            ValueError: The state is that of another RAM map, or none at all.
        """
        values, terms = _part(state, "values"), _part(state, "reward_terms")
        if not isinstance(values, Mapping) or not isinstance(terms, Mapping):
            raise _no_state(state)
        names = [name for name, _ in self._pays]
        if set(values) != set(self._names) or set(terms) != set(names):
            raise ValueError(
                f"tracker state: expected the variables {sorted(self._names)} and the terms "
                f"{sorted(names)}, got {sorted(values)} and {sorted(terms)}; "
                "use the RAM map that it was saved with"
            )
        still = _part(state, "still_frames")
        numbers = [*values.values(), *terms.values(), still]
        if not all(isinstance(number, int | float) for number in numbers):
            raise _no_state(state)
        self._values = [values[name] for name in self._names]
        self.reward_terms = {name: float(terms[name]) for name in names}
        self.terminated = bool(_part(state, "terminated"))
        self.still_frames = still


def _part(state: object, key: str) -> Any:
    keys = {"values", "terminated", "still_frames", "reward_terms"}
    if not isinstance(state, Mapping) or set(state) != keys:
        raise _no_state(state)
    return state[key]


def _no_state(state: object) -> ValueError:
    return ValueError(
        f"tracker state: expected what GameTracker.save gives, got {state!r:.60}; "
        "save a snapshot of this env first"
    )
