"""The guard in front of the viewer's server: it answers only the user who started it.

A page of any other site runs in the same browser, and can send requests to this server. So each
request must name this machine as its ``Host`` (a name of the attacker's own, which leads here, is
refused), must not come from a page of another origin, and must carry the random token that only the
user has seen. See `SECURITY.md`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Iterable
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    b"content-security-policy": _CONTENT_POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}
_NOT_STORED = b"no-store"
_LOOPBACK_NAME = "localhost"
_TOKEN_BYTES = 32
_MOST_TOKEN_LENGTH = 100
_MOST_PATH_LENGTH, _MOST_QUERY_LENGTH = 1_000, 8_000
_LAUNCH_SECONDS = 60.0
_SEND_SECONDS = 60.0
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_READING = ("GET", "HEAD")
_ASK_AGAIN = "open the address that stepwell has printed, which ends with the token"


class Access:
    """The secrets and names that open the server, besides the names of this machine's loopback."""

    # With `any_address` every IP address is accepted as a name, too: the server listens on all of
    # them. An address cannot be made to lead elsewhere, as a name can.

    def __init__(self, hosts: Iterable[str] = (), *, any_address: bool = False) -> None:
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        # Cookies are shared by all ports of a host: each server needs a name of its own.
        self.cookie = f"stepwell-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"
        self._hosts = {host.lower() for host in hosts}
        self._any_address = any_address
        self._launch = ""
        self._launch_until = 0.0

    def launch_code(self) -> str:
        """A code that opens the server in place of the token: once, and within a minute."""
        # A browser is started with it, as other users can see the command lines of processes.
        self._launch = secrets.token_urlsafe(_TOKEN_BYTES)
        self._launch_until = time.monotonic() + _LAUNCH_SECONDS
        return self._launch

    def is_token(self, text: str) -> bool:
        """True for the token; the time that this takes does not depend on the characters."""
        return _are_equal(text, self.token)

    def takes_code(self, text: str) -> bool:
        """True for the code of `launch_code`, which is void afterwards."""
        if not self._launch or not _are_equal(text, self._launch):
            return False
        self._launch = ""
        return time.monotonic() < self._launch_until

    def is_host(self, text: str) -> bool:
        """True if the value of a header ``Host`` names this machine."""
        match = _HOST.fullmatch(text.lower())
        if match is None:
            return False
        name = match[1].strip("[]")
        if name == _LOOPBACK_NAME or name in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback


