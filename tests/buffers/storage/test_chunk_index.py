"""The chunk index agrees with a slow, simple list of chunks, some of which are lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, End
from stepwell.buffers.storage.chunk_index import CHUNK, ChunkIndex, Counters
from stepwell.buffers.storage.item_counts import ItemCounts, Windows
from stepwell.buffers.testing import Recording, chunk_of
from support.examples import by_tier, examples
from support.models.chunk_model import KINDS, Kept, assert_same_index, runs_of, same_records

ENDS = [End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED]
Program = list[str | int | tuple[int, int, End]]
PROGRAMS = st.lists(
    st.one_of(
        st.sampled_from(["evict", "new segment", "count"]),
        st.integers(0, 30),  # lose one of the chunks
        *[st.tuples(st.integers(0, 2), st.integers(1, 6), st.sampled_from(ENDS))] * 2,
    ),
    max_size=40,
)


class Model:
    """All stored chunks, each with its segment; some of them are lost."""

    def __init__(self) -> None:
        self.index = ChunkIndex()
        self.recording = Recording()
        self.kept: list[Kept] = []
        self.all: list[Kept] = []
        self.segment = 0

    def run(self, program: Program) -> None:
        for call in program:
            if call == "count":  # so that later counts continue these
                for length in range(1, 8):
                    self.index.items(Windows(length))
            elif call == "new segment":
                self.segment += 1
            elif call == "evict":
                self.evict()
            elif isinstance(call, int):
                self.lose(call)
            elif not isinstance(call, str):
                self.append(self.recording.chunk(*call))

    def append(self, chunk: Chunk) -> None:
        steps = self.index.check([chunk])
        before = self.index.total_steps
        self.index.append(chunk, self.segment, 10 * len(self.all), 8)
        assert [self.index.total_steps - before] == steps
        self.kept.append(Kept(self.segment, chunk))
        self.all.append(Kept(self.segment, chunk))

    def lose(self, number: int) -> None:
        if self.kept:
            place = number % len(self.kept)
            self.index.lose([self.index.base + place])
            self.kept[place].is_lost = True

    def evict(self) -> None:
        if self.kept:
            oldest = self.kept[0].segment
            assert self.index.drop_segment() == oldest
            self.kept = [each for each in self.kept if each.segment != oldest]


@given(PROGRAMS)
@settings(max_examples=examples(150))
def test_episodes_rows_and_steps_of_the_stored_chunks_are_counted(program: Program) -> None:
    model = Model()
    model.run(program)
    index, runs = model.index, runs_of(model.kept)
    tails = index.records[index.records["is_tail"] == 1]
    columns = (tails["episode"], tails["head"], tails["first_row"] + tails["rows"])
    found = zip(*(column.tolist() for column in columns), strict=True)
    assert sorted(found) == sorted((run.episode, run.head, run.stop) for run in runs)
    assert index.episodes == len(runs)
    assert index.rows == sum(run.stop - run.head for run in runs)
    assert index.steps == sum(run.stop - run.head - (run.head == 0) for run in runs)
    assert index.base == len(model.all) - len(model.kept)
    ever = runs_of(model.all)
    assert index.total_steps == sum(run.stop - 1 for run in ever)
    assert index.next_episode == max([-1, *(run.episode for run in ever)]) + 1


@given(PROGRAMS, st.integers(1, 8), st.sampled_from([0, 0, 1, 2, 3]))
@settings(max_examples=by_tier(200, 200, 400))
def test_exactly_the_stored_windows_are_drawn(program: Program, length: int, context: int) -> None:
    """Those with rows before them, which are stored or do not exist, too."""
    model = Model()
    model.run(program)
    expected = [window for run in runs_of(model.kept) for window in run.windows(length, context)]
    assert model.index.items(Windows(length, context)).total == len(expected)
    assert sorted(all_windows(model.index, length, context)) == sorted(expected)


def all_windows(chunk_index: ChunkIndex, length: int, context: int) -> list[tuple[int, int]]:
    items = chunk_index.items(Windows(length, context))
    index, starts = items.locate(np.arange(items.total))
    found: list[tuple[int, int]] = []
    for place, start in zip(index.tolist(), starts.tolist(), strict=True):
        record = chunk_index.record(place + chunk_index.base)
        last = start + length - 1
        assert record.first_row <= last < record.first_row + record.rows
        while start < record.first_row:  # the rows before are in the chunks before
            record = chunk_index.record(record.previous)
        found.append((record.episode, start))
    return found


@given(PROGRAMS)
@settings(max_examples=examples(150))
def test_a_restored_index_equals_the_one_that_grew(program: Program) -> None:
    model = Model()
    model.run(program)
    grown = model.index
    stored = np.zeros(len(grown), CHUNK)
    kept = ("episode", "stream", "first_row", "end", "row_id", "stored_rows")
    for name in (*kept, "segment", "offset", "nbytes"):
        stored[name] = grown.records[name]
    made = ChunkIndex.restore([stored], grown.counters, grown.base)
    assert same_records(made.records, grown.records)
    assert (made.steps, made.episodes) == (grown.steps, grown.episodes)
    assert (made.counters, made.base) == (grown.counters, grown.base)
    assert made.items(Windows(2)).total == grown.items(Windows(2)).total
    made.append(chunk_of(made.next_episode), model.segment, 0, 8)
    grown.append(chunk_of(grown.next_episode), model.segment, 0, 8)
    assert (made.records["row_id"] == grown.records["row_id"]).all()


def records_of(chunks: list[tuple[int, int, int, int, End]]) -> np.ndarray:
    """Records as they might be found in files: in any order, with gaps, some of them lost."""
    stored = np.zeros(len(chunks), CHUNK)
    names = ("stream", "episode", "first_row", "stored_rows", "end")
    for name, column in zip(names, zip(*chunks, strict=True), strict=False):
        stored[name] = column
    stored["episode"] += 2 * stored["stream"]  # an episode has one stream
    stored["row_id"] = np.cumsum(stored["stored_rows"]) - stored["stored_rows"]
    stored["segment"], stored["offset"] = np.arange(len(stored)) // 4, np.arange(len(stored))
    return stored


ANY_CHUNKS = st.lists(
    st.tuples(
        *(st.integers(0, 1), st.integers(0, 1), st.integers(0, 4), st.integers(1, 3)),
        st.sampled_from([*ENDS, End.NONE, End.LOST, End.LOST | End.TERMINATED]),
    ),
    max_size=12,
)


@pytest.mark.proof
@given(ANY_CHUNKS, ANY_CHUNKS)
@example([(0, 0, 0, 3, End.PENDING)], [(0, 0, 2, 2, End.NONE)])  # counts of the first change
@settings(max_examples=examples(400))
def test_an_index_that_is_continued_equals_the_restored_one(
    first: list[tuple[int, int, int, int, End]], more: list[tuple[int, int, int, int, End]]
) -> None:
    more = [(*rest, end & ~End.LOST) for *rest, end in more]  # type: ignore[misc]
    stored, known, counters = records_of(first + more), len(first), Counters(100, 9, 90)
    few = ChunkIndex.restore([stored[:known]], Counters(), 20)
    before, newest = few.records.copy(), few._newest.copy()
    totals = [few.items(kind).total for kind in KINDS]
    made = few.followed_by(stored[known:], counters)
    expected = ChunkIndex.restore([stored], counters, 20)
    assert_same_index(made, expected)
    assert made._newest == expected._newest
    # And the earlier one is as it was.
    assert np.array_equal(few.records, before)
    assert few._newest == newest
    assert [few.items(kind).total for kind in KINDS] == totals


@given(ANY_CHUNKS, st.integers(1, 3))
@example([(0, 0, 0, 2, End.TERMINATED)] * 5 + [(0, 0, 3, 2, End.NONE)], 1)  # a gap after them
@settings(max_examples=examples(400))
def test_an_index_after_evictions_equals_that_of_what_is_left(
    chunks: list[tuple[int, int, int, int, End]], evictions: int
) -> None:
    stored, counters = records_of(chunks), Counters(100, 9, 90)
    index = ChunkIndex.restore([stored], counters, 20)
    for segment in range(min(evictions, -(-len(stored) // 4))):
        assert index.drop_segment() == segment
    left = stored[stored["segment"] >= evictions]
    expected = ChunkIndex.restore([left], counters, 20 + len(stored) - len(left))
    assert same_records(index.records, expected.records)
    assert (index.steps, index.episodes, index.base) == (
        *(expected.steps, expected.episodes),
        expected.base,
    )


OVER = End.TERMINATED
CANNOT_FOLLOW = {
    "a pending row": ([chunk_of(0, 0, 5, End.PENDING)], chunk_of(0, 5, 3), r"row 5\b.*row 4\b"),
    "a later episode": ([chunk_of(0, 0, 5), chunk_of(1)], chunk_of(0, 5), r"row 5\b.*row 0\b"),
    "ids that are higher": ([chunk_of(0, end=OVER), chunk_of(5, end=OVER)], chunk_of(5), r"\b6\b"),
    "an id that was used": ([chunk_of(5, end=OVER), chunk_of(3, end=OVER)], chunk_of(3), r"\b6\b"),
}


@pytest.mark.parametrize("name", CANNOT_FOLLOW)
def test_a_chunk_that_cannot_follow_is_refused(name: str) -> None:
    before, chunk, message = CANNOT_FOLLOW[name]
    index = ChunkIndex()
    for each in before:
        index.append(each, 0, 0, 8)
    with pytest.raises(ValueError, match=rf"\bepisode {chunk.episode} .*{message}"):
        index.check([chunk])
    for passed_over in {1, 2, 4, 6} - {each.episode for each in before}:
        index.check([chunk_of(passed_over)])


def test_ids_of_evicted_episodes_are_refused() -> None:
    index = ChunkIndex.restore([], Counters(100, 9, 90), 20)
    with pytest.raises(ValueError, match=r"episode 8 .*\b9\b"):
        index.check([chunk_of(8)])
    index.check([chunk_of(9)])
    assert index.append(chunk_of(9), 0, 0, 8) == 20


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=40),
    st.integers(0, 2**32),
)
def test_many_items_are_located_like_few(steps: list[tuple[int, int]], seed: int) -> None:
    """While records are added, and the newest ones are counted again."""
    rng = np.random.default_rng(seed)
    counts, lengths = ItemCounts(Windows(3), None), list[int]()
    for back, rows in steps:
        kept = max(0, len(lengths) - back)
        lengths = [*lengths[:kept], *rng.integers(0, rows + 1, 1 + rows // 4).tolist()]
        counts.forget_from(kept)
        records = np.zeros(len(lengths), CHUNK)
        records["rows"] = lengths
        counts.update(records, 0)
        if counts.total:
            numbers = rng.integers(0, counts.total, 300)
            found, first = counts.locate(numbers)
            few = [counts.locate(numbers[place : place + 1]) for place in range(300)]
            assert found.tolist() == [int(one[0][0]) for one in few]
            assert first.tolist() == [int(one[1][0]) for one in few]
