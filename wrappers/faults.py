"""Exceptions of envs that are answered: the env is made again, and begins a new episode."""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from .env_results import reset_of
from .seeded_resets import in_shard_of

_LOG = logging.getLogger("stepwell.wrappers")
RESTARTED = "worker_restarted"  # key of infos of a first row, before which an episode was cut


def given(env: Any) -> Any:
    """A factory, if it is made partial, of an env that cannot be made again."""
    return env


class Faults:
    """The exceptions of several envs, of which the first ``most`` are answered."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def answer(self, env: int, where: str, error: Exception) -> None:
        """Count an exception and tell of it, or raise it, if no more are answered."""
        if self.count == self.most:
            error.add_note(f"raised {where} of env {env}, after {self.most} that were tolerated")
            raise error
        self.count += 1
        self.tell(env, where, error)

    def tell(self, env: int, where: str, error: Exception) -> None:
        """Log an exception, on level DEBUG with its traceback."""
        _LOG.warning(
            "env %d raised %s: %s %s, and begins anew: %d of at most %d times",
            *(env, type(error).__name__, error, where, self.count, self.most),
            exc_info=error if _LOG.isEnabledFor(logging.DEBUG) else None,
        )


class Tolerant(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Answers an exception of `step` or `reset` by the first row of a new episode of a new env."""

    # As `WorkerVectorEnv` answers the death of a worker; what is `given` is only reset.

    def __init__(self, env: Any, env_fn: Callable[[], Any], index: int, faults: Faults) -> None:
        super().__init__(env)
        innermost = getattr(env_fn, "env_fn", env_fn)  # in that of `make_vec`
        is_given = isinstance(innermost, partial) and innermost.func is given
        self._env_fn = None if is_given else env_fn
        self._index, self._faults = index, faults
        self._seed: int | None = None
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env, or a new one if it raises, with the given seed or one of its own."""
        # Of a run that goes on the seed that was given: from it alone follow those after an error.
        self._seed, self._steps = self._seed if seed is None else getattr(seed, "root", seed), 0
        try:
            return self.env.reset(seed=seed, options=options)
        except Exception as error:
            return self._begun_anew(error, "in the reset", seed, options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; if it raises, return the first row of a new episode."""
        self._steps += 1
        try:
            return self.env.step(action)
        except Exception as error:
            observation, info = self._begun_anew(error, f"in step {self._steps} of an episode")
        return observation, 0.0, False, False, info

    def _begun_anew(
        self, error: Exception, where: str, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        while True:
            self._faults.answer(self._index, where, error)
            self._steps, fresh = 0, seed
            if seed is None and self._seed is not None:
                drawn = np.random.SeedSequence(self._seed, spawn_key=(0, 1))
                fresh = self._seed = in_shard_of(self._seed, int(drawn.generate_state(1)[0]) >> 1)
            try:
                if (make := self._env_fn) is not None:
                    with contextlib.suppress(Exception):
                        self.env.close()
                    where = "in the making"
                    self.env = make()
                where = "in the reset"
                observation, info = reset_of(self.env.reset(seed=fresh, options=options), "the env")
            except Exception as another:
                error = another
            else:
                known = {} if fresh is None else {"reset_seed": int(fresh)}
                return observation, {**known, **info, RESTARTED: True}
