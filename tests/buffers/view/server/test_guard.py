"""Attacks on the viewer's server, one line each, and what they get."""

from __future__ import annotations

import asyncio
import gzip
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")

from stepwell.buffers.rows.episode import End
from stepwell.buffers.view.server import guard
from stepwell.buffers.view.server.guard import Access
from support.served import HOST, Played, Reply, Viewer, write_store

EVIL = {
    "task": "</script><script>alert(1)</script>",
    "control": "a\x00b\x1b[2J\r\nSet-Cookie: x=1\u2028",
    "surrogate": "\ud800",
    "big": 10**40,
    "deep": [[[[[[[[[["bottom"]]]]]]]]]],
    "wide": list(range(5_000)),
    "long": "x" * 100_000,
    "__proto__": {"polluted": True},
    "<b>": 1,
}


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("served")
    store = write_store(folder / "evil", [Played([0, 1, 2], End.TERMINATED, EVIL), Played([0, 1])])
    (folder / "secret.txt").write_text("secret")
    with Viewer(store, exports=folder / "exports") as viewer:
        yield viewer


def refused(reply: Reply, status: int = 403) -> None:
    assert reply.status == status, reply.body
    assert reply.json["error"]
    assert b"evil" not in reply.body.replace(b"evil.example", b"")


HOSTS = [
    *("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", ""),
    *("localhost, evil.example", "localhost:8000x", "[::1", "0.0.0.0", "192.168.0.1"),
    *("1.2.3.4:8000", "2130706433", "localhost."),
]


@pytest.mark.parametrize("host", HOSTS)
def test_another_host_is_refused_even_with_the_token(viewer: Viewer, host: str) -> None:
    refused(viewer.ask("/api/stores", host=host))
    refused(viewer.ask(f"/?token={viewer.access.token}", host=host, cookie=None))


def test_no_host_and_two_hosts_are_refused(viewer: Viewer) -> None:
    refused(viewer.ask("/api/stores", host=None))
    refused(viewer.ask("/api/stores", headers=[("host", "evil.example")]))
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:65535", "127.9.9.9", "[::1]:80"):
        assert viewer.ask("/api/stores", host=host).status == 200


def test_a_server_on_all_addresses_accepts_addresses_and_its_names_alone() -> None:
    access = Access(["Lab", "lab.local"], any_address=True)
    assert all(map(access.is_host, ["10.0.0.7:8000", "[fe80::1]", "lab", "LAB.local:1"]))
    assert not any(map(access.is_host, ["evil.example", "10.0.0.7.evil.example", "lab.evil"]))


