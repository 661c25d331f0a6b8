"""Snapshots of Atari games at the starts of episodes."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from gymnasium.core import ActType, ObsType

from .ale_env import (
    LARGEST_SEED,
    TWISTER_WORDS,
    AleState,
    Emulator,
    Words,
    emulator_info,
    quiet_emulators,
)
from .env_results import RecordedWrapper
from .snapshots import (
    Array,
    SavedGame,
    check_fact,
    damaged,
    pack,
    saved_generator,
    saved_info,
    unpack,
)

_MOST_DRAWS = 1 << 24  # more take longer to draw again than to read 624 words
_LAST_ACTION = 17
_LARGEST = 2**31 - 1
# The state word of a Mersenne Twister from which it draws its largest number.
_OPEN_WORD = 0x12DD9BB3


class SavingEmulator:
    """An `ale_py.ALEInterface` of which everything can be saved."""

    # The emulator's own state lacks the action that sticky actions repeat. It is found from the
    # actions that were asked for and from the emulator's random draws, two for each frame.

    def __init__(self, ale: Any) -> None:
        self._ale = ale
        act = ale.act
        self._asked: list[object] = []  # a frame each, since `_settle`
        ask = self._asked.append

        def act_and_note(action: object, strength: float) -> int:
            ask(action)
            return cast("int", act(action, strength))

        self.act = act_and_note
        self._held: object = ale_py.Action.NOOP
        self._generator: np.random.MT19937 | None = None  # not known, and nothing asked for
        self._seed: int | None = None
        self._draws = 0

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the emulator itself."""
        return getattr(self._ale, name)

    def reset_game(self) -> None:
        """Reset the game, which releases the action that is held."""
        known = self._settle()
        self._ale.reset_game()
        self._held = ale_py.Action.NOOP
        state = AleState.of(self._ale)
        if not state.has(known):  # Berzerk draws
            self._generator, self._seed = state.generator(), None

    def loadROM(self, path: object) -> None:
        """Load a game, which seeds the generator."""
        self._ale.loadROM(path)
        self._asked.clear()
        self._held = ale_py.Action.NOOP
        self._begin_generator()

    def restoreState(self, state: object) -> None:
        """Restore a state, which may have another generator."""
        self._settle()
        self._ale.restoreState(state)
        self._begin_generator()

    def save(self) -> tuple[AleState, dict[str, Any]]:
        """Return the state, and as JSON data the action that is held and the generator."""
        known = self._settle()
        state = AleState.of(self._ale)
        if not state.has(known):
            raise RuntimeError(
                f"ale-py {ale_py.__version__}: expected an emulator that draws two numbers for "
                "each frame, got one that draws others; make the envs with snapshots=False"
            )
        facts: dict[str, Any] = {"held": cast("Any", self._held).value}
        if self._seed is None or self._draws > _MOST_DRAWS:
            words = base64.b64encode(state.words.astype("<u4").tobytes()).decode()
            return state, {**facts, "words": words, "position": state.position}
        return state, {**facts, "seed": self._seed, "draws": self._draws}

    def _begin_generator(self) -> np.random.MT19937:
        """Begin to follow the emulator's generator, from a seed if it has just been seeded."""
        state = AleState.of(self._ale)
        self._generator = found = state.generator()
        seed: int = self._ale.getInt("random_seed")
        self._seed = seed if seed >= 0 and state.has(state.seeded(seed).generator()) else None
        self._draws = 0
        return found

    def _settle(self) -> np.random.MT19937:
        """Draw what the emulator has drawn, and find the action that it holds."""
        known = self._generator or self._begin_generator()
        draws = 2 * len(self._asked)
        drawn = known.random_raw(draws)[::2]  # the second is another player's
        self._draws += draws
        sticky: float = self._ale.getFloat("repeat_action_probability")
        taken = np.flatnonzero(drawn / 2**32 >= sticky)
        if len(taken):
            self._held = self._asked[taken[-1]]
        self._asked.clear()
        return known


