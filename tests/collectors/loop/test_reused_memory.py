"""Stored rows are right although envs reuse the memory of their observations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import TransformReward
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.wrappers import WorkerVectorEnv
from support.envs.fakes import CounterEnv, LiveBufferEnv, Memory, ReusingEnv
from support.examples import by_tier, examples
from support.models.plans import MODES
from support.tiers import proofs_but

pytestmark = pytest.mark.filterwarnings("ignore:env .* NaN")  # some envs show one

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
MISSING = {"prob": -1.0, "where": np.full(2, -1)}
LENGTHS = [1, 4, 2, 3]

Setup = tuple[int, bool]  # length of the ring, 0 for none, and whether a NaN is shown
MEMORY = st.lists(st.sampled_from(get_args(Memory)), min_size=1, max_size=3)
SETUPS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), st.booleans()), min_size=1, max_size=3)


def makers(memory: Sequence[Memory], setups: Sequence[Setup]) -> list[Callable[[], Any]]:
    return [
        partial(ReusingEnv, memory, LENGTHS[tag:] + LENGTHS[:tag], tag, ring, nan)
        for tag, (ring, nan) in enumerate(setups)
    ]


def stored_by(envs: Any, steps: int = 40, **options: Any) -> list[Any]:
    """The episodes that a Collector stores."""
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, **options) as collector:
        collector.collect(steps=steps)
    return list(replay.iter_episodes())


def check_truth(envs: Any, memory: Sequence[Memory], setups: Sequence[Setup]) -> None:
    """Stored rows are exactly those that `ReusingEnv` declares."""
    episodes = stored_by(envs, info=MISSING)
    numbers = [0] * len(setups)
    for episode in episodes:
        stream = episode.stream
        ring, nan = setups[stream]
        number = numbers[stream]
        numbers[stream] += 1
        lengths = LENGTHS[stream:] + LENGTHS[:stream]
        if not episode.cut[-1]:
            assert episode.steps == lengths[number % len(lengths)]
        for t in range(episode.rows):
            row = ReusingEnv.row_of(stream, ring, nan, number, t)
            first = ReusingEnv.row_of(stream, ring, nan, 0, 0)
            for k, kind in enumerate(memory):
                part: Any = episode.observation[f"part {k}"]
                for leaf in part if k % 2 else (part,):
                    expected = first if kind == "constant" else row
                    np.testing.assert_array_equal(leaf[t], expected, f"{kind}, {number}, {t}")
            assert episode.fields["info/prob"][t] == ReusingEnv.prob_of(t)
            assert episode.fields["info/where"][t].tolist() == [number, t]
            assert episode.reward[t] == t
    assert sum(numbers) > len(setups)


@given(MEMORY, SETUPS, MODES, st.booleans(), st.booleans())
@settings(max_examples=examples(80))
def test_a_sync_vector_env_gives_what_its_envs_showed(
    memory: list[Memory], setups: list[Setup], mode: AutoresetMode, copies: bool, wrapped: bool
) -> None:
    envs: Any = SyncVectorEnv(makers(memory, setups), autoreset_mode=mode, copy=copies)
    check_truth(TransformReward(envs, lambda reward: reward) if wrapped else envs, memory, setups)


@pytest.mark.proof
@given(MEMORY, SETUPS, MODES, st.booleans())
@settings(max_examples=by_tier(10, 15, 600))
def test_an_async_vector_env_gives_what_its_envs_showed(
    memory: list[Memory], setups: list[Setup], mode: AutoresetMode, shared_memory: bool
) -> None:
    envs = AsyncVectorEnv(makers(memory, setups), autoreset_mode=mode, shared_memory=shared_memory)
    check_truth(envs, memory, setups)


@pytest.mark.proof
@given(MEMORY, SETUPS, st.integers(1, 3))
@settings(max_examples=examples(10))
def test_our_workers_give_what_their_envs_showed(
    memory: list[Memory], setups: list[Setup], num_workers: int
) -> None:
    envs = WorkerVectorEnv(makers(memory, setups), num_workers=min(num_workers, len(setups)))
    check_truth(envs, memory, setups)


@pytest.mark.proof
def test_spawned_workers_copy_last_observations() -> None:
    memory: list[Memory] = ["live", "fresh"]
    envs = AsyncVectorEnv(makers(memory, [(0, True)]), autoreset_mode=SAME_STEP, context="spawn")
    check_truth(envs, memory, [(0, True)])


def make_all(kind: str, env_fns: Sequence[Callable[[], Any]]) -> Any:
    if kind == "sync":
        return SyncVectorEnv(env_fns, autoreset_mode=SAME_STEP)
    shared_memory = kind == "async, shared memory"
    return AsyncVectorEnv(env_fns, autoreset_mode=SAME_STEP, shared_memory=shared_memory)


@pytest.mark.parametrize("kind", proofs_but(["async"], ["sync", "async, shared memory", "async"]))
@pytest.mark.parametrize(
    ("memory", "setup"),
    [
        (["live", "fresh"], (0, False)),  # a reused image next to a fresh number
        (["live"], (0, True)),  # NaN equals nothing, itself neither
        (["fresh"], (1, False)),  # a bandit: the last observation equals the first
        (["constant", "live"], (2, False)),
        (["two, both reset"], (0, False)),
    ],
)
def test_last_observations_of_same_step(kind: str, memory: list[Memory], setup: Setup) -> None:
    check_truth(make_all(kind, makers(memory, [setup] * 2)), memory, [setup] * 2)


class PlannerEnv(CounterEnv):
    """Steps copies of itself to see what comes."""

    def peek(self) -> tuple[int, int]:
        shallow, deep = copy.copy(self), copy.deepcopy(self)
        seen = shallow.step(np.int64(0))[0][1] + deep.step(np.int64(0))[0][1]
        return int(seen), self.t


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_envs_are_left_as_they_were(kind: str) -> None:
    envs = make_all(kind, [partial(PlannerEnv, 2)] * 2)
    before = set(vars(envs))
    with sw.Collector(envs, sw.RandomPolicy(), seed=0) as collector:
        collector.collect(steps=8)
        assert set(vars(envs)) == before
        assert envs.call("has_wrapper_attr", "_stepwell_exact_results") == (False,) * 2
        assert envs.call("peek") == ((2, 0),) * 2
        if kind == "sync":
            assert all("step" not in vars(env) for env in envs.envs)


def other_worker(
    index: int, env_fn: Any, pipe: Any, parent_pipe: Any, shared: Any, errors: Any, *_: Any
) -> None:
    """Answers the commands of `AsyncVectorEnv`, in its own implementation."""
    parent_pipe.close()
    inside = env_fn()
    command, given = pipe.recv()
    while command != "close":
        answer: Any = None
        if command == "_check_spaces":
            answer = (True, True)
        elif command == "_setattr":
            inside.set_wrapper_attr(*given)
        elif command == "_call":
            answer = inside.get_wrapper_attr(given[0])(*given[1])
        pipe.send((answer, True))
        command, given = pipe.recv()
    pipe.send((None, True))


def test_a_worker_in_which_nothing_can_be_copied_is_refused() -> None:
    envs = AsyncVectorEnv([CounterEnv], autoreset_mode=SAME_STEP, worker=other_worker)
    with (
        sw.Collector(envs, sw.RandomPolicy(), seed=0) as collector,
        pytest.raises(ValueError, match=r"other_worker.*NEXT_STEP"),
    ):
        collector.collect(steps=2)


class OwnLoop(VectorEnv[Any, Any, Any]):
    """A vector env of another make: it puts last observations into its info by itself.

    Args:
        env_fns: Makes the envs.
        final: "own" passes on the env's own array, "again" one that is written at each end, and
            "batch" that of what the step returns, which the reset's observation is in by then;
            "dense" and "dense batch" are arrays for all envs.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], final: str = "own") -> None:
        self.envs = [env_fn() for env_fn in env_fns]
        self.num_envs, self.final = len(self.envs), final
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": SAME_STEP}
        shape = (self.num_envs, *(self.single_observation_space.shape or ()))
        self.batch = np.zeros(shape, self.single_observation_space.dtype)
        self.finals = np.zeros_like(self.batch)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        for k, env in enumerate(self.envs):
            self.batch[k] = env.reset(seed=seed)[0]
        return self.batch, {}

    def step(self, actions: Any) -> Any:
        finals = np.full(self.num_envs, None, object)
        flags, rewards = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs)
        for k, env in enumerate(self.envs):
            observation, rewards[k], flags[k], *_ = env.step(actions[k])
            if flags[k]:
                finals[k] = observation
                self.finals[k] = observation
                observation = env.reset()[0]
            self.batch[k] = observation
        if self.final in ("again", "batch"):
            kept = self.finals if self.final == "again" else self.batch
            finals[:] = [kept[k] if flags[k] else None for k in range(self.num_envs)]
        given = {"dense": self.finals, "dense batch": self.batch}.get(self.final, finals)
        return self.batch, rewards, flags, np.zeros_like(flags), {"final_obs": given}


