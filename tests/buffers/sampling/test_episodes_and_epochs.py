"""An epoch has each item of the model once, in any number of shards."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell.buffers import End, NotEnoughData
from stepwell.buffers.sampling.requests import Episodes, Request, Sequences, Transitions
from support.models.replay_histories import HISTORIES, KINDS, Kind, a_replay, busy_history, moments
from support.models.replay_model import assert_drawn, drawable
from support.rows.replay_rows import Played, Step


def taken(played: Played, batches: Any, request: Request) -> list[Any]:
    """The items of some batches, whose arrays are checked."""
    known = drawable(played, request)
    return [item for each in batches for item in assert_drawn(played, each, request, 1, known)]


def everything(played: Played, request: Request) -> list[Any]:
    """All items of an epoch."""
    return list(drawable(played, request).values())


REQUESTS: list[Request] = [
    *(Sequences(7, 4, borders) for borders in ("inside", "cross", "pad_after", "pad_before")),
    Sequences(7, 4, "pad_after", align="transition", burn_in=2),
    Sequences(1, 1),
    Transitions(16, stack=False),
    Transitions(5, n_step=3, stack=False),
    Episodes(3),
    Episodes(2, "transition"),
]


@pytest.mark.parametrize("stride", [2, 5])
@pytest.mark.parametrize("borders", ["inside", "pad_after"])
@pytest.mark.parametrize("capacity", [None, 120])
def test_a_stride_selects_every_nth_start(stride: int, borders: Any, capacity: int | None) -> None:
    request = Sequences(6, 3, borders)
    with a_replay(Kind(capacity=capacity)) as played:
        for step in busy_history(60):
            played.add(step)
        items = everything(played, request)
        expected = [item for item in items if item.rows[0].number % stride == 0]
        epoch = played.replay.epoch(request, stride=stride)
        assert Counter(taken(played, epoch, request)) == Counter(expected)


@pytest.mark.parametrize("request_", REQUESTS[:1] + REQUESTS[6:], ids=str)
@pytest.mark.parametrize("epochs_before", [0, 2])
def test_an_epoch_is_resumed_in_the_middle(request_: Request, epochs_before: int) -> None:
    with a_replay(Kind()) as played:
        for step in busy_history(40):
            played.add(step)
        first = played.replay.epoch(request_, seed=3, shard=(1, 2))
        for _ in range(epochs_before):
            list(first)
        going = iter(first)
        begun = [next(going) for _ in range(2)]
        state = first.state_dict()
        rest = taken(played, going, request_)
        following = taken(played, first, request_)
        second = played.replay.epoch(request_, seed=3, shard=(1, 2))
        second.load_state_dict(state)
        assert taken(played, second, request_) == rest
        assert taken(played, second, request_) == following
        assert not set(taken(played, begun, request_)) & set(rest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shuffle": False}, r"^state: .*shuffle True.*False"),
        ({"total": 3}, r"^state: .*total 98.*\b3\b"),
        ({"done": -8}, r"^done: .*-8"),
        ({"pass": "x"}, r"^pass: .*'x'"),
    ],
)
def test_the_state_of_another_epoch_is_refused(changes: dict[str, Any], message: str) -> None:
    with a_replay(Kind()) as played:
        played.add(Step(0, 100))
        epoch = played.replay.epoch(Sequences(8, 3))
        before = epoch.state_dict()
        with pytest.raises(ValueError, match=message):
            epoch.load_state_dict({**before, **changes})
        assert epoch.state_dict() == before


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)])
def test_the_seed_determines_the_order(seeds: tuple[int, int]) -> None:
    with a_replay(Kind()) as played:
        for step in busy_history(40):
            played.add(step)
        ids = [
            [batch.ids.tolist() for batch in played.replay.epoch(Sequences(8, 3), seed=seed)]
            for seed in seeds
        ]
        assert (ids[0] == ids[1]) == (seeds[0] == seeds[1])


@pytest.mark.parametrize("batch_size", [1, 7, 99])
def test_drop_last_drops_an_incomplete_batch(batch_size: int) -> None:
    with a_replay(Kind()) as played:
        played.add(Step(0, 100))
        request = Sequences(batch_size, 3)
        for drop_last in (False, True):
            epoch = played.replay.epoch(request, drop_last=drop_last)
            sizes = [len(batch.ids) for batch in epoch]
            full, rest = divmod(98, batch_size)
            assert sizes == [batch_size] * full + ([rest] if rest and not drop_last else [])
            assert len(epoch) == len(sizes)


def test_a_pass_has_the_items_stored_at_its_beginning() -> None:
    with a_replay(Kind()) as played:
        played.add(Step(0, 20, End.PENDING), Step(1, 9, End.TERMINATED))
        request = Sequences(5, 4)
        expected = list(drawable(played, request))
        epoch = played.replay.epoch(request)
        found: list[object] = []
        for batch in epoch:
            # Episodes are continued and added while they are read.
            played.add(Step(0, 3, End.PENDING), Step(1, 5, End.TRUNCATED))
            found += [item.rows[0].id for item in taken(played, [batch], request)]
        assert Counter(found) == Counter(expected)
        assert Counter(taken(played, epoch, request)) == Counter(everything(played, request))


@pytest.mark.parametrize("request_", [REQUESTS[0], REQUESTS[6], REQUESTS[8]], ids=str)
def test_a_pass_with_evicted_items_is_refused(request_: Request) -> None:
    """No item may be repeated or skipped because others were renumbered."""
    with a_replay(Kind(capacity=48)) as played:
        played.add(*(Step(0, 9, End.TERMINATED) for _ in range(5)))
        epoch = played.replay.epoch(request_, shuffle=False)
        going = iter(epoch)
        next(going)
        played.add(Step(0, 45, End.TERMINATED))
        with pytest.raises(NotEnoughData, match=r"\bepoch\b.*\bevicted\b"):
            list(going)
        epoch = played.replay.epoch(request_)
        assert Counter(taken(played, epoch, request_)) == Counter(everything(played, request_))


def test_a_pass_ends_with_its_last_batch() -> None:
    with a_replay(Kind()) as played:
        played.add(Step(0, 45, End.TERMINATED))
        request = Sequences(5, 4)
        epoch, other = played.replay.epoch(request), played.replay.epoch(request)
        going = iter(epoch)
        first = taken(played, [next(going) for _ in range(len(epoch))], request)
        other.load_state_dict(epoch.state_dict())
        second = taken(played, epoch, request)
        assert Counter(first) == Counter(second)
        assert first != second == taken(played, other, request)


@given(KINDS, HISTORIES, st.sampled_from(REQUESTS), st.integers(1, 4), st.booleans())
@example(Kind(), [*busy_history(25)], REQUESTS[0], 1, True)
def test_epochs_over_any_history_have_each_item_once(
    kind: Kind, history: list[Step], request: Request, shards: int, shuffle: bool
) -> None:
    with a_replay(kind) as played:
        for _ in moments(played, history, count=1):
            pass
        expected = everything(played, request)
        if len(expected) < shards:
            return
        epochs = [
            played.replay.epoch(request, shard=(k, shards), shuffle=shuffle) for k in range(shards)
        ]
        parts = [taken(played, epoch, request) for epoch in epochs]
        assert Counter(itertools.chain(*parts)) == Counter(expected)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        # A shard has the same items in every pass.
        for epoch, part in zip(epochs, parts, strict=True):
            batches = list(epoch)
            assert len(batches) == len(epoch) == -(-len(part) // request.batch_size)
            assert {len(batch.ids) for batch in batches[:-1]} <= {request.batch_size}
            again = taken(played, batches, request)
            assert Counter(again) == Counter(part)
            if not shuffle or len(part) > 20:
                assert (again != part) == shuffle
