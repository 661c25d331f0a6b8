# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""A load of an Atari game from the state of another load is the load from the file."""

import numpy as np
import pytest

from stepwell.wrappers import ale_env
from stepwell.wrappers.ale_env import SeededLoads
from stepwell.wrappers.atari_settings import atari_games
from support.models import atari_reference
from support.models.atari_reference import settings

# NTSC and PAL consoles, frames inside the reset, bank switching, settings that only a reset sets.
GAMES = ["pong", "breakout", "pacman", "surround", "video_chess", "miniature_golf"]
DRAW_WHEN_LOADED = ["berzerk", "double_dunk"]
SEEDS = (0, 1, 7, 2**31 - 1)


class Emulator(atari_reference.Emulator):
    """One whose game can be loaded with a seed from a state, too."""

    def __init__(self, game: str, **facts: int) -> None:
        super().__init__(settings(game=game, **facts))
        self.file_loads = 0
        self.loads = SeededLoads(self.ale, self.load)

    def load(self) -> None:
        self.file_loads += 1
        super().load()

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


def compare(game: str, frames: int, **facts: int) -> bool:
    """Load from states and from the file, and return whether the former is possible."""
    quick = Emulator(game, **facts)
    plain = Emulator(game, **facts)
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
@pytest.mark.parametrize(
    "game",
    [
        *GAMES,
        *DRAW_WHEN_LOADED,
        *(
            pytest.param(game, marks=pytest.mark.full)
            for game in atari_games()
            if game not in (*GAMES, *DRAW_WHEN_LOADED)
        ),
    ],
)
def test_a_load_from_a_state_is_a_load_from_the_file(game: str) -> None:
    """But a game that draws while it is loaded is loaded from its file."""
    assert compare(game, 200) == (game not in DRAW_WHEN_LOADED)


@pytest.mark.proof
def test_modes_and_difficulties_are_part_of_the_load() -> None:
    assert compare("breakout", 200, mode=12, difficulty=1)


def test_another_layout_of_states_is_loaded_from_the_file() -> None:
    emulator = Emulator("pong")
    emulator.load_from_file(5)
    state = emulator.state
    assert ale_env._seeded_state(state, 5) is not None
    assert ale_env._seeded_state(state, 6) is None, "the generator of another seed"
    assert ale_env._seeded_state(state + b"\0", 5) is None, "more bytes"
    assert ale_env._seeded_state(state[:24] + b"\0" + state[25:], 5) is None, (
        "another number of bytes"
    )
    space = state.rindex(b" ")
    assert ale_env._seeded_state(state[:space] + b"," + state[space + 1 :], 5) is None, "other text"
    assert ale_env._seeded_state(b"", 5) is None
    emulator.play(np.random.default_rng(0), 10)
    assert ale_env._seeded_state(emulator.state, 5) is None, "numbers were drawn"
