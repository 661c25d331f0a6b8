"""A ReplayRatio counts gradient steps exactly; a SampleLimiter keeps actor and learner close."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.base.errors import LimiterClosed
from stepwell.buffers.sampling.rate import ReplayRatio, SampleLimiter, simplest_fraction
from stepwell.buffers.storage.checkpoint import pack, unpack

RATIOS = st.one_of(
    st.fractions(0, 8, max_denominator=1000), st.floats(0, 8), st.sampled_from([0.1, 0.3, 1 / 3])
)


@pytest.mark.parametrize(
    ("ratio", "start", "steps", "owed"),
    [
        (0.5, None, (5000, 5000, 5001, 5002, 5066), [0, 0, 0, 1, 32]),
        (0.5, 0, (1000, 1064), [500, 32]),
        (2, 100, (0, 99, 101, 102), [0, 0, 2, 2]),
        (0, 0, (0, 5, 1_000_000), [0, 0, 0]),
        (2.5, 0, (1, 2, 3, 4), [2, 3, 2, 3]),
    ],
    ids=[
        "steps before the first call owe nothing",
        "with start=0 the prefill counts",
        "steps before the start owe nothing",
        "a ratio of 0 owes nothing",
        "a ratio above 1 owes several for each step",
    ],
)
def test_the_owed_gradient_steps_of_each_call(
    ratio: float, start: int | None, steps: tuple[int, ...], owed: list[int]
) -> None:
    options = {} if start is None else {"start": start}
    counter = ReplayRatio(ratio, **options)
    assert [counter(each) for each in steps] == owed


@given(RATIOS, st.lists(st.integers(0, 300), max_size=30), st.integers(0, 1000))
def test_the_sum_is_the_integer_part_of_ratio_times_steps(
    given_ratio: float | Fraction, added: list[int], first: int
) -> None:
    ratio, steps, done = ReplayRatio(given_ratio), first, 0
    exact = simplest_fraction("ratio", given_ratio)
    assert ratio(first) == 0
    for more in added:
        steps += more
        done += ratio(steps)
        assert done == math.floor(exact * (steps - first))


@pytest.mark.parametrize(
    ("value", "fraction"),
    [
        (0.3, Fraction(3, 10)),
        (1 / 3, Fraction(1, 3)),
        (0.1234567, Fraction(1234567, 10**7)),
        (float(np.float32(0.3)), Fraction("0.30000001192092896")),
        (1e-9, Fraction(1, 10**9)),
        (64, Fraction(64)),
        (np.float32(0.25), Fraction(1, 4)),
        (Fraction(2, 7), Fraction(2, 7)),
    ],
)
def test_a_float_becomes_its_simplest_fraction(value: float, fraction: Fraction) -> None:
    assert simplest_fraction("ratio", value) == fraction
    assert float(fraction) == float(value)


def test_owed_fractions_are_kept_over_a_restart() -> None:
    ratio = ReplayRatio(0.3)
    assert [ratio(10), ratio(18)] == [0, 2]
    state = json.loads(json.dumps(ratio.state_dict()))
    assert unpack(pack(state), "here") == state
    again = ReplayRatio(0.3)
    again.load_state_dict(state)
    assert [again(20), again(1020)] == [1, 300]
    assert [ratio(20), ratio(1020)] == [1, 300]


def test_another_ratio_applies_to_the_steps_after_the_restart() -> None:
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


def test_steps_must_not_decrease() -> None:
    ratio = ReplayRatio(1)
    ratio(1064)
    with pytest.raises(ValueError, match=r"^steps: .*\b1,064\b.*\b900\b"):
        ratio(900)
    assert ratio(1065) == 1


SECONDS = 20.0  # nothing here takes that long, unless it hangs


@contextmanager
def threads(*works: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Run functions in threads, yield their exceptions, and join the threads at the end."""
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
        assert not thread.is_alive(), "a thread hangs"


def limited(samples: float = 1, *, min_steps: int = 0, slack: float = 1) -> SampleLimiter:
    return SampleLimiter(samples, min_steps=min_steps, slack=slack)


