"""`stepwell copy`, `merge`, `filter` and `drop`: a new store from the episodes of others."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import rich.table
import typer

from stepwell.buffers import Codec, SequenceReplayBuffer
from stepwell.buffers.curation.copy import CopyReport, copy_episodes, copy_status
from stepwell.buffers.curation.selection import SORT_NAMES, EpisodeSelection
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.storage.disk.publish import disk_bytes
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.storage.places import PlacedStorage, check_different, placed_bytes
from stepwell.buffers.storage.urls import url_of
from stepwell.buffers.view.summary import describe_size, statistics_of
from stepwell.collectors.cli.errors import exit_on_error
from stepwell.collectors.cli.options import (
    Bottom,
    Codecs,
    Cut,
    Debug,
    Ended,
    Ids,
    IncludeCut,
    Json,
    MaxReturn,
    MaxSteps,
    MinReturn,
    MinSteps,
    Quiet,
    Sort,
    StoreFolder,
    Top,
    Where,
    format_ids,
    parse_codecs,
    parse_selection,
)
from stepwell.collectors.cli.output import (
    LiveLine,
    Part,
    print_json,
    print_lines,
    print_parts,
    table,
    table_console,
)
from stepwell.collectors.interrupt import InterruptGuard
from stepwell.collectors.report import format_bytes

if TYPE_CHECKING:
    from stepwell.buffers.curation.repeated_episodes import Duplicates

__all__ = ["copy", "drop", "filter_episodes", "merge"]

_KEYS_SHOWN = 12

_Out = Annotated[
    Path, typer.Option(metavar="NEW", help="Folder of the new store; it must be new or empty.")
]
_OptionalOut = Annotated[
    Path | None,
    typer.Option(
        metavar="NEW",
        help="Folder of the new store; it must be new or empty. Not needed with --dry-run.",
    ),
]
_DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would be kept; write nothing."),
]
_Digest = Annotated[
    bool,
    typer.Option("--digest", help="Compute the digest of the new store; this decodes all rows."),
]


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR", help="Folders or URLs of two or more stores; they are only read."
        ),
    ],
    *,
    out: _Out,
    any_envs: Annotated[
        bool,
        typer.Option("--any-envs", help="Accept stores whose envs were made differently."),
    ] = False,
    duplicates: Annotated[
        str,
        typer.Option(
            metavar="refuse|skip|keep",
            help="What to do if two stores hold the same episode, with all rows equal bit by bit: "
            "refuse to merge, skip all but the first, or keep all.",
        ),
    ] = "refuse",
    codec: Codecs = None,
    digest: _Digest = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Put the episodes of several stores into a new one, one store after the other.

    stepwell merge runs/a runs/b --out runs/both
    stepwell merge runs/pong* --out runs/pong
    stepwell merge runs/a runs/good --out runs/all --duplicates skip

    The stores must have the same fields and envs. To sample from several
    stores you need not merge them: a SequenceReplayBuffer opens a list of folders.
    """
    with exit_on_error(debug, "start again"):
        if len(folders) < 2:
            raise ValueError(
                "merge: expected two stores or more, got one; name another, or use stepwell copy"
            )
        check_different("merge", folders)
        _copy(
            "merge",
            folders,
            out,
            any_envs=any_envs,
            duplicates=duplicates,
            codecs=parse_codecs("--codec", codec or []),
            with_digest=digest,
            quiet=quiet,
            as_json=as_json,
        )


