"""Networks: layers, encoder, decoder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .config import Config
from .maths import symlog

IMAGE_CORE = 4  # images are halved while both sides have at least twice as many pixels


class Seen(NamedTuple):
    """Observations as tensors, the input of the networks.

    Args:
        vector: Everything except images, as one vector [..., D] float32.
        images: Images [..., C, H, W] float32, from -0.5 to 0.5.
    """

    vector: Tensor
    images: tuple[Tensor, ...]


class Shapes(NamedTuple):
    """Shapes of one observation in `Seen`: D, and (C, H, W) of each image."""

    vector: int
    images: tuple[tuple[int, int, int], ...]


def mlp(inputs: int, width: int, blocks: int, outputs: int | None = None) -> nn.Sequential:
    """Build normalised hidden layers, and a linear output layer if outputs are given."""
    layers: list[nn.Module] = []
    for before in [inputs, *[width] * (blocks - 1)][:blocks]:
        layers += [nn.Linear(before, width, bias=False), nn.LayerNorm(width), nn.SiLU()]
    if outputs is not None:
        layers.append(nn.Linear(width if blocks else inputs, outputs))
    return nn.Sequential(*layers)


def zero_last(layers: nn.Sequential) -> nn.Sequential:
    """Zero the last layer in place, so that the first predictions are 0, and return the layers."""
    last: Any = layers[-1]
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return layers


class Encoder(nn.Module):
    """Embeds observations [..., D] and [..., C, H, W] as vectors [..., `outputs`]."""

    def __init__(self, shapes: Shapes, config: Config) -> None:
        super().__init__()
        self.vector = mlp(shapes.vector, config.embedded, config.blocks) if shapes.vector else None
        self.images = nn.ModuleList(
            _convolutions(shape, config.channels) for shape in shapes.images
        )
        flat = [_channels(shape, config.channels)[-1] for shape in shapes.images]
        sizes = [_sizes(shape)[-1] for shape in shapes.images]
        self.outputs = config.embedded * bool(shapes.vector) + sum(
            channels * height * width for channels, (height, width) in zip(flat, sizes, strict=True)
        )

    def forward(self, seen: Seen) -> Tensor:
        """Embed observations."""
        parts = [] if self.vector is None else [self.vector(symlog(seen.vector))]
        for layers, image in zip(self.images, seen.images, strict=True):
            leading = image.shape[:-3]
            parts.append(layers(image.reshape(-1, *image.shape[-3:])).reshape(*leading, -1))
        return torch.cat(parts, -1)


class Decoder(nn.Module):
    """Reconstructs observations from the model's states [..., F]."""

    def __init__(self, inputs: int, shapes: Shapes, config: Config) -> None:
        super().__init__()
        width, blocks = config.dense, config.blocks
        self.vector = mlp(inputs, width, blocks, shapes.vector) if shapes.vector else None
        self.images = nn.ModuleList(
            _deconvolutions(inputs, shape, config.channels) for shape in shapes.images
        )

    def forward(self, states: Tensor) -> Seen:
        """Reconstruct observations, vectors in symlog space."""
        vector = states[..., :0] if self.vector is None else self.vector(states)
        flat = states.reshape(-1, states.shape[-1])
        images = [layers(flat) for layers in self.images]
        shaped = (image.reshape(*states.shape[:-1], *image.shape[1:]) for image in images)
        return Seen(vector, tuple(shaped))

    def loss(self, states: Tensor, seen: Seen) -> Tensor:
        """Return squared errors [...], summed over numbers and pixels."""
        guess: Seen = self(states)
        loss = (guess.vector - symlog(seen.vector)).square().sum(-1)
        for image, truth in zip(guess.images, seen.images, strict=True):
            loss = loss + (image - truth).square().sum((-3, -2, -1))
        return loss


def _sizes(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return height and width before each convolution, and after the last one."""
    height, width = shape[1:]
    sizes = [(height, width)]
    while min(height, width) >= 2 * IMAGE_CORE:
        height, width = height // 2, width // 2
        sizes.append((height, width))
    return sizes


def _channels(shape: Sequence[int], first: int) -> list[int]:
    """Return the channels before each convolution, and after the last one."""
    return [shape[0], *(first * 2**i for i in range(len(_sizes(shape)) - 1))]


def _convolutions(shape: Sequence[int], first: int) -> nn.Sequential:
    channels = _channels(shape, first)
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 4, 2, 1), nn.GroupNorm(1, after), nn.SiLU()]
    return nn.Sequential(*layers)


def _deconvolutions(inputs: int, shape: Sequence[int], first: int) -> nn.Sequential:
    channels, sizes = _channels(shape, first)[::-1], _sizes(shape)[::-1]
    height, width = sizes[0]
    layers: list[nn.Module] = [
        nn.Linear(inputs, channels[0] * height * width),
        nn.Unflatten(-1, (channels[0], height, width)),
    ]
    for i, (before, after) in enumerate(pairwise(channels)):
        if i:
            layers += [nn.GroupNorm(1, before), nn.SiLU()]
        odd = (sizes[i + 1][0] % 2, sizes[i + 1][1] % 2)
        layers.append(nn.ConvTranspose2d(before, after, 4, 2, 1, output_padding=odd))
    return nn.Sequential(*layers)
