"""Rollouts of groups, side by side, are the rollout of one vector env over all their envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Bootstrap, Rollout
from stepwell.buffers.replay.rollout import join_rollouts
from support.envs.fakes import TraceEnv
from support.models.rollout_model import (
    CountingRule,
    Rule,
    TraceRule,
    assert_equal_rollouts,
    assert_same,
    ends_of,
    leaves,
    policy_of,
)

RNG = np.random.default_rng(0)
LEAVES = ("observation", "action", "info", "extras", "state")
FLAGS = ("reward", "is_first", "terminated", "truncated", "cut", "mask")


class UnseededTraceEnv(TraceEnv):
    """Plays the same whatever the seed of its resets: vectors of other sizes give it others."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=self.tag if seed is not None else None, options=options)


def split(columns: Sequence[Any], borders: Sequence[int]) -> list[Sequence[Any]]:
    """The columns between the borders that lie within, as groups."""
    inner = sorted({border for border in borders if 0 < border < len(columns)})
    return [columns[a:b] for a, b in pairwise([0, *inner, len(columns)])]


ENDS = st.sampled_from(["terminated", "truncated", "both"])
PLANS = st.lists(
    st.lists(st.tuples(st.integers(1, 6), ENDS), min_size=1, max_size=3), min_size=2, max_size=5
)


@given(
    PLANS,
    st.lists(st.integers(1, 4), max_size=3),
    st.sampled_from([TraceRule(), CountingRule(3)]),
    st.sampled_from(list(AutoresetMode)),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.booleans(),
)
def test_a_collector_over_all_envs_returns_the_same(
    plans: Sequence[Sequence[tuple[int, str]]],
    borders: Sequence[int],
    rule: Rule,
    mode: AutoresetMode,
    calls: Sequence[int],
    reuses: bool,
) -> None:
    makers = [partial(UnseededTraceEnv, plan, tag) for tag, plan in enumerate(plans)]

    def collector(part: Sequence[Any]) -> sw.Collector:
        envs: Any = SyncVectorEnv(part, autoreset_mode=mode)
        return sw.Collector(envs, policy_of(rule), seed=0)

    whole = collector(makers)
    groups = [collector(part) for part in split(makers, borders)]
    rng = np.random.default_rng(7)
    old: dict[int, Rollout] = {}
    for steps in calls:
        expected = replace(whole.rollout(steps), rng=np.random.default_rng(7))
        parts = [group.rollout(steps) for group in groups]
        out = old.get(steps) if reuses else None
        found = old[steps] = join_rollouts(parts, rng, out)
        for name in (*LEAVES, *FLAGS):
            arrays = list(leaves(getattr(found, name)))
            assert not any(
                np.may_share_memory(array, other)
                for array in arrays
                for part in parts
                for other in leaves(getattr(part, name))
            )
            again = leaves(getattr(out or found, name))
            assert all(map(np.shares_memory, arrays, again))
        assert found.rng is rng
        # Within a row a vector env lists episodes by env, but rows come before envs.
        assert sorted(found.episode_returns) == sorted(expected.episode_returns)
        assert sorted(found.episode_lengths) == sorted(expected.episode_lengths)
        returns, lengths = expected.episode_returns, expected.episode_lengths
        like = replace(found, episode_returns=returns, episode_lengths=lengths, rng=expected.rng)
        assert_equal_rollouts(like, expected)
        assert ends_of(found) == ends_of(expected)
        for one in (like, expected):
            one.advantages(0.9, 0.7)
        np.testing.assert_array_equal(like.advantage, expected.advantage)
        np.testing.assert_array_equal(like.returns, expected.returns)
        for minibatch, other in zip(_minibatches(like), _minibatches(expected), strict=True):
            assert_same_minibatch(minibatch, other)
    for each in (whole, *groups):
        each.close()


