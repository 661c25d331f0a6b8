"""Checks for the test suites of third-party storages and formats.

The checks need neither pytest nor hypothesis. Each raises an `AssertionError` with the expected
and the found values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from .base.errors import SpecMismatch, StoreCorrupt
from .base.package import lazy_names
from .exchange.formats.exporting import ExportReport, export_episodes
from .exchange.formats.format import Format
from .exchange.formats.importing import ImportReport, import_episodes
from .replay.replay import SequenceReplayBuffer
from .rows.episode import Chunk, End, Episode
from .spec.spec import Field, FieldKind, Spec, field_of
from .storage.chunk_codec import ChunkDecoder
from .storage.protocol import MakeStorage, Storage

__all__ = [
    "SPEC",
    "STORAGE_RULES",
    "MakeStorage",
    "Recording",
    "StorageRule",
    "assert_holds",
    "assert_same_steps",
    "check_format",
    "check_storage",
    "chunk_of",
    "play",
    "read_metadata",
    "rows_of",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, {})

# --- storages -------------------------------------------------------------------------------------

SPEC = Spec(
    (
        Field("observation", "uint8", (12, 8), "zstd"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        Field("extra/memory", "float32", (3,), "raw"),
    ),
    observation="observation",
    action="action",
)
"""The fields of the rows that the rules store: raw, narrow and compressed ones."""


StorageRule: TypeAlias = Callable[[MakeStorage], None]
"""A function that makes storages and raises `AssertionError` if one of them breaks the rule."""

_rules: list[StorageRule] = []


def check_storage(make: MakeStorage) -> None:
    """Run every rule of `STORAGE_RULES`.

    Args:
        make: Makes an empty storage.

    Raises:
        AssertionError: A rule does not hold; a note names the rule.

    Example:
        >>> from stepwell.buffers import MemoryStorage
        >>> check_storage(MemoryStorage)

        With pytest each rule can be a separate test:

        >>> import pytest
        >>> @pytest.mark.parametrize("rule", STORAGE_RULES, ids=lambda rule: rule.__name__)
        ... def test_my_storage(rule):
        ...     rule(MemoryStorage)
    """
    for rule in STORAGE_RULES:
        try:
            rule(make)
        except Exception as error:
            error.add_note(f"rule: {rule.__name__}")
            raise


def rows_of(
    episode: int, first: int, count: int, *, pending: bool = False
) -> dict[str, np.ndarray]:
    """Rows of `SPEC` whose values follow from the episode and the row.

    Args:
        episode: Id of the episode.
        first: First row, counted in the episode.
        count: Number of rows.
        pending: The last row has no action yet: it is 0.
    """
    row = np.arange(first, first + count)
    action = (row * 37 + episode) % 1000 + 1
    if pending:
        action[-1] = 0
    frames = np.full((count, 12, 8), episode % 251, np.uint8)
    frames[:, 0, :4] = np.asarray(row, "<u4").reshape(-1, 1).view(np.uint8)
    # Every seventh row is noise, which zstd cannot compress.
    noise = np.random.default_rng(episode)
    for index in np.flatnonzero(row % 7 == 0):
        frames[index, 1:] = noise.integers(0, 256, (11, 8))
    memory = np.stack([row, row * 0.5, np.full(count, -0.0)], axis=1)
    return {
        "observation": frames,
        "action": action,
        "reward": row / 3 if episode % 2 else row.astype(np.float64),
        "extra/memory": memory.astype(np.float32),
    }


def chunk_of(
    episode: int, first: int = 0, count: int = 5, end: End = End.NONE, stream: int = 0
) -> Chunk:
    """A chunk of `rows_of`; the first one of an episode has metadata."""
    fields = rows_of(episode, first, count, pending=bool(end & End.PENDING))
    metadata = {"seed": episode} if first == 0 else {}
    return Chunk(episode, stream, first, end, fields, metadata)


@dataclass
class Recording:
    """Makes chunks in the order of a collector: each stream has one episode after the other.

    Args:
        next_episode: Id of the next episode.
        open: The episode that each stream continues, and its next row.

    Example:
        >>> recording = Recording()
        >>> chunks = [recording.chunk(0, rows, End.NONE) for rows in (3, 2)]
        >>> [(chunk.episode, chunk.first_row, chunk.rows) for chunk in chunks]
        [(0, 0, 3), (0, 3, 2)]
    """

    next_episode: int = 0
    open: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def chunk(self, stream: int, new_rows: int, end: End) -> Chunk:
        """The next chunk of a stream.

        Args:
            stream: Index of the env.
            new_rows: Rows of the chunk, >= 1.
            end: End of the last row.
        """
        if stream not in self.open:
            self.open[stream] = (self.next_episode, 0)
            self.next_episode += 1
        episode, first = self.open[stream]
        chunk = chunk_of(episode, first, new_rows, end, stream)
        self.open[stream] = (episode, first + new_rows - bool(end & End.PENDING))
        if end.is_final:
            del self.open[stream]
        return chunk


def play(storage: Storage, calls: int, seed: int = 0, streams: int = 3) -> list[Chunk]:
    """Add random chunks and return all of them.

    Args:
        storage: The storage to write to.
        calls: Calls of `Storage.add`, of one to three chunks each.
        seed: Seed of the sizes and ends.
        streams: Number of streams.
    """
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


def assert_holds(storage: Storage, chunks: Sequence[Chunk]) -> None:
    """Check that a storage holds the rows of these chunks, bit by bit, and no others.

    Args:
        storage: The storage.
        chunks: Chunks of `chunk_of`, the oldest first.

    Raises:
        AssertionError: It holds something else.
    """
    index = storage.index
    tails = np.flatnonzero(index.records["is_tail"])
    found = dict(zip(index.records["episode"][tails].tolist(), tails.tolist(), strict=True))
    expected = _joined(chunks)
    _expect("episodes", found.keys(), expected.keys())
    for episode, (head, end, rows) in expected.items():
        record = index.record(found[episode] + index.base)
        _expect(f"first row of episode {episode}", record.head, head)
        _expect(f"end of episode {episode}", End(record.end) & ~End.PENDING, end & ~End.PENDING)
        stored = _read_episode(storage, found[episode] + index.base)
        pending = bool(end & End.PENDING)
        formula = rows_of(episode, head, len(rows["reward"]), pending=pending)
        for name in ("action", "reward"):
            _expect(f"{name} of episode {episode}", rows[name].tolist(), formula[name].tolist())
        for name, values in rows.items():
            what = f"{name} of episode {episode}"
            _expect(f"dtype and shape of {what}", _form(stored[name]), _form(values))
            _expect(f"bytes of {what}", stored[name].tobytes(), values.tobytes())


def read_metadata(storage: Storage, position: int) -> Mapping[str, object]:
    """The metadata in the bytes of the chunk at a position."""
    return ChunkDecoder(storage.spec).metadata(*storage.payload(position))


def _joined(chunks: Iterable[Chunk]) -> dict[int, tuple[int, End, dict[str, np.ndarray]]]:
    """First row, end and rows of each episode: a pending row is replaced by the next one."""
    joined: dict[int, dict[int, dict[str, np.ndarray]]] = {}
    ends: dict[int, End] = {}
    for chunk in chunks:
        ends[chunk.episode] = chunk.end
        episode = joined.setdefault(chunk.episode, {})
        for index in range(chunk.rows):
            row = {name: rows[index] for name, rows in chunk.fields.items()}
            episode[chunk.first_row + index] = row
    return {
        episode: (
            min(rows),
            ends[episode],
            {name: np.array([row[name] for row in rows.values()]) for name in rows[min(rows)]},
        )
        for episode, rows in joined.items()
    }


def _read_episode(storage: Storage, tail: int) -> dict[str, np.ndarray]:
    """The stored rows of the episode whose last chunk is at a position."""
    decoder = ChunkDecoder(storage.spec)
    parts: list[dict[str, np.ndarray]] = []
    position = tail
    while position >= 0:
        record = storage.index.record(position)
        buffer, origin = storage.payload(position)
        part: dict[str, np.ndarray] = {}
        for number, each in enumerate(storage.spec.fields):
            part[each.name] = np.empty((record.rows, *each.shape), each.numpy_dtype)
            if record.rows:
                decoder.read(buffer, origin, record.stored_rows, number, 0, part[each.name])
        parts.insert(0, part)
        position = record.previous
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _form(rows: np.ndarray) -> tuple[object, ...]:
    return rows.dtype, rows.shape


def _expect(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise AssertionError(f"{what}: expected {_short(expected)}, got {_short(got)}")


def _expect_between(what: str, least: float, got: float, most: float) -> None:
    if not least <= got <= most:
        raise AssertionError(f"{what}: expected {least} to {most}, got {got}")


def _expect_refusal(action: Callable[[], object], error: type[Exception], *mentions: str) -> None:
    """Check that an action raises an error whose message mentions names and values."""
    try:
        action()
    except error as raised:
        for each in mentions:
            if each not in str(raised):
                raise AssertionError(
                    f"message of {error.__name__}: expected {each!r} in it, got {str(raised)!r}"
                ) from raised
        return
    raise AssertionError(f"expected {error.__name__} that mentions {mentions}, got no error")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _counts(storage: Storage) -> tuple[int, int, int]:
    return len(storage.index), storage.index.steps, storage.index.episodes


def _rule(function: StorageRule) -> StorageRule:
    _rules.append(function)
    return function


@_rule
def an_empty_storage_holds_nothing(make: MakeStorage) -> None:
    """An empty storage has the given Spec and takes no bytes; adding no chunks has no effect."""
    storage = make(SPEC)
    _expect("spec", storage.spec, SPEC)
    _expect("chunks, steps and episodes", _counts(storage), (0, 0, 0))
    _expect("nbytes", storage.nbytes, 0)
    storage.add([])
    _expect("chunks after add([])", len(storage.index), 0)


@_rule
def all_rows_come_back_bit_by_bit(make: MakeStorage) -> None:
    """Rows are returned as they were added, for all sizes of chunks."""
    storage = make(SPEC)
    assert_holds(storage, play(storage, 40))


@_rule
def steps_and_episodes_are_counted(make: MakeStorage) -> None:
    """The row of a reset does not count as a step."""
    storage = make(SPEC)
    storage.add([chunk_of(0, 0, 5), chunk_of(1, 0, 3, End.TERMINATED, stream=1)])
    storage.add([chunk_of(0, 5, 5, End.TRUNCATED)])
    _expect("steps", storage.index.steps, 9 + 2)
    _expect("episodes", storage.index.episodes, 2)
    _expect("next episode", storage.index.next_episode, 2)


@_rule
def a_pending_row_gives_way_to_the_row_with_its_action(make: MakeStorage) -> None:
    """The next chunk of an episode begins with its pending row again, which then counts once."""
    storage = make(SPEC)
    chunks = [chunk_of(0, 0, 4, End.PENDING), chunk_of(0, 3, 4, End.PENDING), chunk_of(0, 6, 1)]
    for chunk in chunks:
        storage.add([chunk])
    assert_holds(storage, chunks)
    _expect("steps", storage.index.steps, 6)
    _expect("rows", storage.index.rows, 7)
    _expect("total steps", storage.index.total_steps, 6)


@_rule
def metadata_stays_with_the_first_chunk(make: MakeStorage) -> None:
    """Metadata is that of the chunk, bit by bit."""
    storage = make(SPEC)
    metadata = {"seed": 7, "task": "Jäger", "tags": ["a", {"b": None}]}
    storage.add([replace(chunk_of(0, 0, 3), metadata=metadata), chunk_of(0, 3, 3)])
    for position, expected in ((0, metadata), (1, {})):
        _expect(f"stored metadata of chunk {position}", read_metadata(storage, position), expected)
        _expect(f"metadata of chunk {position}", storage.metadata(position), expected)


@_rule
def a_capacity_in_steps_is_kept_after_every_call(make: MakeStorage) -> None:
    """At most ``capacity`` steps are stored, and at most a sixteenth of them is evicted at once."""
    storage, rng, recording = make(SPEC, capacity=400), np.random.default_rng(1), Recording()
    for _ in range(150):
        end = End.TERMINATED if rng.random() < 0.2 else End.PENDING
        storage.add([recording.chunk(int(rng.integers(3)), int(rng.integers(1, 40)), end)])
        least = min(storage.index.total_steps, 400 - 400 // 16)
        _expect_between("steps", least, storage.index.steps, 400)
    _expect_between("total steps", 1_001, storage.index.total_steps, float("inf"))


@_rule
def a_capacity_in_steps_is_used_up_also_by_chunks_of_an_awkward_size(make: MakeStorage) -> None:
    """Chunks that do not divide a sixteenth of the capacity are not evicted two at a time."""
    for sizes in ([24, 25], [1, 25], [13]):
        storage, first_row = make(SPEC, capacity=400), 0
        for number in range(60):
            rows = sizes[number % len(sizes)]
            storage.add([chunk_of(0, first_row, rows)])
            first_row += rows
            least = min(storage.index.total_steps, 375)
            _expect_between(f"steps with chunks of {sizes}", least, storage.index.steps, 400)


@_rule
def drop_before_drops_what_is_older_than_a_row_at_some_capacity(make: MakeStorage) -> None:
    """`Storage.drop_before` keeps the row with the id, and few older ones."""
    storage = make(SPEC, capacity=1_600)
    added = [chunk_of(episode, 0, 40, End.TERMINATED) for episode in range(30)]
    for chunk in added:
        storage.add([chunk])
    for row_id in (0, 39, 40, 41, 300, 301, 1_000, 1_199):
        storage.drop_before(row_id)
        oldest = int(storage.index.records["row_id"][0])
        _expect_between(f"oldest row after drop_before({row_id})", row_id - 159, oldest, row_id)
        assert_holds(storage, added[storage.index.base :])
    added.append(chunk_of(30, 0, 40, End.TERMINATED))
    storage.add(added[-1:])
    assert_holds(storage, added[storage.index.base :])


@_rule
def a_capacity_evicts_the_oldest_and_the_rest_stays_bit_exact(make: MakeStorage) -> None:
    """Chunks are evicted in the order in which they were added."""
    storage = make(SPEC, capacity=320)  # chunks of up to 20 rows are kept whole
    recording, added = Recording(), list[Chunk]()
    for number in range(200):
        end = End.TERMINATED if number % 9 == 8 else End.PENDING
        added.append(recording.chunk(number % 2, 11, end))
        storage.add(added[-1:])
        kept = added[storage.index.base :]
        _expect("chunks", len(storage.index), len(kept))
        if number % 10 == 0:
            assert_holds(storage, kept)
    assert_holds(storage, added[storage.index.base :])


@_rule
def positions_stay_valid_while_a_capacity_evicts_older_chunks(make: MakeStorage) -> None:
    """A position is that of the same chunk until the chunk is evicted."""
    storage = make(SPEC, capacity=160)
    for episode in range(60):
        storage.add([chunk_of(episode, 0, 9, End.TERMINATED)])
        for position in range(storage.index.base, storage.index.base + len(storage.index)):
            _expect("episode", storage.index.record(position).episode, position)
            _expect("metadata", read_metadata(storage, position), {"seed": position})


@_rule
def a_chunk_longer_than_the_capacity_leaves_its_newest_rows(make: MakeStorage) -> None:
    """A chunk is split, so that its last rows are kept."""
    storage = make(SPEC, capacity=64)
    whole = chunk_of(0, 0, 300, End.TERMINATED)
    storage.add([whole])
    _expect_between("steps", 48, storage.index.steps, 64)
    head = int(storage.index.records["head"][-1])
    rest = {name: rows[head:] for name, rows in whole.fields.items()}
    _expect("rows up to the last one", head + storage.index.rows, 300)
    assert_holds(storage, [Chunk(0, 0, head, End.TERMINATED, rest)])


@_rule
def a_capacity_in_bytes_is_kept_after_every_call(make: MakeStorage) -> None:
    """`Storage.nbytes` never exceeds ``capacity_bytes``, of which more than half is used."""
    budget = 2 << 20
    storage = make(SPEC, capacity_bytes=budget)
    noise = np.random.default_rng(0)
    for episode in range(60):
        fields = rows_of(episode, 0, 1_000)
        fields["observation"] = noise.integers(0, 256, (1_000, 12, 8), np.uint8)
        storage.add([Chunk(episode, 0, 0, End.TERMINATED, fields)])
        _expect_between("nbytes", 0, storage.nbytes, budget)
    _expect_between("evicted chunks", 1, storage.index.base, 59)
    used = int(storage.index.records["nbytes"].sum())
    _expect_between("bytes of chunks", budget // 2 + 1, used, budget)
    _expect("newest episode", int(storage.index.records["episode"][-1]), 59)


@_rule
def a_chunk_above_the_capacity_in_bytes_is_refused(make: MakeStorage) -> None:
    """No chunk of a call is stored if one of them is larger than ``capacity_bytes``."""
    storage = make(SPEC, capacity_bytes=1 << 20)
    fields = rows_of(1, 0, 30_000)
    noise = np.random.default_rng(0)
    fields["observation"] = noise.integers(0, 256, (30_000, 12, 8), np.uint8)
    small, large = chunk_of(0, 0, 3, End.TERMINATED), Chunk(1, 0, 0, End.TERMINATED, fields)
    _expect_refusal(
        lambda: storage.add([small, large]), ValueError, "30000 rows", f"capacity_bytes={1 << 20}"
    )
    _expect("chunks after a refusal", len(storage.index), 0)
    storage.add([small])
    assert_holds(storage, [small])


@_rule
def a_refused_chunk_leaves_the_whole_call_unstored(make: MakeStorage) -> None:
    """All chunks of a call are stored, or none; the message names episode, rows and field."""
    storage = make(SPEC)
    before = [chunk_of(0, 0, 4), chunk_of(1, 0, 4, End.TERMINATED, stream=1)]
    storage.add(before)
    good = chunk_of(0, 4, 4)
    for bad, error, *mentions in _bad_chunks():
        _expect_refusal(functools.partial(storage.add, [good, bad]), error, *mentions)
        assert_holds(storage, before)
    storage.add([good])
    assert_holds(storage, [*before, good])


def _bad_chunks() -> list[tuple[Chunk, type[Exception], *tuple[str, ...]]]:
    """Chunks that cannot follow rows 0-7 of episode 0, with the error and words of its message."""
    short, narrow, less = (rows_of(0, 8, 2) for _ in range(3))
    short["reward"] = short["reward"][:1]
    narrow["reward"] = narrow["reward"].astype(np.float32)
    del less["action"]
    return [
        (chunk_of(0, 9, 2), ValueError, "episode 0", "row 9", "expected row 8"),
        (chunk_of(0, 4, 2), ValueError, "episode 0", "row 4", "expected row 8"),
        (chunk_of(5, 3, 2), ValueError, "episode 5", "row 3", "expected row 0"),
        (chunk_of(1, 0, 2), ValueError, "episode 1 is stored already"),
        (chunk_of(0, 0, 2, stream=1), ValueError, "episode 0 is stored already"),
        (chunk_of(0, 8, 0), ValueError, "episode 0", "no rows"),
        (Chunk(0, 0, 8, End.NONE, short), SpecMismatch, "'reward'", "expected float64 (2,)"),
        (Chunk(0, 0, 8, End.NONE, narrow), SpecMismatch, "'reward'", "got float32 (2,)"),
        (Chunk(0, 0, 8, End.NONE, less), SpecMismatch, "'action'", "expected int64 (2,)"),
    ]


@_rule
def an_ended_episode_is_not_continued(make: MakeStorage) -> None:
    """Rows cannot be added to a terminated or truncated episode."""
    storage = make(SPEC)
    storage.add([chunk_of(0, 0, 4, End.TERMINATED)])
    _expect_refusal(lambda: storage.add([chunk_of(0, 4, 4)]), ValueError, "row 4", "expected row 0")


@_rule
def ids_may_come_out_of_order(make: MakeStorage) -> None:
    """Episodes may be added in any order of their ids."""
    storage = make(SPEC)
    chunks = [chunk_of(2, stream=1), chunk_of(0), chunk_of(7, stream=2), chunk_of(0, 5)]
    for chunk in chunks:
        storage.add([chunk])
    assert_holds(storage, chunks)
    _expect("next episode", storage.index.next_episode, 8)


@_rule
def sessions_are_kept_in_order(make: MakeStorage) -> None:
    """`Storage.sessions` lists the arguments of `Storage.append_session`."""
    storage = make(SPEC)
    _expect("sessions", list(storage.sessions), [])
    sessions: list[dict[str, object]] = [
        {"seed": 1},
        {"seed": 2, "recipe": {"game": "pong", "rom": None}},
    ]
    for session in sessions:
        storage.append_session(session)
    _expect("sessions", list(storage.sessions), sessions)


@_rule
def encoded_chunks_are_stored_as_they_are(make: MakeStorage) -> None:
    """Chunks that one storage gives out another takes in: the same rows in the same bytes."""
    source, target = make(SPEC), make(SPEC)
    added = play(source, 20)
    chunks = [source.encoded(position) for position in range(len(source.index))]
    target.add_encoded(chunks[:7])
    target.add_encoded(chunks[7:])
    assert_holds(target, added)
    _expect("chunks, steps and episodes", _counts(target), _counts(source))
    for position, chunk in enumerate(chunks):
        found = target.encoded(position)
        _expect(f"bytes of chunk {position}", bytes(found.data), bytes(chunk.data))
        _expect(f"checksum of chunk {position}", found.crc, chunk.crc)
        _expect(f"metadata of chunk {position}", found.metadata, chunk.metadata)
        _expect(f"chunk {position}", found, chunk)
    for position in (-1, len(chunks)):
        _expect_refusal(
            functools.partial(target.encoded, position), ValueError, "position", str(position)
        )


@_rule
def encoded_chunks_keep_a_capacity(make: MakeStorage) -> None:
    """Their oldest rows are evicted, too."""
    source = make(SPEC)
    storages = [make(SPEC, capacity=160) for _ in range(2)]
    for storage in storages:
        storage.append_session({"seed": 0})
    for number in range(40):
        facts: dict[str, object] = {"session": 0, "stream_episode": number}
        if number % 8 == 0:
            facts["seed"] = number
        chunk = replace(chunk_of(number, 0, 25, End.TERMINATED), metadata=facts)
        source.add([chunk])
        storages[0].add([chunk])
        storages[1].add_encoded([source.encoded(number)])
        for what in ("first_row", "stored_rows", "rows", "episode", "row_id"):
            found, expected = (each.index.records[what].tolist() for each in storages[::-1])
            _expect(f"{what} of the stored chunks", found, expected)


@_rule
def a_refused_encoded_chunk_leaves_the_whole_call_unstored(make: MakeStorage) -> None:
    """Damaged bytes, other fields or codecs, and a wrong place are refused."""
    storage, source = make(SPEC), make(SPEC)
    source.add([chunk_of(0, 0, 5), chunk_of(0, 5, 5)])
    first, second = source.encoded(0), source.encoded(1)
    other = make(SPEC.with_codecs({"observation": "raw"}))
    other.add([chunk_of(1, 0, 5, stream=1)])
    damaged = bytearray(second.data)
    damaged[-12] ^= 1
    sent = replace(second, parts=(bytes(damaged),), known_crc=second.crc, checked=None)
    for bad, error, mention in (
        (sent, StoreCorrupt, "checksum"),
        (replace(second, rows=6, checked=None), StoreCorrupt, "rows 5 to 10"),
        (other.encoded(0), SpecMismatch, "'observation'"),
        (second.placed(episode=0, stream=1), ValueError, "begins with row 5"),
    ):
        _expect_refusal(
            functools.partial(storage.add_encoded, [first, bad]),
            cast("type[Exception]", error),
            mention,
        )
        _expect("chunks after a refusal", len(storage.index), 0)
    storage.add_encoded([first, second])
    assert_holds(storage, [chunk_of(0, 0, 5), chunk_of(0, 5, 5)])


@_rule
def capacities_must_be_whole_and_positive(make: MakeStorage) -> None:
    """Other capacities are a ValueError that names the argument and the value."""
    for bad in (0, -5, 2.5, True):
        _expect_refusal(
            functools.partial(make, SPEC, capacity=cast("int", bad)),
            *(ValueError, "capacity: expected a whole number >= 1", repr(bad)),
        )
    _expect_refusal(
        lambda: make(SPEC, capacity_bytes=0), ValueError, "capacity_bytes: expected a whole number"
    )


@_rule
def closing_twice_is_harmless(make: MakeStorage) -> None:
    """`Storage.close` can be called again."""
    storage = make(SPEC)
    storage.add([chunk_of(0)])
    storage.close()
    storage.close()


STORAGE_RULES: tuple[StorageRule, ...] = tuple(_rules)
"""The rules of every `Storage`: call each with a `MakeStorage`, or all by `check_storage`."""


# --- formats --------------------------------------------------------------------------------------


def check_format(
    format_: Format | str,
    out: Path,
    replay: SequenceReplayBuffer | None = None,
    *,
    export_options: Mapping[str, object] | None = None,
    import_options: Mapping[str, object] | None = None,
    shown: Callable[[np.ndarray], np.ndarray] | None = None,
    has_final_observation: bool = False,
) -> tuple[ExportReport, ImportReport, SequenceReplayBuffer]:
    """Export a replay, import the data set, and compare the steps.

    The same episodes must come back, in the order of each stream, with the same observations,
    actions and rewards, and with the same episodes terminated. A format may lack the observation
    after the last action, may round rewards to float32, and may leave out episodes without a step.
    For an episode that is not terminated, the result of the last action may be missing.

    Args:
        format_: The format, or its name.
        out: Path of the new data set.
        replay: Episodes to export; by default three of pictures, of 1 to 4 steps.
        export_options: Options for the export.
        import_options: Options for the import.
        shown: Converts the rows [T, ...] of an observation to the shape that the format returns.
        has_final_observation: Also compare the observation after the last action.

    Returns:
        Both reports, and the replay that was imported.

    Raises:
        AssertionError: Something else came back.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exported, imported, back = check_format("npz", Path(folder) / "out")
        >>> imported.episodes, back.steps
        (3, 8)
    """
    replay = _small_replay() if replay is None else replay
    plan = export_episodes(replay, format_, out, options=export_options, dry_run=True)
    assert not plan.path.exists(), f"{plan.path}: expected nothing after a dry run, got a data set"
    exported = export_episodes(replay, format_, out, options=export_options)
    assert exported.path.exists(), f"{exported.path}: expected a data set, got nothing"
    counts = (exported.episodes, exported.steps), (plan.chosen_episodes, plan.chosen_steps)
    assert counts[0] == counts[1], (
        f"export: expected {counts[1]} episodes and steps, got {counts[0]}"
    )
    back = SequenceReplayBuffer()
    imported = import_episodes(format_, out, back, options=import_options)
    assert_same_steps(back, replay, shown=shown, has_final_observation=has_final_observation)
    return exported, imported, back


def assert_same_steps(
    back: SequenceReplayBuffer,
    replay: SequenceReplayBuffer,
    *,
    shown: Callable[[np.ndarray], np.ndarray] | None = None,
    has_final_observation: bool = False,
) -> None:
    """Compare imported episodes with those that were exported; see `check_format`.

    Raises:
        AssertionError: They differ.
    """
    found, expected = list(back.iter_episodes()), list(replay.iter_episodes())
    if len({episode.stream for episode in found}) > 1:  # may come one stream after the other
        found, expected = _by_stream(found), _by_stream(expected)
    expected = [episode for episode in expected if episode.steps]
    if len(found) != len(expected):
        found = [episode for episode in found if episode.steps]
    counts = len(found), len(expected)
    assert counts[0] == counts[1], f"expected {counts[1]} episodes with a step, got {counts[0]}"
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        _compare(one, other, f"episode {number}", shown, has_final_observation)


def _compare(
    found: Episode,
    expected: Episode,
    where: str,
    shown: Callable[[np.ndarray], np.ndarray] | None,
    has_final_observation: bool,
) -> None:
    steps, known = expected.steps, min(found.rows, expected.rows)
    is_whole = found.rows == expected.rows
    is_short = found.rows == steps and not has_final_observation and found.end is End.NONE
    assert is_whole or is_short, f"{where}: expected {steps} steps, got {found.steps}"
    terminated = bool(found.end & End.TERMINATED), bool(expected.end & End.TERMINATED)
    assert terminated[0] == terminated[1], f"{where}: expected terminated={terminated[1]}"
    observed = known if has_final_observation else steps
    parts: dict[FieldKind, slice] = {"observation": slice(observed), "action": slice(steps)}
    for kind, rows in parts.items():
        fields = found.spec.of_kind(kind), expected.spec.of_kind(kind)
        assert len(fields[0]) == len(fields[1]), f"{where}: expected as many fields of {kind}"
        names = {field.name for field in fields[0]}
        for their_field, other in zip(*fields, strict=True):
            name = other.name if other.name in names else their_field.name
            theirs, ours = found.fields[name][rows], expected.fields[other.name][rows]
            if kind == "observation" and shown is not None:
                ours = shown(ours)
            _assert_equal_rows(theirs, ours, f"{where}: {other.name}", other.stack)
    rewards = found.reward[1:known], expected.reward[1:known]
    with np.errstate(over="ignore"):
        rounded = rewards[1].astype(np.float32).astype(np.float64)
    is_same = np.array_equal(*rewards) or np.array_equal(rewards[0], rounded)
    assert is_same, f"{where}: expected rewards {rewards[1]}, got {rewards[0]}"


def _assert_equal_rows(found: np.ndarray, expected: np.ndarray, where: str, stack: int) -> None:
    rows = len(expected)
    theirs, ours = found.reshape(rows, -1), expected.reshape(rows, -1)
    if ours.shape[1] and theirs.shape[1] == stack * ours.shape[1]:  # whole stacks, newest last
        theirs = theirs[:, -ours.shape[1] :]
    with np.errstate(over="ignore"):
        ours = ours.astype(found.dtype)
    assert np.array_equal(theirs, ours), f"{where}: expected {ours}, got {theirs}"


def _by_stream(episodes: list[Episode]) -> list[Episode]:
    """One stream after the other, as they first appear."""
    order = list(dict.fromkeys(episode.stream for episode in episodes))
    return sorted(episodes, key=lambda episode: order.index(episode.stream))


def _small_replay() -> SequenceReplayBuffer:
    """Three episodes of pictures, of 1, 3 and 4 steps: terminated, truncated and cut."""
    replay = SequenceReplayBuffer()
    fields = (
        field_of("observation", np.dtype("uint8"), (16, 16, 3)),
        field_of("action", np.dtype("int64"), ()),
        Field("reward", "float64", (), "narrow"),
    )
    rng = np.random.default_rng(0)
    with replay.writer(Spec(fields, "observation", "action")) as writer:
        for number, steps in enumerate((1, 3, 4)):
            writer.add_episode(
                rng.integers(0, 256, (steps + 1, 16, 16, 3), np.uint8),
                rng.integers(0, 4, steps),
                rng.normal(size=steps).astype(np.float32),
                terminated=number == 0,
                truncated=number == 1,
            )
    return replay
