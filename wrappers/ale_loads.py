"""Load a game of ale-py with a seed: from its file once, and then from the state that this gave."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, cast

import numpy as np

# A state of an emulator ends with its generator, C++'s `std::mt19937` as text: 624 words and a
# position, after their number of bytes, and 8 more bytes. Another such number, of what follows it,
# is in its head.
# (A console has a second generator, with the same seed after every load.)
# tests/wrappers/test_ale_loads.py compares such states with those of loads, for all games.
_HEAD, _HEAD_BYTES, _BYTES_AFTER = 24, 36, 8
_NUMBER = struct.Struct("<i")


class SeededLoads:
    """Loads a game with a seed, which most games do in 0.2 ms instead of 100 from the second on."""

    # The state of an emulator right after a load has the seed in its generator only, unless the
    # load itself draws numbers, as those of Berzerk and Double Dunk do. So a state with another
    # seed's generator is the state of another load. Where this does not hold, the game is loaded
    # each time. ``load`` loads the game into the `ale_py.ALEInterface`, with its mode and
    # difficulty.

    def __init__(self, ale: object, load: Callable[[], object]) -> None:
        self._ale, self._load = cast("Any", ale), load
        self._parts: tuple[bytes, bytes] | None = None  # of the state, around its generator
        self._was_loaded = False

    @property
    def are_quick(self) -> bool:
        """True if the next load takes little time; False before the first load."""
        return self._parts is not None

    def load(self, seed: int) -> None:
        """Load the game with a seed in 0 .. 2**31 - 1."""
        self._ale.setInt("random_seed", seed)
        if self._parts is None:
            self._load()
            if not self._was_loaded:
                self._parts, self._was_loaded = _parts_of(_state(self._ale), seed), True
        else:
            self._ale.restoreState(_ale_state(_joined(self._parts, seed)))


def _state(ale: Any) -> bytes:
    return cast("bytes", ale.cloneState(include_rng=True).__getstate__())


def _ale_state(data: bytes) -> object:
    """Return an `ale_py.ALEState` of the data of another one."""
    from ale_py import ALEState

    state = cast("Any", ALEState).__new__(ALEState)
    state.__setstate__(data)
    return cast("object", state)


def _parts_of(state: bytes, seed: int) -> tuple[bytes, bytes] | None:
    """Return the state's bytes before and after its generator, if joining them gives it again."""
    end = len(state) - _BYTES_AFTER
    begin = end - len(_generator(seed)) - _NUMBER.size
    if begin < _HEAD_BYTES:
        return None
    parts = state[:begin], state[end:]
    return parts if _joined(parts, seed) == state else None


def _joined(parts: tuple[bytes, bytes], seed: int) -> bytes:
    """Return the state after a load with the seed."""
    before, after = parts
    generator = _generator(seed)
    size = len(before) + _NUMBER.size + len(generator) + len(after)
    head = before[:_HEAD] + _NUMBER.pack(size - _HEAD_BYTES) + before[_HEAD + _NUMBER.size :]
    return head + _NUMBER.pack(len(generator)) + generator + after


def _generator(seed: int) -> bytes:
    """Return the generator's text right after it was seeded."""
    words = cast("Any", np.random.RandomState(seed).get_state())[1].tolist()
    return " ".join(map(str, [*words, len(words)])).encode()
