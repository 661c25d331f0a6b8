"""Each kind of policy plays; anything else is refused before an env is touched."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from stepwell.collectors.policies.as_policy import as_policy
from stepwell.collectors.policies.policy import SeededPolicy
from support.envs.fakes import CounterEnv, zeros
from support.programs import run_python


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
    def act(self, observation: Any) -> Any:
        return one(observation)

    def __call__(self, observation: Any) -> Any:
        return one(observation)


class Stateful(OneArgument):
    def initial_state(self, num_envs: int) -> Any:
        return np.zeros(num_envs)


class Predicts:
    def predict(self, observation: Any) -> Any: ...


class Named:
    """No more than an object of a library's class."""

    def learn(self) -> None: ...


Named.__module__ = "stable_baselines3.ppo"


def one(observation: Any) -> np.ndarray:
    return np.zeros(len(observation), np.int64)


def three(observation: Any, is_first: Any, state: Any) -> None: ...


def named_only(*, observation: Any, is_first: Any) -> None: ...


@functools.wraps(one)
def adapted(observation: Any, is_first: Any) -> Any:
    return zeros(observation, is_first)


NO_POLICIES: list[tuple[Any, str, str]] = [
    (None, "got None", "RandomPolicy()"),
    ("agent:act", "got 'agent:act'", "the object"),
    ("Random", "got 'Random'", "'random' is the only name"),
    (3, "got int", "a callable object"),
    (np.zeros(3), "got ndarray", "a callable object"),
    (Predicts(), "got Predicts", "its predict"),
    (Named().learn, "the method learn of a Named", "the model itself"),
    (sw.RandomPolicy, "the class RandomPolicy", "RandomPolicy()"),
    (three, "observation and is_first", "state"),
    (named_only, "observation and is_first", "*, observation"),
    (lambda: None, "observation and is_first", "got ()"),
    (Stateful(), "three arguments", "got (observation"),
]

