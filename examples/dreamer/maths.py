"""The formulas of DreamerV3, without networks: scales, distributions, returns and averages.

The method: Hafner et al. 2023, "Mastering Diverse Domains through World Models", arXiv:2301.04104.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def symlog(x: Tensor) -> Tensor:
    """Compute sign(x) log(1 + |x|): the identity near 0, a logarithm far from it. Any shape.

    The gradient at exactly 0, which should be 1, is 0: use it only for inputs and targets.

    >>> symlog(torch.tensor([-1.0, 0.0, 100.0]))
    tensor([-0.6931,  0.0000,  4.6151])
    """
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Compute sign(x) (exp(|x|) - 1), the inverse of `symlog`. Any shape."""
    return x.sign() * x.abs().expm1()


class TwoHot:
    """Predicts a number as probabilities over points, learned by classification.

    A number x lies between two of the points, which are evenly spaced in symlog space. It is
    encoded as the probabilities of these two that average to symlog(x), so the size of the
    gradient does not depend on the size of x.

    This is the form of the paper's first version. For a random x it learns symexp of the mean of
    symlog(x), which is not the mean of x: for 0 and 10 in turns it is 2.3. The later version
    interpolates between symexp(points), learns the mean, and sums numbers of up to exp(limit).

    Args:
        bins: Number of points, K.
        limit: The outermost points are symexp(-limit) and symexp(limit).
    """

    def __init__(self, bins: int, limit: float = 20.0) -> None:
        if bins < 2 or limit <= 0:
            raise ValueError(
                f"TwoHot: expected bins of 2 or more and a limit above 0, got bins={bins} and "
                f"limit={limit}; bins=63 and limit=10 fit small rewards"
            )
        # In units of the distance between two points, the formulas are shortest.
        self.outermost = (bins - 1) / 2
        self.per_unit = self.outermost / limit
        self.points = torch.linspace(-self.outermost, self.outermost, bins)

    def to(self, device: torch.device | str) -> TwoHot:
        """Move the points to a device; the methods move them to the device of their tensors."""
        self.points = self.points.to(device)
        return self

    def encode(self, x: Tensor) -> Tensor:
        """Return probabilities [..., K] of numbers [...], clipped to the limits."""
        self.to(x.device)
        place = (symlog(x) * self.per_unit).clamp(-self.outermost, self.outermost)
        return (1 - (place.unsqueeze(-1) - self.points).abs()).clamp(min=0)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy [...] of logits [..., K] with constant targets [...]."""
        return -(self.encode(target.detach()) * logits.log_softmax(-1)).sum(-1)

    def mean(self, logits: Tensor) -> Tensor:
        """Return the numbers [...] predicted by logits [..., K]: symexp of the mean point."""
        self.to(logits.device)
        probs, half = logits.softmax(-1), len(self.points) // 2
        # The points are symmetric: summed in pairs, equal logits predict exactly 0, also where a
        # machine's matrix product rounds otherwise.
        pairs = probs[..., -half:] - probs[..., :half].flip(-1)
        return symexp(pairs @ self.points[-half:] / self.per_unit)


def mix_uniform(logits: Tensor, share: float = 0.01) -> Tensor:
    """Return log-probabilities of (1 - share) softmax(logits) + share / K; both [..., K].

    With a share above 0 no class is impossible, so KLs and log-probabilities stay finite.
    """
    classes = logits.shape[-1]
    if classes < 16:  # over a short last axis, a softmax on a CPU takes several times as long
        probs = logits.movedim(-1, 0).softmax(0).movedim(0, -1).contiguous()
    else:
        probs = logits.softmax(-1)
    return (probs * (1 - share) + share / classes).log()


def gumbel(shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Draw standard Gumbel variates, float32, from torch's global generator."""
    return -(-torch.rand(tuple(shape), device=device).log()).log()


def sample_one_hot(log_probs: Tensor, noise: Tensor | None = None) -> Tensor:
    """Draw one-hot samples of categoricals, with the gradient of the probabilities.

    Args:
        log_probs: [..., K] of normalised probabilities.
        noise: Gumbel variates [..., K]. The class with the largest log-probability + noise is the
            sample, which has exactly these probabilities (Gumbel 1954). None draws them.

    Returns:
        [..., K], exactly 0 or 1; its gradient is that of exp(log_probs) ("straight-through").
    """
    if noise is None:
        noise = gumbel(log_probs.shape, log_probs.device)
    index = (log_probs.detach() + noise).max(-1, keepdim=True).indices
    sample = torch.zeros_like(log_probs).scatter_(-1, index, 1.0)
    if not log_probs.requires_grad:
        return sample
    probs = log_probs.exp()
    return sample + (probs - probs.detach())  # the bracket is exactly 0, but has a gradient


