"""Double buffering: several vector envs in turns give what one would give."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from stepwell.wrappers import WorkerVectorEnv
from support.envs.fakes import (
    CounterEnv,
    CrashEnv,
    DictEnv,
    DieEnv,
    FrameEnv,
    TraceEnv,
    counters,
    nested_action,
    zeros,
)
from support.examples import examples
from support.models.model import assert_stored
from support.models.plans import MODES, PLAN
from support.models.rollout_model import (
    CountingRule,
    RolloutModel,
    Rule,
    TraceRule,
    ValuedPolicy,
    assert_equal_rollouts,
    assert_rollout,
    assert_values,
    policy_of,
)

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
GROUPS = st.lists(st.lists(PLAN, min_size=1, max_size=3), min_size=2, max_size=3)
RULES = st.sampled_from([TraceRule(), CountingRule(3)])


def groups_of(
    plans: list[list[Any]], mode: AutoresetMode = NEXT_STEP, kind: Any = SyncVectorEnv
) -> list[Any]:
    """Vector envs whose single envs are tagged with the number of their column."""
    tags = iter(range(100))
    return [
        kind([partial(TraceEnv, plan, next(tags)) for plan in own], autoreset_mode=mode)
        for own in plans
    ]


def model_of(plans: list[list[Any]], rule: Rule, mode: AutoresetMode, **more: Any) -> RolloutModel:
    flat = [plan for own in plans for plan in own]
    envs = [TraceEnv(plan, tag) for tag, plan in enumerate(flat)]
    return RolloutModel(envs, rule, mode=mode, seed_of=Seeds(5, 0).env_seed, **more)


# The same data


@given(GROUPS, MODES, RULES, st.lists(st.integers(1, 14), min_size=1, max_size=4))
@settings(max_examples=examples(80))
def test_rollouts_equal_the_rows_of_single_envs(
    plans: list[list[Any]], mode: AutoresetMode, rule: Rule, lengths: list[int]
) -> None:
    model, replay = model_of(plans, rule, mode), sw.SequenceReplayBuffer()
    model.reset(Seeds(5, 0).next_envs_seed(len(model.envs)))
    with sw.Collector(groups_of(plans, mode), policy_of(rule), replay, seed=5) as collector:
        for steps in lengths:
            rollout, expected = collector.rollout(steps), model.rollout(steps)
            assert sorted(rollout.episode_lengths) == sorted(expected.lengths)
            expected.lengths = list(rollout.episode_lengths)
            assert sorted(rollout.episode_returns) == sorted(expected.returns)
            expected.returns = list(rollout.episode_returns)
            assert_rollout(rollout, expected)
            assert_values(rollout, expected, rule)
            assert_stored_by_stream(replay, model)
    assert_stored_by_stream(replay, model)


def assert_stored_by_stream(replay: sw.SequenceReplayBuffer, model: RolloutModel) -> None:
    """As `assert_stored`, but for the order among streams: groups come one after the other."""
    model_episodes = sorted(model.episodes, key=lambda e: (e.stream, e.number))

    class Sorted:
        steps = replay.steps

        def __len__(self) -> int:
            return len(replay)

        def iter_episodes(self) -> Any:
            return sorted(replay.iter_episodes(), key=lambda e: (e.stream, e.id))

    assert_stored(Sorted(), model_episodes)  # type: ignore[arg-type]


@pytest.mark.proof
@given(
    GROUPS,
    st.sampled_from(list(AutoresetMode)),
    RULES,
    st.lists(
        st.tuples(st.sampled_from(["rollout", "steps", "episodes"]), st.integers(1, 9)),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=examples(60))
def test_every_kind_of_call_loses_no_row(
    plans: list[list[Any]], mode: AutoresetMode, rule: Rule, calls: list[tuple[str, int]]
) -> None:
    """Stored rows are a prefix of each env's rows: no gap, no row twice."""
    replay = sw.SequenceReplayBuffer()
    n = sum(map(len, plans))
    with sw.Collector(groups_of(plans, mode), policy_of(rule), replay, seed=5) as collector:
        for kind, goal in calls:
            if kind == "rollout":
                rollout = collector.rollout(goal)
                assert collector.report.steps == rollout.steps
            else:
                report = collector.collect(**{kind: goal})  # type: ignore[arg-type]
                assert kind != "steps" or goal <= report.steps < goal + n
                assert kind != "episodes" or report.episodes == goal
    for episode in replay.iter_episodes():
        rows = np.asarray(episode.observation)
        assert (rows[:, 0] == episode.stream).all()
        assert rows[:, 2].tolist() == list(range(episode.rows))
        assert len(set(rows[:, 1].tolist())) == 1
        assert rows[1:, 3].tolist() == np.asarray(episode.action)[:-1].tolist()
    assert replay.steps == sum(e.steps for e in replay.iter_episodes())
    assert collector.report.digest == replay.digest()


