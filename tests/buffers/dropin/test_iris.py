"""IRIS's buffers draw exactly the sequences of the stored episodes."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData, Sequences
from stepwell.buffers.dropin.iris import IRISOnPolicyBuffer, IRISReplayBuffer
from support.chi_square import assert_shares
from support.examples import by_tier
from support.rows.tagged_transitions import OBS_SHAPE, Play, Played, Step, image, plays


def make_buffer(
    size: int, length: int = 5, batch: int = 16, seed: int = 0, **options: Any
) -> tuple[IRISReplayBuffer, Play]:
    buffer = IRISReplayBuffer(size, OBS_SHAPE, 2, length, batch, seed=seed, **options)
    return buffer, Play(buffer.add)


def drawable(buffer: IRISReplayBuffer, length: int) -> int:
    return buffer.replay.count(Sequences(1, length, align="transition"))


def can_draw(buffer: IRISReplayBuffer) -> bool:
    try:
        buffer.sample_sequence()
    except NotEnoughData:
        return False
    return True


def assert_is_of_one_episode(play: Play, drawn: Any, b: int) -> tuple[int, int]:
    """A drawn sequence equals the steps of one episode, padded with zeros."""
    observations, actions, rewards, terminals = (part[b] for part in drawn)
    mask = drawn.batch.mask[b]
    played, first = play.of(observations[0])
    for place in range(len(actions)):
        step = first + place
        if not mask[place]:
            is_newest = (
                not played.ends and step == played.steps - 1
            )  # its next observation is not known
            assert is_newest or step >= played.steps
            assert actions[place].tolist() == (played.action(step) if is_newest else [0, 0])
            assert (rewards[place], terminals[place]) == (0, 0)
            assert not observations[place + 1].any()
            continue
        assert step < played.steps
        assert (observations[place] == played.observation(step)).all()
        assert (observations[place + 1] == played.observation(step + 1)).all()
        assert actions[place].tolist() == played.action(step)
        assert rewards[place] == played.reward(step)
        assert terminals[place] == played.terminal(step)
        is_given = step + 1 < played.steps or played.has_final
        assert drawn.batch.info["observed"][b, place] == is_given
    return played.number, first


def firsts(
    buffer: IRISReplayBuffer, play: Play, times: int, length: int | None = None, **options: Any
) -> Counter[tuple[int, int]]:
    """Count the drawn sequences by their first step, and check every value."""
    counts: Counter[tuple[int, int]] = Counter()
    for _ in range(times):
        drawn = buffer.sample_sequence(length, **options)
        for b in range(buffer.batch_size):
            counts[assert_is_of_one_episode(play, drawn, b)] += 1
    return counts


def newest(play: Play, size: int) -> list[tuple[Played, int]]:
    """The newest steps of one env, the oldest first."""
    every = [(played, step) for played in play.episodes for step in range(played.steps)]
    return every[-size:]


SIZES = st.sampled_from([1, 2, 5, 9, 16, 17, 40, 400])


@settings(max_examples=by_tier(20, 100, 100))
@given(plays(3), SIZES, st.integers(1, 5), st.booleans())
def test_drawn_sequences_are_those_of_the_episodes(
    script: list[list[Step]], size: int, length: int, is_zstd: bool
) -> None:
    """I2: a twelfth of the windows crossed the write head."""
    length = min(size, length)
    codec = "zstd" if is_zstd else "raw"
    buffer, play = make_buffer(size, length, 12, num_envs=3, codec=codec)
    for stretch in script:
        for step in stretch:
            play.step(step)
        every = play.windows(length, newest=False)
        starts = play.windows(1, newest=False)
        if not every:
            with pytest.raises(NotEnoughData, match=rf"\b{length} steps"):
                buffer.sample_sequence()
        elif play.count <= size:
            assert set(firsts(buffer, play, 2)) <= every
            assert drawable(buffer, length) == len(every)
        else:
            with contextlib.suppress(NotEnoughData):  # only a part of each env is left
                assert set(firsts(buffer, play, 2)) <= every
            assert (drawable(buffer, length) > 0) == can_draw(buffer)
        if starts and play.count <= size:
            padded = firsts(buffer, play, 2, borders="pad_after")
            assert set(padded) <= starts
        assert_observations_are_distinct(buffer, play)
        taken = {(played.number, step) for played, step in newest(play, play.count)}
        for frame in buffer.sample_frames(10):
            played, number = play.of(frame)
            assert (played.number, number) in taken
            assert (frame == image(played.env, played.number, number)).all()
    assert (buffer.steps, buffer.idx) == (play.count, play.count % size)
    assert (buffer.full, len(buffer)) == (play.count >= size, min(size, play.count))
    assert buffer.episodes == sum(played.ends > 0 for played in play.episodes)


def assert_observations_are_distinct(buffer: IRISReplayBuffer, play: Play) -> None:
    """There are len(buffer) observations; those of one env are its newest ones in order."""
    by_env: dict[int, list[tuple[int, int]]] = {}
    for frame in buffer.observations:
        played, number = play.of(frame)
        assert (frame == image(played.env, played.number, number)).all()
        by_env.setdefault(played.env, []).append((played.number, number))
    assert sum(map(len, by_env.values())) == len(buffer)
    for env, places in by_env.items():
        ours = [one for one in play.episodes if one.env == env]
        every = [(one.number, step) for one in ours for step in range(one.steps)]
        assert places == every[-len(places) :]


def test_observation_indices_are_checked_and_results_are_copies() -> None:
    buffer, play = make_buffer(10)
    for wrong in (0, -1):
        with pytest.raises(IndexError, match=rf"index: .*\[{wrong}\]"):
            buffer.observations[wrong]
    play.run([4, 3])
    beyond: list[Any] = [7, -8, 0.5, np.array([1, 7])]
    for wrong in beyond:
        got = re.escape(str(np.atleast_1d(wrong).tolist()))
        with pytest.raises(IndexError, match=rf"index: .*-7 to 6\b.*{got}"):
            buffer.observations[wrong]
    found = buffer.observations[np.array([0, 5, 0])]
    assert [play.of(frame)[1] for frame in found] == [0, 1, 0]
    found[...] = 0
    assert play.of(buffer.observations[5]) == (play.episodes[1], 1)
    ends = buffer.observations[np.array([0, -1, 1])]
    assert [play.of(frame)[1] for frame in ends] == [0, 2, 1]
    assert buffer.observations[3:3].shape == (0, *OBS_SHAPE)
    assert (buffer.observations[:] == np.stack(list(buffer.observations))).all()
    assert len(make_buffer(10)[0].observations) == 0


@pytest.mark.proof
def test_short_episodes_are_padded_only_with_pad_after() -> None:
    """I1: no window of 20 was valid in episodes of 10, without an error."""
    buffer, play = make_buffer(1000, 20, 100)
    play.run([10, 3])
    with pytest.raises(NotEnoughData, match=r"\b20 steps.*\b13\b.*\b10\b"):
        buffer.sample_sequence()
    counts = firsts(buffer, play, 30, borders="pad_after")
    assert_shares(counts, dict.fromkeys(play.windows(1, newest=False), 1.0))
    padding, other = make_buffer(1000, 20, 100, borders="pad_after")
    other.run([10, 3])
    assert set(firsts(padding, play, 3)) <= set(counts)
    with pytest.raises(ValueError, match=r"borders: .*inside, pad_after.*'cross'"):
        buffer.sample_sequence(borders="cross")  # type: ignore[arg-type]


def test_final_observations_can_be_required() -> None:
    """I3."""
    buffer, play = make_buffer(100, 2, final="required")
    play.run([3])
    with pytest.raises(ValueError, match=r"final_obs: .*final=.repeat"):
        buffer.add(image(0, 1, 0), np.zeros(2), 0.0, True)
    assert (buffer.steps, buffer.episodes) == (3, 1)
    with pytest.raises(ValueError, match=r"final: .*repeat, required.*'zero'"):
        make_buffer(100, final="zero")


def test_a_sequence_longer_than_the_buffer_is_refused() -> None:
    """I5: "all input arrays must have the same shape"."""
    with pytest.raises(ValueError, match=r"seq_len: .*size=10\b.*\b20\b"):
        IRISReplayBuffer(10, OBS_SHAPE, 2)
    buffer, play = make_buffer(10, 4)
    play.run([-30])
    with pytest.raises(NotEnoughData, match=r"\b20 steps"):
        buffer.sample_sequence(20)
    for wrong in (0, 2.5, "4"):
        with pytest.raises(ValueError, match=rf"seq_len: .*>= 1.*{wrong!r}"):
            buffer.sample_sequence(wrong)  # type: ignore[arg-type]


def test_a_single_step_is_a_copy() -> None:
    """I7: empty, the message was "high <= 0"; and writing into the result changed the buffer."""
    buffer, play = make_buffer(100)
    with pytest.raises(NotEnoughData, match=r"\b1 steps.*\b0 in all"):
        buffer.sample_single()
    play.run([3, -3])
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(300):
        observation, action, reward, terminal = buffer.sample_single()
        played, step = play.of(observation)
        assert action.tolist() == played.action(step)
        assert (float(reward), float(terminal)) == (played.reward(step), played.terminal(step))
        assert (reward.dtype.name, terminal.dtype.name) == ("float32", "float32")
        observation[...], action[...] = 0, 0
        seen[played.number, step] += 1
    assert_shares(seen, dict.fromkeys([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], 1.0))


def test_a_batch_has_the_original_format_and_is_a_copy() -> None:
    buffer, play = make_buffer(100, 6, 8)
    play.run([20, -9])
    drawn = buffer.sample_sequence()
    assert [part.shape for part in drawn] == [(8, 7, *OBS_SHAPE), (8, 6, 2), (8, 6), (8, 6)]
    assert [part.dtype.name for part in drawn] == ["uint8", "float32", "float32", "float32"]
    for part in drawn:
        assert part.flags.c_contiguous
        part[...] = 77
    firsts(buffer, play, 10)
    assert buffer.sample_sequence(3)[0].shape == (8, 4, *OBS_SHAPE)
    assert buffer.buffer_capacity == 100


# The on-policy buffer


def make_play(buffer: IRISOnPolicyBuffer) -> Play:
    def add(*step: Any, env: int, **rest: Any) -> None:
        buffer.add(*step, **rest)

    return Play(add)


def test_max_steps_limits_the_buffer() -> None:
    """O1: max_steps was never read."""
    buffer = IRISOnPolicyBuffer(3)
    play = make_play(buffer)
    play.run([-3])
    with pytest.raises(ValueError, match=r"max_steps=3\b.*\bflush_into\b.*\bclear\b"):
        buffer.add(image(0, 0, 3), np.zeros(2, np.float32), 0.0, False)
    assert [len(column) for column in buffer.get_arrays()] == [3, 3, 3, 3]
    buffer.clear()
    buffer.add(image(0, 0, 3), np.zeros(2, np.float32), 0.0, False)
    assert len(buffer) == 1
    with pytest.raises(ValueError, match=r"max_steps: .*>= 1.*\b0\b"):
        IRISOnPolicyBuffer(0)


def test_a_reused_frame_array_is_copied() -> None:
    """O2: three adds of one array stored the last frame three times."""
    buffer = IRISOnPolicyBuffer()
    frame, action = np.zeros((1, 2, 2), np.uint8), np.zeros(2)
    for number in range(3):
        frame[...], action[...] = number, number
        buffer.add(frame, action, 1.0, False)
    observations, actions, _, _ = arrays = buffer.get_arrays()
    assert observations[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert actions[:, 0].tolist() == [0, 1, 2]
    for array in arrays:
        array[...] = 9
    assert buffer.observations[1].max() == 1
    assert buffer.rewards == [1, 1, 1]


def test_arrays_have_the_dtypes_of_the_first_step() -> None:
    """O3: float32 actions became float64, and an empty buffer returned shapes (0,)."""
    dtype = "float32"
    declared = IRISOnPolicyBuffer(obs_shape=(3, 2, 2), action_size=4)
    forms = [(array.shape, array.dtype.name) for array in declared.get_arrays()[:2]]
    assert forms == [((0, 3, 2, 2), "uint8"), ((0, 4), "float32")]
    with pytest.raises(ValueError, match=r"^obs: .*uint8.*float64"):
        declared.add(np.zeros((3, 2, 2)), np.zeros(4), 0.0, False)
    buffer = IRISOnPolicyBuffer()
    assert [array.shape for array in buffer.get_arrays()] == [(0,)] * 4
    for number in range(2):
        buffer.add(image(0, 0, number), np.full(2, number, dtype), number, number == 1)
    observations, actions, rewards, terminals = buffer.get_arrays()
    assert (observations.shape, observations.dtype.name) == ((2, *OBS_SHAPE), "uint8")
    assert (actions.shape, actions.dtype.name) == ((2, 2), dtype)
    assert (rewards.tolist(), rewards.dtype.name) == ([0, 1], "float64")
    assert (terminals.tolist(), terminals.dtype.name) == ([0, 1], "float64")
    with pytest.raises(ValueError, match=r"^obs: .*\(4, 2, 12\).*\(4, 1, 12\)"):
        buffer.add(np.zeros((4, 1, 12), np.uint8), np.zeros(2, dtype), 0.0, False)
    with pytest.raises(ValueError, match=r"action: .*\(2,\).*\(3,\)"):
        buffer.add(image(0, 0, 1), np.zeros(3, dtype), 0.0, False)
    assert len(buffer) == 2
    buffer.clear()
    assert [array.shape for array in buffer.get_arrays()] == [(0, *OBS_SHAPE), (0, 2), (0,), (0,)]
    assert buffer.get_arrays()[1].dtype.name == dtype


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"obs": "frame"}, r"^obs: .*<U5"),
        ({"reward": np.zeros(2)}, r"reward: .*\(\).*\(2,\)"),
        ({"terminal": 0.5}, r"terminal: .*\b0\.5"),
        ({"truncated": True}, r"truncated=True.*\bterminal\b.*\bFalse"),
        ({"final_obs": image(0, 0, 1)}, r"final_obs: .*\bepisode\b"),
        ({"final_obs": np.zeros(2), "terminal": True}, r"final_obs: .*\(4, 2, 12\).*\(2,\)"),
    ],
)
def test_an_invalid_step_is_refused(wrong: dict[str, Any], message: str) -> None:
    buffer = IRISOnPolicyBuffer()
    right: dict[str, Any] = {"obs": image(0, 0, 0), "action": np.zeros(2)}
    right |= {"reward": 0.0, "terminal": False}
    with pytest.raises(ValueError, match=message):
        buffer.add(**(right | wrong))
    assert [len(column) for column in buffer.get_arrays()] == [0, 0, 0, 0]


@given(plays(2), st.booleans())
def test_flushed_episodes_equal_the_added_steps(
    script: list[list[Step]], is_with_step: bool
) -> None:
    replay, _ = make_buffer(1000, 2, 32, num_envs=2)
    current = {env: IRISOnPolicyBuffer(max_steps=5) for env in (0, 1)}

    def flush(env: int, final: Any = None) -> None:
        count = len(current[env])
        current[env].flush_into(replay, env=env, final_obs=final)
        assert (len(current[env]), current[env].observations) == (0, [])
        assert count <= 5

    def add(*step: Any, env: int, final_obs: Any, **rest: Any) -> None:
        if len(current[env]) == 5:
            flush(env)
        now = final_obs if is_with_step else None
        current[env].add(*step, **rest, final_obs=now)
        if final_obs is not None and not is_with_step:
            flush(env, final_obs)

    play = Play(add)
    for stretch in script:
        for step in stretch:
            play.step(step)
        flush(0)
        flush(1)
        assert len(replay) == play.count
        every = play.windows(2, newest=False)
        if every:
            assert set(firsts(replay, play, 2)) <= every
            assert drawable(replay, 2) == len(every)
        for stored in replay.replay.iter_episodes():
            played = play.of(stored.observation[0])[0]
            assert stored.truncated[-1] == (played.ends == 2)


def test_steps_that_the_replay_refuses_stay_in_the_buffer() -> None:
    replay, _ = make_buffer(100, 2, final="required")
    current = IRISOnPolicyBuffer()
    current.flush_into(replay)
    for number in range(3):
        current.add(image(0, 0, number), np.zeros(2), 0.0, number == 2)
    with pytest.raises(ValueError, match=r"final_obs: .*final=.repeat"):
        current.flush_into(replay)
    with pytest.raises(ValueError, match=r"env: .*\b0 to 0\b.*\b1\b"):
        current.flush_into(replay, env=1, final_obs=image(0, 0, 3))
    with pytest.raises(ValueError, match=r"final_obs: .*uint8.*float64"):
        IRISOnPolicyBuffer.flush_into(current, replay, final_obs=np.full(OBS_SHAPE, 0.5))
    assert (len(current), len(replay)) == (3, 0)
    current.flush_into(replay, final_obs=image(0, 0, 3))
    assert (len(current), len(replay)) == (0, 3)
    for newest in ("no step", "terminal=False"):
        if newest == "terminal=False":
            current.add(image(0, 1, 0), np.zeros(2), 0.0, False)
        with pytest.raises(ValueError, match=f"final_obs: .*terminal=True.*{newest}"):
            current.flush_into(replay, final_obs=image(0, 0, 3))
