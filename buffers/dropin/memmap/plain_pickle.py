"""Reads plain values from a pickle without executing it."""

from __future__ import annotations

import pickletools  # only lists the opcodes of a pickle; executes none
from collections.abc import Callable
from typing import Any, Final

__all__ = ["read_plain_pickle"]

MOST_BYTES: Final = 1 << 20
_MOST_OPCODES: Final = 200_000

_MARK: Final = object()

_Stack = list[Any]


class _NotPlain(ValueError):
    """The opcodes do not form a value."""


def read_plain_pickle(name: str, data: bytes) -> object:
    r"""Read a pickle of dicts, lists, tuples, strings, numbers, bools and None.

    A pickle is a program that may call anything. Only the opcodes that build these values are
    executed, by this module, so nothing in the pickle is ever called.

    Args:
        name: Name of the pickle, for errors.
        data: The pickle, of any protocol.

    Raises:
        ValueError: It is larger than a MiB, damaged, or holds something else; the message names the
            opcode.

    Example:
        >>> read_plain_pickle("mail", b"(I1\nV2\nt.")
        (1, '2')
        >>> read_plain_pickle("mail", b"cos\nsystem\n(Vls\ntR.")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: mail: expected plain values, got the pickle opcode GLOBAL ('os system'), ...
    """
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"{name}: expected a pickle of at most {MOST_BYTES:,} bytes, got {len(data):,}; it is "
            f"not the config of a replay buffer"
        )
    machine = _Machine(name)
    position = 0
    try:
        for count, (opcode, argument, found) in enumerate(pickletools.genops(data)):
            position = int(found or 0)
            if opcode.name == "STOP":
                return machine.result()
            if count >= _MOST_OPCODES:
                raise _NotPlain(f"more than {_MOST_OPCODES:,} opcodes")
            machine.step(opcode.name, argument)
    except _Refused as error:
        raise ValueError(str(error)) from None
    # A damaged file can raise any of these, in genops or in an opcode.
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{name}: expected a whole pickle, got one that is damaged at or after byte {position} "
            f"({problem}); copy the file again from where it was written"
        ) from None
    raise AssertionError  # genops ends with STOP, or raises


class _Refused(Exception):
    """An opcode that builds anything but a plain value."""


class _Machine:
    """The stack and the memo of a pickle.

    Args:
        name: Name of the pickle, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack: _Stack = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        """Execute an opcode.

        Raises:
            _Refused: Plain values do not need it.
        """
        if opcode in _VALUES:
            self._stack.append(argument)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode]())
        elif opcode in _STACKED:
            _STACKED[opcode](self._stack)
        elif opcode in _PUTS:
            self._put(int(argument))
        elif opcode in _GETS:
            self._stack.append(self._memo[int(argument)])
        elif opcode == "MEMOIZE":
            self._put(len(self._memo))
        elif opcode not in _NOTHING:
            shown = "" if argument is None else f" ({str(argument)[:80]!r})"
            raise _Refused(
                f"{self._name}: expected plain values, got the pickle opcode {opcode}{shown}, "
                f"which could run anything; nothing of it was run"
            )

    def result(self) -> object:
        """The value on the stack after STOP."""
        value = self._stack.pop()
        if value is _MARK or self._stack:
            raise _NotPlain("it ends within a value")
        return value

    def _put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]


def _after_mark(stack: _Stack) -> list[Any]:
    """Pop the values above the newest mark, and the mark."""
    for place in range(len(stack) - 1, -1, -1):
        if stack[place] is _MARK:
            items = stack[place + 1 :]
            del stack[place:]
            return items
    raise _NotPlain("a mark is missing")


def _last(stack: _Stack, count: int) -> list[Any]:
    """Pop the topmost values."""
    items = stack[len(stack) - count :] if len(stack) >= count else [_MARK]
    if any(item is _MARK for item in items):
        raise _NotPlain("a value is missing")
    del stack[len(stack) - count :]
    return items


def _tuple(stack: _Stack, count: int) -> None:
    stack.append(tuple(_last(stack, count)))


def _append(stack: _Stack) -> None:
    _extend(stack, _last(stack, 1))


def _extend(stack: _Stack, items: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise _NotPlain("it appends to something that is not a list")
    stack[-1].extend(items)


def _set_items(stack: _Stack, items: list[Any]) -> None:
    if not isinstance(stack[-1], dict):
        raise _NotPlain("it sets items of something that is not a dict")
    stack[-1].update(_pairs(items))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    keys, values = items[::2], items[1::2]
    # Strings only: a deeply nested tuple can take exponential time to hash.
    if not all(isinstance(key, str) for key in keys):
        raise _NotPlain("it holds a dict whose keys are not all text")
    return dict(zip(keys, values, strict=True))


_VALUES = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE "
    "BINUNICODE BINUNICODE8".split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_STACKED: dict[str, Callable[[_Stack], None]] = {
    "TUPLE1": lambda stack: _tuple(stack, 1),
    "TUPLE2": lambda stack: _tuple(stack, 2),
    "TUPLE3": lambda stack: _tuple(stack, 3),
    "TUPLE": lambda stack: stack.append(tuple(_after_mark(stack))),
    "LIST": lambda stack: stack.append(_after_mark(stack)),
    "DICT": lambda stack: stack.append(_pairs(_after_mark(stack))),
    "APPEND": _append,
    "APPENDS": lambda stack: _extend(stack, _after_mark(stack)),
    "SETITEM": lambda stack: _set_items(stack, _last(stack, 2)),
    "SETITEMS": lambda stack: _set_items(stack, _after_mark(stack)),
}
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
_NOTHING = frozenset(("PROTO", "FRAME"))
