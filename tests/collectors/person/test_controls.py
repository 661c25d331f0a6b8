"""The keys of envs, and the actions of buttons that are held, against a slow search."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell.collectors.person.controls import COMMANDS, Controls, controls_of

pytest.importorskip("pygame", reason="needs pygame: pip install 'stepwell[play]'")

BUTTONS = "ABCD"
SETS = [frozenset(c) for k in range(5) for c in itertools.combinations(BUTTONS, k)]


def searched(actions: dict[frozenset[str], int], held: list[str]) -> int | None:
    """Larger sets first; of equally large ones that with the newest button, and so on."""
    for size in range(len(held), -1, -1):
        # Combinations of the newest first are in the order of their newest buttons.
        for names in itertools.combinations(held[::-1], size):
            if frozenset(names) in actions:
                return actions[frozenset(names)]
    return None


@given(st.sets(st.sampled_from(SETS)), st.permutations(BUTTONS), st.integers(0, 4))
@example({frozenset("BC"), frozenset("AD")}, list(BUTTONS), 4)
def test_the_action_is_that_of_most_of_the_held_buttons_and_of_the_newest(
    known: set[frozenset[str]], order: list[str], count: int
) -> None:
    actions = {names: number for number, names in enumerate(sorted(known, key=sorted))}
    controls = Controls(actions, {}, {})
    assert controls.action_of(order[:count]) == searched(actions, order[:count])


class Spaced(gymnasium.Env[Any, Any]):
    def __init__(self, space: spaces.Space[Any], meanings: list[str] | None = None) -> None:
        self.action_space = space
        self.observation_space = spaces.Discrete(2)
        if meanings is not None:
            self.get_action_meanings = lambda: meanings


@pytest.mark.parametrize(
    ("meanings", "held", "key"),
    [
        (["NOOP", "UPRIGHTFIRE"], {"UP", "RIGHT", "FIRE"}, ("space", "FIRE")),
        (["NOOP", "LEFT+A"], {"LEFT", "A"}, ("x", "A")),
    ],
)
def test_names_of_atari_and_nes_actions_are_buttons_of_a_joypad(
    meanings: list[str], held: set[str], key: tuple[str, str]
) -> None:
    controls = controls_of(Spaced(spaces.Discrete(2), meanings))
    assert controls.actions == {frozenset(): 0, frozenset(held): 1}
    assert controls.buttons.keys() == held
    assert controls.button_of(key[0]) == key[1]


@pytest.mark.parametrize("space", [spaces.Discrete(4, start=3), spaces.MultiBinary(3)])
def test_the_actions_of_a_space_without_names_are_on_the_digits(space: Any) -> None:
    controls = controls_of(Spaced(space))
    assert all(space.contains(np.asarray(one)[()]) for one in controls.actions.values())
    one = controls.action_of(["2"])
    expected = 5 if isinstance(space, spaces.Discrete) else [0, 0, 1]
    assert np.array_equal(one, expected)
    assert controls.button_of("2") == "2"


def test_a_method_get_keys_to_action_gives_the_keys() -> None:
    class Keyed(Spaced):
        def get_keys_to_action(self) -> dict[Any, Any]:
            return {"w": 1, ("a", " "): 2, (1073741904,): 0}

    controls = controls_of(Keyed(spaces.Discrete(3)))
    assert controls.action_of(["a", "space"]) == 2
    assert controls.action_of(["left"]) == 0
    assert not controls.has_noop


def test_a_file_of_keys_that_was_written_gives_the_same_keys(tmp_path: Path) -> None:
    space = spaces.Box(-1, 1, (2,))
    keys: dict[str, dict[str, Any]] = {
        "buttons": {"GO": ["g", "pad axis 5 +"], "LEFT": "h"},
        "actions": {"NOOP": [0, 0], "GO": [1, 0], "GO+LEFT": [1, 0.5]},
        "commands": {"pause": ["f1"]},
    }
    first = controls_of(Spaced(space), keys)
    path = tmp_path / "keys.toml"
    path.write_text(first.to_toml())
    again = controls_of(Spaced(space), path)
    assert again.buttons == first.buttons == {"GO": ("g", "pad axis 5 +"), "LEFT": ("h",)}
    assert again.commands == first.commands == {**COMMANDS, "pause": ("f1",)}
    assert again.actions.keys() == first.actions.keys()
    assert again.action_of(["LEFT", "GO"]).tolist() == [1, 0.5]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"button": {}}, ["'button'"]),
        ({"buttons": {"JUMP": "x"}}, ["'JUMP'", "LEFT"]),
        ({"buttons": {"LEFT": "lefty"}}, ["'lefty'", "'LEFT'"]),
        ({"buttons": {"LEFT": "pad axis 1"}}, ["'pad axis 1'"]),
        ({"buttons": {"LEFT": 3}}, ["'LEFT'", "3"]),
        ({"buttons": {"LEFT": []}}, ["'LEFT'"]),
        ({"buttons": {"LEFT": "p"}}, ["'p'", "LEFT", "pause"]),
        ({"commands": {"stop": "s"}}, ["'stop'", "quit"]),
        ({"actions": {"LEFT": 2}}, ["'LEFT'", "2"]),
        ({"actions": {"LEFT": 0.5}}, ["'LEFT'", "0.5"]),
        ({"actions": {"LEFT": "no"}}, ["'LEFT'", "'no'"]),
        ({"actions": {"NOOP": 0}}, ["[actions]"]),
        ({"actions": {"GO": 0}}, ["'GO'", "[buttons]"]),
    ],
)
def test_wrong_keys_are_refused_by_their_names(keys: Any, words: list[str]) -> None:
    with pytest.raises(ValueError, match="keys") as caught:
        controls_of(Spaced(spaces.Discrete(2), ["NOOP", "LEFT"]), keys)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_space_without_usual_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="Box"):
        controls_of(Spaced(spaces.Box(-1, 1, (2,))))
