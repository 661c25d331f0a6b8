"""Reads the plain values of a pickle without unpickling it."""

from __future__ import annotations

import pickletools  # only lists the opcodes of a pickle; executes none
from typing import Any, Final

__all__ = ["MOST_BYTES", "read_plain_pickle"]

MOST_BYTES: Final = 1 << 16  # the original's configs have some hundred
_VALUES: Final = frozenset(
    "BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE".split()
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


class _Refused(Exception):
    """An opcode that builds anything but a plain value."""


def read_plain_pickle(name: str, data: bytes) -> object:
    """Read a pickle of dicts, lists, tuples, strings, numbers, bools and None, at most 64 KiB."""
    # A pickle is a program that may call anything. Only the opcodes that build these values are
    # executed, by this function, so nothing in the pickle is ever called.
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"{name}: expected a pickle of at most {MOST_BYTES:,} bytes, got {len(data):,}; it is "
            f"not the config of a replay buffer"
        )
    try:
        return _value(data)
    except _Refused as refused:
        raise ValueError(
            f"{name}: expected plain values as Python 3.8 and newer write them, got the pickle "
            f"opcode {refused}; nothing of it was run"
        ) from None
    # A damaged file can raise any of these, in genops or in an opcode.
    except (ValueError, IndexError, TypeError) as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{name}: expected a whole pickle, got one that is damaged ({problem}); copy the file "
            f"again from where it was written"
        ) from None


def _value(data: bytes) -> object:
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks below each mark
    memo: list[Any] = []
    argument: Any
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MEMOIZE":
            memo.append(stack[-1])
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            items, stack = stack, below.pop()
            _build(name, stack, items)
        elif name in _TAKEN:
            if len(stack) < _TAKEN[name]:
                raise IndexError("a value is missing")
            items = stack[-_TAKEN[name] :]
            del stack[-_TAKEN[name] :]
            _build(name, stack, items)
        elif name == "STOP":
            if below or len(stack) != 1:
                raise IndexError("it ends within a value")
            return stack[0]
        elif name not in ("PROTO", "FRAME"):
            shown = "" if argument is None else f" ({str(argument)[:80]!r})"
            raise _Refused(f"{name}{shown}")
    raise AssertionError  # genops ends with STOP, or raises


_TAKEN: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
"""Opcodes that take some values, and how many."""


def _build(name: str, stack: list[Any], items: list[Any]) -> None:
    """Make a tuple of items, or add them to the list or dict on the stack."""
    if name.startswith("TUPLE"):
        stack.append(tuple(items))
    elif name.startswith("APPEND") and type(stack[-1]) is list:
        stack[-1].extend(items)
    elif name.startswith("SETITEM") and type(stack[-1]) is dict:
        # Strings only: a deeply nested tuple can take exponential time to hash.
        if not all(isinstance(key, str) for key in items[::2]):
            raise TypeError("it holds a dict whose keys are not all text")
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    else:
        raise TypeError("it adds to something that is neither a list nor a dict")
