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
class SecondSeed(Sound):
    def seen(self):
        return super().seen() | {"goal": self.goal + 9 * (self.np_random_seed == 1)}
"""


@pytest.fixture
def stepwell(stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setattr(env_file, "_FIRST_SECONDS", math.inf)  # not cut where the machine is busy
    stepwell.write("faulty", FAULTY)
    return stepwell


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
    ],
)
def test_what_cannot_be_checked_exits_with_2(
    stepwell: CommandLine, command: str, named: str
) -> None:
    result = stepwell(command)
    assert (result.code, result.out) == (2, "")
    assert named in result.err


def test_rows_that_another_process_does_not_repeat_fail_the_replay(stepwell: CommandLine) -> None:
    found = {
        one["name"]: one
        for one in json.loads(stepwell("check faulty:Process --json").out)["checks"]
    }
    assert found["seeds"]["verdict"] == "ok"
    assert found["replay"]["verdict"] == "FAIL"
    assert "reward" in found["replay"]["seen"]


def test_an_env_that_cannot_be_made_again_is_a_warning(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("Mine-v0", entry_point=lambda **_: Sound())
    monkeypatch.setitem(gymnasium.registry, "Mine-v0", spec)
    found = {one["name"]: one for one in stepwell.json("check Mine-v0")["checks"]}
    assert found["replay"]["verdict"] == "warning"
    assert "--env" in found["replay"]["seen"]


def test_problems_of_the_vector_env_fail(stepwell: CommandLine) -> None:
    result = stepwell("check faulty:SecondSeed")
    assert result.code == 1
    assert lines(result.out)["vector env"] == "FAIL"
    assert "env 1" in result.out


def test_a_slow_env_is_not_collected(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_file, "_FIRST_SECONDS", 0.0)
    found = {one["name"]: one for one in stepwell.json("check faulty:Sound")["checks"]}
    assert found["vector env"]["verdict"] == "warning"
    assert "1 step" in found["vector env"]["seen"]
    assert "replay" not in found


@pytest.mark.proof
@pytest.mark.parametrize("env", ["Pong", "Pong --backend python --frame-stack none"])
def test_an_atari_game_is_all_ok(stepwell: CommandLine, env: str) -> None:
    assert {one["verdict"] for one in stepwell.json(f"check {env}")["checks"]} == {"ok"}


@pytest.mark.proof
def test_a_cartridge_is_checked_and_played_again(stepwell: CommandLine) -> None:
    if "cynes" not in installed_backends():
        pytest.skip("needs cynes")
    write_demo(".")
    found = stepwell.json("check game.nes --game game --actions game --max-frames 400")
    verdicts = {one["name"]: one["verdict"] for one in found["checks"]}
    assert {name for name in verdicts if verdicts[name] != "ok"} == {"starts"}  # one boot script
    assert verdicts["replay"] == "ok"
