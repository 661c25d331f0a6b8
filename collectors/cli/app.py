"""The command `stepwell`: its subcommands, and how it is run."""

from __future__ import annotations

import codecs
import functools
import importlib
import io
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ...buffers.base.package import __version__

COMMANDS = {
    "collect": ("collect:collect", "Play envs with a policy and store every row in a folder."),
    "play": ("play:play", "Play an env yourself, with keyboard or gamepad, and store every row."),
    "evaluate": (
        "evaluate:evaluate",
        "Play whole episodes with a policy and show their scores. Nothing is stored.",
    ),
    "info": (
        "info:info",
        "Show the contents of a store: fields, runs, episodes, returns, lengths, sizes.",
    ),
    "view": ("view:view", "Look at stores in a browser: episodes, frames, curves, histograms."),
    "report": ("view:report", "Write one HTML file about a store, or several that are compared."),
    "render": (
        "view:render",
        "Write the images of an episode to a file: a clip, or a film strip.",
    ),
    "envs": (
        "envs:envs",
        "List the envs to collect from: Atari games, NES emulators, Gymnasium's envs.",
    ),
    "check": (
        "check:check",
        "Play an env for a few seconds: what is wrong with it, and what it costs.",
    ),
    "merge": (
        "copy:merge",
        "Put the episodes of several stores into a new one, one store after the other.",
    ),
    "filter": (
        "copy:filter_episodes",
        "Copy the episodes that match to a new store. The old store is not changed.",
    ),
    "copy": (
        "copy:copy",
        "Copy a store. Rows are the same bit by bit; many small chunks become few large ones.",
    ),
    "export": (
        "exchange:export",
        "Write a data set that another library reads. The store is not changed.",
    ),
    "import": ("exchange:import_", "Read a data set of another library into a new store."),
    "formats": (
        "exchange:formats",
        "List the formats of export and import, and what to install for them.",
    ),
    "push": (
        "exchange:push_data",
        "Publish a data set on the Hugging Face Hub, or a store on an object store.",
    ),
    "pull": (
        "exchange:pull_data",
        "Fetch a data set of the Hugging Face Hub, or a store at a URL, into a new folder.",
    ),
    "datasets": (
        "datasets:datasets",
        "List the data sets that can be made here; datasets get makes one, check tries its env.",
    ),
    "archive": (
        "archive:archive_store",
        "Write a store to a small file, which holds actions and seeds instead of what envs show.",
    ),
    "restore": (
        "archive:restore_store",
        "Make the store of an archive again, by playing its episodes.",
    ),
    "verify": (
        "health:verify_stores",
        "Compare every checksum of a store. Nothing is changed; it may be in use.",
    ),
    "repair": ("health:repair_store", "Recover a store after a crash, and remove damaged chunks."),
    "doctor": (
        "doctor:doctor",
        "Show versions, emulators, limits and the speed of a disk, and try out what is installed.",
    ),
}
"""Where each command is, and the first sentence of its help."""

_RENAMED = {"drop": "filter --invert", "upload": "push", "convert": "import"}


class _FlagsWithoutType:
    """Help shows `--resume`, and not `--resume <bool>`, as Typer has it."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return parameters


class _Command(_FlagsWithoutType, TyperCommand):
    pass


class _Subgroup(_FlagsWithoutType, TyperGroup):
    pass


class _Group(_FlagsWithoutType, TyperGroup):
    """All commands; a command's module is loaded when it runs, or its own help is asked for."""

    # A Tab and `stepwell --help` need no more than the names and sentences of the table.

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (now := _RENAMED.get(args[0])) and not ctx.resilient_parsing:
            ctx.fail(f"expected a command, got {args[0]!r}, which is {now} now.")
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _loaded(name), rest


@functools.cache
def _loaded(name: str) -> Any:
    module, what = COMMANDS[name][0].split(":")
    command = getattr(importlib.import_module(f"stepwell.collectors.cli.{module}"), what)
    made = typer.Typer(cls=_Subgroup, rich_markup_mode="rich", add_completion=False)
    # A dict has commands of its own; of one command alone Typer makes no group.
    for each, function in (command if isinstance(command, dict) else {name: command}).items():
        if each:
            made.command(name=each, cls=_Command)(function)
        else:
            made.callback(invoke_without_command=True)(function)
    return typer.main.get_command(made)


app = typer.Typer(
    cls=_Group,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, None for the process's own arguments; returns the exit code."""
    # It is 0, 1 for a damaged store or rows that an env does not show, 2 for an error that the user
    # can correct, 3 for episodes that cannot be played again, 130 for Ctrl-C, 143 for SIGTERM, 129
    # for SIGHUP.
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
        # Imported here: it loads much, and most runs have no such error.
        from .errors import BAD_INPUT, show_error

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
    """Let standard output and error accept every character, whatever their encoding is."""
    # A character that the encoding lacks is replaced; undecodable bytes of file names are written
    # unchanged.
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
        from ...buffers.base import native

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
    stepwell check my_envs:MyEnv                              is yours right?
    stepwell collect Pong --steps 100k --out runs/pong        play, and store it
    stepwell collect game.nes --steps 100k --out runs/game    an NES cartridge
    stepwell play game.nes --out runs/mine                    play it yourself
    stepwell evaluate Pong --policy sb3:model.zip             its scores
    stepwell info runs/pong                                   show its contents
    stepwell view runs/pong                                   in a browser
    stepwell report runs/pong -o report.html                  show it to others
    stepwell render runs/pong --episode 5 -o clip.webp        see an episode
    stepwell verify runs/pong --replay                        play it again
    stepwell merge runs/a runs/b --out runs/both              join stores
    stepwell filter runs/pong --min-return 18 --out best      keep some episodes
    stepwell archive runs/pong -o pong.swa                    keep its actions
    stepwell datasets                                         data sets to make
    stepwell export runs/pong --to minari --out pong/my-v0    for other libraries
    stepwell import data.h5 --from d3rlpy --out runs/data     from other libraries
    stepwell push runs/pong user/pong                         to the Hub, or S3
    stepwell doctor                                           for a bug report

    Examples of each command: stepwell COMMAND --help
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _unloaded() -> None:
    """Stand for a command of which no more than its sentence is known."""


for _name, (_, _sentence) in COMMANDS.items():
    app.command(name=_name, help=_sentence, cls=_Command)(_unloaded)


def every_command() -> Iterator[tuple[str, Any, Any]]:
    """The words of each command, the command, and its context: `stepwell` first."""
    root: Any = typer.main.get_command(app)
    return _from("stepwell", root, root.make_context("stepwell", [], resilient_parsing=True))


def _from(words: str, command: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    """A command, and those that it has of its own."""
    yield words, command, context
    for name in command.list_commands(context) if isinstance(command, TyperGroup) else ():
        found = command.resolve_command(context, [name])[1]
        below = type(context)(found, parent=context, info_name=name)
        yield from _from(f"{words} {name}", found, below)


if __name__ == "__main__":
    sys.exit(main())
