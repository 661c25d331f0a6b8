"""Versions of the packages that decide what an env returns."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType

from ..buffers.base.optional_libraries import installed_version

# Packages that compute pixels or numbers of envs, by the modules that envs import; those without
# names here are named like their module. The first one that is installed is the one in use.
_DISTRIBUTIONS = {
    "Box2D": ("box2d", "box2d-py"),
    "ale_py": (),
    "cv2": (
        "opencv-python",
        "opencv-python-headless",
        "opencv-contrib-python",
        "opencv-contrib-python-headless",
    ),
    "cynes": (),
    "jax": (),
    "mujoco": (),
    "nes_py": (),
    "numpy": (),
    "pygame": ("pygame", "pygame-ce"),
    "retro": ("stable-retro",),
    "stable_retro": (),
    "torch": (),
}


def versions_of(layers: Iterable[object]) -> dict[str, str]:
    """Return the versions of the packages of an env and its wrappers, and of what they import."""
    # Of what they import, those count that compute pixels or numbers: OpenCV, MuJoCo, Box2D, ... An
    # import in a method counts, but in `render` and `close` only if a wrapper observes drawings.
    classes = {kind for layer in layers for kind in type(layer).__mro__}
    shows_drawings = any("Render" in kind.__name__ for kind in classes)
    modules = {"numpy"}
    for kind in classes:
        modules.add(_top(kind.__module__))
        modules |= _imports_of(kind, shows_drawings)
    return module_versions(modules - {"stepwell"})  # each session has its version anyway


def module_versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the version of each module's package; the standard library and scripts have none."""
    found = [_version(module) for module in modules if module not in sys.stdlib_module_names]
    return dict(sorted(one for one in found if one is not None))


@functools.cache  # a look-up takes 1 ms
def _version(module: str) -> tuple[str, str] | None:
    for name in _DISTRIBUTIONS.get(module) or (module.replace("_", "-"),):
        if (found := installed_version(name)) is not None:
            return name, found
    own: object = getattr(sys.modules.get(module), "__version__", None)
    return (module, own) if isinstance(own, str) else None


@functools.cache
def _imports_of(kind: type, with_drawings: bool) -> frozenset[str]:
    """Return the modules of `_DISTRIBUTIONS` that a class or its module imports."""
    home = sys.modules.get(kind.__module__)
    names = set(_global_imports(home)) if home is not None else set[str]()
    functions = [*vars(kind).items(), *(vars(home).items() if home is not None else ())]
    for name, function in functions:
        is_own = isinstance(function, FunctionType) and function.__module__ == kind.__module__
        if is_own and (with_drawings or not ("render" in name or name == "close")):
            names |= set(_names_in(function.__code__))
    return frozenset(names & _DISTRIBUTIONS.keys())


def _global_imports(module: ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield _top(value.__name__)
        elif isinstance(value, type | FunctionType):
            yield _top(value.__module__)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from map(_top, code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _top(module: str) -> str:
    return module.partition(".")[0]
