"""Rows with goals, and by brute force every goal that hindsight may give to a transition."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from stepwell.buffers import Chunk, End, Field, Hindsight, Spec
from stepwell.buffers.sampling.batch import TransitionBatch
from stepwell.buffers.sampling.requests import Transitions
from support.models.replay_histories import Kind
from support.models.replay_model import Transition
from support.rows.replay_rows import ModelEpisode, Played, Recording, Row, numbered_spec

SMALL, LARGE = 2, 12  # numbers of a goal: what is cached, and what is copied


def goal_spec(width: int, stack: int = 1) -> Spec:
    """Rows with two goals of so many numbers; nothing else in an observation need be the same."""
    spec = numbered_spec(stack)
    goals = [
        Field(f"observation/{name}", "float64", (width,), "raw")
        for name in ("achieved_goal", "desired_goal")
    ]
    layout = {**cast("Mapping[str, str]", spec.observation), **{f.name[12:]: f.name for f in goals}}
    return replace(spec, fields=(*spec.fields[:2], *goals, *spec.fields[2:]), observation=layout)


def achieved_in(row: Row, width: int) -> np.ndarray:
    """The achieved goal of a row: no two rows have the same."""
    return np.resize([row.episode, row.number], width).astype(np.float64)


def desired_in(row: Row, width: int) -> np.ndarray:
    """The desired goal of a row as it is stored: none is an achieved one."""
    return np.resize([-1.0 - row.episode, row.number], width)


class GoalRecording(Recording):
    """A recording of rows with goals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def chunk(self, stream: int, new_rows: int, end: End = End.NONE) -> Chunk:
        chunk = super().chunk(stream, new_rows, end)
        goals = {
            f"observation/{name}": np.array(
                [
                    of(Row(stream, chunk.episode, int(number), 0, True), self.width)
                    for number in chunk.fields["observation/place"][:, 2]
                ]
            )
            for name, of in (("achieved_goal", achieved_in), ("desired_goal", desired_in))
        }
        return replace(chunk, fields={**chunk.fields, **goals})


@contextlib.contextmanager
def a_goal_replay(kind: Kind, width: int = SMALL, **options: Any) -> Iterator[Played]:
    """An empty replay of rows with goals."""
    with contextlib.ExitStack() as stack:
        path = None
        if kind.is_on_disk:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        played = Played(goal_spec(width, kind.stack), path, kind.capacity, **options)
        played.recording = GoalRecording(width)
        yield stack.enter_context(played)


def compute_reward(achieved: np.ndarray, desired: np.ndarray, infos: Any) -> np.ndarray:
    """A reward that anything mixed up would change."""
    clocks = np.array([info["clock"] - info["lives"] / 7 for info in infos])
    found: np.ndarray = achieved[:, 0] * 3 + achieved[:, 1] - desired @ weights_of(desired) + clocks
    return found


def weights_of(goals: np.ndarray) -> np.ndarray:
    return np.sqrt(np.arange(2.0, 2 + goals.shape[1]))


def candidates(step: Transition, episode: ModelEpisode, strategy: str) -> list[Row]:
    """The rows of an episode whose achieved goal the transition may get, equally likely."""
    if strategy == "final":
        return [episode.rows[-1]]
    if strategy == "episode":
        return episode.rows[1:]
    return [row for row in episode.rows if row.number > step.row.number]


def return_of(step: Transition, goal: Row, gamma: float, width: int) -> float:
    """The discounted rewards of a transition for the achieved goal of a row."""
    rewards = [
        compute_reward(
            achieved_in(row, width)[None], achieved_in(goal, width)[None], [info_of(row)]
        )
        for row in step.between
    ]
    return float(sum(gamma**i * float(reward[0]) for i, reward in enumerate(rewards)))


def info_of(row: Row) -> dict[str, float]:
    """The info fields that `compute_reward` reads."""
    return {"clock": row.episode + row.number / 64, "lives": row.episode**3 * 5 - row.number}


def relabelled(
    batch: TransitionBatch,
    steps: Sequence[Transition],
    episodes: Sequence[ModelEpisode],
    request: Transitions,
    width: int,
) -> dict[int, Row]:
    """The goal of each transition of a batch that got another one, by its place in the batch.

    Everything in which the batch differs from stored rows is checked.
    """
    hindsight = cast("Hindsight", request.relabel)
    by_id = {episode.id: episode for episode in episodes}
    found: dict[int, Row] = {}
    now: Any = batch.observation
    then: Any = batch.next_observation
    for place, step in enumerate(steps):
        goal, after = now["desired_goal"][place], then["desired_goal"][place]
        if goal[0] < 0:
            assert (goal == desired_in(step.row, width)).all()
            assert (after == desired_in(step.between[-1], width)).all()
            continue
        assert (goal == after).all()
        episode = by_id[step.row.episode]
        number = int(goal[1])
        rows = [r for r in candidates(step, episode, hindsight.strategy) if r.number == number]
        assert len(rows) == 1, f"row {number} is no goal of {hindsight.strategy!r} for {step}"
        assert (goal == achieved_in(rows[0], width)).all()
        expected = np.float32(return_of(step, rows[0], request.gamma, width))
        np.testing.assert_allclose(batch.reward[place], expected, rtol=1e-5, atol=1e-4)
        found[place] = rows[0]
    return found
