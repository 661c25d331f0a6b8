"""Publishes a data set on the Hub, or a store at a URL: what is there is not sent again."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from ...base.errors import StoreCorrupt, StoreLocked
from ...base.progress import Progress, bytes_status, check_progress, progress_function
from ...storage.disk.files import Files
from ...storage.disk.folder import StoreFolder
from ...storage.disk.publish import check_complete
from ...storage.disk.segment import segment_path
from ...storage.disk.verify import verify
from ..card import CARD, PICTURE, check_license, store_card
from .hub import HubUpload, repository_name
from .objects import Objects
from .remote import differs, is_hidden
from .uploader import MANIFEST_FILE, Uploader

_MOST_FILES = 25_000  # that the Hub accepts in one commit


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """The result of a push, or of a dry run.

    Args:
        target: The repository or URL.
        address: Where it is for people: a repository's page in a browser, or the URL.
        commit: The commit that holds the data set; of a URL, the name of the manifest. Empty in a
            dry run.
        files: Number of files in it.
        nbytes: Their bytes.
        sent: The files that were new or had changed, by path; sorted. To a URL also those that the
            store's writer evicted before the end of the push.
        sent_bytes: Their bytes.
        removed: The files that were removed there, by path; sorted.
        left_out: Files of the folder that are not of the data set, by path; sorted.
        is_new: There was no repository, or no store at the URL.
        has_new_card: The card was written by this call.
        is_growing: A process writes into the store: only its complete files were sent.
        seconds: Wall time.
    """

    target: str
    address: str
    commit: str
    files: int
    nbytes: int
    sent: tuple[str, ...]
    sent_bytes: int
    removed: tuple[str, ...]
    left_out: tuple[str, ...]
    is_new: bool
    has_new_card: bool
    is_growing: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self)}


def push(
    path: str | os.PathLike[str],
    target: str,
    *,
    public: bool = False,
    revision: str | None = None,
    license: str | None = None,
    replace: bool = False,
    dry_run: bool = False,
    progress: Progress[int, int] = None,
) -> PushReport:
    """Publish a data set on the Hugging Face Hub as one commit, or a store at a URL.

    Files go up first and are visible when the commit is made, or the manifest at the URL, so that
    nobody fetches half a data set. Files that are there already are not sent again; after an error
    or a kill the same call goes on.

    A store is verified first; its manifest and segments are published, and on the Hub a card
    (``README.md``, with a picture) where neither the folder nor the repository has one. Of another
    folder all files are published, except those whose names begin with a dot; a URL takes stores
    alone.

    The Hub's address is ``HF_ENDPOINT`` of the environment, the token ``HF_TOKEN`` or that of
    ``hf auth login``. Credentials of an object store are in the environment, too, such as
    ``AWS_ACCESS_KEY_ID``.

    Args:
        path: Folder of a store or of an exported data set, or a file such as an archive.
        target: Name of the data set's repository, such as ``"user/pong"`` or ``"hf://user/pong"``;
            or a URL: ``"s3://bucket/run"``, ``"gs://..."``, ``"az://..."``, ``"file:///..."``.
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
        ImportError: huggingface_hub or obstore is not installed.
        OSError: The place refuses, or does not answer.
        StoreCorrupt: The store is damaged, or what is at the URL.
        StoreLocked: A process writes to the store, which the Hub gets only when it is closed; or
            another store is at the URL, or another process sends to it.
        StoreNotFound: The folder was not completed.
        TypeError: ``progress`` is neither True nor a function.
        ValueError: A name is invalid, there is no data set, the repository has other files, or the
            URL does not know an option.

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
    source = Path(path)
    name = repository_name(target)
    if name is None:
        given = {"public": public, "revision": revision, "license": license, "replace": replace}
        for option, value in given.items():
            if value:
                raise ValueError(
                    f"{option}: expected none with a URL, as it is for the Hub, got {value!r}; "
                    f"leave it out"
                )
        objects = Objects(target, is_writer=True)
        data = _data_set(source, for_url=True)
        done = _to_url(data, objects, dry_run, progress)
    else:
        upload = HubUpload(name, revision, public=public)
        data = _data_set(source)
        upload.look()
        done = _to_hub(data, upload, license, replace, dry_run, progress)
    return PushReport(
        target=target,
        address=done.address,
        commit="" if dry_run else done.commit,
        files=len(done.files),
        nbytes=sum(done.files.values()),
        sent=tuple(sorted(done.sent)),
        sent_bytes=sum(done.sent.values()),
        removed=tuple(sorted(done.removed)),
        left_out=data.left_out,
        is_new=done.is_new,
        has_new_card=done.has_new_card,
        is_growing=data.is_growing,
        seconds=time.perf_counter() - began,
    )


