"""A vector env that runs several envs in each of a few worker processes."""

import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ...buffers.base.errors import not_copied
from ...buffers.base.number_checks import check_whole, is_real
from ..env_results import is_of
from ..faults import RESTARTED, Faults
from ..seeded_resets import seeds_of
from .infos import Infos, add_info
from .pool import Bools, WorkerPool
from .processes import available_cores, check_can_start, checked_start_method, has_open_window
from .shared_arrays import SharedRows, check_space, copy_rows, write_rows
from .worker import EnvFn

Array = npt.NDArray[Any]
Info = dict[str, Any]
StepResult = tuple[Any, Array, Array, Array, Info]


class WorkerVectorEnv(VectorEnv[Any, Any, Array]):
    """Run envs in worker processes, a contiguous block of envs in each.

    `step(actions)` is `send(actions)` followed by `recv()`, so the caller can work while the envs
    step. Returned arrays are owned by the caller. Results do not depend on `num_workers`, and equal
    those of Gymnasium's `SyncVectorEnv`, as long as no worker dies.

    A worker that dies (killed, out of memory, a crash in native code) is replaced: its envs are
    rebuilt and reset, and the info of that step has `worker_restarted`, a bool array [N] that is
    True for the envs whose row is the first observation of such a new episode, and `reset_seed`:
    the seeds, derived from the last ones, that these envs were reset with. If an env raises,
    the exception is re-raised in the parent, with the env's index and the worker's traceback as a
    note, and the next call must be `reset`.

    The first factory is called once in this process as well, to get the spaces. Actions are cast
    to the dtype of the action space. Workers ignore Ctrl-C: the parent shuts them down, and they
    exit by themselves when the parent has exited.

    On Linux the default start method is fork, regardless of Python's default: workers start in
    milliseconds, accept any callable, and scripts need no main guard. Choose "forkserver" or
    "spawn" if the parent runs threads that may hold locks while a worker is started (for example
    an OpenMP library in use). On other systems the default is spawn.

    Args:
        env_fns: Factories without arguments, one for each env.
        num_workers: Number of processes, at most one per env; None for one per available core.
        autoreset_mode: NEXT_STEP, the only supported mode.
        context: Start method: "fork", "forkserver", "spawn", or None for the default above.
        max_restarts: Number of worker deaths to survive in total.
        step_timeout: Seconds after which a worker that does not reply to a step or a reset is
            killed, which counts as a death; None waits without limit.

    Raises:
        ValueError: An argument is invalid, or a space is not supported.

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

    _needs_main = True  # the factories may be defined in the script that runs

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a vector env with worker processes", "make one in each process, from a function"
        )

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
        self.closed = True  # until the workers are started
        start_method = checked_start_method(context)
        check_can_start(start_method)
        if autoreset_mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
            raise ValueError(
                f"autoreset_mode is not supported: expected NEXT_STEP, got {autoreset_mode}; "
                f"use gymnasium's SyncVectorEnv or AsyncVectorEnv for another mode"
            )
        if not env_fns:
            raise ValueError("env_fns is empty: expected at least one factory, got none")
        if num_workers is None:
            num_workers = available_cores()
        hint = "; gymnasium's SyncVectorEnv steps in this process"
        check_whole("num_workers", num_workers, 1, hint=hint)
        num_workers = min(num_workers, len(env_fns))
        check_whole("max_restarts", max_restarts, 0)
        if step_timeout is not None and not (is_real(step_timeout) and step_timeout > 0):
            raise ValueError(
                f"step_timeout: expected seconds above 0, got {step_timeout!r}; None sets no limit"
            )
        self.num_envs = len(env_fns)
        # As of Gymnasium's SyncVectorEnv.
        self.autoreset_mode = AutoresetMode.NEXT_STEP
        self.env_fns, self.copy, self.observation_mode = env_fns, True, "same"
        self._is_stepping = False
        self._failure = ""
        self._set_spaces(env_fns[0], num_workers)
        if start_method == "fork":
            _refuse_fork(self.metadata)
        space_pair = self.single_observation_space, self.single_action_space
        context_object = multiprocessing.get_context(start_method)
        self._rows = SharedRows(*space_pair, self.num_envs, num_workers, context_object)
        self._pool = WorkerPool(
            env_fns,
            num_workers,
            start_method,
            self._rows,
            space_pair,
            max_restarts,
            step_timeout,
            self._needs_main,
        )
        self._pool.start()
        self.closed = False

    def _set_spaces(self, env_fn: EnvFn, num_workers: int) -> None:
        """Take spaces and metadata from an env that is built and closed here."""
        env = checked_env(env_fn())
        try:
            check_space(env.observation_space, "observation space")
            check_space(env.action_space, "action space")
            self.single_observation_space: spaces.Space[Any] = env.observation_space
            self.single_action_space: spaces.Space[Any] = env.action_space
            self.observation_space = batch_space(env.observation_space, self.num_envs)
            self.action_space = batch_space(env.action_space, self.num_envs)
            self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
            self.render_mode = env.render_mode
            is_alone = _is_alone_in_its_process(env)
        finally:
            env.close()
        if is_alone and num_workers < self.num_envs:
            raise OneEnvEach(one_env_each(self.num_envs, num_workers))

    @property  # type: ignore[misc] # they live in the workers
    def np_random(self) -> Any:
        """The generator of each env, a copy."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seed of each env's generator."""
        return self.get_attr("np_random_seed")

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self._pool.workers)

    @property
    def restarts(self) -> int:
        """Number of workers that died and were replaced."""
        return self._pool.restarts

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, Info]:
        """Reset the envs.

        Args:
            seed: The seed of env 0, counted up for the others; or one for each env; or None.
            options: Passed to each env's reset, except `reset_mask`, a bool array [N] of the envs
                to reset (default: all).

        Returns:
            Observations [N, ...] and info.

        Raises:
            ValueError: Wrong number of seeds, or an invalid mask.
            RuntimeError: More workers died than `max_restarts` allows.
        """
        self._require_open()
        seeds = seeds_of(seed, self.num_envs)
        options, chosen = _checked_options(options, self.num_envs)
        self._pool.drain()
        self._pool.ask_reset(seeds, options, chosen)
        infos, restarted = self._take(seeds, options)
        restarted &= ~np.array(chosen)  # the chosen envs start a new episode in any case
        return self._observation(), self._collected(infos, restarted)

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
        """Start a step of all envs, and return immediately.

        Args:
            actions: Actions [N, ...].

        Raises:
            AlreadyPendingCallError: The previous step was not received yet.
            RuntimeError: An env raised in the previous step, and `reset` was not called since.
            ValueError: The actions have the wrong shape, or values that their dtype cannot hold.
        """
        self._require_idle("send")
        if self._failure:
            raise RuntimeError(f"the envs cannot step: {self._failure}; call reset() first")
        write_rows(self._rows.action, actions)
        self._is_stepping = True
        self._pool.ask_step()

    def recv(self) -> StepResult:
        """Wait for the step that `send` started; returns the same as `step`.

        Raises:
            NoAsyncCallError: No step is pending.
            RuntimeError: More workers died than `max_restarts` allows.
        """
        self._require_open()
        if not self._is_stepping:
            raise NoAsyncCallError(
                "recv() has no pending step: expected send(actions) before it, got none; "
                "call send or step",
                "step",
            )
        infos, restarted = self._take([None] * self.num_envs, None)
        rows = self._rows
        return (
            self._observation(),
            rows.reward.copy(),
            rows.terminated.copy(),
            rows.truncated.copy(),
            self._collected(infos, restarted),
        )

    def _prepare(self) -> None:
        """Do what can be done for the next observations while the envs step: nothing here."""

    def _observation(self) -> Any:
        return copy_rows(self._rows.observation)

    def _take(self, seeds: list[int | None], options: Info | None) -> tuple[Infos | Info, Bools]:
        self._failure, self._is_stepping = "the last call was interrupted", False
        self._prepare()
        try:
            result = self._pool.take(seeds, options)
        except Exception as error:
            self._failure = f"the last call raised {type(error).__name__}"
            if not self._pool.close.alive:
                self.closed = True
            raise
        self._failure = ""
        return result

    def _collected(self, infos: Infos | Info, restarted: Bools) -> Info:
        collected = infos if isinstance(infos, dict) else {}
        for index, info in () if isinstance(infos, dict) else infos:
            self._add_info(collected, info, index)
        if restarted.any():
            restarted |= collected.get(RESTARTED, False)  # those that have raised
            collected[RESTARTED] = restarted
            collected[f"_{RESTARTED}"] = restarted.copy()
        return collected

    def _add_info(self, vector_infos: Info, env_info: Info, env_num: int) -> Info:
        """Override Gymnasium's method, which casts all values to the type of the first env's."""
        return add_info(vector_infos, env_info, env_num, self.num_envs)

    def tolerate(self, faults: Faults) -> None:
        """Answer exceptions of the envs as deaths of their workers, as `Collector` does if asked.

        Args:
            faults: Counts the exceptions.
        """
        self._require_idle("tolerate")
        self._pool.tolerate(faults)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute that is not callable.

        Args:
            name: Name of the method or attribute, looked up through the wrappers.
            *args: Positional arguments.
            **kwargs: Keyword arguments.

        Returns:
            One result for each env.

        Raises:
            RuntimeError: A worker is dead; the next step or reset replaces it.
        """
        self._require_idle("call")
        return tuple(self._pool.ask_each("call", [(name, args, kwargs)] * self.num_workers))

    def begin_call(self, worker: int, name: str, *args: Any) -> None:
        """Begin a call of a method of the envs of one worker; others may be called meanwhile.

        Nothing but `end_call` may follow for this worker.

        Args:
            worker: Number of the worker.
            name: Name of the method, looked up through the wrappers.
            *args: Its arguments.
        """
        self._require_idle("begin_call")
        self._pool.workers[worker].ask("call", name, args, {})

    def end_call(self, worker: int) -> list[Any]:
        """Wait for the call that `begin_call` began; returns a result for each of its envs.

        Raises:
            Exception: Raised by the method.
            RuntimeError: The worker is dead.
        """
        self._require_open()
        found: list[Any] = self._pool.take_one(worker)
        return found

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each env; the same as `call` without arguments."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env.

        Args:
            name: Its name.
            values: A list or tuple with one value per env, or a single value for all.

        Raises:
            ValueError: The list or tuple has another length than N.
        """
        self._require_idle("set_attr")
        each: list[Any] = [values] * self.num_envs
        if isinstance(values, list | tuple):
            each = list(values)
        if len(each) != self.num_envs:
            raise ValueError(
                f"values has the wrong length: expected {self.num_envs}, one for each env, got "
                f"{len(each)}"
            )
        blocks = [each[w.envs.start : w.envs.stop] for w in self._pool.workers]
        self._pool.ask_each("set", [(name, block) for block in blocks])

    def render(self) -> tuple[Any, ...]:
        """Render each env, in its worker."""
        return self.call("render")

    def close_extras(self) -> None:
        """Close the envs and stop the workers; workers that take longer than 5 s are killed."""
        self._pool.close()

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                "WorkerVectorEnv is closed: expected an open one, got one after close(); "
                "make a new one"
            )

    def _require_idle(self, method: str) -> None:
        self._require_open()
        if self._is_stepping:
            raise AlreadyPendingCallError(
                f"{method}() came too early: expected recv() after send(actions), got {method}; "
                "call recv() first",
                "step",
            )


