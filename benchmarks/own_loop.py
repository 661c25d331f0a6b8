"""CPU time that `sw.record` adds to a loop of the caller's own.

Bare and recorded envs step in turns, in bursts of a fraction of a second, with the same actions;
figures are medians over the rounds. Rows go to RAM.

    python benchmarks/own_loop.py [--rounds 25]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import stepwell as sw
from rounds import cpu_seconds, machine, table

NUM_ENVS = 8
MICROSECONDS = 5.0
"""Goal: added to each env step of CartPole, at most."""
PERCENT = 3.0
"""Goal: added to the time of Pong, at most."""


def cart_pole() -> Any:
    """Make gymnasium's own vector env."""
    return gym.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="sync")


def cart_pole_of_make_vec() -> Any:
    """Make Stepwell's vector env in this process."""
    return sw.make_vec("CartPole-v1", NUM_ENVS, num_workers=0)


def pong() -> Any:
    """Make Pong by ale-py's vector env."""
    return sw.make_atari("pong", NUM_ENVS)


def single_cart_pole() -> Any:
    """Make one env."""
    return gym.make("CartPole-v1")


CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "CartPole x 8, SyncVectorEnv": (cart_pole, 400),
    "CartPole x 8, make_vec in process": (cart_pole_of_make_vec, 400),
    "Pong x 8, make_atari": (pong, 100),
    "CartPole, a single env": (single_cart_pole, 2000),
}


class Loop:
    """A loop of random actions, the same in each burst.

    Args:
        env: The env.
        steps: Steps of a burst.
    """

    def __init__(self, env: Any, steps: int) -> None:
        self._env, self._is_vector = env, hasattr(env, "num_envs")
        rng = np.random.default_rng(0)
        space = env.single_action_space if self._is_vector else env.action_space
        size = (steps, NUM_ENVS) if self._is_vector else (steps,)
        self._actions = rng.integers(0, space.n, size)
        self.env_steps = self._actions.size
        env.reset(seed=0)

    def burst(self) -> float:
        """Step through all actions; returns the CPU time."""
        env, is_vector = self._env, self._is_vector
        began = cpu_seconds()
        for action in self._actions:
            _, _, terminated, truncated, _ = env.step(action)
            if not is_vector and (terminated or truncated):
                env.reset()
        return cpu_seconds() - began


def measure(make_env: Callable[[], Any], steps: int, rounds: int) -> tuple[float, float, float]:
    """Microseconds of CPU time for an env step of the bare env, added ones, and the ratio."""
    replay = sw.SequenceReplayBuffer(capacity=100_000)
    bare, recorded = make_env(), sw.record(make_env(), replay)
    loops = [Loop(bare, steps), Loop(recorded, steps)]
    times: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        first = number % 2
        pair = {place: loops[place].burst() for place in (first, 1 - first)}
        if number:  # the first one warms up
            times.append((pair[0], pair[1]))
    for env in (bare, recorded):
        env.close()
    scale = 1e6 / loops[0].env_steps
    base = statistics.median(one for one, _ in times) * scale
    added = statistics.median(two - one for one, two in times) * scale
    return base, added, statistics.median(two / one for one, two in times)


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--case", help="only those whose name contains it")
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for name, (make_env, steps) in CASES.items():
        if arguments.case and arguments.case not in name:
            continue
        base, added, ratio = measure(make_env, steps, arguments.rounds)
        goal = f"<= {PERCENT:g} %" if "Pong" in name else f"<= {MICROSECONDS:g} us"
        goal = "" if "single" in name else goal
        percent = f"{(ratio - 1) * 100:.1f} %"
        rows.append((name, f"{base:.1f}", f"{added:.2f}", percent, goal))
    print(machine("numpy", "gymnasium", "ale-py"))
    head = ("case", "bare, us of CPU an env step", "recording adds, us", "adds", "goal")
    print(table(head, rows))


if __name__ == "__main__":
    main()
