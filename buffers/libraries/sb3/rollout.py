"""Rollouts for the on-policy algorithms of Stable-Baselines3."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from ...replay.advantages import RowFlags, bootstrap_values, check_finite
from ...replay.rollout import Rollout, check_rollout
from ...sampling.batch import map_tree
from .models import (
    ActionForm,
    DeviceTensors,
    ObservationForm,
    check_on_policy,
    count_sb3_steps,
    load_sb3,
)

_NAME = "to_sb3_rollout"
_RAW_ACTION = "raw_action"  # the unclipped action, which the log-probability refers to


def to_sb3_rollout(
    rollout: Rollout, model: Any, *, ask_model: bool = False, total_steps: int | None = None
) -> Any:
    """Replace a model's ``rollout_buffer`` by a rollout, ready for ``model.train()``.

    The buffer holds the same as after the model's own ``collect_rollouts``: advantages are computed
    by SB3 itself, and where an episode was truncated or cut ``gamma`` times the value of
    its true last observation is added to the reward. Rows from which no step was taken (those in
    which a NEXT_STEP env resets) are left out; the buffer then has one column with the other rows.

    The model's step counter and its statistics of ended episodes for ``dump_logs`` are updated. Its
    number of envs does not matter: they are not stepped.

    Args:
        rollout: Gathered with `sb3_policy`, or with a policy whose extras are ``"value"`` and
            ``"log_prob"`` [T, N] float32, and ``"raw_action"`` where it clips its actions. The
            buffer shares the observations until it is trained on, where every row has a step.
        model: A PPO or A2C of Stable-Baselines3 with ``n_steps`` equal to the rollout's.
        ask_model: Compute values and log-probabilities with the model as it is now; correct only if
            it was not trained since the rollout was collected. By default the policy's extras are
            used.
        total_steps: Env steps of the whole training, for the model's schedules; None
            leaves its progress unchanged.

    Returns:
        The new ``model.rollout_buffer``: SB3's ``RolloutBuffer`` or ``DictRolloutBuffer``, full.

    Raises:
        ImportError: Stable-Baselines3 is not installed, or too old.
        TypeError: It is not a Rollout, or the model is off-policy or recurrent.
        ValueError: Observations, actions or ``n_steps`` are not the model's, values are missing, or
            no step was taken; nothing was changed.

    Example:
        >>> import stepwell as sw
        >>> from stable_baselines3 import PPO
        >>> from stepwell.buffers.libraries.sb3.policy import sb3_policy
        >>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)
        >>> with sw.Collector(envs, sb3_policy(model), seed=0) as collector:
        ...     for update in range(3):
        ...         buffer = to_sb3_rollout(collector.rollout(32), model, total_steps=384)
        ...         model.train()
        >>> buffer.size() == collector.report.steps, model.num_timesteps > 350
        (True, True)
    """
    buffers = load_sb3("common.buffers", _NAME)
    check_rollout(_NAME, rollout)
    check_on_policy(model, _NAME)
    kind = _kind_of_buffer(model, buffers)
    arrays, last_value, is_over = _rows_of(rollout, model, ask_model)
    buffer = _filled_class(kind)(
        rollout.num_steps,
        model.observation_space,
        model.action_space,
        device=model.device,
        gae_lambda=model.gae_lambda,
        gamma=model.gamma,
        n_envs=rollout.num_envs,
    )
    buffer.whole_shape = model.n_steps, model.n_envs
    for name, array in arrays.items():
        setattr(buffer, name, array)
    buffer.pos, buffer.full = buffer.buffer_size, True
    buffer.compute_returns_and_advantage(buffers.th.from_numpy(last_value), is_over)
    if not rollout.mask.all():
        _leave_out(buffer, rollout.mask, [*arrays, "advantages", "returns"])
    count_sb3_steps(model, rollout.steps, total_steps=total_steps)
    for total, length in zip(rollout.episode_returns, rollout.episode_lengths, strict=True):
        model.ep_info_buffer.append({"r": total, "l": length, "t": 0.0})  # for `dump_logs`
    model.rollout_buffer = buffer
    return buffer


def _rows_of(
    rollout: Rollout, model: Any, ask_model: bool
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Arrays [T, N, ...] by SB3's names, values [N] behind the last row, ends [N] with that row."""
    # They are zeros where there is no step. The model is not changed.
    if rollout.num_steps != model.n_steps:
        raise ValueError(
            f"{_NAME}: expected a rollout of n_steps={model.n_steps} rows, as the model does, got "
            f"{rollout.num_steps}; collect {model.n_steps}, or make the model with "
            f"n_steps={rollout.num_steps}"
        )
    mask = rollout.mask
    if not mask.any():
        raise ValueError(
            f"{_NAME}: expected a row from which a step was taken, got none in "
            f"{rollout.num_steps} rows; collect longer rollouts"
        )
    observation = ObservationForm(model.observation_space).fit(
        rollout.observation, 2, for_buffer=True
    )
    form = ActionForm(model.action_space)
    action = form.fit(rollout.action, 2)
    raw = rollout.extras.get(_RAW_ACTION)
    if form.is_box and raw is not None:
        # Computed in float32; a space of float64 holds it exactly.
        if raw.dtype == np.float32:
            raw = raw.astype(form.dtype, copy=False)
        action = form.fit(raw, 2, name=f"extra {_RAW_ACTION!r}")
    flags = RowFlags(rollout.is_first, rollout.terminated, rollout.truncated, rollout.cut, mask)
    flags.check_ends(rollout.bootstrap)
    check_finite("reward", rollout.reward, mask, "correct the env, or the rollout's reward")
    if ask_model:
        value, log_prob, behind = _values_by_model(rollout, model, action)
    else:
        value, log_prob, behind = _values_by_policy(rollout)
    # To the rewards come the values of true last observations. An env's open end at the rollout's
    # end is not a reward yet: SB3 takes its value apart.
    reward = np.where(mask, rollout.reward, 0).astype(np.float32)
    last_value = np.zeros(rollout.num_envs, np.float32)
    step, env = rollout.bootstrap.step, rollout.bootstrap.env
    is_ended = flags.ends[step, env]
    some = is_ended & ~rollout.terminated[step, env]
    reward[step[some], env[some]] += np.float32(model.gamma) * behind[some]
    last_value[env[~is_ended]] = behind[~is_ended]
    episode_start = rollout.is_first.astype(np.float32)
    episode_start[1:][flags.ends[:-1]] = 1
    arrays = {
        "observations": observation,
        "actions": action,
        "rewards": reward,
        "episode_starts": episode_start,
        "values": np.where(mask, value, np.float32(0)),
        "log_probs": np.where(mask, log_prob, np.float32(0)),
    }
    return arrays, last_value, flags.ends[-1] | ~mask[-1]


