"""Lanes: single envs that play parts of stored episodes, each in a worker process of its own.

What a store says about its envs may ask for endless steps and any amount of memory. So an env that
is made by it lives in a worker process with bounds, and never in this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np

from ...buffers import End, Spec, Unprovable
from ...buffers.base.memory_limit import bound_memory
from ...buffers.spec.spec import flatten, unflatten
from ...wrappers.env_results import EnvResults
from ...wrappers.workers.pool import WorkerLost
from ...wrappers.workers.processes import exit_in_words, has_open_window, is_daemon
from ...wrappers.workers.vector_env import WorkerVectorEnv
from ..policies.policy_caller import leaf_spaces, outside_of

AnyEnv = gymnasium.Env[Any, Any]

MOST_BYTES = 2 << 30
"""Memory that an env may take, in addition to what its process has: on Linux."""
MOST_SECONDS, SECONDS_A_STEP = 30.0, 1.0
"""Time for making an env, a reset or a step, and what a mean step may take: not on Windows."""

_HAS_CLOCK = hasattr(signal, "setitimer")
_CURE = "give your own way to make one env (env=..., --env module:callable), which has no bounds"


@dataclass(frozen=True, slots=True)
class RowForm:
    """The form of stored rows: what to keep of an env's results."""

    spec: Spec
    missing: Mapping[str, np.ndarray]  # the value that means "not there", of each info field
    gives_stacks: bool  # the env returns whole stacks, of which the newest frame is stored


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of an episode, to be played."""

    rows: int  # the first one is that of a reset if ``is_begin``
    actions: Mapping[str, np.ndarray]  # [rows, ...], one less if ``is_begin``, by field name
    is_begin: bool = False  # the episode begins here
    seed: int | None = None  # of its reset; None goes on with the env's generator
    options: Mapping[str, object] | None = None  # of its reset


class PlayedPart(NamedTuple):
    """The rows of a segment that were played."""

    rows: int  # fewer than asked for if the episode ended before, or the env failed
    # Arrays [rows, ...]: observation, reward and info
    fields: Mapping[str, np.ndarray] = {}  # never written to
    end: End = End.NONE  # TERMINATED and TRUNCATED, if the last row has them
    error: str = ""  # of the env at the row after the last, or nothing
    is_outside: bool = False  # the last row's action is not in the action space, and was not played


class Lane(gymnasium.Env[Any, Any]):
    """An env that plays segments, one after the other."""

    # The env is made when it is needed first, in the process that steps it. Without a form nothing
    # is played. With bounds, the memory of this process is bounded, and it ends if the env takes
    # too long.

    # Rows are what `play` returns.
    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(
        self, make_env: Callable[[], AnyEnv], form: RowForm | None, *, is_bounded: bool = False
    ) -> None:
        self._make_env, self._form, self._is_bounded = make_env, form, is_bounded
        self._env: AnyEnv | None = None
        self._results: EnvResults | None = None
        self._outside: dict[str, Callable[[np.ndarray], Any]] = {}
        self._is_open = False  # an episode is, which the next segment may go on with

    def call(self) -> None:
        """Call the function that was given as ``make_env`` for what it does alone."""
        self._bound()
        with self._clock():
            self._make_env()

    def play(self, segments: Sequence[Segment]) -> list[PlayedPart]:
        """Play all segments."""
        with self._clock():
            return [self._play(segment) for segment in segments]

    def repeats(self, segments: Sequence[Segment]) -> bool:
        """Play the segments with two new envs: they show the same both times."""
        digests: list[list[bytes]] = []
        for _ in range(2):
            with self._clock():
                self._replace()
                digests.append([_digest(self._play(segment)) for segment in segments])
        return digests[0] == digests[1]

    def close(self) -> None:
        """Close the env."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _bound(self) -> None:
        """Bound the memory of this process, which is a lane's own."""
        if self._is_bounded:
            bound_memory(MOST_BYTES)
            if _HAS_CLOCK:  # the system ends the process, also while it is in a loop of C
                signal.signal(signal.SIGALRM, signal.SIG_DFL)

    @contextlib.contextmanager
    def _clock(self) -> Generator[None]:
        if not (self._is_bounded and _HAS_CLOCK):
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _opened(self) -> AnyEnv:
        if self._env is None:
            self._bound()
            self._env = self._make_env()
            assert self._form is not None
            leaves = leaf_spaces(self._form.spec.action, self._env.action_space)
            self._outside = {name: outside_of(leaf) for name, leaf in leaves}
            self._results = EnvResults(self._env.observation_space, "the env")
            if self._is_bounded and _HAS_CLOCK:
                signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        return self._env

    def _play(self, segment: Segment) -> PlayedPart:
        if not (segment.is_begin or self._is_open):
            return PlayedPart(0)
        env, form = self._opened(), self._form
        assert form is not None
        kept = _Rows(form, segment.rows)
        count = self._playable(segment)
        actions = self._actions(segment, count)
        row, end, checked = 0, End.NONE, self._results
        assert checked is not None
        go_on = _go_on if self._is_bounded and _HAS_CLOCK else None
        try:
            if segment.is_begin:
                self._is_open = True
                options = None if segment.options is None else dict(segment.options)
                result = env.reset(seed=segment.seed, options=options)
                observation, info = checked.reset(result)
                kept.write(0, observation, 0.0, info)
                row = 1
            step, write = env.step, kept.write
            for action in actions:
                if go_on is not None:
                    go_on()
                observation, reward, terminated, truncated, info = checked.step(step(action))
                write(row, observation, reward, info)
                row += 1
                if terminated or truncated:
                    end |= End.TERMINATED if terminated else End.NONE
                    end |= End.TRUNCATED if truncated else End.NONE
                    self._is_open = False
                    break
        except Exception as error:
            if self._is_bounded and isinstance(error, MemoryError):
                # No error of the env's at this row: a bound was reached, and the parent says so.
                raise
            self._is_open = False
            self._replace()
            what = " ".join(f"{type(error).__name__}: {error}".split())
            return PlayedPart(row, kept.first(row), End.NONE, what)
        # Fewer actions were playable: the next one is not in the action space.
        if row < segment.rows and not end:
            self._is_open = False
            return PlayedPart(row, kept.first(row), is_outside=True)
        return PlayedPart(row, kept.first(row), end)

    def _playable(self, segment: Segment) -> int:
        """Number of actions before the first one that is not in the action space."""
        count = segment.rows - segment.is_begin
        for name, outside in self._outside.items() if count else ():
            marks = outside(segment.actions[name])
            if marks is not None and np.count_nonzero(marks):
                count = min(count, int(np.argwhere(marks)[0][0]))
        return count

    def _actions(self, segment: Segment, count: int) -> Any:
        """The first actions one by one, as the env takes them."""
        assert self._form is not None
        layout, arrays = self._form.spec.action, segment.actions
        if not count:
            return ()
        if isinstance(layout, str):
            return arrays[layout][:count]
        return (
            unflatten(layout, {name: rows[k] for name, rows in arrays.items()})
            for k in range(count)
        )

    def _replace(self) -> None:
        """Make a new env, as the state of one that failed is unknown."""
        try:
            self.close()
        finally:
            self._opened()


