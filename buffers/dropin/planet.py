"""The episodes of PlaNet agents, as torchwm's ``world_models.memory.planet_memory`` has them.

The line to change::

    from stepwell.buffers.dropin.planet import Episode, Memory
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np

from stepwell.buffers.dropin.planet_rows import as_chunk, as_steps, check_rows, spec_of
from stepwell.buffers.dropin.ring import check_whole
from stepwell.buffers.dropin.shortage import TooFew
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Episodes, Sequences
from stepwell.buffers.spec import Codec

__all__ = ["Draw", "Episode", "Memory"]

Draw: TypeAlias = Literal["steps", "episodes"]
"""Uniformly over all sequences, or over episodes and then within one: short ones weigh more."""

Processor: TypeAlias = Callable[[np.ndarray], Any]


# Any: lists of arrays while the episode is played, arrays afterwards, as in the original.
class Episode:
    """What an agent sees, does and gets in one episode.

    ``x``, ``u``, ``r`` and ``t`` are lists of observations, actions, rewards and terminals. Once
    `terminate` was called they are arrays: ``x`` ``[T + 1, ...]``, ``u`` ``[T, ...]``, ``r`` [T]
    and ``t`` [T].

    Args:
        postprocess_fn: What to make of each observation; None leaves it as it is.

    Example:
        >>> import numpy as np
        >>> episode = Episode()
        >>> for step in range(3):
        ...     episode.append(np.full(2, step), np.zeros(1), 1.0, step == 2)
        >>> episode.terminate(np.full(2, 3))
        >>> episode.x.shape, episode.u.shape, episode.t, episode.size
        ((4, 2), (3, 1), array([False, False,  True]), 3)
    """

    def __init__(self, postprocess_fn: Processor | None = None) -> None:
        self.x: Any = []
        self.u: Any = []
        self.t: Any = []
        self.r: Any = []
        self.postprocess_fn = postprocess_fn
        self.is_over = False
        """`terminate` was called."""
        self.truncated = False
        """It was the env's clock that ended the episode."""

    @property
    def size(self) -> int:
        """Steps taken."""
        return len(self.u)

    def append(self, obs: Any, act: Any, reward: Any, terminal: Any) -> None:
        """Take up a step, either all of it or nothing; tensors and arrays are copied.

        Args:
            obs: What the action was chosen from.
            act: What was done.
            reward: What it brought.
            terminal: The episode ended with it.

        Raises:
            ValueError: The episode is over, or something has another shape or dtype than before.
        """
        self._check_open("another step")
        seen, done = self._seen(obs), _array(act)
        _check_alike("obs", seen, self.x)
        _check_alike("act", done, self.u)
        gain, end = _number("reward", reward), _number("terminal", terminal)
        self.x.append(seen)
        self.u.append(done)
        self.r.append(gain)
        self.t.append(end)

    def terminate(self, obs: Any, *, truncated: bool = False) -> None:
        """End the episode, and make arrays of the lists.

        Args:
            obs: What the episode ended with.
            truncated: The env's clock ended it.

        Raises:
            ValueError: The episode is over already, or has no step; or the observation has another
                shape or dtype than those before.
        """
        self._check_open("terminate() again")
        if not self.size:
            raise ValueError("an episode: expected at least one step, got none; append it before")
        seen = self._seen(obs)
        _check_alike("obs", seen, self.x)
        self.x = np.stack([*self.x, seen])
        self.u, self.r, self.t = np.stack(self.u), np.stack(self.r), np.stack(self.t)
        self.is_over, self.truncated = True, truncated

    def _seen(self, obs: Any) -> np.ndarray:
        array = _array(obs)
        return array if self.postprocess_fn is None else np.asarray(self.postprocess_fn(array))

    def _check_open(self, what: str) -> None:
        if self.is_over:
            raise ValueError(
                f"the episode is over: expected nothing after terminate(), got {what}; begin a new "
                f"Episode"
            )


class _Held(NamedTuple):
    """Where an episode is stored."""

    first_row: int
    steps: int


