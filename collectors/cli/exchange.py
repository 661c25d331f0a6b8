"""`stepwell export` and `stepwell import`: data sets in other libraries' formats."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import rich.console

from stepwell import __version__
from stepwell.buffers import Codec, SequenceReplayBuffer
from stepwell.buffers.curation.stored_episode import StoredEpisode
from stepwell.buffers.free_memory import free_memory
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.cli.progress import LiveLine, Part, packed
from stepwell.collectors.interrupt import InterruptGuard
from stepwell.collectors.report import format_bytes

if TYPE_CHECKING:
    from stepwell.buffers.bridges.formats.exporting import ExportReport
    from stepwell.buffers.bridges.formats.importing import ImportReport

__all__ = ["ExportJob", "ImportJob", "export_store", "import_data", "options_of"]

_Console = rich.console.Console


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """All that was said on the command line.

    Args:
        source: Folder of the store to read.
        to: Name of the format.
        out: What the new data set is called, as the format wants it.
        options: Options of the format, as text.
        keep: Which episodes to write; None for all.
        is_dry: Show what would be done, and write nothing.
        is_quiet: Show neither progress nor summary.
        as_json: Print one JSON object instead of the summary.
    """

    source: Path
    to: str
    out: str
    options: Mapping[str, object]
    keep: Callable[[StoredEpisode], bool] | None
    is_dry: bool
    is_quiet: bool
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportJob:
    """All that was said on the command line.

    Args:
        source: What the data set is called, as its format wants it.
        from_: Name of the format.
        out: Folder of the new store; not needed for a dry run.
        options: Options of the format, as text.
        codecs: How to keep fields, by name.
        max_bytes: Memory that one episode may unpack to; None for half of what is free.
        is_dry: Read and check everything, and write nothing.
        is_quiet: Show neither progress nor summary.
        as_json: Print one JSON object instead of the summary.
    """

    source: str
    from_: str
    out: Path | None
    options: Mapping[str, object]
    codecs: Mapping[str, Codec] = field(default_factory=dict[str, Codec])
    max_bytes: int | None = None
    is_dry: bool
    is_quiet: bool
    as_json: bool


def options_of(texts: Sequence[str]) -> dict[str, object]:
    """Read options of a format, as they are written on a command line.

    Raises:
        ValueError: A text is no name with a value, or a name stands twice.

    Example:
        >>> options_of(["data_format=arrow", "stack=false"])
        {'data_format': 'arrow', 'stack': 'false'}
    """
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(
                f"--option: expected NAME=VALUE such as stack=false, got {text!r}; write both"
            )
        if name in found:
            raise ValueError(
                f"--option: expected each name once, got {name!r} twice; leave one out"
            )
        found[name] = value
    return found


def export_store(job: ExportJob) -> None:
    """Write the data set, or show what would be in it.

    Raises:
        ValueError: Something in the job makes no sense; nothing was written.
        StepwellError: There is no store, or it is damaged.
    """
    # Few commands need it.
    from stepwell.buffers.bridges.formats.exporting import export_episodes

    with (
        SequenceReplayBuffer.open(job.source, read_only=True) as replay,
        LiveLine(_screen(job)) as line,
        InterruptGuard() as guard,
    ):
        line.say(f"looking at {job.source} ...")
        before = replay.nbytes

        def progress(report: ExportReport) -> None:
            total = report.chosen_steps, report.chosen_episodes
            line.show(_progress_parts(report.steps, report.episodes, total, report.seconds))
            guard.check()

        report = export_episodes(
            replay,
            job.to,
            job.out,
            options=job.options,
            keep=job.keep,
            dry_run=job.is_dry,
            progress=progress,
        )
        guard.finish()
    if job.as_json:
        _say_json({**report.to_json(), "source": str(job.source), "source_disk_bytes": before})
    elif not job.is_quiet:
        _tell(*_of_export(job, report, before))


def import_data(job: ImportJob) -> None:
    """Read the data set into a new store, or show what is in it.

    Raises:
        ValueError: Something in the job makes no sense, or the data set is not what it should be;
            nothing was written.
    """
    # Few commands need it.
    from stepwell.buffers.bridges.formats.importing import import_episodes

    if job.out is None and not job.is_dry:
        raise ValueError(
            "expected --out with the folder of the new store, or --dry-run, got neither: give one"
        )
    if job.out is not None and DiskStorage.exists(job.out):
        raise ValueError(
            f"--out {job.out} holds a store already: expected a new or empty folder; choose "
            f"another folder"
        )
    with (
        LiveLine(_screen(job)) as line,
        InterruptGuard() as guard,
        contextlib.ExitStack() as stack,
    ):
        line.say(f"looking at {job.source} ...")

        def progress(report: ImportReport) -> None:
            total = report.source_steps, report.source_episodes
            line.show(_progress_parts(report.steps, report.episodes, total, report.seconds))
            guard.check()

        def read(replay: SequenceReplayBuffer) -> ImportReport:
            versions = {"stepwell": __version__, "numpy": np.__version__}
            return import_episodes(
                job.from_,
                job.source,
                replay,
                options=job.options,
                facts={"command": "import", "versions": versions},
                max_bytes=job.max_bytes,
                dry_run=job.is_dry,
                progress=progress,
            )

        stack.enter_context(_memory_bounded())
        if job.is_dry or job.out is None:
            report = read(SequenceReplayBuffer())
        else:
            with SequenceReplayBuffer(job.out, codecs=job.codecs) as replay:
                report = read(replay)
        guard.finish()
    if job.as_json:
        out = {} if job.is_dry else {"path": str(job.out)}
        _say_json({**report.to_json(), **out})
    elif not job.is_quiet:
        _tell(*_of_import(job, report))


@contextlib.contextmanager
def _memory_bounded() -> Generator[None]:
    """Let this process take the memory that is free, and no more.

    Most files tell what they unpack to before they are unpacked. Where one lies, and a library
    believes it, the library is told that there is no memory, before others are. Linux alone knows
    such a bound.
    """
    status = Path("/proc/self/status")
    found = re.search(r"VmData:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if found is None:
        yield
        return
    import resource  # not on every system

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(found[1]) * 1024 + free_memory()
    bounds = [bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most, *bounds]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _screen(job: ExportJob | ImportJob) -> _Console:
    return _Console(stderr=True, quiet=job.is_quiet or job.as_json)


def _progress_parts(
    steps: int, episodes: int, total: tuple[int | None, int | None], seconds: float
) -> list[Part]:
    """The live line: how far, and how long still where that is known."""
    all_steps, all_episodes = total
    if all_steps:
        fraction: float | None = steps / all_steps
    else:
        fraction = episodes / all_episodes if all_episodes else None
    parts = [Part(f"{fraction:4.0%}", 3, "bold")] if fraction is not None else []
    parts += [
        Part(f"{steps:,} steps" if not all_steps else f"{steps:,} / {all_steps:,} steps"),
        Part(
            f"{episodes:,} episodes"
            if not all_episodes
            else f"{episodes:,} / {all_episodes:,} episodes",
            2,
        ),
    ]
    if fraction:
        parts.append(Part(f"{seconds * (1 - fraction) / fraction:,.0f} s left", 1, "bold"))
    return parts


def _of_export(
    job: ExportJob, report: ExportReport, before: int
) -> tuple[list[Part], Sequence[str]]:
    """The summary, and the lines below it."""
    if job.is_dry:
        parts = [
            Part(f"would write {_plural(report.chosen_episodes, 'episode')}", style="bold"),
            Part(_plural(report.chosen_steps, "step"), style="bold"),
            Part(f"{format_bytes(before)} on disk now"),
            Part(f"to {report.path}"),
        ]
        return parts, [
            *(f"  note: {note}" for note in report.notes),
            "nothing was written: leave out --dry-run for that",
        ]
    parts = [
        Part(_plural(report.episodes, "episode"), style="bold"),
        Part(_plural(report.steps, "step"), style="bold"),
        Part(f"{format_bytes(before)} -> {format_bytes(report.disk_bytes)} on disk"),
        Part(f"{report.seconds:,.1f} s"),
    ]
    return parts, [
        f"in {report.path}",
        *(f"  note: {note}" for note in report.notes),
        "  load it:",
        *(f"    {text}" for text in report.loading.splitlines()),
    ]


def _of_import(job: ImportJob, report: ImportReport) -> tuple[list[Part], Sequence[str]]:
    """The summary, and the lines below it."""
    parts = [
        Part(f"{_plural(report.episodes, 'episode')}{' read' * job.is_dry}", style="bold"),
        Part(_plural(report.steps, "step"), style="bold"),
    ]
    notes = [f"  note: {note}" for note in report.notes]
    if job.is_dry:
        fields = [f"  {text}" for text in report.fields]
        return parts, [*fields, *notes, "nothing was written: leave out --dry-run for that"]
    parts += [
        Part(f"{format_bytes(report.raw_bytes)} of rows -> {format_bytes(report.stored_bytes)}"),
        Part(f"{report.seconds:,.1f} s"),
        Part(f"digest {report.digest}"),
    ]
    return parts, [f"in {job.out}", *notes, f"  look at it: stepwell info {job.out}"]


def _tell(parts: Sequence[Part], lines: Sequence[str]) -> None:
    console = _Console(emoji=False, highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else 1000
    for line in packed(parts, width):
        console.print(line)
    for text in lines:
        console.print(text, markup=False)


def _say_json(said: Mapping[str, object]) -> None:
    _Console(soft_wrap=True).out(json.dumps(said), highlight=False)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
