"""Runs cases of hostile input in a child process under limits, and judges how each of them ends.

A case is a number, from which everything in it follows. It ends with labels that describe it, or in
a `Fault`: a crash, a hang, too much memory, an error that is no sentence for a user, or a change of
a file that it must not touch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import resource
import shutil
import signal
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

from stepwell.buffers import StepwellError

__all__ = ["Canaries", "Fault", "Limits", "Runner", "Verdict", "attempt", "fast_folder"]

Labels: TypeAlias = "Mapping[str, str]"
"""Labels that describe a case, by topic: ``{"forged": "slot", "verify": "StoreCorrupt"}``."""

Work: TypeAlias = "Callable[[int], Labels]"
"""Runs the case of a number. It may raise; only a `Fault` names its own signature."""

_OWN = re.compile(r"[/\\]((?:wrappers|collectors|buffers)[/\\].*)$")
_CHECKOUT = str(Path(__file__).resolve().parents[3])
_LOOK_SECONDS = 0.25
_DUMPED_LINE = re.compile(r'File "([^"]+)", line (\d+) in (\w+)')


class Limits(NamedTuple):
    """Limits of a case."""

    cpu_seconds: int = 15  # of all threads
    # It hangs if it was asleep, and used no processor, in so many looks in a row.
    idle_looks: int = 20
    memory_bytes: int = 1 << 30  # on top of what the child has when it begins
    file_bytes: int = 1 << 28  # length of a file that it writes


class Fault(Exception):
    """A case ended as none may; of one cause the signatures are the same, as far as possible."""

    def __init__(self, signature: str, sentence: str) -> None:
        super().__init__(sentence)
        self.signature = signature


class Verdict(NamedTuple):
    """The end of a case."""

    number: int  # number of the case
    labels: Labels  # labels of the case; empty if it has not returned any
    signature: str = ""  # of the fault; empty where there is none
    fault: str = ""  # what happened, with the traceback if there is one


@contextlib.contextmanager
def fast_folder() -> Generator[Path]:
    """A folder for many small files, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="stepwell-hostile-", dir=parent)).resolve()
    try:
        yield path
    finally:
        shutil.rmtree(path)


def attempt(
    what: str, call: Callable[[], object], accepted: tuple[type[Exception], ...] = (ValueError,)
) -> str:
    """Do something with hostile input that may be refused in a sentence; else it is a `Fault`."""
    # Returns "done", or the name of the error that refused it and what it said, as in
    # "StoreCorrupt: ...". Beside Stepwell's errors `accepted` are those of a `raise` of its own.
    try:
        call()
    except (StepwellError, OSError) as error:
        if isinstance(error, OSError) and not _names_a_file(error):
            raise _fault_of(what, error) from error
        return f"{type(error).__name__}: {error}"
    except Fault:
        raise
    except Exception as error:
        # A ValueError that numpy raises in one of Stepwell's lines is no sentence for a user.
        innermost = traceback.extract_tb(error.__traceback__)[-1]
        is_meant = _OWN.search(innermost.filename) and (innermost.line or "").startswith("raise ")
        # That something would take too much memory may be said in a sentence, too.
        if not (isinstance(error, (*accepted, MemoryError)) and is_meant):
            raise _fault_of(what, error) from error
        return f"{type(error).__name__}: {error}"
    return "done"


