"""Say in plain data how an env was made, so that two stores of data can be compared."""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

from stepwell.wrappers.frames import FrameStack
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv

# They change neither the data nor the ends of episodes.
CHECKERS = (wrappers.OrderEnforcing, wrappers.PassiveEnvChecker)
# They leave observations alone, so a frame stack may be looked for below them.
SHOW_AS_IT_IS = (
    *CHECKERS,
    gym.ActionWrapper,
    gym.RewardWrapper,
    wrappers.Autoreset,
    wrappers.RecordEpisodeStatistics,
    wrappers.TimeLimit,
)
VECTORS_SHOW_AS_IT_IS = (
    gym.vector.VectorActionWrapper,
    gym.vector.VectorRewardWrapper,
    wrappers.vector.RecordEpisodeStatistics,
)
PADDINGS = {"reset": "repeat", "zero": "zero"}

AnyEnv = gym.Env[Any, Any]


def recipe_of(env: AnyEnv, source: object) -> dict[str, Any]:
    """The recipe of an env that `make_vec` built.

    Args:
        env: One env with all its wrappers.
        source: What it was built from, for an env without a spec.

    Returns:
        JSON-able data: maker, id, kwargs, wrappers (outermost last), frame_skip,
        versions, for a stack of frames `frame_stack` and `stack_padding`, and under `env` what
        the env itself says about how it was made, as `NesEnv` and `from_gym`'s do.

    Example:
        >>> recipe = recipe_of(gym.make("CartPole-v1"), None)
        >>> recipe["id"], recipe["wrappers"]
        ('CartPole-v1', [{'name': 'TimeLimit', 'kwargs': {'max_episode_steps': 500}}])
    """
    spec = env.unwrapped.spec
    chain = [one for one in _wrappers_of(env) if not isinstance(one, CHECKERS)]
    own = dict(_own_recipe(env))
    own_versions = own.pop("versions", {})
    return {
        "maker": "make_vec",
        "id": jsonable(source) if spec is None else spec.id,
        "kwargs": {} if spec is None else jsonable(spec.kwargs),
        "wrappers": [_wrapper_recipe(one) for one in reversed(chain)],
        "frame_skip": _frame_skip(env),
        **_stack_recipe(env),
        **({"env": own} if own else {}),
        "versions": {**_versions(env), **own_versions},
    }


def spec_of(env: AnyEnv) -> str | None:
    """What gymnasium needs to make the env again, as JSON; None where it cannot be told so.

    Example:
        >>> text = spec_of(gym.make("CartPole-v1"))
        >>> gym.make(gym.envs.registration.EnvSpec.from_json(text)).spec.id
        'CartPole-v1'
    """
    try:
        spec = env.spec  # a wrapper that does not record its arguments makes gymnasium fail here
        return None if spec is None else spec.to_json()
    except (AttributeError, TypeError, ValueError):
        return None


def _own_recipe(env: AnyEnv) -> Mapping[str, Any]:
    """What the env itself says about how it was made; nothing for most."""
    said: Mapping[str, Any] = env.unwrapped.metadata.get("stepwell", {})
    # An env that went through `make_vec` before carries that recipe, with its own inside.
    return said.get("env", {}) if said.get("maker") == "make_vec" else said


def _wrappers_of(env: AnyEnv) -> list[gym.Wrapper[Any, Any, Any, Any]]:
    """The wrappers, outermost first."""
    found: list[gym.Wrapper[Any, Any, Any, Any]] = []
    inner: Any = env
    while isinstance(inner, gym.Wrapper):
        found.append(inner)  # pyright: ignore[reportUnknownArgumentType]
        inner = found[-1].env
    return found


def _wrapper_recipe(wrapper: gym.Wrapper[Any, Any, Any, Any]) -> dict[str, Any]:
    kwargs = getattr(wrapper, "_saved_kwargs", None)  # None: it does not record its arguments
    return {"name": wrapper.class_name(), "kwargs": None if kwargs is None else jsonable(kwargs)}


def _stack_recipe(env: AnyEnv) -> dict[str, Any]:
    found = stack_of(env)
    if found is None or found[1] is None:
        return {}
    return {"frame_stack": found[0], "stack_padding": found[1]}


def stack_of(env: AnyEnv) -> tuple[int, str | None] | None:
    """Read how many frames an env's observations stack, and how it pads the first ones.

    Returns:
        The number of frames and "zero", "repeat" or, where an episode begins with other frames of
        the user's, None; None in place of both where no stack is seen.

    Example:
        >>> env = gym.make("CartPole-v1")
        >>> stack_of(wrappers.FrameStackObservation(env, 4, padding_type="zero")), stack_of(env)
        ((4, 'zero'), None)
    """
    for wrapper in _wrappers_of(env) if _can_stack(env.observation_space) else ():
        if isinstance(wrapper, FrameStack):
            return cast("tuple[int, ...]", wrapper.observation_space.shape)[0], wrapper.padding
        if isinstance(wrapper, wrappers.FrameStackObservation):
            return wrapper.stack_size, _padding(wrapper.padding_type, wrapper.padding_value)
        if not isinstance(wrapper, SHOW_AS_IT_IS):
            return None
    return None


