"""Spec: fields from spaces, nested values, codecs, stacks."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import Field, Spec
from stepwell.buffers.spec.spec import default_codec, flatten, unflatten

BOX = spaces.Box(0, 255, (84, 84), np.uint8)
NESTED = spaces.Dict(
    {
        "image": BOX,
        "pair": spaces.Tuple((spaces.Discrete(5, start=2), spaces.Box(-1, 1, (2,), np.float32))),
        "many": spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])),
        "bits": spaces.MultiBinary([2, 3]),
        "deep": spaces.Dict({"er": spaces.Tuple((spaces.Box(0, 1, (), np.float64),))}),
    }
)


FOUR = spaces.Discrete(4)


def spec_of(observation: Any = BOX, action: Any = FOUR, **more: Any) -> Spec:
    return Spec.from_spaces(observation, action, **more)


def test_every_kind_of_space_becomes_fields() -> None:
    spec = spec_of(NESTED)
    found = {field.name: (field.dtype, field.shape, field.codec) for field in spec.fields}
    assert found == {
        "observation/bits": ("int8", (2, 3), "narrow"),
        "observation/deep/er/0": ("float64", (), "raw"),
        "observation/image": ("uint8", (84, 84), "patch"),
        "observation/many": ("int64", (2, 2), "narrow"),
        "observation/pair/0": ("int64", (), "narrow"),
        "observation/pair/1": ("float32", (2,), "raw"),
        "action": ("int64", (), "narrow"),
        "reward": ("float64", (), "narrow"),
    }


@pytest.mark.parametrize("wrong", [2.0, True, "2"])
def test_lengths_that_no_file_could_have_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"^field 'info/x': .*the shape \({wrong!r},\)"):
        Field("info/x", "float32", (wrong,), "raw")
    with pytest.raises(ValueError, match=rf"^field 'info/x': .*stack of {wrong}\b"):
        Field("info/x", "float32", (2,), "raw", wrong)


@pytest.mark.parametrize("dtype", ["f4", np.float32, np.dtype("float32"), np.dtype(">f4")], ids=str)
def test_fields_of_numpys_values_are_those_of_plain_ones(dtype: Any) -> None:
    two: Any = np.int64(2)
    fields: Any = [Field("info/x", dtype, (two,), "raw", two)]
    spec = Spec(fields, {}, {})
    assert spec["info/x"].numpy_dtype == np.dtype(dtype)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


SPACES: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        st.builds(spaces.Discrete, st.integers(1, 9)),
        st.builds(lambda n: spaces.MultiBinary(n), st.integers(1, 4)),
        st.builds(lambda n: spaces.MultiDiscrete([3] * n), st.integers(1, 4)),
        st.builds(
            lambda shape, dtype: spaces.Box(0, 1, tuple(shape), dtype),
            st.lists(st.integers(1, 3), max_size=3),
            st.sampled_from([np.uint8, np.float32, np.float64, np.int16]),
        ),
        st.lists(SPACES, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
        st.dictionaries(st.sampled_from("abc"), SPACES, max_size=3).map(spaces.Dict),
    )
)


@given(SPACES, SPACES)
def test_any_nested_value_is_restored_from_its_fields(observation: Any, action: Any) -> None:
    spec = spec_of(observation, action)
    value = observation.sample()
    leaves = {name: np.asarray(leaf) for name, leaf in flatten(spec.observation, value)}
    names = [field.name for field in spec.fields]
    assert list(leaves) == [name for name in names if name.startswith("observation")]
    for name, leaf in leaves.items():
        assert (leaf.dtype.name, leaf.shape) == (spec[name].dtype, spec[name].shape)
    back = unflatten(spec.observation, leaves)
    assert dict(flatten(spec.observation, back)).keys() == leaves.keys()
    assert str(back) == str(unflatten(spec.observation, dict(flatten(spec.observation, back))))  # type: ignore[arg-type]
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (spaces.Text(5), ["length", "mask", "value"]),
        (spaces.Sequence(spaces.Discrete(2)), ["length", "mask", "value"]),
        (spaces.Graph(spaces.Discrete(2), None), ["node", "node_length", "node_mask"]),
        (spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))), ["0", "1", "choice"]),
    ],
)
def test_spaces_without_a_fixed_shape_have_the_fields_of_their_arrays(
    space: Any, names: list[str]
) -> None:
    assert spec_of(spaces.Dict({"part": space})).names[: len(names)] == [
        f"observation/part/{name}" for name in names
    ]
    assert spec_of(BOX, space).names[1 : 1 + len(names)] == [f"action/{name}" for name in names]


class Strange(spaces.Space[object]):
    """A space of a kind of its own."""


TWICE = spaces.Dict({"a/b": BOX, "a": spaces.Dict({"b": BOX})})


@pytest.mark.parametrize(
    ("parts", "options", "error", "match"),
    [
        ([spaces.Dict(part=Strange())], {}, TypeError, r"^observation/part space .*\bStrange\b"),
        ([BOX, Strange()], {}, TypeError, r"^action space .*\bStrange\b"),
        ([1], {}, TypeError, r"^observation space 1: .*\bint\b"),
        ([spaces.Dict({1: BOX})], {}, TypeError, r"^observation space: .*\btext\b.*\b1\b"),  # type: ignore[dict-item]
        ([TWICE], {}, ValueError, "'observation/a/b'"),
        ([], {"frame_stack": 0}, ValueError, r"^frame_stack: .*>= 1.*\b0\b"),
        *(
            ([space], {"frame_stack": 4}, ValueError, rf"^frame_stack=4: .*\(4, \.\.\.\).* {got};")
            for space, got in (
                (BOX, r"\(84, 84\)"),
                (spaces.Discrete(4), r"\(\)"),
                (spaces.Dict({"a": BOX, "b": BOX}), r"\(84, 84\), \(84, 84\)"),
                (spaces.Dict({}), "none"),
                (spaces.Box(0, 1, (4,)), r"\(4,\)"),
            )
        ),
    ],
)
def test_spaces_that_make_no_fields_are_refused_by_name(
    parts: list[Any], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        spec_of(*parts, **options)


def test_a_stack_is_described_by_one_frame() -> None:
    spec = spec_of(spaces.Box(0, 255, (4, 84, 84), np.uint8), frame_stack=4, stack_padding="repeat")
    field = spec["observation"]
    assert (field.shape, field.stack, field.stack_padding) == ((84, 84), 4, "repeat")
    assert field.source_shape == (4, 84, 84)
    assert str(field) == "observation: uint8 (84, 84), patch, stack of 4 padded by repeat"
    assert spec.row_bytes == 84 * 84 + 8 + 8


def test_codecs_depend_on_the_field_and_may_be_given() -> None:
    assert default_codec(np.dtype("uint8"), (64,)) == "patch"
    assert default_codec(np.dtype("uint8"), (8 << 16,)) == "patch"
    assert default_codec(np.dtype("uint8"), (9 << 16,)) == "zstd"
    assert default_codec(np.dtype("uint8"), (63,)) == "narrow"
    assert default_codec(np.dtype("bool"), ()) == "narrow"
    assert default_codec(np.dtype("int64"), (1000,)) == "narrow"
    assert default_codec(np.dtype("float32"), (1000,)) == "raw"
    spec = spec_of(NESTED).with_codecs({"observation": "zstd", "observation/pair/1": "narrow"})
    codecs = {field.name: field.codec for field in spec.fields}
    assert codecs["observation/many"] == codecs["observation/image"] == "zstd"
    assert codecs["observation/pair/1"] == "narrow"
    assert codecs["reward"] == "narrow"


def test_deltas_are_for_rows_of_64_bytes_or_more() -> None:
    spec = spec_of().with_codecs({"observation": "delta"})
    assert spec["observation"].codec == "delta"
    assert Spec.from_json(spec.to_json()) == spec
    assert Field("info/x", "float32", (16,), "delta").row_bytes == 64
    for name, dtype, shape in (("info/x", "uint8", (63,)), ("info/y", "float64", (2, 0))):
        message = rf"'{name}': .*\b64 bytes\b.*\bdelta\b.*\b{math.prod(shape)};"
        with pytest.raises(ValueError, match=message):
            Field(name, dtype, shape, "delta")
    with pytest.raises(ValueError, match=r"'action': .*\b64\b.*\bdelta\b.*\b8\b"):
        spec_of().with_codecs({"action": "delta"})


def test_codecs_of_unknown_names_or_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^codecs .*'image'.*\baction, observation, reward$"):
        spec_of().with_codecs({"image": "raw"})
    with pytest.raises(ValueError, match=r"'observation': .*\bzstd\b.*\bnarrow\b.*\blzma\b"):
        spec_of().with_codecs({"observation": "lzma"})  # type: ignore[dict-item]


@pytest.mark.parametrize("dtype", ["object", "datetime64[ns]", "S4", "U4", "V8"])
def test_a_field_of_anything_but_numbers_is_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match=rf"'info/x': .*\bdtype\b.* {re.escape(dtype)}$"):
        Field("info/x", dtype, (), "raw")


@pytest.mark.parametrize("name", ["foo", "", "Reward", "infos/x", 5])
def test_a_field_of_no_kind_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=rf"observation, action, reward, info/.*extra/.*{name!r}$"):
        Field(name, "uint8", (), "raw")


def test_a_difference_names_the_field_and_both_forms() -> None:
    base = spec_of()
    extra = Field("extra/value", "float32", (), "raw")
    assert base.difference(base) is None
    dict_space = spaces.Dict({"0": spaces.Discrete(2), "1": spaces.Discrete(2)})
    tuple_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))
    for one, other, pattern in (
        (base, base.with_more([extra]), "'extra/value'"),
        (base.with_more([extra]), base, "'extra/value'"),
        (
            base,
            spec_of(spaces.Box(0, 1, (3,))),
            r"'observation' .*uint8 \(84, 84\), patch.*float32 \(3,\), raw",
        ),
        (
            base,
            Spec(base.fields[::-1], base.observation, base.action),
            "observation, action, reward.*reward, action, observation",
        ),
        (
            spec_of(dict_space),
            spec_of(tuple_space),
            r"\bobservation\b.*\{'0': 'observation/0'.*\['observation/0'",
        ),
    ):
        difference = one.difference(other)
        assert difference is not None
        assert re.search(pattern, difference), difference


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1}, r"\['a', 'b'\].*\['a'\]"),
        ([1, 2], r"\['a', 'b'\].*\blist of 2\b"),
        ({"a": 1, "b": {"c": 1}}, r"\btuple of 2\b.*\['c'\]"),
        ({"a": 1, "b": (1, 2, 3)}, r"\btuple of 2\b.*\btuple of 3\b"),
    ],
)
def test_a_value_of_another_structure_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(flatten({"a": "x", "b": ["y", "z"]}, value))
