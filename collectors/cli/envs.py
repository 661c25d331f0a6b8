"""`stepwell envs`: the envs that can be made on this machine, and similar names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import gymnasium
import rich.columns
import rich.console
import rich.text
import typer

from stepwell.collectors.cli.env_ids import env_ids
from stepwell.collectors.cli.errors import exit_on_error
from stepwell.collectors.cli.options import Debug, Json
from stepwell.collectors.cli.output import print_json

__all__ = [
    "Catalogue",
    "Emulators",
    "catalogue",
    "envs",
    "matching",
    "nearest",
    "suggestion",
    "unknown_env",
]


@dataclass(frozen=True, slots=True)
class Emulators:
    """Emulators for NES cartridges.

    Args:
        installed: Versions by the names that ``--backend`` takes.
        missing: What to install for the others.
    """

    installed: Mapping[str, str] = field(default_factory=dict[str, str])
    missing: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Names of envs.

    Args:
        atari: Atari games by the name that `make_atari` takes: "ALE/Pong-v5".
        ready: Other ids that can be made here.
        old_atari: Older ids of the same games with other presets, made by Gymnasium unchanged.
        missing: Ids that need a package, by what to install.
        nes: Emulators for cartridges, which users must have.
    """

    atari: tuple[str, ...]
    ready: tuple[str, ...]
    old_atari: tuple[str, ...]
    missing: dict[str, tuple[str, ...]]
    nes: Emulators = field(default_factory=Emulators)


