"""An engine whose actors live in this process, with faults that a seeded generator draws."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stepwell.collectors.distributed.engine import (
    ActorDied,
    Answer,
    NotEnoughResources,
    RemoteError,
)

__all__ = ["Faults", "InlineEngine"]


@dataclass(frozen=True)
class Faults:
    """Chances of faults, each from 0 to 1 for one call of an actor, and their greatest numbers.

    Args:
        delay: The answer comes up to ``most_delay`` seconds later.
        die_before: The actor dies before it does what it was asked for.
        die_after: It dies after that, and the answer is lost.
        pause: It stops for ``pause_seconds``, and then goes on, also if it was killed meanwhile.
        twice: An answer is shown once more.
        disorder: Only some of the answers that are there are shown, in another order.
        slow_start: An actor needs up to ``most_delay`` seconds to start.
        most_deaths: Actors that die or pause at most.
        most_delay: Seconds.
        pause_seconds: Seconds.
    """

    delay: float = 0.0
    die_before: float = 0.0
    die_after: float = 0.0
    pause: float = 0.0
    twice: float = 0.0
    disorder: float = 0.0
    slow_start: float = 0.0
    most_deaths: int = 1_000
    most_delay: float = 5.0
    pause_seconds: float = 1_000.0


@dataclass(eq=False)
class InlineActor:
    """An actor in this process."""

    name: str
    make: Callable[[], object]
    starts: float
    calls: deque[InlineAnswer] = field(default_factory=deque)
    host: Any = None
    is_dead: bool = False
    is_killed: bool = False
    until: float = 0.0
    """It is paused until then."""


@dataclass(eq=False)
class InlineAnswer:
    """The answer to a call."""

    actor: InlineActor
    method: str
    arguments: tuple[object, ...]
    parts: int
    due: float | None = None
    """Time at which it is there; None as long as the call was not made."""
    value: Any = None
    error: Exception | None = None


@dataclass(eq=False)
class InlineReference:
    """A value as bytes, as it was when it was shared."""

    data: bytes | None


class InlineEngine:
    """Runs the calls of actors in `wait`, one at a time, and plays time."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.now = 0.0
        self.actors: list[InlineActor] = []
        self.gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self.references: set[InlineReference] = set()
        self.deaths = 0
        self.is_closed = False
        self.before_call: Callable[[InlineActor, str, tuple[object, ...]], object] | None = None
        """Called before each call; it may raise ActorDied to kill the actor, or return True to let
        the call wait as long as the actor is paused."""
        self._random = random.Random(seed)
        self._faults = faults or Faults()
        self._shown: list[InlineAnswer] = []

    def clock(self) -> float:
        """The time that this engine plays."""
        return self.now

    def start(self, name: str, make: Callable[[], object]) -> InlineActor:
        assert not self.is_closed
        assert name not in [actor.name for actor in self.actors]
        starts = self.now
        if self._hits(self._faults.slow_start):
            starts += self._random.uniform(0, self._faults.most_delay)
        self.actors.append(InlineActor(name, make, starts))
        return self.actors[-1]

    def call(
        self, actor: Any, method: str, *arguments: object, parts: Literal[1, 2] = 1
    ) -> InlineAnswer:
        given = [
            InlineReference(each.data) if isinstance(each, InlineReference) else each
            for each in arguments
        ]
        answer = InlineAnswer(actor, method, tuple(given), parts)
        if actor.is_killed or actor.is_dead:
            answer.due, answer.error = self.now, ActorDied(f"{actor.name} is dead")
        else:
            actor.calls.append(answer)
        return answer

    def wait(self, answers: Sequence[Any], seconds: float) -> list[Answer]:
        end = self.now + seconds
        while True:
            there = [each for each in answers if each.due is not None and each.due <= self.now]
            ready = [
                actor
                for actor in self.actors
                if actor.calls and not actor.is_dead and max(actor.starts, actor.until) <= self.now
            ]
            if there and not (ready and self._random.random() < 0.5):
                return self._show(there)
            if ready:
                self._work(self._random.choice(ready))
                self.now += 0.05
                continue
            if self.now >= end:
                return []
            self.now = min(end, self._next_time(answers))

    def result(self, answer: Any) -> Any:
        assert answer.due is not None
        if answer.error is not None:
            raise answer.error
        return answer.value

    def fetch(self, reference: Any) -> Any:
        assert reference.data is not None
        return pickle.loads(reference.data)

    def share(self, value: object) -> InlineReference:
        reference = InlineReference(pickle.dumps(value))
        self.references.add(reference)
        return reference

    def forget(self, reference: Any) -> None:
        self.references.discard(reference)
        reference.data = None

    def kill(self, actor: Any) -> None:
        actor.is_killed = True
        if actor.until <= self.now:  # one that is paused goes on later: a zombie
            self._die(actor, "it was killed")

    def shortage(self, actor: Any) -> str | None:
        is_there = actor.starts < float("inf")
        return None if is_there else f"{actor.name} asks for 8 CPUs, and 2 are free"

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        self.gauges[name, tuple(tags.values())] = value

    def close(self) -> None:
        self.is_closed = True
        for actor in self.actors:
            self._die(actor, "the engine was closed")

    def _show(self, there: list[InlineAnswer]) -> list[Answer]:
        shown = [*there]
        if self._hits(self._faults.disorder):
            shown = self._random.sample(shown, self._random.randint(1, len(shown)))
        if self._shown and self._hits(self._faults.twice):
            shown.insert(0, self._random.choice(self._shown))
        self._shown = [*self._shown, *shown][-20:]
        return [*shown]

    def _work(self, actor: InlineActor) -> None:
        """Make the next call of an actor."""
        faults = self._faults
        if not actor.is_killed and self.deaths < faults.most_deaths:
            if self._hits(faults.pause):
                self.deaths += 1
                actor.until = self.now + faults.pause_seconds
                return
            if self._hits(faults.die_before):
                self.deaths += 1
                self._die(actor, "the monkey killed it before a call")
                return
        answer = actor.calls.popleft()
        try:
            if self.before_call is not None and self.before_call(
                actor, answer.method, answer.arguments
            ):
                actor.calls.appendleft(answer)
                return
            if actor.host is None:
                actor.host = actor.make()
            arguments = [
                self.fetch(each) if isinstance(each, InlineReference) else each
                for each in answer.arguments
            ]
            copies = pickle.loads(pickle.dumps(arguments))
            value = getattr(actor.host, answer.method)(*copies)
            if answer.parts == 2:
                answer.value = pickle.loads(pickle.dumps(value[0])), self.share(value[1])
            else:
                answer.value = pickle.loads(pickle.dumps(value))
        except (ActorDied, NotEnoughResources) as error:
            actor.calls.appendleft(answer)
            self._die(actor, str(error), error)
            return
        except Exception as error:
            answer.error = RemoteError(
                f"{type(error).__name__}: {error}", kind=type(error).__name__, traceback="there"
            )
        if (
            not actor.is_killed
            and self.deaths < faults.most_deaths
            and self._hits(faults.die_after)
        ):
            self.deaths += 1
            answer.value = None
            actor.calls.appendleft(answer)
            self._die(actor, "the monkey killed it after a call")
            return
        answer.due = self.now
        if self._hits(faults.delay):
            answer.due += self._random.uniform(0, faults.most_delay)

    def _die(self, actor: InlineActor, cause: str, error: Exception | None = None) -> None:
        if actor.is_dead:
            return
        actor.is_dead, actor.host = True, None
        for answer in actor.calls:
            answer.due, answer.error = self.now, error or ActorDied(f"{actor.name}: {cause}")
        actor.calls.clear()

    def _next_time(self, answers: Sequence[InlineAnswer]) -> float:
        """The next time at which something happens by itself."""
        times = [each.due for each in answers if each.due is not None]
        times += [
            max(actor.starts, actor.until)
            for actor in self.actors
            if actor.calls and not actor.is_dead
        ]
        return min((time for time in times if time > self.now), default=float("inf"))

    def _hits(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance
