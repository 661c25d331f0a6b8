"""The command `stepwell`: its subcommands, and how it is run."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from stepwell import __version__
from stepwell.buffers import native
from stepwell.collectors.cli.archive import archive_store, restore_store
from stepwell.collectors.cli.collect import collect
from stepwell.collectors.cli.copy import copy, drop, filter_episodes, merge
from stepwell.collectors.cli.doctor import doctor
from stepwell.collectors.cli.envs import envs
from stepwell.collectors.cli.errors import BAD_INPUT, show_error
from stepwell.collectors.cli.evaluate import evaluate
from stepwell.collectors.cli.exchange import export, formats, import_
from stepwell.collectors.cli.health import repair_store, verify_stores
from stepwell.collectors.cli.hub import pull_data, push_data
from stepwell.collectors.cli.info import info
from stepwell.collectors.cli.play import play
from stepwell.collectors.cli.render import render
from stepwell.collectors.cli.report import report
from stepwell.collectors.cli.upload import upload
from stepwell.collectors.cli.view import view

__all__ = ["app", "main"]


class _FlagsWithoutType:
    """Help shows `--resume`, and not `--resume <bool>`, as Typer has it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of a command, and `--help`."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return parameters


class _Group(_FlagsWithoutType, TyperGroup):
    pass


class _Command(_FlagsWithoutType, TyperCommand):
    pass


app = typer.Typer(
    cls=_Group,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after the program's name; None takes those of the process.

    Returns:
        The exit code: 0, 1 for a damaged store or rows that an env does not show, 2 for an error
        that the user can correct, 3 for episodes that cannot be played again, 130 for Ctrl-C.
    """
    _accept_any_character()
    try:
        code = app(
            args=None if arguments is None else list(arguments),
            prog_name="stepwell",
            standalone_mode=False,
        )
    except Exception as error:
        # Arguments that cannot be parsed: Typer's errors have no public base class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        text = " ".join(message().split()).replace(": Value error, ", ": ")
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "stepwell")
        config = getattr(context, "params", {}).get("config")
        if config is not None and text.startswith("Missing"):
            text = f"{text.rstrip('.')}, also in {config}"
        show_error(f"{text}{'' if text.endswith(('.', '?')) else '.'} See: {command} --help")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


_IN_ASCII = {
    "±": "+/-",
    "…": "...",
    "█": "#",
    **dict.fromkeys("▉▊▋▌", "#"),
    **dict.fromkeys("▍▎▏", "."),
}


def _accept_any_character() -> None:
    """Let standard output and error accept every character, whatever their encoding is.

    A character that the encoding lacks is replaced; undecodable bytes of file names are written
    unchanged.
    """
    codecs.register_error("stepwell", _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="stepwell")


def _replacement(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace a character that cannot be encoded; see `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":  # how Python keeps a byte of a file name
        return bytes([ord(character) - 0xDC00]), error.start + 1
    escaped = character.encode("ascii", "backslashreplace").decode()
    return _IN_ASCII.get(character, escaped), error.start + 1


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepwell {__version__} ({native.path()})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version, and whether the compiled core is used.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Collect experience from Gymnasium environments and keep it on disk.

    stepwell envs pong                                        find an env
    stepwell collect Pong --steps 100k --out runs/pong        play, and store it
    stepwell collect game.nes --steps 100k --out runs/game    an NES cartridge
    stepwell play game.nes --out runs/mine                    play it yourself
    stepwell evaluate Pong --policy sb3:model.zip             play, and show scores
    stepwell info runs/pong                                   show its contents
    stepwell view runs/pong                                   look at it in a browser
    stepwell report runs/pong -o report.html                  show it to others
    stepwell render runs/pong --episode 5 -o clip.webp        see an episode
    stepwell verify runs/pong --replay                        play it again
    stepwell merge runs/a runs/b --out runs/both              join stores
    stepwell filter runs/pong --min-return 18 --out best      keep some episodes
    stepwell upload runs/pong s3://bucket/pong                to an object store
    stepwell archive runs/pong -o pong.swa                    keep its actions
    stepwell export runs/pong --to minari --out pong/my-v0    for other libraries
    stepwell import data.h5 --from d3rlpy --out runs/data     from other libraries
    stepwell push runs/pong user/pong                         to the Hugging Face Hub
    stepwell doctor                                           what a bug report needs

    Examples of each command: stepwell COMMAND --help
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_COMMANDS: dict[str, Callable[..., None]] = {
    "collect": collect,
    "play": play,
    "evaluate": evaluate,
    "info": info,
    "view": view,
    "report": report,
    "render": render,
    "envs": envs,
    "merge": merge,
    "filter": filter_episodes,
    "drop": drop,
    "copy": copy,
    "upload": upload,
    "export": export,
    "import": import_,
    "formats": formats,
    "push": push_data,
    "pull": pull_data,
    "archive": archive_store,
    "restore": restore_store,
    "verify": verify_stores,
    "repair": repair_store,
    "doctor": doctor,
}
for _name, _command in _COMMANDS.items():
    app.command(name=_name, cls=_Command)(_command)


if __name__ == "__main__":
    sys.exit(main())