@ALL_MODES
def test_whole_episodes_equal_those_of_one_vector_env(mode: AutoresetMode) -> None:
    plans: list[Any] = [[[(3, "truncated"), (1, "both")], [(5, "terminated")]], [[(4, "both")]]]
    digests = set()
    for envs in (groups_of(plans, mode), *groups_of([[*plans[0], *plans[1]]], mode)):
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(envs, policy_of(TraceRule()), replay, seed=1) as collector:
            digests.add(collector.collect(episodes=7).digest)
            assert replay.episodes == 7
            assert all(e.end.is_final for e in replay.iter_episodes())
    assert len(digests) == 1


def test_metadata_is_called_with_the_number_of_the_env_among_all() -> None:
    replay = sw.SequenceReplayBuffer()
    groups = [counters(3, 3), counters(3, first=2)]
    with sw.Collector(
        groups, zeros, replay, seed=0, metadata=lambda env, info: {"column": env}
    ) as collector:
        collector.rollout(9)
    assert {(e.stream, e.metadata["column"]) for e in replay.iter_episodes()} == {
        (0, 0),
        (1, 1),
        (2, 2),
    }


def test_nested_spaces_and_info_come_from_their_own_group() -> None:
    make = [SyncVectorEnv([partial(DictEnv, 4)] * n) for n in (2, 1)]
    whole = SyncVectorEnv([partial(DictEnv, 4)] * 3)
    found = []

    def act(observation: Any, is_first: Any) -> Any:
        return nested_action(observation)

    for envs in (make, whole):
        with sw.Collector(envs, act, seed=0) as collector:
            found.append(collector.rollout(9))
    found[0].episode_returns = found[1].episode_returns = ()
    assert_equal_rollouts(*found)


# In turns


class Split(SyncVectorEnv):
    """A vector env whose steps come in two halves, noted in `events`."""

    def __init__(self, make: Any, name: str, events: list[str]) -> None:
        super().__init__(make)
        self.name, self.events, self.actions = name, events, None

    def send(self, actions: Any) -> None:
        assert self.actions is None, "a step is under way"
        self.events.append(f"send {self.name}")
        self.actions = actions

    def recv(self) -> Any:
        assert self.actions is not None, "no step is under way"
        self.events.append(f"recv {self.name}")
        actions, self.actions = self.actions, None
        return self.step(actions)

    def reset(self, **options: Any) -> Any:
        assert self.actions is None, "a step is under way"
        self.events.append(f"reset {self.name}")
        return super().reset(**options)


def splits(events: list[str], *sizes: int, length: Any = 5) -> list[Any]:
    return [
        Split([partial(CounterEnv, length, place)] * size, "abc"[place], events)
        for place, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (1, 1, 1)])
