"""`Collector`: arguments, errors, and how collecting continues after them."""

from __future__ import annotations

import gc
import re
import signal
import threading
import weakref
from collections.abc import Iterator
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
from stepwell.collectors.loop.collector import Seeds
from stepwell.collectors.loop.step_loop import StepMachine
from stepwell.wrappers.testing import assert_env
from support.envs.fakes import CounterEnv, CrashEnv, FrameEnv, InfoEnv, SeededEnv, counters
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


def test_without_a_replay_steps_are_counted_only() -> None:
    with collector_of() as collector:
        report = collector.collect(steps=20)
    assert (report.steps, report.episodes, report.digest, report.stored_bytes) == (20, 4, "", 0)


def test_something_else_than_an_env_is_refused() -> None:
    with pytest.raises(TypeError, match=r"envs: expected .*VectorEnv.*got int"):
        collector_of(3)
    with pytest.raises(TypeError, match=r"envs: expected .*got CounterEnv"):
        collector_of([CounterEnv()])


def test_envs_that_do_not_declare_their_mode_are_refused() -> None:
    envs = counters()
    envs.metadata = {}
    del envs.autoreset_mode
    with pytest.raises(
        ValueError, match=r"metadata\['autoreset_mode'\]: .*AutoresetMode.*got None"
    ):
        collector_of(envs)


# Reproducibility


def test_equal_seeds_give_equal_digests_and_others_do_not() -> None:
    def digest(seed: int | None, threads: int) -> str:
        replay = sw.SequenceReplayBuffer()
        envs = SyncVectorEnv([SeededEnv] * threads)
        with sw.Collector(envs, sw.RandomPolicy(), replay, seed=seed) as collector:
            return collector.collect(steps=30).digest

    assert digest(1, 2) == digest(1, 2)
    assert len({digest(seed, 2) for seed in (1, 2, None, None)}) == 4


def test_the_global_generator_does_not_matter() -> None:
    """Trap 19."""
    digests = set()
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        with collector_of(
            SyncVectorEnv([SeededEnv] * 2), replay=sw.SequenceReplayBuffer()
        ) as collector:
            digests.add(collector.collect(steps=30).digest)
    assert len(digests) == 1


# Errors and Ctrl-C


def test_an_error_in_an_env_keeps_what_came_before(replay: sw.SequenceReplayBuffer) -> None:
    envs = SyncVectorEnv([partial(CounterEnv, 4, 0), partial(CrashEnv, 11, 4, 1)])
    with pytest.raises(ZeroDivisionError) as caught, collector_of(envs, replay=replay) as collector:
        collector.collect(steps=100)
    # Before its 11th step the second env had played 10; so had the first, and one step of the
    # vector step that failed was lost with it.
    assert caught.value.__notes__ == ["kept: 20 steps, 4 ended episodes, in RAM"]
    assert envs.closed
    assert replay.steps == 20
    check_rows(replay)
    assert sum(e.end.is_final for e in replay.iter_episodes()) == 4
    assert replay.sample_sequences(8, 3).reward.shape == (8, 3)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_the_next_call_begins_from_a_reset(
    kind: type[Any], replay: sw.SequenceReplayBuffer
) -> None:
    class Failing:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, observation: Any, is_first: Any) -> Any:
            self.calls += 1
            if self.calls == 8:
                raise RuntimeError("the policy broke")
            return np.zeros(2, np.int64)

    envs = kind([partial(CounterEnv, 5, tag) for tag in (0, 1)])
    with collector_of(envs, Failing(), replay) as collector:
        with pytest.raises(RuntimeError, match="the policy broke") as caught:
            collector.collect(steps=100)
        assert caught.value.__notes__ == ["kept: 12 steps, 2 ended episodes, in RAM"]
        report = collector.collect(steps=4)
        assert report.cut == 2
        assert report.steps == 4
    lengths = [(e.stream, e.steps, bool(e.cut[-1])) for e in replay.iter_episodes()]
    assert lengths == [
        (0, 5, False),
        (1, 5, False),
        (0, 1, True),
        (1, 1, True),
        (0, 2, True),
        (1, 2, True),
    ]
    check_rows(replay)
    assert report.digest == replay.digest()


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


def test_after_an_error_in_a_reset_collecting_can_continue(replay: sw.SequenceReplayBuffer) -> None:
    class Moody(CounterEnv):
        resets = 0

        def reset(self, **options: Any) -> Any:
            Moody.resets += 1
            if Moody.resets == 3:
                raise RuntimeError("no reset today")
            return super().reset(**options)

    with collector_of(SyncVectorEnv([partial(Moody, 5)]), replay=replay) as collector:
        collector.collect(steps=3)
        collector.collect(episodes=1)  # the second reset
        with pytest.raises(RuntimeError, match="no reset today") as caught:
            collector.collect(episodes=1)
        assert caught.value.__notes__ == ["kept: 8 steps, 1 ended episodes, in RAM"]
        assert collector.collect(steps=2).steps == 2
    assert [(e.steps, bool(e.cut[-1])) for e in replay.iter_episodes()] == [
        (3, True),
        (5, False),
        (2, True),
    ]


