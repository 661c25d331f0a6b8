"""`Collector`: arguments, errors, and how collecting continues after them."""

from __future__ import annotations

import gc
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

import stepwell as sw
from stepwell.buffers import SpecMismatch
from stepwell.collectors.loop.step_loop import StepMachine
from stepwell.wrappers.testing import assert_env
from support.envs.fakes import CounterEnv, FrameEnv, SeededEnv, counters
from support.models.model import check_rows


def collector_of(
    envs: Any = None, policy: Any = None, replay: sw.SequenceReplayBuffer | None = None, **more: Any
) -> sw.Collector:
    return sw.Collector(
        counters() if envs is None else envs, policy or sw.RandomPolicy(), replay, seed=0, **more
    )


@pytest.fixture
def replay() -> sw.SequenceReplayBuffer:
    return sw.SequenceReplayBuffer(seed=0)


# Goals


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "^collect: .*got steps=None, episodes=None and seeds=None$"),
        ({"steps": 1, "episodes": 1}, "^collect: .*got steps=1, episodes=1 and seeds=None$"),
        (
            {"steps": 1, "episodes": 2, "seeds": [1]},
            r"^collect: .*got steps=1, episodes=2 and seeds=\[1\]$",
        ),
        ({"steps": 0}, "^steps: .*>= 1.*got 0$"),
        ({"steps": 2.5}, r"^steps: .*>= 1.*got 2\.5$"),
        ({"episodes": -3}, "^episodes: .*>= 1.*got -3$"),
    ],
)
def test_invalid_goals_are_refused(
    goal: dict[str, Any], message: str, replay: sw.SequenceReplayBuffer
) -> None:
    with collector_of(replay=replay) as collector:
        with pytest.raises(ValueError, match=message):
            collector.collect(**goal)
        assert not replay.is_bound


# Reproducibility


def test_digests_follow_from_the_seed_alone() -> None:
    """Trap 19: the global generator does not matter."""

    def digest(seed: int | None, other: int = 0) -> str:
        np.random.seed(other)  # noqa: NPY002
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(SyncVectorEnv([SeededEnv] * 2), "random", replay, seed=seed) as collector:
            return collector.collect(steps=30).digest

    assert digest(1) == digest(1, 1)
    assert len({digest(seed) for seed in (1, 2, None, None)}) == 4


# Errors and Ctrl-C


class Fault:
    """Raises an error in the n-th call with a place."""

    def __init__(self, where: str, number: int) -> None:
        self.where, self.left = where, number

    def __call__(self, where: str, *_: Any) -> None:
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("it broke")


class FaultyEnv(CounterEnv):
    def __init__(self, fault: Fault, length: int) -> None:
        super().__init__(length)
        self.fault = fault

    def reset(self, **options: Any) -> Any:
        self.fault("reset")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.fault("step")
        return super().step(action)


