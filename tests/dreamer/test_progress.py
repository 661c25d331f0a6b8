"""Progress of the Dreamer example's training: printed lines, curve.csv and TensorBoard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.collectors import EpisodeReport, EvaluatedEpisode
from support.source_tree import CHECKOUT

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

import dreamer.progress
from dreamer.progress import Progress

CLEAR = "\r\x1b[K"


class Clock:
    """The time, as the test sets it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(dreamer.progress, "perf_counter", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(dreamer.progress, "sys", SimpleNamespace(stdout=stdout))
    monkeypatch.setenv("COLUMNS", "60")


def quiet(folder: Path, steps: int = 1_000) -> Progress:
    return Progress(folder, steps, tensorboard=False, show=False)


def plain(folder: Path, steps: int = 1_000) -> Progress:
    return Progress(folder, steps, tensorboard=False)


def ended(total_reward: float, total_steps: int = 0, steps: int = 7) -> EpisodeReport:
    return EpisodeReport(0, 0, total_reward, steps, True, False, None, total_steps)


def evaluation(*returns: float) -> sw.Evaluation:
    episodes = (EvaluatedEpisode(i, i, one, 7, True, False) for i, one in enumerate(returns))
    return sw.Evaluation(tuple(episodes))


def losses(**numbers: float) -> dict[str, Any]:
    return {name: torch.tensor(number) for name, number in numbers.items()}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars that TensorBoard reads from a folder: (step, value) by tag."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    found = pytest.importorskip(module, reason="needs TensorBoard").EventAccumulator(str(folder))
    found.Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags}


def test_a_row_of_the_curve_holds_steps_seconds_and_the_mean_return(
    tmp_path: Path, clock: Clock
) -> None:
    with quiet(tmp_path / "new" / "run") as progress:
        clock.now += 61.25
        progress.evaluated(evaluation(1, 2), 500)
    assert (tmp_path / "new" / "run" / "curve.csv").read_text() == (
        "steps,seconds,mean_return\n500,61.2,1.5\n"
    )


def test_a_resumed_run_adds_rows_and_its_seconds_go_on(tmp_path: Path, clock: Clock) -> None:
    with quiet(tmp_path) as progress:
        clock.now += 20
        progress.losses(losses(model=1), 400)
        progress.evaluated(evaluation(3), 400)
        state = progress.state()
    before = (tmp_path / "curve.csv").read_text()
    assert state == {"env_steps": 400, "updates": 1, "seconds": 20}
    clock.now += 10_000  # while nothing ran
    with quiet(tmp_path) as progress:
        assert progress.seconds == 0
        progress.resumed(**state)
        assert progress.state() == state
        clock.now += 5
        progress.losses(losses(model=1), 450)
        assert progress.state() == {"env_steps": 450, "updates": 2, "seconds": 25}
        assert progress.seconds == 25
        progress.evaluated(evaluation(2), 500)
    assert (tmp_path / "curve.csv").read_text() == before + "500,25.0,2\n"


def test_an_evaluation_is_the_best_when_none_was_better_in_this_run_or_before(
    tmp_path: Path,
) -> None:
    first = quiet(tmp_path)
    assert first.evaluated(evaluation(-3), 1)
    assert first.evaluated(evaluation(5), 2)
    assert not first.evaluated(evaluation(4.99), 3)
    assert first.evaluated(evaluation(5), 4)
    assert not first.evaluated(evaluation(float("nan")), 5)
    assert first.evaluated(evaluation(5), 6)
    (tmp_path / "curve.csv").write_text("steps,seconds,mean_return\n2,1.0,5\n3,2.0,4.99\n")
    resumed = quiet(tmp_path)
    resumed.resumed(**first.state())
    assert resumed.best == 5
    assert not resumed.evaluated(evaluation(4.9), 6)
    assert resumed.evaluated(evaluation(5.1), 7)


def test_the_step_of_the_last_evaluation_is_read_back(tmp_path: Path) -> None:
    first = quiet(tmp_path)
    assert first.evaluated_at == 0
    first.evaluated(evaluation(1), 100)
    first.evaluated(evaluation(0), 230)
    first.losses({}, 300)
    assert first.evaluated_at == 230
    resumed = quiet(tmp_path)
    resumed.resumed(**first.state())
    assert resumed.evaluated_at == 230


