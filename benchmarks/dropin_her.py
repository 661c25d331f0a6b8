"""SB3's HerReplayBuffer and Stepwell's in its place, side by side, by CPU time.

    python benchmarks/dropin_her.py
    python benchmarks/dropin_her.py --rounds 3 --size 100000

Rows are those of a robot arm: 10 numbers, goals of 3, episodes of 50 steps; the ring is full.
"loop" is a step of all envs and a batch, in turns. "replay" draws from the store behind the buffer
with ``sample_transitions(relabel=Hindsight(...))``, as NumPy arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as TheirBuffer

import rounds
import stepwell as sw
from stepwell.buffers.dropin.sb3 import HerReplayBuffer as OurBuffer

BATCH = 256
EPISODE_STEPS = 50
SB3 = "SB3"
GOAL = spaces.Box(-np.inf, np.inf, (3,), np.float64)
SPACE = spaces.Dict(
    observation=spaces.Box(-np.inf, np.inf, (10,), np.float64),
    achieved_goal=GOAL,
    desired_goal=GOAL,
)
ACTIONS = spaces.Box(-1, 1, (4,))


def compute_reward(achieved_goal: Any, desired_goal: Any, infos: Any) -> np.ndarray:
    """0 near the goal, else -1."""
    del infos
    distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
    found: np.ndarray = -(distance > 0.05).astype(np.float32)
    return found


def env_method(name: str, *arguments: Any, indices: Any) -> list[np.ndarray]:
    """`compute_reward`, as a VecEnv calls it."""
    del name, indices
    return [compute_reward(*arguments)]


def steps_of(envs: int, count: int) -> list[tuple[Any, ...]]:
    """Steps of all envs, as `add` takes them."""
    rng = np.random.default_rng(0)
    shapes = {"observation": (10,), "achieved_goal": (3,), "desired_goal": (3,)}
    seen = [
        {key: rng.normal(size=(envs, *shape)) for key, shape in shapes.items()}
        for _ in range(count + 1)
    ]
    found: list[tuple[Any, ...]] = []
    for step in range(count):
        done = np.full(envs, step % EPISODE_STEPS == EPISODE_STEPS - 1)
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in done]
        action = rng.random((envs, 4)).astype(np.float32)
        found.append((seen[step], seen[step + 1], action, -np.ones(envs), done, infos))
    return found


def add(buffer: Any, steps: list[tuple[Any, ...]]) -> float:
    """Steps, again and again the same."""
    for step in steps:
        buffer.add(*step)
    return len(steps)


def draw(buffer: Any, batches: int) -> float:
    """Batches of tensors."""
    for _ in range(batches):
        buffer.sample(BATCH)
    return batches


def draw_from(replay: sw.SequenceReplayBuffer, batches: int) -> float:
    """Batches of arrays."""
    request = sw.Transitions(BATCH, relabel=sw.Hindsight(compute_reward))
    for _ in range(batches):
        replay.sample(request)
    return batches


def loop(buffer: Any, steps: list[tuple[Any, ...]]) -> float:
    """A step, a batch."""
    for step in steps:
        buffer.add(*step)
        buffer.sample(BATCH)
    return len(steps)


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--size", type=int, default=100_000, help="transitions that are kept")
    parser.add_argument("--batches", type=int, default=100, help="batches, or steps, a round")
    options = parser.parse_args()
    rows: list[rounds.Row] = []
    for envs in (1, 8):
        env: Any = SimpleNamespace(env_method=env_method)
        steps = steps_of(envs, 5 * EPISODE_STEPS)
        buffers: dict[str, Any] = {
            name: kind(options.size, SPACE, ACTIONS, env, "cpu", envs)
            for name, kind in ((SB3, TheirBuffer), ("stepwell", OurBuffer))
        }
        for buffer in buffers.values():
            for _ in range(1 + options.size // (envs * len(steps))):
                add(buffer, steps)
        replay = buffers["stepwell"].replay
        cases: dict[str, Callable[[Any], float]] = {
            f"sample({BATCH})": functools.partial(draw, batches=options.batches),
            "add": functools.partial(add, steps=steps),
            "loop": functools.partial(loop, steps=steps[: options.batches]),
        }
        for what, case in cases.items():
            candidates: dict[str, Callable[[], float]] = {
                name: functools.partial(case, buffer) for name, buffer in buffers.items()
            }
            if what.startswith("sample"):
                candidates["replay"] = functools.partial(draw_from, replay, options.batches)
            rows += rounds.compare(
                *("hindsight", f"{envs} envs: {what}"),
                candidates=candidates,
                limit=SB3,
                count=options.rounds,
                goals={"stepwell": 1.0},
            )
    packages = ["stepwell", "stable-baselines3", "torch", "numpy"]
    rounds.report(rows, packages, options.json)


if __name__ == "__main__":
    main()
