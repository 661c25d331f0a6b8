"""Join the infos of several envs into arrays without changing any value."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

_PLAIN = (int, float, bool)
_INT, _FLOAT, _BOOL = (np.dtype(kind) for kind in _PLAIN)
_EXACT_IN_FLOAT64 = 2**53  # float64 represents all whole numbers up to here

Column = npt.NDArray[Any]
Infos = list[tuple[int, dict[str, Any]]]  # index of the env and its info
Schema = tuple[tuple[str, ...], tuple[type, ...]]  # keys and types of the values

MOST_NUMBERS = 128  # in an info that is kept in shared memory
MOST_SCHEMAS = 64  # of a worker: envs with ever new keys use the pipe
_WORD = 8  # bytes of a number there
NO_INFO = -1


def add_info(
    columns: dict[str, Any], info: Mapping[str, Any], env: int, num_envs: int
) -> dict[str, Any]:
    """Add the info of one env in place to the columns of all N, like `VectorEnv._add_info`."""
    # Gymnasium creates a column with the type of the first env's value and casts all others to it:
    # 1/3 after 1 becomes 0. Here a column is widened to a dtype that holds every value exactly, or
    # to object if there is none. Values of one type and shape give the same columns as Gymnasium's:
    # for each key an array [N, ...], or a dict of such columns where the value is a dict, and under
    # "_key" the mask of the envs that have the key, bool [N].
    for key, value in info.items():
        held = columns.get(key)
        mask = columns.get(f"_{key}")
        if mask is not None and type(held) is np.ndarray and _fits(value, held):
            held[env], mask[env] = value, True  # the common case, kept fast
            continue
        if mask is None:
            mask = np.zeros(num_envs, np.bool_)
        if isinstance(value, dict) and key != "final_obs" and isinstance(held, dict | None):
            inner = cast("dict[str, Any]", value)
            column: Any = add_info(held or {}, inner, env, num_envs)
        else:
            column = _widened(None if key == "final_obs" else value, held, mask)
            column[env] = value
        mask[env] = True
        columns[key], columns[f"_{key}"] = column, mask
    return columns


def _fits(value: Any, column: Column) -> bool:
    """Return True if a number or an array can be stored in a column without a change of dtype."""
    kind = type(value)
    if kind is np.ndarray:
        return bool(value.dtype == column.dtype and value.shape == column.shape[1:])
    if column.ndim > 1:
        return False
    dtype = column.dtype
    if kind is int:
        if dtype == _INT:
            return bool(-(2**63) <= value < 2**63)
        return dtype == _FLOAT and -_EXACT_IN_FLOAT64 <= value <= _EXACT_IN_FLOAT64
    if kind is float:
        return dtype == _FLOAT
    return kind is bool and dtype == _BOOL


def _widened(value: Any, held: Column | dict[str, Any] | None, mask: Column) -> Column:
    """Return a column that can hold the value: the current one, or a wider copy."""
    dtype, shape = _kind_of(value)
    if held is None:
        return _objects(mask) if dtype is None else np.zeros((len(mask), *shape), dtype)
    if isinstance(held, dict):
        return _as_objects(held, mask)
    if held.dtype.hasobject and held.ndim == 1:
        return held
    if dtype is None or shape != held.shape[1:]:
        return _as_objects(held, mask)
    if dtype == held.dtype:
        return held
    if dtype.kind in "biufc" and held.dtype.kind in "biufc":
        wider = np.result_type(dtype, held.dtype)
        if _holds(wider, held) and _holds(wider, np.asarray(value)):
            return held.astype(wider)
    return _as_objects(held, mask)


def _kind_of(value: Any) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return dtype and shape of the elements of a column; the dtype is None for objects."""
    kind = type(value)
    if kind is int:
        return (np.dtype(int) if -(2**63) <= value < 2**63 else None), ()
    if kind in _PLAIN or issubclass(kind, np.number):
        return np.dtype(kind), ()
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        return value.dtype, value.shape
    return None, ()  # also where a column would lose the mask


def _holds(dtype: np.dtype[Any], values: Column) -> bool:
    """Return True if a cast to the dtype changes none of the numbers."""
    if values.dtype.kind not in "iu" or dtype.kind not in "fc" or values.dtype.itemsize < 8:
        return True
    return bool(((values >= -_EXACT_IN_FLOAT64) & (values <= _EXACT_IN_FLOAT64)).all())


def _objects(mask: Column) -> Column:
    return np.full(len(mask), None, object)


def _as_objects(held: Column | dict[str, Any], mask: Column) -> Column:
    """Convert a column to dtype object."""
    objects = _objects(mask)
    for env in np.flatnonzero(mask).tolist():
        objects[env] = _env_dict(held, env) if isinstance(held, dict) else held[env]
    return objects


def _env_dict(columns: dict[str, Any], env: int) -> dict[str, Any]:
    """Return the dict of one env."""
    return {
        key: _env_dict(cast("dict[str, Any]", column), env)
        if isinstance(column, dict)
        else column[env]
        for key, column in columns.items()
        if f"_{key}" in columns and columns[f"_{key}"][env]
    }


