"""Stable-Baselines3 is imported when it is needed; a missing or old one is a clear error."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stepwell as sw
from stepwell.buffers.libraries.sb3.models import ActionForm, sb3_env
from support.exchanged_stores import VECTOR, tagged_store


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("count", [1, 5, 127])
def test_actions_are_accepted_if_and_only_if_the_space_has_them(dtype: Any, count: int) -> None:
    form, limits = ActionForm(spaces.Discrete(count, dtype=dtype)), np.iinfo(dtype)
    numbers = {limits.min, -1, 0, count - 1, count, limits.max}
    allowed = [number for number in numbers if limits.min <= number <= limits.max]
    for length in range(4):
        for chosen in itertools.product(allowed, repeat=length):
            array = np.array([chosen, chosen], dtype).T.reshape(length, 2)[:, 0]  # not contiguous
            wrong = [number for number in chosen if not 0 <= number < count]
            if wrong:
                with pytest.raises(ValueError, match=rf"got the number {wrong[0]};"):
                    form.fit(array, 1)
            else:
                np.testing.assert_array_equal(form.fit(array, 1), array[:, None])


@pytest.mark.parametrize(
    "observation",
    [
        spaces.Box(0, 255, (4, 84, 84), np.uint8),
        spaces.Discrete(16),
        spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float64), "b": spaces.MultiBinary(2)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("action", [spaces.Discrete(5), spaces.Box(-2, 1, (2,))], ids=str)
def test_an_env_of_a_replay_has_its_spaces_and_plays_nothing(
    observation: spaces.Space[Any], action: spaces.Space[Any]
) -> None:
    replay = sw.SequenceReplayBuffer()
    replay.writer((observation, action)).close()
    env = sb3_env(replay)
    assert env.observation_space == observation
    assert env.action_space == action
    for name, call in (("reset", env.reset), ("step", lambda: env.step(0))):
        with pytest.raises(RuntimeError, match=rf"sb3_env.*train.*call of {name}\b.*sw\.evaluate"):
            call()


def test_a_replay_without_spaces_makes_no_env() -> None:
    for replay in (sw.SequenceReplayBuffer(), tagged_store(VECTOR)):
        with pytest.raises(ValueError, match=r"sb3_env.*spaces.*without"):
            sb3_env(replay)
    name: Any = "cartpole/random"
    with pytest.raises(TypeError, match=r"sb3_env.*replay.*\bstr\b.*load_dataset"):
        sb3_env(name)
