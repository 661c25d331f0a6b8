"""The frame-history replay equals a list of episodes, without the bugs of the original."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData
from stepwell.buffers.dropin.frame_history import ChannelStacks, ReplayBuffer, sample_n_unique
from support.examples import by_tier, examples

Shape: TypeAlias = tuple[int, ...]
NO_FLAGS = ("False", [False, False], 0.5, None, 2, np.nan, np.ma.masked)


def frame_of(number: int, shape: Shape = (2, 3, 1), dtype: str = "uint8") -> np.ndarray:
    """A frame that identifies its number: no two are equal, and none is all zeros."""
    flat = np.arange(int(np.prod(shape))) * 7 + 1
    flat[:2] = number % 200 + 1, number // 200 + 1
    return (flat % 251).astype(dtype).reshape(shape)


class Drawn(NamedTuple):
    """The expected values of one drawn transition."""

    observation: np.ndarray
    action: int
    reward: float
    next_observation: np.ndarray
    done: float


@dataclass
class Episode:
    """The frames, actions and rewards of one episode of an env."""

    env: int
    frames: list[int] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    is_open: bool = True
    done: bool = False
    final: int | None = None
    is_cut: bool = False


class Model:
    """The buffer as lists of episodes."""

    def __init__(self, k: int, shape: Shape, dtype: str) -> None:
        self.k, self.shape, self.dtype = k, shape, dtype
        self.episodes: list[Episode] = []

    def open_episode(self, env: int) -> Episode:
        found = [e for e in self.episodes if e.env == env and e.is_open]
        if not found:
            found = [Episode(env)]
            self.episodes += found
        return found[0]

    def stack(self, frames: list[int]) -> np.ndarray:
        images = [frame_of(number, self.shape, self.dtype) for number in frames[-self.k :]]
        if len(self.shape) == 1:
            return images[-1]
        blank = np.zeros(self.shape, self.dtype)
        images = [blank] * (self.k - len(images)) + images
        if len(self.shape) == 2:
            images = [image[..., None] for image in images]
        return np.concatenate(images, axis=2)

    def transitions(self) -> dict[int, Drawn]:
        """All transitions that can be drawn, by the number of the newest observed frame."""
        found: dict[int, Drawn] = {}
        for episode in self.episodes:
            frames = episode.frames[: len(episode.actions)]  # those with an effect
            if not episode.is_open and not episode.is_cut:
                frames = [*frames, frames[-1] if episode.final is None else episode.final]
            for t in range(len(frames) - 1):
                is_last = episode.done and t == len(frames) - 2
                found[frames[t]] = Drawn(
                    self.stack(frames[: t + 1]),
                    episode.actions[t],
                    episode.rewards[t],
                    self.stack(frames[: t + 2]),
                    float(is_last),
                )
        return found

    def number_of(self, observation: np.ndarray) -> int:
        """The number of the newest frame."""
        channels = self.shape[2] if len(self.shape) > 2 else 1
        newest = observation if len(self.shape) == 1 else observation[..., -channels:]
        low, high = newest.ravel()[:2].tolist()
        return int(low - 1 + 200 * (high - 1))


def drawn(buffer: ReplayBuffer, model: Model, count: int) -> set[int]:
    """Draw transitions, compare them with the model, and return their numbers."""
    expected = model.transitions()
    obs, act, rew, next_obs, mask = buffer.sample(count)
    assert obs.dtype == next_obs.dtype == np.dtype(model.dtype)
    assert [str(each.dtype) for each in (act, rew, mask)] == ["int32", "float32", "float32"]
    assert len(obs) == len(act) == len(rew) == len(next_obs) == len(mask) == count
    numbers = [model.number_of(each) for each in obs]
    assert len(set(numbers)) == count  # distinct
    for place, number in enumerate(numbers):
        right = expected[number]
        assert (obs[place] == right.observation).all()
        assert obs[place].shape == right.observation.shape
        assert act[place] == right.action
        assert rew[place] == np.float32(right.reward)
        assert (next_obs[place] == right.next_observation).all()
        assert mask[place] == right.done
    return set(numbers)


def can_draw(buffer: ReplayBuffer) -> int:
    """The number of transitions that can be drawn, found with can_sample."""
    buffer.flush()
    count = 0
    while buffer.can_sample(count + 1):
        count += 1
    return count


class Step(NamedTuple):
    """A step of one env."""

    env: int
    done: bool
    truncated: bool
    has_final: bool


STEPS = st.builds(
    Step,
    st.integers(0, 2),
    st.sampled_from([False] * 5 + [True]),
    st.sampled_from([False] * 5 + [True]),
    st.booleans(),
)
CALLS = st.lists(
    STEPS
    | st.lists(STEPS, min_size=10, max_size=40)
    | st.sampled_from(["flush", "sample", "cut 0", "cut 1", "cut", "frame 0", "frame 2"]),
    max_size=25,
)
FRAMES = st.sampled_from(
    [
        ((2, 3, 1), "uint8"),
        ((2, 1, 3), "uint8"),
        ((1, 2, 150), "uint8"),
        ((2, 2), "uint8"),
        ((1, 2, 2), "int16"),
        ((2, 1, 1), "float64"),
        ((4,), "float32"),
    ]
)
Call: TypeAlias = "Step | list[Step] | str"


class Player:
    """Makes the same calls on a buffer and its model."""

    def __init__(self, buffer: ReplayBuffer, model: Model) -> None:
        self.buffer, self.model = buffer, model
        self.number = 0
        self.waiting: dict[int, int] = {}

    def store_frame(self, env: int) -> None:
        if env in self.waiting:
            return
        model, number = self.model, self.number
        given = frame_of(number, model.shape, model.dtype)
        before = self.buffer.next_idx
        self.waiting[env] = self.buffer.store_frame(given, env)
        assert self.waiting[env] == before
        given[...] = 0  # it was copied
        episode = model.open_episode(env)
        episode.frames.append(number)
        self.number += 1
        recent = self.buffer.encode_recent_observation(env)
        assert (recent == model.stack(episode.frames)).all()
        assert recent.dtype == model.dtype
        recent[...] = 0  # a copy

    def play(self, step: Step) -> None:
        self.store_frame(step.env)
        model, episode = self.model, self.model.open_episode(step.env)
        is_over = step.done or step.truncated
        final = self.number if is_over and (step.has_final or not step.done) else None
        self.number += final is not None
        action, reward = episode.frames[-1] % 6, episode.frames[-1] / 8
        self.buffer.store_effect(
            self.waiting.pop(step.env),
            action,
            reward,
            step.done,
            truncated=step.truncated,
            final_frame=None if final is None else frame_of(final, model.shape, model.dtype),
        )
        episode.actions.append(action)
        episode.rewards.append(reward)
        episode.is_open, episode.done, episode.final = not is_over, step.done, final

    def cut(self, env: int | None) -> None:
        self.buffer.cut(env)
        for episode in self.model.episodes:
            if episode.is_open and env in (None, episode.env):
                episode.is_open, episode.is_cut = False, True
                self.waiting.pop(episode.env, None)

    def call(self, call: Call) -> None:
        if isinstance(call, Step):
            self.play(call)
        elif isinstance(call, list):
            for step in call:
                self.play(step)
        elif call.startswith("cut"):
            self.cut(int(call[4:]) if call[4:] else None)
        elif call.startswith("frame"):
            self.store_frame(int(call[-1]))
        elif call == "flush":
            self.buffer.flush()
        elif self.buffer.can_sample(3):
            drawn(self.buffer, self.model, 3)


@given(CALLS, FRAMES, st.integers(1, 4), st.booleans())
@settings(max_examples=by_tier(30, 100, 200))
def test_every_transition_of_the_model_can_be_drawn_once(
    calls: list[Call], frames: tuple[Shape, str], k: int, contiguous: bool
) -> None:
    buffer = ReplayBuffer(10_000, k, num_envs=3, seed=0, contiguous=contiguous)
    player = Player(buffer, Model(k, *frames))
    for call in calls:
        player.call(call)
    expected = player.model.transitions()
    count = can_draw(buffer)
    assert count == len(expected)
    if count:
        assert drawn(buffer, player.model, count) == set(expected)
    problem = rf"\b{count + 1} items.*\b{count}\b" if count else r"\breplay\b.*\bstep|\b2 rows"
    with pytest.raises(NotEnoughData, match=problem):
        buffer.sample(count + 1)


@pytest.mark.proof
@given(st.lists(STEPS, min_size=60, max_size=200), st.integers(1, 4), st.integers(20, 40))
@settings(max_examples=examples(60))
def test_a_full_ring_returns_correct_transitions_of_the_newest_steps(
    steps: list[Step], k: int, size: int
) -> None:
    """N2, N3, N5: at every position of the write head."""
    buffer = ReplayBuffer(size, k, num_envs=3, seed=0)
    player = Player(buffer, Model(k, (2, 3, 1), "uint8"))
    order: list[int] = []
    for number, step in enumerate(steps):
        player.play(step)
        order.append(player.model.episodes[-1].frames[-1])
        if number % 7 == 0:
            buffer.flush()
    count = can_draw(buffer)
    got = drawn(buffer, player.model, count)
    played = [
        (frame, e.frames[max(0, t - k + 1) : t + 1])
        for e in player.model.episodes
        for t, frame in enumerate(e.frames)
    ]
    frames = sorted(frame for frame, _ in played)
    newest = set(frames[-size:])
    # Rows of an env are stored when they are flushed; other envs may have newer rows by then.
    kept = {frame for frame, stack in played if newest.issuperset(stack)}
    missing = (kept & set(player.model.transitions())) - got
    assert len(got) <= size + size // 15 + 2 + 3
    assert not missing or min(newest) <= min(missing) < frames[-size] + 7 * 3 + k


def filled(
    steps: int, episode: int | None = None, *, size: int = 100, k: int = 4
) -> tuple[ReplayBuffer, Model]:
    """A buffer and its model after ``steps`` steps of one env."""
    player = Player(ReplayBuffer(size, k, seed=0), Model(k, (2, 3, 1), "uint8"))
    for step in range(steps):
        is_done = episode is not None and step % episode == episode - 1
        player.play(Step(0, is_done, False, False))
    return player.buffer, player.model


@pytest.mark.parametrize(
    "frame",
    [
        np.full((2, 3, 1), 0.5),
        np.zeros((2, 3, 1), np.int64),
        np.zeros((2, 3), np.uint8),
        np.zeros((3, 2, 1), np.uint8),
        np.zeros((1, 2, 3, 4), np.uint8),
        np.uint8(3),
        np.zeros((0, 2, 1), np.uint8),
        np.array(["a"]),
        np.zeros((2, 2, 1), np.longdouble),
        np.zeros((2, 2, 1), np.complex64),
        np.array([None]),
    ],
    ids=lambda frame: f"{frame.dtype} {frame.shape}",
)
def test_frames_unlike_the_first_and_invalid_ones_are_refused(frame: np.ndarray) -> None:
    """N8: 0.5 became 0."""
    got, one = re.escape(f"{frame.dtype} {frame.shape}"), ReplayBuffer(10, 2)
    if frame.size != 6:
        with pytest.raises(ValueError, match=rf"^frame: .*\(H, W, C\), \(H, W\) or .*{got}"):
            one.store_frame(frame)
        assert one.store_frame(frame_of(0)) == 0
    buffer, model = filled(5)
    with pytest.raises(ValueError, match=rf"^frame: .*uint8 \(2, 3, 1\).*{got}"):
        buffer.store_frame(frame)
    idx = buffer.store_frame(frame_of(5))
    with pytest.raises(ValueError, match=rf"^final_frame: .*uint8 \(2, 3, 1\).*{got}"):
        buffer.store_effect(idx, 0, 0.0, True, final_frame=frame)
    assert drawn(buffer, model, can_draw(buffer)) == set(range(4))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        # N8: it was truncated.
        ({"action": 1.0}, "^action: .*int32.*float64"),
        ({"action": 0.5}, "^action: .*int32.*float64"),
        ({"action": np.float32(2)}, "^action: .*int32.*float32"),
        ({"action": [1, 2]}, r"^action: .*\(\).*\(2,\)"),
        ({"action": 2**31}, "^action: .*int32.*2147483648"),
        ({"action": "left"}, "^action: .*int32.*<U4"),
        *(
            ({name: flag}, f"^{name}: expected True or False")
            for name in ("done", "truncated")
            for flag in NO_FLAGS
        ),
    ],
)
def test_a_wrong_effect_is_refused_and_changes_nothing(given: dict[str, Any], match: str) -> None:
    buffer, model = filled(3)
    idx = buffer.store_frame(frame_of(3))
    with pytest.raises(ValueError, match=match):
        buffer.store_effect(idx, **{"action": 0, "reward": 0.0, "done": False, **given})
    action: Any = np.array([3 % 6])
    buffer.store_effect(idx, action, 3 / 8, done=cast("bool", np.bool_(False)))
    model.open_episode(0).frames.append(3)
    model.open_episode(0).actions.append(3)
    model.open_episode(0).rewards.append(3 / 8)
    assert drawn(buffer, model, can_draw(buffer)) == {0, 1, 2}


def test_calls_in_the_wrong_order_are_refused_and_change_nothing() -> None:
    """N7."""
    buffer = ReplayBuffer(50, 2, num_envs=2, seed=0)
    with pytest.raises(NotEnoughData, match=r"env 0\b.*\bstore_frame\b"):
        buffer.encode_recent_observation()
    with pytest.raises(ValueError, match=r"idx: .*\(none\).*\b0\b"):
        buffer.store_effect(0, 0, 0.0, False)
    first = buffer.store_frame(frame_of(1), 0)
    with pytest.raises(NotEnoughData, match=r"env 1\b.*\bstore_frame\b"):
        buffer.encode_recent_observation(1)
    with pytest.raises(ValueError, match=r"store_frame: .*store_effect.*env 0\b"):
        buffer.store_frame(frame_of(2), 0)
    with pytest.raises(ValueError, match=r"truncated: .*final_frame"):
        buffer.store_effect(first, 0, 1.0, False, truncated=True)
    with pytest.raises(ValueError, match=r"final observation: .*\bepisode\b"):
        buffer.store_effect(first, 0, 1.0, False, final_frame=frame_of(1))
    second = buffer.store_frame(frame_of(3), 1)
    assert (first, second, buffer.next_idx, buffer.num_in_buffer) == (0, 1, 2, 2)
    buffer.store_effect(first, 0, 0.0, True)
    with pytest.raises(ValueError, match=r"idx: .*\(1\).*\b0\b"):
        buffer.store_effect(first, 0, 0.0, True)
    buffer.store_effect(second, 5, 0.0, True)
    assert sorted(buffer.sample(2)[1].tolist()) == [0, 5]
    dropped = buffer.store_frame(frame_of(4), 1)
    buffer.cut(1)
    with pytest.raises(ValueError, match=rf"idx: .*\(none\).*\b{dropped}\b"):
        buffer.store_effect(dropped, 0, 0.0, False)
    for size in (0, -1, 1.5):
        with pytest.raises(ValueError, match=rf"batch_size: .*>= 1.* {size}$"):
            buffer.sample(size)  # type: ignore[arg-type]


def test_indices_and_counts_are_those_of_a_ring() -> None:
    buffer, _ = filled(7, size=5, k=2)
    assert (buffer.size, buffer.frame_history_len) == (5, 2)
    assert (buffer.next_idx, buffer.num_in_buffer) == (2, 5)
    assert buffer.store_frame(frame_of(7)) == 2


def test_sample_n_unique_terminates() -> None:
    """N5: its loop did not."""
    rng = np.random.default_rng(0)
    found = sample_n_unique(lambda: int(rng.integers(20)), 20)
    assert sorted(found) == list(range(20))
    with pytest.raises(NotEnoughData, match=r"sample_n_unique: .*\b3\b.*\b2\b"):
        sample_n_unique(lambda: int(rng.integers(2)), 3)
    assert sample_n_unique(lambda: 0, 0) == []


# Stacks along the channels

DTYPES = ("uint8", "bool", "int16", "float16", "int32", "float32", "float64", "int64")
SHAPES = ((5, 7, 1), (5, 7), (5, 7, 2), (5, 7, 3), (3, 2, 4), (3, 2, 5), (4, 4, 150), (1, 1, 3))


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    bits = np.random.default_rng(0).integers(0, 256, (*shape, 8), dtype=np.uint8)
    if dtype == "bool":
        return np.asarray(bits[..., 0] > 127)
    return bits.view(np.uint64)[..., 0].astype(np.int64).astype(dtype, casting="unsafe")


def stacked(frames: np.ndarray, is_flat: bool) -> np.ndarray:
    """Concatenate frames [B, k, H, W, C] or [B, k, H, W] in the channels, one by one."""
    return np.stack(
        [
            np.concatenate([f[..., None] if is_flat else f for f in sequence], axis=-1)
            for sequence in frames
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_stacks_equal_concatenated_frames(dtype: str) -> None:
    for shape, k, contiguous, batch in product(SHAPES, (2, 3, 4, 8), (True, False), (1, 3)):
        frames = numbers((batch, k + 1, *shape), dtype)
        stacks = ChannelStacks(shape, frames.dtype, k, contiguous=contiguous)
        pair = stacks.pair(frames)
        for got, first in zip(pair, (0, 1), strict=True):
            expected = stacked(frames[:, first : first + k], len(shape) == 2)
            assert got.dtype == frames.dtype
            assert got.shape == expected.shape
            assert np.ascontiguousarray(got).tobytes() == expected.tobytes()
            assert got.flags.c_contiguous or not contiguous
        if not contiguous:
            channels_first = np.transpose(pair[0], (0, 3, 1, 2))
            assert all(stack.flags.c_contiguous for stack in channels_first)
