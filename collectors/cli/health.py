"""`stepwell verify` and `stepwell repair`: compare checksums, and repair a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ...buffers import RepairReport, SequenceReplayBuffer, VerifyReport, repair, verify
from ...buffers.base.progress import Status, bytes_status
from ...buffers.storage.disk.publish import check_complete
from ...buffers.storage.disk.snapshot import Recovery
from ...buffers.storage.disk.verify import Damage
from ..loop.report import format_bytes
from .game_options import AGAIN, PLAYED_IDS, with_playing
from .make_envs import AtariBackend
from .options import Row, count_in, format_ids, ids_in, stored_ids
from .output import Output, Part, plural, print_json, print_lines, with_output

if TYPE_CHECKING:
    from ..simulation.resimulate import EpisodeProof

DAMAGED = 1
"""Exit code: the store is damaged."""

_REPLAYED = {
    **PLAYED_IDS,
    "sample": Row("N", "Only N of them, the same ones each time.", count_in),
    **AGAIN,
    "backend": Row(
        "NAME",
        "Play an Atari game on another backend than the recorded one: native or python.",
        of=AtariBackend,
    ),
}

_Report = TypeVar("_Report")


@with_output("nothing was changed")
@with_playing(_REPLAYED)
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
    again: dict[str, Any],
    output: Output,
) -> None:
    """Compare every checksum of a store. Nothing is changed; it may be in use.

    stepwell verify runs/pong
    stepwell verify runs/*
    stepwell verify --replay runs/pong     play its episodes again, too

    Exit codes: 0 every byte is what was written, 1 it is not, and each damaged
    place is printed.
    With --replay: 0 every row is what the env showed, 1 a row is not, 3 some
    cannot be played.
    """
    codes: set[int] = set()
    if again and not replay:
        raise ValueError(
            f"--{next(iter(again))}: expected --replay with it, got none; add --replay"
        )
    if again.get("backend") == "auto":
        raise ValueError("--backend: expected native or python, got auto; name one")
    for folder in folders:
        report = _with_progress(folder, output, partial(verify, folder))
        codes.add(0 if report.is_whole else DAMAGED)
        if not output.as_json and (not output.quiet or not report.is_whole):
            print_lines(*_verify_lines(report))
        replayed: ReplayReport | None = None
        if replay and report.is_whole:
            replayed = replay_store(folder, again, output)
            codes.add(replayed.exit_code)
            if not output.as_json and (not output.quiet or replayed.exit_code):
                print_lines(*replayed.lines())
        if output.as_json:
            more = {} if replayed is None else {"replay": replayed.to_json()}
            print_json({**_verify_json(report), **more})
    if DAMAGED in codes:
        raise typer.Exit(DAMAGED)
    if any(codes):
        raise typer.Exit(max(codes))


@with_output("run it again")
def repair_store(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a store.")],
    *,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Remove what is damaged. Without it damage is only reported."),
    ] = False,
    output: Output,
) -> None:
    """Recover a store after a crash, and remove damaged chunks.

    stepwell repair runs/pong        finish what a crash interrupted, see damage
    stepwell repair runs/pong --yes  remove the damaged chunks too

    Nothing is deleted: the files as they were before are kept in DIR/damaged.
    Exit codes: 0 the store is in order, 1 it is damaged and --yes is needed.
    """
    report = _with_progress(folder, output, partial(repair, folder, yes=yes))
    kept = {"kept": [str(path) for path in report.kept]}
    facts = {**_report_json(report, {"is_done": report.is_done}), **kept}
    output.show(facts, *_repair_lines(report), always=not report.is_done)
    if not report.is_done:
        raise typer.Exit(DAMAGED)


def _with_progress(folder: Path, output: Output, work: Callable[..., _Report]) -> _Report:
    """Do the work, which takes ``progress``, with a live line."""
    check_complete(folder)
    with output.line() as line:
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
        **_report_json(report, {"is_whole": report.is_whole}),
        "episodes": report.episodes,
        "rows": report.rows,
        "chunks": report.chunks,
        "segments": report.segments,
        "compared_bytes": report.nbytes,
        "lost_chunks": report.lost_chunks,
        "ignored": report.ignored,
    }


def _report_json(
    report: VerifyReport | RepairReport, verdict: Mapping[str, bool]
) -> dict[str, object]:
    """The facts that both reports have."""
    damages = [
        {
            "file": str(damage.path),
            "what": damage.what,
            "chunk": damage.slot,
            "rows": damage.rows,
            "is_harmless": damage.is_harmless,
        }
        for damage in report.damages
    ]
    recovery = {"healed": report.recovery.healed, "torn": report.recovery.torn}
    return {"path": str(report.path), **verdict, "damages": damages, **recovery}


DIFFERS, UNREACHABLE = 1, 3
"""Exit codes: a row is not what the env showed; episodes cannot be played again."""

_MOST_LINES, _IDS_LENGTH = 20, 60


@dataclass(slots=True)
class ReplayReport:
    """The result of the replay of a store."""

    path: Path
    equal: int = 0  # episodes that are proved
    rows: int = 0  # of these episodes
    played_steps: int = 0
    seconds: float = 0.0
    # The proofs of episodes that differ
    differing: list[EpisodeProof] = field(default_factory=lambda: list["EpisodeProof"]())
    # Ids of episodes that cannot be played, by the reason
    unreachable: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    unreachable_rows: int = 0
    # Number of episodes by the note on their proof
    notes: dict[str, int] = field(default_factory=dict[str, int])
    # Versions and facts of the machine that have changed since
    changes: list[str] = field(default_factory=list[str])

    @property
    def exit_code(self) -> int:
        """0 if every row is proved."""
        if self.differing:
            return DIFFERS
        return UNREACHABLE if self.unreachable else 0

    def add(self, proof: EpisodeProof) -> None:
        """Count a proof."""
        if proof.reason == "unreachable":
            self.unreachable.setdefault(proof.why, []).append(proof.episode)
            self.unreachable_rows += proof.rows
        elif proof.reason == "differs":
            self.differing.append(proof)
        else:
            self.equal += 1
            self.rows += proof.rows
            if proof.why:
                self.notes[proof.why] = self.notes.get(proof.why, 0) + 1

    def lines(self) -> list[str]:
        """The report as text."""
        lost = sum(map(len, self.unreachable.values()))
        episodes = self.equal + len(self.differing) + lost
        found: list[str] = []
        for proof in sorted(self.differing, key=lambda one: one.episode)[:_MOST_LINES]:
            name, row = proof.first_difference or ("", 0)
            found.append(f"- episode {proof.episode}, row {row}, {name}: {proof.why}")
        if len(self.differing) > _MOST_LINES:
            found.append(f"- and {len(self.differing) - _MOST_LINES:,} more that differ")
        by_count = sorted(self.unreachable.items(), key=lambda one: -len(one[1]))
        for why, ids in by_count[:_MOST_LINES]:
            names = format_ids(sorted(ids), _IDS_LENGTH)
            found.append(f"- {plural(len(ids), 'episode')} unreachable ({names}): {why}")
        if len(by_count) > _MOST_LINES:
            more = sum(len(ids) for _, ids in by_count[_MOST_LINES:])
            found.append(f"- and {plural(more, 'more episode')} unreachable")
        rate = self.played_steps / self.seconds if self.seconds else 0.0
        parts = [
            f"{self.path}: {self.equal:,} of {plural(episodes, 'episode')} proved",
            f"{plural(self.rows, 'row')} equal",
            *([f"{len(self.differing):,} DIFFER"] if self.differing else []),
            *([f"{lost:,} unreachable ({plural(self.unreachable_rows, 'row')})"] if lost else []),
            f"{plural(self.played_steps, 'step')} played in {self.seconds:.1f} s ({rate:,.0f}/s)",
        ]
        found.append(", ".join(parts))
        found += [f"  {plural(count, 'episode')}: {why}" for why, count in self.notes.items()]
        if self.differing and self.changes:
            found.append(f"  changed since they were recorded: {'; '.join(self.changes)}")
        return found

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {
            "equal": self.equal,
            "rows": self.rows,
            "steps": self.played_steps,
            "seconds": round(self.seconds, 3),
            "differing": [
                {"episode": proof.episode, "field": name, "row": row, "why": proof.why}
                for proof in sorted(self.differing, key=lambda one: one.episode)
                for name, row in [proof.first_difference or (None, None)]
            ],
            "unreachable": [
                {"why": why, "episodes": sorted(ids)} for why, ids in self.unreachable.items()
            ],
            "unreachable_rows": self.unreachable_rows,
            "notes": self.notes,
            "changed": self.changes,
        }


def replay_store(folder: Path, options: Mapping[str, Any], output: Output) -> ReplayReport:
    """Play the episodes of a store again, with a live line that shows the progress."""
    # Imported here: a comparison of checksums does not need it.
    from ..simulation.player import played_status
    from ..simulation.resimulate import resimulate

    report = ReplayReport(folder)
    began = time.perf_counter()
    with (
        output.line() as line,
        SequenceReplayBuffer.open(folder, read_only=True) as replay,
    ):
        played = played_status(str(folder))

        def status(steps: int, all_steps: int) -> Status:
            shown, bad = played(steps, all_steps), len(report.differing)
            more = [Part(f"{bad:,} differ", style="red")] if bad else []
            return shown._replace(parts=[*shown.parts, *more])

        show = line.reporter(status)

        def count(steps: int, all_steps: int) -> None:
            report.played_steps = steps
            show(steps, all_steps)

        if "episodes" in options:
            ids = stored_ids(options["episodes"], ids_in(replay), folder)
            options = {**options, "episodes": ids}
        with resimulate(replay, **options, progress=count) as proofs:
            changes = {one: None for maker in proofs.makers for one in maker.differences}
            report.changes = list(changes)
            for proof in proofs:
                report.add(proof)
    report.seconds = time.perf_counter() - began
    return report
