"""Chains: episodes that one env played from a seeded reset on, in the order in which it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    """All that is known of one episode: stored rows, kept actions, or both."""

    id: int  # -1 without stored rows
    number: int
    metadata: Mapping[str, object]
    stored: list[StoredEpisode]
    kept: list[Chunk]


class _Finder:
    """Finds the chains of one storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names = tuple(field.name for field in storage.spec.of_kind("action"))
        self._sessions = list(storage.sessions)
        self._chains: list[Chain] = []
        self._unreachable: list[Unreachable] = []

    def find(self) -> tuple[list[Chain], list[Unreachable]]:
        is_certain = self._old_numbers_are_certain()
        for (session, stream), turns in self._turns().items():
            for turn, episodes in enumerate(turns):
                facts = self._facts(turn if session is None else session)
                self._find(facts, stream, episodes, session is not None or is_certain)
        return self._chains, self._unreachable

    def _turns(self) -> dict[tuple[int | None, int], list[list[_Known]]]:
        """The episodes of each stream of each session, in order, where numbers grow.

        In stores of version 0.1, whose episodes do not name their session, numbers begin at 0 again
        with each session.
        """
        stored: dict[tuple[int | None, int], list[_Known]] = {}
        for episode in stored_episodes(self._storage):
            metadata = episode.metadata
            known = stored.setdefault((_whole(metadata, "session"), episode.stream), [])
            if known and known[-1].id == episode.id:  # rows in its middle were lost
                known[-1].stored.append(episode)
            else:
                known.append(_Known(episode.id, _number(metadata), metadata, [episode], []))
        turns = {key: _split(known) for key, known in stored.items()}
        for key, kept in self._kept().items():
            if len(turns.get(key, ())) == 1:  # else nothing says which of them is meant
                turns[key] = [_with_kept(turns[key][0], kept)]
        return turns

    def _kept(self) -> dict[tuple[int | None, int], list[_Known]]:
        """Episodes of which actions are kept, by session and stream."""
        found: dict[tuple[int | None, int], dict[int, _Known]] = {}
        for chunk in self._storage.ledger:
            number = _number(chunk.metadata)
            key = _whole(chunk.metadata, "session"), chunk.stream
            known = found.setdefault(key, {})
            if number not in known:
                known[number] = _Known(-1, number, chunk.metadata, [], [])
            known[number].kept.append(chunk)
        return {key: list(known.values()) for key, known in found.items()}

    def _old_numbers_are_certain(self) -> bool:
        """False if a number that follows another one may be that of another session.

        Of stores of version 0.1, with rows of several sessions and episodes that were left out.
        """
        played = [one for one in self._sessions if "copied_from" not in one]
        return len(played) < 2 or not (
            self._storage.lost_chunks or any(map(_left_some_out, self._sessions))
        )

    def _facts(self, session: int) -> Mapping[str, object]:
        played = [one for one in self._sessions if "recipe" in one]
        if session < len(self._sessions) and "recipe" in self._sessions[session]:
            return self._sessions[session]
        return (played or self._sessions or [{}])[0]

    def _find(
        self, facts: Mapping[str, object], stream: int, episodes: list[_Known], is_certain: bool
    ) -> None:
        """Find the chains among the episodes that one env played in a session."""
        seed, plays = -1, list[Play]()
        number, why = -2, ""
        for one in episodes:
            given = _whole(one.metadata, "seed")
            if given is not None:
                self._close(facts, stream, seed, plays)
                seed, plays, why = given, [], ""
            elif not why and (not plays or one.number < 1):
                why = "no seeded reset leads to it"
            elif not why and one.number != number + 1:
                why = f"episode {number + 1} of env {stream} is not stored, nor are its actions"
            elif not (why or is_certain):
                why = "its store was made by an older version, and does not name its session"
            number = one.number
            play = None if why else self._play(one)
            if play is None:
                self._unreachable += [
                    Unreachable(episode, why or "its first rows are not stored, nor their actions")
                    for episode in one.stored
                ]
                why = why or f"the first rows of episode {number} of env {stream} are not stored"
                continue
            plays.append(play)
            self._unreachable += [
                Unreachable(episode, "rows before it were lost") for episode in one.stored[1:]
            ]
            if not play.end.is_final:
                why = f"episode {number} of env {stream} was cut, and no seeded reset followed"
        self._close(facts, stream, seed, plays)

    def _play(self, one: _Known) -> Play | None:
        """The episode as it can be played; None if actions are missing."""
        stored = one.stored[0] if one.stored else None
        need = None if stored is None else stored.first_row
        pieces: list[Mapping[str, np.ndarray]] = []
        row, end = 0, End.NONE
        for chunk in sorted(one.kept, key=lambda chunk: chunk.first_row):
            if chunk.first_row > row or (need is not None and row >= need):
                break
            # The action of a pending row is in the chunk that follows.
            rows = chunk.rows - (chunk.end & End.PENDING > 0)
            stop = rows if need is None else min(rows, need - chunk.first_row)
            skipped = row - chunk.first_row
            if stop > skipped:
                pieces.append({name: chunk.fields[name][skipped:stop] for name in self._names})
                row, end = chunk.first_row + stop, chunk.end
        if stored is None:
            # A final row has no action.
            return Play(self._names, max(0, row - 1), one.metadata, end, None, tuple(pieces))
        if row < stored.first_row:
            return None
        steps = stored.first_row + stored.rows - 1
        return Play(self._names, steps, one.metadata, stored.end, stored, tuple(pieces))

    def _close(
        self, facts: Mapping[str, object], stream: int, seed: int, plays: list[Play]
    ) -> None:
        """Add the chain up to its last stored episode."""
        while plays and plays[-1].episode is None:
            plays.pop()
        if plays:
            self._chains.append(Chain(facts, stream, seed, tuple(plays)))


def _split(known: list[_Known]) -> list[list[_Known]]:
    """Split episodes where their numbers do not grow."""
    turns: list[list[_Known]] = []
    before = 0
    for one in known:
        if not turns or one.number <= before:
            turns.append([])
        turns[-1].append(one)
        before = one.number
    return turns


def _with_kept(stored: list[_Known], kept: list[_Known]) -> list[_Known]:
    """Episodes in the order of their numbers, with the actions that are kept."""
    by_number = {one.number: one for one in stored}
    for one in kept:
        if one.number in by_number:
            by_number[one.number].kept.extend(one.kept)
        else:
            by_number[one.number] = one
    return [by_number[number] for number in sorted(by_number)]


def _left_some_out(session: Mapping[str, object]) -> bool:
    """The session describes a copy of some episodes of its sources."""
    origins = session.get("copied_from")
    if not isinstance(origins, list):
        return False
    counts = [one.get("episodes") if isinstance(one, Mapping) else None for one in origins]
    whole = [count for count in counts if isinstance(count, int)]
    return len(whole) < len(counts) or sum(whole) != session.get("copied_episodes")


def _whole(metadata: Mapping[str, object], key: str) -> int | None:
    """A whole number of the metadata, which come from a file; None for anything else."""
    value = metadata.get(key)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return cast("int", value) if is_whole else None


def _number(metadata: Mapping[str, object]) -> int:
    """The number of the episode within its stream; -1 where it has none."""
    number = _whole(metadata, "stream_episode")
    return -1 if number is None else number


def _first(piece: Mapping[str, np.ndarray], count: int) -> Mapping[str, np.ndarray]:
    return {name: rows[:count] for name, rows in piece.items()}
