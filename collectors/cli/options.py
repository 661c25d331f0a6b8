"""Options that several commands share, and the functions that parse their values."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional, get_args

import numpy as np
import typer

from ...buffers import Codec, SequenceReplayBuffer
from ...buffers.base.number_checks import count_in as count_in
from ...buffers.base.number_checks import number_of_bytes as number_of_bytes
from ...buffers.curation.selection import SORT_NAMES, parse_selection
from ...buffers.curation.selection import format_ids as format_ids
from ...buffers.curation.selection import parse_ids as parse_ids
from ...buffers.curation.selection import parse_metadata as parse_metadata
from ...buffers.curation.selection import real_number as real_number

OUTPUT = "Output"
"""A panel of options."""

_IDS_LENGTH = 60


StoreFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of a store; it is only read.")
]
Codecs = Annotated[
    list[str] | None,
    typer.Option(
        "--codec",
        metavar="FIELD=CODEC",
        help="Store a field with another codec: patch (images), zstd, narrow, or raw. May be "
        "repeated.",
    ),
]
Digest = Annotated[
    bool, typer.Option("--digest", help="Compute the digest of all rows; this reads everything.")
]
License = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The licence of the data, which the card names: cc-by-4.0, mit, other, ...",
    ),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the full traceback of an error.", rich_help_panel=OUTPUT),
]


@dataclass(frozen=True, slots=True)
class Row:
    """An option of a group, without a value where it is not given."""

    metavar: str | None  # None for a flag, and for a choice, which shows its values
    help: str
    take: Callable[[str, Any], Any] | None = None  # makes a value of the option and what was given
    of: Any = str
    default: object = None
    complete: Callable[[], list[str]] | None = None


def with_options(
    name: str, panels: Mapping[str, Mapping[str, Row]], group: Callable[[dict[str, Any]], object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a table by panels, which it receives as a group in ``name``."""
    # Typer reads options from a signature: in the one that it gets, each of them is a parameter.
    options: dict[str, inspect.Parameter] = {}
    for panel, rows in panels.items():
        for each, row in rows.items():
            flag = [f"--{each.replace('_', '-')}"] if row.of is bool else []
            option = typer.Option(
                *flag,
                metavar=row.metavar,
                help=row.help,
                autocompletion=row.complete,
                rich_help_panel=panel,
            )
            options[each] = inspect.Parameter(
                each,
                inspect.Parameter.KEYWORD_ONLY,
                default=row.default,
                annotation=Annotated[Optional[row.of], option],  # noqa: UP045 # at run time
            )

    return lambda command: spliced(command, name, options, group)


def spliced(
    command: Callable[..., None],
    name: str,
    options: Mapping[str, inspect.Parameter],
    group: Callable[[dict[str, Any]], Any],
    around: Callable[[Any], AbstractContextManager[None]] = contextlib.nullcontext,
) -> Callable[..., None]:
    """The command with these options in the place of an argument, which gets them as a group."""
    own = inspect.signature(command, eval_str=True)
    shown: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        shown += options.values() if parameter.name == name else [parameter]

    @functools.wraps(command)
    def run(**given: object) -> None:
        arguments = {each: value for each, value in given.items() if each not in options}
        arguments[name] = group({each: given[each] for each in options})
        with around(arguments[name]):
            command(**arguments)

    run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return run


def taken(panels: Mapping[str, Mapping[str, Row]], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table's options, as their rows make them; of those that were given."""
    rows = {name: row for panel in panels.values() for name, row in panel.items()}
    return {
        name: row.take(f"--{name.replace('_', '-')}", values[name]) if row.take else values[name]
        for name, row in rows.items()
        if values[name] not in (None, [])
    }


_SELECTION = {
    "Conditions on episodes (all of them must hold)": {
        "where": Row(
            "KEY=VALUE",
            "The episode's metadata has this value, which is read as JSON, else as text. May be "
            "repeated.",
            of=list[str],
        ),
        "episodes": Row("IDS", "The id is one of 3,10-20."),
        "min_return": Row("X", "The sum of stored rewards is X or more."),
        "max_return": Row("X", "The sum of stored rewards is X or less."),
        "min_steps": Row("N", "It has N env steps or more."),
        "max_steps": Row("N", "It has N env steps or fewer."),
        "ended": Row(None, "It terminated or was truncated.", of=bool, default=False),
        "cut": Row(None, "It did neither: only the recording stopped.", of=bool, default=False),
    },
    "The best or the worst of them": {
        "top": Row(
            "N|P%",
            "Of these, the N with the greatest values, or this part of them, rounded up: 10%.",
        ),
        "bottom": Row("N|P%", "Or those with the smallest values."),
        "sort": Row(
            "KEY",
            "The value: return (default), steps, id, or a key of the metadata.",
            complete=lambda: list(SORT_NAMES),
        ),
        "include_cut": Row(
            None,
            "Rank cut episodes too, and those without beginning, though rewards of them are "
            "missing.",
            of=bool,
            default=False,
        ),
    },
}
# A command gets an EpisodeSelection, which is empty where no condition was given.
with_selection = with_options("selection", _SELECTION, lambda values: parse_selection(**values))


def parse_codecs(option: str, texts: Sequence[str]) -> dict[str, Codec]:
    """Parse codecs of fields, such as "observation=raw"."""
    known: list[Codec] = [codec for codec in get_args(Codec) if codec != "delta"]
    found: dict[str, Codec] = {}
    for text in texts:
        name, _, codec = text.partition("=")
        if not name or codec not in known:
            raise ValueError(
                f"{option}: expected FIELD=CODEC with {', '.join(known)}, such as "
                f"observation=raw, got {text!r}; correct it"
            )
        found[name] = codec
    return found


def refuse_store(out: Path, otherwise: str = "") -> None:
    """Refuse a folder that is a store already."""
    from ...buffers.storage.disk.storage import DiskStorage

    if DiskStorage.exists(out):
        raise ValueError(
            f"--out {out} holds a store already: expected a new or empty folder; {otherwise}choose "
            f"another folder"
        )


def ids_in(replay: SequenceReplayBuffer) -> list[int]:
    """Ids of the stored episodes, in order."""
    found: list[int] = np.unique(replay.storage.index.records["episode"]).tolist()
    return found


def stored_ids(ranges: Sequence[range], ids: Sequence[int], where: object) -> list[int]:
    """Those ids of stored episodes, all of them in order, that are in ranges of `parse_ids`."""
    # ``where`` names the store or archive in the error where none is.
    for each in ranges:
        if not any(one in each for one in ids):
            name = str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}"
            raise ValueError(
                f"--episodes: no episode of {where} has the id {name}, expected one of "
                f"{format_ids(ids, _IDS_LENGTH) or 'none'}; give others"
            )
    return [one for one in ids if any(one in each for each in ranges)]
