"""The parent's side: start worker processes, send requests, replace dead ones, shut down."""

import contextlib
import logging
import multiprocessing
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ..faults import Faults
from ..seeded_resets import in_shard_of
from .infos import InfoReader, Infos, Schema
from .processes import (
    NO_MAIN_GUARD,
    PROCESS_NAME,
    cloudpickle_dumps,
    ends_with,
    exit_in_words,
    no_main_guard,
    start,
)
from .shared_arrays import SharedRows
from .worker import (
    ANSWERED,
    ASKED,
    FAULTS,
    IS_STEP,
    PAYLOAD,
    QUIET,
    RAISED,
    STATUS,
    EnvFn,
    pickled,
    run_worker,
)

_LOG = logging.getLogger("stepwell.wrappers")
# Interval of the checks that a silent worker is alive.
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's reply: a payload, or the exception that one of its envs raised."""

    payload: Any = None
    error: Exception | None = None


class WorkerDied(Exception):
    """The process ended or was killed before it replied."""


class WorkerLost(RuntimeError):
    """A worker died during a call of its envs, with this exit code."""

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class WorkerProcess:
    """One worker process, with its pipe and semaphores."""

    def __init__(
        self,
        number: int,  # from 0
        envs: range,  # indices
        env_fns: Sequence[EnvFn] | bytes,  # cloudpickled unless the start method is fork
        rows: SharedRows,
        start_method: str,
        needs_main: bool,  # the factories may need the script that runs, as the main module
    ) -> None:
        self.number, self.envs = number, envs
        self._env_fns, self._rows = env_fns, rows
        self._start_method, self._needs_main = start_method, needs_main
        self._control = rows.control[number]
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._is_reading = False
        self.is_pending = False
        self.exit_code: int | None = None
        self.schemas: list[Schema] = []

    def start(self) -> None:
        """Start the process; it must be asked to build its envs first."""
        context: Any = multiprocessing.get_context(self._start_method)
        self._control[:] = 0
        self.schemas = []
        self._wake, self._done = context.Semaphore(0), context.Semaphore(0)
        self._pipe, far_end = context.Pipe()
        self._is_reading = False
        process = context.Process(
            target=run_worker,
            name=f"{PROCESS_NAME}{self.number}",
            args=(
                self.number,
                self.envs.start,
                self._env_fns,
                self._rows,
                self._wake,
                self._done,
                far_end,
            ),
            daemon=True,
        )
        start(process, self._start_method, needs_main=self._needs_main)
        far_end.close()
        self._process = process

    def ask(self, method: str, *arguments: Any) -> None:
        """Let the process call a method of its `EnvBlock`; a dead one is detected by `take`."""
        if self._pipe is None:
            self.is_pending = True
            return
        control = self._control
        payload = None if method == "step" else pickled((method, arguments))
        control[IS_STEP] = payload is None
        control[ASKED] += 1
        self.is_pending = True
        self._wake.release()
        if payload is not None:
            with contextlib.suppress(OSError):  # dead; `take` raises
                self._pipe.send_bytes(payload)

    def take(self, timeout: float | None = None) -> Reply:
        """Wait for the reply to the last request; WorkerDied: the process ended without one."""
        # A silent worker is killed after so many seconds; None waits while it is alive.
        if not self._wait(timeout):
            was_alive = self._process is not None and self._process.is_alive()
            self.kill()
            raise WorkerDied(
                f"no reply in {timeout} s" if was_alive else exit_in_words(self.exit_code)
            )
        self.is_pending = False
        status = int(self._control[STATUS])
        if status == QUIET:
            return Reply()
        payload = self._receive()
        if status == PAYLOAD:
            if not self._control[IS_STEP]:
                return Reply(payload)
            infos, schemas = payload
            self.schemas = schemas or self.schemas
            return Reply(infos)
        assert status == RAISED
        index, error, text = payload
        return Reply(error=self.placed(index, error, text))

    def placed(self, index: int, error: Exception, text: str) -> Exception:
        """The exception of an env with a note that says where it was raised."""
        error.add_note(f"raised in env {index}, in worker process {self.number}:\n{text}")
        return error

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the reply; return False if the worker died or timed out."""
        if self._process is None or self._is_reading:
            return False
        control = self._control
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # The counters decide; the semaphore only wakes, so an interrupted wait loses no reply.
            was_alive = True
            if not self._done.acquire(timeout=LOOK_SECONDS):
                was_alive = self._process.is_alive()
            if control[ASKED] == control[ANSWERED]:
                return True
            if not was_alive or (deadline is not None and time.monotonic() > deadline):
                return False

    def _receive(self) -> Any:
        self._is_reading = True  # remains True if interrupted: the pipe cannot be used any more
        try:
            assert self._pipe is not None
            data = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.kill()
            raise WorkerDied(exit_in_words(self.exit_code)) from None
        self._is_reading = False
        return pickle.loads(data)

    def end(self, deadline: float) -> None:
        """Wait for the process to end until `deadline` (time.monotonic), then kill it."""
        if self._process is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill the process and release its resources."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            self.exit_code = process.exitcode
            process.close()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self.is_pending = False


Space = spaces.Space[Any]
Bools = npt.NDArray[np.bool_]
Columns = dict[str, Any]


class WorkerPool:
    """Worker processes, each with a contiguous block of envs."""

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        num_workers: int,  # at most the number of envs
        start_method: str,
        rows: SharedRows,
        space_pair: tuple[Space, Space],  # one env's observation and action space
        max_restarts: int,  # worker deaths to survive in total
        timeout: float | None,  # seconds that a step or a reset may take
        needs_main: bool = True,  # see `WorkerProcess`
    ) -> None:
        self.num_envs, self._start_method = len(env_fns), start_method
        self._space_pair, self._max_restarts, self._timeout = space_pair, max_restarts, timeout
        self._seeds: list[int | None] = [None] * self.num_envs
        self._info_reader = InfoReader(rows.info_schema, rows.info_words)
        self.restarts = 0
        self._faults = Faults(0)
        self.workers: list[WorkerProcess] = []
        borders = [self.num_envs * k // num_workers for k in range(num_workers + 1)]
        for number, (first, end) in enumerate(pairwise(borders)):
            fns = env_fns[first:end]
            worker_fns = fns if start_method == "fork" else _pickled(fns, first)
            envs = range(first, end)
            self.workers.append(
                WorkerProcess(number, envs, worker_fns, rows, start_method, needs_main)
            )
        self.close = ends_with(self, partial(_end_all, self.workers))

    def start(self) -> None:
        """Start all processes; they build their envs in parallel."""
        # An exception of a factory is raised again unchanged.
        try:
            for worker in self.workers:
                self._start(worker)
            for worker in self.workers:
                self._take_built(worker)
        except BaseException:
            self.close()
            raise

    def _start(self, worker: WorkerProcess) -> None:
        worker.start()
        worker.ask("build", *self._space_pair, self._faults.most)

    def tolerate(self, faults: Faults) -> None:
        """Answer exceptions of the envs."""
        self._faults = faults
        self.ask_each("tolerate", [(faults.most,)] * len(self.workers))

    def _take_built(self, worker: WorkerProcess) -> None:
        try:
            reply = worker.take()
        except WorkerDied as death:
            if worker.exit_code == NO_MAIN_GUARD:
                raise RuntimeError(no_main_guard(self._start_method)) from None
            raise RuntimeError(
                f"the worker process of {_label(worker.envs)} died while it built them: expected "
                f"a reply, got {death}; see its output above"
            ) from None
        if reply.error is not None:
            raise reply.error

    def ask_step(self) -> None:
        """Let all workers step their envs."""
        for worker in self.workers:
            worker.ask("step")

    def ask_reset(
        self, seeds: list[int | None], options: dict[str, Any] | None, chosen: list[bool]
    ) -> None:
        """Send a reset of the chosen envs; the seeds are kept for restarts."""
        pairs = zip(self._seeds, seeds, strict=True)
        self._seeds = [old if new is None else new for old, new in pairs]
        for worker in self.workers:
            first, end = worker.envs.start, worker.envs.stop
            worker.ask("reset", seeds[first:end], options, chosen[first:end])

    def take(
        self, seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> tuple[Infos | Columns, Bools]:
        """Receive all replies to a step or a reset, and replace dead workers."""
        # Seeds, None to derive one, and options are for envs that are reset after a restart.
        # Returns the infos, one by one or as columns, and a mask [N] of the envs that were
        # restarted. An env's exception is raised after all replies are received; for more deaths
        # than `max_restarts` everything is closed first.
        payloads: list[Infos | None] = []
        restarted = np.zeros(self.num_envs, np.bool_)
        error: Exception | None = None
        noted: list[tuple[WorkerProcess, str, bytes]] = []
        for worker in self.workers:
            try:
                reply = worker.take(self._timeout)
            except WorkerDied as death:
                reply = self._replace_worker(worker, death, seeds, options)
                restarted[worker.envs.start : worker.envs.stop] = True
            error = error or reply.error
            payloads.append(reply.payload)
            if self._faults.most:
                infos = [one for _, one in reply.payload or ()]
                infos += [] if reply.error is None else [vars(reply.error)]
                noted += [(worker, *fault) for info in infos for fault in info.pop(FAULTS, ())]
        for worker, where, packed in noted:
            fault = pickle.loads(packed)
            self._faults.answer(fault[0], where, worker.placed(*fault))
        if error is not None:
            raise error
        return self._joined(payloads), restarted

    def _joined(self, payloads: Sequence[Infos | None]) -> Infos | Columns:
        """Join the infos of all workers; those of None are in the shared rows."""
        if all(payload is None for payload in payloads):
            schemas = [(worker.envs, worker.schemas) for worker in self.workers]
            columns = self._info_reader.columns(schemas)
            if columns is not None:
                return columns
        else:
            self._info_reader.forget()
        infos: Infos = []
        for worker, payload in zip(self.workers, payloads, strict=True):
            if payload is None:
                payload = self._info_reader.infos(worker.envs, worker.schemas)
            infos.extend(payload)
        return infos

    def _replace_worker(
        self,
        worker: WorkerProcess,
        death: WorkerDied,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Reply:
        """Replace a dead worker and reset its envs."""
        while True:
            if self.restarts == self._max_restarts:
                self.close()
                raise RuntimeError(
                    f"the worker process of {_label(worker.envs)} died ({death}): expected at most "
                    f"max_restarts={self._max_restarts} deaths, got one more; look for a crash in "
                    f"the env or for lack of memory, or raise max_restarts"
                )
            self.restarts += 1
            _LOG.warning(
                "the worker process of %s died (%s) and is restarted: %d of at most %d times",
                _label(worker.envs),
                death,
                self.restarts,
                self._max_restarts,
            )
            fresh = [self._derived_seed(k) if seeds[k] is None else seeds[k] for k in worker.envs]
            try:
                self._start(worker)
                reply = worker.take()
                if reply.error is None:
                    worker.ask("reset", fresh, options, [True] * len(fresh))
                    reply = worker.take(self._timeout)
                return _with_seeds(reply, worker.envs, fresh)
            except WorkerDied as next_death:
                death = next_death

    def _derived_seed(self, index: int) -> int | None:
        """Derive a seed for env `index` from its last seed and the number of restarts."""
        seed = self._seeds[index]
        if seed is None:
            return None
        state = np.random.SeedSequence([seed, self.restarts]).generate_state(1)
        return in_shard_of(seed, int(state[0]) >> 1)  # some emulators take seeds of 31 bits

    def ask_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method in each worker with its own arguments, and join the replies' lists."""
        # RuntimeError: a worker is dead; the next step or reset replaces it. So it is in
        # `take_one`.
        for worker, worker_arguments in zip(self.workers, arguments, strict=True):
            worker.ask(method, *worker_arguments)
        results: list[Any] = []
        error: Exception | None = None
        for worker in self.workers:
            reply = _take_or_error(worker)
            error = error or reply.error
            results.extend(reply.payload or [])
        if error is not None:
            raise error
        return results

    def take_one(self, worker: int) -> Any:
        """Receive the reply of one worker."""
        reply = _take_or_error(self.workers[worker])
        if reply.error is not None:
            raise reply.error
        return reply.payload

    def drain(self) -> None:
        """Receive and discard pending replies; dead workers are replaced later."""
        for worker in self.workers:
            if worker.is_pending:
                with contextlib.suppress(WorkerDied):
                    worker.take(self._timeout)


