"""Tiny groups of envs, their policies, and the slow model: one process steps all groups in turns.

The functions and classes are at the top of the file, so that they can be sent to a process by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

import stepwell as sw
from stepwell.buffers import Chunk
from stepwell.collectors.distributed.messages import Call, CallKind
from stepwell.collectors.loop.report import EpisodeReport
from stepwell.wrappers.seeded_resets import ShardSeed

MODES = tuple(AutoresetMode)
WALKS = ("box", "dict", "stack")


class Walk(gym.Env[Any, Any]):
    """A random walk whose episodes have several lengths, all drawn from the seed.

    Args:
        kind: ``"box"``: numbers; ``"dict"``: numbers and a small picture; ``"stack"``: pictures.
        longest: Steps of the longest episode.
    """

    def __init__(self, kind: str = "box", longest: int = 12) -> None:
        self.kind, self.longest = kind, longest
        numbers = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        picture = spaces.Box(0, 255, (4, 4), np.uint8)
        self.observation_space = {
            "box": numbers,
            "dict": spaces.Dict({"numbers": numbers, "picture": picture}),
            "stack": picture,
        }[kind]
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = float(self.np_random.normal())
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.ends_by_time = bool(self.np_random.random() < 0.4)
        self.steps = 0
        return self._seen(), {"lives": 3}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place += int(action) - 1 + 0.1 * float(self.np_random.normal())
        ended = self.steps >= self.length
        flags = ended and not self.ends_by_time, ended and self.ends_by_time
        return self._seen(), self.place, *flags, {"lives": 3 - self.steps % 3}

    def _seen(self) -> Any:
        numbers = np.array([self.place, self.steps, self.length], np.float32)
        picture = np.full((4, 4), int(self.place * 16) % 256, np.uint8)
        picture[0, 0] = self.steps
        return {"box": numbers, "dict": {"numbers": numbers, "picture": picture}, "stack": picture}[
            self.kind
        ]


def walk(kind: str = "box", longest: int = 12) -> gym.Env[Any, Any]:
    """One env; of the kind ``"stack"`` with three stacked frames."""
    env = Walk(kind, longest)
    return FrameStackObservation(env, 3) if kind == "stack" else env


def walks(
    num_envs: int = 2,
    mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    kind: str = "box",
    longest: int = 12,
) -> SyncVectorEnv:
    """The envs of a group."""
    return SyncVectorEnv([partial(walk, kind, longest)] * num_envs, autoreset_mode=mode)


class Weighted:
    """A policy whose actions depend on its weights and its generator."""

    def __init__(self) -> None:
        self.weights = 0.0
        self.loads = 0

    def begin(self, action_space: spaces.Space[Any], rng: np.random.Generator) -> None:
        self.rng = rng

    def load(self, weights: Mapping[str, float]) -> None:
        self.weights = weights["w"]
        self.loads += 1

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        drawn = self.rng.random(len(is_first))
        return np.where(drawn < self.weights, 2, (drawn * 3).astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]

    def value(self, observation: Any) -> np.ndarray:
        return np.full(len(next(iter(leaves(observation)))), self.weights, np.float32)


class Counting:
    """A recurrent policy with weights: its state counts the rows of the episode."""

    def __init__(self) -> None:
        self.weights = 0.0

    def load(self, weights: Mapping[str, float]) -> None:
        self.weights = weights["w"]

    def initial_state(self, num_envs: int) -> dict[str, np.ndarray]:
        return {"rows": np.zeros(num_envs, np.int64)}

    def __call__(self, observation: Any, is_first: np.ndarray, state: Any) -> Any:
        rows = state["rows"]
        action = (rows + int(self.weights * 10)) % 3
        return action, {"rows": rows + 1}, {"doubled": rows * 2}


class Careless:
    """A policy whose actions depend on how many of them this process has made."""

    made = 0

    def __init__(self) -> None:
        Careless.made += 1
        self.number = Careless.made

    def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
        return np.full(len(is_first), self.number % 3, np.int64)


def uniform() -> str:
    """Make the random policy."""
    return "random"


def leaves(tree: Any) -> list[np.ndarray]:
    """The arrays of a nested observation."""
    return (
        [leaf for part in tree.values() for leaf in leaves(part)]
        if isinstance(tree, dict)
        else [tree]
    )


class Asked(NamedTuple):
    """One call of a collector, for all of its groups; see `Call`."""

    kind: CallKind
    amount: int = 0
    seeds: tuple[int, ...] = ()
    version: int = 0

    def of_group(self, number: int, group: int, groups: int) -> Call | None:
        """The group's share of the call with this number; None where it has none."""
        amount, seeds = self.amount, self.seeds[group::groups]
        if self.kind in ("steps", "episodes"):
            amount = amount // groups + (group < amount % groups)
        if not amount and not seeds:
            return None
        return Call(number, self.kind, amount, seeds, self.version)


