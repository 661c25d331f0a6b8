"""The live line and the summary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.base.progress import fitted
from stepwell.collectors.cli.collect import Goal, summary
from stepwell.collectors.cli.output import Part, packed
from stepwell.collectors.loop.report import CollectReport, collect_status

parts = st.lists(
    st.builds(Part, st.text("abc", min_size=1, max_size=30), st.integers(0, 6)), min_size=1
)


STEPS = Goal(100_000, None)


def report(steps: int = 50_000, episodes: int = 61, skip: int = 4) -> CollectReport:
    return CollectReport(
        steps=steps,
        frames=steps * skip,
        returns=(-20.0,) * episodes,
        lengths=(800,) * episodes,
        cut=0,
        restarts=0,
        outside=0,
        seconds=10.0,
        env_seconds=9.0,
        policy_seconds=0.5,
        write_seconds=0.5,
        raw_bytes=352_800_000,
        stored_bytes=2_500_000,
        total_steps=steps,
        digest="7c1e7c1e7c1e7c1e",
        path="runs/pong",
    )


def line(*, goal: Goal = STEPS, width: int = 300, **facts: int) -> str:
    status = collect_status(report(**facts), steps=goal.steps, episodes=goal.episodes)
    return fitted(status.line(), width).plain


def test_the_live_line_shows_how_far_how_fast_how_good_how_large_and_how_long() -> None:
    assert line().strip() == (
        "50%  50,000 / 100,000 steps  5,000 steps/s  20,000 frames/s  61 episodes  return -20.0  "
        "rows of 2.5 MB 141x smaller  0:10 left"
    )


@pytest.mark.parametrize("width", [20, 40, 60, 79, 100, 119])
def test_a_narrow_terminal_keeps_how_far_and_drops_whole_parts(width: int) -> None:
    text = line(width=width)
    assert len(text) <= width
    assert "50,000 / 100,000"[: width - 3] in text
    assert width < 70 or "left" in text


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
