from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from stepwell.wrappers.workers.infos import add_info


class Joined(VectorEnv[Any, Any, Any]):
    """The infos as gymnasium joins them."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def joined(self, infos: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        collected: dict[str, Any] = {}
        for index, info in infos:
            collected = self._add_info(collected, info, index)
        return collected


@st.composite
def plain(draw: st.DrawFn) -> list[tuple[int, dict[str, Any]]]:
    kinds = draw(
        st.dictionaries(
            st.sampled_from(["lives", "score", "speed"]),
            st.sampled_from([st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans()]),
        )
    )
    infos = draw(st.lists(st.fixed_dictionaries(kinds), min_size=1, max_size=5))
    return list(enumerate(infos))


@given(plain())
def test_numbers_are_joined_as_gymnasium_does(infos: list[tuple[int, dict[str, Any]]]) -> None:
    found: dict[str, Any] = {}
    for env, info in infos:
        add_info(found, info, env, len(infos))
    check_equal(found, Joined(len(infos)).joined(infos))


def given_by(columns: dict[str, Any], env: int) -> dict[str, Any]:
    """Return the info of one env, from the columns of all."""
    return {
        key: given_by(column, env) if isinstance(column, dict) else column[env]
        for key, column in columns.items()
        if not key.startswith("_") and columns[f"_{key}"][env]
    }


def assert_same(found: Any, given: Any) -> None:
    if isinstance(given, dict):
        assert found.keys() == given.keys()
        for key, value in given.items():
            assert_same(found[key], value)
    else:
        np.testing.assert_array_equal(found, given)
        left, right = np.asarray(found).tolist(), np.asarray(given).tolist()
        assert left == right or given != given  # Python compares numbers exactly, numpy does not


def assert_kept(infos: list[dict[str, Any]]) -> None:
    columns: dict[str, Any] = {}
    for env, info in enumerate(infos):
        add_info(columns, info, env, len(infos))
    for env, info in enumerate(infos):
        assert_same(given_by(columns, env), info)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1 / 3),
        (True, 5),
        (True, 0.5),
        (2**60 + 1, 0.5),
        (2**70, 1),
        (np.uint64(2**63 + 1), -1),
        (np.int8(3), np.int64(300)),
        (np.float32(0.5), 0.1),
        (np.array([2**60 + 1]), np.array([0.5])),
        (np.arange(2), np.arange(2.0)),
        (np.arange(2), np.arange(3)),
        (np.arange(2), 5),
        (np.array(["a"]), np.array(["longer"])),
        ({"inner": 1}, 2),
        ({"inner": 1}, {"inner": 0.5}),
        ("text", 1),
        (None, 1),
    ],
)
def test_two_envs_that_give_different_things(one: Any, other: Any) -> None:
    for first, second in ((one, other), (other, one)):
        assert_kept([{"x": first}, {}, {"x": second}, {"x": first}])


def check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for key, column in expected.items():
        assert found[key].dtype == column.dtype
        np.testing.assert_array_equal(found[key], column)
