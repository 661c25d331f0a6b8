"""Random actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.collectors import RandomPolicy, SeededPolicy

SPACES = [
    spaces.Discrete(5, start=2),
    spaces.Box(-2, 3, (2, 2), np.float32),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple((spaces.MultiBinary(2),))}),
]


def drawn(space: Any, seed: int, calls: int = 5) -> str:
    policy = RandomPolicy()
    policy.begin(space, np.random.default_rng(seed))
    return str([policy(np.zeros(4), np.zeros(4, bool)) for _ in range(calls)])


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_lie_in_the_space_and_follow_the_seed(space: Any) -> None:
    policy = RandomPolicy()
    policy.begin(space, np.random.default_rng(0))
    for _ in range(20):
        actions: Any = policy(np.zeros(4), np.zeros(4, bool))
        if isinstance(space, spaces.Dict):
            assert np.isin(actions["a"], [0, 1, 2]).all()
        else:
            assert all(space.contains(action) for action in actions)
    assert drawn(space, 1) == drawn(space, 1)
    assert drawn(space, 1) != drawn(space, 2)


def test_every_discrete_action_is_drawn_alike() -> None:
    policy = RandomPolicy()
    policy.begin(spaces.Discrete(4, start=-1), np.random.default_rng(0))
    counts = np.bincount(np.asarray(policy(np.zeros(4000), np.zeros(4000, bool))) + 1)
    assert len(counts) == 4
    assert (abs(counts - 1000) < 150).all()


def test_beginning_again_repeats_the_actions() -> None:
    policy = RandomPolicy()
    policy.begin(SPACES[-1], np.random.default_rng(0))
    first = str(policy(np.zeros(4), np.zeros(4, bool)))
    policy.begin(SPACES[-1], np.random.default_rng(0))
    assert str(policy(np.zeros(4), np.zeros(4, bool))) == first


def test_envs_get_actions_of_their_own() -> None:
    policy = RandomPolicy()
    policy.begin(SPACES[1], np.random.default_rng(0))
    rows = [str(row) for row in np.asarray(policy(np.zeros(8), np.zeros(8, bool)))]
    assert len(set(rows)) == 8


def test_a_policy_without_a_space_names_begin() -> None:
    with pytest.raises(ValueError, match=r"^RandomPolicy .*begin\(action_space, rng\)"):
        RandomPolicy()(np.zeros(2), np.zeros(2, bool))


def test_policies_that_want_a_generator_have_begin() -> None:
    assert isinstance(RandomPolicy(), SeededPolicy)
    assert not isinstance(lambda observation, is_first: None, SeededPolicy)
