"""The networks between observations and numbers: their sizes, and what they compute, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor, nn

from dreamer.nets import Decoder, Encoder, Seen, Shapes, mlp, zero_last
from support.examples import examples
from support.libraries.tiny_dreamers import stir, tiny

SHAPES = [
    Shapes(4, ()),
    Shapes(0, ((3, 64, 64),)),
    Shapes(0, ((1, 42, 42),)),
    Shapes(0, ((3, 30, 20),)),
    Shapes(0, ((2, 20, 30),)),
    Shapes(0, ((1, 8, 8),)),
    Shapes(3, ((1, 9, 15), (3, 16, 11))),
]
each_shapes = pytest.mark.parametrize("shapes", SHAPES, ids=str)
sides = st.integers(8, 70)


def seen_of(shapes: Shapes, *leading: int) -> Seen:
    """Random observations of these shapes."""
    images = (torch.rand(*leading, *shape) - 0.5 for shape in shapes.images)
    return Seen(3 * torch.randn(*leading, shapes.vector), tuple(images))


def row(seen: Seen, index: int) -> Seen:
    return Seen(seen.vector[index], tuple(image[index] for image in seen.images))


def encoder(shapes: Shapes, **numbers: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(shapes, tiny(**numbers))


def decoder(shapes: Shapes, **numbers: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(7, shapes, tiny(**numbers))


def slow_mlp(layers: nn.Sequential, x: np.ndarray) -> np.ndarray:
    """Linear, normalised to mean 0 and deviation 1, SiLU; x [D] of float64."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            x = layer.weight.detach().double().numpy() @ x
            x = x if layer.bias is None else x + layer.bias.detach().double().numpy()
        elif isinstance(layer, nn.LayerNorm):
            x = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + layer.eps)
            x = x * layer.weight.detach().double().numpy() + layer.bias.detach().double().numpy()
        else:
            assert isinstance(layer, nn.SiLU)
            x = x / (1 + np.exp(-x))
    return x


def slow_symlog(x: np.ndarray) -> np.ndarray:
    return np.array([np.sign(one) * np.log(1 + abs(one)) for one in x])


@pytest.mark.parametrize("blocks", [0, 1, 3])
@pytest.mark.parametrize("outputs", [None, 5])
def test_mlp_has_normalised_hidden_layers_and_a_linear_one_behind(
    blocks: int, outputs: int | None
) -> None:
    layers = mlp(3, 8, blocks, outputs)
    stir(layers)
    kinds = [nn.Linear, nn.LayerNorm, nn.SiLU] * blocks + [nn.Linear] * (outputs is not None)
    assert [type(layer) for layer in layers] == kinds
    x = torch.randn(3)
    assert np.allclose(layers(x).detach(), slow_mlp(layers, x.double().numpy()), atol=1e-5)


def test_zero_last_gives_0_at_first_and_can_learn() -> None:
    layers = zero_last(mlp(3, 8, 2, 4))
    found = layers(torch.randn(50, 3))
    assert not found.any()
    torch.autograd.backward(found.sum())
    last: Any = layers[-1]
    assert last.weight.grad.abs().sum() > 0


@each_shapes
@pytest.mark.parametrize("leading", [(1,), (5,), (2, 3)], ids=str)
def test_encoder_gives_as_many_numbers_as_it_says(shapes: Shapes, leading: tuple[int, ...]) -> None:
    net = encoder(shapes)
    found = net(seen_of(shapes, *leading))
    assert found.shape == (*leading, net.outputs)
    assert found.isfinite().all()


@each_shapes
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_config_s_blocks_fit_all_shapes(shapes: Shapes, blocks: int) -> None:
    net = encoder(shapes, blocks=blocks)
    assert net(seen_of(shapes, 2)).shape == (2, net.outputs)
    decoder(shapes, blocks=blocks).loss(torch.randn(2, 7), seen_of(shapes, 2))


@each_shapes
def test_encoder_sees_each_row_alone(shapes: Shapes) -> None:
    net, seen = encoder(shapes), seen_of(shapes, 4)
    found = net(seen)
    for index in range(4):
        alone = net(row(seen, index))
        assert torch.allclose(found[index], alone, atol=1e-5)


def test_encoder_takes_symlog_of_vectors() -> None:
    net = encoder(Shapes(3, ()), blocks=2)
    stir(net)
    x = torch.tensor([1e6, -2.0, 0.1])
    wanted = slow_mlp(net.vector, slow_symlog(x.double().numpy()))  # type: ignore[arg-type]
    assert np.allclose(net(Seen(x, ())).detach(), wanted, atol=1e-4)


