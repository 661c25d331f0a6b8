"""Windows of pygame without a display."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.collectors.person import play
from stepwell.collectors.person.window import Window


@pytest.fixture
def without_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a window open without a display, and press the key that begins."""
    import pygame  # not all tests here have it

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    monkeypatch.setattr(play, "_END_SECONDS", 0.05)
    begin = Window.__init__

    def opened(self: Any, *args: Any, **settings: Any) -> None:
        begin(self, *args, **settings)
        for kind in (pygame.KEYDOWN, pygame.KEYUP):
            pygame.event.post(pygame.event.Event(kind, key=pygame.K_LCTRL))

    monkeypatch.setattr(Window, "__init__", opened)
