"""Turn spaces of the old `gym` into gymnasium's, by their names and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["modern_space"]

AnySpace = spaces.Space[Any]


def modern_space(space: object, where: str) -> AnySpace:
    """Make the gymnasium space that is equal to a space of the old `gym`.

    A space is told by the name of its class or of one that it inherits from, so `gym` is not
    imported. It may be one of gymnasium's already.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them.
        where: What the space is of, for messages.

    Raises:
        TypeError: It is none of these, or lacks what one of these has.

    Example:
        >>> class Discrete:
        ...     n = 7
        >>> modern_space(Discrete(), "action_space")
        Discrete(7)
    """
    for kind in type(space).__mro__:
        make = _MAKERS.get(kind.__name__)
        if make is not None:
            return _made(make, space, where)
    raise TypeError(
        f"{where} cannot be turned into gymnasium's: expected {', '.join(_MAKERS)}, got "
        f"{type(space).__module__}.{type(space).__qualname__}; set it to one of them first"
    )


def _made(make: Callable[[Any, str], AnySpace], space: object, where: str) -> AnySpace:
    try:
        return make(space, where)
    except AttributeError as error:
        raise TypeError(
            f"{where} cannot be turned into gymnasium's: expected a {type(space).__qualname__} "
            f"with the attributes of gym's, got one where {error}; set it to gymnasium's own space"
        ) from None


def _box(space: Any, where: str) -> AnySpace:
    if space.dtype is None:
        raise TypeError(
            f"{where} has no dtype: expected one, got None; set it to gymnasium's own Box"
        )
    return spaces.Box(space.low, space.high, tuple(space.shape), np.dtype(space.dtype).type)


def _discrete(space: Any, where: str) -> AnySpace:
    dtype = np.dtype(getattr(space, "dtype", None) or np.int64).type
    return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)), dtype=dtype)


def _multi_discrete(space: Any, where: str) -> AnySpace:
    dtype = np.dtype(space.dtype or np.int64).type
    start = getattr(space, "start", None)  # gymnasium's
    return spaces.MultiDiscrete(np.asarray(space.nvec), dtype=dtype, start=start)


def _multi_binary(space: Any, where: str) -> AnySpace:
    return spaces.MultiBinary(int(space.n) if np.ndim(space.n) == 0 else tuple(space.n))


def _dict(space: Any, where: str) -> AnySpace:
    parts: Mapping[str, object] = space.spaces
    return spaces.Dict(
        {key: modern_space(part, f"{where}[{key!r}]") for key, part in parts.items()}
    )


def _tuple(space: Any, where: str) -> AnySpace:
    return spaces.Tuple(
        [modern_space(part, f"{where}[{index}]") for index, part in enumerate(space.spaces)]
    )


_MAKERS: dict[str, Callable[[Any, str], AnySpace]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
    "Tuple": _tuple,
}
