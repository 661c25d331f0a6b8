"""Stores of every kind of env are archived and restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import stepwell as sw
from demo_rom import write_demo
from support.archived import contents_of
from support.envs.nes_backends import needs_a_backend
from support.replayed import RandomBoxes


def atari(backend: Any, game: str = "Pong") -> Any:
    return sw.make_atari(game, 2, backend=backend, max_frames=200)


ENVS: dict[str, Callable[[], Any]] = {
    "CartPole": lambda: sw.make_vec("CartPole-v1", 3, num_workers=0),
    "FrozenLake": lambda: sw.make_vec("FrozenLake-v1", 2, num_workers=0),
    "Pendulum": lambda: sw.make_vec("Pendulum-v1", 2, num_workers=0),
    "a single env": lambda: gym.make("CartPole-v1"),
    "Pong, native": lambda: atari("native"),
    "Pong, python": lambda: atari("python"),
    "Breakout, native": lambda: atari("native", "Breakout"),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", ENVS)
def test_a_store_of_any_env_is_restored(tmp_path: Path, name: str) -> None:
    policy: Any = RandomBoxes() if name == "Pendulum" else sw.RandomPolicy()
    check_restored(tmp_path, ENVS[name](), policy, steps=400, calls=2)


@pytest.mark.proof
@needs_a_backend
def test_a_store_of_a_cartridge_is_restored_with_its_file(tmp_path: Path) -> None:
    rom, game = write_demo(tmp_path / "demo")
    envs = sw.make_nes(rom, 2, game=game)
    check_restored(tmp_path, envs, sw.RandomPolicy(), steps=200, rom=rom)
    with pytest.raises(ValueError, match="cartridge"):
        sw.restore(tmp_path / "a.swa", sw.SequenceReplayBuffer(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def check_restored(
    folder: Path, envs: Any, policy: Any, *, steps: int, calls: int = 1, **settings: Any
) -> None:
    with sw.SequenceReplayBuffer(folder / "a") as replay:
        with sw.Collector(envs, policy, replay, seed=3) as collector:
            for _ in range(calls):
                collector.collect(steps=steps)
        before = contents_of(replay)
    with sw.SequenceReplayBuffer.open(folder / "a", read_only=True) as replay:
        report = sw.archive(replay, folder / "a.swa", lanes=1, **settings)
    with sw.SequenceReplayBuffer(folder / "b") as again:
        sw.restore(folder / "a.swa", again, lanes=1, **settings)
        assert contents_of(again) == before
    assert report.archive_bytes < 2_500 + 100 * report.episodes + 12 * report.steps
