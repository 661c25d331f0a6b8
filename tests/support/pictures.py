"""Animated pictures read back by slow readers of our own, which share no code with the writers."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import cv2
import numpy as np


@dataclass
class Shown:
    """The picture in a file."""

    frames: np.ndarray  # uint8 [T, H, W, 3]
    durations: list[float]  # seconds of each


def decoded(data: bytes) -> np.ndarray:
    """A picture as RGB, uint8 [H, W, 3]."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    return pixels[..., ::-1]


def as_rgb(pixels: np.ndarray, axes: int) -> np.ndarray:
    """Grey pixels, of as many axes, as RGB; RGB unchanged."""
    return np.repeat(pixels[..., None], 3, -1) if pixels.ndim == axes else pixels


def read_gif(data: bytes) -> Shown:
    """The frames of a GIF file."""
    assert data[:6] == b"GIF89a"
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    place, shared = 13, None
    if flags & 0x80:
        shared = _table(data, place, flags)
        place += shared.size
    canvas = np.zeros((height, width, 3), np.uint8)
    frames: list[np.ndarray] = []
    durations, ticks, hidden = [], 0, -1
    while data[place] != 0x3B:
        if data[place] == 0x21:
            if data[place + 1] == 0xF9:
                assert data[place + 2] == 4
                hidden = data[place + 6] if data[place + 3] & 1 else -1
                ticks = struct.unpack_from("<H", data, place + 4)[0]
            place += 2
            while data[place]:
                place += 1 + data[place]
            place += 1
            continue
        assert data[place] == 0x2C
        left, top, w, h, flags = struct.unpack_from("<HHHHB", data, place + 1)
        assert not flags & 0x40  # not interlaced
        place += 10
        table = shared
        if flags & 0x80:
            table = _table(data, place, flags)
            place += table.size
        assert table is not None
        bits = data[place]
        assert 2 <= bits <= 8
        place += 1
        packed = b""
        while data[place]:
            packed += data[place + 1 : place + 1 + data[place]]
            place += 1 + data[place]
        place += 1
        indices = _unpacked(packed, bits)
        assert len(indices) == w * h
        assert left + w <= width
        assert top + h <= height
        shown = np.array(indices).reshape(h, w, 1) != hidden
        assert frames or shown.all()
        before = canvas[top : top + h, left : left + w]
        before[:] = np.where(shown, table[indices].reshape(h, w, 3), before)
        frames.append(canvas.copy())
        durations.append(ticks / 100)
    assert place == len(data) - 1
    return Shown(np.array(frames), durations)


def _table(data: bytes, place: int, flags: int) -> np.ndarray:
    count = 2 << (flags & 7)
    return np.frombuffer(data, np.uint8, 3 * count, place).reshape(count, 3)


def _unpacked(data: bytes, bits: int) -> list[int]:
    """The indices of LZW codes, bit by bit."""
    clear, end = 1 << bits, (1 << bits) + 1
    stream = [byte >> bit & 1 for byte in data for bit in range(8)]
    place, width = 0, bits + 1
    table: list[list[int]] = []
    before: list[int] | None = None
    found: list[int] = []
    first = True
    while True:
        code = sum(stream[place + bit] << bit for bit in range(width))
        place += width
        assert not first or code == clear  # as the standard recommends
        first = False
        if code == clear:
            table = [[index] for index in range(clear)] + [[], []]
            width, before = bits + 1, None
            continue
        if code == end:
            assert len(stream) - place < 8
            return found
        if before is None:
            assert code < clear
        elif len(table) < 4096:
            table.append([*before, (table[code] if code < len(table) else before)[0]])
        before = table[code]
        found += before
        if len(table) == 1 << width and width < 12:
            width += 1


def read_webp(data: bytes) -> Shown:
    """The frames of a WebP file, animated or not; each frame's pixels by OpenCV."""
    assert data[:4] == b"RIFF"
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    assert data[8:12] == b"WEBP"
    chunks = []
    place = 12
    while place < len(data):
        name, size = data[place : place + 4], struct.unpack_from("<I", data, place + 4)[0]
        chunks.append((name, data[place + 8 : place + 8 + size]))
        place += 8 + size + size % 2
    assert place == len(data)
    if [name for name, _ in chunks] == [b"VP8L"]:  # nothing moves
        return Shown(decoded(data)[None], [0])
    assert [name for name, _ in chunks[:2]] == [b"VP8X", b"ANIM"]
    head = chunks[0][1]
    assert (head[0] & ~0x10, len(head)) == (2, 10)  # an animation, perhaps with alpha
    width, height = 1 + _number(head[4:7]), 1 + _number(head[7:10])
    assert chunks[1][1][4:] == bytes(2)  # for ever
    canvas = np.zeros((height, width, 3), np.uint8)
    frames: list[np.ndarray] = []
    durations = []
    for name, body in chunks[2:]:
        assert name == b"ANMF"
        left, top, w, h, milliseconds = (_number(body[at : at + 3]) for at in range(0, 15, 3))
        left, top, w, h = 2 * left, 2 * top, w + 1, h + 1
        replaces, is_removed = body[15] & 2, body[15] & 1
        assert not is_removed
        assert body[16:20] == b"VP8L"  # without loss
        inner = body[16:]
        part = _with_alpha(b"RIFF" + struct.pack("<I", len(inner) + 4) + b"WEBP" + inner)
        assert part.shape == (h, w, 4)
        assert left + w <= width
        assert top + h <= height
        shown = part[..., 3:] == 255
        assert (shown | (part[..., 3:] == 0)).all()
        assert shown.all() or (frames and not replaces)
        before = canvas[top : top + h, left : left + w]
        before[:] = np.where(shown, part[..., :3], before)
        frames.append(canvas.copy())
        durations.append(milliseconds / 1000)
    return Shown(np.array(frames), durations)


def _with_alpha(data: bytes) -> np.ndarray:
    """A picture as RGBA, uint8 [H, W, 4]."""
    # OpenCV reads no file of less than 32 bytes, as that of one pixel may be.
    padded = np.frombuffer(data.ljust(64, b"\0"), np.uint8)
    pixels = cv2.imdecode(padded, cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    codes = cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGBA
    return np.asarray(cv2.cvtColor(pixels, codes))


def of_rows(shown: Shown, count: int, fps: float) -> np.ndarray:
    """The frame that is seen at each row of a clip, [T, H, W, 3]: equal neighbours may be one."""
    ends = np.cumsum(shown.durations)
    middles = (np.arange(count) + 0.5) / fps
    places = np.searchsorted(ends, middles)
    return shown.frames[np.minimum(places, len(shown.frames) - 1)]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
