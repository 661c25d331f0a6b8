"""The stores that the viewer shows: they are followed while they grow, and never written."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from ...base.errors import StepwellError, StoreCorrupt, StoreNotFound
from ...pictures.encode import block_size
from ...pictures.image_fields import image_fields
from ...rows.episode import End
from ...storage.disk.publish import check_complete
from ...storage.disk.storage import DiskStorage
from ...storage.field_locator import DamagedChunk
from ..curves import action_names, curve_names, left_out, text_names
from ..episode_table import EpisodeTable, shown
from ..summary import describe_env, describe_maker, describe_seed, describe_versions

_LOG = logging.getLogger("stepwell.buffers")
_REFRESH_SECONDS = 2.0
_MOST_SESSIONS, _MOST_TEXT = 50, 500
_SLICE_ROWS = 1 << 14  # of returns, read between the answers to two requests
_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE = 0.1  # for requests that are being answered


class OpenStore:
    """A store that could be opened."""

    def __init__(self, path: Path) -> None:
        check_complete(path)
        self.storage = storage = DiskStorage.open(path, read_only=True, on_corrupt="skip")
        self.lock = storage.lock
        self.id = storage.store
        self.is_closed = False
        self._nonce = secrets.token_hex(8)
        self.spec = storage.spec
        self.images = image_fields(self.spec)
        try:
            self.table = EpisodeTable(storage)
        except BaseException:
            self.close()
            raise
        self.is_being_written = storage.is_being_written
        self._describe()

    def refresh(self) -> bool:
        """Follow the writer; True if anything changed that the page shows."""
        with self.lock:
            sessions = len(self.storage.sessions)
            self.storage.refresh()
            if self.storage.store != self.id:
                raise StoreNotFound(f"{self.storage.path} holds another store by now")
            is_other = self.table.refresh()
            if len(self.storage.sessions) != sessions:
                self._describe()
                is_other = True
        was_being_written = self.is_being_written
        self.is_being_written = self.storage.is_being_written
        return is_other or was_being_written != self.is_being_written

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """Nothing changes in the block; a chunk found damaged in it is left out from then on."""
        with self.lock:
            if self.is_closed:
                raise StoreNotFound(f"{self.storage.path} has just changed: ask again")
            try:
                yield
            except DamagedChunk as damaged:
                self.storage.lose(damaged.position)
                raise StoreCorrupt(f"{damaged}; these rows are left out from now on") from damaged

    def tag(self, place: int | None = None) -> str:
        """A name for the rows of an episode, or of all: other rows have another one."""
        text = f"{self._nonce}/{self.storage.generation}"
        if place is not None:
            text += f"/{self.table.ids[place]}/{self.table.first_rows[place]}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_growing(self, place: int) -> bool:
        """True if a writer may add rows to an episode."""
        is_final = End(int(self.table.ends[place])).is_final
        return self.is_being_written and bool(self.table.is_newest[place]) and not is_final

    def close(self) -> None:
        """Release its files, when nobody reads them."""
        with self.lock:
            self.is_closed = True
            if hasattr(self, "table"):  # else it could not be made
                self.table.close()
            self.storage.close()

    def _describe(self) -> None:
        """Note what changes only with a new run."""
        sessions, spec = self.storage.sessions, self.spec
        numbers = {image.name: number for number, image in enumerate(self.images)}
        self.actions = action_names(sessions, spec)
        self.texts = text_names(sessions, spec)
        self.about: dict[str, object] = {
            "env": _cut(describe_env(sessions)),
            "fields": [
                {
                    "name": field.name,
                    "dtype": field.dtype,
                    "shape": list(field.shape),
                    "stack": field.stack,
                    "image": self.image(numbers[field.name]) if field.name in numbers else None,
                }
                for field in spec.fields
            ],
            "actions": self.actions,
            "curves": curve_names(spec, self.texts),
            "curves_left_out": left_out(spec, self.texts),
            "sessions": [_session(session) for session in sessions[-_MOST_SESSIONS:]],
            "made_by": _cut(describe_versions(sessions)),
        }

    def image(self, number: int) -> dict[str, object]:
        """A field of images, as the page needs it to show a sprite."""
        image = self.images[number]
        columns, rows = block_size(image.height, image.width)
        return {
            "field": number,
            "height": image.height,
            "width": image.width,
            "channels": image.channels,
            "columns": columns,
            "rows": rows,
            "exact": image.is_exact,
            "note": image.scale,
        }


def _session(session: Mapping[str, object]) -> dict[str, object]:
    """Facts about a run, each a short text."""
    facts = {
        "began": session.get("began"),
        "policy": describe_maker(session),
        "seed": describe_seed(session),
        "env": describe_env([session]),
        "made by": describe_versions([session]),
    }
    return {name: shown(fact, 0) for name, fact in facts.items()}


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


class ServedStore:
    """One of the folders that were given, with the store in it or the reason why there is none."""

    def __init__(self, index: int, path: Path, name: str) -> None:
        self.index = index
        self.path = path
        self.name = name
        self.error: str | None = None
        self.now: OpenStore | None = None
        """The store, or None while it cannot be read."""

    @property
    def opened(self) -> OpenStore:
        """The store; if it cannot be read now StoreNotFound says why."""
        opened = self.now
        if opened is None:
            raise StoreNotFound(self.error or f"{self.path} is not open")
        return opened

    def refresh(self) -> bool:
        """Open the store, or follow it; True if anything changed that the page shows."""
        before = self.now, self.error
        if self.now is not None:
            try:
                return self.now.refresh()
            except Exception as error:
                # Also an IndexError, where another store is in its place: it is opened again.
                _LOG.info("%s: is opened again: %r", self.path, error)
                self.close()
        try:
            self.now, self.error = OpenStore(self.path), None
        except (StepwellError, OSError, ValueError) as error:
            self.error = " ".join(str(error).split())
        return before != (self.now, self.error)

    def close(self) -> None:
        """Release its files."""
        opened, self.now = self.now, None
        if opened is not None:
            opened.close()


class Stores:
    """All stores that are shown, followed by one thread."""

    # A folder may be there twice, or be empty still. The stores are followed after a bug, too, with
    # which `on_bug` is called.

    def __init__(self, paths: Sequence[Path], on_bug: Callable[[Exception], None]) -> None:
        self._on_bug = on_bug
        self.stores = [
            ServedStore(index, path, name)
            for index, (path, name) in enumerate(zip(paths, _names(paths), strict=True))
        ]
        self.version = 0
        self._busy = 0
        self._counts = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="stepwell-view", daemon=True)
        self._refresh()

    def start(self) -> None:
        """Follow the stores from now on, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and release all files."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for store in self.stores:
            store.close()

    @contextlib.contextmanager
    def answering(self) -> Generator[None]:
        """While a request is answered the background reads pause."""
        with self._counts:
            self._busy += 1
        try:
            yield
        finally:
            with self._counts:
                self._busy -= 1

    def _follow(self) -> None:
        due = time.monotonic() + _REFRESH_SECONDS
        while not self._stop.is_set():
            has_more = False
            try:
                if time.monotonic() >= due:
                    due = time.monotonic() + _REFRESH_SECONDS
                    self._refresh()
                has_more = self._read_returns()
            except Exception as error:
                self._on_bug(error)
            if not has_more:
                self._stop.wait(max(0.0, due - time.monotonic()))

    def _refresh(self) -> None:
        # A list: every store is refreshed, also after one has changed.
        if any([store.refresh() for store in self.stores]):
            self.version += 1

    def _read_returns(self) -> bool:
        """Read some returns; False if all are known."""
        has_more = False
        for store in self.stores:
            opened = store.now
            if opened is None or self._stop.is_set():
                continue
            began = time.monotonic()
            while self._busy and time.monotonic() - began < _LONGEST_PAUSE:
                time.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(StepwellError):  # the next refresh shows what it is
                before = opened.table.returns_known
                has_more |= opened.table.read_returns(_SLICE_ROWS)
                if opened.table.returns_known != before:
                    self.version += 1
        return has_more


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names, all different: the last part of each path, and more parts where needed."""
    parts = [path.absolute().parts[1:] or ("/",) for path in paths]
    names: list[str] = []
    seen: Counter[str] = Counter()
    for mine in parts:
        others = [each for each in parts if each != mine]
        lengths = (n for n in (1, 2) if all(each[-n:] != mine[-n:] for each in others))
        name = "/".join(mine[-next(lengths, 3) :])
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names
