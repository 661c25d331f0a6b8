"""`stepwell report`: one HTML file that shows stores without a network."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..loop.report import format_bytes
from .errors import exit_on_error
from .options import Debug, Json, Quiet, number_of_bytes
from .output import LiveLine, Part, plural, print_json, print_parts

__all__ = ["report"]

_EPISODES = "best:3,worst:3,longest:1"
_MOST_BYTES = "5MB"


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of one or more stores; they are only read."),
    ],
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The new file: NAME.html.")
    ],
    episodes: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="Episodes to show of each store: best, worst, longest, shortest, first or last, "
            "each with a number, and ids such as 7,12-15; or none.",
        ),
    ] = _EPISODES,
    title: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Heading. Default: the names of the folders."),
    ] = None,
    max_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Size of the file at most, such as 800kB or 20MB. Where all frames do not fit, "
            "every second, fourth, ... frame of long episodes is shown, and a note says so.",
        ),
    ] = _MOST_BYTES,
    digest: Annotated[
        bool,
        typer.Option("--digest", help="Compute the digest of all rows; this reads everything."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if there is one.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one HTML file about a store, or several that are compared.

    stepwell report runs/pong -o report.html
    stepwell report runs/pong -o report.html --episodes best:1,worst:1,17
    stepwell report runs/random runs/trained -o compared.html --title "Before and after"
    stepwell report runs/pong -o small.html --max-size 500kB

    It is the page of stepwell view with its data inside: the main numbers, the runs that wrote
    the store, histograms of returns, lengths and actions, and some episodes to play frame by
    frame, every pixel as it is stored. It opens in any browser, from a disk as from a server,
    and loads nothing: a supplement of a paper, a page of a hub. The same stores give the same
    bytes. All episodes, and live stores: stepwell view
    """
    with exit_on_error(debug, "start again"):
        # Imported here: the other commands need no pages.
        from ...buffers.view.report import report_status, write_report

        with LiveLine(is_silent=quiet or as_json) as line:
            line.say(f"reading {', '.join(map(str, folders))} ...")
            made = write_report(
                folders,
                out,
                episodes=episodes,
                title=title,
                max_bytes=number_of_bytes("--max-size", max_size) or 0,
                with_digest=digest,
                overwrite=overwrite,
                progress=line.reporter(report_status),
            )
        if as_json:
            print_json(asdict(made))
        elif not quiet:
            print_parts(
                [
                    Part(plural(made.stores, "store"), style="bold"),
                    Part(f"{made.playable:,} of {plural(made.episodes, 'episode')} to play"),
                    Part(format_bytes(made.nbytes)),
                    Part(f"in {made.path}", style="bold"),
                ],
                *([Part(note, style="yellow")] for note in made.notes),
            )
