"""`python -m examples.dreamer`: what it teaches, what it refuses, what it keeps."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from support.source_tree import CHECKOUT

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

from dreamer import __main__ as command
from dreamer.agent import Models
from dreamer.checkpoint import save_models
from dreamer.config import Config
from dreamer.progress import Progress
from dreamer.train import EvaluationEnvs
from support import documents
from support.command_line import has_parts
from support.libraries.dreamer_agents import COUNTER, TINY, as_assignments

# What is left of the losses after 400 gradient steps, at most.
FALLS = {"model": 0.5, "reconstruction": 0.2, "reward": 0.25, "continue": 0.75}
RUN = ["--env", COUNTER, "--out", "run", "--set", *as_assignments(TINY)]
README = CHECKOUT / "examples" / "dreamer" / "README.md"


@pytest.fixture(autouse=True)
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It takes seconds to import; what becomes of a run's logs is tested with `Progress`."""
    monkeypatch.setattr(command, "Progress", Quiet)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Quiet(Progress):
    """Without logs for TensorBoard; stops by Ctrl-C after so many gradient steps."""

    stop_after: int | None = None

    def __init__(self, folder: Path, steps: int) -> None:
        super().__init__(folder, steps, tensorboard=False)
        self._learned = 0

    def losses(self, metrics: dict[str, torch.Tensor], env_steps: int) -> None:  # type: ignore[override]
        super().losses(metrics, env_steps)
        self._learned += 1
        if self._learned == self.stop_after:
            raise KeyboardInterrupt


def error_of(*arguments: str, capsys: pytest.CaptureFixture[str] | None = None) -> str:
    """Run the command, which must fail, and return its message."""
    with pytest.raises(SystemExit) as end:
        command.main([*arguments])
    if capsys is None:
        return str(end.value.code)
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def evaluated() -> list[int]:
    with Path("run/curve.csv").open() as file:
        return [int(row["steps"]) for row in csv.DictReader(file)]


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for word in ("--env", "--resume", "--video", "replay_ratio", "CartPole-v1", "tensorboard"):
        assert word in said


def test_its_examples_and_those_of_the_readme_are_understood() -> None:
    lines = command.EPILOG.splitlines()
    for block in documents.blocks(README.read_text("utf-8")):
        if block.language in documents.SHELLS:
            lines += block.lines
    commands = [line.strip() for line in lines if "-m examples.dreamer" in line]
    assert len(commands) >= 6
    for line in commands:
        options = command._options(
            shlex.split(line.partition("examples.dreamer")[2], comments=True)
        )
        if not options.resume:
            command._run(options)


def test_the_readme_quotes_the_train_loop() -> None:
    (quoted,) = [
        block.lines
        for block in documents.blocks(README.read_text("utf-8"))
        if block.mark and block.mark["reason"] == "lines of train.py"
    ]
    source = (README.parent / "train.py").read_text("utf-8")
    assert quoted[0] in source.splitlines()
    assert "\n".join(quoted[1:]) in source


def test_the_readmes_agent_is_loaded_and_filmed() -> None:
    (block,) = [
        block
        for block in documents.blocks(README.read_text("utf-8"))
        if block.language == "python" and block.mark and "from a checkout" in block.mark["reason"]
    ]
    program = "\n".join(block.lines).replace("examples.dreamer", "dreamer")
    lines = program.splitlines()
    before = next(place for place, line in enumerate(lines) if line.startswith("load_models"))
    names: dict[str, Any] = {}
    exec("\n".join(lines[:before]), names)
    Path("runs/catch").mkdir(parents=True)
    save_models("runs/catch/best.pt", names["models"], include_optimizers=False)
    exec("\n".join(lines[before:]), names)
    assert names["frames"].ndim == 4
    names["envs"].close()


def test_set_may_be_given_more_than_once() -> None:
    options = command._options(["--set", "bins=9", "dense=8", "--set", "gamma=0.9"])
    assert options.set == ["bins=9", "dense=8", "gamma=0.9"]
    config = command._run(options).config
    assert (config.bins, config.dense, config.gamma) == (9, 8, 0.9)


def test_a_run_leaves_its_files_and_plays_the_best_agent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.main([*RUN, "--seed", "7"])
    noted = json.loads(Path("run/run.json").read_text())
    assert noted["env"] == COUNTER
    assert noted["seed"] == 7
    assert Config(**noted["config"]) == TINY
    files = {path.name for path in Path("run").iterdir()}
    assert files == {"best.pt", "curve.csv", "replay", "run.json"}
    assert evaluated() == [40, 60, 92, 120]
    said = capsys.readouterr().out
    assert "120 steps" in said
    assert "the best agent, from fresh seeds:" in said
    assert "2000001" in said


