"""`stepwell datasets`, and the entry that `stepwell archive` writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.collectors import Dataset
from stepwell.collectors.catalogue.index import EXTRAS, read_index, write_entry
from support.catalogues import forge, small_catalogue
from support.command_line import CommandLine, has_parts


@pytest.fixture
def entry(stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The data set of the catalogue "ours", in the folder of the test."""
    monkeypatch.setenv("STEPWELL_CACHE", str(Path("cache").absolute()))
    return small_catalogue(Path("ours"))[1]


def test_the_catalogue_is_listed(stepwell: CommandLine) -> None:
    said = stepwell("datasets")
    assert (said.code, said.err) == (0, "")
    for name in ("atari/pong-random", "cartpole/expert", "frozenlake/random"):
        assert name in said.out
    found = json.loads(stepwell("datasets --json").out)
    assert found["cartpole/expert"]["return_mean"] == 500


def test_a_catalogue_of_ones_own_is_listed(stepwell: CommandLine, entry: Dataset) -> None:
    said = stepwell("datasets --index ours/index.toml")
    assert has_parts(
        said.out.replace("\n", " "), "pole/random|150|CartPole-v1, random (mit)|1 data set"
    )
    assert json.loads(stepwell("datasets --index ours/index.toml --json").out) == {
        entry.name: entry.to_json()
    }


def test_a_data_set_is_made_and_proved(stepwell: CommandLine, entry: Dataset) -> None:
    said = stepwell("datasets get pole/random --index ours/index.toml --out a --lanes 1")
    assert (said.code, said.err) == (0, "")
    assert has_parts(said.out, f"150 steps|equal rows|digest {entry.digest}|in a")
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.digest() == entry.digest
    said = stepwell("datasets get pole/random --index ours/index.toml --out b --lanes 1 --json")
    assert json.loads(said.out)["digest"] == entry.digest
    assert not Path("cache").exists()
    said = stepwell("datasets get pole/random --index ours/index.toml --out a --lanes 1")
    assert (said.code, "a" in said.err) == (2, True)


def test_a_data_set_is_exported_in_one_go(stepwell: CommandLine, entry: Dataset) -> None:
    get = "datasets get pole/random --index ours/index.toml --lanes 1"
    said = stepwell(f"{get} --to npz --out arrays")
    assert (said.code, said.err) == (0, "")
    assert has_parts(said.out, "150 steps")
    assert sum(len(np.load(path)["rewards"]) for path in Path("arrays").glob("*.npz")) == 150
    made = json.loads(stepwell(f"{get} --to npz --out more --json").out)
    assert made["steps"] == 150
    assert stepwell(f"{get} --to nothing --out x").code == 2
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--to hdf6 --out x", "hdf6|hdf5"),
        ("--to memmap-replay-buffer --out x", "only read"),
        ("--to npz --out ours", "ours"),
        ("--to npz --out x --option nothing=1", "nothing"),
    ],
)
def test_an_export_that_cannot_be_is_refused_before_anything_is_played(
    stepwell: CommandLine, entry: Dataset, words: str, parts: str
) -> None:
    del entry
    said = stepwell(f"datasets get pole/random --index ours/index.toml --lanes 1 {words}")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert has_parts(said.err, parts)
    assert not Path("cache").exists()
    assert not Path("x").exists()


def test_a_sample_is_checked(stepwell: CommandLine, entry: Dataset) -> None:
    for name in ("pole/random", ""):
        said = stepwell(f"datasets check {name} --index ours/index.toml --lanes 1")
        assert (said.code, said.err) == (0, "")
        assert has_parts(said.out, "pole/random|equal|2 episodes")
    write_entry(
        Path("ours/index.toml"), replace(entry, versions={**entry.versions, "gymnasium": "0.1"})
    )
    said = stepwell("datasets check --index ours/index.toml --lanes 1 --sample 1 --json")
    [found] = json.loads(said.out)["checked"]
    assert (found["is_equal"], found["episodes"]) == (True, 1)
    assert found["changed"][0].startswith("gymnasium 0.1, now ")


