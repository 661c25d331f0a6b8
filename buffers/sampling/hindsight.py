"""Goals in hindsight: transitions of a batch get goals that were achieved in their episode.

Hindsight experience replay: Andrychowicz et al., 2017, arXiv:1707.01495.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..spec.spec import Spec, unflatten
from ..storage.chunk_index import ChunkIndex
from .batch import Memory, Rest
from .requests import Transitions
from .row_reader import FIRST_ROW, LAST, RowReader, Segments

_ACHIEVED, _DESIRED = "observation/achieved_goal", "observation/desired_goal"


class Steps(NamedTuple):
    """Transitions of a batch, each with the row that it leads to."""

    start: np.ndarray  # [B] first row, counted in its episode
    chunk: np.ndarray  # [B] index of the chunk of the last row
    place: np.ndarray  # [B] that row in the chunk
    at: np.ndarray  # [B, 8] the chunk's row in the reader's table
    steps: np.ndarray  # [B] env steps from the first row to the last


class Relabeller:
    """Relabels transitions for one request."""

    def __init__(self, request: Transitions, spec: Spec) -> None:
        assert request.relabel is not None
        self._compute_reward, self._strategy, number = request.relabel
        self._group = number + 1  # transitions of which one keeps its goal
        self._weights = request.gamma ** np.arange(request.n_step)
        forms = {f.name: (f.dtype, f.shape, f.stack) for f in spec.fields}
        goals = [name for name in forms if _is_below(_ACHIEVED, name)]
        self._desired_of = {name: _DESIRED + name.removeprefix(_ACHIEVED) for name in goals}
        desired = {name for name in forms if _is_below(_DESIRED, name)}
        if (
            not goals
            or {name: forms.get(to) for name, to in self._desired_of.items()}
            != {name: forms[name] for name in goals}
            or len(desired) > len(goals)
        ):
            raise ValueError(
                f"relabel: expected observations with an achieved_goal and a desired_goal of one "
                f"dtype and shape, got ({spec.summary}); leave relabel out"
            )
        if request.stack and any(forms[name][2] > 1 for name in goals):
            raise ValueError(
                f"relabel: expected goals that are no stacks of frames, got a stack of "
                f"{forms[goals[0]][2]} for {goals[0]}; pass stack=False"
            )
        layout: Any = spec.observation
        self._layouts = layout["achieved_goal"], layout["desired_goal"]
        self._info = {field.name: field.key for field in spec.of_kind("info")}

    def relabel(
        self,
        reader: RowReader,
        index: ChunkIndex,
        chosen: Steps,
        rng: np.random.Generator,
        # by name the fields [B, ...] of the first rows, and of the last ones
        observations: tuple[Memory, Memory],
        reward: np.ndarray | None,  # [B] float32; None if it was not requested
        rest: Rest,  # the rest of the work on the batch, which is added to
    ) -> None:
        """Draw goals and plan their copies; at the end of the rest they are in the batch."""
        count = len(chosen.start)
        number = int(count - count / self._group + rng.random())
        of = rng.permutation(count)[:number]
        if not len(of):
            return
        start, chunk, place, at, steps = (each.take(of, 0) for each in chosen)
        found = self._goals(reader, index, start, chunk, at, rng)
        goals = _read(reader, found, self._desired_of, len(of), rest)
        results: Memory = {}
        if reward is not None:
            after = np.cumsum(steps)
            runs = reader.segments(chunk, place, at, steps, after - steps)
            results = _read(reader, runs, [*self._desired_of, *self._info], int(after[-1]), rest)

        def finish() -> None:
            new = {desired: goals[name] for name, desired in self._desired_of.items()}
            for name, rows in new.items():
                for part in observations:
                    if name in part:
                        part[name][of] = rows
            if reward is not None:
                reward[of] = self._returns(results, new, steps)

        rest[1].append(finish)

    def _goals(
        self,
        reader: RowReader,
        index: ChunkIndex,
        start: np.ndarray,
        chunk: np.ndarray,
        at: np.ndarray,
        rng: np.random.Generator,
    ) -> Segments:
        """Draw the rows whose achieved goals the transitions get, a segment for each."""
        chunk, at = reader.tails(chunk, at)
        place = at[:, LAST]
        if self._strategy != "final":
            last = at[:, FIRST_ROW] + place
            before = index.records["head"].take(chunk) if self._strategy == "episode" else start
            row = last - (rng.random(len(last)) * (last - before)).astype(np.int64)
            chunk, place, at = reader.locate(chunk, row)
        reader.find(chunk, at)
        return Segments(chunk, at, place, np.ones_like(place), np.arange(len(place)))

    def _returns(self, results: Memory, goals: Memory, steps: np.ndarray) -> np.ndarray:
        """Discounted sums of the rewards of the steps of each transition, [n]."""
        # results: by name the fields [sum of steps, ...] of the rows after each step.
        # goals: by name the fields [n, ...] of the desired goals. steps: [n].
        is_single = len(self._weights) == 1
        if not is_single:
            goals = {name: rows.repeat(steps, 0) for name, rows in goals.items()}
        achieved, desired = self._layouts
        count = int(steps.sum())
        keys, columns = self._info.values(), [results[name] for name in self._info]
        infos: list[Mapping[str, Any]] = [{} for _ in range(count)]
        if columns:
            infos = [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
        rewards = np.asarray(
            self._compute_reward(unflatten(achieved, results), unflatten(desired, goals), infos)
        )
        if rewards.shape not in ((count,), (count, 1)) or rewards.dtype.kind not in "biuf":
            raise ValueError(
                f"compute_reward: expected {count} rewards for {count} goals at once, got "
                f"{rewards.dtype} {rewards.shape}; compute them along the last axis of the goals"
            )
        rewards = rewards.reshape(count)
        if is_single:
            return rewards
        begins = np.cumsum(steps) - steps
        powers = self._weights[np.arange(count) - begins.repeat(steps)]
        returns: np.ndarray = np.add.reduceat(rewards * powers, begins)
        return returns


def _is_below(path: str, name: str) -> bool:
    """True for the field of that path, and for those of a nested value there."""
    return f"{name}/".startswith(f"{path}/")


def _read(
    reader: RowReader, segments: Segments, names: Iterable[str], count: int, rest: Rest
) -> Memory:
    """Fields [count, ...] of rows by name; large ones are planned."""
    found: Memory = {}
    for name in names:
        if reader.is_small(name):
            found[name] = reader.rows(name, segments, count)
        else:
            found[name] = rows = reader.empty(name, count)
            rest[0].append((reader.plan(name, segments, rows), rows))
    return found
