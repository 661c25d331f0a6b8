"""`stepwell info`, `stepwell envs`, the version and the help."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import stepwell as sw
from command_line import CommandLine
from stepwell.collectors.cli.catalogue import catalogue, nearest
from stepwell.collectors.cli.facts import facts_of
from stepwell.collectors.cli.info import histogram


@pytest.fixture
def stepwell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def test_info_tells_what_reading_every_episode_tells(stepwell: CommandLine) -> None:
    for seed in (7, 8):  # two runs: episodes of the first are cut
        stepwell(f"collect CartPole-v1 --workers 0 --steps 300 --out a --seed {seed} --resume")
    facts = facts_of(Path("a"))
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        episodes = list(replay.iter_episodes())
        whole = [one for one in episodes if one.terminated[-1] or one.truncated[-1]]
        assert facts.returns.tolist() == [one.total_reward for one in whole]
        assert facts.lengths.tolist() == [one.steps for one in whole]
        assert facts.terminated == sum(bool(one.terminated[-1]) for one in episodes)
        assert facts.cut == sum(bool(one.cut[-1]) for one in episodes) >= 8
        assert facts.steps == sum(one.steps for one in episodes) == replay.steps
    assert len(facts.sessions) == 2


def test_a_row_that_is_stored_twice_counts_once_in_the_return() -> None:
    # The end of a collect stores the newest rows without their action; they are stored again later.
    envs = gymnasium.make_vec("CartPole-v1", 2)
    with (
        sw.SequenceReplayBuffer("a") as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        returns = [one for _ in range(20) for one in collector.collect(steps=10).returns]
    assert sorted(facts_of(Path("a")).returns.tolist()) == sorted(returns) != []


def test_info_shows_fields_runs_episodes_and_sizes(stepwell: CommandLine) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 300 --out a --seed 7")
    text = stepwell("info a").out
    for part in (
        "CartPole-v1",
        "terminated",
        "mean",
        "on disk",
        "float32",
        "RandomPolicy",
        "made by",
    ):
        assert part in text
    assert "█" in text
    assert "digest" not in text


def test_the_digest_of_a_store_is_the_one_that_collect_told(stepwell: CommandLine) -> None:
    said = json.loads(
        stepwell("collect CartPole-v1 --workers 0 --steps 300 --out a --seed 7 --json").out
    )
    told = json.loads(stepwell("info a --json --digest").out)
    assert told["digest"] == said["digest"]
    assert told["total_steps"] == said["steps"]
    assert told["returns"]["mean"] == pytest.approx(np.mean(said["returns"]))


def test_info_reads_a_folder_that_cannot_be_written(stepwell: CommandLine) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 9 --out a")
    before = {path.name: path.stat().st_mtime_ns for path in Path("a").iterdir()}
    assert stepwell("info a").code == 0
    assert {path.name: path.stat().st_mtime_ns for path in Path("a").iterdir()} == before


@pytest.mark.parametrize(
    "numbers", [[3.0, 4.0, 9.0], [-21.0] * 9 + [-18.0], [0.5, 0.75, 1e6], [1.0, 2.0]]
)
def test_every_number_is_in_one_range_of_the_histogram(numbers: list[float]) -> None:
    lines = histogram("return", np.array(numbers), 60)[1:]
    assert sum(int(line.split()[-1]) for line in lines) == len(numbers)
    assert all(len(line) <= 60 for line in lines)


def test_equal_numbers_need_no_histogram() -> None:
    assert histogram("return", np.full(5, 2.0), 60) == []


def test_envs_finds_games_and_ids_by_part_of_their_name(stepwell: CommandLine) -> None:
    assert stepwell("envs ms_pac").out.split()[0] == "ALE/MsPacman-v5"
    assert stepwell("envs pong").out.split()[0] == "ALE/Pong-v5"
    assert "ALE/Pong-v5" in stepwell("envs").out.split()
    assert "CartPole-v1" in stepwell("envs cartpole").out.split()
    assert "PongNoFrameskip-v4" not in stepwell("envs").out.split()
    assert "PongNoFrameskip-v4" in stepwell("envs pong").out.split()


def test_envs_tells_scripts_what_is_missing_for_which_env(stepwell: CommandLine) -> None:
    told = json.loads(stepwell("envs --json").out)
    assert "ALE/Pong-v5" in told["atari"]
    assert "Ant-v2" in told["missing"]["gymnasium-robotics"]
    assert "Ant-v2" not in told["ready"]


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_what_is_called_ready_can_be_made() -> None:
    for name in catalogue().ready:
        gymnasium.make(name).close()


def test_of_several_versions_the_newest_is_suggested() -> None:
    for version in (9, 10):
        gymnasium.register(f"Quagmire-v{version}", entry_point="fakes:CounterEnv")
    try:
        assert nearest("quagmyre") == ["Quagmire-v10"]
    finally:
        for version in (9, 10):
            del gymnasium.registry[f"Quagmire-v{version}"]


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert nearest("zzzzzzzz") == []


def test_the_version_is_told(stepwell: CommandLine) -> None:
    assert stepwell("--version").out == f"stepwell {sw.__version__}\n"


@pytest.mark.parametrize("command", ["", "--help", "collect --help", "info --help", "envs -h"])
def test_help_is_no_error(stepwell: CommandLine, command: str) -> None:
    result = stepwell(command)
    assert (result.code, result.err) == (0, "")
    assert "stepwell" in result.out


def test_help_teaches_by_examples(stepwell: CommandLine) -> None:
    assert "stepwell collect Pong --steps 100_000 --out runs/pong" in stepwell("collect --help").out
