"""`stepwell copy`, `merge`, `filter` and `drop`: from stores that are there to a new one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import rich.console

from stepwell.buffers import Codec, SequenceReplayBuffer
from stepwell.buffers.curation.copy import CopyReport, copy_episodes
from stepwell.buffers.curation.stored_episode import StoredEpisode
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.cli.facts import disk_bytes_of, size_in_words
from stepwell.collectors.cli.progress import LiveLine, Part, packed
from stepwell.collectors.interrupt import InterruptGuard
from stepwell.collectors.report import format_bytes

if TYPE_CHECKING:
    from stepwell.buffers.curation.repeated_episodes import Duplicates

__all__ = ["CopyJob", "codecs_of", "copy_stores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyJob:
    """All that was said on the command line.

    Args:
        command: Its name.
        sources: Folders of the stores to read.
        out: Folder of the new store.
        keep: Which episodes to copy; None for all.
        conditions: The same as plain data, to be noted with the copy.
        any_envs: Let the sources' envs differ.
        duplicates: What to do with an episode that several sources hold.
        codecs: How to keep fields, by name.
        is_quiet: Show neither progress nor summary.
        as_json: Print one JSON object instead of the summary.
    """

    command: str
    sources: Sequence[Path]
    out: Path
    keep: Callable[[StoredEpisode], bool] | None = None
    conditions: Mapping[str, object] = field(default_factory=dict[str, object])
    any_envs: bool = False
    duplicates: str = "refuse"
    codecs: Mapping[str, Codec] = field(default_factory=dict[str, Codec])
    is_quiet: bool = False
    as_json: bool = False


def copy_stores(job: CopyJob) -> None:
    """Copy, and say what came of it.

    Raises:
        ValueError: Something in the job makes no sense; nothing was written.
        StepwellError: The stores do not fit together, or one is damaged.
    """
    if DiskStorage.exists(job.out):
        raise ValueError(
            f"--out {job.out} holds a store already: expected a new or empty folder; choose "
            f"another folder"
        )
    screen = rich.console.Console(stderr=True, quiet=job.is_quiet or job.as_json)
    with contextlib.ExitStack() as stack:
        sources = [
            stack.enter_context(SequenceReplayBuffer.open(path, read_only=True))
            for path in job.sources
        ]
        before = sum(disk_bytes_of(path) for path in job.sources)
        line = stack.enter_context(LiveLine(screen))
        line.say(f"looking at {_names(job.sources)} ...")
        target = stack.enter_context(SequenceReplayBuffer(job.out, codecs=job.codecs))
        report = _copy(job, sources, target, line)
    _tell(job, report, before, disk_bytes_of(job.out))


def codecs_of(option: str, texts: Sequence[str]) -> dict[str, Codec]:
    """Read how fields are to be kept.

    Raises:
        ValueError: A text is no field's name with a codec.

    Example:
        >>> codecs_of("--codec", ["observation=raw", "action=narrow"])
        {'observation': 'raw', 'action': 'narrow'}
    """
    known: dict[str, Codec] = {"zstd": "zstd", "narrow": "narrow", "raw": "raw"}
    found: dict[str, Codec] = {}
    for text in texts:
        name, _, codec = text.partition("=")
        if not name or codec not in known:
            raise ValueError(
                f"{option}: expected FIELD=CODEC with zstd, narrow or raw, such as "
                f"observation=raw, got {text!r}: mend that"
            )
        found[name] = known[codec]
    return found


def _copy(
    job: CopyJob,
    sources: Sequence[SequenceReplayBuffer],
    target: SequenceReplayBuffer,
    line: LiveLine,
) -> CopyReport:
    """Copy; Ctrl-C ends it between two writes, and leaves nothing."""
    with InterruptGuard() as guard:

        def progress(report: CopyReport) -> None:
            line.show(_progress_parts(report))
            guard.check()

        conditions = {"conditions": dict(job.conditions)} if job.conditions else {}
        report = copy_episodes(
            sources,
            target,
            keep=job.keep,
            any_envs=job.any_envs,
            duplicates=cast("Duplicates", job.duplicates),
            facts={"command": job.command, **conditions},
            progress=progress,
        )
        guard.finish()
    return report


def _progress_parts(report: CopyReport) -> list[Part]:
    """The live line: how far, how fast, how long still."""
    fraction = report.steps / max(1, report.chosen_steps)
    left = report.seconds * (1 - fraction) / max(fraction, 1e-9)
    return [
        Part(f"{fraction:4.0%}", 3, "bold"),
        Part(f"{report.steps:,} / {report.chosen_steps:,} steps"),
        Part(f"{report.episodes:,} / {report.chosen_episodes:,} episodes", 2),
        Part(f"{format_bytes(report.raw_bytes / max(report.seconds, 1e-9))}/s", 4),
        Part(f"{left:,.0f} s left", 1, "bold"),
    ]


def _tell(job: CopyJob, report: CopyReport, before: int, after: int) -> None:
    if job.as_json:
        said = {
            "sources": [str(path) for path in job.sources],
            "path": str(job.out),
            "source_disk_bytes": before,
            "disk_bytes": after,
        }
        rich.console.Console(soft_wrap=True).out(
            json.dumps({**report.to_json(), **said}), highlight=False
        )
    elif not job.is_quiet:
        console = rich.console.Console(emoji=False, highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else 1000
        for parts in _summary(job, report, before, after):
            for line in packed(parts, width):
                console.print(line)


def _summary(job: CopyJob, report: CopyReport, before: int, after: int) -> list[list[Part]]:
    total = report.episodes + report.left_out_episodes
    of_all = f" of {total:,}" if report.left_out_episodes else ""
    first = [
        Part(f"{report.episodes:,}{of_all} episodes", style="bold"),
        Part(f"{report.steps:,} steps", style="bold"),
    ]
    if report.left_out_episodes:
        first.append(Part(f"{report.left_out_steps:,} steps left out"))
    if report.duplicate_episodes:
        first.append(Part(f"{report.duplicate_episodes:,} of them duplicates", style="yellow"))
    if report.late_starts:
        first.append(Part(f"{report.late_starts:,} without beginning", style="yellow"))
    first += [
        Part(f"{format_bytes(before)} -> {format_bytes(after)} on disk"),
        *map(Part, size_in_words(after, report.raw_bytes)[1:]),
        Part(f"{report.seconds:,.1f} s"),
    ]
    if report.seconds >= 1:  # else it tells more of the disk than of the rows
        first.append(Part(f"{format_bytes(report.raw_bytes / report.seconds)}/s of rows"))
    return [first, [Part(f"in {job.out}", style="bold"), Part(f"digest {report.digest}")]]


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