class Canaries:
    """Files that nothing may touch: the whole content of a folder, but for the free names in it."""

    def __init__(self, folder: Path, free: frozenset[str]) -> None:
        self._folder = folder
        self._free = free
        self._before = dict(self._look())

    def check(self, what: str) -> None:
        """Compare names, content, times and inodes."""
        now = dict(self._look())
        for name in sorted({*self._before, *now}):
            before, after = self._before.get(name), now.get(name)
            if before != after:
                change = "made" if before is None else "gone" if after is None else "changed"
                raise Fault(
                    f"{change} outside of the folder: {Path(name).name}",
                    f"{what}: {name} was {change}: {str(before)[:200]} -> {str(after)[:200]}",
                )

    def _look(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        top = str(self._folder)  # no Path for each file: this is done after every use of every case
        for root, folders, names in os.walk(top):
            if root == top:
                folders[:] = [name for name in folders if name not in self._free]
                names = [name for name in names if name not in self._free]
            for name in (*folders, *names):
                path = f"{root}{os.sep}{name}"
                info = os.lstat(path)
                content = None
                if stat.S_ISREG(info.st_mode):
                    with open(path, "rb") as file:
                        content = file.read()
                # A link's count, and with it the time of its last change, may differ.
                times = (info.st_mtime_ns,) if name in names else ()
                facts = (info.st_mode, info.st_ino, *times, content)
                yield os.path.relpath(path, top), facts


class Runner(contextlib.AbstractContextManager["Runner"]):
    """Runs cases in a child process, which is replaced if it ends."""

    # `make` is called in the child and makes what runs a case there; it can be pickled. The folder
    # is for the log that the child writes when it crashes.

    def __init__(
        self, make: Callable[[], Work], folder: Path, limits: Limits | None = None
    ) -> None:
        self._make = make
        self._log = folder / "death.log"
        self._limits = limits or Limits()
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def run(self, number: int) -> Verdict:
        """Run one case."""
        pipe = self._pipe or self._start()
        pipe.send(number)
        return self._wait(pipe, number)

    def close(self) -> None:
        """End the child."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is not None and pipe is not None:
            with contextlib.suppress(OSError):
                pipe.send(None)
            process.join(10)
            process.kill()
            process.join()
            process.close()
            pipe.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> Connection:
        # Not a fork: the parent may hold much memory, and threads.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._make, self._limits, self._log), daemon=True
        )
        # `make` may be of a test module, which pytest imports without a path to it.
        sys.path.append(_CHECKOUT)
        try:
            process.start()
        finally:
            sys.path.remove(_CHECKOUT)
        self._process = process
        theirs.close()
        ready: Verdict = self._wait(self._pipe, -1)
        if ready.fault:
            raise RuntimeError(f"the child did not get ready: {ready.fault}")
        return self._pipe

    def _wait(self, pipe: Connection, number: int) -> Verdict:
        process = self._process
        assert process is not None
        is_hanging, idle, before = False, 0, ""
        try:
            while not pipe.poll(_LOOK_SECONDS):
                now = _activity(process.pid)
                idle = idle + 1 if now and now == before else 0
                before = now
                if idle >= self._limits.idle_looks and not is_hanging:
                    is_hanging = True
                    os.kill(process.pid or 0, signal.SIGABRT)  # it writes its traceback
            verdict: Verdict = pipe.recv()
            return verdict
        except (EOFError, ConnectionResetError):
            process.join()
            code = process.exitcode or 0
        self.close()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        end = "asleep for good" if is_hanging else name
        end = "too much processor time" if name == "SIGPROF" else end
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        return Verdict(number, {}, f"{end} in {_dumped_place(log)}", f"{end}\n{log[-4000:]}")


def _serve(pipe: Connection, make: Callable[[], Work], limits: Limits, log: Path) -> None:
    """The main loop of the child process."""
    with log.open("w") as file:
        _log_crashes(file)
        work = make()
        _limit(limits)
        pipe.send(Verdict(-1, {}))
        while (number := pipe.recv()) is not None:
            file.seek(0)
            file.truncate()
            _limit_cpu(limits.cpu_seconds)
            try:
                verdict = Verdict(number, work(number))
            except Fault as error:
                cause = error.__cause__
                trace = traceback.format_exception(cause, limit=-12) if cause else []
                verdict = Verdict(number, {}, error.signature, "\n".join([str(error), *trace]))
            except Exception as error:
                verdict = Verdict(number, {}, f"the test itself: {error!r}", traceback.format_exc())
            pipe.send(verdict)


def _log_crashes(file: IO[str]) -> None:
    faulthandler.enable(file)
    faulthandler.register(signal.SIGPROF, file, all_threads=False, chain=True)


def _limit(limits: Limits) -> None:
    status = Path("/proc/self/status")
    if status.exists():  # elsewhere the limit means something else
        now = re.search(r"VmData:\s+(\d+) kB", status.read_text())
        assert now is not None
        most = int(now[1]) * 1024 + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(seconds: int) -> None:
    """Let the kernel end this process after some more seconds of work."""
    # Not RLIMIT_CPU, which counts from the begin of the process, and whole ticks: over some minutes
    # on a busy machine that is many seconds more than those of os.times().
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _activity(pid: int | None) -> str:
    """The processor time of a process that is asleep; empty where it works, or is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{fields[11]} {fields[12]}" if fields[0] == "S" else ""


def _names_a_file(error: OSError) -> bool:
    return bool(error.strerror and error.filename is not None)


def _fault_of(what: str, error: Exception) -> Fault:
    name, lines = type(error).__name__, traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if _OWN.search(line.filename)]
    place = "nowhere of ours"
    if own:
        found = _OWN.search(own[-1].filename)
        place = f"{found[1] if found else ''}:{own[-1].name}"
    return Fault(f"{name} in {place}", f"{what} raised {name}: {str(error)[:300]}")


def _dumped_place(log: str) -> str:
    """The innermost line of ours in what faulthandler wrote."""
    for file, _, function in _DUMPED_LINE.findall(log):
        if found := _OWN.search(file):
            return f"{found[1]}:{function}"
    return "nowhere of ours"
