"""Rollouts as the tensors of CleanRL's single-file learners."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..replay.advantages import bootstrap_values, row_numbers
from ..replay.rollout import Rollout, check_rollout
from ..sampling.tensors import load_torch

_NAME = "to_cleanrl"


class CleanRLStorage(NamedTuple):
    """The tensors of CleanRL's PPO after its loop over ``num_steps``, all float32.

    Args:
        obs: [T, N, ...]: observations; images from 0 to 255.
        actions: [T, N, ...]; also those of a Discrete space are float32.
        logprobs: [T, N].
        rewards: [T, N].
        dones: [T, N]: 1 where the step *before* the row ended an episode.
        values: [T, N].
        next_obs: [N, ...]: the observation after the last row.
        next_done: [N]: 1 where the last row's step ended an episode.
    """

    # Any: torch.Tensor, which need not be installed.
    obs: Any
    actions: Any
    logprobs: Any
    rewards: Any
    dones: Any
    values: Any
    next_obs: Any
    next_done: Any


def to_cleanrl(
    rollout: Rollout,
    next_done: Any,
    *,
    device: object = None,
    truncation_gamma: float | None = None,
) -> CleanRLStorage:
    """Convert a rollout into the tensors that CleanRL's own loop over ``envs.step`` fills.

    They equal those of the loop bit for bit in every autoreset mode. Under NEXT_STEP that includes
    the rows in which an env resets (``dones`` is 1, the action has no effect, the reward is 0), and
    CleanRL trains on them: leave them out with ``rollout.mask``, or use envs in SAME_STEP mode,
    which have none.

    Args:
        rollout: With an array for observation and action, gathered by a Collector with a policy
            whose extras are ``"log_prob"`` and ``"value"`` [T, N]. If it was made in another
            way, ``next_obs`` is known only for open ends; others have the last row's observation.
        next_done: [N]: ``next_done`` of the rollout before; zeros for the first one, as in CleanRL.
        device: Torch device of the tensors, such as ``"cuda"``; None leaves them on the CPU.
        truncation_gamma: Discount with which the value of the true last observation is added to
            the reward where an episode was truncated or cut. None adds nothing, as CleanRL, which
            treats a time limit as a termination.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: It is no rollout, or observations or actions are dicts or tuples.
        ValueError: An extra is missing, or of another shape, or values to add are missing.

    Example:
        >>> import numpy as np
        >>> import stepwell as sw
        >>> def policy(observation, is_first):
        ...     nothing = np.zeros(len(is_first), np.float32)
        ...     return np.zeros(len(is_first), np.int64), {"log_prob": nothing, "value": nothing}
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, policy, seed=0) as collector:
        ...     storage = to_cleanrl(collector.rollout(16), np.zeros(2))
        >>> storage.obs.shape, storage.actions.dtype, storage.next_done
        (torch.Size([16, 2, 4]), torch.float32, tensor([0., 0.]))
    """
    torch = load_torch(_NAME)
    check_rollout(_NAME, rollout)
    shape = rollout.mask.shape
    for name in ("observation", "action"):
        if not isinstance(getattr(rollout, name), np.ndarray):
            raise TypeError(
                f"{name}: expected an array, as CleanRL keeps one tensor, got a "
                f"{type(getattr(rollout, name)).__name__}; flatten the space with a wrapper"
            )
    ends = rollout.terminated | rollout.truncated | rollout.cut
    before = row_numbers("next_done", next_done, shape[1:])
    dones = np.zeros((shape[0] + 1, *shape[1:]), np.float32)
    dones[0], dones[1:] = before, ends
    rewards = rollout.reward
    if truncation_gamma is not None:
        rewards = _with_last_values(rollout, ends, truncation_gamma)

    def tensor(array: np.ndarray) -> Any:
        # A copy: the rollout's memory may be overwritten. CleanRL keeps everything as float32.
        return torch.tensor(array, dtype=torch.float32, device=device)

    return CleanRLStorage(
        tensor(rollout.observation),
        tensor(rollout.action),
        tensor(_extra(rollout, "log_prob")),
        tensor(rewards),
        tensor(dones[:-1]),
        tensor(_extra(rollout, "value")),
        tensor(_next_observation(rollout)),
        tensor(dones[-1]),
    )


def _extra(rollout: Rollout, name: str) -> np.ndarray:
    found = rollout.extras.get(name)
    if found is None:
        names = ", ".join(map(repr, rollout.extras)) or "none"
        raise ValueError(
            f"{_NAME}: expected the extra {name!r}, got extras {names}; let the policy return it"
        )
    return row_numbers(f"extra {name!r}", found, rollout.mask.shape)


def _with_last_values(rollout: Rollout, ends: np.ndarray, gamma: float) -> np.ndarray:
    """Rewards [T, N] float32 plus the discounted values of true last observations."""
    step, env = rollout.bootstrap.step, rollout.bootstrap.env
    some = ends[step, env] & ~rollout.terminated[step, env]
    rewards = rollout.reward.copy()
    if some.any():
        worth = bootstrap_values(rollout.bootstrap, None)[some]
        rewards[step[some], env[some]] += np.float32(gamma) * worth.astype(np.float32)
    return rewards


def _next_observation(rollout: Rollout) -> np.ndarray:
    """[N, ...]: the observation after the last row, where it is known."""
    count = rollout.num_steps
    whole = rollout.memory.get("observation")
    if whole is not None and len(whole) > count:  # a Collector's, with the newest rows behind
        newest: np.ndarray = whole[count]
        return newest
    found: np.ndarray = rollout.observation[-1].copy()
    step, env = rollout.bootstrap.step, rollout.bootstrap.env
    is_last = step == count - 1
    found[env[is_last]] = rollout.bootstrap.observation[is_last]
    return found
