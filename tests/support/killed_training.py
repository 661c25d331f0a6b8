"""A training that is killed and started again: `python killed_training.py KIND FOLDER STEPS`.

A linear Q learner with prioritized replay, written with numpy alone, so that it begins soon. The
last line says what came out of it: rows, weights, returns.
"""

from __future__ import annotations

import shutil
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import stepwell as sw

EVERY = 150


def envs_of(kind: str) -> Any:
    if kind == "pong":
        return sw.make_atari("Pong", num_envs=2, frame_stack=2)
    return sw.make_vec("CartPole-v1", num_envs=3, num_workers=2 if kind == "workers" else 0)


def features(observation: np.ndarray) -> np.ndarray:
    rows = observation.reshape(len(observation), -1)[:, :: max(1, observation[0].size // 16)]
    return np.concatenate(
        [rows / (255 if rows.dtype == np.uint8 else 1), np.ones((len(rows), 1))], 1
    )


class Agent(sw.EpsilonGreedy):
    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights
        super().__init__(self.best, lambda rows: max(0.1, 1 - rows / 800), mark=True)

    def best(self, observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        chosen: np.ndarray = (features(observation) @ self.weights).argmax(1)
        return chosen


class SentAgent(Agent):
    def __init__(self) -> None:
        super().__init__(np.empty(0))

    def load(self, weights: np.ndarray) -> None:
        self.weights = weights


def train(kind: str, folder: Path, steps: int) -> str:
    if folder.exists() and not list(folder.glob("checkpoint-*.bin")):
        shutil.rmtree(folder)
    is_local = kind.startswith("local")
    kind = kind.removeprefix("local-")
    envs = envs_of(kind)
    actions = int(envs.single_action_space.n)
    width = features(np.zeros((1, *envs.single_observation_space.shape))).shape[1]
    weights = np.zeros((width, actions))
    returns: list[float] = []
    if is_local:
        envs.close()
    ratio = sw.ReplayRatio(0.2, start=200)
    with (
        sw.SequenceReplayBuffer(folder, capacity=900, seed=0) as replay,
        sw.LocalCollector(partial(envs_of, kind), SentAgent, replay, groups=2, processes=2, seed=0)
        if is_local
        else sw.Collector(envs, Agent(weights), replay, seed=0, flush_seconds=1e9) as collector,
    ):
        if replay.is_bound:
            state = replay.load_checkpoint(exact=True)
            collector.load_state_dict(state["collector"])
            ratio.load_state_dict(state["ratio"])
            weights[:] = state["weights"]
            returns[:] = state["returns"]
        while replay.steps < steps:
            before = replay.steps
            given: dict[str, Any] = {"weights": weights} if is_local else {}
            returns += collector.collect(steps=30, **given).returns
            for _ in range(ratio(replay.steps)):
                batch = replay.sample_transitions(16, draw="priorities")
                now, after = features(batch.observation), features(batch.next_observation)
                best = (after @ weights).max(1)
                error = batch.reward + 0.9 * best * ~batch.terminated
                error -= (now @ weights)[np.arange(16), batch.action]
                np.add.at(weights.T, batch.action, 0.01 * (batch.weights * error)[:, None] * now)
                replay.update_priorities(batch.ids, np.abs(error) + 0.01)
            if before // EVERY < replay.steps // EVERY:
                parts = {"collector": collector.state_dict(), "ratio": ratio.state_dict()}
                replay.save_checkpoint({**parts, "weights": weights, "returns": returns})
        crc = zlib.crc32(weights.tobytes() + np.array(returns).tobytes())
        return f"{replay.steps} steps, {replay.digest()}, {len(returns)} episodes, {crc:08x}"


if __name__ == "__main__":
    print(train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
