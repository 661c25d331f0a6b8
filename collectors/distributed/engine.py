"""The interface to processes elsewhere: what starts, calls and kills the actors of a collector."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from stepwell.buffers.errors import StepwellError

__all__ = [
    "Actor",
    "ActorDied",
    "Answer",
    "Engine",
    "NotEnoughResources",
    "Reference",
    "RemoteError",
    "SharedEngine",
]

_TURN_SECONDS = 0.005


class ActorDied(StepwellError):
    """The process of an actor, or its node, is gone; the message says how it ended."""


class RemoteError(StepwellError):
    """The user's code raised in an actor; the remote traceback is a note on the error.

    Args:
        message: One sentence: the error's type and text.
        kind: Name of the error's type, for example ``"ValueError"``.
        traceback: The remote traceback as text; "" adds no note.
    """

    def __init__(self, message: str, *, kind: str, traceback: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.traceback = traceback
        if traceback:
            self.add_note(traceback)

    def __reduce__(self) -> tuple[object, ...]:
        return _remote_error, (*self.args, self.kind, self.traceback)


def _remote_error(message: str, kind: str, traceback: str) -> RemoteError:
    return RemoteError(message, kind=kind, traceback=traceback)


class NotEnoughResources(StepwellError):
    """An actor cannot start; the message says what it asks for and what is there."""


class Actor(Protocol):
    """A process elsewhere with one object in it, as an engine knows it; engines have their own."""

    @property
    def name(self) -> str:
        """Its name, for messages: that given to `Engine.start`, unique within the engine."""
        ...


class Answer(Protocol):
    """The answer to one call, there or not yet; hashable, and equal to itself only."""

    @property
    def actor(self) -> Actor:
        """The actor that was called."""
        ...


class Reference(Protocol):
    """A value that lies elsewhere, or is passed on to many actors; hashable.

    It is given to `Engine.call` as an argument on its own, not inside another object.
    """


class Engine(Protocol):
    """Starts, calls and kills actors. Its methods are called by one thread at a time.

    No method but `wait`, `result`, `fetch` and `close` waits for an actor.
    """

    def start(self, name: str, make: Callable[[], object]) -> Actor:
        """Start an actor and return at once.

        Args:
            name: A name for messages, unique within the engine.
            make: Called in the actor; returns the object whose methods are called. What it raises,
                every call raises.
        """
        ...

    def call(
        self, actor: Actor, method: str, *arguments: object, parts: Literal[1, 2] = 1
    ) -> Answer:
        """Call a method of the actor's object and return at once, also where the actor is dead.

        The calls of an actor run one after the other, in the order of these calls.

        Args:
            actor: The actor.
            method: Name of the method.
            arguments: What it is called with. A `Reference` among them becomes its value there.
            parts: 2 for a method that returns a pair ``(value, payload)``: the `result` is then
                ``(value, Reference)``, and the payload stays where it is until `fetch`.
        """
        ...

    def wait(self, answers: Sequence[Answer], seconds: float) -> list[Answer]:
        """The answers that are there or have failed; none of them after so many seconds: [].

        It returns as soon as there is one. With 0 seconds it only looks.
        """
        ...

    def result(self, answer: Answer) -> Any:
        """The value that the call returned; waits until it is there.

        Raises:
            ActorDied: The actor died, or was killed, before it answered.
            RemoteError: The method, or the actor's ``make``, raised.
            NotEnoughResources: The engine gave up starting the actor.
        """
        ...

    def fetch(self, reference: Reference) -> Any:
        """The value of a reference; arrays in it may be read-only.

        Raises:
            ActorDied: It is gone, with the actor or node that it was on.
        """
        ...

    def share(self, value: object) -> Reference:
        """Make a value available to all actors; it travels once to each actor or node.

        It is copied before this returns: changes that follow are not seen.
        """
        ...

    def forget(self, reference: Reference) -> None:
        """Free the memory of a reference; idempotent. Calls that were made with it still get it."""
        ...

    def kill(self, actor: Actor) -> None:
        """End an actor at once, without a goodbye; idempotent. Its open calls raise ActorDied."""
        ...

    def shortage(self, actor: Actor) -> str | None:
        """A sentence while the actor cannot start: what it asks for, and what is there."""
        ...

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Publish a number as a metric of the engine, where it has such; else nothing happens.

        Args:
            name: For example ``"stepwell_steps_per_second"``.
            value: Its value now.
            tags: For example ``{"group": "7"}``.
        """
        ...

    def close(self) -> None:
        """End all actors and free what they held; idempotent."""
        ...


class SharedEngine:
    """An engine that several threads may call, as a learner does that draws from shards.

    Args:
        engine: The engine, which is called by one thread at a time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.RLock()

    def start(self, name: str, make: Callable[[], object]) -> Actor:
        """See `Engine`."""
        with self._lock:
            return self._engine.start(name, make)

    def call(
        self, actor: Actor, method: str, *arguments: object, parts: Literal[1, 2] = 1
    ) -> Answer:
        """See `Engine`."""
        with self._lock:
            return self._engine.call(actor, method, *arguments, parts=parts)

    def wait(self, answers: Sequence[Answer], seconds: float) -> list[Answer]:
        """See `Engine`; in between, other threads may call."""
        left = seconds
        while True:
            with self._lock:
                found = self._engine.wait(answers, min(left, _TURN_SECONDS))
            left -= _TURN_SECONDS
            if found or left <= 0:
                return found
            time.sleep(0)  # a lock is not fair

    def result(self, answer: Answer) -> Any:
        """See `Engine`."""
        while answer not in self.wait([answer], _TURN_SECONDS):
            pass
        with self._lock:
            return self._engine.result(answer)

    def fetch(self, reference: Reference) -> Any:
        """See `Engine`."""
        with self._lock:
            return self._engine.fetch(reference)

    def share(self, value: object) -> Reference:
        """See `Engine`."""
        with self._lock:
            return self._engine.share(value)

    def forget(self, reference: Reference) -> None:
        """See `Engine`."""
        with self._lock:
            self._engine.forget(reference)

    def kill(self, actor: Actor) -> None:
        """See `Engine`."""
        with self._lock:
            self._engine.kill(actor)

    def shortage(self, actor: Actor) -> str | None:
        """See `Engine`."""
        with self._lock:
            return self._engine.shortage(actor)

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """See `Engine`."""
        with self._lock:
            self._engine.gauge(name, value, tags)

    def close(self) -> None:
        """See `Engine`."""
        with self._lock:
            self._engine.close()
