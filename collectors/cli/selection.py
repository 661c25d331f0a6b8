"""Conditions on episodes, as they are written on a command line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from stepwell.buffers.curation.selection import EpisodeSelection
from stepwell.collectors.cli.numbers import whole_number

__all__ = ["Conditions", "episode_ids", "ids_in_words", "metadata_condition", "selection_of"]

_SPAN = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")


class Conditions(NamedTuple):
    """What was written; None and empty stand for "not said"."""

    where: Sequence[str] = ()
    episodes: str | None = None
    min_return: float | None = None
    max_return: float | None = None
    min_steps: str | None = None
    max_steps: str | None = None
    ended: bool = False
    cut: bool = False


def selection_of(conditions: Conditions) -> EpisodeSelection:
    """Read the conditions.

    Raises:
        ValueError: One cannot be read, two contradict each other, or there is none.
    """
    if conditions.ended and conditions.cut:
        raise ValueError(
            "expected --ended or --cut, got both: no episode is ended and cut; leave one out"
        )
    where = dict(metadata_condition("--where", text) for text in conditions.where)
    if len(where) < len(conditions.where):
        raise ValueError("--where: expected each key once, got one twice; leave one out")
    selection = EpisodeSelection(
        where=where or None,
        ids=None if conditions.episodes is None else episode_ids("--episodes", conditions.episodes),
        min_return=conditions.min_return,
        max_return=conditions.max_return,
        min_steps=_steps("--min-steps", conditions.min_steps),
        max_steps=_steps("--max-steps", conditions.max_steps),
        has_ended=True if conditions.ended else False if conditions.cut else None,
    )
    if selection.is_empty:
        raise ValueError(
            "expected at least one condition, got none: give --where, --episodes, --min-return, "
            "--max-return, --min-steps, --max-steps, --ended or --cut"
        )
    return selection


def metadata_condition(option: str, text: str) -> tuple[str, object]:
    """Read a key of the metadata and the value that it must have: JSON, or else text.

    Raises:
        ValueError: There is no key or no value.

    Example:
        >>> [metadata_condition("--where", text) for text in ("level=3", "task=door", 'id="3"')]
        [('level', 3), ('task', 'door'), ('id', '3')]
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(
            f"{option}: expected key=value such as task=door or level=3, got {text!r}: write both"
        )
    try:
        return key, cast("object", json.loads(value))
    except ValueError:
        return key, value


def episode_ids(option: str, text: str) -> tuple[range, ...]:
    """Read ids and spans of ids.

    Raises:
        ValueError: It is something else.

    Example:
        >>> episode_ids("--episodes", "3,10-20")
        (range(3, 4), range(10, 21))
    """
    spans: list[range] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(
                f"{option}: expected ids and spans such as 3,10-20, got {part.strip()!r}: mend that"
            )
        spans.append(range(first, last + 1))
    return tuple(spans)


def ids_in_words(ids: Sequence[int], room: int) -> str:
    """Ids as `episode_ids` reads them, as many as there is room for.

    Example:
        >>> ids_in_words([0, 1, 2, 5, 7, 8], 40), ids_in_words([1, 3, 5, 7, 9, 11], 10)
        ('0-2,5,7-8', '1,3,5,...')
    """
    spans: list[list[int]] = []
    for number in ids:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    words = ["-".join(map(str, span)) for span in spans]
    whole = ",".join(words)
    if len(whole) <= room:
        return whole
    kept = ""
    for word in words:
        if len(f"{kept}{word},...") > room and kept:
            break
        kept += f"{word},"
    return f"{kept}..."


def _steps(option: str, text: str | None) -> int | None:
    return None if text is None else whole_number(option, text, 0)