def _take_or_error(worker: WorkerProcess) -> Reply:
    try:
        return worker.take()
    except WorkerDied as death:
        text = (
            f"the worker process of {_label(worker.envs)} died: expected a reply, got "
            f"{death}; the next step or reset replaces it"
        )
        return Reply(error=WorkerLost(text, worker.exit_code))


def _with_seeds(reply: Reply, envs: range, seeds: Sequence[int | None]) -> Reply:
    """Add the seeds to the infos of resets, as `info["reset_seed"]`, where they are not there."""
    if reply.error is not None:
        return reply
    infos: Infos = []
    for index, info in reply.payload:
        seed = seeds[index - envs.start]
        infos.append((index, info if seed is None else {"reset_seed": int(seed), **info}))
    return Reply(infos)


def _label(envs: range) -> str:
    return f"env {envs[0]}" if len(envs) == 1 else f"envs {envs[0]}-{envs[-1]}"


def _end_all(workers: Sequence[WorkerProcess], deadline: float) -> None:
    for worker in workers:
        worker.ask("close")
    for worker in workers:
        worker.end(deadline)


def _pickled(env_fns: Sequence[EnvFn], first: int) -> bytes:
    """Pickle factories for a process that is not forked; `first` is the index of the first."""
    dumps = cloudpickle_dumps()
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
