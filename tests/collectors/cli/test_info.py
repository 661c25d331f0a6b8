"""`stepwell info`: what it shows of a store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stepwell as sw
from stepwell.buffers import Chunk, End
from stepwell.buffers.view.summary import describe_recipe, describe_size, summary_of
from stepwell.collectors.cli.info import bars
from stepwell.collectors.loop.report import format_bytes
from support.command_line import CommandLine, has_parts
from support.forged.stores import forge_manifest


def test_a_row_that_is_stored_twice_counts_once_in_the_return() -> None:
    # The end of a collect stores the newest rows without their action; they are stored again later.
    envs = gymnasium.make_vec("CartPole-v1", 2)
    with (
        sw.SequenceReplayBuffer("a") as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        returns = [one for _ in range(20) for one in collector.collect(steps=10).returns]
    assert sorted(summary_of(Path("a")).returns.tolist()) == sorted(returns) != []


def test_info_says_why_no_seed_leads_to_an_episode(stepwell: CommandLine) -> None:
    spec = sw.Spec.from_spaces(spaces.Box(0, 1, (1,)), spaces.Discrete(2))
    columns = {f.name: np.zeros((5, *f.shape), f.dtype) for f in spec.fields}
    # Of three streams: begun without a seed; one that is missing in between; nothing missing.
    known = [(0, 3, None), (0, 4, None), (1, 0, 5), (1, 7, None), (2, 0, 5), (2, 1, None)]
    with sw.SequenceReplayBuffer("a") as replay:
        replay.bind(spec, {"num_envs": 3})
        for episode, (stream, number, seed) in enumerate(known):
            facts = {"session": 0, "stream_episode": number, "seed": seed}
            if seed is None:
                del facts["seed"]
            replay.add([Chunk(episode, stream, 0, End.TERMINATED, columns, facts)])
    counts = stepwell.json("info a --provenance")["provenance"]
    reasons = counts.pop("reasons")
    assert counts == {"seeded": 2, "following": 1, "unreachable": 3}
    assert sorted(reasons.values()) == [1, 2]
    assert not any(any(map(str.isdigit, why)) for why in reasons)
    text = stepwell("info a --provenance").out
    (line,) = (line for line in text.splitlines() if line.startswith("seeds"))
    assert re.findall(r"\d+", line)[:2] == ["2", "1"]


def test_info_shows_fields_runs_episodes_and_sizes(stepwell: CommandLine) -> None:
    collected = stepwell.json("collect CartPole-v1 --workers 0 --steps 300 --out a --seed 7")
    disk = sum(path.stat().st_size for path in Path("a").iterdir())
    report = stepwell.json("info a --digest")
    assert report["disk_bytes"] == disk > report["raw_bytes"]
    assert report["compression"] == report["raw_bytes"] / disk
    assert (report["digest"], report["total_steps"]) == (collected["digest"], collected["steps"])
    assert report["returns"]["mean"] == pytest.approx(np.mean(collected["returns"]))
    text = stepwell("info a").out
    ratio = f"{disk / report['raw_bytes']:.3g}x larger"
    for part in ("terminated", "mean", "float32", "RandomPolicy", "made by", "█", ratio):
        assert part in text
    assert f"{format_bytes(disk)} on disk" in text
    assert "digest" not in text

    def forge(body: dict[str, Any]) -> None:
        body["sessions"][0]["policy"] = "\x1b[2J[/]"
        body["sessions"][0]["recipe"]["id"] = "[bold]\x9b"

    forge_manifest(Path("a"), forge)
    text = stepwell("info a").out
    assert "\\x1b[2J[/]" in text
    assert "[bold]\\x9b" in text
    assert not {"\x1b", "\x9b"} & set(text)


def test_a_ratio_is_written_without_an_exponent() -> None:
    assert describe_size(75_400, 32)[-1].startswith("2,356x larger")
    assert describe_size(10_000_000, 12_345_678_901)[-1] == "1,235x smaller"
    assert describe_size(1000, 1000) == ["1.0 kB on disk", "raw 1.0 kB"]
    assert describe_size(1000, 0) == ["1.0 kB on disk", "raw 0 B"]


def test_a_recipe_is_described_without_internal_details() -> None:
    cartridge = {"name": "game.nes", "sha256": "ab" * 32, "mapper": 0, "header": "iNES"}
    recipe = {
        "maker": "make_nes",
        "backend": "cynes",
        "cartridge": cartridge,
        "game": {"name": "unknown", "vars": {}},
        "actions": [f"A{number}" for number in range(36)],
        "is_multibinary": False,
        "boot": ["A 1", "B 1"],
        "start": ["12" * 32, "34" * 32],
        "sticky": 0.25,
        "max_frames": None,
        "size": [84, 84],
        "versions": {"cynes": "0.1.2"},
    }
    assert describe_recipe(recipe) == (
        "game.nes, sha256 abababababab, backend=cynes, actions=A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 "
        "A11 ..., boot=['A 1', 'B 1'], start=121212121212 343434343434, sticky=0.25, 84x84"
    )
    assert describe_recipe({"cartridge": cartridge}) == "game.nes, sha256 abababababab"
    assert describe_recipe({}) == "unknown"


def test_rows_of_no_env_have_a_source(stepwell: CommandLine) -> None:
    rows = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    seen = np.zeros(2, np.float32)
    with sw.SequenceReplayBuffer("own") as replay, replay.writer(rows) as writer:
        writer.add(seen, 1, 1.0, seen, False, True)
    shown = stepwell("info own").out
    assert has_parts(shown, "env |not known|SequenceReplayBuffer.writer")
    assert shown.splitlines()[-1].rstrip().endswith("SequenceReplayBuffer.writer")  # the run
    # The env of a later run is shown in place of that.
    with sw.SequenceReplayBuffer("own") as replay:
        replay.bind(replay.spec, {"recipe": {"id": "Arm-v0"}})
    assert has_parts(stepwell("info own").out, "env |Arm-v0")


@pytest.mark.parametrize("odd", [[], [np.nan], [np.inf, -np.inf], [np.nan, np.inf]])
@pytest.mark.parametrize("finite", [[], [2.0] * 5, [1.0, 2.0], [-21.0] * 9 + [-18.0], [0.5, 1e6]])
def test_a_histogram_counts_each_number_once(odd: list[float], finite: list[float]) -> None:
    lines = bars("return", np.array(odd + finite), 60)
    if len(odd + finite) < 2 or (not odd and len({*finite}) < 2):
        assert lines == []
        return
    assert (str(len(odd)) in lines[0]) == bool(odd)
    assert sum(int(line.split()[-1]) for line in lines[1:]) == len(finite)
    assert all(len(line) <= 60 for line in lines)
