"""What can be seen from outside of an env of the old `gym`: layers, signatures, versions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import gymnasium

__all__ = ["accepts", "check_old_env", "layers", "render_modes", "seed_method", "what_it_is"]

NEEDED = ("reset", "step", "observation_space", "action_space")


def layers(env: object) -> Iterator[Any]:
    """The env and what it wraps, outermost first."""
    seen: set[int] = set()
    inner: Any = env
    while inner is not None and id(inner) not in seen and hasattr(inner, "step"):
        seen.add(id(inner))
        yield inner
        inner = getattr(inner, "env", None)


def check_old_env(env: object) -> None:
    """Raise unless this is one env of the old API, built, that can run.

    Raises:
        TypeError: Something else was given, or an env with gym's own checker inside.
    """
    if isinstance(env, gymnasium.Env):
        raise TypeError(
            f"{type(env).__qualname__} needs no adapter: expected an env of the old gym, got a "
            "gymnasium env; use it as it is"
        )
    if hasattr(env, "num_envs"):
        raise TypeError(
            f"from_gym adapts one env: expected an env of the old gym, got a vector env "
            f"({type(env).__qualname__}); give a factory of one to make_vec: "
            "make_vec(lambda: from_gym(...), 8)"
        )
    missing = [name for name in NEEDED if not hasattr(env, name)]
    if isinstance(env, type) or missing:
        lacks = f"{type(env).__qualname__} without {', '.join(missing)}"
        got = f"the class {env.__qualname__}" if isinstance(env, type) else lacks
        raise TypeError(
            f"from_gym adapts an env that is built: expected an object of the old gym's API, got "
            f"{got}; build the env first"
        )
    for layer in layers(env):
        if type(layer).__name__ == "PassiveEnvChecker":
            raise TypeError(
                "gym's own checker fails on the first step with numpy 2: expected an env without "
                f"it, got {env!s}; build the env by its class, or with gym.make(..., "
                "disable_env_checker=True)"
            )


def accepts(env: object, method: str, word: str) -> bool:
    """Whether a method takes a keyword, all the way to the layer that deals with it.

    A wrapper that takes any keywords hands them on, so the layer that it wraps is asked.
    """
    for layer in layers(env):
        try:
            parameters = inspect.signature(getattr(layer, method)).parameters
        except (AttributeError, TypeError, ValueError):  # no such method, or none to be looked into
            return False
        if word in parameters:
            return True
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            return False
    return True  # the innermost takes any


def seed_method(env: object) -> Any:
    """The env's own `seed`, or None; gym's default counts only where `reset` takes no seed.

    That default does what `reset(seed=)` does, and says at each call that it is deprecated.
    """
    method: Any = getattr(env, "seed", None)
    if not callable(method):
        return None
    innermost = list(layers(env))[-1]
    home = getattr(getattr(type(innermost), "seed", None), "__module__", "")
    return None if home == "gym.core" and accepts(env, "reset", "seed") else method


def render_modes(env: object) -> list[str]:
    """The render modes that the env's metadata lists, under the new key or the old one."""
    metadata = getattr(env, "metadata", None) or {}
    found = metadata.get("render_modes") or metadata.get("render.modes") or []
    return [str(mode) for mode in found]


def what_it_is(env: object) -> dict[str, Any]:
    """JSON-able facts: the env's class, its wrappers (outermost last), packages and versions."""
    # Loads in some 10 ms, which `import stepwell` need not take.
    from importlib.metadata import PackageNotFoundError, version

    chain = [type(layer) for layer in layers(env)]
    packages = {kind.__module__.partition(".")[0] for layer in chain for kind in layer.__mro__}
    versions: dict[str, str] = {}
    for package in sorted(packages):
        try:
            versions[package.replace("_", "-")] = version(package)
        except PackageNotFoundError:
            pass  # the standard library, or a module that no package brought
    names = [f"{kind.__module__}:{kind.__qualname__}" for kind in chain]
    return {"id": names[-1], "wrappers": names[-2::-1], "versions": versions}
