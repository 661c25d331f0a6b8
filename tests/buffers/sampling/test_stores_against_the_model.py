"""Stores that are being written, joined stores, and damaged stores agree with the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from stepwell.buffers import DiskStorage, End, SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Borders, Sequences, Transitions
from support.disk_stores import spoil
from support.models.replay_histories import busy_history
from support.models.replay_model import Stored, assert_drawn
from support.rows.replay_rows import ModelEpisode, Played, Step, numbered_spec

SPEC = numbered_spec(3, "repeat")
REQUESTS: list[Sequences | Transitions] = [
    *(Sequences(40, 4, borders) for borders in get_args(Borders)),
    Sequences(40, 3, "cross", align="transition", burn_in=2, stack=True),
    Sequences(40, 3, "pad_before", "recent", burn_in=2, stack=True),
    Sequences(40, 3, draw="episodes", align="transition"),
    Transitions(40),
    Transitions(40, n_step=3, draw="ends", stack=False),
]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def check(replay: SequenceReplayBuffer, episodes: Sequence[ModelEpisode]) -> None:
    """All requests agree with the model."""
    for request in REQUESTS:
        assert_drawn(Stored(SPEC, episodes), replay.sample(request), request, 3)


@pytest.mark.proof
def test_a_reader_follows_a_writer_from_refresh_to_refresh(stack: ExitStack) -> None:
    """Cached data of chunks is dropped when they are evicted, superseded or renumbered."""
    written = stack.enter_context(Played(SPEC, Path("store"), 150))
    steps = busy_history(10**9)
    for _ in range(12):
        written.add(next(steps))
    reader = stack.enter_context(SequenceReplayBuffer.open("store", read_only=True, seed=0))
    for _ in range(12):
        check(reader, written.episodes)
        for _ in range(6):
            written.add(next(steps))
        assert reader.refresh()
    assert written.replay.storage.index.base > 0


def of_store(number: int, episodes: Sequence[ModelEpisode]) -> list[ModelEpisode]:
    """The episodes with the ids that their rows have among several stores."""
    return [
        replace(each, rows=[row._replace(id=row.id + (number << 48)) for row in each.rows])
        for each in episodes
    ]


@pytest.mark.parametrize("weights", [None, pytest.param([1.0, 3.0, 0.5], marks=pytest.mark.proof)])
def test_joined_stores_are_drawn_from_like_single_ones(weights: Any, stack: ExitStack) -> None:
    specs = [SPEC, SPEC.with_codecs({"info": "raw", "observation": "raw"}), SPEC]
    stores = [
        stack.enter_context(Played(spec, Path(f"store-{number}"), capacity))
        for number, (spec, capacity) in enumerate(zip(specs, [None, 120, 150], strict=True))
    ]
    for number, store in enumerate(stores):
        # Different streams and episodes in each store.
        store.recording.next_episode = 100 * number
        for step in busy_history(25 + 10 * number):
            store.add(step._replace(stream=step.stream + 10 * number))
    paths = [Path(f"store-{number}") for number in range(3)]
    many = stack.enter_context(SequenceReplayBuffer.open(paths, weights=weights, seed=0))
    for turn in range(4):
        episodes = [
            each for number, store in enumerate(stores) for each in of_store(number, store.episodes)
        ]
        check(many, episodes)
        found = [(each.id, each.stream, each.first_row, each.rows) for each in many.iter_episodes()]
        assert found == [
            ((k << 48) + each.id, (k << 32) + each.stream, each.head, len(each.rows))
            for k, store in enumerate(stores)
            for each in store.episodes
        ]
        assert many.steps == sum(store.replay.steps for store in stores)
        assert len(many) == sum(len(store.replay) for store in stores)
        for step in busy_history(5):
            stores[turn % 3].add(step._replace(stream=step.stream + 10 * (turn % 3)))
        assert many.refresh()


def with_holes() -> SequenceReplayBuffer:
    """Episodes of 32 and 8 rows; the second and the last chunk of the first one are damaged."""
    with Played(SPEC, Path("store")) as written:
        for rows in (8, 8, 8):
            written.add(Step(0, rows, End.PENDING))
        written.add(Step(0, 8, End.TERMINATED))
        written.add(Step(0, 8, End.TERMINATED))
        storage = written.replay.storage
        assert isinstance(storage, DiskStorage)
        for position in (1, 3):
            spoil(storage, position)
    return SequenceReplayBuffer.open("store", read_only=True, on_corrupt="skip", seed=0)


@pytest.mark.parametrize("borders", get_args(Borders))
@pytest.mark.parametrize("align", ["arrival", "transition"])
def test_rows_are_not_joined_across_a_damaged_chunk(borders: Borders, align: Any) -> None:
    """The pending row before it stays, though the damaged chunk replaced it."""
    with closing(with_holes()) as reader:
        for _ in range(4):
            batch = reader.sample_sequences(200, 3, borders=borders, align=align, burn_in=1)
            place = np.asarray(batch.observation["place"])
            neighbours = batch.mask[:, 1:] & batch.mask[:, :-1] & ~batch.is_first[:, 1:]
            assert (np.diff(place, axis=1)[neighbours] == [0, 0, 1]).all()
            if align == "transition":
                then = batch.next_observation["place"]
                assert ((then - place)[batch.mask] == [0, 0, 1]).all()
            found = {tuple(row) for row in place[batch.mask][:, 1:].tolist()}
            lost = {(0, row) for row in [*range(8, 15), *range(24, 31)]}
            assert not found & lost
        assert reader.lost_chunks == 2
        single = reader.sample_sequences(600, 1).observation["place"][:, 0, 1:]
        held = [*range(8), *range(15, 24)]
        assert {tuple(row) for row in single.tolist()} == {
            *((0, row) for row in held),
            *((1, row) for row in range(8)),
        }


def test_priorities_find_their_rows_after_a_damaged_chunk() -> None:
    """Row ids have gaps there, and lost rows are ignored like evicted ones."""
    with closing(with_holes()) as reader:
        request = Transitions(1_000, draw="priorities", stack=False, beta=1.0)
        batch = reader.sample(request)
        held = [*range(7), *range(17, 25), *range(35, 42)]
        assert sorted(set(batch.ids.tolist())) == held
        assert (batch.weights == 1).all()
        some = np.array([3, 7, 8, 20, 30, 36, 10_000])
        assert reader.update_priorities(some, np.full(7, 9.0)) == 4
        batch = reader.sample(request)
        lowered = set(batch.ids[batch.weights < 1].tolist())
        assert lowered == {3, 20, 36}
        assert batch.weights.min() == pytest.approx(9**-0.6, rel=1e-3)
