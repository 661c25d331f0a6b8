"""The open episodes of N envs: rows in, chunks out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from stepwell.buffers.episode import Chunk, End, plain_json
from stepwell.buffers.errors import SpecMismatch
from stepwell.buffers.spec import Field, Layout, Spec, flatten
from stepwell.buffers.whole_numbers import check_whole

__all__ = ["OBSERVED", "EpisodeBuffer"]

OBSERVED = Field("info/observed", "bool", (), "narrow")
"""Marks the rows whose observation was given. `EpisodeBuffer.add` writes it in a Spec that has it.

It is False in the last row of an episode whose last observation is unknown; the observation before
is repeated there."""

_MAX_ROWS, _MIN_ROWS, _MAX_BYTES = 512, 16, 64 << 20
_Expected: TypeAlias = "dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]]"


class EpisodeBuffer:
    """Collects the rows of N envs and hands them out as chunks of episodes.

    `add` takes the transitions of a loop of your own. A `Collector` uses the other form, which
    writes each row in two halves: `observe` begins it with the observation and its results,
    `act` completes it with the action. In both, envs may come in any groups: only the order within
    each env matters.

    Args:
        spec: The fields of every row.
        num_envs: Number of envs N; env i writes stream i.
        chunk_rows: Rows of an env after which its chunk is due; None chooses by size (at most 512).
        capacity: Capacity in steps of the replay that the chunks go to. At most an eighth of it is
            held here for all envs together: more would let one env's rows evict newer rows of
            another.
        next_episode: Id of the first episode that begins here.
        store: Called by `add` with the chunks that are due, also in the middle of a step, after the
            first rows of episodes. None: call `take` when `is_due`.

    Attributes:
        num_envs: Number of envs N.

    Example:
        >>> import gymnasium as gym
        >>> from stepwell.buffers import SequenceReplayBuffer, Spec
        >>> env = gym.make("CartPole-v1")
        >>> replay = SequenceReplayBuffer(seed=0)
        >>> replay.bind(Spec.from_spaces(env.observation_space, env.action_space), {})
        >>> buffer = EpisodeBuffer(replay.spec, num_envs=1, store=replay.add)
        >>> observation, _ = env.reset(seed=0)
        >>> for _ in range(100):
        ...     action = env.action_space.sample()
        ...     next_observation, reward, terminated, truncated, _ = env.step(action)
        ...     buffer.add(
        ...         observation, action, reward, next_observation, terminated, truncated, env_ids=0
        ...     )
        ...     observation = next_observation
        ...     if terminated or truncated:
        ...         observation, _ = env.reset()
        >>> replay.add(buffer.take(everything=True))
        >>> replay.steps
        100
    """

    def __init__(
        self,
        spec: Spec,
        num_envs: int,
        *,
        chunk_rows: int | None = None,
        capacity: int | None = None,
        next_episode: int = 0,
        store: Callable[[list[Chunk]], object] | None = None,
    ) -> None:
        if not isinstance(spec, Spec):
            raise TypeError(f"spec: expected a Spec, got {type(spec).__name__}")
        for name, value in (
            ("num_envs", num_envs),
            ("chunk_rows", 1 if chunk_rows is None else chunk_rows),
            ("capacity", 1 if capacity is None else capacity),
        ):
            check_whole(name, value, 1)
        self.num_envs = num_envs
        self._spec = spec
        self._store = store
        # The dtype and shape of each field's values, as computed once.
        self._expected: _Expected = {
            field.name: (field.numpy_dtype, field.source_shape) for field in spec.fields
        }
        names = [field.name for field in spec.fields if field.is_chosen]
        self._acted: _Expected = {name: self._expected[name] for name in names}
        self._received = {k: each for k, each in self._expected.items() if k not in names}
        self._info = {f.name: f.key for f in spec.of_kind("info") if f.name != OBSERVED.name}
        self._extra = {f.name: f.key for f in spec.of_kind("extra")}
        self._chunk_rows = chunk_rows or _rows_by_size(spec, num_envs)
        if capacity is not None:
            self._chunk_rows = max(1, min(self._chunk_rows, capacity // (8 * num_envs)))
        # Room for two more: `add` may write the row of a reset and the one that follows it.
        self._room = self._chunk_rows + 2
        self._rows = {
            field.name: np.empty((num_envs * self._room, *field.shape), field.numpy_dtype)
            for field in spec.fields
        }
        self._is_observed = self._rows.get(OBSERVED.name)
        # The arrays of a Spec with these four fields alone, and what they hold, for `add_next`.
        self._plain: Any = None
        four = (spec.observation, spec.action, "reward", OBSERVED.name)
        if len(spec.fields) == len(four) and set(spec.names) == set(map(str, four)):
            arrays = [self._rows[str(name)] for name in four]
            self._plain = *arrays, *((each.shape[1:], each.dtype) for each in arrays[:2])
        self._stacks = {
            field.name: _StackCheck(field, num_envs) for field in spec.fields if field.stack > 1
        }
        self._all = np.arange(num_envs)
        self._base = self._all * self._room
        self._cursor = np.zeros(num_envs, np.int64)
        # The envs' chunks fall due one after the other: each is then stored behind one env step.
        self._due = self._chunk_rows - (self._all * self._chunk_rows) // num_envs
        self._until_due = 0  # never more than the rows that may come before one is due
        self._pending = np.zeros(num_envs, np.bool_)  # the newest row awaits its action
        self._unobserved = np.zeros(num_envs, np.bool_)  # the newest row awaits its observation too
        self._is_given = np.zeros(num_envs, np.bool_)  # the pending row was already returned
        self._open: list[_Run | None] = [None] * num_envs
        self._ended: list[list[_Run]] = [[] for _ in range(num_envs)]
        self._started = [0] * num_envs
        self._taken: list[int] = []
        self.next_episode = next_episode

    def __repr__(self) -> str:
        return (
            f"EpisodeBuffer(num_envs={self.num_envs}, chunk_rows={self._chunk_rows}, "
            f"next_episode={self.next_episode}, fields=({self._spec.summary}))"
        )

    @property
    def is_due(self) -> bool:
        """Some env has a whole chunk, which must be taken before its next row comes."""
        if self._until_due <= 0:
            self._until_due = int((self._due - self._cursor).min())
        return self._until_due <= 0

    def waiting_rows(self, env: int) -> int:
        """Rows of an env that were not taken, without one whose observation is not known yet."""
        if self._taken:
            self._release()
        return int(self._cursor[env]) - int(self._unobserved[env])

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any,
        *,
        env_ids: np.ndarray | int | None = None,
        extras: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        next_info: Mapping[str, Any] | None = None,
        metadata: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        """Add one transition of each of n envs; everything is copied.

        An env's episode continues where `observation` is, byte for byte, the `next_observation`
        before; that one is stored once. Otherwise the open episode ends by a cut and another one
        begins.

        Args:
            observation: ``[n, ...]``, nested like the Spec's observation. A stacked observation may
                be given in full, ``[n, k, ...]``, or as its newest frame alone.
            action: ``[n, ...]``, nested like the Spec's action.
            reward: [n] numbers: the rewards of the actions.
            next_observation: ``[n, ...]``: the result of the actions; where an episode ended, its
                true last observation. None where it is not known yet: the env's next `observation`
                is used.
            terminated: [n] bool: the MDP ended with the transition.
            truncated: [n] bool: a time limit ended the episode with the transition.
            env_ids: [n] indices of the envs, each at most once; all N in order when None. An int is
                one env, and then no value has the axis of envs.
            extras: Values of the fields ``extra/...`` by the rest of their names.
            info: Values of the fields ``info/...`` that came with `observation`, by the rest of
                their names; other keys are ignored. They are stored where `observation` is.
            next_info: The same for `next_observation`.
            metadata: JSON-able facts of episodes that begin here, by env index.

        Raises:
            SpecMismatch: A value has another dtype or shape, or a stack of frames is not the one
                before, moved on by one frame. Nothing was added.
            ValueError: An episode ended without a `next_observation` and the Spec lacks the field
                `OBSERVED` to mark that; or an index of `env_ids` is invalid or given twice. Nothing
                was added.
            TypeError: The metadata are not JSON values. Nothing was added.
        """
        if self._taken:
            self._release()
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata: expected a mapping by env index, got {metadata!r}")
        lead: tuple[int, ...] = ()
        if type(env_ids) is int or isinstance(env_ids, np.integer):
            envs: Any = int(env_ids)
            if not 0 <= envs < self.num_envs:
                raise ValueError(f"env_ids: expected 0 to {self.num_envs - 1}, got {envs}")
        else:
            envs = self._all if env_ids is None else self._checked_ids(env_ids)
            lead = envs.shape
        layout = self._spec.observation
        values = self._leaves(layout, observation, lead)
        chosen = self._leaves(self._spec.action, action, lead)
        for name, key in self._extra.items():
            chosen[name] = self._entry(name, key, extras, "extras", lead)
        gain = reward if type(reward) is float and not lead else _rewards(reward, lead)
        is_terminated = _flags("terminated", terminated, lead)
        is_truncated = _flags("truncated", truncated, lead)
        ended = _those(envs, is_terminated | is_truncated)
        results: dict[str, np.ndarray] | None = None
        if next_observation is not None:
            results = self._leaves(layout, next_observation, lead)
            for name, key in self._info.items():
                results[name] = self._entry(name, key, next_info, "next_info", lead)
        elif ended and self._is_observed is None:
            raise ValueError(
                f"next_observation: expected the last observation of env {ended[0]}, whose episode "
                f"ended, got None; give it, or add the field {OBSERVED.name!r} to the Spec"
            )
        if self._until_due < 0:
            self._check_room(envs)
        first, late = self._new_rows(envs, values)
        begun, late_ones = _those(envs, first), _those(envs, late)
        facts = (
            {env: plain_json(metadata[env]) for env in begun if env in metadata} if metadata else {}
        )
        if begun or late_ones:
            for name, key in self._info.items():
                values[name] = self._entry(name, key, info, "info", lead)
        if self._stacks:
            self._check_stacks(envs, values, results, first, late)

        if begun or late_ones:
            for env in begun:
                self._begin(env, facts.get(env, {}))
            self._cursor[envs] += first
            if lead:
                is_new = first | late
                new = {name: rows[is_new] for name, rows in values.items()}
                self._put(self._newest(envs[is_new]), new)
            else:
                self._put(self._newest(envs), values)
            self._unobserved[envs] = False
            for env in begun:
                self._rows["reward"][self._newest(env)] = 0.0
                self._pending[env], self._is_given[env] = True, False
            if begun:
                self._until_due -= 1
                self._store_due()
        place = self._newest(envs)
        for name, rows in chosen.items():
            self._rows[name][place] = rows
        self._cursor[envs] += 1
        self._until_due -= 1
        place = place + 1
        self._rows["reward"][place] = gain
        if results is not None:
            self._put(place, results)
        self._pending[envs] = True
        self._is_given[envs] = False
        self._unobserved[envs] = results is None
        if ended:
            for env in ended:
                if results is None:
                    self._repeat(env)
                    self._unobserved[env] = False
            for env in _those(envs, is_terminated):
                self._end(env, End.TERMINATED)
            for env in _those(envs, is_truncated):
                self._end(env, End.TRUNCATED)
        self._store_due()

    def add_next(self, env: int, observation: object, action: object, reward: object) -> bool:
        """Add the most common kind of row of one env, in a quarter of the time of `add`.

        That is a transition that continues an episode and does not end it, whose next observation
        is not known yet, as was that of the one before; in a Spec of an observation, an action, the
        reward and `OBSERVED`; before the env has ``chunk_rows`` rows.

        Args:
            env: Index of the env.
            observation: An array of exactly the Spec's dtype and shape, ``[...]``.
            action: The same.
            reward: A float.

        Returns:
            False, with nothing done, where it is any other case: call `add`.
        """
        if self._taken:
            self._release()
        if (
            self._plain is None
            or type(observation) is not np.ndarray
            or type(action) is not np.ndarray
            or type(reward) is not float
            or not 0 <= env < self.num_envs
            or not self._unobserved[env]
        ):
            return False
        observations, actions, rewards, observed, (shape, dtype), (size, kind) = self._plain
        cursor = self._cursor.item(env)
        if (
            cursor >= self._chunk_rows
            or observation.shape != shape
            or action.shape != size
            or observation.dtype != dtype
            or action.dtype != kind
        ):
            return False
        place = env * self._room + cursor
        observations[place - 1] = observation
        observed[place - 1] = True
        actions[place - 1] = action
        rewards[place] = reward
        self._cursor[env] = cursor + 1
        if cursor == 1:  # perhaps the only row, which `take` returned
            self._is_given[env] = False
        self._until_due -= 1
        return True

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
        """Begin a row of each of n envs with an observation and the results of a step.

        Args:
            values: Arrays ``[n, ...]`` for every field but the actions and extras; a stacked
                observation is given in full, ``[n, k, ...]``.
            is_first: [n] bool: the row of a reset. It ends the env's open episode by a cut.
            terminated: [n] bool: the MDP ended with this row.
            truncated: [n] bool: a time limit ended the episode with this row.
            env_ids: [n] indices of the envs, each at most once; all N in order when None.
            metadata: JSON-able facts of episodes that begin here, by env index.
            owned: The caller does not write into the given arrays again, so no copy is needed.

        Raises:
            SpecMismatch: A field has another name, dtype or shape, or a stacked observation is not
                the stack before, moved on by one frame.
            ValueError: An env without an open episode got a row that is not the first.
        """
        if self._taken:
            self._release()
        envs = self._all if env_ids is None else env_ids
        _check(values, self._received, len(envs))
        if None in self._open:
            self._check_open(envs, is_first)
        if self._until_due < 0:
            self._check_room(envs)
        for name, stacks in self._stacks.items():
            stacks.check(values[name], is_first, None if envs is self._all else envs, owned)
        if is_first is not None:
            for env in envs[is_first].tolist():
                self._begin(env, (metadata or {}).get(env, {}))
        if envs is self._all:
            place = self._base + self._cursor
            self._cursor += 1
            self._pending.fill(True)
            self._is_given.fill(False)
            self._unobserved.fill(False)
        else:
            place = self._base[envs] + self._cursor[envs]
            self._cursor[envs] += 1
            self._pending[envs] = True
            self._is_given[envs] = False
            self._unobserved[envs] = False
        for name, rows in values.items():
            self._rows[name][place] = rows[:, -1] if name in self._stacks else rows
        self._until_due -= 1
        if terminated is not None:
            for env in envs[terminated].tolist():
                self._end(env, End.TERMINATED)
        if truncated is not None:
            for env in envs[truncated].tolist():
                self._end(env, End.TRUNCATED)

    def act(self, values: Mapping[str, np.ndarray], *, env_ids: np.ndarray | None = None) -> None:
        """Complete the newest rows with the action chosen from them, and extras.

        Rows that ended their episode are left as they are: no action is chosen from them.

        Args:
            values: Arrays ``[n, ...]`` for the fields of the action and the extras.
            env_ids: [n] indices of the envs; all N in order when None.

        Raises:
            SpecMismatch: A field has another name, dtype or shape.
        """
        if self._taken:
            self._release()
        envs = self._all if env_ids is None else env_ids
        _check(values, self._acted, len(envs))
        waiting = self._pending[envs]
        some: slice | np.ndarray = slice(None)
        if np.count_nonzero(waiting) < len(envs):
            envs, some = envs[waiting], waiting
        place = self._base[envs] + self._cursor[envs] - 1
        for name, rows in values.items():
            self._rows[name][place] = rows[some]
        self._pending[envs] = False

    def take(
        self,
        env_ids: Sequence[int] | None = None,
        *,
        everything: bool = False,
        newest: bool = False,
    ) -> list[Chunk]:
        """Return the chunks that are due, or all rows there are.

        Rows that await their action are included, at the end of a chunk marked ``End.PENDING``, and
        once more, with their action, at the beginning of the env's next chunk.

        Args:
            env_ids: Take all rows of these envs.
            everything: Take all rows of all envs.
            newest: Include transitions whose next observation is not known yet: the observation
                before is repeated in its place, until the next call. The Spec needs the field
                `OBSERVED`.

        Returns:
            Chunks in the order of their rows. Their arrays are views that stay valid until the
            next `add`, `observe` or `act`: store or copy them at once.
        """
        if self._taken:
            self._release()
        if newest and self._is_observed is None:
            raise ValueError(
                f"newest=True: expected a Spec with the field {OBSERVED.name!r}, got none; add it"
            )
        envs: Sequence[int] = range(self.num_envs)
        if env_ids is not None:
            envs = env_ids
        elif not everything:
            envs = np.flatnonzero(self._cursor >= self._due).tolist()
        chunks: list[Chunk] = []
        for env in envs:
            chunks += [self._chunk(env, run) for run in self._ended[env]]
            run = self._unfinished(env, newest=newest)
            if run is not None:
                chunks.append(self._chunk(env, run))
                if run.end:
                    self._is_given[env] = True
            self._taken.append(env)
        return chunks

    def cut(self, env_ids: Sequence[int] | None = None, *, newest: bool = False) -> None:
        """End the recording of the open episodes of some envs (all when None).

        Their rows stay to be taken; the next row of these envs begins another episode.

        Args:
            env_ids: Indices of the envs.
            newest: Keep transitions whose next observation is not known, as in `take`.
        """
        if self._taken:
            self._release()
        for env in range(self.num_envs) if env_ids is None else env_ids:
            run = self._open[env]
            # The row of a reset from which nothing followed is no episode.
            if run is not None and (run.first_row > 0 or self._cursor[env] > run.start + 1):
                run = self._unfinished(env, newest=newest)
                self._ended[env] += [] if run is None else [run]
            if self._unobserved[env] and not newest:
                self._cursor[env] -= 1
            self._open[env] = None
            self._pending[env] = self._unobserved[env] = False

    def _begin(self, env: int, metadata: Mapping[str, object]) -> None:
        if self._open[env] is not None:
            self.cut([env])
        facts: dict[str, object] = {"stream_episode": self._started[env], **metadata}
        self._open[env] = _Run(self.next_episode, self._cursor.item(env), facts)
        self._started[env] += 1
        self.next_episode += 1

    def _end(self, env: int, end: End) -> None:
        run = self._open[env]
        if run is None:  # both flags are set: the run was moved a moment ago
            self._ended[env][-1].end |= end
            return
        run.stop, run.end = self._cursor.item(env), end
        self._ended[env].append(run)
        self._open[env] = None
        self._pending[env] = False
        self._blank(env)

    def _unfinished(self, env: int, *, newest: bool) -> _Run | None:
        """The open run up to its newest row; None if it has no new rows."""
        run = self._open[env]
        if run is None:
            return None
        run.stop, run.end = self._cursor.item(env), End.NONE
        if self._unobserved[env]:
            if not newest:
                run.stop -= 1
                return run if run.stop > run.start else None
            self._repeat(env)
        if self._pending[env]:
            self._blank(env)
            run.end = End.PENDING
            is_new = run.stop - run.start > 1 or (run.first_row > 0 and not self._is_given[env])
            return run if is_new else None  # a reset's row that no other row follows needs no chunk
        return run if run.stop > run.start else None

    def _chunk(self, env: int, run: _Run) -> Chunk:
        rows = slice(env * self._room + run.start, env * self._room + run.stop)
        fields = {field.name: self._rows[field.name][rows] for field in self._spec.fields}
        return Chunk(run.episode, env, run.first_row, run.end, fields, run.metadata)

    def _release(self) -> None:
        """Release the memory of taken chunks; only now, since they are views."""
        for env in self._taken:
            if self._unobserved[env]:  # while the row before is there
                self._repeat(env)
            stop = int(self._cursor[env])
            keep = int(self._pending[env])
            if keep:
                base = env * self._room
                for rows in self._rows.values():
                    rows[base] = rows[base + stop - 1]
            run = self._open[env]
            if run is not None:
                run.first_row += stop - run.start - keep
                run.start = 0
            self._ended[env] = []
            self._cursor[env] = keep
            self._due[env] = self._chunk_rows
        self._taken = []

    def _newest(self, envs: Any) -> Any:
        """Indices of the newest rows of envs, or of one env."""
        if type(envs) is int:
            return envs * self._room + int(self._cursor[envs]) - 1
        return self._base[envs] + self._cursor[envs] - 1

    def _store_due(self) -> None:
        """Pass the chunks that are due to the function that stores them, if there is one."""
        if self._store is not None and self.is_due:
            chunks = self.take()
            if chunks:
                self._store(chunks)
            self._release()

    def _put(self, place: Any, values: Mapping[str, np.ndarray]) -> None:
        """Write given observations."""
        for name, rows in values.items():
            self._rows[name][place] = rows
        if self._is_observed is not None:
            self._is_observed[place] = True

    def _repeat(self, env: int) -> None:
        """Copy the previous observation to the newest row, whose own is not known."""
        run = self._open[env]
        place = env * self._room + int(self._cursor[env]) - 1
        if run is not None and place > env * self._room + run.start:  # else it was done before
            for name in self._received:
                if name != "reward":
                    self._rows[name][place] = self._rows[name][place - 1]
        if self._is_observed is not None:
            self._is_observed[place] = False

    def _blank(self, env: int) -> None:
        """Write zeros for the action of the newest row: none was chosen from it."""
        place = env * self._room + int(self._cursor[env]) - 1
        for name in self._acted:
            self._rows[name][place] = 0

    def _leaves(self, layout: Layout, value: Any, lead: tuple[int, ...]) -> dict[str, np.ndarray]:
        """The arrays of a nested value by field name, checked."""
        found: dict[str, np.ndarray] = {}
        for name, leaf in ((layout, value),) if type(layout) is str else flatten(layout, value):
            dtype, shape = self._expected[name]
            rows = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
            if rows.dtype != dtype or (
                rows.shape != (*lead, *shape)
                and (rows.shape != (*lead, *shape[1:]) or name not in self._stacks)
            ):
                raise _mismatch(name, (dtype, shape), rows, lead)
            found[name] = rows
        return found

    def _entry(
        self,
        name: str,
        key: str,
        values: Mapping[str, Any] | None,
        what: str,
        lead: tuple[int, ...],
    ) -> np.ndarray:
        """The values of a further field, checked."""
        if values is None or key not in values:
            raise SpecMismatch(
                f"{what}: expected the key {key!r} of field {name!r}, got {sorted(values or ())}; "
                f"give it"
            )
        dtype, shape = self._expected[name]
        rows = np.asarray(values[key])
        if rows.dtype != dtype or rows.shape != (*lead, *shape):
            raise _mismatch(name, (dtype, shape), rows, lead)
        return rows

    def _new_rows(self, envs: Any, values: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        """Masks of envs that begin an episode, and of envs whose newest row has no observation."""
        late, pending = self._unobserved[envs], self._pending[envs]
        if type(envs) is int:
            if late or not pending:
                return not late, bool(late)
            place = self._newest(envs)
            for name, rows in values.items():
                stacks = self._stacks.get(name)
                if stacks is not None and rows.shape == self._expected[name][1]:
                    is_same = not stacks.differ(rows[None], np.array([envs]))
                else:
                    is_same = rows.tobytes() == self._rows[name][place].tobytes()
                if not is_same:
                    return True, False
            return False, False
        known, first = pending & ~late, ~pending
        if np.count_nonzero(known):
            place = self._newest(envs)
            for name, rows in values.items():
                stacks = self._stacks.get(name)
                if stacks is not None and rows.shape[1:] == self._expected[name][1]:
                    first |= known & stacks.differ(rows, envs)
                else:
                    first |= known & _differ(rows, self._rows[name][place])
        return first, late

    def _check_stacks(
        self,
        envs: Any,
        values: dict[str, np.ndarray],
        results: dict[str, np.ndarray] | None,
        first: Any,
        late: Any,
    ) -> None:
        """Check full stacks, and replace them by their newest frames."""
        is_one = type(envs) is int
        ids = np.array([envs]) if is_one else envs
        found: list[tuple[str, np.ndarray]] = []
        for name, stacks in self._stacks.items():
            rows = values[name][None] if is_one else values[name]
            if rows.shape[1:] != self._expected[name][1]:
                continue
            is_first, new = np.atleast_1d(first), np.atleast_1d(first | late)
            if new.any():
                stacks.verify(rows[new], is_first[new], ids[new])
            if results is not None:
                after = results[name][None] if is_one else results[name]
                if after.shape != rows.shape:
                    raise _mismatch(name, self._expected[name], after, ids.shape)
                stacks.verify_next(after, rows)
                rows = after
            found.append((name, rows))
        for name, rows in found:
            self._stacks[name].remember(rows, ids)
            for fields in (values, results or {}):
                if name in fields:
                    fields[name] = fields[name][-1] if is_one else fields[name][:, -1]

    def _check_open(self, envs: np.ndarray, first: np.ndarray | None) -> None:
        new: set[int] = set() if first is None else set(envs[first].tolist())
        for env in envs.tolist():
            if self._open[env] is None and env not in new:
                raise ValueError(
                    f"env {env} has no open episode: expected a row with is_first, got one "
                    f"without; mark the row of its reset"
                )

    def _checked_ids(self, env_ids: object) -> np.ndarray:
        """Indices of several envs as an array.

        Raises:
            ValueError: They are not different whole numbers below N.
        """
        ids = np.asarray(env_ids)
        if ids.ndim == 1 and ids.dtype.kind in "iu":
            found = ids.tolist()
            if not found or (0 <= min(found) <= max(found) < self.num_envs):
                if len(set(found)) == len(found):
                    return ids
        raise ValueError(
            f"env_ids: expected different whole numbers from 0 to {self.num_envs - 1}, got "
            f"{env_ids!r}"
        )

    def _check_room(self, envs: Any) -> None:
        is_one = type(envs) is int
        most: int = self._cursor.item(envs) if is_one else int(self._cursor[envs].max())
        if most > self._chunk_rows:
            raise ValueError(
                f"expected at most {self._chunk_rows} rows of an env that were not taken, got "
                f"{most}: call take() whenever is_due"
            )


@dataclass(slots=True)
class _Run:
    """Rows ``start .. stop`` of one env's memory: a part of one episode."""

    episode: int
    start: int
    metadata: Mapping[str, object]
    first_row: int = 0
    stop: int = -1
    end: End = End.NONE


