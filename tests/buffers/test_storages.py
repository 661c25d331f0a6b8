"""Every Storage keeps every rule of the contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stepwell.buffers import DiskStorage, MemoryStorage, Storage
from support.crash.disk_faults import NoSyncFiles
from support.models.chunk_model import SPEC
from support.storage_contract import RULES, Make, Rule


@pytest.fixture(params=["memory", "disk", "disk in small segments"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    segment_bytes = 20_000 if "small" in request.param else 64 << 20
    numbers = itertools.count()

    def new(*, capacity: int | None = None, capacity_bytes: int | None = None) -> Storage:
        storage: MemoryStorage | DiskStorage
        if request.param == "memory":
            storage = MemoryStorage(SPEC, capacity=capacity, capacity_bytes=capacity_bytes)
        else:
            storage = DiskStorage.create(
                tmp_path / str(next(numbers)),
                SPEC,
                capacity=capacity,
                capacity_bytes=capacity_bytes,
                segment_bytes=segment_bytes,
                files=NoSyncFiles(),
            )
        return stack.enter_context(closing(storage))

    with ExitStack() as stack:
        yield new


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Rule, make: Make) -> None:
    rule(make)
