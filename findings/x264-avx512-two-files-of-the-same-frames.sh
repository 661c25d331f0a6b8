#!/usr/bin/env bash
# PyAV 18.1.0 (its wheel's libx264): on a CPU with AVX-512 two encodings of the same frames differ.
#
# People expect: with one thread, no rate control by time and the same frames in the same process,
# libx264 gives the same bytes ("deterministic" is its default, and one thread needs not even that).
# It does: its macroblock tree, which is on from preset veryfast upwards, gives other results from run to
# run where it uses AVX-512. Frames of noise of 84 x 84 differ in 1 of 60 files with the options of the
# preset alone, and in most without scene cuts, as here; sizes that are multiples of 16 too.
# With AVX2 and less, without assembler, or without the tree (files of Atari are then 35 to 44 % longer)
# all are the same.
# Seen (30 files each): all {'': 5 to 9, 'mbtree=0': 1, 'asm=AVX2': 1} different ones
set -euo pipefail
if ! grep -qm1 avx512f /proc/cpuinfo; then
    echo "skipped: this CPU has no AVX-512"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
from fractions import Fraction

import av
import numpy as np

rng = np.random.default_rng(0)
frames = rng.integers(0, 256, (12, 96, 96, 3), np.uint8)


def encoded(params: str) -> bytes:
    codec = av.CodecContext.create("libx264", "w")
    codec.width = codec.height = 96
    codec.pix_fmt, codec.time_base, codec.thread_count = "yuv420p", Fraction(1, 15), 1
    codec.options = {"crf": "18", "preset": "veryfast", "sc_threshold": "0", "x264-params": params}
    packets = []
    for index, frame in enumerate(frames):
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(format="yuv420p")
        picture.pts = index
        packets += codec.encode(picture)
    return b"".join(bytes(packet) for packet in [*packets, *codec.encode(None)])


def files(params: str) -> int:
    seen = set()
    for _ in range(30):
        # Other memory is in use each time, as it is in any program.
        junk = [np.full(rng.integers(1000, 400_000), rng.integers(256), np.uint8) for _ in range(20)]
        del junk
        seen.add(encoded(params))
    return len(seen)


found = {params: files(params) for params in ("", "mbtree=0", "asm=AVX2")}
print(found)
assert found[""] > 1, found
assert found["mbtree=0"] == found["asm=AVX2"] == 1, found
PY
