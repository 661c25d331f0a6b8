"""Snapshots of emulators: their bytes, and their way back into an env."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import zstandard

Array = npt.NDArray[Any]

_LEVEL = 3  # 9 takes 50 us more for 10 bytes
_DIGEST_BYTES = 8
_HEAD = struct.Struct(f"<4s{_DIGEST_BYTES}s{_DIGEST_BYTES}s")
_MAGIC = b"sws\x01"  # the last byte is the number of the format
_LENGTH = struct.Struct("<I")
_MOST_MORE = 1 << 16
_WORD, _HALF_WORD = 1 << 128, 1 << 32  # of the state of a PCG64 generator


@dataclass(frozen=True, slots=True, eq=False)
class SavedGame:
    """The content of a snapshot: the option "snapshot" of `reset`, to begin an episode there."""

    facts: Mapping[str, Any]  # JSON: what the env and its wrappers know, and its random generator
    state: bytes  # of the emulator
    # The episode's first, without stacked frames, since emulators do not save their screens
    observation: Array

    def info(self, now: Mapping[str, Any]) -> dict[str, Any]:
        """Return the info of the reset: what the emulator shows now, and what was saved."""
        return {**now, **self.facts["info"]}

    def restore(self, emulator: Any) -> None:
        """Restore the state of the emulator."""
        emulator.load(self.state)

    def restore_generator(self, generator: np.random.Generator) -> None:
        """Set the env's random generator."""
        state, increment, has_half, half = self.facts["generator"]
        generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": increment},
            "has_uint32": has_half,
            "uinteger": half,
        }


def saved_generator(generator: np.random.Generator) -> list[int]:
    """Return the state of an env's random generator as JSON data."""
    state = cast("dict[str, Any]", generator.bit_generator.state)
    words = state["state"]
    return [words["state"], words["inc"], state["has_uint32"], state["uinteger"]]


def saved_info(info: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the info of a reset has beyond what the emulator shows."""
    return {
        key: value
        for key, value in info.items()
        if isinstance(value, bool | int | float | str) and (key not in now or now[key] != value)
    }


def is_snapshot(value: object) -> TypeGuard[bytes]:
    """Test whether a value in an info looks like a snapshot."""
    return isinstance(value, bytes) and value[: len(_MAGIC)] == _MAGIC


def pack(kind: str, facts: Mapping[str, Any], state: bytes, base: bytes) -> bytes:
    """Return the bytes of a snapshot."""
    # ``kind`` identifies the game, the emulator and its version. ``base`` is another state of the
    # same game that can be made again, from which this one differs little.
    text = json.dumps(dict(facts), separators=(",", ":")).encode()
    content = _LENGTH.pack(len(text)) + text + state
    head = _HEAD.pack(_MAGIC, _digest(kind.encode()), _digest(content))
    return head + zstandard.ZstdCompressor(_LEVEL, dict_data=_dictionary(base)).compress(content)


def unpack(kind: str, snapshot: bytes, base: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the facts and the state of a snapshot, which may come from anywhere."""
    # The state is at most 64 KiB longer than the base; nothing else is known of it.
    if len(snapshot) < _HEAD.size or snapshot[: len(_MAGIC)] != _MAGIC:
        raise damaged("it does not begin as one")
    _, kind_digest, content_digest = _HEAD.unpack_from(snapshot)
    if kind_digest != _digest(kind.encode()):
        raise ValueError(
            f"snapshot of another game or version: expected one of {kind}, got another; install "
            "the versions that the session was collected with, or begin at the seed"
        )
    packed, most = snapshot[_HEAD.size :], len(base) + _MOST_MORE
    try:
        if zstandard.get_frame_parameters(packed).content_size > most:
            raise damaged(f"it is longer than {most} bytes")
        content = zstandard.ZstdDecompressor(dict_data=_dictionary(base)).decompress(packed)
    except zstandard.ZstdError as error:
        raise damaged(str(error)) from None
    if _digest(content) != content_digest:
        raise damaged("its checksum differs")
    length = _LENGTH.unpack_from(content)[0] if len(content) >= _LENGTH.size else most
    text, state = content[_LENGTH.size : _LENGTH.size + length], content[_LENGTH.size + length :]
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise damaged("its facts are no JSON") from None
    if not isinstance(facts, dict) or not is_generator(facts.get("generator")):
        raise damaged("it lacks the env's generator")
    if not _is_plain(facts.get("info")):
        raise damaged("it lacks the info")
    return cast("dict[str, Any]", facts), state


def check_fact(facts: Mapping[str, Any], name: str, most: int) -> int:
    """Return the fact of this name, a whole number from 0 to `most`."""
    value = facts.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise damaged(f"{name} is no whole number from 0 to {most}")
    return value


def is_generator(value: object) -> bool:
    """Test whether a value is a state that `saved_generator` returned."""
    if not isinstance(value, list):
        return False
    words, limits = cast("list[object]", value), (_WORD, _WORD, 2, _HALF_WORD)
    return len(words) == len(limits) and all(
        type(word) is int and 0 <= word < limit for word, limit in zip(words, limits, strict=True)
    )


def _is_plain(info: object) -> bool:
    return isinstance(info, dict) and all(
        isinstance(value, bool | int | float | str)
        for value in cast("dict[str, object]", info).values()
    )


def damaged(why: str) -> ValueError:
    """Return the error for a snapshot with a wrong content."""
    return ValueError(
        f"the snapshot is damaged: expected the bytes of a reset's info['snapshot'], got others: "
        f"{why}; begin at the seed instead"
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
