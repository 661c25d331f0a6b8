"""Gradient steps are owed exactly, over restarts too; neither actor nor learner runs ahead."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.errors import LimiterClosed
from stepwell.buffers.sampling.rate import ReplayRatio, SampleLimiter, simplest_fraction
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
    with pytest.raises(ValueError, match=r"length.*got 0"):
        ReplayRatio.from_train_ratio(512, batch_size=16, length=0)


def test_steps_never_go_back() -> None:
    ratio = ReplayRatio(1)
    ratio(1064)
    with pytest.raises(ValueError, match=r"steps: .*1,064.*got 900"):
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
    with pytest.raises(ValueError, match=r"state: .*ReplayRatio\.state_dict, got"):
        ratio.load_state_dict(state)
    assert ratio.state_dict() == before


SECONDS = 20.0  # nothing here takes that long, unless it hangs


@contextmanager
def threads(*works: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Runs works in threads, and gives what they raised; joins them at the end."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in started:
        thread.start()
    yield errors
    for thread in started:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a thread waits for ever"


def is_held_back(wait: Callable[..., None], count: int) -> bool:
    try:
        wait(count, timeout=0)
    except TimeoutError:
        return True
    return False


def test_the_learner_waits_for_the_first_steps_and_the_actor_does_not() -> None:
    limiter = SampleLimiter(1, min_steps=100, slack=1)
    for _ in range(100):
        assert is_held_back(limiter.wait_to_sample, 1)
        assert not is_held_back(limiter.wait_to_insert, 1)
    limiter.wait_to_insert(0)
    assert not is_held_back(limiter.wait_to_sample, 1)


def test_the_prefill_may_come_at_once_however_little_the_slack() -> None:
    limiter = SampleLimiter(1, min_steps=1000, slack=1)
    limiter.wait_to_insert(1000, timeout=0)
    with pytest.raises(ValueError, match="steps: 2 are worth 2 samples, expected at most the slac"):
        limiter.wait_to_insert(2)


def test_steps_count_for_the_learner_only_once_their_thread_is_back() -> None:
    limiter = SampleLimiter(1, min_steps=10, slack=5)
    collecting, go_on = threading.Event(), threading.Event()

    def act() -> None:
        limiter.wait_to_insert(10)
        collecting.set()
        assert go_on.wait(SECONDS)
        limiter.wait_to_insert(0)

    with threads(act) as errors:
        assert collecting.wait(SECONDS)
        assert is_held_back(limiter.wait_to_sample, 1)
        go_on.set()
        limiter.wait_to_sample(1, timeout=SECONDS)
    assert errors == []


def test_the_learner_gets_no_further_by_what_is_only_being_collected() -> None:
    limiter = SampleLimiter(1, min_steps=0, slack=2)
    with threads(lambda: limiter.wait_to_insert(2)):
        pass
    limiter.wait_to_sample(2)
    assert is_held_back(limiter.wait_to_sample, 1)


def test_what_one_actor_collects_counts_for_the_other_at_once() -> None:
    limiter = SampleLimiter(1, min_steps=0, slack=10)
    with threads(lambda: limiter.wait_to_insert(7)):
        pass
    assert is_held_back(limiter.wait_to_insert, 4)
    assert not is_held_back(limiter.wait_to_insert, 3)


def test_a_held_back_actor_goes_on_when_the_learner_samples() -> None:
    limiter = SampleLimiter(2, min_steps=0, slack=4)
    limiter.wait_to_insert(2)
    assert is_held_back(limiter.wait_to_insert, 1)
    with threads(lambda: limiter.wait_to_insert(1)) as errors:
        limiter.wait_to_sample(2)
    assert errors == []


def test_a_timeout_says_what_is_missing() -> None:
    limiter = SampleLimiter(Fraction(1, 3), min_steps=30, slack=4)
    with pytest.raises(TimeoutError, match="draw 2 samples: expected 30 stored steps, got 0 after"):
        limiter.wait_to_sample(2, timeout=0.01)
    limiter.wait_to_insert(42)
    with pytest.raises(
        TimeoutError,
        match=r"waited 0.01 s to insert 6 steps: expected 2 samples drawn, got 0 after 42 steps",
    ):
        limiter.wait_to_insert(6, timeout=0.01)
    for _ in range(4):
        limiter.wait_to_sample(2)
    with pytest.raises(TimeoutError, match="expected 45 stored steps, got 42 after 8 samples"):
        limiter.wait_to_sample(1, timeout=0)
    assert limiter.state_dict() == {"steps": 42, "samples": 8}


def test_closing_wakes_all_who_wait_and_lets_nobody_through() -> None:
    limiter = SampleLimiter(1, min_steps=0, slack=2)
    limiter.wait_to_insert(2)
    with threads(
        lambda: limiter.wait_to_insert(1), lambda: limiter.wait_to_insert(2, timeout=SECONDS)
    ) as errors:
        time.sleep(0.02)
        limiter.close()
    assert [type(error) for error in errors] == [LimiterClosed, LimiterClosed]
    for wait in (limiter.wait_to_insert, limiter.wait_to_sample):
        with pytest.raises(LimiterClosed, match="is closed: expected an open one; end this thread"):
            wait(1, timeout=0)
    assert limiter.state_dict() == {"steps": 2, "samples": 0}


@pytest.mark.parametrize("slack", [0, 0.5, 2.9])
def test_slack_that_one_step_could_use_up_is_refused(slack: float) -> None:
    with pytest.raises(ValueError, match=f"slack: expected at least 3 samples, got {slack}: with"):
        SampleLimiter(3, min_steps=0, slack=slack)


def test_a_request_that_could_never_be_met_is_refused_at_once() -> None:
    limiter = SampleLimiter(0.5, min_steps=0, slack=16)
    with pytest.raises(ValueError, match="64 are worth 32 samples, expected at most the slack of"):
        limiter.wait_to_insert(64)
    with pytest.raises(ValueError, match="samples: expected at most the slack of 16, got 17"):
        limiter.wait_to_sample(17)
    assert limiter.state_dict() == {"steps": 0, "samples": 0}


@given(
    st.fractions(Fraction(1, 50), 50, max_denominator=50),
    st.integers(0, 60),
    st.fractions(0, 20, max_denominator=10),
    st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60),
)
def test_the_balance_stays_within_the_slack_and_one_side_may_always_go_on(
    ratio: Fraction, min_steps: int, more: Fraction, asked: list[tuple[bool, int]]
) -> None:
    slack = max(Fraction(1), ratio) + more
    limiter = SampleLimiter(ratio, min_steps=min_steps, slack=slack)
    most_samples, most_steps = int(slack), int(slack / ratio)
    for inserts, count in asked:
        if inserts:
            is_held_back(limiter.wait_to_insert, 1 + count % most_steps)
        else:
            is_held_back(limiter.wait_to_sample, 1 + count % most_samples)
        state = limiter.state_dict()
        steps, samples = state["steps"], state["samples"]
        assert samples == 0 or steps >= min_steps
        assert abs(max(0, steps - min_steps) * ratio - samples) <= slack
        both = (
            is_held_back(limiter.wait_to_insert, most_steps),
            is_held_back(limiter.wait_to_sample, most_samples),
        )
        assert both != (True, True)
        limiter.load_state_dict(state)


def test_actors_and_learners_in_many_threads_meet_the_ratio() -> None:
    limiter = SampleLimiter(0.5, min_steps=64, slack=40)
    everything = 64 * 30

    def act() -> None:
        for _ in range(10):
            limiter.wait_to_insert(64, timeout=SECONDS)
            seen.append(limiter._may_insert(0))
        limiter.wait_to_insert(0)

    def learn() -> None:
        for _ in range((everything - 64) // 4):
            limiter.wait_to_sample(1, timeout=SECONDS)

    seen: list[bool] = []
    with threads(act, act, act, learn, learn) as errors:
        pass
    assert errors == []
    assert len(seen) == 30
    assert limiter.state_dict() == {"steps": everything, "samples": (everything - 64) // 4 * 2}


def test_a_limiter_goes_on_after_a_restart() -> None:
    limiter = SampleLimiter(1, min_steps=10, slack=3)
    limiter.wait_to_insert(13)
    limiter.wait_to_sample(2)
    state = json.loads(json.dumps(limiter.state_dict()))
    again = SampleLimiter(1, min_steps=10, slack=3)
    again.load_state_dict(state)
    for each in (limiter, again):
        assert is_held_back(each.wait_to_insert, 3)
        assert not is_held_back(each.wait_to_insert, 2)
        assert each.state_dict() == {"steps": 15, "samples": 2}


def test_loading_a_state_wakes_who_waits() -> None:
    limiter = SampleLimiter(1, min_steps=10, slack=3)
    with threads(lambda: limiter.wait_to_sample(1)) as errors:
        time.sleep(0.02)
        limiter.load_state_dict({"steps": 10, "samples": 0})
    assert errors == []


@pytest.mark.parametrize("state", [{}, {"steps": 1}, {"steps": -1, "samples": 0}])
def test_a_strange_state_is_refused(state: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"state: .*SampleLimiter\.state_dict, got"):
        SampleLimiter(1, min_steps=10, slack=3).load_state_dict(state)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: SampleLimiter(0, min_steps=0, slack=1), "expected a number > 0, got 0"),
        (lambda: SampleLimiter(-1, min_steps=0, slack=1), "samples_per_insert: expected a finite"),
        (lambda: SampleLimiter(1, min_steps=-1, slack=1), "min_steps: expected a whole number >= "),
        (lambda: SampleLimiter(1, min_steps=0, slack=float("inf")), "slack: expected a finite"),
        (lambda: SampleLimiter(1, min_steps=0, slack=1).wait_to_insert(-1), "steps: expected a wh"),
        (lambda: SampleLimiter(1, min_steps=0, slack=1).wait_to_sample(0), "samples: expected a w"),
        (
            lambda: SampleLimiter(1, min_steps=0, slack=1).wait_to_sample(1, timeout=-1),
            "timeout: expected seconds >= 0.*got -1",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refused()
