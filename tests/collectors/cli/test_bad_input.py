"""Bad input to a command gives one clear sentence and exit code 2, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepwell.buffers.storage.disk.storage import DiskStorage
from support.command_line import CommandLine

POLE = "collect CartPole-v1 --workers 0 --steps 9 --out new"
PONG = "collect Pong --num-envs 1 --steps 9 --out new"

# A command, and parts of its error message, in order.
BAD_COMMANDS = [
    ("collect Pnog --steps 9 --out new", "'Pnog'|ALE/Pong-v5"),
    ("collect CartPol-v1 --steps 9 --out new", "'CartPol-v1'|CartPole-v1"),
    ("collect SuperMarioBros-v0 --steps 9 --out new", "'SuperMarioBros-v0'|collect game.nes"),
    ("collect CartPole-v7 --steps 9 --out new", "'CartPole-v7'|CartPole-v1"),
    ("collect nowhere:Foo-v0 --steps 9 --out new", "'nowhere:Foo-v0'|'nowhere'"),
    ("collect nowhere:make --steps 9 --out new", "ENV: |module 'nowhere'|got none"),
    ("collect mine:number --steps 9 --out new", "ENV mine:number: |got int"),
    ("collect mine:one --steps 9 --out new", "ENV mine:one: |no arguments|got (observation)"),
    ("collect mine:unmade --steps 9 --out new", "mine.py:|NameError: name 'undefined'"),
    ("collect CartPole-v1 --steps 0 --out new", "--steps: |>= 1|got '0'"),
    ("collect CartPole-v1 --out new", "--steps or --episodes|got neither"),
    (f"{POLE} --episodes 9", "--steps or --episodes|got both"),
    ("collect CartPole-v1 --steps 9", "'--out'|stepwell collect --help"),
    ("collect --steps 9 --out new", "'ENV'|stepwell collect --help"),
    (f"{POLE} --colour red", "--colour|stepwell collect --help"),
    (f"{POLE} --num-envs 0", "--num-envs: |>= 1|got '0'"),
    (f"{POLE} --workers -1", "--workers: |>= 0|got '-1'"),
    (f"{POLE} --seed -1", "--seed: |>= 0|got '-1'"),
    (f"{POLE} --capacity 0", "--capacity: |>= 1|got '0'"),
    (f"{POLE} --capacity-bytes 1", "capacity_bytes: |1048576|got 1;"),
    (f"{POLE} --info speed", "--info speed: |got reset_seed|speed=-1"),
    (f"{POLE} --rgb --size 64", "--size, --rgb |Atari and NES|CartPole-v1|module:callable"),
    (f"{POLE} --backend native", "--backend native |Atari|CartPole-v1"),
    (f"{PONG} --backend fast", "'--backend'|'fast'|'native', 'python'"),
    (f"{PONG} --sticky x", "--sticky: |got 'x'"),
    (f"{PONG} --mode x", "--mode: |got 'x'"),
    (f"{POLE} --policy mine", "--policy: |'random'|sb3:|torch:|'module:callable'|got 'mine'"),
    (f"{POLE} --policy mine:zeroes", "--policy mine:zeroes: |'zeroes' in mine|zeros?"),
    (f"{POLE} --policy nowhere:act", "--policy: |module 'nowhere'|got none"),
    (f"{POLE} --policy broken:act", "--policy: |'broken'|broken.py:1: ZeroDivisionError"),
    (f"{POLE} --policy garbled:act", "--policy: |'garbled'|SyntaxError"),
    (f"{POLE} --policy needs:act", "--policy: |'needs'|No module named 'not_there'"),
    (f"{POLE} --policy mine:number", "--policy mine:number: |observation and is_first|got int"),
    (f"{POLE} --policy mine:none", "--policy mine:none: |observation and is_first|got ()"),
    (
        f"{POLE} --policy mine:Stateless",
        "--policy mine:Stateless: |three arguments|got (observation, is_first)",
    ),
    (f"{POLE} --policy mine:Needy", "--policy mine:Needy: |no arguments|got (model)"),
    (f"{POLE} --policy mine:fails", "mine.py:|IndexError: list index out of range"),
    ("collect CartPole-v1 --workers 0 --steps 9 --out a.txt", "a.txt is a file"),
    ("collect CartPole-v1 --workers 0 --steps 9 --out full", "full is not empty"),
    ("info nowhere", "nowhere |manifest.json"),
    ("info", "'DIR'|stepwell info --help"),
    ("envs Pnog", "PATTERN: |got 'Pnog'|ALE/Pong-v5"),
    *(
        (f"{POLE} --shard {text}", f"--shard: |2/4|{text!r}")
        for text in ("0/4", "5/4", "1-4", "a/b")
    ),
    *((f"{POLE} --tolerate {text}", f"--tolerate: |'{text}'") for text in ("-1", "1.5")),
    ("collect Pong --backend native --steps 9 --out new --tolerate 1", "tolerate=1: |NativeAtari"),
    ("collect CartPole-v1 --workers 0 --steps 9 --out link", "--out link |link to nothing"),
]


@pytest.fixture
def stepwell(stepwell: CommandLine) -> CommandLine:
    stepwell.write("broken", "1 / 0")
    stepwell.write("garbled", "def act(:")
    stepwell.write("needs", "import not_there")
    Path("a.txt").write_text("precious")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("precious")
    Path("link").symlink_to("nowhere")
    return stepwell


@pytest.mark.parametrize(("command", "parts"), BAD_COMMANDS, ids=lambda text: str(text)[:60])
def test_bad_input_is_one_sentence_and_writes_nothing(
    stepwell: CommandLine, command: str, parts: str
) -> None:
    stepwell.refused(command, parts)


def test_a_store_of_other_data_or_in_use_is_not_added_to(stepwell: CommandLine) -> None:
    pole = "collect CartPole-v1 --workers 0 --steps 9 --out a"
    assert stepwell(pole).code == 0
    for command, parts in (
        (pole, "--out a holds a store already|--resume"),
        (
            "collect mine:counter --workers 0 --steps 9 --out a --resume",
            "a |field 'observation'|float32 (4,)|int64 (3,)",
        ),
        (
            "collect CartPole-v0 --workers 0 --steps 9 --out a --resume",
            "a |id of the envs|'CartPole-v1'|'CartPole-v0'",
        ),
        (f"{pole} --resume --policy mine:Agent", "a |'extra/calls'"),
        (f"{pole} --resume --policy mine:wide", "policy returned action"),
    ):
        stepwell.refused(command, parts)
    with DiskStorage.open("a"):
        stepwell.refused(f"{pole} --resume", f"a is written by pid {os.getpid()} on ")
