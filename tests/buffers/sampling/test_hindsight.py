"""Relabelled transitions are those of a slow model, and their goals have the right frequencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import fields
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import End, NotEnoughData
from stepwell.buffers.sampling.batch import TransitionBatch, named_leaves
from stepwell.buffers.sampling.requests import Goals, Hindsight, Transitions
from support.chi_square import assert_shares
from support.models.hindsight_model import (
    LARGE,
    SMALL,
    a_goal_replay,
    candidates,
    compute_reward,
    relabelled,
)
from support.models.replay_histories import (
    HISTORIES,
    KINDS,
    Kind,
    busy_history,
    moments,
    whole_episodes,
)
from support.models.replay_model import transitions
from support.rows.replay_rows import Played, Row, Step

STRATEGIES: list[Goals] = ["future", "final", "episode"]
REQUESTS = st.builds(
    lambda count, n_step, gamma, draw, stack, strategy, number: Transitions(
        count,
        n_step,
        gamma,
        draw,
        stack,
        relabel=Hindsight(compute_reward, strategy, number),
    ),
    st.integers(1, 60),
    st.sampled_from([1, 1, 2, 3, 5, 40]),
    st.sampled_from([0.99, 0.5, 1.0, 0.0]),
    st.sampled_from(["steps", "episodes", "ends", "recent", "newest", "priorities"]),
    st.booleans(),
    st.sampled_from(STRATEGIES),
    st.sampled_from([0, 1, 4, 4, 2.5, math.inf]),
)


def check(
    played: Played, request: Transitions, width: int, stack: int
) -> tuple[TransitionBatch, dict[int, Row]]:
    """Draw a batch, compare all of it, and return it with its new goals."""
    relabel = cast("Hindsight", request.relabel)
    steps = {step.row.id: step for step in transitions(played.episodes, request, stack)}
    if not steps:
        with pytest.raises(NotEnoughData):
            played.replay.sample(request)
        return cast("TransitionBatch", None), {}
    batch = played.replay.sample(request)
    assert isinstance(batch, TransitionBatch)
    goals = relabelled(
        batch, [steps[row] for row in batch.ids.tolist()], played.episodes, request, width
    )
    share = 1 - 1 / (relabel.n_sampled_goal + 1)
    assert (
        math.floor(share * request.batch_size)
        <= len(goals)
        <= math.ceil(share * request.batch_size)
    )
    stored = played.replay.take(request._replace(relabel=None), batch.ids)
    is_new = np.isin(np.arange(request.batch_size), list(goals))
    for each in fields(TransitionBatch):
        if each.name in ("memory", "weights"):
            continue
        found = dict(named_leaves(each.name, getattr(batch, each.name)))
        for name, array in named_leaves(each.name, getattr(stored, each.name)):
            is_same = name == "reward" or name.endswith("desired_goal")
            where = ~is_new if is_same else slice(None)
            np.testing.assert_array_equal(found[name][where], array[where], name)
    return batch, goals


@given(
    KINDS, HISTORIES, st.lists(REQUESTS, min_size=3, max_size=6), st.sampled_from([SMALL, LARGE])
)
def test_relabelled_transitions_are_those_of_the_model(
    kind: Kind, history: list[Step], wanted: list[Transitions], width: int
) -> None:
    # Priorities belong to one kind of item.
    by_priority = next((each for each in wanted if each.draw == "priorities"), None)
    with a_goal_replay(kind, width) as played:
        for _ in moments(played, history):
            for request in wanted:
                if request.draw == "priorities" and by_priority is not None:
                    request = request._replace(n_step=by_priority.n_step, stack=by_priority.stack)
                check(played, request, width, kind.stack)


@pytest.mark.parametrize("width", [SMALL, LARGE])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", [Kind(False, 150), Kind(True, 150, 3)])
def test_a_ring_that_was_filled_many_times_agrees_with_the_model(
    kind: Kind, n_step: int, width: int
) -> None:
    with a_goal_replay(kind, width) as played:
        for number, step in enumerate(busy_history(100)):
            played.add(step)
            if number % 10 == 9:
                for strategy in STRATEGIES:
                    request = Transitions(60, n_step, relabel=Hindsight(compute_reward, strategy))
                    check(played, request, width, kind.stack)
        assert any(episode.head > 0 for episode in played.episodes)
        assert played.replay.storage.index.base > 0


# Frequencies


def assert_frequencies(played: Played, request: Transitions) -> None:
    """Each pair of transition and goal is as frequent as the model says."""
    steps = transitions(played.episodes, request)
    by_id = {episode.id: episode for episode in played.episodes}
    strategy = cast("Hindsight", request.relabel).strategy
    shares: dict[Hashable, float] = {}
    for step in steps:
        rows = candidates(step, by_id[step.row.episode], strategy)
        shares.update({(step.row.id, row.number): 1 / len(rows) for row in rows})
    batch, goals = check(played, request, SMALL, 1)
    counts = Counter((int(batch.ids[place]), row.number) for place, row in goals.items())
    assert len(goals) == request.batch_size
    assert_shares(counts, shares)


def in_chunks(played: Played) -> None:
    """Episodes of one chunk and of many, ended, cut and open, of three streams."""
    for _ in range(3):
        played.add(Step(0, 4, End.PENDING))
        played.add(Step(1, 2, End.NONE))
        whole_episodes(played, [2, 7], stream=2)
        played.add(Step(0, 1, End.PENDING))
    played.add(Step(0, 3, End.TRUNCATED))
    played.add(Step(1, 2, End.NONE, "cut"))
    played.add(Step(1, 5, End.PENDING))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_uniform_over_what_their_strategy_allows(strategy: Goals, n_step: int) -> None:
    request = Transitions(12_000, n_step, relabel=Hindsight(compute_reward, strategy, math.inf))
    with a_goal_replay(Kind()) as played:
        in_chunks(played)
        assert len({len(episode.rows) for episode in played.episodes}) > 3
        assert_frequencies(played, request)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_uniform_over_what_a_ring_has_kept(strategy: Goals) -> None:
    request = Transitions(12_000, relabel=Hindsight(compute_reward, strategy, math.inf))
    with a_goal_replay(Kind(capacity=60)) as played:
        for step in busy_history(60):
            played.add(step)
        assert any(episode.head > 0 for episode in played.episodes)
        assert_frequencies(played, request)


@pytest.mark.parametrize(("size", "number"), [(1, 4.0), (7, 4.0), (5, 1.0), (6, 2.5)])
def test_each_transition_is_relabelled_with_the_same_probability(size: int, number: float) -> None:
    """Also in batches whose size is no multiple: rounding down would never relabel one of one."""
    request = Transitions(size, relabel=Hindsight(compute_reward, "future", number))
    counts: Counter[tuple[int, bool]] = Counter()
    with a_goal_replay(Kind()) as played:
        whole_episodes(played, [5, 3, 6])
        batches = 4_200 // size
        for _ in range(batches):
            batch = played.replay.sample(request)
            goals = cast("Any", batch.observation)["desired_goal"]
            counts.update(enumerate((goals[:, 0] >= 0).tolist()))
        share = 1 - 1 / (number + 1)
        pairs = [(place, is_new) for place in range(size) for is_new in (False, True)]
        assert_shares(counts, {pair: share if pair[1] else 1 - share for pair in pairs})
        total = sum(count for (_, is_new), count in counts.items() if is_new)
        spread = math.sqrt(batches * size * share * (1 - share))
        assert abs(total - batches * size * share) < 4 * spread
