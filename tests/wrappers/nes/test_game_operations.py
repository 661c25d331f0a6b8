"""Operations and conditions, each on each number that could matter."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.nes.ram_map.measured import OPERATIONS
from support.models import game_model
from support.models.game_strategies import COMPARING, OTHERS

A, B, C = ({"address": address, "type": "|i1"} for address in (0, 1, 2))
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


def test_there_are_stable_retros_operations() -> None:
    assert set(OPERATIONS) == {*COMPARING, *OTHERS}


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


ZERO: dict[str, Any] = {name: {"op": "zero"} for name in "abc"}


@pytest.mark.parametrize("inner", ["any", "all"])
@pytest.mark.parametrize("outer", ["any", "all"])
def test_conditions_nest(outer: str, inner: str) -> None:
    node = {"condition": inner, "b": ZERO["b"], "c": ZERO["c"]}
    over = {"condition": outer, "a": ZERO["a"], "nodes": {"n": node}}
    tables = {"vars": {"a": A, "b": B, "c": C}, "terminated": over}
    combine = {"any": any, "all": all}
    for numbers in itertools.product((0, 1), repeat=3):
        a, b, c = (number == 0 for number in numbers)
        expected = combine[outer]([a, combine[inner]([b, c])])
        assert advanced(tables, ram(1, 1, 1), ram(*numbers))[1] == expected, numbers


@pytest.mark.parametrize("combine", ["any", "all"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_and_all_combine_what_there_is(combine: str, count: int) -> None:
    over = {"condition": combine, **dict(itertools.islice(ZERO.items(), count))}
    tables = {"vars": {"a": A, "b": B, "c": C}, "terminated": over}
    for numbers in itertools.product((0, 1), repeat=count):
        holding = [number == 0 for number in numbers]
        expected = any(holding) if combine == "any" else all(holding)
        assert advanced(tables, ram(1, 1, 1), ram(*numbers))[1] == expected, numbers


def test_a_map_whose_condition_says_nothing_of_combining_means_any() -> None:
    tables = {"vars": {"a": A, "b": B}, "terminated": {"a": ZERO["a"], "b": ZERO["b"]}}
    assert advanced(tables, ram(1, 1), ram(0, 1))[1]
