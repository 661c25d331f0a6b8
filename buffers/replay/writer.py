"""Gathers rows into chunks of episodes and adds these to a replay."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self, TypeAlias

import numpy as np

from ..base.errors import SpecMismatch, StepwellError, not_copied
from ..base.number_checks import check_whole, is_whole
from ..base.row_guard import RowGuard
from ..base.untrusted_json import items, mapping, member, whole
from ..rows.digest import Digest, DigestState
from ..rows.episode import Chunk, End, checked_facts
from ..rows.episode_buffer import MOST_ENVS, OBSERVED, EpisodeBuffer
from ..rows.step_columns import whole_episode
from ..spec.space_json import spaces_facts
from ..spec.spec import Spec, exact_rewards, field_of, flatten, plain_array
from ..storage.disk.storage import DiskStorage
from ..storage.protocol import Storage

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import VectorEnv

RowSource: TypeAlias = "Spec | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any] | Spaces"
"""The fields of a writer's rows: a Spec, an env or a vector env, or the two spaces of one env."""
Spaces: TypeAlias = "tuple[gymnasium.Space[Any], gymnasium.Space[Any]]"

OWN_LOOP = "SequenceReplayBuffer.writer"
"""The source in the facts of a session of a loop of one's own."""

# Limits of the whole episodes that wait, and of a chunk of them.
_WHOLE_ROWS, _WHOLE_BYTES = 4096, 32 << 20


class WrittenReplay(Protocol):
    """The part of a `SequenceReplayBuffer` that its writers use."""

    # That class has a method that makes a writer, and no two files import each other.

    @property
    def path(self) -> Path | None:
        """Folder of the store; None in RAM."""

    @property
    def capacity(self) -> int | None:
        """Steps to keep at most; None keeps everything."""

    @property
    def storage(self) -> Storage:
        """The storage of the chunks."""

    @property
    def spec(self) -> Spec:
        """The fields of every row."""

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that wrote here."""

    @property
    def write_lock(self) -> RLock:
        """Held where rows are stored: several threads may write."""

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks of episodes; when it returns they are durable."""


