"""The formulas of the Dreamer example against plain loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor

from dreamer.maths import (
    Scale,
    TwoHot,
    balanced_kl,
    lambda_returns,
    mix_uniform,
    sample_one_hot,
    symexp,
    symlog,
)
from support.chi_square import assert_shares

numbers = st.floats(-1e6, 1e6, width=32)
seeds = st.integers(0, 2**31)
sizes = st.sampled_from([(2, 1.0), (3, 2.0), (8, 5.0), (63, 10.0), (255, 20.0)])
DRAWS = 20_000


def drawn(seed: int, *shape: int) -> Tensor:
    """Standard normal float64 numbers."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(one - max(logits)) for one in logits]
    return [one / sum(weights) for one in weights]


def slow_symlog(x: float) -> float:
    return math.copysign(math.log(1 + abs(x)), x)


def slow_kl(left: Sequence[float], right: Sequence[float]) -> float:
    """Of two lists of probabilities."""
    return sum(p * math.log(p / q) for p, q in zip(left, right, strict=True))


def each(rows: Tensor) -> list[list[float]]:
    """Rows [..., K] as lists, one behind the other."""
    found: list[list[float]] = rows.detach().flatten(0, -2).tolist()
    return found


@given(numbers)
def test_symlog_is_the_signed_logarithm_of_one_more_and_symexp_undoes_it(x: float) -> None:
    assert symlog(torch.tensor(x)).item() == pytest.approx(slow_symlog(x), rel=1e-5, abs=1e-12)
    assert symexp(symlog(torch.tensor(x))).item() == pytest.approx(x, rel=1e-5, abs=1e-30)


# Two-hot


def slow_encode(x: float, bins: int, limit: float) -> list[float]:
    points = [-limit + 2 * limit * k / (bins - 1) for k in range(bins)]
    place = min(max(slow_symlog(x), -limit), limit)
    shares = [0.0] * bins
    for k in range(bins - 1):
        if points[k] <= place <= points[k + 1]:
            above = (place - points[k]) / (points[k + 1] - points[k])
            shares[k], shares[k + 1] = 1 - above, above
            return shares
    shares[0 if place < 0 else -1] = 1.0  # of rounding, at the ends
    return shares


@given(numbers, sizes)
def test_a_number_is_encoded_on_the_two_points_around_it(x: float, size: tuple[int, float]) -> None:
    shares = TwoHot(*size).encode(torch.tensor(x))
    assert shares.tolist() == pytest.approx(slow_encode(x, *size), abs=1e-4)
    assert shares.sum().item() == pytest.approx(1, abs=1e-5)


@given(seeds, sizes)
def test_mean_and_loss_are_those_of_a_loop_over_the_points(
    seed: int, size: tuple[int, float]
) -> None:
    """symexp of the average point, and the cross-entropy with the encoded target."""
    bins, limit = size
    logits, target = drawn(seed, 2, 3, bins).float(), 10 * drawn(seed + 1, 2, 3).float()
    means, losses = TwoHot(*size).mean(logits), TwoHot(*size).loss(logits, target)
    assert means.shape == losses.shape == (2, 3)
    points = [-limit + 2 * limit * k / (bins - 1) for k in range(bins)]
    rows = zip(each(logits), target.flatten(), means.flatten(), losses.flatten(), strict=True)
    for row, x, mean, loss in rows:
        place = sum(p * point for p, point in zip(softmax(row), points, strict=True))
        wanted = math.copysign(math.exp(abs(place)) - 1, place)
        assert mean.item() == pytest.approx(wanted, 1e-3, 1e-4)
        pairs = zip(slow_encode(x.item(), *size), softmax(row), strict=True)
        slow = -sum(share * math.log(p) for share, p in pairs)
        assert loss.item() == pytest.approx(slow, abs=1e-3)


# Categoricals


# On both sides of 16, where another way to compute it begins.
@given(seeds, st.sampled_from([1, 2, 8, 15, 16, 17, 40]), st.sampled_from([0.01, 0.3, 1.0]))
def test_a_share_of_the_probability_is_uniform(seed: int, classes: int, share: float) -> None:
    logits = 10 * drawn(seed, 2, 3, classes)
    for row, log_probs in zip(each(logits), each(mix_uniform(logits, share)), strict=True):
        wanted = [(1 - share) * p + share / classes for p in softmax(row)]
        assert [math.exp(one) for one in log_probs] == pytest.approx(wanted)