POLICIES: list[Any] = [
    "random",
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
    one,
    lambda observation: one(observation),
    lambda observation, *, temperature=1.0: one(observation),
    OneArgument(),
    OneArgument().act,
    functools.partial(lambda k, observation: one(observation), 3),
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
def test_whatever_takes_one_or_both_arguments_is_a_policy(policy: Any) -> None:
    for use in (collected, evaluated):
        use(policy, CounterEnv)


def test_a_function_in_c_of_unknown_arguments_is_tried() -> None:
    unknown: Any = max  # inspect.signature does not support it
    with pytest.raises(Exception, match=r"\w") as caught:
        collected(unknown, CounterEnv)
    assert "policy: expected" not in str(caught.value)


def played(policy: Any, env: Any = CounterEnv, **options: Any) -> list[Any]:
    """The actions of some steps, from a seed."""
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(env(), policy, replay, seed=3, **options) as collector:
        collector.collect(steps=23)
    return [episode.action.tolist() for episode in replay.iter_episodes()]


class Full(OneArgument):
    """A policy of the observation alone with everything that a policy may have."""

    def begin(self, action_space: Any, rng: np.random.Generator) -> None:
        self.begun = action_space, rng

    def __call__(self, observation: Any) -> Any:
        return one(observation), {"seen": np.asarray(observation)[:, 0]}

    def value(self, observation: Any) -> np.ndarray:
        return np.full(len(observation), 7.5)


def test_a_policy_of_the_observation_keeps_its_other_methods_and_extras() -> None:
    policy = Full()
    with sw.Collector(CounterEnv(), policy, seed=0) as collector:
        rollout = collector.rollout(5)
    assert policy.begun[0] == CounterEnv().action_space
    assert rollout.bootstrap.value is not None
    assert (rollout.bootstrap.value == 7.5).all()
    assert (rollout.extras["seen"] == rollout.observation[..., 0]).all()
    assert not hasattr(as_policy(one), "value")
    assert not isinstance(as_policy(one), SeededPolicy)


# Modules of torch.


@pytest.fixture
def nets() -> types.SimpleNamespace:
    """Modules that choose an action by the observation of CartPole, or do not."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            with torch.no_grad():  # Q values of the two pushes, by where the pole leans and falls
                self.layer.weight[:] = torch.tensor([[0, 0, -1, -1], [0, 0, 1, 1.0]])
                self.layer.bias[:] = 0

        def forward(self, observation: Any) -> Any:
            return self.layer(observation)

    class Mapped(Net):
        """The output, as another forward changes it."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            super().__init__()
            self.function = function

        def forward(self, observation: Any) -> Any:
            return self.function(super().forward(observation))

    class Agent(Net):
        def forward(self, observation: Any, is_first: Any) -> Any:  # type: ignore[override]
            assert isinstance(observation, np.ndarray)
            return push(observation)

    class Called(Net):
        def __call__(self, observation: Any, is_first: Any) -> Any:
            return push(observation)

    class Two(Net):
        def forward(self, observation: Any, goal: Any, more: Any) -> Any: ...  # type: ignore[override]

    return types.SimpleNamespace(
        torch=torch, nn=nn, Net=Net, Mapped=Mapped, Agent=Agent, Called=Called, Two=Two
    )


def push(observation: np.ndarray) -> np.ndarray:
    is_falling: np.ndarray = observation[:, 2] + observation[:, 3] > 0
    return is_falling.astype(np.int64)


def pole() -> Any:
    return gym.make("CartPole-v1")


def test_a_module_takes_the_action_with_the_largest_number(nets: types.SimpleNamespace) -> None:
    torch, net = nets.torch, nets.Net()
    expected = played(push, pole)
    assert played(net, pole) == expected
    assert played(nets.Net().double(), pole) == expected  # observations are float32
    assert played(nets.Agent(), pole) == expected
    assert played(nets.Called(), pole) == expected
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        traced = torch.jit.trace(net, torch.zeros(1, 4))
    assert played(traced, pole) == expected
    assert played(torch.compile(nets.Net(), backend="eager"), pole) == expected
    assert played(nets.nn.Sequential(nets.Net(), nets.nn.Softmax(dim=1)), pole) == expected
    assert sw.evaluate("CartPole-v1", net, episodes=2).mean > 400


def test_a_module_of_a_box_returns_the_actions_first(nets: types.SimpleNamespace) -> None:
    def pendulum() -> Any:
        return gym.make("Pendulum-v1")

    def expected(observation: np.ndarray) -> np.ndarray:
        return observation[:, 2:] / np.float32(8)

    class Mean(nets.nn.Module):  # type: ignore[name-defined]
        def forward(self, observation: Any) -> Any:
            return observation[:, 2:] / 8, observation[:, :1]

    assert played(Mean(), pendulum) == played(expected, pendulum)


def test_what_a_module_returns_is_checked(nets: types.SimpleNamespace) -> None:
    torch = nets.torch
    for function, got, cure in (
        (lambda q: q[:, :1], "[N, 2]", "got [1, 1]"),
        (lambda q: torch.cat([q, q], dim=1), "[N, 2]", "got [1, 4]"),
        (lambda q: q.argmax(dim=1), "[N, 2]", "got [1]"),
        (lambda q: (q, q[:, :1]), "a tuple of 2", "value='last'"),
        (lambda q: {"q": q}, "got dict", "return a tensor"),
    ):
        with pytest.raises(ValueError, match=r"^policy: .* module Mapped") as caught:
            played(nets.Mapped(function), pole)
        assert got in str(caught.value)
        assert cure in str(caught.value)


@pytest.mark.parametrize(
    "space",
    [gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Discrete(2, start=1), gym.spaces.MultiBinary(3)],
    ids=str,
)
def test_a_module_without_an_action_for_the_space_is_refused(
    nets: types.SimpleNamespace, space: Any
) -> None:
    env = Untouched()
    env.action_space = space
    with pytest.raises(ValueError, match=r"^policy: .*module Net") as caught:
        sw.Collector(env, nets.Net())
    assert str(space) in str(caught.value)


def test_a_module_that_cannot_play_is_refused(nets: types.SimpleNamespace) -> None:
    class Theirs(nets.Net):  # type: ignore[name-defined]
        pass

    Theirs.__module__ = "tensordict.nn.common"

    class Mine(Theirs):
        pass

    for use in (collected, evaluated, warmed_up):
        for module, got in (
            (nets.Two(), r"Two with \(observation.*, goal"),
            (nets.nn.MultiheadAttention(4, 1), r"MultiheadAttention with \(query"),
            (Mine(), "Mine.* tensordict; .*function"),
        ):
            with pytest.raises(TypeError, match=f"^policy: .*{got}"):
                use(module, Untouched)
    with pytest.raises(ValueError, match="begin"):
        cast("Any", as_policy(nets.Net()))(np.zeros((1, 4), np.float32), np.ones(1, np.bool_))


# Models of Stable-Baselines3.


def test_a_model_plays_as_sb3_policy_does() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=10, learning_starts=0, seed=0)
    model.exploration_rate = 0.2
    assert played(model, pole) == played(sw.bridges.sb3_policy(model), pole)
    assert played(model, pole) != played(sw.bridges.sb3_policy(model, deterministic=True), pole)
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(pole(), model, replay) as collector:
        collector.collect(steps=3)
    assert replay.sessions[0]["policy"] == "stable_baselines3.dqn.dqn.DQN"
    actor = sb3.PPO("MlpPolicy", "CartPole-v1", seed=0, n_steps=8, batch_size=8)
    with sw.Collector(pole(), actor, seed=0) as collector:
        rollout = collector.rollout(4)
    assert sorted(rollout.extras) == ["log_prob", "value"]


def test_a_model_of_other_spaces_is_refused() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    with pytest.raises(ValueError, match=r"Discrete\(2\).*got Discrete\(3\)"):
        sw.Collector(gym.make("MountainCar-v0"), model)
    with pytest.raises(ValueError, match=r"observation: .*float32 \(4,\).*got float\d+ \(5,\)"):
        collected(model, lambda: gym.wrappers.TimeAwareObservation(pole()))


def test_parts_of_a_model_are_refused() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    for given, got in (
        (model.predict, "the method predict of a PPO; give the model itself"),
        (model.policy.predict, "the method predict of a ActorCriticPolicy"),
        (model.policy, "got ActorCriticPolicy; give the model itself"),
        (type(model), "the class PPO"),
    ):
        for use in (collected, evaluated, warmed_up):
            with pytest.raises(TypeError) as caught:
                use(given, Untouched)
            assert got in str(caught.value)


@pytest.mark.proof
def test_no_library_is_imported_for_a_policy() -> None:
    code = (
        "import sys, stepwell.collectors.policies.as_policy as a\n"
        "for given in ('random', lambda observation: None, lambda observation, is_first: None):\n"
        "    a.as_policy(given)\n"
        "print(sorted({'torch', 'stable_baselines3', 'tensordict'} & {*sys.modules}))"
    )
    assert run_python("-c", code).stdout == "[]\n"


def test_an_error_of_a_module_tells_the_observations() -> None:
    torch = pytest.importorskip("torch")
    policy: Any = as_policy(torch.nn.Linear(3, 2))
    policy.begin(gym.spaces.Discrete(2), np.random.default_rng(0))
    with pytest.raises(RuntimeError) as caught:
        policy(np.zeros((5, 4), np.float32), np.ones(5, np.bool_))
    assert any("Linear" in note and "[5, 4]" in note for note in caught.value.__notes__)