class BanditEnv(CounterEnv):
    """Always observes the same, in an array of its own that is never written."""

    def observation(self) -> Any:
        return self.shown if hasattr(self, "shown") else self._show()

    def _show(self) -> Any:
        self.shown = np.full(3, 7)
        return self.shown


@pytest.mark.parametrize("final", ["own", "again", "dense"])
@pytest.mark.parametrize("make", [partial(CounterEnv, [1, 1, 3]), partial(BanditEnv, [2, 1, 1])])
def test_a_vector_env_of_another_make_is_not_refused_for_equal_values(
    make: Any, final: str
) -> None:
    episodes = stored_by(OwnLoop([make] * 2, final), 20)
    assert len(episodes) > 8
    for episode in episodes:
        times = np.asarray(episode.observation)[:, 1]
        right = 7 if make.func is BanditEnv else np.arange(episode.rows)
        assert (times == right).all()


@pytest.mark.parametrize(
    ("final", "got"),
    [
        ("own", "the next step wrote into"),
        ("batch", "the memory of the reset's"),
        ("dense batch", "the memory of the reset's"),
    ],
)
def test_a_vector_env_of_another_make_that_returns_overwritten_memory_is_refused(
    final: str, got: str
) -> None:
    make = partial(LiveBufferEnv, 3)
    envs = OwnLoop([make] * 2, final)
    with pytest.raises(ValueError, match=f"env 0 .*{got}.*NEXT_STEP"):
        stored_by(envs)
    report = sw.check_vector_env(OwnLoop([make] * 2, final), steps=20)
    assert report.final_observation == "overwritten"
    assert not report.is_fine
    assert sw.check_vector_env(OwnLoop([BanditEnv] * 2), steps=20).is_fine


