"""`log=` of the Collector and of `record`: what the writers get of a run."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from stepwell.collectors import EpisodeReport
from stepwell.collectors.loop import curves
from support.envs.fakes import CounterEnv, counters, zeros
from support.libraries.missing import hide
from support.programs import run_python

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard"
)
MODES = list(AutoresetMode)
RETURN, LENGTH = "episode/return", "episode/length"
SPEED, RATIO = "time/steps_per_second", "replay/batches_per_step"


class Scalars:
    """A writer with the interface of SummaryWriter, which keeps what it gets."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.flushes = self.closes = 0

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.points[tag].append((global_step, scalar_value))

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.closes += 1


class Run:
    """A run with the interface of W&B's, which keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.axes: dict[str, object] = {}
        self.finishes = 0

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        assert step is None  # W&B drops what comes with a lower step than the row before
        self.rows.append(data)

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric

    def finish(self) -> None:
        self.finishes += 1


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of `collect` writes its points at its end, and only then."""
    monkeypatch.setattr(curves, "_SECONDS", 1e9)
    monkeypatch.setattr(curves, "_TIMES_THE_COST", 0)


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of a folder, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def by_step(ended: list[EpisodeReport]) -> dict[str, list[tuple[int, float]]]:
    """The points of these episodes: those that ended in one step share one."""
    points: dict[str, list[tuple[int, float]]] = {RETURN: [], LENGTH: []}
    for at, group in itertools.groupby(ended, lambda one: one.total_steps):
        some = list(group)
        points[RETURN].append((at, np.mean([one.total_reward for one in some]).item()))
        points[LENGTH].append((at, np.mean([one.steps for one in some]).item()))
    return points


def collector(log: Any, replay: Any = None, lengths: Any = (3, 5), **more: Any) -> sw.Collector:
    return sw.Collector(counters(*lengths), zeros, replay, seed=0, log=log, **more)


@pytest.mark.usefixtures("at_once")
def test_priorities_have_curves_once_they_are_drawn_by() -> None:
    writer, replay = Scalars(), sw.SequenceReplayBuffer(seed=0, priority_alpha=1)
    log = writer.points
    assert replay.priority_summary == (0, 0)
    with collector(writer, replay) as one:
        one.collect(steps=40)
        replay.sample_transitions(2)
        one.collect(steps=20)
        assert "replay/batches_per_step" in log
        assert "replay/mean_priority" not in log
        batch = replay.sample_transitions(8, draw="priorities")
        count = replay.count(sw.Transitions(1))
        replay.update_priorities(batch.ids, np.full(8, 5.0))
        changed = len(np.unique(batch.ids))
        mean = (changed * (5 + 1e-6) + count - changed) / count
        assert replay.priority_summary == pytest.approx((mean, 5 + 1e-6))
        one.collect(steps=20)
    assert log["replay/mean_priority"][0][1] == pytest.approx(mean)
    assert log["replay/largest_priority"][0][1] == pytest.approx(5 + 1e-6)


@needs_tensorboard
@pytest.mark.usefixtures("at_once")
def test_tensorboard_reads_the_episodes_that_ended(tmp_path: Path) -> None:
    ended: list[EpisodeReport] = []
    replay = sw.SequenceReplayBuffer(seed=0)
    with collector(tmp_path / "a" / "b", replay, on_episode=ended.append) as one:
        at = [one.collect(steps=40).total_steps]
        for _ in range(30):
            replay.sample_transitions(2)
        steps = one.collect(steps=20).steps
        at.append(replay.steps)
        found = events(tmp_path / "a" / "b")  # while it is open
        one.collect(steps=20)
    assert len({episode.total_steps for episode in ended}) < len(ended) > 10
    wanted = by_step(ended)
    found_at_end = events(tmp_path / "a" / "b")
    assert {tag: found_at_end[tag] for tag in wanted} == {
        tag: [(at, float(np.float32(value))) for at, value in points]
        for tag, points in wanted.items()
    }
    assert found[RETURN] == found_at_end[RETURN][: len(found[RETURN])] != found_at_end[RETURN]
    assert found[RATIO] == [(at[1], float(np.float32(30 / steps)))]
    assert [step for step, _ in found_at_end[SPEED]] == [*at, replay.steps]
    assert all(speed > 0 for _, speed in found_at_end[SPEED])
    assert found_at_end[RATIO][1:] == [(replay.steps, 0.0)]


