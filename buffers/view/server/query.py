"""The words of a request: checked, and bounded, before anything is read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from ...curation.selection import EpisodeSelection, parse_selection

_NUMBERS = ("min_return", "max_return", "min_steps", "max_steps")
_TEXTS = (*_NUMBERS, "ids", "top", "bottom", "rank")
FILTER_WORDS = (*_NUMBERS, "ended", "ids", "where", "top", "bottom", "rank", "include_cut")
"""QueryParameters of a filter: the options of ``stepwell filter``."""

_REPEATED = ("where", "store", "name")
_MOST_WORDS, _MOST_LENGTH, _MOST_WHERE, _MOST_RANGES = 100, 2_000, 16, 200
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_REAL = re.compile(
    r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,3})?|[+-]?inf",
    re.IGNORECASE | re.ASCII,
)
_COUNT = re.compile(
    r"[0-9][0-9_,]{0,20}(\.[0-9]{1,6})?([kmg]|e[0-9]{1,2})?", re.IGNORECASE | re.ASCII
)
_IDS = re.compile(r"[0-9,\s-]+", re.ASCII)
_LONG_NUMBER = re.compile(r"[0-9]{16}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_OPTIONS = {"ids": "episodes", "rank": "sort"}  # the others have the names of the command's
_WORDS = {option: word for word, option in _OPTIONS.items()}


class BadRequest(ValueError):
    """A request that its sender can correct; the message is for the user."""


class QueryParameters:
    """The words of a request's query, each with its values; others than ``known`` are refused."""

    def __init__(self, pairs: Iterable[tuple[str, str]], known: Sequence[str]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if name not in known:
                raise BadRequest(f"{name[:40]!r}: expected one of {', '.join(known)}; leave it out")
            if name in self._values and name not in _REPEATED:
                raise BadRequest(f"{name}: expected it once, got it again; give one")
            if len(value) > _MOST_LENGTH:
                raise BadRequest(
                    f"{name}: expected at most {_MOST_LENGTH:,} characters, got {len(value):,}"
                )
            self._values.setdefault(name, []).append(value)

    @classmethod
    def of_query(cls, query: bytes, known: Sequence[str]) -> QueryParameters:
        """The words of an address, after its question mark."""
        try:
            pairs = parse_qsl(
                query.decode("ascii"),
                keep_blank_values=False,
                errors="strict",
                max_num_fields=_MOST_WORDS,
            )
        except ValueError:
            raise BadRequest(
                f"expected at most {_MOST_WORDS} words of UTF-8 in the address, got others"
            ) from None
        return cls(pairs, known)

    @classmethod
    def of_json(cls, value: object, known: Sequence[str]) -> QueryParameters:
        """The words of an object of JSON, whose values are texts, numbers, bools or lists."""
        if not isinstance(value, Mapping):
            raise BadRequest("filter: expected an object of words and values, got something else")
        pairs = [
            (str(name), _text(str(name), one))
            for name, given in value.items()
            if given is not None and given is not False
            for one in (given if isinstance(given, list) else [given])
        ]
        if len(pairs) > _MOST_WORDS:
            raise BadRequest(f"filter: expected at most {_MOST_WORDS} words, got {len(pairs)}")
        return cls(((name, text) for name, text in pairs if text), known)

    def all(self, name: str) -> list[str]:
        """All values of a word that may be repeated."""
        return self._values.get(name, [])

    def text(self, name: str) -> str | None:
        """The value of a word; None where it is not there."""
        return self._values.get(name, [None])[0]

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number within bounds."""
        text = self.text(name)
        return default if text is None else whole(name, text, least, most)

    def real(self, name: str, least: float, most: float) -> float | None:
        """A number that may have a fraction; None where it is not there."""
        text = self.text(name)
        if text is None:
            return None
        number = float(text) if _REAL.fullmatch(text) else None
        if number is None or not least <= number <= most:
            raise BadRequest(f"{name}: expected a number from {least} to {most}, got {text[:40]!r}")
        return number

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of a few words."""
        text = self.text(name) or default
        if text not in choices:
            raise BadRequest(f"{name}: expected {' or '.join(choices)}, got {text[:40]!r}")
        return text


def whole(name: str, text: str, least: int, most: int) -> int:
    """Parse a whole number within bounds."""
    number = int(text) if _WHOLE.fullmatch(text) else None
    if number is None or not least <= number <= most:
        raise BadRequest(
            f"{name}: expected a whole number from {least:,} to {most:,}, got {text[:40]!r}"
        )
    return number


def selection_of(words: QueryParameters) -> EpisodeSelection:
    """The selection that the words of a filter describe, as ``stepwell filter`` reads them."""
    where = words.all("where")
    if len(where) > _MOST_WHERE:
        raise BadRequest(f"where: expected at most {_MOST_WHERE} of them, got {len(where)}")
    # `parse_selection` is that of the command line, whose user may give numbers of any size and
    # form. A request may not: what is expensive to read is refused before it is read.
    for name in ("min_return", "max_return"):
        _check_form(words, name, _REAL, "a number such as 1.5")
    for name in ("min_steps", "max_steps"):
        _check_form(words, name, _COUNT, "a whole number such as 100 or 10k")
    ids = words.text("ids")
    if ids is not None:
        _check_form(words, "ids", _IDS, "numbers and ranges such as 3,10-20")
        if _LONG_NUMBER.search(ids) or ids.count(",") >= _MOST_RANGES:
            raise BadRequest(
                f"ids: expected at most {_MOST_RANGES} numbers and ranges, of 15 digits at most"
            )
    ended = words.text("ended")
    if ended is not None:
        words.choice("ended", "true", ("true", "false"))
    try:
        return parse_selection(
            **{_OPTIONS.get(name, name): words.text(name) for name in _TEXTS},
            where=where,
            ended=ended == "true",
            cut=ended == "false",
            include_cut=words.choice("include_cut", "false", ("true", "false")) == "true",
            named=lambda name: _WORDS.get(name, name),
        )
    except (ValueError, TypeError) as error:
        raise BadRequest(str(error)) from error


def filter_command(path: Path, words: QueryParameters) -> str:
    """The command that copies the episodes of a filter to a new store, for a shell such as Bash."""
    parts = ["stepwell", "filter", str(path)]
    for name in FILTER_WORDS:
        option = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
        for text in words.all(name):
            if name == "ended":
                parts.append("--ended" if text == "true" else "--cut")
            elif name == "include_cut":
                parts += ["--include-cut"] if text == "true" else []
            elif text.startswith("-"):
                parts.append(f"{option}={text}")
            else:
                parts += [option, text]
    return " ".join(map(_quoted, [*parts, "--out", "NEW"]))


def _quoted(text: str) -> str:
    """The text as a shell reads it: without characters that a terminal may act on."""
    if not _CONTROL.search(text):
        return shlex.quote(text)
    safe = text.replace("\\", "\\\\").replace("'", "\\'")
    found = _CONTROL.sub(
        lambda match: "".join(
            f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "surrogateescape")
        ),
        safe,
    )
    return f"$'{found}'"


def _check_form(words: QueryParameters, name: str, form: re.Pattern[str], expected: str) -> None:
    text = words.text(name)
    if text is not None and not form.fullmatch(text.strip()):
        raise BadRequest(f"{name}: expected {expected}, got {text[:40]!r}")


def _text(name: str, value: object) -> str:
    if value is True:
        return "true"
    if isinstance(value, int | float | str):
        return str(value)
    raise BadRequest(f"filter: {name[:40]!r}: expected text or a number, got something else")
