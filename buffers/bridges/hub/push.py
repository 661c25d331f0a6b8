"""Publishes a data set on the Hub: a store, an archive, or an exported folder."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.buffers.bridges.card import CARD, PICTURE, check_license, store_card
from stepwell.buffers.bridges.hub.repository import (
    Listing,
    RemoteFile,
    Repository,
    differs,
    is_hidden,
)
from stepwell.buffers.errors import StoreCorrupt, StoreLocked
from stepwell.buffers.progress import (
    Progress,
    bytes_status,
    check_progress,
    progress_function,
)
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import LEDGER, StoreFolder
from stepwell.buffers.storage.disk.publish import check_complete
from stepwell.buffers.storage.disk.segment import segment_path
from stepwell.buffers.storage.disk.verify import verify

__all__ = ["PushReport", "push"]

_MANIFEST = "manifest.json"
_MOST_FILES = 25_000  # that the Hub accepts in one commit
_BATCH_FILES, _BATCH_BYTES = 100, 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """The result of a push, or of a dry run.

    Args:
        repo: The repository.
        url: Its address in a browser.
        commit: The commit that holds the data set; empty in a dry run.
        files: Number of files in it.
        nbytes: Their bytes.
        sent: The files that were new or had changed, by path; sorted.
        sent_bytes: Their bytes.
        removed: The files that were removed from the repository, by path; sorted.
        left_out: Files of the folder that are not of the data set, by path; sorted.
        is_new: The repository was made, or would be.
        has_new_card: The card was written by this call.
        seconds: Wall time.
    """

    repo: str
    url: str
    commit: str
    files: int
    nbytes: int
    sent: tuple[str, ...]
    sent_bytes: int
    removed: tuple[str, ...]
    left_out: tuple[str, ...]
    is_new: bool
    has_new_card: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self)}


def push(
    path: str | os.PathLike[str],
    repo: str,
    *,
    public: bool = False,
    revision: str | None = None,
    license: str | None = None,
    replace: bool = False,
    dry_run: bool = False,
    progress: Progress[int, int] = None,
) -> PushReport:
    """Publish a data set on the Hugging Face Hub, as one commit.

    Files go up first and are visible when the commit is made, so that nobody fetches half a data
    set. After an error the same call goes on: what the Hub has is not sent again. A repository
    that is not there is made.

    A store is verified first; its manifest, segments and ledger are published, and a card
    (``README.md``, with a picture) where neither the folder nor the repository has one. Of another
    folder all files are published, except those whose names begin with a dot.

    The Hub's address is ``HF_ENDPOINT`` of the environment, the token ``HF_TOKEN`` or that of
    ``hf auth login``.

    Args:
        path: Folder of a store or of an exported data set, or a file such as an archive.
        repo: Name of the data set's repository, such as ``"user/pong"``.
        public: Everybody may see a repository that this call makes. One that is there stays as it
            is.
        revision: The branch to commit to, which is made if needed; None for ``main``.
        license: The Hub's word for the licence of the data, such as ``"cc-by-4.0"``, for the card
            of a store.
        replace: Remove files of the repository that the data set does not have. Without it they
            are an error.
        dry_run: Compare everything and report it; change nothing.
        progress: True shows the progress. Or a function that is called with the bytes that were
            sent, and those that have to be.

    Returns:
        The report.

    Raises:
        ImportError: huggingface_hub is not installed.
        OSError: The Hub refuses, or does not answer.
        StoreCorrupt: The store is damaged.
        StoreLocked: A process writes to the store.
        StoreNotFound: The folder was not completed.
        TypeError: ``progress`` is neither True nor a function.
        ValueError: A name is invalid, there is no data set, or the repository has other files.

    Example:
        >>> push("runs/pong", "pong")
        Traceback (most recent call last):
        ...
        ValueError: repo: expected OWNER/NAME of a data set on the Hub, such as user/pong, got \
