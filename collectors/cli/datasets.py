"""`stepwell datasets`: the catalogue, a data set of it on this disk, and a try of its env."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.padding
import rich.text
import typer

from ...buffers import SequenceReplayBuffer
from ...buffers.storage.disk.publish import check_unused, disk_bytes
from ..loop.report import format_bytes
from .archive import CODES, made_parts
from .errors import sentence_of, show_error
from .exchange import FormatOptions, export_data, parse_options, written_formats
from .game_options import AGAIN, with_playing
from .health import DIFFERS, UNREACHABLE
from .options import count_in
from .output import Output, Part, plural, print_json, print_lines, table_console, with_output

if TYPE_CHECKING:
    from ..catalogue.datasets import DatasetCheck
    from ..catalogue.index import Dataset

_SAMPLE = "2"


def _names() -> list[str]:
    from ..catalogue.index import read_index

    return sorted(read_index())


Catalogue = Annotated[
    Path | None,
    typer.Option(
        "--index", metavar="FILE", help="The index of another catalogue than Stepwell's own."
    ),
]


@with_output(has_quiet=False)
def show(
    context: typer.Context,
    *,
    index: Catalogue = None,
    output: Output,
) -> None:
    """List the data sets that can be made here; datasets get makes one, check tries its env.

    stepwell datasets
    stepwell datasets get atari/pong-random --out runs/random
    stepwell datasets get cartpole/expert --to npz --out arrays/expert
    stepwell datasets check atari/pong-random
    stepwell datasets --index ours/index.toml

    Nothing is downloaded: seeds and actions came with Stepwell, and the env plays
    them.
    """
    if context.invoked_subcommand is not None:
        if index is not None or output != Output():
            raise ValueError(
                f"expected options after the command, got them before it: write stepwell "
                f"datasets {context.invoked_subcommand} ... with its options at the end"
            )
        return
    from ..catalogue.index import read_index

    found = read_index(index)
    if output.as_json:
        print_json({name: found[name].to_json() for name in sorted(found)})
    else:
        _show_table([found[name] for name in sorted(found)])


@with_output("start again", codes=CODES)
@with_playing(AGAIN)
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the list.", autocompletion=_names)
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="NEW", help="New folder, or what export calls OUT with --to."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Export it: stepwell formats lists them. The store stays in the cache.",
            autocompletion=written_formats,
        ),
    ] = None,
    option: FormatOptions = None,
    index: Catalogue = None,
    again: dict[str, Any],
    output: Output,
) -> None:
    """Make a data set on this machine: its env plays it again, and every row is compared.

    stepwell datasets get atari/pong-random --out runs/random
    stepwell datasets get cartpole/expert --to minari --out cartpole/expert-v0

    It is there when all of it is there and equal; an error or Ctrl-C leaves
    nothing behind.
    Exit codes: 0 it is made, 1 the env shows other rows here, 3 it cannot be
    played.
    """
    if option and to is None:
        raise ValueError("--option: expected --to with the format that has it, got none")
    from ...buffers.exchange.formats.exporting import checked_target
    from ..catalogue.datasets import load_dataset, make_dataset
    from ..catalogue.index import find_dataset
    from ..simulation.player import played_status

    entry = find_dataset(name, index)
    options = parse_options(option or [])
    if to is None:
        check_unused(out)
    else:
        checked_target(to, out, options)  # playing can take minutes
    with output.line(f"looking at {name} ...") as line:
        more: Any = {**again, "index": index, "progress": line.reporter(played_status(name))}
        done = make_dataset(entry, out, **more) if to is None else load_dataset(name, **more)
    if isinstance(done, SequenceReplayBuffer):
        export_data(done, str(to), str(out), {"options": options}, output)
    else:
        about = {"dataset": name, "path": str(out), "digest": entry.digest}
        facts = {**done.to_json(), **about, "disk_bytes": disk_bytes(out)}
        sizes = f"{format_bytes(entry.archive_bytes)} -> {format_bytes(disk_bytes(out))}"
        middle = map(Part, (sizes, "equal rows", f"digest {entry.digest}"))
        output.show(facts, made_parts(done, out, *middle))


@with_output("start again")
@with_playing(AGAIN)
def check(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Check one of them; without it all.", autocompletion=_names
        ),
    ] = None,
    *,
    sample: Annotated[
        str, typer.Option(metavar="N", help="Episodes of each to play, drawn at random.")
    ] = _SAMPLE,
    index: Catalogue = None,
    again: dict[str, Any],
    output: Output,
) -> None:
    """Play a sample of a data set, or of each: do its env and packages show the same rows here?

    stepwell datasets check
    stepwell datasets check atari/pong-random --sample 5

    Nothing is stored. Where rows differ, the versions are named that are others
    than those with which the data set was made.
    Exit codes: 0 all rows are equal, 1 some differ, 3 a package is missing, or an
    env is not the recorded one.
    """
    from ..catalogue.datasets import check_dataset
    from ..catalogue.index import find_dataset, read_index
    from ..simulation.player import played_status

    names = sorted(read_index(index)) if name is None else [find_dataset(name, index).name]
    count = count_in("--sample", sample)
    done: list[DatasetCheck] = []
    left: dict[str, str] = {}
    for each in names:
        with output.line(f"looking at {each} ...") as line:
            shown = line.reporter(played_status(each))
            try:
                found = check_dataset(each, index=index, sample=count or 0, progress=shown, **again)
            except (ImportError, ValueError) as error:
                sentence = sentence_of(error)
                if output.debug or name is not None or sentence is None:
                    raise
                left[each] = sentence
                continue
        done.append(found)
        if not output.is_silent:
            parts = [
                Part(found.name, style="bold"),
                Part("equal") if found.is_equal else Part("DIFFERS", style="bold red"),
                Part(plural(found.episodes, "episode")),
                *([Part(plural(found.steps, "step"))] if found.is_equal else []),
            ]
            if found.changed:
                parts.append(Part(f"other versions: {', '.join(found.changed)}", style="yellow"))
            print_lines(parts)
        if not found.is_equal and not output.as_json:
            show_error(f"{each}: {found.why}")
    code = DIFFERS if any(not one.is_equal for one in done) else UNREACHABLE if left else 0
    if output.as_json:
        print_json({"checked": [one.to_json() for one in done], "left_out": left})
    for each, why in left.items():
        if not output.as_json:
            show_error(f"{each}: {why}")
    if code:
        raise typer.Exit(code)


datasets = {"": show, "get": get, "check": check}


def _show_table(found: Sequence[Dataset]) -> None:
    """A line of figures for each data set, and one below that says what it is."""
    from ..catalogue.index import spread

    rows: list[tuple[str, ...]] = [("name", "steps", "episodes", "return", "archive", "made")]
    for one in found:
        sizes = map(format_bytes, (one.archive_bytes, one.store_bytes))
        returns = spread(one.return_mean, one.return_std)
        rows.append((one.name, f"{one.steps:,}", f"{one.episodes:,}", returns, *sizes))
    name, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    console = table_console()
    for row, entry in zip(rows, [None, *found], strict=True):
        line = rich.text.Text(row[0].ljust(name), style="bold")
        for cell, width in zip(row[1:], widths, strict=True):
            line.append(f"  {cell:>{width}}", style="" if entry else "bold")
        console.print(line, no_wrap=True, soft_wrap=True)
        if entry is not None:
            about = rich.text.Text(f"{entry.env}, {entry.policy} ({entry.license})", style="dim")
            console.print(rich.padding.Padding(about, (0, 0, 0, 4), expand=False))
    print_lines("", f"{plural(len(found), 'data set')}; make one: stepwell datasets get NAME")
