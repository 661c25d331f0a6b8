"""The spaces that a Minari data set names: those of the env that was recorded, or of the rows."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from stepwell.buffers.space_json import space_from_json
from stepwell.buffers.spec import Field, Layout, Spec

__all__ = ["KnownEnv", "RowSpaces", "known_env"]

Space: TypeAlias = "spaces.Space[Any]"

_WIDEST: Final = 2**62


@dataclass(frozen=True, slots=True)
class KnownEnv:
    """What is known of the env whose rows are stored.

    Args:
        observation: Its observation space, stacks in full.
        action: Its action space.
        env_spec: Gymnasium's `EnvSpec` as JSON, from which Minari makes the env again; or None.
        note: What is not certain about it; empty where nothing is.
    """

    observation: Space
    action: Space
    env_spec: str | None
    note: str = ""


def known_env(spec: Spec, sessions: Sequence[Mapping[str, object]], wanted: str) -> KnownEnv | None:
    """The env that made the rows, as far as the store knows it; None where it does not.

    Args:
        spec: The fields of every row. An env that would make other rows is none.
        sessions: Facts about the runs.
        wanted: ``"recorded"``, or the id of an env that the user knows it to be.

    Raises:
        ValueError: The user's env cannot be made, or makes other rows.
    """
    if wanted != "recorded":
        return _chosen(spec, wanted)
    told = dict(sessions[-1]) if sessions else {}
    said = cast("Mapping[str, Mapping[str, Any]]", told.get("spaces", {}))
    if not said:
        return None
    observation, action = (space_from_json(said[part]) for part in ("observation", "action"))
    if not _fits(spec, observation, action):  # written by other means than a Collector
        return None
    env_spec = told.get("env_spec")
    if isinstance(env_spec, str):
        return KnownEnv(observation, action, env_spec)
    recipe = cast("Mapping[str, Any]", told.get("recipe", {}))
    if recipe.get("maker") == "given" and recipe.get("env") in gym.registry:
        note = f"recover_environment() gives {recipe['env']} bare: what wrapped it is not known"
        return KnownEnv(observation, action, gym.spec(recipe["env"]).to_json(), note)
    note = "the store does not tell how its env is made, so recover_environment() cannot"
    return KnownEnv(observation, action, None, note)


def _chosen(spec: Spec, id_: str) -> KnownEnv:
    """The user's env, made for a moment to ask it for its spaces.

    Raises:
        ValueError: It cannot be made, or makes other rows.
    """
    try:
        if id_.startswith("ALE/"):
            importlib.import_module("ale_py")  # registers its envs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.make(id_)
        with contextlib.closing(env):
            observation, action = env.observation_space, env.action_space
            env_spec = None if env.spec is None else env.spec.to_json()
    except Exception as error:  # whatever the env's code raises
        raise ValueError(
            f"option env: expected the id of a Gymnasium env that can be made, got {id_!r} "
            f"({error}); give another, or none"
        ) from error
    if not _fits(spec, observation, action):
        raise ValueError(
            f"option env: expected an env whose rows are like the stored ones, got {id_!r} with "
            f"{observation} and {action}; give another, or none"
        )
    return KnownEnv(observation, action, env_spec)


class RowSpaces:
    """Spaces of which nothing is known but the rows: dtypes, shapes and the integers seen.

    Args:
        spec: The fields of every row.
        stack: Frame-stacked observations are written in full.
    """

    def __init__(self, spec: Spec, stack: bool) -> None:
        self._spec = spec
        self._stack = stack
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}

    def look(self, columns: Mapping[str, np.ndarray]) -> None:
        """Take notice of an episode's observations or actions, by field name."""
        for name, rows in columns.items():
            if rows.dtype.kind not in "iu" or not _is_counted(self._spec[name]) or not len(rows):
                continue
            low, high = rows.min(axis=0), rows.max(axis=0)
            self._low[name] = np.minimum(self._low.get(name, low), low)
            self._high[name] = np.maximum(self._high.get(name, high), high)

    def observation(self, known: Space | None) -> Space:
        """The observation space; of single frames where stacks are not written in full."""
        layout = self._spec.observation
        if known is None:
            return self._space(layout)
        if isinstance(layout, str) and self._spec[layout].stack > 1 and not self._stack:
            stacked = cast("spaces.Box", known)
            dtype = cast("Any", stacked.dtype)
            return spaces.Box(stacked.low[-1], stacked.high[-1], dtype=dtype)
        return known

    def action(self, known: Space | None) -> Space:
        """The action space; not a known one that lacks actions which were seen."""
        layout = self._spec.action
        if isinstance(known, spaces.Discrete) and isinstance(layout, str) and layout in self._low:
            last = int(known.start) + int(known.n) - 1
            if self._low[layout] < known.start or self._high[layout] > last:
                known = None
        return self._space(layout) if known is None else known

    def _space(self, layout: Layout) -> Space:
        if isinstance(layout, str):
            return self._leaf(self._spec[layout])
        if isinstance(layout, Mapping):
            return spaces.Dict({key: self._space(part) for key, part in layout.items()})
        return spaces.Tuple([self._space(part) for part in layout])

    def _leaf(self, field: Field) -> Space:
        dtype: Any = field.numpy_dtype
        shape = field.source_shape if self._stack else field.shape
        if field.name in self._low:
            low, high = self._low[field.name], self._high[field.name]
            if not shape and int(high) - min(0, int(low)) < _WIDEST:
                start = min(0, int(low))
                return spaces.Discrete(int(high) - start + 1, start=start)
            if shape and low.min() >= 0 and high.max() < np.iinfo(dtype).max:
                return spaces.MultiDiscrete(high + 1, dtype=dtype)
        if field.dtype == "bool":
            return spaces.Box(0, 1, shape, dtype)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return spaces.Box(limits.min, limits.max, shape, dtype)
        return spaces.Box(-np.inf, np.inf, shape, dtype)


def _is_counted(field: Field) -> bool:
    """Whether its space may be one of counts, Discrete or MultiDiscrete."""
    if not field.shape:
        return field.dtype == "int64" and field.stack == 1  # that of every Discrete space
    return field.name.split("/")[0] == "action"


def _fits(spec: Spec, observation: Space, action: Space) -> bool:
    """Whether such an env makes rows like these."""
    stacked = [field for field in spec.fields if field.stack > 1]
    k = stacked[0].stack if stacked else 1
    try:
        other = Spec.from_spaces(observation, action, frame_stack=k)
    except (TypeError, ValueError):
        return False
    if other.observation != spec.observation or other.action != spec.action:
        return False
    names = [f.name for f in other.fields if f.name != "reward"]
    return all(
        (spec[name].dtype, spec[name].shape, spec[name].stack)
        == (other[name].dtype, other[name].shape, other[name].stack)
        for name in names
    )
