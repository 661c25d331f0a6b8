"""Progress of long calls: a line in a terminal or a notebook, lines of text elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Generator, Sequence
from threading import Lock, RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TextIO, TypeAlias, TypeVarTuple

if TYPE_CHECKING:
    import rich.console
    import rich.progress
    import rich.text

_Args = TypeVarTuple("_Args")
Progress: TypeAlias = "Callable[[*_Args], None] | bool | None"
"""An argument ``progress``: a function that is called with reports, True for a display, or not."""

GAP: Final = "  "
_DELAY: Final = 1.0
_TEXT_SECONDS: Final = 30.0
_BAR_WIDTH: Final = 20
_LEAST_WITH_BAR: Final = 60
"""Columns of a terminal in which a line has a bar."""
# A display takes a small part of a hundredth of the time, however slow the terminal is.
_TIMES_THE_COST: Final = 300


class Part(NamedTuple):
    """A piece of text that is never broken across lines."""

    text: str
    rank: int = 0  # when a line is too long, parts of high rank are left out first
    style: str = ""  # of rich


class Status(NamedTuple):
    """The progress of some work."""

    parts: Sequence[Part]  # counts and rates
    fraction: float | None = None  # that is done, 0 to 1; None where it is unknown
    seconds: float = 0.0  # that the work has taken so far

    def line(self) -> list[Part]:
        """All parts of a line: the fraction, the counts, and the time left."""
        done = self.fraction
        if done is None:
            return list(self.parts)
        line = [Part(f"{done:4.0%}", 3, "bold"), *self.parts]
        if 0 < done < 1:
            line.append(Part(f"{clock(self.seconds * (1 - done) / done)} left", 1, "bold"))
        return line


class LiveLine:
    """Shows the progress of some work, until the end of a ``with`` block."""

    # In a terminal, and in a notebook that has ipywidgets, it is a line with a bar by rich, which
    # is removed at the end. Elsewhere a line of text is written to standard error every 30 seconds.
    # Several that are shown at once, nested or in threads, each have a line of their own.

    def __init__(self, *, is_silent: bool = False, delay: float = 0.0) -> None:
        self._is_silent = is_silent
        self._began = monotonic()
        self._due = self._began + delay  # nothing is shown before
        self._place: _Line | _TextLines | None = None
        self._lock = Lock()

    def say(self, text: str) -> None:
        """Show a sentence, before there are numbers to report."""
        self._draw(lambda: Status([Part(text, style="dim")]), is_sentence=True)

    def show(self, status: Callable[[], Status]) -> None:
        """Show the progress; the function is called only if it is time to draw."""
        if monotonic() >= self._due:
            self._draw(status)

    def reporter(self, status: Callable[[*_Args], Status]) -> Callable[[*_Args], None]:
        """A function for an argument ``progress``, which shows the status of what it gets."""
        return lambda *args: self.show(lambda: status(*args))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_silent = True
        has_lock = self._lock.acquire(timeout=1)  # another thread may be drawing its last status
        try:
            if self._place is not None:
                with contextlib.suppress(OSError):
                    self._place.close()
        finally:
            if has_lock:
                self._lock.release()

    def _draw(self, status: Callable[[], Status], *, is_sentence: bool = False) -> None:
        # A thread does not wait for another one that draws, nor a handler for what it interrupts.
        if self._is_silent or not self._lock.acquire(blocking=False):
            return
        try:
            if self._place is None:
                self._place = _place()
                self._due = max(self._due, self._began + self._place.delay)
            place = self._place
            before = monotonic()
            if place.has_sentences if is_sentence else before >= self._due:
                place.show(status())
                now = monotonic()
                if not is_sentence:
                    self._due = now + max(place.interval, _TIMES_THE_COST * (now - before))
        except OSError:  # the terminal is gone, which is no reason to end the work
            self._is_silent = True
        finally:
            self._lock.release()


@contextlib.contextmanager
def progress_function(
    progress: Progress[*_Args], status: Callable[[*_Args], Status]
) -> Generator[Callable[[*_Args], None] | None]:
    """The function to call with reports, or None; for True one that shows them in the block."""
    check_progress(progress)
    if progress is True:
        with LiveLine(delay=_DELAY) as line:
            yield line.reporter(status)
    else:
        yield progress if callable(progress) else None


def check_progress(progress: object) -> None:
    """Refuse what is no argument ``progress``."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(
            f"progress: expected True, or a function that is called with reports, got {progress!r}"
        )