class FaultyPolicy:
    """Counts the rows of an episode in its state."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def initial_state(self, num_envs: int) -> Any:
        return np.zeros(num_envs, np.int64)

    def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
        self.fault("policy")
        return np.zeros(len(is_first), np.int64), state + 1, {"count": state}


PLACES = {"policy": 5, "step": 9, "reset": 4, "on_step": 3, "on_episode": 3}
FAULTS = [(*place, call) for place in PLACES.items() for call in ("rollout", "collect")]


@pytest.mark.parametrize(("where", "number", "call"), [*FAULTS, ("progress", 1, "collect")])
@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_after_an_error_whole_rows_are_kept_and_the_next_call_begins_from_a_reset(
    mode: AutoresetMode,
    in_groups: bool,
    where: str,
    number: int,
    call: str,
    replay: sw.SequenceReplayBuffer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepwell.collectors.loop.collector._PROGRESS_SECONDS", 0.0)
    fault = Fault(where, number)
    told: dict[str, Any] = {on: partial(fault, on) for on in ("on_step", "on_episode")}
    makes = [partial(FaultyEnv, fault, n) for n in (2, 4)]
    parts = [makes[:1], makes[1:]] if in_groups else [makes]
    groups = [SyncVectorEnv(part, autoreset_mode=mode) for part in parts]
    with collector_of(groups, FaultyPolicy(fault), replay, **told) as collector:
        plays: dict[str, Callable[[], Any]] = {
            "rollout": partial(collector.rollout, 50),
            "collect": partial(collector.collect, steps=100, progress=partial(fault, "progress")),
        }
        with pytest.raises(RuntimeError, match="it broke") as caught:
            plays[call]()
        ended = sum(e.end.is_final for e in replay.iter_episodes())
        kept = replay.steps
        note = f"kept: {kept} steps, {ended} ended episodes, in RAM"
        assert caught.value.__notes__ == [note]
        assert kept > 0 or where == "progress"
        rollout = collector.rollout(3)
        assert rollout.is_first[0].all()
        assert rollout.extras["count"][0].tolist() == [0, 0]
        assert replay.steps == kept + rollout.steps
    assert all(envs.closed for envs in groups)
    for episode in replay.iter_episodes():
        assert np.asarray(episode.observation)[:, 1].tolist() == list(range(episode.rows))
    assert collector.report.digest == replay.digest()


def test_an_error_while_rows_are_written_leaves_envs_that_can_go_on(
    replay: sw.SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that the envs had begun is received, and discarded."""
    envs = AsyncVectorEnv([partial(CounterEnv, 5, tag) for tag in (0, 1)])
    with collector_of(envs, replay=replay, flush_seconds=0) as collector:
        collector.collect(steps=6)
        add = replay.add
        monkeypatch.setattr(replay, "add", lambda chunks: 1 / 0)
        with pytest.raises(ZeroDivisionError) as caught:
            collector.collect(steps=6)
        assert caught.value.__notes__ == ["kept: 6 steps, 0 ended episodes, in RAM"]
        monkeypatch.setattr(replay, "add", add)
        assert collector.collect(steps=6).steps == 6
    check_rows(replay)
    assert replay.steps == 12


