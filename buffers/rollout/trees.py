"""Nested values, array by array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["map_tree", "named_leaves"]


# Any: whoever maps an array gets an array, whoever maps a dict gets a dict.
def map_tree(function: Callable[[np.ndarray], Any], tree: Any) -> Any:
    """A nested value of the same form, with another array in place of each.

    Args:
        function: What becomes of an array.
        tree: An array, or mappings, tuples, named tuples and lists of such; None stays None.

    Example:
        >>> map_tree(len, {"a": np.zeros(2), "b": (np.zeros(3), np.zeros(4))})
        {'a': 2, 'b': (3, 4)}
    """
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: map_tree(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [map_tree(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree)


def named_leaves(name: str, tree: object) -> Iterator[tuple[str, Any]]:
    """The arrays of a nested value, each with the name by which an error speaks of it.

    Args:
        name: Name of the whole.
        tree: As in `map_tree`.

    Example:
        >>> [name for name, _ in named_leaves("state", {"h": 0, "c": (1, 2)})]
        ['state/h', 'state/c/0', 'state/c/1']
    """
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from named_leaves(f"{name}/{key}", part)
    elif isinstance(tree, tuple | list):
        for place, part in enumerate(tree):
            yield from named_leaves(f"{name}/{place}", part)
    elif tree is not None:
        yield name, tree
