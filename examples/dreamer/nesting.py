"""Functions for values that are nested like a Gymnasium space."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

Batch = Any  # an array, or a tuple or dict of batches, nested like the space


def leaves_of(space: spaces.Space[Any]) -> Iterator[spaces.Space[Any]]:
    """Yield the innermost spaces, in the space's order."""
    if isinstance(space, spaces.Dict):
        for part in space.values():
            yield from leaves_of(part)
    elif isinstance(space, spaces.Tuple):
        for part in space:
            yield from leaves_of(part)
    else:
        yield space


def flat(space: spaces.Space[Any], batch: Batch) -> Iterator[Any]:
    """Yield the arrays of a batch, in the order of `leaves_of`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from flat(part, batch[key])
    elif isinstance(space, spaces.Tuple):
        for part, chunk in zip(space, batch, strict=True):
            yield from flat(part, chunk)
    else:
        yield batch


def nest(space: spaces.Space[Any], leaves: Iterator[np.ndarray]) -> Batch:
    """Nest arrays like the space; the inverse of `flat`."""
    if isinstance(space, spaces.Dict):
        return {key: nest(part, leaves) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nest(part, leaves) for part in space)
    return next(leaves)
