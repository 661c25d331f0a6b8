"""CPU time that `sw.record` adds to a loop of the caller's own.

Bare and recorded envs step in turns, in bursts of a fraction of a second, with the same actions;
figures are medians over the rounds. Rows go to RAM.

    python benchmarks/own_loop.py [--rounds 25]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import rounds
import stepwell as sw

NUM_ENVS = 8


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
        env.reset(seed=0)

    def __call__(self) -> float:
        """Step through all actions; returns the env steps."""
        env, is_vector = self._env, self._is_vector
        for action in self._actions:
            _, _, terminated, truncated, _ = env.step(action)
            if not is_vector and (terminated or truncated):
                env.reset()
        return self._actions.size


def measure(name: str, count: int) -> list[rounds.Row]:
    """The loop with a bare env, and with a recorded one."""
    make_env, steps = CASES[name]
    bare, recorded = make_env(), sw.record(make_env(), sw.SequenceReplayBuffer(capacity=100_000))
    found = rounds.compare(
        *("own loop", name),
        candidates={"bare": Loop(bare, steps), "recorded": Loop(recorded, steps)},
        limit="bare",
        count=count,
        goals={"recorded": 0.97} if "Pong" in name else None,
    )
    for env in (bare, recorded):
        env.close()
    return found


def main() -> None:
    """Measure all cases and print a table."""
    parser = rounds.options(__doc__, 25)
    parser.add_argument("--case", default="", help="only those whose name contains it")
    options = parser.parse_args()
    rows: list[rounds.Row] = []
    for name in CASES:
        if options.case in name:
            rows += measure(name, options.rounds)
    rounds.report(rows, ["stepwell", "numpy", "gymnasium", "ale-py"], options.json)


if __name__ == "__main__":
    main()
