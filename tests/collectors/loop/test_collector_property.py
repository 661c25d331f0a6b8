"""Rollouts and stored rows of all kinds of calls equal single envs that are stepped one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from support.envs.fakes import DictEnv, RestartVectorEnv, TraceEnv, nested_action
from support.examples import examples
from support.models.plans import CHUNK_ROWS, FLUSH_SECONDS, MODES, PLANS, Plan, makers, small_chunks
from support.models.rollout_model import (
    Call,
    CountingRule,
    RolloutModel,
    Rule,
    TraceRule,
    assert_equal_rollouts,
    play_calls,
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


def model_of(plans: Sequence[Plan], rule: Rule, mode: AutoresetMode, **more: Any) -> RolloutModel:
    return RolloutModel(
        [make() for make in makers(plans)], rule, mode=mode, seed_of=Seeds(5, 0).env_seed, **more
    )


@pytest.mark.parametrize("mode", list(AutoresetMode))
@given(PLANS, RULES, CALLS, CHUNK_ROWS, FLUSH_SECONDS, WITH_REPLAY, st.booleans(), RESEED_STEPS)
@settings(max_examples=examples(100))
def test_rollouts_equal_the_rows_of_single_envs(
    mode: AutoresetMode,
    plans: list[Plan],
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
        play_calls(envs, model, calls, replay, reseed_steps=reseed_steps, **options)


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
    play_calls(envs, model, [("rollout", steps) for steps in lengths], None)


@given(PLANS.map(lambda plans: plans[:1]), RULES, CALLS)
@settings(max_examples=examples(30))
def test_calls_of_a_single_env_give_its_own_rows(
    plans: list[Plan], rule: Rule, calls: list[Call]
) -> None:
    model = model_of(plans, rule, NEXT_STEP)
    model.envs = [sw.SeededResets(env) for env in model.envs]
    play_calls(TraceEnv(plans[0], 0), model, calls, sw.SequenceReplayBuffer())


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
    play_calls(envs, model_of(plans, CountingRule(2), mode), calls, sw.SequenceReplayBuffer())


class NestedRule(TraceRule):
    def act(self, observation: Any, is_first: bool, state: Any) -> Any:
        return nested_action(observation), None, {"value": self.value(observation, state)}

    def value(self, observation: Any, state: Any) -> Any:
        return np.float32(np.sum(observation["image"]) + observation["pair"][0])


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_all_kinds_of_spaces_are_trees_of_arrays_and_actions_arrive(
    kind: Any, mode: AutoresetMode
) -> None:
    """Trap 26 too: every byte comes back."""
    makes: list[Any] = [partial(DictEnv, [3, 5])] * 2
    model = RolloutModel(
        [make() for make in makes], NestedRule(), mode=mode, seed_of=Seeds(5, 0).env_seed
    )
    replay = sw.SequenceReplayBuffer(seed=0)
    calls: list[Call] = [("rollout", 12), ("steps", 9), ("rollout", 5)]
    rollout: Any = play_calls(kind(makes, autoreset_mode=mode), model, calls, replay)
    batch: Any = replay.sample_sequences(4, 2)
    for rows, shape in ((rollout, (5, 2)), (batch, (4, 2))):
        image, (number, pair), (stick, bits) = (
            rows.observation["image"],
            rows.observation["pair"],
            rows.action["stick"],
        )
        assert (image.shape, image.dtype) == ((*shape, 3, 4), np.uint8)
        assert (number.dtype, pair.dtype) == (np.int64, np.float32)
        assert (stick.shape, bits.dtype) == ((*shape, 2), np.int8)


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
