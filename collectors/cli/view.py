"""`stepwell view`: stores in a browser."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ...buffers.storage.disk.folder import folder_path
from ...buffers.storage.disk.publish import is_inside
from .errors import exit_on_error, show_error
from .options import Debug, whole_number
from .output import print_lines

__all__ = ["view"]

_LAST_PORT = 65_535
_MOST_STORES = 32
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
    stepwell view runs/a runs/b                compare stores
    stepwell view runs/pong --port 8000        for a tunnel: ssh -L 8000:localhost:8000

    The address holds a token, which nobody else should see. Stores that are being
    written grow on the page. Ctrl-C ends it. Needs: pip install 'stepwell\[view]'
    """
    with exit_on_error(debug):
        try:
            from ...buffers.view.server.app import App
            from ...buffers.view.server.serving import listen, serve
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn", "h11", "anyio"):
                raise
            raise ImportError(
                "stepwell view needs Starlette and uvicorn: pip install 'stepwell[view]'"
            ) from None
        from ...buffers.view.server.export import Exports
        from ...buffers.view.server.guard import Access
        from ...buffers.view.server.stores import Stores

        _check_folders(folders)
        number = whole_number("--port", port, 0) or 0
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
                print_lines([f"{base}?token={access.token}"])
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
    """True if a browser can be shown."""
    if sys.platform == "darwin":
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
