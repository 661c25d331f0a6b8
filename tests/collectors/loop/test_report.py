"""`CollectReport`: its text and its JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from stepwell.collectors import CollectReport
from stepwell.collectors.loop.report import format_bytes

REPORT = CollectReport(
    steps=1000,
    frames=4000,
    returns=(1.0, 3.0),
    lengths=(10, 20),
    cut=0,
    restarts=0,
    outside=0,
    seconds=2.0,
    env_seconds=1.0,
    policy_seconds=0.5,
    write_seconds=0.1,
    raw_bytes=7_056_000,
    stored_bytes=70_560,
    total_steps=5000,
    digest="0123456789abcdef",
    path=None,
)


def test_the_summary_has_two_lines() -> None:
    assert str(REPORT) == (
        "1,000 steps  500/s  2,000 frames/s  2 episodes  return 2.0 ± 1.0  "
        "rows of 70.6 kB (100x smaller)\n"
        "env 50%  policy 25%  write 5%  digest 0123456789abcdef"
    )


def test_the_summary_has_cut_episodes_and_restarts() -> None:
    text = str(dataclasses.replace(REPORT, cut=2, restarts=1, path="runs/a"))
    assert "2 cut  1 restarted\n" in text
    assert text.endswith("digest 0123456789abcdef  runs/a")


def test_an_empty_report_has_a_summary() -> None:
    empty = dataclasses.replace(
        REPORT, steps=0, frames=0, returns=(), lengths=(), seconds=0.0, stored_bytes=0
    )
    assert str(empty).startswith("0 steps  0/s  0 episodes\n")
    assert (empty.steps_per_second, empty.compression, empty.episodes) == (0.0, 0.0, 0)


def test_to_json_gives_plain_data() -> None:
    data = json.loads(json.dumps(REPORT.to_json()))
    assert (data["episodes"], data["steps_per_second"], data["compression"]) == (2, 500.0, 100.0)
    assert data["returns"] == [1.0, 3.0]
    assert set(data) >= {field.name for field in dataclasses.fields(REPORT)}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5_100_000, "5.1 MB"), (2e12, "2.0 TB")],
)
def test_bytes_are_printed_in_a_suitable_unit(count: float, text: str) -> None:
    assert format_bytes(count) == text
