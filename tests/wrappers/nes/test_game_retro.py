"""Values, rewards and ends are those of stable-retro itself, on one RAM."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo_rom import write_demo
from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.nes.ram_map.variable import Variable
from support.models.game_strategies import COMPARING, ORDERS, OTHERS, WINDOW, episodes, scenarios

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

    def play(self, generator: np.random.Generator) -> None:
        """A frame of the game, with some buttons held; rightwards, that something happens."""
        chances = dict(B=0.5, START=0.1, UP=0.2, DOWN=0.2, RIGHT=0.8, A=0.5, SELECT=0.005)
        order = ("B", "", "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")
        drawn = [generator.random() < chances.get(name, 0) for name in order]
        buttons = np.array(drawn, np.uint8)
        self.emulator.set_button_mask(buttons, 0)
        self.emulator.step()
        self.data.update_ram()


@pytest.fixture(scope="module")
def retro(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retro]:
    found = Retro(tmp_path_factory.mktemp("retro"))
    yield found
    found.emulator = None
    gc.collect()  # other tests want to have it


def test_every_type_is_read_alike_while_the_game_runs(retro: Retro) -> None:
    retro.power_on()
    generator = np.random.default_rng(0)
    addresses = [0x10, 0x15, 0x19, 0x1B, 0x200]
    places = [(place, type_) for place in addresses for type_ in TYPES]
    readers = [Variable(*place).reader(retro.peek) for place in places]
    seen = set()
    for _ in range(100):
        retro.play(generator)
        ours = [read() for read in readers]
        assert ours == [retro.data.memory.extract(*place) for place in places]
        seen.update(ours)
    assert len(seen) > 10_000


@given(st.binary(min_size=8, max_size=8), st.sampled_from(TYPES))
def test_every_type_is_read_alike_whatever_the_bytes(retro: Retro, data: bytes, type_: str) -> None:
    for address, byte in enumerate(data, WINDOW.start):
        retro.data.memory.assign(address, "|u1", byte)
    ours = Variable(WINDOW.start, type_).reader(retro.peek)()
    assert ours == retro.data.memory.extract(WINDOW.start, type_)


# With variables of up to 2 bytes all sums are exact, in stable-retro's 32 bits as in our 64.
@settings(max_examples=150)
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


@given(scenarios(most=8), episodes())
def test_wide_variables_pay_alike_but_for_the_rounding_to_32_bits(
    retro: Retro, files: tuple[Any, Any], snapshots: list[bytes]
) -> None:
    game = retro.read(*files)
    tracker = game.tracker(retro.peek)
    retro.put(snapshots[0])
    tracker.begin()
    for ram in snapshots[1:]:
        retro.put(ram)
        tracker.begin_step()
        ours = tracker.advance()
        size = sum(map(abs, tracker.reward_terms.values()))
        assert abs(ours - retro.data.current_reward()) <= 1e-6 * size
        assert tracker.terminated == retro.data.is_done()
        assert tracker.values() == retro.data.lookup_all()


@pytest.mark.parametrize("op", [None, *COMPARING, *OTHERS])
def test_every_operation_pays_and_ends_alike(retro: Retro, op: str | None) -> None:
    info = {"x": {"address": WINDOW.start, "type": "|i1"}}
    for measurement, reference in itertools.product(("absolute", "delta"), (-2, 0, 3)):
        entry: dict[str, Any] = {"measurement": measurement, "reference": reference}
        entry |= {} if op is None else {"op": op}
        paid = {**entry, "reward": 8, "penalty": 3}
        scenario = {"reward": {"variables": {"x": paid}}, "done": {"variables": {"x": entry}}}
        game = retro.read({"info": info}, scenario)
        tracker = game.tracker(retro.peek)
        for number, byte in enumerate((5, 5, 3, 1, 255, 255, 2, 0, 0, 3, 1, 254, 1, 128, 127)):
            retro.put(bytes(WINDOW.start) + bytes([byte]) + bytes(2047 - WINDOW.start))
            if number == 0:
                tracker.begin()
                continue
            assert tracker.advance() == retro.data.current_reward(), (entry, number)
            assert tracker.terminated == retro.data.is_done(), (entry, number)


def test_the_first_frame_of_an_episode_ends_it_alike(retro: Retro) -> None:
    info = {"x": {"address": WINDOW.start, "type": "|u1"}}
    done = {"variables": {"x": {"op": "equal", "reference": 3}}}
    for byte in (2, 3):
        game = retro.read({"info": info}, {"done": done})
        tracker = game.tracker(retro.peek)
        retro.put(bytes(WINDOW.start) + bytes([byte]) + bytes(2047 - WINDOW.start))
        tracker.begin()
        assert tracker.terminated == retro.data.is_done() == (byte == 3)


def test_a_game_is_followed_alike(retro: Retro) -> None:
    info = {
        "lives": {"address": 0x13, "type": "|u1"},
        "score": {"address": 0x15, "type": ">n2"},
        "state": {"address": 0x12, "type": "|u1"},
        "world_x": {"address": 0x19, "type": "<u2"},
    }
    scenario = {
        "reward": {
            "variables": {
                "score": {"reward": 10},
                "lives": {"penalty": 5, "reward": 1},
                "world_x": {"reward": 0.125},
            }
        },
        "done": {
            "variables": {"state": {"op": "equal", "reference": 3}},
            "nodes": {
                "lost": {
                    "condition": "all",
                    "variables": {
                        "state": {"op": "equal", "reference": 2},
                        "lives": {"op": "zero"},
                    },
                }
            },
        },
    }
    game = retro.read({"info": info}, scenario)
    tracker = game.tracker(retro.peek)
    generator = np.random.default_rng(3)
    retro.play(generator)
    tracker.begin()
    rewards, ends = [], []
    for _ in range(1500):
        retro.play(generator)
        rewards.append(tracker.advance())
        ends.append(tracker.terminated)
        assert rewards[-1] == retro.data.current_reward()
        assert ends[-1] == retro.data.is_done()
        assert tracker.values() == retro.data.lookup_all()
    assert len(set(rewards)) > 3
    assert any(ends)
    assert not all(ends)
    assert -5 in rewards


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
