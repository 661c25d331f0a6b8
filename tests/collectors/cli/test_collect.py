"""`stepwell collect`: stored rows, output, and `--resume`."""

from __future__ import annotations

import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import Spec
from stepwell.buffers.replay.writer import ReplayWriter
from stepwell.buffers.storage.chunk_index import ChunkIndex
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.storage.disk.writer import SegmentWriter
from stepwell.collectors.cli.collect import parse_info
from stepwell.collectors.cli.make_envs import make_envs
from support.command_line import CommandLine, Result, has_parts

CARTPOLE = "collect CartPole-v1 --num-envs 4 --workers 0 --steps 200"


def test_the_seed_that_was_drawn_makes_the_same_data(stepwell: CommandLine) -> None:
    drawn = stepwell.json(f"{CARTPOLE} --out runs/a")
    assert (drawn["num_envs"], drawn["env"], drawn["path"]) == (4, "CartPole-v1", "runs/a")
    assert drawn["episodes"] == len(drawn["returns"]) > 0
    with sw.SequenceReplayBuffer.open("runs/a", read_only=True) as replay:
        assert 200 <= replay.steps == drawn["steps"] < 204
    again = stepwell(f"{CARTPOLE} --out b --seed {drawn['seed']}")  # no terminal: no progress
    assert (again.code, again.err) == (0, "")
    first, second = again.out.splitlines()
    assert re.match(f"{drawn['steps']} steps  .* env ", first)
    assert f"  in b  digest {drawn['digest']}" in second
    assert second.endswith(f"  seed {drawn['seed']}")
    other = stepwell.json(f"{CARTPOLE} --out c --seed {drawn['seed'] + 1}")
    assert other["digest"] != drawn["digest"]
    assert stepwell(f"{CARTPOLE} --out d --quiet") == Result(0, "", "")


def test_resume_goes_on_with_ids_seeds_and_number_of_envs(stepwell: CommandLine) -> None:
    first = stepwell.json(f"{CARTPOLE} --out a --seed 7")
    resumed = "collect CartPole-v1 --workers 0 --steps 100 --out a --resume"
    second = stepwell.json(resumed)
    assert (second["num_envs"], second["seed"]) == (4, 7)
    assert second["total_steps"] == first["steps"] + second["steps"]
    assert second["digest"] != first["digest"]
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        episodes = list(replay.iter_episodes())
        assert len({episode.id for episode in episodes}) == len(episodes)
        begins = [tuple(np.asarray(episode.observation)[0]) for episode in episodes]
        seeds = [episode.metadata["seed"] for episode in episodes]
        assert len(set(begins)) == len(set(seeds)) == len(episodes) > 8
        assert [session["seed"] for session in replay.sessions] == ["7", "7"]


def test_policy_and_env_of_the_current_folder_are_used(stepwell: CommandLine) -> None:
    # An id without a version means the newest.
    pole = "collect CartPole --workers 0 --steps 40 --capacity 5k --out a --policy mine:Agent"
    session = stepwell.json(pole)["session"]
    assert (session["policy"], session["recipe"]["id"]) == ("mine.Agent", "CartPole-v1")
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        episode = next(replay.iter_episodes())
        assert episode.fields["extra/calls"][:3].tolist() == [1, 2, 3]
        assert not np.any(episode.fields["action"])
        assert getattr(replay.storage, "capacity", None) == 5000
    said = stepwell.json("collect mine:counter --workers 0 --steps 40 --out b")
    assert set(said["lengths"]) == {5}


@pytest.mark.proof
@pytest.mark.parametrize("name", ["Pong", "ALE/Pong-v5"])
def test_a_game_is_made_with_the_given_options(stepwell: CommandLine, name: str) -> None:
    knobs = "--size 42x36 --frame-stack 2 --frame-skip 3 --sticky 0 --rgb --noop-max 0 --pool none"
    said = stepwell.json(f"collect {name} --num-envs 1 --steps 3 --out a {knobs}")
    recipe = said["session"]["recipe"]
    assert (recipe["game"], recipe["backend"]) == ("pong", "python")
    assert (recipe["size"], recipe["frame_stack"], recipe["frame_skip"]) == ([42, 36], 2, 3)
    assert (recipe["grayscale"], recipe["sticky"], recipe["pool"]) == (False, 0.0, "none")
    assert said["frames"] == 9


def test_a_failure_after_the_first_steps_keeps_them_and_says_so(stepwell: CommandLine) -> None:
    result = stepwell(f"{CARTPOLE} --out a --policy mine:Tired")
    assert result.code == 2
    assert "mine.py:" in result.err
    assert "raised KeyError: 'tired'" in result.err
    assert "kept: 7" in result.err
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert 70 <= replay.steps < 80


def test_a_failure_before_the_first_step_leaves_no_store(stepwell: CommandLine) -> None:
    Path("there").mkdir()
    Path("link").symlink_to("there")
    Path("link2").symlink_to("link")
    for out in ("a", "there", "link", "link2"):
        command = f"collect mine:crash_at_once --workers 0 --steps 9 --out {out}"
        stepwell.refused(command, "raised ZeroDivisionError: planted at step 1")
        assert "kept" not in stepwell(command).err
        assert (Path("link").readlink(), Path("link2").readlink()) == (Path("there"), Path("link"))
    stepwell.refused(
        "collect mine:crash_at_once --num-envs 1 --workers 1 --steps 9 --out a",
        "env 0: |fakes.py:| raised ZeroDivisionError: planted at step 1",
    )
    assert stepwell.json(f"{CARTPOLE} --out link2")["steps"] >= 200
    assert DiskStorage.exists("there")


