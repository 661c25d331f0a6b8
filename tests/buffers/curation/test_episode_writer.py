"""EpisodeWriter writes episodes and transitions into a replay, or refuses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import (
    Episode,
    EpisodeWriter,
    SequenceReplayBuffer,
    SpecMismatch,
    TransitionColumns,
)
from stepwell.buffers.rows.step_columns import inferred_spec


def columns_of(steps: int, start: float = 0) -> dict[str, np.ndarray]:
    """An episode whose observations count up from ``start``."""
    return {
        "observation": np.arange(start, start + steps + 1, dtype=np.float32)[:, None],
        "action": np.arange(1, steps + 1),
        "reward": np.ones(steps, np.float32),
        "info/lives": np.full(steps + 1, 3),
        "extra/value": np.full(steps, 0.5, np.float32),
    }


SPEC = inferred_spec(columns_of(0), "test")


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


def written(*episodes: Episode) -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay)
    for episode in episodes:
        writer.add_episode(episode)
    writer.flush()
    return replay


def only(replay: SequenceReplayBuffer) -> Episode:
    (episode,) = replay.iter_episodes()
    return episode


def of_arrays(
    columns: dict[str, np.ndarray], *, terminated: bool = True, stream: int = 0
) -> SequenceReplayBuffer:
    """A replay with one episode of arrays."""
    replay = SequenceReplayBuffer()
    named: dict[str, Any] = {name: columns[name] for name in ("observation", "action", "reward")}
    with replay.writer(SPEC, num_envs=stream + 1) as writer:
        writer.add_episode(
            **named,
            terminated=terminated,
            info={"lives": columns["info/lives"]},
            extras={"value": columns["extra/value"]},
            env=stream,
        )
    return replay


@pytest.fixture
def replay() -> SequenceReplayBuffer:
    """A replay with one terminated episode of three steps."""
    return of_arrays(columns_of(3), stream=2)


def test_an_episode_is_written_with_its_spec(replay: SequenceReplayBuffer) -> None:
    assert written(only(replay)).digest() == replay.digest()
    assert written(only(of_arrays(columns_of(0), terminated=False))).episodes == 1  # no step


def test_transitions_are_stored_as_their_episode() -> None:
    columns = {**columns_of(3), "info/lives": np.array([0, 3, 3, 3])}  # the reset has no info
    whole, stepwise = of_arrays(columns), SequenceReplayBuffer()
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
    writer.add_episode(only(of_arrays(columns_of(2))))
    assert (writer.episodes, writer.steps, writer.rows) == (0, 0, 0)
    writer.add_transitions({0: transitions_of(columns_of(3), terminated=True)})
    assert [episode.steps for episode in replay.iter_episodes()] == [2, 3]
    assert (writer.episodes, writer.digest) == (2, replay.digest())


def test_an_episode_of_another_spec_is_refused(replay: SequenceReplayBuffer) -> None:
    episode = only(replay)
    fields = tuple(
        replace(field, dtype="float64") if field.name == "observation" else field
        for field in episode.spec.fields
    )
    other = replace(episode, spec=replace(episode.spec, fields=fields))
    with pytest.raises(SpecMismatch, match=r"\bobservation\b.*\bfloat64\b"):
        EpisodeWriter(replay).add_episode(other)


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
