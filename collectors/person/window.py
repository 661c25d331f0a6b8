"""The window of a person who plays: it shows frames in time, and knows which keys are held."""

from __future__ import annotations

import os
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .controls import WATCH_COMMANDS, Controls, load_pygame

_POLL_SECONDS = 1 / 60  # between looks at the keys, while a slow env shows one frame
_STILL, _FIRM = 0.5, 0.6  # of an axis: released below the one, pressed above the other
_UNSEEN = ("offscreen", "dummy")  # SDL takes one of these where there is no display
_PICTURE_ROWS = 720
_BACK, _TEXT, _FAINT, _SIGN = (18, 18, 22), (235, 235, 235), (150, 150, 160), (255, 205, 90)
_MARGIN, _LINE, _LEAST_WIDTH = 8, 20, 680


class Window:
    """Shows frames in a window, and reads keyboard and gamepads."""

    def __init__(
        self,
        shape: tuple[int, int],  # rows and columns of a frame
        controls: Controls,
        *,
        title: str,
        hidden: Sequence[str] = (),  # commands that are not shown
        # Pixels of the screen for one of a frame; None chooses some 720 rows
        scale: int | None = None,
    ) -> None:
        self._pygame: Any = load_pygame()
        self._controls = controls
        self._hidden = hidden
        self.commands: deque[str] = deque()
        self.times = array("d")
        """Seconds from frame to frame while the game goes on."""
        self.late = 0
        """Frames that came more than half a period late."""
        self._held: dict[str, set[str]] = {}  # keys by button, the oldest first
        self._tapped: list[str] = []  # buttons that were pressed since the last look
        self._pressed_axes: dict[tuple[int, int, str], bool] = {}
        self._hats: dict[tuple[int, int], tuple[int, int]] = {}
        self._pads: dict[int, Any] = {}
        self._due = self._shown = 0.0
        self._frame: np.ndarray | None = None
        self._shape = shape
        self._scale = scale or max(1, round(_PICTURE_ROWS / shape[0]))
        self._help = self._help_text()
        pygame = self._pygame
        try:
            pygame.display.init()
            driver = pygame.display.get_driver()
            if driver in _UNSEEN and os.environ.get("SDL_VIDEODRIVER") != driver:
                raise pygame.error(f"SDL found {driver!r} alone")
            pygame.font.init()
            pygame.joystick.init()
            rows, columns = shape
            size = (
                max(columns * self._scale, _LEAST_WIDTH),
                rows * self._scale + _LINE * (1 + len(self._help)) + 2 * _MARGIN,
            )
            self._screen = pygame.display.set_mode(size, pygame.RESIZABLE)
        except pygame.error as error:
            pygame.quit()
            raise OSError(
                f"play: expected a display to open a window on, got none ({error}); run it in a "
                f"desktop session, over ssh -X, or under xvfb-run"
            ) from None
        pygame.display.set_caption(title)
        pygame.mouse.set_visible(False)
        self._font = pygame.font.Font(None, 21)

    def close(self) -> None:
        """Close the window."""
        self._pygame.quit()

    def show(
        self,
        frame: np.ndarray | None,  # uint8 [H, W, 3]; None for the one before
        period: float,  # seconds from frame to frame
        line: str,  # a line of text below it
        sign: str = "",  # a word on top of the picture, such as PAUSED
        *,
        is_counted: bool = False,  # it is added to `times`
    ) -> None:
        """Show a frame when its time has come, and read the keys meanwhile."""
        if frame is not None:
            self._frame = frame
        self._draw(line, sign)
        self._wait(period)
        self._pygame.display.flip()
        now = time.perf_counter()
        if is_counted and self._shown:
            self.times.append(now - self._shown)
            self.late += now - self._shown > 1.5 * period
        self._shown = now if is_counted else 0.0
        self.read_keys()

    def held(self) -> list[str]:
        """Buttons that are held, or were since the last call, in the order of their presses."""
        names = [*self._held, *(name for name in self._tapped if name not in self._held)]
        self._tapped = []
        return names

    def read_keys(self) -> None:
        """Take note of what was pressed and released."""
        pygame = self._pygame
        for event in pygame.event.get():
            kind = event.type
            if kind in (pygame.KEYDOWN, pygame.KEYUP):
                self._turn(pygame.key.name(event.key), kind == pygame.KEYDOWN)
            elif kind == pygame.QUIT:
                self.commands.append("quit")
            elif kind == pygame.WINDOWFOCUSLOST:
                self._held.clear()  # nobody tells when keys are released elsewhere
            elif kind == pygame.JOYDEVICEADDED:
                pad = pygame.joystick.Joystick(event.device_index)
                self._pads[pad.get_instance_id()] = pad  # closed when it is dropped
            elif kind == pygame.JOYDEVICEREMOVED:
                self._pads.pop(event.instance_id, None)
                self._held.clear()
            elif kind in (pygame.JOYBUTTONDOWN, pygame.JOYBUTTONUP):
                self._turn(f"pad button {event.button}", kind == pygame.JOYBUTTONDOWN)
            elif kind == pygame.JOYAXISMOTION:
                self._move_axis(event)
            elif kind == pygame.JOYHATMOTION:
                self._move_hat(event)

    def _turn(self, key: str, is_down: bool) -> None:
        button = self._controls.button_of(key)
        if button is None:
            command = self._controls.command_of(key)
            if is_down:
                self.commands.append(command or "other")
        elif is_down:
            self.commands.append("other")
            self._held.setdefault(button, set()).add(key)
            self._tapped.append(button)
        elif button in self._held:
            self._held[button].discard(key)
            if not self._held[button]:
                del self._held[button]

    def _move_axis(self, event: Any) -> None:
        pad = getattr(event, "instance_id", 0)
        for side, value in (("-", -event.value), ("+", event.value)):
            place = pad, event.axis, side
            was = self._pressed_axes.get(place, False)
            now = value > (_STILL if was else _FIRM)
            if now != was:
                self._pressed_axes[place] = now
                self._turn(f"pad axis {event.axis} {side}", now)

    def _move_hat(self, event: Any) -> None:
        place = getattr(event, "instance_id", 0), event.hat
        before, now = self._hats.get(place, (0, 0)), event.value
        self._hats[place] = now
        names: tuple[tuple[Literal[0, 1], int, str], ...] = (
            (0, -1, "left"),
            (0, 1, "right"),
            (1, 1, "up"),
            (1, -1, "down"),
        )
        for axis, sign, name in names:
            was, is_now = before[axis] == sign, now[axis] == sign
            if was != is_now:
                self._turn(f"pad hat {name}", is_now)

    def _wait(self, period: float) -> None:
        now = time.perf_counter()
        self._due = max(self._due + period, now)  # frames that were missed are not made up for
        while (left := self._due - time.perf_counter()) > 0:
            time.sleep(min(left, _POLL_SECONDS))
            if left > _POLL_SECONDS:
                self.read_keys()

    def _draw(self, line: str, sign: str) -> None:
        pygame, screen = self._pygame, self._screen
        screen.fill(_BACK)
        width, height = screen.get_size()
        room = height - _LINE * (1 + len(self._help)) - 2 * _MARGIN
        rows, columns = self._shape
        scale = max(1, min(room // rows, width // columns))
        place = (width - columns * scale) // 2, max(0, (room - rows * scale) // 2)
        if self._frame is not None:
            picture = pygame.image.frombuffer(
                np.ascontiguousarray(self._frame).tobytes(), (columns, rows), "RGB"
            )
            screen.blit(pygame.transform.scale(picture, (columns * scale, rows * scale)), place)
        below = room + _MARGIN
        self._write(line, _TEXT, below)
        for number, text in enumerate(self._help):
            self._write(text, _FAINT, below + _LINE * (1 + number))
        if sign:
            text = pygame.font.Font(None, 40).render(sign, True, _SIGN, _BACK)
            at = (width - text.get_width()) // 2, (room - text.get_height()) // 2
            screen.fill(
                _BACK, (at[0] - 14, at[1] - 8, text.get_width() + 28, text.get_height() + 16)
            )
            screen.blit(text, at)

    def _write(self, text: str, color: Sequence[int], top: int) -> None:
        if text:
            self._screen.blit(self._font.render(text, True, color), (_MARGIN, top))

    def _help_text(self) -> list[str]:
        """Two lines: the keys of the buttons, and those of the commands; a third of a search."""
        commands = {k: v for k, v in self._controls.commands.items() if k not in self._hidden}
        searched = {name: commands.pop(name) for name in WATCH_COMMANDS if name in commands}
        lines = [
            "   ".join(f"[{v[0].title()}] {k.replace('_', ' ')}" for k, v in table.items() if v)
            for table in (self._controls.buttons, commands, searched)
        ]
        return lines if searched else lines[:2]
