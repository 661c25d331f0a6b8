"""`stepwell verify --replay`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo_rom import write_demo
from stepwell.buffers import Chunk, SequenceReplayBuffer
from support.command_line import CommandLine, has_parts
from support.envs.nes_backends import needs_a_backend
from support.replayed import changed_chunk, whole_episodes, with_lie


@pytest.fixture
def store(stepwell: CommandLine) -> Path:
    command = "collect CartPole-v1 --workers 0 --num-envs 2 --steps 300 --out a --seed 7 --quiet"
    assert stepwell(command).code == 0
    return Path("a")


def rewrite(store: Path, change: Any, out: str, sessions: Any = lambda facts: facts) -> None:
    """Write the store anew, with a change of its chunks; None leaves an episode out."""
    with SequenceReplayBuffer.open(store, read_only=True) as old, SequenceReplayBuffer(out) as new:
        new.bind(old.spec, sessions(old.sessions[0]))
        for _, chunk in whole_episodes(old):
            changed = change(chunk)
            if changed is not None:
                new.storage.add([changed])


def lie_in(*episodes: int) -> Any:
    rng = np.random.default_rng(0)
    return lambda c: with_lie(c, "reward", 2, rng) if c.episode in episodes else c


@pytest.mark.proof
def test_a_proved_store_is_told_in_two_lines(stepwell: CommandLine, store: Path) -> None:
    said = stepwell("verify --replay a --lanes 1")
    assert said.code == 0
    whole, proved = said.out.splitlines()
    assert ": whole, " in whole
    assert has_parts(proved, "a: | of | episodes proved, | rows equal, | steps played in |/s)")
    assert stepwell("verify --replay a --quiet").out == ""


def test_without_replay_nothing_is_played(stepwell: CommandLine, store: Path) -> None:
    assert stepwell("verify a").out.count("\n") == 1


@pytest.mark.proof
def test_each_difference_is_told_with_its_place(stepwell: CommandLine, store: Path) -> None:
    rewrite(store, lie_in(3, 5), "b")
    said = stepwell("verify --replay b --lanes 1")
    assert said.code == 1
    first, second = said.out.splitlines()[1:3]
    assert has_parts(first, "- episode 3, row 2, reward: stored |, the env ")
    assert has_parts(second, "- episode 5, row 2, reward: ")
    assert "2 DIFFER" in said.out
    assert "changed since" not in said.out
    quiet = stepwell("verify --replay b --quiet --episodes 4")
    assert (quiet.code, quiet.out) == (0, "")
    assert "episode 5" in stepwell("verify --replay b --quiet --episodes 4-6").out


@pytest.mark.proof
def test_unreachable_episodes_are_told_with_the_reason(stepwell: CommandLine, store: Path) -> None:
    def change(chunk: Chunk) -> Chunk:
        facts = {k: v for k, v in chunk.metadata.items() if k != "seed"}
        return changed_chunk(chunk, metadata=facts) if chunk.episode == 0 else chunk

    rewrite(store, change, "b")
    said = stepwell("verify --replay b --lanes 1")
    assert said.code == 3
    assert has_parts(said.out, "- 1 episode unreachable (0): no stored seeded reset leads to it")
    with SequenceReplayBuffer.open("b", read_only=True) as replay:
        rows = next(replay.iter_episodes()).rows
    assert f"1 unreachable ({rows} rows)" in said.out
    found = json.loads(stepwell("verify --replay b --lanes 1 --json").out)["replay"]
    assert found["unreachable_rows"] == rows
    rewrite(store, lambda c: change(lie_in(5)(c)), "c")
    assert stepwell("verify --replay c").code == 1  # a difference counts for more


@pytest.mark.proof
def test_the_report_as_json(stepwell: CommandLine, store: Path) -> None:
    rewrite(store, lie_in(3), "b")
    said = stepwell("verify --replay a b --json --lanes 1")
    one, other = (json.loads(line) for line in said.out.splitlines())
    assert said.code == 1
    assert one["is_whole"]
    assert one["replay"]["differing"] == one["replay"]["unreachable"] == []
    assert one["replay"]["equal"] == one["episodes"]
    assert one["replay"]["rows"] == one["rows"]
    (wrong,) = other["replay"]["differing"]
    assert (wrong["episode"], wrong["field"], wrong["row"]) == (3, "reward", 2)
    assert json.loads(stepwell("verify a --json").out).get("replay") is None


def test_a_damaged_store_is_not_played(stepwell: CommandLine, store: Path) -> None:
    file = store / "segment-00000000.bin"
    data = bytearray(file.read_bytes())
    data[len(data.rstrip(b"\0")) - 600] ^= 0x20
    file.write_bytes(data)
    said = stepwell("verify --replay a")
    assert said.code == 1
    assert "proved" not in said.out


def test_a_sample_and_lanes(stepwell: CommandLine, store: Path) -> None:
    said = stepwell("verify --replay a --sample 3 --lanes 2 --json")
    assert json.loads(said.out)["replay"]["equal"] == 3


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--lanes 2", "--lanes|--replay"),
        ("--episodes 3", "--episodes|--replay"),
        ("--replay --lanes 0", "--lanes|0"),
        ("--replay --sample x", "--sample|x"),
        ("--replay --episodes 3,9999", "--episodes|9999"),
        ("--replay --episodes x", "--episodes|x"),
        ("--replay --env math:floor", "math:floor"),
        ("--replay --env Unknown-v0", "Unknown-v0"),
        ("--replay --env Pendulum-v1", "observation|(4,)|(3,)"),
        ("--replay --rom a.nes", "rom|make_vec"),
        ("--replay --backend native", "native|make_vec"),
        ("--replay --backend auto", "--backend|auto"),
    ],
)
def test_wrong_options_are_refused(
    stepwell: CommandLine, store: Path, options: str, parts: str
) -> None:
    said = stepwell(f"verify a {options}")
    assert said.code == 2
    assert has_parts(said.err, parts)


def test_an_env_is_named_where_the_store_does_not_say_how(stepwell: CommandLine) -> None:
    command = "collect mine:counter --workers 0 --steps 20 --out a --seed 7 --quiet"
    assert stepwell(command).code == 0
    said = stepwell("verify --replay a")
    assert said.code == 2
    assert has_parts(said.err, "mine:counter|--env")
    # This env counts its episodes over all resets, so only the first one can be played again.
    assert stepwell("verify --replay a --env mine:counter --episodes 0").code == 0
    assert stepwell("verify --replay a --env mine:counter").code == 1


@needs_a_backend
def test_a_cartridge_is_given_with_its_file(stepwell: CommandLine) -> None:
    pytest.importorskip("cv2")
    rom, game = write_demo(Path("demo"))
    options = f"--game {game} --max-frames 40 --steps 20 --workers 0 --out a --quiet"
    assert stepwell(f"collect {rom} {options}").code == 0
    assert has_parts(stepwell("verify --replay a").err, "cartridge|--rom")
    assert stepwell(f"verify --replay a --rom {rom}").code == 0
