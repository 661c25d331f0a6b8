"""What is noted about an episode when it begins, beside its rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np

__all__ = ["EpisodeMetadata", "MetadataOrFunction"]

MetadataOrFunction: TypeAlias = (
    "Mapping[str, object] | Callable[[int, Mapping[str, object]], Mapping[str, object]]"
)
"""JSON-able facts for every episode, or a function that gives those of one: it is called with the
index of the env and the info of its reset."""

_OURS = ("seed", "stream_episode")


class EpisodeMetadata:
    """Gives the metadata of episodes as they begin.

    Args:
        metadata: The user's facts, or a function that gives them.

    Raises:
        TypeError: It is neither, or the facts are not JSON-able.
        ValueError: It has a key that the Collector itself writes.
    """

    def __init__(self, metadata: MetadataOrFunction | None) -> None:
        given = {} if metadata is None else metadata
        if not isinstance(given, Mapping) and not callable(given):
            raise TypeError(
                f"metadata: expected a mapping of facts, or a function of env index and info that "
                f"returns one, got {given!r}"
            )
        self._given = given
        self._same_for_all = _checked(given) if isinstance(given, Mapping) else None

    def of(self, env: int, info: Mapping[str, Any], place: int) -> Mapping[str, object]:
        """The facts about an episode that begins.

        Args:
            env: Index of its env.
            info: The vector env's info of the reset.
            place: Which of the rows is the env's.
        """
        if self._same_for_all is not None:
            return self._same_for_all
        function = cast("Callable[..., Mapping[str, object]]", self._given)
        return _checked(function(env, info_of(info, place)))


def info_of(info: Mapping[str, Any], place: int) -> dict[str, object]:
    """One env's part of a vector env's info: what it has not given is left out.

    Example:
        >>> info = {"level": np.array([3, 0]), "_level": np.array([True, False])}
        >>> info_of(info, 0), info_of(info, 1)
        ({'level': 3}, {})
    """
    found: dict[str, object] = {}
    for key, values in info.items():
        mask = info.get(f"_{key}")
        if key.startswith("_") and key[1:] in info:
            continue
        if mask is not None and not np.asarray(mask)[place]:
            continue
        found[key] = info_of(values, place) if isinstance(values, Mapping) else _part(values, place)
    return found


def _part(values: Any, place: int) -> object:
    """The env's value of an array over all envs, a plain number where it is one."""
    if not isinstance(values, np.ndarray | list | tuple) or len(values) <= place:
        return cast("object", values)
    value = values[place]
    return value.item() if isinstance(value, np.generic) else cast("object", value)


def _checked(metadata: object) -> Mapping[str, object]:
    """Plain JSON, as it comes back from a file."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a mapping of facts, got {metadata!r}")
    for key in _OURS:
        if key in metadata:
            raise ValueError(
                f"metadata: expected keys other than {' and '.join(_OURS)}, which the Collector "
                f"writes itself, got {key!r}; choose another name"
            )
    try:
        plain = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"metadata: expected plain JSON values, got {dict(metadata)!r} ({error}); convert "
            f"them first"
        ) from error
    return cast("dict[str, object]", plain)
