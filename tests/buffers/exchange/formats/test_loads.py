"""The libraries that formats are for load exported files: each in an interpreter of its own.

Environment variables name these, as the libraries pin other packages than the tests have: d3rlpy
(see `d3rlpy_python`); LeRobot (checked with lerobot 0.4.4); TensorFlow Datasets, from
``pip install tensorflow-cpu tensorflow-datasets importlib_resources`` (checked with tensorflow
2.21.0 and tensorflow-datasets 4.9.10).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Episode, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.exchange.formats.rlds import rlds_episodes
from support.envs.recorded_envs import frames, recorded, traces
from support.exchanged_stores import DISCRETE, REWARD, episodes_of, imported, tagged_store
from support.libraries.d3rlpy_python import python_with_d3rlpy, run
from support.rows.all_kinds import all_kinds_store
from support.rows.lerobot_frames import expected_frames
from support.source_tree import CHECKOUT

SCENARIO = str(CHECKOUT / "tests" / "support" / "libraries" / "d3rlpy_scenario.py")


@pytest.fixture(scope="module")
def python(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("h5py", reason="needs h5py")
    return python_with_d3rlpy(pytestconfig, tmp_path_factory)


class Case(NamedTuple):
    """A replay to export, the option `stack`, and frames that d3rlpy stacks."""

    replay: SequenceReplayBuffer
    stack: bool = False
    frames: int = 1


ATARI = Field("observation", "uint8", (84, 84), "zstd", stack=4, stack_padding="zero")


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {
        "traces": Case(recorded(traces())[0]),
        "stacks": Case(recorded(frames(3))[0], stack=True),
        "picked": Case(tagged_store(ATARI, episodes=8), frames=4),
        "parts": Case(parts()),
    }


@pytest.fixture(scope="module")
def seen(
    python: str, cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """d3rlpy's transitions of all cases, and under ``folder`` a file that it wrote."""
    folder = tmp_path_factory.mktemp("cases")
    arguments: list[str] = []
    for name, case in cases.items():
        file, out = folder / f"{name}.h5", folder / f"{name}.npz"
        export_episodes(case.replay, "d3rlpy", file, options={"stack": case.stack})
        arguments += [str(file), str(out), str(case.frames)]
    run(python, SCENARIO, str(folder / "dumped.h5"), *arguments)
    found: dict[str, Any] = {"folder": folder}
    for name in cases:
        with np.load(folder / f"{name}.npz") as arrays:
            found[name] = {key: arrays[key] for key in arrays.files}
    return found


def parts() -> SequenceReplayBuffer:
    """A Dict of a picture and a vector, vectors for actions, and one episode."""
    fields = (
        Field("observation/a", "uint8", (5, 4, 3), "zstd"),
        Field("observation/b", "float64", (2,), "raw"),
        Field("action", "float32", (2,), "raw"),
        REWARD,
    )
    layout = {"a": "observation/a", "b": "observation/b"}
    replay = SequenceReplayBuffer()
    replay.bind(Spec(fields, layout, "action"), {})
    rng = np.random.default_rng(0)
    rows = {f.name: rng.normal(size=(5, *f.shape)).astype(f.dtype) for f in fields[1:]}
    rows["observation/a"] = rng.integers(0, 256, (5, 5, 4, 3)).astype(np.uint8)
    rows["reward"] = np.array([0, 0.5, 1, 2, 4])
    rows["action"][-1] = 0
    replay.add([Chunk(0, 0, 0, End.TRUNCATED, rows)])
    return replay


def stacks_of(episode: Episode) -> np.ndarray:
    """Each observation with the frames before it, as the env showed them."""
    field = episode.spec["observation"]
    before = episode.observation[:1] * (field.stack_padding == "repeat")
    padded = np.concatenate([*[before] * (field.stack - 1), episode.observation])
    return np.stack([padded[row : row + field.stack] for row in range(episode.rows)])


