"""Batches of several shards are those of one store with the same rows."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import End, NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Episodes, Sequences, Transitions
from stepwell.collectors.distributed import shard_host, shards
from stepwell.collectors.distributed.engine import ActorDied, NotEnoughResources, RemoteError
from stepwell.collectors.distributed.shards import ShardedReplay, ShardLost, Shards
from support.chi_square import assert_shares, surprise
from support.examples import by_tier
from support.inline_engine import Faults, InlineActor, InlineEngine
from support.shard_pieces import SPEC, Episode, Rows, Sent, labels_of, mirror_of

STORE = 1 << 48


class ShardEngine(InlineEngine):
    """Actors of this process: the lock of a shard's folder ends with the shard."""

    def _die(self, actor: InlineActor, cause: str, error: Exception | None = None) -> None:
        host = actor.host
        super()._die(actor, cause, error)
        if host is not None:
            host.close()


def replay_of(
    count: int = 3, engine: InlineEngine | None = None, bind: bool = True, **options: Any
) -> ShardedReplay:
    engine = ShardEngine() if engine is None else engine
    given: Any = engine  # takes no actors but its own
    replay = ShardedReplay(given, Shards(count, **options), seed=0, clock=engine.clock)
    if bind:
        replay.bind(SPEC, {"recipe": {"id": "rows"}})
    return replay


def kill(replay: ShardedReplay, number: int) -> None:
    engine: Any = replay._engine
    actor = replay._shards[number].actor
    engine._die(actor, "killed by the test")