def envs(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Part of a name, in upper or lower case."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the envs to collect from: Atari games, NES emulators, Gymnasium's envs.

    stepwell envs
    stepwell envs pong
    stepwell envs nes

    Names are printed one per line where the output is not a terminal.
    """
    with exit_on_error(debug):
        found = catalogue() if pattern is None else matching(catalogue(), pattern)
        if pattern is not None and not _has_any(found):
            hint = suggestion(pattern, "leave it out to see them all")
            raise ValueError(f"PATTERN: expected part of an env's name, got {pattern!r}; {hint}")
        if as_json:
            print_json(dataclasses.asdict(found))
        else:
            _show(found, everything=pattern is not None)


def catalogue() -> Catalogue:
    """List everything that is registered with Gymnasium, and the emulators.

    Example:
        >>> found = catalogue()
        >>> "ALE/Pong-v5" in found.atari, "CartPole-v1" in found.ready
        (True, True)
    """
    # Imported here: most commands need no emulator.
    from stepwell.wrappers.nes.emulators import installed_backends, missing_backends

    emulators = Emulators(
        {str(name): version for name, version in installed_backends().items()},
        {str(name): install for name, install in missing_backends().items()},
    )
    return Catalogue(*env_ids(), emulators)


def unknown_env(env: str) -> str | None:
    """Return an error message for an id that does not exist, with similar names; else None."""
    try:
        gymnasium.spec(env)
    except gymnasium.error.Error:
        pass
    else:
        return None
    if any(name.rpartition("-v")[0] == env for name in gymnasium.registry):
        return None  # without a version: the newest
    hint = suggestion(env, "see what there is with: stepwell envs")
    return (
        f"unknown env: expected an Atari game, an NES cartridge's file (game.nes), an id of "
        f"Gymnasium's or module:callable, got {env!r}; {hint}"
    )


def suggestion(text: str, otherwise: str) -> str:
    """Suggest what to do about a name that no env has.

    Args:
        text: The name.
        otherwise: The suggestion where no name is similar.

    Example:
        >>> suggestion("Pnog", "look again"), suggestion("zzzzzz", "look again")
        ('did you mean ALE/Pong-v5?', 'look again')
    """
    from stepwell.wrappers.make_vector_env import is_nes_id, with_module  # most make no envs

    full = with_module(text)
    if full is not None:
        return f"name the module that registers it: {full}"
    if is_nes_id(text):
        return (
            "NES games are played from your own cartridge's file: stepwell collect game.nes "
            "(docs/nes.md)"
        )
    near = nearest(text)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def nearest(text: str, count: int = 3) -> list[str]:
    """Return names of envs that are similar to a text, the most similar first."""
    found = catalogue()
    missing = [name for names in found.missing.values() for name in names]
    by_key: dict[str, str] = {}
    # Of names with the same key, one that can be made is preferred, and the newest version.
    for names in (missing, found.ready, found.atari):
        by_key |= {_name_key(name): name for name in sorted(names, key=_version)}
    keys = difflib.get_close_matches(_name_key(text), by_key, n=count, cutoff=0.6)
    return [by_key[key] for key in keys]


def matching(found: Catalogue, pattern: str) -> Catalogue:
    """Return the part of a catalogue whose names contain a pattern.

    Example:
        >>> matching(Catalogue(("ALE/Pong-v5",), ("Taxi-v4",), (), {}), "PONG").atari
        ('ALE/Pong-v5',)
    """
    key = _key(pattern)

    def chosen(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if key in _key(name))

    def emulators(texts: Mapping[str, str]) -> dict[str, str]:
        return {name: text for name, text in texts.items() if key in _key(f"NES {name}")}

    missing = {package: chosen(names) for package, names in found.missing.items()}
    return Catalogue(
        chosen(found.atari),
        chosen(found.ready),
        chosen(found.old_atari),
        {package: names for package, names in missing.items() if names},
        Emulators(emulators(found.nes.installed), emulators(found.nes.missing)),
    )


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def _name_key(name: str) -> str:
    """Return the part of a name that people remember."""
    bare = name.rpartition("/")[2]
    stem, _, version = bare.rpartition("-v")
    return _key(stem if stem and version.isdigit() else bare)


def _version(name: str) -> int:
    version = name.rpartition("-v")[2]
    return int(version) if version.isdigit() else 0


def _has_any(found: Catalogue) -> bool:
    games = (found.atari, found.ready, found.old_atari, found.missing)
    return any((*games, found.nes.installed, found.nes.missing))


def _show(found: Catalogue, *, everything: bool) -> None:
    console = rich.console.Console(emoji=False, highlight=False)
    old = found.old_atari if everything else ()
    if not console.is_terminal:
        for name in (*found.atari, *found.ready, *old):
            console.out(name)  # one per line, for other programs
        if everything:  # not names of envs, so only where a pattern matches them
            for line in _emulator_lines(found.nes):
                console.out(line)
        return
    _show_group(console, "Atari games", found.atari, "'Pong' is short for 'ALE/Pong-v5'")
    if found.nes.installed or found.nes.missing:
        head = "  your own: stepwell collect game.nes --backend NAME, with one of these"
        console.print()
        console.print(rich.text.Text.assemble(("NES cartridges", "bold"), (head, "dim")))
        for line in _emulator_lines(found.nes):
            console.print(rich.text.Text(line))
    _show_group(console, "Gymnasium's", found.ready)
    _show_group(console, "Older Atari ids", old, "made as Gymnasium makes them, with whole screens")
    for package, names in found.missing.items():
        _show_group(console, f"After pip install '{package}'", names)
    if len(old) < len(found.old_atari):
        hidden = f"{len(found.old_atari)} older Atari ids are not shown: stepwell envs NoFrameskip"
        console.print(rich.text.Text(f"\n{hidden}", style="dim"))


def _emulator_lines(found: Emulators) -> list[str]:
    installed = [f"{name} {version}" for name, version in found.installed.items()]
    return [*installed, *(f"{name}: {install}" for name, install in found.missing.items())]


def _show_group(
    console: rich.console.Console, title: str, names: Sequence[str], note: str = ""
) -> None:
    if names:
        head = f"  {len(names)}{', ' if note else ''}{note}"
        console.print()
        console.print(rich.text.Text.assemble((title, "bold"), (head, "dim")))
        console.print(rich.columns.Columns(names, padding=(0, 2), column_first=True))
