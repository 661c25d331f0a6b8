"""`stepwell formats`: what data sets can be written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping

import rich.console
import rich.text

__all__ = ["show_formats"]


def show_formats(name: str | None, *, as_json: bool) -> None:
    """Print the formats with their options.

    Args:
        name: Name of one; None shows all.
        as_json: Print one JSON object instead.

    Raises:
        ValueError: There is none of that name.
    """
    # Few commands need them.
    from stepwell.buffers.bridges.formats.options import words_of
    from stepwell.buffers.bridges.formats.registry import format_names, format_of

    found = {one: format_of(one) for one in (format_names() if name is None else [name])}
    if as_json:
        said = {
            one: {
                "about": found[one].about,
                "install": found[one].install,
                "kind": found[one].kind,
                "export": words_of(found[one].export_options),
                "import": words_of(found[one].import_options),
            }
            for one in found
        }
        rich.console.Console(soft_wrap=True).out(json.dumps(said), highlight=False)
        return
    console = rich.console.Console(emoji=False, highlight=False, soft_wrap=True)
    for one, format_ in found.items():
        console.print(rich.text.Text.assemble((one, "bold"), f"  {format_.about}"))
        if format_.install:
            console.print(rich.text.Text(f"  needs pip install {format_.install}", style="dim"))
        _show("export", words_of(format_.export_options), console)
        _show("import", words_of(format_.import_options), console)


def _show(
    command: str, options: Mapping[str, tuple[str, str]], console: rich.console.Console
) -> None:
    for name, (values, about) in options.items():
        console.print(rich.text.Text(f"  {command} --option {name}: {values}  {about}"))
