"""The seeds that begin episodes: those that envs report, and those that a Collector gives them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

from ...buffers.base.number_checks import is_whole
from ...buffers.base.untrusted_json import items, mapping, member, whole
from ...wrappers.snapshots import is_snapshot
from ...wrappers.workers.vector_env import WorkerVectorEnv
from .action_log import ActionLog
from .step_result import value_of
from .vector_envs import Vector, is_ale, is_partial, mode_of

_Info = Mapping[str, Any]


class Reseed(NamedTuple):
    """When resets are seeded that would not be otherwise, and with which seeds."""

    steps: int  # env steps since its last seed, after which its next reset gets one
    seed_of: Callable[[int, int], int]  # the n-th of these seeds, by the index of the env and n


class ResetSeeds:
    """The seeds of the resets of one vector env."""

    # An env whose newest reset reported ``info["reset_seed"]`` seeds them itself. Of the others,
    # the first end of an episode after so many env steps is followed by a seeded reset of this env
    # alone, where the vector env is known to leave the others alone then. Where the caller resets
    # each env anyway (DISABLED), every reset is seeded, unless that loads a game again.
    # ``first_env`` is the index of the first one of these envs among all of a Collector's; without
    # a ``reseed`` no such reset is seeded.

    def __init__(self, envs: Vector, first_env: int, reseed: Reseed | None) -> None:
        self._envs = envs
        self._first_env = first_env
        self._reseed = reseed if reseed is not None and takes_seeds_of_some(envs) else None
        self._is_disabled = mode_of(envs) is AutoresetMode.DISABLED
        self._resets_take_a_step = mode_of(envs) is AutoresetMode.NEXT_STEP
        self._steps = 0 if reseed is None else reseed.steps
        n = envs.num_envs
        self._given: dict[int, int] = {}
        """Seeds of resets whose rows have not been seen yet, by env."""
        self._seeds_itself = [False] * n
        self._counts = [0] * n
        self._seeded_at = [0] * n
        """For each env, the vector step since which all of its steps count."""
        self.vector_steps = 0
        """Number of vector steps so far; the caller counts."""
        self.has_options = False
        """The resets that are read now had options, without which no seed leads to their rows."""
        self.log: ActionLog | None = None
        """Told of seeds, where there is one."""

    def begin(self, seeds: Mapping[int, int], info: _Info) -> None:
        """Start over with a reset of all envs: its info, and the seeds by env, if they got any."""
        n = self._envs.num_envs
        if self.log is not None:
            self.log.begin()
        # Of pools of EnvPool that have seeds of their own, a seed says nothing.
        self._given = dict(seeds) if getattr(self._envs.unwrapped, "takes_seeds", True) else {}
        self._seeded_at = [self.vector_steps] * n
        if self._reseed is None:
            return
        self._seeds_itself = [value_of(info, "reset_seed", env) is not None for env in range(n)]
        if self._is_disabled and not all(self._seeds_itself):
            self._steps = self._reseed.steps if _loads_games(self._envs.unwrapped) else 0

    def give(self, seeds: Mapping[int, int]) -> None:
        """Note the seeds, by env, of a reset of some envs."""
        self._given.update(seeds)

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Give no reset a seed that it would not have otherwise."""
        reseed, self._reseed = self._reseed, None
        try:
            yield
        finally:
            self._reseed = reseed

    def state_dict(self) -> dict[str, object]:
        """The state that decides which resets get which seeds."""
        return {
            "steps": self._steps,
            "reseeds": self._reseed is not None,
            "vector_steps": self.vector_steps,
            "seeds_itself": list(self._seeds_itself),
            "counts": list(self._counts),
            "seeded_at": list(self._seeded_at),
        }

    def load_state_dict(self, state: object) -> None:
        """Continue from a state of `state_dict`, once the envs are as they were then."""
        told, n = mapping(state, "reset_seeds"), self._envs.num_envs
        steps, now = (whole(member(told, key), key) for key in ("steps", "vector_steps"))
        counts, seeded_at = (
            [whole(one, key) for one in items(member(told, key), key, n)]
            for key in ("counts", "seeded_at")
        )
        own = [one is True for one in items(member(told, "seeds_itself"), "seeds_itself", n)]
        self._steps, self.vector_steps = steps, now
        self._counts, self._seeded_at, self._seeds_itself = counts, seeded_at, own
        self._given = {}
        if told.get("reseeds") is not True:
            self.stop()

    def stop(self) -> None:
        """Seed no more resets: of these envs it is not known at once which episodes have ended."""
        self._reseed = None

    def due(self, ended: np.ndarray, terminated: np.ndarray, last_info: _Info) -> list[int]:
        """The envs whose next reset is to be seeded, of those that have ``ended`` [N] bool."""
        # ``terminated`` [N] bool: the MDP has ended. ``last_info`` is that of the last rows.
        if self._reseed is None:
            return []
        return [
            env
            for env in ended.nonzero()[0].tolist()
            if not self._seeds_itself[env]
            and self.vector_steps - self._seeded_at[env] >= self._steps
            and not (terminated[env] and _has_lives(last_info, env))
        ]

    def draw(self, envs: Sequence[int]) -> dict[int, int]:
        """Seeds for a reset of some envs, which are `due`."""
        seeds: dict[int, int] = {}
        for env in envs:
            assert self._reseed is not None
            seeds[env] = self._reseed.seed_of(self._first_env + env, self._counts[env])
            self._counts[env] += 1
        return seeds

    def facts_of(self, env: int, info: _Info, place: int) -> dict[str, object]:
        """Facts about a reset: its seed, no-ops and snapshot, as far as they are known."""
        # ``place`` is the row of the env in the info.
        # As nearly every call is for a short episode of a quick env, this must cost little.
        seed = self._given.pop(env, None) if self._given else None
        own = value_of(info, "reset_seed", place) if "reset_seed" in info else None
        if seed is None:
            self._seeds_itself[env] = own is not None
        if self.log is not None and (seed is not None or own is not None):
            if seed is None and "worker_restarted" in info and info["worker_restarted"][place]:
                self.log.restarted(env, own)
            else:
                self.log.seeded(env, seed, own)
        if own is not None:
            if not is_whole(own) or own < 0:
                raise ValueError(
                    f"info['reset_seed'] of env {self._first_env + env}: expected the seed of its "
                    f"reset, a whole number >= 0, got {own!r}; leave the key out where a reset is "
                    f"not seeded"
                )
            seed = int(own)
        elif seed is not None:
            seed = int(seed)  # not a ShardSeed
        facts: dict[str, object] = {}
        if seed is not None and not self.has_options:
            facts["seed"] = seed
            self._seeded_at[env] = self.vector_steps
        elif self._resets_take_a_step:
            self._seeded_at[env] += 1
        if "noops" in info:
            noops = value_of(info, "noops", place)
            if is_whole(noops) and noops >= 0:
                facts["noops"] = int(noops)
        if "snapshot" in info:
            snapshot = value_of(info, "snapshot", place)
            if is_snapshot(snapshot):
                facts["snapshot"] = base64.b64encode(snapshot).decode()
        return facts