def stack_of_vector(envs: gym.vector.VectorEnv[Any, Any, Any]) -> tuple[int, str | None] | None:
    """Read it as `stack_of` does from every env of a vector, also where they are in workers.

    Returns:
        As `stack_of`; None in place of both where the envs differ or cannot be asked.

    Example:
        >>> make = lambda: wrappers.FrameStackObservation(gym.make("CartPole-v1"), 4)
        >>> stack_of_vector(gym.vector.SyncVectorEnv([make]))
        (4, 'repeat')
    """
    inner = envs.unwrapped
    vector: Any = envs
    while vector is not inner:
        if not isinstance(vector, VECTORS_SHOW_AS_IT_IS):
            return None
        vector = vector.env
    if isinstance(inner, gym.vector.SyncVectorEnv):
        found = [stack_of(env) for env in inner.envs]
    elif _can_stack(envs.single_observation_space):
        found = _stacks_in_workers(inner)
    else:
        return None
    return found[0] if found and found.count(found[0]) == len(found) else None


def _stacks_in_workers(envs: Any) -> list[tuple[int, str | None] | None]:
    """One for each env; none at all where asking is impossible or might harm a worker."""
    is_async = isinstance(envs, gym.vector.AsyncVectorEnv) and envs.worker is None
    if not is_async and not isinstance(envs, WorkerVectorEnv):
        return []
    try:
        stacks = {_stack_in(chain) for chain in envs.call("__str__")}
        # An attribute that is not there would end a worker of gymnasium's.
        if stacks == {FrameStack.__name__} and all(envs.call("has_wrapper_attr", "padding")):
            shape = cast("tuple[int, ...]", envs.single_observation_space.shape)
            return [(shape[0], padding) for padding in envs.call("padding")]
        is_gymnasiums = stacks == {wrappers.FrameStackObservation.__name__}
        if not is_gymnasiums or not all(envs.call("has_wrapper_attr", "padding_type")):
            return []
        sizes, paddings = envs.call("stack_size"), envs.call("padding_type")
        values = envs.call("padding_value")
    except (gym.error.Error, RuntimeError):  # a step is under way, or a worker is dead
        return []
    return [
        (size, _padding(padding, value))
        for size, padding, value in zip(sizes, paddings, values, strict=True)
    ]


def _stack_in(chain: str) -> str | None:
    """Find a stack in "<TimeLimit<FrameStack<...>>>", as gymnasium names an env's wrappers."""
    names: list[str] = re.findall(r"<(\w+)", chain)
    for name in names:
        if name in (FrameStack.__name__, wrappers.FrameStackObservation.__name__):
            return name
        kind = getattr(wrappers, name, None)
        if not isinstance(kind, type) or not issubclass(kind, SHOW_AS_IT_IS):
            return None
    return None


def _can_stack(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) > 1


def _padding(kind: str, value: Any) -> str | None:
    if kind not in PADDINGS and not np.any(value):
        return "zero"  # a frame of the user's, which is black
    return PADDINGS.get(kind)


def _frame_skip(env: AnyEnv) -> int:
    """Frames of the emulator in one step: ale-py's own `frameskip` times those of wrappers."""
    spec = env.unwrapped.spec
    skips = [spec.kwargs.get("frameskip", 1) if spec is not None else 1]
    skips.append(_own_recipe(env).get("frame_skip", 1))
    for wrapper in _wrappers_of(env):
        kwargs: dict[str, Any] = getattr(wrapper, "_saved_kwargs", None) or {}
        skips.append(kwargs.get("frame_skip", kwargs.get("skip", 1)))
    return math.prod(skip for skip in skips if isinstance(skip, int))


def _versions(env: AnyEnv) -> dict[str, str]:
    # Loads in some 10 ms, which `import stepwell` need not take.
    from importlib.metadata import PackageNotFoundError, version

    packages = ("gymnasium", type(env.unwrapped).__module__.partition(".")[0])
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package.replace("_", "-")] = version(package)
        except PackageNotFoundError:
            pass  # a module that no package brought
    return found


def jsonable(value: object) -> Any:
    """The value as JSON can hold it, the same in every run: no addresses, no order of sets.

    Example:
        >>> jsonable({"size": (84, 84), "kind": np.uint8, "f": jsonable})
        {'size': [84, 84], 'kind': 'numpy:uint8', 'f': 'stepwell.wrappers.recipe:jsonable'}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return cast("Any", value).tolist()
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return {str(key): jsonable(one) for key, one in pairs.items()}
    if isinstance(value, list | tuple):
        return [jsonable(one) for one in cast("list[object]", value)]
    if isinstance(value, partial):
        made = cast("partial[object]", value)
        return [jsonable(made.func), jsonable(made.args), jsonable(made.keywords)]
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{getattr(named, '__qualname__', '?')}"
