"""Steps a vector env of any dialect and tells what arrived.

=============  ===================================================================================
autoreset      what the step brings in which an episode ends
=============  ===================================================================================
NEXT_STEP      its last row; the reset's row comes with the next step
SAME_STEP      its last row, from info, and the reset's row at once
DISABLED       its last row; then the env is reset here
(none)         a row marked terminated, and the game goes on: ale-py's ``life_loss_info=True``,
               known by its frame counters, which only a reset sets back
=============  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from stepwell.buffers import Layout, Tree
from stepwell.buffers.spec import flatten, unflatten
from stepwell.collectors.episode_metadata import EpisodeMetadata
from stepwell.collectors.step_result import InfoReader, StepResult
from stepwell.collectors.vector_envs import (
    FrameClock,
    Vector,
    hands_out_copies,
    is_ale,
    mode_of,
    refuse_bad_reset,
    split_step,
)
from stepwell.wrappers.final_observations import HeldFinals, InfoKeeper

__all__ = ["Stepper", "Vector"]

_Info = Mapping[str, Any]


class Stepper:
    """Steps a vector env and keeps what a policy must see next.

    Args:
        envs: The vector env.
        layout: How its observations are nested.
        info: Reads the declared info fields.
        facts: Tells what is noted about an episode that begins.
        first_env: What the user calls the first one of these envs.

    Raises:
        ValueError: The env does not say how it resets its sub-envs.
    """

    def __init__(
        self,
        envs: Vector,
        layout: Layout,
        info: InfoReader,
        facts: EpisodeMetadata,
        first_env: int = 0,
    ) -> None:
        self.envs = envs
        self.mode = mode_of(envs)
        self._layout = layout
        self._info = info
        self._facts = facts
        self._first_env = first_env
        self._send, self._receive = split_step(envs)
        self._is_ale = is_ale(envs)
        self._keeper = InfoKeeper(envs)
        self._copies = hands_out_copies(envs)
        self._finals = HeldFinals()
        self._ended = np.zeros(envs.num_envs, np.bool_)
        self._clock = FrameClock(envs.num_envs)
        self._seeds: dict[int, Mapping[str, object]] = {}
        self._is_waiting = False
        self._was_reset = False
        self.env_ids: np.ndarray | None = None
        self.leaves: Mapping[str, np.ndarray] = {}
        self.observation: Tree = np.empty(0)
        self.is_first = np.zeros(envs.num_envs, np.bool_)
        self.unsure: np.ndarray | None = None
        """[n] bool: newest rows of which only the next step tells whether their episode ended."""

    @property
    def num_envs(self) -> int:
        """Number of envs N."""
        return self.envs.num_envs

    @property
    def newest(self) -> list[StepResult]:
        """The rows from which no action has been chosen yet, without what led to them."""
        nothing = np.zeros(len(self.is_first))
        return [StepResult(self.env_ids, self.leaves, nothing, self.is_first, None, None)]

    def reset(self, seed: int | Sequence[int]) -> list[StepResult]:
        """Reset all envs; env i gets ``seed + i``, or the i-th seed.

        Raises:
            ValueError: These envs cannot be reset now.
        """
        self.drain()
        refuse_bad_reset(self.envs, self._was_reset, bool(self._ended.any()))
        self._keeper.prepare()
        with self._keeper:
            observation, info = self._reset_all(seed)
        if not isinstance(info, Mapping):
            raise TypeError(
                "envs.reset(): expected an info that is a dict of arrays, as gymnasium's vector "
                f"envs return it, got {type(info).__name__}; make the envs with stepwell.make_vec "
                "or gymnasium.make_vec"
            )
        self._was_reset = True
        self._finals = HeldFinals()
        self._ended[:] = True
        self.unsure = None
        self._clock.forget()
        seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
        self._seeds = {env: {"seed": one} for env, one in enumerate(seeds)}
        n = len(info["env_id"]) if self._is_ale else self.num_envs
        flags = np.zeros(n, np.bool_)
        return [self._newest(observation, np.zeros(n), flags, flags, info)]

    def send(self, action: Tree) -> None:
        """Begin a step; other work can be done before `receive`."""
        self._send(action)
        self._is_waiting = True

    def receive(self) -> list[StepResult]:
        """Finish the step: the rows that it brought, in the order in which they count."""
        self._is_waiting = False
        with self._keeper:
            observation, reward, terminated, truncated, info = self._receive()
        # Copied, as all that is kept: the next step may write into the same arrays.
        terminated = np.array(terminated, np.bool_)
        truncated = np.array(truncated, np.bool_)
        reward = _one_each(reward, len(terminated))
        if self.mode is AutoresetMode.SAME_STEP:
            return self._same_step(observation, reward, terminated, truncated, info)
        arrived = self._newest(observation, reward, terminated, truncated, info)
        if self.mode is AutoresetMode.DISABLED and self._ended.any():
            return [arrived, self._reset_ended()]
        return [arrived]

    def _reset_all(self, seed: int | Sequence[int]) -> tuple[Any, _Info]:
        if isinstance(seed, int):  # every vector env takes one number
            return self.envs.reset(seed=seed)
        # ale-py takes an array of seeds and no list, the others vice versa.
        many: Any = np.array(seed, np.int64) if self._is_ale else list(seed)
        try:
            return self.envs.reset(seed=many)
        except (TypeError, ValueError, AssertionError, gymnasium.error.Error) as error:
            kind = type(self.envs.unwrapped).__name__
            raise ValueError(
                f"seeds: expected envs that take a seed each, got {kind} ({error}); make them with "
                f"stepwell.make_vec"
            ) from error

    def gather(self) -> list[StepResult]:
        """Finish what is under way and can be waited for without another action: nothing here."""
        return []

    def drain(self) -> None:
        """Wait for a step that was begun and never received, and forget what it brings."""
        if self._is_waiting:
            self._is_waiting = False
            with self._keeper:
                self._receive()

    def went_on(self, unsure: np.ndarray) -> np.ndarray:
        """Which of the rows before, marked as unsure [n], did not end their episode after all."""
        return unsure & ~self.is_first

    def _newest(
        self,
        observation: object,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: _Info,
    ) -> StepResult:
        """A row for each env; where an episode ended before, it is the first of the next one."""
        env_ids = self._env_ids(info)
        envs = slice(None) if env_ids is None else env_ids
        restarted = _restarted(info)
        first: np.ndarray | None = None  # as in nearly every step, which must cost little
        if restarted is not None or np.count_nonzero(self._ended):
            first = self._ended[envs].copy() if restarted is None else self._ended[envs] | restarted
        if self._is_ale:
            first = self._first_of_ale(first, env_ids, info)
            self.unsure = _unsure(terminated, info) if env_ids is None else None
        leaves = self._see(observation, first, len(reward), env_ids)
        newest = self._arrival(env_ids, leaves, reward, first, info)
        ends = np.count_nonzero(terminated) + np.count_nonzero(truncated) > 0
        if ends or np.count_nonzero(self._ended):
            self._ended[envs] = terminated | truncated
        return replace(newest, terminated=terminated, truncated=truncated) if ends else newest

    def _first_of_ale(
        self, seemed: np.ndarray | None, env_ids: np.ndarray | None, info: _Info
    ) -> np.ndarray | None:
        """Of the episodes that seemed to begin [n] those that did, by the frame counters."""
        envs = slice(None) if env_ids is None else env_ids
        if seemed is None:
            self._clock.set(info, envs)
            return None
        first = self._really_reset(seemed, envs, info)
        if env_ids is not None and (seemed & ~first).any():
            raise ValueError(
                "life_loss_info=True: expected batch_size equal to num_envs with it, got "
                f"{len(env_ids)} and {self.num_envs}; make the env without one of the two"
            )
        return first

    def _same_step(
        self,
        observation: object,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: _Info,
    ) -> list[StepResult]:
        """The last rows of the episodes that ended, then a row for each env."""
        env_ids = self._env_ids(info)
        envs = slice(None) if env_ids is None else env_ids
        ended = terminated | truncated
        restarted = _restarted(info)
        # Rows of a reset that bring no last row: those of a worker begun anew, and, where the env
        # answers for few envs at a time, those of the first reset that have waited until now.
        fresh = self._ended[envs].copy() if restarted is None else self._ended[envs] | restarted
        self._ended[envs] = False
        if self._is_ale:
            ended = self._really_reset(ended, envs, info) & ~fresh
        first = ended | fresh
        leaves = self._see(observation, first, len(reward), env_ids)
        arrivals: list[StepResult] = []
        self._refuse_written(ended)
        if ended.any():
            batch = leaves if self._copies else self._flat(observation)
            arrivals.append(
                self._last_rows(ended, env_ids, batch, reward, terminated, truncated, info)
            )
        return [*arrivals, self._arrival(env_ids, leaves, reward, first, info)]

    def _arrival(
        self,
        env_ids: np.ndarray | None,
        leaves: Mapping[str, np.ndarray],
        reward: np.ndarray,
        first: np.ndarray | None,
        info: _Info,
    ) -> StepResult:
        """A row for each env, of which those marked in ``first`` [n] begin an episode."""
        rows = {**leaves, **self._info.read(info, len(reward))}
        if first is None or not np.count_nonzero(first):
            return StepResult(env_ids, rows, reward, None, None, None)
        restarted = _restarted(info)
        return StepResult(
            env_ids,
            rows,
            np.where(first, 0.0, reward),
            first,
            None,
            None,
            self._metadata(np.flatnonzero(first), env_ids, info),
            0 if restarted is None else int(restarted.sum()),
        )

    def _last_rows(
        self,
        ended: np.ndarray,
        env_ids: np.ndarray | None,
        batch: Mapping[str, np.ndarray],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: _Info,
    ) -> StepResult:
        """The true last rows, which a SAME_STEP env hands out in its info."""
        places = np.flatnonzero(ended)
        last = self._final_leaves(places, batch, info)
        final_info = cast("_Info", info.get("final_info", {}))
        declared = self._info.read(final_info, len(reward))
        rows = {**last, **{name: column[places] for name, column in declared.items()}}
        envs = places if env_ids is None else env_ids[places]
        return StepResult(envs, rows, reward[places], None, terminated[places], truncated[places])

    def _final_leaves(
        self, places: np.ndarray, batch: Mapping[str, np.ndarray], info: _Info
    ) -> dict[str, np.ndarray]:
        """Last observations; the batch is what the step returned, as it came."""
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
        if not self._copies:
            rows = list(batch.values())
            for place, one in zip(places.tolist(), single, strict=True):
                if self._finals.is_lost(place, [one[name] for name in batch], rows):
                    raise _overwritten(place, "the memory of the reset's observation")
        return {
            name: np.stack([one[name] for one in single]).astype(rows.dtype, copy=False)
            for name, rows in batch.items()
        }

    def _refuse_written(self, ended: np.ndarray) -> None:
        """Of the step before: an array that this step wrote into held no last observation."""
        env = self._finals.written(ended)
        if env is not None:
            raise _overwritten(env, "an array that the next step wrote into")

    def _reset_ended(self) -> StepResult:
        """Reset the envs whose episode has ended: DISABLED envs do not do so themselves."""
        envs = np.flatnonzero(self._ended)
        with self._keeper:
            observation, info = self.envs.reset(options={"reset_mask": self._ended.copy()})
        leaves = self._see(observation, self._ended, self.num_envs, None)
        declared = self._info.read(info, self.num_envs)
        self._ended[:] = False
        rows = {name: column[envs] for name, column in {**leaves, **declared}.items()}
        everyone = np.ones(len(envs), np.bool_)
        metadata = self._metadata(envs, None, info)
        return StepResult(envs, rows, np.zeros(len(envs)), everyone, None, None, metadata)

    def _metadata(
        self, places: np.ndarray, env_ids: np.ndarray | None, info: _Info
    ) -> dict[int, Mapping[str, object]]:
        """What is noted about the episodes that begin; seeds, where all envs were reset."""
        found: dict[int, Mapping[str, object]] = {}
        for place in places.tolist():
            env = place if env_ids is None else int(env_ids[place])
            facts = self._facts.of(env + self._first_env, info, place)
            found[env] = {**self._seeds.pop(env, {}), **facts}
        return found

    def _see(
        self, observation: object, first: np.ndarray | None, n: int, env_ids: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Take the observation over, as memory of our own, for the policy and the buffer."""
        leaves = self._flat(observation)
        if not self._copies:
            leaves = {name: rows.copy() for name, rows in leaves.items()}
        self.leaves = leaves
        self.observation = unflatten(self._layout, leaves)
        self.is_first = np.zeros(n, np.bool_) if first is None else first.copy()
        self.env_ids = env_ids
        return leaves

    def _flat(self, value: object) -> dict[str, np.ndarray]:
        return {name: np.asarray(leaf) for name, leaf in flatten(self._layout, value)}

    def _env_ids(self, info: _Info) -> np.ndarray | None:
        """Whose rows these are, where the env answers for fewer than all (ale-py `batch_size`)."""
        env_ids = info.get("env_id") if self._is_ale else None
        return None if env_ids is None or len(env_ids) == self.num_envs else np.array(env_ids)

    def _really_reset(self, ended: np.ndarray, envs: np.ndarray | slice, info: _Info) -> np.ndarray:
        """Of the episodes that seemed to have ended those that did, by the frame counters."""
        if np.count_nonzero(ended):
            ended = ended & ~self._clock.moved_on(info, envs)
        self._clock.set(info, envs)
        return ended


def _restarted(info: _Info) -> np.ndarray | None:
    """[n] bool: first rows of episodes that begin because their worker process died."""
    restarted = info.get("worker_restarted")
    return None if restarted is None else np.asarray(restarted, np.bool_)


def _one_each(reward: object, n: int) -> np.ndarray:
    """Rewards [n] float64 in memory of our own, whatever scalars the envs gave."""
    rewards = np.array(reward, np.float64)
    if rewards.size != n or len(rewards) != n:
        raise ValueError(
            f"rewards: expected one number for each of {n} envs, got shape {rewards.shape}; wrap "
            f"the envs so that they give one number"
        )
    return rewards.reshape(n)


def _unsure(terminated: np.ndarray, info: _Info) -> np.ndarray | None:
    """Rows marked terminated while lives are left: the episode may go on."""
    if not np.count_nonzero(terminated):
        return None
    unsure = terminated & (np.asarray(info["lives"]) > 0)
    return unsure if unsure.any() else None


def _overwritten(env: int, got: str) -> ValueError:
    return ValueError(
        f"env {env} ended an episode in SAME_STEP mode: expected its last observation in "
        f"info['final_obs'], got {got}; use autoreset mode NEXT_STEP"
    )