class ReplayWriter:
    """Gathers the rows of N envs into chunks of episodes, and adds these to a replay.

    `SequenceReplayBuffer.writer` makes one for a loop of your own, which gives whole transitions to
    `add`, or whole episodes to `add_episode`. A `Collector` writes each row in two halves, with
    `observe` and `act`.

    Rows wait in memory until there are enough for a chunk, or for ``flush_seconds``; drawing from
    the replay may store them earlier. As a context manager it stores all at the end, also after an
    error or Ctrl-C, which gets a note of what was kept.

    Args:
        replay: Stores the chunks; it is bound to the rows' Spec, and its newest session is that of
            these rows.
        num_envs: Number of envs N; env i writes stream i.
        flush_seconds: No row waits longer than this to be stored, as long as others come.
        known_stacks: The envs are known to stack frames right.
        has_digest: Compute the `digest`, which takes as long as to copy the rows.
        missing: For `add` and `add_episode`: values of fields ``info/...`` that stand where none is
            given, by the rest of their names.
        metadata: For `add` and `add_episode`: JSON-able facts of all episodes.
        is_single: For `add`: without ``env_ids`` values are those of one env, without an axis.
        fixed: For `add` and `add_episode`: one env's observation and action space, fixed, where
            values of the original ones are given; see `stepwell.wrappers.FixedSpaces`.

    Example:
        >>> import numpy as np
        >>> import stepwell as sw
        >>> from gymnasium import spaces
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> rows = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
        >>> with replay.writer(rows) as writer:
        ...     pose = np.zeros(3, np.float32)
        ...     for step in range(10):
        ...         action = np.ones(2, np.float32)
        ...         next_pose = pose + np.float32(0.1)
        ...         writer.add(pose, action, 1.0, next_pose, False, step == 9)
        ...         pose = next_pose
        >>> replay.steps, replay.episodes
        (10, 1)
    """

    _is_begun = False  # also where __init__ was not completed, for __del__
    _process: int

    def __reduce__(self) -> NoReturn:
        not_copied("a replay's writer", "ask its replay for another one, replay.writer(...)")

    def __init__(
        self,
        replay: WrittenReplay,
        num_envs: int,
        flush_seconds: float,
        *,
        known_stacks: bool = False,
        has_digest: bool = True,
        missing: Mapping[str, np.ndarray] | None = None,
        metadata: Mapping[str, object] | None = None,
        is_single: bool = False,
        fixed: tuple[Any, Any] | None = None,
    ) -> None:
        self._is_closed = False
        self._fixed = fixed
        self.watch: Callable[[Sequence[Chunk]], None] | None = None
        """Called with chunks that were stored."""
        self.guard = RowGuard()
        """Held while rows are written, so that draws in other threads and Ctrl-C wait for it."""
        self._replay = replay
        self._known_stacks = known_stacks
        self._num_envs = num_envs
        self._missing = missing or {}
        self._extras = {field.key for field in replay.spec.of_kind("extra")}
        self._is_marked = OBSERVED.name in replay.spec.names
        self._digest = Digest() if has_digest else None
        self._flush_seconds = flush_seconds
        self._flushed = time.monotonic()
        self._first_episode = replay.storage.index.next_episode
        self._session = len(replay.sessions) - 1
        self._facts = {"session": self._session, **(metadata or {})}
        self._facts_of_all = dict.fromkeys(range(num_envs), self._facts)
        self._env_ids = 0 if is_single else None
        self._added = 0  # steps since the last flush
        # Whole episodes that wait; they are stored before the rows in the buffer.
        self._whole: list[Chunk] = []
        self._whole_rows = 0
        most = max(1, min(_WHOLE_ROWS, _WHOLE_BYTES // max(1, replay.spec.row_bytes)))
        self._most_rows = (
            most if replay.capacity is None else max(1, min(most, replay.capacity // 8))
        )
        self._start([0] * num_envs)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"waiting={self._added}"
        return f"ReplayWriter(num_envs={self._num_envs}, {state}, {self._replay!r})"

    @property
    def num_envs(self) -> int:
        """Number of envs N."""
        return self._num_envs

    @property
    def digest(self) -> str:
        """Fingerprint of all rows stored so far; no text where none is computed."""
        return "" if self._digest is None else self._digest.hexdigest()

    @property
    def kept(self) -> str:
        """A summary of what was stored since the writer was made."""
        return kept_since(self._replay, self._first_episode)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called, or the block has ended."""
        return self._is_closed

    @property
    def is_outdated(self) -> bool:
        """Another writer has stored episodes since: the open ones here cannot be continued."""
        return self._replay.storage.index.next_episode != self._known_episodes

    def begin(self) -> None:
        """Delay Ctrl-C while rows are written, and store waiting rows where the writer is dropped.

        `SequenceReplayBuffer.attach` calls it. A Collector, which guards itself and lets no rows
        wait, does not.
        """
        self._is_begun, self._process = True, os.getpid()
        self.guard.install()

    def start_over(self) -> None:
        """Leave the open episodes as stored, which cuts them; each env's next row is a first."""
        self._start(self._buffer.stream_episodes)

    def state_dict(self) -> dict[str, object]:
        """The open episodes and the digest, once all rows are stored."""
        self.flush()
        return {
            "buffer": self._buffer.state_dict(),
            "stored_episodes": self._replay.storage.index.next_episode,
            "digest": None if self._digest is None else self._digest.state.as_json(),
        }

    def load_state_dict(self, state: object, observed: Mapping[str, np.ndarray] | None) -> None:
        """Continue from a state of `state_dict`; without observations the open episodes are cut.

        Raises:
            ValueError: It is no such state, or the replay holds other episodes.
        """
        told = mapping(state, "writer")
        check_stored_episodes(told, self._replay)
        if self._digest is not None and told.get("digest") is not None:
            self._digest = Digest(DigestState.from_json(told["digest"]))
        buffer = member(told, "buffer")
        if observed is not None:
            self._buffer.load_state_dict(buffer, observed)
        else:
            cut = mapping(buffer, "buffer")
            streams = items(member(cut, "stream_episodes"), "stream_episodes", self._num_envs)
            following = whole(member(cut, "next_episode"), "next_episode", self._known_episodes)
            self._start([whole(one, "stream") for one in streams])
            self._buffer.next_episode = following
            self._buffer.take(everything=True)  # as then: the next chunks of all envs begin now

    def _start(self, stream_episodes: Sequence[int]) -> None:
        self._known_episodes = self._replay.storage.index.next_episode
        self._buffer = EpisodeBuffer(
            self._replay.spec,
            self._num_envs,
            capacity=self._replay.capacity,
            next_episode=self._known_episodes,
            stream_episodes=stream_episodes,
            known_stacks=self._known_stacks,
        )

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any,
        *,
        env_ids: np.ndarray | Sequence[int] | int | None = None,
        extras: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        next_info: Mapping[str, Any] | None = None,
        metadata: Mapping[Any, Any] | None = None,
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
                is used. A transition whose next observation is still unknown when its episode ends,
                or the writer is closed, needs the field `OBSERVED` in the Spec, which marks that;
                without it, closing leaves it out.
            terminated: [n] bool: the MDP ended with the transition.
            truncated: [n] bool: a time limit ended the episode with the transition.
            env_ids: [n] indices of the envs, each at most once; all N in order when None. An int is
                one env, and then no value has the axis of envs. A writer of one env takes None as
                0, unless it was made for a vector env.
            extras: Values of the fields ``extra/...`` by the rest of their names.
            info: Values of the fields ``info/...`` that came with `observation`, by the rest of
                their names; other keys are ignored, so that it may be the env's whole info.
            next_info: The same for `next_observation`.
            metadata: JSON-able facts of episodes that begin here, by env index; those of the one
                env where no value has the axis of envs.

        Raises:
            SpecMismatch: A value has another dtype or shape, or a stack of frames is not the one
                before, moved on by one frame. Nothing was added.
            ValueError: An episode ended without a `next_observation`; an index of `env_ids` is
                invalid or given twice; a dict has other keys; or the writer is closed. Nothing was
                added.
            TypeError: The metadata are not JSON values. Nothing was added.
        """
        # Neither Ctrl-C nor another thread can come between the parts of a row.
        with self.guard:
            if self._is_closed:
                raise ValueError(self._closed("a row"))
            envs: Any = self._env_ids if env_ids is None else env_ids
            if self._fixed is not None:
                n = None if _is_one(envs) else self.num_envs if envs is None else len(envs)
                observation, action = self._encoded(observation, action, n, n)
                if next_observation is not None:
                    next_observation, _ = self._encoded(next_observation, None, n, None)
            if extras is not None and (
                not isinstance(extras, Mapping) or extras.keys() != self._extras
            ):
                raise self._other_extras(extras)
            if self._missing:
                info = self._completed("info", info, envs)
                if next_observation is not None:
                    next_info = self._completed("next_info", next_info, envs)
            facts = self._facts_of_all if metadata is None else self._with_facts(metadata, envs)
            self._buffer.add(
                observation,
                action,
                reward,
                next_observation,
                terminated,
                truncated,
                env_ids=envs,
                extras=extras,
                info=info,
                next_info=next_info,
                metadata=facts,
            )
            self._store_due(envs)

    def add_episode(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        *,
        terminated: bool,
        truncated: bool = False,
        extras: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        metadata: Mapping[str, object] | None = None,
        env: int = 0,
    ) -> None:
        """Add one whole episode of T steps; everything is copied.

        An open episode of the env ends by a cut before it.

        Args:
            observation: ``[T + 1, ...]``, nested like the Spec's observation: the reset's and those
                that each action led to. ``[T, ...]`` where the last one is unknown and the Spec has
                the field `OBSERVED`, which marks that. Under frame stacking single frames.
            action: ``[T, ...]``, nested like the Spec's action.
            reward: [T] numbers.
            terminated: The MDP ended with the last step.
            truncated: A time limit ended the episode with the last step. With neither, the
                recording was cut there.
            extras: ``[T, ...]``: values of the fields ``extra/...`` by the rest of their names.
            info: As many rows as the observation has: values of the fields ``info/...`` in the same
                way; other keys are ignored.
            metadata: JSON-able facts of the episode.
            env: Index of the env.

        Raises:
            SpecMismatch: A field is missing, or has another dtype or shape. Nothing was added.
            ValueError: A value has another length, the episode ended without a step, there is no
                such env, or the writer is closed. Nothing was added.
            TypeError: A flag or the metadata have another type. Nothing was added.

        Example:
            >>> import numpy as np
            >>> import stepwell as sw
            >>> from gymnasium import spaces
            >>> replay = sw.SequenceReplayBuffer(seed=0)
            >>> with replay.writer((spaces.Box(-1, 1, (3,)), spaces.Discrete(2))) as writer:
            ...     for length in (4, 7):
            ...         writer.add_episode(
            ...             np.zeros((length + 1, 3), np.float32),
            ...             np.ones(length, np.int64),
            ...             np.ones(length),
            ...             terminated=True,
            ...         )
            >>> [episode.steps for episode in replay.iter_episodes()]
            [4, 7]
        """
        with self.guard:
            if self._is_closed:
                raise ValueError(self._closed("an episode"))
            if not is_whole(env) or not 0 <= env < self._num_envs:
                raise ValueError(f"env: expected 0 to {self._num_envs - 1}, got {env!r}")
            extras = {} if extras is None else extras
            if not isinstance(extras, Mapping) or self._extras != extras.keys():
                raise self._other_extras(extras)
            if not isinstance(info, Mapping | None):
                raise TypeError(f"info: expected a mapping of names to arrays, got {info!r}")
            if self._fixed is not None:
                steps = len(np.asarray(reward))
                observation, action = self._encoded(
                    observation, action, steps + (not self._is_marked), steps
                )
            buffer = self._buffer
            facts = checked_facts(metadata or {})
            end, fields = whole_episode(
                self._columns(observation, action, reward, extras, info or {}),
                self._replay.spec,
                "add_episode",
                terminated=terminated,
                truncated=truncated,
            )
            buffer.cut([env], newest=self._is_marked)
            if buffer.waiting_rows(env):
                self._store(everything=True)  # the rows before it in the stream
            number = {"stream_episode": buffer.stream_episodes[env]}
            all_facts = {**number, **self._facts, **facts}
            chunk = Chunk(buffer.next_episode, env, 0, end, fields, all_facts)
            buffer.stream_episodes[env] += 1
            buffer.next_episode += 1
            self._whole += chunk.split(self._most_rows)
            self._whole_rows += chunk.rows
            self._added += chunk.rows - 1
            is_late = time.monotonic() - self._flushed >= self._flush_seconds
            if is_late or self._whole_rows >= self._most_rows:
                self._flush()

    def observe(
        self,
        leaves: Mapping[str, np.ndarray],
        reward: np.ndarray,
        *,
        is_first: np.ndarray | None = None,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        env_ids: np.ndarray | None = None,
        metadata: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        """Begin rows with what the envs returned; metadata of episodes get the session's index.

        Arguments are those of `EpisodeBuffer.observe`; the caller does not write into them again.
        Enter `guard` around it, where others draw or Ctrl-C may come.
        """
        if metadata:
            session = self._session
            metadata = {env: {"session": session, **facts} for env, facts in metadata.items()}
        self._buffer.observe(
            {**leaves, "reward": reward},
            is_first=is_first,
            terminated=terminated,
            truncated=truncated,
            env_ids=env_ids,
            metadata=metadata,
            owned=True,
        )

    def act(self, leaves: Mapping[str, np.ndarray], env_ids: np.ndarray | None) -> None:
        """Complete the newest rows with actions, and store the chunks that are due."""
        self._buffer.act(leaves, env_ids=env_ids)
        self._store_due(env_ids)

    def cut(self, env_ids: Sequence[int] | None = None) -> None:
        """Cut the open episodes of some envs, all when None; the next row of each is a first."""
        envs = range(self._num_envs) if env_ids is None else np.atleast_1d(env_ids).tolist()
        for env in envs:
            if not is_whole(env) or not 0 <= env < self._num_envs:
                raise ValueError(f"env_ids: expected 0 to {self._num_envs - 1}, got {env!r}")
        with self.guard:
            self._buffer.cut(envs, newest=self._is_marked)

    def flush(self) -> None:
        """Store all rows, but for transitions whose next observation is not known yet."""
        with self.guard:
            self._flush()

    def catch_up(self) -> None:
        """`flush`, unless less than a thousandth of what can be drawn would be added.

        Drawing calls this. Each flush makes a chunk for every env, so it is a thousandth for each
        of them, and a hundredth at most.
        """
        stored = self._replay.storage.index.steps
        if self._added and self._added * 1000 >= stored * min(10, self._num_envs):
            self.flush()

    def close(self) -> None:
        """Store all rows; nothing can be added afterwards. Closing twice is harmless."""
        with self.guard:
            if self._is_closed:
                return
            try:
                self._flush(newest=self._is_marked)
            finally:
                self._is_closed = True
                self.guard.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as failure:
            error.add_note(f"then: {failure}")
        error.add_note(f"kept: {self.kept}")

    def __del__(self) -> None:
        # A forked process has a copy of the rows, and maybe of a lock that is never released there.
        if self._is_begun and not self._is_closed and os.getpid() == self._process:
            self.close()

    def _store_due(self, envs: Any) -> None:
        """Count the steps of some envs, and store what must not wait any longer."""
        self._added += 1 if type(envs) is int else self._num_envs if envs is None else len(envs)
        if self._buffer.is_due:
            self._store(everything=False)
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self._flush()

    def _flush(self, *, newest: bool = False) -> None:
        self._store(everything=True, newest=newest)
        self._flushed, self._added = time.monotonic(), 0

    def _store(self, *, everything: bool, newest: bool = False) -> None:
        # The lock is held from the check of the ids on: no other writer uses them before `add`.
        with self._replay.write_lock:
            if self.is_outdated:
                self._renumber()
            chunks = [*self._whole, *self._buffer.take(everything=everything, newest=newest)]
            self._whole, self._whole_rows = [], 0
            if not chunks:
                return
            try:
                self._replay.add(chunks)
            except BaseException:
                self._renumber()  # the rows that follow cannot continue these
                raise
            self._known_episodes = self._replay.storage.index.next_episode
        if self._digest is not None:
            for chunk in chunks:
                self._digest.update(chunk)
        if self.watch is not None:
            self.watch(chunks)

    def _renumber(self) -> None:
        """Give waiting episodes ids that no other writer has used."""
        self._known_episodes = number = self._replay.storage.index.next_episode
        ids = {old: number + k for k, old in enumerate({each.episode: 0 for each in self._whole})}
        self._whole = [replace(chunk, episode=ids[chunk.episode]) for chunk in self._whole]
        self._buffer.renumber(number + len(ids))

    def _with_facts(self, metadata: object, envs: Any) -> dict[int, Mapping[str, object]]:
        """The facts of episodes that begin, by env index, with those of all episodes."""
        given = {envs: metadata} if _is_one(envs) else metadata
        if not isinstance(given, Mapping) or not all(env in self._facts_of_all for env in given):
            raise TypeError(
                f"metadata: expected a mapping of facts by env index, 0 to {self._num_envs - 1}, "
                f"got {metadata!r}"
            )
        found = {int(env): {**self._facts, **checked_facts(facts)} for env, facts in given.items()}
        return {**self._facts_of_all, **found}

    def _other_extras(self, extras: object) -> Exception:
        if not isinstance(extras, Mapping):
            return TypeError(f"extras: expected a mapping of names to values, got {extras!r}")
        return SpecMismatch(
            f"extras: expected the names {sorted(self._extras)}, got {sorted(extras)}; declare "
            f"them when the writer is made"
        )

    def _completed(
        self, what: str, info: Mapping[str, Any] | None, envs: Any
    ) -> dict[str, np.ndarray]:
        """An info with a value for every declared field, in its dtype."""
        if info is not None and not isinstance(info, Mapping):
            raise TypeError(f"{what}: expected a mapping of names to values, got {info!r}")
        shape = () if _is_one(envs) else (self._num_envs if envs is None else len(envs),)
        found = dict(info or {})
        for name, missing in self._missing.items():
            value = found.get(name, np.broadcast_to(missing, shape + missing.shape))
            value = plain_array(f"{what}[{name!r}]", value)
            if value.dtype != missing.dtype:
                value = as_dtype_of(name, value if shape else value[None], missing)
                value = value if shape else value[0]
            found[name] = value
        return found

    def _encoded(
        self, observation: Any, action: Any, rows: int | None, steps: int | None
    ) -> tuple[Any, Any]:
        """Original values as the arrays of fixed spaces; of one env where the numbers are None."""
        from ..spec.open_spaces import encode_batch, encode_parts

        assert self._fixed is not None
        given = zip(self._fixed, (observation, action), (rows, steps), strict=True)
        observation, action = (
            value
            if value is None
            else encode_parts(space, value)
            if n is None
            else encode_batch(space, value, n)
            for space, value, n in given
        )
        return observation, action

    def _columns(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        extras: Mapping[str, Any],
        info: Mapping[str, Any],
    ) -> dict[str, np.ndarray]:
        """The arrays of an episode by field name; observations and infos are copied."""
        spec = self._replay.spec
        rewards = plain_array("reward", reward)
        if rewards.dtype.kind not in "biuf":
            raise SpecMismatch(f"reward: expected numbers [T], got {rewards.dtype}")
        rows_of = flatten(spec.observation, observation)
        found = {name: np.array(plain_array(name, rows)) for name, rows in rows_of}
        length = next((len(rows) for rows in found.values() if rows.ndim), 0)
        for field in spec.of_kind("info"):
            if field.name == OBSERVED.name:
                found[field.name] = np.ones(length, np.bool_)
            elif field.key in info:
                found[field.name] = np.array(plain_array(field.name, info[field.key]))
            elif field.key in self._missing:
                missing = self._missing[field.key]
                found[field.name] = np.broadcast_to(missing, (length, *missing.shape))
        if self._is_marked and length and rewards.shape == (length,):
            found = {name: np.concatenate([rows, rows[-1:]]) for name, rows in found.items()}
            found[OBSERVED.name][-1] = False
        chosen = [*flatten(spec.action, action), *((f"extra/{k}", v) for k, v in extras.items())]
        found |= {name: plain_array(name, rows) for name, rows in chosen}
        return {**found, "reward": exact_rewards(rewards)}

    def _closed(self, what: str) -> str:
        return f"the writer is closed, expected an open one for {what}: make another one"


def check_stored_episodes(state: object, replay: WrittenReplay) -> None:
    """Refuse a replay with other episodes than when a writer's state was taken."""
    stored = member(mapping(state, "writer"), "stored_episodes")
    found = replay.storage.index.next_episode
    if stored != found:
        raise ValueError(
            f"replay: expected one in which {stored} episodes have begun, got {found}; go back "
            f"with load_checkpoint(exact=True) first"
        )


def kept_since(replay: WrittenReplay, first_episode: int) -> str:
    """A summary of the episodes in a replay from an id on."""
    # A folder is read again: a write that was interrupted may be stored though it did not return.
    storage = replay.storage
    index = storage.index
    if isinstance(storage, DiskStorage):
        with (
            contextlib.suppress(StepwellError, OSError),
            DiskStorage.open(storage.path, read_only=True) as stored,
        ):
            index = stored.index
    records = index.records
    is_tail = (records["is_tail"] == 1) & (records["end"] & End.LOST == 0)
    tails = records[is_tail & (records["episode"] >= first_episode)]
    rows = tails["first_row"] + tails["rows"] - tails["head"]
    steps = int(np.maximum(0, rows - (tails["head"] == 0)).sum())
    ended = int((tails["end"] & (End.TERMINATED | End.TRUNCATED) != 0).sum())
    where = "in RAM" if replay.path is None else f"in {replay.path}"
    return f"{steps:,} steps, {ended:,} ended episodes, {where}"


class Declared(NamedTuple):
    """The rows that a writer was asked for."""

    spec: Spec
    num_envs: int
    is_single: bool
    missing: dict[str, np.ndarray]
    facts: dict[str, object]
    """Facts of the session."""
    fixed: tuple[Any, Any] | None
    """The fixed spaces of observation and action, where these are others than the given ones."""


def declared(
    source: RowSource | None,  # as in `SequenceReplayBuffer.writer`
    num_envs: int | None,  # None for those of a vector env, or one
    info: Mapping[str, object] | None,  # values that mean "not there", by name
    extras: Mapping[str, object] | None,  # examples of values, by name
    stored: Spec | None,  # the Spec of the replay, if it has one
) -> Declared:
    """The Spec of a writer's rows, their envs, and the facts of their session."""
    found, count, facts, fixed = _rows_of(source, stored)
    if num_envs is not None:
        check_whole("num_envs", num_envs, 1, MOST_ENVS)
    if None not in (num_envs, count) and num_envs != count:
        raise ValueError(
            f"num_envs: expected {count}, as the vector env has, got {num_envs}; leave it out"
        )
    values: dict[str, dict[str, np.ndarray]] = {}
    for kind, given in (("info", info), ("extra", extras)):
        values[kind] = _examples(kind, given)
        for name, value in values[kind].items():
            field = field_of(f"{kind}/{name}", value.dtype, value.shape)
            if field.name not in found.names:
                found = found.with_more([field])
            same = found[field.name]
            if (same.dtype, same.shape) != (field.dtype, field.shape):
                raise SpecMismatch(
                    f"field {field.name!r}: expected {same.dtype} {same.shape}, as the Spec has, "
                    f"got {field.dtype} {field.shape}; leave it out, or give such a value"
                )
    total = num_envs or count or 1
    facts |= {
        "source": OWN_LOOP,
        "num_envs": total,
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return Declared(found, total, count is None and total == 1, values["info"], facts, fixed)


def check_flush_seconds(flush_seconds: float) -> None:
    """Refuse anything but a number >= 0."""
    if not isinstance(flush_seconds, int | float) or not flush_seconds >= 0:
        raise ValueError(f"flush_seconds: expected a number >= 0, got {flush_seconds!r}")


def as_dtype_of(name: str, values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Values ``[m, ...]`` of a field of infos in the dtype of its missing value."""
    is_array = type(values) is np.ndarray
    if is_array and values.dtype == missing.dtype and values.shape[1:] == missing.shape:
        return values
    from ..spec.exact_values import exactly  # loads all wrappers

    what, n = f"info field {name!r}", len(values)
    try:
        if n == 1:  # as mostly: of one env
            return exactly(values[0], missing.dtype, missing.shape, what)[None]
        return exactly(values, missing.dtype, (n, *missing.shape), what)
    except ValueError as error:
        raise SpecMismatch(f"{error}; declare a missing value of that kind") from None


def _rows_of(
    source: RowSource | None, stored: Spec | None
) -> tuple[Spec, int | None, dict[str, object], tuple[Any, Any] | None]:
    """A Spec, the number of envs of a vector env, facts about the spaces, and fixed ones."""
    if source is None:
        if stored is None:
            raise ValueError(
                "the replay is empty: expected a Spec, an env, or a pair of spaces, got none; "
                "give one"
            )
        return stored, None, {}, None
    if isinstance(source, Spec):
        return source, None, {}, None
    spaces: Any = source
    count: int | None = None
    if not isinstance(source, tuple | list):
        is_vector = hasattr(source, "single_observation_space")
        names = ("observation_space", "action_space")
        spaces = [getattr(source, f"single_{name}" if is_vector else name, None) for name in names]
        count = getattr(source, "num_envs", None) if is_vector else None
    if len(spaces) != 2 or None in spaces:
        raise TypeError(
            f"expected a Spec, a gymnasium Env or VectorEnv, or a pair of its observation space "
            f"and action space, got {source!r}; give one of them"
        )
    fixed = _fixed_of(*spaces)
    rows = fixed or tuple(spaces)
    return Spec.from_spaces(*rows), count, spaces_facts(*rows), fixed


def _fixed_of(observation_space: Any, action_space: Any) -> tuple[Any, Any] | None:
    """Both spaces in their fixed form; None where that is what they have."""
    from gymnasium import spaces

    plain = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if isinstance(observation_space, plain) and isinstance(action_space, plain):
        return None
    from ..spec.open_spaces import fixed_space  # loads all wrappers

    fixed = fixed_space(observation_space), fixed_space(action_space, "action")
    is_same = fixed[0] is observation_space and fixed[1] is action_space
    return None if is_same else fixed


def _examples(kind: str, values: Mapping[str, object] | None) -> dict[str, np.ndarray]:
    """Values of declared fields as arrays."""
    if not isinstance(values, Mapping | None):
        raise TypeError(
            f"{kind}: expected a mapping of names to values, such as {{'lives': -1}}, got "
            f"{values!r}"
        )
    found = {name: np.asarray(value) for name, value in (values or {}).items()}
    for name, value in found.items():
        if not isinstance(name, str):
            raise TypeError(f"{kind}: expected names of fields, got {name!r}; give texts")
        if value.dtype.kind not in "biufc":
            raise TypeError(
                f"{kind} field {name!r}: expected a number or an array of them, got "
                f"{(values or {})[name]!r}"
            )
    return found


def _is_one(envs: object) -> bool:
    """True for the index of one env, where no value has the axis of envs."""
    return isinstance(envs, int | np.integer)
