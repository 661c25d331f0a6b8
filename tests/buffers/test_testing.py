"""All storages pass all rules of `check_storage`, which finds broken storages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.buffers import Chunk, DiskStorage, EncodedChunk, MemoryStorage, Spec, Storage
from stepwell.buffers.testing import STORAGE_RULES, MakeStorage, StorageRule, check_storage
from support.crash.disk_faults import NoSyncFiles
from support.programs import run_python


@pytest.fixture(params=["memory", "disk", "disk in small segments"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStorage]:
    segment_bytes = 20_000 if "small" in request.param else 64 << 20
    numbers = itertools.count()

    def new(
        spec: Spec, *, capacity: int | None = None, capacity_bytes: int | None = None
    ) -> Storage:
        storage: MemoryStorage | DiskStorage
        if request.param == "memory":
            storage = MemoryStorage(spec, capacity=capacity, capacity_bytes=capacity_bytes)
        else:
            storage = DiskStorage.create(
                tmp_path / str(next(numbers)),
                spec,
                capacity=capacity,
                capacity_bytes=capacity_bytes,
                segment_bytes=segment_bytes,
                files=NoSyncFiles(),
            )
        return stack.enter_context(closing(storage))

    with ExitStack() as stack:
        yield new


@pytest.mark.proof
@pytest.mark.parametrize("rule", STORAGE_RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: StorageRule, make: MakeStorage) -> None:
    rule(make)


class FirstChunkOnly(MemoryStorage):
    """Stores only the first chunk of a call."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        super().add(chunks[:1])


class NotAtomic(MemoryStorage):
    """Stores the chunks of a call one by one, so that those before a refused one stay."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            super().add([chunk])


class NewestMetadata(MemoryStorage):
    """Returns the newest chunk's metadata for every chunk."""

    def metadata(self, position: int) -> Mapping[str, object]:
        return super().metadata(self.index.base + len(self.index) - 1)


class Unbounded(MemoryStorage):
    """Ignores the capacity."""

    def __init__(
        self, spec: Spec, *, capacity: int | None = None, capacity_bytes: int | None = None
    ) -> None:
        super().__init__(spec)


class FirstEncodedOnly(MemoryStorage):
    """Stores only the first encoded chunk of a call."""

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        super().add_encoded(chunks[:1])


class Unchecked(MemoryStorage):
    """Believes whatever is sent."""

    def add_encoded(self, chunks: Sequence[EncodedChunk]) -> None:
        super().add_encoded([replace(chunk, checked=self.spec) for chunk in chunks])


@pytest.mark.proof
@pytest.mark.parametrize(
    ("broken", "rule", "message"),
    [
        (
            FirstEncodedOnly,
            "encoded_chunks_are_stored_as_they_are",
            r"\bepisode \d+ begins with row\b",
        ),
        (
            Unchecked,
            "a_refused_encoded_chunk_leaves_the_whole_call_unstored",
            r"\bStoreCorrupt\b.*'checksum'",
        ),
        (FirstChunkOnly, "all_rows_come_back_bit_by_bit", r"\brow \d+\b.*\brow \d+\b"),
        (
            NotAtomic,
            "a_chunk_above_the_capacity_in_bytes_is_refused",
            r"\bafter a refusal\b.*\b0\b.*\b1\b",
        ),
        (NewestMetadata, "metadata_stays_with_the_first_chunk", r"\bmetadata of chunk 0: .*Jäger"),
        (Unbounded, "a_capacity_in_steps_is_kept_after_every_call", r"\bsteps: .*\b400\b"),
    ],
)
def test_a_storage_that_breaks_a_rule_is_found(
    broken: MakeStorage, rule: str, message: str
) -> None:
    with pytest.raises((AssertionError, ValueError), match=message) as caught:
        check_storage(broken)
    assert rule in " ".join(getattr(caught.value, "__notes__", []))


@pytest.mark.proof
def test_the_module_imports_no_test_library() -> None:
    code = "import sys, stepwell.buffers.testing; print({'pytest', 'hypothesis'} & {*sys.modules})"
    assert run_python("-c", code).stdout.strip() == "set()"
