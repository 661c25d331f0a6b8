"""What is said about cartridges on the command line: what it means, and what is refused."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any, get_args

import gymnasium
import pytest

from demo_rom import write_demo
from stepwell.collectors.cli import env_options as knobs
from stepwell.collectors.cli.app import main
from stepwell.collectors.cli.catalogue import Catalogue, Emulators
from stepwell.collectors.cli.envs import matching
from stepwell.collectors.cli.nes import action_set, crop_area, is_cartridge
from stepwell.collectors.cli.recipe import recipe_in_words
from stepwell.wrappers import atari_settings, make_atari
from stepwell.wrappers.nes import emulators, installed_backends, make_nes, vector
from support.command_line import CommandLine

PLAY = "collect game.nes --num-envs 1 --workers 0 --steps 8 --out new"
# What the command line has other words for, or leaves out.
SAID_OTHERWISE = {"rom", "num_envs", "backend", "num_workers"}
NOT_OFFERED = {"info", "render_mode"}

BAD_COMMANDS = [
    ("collect nothere.nes --steps 8 --out new", "no ROM file nothere.nes", "one of yours"),
    ("collect nothere.zip --steps 8 --out new", "no ROM file nothere.zip", "one of yours"),
    ("collect text.NES --steps 8 --out new", "text.NES is no cartridge image", "give a .nes file"),
    ("collect cut --steps 8 --out new", "cut is cut short", "take a whole dump"),
    (f"{PLAY} --backend native", "those for an NES cartridge, got 'native'", "cynes, nes-py and"),
    (f"{PLAY} --backend python", "those for an NES cartridge, got 'python'", "name one of these"),
    (f"{PLAY} --backend fceux", "--backend", "'stable-retro'"),
    (f"{PLAY} --mode 1", "--mode is for Atari games alone", "game.nes; leave it out"),
    (
        f"{PLAY} --fire-reset --full-actions",
        "--fire-reset, --full-actions are for Atari",
        "them out",
    ),
    (f"{PLAY} --ram --size 64 --rgb", "--ram: expected no --size and no --rgb", "leave one"),
    (f"{PLAY} --ram --pool none --crop overscan", "--ram: expected no --pool and no --crop", "out"),
    (f"{PLAY} --crop 8,8", "--crop: expected a name such as overscan, or pixels", "got '8,8'"),
    (f"{PLAY} --crop 8,8,-1,0", "--crop: expected a name", "got '8,8,-1,0'"),
    (f"{PLAY} --crop status", "crop: expected 'overscan'", "the RAM map's [crop] table"),
    (f"{PLAY} --crop 200,100,0,0", "crop: expected to keep some", "cut off less"),
    (f"{PLAY} --actions wiggle", "actions: expected 'right_only'", "got 'wiggle'"),
    (f"{PLAY} --actions LEFT+RIGHT", "no opposite directions", "got 'RIGHT+LEFT'"),
    (f"{PLAY} --actions NOOP,JUMP", "'JUMP'", "START"),
    (f"{PLAY} --boot START", "boot: expected parts such as 'START 3'", "got 'START'"),
    (f"{PLAY} --start none.state", "none.state", "expected a file"),
    (f"{PLAY} --start-rule often", "--start-rule", "'cycle'"),
    (f"{PLAY} --stuck-frames 60", "stuck_frames: expected a RAM map", "[stuck]"),
    (f"{PLAY} --stuck-frames 0", "--stuck-frames: expected a whole number >= 1", "got '0'"),
    (f"{PLAY} --reward-clip 0", "reward_clip: expected a number above 0", "got 0"),
    (f"{PLAY} --life-loss end", "life_loss='end': expected a RAM map with a [life]", "got none"),
    (f"{PLAY} --game none.toml", "none.toml", "check the path"),
    (f"{PLAY} --info score", "--info score: expected a field", "episode_frame_number"),
    ("collect nothere.nes --episodes 9 --out new", "no ROM file nothere.nes", "one of yours"),
    (
        "collect Pong --backend cynes --steps 8 --out new",
        "those for an Atari game, got 'cynes'",
        "native and python",
    ),
    (
        "collect Pong --backend stable-retro --steps 8 --out new",
        "those for an Atari game, got 'stable-retro'",
        "native and python",
    ),
    (
        "collect Pong --game game.toml --steps 8 --out new",
        "--game is for NES cartridges alone",
        "Pong; leave it out",
    ),
    (
        "collect CartPole-v1 --ram --boot A --steps 8 --out new",
        "--boot, --ram are for NES cartridges alone: expected none with CartPole-v1",
        "module:callable",
    ),
    (
        "collect CartPole-v1 --backend nes-py --steps 8 --out new",
        "--backend nes-py is for NES cartridges alone",
        "CartPole-v1",
    ),
    (
        "collect CartPole-v1 --ram --mode 3 --steps 8 --out new",
        "are for Atari and NES games alone",
        "CartPole-v1",
    ),
]


@pytest.fixture
def stepwell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    write_demo(".")
    Path("endless.toml").write_text('[vars]\nx = { address = 0x17, type = "|u1" }\n')
    Path("text.NES").write_text("hello")
    Path("cut").write_bytes(b"NES\x1a")
    return CommandLine(monkeypatch, capsys)


@pytest.mark.parametrize(("command", "what", "cure"), BAD_COMMANDS, ids=lambda text: str(text)[:70])
def test_bad_input_is_one_sentence_and_writes_nothing(
    stepwell: CommandLine, command: str, what: str, cure: str
) -> None:
    if PLAY in command and "cynes" not in installed_backends():
        pytest.skip("needs cynes")
    before = set(Path().iterdir())
    result = stepwell(command)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("stepwell: ")
    assert result.err.count("\n") == 1
    assert what in result.err
    assert cure in result.err
    assert set(Path().iterdir()) == before


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `make_nes` is asked for; it makes another env."""
    told: dict[str, Any] = {}

    def note(rom: str, num_envs: int, **settings: Any) -> object:
        told.update(settings, rom=rom, num_envs=num_envs)
        return gymnasium.make_vec("CartPole-v1", num_envs)

    monkeypatch.setattr(vector, "make_nes", note)
    return told


