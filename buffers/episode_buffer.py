"""The open, on-policy episodes of N envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import SpecMismatch
from stepwell.buffers.spec import Field, Spec
from stepwell.buffers.stack_check import StackCheck

__all__ = ["EpisodeBuffer"]

_MAX_ROWS, _MIN_ROWS, _MAX_BYTES = 512, 16, 64 << 20


class EpisodeBuffer:
    """Takes rows a vector step at a time and hands out chunks of episodes.

    A row is made in two halves: `observe` writes what arrived, `act` the action chosen from it.
    Envs may be observed in any groups: what counts is the order within one env.

    Args:
        spec: The fields of every row.
        num_envs: Number of envs N; env i writes stream i.
        chunk_rows: Rows of an env after which its chunk is due; None chooses by size (at most 512).
        capacity: Steps that are kept where the chunks go. Of all envs together an eighth of that
            waits here at most: more of one env would evict newer rows of another.
        next_episode: Id of the first episode that begins here.

    Example:
        >>> import gymnasium as gym
        >>> import numpy as np
        >>> from stepwell.buffers import Spec
        >>> env = gym.make("CartPole-v1")
        >>> spec = Spec.from_spaces(env.observation_space, env.action_space)
        >>> buffer = EpisodeBuffer(spec, num_envs=1)
        >>> row = {"observation": np.zeros((1, 4), np.float32), "reward": np.zeros(1)}
        >>> buffer.observe(row, is_first=np.array([True]))
        >>> buffer.act({"action": np.array([1])})
        >>> buffer.observe(row, terminated=np.array([True]))
        >>> [chunk.end.name for chunk in buffer.take(everything=True)]
        ['TERMINATED']
    """

    def __init__(
        self,
        spec: Spec,
        num_envs: int,
        *,
        chunk_rows: int | None = None,
        capacity: int | None = None,
        next_episode: int = 0,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected a whole number >= 1, got {num_envs}")
        if chunk_rows is not None and chunk_rows < 1:
            raise ValueError(f"chunk_rows: expected a whole number >= 1, got {chunk_rows}")
        self._spec = spec
        self._acted = [_Column(field) for field in spec.fields if _is_chosen(field.name)]
        self._observed = [_Column(field) for field in spec.fields if not _is_chosen(field.name)]
        self._chunk_rows = chunk_rows or _rows_by_size(spec, num_envs)
        if capacity is not None:
            self._chunk_rows = max(1, min(self._chunk_rows, capacity // (8 * num_envs)))
        # Room for one more: the row that awaits its action when the chunk before was taken.
        self._room = self._chunk_rows + 1
        self._rows = {
            field.name: np.empty((num_envs * self._room, *field.shape), field.numpy_dtype)
            for field in spec.fields
        }
        self._stacks = {
            field.name: StackCheck(field, num_envs) for field in spec.fields if field.stack > 1
        }
        self._all = np.arange(num_envs)
        self._base = self._all * self._room
        self._cursor = np.zeros(num_envs, np.int64)
        # The envs' chunks fall due one after the other: each is then stored behind one env step.
        self._due = self._chunk_rows - (self._all * self._chunk_rows) // num_envs
        self._until_due = 0  # never more than the rows that may come before one is due
        self._pending = np.zeros(num_envs, np.bool_)
        self._is_given = np.zeros(num_envs, np.bool_)  # the pending row was handed out already
        self._open: list[_Run | None] = [None] * num_envs
        self._ended: list[list[_Run]] = [[] for _ in range(num_envs)]
        self._started = [0] * num_envs
        self._taken: list[int] = []
        self.next_episode = next_episode

    @property
    def num_envs(self) -> int:
        """Number of envs N."""
        return len(self._all)

    @property
    def is_due(self) -> bool:
        """Some env has a whole chunk, which must be taken before its next row comes."""
        if self._until_due <= 0:
            self._until_due = int((self._due - self._cursor).min())
        return self._until_due <= 0

    def observe(
        self,
        values: Mapping[str, np.ndarray],
        *,
        is_first: np.ndarray | None = None,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        env_ids: np.ndarray | None = None,
        metadata: Mapping[int, Mapping[str, object]] | None = None,
        owned: bool = False,
    ) -> None:
        """Begin a row for each of n envs with what arrived.

        Args:
            values: Arrays ``[n, ...]`` for every field but the actions and extras; a stacked
                observation is given in full, ``[n, k, ...]``.
            is_first: [n] bool: the row of a reset. Ends the env's open episode by a cut.
            terminated: [n] bool: the MDP ended with this row.
            truncated: [n] bool: the env's clock ended the episode with this row.
            env_ids: [n] indices of the envs, each at most once; all N in order when None.
            metadata: JSON-able facts of episodes that begin here, by env index.
            owned: Nobody will write into the given arrays any more, so a copy can be spared.

        Raises:
            SpecMismatch: A field has another name, dtype or shape, or a stacked observation is not
                the stack before, moved on by one frame.
            ValueError: An env without an open episode got a row that is not the first.
        """
        self._release()
        envs = self._all if env_ids is None else env_ids
        self._check(values, self._observed, len(envs))
        self._check_order(envs, is_first)
        for name, stacks in self._stacks.items():
            stacks.check(values[name], is_first, None if envs is self._all else envs, owned)
        if is_first is not None:
            for env in envs[is_first].tolist():
                self._begin(env, (metadata or {}).get(env, {}))
        place = self._places(envs)
        for column in self._observed:
            rows = values[column.name]
            newest = rows[:, -1] if column.name in self._stacks else rows
            self._rows[column.name][place] = newest
        if envs is self._all:
            self._cursor += 1
            self._pending.fill(True)
            self._is_given.fill(False)
        else:
            self._cursor[envs] += 1
            self._pending[envs] = True
            self._is_given[envs] = False
        self._until_due -= 1
        for flags, end in ((terminated, End.TERMINATED), (truncated, End.TRUNCATED)):
            if flags is not None:
                for env in envs[flags].tolist():
                    self._end(env, end)

    def act(self, values: Mapping[str, np.ndarray], *, env_ids: np.ndarray | None = None) -> None:
        """Complete the newest rows with the action chosen from them, and extras.

        Rows that ended their episode are left as they are: nothing can be chosen from them.

        Args:
            values: Arrays ``[n, ...]`` for the fields of the action and the extras.
            env_ids: [n] indices of the envs; all N in order when None.

        Raises:
            SpecMismatch: A field has another name, dtype or shape.
        """
        self._release()
        envs = self._all if env_ids is None else env_ids
        self._check(values, self._acted, len(envs))
        waiting = self._pending[envs]
        some: slice | np.ndarray = slice(None)
        if np.count_nonzero(waiting) < len(envs):
            envs, some = envs[waiting], waiting
        place = self._places(envs) - 1
        for column in self._acted:
            self._rows[column.name][place] = values[column.name][some]
        self._pending[envs] = False

    def take(self, *, everything: bool = False) -> list[Chunk]:
        """The chunks that are due, or all rows there are.

        Rows that await their action are given out too, at the end of a chunk marked
        ``End.PENDING``, and once more, with their action, at the beginning of the env's next chunk.

        Returns:
            Chunks in the order of their rows. Their arrays are views that stay valid until the
            next `observe` or `act`: store or copy them at once.
        """
        self._release()
        envs = range(self.num_envs) if everything else np.flatnonzero(self._cursor >= self._due)
        chunks: list[Chunk] = []
        for env in map(int, envs):
            unfinished = self._unfinished(env)
            chunks += [self._chunk(env, run) for run in (*self._ended[env], *unfinished)]
            self._is_given[env] |= bool(unfinished)
            self._taken.append(env)
        return chunks

    def cut(self, env_ids: Sequence[int] | None = None) -> None:
        """Stop recording the open episodes of some envs (all when None).

        Their rows stay to be taken; the next row of these envs must be a first one.
        """
        self._release()
        for env in range(self.num_envs) if env_ids is None else env_ids:
            run = self._open[env]
            # The row of a reset from which nothing followed is no episode.
            if run is not None and (run.first_row > 0 or self._cursor[env] > run.start + 1):
                self._ended[env] += self._unfinished(env)
            self._open[env] = None
            self._pending[env] = False

    def _begin(self, env: int, metadata: Mapping[str, object]) -> None:
        if self._open[env] is not None:
            self.cut([env])
        facts: dict[str, object] = {"stream_episode": self._started[env], **metadata}
        self._open[env] = _Run(self.next_episode, 0, int(self._cursor[env]), -1, End.NONE, facts)
        self._started[env] += 1
        self.next_episode += 1

    def _end(self, env: int, end: End) -> None:
        run = self._open[env]
        if run is None:  # both flags are set: the run was moved a moment ago
            last = self._ended[env].pop()
            self._ended[env].append(last._replace(end=last.end | end))
            return
        self._ended[env].append(run._replace(stop=int(self._cursor[env]), end=end))
        self._open[env] = None
        self._pending[env] = False
        self._blank(env)

    def _unfinished(self, env: int) -> list[_Run]:
        """The open run as it stands, unless it says nothing new."""
        run = self._open[env]
        stop = int(self._cursor[env])
        if run is None:
            return []
        if self._pending[env]:
            self._blank(env)
            is_new = stop - run.start > 1 or (run.first_row > 0 and not self._is_given[env])
            # A row of a reset from which nothing followed is not worth a chunk.
            return [run._replace(stop=stop, end=End.PENDING)] if is_new else []
        return [run._replace(stop=stop)] if stop > run.start else []

    def _chunk(self, env: int, run: _Run) -> Chunk:
        rows = slice(env * self._room + run.start, env * self._room + run.stop)
        fields = {field.name: self._rows[field.name][rows] for field in self._spec.fields}
        return Chunk(run.episode, env, run.first_row, run.end, fields, run.metadata)

    def _release(self) -> None:
        """Make room where chunks were taken; only now, since they are views."""
        for env in self._taken:
            stop = int(self._cursor[env])
            keep = int(self._pending[env])
            if keep:
                base = env * self._room
                for rows in self._rows.values():
                    rows[base] = rows[base + stop - 1]
            run = self._open[env]
            if run is not None:
                first_row = run.first_row + stop - run.start - keep
                self._open[env] = run._replace(first_row=first_row, start=0)
            self._ended[env] = []
            self._cursor[env] = keep
            self._due[env] = self._chunk_rows
        self._taken = []

    def _places(self, envs: np.ndarray) -> np.ndarray:
        """Where the next row of each env goes."""
        if envs is self._all:
            return self._base + self._cursor
        places: np.ndarray = self._base[envs] + self._cursor[envs]
        return places

    def _blank(self, env: int) -> None:
        """Nothing was chosen from the newest row."""
        place = env * self._room + int(self._cursor[env]) - 1
        for column in self._acted:
            self._rows[column.name][place] = 0

    def _check(self, values: Mapping[str, np.ndarray], columns: list[_Column], n: int) -> None:
        if len(values) != len(columns) or any(column.name not in values for column in columns):
            raise SpecMismatch(
                f"expected the fields {sorted(column.name for column in columns)}, got "
                f"{sorted(values)}: give exactly the fields of the Spec"
            )
        for column in columns:
            rows = values[column.name]
            if rows.dtype != column.dtype or rows.shape != (n, *column.shape):
                raise SpecMismatch(
                    f"field {column.name!r}: expected {column.dtype} {(n, *column.shape)}, got "
                    f"{rows.dtype} {rows.shape}; convert it before it is stored"
                )

    def _check_order(self, envs: np.ndarray, first: np.ndarray | None) -> None:
        if None in self._open:
            new: set[int] = set() if first is None else set(envs[first].tolist())
            for env in envs.tolist():
                if self._open[env] is None and env not in new:
                    raise ValueError(
                        f"env {env} has no open episode: expected a row with is_first, got one "
                        f"without; mark the row of its reset"
                    )
        if self._until_due < 0 and (self._cursor[envs] > self._chunk_rows).any():
            raise ValueError(
                f"expected at most {self._chunk_rows} rows of an env that were not taken, got "
                f"{self._room}: call take() whenever is_due"
            )


class _Column:
    """What a field's arrays must be, looked up once."""

    def __init__(self, field: Field) -> None:
        self.name = field.name
        self.dtype = field.numpy_dtype
        self.shape = field.source_shape


class _Run(NamedTuple):
    """Rows ``start .. stop`` of one env's memory: a part of one episode."""

    episode: int
    first_row: int
    start: int
    stop: int
    end: End
    metadata: Mapping[str, object]


def _is_chosen(name: str) -> bool:
    """Whether a field comes with the action rather than with the observation."""
    return name.split("/")[0] in ("action", "extra")


def _rows_by_size(spec: Spec, num_envs: int) -> int:
    """As many rows as fit in 64 MiB for all envs, in whole blocks of compression."""
    fitting = _MAX_BYTES // max(1, spec.row_bytes * num_envs)
    return max(_MIN_ROWS, min(_MAX_ROWS, fitting // _MIN_ROWS * _MIN_ROWS))
