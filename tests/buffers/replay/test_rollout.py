"""A rollout refuses arrays of other shapes or dtypes by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from stepwell.buffers import Bootstrap, Rollout
from support.rows.rollout_rows import Column, Part, rollout_of, rollouts


def small() -> Rollout:
    """Three rows of two envs; env 1 is truncated by its first step and resets in row 1."""
    columns = [
        Column(3, (Part(0, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), "open", 7.0, True),)),
        Column(
            3,
            (
                Part(0, (1.0,), (2.0,), "truncated", 3.0, False),
                Part(2, (4.0,), (5.0,), "terminated", 0.0, True),
            ),
        ),
    ]
    return rollout_of(columns)


@given(rollouts())
def test_steps_are_the_rows_with_a_step(columns: Sequence[Column]) -> None:
    assert rollout_of(columns).steps == sum(part.steps for c in columns for part in c.parts)


def test_the_repr_is_one_line() -> None:
    rollout = replace(small(), episode_returns=(1.0, 4.0), episode_lengths=(1, 1))
    assert repr(rollout).startswith("Rollout(steps=5; episodes=2; open_ends=2; observation/place")
    assert "reward: float32 (3, 2)" in repr(rollout)
    assert "\n" not in repr(rollout)


def test_a_replaced_rollout_has_no_advantages() -> None:
    rollout = small()
    rollout.advantages(0.9, 0.9)
    again = replace(rollout)
    assert again.reward is rollout.reward
    assert again.advantage is None
    assert again.returns is None


@pytest.mark.parametrize("name", ["is_first", "terminated", "truncated", "cut", "mask"])
def test_flags_are_bool_and_of_the_rewards_shape(name: str) -> None:
    wrong: Sequence[np.ndarray] = (np.zeros((3, 2)), np.zeros((2, 3), bool), np.zeros(3, bool))
    for flag in wrong:
        changes: dict[str, Any] = {name: flag}
        got = rf"{flag.dtype}\b.* {re.escape(str(flag.shape))}"
        with pytest.raises(ValueError, match=rf"^{name}: .*\bbool\b.*\(3, 2\).*\b{got}"):
            replace(small(), **changes)


@pytest.mark.parametrize("shape", [(3,), (3, 2, 1), (0, 2), (3, 0)])
def test_rewards_have_one_number_for_each_row_of_each_env(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"^reward: .*\[T, N\].* {re.escape(str(shape))};"):
        replace(small(), reward=np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("changes", "name", "got"),
    [
        ({"observation": {"a": (np.zeros((3, 2)), np.zeros((2, 2)))}}, "observation/a/1", (2, 2)),
        ({"info": {"lives": np.zeros((2, 3))}}, "info/lives", (2, 3)),
        ({"initial_state": [np.zeros((3, 5))]}, "initial_state/0", (3, 5)),
    ],
)
def test_arrays_begin_with_the_axes_of_rows_and_envs(
    changes: dict[str, Any], name: str, got: tuple[int, ...]
) -> None:
    axes = r"\[N\].*\(2,\)" if "initial" in name else r"\[T, N\].*\(3, 2\)"
    with pytest.raises(ValueError, match=rf"^{name}: .*{axes}.* {re.escape(str(got))}"):
        replace(small(), **changes)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"step": np.zeros(2)}, r"^bootstrap\.step: .*\[K\].*\bfloat64 \(2,\)"),
        ({"env": np.zeros(3, int)}, r"^bootstrap\.env: .*\[K\].*\bint64 \(3,\)"),
        ({"observation": np.zeros(1)}, r"^bootstrap\.observation: .*\[K\].*\(2,\).*\(1,\)"),
        ({"value": np.zeros(3)}, r"^bootstrap\.value: .*\[K\].*\(2,\).*\(3,\)"),
    ],
)
def test_the_bootstrap_has_one_entry_for_each_open_end(change: dict[str, Any], match: str) -> None:
    good = Bootstrap(np.array([2, 0]), np.array([0, 1]), np.zeros(2), None, None)
    with pytest.raises(ValueError, match=match):
        replace(small(), bootstrap=good._replace(**change))
