"""The arrays that a batch is made in, new or used again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

__all__ = ["Memory", "Shapes", "memory_for"]

Memory: TypeAlias = "dict[str, np.ndarray]"
Shapes: TypeAlias = "dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]"


def memory_for(shapes: Shapes, out: Mapping[str, np.ndarray] | None) -> Memory:
    """Uninitialised arrays of the given shapes and dtypes, or those of an earlier batch.

    Raises:
        ValueError: The earlier batch was made for another request.
    """
    if out is None:
        return {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
    found = {name: (array.shape, array.dtype) for name, array in out.items()}
    if found != shapes:
        raise ValueError(
            f"out: expected a batch of {_described(shapes)}, got one of {_described(found)}; give "
            f"one that came from the same request"
        )
    return dict(out)


def _described(shapes: Shapes) -> str:
    return ", ".join(f"{name} {dtype} {shape}" for name, (shape, dtype) in shapes.items())
