"""Progress of long calls: a line in a terminal, a bar in a notebook, lines of text elsewhere."""

from __future__ import annotations

import contextlib
import html
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from threading import Lock, RLock
from time import monotonic
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    Protocol,
    Self,
    TextIO,
    TypeAlias,
    TypeVarTuple,
)
from uuid import uuid4

if TYPE_CHECKING:
    import rich.live
    import rich.text

__all__ = [
    "GAP",
    "LiveLine",
    "Part",
    "Progress",
    "Status",
    "bytes_status",
    "check_progress",
    "clock",
    "episodes_status",
    "fitted",
    "format_bytes",
    "joined",
    "progress_function",
    "rate",
]

_Args = TypeVarTuple("_Args")
Progress: TypeAlias = "Callable[[*_Args], None] | bool | None"
"""An argument ``progress``: a function that is called with reports, True for a display, or not."""

GAP: Final = "  "
_DELAY: Final = 1.0
_TEXT_SECONDS: Final = 30.0
# A display takes a small part of a hundredth of the time, however slow the terminal is.
_TIMES_THE_COST: Final = 300


class Part(NamedTuple):
    """A piece of text that is never broken across lines.

    Args:
        text: The text.
        rank: When a line is too long, parts of high rank are left out first.
        style: Style of rich.
    """

    text: str
    rank: int = 0
    style: str = ""


class Status(NamedTuple):
    """The progress of some work.

    Args:
        parts: Counts and rates.
        fraction: The fraction that is done, 0 to 1; None where that is unknown.
        seconds: Time that the work has taken so far.
    """

    parts: Sequence[Part]
    fraction: float | None = None
    seconds: float = 0.0

    def line(self) -> list[Part]:
        """All parts of a line: the fraction, the counts, and the time left.

        Example:
            >>> [part.text for part in Status([Part("5 / 20 steps")], 0.25, seconds=30).line()]
            [' 25%', '5 / 20 steps', '1:30 left']
        """
        done = self.fraction
        if done is None:
            return list(self.parts)
        line = [Part(f"{done:4.0%}", 3, "bold"), *self.parts]
        if 0 < done < 1:
            line.append(Part(f"{clock(self.seconds * (1 - done) / done)} left", 1, "bold"))
        return line


class LiveLine:
    """Shows the progress of some work, until the end of a ``with`` block.

    In a terminal it is a line at the bottom, which is removed at the end. In a notebook it is a
    bar, which stays. Elsewhere a line of text is written to standard error every 30 seconds.
    Several that are shown at once, nested or in threads, each have a line of their own.

    Args:
        is_silent: Show nothing.
        delay: Seconds of work before anything is shown.
    """

    def __init__(self, *, is_silent: bool = False, delay: float = 0.0) -> None:
        self._is_silent = is_silent
        self._began = monotonic()
        self._due = self._began + delay
        self._place: _Place | None = None
        self._waiting: Callable[[], Status] | None = None
        self._lock = Lock()

    def say(self, text: str) -> None:
        """Show a sentence, before there are numbers to report."""
        self._draw(lambda: Status([Part(text, style="dim")]), is_sentence=True)

    def show(self, status: Callable[[], Status]) -> None:
        """Show the progress; the function is called only if it is time to draw."""
        if monotonic() >= self._due:
            self._draw(status)
        else:
            self._waiting = status

    def reporter(self, status: Callable[[*_Args], Status]) -> Callable[[*_Args], None]:
        """A function for an argument ``progress``, which shows the status of what it gets."""

        def report(*args: *_Args) -> None:
            self.show(lambda: status(*args))

        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_silent = True
        has_lock = self._lock.acquire(timeout=1)  # another thread may be drawing its last status
        try:
            place, waiting = self._place, self._waiting
            if place is not None:
                with contextlib.suppress(OSError):
                    place.close(waiting)
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
                self._waiting = None
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
    """The function to call with reports, or None; for True one that shows them in the block.

    Args:
        progress: The caller's argument.
        status: Returns the progress that a report tells of.

    Raises:
        TypeError: The argument is neither a function nor True, False or None.

    Example:
        >>> calls = []
        >>> with progress_function(calls.append, lambda report: Status([])) as report:
        ...     report(1)
        >>> calls
        [1]
    """
    check_progress(progress)
    if progress is True:
        with LiveLine(delay=_DELAY) as line:
            yield line.reporter(status)
    else:
        yield progress if callable(progress) else None


