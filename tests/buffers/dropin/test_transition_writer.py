"""Transitions added one at a time are stored as episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import End, SequenceReplayBuffer, SpecMismatch
from stepwell.buffers.dropin.transition_writer import TransitionWriter, row_field
from stepwell.buffers.spec.spec import Field

FIELDS = Field("observation", "uint8", (3,), "raw"), Field("action", "float32", (2,), "raw")


class Transition(NamedTuple):
    """A transition of an env, and how its episode continues."""

    env: int
    terminated: bool
    truncated: bool
    has_final: bool


@dataclass
class ModelEpisode:
    """The expected rows of an episode."""

    env: int
    observation: list[int] = field(default_factory=list)
    action: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=lambda: [0.0])
    observed: list[bool] = field(default_factory=list)
    end: End = End.NONE
    is_open: bool = True

    def finish(self, final: int | None) -> None:
        """Add the row after the newest transition."""
        self.observation.append(self.observation[-1] if final is None else final)
        self.action.append(0)
        self.observed.append(final is not None)
        self.is_open = False


def tagged(number: int) -> np.ndarray:
    return np.array([number % 256, number // 256, 7], np.uint8)


def add(writer: TransitionWriter, model: list[ModelEpisode], number: int, step: Transition) -> None:
    is_over = step.terminated or step.truncated
    final = 30_000 + number if step.has_final and is_over else None
    writer.add(
        tagged(number),
        np.array([number, -number], np.float32),
        number / 8,
        terminated=step.terminated,
        truncated=step.truncated,
        final_observation=None if final is None else tagged(final),
        env=step.env,
    )
    episodes = [episode for episode in model if episode.env == step.env and episode.is_open]
    if not episodes:
        episodes = [ModelEpisode(step.env)]
        model += episodes
    episode = episodes[0]
    episode.observation.append(number)
    episode.action.append(number)
    episode.reward.append(number / 8)
    episode.observed.append(True)
    if is_over:
        episode.end = End(
            int(step.terminated) * End.TERMINATED + int(step.truncated) * End.TRUNCATED
        )
        episode.finish(final)


def assert_holds(
    replay: SequenceReplayBuffer, model: list[ModelEpisode], newest: bool | None
) -> None:
    """The stored episodes equal the model; open ones with or without the newest transition."""
    stored = list(replay.iter_episodes())
    assert len(stored) == len(model)
    by_first = {tuple(e.observation[0].tolist()): e for e in stored}
    for episode in model:
        found = by_first[tuple(tagged(episode.observation[0]).tolist())]
        observation, observed, action = episode.observation, episode.observed, episode.action
        rows = len(observation)
        if episode.is_open and newest:
            rows += 1
            observation = [*observation, observation[-1]]
            observed, action = [*observed, False], [*action, 0]
        assert found.stream == episode.env
        assert found.end & ~End.PENDING == episode.end
        assert found.observation.tolist() == [tagged(n).tolist() for n in observation]
        assert found.action.tolist() == [[n, -n] for n in action]
        assert found.reward.tolist() == episode.reward[:rows]
        assert found.fields["info/observed"].tolist() == observed


STEPS = st.builds(
    Transition,
    st.integers(0, 2),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    st.booleans(),
)
MANY = st.lists(STEPS, min_size=5, max_size=60)
CALLS = st.lists(STEPS | MANY | st.sampled_from(["flush", "newest", "cut", "cut 1"]), max_size=30)
Call: TypeAlias = "Transition | list[Transition] | str"


@given(CALLS)
def test_stored_rows_equal_a_list_of_episodes(calls: list[Call]) -> None:
    replay, model, number = SequenceReplayBuffer(seed=0), list[ModelEpisode](), 0
    with mock.patch("stepwell.buffers.dropin.transition_writer._MAX_ROWS", 17):
        writer = TransitionWriter(replay, *FIELDS, num_envs=3, facts={})
    for call in calls:
        if isinstance(call, str) and call.startswith("cut"):
            env = 1 if call == "cut 1" else None
            writer.cut(env)
            for episode in model:
                if episode.is_open and env in (None, episode.env):
                    episode.finish(None)
        elif isinstance(call, str):
            writer.flush(newest=call == "newest")
            chunks = len(replay.storage.index)
            writer.flush(newest=call == "newest")
            assert len(replay.storage.index) == chunks  # the second flush stores nothing
        else:
            for step in [call] if isinstance(call, Transition) else call:
                add(writer, model, number, step)
                number += 1
    writer.flush(newest=True)
    assert writer.steps == replay.steps == number
    assert writer.episodes == sum(bool(episode.end) for episode in model)
    assert_holds(replay, model, newest=True)


@pytest.mark.proof
def test_catch_up_leaves_at_most_a_thousandth_unstored() -> None:
    replay = SequenceReplayBuffer(seed=0)
    writer, chunks = TransitionWriter(replay, *FIELDS, facts={}), list[int]()
    for number in range(5_000):
        add(writer, [], number, Transition(0, number % 50 == 49, False, False))
        writer.catch_up(newest=True)
        assert 0 <= number + 1 - len(replay) <= number / 1000
        chunks.append(len(replay.storage.index))
    assert chunks[999] == 1_000
    assert chunks[-1] < 3_500
    writer.flush(newest=True)
    assert len(replay) == 5_000


def test_a_new_run_does_not_continue_an_open_episode(tmp_path: Path) -> None:
    """F2, M4: rows 0, 1, 2, 100, 101 were one episode."""
    for first in (0, 100):
        with SequenceReplayBuffer(tmp_path / "a", seed=0) as replay:
            writer = TransitionWriter(replay, *FIELDS, facts={})
            for number in range(first, first + 3):
                add(writer, [], number, Transition(0, False, False, False))
            writer.flush(newest=True)
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True) as reader:
        assert [e.observation[:, 0].tolist() for e in reader.iter_episodes()] == [
            [0, 1, 2, 2],
            [100, 101, 102, 102],
        ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observation": np.full(3, 0.7)}, r"observation: .*uint8.*float64"),
        ({"observation": np.full(3, 300)}, r"observation: .*uint8.*\b300\b"),
        ({"observation": np.zeros((1, 3), np.uint8)}, r"observation: .*\(3,\).*\(1, 3\)"),
        ({"action": 2}, r"action: .*\(2,\).*\(\)"),
        ({"reward": np.zeros(2)}, r"reward: .*\[0\., 0\.\]"),
        ({"reward": "1"}, r"reward: .*'1'"),
        ({"env": 1}, r"env: .*\b0 to 0\b.* 1\b"),
        ({"env": -1}, r"env: .*\b0 to 0\b.* -1\b"),
        ({"final_observation": tagged(1)}, r"final observation: .*\bepisode\b"),
    ],
)
def test_invalid_transitions_are_refused_and_change_nothing(
    wrong: dict[str, object], message: str
) -> None:
    """D7, D8, I8, N8."""
    replay = SequenceReplayBuffer(seed=0)
    writer, model = TransitionWriter(replay, *FIELDS, facts={}), list[ModelEpisode]()
    add(writer, model, 1, Transition(0, False, False, False))
    right: dict[str, object] = {"observation": tagged(2), "action": [1, 2], "reward": 0}
    with pytest.raises(ValueError, match=message):
        writer.add(**(right | {"terminated": False} | wrong))  # type: ignore[arg-type]
    add(writer, model, 3, Transition(0, True, False, True))
    writer.flush(newest=True)
    assert writer.steps == 2
    assert_holds(replay, model, newest=True)


def test_a_replay_with_other_fields_or_facts_is_refused() -> None:
    replay = SequenceReplayBuffer(seed=0)
    writer = TransitionWriter(replay, *FIELDS, facts={"recipe": {"kind": "a"}})
    add(writer, [], 1, Transition(0, True, False, True))
    writer.flush(newest=True)
    other = Field("observation", "uint8", (4,), "raw")
    with pytest.raises(SpecMismatch, match=r"observation.*\(3,\).*\(4,\)"):
        TransitionWriter(replay, other, FIELDS[1], facts={"recipe": {"kind": "a"}})
    with pytest.raises(SpecMismatch, match=r"kind.*'a'.*'b'"):
        TransitionWriter(replay, *FIELDS, facts={"recipe": {"kind": "b"}})


@pytest.mark.proof
@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("capacity", [100, 1_000])
def test_every_env_keeps_its_newest_steps_in_a_small_ring(num_envs: int, capacity: int) -> None:
    """Rows of one env that were stored at once evicted newer rows of other envs."""
    replay = SequenceReplayBuffer(capacity=capacity, seed=0)
    writer = TransitionWriter(replay, *FIELDS, num_envs=num_envs, facts={})
    for number in range(1_500):
        for env in range(num_envs):
            add(writer, [], number, Transition(env, number % 50 == 49, False, False))
    writer.flush(newest=True)
    kept = [
        sum(episode.steps for episode in replay.iter_episodes() if episode.stream == env)
        for env in range(num_envs)
    ]
    assert min(kept) > 0.6 * capacity / num_envs


@pytest.mark.parametrize(("path", "codec"), [(None, "raw"), ("a", "patch")])
def test_images_are_stored_as_they_are_in_ram_and_as_patches_in_a_folder(
    path: str | None, codec: str
) -> None:
    assert row_field("observation", np.dtype("uint8"), (64, 64, 3), path=path).codec == codec
    asked = row_field("observation", np.dtype("uint8"), (64, 64, 3), path=path, codec="zstd")
    assert asked.codec == "zstd"
