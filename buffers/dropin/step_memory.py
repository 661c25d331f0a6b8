"""The lists of steps that torchwm documents for its planning agents."""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, overload

import numpy as np

from stepwell.buffers.dropin.ring import check_whole
from stepwell.buffers.dropin.shortage import TooFew

__all__ = ["MISSING", "Episode", "Memory"]

_UNCHANGING = (int, float, str, bytes, np.generic, type(None))


class Missing(enum.Enum):
    """Stands where nothing was given, which is not the same as None."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""What an info column holds for an observation that came without that key."""


# Any: whatever the caller puts in comes out again.
class Memory(Sequence[tuple[Any, ...]]):
    """Keeps the newest tuples that were appended, and draws some of them.

    It is a sequence, the oldest tuple first, so ``random.sample(memory, 32)`` works, too.

    Args:
        capacity: Tuples to keep.
        seed: Seed of its own generator; None draws one from the system.

    Raises:
        ValueError: ``capacity`` is no whole number >= 1.

    Example:
        >>> import random
        >>> memory = Memory(capacity=100, seed=0)
        >>> for step in range(150):
        ...     memory.append([step, step], 0, 1.0, False, {})
        >>> len(memory), memory[0][0], len(memory.sample(32)), len(random.sample(memory, 32))
        (100, [50, 50], 32, 32)
    """

    def __init__(self, capacity: int = 10_000, *, seed: int | None = None) -> None:
        check_whole("capacity", capacity, 1)
        self.capacity = capacity
        self._rng = np.random.default_rng(seed)
        self._ring: list[tuple[Any, ...]] = []  # a deque is slow in its midst
        self._oldest = 0

    def append(self, *args: Any) -> None:
        """Keep what was given as one tuple; arrays and containers are copied."""
        kept = tuple(_own(value) for value in args)
        if len(self._ring) < self.capacity:
            self._ring.append(kept)
        else:
            self._ring[self._oldest] = kept
            self._oldest = (self._oldest + 1) % self.capacity

    def sample(self, batch_size: int) -> list[tuple[Any, ...]]:
        """Draw different tuples, uniformly.

        Args:
            batch_size: How many.

        Raises:
            TooFew: There are fewer; a NotEnoughData, and a ValueError as well.
            ValueError: It is no whole number >= 1.
        """
        check_whole("batch_size", batch_size, 1)
        if batch_size > len(self):
            raise TooFew(
                f"expected at least batch_size={batch_size} tuples, got {len(self)}; append more, "
                f"or draw fewer"
            )
        chosen = self._rng.choice(len(self), batch_size, replace=False)
        return [self._ring[place] for place in chosen.tolist()]

    def __len__(self) -> int:
        return len(self._ring)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[Any, ...]]: ...

    def __getitem__(self, index: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        return self._ring[(self._oldest + places) % len(self)]


class Episode:
    """The observations, actions, rewards and terminals of one episode, in lists.

    What is given is copied. The number of observations is ``len(episode)``, that of steps is
    `steps`: an episode that has begun has an observation and no step.

    Args:
        observation: The first observation; or a list of those that there are.
        action: With ``reward`` and ``terminal`` a first step; None for none.
        reward: See ``action``.
        terminal: See ``action``.
        info: Facts that came with the first observation. With a list of observations a value that
            is a list of as many holds one for each.

    Raises:
        ValueError: Of a first step some is given and some not; or there is info and no observation.
        TypeError: ``info`` is no mapping.

    Example:
        >>> import numpy as np
        >>> episode = Episode(np.zeros(2), info={"lives": 3})
        >>> episode.append(1, np.ones(2), 0.5, False)
        >>> episode.append(0, np.ones(2), 0.5, True, info={"lives": 2})
        >>> len(episode), episode.steps, episode.action, episode.info
        (3, 2, [1, 0], {'lives': [3, MISSING, 2]})
    """

    def __init__(
        self,
        observation: Any,
        action: Any = None,
        reward: Any = None,
        terminal: Any = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        step = (action, reward, terminal)
        absent = [value is None for value in step]
        if any(absent) and not all(absent):
            raise ValueError(
                "a first step: expected action, reward and terminal, or none of them, got some; "
                "give the rest, or append the step"
            )
        is_list = isinstance(observation, list)
        facts = {} if info is None else _checked(info)
        if facts and is_list and not observation:
            raise ValueError(
                "info: expected an observation that it came with, got an empty list of them; give "
                "the first one"
            )
        self.observation: list[Any] = _own(observation) if is_list else [_own(observation)]
        self.action, self.reward, self.terminal = ([_own(v)] if v is not None else [] for v in step)
        self.info: dict[str, list[Any]] = {
            key: _column(value, len(self), is_list=is_list) for key, value in facts.items()
        }

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.action)

    def append(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminal: Any,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Take up a step; either all of it or, where something is wrong, nothing.

        Args:
            action: What was done.
            observation: What it led to.
            reward: What it brought.
            terminal: The episode ended with it.
            info: Facts that came with the observation; columns that are not in it get `MISSING`.

        Raises:
            TypeError: ``info`` is no mapping.
        """
        facts = {} if info is None else {k: _own(v) for k, v in _checked(info).items()}
        step = _own(action), _own(observation), _own(reward), _own(terminal)
        before = len(self)
        for key in facts:
            self.info.setdefault(key, [MISSING] * before)
        for key, column in self.info.items():
            column.append(facts.get(key, MISSING))
        columns = self.action, self.observation, self.reward, self.terminal
        for column, value in zip(columns, step, strict=True):
            column.append(value)

    def __len__(self) -> int:
        """Number of observations."""
        return len(self.observation)


def _own(value: Any) -> Any:
    """A copy that shares no memory with the value."""
    if isinstance(value, _UNCHANGING):
        return value
    if type(value) is np.ndarray and value.dtype != object:
        return value.copy()
    return copy.deepcopy(value)


def _checked(info: object) -> Mapping[str, Any]:
    if not isinstance(info, Mapping):
        raise TypeError(f"info: expected a mapping, got {type(info).__name__}; give a dict")
    return info


def _column(value: Any, rows: int, *, is_list: bool) -> list[Any]:
    """A first info value as a column of so many."""
    if is_list and isinstance(value, list) and len(value) == rows:
        return [_own(each) for each in value]
    return [_own(value), *[MISSING] * (rows - 1)]
