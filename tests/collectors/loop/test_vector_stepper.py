"""Stepping in two halves, and getting out of the middle of a step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from stepwell.collectors.loop.step_result import EpisodeMetadata, InfoReader
from stepwell.collectors.loop.vector_stepper import Stepper
from support.envs.fakes import CounterEnv, RestartVectorEnv

ZEROS = np.zeros(2, np.int64)


def stepper_of(envs: Any) -> Stepper:
    return Stepper(envs, "observation", InfoReader({}), EpisodeMetadata(None))


def counters(kind: Any = SyncVectorEnv, length: int = 3, **options: Any) -> Any:
    return kind([partial(CounterEnv, length, tag) for tag in range(2)], **options)


def step(stepper: Stepper) -> list[tuple[Any, ...]]:
    """Envs, times, rewards and flags of all results of one step."""
    stepper.send(ZEROS)
    return [
        (
            [0, 1] if one.env_ids is None else one.env_ids.tolist(),
            one.leaves["observation"][:, 1].tolist(),
            one.reward.tolist(),
            None if one.is_first is None else one.is_first.tolist(),
            None if one.terminated is None else one.terminated.tolist(),
        )
        for one in stepper.receive()
    ]


T, F = True, False
FIRST = ([0, 1], [0, 0], [0, 0], [T, T], None)


def test_next_step_gives_one_row_for_each_env_and_step() -> None:
    stepper = stepper_of(counters(length=2))
    stepper.reset(0)
    assert step(stepper) == [([0, 1], [1, 1], [1, 1], None, None)]
    assert step(stepper) == [([0, 1], [2, 2], [2, 2], None, [T, T])]
    assert step(stepper) == [FIRST]
    assert step(stepper) == [([0, 1], [1, 1], [1, 1], None, None)]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_the_other_modes_give_last_and_first_rows_together(mode: AutoresetMode) -> None:
    stepper = stepper_of(counters(length=2, autoreset_mode=mode))
    stepper.reset(0)
    assert step(stepper) == [([0, 1], [1, 1], [1, 1], None, None)]
    assert step(stepper) == [([0, 1], [2, 2], [2, 2], None, [T, T]), FIRST]
    assert stepper.reader.is_first.tolist() == [T, T]
    assert step(stepper) == [([0, 1], [1, 1], [1, 1], None, None)]
    assert stepper.reader.is_first.tolist() == [F, F]


def test_only_envs_that_ended_have_last_and_first_rows() -> None:
    envs = SyncVectorEnv(
        [partial(CounterEnv, length) for length in (1, 3)], autoreset_mode=AutoresetMode.SAME_STEP
    )
    stepper = stepper_of(envs)
    stepper.reset(0)
    assert step(stepper) == [
        ([0], [1], [1], None, [T]),
        ([0, 1], [0, 1], [0, 1], [T, F], None),
    ]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_restarted_worker_gives_a_first_row(mode: AutoresetMode) -> None:
    make = [partial(CounterEnv, 5)] * 2
    stepper = stepper_of(RestartVectorEnv(make, at_step=2, env=1, autoreset_mode=mode))
    stepper.reset(0)
    step(stepper)
    stepper.send(ZEROS)
    (result,) = stepper.receive()
    assert result.restarts == 1
    assert result.is_first is not None
    assert result.is_first.tolist() == [F, T]
    assert result.reward.tolist() == [2, 0]
    assert stepper.reader.is_first.tolist() == [F, T]
    stepper.send(ZEROS)
    assert stepper.receive()[0].restarts == 0


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_a_reset_discards_a_step_that_was_not_received(kind: Any) -> None:
    envs = counters(kind)
    stepper = stepper_of(envs)
    stepper.reset(0)
    stepper.send(ZEROS)
    (result,) = stepper.reset(1)
    assert result.leaves["observation"][:, 1].tolist() == [0, 0]
    assert step(stepper)[0][1] == [1, 1]
    stepper.send(ZEROS)
    stepper.drain()
    stepper.drain()
    envs.close()  # gymnasium warns of a pending step


def test_the_policy_may_not_change_what_is_recorded_of_beginnings() -> None:
    stepper = stepper_of(counters())
    (result,) = stepper.reset(0)
    stepper.reader.is_first[:] = False
    assert result.is_first is not None
    assert result.is_first.all()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_the_vector_env_is_left_as_it_was(kind: Any) -> None:
    """Between two calls nothing of ours is set on it: not after a step, a reset, or a drain."""
    envs = counters(kind)
    names = set(vars(envs))
    stepper = stepper_of(envs)
    stepper.reset(0)
    step(stepper)
    stepper.send(ZEROS)
    stepper.drain()
    assert set(vars(envs)) == names
    envs.close()


def test_seeds_are_reported_once() -> None:
    stepper = stepper_of(counters(length=1))
    (result,) = stepper.reset(40)
    assert result.metadata == {0: {"seed": 40}, 1: {"seed": 41}}
    stepper.send(ZEROS)
    stepper.receive()
    stepper.send(ZEROS)
    assert stepper.receive()[0].metadata == {0: {}, 1: {}}
