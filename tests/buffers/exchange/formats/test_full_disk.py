"""An export to a full disk raises one error with the path, and leaves no files."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers.exchange.formats.hdf5_columns import NewHdf5, put_column
from support.crash.full_disk_scenario import FORMATS
from support.format_packages import missing
from support.programs import run_python
from support.source_tree import CHECKOUT

HERE = [name for name in FORMATS if not missing(name)]


@pytest.mark.proof
def test_every_format_reports_a_full_disk_and_leaves_nothing(tmp_path: Path) -> None:
    limits = [0, 1000, 20_000, 100_000_000]
    words: list[str | Path] = [tmp_path, ",".join(map(str, limits)), *HERE]
    run = run_python("-m", "support.crash.full_disk_scenario", *words, cwd=CHECKOUT / "tests")
    lines = [line.split("|") for line in run.stdout.splitlines()]
    assert len(lines) == len(limits) * len(HERE)
    for name, limit, message, left in lines:
        what = f"{name} with files of {limit} bytes: {message}, left {left}"
        if int(limit) == limits[-1]:
            assert (message, left) == ("done", "['out-v0']"), what
        else:
            assert left == "[]", what
            assert "File too large" in message, what
            assert "out-v0" in message, what


class Failing:
    """A file whose writes fail beyond a number of bytes."""

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
    assert (new.file["rows_1"][()] == rows).all()  # unwritten bytes are read back
    with pytest.raises(OSError, match=r"Errno 5\b"):
        new.check()
    with pytest.raises(OSError, match=r"Errno 5\b"):
        new.close()
    new.close()
