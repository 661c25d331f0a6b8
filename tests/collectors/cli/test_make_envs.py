"""Options of envs on the command line: their meaning, and what is refused."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, get_args

import gymnasium
import pytest

from demo_rom import write_demo
from stepwell.collectors.cli.app import main
from stepwell.collectors.cli.game_options import GAME_OPTIONS
from stepwell.collectors.cli.make_envs import (
    ATARI_ONLY,
    NES_ONLY,
    OTHER_NAMES,
    AtariBackend,
    Backend,
    NesBackend,
    is_cartridge,
    parse_crop,
    parse_size,
)
from stepwell.wrappers import atari_settings, make_atari
from stepwell.wrappers.nes import emulators, installed_backends, make_nes, vector
from support.command_line import CommandLine

PLAY = "collect game.nes --num-envs 1 --workers 0 --steps 8 --out new"
PONG = "collect Pong --steps 8 --out new"
POLE = "collect CartPole-v1 --steps 8 --out new"
# What the command line has other words for, or leaves out.
SAID_OTHERWISE = {"rom", "num_envs", "backend", "num_workers"}
NOT_OFFERED = {"info", "render_mode"}
OFFERED = {OTHER_NAMES.get(one, one) for rows in GAME_OPTIONS.values() for one in rows}
OFFERED -= SAID_OTHERWISE

# A command, and parts of its error message, in order.
BAD_COMMANDS = [
    ("collect nothere.nes --steps 8 --out new", "nothere.nes: |.nes file"),
    ("collect text.NES --steps 8 --out new", "text.NES |'NES' and 0x1A|('hello')|.nes file"),
    ("collect cut --steps 8 --out new", "cut |16 bytes|got 4;"),
    (f"{PLAY} --backend native", "--backend: |NES|got 'native'|cynes, nes-py and stable-retro"),
    (f"{PLAY} --backend fceux", "'--backend'|'fceux'|'stable-retro'"),
    (f"{PLAY} --fire-reset --mode 1", "--fire-reset, --mode |Atari|game.nes"),
    (f"{PLAY} --ram --size 64 --rgb", "--ram: |--size and |--rgb"),
    (f"{PLAY} --ram --pool none --crop overscan", "--ram: |--pool and |--crop"),
    (f"{PLAY} --actions wiggle", "actions: |'right_only'|got 'wiggle'"),
    (f"{PLAY} --info score", "--info score: |got episode_frame_number, noops|score=-1"),
    (f"{PONG} --backend cynes", "--backend: |Atari|got 'cynes'|native and python"),
    (f"{PONG} --game game", "--game |NES|Pong"),
    (f"{POLE} --ram --boot A", "--boot, --ram |NES|CartPole-v1|module:callable"),
    (f"{POLE} --backend nes-py", "--backend nes-py |NES|CartPole-v1"),
    (f"{POLE} --ram --mode 3", "--mode, --ram |Atari and NES|CartPole-v1"),
]


@pytest.fixture
def stepwell(stepwell: CommandLine) -> CommandLine:
    write_demo(".")
    Path("endless").mkdir()
    Path("endless/data.json").write_text('{"info": {"x": {"address": 23, "type": "|u1"}}}')
    Path("endless/scenario.json").write_text("{}")
    Path("text.NES").write_text("hello")
    Path("cut").write_bytes(b"NES\x1a")
    return stepwell


@pytest.mark.parametrize(("command", "parts"), BAD_COMMANDS, ids=lambda text: str(text)[:70])
def test_bad_input_is_one_sentence_and_writes_nothing(
    stepwell: CommandLine, command: str, parts: str
) -> None:
    if PLAY in command and "cynes" not in installed_backends():
        pytest.skip("needs cynes")
    stepwell.refused(command, parts)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of `make_nes`, which makes another env."""
    settings_of: dict[str, Any] = {}

    def note(rom: str, num_envs: int, **settings: Any) -> object:
        settings_of.update(settings, rom=rom, num_envs=num_envs)
        return gymnasium.make_vec("CartPole-v1", num_envs)

    monkeypatch.setattr(vector, "make_nes", note)
    return settings_of


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ([], {}),
        (["--backend", "stable-retro"], {"backend": "stable-retro"}),
        (["--workers", "0"], {"num_workers": 0}),
        (["--game", "game"], {"game": "game"}),
        (["--actions", "complex"], {"actions": "complex"}),
        (["--actions", "NOOP,RIGHT,RIGHT+A"], {"actions": ["NOOP", "RIGHT", "RIGHT+A"]}),
        (["--actions", "A+B"], {"actions": ["A+B"]}),
        (["--allow-opposites"], {"allow_opposites": True}),
        (["--boot", "NOOP 20, START 3"], {"boot": "NOOP 20, START 3"}),
        (["--boot", "A 1", "--boot", "B 1"], {"boot": ["A 1", "B 1"]}),
        (["--start", "a.state"], {"start": "a.state"}),
        (["--start", "a.state", "--start", "b.state"], {"start": ["a.state", "b.state"]}),
        (["--start-rule", "cycle"], {"start_rule": "cycle"}),
        (["--crop", "status"], {"crop": "status"}),
        (["--crop", "8, 16,0,4"], {"crop": (8, 16, 0, 4)}),
        (["--stuck-frames", "3_600"], {"stuck_frames": 3600}),
        (["--reward-clip", "1"], {"reward_clip": 1.0}),
        (["--ram"], {"ram_obs": True}),
        (["--frame-skip", "2"], {"frame_skip": 2}),
        (["--frame-stack", "1"], {"frame_stack": 1}),
        (["--sticky", "0.5"], {"sticky": 0.5}),
        (["--noop-max", "0"], {"noop_max": 0}),
        (["--rgb"], {"grayscale": False}),
        (["--pool", "none"], {"pool": "none"}),
        (["--max-frames", "1k"], {"max_frames": 1000}),
        (["--life-loss", "end"], {"life_loss": "end"}),
        (["--snapshots"], {"snapshots": True}),
        (["--size", "60x80"], {"size": (60, 80)}),
        (["--size", "screen"], {"size": None}),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
