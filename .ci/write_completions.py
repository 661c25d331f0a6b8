"""Write collectors/cli/completions.txt, from which the shell's completions are made.

Run as `python .ci/write_completions.py` after a command or an option has changed; a test compares
the file with what this would write.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import rich.text
import typer.main

from stepwell.buffers.bridges.formats.format import format_names, format_of
from stepwell.collectors.cli.app import app

TABLE = Path(__file__).parents[1] / "collectors" / "cli" / "completions.txt"
HEAD = "# command, argument or option, values, help; written by .ci/write_completions.py\n"

# What is looked up, by the names of arguments and options in the help.
ARGUMENTS = {"DIR": "<stores>", "ENV": "<envs>", "PATTERN": "<envs>"}
OPTIONS = {"--config": "<toml files>", "--policy": "<policies>", "--rom": "<cartridges>"}
OF_COMMANDS = {("info", "DIR"): "<stores and archives>", ("restore", "FILE"): "<archives>"}
SORT_KEYS = "return|steps|id"


def table_text() -> str:
    """Return the file's text, from the commands as they are."""
    group: Any = typer.main.get_command(app)
    callbacks = {each.name: each.callback for each in app.registered_commands}
    lines = [*lines_of("", group, None)]
    for name, command in group.commands.items():
        lines += lines_of(name, command, callbacks[name])
    return HEAD + "".join(f"{line}\n" for line in lines)


def lines_of(name: str, command: Any, callback: Callable[..., None] | None) -> Iterator[str]:
    """Yield one line for a command, and one for each of its arguments and options."""
    yield "\t".join((name, "", "", sentence(command.help or "")))
    parameters = {} if callback is None else inspect.signature(callback, eval_str=True).parameters
    for one in command.params:
        is_argument = one.param_type_name == "argument"
        names = (one.metavar or one.name).strip("[]").upper() if is_argument else options(one)
        is_many = one.nargs < 0 or one.multiple
        choices = literals(parameters[one.name].annotation) if one.name in parameters else ""
        values = choices or values_of(name, names, one)
        yield "\t".join((name, f"{names}{'...' * is_many}", values, sentence(one.help or "")))
    yield "\t".join((name, "--help,-h", "-", "Show this message and exit."))


def options(option: Any) -> str:
    """The names of an option, the longest first."""
    return ",".join(sorted(option.opts, key=len, reverse=True))


def values_of(command: str, names: str, parameter: Any) -> str:
    """The values of a parameter, as `stepwell.collectors.cli.completion.Parameter` has them."""
    if getattr(parameter, "is_flag", False):
        return "-"
    metavar = parameter.metavar or ""
    if names in ("--to", "--from", "FORMAT"):
        found = [each for each in format_names() if can_export(each) or names != "--to"]
        return "|".join(found)
    if names == "--sort":
        return SORT_KEYS
    if metavar.replace("|", "").islower():  # refuse|skip|keep
        return metavar
    looked_up = ARGUMENTS if parameter.param_type_name == "argument" else OPTIONS
    return OF_COMMANDS.get((command, names)) or looked_up.get(names, "")


def can_export(name: str) -> bool:
    """True for a format that data sets are exported to."""
    return format_of(name).export_options is not None


def literals(annotation: Any) -> str:
    """The strings that an annotation such as ``Literal["a", "b"] | None`` names."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        found = [literals(each) for each in get_args(annotation)]
        return "".join(found)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    return ""


def sentence(text: str) -> str:
    """The first sentence of a help text, without markup."""
    plain = " ".join(rich.text.Text.from_markup(text).plain.split())
    return plain.partition(". ")[0].rstrip(".") + "."


if __name__ == "__main__":
    TABLE.write_text(table_text(), encoding="utf-8")
    print(f"wrote {TABLE}")