'pong'; correct it
    """
    began = time.perf_counter()
    check_progress(progress)
    check_license(license)
    repository = Repository(repo, "push")
    source = Path(path)
    data = _data_set(source)
    if license is not None and (not data.is_store or CARD in data.files):
        raise ValueError(
            f"license: expected none, as only a card that push writes about a store gets it, got "
            f"{license!r}; write it into {CARD} of {source}"
        )
    there = _there(repository, revision)
    files: dict[str, Path | bytes] = {**data.files}
    has_new_card = data.is_store and CARD not in files and CARD not in there.files
    if license is not None and not has_new_card:
        raise ValueError(
            f"license: expected none, as {repo} has a card already, got {license!r}; edit it at "
            f"{repository.address}"
        )
    if has_new_card:
        files |= store_card(source, title=repo, pulled_as=repo, license=license)
    # A card that was written there, and its picture, stay.
    removed = sorted(set(there.files) - {*files, CARD, PICTURE})
    if removed and not replace:
        raise ValueError(
            f"{repo} has {len(removed):,} other files, expected only those of {source}, such as "
            f"{removed[0]!r}: choose another repository, or remove them (replace=True, --replace)"
        )
    changed = {
        name: contents
        for name, contents in sorted(files.items())
        if name not in there.files or _is_other(contents, there.files[name])
    }
    commit = there.listed.commit if there.listed is not None else ""
    if not dry_run and (changed or removed or there.listed is None):
        commit = _Upload(repository, revision, there, public=public).run(
            changed, removed, f"Push of {data.kind}", progress
        )
    return PushReport(
        repo=repo,
        url=repository.address,
        commit="" if dry_run else commit,
        files=len(files),
        nbytes=sum(map(_size, files.values())),
        sent=tuple(changed),
        sent_bytes=sum(map(_size, changed.values())),
        removed=tuple(removed),
        left_out=data.left_out,
        is_new=there.is_new,
        has_new_card=has_new_card,
        seconds=time.perf_counter() - began,
    )


class _DataSet(NamedTuple):
    """The files that are published, by their paths in the repository."""

    files: Mapping[str, Path]
    left_out: tuple[str, ...]
    kind: str
    is_store: bool = False


def _data_set(source: Path) -> _DataSet:
    """The files of a data set.

    Raises:
        ValueError: There is none, or it has a link, a pipe or too many files.
    """
    check_complete(source)
    if source.is_file():
        return _DataSet({source.name: source}, (), "a file")
    if not source.is_dir():
        raise ValueError(
            f"{source}: expected the folder of a data set, or an archive, got nothing there; "
            f"correct the path"
        )
    found: dict[str, Path] = {}
    hidden: list[str] = []
    for folder, folders, names in os.walk(source):
        for name in [*folders, *names]:
            path = Path(folder, name)
            relative = path.relative_to(source).as_posix()
            mode = path.lstat().st_mode
            if is_hidden(relative):
                hidden.append(relative)
            elif stat.S_ISREG(mode):
                found[relative] = path
            elif not stat.S_ISDIR(mode):
                raise ValueError(
                    f"{path}: expected a regular file, got a link, a pipe or a device; replace it "
                    f"by a file, or remove it"
                )
        folders[:] = [name for name in folders if not name.startswith(".")]
    if not found:
        raise ValueError(
            f"{source}: expected a data set, got a folder without files; choose another"
        )
    if _MANIFEST in found and StoreFolder(source, Files()).is_store:
        of_store = _store_files(source)
        files = {name: path for name, path in found.items() if name in of_store}
        left_out = sorted({*hidden, *found} - set(files))
        return _DataSet(files, tuple(left_out), "a store", is_store=True)
    if len(found) > _MOST_FILES:
        raise ValueError(
            f"{source}: expected at most {_MOST_FILES:,} files, as the Hub does, got "
            f"{len(found):,}; push the store instead, or an archive"
        )
    return _DataSet(found, tuple(sorted(hidden)), "a data set")


def _store_files(source: Path) -> set[str]:
    """The names of a store's files; its checkpoints and what a repair replaced are not data.

    Raises:
        StoreCorrupt: It is damaged.
        StoreLocked: A process writes to it.
        ValueError: It was not closed.
    """
    folder = StoreFolder(source, Files())
    if folder.is_being_written:
        raise StoreLocked(
            f"{source} is being written, expected a closed store; push it when that has ended"
        )
    manifest = folder.read_newest_manifest()
    if manifest.open is not None:
        raise ValueError(
            f"{source} was not closed by the process that wrote it, expected a closed store: run "
            f"stepwell repair {source}, then push it"
        )
    report = verify(source)
    if not report.is_whole:
        raise StoreCorrupt(
            f"{source} is damaged, expected a whole store: {report.damages[0].what}; run stepwell "
            f"repair {source}, then push it"
        )
    segments = {segment_path(source, number).name for number in manifest.numbers}
    return {_MANIFEST, LEDGER, CARD, PICTURE, *segments}


class _There(NamedTuple):
    """The repository as it is."""

    is_new: bool
    listed: Listing | None  # None for a branch that is to be made

    @property
    def files(self) -> Mapping[str, RemoteFile]:
        return {} if self.listed is None else self.listed.files


def _there(repository: Repository, revision: str | None) -> _There:
    """Look at the repository, of which the branch or all of it may be missing."""
    errors = repository.errors
    try:
        return _There(False, repository.listing(revision))
    except OSError as error:
        cause = error.__cause__
        is_gated = isinstance(cause, errors.GatedRepoError)
        if isinstance(cause, errors.RepositoryNotFoundError) and not is_gated:
            return _There(True, None)
        if isinstance(cause, errors.RevisionNotFoundError):
            return _There(False, None)
        raise


class _Upload:
    """Sends files, and then makes the commit that holds them.

    Args:
        repository: Where to.
        revision: The branch; None for ``main``.
        there: The repository as it was.
        public: Everybody may see the repository if it is made.
    """

    def __init__(
        self, repository: Repository, revision: str | None, there: _There, *, public: bool
    ) -> None:
        self._repository = repository
        self._revision = revision
        self._there = there
        self._public = public

    def run(
        self,
        changed: Mapping[str, Path | bytes],
        removed: Sequence[str],
        message: str,
        progress: Progress[int, int],
    ) -> str:
        """Send all, and return the commit."""
        api, name = self._repository.api, self._repository.name
        base = self._make()
        library = self._repository.library
        additions = [
            library.CommitOperationAdd(path_in_repo=path, path_or_fileobj=contents)
            for path, contents in changed.items()
        ]
        deletions = [library.CommitOperationDelete(path_in_repo=path) for path in removed]
        of_bytes = sum(map(_size, changed.values()))
        with (
            self._repository.without_bars(),
            progress_function(progress, bytes_status(name)) as tell,
        ):
            done = 0
            for batch in _batches(additions):
                with self._repository.calling(self._revision):
                    api.preupload_lfs_files(
                        name,
                        batch,
                        repo_type="dataset",
                        revision=self._revision or "main",
                        free_memory=False,
                    )
                done += sum(each.upload_info.size for each in batch)
                if tell is not None:
                    tell(done, of_bytes)
        with self._repository.calling(self._revision):
            made = api.create_commit(
                name,
                [*deletions, *additions],
                commit_message=message,
                repo_type="dataset",
                revision=self._revision,
                parent_commit=base,
            )
        return str(made.oid)

    def _make(self) -> str:
        """Make what is missing of the repository and the branch; return the newest commit."""
        listed = self._there.listed
        if listed is not None:
            return listed.commit
        api, name = self._repository.api, self._repository.name
        with self._repository.calling(self._revision):
            if self._there.is_new:
                api.create_repo(name, repo_type="dataset", private=not self._public, exist_ok=True)
            if self._revision is not None:
                api.create_branch(name, branch=self._revision, repo_type="dataset", exist_ok=True)
        return self._repository.listing(self._revision).commit


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


def _is_other(contents: Path | bytes, file: RemoteFile) -> bool:
    """True if a file differs from the one in the repository."""
    return isinstance(contents, bytes) or differs(contents, file) is not None


def _size(contents: Path | bytes) -> int:
    return len(contents) if isinstance(contents, bytes) else contents.stat().st_size
