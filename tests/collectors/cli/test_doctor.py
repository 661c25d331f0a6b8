"""`stepwell doctor`: the facts of a bug report, and nothing private."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
from pathlib import Path

import pytest

from stepwell.collectors.cli import doctor as doctor_file
from support.command_line import CommandLine


@pytest.mark.proof
def test_it_shows_what_a_report_of_a_bug_needs(stepwell: CommandLine, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    found = stepwell.json(f"doctor {tmp_path}")
    assert found["machine"]["python"].endswith(platform.python_version())
    assert found["machine"]["cores"] == os.cpu_count()
    for name in ("gymnasium", "numpy", "ale-py", "opencv-python", "zstandard"):
        assert found["packages"][name] == importlib.metadata.version(name)
    assert found["works"]["store"] == "100 steps of CartPole-v1 were stored and read"
    assert found["works"]["Atari"] == "Pong was played, 84 x 84 pixels"
    assert found["folder"]["synchronized write of 4 KiB, ms"] > 0
    assert found["folder"]["synchronized write of 64 MiB, MB/s"] > 0
    assert found["folder"]["free"] > 0
    assert sorted(tmp_path.iterdir()) == before  # what it wrote is gone
    assert not [line for line in found["problems"] if "/dev/shm" not in line]


def test_it_is_text_without_names(
    stepwell: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET_TOKEN", "told-nobody")

    def fails() -> str:
        raise OSError(f"no room in {home}/runs\nafter it")

    monkeypatch.setattr(doctor_file, "_atari_plays", fails)
    text = stepwell(f"doctor {tmp_path}").out
    assert "OMP_NUM_THREADS: 3" in text
    assert "Atari: FAILED: OSError: no room in ~/runs after it" in text
    problems = text.partition("problems")[2]
    assert "Atari" in problems
    for private in (str(home), platform.node(), "told-nobody"):
        assert private not in text
    assert f"/{getpass.getuser()}/" not in text


def test_few_files_and_little_shared_memory_are_problems() -> None:
    machine = {"open files": 100, "/dev/shm free": 1 << 20}
    files, shared = doctor_file._problems({"works": {"store": "fine"}, "machine": machine})[:2]
    assert "100" in files
    assert "/dev/shm" in shared
    assert "shm-size" in shared


def test_a_folder_that_is_not_there_is_refused(stepwell: CommandLine) -> None:
    stepwell.refused("doctor nowhere", "'nowhere'")
