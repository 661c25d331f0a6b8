"""Output where the terminal, or the file it is sent to, is not UTF-8."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from stepwell.collectors.cli.app import main

COMMANDS = [
    *("", "collect --help", "filter --help", "formats", "envs CartPole"),
    *("info a", "info a --json", "verify a", "repair a", "copy a --out copied"),
    "merge a --out mérged",
    "filter a --min-return 20 --dry-run",
    "filter a --max-return 9 --invert --out dropped",
    "export a --to npz --out exported",
    "import exported --from npz --out imported",
    "collect CartPole-v1 --steps 40 --workers 0 --out öther",
    "info nöwhere",
    "collect Bröken --steps 4 --out broken",
    "collect CartPole-v1 --stäps 4 --out broken",
]


@pytest.mark.proof
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_every_command_prints_whatever_the_encoding_is(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = "collect CartPole-v1 --steps 400 --seed 0 --workers 0 --out a --quiet"
    assert main(collect.split()) == 0
    for command in COMMANDS:
        out, err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding))
        code = main(command.split())
        sys.stdout.flush()
        sys.stderr.flush()
        said = (out.getvalue() + err.getvalue()).decode(encoding)
        assert code in (0, 2), (command, said)
        assert said, command
        if command == "info a":
            bar, spread = {"ascii": ("#", "+/-"), "utf-8": ("█", "±")}.get(encoding, ("", "±"))
            assert 9 * bar in said
            assert spread in said
        if command == "info nöwhere":
            assert ("n\\xf6where" if encoding == "ascii" else "nöwhere") in said


def test_bytes_of_a_file_name_that_are_no_text_are_written_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = os.fsdecode(b"caf\xe9")
    for encoding in ("ascii", "utf-8"):
        err = io.BytesIO()
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding))
        assert main(["info", name]) == 2
        sys.stderr.flush()
        assert b"caf\xe9" in err.getvalue()
    assert not Path(name).exists()
