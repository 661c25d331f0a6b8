"""Batches, buffers and replays for Tianshou: every step is one that an env took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Episode, SpecMismatch
from support.envs.logged_envs import (
    PLAN,
    Kind,
    Logged,
    Play,
    log_prob_of,
    numbers,
    place_of,
    same_tree,
)
from support.examples import examples

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("tianshou", reason="needs tianshou")

from stepwell.buffers.libraries.tianshou.batches import (  # noqa: E402
    from_tianshou,
    to_tianshou_batch,
    to_tianshou_buffer,
)
from stepwell.buffers.libraries.tianshou.replay import as_tianshou_replay  # noqa: E402


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
        assert (episode.stream, episode.first_row, t, episode.steps) == (env, 0, 0, len(steps))
        shown = [*(step.observation for step in steps), steps[-1].following]
        assert same_tree(episode.observation, np.stack(shown))
        assert episode.action[:-1].tolist() == [step.action for step in steps]
        assert episode.reward[1:].tolist() == [step.reward for step in steps]
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
    with pytest.raises(TypeError, match=r"^replay: .*\bstr\b"):
        from_tianshou(buffer, "x")  # type: ignore[arg-type]
    for wrong in ("runs/a", 5):
        with pytest.raises(TypeError, match=rf"^source: .*{wrong!r};"):
            to_tianshou_buffer(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"TransitionBatch, got str;"):
        to_tianshou_batch("x")  # type: ignore[arg-type]
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_step", [1, 3])
def test_samples_are_steps_that_the_env_took(kind: Kind, n_step: int) -> None:
    play = Play(kind)
    buffer = as_tianshou_replay(play.replay(), n_step=n_step)
    assert len(buffer) == len(play.steps)
    seen: set[tuple[int, int, int]] = set()
    for _ in range(5):
        batch, indices = buffer.sample(100)
        assert not len(buffer.unfinished_index())
        for _ in range(n_step):
            for row in buffer[indices]:
                seen.add(place_of(assert_step(row, play).observation))
            if n_step > 1 and _ < n_step - 1:
                after = buffer.next(indices)
                for row, following in zip(buffer[indices], buffer[after], strict=True):
                    env, episode, t = place_of(plain(row.obs))
                    is_over = t + 1 == len(play.logs[env].episodes[episode])
                    assert place_of(plain(following.obs)) == (env, episode, t + (not is_over))
                    assert bool(row.done) == is_over
                assert (
                    buffer.prev(after)
                    == np.where(after > indices, indices, after - (after % n_step > 0))
                ).all()
                indices = after
        assert len(batch) == 100
    assert seen == set(play.steps)
    assert play.cuts


@pytest.mark.parametrize("n_step", [1, 2, 4])
def test_tianshous_n_step_returns_equal_those_of_the_envs_steps(n_step: int) -> None:
    from tianshou.algorithm.algorithm_base import Algorithm

    weights = np.array([3, 5, 0.25, 1, 0.125])
    play = Play()
    replay = play.replay()

    def value(buffer: Any, indices: np.ndarray) -> Any:
        return torch.from_numpy(buffer[indices].obs_next @ weights)

    buffers: list[Any] = [as_tianshou_replay(replay, n_step=n_step), to_tianshou_buffer(replay)]
    for buffer in buffers:
        batch, indices = buffer.sample(200)
        found = Algorithm.compute_nstep_return(batch, buffer, indices, value, 0.9, n_step)
        for row, mine in zip(batch, found.returns.flatten().tolist(), strict=True):
            env, episode, t = place_of(row.obs)
            steps = play.logs[env].episodes[episode][t : t + n_step]
            expected = sum(0.9**i * step.reward for i, step in enumerate(steps))
            if not steps[-1].terminated:
                expected += 0.9 ** len(steps) * float(steps[-1].following @ weights)
            assert mine == pytest.approx(expected)


def dqn(n_step: int = 1) -> Any:
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net

    net = Net(state_shape=(5,), action_shape=4, hidden_sizes=[8])
    policy = DiscreteQLearningPolicy(model=net, action_space=gym.spaces.Discrete(4))
    optim = AdamOptimizerFactory(lr=1e-3)
    return DQN(policy=policy, optim=optim, n_step_return_horizon=n_step, target_update_freq=3)


def test_the_algorithms_errors_become_priorities() -> None:
    from tianshou.utils.torch_utils import policy_within_training_step

    updates: list[tuple[np.ndarray, np.ndarray]] = []

    class PriorityRecorder(sw.SequenceReplayBuffer):
        def update_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> int:
            updates.append((ids, priorities))
            return super().update_priorities(ids, priorities)

    replay, play = PriorityRecorder(seed=0), Play()
    with sw.Collector(play.envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=60)
    for n_step in (1, 2):
        buffer = as_tianshou_replay(replay, n_step=n_step, draw="priorities")
        algorithm = dqn(n_step)
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer, sample_size=16)
        ids, errors = updates[-1]
        assert ids.shape == errors.shape == (16,)
        again = replay.take(sw.Transitions(16), ids)
        assert (again.observation == buffer[np.arange(16) * n_step].obs).all()
    assert not hasattr(as_tianshou_replay(replay), "update_weight")
    batch, _ = buffer.sample(8)
    assert batch.weight.shape == (8,)


def test_invalid_indices_and_arguments_are_refused() -> None:
    replay = Play().replay()
    buffer = as_tianshou_replay(replay, n_step=2)
    with pytest.raises(ValueError, match=r"n_step.*got 0"):
        as_tianshou_replay(replay, n_step=0)
    with pytest.raises(ValueError, match=r"as_tianshou_replay.*none.*\bsample\b"):
        buffer.next(np.arange(3))
    for size in (None, 0):
        with pytest.raises(ValueError, match=rf"batch_size.*1.*got {size}"):
            buffer.sample(size)
    _, indices = buffer.sample(50)
    after = buffer.next(indices)
    with pytest.raises(ValueError, match=r"n_step.*\b2\b.*n_step_return_horizon"):
        buffer.next(after)
    with pytest.raises(ValueError, match=r"index.*0 to 99.*\b100\b"):
        buffer[np.array([100])]
    with pytest.raises(ValueError, match=r"index.*0 to 99.*slice\("):
        buffer[:]
    beyond = indices[after == indices] + 1
    with pytest.raises(ValueError, match=rf"index.*\b{beyond[0]}\b.*next\(\)"):
        buffer[beyond]
    by_priority = as_tianshou_replay(replay, n_step=2, draw="priorities")
    _, indices = by_priority.sample(4)
    with pytest.raises(ValueError, match=r"update_weight.*\(3,\).*\(4,\)"):
        by_priority.update_weight(indices, np.ones(3))
