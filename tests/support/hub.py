"""A local stand-in for the Hugging Face Hub: the endpoints that huggingface_hub calls.

It keeps repositories in RAM, and files the way the Hub does: small ones in git, others by their
SHA-256 in a store of large files, which answers at addresses of its own. `Faults` say what goes
wrong. Sources: the calls in huggingface_hub 1.5 and 2.4 (hf_api.py, _commit_api.py, lfs.py,
file_download.py).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_test"
LARGE = 4_096
"""Bytes from which a file is a large one; `.bin` files always are."""
PART = 50_000
"""Bytes of a part of a large file that is sent in parts."""


@dataclass
class Repo:
    private: bool
    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    messages: list[str] = field(default_factory=list)

    @classmethod
    def new(cls, private: bool = False) -> Repo:
        repo = cls(private, {}, {})
        repo.commit("main", {".gitattributes": b"*.bin filter=lfs\n"}, "initial")
        return repo

    def commit(self, branch: str, files: Mapping[str, bytes], message: str) -> str:
        text = repr((len(self.commits), sorted(files), message))
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = dict(files)
        self.branches[branch] = oid
        self.messages.append(message)
        return oid

    def oid(self, revision: str) -> str | None:
        found = self.branches.get(revision, revision)
        return found if found in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        oid = self.oid(revision)
        assert oid is not None
        return self.commits[oid]


@dataclass
class Faults:
    """What goes wrong, until it is changed."""

    # Number of uploads after which the connection is closed in the next ones.
    cut_uploads: int | None = None
    cut_downloads: int | None = None  # the same for bodies of files: half of one is sent
    # Downloads of a path that get one wrong bit each.
    flips: dict[str, int] = field(default_factory=dict)
    at_cut: Callable[[], None] = lambda: None  # called before a connection is closed
    endless: str | None = None  # a path whose body does not end
    listing: Callable[[list[dict[str, Any]]], list[Any]] = list  # changes the entries of a listing
    before_commit: Callable[[], None] = lambda: None  # called before each commit


class Hub:
    """The state of the stand-in, and what was asked of it."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.faults = Faults()
        self.asked: list[str] = []
        self.uploads: list[str] = []
        self.downloads: list[str] = []
        self.lock = threading.Lock()
        self.url = ""
        self.large_url = ""
        """Of the large files, on a host with another name, which must not get the token."""


def is_large(path: str, data_size: int) -> bool:
    return path.endswith((".bin", ".webp")) or data_size >= LARGE


