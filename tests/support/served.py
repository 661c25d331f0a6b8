"""The viewer's app, asked without a network: exactly the bytes that a test wants to send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from stepwell.buffers import Chunk, DiskStorage, End, Field, Spec
from stepwell.buffers.view.server.app import App
from stepwell.buffers.view.server.export import Exports
from stepwell.buffers.view.server.guard import Access
from stepwell.buffers.view.server.stores import Stores
from support.crash.disk_faults import NoSyncFiles

HOST = "127.0.0.1:8000"
SPEC = Spec(
    (
        Field("observation", "uint8", (16, 24), "zstd"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        Field("extra/value", "float32", (2,), "raw"),
    ),
    observation="observation",
    action="action",
)


@dataclass
class Played:
    """One stored episode: rewards of its rows, and the rest."""

    rewards: Sequence[float]
    end: End = End.TERMINATED
    metadata: Mapping[str, object] = field(default_factory=dict)


def rows_of(episode: int, rewards: Sequence[float]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(episode)
    count = len(rewards)
    return {
        "observation": rng.integers(0, 256, (count, 16, 24), np.uint8),
        "action": rng.integers(0, 4, count),
        "reward": np.array(rewards, np.float64),
        "extra/value": rng.random((count, 2), np.float32),
    }


def write_store(path: Path, episodes: Iterable[Played]) -> Path:
    with DiskStorage.create(path, SPEC, files=NoSyncFiles()) as storage:
        for number, played in enumerate(episodes):
            rows = rows_of(number, played.rewards)
            chunk = Chunk(number, number % 3, 0, played.end, rows, dict(played.metadata))
            storage.add(chunk.split(7))
    return path


@dataclass
class Reply:
    """The answer of the app."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Viewer:
    """The app with its token, without a server; `access` is another one than that of loopback."""

    def __init__(
        self, *paths: Path, exports: Path | None = None, access: Access | None = None
    ) -> None:
        self.access = access or Access()
        self.bugs: list[Exception] = []
        self.stores = Stores(paths, self.bugs.append)
        self.exports = Exports(exports, self.bugs.append)
        self.app = App(self.stores, self.access, self.exports, self.bugs.append)

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *error: object) -> None:
        self.app.close()
        self.stores.close()
        assert self.bugs == []

    @property
    def cookie(self) -> str:
        return f"{self.access.cookie}={self.access.token}"

    def ask(
        self,
        target: str,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        host: str | None = HOST,
        cookie: str | None = "",
    ) -> Reply:
        """Send a request as uvicorn does, with the cookie unless another, or None, is given."""
        path, _, query = target.partition("?")
        sent = [] if host is None else [("host", host)]
        if cookie is not None:
            sent.append(("cookie", cookie or self.cookie))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("ascii", "replace"),
            "query_string": query.encode("ascii", "replace"),
            "root_path": "",
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in [*sent, *headers]],
            "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        return asyncio.run(self._run(scope, body))

    async def _run(self, scope: dict[str, Any], body: bytes) -> Reply:
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        reply = Reply(0, [], b"")

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = [(k.decode(), v.decode("latin-1")) for k, v in message["headers"]]
            else:
                reply.body += bytes(message.get("body", b""))

        await self.app.asgi(scope, receive, send)
        return reply

    def get(self, target: str) -> Any:
        """The JSON of an answer that is no refusal."""
        reply = self.ask(target)
        assert reply.status == 200, reply.body
        return reply.json