def test_the_same_command_gives_the_same_agent() -> None:
    for folder in ("once", "twice"):
        command.main([*RUN, "--out", folder, "--steps", "60"])
    assert Path("once/best.pt").read_bytes() == Path("twice/best.pt").read_bytes()
    command.main([*RUN, "--out", "other", "--steps", "60", "--seed", "1"])
    assert Path("other/best.pt").read_bytes() != Path("once/best.pt").read_bytes()


def test_a_film_is_made_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    options = ["--steps", "10", "--video", "films/catch.mp4"]
    command.main([*RUN, "--env", "stepwell/Catch-v0", *options])
    assert Path("films/catch.mp4").stat().st_size > 1_000
    assert "film: films/catch.mp4" in capsys.readouterr().out


def test_what_the_model_foresees_is_drawn_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "70", "--foresee", "pictures/catch.png"]
    command.main([*RUN, "--env", "stepwell/Catch-v0", *options])
    assert Path("pictures/catch.png").read_bytes().startswith(b"\x89PNG")
    assert "what it foresees: pictures/catch.png" in capsys.readouterr().out


def test_of_numbers_no_picture_is_drawn() -> None:
    said = error_of(*RUN, "--foresee", "numbers.png")
    assert said == f"error: --foresee: expected an env that shows pictures, got {COUNTER}"


def test_ctrl_c_says_how_to_go_on_and_that_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Quiet, "stop_after", 6)
        said = error_of(*RUN)
    assert said.splitlines()[1:] == [
        "stopped; continue from the last checkpoint with",
        "  python -m examples.dreamer --out run --resume",
    ]
    command.main(shlex.split(said.splitlines()[-1])[3:])
    assert evaluated() == [40, 60, 92, 120]
    assert "the best agent" in capsys.readouterr().out
    with sw.SequenceReplayBuffer.open("run/replay", read_only=True) as replay:
        assert replay.load_checkpoint()["updates"] == 20


def test_a_run_stopped_before_its_first_checkpoint_goes_on_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Quiet, "stop_after", 6)
        error_of(*RUN, "--set", "save_every=1000")
    command.main(["--out", "run", "--resume"])
    assert evaluated() == [40, 60, 92, 120]


def test_the_agent_of_the_best_evaluation_is_the_one_that_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Seeing(EvaluationEnvs):
        def play(self, models: Models) -> sw.Evaluation:
            seen.append(models.world_model.state_dict()["rssm.first_hidden"].clone())
            return super().play(models)

    seen: list[torch.Tensor] = []
    command.main([*RUN, "--steps", "60", "--set", "world_lr=0.1"])
    command.main([*RUN, "--steps", "60", "--set", "world_lr=0.1", "--out", "other", "--seed", "1"])
    Path("other/best.pt").replace("run/best.pt")
    monkeypatch.setattr(command, "EvaluationEnvs", Seeing)
    command.main(["--out", "run", "--resume"])
    best = torch.load("run/best.pt", weights_only=True)["world_model"]["rssm.first_hidden"]
    assert len(seen) == 1
    assert torch.equal(seen[0], best)


