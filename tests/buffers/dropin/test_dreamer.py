"""Dreamer's buffer draws the sequences that the list of episodes holds, and none besides."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData, Sequences, SpecMismatch
from stepwell.buffers.dropin.dreamer import MISSING, Episode, Memory, ReplayBuffer
from stepwell.buffers.dropin.iris import IRISReplayBuffer
from support.chi_square import assert_shares
from support.rows.tagged_transitions import OBS_SHAPE, Play, Step, plays


def a_buffer(
    size: int, length: int, batch: int = 16, seed: int = 0, **options: Any
) -> tuple[ReplayBuffer, Play]:
    buffer = ReplayBuffer(size, OBS_SHAPE, 2, length, batch, seed=seed, **options)
    return buffer, Play(buffer.add, lambda array: {"image": array})


def image(value: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.full(OBS_SHAPE, value, np.uint8)}


def assert_is_of_one_episode(play: Play, columns: list[np.ndarray]) -> tuple[int, int]:
    """A drawn sequence is what the episode holds from its first step on."""
    observations, actions, rewards, terminals = columns
    played, first = play.of(observations[0])
    for place in range(len(actions)):
        step = first + place
        assert step < played.steps
        assert (observations[place] == played.observation(step)).all()
        assert actions[place].tolist() == played.action(step)
        assert rewards[place] == played.reward(step)
        assert terminals[place] == played.terminal(step)
    return played.number, first


def firsts(buffer: ReplayBuffer, play: Play, times: int) -> Counter[tuple[int, int]]:
    """How often each sequence was drawn; each is checked whole."""
    counts: Counter[tuple[int, int]] = Counter()
    for _ in range(times):
        drawn = buffer.sample()
        for b in range(buffer.batch_size):
            counts[assert_is_of_one_episode(play, [part[:, b] for part in drawn])] += 1
    return counts


SIZES = st.sampled_from([1, 2, 5, 9, 16, 17, 40, 400])


@given(plays(3), SIZES, st.integers(1, 5), st.booleans())
def test_what_is_drawn_is_in_the_list_of_episodes(
    script: list[list[Step]], size: int, length: int, is_zstd: bool
) -> None:
    length = min(size, length)
    codec = "zstd" if is_zstd else "raw"
    buffer, play = a_buffer(size, length, 12, num_envs=3, codec=codec)
    for stretch in script:
        for step in stretch:
            play.step(step)
        every = play.windows(length, newest=True)
        if not every:
            with pytest.raises(NotEnoughData):
                buffer.sample()
            continue
        request = Sequences(1, length, align="transition")
        if play.count <= size:
            assert set(firsts(buffer, play, 2)) <= every
            assert buffer.replay.count(request) == len(every)
            continue
        with contextlib.suppress(NotEnoughData):  # of each env a part is left
            assert set(firsts(buffer, play, 2)) <= every
        if not buffer.replay.count(request):
            with pytest.raises(NotEnoughData):
                buffer.sample()
    assert (buffer.steps, buffer.idx) == (play.count, play.count % size)
    assert buffer.full == (play.count >= size)
    assert buffer.episodes == sum(played.ends > 0 for played in play.episodes)


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), max_size=8), SIZES)
def test_the_newest_steps_are_there_whenever_they_are_asked_for(
    script: list[list[int]], size: int
) -> None:
    buffer, play = a_buffer(size, 1, 1)
    for lengths in script:
        play.run([*lengths[:-1], -lengths[-1]])
        play.step(Step(0, 1, has_final=True))
        buffer.sample()
        least = play.windows(1, newest=True, since=play.count - size)
        assert buffer.replay.count(Sequences(1, 1, align="transition")) >= len(least)
        stored = {play.of(row) for e in buffer.replay.iter_episodes() for row in e.observation}
        assert {(played.number, step) for played, step in stored} >= least


@given(plays(2), st.integers(1, 6), st.booleans())
def test_what_crosses_is_what_the_env_played_on(
    script: list[list[Step]], length: int, is_zstd: bool
) -> None:
    """D1: a sequence that goes on says where, and its terminal is 1 there, too."""
    codec = "zstd" if is_zstd else "raw"
    buffer, play = a_buffer(500, length, 12, num_envs=2, codec=codec, borders="cross")
    for stretch in script:
        for step in stretch:
            play.step(step)
        rows = {env: list(rows_of(play, env)) for env in (0, 1)}
        if not any(len(line) > length for line in rows.values()):
            continue
        drawn = buffer.sample()
        for b in range(12):
            assert_is_of_the_stream(play, rows, drawn, b)


def rows_of(play: Play, env: int) -> Any:
    """(episode, step) of all rows of an env, those of last observations included."""
    for played in play.episodes:
        if played.env == env:
            yield from ((played.number, step) for step in range(played.steps + 1))


def assert_is_of_the_stream(play: Play, rows: Any, drawn: Any, b: int) -> None:
    observations, actions, rewards, terminals = (part[:, b] for part in drawn)
    batch = drawn.batch
    played, step = play.of(observations[0])
    line, candidates = rows[played.env], [(played.number, step), (played.number, step + 1)]
    # A last observation that was not given repeats the one before, but nothing was chosen from it.
    at = candidates[int(not actions[0].any() and step < played.steps)]
    first = line.index(at)
    for place in range(len(actions)):
        number, step = line[first + place]
        played = play.episodes[number]
        assert (observations[place] == played.observation(step)).all()
        is_border = step == played.steps
        assert batch.mask[place, b] == (not is_border)
        assert batch.is_first[place, b] == (step == 0)
        if is_border:
            assert not actions[place].any()
            assert (rewards[place], terminals[place]) == (0, 1)
        else:
            assert actions[place].tolist() == played.action(step)
            assert rewards[place] == played.reward(step)
            assert terminals[place] == played.terminal(step)


def test_sequences_lie_in_one_episode_unless_they_may_cross() -> None:
    """D1: half of all windows had a terminal before their last step."""
    buffer, play = a_buffer(1000, 50, 50)
    play.run([100] * 9 + [-50])
    for _ in range(20):
        terminals = buffer.sample()[3]
        assert not terminals[:-1].any()
    crossing = buffer.sample(borders="cross")
    assert crossing[3][:-1].any()
    assert not crossing.batch.mask.all()
    with pytest.raises(ValueError, match='borders: expected "inside" or "cross"'):
        buffer.sample(borders="pad_after")  # type: ignore[arg-type]


def test_a_shortage_is_told_with_both_numbers() -> None:
    """D2: a window came back with a sixth row that nobody had written."""
    buffer, play = a_buffer(10, 6)
    with pytest.raises(NotEnoughData, match=r"expected 6 steps in one episode .*, got 0 in all"):
        buffer.sample()
    play.run([-5])
    with pytest.raises(NotEnoughData, match=r"expected 6 steps in one episode .*, got 5 in all"):
        buffer.sample()
    play.step(Step(0, 0, has_final=False))
    assert set(firsts(buffer, play, 2)) == {(0, 0)}


def test_short_episodes_are_no_long_one() -> None:
    """D2: the message tells how long the longest one is."""
    buffer, play = a_buffer(100, 6)
    play.run([3, 5, 2])
    with pytest.raises(NotEnoughData, match="got 10 in all, at most 5 in one episode"):
        buffer.sample()


def test_a_sequence_longer_than_the_buffer_is_refused(tmp_path: Path) -> None:
    """D3: rewards 0..7, 0..7, 0..3 came as one sequence."""
    for length in (9, 20):
        with pytest.raises(ValueError, match=f"seq_len: expected at most size=8, got {length}"):
            ReplayBuffer(8, OBS_SHAPE, 2, length, 4, path=tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("shape", [4, (3, -4), (3, 0), (3, 4.0), (True, 3), "ab", None])
@pytest.mark.parametrize("kind", [ReplayBuffer, IRISReplayBuffer])
def test_shapes_that_make_no_sense_are_refused(kind: Any, shape: Any) -> None:
    with pytest.raises(ValueError, match="obs_shape: expected a tuple of whole numbers >= 1"):
        kind(9, shape, 2, 3, 4)


@pytest.mark.parametrize("name", ["size", "action_size", "seq_len", "batch_size", "num_envs"])
def test_numbers_that_make_no_sense_are_refused(name: str) -> None:
    right = {"size": 9, "action_size": 2, "seq_len": 3, "batch_size": 4}
    beyond: list[Any] = [0, 2.5, True, "3"]
    for wrong in beyond:
        given: dict[str, Any] = right | {name: wrong}
        with pytest.raises(ValueError, match=f"{name}: expected a whole number >= 1, got"):
            ReplayBuffer(obs_shape=OBS_SHAPE, **given)


def test_a_full_buffer_of_less_than_two_sequences_draws() -> None:
    """D4: with the write head in the midst no start was ever found, and sample never returned."""
    buffer, play = a_buffer(60, 50)
    play.run([-100])
    assert set(firsts(buffer, play, 5)) <= play.windows(50, newest=True)


@pytest.mark.parametrize(("size", "steps"), [(100, 100), (100, 150), (100, 20)])
def test_every_start_is_as_likely_as_any_other(size: int, steps: int) -> None:
    """D5: the last start, and all windows over the array's end, were never drawn."""
    buffer, play = a_buffer(size, 10, 100)
    play.run([-steps])
    counts = firsts(buffer, play, 40)
    oldest = min(first for _, first in counts)
    assert oldest <= max(0, steps - size)
    shares = {(0, first): 1.0 for first in range(oldest, steps - 9)}
    assert_shares(counts, shares)


