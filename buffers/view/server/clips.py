"""Clips of episodes for download: bounded, one at a time, in temporary files."""

from __future__ import annotations

import re
import secrets
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..render import render
from .query import BadRequest

MOST_FRAMES = 5_000
"""Frames of a clip."""

MOST_PIXELS = 1 << 28
"""Pixels of all its frames."""

MOST_SCALE = 16
"""Pixels on each side of a stored pixel."""

_MOST_WAITING = 4
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ClipRequest:
    """The rows that a clip is to show; all numbers are checked."""

    name: str  # of the store
    path: Path
    episode: int  # its id
    begin: int  # first row, counted from the reset
    stop: int  # row after the last
    field: str
    fps: float | None  # rows a second; None plays in real time
    scale: int  # pixels on each side of a stored pixel

    def file_name(self, kind: str) -> str:
        """The name under which a browser saves it, made of harmless characters."""
        name = _NOT_IN_NAMES.sub("-", self.name).strip(".-")[:80] or "store"
        return f"{name}-episode-{self.episode}.{kind}"


class Clips:
    """Writes clips to a folder of temporary files, one after the other."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stepwell-view-")
        self._pool = ThreadPoolExecutor(1, "stepwell-view-clip")
        self._waiting: set[Future[Path]] = set()
        self._is_closing = False

    def begin(self, wish: ClipRequest, kind: str, is_gone: threading.Event) -> Future[Path]:
        """Begin to write a clip of that file ending; the caller removes the file."""
        # `is_gone` is set when nobody waits for it any more. If the clip cannot be made, the future
        # raises BadRequest.
        self._waiting = {each for each in self._waiting if not each.done()}
        if len(self._waiting) >= _MOST_WAITING or self._is_closing:
            raise BadRequest("other clips are being made: try again when they are done")
        work = self._pool.submit(self._write, wish, kind, is_gone)
        self._waiting.add(work)
        return work

    def close(self) -> None:
        """Stop the one that is being made, and remove all files."""
        self._is_closing = True
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def _write(self, wish: ClipRequest, kind: str, is_gone: threading.Event) -> Path:
        def check(done: int, total: int) -> None:
            if is_gone.is_set() or self._is_closing:
                raise BadRequest("nobody waits for this clip any more")

        check(0, 0)
        path = Path(self._folder.name) / f"{secrets.token_hex(8)}.{kind}"
        self._render(wish, path, check)
        return path

    def _render(self, wish: ClipRequest, path: Path, check: Callable[[int, int], None]) -> None:
        try:
            render(
                wish.path,
                wish.episode,
                path,
                rows=(wish.begin, wish.stop),
                fps=wish.fps,
                scale=wish.scale,
                field=wish.field,
                progress=check,
            )
        except BadRequest:
            raise
        except (ValueError, ImportError) as error:
            raise BadRequest(str(error)) from error
