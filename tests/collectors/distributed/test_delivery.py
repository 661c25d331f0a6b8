"""Delivery: in a fixed order, each piece once, and nothing of an attempt that was replaced."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, EncodedChunk, End, Field, MemoryStorage, Spec
from stepwell.buffers.rows.digest import DigestState
from stepwell.buffers.storage.chunk_codec import ChunkEncoder
from stepwell.collectors.distributed.delivery import Delivery, GroupStreams, Taken
from stepwell.collectors.distributed.messages import Piece
from support.examples import by_tier

SPEC = Spec((Field("reward", "float64", (), "raw"),), {}, {})


PIECE = Piece(0, 0, 0, 0, False, False, 1, 1, 1, 10, (), "", DigestState(), 0, None, None)


def piece(group: int, number: int, **more: Any) -> Piece:
    digest = f"{group}.{number}"
    return PIECE._replace(**{"group": group, "number": number, "digest": digest, **more})


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 2**32))
@settings(max_examples=by_tier(10, 300, 2_000))
def test_the_order_is_that_of_rounds_and_groups_whatever_happens(
    counts: list[int], seed: int
) -> None:
    """Groups send in any order, twice, and die at any time; then they repeat what is here."""
    rng = random.Random(seed)
    delivery = Delivery[str](len(counts))
    stored: list[tuple[int, int]] = []
    base, nexts, skips, attempts = ([0] * len(counts) for _ in range(4))
    for call in range(2):
        delivery.begin(call, range(len(counts)), in_order=True)
        while not delivery.is_complete:
            group = rng.randrange(len(counts))
            end = base[group] + counts[group]
            if rng.random() < 0.15:  # its actor dies; the last pieces may be lost
                attempts[group] = delivery.repeat(group)
                assert attempts[group] == delivery.groups[group].attempt
                skips[group], nexts[group] = delivery.groups[group].expected, 0
            elif nexts[group] < end:
                number = nexts[group]
                is_repeat = number < skips[group]
                taken = delivery.take(
                    piece(
                        group,
                        number,
                        attempt=attempts[group],
                        call=call if number >= base[group] else call - 1,
                        is_last=number in (end - 1, base[group] - 1),
                        is_repeat=is_repeat,
                    ),
                    "rows",
                    10,
                )
                assert taken is (Taken.REPEATED if is_repeat else Taken.KEPT)
                nexts[group] += 1
            if rng.random() < 0.3:  # a zombie, and an answer that comes twice
                assert delivery.take(piece(group, 0, attempt=-1), "", 10) is Taken.LATE
                if nexts[group] > skips[group]:
                    again = piece(group, nexts[group] - 1, attempt=attempts[group], call=call)
                    assert delivery.take(again, "", 10) is Taken.TWICE
            if rng.random() < 0.5:
                stored += [(each.piece.group, each.piece.number) for each in delivery.due()]
            turn = delivery.turn
            waiting = sum(delivery.groups[g].expected for g in range(len(counts)))
            waiting -= len(stored)
            assert delivery.waiting_bytes == 10 * waiting
            assert turn is None or not delivery.groups[turn].has_ended or waiting
        stored += [(each.piece.group, each.piece.number) for each in delivery.due()]
        assert delivery.turn is None
        assert not delivery.waiting_bytes
        base = [first + count for first, count in zip(base, counts, strict=True)]
    expected = [
        (group, call * counts[group] + number)
        for call in range(2)
        for number in range(max(counts))
        for group in range(len(counts))
        if number < counts[group]
    ]
    assert stored == expected


def test_rows_that_differ_are_found_at_the_last_piece_that_is_played_again() -> None:
    delivery = Delivery[str](1)
    delivery.begin(0, [0], in_order=True)
    for number in range(3):
        delivery.take(piece(0, number), "", 1)
    assert delivery.repeat(0) == 1

    def again(number: int, **more: Any) -> Taken:
        return delivery.take(piece(0, number, attempt=1, is_repeat=True, **more), "", 1)

    assert again(0, digest="x") is Taken.REPEATED  # only the digest of all of them counts
    assert again(1) is Taken.REPEATED
    assert delivery.take(piece(0, 3, attempt=1), "", 1) is Taken.DIFFERS  # not proved yet
    assert again(1, is_last=True) is Taken.DIFFERS  # it has fewer pieces than before
    assert again(2, digest="x") is Taken.DIFFERS
    assert again(2) is Taken.REPEATED
    assert delivery.take(piece(0, 3, attempt=1), "", 1) is Taken.KEPT


def test_a_piece_without_the_one_before_it_is_an_error() -> None:
    delivery = Delivery[str](2)
    delivery.begin(0, [0], in_order=True)
    with pytest.raises(ValueError, match=r"group 0.*piece 0.*piece 1"):
        delivery.take(piece(0, 1), "", 1)
    with pytest.raises(ValueError, match=r"call 0.*call 1"):
        delivery.take(piece(0, 0, call=1), "", 1)
    with pytest.raises(ValueError, match="group 1"):
        delivery.take(piece(1, 0), "", 1)  # it takes no part in the call


def test_other_data_after_a_death_is_counted_from_0_again() -> None:
    delivery = Delivery[str](2)
    delivery.begin(0, [0, 1], in_order=True)
    delivery.take(piece(0, 0), "first", 1)
    assert delivery.go_on(0) == 1
    assert delivery.take(piece(0, 1), "zombie", 1) is Taken.LATE
    assert delivery.take(piece(0, 0, attempt=1, is_last=True), "second", 1) is Taken.KEPT
    assert [each.payload for each in delivery.due()] == ["first"]
    delivery.end(1)
    assert [each.payload for each in delivery.due()] == ["second"]
    assert delivery.turn is None
    assert delivery.is_complete


def test_after_an_error_the_rest_comes_out_in_order_though_pieces_lack() -> None:
    delivery = Delivery[str](3)
    delivery.begin(0, range(3), in_order=True)
    for group, number in ((2, 0), (2, 1), (1, 0)):
        delivery.take(piece(group, number), f"{group}.{number}", 1)
    assert not list(delivery.due())
    assert [each.payload for each in delivery.rest()] == ["1.0", "2.0", "2.1"]
    assert not delivery.waiting_bytes


def chunk(
    episode: int, stream: int, first_row: int, metadata: dict[str, object] | None = None
) -> EncodedChunk:
    rows = {"reward": np.array([float(first_row), 1.0])}
    facts = {"session": 4, "seed": episode}
    return EncodedChunk.of(
        ChunkEncoder(SPEC), Chunk(episode, stream, first_row, End.NONE, rows, facts)
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.booleans()), max_size=40))
def test_groups_count_on_their_own_and_the_storage_takes_all(
    adds: list[tuple[int, int, bool]],
) -> None:
    """Each group counts its episodes from 0; what is stored are the same episodes."""
    storage, streams = MemoryStorage(SPEC), GroupStreams(2)
    newest: dict[tuple[int, int], tuple[int, int]] = {}
    begun = [0, 0, 0]
    expected: dict[tuple[int, int], int] = {}
    for group, env, is_new in adds:
        own, row = newest.get((group, env), (-1, 0))
        if own < 0 or is_new:
            own, row = begun[group], 0
            begun[group] += 1
        newest[group, env] = own, row + 2
        expected[group, own] = row + 2
        index = storage.index
        storage.add_encoded(streams.placed([chunk(own, env, row)], group, index.next_episode))
        record = index.record(index.base + len(index) - 1)
        assert record.stream == 2 * group + env
    records = storage.index.records
    lengths = [int(r["first_row"] + r["rows"]) for r in records[records["is_tail"] == 1]]
    assert sorted(lengths) == sorted(expected.values())


def test_episodes_begin_late_where_others_have_written_meanwhile() -> None:
    storage, streams = MemoryStorage(SPEC), GroupStreams(1)
    storage.add_encoded(streams.placed([chunk(0, 0, 0)], 0, storage.index.next_episode))
    rows = {"reward": np.zeros(2)}
    storage.add([Chunk(storage.index.next_episode, 0, 0, End.TERMINATED, rows)])
    (late,) = streams.placed([chunk(0, 0, 2)], 0, storage.index.next_episode)
    assert late.starts_late
    assert late.episode == 2
    storage.add_encoded([late])
    assert storage.index.episodes == 3
