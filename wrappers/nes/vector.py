"""Make vector envs of NES cartridges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import gymnasium

from ...buffers.base.number_checks import (
    MOST_ENVS,
    check_choice,
    check_size,
    check_whole,
    is_real,
    is_whole,
)
from ..env_results import RecordedWrapper
from ..episodes import EpisodicLife
from ..frames import FrameStack
from ..make_vector_env import vectorize
from ..pixels import Crop, Grayscale, Resize, require_opencv
from ..rewards import ClipReward
from ..seeded_resets import SeededResets
from ..versions import module_versions
from .buttons import Actions
from .cartridge import PICTURE, Cartridge, Image
from .emulators import NesBackend
from .env import InfoKind, NesEnv, Pool, Rom
from .ram_map.game import Game, GameSource
from .snapshot import Boots, SnapshotSource, StartRule

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

LifeLoss: TypeAlias = Literal["ignore", "end"]
CropChoice: TypeAlias = str | tuple[int, int, int, int]

SIZE = (84, 84)
OVERSCAN = (8, 8, 8, 8)  # hidden by most television sets


def make_nes(
    rom: Rom,
    num_envs: int = 1,
    *,
    backend: NesBackend = "cynes",
    game: GameSource | None = None,
    actions: Actions = "simple",
    allow_opposites: bool = False,
    frame_skip: int = 4,
    pool: Pool = "max",
    crop: CropChoice | None = None,
    size: tuple[int, int] | None = SIZE,
    grayscale: bool = True,
    frame_stack: int | None = 4,
    noop_max: int = 0,
    sticky: float = 0.0,
    boot: Boots | None = None,
    start: SnapshotSource | Sequence[SnapshotSource] | None = None,
    start_rule: StartRule = "random",
    life_loss: LifeLoss = "ignore",
    max_frames: int | None = None,
    stuck_frames: int | None = None,
    reward_clip: float | None = None,
    ram_obs: bool = False,
    info: InfoKind = "vars",
    render_mode: Literal["rgb_array"] | None = None,
    num_workers: int | None = None,
    snapshots: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """Make a vector env of an NES cartridge with the usual preprocessing.

    Three emulators share one set of settings; the backend is recorded. The same buttons give the
    same RAM on each, and so the same rewards and ends; pictures differ in palette and edges.
    Several envs run in worker processes, several in each, even if the emulator holds Python's lock
    (cynes) or exists only once per process (stable-retro).

    A console is deterministic: without no-ops, sticky buttons or several starts all envs and
    all episodes begin in the same state, and a seed only affects the draws of the policy.

    Args:
        rom: The cartridge: a path or the file's bytes.
        num_envs: Number of envs, N >= 1.
        backend: "cynes", "nes-py" (Python 3.13 or newer) or "stable-retro".
        game: The RAM map, from which rewards, ends and info come; see `Game`.
        actions: Which buttons; see `NesEnv`.
        allow_opposites: Allow left and right, or up and down, at the same time.
        frame_skip: Frames per step; the reward is their sum.
        pool: "max" of a step's last two frames, or "none": the last.
        crop: "overscan" (8 pixels each side), a name in the map, or four numbers: top, bottom,
            left, right. Pixels are those of the console's 240 x 256 picture on every backend.
        size: Rows, columns, by area averaging; None keeps the screen's.
        grayscale: The luma, else RGB as a last axis.
        frame_stack: Newest frames in an observation, zeros first; None: no such axis.
        noop_max: No-op frames after a reset: 0 to this many, uniform.
        sticky: Probability, per frame, that the last buttons stay held.
        boot: A script from power-on into the game, or several; None is the map's.
        start: Snapshots to begin at instead.
        start_rule: Of several starts: "random", or "cycle".
        life_loss: "end": a lost life ends the episode, not the game.
        max_frames: Truncation, in frames since the first observation.
        stuck_frames: Truncation, in frames without a change of the watched variables.
        reward_clip: Clip the step's reward to +- this; the raw one is ``info["raw_reward"]``.
        ram_obs: Observe the RAM, uint8 [2048], instead of the screen.
        info: "vars" for the map's variables; "all": also the sum of each reward term; "none".
        render_mode: None or "rgb_array": whole screens, in colour.
        num_workers: Worker processes; 0 is this process, None chooses the number.
        snapshots: ``info["snapshot"]`` of resets has the state of console and env as bytes, some
            hundred, from which `stepwell.env_at` continues the episode; not with "nes-py". Frames,
            rewards and ends are the same.

    Returns:
        A vector env in NEXT_STEP autoreset with observations uint8 [N, frame_stack, rows, columns]
        (RGB: one more axis of 3; RAM: [N, frame_stack, 2048]; no axis of a stack with None).
        `metadata["stepwell"]` records how it was made.

    Raises:
        ValueError: A value is invalid, or the cartridge cannot be played.
        ImportError: The backend is not installed, or OpenCV cannot be imported.
        FileNotFoundError: There is no such file.

    Example:
        >>> envs = make_nes("game.nes", num_envs=2, game="game")
        >>> observation, info = envs.reset(seed=0)
        >>> observation.shape, observation.dtype, info["lives"].tolist()
        ((2, 4, 84, 84), dtype('uint8'), [3, 3])
        >>> envs.close()
    """
    check_whole("num_envs", num_envs, 1, most=MOST_ENVS)
    cartridge, known = Cartridge.read(rom), Game.load(game)
    picture = PictureSettings(
        crop=None if crop is None else crop_sides(crop, known),
        size=size,
        grayscale=grayscale,
        frame_stack=frame_stack,
        life_loss=life_loss,
        reward_clip=reward_clip,
    )
    picture.check(known, ram_obs=ram_obs, has_info=info != "none")
    bare = partial(
        NesEnv,
        cartridge,
        backend=backend,
        game=known,
        actions=actions,
        allow_opposites=allow_opposites,
        frame_skip=frame_skip,
        pool=pool,
        noop_max=noop_max,
        sticky=sticky,
        boot=boot,
        start=start,
        start_rule=start_rule,
        max_frames=max_frames,
        stuck_frames=stuck_frames,
        ram_obs=ram_obs,
        info=info,
        render_mode=render_mode,
    )
    make = partial(with_wrappers, bare, picture, snapshots=snapshots)
    envs = vectorize([make] * num_envs, num_workers=num_workers)
    recipe: dict[str, Any] = {**envs.metadata["stepwell"], **picture.recipe()}
    # OpenCV's version counts where it computes pixels, and only there.
    if not ram_obs and (size is not None or grayscale):
        recipe["versions"] = {**recipe["versions"], **module_versions(["cv2"])}
    envs.metadata = {**envs.metadata, "stepwell": recipe}
    return envs


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSettings:
    """The settings of `make_nes` for the wrappers around a `NesEnv`."""

    crop: tuple[int, int, int, int] | None
    size: tuple[int, int] | None
    grayscale: bool
    frame_stack: int | None
    life_loss: LifeLoss
    reward_clip: float | None

    def check(self, game: Game, *, ram_obs: bool, has_info: bool) -> None:
        """Raise for settings that would fail in a worker, or have no effect."""
        check_choice("life_loss", self.life_loss, get_args(LifeLoss))
        if self.life_loss == "end" and (game.life is None or not has_info):
            lacks = "a RAM map with lives" if game.life is None else "info='vars' or 'all'"
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
        if self.frame_stack is not None:
            check_whole("frame_stack", self.frame_stack, 1, hint="; None: no axis")
        if self.size is not None:
            check_size(self.size, "; None keeps the screen's")
        changed = {
            "crop": self.crop is not None,
            "size": self.size not in (SIZE, None),
            "grayscale": not self.grayscale,
        }
        wrong = [name for name, is_changed in changed.items() if is_changed]
        if ram_obs and wrong:
            raise ValueError(
                f"ram_obs: expected no settings of the picture, got {', '.join(wrong)}; "
                "omit them, or observe the screen"
            )
        if not ram_obs and (self.size is not None or self.grayscale):
            require_opencv()

    def recipe(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
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


def with_wrappers(
    bare: Callable[[], NesEnv], picture: PictureSettings, *, snapshots: bool = False
) -> gymnasium.Env[Image, Any]:
    """Make one env with its wrappers, the innermost first."""
    inner = bare()
    is_screen = len(inner.observation_space.shape or ()) > 1
    env = _shown(inner, picture) if is_screen else inner
    if picture.reward_clip is not None:
        env = ClipReward(env, picture.reward_clip)
    if picture.life_loss == "end":
        env = EpisodicLife(env)
    if snapshots:
        env = _NesSnapshots(env)
    if picture.frame_stack is not None:
        env = FrameStack(env, picture.frame_stack, padding="zero")
    return SeededResets(env)


class _NesSnapshots(RecordedWrapper[Image, Any]):
    """Add a snapshot of the game to the info of each reset, `info["snapshot"]`."""

    def __init__(self, env: gymnasium.Env[Image, Any]) -> None:
        super().__init__(env)
        self._inner = cast("NesEnv", env.unwrapped)
        self._inner.pack_snapshot({})  # raises if the backend has none
        self.step = env.step  # type: ignore[method-assign]  # costs nothing

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "snapshot": self._inner.pack_snapshot(info)}


def _shown(inner: NesEnv, picture: PictureSettings) -> gymnasium.Env[Image, Any]:
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
    # The backend's screens omit a part already.
    pairs = zip(crop, inner.screen_edges, strict=True)
    top, bottom, left, right = (max(wanted - hidden, 0) for wanted, hidden in pairs)
    rows, columns = cast("tuple[int, ...]", inner.observation_space.shape)[:2]
    if top + bottom >= rows or left + right >= columns:
        raise ValueError(
            f"crop: expected to keep some of the {rows} rows and {columns} columns that this "
            f"backend shows of the console's {PICTURE[0]} x {PICTURE[1]}, got {crop}; cut off less"
        )
    return Crop(inner, top=top, bottom=bottom, left=left, right=right)


def crop_sides(crop: CropChoice, game: Game) -> tuple[int, int, int, int]:
    """Pixels to cut off: top, bottom, left, right."""
    if isinstance(crop, str):
        named = {"overscan": OVERSCAN, **game.crops}
        if crop not in named:
            raise ValueError(
                f"crop: expected {', '.join(map(repr, named))} or (top, bottom, left, right), got "
                f"{crop!r}; the RAM map can name more"
            )
        return named[crop]
    sides = crop if isinstance(crop, tuple | list) else ()
    if len(sides) != 4 or not all(map(is_whole, sides)) or min(sides) < 0:
        raise ValueError(
            f"crop: expected (top, bottom, left, right) in pixels, each at least 0, got {crop!r}"
        )
    top, bottom, left, right = map(int, sides)
    return top, bottom, left, right
