"""`stepwell copy`, `merge` and `filter`: a new store from the episodes of others."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import rich.table
import typer

from ...buffers import Codec, SequenceReplayBuffer
from ...buffers.curation.copy import CopyReport, copy_episodes, copy_status
from ...buffers.curation.selection import SORT_NAMES, EpisodeSelection
from ...buffers.curation.stored_episode import stored_episodes
from ...buffers.storage.disk.publish import disk_bytes
from ...buffers.storage.joined import check_different
from ...buffers.view.summary import describe_size, statistics_of
from ..loop.report import format_bytes
from .options import (
    Codecs,
    StoreFolder,
    format_ids,
    ids_in,
    parse_codecs,
    refuse_store,
    stored_ids,
    with_selection,
)
from .output import Output, Part, print_json, print_lines, table, table_console, with_output

if TYPE_CHECKING:
    from ...buffers.curation.repeated_episodes import Duplicates

_KEYS_SHOWN = 12

_Out = Annotated[
    Path, typer.Option(metavar="NEW", help="Folder of the new store; it must be new or empty.")
]
_Digest = Annotated[
    bool,
    typer.Option("--digest", help="Compute the digest of the new store; this decodes all rows."),
]


@with_output("start again")
def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of two or more stores; they are only read."),
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
    output: Output,
) -> None:
    """Put the episodes of several stores into a new one, one store after the other.

    stepwell merge runs/a runs/b --out runs/both
    stepwell merge runs/pong* --out runs/pong
    stepwell merge runs/a runs/good --out runs/all --duplicates skip

    The stores must have the same fields and envs. To sample from several stores
    you need not merge them: a SequenceReplayBuffer opens a list of folders.
    """
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
        output=output,
    )


@with_output("start again")
@with_selection
def filter_episodes(
    folder: StoreFolder,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="NEW",
            help="Folder of the new store; it must be new or empty. Not needed with --dry-run.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be kept; write nothing."),
    ] = False,
    invert: Annotated[
        bool, typer.Option("--invert", help="Keep the episodes that do not match.")
    ] = False,
    selection: EpisodeSelection,
    digest: _Digest = False,
    output: Output,
) -> None:
    """Copy the episodes that match to a new store. The old store is not changed.

    stepwell filter runs/pong --min-return 18 --ended --dry-run
    stepwell filter runs/pong --min-return 18 --ended --out runs/good
    stepwell filter runs/maze --where task=door --where level=3 --out runs/door
    stepwell filter runs/pong --top 10% --out runs/best
    stepwell filter runs/pong --episodes 3,10-20 --invert --out runs/clean

    --top ranks whole episodes only: a cut one lacks rewards (--include-cut).
    --invert keeps exactly what is left out without it, also cut episodes that are
    not ranked. The new store keeps the order of the old one, whatever --sort is.
    """
    if selection.is_empty:
        raise ValueError(
            "expected at least one condition, got none: give --where, --episodes, "
            "--min-return, --max-return, --min-steps, --max-steps, --ended, --cut, --top or "
            "--bottom"
        )
    if out is None and not dry_run:
        raise ValueError(
            "expected --out with the folder of the new store, or --dry-run, got neither; give one"
        )
    keep = replace(selection, others=invert)
    _refuse_unknown(folder, selection)
    if dry_run or out is None:
        _show_selected(folder, keep, output)
    else:
        _copy("filter", [folder], out, keep, with_digest=digest, output=output)


@with_output("start again")
def copy(
    folder: StoreFolder,
    *,
    out: _Out,
    codec: Codecs = None,
    digest: _Digest = False,
    output: Output,
) -> None:
    """Copy a store. Rows are the same bit by bit; many small chunks become few large ones.

    stepwell copy runs/pong --out backup/pong
    stepwell copy runs/pong --out runs/fast --codec observation=raw

    The copy has the digest of the source, see --digest. It appears when it is
    complete; an error or Ctrl-C leaves nothing behind.
    """
    codecs = parse_codecs("--codec", codec or [])
    _copy("copy", [folder], out, codecs=codecs, with_digest=digest, output=output)


def _refuse_unknown(folder: Path, selection: EpisodeSelection) -> None:
    """Refuse ids and keys that no episode has: they are more likely a typing error."""
    where, ids, sort = selection.where, selection.ids or (), selection.sort
    wanted = set(where) if isinstance(where, Mapping) else set[str]()
    wanted |= {sort} if sort is not None and sort not in SORT_NAMES else set()
    with SequenceReplayBuffer.open(folder, read_only=True) as replay:
        stored_ids(ids, ids_in(replay), folder)
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
    command: str,  # stored with the copy
    sources: Sequence[Path],
    out: Path,
    keep: EpisodeSelection | None = None,
    *,
    any_envs: bool = False,
    duplicates: str = "refuse",
    codecs: Mapping[str, Codec] | None = None,
    with_digest: bool,
    output: Output,
) -> None:
    """Copy the episodes of the stores, all when ``keep`` is None, to a new one, and report."""
    refuse_store(out)
    with contextlib.ExitStack() as stack:
        replays = [
            stack.enter_context(SequenceReplayBuffer.open(path, read_only=True)) for path in sources
        ]
        before = sum(disk_bytes(path) for path in sources)
        names = ", ".join(str(path) for path in sources)
        progress = stack.enter_context(output.reporting(copy_status, names))
        target = stack.enter_context(SequenceReplayBuffer(out, codecs=codecs or {}))
        report = copy_episodes(
            replays,
            target,
            keep=keep,
            any_envs=any_envs,
            duplicates=cast("Duplicates", duplicates),
            facts={"command": command, **({"conditions": keep.to_json()} if keep else {})},
            digest=with_digest,
            progress=progress,
        )
    after = disk_bytes(out)
    more = {
        "sources": [str(path) for path in sources],
        "path": str(out),
        "source_disk_bytes": before,
        "disk_bytes": after,
    }
    last = [Part(f"in {out}", style="bold")]
    if with_digest:
        last.append(Part(f"digest {report.digest}"))
    output.show({**report.to_json(), **more}, _summary(report, before, after), last)


def _summary(report: CopyReport, before: int, after: int) -> list[Part]:
    total = report.episodes + report.left_out_episodes
    of_all = f" of {total:,}" if report.left_out_episodes else ""
    parts = [
        Part(f"{report.episodes:,}{of_all} episodes", style="bold"),
        Part(f"{report.steps:,} steps", style="bold"),
    ]
    if report.left_out_episodes:
        parts.append(Part(f"{report.left_out_steps:,} steps left out"))
    for count, what in (
        (report.duplicate_episodes, "of them duplicates"),
        (report.late_starts, "without beginning"),
        (report.not_whole_episodes, "cut or without beginning not ranked (--include-cut)"),
        (report.without_value_episodes, "without a number to sort by not ranked"),
    ):
        parts += [Part(f"{count:,} {what}", style="yellow")] if count else []
    parts += [
        Part(f"{format_bytes(before)} -> {format_bytes(after)} on disk"),
        *map(Part, describe_size(after, report.raw_bytes)[1:]),
        Part(f"{report.seconds:,.1f} s"),
    ]
    if report.seconds >= 1:  # else the start dominates
        parts.append(Part(f"{format_bytes(report.raw_bytes / report.seconds)}/s of rows"))
    return parts


# Dry runs.


def _show_selected(folder: Path, selection: EpisodeSelection, output: Output) -> None:
    with SequenceReplayBuffer.open(folder, read_only=True) as replay:
        choice = selection.choose(stored_episodes(replay.storage))
        numbers = np.array(
            [(one.id, one.steps, one.total_reward) for one in stored_episodes(replay.storage)],
            [("ids", np.int64), ("steps", np.int64), ("returns", np.float64)],
        )
    is_kept = np.frombuffer(choice.is_chosen, np.bool_)
    groups = {"kept": numbers[is_kept], "dropped": numbers[~is_kept]}
    if output.as_json:
        facts: dict[str, object] = {name: _group_json(group) for name, group in groups.items()}
        if selection.is_ranking:
            facts["not_ranked"] = {"cut": choice.not_whole, "without_value": choice.without_value}
        print_json(facts)
    elif not output.quiet:
        table_console().print(_selection_table(groups))
        end = "nothing was written; run it without --dry-run to write the store"
        print_lines(*([choice.sentence] if choice.sentence else []), end)


def _group_json(group: np.ndarray) -> dict[str, object]:
    return {
        "episodes": group["ids"].tolist(),
        "steps": int(group["steps"].sum()),
        "lengths": statistics_of(group["steps"]),
        "returns": statistics_of(group["returns"]),
    }


def _selection_table(groups: Mapping[str, np.ndarray]) -> rich.table.Table:
    made = table("")
    for name in ("episodes", "steps", "mean return", "from", "to"):
        made.add_column(name, justify="right")
    made.add_column("ids", overflow="fold")
    for name, group in groups.items():
        statistics = statistics_of(group["returns"])
        returns = ["", "", ""]
        if statistics is not None:
            returns = [f"{statistics['mean']:,.1f}"]
            returns += [f"{statistics[key]:,.6g}" for key in ("min", "max")]
        counts = f"{len(group):,}", f"{group['steps'].sum():,}"
        made.add_row(name, *counts, *returns, format_ids(group["ids"].tolist(), 50))
    return made