def checked_env(env: Any) -> Any:
    """Return the result of a factory if it has the methods and spaces of an env."""
    missing = [
        name
        for name in ("observation_space", "action_space", "metadata", "reset", "step", "close")
        if not hasattr(env, name)
    ]
    if missing:
        raise TypeError(
            f"env: expected a gymnasium env from the factory or wrapper, got {type(env).__name__} "
            f"without {', '.join(missing)}; return the env from it, or stepwell.from_gym(env) if "
            f"it has the API of the old gym"
        )
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        if not isinstance(space, spaces.Space):
            kind = f"{type(space).__module__}.{type(space).__name__}"
            raise TypeError(
                f"env: expected {name} to be a space of gymnasium, got {space!r} ({kind}); set it, "
                f"or adapt an env of the old gym with stepwell.from_gym"
            )
    return env


class OneEnvEach(ValueError):
    """Each env needs a process of its own."""


def one_env_each(num_envs: int, num_workers: int) -> str:
    """Return the error message for too few processes."""
    return (
        f"num_workers: expected {num_envs}, a process for each env, as stable-retro allows one "
        f"emulator in a process, got {num_workers}; give num_workers={num_envs}"
    )


def _is_alone_in_its_process(env: Any) -> bool:
    inner = getattr(env, "unwrapped", env)
    inner = getattr(inner, "retro_env", inner)  # of `from_retro`
    return is_of(getattr(inner, "unwrapped", inner), "stable_retro", "RetroEnv")


