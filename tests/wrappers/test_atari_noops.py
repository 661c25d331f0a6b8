# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""`info["noops"]`, checked by playing the same frames one by one in a plain emulator."""

from typing import Any, cast

import ale_py
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv

from stepwell.wrappers import make_atari
from stepwell.wrappers.atari import atari_env
from stepwell.wrappers.atari_native import IDLE_FRAMES, NativeAtari
from stepwell.wrappers.atari_settings import AtariSettings, atari_games
from support.models import atari_reference
from support.models.atari_reference import settings

SEED = 11

# Games that play frames inside their reset; of double_dunk their number is random.
LONG_RESETS = ["double_dunk", "name_this_game", "surround"]


class Emulator(atari_reference.Emulator):
    """One that was seeded as that of an env."""

    def __init__(self, chosen: AtariSettings, seed: int = SEED) -> None:
        super().__init__(chosen)
        self.load_from_file(seed)
        legal, own = self.ale.getLegalActionSet(), self.ale.getMinimalActionSet()
        self.actions = legal if chosen.full_actions else own
        self.fires = chosen.fire_reset and ale_py.Action.FIRE in self.actions

    def begin(self, noops: int) -> None:
        """Reset, press FIRE if that is chosen, and do nothing for `noops` frames."""
        self.ale.reset_game()
        if self.fires:
            self.ale.act(ale_py.Action.FIRE)
        for _ in range(noops):
            self.ale.act(ale_py.Action.NOOP)
            if self.ale.game_over():
                self.ale.reset_game()

    def play(self, action: int, frames: int) -> None:
        """Play up to `frames` frames of an action."""
        for _ in range(frames):
            if not self.ale.game_over():
                self.ale.act(self.actions[action])

    def agrees(self, observation: Any, info: dict[str, Any], env: int = 0) -> None:
        """Fail unless this is where that env is."""
        assert info["frame_number"][env] == self.ale.getFrameNumber()
        assert info["episode_frame_number"][env] == self.ale.getEpisodeFrameNumber()
        np.testing.assert_array_equal(observation[env, 0], self.ale.getScreenGrayscale())


def make(chosen: AtariSettings, backend: str) -> VectorEnv[Any, Any, Any]:
    if backend == "native":
        return NativeAtari(chosen, 1, 1)
    # Without seeds for later resets: the emulator that it is compared with has none.
    return SyncVectorEnv([lambda: cast("Any", atari_env(chosen)).env])


def played_again(backend: str, game: str, episodes: int = 3, **changes: Any) -> list[int]:
    """The recorded numbers of no-ops, after playing them again in a plain emulator."""
    plain = {"noop_max": 30, "size": None, "frame_stack": 1, "frame_skip": 3, "max_frames": 6}
    chosen = settings(game=game, **plain | changes)
    envs, emulator, numbers = make(chosen, backend), Emulator(chosen), list[int]()
    rng = np.random.default_rng(3)
    observation, info = envs.reset(seed=SEED)
    while True:
        assert info["_noops"].all()
        numbers.append(int(info["noops"][0]))
        emulator.begin(numbers[-1])
        emulator.agrees(observation, info)
        if len(numbers) == episodes:
            return numbers
        over = np.zeros(1, np.bool_)
        while not over[0]:
            action = rng.integers(len(emulator.actions), size=1)
            *_, terminated, truncated, _ = envs.step(action)
            emulator.play(action[0], 3)
            over = terminated | truncated
        observation, *_, info = envs.step(np.zeros(1, np.int64))


@pytest.mark.proof
@pytest.mark.parametrize("game", LONG_RESETS)
def test_frames_that_a_game_plays_inside_its_reset_are_no_noops(game: str) -> None:
    played_again("native", game, episodes=4)


@pytest.mark.proof
@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_game_without_a_noop_of_its_own_has_noops(backend: str) -> None:
    assert max(played_again(backend, "backgammon")) > 0
    assert make_atari("video_checkers", backend=cast(Any, backend), num_workers=1).num_envs == 1


@pytest.mark.proof
@pytest.mark.parametrize("game", ["double_dunk", "surround"])
def test_envs_that_are_reset_alone_have_their_own_noops(game: str) -> None:
    chosen = settings(game=game, noop_max=30, size=None, frame_stack=1)
    envs, emulator = NativeAtari(chosen, 2, 1), Emulator(chosen, SEED + 1)
    observation, info = envs.reset(seed=SEED)
    other = {"reset_mask": np.array([False, True])}
    for seed in (None, None, [SEED + 2], None):
        emulator.begin(info["noops"][1])
        emulator.agrees(observation, info, env=1)
        envs.step(np.zeros(2, np.int64))
        emulator.play(0, 4)
        if seed is not None:
            emulator = Emulator(chosen, *seed)
        observation, info = envs.reset(seed=seed, options=other)
        assert info["_noops"].tolist() == [False, True]
        assert info["noops"][0] == 0


@pytest.mark.proof
def test_a_game_may_end_while_nothing_is_pressed() -> None:
    assert played_again("native", "assault", episodes=1, noop_max=8000)[0] > 2 * IDLE_FRAMES


@pytest.mark.proof
@pytest.mark.parametrize("seed", [-1, 2**31, [3, -1], 2**31 - 1])
def test_a_seed_that_an_emulator_cannot_have_is_refused(seed: Any) -> None:
    envs = NativeAtari(settings(), 2, 1)
    with pytest.raises(ValueError, match=f"seed: .*2147483647.*{str(seed).strip('[]')}"):
        envs.reset(seed=seed)


@pytest.mark.full
def test_no_game_ends_within_the_frames_that_are_taken_to_be_idle() -> None:
    for game in atari_games():
        emulator = Emulator(settings(game=game))
        emulator.begin(0)
        for _ in range(IDLE_FRAMES):
            emulator.ale.act(ale_py.Action.NOOP)
        assert not emulator.ale.game_over(), game


@pytest.mark.full
@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("game", atari_games())
def test_the_noops_of_every_game_lead_to_its_first_observations(game: str, backend: str) -> None:
    played_again(backend, game)
    played_again(backend, game, fire_reset=True, full_actions=True, sticky=0.9)
