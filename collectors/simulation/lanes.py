"""Lanes: single envs that play parts of stored episodes, each in a worker process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np

from stepwell.buffers import End, Layout, Spec
from stepwell.buffers.spec import flatten, unflatten
from stepwell.collectors.policies.policy_caller import leaf_spaces, outside_of
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv, is_daemon
from stepwell.wrappers.workers.worker import scalar

__all__ = [
    "AnyEnv",
    "Lane",
    "Lanes",
    "LanesInWorkers",
    "PlayedPart",
    "RowForm",
    "Segment",
    "open_lanes",
]

AnyEnv = gymnasium.Env[Any, Any]


@dataclass(frozen=True, slots=True)
class RowForm:
    """The form of stored rows: what to keep of an env's results.

    Args:
        observation: The nesting of observations.
        action: The nesting of actions.
        leaves: Name, dtype and shape of each stored part of the observation.
        stacked: Names of those of which the env returns stacks, and the newest frame is stored.
        info: Declared info fields: the key in the info, and the value that means "not there".
    """

    observation: Layout
    action: Layout
    leaves: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
    stacked: frozenset[str]
    info: Mapping[str, tuple[str, np.ndarray]]

    @classmethod
    def of(cls, spec: Spec, missing: Mapping[str, np.ndarray], *, newest_only: bool) -> RowForm:
        """The form of a Spec's rows.

        Args:
            spec: The fields of a row.
            missing: The value that means "not there", for each info field by its name.
            newest_only: The env returns newest frames alone, not stacks.
        """
        fields = spec.of_kind("observation")
        return cls(
            spec.observation,
            spec.action,
            tuple((each.name, each.numpy_dtype, each.shape) for each in fields),
            frozenset(each.name for each in fields if each.stack > 1 and not newest_only),
            {each.name: (each.key, missing[each.name]) for each in spec.of_kind("info")},
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of an episode, to be played.

    Args:
        rows: Number of rows; the first one is that of a reset if ``is_begin``.
        actions: Arrays ``[rows, ...]``, one less if ``is_begin``, by field name.
        is_begin: The episode begins here.
        seed: Seed of its reset; None goes on with the env's generator.
        options: Options of its reset.
        is_kept: The rows are wanted, and not only what they lead to.
    """

    rows: int
    actions: Mapping[str, np.ndarray]
    is_begin: bool = False
    seed: int | None = None
    options: Mapping[str, object] | None = None
    is_kept: bool = True


class PlayedPart(NamedTuple):
    """The rows of a segment that were played.

    Args:
        rows: Number of rows, fewer than asked for if the episode ended before, or the env failed.
        fields: Arrays ``[rows, ...]``: observation, reward and info; empty if they are not wanted.
        end: TERMINATED and TRUNCATED, if the last row has them.
        error: The error of the env at the row after the last, or nothing.
        is_outside: The action of the last row is not in the action space, and was not played.
    """

    rows: int
    fields: Mapping[str, np.ndarray] = {}  # never written to
    end: End = End.NONE
    error: str = ""
    is_outside: bool = False


