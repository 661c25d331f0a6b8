"""`EpisodeSelection(top=..., bottom=...)` against a slow model that counts with fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import (
    Chunk,
    End,
    EpisodeSelection,
    MemoryStorage,
    SequenceReplayBuffer,
    copy_episodes,
)
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.exchange.formats.exporting import export_episodes
from support.examples import by_tier
from support.rows.labelled_rows import SPEC, rows_of


class Plan(NamedTuple):
    """An episode to store: its rewards after the reset's row, its end, and its level."""

    rewards: tuple[float, ...]
    end: End
    first_row: int
    level: object

    @property
    def is_whole(self) -> bool:
        return self.end.is_final and self.first_row == 0


REWARDS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e300, math.inf, math.nan])
LEVELS = st.sampled_from([None, 1, 2, 2.0, -3, True, 10**30, "2", math.nan])
PLANS = st.builds(
    Plan,
    st.lists(REWARDS, min_size=1, max_size=3).map(tuple),
    st.sampled_from([End.TERMINATED, End.TRUNCATED, End.NONE]),
    st.sampled_from([0, 0, 0, 4]),
    LEVELS,
)
NUMBERS = st.one_of(
    st.integers(1, 9),
    st.sampled_from(["10%", "7%", "33.3%", "0.1%", "100%", "50 %"]),
    st.integers(1, 100).map("{}%".format),
)


def stored(plans: Sequence[Plan], first: int = 0) -> MemoryStorage:
    storage = MemoryStorage(SPEC)
    for number, plan in enumerate(plans, first):
        rewards = [*([0.0] if plan.first_row == 0 else []), *plan.rewards]
        rows = rows_of(0, number, plan.first_row, plan.first_row + len(rewards))
        rows["reward"] = np.array(rewards, np.float64)
        metadata: dict[str, object] = {} if plan.level is None else {"level": plan.level}
        starts_late = plan.first_row > 0
        storage.add([Chunk(number, 0, plan.first_row, plan.end, rows, metadata, starts_late)])
    return storage


def value_of(plan: Plan, place: int, sort: str | None) -> Any:
    if sort == "steps":
        return len(plan.rewards)
    if sort == "id":
        return place
    value: object = sum(plan.rewards) if sort in (None, "return") else plan.level
    return value if isinstance(value, int | float) and value == value else None


