"""draw="newest": each tile of rows once and in the order of its rows, then any sequence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import End, NotEnoughData
from stepwell.buffers.sampling.requests import Sequences, Transitions
from support.chi_square import assert_shares
from support.models.replay_histories import (
    HISTORIES,
    KINDS,
    Kind,
    a_replay,
    busy_history,
    whole_episodes,
)
from support.models.replay_model import assert_drawn, by_id, drawable, sequences
from support.rows.replay_rows import ModelEpisode, Played, Row, Step, streams_of


def tiles(episodes: list[ModelEpisode], request: Sequences, stack: int = 1) -> list[int]:
    """Ids of the first rows of the tiles, in order; streams need all of their rows."""
    width = request.length + (request.align == "transition")
    before = request.burn_in + (stack - 1 if request.stack else 0)
    found: list[tuple[Row, Row]] = []
    for line, first in _lines(episodes, request):
        for start in range(-first % request.length, len(line) - width + 1, request.length):
            last = line[start + width - 1]
            is_whole = line[0].number == 0 or start >= before
            if is_whole and not _is_pending(last, episodes):
                found.append((last, line[start]))
    return [row.id for _, row in sorted(found, key=lambda pair: pair[0].id)]


def _lines(episodes: list[ModelEpisode], request: Sequences) -> Iterator[tuple[list[Row], int]]:
    """Consecutive rows, and the number of the first one."""
    if request.borders == "cross":
        for line in streams_of(episodes):
            yield line, 0
    else:
        for episode in episodes:
            yield episode.rows, episode.head


def _is_pending(row: Row, episodes: list[ModelEpisode]) -> bool:
    return any(e.end & End.PENDING and e.last.id == row.id for e in episodes)


REQUESTS = [
    Sequences(1, 3, draw="newest"),
    Sequences(1, 1, draw="newest"),
    Sequences(1, 4, draw="newest", align="transition"),
    Sequences(1, 5, "cross", draw="newest"),
    Sequences(1, 2, "cross", draw="newest", align="transition"),
    Sequences(1, 3, draw="newest", burn_in=2),
]


def draw_next(played: Played, request: Sequences, count: int, stack: int = 1) -> list[int]:
    """Draw the next sequences, check their arrays, and return their ids."""
    batch = played.replay.sample(request._replace(batch_size=count))
    assert_drawn(played, batch, request, stack)
    ids: list[int] = batch.ids.tolist()
    return ids


@pytest.mark.proof
@given(KINDS, HISTORIES, st.sampled_from(REQUESTS), st.integers(1, 9))
def test_each_tile_is_drawn_once_and_in_order(
    kind: Kind, history: list[Step], request: Sequences, most: int
) -> None:
    """A batch of this size is drawn after each addition."""
    if request.borders == "cross":
        kind = kind._replace(capacity=None)
    request = request._replace(stack=kind.stack > 1)
    seen: set[int] = set()
    with a_replay(kind) as played:
        for step in history:
            if step.then == "restart":
                step = step._replace(then="")
            played.add(step)
            if not sequences(played.episodes, request, kind.stack):
                with pytest.raises(NotEnoughData):
                    played.replay.sample(request)
                continue
            left = tiles(played.episodes, request, kind.stack)
            new = [row for row in left if row not in seen][:most]
            found = draw_next(played, request, most, kind.stack)
            assert found[: len(new)] == new
            seen |= set(new)


@pytest.mark.proof
@pytest.mark.parametrize("request_", REQUESTS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 4, 500])
def test_sequences_are_drawn_uniformly_when_the_queue_is_empty(
    request_: Sequences, batch_size: int
) -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [9, 5, 12, 8])
        expected = tiles(played.episodes, request_)
        found: list[int] = []
        while len(found) < min(3_000, 300 * batch_size):
            batch = played.replay.sample(request_._replace(batch_size=batch_size))
            found += batch.ids.tolist()
        assert found[: len(expected)] == expected
        items = sequences(played.episodes, request_)
        counts: dict[int, int] = dict.fromkeys(by_id(items, request_), 0)
        for row in found[len(expected) :]:
            counts[row] += 1
        assert_shares(counts, dict.fromkeys(counts, 1.0))


def test_every_kind_of_sequence_has_its_own_queue() -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [20])
        for request in (*REQUESTS, Sequences(1, 2, draw="newest")):
            assert draw_next(played, request, 2) == tiles(played.episodes, request)[:2]
        for request in (*REQUESTS, Sequences(1, 2, draw="newest")):
            assert draw_next(played, request, 2) == tiles(played.episodes, request)[2:4]


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_the_queue_is_restored_with_the_state(is_on_disk: bool, tmp_path: Path) -> None:
    with Played(path=tmp_path / "store" if is_on_disk else None) as played:
        for step in busy_history(40):
            played.add(step)
        request = Sequences(1, 3, draw="newest")
        draw_next(played, request, 7)
        if is_on_disk:
            played.replay.save_checkpoint()
        state = played.replay.state_dict()
        expected = draw_next(played, request, 9)
        played.restart()
        if is_on_disk:
            played.replay.load_checkpoint()
        else:
            played.replay.load_state_dict(state)
        assert draw_next(played, request, 9) == expected == tiles(played.episodes, request)[7:16]


def test_a_state_from_before_the_first_draw_begins_the_queue_again() -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [20])
        state = played.replay.state_dict()
        request = Sequences(1, 3, draw="newest")
        expected = draw_next(played, request, 4)
        played.replay.load_state_dict(state)
        assert draw_next(played, request, 4) == expected


@pytest.mark.proof
@pytest.mark.parametrize("n_step", [1, 3])
def test_each_transition_is_drawn_once_and_in_order(n_step: int) -> None:
    """A transition is complete when its next row is stored with an action."""
    request = Transitions(1, n_step, draw="newest")
    seen: set[int] = set()
    with a_replay(Kind(capacity=120)) as played:
        for step in busy_history(60):
            played.add(step)
            steps = drawable(played, request)
            complete = sorted(
                (one.between[0].id, row)
                for row, one in steps.items()
                if not _is_pending(one.between[0], played.episodes)
            )
            new = [row for _, row in complete if row not in seen]
            batch = played.replay.sample(request._replace(batch_size=len(new) + 2))
            found = batch.ids.tolist()
            assert found[: len(new)] == new
            seen |= set(new)
            assert_drawn(played, batch, request, known=steps)
