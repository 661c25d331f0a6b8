"""The frequencies of each draw mode: chi-square tests with fixed seeds."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from stepwell.buffers import End, NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Align, Borders, Draw, Sequences, Transitions
from support.chi_square import assert_shares, limit
from support.models.replay_histories import Kind, a_replay, busy_history, whole_episodes
from support.models.replay_model import Item, by_id, drawable, drawn, sequences
from support.rows.replay_rows import Played, Step

MODES: list[Draw] = ["steps", "episodes", "ends", "recent"]
TWO: list[Draw] = ["steps", "episodes"]


def long_and_short(played: Played, meanwhile: Sequences | Transitions | None = None) -> None:
    """Trap 17: one episode of 100 rows and ten of 10, which are drawn from while they grow."""
    for _ in range(5):
        played.add(Step(0, 20, End.PENDING))
        draw_one(played, meanwhile)
        for _ in range(2):
            played.add(Step(1, 5, End.PENDING))
            draw_one(played, meanwhile)
            played.add(Step(1, 5, End.TERMINATED))
    played.add(Step(0, 0, End.NONE))
    played.recording.stop()


def draw_one(played: Played, request: Sequences | Transitions | None) -> None:
    """Let the replay count its items, so that it continues this count later."""
    if request is not None:
        with contextlib.suppress(NotEnoughData):
            played.replay.sample(request._replace(batch_size=1))


def shares_of(items: Sequence[Item], draw: str) -> dict[Hashable, float]:
    """The expected share of each item."""
    if draw == "recent":
        ordered = sorted(items, key=lambda item: (item.rows[-1].id, item.rows[0].id))
        return {item: 2.0 * k - 1 for k, item in enumerate(ordered, 1)}
    if draw == "episodes":
        number = Counter(item.rows[-1].episode for item in items)
        return {item: 1 / number[item.rows[-1].episode] for item in items}
    return dict.fromkeys(items, 1.0)


def assert_frequencies(played: Played, request: Sequences | Transitions) -> None:
    """Each item is drawn as often as the mode says."""
    items = drawable(played, request)
    if isinstance(request, Transitions):
        items = {row: Item((step.row,)) for row, step in items.items()}
    assert len(items) > 1
    counts = Counter(drawn(played.replay.sample(request), items))
    assert_shares(counts, shares_of(list(items.values()), request.draw))


TRANSITIONS = [
    Transitions(20_000, n_step, draw=draw, fields=["reward"]) for n_step in (1, 3) for draw in MODES
]
SEQUENCES = [
    Sequences(20_000, 4, borders, draw, align, fields=["reward"])
    for borders in get_args(Borders)
    for draw in MODES
    for align in get_args(Align)
    if borders != "cross" or draw not in ("episodes", "ends")
]


@pytest.mark.parametrize(
    "request_",
    [*TRANSITIONS, *(pytest.param(each, marks=pytest.mark.proof) for each in SEQUENCES)],
    ids=str,
)
def test_frequencies_match_their_mode(request_: Sequences | Transitions) -> None:
    with a_replay(Kind()) as played:
        if request_.draw in ("recent", "ends"):
            # In one stream, where the order of two sequences is unambiguous.
            whole_episodes(played, [9, 3, 6, 12, 4, 7])
        else:
            long_and_short(played, meanwhile=request_)
        assert_frequencies(played, request_)


@pytest.mark.proof
def test_the_draws_of_a_batch_are_independent() -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [5, 4, 3])
        ids = played.replay.sample_sequences(40_000, 2).ids
        pairs = Counter(zip(ids[:-1:2].tolist(), ids[1::2].tolist(), strict=True))
        found = np.unique(ids).tolist()
        assert len(found) == 9
        assert_shares(Counter(pairs), dict.fromkeys([(a, b) for a in found for b in found], 1.0))


def test_evictions_do_not_change_the_shares_of_other_rows() -> None:
    requests = [Sequences(20_000, 3, draw=draw, fields=["reward"]) for draw in TWO]
    with a_replay(Kind(capacity=100)) as played:
        for step in busy_history(90):
            played.add(step)
            for request in requests:
                draw_one(played, request)
        assert played.replay.storage.index.base > 0
        for request in requests:
            assert_frequencies(played, request)


def test_whole_episodes_are_equally_likely_whatever_their_lengths() -> None:
    with a_replay(Kind()) as played:
        long_and_short(played)
        ids = played.replay.sample_episodes(5_000, fields=["reward"]).ids.tolist()
        firsts = [episode.rows[0].id for episode in played.episodes]
        assert_shares(Counter(ids), dict.fromkeys(firsts, 1.0))


@pytest.mark.proof
def test_a_condition_keeps_the_shares_of_the_chosen_episodes() -> None:
    with a_replay(Kind()) as played:
        long_and_short(played)
        chosen = [episode for episode in played.episodes if episode.id % 2]
        for draw in ("steps", "episodes", "ends", "recent"):
            request = Sequences(5_000, 3, draw=draw, where={"is_even": False})
            items = by_id(sequences(chosen, request), request)
            counts: Counter[Hashable] = Counter(drawn(played.replay.sample(request), items))
            if draw != "recent":
                assert_shares(counts, shares_of(list(items.values()), draw))
        ids = played.replay.sample_episodes(1_000, where={"is_even": False}).ids
        assert set(ids.tolist()) == {episode.rows[0].id for episode in chosen}
        ids = played.replay.sample_transitions(1_000, where={"is_even": False}).ids
        assert set(ids.tolist()) == {row.id for episode in chosen for row in episode.rows[:-1]}


@pytest.mark.parametrize(("batch_size", "batches"), [(1, 1_600), (3, 600), (7, 300)])
def test_distinct_items_are_equally_likely(batch_size: int, batches: int) -> None:
    """Of 9 items, and of every pair of them."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [5, 4, 6])
        request = Sequences(batch_size, 3, draw="distinct", fields=["reward"])
        ids = [played.replay.sample(request).ids for _ in range(batches)]
        known = np.unique(np.concatenate(ids)).tolist()
        assert len(known) == 9
        first = Counter(int(drawn[0]) for drawn in ids)
        assert_shares(first, dict.fromkeys(known, 1.0))
        if batch_size > 1:
            pairs = Counter((int(drawn[0]), int(drawn[1])) for drawn in ids)
            assert_shares(pairs, {(a, b): 1.0 for a in known for b in known if a != b})


