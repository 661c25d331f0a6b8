"""The open episodes of N envs: rows in, chunks out.

A row is an observation with the reward and infos that came with it, and the action that was chosen
from it. So it is written in two halves, by one function (`_write`), at its *place*: env * room +
row of the env. What each call writes, in an episode of two steps (o: observation, r: reward,
a: action):

===========================  =================  ===========================================
call                         row of an env      state of the newest row afterwards
===========================  =================  ===========================================
`observe` o0, is_first       o0 r=0             pending: it awaits its action
`act` a0                     o0 r=0 a0          none
`observe` o1 r1              o1 r1              pending
`act` a1                     o1 r1 a1           none
`observe` o2 r2, terminated  o2 r2 a=0          none: the episode has ended
`add` o0 a0 r1 o1            o0 r=0 a0; o1 r1   pending
`add` o1 a1 r2 None          a1; r2             pending and late: its observation comes, too
`add` o2 a2 r3 o3            o2 a2; o3 r3       pending
===========================  =================  ===========================================

`add` is therefore `act` on the newest row and `observe` of the next one, and the next call's
observation is only compared with what is there. Where it is another one, the open episode is cut
and a row is begun. A late row whose observation never comes repeats the one before, and `OBSERVED`
is False in it.

The rows of an env are some *runs*: parts of episodes that have ended, and of the open one. `take`
hands out a chunk for each. A chunk may end with a pending row (``End.PENDING``), which the next
chunk of the episode begins with, then with its action. Chunks are views: their rows are forgotten,
and a pending one moved to the front, only when the next call comes (`_release`). Each call begins
with that. All checks come before the first write, so that a call that is refused changes nothing;
only a wrong stack of frames, which may be found some rows late, drops rows (`_drop_unproven`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np

from ..base.errors import SpecMismatch, not_copied
from ..base.number_checks import check_whole
from ..base.untrusted_json import items, mapping, member, whole
from ..spec.spec import Field, Layout, Spec, exact_rewards, flatten, plain_array
from .episode import RUN_FACTS, Chunk, End, plain_json
from .row_memory import EnvRows

OBSERVED = Field("info/observed", "bool", (), "narrow")
"""Marks the rows whose observation was given. `EpisodeBuffer.add` writes it in a Spec that has it.

