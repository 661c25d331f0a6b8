"""Spaces of any kind as arrays of a fixed shape: texts, sequences, graphs and alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ..base.number_checks import check_whole
from .exact_values import exactly, numbers_in, part_of

DEFAULT_LENGTHS = {"text": 256, "items": 64}
"""Places for the characters of a text without a limit of its own, and for the items of a sequence
or the nodes of a graph."""

_Space: TypeAlias = "spaces.Space[Any]"
_LARGEST_CODE = 0x10FFFF  # of a character of Unicode
_LARGEST_BYTE = 0xFF
_MOST_NUMBERS = 1 << 26  # in the arrays of one value


class AnyText(spaces.Text):
    """Texts of any characters, up to a length."""

    def contains(self, x: Any) -> bool:
        """Test whether it is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


class FixedSpace(spaces.Dict):
    """A Dict of arrays of fixed shapes that holds the values of a space of another kind."""

    # `encode` and `decode` convert values; `sample` and `contains` are those of the original space.
    # ``parts`` are the arrays, by name; ``name`` is the field's, for error messages.

    original: _Space

    def __init__(self, original: _Space, parts: Mapping[str, _Space], name: str) -> None:
        self.original = original
        self.name = name
        super().__init__(dict(parts))

    def encode(self, value: Any) -> dict[str, Any]:
        """The arrays that hold a value of the original space; ValueError where there is no room."""
        raise AssertionError  # each kind has its own

    def decode(self, arrays: Mapping[str, Any]) -> Any:
        """The value of the original space that arrays hold."""
        raise AssertionError

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:
        """A random value of the original space, as arrays."""
        return self.encode(self.original.sample(mask=mask, probability=probability))

    def seed(self, seed: Any = None) -> Any:
        """Seed the original space."""
        return self.original.seed(seed)

    def contains(self, x: Any) -> bool:
        """Test whether arrays hold a value of the original space."""
        try:
            return bool(self.original.contains(self.decode(x)))
        except (ValueError, TypeError, KeyError, IndexError):
            return False

    def _check_room(self, what: str, count: int, most: int, part: str = "") -> None:
        """Refuse a value, or a part of one, for which there is no room."""
        if count > most:
            raise ValueError(
                f"{self.name}: expected at most {most} {what}, got {count}; give more room by "
                f"stepwell.wrappers.FixedSpaces(env, lengths={{{self.name + part!r}: {count}}})"
            )

    def _length(self, value: object, most: int, what: str) -> int:
        """A length that was stored, checked."""
        length = int(np.asarray(value))
        if not 0 <= length <= most:
            raise ValueError(f"{self.name}: expected a {what} of 0 to {most}, got {length}")
        return length

    def _ragged_length(self, arrays: Mapping[str, Any], most: int, prefix: str = "") -> int:
        """The number of places that have values, as a length and a mask say."""
        length = self._length(arrays[f"{prefix}length"], most, f"{prefix}length")
        marks = np.asarray(arrays[f"{prefix}mask"])
        if not np.array_equal(marks, np.arange(len(marks)) < length):
            raise ValueError(
                f"{self.name}: expected a mask of the first {length} places, got {marks.tolist()}"
            )
        return length

    def _padded(
        self, key: str, space: _Space, items: Sequence[Any], width: int, prefix: str = ""
    ) -> dict[str, Any]:
        """Items of a fixed space as arrays [W, ...] with zeros behind them, and their number."""
        padded = create_empty_array(space, width, fn=np.zeros)
        if items:
            rows = [encode(space, item, self.name) for item in items]
            _write(padded, join_values(space, rows), len(items))
        return {key: padded, **_ragged_values(len(items), width, prefix)}

    def _unpadded(
        self, key: str, space: _Space, arrays: Mapping[str, Any], width: int, prefix: str = ""
    ) -> tuple[Any, ...]:
        """The items that `_padded` was given."""
        length = self._ragged_length(arrays, width, prefix)
        return tuple(decode(space, _row(arrays[key], place)) for place in range(length))


class _BatchedFixedSpace(spaces.Dict):
    """The arrays of N values: samples are N samples, not random arrays."""

    def __init__(self, single: FixedSpace, n: int = 1) -> None:
        self._single, self._n = single, n
        super().__init__({key: batch_space(part, n) for key, part in single.spaces.items()})

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:
        items = [self._single.sample() for _ in range(self._n)]
        return cast("dict[str, Any]", join_values(self._single, items))

    def seed(self, seed: Any = None) -> Any:
        return self._single.seed(seed)


