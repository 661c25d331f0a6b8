"""Everything that takes long has an argument ``progress``, and all of them are the same."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import copy_episodes, progress, repair, verify
from stepwell.buffers.bridges.formats.exporting import export_episodes
from stepwell.buffers.bridges.formats.importing import import_episodes
from stepwell.buffers.dropin.memmap.conversion import conversion_status
from stepwell.buffers.progress import Status
from stepwell.buffers.view.report import write_report
from stepwell.collectors import collector as collector_module
from support.source_tree import label, library_files, tree_of

STEPS = 300


class Drawn:
    """A display that keeps what it is to show."""

    interval = delay = 0.0
    has_sentences = True
    made: list[Drawn]

    def __init__(self) -> None:
        self.shown: list[Status] = []
        self.is_closed = False
        Drawn.made.append(self)

    def show(self, status: Status) -> None:
        assert not self.is_closed
        self.shown.append(status)

    def close(self, last: Callable[[], Status] | None) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    Drawn.made = []
    monkeypatch.setattr(progress, "_place", Drawn)
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(progress, "_TIMES_THE_COST", 0)
    monkeypatch.setattr(collector_module, "_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(collector_module, "_TIMES_THE_COST", 0)


def make_collector(replay: sw.SequenceReplayBuffer | None = None) -> sw.Collector:
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    return sw.Collector(envs, sw.RandomPolicy(), replay, seed=0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with (
        sw.SequenceReplayBuffer(tmp_path / "store") as replay,
        make_collector(replay) as collector,
    ):
        collector.collect(steps=STEPS)
    return tmp_path / "store"


@pytest.fixture
def replay(store: Path) -> Any:
    with sw.SequenceReplayBuffer.open(store, read_only=True) as opened:
        yield opened


def texts(drawn: Drawn) -> list[str]:
    assert drawn.is_closed
    return ["  ".join(part.text for part in one.line()) for one in drawn.shown]


def only() -> list[str]:
    (drawn,) = Drawn.made
    return texts(drawn)


@pytest.mark.parametrize(
    ("goal", "parts"),
    [
        ({"steps": 50}, ["100%", "50 / 50 steps", "steps/s"]),
        ({"episodes": 3}, ["100%", "3 / 3 episodes", "return "]),
        ({"seeds": [1, 2, 3]}, ["100%", "3 / 3 episodes", "return "]),
    ],
)
def test_collect(goal: dict[str, Any], parts: list[str]) -> None:
    with make_collector() as collector:
        report = collector.collect(**goal, progress=True)
    shown = only()
    assert len(shown) > 10
    assert all(part in shown[-1] for part in parts), shown[-1]
    assert any(" left" in one for one in shown)
    if report.returns:
        assert f"return {np.mean(report.returns):.1f}" in shown[-1]


def test_evaluate() -> None:
    found = sw.evaluate("CartPole-v1", sw.RandomPolicy(), episodes=3, progress=True)
    assert "3 / 3 episodes" in only()[-1]
    assert f"return {found.mean:.1f}" in only()[-1]


def test_copy(replay: sw.SequenceReplayBuffer) -> None:
    copy_episodes(replay, sw.SequenceReplayBuffer(), progress=True)
    shown = only()[-1]
    assert shown.startswith("100%  301 / 301 steps")
    assert "B/s" in shown


def test_export_and_import(replay: sw.SequenceReplayBuffer, tmp_path: Path) -> None:
    export_episodes(replay, "npz", tmp_path / "out", progress=True)
    assert only()[-1].startswith("100%  301 / 301 steps")
    import_episodes("npz", tmp_path / "out", sw.SequenceReplayBuffer(), progress=True)
    assert "301 / 301 steps" in texts(Drawn.made[1])[-1]


@pytest.mark.parametrize("check", [verify, repair])
def test_verify_and_repair(check: Callable[..., Any], store: Path) -> None:
    check(store, progress=True)
    assert f"{store}  " in only()[-1]
    assert " of " in only()[-1]


def test_simulation(replay: sw.SequenceReplayBuffer, tmp_path: Path) -> None:
    for _ in sw.resimulate(replay, lanes=1, progress=True):
        pass
    assert only()[-1].startswith("100%  301 / 301 steps")
    sw.archive(replay, tmp_path / "a.swa", lanes=1, progress=True)
    sw.restore(tmp_path / "a.swa", sw.SequenceReplayBuffer(), lanes=1, progress=True)
    assert [texts(one)[-1][:21] for one in Drawn.made] == ["100%  301 / 301 steps"] * 3


def test_an_iteration_that_is_left_closes_its_display(replay: sw.SequenceReplayBuffer) -> None:
    with sw.resimulate(replay, lanes=1, progress=True) as proofs:
        next(proofs)
    only()


WRONG: dict[str, Callable[[Any, Any, Path], object]] = {
    "evaluate": lambda replay, wrong, at: sw.evaluate(
        "CartPole-v1", sw.RandomPolicy(), episodes=1, progress=wrong
    ),
    "copy": lambda replay, wrong, at: copy_episodes(
        replay, sw.SequenceReplayBuffer(at / "new"), progress=wrong
    ),
    "export": lambda replay, wrong, at: export_episodes(replay, "npz", at / "new", progress=wrong),
    "import": lambda replay, wrong, at: import_episodes(
        "npz", at, sw.SequenceReplayBuffer(at / "new"), progress=wrong
    ),
    "verify": lambda replay, wrong, at: verify(replay.path, progress=wrong),
    "repair": lambda replay, wrong, at: repair(replay.path, progress=wrong),
    "write_report": lambda replay, wrong, at: write_report(replay.path, at / "new", progress=wrong),
    "resimulate": lambda replay, wrong, at: sw.resimulate(replay, progress=wrong),
    "archive": lambda replay, wrong, at: sw.archive(replay, at / "new", progress=wrong),
    "restore": lambda replay, wrong, at: sw.restore(
        at / "a.swa", sw.SequenceReplayBuffer(at / "new"), progress=wrong
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_anything_else_is_refused_before_something_is_made(
    name: str, replay: sw.SequenceReplayBuffer, tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TypeError, match=r"^progress: expected True, .*got 'yes'"):
        WRONG[name](replay, "yes", tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def types() -> dict[str, str]:
    """The type of each argument ``progress`` of a public function, by file and function."""
    found: dict[str, str] = {}
    for file in library_files():
        for node in ast.walk(tree_of(file)):
            if not isinstance(node, ast.FunctionDef):
                continue
            for argument in (*node.args.args, *node.args.kwonlyargs):
                if argument.arg == "progress" and argument.annotation is not None:
                    found[f"{label(file)}:{node.name}"] = ast.unparse(argument.annotation)
    return found


def test_all_arguments_have_one_type() -> None:
    found = types()
    public = {
        place: kind
        for place, kind in found.items()
        if not place.split(":")[1].startswith("_") and "simulation/player.py" not in place
        if place not in ("collectors/cli/copy.py:progress", "buffers/progress.py:check_progress")
    }
    names = {place.split(":")[1] for place in public}
    assert names >= {*WRONG, "collect", "convert"} - {"copy", "export", "import"}
    assert names >= {"copy_episodes", "export_episodes", "import_episodes"}
    wrong = {
        place: kind
        for place, kind in public.items()
        if not kind.startswith(("Progress[", "Callable[[CopyReport], None] | None"))
    }
    assert wrong == {}


def test_a_conversion_counts_episodes() -> None:
    class Report:
        steps, episodes, source_steps, source_episodes, seconds = 50, 1, 100, 2, 1.0

    report: Any = Report()
    assert [part.text for part in conversion_status(report).line()][:2] == [
        " 50%",
        "50 / 100 steps",
    ]
