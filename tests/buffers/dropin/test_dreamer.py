"""Dreamer's buffer draws exactly the sequences of the stored episodes."""

from __future__ import annotations

import copy
import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData
from stepwell.buffers.dropin.dreamer import MISSING, Episode, Memory, ReplayBuffer
from support.rows.tagged_transitions import OBS_SHAPE, Play, Step, plays


def make_buffer(
    size: int, length: int, batch: int = 16, seed: int = 0, **options: Any
) -> tuple[ReplayBuffer, Play]:
    buffer = ReplayBuffer(size, OBS_SHAPE, 2, length, batch, seed=seed, **options)
    return buffer, Play(buffer.add, lambda array: {"image": array})


def image(value: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.full(OBS_SHAPE, value, np.uint8)}


@given(plays(2), st.integers(1, 6), st.booleans(), st.sampled_from(["inside", "cross"]))
def test_sequences_that_cross_episodes_follow_the_stream(
    script: list[list[Step]], length: int, is_zstd: bool, borders: str
) -> None:
    """D1: mask and is_first mark the border of two episodes, and the terminal is 1 there.

    D2: of a window with a row that was not written yet, the last row was another one.
    """
    codec = "zstd" if is_zstd else "raw"
    buffer, play = make_buffer(500, length, 12, num_envs=2, codec=codec, borders=borders)
    for stretch in script:
        for step in stretch:
            play.step(step)
        rows = {env: list(rows_of(play, env)) for env in (0, 1)}
        inside = play.windows(length, newest=True)
        if not inside and not any(len(line) > length for line in rows.values()):
            with pytest.raises(NotEnoughData, match=rf"\b{length} steps.*\b{play.count} in all"):
                buffer.sample()
        elif inside or borders == "cross":
            assert_are_of_the_stream(play, rows, buffer.sample(), inside)
    assert buffer.episodes == sum(played.ends > 0 for played in play.episodes)


def assert_are_of_the_stream(
    play: Play, rows: Any, drawn: Any, inside: set[tuple[int, int]]
) -> None:
    """All drawn sequences are parts of streams, and those without a last row of one episode."""
    for b in range(drawn[0].shape[1]):
        first = assert_is_of_the_stream(play, rows, drawn, b)
        assert not drawn.batch.mask[:, b].all() or first in inside


def rows_of(play: Play, env: int) -> Any:
    """(episode, step) of all rows of an env, including final observations."""
    for played in play.episodes:
        if played.env == env:
            yield from ((played.number, step) for step in range(played.steps + 1))


def assert_is_of_the_stream(play: Play, rows: Any, drawn: Any, b: int) -> tuple[int, int]:
    observations, actions, rewards, terminals = (part[:, b] for part in drawn)
    batch = drawn.batch
    played, step = play.of(observations[0])
    line, candidates = rows[played.env], [(played.number, step), (played.number, step + 1)]
    # A final observation that was not given repeats the one before, but has no action.
    at = candidates[int(not actions[0].any() and step < played.steps)]
    first = line.index(at)
    for place in range(len(actions)):
        number, step = line[first + place]
        played = play.episodes[number]
        assert (observations[place] == played.observation(step)).all()
        is_final_row = step == played.steps
        assert batch.mask[place, b] == (not is_final_row)
        assert batch.is_first[place, b] == (step == 0)
        if is_final_row:
            assert not actions[place].any()
            assert (rewards[place], terminals[place]) == (0, 1)
        else:
            assert actions[place].tolist() == played.action(step)
            assert rewards[place] == played.reward(step)
            assert terminals[place] == played.terminal(step)
    return line[first]  # type: ignore[no-any-return]


def test_drawn_sequences_can_be_copied_and_sent_to_another_process() -> None:
    buffer, _ = make_buffer(20, 3)
    for step in range(10):
        buffer.add(image(step), np.zeros(2), 1.0, False)
    drawn = buffer.sample()
    for found in (copy.deepcopy(drawn), pickle.loads(pickle.dumps(drawn))):
        assert all((mine == one).all() for mine, one in zip(found, drawn, strict=True))
        assert (found.batch.ids == drawn.batch.ids).all()


def test_a_sequence_longer_than_the_buffer_is_refused(tmp_path: Path) -> None:
    """D3: rewards 0..7, 0..7, 0..3 were one sequence."""
    for length in (9, 20):
        with pytest.raises(ValueError, match=rf"seq_len: .*size=8\b.*\b{length}\b"):
            ReplayBuffer(8, OBS_SHAPE, 2, length, 4, path=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_discrete_actions_become_one_hot_vectors_only_with_one_hot() -> None:
    """D8."""
    buffer, _ = make_buffer(10, 3, one_hot=True)
    for number in (0, 1, np.int64(1)):
        buffer.add(image(), number, 0.0, False)
    assert buffer.sample()[1][:, 0].tolist() == [[1, 0], [0, 1], [0, 1]]
    for wrong in (2, -1, 0.5, [0, 1]):
        with pytest.raises(ValueError, match=rf"ac: .*\b0 to 1\b.* {re.escape(repr(wrong))}"):
            buffer.add(image(), wrong, 0.0, False)
    assert buffer.steps == 3


def test_other_borders_are_refused_and_the_replay_is_named_that_has_them() -> None:
    with pytest.raises(ValueError, match=r"borders: .*inside, cross.*'pad'.*\breplay\b"):
        make_buffer(10, 1, borders="pad")
    buffer, _ = make_buffer(10, 1)
    with pytest.raises(ValueError, match=r"borders: .*inside, cross.*'pad'.*\breplay\b"):
        buffer.sample(borders="pad")  # type: ignore[arg-type]


NO_FLAGS: list[Any] = [0.5, 2, "yes", np.array([True, False]), float("nan")]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"obs": np.zeros(OBS_SHAPE, np.uint8)}, r'^obs: .*"image".*\bndarray\b'),
        ({"obs": {"pixels": 1}}, r'^obs: .*"image".*\bdict\b'),
        ({"obs": None}, r'^obs: .*"image".*\bNoneType\b'),
        ({"done": True, "final_obs": {}}, r'^final_obs: .*"image"'),
        *(({"done": done}, rf"done: .*{re.escape(repr(done))}") for done in NO_FLAGS),
        ({"truncated": True}, r"truncated=True.*\bdone\b.*\bFalse\b"),
    ],
)
def test_a_wrong_step_is_refused(given: dict[str, Any], match: str) -> None:
    buffer, _ = make_buffer(10, 1)
    with pytest.raises(ValueError, match=match):
        buffer.add(**{"obs": image(), "ac": np.zeros(2), "rew": 0.0, "done": False, **given})
    assert (buffer.steps, buffer.episodes) == (0, 0)


