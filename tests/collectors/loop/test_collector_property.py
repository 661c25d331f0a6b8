"""Rollouts and stored rows of all kinds of calls equal single envs that are stepped one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from support.envs.fakes import RestartVectorEnv, TraceEnv
from support.examples import examples
from support.models.model import assert_stored
from support.models.plans import CHUNK_ROWS, FLUSH_SECONDS, MODES, PLANS, Plan, makers, small_chunks
from support.models.rollout_model import (
    CountingRule,
    RolloutModel,
    Rule,
    TraceRule,
    assert_equal_rollouts,
    assert_rollout,
    assert_values,
    policy_of,
)

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
# What finds most comes first: that is drawn most often.
RULES = st.sampled_from([CountingRule(3), TraceRule(), CountingRule()])
WITH_REPLAY = st.sampled_from([True, False])
ROLLOUT = st.tuples(st.just("rollout"), st.integers(1, 14))
CALLS = st.lists(
    st.one_of(
        ROLLOUT,
        ROLLOUT,
        st.tuples(st.just("steps"), st.integers(1, 25)),
        st.tuples(st.just("episodes"), st.integers(1, 5)),
        st.tuples(st.just("seeds"), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)),
    ),
    min_size=2,
    max_size=6,
)
RESEED_STEPS = st.sampled_from([3, 1, 7, 50_000])

Call = tuple[str, Any]


def model_of(plans: Sequence[Plan], rule: Rule, mode: AutoresetMode, **more: Any) -> RolloutModel:
    return RolloutModel(
        [make() for make in makers(plans)], rule, mode=mode, seed_of=Seeds(5, 0).env_seed, **more
    )


def run(
    envs: Any,
    model: RolloutModel,
    calls: Sequence[Call],
    replay: sw.SequenceReplayBuffer | None,
    **options: Any,
) -> None:
    """Make the calls and play the model in parallel; compare after each one."""
    seeds, n, needs_reset = Seeds(5, 0), len(model.envs), True
    stores_state = options.get("store_state", False)
    with sw.Collector(envs, policy_of(model.rule), replay, seed=5, **options) as collector:
        for kind, goal in calls:
            if kind != "seeds" and (needs_reset or kind == "episodes"):
                limit = goal if kind == "episodes" else float("inf")
                model.reset(seeds.next_envs_seed(n), limit)
            if kind == "rollout":
                rollout, expected = collector.rollout(goal), model.rollout(goal)
                assert_rollout(rollout, expected, stores_state=stores_state)
                assert_values(rollout, expected, model.rule)
                assert collector.report.steps == rollout.steps
                assert collector.report.lengths == rollout.episode_lengths
                assert collector.report.returns == rollout.episode_returns
            elif kind == "seeds":
                assert collector.collect(seeds=goal).steps == model.collect_seeds(goal)
            else:
                before = {id(one): (one.steps, one.has_ended) for one in model.chosen}
                report = collector.collect(**{kind: goal})
                assert report.steps == (
                    model.collect(goal) if kind == "steps" else model.collect_episodes()
                )
                ended = [
                    one
                    for one in model.chosen
                    if one.has_ended and not before.get(id(one), (0, False))[1]
                ]
                assert sorted(report.lengths) == sorted(one.steps for one in ended)
                assert sorted(report.returns) == sorted(sum(one.rewards) for one in ended)
            needs_reset = kind in ("episodes", "seeds")
            if replay is not None:
                assert_stored(replay, model.episodes)
                assert collector.report.digest == replay.digest()
                assert collector.report.total_steps == sum(one.steps for one in model.episodes)
    if replay is not None:
        assert_stored(replay, model.episodes)


@given(
    PLANS, MODES, RULES, CALLS, CHUNK_ROWS, FLUSH_SECONDS, WITH_REPLAY, st.booleans(), RESEED_STEPS
)
@settings(max_examples=examples(200))
def test_rollouts_equal_the_rows_of_single_envs(
    plans: list[Plan],
    mode: AutoresetMode,
    rule: Rule,
    calls: list[Call],
    chunk_rows: int,
    flush_seconds: float,
    with_replay: bool,
    store_state: bool,
    reseed_steps: int,
) -> None:
    envs = SyncVectorEnv(makers(plans), autoreset_mode=mode)
    options = {"flush_seconds": flush_seconds, "store_state": store_state and bool(rule.initial)}
    replay = sw.SequenceReplayBuffer() if with_replay else None
    model = model_of(plans, rule, mode, reseed_steps=reseed_steps)
    with small_chunks(chunk_rows):
        run(envs, model, calls, replay, reseed_steps=reseed_steps, **options)


@given(
    PLANS,
    st.sampled_from([NEXT_STEP, SAME_STEP]),
    RULES,
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.tuples(st.integers(1, 20), st.integers(0, 3)),
)
@settings(max_examples=examples(80))
def test_rollouts_with_a_worker_that_died_equal_the_rows_of_single_envs(
    plans: list[Plan], mode: AutoresetMode, rule: Rule, lengths: list[int], died: tuple[int, int]
) -> None:
    at_step, env = died[0], died[1] % len(plans)
    envs = RestartVectorEnv(makers(plans), at_step, env, autoreset_mode=mode)
    model = model_of(plans, rule, mode, restarts=[(at_step, env)])
    run(envs, model, [("rollout", steps) for steps in lengths], None)


@given(PLANS.map(lambda plans: plans[:1]), RULES, CALLS)
@settings(max_examples=examples(30))
def test_calls_of_a_single_env_give_its_own_rows(
    plans: list[Plan], rule: Rule, calls: list[Call]
) -> None:
    model = model_of(plans, rule, NEXT_STEP)
    model.envs = [sw.SeededResets(env) for env in model.envs]
    run(TraceEnv(plans[0], 0), model, calls, sw.SequenceReplayBuffer())


@pytest.mark.proof
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("shared_memory", [True, False])
def test_rollouts_equal_the_rows_of_single_envs_in_worker_processes(
    mode: AutoresetMode, shared_memory: bool
) -> None:
    plans: list[Plan] = [[(3, "terminated"), (1, "truncated")], [(5, "both")], [(2, "truncated")]]
    envs = AsyncVectorEnv(makers(plans), autoreset_mode=mode, shared_memory=shared_memory)
    calls: list[Call] = [("rollout", 7), ("steps", 5), ("rollout", 1), ("rollout", 20)]
    if shared_memory or mode is not NEXT_STEP:
        calls += [("seeds", [3, 1, 4, 1, 5]), ("rollout", 9), ("episodes", 2), ("rollout", 4)]
    run(envs, model_of(plans, CountingRule(2), mode), calls, sw.SequenceReplayBuffer())


@given(PLANS, MODES, RULES, st.integers(1, 12), st.integers(1, 4))
@settings(max_examples=examples(40))
def test_writing_into_an_earlier_rollout_gives_what_a_new_one_holds(
    plans: list[Plan], mode: AutoresetMode, rule: Rule, steps: int, times: int
) -> None:
    def last(rewrite: bool) -> sw.Rollout:
        envs = SyncVectorEnv(makers(plans), autoreset_mode=mode)
        with sw.Collector(
            envs, policy_of(rule), seed=2, store_state=bool(rule.initial)
        ) as collector:
            rollout = collector.rollout(steps)
            for _ in range(times):
                rollout = collector.rollout(steps, out=rollout if rewrite else None)
        return rollout

    assert_equal_rollouts(last(rewrite=True), last(rewrite=False))


def test_the_comparison_finds_one_wrong_number() -> None:
    plans: list[Plan] = [[(3, "truncated")], [(4, "terminated")]]
    envs = SyncVectorEnv(makers(plans))
    with sw.Collector(envs, policy_of(TraceRule()), seed=5) as collector:
        rollout = collector.rollout(6)
    model = model_of(plans, TraceRule(), NEXT_STEP)
    model.reset(Seeds(5, 0).next_envs_seed(2))
    expected = model.rollout(6)
    assert expected.open_ends == [(2, 0), (5, 0), (5, 1)]
    assert_rollout(rollout, expected)
    for name, wrong in (("reward", 1), ("truncated", True), ("observation", np.zeros(5))):
        row = expected.rows[1][1]
        before = getattr(row, name)
        setattr(row, name, wrong)
        with pytest.raises(AssertionError, match=name):
            assert_rollout(rollout, expected)
        setattr(row, name, before)
    expected.rows[2][0].follows = expected.rows[4][0].observation  # that of the reset
    with pytest.raises(AssertionError, match=r"open end .*row 2 .*env 0"):
        assert_rollout(rollout, expected)


def test_the_comparison_of_what_is_stored_finds_one_wrong_number() -> None:
    plans: list[Plan] = [[(3, "terminated")]]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(TraceEnv(plans[0]), policy_of(TraceRule()), replay, seed=5) as collector:
        collector.collect(steps=3)
    model = model_of(plans, TraceRule(), NEXT_STEP)
    model.reset(Seeds(5, 0).next_envs_seed(1))
    model.collect(3)
    assert_stored(replay, model.episodes)
    model.episodes[0].actions[1] += 1
    with pytest.raises(AssertionError, match="action of stream 0, episode 0, row 1"):
        assert_stored(replay, model.episodes)
