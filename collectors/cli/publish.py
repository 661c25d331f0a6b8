"""`stepwell push` and `stepwell pull`: data sets on the Hugging Face Hub, stores at URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...buffers.base.progress import bytes_status, format_bytes
from .errors import exit_on_error, printable
from .options import Debug, Json, License, Quiet
from .output import LiveLine, Part, plural, print_json, print_parts

_NAMES = 3

_Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="Repository of a data set on the Hub: user/pong or hf://user/pong. Or a URL for a "
        "store: s3://bucket/pong, gs://... or az://...",
    ),
]


def push_data(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of a store or of an exported data set, or an archive."
        ),
    ],
    place: _Place,
    *,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Everybody may see the repository, if this makes it. One that is there stays as "
            "it is.",
        ),
    ] = False,
    revision: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="Branch to commit to, made if needed. Default: main."),
    ] = None,
    license: License = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Remove the repository's other files. Without it they are an error.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Compare everything and show it; change nothing."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    r"""Publish a data set on the Hugging Face Hub, or a store on an object store.

    stepwell push runs/pong user/pong --license cc-by-4.0
    stepwell push runs/pong user/pong --public
    stepwell push pong.swa user/pong-archive
    stepwell push runs/pong s3://data/pong
    AWS_ENDPOINT_URL=http://localhost:9000 stepwell push runs/pong s3://data/pong

    A store is verified first. What is there already is not sent again. On the Hub
    it is one commit: a new repository is private without --public, and a store
    gets a card (README.md with a picture) if neither its folder nor the
    repository has one. Log in once with: hf auth login.
    Credentials of an object store come from the environment: AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_REGION; GOOGLE_APPLICATION_CREDENTIALS;
    AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY.
    Needs: pip install 'stepwell\[hub]', or for URLs pip install 'stepwell\[cloud]'
    """
    with exit_on_error(debug, "run it again to go on"):
        from ...buffers.bridges.publish import push

        with LiveLine(is_silent=quiet or as_json) as line:
            line.say(f"comparing {path} with {place} ...")
            report = push(
                path,
                place,
                public=public,
                revision=revision,
                license=license,
                replace=replace,
                dry_run=dry_run,
                progress=line.reporter(bytes_status(place)),
            )
        if as_json:
            print_json(report.to_json())
        elif not quiet:
            sent = f"{plural(len(report.sent), 'file')}, {format_bytes(report.sent_bytes)}"
            parts = [
                Part(
                    f"{plural(report.files, 'file')}, {format_bytes(report.nbytes)}", style="bold"
                ),
                Part(f"{sent} {'to send' if dry_run else 'sent now'}"),
            ]
            if report.is_new:
                parts.append(Part("to a new place"))
            if report.removed:
                parts.append(
                    Part(f"{len(report.removed):,} {'to remove' if dry_run else 'removed'}")
                )
            if report.has_new_card:
                parts.append(Part("with a new card"))
            if report.is_growing:
                parts.append(Part("being written: push it again at its end", style="yellow"))
            at = [Part(f"at {report.address}", style="bold")]
            if report.commit:
                at.append(Part(_commit(report.commit)))
            more = [f"left out: {_some(report.left_out)}"] if report.left_out else []
            print_parts(parts, at, *([Part(printable(text))] for text in more))


def pull_data(
    place: _Place,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder.")],
    *,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit. Default: main.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    r"""Fetch a data set of the Hugging Face Hub, or a store at a URL, into a new folder.

    stepwell pull user/pong runs/pong
    stepwell pull user/pong runs/pong --revision 4fd1c27a8a0c
    stepwell pull s3://bucket/pong runs/pong

    Every file is compared with the checksum that is listed there, and a store is
    verified, before the folder appears. After an error or Ctrl-C the same command
    goes on. Nothing that is fetched is run. Needs: pip install 'stepwell\[hub]',
    or for URLs pip install 'stepwell\[cloud]'
    """
    with exit_on_error(debug, "run it again to go on"):
        from ...buffers.bridges.publish import pull

        with LiveLine(is_silent=quiet or as_json) as line:
            line.say(f"looking at {place} ...")
            report = pull(
                place, folder, revision=revision, progress=line.reporter(bytes_status(place))
            )
        if as_json:
            print_json(report.to_json())
        elif not quiet:
            checked = "store verified" if report.is_store else "checksums compared"
            print_parts(
                [
                    Part(
                        f"{plural(report.files, 'file')}, {format_bytes(report.nbytes)}",
                        style="bold",
                    ),
                    Part(f"{format_bytes(report.fetched_bytes)} fetched now"),
                    Part(checked),
                    Part(_commit(report.commit)),
                ],
                [Part(f"in {report.path}", style="bold")],
            )


def _commit(name: str) -> str:
    """A commit of the Hub, or the manifest of a store at a URL, in a few letters."""
    return name if name.startswith("manifest-") else f"commit {name[:12]}"


def _some(names: tuple[str, ...]) -> str:
    """The first names of many, such as "LOCK, a, b and 2 more"."""
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest:,} more" if rest > 0 else "")