def test_episodes_are_drawn_from_by_their_windows() -> None:
    """D5: uniform over windows, whatever the episodes' lengths, and across envs."""
    buffer, play = a_buffer(1000, 4, 100, num_envs=2)
    play.run([4, 9, 3, 20])
    play.run([30, 5], env=1)
    counts = firsts(buffer, play, 40)
    assert_shares(counts, dict.fromkeys(play.windows(4, newest=True), 1.0))


def test_a_sequence_as_long_as_the_buffer_has_no_jump() -> None:
    """D6: window 50..149 came back with a jump of -99 at the write head."""
    buffer, play = a_buffer(100, 100)
    play.run([-150])
    assert (0, 50) in firsts(buffer, play, 5)


@pytest.mark.parametrize("value", [0.7, 300, -1])
def test_images_that_uint8_does_not_hold_are_refused(value: float) -> None:
    """D7: 0.7 was stored as 0, and 300 as 44."""
    buffer, play = a_buffer(10, 1)
    with pytest.raises(ValueError, match="uint8"):
        buffer.add({"image": np.full(OBS_SHAPE, value)}, np.zeros(2), 0.0, False)
    assert buffer.steps == 0
    play.run([3])
    assert set(firsts(buffer, play, 4)) == {(0, 0), (0, 1), (0, 2)}