def test_a_progress_call_that_raises_is_an_error_like_others(
    replay: sw.SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.collectors.loop.collector._PROGRESS_SECONDS", 0.0)
    with pytest.raises(ZeroDivisionError) as caught, collector_of(replay=replay) as collector:
        collector.collect(steps=100, progress=lambda report: 1 / 0)  # type: ignore[arg-type]
    assert caught.value.__notes__ == ["kept: 2 steps, 0 ended episodes, in RAM"]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_ctrl_c_ends_between_two_steps(
    mode: AutoresetMode, replay: sw.SequenceReplayBuffer
) -> None:
    calls: Iterator[int] = iter(range(100))

    def policy(observation: Any, is_first: Any) -> Any:
        if next(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return np.zeros(2, np.int64)

    envs = counters(4, 4, mode=mode)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught, collector_of(envs, policy, replay) as one:
        one.collect(steps=1000)
    steps = 10 if mode is AutoresetMode.NEXT_STEP else 12
    assert caught.value.__notes__ == [f"kept: {steps} steps, 2 ended episodes, in RAM"]
    assert signal.getsignal(signal.SIGINT) is before
    assert envs.closed
    check_rows(replay)


def test_ctrl_c_from_outside_ends_a_long_run(replay: sw.SequenceReplayBuffer) -> None:
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught, collector_of(replay=replay) as collector:
        collector.collect(steps=10**9)
    assert f"kept: {replay.steps:,} steps" in caught.value.__notes__[0]
    assert replay.steps > 0
    check_rows(replay)


def test_ctrl_c_in_the_last_step_says_what_was_kept(replay: sw.SequenceReplayBuffer) -> None:
    def policy(observation: Any, is_first: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return np.zeros(2, np.int64)

    with collector_of(policy=policy, replay=replay) as collector:
        with pytest.raises(KeyboardInterrupt) as caught:
            collector.collect(steps=2)
        assert caught.value.__notes__ == ["kept: 2 steps, 0 ended episodes, in RAM"]
    assert replay.steps == 2


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


def test_envs_are_closed_even_if_storing_the_rest_fails(
    replay: sw.SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = counters()
    collector = collector_of(envs, replay=replay)
    collector.collect(steps=3)
    monkeypatch.setattr(StepMachine, "flush", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collector.close()
    assert envs.closed


def test_an_error_in_the_block_is_not_hidden_by_one_while_closing(
    replay: sw.SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepMachine, "flush", lambda self: 1 / 0)
    with pytest.raises(RuntimeError, match="mine") as caught, collector_of(replay=replay):
        raise RuntimeError("mine")
    assert caught.value.__notes__ == ["closing failed too: division by zero"]


# Going on with a replay


def test_a_second_collector_goes_on_with_new_ids_and_joins_no_episodes(
    replay: sw.SequenceReplayBuffer,
) -> None:
    for _ in range(3):
        with collector_of(replay=replay) as collector:
            collector.collect(steps=14)
    assert [e.id for e in replay.iter_episodes()] == list(range(12))
    assert [e.steps for e in replay.iter_episodes()] == [5, 5, 2, 2] * 3
    assert replay.steps == 42
    check_rows(replay)
    assert len(replay.sessions) == 3
    assert [session["session"] for session in replay.sessions] == [0, 1, 2]


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


def test_other_envs_are_refused(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(replay=replay) as collector:
        collector.collect(steps=3)
    with collector_of(SyncVectorEnv([FrameEnv] * 2), replay=replay) as other:
        message = r"'observation' .*int64 \(3,\), narrow.*uint8 \(4, 4\), narrow"
        with pytest.raises(SpecMismatch, match=message):
            other.collect(steps=3)
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


def test_extras_that_were_not_stored_before_are_refused(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(replay=replay) as collector:
        collector.collect(steps=3)
    policy = lambda o, f: (np.zeros(2, np.int64), {"value": np.zeros(2)})  # noqa: E731
    with (
        collector_of(policy=policy, replay=replay) as other,
        pytest.raises(SpecMismatch, match=r"'extra/value'"),
    ):
        other.collect(steps=3)


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


def test_an_info_value_of_another_kind_is_refused(replay: sw.SequenceReplayBuffer) -> None:
    with (
        collector_of(SyncVectorEnv([InfoEnv]), replay=replay, info={"text": 0}) as collector,
        pytest.raises(SpecMismatch, match=r"'text': .*one int64, got .*step 1"),
    ):
        collector.collect(steps=5)


def test_the_names_of_env_and_policy_are_noted(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(gym.make("CartPole-v1"), replay=replay) as collector:
        collector.collect(steps=3)
    (session,) = replay.sessions
    assert session["recipe"]["env"] == "CartPole-v1"  # type: ignore[index]
    assert session["policy"] == "stepwell.collectors.policies.policy.RandomPolicy"
    assert (session["seed"], session["num_envs"], session["session"]) == ("0", 1, 0)


# The report


def test_seconds_add_up_to_no_more_than_the_whole(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(replay=replay) as collector:
        report = collector.collect(steps=200)
    parts = (report.env_seconds, report.policy_seconds, report.write_seconds)
    assert min(parts) > 0
    assert sum(parts) <= report.seconds
    assert report.steps_per_second == report.steps / report.seconds


def test_bytes_are_those_of_the_rows(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(replay=replay) as collector:
        first, second = collector.collect(steps=100), collector.collect(steps=100)
    assert first.stored_bytes + second.stored_bytes == replay.total_bytes
    rows = sum(e.rows for e in replay.iter_episodes())
    row_bytes = replay.spec.row_bytes
    assert rows * row_bytes <= first.raw_bytes + second.raw_bytes <= (rows + 2) * row_bytes


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


def test_the_repr_is_one_line_with_target_and_counts(tmp_path: Path) -> None:
    without = collector_of()
    assert repr(without) == (
        "Collector(CounterEnv, num_envs=2, writes to no replay, 0 steps, 0 episodes)"
    )
    without.close()
    with sw.SequenceReplayBuffer(tmp_path) as stored, collector_of(replay=stored) as collector:
        collector.collect(steps=12)
        collector.collect(steps=8)
        assert repr(collector) == (
            f"Collector(CounterEnv, num_envs=2, writes to {tmp_path}, 20 steps, 4 episodes)"
        )
    with collector_of(replay=sw.SequenceReplayBuffer()) as collector:
        assert "writes to RAM" in repr(collector)


# Seeds and facts of a run


def test_all_seeds_follow_from_one() -> None:
    one, same, other = Seeds(3, 0), Seeds(3, 0), Seeds(4, 0)
    resets = [one.next_envs_seed(8) for _ in range(5)]
    assert resets == [same.next_envs_seed(8) for _ in range(5)]
    assert one.policy_rng().integers(2**60) == same.policy_rng().integers(2**60)
    assert one.policy_rng().integers(2**60) != other.policy_rng().integers(2**60)
    # Env i gets the seed plus i: no env of any reset meets another one's.
    used = {seed + env for seed in resets for env in range(8)}
    assert len(used) == 40
    assert max(used) < 2**31


def test_a_later_session_has_seeds_of_its_own() -> None:
    assert Seeds(3, 0).next_envs_seed(1) != Seeds(3, 1).next_envs_seed(1)
    draws = {int(Seeds(3, session).policy_rng().integers(2**60)) for session in range(5)}
    assert len(draws) == 5


def test_without_a_seed_one_is_drawn_and_can_be_used_again() -> None:
    drawn = Seeds(None, 0)
    assert drawn.seed != Seeds(None, 0).seed
    assert Seeds(drawn.seed, 0).next_envs_seed(2) == Seeds(drawn.seed, 0).next_envs_seed(2)


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


@pytest.mark.parametrize("kind", OUT_OF_SPACE)
def test_a_rollout_without_a_replay_tells_of_observations_outside_of_their_space(kind: str) -> None:
    with collector_of(SyncVectorEnv([partial(out_of_space, kind)] * 2)) as collector:
        with pytest.warns(UserWarning, match=r"env \d") as told:
            collector.rollout(steps=5)
        outside = [collector.report.outside]
        for _ in range(2):
            collector.rollout(steps=5)  # a warning here would be an error
            outside.append(collector.report.outside)
    assert sorted(str(one.message)[:5] for one in told) == ["env 0", "env 1"]
    assert {"row 3" in str(one.message) for one in told} == {True}
    assert outside == [2, 4, 2]  # rows 3 and 5, 6; and 3 of the next episode


def test_observations_in_their_space_are_not_told(replay: sw.SequenceReplayBuffer) -> None:
    with collector_of(SyncVectorEnv([SeededEnv] * 2), replay=replay) as collector:
        assert collector.collect(steps=50).outside == 0
    assert sw.check_vector_env(SyncVectorEnv([SeededEnv] * 2), steps=20).outside == ""
