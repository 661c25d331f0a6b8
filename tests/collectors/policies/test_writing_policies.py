"""What functions of the user write into the arrays that they get changes no stored row."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.wrappers import FrameStack
from support.examples import examples
from support.models.rollout_model import assert_equal_rollouts

Way = Callable[[np.ndarray], None]


class Walk(gym.Env[Any, np.ndarray]):
    """Shows (episode, t) in two parts, negative and positive, and writes into its actions."""

    def __init__(self, tag: int = 0, is_nested: bool = False) -> None:
        part = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.observation_space: Any = spaces.Dict({"a": part, "b": part}) if is_nested else part
        self.action_space = spaces.Box(-9, 9, (1,), np.float32)
        self.tag, self.is_nested, self.episode, self.t = tag, is_nested, -1, 0

    def seen(self) -> Any:
        row = np.array([-self.episode - 1, self.t + self.tag / 8], np.float32)
        return {"a": row, "b": -row} if self.is_nested else row

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action: np.ndarray) -> Any:
        self.t += 1
        reward = float(action[0])
        action[...] = 77
        ends = self.t >= 3 + (self.episode + self.tag) % 3
        return self.seen(), reward, ends and self.tag % 2 == 0, ends and self.tag % 2 == 1, {}


def by_numpy(rows: np.ndarray) -> None:
    rows -= 5


def by_clip(rows: np.ndarray) -> None:
    np.clip(rows, 0, 0, out=rows)


def by_torch(rows: np.ndarray) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    torch.from_numpy(rows).sub_(5)


WAYS: dict[str, Way] = {"numpy": by_numpy, "clip": by_clip, "torch": by_torch}


def each(way: Way, tree: Any) -> None:
    for part in tree.values() if isinstance(tree, dict) else (tree,):
        way(part)


class Writer:
    """Chooses by the observation, then writes into it, and into all else."""

    def __init__(self, way: Way | None) -> None:
        self.way = way

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        part = observation["a"] if isinstance(observation, dict) else observation
        part = part.reshape(len(part), -1)
        action = part[:, -1:] % 5
        extras = {"seen": part.copy()}
        if self.way is not None:
            each(self.way, observation)
            is_first[...] = ~is_first
        return action, extras

    def value(self, observation: Any, state: Any = None) -> np.ndarray:
        part = observation["a"] if isinstance(observation, dict) else observation
        found: np.ndarray = part.reshape(len(part), -1).sum(axis=1)
        if self.way is not None:
            each(self.way, observation)
            each(self.way, state or {})
        return found


class WriterWithState(Writer):
    def initial_state(self, num_envs: int) -> Any:
        self.initial = np.zeros((num_envs, 2), np.float32)
        return {"memory": self.initial}

    def __call__(self, observation: Any, is_first: np.ndarray, state: Any = None) -> Any:
        action, extras = super().__call__(observation, is_first)
        after = state["memory"] + extras["seen"][:, :2]
        if self.way is not None:
            self.way(state["memory"])
            self.way(self.initial)
        return action, {"memory": after}, extras


def with_epsilon(way: Way | None) -> Any:
    return sw.EpsilonGreedy(Writer(way), 0.5, mark=True)


KINDS: dict[str, Callable[[Way | None], Any]] = {
    "function": Writer,
    "state": WriterWithState,
    "epsilon": with_epsilon,
    "noise": lambda way: sw.GaussianNoise(WriterWithState(way), 0.1),
    "warm-up": lambda way: sw.WarmUp(Writer(way), 5),
}


def fns(num_envs: int, is_nested: bool) -> list[Callable[[], Any]]:
    return [partial(Walk, tag, is_nested) for tag in range(num_envs)]


def stacked(tag: int) -> gym.Env[Any, Any]:
    return FrameStack(Walk(tag), 3)


def in_this_process(mode: AutoresetMode, copies: bool, nested: bool) -> Any:
    return SyncVectorEnv(fns(3, nested), autoreset_mode=mode, copy=copies)


ENVS: dict[str, Callable[[bool], Any]] = {
    **{
        f"sync {mode.name} {copies}": partial(in_this_process, mode, copies)
        for mode in AutoresetMode
        for copies in (True, False)
    },
    "async": lambda nested: AsyncVectorEnv(fns(2, nested)),
    "workers": lambda nested: sw.make_vec(fns(1, nested)[0], 2, num_workers=2),
    "one process": lambda nested: sw.make_vec(fns(1, nested)[0], 2, num_workers=0),
    "a single one": lambda nested: Walk(1, nested),
    "two in turns": lambda nested: [SyncVectorEnv(fns(2, nested)) for _ in range(2)],
    "stacks": lambda _: SyncVectorEnv([partial(stacked, tag) for tag in range(2)]),
}


def assert_plays_alike(make: Callable[[], Any], one: Any, other: Any, **options: Any) -> None:
    """Rows and rollouts of two policies are equal; the first one may have a callback."""
    rollouts, digests = [], []
    for policy, more in ((one, options), (other, {**options, "on_step": None})):
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(make(), policy, replay, seed=0, **more) as collector:
            collector.collect(steps=20)
            rollouts.append([collector.rollout(steps) for steps in (5, 6)])
            digests.append(collector.collect(steps=24).digest)
    assert digests[0] == digests[1]
    for got, wanted in zip(*rollouts, strict=True):
        assert_equal_rollouts(got, wanted)


@given(
    st.sampled_from(list(ENVS)),
    st.sampled_from(list(KINDS)),
    st.sampled_from(list(WAYS)),
    st.booleans(),
)
@settings(max_examples=examples(80))
def test_what_a_policy_writes_changes_no_row(env: str, kind: str, way: str, nested: bool) -> None:
    make = partial(ENVS[env], nested)
    options = {"store_state": True} if kind in ("state", "noise") else {}
    assert_plays_alike(make, KINDS[kind](WAYS[way]), KINDS[kind](None), **options)


def test_rows_are_those_of_the_env_where_the_policy_normalises_in_place() -> None:
    def policy(observation: np.ndarray) -> np.ndarray:
        observation -= observation.mean()
        return np.zeros((len(observation), 1), np.float32)

    replay = sw.SequenceReplayBuffer()
    with sw.Collector(SyncVectorEnv(fns(1, False)), policy, replay, seed=0) as collector:
        collector.collect(episodes=1)
    assert replay.episode(0).observation.tolist() == [[-1, t] for t in range(4)]


@pytest.mark.parametrize("env", ["sync SAME_STEP True", "workers", "stacks"])
def test_what_on_step_writes_changes_no_row(env: str) -> None:
    pytest.importorskip("torch", reason="needs torch")

    def on_step(report: Any) -> None:
        for part in report[:7]:
            if part.dtype == np.bool_:
                part = part.view(np.uint8)
            with warnings.catch_warnings():  # torch's, of a read-only array
                warnings.simplefilter("ignore", UserWarning)
                by_torch(part)

    assert_plays_alike(partial(ENVS[env], False), Writer(None), Writer(None), on_step=on_step)
