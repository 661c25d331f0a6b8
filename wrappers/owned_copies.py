"""Copy observations and infos, so that an env that reuses its arrays cannot change them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces


def owned_observation(
    space: spaces.Space[Any], observation: object, where: str = "observation"
) -> Any:
    """Copy an observation after checking its structure, shapes and dtypes against the space."""
    # Its arrays may have any strides, the copies are C-contiguous. Values are not compared with the
    # bounds of a Box; those without a fixed shape, as texts, are copied unchecked. ``where`` is its
    # name in error messages.
    if isinstance(space, spaces.Dict):
        return _owned_dict(space, observation, where)
    if isinstance(space, spaces.Tuple):
        return _owned_tuple(space, observation, where)
    if isinstance(space, spaces.Discrete):
        return _owned_number(space, observation, where)
    if space.shape is None:  # texts, sequences, graphs, which `FixedSpaces` checks
        return copy.deepcopy(observation)
    return _owned_array(space, observation, where)


def _owned_array(space: spaces.Space[Any], observation: object, where: str) -> npt.NDArray[Any]:
    if not isinstance(observation, np.ndarray | np.generic):
        raise _wrong_array(space, type(observation).__qualname__, where)
    if observation.dtype != space.dtype or observation.shape != space.shape:
        raise _wrong_array(space, f"{observation.dtype} {observation.shape}", where)
    return owned_array(np.asarray(observation))


def owned_array(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a C-contiguous copy of an array of any strides."""
    # NumPy copies an image with reversed channels (nes-py's) pixel by pixel; copying channel by
    # channel takes a quarter of the time.
    if array.ndim != 3 or array.shape[-1] > 4 or array.flags.c_contiguous:
        return np.array(array, order="C")
    copy = np.empty(array.shape, array.dtype)
    for channel in range(array.shape[-1]):
        copy[..., channel] = array[..., channel]
    return copy


def _wrong_array(space: spaces.Space[Any], got: str, where: str) -> ValueError:
    return ValueError(
        f"{where} does not fit the env's space: expected an array {space.dtype} {space.shape}, got "
        f"{got}; correct the env's space, or convert the observation in a wrapper"
    )


def _owned_number(space: spaces.Discrete[Any], observation: object, where: str) -> int:
    value = np.asarray(observation)
    if value.shape == () and value.dtype.kind in "iu":
        number = int(value)
        if space.start <= number < space.start + space.n:
            return number
    raise ValueError(
        f"{where} does not fit the env's space: expected a whole number in {space}, got "
        f"{observation!r}; correct the env's space"
    )


def _owned_dict(space: spaces.Dict, observation: object, where: str) -> dict[str, Any]:
    if not isinstance(observation, Mapping):
        raise ValueError(
            f"{where} does not fit the env's space: expected a dict of {list(space)}, got "
            f"{type(observation).__qualname__}; correct the env's space"
        )
    parts = cast("Mapping[str, object]", observation)
    if parts.keys() != space.keys():
        raise ValueError(
            f"{where} does not fit the env's space: expected the keys {list(space)}, got "
            f"{list(parts)}; correct the env's space"
        )
    return {key: owned_observation(space[key], parts[key], f"{where}[{key!r}]") for key in space}


def _owned_tuple(space: spaces.Tuple[Any], observation: object, where: str) -> tuple[Any, ...]:
    if not isinstance(observation, tuple | list):
        raise _wrong_tuple(space, type(observation).__qualname__, where)
    parts = cast("list[object]", observation)
    if len(parts) != len(space.spaces):
        raise _wrong_tuple(space, f"one of {len(parts)}", where)
    pairs = zip(space.spaces, parts, strict=True)
    return tuple(
        owned_observation(part, value, f"{where}[{index}]")
        for index, (part, value) in enumerate(pairs)
    )


def _wrong_tuple(space: spaces.Tuple[Any], got: str, where: str) -> ValueError:
    return ValueError(
        f"{where} does not fit the env's space: expected a tuple of {len(space.spaces)}, got "
        f"{got}; correct the env's space"
    )


def owned_info(info: object) -> dict[str, Any]:
    """Copy an info, as `owned_value` does; None is an empty one."""
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise ValueError(
            f"info is invalid: expected a dict, got {type(info).__qualname__}; correct the env"
        )
    return cast("dict[str, Any]", owned_value(cast("Mapping[str, object]", info)))


def owned_value(value: Any) -> Any:
    """Copy arrays, and dicts, lists and tuples of them; other objects are not copied."""
    if isinstance(value, np.ndarray):
        return owned_array(value)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, Mapping):
        return {key: owned_value(part) for key, part in cast("Mapping[str, Any]", value).items()}
    if type(value) in (list, tuple):  # a named tuple could not be rebuilt from its parts
        return type(value)(owned_value(part) for part in value)
    return value