def is_blocked(wait: Callable[..., None], count: int) -> bool:
    try:
        wait(count, timeout=0)
    except TimeoutError:
        return True
    return False


def test_the_learner_waits_for_the_first_steps_and_the_actor_does_not() -> None:
    limiter = SampleLimiter(1, min_steps=100, slack=1)
    for _ in range(100):
        assert is_blocked(limiter.wait_to_sample, 1)
        assert not is_blocked(limiter.wait_to_insert, 1)
    limiter.wait_to_insert(0)
    assert not is_blocked(limiter.wait_to_sample, 1)


def test_the_prefill_may_be_inserted_at_once_with_any_slack() -> None:
    limiter = SampleLimiter(1, min_steps=1000, slack=1)
    limiter.wait_to_insert(1000, timeout=0)
    with pytest.raises(ValueError, match=r"^steps: 2 .*\b2 samples\b.*\bslack of 1\b"):
        limiter.wait_to_insert(2)


def test_steps_count_for_the_learner_when_their_thread_inserts_again() -> None:
    limiter = SampleLimiter(1, min_steps=10, slack=5)
    collecting, resume = threading.Event(), threading.Event()

    def act() -> None:
        limiter.wait_to_insert(10)
        collecting.set()
        assert resume.wait(SECONDS)
        limiter.wait_to_insert(0)

    with threads(act) as errors:
        assert collecting.wait(SECONDS)
        assert is_blocked(limiter.wait_to_sample, 1)
        resume.set()
        limiter.wait_to_sample(1, timeout=SECONDS)
    assert errors == []


def test_a_timeout_names_the_missing_steps_or_samples() -> None:
    limiter = SampleLimiter(Fraction(1, 3), min_steps=30, slack=4)
    with pytest.raises(TimeoutError, match=r"\b2 samples\b.*\b30 stored steps\b.*\b0\b"):
        limiter.wait_to_sample(2, timeout=0.01)
    limiter.wait_to_insert(42)
    with pytest.raises(
        TimeoutError, match=r"\b0\.01 s\b.*\b6 steps\b.*\b2 samples\b.*\b0\b.*\b42 steps\b"
    ):
        limiter.wait_to_insert(6, timeout=0.01)
    for _ in range(4):
        limiter.wait_to_sample(2)
    with pytest.raises(TimeoutError, match=r"\b45 stored steps\b.*\b42\b.*\b8 samples\b"):
        limiter.wait_to_sample(1, timeout=0)
    assert limiter.state_dict() == {"steps": 42, "samples": 8}


def test_closing_ends_all_waiting_calls_with_an_error() -> None:
    limiter = SampleLimiter(1, min_steps=0, slack=2)
    limiter.wait_to_insert(2)
    with threads(
        lambda: limiter.wait_to_insert(1), lambda: limiter.wait_to_insert(2, timeout=SECONDS)
    ) as errors:
        time.sleep(0.02)
        limiter.close()
    assert [type(error) for error in errors] == [LimiterClosed, LimiterClosed]
    for wait in (limiter.wait_to_insert, limiter.wait_to_sample):
        with pytest.raises(LimiterClosed, match=r"\bSampleLimiter\b.*\bclosed\b"):
            wait(1, timeout=0)
    assert limiter.state_dict() == {"steps": 2, "samples": 0}


def test_a_request_above_the_slack_is_refused() -> None:
    limiter = SampleLimiter(0.5, min_steps=0, slack=16)
    with pytest.raises(ValueError, match=r"^steps: 64 .*\b32 samples\b.*\bslack of 16\b"):
        limiter.wait_to_insert(64)
    with pytest.raises(ValueError, match=r"^samples: .*\bslack of 16\b.*\b17\b"):
        limiter.wait_to_sample(17)
    assert limiter.state_dict() == {"steps": 0, "samples": 0}


