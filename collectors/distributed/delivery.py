"""Pieces of groups on their way to the store: which are taken, in which order, and where to."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from ...buffers import SequenceReplayBuffer, Spec
from ...buffers.base.untrusted_json import items, mapping, member, whole
from ...buffers.replay.writer import check_stored_episodes
from ...buffers.rows.digest import DigestState
from ...buffers.storage.encoded_chunk import EncodedChunk, unpack_chunks
from ..loop.collector import Seeds, stored_seed
from .messages import Opening, Payload, Piece

_PayloadT = TypeVar("_PayloadT")


class Taken(enum.Enum):
    """The fate of a piece that came in."""

    KEPT = "it waits for its turn"
    REPEATED = "its rows are stored, and it has shown that they are the same"
    TWICE = "it came before"
    LATE = "it is of an attempt that was replaced"
    DIFFERS = "the rows that were played again differ from those stored"


class Waiting(NamedTuple, Generic[_PayloadT]):
    """A piece that waits for its turn."""

    piece: Piece
    payload: _PayloadT  # its rows
    round: int  # number of the piece within the group's call
    nbytes: int  # that it takes here


class Free(NamedTuple):
    """An actor that may be asked for pieces."""

    place: int
    groups: Sequence[int]  # those in it whose call has not ended
    pieces: int  # how many it may be asked for


class Group(Generic[_PayloadT]):
    """The pieces of one group."""

    def __init__(self) -> None:
        self.attempt = 0  # the present one
        # Number of the next new piece in this attempt: so many of its life are here, or stored
        self.expected = 0
        self.skip = 0  # that of the first one that it has to send
        self.is_proved = True  # it has shown that the rows before are the same
        self.digest = ""
        self.state = DigestState()  # of that digest
        self.call = -1
        self.has_ended = True  # the last piece of the call has come
        self.round = 0  # number of the next piece within the call
        self.waiting: deque[Waiting[_PayloadT]] = deque()


class Delivery(Generic[_PayloadT]):
    """Takes pieces as they come, and gives them out in the order in which they are stored."""

    # Each piece is given out once: those of replaced attempts are refused, repeats are dropped. In
    # order, all groups' first pieces of a call come first, then the second ones, each in the order
    # of the groups; so the order is the same whatever comes in first. It knows no clock and no
    # engine.

    def __init__(self, groups: int) -> None:
        self.groups = [Group[_PayloadT]() for _ in range(groups)]
        self._in_order = True
        self._turns: deque[int] = deque()
        self._arrived: deque[int] = deque()
        self.waiting_bytes = 0
        """Bytes of the pieces that wait."""

    def begin(self, call: int, groups: Iterable[int], *, in_order: bool) -> None:
        """Begin a call of these groups; pieces are given out in fixed order, or as they come."""
        self._in_order = in_order
        self._turns = deque(groups)
        for number in self._turns:
            group = self.groups[number]
            group.call, group.has_ended, group.round = call, False, 0

    @property
    def turn(self) -> int | None:
        """The group to be stored next, after all `due`; None without an order, or at the end."""
        return self._turns[0] if self._in_order and self._turns else None

    @property
    def is_complete(self) -> bool:
        """All groups have sent the last piece of the call."""
        return all(group.has_ended for group in self.groups)

    def end(self, group: int) -> None:
        """End the call of a group that sends no more pieces."""
        self.groups[group].has_ended = True

    def repeat(self, group: int) -> int:
        """Expect another attempt, which plays again what is here; returns its number."""
        one = self.groups[group]
        one.attempt += 1
        one.skip = one.expected
        one.is_proved = not one.skip
        return one.attempt

    def go_on(self, group: int) -> int:
        """Expect another attempt with other data, whose pieces are counted from 0 again."""
        one = self.groups[group]
        one.attempt += 1
        one.expected = one.skip = 0
        one.is_proved = True
        return one.attempt

    def resume(self, group: int, attempt: int, state: DigestState) -> None:
        """Count from an attempt on, after rows that another collector has stored."""
        self.groups[group].attempt, self.groups[group].state = attempt, state

    def take(self, piece: Piece, payload: _PayloadT, nbytes: int) -> Taken:
        """Take a piece that came in, with its rows and the bytes that they take here."""
        group = self.groups[piece.group]
        if piece.attempt != group.attempt:
            return Taken.LATE
        if piece.is_repeat:
            is_newest = piece.number == group.skip - 1
            if is_newest and piece.digest != group.digest:
                return Taken.DIFFERS
            if not is_newest and piece.call == group.call and piece.is_last:
                return Taken.DIFFERS  # the call has fewer pieces than before
            group.is_proved |= is_newest
            return Taken.REPEATED
        if piece.number < group.expected:
            return Taken.TWICE
        if not group.is_proved:
            return Taken.DIFFERS
        if piece.number > group.expected or piece.call != group.call or group.has_ended:
            raise ValueError(
                f"group {piece.group}: expected piece {group.expected} of call {group.call}, got "
                f"piece {piece.number} of call {piece.call}"
            )
        group.expected += 1
        group.digest, group.state = piece.digest, piece.state
        group.has_ended = piece.is_last
        group.waiting.append(Waiting(piece, payload, group.round, nbytes))
        group.round += 1
        if not self._in_order:
            self._arrived.append(piece.group)
        self.waiting_bytes += nbytes
        return Taken.KEPT

    def due(self) -> Iterator[Waiting[_PayloadT]]:
        """The pieces whose turn it is, one after the other; each is gone once it was given out."""
        if not self._in_order:
            while self._arrived:
                yield self._pop(self._arrived.popleft())
            return
        while self._turns:
            number = self._turns[0]
            group = self.groups[number]
            if group.waiting:
                self._turns.rotate(-1)
                yield self._pop(number)
            elif group.has_ended:
                self._turns.popleft()
            else:
                return

    def to_ask(
        self, free: Iterable[Free], asked: Callable[[int], int], room: float, nbytes: float
    ) -> Iterator[tuple[int, int]]:
        """The places and groups to be asked for a piece each, one after the other."""
        # Those that are stored first are asked first, over all places: a second piece of a group
        # comes after the first ones of all. In a run, groups that are asked for fewer pieces come
        # first. Without room only pieces that take none are asked for: the one whose turn it is,
        # and those that are played again. ``asked`` counts a group's pieces that were not answered,
        # those given out here included; ``room`` is the bytes that may come in beside those waiting
        # or asked for.
        needs_none = {k for k, group in enumerate(self.groups) if not group.is_proved}
        needs_none |= set() if self.turn is None else {self.turn}

        def next_of(one: Free) -> tuple[int, int, int, Free] | None:
            """The group of an actor that is asked first, behind its place in the order."""
            found = None
            for number in one.groups:
                pieces, stored = asked(number), self.groups[number].round
                if room <= 0 and (pieces or number not in needs_none):
                    continue
                order = (stored + pieces, number) if self._in_order else (pieces, stored)
                found = min(found or (*order, number, one), (*order, number, one))
            return found if one.pieces else None

        if room <= 0:
            free = [one for one in free if not needs_none.isdisjoint(one.groups)]
        places = [each for each in map(next_of, free) if each is not None]
        heapq.heapify(places)
        while places:
            *_, number, one = heapq.heappop(places)
            if room > 0 or (number in needs_none and not asked(number)):
                yield one.place, number
                room -= nbytes
                one = one._replace(pieces=one.pieces - 1)
            elif needs_none.isdisjoint(one.groups):
                continue
            again = next_of(one)
            if again is not None:
                heapq.heappush(places, again)

    def rest(self) -> Iterator[Waiting[_PayloadT]]:
        """All pieces that wait, in the order of their turns; those before them never came."""
        while any(group.waiting for group in self.groups):
            _, number = min(
                (group.waiting[0].round, number)
                for number, group in enumerate(self.groups)
                if group.waiting
            )
            yield self._pop(number)

    def _pop(self, number: int) -> Waiting[_PayloadT]:
        waiting = self.groups[number].waiting.popleft()
        self.waiting_bytes -= waiting.nbytes
        return waiting


class GroupStreams:
    """Numbers the episodes and streams of all groups for one storage."""

    # A group counts its episodes and envs on its own. In the storage, env e of group g is stream
    # ``first + g * N + e``, and an episode has the lowest free id when its first chunk is stored.

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        # By stream the newest episode, as its group counts and as it is stored.
        self._newest: dict[int, tuple[int, int]] = {}
        self._next: int | None = None

    def state_dict(self, next_episode: int) -> dict[str, object]:
        """The newest episodes, as long as no others have written."""
        if self._next not in (None, next_episode):
            raise ValueError(
                "state_dict: expected a replay that this collector alone writes to, got one in "
                "which others have begun episodes; take the state before they do"
            )
        newest = [[stream, *numbers] for stream, numbers in self._newest.items()]
        return {"num_envs": self._num_envs, "newest": newest}

    @classmethod
    def resumed(cls, state: object, next_episode: int) -> GroupStreams:
        """Those of a state of `state_dict`."""
        told = mapping(state, "streams")
        streams = cls(whole(member(told, "num_envs"), "num_envs", 1))
        for each in items(member(told, "newest"), "newest"):
            stream, own, episode = (whole(one, "newest") for one in items(each, "newest", 3))
            streams._newest[stream] = own, episode
        streams._next = next_episode
        return streams

    def placed(
        self,
        chunks: Sequence[EncodedChunk],
        group: int,
        next_episode: int,  # the lowest id that is free in the storage
        session: int | None = None,  # its number in the storage; None: that of the chunks
    ) -> list[EncodedChunk]:
        """The chunks with their numbers in the storage; they must be added next."""
        if self._next is not None and self._next != next_episode:
            self._newest.clear()  # others have written: their rows may end our open episodes
        placed: list[EncodedChunk] = []
        for chunk in chunks:
            stream = group * self._num_envs + chunk.stream
            own, episode = self._newest.get(stream, (-1, -1))
            is_late = chunk.starts_late
            if chunk.episode != own:
                episode, is_late = next_episode, is_late or chunk.first_row > 0
                next_episode += 1
                self._newest[stream] = chunk.episode, episode
            metadata = None
            if session is not None and chunk.metadata.get("session") != session:
                metadata = {**chunk.metadata, "session": session}
            one = chunk.placed(episode=episode, stream=stream, metadata=metadata)
            if is_late != chunk.starts_late:
                one = dataclasses.replace(one, starts_late=is_late)
            placed.append(one)
        self._next = next_episode
        return placed


class Mirror:
    """A replay beside the learner that stores the rows of all groups as one session."""

    def __init__(self, replay: SequenceReplayBuffer, groups: int, seeds: Seeds) -> None:
        self._replay = replay
        self._groups = groups
        self._seeds = seeds
        self._planned = len(replay.sessions)
        self._session = self._planned
        self._facts: dict[str, object] = {}
        self._before: list[tuple[int, int]] = []
        """Groups that took another seed before the session began, and these seeds."""
        self._spec: Spec | None = None
        self._is_resumed = False
        self._streams = GroupStreams(1)

    @property
    def spec(self) -> Spec | None:
        """The fields of a row, if it holds rows already; None where the groups determine them."""
        return self._replay.spec if self._replay.steps or self._replay.episodes else None

    def open(self, opening: Opening) -> None:
        """Begin the session, now that the rows are known; a second opening changes nothing."""
        if self._spec is not None and not self._is_resumed:
            return
        num_envs = opening.num_envs * self._groups
        shard = {} if self._seeds.shard is None else {"shard": list(self._seeds.shard)}
        facts = {name: fact for name, fact in opening.facts.items() if name != "shard"}
        self._facts = {**facts, "num_envs": num_envs, "groups": self._groups, **shard}
        self._facts |= {"seed": str(self._seeds.seed), "session": self._planned}
        self._replay.bind(opening.spec, self._facts, continues=self._is_resumed)
        if self._is_resumed:
            self._is_resumed = False
            return
        self._session = len(self._replay.sessions) - 1
        self._spec = self._replay.spec
        for group, seed in self._before:
            self.go_on(group, seed)
        self._streams = GroupStreams(opening.num_envs)

    def add(self, group: int, payload: Payload, session: int) -> None:
        """Store chunks of a group; when it returns they are durable."""
        # ``session`` is the number of their session that the group was told. StoreCorrupt: they are
        # not what a group sends.
        assert self._spec is not None
        is_planned = session <= self._planned + len(self._before)
        known = session + self._session - self._planned if is_planned else session
        other = None if known == session else known
        chunks = unpack_chunks(payload.chunks, self._spec)
        free = self._replay.storage.index.next_episode
        self._replay.add_encoded(self._streams.placed(chunks, group, free, other))

    def state_dict(self) -> dict[str, object]:
        """The state to continue the session from; its rows are in the replay."""
        index = self._replay.storage.index if self._replay.is_bound else None
        stored = 0 if index is None else index.next_episode
        return {
            "stored_episodes": stored,
            "session": None if self._spec is None else self._session,
            "planned": self._planned,
            "before": [[group, str(seed)] for group, seed in self._before],
            "streams": self._streams.state_dict(stored),
        }

    def load_state_dict(self, state: object, seeds: Seeds) -> int:
        """Continue from a state of `state_dict`; returns the session that the groups were told."""
        # Where it is refused, nothing has changed.
        told, replay = mapping(state, "mirror"), self._replay
        session = member(told, "session")
        if replay.is_bound:
            check_stored_episodes(told, replay)
        elif session is not None or member(told, "stored_episodes"):
            raise ValueError(f"replay: expected that with the rows until then, got {replay!r}")
        sessions = len(replay.sessions)
        if session is not None:
            session = whole(session, "session", 0, sessions - 1)
        planned = whole(member(told, "planned"), "planned", 0, sessions)
        pairs = [items(each, "before", 2) for each in items(member(told, "before"), "before")]
        before = [(whole(group, "group"), stored_seed(seed)) for group, seed in pairs]
        stored = whole(member(told, "stored_episodes"), "stored_episodes")
        streams = GroupStreams.resumed(member(told, "streams"), stored)
        self._seeds, self._planned, self._before = seeds, planned, before
        if session is not None:
            self._session, self._facts = session, dict(replay.sessions[session])
            self._spec, self._is_resumed, self._streams = replay.spec, True, streams
        return planned

    def go_on(self, group: int, seed: int) -> int:
        """Begin a session for a group that goes on with other episodes; returns its number."""
        if self._spec is None:
            self._before.append((group, seed))
            return self._planned + len(self._before)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        facts = {**self._facts, "seed": str(seed), "group": group, "began": now}
        session = len(self._replay.sessions)
        self._replay.bind(self._spec, {**facts, "session": session})
        return session
