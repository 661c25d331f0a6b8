"""Sequences are whole columns or equal parts of them, with the state before their first row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import Minibatch, Rollout
from support.rows.rollout_rows import Column, Part, frames, labels, rollout_of, rollouts


def assert_sequences(minibatch: Minibatch, rollout: Rollout, length: int) -> None:
    """Check that all arrays have the rows that follow the named first rows."""
    rows = minibatch.step + np.arange(length)[:, None]
    number = labels(*rollout.mask.shape)[rows, minibatch.env]
    assert minibatch.observation["place"].tolist() == number.tolist()
    assert (minibatch.observation["frame"] == frames(number)).all()
    assert minibatch.action.tolist() == (number * 2).tolist()
    assert minibatch.info["place"].tolist() == number.tolist()
    for name in ("reward", "is_first", "terminated", "truncated", "mask", "advantage", "returns"):
        expected = getattr(rollout, name)[rows, minibatch.env]
        assert getattr(minibatch, name).tolist() == expected.tolist(), name
    for name in ("value", "log_prob"):
        expected = rollout.extras[name][rows, minibatch.env]
        np.testing.assert_array_equal(minibatch.extras[name], expected, name)
    place, frame = minibatch.state
    assert place.tolist() == (number[0] * 3).tolist()
    assert (frame == frames(number[0])).all()


def counting(rows: int = 6, envs: int = 3) -> Rollout:
    part = Part(0, (0.0,) * rows, (0.0,) * rows, "open", 0.0, True)
    return rollout_of([Column(rows, (part,))] * envs)


@given(rollouts(), st.data(), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_each_sequence_occurs_once_an_epoch_with_all_its_arrays(
    columns: Sequence[Column], data: st.DataObject, batch_size: int, epochs: int, drop_last: bool
) -> None:
    rollout = rollout_of(columns)
    rollout.advantages(0.9, 0.9)
    rows = rollout.num_steps
    length = data.draw(st.sampled_from([None, *(n for n in range(1, rows + 1) if rows % n == 0)]))
    span = length or rows
    every = {(t, n) for t in range(0, rows, span) for n in range(rollout.num_envs)}
    if drop_last and batch_size > len(every):
        return
    found = list(rollout.sequences(batch_size, epochs, length=length, drop_last=drop_last))
    rest = len(every) % batch_size
    sizes = [batch_size] * (len(every) // batch_size) + ([rest] if rest and not drop_last else [])
    assert [len(m.step) for m in found] == sizes * epochs
    seen: Counter[tuple[int, int]] = Counter()
    for minibatch in found:
        assert_sequences(minibatch, rollout, span)
        seen.update(zip(minibatch.step.tolist(), minibatch.env.tolist(), strict=True))
    assert seen.keys() <= every
    assert sum(seen.values()) == epochs * sum(sizes)
    if not drop_last:
        assert set(seen.values()) == {epochs}
    for epoch in range(epochs):
        part = found[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        firsts = [(t, n) for m in part for t, n in zip(m.step, m.env, strict=True)]
        assert len(set(firsts)) == len(firsts)


def test_whole_columns_begin_with_the_state_before_row_0() -> None:
    rollout = counting()
    initial: Any = {"h": np.arange(3.0)[:, None] + 100}
    rollout = replace(rollout, state=None, initial_state=initial)
    for minibatch in rollout.sequences(2):
        assert minibatch.state["h"].tolist() == (minibatch.env[:, None] + 100.0).tolist()


def test_without_a_state_any_divisor_of_the_rows_is_a_length() -> None:
    rollout = replace(counting(), state=None, initial_state=None)
    found = list(rollout.sequences(4, length=2))
    assert [m.reward.shape for m in found] == [(2, 4), (2, 4), (2, 1)]
    assert all(m.state is None for m in found)
