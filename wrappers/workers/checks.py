"""Checks of what a vector env of workers is given, each before anything is started."""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from stepwell.wrappers.workers.worker import EnvFn


def checked_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed for each env, from one seed for env 0, or one for each, or None."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + k for k in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            f"seed has the wrong length: expected {num_envs}, one for each env, got {len(seed)}"
        )
    return [None if one is None else int(one) for one in seed]


def checked_options(
    options: dict[str, Any] | None, num_envs: int
) -> tuple[dict[str, Any] | None, list[bool]]:
    """The options for each env, and which envs the `reset_mask` among them chooses."""
    if options is None or "reset_mask" not in options:
        return options, [True] * num_envs
    given: Any = options["reset_mask"]
    mask: npt.NDArray[Any] = np.asarray(given)
    if mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ValueError(
            f"options['reset_mask'] is wrong: expected a bool array of shape ({num_envs},) with "
            f"at least one True, got {given!r}"
        )
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    return rest, [bool(one) for one in mask]


def one_for_each(values: Any, num_envs: int) -> list[Any]:
    """A list with one value for each env, from a list or tuple of them, or one value for all."""
    if not isinstance(values, list | tuple):
        return [values] * num_envs
    listed = list(values)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if len(listed) != num_envs:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(
            f"values has the wrong length: expected {num_envs}, one for each env, got {len(listed)}"  # pyright: ignore[reportUnknownArgumentType]
        )
    return listed  # pyright: ignore[reportUnknownVariableType]


def available_cores() -> int:
    """Number of cores that this process may use: its affinity mask, and the container's quota.

    Example:
        >>> available_cores() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no such file, or no limit ("max")
    return max(1, cores)


def checked_num_workers(num_workers: int | None, num_envs: int) -> int:
    """Number of workers to start: not more than envs, one for each core by default."""
    if num_envs < 1:
        raise ValueError("env_fns is empty: expected at least one factory, got none")
    if num_workers is None:
        return min(available_cores(), num_envs)
    if num_workers < 1:
        raise ValueError(
            f"num_workers is wrong: expected 1 or more, got {num_workers}; "
            f"use gymnasium's SyncVectorEnv to step in this process"
        )
    return min(num_workers, num_envs)


def checked_start_method(context: str | None) -> str:
    """The start method: fork on Linux by default, else spawn."""
    if context is None:
        return "fork" if sys.platform == "linux" else "spawn"
    methods = multiprocessing.get_all_start_methods()
    if context not in methods:
        raise ValueError(f"context is unknown: expected one of {methods}, got {context!r}")
    return context


def checked_autoreset_mode(autoreset_mode: AutoresetMode | str) -> None:
    """Refuse any mode but NEXT_STEP."""
    if autoreset_mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        raise ValueError(
            f"autoreset_mode is not supported: expected NEXT_STEP, got {autoreset_mode}; "
            f"use gymnasium's SyncVectorEnv or AsyncVectorEnv for another mode"
        )


def pickled(env_fns: Sequence[EnvFn], first: int) -> bytes:
    """The factories as bytes for a process that is not forked; `first` is the first one's index."""
    dumps = _cloudpickle_dumps()
    for index, env_fn in enumerate(env_fns, first):
        try:
            dumps(env_fn)
        except Exception as error:
            raise TypeError(
                f"env_fns[{index}] cannot be sent to a worker process: expected a factory that "
                f"can be pickled, got {env_fn!r} ({error}); build what it needs inside it, "
                f"or use context='fork'"
            ) from None
    return dumps(list(env_fns))


def _cloudpickle_dumps() -> Callable[[object], bytes]:
    # It pickles lambdas and the like too; gymnasium depends on it. It has no type hints.
    return cast("Callable[[object], bytes]", importlib.import_module("cloudpickle").dumps)
