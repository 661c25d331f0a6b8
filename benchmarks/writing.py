"""Cost of adding a vector step, against plain assignments into a ring of arrays.

    python benchmarks/writing.py
    python benchmarks/writing.py --capacity 20000 --rounds 3

Every ring is full when it is measured. The limit assigns observation, action, reward and two flags.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

import peer_cpprb
import peer_sb3
import peer_sheeprl
import peer_stepwell
import peer_tianshou
import peer_torchrl
import peers
import rounds

SHAPE = (3, 64, 64)
LIMIT = "numpy assignments"


def vector_steps(num_envs: int, episode_steps: int = 1_000) -> Iterator[Mapping[str, np.ndarray]]:
    """Vector steps without end; the envs end their episodes at different times."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (32, num_envs, *SHAPE), dtype=np.uint8)
    actions = rng.integers(0, 6, (32, num_envs))
    rewards = rng.random((32, num_envs))
    nothing = np.zeros(num_envs, np.bool_)
    phases = np.arange(num_envs) * (episode_steps // num_envs)
    for number in itertools.count():
        place = number % 32
        yield {
            "observation": pixels[place],
            "action": actions[place],
            "reward": rewards[place].astype(np.float32),
            "reward64": rewards[place],
            "terminated": (number + phases) % episode_steps == episode_steps - 1,
            "truncated": nothing,
        }


def assignments(
    steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int
) -> peers.Call:
    """Write one vector step into arrays ``[time, envs, ...]``."""
    length = capacity // num_envs
    observation = np.ones((length, num_envs, *SHAPE), np.uint8)  # ones: touched once
    action = np.ones((length, num_envs), np.int64)
    reward = np.ones((length, num_envs), np.float32)
    terminated = np.ones((length, num_envs), np.bool_)
    truncated = np.ones((length, num_envs), np.bool_)
    place = 0

    def add() -> None:
        nonlocal place
        step = next(steps)
        observation[place] = step["observation"]
        action[place] = step["action"]
        reward[place] = step["reward"]
        terminated[place] = step["terminated"]
        truncated[place] = step["truncated"]
        place = (place + 1) % length

    return add


def main() -> None:
    """Print one table."""
    title = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(description=title, epilog=peers.EPILOG)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--capacity", type=int, default=40_000, help="rows of 12 kB each")
    options = parser.parse_args()
    print(rounds.machine("stepwell", "numpy", *peers.versions()))
    makers: dict[str, Callable[..., peers.Call]] = {
        LIMIT: assignments,
        "stepwell": peer_stepwell.writing,
        "sheeprl": peer_sheeprl.writing,
        "SB3": peer_sb3.writing,
        "Tianshou": peer_tianshou.writing,
        "TorchRL": peer_torchrl.writing,
        "cpprb": peer_cpprb.writing,
    }
    candidates = peers.available(
        {
            name: functools.partial(
                make, vector_steps(options.envs), options.capacity, options.envs
            )
            for name, make in makers.items()
        }
    )
    what = f"{options.envs} envs of {SHAPE}"
    lines = peers.compare(what, candidates, LIMIT, options.rounds, work=options.envs)
    print("rows written into full rings")
    print(rounds.table(peers.HEAD, lines))


if __name__ == "__main__":
    main()
