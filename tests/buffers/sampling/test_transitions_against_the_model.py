"""Every drawn transition is one of the model, in every array; and all of them are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData
from stepwell.buffers.sampling.batch import TransitionBatch
from stepwell.buffers.sampling.requests import Transitions
from support.models.replay_histories import (
    HISTORIES,
    KINDS,
    Kind,
    a_replay,
    moments,
    whole_episodes,
)
from support.models.replay_model import Contents, Transition, assert_transitions, transitions
from support.rows.replay_rows import Played, Step

REQUESTS = st.builds(
    Transitions,
    st.integers(1, 60),
    st.sampled_from([1, 1, 2, 3, 5, 40]),
    st.sampled_from([0.99, 0.5, 1.0, 0.0]),
    st.sampled_from(["steps", "episodes", "ends", "recent"]),
    st.booleans(),
)


def listed(played: Played, request: Transitions, stack: int) -> dict[int, Transition]:
    """All transitions, by the id of the first row."""
    return {step.row.id: step for step in transitions(played.episodes, request, stack)}


def drawn(batch: TransitionBatch, steps: dict[int, Transition]) -> list[Transition]:
    ids = batch.ids.tolist()
    assert set(ids) <= set(steps), "a transition was drawn that the model does not have"
    return [steps[row] for row in ids]


def check(played: Played, request: Transitions, stack: int) -> None:
    """A request agrees with the model, or is refused where the model has no item."""
    steps = listed(played, request, stack)
    if not steps:
        with pytest.raises(NotEnoughData):
            played.replay.sample(request)
        return
    batch = played.replay.sample(request)
    assert isinstance(batch, TransitionBatch)
    contents = Contents(played.spec, played.episodes)
    assert_transitions(played.spec, contents, batch, drawn(batch, steps), request)


@given(KINDS, HISTORIES, st.lists(REQUESTS, min_size=3, max_size=6))
def test_drawn_transitions_are_those_of_the_model(
    kind: Kind, history: list[Step], wanted: list[Transitions]
) -> None:
    with a_replay(kind) as played:
        for _ in moments(played, history):
            for request in wanted:
                check(played, request, kind.stack)


@given(KINDS, HISTORIES, REQUESTS)
def test_every_transition_of_the_model_is_drawn(
    kind: Kind, history: list[Step], request: Transitions
) -> None:
    with a_replay(kind) as played:
        for _ in moments(played, history, count=1):
            pass
        request = request._replace(draw="steps")
        steps = listed(played, request, kind.stack)
        if steps:
            request = request._replace(batch_size=30 * len(steps), fields=["reward"])
            batch = played.replay.sample(request)
            assert set(batch.ids.tolist()) == set(steps)


def test_both_observations_are_views_into_the_same_frames() -> None:
    """Five frames for two stacks of four."""
    with a_replay(Kind(False, None, 4, "zero")) as played:
        whole_episodes(played, [20])
        batch = played.replay.sample_transitions(8)
        now, then = batch.observation["frame"], batch.next_observation["frame"]
        assert now.shape == then.shape == (8, 4, 4, 32)
        assert np.shares_memory(now, then)
        assert (now[:, 1:] == then[:, :-1]).all()
