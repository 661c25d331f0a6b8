"""Options of games, which every command that makes envs has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from .envs import catalogue
from .make_envs import (
    Backend,
    EnvOptions,
    parse_actions,
    parse_crop,
    parse_size,
)
from .options import count_in, real_number, with_options

RUN = "What to run"
"""Panel of options."""
_GAMES, _ATARI, _NES = "Atari and NES games", "Atari games only", "NES cartridges only"


def _env_names() -> list[str]:
    found = catalogue()
    return [*(name[len("ALE/") :].rpartition("-v")[0] for name in found.atari), *found.ready]


EnvName = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="An Atari game (Pong, ALE/Pong-v5), the file of an NES cartridge (game.nes), an "
        "id of Gymnasium's (CartPole-v1, module:Id-v0), or a function that makes an env "
        "(module:callable).",
        autocompletion=_env_names,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Worker threads (Atari, native backend) or processes. 0: step the envs in the "
        "command's own process.",
        rich_help_panel=RUN,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGameOptions:
    """The values of options of games, as they were given; None where one was not."""

    backend: Annotated[
        Backend | None,
        typer.Option(
            metavar="NAME",
            help="Atari: native, python (true last frames, lives, modes) or auto (python where it "
            "can be). Default: auto. NES: cynes, nes-py or stable-retro. "
            "Default: cynes; 'stepwell envs nes' shows which are installed.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    frame_skip: Annotated[
        str | None,
        typer.Option(metavar="N", help="Frames per step. Default: 4.", rich_help_panel=_GAMES),
    ] = None
    frame_stack: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Frames per observation; 'none' for one frame without an axis of frames. "
            "Default: 4.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    sticky: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Probability of repeating the last action. Default: Atari 0.25, NES 0.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    noop_max: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Play up to N no-op frames after a reset. Default: Atari 30, NES 0.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    size: Annotated[
        str | None,
        typer.Option(
            metavar="HxW",
            help="Rows x columns of the observation, or 'screen'. Default: 84x84.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    rgb: Annotated[
        bool | None,
        typer.Option("--rgb", help="Observe colours, not gray levels.", rich_help_panel=_GAMES),
    ] = None
    pool: Annotated[
        Literal["max", "none"] | None,
        typer.Option(
            help="Observe the maximum of a step's last two frames, or the last frame. Default: "
            "max.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    max_frames: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Truncate an episode after N frames. Default: Atari 108k, NES never.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    life_loss: Annotated[
        Literal["ignore", "end"] | None,
        typer.Option(
            help="'end': the loss of a life ends the episode. Default: ignore.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    snapshots: Annotated[
        bool | None,
        typer.Option(
            "--snapshots",
            help="Store the emulator's state with each episode, for stepwell.env_at.",
            rich_help_panel=_GAMES,
        ),
    ] = None
    fire_reset: Annotated[
        bool | None,
        typer.Option("--fire-reset", help="Press FIRE after a reset.", rich_help_panel=_ATARI),
    ] = None
    clip_rewards: Annotated[
        bool | None,
        typer.Option(
            "--clip-rewards",
            help="Store only the sign of a reward. It is better to clip in training.",
            rich_help_panel=_ATARI,
        ),
    ] = None
    full_actions: Annotated[
        bool | None,
        typer.Option("--full-actions", help="Use all 18 actions.", rich_help_panel=_ATARI),
    ] = None
    mode: Annotated[
        str | None, typer.Option(metavar="N", help="The game's mode.", rich_help_panel=_ATARI)
    ] = None
    difficulty: Annotated[
        str | None,
        typer.Option(metavar="N", help="The game's difficulty.", rich_help_panel=_ATARI),
    ] = None
    game: Annotated[
        str | None,
        typer.Option(
            metavar="MAP",
            help="Where rewards, ends and lives are in the console's memory: a folder with "
            "data.json and scenario.json, as stable-retro has them, or retro:Name-Nes-v0.",
            rich_help_panel=_NES,
        ),
    ] = None
    actions: Annotated[
        str | None,
        typer.Option(
            metavar="SET",
            help="right_only, simple, complex, all, multibinary, game (the map's), or a list such "
            "as NOOP,RIGHT,RIGHT+A. Default: simple.",
            rich_help_panel=_NES,
        ),
    ] = None
    allow_opposites: Annotated[
        bool | None,
        typer.Option(
            "--allow-opposites",
            help="Let actions press LEFT with RIGHT, or UP with DOWN.",
            rich_help_panel=_NES,
        ),
    ] = None
    boot: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCRIPT",
            help="Buttons from power-on to the first observation: 'NOOP 20, START 3'. Default: the "
            "map's. Repeat it for several starts.",
            rich_help_panel=_NES,
        ),
    ] = None
    start: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Or: a saved state to start from. Repeat it for several starts.",
            rich_help_panel=_NES,
        ),
    ] = None
    start_rule: Annotated[
        Literal["random", "cycle"] | None,
        typer.Option(
            help="How to choose among several starts. Default: random.", rich_help_panel=_NES
        ),
    ] = None
    crop: Annotated[
        str | None,
        typer.Option(
            metavar="AREA",
            help="The borders to cut off: overscan, a name from the map, or pixels as "
            "top,bottom,left,right.",
            rich_help_panel=_NES,
        ),
    ] = None
    stuck_frames: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Truncate an episode after N frames without progress.",
            rich_help_panel=_NES,
        ),
    ] = None
    reward_clip: Annotated[
        str | None,
        typer.Option(metavar="X", help="Clip each reward to -X .. X.", rich_help_panel=_NES),
    ] = None
    ram: Annotated[
        bool | None,
        typer.Option(
            "--ram",
            help="Observe the 2048 bytes of the console's memory, not the screen.",
            rich_help_panel=_NES,
        ),
    ] = None

    def parsed(self) -> EnvOptions:
        """The settings of games; those that were not given are left out."""
        values: dict[str, object] = {
            "frame_skip": count_in("--frame-skip", self.frame_skip),
            "sticky": real_number("--sticky", self.sticky),
            "noop_max": count_in("--noop-max", self.noop_max, 0),
            "grayscale": None if self.rgb is None else not self.rgb,
            "pool": self.pool,
            "max_frames": count_in("--max-frames", self.max_frames),
            "life_loss": self.life_loss,
            "snapshots": self.snapshots,
            "fire_reset": self.fire_reset,
            "clip_rewards": self.clip_rewards,
            "full_actions": self.full_actions,
            "mode": count_in("--mode", self.mode, 0),
            "difficulty": count_in("--difficulty", self.difficulty, 0),
            "game": self.game,
            "actions": None if self.actions is None else parse_actions(self.actions),
            "allow_opposites": self.allow_opposites,
            "boot": _one_or_list(self.boot),
            "start": _one_or_list(self.start),
            "start_rule": self.start_rule,
            "crop": None if self.crop is None else parse_crop("--crop", self.crop),
            "stuck_frames": count_in("--stuck-frames", self.stuck_frames),
            "reward_clip": real_number("--reward-clip", self.reward_clip),
            "ram_obs": self.ram,
        }
        found = {name: value for name, value in values.items() if value is not None}
        if self.size is not None:  # None is one of its values, and of the next one's
            found["size"] = parse_size("--size", self.size)
        if self.frame_stack is not None:
            is_none = self.frame_stack == "none"
            found["frame_stack"] = None if is_none else count_in("--frame-stack", self.frame_stack)
        return found


with_game_options = with_options("games", GivenGameOptions)


def _one_or_list(texts: Sequence[str] | None) -> str | list[str] | None:
    """Return None for no text, the text itself for one, and a list for several."""
    if not texts:
        return None
    return texts[0] if len(texts) == 1 else list(texts)
