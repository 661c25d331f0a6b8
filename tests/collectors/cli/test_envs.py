"""`stepwell envs`: the envs that can be made here, and names that look alike."""

from __future__ import annotations

import gymnasium
import pytest

from stepwell.collectors.cli.envs import nearest, suggestion
from stepwell.wrappers.make_vector_env import make_vec
from stepwell.wrappers.nes import installed_backends
from support.command_line import CommandLine
from support.programs import run_python


def test_envs_finds_games_and_ids_by_part_of_their_name(stepwell: CommandLine) -> None:
    assert stepwell("envs ms_pac").out.split()[0] == "ALE/MsPacman-v5"
    assert stepwell("envs pong").out.split()[0] == "ALE/Pong-v5"
    assert "ALE/Pong-v5" in stepwell("envs").out.split()
    assert "CartPole-v1" in stepwell("envs cartpole").out.split()
    assert "PongNoFrameskip-v4" not in stepwell("envs").out.split()
    assert "PongNoFrameskip-v4" in stepwell("envs pong").out.split()


def test_the_json_of_envs_names_what_is_missing_for_which_env(stepwell: CommandLine) -> None:
    report = stepwell.json("envs")
    assert "ALE/Pong-v5" in report["atari"]
    assert "Ant-v2" in report["missing"]["gymnasium-robotics"]
    assert "Ant-v2" not in report["ready"]
    nes = report["nes"]
    assert nes["installed"] == installed_backends()
    assert {*nes["installed"], *nes["missing"]} == {"cynes", "nes-py", "stable-retro"}
    assert all("pip install 'stepwell[" in cure for cure in nes["missing"].values())


@pytest.mark.proof
def test_envs_listed_as_ready_can_be_made() -> None:
    program = """
import gymnasium
from stepwell.collectors.cli.envs import catalogue
for name in catalogue().ready:
    gymnasium.make(name).close()
"""  # in a process of its own: some start JAX, after which no test may fork
    run_python("-c", program, warnings="default")


def test_of_several_versions_the_newest_is_suggested() -> None:
    for version in (9, 10):
        gymnasium.register(f"Quagmire-v{version}", entry_point="support.envs.fakes:CounterEnv")
    try:
        assert nearest("quagmyre") == ["Quagmire-v10"]
        assert nearest("CartPole-v9")[0] == "CartPole-v1"
        assert nearest("zzzzzzzz") == []
    finally:
        for version in (9, 10):
            del gymnasium.registry[f"Quagmire-v{version}"]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("MiniGrid-Nowhere-v0", "minigrid:MiniGrid-Nowhere-v0"),
        ("FetchNothing-v4", "gymnasium_robotics:FetchNothing-v4"),
        ("dm_control/nothing-v0", "shimmy:dm_control/nothing-v0"),
    ],
)
def test_ids_of_known_packages_need_their_module(name: str, full: str) -> None:
    assert full in suggestion(name, "")
    with pytest.raises(ValueError, match=full):
        make_vec(name, 2)


@pytest.mark.parametrize("pattern", ["", " nes"])
def test_a_terminal_shows_emulators_in_a_group_with_what_they_are_for(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("COLUMNS", "100")
    text = stepwell(f"envs{pattern}").out
    group = text[text.index("NES cartridges") :].splitlines()
    assert "stepwell collect game.nes --backend NAME" in group[0]
    there = [f"{name} {version}" for name, version in installed_backends().items()]
    assert [line.strip() for line in group[1 : 1 + len(there)]] == there
    assert sum(": pip install 'stepwell[" in line for line in group) == 3 - len(there)
    assert ("Gymnasium's" in text) == (not pattern)
