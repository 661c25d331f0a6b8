"""Interleaved measurement: every round times each candidate once, so drift affects all equally."""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

__all__ = [
    "Clock",
    "Row",
    "commit",
    "compare",
    "cpu_seconds",
    "installed",
    "into_page",
    "machine",
    "options",
    "rates",
    "repeated",
    "report",
    "result",
    "save",
    "table",
]

Clock: TypeAlias = Literal["CPU", "time"]
"""CPU time of this process and its workers, or the time that goes by, where a disk is waited for
or work is done side by side."""
_BURST_SECONDS = 0.04  # of a candidate, each round


@dataclass(frozen=True)
class Row:
    """The speed of a candidate next to that of its limit.

    Args:
        topic: Of which chart and table the row is.
        case: Work that all candidates of the case do.
        candidate: Name.
        limit: Name of the candidate that this one is compared with.
        ratio: How many times as fast it is: the median of the rounds and its quartiles.
        each: Microseconds that a unit of work takes: the median.
        goal: The least ratio that was aimed at; None without a goal.
        clock: What was measured.
        rounds: How many.
    """

    topic: str
    case: str
    candidate: str
    limit: str
    ratio: tuple[float, float, float]
    each: float
    goal: float | None
    clock: Clock
    rounds: int


def compare(
    *what: str,
    candidates: Mapping[str, Callable[[], float]],
    limit: str,
    count: int,
    goals: Mapping[str, float] | None = None,
    clock: Clock = "CPU",
) -> list[Row]:
    """Measure candidates in turns.

    Args:
        *what: The topic and the case.
        candidates: By name, a call that does some work and returns how much.
        limit: Name of the candidate that all are compared with.
        count: Number of rounds; one more is run first and not counted.
        goals: By name of a candidate, the least ratio.
        clock: What is measured.
    """
    topic, case = what
    if "torch" in sys.modules:  # its other threads would use CPU time while they wait for work
        sys.modules["torch"].set_num_threads(1)
    measured = rates(candidates, count, cpu_seconds if clock == "CPU" else time.perf_counter)
    rows: list[Row] = []
    for name, values in measured.items():
        pairs = np.array(values) / np.array(measured[limit])
        low, middle, high = np.quantile(pairs, (0.25, 0.5, 0.75)).tolist()
        each, goal = 1e6 / float(np.median(values)), (goals or {}).get(name)
        rows.append(Row(topic, case, name, limit, (middle, low, high), each, goal, clock, count))
    return rows


def repeated(call: Callable[[], object], units: float = 1.0) -> Callable[[], float]:
    """Some hundredths of a second of a call that does so many units of work."""
    result = call()
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < _BURST_SECONDS:
        result = call()
        times += 1

    def run() -> float:
        # Each result is let go when the next one is there, also from burst to burst: its memory is
        # used again. Otherwise each burst would begin with page faults.
        nonlocal result
        for _ in range(times):
            result = call()
        return times * units

    return run


def rates(
    candidates: Mapping[str, Callable[[], float]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time each candidate once a round; the order turns round by round.

    Args:
        candidates: By name, a call that does some work and returns how much.
        rounds: Number of rounds; one more is run first and not counted.
        clock: Gives seconds.

    Returns:
        Work a second, by name, one entry a round.
    """
    measured: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = clock()
            work = candidates[name]()
            taken = clock() - began
            if number:
                measured[name].append(work / taken)
    return measured


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
    from stepwell.buffers.base import native  # here: provenance.py measures earlier trees

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


# --- what a script prints and writes --------------------------------------------------------------


def options(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options of all scripts that `report`; the description is their docstring."""
    first, _, rest = (doc or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default: {rounds}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    return parser


def report(rows: Sequence[Row], packages: Sequence[str], file: Path | None, **more: object) -> None:
    """Print a table of rows, and write them into a file, with `result`'s facts and others."""
    head = ("topic", "case", "candidate", "times as fast", "as", "goal", "us of", "")
    print(table(head, [_cells(row) for row in rows]))
    save(file, result(packages, rows=[asdict(row) for row in rows], **more))


def _cells(row: Row) -> tuple[str, ...]:
    middle, low, high = row.ratio
    ratio = f"{middle:.2f} ({low:.2f}-{high:.2f})"
    goal = "" if row.goal is None else f"{row.goal:.2f}"
    return row.topic, row.case, row.candidate, ratio, row.limit, goal, row.clock, f"{row.each:,.1f}"


def result(packages: Sequence[str], **figures: object) -> dict[str, Any]:
    """Figures, and with what, where, when and of which commit they were measured."""
    script = Path(sys.argv[0]).name
    places = ("--json", "--folder")  # of no interest to others
    given = sys.argv[1:]
    words = [
        word
        for place, word in enumerate(given)
        if word not in places and (not place or given[place - 1] not in places)
    ]
    return {
        "command": " ".join(["python", f"benchmarks/{script}", *words]),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(*packages),
        **figures,
    }


def commit() -> str:
    """The commit of this checkout; with "+" where files differ from it, the figures and docs apart.

    Out of a source archive it is "unknown".
    """
    checkout = Path(__file__).parents[1]
    if not (checkout / ".git").exists():
        return "unknown"

    def git(*words: str) -> str:
        command = ["git", "-C", str(checkout), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changes = git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs")
    return git("rev-parse", "--short=10", "HEAD") + "+" * bool(changes)


def save(file: Path | None, figures: Mapping[str, Any]) -> None:
    """Write figures as JSON; None writes nothing."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_short(figures), indent=1) + "\n")


def _short(value: Any) -> Any:
    """Numbers with six digits: no more were measured."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value
