"""LeRobot reads an exported folder: frames, time windows, and chosen episodes.

It runs in a separate interpreter, which the environment variable names (checked with lerobot
0.4.4, which needs another torch than Stepwell's tests have).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Field
from stepwell.buffers.bridges import export_episodes
from support.exchanged_stores import tagged_store
from support.libraries.d3rlpy_python import run
from support.rows.lerobot_frames import expected_frames

pytest.importorskip("pyarrow", reason="needs pyarrow")

LEROBOT_PYTHON = "STEPWELL_LEROBOT_PYTHON"
SCRIPT = """
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
    replay = tagged_store(Field("observation", "uint8", shape, "zstd"))
    out = tmp_path / "out"
    export_episodes(replay, "lerobot", out, options={"fps": 10, "task": "open the door"})
    run(python, "-c", SCRIPT, str(out), str(tmp_path / "found.json"), str(tmp_path / "cache"))
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