@needs_tensorboard
@pytest.mark.usefixtures("at_once")
def test_a_store_that_is_continued_continues_its_curves(tmp_path: Path) -> None:
    steps = 0
    for _ in range(2):
        with sw.SequenceReplayBuffer(tmp_path / "rows") as replay:
            with collector(tmp_path / "tb", replay) as one:
                steps = one.collect(steps=40).steps
    found = events(tmp_path / "tb")
    assert [at for at, _ in found[SPEED]] == [steps, 2 * steps]
    first = [at for at, _ in found[RETURN] if at <= steps]
    assert [at for at, _ in found[RETURN] if at > steps] == [at + steps for at in first]
    assert len(list((tmp_path / "tb").iterdir())) == 2


@pytest.mark.usefixtures("at_once")
def test_a_resumed_training_continues_its_curves() -> None:
    whole, first, second = Scalars(), Scalars(), Scalars()
    replays = [sw.SequenceReplayBuffer(), sw.SequenceReplayBuffer()]
    with collector(whole, replays[0]) as one:
        one.collect(steps=20)
        one.collect(steps=20)
        points = {tag: list(whole.points[tag]) for tag in (RETURN, LENGTH)}
        one.rollout(3)
    with collector(first, replays[1]) as one:
        one.collect(steps=20)
        state = one.state_dict()
        with collector(second, replays[1]) as other:
            other.load_state_dict(state)
            other.collect(steps=20)
            steps = replays[1].steps
    for tag in (RETURN, LENGTH):
        assert first.points[tag] + second.points[tag] == points[tag]
    assert [at for at, _ in second.points[SPEED]] == [steps]
    assert (whole.flushes, whole.closes) == (3, 0)


@needs_tensorboard
def test_neither_torch_nor_tensorflow_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, stepwell as sw\n"
        "envs = sw.make_vec('CartPole-v1', 2, num_workers=0)\n"
        "assert 'tensorboard' not in sys.modules\n"
        f"with sw.Collector(envs, 'random', seed=0, log={str(tmp_path)!r}) as one:\n"
        "    one.collect(steps=100)\n"
        "print(sorted({'torch', 'tensorflow', 'jax', 'tensorboard'} & set(sys.modules)))"
    )
    assert run_python("-c", code, warnings="default").stdout == "['tensorboard']\n"
    assert events(tmp_path)[RETURN]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("way", ["run", "module", "begun", "new"])
