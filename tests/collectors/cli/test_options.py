"""Values of options: counts, sizes in bytes, and conditions on episodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.curation.selection import EpisodeSelection, parse_selection
from stepwell.collectors.cli.options import (
    count_in,
    format_ids,
    number_of_bytes,
    parse_ids,
    parse_metadata,
)


@given(st.integers(1, 10**12))
def test_a_count_is_read_however_its_digits_are_grouped(number: int) -> None:
    for text in (str(number), f"{number:_}", f"{number:,}", f" {number} "):
        assert count_in("--steps", text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("1e5", 100_000), ("1.5k", 1500), ("2M", 2_000_000), ("3 g", 3 * 10**9)]
)
def test_a_count_may_have_an_exponent_or_a_suffix(text: str, number: int) -> None:
    assert count_in("--steps", text) == number


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "ten", "", "1e-3", "5x", "0x10", "nan", "inf"])
def test_what_is_no_count_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--steps: .*>= 1.*got") as caught:
        count_in("--steps", text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["1e40", str(2**63)])
def test_a_number_of_more_than_63_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--steps.*2\*\*63") as caught:
        count_in("--steps", text)
    assert repr(text) in str(caught.value)
    with pytest.raises(ValueError, match=r"--capacity-bytes.*2\*\*63"):
        number_of_bytes("--capacity-bytes", text)
    assert count_in("--steps", str(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "number"),
    [("500", 500), ("2GB", 2 * 10**9), ("2GiB", 2 << 30), ("1.5 kB", 1500), ("3M", 3 * 10**6)],
)
def test_bytes_have_units(text: str, number: int) -> None:
    assert number_of_bytes("--capacity-bytes", text) == number


def test_bytes_without_a_known_unit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^--capacity-bytes: .*500MB.*got '5 apples'"):
        number_of_bytes("--capacity-bytes", "5 apples")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("task=door", "task", "door"),
        ("level=3", "level", 3),
        ("speed=-1.5e3", "speed", -1500.0),
        ("won=true", "won", True),
        ("won=True", "won", "True"),
        ("note=null", "note", None),
        ('id="3"', "id", "3"),
        ("size=[84,84]", "size", [84, 84]),
        ("formula=a=b", "formula", "a=b"),
        ("name=", "name", ""),
    ],
)
def test_a_value_is_json_or_else_text(text: str, key: str, value: object) -> None:
    assert parse_metadata("--where", text) == (key, value)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_formatted_ids_are_read_back(ids: set[int]) -> None:
    text = format_ids(sorted(ids), 10_000)
    assert {each for span in parse_ids("--episodes", text) for each in span} == ids


def test_all_conditions_are_read() -> None:
    found = parse_selection(
        where=["task=door", "level=3"],
        episodes="3,10-20",
        min_return="-1.5",
        max_return="20",
        min_steps="5",
        max_steps="1k",
        ended=True,
    )
    assert found == EpisodeSelection(
        where={"task": "door", "level": 3},
        ids=(range(3, 4), range(10, 21)),
        min_return=-1.5,
        max_return=20.0,
        min_steps=5,
        max_steps=1000,
        has_ended=True,
    )
    assert parse_selection(cut=True) == EpisodeSelection(has_ended=False)
