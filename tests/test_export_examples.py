"""The scripts in examples/exports/ write what the libraries of their names read.

The readers below do what those of IRIS and DIAMOND do with the files; with their sources in a
folder that STEPWELL_LOADERS names, their own code reads them too.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import copy_episodes
from stepwell.buffers.exchange.formats.format import format_of
from support.libraries.real_loaders import run_real
from support.programs import run_python
from support.rows.tagged_pixels import PlayedEpisode, play, tag_of
from support.source_tree import CHECKOUT

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

Played = dict[tuple[int, int], PlayedEpisode]


def exported(
    name: str, replay: sw.SequenceReplayBuffer, tmp: Path
) -> subprocess.CompletedProcess[str]:
    """Run the script on a store with the rows, into the folder ``out``."""
    with sw.SequenceReplayBuffer(tmp / "store") as store:
        copy_episodes(replay, store)
    script = CHECKOUT / "examples" / "exports" / f"{name}.py"
    arguments = [str(tmp / "store"), "--out", str(tmp / "out")]
    return run_python(script, *arguments, code=None)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Played]]:
    """The folders that both scripts wrote, and what was played, by env and number."""
    found = {}
    replay, played = play()
    for name in ("iris", "diamond"):
        folder = tmp_path_factory.mktemp(name)
        run = exported(name, replay, folder)
        assert run.returncode == 0, run.stderr
        assert run.stdout == f"{len(played)} episodes in {folder / 'out'}\n"
        found[name] = folder / "out", {(one.env, one.number): one for one in played}
    return found


def taken(expected: Played, pictures: np.ndarray) -> PlayedEpisode:
    """The episode of some pictures [T, C, H, W], which are all but its last one."""
    last_axis = pictures.transpose(0, 2, 3, 1)
    one = expected.pop(tag_of(last_axis[0])[:2])
    assert np.array_equal(last_axis, one.observations[:-1])
    return one


def iris_episodes(folder: Path) -> Iterator[dict[str, Any]]:
    """As `EpisodesDataset.load_disk_checkpoint` and `Episode.__post_init__` of IRIS read it."""
    numbers = sorted(int(path.stem) for path in folder.iterdir())
    assert numbers == list(range(len(numbers)))
    for number in numbers:
        found = torch.load(folder / f"{number}.pt", weights_only=True)
        assert len({len(tensor) for tensor in found.values()}) == 1
        if found["ends"].sum() > 0:
            assert found["ends"].argmax() + 1 == len(found["ends"])  # it cuts all after the end
        yield found


def test_iris_reads_what_was_played(given: dict[str, tuple[Path, Played]]) -> None:
    folder, played = given["iris"]
    expected = dict(played)
    for found in iris_episodes(folder):
        assert {name: str(tensor.dtype)[6:] for name, tensor in found.items()} == {
            "observations": "uint8",
            "actions": "int64",
            "rewards": "float32",
            "ends": "int64",
            "mask_padding": "bool",
        }
        one = taken(expected, found["observations"].numpy())
        assert found["observations"].shape == (one.steps, 3, 64, 64)
        assert found["actions"].tolist() == one.actions
        assert found["rewards"].tolist() == [float(np.float32(reward)) for reward in one.rewards]
        assert found["ends"].tolist() == [0] * (one.steps - 1) + [int(one.terminated)]
        assert found["mask_padding"].all()
    assert not expected


def diamond_episodes(folder: Path) -> Iterator[dict[str, Any]]:
    """As `Dataset.load_from_default_path` and `load_episode` of DIAMOND read it."""
    info = torch.load(folder / "info.pt", weights_only=True)
    for number in range(info["num_episodes"]):
        places = (number // 100 % 10 * 100, number // 10 % 10 * 10, number % 10)
        place = "{:03d}/{:02d}/{}".format(*places)
        yield torch.load(folder / place / f"{number}.pt", weights_only=True)


def test_diamond_reads_what_was_played(given: dict[str, tuple[Path, Played]]) -> None:
    folder, played = given["diamond"]
    expected = dict(played)
    lengths = []
    for found in diamond_episodes(folder):
        info = found.pop("info")
        assert {name: str(tensor.dtype)[6:] for name, tensor in found.items()} == {
            "obs": "uint8",
            "act": "int64",
            "rew": "float32",
            "end": "uint8",
            "trunc": "uint8",
        }
        one = taken(expected, found["obs"].numpy())
        lengths.append(one.steps)
        assert found["act"].tolist() == one.actions
        assert found["rew"].tolist() == [float(np.float32(reward)) for reward in one.rewards]
        before = [0] * (one.steps - 1)
        assert found["end"].tolist() == [*before, one.terminated]
        assert found["trunc"].tolist() == [*before, one.truncated]
        assert len(info) == (one.terminated or one.truncated)
        for picture in info.values():
            last = torch.from_numpy(one.observations[-1]).permute(2, 0, 1)
            assert torch.equal(picture, last.div(255).mul(2).sub(1))
    assert not expected
    assert len(list(folder.rglob("*.pt"))) == len(lengths) + 1
    counts = torch.load(folder / "info.pt", weights_only=True)
    assert counts.pop("lengths").tolist() == lengths
    assert counts.pop("start_idx").tolist() == [sum(lengths[:n]) for n in range(len(lengths))]
    ends = sum(one.terminated for one in played.values())
    assert counts == {
        "is_static": False,
        "num_episodes": len(lengths),
        "num_steps": sum(lengths),
        "counter_rew": Counter(np.sign(r) for one in played.values() for r in one.rewards),
        "counter_end": Counter({0: sum(lengths) - ends, 1: ends}),
    }


@pytest.mark.parametrize("name", ["iris", "diamond"])
def test_other_pictures_are_refused(name: str, tmp_path: Path) -> None:
    replay, _ = play(envs=1, steps=5, shape=(3, 64, 64))
    run = exported(name, replay, tmp_path)
    assert run.returncode == 1
    assert run.stderr.startswith(f"{name.upper()} takes uint8 pictures (H, W, C)")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["iris", "diamond"])
def test_the_name_of_a_former_format_leads_to_its_script(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}'; examples/exports/{name}\.py writes it"):
        format_of(name)


def test_iriss_own_code_reads_the_files(
    given: dict[str, tuple[Path, Played]], tmp_path: Path
) -> None:
    folder, played = given["iris"]
    loaded = run_real("iris", "iris_loaders.py", "load", folder, tmp_path)
    expected = dict(played)
    assert int(loaded["seen"]) == len(expected)
    for number in range(len(played)):
        one = taken(expected, loaded[f"{number}/observations"])
        assert loaded[f"{number}/actions"].tolist() == one.actions
        assert loaded[f"{number}/ends"].sum() == one.terminated
    assert int(loaded["chunks"]) == sum(-(-one.steps // 4) for one in played.values())


def test_diamonds_own_code_reads_the_files(
    given: dict[str, tuple[Path, Played]], tmp_path: Path
) -> None:
    folder, played = given["diamond"]
    loaded = run_real("diamond", "diamond_loaders.py", "load", folder, tmp_path)
    expected = dict(played)
    steps = sum(one.steps for one in played.values())
    assert (int(loaded["episodes"]), int(loaded["steps"])) == (len(expected), steps)
    lengths = []
    for number in range(len(played)):
        one = taken(expected, loaded[f"{number}/obs"])
        lengths.append(one.steps)
        assert loaded[f"{number}/act"].tolist() == one.actions
        assert loaded[f"{number}/end"].sum() == one.terminated
        assert loaded[f"{number}/trunc"].sum() == one.truncated
        final = loaded.get(f"{number}/final")
        assert (final is not None) == (one.terminated or one.truncated)
    assert loaded["lengths"].tolist() == [*lengths, lengths[0]]  # it added the first one again
