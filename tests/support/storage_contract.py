"""The rules that hold for every Storage, each one a function that is given a way to make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, SpecMismatch, Storage
from support.models.chunk_model import (
    SPEC,
    Recording,
    assert_holds,
    chunk_of,
    read_metadata,
    rows_of,
)


class Make(Protocol):
    """Makes an empty storage for `SPEC`, which is closed when the test ends."""

    def __call__(
        self, *, capacity: int | None = None, capacity_bytes: int | None = None
    ) -> Storage: ...


Rule = Callable[[Make], None]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def play(storage: Storage, calls: int, seed: int = 0, streams: int = 3) -> list[Chunk]:
    """Add random chunks and return all of them."""
    rng, recording, added = np.random.default_rng(seed), Recording(), list[Chunk]()
    for _ in range(calls):
        chunks = [
            recording.chunk(
                int(rng.integers(streams)),
                int(rng.integers(1, 30)),
                End(int(rng.choice([End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED]))),
            )
            for _ in range(rng.integers(1, 4))
        ]
        storage.add(chunks)
        added += chunks
    return added


@rule
def an_empty_storage_holds_nothing(make: Make) -> None:
    storage = make()
    assert storage.spec == SPEC
    assert (len(storage.table), storage.table.steps, storage.table.episodes) == (0, 0, 0)
    assert storage.nbytes == 0
    storage.add([])
    assert len(storage.table) == 0


@rule
def all_rows_come_back_bit_by_bit(make: Make) -> None:
    storage = make()
    assert_holds(storage, play(storage, 40))


@rule
def steps_and_episodes_are_counted(make: Make) -> None:
    storage = make()
    storage.add([chunk_of(0, 0, 5), chunk_of(1, 0, 3, End.TERMINATED, stream=1)])
    storage.add([chunk_of(0, 5, 5, End.TRUNCATED)])
    assert (storage.table.steps, storage.table.episodes) == (9 + 2, 2)
    assert storage.table.next_episode == 2


@rule
def a_pending_row_gives_way_to_the_row_with_its_action(make: Make) -> None:
    storage = make()
    chunks = [chunk_of(0, 0, 4, End.PENDING), chunk_of(0, 3, 4, End.PENDING), chunk_of(0, 6, 1)]
    for chunk in chunks:
        storage.add([chunk])
    assert_holds(storage, chunks)
    assert (storage.table.steps, storage.table.rows) == (6, 7)
    assert storage.table.total_steps == 6


@rule
def metadata_stays_with_the_first_chunk(make: Make) -> None:
    storage = make()
    metadata = {"seed": 7, "task": "Jäger", "tags": ["a", {"b": None}]}
    storage.add([replace(chunk_of(0, 0, 3), metadata=metadata), chunk_of(0, 3, 3)])
    assert read_metadata(storage, 0) == storage.metadata(0) == metadata
    assert read_metadata(storage, 1) == storage.metadata(1) == {}


@rule
def a_capacity_in_steps_is_kept_after_every_call(make: Make) -> None:
    storage, rng, recording = make(capacity=400), np.random.default_rng(1), Recording()
    for _ in range(150):
        end = End.TERMINATED if rng.random() < 0.2 else End.PENDING
        storage.add([recording.chunk(int(rng.integers(3)), int(rng.integers(1, 40)), end)])
        steps, total = storage.table.steps, storage.table.total_steps
        # A sixteenth goes at a time, never more.
        assert min(total, 400 - 400 // 16) <= steps <= 400
    assert storage.table.total_steps > 1_000


@rule
def a_capacity_in_steps_is_used_up_also_by_chunks_of_an_awkward_size(make: Make) -> None:
    """Slabs took chunks until they were full: one of 24 rows and one of 25 went at once."""
    for sizes in ([24, 25], [1, 25], [13]):
        storage, first_row = make(capacity=400), 0
        for number in range(60):
            rows = sizes[number % len(sizes)]
            storage.add([chunk_of(0, first_row, rows)])
            first_row += rows
            assert storage.table.steps >= min(storage.table.total_steps, 375)


@rule
def what_is_older_than_a_row_is_dropped_as_far_as_it_lies_alone(make: Make) -> None:
    storage = make(capacity=1_600)
    added = [chunk_of(episode, 0, 40, End.TERMINATED) for episode in range(30)]
    for chunk in added:
        storage.add([chunk])
    base = 0
    for row_id in (0, 39, 40, 41, 300, 301, 1_000, 1_199):
        storage.drop_before(row_id)
        base = storage.table.base
        oldest = int(storage.table.records["row_id"][0])
        assert row_id - 160 < oldest <= row_id
        assert_holds(storage, added[base:])
    storage.add([chunk_of(30, 0, 40, End.TERMINATED)])
    assert_holds(storage, [*added[base:], chunk_of(30, 0, 40, End.TERMINATED)])


@rule
def the_oldest_go_first_and_the_rest_stays_bit_exact(make: Make) -> None:
    storage = make(capacity=320)  # chunks of up to 20 rows are kept whole
    recording, added = Recording(), list[Chunk]()
    for number in range(200):
        end = End.TERMINATED if number % 9 == 8 else End.PENDING
        added.append(recording.chunk(number % 2, 11, end))
        storage.add(added[-1:])
        kept = added[storage.table.base :]
        assert len(kept) == len(storage.table)
        if number % 10 == 0:
            assert_holds(storage, kept)
    assert_holds(storage, added[storage.table.base :])


@rule
def positions_stay_valid_while_older_chunks_go(make: Make) -> None:
    storage = make(capacity=160)
    for episode in range(60):
        storage.add([chunk_of(episode, 0, 9, End.TERMINATED)])
        for position in range(storage.table.base, storage.table.base + len(storage.table)):
            assert storage.table.record(position).episode == position
            assert read_metadata(storage, position) == {"seed": position}


@rule
def a_chunk_longer_than_the_capacity_leaves_its_newest_rows(make: Make) -> None:
    storage = make(capacity=64)
    whole = chunk_of(0, 0, 300, End.TERMINATED)
    storage.add([whole])
    assert 48 <= storage.table.steps <= 64
    head = int(storage.table.records["head"][-1])
    rest = {name: rows[head:] for name, rows in whole.fields.items()}
    assert head + storage.table.rows == 300
    assert_holds(storage, [Chunk(0, 0, head, End.TERMINATED, rest)])


@rule
def a_capacity_in_bytes_is_kept_after_every_call(make: Make) -> None:
    budget = 2 << 20
    storage = make(capacity_bytes=budget)
    noise = np.random.default_rng(0)
    for episode in range(60):
        fields = rows_of(episode, 0, 1_000)
        fields["observation"] = noise.integers(0, 256, (1_000, 12, 8), np.uint8)
        storage.add([Chunk(episode, 0, 0, End.TERMINATED, fields)])
        assert storage.nbytes <= budget
    assert storage.table.base > 0
    assert storage.table.records["nbytes"].sum() > budget // 2
    assert storage.table.records["episode"][-1] == 59


@rule
def a_chunk_above_the_capacity_in_bytes_is_refused(make: Make) -> None:
    storage = make(capacity_bytes=1 << 20)
    fields = rows_of(1, 0, 30_000)
    fields["observation"] = np.random.default_rng(0).integers(0, 256, (30_000, 12, 8), np.uint8)
    small = chunk_of(0, 0, 3, End.TERMINATED)
    with pytest.raises(ValueError, match=r"one chunk of 30000 rows takes \d+ bytes, expected at m"):
        storage.add([small, Chunk(1, 0, 0, End.TERMINATED, fields)])
    assert len(storage.table) == 0
    storage.add([small])
    assert_holds(storage, [small])


@rule
def a_refused_chunk_leaves_the_whole_call_unstored(make: Make) -> None:
    storage = make()
    before = [chunk_of(0, 0, 4), chunk_of(1, 0, 4, End.TERMINATED, stream=1)]
    storage.add(before)
    good = chunk_of(0, 4, 4)
    for bad, error, message in bad_chunks():
        with pytest.raises(error, match=message):
            storage.add([good, bad])
        assert_holds(storage, before)
    storage.add([good])
    assert_holds(storage, [*before, good])


def bad_chunks() -> list[tuple[Chunk, type[Exception], str]]:
    """Chunks that cannot follow rows 0-7 of episode 0, and what is said of each."""
    shorter, other, less = (rows_of(0, 8, 2) for _ in range(3))
    shorter["reward"] = shorter["reward"][:1]
    other["reward"] = other["reward"].astype(np.float32)
    del less["action"]
    return [
        (chunk_of(0, 9, 2), ValueError, "chunk of episode 0 begins with row 9, expected row 8"),
        (chunk_of(0, 4, 2), ValueError, "chunk of episode 0 begins with row 4, expected row 8"),
        (chunk_of(5, 3, 2), ValueError, "chunk of episode 5 begins with row 3, expected row 0"),
        (chunk_of(1, 0, 2), ValueError, "episode 1 is stored already, expected an id that was n"),
        (chunk_of(0, 0, 2, stream=1), ValueError, "episode 0 is stored already"),
        (chunk_of(0, 8, 0), ValueError, "chunk of episode 0 has no rows, expected some"),
        (
            Chunk(0, 0, 8, End.NONE, shorter),
            SpecMismatch,
            r"'reward' of a chunk: expected float64 ",
        ),
        (Chunk(0, 0, 8, End.NONE, other), SpecMismatch, r"\(2,\), got float32 \(2,\)"),
        (
            Chunk(0, 0, 8, End.NONE, less),
            SpecMismatch,
            r"'action' .*expected int64 \(2,\), got not",
        ),
    ]


@rule
def an_ended_episode_is_not_continued(make: Make) -> None:
    storage = make()
    storage.add([chunk_of(0, 0, 4, End.TERMINATED)])
    with pytest.raises(ValueError, match="begins with row 4, expected row 0"):
        storage.add([chunk_of(0, 4, 4)])


@rule
def ids_may_come_out_of_order(make: Make) -> None:
    storage = make()
    chunks = [chunk_of(2, stream=1), chunk_of(0), chunk_of(7, stream=2), chunk_of(0, 5)]
    for chunk in chunks:
        storage.add([chunk])
    assert_holds(storage, chunks)
    assert storage.table.next_episode == 8


@rule
def sessions_are_kept_in_order(make: Make) -> None:
    storage = make()
    assert list(storage.sessions) == []
    storage.append_session({"seed": 1})
    storage.append_session({"seed": 2, "recipe": {"game": "pong", "rom": None}})
    assert [session["seed"] for session in storage.sessions] == [1, 2]


@rule
def capacities_must_be_whole_and_positive(make: Make) -> None:
    for bad in (0, -5, 2.5, True):
        with pytest.raises(ValueError, match=rf"^capacity: expected a whole number >= 1 .*{bad!r}"):
            make(capacity=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^capacity_bytes: expected a whole number >= 1"):
        make(capacity_bytes=0)


@rule
def closing_twice_is_harmless(make: Make) -> None:
    storage = make()
    storage.add([chunk_of(0)])
    storage.close()
    storage.close()
