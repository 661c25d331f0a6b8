"""The replay of the Berkeley DQN homework (CS294), as in gym-nes-mario-bros: frames one by one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ..base.errors import NotEnoughData
from ..base.number_checks import check_whole
from ..replay.replay import SequenceReplayBuffer
from ..sampling.requests import Transitions
from ..spec.spec import Codec, Field, plain_array
from .transition_writer import (
    ReplayOwner,
    TransitionWriter,
    check_env,
    flag_of,
    new_replay,
    row_field,
)

__all__ = ["ReplayBuffer", "sample_n_unique"]

ItemT = TypeVar("ItemT")
_ACTION = Field("action", "int32", (), "raw")
_FACTS = {"source": "frame-history ReplayBuffer", "recipe": {"made_by": "frame_history"}}
_DRAWN = ("observation", "action", "reward")
_TRIES = 1000
# OpenCV moves numbers of these sizes, regardless of their meaning.
_WORDS: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.float64}
_MOST_PLANES = 128  # limit of OpenCV 5


class ReplayBuffer(ReplayOwner):
    """Keeps each frame once and draws transitions between stacks of frames.

    A step is a frame and its effect: `store_frame`, then `store_effect`. It can be drawn when
    its effect and the frame that followed are there, the latter being the last frame again where
    an episode ended without one. Between the two calls `encode_recent_observation` gives the stack
    to choose an action from. Draws are uniform over all transitions whose frames are stored, none
    twice in a batch; while less than a thousandth of the transitions is new, for each env, the new
    ones wait until there are more of them (a hundredth at most), or `flush` is called.

    The first frame determines the shape and dtype of all: ``[H, W, C]``, or ``[H, W]``, which
    counts as one channel, gives stacks ``[H, W, C * k]``, the oldest frame first, with zeros before
    the episode's start. Of ``[D]`` (the RAM of a console, a vector) only the newest is given.

    Args:
        size: Steps that are kept at least, of all envs together; up to a fifteenth more are.
        frame_history_len: Frames of a stack, k >= 1.
        path: Folder of a Stepwell store, which is continued if it is there; None keeps all in RAM.
        num_envs: Number of envs N; each has separate episodes.
        seed: Seed of the draws.
        codec: Codec of the frames; None: raw in RAM, patch in a folder.
        contiguous: Give stacks in C order. With False they are views with the frames' axis moved,
            which is faster for callers that move it back: ``np.transpose(obs, (0, 3, 1, 2))``.

    Raises:
        ValueError: A number is out of range.
        SpecMismatch: The folder holds other rows.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> buffer = ReplayBuffer(1_000, 4, seed=0)
        >>> for step in range(100):
        ...     idx = buffer.store_frame(np.full((84, 84, 1), step, np.uint8))
        ...     observation = buffer.encode_recent_observation()
        ...     buffer.store_effect(idx, action=step % 6, reward=1.0, done=step % 50 == 49)
        >>> observation.shape, observation[0, 0]
        ((84, 84, 4), array([96, 97, 98, 99], dtype=uint8))
        >>> obs_batch, act_batch, rew_batch, next_obs_batch, done_mask = buffer.sample(32)
        >>> next_obs_batch.shape, done_mask.dtype
        ((32, 84, 84, 4), dtype('float32'))
    """

    def __init__(
        self,
        size: int,
        frame_history_len: int,
        *,
        path: str | os.PathLike[str] | None = None,
        num_envs: int = 1,
        seed: int | None = None,
        codec: Codec | None = None,
        contiguous: bool = True,
    ) -> None:
        check_whole("size", size, 1)
        check_whole("frame_history_len", frame_history_len, 1)
        check_whole("num_envs", num_envs, 1)
        self.size = int(size)
        self.frame_history_len = int(frame_history_len)
        self._num_envs = int(num_envs)
        self._codec: Codec | None = codec
        self._contiguous = contiguous
        self._pending: dict[int, int] = {}  # the env of each frame whose effect is missing
        self._frames = 0
        self._state: _State | None = None
        self._open(new_replay(self.size, path, seed=seed))

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The underlying replay."""
        return self._replay

    @property
    def next_idx(self) -> int:
        """The index that `store_frame` returns next."""
        return self._frames % self.size

    @property
    def num_in_buffer(self) -> int:
        """Frames stored, ``size`` at most."""
        steps = 0 if self._state is None else self._state.writer.steps
        return min(self.size, steps + len(self._pending))

    def store_frame(self, frame: np.ndarray, env: int = 0) -> int:
        """Add a copy of an env's current frame.

        Args:
            frame: [H, W, C], [H, W] or [D], of the dtype and shape of the first one.
            env: Index of the env.

        Returns:
            The index of the frame, to be passed to `store_effect`.

        Raises:
            ValueError: The frame has another form, there is no such env, or the effect of the
                env's frame before is missing; nothing was added.
            SpecMismatch: The folder holds other rows.
        """
        check_env(env, self._num_envs)
        idx, pending = self._frames % self.size, self._pending
        if pending and (idx in pending or env in pending.values()):
            late = env if env in pending.values() else pending[idx]
            raise ValueError(
                f"store_frame: expected store_effect for the last frame of env {late}, got another "
                f"frame; call cut(env) if that frame has no effect"
            )
        state = self._state
        if state is None:
            image = plain_array("frame", frame, ValueError)
            state = self._state = self._start(image.dtype, image.shape)
        image = state.check("frame", frame)
        state.recent[env].push(image, is_first=state.is_over[env])
        pending[idx] = env
        self._frames += 1
        return idx

    def store_effect(
        self,
        idx: int,
        action: int,
        reward: float,
        done: bool,
        *,
        truncated: bool = False,
        final_frame: np.ndarray | None = None,
    ) -> None:
        """Complete the step of a frame with its action and the result.

        Args:
            idx: The index that `store_frame` returned for the frame; it determines the env.
            action: A whole number.
            reward: The reward of the action.
            done: The episode is over, without a next frame to learn from.
            truncated: The env's clock ended the episode, and ``final_frame`` can be learned from.
            final_frame: The last frame of the episode.

        Raises:
            ValueError: No frame with this number awaits its effect, the action is not a whole
                number, a flag is none, or the final frame is missing, not expected, or has another
                form; nothing was added.
        """
        env = self._pending.get(idx)
        if env is None or self._state is None:
            waiting = ", ".join(map(str, self._pending)) or "none"
            raise ValueError(
                f"idx: expected that of a frame without an effect ({waiting}), got {idx}; "
                f"call store_frame first, and store_effect once for each frame"
            )
        state = self._state
        is_done, is_cut = flag_of("done", done), flag_of("truncated", truncated)
        # Values are learned from the frame after a time limit; the next one is that of a reset.
        if is_cut and not is_done and final_frame is None:
            raise ValueError(
                "truncated: expected the final_frame with it, got none; give what the env showed "
                "last, or say done=True where it is not known"
            )
        final = None if final_frame is None else state.check("final_frame", final_frame)
        state.writer.add(
            state.recent[env].newest,
            action,
            reward,
            terminated=is_done,
            truncated=is_cut,
            final_observation=final,
            env=env,
        )
        state.is_over[env] = is_done or is_cut
        del self._pending[idx]

    def encode_recent_observation(self, env: int = 0) -> np.ndarray:
        """The stack that ends with the env's newest frame: [H, W, C * k], or [D].

        Raises:
            NotEnoughData: The env has shown no frame yet.
            ValueError: There is no such env.
        """
        check_env(env, self._num_envs)
        if self._state is None or not self._state.recent[env].has_any:
            raise NotEnoughData(
                f"env {env} has no frame yet: expected store_frame before "
                f"encode_recent_observation; call it first"
            )
        return self._state.with_channels(self._state.recent[env].stack())

    def can_sample(self, batch_size: int) -> bool:
        """True if ``batch_size`` different transitions can be drawn."""
        if self._state is None:
            return False
        self._bring_up(batch_size)
        return self._replay.count(_request(1)) >= batch_size

    def sample(
        self, batch_size: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draw different transitions.

        Args:
            batch_size: Number of transitions, B >= 1.

        Returns:
            Observations [B, H, W, C * k] (or [B, D]) in the frames' dtype, actions [B] int32,
            rewards [B] float32, next observations like the observations, and the mask [B] float32:
            1 where the episode was done with the step, so that nothing may be learned from the next
            observation. All are copies.

        Raises:
            NotEnoughData: Fewer transitions can be drawn.
            ValueError: ``batch_size`` is not a whole number >= 1.
        """
        request = _request(batch_size)
        if self._state is not None:
            check_whole("batch_size", batch_size, 1)
            self._bring_up(batch_size)
        batch = self._replay.sample(request)
        state = cast("_State", self._state)  # else the draw has failed
        if state.stacks is None:
            before = state.with_channels(batch.observation)
            after = state.with_channels(batch.next_observation)
        else:
            before, after = state.stacks.pair(batch.memory["observation"])
        return before, batch.action, batch.reward, after, batch.terminated.astype(np.float32)

    def flush(self) -> None:
        """Make every complete transition drawable; in a folder they are durable then."""
        if self._state is not None:
            self._state.writer.flush(newest=False)

    def cut(self, env: int | None = None) -> None:
        """Stop recording an env's open episode, or those of all: the next frame begins another.

        A frame without an effect is dropped, and a step without a next frame cannot be drawn.

        Args:
            env: Index of the env; None for all.

        Raises:
            ValueError: There is no such env.
        """
        if env is not None:
            check_env(env, self._num_envs)
        envs = range(self._num_envs) if env is None else [env]
        self._pending = {idx: of for idx, of in self._pending.items() if of not in envs}
        if self._state is not None:
            self._state.writer.cut(env, newest=False)
            for number in envs:
                self._state.is_over[number] = True

    def _store_rest(self) -> None:
        self.flush()  # complete steps: an effect that is missing never comes

    def _bring_up(self, batch_size: int) -> None:
        """Store new transitions if the batch could need them."""
        assert self._state is not None
        if 2 * batch_size > len(self._replay):
            self._state.writer.flush(newest=False)
        else:
            self._state.writer.catch_up(newest=False)

    def _begin(self) -> None:
        if not self._replay.is_bound:
            return
        names = self._replay.spec.names
        stored = self._replay.spec["observation"] if "observation" in names else _ACTION
        self._state = self._start(stored.numpy_dtype, stored.shape)
        self._frames = self._state.writer.steps

    def _start(self, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> _State:
        """Create the state that depends on the dtype and shape of a frame."""
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not 1 <= len(shape) <= 3 or 0 in shape:
            raise ValueError(
                f"frame: expected numbers of shape (H, W, C), (H, W) or (D,), got {dtype} {shape}; "
                f"give what the env shows as one array"
            )
        k = self.frame_history_len if len(shape) > 1 else 1
        field = row_field(
            "observation", dtype, shape, path=self._replay.path, codec=self._codec, stack=k
        )
        writer = TransitionWriter(
            self._replay, field, _ACTION, num_envs=self._num_envs, facts=_FACTS
        )
        stacks = ChannelStacks(shape, dtype, k, contiguous=self._contiguous) if k > 1 else None
        recent = [RecentFrames(stacks, shape, dtype) for _ in range(self._num_envs)]
        return _State(dtype, shape, writer, stacks, recent, [True] * self._num_envs)


class _State(NamedTuple):
    """State that depends on the dtype and shape of the first frame."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    writer: TransitionWriter
    stacks: ChannelStacks | None  # None without stacking
    recent: list[RecentFrames]  # the newest frames of each env
    is_over: list[bool]  # for each env: its next frame is that of a reset

    def check(self, what: str, frame: object) -> np.ndarray:
        """The frame, which must be like the first one."""
        image = plain_array(what, frame, ValueError)
        if image.dtype != self.dtype or image.shape != self.shape:
            raise ValueError(
                f"{what}: expected {self.dtype} {self.shape} like the first one, got {image.dtype} "
                f"{image.shape}; convert it as it is meant first"
            )
        return image

    def with_channels(self, shown: np.ndarray) -> np.ndarray:
        """Add an axis of channels to frames that are not stacked and lack it."""
        return shown[..., None] if self.stacks is None and len(self.shape) == 2 else shown


def sample_n_unique(sampling_f: Callable[[], ItemT], n: int) -> list[ItemT]:
    """Draw until there are n different values.

    Args:
        sampling_f: Returns a random value.
        n: Number of values.

    Raises:
        NotEnoughData: A thousand draws in a row gave no new value: there seem to be fewer.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sorted(sample_n_unique(lambda: int(rng.integers(3)), 3))
        [0, 1, 2]
    """
    found: list[Any] = []
    tries = 0
    while len(found) < n:
        candidate = sampling_f()
        tries += 1
        if candidate not in found:
            found.append(candidate)
            tries = 0
        elif tries >= _TRIES:
            raise NotEnoughData(
                f"sample_n_unique: expected {n} different things, got {len(found)} and in "
                f"{_TRIES} draws no other one; ask for fewer"
            )
    return found


def _request(batch_size: int) -> Transitions:
    """A request for different transitions, with only the fields that are returned."""
    return Transitions(batch_size, draw="distinct", fields=_DRAWN)


class ChannelStacks:
    """Makes stacks ``[B, H, W, C * k]`` of frames ``[H, W, C]``, or ``[H, W]``: one channel."""

    # They are made plane by plane: several times as fast as a transposed copy. They are in C order
    # if they are to be contiguous; else views, of which `np.transpose(stacks, (0, 3, 1, 2))` is in
    # that order for each stack. A number has eight bytes at most.

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        k: int,
        *,
        contiguous: bool = True,
    ) -> None:
        import cv2  # imported here, as it takes as long as the rest of Stepwell

        self._cv2: Any = cv2
        self.shape, self.dtype, self.k = shape, dtype, k
        self._image = shape[:2]
        self._pixels = shape[0] * shape[1]
        self._contiguous = contiguous
        channels = shape[2] if len(shape) > 2 else 1
        # If a pixel's channels fit into one word, they are moved together.
        size = dtype.itemsize * channels
        is_word = contiguous and size in _WORDS
        self.word = np.dtype(_WORDS[size if is_word else dtype.itemsize])
        self.planes_of_frame = 1 if is_word else channels
        self._channels = channels * k

    def pair(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The stacks of the first and last k of frames [B, k + 1, H, W, C], or without the C."""
        # They must be C-contiguous.
        planes = self.planes(frames)
        return self._stacks(planes, 0), self._stacks(planes, self.planes_of_frame)

    def planes(self, frames: np.ndarray) -> np.ndarray:
        """The words of frames [B, n, ...], channel by channel: [B, n * planes, H * W]."""
        batch, n = frames.shape[:2]
        c = self.planes_of_frame
        if c == 1:
            return frames.view(self.word).reshape(batch, n, self._pixels)
        planes = np.empty((batch * n, c, self._pixels), self.word)
        pixels = frames.view(self.word).reshape(-1, self._pixels, c)
        if c > _MOST_PLANES:
            planes[...] = pixels.swapaxes(1, 2)
        else:
            self._cv2.split(pixels, [planes[:, channel] for channel in range(c)])
        return planes.reshape(batch, n * c, self._pixels)

    def woven(self, planes: list[np.ndarray]) -> np.ndarray:
        """Stacks [B, H, W, C * k] in C order, from planes [B, H * W]."""
        batch, count = len(planes[0]), len(planes)
        stacks = np.empty((batch, *self._image, self._channels), self.dtype)
        words = stacks.view(self.word).reshape(batch, self._pixels, count)
        if count > _MOST_PLANES:
            np.stack(planes, axis=-1, out=words)
        else:
            self._cv2.merge(planes, words)
        return stacks

    def one(self, planes: list[np.ndarray]) -> np.ndarray:
        """A stack [H, W, C * k] from planes [H, W]; faster than `woven` for one stack."""
        merge = np.dstack if len(planes) > _MOST_PLANES else self._cv2.merge
        stack: np.ndarray = merge(planes).view(self.dtype)
        return stack.reshape(*self._image, self._channels)

    def _stacks(self, planes: np.ndarray, first: int) -> np.ndarray:
        stop = first + self.k * self.planes_of_frame
        if self._contiguous:
            return self.woven([planes[:, place] for place in range(first, stop)])
        some = planes[:, first:stop].view(self.dtype)
        return some.reshape(len(planes), stop - first, *self._image).transpose(0, 2, 3, 1)


class RecentFrames:
    """The newest frames of one env, stacked as the batches are; without ``stacks`` the newest."""

    def __init__(
        self, stacks: ChannelStacks | None, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        self._stacks, self._plane = stacks, (-1, *shape[:2])
        self.newest = np.zeros(shape, dtype)  # the frame that was pushed last
        self.has_any = False
        self._blank: list[np.ndarray] = []
        if stacks is not None:
            planes = stacks.planes(self.newest[None, None])[0].reshape(self._plane)
            self._blank = [*planes] * stacks.k
        self._shown = deque(self._blank, len(self._blank))  # planes [H, W]

    def push(self, frame: np.ndarray, *, is_first: bool) -> None:
        """Add a copy of a frame."""
        self.newest, self.has_any = frame.copy(), True
        if self._stacks is None:
            return
        if is_first:
            self._shown.extend(self._blank)
        self._shown.extend(self._stacks.planes(self.newest[None, None])[0].reshape(self._plane))

    def stack(self) -> np.ndarray:
        """The stack that ends with the newest frame, [H, W, C * k], or that frame."""
        if self._stacks is None:
            return self.newest.copy()
        return self._stacks.one(list(self._shown))
