"""Each step is in one minibatch an epoch, in random order; rows without a step are in none."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import Loader, Minibatch, Rollout
from stepwell.buffers.sampling.batch import map_tree, named_leaves
from support.rows.rollout_rows import Column, Part, frames, labels, mask_of, rollout_of, rollouts

SIZES = st.integers(1, 12)


def assert_rows(minibatch: Minibatch, rollout: Rollout) -> None:
    """Check that all arrays have the rows that ``step`` and ``env`` name."""
    step, env = minibatch.step, minibatch.env
    number = labels(*rollout.mask.shape)[step, env]
    assert rollout.mask[step, env].all()
    assert minibatch.mask.all()
    assert minibatch.observation["place"].tolist() == number.tolist()
    assert (minibatch.observation["frame"] == frames(number)).all()
    assert minibatch.action.tolist() == (number * 2).tolist()
    assert minibatch.info["place"].tolist() == number.tolist()
    assert minibatch.extras["log_prob"].tolist() == number.tolist()
    assert minibatch.extras["value"].tolist() == rollout.extras["value"][step, env].tolist()
    for name in ("reward", "is_first", "terminated", "truncated", "mask", "advantage", "returns"):
        found, whole = getattr(minibatch, name), getattr(rollout, name)
        assert found.tolist() == whole[step, env].tolist(), name
        assert found.dtype == whole.dtype, name
    assert minibatch.state is None


def rows_of(minibatches: Iterator[Minibatch]) -> list[list[tuple[int, int]]]:
    """The rows of each minibatch, as (row, env)."""
    return [list(zip(m.step.tolist(), m.env.tolist(), strict=True)) for m in minibatches]


def plain(rows: int = 6, envs: int = 3) -> Rollout:
    """A rollout of episodes that do not end."""
    part = Part(0, (0.0,) * rows, (0.0,) * rows, "open", 0.0, True)
    return rollout_of([Column(rows, (part,))] * envs)


@given(rollouts(), SIZES, st.integers(1, 3), st.booleans())
def test_each_step_occurs_once_an_epoch_with_all_its_arrays(
    columns: Sequence[Column], batch_size: int, epochs: int, drop_last: bool
) -> None:
    rollout = rollout_of(columns)
    if drop_last and batch_size > rollout.mask.size:
        return
    rollout.advantages(0.9, 0.9)
    taken = {(int(t), int(n)) for t, n in np.argwhere(mask_of(columns))}
    minibatches = list(rollout.minibatches(batch_size, epochs, drop_last=drop_last))
    for minibatch in minibatches:
        assert_rows(minibatch, rollout)
    rest = len(taken) % batch_size
    sizes = [batch_size] * (len(taken) // batch_size) + ([rest] if rest and not drop_last else [])
    assert [len(m.step) for m in minibatches] == sizes * epochs
    rows = rows_of(iter(minibatches))
    for epoch in range(epochs):
        seen = Counter(itertools.chain(*rows[epoch * len(sizes) : (epoch + 1) * len(sizes)]))
        assert not seen or set(seen.values()) == {1}
        assert seen.keys() <= taken
        assert len(seen) == sum(sizes)


def test_the_generator_of_the_rollout_shuffles_unless_another_is_given() -> None:
    column = Column(8, (Part(0, (0.0,) * 8, (0.0,) * 8, "open", 0.0, True),))
    own = rows_of(rollout_of([column], seed=5).minibatches(3))
    given = rows_of(plain(8, 1).minibatches(3, rng=np.random.default_rng(5)))
    assert own == given
    rollout = rollout_of([column], seed=5)
    list(rollout.minibatches(3, rng=np.random.default_rng(0)))
    assert rows_of(rollout.minibatches(3)) == own


@pytest.mark.proof
def test_all_orders_of_rows_are_equally_likely() -> None:
    # 6,000 draws of 6 orders: a deviation of six standard deviations fails.
    rollout = plain(3, 1)
    orders = Counter(tuple(m.step.tolist()) for m in rollout.minibatches(3, epochs=6_000))
    assert len(orders) == 6
    assert all(abs(count - 1_000) < 6 * np.sqrt(1_000 * 5 / 6) for count in orders.values())


def test_minibatches_have_changed_advantages() -> None:
    rollout = plain()
    advantages, _ = rollout.advantages(0.9, 0.9)
    rollout.advantage = advantages + 10
    assert all(np.unique(m.advantage).tolist() == [10] for m in rollout.minibatches(4))
    advantages, _ = rollout.advantages(0.9, 0.9)
    advantages += 20  # in place: the rollout holds this array
    assert all(np.unique(m.advantage).tolist() == [20] for m in rollout.minibatches(4))


def test_minibatches_share_no_memory_with_the_rollout_or_one_another() -> None:
    rollout = plain()
    rollout.advantages(0.9, 0.9)
    one, other = itertools.islice(rollout.minibatches(9), 2)
    for minibatch in (one, other):
        for array in (minibatch.observation["frame"], minibatch.reward, minibatch.advantage):
            array[...] = 99
    assert not (rollout.reward == 99).any()
    assert (rollout.observation["frame"] == frames(labels(6, 3))).all()
    one.reward[:] = 1
    assert (other.reward == 99).all()


STATELESS = replace(plain(), state=None)


@pytest.mark.parametrize(
    ("draw", "arguments", "options", "error", "match"),
    [
        *(
            (draw, arguments, {}, ValueError, rf"^{name}: .*>= 1.* {number}\b")
            for draw in (plain().minibatches, plain().sequences)
            for number in (0, -1, 2.5, np.nan)
            for name, arguments in (("batch_size", [number]), ("epochs", [2, number]))
        ),
        *(
            (draw, [2], {name: value}, error, match)
            for draw in (plain().minibatches, plain().sequences)
            for name, value, error, match in (
                ("to", "jax", ValueError, r"^to: .*'numpy'.*'torch'.*'jax'"),
                ("device", "cpu", ValueError, r"^device: .*None.*to='numpy'.*'cpu'"),
                ("rng", 0, TypeError, r"^rng: .*Generator.*\b0\b"),
            )
        ),
        (plain().minibatches, [19], {"drop_last": True}, ValueError, r"^batch_size: .*\b18 rows\b"),
        (
            plain().sequences,
            [4],
            {"drop_last": True},
            ValueError,
            r"^batch_size: .*\b3 sequences\b",
        ),
        (plain().sequences, [2], {"length": 4}, ValueError, r"^length: .*\b6 rows\b.* 4\b"),
        (plain().sequences, [2], {"length": 12}, ValueError, r"^length: .*\b6 rows\b.* 12\b"),
        (STATELESS.sequences, [2], {"length": 3}, ValueError, r"^length: .*\b6\b.*\b3\b.*state \["),
    ],
)
def test_a_draw_that_cannot_be_is_refused(
    draw: Any, arguments: list[Any], options: dict[str, Any], error: Any, match: str
) -> None:
    with pytest.raises(error, match=match):
        draw(*arguments, **options)


def test_advantages_of_another_shape_are_refused() -> None:
    rollout = plain()
    rollout.advantage = np.zeros(18)
    with pytest.raises(ValueError, match=r"^advantage: .*\(6, 3\).*\(18,\)"):
        rollout.minibatches(4)
    rollout.advantage, rollout.returns = None, np.zeros((6, 1))
    with pytest.raises(ValueError, match=r"^returns: .*\(6, 3\).*\(6, 1\)"):
        rollout.sequences(1)


def test_drop_last_gives_no_minibatch_of_too_few_steps() -> None:
    # A caller cannot know how many rows of a NEXT_STEP env have a step.
    part = Part(0, (0.0,) * 4, (0.0,) * 4, "terminated", 0.0, True)
    assert list(rollout_of([Column(6, (part,))]).minibatches(5, drop_last=True)) == []


def test_tensors_equal_the_arrays() -> None:
    torch = pytest.importorskip("torch")
    rollout, same = plain(), plain()
    for each in (rollout, same):
        each.advantages(0.9, 0.9)
    tensors = rollout.minibatches(4, to="torch", device="cpu")
    for minibatch, arrays in zip(tensors, same.minibatches(4), strict=True):
        tensor: Any = minibatch.observation["frame"]
        assert tensor.dtype == torch.uint8
        assert (tensor.numpy() == arrays.observation["frame"]).all()
        for name in ("action", "reward", "mask", "advantage", "returns", "step", "env"):
            assert isinstance(getattr(minibatch, name), torch.Tensor), name
            assert getattr(minibatch, name).tolist() == getattr(arrays, name).tolist(), name
        assert minibatch.state is None
    tensors = rollout.sequences(2, length=3, to="torch")
    for minibatch, arrays in zip(tensors, same.sequences(2, length=3), strict=True):
        found, expected = (
            dict(named_leaves("state", each.state)) | dict(named_leaves("seen", each.observation))
            for each in (minibatch, arrays)
        )
        for name, rows in expected.items():
            assert isinstance(found[name], torch.Tensor)
            assert np.array_equal(found[name], rows)
    with pytest.raises(ValueError, match=r"^device: .*'nowhere'"):
        rollout.minibatches(4, to="torch", device="nowhere")


def test_a_loader_iterates_over_minibatches() -> None:
    expected = rows_of(plain().minibatches(4, 2))
    with Loader(plain().minibatches(4, 2)) as loader:
        assert rows_of(loader) == expected


class Hidden(NamedTuple):
    h: object
    c: object


def test_trees_keep_their_structure_and_leaves_are_named_by_their_paths() -> None:
    tree = {"a": (np.zeros(1), [np.zeros(2), None]), "b": Hidden(np.zeros(3), np.zeros(4))}
    assert map_tree(len, tree) == {"a": (1, [2, None]), "b": Hidden(3, 4)}
    assert type(map_tree(len, tree)["b"]) is Hidden
    found = [(name, len(leaf)) for name, leaf in named_leaves("state", tree)]
    assert found == [("state/a/0", 1), ("state/a/1/0", 2), ("state/b/0", 3), ("state/b/1", 4)]
    assert [name for name, _ in named_leaves("action", np.zeros(1))] == ["action"]