# Rows


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 40),
    st.integers(0, 2**32),
    st.booleans(),
)
@settings(max_examples=by_tier(20, 100, 500))
def test_the_shards_hold_the_rows_of_one_replay(
    count: int, groups: int, num_envs: int, pieces: int, seed: int, as_reference: bool
) -> None:
    engine = ShardEngine(seed, Faults(delay=0.2, twice=0.2, disorder=0.2))
    replay = replay_of(count, engine)
    rows = Rows(groups, num_envs, seed)
    sent = rows.send(replay, pieces, as_reference=as_reference)
    replay.settle()
    mirror = mirror_of(sent, num_envs)
    assert len(replay) == len(mirror) == replay.steps == rows.steps
    assert replay.episodes == mirror.episodes == len(rows.episodes)
    assert replay.digest() == mirror.digest()
    assert not engine.references
    assert [one["steps"] for one in replay.summary()] == [
        sum(e.rows - 1 for e in rows.episodes.values() if e.stream // num_envs % count == k)
        for k in range(count)
    ]
    replay.close()


def test_the_digest_is_another_where_a_row_is_missing() -> None:
    replay = replay_of()
    sent = Rows(3, 2).send(replay, 20)
    replay.settle()
    full = [k for k, one in enumerate(sent) if one.payload.chunks]
    assert replay.digest() != mirror_of(sent[: full[-1]], 2).digest()


# Batches


def items_of(rows: Rows, length: int) -> list[tuple[Episode, int]]:
    """All windows of so many rows, each with its first row."""
    return [
        (episode, first)
        for episode in rows.episodes.values()
        for first in range(episode.rows - length + 1)
    ]


def shares_of(rows: Rows, length: int, draw: str) -> dict[tuple[int, int, int], float]:
    """The share of each window by its (stream, episode, row), by definition."""
    items = items_of(rows, length)
    if draw == "ends":
        items = [
            (episode, first)
            for episode, first in items
            if episode.end & (End.TERMINATED | End.TRUNCATED) and first + length == episode.rows
        ]
    number = Counter(episode for episode, _ in items)
    return {
        (episode.stream, episode.number, first): 1 / number[episode] if draw == "episodes" else 1.0
        for episode, first in items
    }


@pytest.mark.parametrize("draw", ["steps", "episodes", "ends", "distinct"])
@pytest.mark.parametrize("count", [2, 5])
def test_frequencies_are_those_of_one_store(draw: Any, count: int) -> None:
    """Four groups, some of which have many more rows than others; of five shards one is empty."""
    replay = replay_of(count)
    rows = Rows(4, 1, seed=3, longest=9)
    rows.send(replay, 12)
    replay.settle()
    held = [one["steps"] for one in replay.summary()]
    assert max(held) >= 2 * min(held)
    shares = shares_of(rows, 3, draw)
    size = min(10, len(shares)) if draw == "distinct" else 500
    counts: Counter[Hashable] = Counter()
    for _ in range(8_000 // size):
        labels = labels_of(replay.sample_sequences(size, 3, draw=draw).observation[:, 0])
        if draw == "distinct":
            assert len(set(labels)) == size
        counts.update(labels)
    assert_shares(counts, shares)


def test_frequencies_of_recent_items_are_those_within_a_shard() -> None:
    replay = replay_of(2)
    rows = Rows(2, 1, seed=1)
    rows.send(replay, 14)
    replay.settle()
    shares: dict[Hashable, float] = {}
    for stream in (0, 1):
        items = [(e.number, first) for e, first in items_of(rows, 2) if e.stream == stream]
        for k, (number, first) in enumerate(sorted(items), 1):
            shares[stream, number, first] = (2 * k - 1) / len(items)
    batch = replay.sample_sequences(20_000, 2, draw="recent")
    assert_shares(Counter(labels_of(batch.observation[:, 0])), shares)


def test_frequencies_of_transitions_and_whole_episodes_are_those_of_one_store() -> None:
    replay = replay_of()
    rows = Rows(4, 2, seed=5)
    rows.send(replay, 30)
    replay.settle()
    batch = replay.sample_transitions(10_000, n_step=2)
    assert_shares(Counter(labels_of(batch.observation)), shares_of(rows, 2, "steps"))
    whole = replay.sample_episodes(3_000)
    found = Counter(labels_of(whole.observation[:, 0]))
    assert_shares(found, {(e.stream, e.number, 0): 1.0 for e in rows.episodes.values()})
    rows_of = {(e.stream, e.number, 0): e.rows for e in rows.episodes.values()}
    assert whole.lengths.tolist() == [
        rows_of[label] for label in labels_of(whole.observation[:, 0])
    ]


def test_a_condition_keeps_the_shares_of_the_chosen_episodes() -> None:
    replay = replay_of()
    rows = Rows(4, 2, seed=6)
    rows.send(replay, 40)
    replay.settle()
    shares = {key: x for key, x in shares_of(rows, 2, "steps").items() if not key[1] % 2}
    for where in ({"is_even": True}, _is_even):
        batch = replay.sample_sequences(6_000, 2, where=where)
        assert_shares(Counter(labels_of(batch.observation[:, 0])), shares)


def _is_even(metadata: Any) -> bool:
    return bool(metadata["is_even"])


def grown_shares(
    replay: ShardedReplay, rows: Rows, rounds: int, size: int
) -> tuple[Counter[int], list[float]]:
    """Draws while the shards grow unevenly; draws and expected shares of the shards."""
    counts: Counter[int] = Counter()
    expected = [0.0] * len(replay._shards)
    for _ in range(rounds):
        rows.send(replay, 1)  # it is not waited for
        shares = shares_of(rows, 2, "steps")
        if len(shares) < 1:
            continue
        batch = replay.sample_sequences(size, 2)
        streams = batch.observation[:, 0, 0]
        counts.update((streams // rows.num_envs % len(replay._shards)).tolist())
        for stream, _, _ in shares:
            expected[stream // rows.num_envs % len(expected)] += 1 / len(shares)
        assert set(labels_of(batch.observation[:, 0])) <= set(shares)
    return counts, expected


def test_the_proportion_is_that_of_the_moment_while_shards_grow() -> None:
    """Rows that were sent, but not acknowledged yet, count at once."""
    counts, expected = grown_shares(replay_of(3), Rows(5, 2, seed=2), 200, 40)
    assert_shares(counts, dict(enumerate(expected)))


def test_a_proportion_of_an_earlier_moment_would_be_noticed() -> None:
    """The test above can fail: counts that are looked at once only."""
    replay = replay_of(3)
    first: dict[int, dict[int, int]] = {}
    plain = replay._masses

    def stale(number: int) -> list[int]:
        found = plain(number)
        if len(replay) > 20:
            first.setdefault(number, dict(enumerate(found)))
        return list(first.get(number, dict(enumerate(found))).values())

    replay._masses = stale  # type: ignore[method-assign]
    counts, expected = grown_shares(replay, Rows(5, 2, seed=2), 200, 40)
    assert surprise(counts, dict(enumerate(expected))) > 1


def test_the_items_of_a_batch_are_independent_of_their_places() -> None:
    """A random order: the first place is as often of each shard as the others are."""
    replay = replay_of(3)
    rows = Rows(3, 1, seed=4)
    rows.send(replay, 40)
    replay.settle()
    share = [0.0] * 3
    for stream, _, _ in shares_of(rows, 1, "steps"):
        share[stream] += 1
    pairs: Counter[Hashable] = Counter()
    for _ in range(1_500):
        first, second = replay.sample_sequences(2, 1).observation[:, 0, 0].tolist()
        pairs[first, second] += 1
    assert_shares(pairs, {(a, b): share[a] * share[b] for a in range(3) for b in range(3)})
    ordered = Counter({(0, 0): 500, (0, 1): 500, (1, 1): 500})
    assert surprise(ordered, {(a, b): 1.0 for a in range(2) for b in range(2)}) > 1


REQUESTS = [
    Sequences(7, 3),
    Sequences(7, 3, align="transition"),
    Sequences(7, 3, time_major=True),
    Sequences(7, 3, time_major=True, align="transition", fields=["observation", "reward"]),
    Sequences(7, 4, borders="pad_after"),
    Sequences(7, 4, borders="pad_before", burn_in=2),
    Sequences(7, 4, borders="cross"),
    Sequences(7, 2, fields=["action"]),
    Transitions(7),
    Transitions(7, n_step=3, fields=["observation", "action"]),
    Episodes(7),
    Episodes(7, align="transition", time_major=True),
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_batch_has_the_rows_and_the_form_of_one_of_a_single_store(request_: Any) -> None:
    replay = replay_of(3)
    sent = Rows(5, 2, seed=8).send(replay, 60)
    replay.settle()
    parts: list[list[Sent]] = [[one for one in sent if one.group % 3 == k] for k in range(3)]
    stores = [mirror_of(some, 2) for some in parts]
    batch = replay.sample(request_)
    assert len(set((batch.ids // STORE).tolist())) > 1
    for place, row_id in enumerate(batch.ids.tolist()):
        store = stores[row_id // STORE]
        alone = store.take(request_, np.array([row_id % STORE]))
        assert_item(batch, place, alone, request_)
    form = mirror_of(sent, 2).sample(request_)
    if not isinstance(request_, Episodes):
        assert {k: (a.shape, a.dtype) for k, a in batch.memory.items()} == {
            k: (a.shape, a.dtype) for k, a in form.memory.items()
        }
        again = replay.sample(request_, out=batch)
        for name, array in again.memory.items():
            assert array is batch.memory[name]


def assert_item(batch: Any, place: int, alone: Any, request: Any) -> None:
    """One item of a batch is that of a batch of it alone."""
    axis = 1 if getattr(request, "time_major", False) else 0
    names = set(type(alone).__dataclass_fields__) - {"memory", "burn_in", "ids", "weights", "info"}
    for name in names:
        mine, theirs = getattr(batch, name), getattr(alone, name)
        assert (mine is None) == (theirs is None), name
        if theirs is None or isinstance(theirs, dict):
            assert theirs == mine or theirs is None
            continue
        of = 0 if name == "lengths" else axis
        one = np.take(mine, place, of)
        other = np.take(theirs, 0, of)
        assert one.dtype == other.dtype, name
        if isinstance(request, Episodes) and name != "lengths":
            # With "transition" the last row of the episode follows on its transitions.
            assert not one[len(other) + (request.align == "transition") :].any(), name
            one = one[: len(other)]
        np.testing.assert_array_equal(one, other, name)


def test_equal_seeds_draw_equal_batches() -> None:
    def ids(seed: int) -> list[list[int]]:
        engine = ShardEngine(seed, Faults(delay=0.3, disorder=0.3))
        replay = replay_of(3, engine)
        Rows(5, 2, seed=1).send(replay, 20)
        replay.settle()
        return [replay.sample_sequences(5, 2).ids.tolist() for _ in range(4)]

    assert ids(0) == ids(1)
    replay = replay_of(3)
    Rows(5, 2, seed=1).send(replay, 20)
    replay.settle()
    drawn = [replay.sample_sequences(5, 2).ids.tolist() for _ in range(4)]
    ahead = replay_of(3)
    Rows(5, 2, seed=1).send(ahead, 20)
    ahead.settle()
    batches: Iterator[Any] = ahead.prefetch(Sequences(5, 2), depth=3)
    assert [next(batches).ids.tolist() for _ in range(4)] == drawn


def test_prefetch_asks_for_so_many_batches_ahead() -> None:
    replay = replay_of(2)
    Rows(4, 2, seed=1).send(replay, 20)
    replay.settle()
    engine: Any = replay._engine
    asked: list[str] = []
    plain = engine.call

    def call(actor: Any, method: str, *arguments: object, **options: Any) -> Any:
        asked.append(method)
        return plain(actor, method, *arguments, **options)

    engine.call = call
    batches = replay.prefetch(Sequences(64, 2), depth=2)
    for done in range(1, 4):
        next(batches)
        assert asked.count("sample") == 2 * (done + 2)


def test_counts_are_those_of_one_store() -> None:
    replay = replay_of()
    sent = Rows(5, 2, seed=8).send(replay, 30)
    mirror = mirror_of(sent, 2)
    for request in (Sequences(1, 3), Transitions(1), Episodes(1)):
        assert replay.count(request) == mirror.count(request) > 0


# Refusals


def test_an_empty_replay_says_so() -> None:
    with pytest.raises(NotEnoughData, match="3 shards are empty"):
        replay_of(bind=False).sample_transitions(4)
    with pytest.raises(NotEnoughData, match=r"at least 1 .* in 3 shards, got 0"):
        replay_of().sample_transitions(4)


def test_too_few_different_items_are_refused() -> None:
    replay = replay_of()
    rows = Rows(2, 1)
    rows.send(replay, 4)
    there = len(shares_of(rows, 2, "steps"))
    with pytest.raises(NotEnoughData, match=f"at least {there + 1} .*got {there}"):
        replay.sample_sequences(there + 1, 2, draw="distinct")
    assert len(set(replay.sample_sequences(there, 2, draw="distinct").ids.tolist())) == there


@pytest.mark.parametrize("draw", ["newest", "priorities"])
def test_modes_that_need_one_store_are_refused(draw: Any) -> None:
    replay = replay_of()
    with pytest.raises(ValueError, match=rf"draw='{draw}'"):
        replay.sample_sequences(4, 2, draw=draw)
    with pytest.raises(ValueError, match=rf"draw='{draw}'"):
        replay.prefetch(Transitions(4, draw=draw))


def test_invalid_requests_are_refused_without_asking_a_shard() -> None:
    replay = replay_of()
    engine: Any = replay._engine
    engine.call = None
    with pytest.raises(ValueError, match="fields names 'pixels'"):
        replay.sample_sequences(4, 2, fields=["pixels"])
    with pytest.raises(ValueError, match="length"):
        replay.sample_sequences(4, 0)
    with pytest.raises(ValueError, match="depth"):
        replay.prefetch(Sequences(4, 2), depth=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count"),
        ({"count": 2, "capacity": 0}, "capacity"),
        ({"count": 2, "on_death": "ignore"}, "on_death.*'replace' or 'raise'.*'ignore'"),
        ({"count": 2, "codecs": {"observation": "zip"}}, "zip"),
    ],
)
def test_declarations_are_checked(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shards(**options)


def test_a_capacity_is_that_of_all_shards() -> None:
    replay = replay_of(4, capacity=100)
    Rows(8, 2, seed=2).send(replay, 200)
    replay.settle()
    assert replay.capacity == 25
    assert 60 < len(replay) <= 100 < replay.steps


# Deaths


def test_a_shard_in_ram_that_dies_is_replaced_by_an_empty_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replay = replay_of(3)
    rows = Rows(6, 2, seed=3)
    sent = rows.send(replay, 40)
    replay.settle()
    held = replay.summary()[1]["steps"]
    kill(replay, 1)
    with caplog.at_level(logging.WARNING):
        batch = replay.sample_sequences(300, 2)
    assert replay.lost_shards == 1
    assert "shard 1 died: shard-1 is dead" in caplog.text
    assert f"{held:,} env steps" in caplog.text
    assert set((batch.observation[:, 0, 0] // 2 % 3).tolist()) == {0, 2}
    later = list(rows.pieces(40))
    for group, payload in later:
        replay.add(group, 2, payload)
    replay.settle()
    batch = replay.sample_sequences(300, 2)
    assert set((batch.observation[:, 0, 0] // 2 % 3).tolist()) == {0, 1, 2}
    kept = [one for one in (*sent, *later) if one.group % 3 != 1]
    kept += [one for one in later if one.group % 3 == 1]
    assert replay.digest() == mirror_of(kept, 2).digest()


def test_with_raise_a_death_is_an_error(tmp_path: Path) -> None:
    replay = replay_of(2, on_death="raise")
    Rows(2, 1).send(replay, 10)
    replay.settle()
    held = replay.summary()[0]["steps"]
    kill(replay, 0)
    with pytest.raises(ShardLost, match=rf"shard 0 died: shard-0 is dead.* {held} env steps"):
        replay.sample_sequences(100, 2)


def test_a_shard_that_does_not_answer_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    replay = replay_of(2)
    Rows(2, 1, seed=1).send(replay, 10)
    replay.settle()
    actor: Any = replay._shards[0].actor
    actor.until = float("inf")
    with caplog.at_level(logging.WARNING):
        replay.sample_sequences(100, 2)
    assert "shard 0 died: it did not answer" in caplog.text


def test_a_shard_that_cannot_start_is_an_error_within_30_seconds() -> None:
    engine = ShardEngine(0, Faults(never_start=1.0))
    with pytest.raises(NotEnoughResources, match="shard-0 asks for 8 CPUs, and 2 are free"):
        replay_of(2, engine)
    assert engine.now < 30


def test_a_shard_that_dies_again_and_again_is_an_error() -> None:
    engine = ShardEngine()
    replay = replay_of(2, engine)
    Rows(2, 1, seed=1).send(replay, 10)
    replay.settle()

    def die(actor: InlineActor, method: str, arguments: tuple[object, ...]) -> None:
        if actor.name.startswith("shard-1"):
            raise ActorDied(f"{actor.name}: no memory")

    engine.before_call = die
    with pytest.raises(ShardLost, match=r"shard 1 died: shard-1\.3: no memory"):
        replay.sample_sequences(100, 2)


@given(st.integers(0, 2**32), st.integers(1, 4), st.booleans())
@settings(max_examples=by_tier(12, 150, 2_000), deadline=None)
def test_folders_have_every_row_once_whenever_shards_die(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, as_reference: bool
) -> None:
    """Deaths before and after an add is done, so that its answer is lost."""
    with mock.patch.object(shards, "_MOST_DEATHS", 1_000):
        check_folders(tmp_path_factory, seed, count, as_reference)


def check_folders(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, as_reference: bool
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    engine = ShardEngine(seed)
    replay = replay_of(count, engine, path=folder)
    engine._faults = Faults(die_before=0.03, die_after=0.06, delay=0.2, twice=0.1)
    rows = Rows(4, 2, seed)
    sent: list[Sent] = []
    for _ in range(4):
        sent += rows.send(replay, 6, as_reference=as_reference)
        if any(one.payload.chunks for one in sent):
            batch = replay.sample_sequences(3, 1)
            assert set(labels_of(batch.observation[:, 0])) <= set(shares_of(rows, 1, "steps"))
    replay.settle()
    mirror = mirror_of(sent, 2)
    assert replay.digest() == mirror.digest()
    assert len(replay) == len(mirror)
    assert replay.episodes == mirror.episodes
    assert replay.lost_shards == 0
    engine._faults = Faults()
    assert [len(replay._all("state")[0].sessions)] == [1]
    replay.close()
    folders = sorted(folder.iterdir())
    assert [one.name for one in folders] == [f"shard-{k:05d}" for k in range(count)]
    with SequenceReplayBuffer.open(folders) as stored:
        assert len(stored) == len(mirror)
        found = {
            (*e.fields["observation"][0].tolist(), len(e.fields["reward"]))
            for e in stored.iter_episodes()
        }
    assert found == {(e.stream, e.number, 0, e.rows) for e in rows.episodes.values()}


def test_an_add_that_is_not_compared_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: rows whose answer was lost are stored twice, or refused."""
    monkeypatch.setattr(shard_host.ShardHost, "_is_stored", lambda *arguments: False)
    engine = ShardEngine()
    replay = replay_of(1, engine, path=tmp_path)
    rows = Rows(1, 1, seed=1)
    engine._faults = Faults(die_after=1.0, most_deaths=1)
    try:
        sent = rows.send(replay, 5)
        replay.settle()
        assert len(replay) != len(mirror_of(sent, 1))
    except RemoteError:
        pass
    finally:
        engine.close()


def test_a_folder_is_continued_by_a_later_run(tmp_path: Path) -> None:
    replay = replay_of(2, path=tmp_path)
    sent = Rows(4, 1, seed=1).send(replay, 20)
    replay.close()
    again = replay_of(2, path=tmp_path, bind=False)
    assert again.is_bound
    assert len(again) == len(mirror_of(sent, 1))
    again.bind(SPEC, {"recipe": {"id": "rows"}})
    assert len(again.sessions) == 2
    more = Rows(4, 1, seed=2, session=1)
    more.send(again, 20)
    again.settle()
    assert len(again) == len(mirror_of(sent, 1)) + more.steps
    again.close()


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    replay_of(2, path=tmp_path).close()
    with pytest.raises(RemoteError, match=r"of 3 shards, got one of 2; pass Shards\(2\)"):
        replay_of(3, path=tmp_path)


def test_other_rows_are_refused(tmp_path: Path) -> None:
    replay = replay_of(2)
    Rows(2, 1, seed=1).send(replay, 10)
    replay.settle()
    with pytest.raises(RemoteError, match="SpecMismatch"):
        replay.bind(SPEC, {"recipe": {"id": "others"}})


def test_rows_that_are_damaged_are_an_error_and_stored_by_nobody() -> None:
    replay = replay_of(1)
    rows = Rows(1, 1, seed=1)
    sent = next(one for one in rows.pieces(20) if one.payload.chunks)
    data = bytearray(sent.payload.chunks)
    data[-1] ^= 1
    damaged = sent.payload._replace(chunks=bytes(data))

    def send() -> None:
        replay.add(0, 1, damaged)  # its answer may be there at once
        replay.settle()

    with pytest.raises(RemoteError, match="StoreCorrupt"):
        send()
    replay.settle()
    assert len(replay) == 0


def test_many_requests_do_not_mix() -> None:
    replay = replay_of(2)
    Rows(4, 2, seed=1).send(replay, 30)
    replay.settle()
    lengths: Sequence[int] = [2, 3, 1, 4]
    for length, size in itertools.product(lengths, range(1, 12)):
        batch = replay.sample_sequences(size, length)
        assert batch.reward.shape == (size, length)
        rows = batch.observation[:, :, 2]
        assert (np.diff(rows, axis=1) == 1).all()
