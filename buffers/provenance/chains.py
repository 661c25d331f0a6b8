"""Chains: episodes that one env played from a seeded reset on, in the order in which it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from ..curation.stored_episode import StoredEpisode, stored_episodes
from ..rows.episode import End
from ..storage.protocol import Storage

_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Play:
    """An episode of a chain, which is stored from its reset on."""

    spec_names: tuple[str, ...]  # of the fields that hold the action
    steps: int  # from its reset to its last row
    metadata: Mapping[str, object]
    end: End  # flags of the last row
    episode: StoredEpisode  # its stored rows

    def actions(self, piece_rows: int = _ROWS) -> Iterator[dict[str, np.ndarray]]:
        """Actions ``[n, ...]`` by field name that led to so many first rows, to the next, ..."""
        # The first piece has one less: none leads to the row of a reset.
        before: dict[str, np.ndarray] = {}
        for chunk in self.episode.chunks(piece_rows, self.spec_names):
            stop = min(chunk.first_row + chunk.rows - 1, self.steps)
            count = stop - chunk.first_row + bool(before)
            if count <= 0 and chunk.first_row:
                return
            fields = chunk.fields
            joined = {n: np.concatenate([before[n], fields[n]]) for n in before} or fields
            yield {name: rows[:count] for name, rows in joined.items()}
            before = {name: rows[-1:] for name, rows in fields.items()}


@dataclass(frozen=True, slots=True)
class Chain:
    """Episodes that one env played one after the other, the first one from a seeded reset."""

    facts: Mapping[str, object]  # the session that played them
    stream: int  # index of the env
    seed: int  # of the reset that began the first one
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
    """All chains of a storage that is not joined, and the stored episodes that none leads to."""
    return _Finder(storage).find()


class _Known(NamedTuple):
    """A stored episode, in more than one piece if rows in its middle were lost."""

    id: int
    number: int  # within its stream; -1 where it has none
    metadata: Mapping[str, object]
    stored: list[StoredEpisode]


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
        """The episodes of each stream of each session, in order, where numbers grow."""
        # In stores of version 0.1, whose episodes do not name their session, numbers begin at 0
        # again with each session.
        stored: dict[tuple[int | None, int], list[_Known]] = {}
        for episode in stored_episodes(self._storage):
            metadata = episode.metadata
            known = stored.setdefault((_whole(metadata, "session"), episode.stream), [])
            if known and known[-1].id == episode.id:  # rows in its middle were lost
                known[-1].stored.append(episode)
            else:
                number = _whole(metadata, "stream_episode")
                number = -1 if number is None else number
                known.append(_Known(episode.id, number, metadata, [episode]))
        return {key: _split(known) for key, known in stored.items()}

    def _old_numbers_are_certain(self) -> bool:
        """False if a number that follows another one may be that of another session."""
        # It may in stores of version 0.1, with rows of several sessions and episodes that were left
        # out.
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
        # `why` no chain leads to an episode also holds for those after it, up to the next seeded
        # reset.
        number, why = -2, ""
        for one in episodes:
            given = _whole(one.metadata, "seed")
            if given is not None:
                self._close(facts, stream, seed, plays)
                seed, plays, why = given, [], ""
            elif not why and (not plays or one.number < 1):
                why = "no stored seeded reset leads to it"
            elif not why and one.number != number + 1:
                why = f"episode {number + 1} of env {stream}, which leads to it, is not stored"
            elif not (why or is_certain):
                why = "its store was made by an older version, and does not name its session"
            number = one.number
            first = one.stored[0]
            if why or first.first_row:
                self._unreachable += [
                    Unreachable(episode, why or "its first rows are not stored")
                    for episode in one.stored
                ]
                why = why or f"the first rows of episode {number} of env {stream} are not stored"
                continue
            play = Play(self._names, first.rows - 1, one.metadata, first.end, first)
            plays.append(play)
            self._unreachable += [
                Unreachable(episode, "rows before it were lost") for episode in one.stored[1:]
            ]
            if not play.end.is_final:
                why = f"episode {number} of env {stream} was cut, and no seeded reset followed"
        self._close(facts, stream, seed, plays)

    def _close(
        self, facts: Mapping[str, object], stream: int, seed: int, plays: list[Play]
    ) -> None:
        """Add the chain, if it has an episode."""
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
