"""Runs the viewer's app with uvicorn, under limits, until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from .app import App

_MOST_CONNECTIONS = 100
_MOST_HEADER_BYTES = 1 << 15
_REQUEST_SECONDS = 10.0
_STOP_SECONDS = 2


def serve(app: App, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    """Answer requests on a bound socket until SIGINT or SIGTERM, raised again at the end."""
    # The app is closed before that.
    config = uvicorn.Config(
        app.asgi,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # the app shows bugs itself
        access_log=False,  # addresses hold the token
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    _Server(config, app, on_ready).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ValueError(
            f"--host: expected an address of this machine such as 127.0.0.1, got {host!r}; give "
            f"another"
        ) from None
    # With the protocol, or asyncio does not turn off Nagle's algorithm: 40 ms an answer.
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(100)
    except OSError as error:
        listening.close()
        raise ValueError(
            f"--host {host} --port {port}: expected an address of this machine and a free port, "
            f"got: {error.strerror}; give another (--port 0 takes a free one)"
        ) from None
    return listening


class _Server(uvicorn.Server):
    """Ends the app's streams and threads before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, app: App, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; a signal that ended the server acts only after this."""
        self._app.close_streams()
        await asyncio.to_thread(self._app.close)
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """Closes connections that do not complete a request in time."""

    _seen: RequestResponseCycle | None = None
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching it."""
        if self._clock is not None:
            self._clock.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._clock = self.loop.call_later(_REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        cycle = self.cycle
        is_idle = cycle is None or cycle.response_complete
        # Not one request came since the last look.
        if is_idle and cycle is self._seen and not self._is_kept_alive:
            self.transport.close()
            return
        self._seen = cycle
        self._watch()

    @property
    def _is_kept_alive(self) -> bool:
        """Uvicorn's own clock runs: nothing has come since the last answer."""
        return self.timeout_keep_alive_task is not None
