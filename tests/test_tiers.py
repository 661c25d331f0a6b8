"""A run says what it left out, and a second one leaves out what has passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiers import LEFT_OUT, REASONS, left_out, passed


def test_each_kind_of_tests_has_a_line_with_its_number_and_its_option() -> None:
    reasons = [REASONS["proof"]] * 3 + ["Skipped: needs torch", "Skipped: " + REASONS["full"]]
    reasons += ["could not import 'obstore': No module named 'obstore'", "its envs give arrays"]
    lines = left_out(reasons)
    assert [line.split()[2] for line in lines] == ["3", "1", "2", "1"]
    for line, how in zip(lines, ("--proofs", "--full", "'.[tests]'", "-rs"), strict=True):
        assert how in line
    assert left_out([]) == []


def test_the_marks_are_those_of_pyproject(pytestconfig: pytest.Config) -> None:
    declared = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert set(REASONS) <= declared
    assert {name for names in LEFT_OUT.values() for name in names} == set(REASONS)


def test_a_second_run_leaves_out_what_has_passed_and_nothing_else(tmp_path: Path) -> None:
    """Failed and skipped tests, those with an error in a fixture, and others run again."""
    file = tmp_path / "passed.xml"
    cases = {
        "a": "",
        "b": "<failure/>",
        "c": "<skipped/>",
        "d": "<error/>",
        "e[1]": "<properties/>",
    }
    lines = [
        f'<testcase classname="t.m" name="{name}">{sign}</testcase>' for name, sign in cases.items()
    ]
    file.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>")
    assert passed(file) == {("t.m", "a"), ("t.m", "e[1]")}
