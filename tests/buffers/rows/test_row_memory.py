"""Rows that stay where they were written are stored as copied ones are, and never change."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, EpisodeBuffer, Field, MemoryStorage, Spec
from stepwell.buffers.rows import row_memory as memories
from stepwell.buffers.rows.episode_buffer import OBSERVED
from stepwell.buffers.rows.row_memory import SpareMemory
from stepwell.buffers.storage import ram as module
from support.examples import examples

ROW = (36, 32)  # 1,152 bytes
FIELDS = (
    Field("observation", "uint8", ROW, "raw"),
    Field("action", "int64", (), "narrow"),
    Field("reward", "float64", (), "narrow"),
)
SPECS = [
    Spec((*FIELDS, OBSERVED), "observation", "action"),
    Spec((*FIELDS, OBSERVED, Field("info/map", "uint8", (40,), "zstd")), "observation", "action"),
    Spec(
        (replace(FIELDS[0], dtype="float32", shape=(300,)), *FIELDS[1:], OBSERVED),
        "observation",
        "action",
    ),
]


@pytest.fixture(autouse=True)
def small_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else only tests of megabytes would reach what is tested here."""
    monkeypatch.setattr(module, "_LEAST_KEPT_BYTES", 1)


class Loop:
    """Writes numbered rows, and stores them as they stay and as copies."""

    def __init__(self, spec: Spec, num_envs: int, chunk_rows: int, capacity: int | None) -> None:
        self.spec = spec
        self.buffer = EpisodeBuffer(spec, num_envs, chunk_rows=chunk_rows)
        self.storage = MemoryStorage(spec, capacity=capacity)
        self.copied = MemoryStorage(spec, capacity=capacity)
        self.num_envs, self.number = num_envs, 0
        self.bytes: dict[int, bytes] = {}
        self.held: list[tuple[Any, int, bytes]] = []

    def values(self, n: int) -> dict[str, np.ndarray]:
        self.number += 1
        field = self.spec["observation"]
        numbers = (self.number * 7 + np.arange(n)) % 251
        ones: Any = np.ones((n, *field.shape), field.numpy_dtype)
        found: dict[str, np.ndarray] = {
            "observation": ones * numbers.reshape(-1, *[1] * len(field.shape)).astype(ones.dtype),
            "reward": numbers * 0.5,
            OBSERVED.name: np.ones(n, np.bool_),
        }
        if "info/map" in self.spec.names:
            found["info/map"] = np.ones((n, 40), np.uint8) * (self.number % 200)
        return found

    def step(
        self,
        envs: list[int],
        first: list[bool],
        ends: list[bool],
        metadata: str,
        *,
        is_taken_between: bool = False,
    ) -> None:
        values = self.values(len(envs))
        self.buffer.observe(
            values,
            is_first=np.array(first),
            terminated=np.array(ends),
            env_ids=None if envs == list(range(self.num_envs)) else np.array(envs),
            metadata={env: {"text": metadata} for env in envs},
        )
        action = {"action": np.array([self.number % 90] * len(envs), np.int64)}
        if is_taken_between:
            self.store(self.buffer.take(everything=True))
        is_all = envs == list(range(self.num_envs))
        self.buffer.act(action, env_ids=None if is_all else np.array(envs))
        for given_array in (*values.values(), *action.values()):
            given_array[...] = 1  # the caller's own again

    def play(self, *lengths: int, text: str = "") -> None:
        """Whole episodes of the only env, of so many rows."""
        for length in lengths:
            for step in range(length):
                self.step([0], [step == 0], [step == length - 1], text)

    def add(self, env: int, *, is_known: bool, is_over: bool) -> None:
        before, after = self.values(1), self.values(1)
        self.number -= not is_known  # the values before the next step are those after this one
        more = [name for name in before if name.startswith("info/") and name != OBSERVED.name]
        self.buffer.add(
            before["observation"][0],
            np.int64(self.number % 90),
            after["reward"][0],
            after["observation"][0] if is_known else None,
            is_over,
            False,
            env_ids=env,
            info={name[5:]: before[name][0] for name in more},
            next_info={name[5:]: after[name][0] for name in more},
        )
        for given_array in (*before.values(), *after.values()):
            given_array[...] = 1

    def store(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            seen = chunk.fields["observation"].reshape(chunk.rows, -1)
            is_right = (seen == 2 * chunk.fields["reward"][:, None]).all(1)
            is_right[0] |= chunk.first_row == 0  # whose reward may be none
            assert (is_right | ~chunk.fields[OBSERVED.name]).all()
        rows = [{name: rows.copy() for name, rows in chunk.fields.items()} for chunk in chunks]
        self.copied.add(
            [
                replace(chunk, fields=own, place=None)
                for chunk, own in zip(chunks, rows, strict=True)
            ]
        )
        self.storage.add(chunks)
        for chunk, own in zip(chunks, rows, strict=True):  # a digest reads them afterwards
            assert all(np.array_equal(chunk.fields[name], own[name]) for name in own)
        index = self.storage.index
        for position in range(max(self.bytes, default=-1) + 1, index.base + len(index)):
            if position >= index.base:
                self.bytes[position] = payload(self.storage, position)
        if len(index):
            position = index.base + self.number % len(index)
            self.held.append((*self.storage.payload(position), self.bytes[position]))

    def check(self) -> None:
        index, other = self.storage.index, self.copied.index
        for name in index.records.dtype.names or ():
            if name not in ("segment", "offset"):
                assert np.array_equal(index.records[name], other.records[name]), name
        assert (np.diff(index.records["segment"]) >= 0).all()
        for position in range(index.base, index.base + len(index)):
            found = payload(self.storage, position)
            assert found == payload(self.copied, position) == self.bytes[position]
        for buffer, origin, before in self.held:
            assert np.asarray(buffer)[origin : origin + len(before)].tobytes() == before


def payload(storage: MemoryStorage, position: int) -> bytes:
    buffer, origin = storage.payload(position)
    nbytes = storage.index.record(position).nbytes
    return np.asarray(buffer)[origin : origin + nbytes].tobytes()


@given(
    st.data(),
    st.sampled_from(SPECS),
    st.integers(1, 3),
    st.sampled_from([4, 32, 70]),
    st.sampled_from([None, 40, 400]),
)
@settings(max_examples=examples(60))
def test_kept_rows_are_stored_as_copied_ones_are(
    data: st.DataObject, spec: Spec, num_envs: int, chunk_rows: int, capacity: int | None
) -> None:
    """For any groups, ends, cuts, flushes, unknown results, metadata; nothing stored changes."""
    loop = Loop(spec, num_envs, chunk_rows, capacity)
    all_envs = list(range(num_envs))
    often = data.draw(st.sampled_from([0, 0, 1, 9]))
    is_open = [False] * num_envs
    for _ in range(data.draw(st.integers(1, 30))):
        kind = data.draw(
            st.sampled_from(["all"] * 6 + ["some", "add", "cut", "flush"][: often + 1])
        )
        if kind in ("all", "some"):
            envs = all_envs
            if kind == "some":
                envs = data.draw(st.permutations(all_envs))[: data.draw(st.integers(1, num_envs))]
            text = data.draw(st.sampled_from(["", "", "", "x" * 900]))
            between = often > 0 and data.draw(st.booleans())
            steps = data.draw(st.sampled_from([1, 2, 7, 20, 40]))
            for number in range(steps):
                is_last = number == steps - 1
                ends = [is_open[e] and is_last and data.draw(st.booleans()) for e in envs]
                first = [not is_open[e] for e in envs]
                loop.step(envs, first, ends, text, is_taken_between=between and number == 0)
                for env, end in zip(envs, ends, strict=True):
                    is_open[env] = not end
                if loop.buffer.is_due:
                    loop.store(loop.buffer.take())
        elif kind == "add":
            env, is_over = data.draw(st.sampled_from(all_envs)), data.draw(st.booleans())
            loop.buffer.cut([env])
            for number in range(3):
                is_last = is_over and number == 2
                loop.add(env, is_known=data.draw(st.booleans()), is_over=is_last)
                if loop.buffer.is_due:
                    loop.store(loop.buffer.take(newest=data.draw(st.booleans())))
            loop.buffer.cut([env])
            is_open[env] = False
        elif kind == "cut":
            loop.buffer.cut()
            is_open = [False] * num_envs
        else:
            newest = data.draw(st.booleans())
            loop.store(loop.buffer.take(everything=True, newest=newest))
    loop.store(loop.buffer.take(everything=True))
    loop.check()


def test_a_filled_memory_is_kept_and_one_that_is_not_is_copied() -> None:
    """Three quarters of it: the rest is all that a kept memory can waste."""
    for rows, is_kept in ((64, True), (58, True), (40, False), (3, False)):
        loop, storage = Loop(SPECS[0], 1, 64, None), MemoryStorage(SPECS[0])
        loop.play(rows)
        storage.add(loop.buffer.take(everything=True))
        stored = storage.index.records["nbytes"].sum()
        assert (storage._slabs[-1].memory is None) == is_kept
        assert stored <= storage.nbytes
        if is_kept:
            assert storage.nbytes <= stored / 0.75


def test_a_limit_in_bytes_is_kept_to_by_copying() -> None:
    storage = MemoryStorage(SPECS[0], capacity_bytes=1 << 20)
    loop = Loop(SPECS[0], 1, 64, None)
    for _ in range(32):
        loop.play(64)
        storage.add(loop.buffer.take())
        assert storage.nbytes <= 1 << 20
    assert storage.index.base > 0
    assert all(slab.memory is not None for slab in storage._slabs)


def test_a_second_storage_copies_what_the_first_one_keeps() -> None:
    storages = [MemoryStorage(SPECS[0]) for _ in range(2)]
    loop = Loop(SPECS[0], 1, 64, None)
    chunk = whole_chunk(loop)
    for storage in storages:
        storage.add([chunk])
    assert [storage._slabs[-1].memory is None for storage in storages] == [True, False]
    loop.play(64)
    assert payload(storages[0], 0) == payload(storages[1], 0)


def whole_chunk(loop: Loop | None = None) -> Chunk:
    loop = loop or Loop(SPECS[0], 1, 64, None)
    loop.play(64)
    (chunk,) = loop.buffer.take()
    assert chunk.place is not None
    return chunk


@pytest.mark.parametrize("length", [20, 64])
@pytest.mark.parametrize("calls", [1, 2])
def test_rows_that_come_again_as_another_chunk_leave_the_first_one_as_it_was(
    calls: int, length: int
) -> None:
    """Episodes with other rewards, of the same observations."""
    loop = Loop(SPECS[0], 1, 64, None)
    loop.play(length, 64 - length)
    chunks = loop.buffer.take()
    chunk = chunks[-1]
    for episode, text in ((3, ""), (4, "x" * 20), (5, "x" * 40)):
        other = {**chunk.fields, "reward": np.full(chunk.rows, episode + 0.3)}
        chunks.append(replace(chunk, episode=episode, fields=other, metadata={"text": text}))
    storage, copied = MemoryStorage(SPECS[0]), MemoryStorage(SPECS[0])
    copied.add([replace(each, place=None) for each in chunks])
    for some in [chunks] if calls == 1 else [chunks[:-3], chunks[-3:]]:
        storage.add(some)
    assert chunk.place is not None
    assert storage.payload(0)[0] is chunk.place.memory.data
    for position in range(len(chunks)):
        assert payload(storage, position) == payload(copied, position)


def test_a_pickled_chunk_has_its_rows_alone() -> None:
    chunk = whole_chunk()
    found = pickle.loads(pickle.dumps(chunk))
    assert found.place is None
    assert copy.deepcopy(chunk).place is None
    assert len(pickle.dumps(chunk)) <= len(pickle.dumps(replace(chunk, place=None))) + 99
    assert all(np.array_equal(chunk.fields[name], found.fields[name]) for name in chunk.fields)


def test_replaced_rows_of_a_chunk_are_what_is_stored() -> None:
    """The memory still has the others."""
    storage, chunk = MemoryStorage(SPECS[0]), whole_chunk()
    other = np.full((64, *ROW), 9, np.uint8)
    storage.add([replace(chunk, fields={**chunk.fields, "observation": other})])
    assert payload(storage, 0).count(b"\x09") > other.size - 1
    assert storage._slabs[-1].memory is not None


@pytest.mark.proof
def test_little_memory_is_held_ready() -> None:
    spare = SpareMemory(30 << 20)
    held = [memories.RowMemory(spare) for _ in range(9)]
    for number in range(9):
        held[number].kept = 1
    held.clear()
    gc.collect()
    assert len(spare._free) == 2  # 64 MiB at most
    memory = memories.RowMemory(spare)
    del spare
    gc.collect()
    assert memory.data.nbytes == 30 << 20


@pytest.mark.proof
def test_a_full_replay_fills_the_memory_that_it_evicts() -> None:
    storage = MemoryStorage(SPECS[0], capacity=640)
    loop, addresses = Loop(SPECS[0], 1, 40, None), set[int]()
    for _ in range(200):
        loop.play(40)
        chunks = loop.buffer.take()
        addresses |= {chunk.place.memory.address for chunk in chunks if chunk.place}
        storage.add(chunks)
    assert len(addresses) <= 640 / 40 + 3


@pytest.mark.parametrize("spec", SPECS)
def test_three_episodes_of_one_memory_stay_there(spec: Spec) -> None:
    """Time after time, as episodes of 21 rows and metadata of a usual length have room."""
    loop = Loop(spec, 1, 64, None)
    for count in range(1, 4):
        loop.play(20, 20, 24, text="x" * 300)
        loop.store(loop.buffer.take())
        assert len(loop.storage.index) == 3 * count
        assert len(loop.storage._segments) == count
    assert all(slab.memory is None for slab in loop.storage._slabs)
    loop.check()


@pytest.mark.proof
@pytest.mark.parametrize("which", [0, 2])
def test_metadata_that_just_fits_and_that_does_not(which: int) -> None:
    """Of the first and of the last of three episodes in a memory."""
    nbytes, fixed, kept = -1, 0, []
    for spare in (*range(-20, 28), -900):
        loop = Loop(SPECS[0], 1, 64, None)
        for number, length in enumerate((9, 47, 8)):
            for step in range(length):
                text = "x" * nbytes if number == which and nbytes >= 0 else ""
                loop.step([0], [step == 0], [step == length - 1], text)
        chunks = loop.buffer.take()
        place = chunks[which].place
        assert place is not None
        if nbytes < 0:
            fixed = 8 + 32 * len(SPECS[0].fields) + len('{"stream_episode":0,"text":""}')
        loop.store(chunks)
        loop.check()
        if nbytes >= 0:
            kept.append(loop.storage.payload(which)[0] is place.memory.data)
        nbytes = place.rows - place.start - fixed - spare
    assert any(kept)
    assert not all(kept)


def test_slabs_of_several_memories_are_evicted_whole() -> None:
    loop = Loop(SPECS[0], 1, 64, 2_100)
    for _ in range(48):
        loop.play(64)
        loop.store(loop.buffer.take())
    loop.check()
    assert loop.storage.index.base > 0
    assert {slab.segments for slab in list(loop.storage._slabs)[:-1]} == {2}


def test_copies_fill_the_rest_of_a_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLAB_BYTES", 250_000)
    loop = Loop(SPECS[0], 1, 64, None)
    for length in (64, *[16] * 12):
        loop.play(length)
        loop.store(loop.buffer.take(everything=True))
    loop.check()
    first = loop.storage._slabs[0]
    assert first.segments == 2
    assert first.memory is not None
    assert first.memory.nbytes == first.size - loop.storage.index.record(0).nbytes


def test_small_memory_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_KEPT_BYTES", 90_000)
    storage = MemoryStorage(SPECS[0])
    storage.add([whole_chunk()])
    assert storage._slabs[-1].memory is not None


def test_an_episode_that_goes_on_stays_in_the_next_memory_too() -> None:
    loop = Loop(SPECS[0], 1, 64, None)
    for step in range(190):
        loop.step([0], [step in (0, 20)], [step == 19], "")
        if loop.buffer.is_due:
            loop.store(loop.buffer.take())
    assert len(loop.storage._segments) >= 2
    assert all(slab.memory is None for slab in loop.storage._slabs)
    loop.check()


def test_slabs_that_share_a_memory_are_evicted_one_by_one() -> None:
    loop, most = Loop(SPECS[0], 1, 64, 400), 0
    for _ in range(12):
        loop.play(20, 20, 24)
        loop.store(loop.buffer.take())
        loop.check()
        segments = loop.storage._segments
        assert len(segments) == len(loop.storage._slabs)
        sizes = {id(memory): memory.nbytes for memory in segments}
        assert loop.storage.nbytes == sum(sizes.values())
        most = max(most, len(segments) - len(sizes))
    assert loop.storage.index.base > 0
    assert most > 4


@pytest.mark.parametrize(("shape", "factor"), [(ROW, 128), ((1025,), 64), ((64, 128), 4096)])
def test_rows_lie_where_they_are_copied_from_in_the_least_time(
    shape: tuple[int, ...], factor: int
) -> None:
    spec = Spec((replace(FIELDS[0], shape=shape), *FIELDS[1:], OBSERVED), "observation", "action")
    loop = Loop(spec, 1, 64, None)
    loop.play(20, 20, 24)
    places = [chunk.place for chunk in loop.buffer.take() if chunk.place]
    assert [(place.memory.address + place.rows) % factor for place in places] == [0, 0, 0]


def test_memory_is_written_again_until_a_storage_keeps_it() -> None:
    loop, seen = Loop(SPECS[0], 1, 64, None), []
    for is_stored in (False, True, False):
        loop.play(64)
        chunks = loop.buffer.take()
        seen += [chunk.place.memory for chunk in chunks if chunk.place]
        if is_stored:
            loop.store(chunks)
    assert seen[0] is seen[1]
    assert seen[1] is not seen[2]
    assert [memory.kept > 0 for memory in seen] == [True, True, False]


@pytest.mark.parametrize(
    ("change", "can"),
    [
        ({}, True),
        ({"codec": "zstd"}, False),
        ({"codec": "narrow"}, False),
        ({"dtype": ">u2"}, False),
        ({"shape": (1024,)}, True),
        ({"shape": (1023,)}, False),
    ],
)
def test_only_large_rows_that_are_stored_as_they_are_can_stay(
    change: dict[str, Any], can: bool
) -> None:
    spec = Spec((replace(FIELDS[0], **change), *FIELDS[1:]), "observation", "action")
    assert memories.EnvRows.can_hold(spec) == can
    wide = Field("info/wide", "uint8", (36 * 4,), "raw")
    assert not memories.EnvRows.can_hold(replace(SPECS[0], fields=(*SPECS[0].fields, wide)))
