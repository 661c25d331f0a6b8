"""`stepwell collect game.nes`: what it adds to no store, what `info` shows, missing emulators."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_rom import write_demo
from stepwell.wrappers.nes import installed_backends
from stepwell.wrappers.nes.emulators import NesBackend
from support.command_line import CommandLine, has_parts
from support.programs import run_python

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
    loaded = run_python("-c", code).stdout.split()
    assert not [name for name in loaded if name.startswith("stepwell.wrappers.nes.")]
    assert not {"cynes", "nes_py", "stable_retro", "cv2", "ale_py"} & set(loaded)
