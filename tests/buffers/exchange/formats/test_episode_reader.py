"""The comparison of all episodes of a data set with the first one, which its reader shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import End, StoreNotFound
from stepwell.buffers.bridges import format_names
from stepwell.buffers.exchange.formats.episode_reader import (
    EpisodeReader,
    FoundEpisode,
    Notes,
    end_of,
)
from stepwell.buffers.rows.step_columns import inferred_spec
from support.exchanged_stores import imported
from support.format_packages import require

STEPS = 3
COLUMNS: dict[str, Any] = {
    "observation": np.arange(STEPS + 1, dtype=np.float32)[:, None],
    "action": np.arange(STEPS),
    "reward": np.ones(STEPS, np.float32),
    "info/lives": np.arange(STEPS + 1),
}


class Reader(EpisodeReader):
    """A data set of two episodes, the second of which differs from the first."""

    def __init__(self, changes: Mapping[str, Any], **more: Any) -> None:
        super().__init__()
        self.spec = inferred_spec(COLUMNS, "here")
        columns = {**COLUMNS, **changes}
        self._second = {name: rows for name, rows in columns.items() if rows is not None}
        self._more = more

    def _found(self) -> Iterator[FoundEpisode]:
        yield FoundEpisode("episode 0", dict(COLUMNS), End.TERMINATED)
        yield FoundEpisode("episode 1", self._second, End.NONE, cure="mend it", **self._more)


def test_columns_become_the_rows_of_episodes() -> None:
    edge = np.array([7])
    first, second = Reader({}, edges={"action": edge}, stream=4, metadata={"seed": 1})
    assert (first.id, first.stream, first.end) == (0, 0, End.TERMINATED)
    assert (second.id, second.stream, second.metadata) == (1, 4, {"seed": 1})
    assert first.observation[:, 0].tolist() == [0, 1, 2, 3]
    assert first.action.tolist() == [0, 1, 2, 0]
    assert second.action.tolist() == [0, 1, 2, 7]
    assert first.reward.tolist() == [0, 1, 1, 1]
    assert first.reward.dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "more", "match"),
    [
        ({"info/lives": None}, {}, r"columns observation, action, reward, info/lives.*got"),
        ({"info/more": np.zeros(4)}, {}, r"got .*info/more"),
        ({"action": np.zeros(STEPS)}, {}, r"'action' as int64 \(3,\).*got float64 \(3,\)"),
        ({"action": np.arange(STEPS)[:, None]}, {}, r"'action' as int64 \(3,\).*\(3, 1\)"),
        ({"observation": COLUMNS["observation"][:-1]}, {}, r"'observation'.*\(4, 1\).*\(3, 1\)"),
        ({"reward": np.ones(2)}, {}, r"'observation'.*for 2 steps"),
        ({}, {"steps": 4}, r"'observation' as float32 \(5, 1\) for 4 steps.*\(4, 1\)"),
        ({}, {"edges": {"action": np.zeros(1)}}, r"'action'"),
        ({}, {"edges": {"action": np.array([1, 2])}}, r"'action'"),
    ],
)
def test_an_episode_unlike_the_first_is_refused(
    changes: Mapping[str, Any], more: Mapping[str, Any], match: str
) -> None:
    episodes = iter(Reader(changes, **more))
    next(episodes)
    with pytest.raises(ValueError, match=rf"^episode 1: .*{match}.*; mend it$"):
        next(episodes)


def test_ends_are_marked_in_the_last_step_alone() -> None:
    yes, no = np.array([False, True]), np.zeros(2, np.bool_)
    for first, second, end in (
        (yes, no, End.TERMINATED),
        (no, yes, End.TRUNCATED),
        (yes, yes, End.TERMINATED | End.TRUNCATED),
        (no, no, End.NONE),
        (no[:0], no[:0], End.NONE),
    ):
        assert end_of({"over": first, "late": second}, "here", "mend it") == end
    with pytest.raises(ValueError, match=r"^here: .*late.*step 0 of 2 steps; mend it$"):
        end_of({"over": no, "late": yes[::-1]}, "here", "mend it")


def test_notes_count_from_zero_again_each_time_a_data_set_is_read() -> None:
    notes = Notes("first", "second")
    notes.count("{} lost", 0)
    assert list(notes) == ["first", "second"]
    for _ in range(2):
        notes.restart()
        notes.count("{} lost", 1200)
        notes.count("{} lost")
        notes.add("first")
        assert list(notes) == ["first", "second", "1,201 lost"]


@pytest.mark.parametrize("name", format_names())
def test_a_missing_data_set_is_refused_by_every_format(name: str, tmp_path: Any) -> None:
    require("d3rlpy" if name == "hdf5" else name)
    with pytest.raises((FileNotFoundError, StoreNotFound), match="nowhere"):
        imported(name, tmp_path / "nowhere")
