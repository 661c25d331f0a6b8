"""The worker's side: a block of envs, and the loop that serves the parent process."""

import gc
import os
import pickle
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ..env_results import EnvResults
from ..faults import RESTARTED, Faults, Tolerant
from .infos import Infos, InfoWriter
from .processes import ONE_THREAD, leave_signals_to_parent, limit_threads
from .shared_arrays import SharedRows, read_row, write_row

# Columns of a worker's row of control words. A request is a step, or the pickled name of another
# method of `EnvBlock` and its arguments, in the pipe.
ASKED, ANSWERED, IS_STEP, STATUS = range(4)
# Statuses; all but QUIET have a pickled payload in the pipe.
QUIET, PAYLOAD, RAISED = range(3)
FAULTS = "worker_faults"  # key of an info on its way to the parent

ORPHAN_CHECK_SECONDS = 1.0
# A message up to this size fits in the pipe, so it is written before the parent is woken.
SMALL_BYTES = 32_768

EnvFn = Callable[[], gym.Env[Any, Any]]


class _NotedFaults(Faults):
    """Those of a worker, of which its parent tells."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.news: dict[str, Any] = {}
        """What the parent does not know yet, as an info."""

    def answer(self, env: int, where: str, error: Exception) -> None:
        if self.count == self.most:
            vars(error).update(self.news)
        super().answer(env, where, error)

    def tell(self, env: int, where: str, error: Exception) -> None:
        self.news.setdefault(FAULTS, []).append((where, pickled_error(env, error)))


class EnvBlock:
    """The envs of one worker; `current` is the index of the env being called, for errors."""

    def __init__(self, env_fns: Sequence[EnvFn], first: int, rows: SharedRows) -> None:
        self._env_fns, self._first, self._rows = env_fns, first, rows
        self._envs: list[gym.Env[Any, Any]] = []
        self._results: list[EnvResults] = []
        self._ended = [False] * len(env_fns)
        envs = range(first, first + len(env_fns))
        arrays = rows.observation
        # A plain array is the common case: copied without the checks for nested ones.
        self._arrays = [arrays[k, ...] for k in envs] if isinstance(arrays, np.ndarray) else None
        self.info_writer = InfoWriter(rows.info_schema, rows.info_words)
        self.current = first
        self.is_closed = False
        self._faults: _NotedFaults | None = None

    def _each(self) -> "list[tuple[int, int, gym.Env[Any, Any]]]":
        return [(k, self._first + k, env) for k, env in enumerate(self._envs)]

    def build(self, observation_space: Any, action_space: Any, tolerated: int) -> None:
        """Call the factories; every env must have the given spaces."""
        for k, env_fn in enumerate(self._env_fns):
            self.current = self._first + k
            env = env_fn()
            self._envs.append(env)
            _check_same("observation", observation_space, env.observation_space)
            _check_same("action", action_space, env.action_space)
            self._results.append(EnvResults(observation_space, f"env {self.current}"))
        if tolerated:
            self.tolerate(tolerated)

    def tolerate(self, most: int) -> None:
        """Answer so many exceptions of the envs."""
        self._faults = faults = _NotedFaults(most)
        self._envs = [Tolerant(env, self._env_fns[k], i, faults) for k, i, env in self._each()]

    def reset(
        self, seeds: list[int | None], options: dict[str, Any] | None, chosen: list[bool]
    ) -> Infos:
        """Reset the chosen envs and write their rows."""
        infos: Infos = []
        for k, index, env in self._each():
            if chosen[k]:
                self.current = index
                if seeds[k] is not None:
                    seed_global_generators(seeds[k])
                results = self._results[k]
                result = results.call_reset(env.reset, seed=seeds[k], options=options)
                observation, info = results.reset(result)
                self._write(k, observation, 0.0, False, False, is_first=True)
                infos.append((index, info))
        self._add_news(infos)
        return infos

    def _add_news(self, infos: Infos) -> None:
        if self._faults is not None and self._faults.news:
            infos.append((self._first, self._faults.news))
            self._faults.news = {}

    def step(self) -> Infos | None:
        """Step all envs with the shared actions; returns the infos, None if they are shared."""
        infos: Infos = []
        for k, index, env in self._each():
            self.current = index
            if self._ended[k]:  # NEXT_STEP: the step after an episode's end resets
                observation, info = self._results[k].reset(env.reset())
                self._write(k, observation, 0.0, False, False, is_first=True)
            else:
                observation, reward, terminated, truncated, info = self._results[k].step(
                    env.step(read_row(self._rows.action, index))
                )
                is_first = self._faults is not None and RESTARTED in info
                self._write(k, observation, reward, terminated, truncated, is_first=is_first)
            if info:
                infos.append((index, info))
        self._add_news(infos)
        envs = range(self._first, self._first + len(self._envs))
        return None if self.info_writer.write(infos, envs) else infos

    def _write(
        self,
        k: int,
        observation: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        *,
        is_first: bool = False,
    ) -> None:
        """Copy the results now: the env may write its next observation into the same array."""
        rows, index = self._rows, self._first + k
        if self._arrays is not None:
            self._arrays[k][...] = observation
        else:
            write_row(rows.observation, index, observation)
        rows.is_first[index] = is_first
        rows.writes[index] += 1
        rows.reward[index] = reward
        rows.terminated[index] = terminated
        rows.truncated[index] = truncated
        self._ended[k] = terminated or truncated

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of each env, or read an attribute that is no method."""
        results: list[Any] = []
        for _, index, env in self._each():
            self.current = index
            found = env.get_wrapper_attr(name)
            results.append(found(*args, **kwargs) if callable(found) else found)
        return results

    def set(self, name: str, values: list[Any]) -> None:
        """Set an attribute of each env."""
        for k, index, env in self._each():
            self.current = index
            env.set_wrapper_attr(name, values[k])

    def close(self) -> None:
        """Close the envs."""
        self.is_closed = True  # also if one of them raises
        for _, index, env in self._each():
            self.current = index
            env.close()


