"""Buffers of Tianshou's collectors, stored as episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...curation.episode_writer import EpisodeWriter, TransitionColumns
from ...replay.replay import SequenceReplayBuffer
from ...spec.spec import key_of, kind_of, marks
from ..transitions import leaves_below
from .batches import load_tianshou

_SOURCE = "from_tianshou"
_FLAGS = ("done", "terminated", "truncated")
_KINDS = {"info": "info", "extra": "policy"}


def from_tianshou(
    buffer: Any,
    replay: SequenceReplayBuffer,
    *,
    fields: Sequence[str] | None = None,
    stream: int = 0,
) -> int:
    """Store a Tianshou buffer as episodes, the inverse of `to_tianshou_buffer`.

    Args:
        buffer: A ``ReplayBuffer`` or ``VectorReplayBuffer`` that kept next observations; each part
            of it becomes a stream. If its newest step does not end an episode, the episode is cut.
            In a part that is full, older steps may be gone: its oldest episode is stored as one
            that lacks its first row.
        replay: The target; it must be empty or hold such rows.
        fields: Fields to store of Tianshou's ``info`` and ``policy``: ``["info/lives",
            "extra/log_prob"]``. None stores such fields as the replay already has, and
            none in a new one; ``info.cut`` is always used.
        stream: Stream of the buffer's first part.

    Returns:
        Number of env steps stored.

    Raises:
        ImportError: Tianshou is not installed, or too old.
        SpecMismatch: The replay holds other rows.
        ValueError: Next observations were not kept, or rows do not follow each other; nothing was
            stored.
        TypeError: It is not a buffer.

    Example:
        >>> import stepwell as sw
        >>> from stepwell.buffers.libraries.tianshou.batches import to_tianshou_buffer
        >>> replay, again = sw.SequenceReplayBuffer(seed=0), sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> from_tianshou(to_tianshou_buffer(replay), again)
        101
        >>> again.digest() == replay.digest()
        True
    """
    tianshou = load_tianshou(_SOURCE)
    if not isinstance(buffer, tianshou.ReplayBuffer):
        raise TypeError(
            f"{_SOURCE}: expected a ReplayBuffer of Tianshou's, got a {type(buffer).__name__}; "
            f"give the collector's buffer"
        )
    if not len(buffer):
        return 0
    if not hasattr(buffer, "obs_next"):
        raise ValueError(
            f"{_SOURCE}: expected a buffer that kept obs_next, got one with ignore_obs_next, in "
            f"which an episode's last observation is lost; fill one without"
        )
    table = {name: _plain(getattr(buffer, name)) for name in ("obs", "act", "obs_next")}
    columns = _named("observation", table["obs"]) | _named("action", table["act"])
    columns["reward"] = np.asarray(buffer.rew)
    following = _named("observation", table["obs_next"])
    for name in _wanted(fields, replay):
        columns[name] = _field(buffer, name)
    unmarked = np.zeros(len(buffer.done), bool)
    cut = _flags("info.cut", _plain(getattr(buffer, "info", {})).get("cut", unmarked))
    flags = {name: _flags(name, getattr(buffer, name)) for name in _FLAGS}
    streams: dict[int, TransitionColumns] = {}
    for number, (rows, is_full) in enumerate(_parts(buffer)):
        if not len(rows):
            continue  # an env that has not stepped yet
        ends = flags["done"][rows]
        is_first = np.r_[not is_full, ends[:-1]]
        is_cut = cut[rows]
        streams[stream + number] = TransitionColumns(
            {name: array[rows] for name, array in columns.items()},
            {name: array[rows] for name, array in following.items()},
            flags["terminated"][rows],
            flags["truncated"][rows] & ~is_cut,
            is_cut,
            is_first.astype(bool),
        )
    return EpisodeWriter(replay, source=_SOURCE).add_transitions(streams)


def _flags(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    return marks(f"{_SOURCE}: {name}", array, array.shape[:1])


def _parts(buffer: Any) -> list[tuple[np.ndarray, bool]]:
    """The indices of each part's steps, the oldest first, and True if it is full."""
    edges = np.asarray(buffer.subbuffer_edges)
    parts = getattr(buffer, "buffers", [buffer])
    found: list[tuple[np.ndarray, bool]] = []
    for part, first, last in zip(parts, edges[:-1], np.asarray(buffer.last_index), strict=True):
        count = len(part)
        order = (last - first + 1 + np.arange(count)) % max(1, count)
        found.append((first + order, count == part.maxsize))
    return found


def _plain(value: Any) -> Any:
    """A Batch as a dict."""
    if hasattr(value, "get_keys"):
        return {key: _plain(value[key]) for key in value.get_keys()}
    return np.asarray(value)


def _named(part: str, tree: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for key, array in leaves_below((part,), tree):
        if array.dtype == object:
            raise ValueError(
                f"{_SOURCE}: expected numbers of one shape under {'/'.join(key)}, got objects; "
                f"leave it out, or flatten the env's observations"
            )
        found["/".join(key)] = array
    return found


def _wanted(fields: Sequence[str] | None, replay: SequenceReplayBuffer) -> list[str]:
    """Names of the info fields and extras to store."""
    if fields is None:
        names = replay.spec.names if replay.is_bound else []
        return [name for name in names if kind_of(name) in _KINDS]
    for name in fields:
        if kind_of(name) not in _KINDS:
            raise ValueError(
                f"fields: expected names that begin with info/ or extra/, got {name!r}; the others "
                f"are always stored"
            )
    return list(fields)


def _field(buffer: Any, name: str) -> np.ndarray:
    part_of_batch, path = _KINDS[kind_of(name)], key_of(name).split("/")
    found = _plain(getattr(buffer, part_of_batch, {}))
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, np.ndarray) or found.dtype == object:
        raise ValueError(
            f"{_SOURCE}: expected numbers under {part_of_batch}.{'.'.join(path)}, which is to be "
            f"stored as {name}, got none; leave it out of fields="
        )
    return found
