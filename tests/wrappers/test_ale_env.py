from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from stepwell.wrappers import AleFrameSkip, EmulatorSeed, FrameSkip
from support.models.atari_reference import Env, Recorder, bare, screen

# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false


def play(env: Env, steps: int) -> list[tuple[Any, ...]]:
    """Everything that random play shows, with resets where an episode ends."""
    rng = np.random.default_rng(1)
    rows: list[tuple[Any, ...]] = [env.reset(seed=3)]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(
            rng.integers(env.action_space.n)  # type: ignore[attr-defined]
        )
        # A game that ends on its last allowed frame is both for TimeLimit.
        truncated = truncated and not terminated
        rows.append((observation, reward, terminated, truncated, info))
        if terminated or truncated:
            rows.append(env.reset())
    return rows


def assert_same(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> int:
    """The two rows are equal; returns how many episodes ended in them."""
    assert len(left) == len(right)
    for (observation, *rest), (other, *other_rest) in zip(left, right, strict=True):
        np.testing.assert_array_equal(observation, other)
        for part in (*rest, *other_rest):
            if isinstance(part, dict):
                cast("dict[str, Any]", part).pop("seeds", None)
        assert rest == other_rest
    return sum(len(row) == 2 for row in left) - 1


@pytest.mark.proof
@pytest.mark.parametrize("obs_type", ["grayscale", "rgb"])
@pytest.mark.parametrize(
    ("skip", "pool", "max_frames"),
    [(4, "max", 400), (3, "max", 401), (2, "none", 101), (1, "max", 75), (6, "max", None)],
)
def test_it_equals_frame_skip_over_time_limit(
    skip: int, pool: Any, max_frames: int | None, obs_type: str
) -> None:
    kind: dict[str, Any] = {"obs_type": obs_type, "repeat_action_probability": 0.25}
    limited = TimeLimit(bare(**kind), max_frames or 10**9)
    plain = play(FrameSkip(limited, skip, pool=pool), steps=200)
    fast = play(AleFrameSkip(bare(**kind), skip, pool=pool, max_frames=max_frames), steps=200)
    assert assert_same(plain, fast) >= 1


@pytest.mark.proof
def test_it_ends_a_game_with_the_true_screen_wherever_in_a_step_that_is() -> None:
    frames = Recorder(bare())
    plain, fast = FrameSkip(frames, 4), AleFrameSkip(bare(), 4)
    rng, lengths = np.random.default_rng(0), set[int]()
    for _ in range(6):
        plain.reset(seed=None)
        fast.reset()
        over = False
        while not over:
            action = int(rng.integers(4))
            frames.clear()
            expected, _, over, _, _ = plain.step(action)
            observation = fast.step(action)[0]
        np.testing.assert_array_equal(observation, expected)
        assert (observation >= screen(fast)).all()
        lengths.add(len(frames.screens))
    assert 3 in lengths, "no game ended on a frame whose predecessor is usually not looked at"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (bare, {"skip": 0}, "skip: .*1.*got 0"),
        (bare, {"pool": "mean"}, "pool: .*'max'.*'none'.*'mean'"),
        (bare, {"max_frames": 0}, "max_frames: .*1.*got 0.*None"),
        (lambda: bare(frameskip=4), {}, "AtariEnv.*frameskip=1"),
        (lambda: bare(obs_type="ram"), {}, r"obs_type .*'grayscale'.*'rgb'.*\(128,\)"),
        (lambda: gymnasium.make("CartPole-v1"), {}, "AtariEnv.*CartPole-v1.*FrameSkip"),
    ],
)
def test_bad_arguments_are_refused(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AleFrameSkip(make(), **arguments)


@pytest.mark.proof
def test_the_emulator_gets_exactly_the_seed_and_sticky_actions_follow_it() -> None:
    played = []
    for seed in (11, 11, 2):
        env = EmulatorSeed(bare("Breakout", repeat_action_probability=0.25))
        env.reset(seed=seed)
        played.append(np.stack([env.step(action)[0] for action in [1] * 4 + [2, 3] * 30]))
        assert cast(Any, env.unwrapped).ale.getInt("random_seed") == seed
    np.testing.assert_array_equal(played[0], played[1])
    assert (played[0] != played[2]).any()


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_that_the_emulator_cannot_take_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed.*2147483647.*{seed}"):
        EmulatorSeed(bare()).reset(seed=seed)
