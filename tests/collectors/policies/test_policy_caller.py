"""Results of a policy are checked before an env gets them, and before anything is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import Spec
from stepwell.collectors.policies.policy_caller import PolicyCaller

OBSERVATION = spaces.Box(0, 1, (2,))
FIRST = np.array([True, False, False])
PAIR = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))
WITH_DICT = spaces.Tuple((spaces.Discrete(3), spaces.Dict({"a": spaces.Discrete(3)})))


def call(space: Any, *results: Any) -> Any:
    """Pass results of a policy to a `PolicyCaller` in turn; return its result for the last one."""
    queue, found = list(results), None
    spec = Spec.from_spaces(OBSERVATION, space)
    caller = PolicyCaller(lambda observation, is_first: queue.pop(0), space, spec, 3)
    for _ in results:
        found = caller(np.zeros((3, 2)), FIRST)
    return found


def numbers(*values: Any, dtype: Any = np.int64) -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("space", "result", "fields"),
    [
        (spaces.Discrete(3), [0, 1, 2], {"action": [0, 1, 2]}),
        (spaces.Discrete(3, start=-1), numbers(-1, 0, 1, dtype=np.int8), {"action": [-1, 0, 1]}),
        (spaces.MultiDiscrete([2, 3]), numbers((0, 2), (1, 1), (1, 0)), None),
        (spaces.MultiBinary(2), numbers((0, 1), (1, 1), (1, 0), dtype=bool), None),
        (spaces.Box(-1, 1, (1,), np.float32), np.full((3, 1), 7, np.float32), None),
        (PAIR, (numbers(0, 1, 2), np.zeros((3, 2), np.float32)), None),
        (WITH_DICT, (numbers(0, 1, 2), {"a": numbers(0, 1, 2)}), None),
    ],
)
def test_actions_are_taken_in_the_dtype_of_the_space(space: Any, result: Any, fields: Any) -> None:
    action, chosen, _ = call(space, result)
    spec = Spec.from_spaces(OBSERVATION, space)
    for field in spec.fields:
        if field.name.startswith("action"):
            assert chosen[field.name].dtype == field.numpy_dtype
            assert chosen[field.name].shape == (3, *field.shape)
    if fields is not None:
        assert {name: rows.tolist() for name, rows in chosen.items()} == fields
        assert action is chosen["action"]


@pytest.mark.parametrize(
    ("space", "result", "message"),
    [
        (spaces.Discrete(3), numbers(0, 1), r"action .*\(2,\).*int64.*expected \(3,\) and int64"),
        (
            spaces.Discrete(3),
            numbers(0, 1, 2, dtype=np.float64),
            r"action .*\(3,\).*float64.*expected \(3,\) and int64",
        ),
        (
            spaces.Box(-1, 1, (2,), np.float32),
            np.zeros((3, 2)),
            r"action .*\(3, 2\).*float64.*expected \(3, 2\) and float32.*Box\(-1\.0, 1\.0",
        ),
        (spaces.Discrete(3), None, r"action .*\(\).*object.*expected \(3,\) and int64"),
        (spaces.Discrete(3), (numbers(0, 1, 2), [1]), r"action .*extras"),
        (
            spaces.Discrete(3),
            (numbers(0, 1, 2), np.zeros(3), {}),
            r"action .*initial_state\(num_envs\)",
        ),
        (
            spaces.Discrete(3),
            (numbers(0, 1, 2), {"value": 0.0}),
            r"extra 'value' .*\(\).*\(3, \.\.\.\)",
        ),
        (spaces.Discrete(3, start=1), numbers(1, 2, 4), r"action 4 .*\[2\].*start=1"),
        (
            spaces.MultiDiscrete([2, 3]),
            numbers((0, 0), (0, 3), (1, 1)),
            r"action 3 .*\[1, 1\].*MultiDiscrete\(\[2 3\]\)",
        ),
        (
            spaces.MultiBinary(2),
            numbers((0, 1), (0, 2), (1, 1), dtype=np.int8),
            r"action 2 .*\[1, 1\].*MultiBinary\(2\)",
        ),
        (
            spaces.Box(-1, 1, (2,), np.float32),
            numbers((7, np.inf), (0, 0), (0, np.nan), dtype=np.float32),
            r"action nan .*\[2, 1\].*Box\(-1\.0, 1\.0",
        ),
        (
            PAIR,
            (numbers(0, 1, 2), numbers((0, 0), (np.nan, 0), (0, 0), dtype=np.float32)),
            r"action/1 nan .*\[1, 0\].*Box\(",
        ),
        (PAIR, (numbers(0, 1, 2),), r"actions: expected .*tuple of 2.*got .*tuple of 1"),
        (
            spaces.Dict({"a": spaces.Discrete(3)}),
            {"b": numbers(0, 1, 2)},
            r"actions: expected .*\['a'\].*got .*\['b'\]",
        ),
    ],
)
def test_wrong_actions_are_refused_in_one_sentence(space: Any, result: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^policy returned .*{message}"):
        call(space, result)


@pytest.mark.parametrize("space", [spaces.Discrete(3), PAIR, WITH_DICT, spaces.Tuple(PAIR[:1])])
def test_extras_are_distinguished_from_parts_of_the_action(space: Any) -> None:
    batch = {
        "Discrete(3)": numbers(0, 1, 2),
        str(PAIR): (numbers(0, 1, 2), np.zeros((3, 2), np.float32)),
        str(WITH_DICT): (numbers(0, 1, 2), {"a": numbers(0, 1, 2)}),
    }.get(str(space), (numbers(0, 1, 2),))
    _, chosen, _ = call(space, (batch, {"value": np.arange(3.0)}))
    assert chosen["extra/value"].tolist() == [0, 1, 2]
    assert "extra/a" not in chosen
    _, without, _ = call(space, batch)
    assert not any(name.startswith("extra") for name in without)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({}, r"extras \[\].*expected \['logits', 'value'\]"),
        (
            {"value": np.zeros(2), "logits": np.zeros((3, 4), np.float32)},
            r"'value' .*\(2,\).*float64.*expected .*\(3, \.\.\.\)",
        ),
        (
            {"value": np.zeros(3, np.float32), "logits": np.zeros((3, 4), np.float32)},
            r"'value' .*\(3,\).*float32.*expected \(3,\) and float64",
        ),
        (
            {"value": np.zeros(3), "logits": np.zeros((3, 5), np.float32)},
            r"'logits' .*\(3, 5\).*float32.*expected \(3, 4\) and float32",
        ),
        (
            {"value": np.array(["a", "b", "c"]), "logits": np.zeros((3, 4), np.float32)},
            r"'value' .*\(3,\).*<U1.*expected .*\(3, \.\.\.\)",
        ),
    ],
)
def test_extras_keep_the_names_dtypes_and_shapes_of_the_first_call(
    extras: dict[str, Any], message: str
) -> None:
    first = {"value": np.zeros(3), "logits": np.zeros((3, 4), np.float32)}
    with pytest.raises(ValueError, match=f"^policy returned .*{message}"):
        call(spaces.Discrete(3), (numbers(0, 1, 2), first), (numbers(0, 1, 2), extras))
