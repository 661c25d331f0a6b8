"""Advantages are the sums of the definition, for all kinds of ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stepwell.buffers import Bootstrap, Rollout
from stepwell.buffers.replay.advantages import generalized_advantages
from support.rows.rollout_rows import (
    Column,
    Ending,
    Part,
    expected_advantages,
    mask_of,
    rollout_of,
    rollouts,
)

SHARES = st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0])


def one_env(**changes: Any) -> Rollout:
    """One env, two rows of an open episode: values 1 and 2, then 3; rewards 4 and 5."""
    column = Column(2, (Part(0, (4.0, 5.0), (1.0, 2.0), "open", 3.0, True),))
    rollout = rollout_of([column])
    for name, value in changes.items():
        setattr(rollout, name, value)
    return rollout


@given(rollouts(), SHARES, SHARES, st.booleans())
def test_advantages_are_the_sums_of_the_definition(
    columns: Sequence[Column], gamma: float, lam: float, lists_terminated: bool
) -> None:
    rollout = rollout_of(columns, lists_terminated=lists_terminated)
    advantages, returns = rollout.advantages(gamma, lam)
    expected = expected_advantages(columns, gamma, lam)
    mask = mask_of(columns)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)
    assert not advantages[~mask].any()
    assert not returns[~mask].any()
    values = rollout.extras["value"]
    np.testing.assert_allclose(returns[mask], (expected + values)[mask], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows_between", [0, 1])
@pytest.mark.parametrize("ending", ["cut", "truncated"])
def test_a_bootstrapped_end_separates_the_sums(ending: Ending, rows_between: int) -> None:
    # 1 + 0.5 * 7 - 2 = 2.5, without the 100 after it.
    first = Part(0, (1.0,), (2.0,), ending, 7.0, True)
    second = Part(1 + rows_between, (100.0,), (0.0,), "terminated", 0.0, True)
    rollout = rollout_of([Column(2 + rows_between, (first, second))])
    assert rollout.advantages(0.5, 1.0)[0].ravel().tolist() == [2.5, *[0] * rows_between, 100]


@given(rollouts(), SHARES, SHARES)
def test_float32_values_give_float32_advantages_rounded_once(
    columns: Sequence[Column], gamma: float, lam: float
) -> None:
    exact = rollout_of(columns).advantages(gamma, lam)
    rounded = rollout_of(columns, dtype=np.float32).advantages(gamma, lam)
    for one, other in zip(exact, rounded, strict=True):
        assert other.dtype == np.float32
        assert other.tolist() == one.astype(np.float32).tolist()


def test_sums_of_many_rows_do_not_drift_in_float32() -> None:
    # Summed in float32, 4,096 rewards of 0.1 have an error of more than a thousandth.
    part = Part(0, (np.float32(0.1).item(),) * 4096, (0.0,) * 4096, "terminated", 0.0, True)
    advantages, _ = rollout_of([Column(4096, (part,))], dtype=np.float32).advantages(1.0, 1.0)
    assert advantages[0, 0] == np.float32(4096 * np.float64(np.float32(0.1)))


@given(rollouts(), SHARES, SHARES)
def test_a_bootstrap_function_is_called_once_for_all_open_ends(
    columns: Sequence[Column], gamma: float, lam: float
) -> None:
    rollout = rollout_of(columns)
    expected = rollout.advantages(gamma, lam)
    worth = rollout.bootstrap.observation["worth"]
    seen: list[object] = []

    def value(observation: Any) -> np.ndarray:
        seen.append(observation["worth"])
        return observation["worth"]  # type: ignore[no-any-return]

    rollout.bootstrap = rollout.bootstrap._replace(value=None)
    found = rollout.advantages(gamma, lam, bootstrap_value=value)
    assert len(seen) == (len(worth) > 0)
    assert all(given is worth for given in seen)
    if not len(worth):  # no value is needed
        assert rollout.advantages(gamma, lam)[0].tolist() == expected[0].tolist()
    assert found[0].tolist() == expected[0].tolist()


def test_a_bootstrap_function_gets_the_state_after_the_open_ends() -> None:
    rollout = one_env()
    state = {"h": np.array([[8.0]])}
    rollout.bootstrap = rollout.bootstrap._replace(state=state, value=None)

    def value(observation: Any, given: Any) -> np.ndarray:
        assert given is state
        return observation["worth"] + given["h"][:, 0]  # type: ignore[no-any-return]

    advantages, _ = rollout.advantages(1.0, 0.0, bootstrap_value=value)
    assert advantages.ravel().tolist() == [5.0, 14.0]


def test_the_rollout_keeps_the_last_result() -> None:
    rollout = one_env()
    assert rollout.advantage is None
    assert rollout.returns is None
    for lam in (0.0, 1.0):
        advantages, returns = rollout.advantages(1.0, lam)
        assert rollout.advantage is advantages
        assert rollout.returns is returns


def test_values_may_be_tensors_that_require_gradients() -> None:
    torch = pytest.importorskip("torch")
    value = torch.tensor([[1.0], [2.0]], requires_grad=True)
    bootstrap = torch.tensor([3.0], requires_grad=True)
    rollout = one_env()
    found = rollout.advantages(1.0, 0.5, value=value, bootstrap_value=lambda observation: bootstrap)
    assert [array.dtype for array in found] == [np.float32, np.float32]
    expected = one_env().advantages(1.0, 0.5)
    assert [array.tolist() for array in found] == [array.tolist() for array in expected]


NO_VALUE = one_env().bootstrap._replace(value=None)
IN_ROW_1 = r"\brow 1 of env 0\b"
NO_END = r"^row 0 of env 0: .*\bterminated, truncated or cut\b"


def also(step: int, env: int) -> Bootstrap:
    """The open end, and another row."""
    return Bootstrap(np.array([1, step]), np.array([0, env]), np.zeros(2), None, np.zeros(2))


ONE_STEP = {"mask": np.array([[True], [False]]), "cut": np.array([[True], [False]])}


@pytest.mark.parametrize(
    ("changes", "arguments", "match"),
    [
        ({}, {"gamma": -0.01}, r"^gamma: .*\b0 to 1\b.* -0\.01\b"),
        ({}, {"gamma": np.nan}, r"^gamma: .*\b0 to 1\b.* nan\b"),
        ({}, {"lam": 1.01}, r"^lam: .*\b0 to 1\b.* 1\.01\b"),
        ({"extras": {"log_prob": np.zeros((2, 1))}}, {}, r"^value: .*'value'.*'log_prob'"),
        ({"extras": {}}, {}, r"^value: .*'value'.*\bnone\b"),
        ({"extras": {"value": np.zeros(2)}}, {}, r"^extra 'value': .*\(2, 1\).* \(2,\);"),
        ({}, {"value": np.zeros((2, 1, 1))}, r"^value: .*\(2, 1\).* \(2, 1, 1\);"),
        ({}, {"value": np.zeros((1, 2))}, r"^value: .*\(2, 1\).* \(1, 2\);"),
        ({}, {"value": np.zeros((2, 1), np.int64)}, r"^value: .*\bint64\b"),
        ({}, {"value": np.full((2, 1), None)}, r"^value: .*\bobject\b"),
        ({}, {"value": np.array([[1.0], [np.nan]])}, rf"^value: .* nan .*{IN_ROW_1}"),
        ({"reward": np.array([[1.0], [np.inf]])}, {}, rf"^reward: .* inf .*{IN_ROW_1}"),
        ({"bootstrap": NO_VALUE}, {}, r"\b1 open ends.*None\b.*bootstrap_value="),
        ({}, {"bootstrap_value": lambda seen: None}, r"\bbootstrap_value: .*\b1 open ends.*None\b"),
        ({}, {"bootstrap_value": lambda seen: np.zeros(2)}, r"_value: .*\(1,\).* \(2,\);"),
        ({}, {"bootstrap_value": np.zeros((1, 1))}, r"_value: .*\(1,\).* \(1, 1\);"),
        ({}, {"bootstrap_value": np.zeros(())}, r"_value: .*\(1,\).* \(\);"),
        ({}, {"bootstrap_value": np.array([np.inf])}, rf"_value: .* inf .*{IN_ROW_1}"),
        ({"bootstrap": also(0, 0)}, {}, r"^bootstrap: .*\brow 0 of env 0\b.*\b1 times"),
        ({**ONE_STEP, "bootstrap": also(0, 0)}, {}, rf"^bootstrap: .*{IN_ROW_1}.*\b1 times"),
        ({"bootstrap": also(2, 0)}, {}, r"\[2, 1\].*\brow 2 of env 0\b"),
        ({"bootstrap": also(0, -1)}, {}, r"\[2, 1\].*\brow 0 of env -1\b"),
        ({"is_first": np.array([[True], [True]])}, {}, rf"{NO_END}.*begins.*\bnone\b"),
        ({"mask": np.array([[True], [False]])}, {}, rf"{NO_END}.*no step.*\bnone\b"),
    ],
)
def test_wrong_arrays_and_numbers_are_refused(
    changes: dict[str, Any], arguments: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        one_env(**changes).advantages(**{"gamma": 0.9, "lam": 0.9, **arguments})


@pytest.mark.proof
@given(rollouts(), st.data())
def test_an_open_end_that_is_not_listed_once_is_refused(
    columns: Sequence[Column], data: st.DataObject
) -> None:
    rollout = rollout_of(columns)
    count = len(rollout.bootstrap.step)
    assume(count)
    changed = data.draw(st.integers(0, count - 1))
    others = np.delete(np.arange(count), changed)
    for times, kept in ((0, others), (2, np.array([*range(count), changed]))):
        step, env = rollout.bootstrap.step[kept], rollout.bootstrap.env[kept]
        value = np.zeros(len(kept))
        wrong = replace(rollout, bootstrap=Bootstrap(step, env, value, None, value))
        match = rf"^bootstrap: .*\brow \d+ of env \d+\b.*\b{times} times"
        with pytest.raises(ValueError, match=match):
            wrong.advantages(0.9, 0.9)


def test_the_function_accepts_one_env_and_refuses_other_shapes() -> None:
    reward, never = np.ones(3), np.zeros(3, bool)
    found = generalized_advantages(
        reward, np.zeros(3), np.zeros(3), terminated=never, ends=never, gamma=1.0, lam=1.0
    )
    assert found.tolist() == [3.0, 2.0, 1.0]
    nothing = np.array([1.0, 1.0, np.nan])  # in a row without a step
    found = generalized_advantages(
        *(nothing, np.zeros(3), nothing - 1),
        terminated=never,
        ends=~never,
        gamma=1.0,
        lam=1.0,
        mask=np.array([True, True, False]),
    )
    assert found.tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match=r"^next_value: .*reward.*\(3,\).*\(4,\)"):
        generalized_advantages(
            reward, np.zeros(3), np.zeros(4), terminated=never, ends=never, gamma=1.0, lam=1.0
        )
