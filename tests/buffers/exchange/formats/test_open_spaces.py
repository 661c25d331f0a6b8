"""Stores of texts, sequences, graphs and alternatives go through files, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import bridges
from support.envs.open_spaces import OpenEnv
from support.format_packages import require

HOLD = ("npz", "minari", "parquet", "rlds")
# They keep numbers of fewer kinds or digits: what they hold is not compared here.
LOSSY = ("dreamerv3", "lerobot")


@pytest.fixture(scope="module")
def replay() -> sw.SequenceReplayBuffer:
    made = sw.SequenceReplayBuffer()
    with sw.Collector(sw.make_vec(OpenEnv, 2, num_workers=0), "random", made, seed=0) as collector:
        collector.collect(steps=16)
    return made


@pytest.mark.parametrize("name", HOLD)
def test_a_format_gives_the_same_values_back(
    name: str, replay: sw.SequenceReplayBuffer, tmp_path: Path
) -> None:
    require(name)
    out = tmp_path / ("set-v0" if name == "minari" else "out")
    bridges.export_episodes(replay, name, out)
    back = sw.SequenceReplayBuffer()
    bridges.import_episodes(name, out, back)
    mine = {episode.id: episode for episode in replay.iter_episodes() if episode.steps}
    theirs = [episode for episode in back.iter_episodes() if episode.steps]
    assert len(theirs) == len(mine)
    for one, other in zip(mine.values(), theirs, strict=True):
        assert set(one.fields) <= set(other.fields)
        for field, rows in one.fields.items():
            assert_same(rows, other.fields[field])
        for part in ("mission", "objects", "graph", "either", "pair"):
            told = replay.decode(f"observation/{part}", one.observation[part])
            again = replay.decode(f"observation/{part}", other.observation[part])
            assert repr(again) == repr(told)


def assert_same(left: Any, right: Any) -> None:
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", LOSSY)
def test_a_format_of_fewer_kinds_of_numbers_takes_them(
    name: str, replay: sw.SequenceReplayBuffer, tmp_path: Path
) -> None:
    require(name)
    report = bridges.export_episodes(replay, name, tmp_path / "out")
    assert report.steps == replay.steps


@pytest.mark.parametrize("name", sorted({*bridges.format_names()} - {*HOLD} - {*LOSSY}))
def test_another_format_refuses_them_in_one_sentence(
    name: str, replay: sw.SequenceReplayBuffer, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError, ImportError)) as raised:
        bridges.export_episodes(replay, name, tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
