"""`stepwell info`: the contents of a store on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import rich.table
import rich.text
import typer

from ...buffers.base.progress import format_bytes
from ...buffers.base.untrusted_json import mapping_of
from ...buffers.storage.disk.publish import check_complete
from ...buffers.view.histograms import histogram
from ...buffers.view.summary import (
    FIELD_COLUMNS,
    RUN_COLUMNS,
    describe_recipe,
    digest_of,
    field_lines,
    overview,
    run_lines,
    seeds_of,
    summary_of,
)
from .errors import printable
from .options import Digest
from .output import Output, print_json, table, table_console, with_output

__all__ = ["histogram", "info"]

_BAR = "▏▎▍▌▋▊▉█"
_BINS = 8


@with_output(has_quiet=False)
def info(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a store, or an archive.")
    ],
    digest: Digest = False,
    provenance: Annotated[
        bool,
        typer.Option(
            "--provenance",
            help="Count the episodes that can be played again from a seed; this reads the facts "
            "of all.",
        ),
    ] = False,
    *,
    output: Output,
) -> None:
    """Show the contents of a store: fields, runs, episodes, returns, lengths, sizes.

    stepwell info runs/pong
    stepwell info runs/pong --digest
    stepwell info runs/pong --provenance
    stepwell info pong.swa

    A copy has the digest of its source, also with other codecs.
    """
    if folder.is_file():
        _show_archive(folder, output)
        return
    check_complete(folder)
    found = summary_of(folder)
    seeds = seeds_of(folder) if provenance else None
    computed = digest_of(folder) if digest else None
    if output.as_json:
        counts = None if seeds is None else asdict(seeds)
        print_json({**found.to_json(), "digest": computed, "provenance": counts})
        return
    console = table_console()
    grid = rich.table.Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, text in overview(found, computed, seeds):
        grid.add_row(name, _cell(text))
    console.print(grid)
    console.print(_table(FIELD_COLUMNS, field_lines(found.spec)))
    console.print(_table(RUN_COLUMNS, run_lines(found.sessions)))
    for name, numbers in (("return", found.returns), ("length", found.lengths)):
        for line in bars(name, numbers, min(console.width, 80)):
            console.print(line, no_wrap=True, crop=True)


def _show_archive(path: Path, output: Output) -> None:
    """Show the contents of an archive, without the rows that it does not hold."""
    # Imported here: a store does not need it.
    from ...buffers.provenance.archive_file import opened

    with opened(path) as archived:
        index, sessions = archived.storage.index, archived.storage.sessions
        rows, steps, episodes = index.rows, index.steps, index.episodes
        spec, is_proved, versions = archived.spec, archived.is_proved, archived.versions
    nbytes = path.stat().st_size
    facts: dict[str, object] = {
        "path": str(path),
        "episodes": episodes,
        "steps": steps,
        "archive_bytes": nbytes,
        "raw_bytes": rows * spec.row_bytes,
        "is_proved": is_proved,
        "versions": versions,
        "sessions": [dict(session) for session in sessions],
        "spec": spec.to_json(),
    }
    proved = "played again and equal" if is_proved else "not proved"
    known = mapping_of(sessions[0].get("recipe")) if sessions else {}
    made_by = ", ".join(f"{name} {text}" for name, text in versions.items())
    output.show(
        facts,
        f"archive   {path}",
        f"env       {describe_recipe(known)}",
        f"steps     {steps:,}",
        f"episodes  {episodes:,}, {proved} when it was made",
        f"size      {format_bytes(nbytes)}, {nbytes / max(1, steps):.2f} bytes a step; raw "
        f"{format_bytes(rows * spec.row_bytes)}",
        f"fields    {printable(spec.summary)}",
        f"made by   {printable(made_by)}",
        f"restore   stepwell restore {path} --out DIR",
    )


def bars(name: str, numbers: np.ndarray, width: int) -> list[str]:
    """A line with a bar for each range of values, of those that are finite."""
    found = histogram([numbers], _BINS)
    counts, labels, left_out = found.counts[0], found.labels, found.left_out[0]
    if len(numbers) < 2 or (np.count_nonzero(counts) < 2 and not left_out):
        return []
    label_width = max(len(label) for label in labels)
    bar_width = max(8, width - label_width - 8 - len(f"{counts.max():,}"))
    lines = [f"{name}, without {left_out:,} that are not finite" if left_out else name]
    for label, count in zip(labels, counts.tolist(), strict=True) if counts.any() else ():
        lines.append(
            f"  {label:>{label_width}}  {_bar(count / counts.max() * bar_width)} {count:,}"
        )
    return lines


def _bar(length: float) -> str:
    full, rest = divmod(round(length * 8), 8)
    bar = "█" * full + (_BAR[rest - 1] if rest else "")
    return bar or ("▏" if length else "")


def _cell(text: object) -> rich.text.Text:
    """Return untrusted text of a store without markup and control characters."""
    return rich.text.Text(printable(str(text)))


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> rich.table.Table:
    found = table(*columns)
    for line in lines:
        found.add_row(*map(_cell, line))
    return found