class ReusingVector(SyncVectorEnv[Any, Any]):
    """Steps as soon as actions are sent, and returns the same arrays each time."""

    held: Any = None

    def send(self, actions: Any) -> None:
        given = super().step(actions)
        self.info = {**given[4], "t": given[0][:, 1]}
        given = (*given[:4], self.info["t"])
        if self.held is None:
            self.held = [array.copy() for array in given]
        for array, new in zip(self.held, given, strict=True):
            array[...] = new

    def recv(self) -> Any:
        return *self.held[:4], {**self.info, "t": self.held[4]}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rewards_flags_and_infos_that_are_written_again_are_copied(mode: AutoresetMode) -> None:
    lengths = [[6, 2, 1], [3, 5, 1]]
    envs = ReusingVector(
        [partial(CounterEnv, plan, tag) for tag, plan in enumerate(lengths)], autoreset_mode=mode
    )
    episodes = stored_by(envs, 40, info={"t": 0})
    for stream, plan in enumerate(lengths):
        ended = [episode for episode in episodes if episode.stream == stream]
        if ended[-1].cut[-1]:
            ended.pop()
        assert [episode.steps for episode in ended] == (plan * 9)[: len(ended)]
        assert all(episode.terminated[-1] for episode in ended)
        assert len(ended) > 3
    for episode in episodes:
        rows = np.arange(episode.rows).tolist()
        assert episode.reward.tolist() == rows
        assert np.asarray(episode.observation)[:, 1].tolist() == rows
        if mode is not SAME_STEP:  # there the last row's info is another one
            assert episode.fields["info/t"].tolist() == rows


class IncompleteVector(VectorEnv[Any, Any, Any]):
    """As supersuit's: it has no spaces of a single env, and its infos are a list."""

    def __init__(self) -> None:
        self.num_envs = 2
        self.observation_space = spaces.Box(0, 2**40, (3,), np.int64)
        self.action_space = spaces.Discrete(4)
        self.metadata = {"render_modes": [], "autoreset_mode": NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 3), np.int64), [{}, {}]

    def step(self, actions: Any) -> Any:
        flags = np.zeros(2, np.bool_)
        return np.zeros((2, 3), np.int64), np.zeros(2), flags, flags, [{}, {}]


def test_an_incomplete_vector_env_is_refused() -> None:
    match = "envs: .*single_observation_space, .* got IncompleteVector"
    for refuses in (
        lambda envs: sw.Collector(envs, sw.RandomPolicy()),
        lambda envs: sw.Collector([envs, IncompleteVector()], sw.RandomPolicy()),
        sw.make_vec,
        sw.check_vector_env,
    ):
        with pytest.raises(TypeError, match=match):
            refuses(IncompleteVector())
    envs: Any = IncompleteVector()
    envs.single_observation_space = envs.observation_space
    envs.single_action_space = envs.action_space
    envs.observation_space = batch_space(envs.single_observation_space, 2)
    envs.action_space = batch_space(envs.single_action_space, 2)
    report = sw.check_vector_env(envs, steps=10)
    assert report.problems == ("info is a list where a dict of arrays is expected",)
    with (
        sw.Collector(envs, sw.RandomPolicy()) as collector,
        pytest.raises(TypeError, match=r"envs.reset\(\): expected .*dict.* got list"),
    ):
        collector.collect(steps=1)
