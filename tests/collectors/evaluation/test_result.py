"""The summary, JSON and table of an `Evaluation`."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest

from stepwell.collectors import EvaluatedEpisode, Evaluation
from stepwell.collectors.evaluation.evaluate import student_quantile
from support.chi_square import assert_shares


def evaluation_of(returns: list[float], seeds: bool = False) -> Evaluation:
    return Evaluation(
        tuple(
            EvaluatedEpisode(i, 100 + i if seeds else None, value, 1000 + i, i % 2 == 0, i % 2 == 1)
            for i, value in enumerate(returns)
        )
    )


def mass_within(bound: float, freedom: int) -> float:
    """Probability of Student's t between -bound and bound: its density, summed by Simpson."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    x = np.linspace(0, bound, 20_001)
    density = scale / math.sqrt(freedom * math.pi) * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    weights = np.where(np.arange(x.size) % 2 == 1, 4.0, 2.0)
    weights[[0, -1]] = 1
    return float(2 * (weights * density).sum() * bound / 20_000 / 3)


@pytest.mark.parametrize("freedom", [*range(1, 40), 60, 120, 1000, 100_000])
def test_between_the_quantiles_lie_95_percent(freedom: int) -> None:
    assert mass_within(student_quantile(freedom), freedom) == pytest.approx(0.95, abs=5e-6)


@pytest.mark.proof
@pytest.mark.parametrize("count", [2, 5, 30])
def test_the_interval_holds_the_true_mean_in_95_percent_of_evaluations(count: int) -> None:
    rng = np.random.default_rng(count)
    held: Counter[bool] = Counter()
    for _ in range(4000):
        low, high = evaluation_of(rng.normal(7, 3, count).tolist()).confidence
        held[low <= 7 <= high] += 1
    assert_shares(held, {True: 0.95, False: 0.05})


def test_numbers_are_those_of_numpy() -> None:
    returns = np.random.default_rng(0).normal(-50, 20, 17).tolist()
    found = evaluation_of(returns)
    low, high = found.confidence
    half = 2.1199 * np.std(returns, ddof=1) / np.sqrt(17)
    assert found.returns == tuple(returns)
    assert found.mean == pytest.approx(np.mean(returns))
    assert (high - low) / 2 == pytest.approx(half, rel=1e-4)
    assert (high + low) / 2 == pytest.approx(found.mean)
    assert (found.median, found.min, found.max) == (np.median(returns), min(returns), max(returns))
    assert found.steps == sum(range(1000, 1017))


def test_one_episode_has_no_interval_and_nothing_is_nan() -> None:
    found = evaluation_of([12.0])
    assert found.confidence == (-math.inf, math.inf)
    assert (found.mean, found.median, found.min, found.max) == (12, 12, 12, 12)
    assert found.to_json()["confidence"] == [None, None]
    assert str(found).splitlines()[-1] == "1 episode  1,000 steps  mean return 12.0"
    odd = evaluation_of([math.inf, -math.inf])
    assert (math.isnan(odd.mean), odd.confidence) == (True, found.confidence)


def test_json_holds_everything_that_is_plain() -> None:
    found = evaluation_of([1.0, 2.0, 6.0], seeds=True)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["episodes"][2] == {
        "episode": 2,
        "seed": 102,
        "total_reward": 6.0,
        "steps": 1002,
        "terminated": True,
        "truncated": False,
    }
    assert (data["mean"], data["median"], data["min"], data["max"]) == (3, 2, 1, 6)
    assert data["confidence"] == pytest.approx(found.confidence)
    assert (data["steps"], data["videos"]) == (3003, [])


def test_the_table_has_a_row_for_each_episode() -> None:
    both = EvaluatedEpisode(2, 7, -1234.5, 12_345, True, True)
    assert str(Evaluation((*evaluation_of([3.0, 4.0]).episodes, both))).splitlines() == [
        "episode  seed    return   steps  end",
        "      0     -       3.0   1,000  terminated",
        "      1     -       4.0   1,001  truncated",
        "      2     7  -1,234.5  12,345  terminated, truncated",
        "3 episodes  14,346 steps  mean return -409.2, 95 % from -2,184.7 to 1,366.4",
        "median 3.0  min -1,234.5  max 4.0",
    ]
