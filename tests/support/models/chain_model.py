"""A slow, obvious model of chains: every action ever played, and the rows that are stored now."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from stepwell.buffers import Chunk, End, Field, Spec, Storage
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.provenance.chains import chains_of

# Actions in all codecs.
SPEC = Spec(
    (
        Field("observation", "uint8", (16, 16), "zstd"),
        Field("action/a", "int64", (), "narrow"),
        Field("action/b", "float32", (2,), "raw"),
        Field("action/c", "uint8", (70,), "patch"),
        Field("reward", "float64", (), "narrow"),
    ),
    observation="observation",
    action={name: f"action/{name}" for name in "abc"},
)
ACTIONS = tuple(each.name for each in SPEC.of_kind("action"))


class Key(NamedTuple):
    session: int
    stream: int
    number: int


def rows_of(label: int, first: int, count: int) -> dict[str, np.ndarray]:
    """Rows of an episode; the action follows from the episode and the row."""
    row = np.arange(first, first + count)
    mixed = (row * 7919 + label * 104_729) % 9973
    c = np.repeat(mixed[:, None] // 100, 70, axis=1).astype(np.uint8)
    return {
        "observation": np.repeat(row[:, None], 256, 1).reshape(-1, 16, 16).astype(np.uint8),
        # Small values in some chunks, large ones in others: other dtypes in the narrow codec.
        "action/a": np.where(mixed % 50 == 0, mixed << 40, mixed % 100),
        "action/b": np.stack([mixed / 3, -mixed / 7], axis=1).astype(np.float32),
        "action/c": c,
        "reward": row / 2,
    }


@functools.lru_cache(10_000)
def actions_of(label: int, first: int, count: int) -> dict[str, np.ndarray]:
    """The actions of `rows_of`, which are compared again and again; read-only."""
    rows = rows_of(label, first, count)
    found = {name: rows[name] for name in ACTIONS}
    for each in found.values():
        each.flags.writeable = False
    return found


def assert_same(found: np.ndarray, expected: np.ndarray, what: object) -> None:
    """The same dtype, shape and values; np.testing takes several times as long."""
    assert found.dtype == expected.dtype, what
    assert found.shape == expected.shape, what
    assert (found == expected).all(), what


@dataclass
class Played:
    """An episode as it was played."""

    label: int  # what its actions follow from
    is_seeded: bool  # A seeded reset began it
    rows: int = 0  # its rows so far
    is_final: bool = False  # the env ended it

    @property
    def metadata(self) -> dict[str, object]:
        return {"seed": 7} if self.is_seeded else {}


@dataclass
class ChainModel:
    """Plays episodes, and knows all of them."""

    played: dict[Key, Played] = field(default_factory=dict[Key, Played])
    session: int = -1  # the newest session
    first_label: int = 0  # labels of the episodes count from here
    _open: dict[int, tuple[Key, int, int]] = field(default_factory=dict[int, tuple[Key, int, int]])
    _numbers: dict[int, int] = field(default_factory=dict[int, int])
    _next_id: int = 0

    def begin_session(self) -> dict[str, object]:
        self.session += 1
        self._open, self._numbers = {}, {}
        return {"session": f"the {self.session}th"}

    def chunk(self, stream: int, rows: int, end: End, *, is_seeded: bool) -> Chunk:
        """The next chunk of a stream."""
        if stream not in self._open:
            number = self._numbers.get(stream, -1) + 1
            self._numbers[stream] = number
            key = Key(self.session, stream, number)
            self.played[key] = Played(self.first_label + len(self.played), is_seeded)
            self._open[stream] = (key, self._next_id, 0)
            self._next_id += 1
        key, episode, first = self._open[stream]
        played = self.played[key]
        fields = rows_of(played.label, first, rows)
        if end & End.PENDING:  # not chosen yet
            for name in ACTIONS:
                fields[name][-1] = 0
        played.rows, played.is_final = first + rows, end.is_final
        self._open[stream] = (key, episode, first + rows - bool(end & End.PENDING))
        if end.is_final:
            del self._open[stream]
        facts = {"session": key.session, "stream_episode": key.number, **played.metadata}
        return Chunk(episode, stream, first, end, fields, {**facts, "task": "other facts"})

    def cut(self, stream: int) -> None:
        """End the recording of the stream's episode."""
        self._open.pop(stream, None)

    @classmethod
    def merged(cls, models: Sequence[ChainModel], *, sessions: int = 0) -> ChainModel:
        """The episodes of several models, whose sessions are numbered one after the other.

        Args:
            models: The models.
            sessions: Further sessions of each model's store, as a copy has one.
        """
        both, before = cls(), 0
        for model in models:
            for (session, stream, episode), played in model.played.items():
                key = Key(session + before, stream, episode)
                both.played[key] = played
            before += model.session + 1 + sessions
        return both

    def chain(self, key: Key) -> list[Key] | None:
        """The episodes from a seeded one to this one; None if one between was cut, or unknown."""
        found = [key]
        while not self.played[found[0]].is_seeded:
            before = found[0]._replace(number=found[0].number - 1)
            if before not in self.played or not self.played[before].is_final:
                return None
            found.insert(0, before)
        return found

    def check_chains(self, storage: Storage) -> None:
        """Every episode whose chain is stored is played with the right actions, and no other."""
        heads = {
            key_of(episode.stream, episode.metadata): episode.first_row
            for episode in stored_episodes(storage)
        }
        chains, unreachable = chains_of(storage)
        reached: dict[Key, tuple[Key, ...]] = {}
        for chain in chains:
            keys = [key_of(chain.stream, play.metadata) for play in chain.plays]
            assert "seed" in chain.plays[0].metadata
            assert all(b == a._replace(number=a.number + 1) for a, b in pairwise(keys)), keys
            for number, (key, play) in enumerate(zip(keys, chain.plays, strict=True)):
                played = self.played[key]
                pieces = list(play.actions())
                if number < len(keys) - 1:
                    assert (play.steps, play.end.is_final) == (played.rows - 1, True), key
                expected = actions_of(played.label, 0, play.steps)
                for name in ACTIONS:
                    rows = np.concatenate([piece[name] for piece in pieces] or [expected[name][:0]])
                    assert_same(rows, expected[name], (name, key))
                assert key not in reached
                reached[key] = tuple(keys[: number + 1])
        for key in heads:
            expected_chain = self.chain(key)
            found = reached.pop(key, None)
            if expected_chain is None or any(heads.get(each) != 0 for each in expected_chain):
                assert found is None, f"{key} is reached, though its chain was cut"
            else:
                assert found is not None, (key, [u.why for u in unreachable])
                assert len(found) == len(expected_chain), (found, expected_chain)
        assert not reached


