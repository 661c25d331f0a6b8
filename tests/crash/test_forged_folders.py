"""Folders that somebody forged, all checksums right: read, or refused in a sentence."""

from __future__ import annotations

from collections import Counter

import pytest

from support.crash.hostile_runner import Runner, Verdict, fast_folder
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
