"""Actions of any space become vectors and back: the Dreamer example's actions.py against loops."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor

import stepwell as sw
from dreamer.actions import Actions, Continuous, Discrete, actions_of
from support.chi_square import assert_shares
from support.envs.fakes import DictEnv

DRAWS = 20_000
BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))
SPACES: list[Any] = [
    spaces.Discrete(1),
    spaces.Discrete(6),
    spaces.Discrete(4, start=-2),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiDiscrete([3, 2, 5]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [0, -2]])),
    spaces.MultiDiscrete(np.array([2, 3]), dtype=np.dtype("int32")),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    BOX,
    spaces.Box(-3, 5, (2, 3), np.float64),
    spaces.Box(-1, 1, ()),
    spaces.Tuple((spaces.Discrete(3, start=1), BOX)),
    spaces.Dict({"z": spaces.Discrete(2), "a": BOX}),
    spaces.Dict(
        {
            "move": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Discrete(2))),
            "aim": spaces.Dict({"at": BOX, "fire": spaces.MultiBinary(2)}),
        }
    ),
]
each_space = pytest.mark.parametrize("space", SPACES, ids=str)
seeds = st.integers(0, 2**31)


def batch_of(space: spaces.Space[Any], *counts: int) -> Any:
    """Random actions with these leading axes, nested and typed as Gymnasium batches them."""
    for count in reversed(counts):
        space = batch_space(space, count)
    space.seed(0)
    return space.sample()


def slow_vector(space: spaces.Space[Any], action: Any) -> list[float]:
    """The vector of a single action, spelled out."""
    if isinstance(space, spaces.Dict):
        return [x for key in space for x in slow_vector(space[key], action[key])]
    if isinstance(space, spaces.Tuple):
        pairs = zip(space, action, strict=True)
        return [x for part, chunk in pairs for x in slow_vector(part, chunk)]
    if isinstance(space, spaces.Discrete):
        return [float(k == action - space.start) for k in range(int(space.n))]
    if isinstance(space, spaces.MultiDiscrete):
        places = np.ndindex(space.nvec.shape)
        parts = [spaces.Discrete(int(space.nvec[at]), start=int(space.start[at])) for at in places]
        choices = np.ravel(action)
        return [x for part, one in zip(parts, choices, strict=True) for x in slow_vector(part, one)]
    if isinstance(space, spaces.MultiBinary):
        return [x for bit in np.ravel(action) for x in (float(bit == 0), float(bit == 1))]
    assert isinstance(space, spaces.Box)
    rows = zip(np.ravel(action), space.low.flatten(), space.high.flatten(), strict=True)
    return [2 * (float(x) - float(low)) / (float(high) - float(low)) - 1 for x, low, high in rows]


def same(left: Any, right: Any) -> None:
    """Nested batches are equal: structure, types, shapes, and numbers but for rounding."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    else:
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert np.allclose(left, right, rtol=1e-5, atol=1e-5)


