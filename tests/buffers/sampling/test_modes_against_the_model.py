"""All that is drawn or taken is what the model has, in every array; and all of that is drawn."""

from __future__ import annotations

from random import Random
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import End, NotEnoughData
from stepwell.buffers.base import native
from stepwell.buffers.sampling import row_reader
from stepwell.buffers.sampling.requests import (
    Align,
    Borders,
    Draw,
    Episodes,
    Request,
    Sequences,
    Transitions,
)
from support.examples import by_tier
from support.models.replay_histories import (
    HISTORIES,
    KINDS,
    Kind,
    a_replay,
    busy_history,
    moments,
    whole_episodes,
)
from support.models.replay_model import Item, assert_drawn, drawable
from support.rows.replay_rows import Played, Step, numbered

NEVER = ("episodes", "ends")  # with borders="cross"


@st.composite
def sequences(draw: st.DrawFn) -> Sequences:
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


TRANSITIONS = st.builds(
    Transitions,
    st.integers(1, 60),
    st.sampled_from([1, 1, 2, 3, 5, 40]),
    st.sampled_from([0.99, 0.5, 1.0, 0.0]),
    st.sampled_from(["steps", "episodes", "ends", "recent"]),
    st.booleans(),
)
EPISODES = st.builds(
    Episodes, st.integers(1, 20), st.sampled_from(get_args(Align)), stack=st.booleans()
)
EACH_KIND = {"sequences": sequences(), "transitions": TRANSITIONS, "episodes": EPISODES}
each_kind = pytest.mark.parametrize("requests", EACH_KIND.values(), ids=EACH_KIND)


def possible(request: Any, kind: Kind) -> Any:
    """The request, with stacks only where there are some."""
    if isinstance(request, Transitions):
        return request
    return request._replace(stack=request.stack and kind.stack > 1)


def check(played: Played, request: Request, stack: int, batches: int = 1) -> None:
    """By both paths, a request agrees with the model, or is refused where it has no item."""
    known = drawable(played, request, stack)
    if not known:
        with pytest.raises(NotEnoughData):
            played.replay.sample(request)
        return
    for _ in range(batches):
        for core in {native.core, None}:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "core", core)
                batch = played.replay.sample(request)
            assert_drawn(played, batch, request, stack, known)


@each_kind
@given(KINDS, HISTORIES, st.data())
@settings(max_examples=by_tier(25, 40, 400))
def test_what_is_drawn_is_that_of_the_model(
    requests: st.SearchStrategy[Request], kind: Kind, history: list[Step], data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(requests, min_size=3, max_size=6))
    with a_replay(kind) as played:
        for _ in moments(played, history):
            for request in wanted:
                check(played, possible(request, kind), kind.stack)


@each_kind
@given(KINDS, HISTORIES, st.data())
def test_all_of_the_model_is_counted_and_drawn(
    requests: st.SearchStrategy[Request], kind: Kind, history: list[Step], data: st.DataObject
) -> None:
    request: Any = possible(data.draw(requests), kind)
    if not isinstance(request, Episodes):
        request = request._replace(draw="steps", fields=["reward"])
    with a_replay(kind) as played:
        assert played.replay.count(request) == 0
        for _ in moments(played, history):
            known = drawable(played, request, kind.stack)
            count = len(known)
            assert played.replay.count(request) == count
            if not count:
                continue
            batch = played.replay.sample(request._replace(batch_size=30 * count))
            assert set(batch.ids.tolist()) == set(known)
            if isinstance(request, Episodes):
                continue
            distinct = request._replace(draw="distinct", batch_size=count)
            assert sorted(played.replay.sample(distinct).ids.tolist()) == sorted(known)
            with pytest.raises(NotEnoughData, match=rf"\b{count + 1} .*\b{count}\b"):
                played.replay.sample(distinct._replace(batch_size=count + 1))


def every_id(played: Played) -> set[int]:
    """The ids of all rows, and some that no row has."""
    rows = {row.id for episode in played.episodes for row in episode.rows}
    newest = max(rows, default=0)
    return rows | set(range(-2, newest + 3))


@pytest.mark.proof
@each_kind
@given(KINDS, HISTORIES, st.data(), st.randoms())
def test_what_is_taken_by_ids_is_that_of_the_model(
    requests: st.SearchStrategy[Request],
    kind: Kind,
    history: list[Step],
    data: st.DataObject,
    random: Random,
) -> None:
    """Of an episode, also the rest from any of its rows."""
    request = possible(data.draw(requests), kind)
    if not isinstance(request, Episodes):
        request = request._replace(draw="steps")
    with a_replay(kind) as played:
        for _ in moments(played, history):
            known = drawable(played, request, kind.stack)
            if isinstance(request, Episodes):
                is_shifted = request.align == "transition"
                known = {
                    item.places[first].id: Item(item.places[first:])
                    for item in known.values()
                    for first in range(len(item.places) - is_shifted)
                }
            for row in sorted(every_id(played) - set(known)) if played.replay.is_bound else ():
                with pytest.raises(NotEnoughData, match=rf"\bid {row} "):
                    played.replay.take(request, np.array([*sorted(known)[:1], row]))
            if known:
                ids = random.choices(sorted(known), k=random.randint(1, 20))
                batch = played.replay.take(request, np.array(ids))
                assert_drawn(played, batch, request, kind.stack, known)
                assert batch.ids.tolist() == ids


