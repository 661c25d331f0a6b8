"""Observations of any space become vectors and images: observations.py against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

from dreamer.observations import Observations

VECTORS: list[spaces.Space[Any]] = [
    spaces.Box(-np.inf, np.inf, (4,)),
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(-5, 5, (), np.int64),
    spaces.Box(0, 255, (128,), np.uint8),  # Atari's RAM
    spaces.Box(0, 255, (7, 7, 3), np.uint8),  # a view of MiniGrid: numbers, not pixels
    spaces.Box(0, 255, (1, 84), np.uint8),
    spaces.Box(0, 255, (2, 7, 7, 3), np.uint8),
    spaces.Box(0, 255, (3, 8, 8)),  # float32
    spaces.Discrete(5),
    spaces.Discrete(4, start=-2),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,)))),
    spaces.Dict(
        {
            "z": spaces.Discrete(2),
            "a": spaces.Box(-9, 9, (2, 2)),
            "m": spaces.Tuple((spaces.MultiBinary(2), spaces.Dict({"x": spaces.Discrete(3)}))),
        }
    ),
]
# Shape of the space, channels first, and where (c, y, x) is in an observation.
IMAGES: list[tuple[tuple[int, ...], tuple[int, int, int], Any]] = [
    ((64, 64, 3), (3, 64, 64), lambda c, y, x: (y, x, c)),
    ((30, 20, 3), (3, 30, 20), lambda c, y, x: (y, x, c)),
    ((20, 30, 3), (3, 20, 30), lambda c, y, x: (y, x, c)),
    ((42, 42, 1), (1, 42, 42), lambda c, y, x: (y, x, c)),
    ((8, 8, 4), (4, 8, 8), lambda c, y, x: (y, x, c)),
    ((3, 64, 64), (3, 64, 64), lambda c, y, x: (c, y, x)),
    ((4, 30, 20), (4, 30, 20), lambda c, y, x: (c, y, x)),
    ((1, 20, 30), (1, 20, 30), lambda c, y, x: (c, y, x)),
    ((20, 30, 12), (12, 20, 30), lambda c, y, x: (y, x, c)),
    ((12, 20, 30), (12, 20, 30), lambda c, y, x: (c, y, x)),
    ((42, 30), (1, 42, 30), lambda c, y, x: (y, x)),
    # Stacks (k, H, W, C): the oldest picture's channels come first.
    ((1, 64, 64, 3), (3, 64, 64), lambda c, y, x: (0, y, x, c)),
    ((4, 30, 20, 1), (4, 30, 20), lambda c, y, x: (c, y, x, 0)),
    ((2, 9, 8, 3), (6, 9, 8), lambda c, y, x: (c // 3, y, x, c % 3)),
]
each_vector = pytest.mark.parametrize("space", VECTORS, ids=str)
each_image = pytest.mark.parametrize(("shape", "wanted", "where"), IMAGES)


def batch_of(space: spaces.Space[Any], *counts: int) -> Any:
    """Random observations with these leading axes, nested and typed as Gymnasium batches them."""
    for count in reversed(counts):
        space = batch_space(space, count)
    space.seed(0)
    return space.sample()


def part(batch: Any, index: tuple[int, ...]) -> Any:
    """One observation of a batch."""
    if isinstance(batch, dict):
        return {key: part(inner, index) for key, inner in batch.items()}
    if isinstance(batch, tuple):
        return tuple(part(inner, index) for inner in batch)
    return batch[index]


def tensors(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: tensors(inner) for key, inner in batch.items()}
    if isinstance(batch, tuple):
        return tuple(tensors(inner) for inner in batch)
    return torch.as_tensor(batch)


@each_vector
@pytest.mark.parametrize("counts", [(1,), (3,), (2, 3)], ids=str)
def test_vectors_are_what_gymnasium_flattens_each_observation_to(
    space: spaces.Space[Any], counts: tuple[int, ...]
) -> None:
    """gymnasium.spaces.flatten: one-hot where discrete, parts in the space's order."""
    observations, batch = Observations(space), batch_of(space, *counts)
    seen = observations(batch)
    assert observations.shapes == (spaces.flatdim(space), ())
    assert seen.images == ()
    assert seen.vector.shape == (*counts, spaces.flatdim(space))
    assert seen.vector.dtype == torch.float32
    for index in np.ndindex(counts):
        alone = spaces.flatten(space, part(batch, index))
        assert np.array_equal(seen.vector[index], np.asarray(alone, np.float32))


@each_vector
def test_tensors_are_taken_like_arrays(space: spaces.Space[Any]) -> None:
    observations, batch = Observations(space), batch_of(space, 2, 3)
    assert torch.equal(observations(tensors(batch)).vector, observations(batch).vector)


