"""A table of a RAM map, every entry checked as it is read, with errors that say where it stands."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

__all__ = ["MOST_DEPTH", "MapTable", "map_text", "nearest"]

MOST_BYTES = 1 << 20
MOST_DEPTH = 50


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that looks most like `name`, as the end of a sentence."""
    names = sorted(known)
    if not names:
        return "there are none"
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"known are {', '.join(names)}"


class MapTable:
    """One table of a RAM map.

    Args:
        where: What an error begins with: the file, then the table and the entry.
        entries: The table, as `tomllib` gives it.

    Raises:
        ValueError: `entries` is no table, or its keys are no texts. Each method: the entry is
            not what the method's name says.

    Example:
        >>> MapTable("map.toml, [life]", {"var": "lives"}).text("var")
        'lives'
    """

    def __init__(self, where: str, entries: object) -> None:
        if not isinstance(entries, Mapping) or not all(isinstance(key, str) for key in entries):
            raise ValueError(
                f"{where}: expected a table with named entries, got {entries!r:.60}; "
                "write { key = value } or a [table]"
            )
        self.where = where
        self.entries: Mapping[str, object] = entries

    def error(self, key: str, problem: str) -> ValueError:
        """What to raise about the entry."""
        return ValueError(f"{self.where}, {key}: {problem}")

    def only(self, known: Collection[str]) -> None:
        """Refuse keys that are not known."""
        for key in self.entries:
            if key not in known:
                raise ValueError(
                    f"{self.where}: expected the keys {', '.join(sorted(known))}, "
                    f"got {key!r}; {nearest(key, known)}"
                )

    def table(self, key: str, header: str | None = None) -> MapTable:
        """The table under a key, empty if there is none; `header` is how errors call it."""
        return MapTable(f"{self.where}, {header or key}", self.entries.get(key, {}))

    def tables(self, besides: Collection[str] = ()) -> dict[str, MapTable]:
        """All entries, each a table itself, but for those of the given keys."""
        return {key: self.table(key) for key in self.entries if key not in besides}

    def text(self, key: str) -> str | None:
        """A text, or None."""
        found = self.entries.get(key)
        if found is None or isinstance(found, str):
            return found
        raise self.error(key, f"expected a text, got {found!r:.60}; write it in quotes")

    def texts(self, key: str, *, one: bool = False) -> tuple[str, ...] | None:
        """A list of texts, or None; with `one` a single text counts as a list of one."""
        found = self.entries.get(key)
        if found is None:
            return None
        if one and isinstance(found, str):
            return (found,)
        if isinstance(found, list | tuple) and all(isinstance(item, str) for item in found):
            return tuple(found)
        expected = "a text or a list of texts" if one else "a list of texts"
        raise self.error(key, f'expected {expected}, got {found!r:.60}; write it as ["..."]')

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        """One of the choices, or None."""
        found = self.text(key)
        if found is None or found in choices:
            return found
        raise self.error(
            key, f"expected one of {', '.join(choices)}, got {found!r}; {nearest(found, choices)}"
        )

    def whole(self, key: str, example: str) -> int | None:
        """A whole number, or None; `example` ends the error."""
        found = self.entries.get(key)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        raise self.error(key, f"expected a whole number, got {found!r:.60}; write {example}")

    def needed(self, key: str, found: int | str | None, example: str) -> None:
        """Refuse that an entry is missing."""
        if found is None:
            raise self.error(key, f"expected a value, got none; write {key} = {example}")

    def number(self, key: str) -> float | None:
        """A finite number, or None."""
        found = self.entries.get(key)
        if found is None:
            return None
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return float(found)
        raise self.error(key, f"expected a finite number, got {found!r:.60}; write it as in 0.5")


def map_text(path: Path) -> str:
    """The text of a file with a map in it.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no regular file, whose opening may never return, too long, or no UTF-8.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name}: expected a regular file, got a folder or a pipe")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path.name}: expected at most {MOST_BYTES:,} bytes, got more")
    return data.decode()
