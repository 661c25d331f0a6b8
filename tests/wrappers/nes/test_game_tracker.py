"""The tracker tells what the slow model tells, and goes on from what it saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.nes.ram_map.tracker import GameTracker
from support.models import game_model
from support.models.game_strategies import episodes, maps


class Ram:
    """A console that shows one snapshot of the RAM after the other."""

    def __init__(self, snapshots: list[bytes]) -> None:
        self.snapshots = snapshots
        self.frame = 0
        self.reads = 0

    def peek(self, address: int) -> int:
        self.reads += 1
        return self.snapshots[self.frame][address]


def played(tracker: GameTracker, ram: Ram) -> Iterator[float]:
    """The rewards, frame by frame, from where the console stands to the last snapshot."""
    while ram.frame + 1 < len(ram.snapshots):
        ram.frame += 1
        yield tracker.advance()


@settings(max_examples=150)
@given(maps(), episodes())
def test_it_tells_what_the_model_tells(tables: dict[str, Any], snapshots: list[bytes]) -> None:
    ram = Ram(snapshots)
    tracker = Game.load(tables).tracker(ram.peek)
    tracker.begin()
    first = snapshots[0]
    assert tracker.terminated == game_model.is_over(tables, first, first)
    assert tracker.still_frames == 0
    for reward in played(tracker, ram):
        new, old = snapshots[ram.frame], snapshots[ram.frame - 1]
        pays = game_model.pays(tables, new, old)
        assert reward == pytest.approx(sum(pays.values()), abs=1e-9)
        assert tracker.reward_terms == pays
        tracker.begin_step()
        assert tracker.terminated == game_model.is_over(tables, new, old)
        assert tracker.still_frames == game_model.still_frames(tables, snapshots[: ram.frame + 1])
        values = {name: game_model.value(tables, name, new) for name in tables["vars"]}
        assert tracker.values() == values
        assert tracker.lives() == values.get("lives")


@settings(max_examples=100)
@given(maps(), episodes(), st.data())
def test_what_it_saved_goes_on_in_another_one(
    tables: dict[str, Any], snapshots: list[bytes], data: st.DataObject
) -> None:
    game, ram = Game.load(tables), Ram(snapshots)
    tracker = game.tracker(ram.peek)
    tracker.begin()
    saved_at = data.draw(st.integers(0, len(snapshots) - 1))
    for _ in range(saved_at):
        ram.frame += 1
        tracker.advance()
    saved = tracker.save()
    kept = json.loads(json.dumps(saved))
    expected = list(seen(tracker, ram))
    ram.frame = 0
    other = game.tracker(ram.peek)
    other.begin()
    ram.frame = saved_at
    other.load(saved)
    assert list(seen(other, ram)) == expected
    assert saved == kept


def seen(tracker: GameTracker, ram: Ram) -> Iterator[tuple[object, ...]]:
    def now() -> tuple[object, ...]:
        terms = dict(tracker.reward_terms)
        return tracker.terminated, tracker.still_frames, terms, tracker.values()

    yield now()
    for reward in played(tracker, ram):
        yield (reward, *now())


def tracker_of(tables: dict[str, Any], *bytes_at_0x10: int) -> tuple[GameTracker, Ram]:
    """One that began, over a RAM in which one byte changes from frame to frame."""
    ram = Ram([bytes(0x10) + bytes([byte]) + bytes(2031) for byte in bytes_at_0x10])
    tracker = Game.load(tables).tracker(ram.peek)
    tracker.begin()
    return tracker, ram


BYTE = {"address": 0x10, "type": "|u1"}


def test_changes_count_from_the_first_frame_of_the_episode_not_from_before() -> None:
    tracker, ram = tracker_of({"vars": {"x": BYTE}, "reward": {"x": {"reward": 1}}}, 7, 9, 30)
    assert list(played(tracker, ram)) == [2, 21]
    ram.frame = 0
    tracker.begin()
    assert tracker.advance() == 0
    assert list(played(tracker, ram)) == [2, 21]


def test_a_loss_pays_minus_the_penalty_and_nothing_of_the_reward() -> None:
    tables = {"vars": {"lives": BYTE}, "reward": {"lives": {"reward": 2, "penalty": 5}}}
    tracker, ram = tracker_of(tables, 3, 2, 4, 4)
    assert list(played(tracker, ram)) == [-5, 4, 0]


def test_a_change_above_the_limit_pays_nothing_and_the_next_one_counts_from_there() -> None:
    tables = {"vars": {"x": BYTE}, "reward": {"x": {"reward": 1, "penalty": 1, "limit": 5}}}
    tracker, ram = tracker_of(tables, 0, 5, 11, 12, 6, 1)
    assert list(played(tracker, ram)) == [5, 0, 1, 0, -5]


def test_a_limit_holds_for_what_a_comparison_sees_too() -> None:
    entry = {"op": "nonzero", "reward": 1, "limit": 5}
    tracker, ram = tracker_of({"vars": {"x": BYTE}, "reward": {"x": entry}}, 0, 5, 11, 11)
    assert list(played(tracker, ram)) == [1, 0, 0]


def test_a_counter_that_wraps_goes_on() -> None:
    """E5: deltas of wrapping counters."""
    tables = {"vars": {"x": {**BYTE, "wrap": 256}}, "reward": {"x": {"reward": 1, "penalty": 1}}}
    tracker, ram = tracker_of(tables, 254, 1, 255)
    assert list(played(tracker, ram)) == [3, -2]


def test_the_terms_of_a_step_are_summed_and_the_last_steps_are_left_alone() -> None:
    tables = {"vars": {"x": BYTE}, "reward": {"x": {"reward": 1}, "a": {"var": "x", "penalty": 1}}}
    tracker, ram = tracker_of(tables, 0, 2, 5, 1)
    list(played(tracker, ram))
    before = tracker.reward_terms
    assert before == {"x": 5, "a": -4}
    tracker.begin_step()
    assert tracker.reward_terms == {"x": 0, "a": 0}
    assert before == {"x": 5, "a": -4}


def test_without_a_map_there_is_nothing() -> None:
    ram = Ram([bytes(2048)] * 4)
    tracker = Game.load(None).tracker(ram.peek)
    tracker.begin()
    assert list(played(tracker, ram)) == [0.0, 0.0, 0.0]
    assert (tracker.terminated, tracker.still_frames) == (False, 0)
    assert (tracker.values(), tracker.lives(), tracker.reward_terms) == ({}, None, {})
    assert ram.reads == 0


def test_a_frame_reads_only_what_it_needs_and_each_once() -> None:
    wide = {"address": 0x20, "type": ">n6"}
    tables = {
        "vars": {"x": BYTE, "unused": wide},
        "reward": {"x": {"reward": 1}, "again": {"var": "x", "penalty": 1}},
        "terminated": {"x": {"op": "equal", "reference": 9}},
    }
    tracker, ram = tracker_of(tables, 0, 1, 2)
    ram.reads = 0
    list(played(tracker, ram))
    assert ram.reads == 2


def test_the_reward_is_a_python_float_also_where_nothing_paid() -> None:
    tracker, ram = tracker_of({"vars": {"x": BYTE}, "reward": {"x": {"reward": 1}}}, 0, 0, 1)
    assert [type(reward) for reward in played(tracker, ram)] == [float, float]


def test_a_condition_on_a_change_does_not_hold_on_the_first_frame() -> None:
    over = {"x": {"op": "nonzero", "measurement": "delta"}}
    tracker, ram = tracker_of({"vars": {"x": BYTE}, "terminated": over}, 3, 2, 2)
    seen = [tracker.terminated]
    for _ in played(tracker, ram):
        seen.append(tracker.terminated)
    assert seen == [False, True, False]


def test_an_episode_begins_with_nothing_of_the_one_before() -> None:
    over = {"x": {"op": "equal", "reference": 5}}
    tables = {"vars": {"x": BYTE}, "reward": {"x": {"reward": 1}}, "terminated": over}
    tracker, ram = tracker_of(tables, 3, 5, 5, 5)
    list(played(tracker, ram))
    assert (tracker.terminated, tracker.still_frames, tracker.reward_terms) == (True, 2, {"x": 2})
    ram.frame = 0
    tracker.begin()
    assert (tracker.terminated, tracker.still_frames, tracker.reward_terms) == (False, 0, {"x": 0})


def test_only_the_watched_variables_keep_a_game_from_standing_still() -> None:
    other = {"address": 0x11, "type": "|u1"}
    tables = {
        "vars": {"z": BYTE, "b": other, "a": {"address": 0x12, "type": "|u1"}},
        "reward": {"z": {"reward": 1}},
        "terminated": {"a": {"op": "equal", "reference": 9}},
        "stuck": {"vars": ["b"]},
    }
    ram = Ram([bytes(0x10) + bytes(row) + bytes(2029) for row in ((0, 0, 0), (1, 0, 8), (1, 2, 9))])
    tracker = Game.load(tables).tracker(ram.peek)
    tracker.begin()
    seen = []
    for reward in played(tracker, ram):
        seen.append((reward, tracker.terminated, tracker.still_frames))
    assert seen == [(1, False, 1), (0, True, 0)]


def test_a_game_that_was_over_when_it_was_saved_is_over_again() -> None:
    over = {"x": {"op": "negative", "measurement": "delta"}}
    tables = {"vars": {"x": BYTE}, "terminated": over}
    tracker, ram = tracker_of(tables, 3, 2, 2)
    ram.frame = 1
    tracker.advance()
    other, _ = tracker_of(tables, 2)
    other.load(tracker.save())
    assert other.terminated


def spoilt(state: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    return {**state, key: value}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: None,
        lambda _: {},
        lambda _: [1, 2],
        lambda state: spoilt(state, "values", {"y": 1}),
        lambda state: spoilt(state, "values", {}),
        lambda state: spoilt(state, "values", 3),
        lambda state: spoilt(state, "reward_terms", {"x": 0, "y": 1}),
        lambda state: spoilt(state, "more", 1),
        lambda state: spoilt(state, "values", {"x": "a"}),
        lambda state: spoilt(state, "still_frames", None),
        lambda state: spoilt(state, "reward_terms", {"x": []}),
    ],
    ids=range(11),
)
def test_a_state_of_something_else_is_refused_and_nothing_changes(
    spoil: Callable[[dict[str, Any]], object],
) -> None:
    tracker, ram = tracker_of({"vars": {"x": BYTE}, "reward": {"x": {"reward": 1}}}, 3, 5)
    list(played(tracker, ram))
    before: Any = tracker.save()
    with pytest.raises(ValueError, match=r"tracker state: expected .* got .*; (use|save) "):
        tracker.load(spoil(before))
    assert tracker.save() == before
