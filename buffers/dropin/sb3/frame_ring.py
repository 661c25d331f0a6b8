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
    """The observations before and after the waiting steps of N envs, each ``[N, k, ...]``."""

    # Without stacks (k = 1) they are single frames [N, ...]. A frame that is both before and after,
    # or part of several stacks, is kept once, and the frames of an env follow each other as they
    # will be stored. An env's episode continues where an observation is the next one before. Of
    # stacks the newest frames are compared at every step; whole stacks are wherever it could be the
    # stack of a reset, where episodes begin, and at every 17th step.

    def __init__(
        self,
        size: int,
        num_envs: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        stack: int = 1,
        padding: Literal["zero", "repeat"] = "zero",
    ) -> None:
        self._num_envs, self._stack, self._padding = num_envs, stack, padding
        # The oldest step needs the frames of its stack, and the newest one its next observation.
        self._frames = np.zeros((num_envs, stack + size, *shape), dtype)
        self._shape = num_envs, *((stack,) if stack > 1 else ()), *shape
        self._dtype = self._frames.dtype
        self._word = np.dtype(np.uint64 if self._frames[0, 0].nbytes % 8 == 0 else np.uint8)
        self._words = self._frames_as_words()
        size_of_row = self._words.shape[2]
        self._shape_in_words = num_envs, stack, size_of_row
        step = max(1, size_of_row // _PROBES)
        self._probes = slice(step // 2, None, step)
        # The frames before each step, as far as they matter, behind those of the step that was
        # dropped last.
        self._age = np.zeros((1 + size, num_envs), np.uint8)
        self._oldest_age = max(1, stack - 1)
        # By step and env the true next observations that another episode's first one took the
        # place of.
        self._finals: dict[tuple[int, int], np.ndarray] = {}
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        self.count = 0
        self._is_new = True
        self._until_compared = self._compared = 0
        self._finals.clear()

    def drop(self, steps: int) -> None:
        """Forget the oldest steps, which do not wait any more."""
        left = self._stack + self.count - steps
        self._frames[:, :left] = self._frames[:, steps : steps + left].copy()
        self._age[: left - self._stack + 1] = self._age[steps : self.count + 1].copy()
        self._finals = {
            (step - steps, env): frame
            for (step, env), frame in self._finals.items()
            if step >= steps
        }
        self.count -= steps

    def write(
        self, observation: Any, next_observation: Any, over: np.ndarray | None = None
    ) -> None:
        """Add a step of observations ``[N, k, ...]``; ``over`` [N]: an episode ended before it."""
        # Without k they are [N, ...]. A stack must be the one before, moved on by a frame, or
        # padded as that of a reset; else nothing is added.
        count, k = self.count, self._stack
        slot = k - 1 + count
        shape, dtype = self._shape, self._dtype
        now, then = observation, next_observation
        if not (
            type(now) is type(then) is np.ndarray
            and now.shape == then.shape == shape
            and now.dtype == then.dtype == dtype
            and now.flags.c_contiguous
            and then.flags.c_contiguous
        ):
            now, then = (np.ascontiguousarray(each, dtype) for each in (now, then))
        words: np.ndarray = np.ndarray(self._shape_in_words, self._word, now)
        begins = self._begins(words, slot, over)
        if k > 1:
            self._until_compared -= 1
            if begins is not None or self._until_compared < 0:
                self._check(words, np.ndarray(self._shape_in_words, self._word, then), begins, slot)
        age = self._age[count + 1]
        np.add(np.minimum(self._age[count], self._oldest_age - 1), 1, age)
        if begins is not None:
            for env in np.flatnonzero(begins).tolist():
                # The final observation of the episode before lies where the frame of the reset
                # must be: it is kept apart.
                if count:
                    self._finals[count - 1, env] = self._frames[env, slot].copy()
                self._words[env, slot] = words[env, -1]
                age[env] = 0
        self._frames[:, slot + 1] = then if k == 1 else then[:, -1]
        self.count = count + 1
        self._is_new = False

    def read(self, steps: np.ndarray, envs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations ``[B, k, ...]`` before and after steps [B] of envs [B], among the newest."""
        k = self._stack
        if k == 1:
            return self._gathered(steps, envs, 0, 1), self._gathered(steps, envs, 1, 1)
        found = self._gathered(steps, envs, 1, k + 1)  # what both have is copied once
        return found[:, :k], found[:, 1:]

    def rows(self, env: int, start: int, stop: int) -> np.ndarray:
        """The newest frames [T + 1, ...] before and after an env's steps ``start .. stop``."""
        found: np.ndarray = self._frames[env, self._stack - 1 + start : self._stack + stop]
        final = self._finals.get((stop - 1, env))
        return found if final is None else np.concatenate([found[:-1], final[None]])

    def begins(self, steps: int) -> np.ndarray:
        """[T, N] bool: the oldest steps begin an episode."""
        found: np.ndarray = self._age[1 : steps + 1] == 0
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {key: part for key, part in self.__dict__.items() if key != "_words"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._words = self._frames_as_words()

    def _frames_as_words(self) -> np.ndarray:
        """The same memory [N, slots, words]: words of eight bytes are compared sooner."""
        shape = *self._frames.shape[:2], -1 if self._frames.size else 0
        return self._frames.reshape(shape).view(self._word)

    def _gathered(self, steps: np.ndarray, envs: np.ndarray, offset: int, width: int) -> np.ndarray:
        """The ``width`` frames up to the observation before steps, or after them (offset 1)."""
        if self._stack == 1:
            found: np.ndarray = self._frames[envs, steps + offset]
        else:
            slots = steps[:, None] + np.arange(self._stack + offset - width, self._stack + offset)
            found = self._frames[envs[:, None], slots]
            there = self._age[steps + 1, envs].astype(np.int64) + (1 + offset)
            for b in np.flatnonzero(there < width).tolist():
                missing = width - there[b]
                found[b, :missing] = found[b, missing] if self._padding == "repeat" else 0
        if offset and self._finals:
            newest = found if self._stack == 1 else found[:, -1]
            for b, place in enumerate(zip(steps.tolist(), envs.tolist(), strict=True)):
                if place in self._finals:
                    newest[b] = self._finals[place]
        return found

    def _begins(self, seen: np.ndarray, slot: int, over: np.ndarray | None) -> np.ndarray | None:
        """[N] bool: an episode begins with frames [N, k, words]; None if none does."""
        n = self._num_envs
        if self._is_new:
            return np.ones(n, np.bool_)
        newest = seen[:, -1]
        differs = newest != self._words[:, slot]
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
            self._compared += 1
            self._until_compared = 0 if self._compared <= _COMPARED_STEPS else _COMPARED_EVERY - 1
        is_right = bool((then[:, :-1] == now[:, 1:]).all())
        is_whole = self._age[self.count].min() == self._oldest_age  # no stack is padded
        if is_right and is_due and begins is None and is_whole:
            is_right = all(
                bool((now[:, -1 - back] == self._words[:, slot - back]).all())
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
        there = min(k, 2 + int(self._age[self.count, env]))
        for back in range(k):
            if back < there or self._padding == "repeat":
                frame = frames[env, slot - min(back, there - 1)]
                if frame.tobytes() != now[env, k - 1 - back].tobytes():
                    return False
            elif now[env, k - 1 - back].any():
                return False
        return True
