"""Equal rows have equal digests in any chunks; other rows have other digests."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import Chunk, Digest, End
from stepwell.buffers.rows.digest import DigestState

TERMINATED, TRUNCATED, PENDING, NONE = End.TERMINATED, End.TRUNCATED, End.PENDING, End.NONE
Episodes = list[tuple[int, int, End]]
EPISODES = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(2, 8), st.sampled_from([TERMINATED, TRUNCATED, End(3), NONE])
    ),
    min_size=1,
    max_size=6,
)


def rows_of(length: int, begin: float = 0.0) -> dict[str, np.ndarray]:
    numbers = np.arange(length) + begin
    return {"observation": numbers[:, None].repeat(2, 1), "reward": numbers}


def whole(episodes: Episodes, first_id: int = 0) -> list[Chunk]:
    return [
        Chunk(first_id + number, stream, 0, end, rows_of(length, number))
        for number, (stream, length, end) in enumerate(episodes)
    ]


def digest_of(chunks: list[Chunk]) -> str:
    digest = Digest()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def in_parts(chunk: Chunk, data: st.DataObject) -> list[Chunk]:
    """The same rows in several chunks, some of which end with a row without an action."""
    parts: list[Chunk] = []
    start = 0
    while start < chunk.rows:
        stop = data.draw(st.integers(start + 1, chunk.rows))
        is_last = stop == chunk.rows
        may_be_pending = not is_last or not chunk.end.is_final
        is_pending = may_be_pending and stop - start > 1 and data.draw(st.booleans())
        rows = {name: rows[start:stop].copy() for name, rows in chunk.fields.items()}
        if is_pending and not is_last:
            rows["reward"][-1] = -1.0  # differs from the row that replaces it
        end = PENDING if is_pending else chunk.end if is_last else NONE
        parts.append(Chunk(chunk.episode, chunk.stream, chunk.first_row + start, end, rows))
        start = stop - (is_pending and not is_last)
    return parts


@given(EPISODES, st.data(), st.integers(0, 100))
def test_the_digest_does_not_depend_on_chunks_and_ids(
    episodes: Episodes, data: st.DataObject, first_id: int
) -> None:
    parts = [part for chunk in whole(episodes, first_id) for part in in_parts(chunk, data)]
    assert digest_of(parts) == digest_of(whole(episodes))


def test_the_digest_does_not_depend_on_the_order_of_streams() -> None:
    one, other = Chunk(0, 0, 0, TERMINATED, rows_of(3)), Chunk(1, 1, 0, NONE, rows_of(4))
    assert digest_of([one, other]) == digest_of([other, one])


def changed(**change: Any) -> list[Chunk]:
    base: dict[str, Any] = {"episode": 1, "stream": 0, "first_row": 0, "end": TERMINATED}
    return [
        Chunk(0, 0, 0, TERMINATED, rows_of(3)),
        Chunk(**{**base, "fields": rows_of(3), **change}),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"stream": 1},
        {"end": TRUNCATED},
        {"end": End(3)},
        {"end": NONE},
        {"fields": rows_of(4)},
        {"fields": rows_of(3, 1.0)},
        {"fields": {**rows_of(3), "reward": np.array([0.0, 1.0, -2.0])}},
        {"fields": {"observation": rows_of(3)["observation"], "other": rows_of(3)["reward"]}},
    ],
)
def test_any_change_gives_another_digest(change: dict[str, Any]) -> None:
    assert digest_of(changed(**change)) != digest_of(changed())


def test_the_digest_depends_on_the_borders_of_episodes() -> None:
    """The same rows, divided into other episodes, which ended or were cut."""
    digests = {
        digest_of(
            [
                Chunk(number, 0, 0, end, {"reward": np.zeros(length)})
                for number, length in enumerate(lengths)
            ]
        )
        for lengths in [(3, 5), (5, 3), (8,), (2, 4, 4), (4, 2, 4)]
        for end in (TERMINATED, NONE)
    }
    assert len(digests) == 10


def test_the_digest_depends_on_a_pending_last_row() -> None:
    rows = {"reward": np.arange(4.0)}
    cut = [Chunk(0, 0, 0, PENDING, rows), Chunk(1, 0, 0, NONE, rows)]
    other = {"reward": np.array([0.0, 1.0, 2.0, 9.0])}
    assert digest_of(cut) != digest_of([Chunk(0, 0, 0, PENDING, other), cut[1]])
    assert digest_of(cut) == digest_of([Chunk(0, 0, 0, NONE, rows), cut[1]])


def test_states_of_groups_are_joined_as_streams_of_one_replay() -> None:
    groups = [Digest() for _ in range(3)]
    together = Digest()
    for number in range(24):
        group, stream = number % 3, number % 2
        rows = {"reward": np.arange(2.0) + number}
        groups[group].update(Chunk(number, stream, 0, End.TERMINATED, rows))
        together.update(Chunk(number, group * 2 + stream, 0, End.TERMINATED, rows))
    states = [pickle.loads(pickle.dumps(each.state)) for each in groups]
    assert DigestState.of_groups(states, 2).hexdigest() == together.hexdigest()
    assert DigestState.of_groups(states[::-1], 2).hexdigest() != together.hexdigest()
    assert DigestState().hexdigest() == Digest().hexdigest()


def test_a_digest_goes_on_from_a_state() -> None:
    chunks = [
        Chunk(number // 3, 0, number % 3 * 2, End.NONE, {"reward": np.arange(2.0) + number})
        for number in range(12)
    ]
    whole, first = Digest(), Digest()
    for chunk in chunks:
        whole.update(chunk)
    for chunk in chunks[:5]:
        first.update(chunk)
    state = first.state
    assert state.next_episode == 2
    rest = Digest(state)
    for chunk in chunks[5:]:
        rest.update(chunk)
    assert rest.hexdigest() == whole.hexdigest()
    assert state == first.state  # a value
