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


ENDS = Bootstrap(np.array([2, 0]), np.array([0, 1]), np.zeros(2), None, None)
NUMBERS = {"a": (np.zeros((3, 2)), np.zeros((2, 2)))}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        *(
            ({name: flag}, rf"^{name}: .*\bbool\b.*\(3, 2\).*\b{got}")
            for name in ("is_first", "terminated", "truncated", "cut", "mask")
            for flag in (np.zeros((3, 2)), np.zeros((2, 3), bool), np.zeros(3, bool))
            for got in [rf"{flag.dtype}\b.* {re.escape(str(flag.shape))}"]
        ),
        *(
            ({"reward": np.zeros(shape)}, rf"^reward: .*\[T, N\].* {re.escape(str(shape))};")
            for shape in [(3,), (3, 2, 1), (0, 2), (3, 0)]
        ),
        ({"observation": NUMBERS}, r"^observation/a/1: .*\[T, N\].*\(3, 2\).* \(2, 2\)"),
        ({"info": {"a": np.zeros((2, 3))}}, r"^info/a: .*\[T, N\].*\(3, 2\).* \(2, 3\)"),
        ({"initial_state": [np.zeros((3, 5))]}, r"^initial_state/0: .*\[N\].*\(2,\).* \(3, 5\)"),
        *(
            ({"bootstrap": ENDS._replace(**change)}, rf"^bootstrap\.{name}: .*\[K\].*{got}")
            for change, got in (
                ({"step": np.zeros(2)}, r"\bfloat64 \(2,\)"),
                ({"env": np.zeros(3, int)}, r"\bint64 \(3,\)"),
                ({"observation": np.zeros(1)}, r"\(2,\).*\(1,\)"),
                ({"value": np.zeros(3)}, r"\(2,\).*\(3,\)"),
            )
            for name in change
        ),
    ],
)
def test_arrays_of_other_shapes_or_dtypes_are_refused_by_name(
    changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        replace(small(), **changes)
