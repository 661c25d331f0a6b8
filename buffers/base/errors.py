"""The errors that Stepwell raises in addition to ValueError and TypeError.

``stepwell.collectors`` has more: `RemoteError`, `GroupLost` and `NotEnoughResources`.
"""

from typing import NoReturn


class StepwellError(Exception):
    """Base class of Stepwell's errors."""


class SpecMismatch(StepwellError):
    """The data does not fit the Spec that the store was made for."""


class NotEnoughData(StepwellError):
    """No stored episode is long enough for the request."""


class LimiterClosed(StepwellError):
    """The limiter was closed while a thread waited for it."""


class RowsDiffer(StepwellError):
    """An env that was played again shows other rows than those stored."""


class Unprovable(StepwellError):
    """A stored episode cannot be played again."""


class StoreNotFound(StepwellError):
    """The folder does not exist or holds no Stepwell store."""


class StoreLocked(StepwellError):
    """Another process holds the store open for writing.

    Args:
        message: The message.
        holder: The process that writes, for example ``"pid 7 on lab since 2026-01-01"``.
    """

    def __init__(self, message: str, *, holder: str = "another process") -> None:
        super().__init__(message)
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return StoreLocked, self.args, self.__dict__


class StoreCorrupt(StepwellError):
    """Stored bytes are damaged; the message names the place."""


class StoreTooNew(StepwellError):
    """The store was written by a later version of Stepwell."""


class StoreFailed(StepwellError):
    """An earlier write failed, so the writer stores nothing more; reopen the store."""


def not_copied(what: str, instead: str) -> NoReturn:
    """Refuse to pickle or copy an object that has files, locks, memory or processes of its own."""
    raise TypeError(
        f"{what} cannot be pickled or copied: expected one that was made where it is used, got a "
        f"copy of another one; {instead}"
    )
