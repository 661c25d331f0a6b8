"""`NesEnv` on the demonstration, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepwell.wrappers.nes.buttons import text_of
from stepwell.wrappers.nes.cartridge import Image
from stepwell.wrappers.nes.emulators import NesBackend
from stepwell.wrappers.nes.env import NesEnv
from support.envs.nes_backends import ANY, DOWN, LEFT, NOOP, RIGHT, SELECT, UP, A, random_frames

BUTTONS = (NOOP, RIGHT, RIGHT | A, RIGHT | UP, RIGHT | DOWN, LEFT, UP, DOWN, SELECT)
ACTIONS = [text_of(buttons) for buttons in BUTTONS]
NOTHING, LOSE = BUTTONS.index(NOOP), BUTTONS.index(SELECT)


@contextmanager
def env_of(demo: tuple[Path, Path], backend: NesBackend = ANY, **settings: Any) -> Iterator[NesEnv]:
    """The demonstration, with actions that can do everything in it."""
    rom, game = demo
    arguments: dict[str, Any] = {"game": game, "actions": ACTIONS, **settings}
    env = NesEnv(rom, backend=backend, **arguments)
    try:
        yield env
    finally:
        env.close()


Step = tuple[bytes, float, bool, bool, dict[str, Any]]


def episode(env: NesEnv, actions: Sequence[int], **reset: Any) -> list[Step]:
    """Return the results of an episode, up to its end or that of the actions."""
    observation, info = env.reset(**reset)
    seen: list[Step] = [(observation.tobytes(), 0.0, False, False, info)]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append((observation.tobytes(), reward, terminated, truncated, info))
        if terminated or truncated:
            break
    return seen


def random_actions(count: int, seed: int) -> list[int]:
    return [BUTTONS.index(buttons) for buttons in random_frames(count, seed)]


def ram_of(env: NesEnv) -> Image:
    return env.ram()
