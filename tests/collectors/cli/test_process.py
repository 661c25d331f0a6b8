"""The command as the shell sees it: exit codes, streams, signals."""

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
from support.actor_hosts import descendants, left_of
from support.programs import run_python

STEPWELL = [sys.executable, "-m", "stepwell.collectors.cli"]


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
        "    env = gymnasium.make('CartPole-v1')\n"
        "    return gymnasium.wrappers.TransformReward(env, lambda reward: float('nan'))\n"
    )
    command = "collect loud:make --num-envs 1 --episodes 1 --out a --json --workers"
    done = run(*command.split(), workers)
    assert done.returncode == 0
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert found["returns"] == ["nan"]
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


def stored_steps() -> int:
    if not Path("a/manifest.json").exists():
        return 0
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        return replay.steps


@pytest.mark.proof
@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGINT, "--workers 1"),
        (signal.SIGTERM, "--workers 1"),
        (signal.SIGHUP, "--workers 1"),
        (signal.SIGINT, "--processes 2"),
    ],
)
def test_a_signal_keeps_what_there_is_and_ends_all_processes(number: int, where: str) -> None:
    command = f"collect CartPole-v1 {where} --steps 100M --out a".split()
    process = subprocess.Popen(
        [*STEPWELL, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not stored_steps():
        assert process.poll() is None
        time.sleep(0.05)
    others = descendants(process.pid)
    if "--workers" in where:
        os.killpg(process.pid, number)  # to the workers too, as a terminal does
    else:
        process.send_signal(number)
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
    assert stored_steps() == int(kept[1].replace(",", "")) > 0
    assert others
    assert left_of(others) == []


@pytest.mark.proof
def test_a_reader_that_stops_reading_is_no_error() -> None:
    with subprocess.Popen(
        [*STEPWELL, "envs", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
