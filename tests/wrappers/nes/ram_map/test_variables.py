"""A variable is decoded by its type, and its changes follow its wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.nes.ram_map.variables import OPERATIONS, Variable
from support.models import game_model
from support.models.game_strategies import COMPARING, types


def ram_with(address: int, data: bytes) -> bytes:
    return bytes(address) + data + bytes(2048 - address - len(data))


@given(types(8), st.binary(min_size=8, max_size=8), st.integers(0, 2040))
def test_every_type_is_read_as_the_slow_model_reads_it(
    type_: str, data: bytes, address: int
) -> None:
    variable = Variable(address, type_)
    ram = ram_with(address, data)
    expected = game_model.decode(type_, data[: variable.width])
    assert variable.decode(ram) == expected
    assert variable.reader(ram.__getitem__)() == expected


# The bytes 01 02 03 04, and what each order makes of them.
@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("<u4", 0x04030201),
        ("=u4", 0x04030201),
        ("|u4", 0x04030201),
        ("<=u4", 0x04030201),
        (">u4", 0x01020304),
        ("<>u4", 0x03040102),
        ("><u4", 0x02010403),
        (">=u4", 0x02010403),
        ("<u3", 0x030201),
        ("<>u3", 0x020301),
        ("><u3", 0x010302),
        (">n4", 1234),
        ("<n4", 4321),
        (">d4", 1020304),
        ("<d2", 201),
    ],
)
def test_orders_are_what_the_table_says(type_: str, expected: int) -> None:
    assert Variable(0, type_).decode(ram_with(0, b"\x01\x02\x03\x04")) == expected


def test_the_values_of_an_array_become_python_ints() -> None:
    """E5: uint8 values of an array would overflow in the first sum."""
    ram = np.full(2048, 255, np.uint8)
    for type_ in ("|u1", "<u2", "<i8", ">d4"):
        assert type(Variable(0x10, type_).decode(ram)) is int  # type: ignore[arg-type]
    assert Variable(0x10, "<u2").decode(ram) == 65535  # type: ignore[arg-type]


@given(st.integers(1, 300), st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_a_wrapping_change_leads_to_the_new_value_by_the_shortest_way(
    wrap: int, new: int, old: int
) -> None:
    """E5: a counter that wraps."""
    change = Variable(0, "|u1", wrap=wrap).change(new, old)
    assert (old + change - new) % wrap == 0
    assert -wrap / 2 <= change < wrap / 2


A = {"address": 0, "type": "|i1"}
NUMBERS = range(-4, 5)


def ram(*numbers: int) -> bytes:
    return bytes(number % 256 for number in numbers) + bytes(2048 - len(numbers))


def advanced(tables: dict[str, Any], old: bytes, new: bytes) -> tuple[float, bool]:
    """(reward, terminated) of a frame."""
    shown = [old]
    tracker = Game.load(tables).tracker(lambda address: shown[-1][address])
    tracker.begin()
    shown.append(new)
    return tracker.advance(), tracker.terminated


@pytest.mark.parametrize("measurement", ["absolute", "delta"])
@pytest.mark.parametrize("op", [None, *OPERATIONS])
def test_an_operation_pays_and_ends_as_the_model_says(op: str | None, measurement: str) -> None:
    for reference in (-2, 0, 2) if op in COMPARING else (None,):
        entry: dict[str, Any] = {"measurement": measurement}
        entry |= {} if op is None else {"op": op}
        entry |= {} if reference is None else {"reference": reference}
        paid = {**entry, "reward": 8, "penalty": 3}
        tables = {"vars": {"a": A}, "reward": {"a": paid}, "terminated": {"a": entry}}
        for number in NUMBERS:
            # A change of -8 to 8 from where the value is not the change.
            old, new = ram(10), ram(number if measurement == "absolute" else 10 + number)
            expected = sum(game_model.pays(tables, new, old).values())
            found = advanced(tables, old, new)
            assert found == (expected, game_model.is_over(tables, new, old)), (reference, number)