@given(
    st.fractions(Fraction(1, 50), 50, max_denominator=50),
    st.integers(0, 60),
    st.fractions(0, 20, max_denominator=10),
    st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60),
)
def test_the_balance_stays_within_the_slack_and_never_blocks_both_sides(
    ratio: Fraction, min_steps: int, more: Fraction, calls: list[tuple[bool, int]]
) -> None:
    slack = max(Fraction(1), ratio) + more
    limiter = SampleLimiter(ratio, min_steps=min_steps, slack=slack)
    most_samples, most_steps = int(slack), int(slack / ratio)
    for inserts, count in calls:
        if inserts:
            is_blocked(limiter.wait_to_insert, 1 + count % most_steps)
        else:
            is_blocked(limiter.wait_to_sample, 1 + count % most_samples)
        state = limiter.state_dict()
        steps, samples = state["steps"], state["samples"]
        assert samples == 0 or steps >= min_steps
        assert abs(max(0, steps - min_steps) * ratio - samples) <= slack
        both = (
            is_blocked(limiter.wait_to_insert, most_steps),
            is_blocked(limiter.wait_to_sample, most_samples),
        )
        assert both != (True, True)
        limiter.load_state_dict(state)


def test_actors_and_learners_in_many_threads_keep_the_ratio() -> None:
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


def test_loading_a_state_wakes_waiting_threads() -> None:
    limiter = SampleLimiter(1, min_steps=10, slack=3)
    with threads(lambda: limiter.wait_to_sample(1)) as errors:
        time.sleep(0.02)
        limiter.load_state_dict({"steps": 10, "samples": 0})
    assert errors == []


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (
            lambda: ReplayRatio(0.5),
            [
                {},
                {"start": 0, "steps": 2, "owed": "no"},
                {"start": 0, "steps": 2, "owed": "1/0"},
                {"start": 0, "steps": 2, "owed": "1e9"},
                {"start": -1, "steps": 2, "owed": "0"},
            ],
        ),
        (limited, [{}, {"steps": -1, "samples": 0}]),
    ],
    ids=["ReplayRatio", "SampleLimiter"],
)
def test_an_invalid_state_is_refused_and_changes_nothing(
    make: Callable[[], ReplayRatio | SampleLimiter], states: list[Any]
) -> None:
    one = make()
    before, name = one.state_dict(), type(one).__name__
    for state in states:
        message = rf"^state: .*{name}\.state_dict\b.*{re.escape(str(state))}"
        with pytest.raises(ValueError, match=message):
            one.load_state_dict(state)
        assert one.state_dict() == before


REFUSED: list[tuple[Callable[[Any], object], str, list[Any]]] = [
    (ReplayRatio, "ratio: .*>= 0", [-0.5, math.nan, math.inf, Fraction(-1, 2)]),
    (lambda value: ReplayRatio(1, start=value), "start: .*>= 0", [-1, 2.5]),
    (lambda value: ReplayRatio(1)(value), "steps: .*>= 0", [-1, 2.5]),
    (
        lambda value: ReplayRatio.from_train_ratio(512, batch_size=16, length=value),
        "length: .*>= 1",
        [0],
    ),
    (lambda value: limited(value), "samples_per_insert: .*(> 0|finite)", [0, -1]),
    (lambda value: limited(min_steps=value), "min_steps: .*>= 0", [-1]),
    (lambda value: limited(slack=value), "slack: .*finite", [math.inf]),
    (lambda value: limited(3, slack=value), r"slack: .*\b3 samples\b", [0, 0.5, 2.9]),
    (lambda value: limited().wait_to_insert(value), "steps: .*>= 0", [-1]),
    (lambda value: limited().wait_to_sample(value), "samples: .*>= 1", [0]),
    (lambda value: limited().wait_to_sample(1, timeout=value), "timeout: .*>= 0", [-1]),
]


@pytest.mark.parametrize(("call", "message", "values"), REFUSED)
def test_numbers_out_of_range_are_refused(
    call: Callable[[Any], object], message: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=rf"^{message}.* {re.escape(repr(value))}(;|\b|$)"):
            call(value)
