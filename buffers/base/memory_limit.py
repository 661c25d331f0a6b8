"""Memory that this process can still take, and a check before much is taken."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

_MUCH_BYTES = 1 << 30  # smaller requests are not checked


def check_free_memory(nbytes: int, what: str, cure: str = "read it on a larger machine") -> None:
    """Refuse an allocation that does not fit in free memory, before it is made."""
    if nbytes > _MUCH_BYTES and nbytes > (free := free_memory()):
        raise MemoryError(
            f"{what} takes {nbytes / 1e9:.1f} GB of memory, expected at most the "
            f"{free / 1e9:.1f} GB that are free: {cure}"
        )


def free_memory() -> int:
    """Bytes of memory that this process can still take."""
    return min(_free_of_machine(), _free_of_process())


def bound_memory(
    most: int | None = None,  # bytes to add to what the process has, if less than what is free
) -> tuple[int, int] | None:
    """Bound this process to what it has and what is free now; the limits until now, or None."""
    # This works on Linux. A library that allocates by a size from a forged file then gets a
    # MemoryError, before the system is out of memory.
    used = _from_kernel("self/status", "VmData:")
    if used is None:
        return None
    import resource  # not on every system

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    free = free_memory() if most is None else min(most, free_memory())
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([used + free, *limits]), hard))
    return soft, hard


@contextlib.contextmanager
def bounded_memory() -> Generator[None]:
    """Bound this process for a while: see `bound_memory`."""
    before = bound_memory()
    try:
        yield
    finally:
        if before is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, before)


def _free_of_process() -> int:
    """Bytes left under the process' own limits (``ulimit -v``, ``ulimit -d``)."""
    try:
        import resource
    except ImportError:  # Windows
        return 1 << 62
    free = 1 << 62
    for limit, name in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        most, _ = resource.getrlimit(limit)
        used = None if most == resource.RLIM_INFINITY else _from_kernel("self/status", name)
        if used is not None:
            free = min(free, max(0, most - used))
    return free


def _from_kernel(file: str, name: str) -> int | None:
    """A size in bytes from a file in ``/proc``; None on systems that do not tell it."""
    path = Path("/proc", file)
    found = path.read_text().partition(name)[2].split() if path.exists() else []
    return int(found[0]) * 1024 if found else None


def _free_of_machine() -> int:
    free = _from_kernel("meminfo", "MemAvailable:")
    if free is not None:
        return free
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 62