def single(batch: Any, *at: int) -> Any:
    """One action out of a batch."""
    if isinstance(batch, dict):
        return {key: single(part, *at) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(single(part, *at) for part in batch)
    return np.asarray(batch[at])


# Spaces


@each_space
def test_the_vector_of_an_action_is_that_of_its_parts_in_order(space: spaces.Space[Any]) -> None:
    batch = batch_of(space, 7)
    vectors = Actions(space).from_env(batch)
    assert vectors.dtype == torch.float32
    for row in range(7):
        wanted = slow_vector(space, single(batch, row))
        assert vectors[row].tolist() == pytest.approx(wanted, abs=1e-5)


@each_space
def test_a_replay_s_two_leading_axes_become_those_of_the_vectors(space: spaces.Space[Any]) -> None:
    actions, batch = Actions(space), batch_of(space, 2, 3)
    vectors = actions.from_env(batch, 2)
    assert vectors.shape == (2, 3, actions.output_dim)
    for b in range(2):
        for t in range(3):
            wanted = slow_vector(space, single(batch, b, t))
            assert vectors[b, t].tolist() == pytest.approx(wanted, abs=1e-5)


@each_space
def test_vectors_become_the_actions_again_that_they_were_made_of(space: spaces.Space[Any]) -> None:
    actions, batch = Actions(space), batch_of(space, 7)
    same(actions.to_env(actions.from_env(batch)), batch)


@each_space
def test_what_an_actor_samples_is_an_action_of_the_space(space: spaces.Space[Any]) -> None:
    torch.manual_seed(0)
    actions = Actions(space)
    logits = 3 * torch.randn(50, actions.input_dim)
    vectors, dist = actions.sample(logits)
    assert vectors.shape == dist.mode().shape == (50, actions.output_dim)
    for chosen in (vectors, dist.mode()):
        batch = actions.to_env(chosen)
        for row in range(50):
            assert space.contains(single(batch, row))
    assert actions.clamp(vectors).abs().max() <= 1
    seen = actions.from_env(actions.to_env(vectors))
    assert torch.allclose(seen, actions.clamp(vectors), atol=1e-5)


def test_actions_of_a_space_are_its_parts_in_the_space_s_order() -> None:
    inner = spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[4, 5]), spaces.Discrete(6, start=7)))
    space = spaces.Dict([("z", inner), ("a", BOX), ("m", spaces.MultiBinary(1))])
    z0, z1, z2, a, m = actions_of(space)
    assert [(part.input_dim, part.output_dim, part.num_actions) for part in (z0, z1, z2, a, m)] == [
        (2, 2, 1),
        (3, 3, 1),
        (6, 6, 1),
        (4, 2, 2),
        (2, 2, 1),
    ]
    assert [part.start for part in (z0, z1, z2, m) if isinstance(part, Discrete)] == [4, 5, 7, 0]
    assert isinstance(a, Continuous)
    actions = Actions(space)
    assert (actions.input_dim, actions.output_dim) == (17, 15)
    assert len(actions.parts) == 5


ENDLESS = spaces.Box(-np.inf, np.inf, (2,))
BARELY = spaces.Box(-3.4e38, 3.4e38, (2,))  # its width is not a float32


@pytest.mark.parametrize("make", [Actions, actions_of])
@pytest.mark.parametrize("space", [ENDLESS, spaces.Tuple((BOX, ENDLESS)), BARELY], ids=str)
def test_a_box_without_finite_bounds_is_refused(space: spaces.Space[Any], make: Any) -> None:
    with pytest.raises(
        ValueError, match=r"action space: .*finite (?s:.)*got (?s:.)*TransformAction"
    ):
        make(space)


@pytest.mark.parametrize("make", [Actions, actions_of])
@pytest.mark.parametrize(
    "space",
    [spaces.Text(3), spaces.Box(0, 255, (2,), np.uint8), spaces.Dict({"a": spaces.Text(3)})],
    ids=str,
)
def test_other_action_spaces_are_refused(space: spaces.Space[Any], make: Any) -> None:
    with pytest.raises(ValueError, match=r"action space: .*Discrete, .* got (Text|Box)\("):
        make(space)


@each_space
def test_tensors_arrays_that_are_read_only_and_flipped_ones_are_taken(
    space: spaces.Space[Any],
) -> None:
    actions, batch = Actions(space), batch_of(space, 4)
    wanted = actions.from_env(batch)
    assert torch.equal(actions.from_env(mapped(torch.from_numpy, batch)), wanted)

    def locked(array: np.ndarray) -> np.ndarray:
        flipped = array[::-1]
        flipped.flags.writeable = False
        return flipped

    assert torch.equal(actions.from_env(mapped(locked, batch)), wanted.flip(0))