class _StackCheck:
    """Compares each stack with the one before it in the same env.

    It proves that a stacked observation loses nothing when only its newest frame is stored.

    Args:
        field: The stacked field.
        num_envs: Number of envs N.
    """

    def __init__(self, field: Field, num_envs: int) -> None:
        self._field = field
        self._before = _words(np.zeros((num_envs, *field.source_shape), field.numpy_dtype))

    def check(
        self, stacks: np.ndarray, first: np.ndarray | None, envs: np.ndarray | None, owned: bool
    ) -> None:
        """Refuse stacks that are not the ones before, moved on by one frame; remember the others.

        Args:
            stacks: Observations ``[n, k, ...]``.
            first: [n] bool: rows of a reset, which must be padded instead; None where none is.
            envs: [n] indices of the envs; None for all in order.
            owned: The array may be kept instead of copied.

        Raises:
            SpecMismatch: A stack is another one; nothing was remembered.
        """
        now = _words(stacks)
        self._verify(now, self._before if envs is None else self._before[envs], first)
        if envs is None:
            self._before = now if owned else now.copy()
        else:
            self._keep(now, envs)

    def verify(self, stacks: np.ndarray, first: np.ndarray, envs: np.ndarray) -> None:
        """Check stacks like `check`, without remembering them."""
        self._verify(_words(stacks), self._before[envs], first)

    def verify_next(self, stacks: np.ndarray, before: np.ndarray) -> None:
        """Refuse stacks that are not those of ``before``, moved on by one frame."""
        self._verify(_words(stacks), _words(before), None)

    def remember(self, stacks: np.ndarray, envs: np.ndarray) -> None:
        """Remember stacks as the newest ones of their envs."""
        self._keep(_words(stacks), envs)

    def differ(self, stacks: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """[n] bool: the stack is not the newest one of its env."""
        different: np.ndarray = (_words(stacks) != self._before[envs]).any(axis=(1, 2))
        return different

    def _keep(self, now: np.ndarray, envs: np.ndarray) -> None:
        self._before = self._before.copy()  # the kept array may be the caller's
        self._before[envs] = now

    def _verify(self, now: np.ndarray, before: np.ndarray, first: np.ndarray | None) -> None:
        field = self._field
        if first is None:
            is_right = _moved_on(now, before)
        else:
            new, old = now[first], ~first
            padding = new[:, -1:] if field.stack_padding == "repeat" else 0
            is_padded = bool((new[:, :-1] == padding).all())
            is_right = is_padded and _moved_on(now[old], before[old])
        if not is_right:
            raise SpecMismatch(
                f"field {field.name!r}: expected each stack of {field.stack} frames to be the one "
                f"before, moved on by one frame, and padded by {field.stack_padding} at a reset, "
                f"got other frames; collect with frame_stack=1 to store whole observations"
            )


def _moved_on(now: np.ndarray, before: np.ndarray) -> bool:
    """True if each stack begins with the last k - 1 frames of the one before."""
    return bool((now[:, :-1] == before[:, 1:]).all())


def _words(stacks: np.ndarray) -> np.ndarray:
    """The frames' bytes [n, k, words], as words of eight bytes where possible."""
    n, k = stacks.shape[:2]
    frames = np.ascontiguousarray(stacks).reshape(n, k, -1 if n else 0).view(np.uint8)
    return frames.view(np.uint64) if frames.shape[2] % 8 == 0 else frames


def _differ(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[n] bool: the rows' bytes differ; by bytes, nan equals itself."""
    n = len(rows)
    now, before = (_words(each.reshape(n, 1, -1)) for each in (rows, others))
    different: np.ndarray = (now != before).any(axis=(1, 2))
    return different


def _those(envs: Any, flags: Any) -> list[int]:
    """The envs with a flag; ``envs`` is an array or an int."""
    if type(envs) is int:
        return [envs] if flags else []
    found: list[int] = envs[flags].tolist() if np.count_nonzero(flags) else []
    return found


def _flags(what: str, value: Any, lead: tuple[int, ...]) -> Any:
    """Bools of n envs, or one."""
    if not lead and (value is False or value is True):
        return value
    flags = np.asarray(value)
    if flags.dtype != np.bool_ or flags.shape != lead:
        raise ValueError(f"{what}: expected bool {lead}, got {flags.dtype} {flags.shape}")
    return flags if lead else bool(flags)


def _rewards(value: Any, lead: tuple[int, ...]) -> np.ndarray:
    """Rewards of n envs, or one."""
    rewards = np.asarray(value)
    if rewards.dtype.kind not in "biuf" or rewards.shape != lead:
        raise SpecMismatch(f"reward: expected numbers {lead}, got {rewards.dtype} {rewards.shape}")
    return rewards.astype(np.float64, copy=False)


def _check(values: Mapping[str, np.ndarray], expected: _Expected, n: int) -> None:
    """Refuse unknown fields, and arrays of another dtype or shape."""
    if len(values) == len(expected):
        for name, (dtype, shape) in expected.items():
            rows = values.get(name)
            if rows is None:
                break
            if rows.dtype != dtype or rows.shape != (n, *shape):
                raise _mismatch(name, (dtype, shape), rows, (n,))
        else:
            return
    raise SpecMismatch(
        f"expected the fields {sorted(expected)}, got {sorted(values)}: give exactly the fields of "
        f"the Spec"
    )


def _mismatch(
    name: str,
    expected: tuple[np.dtype[np.generic], tuple[int, ...]],
    rows: np.ndarray,
    lead: tuple[int, ...],
) -> SpecMismatch:
    dtype, shape = expected
    return SpecMismatch(
        f"field {name!r}: expected {dtype} {(*lead, *shape)}, got {rows.dtype} {rows.shape}; "
        f"convert it before it is stored"
    )


def _rows_by_size(spec: Spec, num_envs: int) -> int:
    """The number of rows that fit in 64 MiB for all envs, in whole compression blocks."""
    fitting = _MAX_BYTES // max(1, spec.row_bytes * num_envs)
    return max(_MIN_ROWS, min(_MAX_ROWS, fitting // _MIN_ROWS * _MIN_ROWS))
