"""Objects in memory, whose calls are counted, and fail or kill where a test says so."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stepwell.buffers.exchange.publish.objects import ObjectFacts, Objects
from stepwell.buffers.exchange.publish.remote import differs
from stepwell.buffers.exchange.publish.uploader import StoreAtUrl

_T = TypeVar("_T")


def fetch_all(objects: Objects, folder: Path) -> Path:
    """Fetch the store that is there into a folder, and return that."""
    remote = StoreAtUrl(objects)
    listing = remote.listing()
    for file in listing.files.values():
        path = remote.fetch(file, folder, None, again=False)
        assert differs(path, file) is None
    return folder


class Killed(BaseException):
    """The end of the process, at this call."""


class Place:
    """Named bytes, as the object store keeps them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.age = datetime.timedelta()

    def connect(self) -> FaultyObjects:
        return FaultyObjects(self)


class FaultyObjects(Objects):
    """The calls of one process on a place.

    With ``calls_left`` calls happen as they should; the next one fails before or after its effect:
    with `Killed`, or with the error of a store that is down, as all after it.
    """

    def __init__(self, place: Place) -> None:
        self.url = "s3://bucket/run"
        self.at = place
        self.calls_left: int | None = None
        self.happens = False
        self.error: Callable[[], BaseException] = Killed
        self.is_down = False
        self.calls: list[str] = []

    def _do(self, what: str, effect: Callable[[], _T]) -> _T:
        self.calls.append(what)
        if self.is_down:
            raise ConnectionError("down")
        if self.calls_left is not None:
            if self.calls_left == 0:
                self.calls_left = None
                if self.happens:
                    effect()
                raise self.error()
            self.calls_left -= 1
        return effect()

    def put(self, name: str, data: bytes | memoryview) -> None:
        self._do(f"put {name}", lambda: self.at.objects.update({name: bytes(data)}))

    def create(self, name: str, data: bytes) -> bool:
        def effect() -> bool:
            return self.at.objects.setdefault(name, data) == data

        return self._do(f"create {name}", effect)

    def get(self, name: str, most_bytes: int) -> bytes:
        def effect() -> bytes:
            if name not in self.at.objects:
                raise FileNotFoundError(f"{self.place(name)} is missing")
            return self.at.objects[name]

        data = self._do(f"get {name}", effect)
        assert len(data) <= most_bytes
        return data

    def download(
        self, name: str, path: Path, nbytes: int, tell: Callable[[int], None] | None = None
    ) -> None:
        path.write_bytes(self.get(name, 1 << 30))

    def listing(self, folder: str, after: str | None = None) -> list[ObjectFacts]:
        now = datetime.datetime.now(datetime.UTC) - self.at.age

        def effect() -> list[ObjectFacts]:
            return sorted(
                ObjectFacts(name, len(data), now)
                for name, data in self.at.objects.items()
                if name.startswith(f"{folder}/") and (after is None or name > after)
            )

        return self._do(f"list {folder}", effect)

    def delete(self, name: str) -> None:
        self._do(f"delete {name}", lambda: self.at.objects.pop(name, None))
