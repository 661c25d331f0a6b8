"""`stepwell verify` and `stepwell repair`: is a store what was written, and what to do if not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import rich.console
import typer

from stepwell.buffers import RepairReport, VerifyReport, repair, verify
from stepwell.buffers.storage.disk.publish import check_complete
from stepwell.buffers.storage.disk.verify import Damage
from stepwell.buffers.storage.disk.view import Recovery
from stepwell.collectors.cli.errors import reported
from stepwell.collectors.cli.options import Debug, Json, Quiet
from stepwell.collectors.cli.progress import LiveLine
from stepwell.collectors.report import format_bytes

__all__ = ["add_health_commands"]

DAMAGED = 1
"""Exit code: a store is not what was written."""

_REDRAW_SECONDS = 0.1

_Console = rich.console.Console
_Report = TypeVar("_Report")


def add_health_commands(app: typer.Typer) -> None:
    """Add `verify` and `repair` to the command line."""
    app.command(name="verify")(verify_stores)
    app.command(name="repair")(repair_store)


def verify_stores(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of stores.")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare every checksum of a store; it may be written into meanwhile. Nothing is changed.

    stepwell verify runs/pong
    stepwell verify runs/*

    Exit code 0: every byte is what was written; 1: it is not, and each place is told.
    """
    is_whole = True
    with reported(debug, "nothing was changed"):
        for folder in folders:
            report = _verified(folder, quiet or as_json)
            is_whole &= report.is_whole
            if as_json:
                _print_json(_verify_json(report))
            elif not quiet or not report.is_whole:
                _say(_verify_lines(report))
    if not is_whole:
        raise typer.Exit(DAMAGED)


def repair_store(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a store.")],
    *,
    yes: Annotated[
        bool,
        typer.Option("--yes", metavar="", help="Take out what is damaged; else it is only told."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Bring a store in order after a crash, and take out what is damaged.

    stepwell repair runs/pong          # heals, seals; tells what is damaged
    stepwell repair runs/pong --yes    # takes it out, too

    Nothing is deleted: damaged files are kept in DIR/damaged. Exit code 1: --yes is needed.
    """
    with reported(debug, "run it again"):
        is_silent = quiet or as_json
        report = _watched(folder, is_silent, lambda on: repair(folder, yes=yes, on_bytes=on))
        if as_json:
            _print_json(_repair_json(report))
        elif not quiet or not report.is_done:
            _say(_repair_lines(report))
    if not report.is_done:
        raise typer.Exit(DAMAGED)


def _verified(folder: Path, is_silent: bool) -> VerifyReport:
    return _watched(folder, is_silent, lambda on_bytes: verify(folder, on_bytes=on_bytes))


def _watched(
    folder: Path, is_silent: bool, work: Callable[[Callable[[int], None]], _Report]
) -> _Report:
    """Do the work, with a line that shows how far it has come."""
    check_complete(folder)
    total = sum(path.stat().st_size for path in folder.glob("segment-*.bin"))
    done, due = 0, 0.0
    with LiveLine(_Console(stderr=True, quiet=is_silent)) as line:

        def show(nbytes: int) -> None:
            nonlocal done, due
            done += nbytes
            if time.perf_counter() >= due:  # a chunk may be read faster than a line is drawn
                line.say(f"{folder}  {format_bytes(done)} of {format_bytes(total)}")
                due = time.perf_counter() + _REDRAW_SECONDS

        return work(show)


def _verify_lines(report: VerifyReport) -> list[str]:
    found = [_damage_line(damage) for damage in report.damages]
    whole = (
        f"{report.path}: {'whole' if report.is_whole else 'DAMAGED'}, {report.episodes:,} episodes,"
        f" {report.rows:,} rows, {report.chunks:,} chunks in {report.segments:,} files, "
        f"{format_bytes(report.nbytes)} compared"
    )
    lines = [*found, whole, *_recovery_lines(report.recovery, "the next writer brings in order")]
    if report.lost_chunks:
        lines.append(f"  {report.lost_chunks:,} chunks were taken out by an earlier repair")
    if found:
        lines.append(f"  what can be done: stepwell repair {report.path}")
    return lines


def _repair_lines(report: RepairReport) -> list[str]:
    lines = [_damage_line(damage) for damage in report.damages]
    if not report.is_done:
        gone = _gone(report.damages)
        return [
            *lines,
            f"{report.path}: nothing was changed; --yes takes out what is damaged ({gone}) and "
            f"keeps the files as they are now in {report.path / 'damaged'}",
        ]
    what = f"taken out: {_gone(report.damages)}" if report.damages else "nothing was damaged"
    lines += [f"{report.path}: in order; {what}"]
    lines += _recovery_lines(report.recovery, "was brought in order")
    if report.kept:
        lines.append(f"  as they were: {', '.join(map(str, report.kept))}; remove them if you like")
    return lines


def _damage_line(damage: Damage) -> str:
    return f"- {damage.what}" + (" (nothing is lost by it)" if damage.is_harmless else "")


def _gone(damages: Sequence[Damage]) -> str:
    """How much the damage costs."""
    rows = sum(damage.rows or 0 for damage in damages)
    unknown = sum(damage.rows is None and not damage.is_harmless for damage in damages)
    known = f"{rows:,} rows"
    return f"{known}, and {unknown} places of unknown size" if unknown else known


def _recovery_lines(recovery: Recovery, what: str) -> list[str]:
    lines: list[str] = []
    if recovery.healed:
        lines.append(f"  {recovery.healed:,} second copies were missing or damaged: {what}")
    if recovery.torn:
        lines.append(f"  {recovery.torn:,} chunks of a flush that never returned: left out")
    return lines


def _say(lines: Sequence[str]) -> None:
    console = _Console(emoji=False, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line, markup=False)


def _print_json(value: dict[str, object]) -> None:
    _Console(soft_wrap=True).out(json.dumps(value), highlight=False)


def _verify_json(report: VerifyReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "is_whole": report.is_whole,
        "damages": _damages_json(report.damages),
        "healed": report.recovery.healed,
        "torn": report.recovery.torn,
        "episodes": report.episodes,
        "rows": report.rows,
        "chunks": report.chunks,
        "segments": report.segments,
        "compared_bytes": report.nbytes,
        "lost_chunks": report.lost_chunks,
    }


def _repair_json(report: RepairReport) -> dict[str, object]:
    return {
        "path": str(report.path),
        "is_done": report.is_done,
        "damages": _damages_json(report.damages),
        "healed": report.recovery.healed,
        "torn": report.recovery.torn,
        "kept": [str(path) for path in report.kept],
    }


def _damages_json(damages: Sequence[Damage]) -> list[dict[str, object]]:
    return [
        {
            "file": str(damage.path),
            "what": damage.what,
            "chunk": damage.slot,
            "rows": damage.rows,
            "is_harmless": damage.is_harmless,
        }
        for damage in damages
    ]
