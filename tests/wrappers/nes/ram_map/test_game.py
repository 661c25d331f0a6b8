"""`Game.load`: its sources and the games that they give."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from demo_rom import build_rom
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.ram_map.game import Game, GameTracker
from support.examples import examples
from support.models import game_model
from support.models.game_strategies import episodes, maps

FULL: dict[str, Any] = {
    "name": "A game",
    "boot": "NOOP 20, START 3",
    "actions": ["NOOP", "RIGHT+A"],
    "rom": {"sha256": ["AB" * 32, "AB" * 32]},
    "vars": {
        "lives": {"address": 0x13, "type": "|u1"},
        "world_x": {"address": 0x19, "type": "<u2", "wrap": 65536},
        "flags": {"address": 0x20, "type": "|u1", "mask": 0x0F},
    },
    "reward": {"world_x": {"reward": 0.5, "limit": 5}, "lives": {"penalty": 5}},
    "terminated": {
        "condition": "all",
        "dead": {"var": "lives", "op": "zero"},
        "nodes": {"far": {"world_x": {"op": "greater-than", "reference": 768}}},
    },
    "life": {"var": "lives"},
    "stuck": {"vars": ["world_x", "world_x"]},
    "crop": {"status": {"top": 32}, "frame": {"top": 8, "bottom": 8, "left": 4, "right": 6}},
}


def test_tables_are_read_whole() -> None:
    game = Game.load(FULL)
    assert (game.name, game.boot, game.actions) == (
        "A game",
        "NOOP 20, START 3",
        ("NOOP", "RIGHT+A"),
    )
    assert list(game.variables) == ["lives", "world_x", "flags"]
    assert game.variables["world_x"].wrap == 65536
    assert game.variables["flags"].mask == 15
    assert [(term.name, term.reward, term.penalty, term.limit) for term in game.reward] == [
        ("world_x", 0.5, 0.0, 5.0),
        ("lives", 0.0, 5.0, None),
    ]
    assert game.can_terminate
    assert game.terminated is not None
    assert game.terminated.combine == "all"
    assert list(game.terminated.variables()) == ["lives", "world_x"]
    assert (game.life, game.stuck, game.watched) == ("lives", ("world_x",), ("world_x",))
    assert dict(game.crops) == {"status": (32, 0, 0, 0), "frame": (8, 8, 4, 6)}
    assert game.sha256 == ("ab" * 32,) * 2
    assert Game.load(json.loads(json.dumps(game.recipe()))) == game


def test_nothing_is_a_game_of_which_nothing_is_known() -> None:
    game = Game.load(None)
    assert game.variables == {}
    assert (game.boot, game.actions, game.life, game.terminated, game.reward) == (
        None, None, None, None, ()
    )  # fmt: skip
    assert not game.can_terminate
    assert game.recipe() == {"name": "unknown"}


@given(maps())
def test_a_recipe_is_json_that_makes_an_equal_game(tables: dict[str, Any]) -> None:
    game = Game.load({**tables, "name": "x"})
    recipe = game.recipe()
    again = Game.load(json.loads(json.dumps(recipe)))
    assert again == game
    assert again.recipe() == recipe
    assert pickle.loads(pickle.dumps(game)) == game
    assert copy.deepcopy(game) == game


@pytest.mark.parametrize("kind", ["sha256", "sha1"])
def test_a_map_is_for_the_cartridges_that_it_names(kind: str) -> None:
    """SHA-256 is of the file; SHA-1 is stable-retro's, of what follows the header."""
    data = build_rom()
    cartridge = Cartridge.read(data)
    digest = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "sha1": hashlib.sha1(data[16:]).hexdigest(),
    }[kind]
    other = digest[::-1]
    Game.load({"rom": {kind: digest.upper()}}).check_cartridge(cartridge)
    Game.load({"rom": {kind: [other, digest]}}).check_cartridge(cartridge)
    Game.load({}).check_cartridge(cartridge)
    with pytest.raises(
        ValueError, match=rf"cartridge 'bytes': .*{other}.* 'a map'.*, got {digest};"
    ):
        Game.load({"name": "a map", "rom": {kind: other}}).check_cartridge(cartridge)


@pytest.mark.parametrize(
    ("source", "error", "sentence"),
    [
        (3, TypeError, "game: .*None.*Game.* got int"),
        ([{}], TypeError, "game: .* got list"),
        ({1: {}}, ValueError, "game: .*got {1: {}}"),
        (b"game", TypeError, "game: .* got bytes"),
        ("nowhere", FileNotFoundError, "game: .*got 'nowhere'"),
        ("data.json", ValueError, r"game: .*data\.json.*got .*data\.json'.*TOML.*nes\.md"),
        ("game.toml", ValueError, r"game: .*data\.json.*got .*game\.toml'.*TOML.*nes\.md"),
    ],
)
def test_what_is_no_game_is_refused(source: Any, error: type[Exception], sentence: str) -> None:
    for name in ("data.json", "game.toml"):
        Path(name).write_text("{}", encoding="utf-8")
    with pytest.raises(error, match=sentence):
        Game.load(source)


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


@settings(max_examples=examples(150))
@given(maps(), episodes())
@example(
    {"vars": {"x": {"address": 0, "type": "|u1"}}, "terminated": {"condition": "all", "x": {}}},
    [bytes(2048), b"\1" + bytes(2047)],
)
def test_it_returns_what_the_model_returns(tables: dict[str, Any], snapshots: list[bytes]) -> None:
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


@pytest.mark.proof
@settings(max_examples=examples(100))
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


def test_a_gain_or_loss_above_the_limit_pays_nothing() -> None:
    tables = {"vars": {"x": BYTE}, "reward": {"x": {"reward": 2, "penalty": 5, "limit": 6}}}
    tracker, ram = tracker_of(tables, 3, 2, 9, 1, 7)
    assert list(played(tracker, ram)) == [-5, 0, 0, 12]


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


@pytest.mark.parametrize(
    "spoilt",
    [
        None,
        {},
        [1, 2],
        {"values": {"y": 1}},
        {"values": {}},
        {"values": 3},
        {"reward_terms": {"x": 0, "y": 1}},
        {"more": 1},
        {"values": {"x": "a"}},
        {"still_frames": None},
        {"reward_terms": {"x": []}},
    ],
    ids=str,
)
def test_a_state_of_something_else_is_refused_and_nothing_changes(spoilt: Any) -> None:
    tracker, ram = tracker_of({"vars": {"x": BYTE}, "reward": {"x": {"reward": 1}}}, 3, 5)
    list(played(tracker, ram))
    before: Any = tracker.save()
    with pytest.raises(ValueError, match=r"^tracker state: .*(GameTracker\.save|\['x'\].*), got "):
        tracker.load({**before, **spoilt} if isinstance(spoilt, dict) and spoilt else spoilt)
    assert tracker.save() == before
