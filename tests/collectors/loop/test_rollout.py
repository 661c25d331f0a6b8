"""`Collector.rollout`: results, arguments, and rows kept after errors."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import stepwell as sw
from support.envs.fakes import InfoEnv, TraceEnv, counters, zeros
from support.models.model import check_rows, copied, same
from support.models.rollout_model import TraceRule, assert_equal_rollouts, policy_of


@pytest.fixture
def replay() -> sw.SequenceReplayBuffer:
    return sw.SequenceReplayBuffer(seed=0)


def collector_of(envs: Any = None, policy: Any = zeros, replay: Any = None, **more: Any) -> Any:
    return sw.Collector(counters() if envs is None else envs, policy, replay, seed=0, **more)


def times_of(rollout: sw.Rollout) -> list[list[int]]:
    times: list[list[int]] = np.asarray(rollout.observation)[..., 1].tolist()
    return times


# What it gives


def test_a_rollout_has_the_documented_shapes_and_dtypes() -> None:
    def policy(observation: Any, is_first: Any) -> Any:
        extras = {"log_prob": np.zeros(2, np.float32), "logits": np.zeros((2, 4), np.float16)}
        return np.zeros(2, np.int8), extras

    info = {"t": -1, "array": np.zeros(2, np.int16)}
    envs = SyncVectorEnv([partial(InfoEnv, 4)] * 2)
    with collector_of(envs, policy, info=info) as collector:
        rollout = collector.rollout(6)
    assert (rollout.num_steps, rollout.num_envs, rollout.steps) == (6, 2, 10)
    assert rollout.observation.shape == (6, 2, 3)
    assert rollout.observation.dtype == np.int64
    assert (rollout.action.shape, rollout.action.dtype) == ((6, 2), np.dtype(np.int64))
    assert (rollout.reward.shape, rollout.reward.dtype) == ((6, 2), np.dtype(np.float32))
    for name in ("is_first", "terminated", "truncated", "cut", "mask"):
        flags = getattr(rollout, name)
        assert (flags.shape, flags.dtype) == ((6, 2), np.dtype(np.bool_)), name
    shapes = {name: (rows.shape, rows.dtype.name) for name, rows in rollout.extras.items()}
    assert shapes == {"log_prob": ((6, 2), "float32"), "logits": ((6, 2, 4), "float16")}
    shapes = {name: (rows.shape, rows.dtype.name) for name, rows in rollout.info.items()}
    assert shapes == {"t": ((6, 2), "int64"), "array": ((6, 2, 2), "int16")}
    assert (rollout.state, rollout.initial_state, rollout.bootstrap.state) == (None, None, None)
    assert rollout.bootstrap.value is None
    assert rollout.bootstrap.observation.dtype == np.int64
    assert isinstance(rollout.rng, np.random.Generator)
    assert isinstance(rollout.episode_returns[0], float)
    assert isinstance(rollout.episode_lengths[0], int)


def test_before_any_call_there_is_no_report() -> None:
    with (
        collector_of() as collector,
        pytest.raises(ValueError, match=r"report: .*collect .*rollout.*got none"),
    ):
        _ = collector.report


def test_a_value_attribute_that_is_no_method_is_not_called() -> None:
    class Layer:
        def __call__(self, *inputs: Any) -> Any:
            raise AssertionError("a part of the network is no method of the policy")

    class Policy:
        value = Layer()

        def __call__(self, observation: Any, is_first: Any) -> Any:
            return zeros(observation, is_first)

    with collector_of(policy=Policy()) as collector:
        assert collector.rollout(3).bootstrap.value is None


def test_a_rollout_without_open_ends_has_an_empty_bootstrap() -> None:
    """All episodes end in the last row, so there is nothing to compute values for."""
    policy = policy_of(TraceRule())
    envs = SyncVectorEnv([partial(TraceEnv, [(3, "terminated")], n) for n in (0, 1)])
    with collector_of(envs, policy) as collector:
        for steps in (3, 1):  # the second one is but the row in which both envs reset
            rollout = collector.rollout(steps)
            assert len(rollout.bootstrap.step) == 0
            assert rollout.bootstrap.observation.shape == (0, 5)
            assert rollout.bootstrap.value is not None
            assert rollout.bootstrap.value.shape == (0,)
            advantages, _ = rollout.advantages(0.9, 0.9)
            assert advantages.shape == (steps, 2)
        assert rollout.steps == 0
        assert not rollout.mask.any()
    assert set(policy.value_calls) <= {0}


def policy_with_value(observation: Any, is_first: Any) -> Any:
    return zeros(observation, is_first), {"value": observation[:, 1].astype(np.float32)}


# The given rollout


def test_the_arrays_of_a_given_rollout_are_used_again_and_its_values_cleared() -> None:
    with collector_of(policy=policy_with_value) as collector:
        first = collector.rollout(6)
        first.advantages(0.9, 0.9, bootstrap_value=np.ones(2))
        parts = {name: getattr(first, name) for name in ("observation", "action", "reward", "mask")}
        ends, kept = first.bootstrap, copied(first.bootstrap.observation)
        second = collector.rollout(6, out=first)
        for name, part in parts.items():
            assert np.shares_memory(part, getattr(second, name)), name
        assert np.shares_memory(first.extras["value"], second.extras["value"])
        (batch,) = second.minibatches(100)
    assert (batch.advantage, batch.returns) == (None, None)
    assert same(ends.observation, kept)  # as the learner may still use them


def test_a_rollout_of_another_collector_will_do_as_out() -> None:
    found = []
    for reuse in (False, True):
        with collector_of(policy=policy_with_value) as collector:
            other = collector.rollout(4)
        with collector_of(counters([2, 9], 3), sw.RandomPolicy()) as collector:
            found.append(collector.rollout(4, out=other if reuse else None))
    assert_equal_rollouts(*found)
    assert dict(found[1].extras) == {}


@pytest.mark.parametrize(
    ("steps", "lengths", "message"),
    [
        (4, (5, 5), r"out: .*\(4, 2\), got \(3, 2\)"),
        (2, (5, 5), r"out: .*\(2, 2\), got \(3, 2\)"),
        (3, (5, 5, 5), r"out: .*\(3, 3\), got \(3, 2\)"),
        # Of the same shape [T, N], but with other observations.
        (3, None, r"out: .*float64 \(5,\).*'observation'.*got int64 \(3,\)"),
    ],
)
def test_a_given_rollout_of_another_shape_is_refused(
    steps: int, lengths: tuple[int, ...] | None, message: str
) -> None:
    with collector_of() as collector:
        other = collector.rollout(3)
        kept = copied(other.observation)
    envs = counters(*lengths) if lengths else SyncVectorEnv([TraceEnv] * 2)
    with collector_of(envs) as collector:
        with pytest.raises(ValueError, match=f"^{message}"):
            collector.rollout(steps, out=other)
        rollout = collector.rollout(2)
    assert same(other.observation, kept)
    assert rollout.is_first.tolist() == [[True] * envs.num_envs, [False] * envs.num_envs]


@pytest.mark.parametrize("out", ["rollout", 3, (1, 2), {}])
def test_something_else_than_a_rollout_is_refused_as_out(out: Any) -> None:
    with collector_of() as collector:
        with pytest.raises(TypeError, match=rf"^out: .*Rollout, got {type(out).__name__};"):
            collector.rollout(3, out=out)
        assert times_of(collector.rollout(2)) == [[0, 0], [1, 1]]


# What it refuses


@pytest.mark.parametrize("steps", [0, -3, 2.5, float("nan"), float("inf"), None, "7", True, [3]])
def test_invalid_numbers_of_rows_are_refused(steps: Any, replay: sw.SequenceReplayBuffer) -> None:
    message = rf"^steps: .*>= 1.*got {re.escape(repr(steps))}$"
    with collector_of(replay=replay) as collector:
        with pytest.raises(ValueError, match=message):
            collector.rollout(steps)
        assert not replay.is_bound
        collector.rollout(3)
        with pytest.raises(ValueError, match=message):
            collector.rollout(steps)
        assert times_of(collector.rollout(1)) == [[3, 3]]
    assert replay.steps == 8


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3, np.float32), r"value.*\(3,\).*expected.*\(2,\)"),
        (np.array(["a", "b"]), r"^policy.value .*\(2,\).*<U1.*expected"),
        (np.array([3, 4]), r"^policy.value .*\(2,\).*int64.*expected"),
        ("much", r"^policy.value .*\(\).*<U4.*expected"),
        (None, r"^policy.value .*\(\).*object.*expected"),
    ],
)
def test_a_wrong_value_is_one_clear_sentence(
    value: Any, message: str, replay: sw.SequenceReplayBuffer
) -> None:
    policy = policy_of(TraceRule())
    good, policy.value = policy.value, lambda observation: value
    envs = SyncVectorEnv([partial(TraceEnv, [(9, "both")], n) for n in (0, 1)])
    with collector_of(envs, policy, replay) as collector:
        with pytest.raises((ValueError, TypeError), match=message):
            collector.rollout(4)
        assert replay.steps == 8
        policy.value = good
        assert collector.rollout(3).bootstrap.value.shape == (2,)
    assert replay.steps == 14


def test_rows_are_on_disk_when_a_rollout_returns(tmp_path: Path) -> None:
    replay = sw.SequenceReplayBuffer(tmp_path / "run")
    with collector_of(counters(3, 5), replay=replay, flush_seconds=1e9) as collector:
        for _ in range(3):
            collector.rollout(4)
            with sw.SequenceReplayBuffer.open(tmp_path / "run", read_only=True) as other:
                assert other.digest() == collector.report.digest
                assert other.steps == replay.steps
                check_rows(other)
    replay.close()
