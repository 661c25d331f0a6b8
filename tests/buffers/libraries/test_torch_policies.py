"""torch_policy and to_torch: actions, values and log-probabilities equal those of NumPy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from support.envs.logged_envs import Play

torch = pytest.importorskip("torch", reason="needs torch")

from stepwell.buffers.libraries.torch_policies import to_torch, torch_policy  # noqa: E402

FIRST = np.zeros(6, bool)
SEEN = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


def linear(outputs: int, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(5, outputs)


def by_hand(net: Any, seen: np.ndarray) -> np.ndarray:
    found = seen @ net.weight.detach().numpy().T + net.bias.detach().numpy()
    return np.asarray(found)


def test_categorical_draws_with_the_probabilities_of_the_logits() -> None:
    net = linear(3)
    policy = torch_policy(net, seed=0)
    log_probs = by_hand(net, SEEN)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    counts = np.zeros((6, 3))
    action, extras = policy(SEEN, FIRST)
    for _ in range(2_000):
        action, extras = policy(SEEN, FIRST)
        counts[np.arange(6), action] += 1
        np.testing.assert_allclose(extras["log_prob"], log_probs[np.arange(6), action], atol=1e-5)
    assert action.dtype == np.int64
    assert action.shape == (6,)
    assert extras["log_prob"].dtype == np.float32
    assert list(extras) == ["log_prob"]
    np.testing.assert_allclose(counts / 2_000, np.exp(log_probs), atol=0.06)
    action, extras = torch_policy(net, mode="greedy")(SEEN, FIRST)
    assert action.tolist() == by_hand(net, SEEN).argmax(axis=1).tolist()
    assert extras == {}


def test_gaussian_draws_around_the_mean_with_its_density() -> None:
    net, spread = linear(2), linear(2, seed=1)

    def module(seen: Any) -> Any:
        return net(seen), spread(seen).exp()

    policy = torch_policy(module, mode="gaussian", seed=3)
    mean, deviation = by_hand(net, SEEN), np.exp(by_hand(spread, SEEN))
    drawn = []
    for _ in range(2_000):
        action, extras = policy(SEEN, FIRST)
        drawn.append(action)
        density = torch.distributions.Normal(torch.tensor(mean), torch.tensor(deviation))
        expected = density.log_prob(torch.tensor(action)).sum(dim=1).numpy()
        np.testing.assert_allclose(extras["log_prob"], expected, rtol=1e-3, atol=1e-3)
    noise = (np.array(drawn) - mean) / deviation
    assert abs(noise.mean()) < 0.03
    assert abs(noise.std() - 1) < 0.03
    action, extras = torch_policy(module, mode="mean")(SEEN, FIRST)
    np.testing.assert_allclose(action, mean, atol=1e-6)
    assert extras == {}
    assert torch_policy(net, mode="mean")(SEEN, FIRST)[0].shape == (6, 2)


def test_values_come_from_another_module_or_from_the_same_one() -> None:
    net, critic = linear(3), linear(1, seed=1)
    worth = by_hand(critic, SEEN)[:, 0]

    def both(seen: Any) -> Any:
        return net(seen), critic(seen)[:, 0]

    for policy in (torch_policy(net, value=critic), torch_policy(both, value="last")):
        _, extras = policy(SEEN, FIRST)
        np.testing.assert_allclose(extras["value"], worth, atol=1e-6)
        assert policy.value is not None
        np.testing.assert_allclose(policy.value(SEEN[:2]), worth[:2], atol=1e-6)
        assert extras["value"].dtype == policy.value(SEEN).dtype == np.float32
    assert torch_policy(net).value is None


def test_equal_seeds_give_equal_data_independent_of_torchs_generator() -> None:
    def digest(policy: Any, seed: int = 5) -> str:
        replay = sw.SequenceReplayBuffer()
        envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
        with sw.Collector(envs, policy, replay, seed=seed) as collector:
            for _ in range(4):
                torch.rand(3)
                collector.collect(steps=50)
        return replay.digest()

    net = torch.nn.Linear(4, 2)
    one = digest(torch_policy(net))
    torch.manual_seed(99)
    assert digest(torch_policy(net)) == one
    assert digest(torch_policy(net), seed=6) != one
    seeded = [digest(torch_policy(net, seed=seed)) for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    policy, state = torch_policy(linear(3), seed=0), torch.get_rng_state()
    policy(SEEN, FIRST)
    assert torch.equal(torch.get_rng_state(), state)


def test_nested_observations_keep_their_dtypes_unless_one_is_asked_for() -> None:
    dtypes: list[Any] = []

    def module(seen: Any) -> Any:
        dtypes.append((seen["place"].dtype, seen["eye"]["left"].dtype))
        assert torch.is_inference_mode_enabled()
        return torch.zeros(len(seen["place"]), 4)

    for dtype, expected in ((None, torch.float64), (torch.float32, torch.float32)):
        play = Play("dict")
        policy = torch_policy(module, dtype=dtype)
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(play.envs, policy, replay, seed=0) as collector:
            collector.collect(steps=9)
        assert set(dtypes) == {(expected, torch.uint8)}
        dtypes.clear()


def test_invalid_outputs_and_arguments_are_refused() -> None:
    net = linear(3)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (
            lambda seen: (net(seen), net(seen)),
            {},
            r"'categorical'.*N=6.*\[6, 3\], \[6, 3\].*value='last'",
        ),
        (lambda seen: net(seen)[:1], {}, r"'categorical'.*N=6.*\[1, 3\]"),
        (lambda seen: net(seen)[:, 0], {}, r"'categorical'.*\[N, A\].*\[6\]"),
        (net, {"mode": "gaussian"}, r"'gaussian'.*N=6.*\[6, 3\]"),
        (net, {"value": "last"}, r"value='last'.*one tensor"),
        (net, {"value": net}, r"value.*\[N\] or \[N, 1\].*\[6, 3\]"),
    ]
    for module, options, message in cases:
        with pytest.raises(ValueError, match=message):
            torch_policy(module, **options)(SEEN, FIRST)
    with pytest.raises(TypeError, match=r"module: .*NoneType"):
        torch_policy(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mode.*categorical, greedy, gaussian, mean.*'beta'"):
        torch_policy(net, mode="beta")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"value.*'last'.*None.*got 3"):
        torch_policy(net, value=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seed.*got -1"):
        torch_policy(net, seed=-1)
    with pytest.raises(ValueError, match=r"device.*'cuda' or 'cpu'.*'tpu-7'"):
        torch_policy(net, device="tpu-7")


def same(some: Any, other: Any) -> bool:
    """Return whether tensors hold the numbers of arrays, nested in the same way."""
    if isinstance(other, np.ndarray):
        return isinstance(some, torch.Tensor) and bool((some.numpy() == other).all())
    if isinstance(other, dict):
        return set(some) == set(other) and all(same(some[key], other[key]) for key in other)
    if isinstance(other, tuple):
        return len(some) == len(other) and all(map(same, some, other))
    return bool(some == other)


@pytest.mark.parametrize("kind", ["vector", "dict", "stack-zero"])
def test_to_torch_shares_memory_with_batches_and_rollouts(kind: Any) -> None:
    replay = Play(kind).replay()
    rollout = Play(kind).collector().rollout(steps=9)
    rollout.advantages(0.9, 0.9)
    every = [
        replay.sample_transitions(8),
        replay.sample_sequences(8, 3, align="transition"),
        next(rollout.minibatches(8)),
        rollout,
    ]
    names = ("observation", "action", "reward", "terminated", "mask", "extras", "info", "advantage")
    for batch in every:
        made = to_torch(batch)
        assert type(made) is type(batch)
        for name in names:
            if hasattr(batch, name):
                assert same(getattr(made, name), getattr(batch, name)), name
        made.reward[0] = 77
        assert np.all(batch.reward[0] == 77)
    made = to_torch(rollout)
    assert same(made.bootstrap.observation, rollout.bootstrap.observation)
    assert made.rng is rollout.rng
    assert made.memory == {}
    assert isinstance(rollout.reward, np.ndarray)


def test_box_actions_of_any_shape_have_one_log_prob_each() -> None:
    space = gym.spaces.Box(-1, 1, (2, 3))
    policy = torch_policy(
        lambda seen: (torch.zeros(len(seen), 2, 3), torch.ones(len(seen), 2, 3)), mode="gaussian"
    )
    policy.begin(space, np.random.default_rng(0))
    action, extras = policy(SEEN, FIRST)
    assert (action.shape, extras["log_prob"].shape) == ((6, 2, 3), (6,))
    expected = (-0.5 * action**2 - 0.5 * np.log(2 * np.pi)).sum(axis=(1, 2))
    np.testing.assert_allclose(extras["log_prob"], expected, rtol=1e-5)
