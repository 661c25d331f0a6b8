"""Conditions on episodes as text: of the command line, and of the viewer's page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import cast

from ..base.number_text import count_in
from .selection import EpisodeSelection

_ID_RANGE = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parse_selection(
    *,
    where: Sequence[str] | None = None,  # keys of the metadata with their values: "level=3"
    episodes: str | None = None,  # ids and ranges of ids
    min_return: str | None = None,
    max_return: str | None = None,
    min_steps: str | None = None,
    max_steps: str | None = None,
    ended: bool = False,  # terminated or truncated ones
    cut: bool = False,  # the others
    top: str | None = None,  # number or part of the best
    bottom: str | None = None,  # number or part of the worst
    sort: str | None = None,  # the value to rank by
    include_cut: bool = False,  # rank cut episodes, too
    named: Callable[[str], str] = _option,  # the name of each of these arguments in messages
) -> EpisodeSelection:
    """Parse the conditions on episodes; the selection is empty where none was given."""
    if ended and cut:
        raise ValueError(
            f"expected {named('ended')} or {named('cut')}, got both: no episode is ended and cut; "
            f"leave one out"
        )
    metadata: dict[str, object] = {}
    for text in where or ():
        key, value = parse_metadata(named("where"), text)
        if key in metadata:
            raise ValueError(
                f"{named('where')}: expected each key once, got {key!r} twice; leave one out"
            )
        metadata[key] = value
    return EpisodeSelection(
        where=metadata or None,
        ids=None if episodes is None else parse_ids(named("episodes"), episodes),
        min_return=real_number(named("min_return"), min_return),
        max_return=real_number(named("max_return"), max_return),
        min_steps=count_in(named("min_steps"), min_steps, 0),
        max_steps=count_in(named("max_steps"), max_steps, 0),
        has_ended=True if ended else False if cut else None,
        top=_number_or_part(named("top"), top),
        bottom=_number_or_part(named("bottom"), bottom),
        sort=sort,
        include_cut=include_cut,
    )


def _number_or_part(option: str, text: str | None) -> int | str | None:
    """Parse a number of episodes; a part such as 10% is left to the selection."""
    if text is None or text.strip().endswith("%"):
        return text and text.strip()
    try:
        return count_in(option, text)
    except ValueError:
        raise ValueError(
            f"{option}: expected a number of episodes such as 8, or a part such as 10%, got "
            f"{text!r}; give one"
        ) from None


def parse_ids(option: str, text: str) -> tuple[range, ...]:
    """Parse ids and ranges of ids: ``"3,10-20"`` gives ``(range(3, 4), range(10, 21))``."""
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


def parse_metadata(option: str, text: str) -> tuple[str, object]:
    """Parse a key of the metadata and its value, ``key=value``; the value is JSON, or else text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(
            f"{option}: expected key=value such as task=door or level=3, got {text!r}; write both"
        )
    try:
        return key, cast("object", json.loads(value))
    except (ValueError, RecursionError):  # brackets within brackets
        return key, value


def format_ids(ids: Sequence[int], max_length: int) -> str:
    """Format ids as `parse_ids` reads them, as many as fit into ``max_length`` characters."""
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


def real_number(option: str, text: str | None) -> float | None:
    """Parse a number that may have a fraction; None where it was not given."""
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ValueError(f"{option}: expected a number such as 1.5, got {text!r}") from None
