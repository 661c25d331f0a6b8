"""`stepwell collect game.nes`: stored rows, `--resume`, and `stepwell info`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell as sw
from demo_rom import write_demo
from stepwell.wrappers.nes import installed_backends
from stepwell.wrappers.nes.emulators import NesBackend
from support.command_line import CommandLine, has_parts

PLAY = "collect game.nes --game game --actions game --num-envs 2"


@pytest.fixture
def stepwell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    write_demo(".")
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(params=["cynes", "nes-py", "stable-retro"])
def backend(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in installed_backends():
        pytest.skip(f"needs {name}")
    return name


@pytest.fixture
def fastest() -> NesBackend:
    return first_of("stable-retro", "nes-py", "cynes")


def first_of(*names: NesBackend) -> NesBackend:
    for name in names:
        if name in installed_backends():
            return name
    pytest.skip(f"needs {' or '.join(names)}")


def version_of(backend: str) -> str:
    return next(version for name, version in installed_backends().items() if name == backend)


def test_whole_episodes_of_a_cartridge_are_stored_with_its_variables(
    stepwell: CommandLine, backend: str
) -> None:
    said = stepwell.json(
        f"{PLAY} --backend {backend} --max-frames 60 --episodes 4 --seed 1 --workers 0 --out a "
        f"--info score --info lives",
    )
    assert (said["env"], said["num_envs"], said["episodes"]) == ("game.nes", 2, 4)
    recipe = said["session"]["recipe"]
    assert (recipe["maker"], recipe["backend"]) == ("make_nes", backend)
    assert said["session"]["versions"][backend] == version_of(backend)
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        first = next(replay.iter_episodes())
        assert (first.steps, bool(first.truncated[-1])) == (15, True)
        assert first.observation.shape == (16, 84, 84)
        assert first.fields["info/lives"].tolist() == [3] * 16
        assert first.fields["info/score"].dtype.kind == "i"


def test_a_cartridge_is_known_by_its_first_bytes_too(
    stepwell: CommandLine, fastest: NesBackend
) -> None:
    Path("game.nes").rename("Pong")  # also a game's name, but it is a file that is there
    said = stepwell.json(f"collect Pong --backend {fastest} --workers 0 --steps 8 --out a")
    assert said["session"]["recipe"]["cartridge"]["name"] == "Pong"


def test_equal_seeds_give_equal_data_whatever_the_number_of_workers(
    stepwell: CommandLine, fastest: NesBackend
) -> None:
    command = f"{PLAY} --backend {fastest} --noop-max 30 --sticky 0.25 --steps 100"
    digests = {
        stepwell.json(f"{command} --seed 1 --workers {workers} --out {workers}")["digest"]
        for workers in (0, 1, 2)
    }
    assert len(digests) == 1
    other = stepwell.json(f"{command} --seed 2 --workers 0 --out other")
    assert other["digest"] not in digests


def test_resume_goes_on_with_ids_seeds_and_number_of_envs(
    stepwell: CommandLine, fastest: NesBackend
) -> None:
    command = f"{PLAY} --backend {fastest} --noop-max 30 --max-frames 60 --workers 0 --out a"
    first = stepwell.json(f"{command} --episodes 4 --seed 7")
    again = command.replace(" --num-envs 2", "")
    second = stepwell.json(f"{again} --episodes 4 --resume")
    assert (second["num_envs"], second["seed"]) == (2, 7)
    assert second["total_steps"] == first["steps"] + second["steps"]
    assert second["digest"] != first["digest"]
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        episodes = list(replay.iter_episodes())
    assert len({episode.id for episode in episodes}) == len(episodes) >= 8


@pytest.mark.parametrize("change", ["--frame-skip 2", "--crop overscan", "--actions simple"])
def test_a_store_of_other_envs_is_not_added_to(
    stepwell: CommandLine, fastest: NesBackend, change: str
) -> None:
    command = f"{PLAY} --backend {fastest} --workers 0 --steps 8 --out a"
    stepwell.json(command)
    result = stepwell(f"{command} --resume {change}")
    assert result.code == 2
    changed = change.split()[0].removeprefix("--").replace("-", "_")
    assert has_parts(result.err, f"stepwell: a |{changed} of the envs was |, is "), result.err


def test_info_says_game_file_hash_and_emulator_and_no_more_of_the_map(
    stepwell: CommandLine, fastest: NesBackend
) -> None:
    stepwell.json(f"{PLAY} --backend {fastest} --workers 0 --steps 8 --out a")
    text = " ".join(stepwell("info a").out.split())
    assert "env game (game.nes, sha256 ecd0b80eb430), " in text
    assert f"backend={fastest}, actions=NOOP RIGHT RIGHT+A LEFT" in text
    assert "boot='NOOP 20, START 3, NOOP 5'" in text
    assert f"{fastest} {version_of(fastest)}" in text
    assert "{" not in text


def test_info_of_a_cartridge_without_a_map_names_the_file(
    stepwell: CommandLine, fastest: NesBackend
) -> None:
    stepwell.json(f"collect game.nes --backend {fastest} --workers 0 --steps 8 --out a")
    assert "env game.nes, sha256 ecd0b80eb430, backend" in " ".join(stepwell("info a").out.split())


def test_lost_lives_end_episodes_when_asked_to(stepwell: CommandLine, fastest: NesBackend) -> None:
    # Random buttons, SELECT among them, which loses a life of the test game at once.
    command = (
        f"{PLAY} --backend {fastest} --workers 0 --episodes 4 --seed 0 --life-loss end "
        f"--info lives --out a"
    ).replace("--actions game", "--actions NOOP,SELECT")
    assert stepwell.json(command)["episodes"] == 4
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        ended = [one for one in replay.iter_episodes() if one.terminated[-1]]
    assert len(ended) >= 4
    for episode in ended:
        lives = episode.fields["info/lives"]
        assert lives[-1] < lives[0] <= 3


def test_episodes_begin_at_a_saved_snapshot(stepwell: CommandLine) -> None:
    backend = first_of("stable-retro", "cynes")  # the states of nes-py cannot be saved
    env = sw.NesEnv("game.nes", backend=backend, game="game", actions=["NOOP", "SELECT"])
    env.reset()
    for action in (1, 0, 0):
        _, _, _, _, report = env.step(action)
    env.snapshot().save("later.state")
    env.close()
    command = f"collect game.nes --game game --backend {backend} --workers 0 --steps 8"
    stepwell.json(f"{command} --start later.state --info lives --out a")
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        lives = next(replay.iter_episodes()).fields["info/lives"]
    assert lives[0] == report["lives"] < 3
    text = " ".join(stepwell("info a").out.split())
    assert re.search(r", start=[0-9a-f]{12}, ", text)


def test_memory_can_be_observed(stepwell: CommandLine, fastest: NesBackend) -> None:
    command = f"collect game.nes --backend {fastest} --workers 0 --steps 8 --ram --frame-stack 1"
    stepwell.json(f"{command} --out a")
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert next(replay.iter_episodes()).observation.shape[-1] == 2048


def test_an_emulator_that_is_not_installed_names_the_package_to_install(
    stepwell: CommandLine,
) -> None:
    missing = [name for name in ("cynes", "nes-py") if name not in installed_backends()]
    if not missing:
        pytest.skip("needs a backend that is not installed")
    result = stepwell(f"collect game.nes --backend {missing[0]} --steps 8 --out a")
    assert result.code == 2
    assert result.err.count("\n") == 1
    extra = {"cynes": "nes", "nes-py": "nes-py"}[missing[0]]
    parts = f"'{missing[0]}'|pip install 'stepwell[{extra}]'"
    assert has_parts(result.err, parts), result.err
    assert not Path("a").exists()


@pytest.mark.proof
def test_the_command_starts_without_looking_at_emulators() -> None:
    code = (
        "import sys; from stepwell.collectors.cli import app; app.main(['--version']); "
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert not [name for name in loaded if name.startswith("stepwell.wrappers.nes.")]
    assert not {"cynes", "nes_py", "stable_retro", "cv2", "ale_py"} & set(loaded)
