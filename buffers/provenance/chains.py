"""Chains: episodes that one env played from a seeded reset on, in the order in which it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, cast

import numpy as np

from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.storage.joined import JoinedStorage
from stepwell.buffers.storage.protocol import Storage

__all__ = ["Chain", "Play", "Unreachable", "chains_of"]

_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Play:
    """An episode of a chain: its actions, and its rows as far as they are stored.

    Args:
        spec_names: Names of the fields that hold the action.
        steps: Env steps from its reset to its last known row.
        metadata: JSON-able facts about the episode.
        end: Flags of the last row.
        episode: Its stored rows; None if only its actions are known.
        kept: Actions of rows that are not stored, from row 0 on, in pieces.
    """

    spec_names: tuple[str, ...]
    steps: int
    metadata: Mapping[str, object]
    end: End
    episode: StoredEpisode | None = None
    kept: tuple[Mapping[str, np.ndarray], ...] = ()

    @property
    def first_row(self) -> int:
        """The first row that is stored; ``steps + 1`` where none is."""
        return self.steps + 1 if self.episode is None else self.episode.first_row

    def actions(self) -> Iterator[Mapping[str, np.ndarray]]:
        """Actions ``[n, ...]`` by field name, in pieces of consecutive steps from the reset on."""
        left = self.steps
        for piece in self.kept:
            yield _first(piece, left)
            left -= len(next(iter(piece.values())))
        if self.episode is None:
            return
        for chunk in self.episode.chunks(_ROWS, self.spec_names) if left > 0 else ():
            yield _first(chunk.fields, left)
            left -= chunk.rows


@dataclass(frozen=True, slots=True)
class Chain:
    """Episodes that one env played one after the other, the first one from a seeded reset.

    Args:
        facts: The session that played them.
        stream: Index of the env.
        seed: Seed of the reset that began the first one.
        plays: The episodes, without any that no stored one needs.
    """

    facts: Mapping[str, object]
    stream: int
    seed: int
    plays: tuple[Play, ...]

    @property
    def steps(self) -> int:
        """Env steps of all plays."""
        return sum(play.steps for play in self.plays)


class Unreachable(NamedTuple):
    """A stored episode that cannot be played again, and the reason."""

    episode: StoredEpisode
    why: str


def chains_of(storage: Storage) -> tuple[list[Chain], list[Unreachable]]:
    """All chains of a storage that lead to stored episodes, and the episodes that none leads to.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> with sw.Collector(gym.make("CartPole-v1"), sw.RandomPolicy(), replay, seed=0) as one:
        ...     report = one.collect(episodes=2)
        >>> chains, unreachable = chains_of(replay.storage)
        >>> sum(len(chain.plays) for chain in chains), unreachable
        (2, [])
    """
    if isinstance(storage, JoinedStorage):
        found = [chains_of(part) for part in storage.storages]
        return [one for chains, _ in found for one in chains], [
            one for _, un in found for one in un
        ]
    return _Finder(storage).find()


class _Known(NamedTuple):
    """What is known of one episode: stored rows, kept actions, or both."""

    metadata: Mapping[str, object]
    stored: list[StoredEpisode]
    kept: list[Chunk]


class _Finder:
    """Finds the chains of one storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names = tuple(field.name for field in storage.spec.of_kind("action"))
        self._sessions = list(storage.sessions)

    def find(self) -> tuple[list[Chain], list[Unreachable]]:
        chains: list[Chain] = []
        unreachable: list[Unreachable] = []
        known = self._known()
        in_order = sorted(known, key=lambda key: key)
        for (session, stream), keys in groupby(in_order, key=lambda key: (key[0], key[1])):
            facts = self._facts(session)
            seed, number, plays, why = -1, -2, list[Play](), "no seeded reset leads to it"
            for key in keys:
                one = known[key]
                given = _whole(one.metadata, "seed")
                if given is not None:
                    self._close(chains, facts, stream, seed, plays)
                    seed, plays, why = given, [], ""
                elif not why and key[2] != number + 1:
                    why = f"episode {number + 1} of its stream is not stored, nor its actions"
                number = key[2]
                play = None if why else self._play(one)
                if play is None:
                    why = why or "its first rows are not stored, nor their actions"
                    unreachable += [Unreachable(episode, why) for episode in one.stored]
                else:
                    plays.append(play)
                    unreachable += [
                        Unreachable(episode, "rows before it were lost")
                        for episode in one.stored[1:]
                    ]
                    if not play.end.is_final:
                        why = (
                            f"episode {number} of its stream was cut, and no seeded reset followed"
                        )
            self._close(chains, facts, stream, seed, plays)
        return chains, unreachable

    def _known(self) -> dict[tuple[int, int, int], _Known]:
        """What is known of each episode, by session, stream and number within the stream."""
        found: dict[tuple[int, int, int], _Known] = {}
        turns: dict[int, tuple[int, int]] = {}  # of stores without "session": restarts of a stream
        for episode in stored_episodes(self._storage):
            key = self._key(episode.stream, episode.metadata, turns)
            found.setdefault(key, _Known(episode.metadata, [], [])).stored.append(episode)
        for chunk in self._storage.ledger:
            key = self._key(chunk.stream, chunk.metadata, turns)
            found.setdefault(key, _Known(chunk.metadata, [], [])).kept.append(chunk)
        return found

    def _key(
        self, stream: int, metadata: Mapping[str, object], turns: dict[int, tuple[int, int]]
    ) -> tuple[int, int, int]:
        number = _whole(metadata, "stream_episode")
        session = _whole(metadata, "session")
        if number is None:
            number = turns.get(stream, (0, -1))[1] + 1
        if session is None:
            # Stores of version 0.1 number the episodes of each session from 0 on.
            turn, before = turns.get(stream, (0, -1))
            turn += number < before
            turns[stream] = (turn, number)
            session = turn
        return session, stream, number

    def _facts(self, session: int) -> Mapping[str, object]:
        played = [one for one in self._sessions if "copied_from" not in one]
        if session < len(self._sessions) and "recipe" in self._sessions[session]:
            return self._sessions[session]
        return (played or self._sessions or [{}])[0]

    def _play(self, one: _Known) -> Play | None:
        """The episode as it can be played; None if actions are missing."""
        stored = one.stored[0] if one.stored else None
        kept = sorted(one.kept, key=lambda chunk: chunk.first_row)
        pieces: list[Mapping[str, np.ndarray]] = []
        row = 0
        need = None if stored is None else stored.first_row
        for chunk in kept:
            if need is not None and row >= need:
                break
            if chunk.first_row > row:
                return None
            skipped = row - chunk.first_row
            stop = chunk.rows if need is None else min(chunk.rows, need - chunk.first_row)
            if stop <= skipped:
                continue
            pieces.append({name: rows[skipped:stop] for name, rows in chunk.fields.items()})
            row = chunk.first_row + stop
        if stored is None:
            end = kept[-1].end
            # A final row has no action; a row whose action is not known yet neither.
            steps = row - 1 if row else 0
            return Play(self._names, steps, one.metadata, end, None, tuple(pieces))
        if row < stored.first_row:
            return None
        steps = stored.first_row + stored.rows - 1
        return Play(self._names, steps, one.metadata, stored.end, stored, tuple(pieces))

    def _close(
        self,
        chains: list[Chain],
        facts: Mapping[str, object],
        stream: int,
        seed: int,
        plays: list[Play],
    ) -> None:
        """Add the chain up to its last stored episode."""
        while plays and plays[-1].episode is None:
            plays.pop()
        if plays:
            chains.append(Chain(facts, stream, seed, tuple(plays)))


def _whole(metadata: Mapping[str, object], key: str) -> int | None:
    """A whole number of the metadata, which come from a file; None for anything else."""
    value = metadata.get(key)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return cast("int", value) if is_whole else None


def _first(piece: Mapping[str, np.ndarray], count: int) -> Mapping[str, np.ndarray]:
    return {name: rows[:count] for name, rows in piece.items()}
