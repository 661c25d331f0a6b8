"""Prints the table of goals: Stepwell against its limits, without and with the compiled core.

    python benchmarks/goals.py                            # everything, an hour on a quiet machine
    python benchmarks/goals.py --quick                    # two minutes: shows only that it works
    python benchmarks/goals.py --only vectors priorities --rounds 9
    python benchmarks/goals.py --only collect --seconds 20
    python benchmarks/goals.py --json goals.json          # for goals_report.py: tables, chart
    pip install 'stepwell[peers]'                         # the libraries that it is compared with

Each path is measured in a process of its own: "pure" is numpy alone (STEPWELL_PURE=1), "core" has
the compiled core. In each process Stepwell and its limit take turns in short bursts, of which the
25 % quantile counts, and the processes take turns; a figure is the median of the rounds, with the
lowest and the highest. Small work is measured by CPU time of the thread, which other programs
disturb less; collecting by time, as the emulators have threads of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import goals_report
import rounds
from goal_cases import GROUPS, Case, Setting, Work

_BURST_SECONDS = 0.01
_BURSTS = 15  # of each candidate, each round
_PACKAGES = ("stepwell", "numpy", "zstandard", "ale-py", "gymnasium", "cpprb", "stable-baselines3")


# --- in the process of a path ---------------------------------------------------------------------


class Clock:
    """Repeats a call for a burst.

    Args:
        work: The call.
        case: Its case.
        seconds: Length of a burst, unless a call is long.
    """

    def __init__(self, work: Work, case: Case, seconds: float) -> None:
        self._work, self._times, self._units = work, 1, case.units
        self._left_out = case.left_out
        # Each is let go when the next one is there, also from burst to burst: its memory is used
        # again. Otherwise each burst would begin with page faults.
        self._newest: object = None
        if case.is_long:
            return
        began, times = time.perf_counter(), 0
        while time.perf_counter() - began < max(seconds, 0.05) or times < 2:
            work()
            times += 1
        self._times = max(1, round(times * seconds / (time.perf_counter() - began)))

    def burst(self) -> tuple[float, float]:
        """CPU time and time of a unit, in seconds."""
        work, result, units = self._work, self._newest, self._times * self._units
        before = self._left_out()
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(self._times):
            result = work()
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        self._newest = result
        left_out = self._left_out() - before
        return (cpu - left_out) / units, (wall - left_out) / units


class Measured:
    """A case that is ready.

    Args:
        case: The case.
        quick: Measure as little as possible.
    """

    def __init__(self, case: Case, *, quick: bool) -> None:
        self._bursts = 1 if case.is_long else 3 if quick else _BURSTS
        seconds = _BURST_SECONDS / 2 if quick else _BURST_SECONDS
        self._clocks = {name: Clock(work, case, seconds) for name, work in case.candidates.items()}
        self._number = 0
        if not case.is_long:
            self.round()  # not counted: each chunk is looked into at its first touch

    def round(self) -> dict[str, dict[str, float]]:
        """Seconds of a unit of work, by candidate and clock."""
        names = list(self._clocks)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(self._bursts):
            self._number += 1
            first = self._number % len(names)
            for name in names[first:] + names[:first]:
                taken[name].append(self._clocks[name].burst())
        return {
            name: dict(zip(("cpu", "wall"), np.quantile(times, 0.25, 0).tolist(), strict=True))
            for name, times in taken.items()
        }


def serve(group: str, options: Mapping[str, Any]) -> None:
    """Prepare a group, and measure a case for each line of the standard input: its number."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    with contextlib.ExitStack() as stack:
        quick = bool(options["quick"])
        setting = Setting(quick, options["seconds"], options["folder"], stack)
        try:
            cases = GROUPS[group](setting)
        except ModuleNotFoundError as missing:
            print(f"{group}: not measured, {missing.name} is not installed", file=sys.stderr)
            cases = []
        ready: dict[int, Measured] = {}
        hello = {"uses_core": uses_core(), "cases": [facts(case) for case in cases]}
        print(json.dumps(hello), file=answers, flush=True)
        for line in sys.stdin:
            number = int(line)
            if number not in ready:
                ready[number] = Measured(cases[number], quick=quick)
            print(json.dumps(ready[number].round()), file=answers, flush=True)


def uses_core() -> bool:
    """True if Stepwell uses the compiled core in this process."""
    name = "stepwell.buffers.native"
    if importlib.util.find_spec(name) is None:  # an earlier checkout
        return False
    return importlib.import_module(name).core is not None


def facts(case: Case) -> dict[str, object]:
    """A case without what only its process knows."""
    names = ("name", "goal", "limit", "of", "clock", "limit_path")
    return {name: getattr(case, name) for name in names}


# --- in the first process -------------------------------------------------------------------------


