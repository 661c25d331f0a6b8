"""Options of games, and of episodes that are played again, of every command that makes envs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .envs import catalogue
from .make_envs import (
    OTHER_NAMES,
    Backend,
    EnvRequest,
    id_or_factory,
    parse_actions,
    parse_crop,
    parse_size,
)
from .options import Row, count_in, parse_ids, real_number, taken, with_options

run_option = partial(typer.Option, rich_help_panel="What to run")
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
    run_option(
        metavar="N",
        help="Worker threads (Atari, native backend) or processes. 0: step the envs in the "
        "command's own process.",
    ),
]


def _from_zero(option: str, text: str) -> int | None:
    return count_in(option, text, 0)


def _stack(option: str, text: str) -> int | None:
    return None if text == "none" else count_in(option, text)


def _one_or_list(_: str, texts: list[str]) -> str | list[str]:
    return texts[0] if len(texts) == 1 else list(texts)


GAME_OPTIONS: Mapping[str, Mapping[str, Row]] = {
    _GAMES: {
        "backend": Row(
            "NAME",
            "Atari: native, python (true last frames, lives, modes) or auto (python where it "
            "can be). Default: auto. NES: cynes, nes-py or stable-retro. "
            "Default: cynes; 'stepwell envs nes' shows which are installed.",
            of=Backend,
        ),
        "frame_skip": Row("N", "Frames per step. Default: 4.", count_in),
        "frame_stack": Row(
            "N",
            "Frames per observation; 'none' for one frame without an axis of frames. Default: 4.",
            _stack,
        ),
        "sticky": Row(
            "P",
            "Probability of repeating the last action. Default: Atari 0.25, NES 0.",
            real_number,
        ),
        "noop_max": Row(
            "N", "Play up to N no-op frames after a reset. Default: Atari 30, NES 0.", _from_zero
        ),
        "size": Row(
            "HxW", "Rows x columns of the observation, or 'screen'. Default: 84x84.", parse_size
        ),
        "rgb": Row(None, "Observe colours, not gray levels.", lambda _, flag: not flag, of=bool),
        "pool": Row(
            None,
            "Observe the maximum of a step's last two frames, or the last frame. Default: max.",
            of=Literal["max", "none"],
        ),
        "max_frames": Row(
            "N", "Truncate an episode after N frames. Default: Atari 108k, NES never.", count_in
        ),
        "life_loss": Row(
            None,
            "'end': the loss of a life ends the episode. Default: ignore.",
            of=Literal["ignore", "end"],
        ),
        "snapshots": Row(
            None, "Store the emulator's state with each episode, for stepwell.env_at.", of=bool
        ),
    },
    _ATARI: {
        "fire_reset": Row(None, "Press FIRE after a reset.", of=bool),
        "clip_rewards": Row(
            None, "Store only the sign of a reward. It is better to clip in training.", of=bool
        ),
        "full_actions": Row(None, "Use all 18 actions.", of=bool),
        "mode": Row("N", "The game's mode.", _from_zero),
        "difficulty": Row("N", "The game's difficulty.", _from_zero),
    },
    _NES: {
        "game": Row(
            "MAP",
            "Where rewards, ends and lives are in the console's memory: a folder with "
            "data.json and scenario.json, as stable-retro has them, or retro:Name-Nes-v0.",
        ),
        "actions": Row(
            "SET",
            "right_only, simple, complex, all, multibinary, game (the map's), or a list such "
            "as NOOP,RIGHT,RIGHT+A. Default: simple.",
            lambda _, text: parse_actions(text),
        ),
        "allow_opposites": Row(
            None, "Let actions press LEFT with RIGHT, or UP with DOWN.", of=bool
        ),
        "boot": Row(
            "SCRIPT",
            "Buttons from power-on to the first observation: 'NOOP 20, START 3'. Default: the "
            "map's. Repeat it for several starts.",
            _one_or_list,
            of=list[str],
        ),
        "start": Row(
            "FILE",
            "Or: a saved state to start from. Repeat it for several starts.",
            _one_or_list,
            of=list[str],
        ),
        "start_rule": Row(
            None,
            "How to choose among several starts. Default: random.",
            of=Literal["random", "cycle"],
        ),
        "crop": Row(
            "AREA",
            "The borders to cut off: overscan, a name from the map, or pixels as "
            "top,bottom,left,right.",
            parse_crop,
        ),
        "stuck_frames": Row("N", "Truncate an episode after N frames without progress.", count_in),
        "reward_clip": Row("X", "Clip each reward to -X .. X.", real_number),
        "ram": Row(
            None, "Observe the 2048 bytes of the console's memory, not the screen.", of=bool
        ),
    },
}


@dataclass(frozen=True, slots=True)
class GivenGameOptions:
    """The values of options of games, as they were given; None where one was not."""

    values: dict[str, Any]

    def request(
        self, env: str, num_envs: int, num_workers: int | None = None, *, is_filmed: bool = False
    ) -> EnvRequest:
        """Envs with these settings; those that were not given are left out."""
        options = taken(GAME_OPTIONS, self.values)
        backend: Backend | None = options.pop("backend", None)
        options = {OTHER_NAMES.get(name, name): value for name, value in options.items()}
        return EnvRequest(env, num_envs, backend, num_workers, options, is_filmed)


with_game_options = with_options("games", GAME_OPTIONS, GivenGameOptions)

PLAYED_IDS: Mapping[str, Row] = {"episodes": Row("IDS", "Only these, such as 3,10-20.", parse_ids)}
AGAIN: Mapping[str, Row] = {
    "lanes": Row(
        "N", "Episodes to play at a time, each in a process. Default: one for each core.", count_in
    ),
    "env": Row(
        "MODULE:NAME",
        "A function that makes the env, or an env id, where the store does not say how.",
        lambda option, text: id_or_factory(text, option),
    ),
    "rom": Row("FILE", "The cartridge of an NES game.", of=Path),
}


def with_playing(
    rows: Mapping[str, Row], name: str = "again"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these arguments of the functions that play episodes again, in ``name``."""
    panels = {"Playing episodes again": rows}
    return with_options(name, panels, partial(taken, panels))
