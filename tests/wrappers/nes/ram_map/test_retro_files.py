"""Folders of stable-retro are read as games, or refused in one sentence."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo_rom import write_demo
from stepwell.wrappers.nes.buttons import parse_buttons
from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.nes.ram_map.tables import integration
from stepwell.wrappers.nes.ram_map.variables import Variable
from support.examples import examples
from support.models.game_strategies import ORDERS, WINDOW, episodes, scenarios

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
            with pytest.raises(ValueError, match=r"scenario\.json.*\.lua'\].*stable-retro"):
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
        f"{known}0": f"'{known}'",
        f"../stable/{known}": f"'{known}'",
        known.replace("Nes", "Genesis"): f"'{known}'",
        "": "retro:Name-Nes-v0",
    }
    for name, hint in wrong.items():
        sentence = rf"stable-retro's 298 .* got '{re.escape(name)}'; .*{re.escape(hint)}"
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
    with pytest.raises(
        ImportError, match=r"stable-retro.*pip install 'stepwell\[retro\]'.*data\.json"
    ):
        integration("Small-Nes-v0")


def test_a_folder_is_read_whole(folder: Path) -> None:
    (folder / "rom.sha").write_text(f"{SHA1}\n{SHA1[::-1]}\n", encoding="utf-8")
    done = {"variables": {"lives": {"op": "zero"}}}
    reward = {"variables": {"time": {"reward": 1, "penalty": 0.5}}}
    game = load(folder, {"done": done, "rewards": [reward]})  # of the only player
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


def test_a_variable_may_be_called_as_a_key_of_a_ram_map(folder: Path) -> None:
    info = {name: INFO["lives"] for name in ("condition", "nodes", "var")}
    done = {"variables": {name: {"op": "zero"} for name in info}, "condition": "all"}
    write(folder, {"info": info}, {"done": done})
    game = Game.load(folder)
    assert game.terminated is not None
    assert (game.terminated.combine, list(game.terminated.variables())) == ("all", list(info))
    assert game == Game.load(game.recipe())


# What is in data.json and scenario.json, and the parts of the error message, in order.
REFUSED: list[tuple[dict[str, Any], str]] = [
    # One that is misspelt would be an env without reward, or one that never ends.
    ({"infos": INFO}, "data.json|got 'infos'"),
    ({"dones": {}}, "dones"),
    ({"reward": {"variable": {}}}, "variable"),
    ({"done": {"variable": {}}}, "variable"),
    ({"done": {"nodes": {"a": {"variable": {}}}}}, "variable"),
    ({"done": {"condition": "every"}}, "condition"),
    ({"info": {"x": {"address": 1, "type": "u1"}}}, ", vars, x, type: |got 'u1'"),
    ({"reward": {"variables": {"time": {"reward": 10**400}}}}, "expected a finite number"),
    ({"scripts": ["script.lua"]}, "scenario.json, scripts|['script.lua']|Lua|variables"),
    ({"reward": {"script": "lua:pay"}}, "reward, script|'lua:pay'|Lua"),
    ({"done": {"script": "lua:over"}}, "done, script|'lua:over'|Lua"),
    ({"reward": {"time": {"penalty": 1}}}, "reward, time|{'penalty': 1}"),
    ({"rewards": [{}, {}]}, "rewards|one player|got [{}, {}]"),
    ({"rewards": [{}], "reward": {}}, "rewards|one player|got [{}]"),
    ({"rewards": 3}, "rewards|one player|got 3"),
    ({"reward": {"variables": {"live": {"reward": 1}}}}, "reward, live, var|'lives'"),
    ({"reward": {"variables": {"lives": {"rewrad": 1}}}}, "lives|got 'rewrad'|'reward'"),
    ({"reward": {"variables": {"lives": {}}}}, "reward, lives, reward|penalty"),
    ({"reward": {"variables": {"lives": 3}}}, "reward, variables, lives|table|got 3"),
    ({"reward": 3}, "reward|table|got 3"),
    (
        {"done": {"variables": {"lives": {"op": "equal", "reference": "2"}}}},
        "lives, reference|got '2'",
    ),
    ({"done": {"variables": {"lives": {"op": "is"}}}}, "terminated, lives, op|got 'is'"),
    ({"done": {"nodes": {"a": {}}}}, "terminated, nodes, a: |got none"),
    ({"done": {"condition": "all"}}, "terminated: |got none"),
    ({"actions": [[["FIRE"]]]}, "actions|UP, DOWN|got [[['FIRE']]]"),
    ({"actions": [[None]]}, "actions|got [[None]]"),
    ({"actions": 3}, "actions|got 3"),
    ({"actions": []}, "actions|got []"),
    ({"actions": [[["A"]], []]}, "actions|got [[['A']], []]"),
    ({"crop": [1, 2, 3]}, "crop|[x, y, width, height]|got [1, 2, 3]"),
    ({"crop": [0.5, 2, 3, 1]}, "crop|got [0.5"),
    ({"crop": [-20, 2, 3, 1]}, "crop, scenario|240 rows"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[str(case)[:70] for case, _ in REFUSED])
def test_what_is_not_supported_is_refused_in_one_sentence(
    folder: Path, given: dict[str, Any], message: str
) -> None:
    data = {key: given[key] for key in given if key.startswith("info")}
    scenario = {key: given[key] for key in given if key not in data}
    write(folder, {"info": INFO, **data}, scenario)
    parts = ".*".join(map(re.escape, message.split("|")))
    with pytest.raises(ValueError, match=parts) as caught:
        Game.load(folder)
    assert str(caught.value).startswith("Small-Nes-v0")
    assert "\n" not in str(caught.value)


def test_a_folder_without_the_files_is_refused(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Small-Nes-v0.*got no data\.json"):
        Game.load(folder)
    (folder / "data.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"Small-Nes-v0.*got no scenario\.json"):
        Game.load(folder)


@pytest.mark.parametrize(
    ("text", "got"),
    [(b"{", "JSON.*line 1 column 2"), (b"\xff\xfe", "JSON.*0xff"), (b"[1, 2]", r"got \[1, 2\]")],
    ids=["cut", "no text", "list"],
)
def test_a_file_that_is_no_json_table_is_refused(folder: Path, text: bytes, got: str) -> None:
    write(folder, {}, {})
    (folder / "scenario.json").write_bytes(text)
    with pytest.raises(ValueError, match=rf"^Small-Nes-v0/scenario\.json: .*{got}"):
        Game.load(folder)


def test_deeply_nested_files_large_files_and_pipes_are_refused(folder: Path) -> None:
    (folder / "scenario.json").write_text("{}")
    for depth in (60, 100_000):
        (folder / "data.json").write_text(json.dumps({"info": INFO}))
        node = '{"nodes": {"a": ' * depth + "{}" + "}}" * depth
        (folder / "scenario.json").write_text(f'{{"done": {node}}}')
        with pytest.raises(
            ValueError, match=r"Small-Nes-v0/scenario\.json.*(50 levels|JSON.*1,048,576 bytes)"
        ):
            Game.load(folder)
    (folder / "scenario.json").write_text(" " * (2 << 20))
    with pytest.raises(ValueError, match=r"scenario\.json: .*1,048,576 bytes"):
        Game.load(folder)
    (folder / "data.json").unlink()
    os.mkfifo(folder / "data.json")
    with pytest.raises(ValueError, match=r"data\.json: .*regular file.*pipe"):
        Game.load(folder)


stable_retro: Any = pytest.importorskip("stable_retro", reason="needs stable-retro")

TYPES = [f"{order}{kind}{width}" for order in ORDERS for kind in "uidn" for width in range(1, 9)]


class Retro:
    """The one emulator that stable-retro allows in a process, and its reading of scenarios."""

    def __init__(self, folder: Path) -> None:
        rom, _ = write_demo(folder)
        self.folder = folder
        self.emulator = stable_retro.RetroEmulator(str(rom))
        self.power_on()

    def power_on(self) -> None:
        self.data = stable_retro.data.GameData()
        self.emulator.configure_data(self.data)
        self.emulator.step()

    def read(self, data: object, scenario: object) -> Game:
        """The same two files, read by both."""
        for name, found in (("data", data), ("scenario", scenario)):
            (self.folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
        self.data = stable_retro.data.GameData()
        self.emulator.configure_data(self.data)
        paths = [str(self.folder / f"{name}.json") for name in ("data", "scenario")]
        assert self.data.load(*paths)
        return Game.load(self.folder)

    def peek(self, address: int) -> int:
        return int(self.data.memory.extract(address, "|u1"))

    def put(self, ram: bytes) -> None:
        """Write the window's bytes, and let stable-retro look at them as after a frame."""
        for address in WINDOW:
            self.data.memory.assign(address, "|u1", ram[address])
        self.data.update_ram()


