"""Conversion of observations to the input of the networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import one_hot

from .nesting import flat, leaves_of
from .nets import Seen, Shapes

_PLAIN = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
LEAST_SIDE = 8  # uint8 arrays with shorter sides are treated as numbers, not as images


class Observations:
    """Convert observations, nested like their space, into `Seen`.

    Args:
        space: Space of a single env: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and
            Tuple of these. A uint8 Box with two to four axes is an image: (H, W), (H, W, C),
            (C, H, W), or a stack (k, H, W, C).

    Raises:
        TypeError: The space is of another kind.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = space
        self._leaves = leaves = [_checked(leaf) for leaf in leaves_of(space)]
        images = [_image_shape(leaf) for leaf in leaves if _is_image(leaf)]
        numbers = sum(_numbers(leaf) for leaf in leaves if not _is_image(leaf))
        self.shapes = Shapes(numbers, tuple(images))

    def __call__(self, observation: Any, device: torch.device | None = None) -> Seen:
        """Convert observations [..., *shape], arrays or tensors with any leading axes."""
        vectors: list[Tensor] = []
        images: list[Tensor] = []
        for space, value in zip(self._leaves, flat(self._space, observation), strict=True):
            tensor = _tensor(value, device)
            if _is_image(space):
                pixels = _channels_first(tensor, space.shape or ())
                images.append(pixels.float() / 255 - 0.5)
            elif isinstance(space, spaces.Discrete):
                vectors.append(one_hot(tensor.long() - int(space.start), int(space.n)).float())
            elif isinstance(space, spaces.MultiDiscrete):
                vectors += _one_hots(space, tensor)
            else:
                dims = len(space.shape or ())
                leading = tensor.shape[: tensor.dim() - dims]
                vectors.append(tensor.reshape(*leading, -1).float())
        leading = images[0].shape[:-3] if images else vectors[0].shape[:-1]
        empty = torch.zeros(*leading, 0, device=device)
        return Seen(torch.cat(vectors, -1) if vectors else empty, tuple(images))


def _tensor(value: Any, device: torch.device | None) -> Tensor:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # PyTorch has no read-only tensors
    return torch.as_tensor(value, device=device)


def _one_hots(space: spaces.MultiDiscrete, tensor: Tensor) -> list[Tensor]:
    sizes, starts = space.nvec.flatten().tolist(), space.start.flatten().tolist()
    parts = tensor.long().flatten(tensor.dim() - space.nvec.ndim).unbind(-1)
    choices = zip(parts, sizes, starts, strict=True)
    return [one_hot(part - start, size).float() for part, size, start in choices]


def _checked(leaf: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(leaf, _PLAIN):
        return leaf
    raise TypeError(
        f"observation space {leaf}: expected Box, Discrete, MultiDiscrete, MultiBinary, or "
        f"Dict and Tuple of these, got {type(leaf).__name__}; flatten it with a wrapper"
    )


def _numbers(space: spaces.Space[Any]) -> int:
    return int(spaces.flatdim(space))


def _image_shape(space: spaces.Space[Any]) -> tuple[int, int, int]:
    shape = space.shape or ()
    channels, height, width = _channels_first(torch.empty(shape, device="meta"), shape).shape
    return channels, height, width


def _is_image(space: spaces.Space[Any]) -> bool:
    shape = space.shape or ()
    return space.dtype == "uint8" and len(shape) in (2, 3, 4) and sorted(shape)[-2] >= LEAST_SIDE


def _channels_first(pixels: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Move the channels of images [..., *shape] first: [..., C, H, W]."""
    if len(shape) == 2:
        return pixels.unsqueeze(-3)
    if len(shape) == 4:  # (k, H, W, C): concatenate the channels of k images
        return pixels.movedim(-1, -3).flatten(-4, -3)
    return pixels.movedim(-1, -3) if shape[2] < shape[0] else pixels