class Rows(NamedTuple):
    """A chunk that a stream stores next."""

    stream: int
    rows: int
    end: End
    is_seeded: bool
    is_cut: bool


def random_plan(seed: int) -> list[Any]:
    """Chunks, cuts, new sessions and dropped rows; in some plans nearly all episodes are seeded."""
    rng = random.Random(seed)
    streams, most_rows = rng.randint(1, 4), rng.choice([2, 8, 30])
    seeded, finals = rng.choice([0.05, 0.3, 0.9]), rng.choice([0.1, 0.5])
    others = rng.choice([0.01, 0.05, 0.2])  # share of other steps
    plan: list[Any] = []
    for _ in range(rng.randint(10, 120)):
        stream, roll = rng.randrange(streams), rng.random() / others
        if roll < 0.1:
            plan.append("session")
            streams = rng.randint(1, 4)
        elif roll < 0.4:
            plan.append(rng.random())
        else:
            ends = (
                [End.TERMINATED, End.TRUNCATED]
                if rng.random() < finals
                else [End.NONE, End.PENDING]
            )
            rows, end = rng.randint(1, most_rows), rng.choice(ends)
            plan.append(Rows(stream, rows, end, rng.random() < seeded, roll < 0.7))
    return plan


def key_of(stream: int, metadata: Mapping[str, Any]) -> Key:
    return Key(metadata["session"], stream, metadata["stream_episode"])
