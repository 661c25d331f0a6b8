"""Frequencies and updates of priorities agree with a dictionary.

Within a batch the weights give the ratios of all probabilities exactly, so that most tests need no
statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import Batch, NotEnoughData
from stepwell.buffers.sampling.batch import TransitionBatch
from stepwell.buffers.sampling.requests import Sequences, Transitions
from support.chi_square import assert_shares
from support.models.replay_histories import HISTORIES, KINDS, Kind, a_replay, busy_history
from support.models.replay_model import assert_drawn, drawable
from support.rows.replay_rows import Played, Step

EPSILON = 1e-6  # added to every priority
ALPHA = 0.6  # what a replay raises them to


class PriorityModel:
    """Priorities by id: new ids get the largest priority of the ids that are still there.

    Or a given one.
    """

    def __init__(self, new: float | None = None) -> None:
        self.new = new
        self.priorities: dict[int, float] = {}

    def follow(self, ids: Sequence[int]) -> None:
        """Set the ids that can be drawn now."""
        there = {row: self.priorities[row] for row in ids if row in self.priorities}
        new = max(there.values(), default=1.0) if self.new is None else self.new + EPSILON
        self.priorities = {row: there.get(row, new) for row in ids}

    def update(self, ids: Sequence[int], values: Sequence[float]) -> int:
        """Update priorities and return the number of ignored ids."""
        ignored = 0
        for row, value in zip(ids, values, strict=True):
            if row not in self.priorities:
                ignored += 1
                continue
            self.priorities[row] = abs(value) + EPSILON
        return ignored

    def shares(self, alpha: float = ALPHA) -> dict[Any, float]:
        return {row: priority**alpha for row, priority in self.priorities.items()}

    def assert_weights(self, batch: Batch | TransitionBatch, beta: float) -> None:
        """Schaul et al. 2016, sec. 3.4: (N P)^-beta, divided by the largest of the batch."""
        masses = np.array([self.priorities[row] ** ALPHA for row in batch.ids.tolist()])
        expected = (masses / masses.min()) ** -beta
        assert batch.weights.dtype == np.float32
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-4)


KINDS_OF_ITEM: list[Sequences | Transitions] = [
    Transitions(16, draw="priorities", beta=0.5),
    Transitions(16, n_step=3, draw="priorities", beta=1.0),
    Sequences(16, 3, draw="priorities", beta=0.7),
    Sequences(16, 1, draw="priorities", beta=0.7),
    Sequences(16, 4, "pad_after", draw="priorities", align="transition"),
    Sequences(16, 4, "cross", draw="priorities"),
    Sequences(16, 3, draw="priorities", burn_in=4),
    Sequences(16, 5, "pad_before", draw="priorities", align="transition"),
]


@pytest.mark.proof
@given(KINDS, HISTORIES, st.sampled_from(KINDS_OF_ITEM), st.randoms(use_true_random=False))
def test_priorities_agree_with_a_dictionary(
    kind: Kind, history: list[Step], request: Sequences | Transitions, random: Any
) -> None:
    """Drawn and updated after each addition, also with ids of evicted rows."""
    request = request._replace(stack=kind.stack > 1)
    history = [step._replace(then=step.then.replace("restart", "")) for step in history]  # type: ignore[arg-type]
    with a_replay(kind) as played:
        model, seen = PriorityModel(kind.new_priority), [7_000_000]
        for step in history:
            played.add(step)
            model.follow(list(drawable(played, request, kind.stack)))
            if not model.priorities:
                with pytest.raises(NotEnoughData):
                    played.replay.sample(request)
                continue
            batch = played.replay.sample(request)
            assert_drawn(played, batch, request, kind.stack)
            model.assert_weights(batch, request.beta)
            seen += batch.ids.tolist()
            some = random.sample(seen, min(len(seen), 8))
            values = [random.choice([0.0, 0.5, -3.0, 8.0, 100.0]) for _ in some]
            ignored = played.replay.update_priorities(
                np.array(some, np.int64), np.array(values, np.float32)
            )
            assert ignored == model.update(some, values)


@pytest.mark.parametrize("request_", KINDS_OF_ITEM, ids=str)
def test_items_are_drawn_in_proportion_to_their_priorities(
    request_: Sequences | Transitions,
) -> None:
    with a_replay(Kind()) as played:
        for step in busy_history(20):
            played.add(step)
        model, rng = PriorityModel(), np.random.default_rng(0)
        model.follow(list(drawable(played, request_)))
        ids = np.array(list(model.priorities))
        played.replay.sample(request_)
        some = rng.permutation(ids)[: len(ids) * 3 // 4]
        values = rng.exponential(2.0, len(some))
        assert played.replay.update_priorities(some, values) == 0
        model.update(some.tolist(), values.tolist())
        counts: Counter[Any] = Counter()
        for _ in range(8):
            batch = played.replay.sample(request_._replace(batch_size=500))
            model.assert_weights(batch, request_.beta)
            counts.update(batch.ids.tolist())
        assert_shares(counts, model.shares())


def test_a_checkpoint_keeps_the_priority_of_new_rows(tmp_path: Path) -> None:
    request = Transitions(400, draw="priorities", beta=1.0)

    def weights(played: Played) -> dict[int, float]:
        batch = played.replay.sample(request)
        return dict(zip(batch.ids.tolist(), batch.weights.tolist(), strict=True))

    with Played(path=tmp_path / "store", new_priority=2.0) as played:
        played.add(Step(0, 11))
        played.replay.update_priorities(np.array(list(weights(played))), np.full(10, 50.0))
        state = played.replay.state_dict()
        assert state["sampler"]["priorities"]["new"] == 2.0
        played.replay.save_checkpoint()
        played.add(Step(0, 4))
        expected = weights(played)
        played.restart()
        played.replay.load_checkpoint()  # rows that were stored after it are new ones
        assert weights(played) == expected
        assert set(expected.values()) == {1.0, min(expected.values())}
        del state["sampler"]["priorities"]["new"]  # as earlier versions have it
        played.replay.load_state_dict(state)
        assert weights(played) == expected
        for other in (None, 1.0):
            played.options["new_priority"] = other
            played.restart()
            with pytest.raises(ValueError, match=rf"^new_priority: .*\b2\.0\b.*\b{other}\b"):
                played.replay.load_checkpoint()


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_alpha_is_the_exponent_of_the_priorities(alpha: float) -> None:
    request = Transitions(2_000, draw="priorities", beta=0.0, stack=False)
    played = Played(priority_alpha=alpha)
    with played:
        played.add(Step(0, 11))
        played.replay.sample(request)
        values = np.linspace(1, 10, 10)
        played.replay.update_priorities(np.arange(10), values)
        batch = played.replay.sample(request)
        assert (batch.weights == 1).all()
        shares = {row: (value + EPSILON) ** alpha for row, value in enumerate(values)}
        assert_shares(Counter(batch.ids.tolist()), shares)
