"""JAX: batches and rollouts with JAX arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ..base.optional_libraries import load_library

_NARROWER = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
_DTYPES = frozenset(
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 "
    "complex128".split()
)
_LEFT = frozenset({"ids", "rng"})


def to_jax(data: object, *, device: Any = None, round_floats: bool = False) -> Any:
    """Convert a batch, minibatch or rollout to JAX arrays: the same type, nested in the same way.

    Every array is copied, so a later draw with ``out=`` cannot change it; large ones cost as little
    as a numpy copy. ``ids`` stay numpy int64, as the replay expects them.

    Unless ``jax_enable_x64`` is set, JAX silently converts 64-bit numbers to 32 bits. Here int64
    becomes int32 and float64 becomes float32 only where every number is represented exactly.

    Args:
        data: A `Batch`, `TransitionBatch`, `Minibatch` or `Rollout`; or arrays nested in mappings
            and tuples.
        device: A JAX device or sharding; JAX's default one when None.
        round_floats: Round float64 to float32, where JAX has no float64.

    Returns:
        The same type with JAX arrays in its fields; Any to type checkers, as its annotations are
        of numpy arrays.

    Raises:
        ImportError: JAX is not installed.
        ValueError: A number cannot be represented exactly.
        TypeError: JAX does not support a dtype.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> batch = to_jax(replay.sample_transitions(4))  # doctest: +SKIP
        >>> batch.observation.shape, str(batch.action.dtype)  # doctest: +SKIP
        ((4, 4), 'int32')
    """
    jax = load_library("jax", "to_jax", install="'stepwell[jax]'")
    has_64_bits = bool(jax.config.jax_enable_x64)

    def convert(array: np.ndarray, path: str) -> Any:
        if array.dtype.newbyteorder("=").name not in _DTYPES:
            raise TypeError(
                f"{path}: expected numbers that JAX has arrays of, got {array.dtype}; leave the "
                f"field out with fields="
            )
        # Copied here: JAX may share numpy's memory indefinitely, or read it later,
        # even when a copy is requested. This memory has no other owner.
        own = np.array(array, array.dtype.newbyteorder("="), order="C")
        if not has_64_bits:
            own = _narrowed(own, path, round_floats)
        return jax.device_put(own, device)

    return _converted(data, "", convert)


def _narrowed(array: np.ndarray, path: str, round_floats: bool) -> np.ndarray:
    """The same numbers in 32 bits."""
    narrower = _NARROWER.get(array.dtype.name)
    if narrower is None:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(narrower)
    is_float = array.dtype.kind in "fc"
    if not (is_float and round_floats):
        changed = found != array
        if is_float:  # NaN is kept, though it is not equal to itself
            changed &= array == array
        if changed.any():
            advice = "set jax_enable_x64" + (", or pass round_floats=True" if is_float else "")
            raise ValueError(
                f"{path}: expected {array.dtype} numbers that {narrower} holds exactly, as JAX has "
                f"no {array.dtype} now, got {array[changed][0]}; {advice}"
            )
    return found


def _converted(value: Any, path: str, convert: Callable[[np.ndarray, str], Any]) -> Any:
    """A nested value with every array converted."""
    if isinstance(value, np.ndarray):
        return convert(value, path.removeprefix("/"))
    if isinstance(value, Mapping):
        return {key: _converted(part, f"{path}/{key}", convert) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [_converted(part, f"{path}/{place}", convert) for place, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {
        field.name: {}  # holds the arrays for `out=`, which these are not
        if field.name == "memory"
        else _converted(getattr(value, field.name), f"{path}/{field.name}", convert)
        for field in fields(value)
        if field.name not in _LEFT
    }
    return _with(value, changes)


def _with(value: Any, changes: Mapping[str, Any]) -> Any:
    """A dataclass with other values, also of fields that its constructor does not take."""
    if all(field.init for field in fields(value)):
        return replace(value, **changes)
    changed = copy.copy(value)
    for name, part in changes.items():
        setattr(changed, name, part)
    return changed