@pytest.mark.usefixtures("stepwell")
def test_what_is_not_said_is_left_to_make_nes(asked: dict[str, Any]) -> None:
    assert main("collect game.nes --num-envs 2 --steps 4 --out a".split()) == 0
    assert asked == {"rom": "game.nes", "num_envs": 2, "backend": "cynes", "num_workers": None}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (["--backend", "stable-retro"], {"backend": "stable-retro"}),
        (["--workers", "0"], {"num_workers": 0}),
        (["--game", "game.toml"], {"game": "game.toml"}),
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


@pytest.mark.parametrize("said", ["", "--game endless.toml"])
def test_episodes_that_cannot_end_are_not_waited_for(
    stepwell: CommandLine, asked: dict[str, Any], said: str
) -> None:
    result = stepwell(f"collect game.nes --episodes 9 --out new {said}")
    assert (result.code, asked) == (2, {})
    assert result.err == (
        "stepwell: --episodes: expected episodes of game.nes that end, got no map with "
        "[terminated], no --max-frames and no --stuck-frames; give one of them, or count with "
        "--steps\n"
    )
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "said", [[], ["--max-frames", "9"], ["--stuck-frames", "9"], ["--life-loss", "end"]]
)
def test_episodes_are_counted_where_something_ends_them(
    stepwell: CommandLine, asked: dict[str, Any], said: list[str]
) -> None:
    game = "endless.toml" if said else "game.toml"
    command = f"collect game.nes --game {game} --episodes 2 --out a {' '.join(said)}"
    assert stepwell(command).code == 0
    assert asked["game"] == game


@pytest.mark.parametrize("said", [{"life_loss": "end"}, {"mode": 1}, {"difficulty": 1}])
def test_a_knob_that_needs_the_python_backend_of_atari_chooses_it(said: knobs.EnvOptions) -> None:
    assert knobs.atari_backend(None, said) == "python"
    assert knobs.atari_backend("native", said) == "native"  # which refuses the knob itself
    assert knobs.atari_backend(None, {"frame_skip": 1, "full_actions": True}) == "native"


def test_every_setting_of_make_nes_can_be_said() -> None:
    names = set(inspect.signature(make_nes).parameters)
    assert names - SAID_OTHERWISE - NOT_OFFERED == knobs.NesKnobs.__optional_keys__


def test_every_setting_of_make_atari_can_be_said() -> None:
    names = set(inspect.signature(make_atari).parameters)
    assert names - {"game"} - SAID_OTHERWISE == knobs.AtariKnobs.__optional_keys__


def test_the_command_line_names_the_backends_that_the_makers_have() -> None:
    own = emulators.NesBackend
    assert get_args(knobs.NesBackend) == get_args(own)
    assert get_args(knobs.AtariBackend) == get_args(atari_settings.Backend)
    assert {*get_args(knobs.Backend)} == {*get_args(own), *get_args(knobs.AtariBackend)}


