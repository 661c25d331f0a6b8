"""The options of `stepwell collect`, by what they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stepwell.collectors.cli.collect import DEFAULT_NUM_ENVS
from stepwell.collectors.cli.env_options import Backend

_RUN, _STORE = "What to run", "Where to keep it"
_GAMES, _ATARI, _NES = "Atari and NES games", "Atari games only", "NES cartridges only"

EnvName = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="An Atari game (Pong, ALE/Pong-v5), a file with an NES cartridge (game.nes), an id of "
        "gymnasium's (CartPole-v1, module:Id-v0), or a function that makes an env "
        "(module:callable).",
    ),
]

# What to run.
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Env steps to add, over all envs: 100_000, 1e5 or 100k.",
        rich_help_panel=_RUN,
    ),
]
Episodes = Annotated[
    str | None,
    typer.Option(metavar="N", help="Or whole episodes to add.", rich_help_panel=_RUN),
]
NumEnvs = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help=f"Envs side by side ({DEFAULT_NUM_ENVS}; with --resume as many as before).",
        rich_help_panel=_RUN,
    ),
]
PolicyName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="'random' or module:callable, also from the current folder. It is called as "
        "policy(observation, is_first) with arrays of N (and its state, if it has a method "
        "initial_state); a class is made first.",
        rich_help_panel=_RUN,
    ),
]
Seed = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Same seed and number of envs, same data. Left out: the store's, or a new one.",
        rich_help_panel=_RUN,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Threads (Atari, native) or processes; 0 steps the envs in this one.",
        rich_help_panel=_RUN,
    ),
]

# Where to keep it.
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of the store.", rich_help_panel=_STORE)
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        metavar="",
        help="Add to the store if there is one, with new episode ids and seeds.",
        rich_help_panel=_STORE,
    ),
]
Info = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Keep this field of info too, such as lives; speed=nan says what stands for "
        "'not there'. May be repeated.",
        rich_help_panel=_STORE,
    ),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Note this about every episode, to sample by: task=door. May be repeated.",
        rich_help_panel=_STORE,
    ),
]
Capacity = Annotated[
    str | None,
    typer.Option(metavar="N", help="Steps to keep at most; the oldest go.", rich_help_panel=_STORE),
]
CapacityBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Disk to take at most: 500MB, 2GiB.", rich_help_panel=_STORE),
]

# Atari and NES games.
BackendName = Annotated[
    Backend | None,
    typer.Option(
        metavar="NAME",
        help="Atari: native is fastest, python gives true last frames, lives and modes (native "
        "unless a knob needs python). NES: cynes, nes-py or stable-retro (cynes); 'stepwell envs "
        "nes' tells which are installed.",
        rich_help_panel=_GAMES,
    ),
]
FrameSkip = Annotated[
    str | None, typer.Option(metavar="N", help="Frames a step (4).", rich_help_panel=_GAMES)
]
FrameStack = Annotated[
    str | None, typer.Option(metavar="N", help="Frames an observation (4).", rich_help_panel=_GAMES)
]
Sticky = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Probability of repeating the last action (Atari 0.25, NES 0).",
        rich_help_panel=_GAMES,
    ),
]
NoopMax = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="No-op frames after a reset, at most (Atari 30, NES 0).",
        rich_help_panel=_GAMES,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="HxW", help="Rows x columns, or 'screen' (84x84).", rich_help_panel=_GAMES
    ),
]
Rgb = Annotated[
    bool | None,
    typer.Option(
        "--rgb", metavar="", help="Colours instead of gray levels.", rich_help_panel=_GAMES
    ),
]
Pool = Annotated[
    Literal["max", "none"] | None,
    typer.Option(help="Of a step's last two frames (max).", rich_help_panel=_GAMES),
]
MaxFrames = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Frames after which an episode is truncated (Atari 108k, NES never).",
        rich_help_panel=_GAMES,
    ),
]
LifeLoss = Annotated[
    Literal["ignore", "end"] | None,
    typer.Option(help="'end': a lost life ends the episode (ignore).", rich_help_panel=_GAMES),
]

# Atari games only.
FireReset = Annotated[
    bool | None,
    typer.Option(
        "--fire-reset", metavar="", help="Press FIRE after a reset.", rich_help_panel=_ATARI
    ),
]
ClipRewards = Annotated[
    bool | None,
    typer.Option(
        "--clip-rewards",
        metavar="",
        help="Keep the sign alone; better clip in training.",
        rich_help_panel=_ATARI,
    ),
]
FullActions = Annotated[
    bool | None,
    typer.Option("--full-actions", metavar="", help="All 18 actions.", rich_help_panel=_ATARI),
]
Mode = Annotated[
    int | None, typer.Option(metavar="N", help="The game's mode.", rich_help_panel=_ATARI)
]
Difficulty = Annotated[
    int | None, typer.Option(metavar="N", help="The game's difficulty.", rich_help_panel=_ATARI)
]

# NES cartridges only.
Game = Annotated[
    str | None,
    typer.Option(
        metavar="MAP",
        help="What its memory means: rewards, ends, lives. A .toml file, a folder with "
        "stable-retro's data.json and scenario.json, or retro:Name-Nes-v0.",
        rich_help_panel=_NES,
    ),
]
Actions = Annotated[
    str | None,
    typer.Option(
        metavar="SET",
        help="right_only, simple, complex, all, multibinary, game (the map's), or a list such as "
        "NOOP,RIGHT,RIGHT+A (simple).",
        rich_help_panel=_NES,
    ),
]
AllowOpposites = Annotated[
    bool | None,
    typer.Option(
        "--allow-opposites",
        metavar="",
        help="Let actions press LEFT with RIGHT, UP with DOWN.",
        rich_help_panel=_NES,
    ),
]
Boot = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SCRIPT",
        help="Buttons from power-on to the first observation: 'NOOP 20, START 3' (the map's). May "
        "be repeated: several starts.",
        rich_help_panel=_NES,
    ),
]
Start = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE", help="Or a saved snapshot. May be repeated.", rich_help_panel=_NES
    ),
]
StartRule = Annotated[
    Literal["random", "cycle"] | None,
    typer.Option(help="Which of several starts is next (random).", rich_help_panel=_NES),
]
Crop = Annotated[
    str | None,
    typer.Option(
        metavar="AREA",
        help="What to cut off: overscan, a name of the map's, or pixels top,bottom,left,right.",
        rich_help_panel=_NES,
    ),
]
StuckFrames = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Frames without progress after which an episode is truncated.",
        rich_help_panel=_NES,
    ),
]
RewardClip = Annotated[
    float | None,
    typer.Option(metavar="X", help="Keep each reward within -X to X.", rich_help_panel=_NES),
]
Ram = Annotated[
    bool | None,
    typer.Option(
        "--ram", metavar="", help="Observe the 2048 bytes of memory.", rich_help_panel=_NES
    ),
]