def test_a_second_failure_does_not_hide_the_first(
    replay: sw.SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(chunks: Any) -> None:
        raise OSError("no room on disk")

    calls: Iterator[int] = iter(range(100))

    def policy(observation: Any, is_first: Any) -> Any:
        if next(calls) == 3:
            monkeypatch.setattr(replay, "add", no_room)
            raise RuntimeError("the policy broke")
        return np.zeros(2, np.int64)

    with pytest.raises(RuntimeError) as caught, collector_of(policy=policy, replay=replay) as one:
        one.collect(steps=100)
    assert caught.value.__notes__ == [
        "then: no room on disk",
        "kept: 0 steps, 0 ended episodes, in RAM",
    ]


@pytest.mark.parametrize(("at", "goal"), [(5, 1000), (0, 2)])  # also in the last step
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_ctrl_c_ends_between_two_steps(
    mode: AutoresetMode, at: int, goal: int, replay: sw.SequenceReplayBuffer
) -> None:
    calls: Iterator[int] = iter(range(100))

    def policy(observation: Any, is_first: Any) -> Any:
        if next(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return np.zeros(2, np.int64)

    envs = counters(4, 4, mode=mode)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught, collector_of(envs, policy, replay) as one:
        one.collect(steps=goal)
    steps = 2 * (at + 1) - 2 * (at == 5 and mode is AutoresetMode.NEXT_STEP)
    ended = 2 if at == 5 else 0
    assert caught.value.__notes__ == [f"kept: {steps} steps, {ended} ended episodes, in RAM"]
    assert signal.getsignal(signal.SIGINT) is before
    assert envs.closed
    check_rows(replay)


def test_collecting_in_another_thread_works(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(replay=replay) as collector:
        thread = threading.Thread(target=partial(collector.collect, steps=10))
        thread.start()
        thread.join()
    assert replay.steps == 10


# Closing


def test_closing_stores_the_rest_closes_the_envs_and_may_be_repeated(
    replay: sw.SequenceReplayBuffer,
) -> None:
    envs = counters()
    collector = collector_of(envs, replay=replay)
    collector.collect(steps=3)
    collector.close()
    collector.close()
    assert envs.closed
    assert replay.steps == 4
    with pytest.raises(ValueError, match=r"Collector is closed"):
        collector.collect(steps=1)


def test_a_collector_that_is_garbage_collected_closes_its_envs(
    replay: sw.SequenceReplayBuffer,
) -> None:
    """Garbage of native envs that waits to be collected crashes processes that are forked."""
    gc.disable()
    try:
        collector = collector_of(counters(5, 5, 5), replay=replay)
        collector.collect(steps=4)
        collector.rollout(steps=4)
        envs = weakref.ref(collector._groups[0])
        del collector
        assert envs() is None
    finally:
        gc.enable()


def test_closing_that_fails_closes_the_envs_and_hides_no_error(
    replay: sw.SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepMachine, "flush", lambda self: 1 / 0)
    envs = counters()
    with pytest.raises(ZeroDivisionError):
        collector_of(envs, replay=replay).close()
    assert envs.closed
    with pytest.raises(RuntimeError, match="mine") as caught, collector_of(replay=replay):
        raise RuntimeError("mine")
    assert caught.value.__notes__ == ["closing failed too: division by zero"]


# Going on with a replay


def test_a_continued_replay_gets_other_seeds(replay: sw.SequenceReplayBuffer) -> None:
    for _ in range(2):
        with collector_of(SyncVectorEnv([SeededEnv] * 2), replay=replay) as collector:
            collector.collect(episodes=2)
    assert len({float(np.asarray(e.observation)[0, 0]) for e in replay.iter_episodes()}) == 4


def test_two_collectors_may_take_turns(replay: sw.SequenceReplayBuffer) -> None:
    """Each finds its open episodes cut, and begins from a reset."""
    with (
        collector_of(replay=replay) as one,
        collector_of(counters(5, 5, 5), replay=replay) as other,
    ):
        steps, reports = 0, []
        for _ in range(3):
            for collector in (one, other):
                reports.append(collector.collect(steps=14))
                steps += reports[-1].steps
                assert replay.steps == steps
    check_rows(replay)
    episodes = list(replay.iter_episodes())
    ids = [e.id for e in episodes]
    assert ids == sorted(set(ids))
    keys = [(e.metadata["session"], e.stream, e.metadata["stream_episode"]) for e in episodes]
    assert len(set(keys)) == len(keys)
    assert {key[0] for key in keys} == {0, 1}
    assert [report.cut for report in reports] == [0, 0, 2, 0, 2, 0]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"envs": SyncVectorEnv([FrameEnv] * 2)},
            r"'observation' .*int64 \(3,\), narrow.*uint8 \(4, 4\), narrow",
        ),
        ({"policy": lambda o, f: (np.zeros(2, np.int64), {"value": np.zeros(2)})}, "'extra/value'"),
    ],
)
def test_rows_of_other_fields_are_refused(
    other: Any, message: str, replay: sw.SequenceReplayBuffer
) -> None:
    with collector_of(replay=replay) as collector:
        collector.collect(steps=3)
    with collector_of(**other, replay=replay) as another:
        with pytest.raises(SpecMismatch, match=message):
            another.collect(steps=3)
    assert (replay.steps, len(replay.sessions)) == (4, 1)


def test_envs_of_another_recipe_are_refused(replay: sw.SequenceReplayBuffer) -> None:
    """Trap 7: the same name may stand for another env."""

    def envs(skip: int) -> Any:
        made = counters()
        recipe = {"game": "pong", "frame_skip": skip, "size": (8, 8), "versions": {"x": str(skip)}}
        made.metadata = {**made.metadata, "stepwell": recipe}
        return made

    with collector_of(envs(4), replay=replay) as collector:
        assert collector.collect(steps=3).frames == 16
    with collector_of(envs(4), replay=replay) as again:
        again.collect(steps=3)
    with (
        collector_of(envs(3), replay=replay) as other,
        pytest.raises(SpecMismatch, match=r"frame_skip .*was 4, is 3"),
    ):
        other.collect(steps=3)
    assert "versions" not in replay.sessions[0]["recipe"]  # type: ignore[operator]
    assert replay.sessions[0]["versions"]["x"] == "4"  # type: ignore[index]


