"""SB3's replay buffers: a ring of transitions, which are also stored as episodes."""

# Small fields are arrays [size, N, ...] as SB3 has them: a batch of them takes 30 microseconds, a
# fifth of what drawing from a replay takes. They are written to the replay in blocks, or, in RAM,
# only when somebody looks.
#
# Observations of 1 KiB or more, and stacks of frames, are in the replay alone, which keeps what
# changes from frame to frame. The ring has the id of each of their rows; the newest steps, which
# are not stored yet, are in a small ring of frames. Both ways SB3's own random numbers choose.

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from gymnasium import spaces

from ...base import native
from ...base.errors import NotEnoughData, StoreLocked
from ...base.number_checks import check_whole
from ...curation.episode_writer import check_replay
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode import End
from ...sampling.requests import Transitions
from ...spec.spec import Spec
from ...storage.disk.folder import folder_path
from ...storage.disk.storage import DiskStorage
from ...storage.encoded_chunk import unpack_chunks
from ...storage.ram import packed_rows
from ..transition_writer import new_replay
from .frame_ring import FrameRing
from .step_ring import (
    BY_CLOCK,
    MAKER,
    DictReplayBufferSamples,
    ReplayBufferSamples,
    SB3DictReplayBuffer,
    SB3NStepReplayBuffer,
    SB3ReplayBuffer,
    StepRing,
    check_kind,
    ends_by_clock,
    fitted,
    flags,
    random_numbers,
    registered,
    samples_class,
    store_at_end,
)
from .transition_blocks import BlockWriter, differing, transition_ids

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("stepwell.buffers")

_MOST_STEPS, _MOST_BYTES = 1024, 8 << 20
_LARGE_ROW_BYTES = 1 << 10  # from here on rows are drawn from the replay
_FINAL = ("_final_observation", "_final_obs")  # of gymnasium before and since version 1.0
_BOOL, _FLOAT32 = np.dtype(np.bool_), np.dtype(np.float32)
_ENDS = int(End.TERMINATED), int(End.TRUNCATED)


class _Part(NamedTuple):
    """The observations of one space: arrays ``[size, N, ...]``, and the field that they become."""

    key: str | None
    name: str
    field_shape: tuple[int, ...]
    now: np.ndarray
    then: np.ndarray