class _DataSet(NamedTuple):
    """The files that are published, by their paths."""

    source: Path
    files: Mapping[str, Path]
    left_out: tuple[str, ...]
    kind: str
    is_store: bool = False
    is_growing: bool = False


class _Done(NamedTuple):
    """A push; `files` and `sent` are the lengths of files by their paths."""

    address: str
    commit: str
    files: Mapping[str, int]
    sent: Mapping[str, int]
    removed: Collection[str]
    is_new: bool
    has_new_card: bool = False


def _to_hub(
    data: _DataSet,
    upload: HubUpload,
    license: str | None,
    replace: bool,
    dry_run: bool,
    progress: Progress[int, int],
) -> _Done:
    """Send what the repository does not have, and make the commit."""
    name, address, there = upload.name, upload.address, upload.files
    if license is not None and (not data.is_store or CARD in data.files):
        raise ValueError(
            f"license: expected none, as only a card that push writes about a store gets it, got "
            f"{license!r}; write it into {CARD} of {data.source}"
        )
    files: dict[str, Path | bytes] = {**data.files}
    has_new_card = data.is_store and CARD not in files and CARD not in there
    if license is not None and not has_new_card:
        raise ValueError(
            f"license: expected none, as {name} has a card already, got {license!r}; edit it at "
            f"{address}"
        )
    if has_new_card:
        files |= store_card(data.source, title=name, pulled_as=name, license=license)
    # A card that was written there, and its picture, stay.
    removed = sorted(set(there) - {*files, CARD, PICTURE})
    if removed and not replace:
        raise ValueError(
            f"{name} has {len(removed):,} other files, expected only those of {data.source}, such "
            f"as {removed[0]!r}: choose another repository, or remove them (replace=True, "
            f"--replace)"
        )
    changed = {
        path: contents
        for path, contents in sorted(files.items())
        if path not in there
        or isinstance(contents, bytes)
        or differs(contents, there[path]) is not None
    }
    if not dry_run:
        with progress_function(progress, bytes_status(name)) as tell:
            upload.send(changed, removed, f"Push of {data.kind}", tell)
    lengths = {
        path: len(contents) if isinstance(contents, bytes) else contents.stat().st_size
        for path, contents in files.items()
    }
    sent = {path: lengths[path] for path in changed}
    return _Done(address, upload.commit, lengths, sent, removed, upload.is_new, has_new_card)


def _to_url(data: _DataSet, objects: Objects, dry_run: bool, progress: Progress[int, int]) -> _Done:
    """Send the segments that are not there, and write the next manifest."""
    if not data.is_store:
        raise ValueError(
            f"{data.source}: expected a store, as {objects.url} takes nothing else, got "
            f"{data.kind}; push it to the Hub"
        )
    uploader = Uploader(data.source, objects, dry_run=dry_run)
    with progress_function(progress, bytes_status(str(data.source))) as tell:
        try:
            uploader.upload(is_finished=not data.is_growing, tell=tell)
        except (OSError, KeyboardInterrupt) as error:
            if uploader.sent:
                error.add_note("kept: what was sent stays there, run it again to go on")
            raise
    return _Done(
        objects.url,
        uploader.commit,
        uploader.files,
        uploader.sent,
        uploader.removed,
        uploader.is_new,
    )


def _data_set(source: Path, *, for_url: bool = False) -> _DataSet:
    """The files of a data set, which is a folder or a file."""
    # A URL also takes a store that is being written, up to its last complete file, and no card.
    check_complete(source)
    if source.is_file():
        return _DataSet(source, {source.name: source}, (), "a file")
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
    if MANIFEST_FILE in found and StoreFolder(source, Files()).is_store:
        of_store, is_growing = _store_files(source, for_url=for_url)
        files = {name: path for name, path in found.items() if name in of_store}
        left_out = tuple(sorted({*hidden, *found} - set(files)))
        return _DataSet(source, files, left_out, "a store", True, is_growing)
    if len(found) > _MOST_FILES:
        raise ValueError(
            f"{source}: expected at most {_MOST_FILES:,} files, as the Hub does, got "
            f"{len(found):,}; push the store instead, or an archive"
        )
    return _DataSet(source, found, tuple(sorted(hidden)), "a data set")


def _store_files(source: Path, *, for_url: bool) -> tuple[set[str], bool]:
    """The names of a whole store's files, and whether a process writes it."""
    # Its checkpoints and what a repair replaced are not data.
    folder = StoreFolder(source, Files())
    is_growing = folder.is_being_written  # before the manifest is read
    if is_growing and not for_url:
        raise StoreLocked(
            f"{source} is being written, expected a closed store; push it when that has ended"
        )
    manifest = folder.read_newest_manifest()
    if manifest.open is not None and not is_growing:
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
    cards = () if for_url else (CARD, PICTURE)
    return {MANIFEST_FILE, *cards, *segments}, is_growing
