"""Results of steps, declared info fields, and metadata of episodes."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

import stepwell as sw
from stepwell.buffers import SpecMismatch
from stepwell.collectors.loop.step_result import EpisodeMetadata, InfoReader, info_of


def vector_info(*infos: dict[str, Any]) -> dict[str, Any]:
    """The info of a vector env, as gymnasium builds it from those of single envs."""
    envs: VectorEnv[Any, Any, Any] = VectorEnv()
    envs.num_envs = len(infos)
    built: dict[str, Any] = {}
    for env, info in enumerate(infos):
        built = envs._add_info(built, info, env)
    return built


def read(missing: Any, *infos: dict[str, Any]) -> list[Any]:
    column = InfoReader({"x": missing}).read(vector_info(*infos), len(infos))["info/x"]
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
    """ale-py's dialect; there may be objects, too."""
    values = np.empty(2, object)
    values[:] = [[1, 2], [3, 4]]
    reader = InfoReader({"lives": -1, "x": np.zeros(2, np.int64)})
    found = reader.read({"lives": np.array([5, 4], np.int32), "x": values}, 2)
    assert found["info/lives"].tolist() == [5, 4]
    assert found["info/x"].tolist() == [[1, 2], [3, 4]]
    assert read(0, {"x": np.int16(3)}, {"x": 7}) == [3, 7]


@pytest.mark.parametrize(
    ("missing", "infos", "got"),
    [
        (0, [{"x": 1.5}], "one float64 .*1.5"),
        (np.int8(0), [{"x": 300}], "300 of int64"),
        (np.uint8(0), [{"x": -1}], "-1 of int64"),
        (0, [{"x": "text"}], ".*text"),
        (0, [{"x": np.ones(2, np.int64)}], r"int64 \(2,\)"),
        (np.zeros(3), [{"x": np.ones(2)}], r"float64 \(2,\)"),
        (0, [{"x": {"nested": 1}}], ".*nested"),
        (0, [{"x": None}], "None"),
    ],
)
def test_values_that_do_not_fit_are_refused(missing: Any, infos: Any, got: str) -> None:
    with pytest.raises(SpecMismatch, match=rf"'x': .*got {got}"):
        read(missing, *infos)


@pytest.mark.parametrize("missing", [None, "text", {"a": 1}, np.datetime64("2020-01-01")])
def test_what_stands_for_missing_must_be_a_number(missing: Any) -> None:
    with pytest.raises(TypeError, match=rf"'x': .*number.*got {re.escape(repr(missing))}"):
        InfoReader({"x": missing})


# Metadata of episodes


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"seed": 1}, ValueError, r"^metadata: .*stream_episode.*got 'seed'"),
        ({"x": np.zeros(2)}, TypeError, r"^metadata: .*JSON.*got {'x': array"),
        ({"x": float("nan")}, TypeError, r"^metadata: .*JSON.*got {'x': nan}"),
        ("task", TypeError, r"^metadata: .*got 'task'"),
    ],
)
def test_facts_that_cannot_be_kept_are_refused_at_once(
    metadata: Any, error: type[Exception], message: str
) -> None:
    envs = gymnasium.make_vec("CartPole-v1", 1)
    with pytest.raises(error, match=message):
        sw.Collector(envs, sw.RandomPolicy(), metadata=metadata)
    envs.close()


def test_a_function_must_return_a_mapping() -> None:
    facts = EpisodeMetadata(lambda env, info: 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^metadata: .*got 3"):
        facts.of(0, {}, 0)


def test_the_info_of_one_env_has_what_that_env_gave() -> None:
    info: dict[str, Any] = {
        "lives": np.array([3, 5]),
        "_lives": np.array([True, False]),
        "name": np.array(["a", None], object),
        "_name": np.array([True, False]),
        "episode": {"r": np.array([0.0, 2.5]), "_r": np.array([False, True])},
        "_episode": np.array([False, True]),
        "seeds": [7, 8],
        "level": np.array(2),  # one for all envs
    }
    assert info_of(info, 0) == {"lives": 3, "name": "a", "seeds": 7, "level": 2}
    assert info_of(info, 1) == {"episode": {"r": 2.5}, "seeds": 8, "level": 2}
