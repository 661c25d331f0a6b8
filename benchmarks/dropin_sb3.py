"""The replay buffer of Stable-Baselines3, and Stepwell's in its place, side by side.

    python benchmarks/dropin_sb3.py
    python benchmarks/dropin_sb3.py --rounds 3 --envs 1 8 --learn 0

An add is one step of all envs to a full buffer; images are Pong's, of a random player. Times are of
the processor, in one thread. Last comes what 100,000 steps take in RAM: the growth of a process.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer as Original

import rounds
import stepwell as sw
from stepwell.buffers.dropin.sb3 import ReplayBuffer

EPISODE_STEPS = 200
THEIRS, OURS = "stable-baselines3", "stepwell"
ACTIONS = spaces.Discrete(2)
VECTOR, IMAGE = "[4] float32", "4x84x84 uint8"
STACKED = f"{IMAGE}, frame_stack=4"


def episode(kind: str, envs: int) -> list[np.ndarray]:
    """The observations of an episode."""
    rng = np.random.default_rng(0)
    if kind == VECTOR:
        return [rng.random((envs, 4), np.float32) for _ in range(EPISODE_STEPS + 1)]
    atari = sw.make_atari("Pong", envs, backend="native")
    found = [atari.reset(seed=0)[0]]
    for _ in range(EPISODE_STEPS):
        found.append(atari.step(rng.integers(0, 6, envs))[0])
    atari.close()
    return found


def adding(buffer: Any, seen: list[np.ndarray], envs: int) -> Callable[[int], float]:
    """Add steps, one episode after the other."""
    rng = np.random.default_rng(1)
    taken = [rng.integers(0, 2, envs) for _ in seen]
    reward, infos = np.ones(envs, np.float32), [dict[str, object]() for _ in range(envs)]
    flags = [np.zeros(envs, np.bool_)] * (EPISODE_STEPS - 1) + [np.ones(envs, np.bool_)]
    position = 0

    def add(count: int) -> float:
        nonlocal position
        for _ in range(count):
            t = position
            buffer.add(seen[t], seen[t + 1], taken[t], reward, flags[t], infos)
            position = (t + 1) % EPISODE_STEPS
        return count

    return add


def draw(buffer: Any, batch_size: int, count: int) -> float:
    """Batches."""
    for _ in range(count):
        buffer.sample(batch_size)
    return count


def learner(options: Mapping[str, Any]) -> Any:
    """A model that has begun to learn."""
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", buffer_size=20_000, **options)
    return model.learn(400)


def learn(model: Any, steps: int) -> float:
    """Steps of ``learn``."""
    model.learn(steps, reset_num_timesteps=False)
    return steps


def rows_of(
    what: str, candidates: Mapping[str, Callable[[], float]], count: int
) -> list[rounds.Row]:
    """Rows of one operation; both are compared with SB3's class."""
    return rounds.compare(
        *("SB3", what), candidates=candidates, limit=THEIRS, count=count, goals={OURS: 1.0}
    )


def compared(kind: str, envs: int, steps: int, count: int) -> list[rounds.Row]:
    """The rows of one kind of observations."""
    is_vector = kind == VECTOR
    space = spaces.Box(-1, 1, (4,)) if is_vector else spaces.Box(0, 255, (4, 84, 84), np.uint8)
    options: dict[str, Any] = {"frame_stack": 4} if kind == STACKED else {}
    buffers: dict[str, Any] = {
        THEIRS: Original(steps, space, ACTIONS, device="cpu", n_envs=envs),
        OURS: ReplayBuffer(steps, space, ACTIONS, device="cpu", n_envs=envs, **options),
    }
    seen = episode(kind, envs)
    adds = {name: adding(buffer, seen, envs) for name, buffer in buffers.items()}
    for add in adds.values():
        add(steps // envs)
    calls = 3_000 if is_vector else 500
    what = f"{envs} envs, {kind}"
    works = {name: functools.partial(add, calls) for name, add in adds.items()}
    found = rows_of(f"{what}: add", works, count)
    for batch_size in (64, 256):
        draws = {
            name: functools.partial(draw, buffer, batch_size, calls // 10)
            for name, buffer in buffers.items()
        }
        found += rows_of(f"{what}: sample({batch_size})", draws, count)
    return found


MEMORY: dict[str, tuple[Any, dict[str, Any]]] = {
    THEIRS: (Original, {}),
    f"{THEIRS}, optimize_memory_usage": (
        Original,
        {"optimize_memory_usage": True, "handle_timeout_termination": False},
    ),
    OURS: (ReplayBuffer, {"frame_stack": 4}),
}
STEPS_IN_RAM = 100_000


def peak_megabytes() -> float:
    """The most memory that this process had; ``ru_maxrss`` begins with what its parent had."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def grow(name: str) -> None:
    """Print by how many MB this process grows when a buffer of 8 envs is filled and drawn from."""
    made, options = MEMORY[name]
    seen = episode(IMAGE, 8)
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    before = peak_megabytes()
    buffer = made(STEPS_IN_RAM, space, ACTIONS, device="cpu", n_envs=8, **options)
    adding(buffer, seen, 8)(STEPS_IN_RAM // 8)
    draw(buffer, 32, 100)
    print(peak_megabytes() - before)


def grown(name: str) -> float:
    """The same of a process of its own."""
    command = [sys.executable, __file__, "--memory", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print one table."""
    parser = rounds.options(__doc__, 7)
    parser.add_argument("--memory", choices=MEMORY, help="only the growth of this process, in MB")
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--vectors", type=int, default=20_000, help="steps in each buffer")
    parser.add_argument("--images", type=int, default=20_000, help="steps in each buffer")
    parser.add_argument(
        "--learn", type=int, default=200, help="steps of learn() a round; 0 for none"
    )
    parser.add_argument("--no-memory", action="store_true", help="leave the last part out")
    options = parser.parse_args()
    if options.memory:
        grow(options.memory)
        return
    found: list[rounds.Row] = []
    for kind in (VECTOR, IMAGE, STACKED):
        steps = options.vectors if kind == VECTOR else options.images
        for envs in options.envs:
            found += compared(kind, envs, steps, options.rounds)
    if options.learn:
        models = {THEIRS: learner({}), OURS: learner({"replay_buffer_class": ReplayBuffer})}
        runs = {
            name: functools.partial(learn, model, options.learn) for name, model in models.items()
        }
        found += rows_of("DQN, CartPole-v1: a step of learn()", runs, 2 * options.rounds)
    packages = ["stepwell", "stable-baselines3", "torch", "numpy"]
    memory = {} if options.no_memory else {name: grown(name) for name in MEMORY}
    rounds.report(found, packages, options.json, memory=memory)
    for name, megabytes in memory.items():
        print(f"{STEPS_IN_RAM:,} steps of 8 envs, {IMAGE}: {name} {megabytes:,.0f} MB")


if __name__ == "__main__":
    main()
