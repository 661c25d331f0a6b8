"""The viewer's server: the page, what it asks for about the stores, and uvicorn under limits."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ...base.errors import StepwellError
from .answers import Answers, Missing, json_bytes
from .export import Clips, Exports
from .guard import Access, Guard
from .query import FILTER_WORDS, BadRequest, QueryParameters, whole
from .stores import Stores

_PAGE = Path(__file__).parents[1] / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_EXPORTS = "/api/exports"
_EVENTS = "text/event-stream"
_CLIPS = {"mp4": "video/mp4", "gif": "image/gif", "webp": "image/webp", "png": "image/png"}
_READERS = 4  # threads that read stores
_MOST_STREAMS = 32
_HEARTBEAT_SECONDS, _LOOK_SECONDS = 15.0, 1.0
_MOST_BODY, _BODY_SECONDS = 1 << 14, 10.0
_MOST_NUMBER = 10**15
_FOR_EVER = "private, max-age=31536000, immutable"
_COMPRESSED = [Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)]
ResultT = TypeVar("ResultT")
_Endpoint = Callable[[Request], Awaitable[Response]]
# Of errors that a user can correct, and the first kind that fits.
_STATUS = {Missing: 404, BadRequest: 400, StepwellError: 409, OSError: 409, MemoryError: 413}


class App:
    """The server's app, for any ASGI server; closing the stores is left to the caller."""

    def __init__(
        self,
        stores: Stores,
        access: Access,
        exports: Exports,
        on_bug: Callable[[Exception], None],
    ) -> None:
        self._stores = stores
        self._exports = exports
        self._answers = Answers(stores)
        self._pool = ThreadPoolExecutor(_READERS, "stepwell-view-reader")
        self._on_bug = on_bug
        self._clips = Clips()
        self._streams = 0
        self._is_closed = False
        self._is_closing = asyncio.Event()
        self._files = {path.name: path for path in _PAGE.iterdir() if path.suffix in _KINDS}
        answers, asked = self._answers, self._asked
        chosen = ("store", *FILTER_WORDS)
        shown = ("tag", "rows", "first_row")
        routes = {
            "/": self._file,
            "/page/{name}": self._file,
            "/api/stores": self._all_stores,
            "/api/episodes": asked(answers.episodes, "sort", "order", "start", "count", *chosen),
            "/api/episodes/{store}/{id}": asked(answers.episode, "first_row"),
            "/api/histograms": asked(answers.histograms, *chosen),
            "/api/timeline": asked(answers.timeline, *chosen),
            "/api/curves/{store}/{id}": asked(
                answers.curves, "name", "begin", "stop", "points", "first_row"
            ),
            "/api/values/{store}/{id}/{row}": asked(answers.values, "first_row"),
            "/api/ids": asked(answers.ids, *chosen, respond=_list_of_ids),
            "/frames/{store}/{id}/{field}/{block}.webp": asked(
                answers.sprite, *shown, respond=_picture
            ),
            "/strip/{store}/{id}.webp": asked(answers.strip, *shown, respond=_picture),
            "/clip/{store}/{id}.{kind}": self._clip,
            "/events": self._events,
            _EXPORTS: self._export,
        }
        app = Starlette(
            routes=[
                Route(
                    path,
                    endpoint,
                    methods=["GET", "POST"] if path == _EXPORTS else None,
                    middleware=_COMPRESSED
                    if path == "/" or path.startswith(("/page/", "/api/"))
                    else None,
                )
                for path, endpoint in routes.items()
            ],
            exception_handlers={
                HTTPException: _refused,
                Exception: self._bug,
                **dict.fromkeys(_STATUS, _to_correct),
            },
        )
        app.router.redirect_slashes = False
        self.asgi: ASGIApp = Guard(app, access, _EXPORTS)  # the app, behind its guard

    def close_streams(self) -> None:
        """End the streams of events, so that the server can end; call it in the event loop."""
        self._is_closing.set()

    def close(self) -> None:
        """Start no further reads, and end the exports."""
        self._is_closed = True
        self._clips.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._exports.close()

    async def _read(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Call a function in one of a few threads."""
        if self._is_closed:
            raise HTTPException(503, "the server ends: start stepwell view again")

        def call() -> ResultT:
            with self._stores.answering():
                return function(*arguments)

        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _asked(
        self,
        function: Callable[..., Any],  # of the numbers in the address, and of its words
        *known: str,  # names of these words
        respond: Callable[[Any], Response] | None = None,  # to what it returns; None: as JSON
    ) -> _Endpoint:
        """An endpoint that answers one question about the stores."""

        async def answer(request: Request) -> Response:
            words = _words(request, *known)
            return (respond or _json)(await self._read(function, *_numbers(request), words))

        return answer

    async def _file(self, request: Request) -> Response:
        path = self._files.get(request.path_params.get("name", "index.html"))
        if path is None:
            raise HTTPException(404)
        data = path.read_bytes()
        tag = f'W/"{hashlib.sha256(data).hexdigest()[:16]}"'
        headers = {"cache-control": "no-cache", "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=_KINDS[path.suffix])

    async def _all_stores(self, request: Request) -> Response:
        _words(request)
        version = self._stores.version
        found = await self._read(self._answers.stores)
        folder = self._exports.folder
        exports = None if folder is None else str(folder)
        return _json({"version": version, "stores": found, "exports": exports})

    async def _clip(self, request: Request) -> Response:
        words = _words(request, "field", "begin", "stop", "fps", "scale", "first_row")
        numbers = _numbers(request, "store", "id")
        kind = request.path_params["kind"]
        if kind not in _CLIPS:
            raise HTTPException(404)
        name, make = await self._read(self._answers.clip, *numbers, words)
        if request.method == "HEAD":
            return Response(media_type=_CLIPS[kind])
        is_gone = threading.Event()
        work = asyncio.wrap_future(self._clips.begin(make, kind, is_gone))
        while not work.done():
            await asyncio.wait({work}, timeout=_LOOK_SECONDS)
            if await request.is_disconnected():
                is_gone.set()
        path = work.result()
        return FileResponse(
            path,
            media_type=_CLIPS[kind],
            filename=f"{name}.{kind}",
            headers={"cache-control": "no-store"},
            background=BackgroundTask(path.unlink, missing_ok=True),
        )

    async def _events(self, request: Request) -> Response:
        if self._streams >= _MOST_STREAMS:
            return _error(503, f"{_MOST_STREAMS} pages are open already: close one of them")
        if request.method == "HEAD":
            return Response(media_type=_EVENTS)
        return StreamingResponse(self._changes(), media_type=_EVENTS)

    async def _changes(self) -> AsyncGenerator[str]:
        """The version whenever it changes, at most once a second, and heartbeats."""
        self._streams += 1
        shown, silent = -1, 0.0
        try:
            while not self._is_closing.is_set():
                if shown != self._stores.version:
                    shown, silent = self._stores.version, 0.0
                    yield f'data: {{"version": {shown}}}\n\n'
                elif silent >= _HEARTBEAT_SECONDS:
                    silent = 0.0
                    yield ": still here\n\n"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_closing.wait(), _LOOK_SECONDS)
                silent += _LOOK_SECONDS
        finally:
            self._streams -= 1

    async def _bug(self, request: Request, error: Exception) -> Response:
        # It is none that a client takes nothing for a minute: the guard gives it up.
        if not isinstance(error.__cause__ or error, TimeoutError):
            self._on_bug(error)
        return _error(500, "a bug in stepwell view: its terminal shows the error")

    async def _export(self, request: Request) -> Response:
        if request.method != "POST":
            return _json({"exports": self._exports.jobs()})
        wish = await _body(request)
        return _json(await self._read(self._answers.export, wish, self._exports), 202)


def _json(value: object, status: int = 200) -> Response:
    return Response(json_bytes(value), status, media_type="application/json")


def _picture(data: bytes) -> Response:
    return Response(data, media_type="image/webp", headers={"cache-control": _FOR_EVER})


def _list_of_ids(text: str) -> Response:
    return Response(
        text.encode("utf-8", "backslashreplace"),
        media_type="text/plain; charset=utf-8",
        headers={"content-disposition": 'attachment; filename="episodes.txt"'},
    )


def _error(status: int, sentence: str) -> Response:
    return _json({"error": " ".join(sentence.split())[:1000]}, status)


async def _to_correct(request: Request, error: Exception) -> Response:
    """A sentence for what a user can correct."""
    status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
    sentence = getattr(error, "strerror", None) or str(error)
    return _error(status, sentence or "not enough memory is free: ask for fewer rows")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    is_ending = error.status_code == 503
    return _error(
        error.status_code, error.detail if is_ending else "there is nothing at this address"
    )


def _words(request: Request, *known: str) -> QueryParameters:
    return QueryParameters.of_query(request.scope["query_string"], known)


def _numbers(request: Request, *names: str) -> list[int]:
    """The numbers in the address, all of them where no names are given."""
    found = request.path_params
    try:
        return [whole(name, found[name], 0, _MOST_NUMBER) for name in names or found]
    except ValueError:
        raise HTTPException(404) from None


async def _body(request: Request) -> object:
    """The JSON in the body of a request, of a bounded size and within a bounded time."""
    data = b""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > _MOST_BODY:
                    raise BadRequest(f"expected at most {_MOST_BODY:,} bytes of JSON, got more")
        return cast("object", json.loads(data))
    except TimeoutError:
        raise BadRequest("the request took too long to arrive: send it again") from None
    except BadRequest:
        raise
    except (ValueError, RecursionError):
        raise BadRequest("expected JSON, got something else") from None


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
        # Not one request came since the last look, nor does uvicorn's own clock run.
        if is_idle and cycle is self._seen and self.timeout_keep_alive_task is None:
            self.transport.close()
            return
        self._seen = cycle
        self._watch()
