"""Gymnasium's spaces as JSON, and back: a Spec has no bounds and no numbers of actions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from gymnasium import spaces

from ..base.untrusted_json import MOST, items, mapping, member, text, whole

_SPACES_CHARS = 1 << 16
DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""The dtypes of numbers that files may name."""

_MOST_NUMBERS = 1 << 26


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """The space as plain data for JSON, without loss.

    Raises:
        TypeError: It is none of Gymnasium's.

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
        counts = {"n": int(space.n), "start": int(space.start)}
        return {"type": "Discrete", "dtype": np.dtype(space.dtype).name, **counts}
    if isinstance(space, spaces.MultiDiscrete):
        lists = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": np.dtype(space.dtype).name, **lists}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": np.array(space.n).tolist()}
    if hasattr(space, "original"):  # a FixedSpace, whose class is loaded where it is met
        from .open_spaces import FixedSpace, lengths_of

        assert isinstance(space, FixedSpace)
        facts = {"name": space.name, "lengths": lengths_of(space)}
        return {"type": "Fixed", **facts, "space": space_to_json(space.original)}
    if isinstance(space, spaces.Dict):
        parts = {key: space_to_json(part) for key, part in space.spaces.items()}
        return {"type": "Dict", "spaces": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    if isinstance(space, spaces.Sequence):
        feature = space_to_json(space.feature_space)
        return {"type": "Sequence", "space": feature, "stack": space.stack}
    if isinstance(space, spaces.Graph):
        edge = None if space.edge_space is None else space_to_json(space.edge_space)
        return {"type": "Graph", "node": space_to_json(space.node_space), "edge": edge}
    if isinstance(space, spaces.OneOf):
        return {"type": "OneOf", "spaces": [space_to_json(part) for part in space.spaces]}
    from .open_spaces import AnyText, fixed_space

    if isinstance(space, spaces.Text) and not isinstance(space, AnyText):
        return {
            "type": "Text",
            "min_length": space.min_length,
            "max_length": space.max_length,
            "characters": "".join(sorted(space.character_set)),
        }
    fixed: Any = fixed_space(space)  # raises for spaces of another kind
    return {"type": "Text", "min_length": 0, "max_length": fixed.width, "characters": None}


def spaces_facts(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> dict[str, object]:
    """One env's spaces as facts of a session, unless they are too large for that."""
    found = {
        "observation": space_to_json(observation_space),
        "action": space_to_json(action_space),
    }
    # Spaces of images with a different bound for each pixel would outweigh the rows.
    return {"spaces": found} if len(json.dumps(found)) <= _SPACES_CHARS else {}


def space_of(
    sessions: Sequence[Mapping[str, Any]],
    name: str,  # `observation`, `action`, or of a part of one: `observation/mission`
) -> spaces.Space[Any]:
    """The space of an observation, an action or a part of it, as the newest session recorded it."""
    kind, *keys = name.split("/")
    recorded = [one["spaces"] for one in sessions if isinstance(one.get("spaces"), Mapping)]
    if not recorded or kind not in recorded[-1]:
        raise ValueError(
            f"{name}: expected a space that a session recorded, of observation or action, got none"
        )
    space: Any = space_from_json(mapping(recorded[-1][kind], kind))
    for key in keys:
        parts = getattr(space, "spaces", ())
        if isinstance(parts, tuple):
            parts = {str(place): part for place, part in enumerate(parts)}
        if key not in parts:
            raise ValueError(
                f"{name}: expected one of {', '.join(parts) or 'no parts'}, got {key!r}; name a "
                f"part of the {kind}"
            )
        space = parts[key]
    found: spaces.Space[Any] = space
    return found


