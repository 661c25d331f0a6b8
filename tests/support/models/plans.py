"""Plans of the episodes of `TraceEnv`s, drawn for property tests, and the envs that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

from gymnasium.vector import AutoresetMode
from hypothesis import strategies as st

from stepwell.buffers.rows import episode_buffer
from support.envs.fakes import TraceEnv

__all__ = [
    "CHUNK_ROWS",
    "FLUSH_SECONDS",
    "MODES",
    "PLAN",
    "PLANS",
    "Plan",
    "makers",
    "small_chunks",
]

Plan = Sequence[tuple[int, str]]  # length and end of one episode after the other

ENDS = st.sampled_from(["terminated", "truncated", "both"])
PLAN = st.lists(st.tuples(st.integers(1, 9), ENDS), min_size=1, max_size=3)
PLANS = st.lists(PLAN, min_size=1, max_size=4)
MODES = st.sampled_from(list(AutoresetMode))
CHUNK_ROWS = st.integers(1, 12)
FLUSH_SECONDS = st.sampled_from([0.0, 1e9])


def small_chunks(rows: int) -> Any:
    """Buffers of episodes end their chunks after so many rows."""
    return mock.patch.object(episode_buffer, "_rows_by_size", return_value=rows)


def makers(plans: Sequence[Plan]) -> list[Any]:
    """An env for each plan, tagged with its number."""
    return [partial(TraceEnv, plan, tag) for tag, plan in enumerate(plans)]
