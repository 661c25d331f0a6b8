"""A condition on metadata selects episodes, also after additions, evictions and losses."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import Chunk, End, NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.storage.episode_filter import chooses
from stepwell.buffers.testing import SPEC, Recording


def task_of(episode: int) -> str:
    return "door" if episode % 3 else "key"


def with_task(chunk: Chunk) -> Chunk:
    metadata = {"task": task_of(chunk.episode), "seed": chunk.episode}
    return Chunk(chunk.episode, chunk.stream, chunk.first_row, chunk.end, chunk.fields, metadata)


def filled(**options: Any) -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer(seed=0, **options)
    replay.bind(SPEC, {})
    return replay


ENDS = st.sampled_from([End.NONE, End.PENDING, End.TERMINATED])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), ENDS), min_size=1, max_size=40))
def test_windows_come_from_the_chosen_episodes_only(calls: list[tuple[int, int, End]]) -> None:
    recording, replay = Recording(), filled(capacity=64)
    for number, call in enumerate(calls):
        replay.add([with_task(recording.chunk(*call))])
        if number % 5 == 4:
            check_task(replay, "key")
    check_task(replay, "door")


def check_task(replay: SequenceReplayBuffer, task: str) -> None:
    expected = [e for e in replay.iter_episodes() if task_of(e.id) == task]
    found = list(replay.iter_episodes(where={"task": task}))
    assert [(e.id, e.first_row, e.rows) for e in found] == [
        (e.id, e.first_row, e.rows) for e in expected
    ]
    assert all(e.metadata["task"] == task for e in found)
    windows = {(e.reward[start], e.action[start]) for e in expected for start in range(e.rows - 1)}
    if not windows:
        with pytest.raises(NotEnoughData, match=rf"where={{'task': '{task}'}}"):
            replay.sample_sequences(4, 2, where={"task": task})
        return
    batch = replay.sample_sequences(8 * len(windows) + 20, 2, where={"task": task})
    drawn = set(zip(batch.reward[:, 0].tolist(), batch.action[:, 0].tolist(), strict=True))
    assert drawn <= {(np.float32(reward), action) for reward, action in windows}


def test_a_function_is_called_once_for_each_episode() -> None:
    replay, recording, seeds = filled(), Recording(), list[object]()
    for _ in range(6):
        replay.add([with_task(recording.chunk(0, 5, End.PENDING))])
        replay.add([with_task(recording.chunk(0, 5, End.TERMINATED))])

    def is_late(metadata: Mapping[str, object]) -> bool:
        seeds.append(metadata["seed"])
        return bool(metadata["seed"] in (4, 5))

    for _ in range(3):
        replay.sample_sequences(4, 3, where=is_late)
    assert seeds == [0, 1, 2, 3, 4, 5]
    replay.add([with_task(recording.chunk(0, 5, End.TERMINATED))])
    replay.sample_sequences(4, 3, where=is_late)
    assert seeds == [0, 1, 2, 3, 4, 5, 6]


def called(make: Any, draws: int = 3) -> tuple[int, list[set[object]]]:
    """How many episodes ``make(counted)`` was asked about, and which each draw chose.

    Args:
        make: Makes a condition that calls ``counted`` for each episode; called for each draw.
        draws: Number of draws.
    """
    replay, recording, calls = filled(), Recording(), 0
    for _ in range(6):
        replay.add([with_task(recording.chunk(0, 5, End.TERMINATED))])

    class Counted(dict[str, object]):
        def __getitem__(self, key: str) -> object:
            nonlocal calls
            calls += 1
            return super().__getitem__(key)

    sampler = replay._require_sampler()
    metadata = sampler._filters._metadata
    sampler._filters._metadata = lambda position: Counted(metadata(position))
    chosen = []
    for number in range(draws):
        chosen.append({e.metadata["seed"] for e in replay.iter_episodes(where=make(number))})
    return calls, chosen


LIMIT = 3


def below(seed: int, limit: int = 2) -> bool:
    return seed < limit


def below_limit(seed: int) -> bool:
    return seed < LIMIT


def closing_over(value: Any) -> Any:
    return lambda facts: facts["seed"] in value


ALIKE: dict[str, Any] = {
    "number": lambda _: (lambda limit: lambda facts: facts["seed"] > limit)(3),
    "set": lambda _: closing_over({1, 2}),
    "dict": lambda _: closing_over({1: "a", 2: (3.0, None)}),
    "array": lambda _: closing_over(np.arange(3)),
    "default": lambda _: lambda facts, limit=3: facts["seed"] > limit,
    "partial": lambda _: functools.partial(lambda limit, facts: facts["seed"] > limit, 3),
    "global": lambda _: lambda facts: facts["seed"] > LIMIT,
    "function": lambda _: lambda facts: below(facts["seed"]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_functions_of_equal_code_and_values_are_one_condition(name: str) -> None:
    calls, chosen = called(ALIKE[name])
    assert calls == called(ALIKE[name], draws=1)[0]
    assert chosen[0] == chosen[1] == chosen[2]


TASK, SEEDS = SimpleNamespace(seed=0), [0]


def changing_attribute(number: int) -> Any:
    TASK.seed = number
    return lambda facts: facts["seed"] == TASK.seed


def changing_list(number: int) -> Any:
    SEEDS[:] = [number]
    return lambda facts: facts["seed"] in SEEDS


def changing_global(number: int) -> Any:
    globals()["LIMIT"] = number + 1
    return lambda facts: facts["seed"] < LIMIT and facts["seed"] >= LIMIT - 1


def changing_global_of_a_function(number: int) -> Any:
    globals()["LIMIT"] = number + 1
    return lambda facts: below_limit(facts["seed"]) and facts["seed"] >= number


OTHERS: dict[str, Any] = {
    "number": lambda number: lambda facts: facts["seed"] == number,
    "default": lambda number: lambda facts, seed=number: facts["seed"] == seed,
    "partial": lambda number: functools.partial(lambda s, facts: facts["seed"] == s, number),
    "method": lambda number: closing_over([number]).__call__,
    "attribute": changing_attribute,
    "list": changing_list,
    "global": changing_global,
    "global of a function": changing_global_of_a_function,
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_function_that_refers_to_another_value_is_another_condition(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "LIMIT", LIMIT)
    _, chosen = called(OTHERS[name])
    assert chosen == [{0}, {1}, {2}]


def test_new_episodes_are_asked_about_by_the_newest_function() -> None:
    replay, recording = filled(), Recording()

    def add() -> None:
        replay.add([with_task(recording.chunk(0, 5, End.TERMINATED))])

    add()

    def loop(first: str) -> Iterator[set[object]]:
        for task in (first, "nothing"):
            where = lambda facts: facts["task"] == task  # noqa: B023, E731
            yield {e.metadata["seed"] for e in replay.iter_episodes(where=where)}

    before = loop("key")
    assert next(before) == {0}
    assert next(before) == set()  # now the first function means "nothing", too
    for _ in range(3):
        add()
    assert next(loop("key")) == {0, 3}


@pytest.mark.parametrize(
    ("where", "metadata", "expected"),
    [
        ({}, {}, True),
        ({"a": 1}, {}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 3}, {"a": 1, "b": 2}, False),
        ({"a": np.int64(1)}, {"a": 1}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": (1, 2)}, {"a": [1, 2]}, True),
        ({"a": "1"}, {"a": 1}, False),
        (lambda metadata: metadata["a"] > 2, {"a": 3}, True),
    ],
)
def test_a_mapping_selects_equal_values(where: Any, metadata: Any, expected: bool) -> None:
    assert chooses(where, metadata) is expected


def test_a_where_that_is_no_mapping_or_function_is_refused() -> None:
    replay = filled()
    replay.add([Recording().chunk(0, 5, End.TERMINATED)])
    with pytest.raises(TypeError, match=r"^where: .*mapping.*'task'$"):
        replay.sample_sequences(1, 1, where="task")  # type: ignore[arg-type]


def test_caches_of_conditions_are_bounded() -> None:
    replay, recording = filled(), Recording()
    replay.add([with_task(recording.chunk(0, 5, End.TERMINATED))])
    for number in range(50):
        replay.sample_sequences(1, 1, where=lambda metadata, number=number: bool(number >= 0))
    sampler = replay._sampler
    assert sampler is not None
    assert len(sampler._filters._filters) <= 8
    assert len(sampler._makers) <= 16
    assert len(replay.storage.index._counts) <= 16
