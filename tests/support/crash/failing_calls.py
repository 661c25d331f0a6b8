"""Real commands whose n-th system call kills, fails or interrupts them.

`failing_calls.c`, loaded before the C library, counts the calls that change something below a
folder, also those that h5py, pyarrow and shutil make, and lets it happen at one of them. A parent
that has imported everything forks a child for each command, because starting Python takes longer
than most commands.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import importlib
import io
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

__all__ = ["FAULTS", "Call", "Commands", "Fault", "Outcome", "why_not_here"]

_SOURCE = Path(__file__).with_suffix(".c")
_NUMBERS = struct.Struct("<7q")  # calls, target, fault, error, seed, fired, stored
_STORED_OFFSET = 6 * 8
_FOLDER_BYTES, _MOST_CALLS, _TEXT_BYTES = 4096, 8192, 192
_STATE_BYTES = _NUMBERS.size + _FOLDER_BYTES + _MOST_CALLS * _TEXT_BYTES
_NEVER, _KILL, _FAIL_ONCE, _FAIL_FROM_THEN_ON, _INTERRUPT = range(5)
_MOST_SECONDS = 120.0
_GRACE_SECONDS = 10.0
_IMPORTED_LATE = (
    *(
        f"stepwell.collectors.cli.{name}"
        for name in ("app", "archive", "collect", "copy", "exchange", "health", "info", "upload")
    ),
    *(
        f"stepwell.buffers.exchange.formats.{name}"
        for name in ("exporting", "importing", "d3rlpy", "lerobot", "minari", "npz", "parquet")
    ),
    "stepwell.buffers.exchange.formats.rlds",
    "stepwell.buffers.exchange.formats.dreamer_v3",
    "stepwell.buffers.exchange.formats.memmap",
    "gymnasium.envs.classic_control",
    "h5py",
    "pandas",  # of pyarrow, where it is installed
    "pyarrow.parquet",
    "pydantic",  # of typer, likewise
)


class Fault(NamedTuple):
    """A fault at a call."""

    name: str  # in a few words
    how: int  # number of it in ``failing_calls.c``
    error: int = 0  # with which the call fails

    @property
    def is_kill(self) -> bool:
        return self.how == _KILL

    @property
    def is_interrupt(self) -> bool:
        return self.how == _INTERRUPT

    @property
    def is_failure(self) -> bool:
        return self.how in (_FAIL_ONCE, _FAIL_FROM_THEN_ON)

    @property
    def is_lasting(self) -> bool:
        return self.how == _FAIL_FROM_THEN_ON

    @property
    def is_broken_disk(self) -> bool:
        """From then on nothing can be changed, and nothing removed."""
        return self.is_lasting and not self.needs_room

    @property
    def needs_room(self) -> bool:
        """Only calls that take room fail so."""
        return self.error == errno.ENOSPC


NO_FAULT = Fault("nothing", _NEVER)
FAULTS = (
    Fault("kill", _KILL),
    Fault("a full disk", _FAIL_FROM_THEN_ON, errno.ENOSPC),
    Fault("an I/O error", _FAIL_ONCE, errno.EIO),
    Fault("a broken disk", _FAIL_FROM_THEN_ON, errno.EIO),
    Fault("no room once", _FAIL_ONCE, errno.ENOSPC),
    Fault("Ctrl-C", _INTERRUPT),
)


class Call(NamedTuple):
    """A call that was counted."""

    takes_room: bool
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command."""

    code: int  # exit code; negative for a signal
    out: str  # what it said
    err: str  # what it complained about
    calls: tuple[Call, ...]  # the calls that were counted
    fired: int  # how often the fault happened
    stored: int  # steps that a call had reported as stored
    # Processes of it that still ran seconds after its end.
    left: tuple[str, ...] = field(default=())


def why_not_here() -> str:
    """Why no call can be made to fail on this machine; empty where it can."""
    if sys.platform != "linux":
        return "LD_PRELOAD as used here is Linux's"
    return "" if shutil.which("gcc") else "needs gcc"