@pytest.mark.parametrize("is_done", [False, True])
def test_of_two_commands_started_at_once_the_second_names_the_writer(
    is_done: bool, stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[sw.SequenceReplayBuffer] = []

    def making(*arguments: Any) -> Any:
        # While this one makes its envs, another one has got so far as to make its store.
        envs = make_envs(*arguments)
        other = sw.SequenceReplayBuffer("a")
        other.bind(Spec.from_spaces(envs.single_observation_space, envs.single_action_space), {})
        others.append(other)
        if is_done:
            other.close()
        return envs

    monkeypatch.setattr("stepwell.collectors.cli.collect.make_envs", making)
    result = stepwell(f"{CARTPOLE} --out a")
    others[0].close()
    assert (result.code, result.out) == (2, "")
    assert "DiskStorage" not in result.err
    if is_done:
        assert has_parts(result.err, "stepwell: a holds a store|--resume"), result.err
    else:
        assert f"a is being written by pid {os.getpid()} on " in result.err
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert (len(replay.sessions), len(replay)) == (1, 0)


# --- Ctrl-C, pressed more than once


def on_disk(path: str = "a") -> str:
    """The note of what is kept, from what a reader finds."""
    with sw.SequenceReplayBuffer.open(path, read_only=True) as replay:
        ended = sum(not episode.cut[-1] for episode in replay.iter_episodes())
        return f"kept: {len(replay):,} steps, {ended:,} ended episodes, in {path}"


@pytest.mark.parametrize("more", range(4))
@pytest.mark.parametrize("place", [(SegmentWriter, "commit"), (ChunkIndex, "append")])
def test_ctrl_c_twice_in_the_midst_of_a_write_reports_what_is_stored(
    place: tuple[type, str], more: int, stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, flush, calls = getattr(*place), ReplayWriter.flush, [0]

    def press(count: int) -> None:
        for _ in range(count):
            signal.raise_signal(signal.SIGINT)

    def written(*arguments: Any) -> Any:
        calls[0] += 1
        # The one chunk is on the disk by now; in the table it is not, or only just.
        if calls[0] == 1 and place[1] == "append":
            press(2)
        result = real(*arguments)
        if calls[0] == 1:
            press(2)
        return result

    def rescued(self: ReplayWriter) -> None:
        nonlocal more
        if calls[0] and more:
            more -= 1
            press(1)
        flush(self)

    monkeypatch.setattr(*place, written)
    monkeypatch.setattr(ReplayWriter, "flush", rescued)
    result = stepwell(f"{CARTPOLE} --out a --seed 1")
    assert (result.code, result.out) == (130, "")
    assert result.err == f"stepwell: interrupted; {on_disk()}; --resume goes on\n"
    assert "kept: 0 steps" not in result.err
    assert stepwell(f"{CARTPOLE} --out a --resume").code == 0


# --- fields of info


def test_an_info_field_has_a_value_for_not_there() -> None:
    assert parse_info("--info", "lives") == ("lives", None)
    assert parse_info("--info", "lives=-1") == ("lives", -1)
    assert parse_info("--info", "won=False") == ("won", False)
    assert math.isnan(float(parse_info("--info", "speed=nan")[1] or 0))


@pytest.mark.parametrize("text", ["", "=3", "lives=many", "lives="])
def test_an_info_field_without_name_or_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^--info: .*lives=-1.*got '{text}'"):
        parse_info("--info", text)


def test_a_shard_is_continued_and_no_other_one(stepwell: CommandLine) -> None:
    assert stepwell(f"{CARTPOLE} --out a --seed 7 --shard 2/3").code == 0
    for wrong in ("1/3", "2/4", "1/1"):
        stepwell.refused(
            f"{CARTPOLE} --out a --resume --shard {wrong}", f"--shard {wrong}|shard 2/3"
        )
    assert stepwell(f"{CARTPOLE} --out a --resume --shard 2/3").code == 0
    assert stepwell(f"{CARTPOLE} --out b --seed 7").code == 0
    stepwell.refused(f"{CARTPOLE} --out b --resume --shard 2/3", "no shard")
    assert stepwell("merge a b --out both").code == 0
    said = stepwell.json(f"{CARTPOLE} --out both --resume")
    assert "shard" not in said["session"]


@pytest.mark.parametrize("where", ["--workers 0", "--workers 2", "--processes 1"])
def test_exceptions_of_envs_are_tolerated_if_asked(stepwell: CommandLine, where: str) -> None:
    stepwell.write("flaky", "from support.envs.fakes import FlakyEnv as make")
    command = f"collect flaky:make --num-envs 2 {where} --steps 300 --seed 1"
    said = stepwell.json(f"{command} --out a --tolerate 99")
    assert said["restarts"] > said["cut"] > 2
    assert said["steps"] >= 300
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert sum(one.steps < 9 for one in replay.iter_episodes()) >= said["cut"]
    few = stepwell(f"{command} --out b --tolerate 2")
    assert few.code == 2
    assert has_parts(few.err, "fakes.py:| raised Lost: simulator|kept: ")
    assert f"  {said['restarts']} restarted" in stepwell(f"{command} --out c --tolerate 99").out
