"""Checks of what becomes of batches in JAX, for a process of their own.

Once JAX is loaded, a process that forks is warned; other tests fork. Says the names of the checks
that passed, one a line.
"""

from __future__ import annotations

import doctest
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers.base import optional_libraries
from stepwell.buffers.libraries import jax_learners
from stepwell.buffers.libraries.jax_learners import to_jax
from support.envs.logged_envs import Play


def assert_same(some: Any, other: Any, path: str = "") -> None:
    """Nested values hold the same numbers, JAX's arrays in place of numpy's."""
    if isinstance(other, np.ndarray):
        if path.endswith("ids"):
            assert some is other
            return
        assert isinstance(some, jax.Array), path
        assert some.shape == other.shape, path
        np.testing.assert_array_equal(np.asarray(some), other, err_msg=path)
    elif isinstance(other, dict):
        assert set(some) == set(other), path
        for key in other:
            assert_same(some[key], other[key], f"{path}/{key}")
    elif isinstance(other, tuple):
        assert type(some) is type(other)
        for place, part in enumerate(other):
            assert_same(some[place], part, f"{path}/{place}")
    elif hasattr(other, "__dataclass_fields__"):
        assert type(some) is type(other), path
        for field in fields(other):
            if field.name == "memory":
                assert some.memory == {}
            else:
                mine = getattr(some, field.name)
                assert_same(mine, getattr(other, field.name), f"{path}/{field.name}")
    else:
        assert some is other or some == other, path


def check_every_kind_of_batch_keeps_its_type_and_numbers() -> None:
    for kind in ("vector", "dict", "stack-zero"):
        play = Play(kind)
        replay = play.replay()
        stack = kind == "stack-zero"
        transitions = replay.sample_transitions(16, n_step=3)
        sequences = replay.sample_sequences(8, 4, align="transition", stack=stack, state=["value"])
        collector = Play(kind).collector()
        rollout = collector.rollout(steps=9)
        rollout.advantages(0.9, 0.9)
        minibatch = next(rollout.minibatches(8))
        for batch in (transitions, sequences, replay.sample_episodes(3), rollout, minibatch):
            assert_same(to_jax(batch), batch)
            assert not isinstance(batch.reward, jax.Array)


def check_what_is_drawn_later_changes_nothing() -> None:
    play = Play("stack-zero")
    replay = play.replay()
    for request in (sw.Transitions(64), sw.Sequences(64, 3, stack=True)):
        batch = replay.sample(request)
        before = np.array(batch.observation)
        mine = to_jax(batch)
        for _ in range(5):
            batch = replay.sample(request, out=batch)
        batch.observation[...] = 77
        batch.reward[...] = 77
        assert (np.asarray(mine.observation) == before).all()
        assert not (np.asarray(mine.reward) == 77).any()


def check_large_arrays_have_memory_of_their_own() -> None:
    for dtype in (np.float32, np.uint8):
        array = np.zeros(1 << 18, dtype)
        found: Any = to_jax({"a": array, "b": array[1:]})
        array[...] = 7
        assert not found["a"].any()
        assert not found["b"].any()


def check_64_bits_are_kept_or_refused() -> None:
    batch = Play().replay().sample_transitions(4)
    found: Any = to_jax(batch)
    assert (found.action.dtype, found.observation.dtype) == (np.int32, np.float32)
    assert found.ids.dtype == np.int64
    large = replace(batch, action=np.array([1, 2, 3, 2**31]))
    with pytest.raises(
        ValueError, match=r"^action: .*int64.*int32.*got 2147483648; .*jax_enable_x64$"
    ):
        to_jax(large)
    thirds = replace(batch, observation=np.full((4, 5), 1 / 3))
    with pytest.raises(ValueError, match=r"^observation: .*float64.*float32.*round_floats=True"):
        to_jax(thirds)
    rounded = to_jax(thirds, round_floats=True)
    assert rounded.observation[0, 0] == np.float32(1 / 3)
    holes = replace(batch, observation=np.array([[np.nan, np.inf, 1.0, 0.0, -1.0]] * 4))
    assert_same(to_jax(holes), holes)
    nested = {"a": (np.array([2**40]),)}
    with pytest.raises(ValueError, match=r"^a/0: .*int64.*int32.*got 1099511627776"):
        to_jax(nested)
    with jax.enable_x64(True):
        wide = to_jax(large)
        assert wide.action.dtype == np.int64
        assert_same(to_jax(thirds), thirds)
        assert to_jax(thirds).observation.dtype == np.float64