def _kind_of_buffer(model: Any, buffers: Any) -> Any:
    """SB3's class of the model's buffer."""
    buffer = model.rollout_buffer
    kinds = buffers.RolloutBuffer, buffers.DictRolloutBuffer
    for kind in kinds:
        if type(buffer) in (kind, _filled_class(kind)):
            return kind
    raise TypeError(
        f"{_NAME}: expected a model with SB3's RolloutBuffer or DictRolloutBuffer, got one with "
        f"{type(buffer).__name__}, which may keep more than that; make the model without "
        f"rollout_buffer_class"
    )


@functools.cache
def _filled_class(kind: Any) -> Any:
    """A subclass that restores the model's own size when the model collects itself."""

    def reset(self: Any) -> None:
        self.buffer_size, self.n_envs = getattr(
            self, "whole_shape", (self.buffer_size, self.n_envs)
        )
        kind.reset(self)

    return type(f"Filled{kind.__name__}", (kind,), {"reset": reset})


def _leave_out(buffer: Any, is_kept: np.ndarray, names: Sequence[str]) -> None:
    """Keep the selected rows of [T, N] only, as one column, env by env."""
    # No advantage depends on the others: the row before one without a step ended its episode.
    env, step = np.nonzero(is_kept.T)

    def kept(array: np.ndarray) -> np.ndarray:
        found: np.ndarray = array[step, env][:, None]
        return found

    for name in names:
        setattr(buffer, name, map_tree(kept, getattr(buffer, name)))
    buffer.buffer_size, buffer.n_envs = len(step), 1
    buffer.pos = len(step)


# float32: values of each row's observation and log-probabilities of its action [T, N], and values
# [K] of what followed on each open end.
_RowValues: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"


def _values_by_policy(rollout: Rollout) -> _RowValues:
    """Values and log-probabilities from the policy's extras."""
    found: list[np.ndarray] = []
    for name in ("value", "log_prob"):
        array = rollout.extras.get(name)
        if array is None:
            names = ", ".join(map(repr, rollout.extras)) or "none"
            raise ValueError(
                f"{_NAME}: expected the extra {name!r}, got extras {names}; "
                f"collect with sb3_policy(model), or pass ask_model=True"
            )
        if array.shape != rollout.mask.shape or array.dtype != np.float32:
            raise ValueError(
                f"extra {name!r}: expected float32 {rollout.mask.shape}, as Stable-Baselines3 "
                f"keeps it, got {array.dtype} {array.shape}; convert it in the policy"
            )
        check_finite(f"extra {name!r}", array, rollout.mask, "check the policy's computation")
        found.append(array)
    behind = bootstrap_values(rollout.bootstrap, None)
    if len(behind) and behind.dtype != np.float32:
        raise ValueError(
            f"bootstrap.value: expected float32, as Stable-Baselines3 keeps values, got "
            f"{behind.dtype}; convert it in the policy's value()"
        )
    return found[0], found[1], behind.astype(np.float32, copy=False)


def _values_by_model(rollout: Rollout, model: Any, action: np.ndarray) -> _RowValues:
    """The present model's values and log-probabilities of actions [T, N, A], one row at a time."""
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
            row = to_tensors({"seen": map_tree(itemgetter(t), observation), "chosen": action[t]})
            # As train() passes them.
            chosen = row["chosen"].long().flatten() if is_discrete else row["chosen"].float()
            values, log_probs, _ = policy.evaluate_actions(row["seen"], chosen)
            value[t], log_prob[t] = values.cpu().numpy().ravel(), log_probs.cpu().numpy()
        follows = np.zeros(0, np.float32)
        if len(rollout.bootstrap.step):
            follows = policy.predict_values(to_tensors(behind)).cpu().numpy().ravel()
    return value, log_prob, follows
