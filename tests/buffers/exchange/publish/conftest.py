"""A stand-in for the Hub, to which huggingface_hub is directed; a folder and a server for URLs."""

from __future__ import annotations

import importlib
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hub import TOKEN, Hub, served


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    constants: Any = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_UPDATE_CHECK", "1")
    for name, value in (
        ("HF_HUB_DISABLE_XET", True),  # the stand-in keeps large files as git LFS does
        ("HF_HUB_DISABLE_TELEMETRY", True),
        ("HF_HUB_CACHE", str(tmp_path / "cache")),
        ("AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json")),
    ):
        monkeypatch.setattr(constants, name, value, raising=False)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.002)))  # retries
    with served() as standing_in:
        monkeypatch.setenv("HF_ENDPOINT", standing_in.url)
        yield standing_in


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The environment of a command that talks to the stand-in."""
    home = str(tmp_path / "home")
    return {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HOME": home, "HF_TOKEN": TOKEN}


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
