"""Counting, and choosing episodes by their starts."""

from __future__ import annotations

import numpy as np

from stepwell.collectors.episode_counter import EpisodeCounter
from stepwell.collectors.step_result import StepResult


def flags(text: str) -> np.ndarray | None:
    marks = np.array([mark == "x" for mark in text])
    return marks if marks.any() else None


def arrival(
    reward: list[float],
    first: str = "",
    terminated: str = "",
    truncated: str = "",
    env_ids: list[int] | None = None,
    restarts: int = 0,
) -> StepResult:
    empty = "." * len(reward)
    return StepResult(
        None if env_ids is None else np.array(env_ids),
        {"observation": np.arange(len(reward))},
        np.array(reward),
        flags(first or empty),
        flags(terminated or empty),
        flags(truncated or empty),
        restarts=restarts,
    )


def test_returns_and_lengths_are_those_of_ended_episodes() -> None:
    tally = EpisodeCounter(2)
    tally.count(arrival([0, 0], "xx"))
    tally.count(arrival([1, 2]))
    tally.count(arrival([3, 4], terminated="x."))
    tally.count(arrival([0, 5], "x.", truncated=".x"))
    tally.count(arrival([7, 0], ".x"))
    assert (tally.returns, tally.lengths) == ([4.0, 11.0], [2, 3])
    assert (tally.steps, tally.rows) == (6, 10)


def test_an_episode_with_both_flags_ends_once() -> None:
    tally = EpisodeCounter(1)
    tally.count(arrival([0], "x"))
    tally.count(arrival([1], terminated="x", truncated="x"))
    assert tally.returns == [1.0]


def test_a_count_begins_anew_while_episodes_go_on() -> None:
    tally = EpisodeCounter(1)
    tally.count(arrival([0], "x"))
    tally.count(arrival([1]))
    tally.begin()
    assert (tally.steps, tally.rows, tally.returns) == (0, 0, [])
    tally.count(arrival([2], terminated="x"))
    assert (tally.steps, tally.returns, tally.lengths) == (1, [3.0], [2])


def test_the_first_episodes_to_start_are_chosen() -> None:
    tally = EpisodeCounter(3)
    tally.begin(tally.reserve(4))
    assert tally.count(arrival([0, 0, 0], "xxx")) is not None
    tally.count(arrival([1, 1, 1], terminated="x.."))
    kept = tally.count(arrival([0, 1, 1], "x..", terminated=".x."))
    assert kept is not None
    assert kept.env_ids is None
    kept = tally.count(arrival([1, 0, 1], ".x.", terminated="x.."))
    assert kept is not None
    assert kept.env_ids is not None
    assert kept.env_ids.tolist() == [0, 2]
    assert kept.leaves["observation"].tolist() == [0, 2]
    assert not tally.is_complete
    kept = tally.count(arrival([0, 9, 1], "x..", terminated="..x"))
    assert kept is not None
    assert kept.env_ids is not None
    assert kept.env_ids.tolist() == [2]
    assert tally.is_complete
    assert tally.count(arrival([9, 9, 0], "..x")) is None
    assert (tally.lengths, tally.steps) == ([1, 2, 1, 4], 8)


def test_an_episode_that_starts_where_a_chosen_one_broke_off_stands_in_for_it() -> None:
    tally = EpisodeCounter(2)
    tally.begin(tally.reserve(2))
    tally.count(arrival([0, 0], "xx"))
    tally.count(arrival([1, 1]))
    kept = tally.count(arrival([0, 1], "x.", restarts=1))
    assert kept is not None
    assert kept.env_ids is None
    assert (tally.cut, tally.restarts) == (1, 1)
    tally.count(arrival([1, 1], terminated="xx"))
    assert tally.is_complete
    assert sorted(tally.lengths) == [1, 3]


def test_only_episodes_with_steps_are_cut_by_a_reset() -> None:
    tally = EpisodeCounter(3)
    tally.count(arrival([0, 0, 0], "xxx"))
    tally.count(arrival([1, 1], env_ids=[0, 2]))
    tally.count(arrival([1], terminated="x", env_ids=[2]))
    assert tally.forget() == 1
    assert tally.cut == 1
    tally.count(arrival([0, 0, 0], "xxx"))
    assert tally.cut == 1


def test_nothing_is_complete_without_a_limit() -> None:
    assert not EpisodeCounter(1).is_complete


def test_an_episode_that_nothing_may_stand_in_for_is_noted_as_lost() -> None:
    tally = EpisodeCounter(2)
    tally.begin(tally.reserve(2), replaces=False)
    tally.count(arrival([0, 0], "xx"))
    tally.count(arrival([1, 1]))
    kept = tally.count(arrival([0, 2], "x."))
    assert kept is not None
    assert kept.env_ids is not None
    assert (kept.env_ids.tolist(), tally.lost, tally.cut) == ([1], [0], 1)
    assert not tally.is_complete
    tally.count(arrival([5, 3], terminated=".x"))
    assert tally.is_complete
    assert [(one.episode, one.total_reward) for one in tally.ended] == [(1, 6.0)]
    tally.forget()
    tally.go_on([0])
    assert tally.lost == []
    tally.count(arrival([0, 0], "xx"))
    tally.count(arrival([4, 4], terminated="xx"))
    assert [(one.episode, one.total_reward) for one in tally.ended] == [(1, 6.0), (0, 4.0)]
