"""The settings and the command `python -m examples.dreamer`: what it refuses, learns and keeps."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import stepwell as sw
from support.programs import run_python
from support.source_tree import CHECKOUT

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

from dreamer import __main__ as command
from dreamer.config import Config
from dreamer.progress import Progress
from support import documents
from support.command_line import has_parts
from support.libraries.tiny_dreamers import COUNTER, TINY

CATCH = "stepwell/Catch-v0"
SMALL = asdict(Config.small())
SETTINGS = [f"{name}={value}" for name, value in asdict(TINY).items() if value != SMALL[name]]
RUN = ["--env", COUNTER, "--out", "run", "--set", *SETTINGS]
README = CHECKOUT / "examples" / "dreamer" / "README.md"


class Quiet(Progress):
    """Without logs for TensorBoard, whose import takes seconds; notes the losses of each step.

    Stops by Ctrl-C after so many gradient steps.
    """

    noted: list[dict[str, float]]
    stop_after = 0

    def __init__(self, folder: Path, steps: int) -> None:
        super().__init__(folder, steps, tensorboard=False)

    def losses(self, metrics: Any, env_steps: int) -> None:
        super().losses(metrics, env_steps)
        Quiet.noted.append({name: float(loss) for name, loss in metrics.items()})
        if len(Quiet.noted) == Quiet.stop_after:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Progress", Quiet)
    monkeypatch.setattr(Quiet, "noted", [], raising=False)


def error_of(*arguments: str) -> str:
    """Run the command, which must fail, and return its message."""
    with pytest.raises(SystemExit) as end:
        command.main([*arguments])
    return str(end.value.code)


def evaluated(out: str) -> list[int]:
    """The steps at which there was an evaluation."""
    lines = Path(out, "curve.csv").read_text().splitlines()[1:]
    return [int(line.split(",")[0]) for line in lines]


# Settings


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--env", "Nothing-v0"], "'Nothing-v0'"),
        (["--resume"], "--resume: |runs/dreamer, got none|--out"),
        (["--set", "depth=3"], "--set depth=3: |num_envs, steps, |got 'depth'"),
        (["--set", "gamma"], "--set gamma: |gamma=NUMBER, got ''"),
        (["--set", "gamma=1.01"], "config: |gamma |0 or more and at most 1, got 1.01"),
        (["--set", "length=2.5"], "config: |length |whole number above 0, got 2.5"),
        (["--set", 'starts="7"'], "config: |starts |whole number above 0, got '7'"),
        (["--set", "free_nats=-1"], "config: |free_nats |number 0 or more, got -1"),
        (["--set", "tau=true"], "config: |tau |above 0 and at most 1, got True"),
        (["--env", COUNTER, "--foresee", "it.png"], f"--foresee: |shows pictures, got {COUNTER}"),
        (["--set", "num_envs=8", "pretrain_steps=40", "length=64"], "64"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], parts: str) -> None:
    error = error_of(*arguments)
    assert has_parts(error, f"error: |{parts}"), error
    assert "\n" not in error


# The README


def test_examples_of_help_and_readme_are_understood() -> None:
    lines = command.EPILOG.splitlines()
    for block in documents.blocks(README.read_text("utf-8")):
        lines += block.lines if block.language in documents.SHELLS else []
    commands = [line.strip() for line in lines if "-m examples.dreamer" in line]
    assert len(commands) >= 6
    for line in commands:
        words = shlex.split(line.partition("examples.dreamer")[2], comments=True)
        options = command._options(words)
        if not options.resume:
            command._run(options)


# Runs


def test_a_run_leaves_its_files_and_a_stopped_one_goes_on_to_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command.main([*RUN, "--out", "whole"])
    assert {path.name for path in Path("whole").iterdir()} == {
        *("best.pt", "curve.csv", "replay", "run.json")
    }
    assert "the best agent, from fresh seeds:" in capsys.readouterr().out
    assert len(Quiet.noted) == 20  # a quarter of the steps after the prefill
    Quiet.noted.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Quiet, "stop_after", 6)
        again = error_of(*RUN).splitlines()[-1]
    command.main(shlex.split(again)[3:])
    assert "the best agent, from fresh seeds:" in capsys.readouterr().out
    assert evaluated("run") == evaluated("whole") == [40, 60, 92, 120]
    with sw.SequenceReplayBuffer.open("run/replay", read_only=True) as replay:
        assert replay.load_checkpoint()["updates"] == 20
        policies = [str(session["policy"]).split(".")[-1] for session in replay.sessions]
    assert policies == ["RandomPolicy", "DreamerPolicy", "DreamerPolicy"]
    best = Path("run/best.pt").read_bytes()
    assert has_parts(error_of(*RUN), "error: --out run: |got a run;|--resume")
    command.main(["--out", "run", "--resume", "--steps", "20"])
    assert "nothing to learn: 120 steps were taken" in capsys.readouterr().out
    assert Path("run/best.pt").read_bytes() == best
    script = CHECKOUT / "benchmarks" / "plot_curve.py"
    files = ["run/curve.csv", "whole/curve.csv", "--out", "curves.png"]
    run_python(script, *files)
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_catch_is_a_game_of_pictures_and_what_the_model_foresees_is_drawn() -> None:
    env = gym.make(CATCH)
    check_env(env.unwrapped, skip_render_check=True)
    returns = sw.evaluate(CATCH, sw.RandomPolicy(), episodes=100).mean
    assert -2.5 < returns < -1.6
    pytest.importorskip("av")
    options = ["--steps", "70", "--foresee", "pictures/catch.png", "--video", "films/catch.mp4"]
    command.main([*RUN, "--env", CATCH, *options])
    assert Path("pictures/catch.png").read_bytes().startswith(b"\x89PNG")
    assert Path("films/catch.mp4").stat().st_size > 1_000


@pytest.mark.proof
def test_losses_fall() -> None:
    command.main(["--out", "run", "--steps", "1824", "--set", "eval_every=1000"])
    assert len(Quiet.noted) >= 400
    first, last = Quiet.noted[:10], Quiet.noted[350:400]
    falls = {"model": 0.5, "reconstruction": 0.2, "reward": 0.25, "continue": 0.75}
    for name, most in falls.items():
        now, before = (np.mean([losses[name] for losses in each]) for each in (last, first))
        assert now < most * before, name


@pytest.mark.full
def test_cartpole_is_learned(tmp_path: Path) -> None:
    options = ["--env", "CartPole-v1", "--out", str(tmp_path / "run")]
    program = [sys.executable, "-W", "error", "-m", "examples.dreamer", *options]
    run = subprocess.run(program, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    found = re.search(r"mean return ([\d.]+)", run.stdout.partition("the best agent")[2])
    assert found
    assert float(found[1]) >= 400
