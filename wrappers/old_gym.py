"""Adapt envs of the old `gym` API to Gymnasium, and patch nes-py below 9 for NumPy 2."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import UnsupportedMode

from ..buffers.base.number_checks import check_whole
from ..buffers.base.optional_libraries import installed_version
from ..buffers.spec.exact_values import one_flag, one_number
from .env_results import AdaptedEnv, layers_of, owned_array, owned_info, owned_observation
from .versions import versions_of

AnyInfo = dict[str, Any]
RENAMED = ("render.modes", "video.frames_per_second")


def from_gym(env: object, *, max_episode_steps: int | None = None) -> gymnasium.Env[Any, Any]:
    """Adapt an env object of the old `gym` API to Gymnasium's API.

    It may be half migrated: a subclass of `gymnasium.Env` with the old `reset` or `step`.

    `gym` is not imported; the object is inspected instead. The adapted env passes
    `gymnasium.utils.env_checker.check_env`, and differs from the old env as follows:

    | old env | adapted |
    |---|---|
    | `step` returns 4 values, or 5 | 5; `info["TimeLimit.truncated"]` sets truncated |
    | its last `info["discount"]` is 1, as in dm_env at a time limit (Crafter) | truncated |
    | `reset` takes nothing, returns an observation | takes seed and options, returns (obs, info) |
    | observations in the emulator's memory | C-contiguous copies, also in Dict and Tuple |
    | done and reward are numpy scalars or (1,) arrays | bool and float |
    | `seed(...)`, or `reset(seed=)`, or both | both get the seed, and so does the action space |
    | gym's spaces, `render.modes` | gymnasium's, `render_modes` |
    | `render(mode="human")` is the default | `render_mode` is "rgb_array" if supported |
    | `step` after the end, a second `close` | `ResetNeeded`; no effect |

    An observation with another shape or dtype than its space is an error, and never cast. A seed
    has no effect on an env without seeding; see `metadata["stepwell"]["seeded_by"]`.

    Args:
        env: The old env, with its wrappers. If it was built with `gym.make`, use
            `disable_env_checker=True`: the checker fails with NumPy 2.
        max_episode_steps: Steps after which an episode is truncated; None sets no limit. The limit
            of `gym.make` does not apply to an env that is built by its class.

    Returns:
        An `OldGymEnv`, whose `old_env` is `env`, and whose `metadata["stepwell"]` has the class,
        the wrappers and the versions.

    Raises:
        TypeError: `env` is in a wrapper of Gymnasium's, a vector env or a class, or has a space
            that Gymnasium lacks.
        ValueError: `max_episode_steps` is below 1.

    Example:
        >>> class Old:  # as it was written for gym 0.21
        ...     observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...     screen = np.zeros(2, np.uint8)
        ...     def reset(self):
        ...         return self.screen
        ...     def step(self, action):
        ...         self.screen += 1
        ...         return self.screen, np.float32(1), np.bool_(self.screen[0] > 2), {}
        >>> env = from_gym(Old())
        >>> first, info = env.reset(seed=0)
        >>> env.step(1)
        (array([1, 1], dtype=uint8), 1.0, False, False, {})
        >>> first
        array([0, 0], dtype=uint8)
    """
    return OldGymEnv(env, max_episode_steps=max_episode_steps)


class OldGymEnv(AdaptedEnv):
    """The env that `from_gym` returns."""

    def __init__(self, env: object, *, max_episode_steps: int | None = None) -> None:
        if max_episode_steps is not None:
            check_whole("max_episode_steps", max_episode_steps, 1, hint="; None sets no limit")
        check_old_env(env)
        super().__init__(env)
        old = self.old_env = self._inner
        self.observation_space = modern_space(old.observation_space, "observation_space")
        self.action_space = modern_space(old.action_space, "action_space")
        self._max_steps = None if max_episode_steps is None else int(max_episode_steps)
        self._seed_method = seed_method(env)
        self._reset_keywords = {
            keyword for keyword in ("seed", "options") if accepts(env, "reset", keyword)
        }
        self._renders_by_mode = accepts(env, "render", "mode")
        self.metadata = self._metadata()
        self.render_mode = self._chosen_render_mode()
        self._steps = 0

    @property
    def can_seed_resets(self) -> bool:
        """True if a seed has an effect, so that `SeededResets` may seed each reset."""
        return self._seed_method is not None or "seed" in self._reset_keywords

    def reset(
        self, *, seed: int | None = None, options: AnyInfo | None = None
    ) -> tuple[Any, AnyInfo]:
        """Reset; with a seed, seed the old env and its action space first."""
        self._check_open()
        if options and "options" not in self._reset_keywords:
            raise ValueError(
                f"options cannot be used: expected none, since the old env's reset accepts none, "
                f"got {options!r}; omit them"
            )
        super().reset(seed=seed)
        kwargs: AnyInfo = {} if seed is None else self._seeded(seed)
        if options and "options" in self._reset_keywords:
            kwargs["options"] = options
        observation, info = self._split(self.old_env.reset(**kwargs))
        self._steps, self._is_over = 0, False
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, AnyInfo]:
        """Step the old env; a Discrete action is passed as a Python int."""
        self._check_begun()
        result = self.old_env.step(_plain_action(action))
        observation, reward, terminated, truncated, info = _read_step(result)
        copy = owned_observation(self.observation_space, observation)
        self._steps += 1
        truncated |= self._max_steps is not None and self._steps >= self._max_steps
        self._is_over = terminated or truncated
        return copy, reward, terminated, truncated, info

    def render(self) -> Any:
        """Render the old env in `render_mode`; returns a copy of an array, or None for "human"."""
        self._check_open()
        if self.render_mode is None:
            raise UnsupportedMode(
                f"the env cannot render an array: expected 'rgb_array' among its render modes, "
                f"got {self.metadata['render_modes']}; call old_env.render yourself"
            )
        old = self.old_env
        picture = old.render(mode=self.render_mode) if self._renders_by_mode else old.render()
        if self.render_mode == "human":
            return None
        return owned_array(picture) if isinstance(picture, np.ndarray) else picture

    def __str__(self) -> str:
        return f"<from_gym({self.old_env!s})>"

    def _seeded(self, seed: int) -> AnyInfo:
        """Seed the env and its action space; return the keyword arguments for `reset`."""
        if self._seed_method is not None:
            self._seed_method(seed)
        # Some old envs draw their no-ops from the action space.
        seed_actions = getattr(self.old_env.action_space, "seed", None)
        if seed_actions is not None:
            seed_actions(seed)
        return {"seed": seed} if "seed" in self._reset_keywords else {}

    def _split(self, result: Any) -> tuple[Any, AnyInfo]:
        """Split the result of `reset` into observation and info."""
        space = self.observation_space
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):  # pyright: ignore[reportUnknownArgumentType]
            if isinstance(space, spaces.Tuple):
                with contextlib.suppress(ValueError):
                    return owned_observation(space, result), {}
            return owned_observation(space, result[0]), owned_info(result[1])
        return owned_observation(space, result), {}

    def _metadata(self) -> AnyInfo:
        old: Mapping[str, Any] = getattr(self.old_env, "metadata", None) or {}
        kept = {key: value for key, value in old.items() if key not in RENAMED}
        fps = old.get("render_fps", old.get("video.frames_per_second"))
        seeded_by = ["seed"] * (self._seed_method is not None)
        seeded_by += ["reset"] * ("seed" in self._reset_keywords)
        return {
            **kept,
            "render_modes": render_modes(self.old_env),
            **({} if fps is None else {"render_fps": fps}),
            "stepwell": {
                "maker": "from_gym",
                **_recipe(self.old_env),
                "seeded_by": seeded_by,
                "max_episode_steps": self._max_steps,
            },
        }

    def _chosen_render_mode(self) -> str | None:
        """Return the old env's render mode, else "rgb_array" if supported; never "human"."""
        own = getattr(self.old_env, "render_mode", None)
        if isinstance(own, str):
            return own
        draws = self._renders_by_mode and "rgb_array" in self.metadata["render_modes"]
        return "rgb_array" if draws else None


