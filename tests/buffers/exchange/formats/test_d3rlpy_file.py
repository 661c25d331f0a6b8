"""Export to and import from d3rlpy's HDF5 file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.exchange.formats import hdf5_columns
from support.envs.recorded_envs import Listed, frames, recorded, traces
from support.exchanged_stores import (
    DISCRETE,
    IMAGE,
    REWARD,
    VECTOR,
    episodes_of,
    imported,
    refused,
    tagged_store,
)
from support.notes import assert_notes, has_note

h5py = pytest.importorskip("h5py", reason="needs h5py")

STACKED = Field("observation", "uint8", (4, 4), "zstd", stack=3, stack_padding="repeat")
COLOURS = Field("observation", "uint8", (6, 5, 3), "zstd", stack=2, stack_padding="zero")
ODD_STACKS = Field("observation", "float32", (3,), "raw", stack=4, stack_padding="repeat")


def written(replay: SequenceReplayBuffer, **options: object) -> dict[str, Any]:
    """All datasets of the file, by name."""
    Path("out.h5").unlink(missing_ok=True)
    export_episodes(replay, "d3rlpy", "out.h5", options=options)
    found: dict[str, Any] = {}
    with h5py.File("out.h5", "r") as file:
        file.visititems(
            lambda name, node: found.update({name: node[()]} if hasattr(node, "shape") else {})
        )
    return found


def assert_listed(file: dict[str, Any], number: int, listed: Listed) -> None:
    """Assert the four columns of an episode: T rows, or T + 1 with a dummy row at the end."""
    is_terminated = bool(listed.steps) and listed.terminated[-1]
    rows = listed.steps + (not is_terminated)
    shown = np.array(listed.observations)[:rows]
    assert np.array_equal(np.squeeze(file[f"observations_{number}"]), np.squeeze(shown))
    dummy = [0] * (rows - listed.steps)
    actions = [int(action) for action in listed.actions]
    assert file[f"actions_{number}"].tolist() == [[a] for a in [*actions, *dummy]]
    assert file[f"rewards_{number}"].tolist() == [[r] for r in [*listed.rewards, *dummy]]
    assert file[f"rewards_{number}"].dtype == np.float32
    assert file[f"terminated_{number}"].dtype == np.bool_
    assert bool(file[f"terminated_{number}"]) == is_terminated


@pytest.mark.parametrize("stack", [0, 1, 3])
def test_episodes_equal_what_the_envs_did(stack: int) -> None:
    replay, listed = recorded(frames(stack) if stack else traces())
    file = written(replay, stack=True)
    assert file["num_episodes"] == len(listed)
    assert file["version"] == b"2.1"
    assert file["columns"].tolist() == [b"observations", b"actions", b"rewards", b"terminated"]
    for number, one in enumerate(listed):
        assert_listed(file, number, one)
    assert {one.is_cut for one in listed} == {True, False}


def test_images_are_channels_first_and_vectors_keep_their_shape() -> None:
    shapes = {
        IMAGE: (3, 6, 5),
        VECTOR: (3,),
        STACKED: (1, 4, 4),
        COLOURS: (3, 6, 5),
        ODD_STACKS: (3,),
        Field("observation", "uint8", (4, 84, 84), "zstd"): (4, 84, 84),
        Field("observation", "uint8", (9, 9), "zstd"): (1, 9, 9),
        Field("observation", "uint8", (3, 9, 4), "zstd"): (3, 9, 4),
    }
    for field, shape in shapes.items():
        assert written(tagged_store(field))["observations_0"].shape == (1, *shape)
    full = {STACKED: (3, 4, 4), COLOURS: (6, 6, 5), ODD_STACKS: (12,)}
    for field, shape in full.items():
        assert written(tagged_store(field), stack=True)["observations_0"].shape == (1, *shape)
    as_is = written(tagged_store(IMAGE), channels_first=False)
    assert as_is["observations_0"].shape == (1, 6, 5, 3)


@pytest.mark.parametrize("rows", [1, 6, 7, 12, 50])
def test_long_columns_are_written_a_batch_at_a_time(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_columns, "_CHUNK_BYTES", 256)
    monkeypatch.setattr(hdf5_columns, "_BATCH_BYTES", 900)
    values = np.random.default_rng(0).normal(size=(rows, 16))
    with h5py.File("batches.h5", "w") as file:
        hdf5_columns.put_column(file, "x", values, compress=True)
        assert np.array_equal(file["x"][()], values)


def test_actions_that_nobody_took_are_told() -> None:
    six: dict[str, object] = {"type": "Discrete", "n": 6, "start": 0, "dtype": "int64"}
    replay = SequenceReplayBuffer()
    shown = {"type": "Box", "dtype": "float32", "shape": [3], "low": 0, "high": 1}
    replay.bind(
        Spec((VECTOR, DISCRETE, REWARD), "observation", "action"),
        {"spaces": {"observation": shown, "action": six}},
    )
    rows = {f.name: np.ones((3, *f.shape), f.dtype) for f in replay.spec.fields}
    replay.add([Chunk(0, 0, 0, End.TERMINATED, rows)])
    report = export_episodes(replay, "d3rlpy", "some.h5")
    assert has_note(report.notes, r"\b2, of 6\b.*action_size=6")
    rows["action"] = np.array([5, 0, 0])
    replay.add([Chunk(1, 0, 0, End.TERMINATED, rows)])
    report = export_episodes(replay, "d3rlpy", "all.h5")
    assert not has_note(report.notes, "action_size")


# --- foreign files


def write_foreign(columns: dict[str, Any], version: str = "2.1") -> None:
    """Write a file as d3rlpy does."""
    with h5py.File("foreign.h5", "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["version"] = version
        for name, value in columns.items():
            file[name] = value


def two_episodes() -> dict[str, Any]:
    found: dict[str, Any] = {"num_episodes": 2}
    for number, rows in ((0, 4), (1, 3)):
        found[f"observations_{number}"] = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        found[f"actions_{number}"] = np.arange(1, rows + 1)[:, None]
        found[f"rewards_{number}"] = np.arange(1, rows + 1, dtype=np.float32)[:, None]
        found[f"terminated_{number}"] = number == 0
    return found


def test_a_foreign_file_is_read_by_d3rlpys_conventions() -> None:
    write_foreign(two_episodes())
    replay, report = imported("d3rlpy", "foreign.h5")
    over, open_ = episodes_of(replay)
    assert (over.end, open_.end) == (End.TERMINATED, End.TRUNCATED)
    assert over.observation.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [0, 0]]
    assert over.action.tolist() == [1, 2, 3, 4, 0]
    assert over.reward.tolist() == [0, 1, 2, 3, 4]
    assert open_.observation.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert open_.action.tolist() == [1, 2, 0]
    assert open_.reward.tolist() == [0, 1, 2]
    assert_notes(
        report.notes, "stream 0", r"last observations.*zeros.*\b1\b", r"read as truncated.*\b1\b"
    )


def test_observations_of_several_parts_are_read_as_a_tuple() -> None:
    columns = two_episodes()
    for number in (0, 1):
        shown = columns.pop(f"observations_{number}")
        columns |= {f"observations_{number}_0": shown, f"observations_{number}_1": shown[:, :1]}
        columns[f"actions_{number}"] = shown
    write_foreign(columns)
    replay, _ = imported("d3rlpy", "foreign.h5")
    first = episodes_of(replay)[0]
    assert isinstance(first.observation, tuple)
    assert [part.shape for part in first.observation] == [(5, 2), (5, 1)]
    assert first.action.shape == (5, 2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rewards_1": np.zeros((3, 2), np.float32)}, r"episode 1\b.*rewards.*\(3, 2\)"),
        (
            {"observations_1": np.zeros((3, 5), np.float32)},
            r"episode 1\b.*observation float32 \(2,\).*observation float32 \(5,\)",
        ),
        (
            {"observations_0": np.zeros((2, 2), np.float32)},
            r"episode 0\b.*observations_0.*\(2, 2\)",
        ),
        ({"num_episodes": 3}, r"foreign\.h5.*observations_2.*none"),
        ({"num_episodes": 0}, r"foreign\.h5.*none"),
    ],
)
def test_inconsistent_columns_are_refused(change: dict[str, Any], match: str) -> None:
    write_foreign({**two_episodes(), **change})
    refused("d3rlpy", "foreign.h5", match)


def test_other_files_are_refused(tmp_path: Path) -> None:
    Path("text.h5").write_text("no HDF5")
    refused("d3rlpy", "text.h5", r"text\.h5.*HDF5")
    with h5py.File("flat.h5", "w") as file:
        file["observations"] = np.zeros((3, 2))
    refused("d3rlpy", "flat.h5", r"flat\.h5.*d3rlpy 2")
    write_foreign(two_episodes(), version="2.0")
    refused("d3rlpy", "foreign.h5", r"foreign\.h5.*2\.1 .*got 2\.0")
    write_foreign(two_episodes())
    with h5py.File("foreign.h5", "a") as file:
        del file["columns"]
        file["columns"] = ["observations", "actions", "rewards", "terminated", "mood"]
    refused("d3rlpy", "foreign.h5", r"foreign\.h5.*terminated, got 2\.1 .*mood")