class CannotFork(ValueError):
    """The envs do not work in a process that is forked."""


def _refuse_fork(metadata: Mapping[str, Any]) -> None:
    """Raise if envs with that metadata, one of which was made here, would hang or die in a fork."""
    if metadata.get("jax"):
        raise CannotFork(
            "the envs compute with JAX (metadata['jax']), which waits forever in a forked "
            "process: use num_workers=0 (--workers 0), or context='spawn'; stepwell.JaxEnvs is "
            "much faster"
        )
    if has_open_window():
        raise CannotFork(
            "pyglet has an open window in this process, whose connection a forked process breaks: "
            "use num_workers=0 (--workers 0), or context='spawn'"
        )


def _checked_options(
    options: dict[str, Any] | None, num_envs: int
) -> tuple[dict[str, Any] | None, list[bool]]:
    """Split options into those of the envs and the mask of the envs to reset."""
    if options is None or "reset_mask" not in options:
        return options, [True] * num_envs
    value: Any = options["reset_mask"]
    mask: npt.NDArray[Any] = np.asarray(value)
    if mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ValueError(
            f"options['reset_mask'] is invalid: expected a bool array of shape ({num_envs},) with "
            f"at least one True, got {value!r}"
        )
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    return rest, [bool(one) for one in mask]
