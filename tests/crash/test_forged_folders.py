"""Folders that somebody forged, all checksums right: read, or refused in a sentence."""

from __future__ import annotations

from collections import Counter

import pytest

from forged_folders import KINDS
from forged_uses import READING, WRITING, ForgedCases
from forgeries import FORGERIES
from hostile_runner import Runner, Verdict, fast_folder

CI_CASES, FULL_CASES = 2_000, 20_000
ENOUGH = 20  # faults, after which no more are looked for


@pytest.mark.parametrize(
    "cases", [CI_CASES, pytest.param(FULL_CASES, marks=pytest.mark.full)], ids=str
)
def test_a_forged_folder_is_read_or_refused_and_nothing_else_is_touched(cases: int) -> None:
    told, faults = Counter[str](), list[Verdict]()
    with fast_folder() as folder, Runner(ForgedCases(folder / "cases"), folder) as runner:
        for number in range(cases):
            verdict = runner.run(number)
            told.update(f"{topic}: {value}" for topic, value in verdict.told.items())
            faults += [verdict] * bool(verdict.signature)
            if len(faults) == ENOUGH:
                break
    print(f"cases 0 to {cases - 1}; one alone: python tests/forged_uses.py NUMBER")
    print("\n".join(f"{count:6} {what}" for what, count in sorted(told.items())))
    assert not faults, "\n\n".join(
        f"case {each.number}: {each.signature}\n{each.fault}" for each in faults
    )
    check_yield(told, cases)


def check_yield(told: Counter[str], cases: int) -> None:
    """Everything was forged, most of it got past the checksums, and some of it did no harm."""
    total = sum(each.weight for each in FORGERIES.values())
    for name, each in FORGERIES.items():
        assert told[f"forgery: {name}"] >= cases * each.weight / total / 4, name
    for kind in KINDS:
        assert told[f"store: {kind}"] >= cases / len(KINDS) / 4, kind
    assert told["checksums: passed"] >= 0.95 * cases
    assert told["read: StoreCorrupt"] >= 0.3 * cases
    assert told["read: done"] >= 0.15 * cases
    for name in (*READING, *WRITING):
        assert told[f"{name}: done"] >= cases / 200, name
