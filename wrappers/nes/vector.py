"""Make vector envs of NES cartridges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from stepwell.wrappers.make_vector_env import vectorize
from stepwell.wrappers.nes.buttons import Actions
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.consoles.backends import NesBackend
from stepwell.wrappers.nes.env import InfoKind, NesEnv, Rom
from stepwell.wrappers.nes.numbers import check_whole
from stepwell.wrappers.nes.picture import SIZE, CropChoice, LifeLoss, Picture, cut, wrapped
from stepwell.wrappers.nes.play import Pool
from stepwell.wrappers.nes.ram_map.game import Game, GameSource
from stepwell.wrappers.nes.starts import Boots, SnapshotSource, StartRule

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

__all__ = ["make_nes"]


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
    frame_stack: int = 4,
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
) -> VectorEnv[Any, Any, Any]:
    """Make a vector env of an NES cartridge, preprocessed as usual.

    Three emulators stand behind one set of settings; which one is never chosen for you, and is
    recorded. The same buttons give the same RAM on each, hence the same rewards and ends; pictures
    differ in palette and edges. Several envs run in worker processes, several in each, also on an
    emulator that holds Python's lock (cynes) or that a process may have only one of (stable-retro).

    | setting | default | meaning |
    |---|---|---|
    | `backend` | "cynes" | "cynes", "nes-py" (Python 3.13 or newer), "stable-retro" |
    | `game` | None | the RAM map, from which rewards, ends and info come; see `Game` |
    | `actions` | "simple" | which buttons; see `NesEnv` |
    | `frame_skip` | 4 | frames per step; the reward is their sum |
    | `pool` | "max" | "max" of a step's last two frames, or "none": the last |
    | `crop` | None | "overscan" (8 pixels each side), a name in the map, or four numbers |
    | `size` | (84, 84) | rows, columns, by area averaging; None keeps the screen's |
    | `grayscale` | True | the luma, else RGB as a last axis |
    | `frame_stack` | 4 | newest frames in an observation; zeros before the first |
    | `noop_max` | 0 | no-op frames after a reset: 0 to this many, uniform |
    | `sticky` | 0.0 | probability, per frame, that the last buttons stay held |
    | `boot` | None | a script from power-on into the game, or several; None is the map's |
    | `start`, `start_rule` | None, "random" | snapshots to begin at instead |
    | `life_loss` | "ignore" | "end": a lost life ends the episode, not the game |
    | `max_frames` | None | truncation, in frames since the first observation |
    | `stuck_frames` | None | truncation, when nothing that the map watches changed for so long |
    | `reward_clip` | None | bound the step's reward to +- this; raw in `info["raw_reward"]` |
    | `ram_obs` | False | observe the RAM, uint8 [2048], instead of the screen |
    | `info` | "vars" | the map's variables; "all": what each reward term paid, too; "none" |
    | `num_workers` | None | processes; 0 steps the envs in this one, None: as many as pay |

    A console has no chance in it: unless no-ops, sticky buttons or several starts are asked for,
    all envs and episodes begin alike, and a seed changes nothing but the policy's draws.

    Args:
        rom: The cartridge: a path or the file's bytes.
        num_envs: Number of envs, N >= 1.
        backend: See the table.
        game: See the table.
        actions: See the table.
        allow_opposites: Allow left and right, or up and down, at once.
        frame_skip: See the table.
        pool: See the table.
        crop: See the table. Four: top, bottom, left, right. Pixels are those of the console's
            240 x 256 picture on every backend.
        size: See the table.
        grayscale: See the table.
        frame_stack: See the table.
        noop_max: See the table.
        sticky: See the table.
        boot: See the table.
        start: See the table.
        start_rule: See the table.
        life_loss: See the table.
        max_frames: See the table.
        stuck_frames: See the table.
        reward_clip: See the table.
        ram_obs: See the table.
        info: See the table.
        render_mode: None or "rgb_array": whole screens, in colour.
        num_workers: See the table.

    Returns:
        A vector env in NEXT_STEP autoreset with observations uint8 [N, frame_stack, rows, columns]
        (RGB: one more axis of 3; RAM: [N, frame_stack, 2048]). `metadata["stepwell"]` tells how it
        was made.

    Raises:
        ValueError: A value makes no sense, or the cartridge cannot be played.
        ImportError: The backend is not installed, or OpenCV cannot be imported.
        FileNotFoundError: There is no such file.

    Example:
        >>> envs = make_nes("game.nes", num_envs=2, game="game.toml")
        >>> observation, info = envs.reset(seed=0)
        >>> observation.shape, observation.dtype, info["lives"].tolist()
        ((2, 4, 84, 84), dtype('uint8'), [3, 3])
        >>> envs.close()
    """
    check_whole("num_envs", num_envs, 1)
    cartridge, known = Cartridge.read(rom), Game.load(game)
    picture = Picture(
        crop=None if crop is None else cut(crop, known),
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
    envs = vectorize([partial(wrapped, bare, picture)] * num_envs, num_workers=num_workers)
    envs.metadata = {**envs.metadata, "stepwell": {**_recipe_of(envs), **picture.recipe()}}
    return envs


def _recipe_of(envs: VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", envs.metadata["stepwell"])
