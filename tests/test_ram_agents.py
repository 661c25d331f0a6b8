"""The kept agents of Atari games play by integers alone, each in its turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ram_agents

GAMES = list(ram_agents.SIGHTS)


def slow_chances(game: str, number: int, seen: list[list[int]]) -> list[int]:
    """What an agent says of three RAMs, in Python's integers, by the words of the file."""
    with np.load(ram_agents.AGENTS / f"{game.lower()}.npz", allow_pickle=False) as found:
        places, pairs = found["places"].tolist(), found["pairs"].tolist()
        layers = set(found.files) - {"places", "pairs", "steps"}
        arrays = {name: found[name][number].tolist() for name in layers}
    now, before, earlier = seen
    values = [4 * (now[at] - 128) for at in places]
    values += [4 * max(-127, min(127, 4 * (now[one] - now[other]))) for one, other in pairs]
    for new, old in ((now, before), (before, earlier)):
        values += [4 * max(-127, min(127, 8 * (new[at] - old[at]))) for at in places]
    for n in range(3):
        rows = zip(arrays[f"weights{n}"], arrays[f"bias{n}"], strict=True)
        sums = [sum(w * v for w, v in zip(row, values, strict=True)) + bias for row, bias in rows]
        values = [one // 2 ** arrays[f"shift{n}"] for one in sums]
        if n < 2:
            values = [max(one, 0) for one in values]
    table = [65536]
    while table[-1]:
        table.append(table[-1] * 61565 // 65536)
    return [table[min((max(values) - one) // 16, len(table) - 1)] for one in values]


@pytest.mark.parametrize("game", GAMES)
def test_an_agent_equals_a_slow_model(game: str) -> None:
    rng = np.random.default_rng(0)
    for number, agent in enumerate(ram_agents.kept_agents(game).values()):
        for spread in (2, 256):  # things that move a little, and that jump
            first = rng.integers(0, 256, 128)
            seen = [(first + rng.integers(0, spread, 128)) % 256 for _ in range(3)]
            expected = slow_chances(game, number, [ram.tolist() for ram in seen])
            assert agent.chances(seen).tolist() == expected


class Known:
    """In place of an agent: its action is certain."""

    def __init__(self, action: int) -> None:
        self.action = action

    def chances(self, seen: Any) -> np.ndarray:
        return np.asarray(np.arange(4) == self.action)


def test_an_env_plays_the_next_agent_when_an_episode_begins() -> None:
    emulator = SimpleNamespace(getRAM=lambda: np.zeros(128, np.uint8))
    env = SimpleNamespace(unwrapped=SimpleNamespace(ale=emulator))
    agents: Any = [Known(3), Known(1), Known(2)]
    policy = ram_agents.AgentPolicy(SimpleNamespace(envs=[env, env]), agents)
    seen = []
    for is_first in ((1, 1), (0, 0), (1, 0), (0, 1), (1, 1), (0, 0)):
        actions, extras = policy(np.zeros(2), np.array(is_first, bool))
        assert [agents[one].action for one in extras["agent"]] == actions.tolist()
        seen.append(extras["agent"].tolist())
    assert seen == [[0, 1], [0, 1], [1, 1], [1, 2], [2, 0], [2, 0]]
