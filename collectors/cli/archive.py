"""`stepwell archive` and `restore`: a store in a small file, and the store again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...buffers import RowsDiffer, SequenceReplayBuffer, Unprovable
from ...buffers.storage.disk.publish import disk_bytes
from ..loop.report import format_bytes
from .game_options import AGAIN, PLAYED_IDS, with_playing
from .health import DIFFERS, UNREACHABLE
from .options import Row, StoreFolder, ids_in, stored_ids, taken, with_options
from .output import Output, Part, plural, with_output

_CATALOGUE = {
    "A catalogue": {
        "index": Row(
            "INDEX",
            "Add it to this index, a TOML file in the folder of the archive or above; it may be "
            "new.",
            of=Path,
        ),
        "name": Row("NAME", "The name of the data set, such as maze/random."),
        "policy": Row("TEXT", "What chose the actions, in words."),
        "license": Row("NAME", "The licence of the archive: cc-by-4.0, mit, other, ..."),
    }
}
CODES: dict[type[Exception], int] = {RowsDiffer: DIFFERS, Unprovable: UNREACHABLE}
"""Exit codes where episodes are not proved."""

if TYPE_CHECKING:
    from ..simulation.archive import ArchiveReport, RestoreReport


@with_output("start again", codes=CODES)
@with_playing(PLAYED_IDS, "chosen")
@with_playing(AGAIN)
@with_options("entry", _CATALOGUE, partial(taken, _CATALOGUE))
def archive_store(
    folder: StoreFolder,
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The new file: NAME.swa.")
    ],
    chosen: dict[str, Any],
    unproved: Annotated[
        bool, typer.Option("--unproved", help="Do not play the episodes before they are archived.")
    ] = False,
    provable: Annotated[
        bool, typer.Option("--provable", help="Leave out episodes that cannot be played again.")
    ] = False,
    again: dict[str, Any],
    entry: dict[str, Any],
    output: Output,
) -> None:
    r"""Write a store to a small file, which holds actions and seeds instead of what envs show.

    stepwell archive runs/pong -o pong.swa
    stepwell archive runs/pong -o best.swa --episodes 3,10-20
    stepwell restore pong.swa --out runs/pong    makes the store again
    stepwell archive runs/pong -o ours/pong.swa --index ours/index.toml \
    --name pong/mine --policy "my own" --license mit

    All episodes are played again first, and compared with what is stored.
    Exit codes: 0 it is written, 1 a row differs, 3 some episodes cannot be
    played.
    """
    from ..simulation.archive import archive
    from ..simulation.player import played_status

    _check_entry(entry, out, is_part=bool(chosen) or provable)
    with (
        output.line(f"looking at {folder} ...") as line,
        SequenceReplayBuffer.open(folder, read_only=True) as replay,
    ):
        if chosen:
            again["episodes"] = stored_ids(chosen["episodes"], ids_in(replay), folder)
        report = archive(
            replay,
            out,
            is_proved=not unproved,
            only_provable=provable,
            **again,
            progress=line.reporter(played_status(str(folder))),
        )
        if entry:
            from ..catalogue.datasets import add_dataset

            try:
                add_dataset(archive=out, replay=replay, **entry)
            except BaseException:
                out.unlink()
                raise
    before = disk_bytes(folder)
    more = {"store": str(folder), "path": str(out), "disk_bytes": before}
    parts = made_parts(
        report,
        out,
        Part(f"{format_bytes(before)} -> {format_bytes(report.archive_bytes)}"),
        Part(f"{report.archive_bytes / max(1, report.steps):.2f} bytes a step"),
        Part("proved") if report.is_proved else Part("unproved", style="yellow"),
    )
    output.show({**report.to_json(), **more}, parts)


@with_output("start again", codes=CODES)
@with_playing({**PLAYED_IDS, **AGAIN})
def restore_store(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive: NAME.swa.")],
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="NEW", help="Folder of the store; it must be new or empty."
        ),
    ],
    again: dict[str, Any],
    output: Output,
) -> None:
    """Make the store of an archive again, by playing its episodes.

    stepwell restore pong.swa --out runs/pong
    stepwell restore pong.swa --out runs/best --episodes 3,10-20
    stepwell restore game.swa --out runs/game --rom game.nes

    Every episode is compared with the checksums in the archive while it is
    played. The rows are those of the store that was archived.
    Exit codes: 0 it is restored, 1 an env shows other rows: then the store has
    the episodes that were equal until then, 3 some episodes cannot be played.
    """
    from ...buffers.provenance.archive_file import archived_ids
    from ..simulation.archive import restore
    from ..simulation.player import played_status

    with output.line(f"looking at {file} ...") as line, SequenceReplayBuffer(out) as target:
        if "episodes" in again:
            again["episodes"] = stored_ids(again["episodes"], archived_ids(file), file)
        report = restore(file, target, **again, progress=line.reporter(played_status(str(file))))
    more = {"archive": str(file), "path": str(out), "disk_bytes": disk_bytes(out)}
    parts = made_parts(
        report,
        out,
        Part(f"{format_bytes(file.stat().st_size)} -> {format_bytes(disk_bytes(out))}"),
        Part(f"{plural(report.played_steps, 'step')} played"),
        Part("equal rows"),
    )
    output.show({**report.to_json(), **more}, parts)


def _check_entry(entry: Mapping[str, Any], out: Path, *, is_part: bool) -> None:
    """Refuse what no entry can have, before the store is played."""
    if not entry:
        return
    if "index" not in entry:
        first = next(iter(entry))
        raise ValueError(f"--{first}: expected --index with it, the catalogue's file, got none")
    missing = [each for each in _CATALOGUE["A catalogue"] if each not in entry]
    if missing:
        raise ValueError(f"--index: expected --{missing[0]} with it, got none; give it")
    if is_part:
        raise ValueError(
            "--index: expected a whole store, got some episodes of it: filter or copy it first"
        )
    from ..catalogue.datasets import path_in
    from ..catalogue.index import checked_name, checked_text, read_index

    checked_name(entry["name"])
    for name in ("policy", "license"):
        checked_text(entry[name], name)
    path_in(entry["index"], out)
    if entry["index"].exists():
        read_index(entry["index"])


def made_parts(report: ArchiveReport | RestoreReport, out: Path, *middle: Part) -> list[Part]:
    """The summary of what was made, with some parts in the middle."""
    left = report.left_out_episodes
    return [
        Part(plural(report.episodes, "episode"), style="bold"),
        Part(plural(report.steps, "step"), style="bold"),
        *([Part(f"{left:,} left out", style="yellow")] if left else []),
        *middle,
        Part(f"{report.seconds:,.1f} s"),
        Part(f"in {out}", style="bold"),
    ]
