"""`stepwell collect --processes N --groups G`: the data of one process, from several."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from support.command_line import CommandLine, has_parts

POLE = "collect CartPole-v1 --num-envs 2 --steps 240 --seed 7"


@pytest.fixture(autouse=True)
def path_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """The modules of tests are found in other processes, too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.mark.proof
def test_a_store_goes_on_with_its_groups(stepwell: CommandLine) -> None:
    first = stepwell(f"{POLE} --groups 2 --out a")  # in one process
    assert has_parts(first.out, "2 groups|1 process")
    assert stepwell(f"{POLE} --processes 2 --out b").code == 0
    again = stepwell.json("collect CartPole-v1 --steps 60 --resume --processes 2 --out a")
    assert (len(again["groups"]), again["actors"], again["num_envs"]) == (2, 2, 2)
    assert again["seed"] == 7
    same = stepwell.json("collect CartPole-v1 --steps 60 --resume --out b")
    assert (len(same["groups"]), same["actors"]) == (2, 1)
    assert same["digest"] == again["digest"]
    for more, parts in (
        ("--processes 3", "--processes 3: |2 groups of a"),
        ("--workers 2", "--workers 2: |groups of a"),
    ):
        stepwell.refused(f"collect CartPole-v1 --steps 60 --resume {more} --out a", parts)
    other = stepwell.json("collect CartPole-v1 --steps 60 --resume --groups 1 --out a")
    assert len(other["groups"]) == 1


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--processes 2 --workers 1", "--workers 1: |none|--processes"),
        ("--groups 2 --workers 3", "--workers 3: |none|--groups"),
        ("--groups 2 --processes 3", "--processes 3: |2 groups of --groups|--groups"),
        ("--groups 0", "--groups: |>= 1|'0'"),
        ("--processes -1", "--processes: |>= 0|'-1'"),
        ("--groups 9_000 --shard 1/2", "groups|10,000|18000"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: str, parts: str, stepwell: CommandLine
) -> None:
    stepwell.refused(f"{POLE} {options} --out new", parts)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ("mine:unmade", "mine.py:|raised NameError: |undefined|--debug"),
        ("Pong --mode 77", "mode: |got 77"),
        ("ends:end", "group 0|max_restarts=3|exit code 4"),
    ],
)
def test_an_error_in_a_process_is_told_as_here(env: str, parts: str, stepwell: CommandLine) -> None:
    stepwell.write("ends", "import os\ndef end(): os._exit(4)\n")
    stepwell.refused(f"collect {env} --processes 1 --steps 40 --out new", parts)


@pytest.mark.proof
def test_a_process_that_died_is_told_and_changes_nothing(stepwell: CommandLine) -> None:
    stepwell.write(
        "dies",
        "import os, gymnasium as gym\n"
        "class Dies(gym.Wrapper):\n"
        "    def step(self, action):\n"
        "        if os.path.exists('deadly'): os.remove('deadly'); os._exit(4)\n"
        "        return super().step(action)\n"
        "def make(): return Dies(gym.make('CartPole-v1'))\n",
    )
    command = "collect dies:make --num-envs 2 --steps 2000 --seed 7 --processes 2"
    quiet = stepwell.json(f"{command} --out a")
    Path("deadly").touch()
    told = stepwell(f"{command} --out b")
    assert (told.code, has_parts(told.out, "2 processes|1 died")) == (0, True), told
    assert f"digest {quiet['digest']}" in told.out
