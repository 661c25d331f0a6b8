"""The ids of envs that are registered with Gymnasium, by what is needed to make them."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

__all__ = ["EnvIds", "env_ids"]

# Modules of Gymnasium whose envs need other packages: what to look for, and what to install.
_NEEDS = {
    "gymnasium.envs.box2d": (("Box2D",), "gymnasium[box2d]"),
    "gymnasium.envs.mujoco": (("mujoco",), "gymnasium[mujoco]"),
    "gymnasium.envs.phys2d": (("jax", "flax"), "gymnasium[jax]"),
    "gymnasium.envs.tabular": (("jax", "flax"), "gymnasium[jax]"),
}
# Functions that Gymnasium registers in place of an env, which raise an error that names a package.
_MOVED = {"_raise_mujoco_py_error": "gymnasium-robotics", "_raise_shimmy_error": "shimmy"}


class EnvIds(NamedTuple):
    """Ids of envs in alphabetical order.

    Args:
        atari: Atari games by the name that `make_atari` takes: "ALE/Pong-v5".
        ready: Other ids that can be made here.
        old_atari: Older ids of the same games with other presets, made by Gymnasium unchanged.
        missing: Ids that need a package, by what to install.
    """

    atari: tuple[str, ...]
    ready: tuple[str, ...]
    old_atari: tuple[str, ...]
    missing: dict[str, tuple[str, ...]]


def env_ids() -> EnvIds:
    """List everything that is registered with Gymnasium.

    Example:
        >>> found = env_ids()
        >>> "ALE/Pong-v5" in found.atari, "CartPole-v1" in found.ready
        (True, True)
    """
    import ale_py  # most commands need no list

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
    return EnvIds(tuple(atari), tuple(ready), tuple(old), needs_package)


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
