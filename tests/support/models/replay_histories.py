"""Strategies for the history of a replay."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hypothesis import strategies as st

from stepwell.buffers import End
from support.rows.replay_rows import ENDINGS, Played, Step, numbered_spec


class Kind(NamedTuple):
    """Settings of a replay."""

    is_on_disk: bool = False
    capacity: int | None = None
    stack: int = 1
    padding: Literal["zero", "repeat"] = "zero"
    new_priority: float | None = None


KINDS = st.builds(
    Kind,
    st.booleans(),
    st.sampled_from([None, None, 40, 100]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["zero", "repeat"]),
    st.sampled_from([None, 0.0, 0.5, 20]),
)
_ENDS = st.sampled_from([End.NONE, End.PENDING, End.PENDING, *ENDINGS])
_NEW_ROWS = st.one_of(st.integers(0, 3), st.integers(0, 3), st.integers(4, 25))
HISTORIES = st.lists(
    st.builds(
        Step,
        st.integers(0, 2),
        _NEW_ROWS,
        _ENDS,
        st.sampled_from(["", "", "", "", "cut", "restart"]),
    ),
    min_size=1,
    max_size=16,
)


@contextlib.contextmanager
def a_replay(kind: Kind) -> Iterator[Played]:
    """An empty replay of a kind."""
    spec = numbered_spec(kind.stack, kind.padding)
    with contextlib.ExitStack() as stack:
        path = None
        if kind.is_on_disk:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        yield stack.enter_context(Played(spec, path, kind.capacity, new_priority=kind.new_priority))


def moments(played: Played, history: Sequence[Step], count: int = 2) -> Iterator[None]:
    """Let a history happen, with so many stops on the way, the last one at its end."""
    stops = {-(-len(history) * (stop + 1) // count) for stop in range(count)}
    for number, step in enumerate(history, 1):
        played.add(step)
        if number in stops:
            played.assert_follows()
            yield


def whole_episodes(played: Played, lengths: Sequence[int], stream: int = 0) -> None:
    """Add terminated episodes of so many rows."""
    for rows in lengths:
        played.add(Step(stream, rows, End.TERMINATED))


def busy_history(steps: int) -> Iterator[Step]:
    """A long history without chance: unequal streams, pending rows, cuts, all ways to end."""
    ends = (End.PENDING, End.NONE, End.PENDING, ENDINGS[0], End.PENDING, ENDINGS[1], End.NONE)
    new_rows = (3, 1, 7, 2, 12, 1, 1, 5, 2)
    for number, end, rows in zip(
        range(steps), itertools.cycle(ends), itertools.cycle(new_rows), strict=False
    ):
        stream = (number * number) % 3
        yield Step(stream, rows, end, "cut" if number % 11 == 10 else "")
