"""Actions and observations of any space as the networks take them, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

from dreamer.actions import Actions, Continuous
from dreamer.observations import Observations

BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))
ENDLESS = spaces.Box(-np.inf, np.inf, (4,))
ALL: dict[str, spaces.Space[Any]] = {
    "move": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Discrete(2, start=1))),
    "aim": spaces.Dict({"at": BOX, "fire": spaces.MultiBinary(2)}),
}
ACTIONS: list[spaces.Space[Any]] = [
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [0, -2]])),
    spaces.MultiBinary((2, 2)),
    spaces.Box(-3, 5, (2, 3), np.float64),
    spaces.Dict(ALL),
]
VECTORS: list[Any] = [
    ENDLESS,
    spaces.Box(0, 255, (7, 7, 3), np.uint8),  # a view of MiniGrid: numbers, not pixels
    spaces.Discrete(4, start=-2),
    spaces.Dict(ALL | {"b": spaces.Box(-9, 9, (2, 2), np.int64)}),
]
# Shape of the space, channels first, and where (c, y, x) is in an observation.
IMAGES: list[tuple[tuple[int, ...], tuple[int, int, int], Any]] = [
    ((30, 20, 3), (3, 30, 20), lambda c, y, x: (y, x, c)),
    ((4, 30, 20), (4, 30, 20), lambda c, y, x: (c, y, x)),
    ((42, 30), (1, 42, 30), lambda c, y, x: (y, x)),
    # A stack (k, H, W, C): the oldest picture's channels come first.
    ((2, 9, 8, 3), (6, 9, 8), lambda c, y, x: (c // 3, y, x, c % 3)),
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def batch_of(space: spaces.Space[Any], count: int) -> Any:
    """Random values, nested and typed as Gymnasium batches them."""
    many = batch_space(space, count)
    many.seed(0)
    return many.sample()


def test_the_vector_of_an_action_is_one_hot_for_each_choice_and_scaled_for_each_number() -> None:
    move = np.array([[0, 2]]), np.array([2])
    aim = {"at": np.array([[0.5, 2.5]], np.float32), "fire": np.array([[0, 1]], np.int8)}
    vector = Actions(spaces.Dict(ALL)).from_env({"aim": aim, "move": move})
    # at, fire, fire; move, move, move: a Dict's parts are in the order of their names
    assert vector.tolist() == [[0.5, -0.5, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1]]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_become_vectors_and_the_same_actions_again(space: spaces.Space[Any]) -> None:
    """Those that come from envs, and those that an actor samples."""
    actions, many = Actions(space), batch_space(space, 50)
    batch = batch_of(space, 50)
    vectors, dist = actions.sample(3 * torch.randn(50, actions.input_dim))
    back = actions.to_env(actions.from_env(batch))
    again_flat, flat = (np.asarray(spaces.flatten(many, one)) for one in (back, batch))
    assert np.allclose(again_flat, flat, 1e-5, 1e-5)
    for chosen in (actions.from_env(batch), vectors, dist.mode()):
        assert many.contains(actions.to_env(chosen))
        again = actions.from_env(actions.to_env(chosen))
        assert torch.allclose(again, actions.clamp(chosen), atol=1e-5)


def test_log_probabilities_and_entropies_of_several_choices_add_up() -> None:
    actions, logits = Actions(spaces.MultiDiscrete([2, 3])), torch.randn(5)
    dist = actions.dist(logits)
    first, second = ((0.99 * part.softmax(-1) + 0.01 / len(part)) for part in logits.split([2, 3]))
    joint = first[:, None] * second
    for i, k in np.ndindex(2, 3):
        vector = torch.cat([torch.eye(2)[i], torch.eye(3)[k]])
        assert dist.log_prob(vector).exp().item() == pytest.approx(joint[i, k].item(), rel=1e-4)
    assert dist.entropy().item() == pytest.approx(-(joint * joint.log()).sum().item(), rel=1e-4)
    assert actions.to_env(dist.mode()[None]).tolist() == [[first.argmax(), second.argmax()]]


@given(st.integers(0, 2**31), st.integers(1, 4))
def test_the_density_of_numbers_is_that_of_bounded_normals(seed: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(3 * generator.normal(size=2 * size))
    numbers = torch.from_numpy(2 * generator.normal(size=size))
    dist = Continuous(np.zeros(size), np.ones(size)).dist(logits)
    density = entropy = 0.0
    for k, x in enumerate(numbers.tolist()):
        mean = math.tanh(logits[k])
        std = 0.9 / (1 + math.exp(-(logits[size + k] + 2.0))) + 0.1
        density -= (x - mean) ** 2 / (2 * std**2) + math.log(std * math.sqrt(2 * math.pi))
        entropy += math.log(std * math.sqrt(2 * math.pi * math.e))
        assert dist.mode()[k].item() == pytest.approx(mean)
    assert dist.log_prob(numbers).item() == pytest.approx(density)
    assert dist.entropy().item() == pytest.approx(entropy)


@pytest.mark.parametrize("space", VECTORS, ids=str)
def test_vectors_are_what_gymnasium_flattens_each_observation_to(space: spaces.Space[Any]) -> None:
    observations, batch = Observations(space), batch_of(space, 5)
    seen = observations(batch)
    assert observations.shapes == (spaces.flatdim(space), ())
    assert seen.images == ()
    wanted = [spaces.flatten(space, one) for one in iterate(batch_space(space, 5), batch)]
    assert np.array_equal(seen.vector, np.array(wanted, np.float32))


@pytest.mark.parametrize(("shape", "wanted", "where"), IMAGES)
def test_images_of_any_layout_are_channels_first_and_around_0(
    shape: tuple[int, ...], wanted: tuple[int, int, int], where: Any
) -> None:
    space = spaces.Dict({"it": spaces.Box(0, 255, shape, np.uint8), "n": spaces.Discrete(3)})
    observations, batch = Observations(space), batch_of(space, 4)
    assert observations.shapes == (3, (wanted,))
    seen = observations(batch)
    assert np.array_equal(seen.vector, np.eye(3)[batch["n"]])
    rng = np.random.default_rng(0)
    for row in [*range(4)] * 20:
        at = tuple(int(rng.integers(side)) for side in wanted)
        pixel = int(batch["it"][(row, *where(*at))])
        assert seen.images[0][row][at].item() == pytest.approx(pixel / 255 - 0.5, abs=1e-6)


def test_other_spaces_are_refused() -> None:
    with pytest.raises(TypeError, match=r"observation space .*Box, Discrete.*got Text;"):
        Observations(spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))}))
    for space, words in ((ENDLESS, "finite .*"), (spaces.Text(3), "Discrete, .*")):
        with pytest.raises(ValueError, match=rf"(?s)action space: .*{words}got .*TransformAction"):
            Actions(spaces.Tuple((BOX, space)))
