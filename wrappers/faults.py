"""Exceptions of envs that are answered: the env is made again, and begins a new episode."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from .env_results import reset_of
from .seeded_resets import in_shard_of

_LOG = logging.getLogger("stepwell.wrappers")
RESTARTED = "worker_restarted"
"""Key of the infos of first rows of episodes that begin because the one before was cut."""
AnyEnv = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class GivenEnv:
    """A factory of an env that is there already, and cannot be made again."""

    env: AnyEnv

    def __call__(self) -> AnyEnv:
        """Return the env."""
        return self.env


class Faults:
    """The exceptions of several envs, of which the first ``most`` are answered."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def answer(self, env: int, where: str, error: Exception) -> None:
        """Count an exception and tell of it, or raise it, if none is left to be answered."""
        if self.count == self.most:
            error.add_note(f"raised {where} of env {env}, after {self.most} that were tolerated")
            raise error
        self.count += 1
        self._tell(env, where, error)

    def _tell(self, env: int, where: str, error: Exception) -> None:
        _LOG.warning(
            "env %d raised %s: %s %s, and begins anew: %d of at most %d times",
            *(env, type(error).__name__, error, where, self.count, self.most),
        )
        _LOG.debug("env %d raised %s", env, where, exc_info=error)


class Tolerant(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Answers an exception of `step` or `reset` by the first row of a new episode of a new env."""

    # In the form in which `WorkerVectorEnv` answers the death of a worker.

    def __init__(
        self,
        env: AnyEnv,
        env_fn: Callable[[], AnyEnv],  # of a `GivenEnv`: it is only reset
        index: int,  # of the env, for messages
        faults: Faults,
    ) -> None:
        super().__init__(env)
        is_given = isinstance(getattr(env_fn, "env_fn", env_fn), GivenEnv)  # also by `make_vec`
        self._env_fn = None if is_given else env_fn
        self._index, self._faults = index, faults
        self._seed: int | None = None
        self._restarts = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env, or a new one if it raises, with the given seed or one of its own."""
        self._seed, self._steps = self._seed if seed is None else seed, 0
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
            where = f"in step {self._steps} of an episode"
            observation, info = self._begun_anew(error, where, None, None)
        return observation, 0.0, False, False, info

    def _begun_anew(
        self, error: Exception, where: str, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        while True:
            self._faults.answer(self._index, where, error)
            self._restarts += 1
            fresh = seed
            if seed is None and self._seed is not None:
                drawn = np.random.SeedSequence(self._seed, spawn_key=(0, self._restarts))
                fresh = in_shard_of(self._seed, int(drawn.generate_state(1)[0]) >> 1)
            try:
                if self._env_fn is not None:
                    with contextlib.suppress(Exception):
                        self.env.close()
                    where = "in the making"
                    self.env = self._env_fn()
                where = "in the reset"
                result = self.env.reset(seed=fresh, options=options)
                observation, info = reset_of(result, "the env")
            except Exception as another:
                error = another
                continue
            known = {} if fresh is None else {"reset_seed": int(fresh)}
            return observation, {**known, **info, RESTARTED: True}