def takes_seeds_of_some(envs: Vector) -> bool:
    """Test whether the envs are known to take a reset of some, each with its own seed."""
    # Others may reset all envs then, or none, without an error; a vector wrapper may have a state
    # of its own for each env. In DISABLED mode, the caller resets some envs anyway.
    if mode_of(envs) is AutoresetMode.DISABLED:
        return isinstance(envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
    if isinstance(envs, VectorWrapper):
        return False
    if isinstance(envs, AsyncVectorEnv):
        # Without shared memory, gymnasium's worker would reset once more with the next step.
        is_exact = envs.shared_memory or envs.autoreset_mode is AutoresetMode.SAME_STEP
        return type(envs) is AsyncVectorEnv and envs.worker is None and is_exact
    if is_ale(envs):
        is_known = type(envs).__module__.split(".")[0] in ("ale_py", "stepwell")
        return is_known and not is_partial(envs)
    return type(envs) is SyncVectorEnv or isinstance(envs, WorkerVectorEnv)


def _loads_games(inner: Any) -> bool:
    """Test whether a seeded reset of one of the envs loads a game again, which takes 0.1 s."""
    if isinstance(inner, SyncVectorEnv):
        return any(hasattr(env.unwrapped, "ale") for env in inner.envs)
    # Only gymnasium's own worker is known to answer.
    return inner.worker is not None or any(inner.call("has_wrapper_attr", "ale"))


def _has_lives(info: _Info, env: int) -> bool:
    """Test whether a game may go on, of which a wrapper reports a lost life as an end."""
    lives = value_of(info, "lives", env)
    return is_whole(lives) and lives > 0
