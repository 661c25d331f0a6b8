"""`stepwell collect --processes N --groups G`: the data of one process, from several."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import Spec
from support.actor_hosts import descendants, left_of
from support.command_line import CommandLine, has_parts

POLE = "collect CartPole-v1 --num-envs 2 --steps 240 --seed 7"


@pytest.fixture(autouse=True)
def path_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """The modules of tests are found in other processes, too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def rows_by_env(path: str) -> list[bytes]:
    """The rows of each env, from the first one on; the envs of merged stores in their order."""
    found: dict[tuple[object, int], bytes] = {}
    with sw.SequenceReplayBuffer.open(path, read_only=True) as replay:
        for episode in replay.iter_episodes():
            key = (episode.metadata["session"], episode.stream)
            rows = [np.ascontiguousarray(rows).tobytes() for rows in episode.fields.values()]
            found[key] = found.get(key, b"") + b"".join(rows) + bytes([int(episode.end)])
    return [found[key] for key in sorted(found, key=str)]


@pytest.mark.proof
def test_any_number_of_processes_gives_the_data_of_merged_shards(stepwell: CommandLine) -> None:
    said = [
        stepwell.json(f"{POLE} --groups 3 --processes {processes} --out p{processes}")
        for processes in (1, 3)
    ]
    assert said[0]["digest"] == said[1]["digest"]
    assert [one["actors"] for one in said] == [1, 3]
    assert [group["group"] for group in said[0]["groups"]] == [0, 1, 2]
    assert (said[0]["num_envs"], said[0]["deaths"], said[0]["restarts"]) == (2, 0, 0)
    assert (said[0]["session"]["num_envs"], said[0]["session"]["groups"]) == (6, 3)
    for part in (1, 2, 3):
        few = POLE.replace("240", "80")
        assert stepwell(f"{few} --workers 0 --shard {part}/3 --out s{part} -q").code == 0
    assert rows_by_env("p1") == [rows for part in (1, 2, 3) for rows in rows_by_env(f"s{part}")]
    proof = stepwell("verify p3 --replay")
    assert (proof.code, "episodes proved" in proof.out) == (0, True)


@pytest.mark.proof
def test_a_store_goes_on_with_its_groups(stepwell: CommandLine) -> None:
    first = stepwell(f"{POLE} --groups 2 --out a")  # in one process
    assert has_parts(first.out, "2 groups|1 process")
    assert stepwell(f"{POLE} --processes 2 --out b").code == 0
    again = stepwell.json("collect CartPole-v1 --steps 60 --resume --processes 2 --out a")
    assert (len(again["groups"]), again["actors"], again["num_envs"]) == (2, 2, 2)
    assert again["seed"] == 7
    same = stepwell.json("collect CartPole-v1 --steps 60 --resume --out b")
    assert (len(same["groups"]), same["actors"]) == (2, 1)
    assert same["digest"] == again["digest"]
    for more, parts in (
        ("--processes 3", "--processes 3: |2 groups of a"),
        ("--workers 2", "--workers 2: |groups of a"),
    ):
        result = stepwell(f"collect CartPole-v1 --steps 60 --resume {more} --out a")
        assert (result.code, has_parts(result.err, parts)) == (2, True), result.err
    other = stepwell.json("collect CartPole-v1 --steps 60 --resume --groups 1 --out a")
    assert len(other["groups"]) == 1


@pytest.mark.proof
def test_one_group_is_the_data_without_groups(stepwell: CommandLine) -> None:
    one = stepwell.json(f"{POLE} --processes 1 --out a")
    none = stepwell.json(f"{POLE} --workers 0 --out b")
    zero = stepwell.json(f"{POLE} --workers 0 --processes 0 --out c")
    assert one["digest"] == none["digest"] == zero["digest"]
    assert "groups" not in zero


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--processes 2 --workers 1", "--workers 1: |none|--processes"),
        ("--groups 2 --workers 3", "--workers 3: |none|--groups"),
        ("--groups 2 --processes 3", "--processes 3: |2 groups of --groups|--groups"),
        ("--groups 0", "--groups: |>= 1|'0'"),
        ("--processes -1", "--processes: |>= 0|'-1'"),
        ("--groups 9_000 --shard 1/2", "groups|10,000|18000"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: str, parts: str, stepwell: CommandLine
) -> None:
    result = stepwell(f"{POLE} {options} --out new")
    assert (result.code, has_parts(result.err, parts)) == (2, True), result.err
    assert not Path("new").exists()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ("mine:unmade", "mine.py:|raised NameError: |undefined|--debug"),
        ("Pong --mode 77", "mode: |got 77"),
        ("ends:end", "group 0|max_restarts=3|exit code 4"),
    ],
)
def test_an_error_in_a_process_is_told_as_here(env: str, parts: str, stepwell: CommandLine) -> None:
    stepwell.write("ends", "import os\ndef end(): os._exit(4)\n")
    result = stepwell(f"collect {env} --processes 1 --steps 40 --out new")
    assert (result.code, has_parts(result.err, parts)) == (2, True), result.err
    assert "Traceback" not in result.err
    assert not Path("new").exists()


