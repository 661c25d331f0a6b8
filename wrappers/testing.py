"""Checks of envs and vector envs, for use in your own test suite.

`stepwell.check_env` reports on a single env. These functions raise an error where it, or a vector
env that is made of it, from which a `Collector` stores rows, has a problem:

    from stepwell.wrappers.testing import assert_env

    def test_my_env() -> None:
        assert_env(MyEnv)
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ..buffers.base.number_checks import check_whole
from ..buffers.base.package import lazy_names
from .check.env import check_env
from .check.vector_env import VectorEnvReport, check_vector_env
from .check.watch import copied, leaves_of
from .final_observations import ExactInfos
from .fixed_spaces import with_fixed_spaces
from .workers.vector_env import WorkerVectorEnv, checked_env

__all__ = ["Vectorization", "assert_env", "assert_vector_env"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {})

AnyVectorEnv = VectorEnv[Any, Any, Any]
Vectorization = Literal["sync", "async", "workers"]


def assert_vector_env(
    envs: AnyVectorEnv | Callable[[], AnyVectorEnv], *, steps: int = 500, seed: int = 0
) -> VectorEnvReport:
    """Check a vector env with `check_vector_env`, and raise the report if it has a problem.

    Args:
        envs: A vector env, or a factory of one, which is closed afterwards.
        steps: Vector steps to make, at least 10. Choose enough for a few episode ends.
        seed: Seed of the actions and of the resets.

    Returns:
        The report.

    Raises:
        AssertionError: The report has a problem. The message is the report.

    Example:
        >>> report = assert_vector_env(lambda: gym.make_vec("CartPole-v1", num_envs=2), steps=100)
        >>> report.autoreset
        'next_step'
    """
    report = check_vector_env(envs, steps=steps, seed=seed)
    if not report.is_fine:
        raise AssertionError(f"the vector env has a problem:\n{report}")
    return report


def assert_env(
    env_fn: Callable[[], gym.Env[Any, Any]],
    *,
    num_envs: int = 2,
    steps: int = 200,
    seed: int = 0,
    vectorization: Sequence[Vectorization] = get_args(Vectorization),
) -> None:
    """Check an env, also in every kind of vector env, and that all of them return the same rows.

    First no check of `stepwell.check_env` may fail. Then each kind is checked with
    `assert_vector_env` in each autoreset mode that it supports. The same seed and actions must give
    the same observations, rewards and flags in all kinds, in one process or in several.

    Args:
        env_fn: Factory of one env, without arguments.
        num_envs: Number of envs, N >= 1.
        steps: Vector steps to make in each vector env, at least 10.
        seed: Seed of the actions and of the resets.
        vectorization: Kinds to check: "sync" and "async" for Gymnasium's `SyncVectorEnv` and
            `AsyncVectorEnv`, "workers" for `WorkerVectorEnv`.

    Raises:
        AssertionError: A check of the env failed, or a vector env has a problem, or its rows
            differ. The message names the vector env.
        TypeError: The factory does not return an env.

    Example:
        >>> assert_env(lambda: gym.make("CartPole-v1"), steps=50, vectorization=["sync"])
    """
    check_whole("num_envs", num_envs, 1)
    unknown = set(vectorization) - set(get_args(Vectorization))
    if unknown or not vectorization:
        raise ValueError(
            f"vectorization: expected one or more of {', '.join(get_args(Vectorization))}, got "
            f"{vectorization!r}"
        )
    checked_env(env_fn()).close()
    alone = check_env(env_fn, steps=steps, seed=seed)
    if not alone.is_fine:
        raise AssertionError(f"the env has a problem:\n{alone}")
    rows: dict[str, list[Any]] = {}
    for label, make in _vector_envs(env_fn, num_envs, vectorization):
        try:
            report = assert_vector_env(make, steps=steps, seed=seed)
        except AssertionError as error:
            raise AssertionError(f"{label}: {error}") from None
        except Exception as error:
            error.add_note(f"in {label}")
            raise
        if report.declared == AutoresetMode.NEXT_STEP.name:
            rows[label] = _rows_of(make, steps, seed)
    labels = list(rows)
    for label in labels[1:]:
        for step, (expected, got) in enumerate(zip(rows[labels[0]], rows[label], strict=True)):
            try:
                np.testing.assert_equal(got, expected)
            except AssertionError as error:
                raise AssertionError(
                    f"{label}: expected the same rows as in {labels[0]}, got others in step "
                    f"{step}; use only the generator that reset(seed=) sets: {error}"
                ) from None


def _vector_envs(
    env_fn: Callable[[], gym.Env[Any, Any]], num_envs: int, vectorization: Sequence[str]
) -> Iterator[tuple[str, Callable[[], AnyVectorEnv]]]:
    """Yield a label and a factory for each kind of vector env in each of its modes."""
    # Texts, sequences and graphs as arrays, as `make_vec` gives them: not all kinds take others.
    env_fns = [lambda: with_fixed_spaces(env_fn())] * num_envs
    kinds: dict[str, Any] = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}
    for name in vectorization:
        if name == "workers":
            yield "WorkerVectorEnv", partial(WorkerVectorEnv, env_fns, num_workers=num_envs)
            continue
        kind = kinds[name]
        for mode in AutoresetMode:
            label = f"{kind.__name__} in {mode.name} mode"
            yield label, partial(kind, env_fns, autoreset_mode=mode)


def _rows_of(make: Callable[[], AnyVectorEnv], steps: int, seed: int) -> list[Any]:
    """Return what `reset` and each step returned, without the infos."""
    with contextlib.closing(make()) as envs:
        exact = ExactInfos(envs)
        exact.prepare()
        with exact:
            observation, _ = envs.reset(seed=seed)
            rows: list[Any] = [copied(leaves_of(observation))]
            envs.action_space.seed(seed)
            for _ in range(steps):
                observation, *rest, _ = envs.step(envs.action_space.sample())
                rows.append([*copied(leaves_of(observation)), *copied(rest)])
        return rows
