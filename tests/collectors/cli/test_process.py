"""The command as the shell sees it: exit codes, streams, signals, a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stepwell as sw
from support.programs import run_python
from support.screen import in_terminal

STEPWELL = [sys.executable, "-m", "stepwell.collectors.cli"]
FOREVER = ["collect", "CartPole-v1", "--workers", "1", "--steps", "100M", "--out", "a"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STEPWELL, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_bad_input_goes_to_stderr_with_exit_code_2() -> None:
    done = run("collect", "Pnog", "--steps", "9", "--out", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("stepwell: unknown env")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_an_env_prints_is_not_in_the_json(workers: str) -> None:
    Path("loud.py").write_text(
        "import gymnasium\n"
        "def make():\n"
        "    print('made an env')\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    command = "collect loud:make --num-envs 1 --steps 9 --out a --json --workers"
    done = run(*command.split(), workers)
    assert done.returncode == 0
    assert json.loads(done.stdout)["total_steps"] == 9
    assert "made an env" in done.stderr


@pytest.mark.proof
def test_a_bug_in_stepwell_shows_its_traceback() -> None:
    # What an EpisodeCounter that lost its list would do.
    code = (
        "import sys\n"
        "from stepwell.collectors.loop import step_loop\n"
        "from stepwell.collectors.cli import app\n"
        "step_loop.EpisodeCounter._end = lambda self, *ends: self._start(None, None)\n"
        "sys.exit(app.main(sys.argv[1:]))"
    )
    command = ["collect", "CartPole-v1", "--workers", "0", "--steps", "500", "--out", "a"]
    done = run_python("-c", code, *command, code=1)
    assert "Traceback (most recent call last)" in done.stderr
    assert "TypeError: 'NoneType' object is not iterable" in done.stderr


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_there_is_says_so_and_exits_with_its_code(number: int) -> None:
    process = subprocess.Popen(
        [*STEPWELL, *FOREVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(Path("a").glob("segment*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, number)  # to the workers too, as a terminal does
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (128 + number, "")
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    kept = re.fullmatch(
        rf"stepwell: interrupted{by}; kept: ([\d,]+) steps, [\d,]+ ended episodes, in a; "
        r"--resume goes on\n",
        err,
    )
    assert kept, err
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.steps == int(kept[1].replace(",", ""))


@pytest.mark.proof
def test_a_reader_that_stops_reading_is_no_error() -> None:
    with subprocess.Popen(
        [*STEPWELL, "envs", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.proof
@pytest.mark.parametrize("columns", [50, 80])
def test_in_a_terminal_no_line_is_wider_than_it(columns: int) -> None:
    arguments = "collect CartPole-v1 --workers 0 --steps 20k --out a".split()
    program = f"from stepwell.collectors.cli.app import main; raise SystemExit(main({arguments}))"
    shown = in_terminal(program, columns=columns)
    assert shown.code == 0
    lines = re.split(r"[\r\n]+", shown.raw)
    frames = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines]
    assert any("/ 20,000 steps" in frame and frame.endswith(" left") for frame in frames)
    assert any("digest" in frame for frame in frames)
    assert max(map(len, frames)) <= columns
