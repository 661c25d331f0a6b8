"""Actions of a Gymnasium space as vectors for the networks, and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from .maths import mix_uniform, sample_one_hot
from .nesting import Batch, flat, leaves_of, nest


class Distribution(Protocol):
    """A distribution of actions, made from an actor's logits [..., input_dim]."""

    def sample(self) -> Tensor:
        """Sample actions [..., output_dim], without a gradient."""
        ...

    def mode(self) -> Tensor:
        """Return the likeliest actions [..., output_dim]."""
        ...

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability or log-density [...] of actions, in nats."""
        ...

    def entropy(self) -> Tensor:
        """Return the entropy [...] in nats."""
        ...


class OneHot:
    """A categorical distribution over one-hot vectors.

    Args:
        log_probs: [..., K].
    """

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs = log_probs

    def sample(self) -> Tensor:
        """Sample one-hot vectors [..., K]."""
        return sample_one_hot(self.log_probs.detach())

    def mode(self) -> Tensor:
        """Return the one-hot vectors [..., K] of the likeliest classes."""
        best = self.log_probs.detach().argmax(-1, keepdim=True)
        return torch.zeros_like(self.log_probs).scatter_(-1, best, 1.0)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability [...] of one-hot vectors [..., K]."""
        return (self.log_probs * action).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy [...], at most log K."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class Normal:
    """Independent normal distributions of single numbers.

    Args:
        mean: [..., A].
        std: [..., A].
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, std

    def sample(self) -> Tensor:
        """Sample numbers [..., A], which are not clipped: `log_prob` needs them like this."""
        return self.mean.detach() + self.std.detach() * torch.randn_like(self.mean)

    def mode(self) -> Tensor:
        """Return the mean [..., A]."""
        return self.mean.detach()

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density [...] of numbers [..., A]."""
        away = (action - self.mean) / self.std
        constant = action.shape[-1] * 0.5 * math.log(2 * math.pi)
        return -(0.5 * away.square() + self.std.log()).sum(-1) - constant

    def entropy(self) -> Tensor:
        """Return the sum [...] of log(std sqrt(2 pi e)), which can be negative."""
        return (self.std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class Action(ABC):
    """One action, as a vector for the networks.

    Attributes:
        input_dim: Number of outputs of the actor's network.
        output_dim: Length of the vector.
        num_actions: Number of values that the env takes.
    """

    input_dim: int
    output_dim: int
    num_actions: int

    @abstractmethod
    def dist(self, logits: Tensor) -> Distribution:
        """Make the distribution of logits [..., input_dim]."""

    def sample(self, logits: Tensor) -> tuple[Tensor, Distribution]:
        """Sample actions [..., output_dim], and return them with their distribution."""
        dist = self.dist(logits)
        return dist.sample(), dist

    def clamp(self, action: Tensor) -> Tensor:
        """Clip vectors [..., output_dim] to the actions that the env executes."""
        return action

    @abstractmethod
    def simplify(self, action: Tensor) -> Tensor:
        """Convert vectors [..., output_dim] to the env's values [..., num_actions]."""

    @abstractmethod
    def construct(self, taken: Tensor) -> Tensor:
        """Convert the env's values [..., num_actions] to float32 vectors [..., output_dim]."""


class Discrete(Action):
    """One of n choices, as a one-hot vector.

    Args:
        n: Number of choices.
        start: The env's number of the first choice.
        share: Share of a uniform distribution that is mixed into the actor's, so that every choice
            keeps some probability.
    """

    def __init__(self, n: int, start: int = 0, share: float = 0.01) -> None:
        self.n, self.start, self.share = n, start, share
        self.input_dim, self.output_dim, self.num_actions = n, n, 1

    def dist(self, logits: Tensor) -> OneHot:
        """Make the softmax of logits [..., n], mixed with a uniform distribution."""
        return OneHot(mix_uniform(logits, self.share))

    def simplify(self, action: Tensor) -> Tensor:
        """Return the env's numbers, int64 [..., 1]."""
        return action.argmax(-1, keepdim=True) + self.start

    def construct(self, taken: Tensor) -> Tensor:
        """Return one-hot vectors [..., n]; all 0 for a number that is not a choice.

        A replay may hold such a number in the row of an episode's last observation, where no action
        was taken.
        """
        choices = torch.arange(self.start, self.start + self.n, device=taken.device)
        return (taken == choices).float()


class Continuous(Action):
    """Numbers between bounds, scaled to [-1, 1].

    The distribution is DreamerV3's "bounded normal": means tanh(m) and standard deviations
    0.1 + 0.9 sigmoid(s + 2), where m is the first half of the logits and s the second. At logits
    of 0 they are 0 and 0.89. Samples outside [-1, 1] have the effect of the bound.

    Args:
        low: Lower bounds, finite, of any shape, in the dtype of the action space.
        high: Upper bounds, likewise.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        self.low = torch.from_numpy(np.array(low)).flatten()
        self.high = torch.from_numpy(np.array(high)).flatten()
        if not (self.high - self.low).isfinite().all():
            raise ValueError(
                f"action space: expected finite bounds, got {low} to {high}; narrow them with "
                "gymnasium.wrappers.TransformAction"
            )
        self.output_dim = self.num_actions = len(self.low)
        self.input_dim = 2 * self.output_dim

    def dist(self, logits: Tensor) -> Normal:
        """Make normal distributions from logits [..., 2 A]."""
        mean, std = logits.chunk(2, -1)
        return Normal(mean.tanh(), 0.1 + 0.9 * (std + 2).sigmoid())

    def clamp(self, action: Tensor) -> Tensor:
        """Clip to [-1, 1]."""
        return action.clamp(-1, 1)

    def simplify(self, action: Tensor) -> Tensor:
        """Scale to numbers within the bounds, in their dtype."""
        self._follow(action)
        share = (action.to(self.low.dtype) + 1) / 2
        return (self.low + share * (self.high - self.low)).clamp(self.low, self.high)

    def construct(self, taken: Tensor) -> Tensor:
        """Scale from -1 at `low` to 1 at `high`, and clip."""
        self._follow(taken)
        width = self.high - self.low
        # A number with equal bounds is constant, and always -1.
        share = (taken - self.low) / width.where(width > 0, 1)
        return (2 * share - 1).clamp(-1, 1).float()

    def _follow(self, tensor: Tensor) -> None:
        self.low, self.high = self.low.to(tensor.device), self.high.to(tensor.device)


def actions_of_leaf(space: spaces.Space[Any]) -> list[Action]:
    """Return the actions of a space that is not nested; see `actions_of`."""
    if isinstance(space, spaces.Discrete):
        return [Discrete(int(space.n), int(space.start))]
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.flatten().tolist(), space.start.flatten().tolist()
        return [Discrete(n, start) for n, start in zip(sizes, starts, strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return [Discrete(2) for _ in range(math.prod(space.shape))]
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return [Continuous(space.low, space.high)]
    raise ValueError(
        "action space: expected Discrete, MultiDiscrete, "
        f"MultiBinary, a Box of floats, or a Tuple or Dict of these, got {space}; "
        "change it with gymnasium.wrappers.TransformAction"
    )


def actions_of(space: spaces.Space[Any]) -> list[Action]:
    """Return the single actions that make up an action of a space, in its order.

    >>> [action.output_dim for action in actions_of(spaces.MultiDiscrete([3, 2]))]
    [3, 2]

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Tuple or Dict of these.

    Raises:
        ValueError: The space is or contains another kind, or a Box without finite bounds.
    """
    return [action for leaf in leaves_of(space) for action in actions_of_leaf(leaf)]


class Joint:
    """Independent distributions of several actions, whose vectors are concatenated.

    Args:
        dists: Distribution of each action.
        sizes: Length of each vector.
    """

    def __init__(self, dists: list[Distribution], sizes: list[int]) -> None:
        self.dists, self.sizes = dists, sizes

    def sample(self) -> Tensor:
        """Sample all actions [..., sum of the sizes]."""
        return torch.cat([dist.sample() for dist in self.dists], -1)

    def mode(self) -> Tensor:
        """Return the likeliest value of each action."""
        return torch.cat([dist.mode() for dist in self.dists], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the sum [...] of their log-probabilities."""
        parts = zip(self.dists, torch.split(action, self.sizes, -1), strict=True)
        return torch.stack([dist.log_prob(part) for dist, part in parts]).sum(0)

    def entropy(self) -> Tensor:
        """Return the sum [...] of their entropies."""
        return torch.stack([dist.entropy() for dist in self.dists]).sum(0)


class Actions:
    """All actions of a space as one vector, the concatenation of the vectors of its parts.

    >>> actions = Actions(spaces.Discrete(3, start=5))
    >>> actions.from_env([5, 7])
    tensor([[1., 0., 0.],
            [0., 0., 1.]])
    >>> actions.to_env(torch.eye(3))
    array([5, 6, 7])

    Attributes:
        parts: The actions.
        input_dim: Number of outputs of the actor's network.
        output_dim: Length of the vector.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self.leaves = [(leaf, actions_of_leaf(leaf)) for leaf in leaves_of(space)]
        self.parts = [part for _, parts in self.leaves for part in parts]
        self.inputs = [part.input_dim for part in self.parts]
        self.outputs = [part.output_dim for part in self.parts]
        self.input_dim, self.output_dim = sum(self.inputs), sum(self.outputs)
        self.bounded = any(isinstance(part, Continuous) for part in self.parts)

    def dist(self, logits: Tensor) -> Distribution:
        """Make the joint distribution of logits [..., input_dim]."""
        if len(self.parts) == 1:
            return self.parts[0].dist(logits)
        chunks = zip(self.parts, torch.split(logits, self.inputs, -1), strict=True)
        return Joint([part.dist(chunk) for part, chunk in chunks], self.outputs)

    def sample(self, logits: Tensor) -> tuple[Tensor, Distribution]:
        """Sample vectors [..., output_dim], and return them with their distribution."""
        dist = self.dist(logits)
        return dist.sample(), dist

    def clamp(self, action: Tensor) -> Tensor:
        """Clip vectors to the actions that the env executes; one-hot parts do not change."""
        return action.clamp(-1, 1) if self.bounded else action

    def to_env(self, action: Tensor) -> Batch:
        """Convert vectors [N, output_dim] to NumPy actions of a vector env."""
        chunks = iter(torch.split(action.detach().cpu(), self.outputs, -1))
        taken = []
        for leaf, parts in self.leaves:
            numbers = torch.cat([part.simplify(next(chunks)) for part in parts], -1).numpy()
            shape = (*action.shape[:-1], *(leaf.shape or ()))
            taken.append(numbers.reshape(shape).astype(leaf.dtype))
        return nest(self.space, iter(taken))

    def from_env(self, taken: Batch, ndim_before: int = 1) -> Tensor:
        """Convert actions of the env to float32 vectors [..., output_dim].

        Args:
            taken: NumPy arrays or tensors, nested like the space.
            ndim_before: Axes before those of a single action: 1 for [N], 2 for a replay's [B, T].
        """
        vectors: list[Tensor] = []
        for (_, parts), numbers in zip(self.leaves, flat(self.space, taken), strict=True):
            if not isinstance(numbers, Tensor):
                numbers = torch.from_numpy(np.array(numbers))  # a copy: it may be read-only
            numbers = numbers.reshape(*numbers.shape[:ndim_before], -1)
            chunks = torch.split(numbers, [part.num_actions for part in parts], -1)
            vectors += [part.construct(chunk) for part, chunk in zip(parts, chunks, strict=True)]
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)
