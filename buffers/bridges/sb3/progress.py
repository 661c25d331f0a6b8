"""What Stable-Baselines3 counts while it steps envs, for models that do not step them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from stepwell.buffers.bridges.sb3.loading import is_on_policy, load_sb3

__all__ = ["count_sb3_steps", "note_episodes", "start_logging"]


def count_sb3_steps(model: Any, steps: int, *, total_steps: int | None = None) -> None:
    """Tell a model that envs took steps for it, as its own ``learn`` would note them.

    ``num_timesteps`` grows, and with it the progress that schedules of the learning rate, the
    clip range and the exploration rate follow. DQN's exploration rate and target network are
    brought up to date as often as if SB3 had taken the steps; `to_sb3_rollout` calls this itself.

    Args:
        model: A model of Stable-Baselines3.
        steps: Env steps that were taken since the last call, over all envs: ``report.steps``.
        total_steps: Env steps of the whole training, which progress is measured by. None leaves
            the progress as it is, so that nothing that follows it changes.

    Raises:
        TypeError: It is no model of Stable-Baselines3.
        ValueError: A number is out of range, or DQN is not told the ``total_steps`` by which its
            exploration rate falls.

    Example:
        >>> from stable_baselines3 import DQN
        >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1, exploration_fraction=0.5)
        >>> count_sb3_steps(model, 250, total_steps=1_000)
        >>> model.num_timesteps, round(model.exploration_rate, 3)
        (250, 0.525)
    """
    is_on_policy(model, "count_sb3_steps")
    if steps < 0 or steps % 1:
        raise ValueError(f"steps: expected a whole number >= 0, got {steps}; give report.steps")
    if total_steps is not None and total_steps < 1:
        raise ValueError(f"total_steps: expected a whole number >= 1, got {total_steps}")
    if total_steps is None and hasattr(model, "exploration_schedule"):
        raise ValueError(
            "total_steps: expected the number of env steps by which the exploration rate falls, "
            "got None; give that of the whole training"
        )
    start_logging(model)
    before = model.num_timesteps
    model.num_timesteps = before + int(steps)
    if total_steps is not None:
        model._total_timesteps = int(total_steps)
        model._update_current_progress_remaining(model.num_timesteps, total_steps)
    on_step = getattr(model, "_on_step", None)  # of off-policy models
    if on_step is not None:
        # SB3 calls it once for a step of all of the model's envs.
        for _ in range(model.num_timesteps // model.n_envs - before // model.n_envs):
            on_step()


def start_logging(model: Any) -> None:
    """Give a model what its ``train`` and ``dump_logs`` write to, unless ``learn`` has done so."""
    if not hasattr(model, "_logger"):
        utils = load_sb3("common.utils", "a bridge to Stable-Baselines3")
        # Not set_logger: that counts as the user's own, which learn() would not replace.
        model._logger = utils.configure_logger(model.verbose, model.tensorboard_log, "run", True)
    if model.ep_info_buffer is None:
        model.ep_info_buffer = deque(maxlen=model._stats_window_size)
        model.ep_success_buffer = deque(maxlen=model._stats_window_size)
    if not model.start_time:
        model.start_time = time.time_ns()


def note_episodes(model: Any, returns: Sequence[float], lengths: Sequence[int]) -> None:
    """Add ended episodes to what ``dump_logs`` shows the means of."""
    for total, length in zip(returns, lengths, strict=True):
        model.ep_info_buffer.append({"r": total, "l": length, "t": 0.0})