def test_more_steps_are_noted_for_the_next_resume(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([*RUN, "--steps", "60"])
    command.main(["--out", "run", "--resume", "--steps", "80", "--set", "actor_lr=0.5"])
    noted = json.loads(Path("run/run.json").read_text())["config"]
    assert (noted["steps"], noted["actor_lr"]) == (80, 0.5)
    assert "nothing to learn" not in capsys.readouterr().out
    command.main(["--out", "run", "--resume"])
    said = capsys.readouterr().out
    assert "nothing to learn: 80 steps were taken, and --steps is 80" in said
    assert "the best agent, from fresh seeds:" in said
    assert evaluated() == [40, 60, 80]


def test_fewer_steps_than_there_are_need_nothing_to_be_learned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.main([*RUN, "--steps", "60"])
    before = Path("run/best.pt").read_bytes()
    command.main(["--out", "run", "--resume", "--steps", "20"])
    said = capsys.readouterr().out
    assert "nothing to learn: 60 steps were taken, and --steps is 20" in said
    assert said.count("the best agent, from fresh seeds:") == 2
    assert Path("run/best.pt").read_bytes() == before


def test_a_run_that_is_there_is_not_written_over() -> None:
    command.main([*RUN, "--steps", "10"])
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    said = error_of(*RUN, "--steps", "20")
    assert has_parts(said, "error: --out run: |got a run;|--resume"), said
    assert before == {path: path.read_bytes() for path in before}


def test_a_folder_of_something_else_is_not_written_to() -> None:
    Path("run").mkdir()
    Path("run/notes.txt").write_text("mine")
    said = error_of(*RUN)
    assert has_parts(said, "error: --out run: |got something else;"), said
    assert [path.name for path in Path("run").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--env", "Nothing-v0"], "'Nothing-v0'"),
        (["--env", "ALE/Nothing-v5"], "got 'Nothing'"),
        (["--resume"], "--resume: |runs/dreamer, got none|--out"),
        (["--set", "depth=3"], "--set depth=3: |num_envs, steps, |got 'depth'"),
        (["--set", "gamma"], "--set gamma: |gamma=NUMBER, got ''"),
        (["--set", "gamma=much"], "--set gamma=much: |gamma=NUMBER, got 'much'"),
        (["--set", "gamma=2"], "config: |gamma |1, got 2"),
        (["--set", "bins=2.5"], "config: |bins |above 0, got 2.5"),
        (["--steps", "0"], "config: |steps |above 0, got 0"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(arguments: list[str], parts: str) -> None:
    error = error_of(*arguments)
    assert has_parts(error, f"error: |{parts}"), error
    assert "\n" not in error
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--device", "tpu"], "--device: |cpu|cuda|got tpu"),
        (["--threads", "0"], "--threads: |>= 1, got 0"),
        (["--seed", "-1"], "--seed: |>= 0, got -1"),
        (["--steps", "many"], "--steps: |int|'many'"),
        (["--video", "film.gif"], "--video: |.mp4, got film.gif"),
        (["--foresee", "it.gif"], "--foresee: |.png, got it.gif"),
        (["--resume", "--env", "X"], "--env: |--resume"),
        (["--resume", "--seed", "0"], "--seed: |--resume"),
        (["--preset", "huge"], "--preset: |'huge'"),
    ],
)
def test_an_invalid_option_is_refused(
    arguments: list[str], parts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = error_of(*arguments, capsys=capsys)
    assert has_parts(said, parts), said
    assert not list(Path().iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    said = error_of("--device", "cuda", capsys=capsys)
    assert has_parts(said, "cpu|cuda|got cuda"), said


def test_a_package_that_an_env_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    said = error_of("--env", "BipedalWalker-v3")
    assert said.startswith("error: ")
    assert "ox2" in said.splitlines()[0]


@pytest.mark.parametrize("text", ["", "[]", '{"env": "X"}', '{"env": "X", "seed": 0, "config": 3}'])
def test_a_damaged_run_json_is_named(text: str) -> None:
    Path("run").mkdir()
    Path("run/run.json").write_text(text)
    said = error_of("--out", "run", "--resume")
    assert has_parts(said, "error: run/run.json: |env, seed and config|got "), said


def test_other_sizes_do_not_fit_a_run_which_stays_as_it_is() -> None:
    command.main([*RUN, "--steps", "60"])
    before = Path("run/run.json").read_bytes()
    said = error_of("--out", "run", "--resume", "--steps", "80", "--set", "dense=9")
    assert has_parts(said, "error: |run/replay|(9, |got (8, "), said
    assert Path("run/run.json").read_bytes() == before


def test_a_run_that_another_process_writes_is_not_changed() -> None:
    command.main([*RUN, "--steps", "60"])
    with sw.SequenceReplayBuffer("run/replay"):
        said = error_of("--out", "run", "--resume", "--steps", "80")
    assert said.startswith("error: ")
    assert "run/replay" in said


def test_too_short_a_prefill_is_reported() -> None:
    said = error_of(*RUN[:4], "--set", *as_assignments(TINY), "length=50", "num_envs=8")
    assert said.startswith("error: ")
    assert "50" in said


def test_without_pytorch_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "dreamer.__main__")
    with pytest.raises(SystemExit, match=r"^error: .*PyTorch.*pip install 'stepwell\[dreamer\]'"):
        runpy.run_module("dreamer.__main__", run_name="again")


def test_errors_that_no_option_causes_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*_: object) -> None:
        raise ValueError("shapes")

    monkeypatch.setattr(command, "train_loop", wrong)
    with pytest.raises(RuntimeError, match="the training failed"):
        command.main(RUN)


# The command with its losses noted at each gradient step, which TensorBoard gets but once a second.
NOTED = """
import json, sys
import support.libraries.dreamer_agents  # which registers an env
from dreamer import __main__ as command

class Noted(command.Progress):
    def losses(self, metrics, env_steps):
        super().losses(metrics, env_steps)
        with open("losses", "a") as file:
            print(json.dumps({name: float(loss) for name, loss in metrics.items()}), file=file)

command.Progress = Noted
command.main(sys.argv[1:])
"""


def run_and_kill(
    arguments: list[str], updates: int, timeout: float = 400
) -> list[dict[str, float]]:
    """Start a training, kill it during a gradient step; return the losses of earlier steps."""
    path = {"PYTHONPATH": f"{CHECKOUT / 'examples'}:{CHECKOUT / 'tests'}"}
    program = [sys.executable, "-W", "error", "-c", NOTED, *arguments]
    noted, begun = Path("losses"), time.monotonic()
    with Path("said").open("w") as said, subprocess.Popen(
        program, env=os.environ | path, stdin=subprocess.DEVNULL, stdout=said, stderr=said
    ) as child:  # fmt: skip
        try:
            while not noted.exists() or noted.read_text().count("\n") < updates:
                assert child.poll() is None, Path("said").read_text()
                assert time.monotonic() < begun + timeout, Path("said").read_text()
                time.sleep(0.02)
        finally:
            child.send_signal(signal.SIGKILL)
    return [json.loads(line) for line in noted.read_text().splitlines()]


def complete(*arguments: str) -> str:
    """Run the command as a reader would; what it printed."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.dreamer", *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=1_800,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def means(losses: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in losses) / len(losses) for name in losses[0]}


def curve_of(out: Path) -> list[tuple[int, float]]:
    with (out / "curve.csv").open() as file:
        return [(int(row["steps"]), float(row["mean_return"])) for row in csv.DictReader(file)]


def test_losses_fall_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    every = ["eval_every=500", "eval_episodes=4", "save_every=200"]
    losses = run_and_kill(["--out", str(out), "--set", *every], 400)
    first, last = means(losses[:10]), means(losses[-50:])
    for name, factor in FALLS.items():
        assert last[name] < factor * first[name], name
    with sw.SequenceReplayBuffer.open(out / "replay", read_only=True) as replay:
        steps = replay.steps
        assert replay.load_checkpoint()["updates"] > 200
    best, curve = (out / "best.pt").read_bytes(), curve_of(out)
    said = complete("--out", str(out), "--resume", "--steps", str(steps + 50))
    assert "the best agent, from fresh seeds:" in said
    with sw.SequenceReplayBuffer.open(out / "replay", read_only=True) as replay:
        assert replay.steps >= steps + 50
        assert replay.load_checkpoint()["updates"] == (replay.steps - 1_024) // 2
        for episode in replay.iter_episodes():  # FishyRL's F2: a place follows from that before
            place, speed = episode.observation[:, 0], episode.observation[:, 1]
            np.testing.assert_allclose(place[1:], place[:-1] + 0.02 * speed[:-1], atol=1e-5)
    assert curve_of(out)[: len(curve)] == curve
    assert [at // 500 for at, _ in curve_of(out)] == [2, 3, 3]
    if curve_of(out)[-1][1] < max(mean for _, mean in curve):
        assert (out / "best.pt").read_bytes() == best


@pytest.mark.full
def test_a_run_that_is_killed_again_and_again_comes_to_its_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for updates in (3, 1, 5, 2, 4, 30):
        more = ["--resume", "--steps", "400"] if out.exists() else RUN
        run_and_kill([*more, "--out", str(out)], updates)
        Path("losses").unlink()
    command.main(["--out", str(out), "--resume", "--steps", "420"])
    steps = [at for at, _ in curve_of(out)]
    assert sorted({at // 30 for at in steps}) == [*range(1, 15)]
    assert len({at // 30 for at in steps}) == len(steps)
    with sw.SequenceReplayBuffer.open(out / "replay", read_only=True) as replay:
        assert replay.load_checkpoint()["updates"] == (replay.steps - 40) // 4
        for episode in replay.iter_episodes():
            assert np.ptp(episode.observation[:, 0]) == 0
            assert (np.diff(episode.observation[:, 1]) == 1).all()


@pytest.mark.full
def test_cartpole_is_learned(tmp_path: Path) -> None:
    said = complete("--env", "CartPole-v1", "--out", str(tmp_path / "run"))
    found = re.search(r"mean return ([\d.]+)", said.partition("the best agent")[2])
    assert found
    assert float(found[1]) >= 400