def test_a_batch_has_the_original_format_and_is_a_copy() -> None:
    buffer, play = make_buffer(100, 6, 8)
    play.run([20, -9])
    drawn = buffer.sample()
    assert [part.shape for part in drawn] == [(6, 8, *OBS_SHAPE), (6, 8, 2), (6, 8), (6, 8)]
    assert [part.dtype.name for part in drawn] == ["uint8", "float32", "float32", "float32"]
    for part in drawn:
        assert part.flags.c_contiguous
        assert part.flags.writeable
        part[...] = 77
    inside = play.windows(6, newest=True)
    assert_are_of_the_stream(play, {0: list(rows_of(play, 0))}, buffer.sample(), inside)
    buffer.seq_len, buffer.batch_size = 7, 2
    assert buffer.sample()[0].shape[:2] == (7, 2)


def test_a_memory_draws_different_tuples() -> None:
    """E4: the documented random.sample(memory, 32) failed: a Memory was not a sequence."""
    memory = Memory(100, seed=0)
    for number in range(130):
        memory.append(number, [number], number / 2)
    assert [item[0] for item in memory] == list(range(30, 130))
    assert (memory[0][0], memory[-1][0], memory[5:7]) == (
        30,
        129,
        [(35, [35], 17.5), (36, [36], 18.0)],
    )
    assert len(set(map(str, memory.sample(100)))) == len(memory) == 100
    assert len(random.sample(memory, 32)) == 32
    with pytest.raises(NotEnoughData, match=r"batch_size=101\b.*\b100\b"):
        memory.sample(101)
    with pytest.raises(ValueError, match=r"batch_size=101\b.*\b100\b"):  # as the original raises
        memory.sample(101)
    with pytest.raises(ValueError, match=r"capacity: .*>= 1.*\b0\b"):
        Memory(0)


def test_a_memory_keeps_copies() -> None:
    """E3, O2."""
    memory, array, facts = Memory(), np.zeros(2), {"lives": [3]}
    for number in range(3):
        array[:] = number
        memory.append(array, facts)
    facts["lives"].append(9)
    assert [item[0][0] for item in memory] == [0, 1, 2]
    assert memory[0][1] == {"lives": [3]}


def test_an_episode_creates_its_lists() -> None:
    """E1: append failed after the action had been added. E2: len was that of an image."""
    episode = Episode(np.zeros((3, 4, 4)))
    assert (len(episode), episode.steps) == (1, 0)
    episode.append(0, np.ones((3, 4, 4)), 1.0, False)
    assert (len(episode.observation), episode.action, episode.reward) == (2, [0], [1.0])
    for wrong in (["lives"], 3, "lives"):
        with pytest.raises(TypeError, match=rf"info: .*\b{type(wrong).__name__}\b"):
            episode.append(1, np.ones((3, 4, 4)), 1.0, False, info=wrong)  # type: ignore[arg-type]
    assert (len(episode), episode.steps, len(episode.terminal)) == (2, 1, 1)


def test_info_columns_are_complete_and_copied() -> None:
    """E3: a first info value was not a list, and the caller's dict and list were changed."""
    observations, info = [0], {"lives": 3}
    one, other = Episode(observations, info=info), Episode(observations, info=info)
    one.append(1, 1, 0.0, False, info={"lives": 2})
    one.append(1, 2, 0.0, False)
    one.append(1, 3, 0.0, True, info={"score": 5, "lives": None})
    assert one.info == {"lives": [3, 2, MISSING, None], "score": [MISSING, MISSING, MISSING, 5]}
    assert (observations, info, len(other), other.info) == ([0], {"lives": 3}, 1, {"lives": [3]})
    assert repr(MISSING) == "MISSING"


def test_info_may_be_given_as_columns() -> None:
    """E3: the only form in which the original worked."""
    episode = Episode([0, 1], info={"lives": [3, 2], "level": 1})
    episode.append(0, 2, 0.0, False, info={"lives": 1})
    assert episode.info == {"lives": [3, 2, 1], "level": [1, MISSING, MISSING]}
    assert Episode([0], info={"place": [4, 5]}).info == {"place": [[4, 5]]}
    assert Episode(np.zeros(2), info={"place": [4]}).info == {"place": [[4]]}
    with pytest.raises(ValueError, match=r"info: .*\bobservation\b"):
        Episode([], info={"lives": 3})


def test_an_incomplete_first_step_is_refused() -> None:
    """E1."""
    assert Episode([0], 1, 0.5, False).steps == 1
    with pytest.raises(ValueError, match=r"action, reward.* terminal\b.*\baction;"):
        Episode([0], action=1)