def _plain_action(action: Any) -> Any:
    """Convert an integer to a Python int, which JoypadSpace and others look up in a dict."""
    if isinstance(action, np.integer) or (
        isinstance(action, np.ndarray) and action.shape == () and action.dtype.kind in "iu"
    ):
        return int(action)
    return action  # pyright: ignore[reportUnknownVariableType]


def _read_step(result: Any) -> tuple[Any, float, bool, bool, AnyInfo]:
    """Convert a step of 4 or 5 values to 5 values; the observation is not checked."""
    if not isinstance(result, tuple | list) or len(cast("list[Any]", result)) not in (4, 5):
        size = f" of {len(cast('Any', result))}" if isinstance(result, tuple | list) else ""
        raise ValueError(
            f"step returned an invalid result: expected a tuple of 4 or 5 values, got "
            f"{type(result).__qualname__}{size}; correct the env"  # pyright: ignore[reportUnknownArgumentType]
        )
    observation, reward, *flags, info = cast("list[Any]", result)
    known = owned_info(info)
    if len(flags) == 2:
        terminated, truncated = one_flag(flags[0], "terminated"), one_flag(flags[1], "truncated")
    else:
        done = one_flag(flags[0], "done")
        # Where both are absent, an end is one of the task.
        is_cut = known.get("TimeLimit.truncated", bool(np.all(known.get("discount") == 1)))
        truncated = done and one_flag(is_cut, "TimeLimit.truncated")
        terminated = done and not truncated
    return observation, one_number(reward, "reward"), terminated, truncated, known


