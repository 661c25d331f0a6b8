"""Places to upload to: a folder, and a server with the interface of S3."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server with one bucket, ``bucket``."""
    pytest.importorskip("obstore")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    request = urllib.request.Request(f"{address}/bucket", method="PUT")
    urllib.request.urlopen(request).close()
    yield address
    server.stop()


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A URL of its own on the server, for which the environment has what is needed."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://bucket/{abs(hash(request.node.nodeid)):x}"


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL below which nothing is."""
    if request.param == "file":
        pytest.importorskip("obstore")
        return f"file://{tmp_path}/objects"
    found: str = request.getfixturevalue("s3_url")
    return found
