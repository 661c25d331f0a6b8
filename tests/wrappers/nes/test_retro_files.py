"""Folders of stable-retro are read as games, or refused in one sentence."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepwell.wrappers.nes.buttons import parse_buttons
from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.nes.ram_map.retro_files import integration

needs_retro = pytest.mark.skipif(
    importlib.util.find_spec("stable_retro") is None, reason="needs stable-retro"
)
INFO = {"lives": {"address": 0x13, "type": "|u1"}, "time": {"address": 0x14, "type": "|u1"}}
SHA1 = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "Small-Nes-v0"
    found.mkdir()
    return found


def write(folder: Path, data: object, scenario: object) -> None:
    (folder / "data.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "scenario.json").write_text(json.dumps(scenario), encoding="utf-8")


def load(folder: Path, scenario: object) -> Game:
    write(folder, {"info": INFO}, scenario)
    return Game.load(folder)


def integrations() -> list[Path]:
    spec = importlib.util.find_spec("stable_retro")
    assert spec is not None
    return sorted((Path(str(spec.origin)).parent / "data").glob("*/*-Nes-v0"))


@needs_retro
def test_of_its_298_integrations_276_are_read_and_22_with_scripts_are_refused() -> None:
    seen: Counter[str] = Counter()
    for folder in integrations():
        if list(folder.glob("*.lua")):
            with pytest.raises(ValueError, match=r"which is code in Lua for stable-retro alone"):
                Game.load(folder)
            seen["refused"] += 1
            continue
        game = Game.load(folder)
        seen["read"] += 1
        info = json.loads((folder / "data.json").read_text("utf-8"))["info"]
        assert {name: variable.recipe() for name, variable in game.variables.items()} == info
        assert game.name == folder.name
        assert game.sha1 == ((folder / "rom.sha").read_text("utf-8").strip(),)
        assert game.reward
        assert game.can_terminate
        assert game == Game.load(f"retro:{folder.name}")
        assert game == Game.load(json.loads(json.dumps(game.recipe())))
        for action in game.actions or ():
            parse_buttons(action)
        seen["actions"] += game.actions is not None
    assert seen == {"read": 276, "refused": 22, "actions": 2}


@needs_retro
def test_an_unknown_integration_is_refused_with_the_nearest() -> None:
    known = integrations()[0].name
    wrong = {
        f"{known}0": f"did you mean '{known}'",
        f"../stable/{known}": f"did you mean '{known}'",
        known.replace("Nes", "Genesis"): "did you mean",
        "": "write retro:Name-Nes-v0",
    }
    for name, hint in wrong.items():
        sentence = rf"one of stable-retro's 298 .* got '{re.escape(name)}'; {re.escape(hint)}"
        with pytest.raises(ValueError, match=sentence):
            Game.load(f"retro:{name}")


def test_of_two_integrations_of_one_name_the_stable_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("stable_retro", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    for collection in ("contrib", "experimental", "stable"):
        (tmp_path / "data" / collection / "Small-Nes-v0").mkdir(parents=True)
    assert integration("Small-Nes-v0") == tmp_path / "data" / "stable" / "Small-Nes-v0"


def test_without_stable_retro_an_integration_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"pip install 'stepwell\[retro\]', or give the folder"):
        integration("Small-Nes-v0")


def test_a_folder_is_read_whole(folder: Path) -> None:
    (folder / "rom.sha").write_text(f"{SHA1}\n{SHA1[::-1]}\n", encoding="utf-8")
    done = {"variables": {"lives": {"op": "zero"}}}
    reward = {"variables": {"time": {"reward": 1, "penalty": 0.5}}}
    game = load(folder, {"done": done, "reward": reward})
    assert game.recipe() == {
        "name": "Small-Nes-v0",
        "rom": {"sha1": [SHA1, SHA1[::-1]]},
        "vars": INFO,
        "reward": {"time": {"var": "time", "measurement": "delta", "reward": 1.0, "penalty": 0.5}},
        "terminated": {
            "condition": "any",
            "lives": {"var": "lives", "measurement": "absolute", "op": "zero"},
        },
        "life": {"var": "lives"},
    }


def test_without_a_variable_lives_there_is_no_life_variable(folder: Path) -> None:
    write(folder, {"info": {"life": INFO["lives"]}}, {})
    assert Game.load(folder).life is None


def test_a_text_names_a_folder_too(folder: Path) -> None:
    assert load(folder, {}) == Game.load(str(folder))


def test_an_empty_scenario_pays_nothing_and_never_ends(folder: Path) -> None:
    game = load(folder, {"done": {}, "reward": {}, "crop": [0, 0, 0, 0], "scripts": []})
    assert (game.reward, game.terminated, game.crops, game.actions) == ((), None, {}, None)


def test_equal_without_a_reference_compares_with_zero_as_stable_retro_does(folder: Path) -> None:
    game = load(folder, {"done": {"variables": {"lives": {"op": "equal"}}}})
    tracker = game.tracker(bytes(2048).__getitem__)
    tracker.begin()
    assert tracker.terminated


def test_a_reference_that_no_operation_needs_means_nothing(folder: Path) -> None:
    entry = {"op": "zero", "reference": 7}
    same = load(folder, {"done": {"variables": {"lives": {"op": "zero"}}}})
    assert load(folder, {"done": {"variables": {"lives": entry}}}) == same


def test_a_variable_may_be_called_as_a_key_of_a_ram_map(folder: Path) -> None:
    info = {name: INFO["lives"] for name in ("condition", "nodes", "var")}
    done = {"variables": {name: {"op": "zero"} for name in info}, "condition": "all"}
    write(folder, {"info": info}, {"done": done})
    game = Game.load(folder)
    assert game.terminated is not None
    assert (game.terminated.combine, list(game.terminated.variables())) == ("all", list(info))
    assert game == Game.load(game.recipe())


def test_the_reward_of_the_only_player_is_the_reward(folder: Path) -> None:
    reward = {"variables": {"time": {"reward": 1}}}
    assert load(folder, {"rewards": [reward]}) == load(folder, {"reward": reward})


# A scenario, and what the sentence says, in order.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scripts": ["script.lua"]}, "Small-Nes-v0/scenario.json, scripts|['script.lua']|Lua|.toml"),
    ({"reward": {"script": "lua:pay"}}, "reward, script|'lua:pay'|Lua"),
    ({"done": {"script": "lua:over"}}, "done, script|'lua:over'|Lua"),
    ({"reward": {"time": {"penalty": 1}}}, "reward, time|for each frame|in a wrapper"),
    ({"rewards": [{}, {}]}, "rewards|one player|keep one"),
    ({"rewards": [{}], "reward": {}}, "rewards|one player"),
    ({"rewards": 3}, "rewards|one player|got 3"),
    ({"reward": {"variables": {"live": {"reward": 1}}}}, "[reward], live, var|'lives'"),
    ({"reward": {"variables": {"lives": {"rewrad": 1}}}}, "lives|got 'rewrad'|'reward'"),
    ({"reward": {"variables": {"lives": {}}}}, "lives, reward|got neither"),
    ({"reward": {"variables": {"lives": 3}}}, "reward, variables, lives|a table|got 3"),
    ({"reward": 3}, "reward|expected a table|got 3"),
    ({"done": {"variables": {"lives": {"op": "equal", "reference": "2"}}}}, "whole number|got '2'"),
    ({"done": {"variables": {"lives": {"op": "is"}}}}, "[terminated], lives, op|got 'is'"),
    ({"done": {"nodes": {"a": {}}}}, "nodes, a: expected at least one test"),
    ({"done": {"condition": "all"}}, "[terminated]: expected at least one test"),
    ({"actions": [[["FIRE"]]]}, "actions|UP, DOWN|got [[['FIRE']]]"),
    ({"actions": [[None]]}, "actions|got [[None]]"),
    ({"actions": 3}, "actions|got 3"),
    ({"actions": []}, "actions|got []"),
    ({"actions": [[["A"]], []]}, "actions|got [[['A']], []]"),
    ({"crop": [1, 2, 3]}, "crop|[x, y, width, height]|got [1, 2, 3]"),
    ({"crop": [0.5, 2, 3, 1]}, "crop|got [0.5"),
    ({"crop": [-20, 2, 3, 1]}, "[crop], scenario|240 rows"),
]


@pytest.mark.parametrize(("scenario", "says"), REFUSED, ids=[str(case) for case, _ in REFUSED])
def test_a_scenario_that_cannot_be_kept_is_refused_in_a_sentence(
    folder: Path, scenario: object, says: str
) -> None:
    parts = ".*".join(map(re.escape, says.split("|")))
    with pytest.raises(ValueError, match=parts) as caught:
        load(folder, scenario)
    assert str(caught.value).startswith("Small-Nes-v0")
    assert "\n" not in str(caught.value)


def test_a_folder_without_the_files_is_refused(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected data.json and .* got no data.json"):
        Game.load(folder)
    (folder / "data.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"got no scenario.json; give the folder"):
        Game.load(folder)


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[1, 2]"], ids=["cut", "no text", "list"])
def test_a_file_that_is_no_json_table_is_refused(folder: Path, text: bytes) -> None:
    write(folder, {}, {})
    (folder / "scenario.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"^Small-Nes-v0/scenario.json: expected .*, got "):
        Game.load(folder)


def test_a_type_that_stable_retro_would_skip_is_refused(folder: Path) -> None:
    write(folder, {"info": {"x": {"address": 1, "type": "u1"}}}, {})
    with pytest.raises(ValueError, match=r"Small-Nes-v0, \[vars\], x, type: expected"):
        Game.load(folder)


def test_files_nested_without_end_and_pipes_are_told(folder: Path) -> None:
    (folder / "scenario.json").write_text("{}")
    for depth in (60, 100_000):
        (folder / "data.json").write_text(json.dumps({"info": INFO}))
        node = '{"nodes": {"a": ' * depth + "{}" + "}}" * depth
        (folder / "scenario.json").write_text(f'{{"done": {node}}}')
        with pytest.raises(ValueError, match=r"at most 50 levels|expected JSON"):
            Game.load(folder)
    (folder / "map.toml").write_text("x = " + "[" * 10_000 + "]" * 10_000)
    with pytest.raises(ValueError, match=r"map\.toml: expected TOML"):
        Game.load(folder / "map.toml")
    (folder / "map.toml").write_text("#" * (2 << 20))
    with pytest.raises(ValueError, match="at most 1,048,576 bytes"):
        Game.load(folder / "map.toml")
    (folder / "data.json").unlink()
    os.mkfifo(folder / "data.json")
    with pytest.raises(ValueError, match="expected a regular file"):
        Game.load(folder)
