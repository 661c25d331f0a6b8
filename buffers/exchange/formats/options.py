"""Options of formats: dataclasses, filled from Python values or from command line arguments."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A format without options."""


def parse_options(options: type[Any], given: Mapping[str, object], owner: str) -> Any:
    """The options with given values, where "3" and "false" are read as the type that is wanted."""
    # The fields of the dataclass `options` all have defaults. They are of types bool, int, float,
    # str, a Literal of texts, or one of them or None.
    hints = get_type_hints(options)
    names = [field.name for field in fields(options)]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(
            f"{owner} has no option {unknown[0]!r}, expected "
            f"{'one of ' + ', '.join(names) if names else 'none at all'}; see `stepwell formats`"
        )
    values = {
        name: _converted(value, hints[name], f"option {name} of {owner}")
        for name, value in given.items()
    }
    return options(**values)


class OptionHelp(NamedTuple):
    """The valid values of an option, its default as text, and its purpose."""

    values: str
    default: str
    about: str


def option_help(options: type[Any]) -> dict[str, OptionHelp]:
    """The help of each option, which stands in the ``Args:`` of its dataclass."""
    hints = get_type_hints(options)
    about = _arguments(options.__doc__ or "")
    return {
        field.name: OptionHelp(
            _type_name(hints[field.name]), _written(field.default), about.get(field.name, "")
        )
        for field in fields(options)
    }


def _converted(value: object, hint: Any, what: str) -> object:
    """A value converted to the type of its option."""
    wanted = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None or value == "none":
        if type(None) in wanted:
            return None
    for kind in wanted:
        if get_origin(kind) is typing.Literal:
            if value in get_args(kind):
                return value
        elif kind is str:
            if isinstance(value, str):
                return value
        elif kind in (bool, int, float):
            found = _read(value)
            # In Python True is an int, and 1 a float; the given type is kept.
            if type(found) is kind or (kind is float and type(found) is int):
                return kind(found)
    raise ValueError(f"{what}: expected {_type_name(hint)}, got {value!r}; give another")


def _read(value: object) -> Any:
    """The JSON value of a text; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value.lower() if value.lower() in ("true", "false") else value)
    except ValueError:
        return value


def _type_name(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(hint))
    if get_origin(hint) is typing.Literal:
        return " or ".join(map(str, get_args(hint)))
    names = {type(None): "none", str: "text", bool: "true or false"}
    return names.get(hint) or str(hint.__name__)


def _written(value: object) -> str:
    """A value in command line notation."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _arguments(doc: str) -> dict[str, str]:
    """The description of each argument in a Google docstring."""
    import inspect

    _, _, rest = inspect.cleandoc(doc).partition("Args:\n")
    found: dict[str, str] = {}
    name = None
    for line in rest.splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            name, _, words = line.strip().partition(":")
            found[name] = words.strip()
        elif line.startswith("     ") and name is not None:
            found[name] = f"{found[name]} {line.strip()}"
        elif line.strip():
            break
    return found
