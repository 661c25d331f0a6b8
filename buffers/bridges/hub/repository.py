"""A data set repository on the Hub: what it lists, checked before any of it is used."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import unicodedata
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.buffers.optional_libraries import load_library
from stepwell.buffers.progress import format_bytes

__all__ = ["Listing", "RemoteFile", "Repository", "differs", "is_hidden"]

_AT_LEAST = "1.5"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_FILES = 100_000
_MOST_DEPTH, _MOST_NAME_BYTES, _MOST_PATH_BYTES = 32, 255, 1_024
_MOST_BYTES = 1 << 50
_RUN_BYTES = 1 << 20


class RemoteFile(NamedTuple):
    """A file of a repository.

    Args:
        path: Its path in the repository, with slashes; checked.
        size: Its length in bytes.
        sha256: The SHA-256 of a large file; None for a small one.
        blob: The name of a small file in git, a SHA-1.
    """

    path: str
    size: int
    sha256: str | None
    blob: str


class Listing(NamedTuple):
    """The files of a repository at one commit.

    Args:
        commit: The commit.
        files: The files by path, without hidden ones.
        hidden: Number of files whose path has a part that begins with a dot.
    """

    commit: str
    files: dict[str, RemoteFile]
    hidden: int

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


class Repository:
    """A data set repository, of which the Hub's address and the token are huggingface_hub's.

    Args:
        name: Such as ``"user/pong"``.
        wanted_for: Name of the caller, for errors.

    Raises:
        ImportError: huggingface_hub is not installed, or too old.
        ValueError: It is no name of a repository.
    """

    def __init__(self, name: str, wanted_for: str) -> None:
        if (
            not isinstance(name, str)
            or not _REPO.fullmatch(name)
            or any(bad in name for bad in ("--", "..", ".git/"))
            or name.endswith((".git", "-", "."))
        ):
            raise ValueError(
                f"repo: expected OWNER/NAME of a data set on the Hub, such as user/pong, got "
                f"{name!r}; correct it"
            )
        self.name = name
        self.library = load_library(
            "huggingface_hub",
            wanted_for,
            install="'stepwell[hub]'",
            at_least=_AT_LEAST,
        )
        self.api = self.library.HfApi(
            endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="stepwell"
        )
        self.errors = load_library("huggingface_hub.errors", wanted_for, install="'stepwell[hub]'")

    @property
    def address(self) -> str:
        """Its address in a browser."""
        return f"{self.api.endpoint}/datasets/{self.name}"

    def listing(self, revision: str | None = None) -> Listing:
        """The files at a revision.

        Args:
            revision: A branch, tag or commit; None for the branch ``main``.

        Raises:
            OSError: There is no such repository or revision, or the Hub does not answer.
            ValueError: A path in it is not safe, or the Hub's answer is not understood.
        """
        with self.calling(revision):
            info = self.api.dataset_info(self.name, revision=revision)
        commit = info.sha
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise ValueError(
                f"{self.name}: expected a commit of 40 hexadecimal digits, got {_shown(commit)}; "
                f"check HF_ENDPOINT ({self.api.endpoint})"
            )
        found: dict[str, RemoteFile] = {}
        hidden = 0
        with self.calling(revision):
            entries = self.api.list_repo_tree(
                self.name, recursive=True, revision=commit, repo_type="dataset"
            )
            for number, entry in enumerate(self._entries(entries)):
                if number >= _MOST_FILES:
                    raise ValueError(
                        f"{self.name}: expected at most {_MOST_FILES:,} files and folders, got "
                        f"more; fetch it with the command hf download"
                    )
                if not isinstance(entry, self.library.hf_api.RepoFile):
                    continue
                file = self._checked(entry)
                if file.path in found:
                    raise self._unsafe(file.path, "is listed twice")
                if is_hidden(file.path):
                    hidden += 1
                else:
                    found[file.path] = file
        self._check_names(found)
        return Listing(commit, found, hidden)

    @contextlib.contextmanager
    def without_bars(self) -> Generator[None]:
        """Show none of the library's own progress bars."""
        utils = self.library.utils
        if utils.are_progress_bars_disabled():
            yield
            return
        utils.disable_progress_bars()
        try:
            yield
        finally:
            utils.enable_progress_bars()

    @contextlib.contextmanager
    def calling(self, revision: str | None = None) -> Generator[None]:
        """Turn the library's errors into an OSError of one sentence.

        Raises:
            OSError: The Hub refuses, or does not answer.
        """
        try:
            yield
        except Exception as error:
            for each in (error, error.__cause__):  # the library wraps some in a ValueError
                sentence = None if each is None else self._sentence(each, revision)
                if sentence is not None:
                    raise OSError(f"{self.name}: {sentence}") from each
            raise

    def _sentence(self, error: BaseException, revision: str | None) -> str | None:
        """The reason why the Hub refuses, and what to do; None for another error."""
        errors = self.errors
        if isinstance(error, errors.RevisionNotFoundError):
            return (
                f"expected a branch, tag or commit, got {revision!r}, which it does not have; look "
                f"at {self.address}"
            )
        if isinstance(error, errors.GatedRepoError):
            return (
                f"its owner gives access on request; ask for it at {self.address}, then run "
                f"`hf auth login`"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"expected a data set that you may see, found none at {self.address}; check the "
                f"name, or run `hf auth login` if it is private"
            )
        if isinstance(error, errors.OfflineModeIsEnabled):
            return "the Hub cannot be asked while HF_HUB_OFFLINE is set; unset it"
        if isinstance(error, errors.HfHubHTTPError):
            return self._refusal(error)
        if isinstance(error, errors.HTTPError):  # of the transport, which is another library's
            return f"{self.api.endpoint} does not answer ({_flat(error)}); run it again to go on"
        return None

    def _refusal(self, error: Any) -> str:
        """The answer of the Hub, and what to do."""
        status = getattr(error.response, "status_code", None)
        said = _flat(getattr(error, "server_message", None) or error)
        if status in (401, 403):
            return (
                f"the Hub refuses ({status}: {said}); run `hf auth login` with a token that may "
                f"write to it, or set HF_TOKEN"
            )
        if status == 412:
            return "another push came in between; run it again"
        return f"the Hub answers {status} ({said}); run it again to go on"

    def _entries(self, entries: Iterable[Any]) -> Iterable[Any]:
        """The entries of a listing, of which the library has read any JSON."""
        try:
            yield from entries
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.name}: expected a listing of files, got another answer "
                f"({type(error).__name__}: {_flat(error)}); check HF_ENDPOINT "
                f"({self.api.endpoint})"
            ) from error

    def _checked(self, entry: Any) -> RemoteFile:
        """An entry of a listing, if it may be written below a folder.

        Raises:
            ValueError: It may not.
        """
        path = entry.path
        if not isinstance(path, str) or not path.isprintable() or "\\" in path:
            raise self._unsafe(path, "is no plain text")
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise self._unsafe(path, "leads out of the folder")
        lengths = [len(part.encode()) for part in parts]
        if (
            len(parts) > _MOST_DEPTH
            or max(lengths) > _MOST_NAME_BYTES
            or len(path.encode()) > _MOST_PATH_BYTES
        ):
            raise self._unsafe(path, "is too long")
        size, lfs, blob = entry.size, entry.lfs, entry.blob_id
        sha256 = None if lfs is None else lfs.sha256
        if (
            isinstance(size, bool)
            or not isinstance(size, int)
            or not 0 <= size <= _MOST_BYTES
            or (lfs is not None and lfs.size != size)
        ):
            raise self._unsafe(path, f"has the size {_shown(size)}")
        hashed, pattern = (blob, _COMMIT) if lfs is None else (sha256, _SHA256)
        if not isinstance(hashed, str) or not pattern.fullmatch(hashed):
            raise self._unsafe(path, f"has the checksum {_shown(hashed)}")
        return RemoteFile(path, size, sha256, blob)

    def _check_names(self, files: Iterable[str]) -> None:
        """Refuse two paths that some file systems take for one, and a file in a file."""
        names: dict[str, str] = {}
        for path in files:
            parts = path.split("/")
            for depth in range(1, len(parts) + 1):
                name = "/".join(parts[:depth])
                known = names.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
                if known != name:
                    raise self._unsafe(path, f"cannot be told from {_shown(known)} on every disk")
        for path in files:
            parents = path.split("/")[:-1]
            if any("/".join(parents[:depth]) in files for depth in range(1, len(parents) + 1)):
                raise self._unsafe(path, "lies in a file")

    def _unsafe(self, path: object, why: str) -> ValueError:
        return ValueError(
            f"{self.name}: expected paths that are safe to write, but {_shown(path)} {why}; "
            f"nothing was fetched, tell its owner"
        )


def is_hidden(path: str) -> bool:
    """True for a path with a part that begins with a dot, such as ``.gitattributes``."""
    return any(part.startswith(".") for part in path.split("/"))


def differs(path: Path, file: RemoteFile) -> str | None:
    """The difference between a file on the disk and one in a repository; None if nothing does.

    Args:
        path: A regular file.
        file: The file in the repository.
    """
    size = path.stat().st_size
    if size != file.size:
        return f"expected {format_bytes(file.size)}, got {format_bytes(size)}"
    if file.sha256 is None:
        digest, expected = hashlib.sha1(b"blob %d\0" % size), file.blob
    else:
        digest, expected = hashlib.sha256(), file.sha256
    with path.open("rb") as opened:
        while run := opened.read(_RUN_BYTES):
            digest.update(run)
    got = digest.hexdigest()
    return None if got == expected else f"expected the checksum {expected}, got {got}"


def _shown(value: object) -> str:
    return repr(value)[:200]


def _flat(error: object) -> str:
    return " ".join(str(error).split())[:300]
