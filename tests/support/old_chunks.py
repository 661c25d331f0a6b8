"""Chunks with the codec delta, as older versions wrote them: it is read, and no longer written."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import zstandard

from stepwell.buffers import Field
from stepwell.buffers.replay import replay
from stepwell.buffers.storage import chunk_codec

__all__ = ["slow_deltas", "writing_deltas"]


def slow_deltas(rows: np.ndarray) -> bytes:
    """The bytes of the format's description, change by change."""
    counts, steps, values = list[int](), list[int](), list[int]()
    for before, row in pairwise(rows):
        place, count = 0, 0
        for at in np.flatnonzero(row != before).tolist():
            while at - place > 255:
                place += 255
                steps.append(255)
                values.append(int(before[place]))
                count += 1
            steps.append(at - place)
            values.append(int(row[at]))
            place, count = at, count + 1
        counts.append(count)
    first: bytes = rows[0].tobytes()
    return struct.pack(f"<{len(counts)}I", *counts) + bytes(steps + values) + first


@contextmanager
def writing_deltas() -> Iterator[None]:
    """Meanwhile, fields of this codec are written as they once were."""
    compress = chunk_codec.ChunkEncoder._compress

    def compressed(
        self: chunk_codec.ChunkEncoder, rows: np.ndarray, block_rows: int, field: Field
    ) -> list[chunk_codec.Part]:
        if field.codec != "delta":
            return compress(self, rows, block_rows, field)
        blocks = list[chunk_codec.Part]()
        for start in range(0, len(rows), block_rows):
            some = rows[start : start + block_rows]
            flat = np.frombuffer(some.tobytes(), np.uint8).reshape(len(some), -1)
            content = slow_deltas(flat)
            if len(content) > flat.size / 4:
                content = flat.tobytes()
            packed = zstandard.ZstdCompressor(6, write_content_size=True).compress(content)
            blocks.append(packed if len(packed) < flat.size else flat.tobytes())
        return self._with_ends(blocks)

    with pytest.MonkeyPatch.context() as patch:
        for module in (chunk_codec, replay):
            patch.setattr(module, "as_written", lambda spec: spec)
        patch.setattr(chunk_codec.ChunkEncoder, "_compress", compressed)
        yield