def episodes_status(
    steps: int,
    episodes: int,
    # env steps and episodes of all; None where a number is not known
    total: tuple[int | None, int | None],
    seconds: float,
    nbytes: int | None = None,  # of the rows that are done, uncompressed
) -> Status:
    """The progress of work on whole episodes."""
    all_steps, all_episodes = total
    done: float | None = None
    if all_steps:
        done = steps / all_steps
    elif all_episodes:
        done = episodes / all_episodes
    of_steps = f" / {all_steps:,}" if all_steps else ""
    of_episodes = f" / {all_episodes:,}" if all_episodes else ""
    parts = [
        Part(f"{steps:,}{of_steps} steps"),
        Part(f"{episodes:,}{of_episodes} episodes", 2),
    ]
    if seconds > 0:
        parts.append(Part(f"{rate(steps / seconds)} steps/s", 4))
    if nbytes is not None:
        parts.append(Part(format_bytes(nbytes), 5))
        if seconds > 0:
            parts.append(Part(f"{format_bytes(nbytes / seconds)}/s", 5))
    return Status(parts, None if done is None else min(1.0, max(0.0, done)), seconds)


def bytes_status(name: str) -> Callable[[int, int], Status]:
    """The progress of work on bytes: a function of those that are done, and those of all."""
    began = monotonic()

    def status(nbytes: int, all_bytes: int) -> Status:
        seconds = monotonic() - began
        parts = [
            Part(name, 2),
            Part(f"{format_bytes(nbytes)} of {format_bytes(all_bytes)}"),
            Part(f"{format_bytes(nbytes / max(seconds, 1e-9))}/s", 4),
        ]
        return Status(parts, min(1.0, nbytes / max(1, all_bytes)), seconds)

    return status


def fitted(parts: Sequence[Part], width: int) -> rich.text.Text:
    """Join parts into one line of at most ``width`` characters, leaving out the least important."""
    kept = list(parts)
    while len(kept) > 1 and sum(len(part.text) + len(GAP) for part in kept) - len(GAP) > width:
        kept.remove(max(reversed(kept), key=lambda part: part.rank))
    line = joined(kept)
    line.truncate(max(1, width))
    return line


def joined(parts: Sequence[Part]) -> rich.text.Text:
    """Join parts into one line."""
    from rich.text import Text  # loaded when there is something to show

    line = Text(GAP).join(Text(part.text, style=part.style) for part in parts)
    line.no_wrap = True
    return line


def clock(seconds: float) -> str:
    """A time in minutes and seconds, and hours if it is long."""
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate(number: float) -> str:
    """A number for each second, or a ratio."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def format_bytes(count: float) -> str:
    """A number of bytes with a readable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _place() -> _Line | _TextLines:
    """The display that fits this process now."""
    file: Any = sys.stderr
    try:
        is_terminal = file is not None and file.isatty()
    except ValueError:  # it is closed
        is_terminal = False
    if is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown"):
        return _Line()
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_notebook = getattr(shell, "kernel", None) is not None
    # Without ipywidgets, rich shows nothing in a notebook but a warning.
    return _Line() if is_notebook and importlib.util.find_spec("ipywidgets") else _TextLines()