def test_encoder_output_depends_on_each_image_and_each_vector() -> None:
    """Each part of what is observed changes what comes out, and only its own part of that."""
    shapes = Shapes(2, ((1, 8, 8), (1, 8, 8)))
    net, seen = encoder(shapes), seen_of(shapes, 1)
    before = net(seen)
    vector = net(seen._replace(vector=seen.vector + 1)) != before
    first = net(seen._replace(images=(-seen.images[0], seen.images[1]))) != before
    second = net(seen._replace(images=(seen.images[0], -seen.images[1]))) != before
    assert vector.any()
    assert first.any()
    assert second.any()
    assert ((vector.int() + first.int() + second.int()) <= 1).all()


@settings(max_examples=examples(40), deadline=None)
@given(height=sides, width=sides, channels=st.integers(1, 4))
def test_images_of_any_size_are_halved_and_come_back_in_their_own_size(
    height: int, width: int, channels: int
) -> None:
    shapes = Shapes(0, ((channels, height, width),))
    net = encoder(shapes, channels=1)
    (layers,) = net.images
    small = layers(torch.zeros(1, channels, height, width))  # [1, channels, height, width]
    assert 4 <= min(small.shape[2:]) < 8
    halvings = small.shape[1].bit_length()  # channels 1, 2, 4, ... behind each convolution
    assert small.shape == (1, 2 ** (halvings - 1), height >> halvings, width >> halvings)
    assert net.outputs == small.numel()
    guess = decoder(shapes, channels=1)(torch.randn(2, 7))
    assert guess.images[0].shape == (2, channels, height, width)


@each_shapes
@pytest.mark.parametrize("leading", [(1,), (5,), (2, 3)], ids=str)
def test_decoder_gives_what_the_env_gives(shapes: Shapes, leading: tuple[int, ...]) -> None:
    guess = decoder(shapes)(torch.randn(*leading, 7))
    assert guess.vector.shape == (*leading, shapes.vector)
    assert [image.shape for image in guess.images] == [(*leading, *own) for own in shapes.images]


@each_shapes
def test_decoder_s_guess_of_a_row_depends_on_that_row_alone(shapes: Shapes) -> None:
    net, states = decoder(shapes), torch.randn(2, 3, 7)
    together = net(states)
    for index in np.ndindex(2, 3):
        alone = net(states[index])
        assert torch.allclose(together.vector[index], alone.vector, atol=1e-5)
        for one, other in zip(together.images, alone.images, strict=True):
            assert torch.allclose(one[index], other, atol=1e-5)


@each_shapes
def test_decoder_s_loss_is_the_sum_of_squared_errors_of_symlogs_and_pixels(shapes: Shapes) -> None:
    net, states, seen = decoder(shapes), torch.randn(2, 2, 7), seen_of(shapes, 2, 2)
    with torch.no_grad():
        found, guess = net.loss(states, seen), net(states)
    assert found.shape == (2, 2)
    for index in np.ndindex(2, 2):
        truth = slow_symlog(seen.vector[index].double().numpy())
        total = ((guess.vector[index].numpy() - truth) ** 2).sum()
        for image, pixels in zip(guess.images, seen.images, strict=True):
            total += ((image[index] - pixels[index]).double().numpy() ** 2).sum()
        assert float(found[index]) == pytest.approx(total, rel=1e-5)


@each_shapes
def test_all_layers_of_encoder_and_decoder_take_part(shapes: Shapes) -> None:
    seen, target = seen_of(shapes, 3), seen_of(shapes, 3)
    first = encoder(shapes)
    to_states = nn.Linear(first.outputs, 7)
    second = decoder(shapes)
    states: Tensor = to_states(first(seen))
    torch.autograd.backward(second.loss(states, target).mean())
    for name, parameter in [*first.named_parameters(), *second.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_every_pixel_of_an_odd_size_can_be_learnt() -> None:
    """A dark and a bright image: at a border that is never painted the two would look the same."""
    torch.manual_seed(0)
    shapes = Shapes(0, ((1, 11, 9),))
    net, states = decoder(shapes, channels=4), torch.randn(2, 7)
    seen = Seen(
        torch.zeros(2, 0), (torch.tensor([-0.4, 0.4]).view(2, 1, 1, 1).expand(2, 1, 11, 9),)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(100):
        loss = net.loss(states, seen).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    missed = (net(states).images[0] - seen.images[0]).abs().amax()
    assert float(missed.detach()) < 0.1
