"""`stepwell info`, `stepwell envs`, the version and the help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stepwell as sw
from stepwell.buffers import Chunk, End
from stepwell.collectors.cli.catalogue import catalogue, nearest
from stepwell.collectors.cli.facts import facts_of, size_in_words
from stepwell.collectors.cli.info import histogram
from stepwell.collectors.report import format_bytes
from support.command_line import CommandLine
from support.forged.stores import forge_manifest


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


def size_line(text: str) -> list[str]:
    """The parts of what `info` says about a store's size."""
    (line,) = (line for line in text.splitlines() if line.startswith("size"))
    return [part.strip() for part in line.removeprefix("size").split(",")]


def test_info_shows_what_a_store_tells_as_plain_text(stepwell: CommandLine) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 100 --out a --seed 7")

    def forge(body: dict[str, Any]) -> None:
        body["sessions"][0]["policy"] = "\x1b[2J[/]"
        body["sessions"][0]["recipe"]["id"] = "[bold]\x9b"

    forge_manifest(Path("a"), forge)
    text = stepwell("info a").out
    assert "\\x1b[2J[/]" in text
    assert "[bold]\\x9b" in text
    assert not {"\x1b", "\x9b"} & set(text)


def test_the_size_of_a_store_is_that_of_its_files(stepwell: CommandLine) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 300 --out a --seed 7")
    disk = sum(path.stat().st_size for path in Path("a").iterdir())
    told = json.loads(stepwell("info a --json").out)
    assert told["disk_bytes"] == disk > told["raw_bytes"]
    assert told["compression"] == told["raw_bytes"] / disk
    on_disk, _, _, ratio = size_line(stepwell("info a").out)
    assert on_disk == f"{format_bytes(disk)} on disk"
    assert ratio.startswith(f"{disk / told['raw_bytes']:.3g}x larger")


def test_a_ratio_is_written_without_an_exponent() -> None:
    assert size_in_words(75_400, 32)[-1].startswith("2,356x larger")
    assert size_in_words(10_000_000, 12_345_678_901)[-1] == "1,235x smaller"
    assert size_in_words(1000, 1000) == ["1.0 kB on disk", "raw 1.0 kB"]
    assert size_in_words(1000, 0) == ["1.0 kB on disk", "raw 0 B"]


def test_a_store_that_is_smaller_than_its_rows_says_by_how_much(stepwell: CommandLine) -> None:
    with sw.SequenceReplayBuffer("a") as replay:
        spec = sw.Spec.from_spaces(spaces.Box(0, 255, (210, 160), np.uint8), spaces.Discrete(2))
        replay.bind(spec, {"num_envs": 1})
        columns = {f.name: np.zeros((200, *f.shape), f.dtype) for f in spec.fields}
        replay.add([Chunk(0, 0, 0, End.TERMINATED, columns)])
    disk = sum(path.stat().st_size for path in Path("a").iterdir())
    raw = 200 * (210 * 160 + 16)
    assert size_line(stepwell("info a").out)[::3] == [
        f"{format_bytes(disk)} on disk",
        f"{raw / disk:.3g}x smaller",
    ]


@pytest.mark.parametrize("command", ["copy a --out b", "collect CartPole-v1 --steps 9 --out b"])
def test_what_a_command_wrote_is_told_by_the_size_of_the_files(
    stepwell: CommandLine, command: str
) -> None:
    stepwell("collect CartPole-v1 --workers 0 --steps 300 --out a --seed 7")
    text = stepwell(command).out
    disk = sum(path.stat().st_size for path in Path("b").iterdir())
    assert f"{format_bytes(disk)} on disk" in text
    assert "x larger: " in text
    assert "x smaller" not in text


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
        gymnasium.register(f"Quagmire-v{version}", entry_point="support.envs.fakes:CounterEnv")
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
