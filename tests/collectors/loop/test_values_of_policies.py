"""What a policy, a loop or a caller gives is stored as it is, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

import stepwell as sw
from stepwell.buffers import SpecMismatch

ROW = np.zeros(2, np.float32)


class Plane(gym.Env[np.ndarray, np.ndarray]):
    observation_space = Box(-9, 9, (2,), np.float32)
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return ROW, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return ROW, 1.0, False, False, {}


def chosen(result: Any) -> dict[str, np.ndarray]:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(Plane(), lambda observation: result, replay, seed=0) as collector:
        collector.collect(steps=2)
    return dict(replay.episode(0).fields)


def recorded(action: Any = ROW, **extras: Any) -> dict[str, np.ndarray]:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(Plane(), replay)
    env.reset(seed=0)
    if extras:
        env.log_extras(**extras)
    env.step(action)
    env.close()
    return dict(replay.episode(0).fields)


def added(rewards: Any) -> dict[str, np.ndarray]:
    replay = sw.SequenceReplayBuffer()
    with replay.writer(Plane(), 1) as writer:
        shown, chosen = np.zeros((3, 2), np.float32), np.zeros((2, 2), np.float32)
        writer.add_episode(shown, chosen, rewards, terminated=True)
    return dict(replay.episode(0).fields)


MASKED = np.ma.array(ROW, mask=[False, True])


@pytest.mark.parametrize(
    ("name", "give"),
    [
        ("policy returned action", lambda: chosen(MASKED[None])),
        ("policy returned extra 'v'", lambda: chosen((ROW[None], {"v": MASKED[1:]}))),
        ("extra 'v'", lambda: recorded(v=np.ma.masked)),
        ("action", lambda: recorded(MASKED)),
        ("reward", lambda: added(MASKED)),
    ],
)
def test_masked_entries_are_refused(name: str, give: Callable[[], object]) -> None:
    with pytest.raises(
        (ValueError, SpecMismatch), match=f"^{name}: expected numbers, got a masked array"
    ):
        give()


def test_tensors_with_a_graph_are_stored_as_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(1, 2, requires_grad=True)
    assert (chosen(ones)["action"][:2] == 1).all()
    assert (chosen((ROW[None], {"v": ones[:, 0]}))["extra/v"][:2] == 1).all()
    assert chosen(ones.bfloat16())["action"].dtype == np.float32
    assert recorded(ones[0], v=ones[0, 0])["extra/v"][0] == 1
    assert added(ones[0])["reward"].tolist() == [0, 1, 1]
    replay = sw.SequenceReplayBuffer()
    with replay.writer(Plane()) as writer:
        writer.add(ROW, ROW, ones[0, 0], ROW, False, False)
    assert replay.episode(0).reward[1] == 1


@pytest.mark.parametrize(
    ("number", "is_held"),
    [(2**53, True), (2**53 + 1, False), (2**53 + 2, True), (2**62, True), (2**63 - 1, False)],
)
def test_whole_rewards_are_stored_exactly_or_refused(number: int, is_held: bool) -> None:
    def stepped(reward: Any) -> float:
        replay = sw.SequenceReplayBuffer()
        with replay.writer(Plane()) as writer:
            writer.add(ROW, ROW, reward, ROW, False, False)
        return float(replay.episode(0).reward[1])

    for give in (stepped, lambda reward: stepped(np.int64(reward))):
        if is_held:
            assert give(number) == number
        else:
            with pytest.raises(SpecMismatch, match=f"float64 can hold, got {number}"):
                give(number)
