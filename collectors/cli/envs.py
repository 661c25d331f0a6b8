"""`stepwell envs`: the envs that can be made on this machine, and similar names."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import gymnasium
import rich.columns
import rich.console
import rich.text
import typer
from gymnasium.envs.registration import EnvSpec

from .output import Output, print_json, with_output

# Modules of Gymnasium whose envs need other packages: what to look for, and what to install.
_NEEDS = {
    "gymnasium.envs.box2d": (("Box2D",), "gymnasium[box2d]"),
    "gymnasium.envs.mujoco": (("mujoco",), "gymnasium[mujoco]"),
    "gymnasium.envs.phys2d": (("jax", "flax"), "gymnasium[jax]"),
    "gymnasium.envs.tabular": (("jax", "flax"), "gymnasium[jax]"),
}
# Functions that Gymnasium registers in place of an env, which raise an error that names a package.
_MOVED = {"_raise_mujoco_py_error": "gymnasium-robotics", "_raise_shimmy_error": "shimmy"}


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Names of envs."""

    atari: tuple[str, ...]  # by the name that `make_atari` takes: "ALE/Pong-v5"
    ready: tuple[str, ...]  # other ids that can be made here
    # Ids of the same games with other presets, made by Gymnasium unchanged
    old_atari: tuple[str, ...]
    missing: dict[str, tuple[str, ...]]  # ids that need a package, by what to install
    # Emulators for cartridges, which users must have, as --backend takes them: the versions of the
    # "installed" ones, and for those that are "missing" what to install.
    nes: Mapping[str, Mapping[str, str]]


@with_output(has_quiet=False)
def envs(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Part of a name, in upper or lower case."),
    ] = None,
    *,
    output: Output,
) -> None:
    """List the envs to collect from: Atari games, NES emulators, Gymnasium's envs.

    stepwell envs
    stepwell envs pong
    stepwell envs nes

    Names are printed one per line where the output is not a terminal.
    """
    found = catalogue() if pattern is None else matching(catalogue(), pattern)
    shown = (found.atari, found.ready, found.old_atari, found.missing, *found.nes.values())
    if pattern is not None and not any(shown):
        hint = suggestion(pattern, "leave it out to see them all")
        raise ValueError(f"PATTERN: expected part of an env's name, got {pattern!r}; {hint}")
    if output.as_json:
        print_json(dataclasses.asdict(found))
    else:
        _show(found, everything=pattern is not None)


def catalogue() -> Catalogue:
    """List everything that is registered with Gymnasium, and the emulators."""
    # Imported here: most commands need no list.
    import ale_py

    from ...wrappers.nes.emulators import installed_backends, missing_backends

    emulators = {
        "installed": {str(name): version for name, version in installed_backends().items()},
        "missing": {str(name): install for name, install in missing_backends().items()},
    }
    gymnasium.register_envs(ale_py)
    atari: list[str] = []
    ready: list[str] = []
    old: list[str] = []
    missing: dict[str, list[str]] = {}
    for name, spec in sorted(gymnasium.registry.items()):
        package = _missing_package(spec)
        if name.startswith("ALE/"):
            atari.append(name)
        elif package is not None:
            missing.setdefault(package, []).append(name)
        elif str(spec.entry_point).startswith("ale_py"):
            old.append(name)
        else:
            ready.append(name)
    needs_package = {package: tuple(names) for package, names in sorted(missing.items())}
    return Catalogue(tuple(atari), tuple(ready), tuple(old), needs_package, emulators)


def _missing_package(spec: EnvSpec) -> str | None:
    """Return what must be installed before an env can be made."""
    entry = spec.entry_point
    if callable(entry):
        return _MOVED.get(getattr(entry, "__name__", ""))
    for prefix, (modules, package) in _NEEDS.items():
        if entry is not None and entry.startswith(prefix):
            return None if all(map(importlib.util.find_spec, modules)) else package
    module = (entry or "").partition(":")[0].partition(".")[0]
    return None if not module or importlib.util.find_spec(module) else module


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
    """A question "did you mean ALE/Pong-v5?", or ``otherwise`` where no name is similar."""
    from ...wrappers.make_vector_env import is_nes_id, with_module  # most make no envs

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
    # Of names with the same key, one that can be made is preferred, one without a namespace
    # (phys2d/CartPole-v1 needs JAX), and the newest version.
    for names in (missing, found.ready, found.atari):
        ordered = sorted(names, key=lambda name: ("/" not in name, _version(name)))
        by_key |= {_name_key(name): name for name in ordered}
    keys = difflib.get_close_matches(_name_key(text), by_key, n=count, cutoff=0.6)
    return [by_key[key] for key in keys]


def matching(found: Catalogue, pattern: str) -> Catalogue:
    """The part of a catalogue whose names contain a pattern, in upper or lower case."""
    key = _key(pattern)

    def chosen(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if key in _key(name))

    missing = {package: chosen(names) for package, names in found.missing.items()}
    return Catalogue(
        chosen(found.atari),
        chosen(found.ready),
        chosen(found.old_atari),
        {package: names for package, names in missing.items() if names},
        {
            kind: {name: text for name, text in texts.items() if key in _key(f"NES {name}")}
            for kind, texts in found.nes.items()
        },
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
    if any(found.nes.values()):
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


def _emulator_lines(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    installed = [f"{name} {version}" for name, version in found["installed"].items()]
    return [*installed, *(f"{name}: {install}" for name, install in found["missing"].items())]


def _show_group(
    console: rich.console.Console, title: str, names: Sequence[str], note: str = ""
) -> None:
    if names:
        head = f"  {len(names)}{', ' if note else ''}{note}"
        console.print()
        console.print(rich.text.Text.assemble((title, "bold"), (head, "dim")))
        console.print(rich.columns.Columns(names, padding=(0, 2), column_first=True))
