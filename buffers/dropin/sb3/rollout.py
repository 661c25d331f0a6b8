"""SB3's rollout buffers, whose steps can also be stored in a replay."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from ...base.errors import NotEnoughData
from ...base.number_checks import check_whole
from ...curation.episode_writer import check_replay
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode_buffer import OBSERVED, EpisodeBuffer
from ...spec.spec import Field, Spec
from .step_ring import (
    MAKER,
    DictRolloutBufferSamples,
    RolloutBufferSamples,
    SB3DictRolloutBuffer,
    SB3RolloutBuffer,
    StepRing,
    check_kind,
    registered,
    rows_for,
    samples_class,
    store_at_end,
)

if TYPE_CHECKING:
    import torch


@registered
class RolloutBuffer(StepRing, SB3RolloutBuffer):
    """A rollout for PPO and A2C, whose steps can also be stored in a replay.

    It holds, computes and draws the same as SB3's class, bit for bit.

    Args:
        buffer_size: Steps T of each env.
        observation_space: Of one env: Box, Discrete, MultiDiscrete or MultiBinary.
        action_space: Of one env, the same kinds.
        device: Device of the batches; ``"auto"`` is the GPU where there is one.
        gae_lambda: Weight of longer returns in the advantages, 0 to 1.
        gamma: Discount.
        n_envs: Number of envs N.
        replay: Gets every step, with the extras ``value`` and ``log_prob``. SB3 does not say how an
            episode ended, nor what was seen last: it ends by a cut, and its last row repeats the
            observation before. Rewards are those that SB3 computes, which at the end of a time
            limit include the value of the last observation.

    Raises:
        ValueError: A number is out of range.
        SpecMismatch: The replay holds other rows.

    Example:
        >>> import torch
        >>> buffer = RolloutBuffer(8, spaces.Box(0, 1, (2,)), spaces.Discrete(2), device="cpu")
        >>> for step in range(8):
        ...     seen, action = np.full((1, 2), step / 8, np.float32), np.array([step % 2])
        ...     buffer.add(seen, action, [1.0], [step == 0], torch.zeros(1), torch.zeros(1))
        >>> buffer.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
        >>> round(float(buffer.returns[0, 0]), 3)
        7.726
        >>> [tuple(batch.observations.shape) for batch in buffer.get(4)]
        [(4, 2), (4, 2)]
    """

    observations: Any
    rewards: np.ndarray
    returns: np.ndarray
    episode_starts: np.ndarray
    values: np.ndarray
    log_probs: np.ndarray
    advantages: np.ndarray

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        *,
        replay: SequenceReplayBuffer | None = None,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        check_kind(observation_space, is_dict=isinstance(self, DictRolloutBuffer))
        if replay is not None:
            check_replay("replay", replay)
        self.gae_lambda = gae_lambda
        self.gamma = gamma
        self.generator_ready = False
        self.replay = replay
        self._rows: EpisodeBuffer | None = None
        if replay is not None and (replay.is_bound or replay.path is None):
            self._rows = self._bind(replay)  # a folder is made by the first step
        self.reset()

    def _bind(self, replay: SequenceReplayBuffer) -> EpisodeBuffer:
        """Let the replay hold the steps."""
        more = (
            Field("extra/value", "float32", (), "raw"),
            Field("extra/log_prob", "float32", (), "raw"),
        )
        spec = Spec.from_spaces(self.observation_space, self.action_space, more=(*more, OBSERVED))
        facts = {"maker": MAKER, "actions": "given"}
        replay.bind(spec, self._session(facts))
        store_at_end(replay, self.flush)
        return rows_for(replay, self.n_envs)

    def reset(self) -> None:
        """Begin an empty rollout; stored steps stay in the replay, where episodes continue."""
        lead = self.buffer_size, self.n_envs
        self.observations = self._zeros(lead)
        self.actions = np.zeros((*lead, self.action_dim), self.action_space.dtype)
        for name in ("rewards", "returns", "episode_starts", "values", "log_probs", "advantages"):
            setattr(self, name, np.zeros(lead, np.float32))
        self.generator_ready = False
        super().reset()

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Compute advantages by GAE (https://arxiv.org/abs/1506.02438), and returns from them.

        Args:
            last_values: [N] values of the observations after the last step.
            dones: [N] bool: the last step ended an episode.
        """
        # In SB3's order of operations, which rounding depends on.
        last = last_values.clone().cpu().numpy().flatten()
        following = np.concatenate([self.values[1:], last[None]])
        is_going = 1.0 - np.concatenate(
            [self.episode_starts[1:], np.asarray(dones)[None].astype(np.float32)]
        )
        delta = self.rewards + self.gamma * following * is_going - self.values
        decay = self.gamma * self.gae_lambda * is_going
        newest: Any = 0
        for step in range(self.buffer_size - 1, -1, -1):
            self.advantages[step] = newest = delta[step] + decay[step] * newest
        self.returns = self.advantages + self.values

    def add(
        self,
        obs: Any,
        action: np.ndarray,
        reward: Any,
        episode_start: Any,
        value: torch.Tensor,
        log_prob: torch.Tensor,
    ) -> None:
        """Add one step of all envs; everything is copied.

        Args:
            obs: Observations ``[N, ...]``.
            action: ``[N, ...]``.
            reward: [N].
            episode_start: [N] bool: an episode begins with the observation.
            value: [N] or [N, 1]: values of the observations.
            log_prob: [N] log-probabilities of the actions.
        """
        pos, n = self.pos, self.n_envs
        if self.full:
            raise ValueError(
                f"add: expected at most {self.buffer_size} steps of a rollout, got one more; call "
                f"reset() first"
            )
        if self.replay is not None and self._rows is None:
            self._rows = self._bind(self.replay)
        given, parts = self._parts(obs), self._parts(self.observation_space)
        for key, ring in self._parts(self.observations).items():
            is_number = isinstance(parts[key], spaces.Discrete)
            ring[pos] = np.asarray(given[key]).reshape(n, 1) if is_number else given[key]
        self.actions[pos] = action.reshape(n, self.action_dim)
        self.rewards[pos] = reward
        self.episode_starts[pos] = episode_start
        self.values[pos] = value.detach().cpu().numpy().flatten()
        self.log_probs[pos] = log_prob.detach().cpu().numpy().reshape(-1)
        # The replay gets each step at once: these arrays are overwritten by the next rollout.
        if self._rows is not None:
            self._record(self._rows)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True

    def _record(self, rows: EpisodeBuffer) -> None:
        """Store the newest step."""
        assert self.replay is not None
        pos, n, spec = self.pos, self.n_envs, self.replay.spec
        over = np.flatnonzero(self.episode_starts[pos]).tolist()
        if over:
            rows.cut(over, newest=True)
        action = spec[str(spec.action)]
        names, seen = self._parts(spec.observation), self._parts(self.observations)
        now = self._whole(
            {key: ring[pos].reshape(n, *spec[names[key]].shape) for key, ring in seen.items()}
        )
        none = np.zeros(n, np.bool_)
        extras = {"value": self.values[pos], "log_prob": self.log_probs[pos]}
        taken = self.actions[pos].reshape(n, *action.shape)
        rows.add(now, taken, self.rewards[pos], None, none, none, extras=extras)

    def flush(self) -> None:
        """Store the steps that wait for more in the replay, if there is one."""
        if self._rows is not None and self.replay is not None:
            chunks = self._rows.take(everything=True, newest=True)
            if chunks:
                self.replay.add(chunks)

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """All steps in random order, in batches; NumPy's global generator draws the order.

        Args:
            batch_size: Steps of a batch; None gives one batch of all.

        Returns:
            ``RolloutBufferSamples``, or ``DictRolloutBufferSamples``.

        Raises:
            NotEnoughData: The rollout is not full.
            ValueError: ``batch_size`` is not a whole number >= 1.
        """
        if batch_size is not None:
            check_whole("batch_size", batch_size, 1)
        if not self.full:
            raise NotEnoughData(
                f"the rollout is not full: expected {self.buffer_size} steps, got {self.pos}; add "
                f"the others first"
            )
        return self._batches(batch_size)

    def _batches(self, batch_size: int | None) -> Generator[Any, None, None]:
        count = self.buffer_size * self.n_envs
        order = np.random.permutation(count)  # noqa: NPY002
        if not self.generator_ready:
            flat = self.swap_and_flatten
            seen = self._parts(self.observations).items()
            self.observations = self._whole({key: flat(rows) for key, rows in seen})
            for name in ("actions", "values", "log_probs", "advantages", "returns"):
                setattr(self, name, flat(getattr(self, name)))
            self.generator_ready = True
        step = batch_size or count
        for start in range(0, count, step):
            yield self._get_samples(order[start : start + step])

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        """The steps with these numbers, counted env by env."""
        seen = self._parts(self.observations).items()
        taken = self._whole({key: rows[batch_inds] for key, rows in seen})
        columns = self.values, self.log_probs, self.advantages, self.returns
        kind = DictRolloutBufferSamples if self._is_dict else RolloutBufferSamples
        return samples_class(kind)(
            self._owned(taken),
            self._owned(self.actions[batch_inds].astype(np.float32, copy=False)),
            *(self._owned(each[batch_inds].flatten()) for each in columns),
        )


@registered
class DictRolloutBuffer(RolloutBuffer, SB3DictRolloutBuffer):
    """`RolloutBuffer` for observations that are dicts of arrays."""
