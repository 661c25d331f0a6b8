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
from support.envs.fakes import CounterEnv, DieEnv, FrameEnv, TraceEnv, counters, zeros
from support.examples import examples
from support.models.plans import MODES, PLAN
from support.models.rollout_model import (
    CountingRule,
    RolloutModel,
    Rule,
    TraceRule,
    ValuedPolicy,
    play_calls,
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


# The same data


@given(GROUPS, MODES, RULES, st.lists(st.integers(1, 14), min_size=1, max_size=4))
@settings(max_examples=examples(80))
def test_rollouts_equal_the_rows_of_single_envs(
    plans: list[list[Any]], mode: AutoresetMode, rule: Rule, lengths: list[int]
) -> None:
    flat = [plan for own in plans for plan in own]
    envs = [TraceEnv(plan, tag) for tag, plan in enumerate(flat)]
    model = RolloutModel(envs, rule, mode=mode, seed_of=Seeds(5, 0).env_seed)
    calls = [("rollout", steps) for steps in lengths]
    play_calls(groups_of(plans, mode), model, calls, sw.SequenceReplayBuffer())


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


def test_an_error_leaves_no_group_under_way() -> None:
    events: list[str] = []
    calls = iter(range(1000))

    def policy(observation: Any, is_first: Any) -> Any:
        if next(calls) == 5:
            raise RuntimeError("the policy broke")
        return zeros(observation, is_first)

    with sw.Collector(splits(events, 1, 2), policy, seed=0) as collector:
        with pytest.raises(RuntimeError, match="the policy broke"):
            collector.rollout(30)
        for group in "ab":
            assert events.count(f"send {group}") == events.count(f"recv {group}") > 0


class Other(CounterEnv):
    def __init__(self, **changes: Any) -> None:
        super().__init__()
        for name, value in changes.items():
            setattr(self, name, value)


def with_other(**changes: Any) -> list[Any]:
    return [counters(3), SyncVectorEnv([partial(Other, **changes)])]


def stacks(size: int) -> SyncVectorEnv:
    def make() -> gym.Env[Any, Any]:
        env = gym.wrappers.FrameStackObservation(FrameEnv(), 3)
        env.metadata = {**env.metadata, "stepwell": {"frame_stack": size}}
        return env

    return SyncVectorEnv([make])


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        (
            with_other(observation_space=spaces.Box(0, 9, (4,), np.int64)),
            r"observation space.*\(4,\).* number 2",
        ),
        (
            with_other(observation_space=spaces.Box(0, 2**30, (3,), np.int32)),
            "observation space.*int32.* number 2",
        ),
        (with_other(action_space=spaces.Discrete(5)), r"action space.*Discrete\(5\).* number 2"),
        (with_other(action_space=spaces.Box(-1, 1, (1,))), r"action space.*Box\(-1.* number 2"),
        (
            [stacks(3), stacks(1)],
            r"frame stack.*\(3, 'repeat'\).*\(1, 'repeat'\) in number 2",
        ),
        ([], "got an empty list"),
        ([CounterEnv()], "got CounterEnv"),
        (["CartPole-v1"], "got str"),
        ([None], "got NoneType"),
        ([[counters(3)]], "got list"),
        ([counters(3), 4], "got int"),
        (3, r"VectorEnv.*got int"),
        ([counters(3)] * 2, "twice"),
    ],
)
def test_envs_that_cannot_be_stepped_together_are_refused(envs: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^envs: .*{message}"):
        sw.Collector(envs, zeros, seed=0)


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
