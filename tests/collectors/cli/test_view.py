"""`stepwell view` as a process: its address, its end, its refusals."""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import socket
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from stepwell.buffers.view.server import app
from stepwell.collectors.cli import view as command
from support.command_line import CommandLine
from support.served import Played, write_store
from support.viewer import SECONDS, Viewer


class Client:
    """Asks a viewer in a process of its own, and keeps its cookie."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.url = urlsplit(viewer.url)
        self.cookie = ""

    @contextmanager
    def asked(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """The reply to a request, while its connection is open."""
        connection = http.client.HTTPConnection("127.0.0.1", self.url.port or 0, timeout=SECONDS)
        connection.request("GET", path, headers={"Cookie": self.cookie, **headers})
        with closing(connection), connection.getresponse() as reply:
            yield reply

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        with self.asked(path, **headers) as reply:
            return reply.status, reply.read()

    def log_in(self) -> None:
        with self.asked(f"/?{self.url.query}") as reply:
            assert (reply.status, reply.getheader("Location")) == (303, "/")
            self.cookie = (reply.getheader("Set-Cookie") or "").partition(";")[0]


@contextmanager
def started(*arguments: str | Path) -> Iterator[Client]:
    viewer = Viewer((*arguments, "--port", "0"), Path.cwd())
    try:
        yield Client(viewer)
    finally:
        viewer.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", [Played([0.0, *[1.0] * 50])] * 3)


def test_it_serves_until_ctrl_c(store: Path, tmp_path: Path) -> None:
    with started(store) as client:
        assert client.get("/api/stores")[0] == 403
        client.log_in()
        assert client.get("/")[0] == client.get("/frames/0/0/0/0.webp")[0] == 200
        assert str(tmp_path / "exports").encode() in client.get("/api/stores")[1]
        with client.asked("/events") as events:
            assert re.match(rb'data: {"version": [0-9]+}\n', events.readline())
            # The stream is open, and ends with the server.
            assert client.viewer.close(signal.SIGINT) == 130
            assert events.read().strip() == b""
        assert client.viewer.said() == "stepwell: interrupted\n"
    assert not (tmp_path / "exports").exists()


@pytest.mark.proof
def test_the_token_is_never_logged(store: Path) -> None:
    with started(store) as client:
        client.log_in()
        token = client.url.query.removeprefix("token=")
        for path in (f"/?token={token}x", f"/nothing?token={token}", "/api/nothing"):
            client.get(path)
        address = ("127.0.0.1", client.url.port or 0)
        with socket.create_connection(address, SECONDS) as connection:
            connection.sendall(f"GARBAGE {token}\r\n\r\n".encode())
            assert b" 400 " in connection.recv(1000)
        client.viewer.close()
        assert token not in client.viewer.said()


@pytest.mark.proof
def test_connections_that_say_nothing_are_closed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slowloris: a connection must complete a request in time, whatever it sends meanwhile."""
    monkeypatch.setattr(app, "_REQUEST_SECONDS", 0.1)

    class Transport(asyncio.Transport):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

        def write(self, data: Any) -> None:
            pass

        def is_closing(self) -> bool:
            return self.is_closed

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def closed(parts: Sequence[bytes], pause: float) -> list[bool]:
        config = uvicorn.Config(answer, log_config=None, http=app._Protocol)
        config.load()
        state = ServerState()
        protocol = app._Protocol(config, state, {}, asyncio.get_running_loop())
        transport = Transport({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        protocol.connection_made(transport)
        found = []
        for part in parts:
            if part and not transport.is_closed:
                protocol.data_received(part)
            await asyncio.sleep(pause)
            found.append(transport.is_closed)
        protocol.connection_lost(None)
        return found

    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    slow = [b"GET / HTTP/1.1\r\n", *[b"X: y\r\n"] * 30]
    assert asyncio.run(closed([b""] * 20, 0.05))[-1]  # not a byte
    assert asyncio.run(closed(slow, 0.02))[-1]  # a line from time to time
    assert asyncio.run(closed([request, *slow], 0.02))[-1]  # after a request
    assert not asyncio.run(closed([request] * 20, 0.05))[-1]  # a browser
    assert not asyncio.run(closed([request, *[b""] * 10], 0.05))[-1]  # kept alive by uvicorn


@pytest.mark.proof
def test_a_server_for_others_warns_and_accepts_its_names(store: Path) -> None:
    with started(store, "--host", "0.0.0.0") as client:
        assert "not encrypted" in client.viewer.said()
        assert client.get("/api/stores")[0] == 403
        client.log_in()
        assert b'"exports":null' in client.get("/api/stores")[1]
        for host, status in ((socket.gethostname(), 200), ("10.1.2.3", 200), ("evil.example", 403)):
            assert client.get("/api/stores", Host=host)[0] == status


def test_what_cannot_be_served_is_one_sentence(stepwell: CommandLine, store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, parts in (
            (f"--port {port}", f"--port {port}"),
            ("--host no.such.host.invalid", "'no.such.host.invalid'"),
            ("--host 192.0.2.1", "192.0.2.1"),
            *((f"--port={wrong}", wrong) for wrong in ("65536", "-1", "x", "1.5")),
            (f"--exports {store}/new", "--exports"),
            ("no/such/folder", "no/such/folder"),
            (f"{store}/manifest.json", "manifest.json"),
            (" ".join([str(store)] * 32), "33"),
        ):
            stepwell.refused(f"view {store} {options}", parts)


def test_without_the_extra_there_is_the_command_that_installs_it(
    stepwell: CommandLine, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.startswith(("stepwell.buffers.view.server", "uvicorn", "starlette")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    stepwell.refused(f"view {store}", "pip install 'stepwell[view]'")


@pytest.mark.parametrize(
    ("environment", "is_opened"),
    [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True)],
)
def test_a_browser_is_opened_only_where_it_can_be_seen(
    environment: dict[str, str], is_opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert command._has_display() == is_opened


def test_the_browser_gets_a_code_instead_of_the_token(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(app, "serve", lambda served, listening, tell: tell())
    assert command.view.__name__ == "view"
    command.view([store])
    stop = time.monotonic() + SECONDS
    while not opened:
        assert time.monotonic() < stop
    printed = capsys.readouterr().out.strip()
    token = printed.partition("?token=")[2]
    assert len(token) >= 43
    assert token not in opened[0]
    assert "?launch=" in opened[0]