def _go_on() -> None:
    """Give the env time for a step: what is left of its time, and a second more."""
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, min(MOST_SECONDS, left + SECONDS_A_STEP))


def _digest(part: PlayedPart) -> bytes:
    """A checksum of rows and how they ended."""
    # Not the error's text, which may have an address in memory.
    ends = part.rows, int(part.end), bool(part.error), part.is_outside
    found = hashlib.blake2b(repr(ends).encode())
    for rows in part.fields.values():
        found.update(rows.tobytes())
    return found.digest()


class _Rows:
    """Arrays that rows are written to, one by one."""

    def __init__(self, form: RowForm, count: int) -> None:
        self._count, self._layout = count, form.spec.observation
        observed = form.spec.of_kind("observation")
        self._stacked = {one.name for one in observed if one.stack > 1 and form.gives_stacks}
        self._fields: dict[str, np.ndarray] = {
            one.name: np.empty((count, *one.shape), one.numpy_dtype) for one in observed
        }
        self._fields["reward"] = self._reward = np.zeros(count)
        self._info: list[tuple[str, np.ndarray]] = []
        for field in form.spec.of_kind("info"):
            missing = form.missing[field.name]
            self._fields[field.name] = column = np.empty((count, *missing.shape), missing.dtype)
            column[...] = missing
            self._info.append((field.key, column))
        self._single = None
        if isinstance(self._layout, str):
            self._single = self._fields[self._layout]
            self._is_stacked = self._layout in self._stacked

    def write(self, row: int, observation: Any, reward: float, info: Mapping[str, Any]) -> None:
        if not self._count:
            return
        if self._single is not None:
            self._single[row] = observation[-1] if self._is_stacked else observation
        else:
            for name, leaf in flatten(self._layout, observation):
                value = cast("Any", leaf)
                self._fields[name][row] = value[-1] if name in self._stacked else value
        self._reward[row] = reward
        for key, column in self._info:
            if key in info:
                column[row] = info[key]

    def first(self, count: int) -> dict[str, np.ndarray]:
        if not self._count:
            return {}
        if count == self._count:
            return self._fields
        return {name: rows[:count] for name, rows in self._fields.items()}


