"""The search in the RAM, against a slow model, and addresses that are known in real games."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from demo_rom import RAM, write_demo
from stepwell.collectors.person.controls import controls_of
from stepwell.collectors.person.play import RamSearch
from stepwell.wrappers.nes import installed_backends
from support.command_line import CommandLine

pygame: Any = pytest.importorskip("pygame", reason="needs pygame: pip install 'stepwell[play]'")
pytestmark = pytest.mark.usefixtures("without_display")

MARK, ROSE, FELL, STAYED = pygame.K_F2, pygame.K_F6, pygame.K_F7, pygame.K_F8
SELECT = pygame.K_RSHIFT
Script = Callable[[int], list[int]]


@st.composite
def presses(draw: st.DrawFn) -> list[tuple[str, list[int]]]:
    kinds = st.sampled_from(["mark", "rose", "fell", "stayed"])
    rams = st.lists(st.sampled_from([0, 1, 127, 128, 255]), min_size=9, max_size=9)
    return draw(st.lists(st.tuples(kinds, rams), max_size=8))


def searched(presses: list[tuple[str, list[int]]]) -> set[int]:
    """Each address is asked about each pair of presses since the last mark."""
    left: set[int] = set()
    before: list[int] = []
    for number, (kind, now) in enumerate(presses):
        if kind == "mark" or number == 0:
            left, before = set(range(9)), now
            continue
        does = {
            "rose": {at for at in left if now[at] > before[at]},
            "fell": {at for at in left if now[at] < before[at]},
            "stayed": {at for at in left if now[at] == before[at]},
        }[kind]
        if does:  # else the press is as if it had not been
            left, before = does, now
    return left


@given(presses())
def test_addresses_stay_that_did_at_each_press_what_it_says(
    presses: list[tuple[str, list[int]]],
) -> None:
    search = RamSearch(lambda: np.zeros(0), "at {0}")
    for count, (kind, ram) in enumerate(presses, 1):
        said = search.press(kind, np.array(ram, np.uint8))
        expected = searched(presses[:count])
        assert set(search.left.tolist()) == expected
        shown = {int(part.split("=")[0], 16) for part in said.split() if "=" in part}
        assert shown == (expected if len(expected) <= 6 else set())
        assert f"{len(expected)} left" in said


def test_the_lines_of_all_searches_are_kept_with_the_values_at_each_press() -> None:
    search = RamSearch(lambda: np.zeros(0), "at {0}")
    assert search.lines() == []
    search.press("rose", np.array([5, 5, 5], np.uint8))  # marks: nothing is compared yet
    assert search.lines() == []
    search.press("rose", np.array([6, 4, 255], np.uint8))
    first = search.lines()
    assert [line for line in first if line[0] != "#"] == ["at 0", "at 2"]
    assert [line.split(": ")[1] for line in first[1::2]] == ["5 6", "5 255"]
    search.press("mark", np.array([6, 4, 255], np.uint8))
    assert search.lines() == first
    search.press("fell", np.array([6, 3, 255], np.uint8))
    assert search.lines()[: len(first)] == first
    assert [line for line in search.lines()[len(first) :] if line[0] != "#"] == ["at 1"]


def test_a_wrong_key_that_would_leave_nothing_changes_nothing() -> None:
    search = RamSearch(lambda: np.zeros(0), "at {0}")
    for kind, value in (("mark", 3), ("rose", 4), ("fell", 5), ("rose", 5)):
        search.press(kind, np.array([value, 0], np.uint8))
    assert search.lines()[1:] == ["# at the presses: 3 4 5", "at 0"]


def test_more_than_six_addresses_are_counted_and_not_named() -> None:
    search = RamSearch(lambda: np.zeros(0), "at {0}")
    for value in (3, 3):
        search.press("stayed", np.full(7, value, np.uint8))
    (line,) = search.lines()
    assert line == "# left after 2 presses: 7"


class Scripted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Posts keys in the step before that number, as a person presses them in it."""

    def __init__(self, env: Any, script: Script) -> None:
        super().__init__(env)
        self.script, self.count, self.reward = script, 0, 0.0

    def step(self, action: Any) -> Any:
        self.count += 1
        for key in self.script(self.count):
            kind = pygame.KEYUP if key < 0 else pygame.KEYDOWN
            pygame.event.post(pygame.event.Event(kind, key=abs(key)))
        result = super().step(action)
        self.reward = float(result[1])
        return result


def played(env: Any, script: Script) -> sw.collectors.PlayReport:
    return sw.play(Scripted(env, script), sw.SequenceReplayBuffer(), seed=0, speed=1000, watch=True)


