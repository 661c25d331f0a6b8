"""`stepwell verify` and `stepwell repair`: compare checksums, and repair a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ...buffers import RepairReport, VerifyReport, repair, verify
from ...buffers.base.progress import bytes_status
from ...buffers.storage.disk.publish import check_complete
from ...buffers.storage.disk.snapshot import Recovery
from ...buffers.storage.disk.verify import Damage
from ..loop.report import format_bytes
from .errors import exit_on_error
from .make_envs import AtariBackend
from .options import (
    PLAYING,
    Cartridge,
    Debug,
    Json,
    Lanes,
    MadeBy,
    PlayedIds,
    Quiet,
)
from .output import LiveLine, print_json, print_lines
from .replayed import ReplayOptions, ReplayReport, replay_store

__all__ = ["DAMAGED", "repair_store", "verify_stores"]

DAMAGED = 1
"""Exit code: the store is damaged."""

_Report = TypeVar("_Report")


def verify_stores(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of stores.")],
    *,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Play the episodes again and compare every row with what the env shows.",
        ),
    ] = False,
    episodes: PlayedIds = None,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Only N of them, the same ones each time.", rich_help_panel=PLAYING
        ),
    ] = None,
    lanes: Lanes = None,
    env: MadeBy = None,
    rom: Cartridge = None,
    backend: Annotated[
        AtariBackend | None,
        typer.Option(
            metavar="NAME",
            help="Play an Atari game on another backend than the recorded one: native or python.",
            rich_help_panel=PLAYING,
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare every checksum of a store. Nothing is changed; it may be in use.

    stepwell verify runs/pong
    stepwell verify runs/*
    stepwell verify --replay runs/pong     play its episodes again, too

    Exit codes: 0 every byte is what was written, 1 it is not, and each damaged place is printed.
    With --replay: 0 every row is what the env showed, 1 a row is not, 3 some cannot be played.
    """
    codes: set[int] = set()
    with exit_on_error(debug, "nothing was changed"):
        options = ReplayOptions.parse(
            is_asked=replay,
            episodes=episodes,
            sample=sample,
            lanes=lanes,
            env=env,
            rom=rom,
            backend=backend,
        )
        for folder in folders:
            report = _with_progress(folder, quiet or as_json, partial(verify, folder))
            codes.add(0 if report.is_whole else DAMAGED)
            if not as_json and (not quiet or not report.is_whole):
                print_lines(_verify_lines(report))
            replayed: ReplayReport | None = None
            if options is not None and report.is_whole:
                replayed = replay_store(folder, options, is_silent=quiet or as_json)
                codes.add(replayed.exit_code)
                if not as_json and (not quiet or replayed.exit_code):
                    print_lines(replayed.lines())
            if as_json:
                more = {} if replayed is None else {"replay": replayed.to_json()}
                print_json({**_verify_json(report), **more})
    if DAMAGED in codes:
        raise typer.Exit(DAMAGED)
    if any(codes):
        raise typer.Exit(max(codes))


def repair_store(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a store.")],
    *,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Remove what is damaged. Without it damage is only reported."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Recover a store after a crash, and remove damaged chunks.

    stepwell repair runs/pong          finish what a crash interrupted, report damage
    stepwell repair runs/pong --yes    remove the damaged chunks too

    Nothing is deleted: the files as they were before are kept in DIR/damaged.
    Exit codes: 0 the store is in order, 1 it is damaged and --yes is needed.
    """
    with exit_on_error(debug, "run it again"):
        is_silent = quiet or as_json
        report = _with_progress(folder, is_silent, partial(repair, folder, yes=yes))
        if as_json:
            print_json(_repair_json(report))
        elif not quiet or not report.is_done:
            print_lines(_repair_lines(report))
    if not report.is_done:
        raise typer.Exit(DAMAGED)


def _with_progress(folder: Path, is_silent: bool, work: Callable[..., _Report]) -> _Report:
    """Do the work, which takes ``progress``, with a live line."""
    check_complete(folder)
    with LiveLine(is_silent=is_silent) as line:
        return work(progress=line.reporter(bytes_status(str(folder))))


def _verify_lines(report: VerifyReport) -> list[str]:
    found = [_damage_line(damage) for damage in report.damages]
    whole = (
        f"{report.path}: {'whole' if report.is_whole else 'DAMAGED'}, {report.episodes:,} episodes,"
        f" {report.rows:,} rows, {report.chunks:,} chunks in {report.segments:,} files, "
        f"{format_bytes(report.nbytes)} compared"
    )
    lines = [*found, whole, *_recovery_lines(report.recovery, "the next writer restores them")]
    if report.lost_chunks:
        lines.append(f"  {report.lost_chunks:,} chunks were removed by an earlier repair")
    if report.ignored:
        lines.append(f"  {report.ignored}")
    if found:
        lines.append(f"  to repair it: stepwell repair {report.path}")
    return lines


def _repair_lines(report: RepairReport) -> list[str]:
    lines = [_damage_line(damage) for damage in report.damages]
    if not report.is_done:
        lost = _lost_rows(report.damages)
        return [
            *lines,
            f"{report.path}: nothing was changed; --yes removes what is damaged ({lost}) and "
            f"keeps the files as they are in {report.path / 'damaged'}",
        ]
    what = f"removed: {_lost_rows(report.damages)}" if report.damages else "nothing was damaged"
    lines += [f"{report.path}: in order; {what}"]
    lines += _recovery_lines(report.recovery, "restored")
    if report.kept:
        lines.append(
            f"  the files as they were: {', '.join(map(str, report.kept))}; you may delete them"
        )
    return lines


def _damage_line(damage: Damage) -> str:
    return f"- {damage.what}" + (" (nothing is lost)" if damage.is_harmless else "")


def _lost_rows(damages: Sequence[Damage]) -> str:
    """Return how many rows the damage affects."""
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
        "ignored": report.ignored,
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