class Lanes:
    """Several lanes in this process, of which each answers in its turn."""

    def __init__(self, make_lane: Callable[[], Lane], count: int) -> None:
        self.count = count
        self._lanes = [make_lane() for _ in range(count)]
        self._asked: dict[int, tuple[str, Sequence[Segment]]] = {}

    def ask(self, lane: int, segments: Sequence[Segment], name: str = "play") -> None:
        """Begin to play segments in a lane that is not playing, by a method of `Lane`."""
        self._asked[lane] = name, segments

    def take(self, lane: int) -> Any:
        """Wait for the result of what a lane was asked."""
        name, segments = self._asked.pop(lane)
        return getattr(self._lanes[lane], name)(segments)

    def close(self) -> None:
        """Close the envs."""
        for lane in self._lanes:
            lane.close()


class LanesInWorkers:
    """Several lanes, each in a worker process, with bounds if asked; used as `Lanes` is."""

    def __init__(self, make_lane: Callable[[], Lane], count: int, *, is_bounded: bool) -> None:
        if is_daemon():
            raise ValueError(
                "the envs are made by what the store says, in a process with bounds: expected a "
                f"process that may start one, got a daemonic one; {_CURE}"
            )
        self.count, self._is_bounded = count, is_bounded
        # Both wait forever, or break, in a process that is forked while they are in use.
        context = "spawn" if is_bounded and _has_jax_or_windows() else None
        points = [str(one.entry_point) for one in gymnasium.registry.values()]
        needs_main = any(point.startswith("__main__:") for point in points)
        kind = _WithoutMain if is_bounded and not needs_main else WorkerVectorEnv
        self._envs = kind([make_lane] * count, num_workers=count, context=context)
        self._asked: set[int] = set()

    def ask(self, lane: int, *arguments: object, name: str = "play") -> None:
        """Begin to play segments in a lane that is not playing, by a method of `Lane`."""
        self._asked.add(lane)
        self._envs.begin_call(lane, name, *arguments)

    def take(self, lane: int) -> Any:
        """Wait for a lane's result; Unprovable: it was out of bounds, or ended its process."""
        try:
            (found,) = self._envs.end_call(lane)
        except Exception as error:
            self._asked.remove(lane)
            if self._is_bounded and isinstance(error, MemoryError | WorkerLost):
                raise _out_of_bounds(error) from None
            raise
        self._asked.remove(lane)
        return found

    def close(self) -> None:
        """Stop the processes."""
        for lane in self._asked:  # a worker that is sending rows would not read the request
            with contextlib.suppress(Exception):
                self._envs.end_call(lane)
        self._envs.close()


class _WithoutMain(WorkerVectorEnv):
    """Processes that do not run the script again, which then needs no main guard."""

    _needs_main = False


def _out_of_bounds(error: MemoryError | WorkerLost) -> Unprovable:
    if isinstance(error, WorkerLost):
        if not _HAS_CLOCK or error.exit_code != -signal.SIGALRM:
            return Unprovable(
                f"the env ended its process with {exit_in_words(error.exit_code)}: expected one "
                f"that runs with {MOST_BYTES >> 20:,} MB of memory; {_CURE}"
            )
        return Unprovable(
            f"the env takes too long: expected at most {MOST_SECONDS:g} s for making it, a reset "
            f"or a step, and {SECONDS_A_STEP:g} s a step in the mean, got more; {_CURE}"
        )
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return Unprovable(
        f"the env takes too much memory: expected at most {MOST_BYTES >> 20:,} MB, got {what}; "
        f"{_CURE}"
    )


def _has_jax_or_windows() -> bool:
    return "jax" in sys.modules or has_open_window()


def open_lanes(
    make_env: Callable[[], AnyEnv], form: RowForm, count: int, *, is_bounded: bool
) -> Lanes | LanesInWorkers:
    """Make lanes in worker processes; in this one if that is enough, and they need no bounds."""
    make_lane = partial(Lane, make_env, form, is_bounded=is_bounded)
    if not is_bounded and (count == 1 or is_daemon() or _has_jax_or_windows()):
        return Lanes(make_lane, count)
    return LanesInWorkers(make_lane, count, is_bounded=is_bounded)


def call_in_bounds(function: Callable[[], Any]) -> None:
    """Call a function, which makes an env, in a process with bounds; raises what it raises."""
    # Unprovable: it did not stay within its bounds of memory and time, or ended its process.
    lanes = LanesInWorkers(partial(Lane, function, None, is_bounded=True), 1, is_bounded=True)
    try:
        lanes.ask(0, name="call")
        lanes.take(0)
    finally:
        lanes.close()
