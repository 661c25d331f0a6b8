"""Declared info fields are read, whatever keys come and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from stepwell.buffers import SpecMismatch
from stepwell.collectors.step_result import InfoReader, StepResult


def info_of(*infos: dict[str, Any]) -> dict[str, Any]:
    """The info of a vector env, as gymnasium builds it from those of single envs."""
    envs: VectorEnv[Any, Any, Any] = VectorEnv()
    envs.num_envs = len(infos)
    built: dict[str, Any] = {}
    for env, info in enumerate(infos):
        built = envs._add_info(built, info, env)
    return built


def read(missing: Any, *infos: dict[str, Any]) -> list[Any]:
    column = InfoReader({"x": missing}).read(info_of(*infos), len(infos))["info/x"]
    assert column.dtype == np.asarray(missing).dtype
    values: list[Any] = column.tolist()
    return values


@pytest.mark.parametrize(
    ("missing", "infos", "expected"),
    [
        (-1, [{"x": 3}, {}, {"x": 5}], [3, -1, 5]),
        (-1.0, [{"x": 3}, {}, {"x": 5}], [3.0, -1.0, 5.0]),
        (False, [{"x": True}, {}], [True, False]),
        (np.int8(0), [{"x": 3}, {"x": -4}], [3, -4]),
        (np.zeros(2), [{"x": np.ones(2)}, {}], [[1, 1], [0, 0]]),
        (0, [{"x": 4}, {"y": 1}], [4, 0]),
        (0, [{}, {}], [0, 0]),
    ],
)
def test_values_are_read_where_they_are(missing: Any, infos: Any, expected: Any) -> None:
    assert read(missing, *infos) == expected


def test_arrays_without_a_mask_hold_for_all_envs() -> None:
    """ale-py's dialect."""
    reader = InfoReader({"lives": -1})
    assert reader.read({"lives": np.array([5, 4], np.int32)}, 2)["info/lives"].tolist() == [5, 4]


def test_lists_and_objects_are_read_too() -> None:
    assert read(0, {"x": np.int16(3)}, {"x": 7}) == [3, 7]
    reader = InfoReader({"x": np.zeros(2, np.int64)})
    values = np.empty(2, object)
    values[:] = [[1, 2], [3, 4]]
    assert reader.read({"x": values}, 2)["info/x"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("missing", "infos", "got"),
    [
        (0, [{"x": 1.5}], r"float64 of shape \(\)"),
        (np.int8(0), [{"x": 300}], r"int64 of shape \(\)"),
        (np.uint8(0), [{"x": -1}], r"int64 of shape \(\)"),
        (0, [{"x": "text"}], r"<U4 of shape \(\)"),
        (0, [{"x": np.ones(2, np.int64)}], r"int64 of shape \(2,\)"),
        (np.zeros(3), [{"x": np.ones(2)}], r"float64 of shape \(2,\)"),
        (0, [{"x": {"nested": 1}}], r"object of shape \(\)"),
        (0, [{"x": None}], r"object of shape \(\)"),
    ],
)
def test_values_that_do_not_fit_are_refused(missing: Any, infos: Any, got: str) -> None:
    with pytest.raises(SpecMismatch, match=rf"info field 'x': expected .*, got {got}; declare a m"):
        read(missing, *infos)


@pytest.mark.parametrize("missing", [None, "text", {"a": 1}, np.datetime64("2020-01-01")])
def test_what_stands_for_missing_must_be_a_number(missing: Any) -> None:
    with pytest.raises(TypeError, match="info field 'x': expected a number or an array of them"):
        InfoReader({"x": missing})


def test_some_rows_of_an_arrival() -> None:
    marks = np.array([True, False, True])
    whole = StepResult(
        None, {"o": np.arange(3)}, np.arange(3.0), marks, None, ~marks, {0: {"seed": 1}}
    )
    part = whole.only(np.array([False, True, True]), np.array([4, 5, 6]))
    assert part.env_ids is not None
    assert part.is_first is not None
    assert part.truncated is not None
    assert part.env_ids.tolist() == [5, 6]
    assert part.leaves["o"].tolist() == [1, 2]
    assert part.reward.tolist() == [1, 2]
    assert part.is_first.tolist() == [False, True]
    assert part.truncated.tolist() == [True, False]
    assert part.terminated is None
    assert (whole.steps, part.steps) == (1, 1)
