"""Plain values are read from pickles unchanged; other pickles are refused and run no code."""

from __future__ import annotations

import os
import pickle
import pickletools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.dropin.memmap.original import read_plain_pickle

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)
CONFIG = {
    "max_episodes": 1000,
    "max_timesteps": 500,
    "fields": {"state": ("float", (3, 16, 16), 0.0), "action": ("int", 2), "reward": "float"},
    "meta_fields": {"task_id": "int"},
    "circular": True,
}

DAMAGED = r"^config: expected a whole pickle, .*\(.+\)"


def read(data: bytes) -> Any:
    return read_plain_pickle("config", data)


@given(PLAIN, st.integers(4, 5))
def test_plain_values_are_read_unchanged(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    found = read(data)
    assert repr(found) == repr(pickle.loads(data))
    assert found == value


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_truncated_pickle_is_refused(protocol: int) -> None:
    data = pickle.dumps(CONFIG, protocol)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=DAMAGED):
            read(data[:length])


@given(st.data())
def test_a_pickle_with_changed_bytes_is_read_or_refused(data: st.DataObject) -> None:
    protocol = data.draw(st.integers(4, 5))
    raw = bytearray(pickle.dumps(CONFIG, protocol))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assert_plain_or_refused(bytes(raw))


def assert_plain_or_refused(data: bytes) -> None:
    message = "config: "
    value: Any = None
    try:
        value = read(data)
    except ValueError as error:
        message = str(error)
    assert type(value) in (dict, list, tuple, str, int, float, bool, type(None))
    assert message.startswith("config: ")
    assert "\n" not in message


class Trap:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("trapped",)


def pickled(value: object, protocol: int) -> bytes:
    return pickle.dumps({"max_episodes": value}, protocol)


READ = """
PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1
BINFLOAT SHORT_BINUNICODE BINUNICODE EMPTY_LIST EMPTY_DICT EMPTY_TUPLE TUPLE
TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS
""".split()


def program(opcode: pickletools.OpcodeInfo) -> bytes:
    """The opcode with an argument."""
    is_line = opcode.arg is not None and opcode.arg.n == pickletools.UP_TO_NEWLINE
    line = b"'1'\n" if opcode.name == "STRING" else b"1\n1\n"
    return opcode.code.encode("latin-1") + (line if is_line else bytes(9)) + b"."


PROGRAMS = [
    # An opcode that a later protocol adds would be refused, too.
    *((each.name, program(each)) for each in pickletools.opcodes if each.name not in READ),
    ("GLOBAL", b"cos\nmkdir\n(Vtrapped\ntR."),
    ("GLOBAL", b"}\x8c\x06fieldscos\nmkdir\n(Vtrapped\ntRs."),
    ("INST", b"(\x8c\x07trappedios\nmkdir\n."),
    ("STACK_GLOBAL", b"\x8c\x02os\x8c\x05mkdir\x93(\x8c\x07trappedtR."),
    ("DICT", pickled(Trap(), 0)),
    ("BINPUT", pickled(Trap(), 2)),
    ("STACK_GLOBAL", pickled(Trap(), 5)),
    ("STACK_GLOBAL", pickled(np.float64(0.5), 4)),
    ("EMPTY_SET", pickled({1}, 4)),
]


@pytest.mark.parametrize(("opcode", "data"), PROGRAMS)
def test_an_opcode_that_builds_other_values_is_named_and_not_run(opcode: str, data: bytes) -> None:
    """M11: the original unpickles whatever the folder holds."""
    with pytest.raises(ValueError, match=rf"^config: .* {opcode}\b") as caught:
        read(data)
    assert str(caught.value).count("\n") == 0
    assert os.listdir() == []


@pytest.mark.parametrize(
    "data",
    [
        b".",  # no value
        b"(.",  # a mark is not a value
        b"]].",  # two values
        b"(](.",
        b"a.",
        b"}]a.",
        b"e.",
        b"}(e.",
        b"]\x8c\x01a\x8c\x01bs.",
        b"}K\x01\x8c\x01bs.",  # a key that is not a string
        b"}(\x8c\x01au.",  # an odd number
        b"u.",
        b"t.",
        b"\x85.",
        b"h\x07.",
        b"\x94.",
        b"\x8b\xff\xff\xff\xff.",
        b"X\xff\xff\xff\x7fa.",
        b"\x8c\x01\xff.",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"\xff.",
        b"",
        b"K",
    ],
)
def test_a_malformed_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=DAMAGED):
        read(data)


def test_values_nested_deeper_than_the_recursion_limit_are_read() -> None:
    depth = 20_000
    value = read(b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(depth - 1):
        (value,) = value
    assert value == []
    inner = read(b")" + b"\x85" * depth + b".")
    del inner  # freed without recursion, too


def test_a_list_that_contains_itself_is_read() -> None:
    value = read(b"]\x94h\x00a.")
    assert value[0] is value


def test_values_shared_at_exponentially_many_places_take_little_memory() -> None:
    value = read(b")" + b"".join(b"\x94h%c\x86" % place for place in range(200)) + b".")
    for _ in range(200):
        assert value[0] is value[1]
        value = value[0]


def test_a_pickle_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^config: .*65,536.*65,537"):
        read(b"." * (2**16 + 1))