@pytest.mark.parametrize("name", ["traces", "stacks", "picked"])
def test_d3rlpys_transitions_equal_the_steps_of_the_envs(
    name: str, cases: dict[str, Case], seen: dict[str, Any]
) -> None:
    found, episodes, number = seen[name], episodes_of(cases[name].replay), 0
    for episode in episodes:
        shown = stacks_of(episode)
        for step in range(episode.steps):
            is_over = episode.terminated[step + 1]  # then d3rlpy shows zeros
            for part, rows in (
                ("observation", shown[step]),
                ("next_observation", shown[step + 1] * ~is_over),
            ):
                mine = found[f"{number}/{part}"]
                assert mine.dtype == rows.dtype
                assert np.array_equal(mine.reshape(rows.shape), rows)
            assert found[f"{number}/action"].tolist() == [episode.action[step]]
            assert found[f"{number}/reward"].tolist() == [np.float32(episode.reward[step + 1])]
            assert found[f"{number}/reward"].dtype == np.float32
            assert found[f"{number}/terminal"] == is_over
            number += 1
    actions = 2 if name == "stacks" else 4
    assert found["info"].tolist() == [number, sum(e.steps > 0 for e in episodes), actions]
    assert found["discrete"]
    assert found["0/observation"].ndim == (1 if name == "traces" else 3)


def test_dict_observations_become_lists_and_actions_are_vectors(
    cases: dict[str, Case], seen: dict[str, Any]
) -> None:
    found, (episode,) = seen["parts"], episodes_of(cases["parts"].replay)
    rows = episode.fields
    assert not found["discrete"]
    for step in range(4):
        shown = np.moveaxis(rows["observation/a"][step], -1, 0)
        assert np.array_equal(found[f"{step}/observation/0"], shown)
        assert np.array_equal(found[f"{step}/observation/1"], rows["observation/b"][step])
        after = rows["observation/b"][step + 1]
        assert np.array_equal(found[f"{step}/next_observation/1"], after)
        assert np.array_equal(found[f"{step}/action"], rows["action"][step])
        assert found[f"{step}/returns"] == rows["reward"][step + 1 :].sum()


def test_a_file_that_d3rlpy_wrote_is_read(seen: dict[str, Any]) -> None:
    replay, _ = imported("d3rlpy", seen["folder"] / "dumped.h5")
    first, second = episodes_of(replay)
    shown = np.arange(14, dtype=np.float32).reshape(7, 2)
    assert np.array_equal(first.observation, np.concatenate([shown[:4], np.zeros((1, 2))]))
    assert first.action.tolist() == [0, 1, 2, 1, 0]
    assert first.reward.tolist() == [0, *(np.arange(4, dtype=np.float32) / 3).tolist()]
    assert np.array_equal(second.observation, shown[4:])
    assert second.action.tolist() == [0, 2, 0]
    assert (first.end, second.end) == (End.TERMINATED, End.TRUNCATED)
    assert replay.spec["action"] == DISCRETE


LEROBOT_PYTHON = "STEPWELL_LEROBOT_PYTHON"
LEROBOT_SCRIPT = """
import json, os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = sys.argv[3]
import torch
try:
    import torchvision
except RuntimeError:  # built for another torch: LeRobot needs none of its compiled operators here
    lib = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        lib.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
from lerobot.datasets.lerobot_dataset import LeRobotDataset

def plain(name, value):
    if not hasattr(value, "tolist"):
        return value
    return (value * 255).round().to(torch.uint8).tolist() if "image" in name else value.tolist()

def items(data):
    return [{name: plain(name, value) for name, value in data[n].items()} for n in range(len(data))]

def opened(**options):
    return LeRobotDataset("stepwell/tagged", root=sys.argv[1], **options)

data = opened()
seen = [name for name in data.features if name.startswith("observation")]
times = {name: [-2 / data.fps, -1 / data.fps, 0] for name in seen}
found = {
    "frames": items(data),
    "windows": items(opened(delta_timestamps=times)),
    "chosen": items(opened(episodes=[1, 3])),
    "episodes": [data.meta.episodes[n] for n in range(data.meta.total_episodes)],
    "stats": {n: {k: v.tolist() for k, v in s.items()} for n, s in data.meta.stats.items()},
    "dtypes": {name: str(getattr(value, "dtype", "")) for name, value in data[0].items()},
}
json.dump(found, open(sys.argv[2], "w"))
"""

