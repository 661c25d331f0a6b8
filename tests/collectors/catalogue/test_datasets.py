"""Data sets of a catalogue: made whole or not at all, once, and equal to what was archived."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import RowsDiffer
from stepwell.collectors import Dataset, add_dataset, check_dataset, list_datasets, load_dataset
from stepwell.collectors.catalogue import datasets
from stepwell.collectors.catalogue.index import EXTRAS, write_entry
from support.catalogues import forge, small_catalogue
from support.needed import skip_without

Small = tuple[Path, Dataset]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return small_catalogue(tmp_path_factory.mktemp("made") / "ours")


@pytest.fixture
def small(made: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    shutil.copytree(made[0].parent, tmp_path / "ours")
    return tmp_path / "ours" / "index.toml", made[1]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def test_a_data_set_is_made_once_and_then_opened(small: Small, tmp_path: Path) -> None:
    index, entry = small
    told: list[tuple[int, int]] = []
    with load_dataset(
        entry.name, index=index, lanes=1, progress=lambda *steps: told.append(steps)
    ) as replay:
        assert replay.digest() == entry.digest
        assert (replay.steps, replay.episodes) == (entry.steps, entry.episodes)
        assert replay.path is not None
        assert replay.path.is_relative_to(tmp_path / "cache")
        with pytest.raises(Exception, match="read"):
            replay.storage.append_session({})
    assert told[-1] == (entry.steps, entry.steps)
    told.clear()
    before = files_of(tmp_path / "cache")
    with load_dataset(entry.name, index=index, progress=lambda *steps: told.append(steps)) as again:
        assert again.digest() == entry.digest
    assert not told
    assert files_of(tmp_path / "cache") == before


def test_an_entry_has_the_numbers_of_the_whole_episodes(small: Small) -> None:
    index, entry = small
    with load_dataset(entry.name, index=index, lanes=1) as replay:
        returns = [one.total_reward for one in replay.iter_episodes() if one.end.is_final]
    assert len(returns) < entry.episodes  # one was cut
    assert entry.return_mean == pytest.approx(np.mean(returns))
    assert entry.return_std == pytest.approx(np.std(returns))
    assert entry.env == "CartPole-v1"
    assert entry.versions["gymnasium"]


def test_several_processes_make_it_once(small: Small, tmp_path: Path) -> None:
    index, entry = small
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(digest_of, [(entry.name, index)] * 3))
    assert found == [entry.digest] * 3
    [store] = [path.parent for path in tmp_path.glob("cache/**/manifest.json")]
    assert [path.name for path in store.parent.iterdir()] == [store.name]  # nothing half made


def digest_of(what: tuple[str, Path]) -> str:
    with load_dataset(what[0], index=what[1], lanes=1) as replay:
        return replay.digest()


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPWELL_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert datasets.cache_folder() == Path("/fast/stepwell")
    for other in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", other)
        assert datasets.cache_folder() == Path("/home/someone/.cache/stepwell")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert datasets.cache_folder() == Path("/home/someone/Library/Caches/stepwell")
    monkeypatch.setenv("STEPWELL_CACHE", "/mine")
    assert datasets.cache_folder() == Path("/mine")


def test_another_archive_than_the_index_says_is_refused(small: Small, tmp_path: Path) -> None:
    index, entry = small
    archive = index.parent / entry.archive
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    for wrong in (bytes(data), bytes(data) + b"x", b""):
        archive.write_bytes(wrong)
        with pytest.raises(ValueError, match=f"{entry.archive}: expected the archive of"):
            load_dataset(entry.name, index=index, lanes=1)
    archive.unlink()
    with pytest.raises(FileNotFoundError, match=entry.archive):
        load_dataset(entry.name, index=index, lanes=1)
    assert not files_of(tmp_path / "cache")


def test_an_env_that_behaves_differently_leaves_nothing(small: Small, tmp_path: Path) -> None:
    index = forge(*small, reward=1)
    with pytest.raises(RowsDiffer, match="reward"):
        load_dataset(small[1].name, index=index, lanes=1)
    assert not files_of(tmp_path / "cache")
    found = check_dataset(small[1].name, index=index, sample=100, lanes=1)
    assert not found.is_equal
    assert "reward" in found.why
    [changed] = found.changed
    assert changed.startswith("numpy 1.0, now ")


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"digest": "0" * 16}, RowsDiffer, "0{16}, got "),
        ({"store_bytes": 1 << 60}, OSError, "make room"),
        ({}, KeyboardInterrupt, "while it is played"),
    ],
)
def test_rows_that_are_not_all_there_and_right_are_no_data_set(
    small: Small, tmp_path: Path, wrong: Any, error: type[BaseException], words: str
) -> None:
    def stop(*_: int) -> None:
        if not wrong:
            raise KeyboardInterrupt(words)
        assert "store_bytes" not in wrong  # refused before anything is played

    index, entry = small
    write_entry(index, replace(entry, **wrong))
    with pytest.raises(error, match=words):
        load_dataset(entry.name, index=index, lanes=1, progress=stop)
    assert not files_of(tmp_path / "cache")


def test_a_missing_package_is_named_with_its_install_line(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, entry = small
    monkeypatch.setitem(EXTRAS, "mpe2", EXTRAS["mpe2"]._replace(module="not_there"))
    write_entry(index, replace(entry, extra="mpe2"))
    for call in (load_dataset, check_dataset):
        with pytest.raises(ImportError, match=r"not_there.*pip install mpe2"):
            call(entry.name, index=index, lanes=1)


def test_env_arguments_of_an_archive_are_checked_before_an_env_is_made(
    small: Small, tmp_path: Path
) -> None:
    spec = json.loads(gym.make("CartPole-v1").spec.to_json())  # type: ignore[union-attr]
    for wrong, words in (
        ({"max_episode_steps": 10**9}, "max_episode_steps"),
        ({"kwargs": {"frame_skip": 10**9}}, "frame_skip"),
        ({"entry_point": "os:system"}, "entry point"),
        ({"id": "os:CartPole-v1"}, "plain id"),
    ):
        index = forge(*small, env_spec=json.dumps({**spec, **wrong}))
        with pytest.raises(ValueError, match=words):
            load_dataset(small[1].name, index=index, lanes=1)
    assert not files_of(tmp_path / "cache")


def test_only_a_whole_archive_in_the_folder_of_the_index_is_added(
    small: Small, tmp_path: Path
) -> None:
    index, entry = small
    archive = index.parent / entry.archive
    words = {"policy": "random", "license": "mit"}
    with load_dataset(entry.name, index=index, lanes=1) as replay:
        shutil.copy(archive, tmp_path / "outside.swa")
        with pytest.raises(ValueError, match=r"outside\.swa: expected a file in"):
            add_dataset(index, "x", tmp_path / "outside.swa", replay, **words)
        sw.archive(replay, index.parent / "part.swa", episodes=[0], is_proved=False)
        with pytest.raises(ValueError, match="whole store"):
            add_dataset(index, "x", index.parent / "part.swa", replay, **words)
        with pytest.raises(ValueError, match="small letters"):
            add_dataset(index, "X", archive, replay, **words)
    assert [one.name for one in list_datasets(index)] == [entry.name]


IN_EVERY_RUN = ("cartpole/expert", "frozenlake/random")


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(one, marks=[] if one.name in IN_EVERY_RUN else pytest.mark.proof, id=one.name)
        for one in list_datasets()
    ],
)
def test_a_shipped_data_set_shows_the_same_rows_here(entry: Dataset) -> None:
    if entry.extra:
        skip_without([EXTRAS[entry.extra].module])
    found = check_dataset(entry.name, sample=1, lanes=1)
    assert found.is_equal, found