def test_nothing_is_broadcast() -> None:
    """D8: an image of shape (1, 1, 4) filled (1, 4, 4), and action 2 became [2, 2, 2]."""
    buffer, _ = a_buffer(10, 1)
    with pytest.raises(
        ValueError, match=r"expected an array of shape \(4, 2, 12\), got \(1, 2, 12\)"
    ):
        buffer.add({"image": np.zeros((1, 2, 12), np.uint8)}, np.zeros(2), 0.0, False)
    with pytest.raises(ValueError, match=r"action: expected an array of shape \(2,\), got \(\)"):
        buffer.add(image(), 2, 0.0, False)
    assert buffer.steps == 0


def test_numbers_of_actions_become_vectors_only_where_that_is_asked_for() -> None:
    """D8: a discrete action."""
    buffer, _ = a_buffer(10, 3, one_hot=True)
    for number in (0, 1, np.int64(1)):
        buffer.add(image(), number, 0.0, False)
    assert buffer.sample()[1][:, 0].tolist() == [[1, 0], [0, 1], [0, 1]]
    for wrong in (2, -1, 0.5, [0, 1]):
        with pytest.raises(ValueError, match="ac: expected one whole number from 0 to 1"):
            buffer.add(image(), wrong, 0.0, False)
    assert buffer.steps == 3


