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
    """Chooses by the observation, then writes into it, and into all else, in some calls."""

    def __init__(self, way: Way | None, every: int = 1) -> None:
        self.way, self.every, self.calls = way, every, 0

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        self.calls += 1
        part = observation["a"] if isinstance(observation, dict) else observation
        part = part.reshape(len(part), -1)
        action = part[:, -1:] % 5
        extras = {"seen": part.copy()}
        if self.way is not None and self.calls % self.every == 0:
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


def digest_of(make: Callable[[], Any], policy: Any, **options: Any) -> str:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(make(), policy, replay, seed=0, **options) as collector:
        collector.collect(steps=20)
        return collector.collect(steps=24).digest


@pytest.mark.proof
@given(
    st.sampled_from(list(ENVS)),
    st.sampled_from(list(KINDS)),
    st.sampled_from(list(WAYS)),
    st.booleans(),
)
@settings(max_examples=examples(40))
def test_what_a_policy_writes_changes_no_row(env: str, kind: str, way: str, nested: bool) -> None:
    make = partial(ENVS[env], nested)
    options = {"store_state": True} if kind in ("state", "noise") else {}
    kept = digest_of(make, KINDS[kind](None), **options)
    assert digest_of(make, KINDS[kind](WAYS[way]), **options) == kept


@pytest.mark.proof
def test_a_policy_may_begin_to_write_at_any_time() -> None:
    make = partial(ENVS["workers"], False)
    assert digest_of(make, Writer(by_numpy, every=7)) == digest_of(make, Writer(None))


def test_rows_are_those_of_the_env_where_the_policy_normalises_in_place() -> None:
    def policy(observation: np.ndarray) -> np.ndarray:
        observation -= observation.mean()
        return np.zeros((len(observation), 1), np.float32)

    replay = sw.SequenceReplayBuffer()
    with sw.Collector(SyncVectorEnv(fns(1, False)), policy, replay, seed=0) as collector:
        collector.collect(episodes=1)
    assert replay.episode(0).observation.tolist() == [[-1, t] for t in range(4)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Writer, WriterWithState])
@pytest.mark.parametrize("env", ["sync NEXT_STEP True", "sync DISABLED False", "workers"])
def test_what_a_policy_writes_changes_no_rollout(way: str, kind: Any, env: str) -> None:
    def rollouts(policy: Any) -> list[Any]:
        with sw.Collector(ENVS[env](False), policy, seed=0) as collector:
            return [collector.rollout(steps) for steps in (5, 6)]

    pairs = zip(rollouts(kind(WAYS[way])), rollouts(kind(None)), strict=True)
    for got, wanted in pairs:
        np.testing.assert_array_equal(got.observation, wanted.observation)
        np.testing.assert_array_equal(got.action, wanted.action)
        np.testing.assert_array_equal(got.is_first, wanted.is_first)
        np.testing.assert_array_equal(got.bootstrap.observation, wanted.bootstrap.observation)
        np.testing.assert_array_equal(got.bootstrap.value, wanted.bootstrap.value)


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

    make = partial(ENVS[env], False)
    assert digest_of(make, Writer(None), on_step=on_step) == digest_of(make, Writer(None))


def test_a_torch_module_in_place_changes_no_row() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    net = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(2, 1))

    replay = sw.SequenceReplayBuffer()
    with sw.Collector(SyncVectorEnv(fns(2, False)), net, replay, seed=0) as collector:
        collector.collect(episodes=2)
        rollout = collector.rollout(4)
    for episode in replay.iter_episodes():
        assert (episode.observation[:, 0] < 0).all()
    assert (rollout.observation[..., 0] < 0).all()


@pytest.mark.parametrize("is_vector", [True, False])
@pytest.mark.parametrize("make", [Walk, stacked])
def test_what_a_loop_writes_changes_no_recorded_row(make: Any, is_vector: bool) -> None:
    def episodes(writes: bool) -> list[Any]:
        replay = sw.SequenceReplayBuffer()
        env: Any = SyncVectorEnv([partial(make, 0)], copy=False) if is_vector else make(0)
        envs: Any = sw.record(env, replay)
        observation, info = envs.reset(seed=0)
        for t in range(12):
            action = np.full((1, 1) if is_vector else 1, t % 4, np.float32)
            value = np.full(1 if is_vector else (), t, np.float32)
            envs.log_extras(value=value)
            value += writes
            observation, _, terminated, truncated, info = envs.step(action)
            action[...] = 66
            if writes:
                observation[...] = -55
                each(by_numpy, {key: v for key, v in info.items() if isinstance(v, np.ndarray)})
            if not is_vector and (terminated or truncated):
                observation, _ = envs.reset()
                observation[...] = 44 * writes
        envs.close()
        return list(replay.iter_episodes())

    for got, wanted in zip(episodes(True), episodes(False), strict=True):
        for name, rows in wanted.fields.items():
            np.testing.assert_array_equal(got.fields[name], rows, name)
