"""Describe how an env was made as JSON data, so that two stores can be compared."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.vector import SyncVectorEnv  # `patch_gymnasium` gives the name to a subclass

from .env_results import layers_of
from .frames import FrameStack
from .seeded_resets import SeededResets
from .versions import versions_of
from .workers.vector_env import WorkerVectorEnv

# Wrappers that change neither observations nor episode ends; recipes do not name them.
CHECKERS = (wrappers.OrderEnforcing, wrappers.PassiveEnvChecker, SeededResets)
# Wrappers that do not change observations, so a frame stack can be below them.
KEEP_OBSERVATIONS = (
    *CHECKERS,
    gym.ActionWrapper,
    gym.RewardWrapper,
    wrappers.Autoreset,
    wrappers.RecordEpisodeStatistics,
    wrappers.TimeLimit,
)
VECTOR_WRAPPERS_KEEP_OBSERVATIONS = (
    gym.vector.VectorActionWrapper,
    gym.vector.VectorRewardWrapper,
    wrappers.vector.RecordEpisodeStatistics,
)
PADDINGS = {"reset": "repeat", "zero": "zero"}

AnyEnv = gym.Env[Any, Any]


def recipe_of(env: AnyEnv, source: object) -> dict[str, Any]:
    """Return the recipe of an env that `make_vec` built, with all its wrappers, as JSON data."""
    # It has maker, id, kwargs, wrappers (outermost last), frame_skip, versions, for a frame stack
    # `frame_stack` and `stack_padding`, and under `env` the recipe that the env itself has in its
    # metadata, as those of `NesEnv` and `from_gym` do. ``source`` is the argument of `make_vec`,
    # for an env without a spec.
    spec = env.unwrapped.spec
    chain = [one for one in _wrappers_of(env) if not isinstance(one, CHECKERS)]
    own = dict(_own_recipe(env))
    own_versions = own.pop("versions", {})
    size, padding = stack_of(env) or (1, None)
    return {
        "maker": "make_vec",
        "id": jsonable(source) if spec is None else spec.id,
        "kwargs": {} if spec is None else jsonable(spec.kwargs),
        "wrappers": [_wrapper_recipe(one) for one in reversed(chain)],
        "frame_skip": _frame_skip(env),
        **({"frame_stack": size, "stack_padding": padding} if padding is not None else {}),
        **({"env": own} if own else {}),
        "versions": {**versions_of([*_wrappers_of(env), env.unwrapped]), **own_versions},
    }


def spec_of(env: AnyEnv) -> str | None:
    """Return the env's `EnvSpec` as JSON, or None if it has none that JSON can hold."""
    # `SeededResets` is left out: whoever makes the env again for a vector env gets it anyway.
    # Arguments that JSON does not have, as tuples, are objects with a tag: see `read_spec`.
    try:
        spec = env.spec  # fails for a wrapper that does not record its arguments
        if spec is None:
            return None
        wrapped_by = tuple(
            _public(one) for one in spec.additional_wrappers if one.name != SeededResets.__name__
        )
        return spec_text(dataclasses.replace(spec, additional_wrappers=wrapped_by))
    except (AttributeError, TypeError, ValueError):
        return None


def spec_text(spec: EnvSpec) -> str:
    """Return an `EnvSpec` as the JSON that `read_spec` reads."""
    # TypeError or ValueError: an argument is nothing that JSON can hold, such as a function.
    return _converted(spec, tagged).to_json()


def read_spec(text: str) -> EnvSpec:
    """Return the `EnvSpec` of `spec_of`'s text, or of that of `EnvSpec.to_json`."""
    # Of another text, any kind of exception comes.
    return _converted(EnvSpec.from_json(text), _untagged)


def _converted(spec: EnvSpec, convert: Callable[[Any], Any]) -> EnvSpec:
    """The spec with other arguments, its own and those of its wrappers."""
    inner = (
        dataclasses.replace(one, kwargs=convert(one.kwargs)) for one in spec.additional_wrappers
    )
    return dataclasses.replace(spec, kwargs=convert(spec.kwargs), additional_wrappers=tuple(inner))


_TUPLE, _ARRAY, _TYPE = "__tuple__", "__array__", "__dtype__"
_MOST_LEVELS = 32


def tagged(value: Any) -> Any:
    """Replace what JSON does not have by objects with a tag: (2, 2) by {"__tuple__": [2, 2]}."""
    if isinstance(value, tuple):
        return {_TUPLE: [tagged(one) for one in value]}
    if isinstance(value, np.ndarray | np.generic):
        return {_ARRAY: value.tolist(), _TYPE: value.dtype.name}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {_TYPE: value.__name__}
    if isinstance(value, list):
        return [tagged(one) for one in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) and not key.startswith("__") for key in value):
            raise ValueError(f"expected keys that are plain texts, got {list(value)}")
        return {key: tagged(one) for key, one in value.items()}
    return value


def _untagged(value: Any, level: int = 0) -> Any:
    if level > _MOST_LEVELS:
        raise ValueError(f"expected at most {_MOST_LEVELS} levels, got more")
    if isinstance(value, list):
        return [_untagged(one, level + 1) for one in value]
    if not isinstance(value, dict):
        return value
    pairs = cast("dict[str, Any]", value)
    if pairs.keys() == {_TUPLE}:
        return tuple(_untagged(pairs[_TUPLE], level + 1))
    if pairs.keys() == {_TYPE}:
        return _dtype(pairs[_TYPE]).type
    if pairs.keys() == {_ARRAY, _TYPE}:
        array = np.array(pairs[_ARRAY], _dtype(pairs[_TYPE]))
        return array if array.shape else array[()]
    return {key: _untagged(one, level + 1) for key, one in pairs.items()}


