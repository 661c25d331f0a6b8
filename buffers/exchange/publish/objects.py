"""The few calls of an object store, and nothing else: tests put their faults here.

It is the only file that imports obstore.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...base.errors import StoreCorrupt
from ...base.optional_libraries import load_library
from ...storage.disk.folder import url_of

_TRIES, _TRY_SECONDS = 3, 30
_PAGE = 1000
_PART_BYTES = 1 << 20


class ObjectFacts(NamedTuple):
    """An object as a list shows it."""

    name: str
    nbytes: int
    modified: datetime.datetime


class Objects:
    """The objects below a URL. Each appears as a whole, or not at all."""

    # Credentials come from the environment: AWS_ACCESS_KEY_ID and so on. The path of a file:// URL
    # is taken as typed: nothing in it is decoded. Its folder may be missing for a writer: the first
    # write makes it.

    def __init__(self, url: str, *, is_writer: bool = False) -> None:
        self.url = url_of(url) or url
        self._obstore = load_library(
            "obstore", "a store at a URL", install="'stepwell[cloud]'", at_least="0.9"
        )
        self._errors = load_library(
            "obstore.exceptions", "a store at a URL", install="'stepwell[cloud]'"
        )
        self._missing: Path | None = None  # the folder that the first write makes
        self._store = self._connect(is_writer)

    def place(self, name: str) -> str:
        """The URL of an object, for messages."""
        return f"{self.url}/{name}"

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, in place of one of that name."""
        self._make_folder()
        with self._calling(name):
            self._obstore.put(self._store, name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if there is none of that name; False if there is another one."""
        # True also if the object of that name has the same bytes: an earlier try may have written
        # it, and its answer been lost.
        self._make_folder()
        try:
            with self._calling(name):
                self._obstore.put(self._store, name, data, mode="create")
        except FileExistsError:
            try:
                return self.get(name, len(data)) == data
            except StoreCorrupt:  # it is longer
                return False
        return True

    def get(self, name: str, most_bytes: int) -> bytes:
        """The bytes of an object, which are so many at most."""
        with self._calling(name):
            answer = self._obstore.get(self._store, name)
            nbytes = int(answer.meta["size"])
            if nbytes <= most_bytes:
                return bytes(answer.bytes())
        raise StoreCorrupt(
            f"{self.place(name)} has {nbytes} bytes, expected at most {most_bytes}; push the store "
            f"again"
        )

    def download(
        self, name: str, path: Path, nbytes: int, tell: Callable[[int], None] | None = None
    ) -> None:
        """Write an object to a file; of one that is longer, hardly more than the bytes given."""
        with self._calling(name), path.open("wb") as file:
            for part in self._obstore.get(self._store, name).stream(min_chunk_size=_PART_BYTES):
                file.write(part)
                if tell is not None:
                    tell(min(file.tell(), nbytes))
                if file.tell() > nbytes:
                    return

    def listing(self, folder: str, after: str | None = None) -> list[ObjectFacts]:
        """The objects in a folder in order, or those whose names come after another one."""
        found: list[ObjectFacts] = []
        with self._calling(folder):
            for page in self._obstore.list(self._store, folder, offset=after, chunk_size=_PAGE):
                for each in page:
                    name, nbytes = str(each["path"]), int(each["size"])
                    found.append(ObjectFacts(name, nbytes, each["last_modified"]))
        return sorted(found)

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError), self._calling(name):
            self._obstore.delete(self._store, name)

    def _connect(self, is_writer: bool) -> Any:
        if self.url.startswith("file:"):
            path = Path(self.url.removeprefix("file://"))
            is_there = path.exists()  # first: another writer may make it meanwhile
            if path.is_dir():
                return self._obstore.store.LocalStore(path)
            if is_there or not is_writer:
                got = "a file" if is_there else "none"
                raise FileNotFoundError(f"{self.url}: expected a folder there, got {got}")
            self._missing = path
            return self._obstore.store.MemoryStore()  # as empty as the folder will be
        retries = {
            "max_retries": _TRIES,
            "retry_timeout": datetime.timedelta(seconds=_TRY_SECONDS),
        }
        try:
            return self._obstore.store.from_url(
                self.url, retry_config=retries, client_options=_client_options(os.environ)
            )
        except self._errors.BaseError as error:
            raise ValueError(f"{self.url}: {_first_line(error)}; correct the URL") from error

    def _make_folder(self) -> None:
        """Make the folder that was missing, before something is written."""
        if self._missing is not None:
            self._missing.mkdir(parents=True, exist_ok=True)
            self._store, self._missing = self._obstore.store.LocalStore(self._missing), None

    @contextlib.contextmanager
    def _calling(self, name: str) -> Generator[None]:
        """Turn the library's errors into those of Python, with the object's name."""
        errors = self._errors
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.place(name)} is missing: {_first_line(error)}"
            ) from error
        except errors.AlreadyExistsError as error:
            raise FileExistsError(f"{self.place(name)} is there already") from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise PermissionError(
                f"{self.place(name)}: access was refused ({_first_line(error)}); check the "
                f"credentials in the environment, such as AWS_ACCESS_KEY_ID"
            ) from error
        except errors.BaseError as error:
            raise ConnectionError(
                f"{self.place(name)}: the object store failed ({_first_line(error)}); check the "
                f"network, and settings such as AWS_ENDPOINT_URL"
            ) from error


def _client_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Plain HTTP is allowed where the user's own endpoint has it."""
    endpoints = (environment.get(name, "") for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    endpoint = next(filter(None, endpoints), "")
    return {"allow_http": True} if endpoint.startswith("http://") else {}


def _first_line(error: BaseException) -> str:
    """The first line of an error's message, which a server may have sent."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 300 else f"{line[:300]}..."
