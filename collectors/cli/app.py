"""The command `stepwell`."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stepwell import __version__
from stepwell.collectors.cli import collect_options as option
from stepwell.collectors.cli.collect import CollectJob, collect_into
from stepwell.collectors.cli.convert import add_convert_command
from stepwell.collectors.cli.copy_commands import add_copy_commands
from stepwell.collectors.cli.env_options import EnvOptions
from stepwell.collectors.cli.envs import show_envs
from stepwell.collectors.cli.errors import BAD_INPUT, reported, show_error
from stepwell.collectors.cli.exchange_commands import add_exchange_commands
from stepwell.collectors.cli.health import add_health_commands
from stepwell.collectors.cli.info import show_store
from stepwell.collectors.cli.make import EnvRequest
from stepwell.collectors.cli.nes import action_set, crop_area, one_or_several
from stepwell.collectors.cli.numbers import info_field, number_of_bytes, screen_size, whole_number
from stepwell.collectors.cli.options import Debug, Json, Quiet
from stepwell.collectors.cli.progress import Goal
from stepwell.collectors.cli.selection import metadata_condition

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows the program's name; None takes it from the process.

    Returns:
        The exit code: 0, 2 for something that the user can mend, 130 for Ctrl-C.
    """
    _print_anything()
    try:
        code = app(
            args=None if arguments is None else list(arguments),
            prog_name="stepwell",
            standalone_mode=False,
        )
    except Exception as error:
        # Arguments that cannot be read: typer's errors have no public base class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        text = _one_line(message())
        show_error(f"{text}{'' if text.endswith(('.', '?')) else '.'} See: {_help_of(error)}")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


_IN_ASCII = {
    "±": "+/-",
    "…": "...",
    "█": "#",
    **dict.fromkeys("▉▊▋▌", "#"),
    **dict.fromkeys("▍▎▏", "."),
}


