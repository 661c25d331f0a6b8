"""PlaNet's memory gives the sequences that the list of its episodes holds, and none besides."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import NotEnoughData, SequenceReplayBuffer, SpecMismatch
from stepwell.buffers.dropin.planet import Episode, Memory
from stepwell.buffers.episode import End
from support.chi_square import assert_shares

SHAPE = (2, 2, 12)


def seen(number: int, step: int) -> np.ndarray:
    """The observation of a step of an episode."""
    found = np.arange(48, dtype=np.float32).reshape(SHAPE) + np.float32(step / 2)
    found[0, 0, :2] = number, step
    return found


def played(number: int, length: int, *, ends: bool = True, **options: Any) -> Episode:
    """An episode whose every number tells where it belongs."""
    episode = Episode()
    for step in range(length):
        is_last = step == length - 1 and ends
        episode.append(seen(number, step), action(number, step), reward(number, step), is_last)
    episode.terminate(seen(number, length), **options)
    return episode


def action(number: int, step: int) -> np.ndarray:
    return np.array([number + 1, step], np.float32)


def reward(number: int, step: int) -> float:
    return number + 1 / (step + 3)


def starts(
    memory: Memory, lengths: dict[int, int], times: int, count: int, tracelen: int
) -> Counter[tuple[int, int]]:
    """How often each sequence was drawn; each is checked whole.

    Args:
        memory: What is drawn from.
        lengths: Steps of each episode, all of which end with a terminal, by its number.
        times: Draws.
        count: Sequences in each.
        tracelen: Steps in a sequence.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for time in range(times):
        parts, steps = memory.sample(count, tracelen, time_first=bool(time % 2))
        for b in range(count):
            window = [part[:, b] if time % 2 else part[b] for part in parts]
            number, first = (int(window[0][0, 0, 0, k]) for k in (0, 1))
            assert steps[b] == lengths[number]
            for k in range(tracelen):
                assert (window[0][k] == seen(number, first + k)).all()
                assert (window[1][k] == action(number, first + k)).all()
                assert window[2][k] == reward(number, first + k)
                assert window[3][k] == (first + k == lengths[number] - 1)
            assert (window[0][tracelen] == seen(number, first + tracelen)).all()
            counts[number, first] += 1
    return counts


APPENDS = st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=8)


@given(APPENDS, st.sampled_from([1, 2, 5, None]), st.integers(2, 5), st.booleans())
def test_what_is_drawn_is_in_the_list_of_episodes(
    appends: list[list[int]], size: int | None, tracelen: int, is_zstd: bool
) -> None:
    memory, lengths = Memory(size, seed=0, codec="zstd" if is_zstd else None), dict[int, int]()
    for some in appends:
        numbers = range(len(lengths), len(lengths) + len(some))
        lengths |= dict(zip(numbers, some, strict=True))
        memory.append([played(number, lengths[number]) for number in numbers])
        held = list(lengths.items())[-(size or 99) :]
        assert (len(memory), memory.size) == (len(held), sum(steps for _, steps in held))
        assert memory.eps_lengths == [steps for _, steps in held]
        every = {(n, first) for n, steps in held for first in range(steps - tracelen + 1)}
        if not every:
            with pytest.raises(NotEnoughData):
                memory.sample(4, tracelen)
            continue
        drawn = starts(memory, lengths, 2, 30, tracelen)
        assert set(drawn) <= every
        for stored, (number, steps) in zip(memory.episodes, held, strict=True):
            assert_same(stored, played(number, steps))


def assert_same(one: Episode, other: Episode) -> None:
    for name in ("x", "u", "r", "t"):
        array, expected = getattr(one, name), getattr(other, name)
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert (array == expected).all()
    assert (one.size, one.is_over, one.truncated) == (other.size, True, other.truncated)


