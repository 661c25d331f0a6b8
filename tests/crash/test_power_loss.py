"""Loss of power, kill -9 and failures at any call: what `add` returned from is there.

And nothing else is half there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from pathlib import Path

import pytest

from stepwell.buffers import DiskStorage, StoreFailed
from stepwell.buffers.testing import chunk_of
from support.crash.crash_truth import APPEND
from support.crash.disk_faults import Killed
from support.crash.medium import Image, Medium, MediumFiles, restore
from support.crash.power_loss_scenario import lose_power
from support.examples import by_tier

IMAGES = by_tier(200, 1_000, 1_000)  # in each part


@pytest.mark.parametrize("part", range(by_tier(1, 3, 12)))
def test_a_loss_of_power_leaves_every_flush_that_returned(tmp_path: Path, part: int) -> None:
    got = lose_power(part, IMAGES, tmp_path)
    print(got)
    assert got.images == IMAGES
    assert got.chunks >= 5 * IMAGES
    # A loss between flushes, or one that leaves nothing unsynced, proves little.
    assert got.inside >= 0.4 * IMAGES
    assert got.extra >= 0.02 * IMAGES
    assert got.recovered >= 0.1 * IMAGES
    assert got.again >= 0.1 * IMAGES
    assert got.kills >= 0.1 * IMAGES
    assert got.failures >= 0.1 * IMAGES


def test_a_store_in_a_folder_that_a_killed_process_had_made_survives(tmp_path: Path) -> None:
    """Found by the test above.

    A process was killed after it had made a store's folder, but before it had synced the name of
    that folder. The next one took the empty folder as it was; a loss of power took the folder away,
    with a store in it from whose `add` the process had returned.
    """
    medium, rng = Medium(tmp_path), random.Random(0)
    for fatal_call in (1, None):  # the call after `make_folder`; none
        files = MediumFiles(medium, lambda: None, rng, fatal_call)
        try:
            APPEND.create(tmp_path / "store", files)
        except Killed:
            assert (tmp_path / "store").is_dir()
            assert not DiskStorage.exists(tmp_path / "store")
        files.close_all()
    assert all("store/manifest.json" in medium.image(rng) for _ in range(20))


def test_a_manifest_whose_writer_was_killed_before_the_sync_of_the_folder_is_made_durable(
    tmp_path: Path,
) -> None:
    """Found by the test above.

    A writer sealed its segment: it renamed the manifest that says so, and was killed before it had
    synced the folder. The next one saw the segment sealed and cut it off, then the power was lost:
    the old manifest was back, and the open segment that it lists had the wrong length.
    """
    path = tmp_path / "medium" / "store"
    for fatal_call in range(20, 50):
        restore({}, path.parent)
        medium, rng, images = Medium(path.parent), random.Random(fatal_call), list[Image]()
        files = MediumFiles(medium, lambda: None, rng, fatal_call)
        with contextlib.suppress(Killed), APPEND.create(path, files) as storage:
            storage.add([chunk_of(0)])
        files.close_all()
        if DiskStorage.exists(path):
            note = functools.partial(take_image, medium, rng, images)
            files = MediumFiles(medium, note, rng)
            DiskStorage.open(path, files=files)
            files.close_all()
            for _ in range(6):
                note()
        for image in images:
            restore(image, tmp_path / "image")
            if DiskStorage.exists(tmp_path / "image" / "store"):
                DiskStorage.open(tmp_path / "image" / "store", read_only=True).close()


@pytest.mark.proof
def test_what_was_healed_survives_when_the_sync_of_healing_fails(tmp_path: Path) -> None:
    """Found by the test above, once in some thousand images.

    A writer's sync failed after it had written copy A of a slot, so that the system's memory had
    the copy, and the medium perhaps not. The next writer wrote the data and copy B again, and its
    last sync failed. The third saw both copies, took the chunk for durable, and sealed the segment.
    After a loss of power both were gone, and a store of which nothing was lost did not open.
    """
    path = tmp_path / "medium" / "store"
    for seed, first, second in itertools.product(range(6), range(2), range(4)):
        restore({}, path.parent)
        medium, rng = Medium(path.parent), random.Random(seed)
        for failing_sync in (first, second, None):
            files = MediumFiles(medium, lambda: None, rng, None, failing_sync)
            with contextlib.suppress(OSError, StoreFailed):
                if DiskStorage.exists(path):
                    DiskStorage.open(path, files=files)
                else:
                    APPEND.create(path, files).add([chunk_of(0)])
            files.close_all()
        restore(medium.image(rng), tmp_path / "image")
        with DiskStorage.open(tmp_path / "image" / "store", read_only=True) as reader:
            for position in range(len(reader.index)):
                reader.payload(position)


def take_image(medium: Medium, rng: random.Random, images: list[Image]) -> None:
    images.append(medium.image(rng))