def filter_episodes(
    folder: StoreFolder,
    *,
    out: _OptionalOut = None,
    dry_run: _DryRun = False,
    where: Where = None,
    episodes: Ids = None,
    min_return: MinReturn = None,
    max_return: MaxReturn = None,
    min_steps: MinSteps = None,
    max_steps: MaxSteps = None,
    ended: Ended = False,
    cut: Cut = False,
    top: Top = None,
    bottom: Bottom = None,
    sort: Sort = None,
    include_cut: IncludeCut = False,
    digest: _Digest = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy the episodes that match to a new store. The old store is not changed.

    stepwell filter runs/pong --min-return 18 --ended --dry-run
    stepwell filter runs/pong --min-return 18 --ended --out runs/good
    stepwell filter runs/maze --where task=door --where level=3 --out runs/door
    stepwell filter runs/pong --top 10% --out runs/best

    --top ranks whole episodes only: a cut one lacks rewards (--include-cut). The
    new store keeps the order of the old one, whatever --sort is.
    """
    with exit_on_error(debug, "start again"):
        selection = parse_selection(
            where=where,
            episodes=episodes,
            min_return=min_return,
            max_return=max_return,
            min_steps=min_steps,
            max_steps=max_steps,
            ended=ended,
            cut=cut,
            top=top,
            bottom=bottom,
            sort=sort,
            include_cut=include_cut,
        )
        _copy_selected("filter", folder, out, selection, dry_run, digest, quiet, as_json)


def drop(
    folder: StoreFolder,
    *,
    out: _OptionalOut = None,
    dry_run: _DryRun = False,
    where: Where = None,
    episodes: Ids = None,
    min_return: MinReturn = None,
    max_return: MaxReturn = None,
    min_steps: MinSteps = None,
    max_steps: MaxSteps = None,
    ended: Ended = False,
    cut: Cut = False,
    top: Top = None,
    bottom: Bottom = None,
    sort: Sort = None,
    include_cut: IncludeCut = False,
    digest: _Digest = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy all but the episodes that match to a new store. The old store is not changed.

    stepwell drop runs/pong --episodes 3,10-20 --dry-run
    stepwell drop runs/pong --episodes 3,10-20 --out runs/clean
    stepwell drop runs/pong --cut --max-steps 50 --out runs/clean
    stepwell drop runs/pong --bottom 10% --out runs/clean

    It keeps exactly what filter would leave out, also cut episodes, which --top and
    --bottom do not rank.
    """
    with exit_on_error(debug, "start again"):
        selection = parse_selection(
            where=where,
            episodes=episodes,
            min_return=min_return,
            max_return=max_return,
            min_steps=min_steps,
            max_steps=max_steps,
            ended=ended,
            cut=cut,
            top=top,
            bottom=bottom,
            sort=sort,
            include_cut=include_cut,
        )
        _copy_selected("drop", folder, out, selection, dry_run, digest, quiet, as_json)


def copy(
    folder: StoreFolder,
    *,
    out: _Out,
    codec: Codecs = None,
    digest: _Digest = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy a store. Rows are the same bit by bit; many small chunks become few large ones.

    stepwell copy runs/pong --out backup/pong
    stepwell copy runs/pong --out runs/fast --codec observation=raw
    stepwell copy s3://bucket/pong --out runs/pong

    The copy has the digest of the source, see --digest. It appears when it is
    complete; an error or Ctrl-C leaves nothing behind.
    """
    with exit_on_error(debug, "start again"):
        codecs = parse_codecs("--codec", codec or [])
        _copy(
            "copy",
            [folder],
            out,
            codecs=codecs,
            with_digest=digest,
            quiet=quiet,
            as_json=as_json,
        )


def _copy_selected(
    command: str,
    folder: Path,
    out: Path | None,
    selection: EpisodeSelection,
    dry_run: bool,
    with_digest: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write the new store, or show what would be in it.

    Args:
        command: "filter" keeps the selected episodes, "drop" the others.
        folder: The store to read.
        out: Folder of the new store; None for a dry run.
        selection: The conditions.
        dry_run: Show what would be done and write nothing.
        with_digest: Compute the digest of the new store.
        quiet: Print neither progress nor summary.
        as_json: Print one JSON object instead of the summary.

    Raises:
        ValueError: An argument makes no sense; nothing was written.
        StepwellError: There is no store, or it is damaged.
    """
    if selection.is_empty:
        raise ValueError(
            "expected at least one condition, got none: give --where, --episodes, --min-return, "
            "--max-return, --min-steps, --max-steps, --ended, --cut, --top or --bottom"
        )
    if out is None and not dry_run:
        raise ValueError(
            "expected --out with the folder of the new store, or --dry-run, got neither; give one"
        )
    keep = selection if command == "filter" else replace(selection, others=True)
    _refuse_unknown(folder, selection)
    if dry_run or out is None:
        _show_selected(folder, keep, quiet, as_json)
    else:
        conditions = selection.to_json()
        _copy(
            *(command, [folder], out, keep, conditions),
            with_digest=with_digest,
            quiet=quiet,
            as_json=as_json,
        )


def _refuse_unknown(folder: Path, selection: EpisodeSelection) -> None:
    """Refuse ids and keys that no episode has: they are more likely a typing error."""
    where, ids, sort = selection.where, selection.ids or (), selection.sort
    wanted = set(where) if isinstance(where, Mapping) else set[str]()
    wanted |= {sort} if sort is not None and sort not in SORT_NAMES else set()
    with SequenceReplayBuffer.open(folder, read_only=True) as replay:
        known_ids = np.unique(replay.storage.index.records["episode"])
        for id_range in ids:
            if not ((known_ids >= id_range.start) & (known_ids < id_range.stop)).any():
                expected = format_ids(known_ids.tolist(), 60) or "none"
                raise ValueError(
                    f"--episodes: no episode of {folder} has the id "
                    f"{format_ids(list(id_range), 40)}, expected one of {expected}; give others"
                )
        if not wanted:
            return
        known: set[str] = set()
        for episode in stored_episodes(replay.storage):
            known |= set(episode.metadata)
            if wanted <= known:
                return
    shown = sorted(known)[:_KEYS_SHOWN]
    missing = sorted(wanted - known)[0]
    option = "--where" if isinstance(where, Mapping) and missing in where else "--sort"
    expected = ", ".join(shown if option == "--where" else [*SORT_NAMES, *shown]) or "none"
    raise ValueError(
        f"{option}: no episode of {folder} has the key {missing!r} in its metadata, expected one "
        f"of these: {expected}; give another"
    )


def _copy(
    command: str,
    sources: Sequence[Path],
    out: Path,
    keep: EpisodeSelection | None = None,
    conditions: Mapping[str, object] | None = None,
    *,
    any_envs: bool = False,
    duplicates: str = "refuse",
    codecs: Mapping[str, Codec] | None = None,
    with_digest: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Copy episodes to a new store, and report.

    Args:
        command: Its name, stored with the copy.
        sources: Folders of the stores to read.
        out: Folder of the new store.
        keep: The episodes to copy; None for all.
        conditions: The same as plain data, stored with the copy.
        any_envs: Accept sources whose envs differ.
        duplicates: What to do with an episode that several sources hold.
        codecs: Codecs by field name.
        with_digest: Compute the digest of the new store.
        quiet: Print neither progress nor summary.
        as_json: Print one JSON object instead of the summary.

    Raises:
        ValueError: An argument makes no sense; nothing was written.
        StepwellError: The stores do not fit together, or one is damaged.
    """
    if DiskStorage.exists(out):
        raise ValueError(
            f"--out {out} holds a store already: expected a new or empty folder; choose "
            f"another folder"
        )
    with contextlib.ExitStack() as stack:
        replays = [
            stack.enter_context(SequenceReplayBuffer.open(path, read_only=True)) for path in sources
        ]
        storages = [replay.storage for replay in replays]
        before = sum(placed_bytes(each) for each in storages if isinstance(each, PlacedStorage))
        line = stack.enter_context(LiveLine(is_silent=quiet or as_json))
        line.say(f"looking at {', '.join(url_of(path) or str(path) for path in sources)} ...")
        target = stack.enter_context(SequenceReplayBuffer(out, codecs=codecs or {}))
        show = line.reporter(copy_status)
        with InterruptGuard() as guard:  # Ctrl-C acts between two writes

            def progress(report: CopyReport) -> None:
                show(report)
                guard.check()

            report = copy_episodes(
                replays,
                target,
                keep=keep,
                any_envs=any_envs,
                duplicates=cast("Duplicates", duplicates),
                facts={
                    "command": command,
                    **({"conditions": dict(conditions)} if conditions else {}),
                },
                digest=with_digest,
                progress=progress,
            )
            guard.finish()
    after = disk_bytes(out)
    if as_json:
        more = {
            "sources": [url_of(path) or str(path) for path in sources],
            "path": str(out),
            "source_disk_bytes": before,
            "disk_bytes": after,
        }
        print_json({**report.to_json(), **more})
    elif not quiet:
        last = [Part(f"in {out}", style="bold")]
        if with_digest:
            last.append(Part(f"digest {report.digest}"))
        print_parts(_summary(report, before, after), last)


def _summary(report: CopyReport, before: int, after: int) -> list[Part]:
    total = report.episodes + report.left_out_episodes
    of_all = f" of {total:,}" if report.left_out_episodes else ""
    parts = [
        Part(f"{report.episodes:,}{of_all} episodes", style="bold"),
        Part(f"{report.steps:,} steps", style="bold"),
    ]
    if report.left_out_episodes:
        parts.append(Part(f"{report.left_out_steps:,} steps left out"))
    if report.duplicate_episodes:
        parts.append(Part(f"{report.duplicate_episodes:,} of them duplicates", style="yellow"))
    if report.late_starts:
        parts.append(Part(f"{report.late_starts:,} without beginning", style="yellow"))
    if report.not_whole_episodes:
        text = f"{report.not_whole_episodes:,} cut or without beginning not ranked (--include-cut)"
        parts.append(Part(text, style="yellow"))
    if report.without_value_episodes:
        text = f"{report.without_value_episodes:,} without a number to sort by not ranked"
        parts.append(Part(text, style="yellow"))
    parts += [
        Part(f"{format_bytes(before)} -> {format_bytes(after)} on disk"),
        *map(Part, describe_size(after, report.raw_bytes)[1:]),
        Part(f"{report.seconds:,.1f} s"),
    ]
    if report.seconds >= 1:  # else the start dominates
        parts.append(Part(f"{format_bytes(report.raw_bytes / report.seconds)}/s of rows"))
    return parts


# Dry runs.


@dataclass(slots=True)
class _Group:
    """The episodes that are kept, or those that are dropped."""

    ids: list[int] = field(default_factory=list[int])
    steps: list[int] = field(default_factory=list[int])
    returns: list[float] = field(default_factory=list[float])

    def to_json(self) -> dict[str, object]:
        return {
            "episodes": self.ids,
            "steps": sum(self.steps),
            "lengths": statistics_of(np.array(self.steps)),
            "returns": statistics_of(np.array(self.returns)),
        }


def _show_selected(folder: Path, selection: EpisodeSelection, quiet: bool, as_json: bool) -> None:
    """Print what would be kept and what dropped."""
    kept, dropped = _Group(), _Group()
    with SequenceReplayBuffer.open(folder, read_only=True) as replay:
        choice = selection.choose(stored_episodes(replay.storage))
        for episode, is_kept in zip(stored_episodes(replay.storage), choice.is_chosen, strict=True):
            group = kept if is_kept else dropped
            group.ids.append(episode.id)
            group.steps.append(episode.steps)
            group.returns.append(episode.total_reward)
    if as_json:
        not_ranked = {"cut": choice.not_whole, "without_value": choice.without_value}
        groups = {"kept": kept.to_json(), "dropped": dropped.to_json()}
        print_json({**groups, "not_ranked": not_ranked} if selection.is_ranking else groups)
    elif not quiet:
        table_console().print(_selection_table(kept, dropped))
        print_lines([choice.sentence] if choice.sentence else [])
        print_lines(["nothing was written; run it without --dry-run to write the store"])


def _selection_table(kept: _Group, dropped: _Group) -> rich.table.Table:
    made = table("")
    for name in ("episodes", "steps", "mean return", "from", "to"):
        made.add_column(name, justify="right")
    made.add_column("ids", overflow="fold")
    for name, group in (("kept", kept), ("dropped", dropped)):
        statistics = statistics_of(np.array(group.returns))
        returns = ["", "", ""]
        if statistics is not None:
            returns = [f"{statistics['mean']:,.1f}"]
            returns += [f"{statistics[key]:,.6g}" for key in ("min", "max")]
        counts = f"{len(group.ids):,}", f"{sum(group.steps):,}"
        made.add_row(name, *counts, *returns, format_ids(group.ids, 50))
    return made
