"""Speed of collecting every row, relative to the emulators alone.

    python benchmarks/collect.py                     # Pong and Breakout, 8 and 32 envs
    python benchmarks/collect.py --games Seaquest --num-envs 8 --rounds 3

The limit is a loop of ``AtariVectorEnv.step`` with random actions that keeps nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import ale_py
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

import rounds
import stepwell as sw

BARE = "bare loop, nothing kept"
Work: TypeAlias = Callable[[int], float]
"""Takes a number of vector steps, and returns how many env steps they were."""


def stepping(envs: VectorEnv[Any, Any, Any]) -> Work:
    """Step with random actions and keep nothing."""
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = int(cast("spaces.Discrete", envs.single_action_space).n)

    def run(vector_steps: int) -> float:
        for _ in range(vector_steps):
            envs.step(rng.integers(actions, size=envs.num_envs))
        return vector_steps * envs.num_envs

    return run


def bare(game: str, num_envs: int) -> Work:
    """The limit: the native envs alone."""
    return stepping(sw.make_atari(game, num_envs, backend="native"))


def collecting(
    game: str,
    num_envs: int,
    folder: Path | None,
    backend: Literal["native", "python"] = "native",
) -> Work:
    """Collect into a folder, or into RAM."""
    envs = sw.make_atari(game, num_envs, backend=backend)
    replay = sw.SequenceReplayBuffer(folder)
    collector = sw.Collector(envs, sw.RandomPolicy(), replay, seed=0)
    return lambda vector_steps: collector.collect(steps=vector_steps * num_envs).steps


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 7)
    parser.add_argument("--games", nargs="*", default=["Pong", "Breakout"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8, 32])
    parser.add_argument(
        "--only", nargs="+", help="measure only bare and candidates with such words"
    )
    parser.add_argument("--steps", type=int, default=6_000, help="env steps a round")
    options = parser.parse_args()
    rows = cartpole(options.rounds)
    for game in options.games:
        for num_envs in options.num_envs:
            rows += compare(game, num_envs, options.steps // num_envs, options.rounds, options.only)
    packages = ["stepwell", "ale-py", "gymnasium", "numpy", "zstandard"]
    rounds.report(rows, packages, options.json)


def pooled(game: str, num_envs: int, folder: Path | None) -> Work:
    """EnvPool's own threads, whose last observations are not the true ones."""
    envs = sw.make_vec(f"envpool:{game}-v5", num_envs)
    if folder is None:
        return stepping(envs)
    replay = sw.SequenceReplayBuffer(folder)
    collector = sw.Collector(envs, sw.RandomPolicy(), replay, seed=0)
    return lambda vector_steps: collector.collect(steps=vector_steps * num_envs).steps


def asynchronous(game: str, num_envs: int) -> Work:
    """The peer that every user has: gymnasium's AsyncVectorEnv and wrappers, nothing kept."""

    def one() -> gymnasium.Env[Any, Any]:
        name = f"ALE/{game}-v5"
        env = gymnasium.make(name, frameskip=1)
        env = AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
        return FrameStackObservation(env, 4)

    gymnasium.register_envs(ale_py)
    return stepping(AsyncVectorEnv([one] * num_envs))


def cartpole(count: int) -> list[rounds.Row]:
    """Envs that cost little: eight of CartPole into RAM."""

    def envs() -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8)

    replay = sw.SequenceReplayBuffer(capacity=100_000)
    collector = sw.Collector(envs(), sw.RandomPolicy(), replay, seed=0)
    candidates: dict[str, Callable[[], float]] = {
        BARE: functools.partial(stepping(envs()), 400),
        "stored in RAM": lambda: collector.collect(steps=3_200).steps,
    }
    what = ("collect", "CartPole, 8 envs in this process")
    goals = {"stored in RAM": 0.65}
    return rounds.compare(*what, candidates=candidates, limit=BARE, count=count, goals=goals)


def compare(
    game: str, num_envs: int, vector_steps: int, count: int, only: list[str] | None
) -> list[rounds.Row]:
    """Measure all candidates in one run, or the bare loop and those that have one of the words."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        what = (game, num_envs)
        makers: dict[str, Callable[[], Work]] = {
            BARE: lambda: bare(*what),
            "native, stored on disk": lambda: collecting(*what, folder / "native"),
            "python, stored on disk": lambda: collecting(*what, folder / "python", "python"),
            "gymnasium's AsyncVectorEnv, nothing kept": lambda: asynchronous(*what),
        }
        if importlib.util.find_spec("envpool"):
            makers["EnvPool, nothing kept"] = lambda: pooled(*what, None)
            makers["EnvPool, stored on disk"] = lambda: pooled(*what, folder / "pool")
        candidates = {
            title: functools.partial(make(), vector_steps)
            for title, make in makers.items()
            if only is None or any(word in title for word in ["bare", *only])
        }
        return rounds.compare(
            *("collect", f"{game}, {num_envs} envs"),
            candidates=candidates,
            limit=BARE,
            count=count,
            goals={"native, stored on disk": 0.96, "python, stored on disk": 0.95},
        )


if __name__ == "__main__":
    main()
