"""The inner loop: play the frames of a step, and see after each whether the game goes on."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from stepwell.wrappers.nes.console import Console, Image
from stepwell.wrappers.nes.ram_map.game import GameTracker

Pool: TypeAlias = Literal["max", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How frames are played; the names are those of `NesEnv`'s arguments.

    Raises:
        ValueError: A number is out of its range.
    """

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
                check_whole(name, limit, 1, "; None sets no limit")
        if self.pool not in get_args(Pool):
            raise ValueError(f"pool: expected 'max' or 'none', got {self.pool!r}")
        if not is_real(self.sticky) or not 0 <= self.sticky < 1:
            raise ValueError(
                f"sticky: expected a probability from 0 to below 1, got {self.sticky!r}; 0 is off"
            )


class Play:
    """One console being played by rules.

    Args:
        console: What is played.
        tracker: Follows the game in its RAM.
        rules: How frames are played.
        shows_screens: Whether steps make pictures.

    Attributes:
        frames: Played since the episode's first observation.
        truncated: The episode has reached a limit, and the game is not over.
    """

    def __init__(
        self, console: Console, tracker: GameTracker, rules: Rules, *, shows_screens: bool
    ) -> None:
        self._console, self._tracker, self._rules = console, tracker, rules
        self._pools = shows_screens and rules.pool == "max" and rules.frame_skip > 1
        self._shows_screens = shows_screens
        self._held = 0
        self.frames = 0
        self.truncated = False

    def begin(self) -> None:
        """Start an episode where the console stands."""
        self._held = 0
        self.frames = 0
        self.truncated = False
        self._tracker.begin()

    def idle(self) -> bool:
        """Play one frame without a button, before the episode; tell whether the game goes on."""
        self._console.frame(0)
        self._tracker.advance()
        return not self._tracker.terminated

    def step(self, buttons: int, generator: np.random.Generator) -> tuple[Image | None, float]:
        """Play the frames of one step, up to the end of the game or a limit.

        Args:
            buttons: `Button` bits to hold.
            generator: Draws in which frames they stick.

        Returns:
            The last two frames of this step as one picture [H, W, 3] (or the last, as the rules
            say; None where no pictures are made), and the sum of the frames' rewards.
        """
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
        """The screen before the last frame of a step that ended early.

        Any frame may turn out to be the last but one. To make pictures of all of them takes longer
        than to keep the state that each step begins with, and to play the few steps that end early
        once more: by 4 % of a step on stable-retro.
        """
        console = self._console
        console.load(state)
        for buttons in held[:-1]:
            console.frame(buttons)
        before = console.screen()
        console.frame(held[-1])
        return before

    def _frames_left(self) -> int:
        """How many frames this step may play."""
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
        """Where the episode stands, as JSON has it."""
        return {"held": self._held, "frames": self.frames, "truncated": self.truncated}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from where `save` was called."""
        self._held, self.frames = int(state["held"]), int(state["frames"])
        self.truncated = bool(state["truncated"])


def is_whole(value: object) -> bool:
    """Whether it is an integer, Python's or numpy's; True and False are none.

    Example:
        >>> is_whole(3), is_whole(True), is_whole(3.0)
        (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether it is a number, Python's or numpy's; True and False are none.

    Example:
        >>> is_real(0.5), is_real(False), is_real("0.5")
        (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_whole(name: str, value: int, least: int, hint: str = "") -> None:
    """Raise unless the value is a whole number of at least `least`.

    Raises:
        ValueError: It is not.
    """
    if not is_whole(value) or value < least:
        raise ValueError(f"{name}: expected a whole number from {least}, got {value!r}{hint}")
