"""The interface to processes elsewhere: what starts, calls and kills the actors of a collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from traceback import format_exception
from typing import Any, Literal, Protocol

from ...buffers.base.errors import StepwellError


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
        return partial(RemoteError, kind=self.kind, traceback=self.traceback), self.args


def remote_error(error: BaseException) -> RemoteError:
    """An error of the user's code in words: its class may be unknown to the driver."""
    text = "".join(format_exception(error))
    kind = type(error).__name__
    return RemoteError(in_one_line(error), kind=kind, traceback=f"In the actor:\n{text}")


def in_one_line(error: BaseException) -> str:
    """The type of an error, and its text if it has one."""
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


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
    """A value that lies elsewhere, or is passed on to many actors; hashable."""

    # It is given to `Engine.call` as an argument on its own, not inside another object.


class Engine(Protocol):
    """Starts, calls and kills actors. Its methods are called by one thread at a time."""

    # No method but `wait`, `result`, `fetch` and `close` waits for an actor.

    def start(self, name: str, make: Callable[[], object]) -> Actor:
        """Start an actor, by a name unique in the engine, and return at once."""
        # ``make`` is called in the actor and returns the object whose methods are called; what it
        # raises, every call raises.
        ...

    def call(
        self, actor: Actor, method: str, *arguments: object, parts: Literal[1, 2] = 1
    ) -> Answer:
        """Call a method of the actor's object and return at once, also where the actor is dead."""
        # The calls of an actor run one after the other, in the order of these calls. A `Reference`
        # among the arguments becomes its value there. With 2 parts the method returns a pair
        # ``(value, payload)``: the `result` is then ``(value, Reference)``, and the payload stays
        # where it is until `fetch`.
        ...

    def wait(self, answers: Sequence[Answer], seconds: float) -> list[Answer]:
        """The answers that are there or have failed, once one is; after so many seconds []."""
        # With 0 seconds it only looks.
        ...

    def result(self, answer: Answer) -> Any:
        """The value that the call returned; waits until it is there."""
        # Raises ActorDied, RemoteError for what the method or ``make`` raised, and
        # NotEnoughResources where the engine gave up starting the actor.
        ...

    def fetch(self, reference: Reference) -> Any:
        """The value of a reference; arrays in it may be read-only."""
        # ActorDied: it is gone, with the actor or node that it was on.
        ...

    def share(self, value: object) -> Reference:
        """Make a value available to all actors; it travels once to each actor or node."""
        # It is copied before this returns: changes that follow are not seen.
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
        """Publish a number as a metric of the engine, where it has such; else nothing happens."""
        ...

    def close(self) -> None:
        """End all actors and free what they held; idempotent."""
        ...
