# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Facts about ale-py 0.12.1's vector env, the reasons for the corrections in `make_atari`."""

from collections.abc import Generator
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv

from stepwell.wrappers.atari import TESTED_ALE_PY
from stepwell.wrappers.atari_native import NativeAtari
from support.models.atari_reference import Image, bare, screen, settings


@pytest.fixture(autouse=True)
def shared_metadata() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """ale-py writes into the dict that all vector envs share: put it back."""
    before = dict(VectorEnv.metadata)
    yield
    VectorEnv.metadata.clear()
    VectorEnv.metadata.update(before)


def test_this_is_the_ale_py_that_make_atari_says_it_was_tested_with() -> None:
    """For another version: run this file, correct docs/atari.md, and update TESTED_ALE_PY."""
    assert version("ale-py") == TESTED_ALE_PY


def plain(**changes: Any) -> AtariVectorEnv:
    """Breakout as ale-py makes it: the whole screen, no stack, no luck."""
    defaults: dict[str, Any] = {
        "img_height": 210,
        "img_width": 160,
        "stack_num": 1,
        "noop_max": 0,
        "use_fire_reset": False,
        "reward_clipping": False,
        "num_threads": 1,
    }
    return AtariVectorEnv("breakout", 1, **(defaults | changes))


def last_step(seed: int, skip: int = 4, **changes: Any) -> tuple[list[Image], Image, Image]:
    """Play to the end of an episode with ale-py's vector env and frame by frame.

    Returns the true screens of the last step, and the vector env's last two observations.
    """
    envs, frames = plain(frameskip=skip, **changes), bare()
    observation, _ = envs.reset(seed=0)
    frames.reset(seed=0)
    rng, over, count = np.random.default_rng(seed), np.zeros(1, np.bool_), 0
    screens: list[Image] = []
    while not over[0]:
        action, before, start, screens = rng.integers(4, size=1), observation, count, []
        observation, _, terminated, truncated, info = envs.step(action)
        over, count = terminated | truncated, int(info["episode_frame_number"][0])
        for _ in range(count - start):
            frames.step(action[0])
            screens.append(screen(frames))
    return screens, before[0, 0], observation[0, 0]


@pytest.mark.proof
@pytest.mark.parametrize("played", [1, 2, 3, 4, None])
@pytest.mark.parametrize("maxpool", [True, False])
def test_an_episode_ends_with_the_observation_before_or_a_mixture(
    played: int | None, maxpool: bool
) -> None:
    """The frame on which it ends is never read; what was read before stays in the buffers."""
    limit = {} if played is None else {"max_num_frames_per_episode": 200 + played}
    screens, before, last = last_step(0, maxpool=maxpool, **limit)
    assert played in (len(screens), None)
    mixed = np.maximum.reduce([before, *screens[2:-1]]) if maxpool else before
    np.testing.assert_array_equal(last, mixed)
    assert (last != np.maximum.reduce(screens[-2:])).any()


@pytest.mark.proof
def test_noop_max_leaves_the_greatest_number_out() -> None:
    def numbers(envs: VectorEnv[Any, Any, Any]) -> set[int]:
        return {int(envs.reset()[1]["episode_frame_number"][0]) for _ in range(40)}

    assert numbers(plain(noop_max=2)) == {0, 1}
    assert numbers(NativeAtari(settings(noop_max=2), 1, 1)) == {0, 1, 2}
    assert numbers(NativeAtari(settings(noop_max=0), 1, 1)) == {0}


@pytest.mark.proof
def test_some_games_play_frames_inside_their_reset() -> None:
    """They are counted as frames of the episode, and their number may be random."""

    def frames(game: str) -> list[int]:
        envs = AtariVectorEnv(
            game, 1, noop_max=0, use_fire_reset=False, repeat_action_probability=0.25
        )
        infos = [envs.reset(seed=0)[1], *(envs.reset()[1] for _ in range(3))]
        return [int(info["episode_frame_number"][0]) for info in infos]

    assert frames("surround") == [1, 1, 1, 1]
    assert len(set(frames("double_dunk"))) > 1


@pytest.mark.proof
def test_the_number_of_noops_is_drawn_from_the_seed_whatever_the_game() -> None:
    """So the numbers of a game whose resets are random are those of a plain game."""

    def numbers(game: str) -> list[list[int]]:
        envs = AtariVectorEnv(game, 2, noop_max=31, use_fire_reset=False)
        infos = [envs.reset(seed=0)[1], *(envs.reset()[1] for _ in range(3))]
        return [info["episode_frame_number"].tolist() for info in infos]

    assert numbers("pong") == numbers("breakout")


@pytest.mark.proof
def test_without_a_seed_all_envs_draw_the_same_sticky_actions() -> None:
    """They are seeded with the clock in seconds; ours get fresh entropy."""

    def are_equal(envs: VectorEnv[Any, Any, Any]) -> bool:
        envs.reset()
        steps = [envs.step(np.full(2, t % 4))[0] for t in range(60)]
        return all(np.array_equal(*pair) for pair in steps)

    def sticky() -> AtariVectorEnv:
        return AtariVectorEnv(
            "breakout", 2, noop_max=0, use_fire_reset=False, repeat_action_probability=0.5
        )

    # A new second may begin while the two are made, but not four times.
    assert any(are_equal(sticky()) for _ in range(4))
    assert not are_equal(NativeAtari(settings(sticky=0.5), 2, 1))


@pytest.mark.proof
def test_episodic_life_resets_the_whole_game() -> None:
    envs = plain(episodic_life=True)
    envs.reset(seed=0)
    rng, terminated = np.random.default_rng(0), np.zeros(1, np.bool_)
    while not terminated[0]:
        _, _, terminated, _, info = envs.step(rng.integers(4, size=1))
    assert info["lives"][0] == 4
    *_, info = envs.step(np.zeros(1, np.int64))
    assert (info["lives"][0], info["episode_frame_number"][0]) == (5, 0)


@pytest.mark.proof
def test_life_loss_info_says_terminated_and_goes_on_without_a_reset() -> None:
    envs = plain(life_loss_info=True)
    envs.reset(seed=0)
    rng, terminated = np.random.default_rng(0), np.zeros(1, np.bool_)
    while not terminated[0]:
        _, _, terminated, _, info = envs.step(rng.integers(4, size=1))
    *_, after = envs.step(np.zeros(1, np.int64))
    assert after["episode_frame_number"][0] == info["episode_frame_number"][0] + 4
    assert after["lives"][0] == 4


@pytest.mark.proof
def test_metadata_is_one_dict_for_all_vector_envs() -> None:
    first = plain()
    plain(autoreset_mode=AutoresetMode.SAME_STEP)
    assert first.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert VectorEnv.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    VectorEnv.metadata.clear()
    ours = NativeAtari(settings(), 1, 1)
    assert ours.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert not VectorEnv.metadata


@pytest.mark.proof
@pytest.mark.parametrize(
    ("actions", "got"),
    [
        (np.array([4]), r"int64 \[4\]"),
        (np.array([-1]), r"int64 \[-1\]"),
        (np.array([0, 0]), r"int64 \[0, 0\]"),
        (np.array([0.0]), r"float64 \[0\.0\]"),
        (np.array(0), "int64 0"),
    ],
)
def test_an_action_that_would_hang_or_crash_ale_py_is_an_error(actions: Any, got: str) -> None:
    """On an action out of range ale-py's `recv` waits for ever."""
    envs = NativeAtari(settings(), 1, 1)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=rf"actions: .*\b1\b.*0 to 3.*{got}"):
        envs.step(actions)
    envs.step(cast(Any, np.array([3], np.int32)))