def test_classes_come_independently_as_often_as_their_probabilities_say() -> None:
    torch.manual_seed(0)
    probs = [0.6, 0.395, 0.005]
    both = sample_one_hot(torch.tensor(probs).log().expand(DRAWS, 2, 3)).argmax(-1).tolist()
    wanted = {(i, k): probs[i] * probs[k] for i in range(3) for k in range(3)}
    assert_shares(Counter((first, second) for first, second in both), wanted)


def test_a_sample_is_exactly_one_hot_with_the_gradient_of_the_probabilities() -> None:
    weight, log_probs = drawn(0, 40, 3, 5), drawn(1, 40, 3, 5).log_softmax(-1).requires_grad_()
    sample = sample_one_hot(log_probs)
    assert set(sample.detach().flatten().tolist()) == {0.0, 1.0}
    assert (sample.sum(-1) == 1).all()
    torch.autograd.backward((sample * weight).sum())
    assert log_probs.grad is not None
    assert torch.allclose(log_probs.grad, log_probs.detach().exp() * weight)


def test_the_balanced_kl_weighs_its_halves_each_of_which_pulls_one_side() -> None:
    """Neither is pulled in rows below the free nats, which are those of the sum over a row."""
    free_nats = 0.7
    posterior, prior = drawn(2, 6, 2, 3).requires_grad_(), drawn(3, 6, 2, 3).requires_grad_()
    log_probs = posterior.log_softmax(-1), prior.log_softmax(-1)
    loss, dyn_kl, rep_kl = balanced_kl(*log_probs, free_nats, 1.0, 0.1)
    torch.autograd.backward(loss.sum())
    assert posterior.grad is not None
    assert prior.grad is not None
    divergences = []
    for row in range(6):
        ps, qs = ([softmax(one) for one in side[row].tolist()] for side in (posterior, prior))
        kls = [slow_kl(p, q) for p, q in zip(ps, qs, strict=True)]
        divergences.append(sum(kls))
        pull = float(sum(kls) > free_nats)
        for s, (p, q, kl) in enumerate(zip(ps, qs, kls, strict=True)):
            to_prior = [pull * (b - a) for a, b in zip(p, q, strict=True)]
            to_posterior = [
                pull * 0.1 * a * (math.log(a / b) - kl) for a, b in zip(p, q, strict=True)
            ]
            assert prior.grad[row, s].tolist() == pytest.approx(to_prior)
            assert posterior.grad[row, s].tolist() == pytest.approx(to_posterior)
    assert min(divergences) < free_nats < max(divergences)
    clipped = [max(free_nats, one) for one in divergences]
    assert dyn_kl.tolist() == pytest.approx(clipped)
    assert rep_kl.tolist() == pytest.approx(clipped)
    assert loss.tolist() == pytest.approx([1.1 * one for one in clipped])


# Returns


def slow_return(
    k: int, reward: list[float], discount: list[float], value: list[float], lam: float
) -> float:
    """Of state k: the mean of its n-step returns, whose weights fall off with lam."""

    def n_steps(n: int) -> float:
        total, kept = 0.0, 1.0
        for step in range(k, k + n):
            total += kept * reward[step]
            kept *= discount[step]
        return total + kept * value[k + n]

    left = len(reward) - k
    early = sum((1 - lam) * lam ** (n - 1) * n_steps(n) for n in range(1, left))
    return early + lam ** (left - 1) * n_steps(left)


@given(seeds, st.integers(1, 6), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_return_is_the_mean_of_all_n_step_returns(seed: int, steps: int, lam: float) -> None:
    reward, value = drawn(seed, steps, 3), drawn(seed + 1, steps + 1, 3)
    discount = drawn(seed + 2, steps, 3).sigmoid()
    found = lambda_returns(reward, discount, value, lam)
    assert found.shape == (steps, 3)
    for m in range(3):
        one = reward[:, m].tolist(), discount[:, m].tolist(), value[:, m].tolist()
        wanted = [slow_return(k, *one, lam) for k in range(steps)]
        assert found[:, m].tolist() == pytest.approx(wanted)


@given(seeds)
def test_the_scale_is_the_averaged_range_of_the_returns_and_at_least_one(seed: int) -> None:
    scale, low, high = Scale(), 0.0, 0.0
    for update in range(30):
        returns = 100 * drawn(seed + update, 4, 25).float()
        scale.update(returns.requires_grad_())
        low = 0.99 * low + 0.01 * np.percentile(returns.detach().numpy(), 5)
        high = 0.99 * high + 0.01 * np.percentile(returns.detach().numpy(), 95)
        assert scale.scale.item() == pytest.approx(max(1.0, high - low), rel=1e-4)
    assert scale.scale > 1
    assert not scale.scale.requires_grad
