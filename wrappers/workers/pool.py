"""All workers of one vector env: start them, ask them, replace the dead, end them."""

import os
import time
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from stepwell.wrappers.workers.checks import pickled
from stepwell.wrappers.workers.memory import SharedRows
from stepwell.wrappers.workers.process import (
    NO_MAIN_GUARD,
    Reply,
    Worker,
    WorkerDied,
    no_main_guard,
)
from stepwell.wrappers.workers.worker import BUILD, RESET, EnvFn, Infos

CLOSE_SECONDS = 5.0

Space = spaces.Space[Any]
Bools = npt.NDArray[np.bool_]


class WorkerPool:
    """Worker processes, each with a contiguous block of envs.

    Args:
        env_fns: Factories, one for each env.
        num_workers: Number of processes, not more than envs.
        start_method: "fork", "spawn" or "forkserver".
        rows: The shared rows.
        space_pair: One env's observation and action space.
        max_restarts: Number of deaths to survive in all.
        timeout: Seconds that a step or a reset may take; None for any number.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        num_workers: int,
        start_method: str,
        rows: SharedRows,
        space_pair: tuple[Space, Space],
        max_restarts: int,
        timeout: float | None,
    ) -> None:
        self.num_envs, self._start_method = len(env_fns), start_method
        self._space_pair, self._max_restarts, self._timeout = space_pair, max_restarts, timeout
        self._seeds: list[int | None] = [None] * self.num_envs
        self.restarts = 0
        self.workers: list[Worker] = []
        borders = [self.num_envs * k // num_workers for k in range(num_workers + 1)]
        for number, (first, end) in enumerate(pairwise(borders)):
            fns = env_fns[first:end]
            its_fns = fns if start_method == "fork" else pickled(fns, first)
            envs = range(first, end)
            self.workers.append(Worker(number, envs, its_fns, rows, start_method))
        self.close = weakref.finalize(self, _end_all, self.workers, os.getpid())

    def start(self) -> None:
        """Start all processes and have them build their envs, all at the same time.

        Raises:
            RuntimeError: A process died of it; an exception of a factory is raised as it is.
        """
        try:
            for worker in self.workers:
                self._start(worker)
            for worker in self.workers:
                self._take_built(worker)
        except BaseException:
            self.close()
            raise

    def _start(self, worker: Worker) -> None:
        worker.start()
        worker.ask(BUILD, *self._space_pair)

    def _take_built(self, worker: Worker) -> None:
        try:
            reply = worker.take()
        except WorkerDied as death:
            if worker.exit_code == NO_MAIN_GUARD:
                raise RuntimeError(no_main_guard(self._start_method)) from None
            raise RuntimeError(
                f"the worker process of {_named(worker.envs)} died while it built them: expected "
                f"an answer, got {death}; see what it printed above"
            ) from None
        if reply.error is not None:
            raise reply.error

    def ask(self, command: int) -> None:
        """Give all workers a command without arguments."""
        for worker in self.workers:
            worker.ask(command)

    def ask_reset(
        self, seeds: list[int | None], options: dict[str, Any] | None, chosen: list[bool]
    ) -> None:
        """Let the chosen envs be reset; the seeds are remembered for restarts."""
        pairs = zip(self._seeds, seeds, strict=True)
        self._seeds = [old if new is None else new for old, new in pairs]
        for worker in self.workers:
            first, end = worker.envs.start, worker.envs.stop
            worker.ask(RESET, seeds[first:end], options, chosen[first:end])

    def take(
        self, seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> tuple[Infos, Bools]:
        """Take all answers to a step or a reset, and replace the dead.

        Args:
            seeds: Seeds for envs that must be reset after a restart; None for a derived one.
            options: Options for such a reset.

        Returns:
            The infos, and which envs were restarted, [N].

        Raises:
            Exception: What an env raised; all answers are taken before.
            RuntimeError: One death too many; everything is closed before.
        """
        infos: Infos = []
        restarted = np.zeros(self.num_envs, np.bool_)
        error: Exception | None = None
        for worker in self.workers:
            try:
                reply = worker.take(self._timeout)
            except WorkerDied as death:
                reply = self._revive(worker, death, seeds, options)
                restarted[worker.envs.start : worker.envs.stop] = True
            error = error or reply.error
            infos.extend(reply.payload or [])
        if error is not None:
            raise error
        return infos, restarted

    def _revive(
        self,
        worker: Worker,
        death: WorkerDied,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Reply:
        """Replace a dead worker and reset its envs."""
        while True:
            if self.restarts == self._max_restarts:
                self.close()
                raise RuntimeError(
                    f"the worker process of {_named(worker.envs)} died ({death}): expected at most "
                    f"max_restarts={self._max_restarts} deaths, got one more; look for a crash in "
                    f"the env or for lack of memory, or raise max_restarts"
                )
            self.restarts += 1
            fresh = [self._derived_seed(k) if seeds[k] is None else seeds[k] for k in worker.envs]
            try:
                self._start(worker)
                reply = worker.take()
                if reply.error is None:
                    worker.ask(RESET, fresh, options, [True] * len(fresh))
                    reply = worker.take(self._timeout)
                return reply
            except WorkerDied as next_death:
                death = next_death

    def _derived_seed(self, index: int) -> int | None:
        """A seed for env `index` after a restart, from its last seed and the restart's number."""
        seed = self._seeds[index]
        if seed is None:
            return None
        words = np.random.SeedSequence([seed, self.restarts]).generate_state(1)
        return int(words[0]) >> 1  # some emulators take seeds of 31 bits

    def ask_each(self, command: int, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Give each worker a command with its own arguments, and join the lists they answer.

        Raises:
            Exception: What an env raised.
            RuntimeError: A worker is dead; the next step or reset replaces it.
        """
        for worker, its_arguments in zip(self.workers, arguments, strict=True):
            worker.ask(command, *its_arguments)
        results: list[Any] = []
        error: Exception | None = None
        for worker in self.workers:
            reply = self._take_or_explain(worker)
            error = error or reply.error
            results.extend(reply.payload or [])
        if error is not None:
            raise error
        return results

    def _take_or_explain(self, worker: Worker) -> Reply:
        try:
            return worker.take()
        except WorkerDied as death:
            text = (
                f"the worker process of {_named(worker.envs)} died: expected an answer, got "
                f"{death}; the next step or reset replaces it"
            )
            return Reply(error=RuntimeError(text))

    def drain(self) -> None:
        """Take the answers that nobody will ask for any more; the dead are replaced later."""
        for worker in self.workers:
            if worker.is_waited_for:
                try:
                    worker.take(self._timeout)
                except WorkerDied:
                    pass


def _named(envs: range) -> str:
    return f"env {envs[0]}" if len(envs) == 1 else f"envs {envs[0]}-{envs[-1]}"


def _end_all(workers: Sequence[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child's copy of the crew
    for worker in workers:
        worker.say_close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        worker.end(deadline)