def _minibatches(rollout: Rollout) -> list[Any]:
    rng = np.random.default_rng(5)
    rows = rollout.minibatches(3, epochs=2, rng=rng)
    return [*rows, *rollout.sequences(2, rng=rng), *rollout.sequences(1, length=1, rng=rng)]


def assert_same_minibatch(one: Any, other: Any) -> None:
    for name in (*LEAVES, "reward", "mask", "is_first", "advantage", "returns", "step", "env"):
        assert_same(name, getattr(one, name), getattr(other, name))


def small(envs: int, rows: int = 3) -> Rollout:
    flags: dict[str, Any] = {name: np.zeros((rows, envs), bool) for name in FLAGS[1:]}
    flags["mask"][...] = True
    last = np.arange(envs)
    return Rollout(
        observation=np.arange(rows * envs * 2.0).reshape(rows, envs, 2),
        action=np.zeros((rows, envs), np.int64),
        reward=np.ones((rows, envs), np.float32),
        info={},
        extras={"value": np.ones((rows, envs))},
        bootstrap=Bootstrap(
            np.full(envs, rows - 1), last, np.zeros((envs, 2)), None, np.zeros(envs)
        ),
        **flags,
    )


def test_values_of_a_group_without_open_ends_do_not_change_the_dtype() -> None:
    done, going = small(1), small(2)
    done.terminated[-1] = True
    nothing = np.zeros(0, np.int64)
    ends = Bootstrap(nothing, nothing, np.zeros((0, 2)), None, np.zeros(0, np.float64))
    done = replace(done, bootstrap=ends)
    going = replace(going, bootstrap=going.bootstrap._replace(value=np.ones(2, np.float16)))
    found = join_rollouts([done, going], RNG)
    assert found.bootstrap.value is not None
    assert found.bootstrap.value.dtype == np.float16
    assert found.bootstrap.env.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (small(2, rows=4), r"group 1.* 3 .*got 4"),
        (
            replace(small(2), action=np.zeros((3, 2), np.int32)),
            r"group 1.*action int64.*action int32",
        ),
        (replace(small(2), observation=np.zeros((3, 2, 5))), r"group 1.*\(3, 1, 2\).*\(3, 2, 5\)"),
        (replace(small(2), extras={}), r"group 1.*extras/value float64.*got nothing"),
        (
            replace(small(2), bootstrap=small(2).bootstrap._replace(value=None)),
            r"group 1.*bootstrap.value float64.*got nothing",
        ),
    ],
)
def test_groups_that_differ_are_refused_by_name(other: Rollout, message: str) -> None:
    out = join_rollouts([small(1), small(2)], RNG)
    before = np.asarray(out.observation).copy()
    changed = replace(small(1), observation=np.full((3, 1, 2), 9.0))
    with pytest.raises(ValueError, match=message):
        join_rollouts([changed, other], RNG, out=out)
    assert (np.asarray(out.observation) == before).all()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (join_rollouts([small(2)], RNG), r"out.*\(3, 3, 2\).*\(3, 2, 2\)"),
        (join_rollouts([small(3, rows=2)], RNG), r"out.* 3 rows.* 2"),
        (
            join_rollouts([replace(small(3), action=np.zeros((3, 3), np.int8))], RNG),
            r"out.*int64.*'action'.*int8",
        ),
        (replace(small(3), memory={}), r"out.*'observation'.*nothing"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: Rollout, message: str) -> None:
    before: Mapping[str, np.ndarray] = {name: a.copy() for name, a in out.memory.items()}
    with pytest.raises(ValueError, match=message):
        join_rollouts([small(1), small(2)], RNG, out=out)
    assert all((out.memory[name] == array).all() for name, array in before.items())


def test_there_is_at_least_one_group_and_out_is_a_rollout() -> None:
    with pytest.raises(ValueError, match="at least one"):
        join_rollouts([], RNG)
    wrong: Any = {"observation": 1}
    with pytest.raises(TypeError, match=r"Rollout.*dict"):
        join_rollouts([small(1)], RNG, out=wrong)