def lives(count: int) -> list[int]:
    """Two lives are lost by SELECT; between them nothing happens."""
    keys = {
        2: [MARK],
        4: [SELECT, -SELECT],
        8: [FELL],
        14: [STAYED],
        15: [SELECT, -SELECT],
        19: [FELL],
        26: [STAYED],
        28: [pygame.K_ESCAPE],
    }
    return keys.get(count, [])


@pytest.fixture
def demo() -> None:
    if "cynes" not in installed_backends():
        pytest.skip("needs cynes")
    write_demo(".")


def demo_env(game: Any = "game") -> Any:
    return sw.NesEnv(
        "game.nes", game=game, actions="multibinary", frame_skip=4, render_mode="rgb_array"
    )


@pytest.mark.usefixtures("demo")
def test_the_lives_of_the_demo_are_found_and_the_line_fits_into_its_map() -> None:
    env = demo_env()
    report = played(env, lives)
    found = [line for line in report.watched if line[0] != "#"]
    entries = json.loads("{" + "".join(found).rstrip(",") + "}")
    # The byte itself, and the digit on the screen, which docs/nes.md finds, too.
    assert [entry["address"] for entry in entries.values()] == [RAM["lives"], 0x239]
    page = (Path(__file__).parents[3] / "docs" / "playing.md").read_text()
    assert "\n".join(["```text", *report.watched, "```"]) in page
    data = Path("game/data.json")
    text = data.read_text()
    data.write_text(text.replace('"info": {', '"info": {' + "\n".join(found), 1))
    mapped = demo_env()
    _, info = mapped.reset(seed=0)
    (name,) = (name for name, entry in entries.items() if entry["address"] == RAM["lives"])
    assert info[name] == info["lives"] == mapped.ram()[RAM["lives"]] == 3


def test_the_opponents_points_in_pong_are_found_by_losing() -> None:
    pytest.importorskip("ale_py", reason="needs ale-py: pip install 'stepwell[atari]'")
    envs = sw.make_atari("Pong", 1, backend="python", num_workers=0, sticky=0)
    losses: list[int] = []

    def loses(count: int) -> list[int]:
        # The key of a point is pressed in the step after it.
        if env.reward < 0:
            losses.append(count)
            return [ROSE] if len(losses) < 8 else [ROSE, pygame.K_ESCAPE]
        if losses and count - losses[-1] in (5, 15, 25):
            return [STAYED]
        return [MARK] if count == 1 else []

    inner: Any = envs.unwrapped
    env = Scripted(inner.envs[0], loses)
    report = sw.play(env, sw.SequenceReplayBuffer(), seed=0, speed=1000, watch=True)
    envs.close()
    found = [line for line in report.watched if line[0] != "#"]
    assert len(losses) == 8
    (line,) = (line for line in found if "[0x0d]" in line)
    assert eval(line, {"env": inner.envs[0]}) == 8


def test_an_env_without_ram_is_refused_before_anything_is_stored() -> None:
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    with pytest.raises(ValueError, match="CartPole"):
        sw.play(env, "a", watch=True)
    assert not Path("a").exists()


def test_keys_of_the_search_are_taken_with_watch_alone() -> None:
    env = gymnasium.make("CartPole-v1")
    keys = {"commands": {"rose": "f3", "pause": "f6"}}
    assert controls_of(env, keys).command_of("f3") is None
    assert controls_of(env, keys).command_of("f6") == "pause"
    assert controls_of(env, keys, watch=True).command_of("f3") == "rose"
    clash = {"commands": {"pause": "f6"}}
    assert controls_of(env, clash).command_of("f6") == "pause"
    with pytest.raises(ValueError, match=r"'f6'.*rose|rose.*'f6'"):
        controls_of(env, clash, watch=True)


@pytest.mark.usefixtures("demo")
def test_the_command_prints_the_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stepwell = CommandLine(monkeypatch, capsys)
    step, counts = sw.NesEnv.step, iter(range(1, 1000))

    def pressed(self: Any, action: Any) -> Any:
        for key in lives(next(counts)):
            kind = pygame.KEYUP if key < 0 else pygame.KEYDOWN
            pygame.event.post(pygame.event.Event(kind, key=abs(key)))
        return step(self, action)

    monkeypatch.setattr(sw.NesEnv, "step", pressed)
    said = stepwell("play game.nes --game game --watch --speed 1000 --seed 1 --out a")
    assert (said.code, said.err) == (0, "")
    assert '"ram_0x013": {"address": 19, "type": "|u1"},' in said.out.splitlines()
    said = stepwell("play CartPole-v1 --watch --out b")
    assert (said.code, "watch" in said.err, said.err.count("\n")) == (2, True, 1)
    assert not Path("b").exists()