def test_every_window_is_as_likely_as_any_other() -> None:
    """E6: an episode with 70 of 100 windows was drawn in 51 of 100 draws."""
    memory, lengths = Memory(seed=0), {0: 5, 1: 9, 2: 2}
    memory.append([played(number, steps) for number, steps in lengths.items()])
    every = [(n, first) for n, steps in lengths.items() for first in range(steps - 2)]
    assert_shares(starts(memory, lengths, 40, 50, 3), dict.fromkeys(every, 1.0))


def test_episodes_can_be_made_equally_likely_by_name() -> None:
    """E6: the original's weights."""
    memory, lengths = Memory(seed=0, draw="episodes"), {0: 5, 1: 9, 2: 2}
    memory.append([played(number, steps) for number, steps in lengths.items()])
    every = {
        (n, first): 1 / (steps - 2) for n, steps in lengths.items() for first in range(steps - 2)
    }
    assert_shares(starts(memory, lengths, 40, 50, 3), every)
    with pytest.raises(ValueError, match='draw: expected "steps" or "episodes", got \'ends\''):
        Memory(draw="ends")  # type: ignore[arg-type]


def test_an_episode_that_is_not_over_is_refused() -> None:
    """E6: it was accepted, and then sampling failed at random."""
    memory, episode = Memory(), Episode()
    episode.append(seen(1, 0), action(1, 0), 0.0, False)
    with pytest.raises(ValueError, match=r"one that is over, got one of 1 steps .*terminate"):
        memory.append([played(0, 3), episode])
    assert len(memory) == 0
    with pytest.raises(ValueError, match="at least one step, got none"):
        Episode().terminate(seen(0, 0))


def test_a_limit_limits() -> None:
    """E5: 375 MiB were sampled under a limit of 200."""
    memory = Memory(max_bytes=10_000)
    memory.append(played(0, 30))
    memory.sample(10, 4)  # 10 x 5 observations of 192 bytes
    with pytest.raises(MemoryError, match=r"take 11520 bytes, expected at most max_bytes=10000"):
        memory.sample(10, 5)
    assert Memory().max_bytes == 200 * 2**20
    free = Memory(max_bytes=None)
    free.append(played(0, 30))
    with pytest.raises(ValueError, match="max_bytes: expected a whole number >= 1"):
        Memory(max_bytes=0)


def test_the_limit_is_looked_at_before_anything_is_made() -> None:
    """E5: this many bytes no machine has."""
    memory = Memory()
    memory.append(played(0, 3))
    with pytest.raises(MemoryError, match="max_bytes=209715200"):
        memory.sample(10**12, 2)


def test_a_shortage_is_told_as_the_original_does_and_with_numbers() -> None:
    memory = Memory()
    for error in (ValueError, NotEnoughData):
        with pytest.raises(error, match=r"Memory is empty: expected episodes .*, got 0"):
            memory.sample(2)
    memory.append(played(0, 4))
    for error in (ValueError, NotEnoughData):
        with pytest.raises(error, match=r"No episodes with length >= 10: .* longest has 4 steps"):
            memory.sample(2, tracelen=10)


@pytest.mark.parametrize("time_first", [False, True])
def test_one_step_comes_without_its_axis(time_first: bool) -> None:
    """The original does so, but for x; with time_first it failed."""
    memory = Memory(seed=0)
    memory.append(played(0, 4))
    (x, u, r, t), lengths = memory.sample(7, time_first=time_first)
    assert x.shape == ((2, 7, *SHAPE) if time_first else (7, 2, *SHAPE))
    assert (u.shape, r.shape, t.shape, lengths.tolist()) == ((7, 2), (7,), (7,), [4] * 7)
    step = (x[0] if time_first else x[:, 0])[:, 0, 0, 1]
    assert r.tolist() == [reward(0, int(k)) for k in step]
    assert t.tolist() == [bool(k == 3) for k in step]