@pytest.mark.parametrize(
    "cookie",
    [
        None,
        "{name}=",
        "{name}={token}x",
        "{name}= {short}",
        "{name}=" + "A" * 100_000,
        "{name}x={token}",
        '{name}="{token}"',
        "{name}={token}\x00",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/stores", "/events"])
def test_without_the_token_there_is_nothing(viewer: Viewer, cookie: str | None, path: str) -> None:
    token, name = viewer.access.token, viewer.access.cookie
    if cookie is not None:
        cookie = cookie.format(name=name, token=token, short=token[:-1])
    refused(viewer.ask(path, cookie=cookie))


def test_the_token_in_the_address_becomes_a_strict_cookie(viewer: Viewer) -> None:
    reply = viewer.ask(f"/?token={viewer.access.token}", cookie=None)
    assert (reply.status, reply.header("location")) == (303, "/")
    assert reply.header("set-cookie") == f"{viewer.cookie}; Path=/; HttpOnly; SameSite=Strict"
    assert reply.header("cache-control") == "no-store"
    # The right one counts among others.
    for cookie in (f"a=b; {viewer.cookie}; c=d", f"{viewer.access.cookie}=old; {viewer.cookie}"):
        assert viewer.ask("/api/stores", cookie=cookie).status == 200


@pytest.mark.parametrize(
    "query",
    [
        "token=guess",
        "token={token}&token={token}",
        "token={token}&x=1",
        "token={token}%00",
        "launch={token}",
    ],
)
def test_another_token_in_the_address_is_refused(viewer: Viewer, query: str) -> None:
    reply = viewer.ask(f"/?{query.format(token=viewer.access.token)}", cookie=None)
    refused(reply)
    assert reply.header("set-cookie") is None


def test_a_code_for_the_browser_opens_once_and_not_for_long(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = viewer.access.launch_code()
    assert code != viewer.access.token
    assert viewer.ask(f"/?launch={code}", cookie=None).status == 303
    refused(viewer.ask(f"/?launch={code}", cookie=None))
    monkeypatch.setattr(guard, "_LAUNCH_SECONDS", 0.0)
    late = viewer.access.launch_code()
    refused(viewer.ask(f"/?launch={late}", cookie=None))


def test_tokens_are_compared_in_a_time_that_says_nothing(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[Any, Any]] = []
    compare = hmac.compare_digest

    def note(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", note)
    wrong = "A" * len(viewer.access.token)
    viewer.ask("/api/stores", cookie=f"{viewer.access.cookie}={wrong}")
    assert compared == [(wrong.encode(), viewer.access.token.encode())]
    viewer.ask("/api/stores", cookie=f"{viewer.access.cookie}={'A' * 101}")
    assert len(compared) == 1


@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "", "x", "none, none"])
@pytest.mark.parametrize("path", ["/", "/api/stores", "/events", "/page/app.js"])
def test_requests_of_other_sites_are_refused(viewer: Viewer, site: str, path: str) -> None:
    refused(viewer.ask(path, headers=[("sec-fetch-site", site)]))


def test_a_link_on_another_site_opens_the_page_only_with_the_token(viewer: Viewer) -> None:
    foreign = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]
    reply = viewer.ask(f"/?token={viewer.access.token}", headers=foreign, cookie=None)
    # A redirect would not carry the strict cookie; a page of the server's own does.
    assert reply.status == 200
    assert viewer.access.token not in reply.body.decode()
    assert b"url=/" in reply.body
    assert viewer.cookie in (reply.header("set-cookie") or "")
    refused(viewer.ask("/?token=guess", headers=foreign, cookie=None))


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 99]
)
@pytest.mark.parametrize("path", ["/", "/api/stores", "/api/exports/", "/page/app.js", "*"])
def test_only_reading_is_allowed(viewer: Viewer, method: str, path: str) -> None:
    reply = viewer.ask(path, method)
    refused(reply, 405)
    assert reply.header("allow") == "GET, HEAD"


GOOD = {
    "origin": f"http://{HOST}",
    "sec-fetch-site": "same-origin",
    "content-type": "application/json",
}
BAD_WRITES = [
    ({"origin": None}, 403),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": f"https://{HOST}"}, 403),
    ({"origin": "http://127.0.0.1:8001"}, 403),
    ({"origin": f"http://{HOST}.evil.example"}, 403),
    ({"sec-fetch-site": "none"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"content-type": None}, 415),
    ({"content-type": "text/plain"}, 415),
    ({"content-type": "application/jsonx"}, 415),
]


@pytest.mark.parametrize(("change", "status"), BAD_WRITES)
def test_only_the_page_itself_may_write(
    viewer: Viewer, change: dict[str, str | None], status: int
) -> None:
    headers = [(key, value) for key, value in {**GOOD, **change}.items() if value is not None]
    body = b'{"name": "stolen", "store": 0}'
    refused(viewer.ask("/api/exports", "POST", headers, body), status)
    twice = [*GOOD.items(), ("origin", "http://evil.example")]
    refused(viewer.ask("/api/exports", "POST", twice, body))
    refused(viewer.ask("/api/exports", "POST", [*GOOD.items()], body, cookie=None))
    assert viewer.get("/api/exports") == {"exports": []}


