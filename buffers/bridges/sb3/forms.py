"""What Stable-Baselines3 takes for observations and actions, and arrays brought into that form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from stepwell.buffers.bridges.sb3.loading import load_sb3

__all__ = ["ActionForm", "ObservationForm"]


class ObservationForm:
    """The observations of a model: an array, or a dict of arrays.

    Images ``[H, W, C]`` are handed over as ``[C, H, W]``, where the model was made with an env that
    `VecTransposeImage` stands before, as a view.

    Args:
        space: The model's observation space.

    Raises:
        ImportError: Stable-Baselines3 is not installed, or too old.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = space
        preprocessing = load_sb3("common.preprocessing", "a bridge to Stable-Baselines3")
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        self._parts = {
            key: _Part(
                np.dtype(part.dtype),
                tuple(part.shape or ()),
                is_image=bool(preprocessing.is_image_space(part)),
                is_discrete=isinstance(part, spaces.Discrete),
            )
            for key, part in parts.items()
        }

    def fit(self, observation: object, lead: int, *, for_buffer: bool = False) -> Any:
        """The observations as the model takes them, views where they can be.

        Args:
            observation: Arrays ``[..., *]``, nested like the env's space.
            lead: Number of axes before those of the space.
            for_buffer: As SB3's buffers keep them: numbers of a Discrete space have an axis more.

        Raises:
            ValueError: They are other observations than the model's.
        """
        if not isinstance(self._space, spaces.Dict):
            if isinstance(observation, Mapping | tuple):
                raise ValueError(
                    f"observation: expected an array, as the model's observation space is "
                    f"{self._space}, got {_kind(observation)}; make the model with an env that "
                    f"gives the same observations"
                )
            return self._fit("", observation, lead, for_buffer)
        if not isinstance(observation, Mapping) or observation.keys() != self._space.spaces.keys():
            raise ValueError(
                f"observation: expected a dict with the keys {sorted(self._space.spaces)} of the "
                f"model's observation space, got {_kind(observation)}; make the model with an env "
                f"that gives the same observations"
            )
        return {key: self._fit(key, observation[key], lead, for_buffer) for key in self._parts}

    def _fit(self, key: str, given: object, lead: int, for_buffer: bool) -> np.ndarray:
        array, part = np.asarray(given), self._parts[key]
        found = array.shape[lead:]
        if part.is_image and len(found) == 3 and found != part.shape:
            if (found[2], *found[:2]) == part.shape:
                array, found = np.moveaxis(array, -1, lead), part.shape
        if array.dtype != part.dtype or found != part.shape:
            name = f"observation/{key}" if key else "observation"
            raise ValueError(
                f"{name}: expected {part.dtype} {part.shape} as in the model's observation space, "
                f"got {array.dtype} {found}; make the model with an env that gives the same "
                f"observations, or convert them with a wrapper before they are collected"
            )
        return array[..., None] if for_buffer and part.is_discrete else array


class _Part(NamedTuple):
    """What one array of an observation must be; looked up once."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_image: bool
    is_discrete: bool


class ActionForm:
    """The actions of a model.

    Args:
        space: The model's action space.

    Raises:
        ValueError: It is a Discrete or MultiDiscrete space that does not begin with 0, whose
            actions no model of Stable-Baselines3 chooses.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
            raise ValueError(
                f"action: expected a space that begins with 0, as Stable-Baselines3 chooses from 0 "
                f"on, got {space}; wrap the env so that it does"
            )
        self._space = space
        self.shape = tuple(space.shape or ())
        self.dtype = np.dtype(space.dtype)
        self.is_box = isinstance(space, spaces.Box)  # vectors of real numbers
        self._size = math.prod(self.shape)
        self._count: Any = None
        if isinstance(space, spaces.Discrete):
            self._count = int(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            self._count = space.nvec

    def fit(self, action: object, lead: int, *, name: str = "action") -> np.ndarray:
        """The actions as SB3's buffers keep them, ``[..., A]``: one axis behind the first ones.

        Args:
            action: An array ``[..., *]``.
            lead: Number of axes before those of the space.
            name: What an error calls it.

        Raises:
            ValueError: They are actions of another space.
        """
        if isinstance(action, Mapping | tuple):
            raise ValueError(self._refusal(name, _kind(action)))
        array = np.asarray(action)
        if array.dtype != self.dtype or array.shape[lead:] != self.shape:
            raise ValueError(self._refusal(name, f"{array.dtype} {array.shape[lead:]}"))
        count = self._count
        if count is not None:
            is_wrong = (array < 0) | (array >= count)
            if np.count_nonzero(is_wrong):
                raise ValueError(self._refusal(name, f"the number {array[is_wrong].flat[0]}"))
        return array.reshape(*array.shape[:lead], self._size)

    def for_envs(self, action: np.ndarray) -> np.ndarray:
        """What a policy computed, ``[N, ...]``, in the dtype and shape that envs take."""
        found: np.ndarray = action.reshape(len(action), *self.shape).astype(self.dtype, copy=False)
        return found

    def _refusal(self, name: str, got: str) -> str:
        return (
            f"{name}: expected actions of the model's space {self._space}, got {got}; make the "
            f"model with an env that takes the same actions"
        )


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with the keys {sorted(map(str, value))}"
    return f"a {type(value).__name__}"