def by_the_model(plans: Sequence[Plan], number: int | str, **more: Any) -> tuple[set[int], int]:
    """The chosen places and the number of episodes that are not ranked as they are not whole.

    One after the other the best one left is taken.
    """
    left: dict[int, Any] = {}
    not_whole = 0
    for place, plan in enumerate(plans):
        if len(plan.rewards) < more.get("min_steps", 0):
            continue
        if not (plan.is_whole or more.get("include_cut")):
            not_whole += 1
        elif (value := value_of(plan, place, more.get("sort"))) is not None:
            left[place] = value
    count = number
    if isinstance(count, str):
        count = -(-Fraction(count.strip(" %")) * len(left) // 100)
    chosen: set[int] = set()
    while left and len(chosen) < int(count):
        best = next(iter(left))
        for place, value in left.items():
            is_better = value > left[best] if more["ranks"] == "top" else value < left[best]
            best = place if is_better else best
        chosen.add(best)
        del left[best]
    return chosen, not_whole


@given(
    st.lists(PLANS, max_size=12),
    st.sampled_from(["top", "bottom"]),
    NUMBERS,
    st.sampled_from([None, "return", "steps", "id", "level"]),
    st.booleans(),
    st.sampled_from([None, 2]),
)
@settings(max_examples=by_tier(60, 60, 400))
def test_the_best_are_those_of_the_model(
    plans: list[Plan],
    ranks: str,
    number: int | str,
    sort: str | None,
    include_cut: bool,
    min_steps: int | None,
) -> None:
    more: dict[str, Any] = {"sort": sort, "include_cut": include_cut}
    more |= {} if min_steps is None else {"min_steps": min_steps}
    wanted: dict[str, Any] = {ranks: number, **more}
    choice = EpisodeSelection(**wanted).choose(stored_episodes(stored(plans)))
    found = {place for place, is_chosen in enumerate(choice.is_chosen) if is_chosen}
    assert (found, choice.not_whole) == by_the_model(plans, number, ranks=ranks, **more)
    rest = EpisodeSelection(**wanted, others=True).choose(stored_episodes(stored(plans))).is_chosen
    assert [*rest] == [not one for one in choice.is_chosen]


def episodes(*returns: float, end: End = End.TERMINATED, first_row: int = 0) -> list[Plan]:
    return [Plan((one,), end, first_row, None) for one in returns]


def replay_of(plans: Sequence[Plan]) -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer(seed=0)
    replay.bind(SPEC, {})
    storage = stored(plans)
    replay.add([chunk for one in stored_episodes(storage) for chunk in one.chunks(99)])
    return replay


def returns_of(replay: SequenceReplayBuffer) -> list[float]:
    return [one.total_reward for one in replay.iter_episodes()]


def test_a_copy_of_the_best_keeps_their_order_and_says_what_was_not_ranked() -> None:
    source = replay_of([*episodes(5, 9, 1), *episodes(99, end=End.NONE), *episodes(7)])
    best = SequenceReplayBuffer()
    report = copy_episodes(source, best, keep=EpisodeSelection(top=3))
    assert returns_of(best) == [5, 9, 7]
    assert (report.not_whole_episodes, report.left_out_episodes) == (1, 2)
    rest = SequenceReplayBuffer()
    report = copy_episodes(source, rest, keep=EpisodeSelection(top=3, others=True))
    assert returns_of(rest) == [1, 99]
    assert report.not_whole_episodes == 1


def test_the_best_are_chosen_from_all_sources_together() -> None:
    sources = [replay_of(episodes(5, 9)), replay_of(episodes(7, 9, 8))]
    best = SequenceReplayBuffer()
    copy_episodes(sources, best, keep=EpisodeSelection(top=2), duplicates="keep")
    assert returns_of(best) == [9, 9]
    best = SequenceReplayBuffer()
    copy_episodes(sources, best, keep=EpisodeSelection(top="60%"), duplicates="keep")
    assert returns_of(best) == [9, 9, 8]


def test_metadata_and_a_function_are_conditions_of_their_own() -> None:
    source = replay_of([Plan((one,), End.TERMINATED, 0, one % 2) for one in range(9)])
    odd = SequenceReplayBuffer()
    copy_episodes(source, odd, where={"level": 1}, keep=EpisodeSelection(top=2))
    assert returns_of(odd) == [5, 7]
    with pytest.raises(ValueError, match="alone"):
        EpisodeSelection(top=1)(next(stored_episodes(source.storage)))


def test_an_export_of_the_best_notes_what_was_not_ranked(tmp_path: Path) -> None:
    source = replay_of([*episodes(5, 9, 1), *episodes(99, end=End.NONE)])
    report = export_episodes(source, "npz", tmp_path / "best", keep=EpisodeSelection(top=2))
    assert report.episodes == 2
    assert any("1 cut" in note and "include_cut" in note for note in report.notes)


def test_if_only_cut_episodes_match_the_error_says_how_to_take_them(tmp_path: Path) -> None:
    source = replay_of(episodes(5, 9, end=End.NONE))
    with pytest.raises(ValueError, match=r"none of 2\b.*\b2 cut\b.*include_cut"):
        copy_episodes(source, SequenceReplayBuffer(), keep=EpisodeSelection(top=2))
    with pytest.raises(ValueError, match=r"none of 2\b.*\b2 cut\b.*include_cut"):
        export_episodes(source, "npz", tmp_path / "best", keep=EpisodeSelection(top=2))
    for keep in (
        EpisodeSelection(top=1, include_cut=True),
        EpisodeSelection(top=1, has_ended=False),
    ):
        best = SequenceReplayBuffer()
        copy_episodes(source, best, keep=keep)
        assert returns_of(best) == [9]