class OneProcess(NamedTuple):
    """The data of the slow model.

    Args:
        replay: The rows of all groups, env e of group g as stream ``g * N + e``.
        digest: Its digest.
        groups: The rows of each group alone.
        rollouts: For each call of that kind by its number, the rollouts of all groups.
        episodes: For each call by its number, the reports of the episodes of each group.
    """

    replay: sw.SequenceReplayBuffer
    digest: str
    groups: list[sw.SequenceReplayBuffer]
    rollouts: dict[int, list[sw.Rollout]]
    episodes: dict[int, list[list[EpisodeReport]]]


def one_process(
    make_envs: Callable[[], Any],  # makes the envs of a group
    make_policy: Callable[[], Any],  # makes its policy
    seed: int,  # the collector's seed
    groups: int,  # number of groups
    calls: Sequence[Asked],  # the calls, for all groups
    *,
    weights: Mapping[int, Any] | None = None,  # weights by version
    shard: tuple[int, int] | None = None,  # the machine's part
    **options: Any,  # more arguments of the Collectors
) -> OneProcess:
    """Play all calls with plain Collectors, one group after the other."""
    part, count = shard or (1, 1)
    replays: list[sw.SequenceReplayBuffer] = []
    rollouts: dict[int, list[sw.Rollout]] = {}
    episodes: dict[int, list[list[EpisodeReport]]] = {k: [] for k in range(len(calls))}
    for group in range(groups):
        replay = sw.SequenceReplayBuffer()
        policy, now = make_policy(), 0
        given = _Noting(policy) if hasattr(policy, "load") else policy
        ended: list[EpisodeReport] = []
        collector = sw.Collector(
            make_envs(),
            cast("Any", given),
            replay,
            seed=seed,
            shard=((part - 1) * groups + group + 1, count * groups),
            on_episode=ended.append,
            **options,
        )
        _take_any_seeds(collector)
        with collector:
            for number, asked in enumerate(calls):
                call = asked.of_group(number, group, groups)
                ended.clear()
                if call is not None:
                    if call.version != now:
                        policy.load((weights or {})[call.version])
                        given.version = now = call.version
                    rollout = _play(collector, call)
                    if rollout is not None:
                        rollouts.setdefault(number, []).append(rollout)
                episodes[number].append(list(ended))
        replays.append(replay)
    num_envs = int(replays[0].sessions[0]["num_envs"])  # type: ignore[call-overload]
    joined = _joined(replays, num_envs)
    return OneProcess(joined, joined.digest(), replays, rollouts, episodes)


def _play(collector: sw.Collector, call: Call) -> sw.Rollout | None:
    if call.kind == "rollout":
        return collector.rollout(call.amount)
    if call.kind == "seeds":
        collector.collect(seeds=call.seeds)
    elif call.kind == "steps":
        collector.collect(steps=call.amount)
    else:
        collector.collect(episodes=call.amount)
    return None


def _take_any_seeds(collector: sw.Collector) -> None:
    """Let a Collector take seeds of other shards, as all groups share those of a call."""
    seeds = collector._seeds
    count = 1 if seeds.shard is None else seeds.shard[1]

    def own(given: Sequence[int]) -> list[int]:
        return [ShardSeed(seed, count) if count > 1 else seed for seed in given]

    cast("Any", seeds).own = own


class _Noting:
    """A policy that also returns the version of its weights."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.version = 0
        for name in ("begin", "value", "initial_state"):
            if hasattr(policy, name):
                setattr(self, name, getattr(policy, name))

    def __call__(self, observation: Any, is_first: np.ndarray, *state: Any) -> Any:
        result = self.policy(observation, is_first, *state)
        parts = result if isinstance(result, tuple) else (result,)
        extras = parts[2] if len(parts) == 3 else {}
        version = np.full(len(is_first), self.version, np.int64)
        return *parts[: 1 + len(state)], {**extras, "policy_version": version}


def _joined(replays: Sequence[sw.SequenceReplayBuffer], num_envs: int) -> sw.SequenceReplayBuffer:
    """One replay with the rows of all groups."""
    joined = sw.SequenceReplayBuffer()
    bound = [replay for replay in replays if replay.is_bound]
    joined.bind(
        bound[0].spec,
        {**bound[0].sessions[0], "num_envs": len(replays) * num_envs, "groups": len(replays)},
    )
    number = 0
    for group, replay in enumerate(replays):
        for episode in replay.iter_episodes() if replay.is_bound else ():
            chunk = Chunk(
                *(number, group * num_envs + episode.stream, episode.first_row, episode.end),
                *(episode.fields, episode.metadata),
            )
            joined.add([replace(chunk, starts_late=episode.first_row > 0)])
            number += 1
    return joined
