"""`stepwell verify --replay`, `archive` and `restore`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from demo_rom import write_demo
from stepwell.buffers import Chunk, SequenceReplayBuffer
from support.archived import contents_of
from support.command_line import CommandLine, has_parts
from support.envs.nes_backends import needs_a_backend
from support.replayed import changed_chunk, whole_episodes, with_lie


@pytest.fixture
def store(stepwell: CommandLine) -> None:
    command = "collect CartPole-v1 --workers 0 --num-envs 2 --steps 300 --out a --seed 7 --quiet"
    assert stepwell(command).code == 0
    Path("there").write_text("mine")


def rewrite(out: str, lies: tuple[int, ...] = (), seedless: tuple[int, ...] = ()) -> None:
    """Write the store anew, with lies in some episodes, and without the seeds of some."""
    rng = np.random.default_rng(0)

    def changed(chunk: Chunk) -> Chunk:
        if chunk.episode in lies:
            return with_lie(chunk, "reward", 2, rng)
        if chunk.episode in seedless:
            facts = {key: value for key, value in chunk.metadata.items() if key != "seed"}
            return changed_chunk(chunk, metadata=facts)
        return chunk

    with SequenceReplayBuffer.open("a", read_only=True) as old, SequenceReplayBuffer(out) as new:
        new.bind(old.spec, old.sessions[0])
        for _, chunk in whole_episodes(old):
            new.storage.add([changed(chunk)])


@pytest.mark.usefixtures("store")
def test_a_proved_store_is_told_in_two_lines(stepwell: CommandLine) -> None:
    assert stepwell("verify a").out.count("\n") == 1  # nothing is played
    said = stepwell("verify --replay a --lanes 1")
    assert said.code == 0
    whole, proved = said.out.splitlines()
    assert ": whole, " in whole
    assert has_parts(proved, "a: | of | episodes proved, | rows equal, | steps played in |/s)")
    assert stepwell("verify --replay a --quiet").out == ""
    assert stepwell.json("verify --replay a --sample 3 --lanes 2")["replay"]["equal"] == 3


@pytest.mark.proof
@pytest.mark.usefixtures("store")
def test_differences_have_exit_code_1_and_their_places(stepwell: CommandLine) -> None:
    rewrite("b", lies=(3, 5))
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
    said = stepwell("verify --replay a b --json --lanes 1")
    one, other = (json.loads(line) for line in said.out.splitlines())
    assert said.code == 1
    assert one["is_whole"]
    assert one["replay"]["differing"] == one["replay"]["unreachable"] == []
    assert (one["replay"]["equal"], one["replay"]["rows"]) == (one["episodes"], one["rows"])
    wrong = other["replay"]["differing"][0]
    assert (wrong["episode"], wrong["field"], wrong["row"]) == (3, "reward", 2)
    said = stepwell("archive b -o b.swa --lanes 1")
    assert (said.code, has_parts(said.err, "episode 3|'reward'|row")) == (1, True)
    assert not Path("b.swa").exists()
    assert stepwell("archive b -o b.swa --unproved").code == 0
    said = stepwell("restore b.swa --out c --lanes 1")
    assert (said.code, has_parts(said.err, "b.swa|'reward'|episodes were restored")) == (1, True)


@pytest.mark.usefixtures("store")
def test_unreachable_episodes_have_exit_code_3_and_the_reason(stepwell: CommandLine) -> None:
    rewrite("b", seedless=(0,))
    said = stepwell("verify --replay b --lanes 1")
    assert said.code == 3
    assert has_parts(said.out, "- 1 episode unreachable (0): no stored seeded reset leads to it")
    with SequenceReplayBuffer.open("b", read_only=True) as replay:
        rows = next(replay.iter_episodes()).rows
    assert f"1 unreachable ({rows} rows)" in said.out
    found = json.loads(stepwell("verify --replay b --lanes 1 --json").out)["replay"]
    assert found["unreachable_rows"] == rows
    said = stepwell("archive b -o b.swa --lanes 1")
    assert (said.code, has_parts(said.err, "1 of |episode 0|--provable")) == (3, True)
    said = stepwell("archive b -o b.swa --lanes 1 --provable")
    assert (said.code, said.err, "1 left out" in said.out) == (0, "", True)
    rewrite("c", lies=(5,), seedless=(0,))
    assert stepwell("verify --replay c").code == 1  # a difference counts for more


@pytest.mark.usefixtures("store")
def test_a_damaged_store_is_not_played(stepwell: CommandLine) -> None:
    file = Path("a/segment-00000000.bin")
    data = bytearray(file.read_bytes())
    data[len(data.rstrip(b"\0")) - 600] ^= 0x20
    file.write_bytes(data)
    said = stepwell("verify --replay a")
    assert (said.code, "proved" in said.out) == (1, False)


@pytest.mark.proof
@pytest.mark.usefixtures("store")
def test_a_store_is_archived_and_restored(stepwell: CommandLine) -> None:
    said = stepwell("archive a -o a.swa --lanes 1")
    assert (said.code, said.err) == (0, "")
    assert has_parts(said.out, "300 steps| -> | bytes a step|proved|in a.swa")
    said = stepwell("restore a.swa --out b --lanes 1")
    assert (said.code, said.err) == (0, "")
    assert has_parts(said.out, "300 steps|equal rows|in b")
    found = [SequenceReplayBuffer.open(path, read_only=True) for path in "ab"]
    assert contents_of(found[0]) == contents_of(found[1])
    made = stepwell.json("archive a -o c.swa --unproved")
    assert (made["steps"], made["is_proved"]) == (300, False)
    assert made["archive_bytes"] == Path("c.swa").stat().st_size < made["disk_bytes"]
    again = stepwell.json("restore c.swa --out c --lanes 1")
    assert (again["steps"], again["played_steps"]) == (300, 300)
    assert stepwell("archive a -o d.swa --unproved --quiet").out == ""
    assert stepwell("restore d.swa --out d --lanes 1 --quiet").out == ""


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("verify a --lanes 2", "--lanes|--replay"),
        ("verify a --episodes 3", "--episodes|--replay"),
        ("verify a --replay --lanes 0", "--lanes|0"),
        ("verify a --replay --sample x", "--sample|x"),
        ("verify a --replay --quiet --episodes 3,9999", "--episodes|9999"),
        ("verify a --replay --env math:floor", "math:floor"),
        ("verify a --replay --quiet --rom a.nes", "rom|make_vec"),
        ("verify a --replay --backend auto", "--backend|auto"),
        ("archive none -o a.swa", "none|store"),
        ("archive a -o there", "there|already"),
        ("archive a -o a.swa --lanes 0", "--lanes|0"),
        ("archive a -o a.swa --episodes x", "--episodes|'x'"),
        ("restore none.swa --out b", "none.swa"),
        ("restore a --out b", "a|archive|folder"),
        ("restore there --out b", "there|archive"),
    ],
)
@pytest.mark.usefixtures("store")
def test_wrong_words_are_one_sentence(stepwell: CommandLine, command: str, parts: str) -> None:
    stepwell.refused(command, parts)


def test_an_env_is_named_where_the_store_does_not_say_how(stepwell: CommandLine) -> None:
    command = "collect mine:counter --workers 0 --steps 20 --out a --seed 7 --quiet"
    assert stepwell(command).code == 0
    said = stepwell("verify --replay a")
    assert (said.code, has_parts(said.err, "mine:counter|--env")) == (2, True)
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
    assert stepwell(f"archive a -o a.swa --rom {rom}").code == 0
    assert stepwell(f"restore a.swa --out b --rom {rom}").code == 0
    shown = " ".join(stepwell("info a").out.split())  # and no more of the map
    assert has_parts(shown, "env game (game.nes, sha256 ecd0b80eb430), |backend=|, actions=")
    assert "boot='NOOP 20, START 3, NOOP 5'" in shown
    assert "{" not in shown
