"""A collection that goes on from a `state_dict` in new objects equals one that never stopped."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers.storage.checkpoint import pack, unpack
from stepwell.collectors.loop import action_log
from stepwell.wrappers import SeededResets
from stepwell.wrappers.seeded_resets import ResumedSeed, ShardSeed
from support.envs.atari_games import atari
from support.examples import examples
from support.models.plans import CHUNK_ROWS, MODES, small_chunks
from support.models.rollout_model import assert_equal_rollouts

Calls = Sequence[tuple[str, Any]]
CALLS = st.lists(
    st.tuples(st.sampled_from(["rollout", "steps", "steps", "episodes"]), st.integers(1, 12)),
    min_size=2,
    max_size=6,
)


class Drawn(gym.Env[np.ndarray, Any]):
    """Episodes of drawn lengths and rewards, which depend on the seed and on the actions."""

    action_space: spaces.Space[Any] = spaces.Discrete(4)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.sum, self.left = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 9))
        self.sum = float(self.np_random.integers(1000))
        return self.seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Any]:
        self.left -= 1
        self.sum = self.sum * 0.5 + float(np.sum(action)) + float(self.np_random.random())
        is_over = self.left <= 0
        return self.seen(), self.sum, is_over and self.sum > 200, is_over, {}

    def seen(self) -> np.ndarray:
        return np.array([self.sum, self.left, self.np_random.random()])


class Forgetful(Drawn):
    """What it shows depends on the number of its resets, which no seed says."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        self.resets += 1
        return super().reset(seed=seed)

    def seen(self) -> np.ndarray:
        return super().seen() + self.resets


class Failing(Drawn):
    """Raises an error at some time."""

    fails = False

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Any]:
        if self.fails:
            raise OSError("no display")
        return super().step(action)


