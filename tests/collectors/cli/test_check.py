"""`stepwell check`: verdicts, exit codes, JSON, costs, and what only collecting shows."""

from __future__ import annotations

import json
import math

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from demo_rom import write_demo
from stepwell.wrappers.check import env as env_file
from stepwell.wrappers.nes import installed_backends
from support.command_line import CommandLine
from support.envs.faulty import Sound

FAULTY = """
import os
from support.envs.faulty import NaN, Sound

class Process(Sound):
    def reward(self): return float(os.getpid() % 9973)
class Hangs(Sound):
    def step(self, action):
        while True: pass
class SecondSeed(Sound):
    def seen(self):
        return super().seen() | {"goal": self.goal + 9 * (self.np_random_seed == 1)}
"""


@pytest.fixture
def stepwell(stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setattr(env_file, "_FIRST_SECONDS", math.inf)  # not cut where the machine is busy
    stepwell.write("faulty", FAULTY)
    return stepwell


def checks(text: str) -> dict[str, dict[str, str]]:
    """The checks of a report in JSON by their names."""
    return {one["name"]: one for one in json.loads(text)["checks"]}


def lines(text: str) -> dict[str, str]:
    """The verdict of each check by its name."""
    found = [line.partition(":")[0].split(maxsplit=1) for line in text.splitlines()]
    return {pair[1]: pair[0] for pair in found if pair[0] in ("ok", "warning", "FAIL")}


def test_a_sound_env_is_all_ok_and_its_costs_are_shown(stepwell: CommandLine) -> None:
    result = stepwell("check CartPole-v1")
    assert (result.code, result.err) == (0, "")
    found = lines(result.out)
    assert {"made", "seeds", "copies", "vector env", "replay"} <= set(found)
    assert set(found.values()) <= {"ok", "warning"}  # a picture needs pygame
    assert {name for name in found if found[name] != "ok"} <= {"render"}
    assert result.out.splitlines()[-1].startswith(f"CartPole-v1: {len(found)} checks, ")
    assert "a million steps: " in result.out


def test_a_fault_exits_with_1_and_stops_what_depends_on_it(stepwell: CommandLine) -> None:
    result = stepwell("check faulty:NaN")
    assert result.code == 1
    found = lines(result.out)
    assert found["observations"] == "FAIL"
    assert "step 7: observation['goal']" in result.out
    assert not {"vector env", "replay"} & set(found)
    assert "1 FAIL" in result.out.splitlines()[-1]


def test_a_step_that_hangs_exits_with_1(stepwell: CommandLine) -> None:
    result = stepwell("check faulty:Hangs --limit 1")
    assert result.code == 1
    assert lines(result.out) == {"step": "FAIL"}
    assert "step 1: no answer within 1 s, in faulty.py:" in result.out


def test_json_is_one_object(stepwell: CommandLine) -> None:
    found = stepwell.json("check faulty:Sound")
    assert found["env"] == "faulty:Sound"
    assert found["is_fine"]
    assert {"name", "verdict", "seen", "cure"} == set(found["checks"][0])
    assert {one["verdict"] for one in found["checks"]} == {"ok"}
    costs = found["costs"]
    assert all(number > 0 for number in costs.values())
    assert costs["raw_bytes_per_step"] == pytest.approx(34, abs=3)  # 6 floats, reward and flags
    result = stepwell("check faulty:NaN --json")
    assert result.code == 1
    assert not json.loads(result.out)["is_fine"]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("check CartPoll-v1", "CartPole"),
        ("check faulty:Missing", "'Missing'"),
        ("check CartPole-v1 --sticky 0.5", "--sticky"),
        ("check Pong --game map", "--game"),
        ("check lost.nes", "lost.nes"),
        ("check", "ENV"),
        ("check faulty:Sound --limit 0", "limit"),
    ],
)
def test_what_cannot_be_checked_exits_with_2(
    stepwell: CommandLine, command: str, named: str
) -> None:
    stepwell.refused(command, named)


def test_what_another_process_and_another_env_do_otherwise_fails(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checks(stepwell("check faulty:Process --json").out)
    assert (found["seeds"]["verdict"], found["replay"]["verdict"]) == ("ok", "FAIL")
    assert "reward" in found["replay"]["seen"]
    result = stepwell("check faulty:SecondSeed")
    assert (result.code, lines(result.out)["vector env"]) == (1, "FAIL")
    assert "env 1" in result.out
    # One that cannot be made again is a warning.
    spec = EnvSpec("Mine-v0", entry_point=lambda **_: Sound())
    monkeypatch.setitem(gymnasium.registry, "Mine-v0", spec)
    found = checks(stepwell("check Mine-v0 --json").out)
    assert found["replay"]["verdict"] == "warning"
    assert "--env" in found["replay"]["seen"]


def test_a_slow_env_is_not_collected(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_file, "_FIRST_SECONDS", 0.0)
    found = checks(stepwell("check faulty:Sound --json").out)
    assert found["vector env"]["verdict"] == "warning"
    assert "1 step" in found["vector env"]["seen"]
    assert "replay" not in found


@pytest.mark.proof
@pytest.mark.parametrize("env", ["Pong", "Pong --backend python --frame-stack none", "game.nes"])
def test_games_are_all_ok(stepwell: CommandLine, env: str) -> None:
    if env == "game.nes":
        if "cynes" not in installed_backends():
            pytest.skip("needs cynes")
        write_demo(".")
        env += " --game game --actions game --max-frames 400"
    found = checks(stepwell(f"check {env} --json").out)
    odd = {name for name in found if found[name]["verdict"] != "ok"}
    assert odd == ({"starts"} if "game.nes" in env else set())  # one boot script
    assert found["replay"]["verdict"] == "ok"