PATHS = [
    "/page/../secret.txt",
    "/page/..%2fsecret.txt",
    "/page/%2e%2e%2f%2e%2e%2fsecret.txt",
    "/page//etc/passwd",
    "/page/%00",
    "/page/index.html%00.js",
    "/page/",
    "/page/INDEX.HTML",
    "/page/%c0%ae%c0%ae%2fsecret.txt",
    "//evil.example/",
    "/api/episodes/0/../../stores",
    "/../../../etc/passwd",
    "/frames/0/0/0/..%2f..%2fsecret.webp",
    "/strip/0/..%2f..%2fsecret.webp",
    "/clip/0/..%2f..%2fsecret.webp",
    "/clip/0/0.exe",
    "http://evil.example/",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaves_the_list_of_files(viewer: Viewer, path: str) -> None:
    reply = viewer.ask(path)
    assert reply.status == 404
    assert reply.header("location") is None
    assert b"secret" not in reply.body
    assert b"root:" not in reply.body


NUMBERS = ["-1", "1.0", "0x1", " 0", "+0", "9" * 16, "9" * 900, "\u0661", "%D9%A1", "1_0", ""]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_in_a_path_is_a_small_whole_number(viewer: Viewer, number: str) -> None:
    for path in (
        f"/api/episodes/{number}/0",
        f"/api/episodes/0/{number}",
        f"/api/values/0/0/{number}",
        f"/frames/0/0/{number}/0.webp",
        f"/frames/0/0/0/{number}.webp",
        f"/strip/0/{number}.webp",
        f"/clip/0/{number}.webp",
    ):
        assert viewer.ask(path).status in (404, 414), path


@pytest.mark.parametrize("number", [n for n in NUMBERS if n] + ["1001"])
def test_a_number_of_a_word_is_within_its_bounds(viewer: Viewer, number: str) -> None:
    refused(viewer.ask(f"/api/episodes?count={number}"), 400)


WORDS = [
    "x=1",
    "sort=id&sort=id",
    "order=up",
    "where=a",
    "top=0",
    "top=1001%25%25",
    "top=5&bottom=5",
    "ended=maybe",
    "include_cut=true",
    "rank=steps",
    "min_return=nan",
    "min_return=5&max_return=1",
    "min_steps=9" + "9" * 30,
    "ids=3-1",
    "ids=1," + "9" * 400,
    "ids=" + "1," * 500 + "1",
    "store=1",
    "store=0.0",
    "where=" + "x" * 3_000,
    "&".join(f"where=k{n}=1" for n in range(17)),
    "&".join(f"store={n}" for n in range(200)),
    "%ff=1",
]


@pytest.mark.parametrize("words", WORDS)
def test_wrong_words_get_one_sentence(viewer: Viewer, words: str) -> None:
    for path in ("/api/episodes", "/api/histograms", "/api/timeline", "/api/ids"):
        reply = viewer.ask(f"{path}?{words}")
        refused(reply, 400)
        assert "\n" not in reply.json["error"]
        assert len(reply.body) < 2_000


def test_a_long_address_is_refused_before_it_is_read(viewer: Viewer) -> None:
    refused(viewer.ask("/api/episodes?where=" + "x" * 9_000), 414)
    refused(viewer.ask("/" + "x" * 2_000), 414)


EVERY = [
    "/",
    "/page/index.html",
    "/nothing",
    "/api/stores",
    "/api/episodes",
    "/api/histograms",
    "/api/timeline",
    "/api/episodes/0/0",
    "/api/curves/0/0?name=reward",
    "/api/values/0/0/0",
    "/api/ids",
    "/api/exports",
    "/frames/0/0/0/0.webp",
    "/strip/0/0.webp",
    "/clip/0/0.webp",
    "/api/episodes?count=x",
]


@pytest.mark.parametrize("path", EVERY)
def test_every_answer_has_the_headers_of_security(viewer: Viewer, path: str) -> None:
    for reply in (viewer.ask(path), viewer.ask(path, cookie=None), viewer.ask(path, "PUT")):
        policy = reply.header("content-security-policy") or ""
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy
        assert reply.header("x-content-type-options") == "nosniff"
        assert reply.header("referrer-policy") == "no-referrer"
        assert reply.header("cross-origin-resource-policy") == "same-origin"
        assert reply.header("cross-origin-opener-policy") == "same-origin"
        assert reply.header("x-frame-options") == "DENY"
        assert reply.header("access-control-allow-origin") is None
        assert reply.header("cache-control")
        assert reply.header("server") is None


def test_hostile_metadata_are_short_plain_text(viewer: Viewer) -> None:
    for path in ("/api/episodes", "/api/episodes/0/0", "/api/stores"):
        reply = viewer.ask(path)
        assert reply.header("content-type") == "application/json"
        assert reply.body.isascii()
        assert not set(b"<\x00\x1b\r\n") & set(reply.body)
        assert len(reply.body) < 50_000
    metadata = viewer.get("/api/episodes/0/0")["metadata"]
    assert metadata["task"] == EVIL["task"]
    assert metadata["big"] == str(10**40)
    assert len(metadata["long"]) < 300


def test_names_of_downloads_are_harmless(tmp_path: Path) -> None:
    name = 'a"; filename="x.exe\r\nSet-Cookie: a=b\u202e'
    with Viewer(write_store(tmp_path / name, [Played([0, 1])])) as viewer:
        reply = viewer.ask("/clip/0/0.webp")
        assert reply.status == 200
        expected = 'attachment; filename="a-filename-x.exe-Set-Cookie-a-b-episode-0.webp"'
        assert reply.header("content-disposition") == expected
        assert reply.header("set-cookie") is None
        assert viewer.get("/api/stores")["stores"][0]["path"] == str(tmp_path / name)


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["host", "cookie", "origin", "sec-fetch-site", "content-type", "range"]),
        st.text(st.characters(max_codepoint=255), max_size=40),
    ),
    max_size=4,
)
PIECES = st.sampled_from(
    [
        *("api", "episodes", "stores", "curves", "values", "histograms", "timeline", "ids"),
        "exports",
        *("frames", "strip", "clip", "page", "0", "1", "-1", "..", "%2e%2e", "0.webp", "0.gif"),
        *("index.html", "\u0661"),
    ]
)
TARGETS = st.builds(
    lambda pieces, query: "/" + "/".join(pieces) + (f"?{query}" if query else ""),
    st.lists(PIECES | st.text(max_size=5), max_size=6),
    st.text(st.sampled_from("abcwherestop=&%12;[]{}"), max_size=30) | st.text(max_size=20),
)
METHODS = st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"]) | st.text("GETPOS", max_size=7)