class Breaking(Drawn):
    """Raises an error now and then."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Any]:
        step = super().step(action)
        if self.np_random.random() < 0.1:
            raise OSError("no display")
        return step


class Counting:
    """Its actions come from its own count of the rows of an episode."""

    def initial_state(self, num_envs: int) -> Any:
        return {"count": np.zeros(num_envs, np.int64)}

    def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
        return state["count"] % 4, {"count": state["count"] + 1}, {"count": state["count"]}

    def value(self, observation: Any, state: Any) -> Any:
        return state["count"].astype(np.float64)


POLICIES: dict[str, Callable[[], Any]] = {
    "random": sw.RandomPolicy,
    "recurrent": Counting,
    "warm up, recurrent": lambda: sw.WarmUp(Counting(), 30, mark=True),
    "epsilon": lambda: sw.EpsilonGreedy("random", lambda rows: 1 / (1 + rows / 50), mark=True),
}


def envs_of(
    n: int, mode: AutoresetMode, *, seeds_itself: bool, make: Callable[[], Any] = Drawn
) -> SyncVectorEnv[Any, Any]:
    def one() -> Any:
        return SeededResets(make()) if seeds_itself else make()

    return SyncVectorEnv([one] * n, autoreset_mode=mode)


def through_bytes(state: Any) -> Any:
    return unpack(pack(state), "test")


def call(collector: sw.Collector, kind: str, goal: Any) -> Any:
    if kind == "rollout":
        return collector.rollout(goal)
    report = collector.collect(**cast("Any", {kind: goal}))
    return report.returns, report.lengths, report.steps, report.cut, report.digest


def assert_goes_on(
    make: Callable[[sw.SequenceReplayBuffer | None], sw.Collector],
    calls: Calls,
    stop: int,
    *,
    with_replay: bool = True,
) -> None:
    """All that follows on a state is as if the first Collector had gone on."""
    one = sw.SequenceReplayBuffer(seed=1) if with_replay else None
    two = sw.SequenceReplayBuffer(seed=1) if with_replay else None
    never, first = make(one), make(two)
    for kind, goal in calls[:stop]:
        call(never, kind, goal)
        call(first, kind, goal)
    second = make(two)
    second.load_state_dict(through_bytes(first.state_dict()))
    for kind, goal in calls[stop:]:
        expected, got = call(never, kind, goal), call(second, kind, goal)
        if kind == "rollout":
            assert_equal_rollouts(got, expected)
        else:
            assert got == expected
    if one is None or two is None:
        return
    assert two.digest() == one.digest()
    assert len(two.sessions) == len(one.sessions)
    records = one.storage.index.records
    for name in ("episode", "stream", "first_row", "stored_rows", "end", "row_id"):
        assert records[name].tolist() == two.storage.index.records[name].tolist()
    facts = [one.metadata for one in one.iter_episodes()]
    assert [one.metadata for one in two.iter_episodes()] == facts


@given(
    CALLS,
    st.integers(0, 5),
    st.integers(1, 3),
    MODES,
    st.booleans(),
    st.sampled_from(list(POLICIES)),
    st.sampled_from([1, 7, 40, 50_000]),
    st.sampled_from([None, (2, 3)]),
    CHUNK_ROWS,
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=examples(300))
def test_a_collection_goes_on_as_if_it_had_never_stopped(
    calls: Calls,
    stop: int,
    n: int,
    mode: AutoresetMode,
    seeds_itself: bool,
    policy: str,
    reseed_steps: int,
    shard: tuple[int, int] | None,
    chunk_rows: int,
    in_groups: bool,
    with_replay: bool,
) -> None:
    def make(replay: sw.SequenceReplayBuffer | None) -> sw.Collector:
        envs = partial(envs_of, n, mode, seeds_itself=seeds_itself)
        return sw.Collector(
            [envs(), envs()] if in_groups else envs(),
            POLICIES[policy](),
            replay,
            seed=5,
            shard=shard,
            reseed_steps=reseed_steps,
            flush_seconds=1e9,
        )

    with small_chunks(chunk_rows):
        assert_goes_on(make, calls, min(stop, len(calls)), with_replay=with_replay)


LONG = [("steps", 700), ("rollout", 90), ("steps", 300), ("rollout", 5)]
VECTORS: dict[str, Callable[[], Any]] = {
    "one generator for all": lambda: gym.make_vec("CartPole-v1", num_envs=3),
    "a single env": lambda: gym.make("CartPole-v1"),
    "async": lambda: AsyncVectorEnv([Drawn] * 2),
    "workers": lambda: sw.make_vec("CartPole-v1", num_envs=3, num_workers=2),
    "a vector wrapper": lambda: gym.wrappers.vector.RecordEpisodeStatistics(
        envs_of(2, AutoresetMode.NEXT_STEP, seeds_itself=False)
    ),
    "Pong, stacks": lambda: sw.make_atari("Pong", num_envs=2),
    "Breakout, ale-py's threads": lambda: atari(num_envs=2),
}


@pytest.mark.parametrize("stop", [1, 2])
@pytest.mark.parametrize("name", VECTORS)
def test_many_kinds_of_envs_are_brought_back(name: str, stop: int) -> None:
    assert_goes_on(
        lambda replay: sw.Collector(VECTORS[name](), "random", replay, seed=3, flush_seconds=1e9),
        LONG,
        stop,
    )


@pytest.mark.parametrize("shard", [None, (2, 3)])
@pytest.mark.parametrize("num_workers", [None, 0, 2])
def test_envs_that_raised_errors_go_on_with_the_same_seeds(
    num_workers: int | None, shard: tuple[int, int] | None
) -> None:
    def make(replay: Any) -> sw.Collector:
        if num_workers is None:
            envs: Any = SyncVectorEnv([Breaking] * 2)
        else:
            envs = sw.make_vec(Breaking, 2, num_workers=num_workers)
        return sw.Collector(envs, "random", replay, seed=0, tolerate=most, shard=shard)

    most = 1000
    assert_goes_on(make, [("steps", 60), ("rollout", 30), ("steps", 60)], 2)
    with make(None) as first:
        most = first.collect(steps=60).restarts
        state = through_bytes(first.state_dict())
    assert state["faults"] == most > 1
    with make(None) as second:
        second.load_state_dict(state)
        restarts = 0
        with pytest.raises(OSError, match="no display"):  # noqa: PT012
            for _ in range(100):
                restarts += second.collect(steps=2).restarts
        assert restarts == 0  # no more are tolerated
    most -= 1
    with pytest.raises(ValueError, match="faults"):
        make(None).load_state_dict(state)


@pytest.mark.parametrize("goal", [{"seeds": [5, 7]}, {"episodes": 2}])
def test_an_open_episode_that_is_left_gets_no_more_rows(goal: dict[str, Any]) -> None:
    def make(replay: Any) -> sw.Collector:
        return sw.Collector(sw.make_vec("CartPole-v1", 3, num_workers=0), "random", replay, seed=0)

    calls: Any = [("steps", 20), *goal.items(), ("rollout", 9)]
    assert_goes_on(make, calls, 1)  # 2 of 3 envs count: the third writes nothing


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2,)),
        spaces.MultiDiscrete([3, 4]),
        spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 1, (2,), np.float64)}),
        spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(5, dtype=np.int8))),
    ],
)
def test_random_actions_of_every_plain_space_go_on(space: Any) -> None:
    class Other(Drawn):
        action_space = space

        def step(self, action: Any) -> Any:
            parts = action.values() if isinstance(action, dict) else action
            return super().step(sum(float(np.sum(part)) for part in parts))

    def make(replay: Any) -> sw.Collector:
        envs = envs_of(2, AutoresetMode.NEXT_STEP, seeds_itself=True, make=Other)
        return sw.Collector(envs, "random", replay, seed=0)

    assert_goes_on(make, [("steps", 150), ("rollout", 100)], 1)


def test_drawn_actions_of_a_network_go_on() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)

    def make(replay: Any) -> sw.Collector:
        envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        return sw.Collector(envs, sw.bridges.torch_policy(net), replay, seed=0)

    assert_goes_on(make, [("steps", 60), ("rollout", 60)], 1)


def test_the_exploration_of_an_sb3_model_goes_on() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="needs stable_baselines3")
    model = sb3.DQN("MlpPolicy", "CartPole-v1", learning_starts=0, seed=0, device="cpu")
    model.exploration_rate = 0.5
    noisy = sb3.TD3("MlpPolicy", "Pendulum-v1", learning_starts=0, seed=0, device="cpu")
    noise = pytest.importorskip("stable_baselines3.common.noise")
    noisy.action_noise = noise.OrnsteinUhlenbeckActionNoise(np.zeros(1), np.ones(1))

    def make(replay: Any) -> sw.Collector:
        envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        return sw.Collector(envs, model, replay, seed=0)

    assert_goes_on(make, [("steps", 60), ("rollout", 60)], 1)
    with pytest.raises(TypeError, match="OrnsteinUhlenbeckActionNoise"):
        sw.Collector(gym.make("Pendulum-v1"), noisy).state_dict()


@pytest.mark.parametrize(
    ("kind", "told"),
    [(Forgetful, "env 0 shows something else"), (Failing, "OSError: no display")],
)
def test_an_env_that_cannot_be_brought_back_is_told_and_reset(
    kind: Any, told: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = sw.SequenceReplayBuffer()

    def make() -> sw.Collector:
        envs = envs_of(2, AutoresetMode.NEXT_STEP, seeds_itself=False, make=kind)
        return sw.Collector(envs, "random", replay, seed=0, reseed_steps=1)

    first, second = make(), make()
    first.collect(steps=52)
    episodes, steps = replay.episodes, replay.steps
    with monkeypatch.context() as patch:
        patch.setattr(Failing, "fails", True)
        second.load_state_dict(first.state_dict())
    assert told in caplog.text
    open_episodes = int((first.state_dict()["counter"]["lengths"] > 0).sum())
    report = second.collect(steps=50)
    seeds = [one.metadata.get("seed") for one in replay.iter_episodes()]
    assert None not in seeds
    assert len({*seeds}) == len(seeds)
    assert report.cut == open_episodes > 0
    assert len(replay.sessions) == 1
    assert replay.steps == steps + report.steps
    assert replay.episodes > episodes


def test_other_workers_go_on_alike_also_where_one_died() -> None:
    """Its envs begin anew from a new seed."""

    def make(workers: int) -> sw.Collector:
        envs = sw.make_vec("CartPole-v1", num_envs=3, num_workers=workers)
        return sw.Collector(envs, "random", seed=0)

    with make(2) as first:
        first.collect(steps=60)
        multiprocessing.active_children()[0].kill()
        assert first.collect(steps=90).restarts > 0
        state = through_bytes(first.state_dict())
        expected = first.rollout(50)
    for workers in (0, 2, 3):
        with make(workers) as other:
            other.load_state_dict(state)
            assert_equal_rollouts(other.rollout(50), expected)


def test_a_log_that_grows_too_long_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_log, "_MOST_BYTES", 8 * 300)

    def make() -> sw.Collector:
        envs = envs_of(1, AutoresetMode.NEXT_STEP, seeds_itself=False)
        return sw.Collector(envs, "random", seed=0)

    first, second = make(), make()
    first.collect(steps=400)
    second.load_state_dict(through_bytes(first.state_dict()))
    assert "no seeds and actions lead to where they were" in caplog.text
    first.collect(episodes=1)  # all envs are reset with seeds
    third = make()
    third.load_state_dict(through_bytes(first.state_dict()))
    assert third.collect(steps=5).returns == first.collect(steps=5).returns


def test_what_cannot_be_loaded_is_refused() -> None:
    def make(n: int = 2, policy: Any = "random", replay: Any = None) -> sw.Collector:
        envs = envs_of(n, AutoresetMode.NEXT_STEP, seeds_itself=True)
        return sw.Collector(envs, policy, replay, seed=0)

    first = make()
    first.collect(steps=20)
    state = first.state_dict()
    with pytest.raises(ValueError, match="has not collected yet"):
        first.load_state_dict(state)
    with pytest.raises(ValueError, match="expected 2 of Drawn, got 3"):
        make(3).load_state_dict(state)
    other = make(policy=Counting())
    with pytest.raises(ValueError, match="policy"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="closed"):  # it has taken the seeds already
        other.collect(steps=1)
    with pytest.raises(ValueError, match="state"):
        make().load_state_dict({})
    for none in (None, [1], "state", 3):
        with pytest.raises(ValueError, match="state"):
            make().load_state_dict(cast("Any", none))
    for value in (None, 1, "yes"):
        with pytest.raises(ValueError, match=r"is_open: expected .*, got "):
            make().load_state_dict({**state, "is_open": value})
    with pytest.raises(ValueError, match="replay: expected none"):
        make(replay=sw.SequenceReplayBuffer()).load_state_dict(state)
    replay = sw.SequenceReplayBuffer()
    writing = make(replay=replay)
    writing.collect(steps=20)
    state = writing.state_dict()
    writing.collect(steps=50)
    with pytest.raises(ValueError, match="exact=True"):
        make(replay=replay).load_state_dict(state)
    with pytest.raises(ValueError, match="replay"):
        make().load_state_dict(state)

    class Draws:
        def begin(self, space: Any, rng: Any) -> None:
            self.rng = rng

        def __call__(self, observation: Any, is_first: Any) -> Any:
            return self.rng.integers(0, 4, len(is_first))

    drawing = make(policy=Draws())
    drawing.collect(steps=5)
    with pytest.raises(TypeError, match="state_dict and load_state_dict"):
        drawing.state_dict()


@given(st.data())
@settings(max_examples=examples(100))
def test_a_state_from_a_file_is_checked(data: Any) -> None:
    def make() -> sw.Collector:
        envs = envs_of(2, AutoresetMode.NEXT_STEP, seeds_itself=True)
        return sw.Collector(envs, Counting(), sw.SequenceReplayBuffer(), seed=0)

    first = make()
    first.collect(steps=20)
    state: Any = through_bytes(first.state_dict())
    at: Any = state
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        at = inner
    wrong: Any = st.sampled_from([None, -1, "x", [], {}, 1 << 70, 0.5, np.zeros(3)])
    at[key] = data.draw(wrong)
    second = make()
    try:
        second.load_state_dict(state)
    except ValueError:
        return
    try:
        second.collect(steps=10)
    except ValueError:
        return


@given(st.integers(0, 2**31 - 1), st.integers(0, 200), st.sampled_from([None, 7]))
@settings(max_examples=examples(50))
def test_a_resumed_seed_goes_on_with_the_seeds_after_it(
    root: int, number: int, shards: int | None
) -> None:
    given_root = root if shards is None else ShardSeed(root, shards)
    never, env = SeededResets(Drawn()), SeededResets(Drawn())
    never.reset(seed=given_root)
    for _ in range(number):
        never.reset()
    seed = pickle.loads(pickle.dumps(ResumedSeed(given_root, number)))
    env.reset(seed=seed)
    assert (
        env.unwrapped.np_random.bit_generator.state == never.unwrapped.np_random.bit_generator.state
    )
    for _ in range(3):
        assert env.reset()[1] == never.reset()[1]
