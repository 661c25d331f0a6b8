"""Fetches a data set from the Hub: every byte is compared with its checksum, nothing is run."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepwell.buffers.bridges.hub.repository import Listing, RemoteFile, Repository, differs
from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.progress import (
    Progress,
    bytes_status,
    check_progress,
    format_bytes,
    progress_function,
)
from stepwell.buffers.storage.disk.publish import publish
from stepwell.buffers.storage.disk.verify import verify

__all__ = ["PullReport", "pull"]

_DOWNLOADS = ".downloads"
_MANIFEST = "manifest.json"
_THREADS = 8
_LARGE_BYTES = 8 << 20
_SPARE_BYTES = 64 << 20
"""Bytes that a download may take more than its file, as some are counted twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """The result of a pull.

    Args:
        repo: The repository.
        commit: The commit that was fetched, which names these bytes for ever.
        path: The new folder.
        files: Number of files in it.
        nbytes: Their bytes.
        fetched_bytes: Bytes that this call fetched; an earlier one may have fetched the rest.
        hidden: Number of files whose names begin with a dot, which were left out.
        is_store: It is a store, which was verified.
        seconds: Wall time.
    """

    repo: str
    commit: str
    path: Path
    files: int
    nbytes: int
    fetched_bytes: int
    hidden: int
    is_store: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "path": str(self.path)}


def pull(
    repo: str,
    out: str | os.PathLike[str],
    *,
    revision: str | None = None,
    progress: Progress[int, int] = None,
) -> PullReport:
    """Fetch a data set of the Hugging Face Hub into a new folder.

    All files are of one commit. Each is compared with the SHA-256 that the Hub lists for it (small
    files with their SHA-1 in git), and a store is verified. The folder appears under its name when
    all of this is done; until then it is in ``<out>.part``, and after an error of the network, a
    kill or Ctrl-C the same call goes on there: whole files are not fetched again.

    A repository may be hostile: paths that lead out of the folder, or that some disks take for the
    same, are refused before anything is fetched, and so is more than fits on the disk. Files and
    folders whose names begin with a dot are left out. Nothing that is fetched is imported,
    unpickled or run.

    The Hub's address is ``HF_ENDPOINT`` of the environment, the token ``HF_TOKEN`` or that of
    ``hf auth login``.

    Args:
        repo: Name of the data set's repository, such as ``"user/pong"``.
        out: The new folder.
        revision: A branch, tag or commit; None for the branch ``main``.
        progress: True shows the progress. Or a function that is called with the bytes that were
            fetched, and those of all files.

    Returns:
        The report.

    Raises:
        ImportError: huggingface_hub is not installed.
        OSError: The Hub refuses, does not answer or sends other bytes than it lists, there is no
            such repository, or the disk is full.
        StoreCorrupt: The repository holds a damaged store.
        StoreLocked: Another process pulls into the same folder.
        TypeError: ``progress`` is neither True nor a function.
        ValueError: The folder is in use, a name is invalid, or the repository is not safe to fetch.

    Example:
        >>> pull("pong", "runs/pong")
        Traceback (most recent call last):
        ...
        ValueError: repo: expected OWNER/NAME of a data set on the Hub, such as user/pong, got \
'pong'; correct it
    """
    began = time.perf_counter()
    check_progress(progress)
    repository = Repository(repo, "pull")
    target = Path(out)
    with publish(target, "a pull", goes_on=True) as new, repository.without_bars():
        listing = repository.listing(revision)
        if not listing.files:
            raise ValueError(
                f"{repo}: expected a data set, got a repository without files; look at "
                f"{repository.address}"
            )
        missing = _missing(new, listing)
        _check_room(new, repo, missing)
        with progress_function(progress, bytes_status(repo)) as function:
            download = _Download(repository, listing, new, missing, function)
            try:
                download.run()
            except (OSError, KeyboardInterrupt) as error:
                kept = len(listing.files) - len(missing) + download.files
                error.add_note(
                    f"kept: {kept:,} of {len(listing.files):,} files, run it again to go on"
                    if kept
                    else "kept: nothing"
                )
                raise
            finally:
                shutil.rmtree(new / _DOWNLOADS, ignore_errors=True)
        is_store = _MANIFEST in listing.files
        if is_store:
            _check_store(new, repo, listing)
    return PullReport(
        repo=repo,
        commit=listing.commit,
        path=target,
        files=len(listing.files),
        nbytes=listing.nbytes,
        fetched_bytes=sum(file.size for file in missing),
        hidden=listing.hidden,
        is_store=is_store,
        seconds=time.perf_counter() - began,
    )