def test_weights_and_biases(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    wandb: Any = ModuleType("wandb")
    wandb.run = run if way == "begun" else None
    wandb.init = lambda: run
    wandb.log, wandb.define_metric = run.log, run.define_metric
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    ended: list[EpisodeReport] = []
    log = {"run": run, "module": wandb}.get(way, "wandb")
    with collector(log, on_episode=ended.append) as one:
        one.collect(steps=40)
    wanted = by_step(ended)
    found = {
        tag: [(row["env_steps"], row[tag]) for row in run.rows if tag in row] for tag in wanted
    }
    assert found == wanted
    assert run.rows[-1].keys() == {SPEED, "env_steps"}
    assert run.axes == dict.fromkeys(["episode/*", "time/*", "replay/*"], "env_steps")
    assert run.finishes == (way == "new")


@pytest.mark.usefixtures("at_once")
def test_many_ends_share_few_points_with_the_same_mean() -> None:
    ended: list[EpisodeReport] = []
    writer = Scalars()
    with collector(writer, lengths=[[1, 2, 3], [4, 2, 7]], on_episode=ended.append) as one:
        one.collect(steps=10_000)
    points = by_step(ended)
    assert len(points[RETURN]) > 10 * curves._MOST_POINTS
    for tag, mine in (
        (RETURN, [one.total_reward for one in ended]),
        (LENGTH, [one.steps for one in ended]),
    ):
        values = [value for _, value in writer.points[tag]]
        assert curves._MOST_POINTS / 2 < len(values) <= curves._MOST_POINTS
        assert min(mine) <= min(values) <= max(values) <= max(mine)
        assert np.mean(values) == pytest.approx(np.mean(mine), rel=0.05)
        places = [at for at, _ in writer.points[tag]]
        assert places == sorted(set(places))
        assert places[-1] == points[tag][-1][0]


def test_points_are_written_while_a_call_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_SECONDS", 0)
    monkeypatch.setattr(curves, "_TIMES_THE_COST", 0)
    writer, seen = Scalars(), set[int]()
    with collector(writer, on_episode=lambda _: seen.add(len(writer.points[RETURN]))) as one:
        one.collect(steps=40)
    assert len(seen) > 5


def test_calls_that_follow_at_once_do_not_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_TIMES_THE_COST", 1e12)
    ended: list[EpisodeReport] = []
    writer = Scalars()
    with collector(writer, on_episode=ended.append) as one:
        for _ in range(20):
            one.collect(steps=2)
        assert len(writer.points[SPEED]) == 1
    assert {tag: writer.points[tag] for tag in (RETURN, LENGTH)} == by_step(ended)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_recorded_vector_env_gives_the_curves_of_a_collector(mode: AutoresetMode) -> None:
    def envs() -> SyncVectorEnv:
        makes = [lambda n=n: CounterEnv(n, 0) for n in (3, 5)]
        return SyncVectorEnv(makes, autoreset_mode=mode)

    first, second = Scalars(), Scalars()
    with sw.Collector(envs(), zeros, seed=0, log=first) as one:
        one.collect(steps=60)
        steps = one.report.steps
    recorded = sw.record(envs(), sw.SequenceReplayBuffer(), log=second)
    recorded.reset(seed=0)
    at, ended = 0, np.zeros(2, bool)
    while at < steps:
        if mode is AutoresetMode.DISABLED and ended.any():
            recorded.reset(options={"reset_mask": ended})
        before = ended
        *_, terminated, truncated, _ = recorded.step(np.zeros(2, np.int64))
        ended = terminated | truncated
        at += 2 - int(before.sum()) * (mode is AutoresetMode.NEXT_STEP)
    recorded.close()
    recorded.close()
    for tag in (RETURN, LENGTH):
        assert second.points[tag] == first.points[tag] != []
    assert second.points[SPEED][-1][0] == steps


def test_a_recorded_env_leaves_cut_episodes_out(tmp_path: Path) -> None:
    writer = Scalars()
    env = sw.record(CounterEnv(4, 0), tmp_path, log=writer)
    rewards: list[float] = []
    for steps in (4, 2, 4):
        env.reset(seed=0)
        played = [float(env.step(0)[1]) for _ in range(steps)]
        rewards += [sum(played)] if steps == 4 else []
    env.close()
    assert writer.points[RETURN] == [(4, rewards[0]), (10, rewards[1])]
    assert writer.points[LENGTH] == [(4, 4), (10, 4)]


@pytest.mark.parametrize("where", ["add", "flush"])
def test_where_no_curve_can_be_written_the_run_goes_on(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "_TIMES_THE_COST", 0)

    class Full(Scalars):
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            self.flushes += 1
            if where == "add":
                raise OSError(28, "No space left on device")

        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    writer, replay = Full(), sw.SequenceReplayBuffer()
    with collector(writer, replay) as one:
        with pytest.warns(RuntimeWarning, match="No space left"):
            one.collect(steps=40)
        calls = writer.flushes
        one.collect(steps=40)
    assert replay.steps >= 80
    assert writer.flushes == calls > 0


def test_another_error_of_a_writer_ends_the_call_and_loses_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curves, "_SECONDS", 0)

    class Wrong(Scalars):
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            raise KeyError("wrong")

    replay = sw.SequenceReplayBuffer()
    one = collector(Wrong(), replay)
    with pytest.raises(KeyError, match="wrong") as caught:
        one.collect(steps=40)
    assert replay.steps > 0
    assert any("kept" in note for note in caught.value.__notes__)
    one.close()


