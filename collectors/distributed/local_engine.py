"""Actors that are processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing.spawn
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Literal, cast

from ...wrappers.workers.processes import (
    CLOSE_SECONDS,
    ONE_THREAD,
    cloudpickle_dumps,
    ends_with,
    exit_in_words,
)
from .engine import Actor, ActorDied, Answer, NotEnoughResources, Reference
from .local_actor import CALL, FORGET, HOLD, MAKE, NUMBER, Held, MessageReader, packed

_BUFFER_BYTES = 1 << 20  # of a socket: a host seldom waits until a piece is written
_PROGRAM = (
    "import sys; sys.path[:] = {!r}; "
    "from stepwell.collectors.distributed.local_actor import run_keeper; run_keeper({}, {})"
)
_BY_DRIVER = "the driver ended it"


def pickled(name: str, value: object) -> bytes:
    """Pickle what is called in an actor; functions of the script that runs keep their code."""
    # ``name`` says in the TypeError what it is that cannot be pickled.
    try:
        return cloudpickle_dumps()(value)
    except Exception as error:  # whatever the user's objects raise
        raise TypeError(
            f"{name}: expected what can be pickled and sent to another process, got "
            f"{type(value).__name__} with something else ({error}); make that inside the function"
        ) from None


def check_sendable(**values: object) -> None:
    """Refuse arguments of a collector, by their names, that cannot be sent to its processes."""
    for name, value in values.items():
        pickled(name, value)


class _Answer:
    """The answer to one call, there or not yet."""

    def __init__(self, actor: _Actor, parts: Literal[1, 2]) -> None:
        self.actor, self.parts = actor, parts
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Let `LocalEngine.result` raise an error."""
        self.is_done, self.error = True, error


class _Reference:
    """A value that came from an actor, or is passed to actors, by its number in the messages."""

    # One of the two may be None: the value if only its pickle ``data`` is there, or the pickle.

    def __init__(self, number: int, value: object, data: bytes | None) -> None:
        self.number, self.value, self._data = number, value, data
        self.holders = set[_Actor]()  # that it was sent to

    def clear(self) -> None:
        """Free the value."""
        self.value, self._data = None, b""
        self.holders.clear()

    @property
    def data(self) -> bytes:
        """The pickle of the value."""
        if self._data is None:
            self._data = pickle.dumps(self.value, pickle.HIGHEST_PROTOCOL)
        return self._data


class _Actor:
    """The process of an actor, as the driver sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open_calls = deque[_Answer]()  # the oldest first
        self.unsent = deque[memoryview]()
        self.pid: int | None = None  # of the host, once the keeper has sent it
        self.status: int | None = None  # of the host, once it has ended
        self.ending: Exception | None = None  # what every call raises, once the actor is dead

    def start(self) -> None:
        """Start the keeper, which starts the host."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            life, far_life = socket.socketpair()
            ours.callback(life.close)
            theirs.callback(far_life.close)
            data, far_data = socket.socketpair()
            ours.callback(data.close)
            theirs.callback(far_data.close)
            for one in (data, far_data):
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    one.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
            life.setblocking(False)
            data.setblocking(False)
            ends = far_life.fileno(), far_data.fileno()
            path = [one for one in sys.path if isinstance(one, str)]
            program = _PROGRAM.format(path, *ends)
            self.keeper = subprocess.Popen(
                [multiprocessing.spawn.get_executable(), "-c", program, self.name],
                stdin=subprocess.DEVNULL,
                pass_fds=ends,  # the actor inherits nothing else: no driver's end of a sibling's
                env={**ONE_THREAD, **os.environ},
                start_new_session=True,  # Ctrl-C in the terminal is for the driver
            )
            ours.pop_all()
        self.life, self.data = life, data
        self.messages = MessageReader(data)

    def hear_keeper(self) -> bool:
        """Take what the keeper has sent; return False once it has ended."""
        while True:
            try:
                sent = self.life.recv(NUMBER.size)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not sent:
                return False
            (number,) = NUMBER.unpack(sent)
            if self.pid is None:
                self.pid = number
            else:
                self.status = number

    def how_it_ended(self) -> str:
        """Description of the host's end, once the keeper has ended."""
        if self.status is None:  # the keeper was killed, and the host with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.keeper.wait(CLOSE_SECONDS)
            code = self.keeper.returncode
        else:
            code = os.waitstatus_to_exitcode(self.status)
        words = exit_in_words(code)
        if code == -signal.SIGKILL:
            words += ": another program killed it, or the system for lack of memory"
        return words

    def end(self, error: Exception) -> None:
        """Close the sockets, upon which the keeper kills the host; fail the open calls."""
        self.ending = error
        for one in (self.life, self.data):
            # Also where a process that was forked from the driver has a copy.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.unsent.clear()
        while self.open_calls:
            self.open_calls.popleft().fail(error)

    def reap(self, deadline: float) -> bool:
        """Kill the keeper after a deadline (time.monotonic); return True once it has ended."""
        if self.keeper.poll() is None and time.monotonic() > deadline:
            self.keeper.kill()
            self.keeper.wait()
        if self.keeper.returncode is None:
            return False
        if self.keeper.returncode < 0 and self.pid is not None and self.status is None:
            # It could not kill what the host has started.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return True


