"""A group as the driver of a collector knows it: its seed, its calls, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...buffers.rows.digest import DigestState
from .messages import Call, GroupStart, Piece
from .quota import what_is_left

__all__ = ["GroupLife", "another_seed"]

_RESEEDS = 4  # after the words that name the seeds of a Collector
_NO_CALL = Call(-1, "steps")


@dataclass(slots=True)
class GroupLife:
    """A group as the driver knows it."""

    seed: int  # of its present life: the collector's, or another one after a death
    session: int  # of that life
    base: DigestState = field(default_factory=DigestState)
    """State of the digest when that life began."""
    history: list[Call] = field(default_factory=list[Call])
    """Its calls since then; the last one may be unfinished."""
    can_repeat: bool = True
    has_begun: bool = False
    """An actor was asked to begin it: the next one replaces that."""
    is_asked: bool = False
    """The actor at its place was asked to begin it."""
    is_there: bool = False
    """It has answered that."""
    pieces: int = 0
    """Pieces that it is asked for."""
    deaths: int = 0
    cause: str = ""
    """Cause of the last death."""
    share: Call = _NO_CALL
    """Its share of the present call."""
    _steps: int = 0
    _episodes: list[int | None] = field(default_factory=list[int | None])

    @property
    def versions(self) -> set[int]:
        """Versions of the weights that its calls had."""
        return {call.version for call in self.history} - {0}

    def begin(self, share: Call) -> None:
        """Begin its share of a call."""
        self.share, self._steps, self._episodes = share, 0, []
        self.history.append(share)
        self.can_repeat &= share.kind != "run"

    def use_newest(self, version: int) -> None:
        """Let a run begin with the newest weights."""
        if self.share.kind == "run":
            self.share = self.history[-1] = self.share._replace(version=version)

    def count(self, piece: Piece) -> None:
        """Count a piece of the share that came in, stored or not."""
        self._steps += piece.steps
        self._episodes += [episode.seed for episode in piece.episodes]

    def start(self, group: int, *, attempt: int, skip: int, digest: str) -> GroupStart:
        """Its beginning in an actor, from the start of its life on."""
        # ``skip`` pieces of this life are here already; ``digest`` is the fingerprint of their
        # rows.
        self.has_begun = self.is_asked = True
        history = tuple(self.history)
        digest = digest if skip else ""
        return GroupStart(group, attempt, self.seed, self.session, history, skip, digest, self.base)

    def leave(self) -> None:
        """Note that it is in no actor any more."""
        self.is_asked = self.is_there = False
        self.pieces = 0

    def go_on(self, seed: int, session: int, base: DigestState) -> None:
        """Begin another life, with the rest of the share; ``base`` is the digest until then."""
        self.seed, self.session, self.base = seed, session, base
        left = what_is_left(self.share, self._steps, len(self._episodes), self._episodes)
        self.history, self.can_repeat = [], True
        self.begin(left)


def another_seed(
    seed: int, session: int, shard: tuple[int, int] | None, group: int, attempt: int
) -> int:
    """A seed for a group's life from this attempt on, which no other group or Collector has."""
    key = (session, _RESEEDS, *(shard or (1, 1)), group, attempt)
    words = np.random.SeedSequence(seed, spawn_key=key).generate_state(2, np.uint64).tolist()
    return int(words[0]) << 64 | int(words[1])
