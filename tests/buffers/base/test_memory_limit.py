"""Free memory is checked before much of it is allocated."""

from __future__ import annotations

import pytest

from stepwell.buffers.base.memory_limit import check_free_memory


def test_the_limits_of_the_process_count_as_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: 1 << 60}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], 0))
    check_free_memory(3 << 29, "a file")  # less than the free memory of the machine
    limits[resource.RLIMIT_DATA] = 1 << 30
    with pytest.raises(MemoryError, match=r"^a file .*\b1\.6 GB\b.*\b\d\.\d GB\b"):
        check_free_memory(3 << 29, "a file")