class Guard:
    """Lets the requests of the server's user through to an app, and refuses all others."""

    # It adds the headers of security to every response, and only `writing_path` accepts POST.

    def __init__(self, app: ASGIApp, access: Access, writing_path: str) -> None:
        self._app = app
        self._access = access
        self._writing_path = writing_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see the ASGI specification."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        safe_send = _with_headers(send)
        query = bytes(scope["query_string"])
        refusal = self._refusal(scope, query)
        if refusal is not None:
            await _answer(safe_send, scope, *refusal)
            return
        if scope["path"] == "/" and query:
            await self._let_in(scope, safe_send, query)
        elif not self._has_cookie(scope):
            await _answer(safe_send, scope, 403, f"the token is missing or wrong: {_ASK_AGAIN}")
        else:
            await self._app(scope, receive, safe_send)

    def _refusal(self, scope: Scope, query: bytes) -> tuple[int, str] | None:
        """Status and sentence for a request that is refused whatever its token is."""
        if len(scope["path"]) > _MOST_PATH_LENGTH or len(query) > _MOST_QUERY_LENGTH:
            return 414, f"expected an address of at most {_MOST_QUERY_LENGTH:,} characters"
        method = scope["method"]
        is_writing = method == "POST" and scope["path"] == self._writing_path
        if method not in _READING and not is_writing:
            return 405, f"expected GET or HEAD, got {method[:20]!r}"
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._access.is_host(hosts[0]):
            return 403, (
                "the request names another host, expected this machine: open the address that "
                "stepwell has printed, or start stepwell view with --host NAME"
            )
        sites = _values(scope, b"sec-fetch-site")
        if is_writing:
            return _write_refusal(scope, hosts[0], sites)
        is_entry = scope["path"] == "/" and bool(query)
        if not is_entry and any(site not in ("same-origin", "none") for site in sites):
            return 403, "the request comes from a page of another site: open the address directly"
        return None

    async def _let_in(self, scope: Scope, send: Send, query: bytes) -> None:
        """Turn a token in the address into a cookie, and leave the address without it."""
        given = parse_qsl(query.decode("ascii", "replace"), max_num_fields=None)
        is_welcome = len(given) == 1 and (
            (given[0][0] == "token" and self._access.is_token(given[0][1]))
            or (given[0][0] == "launch" and self._access.takes_code(given[0][1]))
        )
        if not is_welcome:
            await _answer(send, scope, 403, f"the token is missing or wrong: {_ASK_AGAIN}")
            return
        cookie = f"{self._access.cookie}={self._access.token}; Path=/; HttpOnly; SameSite=Strict"
        headers = {b"set-cookie": cookie.encode()}
        if all(site in ("same-origin", "none") for site in _values(scope, b"sec-fetch-site")):
            await _answer(send, scope, 303, "", {**headers, b"location": b"/"})
            return
        # From a link on a page of another site, such as a terminal in a browser: after a redirect
        # the browser would hold back a strict cookie. A page of our own may lead on.
        page = (
            b'<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>Stepwell</title>'
        )
        await _respond(send, scope, 200, {**headers, b"content-type": b"text/html"}, page)

    def _has_cookie(self, scope: Scope) -> bool:
        pairs = (
            pair.strip().partition("=")
            for line in _values(scope, b"cookie")
            for pair in line.split(";")
        )
        return any(
            name == self._access.cookie and self._access.is_token(value) for name, _, value in pairs
        )


def _write_refusal(scope: Scope, host: str, sites: list[str]) -> tuple[int, str] | None:
    """Status and sentence for a request that may not write."""
    origins = _values(scope, b"origin")
    # A browser sends Sec-Fetch-Site only to an address that it trusts, such as loopback's.
    if any(site != "same-origin" for site in sites) or origins != [f"http://{host}"]:
        return 403, "expected a request of the viewer's own page, got one of another origin"
    kinds = [kind.partition(";")[0].strip().lower() for kind in _values(scope, b"content-type")]
    if kinds != ["application/json"]:
        return 415, "expected JSON, with the content type application/json"
    return None


def _are_equal(text: str, secret: str) -> bool:
    given = text.encode("utf-8", "replace")
    return len(given) <= _MOST_TOKEN_LENGTH and hmac.compare_digest(given, secret.encode())


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _with_headers(send: Send) -> Send:
    """A function that sends with the headers of security, and waits no longer than a minute."""

    async def send_safely(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = [(key.lower(), value) for key, value in message.get("headers", [])]
            names = {key for key, _ in given}
            more = {**_HEADERS, b"cache-control": _NOT_STORED}
            given += [(key, value) for key, value in more.items() if key not in names]
            message = {**message, "headers": given}
        async with asyncio.timeout(_SEND_SECONDS):
            await send(message)

    return send_safely


async def _answer(
    send: Send, scope: Scope, status: int, sentence: str, headers: dict[bytes, bytes] | None = None
) -> None:
    """Answer with an error, which the page and a person can read."""
    body = json.dumps({"error": sentence}).encode() if sentence else b""
    kind = {b"content-type": b"application/json"} if sentence else {}
    allow = {b"allow": b"GET, HEAD"} if status == 405 else {}
    await _respond(send, scope, status, {**kind, **allow, **(headers or {})}, body)


async def _respond(
    send: Send, scope: Scope, status: int, headers: dict[bytes, bytes], body: bytes
) -> None:
    sized = {**headers, b"content-length": str(len(body)).encode()}
    await send({"type": "http.response.start", "status": status, "headers": [*sized.items()]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