def check_progress(progress: object) -> None:
    """Refuse what is no argument ``progress``.

    Raises:
        TypeError: It is neither a function nor True, False or None.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(
            f"progress: expected True, or a function that is called with reports, got {progress!r}"
        )


def episodes_status(
    steps: int,
    episodes: int,
    total: tuple[int | None, int | None],
    seconds: float,
    nbytes: int | None = None,
) -> Status:
    """The progress of work on whole episodes.

    Args:
        steps: Env steps that are done.
        episodes: Episodes that are done.
        total: Env steps and episodes of all; None where a number is not known.
        seconds: Time that the work has taken so far.
        nbytes: Bytes of the rows that are done, uncompressed.

    Example:
        >>> [part.text for part in episodes_status(500, 2, (1_000, 4), seconds=2).line()]
        [' 50%', '500 / 1,000 steps', '2 / 4 episodes', '250 steps/s', '0:02 left']
    """
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
    """The progress of work on bytes: a function of those that are done, and those of all.

    Args:
        name: Name of the file or folder.
    """
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
    """Join parts into one line of at most ``width`` characters, leaving out the least important.

    Example:
        >>> fitted([Part("12 steps"), Part("80/s", rank=2), Part("return 1", rank=1)], 18).plain
        '12 steps  return 1'
    """
    kept = list(parts)
    while len(kept) > 1 and sum(len(part.text) + len(GAP) for part in kept) - len(GAP) > width:
        kept.remove(max(reversed(kept), key=lambda part: part.rank))
    line = joined(kept)
    line.truncate(max(1, width))
    return line


def joined(parts: Sequence[Part]) -> rich.text.Text:
    """Join parts into one line.

    Example:
        >>> joined([Part("12 steps"), Part("80/s")]).plain
        '12 steps  80/s'
    """
    from rich.text import Text  # loaded when there is something to show

    line = Text(GAP).join(Text(part.text, style=part.style) for part in parts)
    line.no_wrap = True
    return line


def clock(seconds: float) -> str:
    """A time in minutes and seconds, and hours if it is long.

    Example:
        >>> clock(75), clock(3_675)
        ('1:15', '1:01:15')
    """
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate(number: float) -> str:
    """A number for each second, or a ratio.

    Example:
        >>> rate(12_345.6), rate(1.23)
        ('12,346', '1.2')
    """
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def format_bytes(count: float) -> str:
    """A number of bytes with a readable unit.

    Example:
        >>> format_bytes(5_100_000)
        '5.1 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class _Place(Protocol):
    """A display of one LiveLine."""

    interval: float
    """Seconds between two drawings, at least."""
    delay: float
    """Seconds before the first one, at least."""
    has_sentences: bool
    """It shows sentences before there are numbers."""

    def show(self, status: Status) -> None:
        """Draw the status in place of the one before."""
        ...

    def close(self, last: Callable[[], Status] | None) -> None:
        """End the display; ``last`` was not drawn yet, None if all was."""
        ...


