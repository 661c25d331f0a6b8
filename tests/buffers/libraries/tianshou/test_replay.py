"""as_tianshou_replay: Tianshou's algorithms are updated from the steps that the envs took."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from support.envs.logged_envs import Kind, Play, place_of
from support.libraries.tianshou_rows import assert_step

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("tianshou", reason="needs tianshou")

from stepwell.buffers.libraries.tianshou.batches import to_tianshou_buffer  # noqa: E402
from stepwell.buffers.libraries.tianshou.replay import as_tianshou_replay  # noqa: E402


@pytest.mark.parametrize("kind", ["vector", "dict", "stack-zero", "stack-repeat"])
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
                    env, episode, t = place_of_row(row)
                    is_over = t + 1 == len(play.logs[env].episodes[episode])
                    assert place_of_row(following) == (env, episode, t + (not is_over))
                    assert bool(row.done) == is_over
                assert (
                    buffer.prev(after)
                    == np.where(after > indices, indices, after - (after % n_step > 0))
                ).all()
                indices = after
        assert len(batch) == 100
    assert seen == set(play.steps)
    assert play.cuts


def place_of_row(row: Any) -> tuple[int, int, int]:
    observation = row.obs
    if hasattr(observation, "get_keys"):
        return place_of({"place": np.asarray(observation.place)})
    return place_of(observation)


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
