"""Files that replace others: all of it, or nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import FilmStrip
from stepwell.buffers.pictures.encode import replacing
from stepwell.buffers.view.render import render
from stepwell.buffers.view.report import write_report
from support.viewed_stores import repaired


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_is_not_completed_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "a.png"
    target.write_bytes(b"old")

    def stop(part: Path) -> None:
        part.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replacing(target) as part:
        stop(part)
    assert (names(tmp_path), target.read_bytes()) == (["a.png"], b"old")
    with replacing(target) as part:
        part.write_bytes(b"new")
    assert (names(tmp_path), target.read_bytes()) == (["a.png"], b"new")


def test_files_of_the_user_are_not_touched(tmp_path: Path) -> None:
    store = repaired(tmp_path / "store")
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("a.png", "a.png.part", "a.html", "a.html.part"):
        (folder / name).write_text(f"my {name}")
    render(store, 1, folder / "a.png", overwrite=True)
    write_report(store, folder / "a.html", overwrite=True)
    FilmStrip.of(np.zeros((2, 9, 9), np.uint8), range(2)).save(folder / "a.png")
    assert names(folder) == ["a.html", "a.html.part", "a.png", "a.png.part"]
    for name in ("a.png", "a.html"):
        assert (folder / f"{name}.part").read_text() == f"my {name}.part"
        assert (folder / name).read_bytes() != f"my {name}".encode()


def test_a_folder_that_is_not_there_is_named_by_the_target(tmp_path: Path) -> None:
    target = tmp_path / "none" / "a.png"
    with pytest.raises(FileNotFoundError) as caught, replacing(target):
        pass
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, os.fspath(target))