class InfoWriter:
    """A worker's side of infos in shared memory, which need neither a pipe nor a pickle."""

    # Emulators give such infos in most steps, and `add_info` takes long for them: 150 us for 12
    # numbers of 8 envs, of the 4,500 that two workers take for the step on the fastest emulator.
    # An info of plain numbers is written as the number of its schema and one word for each value,
    # to the shared arrays ``schema`` [N] and ``words`` [N, MOST_NUMBERS] of all envs. The parent
    # gets the schemas through the pipe, together with the first infos that have them.

    def __init__(self, schema: npt.NDArray[np.int64], words: npt.NDArray[np.int64]) -> None:
        self._schema, self._bytes = schema, words.data.cast("B")
        self._formats: list[struct.Struct] = []
        self._numbers: dict[Schema, int | None] = {}  # None: cannot be shared
        self.is_known = True
        """True once the parent has all schemas."""

    @property
    def schemas(self) -> list[Schema]:
        """The schemas by their numbers."""
        return [schema for schema, number in self._numbers.items() if number is not None]

    def write(self, infos: Infos, envs: range) -> bool:
        """Write the infos of a worker's envs; return False if they must go through the pipe."""
        # That is so if one cannot be shared, or if the parent does not know its schema yet.
        self._schema[envs.start : envs.stop] = NO_INFO
        for index, info in infos:
            schema = (*info,), (*map(type, info.values()),)
            number = self._numbers[schema] if schema in self._numbers else self._add(schema)
            if number is None:
                return False
            place = index * MOST_NUMBERS * _WORD
            try:
                self._formats[number].pack_into(self._bytes, place, *info.values())
            except struct.error:  # more than 64 bits
                return False
            self._schema[index] = number
        return self.is_known

    def _add(self, schema: Schema) -> int | None:
        """Add a schema and return its number, or None if such infos cannot be shared."""
        if len(self._numbers) == MOST_SCHEMAS:
            return None
        keys, kinds = schema
        if not _is_plain(keys, kinds) or len(keys) > MOST_NUMBERS:
            self._numbers[schema] = None
            return None
        codes = ("d" if kind is float else "q" for kind in kinds)
        self._formats.append(struct.Struct("=" + "".join(codes)))
        self._numbers[schema] = len(self._formats) - 1
        self.is_known = False
        return self._numbers[schema]


def _is_plain(keys: tuple[str, ...], kinds: tuple[type, ...]) -> bool:
    """Return True for numbers under keys that neither look like masks nor have a meaning."""
    return all(kind in _PLAIN for kind in kinds) and not any(
        key == "final_obs" or str(key).startswith("_") for key in keys
    )


class InfoReader:
    """The parent's side of infos in shared memory, with the arrays of `InfoWriter`."""

    def __init__(self, schema: npt.NDArray[np.int64], words: npt.NDArray[np.int64]) -> None:
        self._schema, self._words = schema, words
        self._numbers = b""
        self._common: Schema | None = None  # of all envs, where their schema numbers are these

    def forget(self) -> None:
        """Forget the last schemas: a worker has sent new ones, or a new worker has other ones."""
        self._numbers = b""

    def columns(self, schemas: Sequence[tuple[range, Sequence[Schema]]]) -> dict[str, Any] | None:
        """Return the infos of all envs as columns if they have one schema, else None."""
        # ``schemas``: the envs of each worker, and the schemas that it has sent.
        numbers = self._schema.tobytes()
        if numbers != self._numbers:
            self._numbers, self._common = numbers, self._common_schema(schemas)
        if self._common is None:
            return None
        keys, kinds = self._common
        values = np.ascontiguousarray(self._words[:, : len(keys)].T)
        masks = np.ones(values.shape, np.bool_)
        columns: dict[str, Any] = {}
        for key, kind, column, mask in zip(keys, kinds, values, masks, strict=True):
            columns[key] = column if kind is int else column.view(np.float64)
            if kind is bool:
                columns[key] = column != 0
            columns[f"_{key}"] = mask
        return columns

    def _common_schema(self, schemas: Sequence[tuple[range, Sequence[Schema]]]) -> Schema | None:
        numbers = self._schema.tolist()
        if NO_INFO in numbers:
            return None
        found = {known[numbers[env]] for envs, known in schemas for env in envs}
        return found.pop() if len(found) == 1 else None

    def infos(self, envs: range, schemas: Sequence[Schema]) -> Infos:
        """Return the infos of a worker's envs one by one."""
        found: Infos = []
        for index in envs:
            number = int(self._schema[index])
            if number == NO_INFO:
                continue
            keys, kinds = schemas[number]
            words, floats = self._words[index], self._words[index].view(np.float64)
            values = [
                kind(floats[place] if kind is float else words[place])
                for place, kind in enumerate(kinds)
            ]
            found.append((index, dict(zip(keys, values, strict=True))))
        return found