batch_space.register(FixedSpace, _BatchedFixedSpace)
# For a Tuple, Gymnasium looks up the exact classes of the parts, not those that they inherit from.
iterate.register(_BatchedFixedSpace, iterate.dispatch(spaces.Dict))


class FixedText(FixedSpace):
    """Texts as code points: ``value`` [W], ``length`` and ``mask`` [W]."""

    def __init__(self, original: _Space, name: str, width: int | None) -> None:
        largest = _LARGEST_CODE
        self.width = DEFAULT_LENGTHS["text"]
        if isinstance(original, spaces.Text):
            self.width = original.max_length
            if not isinstance(original, AnyText):
                largest = max(map(ord, original.character_set), default=0)
        if width is not None:
            self.width = width
        dtype: Any = np.uint8 if largest <= _LARGEST_BYTE else np.int32
        self._largest = _LARGEST_BYTE if dtype is np.uint8 else _LARGEST_CODE
        value = spaces.Box(0, self._largest, (self.width,), dtype)
        super().__init__(original, {"value": value, **_ragged(self.width)}, name)

    def limits(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The lengths and the code points of the space's texts; None for a space without limits."""
        text = self.original
        if not isinstance(text, spaces.Text) or isinstance(text, AnyText):
            return None
        lengths = np.arange(text.min_length, text.max_length + 1)
        return lengths, np.array([*map(ord, text.character_set)], np.int64)

    def encode(self, value: Any) -> dict[str, Any]:
        """The code points of a text."""
        if not isinstance(value, str):
            raise ValueError(f"{self.name}: expected a text, got {value!r}")
        self._check_room("characters", len(value), self.width)
        codes = np.array([*map(ord, value)], np.int64)
        if len(codes) and codes.max() > self._largest:
            raise ValueError(
                f"{self.name}: expected the characters of {self.original}, got {value!r}"
            )
        row = np.zeros(self.width, self.spaces["value"].dtype)
        row[: len(codes)] = codes
        return {"value": row, **_ragged_values(len(codes), self.width)}

    def decode(self, arrays: Mapping[str, Any]) -> str:
        """The text of code points."""
        length = self._ragged_length(arrays, self.width)
        codes = np.asarray(arrays["value"])[:length].tolist()
        if not all(0 <= code <= _LARGEST_CODE for code in codes):
            raise ValueError(f"{self.name}: expected code points of characters, got {codes}")
        return "".join(map(chr, codes))


class FixedSequence(FixedSpace):
    """Sequences as padded items: ``value`` [W, ...], ``length`` and ``mask`` [W]."""

    original: spaces.Sequence

    def __init__(
        self, original: spaces.Sequence, name: str, lengths: Mapping[str, int], seen: set[str]
    ) -> None:
        self.width = lengths.get(name, DEFAULT_LENGTHS["items"])
        self.item = _fixed(original.feature_space, f"{name}/value", lengths, seen)
        parts = {"value": batch_space(self.item, self.width), **_ragged(self.width)}
        super().__init__(original, parts, name)

    def encode(self, value: Any) -> dict[str, Any]:
        """The items of a sequence, padded with zeros."""
        if self.original.stack:
            items = list(iterate(self.original.stacked_feature_space, value))
        elif isinstance(value, tuple | list):
            items = list(value)
        else:
            raise ValueError(f"{self.name}: expected a tuple, got {type(value).__name__}")
        self._check_room("items", len(items), self.width)
        return self._padded("value", self.item, items, self.width)

    def decode(self, arrays: Mapping[str, Any]) -> Any:
        """The items of padded ones."""
        items = self._unpadded("value", self.item, arrays, self.width)
        return join_values(self.original.feature_space, items) if self.original.stack else items


class FixedGraph(FixedSpace):
    """Graphs as padded nodes and edges."""

    # ``node`` [W, ...], ``node_length``, ``node_mask`` [W]; with an edge space ``edge`` [E, ...],
    # ``edge_links`` [E, 2], ``edge_length``, ``edge_mask`` [E], and ``has_edges``, which is 0 where
    # the graph's edges are None.

    original: spaces.Graph

    def __init__(
        self, original: spaces.Graph, name: str, lengths: Mapping[str, int], seen: set[str]
    ) -> None:
        self.nodes = lengths.get(f"{name}/node", DEFAULT_LENGTHS["items"])
        self.edges = lengths.get(f"{name}/edge", 4 * DEFAULT_LENGTHS["items"])
        seen |= {f"{name}/node", f"{name}/edge"}
        self.node = _fixed(original.node_space, f"{name}/node", lengths, seen)
        parts: dict[str, _Space] = {
            "node": batch_space(self.node, self.nodes),
            **_ragged(self.nodes, "node_"),
        }
        self.edge: _Space | None = None
        if original.edge_space is not None:
            self.edge = _fixed(original.edge_space, f"{name}/edge", lengths, seen)
            parts |= {
                "edge": batch_space(self.edge, self.edges),
                "edge_links": spaces.Box(0, max(0, self.nodes - 1), (self.edges, 2), np.int32),
                **_ragged(self.edges, "edge_"),
                "has_edges": spaces.Discrete(2),
            }
        super().__init__(original, parts, name)

    def encode(self, value: Any) -> dict[str, Any]:
        """The nodes and edges of a graph, padded with zeros."""
        if not isinstance(value, spaces.GraphInstance):
            raise ValueError(f"{self.name}: expected a GraphInstance, got {type(value).__name__}")
        if (value.edges is None) != (value.edge_links is None) or (
            value.edges is not None and self.edge is None
        ):
            raise ValueError(f"{self.name}: expected a graph of {self.original}, got {value}")
        nodes = list(iterate(self.original.batch_node_space, value.nodes))
        self._check_room("nodes", len(nodes), self.nodes, "/node")
        arrays = self._padded("node", self.node, nodes, self.nodes, "node_")
        if self.edge is None:
            return arrays
        batched: Any = self.original.batch_edge_space
        edges = [] if value.edges is None else list(iterate(batched, value.edges))
        self._check_room("edges", len(edges), self.edges, "/edge")
        links = np.zeros((self.edges, 2), np.int32)
        if value.edge_links is not None:
            given = numbers_in(value.edge_links, self.name)
            # A link to a node that is not there would be stored like any other.
            is_right = given.shape == (len(edges), 2) and given.dtype.kind in "iu"
            if not is_right or (given.size and not 0 <= given.min() <= given.max() < len(nodes)):
                raise ValueError(
                    f"{self.name}: expected links [{len(edges)}, 2] between {len(nodes)} nodes, "
                    f"got {given.tolist()}"
                )
            links[: len(edges)] = given
        return {
            **arrays,
            **self._padded("edge", self.edge, edges, self.edges, "edge_"),
            "edge_links": links,
            # A graph with no edges and one whose edges are None have the same arrays else.
            "has_edges": np.int64(value.edges is not None),
        }

    def decode(self, arrays: Mapping[str, Any]) -> spaces.GraphInstance:
        """The graph of padded nodes and edges."""
        found = self._unpadded("node", self.node, arrays, self.nodes, "node_")
        nodes = join_values(self.original.node_space, found)
        if self.edge is None or not int(np.asarray(arrays["has_edges"])):
            return spaces.GraphInstance(nodes, None, None)
        space: Any = self.original.edge_space
        found = self._unpadded("edge", self.edge, arrays, self.edges, "edge_")
        links = np.asarray(arrays["edge_links"])[: len(found)]
        return spaces.GraphInstance(nodes, join_values(space, found), links.copy())


class FixedOneOf(FixedSpace):
    """Alternatives side by side: ``choice``, and each by its number, zeros where not chosen."""

    original: spaces.OneOf[Any]

    def __init__(
        self, original: spaces.OneOf[Any], name: str, lengths: Mapping[str, int], seen: set[str]
    ) -> None:
        self.alternatives = [
            _fixed(part, f"{name}/{key}", lengths, seen) for key, part in _parts(original)
        ]
        parts: dict[str, _Space] = {"choice": spaces.Discrete(len(self.alternatives))}
        parts |= {str(place): part for place, part in enumerate(self.alternatives)}
        super().__init__(original, parts, name)

    def encode(self, value: Any) -> dict[str, Any]:
        """The number of the alternative, and its value."""
        if not isinstance(value, tuple) or len(value) != 2:
            raise ValueError(f"{self.name}: expected a pair of number and value, got {value!r}")
        choice = int(exactly(value[0], np.dtype(np.int64), (), self.name))
        if not 0 <= choice < len(self.alternatives):
            raise ValueError(
                f"{self.name}: expected an alternative of 0 to {len(self.alternatives) - 1}, got "
                f"{choice}"
            )
        arrays: dict[str, Any] = {"choice": np.int64(choice)}
        for place, part in enumerate(self.alternatives):
            if place == choice:
                arrays[str(place)] = encode(part, value[1], self.name)
            else:
                arrays[str(place)] = _row(create_empty_array(part, 1, fn=np.zeros), 0)
        return arrays

    def decode(self, arrays: Mapping[str, Any]) -> tuple[np.int64, Any]:
        """The pair of number and value."""
        last = len(self.alternatives) - 1
        choice = self._length(arrays["choice"], last, "choice")
        return np.int64(choice), decode(self.alternatives[choice], arrays[str(choice)])


class FixedEmpty(FixedSpace):
    """An action's empty Dict or Tuple as ``nothing`` [0]: Gymnasium cannot divide it among envs."""

    def __init__(self, original: _Space, name: str) -> None:
        super().__init__(original, {"nothing": spaces.Box(0, 1, (0,), np.uint8)}, name)

    def encode(self, value: Any) -> dict[str, Any]:
        """An empty array."""
        if len(value):
            raise ValueError(f"{self.name}: expected an empty {self.original}, got {value!r}")
        return {"nothing": np.zeros(0, np.uint8)}

    def decode(self, arrays: Mapping[str, Any]) -> Any:
        """An empty dict or tuple."""
        return () if isinstance(self.original, spaces.Tuple) else {}


def fixed_space(
    space: _Space, name: str = "observation", lengths: Mapping[str, int] | None = None
) -> _Space:
    """The space, in which texts, sequences, graphs and alternatives are Dicts of arrays."""
    # Text, or another space of texts: ``value`` [W] code points, ``length``, ``mask`` [W].
    # Sequence: ``value`` [W, ...], ``length``, ``mask`` [W].
    # Graph: ``node`` [W, ...], ``node_length``, ``node_mask`` [W], and the same of ``edge``.
    # OneOf: ``choice``, and the values of the alternatives ``0``, ``1``, ...
    # It is the same object where nothing is to be replaced. ``lengths`` are the most characters or
    # items W by field name, for example ``{"observation/mission": 512}``. None takes a Text's own
    # limit, 256 characters for other texts, 64 items and nodes, and 256 edges.
    lengths = lengths or {}
    for field, length in lengths.items():
        check_whole(f"lengths[{field!r}]", length, 1)
    if _numbers(space, name, lengths) > _MOST_NUMBERS:
        raise ValueError(
            f"{name} space {space}: expected at most {_MOST_NUMBERS:,} numbers for a value, got "
            f"more; give smaller lengths"
        )
    seen: set[str] = set()
    fixed = _fixed(space, name, lengths, seen)
    unknown = [field for field in lengths if field.split("/")[0] == name and field not in seen]
    if unknown:
        raise ValueError(
            f"lengths: expected names of {', '.join(sorted(seen)) or 'no field'}, got "
            f"{unknown[0]!r}"
        )
    return fixed


def original_space(space: _Space) -> _Space:
    """The space that a fixed one was made of."""
    if isinstance(space, FixedSpace):
        return space.original
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: original_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([original_space(part) for part in space.spaces])
    return space


def lengths_of(space: _Space) -> dict[str, int]:
    """The most characters and items by field name, with which `fixed_space` makes it again."""
    if isinstance(space, FixedText):
        return {space.name: space.width}
    if isinstance(space, FixedSequence):
        return {space.name: space.width, **lengths_of(space.item)}
    if isinstance(space, FixedGraph):
        own = {f"{space.name}/node": space.nodes, **lengths_of(space.node)}
        if space.edge is not None:
            own |= {f"{space.name}/edge": space.edges, **lengths_of(space.edge)}
        return own
    return {name: most for _, part in _parts(space) for name, most in lengths_of(part).items()}


def encode_batch(space: _Space, values: Any, n: int) -> Any:
    """The arrays [N, ...] of N values, which are batched as Gymnasium's vector envs batch them."""
    # Texts, sequences, graphs and alternatives are in a tuple or list of N.
    try:
        singles = list(iterate(batch_space(original_space(space), n), values))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"expected {n} values of {original_space(space)}, got {values!r}"
        ) from error
    if len(singles) != n:
        raise ValueError(f"expected {n} values of {original_space(space)}, got {len(singles)}")
    return join_values(space, [encode_parts(space, one) for one in singles])