class _Display:
    """The lines at the bottom of a terminal: tasks of one display of rich."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._tasks: dict[_Line, rich.progress.TaskID] = {}
        self._rich: rich.progress.Progress | None = None
        self._streams: dict[str, Any] = {}
        self._handlers: list[logging.StreamHandler[Any]] = []

    def show(self, line: _Line, status: Status) -> None:
        with self.lock:
            if self._rich is None:
                self._rich = self._started()
            width = self._rich.console.width
            width -= 1 if width < _LEAST_WITH_BAR else _BAR_WIDTH + 2
            text = fitted(status.line(), width).markup
            total, done = None if status.fraction is None else 1.0, status.fraction or 0.0
            if line not in self._tasks:
                self._tasks[line] = self._rich.add_task(text, total=total)
            task = self._tasks[line]
            self._rich.update(task, description=text, total=total, completed=done, refresh=True)

    def remove(self, line: _Line) -> None:
        with self.lock, contextlib.ExitStack() as stack:  # all of it, even if the terminal is gone
            task, shown = self._tasks.pop(line, None), self._rich
            if shown is None:
                return
            if self._tasks:
                if task is not None:
                    shown.remove_task(task)
                shown.refresh()
                return
            self._rich = None
            stack.callback(shown.stop)
            stack.callback(self._give_back)
            for stream in self._streams.values():
                stream.flush()  # a line that was begun

    def forked(self) -> None:
        """Write without the display: a thread of the parent may have held one of its locks."""
        self._give_back()
        self.lock, self._tasks, self._rich = RLock(), {}, None

    def _started(self) -> rich.progress.Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        bar = [BarColumn(_BAR_WIDTH)] if console.width >= _LEAST_WITH_BAR else []
        shown = Progress(
            *bar,
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,  # it is drawn when there is something to report
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        shown.start()
        for name in ("stdout", "stderr"):
            file = getattr(sys, name)
            # A standard output that goes elsewhere, to a file or a pipe, still does.
            if file is not None and not file.closed and file.isatty():
                self._streams[name] = stream = _stream(console, file)
                setattr(sys, name, stream)
                # Handlers keep the stream that they were made with. Not by setStream: that waits
                # for a handler's lock, which a thread that waits for ours may hold.
                for handler in (
                    logging.getLogger().handlers + logging.getLogger("stepwell").handlers
                ):
                    if isinstance(handler, logging.StreamHandler) and handler.stream is file:
                        handler.stream = stream
                        self._handlers.append(handler)
        return shown

    def _give_back(self) -> None:
        for handler in self._handlers:
            if handler.stream in self._streams.values():
                handler.stream = handler.stream.rich_proxied_file
        for name, stream in self._streams.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.rich_proxied_file)
        self._handlers, self._streams = [], {}


def _stream(console: rich.console.Console, file: TextIO) -> Any:
    """A stream whose lines appear above those of the display."""
    from rich.file_proxy import FileProxy

    class Stream(FileProxy):
        def write(self, text: str) -> int:
            with _DISPLAY.lock:  # else threads that print at once erase each other's lines
                return super().write(text)

    return Stream(console, file)


_DISPLAY: Final = _Display()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_DISPLAY.forked)


class _Line:
    """A line of the display."""

    interval = 0.1
    delay = 0.0
    has_sentences = True

    def __init__(self) -> None:
        import rich.progress  # noqa: F401  # some 0.1 s, before the first drawing is timed

    def show(self, status: Status) -> None:
        """Draw the status in place of the one before."""
        _DISPLAY.show(self, status)

    def close(self) -> None:
        _DISPLAY.remove(self)


class _TextLines:
    """Lines of text on standard error, for logs."""

    interval = _TEXT_SECONDS
    delay = _TEXT_SECONDS
    has_sentences = False

    def show(self, status: Status) -> None:
        if sys.stderr is not None:
            text = GAP.join(part.text for part in status.line()).strip()
            with contextlib.suppress(ValueError):  # it is closed
                sys.stderr.write(f"stepwell: {text}\n")
                sys.stderr.flush()

    def close(self) -> None:
        pass
