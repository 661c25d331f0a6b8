"""Gradient steps are owed exactly, prefill left out, over restarts too."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.sampling.replay_ratio import ReplayRatio, simplest_fraction
from stepwell.buffers.storage.checkpoint import pack, unpack

RATIOS = st.one_of(
    st.fractions(0, 8, max_denominator=1000), st.floats(0, 8), st.sampled_from([0.1, 0.3, 1 / 3])
)


def test_what_is_there_at_the_first_call_owes_nothing() -> None:
    ratio = ReplayRatio(0.5)
    assert [ratio(steps) for steps in (5000, 5000, 5001, 5002, 5066)] == [0, 0, 0, 1, 32]


def test_with_start_0_the_prefill_owes_too() -> None:
    ratio = ReplayRatio(0.5, start=0)
    assert [ratio(1000), ratio(1064)] == [500, 32]


def test_steps_before_the_start_owe_nothing() -> None:
    ratio = ReplayRatio(2, start=100)
    assert [ratio(steps) for steps in (0, 99, 101, 102)] == [0, 0, 2, 2]


def test_a_ratio_of_0_owes_nothing() -> None:
    ratio = ReplayRatio(0, start=0)
    assert [ratio(steps) for steps in (0, 5, 1_000_000)] == [0, 0, 0]


def test_a_ratio_above_1_owes_several_for_each_step() -> None:
    ratio = ReplayRatio(2.5, start=0)
    assert [ratio(steps) for steps in (1, 2, 3, 4)] == [2, 3, 2, 3]


@given(RATIOS, st.lists(st.integers(0, 300), max_size=30), st.integers(0, 1000))
def test_the_sum_is_the_whole_part_of_ratio_times_steps(
    given_ratio: float | Fraction, added: list[int], first: int
) -> None:
    ratio, steps, done = ReplayRatio(given_ratio), first, 0
    exact = simplest_fraction("ratio", given_ratio)
    assert ratio(first) == 0
    for more in added:
        steps += more
        done += ratio(steps)
        assert done == math.floor(exact * (steps - first))


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1 / 3, 0.015625])
def test_nothing_drifts_away_over_many_calls(value: float) -> None:
    ratio, done = ReplayRatio(value, start=0), 0
    calls = 100_000
    for steps in range(0, calls * 100, 100):
        done += ratio(steps)
    last = (calls - 1) * 100
    assert done == math.floor(simplest_fraction("ratio", value) * last)
    assert len(ratio.state_dict()["owed"]) < 20  # the fraction does not grow


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        (0.3, Fraction(3, 10)),
        (1 / 3, Fraction(1, 3)),
        (0.1234567, Fraction(1234567, 10**7)),
        (float(np.float32(0.3)), Fraction("0.30000001192092896")),
        (1e-9, Fraction(1, 10**9)),
        (64, Fraction(64)),
        (Fraction(2, 7), Fraction(2, 7)),
    ],
)
def test_a_float_is_the_simple_fraction_that_it_stands_for(
    value: float, fraction: Fraction
) -> None:
    assert simplest_fraction("ratio", value) == fraction
    assert float(fraction) == float(value)


def test_a_debt_is_kept_over_a_restart() -> None:
    ratio = ReplayRatio(0.3)
    assert [ratio(10), ratio(18)] == [0, 2]
    state = json.loads(json.dumps(ratio.state_dict()))
    assert unpack(pack(state), "here") == state
    again = ReplayRatio(0.3)
    again.load_state_dict(state)
    assert [again(20), again(1020)] == [1, 300]
    assert [ratio(20), ratio(1020)] == [1, 300]


def test_a_state_from_before_the_first_call_is_one_too() -> None:
    again = ReplayRatio(1)
    again(7)
    again.load_state_dict(ReplayRatio(1).state_dict())
    assert [again(3), again(5)] == [0, 2]


def test_another_ratio_holds_for_the_steps_after_the_restart() -> None:
    ratio = ReplayRatio(0.5)
    ratio(0)
    assert ratio(3) == 1
    faster = ReplayRatio(2)
    faster.load_state_dict(ratio.state_dict())
    assert [faster(4), faster(5)] == [2, 2]
    assert faster.state_dict()["owed"] == "1/2"


def test_dreamers_train_ratio_counts_rows() -> None:
    ratio = ReplayRatio.from_train_ratio(512, batch_size=16, length=64, start=0)
    assert [ratio(1), ratio(2), ratio(4)] == [0, 1, 1]
    assert ReplayRatio.from_train_ratio(32, batch_size=16, length=64).ratio == Fraction(1, 32)
    with pytest.raises(ValueError, match="length: expected a whole number >= 1, got 0"):
        ReplayRatio.from_train_ratio(512, batch_size=16, length=0)


def test_steps_never_go_back() -> None:
    ratio = ReplayRatio(1)
    ratio(1064)
    with pytest.raises(ValueError, match="expected at least the 1,064 of the call before, got 900"):
        ratio(900)
    assert ratio(1065) == 1


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), Fraction(-1, 2)])
def test_a_ratio_is_a_finite_number_from_0_on(value: float) -> None:
    with pytest.raises(ValueError, match="ratio: expected a finite number >= 0, got"):
        ReplayRatio(value)


@pytest.mark.parametrize("steps", [-1, 2.5])
def test_steps_are_counted_in_whole_numbers(steps: int) -> None:
    ratio = ReplayRatio(1)
    with pytest.raises(ValueError, match="steps: expected a whole number >= 0, got"):
        ratio(steps)
    with pytest.raises(ValueError, match="start: expected a whole number >= 0, got"):
        ReplayRatio(1, start=steps)
    assert ratio.state_dict()["steps"] is None


@pytest.mark.parametrize(
    "state", [{}, {"start": 0, "steps": 2, "owed": "no"}, {"start": -1, "steps": 2, "owed": "0"}]
)
def test_a_strange_state_is_refused_and_changes_nothing(state: dict[str, object]) -> None:
    ratio = ReplayRatio(0.5)
    ratio(10)
    ratio(11)
    before = ratio.state_dict()
    with pytest.raises(ValueError, match=r"state: expected what ReplayRatio\.state_dict gave"):
        ratio.load_state_dict(state)
    assert ratio.state_dict() == before
