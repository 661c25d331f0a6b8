"""The newest observations of N envs, each frame once: what a buffer has not stored yet."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ...base.errors import SpecMismatch

# Stacks are compared at the first steps, and then at every 17th: a prime number, so that it meets
# every place of a pattern that repeats after fewer steps.
_COMPARED_STEPS, _COMPARED_EVERY = 16, 17
_PROBES = 16


class FrameRing:
    """The observations before and after the newest steps of N envs, each ``[N, k, ...]``."""

    # Without stacks (k = 1) they are single frames [N, ...]. A frame that is both before and after,
    # or part of several stacks, is kept once. An env's episode continues where an observation is
    # the next one before. Of stacks the newest frames are compared at every step; whole stacks are
    # wherever it could be the stack of a reset, where episodes begin, and at every 17th step.

    def __init__(
        self,
        size: int,
        num_envs: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        stack: int = 1,
        padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        self._size, self._num_envs, self._stack, self._padding = size, num_envs, stack, padding
        # The oldest step needs the frames of its stack, and the newest one its next observation.
        self._slots = size + stack
        self._frames = np.zeros((self._slots, num_envs, *shape), dtype)
        self._shape = num_envs, *((stack,) if stack > 1 else ()), *shape
        self._dtype = self._frames.dtype
        self._word = np.dtype(np.uint64 if self._frames[0, 0].nbytes % 8 == 0 else np.uint8)
        self._words = self._frames_as_words()
        size_of_row = self._words.shape[2]
        self._shape_in_words = num_envs, stack, size_of_row
        step = max(1, size_of_row // _PROBES)
        self._probes = slice(step // 2, None, step)
        # For each step its frames before, as far as they matter, and the true next observations
        # that another episode's first one took the place of. Steps are counted from 0 on.
        self._age = np.zeros((size, num_envs), np.uint8)
        self._oldest_age = max(1, stack - 1)
        self._has_final = np.zeros((size, num_envs), np.bool_)
        self._finals: dict[int, np.ndarray] = {}
        self._final_places: set[int] = set()
        self._young = 0  # steps for which some age may still grow
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        self.count = 0
        self._until_compared = 0
        self._has_final[:] = False
        self._finals.clear()
        self._final_places.clear()

    def write(
        self, observation: Any, next_observation: Any, over: np.ndarray | None = None
    ) -> None:
        """Add a step of observations ``[N, k, ...]``; ``over`` [N]: an episode ended before it."""
        # Without k they are [N, ...]. A stack must be the one before, moved on by a frame, or
        # padded as that of a reset; else nothing is added.
        count, n, k = self.count, self._num_envs, self._stack
        slot, following = count % self._slots, (count + 1) % self._slots
        shape, dtype = self._shape, self._dtype
        now, then = observation, next_observation
        if not (
            type(now) is type(then) is np.ndarray
            and now.shape == then.shape == shape
            and now.dtype == then.dtype == dtype
            and now.flags.c_contiguous
            and then.flags.c_contiguous
        ):
            now, then = self._checked(now), self._checked(then)
        words: np.ndarray = np.ndarray(self._shape_in_words, self._word, now)
        begins = self._begins(words, slot, over)
        if k > 1:
            self._until_compared -= 1
            if begins is not None or self._until_compared < 0:
                self._check(words, np.ndarray(self._shape_in_words, self._word, then), begins, slot)
        place, before = count % self._size, (count - 1) % self._size
        # The oldest step is written over, so its final observation goes, too.
        if place in self._final_places:
            self._final_places.discard(place)
            for env in np.flatnonzero(self._has_final[place]).tolist():
                del self._finals[place * n + env]
            self._has_final[place] = False
        if self._young:
            self._young -= 1
            self._age[place] = np.minimum(self._age[before].astype(int) + 1, self._oldest_age)
        else:
            self._age[place] = self._oldest_age
        if begins is not None:
            self._young = self._oldest_age
            for env in np.flatnonzero(begins).tolist():
                # The final observation of the episode before lies where the frame of the reset
                # must be: it is kept apart.
                if count and self._size > 1:
                    self._finals[before * n + env] = self._frames[slot, env].copy()
                    self._has_final[before, env] = True
                    self._final_places.add(before)
                self._words[slot, env] = words[env, -1]
                self._age[place, env] = 0
        self._frames[following] = then if k == 1 else then[:, -1]
        self.count = count + 1

    def _checked(self, observation: Any) -> np.ndarray:
        found = np.ascontiguousarray(observation, self._frames.dtype)
        if found.shape != self._shape:
            raise ValueError(f"expected observations {self._shape}, got {found.shape}")
        return found

    def read(self, steps: np.ndarray, envs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations ``[B, k, ...]`` before and after steps [B] of envs [B], among the newest."""
        k = self._stack
        if k == 1:
            return self._gathered(steps, envs, 0, 1), self._gathered(steps, envs, 1, 1)
        found = self._gathered(steps, envs, 1, k + 1)  # what both have is copied once
        return found[:, :k], found[:, 1:]

    def frames(self, start: int, stop: int) -> np.ndarray:
        """The newest frames before steps ``start .. stop``, ``[T, N, ...]``."""
        return self._frames.take(np.arange(start, stop) % self._slots, 0)

    def frames_after(self, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """The newest frames ``[B, ...]`` after steps [B] of envs [B]."""
        found: np.ndarray = self._frames[(steps + 1) % self._slots, envs]
        self._set_finals(found, steps % self._size * self._num_envs + envs)
        return found

    def _set_finals(self, found: np.ndarray, places: np.ndarray) -> None:
        """Replace frames ``[B, ...]`` after steps by those that are kept apart."""
        if self._finals:
            for b in np.flatnonzero(self._has_final.reshape(-1).take(places)).tolist():
                found[b] = self._finals[int(places[b])]

    def begins(self, start: int, stop: int) -> np.ndarray:
        """[T, N] bool: steps ``start .. stop`` begin an episode."""
        found: np.ndarray = self._age[np.arange(start, stop) % self._size] == 0
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {key: part for key, part in self.__dict__.items() if key != "_words"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._words = self._frames_as_words()

    def _frames_as_words(self) -> np.ndarray:
        """The same memory [slots, N, words]: words of eight bytes are compared sooner."""
        shape = *self._frames.shape[:2], -1 if self._frames.size else 0
        return self._frames.reshape(shape).view(self._word)

    def _gathered(self, steps: np.ndarray, envs: np.ndarray, offset: int, width: int) -> np.ndarray:
        """The ``width`` frames up to the observation before steps, or after them (offset 1)."""
        places = steps % self._size * self._num_envs + envs
        if self._stack == 1:
            found: np.ndarray = self._frames[(steps + offset) % self._slots, envs]
        else:
            slots = (steps[:, None] + np.arange(offset + 1 - width, offset + 1)) % self._slots
            found = self._frames[slots, envs[:, None]]
            there = self._age.reshape(-1).take(places).astype(np.int64) + (1 + offset)
            for b in np.flatnonzero(there < width).tolist():
                missing = width - there[b]
                found[b, :missing] = found[b, missing] if self._padding == "repeat" else 0
        if offset:
            self._set_finals(found if self._stack == 1 else found[:, -1], places)
        return found

    def _begins(self, seen: np.ndarray, slot: int, over: np.ndarray | None) -> np.ndarray | None:
        """[N] bool: an episode begins with frames [N, k, words]; None if none does."""
        n = self._num_envs
        if not self.count:
            return np.ones(n, np.bool_)
        newest = seen[:, -1]
        differs = newest != self._words[slot]
        begins = over
        if np.count_nonzero(differs):
            begins = differs.any(1) if over is None else differs.any(1) | over
        if self._stack == 1:
            return begins
        is_other = seen[:, -2, self._probes]  # counted as it is: other than zero
        if self._padding == "repeat":
            is_other = is_other != newest[:, self._probes]
        if np.count_nonzero(is_other) < is_other.size:
            for env in np.flatnonzero(~is_other.any(1)).tolist():
                if begins is None or not begins[env]:
                    if not self._is_next(seen, env, slot):
                        begins = np.zeros(n, np.bool_) if begins is None else begins.copy()
                        begins[env] = True
        return begins

    def _check(
        self, now: np.ndarray, then: np.ndarray, begins: np.ndarray | None, slot: int
    ) -> None:
        """Raise SpecMismatch if a stack is wrong among those that are compared now."""
        is_due = self._until_compared < 0
        if is_due:
            few = self.count < _COMPARED_STEPS
            self._until_compared = 0 if few else _COMPARED_EVERY - 1
        is_right = bool((then[:, :-1] == now[:, 1:]).all())
        if is_right and is_due and begins is None and not self._young:  # no stack is padded
            is_right = all(
                bool((now[:, -1 - back] == self._words[(slot - back) % self._slots]).all())
                for back in range(self._stack)
            )
            is_due = False
        for env in range(self._num_envs) if is_right else ():
            if begins is not None and begins[env]:
                first = now[env, -1:] if self._padding == "repeat" else np.zeros_like(now[env, -1:])
                is_right &= bool((now[env, :-1] == first).all())
            elif is_due:
                is_right &= self._is_next(now, env, slot)
        if not is_right:
            raise SpecMismatch(
                f"observation: expected each stack of {self._stack} frames to be the one before, "
                f"moved on by one frame, and padded by {self._padding} at a reset, got other "
                f"frames; leave frame_stack out to store whole observations"
            )

    def _is_next(self, now: np.ndarray, env: int, slot: int) -> bool:
        """True if a stack [N, k, words] follows the env's newest step; its frame is at ``slot``."""
        k, frames = self._stack, self._words
        there = min(k, 2 + int(self._age[(self.count - 1) % self._size, env]))
        for back in range(k):
            if back < there or self._padding == "repeat":
                frame = frames[(slot - min(back, there - 1)) % self._slots, env]
                if frame.tobytes() != now[env, k - 1 - back].tobytes():
                    return False
            elif now[env, k - 1 - back].any():
                return False
        return True
