"""A group as the driver of a collector knows it: its seed, its calls, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...buffers.rows.digest import DigestState
from .messages import Call, GroupStart, Piece


def shares_of(call: Call, groups: int) -> list[Call]:
    """The call as each group gets it; a share may be empty."""
    # Steps and episodes are split as evenly as possible: the first groups get one more. Seeds are
    # dealt out in turns, so that the first ones are played first. Each group has all rows T of a
    # rollout.
    if call.kind in ("rollout", "run"):
        return [call] * groups
    least, rest = divmod(call.amount, groups)
    return [
        call._replace(amount=least + (group < rest), seeds=call.seeds[group::groups])
        for group in range(groups)
    ]


def is_empty(share: Call) -> bool:
    """True for a share that leaves a group nothing to do."""
    return share.kind != "run" and not share.amount and not share.seeds


def what_is_left(share: Call, steps: int, episodes: int, seeds: Iterable[int | None]) -> Call:
    """The rest of a share for a group that goes on with other data after a death."""
    # Steps, episodes and seeds are those that are stored, to their end. A rollout is played anew,
    # as its rows come at its end.
    if share.kind == "steps":
        return share._replace(amount=max(0, share.amount - steps))
    if share.kind == "episodes":
        return share._replace(amount=max(0, share.amount - episodes))
    if share.kind == "seeds":
        done, left = Counter(seeds), list[int]()
        for seed in share.seeds:  # each is left as often as it was not played
            if done[seed]:
                done[seed] -= 1
            else:
                left.append(seed)
        return share._replace(seeds=tuple(left))
    return share


_RESEEDS = 4  # after the words that name the seeds of a Collector
NO_CALL = Call(-1, "steps")
"""The share of a group between two calls."""


@dataclass(slots=True)
class GroupLife:
    """A group as the driver knows it."""

    seed: int  # of its present life: the collector's, or another one after a death
    session: int  # of that life
    base: DigestState = field(default_factory=DigestState)
    """State of the digest when that life began."""
    collector: Mapping[str, object] | None = None
    """State with which that life began: of its Collector in a run that was stopped."""
    state: object = None
    """State of its Collector, as it was asked for last; None while there is no answer."""
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
    share: Call = NO_CALL
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

    def forget_call(self) -> None:
        """Leave a call out that was over before the group has begun."""
        if not self.has_begun:
            self.history, self.can_repeat = [], True

    def use_newest(self, version: int) -> None:
        """Let a run begin with the newest weights."""
        if self.share.kind == "run":
            self.share = self.history[-1] = self.share._replace(version=version)

    def count(self, piece: Piece) -> None:
        """Count a piece of the share that came in, stored or not."""
        self._steps += piece.steps
        self._episodes += [episode.seed for episode in piece.episodes]

    def start(self, group: int, *, attempt: int, skip: int) -> GroupStart:
        """Its beginning in an actor, from the start of its life on."""
        # ``skip`` pieces of this life are here already.
        self.has_begun = self.is_asked = True
        more = tuple(self.history), skip, self.base, self.collector
        return GroupStart(group, attempt, self.seed, self.session, *more)

    def leave(self) -> None:
        """Note that it is in no actor any more."""
        self.is_asked = self.is_there = False
        self.pieces = 0

    def go_on(self, seed: int, session: int, base: DigestState) -> None:
        """Begin another life, with the rest of the share; ``base`` is the digest until then."""
        self.seed, self.session, self.base, self.collector = seed, session, base, None
        left = what_is_left(self.share, self._steps, len(self._episodes), self._episodes)
        self.share, self.history, self.can_repeat = left, [], True
        if not is_empty(left):
            self.begin(left)


def another_seed(
    seed: int, session: int, shard: tuple[int, int] | None, group: int, attempt: int
) -> int:
    """A seed for a group's life from this attempt on, which no other group or Collector has."""
    key = (session, _RESEEDS, *(shard or (1, 1)), group, attempt)
    words = np.random.SeedSequence(seed, spawn_key=key).generate_state(2, np.uint64).tolist()
    return int(words[0]) << 64 | int(words[1])
