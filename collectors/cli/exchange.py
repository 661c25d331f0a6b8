"""`stepwell export`, `import`, `formats`, `push`, `pull`: data sets for others, and from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import rich.text
import typer

from ...buffers import Codec, SequenceReplayBuffer
from ...buffers.base.memory_limit import bounded_memory
from ...buffers.base.package import __version__
from ...buffers.base.progress import bytes_status, format_bytes
from ...buffers.curation.selection import EpisodeSelection
from ...buffers.exchange.formats.format import Format, format_names, format_of, option_help
from ...buffers.storage.disk.publish import is_inside
from .errors import printable
from .options import (
    Codecs,
    License,
    StoreFolder,
    number_of_bytes,
    parse_codecs,
    refuse_store,
    with_selection,
)
from .output import Output, Part, plural, print_json, table, table_console, with_output

# What writes and reads is imported where it is used: few commands need it.
if TYPE_CHECKING:
    from ...buffers.exchange.formats.exporting import ExportReport
    from ...buffers.exchange.formats.importing import ImportReport

_MEMMAP = "memmap-replay-buffer"
_VERSIONS = {"stepwell": __version__, "numpy": np.__version__}


def written_formats() -> list[str]:
    """Names of the formats that can be exported to."""
    return [name for name in format_names() if format_of(name).export_options is not None]


FormatOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the format: stepwell formats FORMAT lists them. May be repeated.",
    ),
]


@with_output("start again")
@with_selection
def export(
    folder: StoreFolder,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="Such as minari: stepwell formats lists them.",
            autocompletion=written_formats,
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="OUT", help="New folder or file; for minari, new data set id.")
    ],
    option: FormatOptions = None,
    card: Annotated[
        bool,
        typer.Option("--card", help="Write a card for a hub into the folder: README.md."),
    ] = False,
    license: License = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything and show the result; write nothing."),
    ] = False,
    selection: EpisodeSelection,
    output: Output,
) -> None:
    """Write a data set that another library reads. The store is not changed.

    stepwell export runs/pong --to minari --out atari/pong/random-v0
    stepwell export runs/pong --to dreamerv3 --out data/pong --min-return 18
    stepwell export runs/pole --to npz --out arrays/pole --dry-run
    stepwell export runs/pong --to parquet --out tables --card --license cc-by-4.0

    Nothing is overwritten; an error or Ctrl-C leaves nothing behind.
    """
    settings: dict[str, Any] = {"options": parse_options(option or []), "dry_run": dry_run}
    settings |= {"card": card, "license": license}
    settings["keep"] = None if selection.is_empty else selection
    replay = SequenceReplayBuffer.open(folder, read_only=True)
    export_data(replay, to, out, settings, output)


def export_data(
    replay: SequenceReplayBuffer,  # in a folder; it is closed
    to: str,
    out: str,
    settings: Mapping[str, Any],  # of `export_episodes`
    output: Output,
) -> None:
    """Export the replay, and print what became of it."""
    from ...buffers.exchange.formats.exporting import export_episodes, export_status

    with replay, output.reporting(export_status, replay.path) as progress:
        before = replay.nbytes
        report = export_episodes(replay, to, out, **settings, progress=progress)
    facts = {**report.to_json(), "source": str(replay.path), "source_disk_bytes": before}
    output.show(facts, *_export_lines(report, before, bool(settings.get("dry_run"))))


@with_output("start again")
def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Folder or file; for minari, data set id.")
    ],
    *,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="Such as minari: stepwell formats lists them.",
            autocompletion=format_names,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the new store; it must be new or empty. Not needed with --dry-run.",
        ),
    ] = None,
    option: FormatOptions = None,
    codec: Codecs = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory that one episode may unpack to, such as 8GiB. Default: half of what is "
            "free.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Read everything and show what is in it; write nothing."),
    ] = False,
    output: Output,
) -> None:
    r"""Read a data set of another library into a new store.

    stepwell import atari/breakout/expert-v0 --from minari --dry-run
    stepwell import atari/breakout/expert-v0 --from minari --out runs/expert
    stepwell import data.h5 --from d3rlpy --out runs/data

    The data set is only read, and nothing in it is unpickled or run. Notes in the
    output name what it does not contain, such as how its episodes ended.

    In a folder of memmap-replay-buffer you name the fields of a step:

    stepwell import old --from memmap-replay-buffer --out rows \
    --option observation=obs --option action=act --option reward=rew
    """
    settings: dict[str, Any] = {"options": parse_options(option or []), "dry_run": dry_run}
    codecs = parse_codecs("--codec", codec or [])
    settings["max_bytes"] = number_of_bytes("--max-bytes", max_bytes)
    if out is None and not dry_run:
        raise ValueError(
            "expected --out with the folder of the new store, or --dry-run, got neither; give one"
        )
    import_data(source, from_, out, settings, output, codecs)


@with_output(has_quiet=False)
def formats(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[FORMAT]",
            help="Show one of them with its options.",
            autocompletion=format_names,
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """List the formats of export and import, and what to install for them.

    stepwell formats
    stepwell formats minari
    """
    found = {each: format_of(each) for each in (format_names() if name is None else [name])}
    if output.as_json:
        print_json({each: _format_json(format_) for each, format_ in found.items()})
    elif name is None:
        _show_formats(found)
    else:
        _show_format(name, found[name])


def parse_options(texts: Sequence[str]) -> dict[str, object]:
    """Parse options of a format: "stack=false" gives "false" under "stack"."""
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(
                f"--option: expected NAME=VALUE such as stack=false, got {text!r}; write both"
            )
        if name in found:
            raise ValueError(
                f"--option: expected each name once, got {name!r} twice; leave one out"
            )
        found[name] = value
    return found


def import_data(
    source: str,
    from_: str,
    out: Path | None,  # None for RAM, as for a dry run
    settings: Mapping[str, Any],  # of `import_episodes`
    output: Output,
    codecs: Mapping[str, Codec] | None = None,
) -> None:
    """Read the data set into a new store, or show what is in it."""
    if from_ == _MEMMAP and out is not None and is_inside(out, Path(source)):
        raise ValueError(
            f"--out {out}: expected a folder outside of {source}, which is only read; choose "
            f"another folder"
        )
    if out is not None:
        refuse_store(out)
    # Imported here: few commands need it.
    from ...buffers.exchange.formats.importing import import_episodes, import_status

    with output.reporting(import_status, source) as progress, bounded_memory():
        dry_run = bool(settings.get("dry_run"))
        path = None if dry_run else out
        with SequenceReplayBuffer(path, codecs=codecs or {}) as replay:
            report = import_episodes(
                from_,
                source,
                replay,
                facts={"command": "import", "versions": _VERSIONS},
                progress=progress,
                **settings,
            )
    facts = {**report.to_json(), **({} if dry_run else {"path": str(out)})}
    output.show(facts, *_import_lines(report, out, dry_run))


# Summaries.


def _export_lines(report: ExportReport, before: int, dry_run: bool) -> list[list[Part] | str]:
    """The summary of an export, or of a dry run."""
    notes = [f"  note: {note}" for note in report.notes]
    if dry_run:
        parts = [
            Part(f"would write {plural(report.chosen_episodes, 'episode')}", style="bold"),
            Part(plural(report.chosen_steps, "step"), style="bold"),
            Part(f"{format_bytes(before)} on disk now"),
            Part(f"to {report.path}"),
        ]
        return [parts, *notes, "nothing was written; run it without --dry-run to write it"]
    parts = [
        Part(plural(report.episodes, "episode"), style="bold"),
        Part(plural(report.steps, "step"), style="bold"),
        Part(f"{format_bytes(before)} -> {format_bytes(report.disk_bytes)} on disk"),
        Part(f"{report.seconds:,.1f} s"),
    ]
    loading = [f"    {text}" for text in report.loading.splitlines()]
    return [parts, f"in {report.path}", *notes, "  load it:", *loading]


def _import_lines(report: ImportReport, out: Path | None, dry_run: bool) -> list[list[Part] | str]:
    parts = [
        Part(f"{plural(report.episodes, 'episode')}{' read' * dry_run}", style="bold"),
        Part(plural(report.steps, "step"), style="bold"),
    ]
    notes = [f"  note: {note}" for note in report.notes]
    if dry_run:
        fields = [f"  {text}" for text in report.fields]
        end = "nothing was written; run it without --dry-run to write the store"
        return [parts, *fields, *notes, end]
    parts += [
        Part(f"{format_bytes(report.raw_bytes)} of rows -> {format_bytes(report.stored_bytes)}"),
        Part(f"{report.seconds:,.1f} s"),
        Part(f"digest {report.digest}"),
    ]
    return [parts, f"in {out}", *notes, f"  look at it: stepwell info {out}"]


# Formats.


def _format_json(format_: Format) -> dict[str, object]:
    return {
        "about": format_.about,
        "install": format_.install,
        "kind": format_.kind,
        "export": _options_json(format_.export_options),
        "import": _options_json(format_.import_options),
    }


def _options_json(options: type[Any] | None) -> dict[str, object] | None:
    if options is None:
        return None
    return {name: about._asdict() for name, about in option_help(options).items()}


def _show_formats(found: Mapping[str, Format]) -> None:
    made = table("format", "a data set is", "pip install")
    for name, format_ in found.items():
        cells = (format_.about, format_.install or "")
        made.add_row(rich.text.Text(name, style="bold"), *map(rich.text.Text, cells))
    console = table_console()
    console.print(made)
    console.print(rich.text.Text("\nOptions of a format: stepwell formats FORMAT", style="dim"))


def _show_format(name: str, format_: Format) -> None:
    console = table_console()
    console.print(rich.text.Text.assemble((name, "bold"), f"  {format_.about}"))
    if format_.install:
        console.print(rich.text.Text(f"needs: pip install {format_.install}"))
    for command, options in (
        (f"stepwell export ... --to {name}", format_.export_options),
        (f"stepwell import ... --from {name}", format_.import_options),
    ):
        if options is None:
            continue
        console.print(rich.text.Text(f"\n{command}", style="bold"))
        texts = option_help(options)
        if not texts:
            console.print("has no options")
            continue
        made = table("--option", "values", "default", "")
        for option, about in texts.items():
            # As text, so that markup is printed literally.
            made.add_row(*map(rich.text.Text, (f"{option}=", *about)))
        console.print(made)


_NAMES = 3

_Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="Repository of a data set on the Hub: user/pong or hf://user/pong. Or a URL for a "
        "store: s3://bucket/pong, gs://... or az://...",
    ),
]


@with_output("run it again to go on")
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
    output: Output,
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
    from ...buffers.bridges.publish import push

    with output.line(f"comparing {path} with {place} ...") as line:
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
    sent = f"{plural(len(report.sent), 'file')}, {format_bytes(report.sent_bytes)}"
    parts = [
        Part(f"{plural(report.files, 'file')}, {format_bytes(report.nbytes)}", style="bold"),
        Part(f"{sent} {'to send' if dry_run else 'sent now'}"),
    ]
    if report.is_new:
        parts.append(Part("to a new place"))
    if report.removed:
        parts.append(Part(f"{len(report.removed):,} {'to remove' if dry_run else 'removed'}"))
    if report.has_new_card:
        parts.append(Part("with a new card"))
    if report.is_growing:
        parts.append(Part("being written: push it again at its end", style="yellow"))
    at = [Part(f"at {report.address}", style="bold")]
    if report.commit:
        at.append(Part(_commit(report.commit)))
    more = [printable(f"left out: {_some(report.left_out)}")] if report.left_out else []
    output.show(report.to_json(), parts, at, *more)


@with_output("run it again to go on")
def pull_data(
    place: _Place,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder.")],
    *,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Branch, tag or commit. Default: main.")
    ] = None,
    output: Output,
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
    from ...buffers.bridges.publish import pull

    with output.line(f"looking at {place} ...") as line:
        report = pull(place, folder, revision=revision, progress=line.reporter(bytes_status(place)))
    parts = [
        Part(f"{plural(report.files, 'file')}, {format_bytes(report.nbytes)}", style="bold"),
        Part(f"{format_bytes(report.fetched_bytes)} fetched now"),
        Part("store verified" if report.is_store else "checksums compared"),
        Part(_commit(report.commit)),
    ]
    output.show(report.to_json(), parts, [Part(f"in {report.path}", style="bold")])


def _commit(name: str) -> str:
    """A commit of the Hub, or the manifest of a store at a URL, in a few letters."""
    return name if name.startswith("manifest-") else f"commit {name[:12]}"


def _some(names: tuple[str, ...]) -> str:
    """The first names of many, such as "LOCK, a, b and 2 more"."""
    rest = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {rest:,} more" if rest > 0 else "")
