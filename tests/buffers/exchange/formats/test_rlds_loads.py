"""TensorFlow Datasets reads every bit of every step of an exported folder.

It runs in a separate interpreter, which the environment variable names:
``pip install tensorflow-cpu tensorflow-datasets importlib_resources`` (checked with tensorflow
2.21.0 and tensorflow-datasets 4.9.10). With --full one is made.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import Field, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.exchange.formats.rlds import rlds_episodes
from support.exchanged_stores import tagged_store
from support.libraries.d3rlpy_python import run
from support.rows.all_kinds import all_kinds_store

TFDS_PYTHON = "STEPWELL_TFDS_PYTHON"
SCRIPT = """
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


def assert_tfds_reads(python: str, replay: SequenceReplayBuffer, folder: Path) -> None:
    """Assert that TFDS reads the arrays of `rlds_episodes`, which reads no file."""
    export_episodes(replay, "rlds", folder / "out")
    run(python, "-c", SCRIPT, str(folder / "out"), str(folder / "found.npz"))
    with np.load(folder / "found.npz") as arrays:
        found = {name: arrays[name] for name in arrays.files}
    for number, (episode, known) in enumerate(
        zip(rlds_episodes(replay), replay.iter_episodes(), strict=True)
    ):
        assert found.pop(f"{number}:stream") == known.stream
        for name, rows in episode["steps"].arrays.items():
            read = found.pop(f"{number}/{name}")
            assert (read.dtype, read.shape) == (rows.dtype, rows.shape), name
            assert read.tobytes() == np.ascontiguousarray(rows).tobytes(), name
    assert found == {}


def assert_all_is_read(python: str, folder: Path) -> None:
    picture = Field("observation", "uint8", (16, 18, 3), "zstd")
    for name, replay in (("kinds", all_kinds_store()), ("tagged", tagged_store(picture))):
        (folder / name).mkdir()
        assert_tfds_reads(python, replay, folder / name)


def test_tfds_reads_every_bit_of_every_step(tmp_path: Path) -> None:
    python = os.environ.get(TFDS_PYTHON)
    if python is None:
        pytest.skip(f"needs an interpreter with TFDS: set {TFDS_PYTHON}, or run with --full")
    assert_all_is_read(python, tmp_path)
