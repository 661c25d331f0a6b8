"""An export to a disk that gets full says so in a sentence, leaves nothing, and ends in peace."""

from __future__ import annotations

import errno
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers.bridges.formats.hdf5_columns import NewHdf5, put_column
from support.crash.full_disk_scenario import FORMATS

NEEDS = {
    "d3rlpy": "h5py",
    "minari": "minari",
    "minari arrow": "minari",
    "iris": "torch",
    "diamond": "torch",
    "parquet": "pyarrow",
    "lerobot": "pyarrow",
}
HERE = [
    name
    for name in FORMATS
    if name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None
]


def run(folder: Path, formats: list[str], limits: list[int]) -> list[list[str]]:
    scenario = Path(__file__).parents[3] / "support" / "crash" / "full_disk_scenario.py"
    words = [",".join(formats), ",".join(map(str, limits))]
    found = subprocess.run(
        [sys.executable, str(scenario), str(folder), *words],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return [line.split("|") for line in found.stdout.splitlines()]


def assert_all_told(said: list[list[str]]) -> None:
    for name, limit, sentence, left in said:
        what = f"{name} with files of {limit} bytes: {sentence}, left {left}"
        assert (sentence == "done") == (left == "['out-v0']"), what
        if sentence != "done":
            assert left == "[]", what
            assert "File too large" in sentence, what
            assert "out-v0" in sentence, what


def test_every_format_reports_a_full_disk_and_leaves_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, HERE, [0, 1000, 20_000, 1_000_000])
    assert len(said) == 4 * len(HERE)
    assert_all_told(said)
    assert [line[2] for line in said].count("done") == len(HERE)


@pytest.mark.full
@pytest.mark.parametrize("name", HERE)
def test_a_disk_may_become_full_at_any_byte(tmp_path: Path, name: str) -> None:
    said = run(tmp_path, [name], [*range(0, 3000, 100), *range(3000, 100_000, 1999)])
    assert_all_told(said)


class Failing:
    """A file whose writes fail from some place on."""

    def __init__(self, raw: object, most: int) -> None:
        self._raw, self._most = raw, most

    def __getattr__(self, name: str) -> object:
        return getattr(self._raw, name)

    def write(self, data: memoryview) -> int:
        if self._raw.tell() + len(data) > self._most:  # type: ignore[attr-defined]
            raise OSError(errno.EIO, "Input/output error")
        return int(self._raw.write(data))  # type: ignore[attr-defined]


@pytest.mark.parametrize("most", [0, 100, 3000, 50_000])
def test_write_errors_are_raised_outside_of_hdf5(tmp_path: Path, most: int) -> None:
    h5py = pytest.importorskip("h5py")
    new = NewHdf5(h5py, tmp_path / "x.h5")
    new._raw = Failing(new._raw, most)  # type: ignore[assignment]
    rows = np.random.default_rng(0).integers(0, 256, (100, 1000)).astype(np.uint8)
    for number in range(3):
        put_column(new.file, f"rows_{number}", rows, compress=True)
    assert (new.file["rows_1"][()] == rows).all()  # what could not be written is read again
    with pytest.raises(OSError, match="Input/output error"):
        new.check()
    with pytest.raises(OSError, match="Input/output error"):
        new.close()
    new.close()