SHAPES = ((20, 18, 3), (17, 16), (3, 16, 19), (5,), (4, 4))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lerobot_reads_the_right_frames(shape: tuple[int, ...], tmp_path: Path) -> None:
    python = os.environ.get(LEROBOT_PYTHON)
    if python is None:
        pytest.skip(f"needs an interpreter with lerobot: set {LEROBOT_PYTHON}")
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    replay = tagged_store(Field("observation", "uint8", shape, "zstd"))
    out = tmp_path / "out"
    export_episodes(replay, "lerobot", out, options={"fps": 10, "task": "open the door"})
    run(
        python,
        "-c",
        LEROBOT_SCRIPT,
        str(out),
        str(tmp_path / "found.json"),
        str(tmp_path / "cache"),
    )
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    expected = expected_frames(replay, fps=10)
    is_picture = min(shape[:2]) >= 16 or min(shape[1:], default=0) >= 16
    name = "observation.image" if is_picture else "observation.state"
    frames = [as_frame(frame, name, shape) for frame in expected]
    assert found["frames"] == frames
    assert found["dtypes"]["next.reward"] == "torch.float32"
    assert found["chosen"] == [frame for frame in frames if frame["episode_index"] in (1, 3)]
    for frame, window in zip(frames, found["windows"], strict=True):
        first = frame["index"] - frame["frame_index"]
        places = [max(first, frame["index"] - age) for age in (2, 1, 0)]
        assert window[name] == [frames[place][name] for place in places]
    assert [episode["length"] for episode in found["episodes"]] == [1, 2, 3, 4, 5, 6]
    assert found["stats"]["next.reward"]["mean"] == pytest.approx(
        [np.mean([frame["next.reward"] for frame in frames])]
    )


def as_frame(frame: dict[str, Any], name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """A frame as LeRobot returns it: pictures as C H W."""
    rows = frame["observation"]
    if name == "observation.image":
        rows = np.moveaxis(rows, -1, 0) if shape[-1] == 3 else rows.reshape(-1, *rows.shape[-2:])
    others = {key: value for key, value in frame.items() if key != "observation"}
    return {**others, "task": "open the door", name: rows.tolist()}


TFDS_PYTHON = "STEPWELL_TFDS_PYTHON"
TFDS_SCRIPT = """
import sys
import numpy as np
import tensorflow_datasets as tfds

builder = tfds.builder_from_directory(sys.argv[1])
found = {}
for number, episode in enumerate(tfds.as_numpy(builder.as_dataset(split="train"))):
    steps = list(episode["steps"])
    def gather(path, first):
        if isinstance(first, dict):
            for key, part in first.items():
                gather([*path, key], part)
            return
        rows = []
        for step in steps:
            for key in path:
                step = step[key]
            rows.append(step)
        found[f"{number}/" + "/".join(path)] = np.stack(rows)
    gather([], steps[0])
    found[f"{number}:stream"] = episode["episode_metadata"]["stream"]
np.savez(sys.argv[2], **found)
"""


def test_tfds_reads_every_bit_of_every_step(tmp_path: Path) -> None:
    python = os.environ.get(TFDS_PYTHON)
    if python is None:
        pytest.skip(f"needs an interpreter with TFDS: set {TFDS_PYTHON}")
    picture = Field("observation", "uint8", (16, 18, 3), "zstd")
    for name, replay in (("kinds", all_kinds_store()), ("tagged", tagged_store(picture))):
        out, arrays = tmp_path / name, tmp_path / f"{name}.npz"
        export_episodes(replay, "rlds", out)
        run(python, "-c", TFDS_SCRIPT, str(out), str(arrays))
        with np.load(arrays) as read:
            found = {name: read[name] for name in read.files}
        # The arrays of `rlds_episodes`, which reads no file.
        both = zip(rlds_episodes(replay), replay.iter_episodes(), strict=True)
        for number, (episode, known) in enumerate(both):
            assert found.pop(f"{number}:stream") == known.stream
            for key, rows in episode["steps"].arrays.items():
                mine = found.pop(f"{number}/{key}")
                assert (mine.dtype, mine.shape) == (rows.dtype, rows.shape), key
                assert mine.tobytes() == np.ascontiguousarray(rows).tobytes(), key
        assert found == {}
