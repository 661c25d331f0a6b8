"""Stored rows equal those of single envs stepped one by one, in every mode and split."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers.rows import episode_buffer
from stepwell.collectors.loop.collector import Seeds
from support.envs.fakes import TraceEnv
from support.examples import examples
from support.models.model import Model, assert_stored

ENDS = st.sampled_from(["terminated", "truncated", "both"])
PLANS = st.lists(
    st.lists(st.tuples(st.integers(1, 9), ENDS), min_size=1, max_size=3), min_size=1, max_size=4
)
MODES = st.sampled_from(list(AutoresetMode))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 25)),
        st.tuples(st.just("episodes"), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=4,
)
CHUNK_ROWS = st.integers(1, 12)
FLUSH_SECONDS = st.sampled_from([0.0, 1e9])
RESEED_STEPS = st.sampled_from([3, 1, 7, 50_000])

Plan = Sequence[tuple[int, str]]
Call = tuple[str, int]


def policy(observation: Any, is_first: Any) -> Any:
    return TraceEnv.choose(observation)


def small_chunks(rows: int) -> Any:
    return mock.patch.object(episode_buffer, "_rows_by_size", return_value=rows)


def run(
    envs: Any,
    plans: Sequence[Plan],
    calls: Sequence[Call],
    flush_seconds: float,
    reseed_steps: int = 50_000,
) -> None:
    """Collect from vector envs and play the model in parallel; compare after each call."""
    seeds, is_single = Seeds(5, 0), not hasattr(envs, "num_envs")
    mode = AutoresetMode.NEXT_STEP if is_single else envs.metadata["autoreset_mode"]
    alone = [TraceEnv(plan, tag) for tag, plan in enumerate(plans)]
    model = Model(
        [sw.SeededResets(env) for env in alone] if is_single else alone,
        TraceEnv.choose,
        mode=mode,
        seed_of=seeds.env_seed,
        reseed_steps=reseed_steps,
    )
    replay, needs_reset = sw.SequenceReplayBuffer(), True
    options = {"flush_seconds": flush_seconds, "reseed_steps": reseed_steps}
    with sw.Collector(envs, policy, replay, seed=5, **options) as collector:  # type: ignore[arg-type]
        for kind, number in calls:
            if needs_reset or kind == "episodes":
                limit = float("inf") if kind == "steps" else number
                model.reset(seeds.next_envs_seed(len(plans)), limit)
            before = {id(e): (e.steps, e.has_ended) for e in model.chosen}
            if kind == "steps":
                report, steps = collector.collect(steps=number), model.collect(number)
            else:
                report, steps = collector.collect(episodes=number), model.collect_episodes()
            needs_reset = kind == "episodes"
            assert_stored(replay, model.episodes)
            assert report.steps == steps
            assert report.total_steps == sum(e.steps for e in model.episodes)
            ended = [
                e for e in model.chosen if e.has_ended and not before.get(id(e), (0, False))[1]
            ]
            assert sorted(report.lengths) == sorted(e.steps for e in ended)
            assert sorted(report.returns) == sorted(sum(e.rewards) for e in ended)
            assert report.episodes == len(ended)
            assert report.digest == replay.digest()
    assert_stored(replay, model.episodes)


@pytest.mark.proof
@given(PLANS, MODES, CALLS, CHUNK_ROWS, FLUSH_SECONDS, RESEED_STEPS)
@settings(max_examples=examples(150))
def test_stored_rows_equal_those_of_single_envs(
    plans: list[Plan],
    mode: AutoresetMode,
    calls: list[Call],
    chunk_rows: int,
    flush_seconds: float,
    reseed_steps: int,
) -> None:
    envs = SyncVectorEnv(
        [partial(TraceEnv, plan, tag) for tag, plan in enumerate(plans)], autoreset_mode=mode
    )
    with small_chunks(chunk_rows):
        run(envs, plans, calls, flush_seconds, reseed_steps)


@pytest.mark.proof
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("shared_memory", [True, False])
def test_stored_rows_equal_those_of_single_envs_in_worker_processes(
    mode: AutoresetMode, shared_memory: bool
) -> None:
    plans = [[(3, "terminated"), (1, "truncated")], [(5, "both")], [(2, "truncated")]]
    envs = AsyncVectorEnv(
        [partial(TraceEnv, plan, tag) for tag, plan in enumerate(plans)],
        autoreset_mode=mode,
        shared_memory=shared_memory,
    )
    calls = [("steps", 7), ("steps", 20)]
    if shared_memory or mode is not AutoresetMode.NEXT_STEP:
        calls += [("episodes", 4), ("episodes", 2), ("steps", 9)]
    with small_chunks(4):
        run(envs, plans, calls, 1e9)


@given(PLANS.map(lambda plans: plans[:1]), CALLS, CHUNK_ROWS)
@settings(max_examples=examples(30))
def test_stored_rows_of_a_single_env_equal_its_own(
    plans: list[Plan], calls: list[Call], chunk_rows: int
) -> None:
    with small_chunks(chunk_rows):
        run(TraceEnv(plans[0], 0), plans, calls, 1e9)


@pytest.mark.proof
@given(PLANS, st.lists(st.integers(1, 12), min_size=1, max_size=4), CHUNK_ROWS, CHUNK_ROWS)
@settings(max_examples=examples(40))
def test_calls_add_up_to_one_call_and_one_digest(
    plans: list[Plan], splits: list[int], chunk_rows: int, other_chunk_rows: int
) -> None:
    """Trap 14: collecting 7 steps, then 13, equals collecting 20."""

    def digest(calls: Sequence[int], rows: int, flush_seconds: float) -> tuple[str, int]:
        envs = SyncVectorEnv([partial(TraceEnv, plan, tag) for tag, plan in enumerate(plans)])
        replay = sw.SequenceReplayBuffer()
        with (
            small_chunks(rows),
            sw.Collector(
                envs, sw.RandomPolicy(), replay, seed=1, flush_seconds=flush_seconds
            ) as collector,
        ):
            reports = [collector.collect(steps=steps) for steps in calls]
        assert replay.digest() == reports[-1].digest
        return reports[-1].digest, replay.steps

    digest_in_parts, steps = digest(splits, chunk_rows, 0.0)
    assert digest([steps], other_chunk_rows, 1e9) == (digest_in_parts, steps)


def test_the_comparison_finds_one_wrong_number() -> None:
    plans = [[(3, "terminated")]]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(TraceEnv(plans[0]), policy, replay, seed=0) as collector:
        collector.collect(steps=3)
    model = Model([TraceEnv(plans[0])], TraceEnv.choose, mode=AutoresetMode.NEXT_STEP)
    model.reset(Seeds(0, 0).next_envs_seed(1))
    model.collect(3)
    assert_stored(replay, model.episodes)
    model.episodes[0].actions[1] += 1
    with pytest.raises(AssertionError, match="action of stream 0, episode 0, row 1"):
        assert_stored(replay, model.episodes)


def test_seven_then_thirteen_steps_equal_twenty() -> None:
    plans = [[(6, "terminated"), (2, "truncated")], [(3, "both")]]
    envs = SyncVectorEnv([partial(TraceEnv, plan, tag) for tag, plan in enumerate(plans)])
    run(envs, plans, [("steps", 7), ("steps", 13)], 1e9)


def test_numbers_of_a_report_are_those_of_the_call_alone() -> None:
    envs = SyncVectorEnv([partial(TraceEnv, [(4, "terminated")], 0)])
    with sw.Collector(envs, policy, sw.SequenceReplayBuffer(), seed=0) as collector:
        first, second = collector.collect(steps=6), collector.collect(steps=2)
    assert (first.steps, first.lengths) == (6, (4,))
    assert (second.steps, second.lengths) == (2, (4,))
    assert second.total_steps == 8
    assert np.isclose(first.frames, first.steps)
