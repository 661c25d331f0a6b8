"""Free memory is checked before much of it is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.buffers.base import memory_limit
from stepwell.buffers.base.memory_limit import check_free_memory


def test_the_limits_of_the_process_count_as_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: 1 << 60}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], 0))
    check_free_memory(3 << 29, "a file")  # less than the free memory of the machine
    limits[resource.RLIMIT_DATA] = 1 << 30
    with pytest.raises(MemoryError, match=r"^a file .*\b1\.6 GB\b.*\b\d\.\d GB\b"):
        check_free_memory(3 << 29, "a file")


def test_a_kernel_that_does_not_tell_sizes_bounds_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sandboxes of other kernels have these files without some of Linux's lines."""
    pytest.importorskip("resource")
    for name in ("self/status", "meminfo"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("VmSize: 7 kB\n")
    monkeypatch.setattr(memory_limit, "Path", lambda _, name: tmp_path / name)
    assert memory_limit.bound_memory() is None
    assert memory_limit.free_memory() > 0
