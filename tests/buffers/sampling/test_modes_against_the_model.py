"""Every drawn sequence is one of the model, in every array; and all of them are drawn."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData
from stepwell.buffers.sampling.requests import Align, Borders, Draw, Sequences
from support.models.replay_histories import (
    HISTORIES,
    KINDS,
    Kind,
    a_replay,
    moments,
    whole_episodes,
)
from support.models.replay_model import Contents, assert_sequences, by_id, drawn, sequences
from support.rows.replay_rows import Played, Step

NEVER = ("episodes", "ends")  # with borders="cross"


@st.composite
def requests(draw: st.DrawFn) -> Sequences:
    borders = draw(st.sampled_from(get_args(Borders)))
    modes: list[Draw] = ["steps", "recent", "episodes", "ends"]
    return Sequences(
        batch_size=draw(st.integers(1, 60)),
        length=draw(st.integers(1, 7)),
        borders=borders,
        draw=draw(st.sampled_from([m for m in modes if borders != "cross" or m not in NEVER])),
        align=draw(st.sampled_from(get_args(Align))),
        burn_in=draw(st.sampled_from([0, 0, 1, 3])),
        stack=draw(st.booleans()),
        state=draw(st.sampled_from([(), ("memory",), ("memory", "code")])),
    )


def check(played: Played, request: Sequences, stack: int, batches: int = 1) -> None:
    """A request agrees with the model, or is refused where the model has no item."""
    request = request._replace(stack=request.stack and stack > 1)
    items = by_id(sequences(played.episodes, request, stack), request)
    if not items:
        with pytest.raises(NotEnoughData):
            played.replay.sample(request)
        return
    contents = Contents(played.spec, played.episodes)
    for _ in range(batches):
        batch = played.replay.sample(request)
        assert_sequences(played.spec, contents, batch, drawn(batch, items), request)


@given(KINDS, HISTORIES, st.lists(requests(), min_size=3, max_size=6))
def test_drawn_sequences_are_those_of_the_model(
    kind: Kind, history: list[Step], wanted: list[Sequences]
) -> None:
    with a_replay(kind) as played:
        for _ in moments(played, history):
            for request in wanted:
                check(played, request, kind.stack)


@pytest.mark.proof
@pytest.mark.parametrize("length", [1, 50, 1_000])
@pytest.mark.parametrize("borders", get_args(Borders))
def test_blocks_and_chunks_of_long_episodes_are_joined(borders: Borders, length: int) -> None:
    """Episodes are longer than the blocks of rows that are compressed together."""
    with a_replay(Kind()) as played:
        for new_rows in (700, 1, 2, 301, 1, 150):
            played.add(Step(0, new_rows), Step(1, new_rows // 2))
        check(played, Sequences(6, length, borders=borders), 1, batches=4)


@pytest.mark.parametrize("draw", get_args(Draw))
@pytest.mark.parametrize("borders", get_args(Borders))
def test_an_empty_replay_has_nothing_to_draw(draw: Draw, borders: Borders) -> None:
    if (borders == "cross" and draw in NEVER) or (borders.startswith("pad") and draw == "newest"):
        return
    with a_replay(Kind()) as played, pytest.raises(NotEnoughData):
        played.replay.sample_sequences(1, 2, borders=borders, draw=draw)


def test_too_few_rows_are_refused_with_both_numbers() -> None:
    """D2, I4: 15 or 5 rows stored, 20 or 6 needed."""
    for stored, needed in ((5, 6), (15, 20)):
        with a_replay(Kind()) as played:
            played.add(Step(0, stored))
            with pytest.raises(NotEnoughData, match=rf"\b{needed} rows\b.*\b{stored}\b"):
                played.replay.sample_sequences(3, needed)
            played.replay.sample_sequences(3, stored)
            with pytest.raises(NotEnoughData):
                played.replay.sample_sequences(3, stored, align="transition")


@pytest.mark.parametrize("stored", [8, 60, 100])
def test_no_request_hangs_or_repeats_rows(stored: int) -> None:
    """D3, D4: sizes below twice the length caused an endless loop, or repeated rows."""
    with a_replay(Kind(capacity=60)) as played:
        for _ in range(stored):
            played.add(Step(0, 1))
        rows = len(played.episodes[0].rows)
        for length in range(1, rows + 1):
            check(played, Sequences(8, length), 1)
        assert math.isclose(rows, min(stored, 60), abs_tol=6)
        with pytest.raises(NotEnoughData):
            played.replay.sample_sequences(1, rows + 1)


def test_sequences_longer_than_all_episodes_need_padding_or_crossing() -> None:
    """I1 with E 10 and L 20: no window was valid, without any error."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [10] * 5)
        with pytest.raises(NotEnoughData, match=r"\b20 rows\b.*\b10\b"):
            played.replay.sample_sequences(1, 20)
        for borders in ("cross", "pad_after", "pad_before"):
            played.replay.sample_sequences(100, 20, borders=borders)


@pytest.mark.parametrize("draw", NEVER)
def test_crossing_sequences_refuse_draw_modes_of_episodes(draw: Any) -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [10] * 5)
        with pytest.raises(ValueError, match=rf"draw=['\"]{draw}['\"]: .*cross"):
            played.replay.sample_sequences(1, 3, borders="cross", draw=draw)


def test_the_pair_of_a_final_row_and_a_reset_is_no_transition() -> None:
    """Trap 3 in a batch: no transition goes from a final row to a reset."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [3, 2, 4, 2, 2, 5])
        batch = played.replay.sample_sequences(400, 7, borders="cross", align="transition")
        crossing = batch.observation["place"][..., 1] != batch.next_observation["place"][..., 1]
        assert (batch.mask == ~crossing).all()
        assert (batch.lengths == batch.mask.sum(axis=1)).all()
