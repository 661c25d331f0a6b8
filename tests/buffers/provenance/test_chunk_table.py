"""The table of an archive comes back as it was, and tables of no storage are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.provenance.chunk_table import ChunkTable
from stepwell.wrappers.seeded_resets import derived_seed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def table_of(chunks: list[tuple[int, int, int]], metadata: list[Any], streams: int) -> ChunkTable:
    """A table of chunks (episode, rows, end), those of an episode one after the other."""
    ordinals = {episode: k for k, episode in enumerate(dict.fromkeys(c[0] for c in chunks))}
    episode_of = np.array([ordinals[c[0]] for c in chunks], np.int64)
    rows = np.array([c[1] for c in chunks], np.int64)
    end = np.array([c[2] for c in chunks], np.int64)
    first_row, following = [], dict[int, int]()
    for episode, count, flags in chunks:
        first_row.append(following.get(episode, episode % 3))
        following[episode] = first_row[-1] + count - (flags == 4)
    ids = np.array(list(ordinals), np.int64)
    return ChunkTable(
        episode_of, np.array(first_row, np.int64), rows, end, ids, ids % streams, metadata
    )


@given(st.data())
def test_a_table_comes_back(data: Any) -> None:
    chunks: list[tuple[int, int, int]] = []
    for episode in data.draw(st.permutations(range(data.draw(st.integers(0, 8))))):
        for flags in [*data.draw(st.lists(st.sampled_from([0, 4]), max_size=3)), 1]:
            chunks.append((episode, data.draw(st.integers(1, 100)), flags))
    keys = st.sampled_from(["seed", "stream_episode", "session", "task", "\x00"])
    count = len({episode for episode, *_ in chunks})
    metadata = [data.draw(st.dictionaries(keys, JSON | st.integers(0, 9))) for _ in range(count)]
    table = table_of(chunks, metadata, streams=data.draw(st.integers(1, 3)))
    back = ChunkTable.unpack(table.pack())
    for name in ("episode_of", "first_row", "rows", "end", "episode", "stream"):
        assert getattr(back, name).tolist() == getattr(table, name).tolist()
    assert [list(facts.items()) for facts in back.metadata] == [
        list(facts.items()) for facts in metadata
    ]
    assert [list(map(type, facts.values())) for facts in back.metadata] == [
        list(map(type, facts.values())) for facts in metadata
    ]


@given(
    st.lists(st.integers(1, 90), max_size=6),
    st.integers(0, (1 << 62)),
    st.lists(st.integers(-3, 1 << 40), max_size=3),
)
def test_derived_seeds_come_back(skips: list[int], given_seed: int, others: list[int]) -> None:
    seeds, number = [given_seed], 0
    for skip in skips:
        number += skip
        seeds.append(derived_seed(given_seed, number))
    seeds += others
    chunks = [(episode, 3, 1) for episode in range(len(seeds))]
    table = table_of(chunks, [{"seed": seed} for seed in seeds], streams=1)
    assert [facts["seed"] for facts in ChunkTable.unpack(table.pack()).metadata] == seeds


def test_a_derived_seed_takes_no_bytes() -> None:
    def size(seeds: list[int]) -> int:
        from stepwell.buffers.provenance.archive_file import compress

        chunks = [(episode, 20, 1) for episode in range(len(seeds))]
        return len(compress(table_of(chunks, [{"seed": s} for s in seeds], streams=1).pack()))

    derived = [7, *(derived_seed(7, number) for number in range(1, 1_000))]
    assert size(derived) < 200 < 3_000 < size(derived[::-1])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("end", [1, 1, 1, 1]),  # a chunk after the end of its episode
        ("episode", [3, 3]),
        ("first_row", [0, 6, 2, 4]),  # a gap
        ("stream", [0, 0]),  # episodes of a stream in turns
        ("episode_of", [1, 0, 1, 0]),
    ],
)
def test_tables_of_no_storage_are_refused(name: str, values: list[int]) -> None:
    good = table_of([(0, 5, 0), (1, 4, 4), (0, 2, 1), (1, 1, 0)], [{}, {}], streams=2)
    good.check()
    names = ("episode_of", "first_row", "rows", "end", "episode", "stream")
    columns = {each: getattr(good, each) for each in names} | {name: np.array(values, np.int64)}
    with pytest.raises(ValueError, match="expected"):
        ChunkTable(**columns, metadata=good.metadata).check()


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # any reason will do
        ChunkTable.unpack(data)