def test_an_evaluation_is_printed_on_its_own_line(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = plain(tmp_path, 10_000)
    clock.now += 3_725
    progress.evaluated(evaluation(1, 2, 3, 4), 1_200)
    progress.evaluated(evaluation(1, 2), 1_300)
    assert capsys.readouterr().out.splitlines() == [
        "1,200 steps, 1:02:05: mean return 2.50, 95 % from 0.45 to 4.55; the best so far",
        "1,300 steps, 1:02:05: mean return 1.50, 95 % from -4.85 to 7.85; the best was 2.50",
    ]


def test_where_there_is_no_terminal_a_line_is_printed_every_ten_seconds(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path) as progress:
        for update in range(1, 40):
            clock.now += 0.5
            progress.losses(losses(model=update, actor=-0.0123456, kl=9), 10 * update)
            if update == 15:
                progress.episode(ended(3))
                progress.episode(ended(4))
        assert capsys.readouterr().out == (
            "20%  200 steps, 20/s  return 3.50  0:00:40 left  20 updates, 2.0/s, ratio 0.10  "
            "model 10.5  actor -0.0123\n"
        )
    assert capsys.readouterr().out == (
        "39%  390 steps, 20/s  return 3.50  0:00:30 left  39 updates, 2.0/s, ratio 0.10  "
        "model 30  actor -0.0123\n"
    )


def test_in_a_terminal_one_line_is_redrawn_every_second_within_its_width(
    tmp_path: Path, clock: Clock, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path) as progress:
        for update in range(1, 5):
            clock.now += 0.5
            progress.losses(losses(model=1), 10 * update)
        progress.evaluated(evaluation(7, 7), 45)
        _, first, second, evaluated = capsys.readouterr().out.split(CLEAR)
    assert first == "2%  20 steps, 20/s  0:00:49 left  2 updates, 2.0/s, ratio 0"
    assert second == "4%  40 steps, 20/s  0:00:48 left  4 updates, 2.0/s, ratio 0"
    assert len(first) == 60 - 1
    assert evaluated.startswith("45 steps, 0:00:02: mean return 7.00")
    assert evaluated.endswith("\n")
    last = capsys.readouterr().out
    assert last.startswith(CLEAR)
    assert last.endswith("model 1\n")  # the last one stays, and is whole


def test_the_rates_are_those_of_late_and_not_of_the_whole_run(
    tmp_path: Path,
    clock: Clock,
    terminal: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    progress = plain(tmp_path, 10**9)
    for second in range(100):
        clock.now += 1
        progress.losses({}, 1_000 * second if second < 50 else 50_000 + 10 * second)
    lines = capsys.readouterr().out.split(CLEAR)
    assert len(lines) == 1 + 100
    assert "steps, 10/s" in lines[-1]
    assert "100 updates, 1.0/s, ratio 0.10" in lines[-1]


def test_the_rates_do_not_count_the_random_steps_before_the_first_evaluation(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path) as progress:
        clock.now += 1
        progress.losses({}, 500)
        progress.evaluated(evaluation(1), 500)
        for update in range(1, 11):
            clock.now += 1
            progress.losses({}, 500 + 4 * update)
    assert "540 steps, 4/s" in capsys.readouterr().out


def test_the_return_is_the_mean_of_the_last_twenty_episodes(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path) as progress:
        for total_reward in range(50):
            progress.episode(ended(total_reward))
    assert "return 39.50" in capsys.readouterr().out


def test_before_the_first_update_steps_are_counted_by_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path) as progress:
        progress.episode(ended(1, total_steps=70))
        assert progress.state()["env_steps"] == 70
        progress.losses({}, 500)
        progress.episode(ended(1, total_steps=80))  # of another Collector
        assert progress.state()["env_steps"] == 500
    assert "50%  500 steps" in capsys.readouterr().out


def test_show_false_prints_nothing(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with quiet(tmp_path) as progress:
        for _ in range(20):
            clock.now += 5
            progress.losses(losses(model=1), 5)
            progress.episode(ended(1))
        progress.evaluated(evaluation(1), 5)
    assert capsys.readouterr().out == ""


def test_a_run_without_steps_is_reported_as_such(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path):
        pass
    assert capsys.readouterr().out == "0%  0 steps, 0/s\n"
    assert not (tmp_path / "curve.csv").exists()


class Untouchable:
    """A tensor that must not be read."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


def test_a_gradient_step_reads_no_tensor_until_a_line_is_due(tmp_path: Path, clock: Clock) -> None:
    progress = quiet(tmp_path)
    clock.now += 9.9
    for _ in range(1_000):
        metrics: Any = {"model": Untouchable(), "actor": Untouchable()}
        progress.losses(metrics, 5)


def test_tensorboard_gets_episodes_evaluations_and_the_means_of_all_losses(
    tmp_path: Path, clock: Clock
) -> None:
    pytest.importorskip("tensorboard")
    with Progress(tmp_path, 1_000, show=False) as progress:
        for update in range(8):
            clock.now += 2.5
            progress.losses(losses(model=update, kl=1), 10 * update)
        progress.episode(ended(-2, steps=9))
        progress.evaluated(evaluation(4, 5), 80)
        progress.losses(losses(model=100), 90)  # no line is due any more, but the end logs it
    assert scalars(tmp_path / "tensorboard") == {
        "loss/model": [(30, 1.5), (70, 5.5), (90, 100.0)],
        "loss/kl": [(30, 1.0), (70, 1.0)],
        "episode/return": [(70, -2.0)],
        "episode/length": [(70, 9.0)],
        "eval/return": [(80, 4.5)],
    }


def test_what_a_killed_run_logged_beyond_its_checkpoint_is_taken_back_by_the_next(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard")
    with Progress(tmp_path, 1_000, show=False) as progress:
        for steps in (100, 200, 300):
            progress.evaluated(evaluation(steps), steps)
    with Progress(tmp_path, 1_000, show=False) as progress:
        progress.resumed(150, 10, 1.0)
        progress.evaluated(evaluation(7), 200)
    assert scalars(tmp_path / "tensorboard")["eval/return"] == [(100, 100.0), (200, 7.0)]


def test_without_tensorboard_a_sentence_says_how_to_get_it_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with Progress(tmp_path, 1_000) as progress:
        progress.evaluated(evaluation(1), 5)
    first, *others = capsys.readouterr().out.splitlines()
    assert "pip install 'stepwell[dreamer]'" in first
    assert not any("pip" in line for line in others)
    assert [path.name for path in tmp_path.iterdir()] == ["curve.csv"]


def test_tensorboard_false_writes_nothing_for_it(tmp_path: Path) -> None:
    with quiet(tmp_path) as progress:
        progress.episode(ended(1))
        progress.losses(losses(model=1), 5)
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_training_is_raised_and_the_log_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def train() -> None:
        with Progress(tmp_path, 1_000, show=False) as progress:
            progress.losses(losses(model=3), 5)
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        train()
    assert scalars(tmp_path / "tensorboard") == {"loss/model": [(5, 3.0)]}


def test_a_loss_that_is_no_number_any_more_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path) as progress:
        progress.losses(losses(model=float("nan"), actor=float("inf")), 5)
    assert "model nan  actor inf" in capsys.readouterr().out


def test_metrics_may_come_and_go_and_be_of_any_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain(tmp_path) as progress:
        progress.losses({}, 1)
        progress.losses({"model": torch.tensor(1), "critic": torch.tensor(0.5).double()}, 2)
        progress.losses({"model": torch.tensor(4)}, 3)
    assert "3 updates" in (line := capsys.readouterr().out)
    assert "model 2.5  critic 0.5" in line


@pytest.mark.parametrize("steps", [0, -5])
def test_a_training_without_steps_is_refused(tmp_path: Path, steps: int) -> None:
    with pytest.raises(ValueError, match=f"steps: .*1.*got {steps}"):
        Progress(tmp_path / "run", steps)
    assert not (tmp_path / "run").exists()


def test_the_curves_of_several_runs_are_drawn_in_one_picture(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    pictures = []
    for seed in (0, 1):
        progress = quiet(tmp_path / f"seed{seed}")
        for steps in (100, 200, 300):
            progress.evaluated(evaluation(steps * (seed + 1)), steps)
    files = [str(tmp_path / f"seed{seed}" / "curve.csv") for seed in (0, 1)]
    for chosen in (files[:1], files):
        out = tmp_path / "pictures" / f"{len(chosen)}.png"
        script = CHECKOUT / "benchmarks" / "plot_curve.py"
        command = [sys.executable, "-W", "error", str(script), *chosen, "--out", str(out)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        assert len(run.stdout.splitlines()) == len(chosen)
        pictures.append(cv2.imread(str(out)))
    assert "seed1, 200.0 to 600.0" in run.stdout
    blue, vermilion = (180, 100, 30), (0, 94, 213)
    alone, together = ([colours_in(half) for half in np.split(one, 2, 1)] for one in pictures)
    assert blue in alone[0] & alone[1] & together[0] & together[1]
    assert vermilion not in alone[0] | alone[1]
    assert vermilion in together[0]
    legend = colours_in(pictures[1][350:, 700:])  # no line comes there
    assert {blue, vermilion} <= legend
    assert not {blue, vermilion} & colours_in(pictures[0][350:, 700:])


def colours_in(pixels: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()}