def test_facts_about_groups_that_are_none_are_refused(stepwell: CommandLine) -> None:
    spec = Spec.from_spaces(
        sw.make_vec("CartPole-v1", 1, num_workers=0).single_observation_space,
        sw.make_vec("CartPole-v1", 1, num_workers=0).single_action_space,
    )
    for number, groups in enumerate(["two", -1, 1.5, None]):
        with sw.SequenceReplayBuffer(f"s{number}") as replay:
            replay.bind(spec, {"seed": "1", "num_envs": 4, "groups": groups})
        result = stepwell(f"collect CartPole-v1 --steps 9 --resume --out s{number}")
        assert (result.code, has_parts(result.err, f"s{number}|{groups!r}")) == (2, True)


@pytest.mark.proof
def test_options_of_the_run_reach_the_processes(stepwell: CommandLine) -> None:
    said = stepwell.json(
        "collect Pong --processes 2 --num-envs 1 --steps 60 --frame-stack 2 --size 20 --out a "
        "--info lives --metadata task=door --policy mine:Agent --capacity 40 --seed 3"
    )
    assert said["session"]["recipe"]["frame_stack"] == 2
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.capacity == 40
        batch = replay.sample_sequences(2, 3)
        assert batch.observation.shape == (2, 3, 20, 20)
        assert (set(batch.info), set(batch.extras)) == ({"lives"}, {"calls"})
        episodes = list(replay.iter_episodes())
        assert {episode.metadata["task"] for episode in episodes} == {"door"}
    native = "collect Pong --backend native --num-envs 2 --steps 80 --seed 3 --size 20 --groups 2"
    digests = {stepwell.json(f"{native} --processes {n} --out n{n}")["digest"] for n in (1, 2)}
    assert len(digests) == 1


@pytest.mark.proof
def test_a_shard_with_groups_is_a_part_of_its_own(stepwell: CommandLine) -> None:
    for part in (1, 2):
        said = stepwell.json(f"{POLE} --groups 2 --shard {part}/2 --out s{part}")
        assert said["session"]["shard"] == [part, 2]
    assert stepwell("merge s1 s2 --out all").code == 0
    with sw.SequenceReplayBuffer.open("all", read_only=True) as replay:
        seeds = [episode.metadata["seed"] for episode in replay.iter_episodes()]
    found = [seed for seed in seeds if seed is not None]
    assert len(found) == len(set(found)) > 4


def stored_steps(folder: str) -> int:
    with sw.SequenceReplayBuffer.open(folder, read_only=True) as replay:
        return replay.steps


def actor_parts(pid: int) -> list[int]:
    """The keepers and hosts of a run's actors."""
    found = list[int]()
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            if b"run_keeper" in Path(f"/proc/{one}/cmdline").read_bytes():
                found.append(one)
    return found


@pytest.mark.proof
def test_a_killed_process_is_told_and_changes_nothing(stepwell: CommandLine) -> None:
    stepwell.write(
        "slow",
        "import time, gymnasium as gym\n"
        "class Slow(gym.Wrapper):\n"
        "    def step(self, action):\n"
        "        time.sleep(0.002)\n"
        "        return super().step(action)\n"
        "def make(): return Slow(gym.make('CartPole-v1'))\n",
    )
    command = "collect slow:make --num-envs 2 --steps 2000 --seed 7 --processes 2"
    quiet = stepwell.json(f"{command} --out a")
    # A process of its own: no browser of another test descends from it, and keepers and hosts of
    # actors are told from what else it starts by their command.
    arguments = [sys.executable, "-m", "stepwell.collectors.cli", *f"{command} --out b".split()]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        while len(parts := actor_parts(process.pid)) < 4:
            assert process.poll() is None
            time.sleep(0.02)
        victim = next(pid for pid in parts if not descendants(pid))
        os.kill(victim, signal.SIGKILL)
        assert process.stdout is not None
        out = process.stdout.read()
    assert (process.returncode, has_parts(out, "2 processes|1 died")) == (0, True), (victim, out)
    assert f"digest {quiet['digest']}" in out


@pytest.mark.proof
def test_ctrl_c_keeps_what_came_in_and_ends_all_processes() -> None:
    command = [sys.executable, "-m", "stepwell.collectors.cli", "collect", "CartPole-v1"]
    options = "--steps 10M --processes 2 --seed 0 --out a".split()
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        while not (Path("a") / "manifest.json").exists() or stored_steps("a") == 0:
            assert process.poll() is None
            time.sleep(0.05)
        pids = actor_parts(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == 130
    kept = re.fullmatch(
        r"stepwell: interrupted; kept: ([\d,]+) steps, [\d,]+ ended episodes, in a; "
        r"--resume goes on\n",
        err,
    )
    assert kept, err
    assert len(pids) == 4
    assert left_of(pids) == []
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert replay.steps == int(kept[1].replace(",", "")) > 0


@pytest.mark.proof
def test_help_and_a_config_file_know_the_options(stepwell: CommandLine) -> None:
    text = stepwell("collect --help").out
    assert has_parts(" ".join(text.split()), "--num-envs|group|--processes|--groups|--workers")
    given = f"{POLE} --groups 2 --processes 2 --out a"
    config = stepwell(f"{given} --print-config").out
    assert has_parts(config.replace("\n", " "), "processes = 2|groups = 2")
    Path("run.toml").write_text(config)
    assert len(json.loads(stepwell("collect --config run.toml --json").out)["groups"]) == 2