@pytest.mark.parametrize("log", ["", 5, b"runs", [], object(), logging.getLogger("a")])
def test_what_is_no_writer_is_refused(log: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^log: expected a folder") as caught:
        collector(log)
    assert repr(log) in str(caught.value)
    with pytest.raises(TypeError, match=r"^log: expected a folder"):
        sw.record(CounterEnv(4, 0), tmp_path / "a", log=log)
    sw.SequenceReplayBuffer(tmp_path / "a").close()  # nobody holds it


@needs_tensorboard
def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"^log: expected a folder .*; name another"):
            collector(path)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(("log", "package"), [("runs", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_told_at_once(
    log: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(package, monkeypatch)
    with pytest.raises(ImportError, match=f"pip install {package}$") as caught:
        collector(log)
    assert caught.value.name == package


@needs_tensorboard
def test_the_command_line(tmp_path: Path) -> None:
    options = ["collect", "CartPole-v1", "--steps", "300", "--workers", "0", "--json", "--log"]
    run = ["-m", "stepwell.collectors.cli", *options, "tb", "--out"]
    told = json.loads(run_python(*run, "rows", cwd=tmp_path, warnings="default").stdout)
    found = events(tmp_path / "tb")
    assert found[SPEED][-1][0] == told["total_steps"]
    run_python(*run, "rows", "--resume", "--processes", "2", cwd=tmp_path, warnings="default")
    axis = [at for at, _ in events(tmp_path / "tb")[SPEED]]
    with sw.SequenceReplayBuffer.open(tmp_path / "rows", read_only=True) as replay:
        assert axis[-1] == replay.steps > told["total_steps"] in axis


@pytest.mark.usefixtures("at_once")
def test_groups_in_other_processes_have_the_curves_of_their_episodes() -> None:
    replay = sw.SequenceReplayBuffer()

    def local(log: Any, on_episode: Any = None) -> sw.LocalCollector:
        return sw.LocalCollector(
            partial(counters, 3, 5),
            constant(zeros),
            replay,
            groups=2,
            processes=1,
            seed=0,
            log=log,
            on_episode=on_episode,
        )

    ended: list[EpisodeReport] = []
    writers = Scalars(), Scalars()
    with local(writers[0], ended.append) as one:
        first = one.collect(steps=40)
        for _ in range(30):
            replay.sample_transitions(2)
        at = [first.total_steps, one.collect(steps=40).total_steps]
        state = one.state_dict()
    with local(writers[1], ended.append) as one:
        one.load_state_dict(state)
        with one.running() as run:
            while run.steps < 20:
                time.sleep(0.01)
    at.append(replay.steps)
    assert len(ended) > 20
    wanted = by_step(ended)
    for tag in (RETURN, LENGTH):
        assert writers[0].points[tag] + writers[1].points[tag] == wanted[tag]
    speeds = writers[0].points[SPEED] + writers[1].points[SPEED]
    assert [step for step, _ in speeds] == at
    within = first.env_seconds + first.policy_seconds + first.write_seconds
    assert at[0] / speeds[0][1] > within > 0  # since the call began, not since the first piece
    ((place, ratio),) = writers[0].points[RATIO]
    assert place == at[1]
    assert ratio == pytest.approx(30 / (at[1] - at[0]))
    with pytest.raises(TypeError, match="log"):
        local(3)


def constant(value: Any) -> Any:
    return lambda: value