def _place() -> _Place:
    """The display that fits this process now."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return _Bar()
    file: Any = sys.stderr
    try:
        is_terminal = file is not None and file.isatty()
    except ValueError:  # it is closed
        is_terminal = False
    if is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown"):
        return _TerminalLine()
    return _TextLines()


class _Terminal:
    """The lines at the bottom of the terminal, the oldest first."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._lines: dict[_TerminalLine, Sequence[Part]] = {}
        self._streams: list[_Stream] = []
        self._live: rich.live.Live | None = None

    def show(self, owner: _TerminalLine, parts: Sequence[Part]) -> None:
        with self.lock:
            self._lines[owner] = parts
            if self._live is None:
                self._start()
            self._draw()

    def remove(self, owner: _TerminalLine) -> None:
        with self.lock:
            self._lines.pop(owner, None)
            if self._lines:
                self._draw()
            else:
                self._stop()

    def print(self, text: str) -> bool:
        """Print whole lines above those at the bottom; False where there are none."""
        from rich.text import Text

        with self.lock:
            if self._live is None:
                return False
            # As it is: the terminal breaks long lines, not rich.
            self._live.console.print(Text.from_ansi(text), soft_wrap=True)
            return True

    def forked(self) -> None:
        """Take a lock of this process's own: a thread of the parent may have held the other."""
        self.lock = RLock()

    def _start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # Drawn when there is something to report, so no thread is needed. The streams are ours, as
        # those of rich garble what several threads print.
        self._live = Live(
            console=Console(stderr=True, markup=False, emoji=False, highlight=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        for name in ("stdout", "stderr"):
            file = getattr(sys, name)
            # A standard output that goes elsewhere, to a file or a pipe, still does.
            if file is not None and not file.closed and file.isatty():
                self._streams.append(_Stream(name, file))

    def _stop(self) -> None:
        if self._live is None:
            return
        live, self._live = self._live, None
        streams, self._streams = self._streams, []
        with contextlib.ExitStack() as stack:  # all of it, even if the terminal is gone
            for stream in streams:
                stack.callback(stream.restore)
            live.stop()

    def _draw(self) -> None:
        from rich.text import Text

        assert self._live is not None
        width = self._live.console.width - 1
        text = Text("\n").join(fitted(parts, width) for parts in self._lines.values())
        text.no_wrap = True
        self._live.update(text, refresh=True)


class _Stream:
    """Standard output or error, whose lines appear above the live lines and not between them.

    Args:
        name: Its name in `sys`, where this object takes its place.
        file: The stream.
    """

    def __init__(self, name: str, file: TextIO) -> None:
        self.rich_proxied_file = file  # the name under which rich looks for it
        self._name = name
        self._begun = ""
        setattr(sys, name, self)
        # Handlers keep the stream that they were made with. Not by setStream: that waits for a
        # handler's lock, which a thread that waits for ours may hold.
        self._handlers = [
            handler
            for logger in (logging.getLogger(), logging.getLogger("stepwell"))
            for handler in logger.handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is file
        ]
        for handler in self._handlers:
            handler.stream = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        with _TERMINAL.lock:
            whole, end, begun = (self._begun + text).rpartition("\n")
            if not end:
                self._begun = begun
            elif _TERMINAL.print(whole):
                self._begun = begun
            else:  # a thread that kept the stream
                self._begun = ""
                self.rich_proxied_file.write(whole + end + begun)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Do nothing: whole lines are there, and the one that was begun waits for its end."""

    def restore(self) -> None:
        """Put the stream back, and write the line that was begun."""
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self.rich_proxied_file)
        for handler in self._handlers:
            if handler.stream is self:
                handler.stream = self.rich_proxied_file
        begun, self._begun = self._begun, ""
        if begun:
            self.rich_proxied_file.write(begun)


_TERMINAL: Final = _Terminal()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TERMINAL.forked)


class _TerminalLine:
    """A line at the bottom of the terminal."""

    interval = 0.1
    delay = 0.0
    has_sentences = True

    def __init__(self) -> None:
        import rich.live  # noqa: F401  # some 0.1 s, before the first drawing is timed

    def show(self, status: Status) -> None:
        _TERMINAL.show(self, status.line())

    def close(self, last: Callable[[], Status] | None) -> None:
        _TERMINAL.remove(self)


class _Bar:
    """A bar in a notebook; it stays, with the last status."""

    interval = 0.5
    delay = 0.0
    has_sentences = False

    def __init__(self) -> None:
        self._id = f"stepwell-{uuid4().hex}"
        self._shown: Status | None = None

    def show(self, status: Status) -> None:
        done = status.fraction
        value = "" if done is None else f" value='{done:.4f}'"
        self._display(status, f"<progress{value} max='1' style='width: 20em'></progress> ")

    def close(self, last: Callable[[], Status] | None) -> None:
        if self._shown is None:
            return
        status = self._shown if last is None else last()
        if status.fraction is None:
            self._display(status, "")  # a bar without a value moves, as if the work went on
        elif last is not None:
            self.show(status)

    def _display(self, status: Status, bar: str) -> None:
        # Loaded by the notebook; not where types are checked.
        display = sys.modules["IPython.display"]

        text = GAP.join(part.text for part in status.line()).strip()
        shown = {
            "text/plain": text,
            "text/html": f"<div>{bar}<code>{html.escape(text)}</code></div>",
        }
        draw = display.display if self._shown is None else display.update_display
        draw(shown, display_id=self._id, raw=True)
        self._shown = status


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

    def close(self, last: Callable[[], Status] | None) -> None:
        pass
