"""Interleaved measurement: every round times each candidate once, so drift affects all equally."""

from __future__ import annotations

import multiprocessing
import platform
import resource
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

__all__ = ["cpu_seconds", "installed", "into_page", "machine", "rates", "ratios", "table"]


def rates(candidates: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Time each candidate once a round; the order turns round by round.

    Args:
        candidates: By name, a call that does some work and returns how much.
        rounds: Number of rounds; one more is run first and not counted.

    Returns:
        Work a second, by name, one entry a round.
    """
    measured: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            work = candidates[name]()
            if number:
                measured[name].append(work / (time.perf_counter() - began))
    return measured


def ratios(
    measured: Mapping[str, list[float]], name: str, limit: str
) -> tuple[float, float, float]:
    """Lowest, median and highest ratio of one candidate to another, round by round."""
    pairs = np.array(measured[name]) / np.array(measured[limit])
    return float(pairs.min()), float(np.median(pairs)), float(pairs.max())


def cpu_seconds() -> float:
    """CPU time of this process and its worker processes so far, those that ended included."""
    running = multiprocessing.active_children()  # first: it reaps those that ended
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The clock of another process, as clock_getcpuclockid computes it on Linux.
    working = sum(time.clock_gettime(~(child.pid or 0) << 3 | 2) for child in running)
    return time.process_time() + ended.ru_utime + ended.ru_stime + working


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Columns, padded, as GitHub shows them."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(head), line(tuple("-" * width for width in widths)), *map(line, rows)])


def machine(*packages: str) -> str:
    """The machine, the versions and the path that the figures belong to."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [row for row in cpuinfo.read_text().splitlines() if row.startswith("model name")]
        if names:
            model = f"{len(names)} x {names[0].split(':')[1].strip()}"
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    from stepwell.buffers import native  # here: goals.py measures older trees too, without it

    return f"{model}; Python {platform.python_version()}; {versions}; {native.path()}"


def installed(*packages: str) -> list[str]:
    """Those of some packages that are installed."""
    found: list[str] = []
    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            continue
        found.append(package)
    return found


def into_page(page: str, name: str, block: str) -> str:
    """A page with a block between the comments of this name, in place of what is there.

    Raises:
        ValueError: A comment is missing.
    """
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, begin, rest = page.partition(first)
    _, end, behind = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"expected a page with the lines {first} and {last}, got one without")
    return f"{before}{begin}\n{block}\n{end}{behind}"
