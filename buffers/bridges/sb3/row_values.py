"""Values and log-probabilities of a rollout's rows: those that the policy gave, or the model's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stepwell.buffers.bridges.sb3.device_tensors import DeviceTensors
from stepwell.buffers.bridges.sb3.forms import ObservationForm
from stepwell.buffers.bridges.sb3.loading import load_sb3
from stepwell.buffers.rollout.advantages import bootstrap_values, check_finite
from stepwell.buffers.rollout.rollout import Rollout
from stepwell.buffers.sampling.batch import map_tree

__all__ = ["RowValues", "asked_of_model", "given_by_policy"]

_NAME = "to_sb3_rollout"


class RowValues(NamedTuple):
    """What a model thought of a rollout.

    Args:
        value: [T, N] float32: V of each row's observation.
        log_prob: [T, N] float32: of each row's action.
        behind: [K] float32: V of what followed on each open end.
    """

    value: np.ndarray
    log_prob: np.ndarray
    behind: np.ndarray


def given_by_policy(rollout: Rollout) -> RowValues:
    """What the policy gave while the rollout was gathered.

    Raises:
        ValueError: Something is missing, not float32, or not finite.
    """
    found: list[np.ndarray] = []
    for name in ("value", "log_prob"):
        array = rollout.extras.get(name)
        if array is None:
            names = ", ".join(map(repr, rollout.extras)) or "none"
            raise ValueError(
                f"{_NAME}: expected the extra {name!r} beside the rows, got extras {names}; "
                f"collect with sb3_policy(model), or pass ask_model=True"
            )
        if array.shape != rollout.mask.shape or array.dtype != np.float32:
            raise ValueError(
                f"extra {name!r}: expected float32 {rollout.mask.shape}, as Stable-Baselines3 "
                f"keeps it, got {array.dtype} {array.shape}; convert it in the policy"
            )
        check_finite(f"extra {name!r}", array, rollout.mask, "see what the policy computed")
        found.append(array)
    behind = bootstrap_values(rollout.bootstrap, None)
    if len(behind) and behind.dtype != np.float32:
        raise ValueError(
            f"bootstrap.value: expected float32, as Stable-Baselines3 keeps values, got "
            f"{behind.dtype}; convert it in the policy's value()"
        )
    return RowValues(found[0], found[1], behind.astype(np.float32, copy=False))


def asked_of_model(rollout: Rollout, model: Any, action: np.ndarray) -> RowValues:
    """What the model thinks now; a row of all envs at a time, as SB3 does.

    Args:
        rollout: The rows.
        model: An on-policy model.
        action: [T, N, A] the actions of which the probabilities are wanted.
    """
    torch = load_sb3("common.buffers", _NAME).th
    form, to_tensors = ObservationForm(model.observation_space), DeviceTensors(model.device)
    observation = form.fit(rollout.observation, 2)
    behind = form.fit(rollout.bootstrap.observation, 1)
    policy = model.policy
    policy.set_training_mode(False)
    value = np.zeros(rollout.mask.shape, np.float32)
    log_prob = np.zeros_like(value)
    is_discrete = not model.action_space.shape
    with torch.no_grad():
        for t in range(rollout.num_steps):
            row = to_tensors({"seen": _row(observation, t), "chosen": action[t]})
            # As train() hands them over.
            chosen = row["chosen"].long().flatten() if is_discrete else row["chosen"].float()
            values, log_probs, _ = policy.evaluate_actions(row["seen"], chosen)
            value[t], log_prob[t] = values.cpu().numpy().ravel(), log_probs.cpu().numpy()
        follows = np.zeros(0, np.float32)
        if len(rollout.bootstrap.step):
            follows = policy.predict_values(to_tensors(behind)).cpu().numpy().ravel()
    return RowValues(value, log_prob, follows)


def _row(tree: Any, t: int) -> Any:
    """Row t of arrays [T, ...]."""
    return map_tree(lambda array: array[t], tree)
