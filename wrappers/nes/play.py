"""The inner loop: play the frames of a step, and stop when the game ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from ...buffers.base.number_checks import check_sticky, check_whole
from .console import Console, Image
from .ram_map.game import GameTracker

Pool: TypeAlias = Literal["max", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """The arguments of `NesEnv` that determine how frames are played."""

    frame_skip: int
    pool: Pool
    sticky: float
    noop_max: int
    max_frames: int | None
    stuck_frames: int | None

    def __post_init__(self) -> None:
        """Check every value."""
        check_whole("frame_skip", self.frame_skip, 1)
        check_whole("noop_max", self.noop_max, 0)
        for name, limit in (("max_frames", self.max_frames), ("stuck_frames", self.stuck_frames)):
            if limit is not None:
                check_whole(name, limit, 1, hint="; None sets no limit")
        if self.pool not in get_args(Pool):
            raise ValueError(f"pool: expected 'max' or 'none', got {self.pool!r}")
        check_sticky(self.sticky)


class FramePlayer:
    """Plays frames on a console and counts them."""

    on_frame: Callable[[], None] | None = None  # called after each frame of a step

    def __init__(
        self, console: Console, tracker: GameTracker, rules: PlaySettings, *, shows_screens: bool
    ) -> None:
        self._console, self._tracker, self._rules = console, tracker, rules
        self._pools = shows_screens and rules.pool == "max" and rules.frame_skip > 1
        self._shows_screens = shows_screens
        self._held = 0
        self.frames = 0  # since the episode's first observation
        self.truncated = False  # the episode has reached a limit, and the game is not over

    def begin(self) -> None:
        """Start an episode at the current state of the console."""
        self._held = 0
        self.frames = 0
        self.truncated = False
        self._tracker.begin()

    def idle(self) -> bool:
        """Play one frame without buttons before the episode; return False if the game ended."""
        self._console.frame(0)
        self._tracker.advance()
        return not self._tracker.terminated

    def step(self, buttons: int, generator: np.random.Generator) -> tuple[Image | None, float]:
        """Play the frames of one step, up to the end of the game or a limit."""
        # Returns the pooled or last screen [H, W, 3], or None without screens, and the sum of the
        # rewards. The generator draws the frames in which the previous buttons stay held.
        console, tracker, sticky = self._console, self._tracker, self._rules.sticky
        tracker.begin_step()
        reward, most = 0.0, self._frames_left()
        held: list[int] = []
        state = console.save() if self._pools and most > 2 else None
        before: Image | None = None
        while True:
            if not sticky or generator.random() >= sticky:
                self._held = buttons
            console.frame(self._held)
            held.append(self._held)
            reward += tracker.advance()
            if self.on_frame is not None:
                self.on_frame()
            if len(held) == most or tracker.terminated or self._is_stuck():
                break
            if self._pools and len(held) == most - 1:
                before = console.screen()
        if self._pools and 1 < len(held) < most:
            before = self._last_but_one(state, held)
        self.frames += len(held)
        self.truncated = not tracker.terminated and (self._frames_left() < 1 or self._is_stuck())
        return self._picture(before), reward

    def _last_but_one(self, state: object, held: Sequence[int]) -> Image:
        """Return the screen before the last frame of a step that ended early."""
        # Any frame can be the second to last. Reading the screen of each of them is slower (by 4 %
        # of a step on stable-retro) than saving the state at the start of each step and replaying
        # the few steps that end early.
        console = self._console
        console.load(state)
        for buttons in held[:-1]:
            console.frame(buttons)
        before = console.screen()
        console.frame(held[-1])
        return before

    def _frames_left(self) -> int:
        """Return the number of frames that this step may play."""
        skip, limit = self._rules.frame_skip, self._rules.max_frames
        return skip if limit is None else min(skip, limit - self.frames)

    def _is_stuck(self) -> bool:
        limit = self._rules.stuck_frames
        return limit is not None and self._tracker.still_frames >= limit

    def _picture(self, before: Image | None) -> Image | None:
        if not self._shows_screens:
            return None
        now = self._console.screen()
        return now if before is None else np.maximum(now, before, out=now)

    def save(self) -> dict[str, Any]:
        """Return the state of the episode as JSON data."""
        return {"held": self._held, "frames": self.frames, "truncated": self.truncated}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that `save` returned."""
        self._held, self.frames = int(state["held"]), int(state["frames"])
        self.truncated = bool(state["truncated"])
