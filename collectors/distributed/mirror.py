"""The replay of a collector, which takes in the chunks of all groups."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from ...buffers import SequenceReplayBuffer, Spec
from ...buffers.spec.spec import Codec
from ...buffers.storage.encoded_chunk import unpack_chunks
from .delivery import GroupStreams
from .messages import Opening, Payload

__all__ = ["Mirror"]


class Mirror:
    """A replay beside the learner that stores the rows of all groups as one session."""

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        groups: int,
        seed: int,
        shard: tuple[int, int] | None,
    ) -> None:
        self._replay = replay
        self._groups = groups
        self._seed = seed
        self._shard = shard
        self._planned = len(replay.sessions)
        self._session = self._planned
        self._facts: dict[str, object] = {}
        self._before: list[tuple[int, int]] = []
        """Groups that took another seed before the session began, and these seeds."""
        self._spec: Spec | None = None
        self._streams = GroupStreams(1)

    @property
    def path(self) -> Path | None:
        """Folder of the store; None in RAM."""
        return self._replay.path

    @property
    def steps(self) -> int:
        """Env steps ever added."""
        return self._replay.steps

    @property
    def capacity(self) -> int | None:
        """Steps to keep at most."""
        return self._replay.capacity

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs that were given for a new store."""
        return self._replay.codecs

    @property
    def spec(self) -> Spec | None:
        """The fields of a row, if it holds rows already; None where the groups determine them."""
        return self._replay.spec if self._replay.steps or self._replay.episodes else None

    def open(self, opening: Opening) -> None:
        """Begin the session, now that the rows are known; a second opening changes nothing."""
        if self._spec is not None:
            return
        num_envs = opening.num_envs * self._groups
        shard = {} if self._shard is None else {"shard": list(self._shard)}
        facts = {name: fact for name, fact in opening.facts.items() if name != "shard"}
        self._facts = {**facts, "num_envs": num_envs, "groups": self._groups, **shard}
        self._facts |= {"seed": str(self._seed), "session": self._planned}
        self._replay.bind(opening.spec, self._facts)
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
