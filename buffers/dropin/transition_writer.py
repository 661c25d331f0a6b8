"""Rows made of transitions that are added one at a time, env by env."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from stepwell.buffers.dropin.declared import as_declared
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Field, Spec

__all__ = ["OBSERVED", "TransitionWriter", "spec_of"]

OBSERVED = Field("info/observed", "bool", (), "narrow")
"""Whether a row's observation was given. Of an episode's last row it need not be: the buffers that
are stood in for never ask for it. There the observation before is repeated."""

_MAX_ROWS, _MIN_ROWS, _MAX_BYTES = 512, 16, 32 << 20
_LEAST_ROOM = 3  # a step, the one behind it, and the last observation


def spec_of(observation: Field, action: Field) -> Spec:
    """The fields of rows that a `TransitionWriter` makes."""
    reward = Field("reward", "float64", (), "narrow")
    return Spec((observation, action, reward, OBSERVED), observation.name, action.name)


class TransitionWriter:
    """Takes transitions: an observation, the action chosen from it, and what that brought.

    Rows are kept here until `flush`, or until their room is full. In a folder they are stored for
    good at the end of every episode, too.

    Args:
        replay: Where the rows go; bound here.
        observation: Field ``"observation"``; under frame stacking that of one frame.
        action: Field ``"action"``.
        num_envs: Number of envs N; env i writes stream i.
        facts: JSON-able facts about what the rows are, which must not change.

    Raises:
        SpecMismatch: The replay holds other rows.
        ValueError: ``num_envs`` is not positive.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers import SequenceReplayBuffer
        >>> from stepwell.buffers.spec import Field
        >>> replay = SequenceReplayBuffer(seed=0)
        >>> fields = Field("observation", "uint8", (2,), "raw"), Field("action", "int32", (), "raw")
        >>> writer = TransitionWriter(replay, *fields, facts={})
        >>> for step in range(3):
        ...     observation = np.full(2, step, np.uint8)
        ...     writer.add(observation, step, 1.0, terminated=step == 2)
        >>> writer.flush(newest=True)
        >>> replay.sample_sequences(1, 3, align="transition").observation[0, :, 0]
        array([0, 1, 2], dtype=uint8)
    """

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        observation: Field,
        action: Field,
        *,
        num_envs: int = 1,
        facts: Mapping[str, object],
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected a whole number >= 1, got {num_envs}")
        spec = spec_of(observation, action)
        replay.bind(spec, {"recipe": dict(facts)})
        self._replay = replay
        self._observation = observation.numpy_dtype, observation.shape
        self._action = action.numpy_dtype, action.shape
        fitting = _MAX_BYTES // max(1, num_envs * spec.row_bytes)
        self._room = max(_MIN_ROWS, min(_MAX_ROWS, fitting))
        if replay.capacity is not None:  # more of one env would evict newer rows of another
            share = replay.capacity // (16 * num_envs)
            self._room = max(_LEAST_ROOM, min(self._room, share))
        self._streams = [_Stream(spec, self._room) for _ in range(num_envs)]
        self._next_episode = replay.storage.table.next_episode
        self._is_on_disk = replay.path is not None
        self._waiting = 0  # steps since the last flush
        self.steps = replay.steps
        ends = replay.storage.table.records["end"]
        self.episodes = int((ends & (End.TERMINATED | End.TRUNCATED) != 0).sum())

    @property
    def num_envs(self) -> int:
        """Number of envs N."""
        return len(self._streams)

    def add(
        self,
        observation: object,
        action: object,
        reward: float,
        *,
        terminated: bool,
        truncated: bool = False,
        final_observation: object = None,
        env: int = 0,
    ) -> None:
        """Take up a transition; everything is copied.

        Args:
            observation: What the action was chosen from, as declared.
            action: As declared.
            reward: What the action brought.
            terminated: The MDP ended with it.
            truncated: The env's clock ended the episode with it.
            final_observation: What the episode ended with, as declared; None where nobody knows.
            env: Index of the env.

        Raises:
            ValueError: Something is not as declared, or there is no such env; nothing was taken up.
        """
        if not 0 <= env < len(self._streams):
            raise ValueError(
                f"env: expected an index from 0 to {len(self._streams) - 1}, got {env}; give the "
                f"number of envs as num_envs"
            )
        stream = self._streams[env]
        image = as_declared("observation", observation, *self._observation)
        chosen = as_declared("action", action, *self._action)
        gain = reward if type(reward) is float else _number(reward)
        is_over = bool(terminated) or bool(truncated)
        last = None
        if final_observation is not None:
            if not is_over:
                raise ValueError(
                    "final observation: expected one only with the last step of an episode, got "
                    "one with a step that ends nothing; leave it out"
                )
            last = as_declared("final observation", final_observation, *self._observation)
        if stream.cursor + 2 > self._room:
            self._store([env], newest=False)
        if not stream.is_open:
            stream.begin(self._next_episode)
            self._next_episode += 1
        stream.append(image, chosen, gain)
        self.steps += 1
        self._waiting += 1
        if is_over:
            flags = (End.TERMINATED if terminated else 0) | (End.TRUNCATED if truncated else 0)
            stream.close(End(flags), last)
            self.episodes += 1
            if self._is_on_disk:
                self._store([env], newest=False)

    def flush(self, *, newest: bool) -> None:
        """Store what was added, so that it can be drawn.

        Args:
            newest: Also the newest transition of each env, although the observation that it led to
                has not come yet: the one before stands in its place until then.
        """
        self._store(range(len(self._streams)), newest=newest)
        self._waiting = 0

    def catch_up(self, *, newest: bool) -> None:
        """`flush`, unless less than a thousandth of what can be drawn would come in.

        For a caller that draws after every few steps: each flush makes a chunk for every env. So it
        is a thousandth for each of them, and a hundredth at most.
        """
        if self._waiting * 1000 >= len(self._replay) * min(10, self.num_envs):
            self.flush(newest=newest)

    def cut(self, env: int | None = None, *, newest: bool = True) -> None:
        """Stop recording the open episode of an env, or of all: the next step begins another.

        Args:
            env: Index of the env; None for all.
            newest: Keep the newest transition, although nobody knows what it led to.
        """
        envs = range(len(self._streams)) if env is None else [env]
        for number in envs:
            if self._streams[number].is_open:
                self._streams[number].cut(newest=newest)
        self._store(envs, newest=False)

    def _store(self, envs: Iterable[int], *, newest: bool) -> None:
        chunks = [chunk for env in envs for chunk in self._streams[env].chunks(env, newest=newest)]
        if chunks:
            self._replay.add(chunks)
        for env in envs:
            self._streams[env].forget(newest=newest)


class _Run(NamedTuple):
    """Staged rows ``start .. stop`` of one episode."""

    episode: int
    first_row: int
    start: int
    stop: int
    end: End


class _Stream:
    """The rows of one env that were not stored yet."""

    def __init__(self, spec: Spec, room: int) -> None:
        self.rows = {f.name: np.empty((room, *f.shape), f.numpy_dtype) for f in spec.fields}
        self._observation, self._action, self._reward, self._observed = (
            self.rows[field.name] for field in spec.fields
        )
        self.cursor = 0
        self.is_open = False
        self._ended: list[_Run] = []
        self._episode = -1
        self._start = self._first_row = 0
        self._arrived = 0.0  # the reward that goes with the next observation
        self._is_given = True  # the row of that observation was stored already, without it

    def begin(self, episode: int) -> None:
        """The next row is that of a reset."""
        self._episode, self._start, self._first_row = episode, self.cursor, 0
        self._arrived, self._is_given, self.is_open = 0.0, True, True

    def append(self, observation: np.ndarray, action: np.ndarray, reward: float) -> None:
        """A row, and what the next one will have for a reward."""
        place = self.cursor
        self._observation[place] = observation
        self._action[place] = action
        self._reward[place] = self._arrived
        self._observed[place] = True
        self._arrived, self._is_given = reward, False
        self.cursor = place + 1

    def close(self, end: End, final: np.ndarray | None) -> None:
        """End the episode with its last observation."""
        self._place_last(final)
        self.cursor += 1
        self._leave(end)

    def cut(self, *, newest: bool) -> None:
        """Stop recording the episode, with or without the newest transition."""
        if newest and not self._is_given:
            self.close(End.NONE, None)
        else:
            self._leave(End.NONE)

    def _leave(self, end: End) -> None:
        if self.cursor > self._start:
            self._ended.append(_Run(self._episode, self._first_row, self._start, self.cursor, end))
        self._start, self.is_open = self.cursor, False

    def chunks(self, number: int, *, newest: bool) -> list[Chunk]:
        """What there is to store; views that are valid until the next row."""
        return [
            Chunk(
                run.episode,
                number,
                run.first_row,
                run.end,
                {name: rows[run.start : run.stop] for name, rows in self.rows.items()},
            )
            for run in (*self._ended, *self._unfinished(newest=newest))
        ]

    def _unfinished(self, *, newest: bool) -> list[_Run]:
        if not self.is_open:
            return []
        run = _Run(self._episode, self._first_row, self._start, self.cursor, End.NONE)
        if newest and not self._is_given:
            self._place_last(None)
            return [run._replace(stop=self.cursor + 1, end=End.PENDING)]
        return [run] if run.stop > run.start else []

    def forget(self, *, newest: bool) -> None:
        """What `chunks` gave is stored."""
        if self.is_open:
            if self.cursor > self._start:
                # The newest observation is repeated where the next one is not known.
                self._before = self._observation[self.cursor - 1]  # still there when it is needed
            self._first_row += self.cursor - self._start
            self._is_given |= newest
        self._ended, self.cursor, self._start = [], 0, 0

    def _place_last(self, final: np.ndarray | None) -> None:
        """The row behind the newest one, from which nothing was chosen."""
        place = self.cursor
        if final is not None:
            self._observation[place] = final
        elif place:
            self._observation[place] = self._observation[place - 1]
        else:
            self._observation[place] = self._before
        self._action[place] = 0
        self._reward[place] = self._arrived
        self._observed[place] = final is not None


def _number(reward: object) -> float:
    """A reward as a Python float: numbers and arrays of one number are taken."""
    if isinstance(reward, int | float):
        return float(reward)
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"reward: expected one number, got {reward!r}; give that of one env")
    return float(array.item())