def test_other_rows_have_exit_code_1(stepwell: CommandLine, entry: Dataset) -> None:
    write_entry(Path("ours/index.toml"), replace(entry, digest="0" * 16))
    said = stepwell("datasets get pole/random --index ours/index.toml --lanes 1 --out a")
    assert (said.code, said.out) == (1, "")
    assert has_parts(said.err, f"digest {'0' * 16}|{entry.digest}")
    assert not Path("a").exists()
    forge(Path("ours/index.toml"), entry, reward=1)
    said = stepwell("datasets check --index ours/index.toml --lanes 1 --sample 100")
    assert said.code == 1
    assert has_parts(said.out, "pole/random|DIFFERS")
    assert has_parts(said.err, "pole/random|reward")
    assert said.err.count("\n") == 1


def test_a_missing_package_is_told_and_the_others_are_checked(
    stepwell: CommandLine, entry: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXTRAS, "mpe2", EXTRAS["mpe2"]._replace(module="not_there"))
    write_entry(Path("ours/index.toml"), replace(entry, name="a/needy", extra="mpe2"))
    said = stepwell("datasets check --index ours/index.toml --lanes 1")
    assert said.code == 3
    assert has_parts(said.out, "pole/random|equal")
    assert has_parts(said.err, "a/needy|not_there|pip install mpe2")
    said = stepwell("datasets get a/needy --index ours/index.toml --out a")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert has_parts(said.err, "not_there|pip install mpe2")


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("datasets get pole/randm --index ours/index.toml --out a", "pole/randm|pole/random"),
        ("datasets get atari/pong --out a", "atari/pong|atari/pong-random"),
        ("datasets check nothing", "nothing|stepwell datasets"),
        ("datasets check pole/random --index ours/index.toml --sample 0", "--sample|0"),
        ("datasets get pole/random --index ours/index.toml --out a --lanes x", "--lanes|x"),
        ("datasets get pole/random --index ours/pole.swa --out a", "pole.swa|TOML"),
        ("datasets get pole/random --index none.toml --out a", "none.toml"),
        ("datasets get pole/random --index ours/index.toml --out a --option a=b", "--option|--to"),
        ("datasets --index ours/index.toml check", "after the command|check"),
    ],
)
def test_bad_input_is_one_sentence_with_exit_code_2(
    stepwell: CommandLine, entry: Dataset, command: str, parts: str
) -> None:
    said = stepwell(command)
    assert said.code == 2
    assert has_parts(said.err, parts)
    assert said.err.count("\n") == 1
    assert not Path("a").exists()


def test_archive_writes_the_entry(stepwell: CommandLine) -> None:
    assert stepwell("collect CartPole-v1 --workers 0 --steps 100 --out a --seed 7 -q").code == 0
    Path("ours").mkdir()
    about = "--name pole/mine --policy mine --license cc-by-4.0"
    said = stepwell(f"archive a -o ours/a.swa --lanes 1 --index ours/index.toml {about}")
    assert (said.code, said.err) == (0, "")
    [made] = read_index("ours/index.toml").values()
    assert (made.name, made.policy, made.license) == ("pole/mine", "mine", "cc-by-4.0")
    assert stepwell("datasets get pole/mine --index ours/index.toml --lanes 1 --out b").code == 0
    with sw.SequenceReplayBuffer.open("b", read_only=True) as replay:
        assert replay.digest() == made.digest


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--name x", "--name|--index"),
        ("--index i.toml --name x", "--policy"),
        ("--index i.toml --name x --policy p --license l --episodes 0", "whole"),
        ("--index i.toml --name X --policy p --license l", "small letters"),
        ("--index sub/i.toml --name x --policy p --license l", "sub"),
    ],
)
def test_an_entry_that_cannot_be_written_leaves_no_archive(
    stepwell: CommandLine, options: str, parts: str
) -> None:
    assert stepwell("collect CartPole-v1 --workers 0 --steps 50 --out a --seed 7 -q").code == 0
    Path("sub").mkdir()
    said = stepwell(f"archive a -o a.swa --unproved {options}")
    assert said.code == 2
    assert has_parts(said.err, parts)
    assert not Path("a.swa").exists()
    assert not list(Path().glob("**/*.toml"))