@pytest.mark.usefixtures("stepwell")
def test_an_option_is_the_setting_of_make_nes_with_its_meaning(
    asked: dict[str, Any], said: list[str], meant: dict[str, Any]
) -> None:
    assert main(["collect", "game.nes", "--steps", "4", "--out", "a", *said]) == 0
    usual = {"rom": "game.nes", "num_envs": 8, "backend": "cynes", "num_workers": None}
    assert asked == {**usual, **meant}


@pytest.mark.parametrize("said", ["", "--game endless"])
def test_episodes_that_cannot_end_are_not_waited_for(
    stepwell: CommandLine, asked: dict[str, Any], said: str
) -> None:
    parts = "--episodes: |game.nes|no --max-frames and no --stuck-frames|--steps"
    stepwell.refused(f"collect game.nes --episodes 9 --out new {said}", parts)
    assert asked == {}


def test_every_setting_of_games_has_an_option() -> None:
    nes, atari = (set(inspect.signature(make).parameters) for make in (make_nes, make_atari))
    assert nes - SAID_OTHERWISE - NOT_OFFERED == OFFERED - ATARI_ONLY
    assert atari - {"game"} - SAID_OTHERWISE == OFFERED - NES_ONLY


def test_the_command_line_names_the_backends_that_the_makers_have() -> None:
    own = emulators.NesBackend
    assert get_args(NesBackend) == get_args(own)
    assert get_args(AtariBackend) == get_args(atari_settings.Backend)
    assert {*get_args(Backend)} == {*get_args(own), *get_args(AtariBackend)}


def test_a_cartridge_is_known_by_its_name_or_by_what_is_in_the_file() -> None:
    Path("magic").write_bytes(b"NES\x1a...")
    Path("Pong").write_bytes(b"NES")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    pipe = os.open("pipe", os.O_RDWR)
    os.write(pipe, b"NES\x1a")  # read once it is gone, so it must not be tried
    words = "a.nes a/B.NES a.Zip magic ./magic Pong folder pipe CartPole-v1".split()
    known = [word for word in words if is_cartridge(word)]
    os.close(pipe)
    assert known == ["a.nes", "a/B.NES", "a.Zip", "magic", "./magic"]


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (
            parse_crop,
            ["", "8", "8,8,8", "8,8,8,8,8", "8x8x8x8", "8,8,8,8000", "8,,8,8", "8,8,-1,0"],
        ),
        (parse_size, ["84by84", "84x", "x84", "-1", "84x84x3"]),
    ],
)
def test_other_numbers_are_no_crop_and_no_size(parse: Any, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=f"^--option: .*got '{text}'"):
            parse("--option", text)


def test_an_emulator_that_is_not_installed_names_the_package_to_install(
    stepwell: CommandLine,
) -> None:
    extras = {"cynes": "nes", "nes-py": "nes-py"}
    missing = [name for name in extras if name not in installed_backends()]
    if not missing:
        pytest.skip("needs a backend that is not installed")
    command = f"collect game.nes --backend {missing[0]} --steps 8 --out a"
    stepwell.refused(command, f"'{missing[0]}'|pip install 'stepwell[{extras[missing[0]]}]'")
