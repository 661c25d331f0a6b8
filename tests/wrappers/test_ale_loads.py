# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""A load of an Atari game from the state of another load is the load from the file."""

from typing import Any

import ale_py
import numpy as np
import pytest
from ale_py import roms

from stepwell.wrappers import ale_env
from stepwell.wrappers.ale_env import SeededLoads, quiet_emulators
from stepwell.wrappers.atari_settings import atari_games

# NTSC and PAL consoles, frames inside the reset, bank switching, settings that only a reset sets.
GAMES = ["pong", "breakout", "pacman", "surround", "video_chess", "miniature_golf"]
DRAW_WHEN_LOADED = ["berzerk", "double_dunk"]
SEEDS = (0, 1, 7, 2**31 - 1)


class Emulator:
    """An emulator with a game, and how to load it with a seed."""

    def __init__(self, game: str, mode: int | None = None, difficulty: int | None = None) -> None:
        quiet_emulators()
        self.ale: Any = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.25)
        self._facts = game, mode, difficulty
        self.file_loads = 0
        self.loads = SeededLoads(self.ale, self._load)

    def _load(self) -> None:
        game, mode, difficulty = self._facts
        self.file_loads += 1
        self.ale.loadROM(roms.get_rom_path(game))
        if mode is not None:
            self.ale.setMode(mode)
        if difficulty is not None:
            self.ale.setDifficulty(difficulty)

    def load_from_file(self, seed: int) -> None:
        self.ale.setInt("random_seed", seed)
        self._load()

    @property
    def state(self) -> bytes:
        state: bytes = self.ale.cloneState(include_rng=True).__getstate__()
        return state

    def play(self, rng: np.random.Generator, frames: int) -> None:
        actions = self.ale.getMinimalActionSet()
        for _ in range(frames):
            if self.ale.game_over():
                self.ale.reset_game()
            self.ale.act(actions[rng.integers(len(actions))])


def assert_same_play(left: Emulator, right: Emulator, seed: int, frames: int) -> None:
    """Two emulators show the same for some frames of sticky, random play, and end alike."""
    for one in (left, right):
        one.ale.reset_game()
    assert left.state == right.state  # with the generator
    rng, actions = np.random.default_rng(seed), left.ale.getMinimalActionSet()
    for frame in range(frames):
        action = actions[rng.integers(len(actions))]
        facts = [
            (
                one.ale.act(action),
                one.ale.game_over(),
                one.ale.lives(),
                one.ale.getFrameNumber(),
                one.ale.getEpisodeFrameNumber(),
            )
            for one in (left, right)
        ]
        assert facts[0] == facts[1], frame
        if frame % 10 == 0:
            np.testing.assert_array_equal(left.ale.getRAM(), right.ale.getRAM())
            np.testing.assert_array_equal(left.ale.getScreenRGB(), right.ale.getScreenRGB())
        if facts[0][1]:
            left.ale.reset_game()
            right.ale.reset_game()
    assert left.state == right.state


def compare(game: str, frames: int, mode: int | None = None, difficulty: int | None = None) -> bool:
    """Load from states and from the file, and return whether the former is possible."""
    quick = Emulator(game, mode, difficulty)
    plain = Emulator(game, mode, difficulty)
    assert not quick.loads.are_quick
    quick.loads.load(123)
    for seed in SEEDS:
        quick.play(np.random.default_rng(seed), 300)
        quick.loads.load(seed)
        assert quick.ale.getInt("random_seed") == seed
        plain.load_from_file(seed)
        assert_same_play(quick, plain, seed, frames)
    assert quick.file_loads == (1 if quick.loads.are_quick else 1 + len(SEEDS))
    return quick.loads.are_quick


@pytest.mark.proof
@pytest.mark.parametrize("game", GAMES)
def test_a_load_from_a_state_is_a_load_from_the_file(game: str) -> None:
    assert compare(game, 200)


@pytest.mark.proof
@pytest.mark.parametrize("game", DRAW_WHEN_LOADED)
def test_a_game_that_draws_while_it_is_loaded_is_loaded_from_its_file(game: str) -> None:
    assert not compare(game, 100)


@pytest.mark.proof
def test_modes_and_difficulties_are_part_of_the_load() -> None:
    assert compare("breakout", 200, mode=12, difficulty=1)


@pytest.mark.full
@pytest.mark.parametrize("game", atari_games())
def test_a_load_from_a_state_is_a_load_from_the_file_for_every_game(game: str) -> None:
    assert compare(game, 600) == (game not in DRAW_WHEN_LOADED)


def test_another_layout_of_states_is_loaded_from_the_file() -> None:
    emulator = Emulator("pong")
    emulator.load_from_file(5)
    state = emulator.state
    assert ale_env._parts_of(state, 5) is not None
    assert ale_env._parts_of(state, 6) is None, "the generator of another seed"
    assert ale_env._parts_of(state + b"\0", 5) is None, "more bytes"
    assert ale_env._parts_of(state[:24] + b"\0" + state[25:], 5) is None, "another number of bytes"
    space = state.rindex(b" ")
    assert ale_env._parts_of(state[:space] + b"," + state[space + 1 :], 5) is None, "other text"
    assert ale_env._parts_of(b"", 5) is None
    emulator.play(np.random.default_rng(0), 10)
    assert ale_env._parts_of(emulator.state, 5) is None, "numbers were drawn"