NEEDED = ("reset", "step", "observation_space", "action_space")


def layers(env: object) -> Iterator[Any]:
    """The env and the envs that it wraps, outermost first."""
    return itertools.takewhile(lambda layer: hasattr(layer, "step"), layers_of(env, "env"))


def check_old_env(env: object) -> None:
    """Check that this is an env object of the old API, without gym's own checker around it."""
    if isinstance(env, gymnasium.Wrapper | OldGymEnv):
        raise TypeError(
            f"{type(env).__qualname__} needs no adapter: expected an env of the old gym, got one "
            f"of gymnasium's; use it directly, or adapt its innermost env if that one still has "
            f"the old reset or step: from_gym(env.unwrapped)"
        )
    if hasattr(env, "num_envs"):
        raise TypeError(
            f"from_gym adapts one env: expected an env of the old gym, got a vector env "
            f"({type(env).__qualname__}); pass a factory of one to make_vec: "
            "make_vec(lambda: from_gym(...), 8)"
        )
    missing = [name for name in NEEDED if not hasattr(env, name)]
    if isinstance(env, type) or missing:
        lacks = f"{type(env).__qualname__} without {', '.join(missing)}"
        got = f"the class {env.__qualname__}" if isinstance(env, type) else lacks
        raise TypeError(
            f"from_gym adapts an env object: expected an object of the old gym's API, got "
            f"{got}; build the env first"
        )
    for layer in layers(env):
        if type(layer).__name__ == "PassiveEnvChecker":
            raise TypeError(
                "gym's own checker fails on the first step with numpy 2: expected an env without "
                f"it, got {env!s}; build the env by its class, or with gym.make(..., "
                "disable_env_checker=True)"
            )


def accepts(env: object, method: str, keyword: str) -> bool:
    """Return True if a method accepts a keyword in every layer down to the one that names it."""
    # A wrapper that accepts any keyword passes it on, so the wrapped layer is checked next.
    for layer in layers(env):
        try:
            parameters = inspect.signature(getattr(layer, method)).parameters
        except (AttributeError, TypeError, ValueError):  # no such method, or no known signature
            return False
        if keyword in parameters:
            return True
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            return False
    return True  # the innermost layer accepts any keyword


def seed_method(env: object) -> Any:
    """Return the env's `seed` method, or None; gym's default only if `reset` accepts no seed."""
    # The default does the same as `reset(seed=)`, and warns at each call that it is deprecated.
    method: Any = getattr(env, "seed", None)
    if not callable(method):
        return None
    innermost = list(layers(env))[-1]
    home = getattr(getattr(type(innermost), "seed", None), "__module__", "")
    return None if home == "gym.core" and accepts(env, "reset", "seed") else method


def render_modes(env: object) -> list[str]:
    """Return the render modes in the env's metadata, under the new key or the old one."""
    metadata = getattr(env, "metadata", None) or {}
    found = metadata.get("render_modes") or metadata.get("render.modes") or []
    return [str(mode) for mode in found]


def _recipe(env: object) -> dict[str, Any]:
    """Return the env's class, wrappers (outermost last) and package versions as JSON data."""
    chain = [type(layer) for layer in layers(env)]
    names = [f"{kind.__module__}:{kind.__qualname__}" for kind in chain]
    return {"id": names[-1], "wrappers": names[-2::-1], "versions": versions_of(layers(env))}


AnySpace = spaces.Space[Any]


def modern_space(space: object, where: str) -> AnySpace:
    """Convert a space of the old `gym`, or of gymnax, to the equal Gymnasium space."""
    # A space is recognized by the name of its class or of a base class, so `gym` is not imported;
    # one of Gymnasium stays.
    # ``where`` is its name in error messages.
    for kind in type(space).__mro__:
        make = _MAKERS.get(kind.__name__.removesuffix("Space"))  # Crafter's own are named BoxSpace
        if make is not None:
            try:
                return make(space, where)
            except AttributeError as error:
                raise TypeError(
                    f"{where} cannot be turned into gymnasium's: expected a "
                    f"{type(space).__qualname__} with the attributes of gym's, got one where "
                    f"{error}; set it to gymnasium's own space"
                ) from None
    if isinstance(space, spaces.Space):  # of texts, sequences, graphs
        return space
    raise TypeError(
        f"{where} cannot be turned into gymnasium's: expected {', '.join(_MAKERS)}, got "
        f"{type(space).__module__}.{type(space).__qualname__}; set it to one of them first"
    )


