"""Stores of texts, sequences, graphs and alternatives go through files, or are refused."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("name", bridges.format_names())
def test_a_format_gives_the_same_values_back_or_refuses_them(
    name: str, replay: sw.SequenceReplayBuffer, tmp_path: Path
) -> None:
    out = tmp_path / ("set-v0" if name == "minari" else "out")
    if name not in (*HOLD, *LOSSY):
        with pytest.raises((ValueError, TypeError, NotImplementedError, ImportError)) as raised:
            bridges.export_episodes(replay, name, out)
        assert "\n" not in str(raised.value)
        assert not out.exists()
        return
    require(name)
    report = bridges.export_episodes(replay, name, out)
    assert report.steps == replay.steps
    if name in LOSSY:
        return
    back = sw.SequenceReplayBuffer()
    bridges.import_episodes(name, out, back)
    mine, theirs = (
        [episode for episode in one.iter_episodes() if episode.steps] for one in (replay, back)
    )
    for one, other in zip(mine, theirs, strict=True):
        for field, rows in one.fields.items():
            np.testing.assert_array_equal(other.fields[field], rows, strict=True)
        for part in ("mission", "objects", "graph", "either", "pair"):
            told = replay.decode(f"observation/{part}", one.observation[part])
            again = replay.decode(f"observation/{part}", other.observation[part])
            assert repr(again) == repr(told)
