"""Gymnasium's spaces as plain data, and back: a Spec knows no bounds, nor how many actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces

__all__ = ["space_from_json", "space_to_json"]


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """What a space is, as JSON holds it without loss.

    Raises:
        TypeError: It is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.

    Example:
        >>> data = space_to_json(spaces.Box(0, 255, (84, 84), np.uint8))
        >>> data
        {'type': 'Box', 'dtype': 'uint8', 'shape': [84, 84], 'low': 0, 'high': 255}
        >>> space_from_json(data)
        Box(0, 255, (84, 84), uint8)
    """
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "dtype": space.dtype.name,
            "shape": list(space.shape),
            "low": _bound(space.low),
            "high": _bound(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {
            "type": "Discrete",
            "dtype": np.dtype(space.dtype).name,
            "n": int(space.n),
            "start": int(space.start),
        }
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "dtype": np.dtype(space.dtype).name,
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": np.array(space.n).tolist()}
    if isinstance(space, spaces.Dict):
        parts = {key: space_to_json(part) for key, part in space.spaces.items()}
        return {"type": "Dict", "spaces": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise TypeError(
        f"space {space}: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, got "
        f"{type(space).__name__}; flatten it with a gymnasium wrapper"
    )


def space_from_json(data: Mapping[str, Any]) -> spaces.Space[Any]:
    """The space that `space_to_json` told of.

    Raises:
        ValueError: It tells of another kind of space.
    """
    kind = data["type"]
    if kind == "Box":
        dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
        low, high = (_bounds(data[name], dtype, shape) for name in ("low", "high"))
        return spaces.Box(low, high, shape, cast("Any", dtype.type))
    if kind == "Discrete":
        dtype = np.dtype(data["dtype"])
        return spaces.Discrete(data["n"], start=data["start"], dtype=cast("Any", dtype.type))
    if kind == "MultiDiscrete":
        dtype = np.dtype(data["dtype"])
        nvec, start = (np.array(data[name], dtype) for name in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=cast("Any", dtype.type), start=start)
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        return spaces.Dict({key: space_from_json(part) for key, part in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(part) for part in data["spaces"]])
    raise ValueError(f"space: expected a kind that Stepwell writes, got {kind!r}")


def _bound(bound: np.ndarray) -> Any:
    """One number where all are equal, else nested lists; infinities as text, which JSON lacks."""
    if bound.size and (bound == bound.flat[0]).all():
        return _plain(bound.flat[0].item())
    return _plain(bound.tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _bounds(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """The bound of each element."""
    if isinstance(value, list):
        bounds = np.array(value).reshape(shape)
        return bounds.astype(dtype)
    return np.full(shape, np.dtype(dtype).type(value))
