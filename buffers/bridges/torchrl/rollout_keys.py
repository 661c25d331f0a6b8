"""A rollout's rows by the keys of a TensorDict, each with what really followed on it."""

from __future__ import annotations

import numpy as np

from stepwell.buffers.bridges.known_steps import following_rows
from stepwell.buffers.bridges.torchrl.nested_keys import (
    FLAGS,
    Key,
    Keyed,
    extra_key,
    keyed,
    leaves_below,
)
from stepwell.buffers.rollout.advantages import Flags
from stepwell.buffers.rollout.rollout import Rollout

__all__ = ["rollout_columns"]


def rollout_columns(rollout: Rollout, rows: str) -> tuple[Keyed, tuple[int, ...]]:
    """The rows by key, and their batch size: ``[M]`` rows with a step, or all ``[N, T]``.

    Raises:
        ValueError: ``rows`` is neither, or an end is marked wrongly.
    """
    if rows not in ("steps", "grid"):
        raise ValueError(f"rows: expected 'steps' or 'grid', got {rows!r}; take one of them")
    flags = rollout.is_first, rollout.terminated, rollout.truncated, rollout.cut, rollout.mask
    Flags(*flags).check_ends(rollout.bootstrap)
    columns = _grid(rollout)
    columns = {key: array.swapaxes(0, 1) for key, array in columns.items()}
    mask = rollout.mask.swapaxes(0, 1)
    if rows == "grid":
        columns["collector", "mask"] = mask
        return columns, mask.shape
    columns = {key: array[mask] for key, array in columns.items()}
    return columns, (rollout.steps,)


def _grid(rollout: Rollout) -> Keyed:
    """All rows, ``[T, N, ...]``; those without a step are whole episodes of no worth."""
    mask = rollout.mask
    stopped = rollout.truncated | rollout.cut
    terminated = rollout.terminated | ~mask
    done = terminated | stopped
    # Nothing is to be added up over the rollout's end, from where the episode goes on.
    cut = rollout.cut.copy()
    cut[-1] |= ~done[-1]
    truncated, done = stopped | cut, done | cut
    behind = dict(leaves_below(("observation",), rollout.bootstrap.observation))
    ends = {"done": done, "terminated": terminated, "truncated": truncated, "cut": cut}
    worked_out = {("advantage",): rollout.advantage, ("value_target",): rollout.returns}
    observation = dict(leaves_below(("observation",), rollout.observation))
    return keyed(
        observation.items(),
        leaves_below(("action",), rollout.action),
        [(("is_init",), rollout.is_first)],
        (((name,), np.zeros_like(done)) for name in FLAGS),
        ((extra_key(name), _blank(rows, mask)) for name, rows in rollout.extras.items()),
        ((key, rows) for key, rows in worked_out.items() if rows is not None),
        (
            (("next", *key), following_rows(rollout, rows, behind[key]))
            for key, rows in observation.items()
        ),
        [(("next", "reward"), _blank(rollout.reward, mask))],
        ((("next", name), rows) for name, rows in ends.items()),
        ((("next", *name.split("/")), rows) for name, rows in rollout.info.items()),
        _next_values(rollout),
    )


def _blank(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Rows [T, N, ...] with zeros where no step was taken: what stands there may be no number."""
    shown = mask.reshape(*mask.shape, *(1 for _ in rows.shape[2:]))
    return np.where(shown, rows, np.zeros((), rows.dtype))


def _next_values(rollout: Rollout) -> list[tuple[Key, np.ndarray]]:
    """The value of what followed, where the policy told it: GAE then needs no network."""
    bootstrap, value = rollout.bootstrap, rollout.extras.get("value")
    is_known = bootstrap.value is not None or not len(bootstrap.step)
    if value is None or value.ndim != 2 or not is_known:
        return []
    following = following_rows(rollout, value, bootstrap.value)
    found = np.where(rollout.terminated | ~rollout.mask, 0, following)
    return [(("next", "state_value"), found.astype(value.dtype))]
