"""An actor that is a process of this machine: its own side, which is two processes.

The *keeper* is a child of the driver. It forks the *host*, in which the object lives, and waits.
When the driver has exited, it kills the host and every process that the host has started, also
where the host is stopped or stuck. When the host has ended, it kills what the host has left, and
tells the driver how it ended. It imports little, so it takes little memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

# Messages to the host: tuples that begin with one of these. A host answers each CALL.
MAKE, HOLD, FORGET, CALL = range(4)

NUMBER = struct.Struct("<i")
"""A keeper sends two: the host's process id, and at its end its status as `os.waitpid` has it."""

_HEAD = struct.Struct("<QQ")  # size of a message's pickle, and the number of buffers after it
_LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent ends


class Held(NamedTuple):
    """An argument of a call that was sent before; `number` is its own."""

    number: int


def packed(message: tuple[object, ...]) -> list[bytes | memoryview]:
    """A message as pieces of memory to write in turn; its arrays must not change until then."""
    import pickle  # here, as other modules below, since the keeper needs none of them

    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    return [_HEAD.pack(len(data), len(views)) + sizes, data, *views]


class MessageReader:
    """Reads messages from a socket, also from one that does not block."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._messages = self._read()

    def next(self) -> Any:
        """The next message; None while a part is missing; EOFError: the other side is gone."""
        try:
            return next(self._messages)
        except (StopIteration, OSError):
            raise EOFError from None

    def _read(self) -> Generator[Any]:
        import pickle

        while True:
            size, count = _HEAD.unpack((yield from self._part(_HEAD.size)))
            sizes = struct.unpack(f"<{count}Q", (yield from self._part(8 * count)))
            data = yield from self._part(size)
            buffers: list[bytearray] = []
            for size in sizes:
                buffers.append((yield from self._part(size)))
            yield pickle.loads(data, buffers=buffers)

    def _part(self, size: int) -> Generator[None, None, bytearray]:
        """Read so many bytes."""
        part = bytearray(size)
        left = memoryview(part)
        while left:
            try:
                count = self._link.recv_into(left)
            except BlockingIOError:
                yield
                continue
            if not count:
                raise EOFError
            left = left[count:]
        return part


# The keeper.


def run_keeper(life: int, data: int) -> None:
    """Run a host in a child process until it ends, or the driver has exited."""
    # ``life`` is a socket, the other end of which is the driver's alone: nothing comes from it.
    # ``data`` is the socket for messages of the host.
    driver = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    reader, writer = os.pipe()
    for one in (reader, writer):
        os.set_blocking(one, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # for the byte in the pipe
    keeper = os.getpid()
    host = os.fork()
    if host == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (life, reader, writer):
            os.close(one)
        os.setpgid(0, 0)
        _end_with(keeper)
        _serve(data)
        return
    os.close(data)
    with contextlib.suppress(OSError):  # the host has done it
        os.setpgid(host, host)
    _tell(life, host)
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(reader, select.POLLIN)
    status = _ended(host)
    while status is None:
        is_gone = any(found == life for found, _ in poll.poll(1000 * _LOOK_SECONDS))
        if is_gone or os.getppid() != driver:
            break
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 4096)
        status = _ended(host)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: all are zombies
        os.killpg(host, signal.SIGKILL)
    _tell(life, os.waitpid(host, 0)[1] if status is None else status)


def _ended(host: int) -> int | None:
    """The host's status once it has ended."""
    pid, status = os.waitpid(host, os.WNOHANG)
    return status if pid else None


def _tell(life: int, number: int) -> None:
    with contextlib.suppress(OSError):  # the driver is gone
        os.write(life, NUMBER.pack(number))


def _end_with(keeper: int) -> None:
    """Let this process end when its keeper does, also while it is stopped or stuck."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(0)


# The host.


def _serve(data: int) -> None:
    """Make the object, and call its methods, until the driver is gone."""
    import pickle

    from ...wrappers.workers.processes import leave_signals_to_parent, limit_threads
    from .engine import remote_error

    leave_signals_to_parent()
    link = socket.socket(fileno=data)
    reader = MessageReader(link)
    held: dict[int, Any] = {}
    target: object = None
    failure: tuple[object, ...] | None = None
    while True:
        try:
            kind, *values = reader.next()
        except EOFError:
            return
        if kind == HOLD:
            held[values[0]] = values[1]
        elif kind == FORGET:
            held.pop(values[0], None)
        else:
            limit_threads()
            try:
                if kind == MAKE:
                    target = pickle.loads(values[0])()
                    continue
                answer = packed(failure or (True, _called(target, values[0], values[1], held)))
            except BaseException as error:  # the user's code may raise SystemExit, too
                failed = False, remote_error(error)
                if kind == MAKE:
                    failure = failed
                    continue
                answer = packed(failed)
            sys.stdout.flush()  # what is printed is not lost where the process is killed
            try:
                for piece in answer:
                    link.sendall(piece)
            except OSError:
                return


def _called(
    target: object, method: str, arguments: tuple[object, ...], held: Mapping[int, Any]
) -> object:
    """Call a method of the object; values that were sent before are unpickled for this call."""
    import pickle

    given = [pickle.loads(held[one.number]) if isinstance(one, Held) else one for one in arguments]
    return getattr(target, method)(*given)
