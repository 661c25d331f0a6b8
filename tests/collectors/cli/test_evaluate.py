"""`stepwell evaluate`: scores as in Python, output, videos, and bad input."""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import stepwell as sw
from demo_rom import write_demo
from stepwell.wrappers.nes import installed_backends
from support.command_line import CommandLine, Result

POLE = "evaluate CartPole-v1 --workers 0"
RANDOM = f"{POLE} --policy random"
PUSH = """
import numpy as np
def push(observation): return (observation[:, 2] + observation[:, 3] > 0).astype(np.int64)
def stop(observation): raise KeyboardInterrupt
"""


@pytest.fixture
def stepwell(stepwell: CommandLine) -> CommandLine:
    stepwell.write("pusher", PUSH)
    return stepwell


def scores(said: dict[str, Any]) -> list[float]:
    return [one["total_reward"] for one in said["episodes"]]


@pytest.mark.proof
def test_the_scores_are_those_of_python(stepwell: CommandLine) -> None:
    said = stepwell.json(f"{POLE} --policy random --episodes 12 --seed 3 --num-envs 5")
    found = sw.evaluate("CartPole-v1", "random", episodes=12, seed=3, num_envs=5)
    assert {name: said[name] for name in found.to_json()} == found.to_json()
    more = (said["env"], said["policy"], said["num_envs"], said["seed"], said["deterministic"])
    assert more == ("CartPole-v1", "random", 5, 3, False)
    default = stepwell.json(f"{POLE} --policy random")
    assert (len(scores(default)), default["num_envs"], default["seed"]) == (10, 8, 0)


def test_the_table_has_returns_lengths_and_an_interval(stepwell: CommandLine) -> None:
    result = stepwell(f"{POLE} --policy random --episodes 3")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].split() == ["episode", "seed", "return", "steps", "end"]
    assert len(lines) == 7
    assert re.fullmatch(
        r"3 episodes  \d+ steps  mean return [\d.]+, 95 % from -?[\d.]+ to [\d.]+", lines[4]
    )
    assert re.fullmatch(r"mean length [\d.]+  median [\d.]+  min \d+  max \d+", lines[6])
    one = stepwell(f"{POLE} --policy random --episodes 1").out.splitlines()
    assert re.fullmatch(r"mean length [\d.]+", one[-1])


@pytest.mark.proof
@pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="needs PyAV")
def test_a_video_is_written_and_changes_no_score(stepwell: CommandLine) -> None:
    command = f"{POLE} --policy pusher:push --seeds 3-5"
    said = stepwell.json(f"{command} --video films --video-episodes 0,2")
    assert sorted(path.name for path in Path("films").iterdir()) == [
        "episode-0.mp4",
        "episode-2.mp4",
    ]
    assert said["episodes"] == stepwell.json(command)["episodes"]
    shown = stepwell(f"{command} --video film.mp4").out.splitlines()
    assert "film.mp4" in shown
    assert Path("film.mp4").stat().st_size > 0
    games = ["Pong --policy random"]
    for backend in list(installed_backends())[:1]:
        write_demo(".")
        games.append(f"game.nes --game game --backend {backend} --policy mine:zeros")
        endless = "--episodes: |--max-frames and no --stuck-frames; give one of"
        stepwell.refused(f"evaluate game.nes --backend {backend} --policy mine:zeros", endless)
    for game in games:
        film = f"evaluate {game} --episodes 1 --max-frames 80 --quiet --video game.mp4"
        assert stepwell(film).code == 0
        assert Path("game.mp4").stat().st_size > 0
        Path("game.mp4").unlink()


def test_a_model_takes_its_best_actions_only_if_asked(stepwell: CommandLine) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    model.save("ppo.zip")
    command = f"{POLE} --policy sb3:ppo.zip --seeds 0-4"
    drawn, best = stepwell.json(command), stepwell.json(f"{command} --deterministic")
    assert (drawn["deterministic"], best["deterministic"]) == (False, True)
    policy = sw.bridges.sb3_policy(model, deterministic=True)
    expected = sw.evaluate("CartPole-v1", policy, seeds=range(5))
    assert scores(best) == list(expected.returns)
    assert scores(drawn) != scores(best)
    assert scores(stepwell.json(command)) == scores(drawn)
    assert scores(stepwell.json(f"{command} --seed 1")) != scores(drawn)


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("evaluate CartPole-v1", "'--policy'|stepwell evaluate --help"),
        (f"{RANDOM} --episodes 3 --seeds 3", "--episodes or --seeds|got both"),
        (f"{RANDOM} --episodes 0", "--episodes: |>= 1|got '0'"),
        (f"{RANDOM} --seeds x", "--seeds: |got 'x'"),
        (f"{RANDOM} --seeds 0-99999999999", "--seeds: |1,000,000|100,000,000,000"),
        (f"{RANDOM} --seeds 2147483648", "seeds: |2147483647|got 2147483648"),
        (f"{RANDOM} --deterministic", "--deterministic: |sb3:|got 'random'"),
        (f"{RANDOM} --video-episodes 1", "--video-episodes: |--video DIR"),
        (f"{RANDOM} --workers 2 --video a", "--video: |--workers 0|got 2"),
        (f"{RANDOM} --video notes.txt --seeds 3", "video: |.mp4|notes.txt"),
        (f"{RANDOM} --sticky 0.5", "--sticky |Atari and NES games|CartPole-v1"),
        (f"{POLE} --policy mine:fails", "mine.py:|IndexError: list index out of range"),
        ("evaluate Pong --policy random --life-loss end --workers 0", "whole games|lost lives"),
    ],
    ids=lambda text: str(text)[:60],
)
def test_bad_input_is_one_sentence(stepwell: CommandLine, command: str, parts: str) -> None:
    Path("notes.txt").write_text("mine")
    stepwell.refused(command, parts)


def test_an_interrupt_ends_it_with_its_own_code(stepwell: CommandLine) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupted = Result(130, "", "stepwell: interrupted\n")
    assert stepwell(f"{POLE} --policy pusher:stop") == interrupted