def test_a_store_in_a_folder_is_continued(tmp_path: Path) -> None:
    digests = []
    for session in range(2):
        with (
            sw.SequenceReplayBuffer(tmp_path / "run") as replay,
            collector_of(replay=replay) as collector,
        ):
            report = collector.collect(steps=14)
            assert report.path == str(tmp_path / "run")
            assert report.total_steps == 14 * (session + 1)
            digests.append(report.digest)
    with sw.SequenceReplayBuffer.open(tmp_path / "run", read_only=True) as replay:
        assert [(e.id, e.steps, bool(e.cut[-1])) for e in replay.iter_episodes()] == [
            (0, 5, False),
            (1, 5, False),
            (2, 2, True),
            (3, 2, True),
            (4, 5, False),
            (5, 5, False),
            (6, 2, True),
            (7, 2, True),
        ]
        assert [e.metadata["session"] for e in replay.iter_episodes()] == [0] * 4 + [1] * 4
        assert len(replay.sessions) == 2
        assert len({*digests, replay.digest()}) == 3
    with (
        sw.SequenceReplayBuffer(tmp_path / "run") as replay,
        collector_of(SyncVectorEnv([FrameEnv]), replay=replay) as other,
        pytest.raises(SpecMismatch, match=f"^{re.escape(str(tmp_path))}/run .*'observation'"),
    ):
        other.collect(steps=1)


# Fields and spaces


def test_a_space_that_cannot_be_stored_is_refused_at_once() -> None:
    class Strange(spaces.Space[Any]):
        """A space of another library."""

    class StrangeEnv(CounterEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Dict({"words": Strange()})  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"observation/words.*Gymnasium.*got Strange"):
        collector_of(SyncVectorEnv([StrangeEnv]))


# The report


