"""Encoded chunks go from storage to storage as they are, as if they were decoded and added."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import (
    Chunk,
    DiskStorage,
    EncodedChunk,
    End,
    JoinedStorage,
    MemoryStorage,
    NotEnoughData,
    SequenceReplayBuffer,
    Spec,
    SpecMismatch,
    Storage,
    StoreCorrupt,
    verify,
)
from stepwell.buffers.storage import encoded_chunk
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, ChunkEncoder
from stepwell.buffers.storage.encoded_chunk import pack_chunks, unpack_chunks
from stepwell.buffers.testing import SPEC, Recording, assert_holds, chunk_of, play, rows_of
from support.examples import examples

Make = Callable[..., Storage]


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def makers(stack: contextlib.ExitStack) -> dict[str, Make]:
    """Functions that make an empty storage of each kind, which the stack closes."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    count = iter(range(1_000_000))

    def on_disk(spec: Spec, **options: Any) -> Storage:
        path = folder / str(next(count))
        return stack.enter_context(DiskStorage.create(path, spec, **options))

    return {"RAM": MemoryStorage, "disk": on_disk}


def all_of(storage: Storage) -> list[EncodedChunk]:
    index = storage.index
    return [storage.encoded(index.base + place) for place in range(len(index))]


def facts_of(storage: Storage) -> Any:
    """All that readers see but for the places of the bytes, and the bytes themselves."""
    index = storage.index
    names = [name for name in index.records.dtype.names or () if name not in ("segment", "offset")]
    return (
        index.base,
        index.counters,
        (index.steps, index.episodes),
        [index.records[name].tolist() for name in names],
        [bytes(each.data) for each in all_of(storage)],
    )


# --- one chunk ------------------------------------------------------------------------------------


@given(
    before=st.dictionaries(
        st.text(max_size=5), st.integers(0, 9) | st.text(max_size=9), max_size=4
    ),
    after=st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=9), max_size=4),
    rows=st.integers(1, 70),
)
def test_other_metadata_leave_the_rows_as_they_are(
    before: dict[str, object], after: dict[str, object], rows: int
) -> None:
    chunk = replace(chunk_of(3, 0, rows), metadata=before)
    encoder = ChunkEncoder(SPEC)
    encoded = EncodedChunk.of(encoder, chunk)
    encoded = replace(encoded, known_crc=encoded.crc)
    placed = encoded.placed(episode=8, stream=-1, metadata=after)
    expected = replace(chunk, episode=8, stream=-1, metadata=after)
    assert placed == EncodedChunk.of(encoder, expected)  # the very bytes of an encoder
    assert placed.crc == EncodedChunk.of(encoder, expected).crc
    assert EncodedChunk.of(encoder, placed.decoded(SPEC)) == placed


# --- against the slow model -----------------------------------------------------------------------

