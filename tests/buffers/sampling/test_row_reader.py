"""The reader's table and its results agree with walks from row to row, while chunks come and go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import End, NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.sampling import row_reader
from stepwell.buffers.sampling.draws import NewestQueue, draw_items
from stepwell.buffers.sampling.requests import Sequences, Transitions
from stepwell.buffers.sampling.row_reader import RowReader, spread
from stepwell.buffers.sampling.sequences import SequenceSampler
from stepwell.buffers.sampling.transitions import TransitionSampler
from stepwell.buffers.storage.chunk_index import ChunkIndex
from support.models.replay_histories import HISTORIES, KINDS, Kind, a_replay, busy_history
from support.rows.replay_rows import Played, Row, Step, numbered, rows_in_order

SEEDS = st.integers(0, 2**32)


def readers(played: Played, history: list[Step]) -> Iterator[RowReader]:
    """The same reader after each step, a new one after a restart."""
    reader = None
    for step in history:
        before = played.replay.storage
        played.add(step)
        if reader is None or played.replay.storage is not before:
            reader = RowReader(played.replay.storage, 1, 0)
        reader.follow()
        yield reader


def walk_back(index: ChunkIndex, chunk: int, place: int) -> Iterator[tuple[int, int]]:
    """The row at a place of a chunk, and those before it in the stream, the newest first."""
    while True:
        yield from ((chunk, row) for row in range(place, -1, -1))
        previous = int(index.records["stream_previous"][chunk])
        if previous < 0:
            return
        chunk = previous - index.base
        place = int(index.records["rows"][chunk]) - 1


def row_of(rows: dict[int, Row], index: ChunkIndex, chunk: int, place: int) -> Row:
    return rows[int(index.records["row_id"][chunk]) + place]


@given(KINDS, HISTORIES)
def test_a_table_that_follows_is_the_one_of_a_new_reader(kind: Kind, history: list[Step]) -> None:
    with a_replay(kind) as played:
        for reader in readers(played, history):
            new = RowReader(played.replay.storage, 1, 0)
            count = len(new.follow())
            slots, known = row_reader.SLOT, reader._table[:count, -1]
            assert (reader._table[:count, :slots] == new._table[:count, :slots]).all()
            gaps = np.diff(reader._table[:count, slots])
            assert (gaps == new.follow().records["stored_rows"][:-1]).all()
            assert not new._table[:count, -1].any()
            if count:
                reader.find(np.arange(count)[-2:], reader._table[:count][-2:])
                assert known[-2:].all()


@pytest.mark.proof
@given(KINDS, HISTORIES, SEEDS)
def test_runs_are_the_rows_of_a_walk(kind: Kind, history: list[Step], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with a_replay(kind) as played:
        for reader in readers(played, history):
            index = played.replay.storage.index
            rows = {row.id: row for row in rows_in_order(played.episodes)}
            chunks = rng.choice(np.flatnonzero(index.records["rows"]), 5)
            places = rng.integers(0, index.records["rows"][chunks])
            walks = [
                list(itertools.islice(walk_back(index, chunk, place), int(rng.integers(1, 40))))
                for chunk, place in zip(chunks.tolist(), places.tolist(), strict=True)
            ]
            count = np.array([len(walk) for walk in walks])
            pad = int(rng.integers(0, 3))
            target = np.cumsum(count + pad) - count
            size = int(target[-1] + count[-1]) + pad
            at = reader._table.take(chunks, 0)
            segments = reader.segments(chunks, places, at, count, target)
            assert (np.diff(segments.target) > 0).all()
            assert (segments.rows > 0).all()
            walked = [place for walk in walks for place in reversed(walk)]
            is_run = np.zeros(size, np.bool_)
            is_run[
                np.concatenate([t + np.arange(c) for t, c in zip(target, count, strict=True)])
            ] = 1
            for first, expected in (
                (segments.start, [place for _, place in walked]),
                (segments.chunk * 1_000 + segments.start, [c * 1_000 + p for c, p in walked]),
            ):
                assert spread(first, segments, size)[is_run].tolist() == expected
            wanted = numbered([row_of(rows, index, *place) for place in walked])
            for name in ("observation/place", "observation/frame", "info/lives", "info/scan"):
                assert (reader.rows(name, segments, size)[is_run] == wanted[name]).all()


@given(KINDS, HISTORIES, SEEDS)
def test_rows_are_located_from_any_chunk_of_their_episode(
    kind: Kind, history: list[Step], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with a_replay(kind) as played:
        for reader in readers(played, history):
            index = played.replay.storage.index
            records = index.records
            rows = {row.id: row for row in rows_in_order(played.episodes)}
            some = rng.choice(np.array(list(rows)), 8)
            holder = np.searchsorted(records["row_id"], some, side="right") - 1
            place = some - records["row_id"][holder]
            for name, is_across in (("first_row", False), ("stream_row", True)):
                begin = [_some_chunk(rng, index, c, is_across=is_across) for c in holder.tolist()]
                row = records[name][holder] + place
                found = reader.locate(np.array(begin), row, is_across=is_across)
                assert (found[0] == holder).all()
                assert (found[1] == place).all()
                assert (found[2] == reader._table[holder]).all()
            behind, last, _ = reader.locate(holder, np.full(8, 1 << 50))
            assert (records["is_tail"][behind] == 1).all()
            assert (last == records["rows"][behind] - 1).all()
            assert (records["episode"][behind] == records["episode"][holder]).all()


def _some_chunk(rng: np.random.Generator, index: ChunkIndex, chunk: int, *, is_across: bool) -> int:
    """A chunk of the same episode, or of the stream without a gap."""
    records = index.records
    name = "stream_head" if is_across else "head"
    group = (records["stream"] == records["stream"][chunk]) & (
        records[name] == records[name][chunk]
    )
    if not is_across:
        return int(
            rng.choice(np.flatnonzero(group & (records["episode"] == records["episode"][chunk])))
        )
    chunks = [chunk]
    for link in ("stream_next", "stream_previous"):
        while records[link][chunks[-1]] >= 0:
            chunks.append(int(records[link][chunks[-1]]) - index.base)
        chunks.append(chunk)
    return int(rng.choice(chunks))


REQUESTS: list[Sequences | Transitions] = [
    Transitions(9),
    Transitions(9, n_step=3, stack=False),
    *(Sequences(9, 3, borders) for borders in ("inside", "cross", "pad_after", "pad_before")),
    Sequences(9, 4, align="transition", burn_in=2),
]


@pytest.mark.proof
@given(KINDS, HISTORIES, SEEDS)
def test_exact_draws_name_the_chunk_of_the_last_row(
    kind: Kind, history: list[Step], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with a_replay(kind) as played:
        for reader in readers(played, history):
            index = played.replay.storage.index
            for request in REQUESTS:
                make = TransitionSampler if isinstance(request, Transitions) else SequenceSampler
                kinds = make(request, played.spec).kinds()  # type: ignore[arg-type]
                draws = []
                for mode in ("steps", "recent", "ends", "episodes"):
                    if mode in ("steps", "recent") or kinds.ends is not None:
                        try:
                            draws.append(draw_items(index, kinds, mode, 9, None, rng))
                        except NotEnoughData:
                            continue
                        assert draws[-1].is_exact == (mode in ("steps", "recent"))
                if kinds.newest is not None:
                    draws.append(NewestQueue().next(index, kinds, 100))
                for chunk, start, is_exact in draws:
                    last = start + kinds.rows - 1
                    is_across = kinds.every.is_across
                    quick = reader.locate(chunk, last, is_across=is_across, is_exact=is_exact)
                    sure = reader.locate(chunk, last, is_across=is_across)
                    for one, other in zip(quick, sure, strict=True):
                        assert (one == other).all()


def test_rows_are_right_after_the_cache_was_too_large_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Played() as played:
        for step in busy_history(60):
            played.add(step)
        replay = played.replay
        monkeypatch.setattr(row_reader, "_MAX_BYTES", 0)
        _assert_places(replay, played)
        assert replay._sampler is not None
        assert replay._sampler._rows.nbytes == 0
        monkeypatch.undo()
        for _ in range(30):  # room for more rows is made at some time
            played.add(Step(0, 40, End.TERMINATED))
        _assert_places(replay, played)
        assert replay._sampler._rows.nbytes > 0


def _assert_places(replay: SequenceReplayBuffer, played: Played) -> None:
    rows = {row.id: row for row in rows_in_order(played.episodes)}
    batch = replay.sample_sequences(500, 1)
    expected = [rows[row][:3] for row in batch.ids.tolist()]
    assert [tuple(place) for place in batch.observation["place"][:, 0].tolist()] == expected
