"""Joint stores in files: the formats that hold nested Dicts give them back, others refuse them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stepwell as sw
from stepwell.buffers.bridges import export_episodes, import_episodes
from stepwell.buffers.testing import assert_same_steps
from support.envs.coming_agents import ORDER, ComingAndGoing
from support.needed import skip_without

HOLDING = {
    "lerobot": ("pyarrow",),
    "minari": ("minari", "h5py", "pyarrow"),
    "npz": (),
    "parquet": ("pyarrow",),
    "rlds": ("google_crc32c",),
}
REFUSING = {"d3rlpy": "action"}


@pytest.fixture(scope="module")
def joint() -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer(seed=0)
    envs = sw.make_vec(lambda: sw.from_pettingzoo(ComingAndGoing()), 2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(episodes=6)
    return replay


@pytest.mark.parametrize("name", HOLDING)
def test_a_format_with_nested_dicts_gives_joint_rows_back(
    name: str, joint: sw.SequenceReplayBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in HOLDING[name]:
        pytest.importorskip(package, reason=f"needs {package}")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    target: Any = "tests/joint-v0" if name == "minari" else tmp_path / name
    export_episodes(joint, name, target)
    back = sw.SequenceReplayBuffer(seed=0)
    import_episodes(name, target, back)
    assert_same_steps(back, joint)
    if name == "lerobot":  # has no place for the row in which the episode ended, and says so
        return
    pairs = (sw.per_agent(back), sw.per_agent(joint))
    assert pairs[0].agents == ORDER
    for one, other in zip(*(each.iter_episodes() for each in pairs), strict=True):
        assert (one.metadata["agent"], one.end & 3) == (other.metadata["agent"], other.end & 3)
        assert one.reward.tolist() == other.reward.tolist()


@pytest.mark.parametrize("name", REFUSING)
def test_a_format_without_is_refused_before_anything_is_written(
    name: str, joint: sw.SequenceReplayBuffer, tmp_path: Path
) -> None:
    skip_without(["h5py"])
    with pytest.raises(ValueError, match=REFUSING[name]):
        export_episodes(joint, name, tmp_path / name)
    assert not (tmp_path / name).exists()
