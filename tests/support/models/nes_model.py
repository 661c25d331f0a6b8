"""The demonstration played a frame at a time with a bare console: slow, and obviously right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from demo_rom import STATE
from stepwell.wrappers.nes.cartridge import Image
from stepwell.wrappers.nes.emulators import Console
from support.envs.nes_backends import BOOT, peek, play

OVER = (STATE["game_over"], STATE["cleared"])


@dataclass(frozen=True)
class Seen:
    """The expected result of one step."""

    picture: Image
    reward: float
    terminated: bool
    truncated: bool
    frames: int


class SlowGame:
    """The game behind the boot script, its rewards computed from the RAM by the map.

    Args:
        console: One that was just switched on.
        boot: Buttons of each frame up to the game.
        noops: Frames without a button behind that.
    """

    def __init__(
        self, console: Console, boot: Sequence[int] = BOOT, noops: int = 0, pool: str = "max"
    ) -> None:
        self.console = console
        self.pool = pool
        play(console, [*boot, *[0] * noops])
        self.first = console.screen()
        self.frames = 0
        self.still = 0

    def variables(self) -> dict[str, int]:
        """Score, position and lives, in plain arithmetic."""
        of = {name: peek(self.console, name) for name in ("lives", "player_x", "player_y")}
        of["score"] = 10 * peek(self.console, "score_tens") + peek(self.console, "score_ones")
        high = peek(self.console, "world_x_hi")
        of["world_x"] = 256 * high + peek(self.console, "world_x_lo")
        return of

    def step(
        self, held: Iterable[int], *, max_frames: int = 10**9, stuck_frames: int = 10**9
    ) -> Seen:
        """Play these frames, up to the end of the game or a limit."""
        screens, reward, over = [], 0.0, False
        for buttons in held:
            old = self.variables()
            self.console.frame(buttons)
            new = self.variables()
            screens.append(self.console.screen())
            reward += reward_of(old, new)
            self.frames += 1
            watched = ("score", "player_x", "player_y", "world_x")
            moved = any(old[name] != new[name] for name in watched)
            self.still = 0 if moved else self.still + 1
            over = peek(self.console, "state") in OVER
            if over or self.frames == max_frames or self.still >= stuck_frames:
                break
        truncated = not over and (self.frames == max_frames or self.still >= stuck_frames)
        last = screens[-2:] if self.pool == "max" else screens[-1:]
        return Seen(np.max(last, axis=0), reward, over, truncated, len(screens))


def reward_of(old: dict[str, int], new: dict[str, int]) -> float:
    """10 for a point, 0.1 for a pixel of way, -5 for a life."""
    reward = 10.0 * max(new["score"] - old["score"], 0)
    way = (new["world_x"] - old["world_x"] + 32768) % 65536 - 32768
    if 0 < way <= 5:
        reward += 0.1 * way
    return reward + 5.0 * min(new["lives"] - old["lives"], 0)