def _check_same(what: str, expected: Any, got: Any) -> None:
    if expected != got:
        raise ValueError(
            f"the envs have different {what} spaces: expected {expected} as in env 0, got {got}; "
            f"make them equal with a wrapper"
        )


def run_worker(
    number: int,  # of the worker
    first: int,  # index of its first env
    env_fns: Sequence[EnvFn] | bytes,  # cloudpickled unless the process was forked
    rows: SharedRows,
    wake: Semaphore,  # released by the parent for each command
    done: Semaphore,  # released by the worker for each reply
    pipe: Connection,  # carries the payloads
) -> None:
    """Serve the parent until it closes the envs or has exited."""
    # Objects inherited by the fork are not collected here: finalizers of some (ale-py's vector
    # envs) join threads that do not exist in this process, and crash.
    gc.freeze()
    leave_signals_to_parent()
    # A forked process has a copy of the parent's generators, as has each of the others.
    seed_global_generators(None)
    for name, threads in ONE_THREAD.items():  # of libraries loaded from here on
        os.environ.setdefault(name, threads)
    fns: Sequence[EnvFn] = pickle.loads(env_fns) if isinstance(env_fns, bytes) else env_fns
    block = EnvBlock(fns, first, rows)
    control, parent = rows.control[number], os.getppid()
    try:
        while not block.is_closed and _is_asked(control, wake, parent):
            limit_threads()
            _answer(block, control, done, pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has exited


def _is_asked(control: npt.NDArray[np.int64], wake: Semaphore, parent: int) -> bool:
    """Wait for the next request; return False when the parent has exited."""
    while True:
        wake.acquire(timeout=ORPHAN_CHECK_SECONDS)
        if control[ASKED] != control[ANSWERED]:
            return True
        if os.getppid() != parent:
            return False


def _answer(
    block: EnvBlock, control: npt.NDArray[np.int64], done: Semaphore, pipe: Connection
) -> None:
    """Do what was asked, and send the result."""
    request = int(control[ASKED])
    called = None if control[IS_STEP] else pipe.recv_bytes()
    try:
        payload = _stepped(block) if called is None else _called(block, called)
        status = QUIET if payload is None else PAYLOAD
    except Exception as error:
        status, payload = RAISED, pickled_error(block.current, error)
    control[STATUS] = status
    if payload is not None and len(payload) <= SMALL_BYTES:
        pipe.send_bytes(payload)
    control[ANSWERED] = request
    done.release()
    if payload is not None and len(payload) > SMALL_BYTES:
        pipe.send_bytes(payload)


def _stepped(block: EnvBlock) -> bytes | None:
    infos = block.step()
    if infos is None:
        return None
    payload = pickled_infos(infos, (infos, block.info_writer.schemas))
    block.info_writer.is_known = True
    return payload


def _called(block: EnvBlock, packed: bytes) -> bytes | None:
    name, arguments = pickle.loads(packed)
    result = getattr(block, name)(*arguments)
    if name == "reset":
        return pickled_infos(result, result)
    return None if result is None else pickled(result)


def pickled(value: Any) -> bytes:
    """Pickle a value for the pipe."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def pickled_infos(infos: Infos, value: Any) -> bytes:
    """Pickle a value with infos; on failure, raise an error that names the env and the key."""
    try:
        return pickled(value)
    except Exception as failure:
        for index, info in infos:
            for key, part in info.items():
                try:
                    pickled(part)
                except Exception as error:
                    raise TypeError(
                        f"info[{key!r}] of env {index} cannot be sent between processes: expected "
                        f"data that can be pickled, got {type(part).__name__} ({error}); drop it "
                        f"with a wrapper, or step the envs in this process (num_workers=0)"
                    ) from None
        raise failure


def pickled_error(index: int, error: Exception) -> bytes:
    """Pickle an exception with the env's index and the formatted traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(data := pickled((index, error, text)))
    except Exception:  # its class cannot be pickled: send its text
        data = pickled((index, RuntimeError(f"{type(error).__name__}: {error}"), text))
    return data


def seed_global_generators(*numbers: int | None) -> None:
    """Seed the generators of this process that all code shares: of Python, NumPy and PyTorch."""
    # The same numbers give the same seeds; None alone draws them from the system.
    given = None if numbers[0] is None else [int(one or 0) % 2**64 for one in numbers]
    words = np.random.SeedSequence(given, spawn_key=(1,)).generate_state(4)
    np.random.seed(words)  # noqa: NPY002
    random.seed(words.tobytes())
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "manual_seed"):  # it may be about to be loaded
        torch.manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
