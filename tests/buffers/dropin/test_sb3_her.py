"""Stepwell's HerReplayBuffer beside Stable-Baselines3's own on the same calls."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import by_tier

pytest.importorskip("stable_baselines3", reason="needs stable_baselines3")

import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common import save_util
from stable_baselines3.common.buffers import DictReplayBuffer as TheirDictBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as TheirBuffer

from stepwell.buffers import NotEnoughData
from stepwell.buffers.dropin import sb3

OurBuffer: Any = sb3.HerReplayBuffer
STRATEGIES = ["future", "final", "episode"]


class LineEnv(gymnasium.Env[Any, Any]):
    """A place on a line; rewards depend on the info if there is one."""

    def __init__(self) -> None:
        goal = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = spaces.Dict(
            observation=spaces.Box(-9, 9, (3,)), achieved_goal=goal, desired_goal=goal
        )
        self.action_space = spaces.Box(-1, 1, (1,))
        self.place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.place = self.place + np.asarray(action, np.float64)
        return self.seen(), 0.0, False, False, {}

    def seen(self) -> dict[str, np.ndarray]:
        rest = np.resize(self.place, 3).astype(np.float32)
        return {"observation": rest, "achieved_goal": self.place.copy(), "desired_goal": np.ones(2)}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> np.ndarray:
        more = np.array([info.get("bonus", 0.0) for info in infos])
        found: np.ndarray = np.linalg.norm(achieved - desired, axis=-1) + more
        return found


def line_envs(n: int) -> DummyVecEnv:
    return DummyVecEnv([LineEnv] * n)


def both(size: int, n: int, **options: Any) -> tuple[Any, Any]:
    env = LineEnv()
    parts: Any = env.observation_space, env.action_space
    kinds: list[Any] = [TheirBuffer, OurBuffer]
    theirs, ours = (kind(size, *parts, line_envs(n), "cpu", n, **options) for kind in kinds)
    return theirs, ours


def played(n: int, steps: int, seed: int, ends: float) -> list[tuple[Any, ...]]:
    """Steps of envs, each with other numbers everywhere."""
    rng = np.random.default_rng(seed)

    def seen() -> dict[str, np.ndarray]:
        return {
            "observation": rng.normal(size=(n, 3)).astype(np.float32),
            "achieved_goal": rng.normal(size=(n, 2)),
            "desired_goal": rng.normal(size=(n, 2)),
        }

    now, found = seen(), []
    for _ in range(steps):
        then, done, is_late = seen(), rng.random(n) < ends, rng.random(n) < 0.5
        infos = [
            {"TimeLimit.truncated": bool(late), "bonus": float(rng.random())}
            for late in done & is_late
        ]
        action, gain = rng.normal(size=(n, 1)).astype(np.float32), rng.normal(size=n)
        found.append((now, then, action, gain, done, infos))
        start = seen()
        now = {key: np.where(done[:, None], start[key], then[key]) for key in then}
    return found


def sampled(buffer: Any, count: int, seed: int, env: Any = None) -> Any:
    """A batch after a seed of NumPy's global generator, or the name of the refusal."""
    np.random.seed(seed)  # noqa: NPY002
    try:
        return buffer.sample(count, env)
    except (RuntimeError, NotEnoughData):
        return None


def assert_same(ours: Any, theirs: Any, count: int, seed: int, env: Any = None) -> bool:
    """Both draw the same batch; True if there was one."""
    batch, expected = sampled(ours, count, seed, env), sampled(theirs, count, seed, env)
    assert (batch is None) == (expected is None)
    if batch is None:
        return False
    assert type(batch) is type(expected)
    for name in ("actions", "dones", "rewards"):
        found, wanted = getattr(batch, name), getattr(expected, name)
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted), name
    for name in ("observations", "next_observations"):
        found, wanted = getattr(batch, name), getattr(expected, name)
        assert found.keys() == wanted.keys()
        for key, tensor in wanted.items():
            assert found[key].dtype == tensor.dtype
            assert torch.equal(found[key], tensor), f"{name}/{key}"
    assert np.random.randint(1 << 30) == _after(theirs, count, seed, env)  # noqa: NPY002
    return True


def _after(buffer: Any, count: int, seed: int, env: Any) -> int:
    """The next number of the generator after a batch: as many were drawn."""
    sampled(buffer, count, seed, env)
    return int(np.random.randint(1 << 30))  # noqa: NPY002


@settings(max_examples=by_tier(40, 120, 800))
@given(
    n=st.integers(1, 3),
    size=st.integers(1, 40),
    steps=st.integers(1, 70),
    ends=st.sampled_from([0.02, 0.2, 0.6]),
    number=st.integers(0, 5),
    strategy=st.sampled_from([*STRATEGIES, *GoalSelectionStrategy]),
    handles=st.booleans(),
    copies=st.booleans(),
    seed=st.integers(0, 999),
)
def test_it_draws_what_sb3_draws(
    n: int,
    size: int,
    steps: int,
    ends: float,
    number: int,
    strategy: Any,
    handles: bool,
    copies: bool,
    seed: int,
) -> None:
    theirs, ours = both(
        size,
        n,
        handle_timeout_termination=handles,
        n_sampled_goal=number,
        goal_selection_strategy=strategy,
        copy_info_dict=copies,
    )
    for place, step in enumerate(played(n, steps, seed, ends)):
        for buffer in theirs, ours:
            buffer.add(*copy.deepcopy(step))
        np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
        np.testing.assert_array_equal(ours.ep_start, theirs.ep_start)
        if place % 5 == 0:
            assert_same(ours, theirs, 1 + place % 9, place)
        if place % 23 == 22:
            for buffer in theirs, ours:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    buffer.truncate_last_trajectory()
    for count in (1, 2, 64):
        assert_same(ours, theirs, count, seed)
    assert (ours.pos, ours.full, ours.size(), ours.buffer_size, ours.her_ratio) == (
        *(theirs.pos, theirs.full, theirs.size(), theirs.buffer_size, theirs.her_ratio),
    )