ENDS = st.sampled_from([End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED])
CALLS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 45), ENDS), max_size=4), max_size=12
)
CAPACITIES = st.sampled_from(
    [{}, {"capacity": 160}, {"capacity": 400}, {"capacity_bytes": 1 << 20}]
)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["RAM", "disk"])
@pytest.mark.parametrize("sender", ["RAM", "disk"])
def test_as_they_are_is_the_same_as_decoded_and_added(kind: str, sender: str) -> None:
    @settings(max_examples=examples(60) // (4 if kind == "disk" else 2))
    @given(calls=CALLS, capacity=CAPACITIES, is_seeded=st.booleans(), is_sent=st.booleans())
    def check(
        calls: list[list[tuple[int, int, End]]],
        capacity: dict[str, int],
        is_seeded: bool,
        is_sent: bool,
    ) -> None:
        with contextlib.ExitStack() as stack:
            make = makers(stack)
            source = make[sender](SPEC)
            model, taken = make[kind](SPEC, **capacity), make[kind](SPEC, **capacity)
            for each in (source, model, taken):
                each.append_session({"run": 0})
            recording, numbers = Recording(), dict[int, int]()
            for call in calls:
                chunks = [
                    _in_chain(recording.chunk(*each), numbers, is_seeded=is_seeded) for each in call
                ]
                before = len(source.index)
                source.add(chunks)
                encoded = [source.encoded(before + place) for place in range(len(chunks))]
                if is_sent:
                    encoded = unpack_chunks(pack_chunks(encoded), SPEC)
                model.add([each.decoded(SPEC) for each in encoded])
                taken.add_encoded(encoded)
                assert facts_of(taken) == facts_of(model)
            if isinstance(taken, DiskStorage):
                taken.close()
                assert verify(taken.path).is_whole
                with DiskStorage.open(taken.path, read_only=True) as again:
                    assert facts_of(again) == facts_of(stack.enter_context(_reopened(model)))

    check()


def _reopened(storage: Storage) -> DiskStorage:
    assert isinstance(storage, DiskStorage)
    storage.close()
    return DiskStorage.open(storage.path, read_only=True)


def _in_chain(chunk: Chunk, numbers: dict[int, int], *, is_seeded: bool) -> Chunk:
    """The chunk with the place of its episode in a chain, as a collector writes it."""
    number = numbers.setdefault(chunk.episode, len(numbers))
    metadata = {"session": 0, "stream_episode": number}
    if is_seeded and number % 3 == 0:
        metadata["seed"] = number
    return replace(chunk, metadata=metadata)


# --- joined storages ------------------------------------------------------------------------------


def test_a_joined_storage_gives_chunks_out() -> None:
    parts = [MemoryStorage(SPEC), MemoryStorage(SPEC)]
    for number, part in enumerate(parts):
        play(part, 10, number)
    joined = JoinedStorage(parts)
    target = MemoryStorage(SPEC)
    target.add_encoded(all_of(joined))
    for name in ("episode", "stream", "first_row", "stored_rows", "end", "rows", "head"):
        assert target.index.records[name].tolist() == joined.index.records[name].tolist()
    assert [each.data for each in all_of(target)] == [each.data for each in all_of(joined)]


# --- what is refused ------------------------------------------------------------------------------


def test_a_chunk_that_is_left_out_is_not_given_out() -> None:
    storage = MemoryStorage(SPEC)
    storage.add([chunk_of(0, 0, 5), chunk_of(0, 5, 5)])
    storage.lose(0)
    with pytest.raises(StoreCorrupt, match="rows 0 to 4 of episode 0"):
        storage.encoded(0)
    assert storage.encoded(1).starts_late


@pytest.mark.parametrize("kind", ["RAM", "disk"])
def test_nothing_is_stored_if_one_of_the_chunks_is_refused(
    kind: str, stack: contextlib.ExitStack
) -> None:
    storage, source = makers(stack)[kind](SPEC), MemoryStorage(SPEC)
    source.add([chunk_of(0, 0, 5), chunk_of(1, 0, 5, stream=1), chunk_of(0, 5, 5)])
    first, other, second = all_of(source)
    raw = MemoryStorage(SPEC.with_codecs({"observation": "raw"}))
    raw.add([chunk_of(1, 0, 5, stream=1)])
    less = MemoryStorage(Spec(SPEC.fields[:3], "observation", "action"))
    less.add([replace(chunk_of(1), fields=dict(list(rows_of(1, 0, 5).items())[:3]))])
    no_json = bytes(other.data).replace(b'{"seed":1}', b'{"seed"=1}')
    assert no_json != other.data
    flipped = bytearray(other.data)
    flipped[-20] ^= 1
    bad: list[tuple[type[Exception], str, EncodedChunk]] = [
        (ValueError, "row 5.* row 0", second.placed(episode=0, stream=1)),
        (SpecMismatch, "'observation'.*'zstd'.*'raw'", raw.encoded(0)),
        (StoreCorrupt, "3 fields.*4", less.encoded(0)),
        (StoreCorrupt, "checksum", _unchecked(other, parts=[bytes(flipped)])),
        (StoreCorrupt, "metadata", _unchecked(other, parts=[no_json], known_crc=None)),
        (StoreCorrupt, "episode.*-1", _unchecked(other, episode=-1)),
        (StoreCorrupt, "rows.*0", _unchecked(other, rows=0)),
        (StoreCorrupt, "rows 0 to 5 of episode 1", _unchecked(other, rows=6)),
        (StoreCorrupt, "end.*8", _unchecked(other, end=End.LOST)),
        (StoreCorrupt, "bytes", _unchecked(other, parts=[other.data[:-8]], known_crc=None)),
        (StoreCorrupt, "bytes", _unchecked(other, parts=[b""], known_crc=None)),
        (
            StoreCorrupt,
            "multiple of 8",
            _unchecked(other, parts=[*other.parts, bytes(4)], known_crc=None),
        ),
    ]
    for error, message, chunk in bad:
        with pytest.raises(error, match=message):
            storage.add_encoded([first, chunk])
        assert len(storage.index) == 0
    storage.add_encoded([first, other, second])
    assert_holds(storage, [each.decoded(SPEC) for each in (first, other, second)])


def test_metadata_are_parsed_unless_they_are_those_of_the_chunk_before() -> None:
    decoder, encoder = ChunkDecoder(SPEC), ChunkEncoder(SPEC)
    for length in (10, 4_096 - 8, 5_000):
        text = {"a": "b" * length}
        good = b"".join(encoder.encode(replace(chunk_of(0), metadata=text)))
        spoiled = good.replace(b'"}', b'"]')
        begun = b"".join(encoder.encode(replace(chunk_of(0), metadata={"a": "b" * 4_088})))
        begun = begun.replace(b'"}', b"bb")  # as the first 4,096 bytes of the longest one
        for _ in range(2):
            decoder.check_metadata(good, 0)
            for bad in (spoiled, begun):
                with pytest.raises(StoreCorrupt, match="metadata"):
                    decoder.check_metadata(bad, 0)


def _unchecked(chunk: EncodedChunk, **changes: Any) -> EncodedChunk:
    changes = {"known_crc": chunk.crc, "checked": None, **changes}
    return replace(chunk, **changes)


def test_a_chunk_larger_than_the_capacity_in_bytes_is_refused(stack: contextlib.ExitStack) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20_000, 12, 8), np.uint8)
    big = replace(chunk_of(0, 0, 20_000), fields={**rows_of(0, 0, 20_000), "observation": noise})
    source = MemoryStorage(SPEC)
    source.add([big])
    for make in makers(stack).values():
        storage = make(SPEC, capacity_bytes=1 << 20)
        with pytest.raises(ValueError, match=r"20000 rows.* capacity_bytes=1048576"):
            storage.add_encoded(all_of(source))
        assert len(storage.index) == 0


