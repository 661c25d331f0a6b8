"""Options of formats: what may be written, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from stepwell.buffers.bridges.formats.options import NoOptions, option_help, parse_options


@dataclass(frozen=True)
class Options:
    """Options.

    Args:
        rows: How many, of
            which there are some.
        rate: How fast.
        on: Whether.
        name: Which: one.
        kind: Of what kind.

    Raises:
        ValueError: Never.
    """

    rows: int = 3
    rate: float = 0.5
    on: bool = False
    name: str | None = None
    kind: Literal["hdf5", "arrow"] = "hdf5"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Options()),
        ({"rows": 5}, Options(rows=5)),
        ({"rows": "5"}, Options(rows=5)),
        ({"rate": "2"}, Options(rate=2.0)),
        ({"rate": 1}, Options(rate=1.0)),
        ({"on": "true"}, Options(on=True)),
        ({"on": "False"}, Options(on=False)),
        ({"name": "5"}, Options(name="5")),
        ({"name": "none"}, Options()),
        ({"name": None}, Options()),
        ({"kind": "arrow"}, Options(kind="arrow")),
    ],
)
def test_values_and_texts_are_parsed(given: dict[str, object], expected: Options) -> None:
    found = parse_options(Options, given, "format x")
    assert found == expected
    assert type(found.rate) is float


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rows": "many"}, "option rows of format x: expected int, got 'many'"),
        ({"rows": True}, "option rows of format x: expected int, got True"),
        ({"rows": 1.5}, "option rows of format x: expected int, got 1.5"),
        ({"rows": None}, "option rows of format x: expected int, got None"),
        ({"on": 1}, "option on of format x: expected true or false, got 1"),
        ({"name": 5}, "option name of format x: expected text or none, got 5"),
        ({"kind": "zip"}, "option kind of format x: expected hdf5 or arrow, got 'zip'"),
        ({"row": 1}, "format x has no option 'row', expected one of rows, rate, on, name, kind"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_options(Options, given, "format x")


def test_a_format_without_options_refuses_all() -> None:
    assert parse_options(NoOptions, {}, "format x") == NoOptions()
    with pytest.raises(ValueError, match="format x has no option 'a', expected none at all"):
        parse_options(NoOptions, {"a": "1"}, "format x")


def test_option_help_comes_from_the_docstring() -> None:
    assert option_help(Options) == {
        "rows": ("int", "3", "How many, of which there are some."),
        "rate": ("float", "0.5", "How fast."),
        "on": ("true or false", "false", "Whether."),
        "name": ("text or none", "none", "Which: one."),
        "kind": ("hdf5 or arrow", "hdf5", "Of what kind."),
    }
    assert option_help(NoOptions) == {}
