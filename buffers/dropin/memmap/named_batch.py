"""Batches as named tuples, and values as arrays or on a device, whatever they came as."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["check_names", "named_batch", "plain_array", "to_device"]


def plain_array(value: object) -> np.ndarray:
    """A value as an array: an array as it is, a tensor's memory, or what numpy makes of it.

    Example:
        >>> plain_array([1, 2])
        array([1, 2])
    """
    # A tensor that is part of a graph, or on another device, is refused by numpy.
    detach: Any = getattr(value, "detach", None)
    return np.asarray(value if detach is None else detach().cpu())


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no named tuple can have.

    Raises:
        ValueError: One is no name, or two become one: a leading ``_`` is left out.
    """
    fields = [name.lstrip("_") for name in names]
    strange = [name for name in fields if not name.isidentifier()]
    twice = [name for name in fields if fields.count(name) > 1]
    if strange or twice:
        raise ValueError(
            f"to_named_tuple: expected different names such as 'state' or '_lens', got "
            f"{(strange or twice)[0]!r}{'' if strange else ' twice'}; name each field once"
        )


def named_batch(batch: Mapping[str, Any], names: Sequence[str]) -> Any:
    """A batch as a named tuple ``Batch``; a leading ``_`` of a name is left out.

    Args:
        batch: Values by name.
        names: Which of them, in this order.

    Raises:
        ValueError: The batch has no such value, or a name is not one of a named tuple.

    Example:
        >>> named_batch({"state": 1, "_lens": 2, "action": 3}, ("state", "_lens"))
        Batch(state=1, lens=2)
    """
    kind = _kind_of(tuple(names))
    missing = [name for name in names if name not in batch]
    if missing:
        raise ValueError(
            f"to_named_tuple: expected some of {', '.join(batch)}, got {missing[0]!r}; name what "
            f"the batch has"
        )
    return kind(*(batch[name] for name in names))


def to_device(batch: Any, device: object) -> Any:
    """The same batch with its tensors on a device; None leaves them where they are."""
    if device is None:
        return batch
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    return batch.to(device) if hasattr(batch, "to") else batch


@lru_cache(maxsize=256)
def _kind_of(names: tuple[str, ...]) -> Any:
    """The class of such named tuples."""
    check_names(names)
    made: Any = namedtuple  # checkers want names that are written out
    return made("Batch", [name.lstrip("_") for name in names])