def test_a_replay_takes_them_in(stack: contextlib.ExitStack) -> None:
    source = MemoryStorage(SPEC)
    play(source, 10)
    replay = stack.enter_context(SequenceReplayBuffer("there"))
    with pytest.raises(NotEnoughData, match=r"bind.*add_encoded"):
        replay.add_encoded(all_of(source))
    replay.bind(SPEC, {})
    replay.add_encoded(all_of(source))
    assert replay.total_bytes == sum(each.nbytes for each in all_of(source))
    assert replay.steps == source.index.total_steps


# --- the form for sending -------------------------------------------------------------------------


def packed_chunks() -> tuple[bytes, list[EncodedChunk]]:
    storage = MemoryStorage(SPEC)
    storage.add([chunk_of(0, 0, 3), replace(chunk_of(1, 4, 2, stream=1), starts_late=True)])
    chunks = all_of(storage)
    return pack_chunks(chunks), chunks


def test_packed_chunks_come_back_without_a_copy() -> None:
    data, chunks = packed_chunks()
    found = unpack_chunks(data, SPEC)
    assert found == chunks
    assert [each.crc for each in found] == [each.crc for each in chunks]
    for each in found:
        assert isinstance(each.data, memoryview)
        assert each.data.obj is data
    assert unpack_chunks(np.frombuffer(data, np.uint8), SPEC) == chunks
    assert pack_chunks([]) == b""
    assert unpack_chunks(b"", SPEC) == []


@pytest.mark.proof
def test_every_flipped_bit_of_packed_chunks_is_found() -> None:
    data, _ = packed_chunks()
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(StoreCorrupt):
                unpack_chunks(bytes(flipped), SPEC)


def test_every_other_length_is_refused() -> None:
    data, _ = packed_chunks()
    for length in range(1, len(data)):
        with pytest.raises(StoreCorrupt):
            unpack_chunks(data[:length], SPEC)
    with pytest.raises(StoreCorrupt, match=f"{len(data)} bytes, got {len(data) + 8}"):
        unpack_chunks(data + bytes(8), SPEC)


def forged(chunks: Sequence[EncodedChunk], **changes: int) -> bytes:
    """Packed chunks with other numbers in the entry of the first, under right checksums."""
    data = bytearray(pack_chunks(chunks))
    names = ("episode", "stream", "first_row", "rows", "nbytes", "crc", "end", "starts_late")
    at = encoded_chunk._HEADER.size
    values = dict(zip(names, encoded_chunk._ENTRY.unpack_from(data, at), strict=True)) | changes
    encoded_chunk._ENTRY.pack_into(data, at, *values.values())
    stop = at + len(chunks) * encoded_chunk._ENTRY.size
    count = encoded_chunk._COUNT.pack(len(chunks))
    crc = crc32(data[at:stop], crc32(count))
    encoded_chunk._HEADER.pack_into(data, 0, encoded_chunk._MAGIC, len(chunks), crc)
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("episode", -1),
        ("stream", 1 << 62),
        ("first_row", -3),
        ("rows", 4),
        ("nbytes", 0),
        ("crc", 7),
        ("end", 200),
        ("starts_late", 2),
    ],
)
def test_numbers_that_no_sender_has_written_are_refused(name: str, value: int) -> None:
    _, chunks = packed_chunks()
    assert unpack_chunks(forged(chunks), SPEC) == chunks
    with pytest.raises(StoreCorrupt):
        unpack_chunks(forged(chunks, **{name: value}), SPEC)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_bytes_under_a_right_checksum_are_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever is in a chunk, it is refused, or can be stored and read, or not be read."""
    _, chunks = packed_chunks()
    chunk = chunks[data.draw(st.integers(0, 1))]
    changed = bytearray(chunk.data)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(
            st.integers(0, min(200, len(changed) - 1)) | st.integers(0, len(changed) - 1)
        )
        changed[place] = data.draw(st.integers(0, 255))
    sent = replace(chunk, parts=[bytes(changed)], known_crc=None, checked=None)
    storage = MemoryStorage(SPEC)
    refused: str | None = None
    try:
        (found,) = unpack_chunks(pack_chunks([sent]), SPEC)
        storage.add_encoded([replace(found, first_row=0)])
        assert found.decoded(SPEC).rows == chunk.rows
        assert found.placed(episode=0, stream=0, metadata={"n": 1}).decoded(SPEC).metadata == {
            "n": 1
        }
    except (StoreCorrupt, SpecMismatch) as error:
        refused = str(error)
    assert refused is None or len(storage.index) == 0 or "compressed block" in refused, refused
