"""Actors at their places: started, asked, and given up when they die or do not answer."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ...buffers.base.errors import StepwellError
from .engine import Actor, ActorDied, Answer, Engine, NotEnoughResources

_LOOK_SECONDS = 1.0
_SHORT_SECONDS = 20.0
_PIECES = "advance", "finish"  # methods that return one


class Asked(NamedTuple):
    """A call of an actor that has not answered yet."""

    place: int
    method: str
    group: int  # that it is about; -1 for none
    attempt: int  # the group's
    began: float  # time of the call


class Answered(NamedTuple):
    """An actor has answered; ``is_late`` if its place has another actor, or none, by now."""

    asked: Asked
    value: Any
    is_late: bool


class Failed(NamedTuple):
    """The user's code raised in an actor, or the engine refused the call."""

    asked: Asked
    error: StepwellError


class Died(NamedTuple):
    """The actor of a place is gone."""

    place: int
    name: str
    cause: str


class Short(NamedTuple):
    """No actor can start at a place, which has none, as something that it asks for is not there."""

    place: int
    error: NotEnoughResources


Event: TypeAlias = "Answered | Failed | Died | Short"


@dataclass(slots=True)
class _Place:
    """A place for one actor after the other."""

    generation: int = 0
    actor: Actor | None = None
    queue: deque[tuple[Answer, Asked]] = field(default_factory=lambda: deque())
    """Calls in the order in which the actor answers them."""
    heard: float = 0.0
    """Time of the newest answer."""
    has_answered: bool = False
    looked: float = 0.0
    short_since: float | None = None


