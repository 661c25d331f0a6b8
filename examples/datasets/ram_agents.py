"""Agents that learned on the emulator's RAM, as integers: they play alike on every machine.

`atari_trained.py` trains them and writes the files in `agents/`. Weights, inputs and sums are
integers, also those of the softmax from which an action is drawn, with random bits that follow
from the Collector's seed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from atari_experts import Ram, RamPolicy

UNIT = 256  # the integer that means 1.0
Sight = tuple[np.ndarray, np.ndarray]
"""The bytes of the RAM that an agent sees, and the pairs of bytes whose difference it sees."""

SIGHTS: dict[str, Sight] = {
    "Pong": (np.array([49, 54, 51, 50]), np.empty((0, 2), int)),  # ball x and y, paddles
    "Breakout": (np.array([99, 101, 72]), np.array([[99, 72]])),  # ball x and y, paddle
    "Boxing": (np.array([32, 34, 33, 35]), np.array([[32, 33], [34, 35]])),  # x and y of both
}
AGENTS = Path(__file__).parent / "agents"
# exp(-n / 16) * 65536, by integers alone; what is less likely than all of them never happens.
EXPONENTIALS = np.array([*accumulate([65536] + [61565] * 176, lambda a, b: a * b >> 16), 0])


def features(seen: Sequence[Ram], sight: Sight) -> np.ndarray:
    """Where things are in the RAM of now, how far apart, and how they moved in two steps."""
    places, pairs = sight
    now, before, earlier = (ram[places] for ram in seen)
    apart = seen[0][pairs[:, 0]] - seen[0][pairs[:, 1]]
    near = np.concatenate([4 * apart, 8 * (now - before), 8 * (before - earlier)])
    return 4 * np.concatenate([now - 128, np.clip(near, -127, 127)])


class Agent:
    """A network of integers: the weights [outputs, inputs], biases and shift of each layer."""

    def __init__(self, sight: Sight, layers: Sequence[tuple[np.ndarray, np.ndarray, int]]) -> None:
        self._sight = sight
        self._layers = layers

    def chances(self, seen: Sequence[Ram]) -> np.ndarray:
        """How likely each action is, as integers of any sum."""
        weights, bias, shift = self._layers[-1]
        hidden = features(seen, self._sight)
        for each, more, down in self._layers[:-1]:
            hidden = np.maximum(each @ hidden + more >> down, 0)
        logits = weights @ hidden + bias >> shift
        gaps = (logits.max() - logits) * 16 // UNIT
        return np.asarray(EXPONENTIALS[np.minimum(gaps, len(EXPONENTIALS) - 1)])


def kept_agents(game: str) -> dict[int, Agent]:
    """The agents of a game, by the steps from which they had learned."""
    with np.load(AGENTS / f"{game.lower()}.npz", allow_pickle=False) as found:
        arrays = {name: found[name].astype(np.int64) for name in found.files}
    kinds = [[arrays[f"{kind}{n}"] for kind in ("weights", "bias", "shift")] for n in range(3)]
    layers = zip(*(zip(*each, strict=True) for each in kinds), strict=True)
    steps, sight = arrays["steps"].tolist(), (arrays["places"], arrays["pairs"])
    return {one: Agent(sight, each) for one, each in zip(steps, layers, strict=True)}


class AgentPolicy(RamPolicy):
    """An env plays the next one of these agents when an episode begins.

    Which one played a row is stored with it, as the extra ``agent``: its place among them.
    """

    def __init__(self, envs: Any, agents: Sequence[Agent]) -> None:
        self._draw: Callable[[], int] = np.random.PCG64(0).random_raw
        self._agents = [partial(self._drawn, agent) for agent in agents]
        super().__init__(envs, self._agents[0])
        count = len(self._rules)
        self._next = [env * len(agents) // count for env in range(count)]
        self._playing = np.zeros(count, np.uint8)

    def begin(self, action_space: Any, rng: np.random.Generator) -> None:
        """Draw by this generator from now on: by its raw bits, the same in every NumPy."""
        self._draw = rng.bit_generator.random_raw

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> Any:
        """The actions [N], and the agent of each env."""
        for env in np.flatnonzero(is_first):
            self._playing[env] = self._next[env] % len(self._agents)
            self._next[env] += 1
            self._rules[env] = self._agents[self._playing[env]]
            self._seen[env] = [self._ram(self._emulators[env])] * 3
        return super().__call__(observation, is_first), {"agent": self._playing.copy()}

    def _drawn(self, agent: Agent, seen: Sequence[Ram], last: int) -> int:
        below = np.cumsum(agent.chances(seen))
        return int(np.searchsorted(below, self._draw() % int(below[-1]), side="right"))