It is False in the last row of an episode whose last observation is unknown; the observation before
is repeated there."""

MOST_ENVS = 1 << 20
_MAX_ROWS, _MIN_ROWS, _MAX_BYTES = 512, 16, 64 << 20
# The state of an env's newest row.
_PENDING = 1  # it awaits its action
_LATE = 2  # its observation, too
_GIVEN = 4  # it was returned before it had its action
_PENDING_BIT = np.array(_PENDING, np.uint8)  # 1: a state's bit is a bool
# Stacks are compared at the first rows, and then at every 17th: a prime number, so that it meets
# every place of a pattern that repeats after fewer rows.
_COMPARED_ROWS, _COMPARED_EVERY = 16, 17
_Expected: TypeAlias = "dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]]"


class EpisodeBuffer:
    """Collects the rows of N envs and hands them out as chunks of episodes.

    `add` takes the transitions of a loop of your own. A `Collector` uses the other form, which
    writes each row in two halves: `observe` begins it with the observation and its results,
    `act` completes it with the action. In both, envs may come in any groups: only the order within
    each env matters.

    The rows of a large uncompressed first field are written to a `RowMemory` for each env: it is
    the buffer's own until a storage in RAM keeps it with the chunks in it, after which the buffer
    goes on in other memory. All other rows are copied once more when they are stored.

    Args:
        spec: The fields of every row.
        num_envs: Number of envs N; env i writes stream i.
        chunk_rows: Rows of an env after which its chunk is due; None chooses by size (at most 512).
        capacity: Capacity in steps of the replay that the chunks go to. At most an eighth of it is
            held here for all envs together: more would let one env's rows evict newer rows of
            another.
        next_episode: Id of the first episode that begins here.
        stream_episodes: For each env, the number within its stream of the first episode that begins
            here, which its metadata note; 0 when None.
        store: Called by `add` with the chunks that are due, also in the middle of a step, after the
            first rows of episodes. None: call `take` when `is_due`.
        known_stacks: `observe` gets stacks from an env that is known to stack right: none is
            compared with the frames before.

    Attributes:
        num_envs: Number of envs N.
        stream_episodes: For each env, the number within its stream of the next episode.

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

    def __reduce__(self) -> NoReturn:
        not_copied(
            "an EpisodeBuffer", "make one in each process, and send the chunks that it gives"
        )

    def __init__(
        self,
        spec: Spec,
        num_envs: int,
        *,
        chunk_rows: int | None = None,
        capacity: int | None = None,
        next_episode: int = 0,
        stream_episodes: Sequence[int] | None = None,
        store: Callable[[list[Chunk]], object] | None = None,
        known_stacks: bool = False,
    ) -> None:
        if not isinstance(spec, Spec):
            raise TypeError(f"spec: expected a Spec, got {type(spec).__name__}")
        check_whole("num_envs", num_envs, 1, MOST_ENVS)
        for name, value in (
            ("chunk_rows", 1 if chunk_rows is None else chunk_rows),
            ("capacity", 1 if capacity is None else capacity),
        ):
            check_whole(name, value, 1)
        self.num_envs = num_envs
        self._spec = spec
        self._store = store
        # The dtype and shape of each field's values, as computed once; then those of N envs.
        self._expected: _Expected = {
            field.name: (field.numpy_dtype, field.source_shape) for field in spec.fields
        }
        names = [field.name for field in spec.fields if field.is_chosen]
        self._acted: _Expected = {name: self._expected[name] for name in names}
        self._received = {k: each for k, each in self._expected.items() if k not in names}
        self._all_acted = _of_envs(self._acted, num_envs)
        self._all_received = _of_envs(self._received, num_envs)
        self._infos = [(f.name, f.key) for f in spec.of_kind("info") if f.name != OBSERVED.name]
        self._extras = [(f.name, f.key) for f in spec.of_kind("extra")]
        self._observed = {field.name for field in spec.of_kind("observation")}
        self._chunk_rows = chunk_rows or _rows_by_size(spec, num_envs)
        if capacity is not None:
            self._chunk_rows = max(1, min(self._chunk_rows, capacity // (8 * num_envs)))
        # Room for two more: `add` may write the row of a reset and the one that follows it.
        room = self._room = self._chunk_rows + 2
        # A large first field is written where it can stay, the others are arranged by the storage.
        first = spec.fields[0].name
        self._large = (
            EnvRows(spec, num_envs, room)
            if first in self._received and EnvRows.can_hold(spec)
            else None
        )
        self._large_name = first if self._large is not None else None
        # By field the rows of all envs, to write to, and for each env a view of its own, to read.
        self._rows: dict[str, Any] = {}
        self._of: dict[str, list[np.ndarray]] = {}
        for field in spec.fields:
            if self._large is not None and field.name == first:
                self._rows[first], self._of[first] = self._large, self._large.views
            else:
                rows = np.empty((num_envs * room, *field.shape), field.numpy_dtype)
                self._rows[field.name] = rows
                self._of[field.name] = np.split(rows, num_envs)
        # Written with each observation that was given.
        self._mark = {OBSERVED.name: True} if OBSERVED.name in spec.names else {}
        self._stacks = [field for field in spec.fields if field.stack > 1]
        self._compares = bool(self._stacks) and not known_stacks
        self._until_compared = 0
        self._compared = 0
        # For each stacked field and env: the newest stack while it was not compared, the frames
        # before the first row, and the number of rows that are known to be right.
        self._unproven: dict[str, list[Any]] = {f.name: [None] * num_envs for f in self._stacks}
        self._before: dict[str, list[Any]] = {f.name: [None] * num_envs for f in self._stacks}
        self._proven = [0] * num_envs
        self._all = np.arange(num_envs)
        self._base = self._all * room
        self._base_of_newest = self._base - 1
        self._cursor = np.zeros(num_envs, np.int64)
        self._cursors: Any = memoryview(cast("bytes", self._cursor))  # the same, faster for one
        self._ones = np.ones(num_envs, np.int64)
        # The envs' chunks fall due one after the other: each is then stored behind one env step.
        self._due = self._chunk_rows - (self._all * self._chunk_rows) // num_envs
        self._until_due = 0  # never more than the rows that may come before one is due
        self._states = bytearray(num_envs)
        self._state = np.frombuffer(self._states, np.uint8)  # the same memory
        self._none, self._all_pending = bytes(num_envs), bytes([_PENDING]) * num_envs
        self._open: list[_Run | None] = [None] * num_envs
        self._ended: list[list[_Run]] = [[] for _ in range(num_envs)]
        self.stream_episodes = [0] * num_envs if stream_episodes is None else list(stream_episodes)
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
        return self._cursor.item(env) - (self._states[env] & _LATE > 0)

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

        The arguments are those of `ReplayWriter.add`, with ``metadata`` always by env index, and
        all N envs where ``env_ids`` is None.

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
        # Everything is checked before the first value is written: a call that is refused adds
        # nothing. Of one env, `envs` is an int and each flag a bool.
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
        chosen: dict[str, Any] = self._leaves(self._spec.action, action, lead)
        for name, key in self._extras:
            chosen[name] = self._entry(name, key, extras, "extras", lead)
        gain = reward if type(reward) is float and not lead else _rewards(reward, lead)
        ended: list[int] = []
        is_terminated, is_truncated = terminated, truncated
        if lead or terminated is not False or truncated is not False:  # of one env mostly neither
            is_terminated = _flags("terminated", terminated, lead)
            is_truncated = _flags("truncated", truncated, lead)
            ended = _those(envs, is_terminated | is_truncated)
        results: dict[str, Any] = {}
        if next_observation is not None:
            results = self._leaves(layout, next_observation, lead)
            for name, key in self._infos:
                results[name] = self._entry(name, key, next_info, "next_info", lead)
        elif ended and not self._mark:
            raise ValueError(
                f"next_observation: expected the last observation of env {ended[0]}, whose episode "
                f"ended, got None; give it, or add the field {OBSERVED.name!r} to the Spec"
            )
        if self._until_due < 0:
            self._check_room(envs)
        first, late = self._new_rows(envs, values)
        is_new = first | late
        begun, given = _those(envs, first), _those(envs, is_new)
        facts: dict[int, dict[str, Any]] = {}
        if begun and metadata:
            facts = {env: plain_json(metadata[env]) for env in begun if env in metadata}
        if given:
            for name, key in self._infos:
                values[name] = self._entry(name, key, info, "info", lead)
        if self._stacks:
            self._check_stacks(envs, values, results, first, late)

        for env in begun:
            self._begin(env, facts.get(env, {}))
            self._states[env] = _PENDING
        if begun:
            if lead:
                self._cursor[envs] += first
            else:
                self._cursors[envs] += 1
            self._until_due -= 1
            self._store_due()  # may move the rows
        # Most observations are there already, as the next ones of the call before.
        place = self._newest(envs)
        if given and lead:
            new = {name: rows[is_new] for name, rows in values.items()}
            self._write(place[is_new], {**new, **self._mark})
        elif given:
            chosen |= {**values, **self._mark}
        if begun:
            self._write(self._newest(begun), {"reward": 0.0})
        self._write(place, chosen)
        state = _PENDING | _LATE
        if next_observation is not None:
            state = _PENDING
            results |= self._mark
        results["reward"] = gain
        self._write(place + 1, results)
        if lead:
            self._cursor[envs] += 1
            self._state[envs] = state
        else:
            self._cursors[envs] += 1
            self._states[envs] = state
        self._until_due -= 1
        if ended:
            if state & _LATE:  # the last observation stays unknown
                for env in ended:
                    self._repeat(env)
            for env in _those(envs, is_terminated):
                self._end(env, End.TERMINATED)
            for env in _those(envs, is_truncated):
                self._end(env, End.TRUNCATED)
        if self._until_due <= 0:
            self._store_due()

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
            owned: The caller does not write into the given arrays again. Then stacks are kept, and
                only some are compared with the frames before: those of the first 16 calls and of
                every 17th, of rows that begin or end an episode, and each env's newest one when
                its rows are taken or its episode is cut. Otherwise all are.

        Raises:
            SpecMismatch: A field has another name, dtype or shape, or a stacked observation is not
                the frames before, moved on by one. The rows of that env since its stack was last
                compared are dropped then, and its episode is cut there.
            ValueError: An env without an open episode got a row that is not the first.
        """
        if self._taken:
            self._release()
        envs = self._all if env_ids is None else env_ids
        _check(
            values,
            self._all_received if env_ids is None else _of_envs(self._received, len(envs)),
        )
        first = [] if is_first is None else _those(envs, is_first)
        if None in self._open:
            self._check_open(envs, first)
        if self._until_due < 0:
            self._check_room(envs)
        ended = [] if terminated is None else _those(envs, terminated)
        timed_out = [] if truncated is None else _those(envs, truncated)
        if self._compares:
            self._compare(values, envs, first, ended + timed_out, owned)
        for env in first:
            self._begin(env, (metadata or {}).get(env, {}))
        if self._stacks:
            values = {**values, **{f.name: values[f.name][:, -1] for f in self._stacks}}
        if env_ids is None:
            self._write(self._base + self._cursor, values)
            np.add(self._cursor, self._ones, self._cursor)
            self._states[:] = self._all_pending
        else:
            cursor = self._cursor[envs]
            self._write(self._base[envs] + cursor, values)
            self._cursor[envs] = cursor + 1
            self._state[envs] = _PENDING
        self._until_due -= 1
        for env in ended:
            self._end(env, End.TERMINATED)
        for env in timed_out:
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
        _check(values, self._all_acted if env_ids is None else _of_envs(self._acted, len(envs)))
        if env_ids is None and self._states == self._all_pending:
            self._write(self._base_of_newest + self._cursor, values)
            self._states[:] = self._none
            return
        waiting = (self._state[envs] & _PENDING_BIT).view(np.bool_)
        some = {name: rows[waiting] for name, rows in values.items()}
        envs = envs[waiting]
        self._write(self._newest(envs), some)
        self._state[envs] ^= _PENDING_BIT

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
            next `add`, `observe` or `act`: store or copy them at once. Do not write to them
            afterwards, since a storage may keep their memory.

        Raises:
            SpecMismatch: The newest stack of an env is not the frames before it, moved on by one.
                Its rows since the last comparison are dropped, and its episode is cut there.
        """
        if self._taken:
            self._release()
        if newest and not self._mark:
            raise ValueError(
                f"newest=True: expected a Spec with the field {OBSERVED.name!r}, got none; add it"
            )
        envs: Sequence[int] = range(self.num_envs)
        if env_ids is not None:
            envs = env_ids
        elif not everything:
            envs = np.flatnonzero(self._cursor >= self._due).tolist()
        self._prove(envs)
        chunks: list[Chunk] = []
        for env in envs:
            runs = [*self._ended[env], self._unfinished(env, newest=newest)]
            following = [*self._ended[env][1:], self._open[env], None][-len(runs) :]
            chunks += [
                self._chunk(env, run, after)
                for run, after in zip(runs, following, strict=True)
                if run is not None
            ]
            if runs[-1] is not None and runs[-1].end:
                self._states[env] |= _GIVEN
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
        envs = range(self.num_envs) if env_ids is None else env_ids
        self._prove(envs)
        for env in envs:
            run = self._open[env]
            is_late = self._states[env] & _LATE
            # The row of a reset from which nothing followed is no episode.
            if run is not None and (run.first_row > 0 or self._cursor[env] > run.start + 1):
                run = self._unfinished(env, newest=newest)
                self._ended[env] += [] if run is None else [run]
            if is_late and not newest:
                self._cursor[env] -= 1
            self._open[env] = None
            self._states[env] = 0

    def state_dict(self) -> dict[str, object]:
        """The open episodes, after all rows were taken; their rows but the newest are elsewhere."""
        if self._taken:
            self._release()
        assert self._cursor.max() <= 1, "rows wait: take them first"
        names = [name for name in self._received if name not in self._observed]
        return {
            "next_episode": self.next_episode,
            "stream_episodes": list(self.stream_episodes),
            "open": [
                None if run is None else [run.episode, run.first_row, dict(run.metadata)]
                for run in self._open
            ],
            "newest": {
                name: np.array([rows[0] for rows in self._of[name]]).copy() for name in names
            },
        }

    def load_state_dict(self, state: object, observed: Mapping[str, np.ndarray]) -> None:
        """Continue the open episodes of a state of `state_dict`, in a buffer without rows.

        Args:
            state: The state.
            observed: The newest observations ``[N, ...]`` by field name, stacks in full.

        Raises:
            ValueError: It is no such state.
        """
        told, n = mapping(state, "buffer"), self.num_envs
        newest = {**mapping(member(told, "newest"), "newest"), **observed}
        runs = list(map(_run_of, items(member(told, "open"), "open", n)))
        counts = items(member(told, "stream_episodes"), "stream_episodes", n)
        streams = [whole(one, "stream_episodes") for one in counts]
        next_episode = whole(member(told, "next_episode"), "next_episode")
        if not all(isinstance(rows, np.ndarray) for rows in newest.values()):
            raise ValueError("newest: expected arrays of values")
        try:
            _check(cast("Mapping[str, np.ndarray]", newest), self._all_received)
        except SpecMismatch as error:
            raise ValueError(str(error)) from None
        self.next_episode, self.stream_episodes = next_episode, streams
        self._open = runs
        for env, run in enumerate(runs):
            if run is None:
                continue
            if self._large is not None:
                run.room = self._large.begin(env, 0)
                run.offset = self._large.offset(env, 0)
            for name in self._received:
                row: Any = newest[name]
                is_stack = name in self._before
                if is_stack and run.first_row:
                    self._before[name][env] = row[env][:-1].copy()
                value = row[env][-1] if is_stack else row[env]
                self._write(self._base.item(env), {name: value})
            self._cursor[env] = self._proven[env] = 1
            self._states[env] = _PENDING | (_GIVEN if run.first_row else 0)
        self._due[:] = self._chunk_rows

    def renumber(self, next_episode: int) -> None:
        """Give new ids to all episodes whose rows wait, or are to come.

        For rows that others have stored meanwhile, whose episodes have used the ids. Of an episode
        that is stored in part, the rest becomes an episode of its own; its metadata do not say how
        to play it again.

        Args:
            next_episode: The lowest id that was not used.
        """
        if self._taken:
            self._release()
        runs: list[_Run] = []
        for env, ended in enumerate(self._ended):
            if ended and ended[0].first_row > 0 and ended[0].stop - ended[0].start == 1:
                del ended[0]  # one row is no episode
            own = [run for run in (*ended, self._open[env]) if run is not None]
            if own and own[0].first_row > 0:
                own[0].first_row, own[0].is_rest = 0, True
                self.stream_episodes[env] += 1
                number = self.stream_episodes[env] - len(own)
                for place, run in enumerate(own):
                    run.metadata = {**run.metadata, "stream_episode": number + place}
                facts = own[0].metadata.items()
                own[0].metadata = {
                    key: value
                    for key, value in facts
                    if key == "stream_episode" or key not in RUN_FACTS
                }
            runs += own
        for place, run in enumerate(sorted(runs, key=lambda run: run.episode)):
            run.episode = next_episode + place
        self.next_episode = next_episode + len(runs)

    def _begin(self, env: int, metadata: Mapping[str, object]) -> None:
        if self._open[env] is not None:
            self.cut([env])
        facts: dict[str, object] = {"stream_episode": self.stream_episodes[env], **metadata}
        run = _Run(self.next_episode, self._cursor.item(env), facts)
        if self._large is not None:
            run.room = self._large.begin(env, run.start)
            run.offset = self._large.offset(env, run.start)
        for before in self._before.values():
            before[env] = None
        self._open[env] = run
        self.stream_episodes[env] += 1
        self.next_episode += 1

    def _end(self, env: int, end: End) -> None:
        run = self._open[env]
        if run is None:  # both flags are set: the run was moved a moment ago
            self._ended[env][-1].end |= end
            return
        run.stop, run.end = self._cursor.item(env), end
        self._ended[env].append(run)
        self._open[env] = None
        self._states[env] = 0
        self._blank(env)

    def _unfinished(self, env: int, *, newest: bool) -> _Run | None:
        """The open run up to its newest row; None if it has no new rows."""
        run = self._open[env]
        if run is None:
            return None
        state = self._states[env]
        run.stop, run.end = self._cursor.item(env), End.NONE
        if state & _LATE:
            if not newest:
                run.stop -= 1
                return run if run.stop > run.start else None
            self._repeat(env)
        if state & _PENDING:
            self._blank(env)
            run.end = End.PENDING
            is_new = run.stop - run.start > 1 or (run.first_row > 0 and not state & _GIVEN)
            return run if is_new else None  # a reset's row that no other row follows needs no chunk
        return run if run.stop > run.start else None

    def _chunk(self, env: int, run: _Run, following: _Run | None) -> Chunk:
        """The chunk of a run, and where it may stay, up to the run that follows."""
        rows = slice(run.start, run.stop)
        if run.is_rest and run.first_row == 0:
            self._of["reward"][env][run.start] = 0.0
        fields = {field.name: self._of[field.name][env][rows] for field in self._spec.fields}
        place = None
        if self._large is not None and self._large_name is not None:
            count = run.stop - run.start
            fields[self._large_name] = self._large.rows(env, run.offset, count)
            stop = None if following is None else following.room
            place = self._large.place(env, run.room, run.offset, count, stop)
        facts = run.episode, env, run.first_row, run.end
        return Chunk(*facts, fields, run.metadata, place=place)

    def _release(self) -> None:
        """Release the memory of taken chunks; only now, since they are views."""
        for env in self._taken:
            state = self._states[env]
            if state & _LATE:  # while the row before is there
                self._repeat(env, but=self._large_name)
            stop = self._cursor.item(env)
            keep = state & _PENDING
            run = self._open[env]
            if run is not None and stop - keep > run.start:
                for field in self._stacks:
                    before = self._frames_before(field, env, stop - keep)
                    self._before[field.name][env] = before.copy()
            if keep:
                for name, views in self._of.items():
                    if name != self._large_name:
                        views[env][0] = views[env][stop - 1]
            if self._large is not None:
                # Of a late row the observation before: a storage may have kept the memory.
                repeats = state & _LATE and run is not None and stop - 1 > run.start
                self._large.start_over(env, stop - 1 - bool(repeats) if keep else None)
            if run is not None:
                run.first_row += stop - run.start - keep
                run.start = run.room = 0
                if self._large is not None:
                    run.offset = self._large.offset(env, 0)
            self._ended[env] = []
            self._cursor[env] = self._proven[env] = keep
            self._due[env] = self._chunk_rows
        self._taken = []

    def _store_due(self) -> None:
        """Pass the chunks that are due to the function that stores them, if there is one."""
        if self._store is not None and self.is_due:
            chunks = self.take()
            if chunks:
                self._store(chunks)
            self._release()

    def _newest(self, envs: Any) -> Any:
        """The places of the newest rows of envs, or of one."""
        if type(envs) is int:
            return envs * self._room + self._cursors[envs] - 1
        return self._base_of_newest[envs] + self._cursor[envs]

    def _write(self, place: Any, values: Mapping[str, Any]) -> None:
        """Write the values of n rows, or of one where the place is an int: env * room + row."""
        for name, rows in values.items():
            self._rows[name][place] = rows

    def _repeat(
        self,
        env: int,
        *,
        but: str | None = None,  # a field that is left out
    ) -> None:
        """Copy the observation before to the newest row, whose own is not known."""
        run = self._open[env]
        row = self._cursor.item(env) - 1
        if run is not None and row > run.start:  # else it was done before
            for name in self._received:
                if name not in ("reward", but):
                    rows = self._of[name][env]
                    rows[row] = rows[row - 1]
        if self._mark:
            self._of[OBSERVED.name][env][row] = False

    def _blank(self, env: int) -> None:
        """Write zeros for the action of the newest row: none was chosen from it."""
        row = self._cursor.item(env) - 1
        for name in self._acted:
            self._of[name][env][row] = 0

    def _compare(
        self,
        values: Mapping[str, np.ndarray],
        envs: np.ndarray,
        first: list[int],
        ended: list[int],
        owned: bool,
    ) -> None:
        """Compare the stacks that have to be compared now; keep the others to do it later."""
        self._prove(first)
        ids = envs.tolist()
        self._until_compared -= 1
        chosen = {*first, *ended}
        if self._until_compared < 0 or not owned:
            chosen = set(ids)
            self._compared += 1
            self._until_compared = 0 if self._compared < _COMPARED_ROWS else _COMPARED_EVERY - 1
        if chosen:
            for field in self._stacks:
                for env, stack in zip(ids, values[field.name], strict=True):
                    if env in chosen:
                        self._check_stack(field, env, stack, is_first=env in first)
            for env in chosen:
                self._proven[env] = self._cursor.item(env) + 1
        for field in self._stacks:
            unproven = self._unproven[field.name]
            for env, stack in zip(ids, values[field.name], strict=True):
                unproven[env] = stack
            for env in chosen:
                unproven[env] = None

    def _prove(self, envs: Sequence[int]) -> None:
        """Compare the newest stacks of envs that were not compared yet."""
        if not self._compares:
            return
        error: SpecMismatch | None = None
        for env in envs:
            for field in self._stacks:
                unproven = self._unproven[field.name]
                stack, unproven[env] = unproven[env], None
                if stack is None:
                    continue
                before = self._frames_before(field, env, self._cursor.item(env) - 1)
                if not _is_same(stack[:-1], before):
                    self._drop_unproven(env)
                    error = _other_frames(field)
                    break
            else:
                self._proven[env] = self._cursor.item(env)
        if error is not None:
            raise error

    def _check_stack(self, field: Field, env: int, stack: np.ndarray, *, is_first: bool) -> None:
        """Compare the stack of the env's next row with the frames before."""
        # If they differ, the env's rows since the last comparison are dropped.
        if is_first:
            before = _padding(field, stack[-1])
        else:
            before = self._frames_before(field, env, self._cursor.item(env))
        if not _is_same(stack[:-1], before):
            if not is_first:
                self._drop_unproven(env)
            raise _other_frames(field)

    def _drop_unproven(self, env: int) -> None:
        """Cut an env's episode behind the last row whose stack was compared."""
        run = self._open[env]
        for unproven in self._unproven.values():
            unproven[env] = None
        if run is None or self._proven[env] >= self._cursor.item(env):
            return
        run.stop, run.end = max(self._proven[env], run.start), End.NONE
        self._cursor[env] = run.stop
        if run.stop > run.start + (run.first_row == 0):
            self._ended[env].append(run)
        self._open[env] = None
        self._states[env] = 0

    def _frames_before(self, field: Field, env: int, row: int) -> np.ndarray:
        """The k - 1 frames before a row of the env's open episode."""
        run = self._open[env]
        assert run is not None
        rows, count = self._of[field.name][env], field.stack - 1
        if row - run.start >= count:
            return rows[row - count : row]
        before = self._before[field.name][env]
        if before is None:
            before = _padding(field, rows[run.start])
        frames: np.ndarray = np.concatenate([before, rows[run.start : row]])[-count:]
        return frames

    def _leaves(self, layout: Layout, value: Any, lead: tuple[int, ...]) -> dict[str, np.ndarray]:
        """The arrays of a nested value by field name, checked."""
        if type(layout) is str and type(value) is np.ndarray:  # mostly
            dtype, shape = self._expected[layout]
            if value.dtype is dtype and value.shape == lead + shape:
                return {layout: value}
        found: dict[str, np.ndarray] = {}
        for name, leaf in flatten(layout, value):
            dtype, shape = self._expected[name]
            rows = plain_array(name, leaf)
            if rows.dtype != dtype or (
                rows.shape != lead + shape
                and (rows.shape != lead + shape[1:] or name not in self._unproven)
            ):
                raise _mismatch(name, (dtype, lead + shape), rows)
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
        rows = plain_array(name, values[key])
        if rows.dtype != dtype or rows.shape != (*lead, *shape):
            raise _mismatch(name, (dtype, (*lead, *shape)), rows)
        return rows

    def _new_rows(self, envs: Any, values: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        """Masks of envs that begin an episode, and of envs whose newest row has no observation."""
        if type(envs) is int:
            state = self._states[envs]
            if state & _LATE or not state & _PENDING:
                return not state & _LATE, bool(state & _LATE)
            for name, rows in values.items():
                if not self._is_newest(name, envs, rows):
                    return True, False
            return False, False
        state = self._state[envs]
        late, first = state & _LATE > 0, state & _PENDING == 0
        known = ~(late | first)
        if np.count_nonzero(known):
            place = self._newest(envs)
            for name, rows in values.items():
                if name == self._large_name or rows.shape[1:] != self._rows[name].shape[1:]:
                    for k in np.flatnonzero(known).tolist():
                        first[k] |= not self._is_newest(name, int(envs[k]), rows[k])
                else:
                    first |= known & _differ(rows, self._rows[name][place])
        return first, late

    def _is_newest(self, name: str, env: int, value: np.ndarray) -> bool:
        """True if a value, or a full stack, is the newest one of an env."""
        row = self._cursor.item(env) - 1
        newest = self._of[name][env][row]
        if value.shape == newest.shape:
            return _is_same(value, newest)
        field = self._spec[name]
        before = self._frames_before(field, env, row)
        return _is_same(value[-1], newest) and _is_same(value[:-1], before)

    def _check_stacks(
        self,
        envs: Any,
        values: dict[str, np.ndarray],
        results: dict[str, np.ndarray],  # empty where they are not known
        first: Any,
        late: Any,
    ) -> None:
        """Check full stacks, and replace them by their newest frames."""
        is_one = type(envs) is int
        ids = [envs] if is_one else envs.tolist()
        found: list[str] = []
        for field in self._stacks:
            name, shape = field.name, self._expected[field.name][1]
            rows = values[name][None] if is_one else values[name]
            if rows.shape[1:] != shape:
                continue
            flags = zip(np.atleast_1d(first).tolist(), np.atleast_1d(late).tolist(), strict=True)
            for env, stack, (is_first, is_late) in zip(ids, rows, flags, strict=True):
                if is_first:
                    before = _padding(field, stack[-1])
                elif is_late:
                    before = self._frames_before(field, env, self._cursor.item(env) - 1)
                else:
                    # It was the next observation of the call before, and was compared there.
                    continue
                if not _is_same(stack[:-1], before):
                    raise _other_frames(field)
            if results:
                after = results[name][None] if is_one else results[name]
                if after.shape != rows.shape:
                    raise _mismatch(name, (field.numpy_dtype, (len(ids), *shape)), after)
                if not _is_same(after[:, :-1], rows[:, 1:]):
                    raise _other_frames(field)
            found.append(name)
        for name in found:
            for fields in (values, results):
                if name in fields:
                    fields[name] = fields[name][-1] if is_one else fields[name][:, -1]

    def _check_open(self, envs: np.ndarray, first: list[int]) -> None:
        new = set(first)
        for env in envs.tolist():
            if self._open[env] is None and env not in new:
                raise ValueError(
                    f"env {env} has no open episode: expected a row with is_first, got one "
                    f"without; mark the row of its reset"
                )

    def _checked_ids(self, env_ids: object) -> np.ndarray:
        """Indices of several envs as an array of different whole numbers below N."""
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


@dataclass(slots=True, eq=False)
class _Run:
    """Rows ``start .. stop`` of one env's memory: a part of one episode."""

    episode: int
    start: int
    metadata: Mapping[str, object]
    first_row: int = 0
    stop: int = -1
    end: End = End.NONE
    room: int = 0
    offset: int = 0  # of a large field the rows begin here, behind room that begins at `room`
    is_rest: bool = False
    """The rows before belong to another episode, as others have stored rows meanwhile."""


def _run_of(told: object) -> _Run | None:
    """An open episode of a state, of which the newest row comes first."""
    if told is None:
        return None
    episode, first_row, metadata = items(told, "open episode", 3)
    return _Run(
        whole(episode, "episode"), 0, mapping(metadata, "metadata"), whole(first_row, "first_row")
    )


def _is_same(frames: np.ndarray, others: np.ndarray) -> bool:
    """True if the bytes are the same; by bytes, nan equals itself."""
    return frames.tobytes() == others.tobytes()


def _padding(field: Field, frame: np.ndarray) -> np.ndarray:
    """The k - 1 frames before the first one of an episode."""
    shape = (field.stack - 1, *frame.shape)
    if field.stack_padding == "repeat":
        return np.broadcast_to(frame, shape)
    return np.zeros(shape, frame.dtype)


def _other_frames(field: Field) -> SpecMismatch:
    return SpecMismatch(
        f"field {field.name!r}: expected each stack of {field.stack} frames to be the one before, "
        f"moved on by one frame, and padded by {field.stack_padding} at a reset, got other frames; "
        f"collect with frame_stack=1 to store whole observations"
    )


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
    # Mostly there is none, which bytes tell sooner than numpy.
    found: list[int] = envs[flags].tolist() if True in flags.tobytes() else []
    return found


def _flags(what: str, value: Any, lead: tuple[int, ...]) -> Any:
    """Bools of n envs, or one; also from 0 and 1, and from arrays of one each."""
    if not lead and (value is False or value is True):
        return value
    if type(value) is np.ndarray and value.dtype == np.bool_ and value.shape == lead:
        return value if lead else bool(value)
    given = plain_array(what, value)
    flags = given if given.dtype == np.bool_ else given == 1
    if not _is_one_each(given, lead) or not (flags | (given == 0)).all():
        raise ValueError(f"{what}: expected bool {lead}, got {given.dtype} {given.shape}")
    return flags.reshape(lead) if lead else bool(flags)


def _rewards(value: Any, lead: tuple[int, ...]) -> np.ndarray:
    """Rewards of n envs, or one; also from arrays of one each."""
    rewards = plain_array("reward", value)
    if rewards.dtype.kind not in "biuf" or not _is_one_each(rewards, lead):
        raise SpecMismatch(f"reward: expected numbers {lead}, got {rewards.dtype} {rewards.shape}")
    return exact_rewards(rewards.reshape(lead))


def _is_one_each(values: np.ndarray, lead: tuple[int, ...]) -> bool:
    return values.size == math.prod(lead) and values.shape[: len(lead)] == lead


def _of_envs(expected: _Expected, n: int) -> _Expected:
    """The dtypes and shapes of the values of n envs."""
    return {name: (dtype, (n, *shape)) for name, (dtype, shape) in expected.items()}


def _check(values: Mapping[str, np.ndarray], expected: _Expected) -> None:
    """Refuse unknown fields, and arrays of another dtype or shape than of the n envs."""
    if len(values) == len(expected):
        for name, (dtype, shape) in expected.items():
            rows = values.get(name)
            if rows is None:
                break
            if (rows.dtype is not dtype and rows.dtype != dtype) or rows.shape != shape:
                raise _mismatch(name, (dtype, shape), rows)
        else:
            return
    raise SpecMismatch(
        f"expected the fields {sorted(expected)}, got {sorted(values)}: give exactly the fields of "
        f"the Spec"
    )


def _mismatch(
    name: str, expected: tuple[np.dtype[np.generic], tuple[int, ...]], rows: np.ndarray
) -> SpecMismatch:
    dtype, shape = expected
    return SpecMismatch(
        f"field {name!r}: expected {dtype} {shape}, got {rows.dtype} {rows.shape}; "
        f"convert it before it is stored"
    )


def _rows_by_size(spec: Spec, num_envs: int) -> int:
    """The number of rows that fit in 64 MiB for all envs, in whole compression blocks."""
    fitting = _MAX_BYTES // max(1, spec.row_bytes * num_envs)
    return max(_MIN_ROWS, min(_MAX_ROWS, fitting // _MIN_ROWS * _MIN_ROWS))