@dataclass(eq=False)
class ActorPool:
    """The actors of a collector. Each place has one actor at most; calls to it keep their order."""

    engine: Engine
    make: Callable[[], object]  # makes the object in an actor
    start_seconds: float  # that an actor may take to start, and a group to begin
    answer_seconds: float  # that another call may take
    clock: Callable[[], float]
    _places: dict[int, _Place] = field(default_factory=dict[int, _Place])
    _late: dict[Answer, Asked] = field(default_factory=dict[Answer, Asked])
    _ready: set[Answer] = field(default_factory=set[Answer])

    def has_actor(self, place: int) -> bool:
        """True if an actor was started at the place, and is not known to be dead."""
        return place in self._places and self._places[place].actor is not None

    def name(self, place: int) -> str:
        """Name of the actor at a place, or of the last one there; "" before the first."""
        one = self._places.get(place)
        return "" if one is None or not one.generation else _name(place, one.generation - 1)

    @property
    def actors(self) -> int:
        """Number of actors that run or start."""
        return sum(one.actor is not None for one in self._places.values())

    @property
    def has_answered(self) -> bool:
        """True if at least one of the actors has answered."""
        return any(one.actor is not None and one.has_answered for one in self._places.values())

    def has_answered_at(self, place: int) -> bool:
        """True if the actor at a place has answered at least once."""
        return self._places[place].has_answered

    def pieces(self, place: int) -> int:
        """Number of pieces that the actor at a place is asked for."""
        return sum(asked.method in _PIECES for _, asked in self._places[place].queue)

    def start(self, place: int) -> None:
        """Start an actor at a place that has none; its first answer is that of ``ping``."""
        one = self._places.setdefault(place, _Place())
        now = self.clock()
        one.actor = self.engine.start(_name(place, one.generation), self.make)
        one.generation += 1
        one.heard = one.looked = now
        one.has_answered, one.short_since = False, None
        self.ask(place, "ping")

    def ask(
        self, place: int, method: str, *arguments: object, group: int = -1, attempt: int = 0
    ) -> None:
        """Call a method of the actor at a place; `events` has the answer."""
        one = self._places[place]
        assert one.actor is not None
        parts: Literal[1, 2] = 2 if method in _PIECES else 1
        answer = self.engine.call(one.actor, method, *arguments, parts=parts)
        asked = Asked(place, method, group, attempt, self.clock())
        one.queue.append((answer, asked))

    def events(self, seconds: float) -> list[Event]:
        """Wait at most so long for answers; those of an actor are in the order of its calls."""
        # An actor that is dead, or took too long, is killed before this returns.
        open_answers = [
            *(answer for one in self._places.values() for answer, _ in one.queue),
            *self._late,
        ]
        waiting = [answer for answer in open_answers if answer not in self._ready]
        known = set(waiting)
        # An engine may show an answer again, or the second one of an actor before the first.
        self._ready |= known.intersection(self.engine.wait(waiting, seconds))
        events: list[Event] = [*self._late_answers()]
        for place, one in self._places.items():
            while one.queue and one.queue[0][0] in self._ready:
                answer, asked = one.queue.popleft()
                self._ready.discard(answer)
                events.append(self._event(place, answer, asked))
                if not isinstance(events[-1], Answered):
                    break
                one.heard, one.has_answered = self.clock(), True
            else:
                events += self._overdue(place)
        return events

    def kill(self, place: int) -> None:
        """Kill the actor at a place, and forget what it was asked for."""
        one = self._places[place]
        if one.actor is None:
            return
        actor, one.actor = one.actor, None
        self._late |= one.queue
        one.queue.clear()
        self.engine.kill(actor)

    def died(self, place: int, cause: str) -> Died:
        """Kill the actor at a place, which is known to be dead."""
        self.kill(place)
        return Died(place, self.name(place), cause)

    def _event(self, place: int, answer: Answer, asked: Asked) -> Event:
        try:
            return Answered(asked, self.engine.result(answer), is_late=False)
        except ActorDied as error:
            return self.died(place, str(error))
        except NotEnoughResources as error:
            self.kill(place)
            return Short(place, error)
        except StepwellError as error:
            return Failed(asked, error)

    def _late_answers(self) -> Iterator[Answered]:
        """Answers of actors that were replaced: nobody waits for them, but they take memory."""
        for answer in [each for each in self._late if each in self._ready]:
            self._ready.discard(answer)
            asked = self._late.pop(answer)
            with contextlib.suppress(StepwellError):
                yield Answered(asked, self.engine.result(answer), is_late=True)

    def _overdue(self, place: int) -> Iterator[Event]:
        """Events about an actor that has not answered."""
        one, now = self._places[place], self.clock()
        if one.actor is None or not one.queue:
            return
        if not one.has_answered and now - one.looked >= _LOOK_SECONDS:
            one.looked = now
            text = self.engine.shortage(one.actor)
            if text is None:
                if one.short_since is not None:  # now it can start
                    one.short_since, one.heard = None, now
            elif one.short_since is None:
                one.short_since = now
            elif now - one.short_since >= _SHORT_SECONDS:
                self.kill(place)
                yield Short(place, NotEnoughResources(text))
                return
        asked = one.queue[0][1]
        if one.short_since is not None:
            return
        is_start = asked.method in ("ping", "begin", "load")
        limit = self.start_seconds if is_start else self.answer_seconds
        if now - max(one.heard, asked.began) >= limit:
            doing = _DOING.get(asked.method, "the next piece")
            yield self.died(place, f"no answer within {limit:g} s: it was asked for {doing}")


_DOING = {
    "ping": "a first answer",
    "begin": "the envs and policy of a group",
    "load": "new weights",
    "state": "the state of a group",
    "close": "closing its groups",
}


def _name(place: int, generation: int) -> str:
    return f"actor-{place}" if not generation else f"actor-{place}.{generation}"


class Placement:
    """Deals groups out to places, each for one actor after the other; the data is the same."""

    # Of 5 groups at 2 places, place 0 has 0, 2, 4 and place 1 has 1, 3.

    def __init__(self, groups: int, places: int) -> None:
        self._groups_of = {place: tuple(range(place, groups, places)) for place in range(places)}

    @property
    def places(self) -> Sequence[int]:
        """The places in use."""
        return tuple(self._groups_of)

    def place_of(self, group: int) -> int:
        """The place of a group."""
        return next(place for place, groups in self._groups_of.items() if group in groups)

    def groups_of(self, place: int) -> tuple[int, ...]:
        """The groups of a place, in order."""
        return self._groups_of[place]

    def give_up(self, place: int) -> None:
        """Give the groups of a place, where no actor can start, to those with the fewest."""
        if len(self._groups_of) == 1:
            raise ValueError(f"place {place}: expected another place for its groups, got none")
        for group in self._groups_of.pop(place):
            chosen = min(self._groups_of, key=lambda other: (len(self._groups_of[other]), other))
            self._groups_of[chosen] = tuple(sorted((*self._groups_of[chosen], group)))