def test_the_policy_computes_for_one_group_while_the_others_step(sizes: tuple[int, ...]) -> None:
    events: list[str] = []

    def policy(observation: Any, is_first: Any) -> Any:
        (group,) = set(observation[:, 2].tolist())  # never a mixed one
        assert len(is_first) == sizes[group]
        events.append(f"policy {'abc'[group]}")
        return zeros(observation, is_first)

    with sw.Collector(splits(events, *sizes), policy, seed=0) as collector:
        collector.rollout(6)
        collector.rollout(3)
    under_way: set[str] = set()
    overlapped = 0
    for event in events:
        what, group = event.split()
        if what == "policy":
            assert group not in under_way
            overlapped += len(under_way) == len(sizes) - 1
        elif what == "send":
            under_way.add(group)
        elif what == "recv":
            under_way.remove(group)
    # All but the first calls of each rollout are made while all other groups step.
    assert overlapped >= 9 * len(sizes) - 2 * (len(sizes) - 1)
    counts = {event: events.count(event) for event in set(events)}
    for group in "abc"[: len(sizes)]:
        assert counts[f"send {group}"] == counts[f"recv {group}"] == 9
        assert counts[f"policy {group}"] == 9
        assert counts[f"reset {group}"] == 1


def test_the_value_is_called_once_for_all_groups() -> None:
    policy = ValuedPolicy(TraceRule())
    plans: list[Any] = [[[(30, "both")], [(40, "both")]], [[(50, "truncated")]] * 3]
    with sw.Collector(groups_of(plans), policy, seed=0) as collector:
        collector.rollout(6)
        collector.rollout(2)
    assert policy.value_calls == [5, 5]


# Errors, and closing


def test_closing_closes_all_groups_even_if_one_will_not_close() -> None:
    class Stuck(SyncVectorEnv):
        def close(self, **options: Any) -> None:
            super().close(**options)
            raise OSError("it will not close")

    groups = [counters(3), Stuck([partial(CounterEnv, 4)]), counters(5)]
    collector = sw.Collector(groups, zeros, seed=0)
    collector.rollout(2)
    with pytest.raises(OSError, match="it will not close"):
        collector.close()
    assert [group.closed for group in groups] == [True] * 3
    collector.close()


@pytest.mark.parametrize("crashing", [0, 1])
@pytest.mark.parametrize("kind", [SyncVectorEnv, WorkerVectorEnv])
def test_a_group_that_raises_keeps_what_came_before(crashing: int, kind: Any) -> None:
    """Pending steps of the other groups are received, and discarded."""
    makes: list[Any] = [[partial(CounterEnv, 4, tag)] for tag in (0, 1)]
    makes[crashing] = [partial(CrashEnv, 7, 4, crashing)]
    groups = [kind(make) for make in makes]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(groups, zeros, replay, seed=0) as collector:
        with pytest.raises(ZeroDivisionError, match="planted at step 7") as caught:
            collector.rollout(30)
        assert caught.value.__notes__[-1].startswith(f"kept: {replay.steps} steps, ")
        assert 12 <= replay.steps <= 13
        kept = replay.steps
        rollout = collector.rollout(5)
        assert rollout.is_first[0].all()
        assert replay.steps == kept + rollout.steps
    for episode in replay.iter_episodes():
        assert np.asarray(episode.observation)[:, 1].tolist() == list(range(episode.rows))
    assert next(e.steps for e in replay.iter_episodes() if e.end.is_final and e.stream == 0) == 4


def test_a_worker_that_dies_in_one_group_cuts_its_own_episode_alone() -> None:
    """Its env ends the process at the 8th step of its life, in its second episode."""
    groups = [
        WorkerVectorEnv([partial(CounterEnv, 5, 0), partial(CounterEnv, 9, 1)], num_workers=1),
        WorkerVectorEnv([partial(DieEnv, 8, 5, 2)], num_workers=1),
    ]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(groups, zeros, replay, seed=0) as collector:
        rollout = collector.rollout(12)
    times = np.asarray(rollout.observation)[:, :, 1]
    assert times[:, 2].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2]
    assert np.flatnonzero(~rollout.mask[:, 2]).tolist() == [5, 8]
    assert np.argwhere(rollout.cut).tolist() == [[7, 2]]
    assert times[:, 0].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert (collector.report.restarts, collector.report.cut) == (1, 1)
    assert replay.steps == rollout.steps


