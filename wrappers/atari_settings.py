"""What can be chosen about an Atari env, checked once for every backend."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

__all__ = ["AtariSettings", "Backend", "LifeLoss", "Pool"]

Backend = Literal["native", "python"]
Pool = Literal["max", "none"]
LifeLoss = Literal["ignore", "end"]

LARGEST = 2**31 - 2  # the native backend counts frames in signed 32-bit integers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AtariSettings:
    """The choices that `make_atari` offers, by the same names; see there for what they mean.

    Raises:
        ValueError: A value is out of its range.
    """

    game: str
    frame_skip: int
    pool: Pool
    noop_max: int
    fire_reset: bool
    size: tuple[int, int] | None
    grayscale: bool
    frame_stack: int
    sticky: float
    max_frames: int
    clip_rewards: bool
    life_loss: LifeLoss
    full_actions: bool
    mode: int | None
    difficulty: int | None

    def __post_init__(self) -> None:
        """Check every value."""
        _check_whole("frame_skip", self.frame_skip, 1)
        _check_whole("noop_max", self.noop_max, 0)
        _check_whole("frame_stack", self.frame_stack, 1)
        _check_whole("max_frames", self.max_frames, 1)
        _check_choice("pool", self.pool, get_args(Pool))
        _check_choice("life_loss", self.life_loss, get_args(LifeLoss))
        if not 0 <= self.sticky < 1:
            raise ValueError(
                f"sticky: expected a probability from 0 to below 1, got {self.sticky}; 0 is off"
            )
        if self.size is not None:
            _check_size(self.size)

    def recipe(self, backend: Backend) -> dict[str, object]:
        """Everything that identifies the env, as JSON has it, plus the versions that made it."""
        # Loads in some 10 ms, which `import stepwell` need not take.
        from importlib.metadata import version

        return {
            "maker": "make_atari",
            "backend": backend,
            **dataclasses.asdict(self),
            "size": None if self.size is None else list(self.size),
            "stack_padding": "zero",
            "final_observation": "stale" if backend == "native" else "true",
            "versions": {name: version(name) for name in ("gymnasium", "ale-py")},
        }


def _check_whole(name: str, value: int, least: int) -> None:
    if not least <= value <= LARGEST:
        raise ValueError(f"{name}: expected a whole number from {least} to {LARGEST}, got {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected {' or '.join(map(repr, choices))}, got {value!r}")


def _check_size(size: tuple[int, int]) -> None:
    if len(size) != 2 or min(size) < 1:
        raise ValueError(
            f"size: expected (rows, columns), each at least 1, got {size}; None keeps the screen's"
        )