def kl_categorical(left: Tensor, right: Tensor) -> Tensor:
    """Return KL(left || right) [...] in nats of log-probabilities [..., S, K], summed over S."""
    return (left.exp() * (left - right)).sum((-2, -1))


def balanced_kl(
    posterior: Tensor, prior: Tensor, free_nats: float, dyn: float, rep: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the loss that pulls the prior to the posterior, and less the posterior to the prior.

    dyn max(free, KL(sg(posterior) || prior)) + rep max(free, KL(posterior || sg(prior))), where sg
    stops the gradient. Below `free_nats` neither is pulled.

    Args:
        posterior: Log-probabilities [..., S, K] given the observation.
        prior: Log-probabilities [..., S, K] without the observation.
        free_nats: Free nats per row, for the sum over S.
        dyn: Weight of the prior's part ("dynamics"): 1, in the paper's first version 0.5.
        rep: Weight of the posterior's part ("representation"): 0.1.

    Returns:
        The loss [...], and the two clipped divergences [...] before weighting.
    """
    dyn_kl = kl_categorical(posterior.detach(), prior).clamp(min=free_nats)
    rep_kl = kl_categorical(posterior, prior.detach()).clamp(min=free_nats)
    return dyn * dyn_kl + rep * rep_kl, dyn_kl, rep_kl


def lambda_returns(reward: Tensor, discount: Tensor, value: Tensor, lam: float) -> Tensor:
    """Compute TD(lambda) returns: R_k = r_k + d_k ((1 - lam) v_{k+1} + lam R_{k+1}), R_H = v_H.

    Args:
        reward: [H, M] of the step from state k to state k + 1.
        discount: [H, M] of the same step: gamma times the probability that the episode continues.
        value: [H + 1, M] of the states.
        lam: 0 uses only the next value, 1 only the rewards and the last value.

    Returns:
        [H, M] of all states except the last.

    Raises:
        ValueError: There is not exactly one more row of values than of rewards.
    """
    if reward.shape != discount.shape or (len(reward) + 1, *reward.shape[1:]) != value.shape:
        raise ValueError(
            "returns need one more row of values than of rewards and discounts: expected [H, M], "
            f"[H, M] and [H + 1, M], got {[*reward.shape]}, {[*discount.shape]} and "
            f"{[*value.shape]}; add the value of the last state"
        )
    known = (reward + discount * (1 - lam) * value[1:]).unbind(0)
    carried = (discount * lam).unbind(0)
    following, returns = value[-1], []
    for k in reversed(range(len(known))):
        following = torch.addcmul(known[k], carried[k], following)
        returns.append(following)
    return torch.stack(returns[::-1])


class Scale:
    """The range of returns, by which DreamerV3 divides advantages.

    The range is the distance of exponential averages, from 0, of the 5 % and 95 % quantiles. It is
    small at first; the lower bound `least` keeps noise from being amplified.

    Args:
        decay: Weight of the old average in each update.
        low: The lower quantile.
        high: The upper quantile.
        least: Smallest divisor.
    """

    def __init__(
        self, decay: float = 0.99, low: float = 0.05, high: float = 0.95, least: float = 1.0
    ) -> None:
        self.decay, self.least = decay, least
        self.quantiles = torch.tensor([low, high])
        self.average = torch.zeros(2)

    def update(self, returns: Tensor) -> None:
        """Move the averages towards the quantiles of returns of any shape."""
        self.quantiles = self.quantiles.to(returns.device)
        now = torch.quantile(returns.detach().flatten(), self.quantiles)
        self.average = torch.lerp(self.average.to(returns.device), now, 1 - self.decay)

    @property
    def scale(self) -> Tensor:
        """The divisor max(least, high - low), a scalar tensor."""
        return (self.average[1] - self.average[0]).clamp(min=self.least)

    def state_dict(self) -> dict[str, float]:
        """Return the two averages as plain numbers."""
        low, high = self.average.tolist()
        return {"low": low, "high": high}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the averages from `state_dict`."""
        self.average = torch.tensor([state["low"], state["high"]])


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move all parameters of `target` by the share `tau` towards those of `source`, in place."""
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
            slow.lerp_(fast, tau)
