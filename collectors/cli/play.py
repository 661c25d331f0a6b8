"""`stepwell play`: a person plays an env, and every row is stored in a folder."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .collect import (
    EpisodeFacts,
    InfoFields,
    Resume,
    missing_values,
    opened_store,
    parse_info,
    refuse_folder,
    store_option,
)
from .game_options import EnvName, GivenGameOptions, run_option, with_game_options
from .load_policy import POLICY_HELP, load_policy
from .make_envs import is_cartridge, make_envs
from .options import count_in, parse_metadata, real_number
from .output import Output, Part, plural, print_lines, with_output

_keys_option = partial(typer.Option, rich_help_panel="Keys and window")


@with_game_options
@with_output()
def play(
    env: EnvName,
    *,
    policy: Annotated[
        str | None,
        run_option(
            metavar="NAME", help=f"It plays until you take over with a key (Tab). {POLICY_HELP}"
        ),
    ] = None,
    episodes: Annotated[
        str | None, run_option(metavar="N", help="Quit after N episodes that ended.")
    ] = None,
    seed: Annotated[
        str | None,
        run_option(
            metavar="N",
            help="The seeds of episodes and policy follow from it. Default: a random one.",
        ),
    ] = None,
    speed: Annotated[
        str | None,
        _keys_option(
            metavar="X",
            help="Speed: 1 is real time, 60 frames a second for games; 0.5 is half of it.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        _keys_option(
            metavar="N",
            help="Pixels of the screen for a pixel of the game. Default: some 720 rows.",
        ),
    ] = None,
    keys: Annotated[
        Path | None, _keys_option(metavar="FILE", help="Other keys, from a TOML file.")
    ] = None,
    watch: Annotated[
        bool,
        _keys_option(
            "--watch",
            help="Search the RAM of a game for a number: F2 marks it, then F6 (rose), F7 (fell), "
            "F8 (stayed) keep its addresses. The last are printed as lines of a RAM map.",
        ),
    ] = False,
    print_keys: Annotated[
        bool,
        _keys_option(
            "--print-keys", help="Print such a file with the present keys, and do nothing else."
        ),
    ] = False,
    out: Annotated[Path | None, store_option(metavar="DIR", help="Folder of the store.")] = None,
    resume: Resume = False,
    info: InfoFields = None,
    metadata: EpisodeFacts = None,
    games: GivenGameOptions,
    output: Output,
) -> None:
    """Play an env yourself, with keyboard or gamepad, and store every row.

    stepwell play game.nes --out runs/mine
    stepwell play Pong --out runs/pong --metadata player=ann
    stepwell play Pong --policy sb3:model.zip --out runs/taken-over
    stepwell play CartPole-v1 --speed 0.5 --out runs/pole
    stepwell play Pong --watch --out runs/pong
    stepwell play Pong --print-keys > keys.toml
    stepwell play Pong --keys keys.toml --out runs/pong --resume

    P pauses, R begins anew, Backspace discards the episode, F5 and F9 save and
    load the state, Tab takes over from a policy, Esc quits. The window shows the
    keys of the game. Each row has the field extra/human: who chose its action.
    Exit codes: 0 done, 2 an error that you can correct, 130 Ctrl-C.
    """
    # Imported here: the other commands need no window.
    from ..evaluation.video import single_envs
    from ..person.controls import controls_of, load_pygame
    from ..person.play import play as play_env
    from ..person.play import search_of

    with contextlib.ExitStack() as stack:
        request = games.request(env, 1, 0, is_filmed=True)
        if policy is None and is_cartridge(env):  # every button of the joypad works
            request.options.setdefault("actions", "multibinary")
        most = count_in("--episodes", episodes)
        chosen_seed = count_in("--seed", seed, 0)
        chosen_speed = real_number("--speed", speed)
        chosen_scale = count_in("--scale", scale)
        info_fields = dict(parse_info("--info", text) for text in info or [])
        facts = dict(parse_metadata("--metadata", text) for text in metadata or [])
        load_pygame()
        if print_keys:
            envs = make_envs(request)
            stack.callback(envs.close)
            controls = controls_of(single_envs(envs, "play")[0], keys, watch=watch)
            typer.echo(controls.to_toml(), nl=False)
            return
        if out is None:
            raise ValueError("--out: expected a folder to store the rows in, got none; name one")
        refuse_folder(out, resume)
        agent = None if policy is None else load_policy(policy)
        envs = make_envs(request)
        stack.callback(envs.close)
        (single,) = single_envs(envs, "play")
        controls_of(single, keys, watch=watch)  # before anything is created
        if watch:
            search_of(single)
        defaults = missing_values(info_fields, request)
        replay = stack.enter_context(opened_store(out, resume, None, None))
        report = play_env(
            envs,
            replay,
            policy=agent,
            keys=keys,
            episodes=most,
            seed=chosen_seed,
            speed=1.0 if chosen_speed is None else chosen_speed,
            scale=chosen_scale,
            watch=watch,
            info=defaults,
            metadata=facts,
        )
        first = [Part(plural(report.steps, "step"), style="bold")]
        first.append(Part(f"{report.human_steps:,} by you"))
        first.append(Part(plural(report.episodes, "ended episode")))
        if report.returns:
            first.append(Part(f"return {sum(report.returns) / len(report.returns):,.1f}"))
        if report.discarded:
            first.append(Part(f"{report.discarded} discarded", style="yellow"))
        first.append(Part(f"in {out}", style="bold"))
        second = [
            Part(f"{report.frame_rate:.1f} frames/s"),
            Part(f"jitter {report.jitter_seconds * 1e3:.1f} ms"),
            Part(f"longest {report.worst_seconds * 1e3:.0f} ms"),
            Part(f"{report.late_frames} late"),
        ]
        output.show({**report.to_json(), "env": env, "path": str(out)}, first, second)
        if not output.as_json:
            print_lines(*report.watched)