class Commands(contextlib.AbstractContextManager["Commands"]):
    """Runs commands in forks of a process that has imported them."""

    # `scratch` is a folder for the library, the shared numbers and the output.

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        library, state = scratch / "failing_calls.so", scratch / "state"
        build = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*build, "-o", library, _SOURCE, "-ldl"], check=True)
        state.write_bytes(bytes(_STATE_BYTES))
        with state.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _STATE_BYTES)
        self._env = os.environ | {
            "LD_PRELOAD": str(library),
            "FAILING_CALLS": str(state),
            "PYTHONPATH": os.pathsep.join([str(_SOURCE.parents[2]), *sys.path[1:]]),
            "COLUMNS": "1000",
        }
        self._server: subprocess.Popen[str] | None = None

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.communicate()  # the end of its input is its end
        self._memory.close()

    def run(
        self,
        arguments: Sequence[str],
        folder: Path,
        fault: Fault = NO_FAULT,
        number: int = -1,
        *,
        seed: int = 0,
    ) -> Outcome:
        """Run a command in a folder; the fault happens at its n-th call below that folder."""
        # The arguments are those of `stepwell`, or MODULE:FUNCTION to call, and its own.
        # The seed is for how much of a write is done before it fails.
        folder = folder.resolve()
        name = os.fsencode(folder)
        assert len(name) < _FOLDER_BYTES
        self._memory[:_STATE_BYTES] = bytes(_STATE_BYTES)
        _NUMBERS.pack_into(self._memory, 0, 0, number, fault.how, fault.error, seed, 0, 0)
        self._memory[_NUMBERS.size : _NUMBERS.size + len(name)] = name
        streams = [self._scratch / "out", self._scratch / "err"]
        pid, code = self._fork(list(arguments), folder, streams)
        left = _left_behind(pid)
        calls, *_, fired, stored = _NUMBERS.unpack_from(self._memory)
        out, err = (stream.read_text(errors="replace") for stream in streams)
        return Outcome(code, out, err, tuple(self._logged(calls)), fired, stored, left)

    def _logged(self, calls: int) -> list[Call]:
        found: list[Call] = []
        for number in range(min(calls, _MOST_CALLS)):
            start = _NUMBERS.size + _FOLDER_BYTES + number * _TEXT_BYTES
            text = self._memory[start : start + _TEXT_BYTES].partition(b"\0")[0].decode()
            found.append(Call(text.startswith("+"), text[1:]))
        return found

    def _fork(self, arguments: list[str], folder: Path, streams: list[Path]) -> tuple[int, int]:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, str(Path(__file__)), *_IMPORTED_LATE],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        job = {"arguments": arguments, "folder": str(folder), "streams": list(map(str, streams))}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        pid, code = json.loads(self._server.stdout.readline())
        return pid, code


def _left_behind(group: int) -> tuple[str, ...]:
    """Processes of a group that still run after a while; they are ended then."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while found := _members(group):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            return found
        time.sleep(0.01)
    return ()


def _members(group: int) -> tuple[str, ...]:
    """Command lines of the living processes of a group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return ()
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.joinpath("stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(path.joinpath("cmdline").read_text().replace("\0", " "))
    return tuple(found)


def _serve() -> list[str]:
    """Fork a child for each line of stdin; returns in the children, with their arguments."""
    _import_everything()
    # Ignored where the tests run in the background of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # No other process may read the lines, or keep the pipe open.
    jobs, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    while line := jobs.readline():
        job: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.close(jobs.fileno())
            os.close(answers.fileno())
            for stream, path in zip((1, 2), job["streams"], strict=True):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(file, stream)
                os.close(file)
            os.chdir(job["folder"])
            return list(job["arguments"])
        print(json.dumps([pid, _wait(pid)]), file=answers, flush=True)
    os._exit(0)


def _wait(pid: int) -> int:
    """The exit code of a child, which is killed when it takes too long."""
    deadline, pause = time.monotonic() + _MOST_SECONDS, 0.001
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGABRT)
        time.sleep(pause)


def _import_everything() -> None:
    """The modules that commands import late, as far as they are installed."""
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # The first command reads all annotations and finds what else it needs.
    with contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module("stepwell.collectors.cli.app").main(["verify", os.devnull])
    gc.collect()
    gc.freeze()  # what was imported is never looked at again, so the children share it


def _run(arguments: list[str]) -> NoReturn:
    """Do what the installed script does, or call a function of a test, and end the process."""
    _report_stored()
    sys.argv = ["stepwell", *arguments]
    module, _, function = arguments[0].partition(":")
    code: Any = 0
    try:
        if function:
            getattr(importlib.import_module(module), function)(*arguments[1:])
        else:
            code = importlib.import_module("stepwell.collectors.cli.app").main(arguments)
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if os.environ.get("FAILING_CALLS_MODULES"):
        print(sorted(sys.modules), file=sys.stderr)
    # The end of the interpreter, but for the memory of what it has imported: that takes long.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).exit(code)
    raise AssertionError("exit returned")


def _report_stored() -> None:
    """Say after each flush how many steps are stored, where a kill does not reach it."""
    from stepwell.buffers import Chunk, DiskStorage

    with open(os.environ["FAILING_CALLS"], "r+b") as file:
        memory = mmap.mmap(file.fileno(), _STATE_BYTES)
    add = DiskStorage.add

    def reported(self: DiskStorage, chunks: Sequence[Chunk]) -> None:
        add(self, chunks)
        struct.pack_into("<q", memory, _STORED_OFFSET, self.index.total_steps)

    DiskStorage.add = reported  # type: ignore[method-assign]


if __name__ == "__main__":
    try:
        request = _serve()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    _run(request)
