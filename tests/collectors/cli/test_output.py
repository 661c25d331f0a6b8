"""The live line and the summary."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.base.progress import fitted
from stepwell.collectors.cli.collect import summary
from stepwell.collectors.cli.output import Part, packed
from stepwell.collectors.loop.report import CollectReport, collect_status
from support.command_line import CommandLine

parts = st.lists(
    st.builds(Part, st.text("abc", min_size=1, max_size=30), st.integers(0, 6)), min_size=1
)


def report() -> CollectReport:
    return CollectReport(
        steps=50_000,
        frames=200_000,
        returns=(-20.0,) * 61,
        lengths=(800,) * 61,
        cut=0,
        restarts=0,
        outside=0,
        seconds=10.0,
        env_seconds=9.0,
        policy_seconds=0.5,
        write_seconds=0.5,
        raw_bytes=352_800_000,
        stored_bytes=2_500_000,
        total_steps=50_000,
        digest="7c1e7c1e7c1e7c1e",
        path="runs/pong",
    )


@pytest.mark.parametrize("width", [20, 40, 60, 79, 100, 119, 300])
def test_a_narrow_terminal_keeps_how_far_and_drops_whole_parts(width: int) -> None:
    status = collect_status(report(), steps=100_000, episodes=None)
    text = fitted(status.line(), width).plain
    assert len(text) <= width
    assert "50,000 / 100,000"[: width - 3] in text
    assert width < 70 or "left" in text
    whole = (
        "50%  50,000 / 100,000 steps  5,000 steps/s  20,000 frames/s  61 episodes  return -20.0  "
        "rows of 2.5 MB 141x smaller  0:10 left"
    )
    assert (text.strip() == whole) == (width == 300)


@pytest.mark.proof
@given(parts, st.integers(30, 120))
def test_packed_lines_hold_every_part_and_break_between_parts(some: list[Part], width: int) -> None:
    lines = [one.plain for one in packed(some, width)]
    assert "  ".join(lines) == "  ".join(part.text for part in some)
    assert all(len(one) <= width for one in lines)


def test_the_summary_says_where_the_time_went_and_how_to_get_the_same_data_again() -> None:
    text = " | ".join(
        "  ".join(part.text for part in some)
        for some in summary(report(), 7, ["3 MB on disk", "raw 352.8 MB"])
    )
    assert text == (
        "50,000 steps  5,000 steps/s  20,000 frames/s  61 episodes  return -20.0 ± 0.0  env 90%  "
        "policy 5%  write 5%  of 0:10 | 3 MB on disk  raw 352.8 MB  in runs/pong  "
        "digest 7c1e7c1e7c1e7c1e  seed 7"
    )


def test_json_is_no_error_where_standard_output_is_closed(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "__stdout__"):
        monkeypatch.setattr(sys, name, None)
    assert stepwell("formats --json").code == 0