class Worker:
    """The process of a path.

    Args:
        group: Name of the group that it prepares.
        path: Name of the path.
        options: For `serve`.
        changes: Changes of the environment; None removes a name.
    """

    def __init__(
        self,
        group: str,
        path: str,
        options: Mapping[str, Any],
        changes: Mapping[str, str | None],
    ) -> None:
        env = {name: value for name, value in os.environ.items() if name not in changes}
        env |= {name: value for name, value in changes.items() if value is not None}
        command = [sys.executable, __file__, "--serve", group, json.dumps(options)]
        self._what = f"{group}, {path}"
        self._process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def answer(self, question: int | None = None) -> Any:
        """The next answer.

        Raises:
            ChildProcessError: The process failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if question is not None:
            print(question, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"{self._what}: the process failed, as it says above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def has_core() -> bool:
    """True if the core was compiled."""
    return importlib.util.find_spec("stepwell.buffers._native") is not None


def paths_of(options: argparse.Namespace) -> dict[str, dict[str, str | None]]:
    """Changes of the environment, by path."""
    paths: dict[str, dict[str, str | None]] = {"pure": {"STEPWELL_PURE": "1"}}
    if has_core():
        paths["core"] = {"STEPWELL_PURE": None}
    chosen = {name: changes for name, changes in paths.items() if name in options.paths}
    if options.before is not None:
        found = [str(Path(options.before).resolve()), os.environ.get("PYTHONPATH", "")]
        chosen["before"] = {"PYTHONPATH": os.pathsep.join(filter(None, found))}
    return chosen


def measure(
    group: str, options: argparse.Namespace, report: Callable[[str, float], None]
) -> list[dict[str, Any]]:
    """The results of a group.

    Raises:
        ChildProcessError: A process failed, or takes another path than it should.
    """
    given = {"quick": options.quick, "seconds": options.seconds, "folder": options.folder}
    found: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        questions: list[tuple[str, str, Worker, int]] = []
        for path, changes in paths_of(options).items():
            report(f"{group}: preparing {path}", 0.0)
            worker = Worker(group, path, given, changes)
            stack.callback(worker.close)
            hello = worker.answer()
            if path != "before" and (path == "core") != hello["uses_core"]:
                raise ChildProcessError(f"{path}: expected this path, got the other one")
            for number, case in enumerate(hello["cases"]):
                name = f"{case['name']}, {case['of']}"
                found.setdefault(name, {**case, "group": group, "paths": {}})
                questions.append((name, path, worker, number))
        order = {name: place for place, name in enumerate(found)}
        questions.sort(key=lambda question: order[question[0]])  # paths in turns, case by case
        for number in range(options.rounds):
            report(f"{group}: round {number + 1} of {options.rounds}", number / options.rounds)
            for name, path, worker, case_number in questions:
                times = worker.answer(case_number)
                found[name]["paths"].setdefault(path, []).append(times)
    return list(found.values())


def main() -> None:
    """Measure, and print the table."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="ROW",
        choices=list(GROUPS),
        default=list(GROUPS),
        help=f"parts of the table: {', '.join(GROUPS)}",
    )
    parser.add_argument("--rounds", type=int, help="default: 7, and 1 with --quick")
    parser.add_argument("--seconds", type=float, help="of collecting, a round; default: 20")
    parser.add_argument("--quick", action="store_true", help="small data, one short round")
    parser.add_argument("--paths", nargs="+", choices=["pure", "core"], default=["pure", "core"])
    parser.add_argument("--before", metavar="SRC", help="src/ of an earlier checkout, as a column")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--folder", default=".", help="a folder on the disk to be measured")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve[0], json.loads(options.serve[1]))
        return
    options.rounds = options.rounds or (1 if options.quick else 7)
    options.seconds = options.seconds or (0.5 if options.quick else 20.0)
    if "core" in options.paths and not has_core():
        print("core: not measured, stepwell.buffers._native is not compiled", file=sys.stderr)
    failed: list[str] = []
    results: list[dict[str, Any]] = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        line = progress.add_task("", total=len(options.only))
        for done, group in enumerate(options.only):

            def report(what: str, share: float, done: int = done) -> None:
                progress.update(line, description=what, completed=done + share)

            try:
                results += measure(group, options, report)
            except ChildProcessError as error:
                failed.append(str(error))
            if not progress.console.is_terminal:
                print(f"{group}: measured", file=sys.stderr, flush=True)
    machine = rounds.machine(*rounds.installed(*_PACKAGES))
    if options.quick:
        machine = f"--quick: these figures only show that it works; {machine}"
    settings = {"rounds": options.rounds, "seconds": options.seconds}
    figures = {"machine": machine, **settings, "cases": results}
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    if results:
        goals_report.show(figures)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
