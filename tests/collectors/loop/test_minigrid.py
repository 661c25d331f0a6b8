"""Minigrid's and BabyAI's missions are stored, looked at, archived and played again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import stepwell as sw
from stepwell.collectors.cli.app import app

pytest.importorskip("minigrid", reason="needs minigrid: pip install minigrid")
ID = "minigrid:BabyAI-GoToRedBall-v0"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.proof
def test_a_store_of_missions_goes_through_every_command(tmp_path: Path) -> None:
    store, archive, again = tmp_path / "store", tmp_path / "x.swa", tmp_path / "again"
    collected = run(
        *("collect", ID, "--num-envs", "2", "--steps", "150", "--seed", "1"),
        *("--workers", "0", "--out", str(store)),
    )
    assert collected.exit_code == 0, collected.output
    for words in (
        ["info", str(store)],
        ["verify", str(store)],
        ["verify", "--replay", str(store), "--env", ID],
        ["report", str(store), "-o", str(tmp_path / "report.html")],
        ["filter", str(store), "--ended", "--out", str(tmp_path / "ended")],
        ["archive", str(store), "-o", str(archive), "--env", ID],
        ["restore", str(archive), "--out", str(again), "--env", ID],
    ):
        done = run(*words)
        assert done.exit_code == 0, (words, done.output)
    with sw.SequenceReplayBuffer.open(again, read_only=True) as replay:
        for episode in replay.iter_episodes():
            missions = replay.decode("observation/mission", episode.observation["mission"])
            assert set(missions) <= {"go to the red ball", "go to a red ball"}
