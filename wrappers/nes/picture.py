"""What `make_nes` puts around a `NesEnv`: a small picture, bounded rewards, a stack of frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import gymnasium

from stepwell.wrappers.clip_reward import ClipReward
from stepwell.wrappers.crop import Crop
from stepwell.wrappers.episodic_life import EpisodicLife
from stepwell.wrappers.frame_stack import FrameStack
from stepwell.wrappers.grayscale import Grayscale
from stepwell.wrappers.nes.consoles.console import PICTURE, Image
from stepwell.wrappers.nes.env import NesEnv
from stepwell.wrappers.nes.numbers import check_whole, is_real, is_whole
from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.opencv import require_opencv
from stepwell.wrappers.resize import Resize

__all__ = ["SIZE", "CropChoice", "LifeLoss", "Picture", "cut", "wrapped"]

LifeLoss: TypeAlias = Literal["ignore", "end"]
CropChoice: TypeAlias = str | tuple[int, int, int, int]

SIZE = (84, 84)
OVERSCAN = (8, 8, 8, 8)  # what most television sets hid


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is done to what a `NesEnv` shows; the names are those of `make_nes`."""

    crop: tuple[int, int, int, int] | None
    size: tuple[int, int] | None
    grayscale: bool
    frame_stack: int
    life_loss: LifeLoss
    reward_clip: float | None

    def check(self, game: Game, *, ram_obs: bool, has_info: bool) -> None:
        """Refuse what would fail in a worker, or would do nothing."""
        if self.life_loss not in get_args(LifeLoss):
            raise ValueError(f"life_loss: expected 'ignore' or 'end', got {self.life_loss!r}")
        if self.life_loss == "end" and (game.life is None or not has_info):
            lacks = "a RAM map with a [life] table" if game.life is None else "info='vars' or 'all'"
            raise ValueError(
                f"life_loss='end': expected {lacks}, got none; lives are counted by the map's "
                "life variable and shown in the info"
            )
        if self.reward_clip is not None and not (
            is_real(self.reward_clip) and self.reward_clip > 0
        ):
            raise ValueError(
                f"reward_clip: expected a number above 0, got {self.reward_clip!r}; None clips "
                "nothing"
            )
        check_whole("frame_stack", self.frame_stack, 1, "; 1 stacks nothing")
        if self.size is not None:
            _check_size(self.size)
        if ram_obs:
            self._check_untouched()
        elif self.size is not None or self.grayscale:
            require_opencv()

    def _check_untouched(self) -> None:
        """Where the RAM is observed there is no picture to do anything to."""
        given = {
            "crop": self.crop is not None,
            "size": self.size not in (SIZE, None),
            "grayscale": not self.grayscale,
        }
        wrong = [name for name, is_given in given.items() if is_given]
        if wrong:
            raise ValueError(
                f"ram_obs: expected no wishes about a picture, got {', '.join(wrong)}; "
                "leave them out, or observe the screen"
            )

    def recipe(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "maker": "make_nes",
            "crop": None if self.crop is None else list(self.crop),
            "size": None if self.size is None else list(self.size),
            "grayscale": self.grayscale,
            "frame_stack": self.frame_stack,
            "stack_padding": "zero",
            "life_loss": self.life_loss,
            "reward_clip": self.reward_clip,
        }


def wrapped(bare: Callable[[], NesEnv], picture: Picture) -> gymnasium.Env[Image, Any]:
    """One cartridge under its wrappers, from the console outwards."""
    inner = bare()
    env: gymnasium.Env[Image, Any] = inner
    is_screen = len(inner.observation_space.shape or ()) > 1
    if is_screen:
        env = _shown(inner, picture)
    if picture.reward_clip is not None:
        env = ClipReward(env, picture.reward_clip)
    if picture.life_loss == "end":
        env = EpisodicLife(env)
    return FrameStack(env, picture.frame_stack, padding="zero")


def _shown(inner: NesEnv, picture: Picture) -> gymnasium.Env[Image, Any]:
    env: gymnasium.Env[Image, Any] = inner
    if picture.crop is not None:
        env = _cropped(inner, picture.crop)
    if picture.grayscale:
        env = Grayscale(env)
    shape = cast("tuple[int, ...]", env.observation_space.shape)
    if picture.size is not None and tuple(picture.size) != shape[:2]:
        env = Resize(env, picture.size)
    return env


def _cropped(inner: NesEnv, crop: tuple[int, int, int, int]) -> gymnasium.Env[Image, Any]:
    # What the backend's screens leave out anyway need not be cut off again.
    pairs = zip(crop, inner.screen_edges, strict=True)
    top, bottom, left, right = (max(wanted - hidden, 0) for wanted, hidden in pairs)
    rows, columns = cast("tuple[int, ...]", inner.observation_space.shape)[:2]
    if top + bottom >= rows or left + right >= columns:
        raise ValueError(
            f"crop: expected to keep some of the {rows} rows and {columns} columns that this "
            f"backend shows of the console's {PICTURE[0]} x {PICTURE[1]}, got {crop}; cut off less"
        )
    return Crop(inner, top=top, bottom=bottom, left=left, right=right)


def cut(crop: CropChoice, game: Game) -> tuple[int, int, int, int]:
    """Pixels to cut off: top, bottom, left, right."""
    if isinstance(crop, str):
        named = {"overscan": OVERSCAN, **game.crops}
        if crop not in named:
            raise ValueError(
                f"crop: expected {', '.join(map(repr, named))} or (top, bottom, left, right), got "
                f"{crop!r}; the RAM map's [crop] table can name more"
            )
        return named[crop]
    sides = crop if isinstance(crop, tuple | list) else ()
    if len(sides) != 4 or not all(map(is_whole, sides)) or min(sides) < 0:
        raise ValueError(
            f"crop: expected (top, bottom, left, right) in pixels, each at least 0, got {crop!r}"
        )
    rows, columns = PICTURE[0] - sides[0] - sides[1], PICTURE[1] - sides[2] - sides[3]
    if rows < 1 or columns < 1:
        raise ValueError(
            f"crop: expected to keep some of {PICTURE[0]} rows and {PICTURE[1]} columns, got "
            f"{crop!r}; cut off less"
        )
    top, bottom, left, right = map(int, sides)
    return top, bottom, left, right


def _check_size(size: tuple[int, int]) -> None:
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if not is_pair or not all(map(is_whole, size)) or min(size) < 1:
        raise ValueError(
            f"size: expected (rows, columns), each at least 1, got {size!r}; "
            "None keeps the screen's"
        )
