"""`stepwell verify` and `stepwell repair`: output and exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import stepwell as sw
from support.command_line import CommandLine


def make_store(stepwell: CommandLine) -> Path:
    command = "collect CartPole-v1 --workers 0 --steps 400 --out a --seed 7 --quiet"
    assert stepwell(command).code == 0
    return Path("a/segment-00000000.bin")


def test_the_file_of_an_earlier_version_is_ignored(stepwell: CommandLine) -> None:
    file = make_store(stepwell).with_name("ledger.bin")
    file.write_bytes(b"\x93SWLED\r\n, and what nobody reads")
    for command in ("verify a", "verify --replay a --episodes 1 --lanes 1", "info a", "repair a"):
        said = stepwell(command)
        assert (said.code, said.err) == (0, "")
        said_so = "ledger.bin is ignored" in " ".join(said.out.split())
        assert said_so == (command != "repair a")
    for command in ("info a", "verify a"):
        assert "ledger.bin" in stepwell.json(command)["ignored"]
    assert file.exists()


def test_a_store_is_verified_damaged_and_repaired(stepwell: CommandLine) -> None:
    file = make_store(stepwell)
    said = stepwell("verify a")
    assert (said.code, said.err) == (0, "")
    assert ": whole, " in said.out
    assert said.out.count("\n") == 1
    assert stepwell("verify a --quiet").out == ""
    assert "in order; nothing was damaged" in stepwell("repair a").out
    report = stepwell.json("repair a")
    assert (report["is_done"], report["damages"], report["kept"]) == (True, [], [])
    data = bytearray(file.read_bytes())
    data[len(data.rstrip(b"\0")) - 600] ^= 0x20
    file.write_bytes(data)
    said = stepwell("verify a --quiet")
    assert said.code == 1
    assert str(file) in said.out
    for part in ("bytes at offset", "of episode", "stepwell repair"):
        assert part in said.out
    said = stepwell("repair a")
    assert said.code == 1
    assert "nothing was changed; --yes removes what is damaged" in said.out
    assert file.read_bytes() == data
    said = stepwell("repair a --yes")
    assert said.code == 0
    assert "in order; removed: " in said.out
    assert (Path("a") / "damaged" / f"{file.name}.0").read_bytes() == data
    said = stepwell("verify a")
    assert said.code == 0
    assert "1 chunks were removed by an earlier repair" in said.out
    assert "1 damaged chunks, which a repair removed" in stepwell("info a").out
    assert stepwell("collect CartPole-v1 --workers 0 --steps 50 --out a --resume").code == 0
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.sample_sequences(4, 5).reward.shape == (4, 5)


def test_no_store_and_one_that_is_written_are_refused(stepwell: CommandLine) -> None:
    for command in ("verify nix", "repair nix", "verify .", "repair . --yes"):
        stepwell.refused(command, f"{Path(command.split()[1]).resolve()} |manifest.json")
    make_store(stepwell)
    with sw.SequenceReplayBuffer("a"):
        assert stepwell("verify a").code == 0
        stepwell.refused("repair a", f"a is written by pid {os.getpid()} on ")
