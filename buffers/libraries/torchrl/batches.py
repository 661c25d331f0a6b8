"""Batches and rollouts as TensorDicts, with the keys, shapes and dtypes of TorchRL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Literal

import numpy as np

from ...base.optional_libraries import load_library
from ...replay.advantages import RowFlags
from ...replay.minibatches import Minibatch
from ...replay.rollout import Rollout
from ...sampling.batch import Batch, TransitionBatch
from ...sampling.tensors import ToTensors, load_torch
from ..transitions import following_rows, leaves_below, nested

# Numbers of a row that TorchRL wants as [..., 1]; it wants log-probabilities as [...].
_WIDE = frozenset(
    "reward done terminated truncated cut is_init steps_to_next_obs state_value advantage "
    "value_target".split()
)


def to_tensordict(
    data: TransitionBatch | Batch | Rollout | Minibatch,
    *,
    one_hot: int | None = None,
    rows: Literal["steps", "grid"] = "steps",
    time_major: bool = False,
    device: object = None,
) -> Any:
    """Convert a batch or rollout to a TensorDict for TorchRL's losses.

    =====================  ==========================  =============================================
    of                     batch size                  with observation, action and ``"next"``
    =====================  ==========================  =============================================
    transitions            ``[B]``                     ``steps_to_next_obs``, ``index``,
                                                       ``priority_weight``
    sequences, episodes    ``[B, T]``                  ``is_init``, ``("collector", "mask")``,
                                                       ``index``, ``priority_weight``
    a rollout              ``[M]`` or ``[N, T]``       ``is_init``, ``state_value``, also below
                                                       ``"next"``
    a minibatch of one     ``[B]``                     ``advantage``, ``value_target``
    =====================  ==========================  =============================================

    Rewards are float32 and flags bool, ``[..., 1]``; extras are at the root, ``log_prob`` as
    ``action_log_prob [...]`` and ``value`` as ``state_value [..., 1]``; info fields below
    ``"next"``; nested observations below ``"observation"``. A cut counts as a truncation, as
    TorchRL knows no cuts, and is marked as ``("next", "cut")`` too.

    Tensors share the arrays' memory where possible: a later draw with ``out=`` overwrites them.

    Args:
        data: Sequences and episodes drawn with ``align="transition"``.
        one_hot: Number n of actions: actions become one-hot ``[..., n]`` int64, as a loss with
            ``action_space="one_hot"`` wants them; else they are ``[...]`` int64.
        rows: For a rollout: ``"steps"`` gives the M rows with a step, env after env; ``"grid"`` all
            rows ``[N, T]``, for recurrent policies: leave out of the loss those that
            have ``("collector", "mask")`` False. Either way ``("next", "done")`` is set where
            GAE must stop, and every row has its true next observation.
        time_major: The batch was drawn with ``time_major=True``.
        device: Torch device of the tensors; None leaves them on the CPU.

    Returns:
        A ``tensordict.TensorDict``. In a rollout, if the MDP terminated and the last observation
        is not known, as under SAME_STEP, the next one is zeros: its value is not used.

    Raises:
        ImportError: TensorDict is not installed, or too old.
        ValueError: A field is missing, or two have the same key.
        TypeError: ``data`` has another type.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> batch = to_tensordict(replay.sample_transitions(32, n_step=3))
        >>> batch["observation"].shape, batch["action"].shape, batch["next", "reward"].shape
        (torch.Size([32, 4]), torch.Size([32]), torch.Size([32, 1]))
    """
    load_tensordict("to_tensordict")
    if isinstance(data, TransitionBatch):
        columns, shape = _transition_columns(data), data.terminated.shape
    elif isinstance(data, Batch):
        columns = sequence_columns(data, time_major)
        shape = columns["collector", "mask"].shape
    elif isinstance(data, Rollout):
        columns, shape = _rollout_columns(data, rows)
    elif isinstance(data, Minibatch):
        columns, shape = _minibatch_columns(data), data.mask.shape
    else:
        raise TypeError(
            f"to_tensordict: expected a TransitionBatch, Batch, Rollout or Minibatch, got a "
            f"{type(data).__name__}; draw or collect one"
        )
    return as_tensordict(columns, shape, one_hot=one_hot, device=device)


def as_tensordict(
    columns: Keyed, shape: tuple[int, ...], *, one_hot: int | None, device: object = None
) -> Any:
    """A TensorDict of some batch size; numbers of a row get an axis where TorchRL wants one."""
    shaped = {key: _shaped(key, array, len(shape), one_hot) for key, array in columns.items()}
    tensors: Mapping[Key, Any] = _shared(shaped) if device is None else shaped
    tree = nested(tensors)
    if any(isinstance(array, np.ndarray) for array in tensors.values()):
        tree = ToTensors(device)(tree)
    return load_tensordict("to_tensordict").TensorDict(tree, list(shape))


@cache
def load_tensordict(wanted_for: str) -> ModuleType:
    """The library ``tensordict``, after checking TorchRL's version once."""
    install = "'stepwell[torchrl]'"
    load_library("torchrl", wanted_for, install=install, at_least="0.14")
    return load_library("tensordict", wanted_for, install=install)


