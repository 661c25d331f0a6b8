"""Rows of a vector env in memory that is shared between processes.

The memory is one anonymous block (an unlinked file), so nothing remains however a process ends.
Each process maps it to NumPy arrays with one row per env.
"""

from multiprocessing.context import BaseContext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ...buffers.spec.exact_values import exactly, part_of
from .infos import MOST_NUMBERS

# The batched form of a space: an array [N, ...], or a dict or a tuple of such.
Arrays: TypeAlias = "npt.NDArray[Any] | dict[str, Arrays] | tuple[Arrays, ...]"
ALIGNMENT = 64  # bytes: each array begins on a new cache line


class SharedRows:
    """Observations, actions, rewards and flags of N envs, and the workers' control words."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        num_envs: int,
        num_workers: int,
        context: BaseContext,
    ) -> None:
        self._plan = (observation_space, action_space, num_envs, num_workers)
        measure = _Allocator(None)
        self._allocate(measure)
        self._memory: Any = context.RawArray("B", measure.offset)
        self._allocate(_Allocator(self._memory))

    def _allocate(self, allocator: "_Allocator") -> None:
        observation_space, action_space, num_envs, num_workers = self._plan
        # requests, replies, whether it is a step, status: a row of int64 for each worker
        self.control: npt.NDArray[np.int64] = allocator.array(np.int64, (num_workers, 8))
        self.reward: npt.NDArray[np.float64] = allocator.array(np.float64, (num_envs,))
        self.terminated: npt.NDArray[np.bool_] = allocator.array(np.bool_, (num_envs,))
        self.truncated: npt.NDArray[np.bool_] = allocator.array(np.bool_, (num_envs,))
        self.is_first: npt.NDArray[np.bool_] = allocator.array(np.bool_, (num_envs,))
        self.writes: npt.NDArray[np.int64] = allocator.array(np.int64, (num_envs,))
        # infos of plain numbers, see infos.py
        self.info_schema: npt.NDArray[np.int64] = allocator.array(np.int64, (num_envs,))
        self.info_words: npt.NDArray[np.int64] = allocator.array(np.int64, (num_envs, MOST_NUMBERS))
        self.observation: Arrays = allocator.arrays(observation_space, num_envs)
        self.action: Arrays = allocator.arrays(action_space, num_envs)

    def __getstate__(self) -> tuple[Any, ...]:
        """Pickle the layout and the block; only possible while a process is being started."""
        return self._plan, self._memory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Map the same memory in another process."""
        self._plan, self._memory = state
        self._allocate(_Allocator(self._memory))


class _Allocator:
    """Lays arrays out in a block of memory one after the other; without memory, only measures."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.offset = 0

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        start, size = self.offset, int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.offset += -(-size // ALIGNMENT) * ALIGNMENT
        if self._memory is None:
            return np.empty(0, dtype)
        return np.frombuffer(self._memory, np.uint8, size, start).view(dtype).reshape(shape)

    def arrays(self, space: spaces.Space[Any], num_envs: int) -> Arrays:
        if isinstance(space, spaces.Dict):
            return {key: self.arrays(part, num_envs) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self.arrays(part, num_envs) for part in space.spaces)
        assert space.shape is not None
        assert space.dtype is not None
        return self.array(space.dtype, (num_envs, *space.shape))


def check_space(space: spaces.Space[Any], what: str) -> None:
    """Check that the values of a space have a fixed shape; ``what`` it is stands in the error."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_space(part, f"{what}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            check_space(part, f"{what}[{index}]")
    elif not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise ValueError(
            f"{what} cannot be kept in shared memory: expected Box, Discrete, MultiDiscrete, "
            f"MultiBinary, or a Dict or Tuple of these, got {space}; change it with a wrapper, or "
            f"step the envs in this process (num_workers=0)"
        )


def write_row(arrays: Arrays, index: int, value: Any) -> None:
    """Copy one env's value, checked by `EnvResults`, into row `index` of arrays [N, ...]."""
    if isinstance(arrays, dict):
        for key, part in arrays.items():
            write_row(part, index, value[key])
    elif isinstance(arrays, tuple):
        for place, part in enumerate(arrays):
            write_row(part, index, value[place])
    else:
        arrays[index, ...] = value


def write_rows(arrays: Arrays, values: Any, what: str = "actions") -> None:
    """Copy a batch `[N, ...]` into all rows, whose dtypes must hold its values."""
    if isinstance(arrays, dict):
        for key, part in arrays.items():
            write_rows(part, part_of(values, key, what), f"{what}[{key!r}]")
    elif isinstance(arrays, tuple):
        for place, part in enumerate(arrays):
            write_rows(part, part_of(values, place, what), f"{what}[{place}]")
    else:
        arrays[...] = exactly(values, arrays.dtype, arrays.shape, what)


def read_row(arrays: Arrays, index: int) -> Any:
    """Return a copy of row `index`, as a value of the single env's space."""
    if isinstance(arrays, dict):
        return {key: read_row(part, index) for key, part in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(read_row(part, index) for part in arrays)
    return arrays[index] if arrays.ndim == 1 else arrays[index].copy()


def copy_rows(arrays: Arrays) -> Any:
    """Return copies of all rows, arrays `[N, ...]`."""
    if isinstance(arrays, dict):
        return {key: copy_rows(part) for key, part in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(copy_rows(part) for part in arrays)
    return arrays.copy()