class LocalEngine:
    """Starts actors as processes of this machine, Linux or macOS; an `Engine`."""

    # Each actor is a new Python process, which imports what it needs: nothing of the driver's
    # memory is there but ``sys.path`` and the environment. Functions of the script that runs are
    # sent with their code, so that the script does not run again. What actors print goes to where
    # the driver prints. No actor, and no process that an actor has started, outlives the driver by
    # more than a moment, however the driver ends.

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise OSError(
                f"actors in processes: expected Linux or macOS, got {sys.platform}; use a "
                f"Collector, which runs in this process"
            )
        self._numbers = count()
        self._selector = selectors.DefaultSelector()
        self._actors: list[_Actor] = []
        self._ended: list[tuple[_Actor, float]] = []  # with the deadlines of their keepers
        self._finalizer = ends_with(self, partial(_end_all, self._actors, self._ended))

    def start(self, name: str, make: Callable[[], object]) -> Actor:
        """Start a process and return at once; see `Engine.start`."""
        data = pickled(name, make)
        self._reap()
        actor = _Actor(name)
        try:
            actor.start()
        except OSError as error:
            actor.ending = NotEnoughResources(
                f"{name}: expected the system to start a process, got {error}; use fewer of them, "
                f"or end other programs"
            )
            return actor
        self._actors.append(actor)
        self._selector.register(actor.life, selectors.EVENT_READ, actor)
        self._selector.register(actor.data, selectors.EVENT_READ, actor)
        self._send(actor, packed((MAKE, pickle.PickleBuffer(data))))
        return actor

    def call(
        self, actor: Actor, method: str, *arguments: object, parts: Literal[1, 2] = 1
    ) -> Answer:
        """Call a method of the actor's object and return at once; see `Engine.call`."""
        called = cast("_Actor", actor)
        answer = _Answer(called, parts)
        if called.ending is not None:
            answer.fail(called.ending)
            return answer
        given: list[object] = []
        for argument in arguments:
            if isinstance(argument, _Reference):
                if called not in argument.holders:
                    held = HOLD, argument.number, pickle.PickleBuffer(argument.data)
                    self._send(called, packed(held))
                    argument.holders.add(called)
                given.append(Held(argument.number))
            else:
                given.append(argument)
        # Joined, and so copied: the caller may change an array before all of it is sent.
        message = b"".join(packed((CALL, method, tuple(given))))
        called.open_calls.append(answer)
        self._send(called, [message])
        return answer

    def wait(self, answers: Sequence[Answer], seconds: float) -> list[Answer]:
        """The answers that are there or have failed; none of them after so many seconds: []."""
        deadline = time.monotonic() + seconds
        given = cast("Sequence[_Answer]", answers)
        left = 0.0  # look first, so that what has come is taken
        while True:
            self._pump(left)
            done = [answer for answer in given if answer.is_done]
            left = deadline - time.monotonic()
            if done or left <= 0:
                return list(done)

    def result(self, answer: Answer) -> Any:
        """The value that the call returned; see `Engine.result`."""
        given = cast("_Answer", answer)
        while not given.is_done:
            self._pump(None)
        if given.error is not None:
            raise given.error
        return given.value

    def fetch(self, reference: Reference) -> Any:
        """The value of a reference."""
        given = cast("_Reference", reference)
        return pickle.loads(given.data) if given.value is None else given.value

    def share(self, value: object) -> Reference:
        """Make a value, as it is now, available to all actors; it is sent once to each."""
        return _Reference(next(self._numbers), None, cloudpickle_dumps()(value))

    def forget(self, reference: Reference) -> None:
        """Free the memory of a reference, here and in the actors; idempotent."""
        given = cast("_Reference", reference)
        for actor in given.holders:
            if actor.ending is None:
                self._send(actor, packed((FORGET, given.number)))
        given.clear()

    def kill(self, actor: Actor) -> None:
        """End an actor and what it has started at once; idempotent."""
        self._end(cast("_Actor", actor), ActorDied(_BY_DRIVER))

    def shortage(self, actor: Actor) -> str | None:
        """None: a process that cannot be started is an error of `start`."""
        return None

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Nothing: there are no metrics of this engine."""

    def close(self) -> None:
        """End all actors, and wait until their processes are gone; idempotent."""
        for actor in list(self._actors):
            self.kill(actor)
        self._finalizer()

    # Sockets.

    def _pump(self, seconds: float | None) -> None:
        """Write and read what can be, after waiting for it for so many seconds; None: no limit."""
        self._reap()
        for key, events in self._selector.select(seconds):
            actor: _Actor = key.data
            if actor.ending is not None:
                continue  # by an event before this one
            with self._ending_after_error(actor):
                if key.fileobj is actor.life:
                    if not actor.hear_keeper():
                        self._take_answers(actor)  # those that it sent before its end
                        ended = f"its process ended with {actor.how_it_ended()}"
                        self._end(actor, ActorDied(ended))
                    continue
                if events & selectors.EVENT_WRITE:
                    self._write(actor)
                if events & selectors.EVENT_READ and not self._take_answers(actor):
                    self._selector.unregister(actor.data)  # the keeper will tell why

    @contextlib.contextmanager
    def _ending_after_error(self, actor: _Actor) -> Iterator[None]:
        """End an actor after Ctrl-C, when a message may have been read or written in part."""
        try:
            yield
        except BaseException:
            self.kill(actor)
            raise

    def _take_answers(self, actor: _Actor) -> bool:
        """Take the answers that are there; return False if no other one will come."""
        while True:
            try:
                message = actor.messages.next()
            except EOFError:
                return False
            if message is None:
                return True
            answer = actor.open_calls.popleft()
            is_value, value = message
            if not is_value:
                answer.fail(value)
                continue
            answer.value = value
            if answer.parts == 2:
                value, payload = answer.value
                answer.value = value, _Reference(next(self._numbers), payload, None)
            answer.is_done = True

    def _send(self, actor: _Actor, pieces: Sequence[bytes | memoryview]) -> None:
        """Write as much of a message as the socket takes now; the rest is written later."""
        with self._ending_after_error(actor):
            actor.unsent.extend(map(memoryview, pieces))
            self._write(actor)

    def _write(self, actor: _Actor) -> None:
        unsent = actor.unsent
        try:
            while unsent:
                sent = actor.data.send(unsent[0])
                if sent == len(unsent[0]):
                    unsent.popleft()
                else:
                    unsent[0] = unsent[0][sent:]
        except BlockingIOError:
            pass
        except OSError:  # the host is dead; its keeper will tell how it ended
            unsent.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
        if actor.data in self._selector.get_map():
            self._selector.modify(actor.data, events, actor)

    # Ends.

    def _end(self, actor: _Actor, error: Exception) -> None:
        if actor.ending is not None:
            return
        for one in (actor.life, actor.data):
            with contextlib.suppress(KeyError):
                self._selector.unregister(one)
        actor.end(error)
        self._actors.remove(actor)
        self._ended.append((actor, time.monotonic() + CLOSE_SECONDS))

    def _reap(self) -> None:
        self._ended[:] = [(actor, by) for actor, by in self._ended if not actor.reap(by)]


def _end_all(actors: list[_Actor], ended: list[tuple[_Actor, float]], deadline: float) -> None:
    """End all actors, and wait for their processes."""
    for actor in actors:
        actor.end(ActorDied(_BY_DRIVER))
        ended.append((actor, deadline))
    actors.clear()
    for actor, _ in ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            actor.keeper.wait(max(0.0, deadline - time.monotonic()))
        actor.reap(deadline)
    ended.clear()
