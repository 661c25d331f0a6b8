"""Values of any space go into arrays of a fixed shape, and come back as they were."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers.spec.open_spaces import (
    AnyText,
    decode,
    decode_batch,
    encode,
    encode_batch,
    fixed_space,
    lengths_of,
    original_space,
)
from stepwell.buffers.spec.space_json import space_from_json, space_to_json
from stepwell.wrappers.fixed_spaces import FixedSpaces
from support.envs.open_spaces import ACTION, OBSERVATION, OpenEnv, plain

LEAVES: st.SearchStrategy[spaces.Space[Any]] = st.sampled_from(
    [
        spaces.Box(-1, 1, (2,)),
        spaces.Box(0, 255, (2, 3), np.uint8),
        spaces.Box(0, 1, (0,)),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Text(6),
        spaces.Text(4, min_length=0, charset="aßж🙂"),
        AnyText(5),
    ]
)


def nested(inner: st.SearchStrategy[spaces.Space[Any]]) -> st.SearchStrategy[spaces.Space[Any]]:
    return st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=2).map(spaces.Tuple),
        st.lists(inner, min_size=1, max_size=2).map(spaces.OneOf),
        st.builds(lambda part: spaces.Sequence(part), inner),
        st.builds(lambda node, edge: spaces.Graph(node, edge), inner, st.one_of(st.none(), inner)),
    )


SPACES = st.recursive(LEAVES, nested, max_leaves=3)


@pytest.mark.proof
@settings(max_examples=100, deadline=None)
@given(SPACES, st.integers(0, 1000))
def test_a_value_comes_back_as_it_was(space: spaces.Space[Any], seed: int) -> None:
    space = copy.deepcopy(space)
    try:
        fixed = fixed_space(space)
    except ValueError:
        return  # of more numbers than a value may have
    space.seed(seed)
    values = [_sample(space) for _ in range(3)]
    try:
        rows = [encode(fixed, value) for value in values]
    except ValueError as error:
        if "lengths" not in str(error):
            raise
        return  # a longer one than there is room for
    for value, row in zip(values, rows, strict=True):
        assert plain(decode(fixed, row)) == plain(value)
        assert fixed.contains(row)


def _sample(space: spaces.Space[Any]) -> Any:
    if isinstance(space, AnyText):
        return "é🙂x"
    return space.sample()


@pytest.mark.parametrize("space", [OBSERVATION, ACTION])
def test_batches_samples_and_copies_hold_values_of_the_original(space: spaces.Dict) -> None:
    fixed = fixed_space(space)
    assert original_space(fixed) == space
    batched = batch_space(fixed, 3)
    batched.seed(0)
    again = copy.deepcopy(batched)
    arrays = batched.sample()
    values = decode_batch(fixed, arrays)
    assert len(values) == 3
    assert all(space.contains(value) for value in values)
    assert plain(decode_batch(fixed, again.sample())) == plain(values)
    kept = pickle.loads(pickle.dumps(fixed))
    assert kept == fixed
    assert plain(decode(kept, encode(kept, values[0]))) == plain(values[0])


def test_values_are_batched_as_gymnasium_batches_them() -> None:
    fixed = fixed_space(spaces.Dict({"a": spaces.Text(5), "b": spaces.Discrete(3)}))
    arrays = encode_batch(fixed, {"a": ("go", "stop"), "b": np.array([2, 0])}, 2)
    assert arrays["a"]["length"].tolist() == [2, 4]
    assert arrays["a"]["mask"].sum(1).tolist() == [2, 4]
    assert arrays["b"].tolist() == [2, 0]
    assert decode_batch(fixed, arrays) == [{"a": "go", "b": 2}, {"a": "stop", "b": 0}]


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Text(3), "uint8"),
        (spaces.Text(3, charset="é"), "uint8"),
        (spaces.Text(3, charset="ж"), "int32"),
        (AnyText(3), "int32"),
    ],
)
def test_code_points_take_the_smallest_dtype_that_learners_know(space: Any, dtype: str) -> None:
    fixed: Any = fixed_space(space)
    assert fixed["value"].dtype == dtype


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Text(3), "long one", "observation.*3 characters.*8"),
        (spaces.Text(3), 5, "observation.*text.*5"),
        (spaces.Text(3, charset="ab"), "ж", "observation.*ж"),
        (spaces.Sequence(spaces.Discrete(3)), tuple(range(65)), "64 items.*65.*'observation': 65"),
        (spaces.Sequence(spaces.Discrete(3)), 5, "tuple.*int"),
        (spaces.Sequence(spaces.Box(0, 1, (2,))), (np.zeros(3),), r"\(2,\)"),
        (spaces.Sequence(spaces.Discrete(3)), (0.5,), "int64.*0.5"),
        (spaces.Sequence(spaces.Discrete(3)), (2**70,), "int64.*11805"),
        (spaces.Sequence(spaces.Box(0, 1, (1,))), ([1e39],), "float32.*1e\\+39"),
        (
            spaces.Sequence(spaces.Box(0, 1, (2,))),
            (np.ma.array([0.5, 0.5], mask=[False, True]),),
            "masked",
        ),
        (
            spaces.Graph(spaces.Box(0, 1, (1,)), None),
            spaces.GraphInstance(np.ma.array([[0.5]], mask=[[True]]), None, None),
            "masked",
        ),
        (spaces.Sequence(spaces.Dict(a=spaces.Discrete(3))), ({"b": 1},), "'a'.*'b'"),
        (spaces.Sequence(spaces.Tuple([spaces.Discrete(3)] * 2)), ((1,),), "tuple of 2.*1"),
        (spaces.Sequence(spaces.Tuple([spaces.Discrete(3)] * 2)), ((1,) * 3,), "tuple of 2.*1"),
        (spaces.OneOf([spaces.Discrete(3)] * 2), (1.7, 0), "int64.*1.7"),
        (spaces.OneOf([spaces.Discrete(3)]), (1, 0), "0 to 0.*1"),
        (spaces.OneOf([spaces.Discrete(3)]), 0, "pair.*0"),
        (spaces.Graph(spaces.Discrete(3), None), 5, "GraphInstance.*int"),
        (
            spaces.Graph(spaces.Discrete(3), spaces.Discrete(2)),
            spaces.GraphInstance(np.array([0]), np.array([1]), np.array([[0, 1]])),
            r"links \[1, 2\] between 1 nodes",
        ),
        (
            spaces.Graph(spaces.Discrete(3), None),
            spaces.GraphInstance(np.zeros(65, np.int64), None, None),
            "64 nodes.*65.*'observation/node': 65",
        ),
    ],
)
def test_a_value_that_is_none_is_refused(space: Any, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode(fixed_space(space), value)


@pytest.mark.parametrize(
    ("space", "change", "words"),
    [
        (spaces.Text(3), {"length": np.int64(4)}, "length.*0 to 3.*4"),
        (spaces.Text(3), {"length": np.int64(-1)}, "length.*-1"),
        (spaces.Text(3), {"mask": np.array([True, False, True])}, "mask"),
        (AnyText(3), {"value": np.full(3, 1 << 22)}, "code points"),
        (spaces.OneOf([spaces.Discrete(3)]), {"choice": np.int64(7)}, "choice.*7"),
    ],
)
def test_arrays_that_hold_no_value_are_refused(space: Any, change: Any, words: str) -> None:
    fixed: Any = fixed_space(space)
    space.seed(0)
    arrays = {**encode(fixed, "ab" if isinstance(space, spaces.Text) else space.sample()), **change}
    with pytest.raises(ValueError, match=words):
        decode(fixed, arrays)
    assert not fixed.contains(arrays)


@pytest.mark.parametrize("space", [OBSERVATION, ACTION, AnyText(7), spaces.Sequence(AnyText(2))])
def test_a_space_and_its_fixed_form_are_described_in_json(space: Any) -> None:
    lengths = {"observation/objects": 3} if space is OBSERVATION else {}
    for one in (space, fixed_space(space, "observation", lengths)):
        data = json.loads(json.dumps(space_to_json(one)))
        again = space_from_json(data)
        assert again == one
        assert space_to_json(again) == data
        assert lengths_of(again) == lengths_of(one)


class Missions(spaces.Space[str]):
    """A space of texts of an env's own, as Minigrid has one."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "go"

    def contains(self, x: Any) -> bool:
        return x in ("go", "stop")


