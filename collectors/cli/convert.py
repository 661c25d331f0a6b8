"""`stepwell convert`: a folder of memmap-replay-buffer becomes one of Stepwell's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import rich.console
import typer

from stepwell import __version__
from stepwell.collectors.cli.errors import reported
from stepwell.collectors.cli.numbers import number_of_bytes
from stepwell.collectors.cli.options import Debug, Json, Quiet
from stepwell.collectors.cli.progress import LiveLine, Part, packed
from stepwell.collectors.interrupt import InterruptGuard
from stepwell.collectors.report import format_bytes

if TYPE_CHECKING:
    from stepwell.buffers.dropin.memmap.conversion import ConversionReport
    from stepwell.buffers.dropin.memmap.transition_rows import RowNames

__all__ = ["add_convert_command"]

_ROWS = "As rows of transitions, to sample as Collectors' stores"

_Console = rich.console.Console


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """All that was said on the command line."""

    source: Path
    target: Path
    names: RowNames | None
    max_bytes: int | None
    is_quiet: bool
    as_json: bool


def add_convert_command(app: typer.Typer) -> None:
    """Add `convert` to the command line."""
    app.command(name="convert")(convert_folder)


def convert_folder(
    old: Annotated[
        Path,
        typer.Argument(metavar="OLD", help="Folder of a memmap-replay-buffer; it is only read."),
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Where it goes: new, or empty.")],
    *,
    observation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field that actions were chosen from.", rich_help_panel=_ROWS
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field that was chosen.", rich_help_panel=_ROWS),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field with what the action brought.", rich_help_panel=_ROWS
        ),
    ] = None,
    terminated: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Field with 1 where the action ended the MDP; without it no end is known.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    truncated: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Field with 1 where the env's clock ended the episode.",
            rich_help_panel=_ROWS,
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory that an episode may take, such as 8GiB; half of what is free.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn a folder of memmap-replay-buffer into a new one. The old one stays.

    stepwell convert old new
    stepwell convert old rows --observation obs --action act --reward rew

    The first makes a folder for the class that takes the old one's place:
    stepwell.buffers.dropin.memmap.ReplayBuffer.from_folder("new").

    The second makes a store of rows as collect does, to sample transitions and
    sequences from, and for info, verify, merge and the like. Other fields become
    extra/NAME. What an episode ended with was never in the old folder: the row
    for it repeats the observation before, and its info/observed is False.

    Nothing of the old folder is unpickled or run, nothing in it is changed.
    Unfinished episodes are left out, and told.
    """
    with reported(debug, "begin anew"):
        names = _row_names(observation, action, reward, terminated, truncated)
        most = None if max_bytes is None else number_of_bytes("--max-bytes", max_bytes)
        _convert(
            _Job(
                source=old,
                target=new,
                names=names,
                max_bytes=most,
                is_quiet=quiet,
                as_json=as_json,
            )
        )


def _row_names(
    observation: str | None,
    action: str | None,
    reward: str | None,
    terminated: str | None,
    truncated: str | None,
) -> RowNames | None:
    """What the fields are, where that was said.

    Raises:
        ValueError: Only a part of it was.
    """
    given = {"--observation": observation, "--action": action, "--reward": reward}
    missing = [option for option, name in given.items() if name is None]
    flags = [name for name in (terminated, truncated) if name is not None]
    if len(missing) == len(given) and not flags:
        return None
    if observation is None or action is None or reward is None:
        raise ValueError(
            f"{missing[0]}: expected --observation, --action and --reward together, got none for "
            f"{missing[0]}; name all three, or none for a folder like the old one"
        )
    from stepwell.buffers.dropin.memmap.transition_rows import RowNames  # few commands need it

    return RowNames(
        observation=observation,
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
    )


def _convert(job: _Job) -> None:
    # Few commands need them.
    from stepwell.buffers.dropin.memmap.conversion import convert, convert_to_rows
    from stepwell.buffers.dropin.memmap.original import OriginalFolder

    screen = _Console(stderr=True, quiet=job.is_quiet or job.as_json)
    with LiveLine(screen) as line:
        line.say(f"looking at {job.source} ...")
        original = OriginalFolder(job.source, max_bytes=job.max_bytes)
        with InterruptGuard() as guard:

            def progress(report: ConversionReport) -> None:
                line.show(_progress_parts(report))
                guard.check()

            if job.names is None:
                report = convert(original, job.target, progress=progress)
            else:
                versions = {"stepwell": __version__, "numpy": np.__version__}
                facts = {"command": "convert", "versions": versions}
                report = convert_to_rows(
                    original, job.target, job.names, facts=facts, progress=progress
                )
            guard.finish()
    _tell(job, report)


def _progress_parts(report: ConversionReport) -> list[Part]:
    """The live line: how far, how long still."""
    fraction = report.steps / max(1, report.source_steps)
    left = report.seconds * (1 - fraction) / max(fraction, 1e-9)
    return [
        Part(f"{fraction:4.0%}", 3, "bold"),
        Part(f"{report.steps:,} / {report.source_steps:,} steps"),
        Part(f"{report.episodes:,} episodes", 2),
        Part(f"{left:,.0f} s left", 1, "bold"),
    ]


def _tell(job: _Job, report: ConversionReport) -> None:
    if job.as_json:
        said = {**report.to_json(), "source": str(job.source), "path": str(job.target)}
        _Console(soft_wrap=True).out(json.dumps(said), highlight=False)
        return
    if job.is_quiet:
        return
    console = _Console(emoji=False, highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else 1000
    for line in packed(_summary(report), width):
        console.print(line)
    for text in (*_notes(job, report), *_next_steps(job, report)):
        console.print(text, markup=False)


def _summary(report: ConversionReport) -> list[Part]:
    before = format_bytes(report.source_disk_bytes)
    if report.source_disk_bytes < report.source_bytes:
        before += f" (of files of {format_bytes(report.source_bytes)})"
    return [
        Part(_plural(report.episodes, "episode"), style="bold"),
        Part(_plural(report.steps, "step"), style="bold"),
        Part(f"{before} -> {format_bytes(report.disk_bytes)} on disk"),
        Part(f"{report.seconds:,.1f} s"),
    ]


def _notes(job: _Job, report: ConversionReport) -> Sequence[str]:
    """What is not as one may think."""
    notes = [
        note if note.startswith("not left out") else f"left out: {note}" for note in report.left_out
    ]
    if job.names is not None and report.episodes != report.source_episodes:
        notes.append(
            f"{_plural(report.source_episodes, 'episode')} of the old folder became "
            f"{report.episodes:,}: flags end some before their last step"
        )
    if job.names is not None and job.names.terminated is None and job.names.truncated is None:
        notes.append(
            "every episode ends with a cut, as no field was named that tells how it ended "
            "(--terminated, --truncated)"
        )
    return [f"  {note}" for note in notes]


def _next_steps(job: _Job, report: ConversionReport) -> Sequence[str]:
    """Where it is and how to look at it."""
    if job.names is not None:
        return [f"in {job.target}", f"  look at it: stepwell info {job.target}"]
    return [
        f"in {job.target}",
        f"  use it: from stepwell.buffers.dropin.memmap import ReplayBuffer; "
        f'ReplayBuffer.from_folder("{job.target}")',
        *([f"  look at its rows: stepwell info {report.store}"] if report.episodes else []),
    ]


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
