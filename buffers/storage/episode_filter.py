"""Chooses episodes by a condition on their metadata."""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ..rows.episode import End

Where: TypeAlias = "Mapping[str, object] | Callable[[Mapping[str, object]], bool]"
"""A condition on an episode's metadata: keys with the values that they must have, or a function
that returns True for the metadata of a chosen episode."""


class EpisodeFilter:
    """Remembers for each stored chunk whether its episode is chosen, decided once per episode."""

    def __init__(self, where: Where) -> None:
        check_where(where)
        self.where = where
        """The newest of the conditions that are alike: what an earlier one refers to may differ."""
        self._verdicts = np.zeros(64, np.bool_)
        self._begin = 0
        self._known = 0

    def __str__(self) -> str:
        return f"where={self.where!r}"

    def update(
        self,
        records: np.ndarray,
        base: int,
        metadata: Callable[[int], Mapping[str, object]],
    ) -> EpisodeFilter:
        """Decide on the chunks that are new; returns itself."""
        # `records` are all live ones, from the position `base` on; `metadata` is called with
        # positions.
        gone = min(base - self._begin, self._known)  # chunks that were evicted
        self._verdicts = self._verdicts[gone:].copy() if gone else self._verdicts
        self._known -= gone
        self._begin = base
        if len(records) > len(self._verdicts):
            grown = np.zeros(2 * len(records), np.bool_)
            grown[: self._known] = self._verdicts[: self._known]
            self._verdicts = grown
        # Only new chunks: this is called before every draw.
        new = records[self._known :]
        places = enumerate(zip(new["previous"].tolist(), new["end"].tolist(), strict=True))
        for place, (previous, end) in places:
            index = self._known + place
            if previous >= base:  # the same episode
                verdict = self._verdicts[previous - base]
            else:
                is_lost = end & End.LOST
                verdict = not is_lost and chooses(self.where, metadata(index + base))
            self._verdicts[index] = verdict
        self._known = len(records)
        return self

    def verdicts(self, position: int, count: int) -> np.ndarray:
        """[count] bool: the episodes of ``count`` chunks from a position on are chosen."""
        return self._verdicts[position - self._begin : position - self._begin + count]


def check_where(where: Where) -> None:
    """Refuse a condition that is neither a mapping nor a function."""
    if not isinstance(where, Mapping) and not callable(where):
        raise TypeError(
            f"where: expected a mapping of metadata keys to values, or a function of the metadata, "
            f"got {where!r}"
        )


def chooses(where: Where, metadata: Mapping[str, object]) -> bool:
    """True if the condition holds for this metadata."""
    if not isinstance(where, Mapping):
        return bool(where(metadata))
    return all(key in metadata and _same(metadata[key], value) for key, value in where.items())


def _same(stored: object, wanted: object) -> bool:
    """Equal as in JSON: a tuple is a list, but True is not 1."""
    plain = list(wanted) if isinstance(wanted, tuple) else wanted
    return bool(stored == plain) and isinstance(stored, bool) == isinstance(plain, bool | np.bool_)


def identity_of(where: Where) -> object:
    """A key of a condition, equal for all that choose the same episodes."""
    # A function is known by its code and by the values that it refers to: those of variables around
    # it and of its defaults, where they are numbers, texts, containers and arrays of them,
    # functions of this kind, or functions of Python and of `_MODULES`. Any other function, which
    # might return something else next time, is itself alone.
    try:
        return _value(where, ())
    except _NotPlain:
        return where


class _NotPlain(Exception):
    """A value may change without becoming another object."""


_ATOMS = (int, bool, str, bytes, complex, type(None), range)
_MODULES = frozenset({"fnmatch", "math", "numpy", "operator", "re"})
_PURE = frozenset(
    "abs all any bool bytes divmod enumerate filter float frozenset int isinstance len list map "
    "max min range reversed round set sorted str sum tuple zip".split()
)
_BUILTINS = {id(getattr(builtins, name)): name for name in _PURE}


def _value(value: Any, within: tuple[object, ...]) -> object:
    """Something hashable that equals that of an equal value; `_NotPlain` if it may change."""
    # within: the functions that refer to it.
    kind = type(value)
    if kind in _ATOMS:
        return kind, value
    if kind is float or isinstance(value, np.generic):
        return kind, repr(value)
    if kind in (list, tuple):
        return kind, tuple(_value(each, within) for each in value)
    if kind in (set, frozenset):
        return kind, frozenset(_value(each, within) for each in value)
    if isinstance(value, Mapping) and kind in (dict, types.MappingProxyType):
        return kind, tuple(
            (_value(key, within), _value(each, within)) for key, each in value.items()
        )
    if kind is np.ndarray and value.dtype.kind in "biufSU":
        return kind, value.dtype.str, value.shape, value.tobytes()
    if kind is functools.partial:
        return kind, *(_value(p, within) for p in (value.func, value.args, value.keywords))
    if id(value) in _BUILTINS:
        return "builtin", _BUILTINS[id(value)]
    if kind is types.ModuleType and value.__name__ in _MODULES:
        return "module", value.__name__
    if kind is types.FunctionType and not value.__dict__ and value not in within:
        return _function(value, (*within, value))
    raise _NotPlain


def _function(function: types.FunctionType, within: tuple[object, ...]) -> object:
    code, around = function.__code__, function.__globals__
    names = _globals_of(code)
    if names is None:
        raise _NotPlain
    try:
        closed = [cell.cell_contents for cell in function.__closure__ or ()]
        found = [around[name] if name in around else getattr(builtins, name) for name in names]
    except (ValueError, AttributeError):  # not there yet
        raise _NotPlain from None
    parts = (closed, found, function.__defaults__, function.__kwdefaults__)
    return code, *(_value(part, within) for part in parts)


@functools.lru_cache(maxsize=64)
def _globals_of(code: types.CodeType) -> tuple[str, ...] | None:
    """The global names that code reads; None if it does more than compute."""
    names: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(step.argval)
        is_outer = step.opname == "STORE_DEREF" and step.argval in code.co_freevars
        if is_outer or step.opname in ("IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
            return None
    if "random" in code.co_names:  # numpy.random
        return None
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found = _globals_of(inner)
            if found is None:
                return None
            names |= {*found}
    return tuple(sorted(names))