@registered
class ReplayBuffer(StepRing, SB3ReplayBuffer):
    """A ring of transitions, which are also stored as episodes.

    The same calls give the same as with SB3's class, and after the same ``np.random.seed`` the same
    batches: a model learns exactly as with that one. There are two differences.
    ``optimize_memory_usage=True`` gives true last observations, also together with
    ``handle_timeout_termination=True``; and observations of 1 KiB or more, and stacks of frames,
    are kept in the replay alone, as what changes between them: a million steps of Atari games
    take some 0.3 GB of RAM. Then there are no attributes ``observations`` and
    ``next_observations``.

    Args:
        buffer_size: Transitions to keep, of all envs together.
        observation_space: Of one env: Box, Discrete, MultiDiscrete or MultiBinary.
        action_space: Of one env, the same kinds.
        device: Device of the batches; ``"auto"`` is the GPU where there is one.
        n_envs: Number of envs N.
        optimize_memory_usage: Draw as SB3 does with it.
        handle_timeout_termination: ``"TimeLimit.truncated"`` in infos marks an end that is none to
            learn from.
        n_steps: Steps of the returns, as in SB3's ``NStepReplayBuffer``.
        gamma: Discount of n-step returns.
        path: Folder of the replay, opened by the first step, draw or `size`; None keeps it in RAM.
            A store there is continued.
        resume: The ring begins with the newest steps in the folder, as many of each env; False: it
            begins empty. A buffer that SB3's ``load_replay_buffer`` loads has its own ring.
        replay: A replay of your own in place of a path, with a capacity of your own; of large
            observations, for the ring's steps and those that wait to be stored.
        frame_stack: Frames that the envs stack on the first axis, as ``VecFrameStack(envs, 4)``
            does with gray images ``[4, H, W]``: the replay stores one in each row.
        stack_padding: Frames before an episode's first one: ``"zero"`` with ``VecFrameStack``,
            ``"repeat"`` with gymnasium's wrappers.

    Raises:
        ValueError: A number is out of range, ``frame_stack`` does not fit the space, or the replay
            would not keep all steps of the ring.
        SpecMismatch: The replay holds other rows.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("CartPole-v1")
        >>> buffer = ReplayBuffer(1_000, env.observation_space, env.action_space, device="cpu")
        >>> observation, _ = env.reset(seed=0)
        >>> for step in range(100):
        ...     action = np.array([step % 2])
        ...     following, reward, terminated, truncated, info = env.step(action[0])
        ...     done = np.array([terminated or truncated])
        ...     infos = [info | {"TimeLimit.truncated": truncated}]
        ...     buffer.add(observation[None], following[None], action, [reward], done, infos)
        ...     observation = env.reset()[0] if done else following
        >>> batch = buffer.sample(32)
        >>> tuple(batch.observations.shape), tuple(batch.actions.shape), tuple(batch.dones.shape)
        ((32, 4), (32, 1), (32, 1))
        >>> buffer.flush()
        >>> buffer.replay.sample_sequences(4, length=8).observation.shape
        (4, 8, 4)
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        path: str | os.PathLike[str] | None = None,
        resume: bool = True,
        replay: SequenceReplayBuffer | None = None,
        frame_stack: int = 1,
        stack_padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        check_whole("n_steps", n_steps, 1)
        if replay is not None:
            check_replay("replay", replay)
            if path is not None:
                raise ValueError(
                    f"replay: expected none with a path, got both, with {path}; leave one out"
                )
        check_kind(observation_space, is_dict=isinstance(self, DictReplayBuffer))
        self.buffer_size = max(self.buffer_size // self.n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps = int(n_steps)
        self.gamma = gamma
        self._spec = Spec.from_spaces(
            observation_space, action_space, frame_stack=frame_stack, stack_padding=stack_padding
        )
        steps = _MOST_BYTES // max(1, self._spec.row_bytes * self.n_envs)
        self._block = max(1, min(_MOST_STEPS, steps, self.buffer_size))  # that are stored at once
        self._ring: FrameRing | None = None
        self._over: np.ndarray | None = None  # envs whose newest step ended an episode, in a ring
        if not self._is_dict and (frame_stack > 1 or self._spec.row_bytes >= _LARGE_ROW_BYTES):
            self._ring = FrameRing(
                *(self._block, self.n_envs, np.dtype(observation_space.dtype)),
                *(self.obs_shape[frame_stack > 1 :], frame_stack, stack_padding),
            )
            self._ids = np.zeros((self.buffer_size, self.n_envs), np.int64)  # of their rows
            self._drawn = Transitions(1, fields=(str(self._spec.observation),))
            if replay is not None and replay.capacity is not None and replay.capacity < self._held:
                raise ValueError(
                    f"replay: expected a capacity of at least {self._held} steps, as the "
                    f"observations of the {self.buffer_size * self.n_envs} in the ring are kept "
                    f"there, got {replay.capacity}; give more, or a smaller buffer_size"
                )
        self._stored_in = ""  # the store that a saved buffer's ids are of
        # The ring: arrays [size, N, ...], as SB3 has them.
        lead = self.buffer_size, self.n_envs
        if self._ring is None:
            self.observations, self.next_observations = self._zeros(lead), self._zeros(lead)
        kind = self._maybe_cast_dtype(self.action_space.dtype)
        self.actions = np.zeros((*lead, self.action_dim), kind)
        self.rewards, self.dones, self.timeouts = (np.zeros(lead, np.float32) for _ in range(3))
        self._use_arrays()
        self._waiting = 0  # steps that are not in the replay
        self._limits: deque[tuple[int, np.ndarray]] = deque()  # of steps yet to come, and envs
        # Steps that waited while the ring was full: the place behind them, and what is known.
        self._scanned: tuple[int, np.ndarray, np.ndarray, np.ndarray] | None = None
        self._before: list[np.ndarray] | None = None  # next observations before the waiting steps
        self._is_on_demand = path is None and replay is None and self._ring is None
        # Only looked for: a model that is loaded to play has a buffer, too.
        self._resumes = resume and path is not None and DiskStorage.exists(path)
        self._start_replay(path, replay)

    @property
    def _held(self) -> int:
        """Steps of all envs that a replay must keep."""
        return (self.buffer_size + self._block) * self.n_envs

    def _use_arrays(self) -> None:
        """Note the parts of observations, which are views of the ring's arrays."""
        n, shapes = self.n_envs, self._parts(self.obs_shape)
        parts = self._parts(self.observation_space).items()
        self._forms = [(key, np.dtype(part.dtype), (n, *shapes[key])) for key, part in parts]
        self._observed_parts: list[_Part] = []
        if self._ring is None:
            now, then = self._parts(self.observations), self._parts(self.next_observations)
            names = self._parts(self._spec.observation)
            self._observed_parts = [
                _Part(key, names[key], self._spec[names[key]].source_shape, now[key], then[key])
                for key, _, _ in self._forms
            ]
        observed = [(dtype, shape) for _, dtype, shape in self._forms]
        chosen = self.actions.dtype, (n, *(self.action_space.shape or ()))
        self._usual = native.forms_of(chosen, (_FLOAT32, (n,)), (_BOOL, (n,)), *observed, *observed)
        # Last observations of episodes of which the newest infos did not tell the end, by env.
        self._unmarked_ends: dict[int, list[bytes]] = {}
        self._has_timeouts = bool(self.timeouts.any())

    def _start_replay(
        self, path: str | os.PathLike[str] | None, replay: SequenceReplayBuffer | None
    ) -> None:
        """Begin to write to a replay; a folder is only noted."""
        self.is_closed = self._is_bound = False
        self._most = self.buffer_size if self._is_on_demand else self._block
        self._writer = BlockWriter(self.n_envs)
        self._path = None if path is None else folder_path(path).absolute()
        self._replay = replay
        if self._is_on_demand or (replay is not None and replay.is_bound):
            self._bind()

    def _opened(self) -> SequenceReplayBuffer:
        """The replay. A folder is opened now: a model that is loaded to play has a buffer, too."""
        if self._replay is None:
            replay = new_replay(self._held, self._path)
            if self._stored_in not in ("", _store_of(replay)):
                replay.close()
                raise ValueError(
                    f"{self._path}: expected the store {self._stored_in}, which holds the "
                    f"observations of this saved buffer, got another one; bring that folder back, "
                    f"or begin with a new buffer"
                )
            self._replay = replay
        return self._replay

    def _bind(self) -> None:
        """Let the replay hold the steps; it is opened, and a new folder is made."""
        replay, is_own = self._opened(), self._path is not None
        is_box = isinstance(self.action_space, spaces.Box)
        facts = {"maker": MAKER, "actions": "scaled" if is_box else "given"}
        try:
            replay.bind(self._spec, self._session(facts))
        except BaseException:
            if is_own:
                replay.close()  # otherwise the folder stays locked
                self._replay = None
            raise
        if not self._is_on_demand:
            store_at_end(replay, self.flush)
        self._is_bound, self.is_closed = True, False
        if self._resumes:
            self._resumes = False
            self._resume(replay)

    def _resume(self, replay: SequenceReplayBuffer) -> None:
        """Begin with the newest steps in a folder, as many of each env."""
        records = replay.storage.index.records
        records = records[records["end"] & End.LOST == 0]
        ids, streams = transition_ids(records)
        runs = np.repeat(records["episode"], records["stored_rows"] - (records["end"] != 0))
        of_envs = [np.flatnonzero(streams == env) for env in range(self.n_envs)]
        steps = min(self.buffer_size, *map(len, of_envs))
        names = self._spec.action, "reward"  # large observations stay where they are
        request = Transitions(1, fields=None if self._ring is None else tuple(map(str, names)))
        for env, places in enumerate(of_envs):
            newest = places[len(places) - steps :]
            for start in range(0, steps, self._block):
                rows = slice(start, min(start + self._block, steps))
                batch = replay.take(request, ids[newest[rows]])
                self.actions[rows, env] = batch.action.reshape(-1, self.action_dim)
                self.rewards[rows, env] = batch.reward
                self.dones[rows, env] = batch.terminated | batch.truncated
                self.timeouts[rows, env] = batch.truncated
                if self._ring is not None:
                    self._ids[rows, env] = batch.ids
                for part in self._observed_parts:
                    for rows_of, whole in (
                        (part.now, batch.observation),
                        (part.then, batch.next_observation),
                    ):
                        seen = self._parts(whole)[part.key]
                        rows_of[rows, env] = seen.reshape(-1, *rows_of.shape[2:])
            # What was cut there goes on nowhere: as an end by the clock is, that is none to learn.
            is_cut = (np.diff(runs[newest], append=-1) != 0) & (self.dones[:steps, env] == 0)
            self.dones[:steps, env][is_cut] = self.timeouts[:steps, env][is_cut] = 1
        self._has_timeouts = bool(self.timeouts.any())
        self.pos, self.full = steps % self.buffer_size, steps == self.buffer_size
        _LOG.warning(
            "%s: the replay buffer begins with the newest %d steps of each of %d envs; "
            "resume=False lets it begin empty",
            *(replay.path, steps, self.n_envs),
        )

    @staticmethod
    def _maybe_cast_dtype(dtype: Any) -> Any:
        """float32 in place of float64, as SB3 keeps actions; subclasses and its tests call it."""
        return np.float32 if dtype == np.float64 else dtype

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The rows as episodes, to draw sequences from, and to be exported.

        In RAM, steps are stored when you look at this property, in a folder and in a replay of your
        own also by themselves, 1024 at a time. A look stores those that are new if they are a
        thousandth of all for each env (a hundredth at most); `flush` does so always.
        """
        replay = self._opened()
        if self._waiting * self.n_envs * 1000 >= len(replay) * min(10, self.n_envs):
            self.flush()
        return replay

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: Any,
        done: Any,
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    ) -> None:
        """Add one step of all envs; everything is copied.

        An env's episode continues where ``obs`` is, byte for byte, the ``next_obs`` before.

        Args:
            obs: Observations ``[N, ...]``.
            next_obs: Next observations ``[N, ...]``; at the end of an episode its true last
                observation.
            action: ``[N, ...]``: Box actions as the model chose them, scaled to -1..1.
            reward: [N].
            done: [N]: the episode ended, or, with ``handle_timeout_termination=False``, the MDP
                terminated.
            infos: One for each env, of which ``"TimeLimit.truncated"`` is read; or the infos of a
                gymnasium vector env, where ``"_final_observation"`` or ``"_final_obs"`` mark envs
                whose episode ended. Of those that are done, the last observation is taken from
                there: CleanRL's loops give the first of the next episode as ``next_obs``.

        Raises:
            StoreLocked: Another process writes into the folder, which the first step opens.
            ValueError: An array does not fit the spaces, or an env without such a mark goes on
                from the last observation of an episode that is done, with reward 0: that is a reset
                of gymnasium's NEXT_STEP mode. The step was not added.
            SpecMismatch: Observations are not stacks of ``frame_stack`` frames, or the folder holds
                other rows.
        """
        if self._waiting >= self._most:  # they could not be stored before
            self._make_room()
        if not self._is_bound:
            self._bind()
        pos, n, waiting = self.pos, self.n_envs, self._waiting
        if isinstance(infos, dict):
            self._refuse_resets(obs, reward, done)
            next_obs = self._with_last_observations(next_obs, done, infos)
        marked: np.ndarray | None = None
        by_clock: np.ndarray | None = None
        # All that can fail comes before anything is written, as the oldest step is in that place.
        try:
            if self._is_dict:
                now = [obs[key] for key, _, _ in self._forms]
                then = [next_obs[key] for key, _, _ in self._forms]
            else:
                now, then = [obs], [next_obs]
            # Nearly all steps are as SB3 gives them, which is known in one call.
            if native.core is not None and native.core.are_usual(
                (action, reward, done, *now, *then), self._usual, infos, n, BY_CLOCK
            ):
                chosen, gains, over = action, reward, done
            else:
                shape = action.shape if type(action) is np.ndarray else np.shape(action)
                chosen = fitted("action", action, self.actions.dtype, shape)
                if chosen.size != n * self.action_dim:
                    raise TypeError("another number of values")
                gains = fitted("reward", reward, _FLOAT32, (n,))
                over = flags("done", done, (n,))
                if isinstance(infos, dict):
                    marked = self._marked(infos, over)
                if self.handle_timeout_termination:
                    by_clock = ends_by_clock(infos, n)
                now, then = self._fitted("obs", now), self._fitted("next_obs", then)
            if self._ring is not None:
                self._ring.write(now[0], then[0], self._over)
                self._over = over != 0 if np.count_nonzero(over) else None
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise self._refusal(obs, next_obs, action, error) from error
        self.actions[pos] = chosen.reshape(n, self.action_dim)
        self.rewards[pos] = gains
        self.dones[pos] = over
        if by_clock is not None:
            self.timeouts[pos] = by_clock
            self._has_timeouts = True
        elif self._has_timeouts:
            self.timeouts[pos] = 0
        for part, before, after in zip(self._observed_parts, now, then, strict=False):
            part.now[pos] = before
            part.then[pos] = after
        if marked is not None:
            self._limits.append((waiting, marked))
        self.pos = pos = pos + 1
        if pos == self.buffer_size:
            self.full = True
            self.pos = 0
        self._waiting = waiting + 1
        if self._waiting >= self._most:
            self._make_room()

    def _fitted(self, name: str, parts: list[Any]) -> list[np.ndarray]:
        """Observations of all envs, by part, as the ring has them."""
        return [
            fitted(name if key is None else f"{name}/{key}", rows, dtype, shape)
            for rows, (key, dtype, shape) in zip(parts, self._forms, strict=True)
        ]

    def _make_room(self) -> None:
        if self._is_on_demand:
            self._scan()
        else:
            self.flush()

    def _refuse_resets(self, obs: Any, reward: Any, done: Any) -> None:
        """Raise if a step goes on behind an end, as gymnasium's NEXT_STEP mode does."""
        for env, last in self._unmarked_ends.items():
            if self._bytes_of(obs, env) == last and not reward[env] and not done[env]:
                raise ValueError(
                    f"add: expected the first observation of a new episode of env {env}, got the "
                    "last one of the episode that ended, with reward 0: the reset of gymnasium's "
                    "NEXT_STEP mode, which is no step; make the envs with "
                    "autoreset_mode=SAME_STEP, or leave out the step after each end"
                )

    def _with_last_observations(self, next_obs: Any, done: Any, infos: Mapping[str, Any]) -> Any:
        """Next observations, with those of ``infos`` where an episode is done."""
        ends = [int(env) for env in np.flatnonzero(done)]
        name = next((name for name in _FINAL if name in infos and name[1:] in infos), None)
        marked = [env for env in ends if name is not None and infos[name][env]]
        self._unmarked_ends = {
            env: self._bytes_of(next_obs, env) for env in ends if env not in marked
        }
        if name is None or not marked:
            return next_obs
        last = infos[name[1:]]
        parts = {key: np.array(rows) for key, rows in self._parts(next_obs).items()}
        for key, rows in parts.items():
            rows[marked] = [self._parts(last[env])[key] for env in marked]
        return self._whole(parts)

    def _bytes_of(self, obs: Any, env: int) -> list[bytes]:
        """The observation of an env."""
        return [np.asarray(rows[env]).tobytes() for rows in self._parts(obs).values()]

    def _marked(self, infos: Mapping[str, Any], over: np.ndarray) -> np.ndarray | None:
        """[N] bool: the infos of a vector env mark an end that is no termination."""
        for name in _FINAL:
            if name in infos:
                is_over: np.ndarray = np.asarray(infos[name], np.bool_) & (over == 0)
                return is_over
        return None

    def _refusal(self, obs: Any, next_obs: Any, action: Any, error: Exception) -> ValueError:
        return ValueError(
            f"add: expected observations of {self.observation_space} and actions of "
            f"{self.action_space} for each of {self.n_envs} envs, got {_described(obs)}, "
            f"{_described(next_obs)} and {_described(action)}: {error}; give those of one step"
        )

    def flush(self) -> None:
        """Store the waiting steps in the replay; in a folder they are durable then."""
        if self._scanned is not None:
            stop, ends, begins, rewards = self._scanned
            self._scanned = None
            kept = self.buffer_size - self._waiting
            gone = len(ends) - kept
            if gone:
                self._writer.leave_out(rewards[:gone], ends=ends[:gone], begins=begins[:gone])
            if kept:
                self._store(slice(stop - kept, stop), ends[gone:], begins[gone:])
        while self._waiting:
            rows, ends, begins = self._oldest_waiting()
            self._store(rows, ends, begins)
            self._pass(rows)

    def _store(self, rows: slice, ends: np.ndarray, begins: np.ndarray) -> None:
        """Store steps of the ring."""
        ring, spec, lead = self._ring, self._spec, (rows.stop - rows.start, self.n_envs)
        field = spec[str(spec.observation)] if ring is not None else None

        def observed(env: int, start: int, stop: int) -> dict[str, np.ndarray]:
            if ring is not None and field is not None:
                return {field.name: ring.rows(env, start, stop).reshape(-1, *field.shape)}
            first, behind = rows.start + start, rows.start + stop
            return {
                part.name: np.concatenate(
                    [part.now[first:behind, env], part.then[behind - 1 : behind, env]]
                ).reshape(-1, *part.field_shape)
                for part in self._observed_parts
            }

        action = spec[str(spec.action)]
        taken = self.actions[rows].reshape(*lead, *action.shape)
        chosen = {action.name: taken.astype(action.numpy_dtype, copy=False)}
        arrays = observed, chosen, self.rewards[rows]
        ids = self._writer.add(self._opened(), *arrays, ends=ends, begins=begins)
        if ring is not None:
            self._ids[rows] = ids

    def _scan(self) -> None:
        """Note how the oldest waiting steps begin and end, before others are written over them."""
        # They can be stored until then; afterwards only their number matters.
        if self._scanned is not None:
            _, ends, begins, rewards = self._scanned
            self._writer.leave_out(rewards, ends=ends, begins=begins)
        rows, ends, begins = self._oldest_waiting()
        self._scanned = rows.stop, ends, begins, self.rewards[rows].copy()
        self._pass(rows)

    def _oldest_waiting(self) -> tuple[slice, np.ndarray, np.ndarray]:
        """Waiting steps in a row of the ring, how they end, and which begin an episode."""
        start = (self.pos - self._waiting) % self.buffer_size
        steps = min(self._waiting, self._block, self.buffer_size - start)
        rows = slice(start, start + steps)
        begins = self._begins(rows)
        terminated, truncated = _ENDS
        ends = np.where(self.timeouts[rows] != 0, truncated, terminated).astype(np.uint8)
        ends[self.dones[rows] == 0] = 0
        for step, marked in self._limits:
            if step < steps:
                ends[step][marked] = truncated
        return rows, ends, begins

    def _begins(self, rows: slice) -> np.ndarray:
        """[T, N] bool: steps whose observations are not the next ones of the steps before."""
        if self._ring is not None:
            return self._ring.begins(rows.stop - rows.start)
        begins = np.ones((rows.stop - rows.start, self.n_envs), np.bool_)
        if self._before is not None:
            before = [part[None] for part in self._before]
            begins[:1] = differing([part.now[rows][:1] for part in self._observed_parts], before)
        begins[1:] = differing(
            [part.now[rows][1:] for part in self._observed_parts],
            [part.then[rows][:-1] for part in self._observed_parts],
        )
        return begins

    def _pass(self, rows: slice) -> None:
        """Note that the oldest waiting steps wait no longer."""
        steps = rows.stop - rows.start
        self._waiting -= steps
        self._limits = deque((step - steps, envs) for step, envs in self._limits if step >= steps)
        self._before = [part.then[rows.stop - 1].copy() for part in self._observed_parts]
        if self._ring is not None:
            self._ring.drop(steps)

    def reset(self) -> None:
        """Begin with an empty ring; the replay keeps its rows, and open episodes end by a cut."""
        self.flush()
        self._writer.cut()
        self._before = self._over = None
        self._unmarked_ends = {}
        if self._ring is not None:
            self._ring.reset()
        super().reset()

    def close(self) -> None:
        """Store waiting steps, and release files and locks; closing twice is harmless."""
        if not self.is_closed:
            self.flush()
            if self._replay is not None:
                self._replay.close()
            self.is_closed = True

    def __del__(self) -> None:
        # Absent where __init__ was not completed.
        if not self.__dict__.get("is_closed", True) and not self._is_on_demand and self._waiting:
            with contextlib.suppress(StoreLocked):  # of a fork: its parent stores them
                self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions uniformly, by NumPy's global generator as SB3 does.

        Args:
            batch_size: Number of transitions, B >= 1.
            env: SB3's ``VecNormalize``, which normalises observations and rewards.

        Returns:
            ``ReplayBufferSamples``, or ``DictReplayBufferSamples``: observations and next
            observations ``[B, ...]``, actions [B, A], dones [B, 1] and rewards [B, 1], with
            ``n_steps`` > 1 also discounts [B, 1]. The tensors are the caller's own.

        Raises:
            NotEnoughData: There is no transition yet.
        """
        check_whole("batch_size", batch_size, 1)
        size = self.size()
        if not size:
            raise NotEnoughData(
                "the buffer is empty: expected at least one step to draw from, got 0; add some"
            )
        if self.optimize_memory_usage and self.full:
            # SB3 leaves one out here, whose next observation it does not have.
            places = (random_numbers(1, size, batch_size) + self.pos) % size
        else:
            places = random_numbers(0, size, batch_size)
        return self._get_samples(places, env=env)

    def size(self) -> int:
        """Steps of each env in the buffer."""
        if self._resumes:
            self._bind()
        return super().size()

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        """The transitions at places of the ring, each of an env drawn at random."""
        envs = random_numbers(0, self.n_envs, len(batch_inds))
        if self.n_steps > 1:
            return self._n_step_samples(batch_inds, envs, env)
        places = batch_inds * self.n_envs + envs
        observed = self._observed(places, places)
        rewards = self._normalize_reward(self._at(self.rewards, places)[:, None], env)
        return self._transitions(places, places, observed, env, rewards)

    def _transitions(
        self,
        first: np.ndarray,
        last: np.ndarray,
        observed: tuple[Any, Any],
        env: Any,
        *columns: np.ndarray,
    ) -> Any:
        """The batch of transitions from one place to another, counted over steps and envs."""
        # Behind dones are the columns of rewards, and of discounts where there are some.
        dones = self._at(self.dones, last)
        dones *= 1 - self._at(self.timeouts, last)
        samples = samples_class(DictReplayBufferSamples if self._is_dict else ReplayBufferSamples)
        return samples(
            self._owned(self._normalize_obs(observed[0], env)),
            self._owned(self._at(self.actions, first)),
            self._owned(self._normalize_obs(observed[1], env)),
            self._owned(dones[:, None]),
            *map(self._owned, columns),
        )

    def _n_step_samples(self, batch_inds: np.ndarray, envs: np.ndarray, env: Any) -> Any:
        """The same with the returns of up to `n_steps` steps, computed in SB3's order."""
        each = (batch_inds[:, None] + np.arange(self.n_steps)) % self.buffer_size
        dones, timeouts = self.dones[each, envs[:, None]], self.timeouts[each, envs[:, None]]
        # Behind the newest step another episode follows in a full ring.
        is_end = (dones != 0) | (timeouts != 0) | (each == (self.pos - 1) % self.buffer_size)
        last = np.where(is_end.any(1), is_end.argmax(1), self.n_steps - 1)
        is_used = np.arange(self.n_steps) <= last[:, None]
        rewards = self._normalize_reward(self.rewards[each, envs[:, None]], env)
        powers = self.gamma ** np.arange(self.n_steps, dtype=np.float32)[None]
        returns = (rewards * powers * is_used).sum(axis=1, keepdims=True)
        discounts = self.gamma ** is_used.sum(axis=1, keepdims=True).astype(np.float32)
        places = batch_inds * self.n_envs + envs
        ends = each[np.arange(len(each)), last] * self.n_envs + envs
        return self._transitions(
            places, ends, self._observed(places, ends), env, returns, discounts
        )

    def _observed(self, first: np.ndarray, last: np.ndarray) -> tuple[Any, Any]:
        """Observations before and after transitions, of places counted over steps and envs."""
        if self._ring is not None:
            both = self._of_frames(first, self._ring)
            return both if last is first else (both[0], self._of_frames(last, self._ring)[1])
        now = {part.key: self._at(part.now, first) for part in self._observed_parts}
        then = {part.key: self._at(part.then, last) for part in self._observed_parts}
        return self._whole(now), self._whole(then)

    def _of_frames(self, places: np.ndarray, ring: FrameRing) -> tuple[np.ndarray, np.ndarray]:
        """Observations before and after transitions, from the replay or the ring of what waits."""
        steps, envs = places // self.n_envs, places % self.n_envs
        newer = (self.pos - 1 - steps) % self.buffer_size  # steps since then
        waits = newer < self._waiting
        young = None
        if np.count_nonzero(waits):
            young = ring.read(self._waiting - 1 - newer[waits], envs[waits])
            if len(young[0]) == len(places):
                return young
        ids = self._ids.reshape(-1).take(places)
        if young is not None:
            ids[waits] = ids[~waits][0]  # to be written over: a few rows, where joining copies all
        batch = self._opened().take(self._drawn, ids)
        shape = -1, *self.obs_shape
        now, then = batch.observation.reshape(shape), batch.next_observation.reshape(shape)
        if young is not None:
            now[waits], then[waits] = young
        return now, then

    def _at(self, array: np.ndarray, places: np.ndarray) -> np.ndarray:
        return array.reshape(-1, *array.shape[2:]).take(places, 0)

    def __getstate__(self) -> dict[str, Any]:
        """The ring, and the episodes of a replay in RAM, or the folder of one on disk."""
        self.size()  # begins with the steps of the folder, if it is to
        if not self._is_on_demand:
            self.flush()
        state = self.__dict__.copy()
        for name in ("_observed_parts", "_usual", "_writer", "_replay"):
            del state[name]
        state["_open"] = self._writer.state()
        replay = self._replay
        if replay is not None and replay.path is not None:
            state["_path"] = replay.path
            is_needed = self._ring is not None and self.size()
            state["_stored_in"] = _store_of(replay) if is_needed else ""
        elif replay is not None:
            state["_rows"] = replay.capacity, replay.spec, packed_rows(replay.storage)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue with the ring of `__getstate__`; a folder is opened again."""
        rows, path, going = state.pop("_rows", None), state.pop("_path", None), state.pop("_open")
        self._resumes = False
        for name, value in state.items():
            setattr(self, name, value)
        self._use_arrays()
        if rows is None:
            self._start_replay(path, None)
            self._writer.restore(going)
            self._writer.cut()  # as whatever was open when a folder was closed
            self._before = None
        else:
            capacity, spec, packed = rows
            codecs = {field.name: field.codec for field in spec.fields}
            replay = SequenceReplayBuffer(capacity=capacity, codecs=codecs)
            self._start_replay(None, replay)
            if not self._is_bound:
                self._bind()
            replay.add_encoded(unpack_chunks(packed, replay.spec))
            self._writer.restore(going)
            if self._ring is not None and (kept := self.size()):
                # The rows have other ids now; the steps of the ring are the newest of each env.
                ids, streams = transition_ids(replay.storage.index.records)
                places = np.arange(self.pos - kept, self.pos) % self.buffer_size
                for env in range(self.n_envs):
                    self._ids[places, env] = ids[streams == env][-kept:]


@registered
class NStepReplayBuffer(ReplayBuffer, SB3NStepReplayBuffer):
    """SB3's class of this name: `ReplayBuffer` with ``n_steps=3``."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 3,
        gamma: float = 0.99,
        path: str | os.PathLike[str] | None = None,
        resume: bool = True,
        replay: SequenceReplayBuffer | None = None,
        frame_stack: int = 1,
        stack_padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        super().__init__(
            *(buffer_size, observation_space, action_space, device, n_envs),
            *(optimize_memory_usage, handle_timeout_termination),
            n_steps=n_steps,
            gamma=gamma,
            path=path,
            resume=resume,
            replay=replay,
            frame_stack=frame_stack,
            stack_padding=stack_padding,
        )


@registered
class DictReplayBuffer(ReplayBuffer, SB3DictReplayBuffer):
    """`ReplayBuffer` for observations that are dicts of arrays.

    Example:
        >>> space = spaces.Dict({"place": spaces.Box(0, 9, (2,)), "door": spaces.Discrete(3)})
        >>> buffer = DictReplayBuffer(100, space, spaces.Discrete(2), device="cpu")
        >>> seen = {"place": np.zeros((1, 2), np.float32), "door": np.array([2])}
        >>> for _ in range(5):
        ...     buffer.add(seen, seen, np.array([1]), np.ones(1), np.zeros(1), [{}])
        >>> {key: tuple(rows.shape) for key, rows in buffer.sample(8).observations.items()}
        {'door': (8, 1), 'place': (8, 2)}
    """


def _store_of(replay: SequenceReplayBuffer) -> str:
    """The id of the store in a folder."""
    storage = replay.storage if replay.is_bound else None
    return storage.store if isinstance(storage, DiskStorage) else "none"


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_described(part)}" for key, part in value.items()) + "}"
    array = np.asarray(value)
    return f"{array.dtype} {array.shape}"