def _shared(columns: Keyed) -> Mapping[Key, Any]:
    """Plain arrays as tensors that share memory; `ToTensors` converts the others."""
    from_numpy = load_torch("to_tensordict").from_numpy
    return {key: from_numpy(array) if _is_plain(array) else array for key, array in columns.items()}


def _is_plain(array: np.ndarray) -> bool:
    flags, dtype = array.flags, array.dtype
    is_number = dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative
    return is_number and flags.c_contiguous and flags.writeable


def _shaped(key: Key, array: np.ndarray, axes: int, one_hot: int | None) -> np.ndarray:
    """An array as TorchRL wants it under its key."""
    if key[0] == "action":
        return _action(key, array, axes, one_hot)
    is_wide = key[-1] in _WIDE and (len(key) == 1 or key[:-1] == ("next",))
    return array[..., None] if is_wide and array.ndim == axes else array


def _action(key: Key, array: np.ndarray, axes: int, one_hot: int | None) -> np.ndarray:
    is_choice = array.ndim == axes and array.dtype.kind in "iu"
    if one_hot is None:
        # Losses index the value with it, which supports no other integers.
        return array.astype(np.int64, copy=False) if is_choice else array
    name = "/".join(key)
    if not is_choice:
        raise ValueError(
            f"one_hot: expected {name} to be one whole number a row, got {array.dtype} "
            f"{array.shape[axes:]}; leave one_hot out"
        )
    wrong = (array < 0) | (array >= one_hot)
    if wrong.any():
        raise ValueError(
            f"one_hot: expected {name} from 0 to {one_hot - 1}, got {array[wrong][0]}; give the "
            f"number of actions that there are"
        )
    found: np.ndarray = array[..., None] == np.arange(one_hot)
    return found.astype(np.int64)


def _transition_columns(batch: TransitionBatch) -> Keyed:
    ends = _ends(batch.terminated, batch.truncated, batch.cut)
    more = {"steps_to_next_obs": batch.steps, "index": batch.ids, "priority_weight": batch.weights}
    return _steps(batch, ends, {(name,): array for name, array in more.items()})


def sequence_columns(batch: Batch, time_major: bool) -> Keyed:
    """Sequences ``[B, T]`` by key."""
    if batch.state:
        raise ValueError(
            f"state: expected none, as TorchRL wants a state in each row, got "
            f"{', '.join(batch.state)}; leave state= out: extras have it row by row"
        )
    axes = (1, 0) if time_major else (0, 1)
    shape = batch.mask.transpose(axes).shape
    if shape[0] != len(batch.ids):
        raise ValueError(
            f"time_major: expected {len(batch.ids)} sequences first, got arrays {shape}; give "
            f"time_major={not time_major}, as they were drawn"
        )
    ends = _ends(batch.terminated, batch.truncated, batch.cut)
    more = {("is_init",): batch.is_first, ("collector", "mask"): batch.mask}
    columns = _steps(batch, ends, more)
    if time_major:
        columns = {key: array.swapaxes(0, 1) for key, array in columns.items()}
    columns["index",] = np.broadcast_to(batch.ids[:, None], shape)
    columns["priority_weight",] = np.broadcast_to(batch.weights[:, None], shape)
    return columns


def _minibatch_columns(rows: Minibatch) -> Keyed:
    if rows.state is not None or rows.mask.ndim != 1:
        raise ValueError(
            "minibatch: expected rows [B], got sequences; give the whole rollout, with rows='grid'"
        )
    ends = _ends(rows.terminated, rows.truncated, np.zeros_like(rows.truncated))
    worked_out = {("advantage",): rows.advantage, ("value_target",): rows.returns}
    return _keyed(
        leaves_below(("observation",), rows.observation),
        leaves_below(("action",), rows.action),
        [(("is_init",), rows.is_first), (("next", "reward"), rows.reward)],
        ((("next", name), ends[name]) for name in FLAGS),
        ((_extra_key(name), array) for name, array in rows.extras.items()),
        ((("next", *name.split("/")), array) for name, array in rows.info.items()),
        ((key, array) for key, array in worked_out.items() if array is not None),
    )


def _steps(batch: Batch | TransitionBatch, ends: Mapping[str, np.ndarray], more: Keyed) -> Keyed:
    """The keys that transitions and sequences share."""
    for name in ("observation", "next_observation", "action", "reward"):
        if getattr(batch, name) is None:
            raise ValueError(
                f"{name}: expected it in the batch, got None; name it in fields=, and draw "
                f'sequences with align="transition"'
            )
    return _keyed(
        leaves_below(("observation",), batch.observation),
        leaves_below(("action",), batch.action),
        (((name,), np.zeros_like(ends["done"])) for name in FLAGS),
        more.items(),
        ((_extra_key(name), array) for name, array in batch.extras.items()),
        leaves_below(("next", "observation"), batch.next_observation),
        [(("next", "reward"), batch.reward)],
        ((("next", name), array) for name, array in ends.items()),
        ((("next", *name.split("/")), array) for name, array in batch.info.items()),
    )