@pytest.mark.proof
@given(KINDS, HISTORIES, st.randoms())
def test_rows_of_a_field_are_those_of_the_model(
    kind: Kind, history: list[Step], random: Random
) -> None:
    with a_replay(kind) as played:
        for _ in moments(played, history):
            rows = [row for episode in played.episodes for row in episode.rows]
            known = {row.id for row in rows}
            if not played.replay.is_bound:
                continue
            field = random.choice(played.spec.fields)
            for row_id in sorted(every_id(played) - known):
                with pytest.raises(NotEnoughData, match=rf"\bid {row_id} "):
                    played.replay.field_rows(field.name, np.array([*sorted(known)[:1], row_id]))
            if known:
                values = numbered(rows)[field.name]
                expected = dict(zip([row.id for row in rows], values, strict=True))
                ids = random.choices(sorted(known), k=random.randint(1, 20))
                for _ in range(2):
                    found = played.replay.field_rows(field.name, np.array(ids))
                    assert found.dtype == field.numpy_dtype
                    assert (found == np.array([expected[i] for i in ids])).all()
                    found[...] = 0  # belongs to the caller


def test_unknown_fields_and_ids_of_another_form_are_refused() -> None:
    with a_replay(Kind()) as played:
        for step in busy_history(5):
            played.add(step)
        with pytest.raises(ValueError, match=r"^name: .*observation/place.*'observation'$"):
            played.replay.field_rows("observation", np.array([0]))
        with pytest.raises(ValueError, match=r"^ids: .*integers \[B\].*float64"):
            played.replay.field_rows("reward", np.array([0.5]))
        for ids in (np.zeros(0, int), np.zeros((1, 1), int), np.zeros(2), np.array([True])):
            with pytest.raises(ValueError, match=rf"^ids: .*integers \[B\].*{ids.dtype} "):
                played.replay.take(Sequences(1, 2), ids)


@pytest.mark.proof
@pytest.mark.parametrize("length", [1, 50, 1_000])
@pytest.mark.parametrize("borders", get_args(Borders))
def test_blocks_and_chunks_of_long_episodes_are_joined(borders: Borders, length: int) -> None:
    """Episodes are longer than the blocks of rows that are compressed together."""
    with a_replay(Kind()) as played:
        for new_rows in (700, 1, 2, 301, 1, 150):
            played.add(Step(0, new_rows), Step(1, new_rows // 2))
        check(played, Sequences(6, length, borders=borders), 1, batches=4)


def test_rows_are_right_after_their_cache_was_too_large_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with a_replay(Kind()) as played:
        for step in busy_history(60):
            played.add(step)
        monkeypatch.setattr(row_reader, "_MAX_BYTES", 0)
        check(played, Sequences(500, 1), 1)
        sampler = played.replay._sampler
        assert sampler is not None
        assert sampler._rows.nbytes == 0
        monkeypatch.undo()
        for _ in range(30):  # room for more rows is made at some time
            played.add(Step(0, 40, End.TERMINATED))
        check(played, Sequences(500, 1), 1)
        assert sampler._rows.nbytes > 0


@pytest.mark.parametrize("draw", get_args(Draw))
@pytest.mark.parametrize("borders", get_args(Borders))
def test_an_empty_replay_has_nothing_to_draw(draw: Draw, borders: Borders) -> None:
    if (borders == "cross" and draw in NEVER) or (borders.startswith("pad") and draw == "newest"):
        return
    with a_replay(Kind()) as played, pytest.raises(NotEnoughData):
        played.replay.sample_sequences(1, 2, borders=borders, draw=draw)


def test_stacks_of_an_env_that_stacks_no_frames_are_refused() -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [5])
        with pytest.raises(ValueError, match=r"^stack=True: .*\bframes\b"):
            played.replay.sample_sequences(1, 2, stack=True)


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


def test_all_is_right_after_each_addition_to_a_ring() -> None:
    """What is known of chunks moves with them when others are evicted."""
    with a_replay(Kind(capacity=60)) as played:
        for step in busy_history(90):
            played.add(step)
            check(played, Sequences(20, 3, "cross", "recent", burn_in=2), 1)
            check(played, Sequences(20, 2, "pad_before", "episodes", "transition"), 1)
            check(played, Transitions(20, 3, 0.9), 1)
        assert played.replay.storage.index.base > 50


def test_the_pair_of_a_final_row_and_a_reset_is_no_transition() -> None:
    """Trap 3 in a batch: no transition goes from a final row to a reset."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [3, 2, 4, 2, 2, 5])
        batch = played.replay.sample_sequences(400, 7, borders="cross", align="transition")
        crossing = batch.observation["place"][..., 1] != batch.next_observation["place"][..., 1]
        assert (batch.mask == ~crossing).all()
        assert (batch.lengths == batch.mask.sum(axis=1)).all()


def test_both_observations_are_views_into_the_same_frames() -> None:
    """Five frames for two stacks of four."""
    with a_replay(Kind(False, None, 4, "zero")) as played:
        whole_episodes(played, [20])
        batch = played.replay.sample_transitions(8)
        now, then = batch.observation["frame"], batch.next_observation["frame"]
        assert now.shape == then.shape == (8, 4, 4, 32)
        assert np.shares_memory(now, then)
        assert (now[:, 1:] == then[:, :-1]).all()
