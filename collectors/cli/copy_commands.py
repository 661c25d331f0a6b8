"""The commands that make a new store out of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepwell.collectors.cli.choice import ChoiceJob, choose
from stepwell.collectors.cli.copy import CopyJob, codecs_of, copy_stores
from stepwell.collectors.cli.errors import reported
from stepwell.collectors.cli.options import Debug, Json, Quiet
from stepwell.collectors.cli.selection import Conditions, selection_of

__all__ = [
    "Codecs",
    "Cut",
    "Ended",
    "Ids",
    "MaxReturn",
    "MaxSteps",
    "MinReturn",
    "MinSteps",
    "Store",
    "Where",
    "add_copy_commands",
]

_WHICH = "Which episodes (all conditions must hold)"

Store = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a store; only read.")]
_Out = Annotated[Path, typer.Option(metavar="NEW", help="Folder of the new store: new, or empty.")]
_MaybeOut = Annotated[
    Path | None, typer.Option(metavar="NEW", help="Folder of the new store: new, or empty.")
]
Codecs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=CODEC",
        help="Keep a field in another way: zstd (small), narrow, raw (fast). May be repeated.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Metadata of the episode; the value is JSON, or else text. May be repeated.",
        rich_help_panel=_WHICH,
    ),
]
Ids = Annotated[
    str | None, typer.Option(metavar="IDS", help="Such as 3,10-20.", rich_help_panel=_WHICH)
]
MinReturn = Annotated[
    float | None,
    typer.Option(metavar="X", help="Least sum of stored rewards.", rich_help_panel=_WHICH),
]
MaxReturn = Annotated[
    float | None,
    typer.Option(metavar="X", help="Greatest sum of stored rewards.", rich_help_panel=_WHICH),
]
MinSteps = Annotated[
    str | None, typer.Option(metavar="N", help="Least env steps.", rich_help_panel=_WHICH)
]
MaxSteps = Annotated[
    str | None, typer.Option(metavar="N", help="Most env steps.", rich_help_panel=_WHICH)
]
Ended = Annotated[
    bool,
    typer.Option("--ended", metavar="", help="Terminated or truncated.", rich_help_panel=_WHICH),
]
Cut = Annotated[
    bool,
    typer.Option("--cut", metavar="", help="Only its recording stopped.", rich_help_panel=_WHICH),
]
_Dry = Annotated[
    bool,
    typer.Option("--dry-run", metavar="", help="Show what would be kept; write nothing."),
]


def add_copy_commands(app: typer.Typer) -> None:
    """Add `merge`, `filter`, `drop` and `copy` to the command line."""
    for command in (merge, filter_episodes, drop, copy):
        app.command(name="filter" if command is filter_episodes else None)(command)


def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of two stores or more; only read.")
    ],
    *,
    out: _Out,
    any_envs: Annotated[
        bool,
        typer.Option("--any-envs", metavar="", help="Also where the envs were made differently."),
    ] = False,
    duplicates: Annotated[
        str,
        typer.Option(
            metavar="refuse|skip|keep",
            help="Episodes that several stores hold, all rows bit by bit: refuse to merge, keep "
            "those of the first store, or keep all.",
        ),
    ] = "refuse",
    codec: Codecs = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Put the episodes of several stores into a new one, one store after the other.

    stepwell merge runs/a runs/b --out runs/both
    stepwell merge runs/pong* --out runs/pong
    stepwell merge runs/a runs/good --out runs/all --duplicates skip

    Specs and envs must agree, and no episode may be in two of the stores. To sample
    from several stores no merging is needed: a SequenceReplayBuffer opens a list of
    folders too.
    """
    with reported(debug, "begin anew"):
        if len(folders) < 2:
            raise ValueError(
                "merge: expected two stores or more, got one: name another, or use stepwell copy"
            )
        twice = [folder for folder in folders if _count(folder, folders) > 1]
        if twice:
            raise ValueError(
                f"merge: expected different stores, got {twice[0]} twice: name each once"
            )
        copy_stores(
            CopyJob(
                command="merge",
                sources=folders,
                out=out,
                any_envs=any_envs,
                duplicates=duplicates,
                codecs=codecs_of("--codec", codec or []),
                is_quiet=quiet,
                as_json=as_json,
            )
        )


def filter_episodes(
    folder: Store,
    *,
    out: _MaybeOut = None,
    dry_run: _Dry = False,
    where: Where = None,
    episodes: Ids = None,
    min_return: MinReturn = None,
    max_return: MaxReturn = None,
    min_steps: MinSteps = None,
    max_steps: MaxSteps = None,
    ended: Ended = False,
    cut: Cut = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Keep the episodes that match, in a new store. The old one stays as it is.

    stepwell filter runs/pong --min-return 18 --ended --dry-run
    stepwell filter runs/pong --min-return 18 --ended --out runs/good
    stepwell filter runs/maze --where task=door --where level=3 --out runs/door
    """
    with reported(debug, "begin anew"):
        told = Conditions(
            where or (), episodes, min_return, max_return, min_steps, max_steps, ended, cut
        )
        _choose("filter", folder, out, told, dry_run, quiet, as_json)


def drop(
    folder: Store,
    *,
    out: _MaybeOut = None,
    dry_run: _Dry = False,
    where: Where = None,
    episodes: Ids = None,
    min_return: MinReturn = None,
    max_return: MaxReturn = None,
    min_steps: MinSteps = None,
    max_steps: MaxSteps = None,
    ended: Ended = False,
    cut: Cut = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Leave the episodes out that match, in a new store. The old one stays as it is.

    stepwell drop runs/pong --episodes 3,10-20 --dry-run
    stepwell drop runs/pong --episodes 3,10-20 --out runs/clean
    stepwell drop runs/pong --cut --max-steps 50 --out runs/clean
    """
    with reported(debug, "begin anew"):
        told = Conditions(
            where or (), episodes, min_return, max_return, min_steps, max_steps, ended, cut
        )
        _choose("drop", folder, out, told, dry_run, quiet, as_json)


def copy(
    folder: Store,
    *,
    out: _Out,
    codec: Codecs = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy a store, bit for bit; what was stored in many small chunks is joined into large ones.

    stepwell copy runs/pong --out backup/pong
    stepwell copy runs/pong --out runs/fast --codec observation=raw

    The digest is that of the source: see stepwell info --digest. The copy appears when
    it is complete; after an error or Ctrl-C nothing is left behind.
    """
    with reported(debug, "begin anew"):
        copy_stores(
            CopyJob(
                command="copy",
                sources=[folder],
                out=out,
                codecs=codecs_of("--codec", codec or []),
                is_quiet=quiet,
                as_json=as_json,
            )
        )


def _count(folder: Path, folders: list[Path]) -> int:
    """How often a folder is named, by whatever path."""
    return sum(other.resolve() == folder.resolve() for other in folders)


def _choose(
    command: str,
    folder: Path,
    out: Path | None,
    conditions: Conditions,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    choose(
        ChoiceJob(
            command=command,
            source=folder,
            out=out,
            selection=selection_of(conditions),
            is_dry=dry_run,
            is_quiet=quiet,
            as_json=as_json,
        )
    )
