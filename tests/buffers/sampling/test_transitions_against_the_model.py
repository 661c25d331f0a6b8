"""Every drawn transition is one of the model, in every array; and all of them are drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import End, NotEnoughData
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


# Known traps


def ended(end: End, rows: int = 6) -> Played:
    """An episode with the given end, and a terminated one."""
    played = Played()
    played.add(Step(0, rows, end, "cut"))
    played.add(Step(0, rows, End.TERMINATED))
    return played


WAYS = [End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED, End.TERMINATED | End.TRUNCATED]


@pytest.mark.parametrize("end", WAYS)
@pytest.mark.parametrize("n_step", [1, 3])
def test_flags_distinguish_the_four_kinds_of_ends(end: End, n_step: int) -> None:
    """Trap 12: only a terminated episode has nothing to bootstrap from."""
    with ended(end) as played:
        batch = played.replay.sample_transitions(400, n_step=n_step, gamma=0.5)
        of_first = batch.observation["place"][:, 1] == 0
        numbers = batch.observation["place"][:, 2]
        assert set(numbers[of_first].tolist()) == set(range(5))
        reaches = of_first & (numbers + n_step >= 5)
        is_terminated, is_truncated = bool(end & End.TERMINATED), bool(end & End.TRUNCATED)
        assert (batch.terminated[reaches] == is_terminated).all()
        assert (batch.truncated[reaches] == is_truncated).all()
        assert (batch.cut[reaches] == (not is_terminated and not is_truncated)).all()
        inner = of_first & ~reaches
        assert not (batch.terminated | batch.truncated | batch.cut)[inner].any()
        assert (batch.discount[reaches] == 0).all() == is_terminated
        steps = np.minimum(n_step, 5 - numbers[of_first])
        assert (batch.steps[of_first] == steps).all()
        if not is_terminated:
            assert (batch.discount[of_first] == 0.5**steps).all()


def test_the_target_of_a_truncation_uses_the_true_final_observation() -> None:
    """Trap 13: V(s) = s, so that the observation of the next reset would be noticed."""
    with ended(End.TRUNCATED) as played:
        batch = played.replay.sample_transitions(200, gamma=1.0)
        at_end = batch.truncated
        assert at_end.any()
        values = batch.next_observation["place"][:, 2]
        assert (values[at_end] == 5).all()
        assert (batch.next_observation["place"][:, 1] == batch.observation["place"][:, 1]).all()


def test_both_observations_are_views_into_the_same_frames() -> None:
    """Five frames for two stacks of four."""
    with a_replay(Kind(False, None, 4, "zero")) as played:
        whole_episodes(played, [20])
        batch = played.replay.sample_transitions(8)
        now, then = batch.observation["frame"], batch.next_observation["frame"]
        assert now.shape == then.shape == (8, 4, 4, 32)
        assert np.shares_memory(now, then)
        assert (now[:, 1:] == then[:, :-1]).all()
