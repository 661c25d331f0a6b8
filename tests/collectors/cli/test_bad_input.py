"""Whatever is wrong with a command: one clear sentence, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.buffers.storage.disk.storage import DiskStorage
from support.command_line import CommandLine

POLE = "collect CartPole-v1 --workers 0 --steps 9 --out new"
PONG = "collect Pong --num-envs 1 --steps 9 --out new"

BAD_COMMANDS = [
    ("collect Pnog --steps 9 --out new", "unknown env", "did you mean ALE/Pong-v5?"),
    ("collect ALE/Pnog-v5 --steps 9 --out new", "unknown Atari game", "did you mean pong"),
    ("collect CartPol-v1 --steps 9 --out new", "unknown env", "did you mean CartPole-v1?"),
    ("collect SuperMarioBros-v0 --steps 9 --out new", "'SuperMarioBros-v0'", "collect game.nes"),
    ("collect SuperMarioBros-1-1-v3 --steps 9 --out new", "unknown env", "docs/nes.md"),
    ("collect TetrisA-v0 --steps 9 --out new", "unknown env", "stepwell collect game.nes"),
    ("collect CartPole-v7 --steps 9 --out new", "unknown env", "did you mean CartPole-v1?"),
    ("collect nowhere:Foo-v0 --steps 9 --out new", "nowhere", "install it"),
    ("collect nowhere:make --steps 9 --out new", "ENV: expected a module 'nowhere'", "got none"),
    ("collect mine:number --steps 9 --out new", "ENV mine:number: expected a function", "got int"),
    ("collect mine:one --steps 9 --out new", "expected it to take no arguments", "(observation)"),
    ("collect mine:unmade --steps 9 --out new", "mine.py:", "NameError: name 'undefined'"),
    ("collect CartPole-v1 --steps 0 --out new", "--steps: expected a whole number >= 1", "got '0'"),
    ("collect CartPole-v1 --steps -5 --out new", "--steps: expected", "got '-5'"),
    ("collect CartPole-v1 --episodes many --out new", "--episodes: expected", "got 'many'"),
    ("collect CartPole-v1 --out new", "either --steps or --episodes, got neither", "give one"),
    (f"{POLE} --episodes 9", "either --steps or --episodes, got both", "give one"),
    ("collect CartPole-v1 --steps 9", "Missing option '--out'", "stepwell collect --help"),
    ("collect --steps 9 --out new", "Missing argument 'ENV'", "stepwell collect --help"),
    (f"{POLE} --colour red", "No such option: --colour", "stepwell collect --help"),
    (f"{POLE} --num-envs 0", "--num-envs: expected a whole number >= 1", "got '0'"),
    (f"{POLE} --workers -1", "--workers: expected a whole number >= 0", "got '-1'"),
    (f"{POLE} --seed -1", "--seed: expected a whole number >= 0", "got '-1'"),
    (f"{POLE} --capacity 0", "--capacity: expected", "got '0'"),
    (f"{POLE} --capacity-bytes 1", "capacity_bytes: expected at least 1048576", "got 1"),
    (f"{POLE} --info speed", "--info speed: expected a field", "speed=-1"),
    (
        f"{POLE} --rgb --size 64",
        "--rgb, --size are for Atari and NES games only",
        "module:callable",
    ),
    (f"{POLE} --backend native", "--backend native is for Atari games only", "CartPole-v1"),
    (f"{PONG} --backend fast", "--backend", "'native', 'python'"),
    (f"{PONG} --sticky 1.5", "sticky: expected a probability", "got 1.5"),
    (f"{PONG} --size 84by84", "--size: expected ROWSxCOLUMNS", "got '84by84'"),
    (f"{PONG} --frame-skip 0", "--frame-skip: expected a whole number >= 1", "got '0'"),
    (f"{PONG} --mode 99", "mode: expected one of", "got 99"),
    (f"{PONG} --backend native --mode 1", "mode=1: expected None on the native backend", "python"),
    (f"{PONG} --workers 0", "num_workers: expected at least 1 thread", "got 0"),
    (f"{POLE} --policy mine", "--policy: expected 'random' or 'module:callable'", "got 'mine'"),
    (f"{POLE} --policy mine:zeroes", "expected 'zeroes' in mine", "did you mean zeros?"),
    (f"{POLE} --policy nowhere:act", "--policy: expected a module 'nowhere'", "got none"),
    (f"{POLE} --policy broken:act", "module 'broken' cannot be imported", "broken.py:1: ZeroDiv"),
    (f"{POLE} --policy garbled:act", "module 'garbled' cannot be imported", "SyntaxError"),
    (f"{POLE} --policy needs:act", "'needs' cannot be imported", "No module named 'not_there'"),
    (f"{POLE} --policy mine:number", "expected something to call", "got int"),
    (f"{POLE} --policy mine:one", "expected it to take two arguments", "got (observation)"),
    (f"{POLE} --policy mine:Stateless", "take three arguments", "got (observation, is_first)"),
    (f"{POLE} --policy mine:Needy", "expected it to take no arguments", "got (model)"),
    (f"{POLE} --policy mine:wide", "policy returned action of shape (8, 2)", "expected (8,)"),
    (f"{POLE} --policy mine:floats", "dtype float32", "expected (8,) and int64"),
    (f"{POLE} --policy mine:high", "policy returned action 99", "Discrete(2)"),
    (f"{POLE} --policy mine:fails", "mine.py:", "raised IndexError: list index out of range"),
    ("collect CartPole-v1 --workers 0 --steps 9 --out a.txt", "a.txt is a file", "another folder"),
    ("collect CartPole-v1 --workers 0 --steps 9 --out full", "full is not empty", "another folder"),
    ("info nowhere", "nowhere holds no store", "give the folder of a store"),
    ("info full", "full holds no store", "give the folder of a store"),
    ("info", "Missing argument 'DIR'", "stepwell info --help"),
    ("envs Pnog", "expected part of an env's name, got 'Pnog'", "did you mean ALE/Pong-v5?"),
    ("colect Pong", "No such command 'colect'", "stepwell --help"),
]


@pytest.fixture
def stepwell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    command = CommandLine(monkeypatch, capsys)
    command.write("broken", "1 / 0")
    command.write("garbled", "def act(:")
    command.write("needs", "import not_there")
    Path("a.txt").write_text("precious")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("precious")
    return command


@pytest.mark.parametrize(("command", "what", "cure"), BAD_COMMANDS, ids=lambda text: str(text)[:60])
def test_bad_input_is_one_sentence_and_writes_nothing(
    stepwell: CommandLine, command: str, what: str, cure: str
) -> None:
    before = contents()
    result = stepwell(command)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("stepwell: ")
    assert result.err.count("\n") == 1
    assert what in result.err
    assert cure in result.err
    assert contents() == before


def contents() -> dict[str, str]:
    """All files and folders here, less what importing leaves."""
    paths = [path for path in Path().rglob("*") if "__pycache__" not in str(path)]
    return {str(path): path.read_text() if path.is_file() else "" for path in paths}


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("collect mine:counter --workers 0 --steps 9 --out a", "field 'observation' was"),
        ("collect CartPole-v0 --workers 0 --steps 9 --out a", "id of the envs was 'CartPole-v1'"),
        ("collect CartPole-v1 --workers 0 --steps 9 --out a --policy mine:Agent", "'extra/calls'"),
    ],
)
def test_a_store_of_other_data_is_not_added_to(
    stepwell: CommandLine, command: str, what: str
) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 9 --out a")
    before = {path.name: path.read_bytes() for path in Path("a").glob("segment*")}
    result = stepwell(f"{command} --resume")
    assert result.code == 2
    assert "a holds other data" in result.err
    assert what in result.err
    assert {path.name: path.read_bytes() for path in Path("a").glob("segment*")} == before


def test_a_store_that_is_being_written_is_not_added_to(stepwell: CommandLine) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 9 --out a")
    with DiskStorage.open("a"):
        result = stepwell("collect CartPole-v1 --workers 0 --steps 9 --out a --resume")
    assert result.code == 2
    assert "is written by pid" in result.err