def mapped(function: Any, batch: Any) -> Any:
    """The batch with the function applied to each array."""
    if isinstance(batch, dict):
        return {key: mapped(function, part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(mapped(function, part) for part in batch)
    return function(batch)


@each_space
def test_vectors_lie_where_the_tensors_lie_that_they_are_made_of(space: spaces.Space[Any]) -> None:
    batch = mapped(lambda array: torch.from_numpy(array).to("meta"), batch_of(space, 4))
    assert Actions(space).from_env(batch).device.type == "meta"


@each_space
def test_what_the_envs_get_is_theirs_to_change(space: spaces.Space[Any]) -> None:
    actions = Actions(space)
    vectors = actions.from_env(batch_of(space, 4))
    kept = vectors.clone()

    def spoil(array: np.ndarray) -> None:
        array[...] = 0

    mapped(spoil, actions.to_env(vectors))
    assert torch.equal(vectors, kept)


# One choice of several


def test_a_discrete_action_is_simplified_to_its_number_and_constructed_from_it() -> None:
    action = Discrete(3, start=5)
    numbers = action.simplify(torch.eye(3))
    assert numbers.dtype == torch.int64
    assert numbers.tolist() == [[5], [6], [7]]
    assert torch.equal(action.construct(numbers), torch.eye(3))
    assert torch.equal(action.clamp(torch.eye(3)), torch.eye(3))


def test_a_number_outside_the_choices_is_the_zero_vector() -> None:
    assert Discrete(3, start=5).construct(torch.tensor([[0], [8]])).tolist() == [[0.0] * 3] * 2


def slow_probs(logits: list[float], share: float) -> list[float]:
    weights = [math.exp(one) for one in logits]
    return [(1 - share) * one / sum(weights) + share / len(weights) for one in weights]


@given(seeds, st.sampled_from([1, 2, 6, 20]), st.sampled_from([0.01, 0.5]))
def test_a_discrete_action_has_the_softmax_probabilities_with_a_uniform_share(
    seed: int, n: int, share: float
) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, n)))
    dist = Discrete(n, share=share).dist(logits)
    for row in range(3):
        probs = slow_probs(logits[row].tolist(), share)
        entropy = -sum(p * math.log(p) for p in probs)
        assert dist.entropy()[row].item() == pytest.approx(entropy, abs=1e-9)
        assert dist.mode()[row].argmax() == probs.index(max(probs))
    for k, one_hot in enumerate(torch.eye(n)):
        wanted = [math.log(slow_probs(logits[row].tolist(), share)[k]) for row in range(3)]
        assert dist.log_prob(one_hot.expand(3, n)).tolist() == pytest.approx(wanted)


def test_an_actor_of_a_discrete_action_keeps_one_percent_of_chance() -> None:
    dist = Actions(spaces.Discrete(2)).dist(torch.tensor([[0.0, 1_000.0]]))
    rare = dist.log_prob(torch.tensor([[1.0, 0.0]])).exp()
    assert rare.item() == pytest.approx(0.005, rel=1e-4)


def test_discrete_actions_come_as_often_as_their_probabilities_say() -> None:
    torch.manual_seed(0)
    logits = [0.0, 1.0, -2.0]
    drawn = Discrete(3).dist(torch.tensor(logits).expand(DRAWS, 3)).sample()
    assert drawn.sum(-1).eq(1).all()
    assert_shares(Counter(drawn.argmax(-1).tolist()), dict(enumerate(slow_probs(logits, 0.01))))


# Numbers between bounds


def test_numbers_are_scaled_to_the_bounds_and_clipped_into_them() -> None:
    action = Continuous(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))
    vectors = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [-7.0, 7.0], [0.5, -0.5]])
    wanted = [[-1.0, 0.0], [0.0, 5.0], [1.0, 10.0], [-1.0, 10.0], [0.5, 2.5]]
    assert action.simplify(vectors).tolist() == wanted
    assert torch.equal(action.construct(action.simplify(vectors)), action.clamp(vectors))
    assert action.clamp(vectors)[3].tolist() == [-1.0, 1.0]


