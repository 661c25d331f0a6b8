"""Envs in JAX: a Collector whose device takes many steps at once, against one step at a time.

Both write to RAM. `JaxEnvs` is stepped as any other vector env with a policy that is not known as
one of JAX, and many times at once with the same one. Figures are medians over the rounds, on one
device: the CPU, unless JAX finds another.

    python benchmarks/device_envs.py [--rounds 9] [--num-envs 1024]
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

import rounds
import stepwell as sw

jax: Any = importlib.import_module("jax")
jnp: Any = jax.numpy
_STEPS = 256  # vector steps of a call


def draw_two(params: Any, key: Any, observation: Any, is_first: Any) -> Any:
    """Random actions of two."""
    return jax.random.randint(key, is_first.shape, 0, 2, dtype=jnp.int32)


def draw_torque(params: Any, key: Any, observation: Any, is_first: Any) -> Any:
    """Random torques."""
    return jax.random.uniform(key, (*is_first.shape, 1), minval=-2.0, maxval=2.0)


def env_of(name: str) -> Any:
    """A functional env of Gymnasium."""
    module = importlib.import_module(f"gymnasium.envs.phys2d.{name.lower()}")
    return getattr(module, f"{name}Functional")()


# The policy and the time limit.
CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "CartPole": (draw_two, 500),  # random actions end an episode after some 22 steps
    "Pendulum": (draw_torque, 200),
}


class Stepped:
    """A policy that a Collector does not know as one of JAX."""

    def __init__(self, policy: Any) -> None:
        self._policy, self.begin = policy, policy.begin

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        """The policy's actions."""
        return self._policy(np.asarray(observation), is_first)


def collecting(envs: Any, policy: Any) -> Callable[[], float]:
    """Collect into RAM."""
    steps = _STEPS * envs.num_envs
    collector = sw.Collector(envs, policy, sw.SequenceReplayBuffer(seed=0), seed=0)

    def run() -> float:
        return collector.collect(steps=steps).steps

    run()  # compiled now
    return run


def case(name: str, num_envs: int, count: int) -> list[rounds.Row]:
    """Compare the ways to step one kind of env."""
    draw, limit = CASES[name]
    envs = [sw.JaxEnvs(env_of(name), num_envs, max_episode_steps=limit) for _ in range(2)]
    policies = [sw.bridges.jax_policy(draw) for _ in range(2)]
    candidates = {
        "JaxEnvs, step by step": collecting(envs[0], Stepped(policies[0])),
        "JaxEnvs, at once": collecting(envs[1], policies[1]),
    }
    return rounds.compare(
        *("envs on a device", f"{name}, {num_envs:,} envs, {jax.default_backend()}"),
        candidates=candidates,
        limit=next(iter(candidates)),
        count=count,
    )


def main() -> None:
    """Print the table."""
    parser = rounds.options(__doc__, 9)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--case", nargs="+", choices=[*CASES], default=[*CASES])
    options = parser.parse_args()
    found = [row for name in options.case for row in case(name, options.num_envs, options.rounds)]
    packages = rounds.installed("stepwell", "jax", "gymnasium", "numpy")
    rounds.report(found, packages, options.json)


if __name__ == "__main__":
    main()
