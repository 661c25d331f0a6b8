"""Cost of rollouts against the bare envs, and the gain of stepping two vector envs in turns.

    python benchmarks/rollout.py                           # all three parts
    python benchmarks/rollout.py --only turns --rounds 9

loop: ``Collector.rollout`` with a constant policy, against a loop of ``envs.step`` with the same
actions that keeps nothing. turns: two vector envs in turns against one with all the envs, which
step on one core in both, with a policy that takes as long as the envs do, and with a usual network,
which takes about as long. learners: rollouts for PPO with a small network, compared with
Stable-Baselines3's ``collect_rollouts`` where it is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

import rounds
import stepwell as sw

Vector: TypeAlias = VectorEnv[Any, Any, Any]
Act: TypeAlias = Callable[[Any, np.ndarray], Any]
LENGTH = 128  # rows of a rollout
SHORT_LENGTH = 32  # where every row costs much
_CALIBRATION_SECONDS = 1.0


def compared(
    what: str,
    candidates: dict[str, Callable[[], float]],
    count: int,
    *,
    goals: dict[str, float] | None = None,
    clock: rounds.Clock = "CPU",
) -> list[rounds.Row]:
    """Measure candidates in turns; all are compared with the first."""
    return rounds.compare(
        *("turns" if clock == "time" else "rollout", what),
        candidates=candidates,
        limit=next(iter(candidates)),
        count=count,
        goals=goals,
        clock=clock,
    )


def constant(num_envs: int) -> Act:
    """The same action for all, each time."""
    actions = np.zeros(num_envs, np.int64)
    return lambda observation, is_first: actions[: len(is_first)]


def stepping(envs: Vector) -> Callable[[], float]:
    """The limit: step, and keep nothing."""
    envs.reset(seed=0)
    actions = np.zeros(envs.num_envs, np.int64)

    def run() -> float:
        for _ in range(LENGTH):
            envs.step(actions)
        return LENGTH * envs.num_envs

    return run


def rolling(
    envs: Vector | list[Vector], policy: Act, *, reuse: bool = False, length: int = LENGTH
) -> Callable[[], float]:
    """Rollouts, in new memory or in that of the one before."""
    collector = sw.Collector(envs, policy, seed=0)
    rollout: sw.Rollout | None = None

    def run() -> float:
        nonlocal rollout
        rollout = collector.rollout(length, out=rollout if reuse else None)
        return length * rollout.num_envs

    return run


def without_waiting(envs: Any, policy: Act) -> Callable[[], float]:
    """The limit of the gain: the policy and the envs run without waiting for each other."""
    observation, _ = envs.reset(seed=0)
    n = int(envs.num_envs)
    actions, is_first = np.zeros(n, np.int64), np.zeros(n, np.bool_)

    def run() -> float:
        nonlocal observation
        for _ in range(SHORT_LENGTH):
            envs.send(actions)
            policy(observation, is_first)
            observation, *_ = envs.recv()
        return SHORT_LENGTH * n

    return run


def loop(what: str, make: Callable[[], Vector], count: int) -> list[rounds.Row]:
    """Rollouts against the bare loop."""
    envs = [make() for _ in range(3)]
    num_envs = envs[0].num_envs
    policy = constant(num_envs)
    candidates = {
        "bare loop, nothing kept": stepping(envs[0]),
        "rollout()": rolling(envs[1], policy),
        "rollout(out=)": rolling(envs[2], policy, reuse=True),
    }
    goals = {"rollout()": 0.95, "rollout(out=)": 0.95}
    return compared(f"{what}, {num_envs} envs", candidates, count, goals=goals)


class Hashing:
    """A policy of pure computation: one thread, which releases the GIL.

    Args:
        row_bytes: Bytes that it hashes for each env.
    """

    def __init__(self, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._buffer = bytes(64 * row_bytes)

    def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
        """Action 0 for all."""
        n = len(is_first)
        hashlib.sha256(memoryview(self._buffer)[: n * self._row_bytes]).digest()
        return np.zeros(n, np.int64)


class Network:
    """A policy of the network of Mnih et al. 2015, in PyTorch."""

    def __init__(self) -> None:
        self._torch = torch = importlib.import_module("torch")  # optional
        torch.set_num_threads(1)
        nn = torch.nn
        self._net = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 6)),
        )

    def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
        """Action 0 for all."""
        with self._torch.no_grad():
            self._net(self._torch.from_numpy(observation).float())
        return np.zeros(len(is_first), np.int64)


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds that a call takes: the median of many."""
    taken: list[float] = []
    until = time.perf_counter() + _CALIBRATION_SECONDS
    while time.perf_counter() < until or len(taken) < 3:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def policies(envs: Vector) -> dict[str, Act]:
    """Policies: one that takes as long as a step of all envs, and a network if there is torch."""
    observation, _ = envs.reset(seed=0)
    n = envs.num_envs
    nothing, is_first = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    goal = seconds_of(lambda: envs.step(nothing))
    trial = Hashing(100_000)
    share = goal / seconds_of(lambda: trial(observation, is_first))
    found: dict[str, Act] = {"hashing": Hashing(int(100_000 * share))}
    if importlib.util.find_spec("torch") is not None:
        found["a network"] = Network()
    for name, policy in found.items():
        cost = seconds_of(partial(policy, observation, is_first))
        print(f"{name}: {1000 * cost:.2f} ms, the envs on one core: {1000 * goal:.2f} ms a step")
    return found


