"""`take` gives the items of the given ids as the model does, and refuses other ids."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData
from stepwell.buffers.sampling.requests import (
    Align,
    Borders,
    Episodes,
    Request,
    Sequences,
    Transitions,
)
from support.models.replay_histories import HISTORIES, KINDS, Kind, a_replay, busy_history, moments
from support.models.replay_model import (
    Contents,
    Item,
    assert_sequences,
    assert_transitions,
    by_id,
    sequences,
    transitions,
)
from support.rows.replay_rows import Played, Row, Step, numbered

SEQUENCES = st.builds(
    Sequences,
    st.just(1),
    st.integers(1, 7),
    st.sampled_from(get_args(Borders)),
    align=st.sampled_from(get_args(Align)),
    burn_in=st.sampled_from([0, 0, 1, 3]),
    stack=st.booleans(),
)
TRANSITIONS = st.builds(Transitions, st.just(1), st.sampled_from([1, 2, 5]), stack=st.booleans())
EPISODES = st.builds(Episodes, st.just(1), st.sampled_from(get_args(Align)), stack=st.booleans())


def every_id(played: Played) -> set[int]:
    """The ids of all rows, and some that no row has."""
    rows = {row.id for episode in played.episodes for row in episode.rows}
    newest = max(rows, default=0)
    return rows | set(range(-2, newest + 3))


def refuse_others(played: Played, request: Request, known: set[int]) -> None:
    if not played.replay.is_bound:
        return
    for row in sorted(every_id(played) - known):
        with pytest.raises(NotEnoughData, match=rf"\bid {row} "):
            played.replay.take(request, np.array([*sorted(known)[:1], row]))


def some_of(known: Collection[int], random: Random) -> list[int]:
    return random.choices(sorted(known), k=random.randint(1, 20))


@pytest.mark.proof
@given(KINDS, HISTORIES, SEQUENCES, st.randoms())
def test_taken_sequences_are_those_of_the_model(
    kind: Kind, history: list[Step], request: Sequences, random: Random
) -> None:
    request = request._replace(stack=request.stack and kind.stack > 1)
    with a_replay(kind) as played:
        for _ in moments(played, history):
            items = by_id(sequences(played.episodes, request, kind.stack), request)
            refuse_others(played, request, set(items))
            if items:
                ids = some_of(items, random)
                batch = played.replay.take(request, np.array(ids))
                contents = Contents(played.spec, played.episodes)
                assert_sequences(played.spec, contents, batch, [items[i] for i in ids], request)


@pytest.mark.proof
@given(KINDS, HISTORIES, TRANSITIONS, st.randoms())
def test_taken_transitions_are_those_of_the_model(
    kind: Kind, history: list[Step], request: Transitions, random: Random
) -> None:
    with a_replay(kind) as played:
        for _ in moments(played, history):
            found = transitions(played.episodes, request, kind.stack)
            known = {step.row.id: step for step in found}
            refuse_others(played, request, set(known))
            if known:
                ids = some_of(known, random)
                batch = played.replay.take(request, np.array(ids))
                contents = Contents(played.spec, played.episodes)
                assert_transitions(played.spec, contents, batch, [known[i] for i in ids], request)


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
            name = random.choice(names(played))
            for row_id in sorted(every_id(played) - known):
                with pytest.raises(NotEnoughData, match=rf"\bid {row_id} "):
                    played.replay.field_rows(name, np.array([*sorted(known)[:1], row_id]))
            if known:
                expected = dict(zip([row.id for row in rows], numbered(rows)[name], strict=True))
                ids = some_of(known, random)
                found = played.replay.field_rows(name, np.array(ids))
                assert found.dtype == played.spec.fields[names(played).index(name)].numpy_dtype
                assert (found == np.array([expected[i] for i in ids])).all()
                found[...] = 0  # belongs to the caller
                again = played.replay.field_rows(name, np.array(ids))
                assert (again == np.array([expected[i] for i in ids])).all()


def names(played: Played) -> list[str]:
    return [field.name for field in played.spec.fields]


def test_unknown_fields_and_float_ids_are_refused() -> None:
    with a_replay(Kind(False, None, 1)) as played:
        for step in busy_history(5):
            played.add(step)
        with pytest.raises(ValueError, match=r"^name: .*observation/place.*'observation'$"):
            played.replay.field_rows("observation", np.array([0]))
        with pytest.raises(ValueError, match=r"^ids: .*integers \[B\].*float64"):
            played.replay.field_rows("reward", np.array([0.5]))


@pytest.mark.proof
@given(KINDS, HISTORIES, EPISODES, st.randoms())
def test_an_episode_can_be_taken_from_any_of_its_rows(
    kind: Kind, history: list[Step], request: Episodes, random: Random
) -> None:
    request = request._replace(stack=request.stack and kind.stack > 1)
    with a_replay(kind) as played:
        for _ in moments(played, history):
            known: dict[int, tuple[Row, ...]] = {}
            for episode in played.episodes:
                rows = tuple(episode.rows)
                lacks = kind.stack - 1 if request.stack and episode.head > 0 else 0
                for first in range(lacks, len(rows) - (request.align == "transition")):
                    known[rows[first].id] = rows[first:]
            refuse_others(played, request, set(known))
            if known:
                ids = some_of(known, random)
                longest = max(len(known[i]) for i in ids)
                items = [Item((*known[i], *[None] * (longest - len(known[i])))) for i in ids]
                batch = played.replay.take(request, np.array(ids))
                contents = Contents(played.spec, played.episodes)
                assert_sequences(played.spec, contents, batch, items, request)


@pytest.mark.parametrize(
    "ids", [np.zeros(0, np.int64), np.zeros((1, 1), np.int64), np.zeros(2), np.array([True])]
)
def test_ids_of_another_shape_or_dtype_are_refused(ids: np.ndarray) -> None:
    with a_replay(Kind()) as played:
        played.add(Step(0, 5))
        with pytest.raises(ValueError, match=rf"^ids: .*integers \[B\].*{ids.dtype} "):
            played.replay.take(Sequences(1, 2), ids)
