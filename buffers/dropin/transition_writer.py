"""A ring of steps for the classes of other projects, filled one transition at a time."""

from __future__ import annotations

import atexit
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

import numpy as np

from ..base.errors import NotEnoughData, not_copied
from ..base.number_checks import check_whole, is_whole
from ..replay.replay import SequenceReplayBuffer
from ..rows.episode import Chunk, End
from ..rows.episode_buffer import OBSERVED, EpisodeBuffer
from ..sampling.batch import Batch
from ..sampling.requests import Sequences
from ..spec.exact_values import exactly
from ..spec.spec import Codec, Field, Spec, default_codec, plain_array

BordersT = TypeVar("BordersT", bound=str)
_MAX_ROWS, _MIN_ROWS, _MAX_BYTES = 512, 16, 32 << 20


class TransitionWriter:
    """Writes transitions whose next observation comes with the next one; env i is stream i."""

    # Rows wait in an `EpisodeBuffer` until `flush`, or until there are many. In a folder they are
    # also stored at the end of every episode. The replay is bound here, or, where that makes a new
    # folder, by `add`; the JSON-able `facts` say who writes it, and what the rows are, as a recipe,
    # which must not change.

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        observation: Field,
        action: Field,
        *,
        num_envs: int = 1,
        facts: Mapping[str, object],
    ) -> None:
        self.num_envs = num_envs
        reward = Field("reward", "float64", (), "narrow")
        fields = observation, action, reward, OBSERVED
        self.spec = spec = Spec(fields, observation.name, action.name)
        self._replay, self._facts = replay, facts
        self._is_bound = False
        if replay.is_bound or replay.path is None:
            self._bind()  # a new folder is made by the first step
        self._observation = observation.numpy_dtype, observation.shape
        self._action = action.numpy_dtype, action.shape
        rows = max(_MIN_ROWS, min(_MAX_ROWS, _MAX_BYTES // max(1, num_envs * spec.row_bytes)))
        if replay.capacity is not None:  # more of one env would evict newer rows of another
            rows = max(3, min(rows, replay.capacity // (16 * num_envs)))
        self._rows = EpisodeBuffer(
            spec,
            num_envs,
            chunk_rows=rows,
            next_episode=replay.storage.index.next_episode if replay.is_bound else 0,
        )
        self._is_on_disk = replay.path is not None
        self.steps = self._flushed = replay.steps
        self.episodes = 0
        if replay.is_bound:
            ends = replay.storage.index.records["end"]
            self.episodes = int((ends & (End.TERMINATED | End.TRUNCATED) != 0).sum())

    def _bind(self) -> None:
        self._replay.bind(self.spec, self._facts)
        self._is_bound = True

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
        """Add a transition, its values as declared; everything is copied, or nothing is added."""
        # The final observation is the last one of the episode; None if unknown.
        if not self._is_bound:
            self._bind()
        check_env(env, self.num_envs)
        image = as_declared("observation", observation, *self._observation)
        chosen = as_declared("action", action, *self._action)
        gain = reward if type(reward) is float else _number(reward)
        is_over = terminated or truncated
        last = final_observation
        if last is not None:
            if not is_over:
                raise ValueError(
                    "final observation: expected one only with the last step of an episode, got "
                    "one with a step that does not end one; leave it out"
                )
            last = as_declared("final observation", last, *self._observation)
        if self._rows.is_due:
            self._store(self._rows.take())
        self._rows.add(image, chosen, gain, last, terminated, truncated, env_ids=env)
        self.steps += 1
        if is_over:
            self.episodes += 1
            if self._is_on_disk:
                self._store(self._rows.take([env]))

    def flush(self, *, newest: bool) -> None:
        """Store added steps, so that they can be drawn."""
        # The newest transition of each env has no known next observation yet: the one before is
        # repeated in its place until then, if `newest` asks for that.
        self._store(self._rows.take(everything=True, newest=newest))
        self._flushed = self.steps

    def catch_up(self, *, newest: bool) -> None:
        """`flush`, unless less than a thousandth of what can be drawn would be added."""
        # For a caller that draws after every few steps: each flush makes a chunk for every env. So
        # it is a thousandth for each of them, and a hundredth at most.
        if (self.steps - self._flushed) * 1000 >= len(self._replay) * min(10, self.num_envs):
            self.flush(newest=newest)

    def cut(self, env: int | None = None, *, newest: bool = True) -> None:
        """End the recording of an env's open episode, or of all: the next step begins another."""
        # `newest` keeps the newest transition, although its next observation is not known.
        envs = range(self.num_envs) if env is None else [env]
        self._rows.cut(envs, newest=newest)
        self._store(self._rows.take(envs))

    def _store(self, chunks: list[Chunk]) -> None:
        if chunks:
            self._replay.add(chunks)


class ReplayOwner(ABC):
    """A buffer that opens, fills and closes a replay, and is not copied."""

    _replay: SequenceReplayBuffer

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a replay buffer",
            "give it a path, and read that folder: SequenceReplayBuffer.open(path, read_only=True)",
        )

    def _open(self, replay: SequenceReplayBuffer) -> None:
        """Begin with a replay, which is closed with this buffer, or when this process ends."""
        self._replay = replay
        try:
            self._begin()
        except BaseException:
            replay.close()  # otherwise the folder stays locked
            raise
        if replay.path is not None:
            replay.call_before_close(self._store_rest)
            call_at_end(self.close)

    @abstractmethod
    def _begin(self) -> None:
        """Continue with the rows in the replay, if there are some."""

    @abstractmethod
    def _store_rest(self) -> None:
        """Store what was added."""

    def close(self) -> None:
        """Store what was added, and release files and locks; closing twice is harmless."""
        self._store_rest()
        self._replay.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def call_at_end(method: Callable[[], None]) -> None:
    """Call a method when this process ends, and not its forks, if its object is still there."""
    atexit.register(_call, weakref.WeakMethod(method), os.getpid())


def _call(reference: weakref.WeakMethod[Callable[[], None]], process: int) -> None:
    method: Any = reference()
    if method is None or os.getpid() != process:
        return
    if not getattr(method.__self__, "is_closed", False):  # what came later has no place any more
        method()


def check_one_of(name: str, value: object, allowed: tuple[str, ...], hint: str = "") -> None:
    """Refuse another value than the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}{hint}")


def check_env(env: int, num_envs: int) -> None:
    """Refuse what is no index of an env."""
    if not (type(env) is int or is_whole(env)) or not 0 <= env < num_envs:
        raise ValueError(
            f"env: expected an index from 0 to {num_envs - 1}, got {env!r}; give the number of "
            f"envs as num_envs"
        )


def _number(reward: object) -> float:
    """A reward as a Python float: numbers and arrays of one number are valid."""
    if isinstance(reward, float | np.float32):
        return float(reward)
    array = plain_array("reward", reward, ValueError)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"reward: expected one number, got {reward!r:.60}; give that of one env")
    return float(exactly(array.reshape(()), np.dtype(np.float64), (), "reward"))


def new_replay(
    size: int,
    path: str | os.PathLike[str] | None = None,
    *,
    seed: int | None = None,
) -> SequenceReplayBuffer:
    """A replay that always keeps at least the newest ``size`` steps."""
    # It keeps up to a fifteenth more of them: a sixteenth of what it may keep goes at a time.
    check_whole("size", size, 1)
    return SequenceReplayBuffer(path, capacity=size + size // 15 + 2, seed=seed)


def row_field(
    name: str,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    *,
    path: str | os.PathLike[str] | None,
    codec: Codec | None = None,
    stack: int = 1,
) -> Field:
    """A field with a fast codec in RAM and a compact one on disk, unless a codec is given."""
    chosen = codec or ("raw" if path is None else default_codec(dtype, shape))
    return Field(name, dtype.name, shape, chosen, stack)


def checked_shape(name: str, shape: object) -> tuple[int, ...]:
    """The shape of an array."""
    sizes: Sequence[object] | None = list(shape) if isinstance(shape, Sequence) else None
    whole = [int(size) for size in sizes or () if is_whole(size) and size >= 1]
    if sizes is None or len(whole) < len(sizes):
        raise ValueError(
            f"{name}: expected a tuple of whole numbers >= 1, as in (3, 64, 64), got {shape!r}"
        )
    return tuple(whole)


def as_declared(
    what: str, value: object, dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> np.ndarray:
    """A value as an array of exactly this dtype and shape; the value itself where that fits."""
    # Whole numbers and bools go into any dtype that keeps them all; floats only into floats, where
    # they may be rounded, because the original buffers declare float32. Something that is one
    # number fits () and (1,).
    if type(value) is np.ndarray and value.shape == shape:
        if value.dtype is dtype or value.dtype == dtype:
            return value
    if shape == () and dtype.kind in "iu" and isinstance(value, (int, np.integer)):
        try:
            return np.array(int(value), dtype)
        except OverflowError:
            pass  # the error is raised below
    array = plain_array(what, value, ValueError)
    if array.shape != shape and (array.shape, shape) not in (((), (1,)), ((1,), ())):
        raise ValueError(
            f"{what}: expected an array of shape {shape}, got {array.shape}; reshape it first"
        )
    return exactly(array.reshape(shape), dtype, shape, what)


def one_hot(what: str, value: object, size: int) -> np.ndarray:
    """The float32 vector [size] of a choice among ``size``."""
    choice = plain_array(what, value, ValueError)
    if choice.size != 1 or choice.dtype.kind not in "iu" or not 0 <= int(choice.item()) < size:
        raise ValueError(
            f"{what}: expected one whole number from 0 to {size - 1}, got {value!r}; give the "
            f"number of the action"
        )
    vector = np.zeros(size, np.float32)
    vector[int(choice.item())] = 1
    return vector


def ended_by(name: str, done: object, *, truncated: object) -> tuple[bool, bool]:
    """Split a done flag: the step terminated its episode; a time limit ended it."""
    if done is False and truncated is False:  # nearly always
        return False, False
    is_over, is_cut = flag_of(name, done), flag_of("truncated", truncated)
    if is_cut and not is_over:
        raise ValueError(
            f"truncated=True: expected {name} to be True as well, got {done!r}; the clock ends an "
            f"episode, too"
        )
    return is_over and not is_cut, is_cut


def flag_of(name: str, value: object) -> bool:
    """True or False, also as 0 or 1."""
    if value is False or value is True:
        return value
    try:
        found = bool(value)
        is_flag = bool(found == value)
    except Exception:  # of any library whose object it is
        is_flag = False
    if not is_flag:
        raise ValueError(
            f"{name}: expected True or False, 0 or 1, got {value!r}; give that of one step"
        )
    return found


IMAGE, VECTOR = np.dtype(np.uint8), np.dtype(np.float32)


_INSIDE: Any = "inside"
_MORE = "; the buffer's replay has more"


class ImageRing(ReplayOwner, Generic[BordersT]):
    """A replay of uint8 images and float32 actions, and its writer."""

    # Where actions are `one_hot` they are given as numbers.

    _newest: ClassVar[bool]  # the newest step of an open episode is stored as well
    _all_borders: ClassVar[tuple[str, ...]]  # that a sequence may have

    def __init__(
        self,
        size: int,
        obs_shape: Sequence[int],
        action_size: int,
        seq_len: int,
        batch_size: int,
        *,
        borders: BordersT = _INSIDE,
        path: str | os.PathLike[str] | None = None,
        num_envs: int = 1,
        seed: int | None = None,
        codec: Codec | None = None,
        one_hot: bool = False,
    ) -> None:
        self.borders: BordersT = borders
        self.size = size
        self.obs_shape = checked_shape("obs_shape", obs_shape)
        self.action_size = action_size
        self.seq_len = seq_len
        self.batch_size = batch_size
        self._is_one_hot = one_hot
        check_one_of("borders", borders, self._all_borders, _MORE)
        check_whole("size", size, 1)
        check_whole("action_size", action_size, 1)
        check_whole("seq_len", seq_len, 1)
        check_whole("batch_size", batch_size, 1)
        check_whole("num_envs", num_envs, 1)
        if seq_len > size:
            raise ValueError(
                f"seq_len: expected at most size={size}, got {seq_len}; no episode can have that "
                f"many steps: raise size"
            )
        self._fields = (
            row_field("observation", IMAGE, tuple(obs_shape), path=path, codec=codec),
            row_field("action", VECTOR, (action_size,), path=path),
        )
        self._num_envs = num_envs
        # In an episode without its first rows the last row counts as a step, but no draw begins
        # there.
        self.replay: SequenceReplayBuffer = new_replay(size + num_envs, path, seed=seed)
        """The underlying replay, which holds the steps and has more ways to draw them."""
        self._open(self.replay)

    def _begin(self) -> None:
        facts = {"source": f"torchwm {type(self).__name__}", "recipe": {}}
        self._writer = TransitionWriter(
            self.replay, *self._fields, num_envs=self._num_envs, facts=facts
        )

    @property
    def steps(self) -> int:
        """Steps ever added."""
        return self._writer.steps

    @property
    def episodes(self) -> int:
        """Episodes that ended."""
        return self._writer.episodes

    @property
    def idx(self) -> int:
        """The next write index of a ring of ``size`` steps."""
        return self.steps % self.size

    @property
    def full(self) -> bool:
        """True if at least ``size`` steps were added."""
        return self.steps >= self.size

    def _chosen_borders(self, borders: BordersT | None) -> BordersT:
        """The borders of a draw: other ones than the buffer's, if some are given."""
        chosen = self.borders if borders is None else borders
        check_one_of("borders", chosen, self._all_borders, _MORE)
        return chosen

    def _drawn(self, request: Sequences, needed: int, *, is_across: bool = False) -> Batch:
        """Draw sequences; the error names the ``needed`` steps, across episodes or in one."""
        self._writer.catch_up(newest=self._newest)
        try:
            return self.replay.sample(request)
        except NotEnoughData:
            records = self.replay.storage.index.records
            last = records[records["is_tail"] == 1]
            steps = last["first_row"] + last["rows"] - last["head"] - 1
            where = "of one env" if is_across else "in one episode"
            raise NotEnoughData(
                f"expected {needed} steps {where} to draw from, got {len(self.replay)} in all, at "
                f"most {max(0, steps.max(initial=0))} in one episode; add more, or draw shorter "
                f"sequences"
            ) from None

    def _chosen(self, name: str, action: object) -> object:
        """An action as it is stored; with `one_hot` its number was given."""
        return one_hot(name, action, self.action_size) if self._is_one_hot else action

    def _store_rest(self) -> None:
        self._writer.flush(newest=self._newest)


class DrawnSequences(tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Observations, actions, rewards and terminals, and the batch that they were made from."""

    batch: Batch  # whose ``info["observed"]`` is False for observations that were filled in


class TooFew(NotEnoughData, ValueError):
    """Fewer steps than requested; also a ValueError, which callers of the originals expect."""
