"""`stepwell upload`, and the commands that read URLs."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.buffers.episode import End
from stepwell.buffers.storage.cloud.objects import Objects
from stepwell.buffers.storage.cloud.uploader import newest_manifest
from stepwell.buffers.testing import Recording, play
from stepwell.collectors.cli import upload as upload_file
from stepwell.collectors.cli.app import main
from support.command_line import CommandLine
from support.disk_stores import copy_of, create

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
    report = pole.json(f"upload pole {url()}")
    assert (report["steps"], report["is_finished"], report["segments"]) == (301, True, 1)
    assert report["sent_bytes"] > report["bytes"] > 0
    assert pole.json(f"upload pole {url()}")["sent_bytes"] == 0  # what is there is not sent again
    result = pole(f"upload pole {url()}")
    assert "301 steps" in result.out
    assert url() in result.out
    assert pole(f"copy {url()} --out back").code == 0
    assert pole(f"merge {url()} pole --out both --duplicates skip").code == 0
    assert digest(url()) == digest("pole") == digest("back") == digest("both")
    assert pole.json(f"info {url()}")["path"] == url()
    of_url, of_folder = (pole.json(f"info {path} --digest") for path in (url(), "pole"))
    assert {**of_url, "path": "", "disk_bytes": 0, "compression": 0} == {
        **of_folder,
        "path": "",
        "disk_bytes": 0,
        "compression": 0,
    }


@pytest.mark.parametrize(
    "command",
    ["verify {}", "view {}", "report {} -o r.html", "repair {}", "archive {} -o x.swa"],
)
def test_other_commands_refuse_a_url_in_one_sentence(command: str, pole: CommandLine) -> None:
    pole(f"upload pole {url()}")
    result = pole(command.format(url()))
    assert result.code == 2
    assert f"{url()} is a URL, expected a folder" in result.err
    assert f"stepwell copy {url()} --out DIR" in result.err
    assert "read_only" not in result.err


def test_a_url_is_no_place_to_collect_into(pole: CommandLine) -> None:
    result = pole(f"collect CartPole-v1 --workers 0 --steps 10 --out {url()}")
    assert result.code == 2
    assert "is a URL, expected a folder" in result.err
    assert "stepwell upload DIR" in result.err


@pytest.mark.parametrize(
    ("folder", "where", "message"),
    [
        ("nothing", "file:///tmp/x", "holds no store"),
        ("pole", "objects", "expected a URL"),
        ("pole", "ftp://x/y", "expected a folder, or a URL of one of"),
    ],
)
def test_bad_input_is_told(folder: str, where: str, message: str, pole: CommandLine) -> None:
    result = pole(f"upload {folder} {where}")
    assert result.code == 2
    assert message in result.err


def test_a_store_whose_writer_was_killed_is_repaired_first(
    pole: CommandLine, tmp_path: Path
) -> None:
    with create(tmp_path / "a") as storage:
        play(storage, 3)
        killed = copy_of(tmp_path / "a")
    for follow in ("", " --follow"):
        result = pole(f"upload {killed} {url()}{follow}")
        assert result.code == 2
        assert f"stepwell repair {killed}" in result.err
    assert pole(f"repair {killed}").code == 0
    assert pole(f"upload {killed} {url()}").code == 0
    assert digest(url()) == digest(str(killed))


def test_follow_uploads_a_store_until_its_writer_ends(
    pole: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_file, "_LOOK_SECONDS", 0.01)
    place = url()
    rows = Recording()
    with create(tmp_path / "a") as storage:
        storage.add([rows.chunk(0, 20, End.NONE)])
        storage.seal()
        codes: list[int] = []
        follower = threading.Thread(
            target=lambda: codes.append(
                main(["upload", str(tmp_path / "a"), place, "--follow", "--quiet"])
            )
        )
        follower.start()
        while (newest := newest_manifest(Objects(place, is_writer=True))) is None:
            follower.join(0.01)
            assert follower.is_alive()
        assert not newest.is_finished
        storage.add([rows.chunk(0, 20, End.TERMINATED)])
        assert follower.is_alive()
    follower.join(60)
    assert codes == [0]
    newest = newest_manifest(Objects(place))
    assert newest is not None
    assert newest.is_finished
    assert digest(place) == digest(str(tmp_path / "a"))


def test_without_the_extra_one_sentence_says_what_to_install(pole: CommandLine) -> None:
    code = """
import sys
sys.modules["obstore"] = None
from stepwell.collectors.cli.app import main
sys.exit(main(["upload", "pole", "s3://bucket/run"]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 2
    assert "pip install 'stepwell[cloud]'" in run.stderr
