"""`stepwell push` and `stepwell pull`: data sets on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepwell.buffers.progress import bytes_status, format_bytes
from stepwell.collectors.cli.errors import exit_on_error, printable
from stepwell.collectors.cli.options import Debug, Json, License, Quiet
from stepwell.collectors.cli.output import LiveLine, Part, plural, print_json, print_parts

__all__ = ["pull_data", "push_data"]

_NAMES = 3

_Repo = Annotated[
    str, typer.Argument(metavar="REPO", help="Repository of a data set on the Hub: user/pong.")
]


def push_data(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of a store or of an exported data set, or an archive."
        ),
    ],
    repo: _Repo,
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
    r"""Publish a data set on the Hugging Face Hub, as one commit.

    stepwell push runs/pong user/pong --license cc-by-4.0
    stepwell push runs/pong user/pong --public
    stepwell push pong.swa user/pong-archive

    A new repository is private without --public. A store is verified first, and gets a card
    (README.md with a picture) if neither its folder nor the repository has one. What the Hub has
    is not sent again. Log in once with: hf auth login. Needs: pip install 'stepwell\[hub]'
    """
    with exit_on_error(debug, "run it again to go on"):
        from stepwell.buffers.bridges.hub import push

        with LiveLine(is_silent=quiet or as_json) as line:
            line.say(f"comparing {path} with {repo} ...")
            report = push(
                path,
                repo,
                public=public,
                revision=revision,
                license=license,
                replace=replace,
                dry_run=dry_run,
                progress=line.reporter(bytes_status(repo)),
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
            if report.removed:
                parts.append(
                    Part(f"{len(report.removed):,} {'to remove' if dry_run else 'removed'}")
                )
            if report.has_new_card:
                parts.append(Part("with a new card"))
            at = [Part(f"at {report.url}", style="bold")]
            if report.commit:
                at.append(Part(f"commit {report.commit[:12]}"))
            more = [f"left out: {_some(report.left_out)}"] if report.left_out else []
            print_parts(parts, at, *([Part(printable(text))] for text in more))


def pull_data(
    repo: _Repo,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder.")],
    *,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit. Default: main.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    r"""Fetch a data set from the Hugging Face Hub into a new folder.

    stepwell pull user/pong runs/pong
    stepwell pull user/pong runs/pong --revision 4fd1c27a8a0c

    Every file is compared with the checksum that the Hub lists, and a store is verified, before
    the folder appears. After an error or Ctrl-C the same command goes on. Nothing that is fetched
    is run. Needs: pip install 'stepwell\[hub]'
    """
    with exit_on_error(debug, "run it again to go on"):
        from stepwell.buffers.bridges.hub import pull

        with LiveLine(is_silent=quiet or as_json) as line:
            line.say(f"looking at {repo} ...")
            report = pull(
                repo, folder, revision=revision, progress=line.reporter(bytes_status(repo))
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
                    Part(f"commit {report.commit[:12]}"),
                ],
                [Part(f"in {report.path}", style="bold")],
            )


def _some(names: tuple[str, ...]) -> str:
    """The first names of many.

    Example:
        >>> _some(("LOCK", "a", "b", "c", "d"))
        'LOCK, a, b and 2 more'
    """
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest:,} more" if rest > 0 else "")
