"""Options of formats: parsing, defaults and refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from stepwell.buffers.exchange.formats.format import NoOptions, option_help, parse_options


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
    ("given", "match"),
    [
        ({"rows": "many"}, r"option rows.*format x.*int, got 'many'"),
        ({"rows": True}, r"option rows.*format x.*int, got True"),
        ({"rows": 1.5}, r"option rows.*format x.*int, got 1\.5"),
        ({"rows": None}, r"option rows.*format x.*int, got None"),
        ({"on": 1}, r"option on.*format x.*true or false, got 1"),
        ({"name": 5}, r"option name.*format x.*text or none, got 5"),
        ({"kind": "zip"}, r"option kind.*format x.*hdf5 or arrow, got 'zip'"),
        ({"row": 1}, r"format x.*'row'.*rows, rate, on, name, kind"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_options(Options, given, "format x")


def test_a_format_without_options_refuses_all() -> None:
    assert parse_options(NoOptions, {}, "format x") == NoOptions()
    with pytest.raises(ValueError, match=r"format x.*'a'.*none"):
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
