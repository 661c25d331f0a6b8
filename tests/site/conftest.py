"""The documentation site, built once for all tests of a process."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.browser_fixtures import chromium, look, watch
from support.source_tree import CHECKOUT

__all__ = ["chromium", "look", "site", "url", "watch"]

NEEDED = ("sphinx", "furo", "myst_nb", "sphinx_copybutton")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; a warning is an error."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'stepwell[docs]'")
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html"),
            *("-d", str(folder / "doctrees"), str(CHECKOUT / "docs"), str(folder / "html")),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return folder / "html"


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files, and writes no line about each."""

    def do_GET(self) -> None:
        """Send a file; a browser asks for an icon that the site does not have."""
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            with contextlib.suppress(ConnectionError):  # a browser that went on to another page
                super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@pytest.fixture(scope="session")
def url(site: Path) -> Iterator[str]:
    """The address of the site on a server of this process: a browser reads more than from a disk.

    From a disk, axe cannot read style sheets, and the search shows no text around what it finds.
    """
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
