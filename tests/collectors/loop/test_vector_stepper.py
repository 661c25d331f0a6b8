"""Stepping in two halves, and getting out of the middle of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from stepwell.collectors.loop.step_result import EpisodeMetadata, InfoReader
from stepwell.collectors.loop.vector_stepper import Stepper
from support.envs.fakes import counters

ZEROS = np.zeros(2, np.int64)


def stepper_of(envs: Any) -> Stepper:
    return Stepper(envs, "observation", InfoReader({}), EpisodeMetadata(None))


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


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_a_reset_discards_a_step_that_was_not_received(kind: Any) -> None:
    envs = counters(3, 3, kind=kind)
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
    stepper = stepper_of(counters(3, 3))
    (result,) = stepper.reset(0)
    stepper.reader.is_first[:] = False
    assert result.is_first is not None
    assert result.is_first.all()


def test_seeds_are_reported_once() -> None:
    stepper = stepper_of(counters(1, 1))
    (result,) = stepper.reset(40)
    assert result.metadata == {0: {"seed": 40}, 1: {"seed": 41}}
    stepper.send(ZEROS)
    stepper.receive()
    stepper.send(ZEROS)
    assert stepper.receive()[0].metadata == {0: {}, 1: {}}
