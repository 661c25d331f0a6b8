"""Lost chunks: the remaining rows are counted, and no window crosses a gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, End
from stepwell.buffers.storage.chunk_index import CHUNK, ChunkIndex
from stepwell.buffers.storage.item_counts import Windows
from stepwell.buffers.testing import Recording, chunk_of
from support.examples import examples
from support.models.chunk_model import same_records

ENDS = [End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED]
PROGRAMS = st.lists(
    st.one_of(
        st.sampled_from(["evict", "new segment", "count"]),
        st.integers(0, 30),  # lose one of the chunks
        st.tuples(st.integers(0, 2), st.integers(1, 6), st.sampled_from(ENDS)),
    ),
    max_size=40,
)


@dataclass
class Kept:
    """One stored chunk."""

    segment: int
    chunk: Chunk
    is_lost: bool = False


@dataclass
class Run:
    """Consecutive rows of an episode without a gap."""

    episode: int
    head: int
    stop: int
    is_settled: bool

    def windows(self, length: int) -> list[tuple[int, int]]:
        return [(self.episode, start) for start in range(self.head, self.stop - length + 1)]


def runs_of(kept: list[Kept]) -> list[Run]:
    """The remaining runs of rows, chunk by chunk."""
    runs: dict[int, Run] = {}
    done: list[Run] = []
    for each in kept:
        chunk = each.chunk
        run = runs.pop(chunk.episode, None)
        stop = chunk.first_row + chunk.rows
        if each.is_lost:
            done += [run] if run else []
            continue
        settled = not chunk.end & End.PENDING
        if run and chunk.first_row == run.stop - (not run.is_settled):
            runs[chunk.episode] = Run(chunk.episode, run.head, stop, settled)
        else:
            done += [run] if run else []
            runs[chunk.episode] = Run(chunk.episode, chunk.first_row, stop, settled)
    return done + list(runs.values())


class Model:
    """The chunk index and a list of chunks."""

    def __init__(self) -> None:
        self.index = ChunkIndex()
        self.recording = Recording()
        self.kept: list[Kept] = []
        self.added = 0
        self.segment = 0

    def run(self, program: list[str | int | tuple[int, int, End]]) -> None:
        for call in program:
            if call == "count":
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
        self.index.append(chunk, self.segment, 0, 8)
        self.kept.append(Kept(self.segment, chunk))
        self.added += 1

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
def test_remaining_rows_episodes_and_windows_are_counted(
    program: list[str | int | tuple[int, int, End]],
) -> None:
    model = Model()
    model.run(program)
    index, runs = model.index, runs_of(model.kept)
    tails = index.records[index.records["is_tail"] == 1]
    found = zip(
        tails["episode"].tolist(),
        tails["head"].tolist(),
        (tails["first_row"] + tails["rows"]).tolist(),
        strict=True,
    )
    assert sorted(found) == sorted((run.episode, run.head, run.stop) for run in runs)
    assert index.episodes == len(runs)
    assert index.rows == sum(run.stop - run.head for run in runs)
    assert index.steps == sum(run.stop - run.head - (run.head == 0) for run in runs)
    assert index.base + len(index) == model.added
    for length in (1, 2, 4):
        expected = [window for run in runs for window in run.windows(length)]
        assert index.items(Windows(length)).total == len(expected)
        assert sorted(drawn(index, length)) == sorted(expected)


def drawn(chunk_index: ChunkIndex, length: int) -> list[tuple[int, int]]:
    items = chunk_index.items(Windows(length))
    index, starts = items.locate(np.arange(items.total))
    episodes = chunk_index.records["episode"][index]
    return list(zip(episodes.tolist(), starts.tolist(), strict=True))


@given(PROGRAMS)
@settings(max_examples=examples(150))
def test_a_restored_index_has_the_same_lost_chunks(
    program: list[str | int | tuple[int, int, End]],
) -> None:
    model = Model()
    model.run(program)
    grown = model.index
    stored = np.zeros(len(grown), CHUNK)
    kept = ("episode", "stream", "first_row", "end", "row_id", "stored_rows", "segment", "nbytes")
    for name in kept:
        stored[name] = grown.records[name]
    made = ChunkIndex.restore([stored], grown.counters, grown.base)
    assert same_records(made.records, grown.records)
    assert (made.steps, made.episodes) == (grown.steps, grown.episodes)


def test_an_episode_continues_after_a_lost_chunk() -> None:
    index = ChunkIndex()
    index.append(chunk_of(0, 0, 5), 0, 0, 8)
    index.lose([0])
    index.check([chunk_of(0, 5, 5)])
    index.append(chunk_of(0, 5, 5, End.TERMINATED), 0, 8, 8)
    assert index.record(1).head == 5
    assert index.record(1).previous == -1
    assert (index.episodes, index.steps, index.rows) == (1, 5, 5)


def test_evicting_the_first_chunk_moves_only_the_head_of_its_run() -> None:
    index = ChunkIndex()
    for number in range(4):  # of one episode, the first chunk in a segment of its own
        index.append(chunk_of(0, 5 * number, 5), number > 0, 8 * number, 8)
    index.lose([2])
    assert index.records["head"].tolist() == [0, 0, 10, 15]
    index.drop_segment()
    assert index.records["head"].tolist()[::2] == [5, 15]
    assert index.items(Windows(5)).total == 2
