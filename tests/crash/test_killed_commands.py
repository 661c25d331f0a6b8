"""A command that makes something is killed at a system call: it is whole or absent, and made again.

Each command runs in a fork and dies by SIGKILL before, within or after its n-th changing call.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.buffers import verify
from stepwell.collectors.cli.app import main
from support.crash.killed_calls import killed_at, tree

POLE = "collect CartPole-v1 --num-envs 4 --workers 0 --quiet"
COMMANDS = {
    "copy": "copy a --out new --codec observation=raw",
    "merge": "merge a b --out new",
    "merge without duplicates": "merge a good --out new --duplicates skip",
    "filter": "filter a --min-steps 15 --out deep/new",
    "drop": "drop a --cut --out new",
    "import": "import arrays --from npz --out new",
    "export": "export a --to npz --out new",
    "export to a file": "export a --to d3rlpy --out new",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands read."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for command in (
            f"{POLE} --steps 300 --seed 1 --out a",
            f"{POLE} --steps 200 --seed 2 --out b",
            "filter a --ended --out good --quiet",
            "export a --to npz --out arrays --quiet",
        ):
            assert main(command.split()) == 0
    return home


def contents(path: Path) -> object:
    """What a data set holds: a store's rows in words, and of other formats the bytes."""
    if (path / "manifest.json").exists():
        report = verify(path)
        assert report.is_whole
        return report.episodes, report.rows, report.chunks, report.nbytes
    return sorted(tree(path).items(), key=str) if path.is_dir() else path.stat().st_size


QUICK = ("merge", "import", "export", "export to a file")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in COMMANDS],
)
def test_a_killed_command_leaves_all_or_nothing_and_can_be_run_again(
    name: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "d3rlpy" in COMMANDS[name]:
        pytest.importorskip("h5py")
    monkeypatch.setattr("stepwell.buffers.curation.episode_writer._CHUNK_ROWS", 60)
    for sync in ("fsync", "fdatasync"):  # what is written survives the process without them
        monkeypatch.setattr(os, sync, lambda file: None)
    work = Path("home")
    shutil.copytree(home, work)
    monkeypatch.chdir(work)
    command = f"{COMMANDS[name]} --quiet".split()
    target = Path(command[command.index("--out") + 1])
    run: Callable[[], object] = functools.partial(main, command)
    before = tree()
    calls = killed_at(None, run)
    true = contents(target)
    assert calls >= 10
    clean(target)
    assert tree() == before
    every = range(calls) if request.config.getoption("--full") else chosen(calls)
    absent = whole = 0
    for number in every:
        assert killed_at(number, run) == -1
        if target.exists():
            whole += 1
            assert contents(target) == true, f"killed at call {number}"
            rest = target.with_name(f"{target.name}.part")
            assert {path.name for path in rest.glob("*")} <= {"UNFINISHED"}
        else:
            absent += 1
            assert main(command) == 0, f"killed at call {number}: {capsys.readouterr().err}"
            assert contents(target) == true
            assert not target.with_name(f"{target.name}.part").exists()
        clean(target)
        assert tree() == before
    assert absent >= len(every) // 2
    assert whole >= 2
    print(f"{name}: {len(every)} kills, {absent} absent, {whole} whole")


def chosen(calls: int) -> list[int]:
    """Some calls at the beginning and between, and the last ones."""
    few = {0, 2, 4, calls // 3, calls // 2, *range(calls - 4, calls)}
    return sorted(number for number in few if 0 <= number < calls)


def clean(target: Path) -> None:
    """Remove what a command has made."""
    for path in (target, target.with_name(f"{target.name}.part")):
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    if target.parent != Path():
        shutil.rmtree(target.parent, ignore_errors=True)
