"""A thread that uploads a folder while another one writes it, and tries again after failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Condition, Thread

from ...buffers.exchange.publish.uploader import Uploader

__all__ = ["UploadThread", "next_pause"]

_LOG = logging.getLogger("stepwell.collectors")
_FIRST_PAUSE_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 60.0


def next_pause(seconds: float) -> float:
    """The pause after another failure: twice as long, up to a minute."""
    return min(2 * seconds, _MOST_PAUSE_SECONDS)


class UploadThread:
    """Uploads what is sealed in a folder whenever `wake` is called.

    While the object store fails it tries again, with growing pauses. Any other error ends it, and
    is raised by `check`.

    Args:
        uploader: Uploads the folder.
        place: The URL, for messages.
        first: Called first, and again until it does not fail with an OSError.
        pause_seconds: The first pause.
    """

    def __init__(
        self,
        uploader: Uploader,
        place: str,
        *,
        first: Callable[[], None] = lambda: None,
        pause_seconds: float = _FIRST_PAUSE_SECONDS,
    ) -> None:
        self._uploader = uploader
        self._place = place
        self._first: Callable[[], None] | None = first
        self._first_pause = pause_seconds
        self._changed = Condition()
        self._is_awake = self._is_ending = self._is_stopped = False
        self._failure: BaseException | None = None
        self._trouble: OSError | None = None
        self._thread = Thread(target=self._run, name="stepwell-upload", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> OSError | None:
        """The error of the last try; None if it succeeded."""
        return self._trouble

    def wake(self) -> None:
        """Upload what is sealed now."""
        with self._changed:
            self._is_awake = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until something was uploaded, or the thread has failed; at most so long."""
        with self._changed:
            if self._failure is None:
                self._changed.wait(seconds)

    def check(self) -> None:
        """Raise the error that ended the thread."""
        if self._failure is not None:
            raise self._failure

    def finish(self, seconds: float) -> bool:
        """Upload the rest, with the note that the folder is finished, and end.

        Args:
            seconds: Time to wait at most, while the object store fails or is slow.

        Returns:
            True if all is uploaded.

        Raises:
            StepwellError: What ended the thread.
        """
        with self._changed:
            self._is_ending = self._is_awake = True
            self._changed.notify_all()
        self._thread.join(seconds)
        is_done = not self._thread.is_alive()
        self.stop()
        self.check()
        return is_done

    def stop(self) -> None:
        """End soon, without uploading the rest."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        pause = self._first_pause
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_awake or self._is_stopped)
                    if self._is_stopped:
                        return
                    self._is_awake, is_last = False, self._is_ending
                try:
                    if self._first is not None:
                        self._first()
                        self._first = None
                    self._uploader.upload(is_finished=is_last)
                except OSError as error:
                    self._pause(error, pause)
                    pause = next_pause(pause)
                    continue
                if self._trouble is not None:
                    _LOG.info("%s: uploads work again", self._place)
                pause, self._trouble = self._first_pause, None
                with self._changed:
                    self._changed.notify_all()
                if is_last:
                    return
        except BaseException as error:  # it is raised where rows are added
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _pause(self, error: OSError, seconds: float) -> None:
        """Wait after a failure, unless it is stopped."""
        self._trouble = error
        _LOG.warning("%s; trying again in %g s", error, seconds)
        until = time.monotonic() + seconds
        with self._changed:
            self._is_awake = True
            self._changed.wait_for(lambda: self._is_stopped, until - time.monotonic())