def _print_anything() -> None:
    """Let standard output and error take every character, whatever their encoding is.

    Where it lacks one there is another in its place; undecodable bytes of file names are written
    as they are.
    """
    codecs.register_error("stepwell", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="stepwell")


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """Something in place of characters that cannot be encoded; see `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":  # how Python keeps a byte of a file name
        return bytes([ord(character) - 0xDC00]), error.start + 1
    escaped = character.encode("ascii", "backslashreplace").decode()
    return _IN_ASCII.get(character, escaped), error.start + 1


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{getattr(context, 'command_path', 'stepwell')} --help"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepwell {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", help="Show the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Gather experience from Gymnasium environments, and keep it on disk.

    stepwell envs pong                                          what is there?
    stepwell collect Pong --steps 100k --out runs/pong          gather it
    stepwell collect game.nes --steps 100k --out runs/game      also from an NES cartridge
    stepwell info runs/pong                                     what have I got?
    stepwell verify runs/pong                                   is it what was written?
    stepwell merge runs/a runs/b --out runs/both                make one of several
    stepwell filter runs/pong --min-return 18 --out runs/good   keep some episodes
    stepwell export runs/pong --to minari --out pong/random-v0  for other libraries
    stepwell import data.h5 --from d3rlpy --out runs/data       and from them
    stepwell convert replay_data runs/replay                    read memmap-replay-buffer's
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def collect(
    env: option.EnvName,
    *,
    steps: option.Steps = None,
    episodes: option.Episodes = None,
    num_envs: option.NumEnvs = None,
    policy: option.PolicyName = "random",
    seed: option.Seed = None,
    workers: option.Workers = None,
    out: option.Out,
    resume: option.Resume = False,
    info: option.Info = None,
    metadata: option.Metadata = None,
    capacity: option.Capacity = None,
    capacity_bytes: option.CapacityBytes = None,
    backend: option.BackendName = None,
    frame_skip: option.FrameSkip = None,
    frame_stack: option.FrameStack = None,
    sticky: option.Sticky = None,
    noop_max: option.NoopMax = None,
    size: option.Size = None,
    rgb: option.Rgb = None,
    pool: option.Pool = None,
    max_frames: option.MaxFrames = None,
    life_loss: option.LifeLoss = None,
    fire_reset: option.FireReset = None,
    clip_rewards: option.ClipRewards = None,
    full_actions: option.FullActions = None,
    mode: option.Mode = None,
    difficulty: option.Difficulty = None,
    game: option.Game = None,
    actions: option.Actions = None,
    allow_opposites: option.AllowOpposites = None,
    boot: option.Boot = None,
    start: option.Start = None,
    start_rule: option.StartRule = None,
    crop: option.Crop = None,
    stuck_frames: option.StuckFrames = None,
    reward_clip: option.RewardClip = None,
    ram: option.Ram = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Step envs with a policy and keep every row in a folder.

    stepwell collect Pong --steps 100_000 --out runs/pong
    stepwell collect Pong --steps 100_000 --out runs/pong --resume
    stepwell collect Breakout --episodes 50 --policy agent:act --out runs/b
    stepwell collect game.nes --game map.toml --episodes 50 --out runs/game
    stepwell collect CartPole-v1 --steps 1e6 --seed 0 --out runs/pole
    stepwell collect mygames:make_maze --episodes 9 --out runs/maze

    Ctrl-C keeps what there is.
    Exit codes: 0 done, 2 something for you to mend, 130 Ctrl-C.
    """
    with reported(debug):
        knobs: dict[str, object] = {
            "frame_skip": _count("--frame-skip", frame_skip),
            "frame_stack": _count("--frame-stack", frame_stack),
            "sticky": sticky,
            "noop_max": _count("--noop-max", noop_max, 0),
            "grayscale": None if rgb is None else not rgb,
            "pool": pool,
            "max_frames": _count("--max-frames", max_frames),
            "life_loss": life_loss,
            "fire_reset": fire_reset,
            "clip_rewards": clip_rewards,
            "full_actions": full_actions,
            "mode": mode,
            "difficulty": difficulty,
            "game": game,
            "actions": None if actions is None else action_set(actions),
            "allow_opposites": allow_opposites,
            "boot": one_or_several(boot),
            "start": one_or_several(start),
            "start_rule": start_rule,
            "crop": None if crop is None else crop_area("--crop", crop),
            "stuck_frames": _count("--stuck-frames", stuck_frames),
            "reward_clip": reward_clip,
            "ram_obs": ram,
        }
        given = {name: value for name, value in knobs.items() if value is not None}
        if size is not None:
            given["size"] = screen_size("--size", size)
        collect_into(
            CollectJob(
                envs=EnvRequest(
                    env=env,
                    num_envs=_count("--num-envs", num_envs) or 0,
                    backend=backend,
                    num_workers=_count("--workers", workers, 0),
                    knobs=EnvOptions(**given),  # type: ignore[typeddict-item]
                ),
                out=out,
                goal=Goal(_count("--steps", steps), _count("--episodes", episodes)),
                policy=policy,
                seed=_count("--seed", seed, 0),
                info=dict(info_field("--info", text) for text in info or []),
                metadata=dict(metadata_condition("--metadata", text) for text in metadata or []),
                resume=resume,
                capacity=_count("--capacity", capacity),
                capacity_bytes=_bytes("--capacity-bytes", capacity_bytes),
                is_quiet=quiet,
                as_json=as_json,
            )
        )


@app.command()
def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a store.")],
    digest: Annotated[
        bool,
        typer.Option("--digest", metavar="", help="Fingerprint of all rows: reads everything."),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a store holds: fields, runs, episodes, returns, lengths, sizes."""
    with reported(debug):
        show_store(folder, with_digest=digest, as_json=as_json)


@app.command()
def envs(
    pattern: Annotated[
        str | None, typer.Argument(metavar="[PATTERN]", help="Part of a name, in any case.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what can be collected from here: Atari games, NES emulators, and gymnasium's envs."""
    with reported(debug):
        show_envs(pattern, as_json=as_json)


add_copy_commands(app)
add_convert_command(app)
add_exchange_commands(app)
add_health_commands(app)


def _count(option: str, text: str | None, least: int = 1) -> int | None:
    return None if text is None else whole_number(option, text, least)


def _bytes(option: str, text: str | None) -> int | None:
    return None if text is None else number_of_bytes(option, text)


if __name__ == "__main__":
    sys.exit(main())
