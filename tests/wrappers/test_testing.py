"""The checks for other people's test suites find what is wrong, and pass what is right."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv

from stepwell.wrappers.testing import assert_env, assert_vector_env
from support.envs.fakes import (
    CounterEnv,
    Declared,
    DictEnv,
    FrameEnv,
    InfoEnv,
    LiveBufferEnv,
    SeededEnv,
)
from support.envs.open_spaces import OpenEnv


class Anew(gym.Wrapper[Any, Any, Any, Any]):
    """A seeded reset begins with episode 0 again."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.env = type(self.env)()
        return super().reset(seed=seed, options=options)


@pytest.mark.proof
@pytest.mark.parametrize("env", [CounterEnv, DictEnv, InfoEnv, SeededEnv, LiveBufferEnv, FrameEnv])
def test_a_sound_env_passes_in_every_vector_env(env: Any) -> None:
    assert_env(lambda: Anew(env()), steps=40)


def test_an_env_that_counts_its_episodes_over_seeded_resets_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"FAIL +resets: step 0: "):
        assert_env(CounterEnv, steps=20, vectorization=["sync"])


@pytest.mark.parametrize(
    "kind", ["sync", pytest.param("async", marks=pytest.mark.proof), "workers"]
)
def test_an_env_of_texts_and_sequences_passes(kind: Any) -> None:
    assert_env(lambda: Anew(OpenEnv()), steps=60, vectorization=[kind])


class PidEnv(CounterEnv):
    """Observes its process."""

    def observation(self) -> Any:
        return np.full(3, os.getpid())


@pytest.mark.proof
def test_an_env_that_depends_on_its_process_is_found() -> None:
    with pytest.raises(AssertionError, match=r"WorkerVectorEnv.*SyncVectorEnv.*step 0"):
        assert_env(PidEnv, steps=20, vectorization=["sync", "workers"])


def undeclared() -> VectorEnv[Any, Any, Any]:
    return Declared(SyncVectorEnv([CounterEnv] * 2), None)


def test_a_vector_env_with_a_problem_raises_its_report() -> None:
    with pytest.raises(AssertionError, match=r"autoreset.*metadata\['autoreset_mode'\]"):
        assert_vector_env(undeclared, steps=20)
