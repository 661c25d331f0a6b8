"""Everything that takes long has an argument ``progress``, and all of them are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell as sw
from stepwell.buffers import copy_episodes, repair, verify
from stepwell.buffers.base import progress
from stepwell.buffers.base.progress import Status
from stepwell.buffers.exchange.formats.exporting import export_episodes
from stepwell.buffers.exchange.formats.importing import import_episodes
from stepwell.buffers.view.report import write_report
from stepwell.collectors.loop import collector as collector_module


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

    def close(self) -> None:
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and its episodes as npz and as an archive."""
    at = tmp_path_factory.mktemp("files")
    with sw.SequenceReplayBuffer(at / "store") as replay, make_collector(replay) as collector:
        collector.collect(steps=300)
    with sw.SequenceReplayBuffer.open(at / "store", read_only=True) as replay:
        export_episodes(replay, "npz", at / "npz")
        sw.archive(replay, at / "a.swa", lanes=1)
    return at


@pytest.fixture
def replay(files: Path) -> Iterator[sw.SequenceReplayBuffer]:
    with sw.SequenceReplayBuffer.open(files / "store", read_only=True) as opened:
        yield opened


def empty() -> sw.SequenceReplayBuffer:
    return sw.SequenceReplayBuffer()


def shown() -> list[str]:
    """The lines of the only display, which is closed."""
    (drawn,) = Drawn.made
    assert drawn.is_closed
    return ["  ".join(part.text for part in one.line()) for one in drawn.shown]


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
        collector.collect(**goal, progress=True)
    lines = shown()
    assert len(lines) > 10
    assert all(part in lines[-1] for part in parts), lines[-1]
    assert any(" left" in one for one in lines)


ALL = "100%  301 / 301 steps"
# What takes long, of a replay with `progress`, and a part of the last line that it draws.
CALLS: dict[str, tuple[str, Callable[[Any, Any, Path], object]]] = {
    "evaluate": (
        "3 / 3 episodes",
        lambda of, shows, at: sw.evaluate(
            "CartPole-v1", sw.RandomPolicy(), episodes=3, progress=shows
        ),
    ),
    "copy": (ALL, lambda of, shows, at: copy_episodes(of, empty(), progress=shows)),
    "export": (ALL, lambda of, shows, at: export_episodes(of, "npz", Path("n"), progress=shows)),
    "import": (
        "301 / 301 steps",
        lambda of, shows, at: import_episodes("npz", at / "npz", empty(), progress=shows),
    ),
    "verify": (" of ", lambda of, shows, at: verify(of.path, progress=shows)),
    "repair": (" of ", lambda of, shows, at: repair(of.path, progress=shows)),
    "write_report": ("", lambda of, shows, at: write_report(of.path, Path("r"), progress=shows)),
    "resimulate": (ALL, lambda of, shows, at: [*sw.resimulate(of, lanes=1, progress=shows)]),
    "archive": (ALL, lambda of, shows, at: sw.archive(of, Path("a"), lanes=1, progress=shows)),
    "restore": (
        ALL,
        lambda of, shows, at: sw.restore(at / "a.swa", empty(), lanes=1, progress=shows),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_draws_its_progress_and_refuses_anything_else_before_something_is_made(
    name: str, replay: sw.SequenceReplayBuffer, files: Path
) -> None:
    part, call = CALLS[name]
    with pytest.raises(TypeError, match=r"^progress: expected True, .*got 'yes'"):
        call(replay, "yes", files)
    assert not list(Path().iterdir())
    assert not Drawn.made
    call(replay, True, files)
    if part:  # a report tells of frames, of which there are none here
        assert part in shown()[-1]


def test_an_iteration_that_is_left_closes_its_display(replay: sw.SequenceReplayBuffer) -> None:
    with sw.resimulate(replay, lanes=1, progress=True) as proofs:
        next(proofs)
    shown()
