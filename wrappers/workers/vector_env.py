"""A vector env that runs several envs in each of a few worker processes."""

import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from stepwell.wrappers.workers.checks import (
    checked_autoreset_mode,
    checked_num_workers,
    checked_options,
    checked_seeds,
    checked_start_method,
    one_for_each,
)
from stepwell.wrappers.workers.infos import add_info, plain_columns
from stepwell.wrappers.workers.memory import SharedRows, check_space, copy_rows, write_rows
from stepwell.wrappers.workers.pool import Bools, WorkerPool
from stepwell.wrappers.workers.process import NO_MAIN_GUARD, PROCESS_NAME, no_main_guard
from stepwell.wrappers.workers.worker import CALL, SET, STEP, EnvFn, Infos

Array = npt.NDArray[Any]
Info = dict[str, Any]
StepResult = tuple[Any, Array, Array, Array, Info]


class WorkerVectorEnv(VectorEnv[Any, Any, Array]):
    """Run envs in worker processes, a contiguous block of envs in each.

    `step(actions)` is `send(actions)` followed by `recv()`, so that the caller can work while the
    envs step. What comes back is in memory that the caller owns. Results do not depend on
    `num_workers`, and equal those of gymnasium's `SyncVectorEnv`, as long as no worker dies.

    A worker that dies (killed, out of memory, a crash in native code) is replaced: its envs are
    built anew and reset, and the info of that step has `worker_restarted`, a bool array [N], True
    for the envs whose row is the first observation of such a fresh episode. An exception that an
    env raises is no death: it is raised here, with the env's index and the worker's traceback as
    a note, and the next call must be `reset`.

    The first factory is called once more in this process, to learn the spaces. Actions are cast
    to the dtype of the action space. Workers ignore Ctrl-C: shutting down is up to the parent, and
    they end by themselves when it is gone.

    The start method is fork on Linux whatever Python's default is: workers start in
    milliseconds, take any callable, and scripts need no main guard. Choose "forkserver" or
    "spawn" where the parent runs threads that may hold locks while a worker is started (an
    OpenMP library in use, for example). Elsewhere it is spawn.

    Args:
        env_fns: Factories, one for each env; zero arguments.
        num_workers: Number of processes; None for one per core that this process may use, and
            never more than there are envs.
        autoreset_mode: NEXT_STEP, the only one supported.
        context: Start method: "fork", "forkserver", "spawn", or None as said above.
        max_restarts: Number of worker deaths to survive in all.
        step_timeout: Seconds after which a worker that does not answer a step or a reset is
            killed, which counts as a death; None waits for ever.

    Raises:
        ValueError: An argument or a space that cannot be honoured.

    Example:
        >>> import gymnasium as gym
        >>> envs = WorkerVectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
        >>> observation, info = envs.reset(seed=0)
        >>> envs.send(np.zeros(4, np.int64))  # returns at once
        >>> observation, reward, terminated, truncated, info = envs.recv()
        >>> observation.shape, reward.dtype, terminated.dtype
        ((4, 4), dtype('float64'), dtype('bool'))
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        *,
        num_workers: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        context: str | None = None,
        max_restarts: int = 3,
        step_timeout: float | None = None,
    ) -> None:
        self.closed = True  # until there is something to close
        start_method = checked_start_method(context)
        _refuse_run_without_main_guard(start_method)
        checked_autoreset_mode(autoreset_mode)
        num_workers = checked_num_workers(num_workers, len(env_fns))
        if max_restarts < 0:
            raise ValueError(f"max_restarts is wrong: expected 0 or more, got {max_restarts}")
        self.num_envs = len(env_fns)
        self._is_stepping = False
        self._failure = ""
        self._learn_from(env_fns[0])
        space_pair = self.single_observation_space, self.single_action_space
        context_object = multiprocessing.get_context(start_method)
        self._rows = SharedRows(*space_pair, self.num_envs, num_workers, context_object)
        self._crew = WorkerPool(
            env_fns, num_workers, start_method, self._rows, space_pair, max_restarts, step_timeout
        )
        self._crew.start()
        self.closed = False

    def _learn_from(self, env_fn: EnvFn) -> None:
        """Take spaces and metadata from an env that is built for that and closed again."""
        env = env_fn()
        try:
            check_space(env.observation_space, "observation space")
            check_space(env.action_space, "action space")
            self.single_observation_space: spaces.Space[Any] = env.observation_space
            self.single_action_space: spaces.Space[Any] = env.action_space
            self.observation_space = batch_space(env.observation_space, self.num_envs)
            self.action_space = batch_space(env.action_space, self.num_envs)
            self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
            self.render_mode = env.render_mode
        finally:
            env.close()

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._crew.workers)

    @property
    def restarts(self) -> int:
        """Number of workers that died and were replaced so far."""
        return self._crew.restarts

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, Info]:
        """Reset the envs.

        Args:
            seed: One for env 0, the others get the next ones; or one for each; or None.
            options: Given to each env's reset, except `reset_mask`, a bool array [N] of the envs
                to reset (all when absent).

        Returns:
            Observations [N, ...] and info.

        Raises:
            ValueError: Wrong number of seeds, or a wrong mask.
            RuntimeError: A worker died once more than `max_restarts` allows.
        """
        self._require_open()
        seeds = checked_seeds(seed, self.num_envs)
        options, chosen = checked_options(options, self.num_envs)
        self._crew.drain()
        self._crew.ask_reset(seeds, options, chosen)
        infos, restarted = self._take(seeds, options)
        restarted &= ~np.array(chosen)  # the chosen ones begin afresh in any case
        return copy_rows(self._rows.observation), self._collected(infos, restarted)

    def step(self, actions: Any) -> StepResult:
        """Step all envs: `send` and `recv`.

        Args:
            actions: Actions [N, ...].

        Returns:
            Observations [N, ...], rewards float64 [N], terminated bool [N], truncated bool [N] and
            info.
        """
        self.send(actions)
        return self.recv()

    def send(self, actions: Any) -> None:
        """Let all envs begin their step, and return at once.

        Args:
            actions: Actions [N, ...].

        Raises:
            AlreadyPendingCallError: The step before was not received yet.
            RuntimeError: An env raised in the step before, and there was no reset since.
            ValueError: Actions of a wrong shape.
            TypeError: Actions of a dtype that does not fit.
        """
        self._require_idle("send")
        if self._failure:
            raise RuntimeError(f"the envs cannot step: {self._failure}; call reset() first")
        write_rows(self._rows.action, actions)
        self._is_stepping = True
        self._crew.ask(STEP)

    def recv(self) -> StepResult:
        """Wait for the step that `send` began; returns as `step` does.

        Raises:
            NoAsyncCallError: Nothing was sent.
            RuntimeError: A worker died once more than `max_restarts` allows.
        """
        self._require_open()
        if not self._is_stepping:
            raise NoAsyncCallError(
                "recv() has nothing to wait for: expected send(actions) before it, got none; "
                "call send or step",
                "step",
            )
        infos, restarted = self._take([None] * self.num_envs, None)
        rows = self._rows
        return (
            copy_rows(rows.observation),
            rows.reward.copy(),
            rows.terminated.copy(),
            rows.truncated.copy(),
            self._collected(infos, restarted),
        )

    def _take(self, seeds: list[int | None], options: Info | None) -> tuple[Infos, Bools]:
        self._failure, self._is_stepping = "the last call was interrupted", False
        try:
            answers = self._crew.take(seeds, options)
        except Exception as error:
            self._failure = f"the last call raised {type(error).__name__}"
            if not self._crew.close.alive:
                self.closed = True
            raise
        self._failure = ""
        return answers

    def _collected(self, infos: Infos, restarted: Bools) -> Info:
        collected = plain_columns(infos, self.num_envs)
        if collected is None:
            collected = {}
            for index, info in infos:
                self._add_info(collected, info, index)
        if restarted.any():
            collected["worker_restarted"] = restarted
            collected["_worker_restarted"] = restarted.copy()
        return collected

    def _add_info(self, vector_infos: Info, env_info: Info, env_num: int) -> Info:
        """Gymnasium's own casts an env's value to the type of another env's."""
        return add_info(vector_infos, env_info, env_num, self.num_envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute that is no method.

        Args:
            name: Its name, looked up through the wrappers.
            *args: Positional arguments.
            **kwargs: Keyword arguments.

        Returns:
            One result for each env.

        Raises:
            RuntimeError: A worker is dead; the next step or reset replaces it.
        """
        self._require_idle("call")
        return tuple(self._crew.ask_each(CALL, [(name, args, kwargs)] * self.num_workers))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each env; as `call` without arguments."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env.

        Args:
            name: Its name.
            values: A list or tuple with one value for each env, or one value for all.

        Raises:
            ValueError: A list or tuple of another length.
        """
        self._require_idle("set_attr")
        each = one_for_each(values, self.num_envs)
        blocks = [each[w.envs.start : w.envs.stop] for w in self._crew.workers]
        self._crew.ask_each(SET, [(name, block) for block in blocks])

    def render(self) -> tuple[Any, ...]:
        """Render each env, in its worker."""
        return self.call("render")

    def close_extras(self) -> None:
        """Close the envs and end the workers; those that take longer than 5 s are killed."""
        self._crew.close()

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                "the vector env is closed: expected an open one; make a new one"
            )

    def _require_idle(self, what: str) -> None:
        self._require_open()
        if self._is_stepping:
            raise AlreadyPendingCallError(
                f"{what} came too early: expected recv() after send(actions), got another call; "
                f"call recv() first",
                "step",
            )


def _refuse_run_without_main_guard(start_method: str) -> None:
    """In a worker that runs the script's top level a second time, stop there."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if process.name.startswith(PROCESS_NAME):
            # The parent says it, in one sentence; a fork server would swallow SystemExit.
            os._exit(NO_MAIN_GUARD)
        raise RuntimeError(no_main_guard(start_method))
