"""Transitions as Tianshou's batches, and whole episodes in its buffers and out of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from operator import itemgetter
from typing import Any

import numpy as np

from ...base.optional_libraries import load_library
from ...curation.episode_writer import EpisodeWriter, TransitionColumns, check_replay
from ...replay.replay import SequenceReplayBuffer
from ...replay.rollout import Rollout
from ...rows.episode import Episode
from ...sampling.batch import Batch, TransitionBatch, map_tree, named_leaves
from ...spec.spec import key_of, kind_of, marks
from ..transitions import episode_steps, leaves_below, nested, rollout_steps


def to_tianshou_batch(batch: TransitionBatch) -> Any:
    """Convert transitions to a ``tianshou.data.Batch``.

    Args:
        batch: Drawn with ``n_step=1``: Tianshou makes n-step returns itself, from its buffer.

    Returns:
        A Batch of ``obs``, ``act``, ``rew`` (float64), ``terminated``, ``truncated``, ``done``,
        ``obs_next``, ``info``, ``policy`` (the extras) and ``weight``. A cut counts as a
        truncation, as Tianshou knows no cuts, and is marked as ``info.cut`` too. Arrays are those
        of the batch: a later draw with ``out=`` overwrites them.

    Raises:
        ImportError: Tianshou is not installed, or too old.
        TypeError: It is no such batch.
        ValueError: There are n-step returns in it, or a field is missing.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> batch = to_tianshou_batch(replay.sample_transitions(32))
        >>> batch.obs.shape, batch.rew.dtype, batch.done.dtype
        ((32, 4), dtype('float64'), dtype('bool'))
    """
    tianshou = load_tianshou("to_tianshou_batch")
    if not isinstance(batch, TransitionBatch):
        raise TypeError(
            f"to_tianshou_batch: expected a TransitionBatch, got {type(batch).__name__}; give what "
            f"replay.sample_transitions(32) returned"
        )
    if (batch.steps > 1).any():
        raise ValueError(
            f"to_tianshou_batch: expected transitions of one step, got up to {batch.steps.max()}; "
            f"draw with n_step=1, and set n_step_return_horizon of the algorithm"
        )
    for name in ("observation", "next_observation", "action", "reward"):
        if getattr(batch, name) is None:
            raise ValueError(
                f"{name}: expected it in the batch, got None; name it in fields=, or leave that out"
            )
    return tianshou.Batch(**drawn_as_batch(batch), weight=batch.weights)


def to_tianshou_buffer(
    source: SequenceReplayBuffer | Rollout | Iterable[Episode],
    *,
    size: int | None = None,
    buffer: Any = None,
) -> Any:
    """Put whole episodes into a ``VectorReplayBuffer``, one part of it for each env.

    ``obs_next`` of an episode's last step is its true last observation. A cut counts as a
    truncation, and is marked as ``info.cut`` too. Frame stacks are stored in full: the buffer takes
    2 k frames a step. For a replay with stacks `as_tianshou_replay` takes no extra memory.

    Args:
        source: A replay; a rollout, for on-policy algorithms; or some episodes.
        size: Steps for which each env gets room; one more than the longest one has when None.
        buffer: An empty ``VectorReplayBuffer``, or ``PrioritizedVectorReplayBuffer``, to fill, with
            room for as many envs; a new one when None.

    Returns:
        The buffer. Rewards are float64, all else has the stored dtype; extras stand under
        ``policy``.

    Raises:
        ImportError: Tianshou is not installed, or too old.
        NotEnoughData: There is no step.
        TypeError: The source is none of these.
        ValueError: The room is not enough, or the buffer would give something else than it is
            given: with ``stack_num`` its stacks of next observations are wrong at the beginning of
            every episode, and with ``ignore_obs_next`` last observations are lost.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> buffer = to_tianshou_buffer(replay)
        >>> len(buffer), buffer.buffer_num
        (101, 2)
        >>> batch, indices = buffer.sample(32)
    """
    tianshou = load_tianshou("to_tianshou_buffer")
    streams = _streams(source)
    longest = max((sum(part.steps for part in several) for several in streams), default=0)
    if longest == 0:
        raise ValueError("to_tianshou_buffer: expected at least one step, got none; collect first")
    if buffer is None:
        room = longest + 1 if size is None else size
        _check_room(room, longest)
        buffer = tianshou.VectorReplayBuffer(room * len(streams), len(streams))
    else:
        _check_buffer(buffer, size, len(streams), longest)
    for newest in zip_longest(*map(_steps_of, streams)):
        some = np.array([number for number, step in enumerate(newest) if step is not None])
        steps = [tianshou.Batch(step) for step in newest if step is not None]
        buffer.add(tianshou.Batch.stack(steps), buffer_ids=some)
    return buffer


@cache
def load_tianshou(wanted_for: str) -> Any:
    """The module ``tianshou.data``, imported once."""
    install = "'stepwell[tianshou]'"
    return load_library("tianshou.data", wanted_for, install=install, at_least="2.0")


def drawn_as_batch(drawn: Batch | TransitionBatch) -> dict[str, Any]:
    """Transitions [B, ...], or sequences [B, T, ...] aligned as such, by Tianshou's names."""
    columns = TransitionColumns(
        {"observation": drawn.observation, "action": drawn.action, "reward": drawn.reward}
        | {f"extra/{name}": array for name, array in drawn.extras.items()}
        | {f"info/{name}": array for name, array in drawn.info.items()},
        {"observation": drawn.next_observation},
        drawn.terminated,
        drawn.truncated,
        drawn.cut,
    )
    return as_batch(columns)


