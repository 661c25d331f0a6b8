"""`stepwell envs`: what can be collected from here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import rich.columns
import rich.console
import rich.text

from stepwell.collectors.cli.catalogue import Catalogue, Emulators, catalogue, cure
from stepwell.collectors.cli.env_options import NesBackend

__all__ = ["show_envs"]


def show_envs(pattern: str | None, *, as_json: bool) -> None:
    """Print the envs whose name contains a pattern.

    Args:
        pattern: Part of a name, in any case; None shows all.
        as_json: Print one JSON object instead.

    Raises:
        ValueError: No name contains it.
    """
    found = catalogue() if pattern is None else matching(catalogue(), pattern)
    if pattern is not None and not _has_any(found):
        hint = cure(pattern, "leave it out to see them all")
        raise ValueError(f"PATTERN: expected part of an env's name, got {pattern!r}; {hint}")
    if as_json:
        text = json.dumps(dataclasses.asdict(found))
        rich.console.Console(soft_wrap=True).out(text, highlight=False)
    else:
        _show(found, everything=pattern is not None)


def matching(found: Catalogue, pattern: str) -> Catalogue:
    """The part of a catalogue whose names contain a pattern.

    Example:
        >>> matching(Catalogue(("ALE/Pong-v5",), ("Taxi-v4",), (), {}), "PONG").atari
        ('ALE/Pong-v5',)
    """
    key = _key(pattern)

    def chosen(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if key in _key(name))

    missing = {package: chosen(names) for package, names in found.missing.items()}
    return Catalogue(
        chosen(found.atari),
        chosen(found.ready),
        chosen(found.old_atari),
        {package: names for package, names in missing.items() if names},
        _emulators_with(found.nes, key),
    )


def _emulators_with(found: Emulators, key: str) -> Emulators:
    """Those that a pattern means, by their own names or by what all of them play."""

    def chosen(texts: dict[NesBackend, str]) -> dict[NesBackend, str]:
        return {name: text for name, text in texts.items() if key in _key(f"NES {name}")}

    return Emulators(chosen(found.installed), chosen(found.missing))


def _has_any(found: Catalogue) -> bool:
    games = (found.atari, found.ready, found.old_atari, found.missing)
    return any((*games, found.nes.installed, found.nes.missing))


def _show(found: Catalogue, *, everything: bool) -> None:
    console = rich.console.Console(emoji=False, highlight=False)
    old = found.old_atari if everything else ()
    if not console.is_terminal:
        for name in (*found.atari, *found.ready, *old):
            console.out(name)  # one a line, for other programs
        if everything:  # no env's names, so only where they were asked for
            for line in _emulator_lines(found.nes):
                console.out(line)
        return
    _group(console, "Atari games", found.atari, "'Pong' is short for 'ALE/Pong-v5'")
    _cartridges(console, found.nes)
    _group(console, "Gymnasium's", found.ready)
    _group(console, "Older Atari ids", old, "made as gymnasium makes them, with whole screens")
    for package, names in found.missing.items():
        _group(console, f"After pip install '{package}'", names)
    if len(old) < len(found.old_atari):
        hidden = f"{len(found.old_atari)} older Atari ids are not shown: stepwell envs NoFrameskip"
        console.print(rich.text.Text(f"\n{hidden}", style="dim"))


def _cartridges(console: rich.console.Console, found: Emulators) -> None:
    """What plays the user's own cartridges, and what else could."""
    if found.installed or found.missing:
        head = "  your own: stepwell collect game.nes --backend NAME, with one of these"
        console.print()
        console.print(rich.text.Text.assemble(("NES cartridges", "bold"), (head, "dim")))
        for line in _emulator_lines(found):
            console.print(rich.text.Text(line))


def _emulator_lines(found: Emulators) -> list[str]:
    there = [f"{name} {version}" for name, version in found.installed.items()]
    return [*there, *(f"{name}: {cure}" for name, cure in found.missing.items())]


def _group(
    console: rich.console.Console, title: str, names: Sequence[str], remark: str = ""
) -> None:
    if names:
        head = f"  {len(names)}{', ' if remark else ''}{remark}"
        console.print()
        console.print(rich.text.Text.assemble((title, "bold"), (head, "dim")))
        console.print(rich.columns.Columns(names, padding=(0, 2), column_first=True))


def _key(name: str) -> str:
    return name.replace("_", "").lower()