def test_a_few_distinct_items_of_many_do_not_repeat() -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [400])
        for _ in range(100):
            ids = played.replay.sample_transitions(15, draw="distinct").ids
            assert len(set(ids.tolist())) == 15


# Several stores

STORE = 1 << 48  # ids of the k-th store begin at k times this


def two_stores(stack: ExitStack) -> list[Path]:
    paths = [Path("a"), Path("b")]
    for path, lengths in zip(paths, ([9, 3, 30], [5, 5, 4, 8, 6, 5]), strict=True):
        played = Played(path=path)
        whole_episodes(played, lengths)
        played.replay.close()
    return paths


@pytest.mark.parametrize("weights", [None, (1.0, 1.0), (1.0, 9.0), (1.0, 0.0)])
@pytest.mark.parametrize("draw", MODES)
def test_weights_are_the_shares_of_the_stores_in_all_modes(weights: Any, draw: Any) -> None:
    with ExitStack() as stack:
        paths = two_stores(stack)
        lengths = ([9, 3, 30], [5, 5, 4, 8, 6, 5])
        many = stack.enter_context(SequenceReplayBuffer.open(paths, weights=weights, seed=0))
        batch = many.sample_sequences(20_000, 3, draw=draw, fields=["reward"])
        stores = [_shares_in_store(rows, draw) for rows in lengths]
        if weights is None:
            shares = _of_one_store(lengths, draw)
        else:
            shares = {
                number * STORE + row: weight * share / sum(store.values())
                for number, (store, weight) in enumerate(zip(stores, weights, strict=True))
                for row, share in store.items()
            }
        assert_shares(Counter(batch.ids.tolist()), shares)


def _shares_in_store(lengths: Sequence[int], draw: str) -> dict[int, float]:
    """Shares by the first row's id, in windows of 3 rows."""
    starts = [range(sum(lengths[:k]), sum(lengths[: k + 1]) - 2) for k in range(len(lengths))]
    if draw == "ends":
        return {start[-1]: 1.0 for start in starts}
    if draw == "episodes":
        return {row: 1 / len(start) for start in starts for row in start}
    rows = [row for start in starts for row in start]
    return {row: 2.0 * k - 1 if draw == "recent" else 1.0 for k, row in enumerate(rows, 1)}


def _of_one_store(lengths: Sequence[Sequence[int]], draw: str) -> dict[Hashable, float]:
    """Shares as of one store in which the first store's rows are older."""
    shares = _shares_in_store([rows for store in lengths for rows in store], draw)
    border = sum(lengths[0])
    return {row if row < border else STORE + row - border: x for row, x in shares.items()}


def test_joined_stores_refuse_modes_that_need_one_order_of_rows() -> None:
    with ExitStack() as stack:
        paths = two_stores(stack)
        weighted = stack.enter_context(SequenceReplayBuffer.open(paths, weights=[1, 2], seed=0))
        for draw in ("newest", "priorities", "distinct"):
            with pytest.raises(ValueError, match=rf"draw=['\"]{draw}['\"]: "):
                weighted.sample_sequences(4, 3, draw=draw)
        plain = stack.enter_context(SequenceReplayBuffer.open(paths, seed=0))
        with pytest.raises(ValueError, match=r"draw=['\"]priorities['\"]: "):
            plain.sample_transitions(4, draw="priorities")
        assert len(set(plain.sample_sequences(50, 3, draw="distinct").ids.tolist())) == 50


# The test itself


def test_one_fair_sample_in_ten_thousand_exceeds_the_limit() -> None:
    for freedom in (6, 10, 50, 100, 500):
        half = limit(freedom) / 2
        logs = [j * math.log(half) - half - math.lgamma(j + 1) for j in range(freedom // 2)]
        passed = sum(map(math.exp, logs))  # exact where the degrees are even
        assert passed == pytest.approx(1e-4, rel=0.3)
