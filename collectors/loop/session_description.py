"""JSON-able facts about a run of a Collector: what is needed to make its envs again."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from ...buffers.spec.space_json import spaces_facts
from ...wrappers import SeededResets
from ...wrappers.fixed_spaces import FixedSpaces, FixedVectorSpaces
from ...wrappers.versions import module_versions, versions_of
from .vector_envs import Vector, mode_of, recipe_of

__all__ = ["describe", "machine_facts"]

_VECTOR_KWARGS = ("num_envs", "vectorization_mode", "vector_kwargs")


def describe(
    groups: Sequence[Vector],  # after their first reset
    *,
    policy: object,  # or a name for what chose the actions
    seed: int | None,  # that all others are derived from; None where there is none
    session: int,  # the number of the run that the seeds are derived from, too
    reseed_steps: int | None,
    # The value that means "not there", by the name of the info field
    missing: Mapping[str, np.ndarray],
    shard: tuple[int, int] | None = None,  # None where there is one machine only
) -> dict[str, object]:
    """JSON-able facts about a run: the envs, the policy, the seed, the versions and the machine."""
    recipe = recipe_of(groups[0])
    return {
        # As it is read back from a file, so that the two can be compared.
        "recipe": json.loads(json.dumps({k: v for k, v in recipe.items() if k != "versions"})),
        **spaces_facts(groups[0].single_observation_space, groups[0].single_action_space),
        **_env_spec(groups),
        **_vector_wrappers(groups[0]),
        **_frame_rate(groups[0]),
        "num_envs": sum(group.num_envs for group in groups),
        "autoreset": mode_of(groups[0]).name,
        **({} if seed is None else {"seed": str(seed)}),
        "session": session,
        **({} if shard is None else {"shard": list(shard)}),
        "reseed_steps": reseed_steps,
        "missing": {name: _plain(value) for name, value in missing.items()},
        "policy": policy if isinstance(policy, str) else _name(policy),
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": _versions(groups[0]),
        "machine": dict(machine_facts()),
    }


@functools.cache
def machine_facts() -> Mapping[str, str]:
    """The machine, as far as the numbers that envs compute may depend on it."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
    }


def _env_spec(groups: Sequence[Vector]) -> dict[str, object]:
    """Gymnasium's spec of one env, where all envs have the same and it says all about them."""
    if any(getattr(group.unwrapped, "_np_random", None) is not None for group in groups):
        # One generator draws for all envs, as in gymnasium's own CartPoleVectorEnv: no single env
        # plays what one of them has played.
        return {"shared_generator": True}
    texts = {text for group in groups for text in _spec_texts(group)}
    (text,) = texts if len(texts) == 1 else (None,)
    if text is None:
        return {}
    module = groups[0].metadata.get("env_module")
    return {"env_spec": text, **({"env_module": module} if isinstance(module, str) else {})}


def _frame_rate(envs: Vector) -> dict[str, object]:
    """Frames a second that the env declares, for a clip of its episodes."""
    rate = envs.metadata.get("render_fps")
    is_rate = isinstance(rate, (int, float)) and 0 < rate < math.inf
    return {"render_fps": rate} if is_rate else {}


def _vector_wrappers(envs: Vector) -> dict[str, object]:
    """Names of the vector wrappers, through which single envs that are made again do not pass."""
    names = [
        type(layer).__name__
        for layer in _layers(envs)
        if not (isinstance(layer, RecordEpisodeStatistics) or _is_own(layer))
    ]
    return {"vector_wrappers": names} if names else {}


def _is_own(layer: object) -> bool:
    return type(layer).__module__.split(".")[0] == "stepwell"


def _spec_texts(envs: Vector) -> set[str | None]:
    """The specs of the single envs as JSON; None for one that is not known."""
    declared = envs.metadata.get("env_spec")
    if isinstance(declared, str):
        return {declared}
    from ...wrappers.recipe import spec_of, spec_text  # loads all of gymnasium's wrappers

    envs = envs.env if isinstance(envs, FixedVectorSpaces) else envs

    if type(envs) is SyncVectorEnv:
        return {spec_of(_without_own(env)) for env in envs.envs}
    if type(envs) is AsyncVectorEnv and envs.spec is not None:
        kwargs = {k: v for k, v in envs.spec.kwargs.items() if k not in _VECTOR_KWARGS}
        try:  # functions among the kwargs are no JSON
            return {spec_text(dataclasses.replace(envs.spec, kwargs=kwargs))}
        except (AttributeError, TypeError, ValueError):
            return {None}
    return {None}


def _without_own(env: Any) -> Any:
    """A single env as the user gave it, without what `as_vector` wraps it in."""
    if not isinstance(env, SeededResets):
        return env
    inner: Any = env.env
    return inner.env if isinstance(inner, FixedSpaces) and not inner.lengths else inner


def _plain(value: np.ndarray) -> object:
    """An array as JSON: one number where all are the same; what is not finite as text."""
    # Bytes are compared, as 0.0 equals -0.0 and nan nothing.
    if value.size and value.tobytes() == value.reshape(-1)[0].tobytes() * value.size:
        value = value.reshape(-1)[0]
    if value.dtype.kind == "c" or not np.isfinite(value).all():
        return value.astype(np.str_).tolist()
    return value.tolist()


def _name(policy: object) -> str:
    kind = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', '?')}"


def _versions(envs: Vector) -> dict[str, str]:
    """Versions of what all rows depend on, and of the packages of envs that declare none."""
    base = ("stepwell", "gymnasium", "numpy")
    found = dict.fromkeys(base, "unknown")
    found |= module_versions([*base, "zstandard", *(["cv2"] if "cv2" in sys.modules else [])])
    declared = recipe_of(envs).get("versions")
    if isinstance(declared, dict):
        return found | cast("dict[str, str]", declared)
    inner: Any = envs.unwrapped
    layers = [*_layers(envs), inner]
    if isinstance(inner, SyncVectorEnv):
        layers += [*_layers(inner.envs[0]), inner.envs[0].unwrapped]
    return found | versions_of(layers)


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an env or vector env, the outermost first."""
    while env is not env.unwrapped and hasattr(env, "env"):
        yield env
        env = env.env
