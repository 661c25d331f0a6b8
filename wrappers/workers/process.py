"""The parent's side of one worker process: start it, ask it, notice its death, end it."""

import multiprocessing
import pickle
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from stepwell.wrappers.workers.memory import SharedRows
from stepwell.wrappers.workers.worker import (
    ANSWERED,
    ASKED,
    CLOSE,
    COMMAND,
    PAYLOAD,
    QUIET,
    RAISED,
    STATUS,
    STEP,
    EnvFn,
    packed,
    run_worker,
)

# How often a silent worker is looked at; a dead one is found after this time at the latest.
LOOK_SECONDS = 0.1
PROCESS_NAME = "stepwell-worker-"
NO_MAIN_GUARD = 97  # exit code of a worker that ran the script's own top level again


def no_main_guard(start_method: str) -> str:
    """What to say when a script starts itself again in each worker."""
    return (
        f"the script started itself again in a worker process: expected its top level to be under "
        f'`if __name__ == "__main__":`, which start method {start_method!r} needs, got a call at '
        f"top level; add that line, or use context='fork'"
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer: what it sent, or the exception that one of its envs raised."""

    payload: Any = None
    error: Exception | None = None


class WorkerDied(Exception):
    """The process ended, or had to be ended, without an answer."""


class Worker:
    """One worker process and the wires to it.

    Args:
        number: The worker's number, from 0.
        envs: Indices of its envs.
        env_fns: Factories of its envs, cloudpickled unless the start method is fork.
        rows: The shared rows.
        start_method: "fork", "spawn" or "forkserver".
    """

    def __init__(
        self,
        number: int,
        envs: range,
        env_fns: Sequence[EnvFn] | bytes,
        rows: SharedRows,
        start_method: str,
    ) -> None:
        self.number, self.envs = number, envs
        self._env_fns, self._rows = env_fns, rows
        self._start_method = start_method
        self._control = rows.control[number]
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._is_reading = False
        self.is_waited_for = False
        self.exit_code: int | None = None

    def start(self) -> None:
        """Start the process; the first command to give it is BUILD."""
        context: Any = multiprocessing.get_context(self._start_method)
        self._control[:] = 0
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
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork beside threads, numpy's idle ones too: see workers.py.
            warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
            try:
                process.start()
            except (EOFError, ConnectionError):  # the fork server fell over the script
                raise RuntimeError(no_main_guard(self._start_method)) from None
        far_end.close()
        self._process = process

    @property
    def pipe(self) -> Connection:
        """The parent's end of the pipe."""
        assert self._pipe is not None
        return self._pipe

    @property
    def is_started(self) -> bool:
        """Whether there is a process (perhaps a dead one) behind this worker."""
        return self._pipe is not None

    @property
    def ending(self) -> str:
        """How the process ended."""
        code = self.exit_code
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"signal {-code}, {signal.Signals(-code).name}"

    def ask(self, command: int, *arguments: Any) -> None:
        """Give the worker a command; a dead one is noticed when its answer is taken."""
        if not self.is_started:
            self.is_waited_for = True
            return
        control = self._control
        payload = None if command == STEP else packed(arguments)
        control[COMMAND] = command
        control[ASKED] += 1
        self.is_waited_for = True
        self._wake.release()
        if payload is not None:
            try:
                self.pipe.send_bytes(payload)
            except OSError:
                pass  # dead; `take` finds out

    def take(self, timeout: float | None = None) -> Reply:
        """Wait for the answer to the last command.

        Args:
            timeout: Seconds after which a silent worker is killed; None waits as long as it lives.

        Raises:
            WorkerDied: There will be no answer; the process is gone, `exit_code` says how.
        """
        if not self._wait(timeout):
            was_alive = self._process is not None and self._process.is_alive()
            self.kill()
            raise WorkerDied(f"no answer in {timeout} s" if was_alive else self.ending)
        self.is_waited_for = False
        status = int(self._control[STATUS])
        if status == QUIET:
            return Reply()
        payload = self._receive()
        if status == PAYLOAD:
            return Reply(payload)
        assert status == RAISED
        index, error, text = payload
        error.add_note(f"raised in env {index}, in worker process {self.number}:\n{text}")
        return Reply(error=error)

    def _wait(self, timeout: float | None) -> bool:
        """Whether the answer has come; False when it never will."""
        if self._process is None or self._is_reading:
            return False
        control = self._control
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # The numbers decide; the semaphore only wakes, so an interrupted wait loses nothing.
            was_alive = True
            if not self._done.acquire(timeout=LOOK_SECONDS):
                was_alive = self._process.is_alive()
            if control[ASKED] == control[ANSWERED]:
                return True
            if not was_alive or (deadline is not None and time.monotonic() > deadline):
                return False

    def _receive(self) -> Any:
        self._is_reading = True  # stays so if this is interrupted: the pipe is of no use then
        try:
            data = self.pipe.recv_bytes()
        except (EOFError, OSError):
            self.kill()
            raise WorkerDied(self.ending) from None
        self._is_reading = False
        return pickle.loads(data)

    def say_close(self) -> None:
        """Ask the process to close its envs and end."""
        if self.is_started:
            self.ask(CLOSE)

    def end(self, deadline: float) -> None:
        """Wait for the process to end until `deadline` (time.monotonic), then kill it."""
        if self._process is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the process now, whatever it does; nothing is left of it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            self.exit_code = process.exitcode
            process.close()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self.is_waited_for = False
