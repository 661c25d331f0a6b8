from typing import Any, cast

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from stepwell.wrappers import AleFrameSkip, EmulatorSeed, FrameSkip
from support.models.atari_reference import Recorder, bare

# pyright: reportPossiblyUnboundVariable=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false


@pytest.mark.proof
@pytest.mark.parametrize("obs_type", ["grayscale", "rgb"])
@pytest.mark.parametrize(
    ("skip", "pool", "max_frames"),
    [(4, "max", None), (4, "max", 400), (3, "max", 401), (2, "none", 101), (1, "max", 75)],
)
def test_it_equals_frame_skip_over_time_limit(
    skip: int, pool: Any, max_frames: int | None, obs_type: str
) -> None:
    """Wherever in a step a game ends, its last observation is the true screen."""
    kind: dict[str, Any] = {"obs_type": obs_type}
    if max_frames:
        kind["repeat_action_probability"] = 0.25
    frames = Recorder(TimeLimit(bare(**kind), max_frames or 10**9))
    plain = FrameSkip(frames, skip, pool=pool)
    fast = AleFrameSkip(bare(**kind), skip, pool=pool, max_frames=max_frames)
    rng, lengths = np.random.default_rng(0), set[int]()
    for episode in range(6):
        seed = 3 if episode == 0 else None
        np.testing.assert_array_equal(plain.reset(seed=seed)[0], fast.reset(seed=seed)[0])
        over = False
        while not over:
            action = int(rng.integers(4))
            frames.clear()
            expected, *rest, info = plain.step(action)
            observation, *others, found = fast.step(action)
            np.testing.assert_array_equal(observation, expected)
            reward, terminated, truncated = rest
            # A game that ends on its last allowed frame is both for TimeLimit.
            assert others == [reward, terminated, truncated and not terminated]
            assert found == info
            over = bool(terminated or truncated)
        lengths.add(len(frames.screens))
    assert max_frames or 3 in lengths, "no end on a frame whose predecessor is not looked at"


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
