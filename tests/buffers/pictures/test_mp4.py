"""An MP4 file holds the frames, and is one that browsers play."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepwell.buffers.pictures import encode
from stepwell.buffers.pictures.encode import Mp4Writer
from support.mp4_files import needs_av, read, scene


def write(path: Path, frames: np.ndarray, fps: Fraction) -> None:
    writer = Mp4Writer(path, fps)
    for frame in frames:
        writer.add(frame)
    writer.close()


def boxes(data: bytes) -> Iterator[tuple[str, int]]:
    """Name and size of the outermost boxes of an MP4, in order."""
    place = 0
    while place < len(data):
        size, name = struct.unpack_from(">I4s", data, place)
        assert size >= 8
        yield name.decode(), size
        place += size


@pytest.mark.proof
@needs_av
@pytest.mark.parametrize("size", [(210, 160), (33, 47), (64, 31), (31, 64)])
@pytest.mark.parametrize("fps", [Fraction(15), Fraction(50, 3), Fraction(60)])
def test_a_file_holds_each_frame_once_at_its_time(size: tuple[int, int], fps: Fraction) -> None:
    frames = scene(40, *size)
    write(Path("a.mp4"), frames, fps)
    facts, decoded = read(Path("a.mp4"))
    even = (size[0] + size[0] % 2, size[1] + size[1] % 2)
    assert facts["size"] == even == decoded.shape[1:3]
    assert facts["frames"] == len(decoded) == 40
    assert facts["fps"] == fps
    assert facts["seconds"] == pytest.approx(40 / fps, rel=1e-3)
    difference = np.abs(decoded[:, : size[0], : size[1]].astype(int) - frames)
    assert difference.mean() < 8
    # A frame is nearer to itself than to its neighbours: none is missing, none comes twice.
    for t in range(1, 39):
        near = [
            np.abs(decoded[t, : size[0], : size[1]].astype(int) - frames[s]).mean()
            for s in (t - 1, t, t + 1)
        ]
        assert np.argmin(near) == 1


@needs_av
def test_a_file_is_what_browsers_play() -> None:
    write(Path("a.mp4"), scene(30, 40, 50), Fraction(30))
    facts, _ = read(Path("a.mp4"))
    assert (facts["codec"], facts["tag"], facts["pixels"]) == ("h264", "avc1", "yuv420p")
    assert facts["colours"] == (1, 1)
    assert facts["streams"] == 1
    names = [name for name, _ in boxes(Path("a.mp4").read_bytes())]
    assert names[0] == "ftyp"
    assert names.index("moov") < names.index("mdat")


@needs_av
def test_colours_come_out_as_they_went_in() -> None:
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [144, 72, 17]]
    frames = np.array([np.full((32, 32, 3), colour) for colour in colours], np.uint8)
    write(Path("a.mp4"), frames, Fraction(10))
    _, decoded = read(Path("a.mp4"))
    middle = decoded[:, 8:24, 8:24].astype(int)
    assert np.abs(middle - frames[:, 8:24, 8:24]).max() <= 5


@needs_av
def test_a_file_that_cannot_be_written_or_get_its_name_leaves_nothing() -> None:
    with pytest.raises(OSError, match=r"missing/a\.mp4\.part"):
        Mp4Writer(Path("missing/a.mp4"), Fraction(30))
    Path("a.mp4").mkdir()
    writer = Mp4Writer(Path("a.mp4"), Fraction(30))
    writer.add(scene(1, 40, 40)[0])
    with pytest.raises(OSError, match=r"a\.mp4"):
        writer.close()
    assert os.listdir() == ["a.mp4"]


@needs_av
def test_writing_starts_no_threads() -> None:
    def threads() -> set[str]:
        return {*os.listdir("/proc/self/task")}

    before = threads()  # one of an earlier test may end meanwhile
    writer = Mp4Writer(Path("a.mp4"), Fraction(30))
    for frame in scene(20, 480, 320):  # small ones get no threads in any case
        writer.add(frame)
    assert threads() <= before
    writer.close()


def build(version: str, *codecs: str) -> Any:
    return SimpleNamespace(__version__=version, codecs_available=frozenset(codecs))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"PyAV.*pip install 'stepwell\[video\]'"),
        (build("18.0.0", "mpeg4"), r"PyAV.*libx264.*pip install 'stepwell\[video\]'"),
        (build("16.1.0", "libx264"), r"PyAV 17.*16\.1\.0.*pip install -U"),  # of other colours
    ],
)
def test_without_a_pyav_that_can_write_the_error_says_what_to_install(
    found: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", found)
    with pytest.raises(ImportError, match=message):
        Mp4Writer(Path("a.mp4"), Fraction(30))
    assert os.listdir() == []


@needs_av
def test_the_same_frames_are_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without scene cuts, most files of noise differ where x264 may use AVX-512.
    monkeypatch.setitem(encode._QUALITY, "sc_threshold", "0")
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (12, 96, 96, 3), np.uint8)
    seen = set()
    for _ in range(30):
        # Other memory is in use each time, as it is in any program.
        junk = [
            np.full(rng.integers(1000, 400_000), rng.integers(256), np.uint8) for _ in range(20)
        ]
        del junk
        write(Path("a.mp4"), frames, Fraction(15))
        seen.add(Path("a.mp4").read_bytes())
    assert len(seen) == 1