def test_an_error_in_the_policy_leaves_no_group_under_way() -> None:
    events: list[str] = []
    calls = iter(range(1000))

    def policy(observation: Any, is_first: Any) -> Any:
        if next(calls) == 5:
            raise RuntimeError("the policy broke")
        return zeros(observation, is_first)

    replay = sw.SequenceReplayBuffer()
    with sw.Collector(splits(events, 1, 2), policy, replay, seed=0) as collector:
        with pytest.raises(RuntimeError, match="the policy broke"):
            collector.rollout(30)
        for group in "ab":
            assert events.count(f"send {group}") == events.count(f"recv {group}") > 0
        rollout = collector.rollout(4)
        assert rollout.is_first[0].all()
        assert rollout.steps == 12
    for episode in replay.iter_episodes():
        assert np.asarray(episode.observation)[:, 1].tolist() == list(range(episode.rows))


class Other(CounterEnv):
    def __init__(self, **changes: Any) -> None:
        super().__init__()
        for name, value in changes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"observation_space": spaces.Box(0, 9, (4,), np.int64)}, r"observation space.*\(4,\)"),
        ({"observation_space": spaces.Box(0, 2**30, (3,), np.int32)}, "observation space.*int32"),
        ({"action_space": spaces.Discrete(5)}, r"action space.*Discrete\(5\)"),
        ({"action_space": spaces.Box(-1, 1, (1,))}, r"action space.*Box\(-1.0, 1.0"),
    ],
)
def test_groups_with_other_spaces_are_refused(other: dict[str, Any], message: str) -> None:
    groups = [counters(3), SyncVectorEnv([partial(Other, **other)])]
    with pytest.raises((ValueError, TypeError), match=f"^envs: .*{message}.* number 2"):
        sw.Collector(groups, zeros, seed=0)


def test_groups_that_stack_otherwise_are_refused() -> None:
    def stacks(size: int) -> SyncVectorEnv:
        def make() -> gym.Env[Any, Any]:
            env = gym.wrappers.FrameStackObservation(FrameEnv(), 3)
            env.metadata = {**env.metadata, "stepwell": {"frame_stack": size}}
            return env

        return SyncVectorEnv([make])

    with pytest.raises(
        ValueError, match=r"^envs: .*frame stack.*\(3, 'repeat'\).*\(1, 'repeat'\) in number 2"
    ):
        sw.Collector([stacks(3), stacks(1)], zeros, seed=0)


@pytest.mark.parametrize(
    ("envs", "got"),
    [
        ([], "an empty list"),
        ([CounterEnv()], "CounterEnv"),
        (["CartPole-v1"], "str"),
        ([None], "NoneType"),
        ([[counters(3)]], "list"),
        ([counters(3), 4], "int"),
    ],
)
def test_lists_of_something_else_than_vector_envs_are_refused(envs: Any, got: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^envs: .*got {got}"):
        sw.Collector(envs, zeros, seed=0)


def test_one_vector_env_twice_is_refused() -> None:
    envs = counters(3)
    with pytest.raises(ValueError, match=r"^envs: .*twice"):
        sw.Collector([envs, envs], zeros, seed=0)


def test_a_list_of_one_vector_env_is_that_env() -> None:
    found = []
    for envs in ([counters(3, 4)], counters(3, 4), (counters(3, 4),)):
        with sw.Collector(envs, policy_of_counts(), seed=0) as collector:
            found.append(collector.rollout(9))
    assert_equal_rollouts(found[0], found[1])
    assert_equal_rollouts(found[0], found[2])


def policy_of_counts() -> Any:
    return lambda observation, is_first: (observation[:, 1] % 4, {"t": observation[:, 1]})


def test_groups_may_differ_in_how_they_reset() -> None:
    plans: list[Any] = [[[(3, "truncated")]], [[(3, "truncated")]]]
    first, second = groups_of(plans[:1], SAME_STEP)[0], groups_of(plans, NEXT_STEP)[1]
    with sw.Collector([first, second], policy_of(TraceRule()), seed=0) as collector:
        rollout = collector.rollout(8)
    times = np.asarray(rollout.observation)[:, :, 2]
    assert times[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert times[:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rollout.mask[:, 0].all()
    assert np.flatnonzero(~rollout.mask[:, 1]).tolist() == [3, 7]
