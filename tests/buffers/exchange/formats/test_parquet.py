"""Export to and import from Parquet tables of steps and episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Field
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.testing import check_format
from support.exchanged_stores import (
    DISCRETE,
    PICTURES,
    REWARD,
    episodes_of,
    imported,
    noisy_store,
    refused,
    store_of,
    tagged_store,
)

pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """All rows of the table of steps."""
    files = sorted((folder / "data").glob("*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda field: str(field.shape))
def test_pictures_are_png_that_others_decode_to_the_same_pixels(
    picture: Field, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    import io

    replay = tagged_store(picture)
    export_episodes(replay, "parquet", tmp_path / "out")
    shown = [row for episode in episodes_of(replay) for row in episode.observation[:-1]]
    for step, expected in zip(steps_of(tmp_path / "out"), shown, strict=True):
        found = np.asarray(image.open(io.BytesIO(step["observation"]["bytes"])))
        rows = np.moveaxis(expected, 0, -1) if picture.shape[0] in (1, 3) else expected
        assert np.array_equal(found, rows.reshape(found.shape))
        assert found.shape[:2] == rows.shape[:2]


def test_every_bit_of_a_float_is_kept(tmp_path: Path) -> None:
    """Dictionary encoding would merge different NaNs, and maybe -0.0 with 0.0."""
    bits = np.random.default_rng(0).integers(0, 2**64, 64, np.uint64) | np.uint64(0x7FF << 52)
    strange = np.concatenate([bits.view(np.float64), [-0.0, 0.0, np.inf, -np.inf] * 8])
    fields = [
        Field("observation", "float64", (2,), "raw"),
        Field("action", "float32", (), "raw"),
        REWARD,
    ]
    rows = {
        "observation": np.stack([strange, strange[::-1]], 1),
        "action": strange.view(np.float32)[: len(strange)].copy(),
        "reward": strange.copy(),
    }
    export_episodes(store_of(fields, rows), "parquet", tmp_path / "out")
    back, _ = imported("parquet", tmp_path / "out")
    for name in ("observation", "action", "reward"):
        found, expected = episodes_of(back)[0].fields[name], rows[name]
        known = slice(1, None) if name == "reward" else slice(-1)
        assert found[known].tobytes() == expected[known].tobytes()


@pytest.mark.parametrize("images", ["png", "array", "raw"])
def test_a_full_file_is_followed_by_a_new_one(images: str, tmp_path: Path) -> None:
    options = {"file_mb": 1, "images": images}
    export_episodes(noisy_store(), "parquet", tmp_path / "out", options=options)
    files = sorted((tmp_path / "out" / "data").iterdir())
    assert [file.name for file in files] == [f"train-{n:05d}.parquet" for n in range(len(files))]
    assert len(files) >= 2
    assert all(900_000 < file.stat().st_size < 2_200_000 for file in files[:-1])


def test_a_changed_folder_is_refused(tmp_path: Path) -> None:
    export_episodes(noisy_store(), "parquet", tmp_path / "out", options={"file_mb": 1})
    _, second, *_ = sorted((tmp_path / "out" / "data").iterdir())
    table = pq.ParquetFile(second).read()
    pq.write_table(table.drop_columns(["action"]), second)
    refused("parquet", tmp_path / "out", rf"{second.name}.*'action'.*episode, stream, step")


def test_datasets_of_huggingface_gives_rows_of_the_right_shapes(tmp_path: Path) -> None:
    # Not "datasets" alone, as a folder of examples/ has that name.
    datasets = pytest.importorskip("datasets.load", reason="needs HuggingFace's datasets")

    fields = [
        Field("observation/picture", "uint8", (16, 18, 3), "zstd"),
        Field("observation/grid", "int16", (4, 5), "raw"),
        Field("observation/cube", "float32", (2, 3, 4), "raw"),
        Field("observation/vector", "float32", (3,), "raw"),
        DISCRETE,
        REWARD,
        Field("info/on", "bool", (), "narrow"),
    ]
    names = {field.name.partition("/")[2]: field.name for field in fields[:4]}
    rng = np.random.default_rng(0)
    rows = {
        field.name: rng.integers(0, 99, (9, *field.shape)).astype(field.numpy_dtype)
        for field in fields
    }
    rows["reward"][0] = 0
    check_format("parquet", tmp_path / "out", store_of(fields, rows, observation=names))
    steps = datasets.load_dataset(
        "parquet",
        data_files=str(tmp_path / "out" / "data" / "*.parquet"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert len(steps) == 8
    assert type(steps.features["observation/picture"]).__name__ == "Image"
    assert steps.features["observation/cube"].shape == (2, 3, 4)
    for name in names:
        found = steps.with_format("numpy")[f"observation/{name}"][:]
        expected = rows[f"observation/{name}"][:-1]
        assert np.stack(list(found)).shape == expected.shape
        assert np.array_equal(np.stack(list(found)), expected)
    assert steps["reward"][:] == rows["reward"][1:].tolist()
    assert steps["action"][:] == rows["action"][:-1].tolist()
    assert steps["info/on"][:] == rows["info/on"][:-1].tolist()
    card = datasets.load_dataset(
        str(tmp_path / "out"), "episodes", split="train", cache_dir=str(tmp_path / "cache")
    )
    assert card["steps"][:] == [8]
    default = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(default) == 8
