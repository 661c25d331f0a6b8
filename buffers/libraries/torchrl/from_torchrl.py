"""Recordings of TorchRL's environments and collectors, stored as episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.optional_libraries import load_library
from ...curation.episode_writer import EpisodeWriter, TransitionColumns
from ...replay.replay import SequenceReplayBuffer
from ...spec.spec import as_array, marks
from .batches import FLAGS, Key, Keyed, extra_name, key_text

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
    names = {key: _observation_name(key) for key in observed}
    fields = {names[key]: root[key] for key in observed}
    following = {names[key]: below[key] for key in observed}
    for key, array in root.items():
        if key[0] == "action":
            fields["/".join(key)] = _number(array) if one_hot_action else array
        elif key not in names:
            fields[f"extra/{extra_name(key)}"] = array
    reward = below["reward",]
    is_exact = reward.dtype.kind in "iu" and np.can_cast(reward.dtype, np.float64)
    fields["reward"] = reward.astype(np.float64) if is_exact and reward.itemsize < 8 else reward
    for key, array in below.items():
        is_flag = key in {(name,) for name in (*FLAGS, "cut", "is_init", "reward", "state_value")}
        if key not in names and not is_flag:
            fields[f"info/{'/'.join(key)}"] = array
    return {"fields": fields, "next_observation": following}


def _observation_name(key: Key) -> str:
    return "/".join(key if key[0] == "observation" else ("observation", *key))


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
