"""`count` counts the items that can be drawn; draw="distinct" draws each at most once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Borders, Episodes, Sequences, Transitions
from support.chi_square import assert_shares
from support.models.replay_histories import (
    HISTORIES,
    KINDS,
    Kind,
    a_replay,
    moments,
    whole_episodes,
)
from support.models.replay_model import sequences, transitions
from support.rows.replay_rows import Step

BORDERS: list[Borders] = ["inside", "cross", "pad_after", "pad_before"]


@given(KINDS, HISTORIES, st.integers(1, 7), st.sampled_from(BORDERS), st.booleans())
def test_count_agrees_with_the_model(
    kind: Kind, history: list[Step], length: int, borders: Borders, shifted: bool
) -> None:
    align = "transition" if shifted else "arrival"
    request = Sequences(1, length, borders, align=align)  # type: ignore[arg-type]
    with a_replay(kind) as played:
        assert played.replay.count(request) == 0
        for _ in moments(played, history):
            replay, episodes = played.replay, played.episodes
            assert replay.count(request) == len(sequences(episodes, request))
            steps = Transitions(1, stack=False)
            assert replay.count(steps) == len(transitions(episodes, steps))
            long = [e for e in episodes if len(e.rows) > shifted]
            assert replay.count(Episodes(1, align=request.align)) == len(long)


@pytest.mark.proof
@given(KINDS, HISTORIES, st.sampled_from([Sequences(1, 3), Transitions(1)]))
def test_a_batch_of_all_items_has_each_once(kind: Kind, history: list[Step], request: Any) -> None:
    request = request._replace(draw="distinct")
    with a_replay(kind) as played:
        for _ in moments(played, history):
            count = played.replay.count(request)
            if count:
                batch: Any = played.replay.sample(request._replace(batch_size=count))
                assert len(set(batch.ids.tolist())) == count
            if played.replay.is_bound:
                message = rf"\b{count + 1} .*\b{count}\b" if count else r"\b[23] rows\b"
                with pytest.raises(NotEnoughData, match=message):
                    played.replay.sample(request._replace(batch_size=count + 1))


@pytest.mark.parametrize(("batch_size", "batches"), [(1, 1_600), (3, 600), (7, 300)])
def test_all_items_are_equally_likely(batch_size: int, batches: int) -> None:
    """Of 9 items, and of every pair of them."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [5, 4, 6])
        request = Sequences(batch_size, 3, draw="distinct", fields=["reward"])
        every = played.replay.count(request)
        assert every == 9
        ids = [played.replay.sample(request).ids for _ in range(batches)]
        known = np.unique(np.concatenate(ids)).tolist()
        assert len(known) == every
        first = Counter(int(drawn[0]) for drawn in ids)
        assert_shares(first, dict.fromkeys(known, 1.0))
        if batch_size > 1:
            pairs = Counter((int(drawn[0]), int(drawn[1])) for drawn in ids)
            assert_shares(pairs, {(a, b): 1.0 for a in known for b in known if a != b})


def test_joined_stores_with_weights_refuse_distinct_draws(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        with a_replay(Kind()) as played, SequenceReplayBuffer(path) as replay:
            played.add(Step(0, 9))
            replay.bind(played.spec, {})
            episode = next(played.replay.iter_episodes())
            replay.add([_chunk_of(episode)])
    with SequenceReplayBuffer.open(paths) as both:
        assert len(set(both.sample_sequences(16, 2, draw="distinct").ids.tolist())) == 16
    with (
        SequenceReplayBuffer.open(paths, weights=[1, 3]) as both,
        pytest.raises(ValueError, match=r"draw=['\"]distinct['\"]: "),
    ):
        both.sample_sequences(4, 2, draw="distinct")


def _chunk_of(episode: Any) -> Any:
    from stepwell.buffers import Chunk

    return Chunk(episode.id, episode.stream, 0, episode.end, episode.fields, episode.metadata)
