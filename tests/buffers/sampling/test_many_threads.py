"""While one thread writes, others draw consistent rows of one episode."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Batch, End, SequenceReplayBuffer
from stepwell.buffers.sampling.batch import TransitionBatch
from support.models.replay_histories import busy_history
from support.models.replay_model import fields_of, next_fields_of
from support.rows.replay_rows import Played, Row, Step, numbered, numbered_spec

Draw = Callable[[SequenceReplayBuffer, np.random.Generator], Batch | TransitionBatch]
CHOSEN = ("action", "extra/memory", "extra/code")  # zeros where no action was chosen


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Switch between Python's threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def rows_at(place: np.ndarray) -> list[Row]:
    """The rows that [n, 3] observations name."""
    return [Row(stream, episode, number, 0, True) for stream, episode, number in place.tolist()]


def assert_consistent(batch: Batch | TransitionBatch) -> None:
    """Each drawn row is consistent, and the rows of a sequence are consecutive."""
    place = batch.observation["place"]
    if isinstance(batch, TransitionBatch):
        _assert_rows(batch, np.ones(len(place), np.bool_))
        steps = batch.next_observation["place"] - place
        assert (steps[:, :2] == 0).all()
        assert (steps[:, 2] == batch.steps).all()
        return
    mask = batch.mask
    assert mask.any()
    _assert_rows(batch, mask)
    follows = mask[:, 1:] & mask[:, :-1] & ~batch.is_first[:, 1:]
    assert (np.diff(place, axis=1)[follows] == [0, 0, 1]).all()
    assert ((place[..., 2] == 0) == batch.is_first)[mask].all()
    assert (mask.sum(axis=1) == batch.lengths).all()


def _assert_rows(batch: Batch | TransitionBatch, mask: np.ndarray) -> None:
    """Each field belongs to the row that the observation names."""
    now = then = numbered(rows_at(batch.observation["place"][mask]))
    arrays = list(fields_of(batch))
    if batch.next_observation is not None:
        then = numbered(rows_at(batch.next_observation["place"][mask]))
        arrays += next_fields_of(batch)
    for name, array, is_next in arrays:
        if name == "reward" and isinstance(batch, TransitionBatch):
            continue  # of several rows
        is_of_next = is_next or name.partition("/")[0] in ("info", "reward")
        rows, expected = array[mask], (then if is_of_next else now)[name]
        if name in CHOSEN:
            is_chosen = rows.reshape(len(rows), -1).any(axis=1)
            rows, expected = rows[is_chosen], expected[is_chosen]
        if rows.ndim > expected.ndim:
            rows = rows[:, -1]  # the newest frame of a stack
        assert (rows == expected).all(), name


SAMPLERS: dict[str, Draw] = {
    "inside": lambda replay, rng: replay.sample_sequences(16, 5, rng=rng),
    "large": lambda replay, rng: replay.sample_sequences(64, 60, borders="pad_after", rng=rng),
    "cross": lambda replay, rng: replay.sample_sequences(
        16, 9, borders="cross", burn_in=2, stack=True, rng=rng
    ),
    "transition": lambda replay, rng: replay.sample_sequences(
        16, 6, borders="pad_before", align="transition", rng=rng
    ),
    "own generator": lambda replay, rng: replay.sample_sequences(16, 3, draw="recent"),
    "newest": lambda replay, rng: replay.sample_sequences(4, 3, draw="newest"),
    "stacks": lambda replay, rng: replay.sample_transitions(32, rng=rng),
    "steps": lambda replay, rng: replay.sample_transitions(32, n_step=3, stack=False, rng=rng),
    "episodes": lambda replay, rng: replay.sample_episodes(3, rng=rng),
}


def write_and_draw(played: Played, seconds: float, samplers: dict[str, Draw]) -> None:
    """Write in this thread while the others draw."""
    steps, is_over = busy_history(10**9), threading.Event()
    for end in (End.PENDING, End.TERMINATED, End.PENDING):
        played.add(*(Step(stream, 60, end) for stream in range(3)))
    now = time.monotonic()

    def draw(seed: int, sampler: Draw) -> int:
        rng, count = np.random.default_rng(seed), 0
        try:
            while not is_over.is_set():
                assert_consistent(sampler(played.replay, rng))
                count += 1
        finally:
            is_over.set()  # one that fails ends all
        return count

    with frequent_switches(), ThreadPoolExecutor(len(samplers)) as threads:
        drawn = [threads.submit(draw, *each) for each in enumerate(samplers.values())]
        while not is_over.is_set() and time.monotonic() < now + 10 * seconds:
            played.replay.add([played.recording.chunk(*next(steps)[:3])])
            is_enough = played.capacity is None or played.replay.storage.index.base > 5
            if time.monotonic() > now + seconds and is_enough:
                break
            time.sleep(0.001)
        is_over.set()
    counts = {name: each.result() for name, each in zip(samplers, drawn, strict=True)}
    assert min(counts.values()) > 0, counts


@pytest.fixture(params=[1.0, pytest.param(60.0, marks=pytest.mark.full)])
def seconds(request: pytest.FixtureRequest) -> float:
    value: float = request.param
    return value


@pytest.mark.proof
@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize("capacity", [None, 560])
def test_batches_are_consistent_while_another_thread_writes(
    is_on_disk: bool, capacity: int | None, seconds: float, tmp_path: Path
) -> None:
    path = tmp_path / "store" if is_on_disk else None
    with Played(numbered_spec(3, "repeat"), path, capacity, threads=2) as played:
        write_and_draw(played, seconds, SAMPLERS)
        assert (played.replay.storage.index.base > 0) == (capacity is not None)


@pytest.mark.proof
def test_priorities_are_drawn_and_updated_while_another_thread_writes(
    seconds: float, tmp_path: Path
) -> None:
    def draw_and_update(replay: SequenceReplayBuffer, rng: np.random.Generator) -> Any:
        batch = replay.sample_transitions(32, draw="priorities", rng=rng)
        replay.update_priorities(batch.ids, rng.exponential(size=32))
        return batch

    samplers: dict[str, Draw] = {"one": draw_and_update, "two": draw_and_update}
    samplers["steps"] = SAMPLERS["steps"]
    for path in (None, tmp_path / "store"):
        with Played(numbered_spec(3, "zero"), path, 560) as played:
            write_and_draw(played, seconds / 2, samplers)
