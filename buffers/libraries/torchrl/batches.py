"""Batches and rollouts as TensorDicts, with the keys of TorchRL, and its rows as episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Literal

import numpy as np

from ...base.optional_libraries import load_library
from ...curation.episode_writer import EpisodeWriter, TransitionColumns
from ...replay.advantages import RowFlags
from ...replay.minibatches import Minibatch
from ...replay.replay import SequenceReplayBuffer
from ...replay.rollout import Rollout
from ...sampling.batch import Batch, TransitionBatch
from ...sampling.tensors import ToTensors, load_torch
from ...spec.spec import as_array, marks
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


_SOURCE = "from_tensordict"
# Keys that buffers and collectors add, and that hold no data of the env.
_IGNORED = {("index",), ("priority_weight",), ("collector", "traj_ids"), ("collector", "mask")}
_OWN_AXIS = {"reward", "done", "terminated", "truncated", "cut", "is_init", "state_value"}


def from_tensordict(
    recorded: Any,
    replay: SequenceReplayBuffer,
    *,
    stream: int = 0,
    one_hot_action: bool = False,
) -> int:
    """Store a rollout of TorchRL as episodes, the inverse of `to_tensordict`.

    A key both at the root and below ``"next"`` is an observation, one at the root alone the
    action or an extra, one below ``"next"`` alone the reward, a flag or an info field. Where there
    is a plain ``"observation"``, another key in both places, such as those of ``StepCounter``,
    ``RewardSum``, ``TargetReturn`` and primers, is an extra and an info field. Keys that
    belong to a buffer (``index``, ``("collector", "traj_ids")``) are not stored. The next
    observation of every row must be the observation of the row after it, or an episode's last
    one.

    For several batches of one collector use `as_torchrl_replay`, which continues open episodes.

    Args:
        recorded: A TensorDict ``[T]`` of one env, or ``[N, T]`` of N, as ``env.rollout`` and
            collectors give them. If the last step does not end an episode, the episode is cut. With
            ``is_init`` an episode whose reset is not there is stored as one that lacks its first
            row.
        replay: The replay to write to; its Spec must match if it is bound.
        stream: Stream of the first env; those of the others follow.
        one_hot_action: Actions are one-hot, ``[..., n]``, and are stored as numbers from 0 on; else
            as they are.

    Returns:
        How many env steps were stored.

    Raises:
        ImportError: TensorDict is not installed, or too old.
        SpecMismatch: The replay holds other rows.
        ValueError: A key is missing or unknown, or steps are not consecutive; nothing was stored.
        TypeError: It is not a TensorDict of plain tensors.

    Example:
        >>> import stepwell as sw
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> collector = sw.Collector(envs, sw.RandomPolicy(), seed=0)
        >>> from stepwell.buffers.libraries.torchrl.batches import to_tensordict
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> recorded = to_tensordict(collector.rollout(steps=50))
        >>> from_tensordict(recorded, replay) == len(recorded)
        True
    """
    streams = streams_of(recorded, replay, one_hot_action)
    shifted = {stream + env: columns for env, columns in streams.items()}
    return EpisodeWriter(replay, source=_SOURCE).add_transitions(shifted)


def streams_of(
    recorded: Any, replay: SequenceReplayBuffer, one_hot_action: bool
) -> dict[int, TransitionColumns]:
    """The transitions of each env."""
    tensordict = load_library("tensordict", _SOURCE, install="'stepwell[torchrl]'")
    if not isinstance(recorded, tensordict.TensorDictBase):
        raise TypeError(
            f"{_SOURCE}: expected a TensorDict, got a {type(recorded).__name__}; give what "
            f"env.rollout or a collector gave"
        )
    if recorded.batch_dims not in (1, 2):
        raise ValueError(
            f"{_SOURCE}: expected batch size [T] or [N, T], got {list(recorded.batch_size)}; "
            f"reshape it, time last"
        )
    whole = recorded if recorded.batch_dims == 2 else recorded.unsqueeze(0)
    table = _arrays(whole)
    _check_whole(table)
    named = _named(table, one_hot_action)
    flags = _flags(table)
    # TensorDicts have an axis of length 1 where a replay of another source may have none.
    if replay.is_bound:
        named = {part: _as_bound(replay, columns) for part, columns in named.items()}

    def of(part: str, env: int) -> dict[str, np.ndarray]:
        return {name: rows[env] for name, rows in named[part].items()}

    return {
        env: TransitionColumns(
            of("fields", env),
            of("next_observation", env),
            flags["terminated"][env],
            flags["truncated"][env],
            flags["cut"][env],
            flags["is_first"][env] if "is_first" in flags else None,
        )
        for env in range(whole.batch_size[0])
    }


def _arrays(whole: Any) -> Keyed:
    """All leaves ``[N, T, ...]``; single numbers lose their axis of length 1."""
    tensordict = load_library("tensordict", _SOURCE, install="'stepwell[torchrl]'")
    found: Keyed = {}
    for key in whole.keys(include_nested=True):
        path: Key = key if isinstance(key, tuple) else (key,)
        leaf = whole.get(key)
        if tensordict.is_non_tensor(leaf):
            raise TypeError(
                f"{_SOURCE}: expected tensors, got a {type(leaf).__name__} under "
                f"{key_text(path)}; leave it out with exclude"
            )
        if tensordict.is_tensor_collection(leaf):
            continue
        array = as_array(leaf)
        is_own = path[-1] in _OWN_AXIS and path[:-1] in ((), ("next",)) and array.shape[2:] == (1,)
        found[path] = array[..., 0] if is_own else array
    return found


def _check_whole(table: Keyed) -> None:
    for key in (("next", "reward"), ("next", "terminated"), ("action",)):
        if not any(path[: len(key)] == key for path in table):
            raise ValueError(
                f"{_SOURCE}: expected the key {key_text(key)}, got "
                f"{', '.join(map(key_text, table))}; give it too"
            )
    mask = table.get(("collector", "mask"))
    if mask is not None and not mask.all():
        raise ValueError(
            f"{_SOURCE}: expected rows that are all steps, got {int((~mask).sum())} without "
            f"('collector', 'mask'); give the data before padding, or each row of "
            f"sequences separately, without its padding"
        )
    steps = table.pop(("steps_to_next_obs",), None)
    if steps is not None and (steps != 1).any():
        raise ValueError(
            f"{_SOURCE}: expected steps_to_next_obs of 1, got {int(steps.max())}; give the rows "
            f"before n-step returns were made of them"
        )


def _named(table: Keyed, one_hot_action: bool) -> dict[str, dict[str, np.ndarray]]:
    """The fields of rows by the parts of `TransitionColumns`."""
    known = {(name,) for name in (*FLAGS, "is_init")} | _IGNORED
    root = {key: a for key, a in table.items() if key[0] != "next" and key not in known}
    below = {key[1:]: a for key, a in table.items() if key[0] == "next"}
    observed = [key for key in root if key in below and key != ("state_value",)]
    if not observed:
        raise ValueError(
            f"{_SOURCE}: expected an observation, a key that stands both at the root and below "
            f"'next', got none of {', '.join(map(key_text, root))}; give both"
        )
    if ("observation",) in observed:  # what transforms add: as it was before, and after the step
        observed = [("observation",)]
    lead = ("observation",)
    names = {key: "/".join(key if key[0] == lead[0] else lead + key) for key in observed}
    fields = {names[key]: root[key] for key in observed}
    following = {names[key]: below[key] for key in observed}
    for key, array in root.items():
        if key[0] == "action":
            fields["/".join(key)] = _number(array) if one_hot_action else array
        elif key not in names:
            fields[f"extra/{_NAMES.get(key, '/'.join(key))}"] = array
    reward = below["reward",]
    is_exact = reward.dtype.kind in "iu" and np.can_cast(reward.dtype, np.float64)
    fields["reward"] = reward.astype(np.float64) if is_exact and reward.itemsize < 8 else reward
    for key, array in below.items():
        is_flag = key in {(name,) for name in (*FLAGS, "cut", "is_init", "reward", "state_value")}
        if key not in names and not is_flag:
            fields[f"info/{'/'.join(key)}"] = array
    return {"fields": fields, "next_observation": following}


def _number(one_hot: np.ndarray) -> np.ndarray:
    """[N, T] int64 of one-hot actions."""
    is_right = one_hot.ndim > 2 and ((one_hot == 0) | (one_hot == 1)).all()
    if not is_right or not (one_hot.sum(axis=-1) == 1).all():
        raise ValueError(
            f"{_SOURCE}: expected one-hot actions, with a single 1 in each, got others; leave "
            f"one_hot_action out"
        )
    found: np.ndarray = one_hot.argmax(axis=-1)
    return found.astype(np.int64)


def _flags(table: Keyed) -> dict[str, np.ndarray]:
    """The ends of `TransitionColumns`."""
    shape = table["next", "reward"].shape[:2]

    def of(key: Key, default: np.ndarray) -> np.ndarray:
        return marks(f"{_SOURCE}: {key_text(key)}", table.get(key, default), shape)

    terminated = of(("next", "terminated"), table["next", "terminated"])
    cut = of(("next", "cut"), np.zeros_like(terminated))
    done = of(("next", "done"), terminated)
    truncated = of(("next", "truncated"), done & ~terminated)
    if ("next", "done") in table and (done != (terminated | truncated)).any():
        env, row = np.argwhere(done != (terminated | truncated))[0]
        raise ValueError(
            f"{_SOURCE}: expected done where terminated or truncated is set, got done="
            f"{bool(done[env, row])} in row {row} of env {env}; correct the flags"
        )
    flags = {"terminated": terminated, "truncated": truncated & ~cut, "cut": cut}
    is_first = table.get(("is_init",))
    return flags if is_first is None else {**flags, "is_first": of(("is_init",), is_first)}


def _as_bound(
    replay: SequenceReplayBuffer, columns: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Drop the axis of length 1 of numbers that the replay stores without it."""
    shapes = {field.name: field.source_shape for field in replay.spec.fields}
    return {
        name: rows[..., 0] if rows.shape[2:] == (1,) and shapes.get(name) == () else rows
        for name, rows in columns.items()
    }