def blob_of(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry_of(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": blob_of(data)}
    if is_large(path, len(data)):
        sha256 = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 130}
        entry["oid"] = blob_of(sha256.encode())
    return entry


class _Refusal(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any  # the one of this file

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _route(self) -> None:
        hub = self.server.hub
        address = urlsplit(self.path)
        self.query = parse_qs(address.query)
        path = unquote(address.path)
        length = int(self.headers.get("Content-Length") or 0)
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.body = self._chunks()
        else:
            self.body = self.rfile.read(length)
        with hub.lock:
            hub.asked.append(f"{self.command} {path}")
        try:
            for method, pattern, answer in _ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in method:
                    answer(self, **found.groupdict())
                    return
            raise _Refusal(404, "", f"no such endpoint: {self.command} {path}")
        except _Refusal as refusal:
            headers = {"X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            self._send(refusal.status, json.dumps({"error": refusal.message}).encode(), headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = _route

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _check_token(self) -> bool:
        given = self.headers.get("Authorization")
        if given is not None and given != f"Bearer {TOKEN}":
            raise _Refusal(401, "", "Invalid credentials in Authorization header")
        return given is not None

    def _check_may_write(self) -> None:
        if not self._check_token():
            raise _Refusal(401, "", "Invalid username or password.")

    def _repo(self, name: str) -> Repo:
        may_read = self._check_token()
        hub: Hub = self.server.hub
        repo = hub.repos.get(name)
        if repo is None or (repo.private and not may_read):
            raise _Refusal(401 if not may_read else 404, "RepoNotFound", "Repository not found")
        return repo

    def _oid(self, repo: Repo, revision: str) -> str:
        oid = repo.oid(revision)
        if oid is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return oid

    def create(self) -> None:
        self._check_may_write()
        asked = json.loads(self.body)
        assert asked["type"] == "dataset"
        name = f"{asked['organization']}/{asked['name']}"
        hub = self.server.hub
        if name in hub.repos:
            raise _Refusal(409, "", "You already created this dataset repo")
        is_private = asked.get("private", asked.get("visibility") == "private")
        hub.repos[name] = Repo.new(private=bool(is_private))
        self._json({"url": f"{hub.url}/datasets/{name}"})

    def validate(self) -> None:
        import yaml

        content = json.loads(self.body)["content"]
        found = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        try:
            front = yaml.safe_load(found[1]) if found else None
        except yaml.YAMLError as error:
            front = str(error)
        if not isinstance(front, dict):
            self._send(400, json.dumps({"errors": [{"message": f"front: {front}"}]}).encode())
            return
        self._json({"warnings": [], "errors": []})

    def info(self, name: str, revision: str = "main") -> None:
        repo = self._repo(name)
        self._json({"id": name, "sha": self._oid(repo, revision), "private": repo.private})

    def tree(self, name: str, revision: str) -> None:
        repo = self._repo(name)
        assert self.query["recursive"][0].lower() == "true"
        files = repo.files(self._oid(repo, revision))
        folders = {"/".join(path.split("/")[:-1]) for path in files if "/" in path}
        entries: list[dict[str, Any]] = [
            {"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders
        ]
        entries += [entry_of(path, data) for path, data in sorted(files.items())]
        changed = self.server.hub.faults.listing(entries)
        self._json(changed)

    def preupload(self, name: str, revision: str) -> None:
        self._check_may_write()
        repo = self._repo(name)
        files = repo.files(self._oid(repo, revision))
        answer = []
        for asked in json.loads(self.body)["files"]:
            path, size = asked["path"], asked["size"]
            entry = entry_of(path, files[path]) if path in files else None
            oid = entry and (entry["lfs"]["oid"] if "lfs" in entry else entry["oid"])
            mode = "lfs" if is_large(path, size) else "regular"
            answer.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._json({"files": answer})

    def batch(self, name: str) -> None:
        self._check_may_write()
        self._repo(name)
        hub = self.server.hub
        objects = []
        for asked in json.loads(self.body)["objects"]:
            oid, size = asked["oid"], asked["size"]
            found: dict[str, Any] = {"oid": oid, "size": size}
            if oid not in hub.large:
                parts = range(1, -(-size // PART) + 1)
                upload: dict[str, Any] = {"href": f"{hub.large_url}/large/{oid}"}
                if len(parts) > 1:
                    upload["href"] = f"{hub.large_url}/large/{oid}/complete"
                    upload["header"] = {str(n): f"{hub.large_url}/large/{oid}/{n}" for n in parts}
                    upload["header"]["chunk_size"] = str(PART)
                verify = {"href": f"{hub.large_url}/large/{oid}/verify"}
                found["actions"] = {"upload": upload, "verify": verify}
            objects.append(found)
        self._json({"transfer": "basic", "objects": objects})

    def put(self, oid: str, part: str = "") -> None:
        hub = self.server.hub
        with hub.lock:
            if hub.faults.cut_uploads is not None:
                if hub.faults.cut_uploads <= 0:
                    hub.faults.at_cut()
                    self.close_connection = True
                    self.connection.close()
                    return
                hub.faults.cut_uploads -= 1
            hub.uploads.append(oid)
        if part:
            hub.parts.setdefault(oid, {})[int(part)] = self.body
        else:
            self._keep(oid, self.body)
        self._send(200, b"", {"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'})

    def complete(self, oid: str) -> None:
        parts = self.server.hub.parts.pop(oid)
        self._keep(oid, b"".join(parts[number] for number in sorted(parts)))
        self._json({})

    def _keep(self, oid: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != oid:
            raise _Refusal(400, "", "other bytes than their checksum says")
        self.server.hub.large[oid] = data

    def verify(self, oid: str) -> None:
        assert len(self.server.hub.large[oid]) == json.loads(self.body)["size"]
        self._json({})

    def commit(self, name: str, revision: str) -> None:
        self._check_may_write()
        hub = self.server.hub
        hub.faults.before_commit()
        repo = self._repo(name)
        files = dict(repo.files(self._oid(repo, revision)))
        message = ""
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "header":
                    message = value["summary"]
                    if value.get("parentCommit", repo.oid(revision)) != repo.oid(revision):
                        raise _Refusal(412, "", "A commit has happened since.")
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in hub.large:
                        raise _Refusal(400, "", "the large file was not uploaded")
                    files[value["path"]] = hub.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
                case other:
                    raise _Refusal(400, "", f"unknown operation {other}")
        oid = repo.commit(revision, files, message)
        self._json({"commitUrl": f"{hub.url}/datasets/{name}/commit/{oid}", "commitOid": oid})

    def branch(self, name: str, branch: str) -> None:
        self._check_may_write()
        repo = self._repo(name)
        if branch in repo.branches:
            raise _Refusal(409, "", "Reference already exists")
        repo.branches[branch] = repo.branches["main"]
        self._json({})

    def resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._repo(name)
        oid = self._oid(repo, revision)
        data = repo.files(oid).get(path)
        if data is None:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": oid}
        if is_large(path, len(data)):
            sha256 = hashlib.sha256(data).hexdigest()
            headers["X-Linked-Etag"], headers["X-Linked-Size"] = f'"{sha256}"', str(len(data))
            headers["Location"] = f"{self.server.hub.large_url}/cdn/{name}/{oid}/{path}"
            self._send(302, b"", headers)
        else:
            self._body(path, data, {**headers, "ETag": f'"{blob_of(data)}"'})

    def cdn(self, name: str, revision: str, path: str) -> None:
        assert "Authorization" not in self.headers
        self._body(path, self.server.hub.repos[name].files(revision)[path], {})

    def _body(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        hub = self.server.hub
        if self.command == "HEAD":
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            return
        with hub.lock:
            hub.downloads.append(path)
            is_cut = hub.faults.cut_downloads is not None and hub.faults.cut_downloads <= 0
            if hub.faults.cut_downloads is not None:
                hub.faults.cut_downloads -= 1
            if hub.faults.flips.get(path, 0) > 0:
                hub.faults.flips[path] -= 1
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]
        if hub.faults.endless == path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
        if is_cut:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            hub.faults.at_cut()
            self.close_connection = True
            return
        self._send(200, data, headers)


_NAME = r"(?P<name>[^/]+/[^/]+)"
_ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("GET", f"/api/datasets/{_NAME}", _Handler.info),
    ("GET", f"/api/datasets/{_NAME}/revision/(?P<revision>.+)", _Handler.info),
    ("GET", f"/api/datasets/{_NAME}/tree/(?P<revision>[^/]+)", _Handler.tree),
    ("POST", f"/api/datasets/{_NAME}/preupload/(?P<revision>.+)", _Handler.preupload),
    ("POST", f"/datasets/{_NAME}.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", "/large/(?P<oid>[0-9a-f]{64})(/(?P<part>[0-9]+))?", _Handler.put),
    ("POST", "/large/(?P<oid>[0-9a-f]{64})/complete", _Handler.complete),
    ("POST", "/large/(?P<oid>[0-9a-f]{64})/verify", _Handler.verify),
    ("POST", f"/api/datasets/{_NAME}/commit/(?P<revision>.+)", _Handler.commit),
    ("POST", f"/api/datasets/{_NAME}/branch/(?P<branch>.+)", _Handler.branch),
    ("GET HEAD", f"/datasets/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
    ("GET HEAD", f"/cdn/{_NAME}/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.cdn),
]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        hub.url = f"http://127.0.0.1:{self.server_port}"
        hub.large_url = f"http://localhost:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        with suppress(Exception):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def served() -> Iterator[Hub]:
    """A hub at `Hub.url` until the block ends."""
    hub = Hub()
    server = _Server(hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
