"""Options that several commands share, and the functions that parse their values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from stepwell.buffers import Codec
from stepwell.buffers.curation.selection import EpisodeSelection

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
    Path, typer.Argument(metavar="DIR", help="Folder of a store; it is only read.")
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
    typer.Option(
        "--ended", metavar="", help="It terminated or was truncated.", rich_help_panel=_CONDITIONS
    ),
]
Cut = Annotated[
    bool,
    typer.Option(
        "--cut",
        metavar="",
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
        metavar="",
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
        metavar="",
        help="Print one JSON object and nothing else.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", metavar="", help="Print errors only.", rich_help_panel=_OUTPUT),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", metavar="", help="Show the full traceback of an error.", rich_help_panel=_OUTPUT
    ),
]

_NUMBER = re.compile(
    r"([+-]?[0-9][0-9_,]*(?:\.[0-9]+)?(?:e\+?[0-9]{1,2})?) *([a-z]*)", re.IGNORECASE
)
_TOO_MANY = 2**63  # for the 64-bit counters of a store
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BYTES = {
    **{unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))},
    **{unit: 1024**power for power, unit in enumerate(("", "kib", "mib", "gib", "tib"))},
    **_COUNTS,
}
_ID_RANGE = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")


def whole_number(option: str, text: str | None, least: int = 1) -> int | None:
    """Parse a count.

    Args:
        option: Name of the option, for error messages.
        text: Its value; None where it was not given.
        least: The smallest number allowed.

    Raises:
        ValueError: It is not a whole number, or out of range.

    Example:
        >>> [whole_number("--steps", text) for text in ("100_000", "1e5", "100k", "0.1M")]
        [100000, 100000, 100000, 100000]
    """
    if text is None:
        return None
    number = _parse_number(option, text, _COUNTS)
    if number is None or number < least:
        raise ValueError(
            f"{option}: expected a whole number >= {least}, such as 100_000, 1e5 or 100k, "
            f"got {text!r}"
        )
    return number


def real_number(option: str, text: str | None) -> float | None:
    """Parse a number that may have a fraction.

    Raises:
        ValueError: It is not a number.

    Example:
        >>> real_number("--min-return", "-1.5")
        -1.5
    """
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ValueError(f"{option}: expected a number such as 1.5, got {text!r}") from None


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
    number = _parse_number(option, text, _BYTES)
    if number is None or number < 1:
        raise ValueError(f"{option}: expected bytes such as 500MB or 2GiB, got {text!r}")
    return number


def _parse_number(option: str, text: str, units: dict[str, int]) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    number = Decimal(match[1].replace("_", "").replace(",", "")) * units[match[2].lower()]
    if number >= _TOO_MANY:
        raise ValueError(
            f"{option}: expected a number below 2**63, got {text!r}; give a smaller one"
        )
    return int(number) if number == number.to_integral_value() else None


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


def parse_selection(
    *,
    where: Sequence[str] | None = None,
    episodes: str | None = None,
    min_return: str | None = None,
    max_return: str | None = None,
    min_steps: str | None = None,
    max_steps: str | None = None,
    ended: bool = False,
    cut: bool = False,
    top: str | None = None,
    bottom: str | None = None,
    sort: str | None = None,
    include_cut: bool = False,
) -> EpisodeSelection:
    """Parse the conditions on episodes; the selection is empty where none was given.

    Raises:
        ValueError: One cannot be parsed, or two contradict each other.
    """
    if ended and cut:
        raise ValueError(
            "expected --ended or --cut, got both: no episode is ended and cut; leave one out"
        )
    metadata: dict[str, object] = {}
    for text in where or ():
        key, value = parse_metadata("--where", text)
        if key in metadata:
            raise ValueError(f"--where: expected each key once, got {key!r} twice; leave one out")
        metadata[key] = value
    return EpisodeSelection(
        where=metadata or None,
        ids=None if episodes is None else parse_ids("--episodes", episodes),
        min_return=real_number("--min-return", min_return),
        max_return=real_number("--max-return", max_return),
        min_steps=whole_number("--min-steps", min_steps, 0),
        max_steps=whole_number("--max-steps", max_steps, 0),
        has_ended=True if ended else False if cut else None,
        top=_number_or_part("--top", top),
        bottom=_number_or_part("--bottom", bottom),
        sort=sort,
        include_cut=include_cut,
    )


def _number_or_part(option: str, text: str | None) -> int | str | None:
    """Parse a number of episodes; a part such as 10% is left to the selection."""
    if text is None or text.strip().endswith("%"):
        return text and text.strip()
    try:
        return whole_number(option, text)
    except ValueError:
        raise ValueError(
            f"{option}: expected a number of episodes such as 8, or a part such as 10%, got "
            f"{text!r}; give one"
        ) from None


def parse_metadata(option: str, text: str) -> tuple[str, object]:
    """Parse a key of the metadata and its value, which is JSON, or else text.

    Raises:
        ValueError: There is no key or no value.

    Example:
        >>> [parse_metadata("--where", text) for text in ("level=3", "task=door", 'id="3"')]
        [('level', 3), ('task', 'door'), ('id', '3')]
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(
            f"{option}: expected key=value such as task=door or level=3, got {text!r}; write both"
        )
    try:
        return key, cast("object", json.loads(value))
    except ValueError:
        return key, value


def parse_ids(option: str, text: str) -> tuple[range, ...]:
    """Parse ids and ranges of ids.

    Raises:
        ValueError: It is something else.

    Example:
        >>> parse_ids("--episodes", "3,10-20")
        (range(3, 4), range(10, 21))
    """
    ranges: list[range] = []
    for part in text.split(","):
        match = _ID_RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(
                f"{option}: expected numbers and ranges such as 3,10-20, got {part.strip()!r}; "
                f"correct it"
            )
        ranges.append(range(first, last + 1))
    return tuple(ranges)


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


def format_ids(ids: Sequence[int], max_length: int) -> str:
    """Format ids as `parse_ids` reads them, as many as fit into ``max_length`` characters.

    Example:
        >>> format_ids([0, 1, 2, 5, 7, 8], 40), format_ids([1, 3, 5, 7, 9, 11], 10)
        ('0-2,5,7-8', '1,3,5,...')
    """
    ranges: list[list[int]] = []
    for number in ids:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    texts = ["-".join(map(str, each)) for each in ranges]
    whole = ",".join(texts)
    if len(whole) <= max_length:
        return whole
    kept = ""
    for text in texts:
        if len(f"{kept}{text},...") > max_length and kept:
            break
        kept += f"{text},"
    return f"{kept}..."