@pytest.mark.parametrize("wrong", [np.zeros(OBS_SHAPE, np.uint8), {"pixels": 1}, None])
def test_observations_without_an_image_are_refused(wrong: Any) -> None:
    buffer, _ = a_buffer(10, 1)
    with pytest.raises(ValueError, match='obs: expected a dict with the key "image"'):
        buffer.add(wrong, np.zeros(2), 0.0, False)
    with pytest.raises(ValueError, match='final_obs: expected a dict with the key "image"'):
        buffer.add(image(), np.zeros(2), 0.0, True, final_obs={} if wrong is None else wrong)
    assert buffer.steps == 0


@pytest.mark.parametrize("done", [0.5, 2, "yes", np.array([True, False]), float("nan")])
def test_a_flag_that_is_none_is_refused(done: Any) -> None:
    buffer, _ = a_buffer(10, 1)
    with pytest.raises(ValueError, match="done: expected True or False, 0 or 1"):
        buffer.add(image(), np.zeros(2), 0.0, done)
    with pytest.raises(ValueError, match="truncated=True: expected done to be True as well"):
        buffer.add(image(), np.zeros(2), 0.0, False, truncated=True)
    assert (buffer.steps, buffer.episodes) == (0, 0)


def test_truncated_and_terminated_are_one_terminal_and_two_flags() -> None:
    buffer, play = a_buffer(100, 2, 64)
    play.run([2])
    play.run([2], ends=2)
    drawn = buffer.sample()
    assert drawn[3][1].all()
    clock = drawn[0][0, :, 0, 0, 1] == 1
    assert (drawn.batch.truncated[1] == clock).all()
    assert (drawn.batch.terminated[1] == ~clock).all()


def test_a_batch_is_in_the_original_form_and_the_callers_own() -> None:
    buffer, play = a_buffer(100, 6, 8)
    play.run([20, -9])
    drawn = buffer.sample()
    assert [part.shape for part in drawn] == [(6, 8, *OBS_SHAPE), (6, 8, 2), (6, 8), (6, 8)]
    assert [part.dtype.name for part in drawn] == ["uint8", "float32", "float32", "float32"]
    for part in drawn:
        assert part.flags.c_contiguous
        assert part.flags.writeable
        part[...] = 77
    firsts(buffer, play, 10)


def test_draws_are_the_seeds_and_leave_the_global_generator_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    batches: list[np.ndarray] = []
    for seed in (1, 1, 2):
        buffer, play = a_buffer(100, 3, seed=seed)
        play.run([50])
        batches.append(buffer.sample()[0])
    assert np.random.random() == np.random.RandomState(3).random()  # noqa: NPY002
    assert (batches[0] == batches[1]).all()
    assert (batches[0] != batches[2]).any()


def test_other_lengths_can_be_set() -> None:
    buffer, play = a_buffer(100, 3, 4)
    play.run([20])
    buffer.seq_len, buffer.batch_size = 7, 2
    assert buffer.sample()[0].shape[:2] == (7, 2)


@pytest.mark.parametrize("codec", [None, "raw"])
def test_a_folder_is_continued_and_no_episode_joined(tmp_path: Path, codec: Any) -> None:
    """F2, M4: what was open when the program ended is a cut."""
    options = {"path": tmp_path / "a", "codec": codec}
    buffer, play = a_buffer(100, 4, **options)
    with buffer:
        play.run([10, -7])
    buffer.close()
    with a_buffer(100, 4, **options)[0] as again:
        assert (again.steps, again.episodes, again.idx, again.full) == (17, 1, 17, False)
        play._add, play._open = again.add, {}
        play.run([6, -5])
        assert set(firsts(again, play, 30)) == play.windows(4, newest=True)
    with pytest.raises(SpecMismatch):
        ReplayBuffer(100, OBS_SHAPE, 3, 4, 4, path=tmp_path / "a")
    with a_buffer(100, 4, **options)[0] as again:
        assert again.steps == 28