@given(st.floats(-1e6, 1e6, width=32), st.floats(0, 1e6, width=32), st.floats(-2, 2, width=32))
def test_no_number_ever_leaves_its_bounds(low: float, width: float, number: float) -> None:
    for dtype in (np.float32, np.float64):
        bounds = np.array([low], dtype), np.array([low + width], dtype)
        action = Continuous(*bounds)
        taken = action.simplify(torch.tensor([[number]]))
        assert taken.numpy().dtype == dtype
        assert bounds[0] <= taken.numpy()[0] <= bounds[1]
        if abs(number) >= 1:
            assert taken.numpy()[0] == bounds[int(number > 0)]
        back = action.construct(taken)
        assert back.dtype == torch.float32
        assert back.abs().max() <= 1


def test_numbers_have_the_dtype_of_the_bounds_whatever_that_of_the_vectors() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        action = Continuous(np.zeros(2, dtype), np.ones(2, dtype))
        for vectors in (torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.float64)):
            assert action.simplify(vectors).numpy().dtype == dtype
            assert action.construct(vectors).dtype == torch.float32


def test_numbers_of_others_that_lie_beyond_the_bounds_count_as_the_bounds() -> None:
    action = Continuous(np.zeros(1), np.ones(1))
    assert action.construct(torch.tensor([[-3.0], [7.0]])).tolist() == [[-1.0], [1.0]]


def test_a_number_that_cannot_be_chosen_is_always_its_bound() -> None:
    action = Continuous(np.array([2.0, 0.0]), np.array([2.0, 1.0]))
    assert action.simplify(torch.tensor([[0.3, 0.0]])).tolist() == [[2.0, 0.5]]
    assert action.construct(torch.tensor([[2.0, 0.5]])).tolist() == [[-1.0, 0.0]]


def test_the_bounds_of_a_space_are_not_held_on_to() -> None:
    low, high = np.zeros(1), np.ones(1)
    action = Continuous(low, high)
    low[:], high[:] = -9, 9
    assert action.simplify(torch.tensor([[-1.0], [1.0]])).tolist() == [[0.0], [1.0]]


def slow_normal(logits: list[float]) -> list[tuple[float, float]]:
    """Mean and standard deviation of each number."""
    half = len(logits) // 2
    means = [math.tanh(one) for one in logits[:half]]
    stds = [0.9 / (1 + math.exp(-(one + 2.0))) + 0.1 for one in logits[half:]]
    return list(zip(means, stds, strict=True))


@given(seeds, st.integers(1, 4))
def test_the_density_of_numbers_is_that_of_bounded_normals(seed: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(3 * generator.normal(size=(2, 3, 2 * size)))
    numbers = torch.from_numpy(2 * generator.normal(size=(2, 3, size)))
    dist = Continuous(np.zeros(size), np.ones(size)).dist(logits)
    for row in np.ndindex(2, 3):
        normals = slow_normal(logits[row].tolist())
        densities = [
            -((x - mean) ** 2) / (2 * std**2) - math.log(std * math.sqrt(2 * math.pi))
            for x, (mean, std) in zip(numbers[row].tolist(), normals, strict=True)
        ]
        entropy = sum(math.log(std * math.sqrt(2 * math.pi * math.e)) for _, std in normals)
        assert dist.log_prob(numbers)[row].item() == pytest.approx(sum(densities))
        assert dist.entropy()[row].item() == pytest.approx(entropy)
        assert dist.mode()[row].tolist() == pytest.approx([mean for mean, _ in normals])


def test_the_spread_of_numbers_stays_between_a_tenth_and_one() -> None:
    extremes = torch.tensor([[0.0, -100.0], [0.0, 0.0], [0.0, 100.0]])
    dist = Continuous(np.zeros(1), np.ones(1)).dist(extremes)
    spreads = (dist.entropy() - 0.5 * math.log(2 * math.pi * math.e)).exp()
    assert spreads.tolist() == pytest.approx([0.1, 0.1 + 0.9 / (1 + math.exp(-2)), 1.0])


def test_samples_of_numbers_have_the_mean_and_spread_and_are_not_clipped() -> None:
    torch.manual_seed(0)
    logits = [0.5, -1.0, 0.0, -3.0]
    drawn = Continuous(np.zeros(2), np.ones(2)).dist(torch.tensor(logits).expand(DRAWS, 4)).sample()
    for k, (mean, std) in enumerate(slow_normal(logits)):
        assert drawn[:, k].mean().item() == pytest.approx(mean, abs=5 * std / math.sqrt(DRAWS))
        assert drawn[:, k].std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * DRAWS))
    assert drawn.max() > 1
    assert abs(np.corrcoef(drawn.T.numpy())[0, 1]) < 5 / math.sqrt(DRAWS)