@pytest.mark.parametrize("time_first", [False, True])
def test_a_batch_has_the_dtypes_of_the_episodes_and_is_the_callers_own(time_first: bool) -> None:
    memory = Memory(seed=0)
    memory.append(played(0, 9))
    parts, lengths = memory.sample(5, 3, time_first)
    assert isinstance(parts, list)
    assert [part.dtype.name for part in parts] == ["float32", "float32", "float64", "bool"]
    first = (3, 5) if time_first else (5, 3)
    assert [part.shape[:2] for part in parts[1:]] == [first] * 3
    for part in [*parts, lengths]:
        assert part.flags.c_contiguous
        part[...] = 1
    starts(memory, {0: 9}, 4, 20, 3)
    assert memory.sample(5, 3)[1].tolist() == [9] * 5


def test_numbers_are_kept_exactly_or_refused() -> None:
    memory = Memory()
    memory.append(played(0, 3))
    whole, other = Episode(), Episode()
    for episode, act in ((whole, np.zeros(2, np.int64)), (other, np.full(2, 0.1))):
        episode.append(seen(1, 0), act, 2, 1.0)
        episode.terminate(seen(1, 1))
    memory.append(whole)  # whole numbers fit into float32, 1.0 into a bool
    assert (memory.episodes[1].t.tolist(), memory.episodes[1].r.tolist()) == ([True], [2.0])
    with pytest.raises(ValueError, match="u: expected numbers that float32, the first episode's"):
        memory.append([played(2, 3), other])
    wide = Episode()
    wide.append(np.zeros((2, 2, 9), np.float32), np.zeros(2, np.float32), 0.0, True)
    wide.terminate(np.zeros((2, 2, 9), np.float32))
    with pytest.raises(ValueError, match=r"x: expected float32 \(2, 2, 12\) as in the first"):
        memory.append(wide)
    for no_episode in ("an episode", [played(0, 2), 3], None, {1: 2}):
        with pytest.raises(ValueError, match="can only append an Episode or a list of them"):
            memory.append(no_episode)  # type: ignore[arg-type]
    assert (len(memory), memory.size) == (2, 4)
    memory.append([])


def test_actions_that_are_one_number_get_an_axis() -> None:
    memory, episode = Memory(seed=0), Episode()
    for step in range(4):
        episode.append(seen(0, step), np.int64(step), 0.0, step == 3)
    episode.terminate(seen(0, 4))
    assert episode.u.shape == (4,)
    memory.append(episode)
    assert memory.sample(5, 2)[0][1].shape == (5, 2, 1)
    assert memory.sample(5, 2)[0][1].dtype == np.int64


def test_tensors_and_arrays_are_copied() -> None:
    """O2."""
    torch: Any = pytest.importorskip("torch", reason="needs PyTorch")
    for make in (torch.from_numpy, np.asarray):
        observation, act = np.zeros(SHAPE, np.float32), np.zeros(2, np.float32)
        reward: Any = torch.tensor(1.5)
        episode = Episode(lambda array: array * 2)
        for number in range(3):
            observation[...], act[...] = number, number
            episode.append(make(observation), make(act), reward, number == 2)
        observation[...] = 9
        episode.terminate(make(observation))
        observation[...] = 0
        assert episode.x[:, 0, 0, 0].tolist() == [0, 2, 4, 18]
        assert episode.u[:, 0].tolist() == [0, 1, 2]
        assert (episode.r.tolist(), episode.t.tolist()) == ([1.5] * 3, [False, False, True])


def test_a_step_is_taken_up_whole_or_not_at_all() -> None:
    """E1."""
    episode = Episode()
    episode.append(seen(0, 0), action(0, 0), 1.0, False)
    for wrong in (
        (np.zeros(3), action(0, 1), 1.0, False),
        (seen(0, 1), np.zeros(3), 1.0, False),
        (seen(0, 1), action(0, 1), np.zeros(2), False),
        (seen(0, 1), action(0, 1), "1", False),
        (seen(0, 1), action(0, 1), 1.0, None),
    ):
        with pytest.raises(ValueError, match="expected"):
            episode.append(*wrong)
        assert [len(part) for part in (episode.x, episode.u, episode.r, episode.t)] == [1] * 4
    with pytest.raises(ValueError, match="obs: expected float32"):
        episode.terminate(np.zeros(3))
    episode.terminate(seen(0, 1))
    with pytest.raises(ValueError, match="the episode is over: expected nothing after"):
        episode.append(seen(0, 1), action(0, 1), 1.0, False)
    with pytest.raises(ValueError, match="the episode is over: expected nothing after"):
        episode.terminate(seen(0, 2))
    assert (episode.size, len(episode.x)) == (1, 2)


