"""`stepwell formats`: what data sets can be written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import rich.box
import rich.console
import rich.table
import rich.text

if TYPE_CHECKING:
    from stepwell.buffers.bridges.formats.format import Format
    from stepwell.buffers.bridges.formats.options import OptionHelp

__all__ = ["show_formats"]


def show_formats(name: str | None, *, as_json: bool) -> None:
    """Print the formats, or one with its options.

    Args:
        name: Name of one; None shows all.
        as_json: Print one JSON object instead.

    Raises:
        ValueError: There is none of that name.
    """
    # Few commands need them.
    from stepwell.buffers.bridges.formats.format import format_names, format_of

    found = {one: format_of(one) for one in (format_names() if name is None else [name])}
    if as_json:
        said = {one: _said(format_) for one, format_ in found.items()}
        rich.console.Console(soft_wrap=True).out(json.dumps(said), highlight=False)
        return
    console = rich.console.Console(emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 120
    if name is None:
        console.print(_overview(found))
        console.print(rich.text.Text("\nOptions of one: stepwell formats NAME", style="dim"))
    else:
        _show(name, found[name], console)


def _said(format_: Format) -> dict[str, object]:
    """All about a format, as plain data."""
    from stepwell.buffers.bridges.formats.options import option_help

    sides = {"export": format_.export_options, "import": format_.import_options}
    return {
        "about": format_.about,
        "install": format_.install,
        "kind": format_.kind,
        **{
            side: {option: words._asdict() for option, words in option_help(options).items()}
            for side, options in sides.items()
        },
    }


def _overview(found: Mapping[str, Format]) -> rich.table.Table:
    table = _table("format", "a data set is", "pip install")
    for name, format_ in found.items():
        cells = (format_.about, format_.install or "")
        table.add_row(rich.text.Text(name, style="bold"), *map(rich.text.Text, cells))
    return table


def _show(name: str, format_: Format, console: rich.console.Console) -> None:
    """One format, with its options."""
    from stepwell.buffers.bridges.formats.options import option_help

    console.print(rich.text.Text.assemble((name, "bold"), f"  {format_.about}"))
    if format_.install:
        console.print(rich.text.Text(f"needs: pip install {format_.install}"))
    for command, options in (
        (f"stepwell export ... --to {name}", option_help(format_.export_options)),
        (f"stepwell import ... --from {name}", option_help(format_.import_options)),
    ):
        console.print(rich.text.Text(f"\n{command}", style="bold"))
        if options:
            console.print(_options(options))
        else:
            console.print("has no options")


def _options(options: Mapping[str, OptionHelp]) -> rich.table.Table:
    table = _table("--option", "values", "default", "")
    for name, words in options.items():
        # As text: what looks like markup in it is none.
        table.add_row(*map(rich.text.Text, (f"{name}=", *words)))
    return table


def _table(*columns: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
