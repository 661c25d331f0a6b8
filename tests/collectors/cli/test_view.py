"""`stepwell view` as a process: its address, its end, its refusals."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.server import ServerState

from stepwell.buffers.view.server import serving
from stepwell.collectors.cli import view as command
from support.command_line import CommandLine
from support.served import Played, write_store

SECONDS = 60.0  # on a busy machine
# Ctrl-C works in a process that a shell has started in the background, too.
STEPWELL = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
STEPWELL += "from stepwell.collectors.cli import main; sys.exit(main())"


class Process:
    """A viewer in a process of its own."""

    def __init__(self, folder: Path, arguments: Sequence[str | Path]) -> None:
        self._log = folder / "said"
        environment = {key: value for key, value in os.environ.items() if "DISPLAY" not in key}
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", STEPWELL, "view", *map(str, arguments)],
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        stop = time.monotonic() + SECONDS
        while not (found := re.search(r"http://\S+\n", self.said)):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < stop
            time.sleep(0.02)
        self.url = urlsplit(found[0].strip())
        self.cookie = ""

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def token(self) -> str:
        return self.url.query.removeprefix("token=")

    @contextmanager
    def asked(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The reply to a request, while its connection is open."""
        connection = http.client.HTTPConnection("127.0.0.1", self.url.port or 0, timeout=SECONDS)
        connection.request("GET", path, headers={"Cookie": self.cookie, **(headers or {})})
        with closing(connection), connection.getresponse() as reply:
            yield reply

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        with self.asked(path, headers) as reply:
            return reply.status, reply.read()

    def log_in(self) -> None:
        with self.asked(f"/?{self.url.query}") as reply:
            assert (reply.status, reply.getheader("Location")) == (303, "/")
            self.cookie = (reply.getheader("Set-Cookie") or "").partition(";")[0]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts viewers, and ends them at the end of the test."""
    processes: list[Process] = []

    def start(*arguments: str | Path) -> Process:
        processes.append(Process(tmp_path, arguments))
        return processes[-1]

    yield start
    for each in processes:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", [Played([0.0, *[1.0] * 50])] * 3)


def test_it_serves_until_ctrl_c(started: Any, store: Path, tmp_path: Path) -> None:
    viewer: Process = started(store)
    assert viewer.get("/api/stores")[0] == 403
    viewer.log_in()
    assert viewer.get("/")[0] == viewer.get("/frames/0/0/0/0.webp")[0] == 200
    assert str(tmp_path / "exports").encode() in viewer.get("/api/stores")[1]
    with viewer.asked("/events") as events:
        assert re.match(rb'data: {"version": [0-9]+}\n', events.readline())
        # The stream is open, and ends with the server.
        assert viewer.end(signal.SIGINT) == 130
        assert events.read().strip() == b""
    assert viewer.said.splitlines()[1:] == ["stepwell: interrupted"]
    assert not (tmp_path / "exports").exists()


@pytest.mark.proof
def test_the_token_is_printed_once_and_logged_never(started: Any, store: Path) -> None:
    viewer: Process = started(store)
    viewer.log_in()
    for path in (f"/?token={viewer.token}x", f"/nothing?token={viewer.token}", "/api/nothing"):
        viewer.get(path)
    with socket.create_connection(("127.0.0.1", viewer.url.port or 0), SECONDS) as connection:
        connection.sendall(f"GARBAGE {viewer.token}\r\n\r\n".encode())
        assert b" 400 " in connection.recv(1000)
    viewer.end(signal.SIGINT)
    assert viewer.said.count(viewer.token) == 1


@pytest.mark.proof
def test_connections_that_say_nothing_are_closed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slowloris: a connection must complete a request in time, whatever it sends meanwhile."""
    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 0.1)

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
        config = uvicorn.Config(answer, log_config=None, http=serving._Protocol)
        config.load()
        state = ServerState()
        protocol = serving._Protocol(config, state, {}, asyncio.get_running_loop())
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
def test_a_server_for_others_warns_and_accepts_its_names(started: Any, store: Path) -> None:
    viewer: Process = started(store, "--host", "0.0.0.0")
    assert "not encrypted" in viewer.said
    assert viewer.get("/api/stores")[0] == 403
    viewer.log_in()
    assert b'"exports":null' in viewer.get("/api/stores")[1]
    assert viewer.get("/api/stores", Host=socket.gethostname())[0] == 200
    assert viewer.get("/api/stores", Host="10.1.2.3")[0] == 200
    assert viewer.get("/api/stores", Host="evil.example")[0] == 403


def refusal(stepwell: CommandLine, arguments: str) -> str:
    done = stepwell(f"view {arguments}")
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    return line


def test_what_cannot_be_served_is_one_sentence(stepwell: CommandLine, store: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"--port {port}" in refusal(stepwell, f"{store} --port {port}")
    assert "'no.such.host.invalid'" in refusal(stepwell, f"{store} --host no.such.host.invalid")
    assert "192.0.2.1" in refusal(stepwell, f"{store} --host 192.0.2.1")
    for port in ("65536", "-1", "x", "1.5"):
        assert port in refusal(stepwell, f"{store} --port={port}")
    assert "--exports" in refusal(stepwell, f"{store} --exports {store}/new")
    assert "no/such/folder" in refusal(stepwell, f"{store} no/such/folder")
    assert "manifest.json" in refusal(stepwell, f"{store}/manifest.json")
    assert "33" in refusal(stepwell, " ".join([str(store)] * 33))


def test_without_the_extra_there_is_the_command_that_installs_it(
    stepwell: CommandLine, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.startswith(("stepwell.buffers.view.server", "uvicorn", "starlette")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'stepwell[view]'" in refusal(stepwell, str(store))


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
    monkeypatch.setattr(serving, "serve", lambda app, listening, tell: tell())
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
