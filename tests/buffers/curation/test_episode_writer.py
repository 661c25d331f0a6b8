"""EpisodeWriter writes arrays, episodes and transitions into a replay, or refuses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import (
    End,
    Episode,
    EpisodeWriter,
    SequenceReplayBuffer,
    SpecMismatch,
    TransitionColumns,
)


def columns_of(steps: int, start: float = 0) -> dict[str, np.ndarray]:
    """An episode whose observations count up from ``start``."""
    return {
        "observation": np.arange(start, start + steps + 1, dtype=np.float32)[:, None],
        "action": np.arange(1, steps + 1),
        "reward": np.ones(steps, np.float32),
        "info/lives": np.full(steps + 1, 3),
        "extra/value": np.full(steps, 0.5, np.float32),
    }


def transitions_of(columns: dict[str, np.ndarray], *, terminated: bool) -> TransitionColumns:
    observation, lives = columns["observation"], columns["info/lives"]
    ends = np.zeros(len(columns["action"]), bool)
    last = ends.copy()
    last[-1] = terminated
    return TransitionColumns(
        {**columns, "observation": observation[:-1], "info/lives": lives[1:]},
        {"observation": observation[1:]},
        last,
        ends,
        ends,
    )


def only(replay: SequenceReplayBuffer) -> Episode:
    (episode,) = replay.iter_episodes()
    return episode


@pytest.fixture
def replay() -> SequenceReplayBuffer:
    """A replay with one terminated episode of three steps."""
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay, source="test")
    writer.add_arrays(columns_of(3), terminated=True, stream=2, metadata={"seed": 1})
    writer.flush()
    return replay


def test_arrays_are_stored_as_rows(replay: SequenceReplayBuffer) -> None:
    episode = only(replay)
    assert (episode.stream, episode.end, episode.metadata) == (2, End.TERMINATED, {"seed": 1})
    assert episode.observation[:, 0].tolist() == [0, 1, 2, 3]
    assert episode.action.tolist() == [1, 2, 3, 0]
    assert episode.reward.tolist() == [0, 1, 1, 1]
    assert replay.sessions[0]["source"] == "test"


def test_transitions_are_stored_as_their_episode() -> None:
    columns = {**columns_of(3), "info/lives": np.array([0, 3, 3, 3])}  # the reset has no info
    whole, stepwise = SequenceReplayBuffer(), SequenceReplayBuffer()
    writer = EpisodeWriter(whole)
    writer.add_arrays(columns, terminated=True)
    writer.flush()
    assert (
        EpisodeWriter(stepwise).add_transitions({0: transitions_of(columns, terminated=True)}) == 3
    )
    assert stepwise.digest() == whole.digest()
    assert stepwise.spec == whole.spec


def test_transitions_continue_an_open_episode_and_count_it_when_it_ends() -> None:
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay)
    writer.add_transitions({0: transitions_of(columns_of(3), terminated=False)})
    assert (writer.episodes, writer.steps, replay.episodes) == (0, 3, 1)
    writer.add_transitions({0: transitions_of(columns_of(2, start=3), terminated=True)})
    assert (writer.episodes, writer.steps, replay.episodes) == (1, 5, 1)
    assert writer.digest == replay.digest()


def test_buffered_episodes_are_written_before_transitions() -> None:
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay)
    writer.add_arrays(columns_of(2), terminated=False, truncated=True)
    writer.add_transitions({0: transitions_of(columns_of(3), terminated=True)})
    assert [episode.steps for episode in replay.iter_episodes()] == [2, 3]
    assert (writer.episodes, writer.digest) == (2, replay.digest())


def test_a_writer_counts_only_written_episodes(replay: SequenceReplayBuffer) -> None:
    writer = EpisodeWriter(replay)
    writer.add_episode(only(replay))
    assert (writer.episodes, writer.steps, writer.rows) == (0, 0, 0)
    writer.flush()
    assert (writer.episodes, writer.steps, writer.rows) == (1, 3, 4)
    assert len(replay.sessions) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": np.zeros((3, 2), np.int64)}, r"\baction\b.*\bint64\b"),
        ({"observation": np.zeros((4, 1))}, r"\bobservation\b.*\bfloat64\b"),
        ({"info/score": np.zeros(4)}, r"\binfo/score\b"),
    ],
)
def test_rows_of_another_spec_are_refused_before_they_are_added(
    replay: SequenceReplayBuffer, change: dict[str, np.ndarray], message: str
) -> None:
    writer = EpisodeWriter(replay)
    with pytest.raises(SpecMismatch, match=message):
        writer.add_arrays({**columns_of(3), **change}, terminated=True)
    writer.flush()
    assert replay.episodes == 1


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^mine\b.*'action'.*\(2,\)"):
        EpisodeWriter(SequenceReplayBuffer(), source="mine").add_arrays(
            {**columns_of(3), "action": np.zeros(2)}, terminated=True
        )


def test_an_episode_without_a_step_has_not_ended() -> None:
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay)
    for terminated in (True, False):
        with pytest.raises(ValueError, match=r"\bstep\b.*\b0$"):
            writer.add_arrays(columns_of(0), terminated=terminated, truncated=not terminated)
    writer.add_arrays(columns_of(0), terminated=False)
    writer.flush()
    assert replay.episodes == 1


@pytest.mark.parametrize("name", ["next observation", "truncated", "is_first", "info/lives"])
def test_transitions_of_another_length_are_refused(name: str) -> None:
    columns = replace(transitions_of(columns_of(3), terminated=True), is_first=np.zeros(3, bool))
    short = {
        "next observation": {
            "next_observation": {"observation": columns.fields["observation"][1:]}
        },
        "info/lives": {"fields": {**columns.fields, "info/lives": np.zeros(2, np.int64)}},
    }.get(name, {name: np.zeros(2, bool)})
    replay = SequenceReplayBuffer()
    with pytest.raises(ValueError, match=rf"^mine: .*\b{name}\b.* 3 .*\b2$"):
        EpisodeWriter(replay, source="mine").add_transitions({0: replace(columns, **short)})
    assert not replay.is_bound


@pytest.mark.parametrize("streams", [5, [1], {0: {"reward": np.zeros(3)}}])
def test_transitions_are_columns_by_env(streams: Any) -> None:
    with pytest.raises(TypeError, match=r"TransitionColumns.*\b(int|list|dict)$"):
        EpisodeWriter(SequenceReplayBuffer()).add_transitions(streams)


def test_arrays_may_be_written_to_afterwards() -> None:
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay)
    expected = columns_of(3)
    given = {name: rows.copy() for name, rows in expected.items()}
    writer.add_arrays(given, terminated=True)
    for rows in given.values():
        rows[:] = 9
    writer.flush()
    stored = only(replay).fields
    for name in ("observation", "info/lives"):
        assert stored[name].tolist() == expected[name].tolist()
    for name in ("action", "extra/value"):
        assert stored[name][:-1].tolist() == expected[name].tolist()
    assert stored["reward"][1:].tolist() == expected["reward"].tolist()
