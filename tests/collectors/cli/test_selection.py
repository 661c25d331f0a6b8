"""Conditions as they are written are read as they are meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.curation.selection import EpisodeSelection
from stepwell.collectors.cli.selection import (
    Conditions,
    episode_ids,
    ids_in_words,
    metadata_condition,
    selection_of,
)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("task=door", "task", "door"),
        ("level=3", "level", 3),
        ("speed=-1.5e3", "speed", -1500.0),
        ("won=true", "won", True),
        ("won=True", "won", "True"),
        ("note=null", "note", None),
        ('id="3"', "id", "3"),
        ("size=[84,84]", "size", [84, 84]),
        ("formula=a=b", "formula", "a=b"),
        ("name=", "name", ""),
    ],
)
def test_a_value_is_json_or_else_text(text: str, key: str, value: object) -> None:
    assert metadata_condition("--where", text) == (key, value)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ids_in_words_are_read_back(ids: set[int]) -> None:
    words = ids_in_words(sorted(ids), 10_000)
    assert {each for span in episode_ids("--episodes", words) for each in span} == ids


@given(st.sets(st.integers(0, 10**6), min_size=1), st.integers(12, 60))
def test_ids_in_words_keep_to_their_room(ids: set[int], room: int) -> None:
    words = ids_in_words(sorted(ids), room)
    assert len(words) <= max(room, len("1000000-1000000,..."))


def test_all_conditions_are_read() -> None:
    told = Conditions(["task=door", "level=3"], "3,10-20", -1.5, 20.0, "5", "1k", ended=True)
    assert selection_of(told) == EpisodeSelection(
        where={"task": "door", "level": 3},
        ids=(range(3, 4), range(10, 21)),
        min_return=-1.5,
        max_return=20.0,
        min_steps=5,
        max_steps=1000,
        has_ended=True,
    )
    assert selection_of(Conditions(cut=True)) == EpisodeSelection(has_ended=False)


def test_a_condition_of_zero_is_a_condition() -> None:
    assert selection_of(Conditions(min_return=0.0)).min_return == 0
    assert selection_of(Conditions(max_steps="0")).max_steps == 0
