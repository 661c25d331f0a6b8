"""Chains: episodes that one env played from a seeded reset on, in the order in which it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..base.number_checks import is_whole
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
    names = tuple(field.name for field in storage.spec.of_kind("action"))
    sessions = list(storage.sessions)
    is_certain = _old_numbers_are_certain(storage)
    chains: list[Chain] = []
    unreachable: list[Unreachable] = []
    for (session, stream), turns in _turns(storage).items():
        for turn, episodes in enumerate(turns):
            facts = _facts(sessions, turn if session is None else session)
            is_named = session is not None
            played = _played(names, stream, episodes, is_named or is_certain, unreachable)
            chains += [Chain(facts, stream, seed, tuple(plays)) for seed, plays in played if plays]
    return chains, unreachable


class _Known(NamedTuple):
    """A stored episode, in more than one piece if rows in its middle were lost."""

    id: int
    number: int  # within its stream; -1 where it has none
    metadata: Mapping[str, object]
    stored: list[StoredEpisode]


def _turns(storage: Storage) -> dict[tuple[int | None, int], list[list[_Known]]]:
    """The episodes of each stream of each session, in order, where numbers grow."""
    # In stores of version 0.1, whose episodes do not name their session, numbers begin at 0 again
    # with each session.
    stored: dict[tuple[int | None, int], list[_Known]] = {}
    for episode in stored_episodes(storage):
        metadata = episode.metadata
        known = stored.setdefault((_whole(metadata, "session"), episode.stream), [])
        if known and known[-1].id == episode.id:  # rows in its middle were lost
            known[-1].stored.append(episode)
        else:
            number = _whole(metadata, "stream_episode")
            number = -1 if number is None else number
            known.append(_Known(episode.id, number, metadata, [episode]))
    return {key: _split(known) for key, known in stored.items()}


def _old_numbers_are_certain(storage: Storage) -> bool:
    """False if a number that follows another one may be that of another session."""
    # It may in stores of version 0.1, with rows of several sessions and episodes that were left
    # out.
    sessions = storage.sessions
    played = [one for one in sessions if "copied_from" not in one]
    return len(played) < 2 or not (storage.lost_chunks or any(map(_left_some_out, sessions)))


def _facts(sessions: Sequence[Mapping[str, object]], session: int) -> Mapping[str, object]:
    played = [one for one in sessions if "recipe" in one]
    if session < len(sessions) and "recipe" in sessions[session]:
        return sessions[session]
    return (played or sessions or [{}])[0]


def _played(
    names: tuple[str, ...],
    stream: int,
    episodes: list[_Known],
    is_certain: bool,
    unreachable: list[Unreachable],
) -> list[tuple[int, list[Play]]]:
    """Seeds, and what each leads to among the episodes that one env played in a session."""
    found: list[tuple[int, list[Play]]] = []
    plays: list[Play] = []
    # `why` no chain leads to an episode also holds for those after it, up to the next seeded reset.
    number, why = -2, ""
    for one in episodes:
        given = _whole(one.metadata, "seed")
        if given is not None:
            plays, why = [], ""
            found.append((given, plays))
        elif not why and (not plays or one.number < 1):
            why = "no stored seeded reset leads to it"
        elif not why and one.number != number + 1:
            why = f"episode {number + 1} of env {stream}, which leads to it, is not stored"
        elif not (why or is_certain):
            why = "its store was made by an older version, and does not name its session"
        number = one.number
        first = one.stored[0]
        if why or first.first_row:
            unreachable += [
                Unreachable(episode, why or "its first rows are not stored")
                for episode in one.stored
            ]
            why = why or f"the first rows of episode {number} of env {stream} are not stored"
            continue
        play = Play(names, first.rows - 1, one.metadata, first.end, first)
        plays.append(play)
        unreachable += [
            Unreachable(episode, "rows before it were lost") for episode in one.stored[1:]
        ]
        if not play.end.is_final:
            why = f"episode {number} of env {stream} was cut, and no seeded reset followed"
    return found


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
    return value if is_whole(value) and value >= 0 else None
