"""The command `stepwell`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from stepwell import __version__
from stepwell.collectors.cli.collect import DEFAULT_NUM_ENVS, CollectJob, collect_into
from stepwell.collectors.cli.convert import add_convert_command
from stepwell.collectors.cli.copy_commands import add_copy_commands
from stepwell.collectors.cli.envs import show_envs
from stepwell.collectors.cli.errors import BAD_INPUT, reported, show_error
from stepwell.collectors.cli.health import add_health_commands
from stepwell.collectors.cli.info import show_store
from stepwell.collectors.cli.make import AtariKnobs, EnvWish
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

_RUN, _STORE, _ATARI = "What to run", "Where to keep it", "Atari games only"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows the program's name; None takes it from the process.

    Returns:
        The exit code: 0, 2 for something that the user can mend, 130 for Ctrl-C.
    """
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
        show_error(f"{_one_line(message())} See: {_help_of(error)}")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


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
    stepwell info runs/pong                                     what have I got?
    stepwell verify runs/pong                                   is it what was written?
    stepwell merge runs/a runs/b --out runs/both                make one of several
    stepwell filter runs/pong --min-return 18 --out runs/good   keep some episodes
    stepwell convert replay_data runs/replay                    read memmap-replay-buffer's
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def collect(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="An Atari game (Pong, ALE/Pong-v5), an id of gymnasium's (CartPole-v1, "
            "module:Id-v0), or a function that makes an env (module:callable).",
        ),
    ],
    *,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Env steps to add, over all envs: 100_000, 1e5 or 100k.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option(metavar="N", help="Or whole episodes to add.", rich_help_panel=_RUN),
    ] = None,
    num_envs: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help=f"Envs side by side ({DEFAULT_NUM_ENVS}; with --resume as many as before).",
            rich_help_panel=_RUN,
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="'random' or module:callable, also from the current folder. It is called as "
            "policy(observation, is_first) with arrays of N (and its state, if it has a method "
            "initial_state); a class is made first.",
            rich_help_panel=_RUN,
        ),
    ] = "random",
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Same seed and number of envs, same data. Left out: the store's, or a new one.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Threads (Atari, native) or processes; 0 steps the envs in this one.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the store.", rich_help_panel=_STORE)
    ],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar="",
            help="Add to the store if there is one, with new episode ids and seeds.",
            rich_help_panel=_STORE,
        ),
    ] = False,
    info: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Keep this field of info too, such as lives; speed=nan says what stands for "
            "'not there'. May be repeated.",
            rich_help_panel=_STORE,
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Note this about every episode, to sample by: task=door. May be repeated.",
            rich_help_panel=_STORE,
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Steps to keep at most; the oldest go.", rich_help_panel=_STORE
        ),
    ] = None,
    capacity_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Disk to take at most: 500MB, 2GiB.", rich_help_panel=_STORE
        ),
    ] = None,
    backend: Annotated[
        Literal["native", "python"] | None,
        typer.Option(
            help="native is fastest; python gives true last frames, lives and modes (native "
            "unless a knob needs python).",
            rich_help_panel=_ATARI,
        ),
    ] = None,
    frame_skip: Annotated[
        str | None, typer.Option(metavar="N", help="Frames a step (4).", rich_help_panel=_ATARI)
    ] = None,
    frame_stack: Annotated[
        str | None,
        typer.Option(metavar="N", help="Frames an observation (4).", rich_help_panel=_ATARI),
    ] = None,
    sticky: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Probability of repeating the last action (0.25).",
            rich_help_panel=_ATARI,
        ),
    ] = None,
    noop_max: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="No-op frames after a reset, at most (30).", rich_help_panel=_ATARI
        ),
    ] = None,
    fire_reset: Annotated[
        bool | None,
        typer.Option(
            "--fire-reset", metavar="", help="Press FIRE after a reset.", rich_help_panel=_ATARI
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="HxW", help="Rows x columns, or 'screen' (84x84).", rich_help_panel=_ATARI
        ),
    ] = None,
    rgb: Annotated[
        bool | None,
        typer.Option(
            "--rgb", metavar="", help="Colours instead of gray levels.", rich_help_panel=_ATARI
        ),
    ] = None,
    pool: Annotated[
        Literal["max", "none"] | None,
        typer.Option(help="Of a step's last two frames (max).", rich_help_panel=_ATARI),
    ] = None,
    max_frames: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Frames after which an episode is truncated (108k).",
            rich_help_panel=_ATARI,
        ),
    ] = None,
    clip_rewards: Annotated[
        bool | None,
        typer.Option(
            "--clip-rewards",
            metavar="",
            help="Keep the sign alone; better clip in training.",
            rich_help_panel=_ATARI,
        ),
    ] = None,
    life_loss: Annotated[
        Literal["ignore", "end"] | None,
        typer.Option(help="'end': a lost life ends the episode (ignore).", rich_help_panel=_ATARI),
    ] = None,
    full_actions: Annotated[
        bool | None,
        typer.Option("--full-actions", metavar="", help="All 18 actions.", rich_help_panel=_ATARI),
    ] = None,
    mode: Annotated[
        int | None, typer.Option(metavar="N", help="The game's mode.", rich_help_panel=_ATARI)
    ] = None,
    difficulty: Annotated[
        int | None, typer.Option(metavar="N", help="The game's difficulty.", rich_help_panel=_ATARI)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Step envs with a policy and keep every row in a folder.

    stepwell collect Pong --steps 100_000 --out runs/pong
    stepwell collect Pong --steps 100_000 --out runs/pong --resume
    stepwell collect Breakout --episodes 50 --policy agent:act --out runs/b
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
            "fire_reset": fire_reset,
            "grayscale": None if rgb is None else not rgb,
            "pool": pool,
            "max_frames": _count("--max-frames", max_frames),
            "clip_rewards": clip_rewards,
            "life_loss": life_loss,
            "full_actions": full_actions,
            "mode": mode,
            "difficulty": difficulty,
        }
        given = {name: value for name, value in knobs.items() if value is not None}
        if size is not None:
            given["size"] = screen_size("--size", size)
        collect_into(
            CollectJob(
                envs=EnvWish(
                    env=env,
                    num_envs=_count("--num-envs", num_envs) or 0,
                    backend=backend,
                    num_workers=_count("--workers", workers, 0),
                    knobs=AtariKnobs(**given),  # type: ignore[typeddict-item]
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
    """List what can be collected from here: Atari games, and what gymnasium has registered."""
    with reported(debug):
        show_envs(pattern, as_json=as_json)


add_copy_commands(app)
add_convert_command(app)
add_health_commands(app)


def _count(option: str, text: str | None, least: int = 1) -> int | None:
    return None if text is None else whole_number(option, text, least)


def _bytes(option: str, text: str | None) -> int | None:
    return None if text is None else number_of_bytes(option, text)


if __name__ == "__main__":
    sys.exit(main())