def _dtype(name: object) -> np.dtype[Any]:
    found = np.dtype(str(name))
    if found.kind not in "biuf":
        raise ValueError(f"expected a dtype of numbers, got {name!r}")
    return found


def _public(wrapper: WrapperSpec) -> WrapperSpec:
    """Refer to a wrapper of Stepwell by its public module, which outlives a move between files."""
    module, _, name = wrapper.entry_point.partition(":")
    if module.startswith("stepwell.wrappers."):
        return dataclasses.replace(wrapper, entry_point=f"stepwell.wrappers:{name}")
    return wrapper


def _own_recipe(env: AnyEnv) -> Mapping[str, Any]:
    """Return the recipe in the metadata of the env itself; most envs have none."""
    recipe: Mapping[str, Any] = env.unwrapped.metadata.get("stepwell", {})
    # An env made by `make_vec` has the recipe of `make_vec`, which contains its own.
    return recipe.get("env", {}) if recipe.get("maker") == "make_vec" else recipe


def _wrappers_of(env: AnyEnv) -> list[gym.Wrapper[Any, Any, Any, Any]]:
    return [*takewhile(lambda one: isinstance(one, gym.Wrapper), layers_of(env, "env"))]


def _wrapper_recipe(wrapper: gym.Wrapper[Any, Any, Any, Any]) -> dict[str, Any]:
    kwargs = getattr(wrapper, "_saved_kwargs", None)  # None: it does not record its arguments
    return {"name": wrapper.class_name(), "kwargs": None if kwargs is None else jsonable(kwargs)}


def stack_of(env: AnyEnv) -> tuple[int, str | None] | None:
    """Find the frame stack of an env, its size and its padding; None if it has none."""
    # The padding is "zero" or "repeat" or, for a padding frame of the user's, None.
    for wrapper in _wrappers_of(env) if _can_stack(env.observation_space) else ():
        if isinstance(wrapper, FrameStack):
            return cast("tuple[int, ...]", wrapper.observation_space.shape)[0], wrapper.padding
        if isinstance(wrapper, wrappers.FrameStackObservation):
            return wrapper.stack_size, _padding(wrapper.padding_type, wrapper.padding_value)
        if not isinstance(wrapper, KEEP_OBSERVATIONS):
            return None
    return None


def stack_of_vector(envs: gym.vector.VectorEnv[Any, Any, Any]) -> tuple[int, str | None] | None:
    """As `stack_of`, of all envs of a vector env, also in worker processes; None if they differ."""
    inner = envs.unwrapped
    vector: Any = envs
    while vector is not inner:
        if not isinstance(vector, VECTOR_WRAPPERS_KEEP_OBSERVATIONS):
            return None
        vector = vector.env
    if isinstance(inner, SyncVectorEnv):
        found = [stack_of(env) for env in inner.envs]
    elif _can_stack(envs.single_observation_space):
        found = _stacks_in_workers(inner)
    else:
        return None
    return found[0] if found and found.count(found[0]) == len(found) else None


def _stacks_in_workers(envs: Any) -> list[tuple[int, str | None] | None]:
    """Return the stack of each env, or [] if the workers cannot be asked safely."""
    is_async = isinstance(envs, gym.vector.AsyncVectorEnv) and envs.worker is None
    if not is_async and not isinstance(envs, WorkerVectorEnv):
        return []
    try:
        stacks = {_stack_in(chain) for chain in envs.call("__str__")}
        # A missing attribute would end a worker of Gymnasium's.
        if stacks == {FrameStack.__name__} and all(envs.call("has_wrapper_attr", "padding")):
            shape = cast("tuple[int, ...]", envs.single_observation_space.shape)
            return [(shape[0], padding) for padding in envs.call("padding")]
        is_gymnasiums = stacks == {wrappers.FrameStackObservation.__name__}
        if not is_gymnasiums or not all(envs.call("has_wrapper_attr", "padding_type")):
            return []
        sizes, paddings = envs.call("stack_size"), envs.call("padding_type")
        values = envs.call("padding_value")
    except (gym.error.Error, RuntimeError):  # a step is pending, or a worker is dead
        return []
    return [
        (size, _padding(padding, value))
        for size, padding, value in zip(sizes, paddings, values, strict=True)
    ]


def _stack_in(chain: str) -> str | None:
    """Find a frame stack in "<TimeLimit<FrameStack<...>>>", the text of an env's wrappers."""
    names: list[str] = re.findall(r"<(\w+)", chain)
    for name in names:
        if name in (FrameStack.__name__, wrappers.FrameStackObservation.__name__):
            return name
        kind = SeededResets if name == SeededResets.__name__ else getattr(wrappers, name, None)
        if not isinstance(kind, type) or not issubclass(kind, KEEP_OBSERVATIONS):
            return None
    return None


def _can_stack(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) > 1


def _padding(kind: str, value: Any) -> str | None:
    if kind not in PADDINGS and not np.any(value):
        return "zero"  # a black padding frame of the user's
    return PADDINGS.get(kind)


def _frame_skip(env: AnyEnv) -> int:
    """Return emulator frames per step: ale-py's `frameskip` times that of each wrapper."""
    spec = env.unwrapped.spec
    skips = [spec.kwargs.get("frameskip", 1) if spec is not None else 1]
    skips.append(_own_recipe(env).get("frame_skip", 1))
    for wrapper in _wrappers_of(env):
        kwargs: dict[str, Any] = getattr(wrapper, "_saved_kwargs", None) or {}
        skips.append(kwargs.get("frame_skip", kwargs.get("skip", 1)))
    return math.prod(skip for skip in skips if isinstance(skip, int))


def jsonable(value: object) -> Any:
    """Convert a value to JSON data that is the same in every run: no addresses, no set order."""
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
