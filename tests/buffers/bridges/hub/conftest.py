"""A stand-in for the Hub, to which huggingface_hub is directed."""

from __future__ import annotations

import importlib
import time
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
