"""What can be given as a game, and what a `Game` is."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from demo_rom import build_rom
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.ram_map.game import Game
from support.models.game_strategies import maps

FULL = """
name = "A game"
boot = "NOOP 20, START 3"
actions = ["NOOP", "RIGHT+A"]
[rom]
sha256 = ["{digest}", "{digest}"]
[vars]
lives = {{ address = 0x13, type = "|u1" }}
world_x = {{ address = 0x19, type = "<u2", wrap = 65536 }}
flags = {{ address = 0x20, type = "|u1", mask = 0x0F }}
[reward]
world_x = {{ reward = 0.5, limit = 5 }}
lives = {{ penalty = 5 }}
[terminated]
condition = "all"
dead = {{ var = "lives", op = "zero" }}
[terminated.nodes.far]
world_x = {{ op = "greater-than", reference = 768 }}
[life]
var = "lives"
[stuck]
vars = ["world_x", "world_x"]
[crop]
status = {{ top = 32 }}
frame = {{ top = 8, bottom = 8, left = 4, right = 6 }}
"""


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "a game.toml"
    path.write_text(FULL.format(digest="AB" * 32), encoding="utf-8")
    return path


def test_a_file_is_read_whole(full: Path) -> None:
    game = Game.load(full)
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


def test_a_path_is_a_text_or_a_path(full: Path) -> None:
    assert Game.load(str(full)) == Game.load(full)


def test_a_game_is_given_back(full: Path) -> None:
    game = Game.load(full)
    assert Game.load(game) is game


def test_a_file_without_a_name_is_called_by_its_files(tmp_path: Path) -> None:
    path = tmp_path / "my game.toml"
    path.write_text("", encoding="utf-8")
    assert Game.load(path) == Game(name="my game")


def test_nothing_is_a_game_of_which_nothing_is_known() -> None:
    game = Game.load(None)
    assert game.variables == {}
    assert (game.boot, game.actions, game.life, game.terminated, game.reward) == (
        None, None, None, None, ()
    )  # fmt: skip
    assert not game.can_terminate
    assert game.recipe() == {"name": "unknown"}


def test_without_stuck_variables_those_that_pay_are_watched() -> None:
    byte = {"address": 0, "type": "|u1"}
    paid = {"b": {"reward": 1}, "again": {"var": "b", "penalty": 1}, "a": {"reward": 1}}
    assert Game.load({"vars": {"a": byte, "b": byte}, "reward": paid}).watched == ("b", "a")


@given(maps())
def test_a_recipe_is_json_that_makes_an_equal_game(tables: dict[str, Any]) -> None:
    game = Game.load({**tables, "name": "x"})
    recipe = game.recipe()
    again = Game.load(json.loads(json.dumps(recipe)))
    assert again == game
    assert again.recipe() == recipe
    assert pickle.loads(pickle.dumps(game)) == game
    assert copy.deepcopy(game) == game


CHANGES: list[Mapping[str, object]] = [
    {"name": "Another"},
    {"boot": "START 1"},
    {"actions": []},
    {"actions": ["RIGHT+A", "NOOP"]},
    {"rom": {"sha256": "cd" * 32}},
    {"rom": {"sha1": "ab" * 20}},
    {"vars": {"x": {"address": 0x11, "type": "|u1"}, "y": {"address": 2, "type": "|u1"}}},
    {"vars": {"x": {"address": 0x10, "type": "|i1"}, "y": {"address": 2, "type": "|u1"}}},
    {"reward": {"x": {"reward": 2}}},
    {"reward": {"x": {"reward": 1, "limit": 3}}},
    {"reward": {"x": {"reward": 1, "op": "sign"}}},
    {"reward": {"z": {"var": "x", "reward": 1}}},
    {"terminated": {"x": {"op": "equal", "reference": 4}}},
    {"terminated": {"x": {"op": "zero"}}},
    {"terminated": {"condition": "all", "x": {"op": "equal", "reference": 3}}},
    {"terminated": {"nodes": {"n": {"x": {"op": "equal", "reference": 3}}}}},
    {"life": {"var": "y"}},
    {"stuck": {"vars": ["y"]}},
    {"crop": {"status": {"top": 9}}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_games_that_differ_have_recipes_that_differ(change: Mapping[str, object]) -> None:
    base = {
        "name": "One",
        "vars": {"x": {"address": 0x10, "type": "|u1"}, "y": {"address": 2, "type": "|u1"}},
        "reward": {"x": {"reward": 1}},
        "terminated": {"x": {"op": "equal", "reference": 3}},
    }
    first, second = Game.load(base), Game.load({**base, **change})
    assert first != second
    assert first.recipe() != second.recipe()


def test_nobody_changes_a_game(full: Path) -> None:
    game = Game.load(full)
    with pytest.raises(dataclasses.FrozenInstanceError):
        game.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        game.variables["lives"] = game.variables["flags"]  # type: ignore[index]
    with pytest.raises(TypeError):
        game.crops["status"] = (0, 0, 0, 0)  # type: ignore[index]
    recipe: Any = game.recipe()
    recipe["vars"].clear()
    assert list(game.variables) == ["lives", "world_x", "flags"]


def test_a_map_changed_after_it_was_read_changes_no_game() -> None:
    tables = {"vars": {"x": {"address": 0x10, "type": "|u1"}}, "actions": ["A"]}
    game = Game.load(tables)
    tables["vars"]["y"] = tables["vars"]["x"]  # type: ignore[index]
    tables["actions"].append("B")  # type: ignore[attr-defined]
    assert (list(game.variables), game.actions) == (["x"], ("A",))


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
        ValueError, match=rf"cartridge 'bytes': expected .*{other}.* 'a map'.*, got {digest}; use"
    ):
        Game.load({"name": "a map", "rom": {kind: other}}).check_cartridge(cartridge)


@pytest.mark.parametrize(
    ("source", "error", "sentence"),
    [
        (3, TypeError, "game: expected None, a Game, a path, .* got int; see Game.load"),
        ([{}], TypeError, "got list"),
        ({1: {}}, ValueError, "game: expected a table with named entries, got {1: {}}"),
        (b"game.toml", TypeError, "got bytes"),
        ("nowhere.toml", FileNotFoundError, "'nowhere.toml', which does not exist; check"),
        ("nowhere", FileNotFoundError, "expected a .toml file, a folder .* got 'nowhere', which"),
    ],
)
def test_what_is_no_game_is_refused(source: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Game.load(source)


def test_a_file_that_is_no_toml_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"got the file '.*data.json'; .* give its folder"):
        Game.load(path)
