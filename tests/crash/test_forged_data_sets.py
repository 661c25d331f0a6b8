"""Data sets that somebody forged: an import ends with a whole store, or with one sentence."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from support.crash.hostile_runner import Fault, Limits, Runner, Verdict, fast_folder
from support.examples import by_tier
from support.forged.data_sets import ForgedImports, formats_here

CASES = 30  # of a format, in each part
LIMITS = Limits(memory_bytes=1 << 30)


def run(formats: list[str], numbers: range) -> list[Verdict]:
    """Cases of formats, up to the first fault."""
    with fast_folder() as folder:
        (folder / "cases").mkdir()
        make = partial(ForgedImports, folder / "cases", formats)
        found: list[Verdict] = []
        with Runner(make, folder, LIMITS) as runner:
            for number in numbers:
                found.append(runner.run(number))
                if found[-1].signature:  # the child may be gone, and its folder is as it left it
                    break
    return found


def assert_judged(found: list[Verdict], formats: list[str]) -> None:
    faults = [verdict for verdict in found if verdict.signature]
    signatures = Counter(verdict.signature for verdict in faults)
    assert not faults, f"{signatures}\n{faults[0].fault}"
    for name in formats:
        ends = Counter(v.labels["import"] for v in found if v.labels["format"] == name)
        # Else it is a test of nothing: of a good data set, or of one that nobody takes for one.
        assert min(ends["done"], ends["refused"]) > 0, (name, ends)


@pytest.mark.proof
@pytest.mark.parametrize("part", range(by_tier(1, 2, 66)))
@pytest.mark.parametrize("name", formats_here())
def test_a_forged_data_set_becomes_a_whole_store_or_one_sentence(name: str, part: int) -> None:
    assert_judged(run([name], range(part * CASES, (part + 1) * CASES)), [name])


def test_the_judge_sees_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(source: str, from_: str, out: Path, *_: object) -> None:
        out.mkdir()
        raise FileNotFoundError(2, "gone", "x")

    def touch(*arguments: object) -> None:
        (tmp_path / "secret" / "data.npz").write_bytes(b"changed")
        raise FileNotFoundError(2, "gone", "x")

    forged = ForgedImports(tmp_path, ["npz"])
    for import_, fault in ((leave, "store"), (touch, "data.npz was changed")):
        monkeypatch.setattr("support.forged.data_sets.import_data", import_)
        with pytest.raises(Fault, match=fault):
            forged(0)
    monkeypatch.undo()
    monkeypatch.setattr("stepwell.collectors.cli.output.LiveLine", None)
    with pytest.raises(Fault, match="not callable"):  # an error that is no sentence
        forged(0)
