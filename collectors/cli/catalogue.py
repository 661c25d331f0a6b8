"""What there is to collect from on this machine."""

from __future__ import annotations

import difflib
import importlib.util
from dataclasses import dataclass, field

import gymnasium
from gymnasium.envs.registration import EnvSpec

from stepwell.collectors.cli.env_options import NesBackend
from stepwell.wrappers.atari_settings import game_ids

__all__ = ["Catalogue", "Emulators", "catalogue", "cure", "nearest", "unknown_env"]

# Where gymnasium keeps envs that need more than itself: the modules to look for, what to install.
_NEEDS = {
    "gymnasium.envs.box2d": (("Box2D",), "gymnasium[box2d]"),
    "gymnasium.envs.mujoco": (("mujoco",), "gymnasium[mujoco]"),
    "gymnasium.envs.phys2d": (("jax", "flax"), "gymnasium[jax]"),
    "gymnasium.envs.tabular": (("jax", "flax"), "gymnasium[jax]"),
}
# Instead of the env gymnasium registers a function that says what to install.
_MOVED = {"_raise_mujoco_py_error": "gymnasium-robotics", "_raise_shimmy_error": "shimmy"}


@dataclass(frozen=True, slots=True)
class Emulators:
    """What the user's own cartridges can be played with.

    Args:
        installed: Versions, by the names that ``--backend`` takes.
        missing: What to install for others.
    """

    installed: dict[NesBackend, str] = field(default_factory=dict[NesBackend, str])
    missing: dict[NesBackend, str] = field(default_factory=dict[NesBackend, str])


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Names of envs.

    Args:
        atari: Atari games by the name that `make_atari` takes: "ALE/Pong-v5".
        ready: Other ids that can be made here.
        old_atari: Ids of other presets of the same games: gymnasium makes them as they are.
        missing: Ids that need a package, by what to install.
        nes: Emulators for cartridges, which everybody brings along.
    """

    atari: tuple[str, ...]
    ready: tuple[str, ...]
    old_atari: tuple[str, ...]
    missing: dict[str, tuple[str, ...]]
    nes: Emulators = field(default_factory=Emulators)


def catalogue() -> Catalogue:
    """Look at everything that is registered with gymnasium, and for emulators.

    Example:
        >>> found = catalogue()
        >>> "ALE/Pong-v5" in found.atari, "CartPole-v1" in found.ready
        (True, True)
    """
    # Imported here: most commands look for no emulator.
    from stepwell.wrappers.nes.emulators import installed_backends, missing_backends

    atari = tuple(sorted(game_ids().values()))
    ready: list[str] = []
    old: list[str] = []
    missing: dict[str, list[str]] = {}
    for name, spec in sorted(gymnasium.registry.items()):
        package = _missing_package(spec)
        if name in atari:
            continue
        if package is not None:
            missing.setdefault(package, []).append(name)
        elif str(spec.entry_point).startswith("ale_py"):
            old.append(name)
        else:
            ready.append(name)
    lacking = {package: tuple(names) for package, names in sorted(missing.items())}
    emulators = Emulators(installed_backends(), missing_backends())
    return Catalogue(atari, tuple(ready), tuple(old), lacking, emulators)


def unknown_env(env: str) -> str | None:
    """What is wrong with an id, in a sentence with the nearest names; None when it exists."""
    try:
        gymnasium.spec(env)
    except gymnasium.error.Error:
        pass
    else:
        return None
    if any(name.rpartition("-v")[0] == env for name in gymnasium.registry):
        return None  # without a version: the newest
    hint = cure(env, "see what there is with: stepwell envs")
    return (
        f"unknown env: expected an Atari game, a cartridge's file (game.nes), an id of gymnasium's "
        f"or module:callable, got {env!r}; {hint}"
    )


def cure(text: str, otherwise: str) -> str:
    """Say what to do about a name that no env has.

    Args:
        text: The name.
        otherwise: What to do where nothing is near.

    Example:
        >>> cure("Pnog", "look again"), cure("zzzzzz", "look again")
        ('did you mean ALE/Pong-v5?', 'look again')
    """
    from stepwell.wrappers.make_vector_env import is_nes_id  # most commands make no envs

    if is_nes_id(text):
        return (
            "NES games are played from your own cartridge's file: stepwell collect game.nes "
            "(docs/nes.md)"
        )
    near = nearest(text)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def nearest(text: str, count: int = 3) -> list[str]:
    """Names of envs that look like the text, the likeliest first."""
    found = catalogue()
    lacking = [name for names in found.missing.values() for name in names]
    by_key: dict[str, str] = {}
    # Of names that look the same one that can be made counts, of several versions the newest.
    for names in (lacking, found.ready, found.atari):
        by_key |= {_key(name): name for name in sorted(names, key=_version)}
    keys = difflib.get_close_matches(_key(text), by_key, n=count, cutoff=0.6)
    return [by_key[key] for key in keys]


def _key(name: str) -> str:
    """What people remember of a name."""
    bare = name.rpartition("/")[2]
    stem, _, version = bare.rpartition("-v")
    return (stem if stem and version.isdigit() else bare).replace("_", "").lower()


def _version(name: str) -> int:
    version = name.rpartition("-v")[2]
    return int(version) if version.isdigit() else 0


def _missing_package(spec: EnvSpec) -> str | None:
    """What must be installed before an env can be made."""
    entry = spec.entry_point
    if callable(entry):
        return _MOVED.get(getattr(entry, "__name__", ""))
    for prefix, (modules, package) in _NEEDS.items():
        if entry is not None and entry.startswith(prefix):
            return None if all(map(importlib.util.find_spec, modules)) else package
    module = (entry or "").partition(":")[0].partition(".")[0]
    return None if not module or importlib.util.find_spec(module) else module