class Lane(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env that plays segments, one after the other.

    Args:
        make_env: Makes the env.
        form: What to keep of its results.
    """

    def __init__(self, make_env: Callable[[], AnyEnv], form: RowForm) -> None:
        super().__init__(make_env())
        self._make_env, self._form = make_env, form
        self._outside = {
            name: outside_of(leaf) for name, leaf in leaf_spaces(form.action, self.action_space)
        }
        self._is_open = False  # an episode is, which the next segment may go on with

    def play(self, segments: Sequence[Segment]) -> list[PlayedPart]:
        """Play all segments."""
        return [self._play(segment) for segment in segments]

    def _play(self, segment: Segment) -> PlayedPart:
        if not (segment.is_begin or self._is_open):
            return PlayedPart(0)
        kept = _Rows(self._form, segment.rows if segment.is_kept else 0)
        count = self._playable(segment)
        actions = self._actions(segment, count)
        row, end, env = 0, End.NONE, self.env
        try:
            if segment.is_begin:
                self._is_open = True
                options = None if segment.options is None else dict(segment.options)
                observation, info = env.reset(seed=segment.seed, options=options)
                kept.write(0, observation, 0.0, info)
                row = 1
            step, write = env.step, kept.write
            for action in actions:
                observation, reward, terminated, truncated, info = step(action)
                write(row, observation, reward, info)
                row += 1
                if terminated or truncated:
                    end |= End.TERMINATED if terminated else End.NONE
                    end |= End.TRUNCATED if truncated else End.NONE
                    self._is_open = False
                    break
        except Exception as error:
            self._is_open = False
            self._replace()
            what = " ".join(f"{type(error).__name__}: {error}".split())
            return PlayedPart(row, kept.first(row), End.NONE, what)
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
        layout, arrays = self._form.action, segment.actions
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
            self.env.close()
        finally:
            self.env = self._make_env()


class _Rows:
    """Arrays that rows are written to, one by one; with ``count`` 0 nothing is kept."""

    def __init__(self, form: RowForm, count: int) -> None:
        self._count, self._layout, self._stacked = count, form.observation, form.stacked
        self._fields: dict[str, np.ndarray] = {
            name: np.empty((count, *shape), dtype) for name, dtype, shape in form.leaves
        }
        self._reward = np.zeros(count)
        self._info: list[tuple[str, np.ndarray]] = []
        self._fields["reward"] = self._reward
        for name, (key, missing) in form.info.items():
            column = np.empty((count, *missing.shape), missing.dtype)
            column[...] = missing
            self._fields[name] = column
            self._info.append((key, column))
        self._single = None
        if isinstance(form.observation, str):
            self._single = self._fields[form.observation]
            self._is_stacked = form.observation in form.stacked

    def write(self, row: int, observation: Any, reward: Any, info: Mapping[str, Any]) -> None:
        """Write a row."""
        if not self._count:
            return
        if self._single is not None:
            self._single[row] = observation[-1] if self._is_stacked else observation
        else:
            for name, leaf in flatten(self._layout, observation):
                value = cast("Any", leaf)
                self._fields[name][row] = value[-1] if name in self._stacked else value
        self._reward[row] = scalar(reward)
        for key, column in self._info:
            if key in info:
                column[row] = info[key]

    def first(self, count: int) -> dict[str, np.ndarray]:
        """The first rows, by field name."""
        if not self._count:
            return {}
        if count == self._count:
            return self._fields
        return {name: rows[:count] for name, rows in self._fields.items()}


class Lanes:
    """Several lanes in this process, of which each answers in its turn.

    Args:
        make_env: Makes the env of a lane.
        form: What to keep of its results.
        count: Number of lanes.
    """

    def __init__(self, make_env: Callable[[], AnyEnv], form: RowForm, count: int) -> None:
        self.count = count
        self._lanes = [Lane(make_env, form) for _ in range(count)]
        self._asked: dict[int, Sequence[Segment]] = {}

    def ask(self, lane: int, segments: Sequence[Segment]) -> None:
        """Begin to play segments in a lane that is not playing."""
        self._asked[lane] = segments

    def take(self, lane: int) -> list[PlayedPart]:
        """Wait for the result of what a lane was asked to play."""
        return self._lanes[lane].play(self._asked.pop(lane))

    def close(self) -> None:
        """Close the envs."""
        for lane in self._lanes:
            lane.close()


class LanesInWorkers:
    """Several lanes, each in a worker process; used as `Lanes` is."""

    def __init__(self, make_env: Callable[[], AnyEnv], form: RowForm, count: int) -> None:
        self.count = count
        self._envs = WorkerVectorEnv([_MakeLane(make_env, form)] * count, num_workers=count)
        self._asked: set[int] = set()

    def ask(self, lane: int, segments: Sequence[Segment]) -> None:
        """Begin to play segments in a lane that is not playing."""
        self._asked.add(lane)
        self._envs.begin_call(lane, "play", segments)

    def take(self, lane: int) -> list[PlayedPart]:
        """Wait for the result of what a lane was asked to play."""
        (parts,) = self._envs.end_call(lane)
        self._asked.remove(lane)
        return cast("list[PlayedPart]", parts)

    def close(self) -> None:
        """Stop the processes."""
        for lane in self._asked:  # a worker that is sending rows would not read the request
            with contextlib.suppress(Exception):
                self._envs.end_call(lane)
        self._envs.close()


@dataclass(frozen=True)
class _MakeLane:
    """A factory of lanes, which can be sent to another process."""

    make_env: Callable[[], AnyEnv]
    form: RowForm

    def __call__(self) -> Lane:
        return Lane(self.make_env, self.form)


def open_lanes(make_env: Callable[[], AnyEnv], form: RowForm, count: int) -> Lanes | LanesInWorkers:
    """Make lanes: one in this process, several in worker processes where these can be started."""
    if count == 1 or is_daemon():
        return Lanes(make_env, form, count)
    return LanesInWorkers(make_env, form, count)