def _missing(new: Path, listing: Listing) -> list[RemoteFile]:
    """The files that have to be fetched; what else an earlier pull has left is removed."""
    kept: set[str] = set()
    for folder, folders, names in os.walk(new, topdown=False):
        for name in [*folders, *names]:
            path = Path(folder, name)
            file = listing.files.get(path.relative_to(new).as_posix())
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                if not any(path.iterdir()):
                    path.rmdir()
            elif file is not None and stat.S_ISREG(mode) and differs(path, file) is None:
                kept.add(file.path)
            else:
                path.unlink()
    return [file for file in listing.files.values() if file.path not in kept]


def _check_room(new: Path, repo: str, missing: Sequence[RemoteFile]) -> None:
    """Refuse more than fits on the disk.

    Raises:
        OSError: It is more.
    """
    needed, free = sum(file.size for file in missing), shutil.disk_usage(new).free
    if needed > free:
        raise OSError(
            f"{repo}: needs {format_bytes(needed)} more, expected at most the "
            f"{format_bytes(free)} that are free at {new.parent}; make room, or choose another disk"
        )


def _check_store(new: Path, repo: str, listing: Listing) -> None:
    """Refuse a damaged store.

    Raises:
        StoreCorrupt: It is damaged.
    """
    report = verify(new)
    if not report.is_whole:
        first = report.damages[0]
        raise StoreCorrupt(
            f"{repo}: expected a whole store, got {len(report.damages)} damaged places at commit "
            f"{listing.commit[:12]}, the first: {first.what.replace(f'{new}{os.sep}', '')}; tell "
            f"its owner, or pull an earlier --revision"
        )


class _Download:
    """Fetches files into a folder of downloads, compares them, and moves them to their places.

    Args:
        repository: Where from.
        listing: The files of a commit.
        new: The folder.
        missing: The files to fetch.
        progress: Is told the bytes.
    """

    def __init__(
        self,
        repository: Repository,
        listing: Listing,
        new: Path,
        missing: Sequence[RemoteFile],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.files = 0
        """Number of files that are in their places."""
        self._repository = repository
        self._listing = listing
        self._new = new
        self._missing = missing
        self._progress = progress
        self._bytes = listing.nbytes - sum(file.size for file in missing)

    def run(self) -> None:
        """Fetch all."""
        self._tell(0)
        large = [file for file in self._missing if file.size > _LARGE_BYTES]
        small = [file for file in self._missing if file.size <= _LARGE_BYTES]
        with ThreadPoolExecutor(_THREADS) as pool:
            try:
                for file, _ in zip(small, pool.map(self._fetch, small), strict=True):
                    self._count(file)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for file in large:  # in this thread, which Ctrl-C interrupts
            self._fetch(file, self._tell)
            self._count(file)

    def _fetch(self, file: RemoteFile, tell: Callable[[int], None] | None = None) -> None:
        """Fetch a file, a second time if other bytes come.

        Raises:
            OSError: Other bytes come again.
        """
        difference = self._fetch_once(file, tell)
        if difference is not None:
            difference = self._fetch_once(file, tell, again=True)
        if difference is not None:
            raise OSError(
                f"{self._repository.name}: {file.path} arrives damaged: {difference}; run it again"
            )

    def _fetch_once(
        self, file: RemoteFile, tell: Callable[[int], None] | None, again: bool = False
    ) -> str | None:
        """Fetch a file; return what is wrong with it.

        Args:
            file: The file.
            tell: Is told the bytes that have come.
            again: Take it neither from the folder nor from the library's cache.
        """
        with self._repository.calling():
            found = Path(
                self._repository.api.hf_hub_download(
                    self._repository.name,
                    file.path,
                    repo_type="dataset",
                    revision=self._listing.commit,
                    local_dir=self._new / _DOWNLOADS,
                    force_download=again,
                    tqdm_class=_bar_class(self._repository.library, file, tell),
                )
            )
        difference = differs(found, file)
        if difference is None:
            place = self._new / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(found, place)
        return difference

    def _count(self, file: RemoteFile) -> None:
        self.files += 1
        self._bytes += file.size
        self._tell(0)

    def _tell(self, nbytes: int) -> None:
        """Report the bytes, with those of a file that is being fetched."""
        if self._progress is not None:
            self._progress(self._bytes + nbytes, self._listing.nbytes)


def _bar_class(library: Any, file: RemoteFile, tell: Callable[[int], None] | None) -> type[Any]:
    """A progress bar that shows nothing and counts a file's bytes as they come.

    Raises:
        OSError: By its `update`: more bytes come than the file has.
    """
    count = 0

    class Bar(library.utils.tqdm):  # type: ignore[misc]
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
