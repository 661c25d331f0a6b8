#!/usr/bin/env bash
# OpenCV writes animations: cv2.imencodeanimation, cv2.imwriteanimation.
# Expected: a file has the frames, colours and durations that were given.
# opencv-python-headless 5.0.0.93: a WebP file at quality 100 is not exact, at 101 it is. In it
# equal neighbours are one frame, and a clip of equal frames is a still picture. A GIF is dithered
# to other colours by default; with IMWRITE_GIF_DITHER 3 and a table for each frame up to 255
# colours are exact, but for level 1, which becomes black. Its durations are cut to hundredths.
# 4.12.0.88 refuses quality 101, and 4.11.0.86 is built without GIF.
# Seen: differ by up to 219 and 0; frames 3 of 6, 1 of 2; levels [85, 108, 144, 170], [142], [0]; 60 ms
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q opencv-python-headless==5.0.0.93 numpy==2.4.6
"$dir/venv/bin/python" - <<'PY'
import cv2
import numpy as np


def written(kind, frames, *options):
    clip = cv2.Animation()
    clip.frames, clip.durations = list(frames), [67] * len(frames)
    done, data = cv2.imencodeanimation(kind, clip, options)
    assert done
    found = cv2.imdecodeanimation(data)[1]
    return np.array(found.frames)[..., :3], list(map(int, found.durations))


def levels(frames):
    return np.unique(frames).tolist()


noise = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
worst = []
for quality in (100, 101):
    shown, _ = written(".webp", noise, cv2.IMWRITE_WEBP_QUALITY, quality)
    worst.append(int(np.abs(shown.astype(int) - noise).max()))
lossless = cv2.IMWRITE_WEBP_QUALITY, 101
moving = np.stack([noise[0], noise[0], noise[1], noise[1], noise[1], noise[0]])
counts = len(written(".webp", moving, *lossless)[0]), len(written(".webp", moving[:2], *lossless)[0])
grey = np.full((2, 32, 32, 3), 142, np.uint8)
dark = np.tile(np.array([[0], [1]], np.uint8), (2, 16, 32, 1)).repeat(3, 3)
tables = cv2.IMWRITE_GIF_DITHER, 3, cv2.IMWRITE_GIF_COLORTABLE, 1
dithered, durations = written(".gif", grey)
found = (
    *worst,
    *counts,
    levels(dithered),
    levels(written(".gif", grey, *tables)[0]),
    levels(written(".gif", dark, *tables)[0]),
    durations[0],
)
print("differ by up to %d and %d; frames %d of 6, %d of 2; levels %s, %s, %s; %d ms" % found)
assert found[0] > 50 and found[1:4] == (0, 3, 1) and 142 not in found[4]
assert found[5:] == ([142], [0], 60)
PY
