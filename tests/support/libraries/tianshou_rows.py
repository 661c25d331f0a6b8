"""Rows of Tianshou's batches, compared with what was logged in the envs."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.envs.logged_envs import Logged, Play, log_prob_of, numbers, place_of, same_tree


def plain(value: Any) -> Any:
    """A Batch as dicts."""
    if hasattr(value, "get_keys"):
        return {key: plain(value[key]) for key in value.get_keys()}
    return np.asarray(value)


def assert_step(row: Any, play: Play, *, has_next: bool = True) -> Logged:
    """A row is a step that was logged, and nothing else stands in it."""
    observation = plain(row.obs)
    step = play.steps[place_of(observation)]
    cut = bool(row.info.cut)
    assert same_tree(observation, step.observation)
    if has_next:
        assert same_tree(plain(row.obs_next), step.following)
    assert row.act == step.action
    assert np.asarray(row.act).dtype == np.int64
    assert row.rew == step.reward
    assert np.asarray(row.rew).dtype == np.float64
    assert bool(row.terminated) == step.terminated
    assert bool(row.truncated) == (step.truncated or cut)
    assert bool(row.done) == (step.terminated or step.truncated or cut)
    assert row.info.lives == place_of(observation)[2] + 1
    seen = numbers(
        {"place": np.asarray(observation["place"])[None]}
        if isinstance(observation, dict)
        else observation[None]
    )
    assert row.policy.log_prob == log_prob_of(seen)[0]
    return step
