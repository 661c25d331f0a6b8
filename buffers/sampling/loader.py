"""Draws batches in background threads while the learner uses the previous one."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    final,
)

from ..base.errors import not_copied
from ..base.number_checks import whole_number
from .tensors import ToTensors, converter

BatchT = TypeVar("BatchT")

Source: TypeAlias = "Callable[[BatchT | None], BatchT] | Iterable[BatchT]"
"""A function ``draw(out)``, which is called endlessly and may refill the memory of ``out``, an
earlier batch; or an iterable of batches, which may end."""

To: TypeAlias = Literal["numpy", "torch"]

_END: Any = object()


class Loader(Generic[BatchT]):
    """An iterator over batches that threads draw ahead and move to a device.

    The threads start with the first batch, or with a ``with`` block. They end with the block, with
    `close`, when the source is exhausted or raises, when the loader is garbage collected, and
    before the interpreter exits.

    Batches are returned in the order of the source. Those of an iterable, and those of a function
    with one thread, are the same as without a loader. Several threads call a function in parallel;
    an iterable is advanced by one thread at a time, while the others convert batches. At most
    ``prefetch + threads + 1`` batches exist, including the caller's and the previous one.

    Args:
        source: Source of the batches; see `Source`.
        prefetch: Batches that are ready, or being drawn, while the caller has one, >= 1.
        threads: Threads that draw, >= 1; each beyond the first draws one more batch ahead.
        to: ``"torch"`` returns tensors in place of arrays; see `ToTensors`. For type checkers the
            batch still has arrays; `SequenceReplayBuffer.loader` then gives a ``Loader[Any]``.
        device: Device of the tensors, such as ``"cuda"``; None leaves them on the CPU, where
            they share the arrays' memory.
        pin_memory: Copy the tensors to pinned memory first; they are then copied to the device
            asynchronously, on the caller's CUDA stream.
        reuse: A batch is valid only until the next one is taken: its memory is reused. Requires a
            function. By default a batch belongs to the caller.

    Raises:
        ValueError: A number is too small, or options contradict one another.
        ImportError: ``to="torch"``, and PyTorch is not installed.

    Example:
        >>> import itertools
        >>> import numpy as np
        >>> count = itertools.count()
        >>> with Loader(lambda out: {"x": np.full(2, next(count))}) as batches:
        ...     [batch["x"].tolist() for batch in itertools.islice(batches, 3)]
        [[0, 0], [1, 1], [2, 2]]
        >>> sum(Loader([1, 2, 3]))
        6
    """

    def __reduce__(self) -> NoReturn:
        not_copied("a loader", "make one in each process, of the replay that was opened there")

    def __init__(
        self,
        source: Source[BatchT],
        *,
        prefetch: int = 2,
        threads: int = 1,
        to: To = "numpy",
        device: object = None,
        pin_memory: bool = False,
        reuse: bool = False,
    ) -> None:
        prefetch = whole_number("prefetch", prefetch, 1)
        threads = whole_number("threads", threads, 1)
        if not (callable(source) or isinstance(source, Iterable)):
            raise ValueError(f"source: expected a function or an iterable, got {source!r}")
        if reuse and isinstance(source, Iterable):
            raise ValueError(
                "reuse=True: expected a function that refills batches, got an iterable, which "
                "makes its own; leave it out"
            )
        self._options = f"prefetch={prefetch}, threads={threads}, to={to!r}, reuse={reuse}"
        self._convert = converter(to, device, pin_memory)
        self._feed: _Feed[BatchT] = _Feed(source, prefetch, threads, self._convert, reuse)
        # The threads only refer to the feed, so that an unused loader is garbage collected.
        self._finalizer = weakref.finalize(self, self._feed.stop)
        self._finalizer.atexit = False  # the feed's own hook ends the threads then
        self._is_exhausted = False

    def __repr__(self) -> str:
        return f"Loader({self._options})"

    def __iter__(self) -> Self:
        if self._is_exhausted:
            raise ValueError(
                "the loader is exhausted: expected one with batches left; create a new one"
            )
        return self

    def __next__(self) -> BatchT:
        """Return the next batch; an exception in a thread is raised after the batches before it."""
        if self._is_exhausted:
            raise StopIteration
        outcome = self._feed.take()
        if outcome.error is not None:
            self.close()
            try:
                raise outcome.error
            finally:
                del outcome  # it refers to this frame, by the traceback
        if outcome.batch is _END:
            self._is_exhausted = True
            self.close()
            raise StopIteration
        if self._convert is None:
            return cast("BatchT", outcome.batch)
        return cast("BatchT", self._convert.finish(outcome.batch))

    def state_dict(self) -> Mapping[str, Any]:
        """The source's state after the last batch that the caller took.

        Raises:
            ValueError: The source is not an iterable with a ``state_dict``.
        """
        return self._feed.state()

    def close(self) -> None:
        """End the threads after their current draws; closing twice is harmless."""
        self._finalizer.detach()
        self._feed.end()

    def __enter__(self) -> Self:
        self._feed.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Outcome(NamedTuple):
    """A batch, or an exception, from a loader thread."""

    batch: Any = _END  # the prepared batch; `_END` if the source ended
    error: BaseException | None = None  # if there is no batch
    state: Mapping[str, Any] | None = None  # the source's state after it
    memory: Any = None  # the batch to refill once the caller has taken the next one


@final
class _Feed(Generic[BatchT]):
    """State shared by threads and loader. Outcomes are numbered in the order of the source."""

    def __init__(
        self,
        source: Source[BatchT],
        prefetch: int,
        threads: int,
        convert: ToTensors | None,
        reuse: bool,
    ) -> None:
        self._source = source
        self._is_iterable = isinstance(source, Iterable)
        self._iterator: Iterator[BatchT] | None = None
        self._prepare = None if convert is None else convert.prepare
        self._copies = convert is not None and convert.copies
        self._reuses = reuse
        self._most = prefetch + threads - 1
        self._count = threads
        self._threads: list[threading.Thread] = []
        self._process = 0
        # One at a time draws from an iterable: its order is that of the numbers.
        self._turn: AbstractContextManager[object] = (
            threading.Lock() if self._is_iterable or threads == 1 else nullcontext()
        )
        self._changed = threading.Condition()
        self._ready: dict[int, _Outcome] = {}
        self._spare: list[BatchT] = []
        self._lent: Any = None
        self._begun = self._taken = 0
        self._is_stopped = self._is_ending = False
        self._working = 0
        self._state = self._state_now()

    def start(self) -> None:
        """Start the threads, if they have not started."""
        if self._threads or self._is_stopped:
            return
        if self._is_iterable:
            self._iterator = iter(cast("Iterable[BatchT]", self._source))
            self._state = self._state_now()
        self._process, self._working = os.getpid(), self._count
        self._threads = [
            threading.Thread(target=self._work, name=f"stepwell-loader-{number}", daemon=True)
            for number in range(self._count)
        ]
        atexit.register(self.end)
        for thread in self._threads:
            thread.start()

    def take(self) -> _Outcome:
        """Wait for the next outcome; ValueError if the feed was stopped, RuntimeError in a fork."""
        self.start()
        if self._process != os.getpid():
            raise RuntimeError(
                f"the loader's threads run in process {self._process}, which was forked: expected "
                f"to be used there, got process {os.getpid()}; make a loader in each process"
            )
        with self._changed:
            if self._lent is not None:
                self._spare.append(self._lent)
                self._lent = None
            self._changed.wait_for(lambda: self._is_stopped or self._taken in self._ready)
            if self._is_stopped:
                raise ValueError("the loader is closed: expected an open one; make a new one")
            outcome = self._ready.pop(self._taken)
            self._taken += 1
            self._lent = outcome.memory
            self._state = self._state if outcome.state is None else outcome.state
            self._changed.notify_all()
        return outcome

    def state(self) -> Mapping[str, Any]:
        """The source's state after the last outcome that was taken."""
        if self._state is None:
            raise ValueError(
                "the loader's source keeps no state: expected an iterable with a state_dict, such "
                "as an epoch; keep the replay's own state_dict"
            )
        return self._state

    def stop(self) -> None:
        """Signal the threads to end, without waiting: called by the garbage collector."""
        if self._process not in (0, os.getpid()):
            return  # a fork has the lock as it was, perhaps held, but not the threads
        with self._changed:
            self._is_stopped = True
            self._ready.clear()
            self._spare.clear()
            self._changed.notify_all()

    def end(self) -> None:
        """Stop, and wait for the threads."""
        self.stop()
        if self._process == os.getpid():
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
        atexit.unregister(self.end)

    def _work(self) -> None:
        while self._produce_one():
            pass
        with self._changed:
            self._working -= 1
        if self._working == 0:
            atexit.unregister(self.end)

    def _produce_one(self) -> bool:
        """Draw one batch; return whether there may be another. Keeps no reference to the batch."""
        number = -1
        try:
            with self._turn:
                number, out = self._wait_for_room()
                if number < 0:
                    return False
                batch = self._draw(out)
                state = self._state_now()
            if batch is _END:
                outcome = _Outcome(state=state)
            else:
                prepared = batch if self._prepare is None else self._prepare(batch)
                memory = batch if self._reuses and not self._copies else None
                outcome = _Outcome(prepared, state=state, memory=memory)
                if self._copies and not self._is_iterable:  # the caller gets a copy
                    with self._changed:
                        self._spare.append(batch)
        except BaseException as error:
            outcome = _Outcome(error=error)
        return self._deliver(number, outcome)

    def _wait_for_room(self) -> tuple[int, BatchT | None]:
        """The number of the batch to draw, and memory for it; -1 if no more are needed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over() or self._begun - self._taken < self._most
            )
            if self._is_over():
                return -1, None
            self._begun += 1
            return self._begun - 1, self._spare.pop() if self._spare else None

    def _is_over(self) -> bool:
        return self._is_stopped or self._is_ending

    def _draw(self, out: BatchT | None) -> BatchT:
        """The source's next batch, or `_END`, after which an iterator is not called again."""
        if self._iterator is None:
            try:
                return cast("Callable[[BatchT | None], BatchT]", self._source)(out)
            except StopIteration as error:  # it would end the caller's loop as if all were well
                raise RuntimeError("the loader's source raised StopIteration") from error
        batch = _END
        try:
            batch = next(self._iterator, _END)
        finally:
            if batch is _END:
                self._is_ending = True
        return cast("BatchT", batch)

    def _deliver(self, number: int, outcome: _Outcome) -> bool:
        is_last = outcome.error is not None or outcome.batch is _END
        with self._changed:
            if is_last:  # never set back: other threads set it too
                self._is_ending = True
            if self._is_stopped:
                return False
            self._ready[number] = outcome
            self._changed.notify_all()
        return not is_last

    def _state_now(self) -> Mapping[str, Any] | None:
        if not self._is_iterable:
            return None
        state_dict = getattr(self._source, "state_dict", None)
        return None if state_dict is None else cast("Mapping[str, Any]", state_dict())