@given(METHODS, TARGETS, HEADERS, st.binary(max_size=60))
def test_no_request_without_the_token_gets_anything(
    viewer: Viewer, method: str, target: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    reply = viewer.ask(target, method, headers, body, cookie=None)
    assert reply.status in (403, 405, 414, 415)
    assert b"evil" not in reply.body


@given(METHODS, TARGETS, HEADERS, st.binary(max_size=60))
def test_no_request_with_the_token_is_a_bug(
    viewer: Viewer, method: str, target: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    if target.partition("?")[0].rstrip("/") == "/events":
        return  # it does not end
    reply = viewer.ask(target, method, headers, body)
    assert 200 <= reply.status < 500
    assert viewer.bugs == []
    if reply.status >= 400 and method != "HEAD":
        assert list(reply.json) == ["error"]


def test_the_page_is_sent_compressed_to_those_who_read_that_and_once(viewer: Viewer) -> None:
    plain = viewer.ask("/page/app.js")
    packed = viewer.ask("/page/app.js", headers=[("accept-encoding", "br, gzip")])
    assert plain.header("content-encoding") is None
    assert packed.header("content-encoding") == "gzip"
    assert str(packed.header("vary")).lower() == "accept-encoding"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    tag = packed.header("etag")
    assert tag is not None
    assert viewer.ask("/page/app.js", headers=[("if-none-match", tag)]).status == 304


def test_a_request_while_the_server_ends_is_refused_with_a_sentence(viewer: Viewer) -> None:
    viewer.app.close()
    reply = viewer.ask("/api/stores")
    assert (reply.status, reply.json["error"].count("stepwell view")) == (503, 1)


def test_a_client_that_takes_nothing_is_given_up_and_no_bug(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(scope: dict[str, Any], body: bytes) -> Reply:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            await asyncio.sleep(60)

        await viewer.app.asgi(scope, receive, send)
        return Reply(0, [], b"")

    monkeypatch.setattr(guard, "_SEND_SECONDS", 0.01)
    monkeypatch.setattr(viewer, "_run", run)
    with pytest.raises((TimeoutError, RuntimeError)):
        viewer.ask("/api/stores")
    assert viewer.bugs == []
