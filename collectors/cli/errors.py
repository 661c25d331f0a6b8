"""Errors of the command line: one sentence for the user, a traceback for a bug in Stepwell.

An error is shown as one sentence, with exit code 2, when it is one of these:

1.  It reports a condition outside of the program: a StepwellError, an OSError, an error of
    Gymnasium's, or out of memory.
2.  Stepwell raised it on purpose: a ValueError, TypeError, ImportError or RuntimeError, and the
    innermost line is a ``raise`` of Stepwell's own. (A ValueError that numpy raises in one of
    Stepwell's lines is a bug.)
3.  It comes from code that was given to Stepwell to run: the first line after Stepwell's last one
    belongs neither to the standard library nor to a library that only Stepwell calls. That is the
    policy, or the env with everything that it calls.

Everything else is a bug in Stepwell. It keeps its traceback and Python's exit code 1.
"""

from __future__ import annotations

import re
import signal
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import rich.console
import typer

from ... import buffers
from ...buffers import StepwellError
from ...buffers.base.row_guard import interrupt
from ..distributed.engine import RemoteError
from .early_interrupt import leave_at_once

BAD_INPUT = 2

_ON_PURPOSE = (ValueError, TypeError, ImportError, RuntimeError)
_OF_ENVIRONMENT = (StepwellError, OSError, gymnasium.error.Error)
_OWN = Path(buffers.__file__).parents[1]
_OWN_FOLDERS = tuple(
    str(path)
    for folder in ("wrappers", "collectors", "buffers")
    for path in (_OWN / folder, (_OWN / folder).resolve())  # a checkout has links to the folders
)
_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen ")
_ONLY_OURS = re.compile(r"[/\\](numpy|zstandard|cv2|rich|typer|click)[/\\]")
_LIBRARIES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_NOTED_LINE = re.compile(r'^  File "(.+)", line ([0-9]+), in .*\n(?:    (.*)\n)?', re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOTE_OF_WORKER = "raised in env "
_NOTE_OF_KEPT = "kept: "


class _Line(NamedTuple):
    file: str
    number: int
    code: str

    @property
    def is_own(self) -> bool:
        return self.file.startswith(_OWN_FOLDERS)

    @property
    def is_only_ours(self) -> bool:
        """It belongs to a library that only Stepwell calls: if that fails, the call was wrong."""
        if _LIBRARIES.search(self.file):
            return _ONLY_OURS.search(self.file) is not None
        return self.file.startswith(_STANDARD)

    def __str__(self) -> str:
        path = _LIBRARIES.split(self.file)[-1] if _LIBRARIES.search(self.file) else None
        return f"{path or Path(self.file).name}:{self.number}"


@contextmanager
def exit_on_error(
    debug: bool,
    after_interrupt: str = "--resume goes on",
    codes: Mapping[type[Exception], int] | None = None,
) -> Generator[None]:
    """Turn an error of the user's into a sentence and an exit code, and warnings into sentences."""
    # With ``debug`` every error passes unchanged; ``after_interrupt`` says how to get the rest
    # after Ctrl-C; ``codes`` are those of errors that have one of their own.
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    loading = [number for number in numbers if signal.getsignal(number) is leave_at_once]
    for number in loading:
        python = signal.default_int_handler if number == signal.SIGINT else interrupt
        signal.signal(number, python)
    try:
        with warnings.catch_warnings():
            if not debug:
                show: Any = partial(_show_warning, warnings.showwarning)
                warnings.showwarning = show
            yield
    except KeyboardInterrupt as stop:
        kept = _kept(stop)
        is_all = kept is not None and kept.startswith(f"{_NOTE_OF_KEPT}all")
        after = [after_interrupt] if kept and not is_all else []
        note = [] if kept is None else [kept or "nothing kept"]
        by = f"interrupted by {stop}" if stop.args else "interrupted"
        show_error("; ".join([by, *note, *after]))
        number = signal.Signals[str(stop)] if stop.args else signal.SIGINT
        raise typer.Exit(128 + number) from None
    except (BrokenPipeError, typer.Exit):  # the first: the reader of our output is gone
        raise
    except Exception as error:
        sentence = None if debug else sentence_of(error)
        if sentence is None:
            raise
        kept = _kept(error)
        show_error(f"{sentence}; {kept}" if kept else sentence)
        raise typer.Exit((codes or {}).get(type(error), BAD_INPUT)) from None
    finally:
        for number in loading:  # all is reported and closed: only the interpreter is left to exit
            signal.signal(number, signal.SIG_DFL)


def show_error(sentence: str) -> None:
    """Write a sentence to standard error."""
    console = rich.console.Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    console.print("[bold red]stepwell:[/] ", end="")
    console.print(printable(sentence), markup=False)


def _show_warning(
    python: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    *rest: Any,
) -> None:
    """Write a warning of Stepwell's as a sentence, and any other as Python does."""
    if issubclass(category, UserWarning) and filename.startswith(_OWN_FOLDERS):
        show_error(f"warning: {message}")
    else:
        python(message, category, filename, *rest)


def printable(text: str) -> str:
    """The text with its control characters escaped."""
    # A terminal executes them, and the text may come from an untrusted store or data set.
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def sentence_of(error: BaseException) -> str | None:
    """Return the sentence for the user; None when the error is a bug in Stepwell."""
    lines, env = _lines_of(error)
    innermost = lines[-1] if lines else None
    is_ours = innermost is not None and innermost.is_own and innermost.code.startswith("raise ")
    if isinstance(error, MemoryError):
        # Only our own message says what needs how much.
        return _flat(error) if is_ours else "out of memory; use fewer envs (--num-envs)"
    if isinstance(error, OSError) and error.strerror:
        # Without its number. Not always the system's message: h5py puts HDF5's there, with lines.
        named = f" ({error.filename})" if error.filename is not None else ""
        return f"{' '.join(str(error.strerror).split())}{named}"
    if isinstance(error, RemoteError):
        if is_ours:
            return _flat(error).removeprefix(f"{error.kind}: ")
    elif isinstance(error, _OF_ENVIRONMENT):
        return _flat(error)
    if innermost is None:
        return None
    if innermost.is_own:
        return _flat(error) if is_ours and isinstance(error, _ON_PURPOSE) else None
    own = [place for place, line in enumerate(lines) if line.is_own]
    after = lines[own[-1] + 1 :] if own else lines
    if not after or after[0].is_only_ours:
        return None
    place = _last_of_user(lines)
    what = f"{type(error).__name__}: {_flat(error)}" if str(error) else type(error).__name__
    what = _flat(error) if isinstance(error, RemoteError) else what
    return f"{env}{place} raised {what}; --debug shows the traceback"


def _lines_of(error: BaseException) -> tuple[list[_Line], str]:
    """The traceback's lines, for another process's error those there, and the env as prefix."""
    if isinstance(error, RemoteError):
        found = _NOTED_LINE.findall(error.traceback)
        return [_Line(file, int(number), code) for file, number, code in found], ""
    for note in getattr(error, "__notes__", []):
        if note.startswith(_NOTE_OF_WORKER):
            env = note.removeprefix("raised in ").partition(",")[0]
            found = _NOTED_LINE.findall(note)
            return [_Line(file, int(number), code) for file, number, code in found], f"{env}: "
    frames = traceback.extract_tb(error.__traceback__)
    return [_Line(frame.filename, frame.lineno or 0, frame.line or "") for frame in frames], ""


def _last_of_user(lines: Sequence[_Line]) -> _Line:
    """Return the innermost line outside of installed libraries, else the innermost one."""
    users = [
        line
        for line in lines
        if not (line.is_own or line.file.startswith(_STANDARD) or _LIBRARIES.search(line.file))
    ]
    return users[-1] if users else lines[-1]


def _kept(error: BaseException) -> str | None:
    """Return the note about stored data: empty if there is none, None without a note."""
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith(_NOTE_OF_KEPT)]
    if not notes:
        return None
    is_nothing = notes[-1].startswith((f"{_NOTE_OF_KEPT}0 steps", f"{_NOTE_OF_KEPT}nothing"))
    return "" if is_nothing else str(notes[-1])


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())