def _box(space: Any, where: str) -> AnySpace:
    if space.dtype is None:
        raise TypeError(
            f"{where} has no dtype: expected one, got None; set it to gymnasium's own Box"
        )
    bounds = space.low, space.high
    shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    low, high = (
        bound  # those of gymnax are numbers, or arrays of JAX
        if isinstance(bound, np.ndarray)
        else np.broadcast_to(np.asarray(bound), shape).astype(dtype)
        for bound in bounds
    )
    return spaces.Box(low, high, shape, dtype.type)


def _dtype_of(space: Any) -> Any:
    return np.dtype(getattr(space, "dtype", None) or np.int64).type


_MAKERS: dict[str, Callable[[Any, str], AnySpace]] = {
    "Box": _box,
    "Discrete": lambda space, _: spaces.Discrete(
        int(space.n), start=int(getattr(space, "start", 0)), dtype=_dtype_of(space)
    ),
    "MultiDiscrete": lambda space, _: spaces.MultiDiscrete(
        np.asarray(space.nvec), dtype=_dtype_of(space), start=getattr(space, "start", None)
    ),
    "MultiBinary": lambda space, _: spaces.MultiBinary(
        int(space.n) if np.ndim(space.n) == 0 else tuple(space.n)
    ),
    "Dict": lambda space, where: spaces.Dict(
        {key: modern_space(part, f"{where}[{key!r}]") for key, part in space.spaces.items()}
    ),
    "Tuple": lambda space, where: spaces.Tuple(
        [modern_space(part, f"{where}[{index}]") for index, part in enumerate(space.spaces)]
    ),
}


RamArray = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class RamView(RamArray):
    """A view of RAM bytes that returns single bytes as Python ints."""

    # With NumPy 2 arithmetic on a byte gives a byte: `ram[0x6D] * 256` raises and `ram[0x10] - 1`
    # may overflow. With Python ints it does not, and assigned values wrap to a byte, as with NumPy
    # 1. Slices are views of the same type.

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return int(found) if isinstance(found, np.integer) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value & 0xFF if isinstance(value, int) else value)


def patch_nes_py() -> None:
    """Patch the installed nes-py, below version 9, in this process, so that it works with NumPy 2.

    On Python 3.12 and below pip installs nes-py 8.2.1, since version 9 needs Python 3.13. It was
    written for NumPy 1. With NumPy 2 it cannot load a ROM (`OverflowError: Python integer 1024 out
    of bounds for uint8`), and games built on it, such as gym-super-mario-bros 7.4.0, fail in the
    same way when they compute with bytes of the RAM. Two things are patched: the sizes of a ROM are
    computed with Python ints, and the `ram` of envs that are built afterwards is a `RamView`.

    Call it before envs are built; a second call has no effect. The env still has the API of the old
    `gym`: pass it to `from_gym`.

    Raises:
        ImportError: nes-py, or one of its dependencies, is not installed.
        ValueError: nes-py 9 or newer is installed, which needs no patch.

    Example:
        >>> patch_nes_py()  # doctest: +SKIP
        >>> env = from_gym(nes_py.NESEnv("game.nes"))  # doctest: +SKIP
    """
    found = installed_version("nes-py")
    if found is None:
        raise ImportError(
            "nes-py is not installed: expected a version below 9, got none; on Python 3.13 and "
            "newer `pip install 'stepwell[nes-py]'` installs nes-py 9, which needs no patch"
        )
    if int(found.partition(".")[0]) >= 9:
        raise ValueError(
            f"nes-py needs no patch: expected a version below 9, got {found}; omit patch_nes_py"
        )
    try:
        rom = importlib.import_module("nes_py._rom").ROM
        env = importlib.import_module("nes_py.nes_env").NESEnv
    except ImportError as error:
        raise ImportError(
            f"nes-py cannot be imported ({error}): expected nes-py 8 and its dependencies; "
            "reinstall it: pip install --force-reinstall 'nes-py<9'"
        ) from error
    # 16 KB and 8 KB for each count in the header.
    rom.prg_rom_size = property(lambda rom: 16 * int(rom.header[4]))
    rom.chr_rom_size = property(lambda rom: 8 * int(rom.header[5]))
    if not isinstance(env.__dict__.get("_ram_buffer"), _PatchedRam):
        env._ram_buffer = _PatchedRam(env._ram_buffer)


class _PatchedRam:
    """Descriptor of an env's RAM method that wraps the result of the original in a `RamView`."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, env: object, kind: type | None = None) -> Any:
        if env is None:
            return self
        return lambda: cast("npt.NDArray[np.uint8]", self._original(env)).view(RamView)
