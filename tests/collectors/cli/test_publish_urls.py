"""`stepwell push` and `pull` with a URL, and the commands that refuse one."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell as sw
from stepwell.collectors.cli.app import main
from support.command_line import CommandLine
from support.programs import run_python

pytest.importorskip("obstore")

POLE = "collect CartPole-v1 --num-envs 2 --workers 0 --steps 300 --quiet --seed 1 --out pole"


@pytest.fixture
def pole(stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """A command line next to a store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    assert main(POLE.split()) == 0
    return stepwell


def url() -> str:
    return f"file://{Path('objects').absolute()}"


def digest(path: str) -> str:
    with sw.SequenceReplayBuffer.open(path, read_only=True) as replay:
        return replay.digest()


def test_a_store_goes_up_and_comes_back(pole: CommandLine) -> None:
    planned = pole.json(f"push pole {url()} --dry-run")
    assert "to a new place" in pole(f"push pole {url()} --dry-run").out
    assert not Path("objects").exists()
    report = pole.json(f"push pole {url()}")
    assert report["sent"] == planned["sent"] == ["manifest.json", "segment-00000000.bin"]
    assert (report["is_new"], report["is_growing"]) == (True, False)
    assert report["sent_bytes"] == report["nbytes"] > 0
    again = pole.json(f"push pole {url()}")
    assert (again["sent"], again["is_new"]) == ([], False)  # what is there is not sent again
    result = pole(f"push pole {url()}")
    assert "0 files, 0 B sent now" in result.out
    assert url() in result.out
    pulled = pole(f"pull {url()} back")
    assert "store verified" in pulled.out
    assert "manifest-" in pulled.out
    assert digest("pole") == digest("back")


@pytest.mark.parametrize(
    "command",
    [
        *("verify {}", "view {}", "report {} -o r.html", "repair {}", "archive {} -o x.swa"),
        *("info {}", "copy {} --out c", "merge pole {} --out c", "copy pole --out {}"),
        *("filter {} --top 1 --out c", "export {} --to npz --out c", "render {} -e 0 --out c.gif"),
    ],
)
def test_commands_refuse_a_url_in_one_sentence(command: str, pole: CommandLine) -> None:
    pole(f"push pole {url()}")
    result = pole(command.format(url()))
    assert result.code == 2
    assert f"{url()} is a URL, expected a folder" in result.err
    assert f"stepwell pull {url()} FOLDER" in result.err


def test_a_url_is_no_place_to_collect_into(pole: CommandLine) -> None:
    result = pole(f"collect CartPole-v1 --workers 0 --steps 10 --out {url()}")
    assert result.code == 2
    assert "is a URL, expected a folder" in result.err
    assert "stepwell push FOLDER" in result.err


@pytest.mark.parametrize(
    ("folder", "where", "message"),
    [
        ("nothing", "file:///tmp/x", "got nothing there"),
        ("pole", "objects", "OWNER/NAME"),
        ("pole", "ftp://x/y", "expected a folder, or a URL of one of"),
        ("arrays", "file:///tmp/x", "expected a store"),
        ("pole --license mit", "file:///tmp/x", "license: expected none with a URL"),
        ("pole --revision v1", "file:///tmp/x", "revision: expected none with a URL"),
        ("pole --public", "file:///tmp/x", "public: expected none with a URL"),
    ],
)
def test_bad_input_is_told(folder: str, where: str, message: str, pole: CommandLine) -> None:
    Path("arrays").mkdir()
    Path("arrays/a.npz").write_bytes(b"x")
    result = pole(f"push {folder} {where}")
    assert result.code == 2
    assert message in result.err


def test_without_the_extra_one_sentence_says_what_to_install(pole: CommandLine) -> None:
    code = """
import sys
sys.modules["obstore"] = None
from stepwell.collectors.cli.app import main
sys.exit(main(["push", "pole", "s3://bucket/run"]))
"""
    assert "pip install 'stepwell[cloud]'" in run_python("-c", code, code=2).stderr
