"""Forked processes: streams of random numbers of their own, and locks that no lost thread holds."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

_SECONDS = 2.0  # to wait for draws and writes of other threads


class Forkable(Protocol):
    """An object that other threads may be using when the process is forked."""

    def lock_for_fork(self) -> Any:
        """The lock that guards it; None where there is nothing to guard yet."""

    def forked(self, *, is_torn: bool) -> None:
        """Called in the child; ``is_torn``: a thread that is not in it was at work."""


class _Generator(np.random.Generator):
    """A generator that can be referred to weakly."""

    __slots__ = ("__weakref__",)


def generator(
    seed: int | np.random.SeedSequence | tuple[int, ...] | None = None,
) -> np.random.Generator:
    """A generator like ``np.random.default_rng``; each forked process has another stream."""
    # That stream depends on the state at the fork, and on how many times the program has forked: a
    # second run of the program draws the same. The parent's stream is as without a fork.
    made = _Generator(np.random.PCG64(seed))
    _FORKS.generators.add(made)
    return made


def load_generator(rng: np.random.Generator, state: Any) -> None:
    """Let a generator continue from the state of its bit generator."""
    try:
        rng.bit_generator.state = state
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        kind = type(rng.bit_generator).__name__
        raise ValueError(
            f"generator: expected the state of a {kind}, got another: {error}"
        ) from None


def watch(user: Forkable) -> None:
    """Fork while no other thread uses this object, or tell the child that one did."""
    _FORKS.users.add(user)


class _Forks:
    def __init__(self) -> None:
        self.generators: weakref.WeakSet[_Generator] = weakref.WeakSet()
        self.users: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._number = 0
        self._lock = threading.RLock()  # held around a fork: two at once have different numbers
        self._held: list[tuple[Forkable, Callable[[], None] | None]] = []

    def before(self) -> None:
        """Wait until no other thread draws or writes."""
        self._lock.acquire()
        self._number += 1
        deadline = time.monotonic() + _SECONDS
        for user in list(self.users):
            lock = user.lock_for_fork()
            if lock is not None:
                is_held = lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
                self._held.append((user, lock.release if is_held else None))

    def after_in_child(self) -> None:
        """Give each generator a stream of its own."""
        for each in list(self.generators):
            state: Any = each.bit_generator.state
            entropy = [*state["state"].values(), state["has_uint32"], state["uinteger"]]
            each.bit_generator.state = np.random.PCG64([*entropy, self._number]).state
        held = {id(user): release is not None for user, release in self._held}
        for user in list(self.users):
            user.forked(is_torn=not held.get(id(user), True))
        self.release()

    def release(self) -> None:
        """Let the other threads go on."""
        held, self._held = self._held, []
        for _, release in held:
            if release is not None:
                release()
        self._lock.release()


_FORKS = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_FORKS.before,
        after_in_parent=_FORKS.release,
        after_in_child=_FORKS.after_in_child,
    )
