"""`stepwell view`, `report` and `render`: stores in a browser, in one HTML file, in clips."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ...buffers.base.optional_libraries import load_library
from ...buffers.storage.disk.folder import folder_path
from ...buffers.storage.disk.publish import is_inside
from ..loop.report import format_bytes
from .errors import exit_on_error, printable, show_error
from .options import Debug, Digest, StoreFolder, count_in, number_of_bytes, real_number
from .output import Output, Part, plural, print_lines, with_output

_LAST_PORT = 65_535
_MOST_STORES = 32
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")]
_Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


def view(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR", help="Folders of one or more stores; they are only read, and may grow."
        ),
    ],
    *,
    port: Annotated[
        str, typer.Option(metavar="N", help="Port to listen on; 0 takes a free one.")
    ] = "0",
    host: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Address to listen on. Any but this machine's own is a risk."
        ),
    ] = "127.0.0.1",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, open nothing.")
    ] = False,
    exports: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for new stores that the page writes. Default: exports; none if --host "
            "lets others in.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    r"""Look at stores in a browser: episodes, frames, curves, histograms.

    stepwell view runs/pong
    stepwell view runs/a runs/b           compare stores
    stepwell view runs/pong --port 8000   through ssh -L 8000:localhost:8000

    The address holds a token, which nobody else should see. Stores that are being
    written grow on the page. Ctrl-C ends it. Needs: pip install 'stepwell\[view]'
    """
    with exit_on_error(debug):
        for module in ("starlette.applications", "uvicorn", "h11"):
            load_library(module, "stepwell view", install="'stepwell[view]'")
        from ...buffers.view.server.app import App, listen, serve
        from ...buffers.view.server.export import Exports
        from ...buffers.view.server.guard import Access
        from ...buffers.view.server.stores import Stores

        _check_folders(folders)
        number = count_in("--port", port, 0) or 0
        if number > _LAST_PORT:
            raise ValueError(f"--port: expected 0 to {_LAST_PORT}, got {port}; give another")
        with listen(host, number) as listening:
            address = ipaddress.ip_address(listening.getsockname()[0])
            is_local = address.is_loopback
            access = Access(_names(host, address), any_address=address.is_unspecified)
            base = f"http://{_url_host(host, address)}:{listening.getsockname()[1]}/"

            def tell() -> None:
                stores.start()
                if not is_local:
                    show_error(
                        "warning: others can reach this address, and read everything if they "
                        "learn the token; the connection is not encrypted. Safer: the default "
                        "--host, and ssh -L"
                    )
                print_lines(f"{base}?token={access.token}")
                sys.stdout.flush()
                if not no_browser and _has_display():
                    url = f"{base}?launch={access.launch_code()}"
                    # A thread: some browsers are waited for.
                    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

            writer = Exports(_folder_for(exports, folders, is_local), _show_bug)
            with (
                closing(Stores(folders, _show_bug)) as stores,
                closing(App(stores, access, writer, _show_bug)) as app,
            ):
                serve(app, listening, tell)


def _check_folders(folders: Sequence[Path]) -> None:
    """Refuse folders that are not there, which are more likely typing errors, and too many."""
    if len(folders) > _MOST_STORES:
        raise ValueError(f"expected at most {_MOST_STORES} stores, got {len(folders)}; name fewer")
    for folder in folders:
        folder_path(folder)
        if not folder.is_dir():
            got, advice = "a path where nothing is", "correct it"
            if folder.exists():
                got, advice = "a file", "of an archive, stepwell restore makes a store"
            raise ValueError(f"{folder}: expected the folder of a store, got {got}; {advice}")


def _names(host: str, address: _Address) -> list[str]:
    """Names by which others may call this server."""
    if address.is_loopback:
        return [host]
    own = socket.gethostname().lower()
    return [host, str(address), own, own.partition(".")[0], f"{own.partition('.')[0]}.local"]


def _url_host(host: str, address: _Address) -> str:
    """The host as a browser wants it."""
    if address.is_unspecified:
        return socket.gethostname()
    return f"[{address}]" if ":" in host else host


def _folder_for(exports: Path | None, folders: Sequence[Path], is_local: bool) -> Path | None:
    """The folder for new stores; None where none was given and others could reach the server."""
    place = exports or (Path("exports") if is_local else None)
    holder = next((each for each in folders if place and is_inside(place, each)), None)
    if holder is None:
        return place
    if exports is None:
        return None
    raise ValueError(
        f"--exports: expected a folder outside of {holder}, got {exports}; give another"
    )


def _show_bug(error: Exception) -> None:
    sys.excepthook(type(error), error, error.__traceback__)


def _has_display() -> bool:
    if sys.platform == "darwin":
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


_EPISODES = "best:3,worst:3,longest:1"
_MOST_BYTES = "5MB"


@with_output("start again")
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of one or more stores; they are only read."),
    ],
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The new file: NAME.html.")
    ],
    episodes: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="Episodes to show of each store: best, worst, longest, shortest, first or last, "
            "each with a number, and ids such as 7,12-15; or none.",
        ),
    ] = _EPISODES,
    title: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Heading. Default: the names of the folders."),
    ] = None,
    max_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Size of the file at most, such as 800kB or 20MB. Where all frames do not fit, "
            "every second, fourth, ... frame of long episodes is shown, and a note says so.",
        ),
    ] = _MOST_BYTES,
    digest: Digest = False,
    overwrite: _Overwrite = False,
    output: Output,
) -> None:
    """Write one HTML file about a store, or several that are compared.

    stepwell report runs/pong -o report.html
    stepwell report runs/pong -o report.html --episodes best:1,worst:1,17
    stepwell report runs/a runs/b -o compared.html --title "Before and after"
    stepwell report runs/pong -o small.html --max-size 500kB

    It is the page of stepwell view with its data inside: the main numbers, the
    runs that wrote the store, histograms of returns, lengths and actions, and
    some episodes to play frame by frame, every pixel as it is stored. It opens in
    any browser, from a disk as from a server, and loads nothing: a supplement of
    a paper, a page of a hub. The same stores give the same bytes. All episodes,
    and live stores: stepwell view
    """
    # Imported here: the other commands need no pages.
    from ...buffers.view.report import report_status, write_report

    with output.line(f"reading {', '.join(map(str, folders))} ...") as line:
        made = write_report(
            folders,
            out,
            episodes=episodes,
            title=title,
            max_bytes=number_of_bytes("--max-size", max_size) or 0,
            with_digest=digest,
            overwrite=overwrite,
            progress=line.reporter(report_status),
        )
    parts = [
        Part(plural(made.stores, "store"), style="bold"),
        Part(f"{made.playable:,} of {plural(made.episodes, 'episode')} to play"),
        Part(format_bytes(made.nbytes)),
        Part(f"in {made.path}", style="bold"),
    ]
    output.show(asdict(made), parts, *([Part(note, style="yellow")] for note in made.notes))


def _parse_episode(text: str) -> int | str:
    from ...buffers.view.episode_table import RANKS

    if text in RANKS:
        return text
    if not text[:1].isdecimal():
        raise ValueError(f"--episode: expected an id, or {', '.join(RANKS)}, got {text!r}")
    return count_in("--episode", text, 0) or 0


_ROWS = re.compile(r"\s*([0-9]*)\s*:\s*([0-9]*)\s*")


@with_output("start again")
def render(
    folder: StoreFolder,
    *,
    episode: Annotated[
        str,
        typer.Option(
            "--episode",
            "-e",
            metavar="ID",
            help="Id of the episode; or best, worst, longest, shortest, first or last.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The new file: NAME.mp4, .gif or .webp for a clip, .png for a film strip.",
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="Only rows A to B-1, counted from the reset; A: or :B for the rest. Default: all.",
        ),
    ] = None,
    fps: Annotated[
        str | None,
        typer.Option(
            metavar="X",
            help="Rows a second. Default: real time where the store says how fast the env plays "
            "(15 for Atari and NES with a frame skip of 4), else 30.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="N", help="Show each pixel as a square of N x N pixels; they stay sharp."
        ),
    ] = "1",
    field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The field of images to show, such as observation/left. Default: the first one.",
        ),
    ] = None,
    frames: Annotated[
        str,
        typer.Option(metavar="N", help="Frames of a film strip, 1 to 256."),
    ] = "8",
    overwrite: _Overwrite = False,
    output: Output,
) -> None:
    r"""Write the images of an episode to a file: a clip, or a film strip.

    stepwell render runs/pong --episode 5 -o clip.webp
    stepwell render runs/pong --episode 5 -o clip.mp4 --scale 4
    stepwell render runs/pong --episode 5 -o rally.gif --rows 100:400 --fps 30
    stepwell render runs/pong --episode 5 -o strip.png --frames 16
    stepwell render runs/robot --episode 0 -o left.webp --field observation/left

    .webp  every pixel is exact; browsers play it
    .gif   not exact: colours are rounded. At most 50 frames a second.
    .mp4   small, for slides and messengers; no visible loss, but not exact.
           Needs PyAV: pip install 'stepwell\[video]'
    .png   a film strip of evenly spaced frames, with the first and the last

    A clip shows each row once, the last one is the final observation. Several
    pictures in a row, such as a stack, are side by side. A .webp of more than
    512 MiB of pixels, or a .gif of 128 MiB, is refused: write an .mp4. The ids of
    episodes: stepwell view.
    """
    from ...buffers.view.render import frames_status
    from ...buffers.view.render import render as render_episode

    with output.line() as line:
        report = render_episode(
            folder,
            _parse_episode(episode),
            out,
            # Each `or` is for the types: of a text that is given, no number is None.
            rows=_parse_rows(rows),
            fps=real_number("--fps", fps),
            scale=count_in("--scale", scale) or 1,
            field=field,
            frames=count_in("--frames", frames) or 1,
            overwrite=overwrite,
            progress=line.reporter(frames_status()),
        )
    what = "clip" if report.fps is not None else "film strip"
    parts = [
        Part(printable(f"{report.path}: {what} of {plural(len(report.rows), 'row')}")),
        Part(f"episode {report.episode}"),
        Part(f"{report.height} x {report.width}"),
        Part(format_bytes(report.nbytes)),
    ]
    if report.fps is not None:
        seconds = len(report.rows) / report.fps
        parts[3:3] = [Part(f"{report.fps:.4g} fps"), Part(f"{seconds:.1f} s")]
    if report.path.suffix.lower() == ".gif":
        parts.append(Part("colours rounded, .webp is exact"))
    others = printable(", ".join(report.other_fields))
    shown = [Part(printable(report.field))]
    shown += [Part(f"others with --field: {others}")] if others else []
    output.show({**report.to_json(), "store": str(folder)}, parts, shown)


def _parse_rows(text: str | None) -> tuple[int | None, int | None] | None:
    if text is None:
        return None
    match = _ROWS.fullmatch(text)
    if match is None:
        raise ValueError(f"--rows: expected rows such as 100:400, got {text!r}; correct it")
    begin, stop = (int(part) if part else None for part in match.groups())
    return begin, stop