def _ends(terminated: np.ndarray, truncated: np.ndarray, cut: np.ndarray) -> dict[str, np.ndarray]:
    stopped = truncated | cut
    return {
        "done": terminated | stopped,
        "terminated": terminated,
        "truncated": stopped,
        "cut": cut,
    }


Key = tuple[str, ...]
Keyed = dict[Key, np.ndarray]
"""Arrays by the path of keys that leads to them."""

FLAGS = ("done", "terminated", "truncated")

# Extras that TorchRL's losses read, by the names that Stepwell's learners use.
_EXTRAS: dict[str, Key] = {"log_prob": ("action_log_prob",), "value": ("state_value",)}
_NAMES = {key: name for name, key in _EXTRAS.items()}


def _extra_key(name: str) -> Key:
    """The key of an extra: ``log_prob`` is ``action_log_prob``, ``value`` is ``state_value``."""
    return _EXTRAS.get(name, tuple(name.split("/")))


def extra_name(key: Key) -> str:
    """The extra of a key: of ``action_log_prob`` it is ``log_prob``."""
    return _NAMES.get(key, "/".join(key))


def key_text(key: Key) -> str:
    """A key in Python notation: a tuple, or just the text of a key of one part."""
    first, *others = key
    return repr(key) if others else repr(first)


def _keyed(*groups: Iterable[tuple[Key, np.ndarray]]) -> Keyed:
    """Arrays by their keys."""
    found: Keyed = {}
    for key, array in (pair for group in groups for pair in group):
        if key in found:
            raise ValueError(_taken(key))
        found[key] = array
    for key in found:
        if any(key[:place] in found for place in range(1, len(key))):
            raise ValueError(_taken(key))
    return found


def _taken(key: Key) -> str:
    return (
        f"key {key_text(key)}: expected one field of that name, got two; leave an extra or info "
        f"field out with fields=, or name it otherwise"
    )


def _rollout_columns(rollout: Rollout, rows: str) -> tuple[Keyed, tuple[int, ...]]:
    """The rows by key, and their batch size: ``[M]`` rows with a step, or all ``[N, T]``."""
    if rows not in ("steps", "grid"):
        raise ValueError(f"rows: expected 'steps' or 'grid', got {rows!r}; take one of them")
    flags = rollout.is_first, rollout.terminated, rollout.truncated, rollout.cut, rollout.mask
    RowFlags(*flags).check_ends(rollout.bootstrap)
    columns = _grid(rollout)
    columns = {key: array.swapaxes(0, 1) for key, array in columns.items()}
    mask = rollout.mask.swapaxes(0, 1)
    if rows == "grid":
        columns["collector", "mask"] = mask
        return columns, mask.shape
    columns = {key: array[mask] for key, array in columns.items()}
    return columns, (rollout.steps,)


def _grid(rollout: Rollout) -> Keyed:
    """All rows, ``[T, N, ...]``; rows without a step are episodes of one step with reward 0."""
    mask = rollout.mask
    stopped = rollout.truncated | rollout.cut
    terminated = rollout.terminated | ~mask
    done = terminated | stopped
    # GAE must stop at the rollout's end, even where the episode continues.
    cut = rollout.cut.copy()
    cut[-1] |= ~done[-1]
    truncated, done = stopped | cut, done | cut
    behind = dict(leaves_below(("observation",), rollout.bootstrap.observation))
    ends = {"done": done, "terminated": terminated, "truncated": truncated, "cut": cut}
    worked_out = {("advantage",): rollout.advantage, ("value_target",): rollout.returns}
    observation = dict(leaves_below(("observation",), rollout.observation))
    return _keyed(
        observation.items(),
        leaves_below(("action",), rollout.action),
        [(("is_init",), rollout.is_first)],
        (((name,), np.zeros_like(done)) for name in FLAGS),
        ((_extra_key(name), _blank(rows, mask)) for name, rows in rollout.extras.items()),
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
    """Rows [T, N, ...] with zeros where no step was taken: they may hold nan."""
    shown = mask.reshape(*mask.shape, *(1 for _ in rows.shape[2:]))
    return np.where(shown, rows, np.zeros((), rows.dtype))


def _next_values(rollout: Rollout) -> list[tuple[Key, np.ndarray]]:
    """The values of next observations, where the policy returned them; GAE uses them."""
    bootstrap, value = rollout.bootstrap, rollout.extras.get("value")
    is_known = bootstrap.value is not None or not len(bootstrap.step)
    if value is None or value.ndim != 2 or not is_known:
        return []
    following = following_rows(rollout, value, bootstrap.value)
    found = np.where(rollout.terminated | ~rollout.mask, 0, following)
    return [(("next", "state_value"), found.astype(value.dtype))]
