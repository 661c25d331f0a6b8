"""Random actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from stepwell.collectors import RandomPolicy


def test_a_policy_without_a_space_names_begin() -> None:
    with pytest.raises(ValueError, match=r"^RandomPolicy .*begin\(action_space, rng\)"):
        RandomPolicy()(np.zeros(2), np.zeros(2, bool))


def one_draw_a_call(space: Any, seed: int, calls: Sequence[int]) -> list[Any]:
    """The model: each call draws the actions of its n envs, and no others."""
    rng = np.random.default_rng(seed)
    batched: dict[int, Any] = {}
    found: list[Any] = []
    for n in calls:
        if isinstance(space, spaces.Discrete):
            end = space.start + space.n
            found.append(rng.integers(space.start, end, size=n, dtype=space.dtype))
            continue
        if n not in batched:
            batched[n] = batch_space(space, n)
            batched[n].seed(int(rng.integers(1 << 31)))
        found.append(batched[n].sample())
    return found


def plain(tree: Any) -> Any:
    """Nested arrays as values that can be compared, with their dtypes."""
    if isinstance(tree, Mapping):
        return {key: plain(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(plain(part) for part in tree)
    return (str(tree.dtype), tree.shape, tree.tobytes()) if hasattr(tree, "dtype") else tree


def drawn_by(policy: RandomPolicy, space: Any, seed: int, calls: Sequence[int]) -> list[Any]:
    policy.begin(space, np.random.default_rng(seed))
    return [plain(policy(np.zeros(n), np.zeros(n, bool))) for n in calls]


NUMBERS = [np.dtype(f"{kind}{size}").type for kind in "iu" for size in (8, 4, 2, 1)]
MIXED = spaces.Box(np.array([-1, -np.inf, 0], "f4"), np.array([1, np.inf, np.inf], "f4"))
PLAIN_SPACES: list[Any] = [
    *(spaces.Discrete(n, dtype=dtype) for n in (1, 3, 18) for dtype in NUMBERS),
    spaces.Discrete(5, start=-2),
    spaces.Discrete(2**40),
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2)),
    spaces.Box(0, np.inf, (2,), np.float64),
    spaces.Box(-np.inf, 0, (1,)),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Box(-5, 5, (2,), np.int64),
    MIXED,
    spaces.MultiBinary(3),
    spaces.MultiDiscrete([2, 3, 4], start=[0, 5, -2]),
    spaces.Text(3),  # of which vector envs have a tuple of spaces
]
# More calls than are drawn at once, of one number of envs and of several.
CALLS = [[3] * 150, [8, 8, 3, 8, 2, 8] * 25, [5] * 70 + [2] * 70 + [5] * 70]


@pytest.mark.parametrize("space", PLAIN_SPACES, ids=repr)
def test_what_is_drawn_ahead_is_what_single_calls_draw(space: Any) -> None:
    for calls in CALLS:
        model = [plain(one) for one in one_draw_a_call(space, 0, calls)]
        assert drawn_by(RandomPolicy(), space, 0, calls) == model


ACTION_SPACES = st.recursive(
    st.sampled_from(PLAIN_SPACES),
    lambda parts: (
        st.builds(lambda some: spaces.Tuple(tuple(some)), st.lists(parts, min_size=1, max_size=2))
        | st.builds(spaces.Dict, st.dictionaries(st.sampled_from("ab"), parts, min_size=1))
    ),
    max_leaves=3,
)


@given(ACTION_SPACES, st.integers(0, 3), st.lists(st.integers(1, 9), min_size=1, max_size=80))
def test_nested_actions_are_drawn_ahead_in_the_same_way(
    space: Any, seed: int, calls: list[int]
) -> None:
    model = [plain(one) for one in one_draw_a_call(space, seed, calls)]
    policy = RandomPolicy()
    for _ in range(2):  # beginning again drops what was drawn ahead
        assert drawn_by(policy, space, seed, calls) == model


def test_the_largest_actions_are_not_drawn_ahead() -> None:
    """If a step has so many numbers, a call costs little more than they do."""
    space = spaces.Box(0, 1, (300, 300), np.float64)
    policy = RandomPolicy()
    policy.begin(space, np.random.default_rng(0))
    actions: Any = policy(np.zeros(1), np.zeros(1, bool))
    assert actions.base is None or actions.base.size == actions.size
