"""Rollouts made from lists of episodes, and what is to be found in them, by definition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from hypothesis import strategies as st

from stepwell.buffers import Bootstrap, Rollout

Ending = Literal["terminated", "truncated", "both", "cut", "open"]
_FLAGS = ("is_first", "terminated", "truncated", "cut")
LAYOUTS = ("next_step", "same_step")
# In rows from which no step was taken stands what must never be used.
POISON = math.nan


@dataclass(frozen=True)
class Part:
    """The steps of one episode that lie in a rollout, one after the other."""

    row: int  # the first one's row
    rewards: tuple[float, ...]  # the rewards of its steps
    values: tuple[float, ...]  # v of the observation before each
    ending: Ending  # what became of the episode behind the last one
    last_value: float  # v of what followed on the last one: its true last observation
    begins: bool  # the first row is that of a reset

    @property
    def steps(self) -> int:
        return len(self.rewards)

    @property
    def last_row(self) -> int:
        return self.row + self.steps - 1


@dataclass(frozen=True)
class Column:
    """The column of one env: parts of episodes, and between them rows without a step."""

    rows: int
    parts: tuple[Part, ...] = ()
    firsts: frozenset[int] = field(default_factory=frozenset[int])  # resets without a step, too


def advantages_by_sums(part: Part, gamma: float, lam: float) -> list[float]:
    """Equation 16 of the paper: sums of later one-step errors, up to the end."""
    following = [*part.values[1:], 0.0 if "terminated" in ends_of(part) else part.last_value]
    delta = [
        reward + gamma * after - before
        for reward, after, before in zip(part.rewards, following, part.values, strict=True)
    ]
    return [
        math.fsum((gamma * lam) ** (k - t) * delta[k] for k in range(t, part.steps))
        for t in range(part.steps)
    ]


def ends_of(part: Part) -> tuple[str, ...]:
    return ("terminated", "truncated") if part.ending == "both" else (part.ending,)


def expected_advantages(columns: Sequence[Column], gamma: float, lam: float) -> np.ndarray:
    """[T, N], 0 where no step was taken."""
    found = np.zeros((columns[0].rows, len(columns)))
    for env, column in enumerate(columns):
        for part in column.parts:
            found[part.row : part.row + part.steps, env] = advantages_by_sums(part, gamma, lam)
    return found


def mask_of(columns: Sequence[Column]) -> np.ndarray:
    """[T, N] bool."""
    found = np.zeros((columns[0].rows, len(columns)), bool)
    for env, column in enumerate(columns):
        for part in column.parts:
            found[part.row : part.row + part.steps, env] = True
    return found


def labels(rows: int, envs: int, offset: int = 0) -> np.ndarray:
    """[T, N]: a number for each row, unique to its place."""
    return np.arange(rows * envs).reshape(rows, envs) + offset


def rollout_of(
    columns: Sequence[Column],
    *,
    lists_terminated: bool = False,
    dtype: type[np.floating] = np.float64,
    seed: int = 0,
) -> Rollout:
    """The rollout that a collector would make of it.

    Observations, actions, info, extras and states contain their row: see `assert_rows`.

    Args:
        columns: What the envs did.
        lists_terminated: ``bootstrap`` also has an entry where an episode was terminated and
            truncated, of value nan.
        dtype: Dtype of the values.
        seed: Seed of the minibatches' order.
    """
    rows, envs = columns[0].rows, len(columns)
    flags = {name: np.zeros((rows, envs), bool) for name in _FLAGS}
    mask = mask_of(columns)
    reward = np.zeros((rows, envs), np.float32)
    value = np.full((rows, envs), POISON, dtype)
    open_ends: list[tuple[int, int, float]] = []
    for env, column in enumerate(columns):
        flags["is_first"][list(column.firsts), env] = True
        for part in column.parts:
            reward[part.row : part.row + part.steps, env] = part.rewards
            value[part.row : part.row + part.steps, env] = part.values
            flags["is_first"][part.row, env] = part.begins
            for name in set(ends_of(part)) - {"open"}:
                flags[name][part.last_row, env] = True
            if part.ending != "terminated" and (part.ending != "both" or lists_terminated):
                worth = 0.0 if part.ending == "both" else part.last_value
                open_ends.append((part.last_row, env, worth))
    number = labels(rows, envs)
    step, env_of = (np.array([e[i] for e in open_ends], np.int64) for i in (0, 1))
    behind = np.array([e[2] for e in open_ends], dtype)
    return Rollout(
        observation=cast("Any", {"place": number, "frame": frames(number)}),
        action=number * 2,
        reward=reward,
        is_first=flags["is_first"],
        terminated=flags["terminated"],
        truncated=flags["truncated"],
        cut=flags["cut"],
        mask=mask,
        info={"place": number},
        extras={"value": value, "log_prob": np.where(mask, number, POISON)},
        bootstrap=Bootstrap(step, env_of, cast("Any", {"worth": behind}), None, behind),
        state=(number * 3, frames(number)),
        initial_state=(number[0] * 3, frames(number[0])),
        rng=np.random.default_rng(seed),
    )


def frames(number: np.ndarray) -> np.ndarray:
    """A large value unique to its row, [..., 2, 3] uint8."""
    found: np.ndarray = (number[..., None, None] * 7 + np.arange(6).reshape(2, 3)).astype(np.uint8)
    return found


@st.composite
def parts(draw: st.DrawFn, rows: int, first_row: int, is_last: bool) -> Part:
    numbers = st.integers(-40, 40).map(lambda eighths: eighths / 8)  # exact as float32
    steps = rows if is_last else draw(st.integers(1, min(3, rows)))
    endings: Iterable[Ending] = ("terminated", "truncated", "both", "cut")
    ending: Ending = draw(st.sampled_from([*endings, "open"] if is_last else list(endings)))
    several = st.lists(numbers, min_size=steps, max_size=steps)
    return Part(
        row=first_row,
        rewards=tuple(draw(several)),
        values=tuple(draw(several)),
        ending=ending,
        last_value=draw(numbers),
        begins=True,
    )


@st.composite
def some_columns(draw: st.DrawFn, rows: int) -> Column:
    """One env: it begins inside an episode, with a reset, or with a row without a step."""
    layout = draw(st.sampled_from(LAYOUTS))
    begins = draw(st.booleans())
    # A worker died in row 0, or an env resets in it whose episode ended just before the rollout.
    row = draw(st.integers(0, min(2, rows))) if draw(st.booleans()) else 0
    begins = begins or row > 0
    found: list[Part] = []
    while row < rows:
        part = draw(parts(rows - row, row, draw(st.integers(0, 3)) == 3))
        found.append(replace(part, begins=begins))
        row += part.steps
        # In this row the env resets, or the worker died; a reset may also follow on a cut at once.
        row += layout == "next_step" or (part.ending == "cut" and draw(st.booleans()))
        begins = True
    free = set(range(rows)) - {p.row + i for p in found for i in range(p.steps)}
    # A worker may also die in the first step of an episode: a reset, and no step from it.
    firsts = draw(st.sets(st.sampled_from(sorted(free)))) if free else set[int]()
    return Column(rows, tuple(found), frozenset(firsts))


@st.composite
def rollouts(draw: st.DrawFn, most_rows: int = 12, most_envs: int = 4) -> list[Column]:
    """Columns of equal length, in all layouts."""
    rows = draw(st.integers(1, most_rows))
    return [draw(some_columns(rows)) for _ in range(draw(st.integers(1, most_envs)))]