class Memory:
    """Keeps the newest episodes, in RAM or in a folder, and draws sequences of their steps.

    Args:
        size: Episodes to keep; the oldest go first. None keeps all.
        path: Folder of the store, continued if there is one; None keeps everything in RAM.
        seed: Seed of all draws; None draws one from the system.
        draw: ``"steps"``: each sequence that there is has the same probability. ``"episodes"``: an
            episode that is long enough uniformly, then uniformly within it, as the original draws.
        max_bytes: Bytes of observations that one `sample` may ask for; None for any number.
        codec: How observations are kept; None: bytes ``"zstd"`` in a folder, else ``"raw"``.

    Raises:
        ValueError: ``size`` is no whole number >= 1, or an option is none that there is.
        SpecMismatch: The folder holds other data.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> import numpy as np
        >>> memory = Memory(size=100, seed=0)
        >>> episode = Episode()
        >>> for step in range(12):
        ...     episode.append(np.full(2, step), np.zeros(1), 1.0, step == 11)
        >>> episode.terminate(np.full(2, 12))
        >>> memory.append(episode)
        >>> (x, u, r, t), lengths = memory.sample(32, tracelen=10)
        >>> x.shape, u.shape, r.shape, t.shape, lengths.shape, len(memory), memory.size
        ((32, 11, 2), (32, 10, 1), (32, 10), (32, 10), (32,), 1, 12)
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        draw: Draw = "steps",
        max_bytes: int | None = 200 << 20,
        codec: Codec | None = None,
    ) -> None:
        if size is not None:
            check_whole("size", size, 1)
        if max_bytes is not None:
            check_whole("max_bytes", max_bytes, 1)
        if draw not in get_args(Draw):
            raise ValueError(f'draw: expected "steps" or "episodes", got {draw!r}')
        self.draw: Draw = draw
        self.max_bytes = max_bytes
        self._codec: Codec | None = codec
        self._rng = np.random.default_rng(seed)
        self.replay = SequenceReplayBuffer(path, seed=seed)
        """What is beneath: everything that Stepwell can do with stored steps."""
        self._held: deque[_Held] = deque(maxlen=size)
        if self.replay.is_bound:
            try:
                check_rows(self.replay.spec)
            except Exception:
                self.replay.close()  # or the folder stays locked
                raise
            self._held.extend(_held_in(self.replay))
        self._is_writing = False
        self._look()

    @property
    def episodes(self) -> StoredEpisodes:
        """The episodes, the oldest first, read from the store one at a time."""
        return StoredEpisodes(self.replay, self._held)

    @property
    def eps_lengths(self) -> list[int]:
        """Steps of each episode, the oldest first."""
        return [held.steps for held in self._held]

    @property
    def size(self) -> int:
        """Steps of all episodes."""
        return int(self._lengths.sum())

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self._held)

    def append(self, episodes: Episode | Sequence[Episode]) -> None:
        """Keep an episode, or several, either all of them or none.

        Args:
            episodes: Each one after its `terminate`.

        Raises:
            ValueError: Something is no episode, is not over, or has other shapes or dtypes than the
                first one that was kept.
        """
        given = [episodes] if isinstance(episodes, Episode) else episodes
        if not isinstance(given, list | tuple):
            raise ValueError(
                f"can only append an Episode or a list of them, got {type(given).__name__}"
            )
        if not given:
            return
        for each in given:
            if not isinstance(each, Episode):
                raise ValueError(
                    f"can only append an Episode or a list of them, got {type(each).__name__}"
                )
            if not each.is_over:
                raise ValueError(
                    f"an episode: expected one that is over, got one of {each.size} steps that is "
                    f"not; call terminate(last_obs) before"
                )
        spec = spec_of(given[0], self.replay.path, self._codec)
        spec = self.replay.spec if self.replay.is_bound else spec
        rows = [as_steps(each, spec) for each in given]
        if not self._is_writing:
            self.replay.bind(spec, {"recipe": {}})
            self._is_writing = True
        table = self.replay.storage.table
        first, number = table.next_row_id, table.next_episode
        self.replay.add([as_chunk(each, number + place) for place, each in enumerate(rows)])
        for each in rows:
            self._held.append(_Held(first, each.steps))
            first += each.steps + 1
        self.replay.drop_before(self._held[0].first_row)
        self._look()

    def sample(
        self, batch_size: int, tracelen: int = 1, time_first: bool = False
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Draw sequences of steps, each in one episode, with replacement.

        Args:
            batch_size: Sequences, B.
            tracelen: Steps in each, L.
            time_first: Give ``[L, B, ...]`` instead of ``[B, L, ...]``.

        Returns:
            ``[x, u, r, t], lengths``: observations ``[B, L + 1, ...]``, actions ``[B, L, A]`` and
            terminals [B, L] in the dtypes that they were appended in, rewards [B, L] float64, and
            the steps [B] of the episodes that they are from. With ``tracelen=1`` there is no L in
            u, r and t, as there is none in the original.

        Raises:
            TooFew: No episode has so many steps: a NotEnoughData, and a ValueError as well.
            MemoryError: The observations would take more than ``max_bytes``.
            ValueError: A number is no whole one >= 1.
        """
        check_whole("batch_size", batch_size, 1)
        check_whole("tracelen", tracelen, 1)
        if not len(self):
            raise TooFew("Memory is empty: expected episodes to draw from, got 0; append some")
        self._check_bytes(batch_size, tracelen)
        episode, start = self._chosen(batch_size, tracelen)
        request = Sequences(
            batch_size, tracelen, align="transition", time_major=time_first, fields=_FIELDS
        )
        batch = self.replay.take(request, self._first_rows[episode] + start)
        steps = [batch.action, batch.info["r"], batch.info["t"]]
        if tracelen == 1:
            steps = [part[0] if time_first else part[:, 0] for part in steps]
        x = batch.memory["observation"]  # L + 1 of each
        return [x, *map(np.ascontiguousarray, steps)], self._lengths[episode]

    def close(self) -> None:
        """Release files and locks; closing twice is harmless."""
        self.replay.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _look(self) -> None:
        """Find out again what there is to draw from."""
        self._first_rows = np.array([held.first_row for held in self._held], np.int64)
        self._lengths = np.array([held.steps for held in self._held], np.int64)

    def _chosen(self, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """So many sequences: the places of their episodes [B], and their first steps [B]."""
        starts = np.maximum(self._lengths - length + 1, 0)
        if not starts.any():
            raise TooFew(
                f"No episodes with length >= {length}: expected one, got {len(self)} of which the "
                f"longest has {self._lengths.max()} steps; append longer ones, or lower tracelen"
            )
        if self.draw == "episodes":
            episode = self._rng.choice(np.flatnonzero(starts), count)
            return episode, self._rng.integers(0, starts[episode])
        stops = np.cumsum(starts)
        number = self._rng.integers(0, stops[-1], count)
        episode = np.searchsorted(stops, number, side="right")
        return episode, number - (stops - starts)[episode]

    def _check_bytes(self, count: int, length: int) -> None:
        wanted = count * (length + 1) * self.replay.spec.fields[0].row_bytes
        if self.max_bytes is not None and wanted > self.max_bytes:
            raise MemoryError(
                f"the observations of batch_size={count} sequences of tracelen={length} take "
                f"{wanted} bytes, expected at most max_bytes={self.max_bytes}; draw fewer or "
                f"shorter ones, or raise max_bytes"
            )


class StoredEpisodes(Sequence[Episode]):
    """The episodes of a `Memory`, read when they are asked for.

    Args:
        replay: Where they are.
        held: Which ones.
    """

    def __init__(self, replay: SequenceReplayBuffer, held: deque[_Held]) -> None:
        self._replay = replay
        self._held = held

    @property
    def maxlen(self) -> int | None:
        """How many there are at most; None for any number."""
        return self._held.maxlen

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Episode]:
        return (self[place] for place in range(len(self)))

    # Any: a list of them for a slice.
    def __getitem__(self, index: int | slice) -> Any:
        """A copy of an episode, or a list of several."""
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        first_row = np.array([self._held[places].first_row])
        batch = self._replay.take(Episodes(1, align="transition"), first_row)
        episode = Episode()
        episode.x = batch.memory["observation"][0]
        episode.u, episode.r, episode.t = batch.action[0], batch.info["r"][0], batch.info["t"][0]
        episode.is_over, episode.truncated = True, bool(batch.truncated[0, -1])
        return episode


_FIELDS = ("observation", "action", "info/r", "info/t")


def _held_in(replay: SequenceReplayBuffer) -> Iterator[_Held]:
    """The episodes that a folder holds, the oldest first; each was stored as one chunk."""
    for record in replay.storage.table.records:
        if record["first_row"] == 0 and record["is_tail"] and record["rows"] > 1:
            yield _Held(int(record["row_id"]), int(record["rows"]) - 1)


def _array(value: Any) -> np.ndarray:
    """A copy of an array or a tensor."""
    detach = getattr(value, "detach", None)  # torch is not imported for this
    return np.array(value if detach is None else detach().cpu().numpy())


def _number(what: str, value: Any) -> Any:
    array = _array(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{what}: expected one number, got {value!r}; give that of one step")
    return array.reshape(())[()]


def _check_alike(what: str, value: np.ndarray, before: list[np.ndarray]) -> None:
    first = before[0] if before else value
    if (value.shape, value.dtype) != (first.shape, first.dtype):
        raise ValueError(
            f"{what}: expected {first.dtype} {first.shape} as in the step before, got "
            f"{value.dtype} {value.shape}; make them alike"
        )