def test_seconds_and_bytes_are_those_of_the_call(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(replay=replay) as collector:
        reports = [collector.collect(steps=100) for _ in range(2)]
    for report in reports:
        parts = (report.env_seconds, report.policy_seconds, report.write_seconds)
        assert min(parts) > 0
        assert sum(parts) <= report.seconds
        assert report.steps_per_second == report.steps / report.seconds
    assert sum(report.stored_bytes for report in reports) == replay.total_bytes
    rows, row_bytes = sum(e.rows for e in replay.iter_episodes()), replay.spec.row_bytes
    raw_bytes = sum(report.raw_bytes for report in reports)
    assert rows * row_bytes <= raw_bytes <= (rows + 2) * row_bytes


def test_progress_is_reported_during_the_run_and_at_the_end(
    replay: sw.SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.collectors.loop.collector._PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("stepwell.collectors.loop.collector._TIMES_THE_COST", 0)
    reported: list[int] = []
    with collector_of(replay=replay) as collector:
        report = collector.collect(steps=10, progress=lambda part: reported.append(part.steps))
    assert reported == [2, 4, 6, 8, 10, 10]
    assert report.steps == 10


def test_episodes_under_way_at_a_reset_are_counted_as_cut(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(replay=replay) as collector:
        assert collector.collect(steps=6).cut == 0
        assert collector.collect(episodes=2).cut == 2
        assert collector.collect(episodes=2).cut == 0
        assert collector.collect(steps=6).cut == 0
        assert collector.collect(episodes=1).cut == 2
    cuts = [bool(e.cut[-1]) for e in replay.iter_episodes()]
    assert cuts == [True] * 2 + [False] * 4 + [True] * 2 + [False]


@pytest.mark.proof
@pytest.mark.parametrize("capacity", [200, 1_000])
def test_every_env_keeps_its_newest_steps_in_a_small_replay(capacity: int) -> None:
    """Regression: waiting rows were stored env by env, each over the newer rows of the others."""
    replay = sw.SequenceReplayBuffer(capacity=capacity, seed=0)
    envs = gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=8_000)
        kept = [0] * 8
        for episode in replay.iter_episodes():
            kept[episode.stream] += episode.steps
    assert sum(kept) > 0.9 * capacity
    assert min(kept) > 0.6 * capacity / 8


def test_the_repr_has_target_and_counts(tmp_path: Path) -> None:
    with sw.SequenceReplayBuffer(tmp_path) as stored, collector_of(replay=stored) as collector:
        collector.collect(steps=20)
        assert repr(collector) == (
            f"Collector(CounterEnv, num_envs=2, writes to {tmp_path}, 20 steps, 4 episodes)"
        )
    for replay, target in ((None, "no replay"), (sw.SequenceReplayBuffer(), "RAM")):
        with collector_of(replay=replay) as collector:
            assert f"writes to {target}, 0 steps" in repr(collector)


class OutOfSpaceEnv(gym.Env[Any, np.int64]):
    """Its observations 3, 5 and 6 of an episode are wrong; the space does not know them."""

    def __init__(self, kind: str) -> None:
        number = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space: Any = {
            "nan": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "box": number,
            "discrete": spaces.Discrete(5),
            "multi": spaces.MultiDiscrete([5, 5]),
            "dict": spaces.Dict({"a": number, "b": spaces.Box(0, 255, (2,), np.uint8)}),
            "tuple": spaces.Tuple((number, spaces.MultiBinary(2))),
            "stack": number,
            "text": spaces.Dict({"a": number, "b": spaces.Text(5)}),
            "sequence": spaces.Sequence(number),
            "one of": spaces.OneOf((number, spaces.Box(3, 9, (1,), np.float32))),
            "short text": spaces.Text(5, min_length=2),
            "characters": spaces.Dict({"a": spaces.Text(5, charset="ab"), "b": number}),
            "texts": spaces.Sequence(spaces.Text(5, min_length=2, charset="ab")),
        }[kind]
        self.action_space = spaces.Discrete(2)
        self.kind, self.t = kind, 0

    def observation(self) -> Any:
        bad = self.t in (3, 5, 6)
        number = np.array([0, 7 if bad else 1], np.float32)
        return {
            "nan": np.array([0, np.nan if bad else 1e30], np.float32),
            "discrete": 7 if bad else 4,
            "multi": np.array([0, 5 if bad else 4]),
            "dict": {"a": number, "b": np.array([0, 255], np.uint8)},
            "tuple": (number, np.array([1, 0], np.int8)),
            "text": {"a": number, "b": "text"},
            "sequence": (number, number),
            "one of": (np.int64(0), number),
            "short text": "a" if bad else "ab",
            "characters": {"a": "ax" if bad else "ab", "b": np.zeros(2, np.float32)},
            "texts": ("ab", "a" if bad else "ba"),
        }.get(self.kind, number)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observation(), {}

    def step(self, action: np.int64) -> Any:
        self.t += 1
        return self.observation(), 1.0, self.t == 9, False, {}


OUT_OF_SPACE = ["nan", "box", "discrete", "multi", "dict", "tuple", "stack"]
OUT_OF_SPACE += ["text", "sequence", "one of", "short text", "characters", "texts"]


def out_of_space(kind: str) -> gym.Env[Any, Any]:
    env: Any = OutOfSpaceEnv(kind)
    return FrameStackObservation(env, 3) if kind == "stack" else env


@pytest.mark.parametrize("kind", OUT_OF_SPACE)
def test_observations_outside_of_their_space_are_told_once_an_env_and_counted(
    kind: str, replay: sw.SequenceReplayBuffer
) -> None:
    envs = SyncVectorEnv([partial(out_of_space, kind)] * 2)
    collector = collector_of(envs, replay=replay)
    with pytest.warns(UserWarning, match=r"env \d") as told:
        report = collector.collect(steps=2 * 9)
    again = collector.collect(steps=2 * 11)  # a warning here would be an error
    assert sorted(str(one.message)[:5] for one in told) == ["env 0", "env 1"]
    assert {"row 3" in str(one.message) for one in told} == {True}
    assert not any("'mask'" in str(one.message) for one in told)  # the env's own space is named
    collector.close()
    assert (report.outside, again.outside) == (6, 6)
    assert "6 outside" in str(report)
    assert report.to_json()["outside"] == 6
    with collector_of(SyncVectorEnv([partial(out_of_space, kind)] * 2)) as collector:
        with pytest.warns(UserWarning, match=r"env \d"):
            collector.rollout(steps=5)  # without a replay
        assert collector.report.outside == 2
        collector.rollout(steps=5)
        assert collector.report.outside == 4
    env = sw.record(out_of_space(kind), sw.SequenceReplayBuffer())
    env.reset()
    for _ in range(5):
        env.step(0)
    with pytest.warns(UserWarning, match="env 0"):
        env.close()
    found = sw.check_vector_env(SyncVectorEnv([partial(out_of_space, kind)] * 2), steps=20)
    assert "env 0" in found.outside
    assert not found.is_fine
    with pytest.raises(AssertionError, match=r"FAIL +observations"):
        assert_env(partial(out_of_space, kind), steps=20, vectorization=["sync"])


def test_observations_in_their_space_are_not_told(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(SyncVectorEnv([SeededEnv] * 2), replay=replay) as collector:
        assert collector.collect(steps=50).outside == 0
    assert sw.check_vector_env(SyncVectorEnv([SeededEnv] * 2), steps=20).outside == ""