class AtariSnapshots(RecordedWrapper[ObsType, ActType]):
    """Add a snapshot of the game to the info of each reset, `info["snapshot"]`."""

    # ``env`` is a game of `make_atari`, without its frame stack, on a `SavingEmulator`.

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        super().__init__(env)
        inner: Any = env.unwrapped
        self._ale: SavingEmulator = inner.ale
        self._kind, self._base = kind_of(inner), base_state(inner._game)
        self._began = 0  # frame number of the first observation of the game
        self.step = env.step  # type: ignore[method-assign]  # costs nothing

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the env, and save its state."""
        observation, info = self.env.reset(seed=seed, options=options)
        number: int = info["episode_frame_number"]
        saved: SavedGame | None = (options or {}).get("snapshot")
        if saved is not None:
            self._began = number - saved.facts["frames"]
        elif "noops" in info:  # not in the middle of a game, after a lost life
            self._began = number
        state, facts = self._ale.save()
        facts |= {
            "frames": number - self._began,
            "generator": saved_generator(self.np_random),
            "info": saved_info(info, emulator_info(cast("Emulator", self._ale))),
        }
        return observation, {**info, "snapshot": pack(self._kind, facts, state.machine, self._base)}


def kind_of(inner: Any) -> str:
    """Return the text that identifies a bare Atari env's game and the version of its emulator."""
    return f"{inner._game} of ale-py {ale_py.__version__}"


@functools.cache
def base_state(game: str) -> bytes:
    """Return the state of a game's start, the same in every process."""
    quiet_emulators()
    ale: Any = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    return AleState.of(ale).machine


@dataclass(frozen=True, slots=True, eq=False)
class SavedAtari(SavedGame):
    """The content of a snapshot of an Atari game."""

    @classmethod
    def of(cls, inner: Any, snapshot: bytes, observation: Array) -> SavedAtari:
        """Read `info["snapshot"]` of an episode's first reset, for a bare Atari env of the game."""
        # ``observation`` is the newest frame of the episode's first one.
        facts, state = unpack(kind_of(inner), snapshot, base_state(inner._game))
        check_fact(facts, "held", _LAST_ACTION)
        check_fact(facts, "frames", _LARGEST)
        if "seed" in facts:
            check_fact(facts, "seed", LARGEST_SEED)
            check_fact(facts, "draws", _MOST_DRAWS)
        else:
            check_fact(facts, "position", TWISTER_WORDS)
            _words_of(facts)
        return cls(facts, state, observation)

    def restore(self, emulator: Any) -> None:
        """Restore the emulator of an env whose game has just been reset."""
        facts = self.facts
        state = AleState(self.state, np.empty(0, np.uint32), 0)
        if "seed" in facts:
            generator = state.seeded(facts["seed"]).generator()
            generator.random_raw(facts["draws"])
            found = cast("Any", generator.state)["state"]
            state = state._replace(words=found["key"], position=found["pos"])
        else:
            state = state._replace(words=_words_of(facts), position=facts["position"])
        try:
            if facts["held"]:
                never_sticky = np.full(TWISTER_WORDS, _OPEN_WORD, np.uint32)
                state._replace(words=never_sticky, position=0).restore(emulator)
                emulator.act(ale_py.Action(facts["held"]), 1.0)
            state.restore(emulator)
        except SystemError:  # what ale-py throws has no message
            raise damaged("ale-py cannot read its state") from None


def _words_of(facts: Mapping[str, Any]) -> Words:
    """The state words of a generator."""
    try:
        data = base64.b64decode(facts["words"], validate=True)
    except (KeyError, TypeError, ValueError):
        data = b""
    if len(data) != 4 * TWISTER_WORDS:
        raise damaged("it lacks the emulator's generator")
    return np.frombuffer(data, "<u4").astype(np.uint32)
