"""`stepwell verify` and `stepwell repair`: output and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.buffers.base import progress
from stepwell.buffers.base.progress import Status
from support.command_line import CommandLine, has_parts


def make_store(stepwell: CommandLine, name: str = "a") -> Path:
    command = f"collect CartPole-v1 --workers 0 --steps 400 --out {name} --seed 7 --quiet"
    assert stepwell(command).code == 0
    return Path(name) / "segment-00000000.bin"


def damage(file: Path, places: tuple[int, ...] = (600,)) -> None:
    """Flip bits of chunks, counted from the end of the file's used part."""
    data = bytearray(file.read_bytes())
    end = len(data.rstrip(b"\0"))
    for place in places:
        data[end - place] ^= 0x20
    file.write_bytes(data)


def test_the_file_of_an_earlier_version_is_ignored(stepwell: CommandLine) -> None:
    file = make_store(stepwell).with_name("ledger.bin")
    file.write_bytes(b"\x93SWLED\r\n, and what nobody reads")
    for command in ("verify a", "verify --replay a --episodes 1 --lanes 1", "info a", "repair a"):
        said = stepwell(command)
        assert (said.code, said.err) == (0, "")
        said_so = "ledger.bin is ignored" in " ".join(said.out.split())
        assert said_so == (command != "repair a")
    with sw.SequenceReplayBuffer("a") as replay:
        assert replay.steps == 400
    assert file.exists()
    assert "ledger.bin" in json.loads(stepwell("info a --json").out)["ignored"]
    assert "ledger.bin" in json.loads(stepwell("verify a --json").out)["ignored"]


def test_a_sound_store_is_reported_in_one_line(stepwell: CommandLine) -> None:
    make_store(stepwell)
    said = stepwell("verify a")
    assert said.code == 0
    assert said.err == ""
    assert ": whole, " in said.out
    assert said.out.count("\n") == 1
    assert stepwell("verify a --quiet").out == ""


def test_damage_is_reported_with_its_place_and_exit_code_1(stepwell: CommandLine) -> None:
    file = make_store(stepwell)
    damage(file)
    said = stepwell("verify a --quiet")
    assert said.code == 1
    assert str(file) in said.out
    assert "bytes at offset" in said.out
    assert "of episode" in said.out
    assert "stepwell repair" in said.out


def test_repair_takes_out_nothing_without_yes(stepwell: CommandLine) -> None:
    file = make_store(stepwell)
    damage(file)
    before = file.read_bytes()
    said = stepwell("repair a")
    assert said.code == 1
    assert "nothing was changed; --yes removes what is damaged" in said.out
    assert file.read_bytes() == before
    said = stepwell("repair a --yes")
    assert said.code == 0
    assert "in order; removed: " in said.out
    assert (Path("a") / "damaged" / f"{file.name}.0").read_bytes() == before
    said = stepwell("verify a")
    assert said.code == 0
    assert "1 chunks were removed by an earlier repair" in said.out
    assert "1 damaged chunks, which a repair removed" in stepwell("info a").out
    assert stepwell("collect CartPole-v1 --workers 0 --steps 50 --out a --resume").code == 0
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.sample_sequences(4, 5).reward.shape == (4, 5)


def test_repair_of_a_sound_store_says_so(stepwell: CommandLine) -> None:
    make_store(stepwell)
    assert "in order; nothing was damaged" in stepwell("repair a").out
    report = stepwell.json("repair a")
    assert (report["is_done"], report["damages"], report["kept"]) == (True, [], [])


@pytest.mark.parametrize("command", ["verify nix", "repair nix", "verify .", "repair . --yes"])
def test_a_folder_without_a_store_is_refused(stepwell: CommandLine, command: str) -> None:
    said = stepwell(command)
    assert said.code == 2
    assert has_parts(said.err, f"{Path(command.split()[1]).resolve()} |manifest.json"), said.err


def test_a_store_that_is_written_is_verified_but_not_repaired(stepwell: CommandLine) -> None:
    make_store(stepwell)
    with sw.SequenceReplayBuffer("a"):
        assert stepwell("verify a").code == 0
        said = stepwell("repair a")
    assert said.code == 2
    assert f"a is written by pid {os.getpid()} on " in said.err


@pytest.mark.parametrize("seconds", [1_000.0, 0.0])
def test_the_line_is_not_drawn_for_every_chunk(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    make_store(stepwell)
    drawn: list[Status] = []
    monkeypatch.setattr(progress, "_TIMES_THE_COST", 0)
    for name, value in (("interval", seconds), ("delay", 0.0)):
        monkeypatch.setattr(progress._TextLines, name, value)
    monkeypatch.setattr(progress._TextLines, "show", lambda self, status: drawn.append(status))
    assert stepwell("verify a").code == 0
    assert len(drawn) == 1 if seconds else len(drawn) > 10
