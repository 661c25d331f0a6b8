"""Objects that are no policies are refused before an env is touched; those that are pass."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from support.envs.fakes import CounterEnv


class Untouched(CounterEnv):
    """An env that must not be reset or stepped."""

    def reset(self, **options: Any) -> Any:
        raise AssertionError("was reset")

    def step(self, action: Any) -> Any:
        raise AssertionError("was stepped")


class Calls:
    def __call__(self, *arguments: Any, **more: Any) -> Any:
        return np.zeros(len(arguments[0]), np.int64)


class OneArgument:
    def act(self, observation: Any) -> Any: ...

    def __call__(self, observation: Any) -> Any: ...


class Stateful(OneArgument):
    def initial_state(self, num_envs: int) -> Any:
        return np.zeros(num_envs)


class Named:
    """No more than an object of a library's class."""


Named.__module__ = "stable_baselines3.ppo"


def zeros(observation: Any, is_first: np.ndarray) -> np.ndarray:
    return np.zeros(len(is_first), np.int64)


def one(observation: Any) -> None: ...


def three(observation: Any, is_first: Any, state: Any) -> None: ...


def named_only(*, observation: Any, is_first: Any) -> None: ...


@functools.wraps(one)
def adapted(observation: Any, is_first: Any) -> Any:
    return zeros(observation, is_first)


NO_POLICIES: list[tuple[Any, str, str]] = [
    (None, "got None", "RandomPolicy()"),
    ("random", "got 'random'", "RandomPolicy()"),
    ("agent:act", "got 'agent:act'", "the object"),
    (3, "got int", "a callable object"),
    (np.zeros(3), "got ndarray", "a callable object"),
    (Named(), "got Named", "sb3_policy(model)"),
    (sw.RandomPolicy, "the class RandomPolicy", "RandomPolicy()"),
    (one, "is_first", "got (observation"),
    (lambda observation: None, "is_first", "got (observation)"),
    (OneArgument(), "is_first", "got (observation"),
    (OneArgument().act, "is_first", "got (observation"),
    (functools.partial(three, 0, 0), "is_first", "got (state"),
    (three, "two arguments", "state"),
    (named_only, "two arguments", "*, observation"),
    (lambda: None, "two arguments", "got ()"),
    (Stateful(), "three arguments", "got (observation"),
    (len, "two arguments", "got (obj, /)"),
]

POLICIES: list[Callable[..., Any]] = [
    zeros,
    adapted,
    lambda observation, is_first, temperature=1.0: zeros(observation, is_first),
    lambda *arguments: zeros(*arguments),
    Calls(),
    Calls().__call__,
    functools.partial(lambda k, observation, is_first: zeros(observation, is_first), 3),
    types.MethodType(lambda self, observation, is_first: zeros(observation, is_first), 0),
    sw.RandomPolicy(),
    sw.WarmUp(zeros, 3),
]


def collected(policy: Any, env: Any) -> None:
    with sw.Collector(env(), policy) as collector:
        collector.collect(steps=3)


def evaluated(policy: Any, env: Any) -> None:
    sw.evaluate(env(), policy, episodes=1)


def warmed_up(policy: Any, env: Any) -> None:
    sw.WarmUp(policy, 10)


def greedy(policy: Any, env: Any) -> None:
    sw.EpsilonGreedy(policy, 0.1)


def noisy(policy: Any, env: Any) -> None:
    sw.GaussianNoise(policy, 0.1)


@pytest.mark.parametrize("use", [collected, evaluated, warmed_up, greedy, noisy])
@pytest.mark.parametrize(("policy", "got", "cure"), NO_POLICIES, ids=range(len(NO_POLICIES)))
def test_what_is_no_policy_is_refused_before_anything_is_done(
    use: Callable[[Any, Any], None], policy: Any, got: str, cure: str
) -> None:
    with pytest.raises(TypeError, match=r"^policy: ") as caught:
        use(policy, Untouched)
    assert got in str(caught.value)
    assert cure in str(caught.value)


@pytest.mark.parametrize("policy", POLICIES, ids=range(len(POLICIES)))
def test_whatever_takes_both_arguments_is_a_policy(policy: Any) -> None:
    for use in (collected, evaluated):
        use(policy, CounterEnv)


def test_a_function_in_c_of_unknown_arguments_is_tried() -> None:
    unknown: Any = max  # inspect.signature does not support it
    with pytest.raises(Exception, match=r"\w") as caught:
        collected(unknown, CounterEnv)
    assert "policy: expected" not in str(caught.value)


def test_a_torch_module_is_refused_with_the_name_of_the_bridge() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, observation: Any) -> Any:
            return observation

    class Agent(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, observation: Any, is_first: Any) -> Any:
            return zeros(observation, is_first)

    class Called(Net):
        def __call__(self, observation: Any, is_first: Any) -> Any:
            return zeros(observation, is_first)

    for module in (Net(), nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 4)), nn.GRU(3, 4)):
        for use in (collected, evaluated, warmed_up):
            with pytest.raises(TypeError, match=rf"{type(module).__name__}.*torch_policy\(module"):
                use(module, Untouched)
    for policy in (Agent(), Called()):
        collected(policy, CounterEnv)