def recorded_spaces(replay: Any, wanted_for: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The spaces of observation and action as a replay's newest session recorded them."""
    sessions = getattr(replay, "sessions", None)
    if sessions is None:
        raise TypeError(
            f"{wanted_for}: expected a replay, got a {type(replay).__name__}; give what "
            f"sw.load_dataset or SequenceReplayBuffer.open returns"
        )
    if not any(isinstance(one.get("spaces"), Mapping) for one in sessions):
        raise ValueError(
            f"{wanted_for}: expected a replay that has the spaces of its env, got one without; "
            f"give the model the env itself, as no bounds and no numbers of actions are known"
        )
    return space_of(sessions, "observation"), space_of(sessions, "action")


def space_from_json(data: Mapping[str, Any]) -> spaces.Space[Any]:
    """The space that `space_to_json` described; the data is checked.

    Raises:
        ValueError: The data describes no space, or one that is too large.
    """
    try:
        return _space(dict(data))
    except (ValueError, TypeError, OverflowError, AssertionError) as error:
        raise ValueError(
            f"space: expected one that Stepwell writes, got another: {error}"
        ) from None


def _space(given: object) -> spaces.Space[Any]:
    """The space of data that may be forged."""
    # Each size is checked before Gymnasium allocates memory for it.
    data = mapping(given, "space")
    kind = member(data, "type")
    if kind == "Box":
        dtype, shape = _dtype(data), _shape(member(data, "shape"))
        low, high = (_bounds(member(data, name), dtype, shape) for name in ("low", "high"))
        return spaces.Box(low, high, shape, cast("Any", dtype.type))
    if kind == "Discrete":
        n = whole(member(data, "n"), "n", 1)
        first = whole(member(data, "start"), "start", -MOST)
        return spaces.Discrete(n, start=first, dtype=cast("Any", _dtype(data).type))
    if kind == "MultiDiscrete":
        dtype = _dtype(data)
        nvec, start = (np.array(member(data, name), dtype) for name in ("nvec", "start"))
        if nvec.shape != start.shape or (nvec.size and nvec.min() < 1):
            raise ValueError("expected numbers >= 1 of actions, each with its first one")
        return spaces.MultiDiscrete(nvec, dtype=cast("Any", dtype.type), start=start)
    if kind == "MultiBinary":
        lengths = member(data, "n")
        return spaces.MultiBinary(
            _shape(lengths) if isinstance(lengths, list) else _shape([lengths])[0]
        )
    if kind == "Dict":
        named = mapping(member(data, "spaces"), "spaces")
        return spaces.Dict({key: _space(part) for key, part in named.items()})
    if kind in ("Tuple", "OneOf"):
        parts = [_space(part) for part in items(member(data, "spaces"), "spaces")]
        return spaces.Tuple(parts) if kind == "Tuple" else spaces.OneOf(parts)
    if kind == "Sequence":
        stack = member(data, "stack")
        if not isinstance(stack, bool):
            raise ValueError(f"stack: expected true or false, got {stack!r}")
        return spaces.Sequence(_space(member(data, "space")), stack=stack)
    if kind == "Graph":
        edge = member(data, "edge")
        node: Any = _space(member(data, "node"))
        return spaces.Graph(node, None if edge is None else cast("Any", _space(edge)))
    if kind == "Text":
        return _text(data)
    if kind == "Fixed":
        from .open_spaces import fixed_space

        given_lengths = mapping(member(data, "lengths"), "lengths")
        lengths = {k: whole(each, "length", 1, _MOST_NUMBERS) for k, each in given_lengths.items()}
        name = text(member(data, "name"), "name")
        fixed: spaces.Space[Any] = fixed_space(_space(member(data, "space")), name, lengths)
        return fixed
    raise ValueError(f"type {kind!r}")


def _text(data: Mapping[str, Any]) -> spaces.Text:
    least = whole(member(data, "min_length"), "min_length", 0, _MOST_NUMBERS)
    most = whole(member(data, "max_length"), "max_length", 1, _MOST_NUMBERS)
    characters = member(data, "characters")
    if characters is None:
        from .open_spaces import AnyText

        return AnyText(most)
    letters = text(characters, "characters")
    if least > most or len(set(letters)) != len(letters):
        raise ValueError(
            f"expected a text of {least} to {most} characters, each listed once, got "
            f"{letters[:60]!r}"
        )
    return spaces.Text(most, min_length=least, charset=letters)


def _dtype(data: Mapping[str, Any]) -> np.dtype[Any]:
    name = text(member(data, "dtype"), "dtype")
    if name not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {name[:60]!r}")
    return np.dtype(name)


def _shape(value: object) -> tuple[int, ...]:
    """A shape whose bounds need not much memory."""
    lengths = tuple(whole(length, "shape", 0, _MOST_NUMBERS) for length in items(value, "shape"))
    if len(lengths) > 32 or math.prod(max(1, length) for length in lengths) > _MOST_NUMBERS:
        raise ValueError(f"shape: expected at most {_MOST_NUMBERS} numbers, got {lengths[:32]}")
    return lengths


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
    return np.full(shape, dtype.type(value))
