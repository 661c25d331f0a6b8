"""Reads what a vector env returned, in any autoreset mode, as `StepResult`s.

The table of modes is at the head of `step_loop.py`. A `Stepper` has a reader for the envs that it
steps, a recorded env one for those that the caller's loop steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode

from ...buffers import Layout, Tree
from ...buffers.spec.exact_values import exactly, flags_of, numbers_in, rewards_of
from ...buffers.spec.spec import flatten, unflatten
from ...wrappers.final_observations import OverwriteDetector
from .reset_seeds import Reseed, ResetSeeds
from .step_result import EpisodeMetadata, InfoReader, StepResult
from .vector_envs import FrameCounters, Vector, is_ale, mode_of, returns_copies

_BOOL, _FLOAT = np.dtype(np.bool_), np.dtype(np.float64)
_Info = Mapping[str, Any]
RawStep = tuple[Any, Any, Any, Any, _Info]


class ResultReader:
    """Reads the results of one vector env, and knows its newest rows."""

    def __init__(
        self,
        envs: Vector,
        layout: Layout,  # the nesting of its observations
        info: InfoReader,
        metadata: EpisodeMetadata,
        first_env: int = 0,  # index of the first of these envs among all of a Collector's
        # When resets are seeded that would not be otherwise; None: never
        reseed: Reseed | None = None,
        *,
        # Copy each observation; None: where the envs may write to it again
        copies: bool | None = None,
    ) -> None:
        self.envs = envs
        self.mode = mode_of(envs)
        self._layout = layout
        self._info = info
        self._metadata = metadata
        self._first_env = first_env
        self._is_ale = is_ale(envs)
        self._are_copies = returns_copies(envs)
        self._copies = not self._are_copies if copies is None else copies
        self._overwrites = OverwriteDetector()
        self.ended = np.zeros(envs.num_envs, np.bool_)
        """[N] bool: the env's next row is that of a reset."""
        self.any_ended = False
        self._frame_counters = FrameCounters(envs.num_envs)
        self.reset_seeds = ResetSeeds(envs, first_env, reseed)
        self.due: list[int] = []
        """Envs whose episode ended with the newest step, and whose next reset is to be seeded."""
        self.env_ids: np.ndarray | None = None
        self.leaves: Mapping[str, np.ndarray] = {}
        self.observation: Tree = np.empty(0)
        self.rows = envs.num_envs
        """Number n of the newest rows."""
        self._first: np.ndarray | None = None
        self.maybe_ended: np.ndarray | None = None
        """[n] bool: newest rows of which only the next step shows whether their episode ended."""

    @property
    def num_envs(self) -> int:
        """Number of envs N."""
        return self.envs.num_envs

    @property
    def is_first(self) -> np.ndarray:
        """[n] bool: the newest rows that begin an episode; a copy."""
        return np.zeros(self.rows, np.bool_) if self._first is None else self._first.copy()

    @property
    def newest(self) -> list[StepResult]:
        """The rows from which no action has been chosen yet, without rewards and flags of ends."""
        return [StepResult(self.env_ids, self.leaves, np.zeros(self.rows), self.is_first)]

    def of_reset(
        self,
        observation: object,
        info: object,
        seeds: Mapping[int, int],  # that envs were given, by their index
    ) -> StepResult:
        """The rows of a reset of all envs."""
        if not isinstance(info, Mapping):
            raise TypeError(
                "envs.reset(): expected an info that is a dict of arrays, as gymnasium's vector "
                f"envs return it, got {type(info).__name__}; make the envs with stepwell.make_vec "
                "or gymnasium.make_vec"
            )
        facts = cast("_Info", info)
        self._overwrites = OverwriteDetector()
        self.ended[:] = self.any_ended = True
        self.maybe_ended = None
        self._frame_counters.forget()
        self.reset_seeds.begin(seeds, facts)
        n = len(facts["env_id"]) if self._is_ale else self.num_envs
        flags = np.zeros(n, np.bool_)
        return self._one_row_each(observation, np.zeros(n), flags, flags, facts)

    def begin_step(self) -> None:
        """Prepare for a step of envs whose results the caller may have written to."""
        if self.mode is AutoresetMode.SAME_STEP:
            self._overwrites.begin_step()

    def of_step(self, step: RawStep) -> list[StepResult]:
        """The rows of a step, in the order in which they count; then `due` is known."""
        # Rows of resets that a seeded one is to replace are left out.
        observation, reward, terminated, truncated, info = step
        self.reset_seeds.vector_steps += 1
        # Copied, as all that is kept: the next step may write into the same arrays.
        n = len(terminated) if self._is_ale else self.num_envs
        reward = reward.copy() if _is_column(reward, _FLOAT, (n,)) else rewards_of(reward, n)
        # Few rows have flags, which are copied there.
        if not _is_column(terminated, _BOOL, (n,)):
            terminated = flags_of(terminated, n, "terminated")
        if not _is_column(truncated, _BOOL, (n,)):
            truncated = flags_of(truncated, n, "truncated")
        if self.mode is AutoresetMode.SAME_STEP:
            return self._last_and_first_rows(observation, reward, terminated, truncated, info)
        result = self._one_row_each(observation, reward, terminated, truncated, info)
        self.due = []
        if self.any_ended:
            if self.maybe_ended is not None:
                self.reset_seeds.stop()
            self.due = self.reset_seeds.due(self.ended, terminated, info)
        return [result]

    def of_some_resets(
        self, observation: object, info: _Info, chosen: np.ndarray, seeds: Mapping[int, int]
    ) -> StepResult:
        """The rows of a reset of the envs marked in ``chosen`` [N], and no others."""
        self.reset_seeds.give(seeds)
        restarted = _restarted(info)
        first = chosen | restarted
        self.ended[first] = False
        self.any_ended = bool(self.ended.any())
        # Other envs may have begun an episode in the step before.
        leaves = self._keep_newest(observation, self.is_first | first, self.num_envs, None)
        if self._is_ale:
            self._frame_counters.set(info, slice(None))
        declared = self._info.read(info, self.num_envs)
        envs = np.flatnonzero(first)
        rows = {name: column[envs] for name, column in {**leaves, **declared}.items()}
        return StepResult(
            *(envs, rows, np.zeros(len(envs)), np.ones(len(envs), np.bool_)),
            metadata=self._metadata_of(envs, None, info),
            restarts=int(np.count_nonzero(restarted)),
        )

    def marked(self, envs: Sequence[int]) -> np.ndarray:
        """[N] bool: True for some envs."""
        marks = np.zeros(self.num_envs, np.bool_)
        marks[envs] = True
        return marks

    def _one_row_each(
        self,
        observation: object,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: _Info,
    ) -> StepResult:
        """A row for each env; where an episode ended before, it is the first of the next one."""
        env_ids = self._partial_env_ids(info) if self._is_ale else None
        envs = slice(None) if env_ids is None else env_ids
        first: np.ndarray | None = None  # as in nearly every step, which must cost little
        if "worker_restarted" in info:
            first = self.ended[envs] | _restarted(info)
        elif self.any_ended:
            first = self.ended[envs].copy()
        if self._is_ale:
            first = self._first_of_ale(first, env_ids, info)
            self.maybe_ended = _with_lives_left(terminated, info) if env_ids is None else None
        leaves = self._keep_newest(observation, first, len(reward), env_ids)
        ended: np.ndarray = terminated | truncated
        if np.count_nonzero(ended):
            flags = terminated.copy(), truncated.copy()
            result = self._rows(env_ids, leaves, reward, first, info, *flags)
            self.any_ended = True
            self.ended[envs] = ended
        else:
            result = self._rows(env_ids, leaves, reward, first, info)
            if self.any_ended:
                self.ended[envs] = False
                # Of envs that answer a few at a time, others may have ended.
                self.any_ended = env_ids is not None and bool(self.ended.any())
        return result

    def _first_of_ale(
        self, maybe_first: np.ndarray | None, env_ids: np.ndarray | None, info: _Info
    ) -> np.ndarray | None:
        """Rows [n], of those that may begin an episode, that do, by the frame counters."""
        envs = slice(None) if env_ids is None else env_ids
        if maybe_first is None:
            self._frame_counters.set(info, envs)
            return None
        first = self._really_reset(maybe_first, envs, info)
        if env_ids is not None and (maybe_first & ~first).any():
            raise ValueError(
                "life_loss_info=True: expected batch_size equal to num_envs with it, got "
                f"{len(env_ids)} and {self.num_envs}; make the env without one of the two"
            )
        return first

    def _last_and_first_rows(
        self,
        observation: object,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: _Info,
    ) -> list[StepResult]:
        """SAME_STEP: the last rows of the episodes that ended, then a row for each env."""
        env_ids = self._partial_env_ids(info) if self._is_ale else None
        envs = slice(None) if env_ids is None else env_ids
        ended = terminated | truncated
        # Rows of a reset without a last row before: those of a restarted worker, and, where the
        # env answers for few envs at a time, those of the first reset that have waited until now.
        fresh = self.ended[envs] | _restarted(info)
        self.ended[envs] = False
        if self._is_ale:
            ended = self._really_reset(ended, envs, info) & ~fresh
        first = ended | fresh
        leaves = self._keep_newest(observation, first, len(reward), env_ids)
        env = self._overwrites.overwritten(ended)
        if env is not None:
            raise _overwritten(env, "an array that the next step wrote into")
        self.due = []
        if not ended.any():
            return [self._rows(env_ids, leaves, reward, first, info)]
        batch = self._flat(observation) if self._copies else leaves
        flags = reward, terminated, truncated
        last = self._last_rows(np.flatnonzero(ended), env_ids, batch, flags, info)
        self.due = self.reset_seeds.due(ended, terminated, info.get("final_info", {}))
        if not self.due:
            return [last, self._rows(env_ids, leaves, reward, first, info)]
        replaced = self.marked(self.due)
        others = self._rows(env_ids, leaves, reward, first & ~replaced, info)
        if replaced.all():
            return [last]
        kept = others.only(~replaced, np.arange(self.num_envs))
        return [last, kept._replace(restarts=others.restarts)]

    def _rows(
        self,
        env_ids: np.ndarray | None,
        leaves: Mapping[str, np.ndarray],
        reward: np.ndarray,
        first: np.ndarray | None,
        info: _Info,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
    ) -> StepResult:
        """A row for each env, of which those marked in ``first`` [n] begin an episode."""
        if self._info.missing:
            leaves = {**leaves, **self._info.read(info, len(reward))}
        if first is None or not np.count_nonzero(first):
            return StepResult(env_ids, leaves, reward, None, terminated, truncated)
        reward[first] = 0.0
        metadata = self._metadata_of(first.nonzero()[0], env_ids, info)
        restarts = 0
        if "worker_restarted" in info:
            restarts = int(np.count_nonzero(info["worker_restarted"]))
        return StepResult(env_ids, leaves, reward, first, terminated, truncated, metadata, restarts)

    def _last_rows(
        self,
        places: np.ndarray,
        env_ids: np.ndarray | None,
        batch: Mapping[str, np.ndarray],
        flags: tuple[np.ndarray, np.ndarray, np.ndarray],
        info: _Info,
    ) -> StepResult:
        """The true last rows, which a SAME_STEP env returns in its info."""
        reward, terminated, truncated = flags
        leaves = self._final_leaves(places, batch, info)
        declared = self._info.read(cast("_Info", info.get("final_info", {})), len(reward))
        leaves.update((name, column[places]) for name, column in declared.items())
        return StepResult(
            places if env_ids is None else env_ids[places],
            leaves,
            reward[places],
            terminated=terminated[places],
            truncated=truncated[places],
        )

    def _final_leaves(
        self, places: np.ndarray, batch: Mapping[str, np.ndarray], info: _Info
    ) -> dict[str, np.ndarray]:
        """Last observations; ``batch`` are the arrays that the step returned, uncopied."""
        if "final_obs" not in info:
            raise ValueError(
                "an episode ended in SAME_STEP mode: expected its last observation in "
                f"info['final_obs'], got the keys {sorted(info)}; use autoreset mode NEXT_STEP"
            )
        final = info["final_obs"]
        if not (isinstance(final, np.ndarray) and final.dtype.hasobject):
            dense = self._flat(final)
            if any(np.shares_memory(rows, batch[name]) for name, rows in dense.items()):
                raise _overwritten(int(places[0]), "the memory of the reset's observation")
            return {name: rows[places] for name, rows in dense.items()}
        single = [self._flat(final[place]) for place in places]
        if not self._are_copies:
            rows = list(batch.values())
            for place, one in zip(places.tolist(), single, strict=True):
                if self._overwrites.is_lost(place, [one[name] for name in batch], rows):
                    raise _overwritten(place, "the memory of the reset's observation")
        return {
            name: np.stack([exactly(one[name], rows.dtype, rows.shape[1:], name) for one in single])
            for name, rows in batch.items()
        }

    def _metadata_of(
        self, places: np.ndarray, env_ids: np.ndarray | None, info: _Info
    ) -> dict[int, Mapping[str, object]]:
        """Metadata of the episodes that begin: facts about their resets, then the user's."""
        found: dict[int, Mapping[str, object]] = {}
        for place in places.tolist():
            env = place if env_ids is None else int(env_ids[place])
            facts = self.reset_seeds.facts_of(env, info, place)
            found[env] = {**facts, **self._metadata.of(env + self._first_env, info, place)}
        return found

    def _keep_newest(
        self, observation: object, first: np.ndarray | None, n: int, env_ids: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Keep the newest observations, in memory that no env writes to, for policy and writers."""
        layout = self._layout
        if isinstance(layout, str):
            rows = _array(layout, observation)
            self.observation = rows.copy() if self._copies else rows
            leaves = {layout: self.observation}
        else:
            leaves = self._flat(observation)
            if self._copies:
                leaves = {name: rows.copy() for name, rows in leaves.items()}
            self.observation = unflatten(layout, leaves)
        self.leaves = leaves
        self.rows, self._first = n, first
        self.env_ids = env_ids
        return leaves

    def _flat(self, value: object) -> dict[str, np.ndarray]:
        if isinstance(self._layout, str):
            return {self._layout: _array(self._layout, value)}
        return {name: _array(name, leaf) for name, leaf in flatten(self._layout, value)}

    def _partial_env_ids(self, info: _Info) -> np.ndarray | None:
        """Envs of these rows, where the env answers for fewer than all (ale-py `batch_size`)."""
        env_ids = info.get("env_id")
        return None if env_ids is None or len(env_ids) == self.num_envs else np.array(env_ids)

    def _really_reset(self, ended: np.ndarray, envs: np.ndarray | slice, info: _Info) -> np.ndarray:
        """Episodes, of those that seemed to have ended, that did, by the frame counters."""
        if np.count_nonzero(ended):
            ended = ended & ~self._frame_counters.advanced_equally(info, envs)
        self._frame_counters.set(info, envs)
        return ended


def _is_column(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    # As most are; the dtype of others may be equal, and is looked at where they are converted.
    return type(value) is np.ndarray and value.dtype is dtype and value.shape == shape


def _array(name: str, value: Any) -> np.ndarray:
    return value if type(value) is np.ndarray else numbers_in(value, name)


def _restarted(info: _Info) -> np.ndarray:
    """[n] bool: first rows of episodes that begin because their worker died or they raised."""
    return np.asarray(info.get("worker_restarted", False), np.bool_)


def _with_lives_left(terminated: np.ndarray, info: _Info) -> np.ndarray | None:
    """Rows marked terminated while lives are left: the episode may continue."""
    if not np.count_nonzero(terminated):
        return None
    maybe_ended = terminated & (np.asarray(info["lives"]) > 0)
    return maybe_ended if maybe_ended.any() else None


def _overwritten(env: int, got: str) -> ValueError:
    return ValueError(
        f"env {env} ended an episode in SAME_STEP mode: expected its last observation in "
        f"info['final_obs'], got {got}; use autoreset mode NEXT_STEP"
    )
