"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["SHOW", "Debug", "Json", "Quiet"]

SHOW = "Output"

Debug = Annotated[
    bool,
    typer.Option(
        "--debug", metavar="", help="Show the whole traceback of an error.", rich_help_panel=SHOW
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", metavar="", help="Print one JSON object and nothing else.", rich_help_panel=SHOW
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", metavar="", help="Show nothing but errors.", rich_help_panel=SHOW
    ),
]
