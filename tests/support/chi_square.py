"""Pearson's chi-square test of counts against probabilities, without scipy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_ONE_IN_TEN_THOUSAND = 3.719  # standard deviations of a normal variable that 0.9999 stay below
_LEAST_EXPECTED = 8.0  # rarer ones are counted together, or the law is not that of chi-square


def limit(freedom: int) -> float:
    """The 99.99 % quantile of chi-square, accurate to 2 % from 5 degrees of freedom on.

    Wilson and Hilferty, The distribution of chi-square, 1931: the cube root is nearly normal.
    """
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + _ONE_IN_TEN_THOUSAND * math.sqrt(spread)) ** 3)


def surprise(counts: Mapping[Any, int], shares: Mapping[Any, float]) -> float:
    """Chi-square of counts as a part of its limit: above 1 the counts contradict the shares.

    Args:
        counts: How often each thing came.
        shares: How often it should, in proportion; what has no share must not come.
    """
    assert set(counts) <= {key for key, share in shares.items() if share > 0}
    total, whole = sum(counts.values()), sum(shares.values())
    square, groups, expected, found = 0.0, 0, 0.0, 0
    ordered = sorted(shares.items(), key=lambda pair: pair[1])
    for number, (key, share) in enumerate(ordered):
        expected += total * share / whole
        found += counts.get(key, 0)
        rest = total * sum(share for _, share in ordered[number + 1 :]) / whole
        if expected >= _LEAST_EXPECTED and (rest >= _LEAST_EXPECTED or rest == 0):
            square += (found - expected) ** 2 / expected
            groups, expected, found = groups + 1, 0.0, 0
    assert groups > 1
    return square / limit(groups - 1)


def assert_shares(counts: Mapping[Any, int], shares: Mapping[Any, float]) -> None:
    """Assert that the counts agree with the shares."""
    assert surprise(counts, shares) < 1
