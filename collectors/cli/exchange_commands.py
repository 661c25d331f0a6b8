"""The commands that write and read other libraries' data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepwell.collectors.cli import copy_commands as which
from stepwell.collectors.cli.copy import codecs_of
from stepwell.collectors.cli.errors import reported
from stepwell.collectors.cli.exchange import (
    ExportJob,
    ImportJob,
    export_store,
    import_data,
    options_of,
)
from stepwell.collectors.cli.formats import show_formats
from stepwell.collectors.cli.numbers import number_of_bytes
from stepwell.collectors.cli.options import Debug, Json, Quiet
from stepwell.collectors.cli.selection import Conditions, selection_of

__all__ = ["add_exchange_commands"]

_Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Of the format, see stepwell formats. May be repeated.",
    ),
]


def add_exchange_commands(app: typer.Typer) -> None:
    """Add `export`, `import` and `formats` to the command line."""
    app.command(name="export")(export)
    app.command(name="import")(import_)
    app.command(name="formats")(formats)


def export(
    folder: which.Store,
    *,
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="Such as minari; see stepwell formats.")
    ],
    out: Annotated[
        str, typer.Option(metavar="OUT", help="New folder, file or, for minari, data set id.")
    ],
    option: _Options = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Check all, say what would be; write nothing."),
    ] = False,
    where: which.Where = None,
    episodes: which.Ids = None,
    min_return: which.MinReturn = None,
    max_return: which.MaxReturn = None,
    min_steps: which.MinSteps = None,
    max_steps: which.MaxSteps = None,
    ended: which.Ended = False,
    cut: which.Cut = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a data set that another library reads. The store stays as it is.

    stepwell export runs/pong --to minari --out atari/pong/random-v0
    stepwell export runs/pong --to iris --out iris/pong --min-return 18
    stepwell export runs/pole --to npz --out arrays/pole --dry-run

    Nothing is overwritten; after an error or Ctrl-C nothing is left behind.
    """
    with reported(debug, "begin anew"):
        told = Conditions(
            where or (), episodes, min_return, max_return, min_steps, max_steps, ended, cut
        )
        export_store(
            ExportJob(
                source=folder,
                to=to,
                out=out,
                options=options_of(option or []),
                keep=None if told == Conditions() else selection_of(told),
                is_dry=dry_run,
                is_quiet=quiet,
                as_json=as_json,
            )
        )


def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Folder, file or, for minari, data set id.")
    ],
    *,
    from_: Annotated[
        str, typer.Option("--from", metavar="FORMAT", help="Such as minari; see stepwell formats.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the new store: new, or empty.")
    ] = None,
    option: _Options = None,
    codec: which.Codecs = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory that an episode may unpack to, such as 8GiB; half of what is free.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Read all, say what is in it; write nothing."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Read a data set of another library into a new store.

    stepwell import atari/breakout/expert-v0 --from minari --dry-run
    stepwell import atari/breakout/expert-v0 --from minari --out runs/expert
    stepwell import data.h5 --from d3rlpy --out runs/data

    What Stepwell exported comes back bit for bit, with the same digest. Of other
    data sets the notes say what they could not tell.
    """
    with reported(debug, "begin anew"):
        import_data(
            ImportJob(
                source=source,
                from_=from_,
                out=out,
                options=options_of(option or []),
                codecs=codecs_of("--codec", codec or []),
                max_bytes=None if max_bytes is None else number_of_bytes("--max-bytes", max_bytes),
                is_dry=dry_run,
                is_quiet=quiet,
                as_json=as_json,
            )
        )


def formats(
    name: Annotated[
        str | None, typer.Argument(metavar="[FORMAT]", help="One of them; all when left out.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the formats of export and import, what they need, and their options."""
    with reported(debug):
        show_formats(name, as_json=as_json)
