"""Episodes and chunks."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import Chunk, End, Episode, Spec

SPEC = Spec.from_spaces(
    spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Tuple((spaces.Discrete(9),))}),
    spaces.Discrete(9),
)


def rows(length: int) -> dict[str, np.ndarray]:
    numbers = np.arange(length)
    names = ("observation/a", "observation/b/0", "action")
    return {**{name: numbers * 2 for name in names}, "reward": numbers * 1.5}


@pytest.mark.parametrize("end", [End.NONE, End.TERMINATED, End.TRUNCATED, End(3)])
@pytest.mark.parametrize("first_row", [0, 7])
def test_flags_follow_from_the_end(end: End, first_row: int) -> None:
    """The four-case truth table of (terminated, truncated)."""
    assert end.is_final == (end != End.NONE)
    episode = Episode(SPEC, 3, 1, first_row, end, rows(4), {})
    assert episode.is_first.tolist() == [first_row == 0, False, False, False]
    assert episode.is_last.tolist() == [False, False, False, True]
    assert episode.terminated.tolist() == [False] * 3 + [end in (End.TERMINATED, End(3))]
    assert episode.truncated.tolist() == [False] * 3 + [end in (End.TRUNCATED, End(3))]
    assert episode.cut.tolist() == [False] * 3 + [end == End.NONE]
    assert (episode.rows, episode.steps) == (4, 3)


def test_an_episode_gives_nested_values_and_its_return() -> None:
    episode = Episode(SPEC, 0, 0, 0, End.TERMINATED, rows(3), {})
    assert episode.observation["a"].tolist() == [0, 2, 4]
    assert episode.observation["b"][0].tolist() == [0, 2, 4]
    assert np.asarray(episode.action).tolist() == [0, 2, 4]
    assert episode.total_reward == 4.5


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 100])
def test_a_chunk_splits_into_the_same_rows(max_rows: int) -> None:
    chunk = Chunk(5, 2, 10, End.TERMINATED, rows(7), {"seed": 1})
    parts = chunk.split(max_rows)
    assert all(part.rows <= max_rows for part in parts)
    for name, column in chunk.fields.items():
        assert np.concatenate([part.fields[name] for part in parts]).tolist() == column.tolist()
    assert [part.first_row for part in parts] == list(range(10, 17, max_rows))
    assert [part.end for part in parts] == [End.NONE] * (len(parts) - 1) + [End.TERMINATED]
    assert [part.metadata for part in parts] == [{"seed": 1}] * len(parts)
    assert {(part.episode, part.stream) for part in parts} == {(5, 2)}
    with pytest.raises(ValueError, match=r"^max_rows: .*>= 1.*-1"):
        chunk.split(-1)


def test_the_repr_is_one_line_of_names_and_values() -> None:
    assert repr(Episode(SPEC, 7, 2, 3, End.TRUNCATED, rows(3), {"seed": 1})) == (
        "Episode(id=7, stream=2, first_row=3, steps=2, end=TRUNCATED, fields=("
        "observation/a: int64 (3,); observation/b/0: int64 (3,); action: int64 (3,); "
        "reward: float64 (3,)))"
    )
    assert "end=CUT" in repr(Episode(SPEC, 0, 0, 0, End.PENDING, rows(3), {}))