# Several together


@each_space
def test_log_probabilities_and_entropies_of_the_parts_add_up(space: spaces.Space[Any]) -> None:
    torch.manual_seed(0)
    actions = Actions(space)
    logits = torch.randn(2, 4, actions.input_dim)
    vectors, dist = actions.sample(logits)
    log_prob, entropy, modes = torch.zeros(2, 4), torch.zeros(2, 4), []
    at = place = 0
    for part in actions.parts:
        own = part.dist(logits[..., at : at + part.input_dim])
        log_prob += own.log_prob(vectors[..., place : place + part.output_dim])
        entropy += own.entropy()
        modes.append(own.mode())
        at, place = at + part.input_dim, place + part.output_dim
    assert (at, place) == (actions.input_dim, actions.output_dim)
    assert torch.allclose(dist.log_prob(vectors), log_prob, atol=1e-5)
    assert torch.allclose(dist.entropy(), entropy, atol=1e-5)
    assert torch.equal(dist.mode(), torch.cat(modes, -1))


@each_space
def test_only_log_probabilities_and_entropies_have_a_gradient(space: spaces.Space[Any]) -> None:
    actions = Actions(space)
    logits = torch.randn(3, actions.input_dim, requires_grad=True)
    vectors, dist = actions.sample(logits)
    assert not vectors.requires_grad
    assert not dist.mode().requires_grad
    (slope,) = torch.autograd.grad(dist.log_prob(vectors).sum() + dist.entropy().sum(), logits)
    assert slope.isfinite().all()
    assert actions.input_dim == 1 or (slope != 0).any(0).all()


def test_parts_are_drawn_independently() -> None:
    torch.manual_seed(0)
    actions = Actions(spaces.MultiDiscrete([2, 3]))
    logits = [0.5, 0.0, 0.0, 1.0, -1.0]
    batch = actions.to_env(actions.sample(torch.tensor(logits).expand(DRAWS, 5))[0])
    first, second = slow_probs(logits[:2], 0.01), slow_probs(logits[2:], 0.01)
    wanted = {(i, k): first[i] * second[k] for i in range(2) for k in range(3)}
    assert_shares(Counter((int(i), int(k)) for i, k in batch), wanted)


def test_only_numbers_are_clamped() -> None:
    actions = Actions(spaces.Tuple((spaces.Discrete(2), BOX)))
    assert actions.clamp(torch.tensor([[0.0, 1.0, -3.0, 3.0]])).tolist() == [[0.0, 1.0, -1.0, 1.0]]
    logits = torch.randn(2, 3)
    assert Actions(spaces.Discrete(3)).clamp(logits) is logits


# With envs and a replay


def test_envs_and_a_replay_take_and_give_back_nested_actions(tmp_path: Path) -> None:
    actions = Actions(DictEnv().action_space)
    torch.manual_seed(0)
    fed: list[Tensor] = []

    def policy(observation: Any, is_first: np.ndarray) -> Any:
        vectors, _ = actions.sample(torch.zeros(len(is_first), actions.input_dim))
        fed.append(actions.clamp(vectors))
        return actions.to_env(vectors)

    envs = gym.vector.SyncVectorEnv([lambda: DictEnv(1_000)])
    with sw.SequenceReplayBuffer(tmp_path, seed=0) as replay:
        with sw.Collector(envs, policy, replay, seed=0) as collector:
            collector.collect(steps=10)
        batch = replay.sample_sequences(3, length=10, align="transition")  # all there is
        for one in (batch, sw.bridges.to_torch(batch)):
            vectors = actions.from_env(one.action, 2)
            assert torch.allclose(vectors, torch.cat(fed)[:10].expand(3, -1, -1), atol=1e-6)