@each_image
@pytest.mark.parametrize("counts", [(1,), (3,), (2, 2)], ids=str)
def test_images_of_any_layout_are_channels_first_and_around_0(
    shape: tuple[int, ...], wanted: tuple[int, int, int], where: Any, counts: tuple[int, ...]
) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    observations, batch = Observations(space), batch_of(space, *counts)
    assert observations.shapes == (0, (wanted,))
    for given in (batch, tensors(batch)):
        seen = observations(given)
        (image,) = seen.images
        assert image.shape == (*counts, *wanted)
        assert image.dtype == torch.float32
        assert seen.vector.shape == (*counts, 0)
        rng = np.random.default_rng(0)
        for index in np.ndindex(counts):
            for _ in range(50):
                at = tuple(int(rng.integers(side)) for side in wanted)
                pixel = int(batch[(*index, *where(*at))])
                assert float(image[index][at]) == pytest.approx(pixel / 255 - 0.5, abs=1e-6)


def test_images_reach_from_minus_a_half_to_a_half() -> None:
    batch = np.zeros((1, 8, 8), np.uint8)
    batch[0, 3] = 255
    (image,) = Observations(spaces.Box(0, 255, (8, 8), np.uint8))(batch).images
    assert [image.min().item(), image.max().item()] == [-0.5, 0.5]


def test_images_and_numbers_of_one_observation_are_kept_apart_and_in_order() -> None:
    space = spaces.Dict(
        {
            "b": spaces.Box(0, 255, (9, 8), np.uint8),
            "a": spaces.Box(0, 255, (3, 10, 12), np.uint8),
            "z": spaces.Box(-1, 1, (2,)),
            "k": spaces.Discrete(3),
        }
    )
    observations, batch = Observations(space), batch_of(space, 2, 5)
    assert observations.shapes == (5, ((3, 10, 12), (1, 9, 8)))  # a, b; k, z
    seen = observations(batch)
    one_hot = np.eye(3)[batch["k"]]
    assert np.allclose(seen.vector, np.concatenate([one_hot, batch["z"]], -1))
    assert np.allclose(seen.images[0], batch["a"] / 255 - 0.5, atol=1e-6)
    assert np.allclose(seen.images[1], batch["b"][:, :, None] / 255 - 0.5, atol=1e-6)


def test_what_it_is_given_stays_as_it_is() -> None:
    space = spaces.Dict(
        {"a": spaces.Box(0, 255, (8, 8), np.uint8), "b": spaces.Box(-1, 1, (2,), np.float32)}
    )
    observations, batch = Observations(space), batch_of(space, 3)
    before = {key: value.copy() for key, value in batch.items()}
    seen = observations(batch)
    seen.vector.zero_()
    seen.images[0].zero_()
    assert all(np.array_equal(batch[key], before[key]) for key in batch)


def test_several_choices_are_one_hot_each() -> None:
    sizes, starts = np.array([[2, 3], [4, 2]]), np.array([[0, 5], [0, 0]])
    space = spaces.MultiDiscrete(sizes, start=starts)
    observations = Observations(space)
    assert observations.shapes == (11, ())
    batch = np.array([[[[1, 5], [3, 0]], [[0, 7], [2, 1]]]])  # [1, 2, 2, 2]
    hot = [np.eye(n)[[i, j]] for n, i, j in ((2, 1, 0), (3, 0, 2), (4, 3, 2), (2, 0, 1))]
    assert np.array_equal(observations(batch).vector, np.concatenate(hot, -1)[None])


def test_arrays_that_must_not_be_written_are_taken_without_a_warning() -> None:
    batch = np.zeros((3, 2), np.float32)
    batch.flags.writeable = False
    observations = Observations(spaces.Box(-1, 1, (2,), np.float32))
    observations(batch).vector.add_(1)
    assert not batch.any()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))}),
    ],
    ids=str,
)
def test_other_spaces_are_refused_by_name(space: spaces.Space[Any]) -> None:
    name = "Text" if isinstance(space, spaces.Dict) else type(space).__name__
    with pytest.raises(TypeError, match=rf"observation space .*Box, Discrete.*got {name};"):
        Observations(space)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_on_a_gpu_all_parts_are_there() -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 255, (8, 8), np.uint8)))
    device = torch.device("cuda")
    for kinds in (space, spaces.Box(0, 255, (8, 8), np.uint8)):
        seen = Observations(kinds)(batch_of(kinds, 2), device)
        assert all(tensor.device.type == "cuda" for tensor in (seen.vector, *seen.images))
