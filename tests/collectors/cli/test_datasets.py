"""`stepwell datasets`, and the entry that `stepwell archive` writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.collectors import Dataset
from stepwell.collectors.catalogue.index import EXTRAS, read_index, write_entry
from support.catalogues import forge, small_catalogue
from support.command_line import CommandLine, has_parts

GET = "datasets get pole/random --index ours/index.toml --lanes 1"


@pytest.fixture
def entry(stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The data set of the catalogue "ours", in the folder of the test."""
    monkeypatch.setenv("STEPWELL_CACHE", str(Path("cache").absolute()))
    return small_catalogue(Path("ours"))[1]


def test_catalogues_are_listed(stepwell: CommandLine, entry: Dataset) -> None:
    said = stepwell("datasets")
    assert (said.code, said.err) == (0, "")
    for name in ("atari/pong-random", "cartpole/expert", "frozenlake/random"):
        assert name in said.out
    assert stepwell.json("datasets")["cartpole/expert"]["return_mean"] == 500
    shown = stepwell("datasets --index ours/index.toml").out.replace("\n", " ")
    assert has_parts(shown, "pole/random|150|CartPole-v1, random (mit)|1 data set")
    listed = stepwell.json("datasets --index ours/index.toml")
    assert listed == {entry.name: entry.to_json()}


def test_a_data_set_is_made_and_proved_or_exported(stepwell: CommandLine, entry: Dataset) -> None:
    said = stepwell(f"{GET} --out a")
    assert (said.code, said.err) == (0, "")
    assert has_parts(said.out, f"150 steps|equal rows|digest {entry.digest}|in a")
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.digest() == entry.digest
    assert stepwell.json(f"{GET} --out b")["digest"] == entry.digest
    assert not Path("cache").exists()
    said = stepwell(f"{GET} --to npz --out arrays")
    assert (said.code, said.err, "150 steps" in said.out) == (0, "", True)
    assert sum(len(np.load(path)["rewards"]) for path in Path("arrays").glob("*.npz")) == 150
    assert stepwell.json(f"{GET} --to npz --out more")["steps"] == 150


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--to hdf6 --out x", "hdf6|hdf5"),
        ("--to memmap-replay-buffer --out x", "only read"),
        ("--to npz --out ours", "ours"),
        ("--to npz --out x --option nothing=1", "nothing"),
    ],
)
@pytest.mark.usefixtures("entry")
def test_an_export_that_cannot_be_is_refused_before_anything_is_played(
    stepwell: CommandLine, words: str, parts: str
) -> None:
    stepwell.refused(f"{GET} {words}", parts)


def test_a_sample_is_checked(stepwell: CommandLine, entry: Dataset) -> None:
    for name in ("pole/random", ""):
        said = stepwell(f"datasets check {name} --index ours/index.toml --lanes 1")
        assert (said.code, said.err) == (0, "")
        assert has_parts(said.out, "pole/random|equal|2 episodes")
    write_entry(
        Path("ours/index.toml"), replace(entry, versions={**entry.versions, "gymnasium": "0.1"})
    )
    [found] = stepwell.json("datasets check --index ours/index.toml --lanes 1 --sample 1")[
        "checked"
    ]
    assert (found["is_equal"], found["episodes"]) == (True, 1)
    assert found["changed"][0].startswith("gymnasium 0.1, now ")


def test_other_rows_have_exit_code_1(stepwell: CommandLine, entry: Dataset) -> None:
    write_entry(Path("ours/index.toml"), replace(entry, digest="0" * 16))
    said = stepwell(f"{GET} --out a")
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
    get = "datasets get a/needy --index ours/index.toml --out a"
    stepwell.refused(get, "not_there|pip install mpe2")


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("datasets get pole/randm --index ours/index.toml --out a", "pole/randm|pole/random"),
        (f"{GET} --out ours", "ours"),
        ("datasets check nothing", "nothing|stepwell datasets"),
        ("datasets check pole/random --index ours/index.toml --sample 0", "--sample|0"),
        ("datasets get pole/random --index ours/index.toml --out a --lanes x", "--lanes|x"),
        ("datasets get pole/random --index ours/pole.swa --out a", "pole.swa|TOML"),
        ("datasets get pole/random --index none.toml --out a", "none.toml"),
        (f"{GET} --out a --option a=b", "--option|--to"),
        ("datasets --index ours/index.toml check", "after the command|check"),
    ],
)
@pytest.mark.usefixtures("entry")
def test_bad_input_is_one_sentence(stepwell: CommandLine, command: str, parts: str) -> None:
    stepwell.refused(command, parts)


def test_archive_writes_the_entry_or_nothing(stepwell: CommandLine) -> None:
    assert stepwell("collect CartPole-v1 --workers 0 --steps 100 --out a --seed 7 -q").code == 0
    Path("ours").mkdir()
    Path("broken.toml").write_text("[", encoding="utf-8")
    Path("empty").mkdir()
    Path("empty/manifest.json").touch()
    for options, parts in (
        ("--name x", "--name|--index"),
        ("--index i.toml --name x", "--policy"),
        ("--index i.toml --name x --policy p --license l --episodes 0", "whole"),
        ("--index i.toml --name X --policy p --license l", "small letters"),
        ("--index ours/i.toml --name x --policy p --license l", "ours"),
        ("--index broken.toml --name x --policy p --license l", "broken.toml|TOML"),
        (f"--index i.toml --name x --policy {'p' * 201} --license l", "policy|200"),
    ):
        stepwell.refused(f"archive empty -o a.swa {options}", parts)  # before it is looked at
    about = "--name pole/mine --policy mine --license cc-by-4.0"
    said = stepwell(f"archive a -o ours/a.swa --lanes 1 --index ours/index.toml {about}")
    assert (said.code, said.err) == (0, "")
    [made] = read_index("ours/index.toml").values()
    assert (made.name, made.policy, made.license) == ("pole/mine", "mine", "cc-by-4.0")
    assert stepwell("datasets get pole/mine --index ours/index.toml --lanes 1 --out b").code == 0
    with sw.SequenceReplayBuffer.open("b", read_only=True) as replay:
        assert replay.digest() == made.digest
