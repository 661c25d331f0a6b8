"""Options that several commands share, and the functions that parse their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from stepwell.buffers import Codec
from stepwell.buffers.curation.selection_text import (
    COUNTS,
    format_ids,
    parse_ids,
    parse_metadata,
    parse_number,
    parse_selection,
    real_number,
    whole_number,
)

__all__ = [
    "PLAYING",
    "Bottom",
    "Cartridge",
    "Codecs",
    "Cut",
    "Debug",
    "Ended",
    "Ids",
    "IncludeCut",
    "Json",
    "Lanes",
    "License",
    "MadeBy",
    "MaxReturn",
    "MaxSteps",
    "MinReturn",
    "MinSteps",
    "PlayedIds",
    "Quiet",
    "Sort",
    "StoreFolder",
    "Top",
    "Where",
    "format_ids",
    "number_of_bytes",
    "parse_codecs",
    "parse_ids",
    "parse_metadata",
    "parse_selection",
    "real_number",
    "stored_ids",
    "whole_number",
]

_OUTPUT = "Output"
_CONDITIONS = "Conditions on episodes (all of them must hold)"
_RANKING = "The best or the worst of them"
PLAYING = "Playing episodes again"
"""Panel of options."""

_IDS_LENGTH = 60

StoreFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of a store, or a URL; it is only read.")
]
PlayedIds = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="Only these, such as 3,10-20.", rich_help_panel=PLAYING),
]
Lanes = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Episodes to play at a time, each in a process. Default: one for each core.",
        rich_help_panel=PLAYING,
    ),
]
MadeBy = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="A function that makes the env, or an env id, where the store does not say how.",
        rich_help_panel=PLAYING,
    ),
]
Cartridge = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The cartridge of an NES game.", rich_help_panel=PLAYING),
]
Codecs = Annotated[
    list[str] | None,
    typer.Option(
        "--codec",
        metavar="FIELD=CODEC",
        help="Store a field with another codec: zstd, delta (images: smaller), narrow, or raw "
        "(fastest). May be repeated.",
    ),
]
License = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The licence of the data, which the card names: cc-by-4.0, mit, other, ...",
    ),
]

# Conditions on episodes.
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="The episode's metadata has this value, which is read as JSON, else as text. May be "
        "repeated.",
        rich_help_panel=_CONDITIONS,
    ),
]
Ids = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="The id is one of 3,10-20.", rich_help_panel=_CONDITIONS),
]
MinReturn = Annotated[
    str | None,
    typer.Option(
        metavar="X", help="The sum of stored rewards is X or more.", rich_help_panel=_CONDITIONS
    ),
]
MaxReturn = Annotated[
    str | None,
    typer.Option(
        metavar="X", help="The sum of stored rewards is X or less.", rich_help_panel=_CONDITIONS
    ),
]
MinSteps = Annotated[
    str | None,
    typer.Option(metavar="N", help="It has N env steps or more.", rich_help_panel=_CONDITIONS),
]
MaxSteps = Annotated[
    str | None,
    typer.Option(metavar="N", help="It has N env steps or fewer.", rich_help_panel=_CONDITIONS),
]
Ended = Annotated[
    bool,
    typer.Option("--ended", help="It terminated or was truncated.", rich_help_panel=_CONDITIONS),
]
Cut = Annotated[
    bool,
    typer.Option(
        "--cut",
        help="It did neither: only the recording stopped.",
        rich_help_panel=_CONDITIONS,
    ),
]

# The best or worst of the episodes that meet the conditions.
Top = Annotated[
    str | None,
    typer.Option(
        metavar="N|P%",
        help="Of these, the N with the greatest values, or this part of them, rounded up: 10%.",
        rich_help_panel=_RANKING,
    ),
]
Bottom = Annotated[
    str | None,
    typer.Option(
        metavar="N|P%", help="Or those with the smallest values.", rich_help_panel=_RANKING
    ),
]
Sort = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="The value: return (default), steps, id, or a key of the metadata.",
        rich_help_panel=_RANKING,
    ),
]
IncludeCut = Annotated[
    bool,
    typer.Option(
        "--include-cut",
        help="Rank cut episodes too, and those without beginning, though rewards of them are "
        "missing.",
        rich_help_panel=_RANKING,
    ),
]

# Output.
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object and nothing else.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_OUTPUT),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the full traceback of an error.", rich_help_panel=_OUTPUT),
]

_BYTES = {
    **{unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))},
    **{unit: 1024**power for power, unit in enumerate(("", "kib", "mib", "gib", "tib"))},
    **COUNTS,
}


def number_of_bytes(option: str, text: str | None) -> int | None:
    """Parse a number of bytes.

    Raises:
        ValueError: It is not one.

    Example:
        >>> number_of_bytes("--capacity-bytes", "2GB"), number_of_bytes("--capacity-bytes", "1 MiB")
        (2000000000, 1048576)
    """
    if text is None:
        return None
    number = parse_number(option, text, _BYTES)
    if number is None or number < 1:
        raise ValueError(f"{option}: expected bytes such as 500MB or 2GiB, got {text!r}")
    return number


def parse_codecs(option: str, texts: Sequence[str]) -> dict[str, Codec]:
    """Parse codecs of fields.

    Raises:
        ValueError: A text is not a field's name with a codec.

    Example:
        >>> parse_codecs("--codec", ["observation=raw", "action=narrow"])
        {'observation': 'raw', 'action': 'narrow'}
    """
    known: tuple[Codec, ...] = get_args(Codec)
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


def stored_ids(ranges: Sequence[range], ids: Sequence[int], where: object) -> list[int]:
    """Return the ids of stored episodes that are in some ranges.

    Args:
        ranges: What `parse_ids` returned.
        ids: Ids of all stored episodes, each once, in order.
        where: Name of the store or archive, for the message.

    Raises:
        ValueError: None is in one of the ranges.

    Example:
        >>> stored_ids([range(3, 4), range(10, 21)], [3, 7, 12], "runs/pong")
        [3, 12]
    """
    for each in ranges:
        if not any(one in each for one in ids):
            name = str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}"
            raise ValueError(
                f"--episodes: no episode of {where} has the id {name}, expected one of "
                f"{format_ids(ids, _IDS_LENGTH) or 'none'}; give others"
            )
    return [one for one in ids if any(one in each for each in ranges)]