def as_batch(columns: TransitionColumns) -> dict[str, Any]:
    """Steps by Tianshou's names; nested values as dicts."""
    stopped = columns.truncated | columns.cut
    info = {**_below("info", columns.fields), ("cut",): columns.cut}
    return {
        "obs": _tree(_below("observation", columns.fields)),
        "act": _tree(_below("action", columns.fields)),
        "rew": columns.fields["reward"].astype(np.float64),
        "terminated": columns.terminated,
        "truncated": stopped,
        "done": columns.terminated | stopped,
        "obs_next": _tree(_below("observation", columns.next_observation)),
        "info": nested(info),
        "policy": nested(_below("extra", columns.fields)),
    }


def _streams(
    source: SequenceReplayBuffer | Rollout | Iterable[Episode],
) -> list[list[TransitionColumns]]:
    """The steps of each env: of one episode after the other."""
    if isinstance(source, Rollout):
        return [[columns] for columns in rollout_steps(source)]
    episodes = source.iter_episodes() if isinstance(source, SequenceReplayBuffer) else source
    found: dict[int, list[TransitionColumns]] = {}
    for episode in episodes if np.iterable(episodes) else [episodes]:
        if not isinstance(episode, Episode):
            raise TypeError(
                f"source: expected a replay, a rollout or episodes, got {source!r:.60}; a folder "
                f"is read with SequenceReplayBuffer.open"
            )
        found.setdefault(episode.stream, []).append(episode_steps(episode))
    return [several for _, several in sorted(found.items())]


def _steps_of(several: list[TransitionColumns]) -> Iterator[dict[str, Any]]:
    """One step after the other, by Tianshou's names."""
    for columns in several:
        rows = as_batch(columns)
        yield from (map_tree(itemgetter(step), rows) for step in range(columns.steps))


def _check_room(room: int, longest: int) -> None:
    if room < longest:
        raise ValueError(
            f"size: expected room for {longest} steps, which the longest env has, got {room}; give "
            f"more, or fewer episodes"
        )


def _check_buffer(buffer: Any, size: int | None, streams: int, longest: int) -> None:
    """Raise ValueError unless the buffer returns the data that is added to it."""
    if size is not None:
        raise ValueError(f"size: expected None with a buffer, got {size}; leave one of the two out")
    if len(buffer):
        raise ValueError(f"buffer: expected an empty one, got {len(buffer)} steps; give a new one")
    wanted = {"stack_num": 1, "ignore_obs_next": False, "save_only_last_obs": False}
    for name, value in wanted.items():
        if buffer.options[name] != value:
            raise ValueError(
                f"buffer: expected {name}={value}, got {buffer.options[name]}, with which its next "
                f"observations are others; leave it out, stacks are stored in full"
            )
    edges = np.diff(buffer.subbuffer_edges)
    if len(edges) < streams:
        raise ValueError(
            f"buffer: expected parts for {streams} envs, got {len(edges)}; give it a larger "
            f"buffer_num"
        )
    _check_room(int(edges[:streams].min()), longest)


def _below(kind: str, columns: Mapping[str, Any]) -> dict[tuple[str, ...], np.ndarray]:
    """The leaves of a kind of field, by path; a single leaf has an empty path."""
    return {
        key: leaf
        for name, value in columns.items()
        if kind_of(name) == kind
        for key, leaf in leaves_below(tuple(name.split("/"))[1:], value)
    }


def _tree(leaves: dict[tuple[str, ...], np.ndarray]) -> Any:
    return leaves[()] if () in leaves else nested(leaves)


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
        TypeError: It is not a buffer, or the target no replay.

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
    check_replay("replay", replay)
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
    found: dict[str, np.ndarray] = dict(named_leaves(part, tree))
    for name, array in found.items():
        if array.dtype == object:
            raise ValueError(
                f"{_SOURCE}: expected numbers of one shape under {name}, got objects; leave it "
                f"out, or flatten the env's observations"
            )
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
