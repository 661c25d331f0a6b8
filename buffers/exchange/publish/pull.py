"""Fetches a data set from the Hub, or a store from a URL: all bytes are compared, none is run."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from ...base.errors import StoreCorrupt
from ...base.progress import Progress, bytes_status, check_progress, format_bytes, progress_function
from ...storage.disk.publish import publish
from ...storage.disk.verify import verify
from .hub import Repository, repository_name
from .objects import Objects
from .remote import Listing, RemoteFile, Tell, differs
from .uploader import MANIFEST_FILE, StoreAtUrl

_DOWNLOADS = ".downloads"
_THREADS = 8
_LARGE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """The result of a pull.

    Args:
        source: The repository or URL.
        commit: The commit that was fetched, which names these bytes for ever; of a URL, the name of
            the manifest.
        path: The new folder.
        files: Number of files in it.
        nbytes: Their bytes.
        fetched_bytes: Bytes that this call fetched; an earlier one may have fetched the rest.
        hidden: Number of files whose names begin with a dot, which were left out.
        is_store: It is a store, which was verified.
        seconds: Wall time.
    """

    source: str
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
    source: str,
    out: str | os.PathLike[str],
    *,
    revision: str | None = None,
    progress: Progress[int, int] = None,
) -> PullReport:
    """Fetch a data set of the Hugging Face Hub, or a store at a URL, into a new folder.

    All files are of one commit, or of the newest manifest at the URL. Each is compared with the
    checksum that is listed there, and a store is verified. The folder appears under its name when
    all of this is done; until then it is in ``<out>.part``, and after an error of the network, a
    kill or Ctrl-C the same call goes on there: whole files are not fetched again.

    The place may be hostile: paths that lead out of the folder, or that some disks take for the
    same, are refused before anything is fetched, and so is more than fits on the disk. Files and
    folders whose names begin with a dot are left out. Nothing that is fetched is imported,
    unpickled or run.

    The Hub's address is ``HF_ENDPOINT`` of the environment, the token ``HF_TOKEN`` or that of
    ``hf auth login``. Credentials of an object store are in the environment, too, such as
    ``AWS_ACCESS_KEY_ID``.

    Args:
        source: Name of the data set's repository, such as ``"user/pong"`` or
            ``"hf://user/pong"``; or the URL of a store: ``"s3://bucket/run"``, ``"gs://..."``,
            ``"az://..."``, ``"file:///..."``.
        out: The new folder.
        revision: A branch, tag or commit of the Hub; None for the branch ``main``.
        progress: True shows the progress. Or a function that is called with the bytes that were
            fetched, and those of all files.

    Returns:
        The report.

    Raises:
        ImportError: huggingface_hub or obstore is not installed.
        OSError: The place refuses, does not answer or sends other bytes than it lists, there is no
            such repository, or the disk is full.
        StoreCorrupt: It holds a damaged store.
        StoreNotFound: There is no store at the URL.
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
    name = repository_name(source)
    remote: Repository | StoreAtUrl
    remote = StoreAtUrl(Objects(source)) if name is None else Repository(name, "pull")
    target = Path(out)
    with publish(target, "a pull", goes_on=True) as new:
        listing = remote.listing(revision)
        if not listing.files:
            raise ValueError(
                f"{source}: expected a data set, got a repository without files; look at "
                f"{remote.address}"
            )
        missing = _missing(new, listing)
        _check_room(new, source, missing)
        with progress_function(progress, bytes_status(source)) as function:
            download = _Download(remote, new, missing, listing.nbytes, function)
            try:
                download.run()
            except (OSError, KeyboardInterrupt) as error:
                kept = len(listing.files) - len(missing) + download.files
                if kept:  # `publish` notes the contrary
                    error.add_note(
                        f"kept: {kept:,} of {len(listing.files):,} files, run it again to go on"
                    )
                raise
            finally:
                shutil.rmtree(new / _DOWNLOADS, ignore_errors=True)
        is_store = MANIFEST_FILE in listing.files
        if is_store:
            _check_store(new, source, listing)
    return PullReport(
        source=source,
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


def _check_room(new: Path, source: str, missing: Sequence[RemoteFile]) -> None:
    """Refuse more than fits on the disk."""
    needed, free = sum(file.size for file in missing), shutil.disk_usage(new).free
    if needed > free:
        raise OSError(
            f"{source}: needs {format_bytes(needed)} more, expected at most the "
            f"{format_bytes(free)} that are free at {new.parent}; make room, or choose another disk"
        )


def _check_store(new: Path, source: str, listing: Listing) -> None:
    """Refuse a damaged store."""
    report = verify(new)
    if not report.is_whole:
        first = report.damages[0]
        raise StoreCorrupt(
            f"{source}: expected a whole store, got {len(report.damages)} damaged places in "
            f"{listing.commit}, the first: {first.what.replace(f'{new}{os.sep}', '')}; tell "
            f"its owner, or pull an earlier --revision"
        )


@dataclass(slots=True)
class _Download:
    """Fetches files into a folder of downloads, compares them, and moves them to their places."""

    remote: Repository | StoreAtUrl
    new: Path
    missing: Sequence[RemoteFile]
    nbytes: int  # of all files
    progress: Callable[[int, int], None] | None
    files: int = 0  # that are in their places
    left: int = 0  # bytes of the others

    def run(self) -> None:
        self.left = sum(file.size for file in self.missing)
        self._tell(0)
        large = [file for file in self.missing if file.size > _LARGE_BYTES]
        small = [file for file in self.missing if file.size <= _LARGE_BYTES]
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

    def _fetch(self, file: RemoteFile, tell: Tell | None = None) -> None:
        """Fetch a file, a second time if other bytes come; an OSError if they come again."""
        found = self.remote.fetch(file, self.new / _DOWNLOADS, tell, again=False)
        if differs(found, file) is not None:
            found = self.remote.fetch(file, self.new / _DOWNLOADS, tell, again=True)
            difference = differs(found, file)
            if difference is not None:
                raise OSError(
                    f"{self.remote.name}: {file.path} arrives damaged: {difference}; run it again"
                )
        place = self.new / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(found, place)

    def _count(self, file: RemoteFile) -> None:
        self.files += 1
        self.left -= file.size
        self._tell(0)

    def _tell(self, nbytes: int) -> None:
        """Report the bytes, with those of a file that is being fetched."""
        if self.progress is not None:
            self.progress(self.nbytes - self.left + nbytes, self.nbytes)
