"""`stepwell archive` and `stepwell restore`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import Chunk
from support.archived import contents_of
from support.command_line import CommandLine, has_parts


def make_store(stepwell: CommandLine, name: str = "a") -> Path:
    command = f"collect CartPole-v1 --workers 0 --steps 400 --out {name} --seed 7 --quiet"
    assert stepwell(command).code == 0
    return Path(name)


@pytest.mark.proof
def test_a_store_is_archived_and_restored(stepwell: CommandLine) -> None:
    store = make_store(stepwell)
    said = stepwell("archive a -o a.swa --lanes 1")
    assert (said.code, said.err) == (0, "")
    assert has_parts(said.out, "400 steps| -> | bytes a step|proved|in a.swa")
    said = stepwell("restore a.swa --out b --lanes 1")
    assert (said.code, said.err) == (0, "")
    assert has_parts(said.out, "400 steps|equal rows|in b")
    found = [sw.SequenceReplayBuffer.open(path, read_only=True) for path in (store, "b")]
    assert contents_of(found[0]) == contents_of(found[1])


@pytest.mark.proof
def test_the_numbers_are_printed_as_json(stepwell: CommandLine) -> None:
    make_store(stepwell)
    made = json.loads(stepwell("archive a -o a.swa --unproved --json").out)
    assert (made["steps"], made["is_proved"]) == (400, False)
    assert made["archive_bytes"] == Path("a.swa").stat().st_size < made["disk_bytes"]
    again = json.loads(stepwell("restore a.swa --out b --lanes 1 --json").out)
    assert (again["steps"], again["played_steps"]) == (400, 400)
    assert stepwell("archive a -o b.swa --lanes 1 --quiet").out == ""
    assert stepwell("restore b.swa --out c --lanes 1 --quiet").out == ""


@pytest.mark.proof
def test_a_difference_has_exit_code_1(stepwell: CommandLine) -> None:
    lie(make_store(stepwell))
    said = stepwell("archive lie -o a.swa --lanes 1")
    assert said.code == 1
    assert has_parts(said.err, "episode 2|'reward'|row")
    assert not Path("a.swa").exists()
    assert stepwell("archive lie -o a.swa --unproved").code == 0
    said = stepwell("restore a.swa --out b --lanes 1")
    assert said.code == 1
    assert has_parts(said.err, "a.swa|'reward'|episodes were restored")


def test_an_episode_that_cannot_be_played_has_exit_code_3(stepwell: CommandLine) -> None:
    lie(make_store(stepwell), lacks_seed=True)
    said = stepwell("archive lie -o a.swa --lanes 1")
    assert said.code == 3
    assert has_parts(said.err, "1 of |episode 2|--provable")
    said = stepwell("archive lie -o a.swa --lanes 1 --provable")
    assert (said.code, said.err) == (0, "")
    assert "1 left out" in said.out


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("archive none -o a.swa", "none|store"),
        ("archive a -o there", "there|already"),
        ("archive a -o a.swa --lanes 0", "--lanes|0"),
        ("archive a -o a.swa --episodes x", "--episodes|'x'"),
        ("restore none.swa --out b", "none.swa"),
        ("restore a --out b", "a|archive|folder"),
        ("restore there --out b", "there|archive"),
    ],
)
def test_bad_input_is_one_sentence_with_exit_code_2(
    stepwell: CommandLine, command: str, parts: str
) -> None:
    make_store(stepwell)
    Path("there").write_text("mine")
    said = stepwell(command)
    assert said.code == 2
    assert has_parts(said.err, parts)
    assert said.err.count("\n") == 1
    assert Path("there").read_text() == "mine"
    assert not Path("b").exists()
    assert not Path("a.swa").exists()


def lie(store: Path, *, lacks_seed: bool = False) -> None:
    """Write the store again, with a false reward in episode 2, or without the seed of it."""
    with (
        sw.SequenceReplayBuffer.open(store, read_only=True) as replay,
        sw.SequenceReplayBuffer("lie") as new,
    ):
        new.bind(replay.spec, replay.sessions[0])
        for one in replay.iter_episodes():
            fields, metadata = dict(one.fields), dict(one.metadata)
            if one.id == 2 and lacks_seed:
                del metadata["seed"]
                metadata["stream_episode"] = 77
            elif one.id == 2:
                fields["reward"] = fields["reward"] + np.arange(one.rows) / 8
            new.add([Chunk(one.id, one.stream, one.first_row, one.end, fields, metadata)])
