"""`chains_of` against a slow model, which knows everything that was ever played.

Of rings and copies those episodes can be played again whose chain is stored from its reset on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import (
    Chunk,
    Codec,
    End,
    Field,
    MemoryStorage,
    SequenceReplayBuffer,
    Spec,
    Storage,
)
from stepwell.buffers.curation import copy
from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from stepwell.buffers.provenance.chains import Chain, chains_of
from support.examples import by_tier

SPEC = Spec(
    (
        Field("observation", "float64", (), "raw"),
        Field("action", "int64", (), "raw"),
        Field("reward", "float64", (), "raw"),
    ),
    "observation",
    "action",
)
SEED = 1000  # of the episode with id k: SEED + k


@dataclass
class Played:
    """An episode as it was played; ids grow in the order of the history."""

    id: int
    session: int  # its session
    stream: int  # its env
    number: int  # its number within the stream
    is_seeded: bool  # its reset had a seed
    rows: int  # number of rows
    is_final: bool  # the env ended it
    before: Played | None  # the episode of the same env before it, in the same session

    @property
    def actions(self) -> np.ndarray:
        return self.id * 100 + np.arange(self.rows)

    def is_reached(self, stored: set[int]) -> bool:
        """All episodes from a seeded one on are stored whole, and only the last one is cut."""
        if self.id not in stored:
            return False
        if self.is_seeded:
            return True
        before = self.before
        return before is not None and before.is_final and before.is_reached(stored)


@st.composite
def histories(draw: st.DrawFn, first: int = 0) -> list[Played]:
    """What was played, with ids from the first one on."""
    played: list[Played] = []
    for session in range(draw(st.integers(1, 3))):
        newest: dict[int, Played] = {}
        for _ in range(draw(st.integers(0, 8))):
            stream = draw(st.integers(0, 1))
            before = newest.get(stream)
            one = Played(
                first + len(played),
                session,
                stream,
                0 if before is None else before.number + 1,
                before is None or draw(st.integers(0, 3)) == 0,
                draw(st.integers(1, 5)),
                draw(st.integers(0, 4)) > 0,
                before,
            )
            newest[stream] = one
            played.append(one)
    return played


def rows_of(actions: np.ndarray) -> dict[str, np.ndarray]:
    zeros = np.zeros(len(actions))
    return {"observation": zeros, "reward": zeros, "action": actions}


def chunks_of(one: Played, names_session: bool, at: int, is_pending: bool) -> list[Chunk]:
    """The episode in one chunk or two, the first of which may end with a row without its action."""
    facts: dict[str, object] = {"stream_episode": one.number, "label": one.id}
    if names_session:
        facts["session"] = one.session
    if one.is_seeded:
        facts["seed"] = SEED + one.id
    end = End.TERMINATED if one.is_final else End.NONE
    fields = rows_of(one.actions)
    whole = Chunk(one.id, one.stream, 0, end, fields, facts)
    if not 0 < at < one.rows:
        return [whole]
    first = {name: rows[: at + is_pending].copy() for name, rows in fields.items()}
    if is_pending:
        first["action"][-1] = 0
    rest = {name: rows[at:] for name, rows in fields.items()}
    begin = End.PENDING if is_pending else End.NONE
    return [
        Chunk(one.id, one.stream, 0, begin, first, facts),
        Chunk(one.id, one.stream, at, end, rest, facts),
    ]


def store(
    storage: Storage,
    played: list[Played],
    stored: set[int],
    *,
    names_session: bool = True,
    data: Any = None,
) -> None:
    """Store these episodes; a second chunk comes right before the next episode of its env."""
    waiting: dict[int, list[Chunk]] = {}
    for session in range(1 + max((one.session for one in played), default=0)):
        storage.append_session({"recipe": {}, "number": session})
    for one in played:
        if one.id in stored:
            at = 0 if data is None else data.draw(st.integers(0, 5))
            is_pending = data is not None and data.draw(st.booleans())
            storage.add(waiting.pop(one.stream, []))
            first, *waiting[one.stream] = chunks_of(one, names_session, at, is_pending)
            storage.add([first])
    for rest in waiting.values():
        storage.add(rest)


def storage_of(played: list[Played], stored: set[int], **more: Any) -> MemoryStorage:
    storage = MemoryStorage(SPEC)
    store(storage, played, stored, **more)
    return storage


def label_of(episode: StoredEpisode) -> Any:
    return episode.metadata["label"]


def check(storage: Storage, history: list[Played], reached: set[int] | None = None) -> None:
    """Exactly these episodes are in chains, each after all that lead to it.

    If none are given, they are those of which all lie in the storage from their reset on.
    """
    played = {one.id: one for one in history}
    stored = list(stored_episodes(storage))
    if reached is None:
        whole = {label_of(one) for one in stored if not one.first_row}
        reached = {label for label in whole if played[label].is_reached(whole)}
    chains, unreachable = chains_of(storage)
    found: list[int] = []
    for chain in chains:
        keys = [label_of(play.episode) for play in chain.plays]
        found += keys
        first = played[keys[0]]
        assert (chain.seed, chain.stream) == (SEED + first.id, first.stream)
        assert chain.facts["number"] == first.session
        for play in chain.plays:
            one = played[label_of(play.episode)]
            pieces = [piece["action"] for piece in play.actions()]
            actions = np.concatenate([np.zeros(0, np.int64), *pieces])
            assert play.steps == one.rows - 1
            np.testing.assert_array_equal(actions, one.actions[: play.steps])
            if one.id != first.id:
                assert one.before is not None
                assert one.before.id == keys[keys.index(one.id) - 1]
    assert sorted(found) == sorted(reached)
    lost = [label_of(one.episode) for one in unreachable]
    assert sorted(found + lost) == sorted(map(label_of, stored))
    assert all(one.why for one in unreachable)


@given(histories(), st.data())
def test_all_stored_episodes_that_a_seed_leads_to_are_found(
    played: list[Played], data: st.DataObject
) -> None:
    stored = {one.id for one in played if data.draw(st.integers(0, 5))}
    storage = storage_of(played, stored, data=data)
    check(storage, played, {one.id for one in played if one.is_reached(stored)})


@given(histories(), st.data())
def test_whole_stores_that_do_not_name_sessions_are_found_as_well(
    played: list[Played], data: st.DataObject
) -> None:
    # Only where each env played in each session is it certain which one an episode belongs to.
    sessions = range(1 + max((one.session for one in played), default=0))
    pairs = {(one.session, one.stream) for one in played}
    streams = {one.stream for one in played}
    if pairs != {(session, stream) for session in sessions for stream in streams}:
        return
    everything = {one.id for one in played}
    storage = storage_of(played, everything, names_session=False, data=data)
    check(storage, played, {one.id for one in played if one.is_reached(everything)})


CODECS: list[dict[str, Codec]] = [{}, {"action": "narrow"}]


def is_kept(labels: set[int], episode: StoredEpisode) -> bool:
    return label_of(episode) in labels


@settings(max_examples=by_tier(60, 200, 1000), deadline=None)
@given(histories(), histories(100), st.data())
def test_rings_and_copies_of_copies_have_the_chains_that_they_have_whole(
    one: list[Played], other: list[Played], data: st.DataObject
) -> None:
    """Chunks are copied as they are from so many rows on; with other codecs all are decoded."""
    sizes = st.sampled_from([None, None, 6, 16])
    replays: list[SequenceReplayBuffer] = []
    for history in (one, other) if other else (one,):
        ring = SequenceReplayBuffer.of(MemoryStorage(SPEC, capacity=data.draw(sizes)))
        store(ring.storage, history, {each.id for each in history}, data=data)
        check(ring.storage, history)
        replays.append(ring)
    for _ in range(data.draw(st.integers(0, 3))):
        most, codecs = data.draw(sizes), data.draw(st.sampled_from(CODECS))
        target = SequenceReplayBuffer(capacity=most, codecs=codecs)
        kept = {each.id for each in one + other if data.draw(st.integers(0, 4))}
        try:
            with mock.patch.object(copy, "_LEAST_ROWS", data.draw(st.sampled_from([1, 3, 256]))):
                report = copy.copy_episodes(
                    *(replays, target),
                    keep=partial(is_kept, kept),
                    duplicates="keep",
                    digest=True,
                )
        except ValueError:
            return  # nothing was chosen
        check(target.storage, one + other)
        assert most is not None or target.digest() == report.digest
        replays = [target]


def chain_of(lengths: list[int], **facts: Any) -> list[Played]:
    """Episodes of one env, of which only the first one is seeded."""
    played: list[Played] = []
    for number, rows in enumerate(lengths):
        before = played[-1] if played else None
        played.append(Played(number, 0, 0, number, number == 0, rows, True, before))
    return played


def whys(storage: MemoryStorage) -> dict[int, str]:
    return {one.episode.id: one.why for one in chains_of(storage)[1]}


def test_an_episode_with_rows_lost_in_its_middle_leads_nowhere() -> None:
    played = chain_of([3, 6, 4])
    storage = MemoryStorage(SPEC)
    storage.append_session({"recipe": {}, "number": 0})
    for one in played:
        whole = chunks_of(one, True, 0, False)[0]
        storage.add(whole.split(2))
    lost = next(
        position
        for position in range(len(storage.index))
        if storage.index.record(position)[:3] == (1, 0, 2)
    )
    storage.lose(lost)
    chains, unreachable = chains_of(storage)
    (chain,) = chains
    assert [play.steps for play in chain.plays] == [2, 1]
    pieces = [(one.episode.id, one.episode.first_row) for one in unreachable]
    assert pieces == [(1, 4), (2, 0)]
    assert "lost" in unreachable[0].why


def reached_ids(chains: list[Chain]) -> list[int]:
    return [play.episode.id for chain in chains for play in chain.plays]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"seed": True, "stream_episode": 1},
        {"seed": -1, "stream_episode": 1},
        {"seed": None, "session": 10**30},
        {"stream_episode": "1", "session": 0},
        {"stream_episode": [1], "session": {}},
        {"stream_episode": 2, "session": 0},
        {"stream_episode": 0, "session": 0},
        {"stream_episode": 1, "session": 1},
    ],
    ids=str,
)
def test_metadata_of_any_kind_make_an_episode_unreachable_at_most(facts: Any) -> None:
    storage = MemoryStorage(SPEC)
    storage.append_session({"recipe": {}})
    fields = rows_of(np.zeros(2, np.int64))
    seeded = {"seed": 1, "stream_episode": 0, "session": 0}
    storage.add([Chunk(0, 0, 0, End.TERMINATED, fields, seeded)])
    storage.add([Chunk(1, 0, 0, End.TERMINATED, fields, facts)])
    chains, unreachable = chains_of(storage)
    assert reached_ids(chains) == [0]
    assert [one.episode.id for one in unreachable] == [1]


def copied(episodes: int, copied_episodes: int) -> dict[str, object]:
    return {"copied_from": [{"episodes": episodes}], "copied_episodes": copied_episodes}


@pytest.mark.parametrize(
    ("copy", "is_certain"),
    [
        (copied(2, 2), True),
        (copied(3, 2), False),
        ({"copied_from": [3], "copied_episodes": 3}, False),
        ({"copied_from": 3}, True),
    ],
)
def test_a_number_may_belong_to_another_session_in_an_old_copy_that_left_some_out(
    copy: Any, is_certain: bool
) -> None:
    storage = MemoryStorage(SPEC)
    sessions: list[dict[str, Any]] = [{"recipe": {}}, {"recipe": {}}, copy]
    for facts in sessions:
        storage.append_session(facts)
    fields = rows_of(np.zeros(2, np.int64))
    for number in range(2):
        metadata = {"stream_episode": number, **({} if number else {"seed": 1})}
        storage.add([Chunk(number, 0, 0, End.TERMINATED, fields, metadata)])
    assert (reached_ids(chains_of(storage)[0]) == [0, 1]) == is_certain
    if not is_certain:
        assert "older version" in whys(storage)[1]


def test_only_actions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are hundreds of times as large as actions."""
    played = chain_of([3, 4])
    storage = storage_of(played, {0, 1})
    read: set[str] = set()
    runs = StoredEpisode._runs  # pyright: ignore[reportPrivateUsage]

    def watched(
        self: StoredEpisode, first_row: int, stop: int, max_rows: int, names: Any, chain: Any
    ) -> Any:
        read.update(names)
        return runs(self, first_row, stop, max_rows, names, chain)

    monkeypatch.setattr(StoredEpisode, "_runs", watched)
    for chain in chains_of(storage)[0]:
        for play in chain.plays:
            list(play.actions())
    assert read == {"action"}
