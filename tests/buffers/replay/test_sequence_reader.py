"""Drawn windows are consecutive rows of one episode, and all of them are equally likely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import Batch, Chunk, End, Field, NotEnoughData, SequenceReplayBuffer, Spec
from stepwell.buffers.storage.item_counts import Windows
from support.examples import examples

SPEC = Spec.from_spaces(
    spaces.Dict({"place": spaces.Box(0, 2**40, (2,), np.int64), "number": spaces.Discrete(10**6)}),
    spaces.Discrete(10**6),
    more=[Field("info/lives", "int64", (), "raw"), Field("extra/value", "float32", (3,), "raw")],
)


def rows_of(episode: int, first_row: int, stop: int) -> dict[str, np.ndarray]:
    """Rows that hold their episode and their place in it; the action is the place."""
    t = np.arange(first_row, stop)
    return {
        "observation/place": np.stack([np.full_like(t, episode), t], 1),
        "observation/number": t * 7 + episode,
        "action": t,
        "reward": t + episode / 8,
        "info/lives": -t,
        "extra/value": np.stack([t] * 3, 1).astype(np.float32),
    }


@dataclass
class Writer:
    """Adds rows of numbered episodes, in chunks, as the collector does."""

    replay: SequenceReplayBuffer
    next_episode: int = 0
    open: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)
    newest: int = -1

    def add(self, stream: int, new_rows: int, end: End = End.NONE) -> None:
        episode, rows, pending = self.open.pop(stream, (self.next_episode, 0, False))
        if not rows:
            self.next_episode += 1
        first_row, stop = rows - pending, rows + new_rows
        chunk = Chunk(episode, stream, first_row, end, rows_of(episode, first_row, stop))
        self.replay.add([chunk])
        self.lengths[episode], self.ends[episode], self.newest = stop, end, episode
        if not end.is_final:
            self.open[stream] = (episode, stop, bool(end & End.PENDING))

    def cut(self, stream: int) -> None:
        self.open.pop(stream, None)


def writer(spec: Spec = SPEC, **options: Any) -> Writer:
    replay = SequenceReplayBuffer(seed=0, **options)
    replay.bind(spec, {})
    return Writer(replay)


def windows_of(batch: Batch) -> list[tuple[int, int]]:
    """Check the rows of each window, and return its episode and first row."""
    place = batch.observation["place"]
    episode, t = place[:, :, 0], place[:, :, 1]
    assert (episode == episode[:, :1]).all()
    assert (np.diff(t, axis=1) == 1).all()
    number = batch.observation["number"]
    assert (number == t * 7 + episode).all()
    assert (np.asarray(batch.action) == t).all()
    assert np.array_equal(batch.reward, (t + episode / 8).astype(np.float32))
    assert (batch.info["lives"] == -t).all()
    assert (batch.extras["value"] == t[:, :, None]).all()
    return list(zip(episode[:, 0].tolist(), t[:, 0].tolist(), strict=True))


def check_flags(batch: Batch, windows: list[tuple[int, int]], written: Writer) -> None:
    """Check that the flags are those of the episode at this moment."""
    shape = batch.reward.shape
    for b, (episode, start) in enumerate(windows):
        for place in range(shape[1]):
            row, end = start + place, written.ends[episode]
            is_last = row == written.lengths[episode] - 1
            found = (
                bool(batch.is_first[b, place]),
                bool(batch.is_last[b, place]),
                bool(batch.terminated[b, place]),
                bool(batch.truncated[b, place]),
                bool(batch.cut[b, place]),
            )
            assert found == (
                row == 0,
                is_last,
                is_last and bool(end & End.TERMINATED),
                is_last and bool(end & End.TRUNCATED),
                is_last and not end.is_final,
            )


ENDS = st.sampled_from([End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED, End(3)])
STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(2, 9), ENDS), min_size=1, max_size=25)


@given(STEPS, st.integers(1, 6), st.sets(st.integers(0, 24), max_size=3))
@settings(max_examples=examples(60))
def test_windows_are_all_ranges_of_consecutive_rows(
    steps: list[tuple[int, int, End]], length: int, cuts: set[int]
) -> None:
    """Compared after each chunk, with growing episodes, superseded rows and several streams."""
    written = writer()
    for number, (stream, rows, end) in enumerate(steps):
        written.add(stream, rows, end)
        if number in cuts:
            written.cut(stream)
        expected = {
            (episode, start)
            for episode, rows in written.lengths.items()
            for start in range(rows - length + 1)
        }
        index = written.replay.storage.index
        assert index.items(Windows(length)).total == len(expected)
        if not expected:
            with pytest.raises(NotEnoughData):
                written.replay.sample_sequences(1, length)
            continue
        batch = written.replay.sample_sequences(32, length)
        windows = windows_of(batch)
        assert set(windows) <= expected
        check_flags(batch, windows, written)


@pytest.mark.parametrize("length", [1, 4])
def test_all_start_rows_are_equally_likely(length: int) -> None:
    """Trap 17: one episode of 100 and ten of 10; chi-square over start rows."""
    written = writer()
    written.add(0, 40)
    written.add(0, 60, End.TERMINATED)
    for _ in range(10):
        written.add(1, 10, End.TERMINATED)
    starts = 100 - length + 1 + 10 * (10 - length + 1)
    draws = 200 * starts
    counts = Counter(windows_of(written.replay.sample_sequences(draws, length)))
    assert len(counts) == starts
    square = sum((count - 200) ** 2 / 200 for count in counts.values())
    # Four standard deviations of a chi-square with starts - 1 degrees of freedom.
    assert abs(square - (starts - 1)) < 4 * np.sqrt(2 * (starts - 1))


def test_a_long_episode_can_be_drawn_from_before_it_ends() -> None:
    written = writer()
    written.add(0, 5, End.PENDING)
    written.add(0, 5, End.PENDING)
    assert written.lengths == {0: 10}
    batch = written.replay.sample_sequences(300, 4)
    assert {start for _, start in windows_of(batch)} == set(range(7))
    newest = batch.observation["place"][:, -1, 1] == 9
    assert (batch.cut[:, -1] == newest).all()
    assert newest.any()
    written.add(0, 1, End.NONE)
    batch = written.replay.sample_sequences(300, 4)
    assert (batch.cut[:, -1] == (batch.observation["place"][:, -1, 1] == 10)).all()


@pytest.mark.parametrize("end", [End.NONE, End.TERMINATED, End.TRUNCATED, End(3)])
def test_flags_distinguish_the_four_kinds_of_ends(end: End) -> None:
    """Trap 12."""
    written = writer()
    written.add(0, 3, end)
    written.cut(0)
    batch = written.replay.sample_sequences(1, 3)
    last = (batch.is_last, batch.terminated, batch.truncated, batch.cut)
    assert [flags[0].tolist()[:2] for flags in last] == [[False, False]] * 4
    assert tuple(bool(flags[0, 2]) for flags in last) == (
        True,
        end in (End.TERMINATED, End(3)),
        end in (End.TRUNCATED, End(3)),
        end == End.NONE,
    )


@pytest.mark.proof
@given(st.integers(1, 5), st.integers(17, 60), st.integers(0, 10**6))
@settings(max_examples=examples(15))
def test_no_window_crosses_the_write_head(length: int, capacity: int, seed: int) -> None:
    """Trap 10: a full ring evicts its oldest rows, and no others are joined."""
    rng = np.random.default_rng(seed)
    written = writer(capacity=capacity)
    for _ in range(40):
        stream, rows = int(rng.integers(2)), int(rng.integers(2, 9))
        end = [End.NONE, End.PENDING, End.TERMINATED][int(rng.integers(3))]
        written.add(stream, rows, end)
        assert len(written.replay) <= capacity
        try:
            batch = written.replay.sample_sequences(12, length)
        except NotEnoughData:
            continue
        check_flags(batch, windows_of(batch), written)
    kept = {e.id: (e.first_row, e.rows) for e in written.replay.iter_episodes()}
    for episode, (first_row, rows) in kept.items():
        assert first_row + rows == written.lengths[episode]
    assert written.newest in kept
    # The newest rows are all stored: evicted rows are older than the remaining ones.
    assert sum(rows for _, rows in kept.values()) >= min(
        capacity // 2, sum(written.lengths.values())
    )


def test_evicted_rows_are_not_drawn() -> None:
    written = writer(capacity=160)
    for _ in range(40):
        written.add(0, 10, End.TERMINATED)
    drawn = {episode for episode, _ in windows_of(written.replay.sample_sequences(3000, 2))}
    kept = [episode.id for episode in written.replay.iter_episodes()]
    assert drawn == set(kept)
    assert kept == list(range(kept[0], 40))
    assert len(kept) >= 15


def test_the_first_stored_row_of_a_partly_evicted_episode_is_not_is_first() -> None:
    written = writer(capacity=160)
    for _ in range(60):
        written.add(0, 5)
    (episode,) = written.replay.iter_episodes()
    assert episode.first_row > 0
    assert not episode.is_first.any()
    batch = written.replay.sample_sequences(2000, 1)
    assert min(start for _, start in windows_of(batch)) == episode.first_row
    assert not batch.is_first.any()


def test_too_long_windows_are_refused_with_both_numbers() -> None:
    written = writer()
    written.add(0, 4, End.TERMINATED)
    written.add(1, 6, End.TERMINATED)
    with pytest.raises(NotEnoughData, match=r"\b7 rows\b.*\b2\b.*\b6\b"):
        written.replay.sample_sequences(1, 7)


def test_batches_own_their_memory() -> None:
    written = writer()
    written.add(0, 9, End.TERMINATED)
    first = written.replay.sample_sequences(8, 4)
    for rows in (first.observation["place"], first.action, first.reward, first.extras["value"]):
        assert isinstance(rows, np.ndarray)
        rows[...] = 77
    assert 77 not in np.asarray(written.replay.sample_sequences(64, 4).action)
    assert windows_of(written.replay.sample_sequences(64, 4))
    for episode in written.replay.iter_episodes():
        episode.reward[...] = 77
    assert windows_of(written.replay.sample_sequences(64, 4))


def test_actions_shifted_within_a_batch_are_shifted_right() -> None:
    """Trap 24: an overlapping copy in place."""
    written = writer()
    written.add(0, 50, End.TERMINATED)
    batch = written.replay.sample_sequences(16, 20)
    action = np.asarray(batch.action)
    before = action.copy()
    action[:, 1:] = action[:, :-1]
    assert (action[:, 1:] == before[:, :-1]).all()
    assert (action[:, 1:] == batch.observation["place"][:, 1:, 1] - 1).all()


def test_ids_stay_with_their_rows() -> None:
    written = writer()
    written.add(0, 6, End.TERMINATED)
    ids: dict[tuple[int, int], int] = {}
    for _ in range(5):
        batch = written.replay.sample_sequences(100, 2)
        for window, number in zip(windows_of(batch), batch.ids.tolist(), strict=True):
            assert ids.setdefault(window, number) == number
        written.add(0, 6, End.TERMINATED)
    assert len(set(ids.values())) == len(ids)


def test_several_threads_draw_the_same_as_one() -> None:
    def batch(threads: int) -> Batch:
        spec = Spec.from_spaces(spaces.Box(0, 255, (64, 64), np.uint8), spaces.Discrete(2))
        written = writer(spec, threads=threads)
        frames = np.random.default_rng(0).integers(0, 255, (80, 64, 64), dtype=np.uint8)
        rows: dict[str, np.ndarray] = {
            "observation": frames,
            "action": np.arange(80),
            "reward": np.arange(80.0),
        }
        written.replay.add([Chunk(0, 0, 0, End.NONE, rows)])
        return written.replay.sample_sequences(64, 16)

    one, many = batch(1), batch(3)
    assert np.array_equal(np.asarray(one.observation), np.asarray(many.observation))
    assert np.array_equal(one.ids, many.ids)


# Stacks


def stacked(padding: str, **options: Any) -> Writer:
    spec = Spec.from_spaces(
        spaces.Box(0, 255, (3, 2, 2), np.uint8),
        spaces.Discrete(2),
        frame_stack=3,
        stack_padding=padding,  # type: ignore[arg-type]
    )
    return writer(spec, **options)


def add_frames(written: Writer, numbers: list[int], first_row: int = 0, episode: int = 0) -> None:
    frames = np.array(numbers, np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)
    rows: dict[str, np.ndarray] = {
        "observation": frames,
        "action": np.zeros(len(numbers), np.int64),
        "reward": np.zeros(len(numbers)),
    }
    written.replay.add([Chunk(episode, 0, first_row, End.NONE, rows)])


@pytest.mark.parametrize(("padding", "pad"), [("zero", 0), ("repeat", 11)])
def test_stacks_are_padded_at_the_start_and_cross_chunks(padding: str, pad: int) -> None:
    written = stacked(padding)
    add_frames(written, [11, 12])
    add_frames(written, [13, 14, 15], first_row=2)
    batch = written.replay.sample_sequences(200, 2, stack=True)
    assert np.asarray(batch.observation).shape == (200, 2, 3, 2, 2)
    found = {tuple(map(tuple, w)) for w in np.asarray(batch.observation)[..., 0, 0].tolist()}
    history = [pad, pad, 11, 12, 13, 14, 15]
    assert found == {
        tuple(tuple(history[row : row + 3]) for row in (start, start + 1)) for start in range(4)
    }
    plain = written.replay.sample_sequences(4, 2)
    assert np.asarray(plain.observation).shape == (4, 2, 2, 2)


def test_a_stack_whose_first_frames_were_evicted_is_not_drawn() -> None:
    written = stacked("zero", capacity=80)
    for start in range(0, 200, 5):
        add_frames(written, list(range(start, start + 5)), first_row=start)
    (episode,) = written.replay.iter_episodes()
    head = episode.first_row
    assert head > 0
    stacks = np.asarray(written.replay.sample_sequences(3000, 1, stack=True).observation)
    stacks = stacks[:, 0, :, 0, 0].astype(int)
    assert (np.diff(stacks, axis=1) == 1).all()
    assert stacks.min() == head
    plain = np.asarray(written.replay.sample_sequences(3000, 1).observation)
    assert plain.min() == head


def test_stack_needs_an_env_that_stacks_frames() -> None:
    written = writer()
    written.add(0, 5)
    with pytest.raises(ValueError, match=r"^stack=True: .*\bframes\b"):
        written.replay.sample_sequences(1, 2, stack=True)