def filled(buffer: Any, n: int = 2, steps: int = 60, seed: int = 0) -> None:
    for step in played(n, steps, seed, 0.2):
        buffer.add(*copy.deepcopy(step))


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_saved_buffer_goes_on_as_sb3s(tmp_path: Path, is_on_disk: bool, truncates: bool) -> None:
    options = {"path": tmp_path / "store"} if is_on_disk else {}
    theirs = both(64, 2, copy_info_dict=True)[0]
    space = LineEnv()
    ours: Any = OurBuffer(
        *(64, space.observation_space, space.action_space, line_envs(2), "cpu", 2),
        copy_info_dict=True,
        **options,
    )
    loaded = []
    for buffer in theirs, ours:
        filled(buffer, steps=50)
        file = io.BytesIO()
        save_util.save_to_pkl(file, buffer)
        if is_on_disk and buffer is ours:
            ours.close()
        file.seek(0)
        again = save_util.load_from_pkl(file)
        assert isinstance(again, TheirBuffer)
        assert again.env is None
        again.set_env(line_envs(2))
        with pytest.raises(ValueError, match="env"):
            again.set_env(line_envs(2))
        if truncates:
            with pytest.warns(UserWarning, match="truncated"):
                again.truncate_last_trajectory()
        filled(again, steps=40, seed=7)
        loaded.append(again)
    assert assert_same(loaded[1], loaded[0], 64, 3)
    ends = [bool(each.end) for each in loaded[1].replay.iter_episodes()]
    assert len(ends) > 5
    loaded[1].close()


# Refusals


def test_what_cannot_work_is_refused() -> None:
    env = LineEnv()
    parts = env.observation_space, env.action_space, line_envs(1)
    goals: Any = env.observation_space
    no_goals = spaces.Dict(observation=spaces.Box(-1, 1, (2,)))
    two_shapes = spaces.Dict({**goals.spaces, "desired_goal": spaces.Box(-1, 1, (3,))})
    for space in (no_goals, two_shapes):
        with pytest.raises(ValueError, match="achieved_goal and a desired_goal"):
            OurBuffer(10, space, env.action_space, line_envs(1))
    with pytest.raises(ValueError, match="future, final, episode, got 'past'"):
        OurBuffer(10, *parts, goal_selection_strategy="past")
    with pytest.raises(ValueError, match="n_sampled_goal"):
        OurBuffer(10, *parts, n_sampled_goal=-1)
    buffer = OurBuffer(10, *parts, "cpu", copy_info_dict=True)
    now, then, action, gain, done, _ = played(1, 1, 0, 1.0)[0]
    wrong: list[Any] = [{"bonus": np.ones(1)}, [{}, {}]]
    for infos in wrong:
        with pytest.raises(ValueError, match="infos"):
            buffer.add(now, then, action, gain, done, infos)
    assert buffer.pos == 0
    buffer.add(now, then, action, gain, done, [{}])
    buffer.env = None
    with pytest.raises(ValueError, match="set_env"):
        buffer.sample(10)

    class WrongEnv(LineEnv):
        def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> np.ndarray:
            return np.zeros(3)

    buffer.set_env(DummyVecEnv([WrongEnv]))
    with pytest.raises(ValueError, match="expected 8 rewards"):
        buffer.sample(10)
    with pytest.raises(ValueError, match=r"batch_size: .*>= 1.*\b0\b"):
        buffer.sample(0)


# Models


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_a_model_learns_the_same_as_with_sb3s_buffer(kind: Any) -> None:
    options = {"learning_starts": 60, "batch_size": 32, "train_freq": 4, "gradient_steps": 2}
    theirs, ours = (
        kind(
            *("MultiInputPolicy", DummyVecEnv([lambda: BitFlippingEnv(5, continuous=kind is SAC)])),
            replay_buffer_class=buffer,
            buffer_size=10_000,
            seed=1,
            device="cpu",
            policy_kwargs={"net_arch": [16]},
            **options,
        ).learn(300)
        for buffer in (TheirBuffer, OurBuffer)
    )
    assert isinstance(ours.replay_buffer, TheirDictBuffer)
    for name, tensor in theirs.policy.state_dict().items():
        assert torch.equal(ours.policy.state_dict()[name], tensor), name


def test_a_ring_begins_with_the_episodes_of_its_folder(tmp_path: Path) -> None:
    def opened(**options: Any) -> Any:
        parts = LineEnv().observation_space, LineEnv().action_space, line_envs(2)
        return OurBuffer(60, *parts, "cpu", 2, **options)

    never, first = opened(), opened(path=tmp_path / "a")
    steps = played(2, 25, 0, 0.3)
    for step in steps:
        never.add(*step)
        first.add(*step)
    first.close()
    again = opened(path=tmp_path / "a")
    with pytest.warns(UserWarning, match="will be truncated"):
        never.truncate_last_trajectory()
    assert (again.size(), again.pos) == (never.size(), never.pos)
    assert again.ep_length.tolist() == never.ep_length.tolist()
    assert again.ep_start.tolist() == never.ep_start.tolist()
    for seed in range(3):
        assert_same(again, never, 40, seed)
    again.close()
