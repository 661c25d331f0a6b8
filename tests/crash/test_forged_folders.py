"""Folders that somebody forged, all checksums right: read, or refused in a sentence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from stepwell.buffers.storage.chunk_codec import ChunkDecoder
from stepwell.buffers.storage.disk import files, folder, format, segment
from support.crash.hostile_runner import Limits, Runner, Verdict, fast_folder
from support.examples import by_tier
from support.forged.folders import KINDS
from support.forged.forgeries import FORGERIES
from support.forged.uses import READING, WRITING, ForgedCases

CASES = 500  # in each part
ENOUGH = 20  # faults, after which no more are looked for


@pytest.mark.proof
@pytest.mark.parametrize("part", range(by_tier(1, 4, 40)))
def test_a_forged_folder_is_read_or_refused_and_nothing_else_is_touched(part: int) -> None:
    numbers = range(part * CASES, (part + 1) * CASES)
    counts, faults = Counter[str](), list[Verdict]()
    with fast_folder() as folder, Runner(ForgedCases(folder / "cases"), folder) as runner:
        for number in numbers:
            verdict = runner.run(number)
            counts.update(f"{topic}: {value}" for topic, value in verdict.labels.items())
            faults += [verdict] * bool(verdict.signature)
            if len(faults) == ENOUGH:
                break
    print(f"{CASES} cases; one alone: python tests/support/forged/uses.py {numbers[0]}")
    print("\n".join(f"{count:6} {what}" for what, count in sorted(counts.items())))
    assert not faults, "\n\n".join(
        f"case {each.number}: {each.signature}\n{each.fault}" for each in faults
    )
    check_yield(counts)


def check_yield(counts: Counter[str]) -> None:
    """Everything was forged, most of it got past the checksums, and some of it did no harm."""
    total = sum(each.weight for each in FORGERIES.values())
    for name, each in FORGERIES.items():
        expected = CASES * each.weight / total
        assert counts[f"forgery: {name}"] >= expected // 8, name  # the rarest may be missing
    for kind in KINDS:  # few forgeries fit an empty store
        assert counts[f"store: {kind}"] >= CASES / len(KINDS) // 10, kind
    assert counts["checksums: passed"] >= 0.95 * CASES
    assert counts["read: StoreCorrupt"] >= 0.3 * CASES
    assert counts["read: done"] >= 0.15 * CASES
    for name in (*READING, *WRITING, "refresh"):
        assert counts[f"{name}: done"] >= CASES / 200, name


# --- the test above can fail ----------------------------------------------------------------------


class Bug(NamedTuple):
    """Something that a reader could forget.

    Args:
        of: Where it is, and its name there.
        instead: What is there with the bug.
        only: What the forgeries that find it begin with.
        found: Part of the signature of what is found.
    """

    of: tuple[object, str]
    instead: Callable[..., object]
    only: str
    found: str


def nothing(*_: object) -> None:
    """A check that is left out."""


def as_it_is(value: object, *_: object) -> object:
    """A value whose type and range are believed."""
    return value


def opened(path: Path, mode: str, flags: int) -> FileIO:
    """A file as open() opens it: links are followed, and pipes waited for."""
    return FileIO(path, mode, opener=lambda name, more: os.open(name, more | flags, 0o666))


BUGS = {
    "the head of a chunk is believed": Bug(
        (segment.Segment, "_check_fields"), nothing, "chunk: an entry", "buffers/"
    ),
    "verify does not decode": Bug(
        (ChunkDecoder, "check_rows"), nothing, "chunk: a compressed", "verify and the reader"
    ),
    "slots are believed": Bug((segment, "check_slots"), nothing, "slot: ", "buffers/"),
    "numbers of the manifest are believed": Bug(
        (format, "whole"), as_it_is, "manifest: ", "buffers/"
    ),
    "links are followed": Bug(
        (files, "_opened"), opened, "file: no plain", "outside of the folder"
    ),
    "pipes are waited for": Bug((files, "_opened"), opened, "file: no plain", "asleep for good"),
    "a stale manifest is believed": Bug(
        (folder.StoreFolder, "_check_strays"), nothing, "manifest: an older", "stale manifest"
    ),
}


def plant(name: str) -> None:
    bug = BUGS[name]
    patch.object(*bug.of, bug.instead).start()  # for as long as the child lives


IN_EVERY_RUN = ("the head of a chunk is believed", "verify does not decode")


@pytest.mark.proof
@pytest.mark.parametrize(
    "name",
    [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.full) for name in BUGS],
)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = BUGS[name]
    with fast_folder() as place:
        cases = ForgedCases(place / "cases", bug.only, partial(plant, name))
        with Runner(cases, place, Limits(cpu_seconds=2, idle_looks=4)) as runner:
            found: Iterator[Verdict] = map(runner.run, range(300))
            first = next((each for each in found if bug.found in each.signature), None)
    assert first is not None
    print(f"case {first.number}: {first.signature}\n{first.fault}")
