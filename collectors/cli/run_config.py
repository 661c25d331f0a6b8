"""Options of a command from a file: `stepwell collect --config run.toml`, and `--print-config`.

A file holds values of options and nothing else, so that it can do what the command line can do, and
no more. It is read with `tomllib`.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import typer

from .errors import exit_on_error

_MOST_BYTES = 1 << 20
_NUMBERS = ("N", "P", "X", "SIZE")  # metavars of options that take a number
_TABLES = ("info", "metadata")
_NOT_KEYS = ("config", "print_config", "help")
_TOML_NUMBER = re.compile(r"(0|[1-9][0-9]{0,15})(\.[0-9]{0,15}[1-9])?")


def take_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values of a file as defaults; a callback of the option ``--config``."""
    if path is not None:
        with exit_on_error(debug=False):
            context.default_map = read_config(path, context)
    return path


def read_config(path: Path, context: typer.Context) -> dict[str, object]:
    """Return values by the names of the command's parameters."""
    with path.open("rb") as file:
        # A file that has no end, such as a device, is not read to it.
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path}: expected at most {_MOST_BYTES:,} bytes of TOML, got more")
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected TOML, lines such as steps = 1000, got something else: {error}; "
            f"correct it"
        ) from None
    parameters = _parameters(context)
    found: dict[str, object] = {}
    for key, value in table.items():
        if key not in parameters:
            near = difflib.get_close_matches(key, parameters, 1) or ["steps"]
            raise ValueError(
                f"{path}: expected names of options as keys, such as {near[0]}, got {key!r}; "
                f"correct it (stepwell collect --help lists them)"
            )
        parameter = parameters[key]
        option = _as_option(f"{path}: {key}", key, value, parameter)
        if option is None:
            continue
        try:
            # The option's own check, so that the error names the file.
            parameter.process_value(context, option)
        except typer.BadParameter as error:
            message = error.message.rstrip(".").removeprefix("Value error, ")
            raise ValueError(f"{path}: {key}: {message}; correct it") from None
        found[parameter.name] = option
    return found


def config_text(context: typer.Context) -> str:
    """Return the options that were given, as a file of TOML that gives the same ones."""
    lines: list[str] = []
    for key, parameter in _parameters(context).items():
        value = context.params.get(parameter.name)
        if value is None or value is False or value in ((), []) or value == parameter.default:
            continue
        lines.append(f"{key} = {_toml(key, value, parameter)}\n")
    return "".join(lines)


@contextmanager
def naming_config(context: typer.Context) -> Generator[None]:
    """Put the file's name before an error about the value of an option that is from the file."""
    try:
        yield
    except ValueError as error:
        option = re.match(r"--([a-z-]+)", str(error))
        path = context.params.get("config")
        if option and path is not None:
            parameter = _parameters(context).get(option[1].replace("-", "_"))
            source = parameter and context.get_parameter_source(parameter.name)
            if source is not None and source.name == "DEFAULT_MAP":
                error.args = (f"{path}: {error}",)
        raise


def _parameters(context: typer.Context) -> dict[str, Any]:
    """The command's parameters, by the keys that a file has for them."""
    found: dict[str, Any] = {}
    for parameter in context.command.params:
        names = [name for name in parameter.opts if name.startswith("--")]
        key = (names[0][2:] if names else parameter.name or "").replace("-", "_")
        if key not in _NOT_KEYS:
            found[key] = parameter
    return found


def _as_option(place: str, key: str, value: object, parameter: Any) -> object:
    """Return the value as it would come from the command line; None for one that is not given."""
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise ValueError(f"{place}: expected true or false, got {value!r}; give one")
        return value or None
    if getattr(parameter, "multiple", False):
        return _as_texts(place, key, value)
    is_number = parameter.metavar in _NUMBERS
    if isinstance(value, str):
        return value
    if is_number and isinstance(value, int | float) and not isinstance(value, bool):
        is_whole = isinstance(value, float) and value.is_integer()
        return str(int(value) if is_whole else value)  # 1e6 is a float of TOML
    expected = "a number, or text such as '100k'" if is_number else "text in quotes"
    raise ValueError(f"{place}: expected {expected}, got {_shown(value)}; correct it")


def _as_texts(place: str, key: str, value: object) -> list[str]:
    """Return the values of an option that may be repeated."""
    if key in _TABLES and isinstance(value, dict):
        table = cast("Mapping[str, object]", value)
        return [_entry(place, name, one) for name, one in table.items()]
    values = cast("Sequence[object]", value) if isinstance(value, list) else [value]
    for one in values:
        if not isinstance(one, str):
            table_too = ", or a table" if key in _TABLES else ""
            raise ValueError(
                f"{place}: expected text, or a list of text{table_too}, got {_shown(one)}; "
                f"correct it"
            )
    return [str(one) for one in values]


def _entry(place: str, name: str, value: object) -> str:
    """Return an entry of a table as the command line has it: NAME=VALUE."""
    if not name or "=" in name:
        raise ValueError(f"{place}: expected names without '=', got {name!r}; give another")
    try:
        return f"{name}={json.dumps(value)}"
    except TypeError:
        raise ValueError(
            f"{place}.{name}: expected numbers, text, true, false, or lists and tables of them, "
            f"got {_shown(value)}; correct it"
        ) from None


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _toml(key: str, value: object, parameter: Any) -> str:
    if value is True:
        return "true"
    if isinstance(value, tuple | list):
        texts = cast("Sequence[object]", value)
        return f"[{', '.join(_quoted(key, str(one)) for one in texts)}]"
    text = str(value)
    if parameter.metavar in _NUMBERS and _TOML_NUMBER.fullmatch(text):
        if str(float(text) if "." in text else int(text)) == text:  # as it is read again
            return text
    return _quoted(key, text)


def _quoted(key: str, text: str) -> str:
    """Return text as a string of TOML, whose escapes are those of JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"--{key}: expected text for a file of TOML, got {text!r}") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
