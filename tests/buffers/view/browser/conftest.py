"""A browser that looks at a running viewer, and fails where the page does what it must not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser_fixtures import chromium, look, watch
from support.viewer import Serve, Viewer

__all__ = ["chromium", "look", "serve", "watch"]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start `stepwell view DIR ...`, once for the same arguments; ended after the module."""
    started: dict[tuple[str | Path | None, ...], Viewer] = {}

    def start(*arguments: str | Path, within: Path | None = None) -> Viewer:
        if (within, *arguments) not in started:
            port = () if "--port" in arguments else ("--port", "0")
            started[within, *arguments] = Viewer(
                (*arguments, *port), tmp_path_factory.mktemp("viewer"), within
            )
        return started[within, *arguments]

    yield start
    for viewer in started.values():
        viewer.close()
