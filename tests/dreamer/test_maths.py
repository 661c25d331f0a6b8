"""The formulas of the Dreamer example against plain loops."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor, nn

from dreamer.maths import (
    Scale,
    TwoHot,
    balanced_kl,
    gumbel,
    kl_categorical,
    lambda_returns,
    mix_uniform,
    sample_one_hot,
    soft_update,
    symexp,
    symlog,
)
from support.chi_square import assert_shares

numbers = st.floats(-1e6, 1e6, width=32)
seeds = st.integers(0, 2**31)
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


# Scales of numbers


@given(numbers)
def test_symlog_is_the_signed_logarithm_of_one_more(x: float) -> None:
    assert symlog(torch.tensor(x)).item() == pytest.approx(slow_symlog(x), rel=1e-5, abs=1e-12)


@given(numbers)
def test_symexp_undoes_symlog(x: float) -> None:
    assert symexp(symlog(torch.tensor(x))).item() == pytest.approx(x, rel=1e-5, abs=1e-30)


def test_symlog_hardly_changes_numbers_near_zero_and_keeps_zero() -> None:
    small = torch.tensor([-1e-6, 0.0, 1e-6])
    assert torch.allclose(symlog(small), small, rtol=1e-5, atol=0)
    assert torch.allclose(symexp(small), small, rtol=1e-5, atol=0)


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


sizes = st.sampled_from([(2, 1.0), (3, 2.0), (8, 5.0), (63, 10.0), (255, 20.0)])


@given(numbers, sizes)
def test_a_number_is_encoded_on_the_two_points_around_it(x: float, size: tuple[int, float]) -> None:
    shares = TwoHot(*size).encode(torch.tensor(x))
    assert shares.tolist() == pytest.approx(slow_encode(x, *size), abs=1e-4)
    assert shares.min() >= 0
    assert 1 <= (shares > 0).sum() <= 2
    assert shares.sum().item() == pytest.approx(1, abs=1e-5)


@given(st.floats(-20_000, 20_000, width=32))
def test_the_mean_of_an_encoded_number_is_the_number(x: float) -> None:
    two_hot = TwoHot(63, 10.0)
    logits = two_hot.encode(torch.tensor(x)).log()
    assert two_hot.mean(logits).item() == pytest.approx(x, rel=1e-4, abs=1e-4)


def test_numbers_beyond_the_limits_are_encoded_on_the_end_points() -> None:
    two_hot = TwoHot(5, 1.0)
    end = math.e - 1  # symexp of the limit
    beyond = torch.tensor([-math.inf, -1e30, -end, end, 5.0, math.inf])
    assert two_hot.encode(beyond).argmax(-1).tolist() == [0, 0, 0, 4, 4, 4]
    assert two_hot.encode(beyond).max(-1).values.tolist() == pytest.approx([1] * 6)


def test_an_encoded_zero_is_one_hot_in_the_middle() -> None:
    assert TwoHot(5).encode(torch.tensor(0.0)).tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("bins", [2, 63, 64, 255])
def test_the_mean_of_even_logits_is_zero(bins: int) -> None:
    assert TwoHot(bins).mean(torch.zeros(3, bins)).abs().max() < 1e-4


@given(seeds, sizes)
def test_the_mean_is_symexp_of_the_average_point(seed: int, size: tuple[int, float]) -> None:
    bins, limit = size
    logits = drawn(seed, 2, 3, bins).float()
    found = TwoHot(*size).mean(logits)
    assert found.shape == (2, 3)
    for row, mean in zip(each(logits), found.flatten().tolist(), strict=True):
        points = [-limit + 2 * limit * k / (bins - 1) for k in range(bins)]
        place = sum(p * point for p, point in zip(softmax(row), points, strict=True))
        assert mean == pytest.approx(math.copysign(math.exp(abs(place)) - 1, place), 1e-3, 1e-4)


@given(seeds, sizes)
def test_the_loss_is_the_cross_entropy_with_the_encoded_target(
    seed: int, size: tuple[int, float]
) -> None:
    logits, target = drawn(seed, 2, 3, size[0]).float(), 10 * drawn(seed + 1, 2, 3).float()
    found = TwoHot(*size).loss(logits, target)
    assert found.shape == (2, 3)
    for row, x, loss in zip(each(logits), target.flatten(), found.flatten(), strict=True):
        wanted = slow_encode(x.item(), *size)
        slow = -sum(share * math.log(p) for share, p in zip(wanted, softmax(row), strict=True))
        assert loss.item() == pytest.approx(slow, abs=1e-3)


def test_the_loss_pulls_the_logits_to_the_encoded_target_and_leaves_the_target_alone() -> None:
    two_hot = TwoHot(7, 3.0)
    logits, target = drawn(0, 4, 7).float().requires_grad_(), drawn(1, 4).float().requires_grad_()
    torch.autograd.backward(two_hot.loss(logits, target).sum())
    assert target.grad is None
    assert logits.grad is not None
    wanted = logits.detach().softmax(-1) - two_hot.encode(target.detach())
    assert torch.allclose(logits.grad, wanted, atol=1e-6)


def test_a_loss_of_a_target_that_is_not_a_number_is_not_a_number_either() -> None:
    assert TwoHot(5).loss(torch.zeros(1, 5), torch.tensor([math.nan])).isnan().all()


def test_the_points_follow_the_tensors_to_their_device() -> None:
    numbers, logits = torch.empty(3, device="meta"), torch.empty(3, 5, device="meta")
    assert TwoHot(5).encode(numbers).device.type == "meta"
    assert TwoHot(5).loss(logits, numbers).device.type == "meta"
    assert TwoHot(5).mean(logits).device.type == "meta"
    assert TwoHot(5).to("meta").points.device.type == "meta"


@pytest.mark.parametrize(("bins", "limit"), [(1, 20.0), (0, 20.0), (5, 0.0), (5, -1.0)])
def test_invalid_bins_and_limits_are_refused(bins: int, limit: float) -> None:
    with pytest.raises(
        ValueError, match=rf"bins .*2.*limit .*0, got bins={bins} and limit={limit}"
    ):
        TwoHot(bins, limit)


# Categoricals


# On both sides of 16, where another way to compute it begins.
@given(seeds, st.sampled_from([1, 2, 3, 8, 15, 16, 17, 40]), st.sampled_from([0.01, 0.3, 1.0]))
def test_a_share_of_the_probability_is_uniform(seed: int, classes: int, share: float) -> None:
    logits = 10 * drawn(seed, 2, 3, classes)
    found = mix_uniform(logits, share)
    assert found.shape == logits.shape
    for row, log_probs in zip(each(logits), each(found), strict=True):
        wanted = [(1 - share) * p + share / classes for p in softmax(row)]
        assert [math.exp(one) for one in log_probs] == pytest.approx(wanted)


def test_by_default_a_hundredth_is_uniform() -> None:
    logits = torch.tensor([[0.0, 1_000.0]])
    assert mix_uniform(logits).exp().tolist() == [pytest.approx([0.005, 0.995], rel=1e-4)]


@pytest.mark.parametrize("classes", [3, 16])
def test_the_gradient_of_mixed_probabilities_is_right(classes: int) -> None:
    logits = drawn(0, 2, classes).requires_grad_()
    assert torch.autograd.gradcheck(mix_uniform, (logits,))


@given(seeds, st.sampled_from([1, 2, 8, 16]))
def test_the_largest_log_probability_with_its_noise_is_the_sample(seed: int, classes: int) -> None:
    log_probs, noise = drawn(seed, 2, 3, classes).log_softmax(-1), drawn(seed + 1, 2, 3, classes)
    found = sample_one_hot(log_probs, noise)
    assert found.shape == log_probs.shape
    for row, more, sample in zip(each(log_probs), each(noise), each(found), strict=True):
        scores = [one + other for one, other in zip(row, more, strict=True)]
        wanted = [0.0] * classes
        wanted[scores.index(max(scores))] = 1.0
        assert sample == wanted


@pytest.mark.parametrize("probs", [[0.6, 0.3, 0.1], [0.99, 0.005, 0.005], [0.5, 0.0, 0.5]])
def test_classes_come_as_often_as_their_probabilities_say(probs: list[float]) -> None:
    torch.manual_seed(0)
    log_probs = torch.tensor(probs).log().expand(DRAWS, len(probs))
    drawn_classes = sample_one_hot(log_probs).argmax(-1).tolist()
    assert_shares(Counter(drawn_classes), dict(enumerate(probs)))


def test_neighbouring_categoricals_are_drawn_independently() -> None:
    torch.manual_seed(0)
    probs = [0.7, 0.3]
    both = sample_one_hot(torch.tensor(probs).log().expand(DRAWS, 2, 2)).argmax(-1).tolist()
    wanted = {(i, k): probs[i] * probs[k] for i in range(2) for k in range(2)}
    assert_shares(Counter((first, second) for first, second in both), wanted)


def test_a_sample_is_exactly_one_hot_though_it_has_a_gradient() -> None:
    log_probs = drawn(0, 1_000, 8).float().log_softmax(-1).requires_grad_()
    sample = sample_one_hot(log_probs)
    assert sample.requires_grad
    assert set(sample.detach().flatten().tolist()) == {0.0, 1.0}
    assert (sample.sum(-1) == 1).all()


def test_the_gradient_of_a_sample_is_that_of_the_probabilities() -> None:
    weight = drawn(0, 4, 3, 5)
    log_probs = drawn(1, 4, 3, 5).log_softmax(-1).requires_grad_()
    torch.autograd.backward((sample_one_hot(log_probs) * weight).sum())
    assert log_probs.grad is not None
    assert torch.allclose(log_probs.grad, log_probs.detach().exp() * weight)


def test_gumbel_variates_follow_their_law_and_the_global_seed() -> None:
    torch.manual_seed(0)
    noise = gumbel((DRAWS,))
    borders = [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0]
    below = [0.0, *(math.exp(-math.exp(-border)) for border in borders), 1.0]
    wanted = {k: below[k + 1] - below[k] for k in range(len(borders) + 1)}
    assert_shares(Counter(np.searchsorted(borders, noise.numpy()).tolist()), wanted)
    torch.manual_seed(0)
    assert torch.equal(gumbel((DRAWS,)), noise)
    assert not torch.equal(gumbel((DRAWS,)), noise)


def test_gumbel_variates_have_the_given_shape_and_device() -> None:
    assert gumbel((2, 3)).shape == (2, 3)
    assert gumbel((2, 3)).dtype == torch.float32
    assert gumbel(torch.Size([2]), "meta").device.type == "meta"


# KL divergences


@given(seeds)
def test_the_kl_divergence_sums_over_the_categoricals_of_a_row(seed: int) -> None:
    left, right = drawn(seed, 2, 3, 4, 5), drawn(seed + 1, 2, 3, 4, 5)
    found = kl_categorical(left.log_softmax(-1), right.log_softmax(-1))
    assert found.shape == (2, 3)
    for b in range(2):
        for t in range(3):
            pairs = zip(left[b, t].tolist(), right[b, t].tolist(), strict=True)
            wanted = sum(slow_kl(softmax(one), softmax(other)) for one, other in pairs)
            assert found[b, t].item() == pytest.approx(wanted)


def test_the_kl_divergence_of_equals_is_zero_and_else_it_is_above() -> None:
    left, right = drawn(0, 50, 2, 3).log_softmax(-1), drawn(1, 50, 2, 3).log_softmax(-1)
    assert (kl_categorical(left, left) == 0).all()
    assert (kl_categorical(left, right) > 0).all()


def balanced(free_nats: float) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor], list[float]]:
    """Logits of posterior and prior [6, 2, 3], their balanced_kl (1 and 0.1), and the KLs."""
    posterior, prior = drawn(2, 6, 2, 3).requires_grad_(), drawn(3, 6, 2, 3).requires_grad_()
    found = balanced_kl(posterior.log_softmax(-1), prior.log_softmax(-1), free_nats, 1.0, 0.1)
    divergences = [
        sum(slow_kl(softmax(p), softmax(q)) for p, q in zip(left, right, strict=True))
        for left, right in zip(posterior.tolist(), prior.tolist(), strict=True)
    ]
    return posterior, prior, found, divergences


def test_the_balanced_kl_weighs_its_clipped_halves() -> None:
    free_nats = 0.7
    _, _, (loss, dyn_kl, rep_kl), divergences = balanced(free_nats)
    assert min(divergences) < free_nats < max(divergences)
    clipped = [max(free_nats, one) for one in divergences]
    assert dyn_kl.tolist() == pytest.approx(clipped)
    assert rep_kl.tolist() == pytest.approx(clipped)
    assert loss.tolist() == pytest.approx([1.1 * one for one in clipped])


def test_each_half_of_the_balanced_kl_pulls_one_side_and_neither_below_the_free_nats() -> None:
    free_nats = 0.7
    posterior, prior, (loss, _, _), divergences = balanced(free_nats)
    torch.autograd.backward(loss.sum())
    assert posterior.grad is not None
    assert prior.grad is not None
    for row, divergence in enumerate(divergences):
        for s in range(2):
            p, q = softmax(posterior[row, s].tolist()), softmax(prior[row, s].tolist())
            free = divergence < free_nats
            to_prior = [0.0 if free else b - a for a, b in zip(p, q, strict=True)]
            own = slow_kl(p, q)
            to_posterior = [
                0.0 if free else 0.1 * a * (math.log(a / b) - own)
                for a, b in zip(p, q, strict=True)
            ]
            assert prior.grad[row, s].tolist() == pytest.approx(to_prior)
            assert posterior.grad[row, s].tolist() == pytest.approx(to_posterior)


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


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_values_that_fit_the_rewards_are_their_own_returns(lam: float) -> None:
    gamma = 0.9  # were it taken twice, the returns would be smaller
    value = torch.full((6, 2), 1 / (1 - gamma), dtype=torch.float64)
    reward = torch.ones(5, 2, dtype=torch.float64)
    assert torch.allclose(lambda_returns(reward, gamma * reward, value, lam), value[1:])


def test_nothing_after_an_end_counts() -> None:
    reward, value = torch.ones(3, 1), torch.full((4, 1), 100.0)
    discount = torch.tensor([[1.0], [0.0], [1.0]])
    assert lambda_returns(reward, discount, value, 1.0).tolist() == [[2.0], [1.0], [101.0]]


@pytest.mark.parametrize(
    ("discount", "value"), [([3, 2], [2, 2]), ([3, 2], [3, 2]), ([3, 2], [5, 2]), ([3, 1], [4, 2])]
)
def test_returns_of_other_shapes_are_refused(discount: list[int], value: list[int]) -> None:
    message = re.escape(f"got [3, 2], {discount} and {value};")
    with pytest.raises(ValueError, match=message):
        lambda_returns(torch.zeros(3, 2), torch.zeros(discount), torch.zeros(value), 0.95)


# The scale of returns


@given(seeds)
def test_the_scale_is_the_averaged_range_of_the_returns(seed: int) -> None:
    scale, low, high = Scale(), 0.0, 0.0
    for update in range(30):
        returns = 100 * drawn(seed + update, 4, 25).float()
        scale.update(returns)
        low = 0.99 * low + 0.01 * np.percentile(returns.numpy(), 5)
        high = 0.99 * high + 0.01 * np.percentile(returns.numpy(), 95)
        assert scale.scale.item() == pytest.approx(max(1.0, high - low), rel=1e-4)
    assert scale.scale > 1


def test_the_first_update_moves_the_scale_by_a_hundredth_and_small_ranges_count_as_one() -> None:
    scale = Scale()
    assert scale.scale == 1
    assert set(scale.state_dict().values()) == {0.0}
    scale.update(torch.linspace(0, 1_000, 101))
    assert scale.scale.item() == pytest.approx(9)  # 0.01 x (950 - 50)
    for _ in range(1_000):
        scale.update(torch.linspace(0, 0.1, 101))
    assert scale.scale == 1


def test_the_scale_has_no_gradient() -> None:
    scale = Scale()
    scale.update(torch.linspace(0, 1_000, 101).requires_grad_())
    assert not scale.scale.requires_grad


def test_decay_quantiles_and_the_least_scale_can_be_chosen() -> None:
    scale = Scale(decay=0.0, low=0.25, high=0.5, least=0.1)
    scale.update(torch.linspace(0, 100, 101))
    assert scale.scale.item() == pytest.approx(25)
    scale.update(torch.zeros(5))
    assert scale.scale.item() == pytest.approx(0.1)


def test_a_scale_goes_on_from_its_state_of_plain_numbers() -> None:
    scale, other = Scale(), Scale()
    scale.update(1_000 * drawn(0, 100).float())
    state = scale.state_dict()
    assert {type(number) for number in state.values()} == {float}
    other.load_state_dict(state)
    assert other.state_dict() == state
    for one in (scale, other):
        one.update(1_000 * drawn(1, 100).float())
    assert other.scale == scale.scale


# Averaging networks


def test_a_soft_update_moves_every_parameter_by_the_share() -> None:
    target = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    source = copy.deepcopy(target)
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    before = [one.detach().clone() for one in target.parameters()]
    soft_update(target, source, 0.25)
    parameters = zip(target.parameters(), source.parameters(), before, strict=True)
    for slow, fast, old in parameters:
        assert torch.allclose(slow, 0.75 * old + 0.25 * fast)
        assert slow.requires_grad
        assert slow.grad_fn is None


def test_a_soft_update_of_everything_copies_in_place_and_leaves_the_source_alone() -> None:
    target, source = nn.Linear(2, 3), nn.Linear(2, 3)
    weight, place = source.weight.detach().clone(), target.weight.data_ptr()
    soft_update(target, source, 1.0)
    assert torch.equal(target.weight, source.weight)
    assert torch.equal(source.weight, weight)
    assert target.weight.data_ptr() == place


def test_a_soft_update_from_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument 2"):
        soft_update(nn.Linear(2, 3), nn.Linear(2, 3, bias=False), 0.5)
