"""to_tianshou_batch, to_tianshou_buffer, from_tianshou: every step is one that an env took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Episode, SpecMismatch
from support.envs.logged_envs import PLAN, Kind, Play, place_of, same_tree
from support.examples import examples
from support.libraries.tianshou_rows import assert_step

pytest.importorskip("tianshou", reason="needs tianshou")

from stepwell.buffers.libraries.tianshou.batches import (
    from_tianshou,
    to_tianshou_batch,
    to_tianshou_buffer,
)

KINDS: tuple[Kind, ...] = ("vector", "dict", "stack-zero", "stack-repeat")
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


def data() -> Any:
    import tianshou.data

    return tianshou.data


@pytest.mark.parametrize("kind", KINDS)
def test_every_transition_is_a_step_that_the_env_took(kind: Kind) -> None:
    play = Play(kind)
    replay = play.replay()
    drawn = next(iter(replay.epoch(sw.Transitions(1000), shuffle=False)))
    batch = to_tianshou_batch(drawn)
    seen = {place_of(assert_step(row, play).observation) for row in batch}
    assert seen == set(play.steps)
    assert play.cuts
    assert (batch.weight == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_has_whole_episodes_and_a_sub_buffer_for_each_env(kind: Kind) -> None:
    play = Play(kind)
    buffer = to_tianshou_buffer(play.replay())
    assert buffer.buffer_num == 3
    assert len(buffer) == len(play.steps)
    edges = buffer.subbuffer_edges
    for env, part in enumerate(buffer.buffers):
        every = [step for n, steps in play.episodes if n == env for step in steps]
        assert len(part) == len(every)
        for place, step in enumerate(every):
            row = buffer[np.array([edges[env] + place])][0]
            assert assert_step(row, play) is step
            is_last = place == len(every) - 1
            assert bool(row.info.cut) == (is_last and not (step.terminated or step.truncated))
    assert not len(buffer.unfinished_index())


def test_next_is_the_following_step_of_the_episode() -> None:
    play = Play()
    buffer = to_tianshou_buffer(play.replay())
    every = buffer.sample_indices(0)
    following = buffer.next(every)
    for row, after in zip(buffer[every], buffer[following], strict=True):
        env, episode, number = place_of(row.obs)
        is_over = number + 1 == len(play.logs[env].episodes[episode])
        assert place_of(after.obs) == (env, episode, number if is_over else number + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_that_lost_its_first_rows_gives_its_known_steps(kind: Kind) -> None:
    play = Play(kind, num_envs=1, plan=[(30, "truncated"), (8, "terminated")])
    replay = play.replay(steps=33, capacity=16)
    late = next(replay.iter_episodes())
    assert late.first_row > 0
    buffer = to_tianshou_buffer(replay)
    found = [place_of(assert_step(row, play).observation)[1:] for row in buffer[:]]
    lost = late.first_row + (2 if kind.startswith("stack") else 0)
    assert found == [(0, t) for t in range(lost, 30)] + [(1, t) for t in range(3)]


@pytest.mark.parametrize("mode", MODES)
def test_tianshous_gae_equals_the_rollouts_advantages(mode: AutoresetMode) -> None:
    from tianshou.algorithm.algorithm_base import Algorithm

    weights = np.array([3, 5, 0.25, 1, 0.125])
    collector = Play(mode=mode).collector()
    for _ in range(3):
        rollout = collector.rollout(steps=13)
        buffer = to_tianshou_buffer(rollout)
        batch, indices = buffer.sample(0)
        returns, advantage = Algorithm.compute_episodic_return(
            batch, buffer, indices, batch.obs_next @ weights, batch.obs @ weights, 0.97, 0.9
        )
        mine, theirs = rollout.advantages(0.97, 0.9)
        place = rollout.mask.T
        np.testing.assert_allclose(advantage, mine.T[place], rtol=1e-4, atol=2e-4)
        np.testing.assert_allclose(returns, theirs.T[place], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_through_tianshou_keeps_all_steps(kind: Kind) -> None:
    first, again = Play(kind).replay(), sw.SequenceReplayBuffer(seed=0)
    again.bind(first.spec, {})
    assert from_tianshou(to_tianshou_buffer(first), again) == first.steps
    for mine, theirs in zip(by_place(again), by_place(first), strict=True):
        assert (mine.end, mine.stream, mine.first_row) == (theirs.end, theirs.stream, 0)
        for name, rows in theirs.fields.items():
            # Infos of the reset itself are in no transition.
            some = slice(1, None) if name.startswith("info/") else slice(None)
            assert same_tree(mine.fields[name][some], rows[some]), name


def by_place(replay: sw.SequenceReplayBuffer) -> list[Episode]:
    def key(episode: Episode) -> tuple[int, int, int]:
        tree = episode.observation
        return place_of({"place": tree["place"][0]} if isinstance(tree, dict) else tree[0])

    return sorted(replay.iter_episodes(), key=key)


@settings(max_examples=examples(25), deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["terminated", "truncated", "both"])),
        min_size=1,
        max_size=6,
    ),
    room=st.integers(2, 14),
    extra=st.integers(0, 4),
)
def test_a_full_ring_buffer_gives_its_newest_steps(
    lengths: list[tuple[int, str]], room: int, extra: int
) -> None:
    play = Play(num_envs=1, plan=[*lengths])
    source = to_tianshou_buffer(
        play.replay(steps=2 * sum(n for n, _ in lengths) + extra + len(lengths))
    )
    ring = data().ReplayBuffer(room)
    rows = list(source[:])
    for row in rows:
        ring.add(row)
    replay = sw.SequenceReplayBuffer(seed=0)
    kept = rows[-room:]
    assert from_tianshou(ring, replay, fields=["info/lives"]) == len(kept)
    found: list[Any] = []
    for number, episode in enumerate(replay.iter_episodes()):
        env, n, t = place_of(episode.observation[0])
        is_late = number == 0 and len(rows) >= room
        assert episode.first_row == int(is_late)
        for step in play.logs[env].episodes[n][t : t + episode.steps]:
            found.append(step)
            assert same_tree(
                episode.observation[place_of(step.observation)[2] - t], step.observation
            )
    assert [place_of(step.observation) for step in found] == [place_of(row.obs) for row in kept]


@pytest.mark.parametrize("envs", [[0], [2], [0, 2], [1], []])
@pytest.mark.parametrize("kind", ["VectorReplayBuffer", "PrioritizedVectorReplayBuffer"])
def test_parts_of_envs_that_have_not_stepped_are_left_out(kind: str, envs: list[int]) -> None:
    more = {"alpha": 0.6, "beta": 0.4} if kind.startswith("Prio") else {}
    buffer = getattr(data(), kind)(30, 3, **more)
    n = len(envs)
    for step in range(4 if envs else 0):
        seen = np.full((n, 2), step, np.float32)
        ends = {"terminated": np.full(n, step == 3), "truncated": np.zeros(n, bool)}
        rows = {"obs": seen, "act": np.zeros(n, int), "rew": np.ones(n), "obs_next": seen + 1}
        buffer.add(data().Batch(**rows, **ends, info=data().Batch()), buffer_ids=envs)
    replay = sw.SequenceReplayBuffer()
    assert from_tianshou(buffer, replay, stream=5) == 4 * n
    episodes = list(replay.iter_episodes()) if envs else []
    assert [episode.stream for episode in episodes] == [5 + env for env in envs]


def test_a_buffer_filled_by_tianshous_collector_is_stored_exactly() -> None:
    import gymnasium as gym
    from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm  # noqa: F401
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    from support.envs.fakes import TraceEnv
    from support.envs.logged_envs import Log

    logs = [Log(TraceEnv([*PLAN[n:], *PLAN[:n]], n)) for n in range(2)]
    envs = DummyVectorEnv([lambda log=log: log for log in logs])
    buffer = VectorReplayBuffer(400, 2)
    collector = Collector(random_policy(gym.spaces.Discrete(4)), envs, buffer)
    collector.collect(n_step=60, reset_before_collect=True, random=True)
    replay = sw.SequenceReplayBuffer(seed=0)
    assert from_tianshou(buffer, replay) == 60
    for episode in replay.iter_episodes():
        env, number, t = place_of(episode.observation[0])
        steps = logs[env].episodes[number]
        assert (episode.stream, episode.first_row, t) == (env, 0, 0)
        assert episode.steps == len(steps)
        for step, row, action, reward in zip(
            steps, episode.observation, episode.action, episode.reward[1:], strict=False
        ):
            assert same_tree(row, step.observation)
            assert (action, reward) == (step.action, step.reward)
        assert same_tree(episode.observation[-1], steps[-1].following)
        assert bool(episode.terminated[-1]) == steps[-1].terminated
        assert bool(episode.truncated[-1]) == steps[-1].truncated


def random_policy(space: Any) -> Any:
    import torch
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy

    class Net(torch.nn.Module):
        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
            return torch.zeros(len(obs), 4), state

    return DiscreteQLearningPolicy(model=Net(), action_space=space)


def test_unsupported_batches_and_buffers_are_refused() -> None:
    replay = Play().replay()
    with pytest.raises(ValueError, match=r"to_tianshou_batch.*up to 3.*n_step=1"):
        to_tianshou_batch(replay.sample_transitions(50, n_step=3))
    some = replay.sample_transitions(4, fields=["observation", "reward"])
    with pytest.raises(ValueError, match=r"action.*got None"):
        to_tianshou_batch(some)
    with pytest.raises(ValueError, match=r"size.*\b24\b.*got 4"):
        to_tianshou_buffer(replay, size=4)
    with pytest.raises(ValueError, match=r"to_tianshou_buffer.*got none"):
        to_tianshou_buffer([])
    made = data().VectorReplayBuffer
    for options, message in (
        ({"stack_num": 4}, r"stack_num=1.*got 4"),
        ({"ignore_obs_next": True}, r"ignore_obs_next=False.*True"),
        ({"save_only_last_obs": True}, r"save_only_last_obs=False.*True"),
    ):
        with pytest.raises(ValueError, match=message):
            to_tianshou_buffer(replay, buffer=made(300, 3, **options))
    with pytest.raises(ValueError, match=r"buffer.*\b3\b.*got 2"):
        to_tianshou_buffer(replay, buffer=made(300, 2))
    with pytest.raises(ValueError, match=r"buffer.*got \d+ steps"):
        to_tianshou_buffer(replay, buffer=to_tianshou_buffer(replay))
    with pytest.raises(ValueError, match=r"size.*got 9"):
        to_tianshou_buffer(replay, buffer=made(300, 3), size=9)
    with pytest.raises(ValueError, match=r"size.*\b24\b.*got 3"):
        to_tianshou_buffer(replay, buffer=made(9, 3))
    prioritized = data().PrioritizedVectorReplayBuffer(600, 4, alpha=0.5, beta=0.4)
    assert to_tianshou_buffer(replay, buffer=prioritized) is prioritized
    assert hasattr(prioritized.sample(4)[0], "weight")


def test_buffers_that_cannot_be_stored_are_refused() -> None:
    first, again = Play().replay(), sw.SequenceReplayBuffer()
    buffer = to_tianshou_buffer(first)
    with pytest.raises(TypeError, match=r"ReplayBuffer.*a list"):
        from_tianshou([], again)
    lost = data().VectorReplayBuffer(300, 3, ignore_obs_next=True)
    lost.add(data().Batch.stack([buffer[0]]), buffer_ids=np.array([0]))
    with pytest.raises(ValueError, match=r"from_tianshou.*obs_next.*ignore_obs_next"):
        from_tianshou(lost, again)
    with pytest.raises(ValueError, match=r"fields.*info/.*extra/.*'obs'"):
        from_tianshou(buffer, again, fields=["obs"])
    with pytest.raises(ValueError, match=r"info\.none.*info/none.*fields="):
        from_tianshou(buffer, again, fields=["info/none"])
    buffer.obs_next[1] += 1
    with pytest.raises(ValueError, match=r"next observation.*row 1 of env 0.*row 2"):
        from_tianshou(buffer, again)
    assert not again.is_bound
    other = sw.SequenceReplayBuffer()
    other.bind(replace(first.spec, fields=first.spec.fields[1:], observation={}), {})
    with pytest.raises(
        SpecMismatch, match=r"expected .*lives, reward, .*got .*lives, observation, reward"
    ):
        from_tianshou(to_tianshou_buffer(first), other)
    assert from_tianshou(data().ReplayBuffer(5), again) == 0