def test_a_memory_draws_different_tuples() -> None:
    """E4: the documented random.sample(memory, 32) failed: a Memory was no sequence."""
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
    with pytest.raises(NotEnoughData, match="at least batch_size=101 tuples, got 100"):
        memory.sample(101)
    with pytest.raises(ValueError, match="at least batch_size=101"):  # as the original raises
        memory.sample(101)
    with pytest.raises(ValueError, match="capacity: expected a whole number >= 1"):
        Memory(0)


def test_a_memory_draws_uniformly_by_its_own_seed() -> None:
    """E4."""
    memory = Memory(8, seed=3)
    for number in range(13):
        memory.append(number)
    counts = Counter(number for _ in range(500) for (number,) in memory.sample(3))
    assert_shares(counts, dict.fromkeys(range(5, 13), 1.0))


def test_a_memory_keeps_copies() -> None:
    """E3, O2."""
    memory, array, facts = Memory(), np.zeros(2), {"lives": [3]}
    for number in range(3):
        array[:] = number
        memory.append(array, facts)
    facts["lives"].append(9)
    assert [item[0][0] for item in memory] == [0, 1, 2]
    assert memory[0][1] == {"lives": [3]}


def test_an_episode_makes_its_lists_itself() -> None:
    """E1: append failed after the action had been taken up."""
    episode = Episode(np.zeros((3, 4, 4)))
    episode.append(0, np.ones((3, 4, 4)), 1.0, False)
    assert (len(episode.observation), episode.action, episode.reward) == (2, [0], [1.0])
    for wrong in (["lives"], 3, "lives"):
        with pytest.raises(TypeError, match="info: expected a mapping"):
            episode.append(1, np.ones((3, 4, 4)), 1.0, False, info=wrong)  # type: ignore[arg-type]
    assert (len(episode), episode.steps, len(episode.terminal)) == (2, 1, 1)


def test_steps_and_observations_are_two_numbers() -> None:
    """E2: len was 3 for an image of three channels, and 1 for a list, with no step taken."""
    for observation in (np.zeros((3, 4, 4)), [np.zeros((3, 4, 4))]):
        episode = Episode(observation)
        assert (len(episode), episode.steps) == (1, 0)
        episode.append(0, np.zeros((3, 4, 4)), 1.0, True)
        assert (len(episode), episode.steps) == (2, 1)


def test_info_columns_are_whole_and_nothing_is_shared() -> None:
    """E3: a first info value was no list, and the caller's dict and list were changed."""
    observations, info = [0], {"lives": 3}
    one, other = Episode(observations, info=info), Episode(observations, info=info)
    one.append(1, 1, 0.0, False, info={"lives": 2})
    one.append(1, 2, 0.0, False)
    one.append(1, 3, 0.0, True, info={"score": 5, "lives": None})
    assert one.info == {"lives": [3, 2, MISSING, None], "score": [MISSING, MISSING, MISSING, 5]}
    assert (observations, info, len(other), other.info) == ([0], {"lives": 3}, 1, {"lives": [3]})
    assert repr(MISSING) == "MISSING"


def test_info_may_be_columns_already() -> None:
    """E3: the only form in which the original worked."""
    episode = Episode([0, 1], info={"lives": [3, 2], "level": 1})
    episode.append(0, 2, 0.0, False, info={"lives": 1})
    assert episode.info == {"lives": [3, 2, 1], "level": [1, MISSING, MISSING]}
    assert Episode([0], info={"place": [4, 5]}).info == {"place": [[4, 5]]}
    assert Episode(np.zeros(2), info={"place": [4]}).info == {"place": [[4]]}
    with pytest.raises(ValueError, match="info: expected an observation that it came with"):
        Episode([], info={"lives": 3})


def test_a_first_step_is_given_whole_or_not_at_all() -> None:
    """E1."""
    assert Episode([0], 1, 0.5, False).steps == 1
    with pytest.raises(ValueError, match="a first step: expected action, reward and terminal"):
        Episode([0], action=1)
