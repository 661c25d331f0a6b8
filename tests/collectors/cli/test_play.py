"""`stepwell play` as a person has it: a process, a display, and keys of a keyboard."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepwell as sw
from demo_rom import write_demo
from stepwell.wrappers.nes import installed_backends
from support.command_line import CommandLine

pytest.importorskip("pygame", reason="needs pygame: pip install 'stepwell[play]'")

WAIT_SECONDS = 60.0
# An env that notes each action that reaches it, past everything that Stepwell does.
LOGGED = """
import gymnasium, json, numpy as np
from stepwell import NesEnv

class Logged(gymnasium.Wrapper):
    def reset(self, **given):
        self.note("reset")
        return super().reset(**given)
    def step(self, action):
        self.note(np.asarray(action).tolist())
        return super().step(action)
    def note(self, what):
        with open("log.txt", "a") as file:
            print(json.dumps(what), file=file)

def make():
    return Logged(NesEnv("game.nes", game="game", actions="multibinary", frame_skip=4,
                         render_mode="rgb_array"))
"""


@pytest.fixture
def stepwell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return CommandLine(monkeypatch, capsys)


class Keyboard:
    """Sends keys to a display, as an X server gets them from a keyboard."""

    def __init__(self, display: str) -> None:
        self.environment = {**os.environ, "DISPLAY": display}
        self.environment.pop("SDL_VIDEODRIVER", None)

    def __call__(self, *words: str) -> str:
        run = subprocess.run(
            ["xdotool", *words], env=self.environment, capture_output=True, text=True
        )
        return run.stdout

    def play(self, *words: str) -> subprocess.Popen[str]:
        """Run the command."""
        return subprocess.Popen(
            [sys.executable, "-m", "stepwell.collectors.cli", "play", *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def press_until(
        self, key: str, is_there: Callable[[], object], process: subprocess.Popen[str]
    ) -> None:
        """Press a key again and again: a window that is just opening gets none."""

        def pressed() -> object:
            self("key", key)
            return is_there()

        self.wait(pressed, process)

    @staticmethod
    def wait(is_there: Callable[[], object], process: subprocess.Popen[str]) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while not is_there():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.fixture
def keyboard() -> Iterator[Keyboard]:
    if not (shutil.which("Xvfb") and shutil.which("xdotool")):
        pytest.skip("needs Xvfb and xdotool")
    reading, writing = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1280x1024x24", "-nolisten", "tcp"],
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as pipe:
        number = pipe.readline().strip()
    try:
        yield Keyboard(f":{number}")
    finally:
        server.terminate()
        server.wait()


def lines_of_log() -> list[object]:
    path = Path("log.txt")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_keys_of_a_keyboard_are_the_stored_actions_and_the_store_is_proved(
    keyboard: Keyboard, stepwell: CommandLine
) -> None:
    if "cynes" not in installed_backends():
        pytest.skip("needs cynes")
    write_demo(".")
    Path("mine.py").write_text(LOGGED)
    process = keyboard.play("mine:make", "--out", "a", "--seed", "1", "--json")
    try:

        def steps(count: int) -> None:
            goal = len(lines_of_log()) + count
            keyboard.wait(lambda: len(lines_of_log()) >= goal, process)

        keyboard.press_until("ctrl", lambda: len(lines_of_log()) > 1, process)  # any key begins
        keyboard("keydown", "Right")
        steps(6)
        keyboard("keydown", "x")
        steps(4)
        keyboard("keyup", "Right")
        keyboard("keyup", "x")
        steps(4)
        keyboard("key", "r")
        steps(4)
        keyboard("key", "Escape")
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, "")
    log = lines_of_log()
    resets = [place for place, line in enumerate(log) if line == "reset"]
    assert resets[0] == 0
    assert len(resets) == 2
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        episodes = list(replay.iter_episodes())
        rows = [one.action[: one.steps].tolist() for one in episodes]
        assert rows == [log[1 : resets[1]], log[resets[1] + 1 :]]
        assert all(one.fields["extra/human"][: one.steps].all() for one in episodes)
    nothing, right, both = [0] * 8, [0] * 7 + [1], [1] + [0] * 6 + [1]
    assert [nothing, right, both] == [k for k in (nothing, right, both) if k in rows[0]]
    assert rows[0].index(right) < rows[0].index(both)
    assert rows[0][-1] == nothing
    assert json.loads(output)["steps"] == sum(map(len, rows))
    said = stepwell("verify a --replay --env mine:make")
    assert said.code == 0


def test_refusals_are_one_sentence_and_leave_all_as_it_is(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stepwell("collect CartPole-v1 --steps 9 --num-envs 1 --out a").code == 0
    stepwell.refused("play MountainCar-v0 --policy random --out a --resume", "a ")
    stepwell.refused("play CartPole-v1", "--out")
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    stepwell.refused("play CartPole-v1 --out b", "display")
    shown = stepwell("play Pong --print-keys").out  # the keys are a file that is read
    Path("keys.toml").write_text(shown.replace('"space"', '"k"'))
    again = stepwell("play Pong --keys keys.toml --print-keys")
    assert '"FIRE" = ["k", "pad button 0"]' in again.out