@pytest.fixture(scope="module")
def retro(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retro]:
    found = Retro(tmp_path_factory.mktemp("retro"))
    yield found
    found.emulator = None
    gc.collect()  # other tests want to have it


@given(st.binary(min_size=8, max_size=8), st.sampled_from(TYPES))
def test_every_type_is_read_alike_whatever_the_bytes(retro: Retro, data: bytes, type_: str) -> None:
    for address, byte in enumerate(data, WINDOW.start):
        retro.data.memory.assign(address, "|u1", byte)
    ours = Variable(WINDOW.start, type_).reader(retro.peek)()
    assert ours == retro.data.memory.extract(WINDOW.start, type_)


# With variables of up to 2 bytes all sums are exact, in stable-retro's 32 bits as in our 64.
@settings(max_examples=examples(150))
@given(scenarios(most=2), episodes())
def test_values_rewards_and_ends_are_alike(
    retro: Retro, files: tuple[Any, Any], snapshots: list[bytes]
) -> None:
    game = retro.read(*files)
    tracker = game.tracker(retro.peek)
    retro.put(snapshots[0])
    tracker.begin()
    for ram in snapshots[1:]:
        retro.put(ram)
        assert tracker.advance() == retro.data.current_reward()
        assert tracker.terminated == retro.data.is_done()
        assert tracker.values() == retro.data.lookup_all()