def test_a_space_of_texts_of_an_envs_own_has_room_for_256_characters() -> None:
    fixed: Any = fixed_space(Missions())
    assert fixed["value"].shape == (256,)
    assert decode(fixed, encode(fixed, "stop")) == "stop"
    again = space_from_json(space_to_json(fixed))
    assert decode(again, encode(fixed, "stop")) == "stop"


@pytest.mark.parametrize(
    "data",
    [
        {"type": "Text", "min_length": 0, "max_length": 1 << 40, "characters": None},
        {"type": "Text", "min_length": 3, "max_length": 2, "characters": "ab"},
        {"type": "Text", "min_length": 0, "max_length": 2, "characters": "aa"},
        {"type": "Text", "min_length": 0, "max_length": 2, "characters": 5},
        {"type": "Sequence", "space": {"type": "Discrete"}, "stack": False},
        {"type": "Sequence", "space": space_to_json(spaces.Discrete(2)), "stack": 1},
        {"type": "Graph", "node": 5, "edge": None},
        {"type": "OneOf", "spaces": []},
        {
            "type": "Fixed",
            "name": "a",
            "lengths": {"a": 1 << 20, "a/value": 1 << 20},
            "space": space_to_json(spaces.Sequence(spaces.Text(3))),
        },
        {"type": "Fixed", "name": "a", "lengths": {"a/b": 3}, "space": space_to_json(AnyText(3))},
    ],
)
def test_json_that_describes_no_space_is_refused_without_taking_memory(data: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        space_from_json(data)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedSpaces(OpenEnv(), {"mission": 5}), "observation.*'mission'"),
        (lambda: FixedSpaces(OpenEnv(), {"observation/mision": 5}), "'observation/mision'"),
        (lambda: FixedSpaces(OpenEnv(), {"observation/mission": 0}), "observation/mission.*0"),
    ],
)
def test_lengths_of_no_field_are_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