def test_memory_does_not_grow_with_episodes_that_went() -> None:
    memory = Memory(3, seed=0)
    big = np.zeros((64, 64, 64), np.float32)  # 1 MiB
    for number in range(60):
        episode = Episode()
        for step in range(3):
            big[0, 0, :2] = number, step
            episode.append(big, np.zeros(1), 0.0, step == 2)
        episode.terminate(big)
        memory.append(episode)
    assert memory.episodes.maxlen == 3
    assert memory.replay.nbytes <= 32 << 20
    assert {int(x) for x in memory.sample(30)[0][0][:, 0, 0, 0, 0]} == {57, 58, 59}


def test_a_folder_is_continued(tmp_path: Path) -> None:
    lengths = {0: 5, 1: 9, 2: 3, 3: 4, 4: 6}
    with Memory(4, path=tmp_path / "a", seed=0) as memory:
        memory.append([played(number, lengths[number]) for number in (0, 1)])
        memory.append(played(2, 3))
    memory.close()
    with Memory(4, path=tmp_path / "a", seed=0) as memory:
        assert (len(memory), memory.size, memory.eps_lengths) == (3, 17, [5, 9, 3])
        assert {n for n, _ in starts(memory, lengths, 5, 30, 2)} == {0, 1, 2}
        memory.append([played(number, lengths[number]) for number in (3, 4)])
        assert memory.eps_lengths == [9, 3, 4, 6]
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True) as replay:
        stored = list(replay.iter_episodes())[-1]
        assert stored.total_reward == pytest.approx(sum(reward(4, k) for k in range(6)))
    with SequenceReplayBuffer(tmp_path / "b") as other:
        other.bind(sw.Spec((*replay.spec.fields[:3],), "observation", "action"), {})
    with pytest.raises(SpecMismatch, match="expected the fields observation, action, reward"):
        Memory(path=tmp_path / "b")
    with pytest.raises(SpecMismatch):  # and not StoreLocked
        Memory(path=tmp_path / "b")


def test_how_an_episode_ended_is_stored() -> None:
    memory = Memory()
    memory.append([played(0, 2), played(1, 2, ends=False), played(2, 2, truncated=True)])
    ends = [episode.end for episode in memory.replay.iter_episodes()]
    assert ends == [End.TERMINATED, End.NONE, End.TRUNCATED]
    assert [episode.truncated for episode in memory.episodes] == [False, False, True]
    assert [e.size for e in memory.episodes[1:]] == [2, 2]


def test_a_collected_episode_stops_at_its_end() -> None:
    """E7: the rollout went on behind the end: terminals F, T, T, T, T in one episode."""
    replay = SequenceReplayBuffer(seed=0)
    envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(episodes=4)
    memory = Memory()
    for each in replay.iter_episodes():
        if not each.terminated[-1]:
            continue
        episode = Episode()
        for step in range(each.steps):
            end = bool(each.terminated[step + 1])
            episode.append(each.observation[step], each.action[step], each.reward[step + 1], end)
        episode.terminate(each.observation[-1])
        memory.append(episode)
    assert len(memory) >= 4
    for stored in memory.episodes:
        assert stored.t.tolist() == [False] * (stored.size - 1) + [True]


def test_torch_is_not_loaded() -> None:
    code = (
        "import sys; import stepwell.buffers.dropin.planet, stepwell.buffers.dropin.dreamer, "
        "stepwell.buffers.dropin.iris; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