ACTIONS = [
    [[[], ["UP"], ["DOWN"]], [[], ["LEFT"], ["RIGHT"]], [[], ["A"], ["B"], ["A", "B"], ["SELECT"]]],
    [[[], ["RIGHT"]], [[], ["A"], ["B"], ["A", "B"]]],
    [[["B"], [], ["A"]], [["START"], []]],
    [[["UP"]]],
    [[[], ["A"]], [[], ["A"]]],
    [[[], ["A"]], [["A"]]],
    [[["A"]], [[], ["A"]]],
    [[[], ["A"]], [["A"], ["B"]]],
]


@pytest.mark.parametrize("actions", ACTIONS, ids=str)
def test_the_actions_and_their_order_are_those_of_its_discrete_space(
    retro: Retro, actions: list[list[list[str]]]
) -> None:
    game = retro.read({"info": {}}, {"actions": actions})
    combos = retro.data.valid_actions()
    names = ("B", "", "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")
    expected = []
    for number in range(int(np.prod([len(combo) for combo in combos]))):
        held, rest = 0, number
        for combo in combos:  # as RetroEnv takes a number apart
            held, rest = held | combo[rest % len(combo)], rest // len(combo)
        expected.append({name for bit, name in enumerate(names) if held >> bit & 1} or {"NOOP"})
    assert game.actions is not None
    assert [set(action.split("+")) for action in game.actions] == expected


@given(st.lists(st.integers(0, 300), min_size=4, max_size=4))
def test_the_crop_cuts_the_same_picture(retro: Retro, crop: list[int]) -> None:
    if crop[0] >= 240 or crop[1] >= 224:
        return
    game = retro.read({"info": {}}, {"crop": crop})
    x, y, width, height = retro.data.crop_info()
    # As RetroEnv.get_screen does it, in a picture of which stable-retro shows all but 8 pixels.
    end_x = 240 if not width or x + width > 240 else x + width
    end_y = 224 if not height or y + height > 224 else y + height
    if crop == [0, 0, 0, 0]:
        assert game.crops == {}
        return
    top, bottom, left, right = game.crops["scenario"]
    assert (left, 256 - right, top, 240 - bottom) == (x + 8, end_x + 8, y + 8, end_y + 8)