def decode_batch(space: _Space, arrays: Any) -> list[Any]:
    """The values in the arrays ``[N, ...]`` of a fixed space; lists of them for more axes."""
    shape, depth = _first_shape(space, arrays)
    if depth < 1:
        raise ValueError(f"expected arrays with an axis of values, got shape {shape}")
    rows = [_row(arrays, place) for place in range(shape[0])]
    return [decode(space, row) if depth == 1 else decode_batch(space, row) for row in rows]


def encode(space: _Space, value: Any, name: str = "value", *, exact: bool = True) -> Any:
    """The arrays of a fixed space that hold a value of the original one; see `fixed_space`."""
    # Without ``exact``, parts that are fixed already stay as they are given.
    if isinstance(space, FixedSpace):
        return space.encode(value)
    if isinstance(space, spaces.Dict):
        return {
            key: encode(part, part_of(value, key, name), name, exact=exact)
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        is_tuple = isinstance(value, tuple | list) or not exact
        if not is_tuple or len(value) != len(space.spaces):
            raise ValueError(f"{name}: expected a tuple of {len(space.spaces)}, got {value!r}")
        pairs = zip(space.spaces, value, strict=True)
        return tuple(encode(part, item, name, exact=exact) for part, item in pairs)
    return exactly(value, np.dtype(space.dtype), space.shape or (), name) if exact else value


def encode_parts(space: _Space, value: Any) -> Any:
    """As `encode`, with the parts that are fixed already as the env gave them."""
    return encode(space, value, "the env: observation", exact=False)


def decode(space: _Space, arrays: Any) -> Any:
    """The value of the original space that the arrays of `encode` hold, without an axis of envs."""
    if isinstance(space, FixedSpace):
        return space.decode(arrays)
    if isinstance(space, spaces.Dict):
        return {key: decode(part, arrays[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, _places(arrays), strict=True)
        return tuple(decode(part, item) for part, item in pairs)
    array = np.asarray(arrays)
    return array[()] if array.ndim == 0 else array


def has_open_parts(space: _Space, *, empty: bool = False) -> bool:
    """Test whether a space has parts without a fixed shape; unknown spaces are left alone."""
    # With ``empty``, an empty Dict or Tuple counts, too.
    if isinstance(space, FixedSpace):
        return False
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return (empty and not parts) or any(has_open_parts(part, empty=empty) for part in parts)
    return _is_text(space) or isinstance(space, spaces.Sequence | spaces.Graph | spaces.OneOf)


def _is_text(space: _Space) -> bool:
    """Texts, also those of a space of an env's own, as Minigrid's missions."""
    return isinstance(space, spaces.Text) or getattr(space, "dtype", None) in (str, np.dtype(str))


def check_lengths(lengths: Mapping[str, int]) -> None:
    """Refuse lengths of anything but observations and actions."""
    for field in lengths:
        if field.split("/")[0] not in ("observation", "action"):
            raise ValueError(
                f"lengths: expected names observation, action, or of parts of them, got {field!r}"
            )


def _fixed(space: _Space, name: str, lengths: Mapping[str, int], seen: set[str]) -> _Space:
    """The fixed form; the names of its fields that have a length are added to ``seen``."""
    if isinstance(space, FixedSpace):
        return space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = dict(_parts(space))
        if not parts and name.split("/")[0] == "action":
            return FixedEmpty(space, name)
        fixed = {key: _fixed(part, f"{name}/{key}", lengths, seen) for key, part in parts.items()}
        # Where no part changes, the space itself is returned, also one of a subclass.
        if all(fixed[key] is part for key, part in parts.items()):
            return space
        is_dict = isinstance(space, spaces.Dict)
        return spaces.Dict(fixed) if is_dict else spaces.Tuple([*fixed.values()])
    if _is_text(space):
        seen.add(name)
        return FixedText(space, name, lengths.get(name))
    if isinstance(space, spaces.Sequence):
        seen.add(name)
        return FixedSequence(space, name, lengths, seen)
    if isinstance(space, spaces.Graph):
        return FixedGraph(space, name, lengths, seen)
    if isinstance(space, spaces.OneOf):
        return FixedOneOf(space, name, lengths, seen)
    known = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    if not isinstance(space, known):
        raise TypeError(
            f"{name} space {space}: expected a space of Gymnasium, got {type(space).__name__}; "
            f"replace it with a gymnasium wrapper"
        )
    return space


def _numbers(space: _Space, name: str, lengths: Mapping[str, int]) -> int:
    """Numbers in the arrays of a value, computed before any is made."""
    if isinstance(space, spaces.Dict | spaces.Tuple | spaces.OneOf):
        choice = 0 if isinstance(space, spaces.Dict) else 1
        return choice + sum(_numbers(each, f"{name}/{key}", lengths) for key, each in _parts(space))
    if _is_text(space):
        own = space.max_length if isinstance(space, spaces.Text) else DEFAULT_LENGTHS["text"]
        return 2 * lengths.get(name, own)
    if isinstance(space, spaces.Sequence):
        each = _numbers(space.feature_space, f"{name}/value", lengths)
        return lengths.get(name, DEFAULT_LENGTHS["items"]) * (1 + each)
    if isinstance(space, spaces.Graph):
        total = 0
        counts = {"node": DEFAULT_LENGTHS["items"], "edge": 4 * DEFAULT_LENGTHS["items"]}
        for part, most in counts.items():
            inner = getattr(space, f"{part}_space")
            each = 0 if inner is None else _numbers(inner, f"{name}/{part}", lengths)
            total += lengths.get(f"{name}/{part}", most) * (3 + each)
        return total
    shape: Any = getattr(space, "shape", None)
    return int(np.prod(shape, dtype=object)) if isinstance(shape, tuple) else 1


def _parts(space: _Space) -> list[tuple[str, _Space]]:
    """The parts of a Dict by their keys, those of a Tuple or OneOf by their places; else none."""
    if isinstance(space, spaces.Dict):
        return [*space.spaces.items()]
    if isinstance(space, spaces.Tuple | spaces.OneOf):
        return [(str(place), part) for place, part in enumerate(space.spaces)]
    return []


def _places(arrays: Any) -> Sequence[Any]:
    """The parts of a Tuple, also from a file format that names them "0", "1", ..."""
    if isinstance(arrays, Mapping):
        return [arrays[str(place)] for place in range(len(arrays))]
    return cast("Sequence[Any]", arrays)


def _first_shape(space: _Space, arrays: Any) -> tuple[tuple[int, ...], int]:
    """The shape of the first array, and the number of its axes that are not of one value."""
    if isinstance(space, spaces.Dict):
        pairs = [(part, arrays[key]) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        pairs = [*zip(space.spaces, _places(arrays), strict=True)]
    else:
        shape = np.shape(arrays)
        return shape, len(shape) - len(space.shape or ())
    shapes = (_first_shape(part, array) for part, array in pairs)
    return next((found for found in shapes if found[0]), ((), 0))


def _ragged(width: int, prefix: str = "") -> dict[str, _Space]:
    return {
        f"{prefix}length": spaces.Discrete(width + 1),
        f"{prefix}mask": spaces.Box(0, 1, (width,), np.bool_),
    }


def _ragged_values(length: int, width: int, prefix: str = "") -> dict[str, Any]:
    return {f"{prefix}length": np.int64(length), f"{prefix}mask": np.arange(width) < length}


def _row(tree: Any, place: int) -> Any:
    """One item of nested arrays."""
    if isinstance(tree, Mapping):
        return {key: _row(part, place) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_row(part, place) for part in tree)
    return tree[place]


def _write(padded: Any, rows: Any, count: int) -> None:
    """Write nested arrays to the first places of longer ones."""
    if isinstance(padded, Mapping):
        for key, part in padded.items():
            _write(part, rows[key], count)
    elif isinstance(padded, tuple):
        for part, item in zip(padded, rows, strict=True):
            _write(part, item, count)
    else:
        padded[:count] = rows


def join_values(space: _Space, items: Sequence[Any]) -> Any:
    """Values as a vector env of that space batches them."""
    empty: Any = create_empty_array(space, len(items))
    return concatenate(space, items, empty) if items else empty
