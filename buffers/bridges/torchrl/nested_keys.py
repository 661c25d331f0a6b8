"""Which key of a TensorDict a field of Stepwell's is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

__all__ = [
    "FLAGS",
    "Key",
    "Keyed",
    "extra_key",
    "extra_name",
    "key_text",
    "keyed",
    "leaves_below",
    "nested",
]

Key = tuple[str, ...]
Keyed = dict[Key, np.ndarray]
"""Arrays by the path of keys that leads to them."""

FLAGS = ("done", "terminated", "truncated")

# Extras that TorchRL's losses look for, by the names that Stepwell's own learners use.
_EXTRAS: dict[str, Key] = {"log_prob": ("action_log_prob",), "value": ("state_value",)}
_NAMES = {key: name for name, key in _EXTRAS.items()}


def extra_key(name: str) -> Key:
    """Where an extra stands: ``log_prob`` is ``action_log_prob``, ``value`` is ``state_value``.

    Example:
        >>> extra_key("log_prob"), extra_key("state/age")
        (('action_log_prob',), ('state', 'age'))
    """
    return _EXTRAS.get(name, tuple(name.split("/")))


def extra_name(key: Key) -> str:
    """The extra that stands there.

    Example:
        >>> extra_name(("action_log_prob",)), extra_name(("state", "age"))
        ('log_prob', 'state/age')
    """
    return _NAMES.get(key, "/".join(key))


def key_text(key: Key) -> str:
    """A key as Python has it.

    Example:
        >>> key_text(("next", "reward")), key_text(("action",))
        ("('next', 'reward')", "'action'")
    """
    first, *others = key
    return repr(key) if others else repr(first)


def leaves_below(key: Key, value: object) -> Iterator[tuple[Key, Any]]:
    """The arrays of a nested value, each with its path; None has none."""
    if isinstance(value, Mapping):
        for part, below in value.items():
            yield from leaves_below((*key, str(part)), below)
    elif isinstance(value, tuple | list):
        for place, below in enumerate(value):
            yield from leaves_below((*key, str(place)), below)
    elif value is not None:
        yield key, value


def keyed(*groups: Iterable[tuple[Key, np.ndarray]]) -> Keyed:
    """Arrays by their keys.

    Raises:
        ValueError: Two of them have the same key, or one the key of what others lie below.
    """
    found: Keyed = {}
    for key, array in (pair for group in groups for pair in group):
        if key in found:
            raise ValueError(_taken(key))
        found[key] = array
    for key in found:
        if any(key[:place] in found for place in range(1, len(key))):
            raise ValueError(_taken(key))
    return found


def nested(columns: Mapping[Key, Any]) -> dict[str, Any]:
    """Dicts in dicts.

    Example:
        >>> nested({("a",): 1, ("next", "a"): 2})
        {'a': 1, 'next': {'a': 2}}
    """
    tree: dict[str, Any] = {}
    for key, array in columns.items():
        below = tree
        for part in key[:-1]:
            below = below.setdefault(part, {})
        below[key[-1]] = array
    return tree


def _taken(key: Key) -> str:
    return (
        f"key {key_text(key)}: expected one field of that name, got two; leave an extra or info "
        f"field out with fields=, or name it otherwise"
    )
