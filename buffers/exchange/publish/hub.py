"""A data set repository on the Hub: what it lists, checked before any of it is used; files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.optional_libraries import load_library
from ...base.progress import format_bytes
from ...storage.disk.folder import url_of
from .remote import Listing, RemoteFile, Tell, check_path, check_paths, is_hidden, unsafe

_AT_LEAST = "1.5"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_FILES = 100_000
_MOST_BYTES = 1 << 50
_BATCH_FILES, _BATCH_BYTES = 100, 64 << 20  # to send at once
_SPARE_BYTES = 64 << 20
"""Bytes that a download may take more than its file, as some are counted twice."""


def repository_name(place: str) -> str | None:
    """The name of a repository that a place on the Hub has; None for another URL."""
    if not isinstance(place, str | os.PathLike):
        raise TypeError(
            f"expected the name of a data set's repository, such as user/pong, or a URL, got "
            f"{place!r}; correct it"
        )
    url = url_of(place)
    if url is None:
        return place
    return url.removeprefix("hf://").removeprefix("datasets/") if url.startswith("hf:") else None


class Repository:
    """A data set repository, of which the Hub's address and the token are huggingface_hub's."""

    # `wanted_for` is the name of the caller, for errors.

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
        self.address = f"{self.api.endpoint}/datasets/{name}"
        self.commit = ""
        """The commit of the last listing; empty where there is none."""
        self.errors = load_library("huggingface_hub.errors", wanted_for, install="'stepwell[hub]'")

    def listing(self, revision: str | None = None) -> Listing:
        """The files at a branch, tag or commit; None for the branch ``main``."""
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
        with self._naming(), self.calling(revision):
            entries = self.api.list_repo_tree(
                self.name, recursive=True, revision=commit, repo_type="dataset"
            )
            for number, entry in enumerate(self._entries(entries)):
                if number >= _MOST_FILES:
                    raise ValueError(
                        f"expected at most {_MOST_FILES:,} files and folders, got more; fetch it "
                        f"with the command hf download"
                    )
                if not isinstance(entry, self.library.hf_api.RepoFile):
                    continue
                file = _checked(entry)
                if file.path in found:
                    raise unsafe(file.path, "is listed twice")
                if is_hidden(file.path):
                    hidden += 1
                else:
                    found[file.path] = file
            check_paths(found)
        self.commit = commit
        return Listing(commit, found, hidden)

    def fetch(self, file: RemoteFile, folder: Path, tell: Tell | None, *, again: bool) -> Path:
        """Fetch a file of the last listing into a folder; ``tell`` gets the bytes so far."""
        # With `again` what came before was damaged: none of it is used. An OSError says that it is
        # gone, that more bytes come than it has, or that the place does not answer.
        with self.calling():
            return Path(
                self.api.hf_hub_download(
                    self.name,
                    file.path,
                    repo_type="dataset",
                    revision=self.commit,
                    local_dir=folder,
                    force_download=again,
                    tqdm_class=_bar_class(self.library, file, tell),
                )
            )

    @contextlib.contextmanager
    def calling(self, revision: str | None = None) -> Generator[None]:
        """Turn the library's errors into an OSError of one sentence."""
        try:
            yield
        except Exception as error:
            for each in (error, error.__cause__):  # the library wraps some in a ValueError
                sentence = None if each is None else self._sentence(each, revision)
                if sentence is not None:
                    raise OSError(f"{self.name}: {sentence}") from each
            raise

    def _sentence(self, error: Any, revision: str | None) -> str | None:
        """The reason why the Hub refuses, and what to do; None for another error."""
        errors = self.errors
        sentences = {
            errors.RevisionNotFoundError: f"expected a branch, tag or commit, got {revision!r}, "
            f"which it does not have; look at {self.address}",
            errors.GatedRepoError: f"its owner gives access on request; ask for it at "
            f"{self.address}, then run `hf auth login`",
            errors.RepositoryNotFoundError: f"expected a data set that you may see, found none at "
            f"{self.address}; check the name, or run `hf auth login` if it is private",
            errors.OfflineModeIsEnabled: "the Hub cannot be asked while HF_HUB_OFFLINE is set; "
            "unset it",
        }
        for kind, sentence in sentences.items():
            if isinstance(error, kind):
                return sentence
        if isinstance(error, errors.HfHubHTTPError):
            status = getattr(error.response, "status_code", None)
            said = _flat(getattr(error, "server_message", None) or error)
            if status in (401, 403):
                return (
                    f"the Hub refuses ({status}: {said}); run `hf auth login` with a token that "
                    f"may write to it, or set HF_TOKEN"
                )
            if status == 412:
                return "another push came in between; run it again"
            return f"the Hub answers {status} ({said}); run it again to go on"
        if isinstance(error, errors.HTTPError):  # of the transport, which is another library's
            return f"{self.api.endpoint} does not answer ({_flat(error)}); run it again to go on"
        return None

    def _entries(self, entries: Iterable[Any]) -> Iterable[Any]:
        """The entries of a listing, of which the library has read any JSON."""
        try:
            yield from entries
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"expected a listing of files, got another answer ({type(error).__name__}: "
                f"{_flat(error)}); check HF_ENDPOINT ({self.api.endpoint})"
            ) from error

    @contextlib.contextmanager
    def _naming(self) -> Generator[None]:
        """Begin the message of a ValueError with the repository."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error


class HubUpload(Repository):
    """A repository to push to, of which the branch or all of it may be missing."""

    # Without a revision it goes to the branch `main`. With `public` everybody may see a repository
    # that it makes.

    def __init__(self, name: str, revision: str | None, *, public: bool) -> None:
        super().__init__(name, "push")
        self.is_new = False
        """The repository is to be made."""
        self.files: Mapping[str, RemoteFile] = {}
        """What is there, by path."""
        self._revision = revision
        self._public = public

    def look(self) -> None:
        """Find out what is there."""
        try:
            self.files = self.listing(self._revision).files
        except OSError as error:
            cause = error.__cause__
            is_gated = isinstance(cause, self.errors.GatedRepoError)
            self.is_new = isinstance(cause, self.errors.RepositoryNotFoundError) and not is_gated
            if not self.is_new and not isinstance(cause, self.errors.RevisionNotFoundError):
                raise

    def send(
        self,
        changed: Mapping[str, Path | bytes],
        removed: Sequence[str],
        message: str,
        tell: Callable[[int, int], None] | None,
    ) -> None:
        """Send files, and then make the commit that holds them, if there is anything to say."""
        if self.commit and not changed and not removed:
            return
        base = self.commit or self._make()
        additions = [
            self.library.CommitOperationAdd(path_in_repo=path, path_or_fileobj=contents)
            for path, contents in changed.items()
        ]
        deletions = [self.library.CommitOperationDelete(path_in_repo=path) for path in removed]
        done, of_bytes = 0, sum(each.upload_info.size for each in additions)
        with self._quiet(), self.calling(self._revision):
            for batch in _batches(additions):
                self.api.preupload_lfs_files(
                    self.name,
                    batch,
                    repo_type="dataset",
                    revision=self._revision or "main",
                    free_memory=False,
                )
                done += sum(each.upload_info.size for each in batch)
                if tell is not None:
                    tell(done, of_bytes)
            made = self.api.create_commit(
                self.name,
                [*deletions, *additions],
                commit_message=message,
                repo_type="dataset",
                revision=self._revision,
                parent_commit=base,
            )
        self.commit = str(made.oid)

    @contextlib.contextmanager
    def _quiet(self) -> Generator[None]:
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

    def _make(self) -> str:
        """Make what is missing of the repository and the branch; return the newest commit."""
        with self.calling(self._revision):
            if self.is_new:
                private = not self._public
                self.api.create_repo(self.name, repo_type="dataset", private=private, exist_ok=True)
            if self._revision is not None:
                branch = self._revision
                self.api.create_branch(self.name, branch=branch, repo_type="dataset", exist_ok=True)
        return self.listing(self._revision).commit


def _checked(entry: Any) -> RemoteFile:
    """An entry of a listing, if it may be written below a folder."""
    path = check_path(entry.path)
    size, lfs = entry.size, entry.lfs
    if (
        isinstance(size, bool)
        or not isinstance(size, int)
        or not 0 <= size <= _MOST_BYTES
        or (lfs is not None and lfs.size != size)
    ):
        raise unsafe(path, f"has the size {_shown(size)}")
    hashed, pattern = (entry.blob_id, _COMMIT) if lfs is None else (lfs.sha256, _SHA256)
    if not isinstance(hashed, str) or not pattern.fullmatch(hashed):
        raise unsafe(path, f"has the checksum {_shown(hashed)}")
    return RemoteFile(path, size, "git" if lfs is None else "sha256", hashed)


def _batches(additions: Sequence[Any]) -> Iterator[list[Any]]:
    """Files to send at once."""
    batch: list[Any] = []
    nbytes = 0
    for addition in additions:
        batch.append(addition)
        nbytes += addition.upload_info.size
        if len(batch) >= _BATCH_FILES or nbytes >= _BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _bar_class(library: Any, file: RemoteFile, tell: Tell | None) -> type[Any]:
    """A progress bar that shows nothing and counts a file's bytes as they come."""
    # Its `update` raises an OSError where more bytes come than the file has.
    count = 0

    class Bar(library.utils.tqdm):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **{**settings, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal count
            count += int(n or 0)
            # The library counts a file twice where it is put together of pieces.
            if count > 2 * file.size + _SPARE_BYTES:
                raise OSError(f"{file.path}: expected {format_bytes(file.size)}, more arrives")
            if tell is not None:
                tell(min(count, file.size))
            return None

    return Bar


def _shown(value: object) -> str:
    return repr(value)[:200]


def _flat(error: object) -> str:
    return " ".join(str(error).split())[:300]