def turns(num_envs: int, backend: Literal["native", "python"], count: int) -> list[rounds.Row]:
    """Two vector envs in turns against one that has all the envs."""

    def pong(envs: int, num_workers: int) -> Vector:
        return sw.make_atari("Pong", envs, backend=backend, num_workers=num_workers)

    trial = pong(num_envs, 1)
    costly = policies(trial)
    trial.close()
    found: list[rounds.Row] = []
    for name, policy in costly.items():
        half = num_envs // 2
        one, two = pong(num_envs, 1), pong(num_envs, 2)
        groups = [pong(half, 1), pong(half, 1)]
        limit = pong(num_envs, 1)
        candidates = {
            "plain": rolling(one, policy, reuse=True, length=SHORT_LENGTH),
            "plain, envs on two cores": rolling(two, policy, reuse=True, length=SHORT_LENGTH),
            "in turns": rolling(groups, policy, reuse=True, length=SHORT_LENGTH),
            "limit: both at once": without_waiting(limit, policy),
        }
        title = f"Pong, {num_envs} envs, {backend} backend; {name}"
        goals = {"in turns": 1.6} if name == "hashing" else {}
        found += compared(title, candidates, count, goals=goals, clock="time")
        for envs in (one, two, *groups, limit):
            envs.close()
    return found


class Actor:
    """The network of Stable-Baselines3's MlpPolicy, as a Collector takes it."""

    def __init__(self) -> None:
        self._torch = torch = importlib.import_module("torch")
        nn = torch.nn

        def layers(outputs: int) -> Any:
            first, second, last = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
            return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)

        self._actor, self._critic = layers(2), layers(1)

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        """Actions, their log-probabilities and values."""
        torch = self._torch
        with torch.no_grad():
            seen = torch.from_numpy(observation)
            log_probs = self._actor(seen).log_softmax(1)
            action = torch.multinomial(log_probs.exp(), 1)
            log_prob, value = log_probs.gather(1, action), self._critic(seen)
        extras = {"log_prob": log_prob.squeeze(1).numpy(), "value": value.squeeze(1).numpy()}
        return action.squeeze(1).numpy(), extras

    def value(self, observation: Any) -> np.ndarray:
        """Values of the observations to bootstrap from."""
        with self._torch.no_grad():
            return np.asarray(self._critic(self._torch.from_numpy(observation)).squeeze(1))


def rolling_with_advantages(envs: Vector, policy: Any) -> Callable[[], float]:
    """Rollouts, and their advantages, which the other one computes too."""
    collector = sw.Collector(envs, policy, seed=0)

    def run() -> float:
        rollout = collector.rollout(LENGTH)
        rollout.advantages(0.99, 0.95)
        return LENGTH * rollout.num_envs

    return run


def rolling_in_sb3(num_envs: int) -> Callable[[], float]:
    """The same with Stable-Baselines3, in its usual way."""
    sb3 = importlib.import_module("stable_baselines3")
    make_vec_env = importlib.import_module("stable_baselines3.common.env_util").make_vec_env
    envs = make_vec_env("CartPole-v1", num_envs)
    model = sb3.PPO("MlpPolicy", envs, n_steps=LENGTH, device="cpu")
    _, callback = model._setup_learn(10**9)

    def run() -> float:
        model.collect_rollouts(envs, callback, model.rollout_buffer, LENGTH)
        return LENGTH * num_envs

    return run


def learners(num_envs: int, count: int) -> list[rounds.Row]:
    """CartPole with a small network."""
    if importlib.util.find_spec("torch") is None:
        print("learners: not measured without PyTorch")
        return []
    importlib.import_module("torch").set_num_threads(1)
    candidates: dict[str, Callable[[], float]] = {}
    if importlib.util.find_spec("stable_baselines3") is None:
        print("Stable-Baselines3 is not installed: pip install stable-baselines3")
    else:
        candidates["Stable-Baselines3"] = rolling_in_sb3(num_envs)
    ours = rolling_with_advantages(cartpole(num_envs), Actor())
    candidates["rollout() and advantages()"] = ours
    return compared(f"PPO, CartPole, {num_envs} envs", candidates, count)


def cartpole(num_envs: int) -> Vector:
    """Envs that cost little."""
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs)


def main() -> None:
    """Print the table."""
    parser = rounds.options(__doc__, 9)
    parts = ["loop", "turns", "learners"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8, 32])
    backends = ["native", "python"]
    parser.add_argument("--backends", nargs="+", choices=backends, default=backends)
    options = parser.parse_args()
    found: list[rounds.Row] = []
    if "loop" in options.only:
        for num_envs in options.num_envs:
            found += loop("Pong", partial(sw.make_atari, "Pong", num_envs), options.rounds)
        found += loop("CartPole", partial(cartpole, 8), options.rounds)
    if "turns" in options.only:
        for backend in options.backends:
            found += turns(16, backend, options.rounds)
    if "learners" in options.only:
        found += learners(8, options.rounds)
    packages = rounds.installed("stepwell", "ale-py", "gymnasium", "numpy", "stable-baselines3")
    rounds.report(found, packages, options.json)


if __name__ == "__main__":
    main()
