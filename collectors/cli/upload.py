"""`stepwell upload`: a store's folder to an object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from stepwell.buffers.progress import bytes_status, format_bytes
from stepwell.buffers.storage.cloud.objects import Objects
from stepwell.buffers.storage.cloud.upload_thread import FIRST_PAUSE_SECONDS, next_pause
from stepwell.buffers.storage.cloud.uploader import Uploader, UploadProgress
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.publish import check_complete
from stepwell.collectors.cli.errors import exit_on_error
from stepwell.collectors.cli.options import Debug, Json, Quiet
from stepwell.collectors.cli.output import LiveLine, Part, plural, print_json, print_parts

__all__ = ["upload"]

_LOOK_SECONDS = 2.0


def upload(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a store; it is only read.")
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Such as s3://bucket/run, gs://... or az://...")
    ],
    *,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Upload a store that another process writes, file by file, until it ends.",
        ),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    r"""Upload a store to an object store, where others can sample from it.

    stepwell upload runs/pong s3://bucket/pong
    stepwell upload runs/pong s3://bucket/pong --follow
    AWS_ENDPOINT_URL=http://localhost:9000 stepwell upload runs/pong s3://bucket/pong
    stepwell copy s3://bucket/pong --out runs/again    download it

    What is there already is not sent again. Credentials come from the environment:
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION; GOOGLE_APPLICATION_CREDENTIALS;
    AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY. Needs: pip install 'stepwell\[cloud]'
    """
    with exit_on_error(debug, "run it again to go on"):
        check_complete(folder)
        store = StoreFolder(folder, Files())
        _check_closed(store)
        uploader = Uploader(folder, Objects(url, is_writer=True))
        with LiveLine(is_silent=quiet or as_json) as line:
            show = line.reporter(bytes_status(str(folder)))

            def on_progress(now: UploadProgress) -> None:
                show(now.nbytes, now.of_nbytes)

            try:
                if follow:
                    _follow(store, uploader, line, on_progress=on_progress)
                else:
                    is_finished = not store.is_being_written
                    uploader.upload(is_finished=is_finished, on_progress=on_progress)
            except (Exception, KeyboardInterrupt) as error:
                if uploader.sent_bytes:
                    error.add_note("kept: what was uploaded stays there, run it again to go on")
                raise
        newest = uploader.newest
        assert newest is not None
        nbytes = sum(entry.nbytes for entry in newest.store.sealed)
        if as_json:
            print_json(
                {
                    "path": str(folder),
                    "url": url,
                    "segments": len(newest.segments),
                    "bytes": nbytes,
                    "sent_bytes": uploader.sent_bytes,
                    "steps": newest.store.next.total_steps,
                    "is_finished": newest.is_finished,
                }
            )
        elif not quiet:
            parts = [
                Part(f"{newest.store.next.total_steps:,} steps", style="bold"),
                Part(f"{plural(len(newest.segments), 'file')}, {format_bytes(nbytes)}"),
                Part(f"{format_bytes(uploader.sent_bytes)} sent now"),
            ]
            if not newest.is_finished:
                parts.append(Part("being written: --follow uploads the rest", style="yellow"))
            print_parts(parts, [Part(f"at {url}", style="bold")])


def _check_closed(store: StoreFolder) -> None:
    """Refuse a store whose writer was killed, as its newest rows cannot be uploaded.

    Raises:
        ValueError: It was.
    """
    while True:
        is_open = store.read_newest_manifest().open
        if is_open is None or store.is_being_written:
            return
        if store.read_newest_manifest().open == is_open:  # it has not ended in between
            raise ValueError(
                f"{store.path} was not closed by the process that wrote it, expected a closed "
                f"store: run stepwell repair {store.path}, then upload it"
            )


def _follow(
    store: StoreFolder,
    uploader: Uploader,
    line: LiveLine,
    on_progress: Callable[[UploadProgress], None],
) -> None:
    """Upload what is complete, until no process writes into the folder.

    Once something was uploaded, failures of the object store are waited for.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        is_finished = not store.is_being_written  # before the manifest is read
        if is_finished:
            _check_closed(store)
        try:
            uploader.upload(is_finished=is_finished, on_progress=on_progress)
        except OSError as error:
            if uploader.newest is None:
                raise
            line.say(f"{error}; trying again in {pause:g} s")
            time.sleep(pause)
            pause = next_pause(pause)
            continue
        if is_finished:
            return
        pause = FIRST_PAUSE_SECONDS
        time.sleep(_LOOK_SECONDS)