def check_numbers_that_jax_does_not_have_are_refused() -> None:
    for array in (np.array(["a"]), np.zeros(2, np.longdouble), np.array([None])):
        with pytest.raises(TypeError, match=rf"^field: .*JAX.*got {array.dtype};"):
            to_jax({"field": array})
    swapped = np.arange(3, dtype=">i2")
    assert to_jax({"a": swapped})["a"].tolist() == [0, 1, 2]


def check_a_device_is_where_arrays_go() -> None:
    device = jax.devices("cpu")[0]
    found: Any = to_jax({"a": np.arange(3)}, device=device)
    assert found["a"].devices() == {device}


def check_a_batch_is_a_pytree() -> None:
    replay = Play("dict").replay()
    sequences = replay.sample_sequences(8, 4, burn_in=2, borders="cross", fields=["observation"])
    rollout = Play("dict").collector().rollout(steps=9)
    for batch in (replay.sample_transitions(16), sequences, next(rollout.minibatches(8))):
        flat = jax.tree.leaves(batch)
        assert all(isinstance(leaf, np.ndarray) for leaf in flat)
        doubled = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), batch)
        assert type(doubled) is type(batch)
        for leaf, twice in zip(flat, jax.tree.leaves(doubled), strict=True):
            assert len(twice) == 2 * len(leaf)
        assert getattr(doubled, "burn_in", None) == getattr(batch, "burn_in", None)
        assert not getattr(doubled, "memory", {})
        paths = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)
        ]
        assert any(path.startswith(".observation[") for path in paths), paths
        with jax.enable_x64(True):
            on_device = jax.jit(lambda given: given)(batch)
        assert jax.tree.structure(on_device) == jax.tree.structure(batch)
        for leaf, other in zip(jax.tree.leaves(on_device), flat, strict=True):
            np.testing.assert_array_equal(np.asarray(leaf), other)
    assert jax.tree.map(np.shape, sequences).action is None


def check_ids_of_a_compiled_function_have_32_bits() -> None:
    batch = Play().replay().sample_transitions(4)
    large = replace(batch, ids=np.array([7, 2**31 - 1, 2**31, 2**32 + 5]))
    for given in (large, to_jax(large)):
        found: Any = jax.jit(lambda batch: batch)(given)
        assert given.ids.dtype == np.int64
        assert found.ids.dtype == np.int32
        assert found.ids.tolist() == [7, 2**31 - 1, -(2**31), 5]


def check_each_way_to_a_batch_tells_jax() -> None:
    replay, rollout = Play().replay(), Play().collector().rollout(steps=9)
    ways: list[Callable[[], object]] = [
        lambda: replay.sample_transitions(4),
        lambda: replay.take(sw.Transitions(1), replay.sample_transitions(4).ids),
        lambda: next(iter(replay.epoch(sw.Transitions(4)))),
        lambda: next(rollout.minibatches(8)),
        lambda: to_jax({}),
    ]
    for way in ways:

        @optional_libraries.pytree
        @dataclass
        class Noted:
            reward: Any

        assert len(jax.tree.leaves(Noted([1, 2]))) == 1
        way()
        assert jax.tree.leaves(Noted([1, 2])) == [1, 2]


def check_a_program_may_register_a_batch_itself() -> None:
    @optional_libraries.pytree
    @dataclass
    class Own:
        reward: Any

    jax.tree_util.register_dataclass(Own, ["reward"], [])
    optional_libraries.tell_jax()
    assert jax.tree.map(lambda leaf: leaf + 1, Own(1)) == Own(2)


def check_the_example_in_the_docstring_runs() -> None:
    text = (jax_learners.to_jax.__doc__ or "").replace("# doctest: +SKIP", "")
    test = doctest.DocTestParser().get_doctest(text, vars(jax_learners).copy(), "to_jax", None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0


CHECKS = [name for name in list(globals()) if name.startswith("check_")]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for name in CHECKS:
            globals()[name]()
            print(name)