def test_a_cartridge_is_known_by_its_name_or_by_what_is_in_the_file() -> None:
    Path("magic").write_bytes(b"NES\x1a...")
    Path("Pong").write_bytes(b"NES")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    pipe = os.open("pipe", os.O_RDWR)
    os.write(pipe, b"NES\x1a")  # read once it is gone, so it must not be tried
    words = [
        "a.nes",
        "a/B.NES",
        "a.Zip",
        "magic",
        "./magic",
        "Pong",
        "folder",
        "pipe",
        "CartPole-v1",
    ]
    known = [word for word in words if is_cartridge(word)]
    os.close(pipe)
    assert known == ["a.nes", "a/B.NES", "a.Zip", "magic", "./magic"]


def test_actions_are_a_list_where_they_look_like_one() -> None:
    assert action_set("right_only") == "right_only"
    assert action_set("A, LEFT+B ,") == ["A", "LEFT+B", ""]


@pytest.mark.parametrize("text", ["", "8", "8,8,8", "8,8,8,8,8", "8x8x8x8", "8,8,8,8000", "8,,8,8"])
def test_four_numbers_are_a_crop_and_other_numbers_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a name such as overscan"):
        crop_area("--crop", text)


def test_a_recipe_is_told_in_words_that_leave_out_what_nobody_reads() -> None:
    cartridge = {"name": "game.nes", "sha256": "ab" * 32, "mapper": 0, "header": "iNES"}
    recipe = {
        "maker": "make_nes",
        "backend": "cynes",
        "cartridge": cartridge,
        "game": {"name": "unknown", "vars": {}},
        "actions": [f"A{number}" for number in range(36)],
        "is_multibinary": False,
        "boot": ["A 1", "B 1"],
        "start": ["12" * 32, "34" * 32],
        "sticky": 0.25,
        "max_frames": None,
        "size": [84, 84],
        "versions": {"cynes": "0.1.2"},
    }
    assert recipe_in_words(recipe) == (
        "game.nes, sha256 abababababab, backend=cynes, actions=A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 "
        "A11 ..., boot=['A 1', 'B 1'], start=121212121212 343434343434, sticky=0.25, 84x84"
    )
    assert recipe_in_words({"cartridge": cartridge}) == "game.nes, sha256 abababababab"
    assert recipe_in_words({}) == "unknown"


def test_envs_tells_emulators_with_versions_and_what_to_install(stepwell: CommandLine) -> None:
    told = json.loads(stepwell("envs --json").out)["nes"]
    assert told["installed"] == installed_backends()
    assert {*told["installed"], *told["missing"]} == {"cynes", "nes-py", "stable-retro"}
    assert all("pip install 'stepwell[" in cure for cure in told["missing"].values())


def test_envs_nes_lists_the_emulators(stepwell: CommandLine) -> None:
    lines = stepwell("envs nes").out.splitlines()
    there = [f"{name} {version}" for name, version in installed_backends().items()]
    assert lines[: len(there)] == there
    assert len(lines) == 3
    assert all(": pip install" in line for line in lines[len(there) :])


def test_names_of_envs_for_other_programs_are_not_mixed_with_emulators(
    stepwell: CommandLine,
) -> None:
    assert "cynes" not in stepwell("envs").out
    assert "cynes" not in stepwell("envs pong").out


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


def test_an_emulator_is_found_by_part_of_its_name() -> None:
    there = Catalogue((), (), (), {}, Emulators({"cynes": "1"}, {"stable-retro": "pip"}))
    assert matching(there, "RETRO").nes == Emulators({}, {"stable-retro": "pip"})
    assert matching(there, "NES").nes == there.nes
    assert matching(there, "pong").nes == Emulators()


@pytest.mark.parametrize(
    "panel", ["Atari and NES games", "Atari games only", "NES cartridges only"]
)
def test_the_help_has_a_panel_for_each_kind_of_game(stepwell: CommandLine, panel: str) -> None:
    assert f"─ {panel} ─" in stepwell("collect --help").out


def test_the_help_teaches_cartridges_by_an_example(stepwell: CommandLine) -> None:
    text = stepwell("collect --help").out
    assert "stepwell collect game.nes --game map.toml --episodes 50 --out runs/game" in text
    assert "stepwell collect game.nes" in stepwell("--help").out
