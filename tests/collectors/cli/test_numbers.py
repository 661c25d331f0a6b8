"""Numbers as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.collectors.cli.numbers import info_field, number_of_bytes, screen_size, whole_number


@given(st.integers(1, 10**12))
def test_a_count_is_read_however_its_digits_are_grouped(number: int) -> None:
    for text in (str(number), f"{number:_}", f"{number:,}", f" {number} "):
        assert whole_number("--steps", text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("1e5", 100_000), ("1.5k", 1500), ("2M", 2_000_000), ("3 g", 3 * 10**9)]
)
def test_a_count_may_have_an_exponent_or_a_suffix(text: str, number: int) -> None:
    assert whole_number("--steps", text) == number


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "ten", "", "1e-3", "5x", "0x10", "nan", "inf"])
def test_what_is_no_count_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"--steps: expected a whole number >= 1.*got") as caught:
        whole_number("--steps", text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["1e40", str(2**63)])
def test_a_number_that_no_counter_holds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--steps.*2\*\*63") as caught:
        whole_number("--steps", text)
    assert repr(text) in str(caught.value)
    with pytest.raises(ValueError, match=r"--capacity-bytes.*2\*\*63"):
        number_of_bytes("--capacity-bytes", text)
    assert whole_number("--steps", str(2**63 - 1)) == 2**63 - 1


def test_the_least_count_is_the_callers() -> None:
    assert whole_number("--seed", "0", 0) == 0
    with pytest.raises(ValueError, match=">= 0"):
        whole_number("--seed", "-1", 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [("500", 500), ("2GB", 2 * 10**9), ("2GiB", 2 << 30), ("1.5 kB", 1500), ("3M", 3 * 10**6)],
)
def test_bytes_have_units(text: str, number: int) -> None:
    assert number_of_bytes("--capacity-bytes", text) == number


def test_bytes_without_a_known_unit_are_refused() -> None:
    with pytest.raises(ValueError, match="--capacity-bytes: expected bytes such as 500MB"):
        number_of_bytes("--capacity-bytes", "5 apples")


@pytest.mark.parametrize("text", ["84by84", "84x", "x84", "-1", "84x84x3"])
def test_a_size_is_two_numbers_or_one(text: str) -> None:
    with pytest.raises(ValueError, match="--size: expected ROWSxCOLUMNS"):
        screen_size("--size", text)


def test_an_info_field_has_a_value_for_not_there() -> None:
    assert info_field("--info", "lives") == ("lives", None)
    assert info_field("--info", "lives=-1") == ("lives", -1)
    assert info_field("--info", "won=False") == ("won", False)
    assert math.isnan(float(info_field("--info", "speed=nan")[1] or 0))


@pytest.mark.parametrize("text", ["", "=3", "lives=many", "lives="])
def test_an_info_field_without_name_or_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--info: expected a field's name"):
        info_field("--info", text)
