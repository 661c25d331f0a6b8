"""Forgeries of a store: each function changes one kind of thing in it.

All of them leave the checksums to `Store.write`, which makes them right. A function returns what it
did, in words, or an empty text where the store has no such thing.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import zstandard

from support.forged.folders import (
    CHECKPOINT,
    ENTRY,
    HEAD,
    HEADER_BITS,
    HEADER_NAMES,
    SLOT,
    Raw,
    Segment,
    Store,
    at,
    dumps,
    paths_of,
)

__all__ = ["FORGERIES", "Forgery", "change_json"]

_ZSTD, _DELTA = 2, 3  # codecs

Forge = Callable[[Store, random.Random], str]


class Forgery(NamedTuple):
    """A kind of forgery."""

    forge: Forge  # does it
    weight: int  # how often it is drawn


FORGERIES: dict[str, Forgery] = {}


class _Nothing(Exception):
    """The store has no such thing."""


def forgery(name: str, weight: int = 2) -> Callable[[Forge], Forge]:
    def note(forge: Forge) -> Forge:
        def forge_if_there(store: Store, rng: random.Random) -> str:
            try:
                return forge(store, rng)
            except _Nothing:
                return ""

        FORGERIES[name] = Forgery(forge_if_there, weight)
        return forge

    return note


# --- values ---------------------------------------------------------------------------------------

_WHOLE = (0, 1, 2, 3, 7, 8, 255, 4096, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_HUGE = (1 << 32, 1 << 40, (1 << 53) + 1, 1 << 60, 1 << 62, (1 << 63) - 4096, (1 << 63) - 1)
_TEXTS = (
    *("", "x", "1", "../../beside/model", "/../../beside/model", "/etc/passwd", "\0", "é" * 300),
    *("object", "O", "|O", "uint8", "<f8", "segment-00000000.bin", "observation", "reward"),
)
DEEP = Raw(b"[" * 100_000 + b"]" * 100_000)
_RAWS = (
    *(Raw(text) for text in (b"NaN", b"-Infinity", b"1e999", b"-0", b"1E5", b'"\xff\xfe"')),
    *(Raw(text) for text in (b'"\\ud800"', b'"\\u0000"', b"{", b"tru", b"[1,]", b"")),
    *(DEEP, Raw(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), Raw(b"9" * 5_000), Raw(b"[" * 9_000)),
    Raw(b"[" * 600 + b"]" * 600),
)
_DTYPES = (
    *"object O |O object_ V8 void V0 U4 str S3 bytes S0 U0 datetime64[ns] timedelta64 M8".split(),
    *"complex64 complex128 longdouble float128 i4,i4 O,i4 2i4 (2,)i4 i4,O >f8 >i8 <u2 =u4".split(),
    *"f8 p P c bool int8 uint8 int16 uint16 uint32 int32 uint64 int64 float16 float32".split(),
    *("float64", "nonsense", "", "uint8 ", "uint8\0", "UINT8", "a5", "V99999999"),
)
_SHAPES: tuple[object, ...] = (
    *([], [0], [1], [2, 0], [0, 1 << 62], [-1], [-1, -1], [1 << 20], [1 << 31], [1 << 62]),
    *([1] * 32, [1] * 33, [1] * 65, [1 << 16] * 4, [1 << 32] * 2, [1.5], ["2"], [None], [True]),
    *(None, 3, "3", {}, [[2]], [12, 8], [8, 12], [96], [12, 9], [11, 8], [1 << 63], [1 << 64]),
)


def whole_number(rng: random.Random, before: int) -> int:
    """A number that may be a surprise where another one was."""
    near = (before - 1, before + 1, before * 2, before // 2, -before, before + 8, before + 4096)
    return rng.choice(
        [
            *near,
            before ^ 1 << rng.randrange(63),
            before + (1 << 32),
            rng.choice(_WHOLE),
            rng.choice(_HUGE),
            -rng.choice((*_WHOLE, *_HUGE)),
            -(1 << 63),
            rng.getrandbits(rng.choice((8, 32, 63))),
        ]
    )


def json_value(rng: random.Random, before: Any) -> Any:
    """A JSON value that may be a surprise where another one was."""
    own: list[Any] = [[before], {"a": before}, str(before)]
    if isinstance(before, int):
        own = [whole_number(rng, before) for _ in range(8)]
        own += [float(before), str(before), 1 << 64, 10**30, bool(before)]
    elif isinstance(before, str):
        own += [before + "x", before[:-1], before * 2, before.upper(), rng.choice(_DTYPES)]
    elif isinstance(before, list):
        own += [before * 2, before[::-1], before[:-1], before[1:], before + before[:1]]
        own += [dict(enumerate(before)), before * 500]
    elif isinstance(before, dict):
        own += [{**before, "more": 1}, list(before), dict(list(before.items())[1:])]
    common: list[Any] = [None, True, False, 0, -1, 1.5, 1e308, [], {}, [[]], {"a": {}}, [1, 2, 3]]
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(own)
    return rng.choice(common if kind < 0.8 else _TEXTS if kind < 0.9 else _RAWS)


def _random_path(rng: random.Random, tree: Any) -> tuple[Any, ...]:
    """Each key of the top is as likely as any other, however much is below it."""
    paths = list(paths_of(tree))
    first = rng.choice(sorted({path[0] for path in paths}, key=str))
    return rng.choice([path for path in paths if path[0] == first])


def change_json(rng: random.Random, tree: Any) -> str:
    """Change nested JSON in one place; what was done, in words."""
    path = _random_path(rng, tree)
    where, before = "/".join(map(str, path)), at(tree, path)
    kind = rng.choice(("value", "value", "value", "value", "gone", "more", "twice"))
    if kind == "gone":
        del at(tree, path[:-1])[path[-1]]
        return f"{where} is gone"
    parent = at(tree, path[:-1])
    if kind == "more" and isinstance(parent, dict):
        parent[rng.choice(_TEXTS)] = json_value(rng, before)
        return f"a key next to {where}"
    if kind == "twice" and isinstance(parent, dict):
        value = json_value(rng, before)
        rest = {key: part for key, part in parent.items() if key != path[-1]}
        pairs = [(path[-1], before), *rest.items(), (path[-1], value)]
        text = b",".join(dumps(key) + b":" + dumps(part) for key, part in pairs)
        raw = Raw(b"{" + text + b"}")
        if path[:-1]:
            *above, place = path[:-1]
            at(tree, above)[place] = raw
            return f"{where} stands twice: {_short(value)}"
    value = json_value(rng, before)
    parent[path[-1]] = value
    return f"{where}: {_short(before)} -> {_short(value)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 90 else f"{text[:60]}... ({len(text)} characters)"


def _change_text(rng: random.Random, text: bytes) -> Raw:
    """JSON that is broken, or that is no object."""
    cut = rng.randrange(len(text) + 1)
    return rng.choice(
        (
            *(Raw(each) for each in (b"", b"{}", b"[]", b"null", b"3", b'"x"', b"{}{}", b"\0")),
            Raw(text[:cut]),
            Raw(text[:cut] + rng.randbytes(1) + text[cut + 1 :]),
            Raw(b" \n" + text),
            Raw(b"\xef\xbb\xbf" + text),
            Raw(text.decode().encode("utf-16")),
            Raw(text + b"x"),
            Raw(b'{"":' + text + b"}"),
            Raw(text[:-1] + b',"more":' + DEEP + b"}"),
            Raw(text[:-1] + b',"more":' + b"9" * 9_000 + b"}"),
            Raw(text[:-1] + b',"more":{"a":1e9999,"b":NaN}}'),
        )
    )


# --- the manifest ---------------------------------------------------------------------------------


@forgery("manifest: a value", 8)
def _manifest_value(store: Store, rng: random.Random) -> str:
    return change_json(rng, store.body)


@forgery("manifest: its text")
def _manifest_text(store: Store, rng: random.Random) -> str:
    store.body = _change_text(rng, dumps(store.body))
    return _short(bytes(store.body))


@forgery("manifest: its segments", 4)
def _manifest_segments(store: Store, rng: random.Random) -> str:
    """Values, or segments that are listed again, in another order, or never were there."""
    store.keeps_lengths = True
    sealed = store.body["sealed"]
    kind = rng.choice(("value", "value", "value", "more", "order", "many"))
    if kind == "value":
        part = {"sealed": sealed, "open": store.body["open"]}
        what = change_json(rng, part)
        store.body = {k: v for k, v in store.body.items() if k not in ("sealed", "open")} | part
        return what
    if kind == "more":
        entry = rng.choice(sealed) if sealed else [0, 16384, 1]
        sealed.insert(rng.randrange(len(sealed) + 1), list(entry))
        store.body["open"] = rng.choice((entry[0], None, store.body["open"]))
    elif kind == "order":
        rng.shuffle(sealed)
    else:
        sealed.extend([9 + each, 16384, 0] for each in range(3_000))
    return f"sealed {_short(sealed)}, open {_short(store.body['open'])}"


@forgery("manifest: what comes next", 3)
def _manifest_next(store: Store, rng: random.Random) -> str:
    return f"next {change_json(rng, store.body['next'])}"


@forgery("manifest: gone", 1)
def _manifest_gone(store: Store, rng: random.Random) -> str:
    store.body = None
    return "the rest is there"


# --- the Spec, alike in the manifest and in all headers -------------------------------------------


@forgery("spec: a field, everywhere", 8)
def _spec_field(store: Store, rng: random.Random) -> str:
    spec = store.body["spec"]
    place = rng.randrange(len(spec["fields"]))
    entry = spec["fields"][place]
    name = rng.choice(
        ("name", "dtype", "dtype", "shape", "shape", "codec", "stack", "stack_padding")
    )
    before = entry[name]
    values: dict[str, tuple[Any, ...]] = {
        "dtype": _DTYPES,
        "shape": _SHAPES,
        "name": (*_TEXTS, "observation/a", "observation/", "/", "extra/../x", "extra", "info/x"),
        "codec": ("zstd", "raw", "narrow", "patch", "gzip", "", None, 0),
        "stack": (0, 1, 2, 12, -1, 1 << 31, 1 << 62, 1.5, "2", None, True),
        "stack_padding": ("zero", "repeat", "", None, 1),
    }
    entry[name] = json_value(rng, before) if rng.random() < 0.15 else rng.choice(values[name])
    _spec_everywhere(store)
    return f"{name} of field {place}: {_short(before)} -> {_short(entry[name])}"


@forgery("spec: its fields and layouts", 4)
def _spec_layout(store: Store, rng: random.Random) -> str:
    spec = store.body["spec"]
    fields = spec["fields"]
    deep: Any = "observation"
    for _ in range(rng.choice((5, 150))):
        deep = rng.choice(([deep], {"a": deep}))
    layouts: tuple[Any, ...] = (
        *("reward", "action", "nothing", "", 0, None, [], {}, [[]], deep, ["observation"] * 9),
        *({"": "observation"}, {"a/b": "observation"}, {"a": "observation", "b": "observation"}),
        *(["reward", "nothing"], {"a": 1}, True, "observation/image", DEEP),
    )
    which = rng.choice(("observation", "action"))
    changes: list[Callable[[], object]] = [
        lambda: spec.__setitem__(which, rng.choice(layouts)),
        lambda: spec.__setitem__(which, rng.choice(layouts)),
        lambda: fields.pop(rng.randrange(len(fields))),
        lambda: fields.append(rng.choice(fields)),
        lambda: fields.append({**rng.choice(fields), "name": "extra/more"}),
        lambda: fields.reverse(),
        lambda: fields.clear(),
        lambda: fields.extend({**fields[0], "name": f"extra/{each}"} for each in range(2_000)),
        lambda: [each.__setitem__("shape", [0]) for each in fields],
    ]
    rng.choice(changes)()
    _spec_everywhere(store)
    return _short([spec["observation"], spec["action"], *(each["name"] for each in fields)])


def _spec_everywhere(store: Store) -> None:
    for segment in store.segments.values():
        facts = json.loads(segment.facts)
        facts["spec"] = store.body["spec"]
        segment.facts = dumps(facts)


# --- headers --------------------------------------------------------------------------------------


@forgery("header: a number", 5)
def _header_number(store: Store, rng: random.Random) -> str:
    name, segment = _segment(store, rng)
    place = rng.randrange(1, len(HEADER_NAMES))
    what, bits = HEADER_NAMES[place], HEADER_BITS[place]
    segment.pack()  # so that all numbers are what they are
    before = segment.header[what]
    if what == "store":
        segment.header[what] = rng.randbytes(16)
    else:
        is_signed = what in ("position", "row_id", "episode", "total_steps")
        value = whole_number(rng, before) % (1 << bits)
        segment.header[what] = value - (1 << bits) if is_signed and value >> (bits - 1) else value
    segment.kept.add(what)
    return f"{name}: {what}: {_short(before)} -> {_short(segment.header[what])}"


@forgery("header: a value of its JSON", 3)
def _header_value(store: Store, rng: random.Random) -> str:
    name, segment = _segment(store, rng)
    facts = json.loads(segment.facts)
    what = change_json(rng, facts)
    segment.facts = dumps(facts)
    return f"{name}: {what}"


@forgery("header: its text")
def _header_text(store: Store, rng: random.Random) -> str:
    name, segment = _segment(store, rng)
    segment.facts = bytes(_change_text(rng, segment.facts))
    return f"{name}: {_short(segment.facts)}"


# --- slots ----------------------------------------------------------------------------------------

_NUMBERS = [
    name for name in SLOT.names or () if name not in ("magic", "crc", "data_crc", "head_crc")
]


@forgery("slot: a number", 10)
def _slot_number(store: Store, rng: random.Random) -> str:
    name, segment = _segment(store, rng, least=1)
    slot, what = rng.randrange(segment.count), rng.choice(_NUMBERS)
    segment.pack()
    before = int(segment.a[what][slot])
    value = whole_number(rng, before)
    copies = rng.choice(("ab", "ab", "ab", "a", "b"))
    segment.put(slot, what, value, copies=copies)
    text = f"{name}: slot {slot} of {segment.count}: {what}: {before} -> {value}"
    return f"{text}, copies {copies}"


@forgery("slot: the same in all", 3)
def _slot_all(store: Store, rng: random.Random) -> str:
    what = rng.choice(("episode", "stream", "first_row", "rows", "row_id", "total_steps", "end"))
    value = whole_number(rng, 0)
    is_sum = rng.random() < 0.5
    for segment in store.segments.values():
        segment.pack()
        for slot in range(segment.count):
            before = int(segment.a[what][slot]) if is_sum else 0
            segment.put(slot, what, before + value)
    return f"{what}: {'plus ' * is_sum}{value}" if store.segments else ""


@forgery("slot: two changed places, one twice", 3)
def _slot_places(store: Store, rng: random.Random) -> str:
    name, segment = _segment(store, rng, least=2)
    segment.pack()
    one, other = rng.sample(range(segment.count), 2)
    kind = rng.choice(("changed", "twice", "not numbered"))
    for slots in (segment.a, segment.b):
        before = slots[[one, other]].copy()
        slots[other] = before[0]
        if kind == "changed":
            slots[one] = before[1]
        if kind != "not numbered":
            slots["number"][[one, other]] = [one, other]
            slots["position"][[one, other]] = before["position"]
    for slot in (one, other):
        segment.kept |= {(slot, "offset"), (slot, "nbytes")}
    return f"{name}: {one} and {other} of {segment.count} {kind}"


@forgery("slot: more than there are chunks", 2)
def _slot_more(store: Store, rng: random.Random) -> str:
    name, segment = _segment(store, rng, least=1)
    if segment.count == len(segment.a):
        return ""
    segment.pack()
    stop = rng.choice((segment.count + 1, len(segment.a)))
    for slot in range(segment.count, stop):
        for slots in (segment.a, segment.b):
            slots[slot] = slots[slot - 1]
            slots["number"][slot] = slot
            slots["group"][slot], slots["group_slots"][slot] = slot, 1
            slots["position"][slot] += 1
            if rng.random() < 0.7:
                slots["row_id"][slot] += slots["rows"][slot]
                slots["episode"][slot] += 1
    for entry in store.body["sealed"]:
        if entry[0] == int(name[8:16]):
            entry[2] = stop
    return f"{name}: {stop}"


# --- chunks ---------------------------------------------------------------------------------------


@forgery("chunk: an entry of its head", 10)
def _chunk_entry(store: Store, rng: random.Random) -> str:
    name, _, slot, chunk = _chunk(store, rng)
    place = rng.randrange(HEAD.unpack_from(chunk)[0])
    where = HEAD.size + place * ENTRY.size
    values = list(ENTRY.unpack_from(chunk, where))
    number = rng.choice((0, 1, 1, 1, 2, 3, 3, 4, 4))
    before = values[number]
    if number == 1:
        odd = b"O,O |V8 <M8 i,i f,O 2i4 U9 (2)f ? |u1 |b1 <f2 <f4 <i2 f16".split()
        same_size = b"|O <i8 <u8 <f8 >f8 <m8 <c8 |S8 <U2 P p".split()
        values[1] = rng.choice((*odd, *same_size, b"\xff" * 4, b""))
    elif number == 0:
        values[0] = rng.choice((0, 1, 2, 3, 4, 255))
    else:
        values[number] = whole_number(rng, before) % (1 << (32 if number == 2 else 64))
    ENTRY.pack_into(chunk, where, *values)
    what = ("codec", "dtype", "rows in a block", "offset", "length")[number]
    return f"{name}: chunk {slot}: {what} of field {place}: {before} -> {values[number]}"


@forgery("chunk: its head", 3)
def _chunk_head(store: Store, rng: random.Random) -> str:
    name, segment, slot, chunk = _chunk(store, rng)
    values = list(HEAD.unpack_from(chunk))
    number = rng.randrange(2)  # of fields, or the length of the metadata
    before, values[number] = values[number], whole_number(rng, values[number]) % (1 << 32)
    HEAD.pack_into(chunk, 0, *values)
    if number == 1 and rng.random() < 0.5:
        segment.put(slot, "head_bytes", int(segment.a["head_bytes"][slot]) + values[1] - before)
    return f"{name}: chunk {slot}: number {number} of the head: {before} -> {values[number]}"


@forgery("chunk: its metadata", 5)
def _chunk_metadata(store: Store, rng: random.Random) -> str:
    name, segment, slot, chunk = _chunk(store, rng)
    fields, nbytes = HEAD.unpack_from(chunk)
    begin = HEAD.size + fields * ENTRY.size
    before = bytes(chunk[begin : begin + nbytes]) or b'{"seed":1}'
    if rng.random() < 0.5:
        tree = json.loads(before)
        change_json(rng, tree)
        text = dumps(tree)
    else:
        text = bytes(_change_text(rng, before))
    if len(text) > 1 << 20:
        return ""
    pad = -(begin + len(text)) % 8
    more = begin + len(text) + pad - (begin + nbytes + -(begin + nbytes) % 8)
    head = bytearray(chunk[:begin])
    HEAD.pack_into(head, 0, fields, len(text))
    for place in range(fields):
        values = list(ENTRY.unpack_from(head, HEAD.size + place * ENTRY.size))
        values[3] += more
        ENTRY.pack_into(head, HEAD.size + place * ENTRY.size, *values)
    rows = chunk[begin + nbytes + -(begin + nbytes) % 8 :]
    segment.chunks[slot] = bytearray(head + text + bytes(pad) + rows)
    segment.put(slot, "head_bytes", begin + len(text))
    segment.kept.discard((slot, "head_bytes"))
    return f"{name}: chunk {slot}: {_short(text)}"


@forgery("chunk: ends of blocks", 3)
def _chunk_ends(store: Store, rng: random.Random) -> str:
    name, segment, slot, chunk = _chunk(store, rng)
    found = _compressed(segment, slot, chunk)
    _, blocks, offset, _ = rng.choice(found)
    where = offset + 4 * rng.randrange(blocks)
    (before,) = struct.unpack_from("<I", chunk, where)
    value = whole_number(rng, before) % (1 << 32)
    struct.pack_into("<I", chunk, where, value)
    return f"{name}: chunk {slot}: at {where}: {before} -> {value}"


@forgery("chunk: a compressed block", 5)
def _chunk_frame(store: Store, rng: random.Random) -> str:
    return _put_frame(store, rng, *rng.choice(list(_FRAMES.items())))


@forgery("chunk: content of a compressed block", 4)
def _chunk_content(store: Store, rng: random.Random) -> str:
    return _put_frame(store, rng, "another content", _repacked)


def _put_frame(
    store: Store, rng: random.Random, kind: str, frame: Callable[[bytes, random.Random], bytes]
) -> str:
    """Change one compressed block."""
    name, segment, slot, chunk = _chunk(store, rng)
    found = _compressed(segment, slot, chunk)
    place, blocks, offset, nbytes = rng.choice(found)
    block = rng.randrange(blocks)
    ends = list(struct.unpack_from(f"<{blocks}I", chunk, offset))
    start = ends[block - 1] if block else 0
    data = offset + 4 * blocks
    before = bytes(chunk[data + start : data + ends[block]])
    made = frame(before, rng)
    chunk[data + start : data + ends[block]] = made
    more = len(made) - len(before)
    for number in range(block, blocks):
        ends[number] += more
    struct.pack_into(f"<{blocks}I", chunk, offset, *ends)
    _stretch(chunk, place, nbytes, nbytes + more)
    return f"{name}: chunk {slot}: block {block} of field {place}: {kind}"


def _repacked(before: bytes, rng: random.Random) -> bytes:
    """A frame of other bytes than before, which may have been deltas."""
    try:
        if not 0 <= zstandard.frame_content_size(before) <= 1 << 20:
            return before  # forged before
        content = bytearray(zstandard.ZstdDecompressor().decompress(before))
    except zstandard.ZstdError:
        return before  # not a frame, but rows
    kind = rng.choice(("bytes", "numbers", "shorter", "longer"))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(max(1, len(content) // rng.choice((1, 4, 16))))
        if kind == "bytes":
            content[at : at + 1] = rng.choice((b"\0", b"\1", b"\xff", rng.randbytes(1)))
        elif kind == "numbers":
            by = rng.choice((0, 1, 2, 1 << 16, 1 << 31, (1 << 32) - 1))
            content[at & ~3 : (at & ~3) + 4] = struct.pack("<I", by)
        elif kind == "shorter":
            del content[at:]
        else:
            content += content[:at]
    return _zstd(bytes(content))


def _zstd(data: bytes, **more: Any) -> bytes:
    return zstandard.ZstdCompressor(**more).compress(data)


def _huge_window(exponent: int) -> bytes:
    """A frame that says no length, with one stored byte, for a window of 2^(10 + exponent)."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([exponent << 3]) + b"\x09\x00\x00x"


@functools.cache
def _bomb() -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(1 << 10)) + packer.flush()


_FRAMES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "nothing": lambda before, rng: b"",
    "noise": lambda before, rng: rng.randbytes(max(1, len(before))),
    "cut": lambda before, rng: before[: len(before) // 2],
    "a byte changed": lambda before, rng: _flipped(before, rng),
    "fewer rows": lambda before, rng: _zstd(bytes(5)),
    "more rows": lambda before, rng: _zstd(bytes(1 << 20)),
    "a gigabyte of zeros": lambda before, rng: _bomb(),
    "a length of 2^62": lambda before, rng: (
        b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62) + b"\x01\0\0"
    ),
    "a window of 2 GiB": lambda before, rng: _huge_window(21),
    "a window of 128 MiB": lambda before, rng: _huge_window(17),
    "a frame to skip": lambda before, rng: b"\x50\x2a\x4d\x18\x10\0\0\0" + bytes(16),
    "a frame to skip of 4 GiB": lambda before, rng: b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + before,
    "two frames": lambda before, rng: before + before,
    "a dictionary": lambda before, rng: b"\x28\xb5\x2f\xfd\x23\x07\0\0\0\x10\x01\0\0",
}


def _flipped(before: bytes, rng: random.Random) -> bytes:
    if not before:
        return b"x"
    place = rng.randrange(len(before))
    return before[:place] + bytes([before[place] ^ 1 << rng.randrange(8)]) + before[place + 1 :]


@forgery("chunk: rows times k, in slot and head alike", 6)
def _chunk_rows(store: Store, rng: random.Random) -> str:
    name, segment, slot, chunk = _chunk(store, rng)
    segment.pack()
    rows = int(segment.a["rows"][slot])
    k = rng.choice((2, 3, 16, 1 << 10, 1 << 20, 1 << 32, 1 << 40, 0))
    begin = HEAD.size
    is_longer = rng.random() < 0.5 and k < 64
    for place in range(HEAD.unpack_from(chunk)[0]):
        where = begin + place * ENTRY.size
        values = list(ENTRY.unpack_from(chunk, where))
        if is_longer:
            data = bytes(chunk[values[3] : values[3] + values[4]])
            values[3] = len(chunk)
            chunk += data * k + bytes(-len(data) * k % 8)
        values[4] = values[4] * k % (1 << 64)
        ENTRY.pack_into(chunk, where, *values)
    segment.put(slot, "rows", rows * k)
    return (
        f"{name}: chunk {slot}: {rows} rows times {k}, {'with' if is_longer else 'without'} bytes"
    )


@forgery("chunk: a bomb that fits its head", 3)
def _chunk_bomb(store: Store, rng: random.Random) -> str:
    """Rows that take very much more memory than the file; all agrees where all is compressed."""
    name, segment, slot, chunk = _chunk(store, rng)
    found = _compressed(segment, slot, chunk)
    segment.pack()
    row_bytes = dict[int, int]()
    for place, *_ in found:
        _, dtype, *_ = ENTRY.unpack_from(chunk, HEAD.size + place * ENTRY.size)
        shape = store.body["spec"]["fields"][place]["shape"]
        row_bytes[place] = math.prod(shape) * np.dtype(dtype.rstrip(b"\0").decode()).itemsize
    largest = max(row_bytes.values())
    is_as_written = rng.random() < 0.8  # with the number of rows in a block that a writer takes
    rows = max(16, rng.choice((1 << 20, 1 << 24, 1 << 26, 5 << 28)) // largest)
    for place, nbytes in row_bytes.items():
        where = HEAD.size + place * ENTRY.size
        tag, dtype, *_ = ENTRY.unpack_from(chunk, where)
        least_rows = 32 if tag == _DELTA else 16
        block_rows = min(rows, 1 << 16)
        if is_as_written:
            block_rows = max(least_rows, (1 << 16) // max(1, nbytes))
        counts = [block_rows] * (rows // block_rows) + [rows % block_rows] * (rows % block_rows > 0)
        has_deltas = tag == _DELTA and rng.random() < 0.8
        sizes = [nbytes + 4 * (n - 1) if has_deltas else n * nbytes for n in counts]
        frames = [_zeros(size) for size in sizes]
        ends = np.cumsum([len(each) for each in frames], dtype="<u4")
        data = ends.tobytes() + b"".join(frames)
        ENTRY.pack_into(chunk, where, tag, dtype, block_rows, len(chunk), len(data))
        chunk += data + bytes(-len(data) % 8)
    segment.put(slot, "rows", rows)
    return f"{name}: chunk {slot}: {rows} rows of {largest} bytes in {len(chunk)}"


_ZEROS: dict[int, bytes] = {}


def _zeros(nbytes: int) -> bytes:
    if nbytes not in _ZEROS:
        packer = zstandard.ZstdCompressor().compressobj(size=nbytes)
        parts = [
            packer.compress(bytes(min(1 << 20, nbytes - at_))) for at_ in range(0, nbytes, 1 << 20)
        ]
        _ZEROS[nbytes] = b"".join([*parts, packer.flush()])
    return _ZEROS[nbytes]


@forgery("chunk: bytes of its rows", 3)
def _chunk_bytes(store: Store, rng: random.Random) -> str:
    name, _, slot, chunk = _chunk(store, rng)
    where, data = rng.randrange(len(chunk)), rng.randbytes(rng.choice((1, 4, 64)))
    chunk[where : where + len(data)] = data[: len(chunk) - where]
    return f"{name}: chunk {slot}: {len(data)} of {len(chunk)} at {where}"


@forgery("chunk: cut or longer", 3)
def _chunk_length(store: Store, rng: random.Random) -> str:
    name, _, slot, chunk = _chunk(store, rng)
    before = len(chunk)
    if rng.random() < 0.6:
        del chunk[rng.randrange(before) :]
    else:
        chunk += bytes(rng.choice((1, 8, 4096)))
    return f"{name}: chunk {slot}: {before} -> {len(chunk)}"


def _stretch(chunk: bytearray, place: int, before: int, now: int) -> None:
    """Say in the head that a field has another length, and where those after it begin."""
    count = HEAD.unpack_from(chunk)[0]
    more = now + -now % 8 - (before + -before % 8)
    own = list(ENTRY.unpack_from(chunk, HEAD.size + place * ENTRY.size))
    end = own[3] + now
    gap = -now % 8
    old_gap = -before % 8
    chunk[end : end + old_gap] = bytes(gap)
    for number in range(count):
        values = list(ENTRY.unpack_from(chunk, HEAD.size + number * ENTRY.size))
        if number == place:
            values[4] = now
        elif values[3] > own[3]:
            values[3] += more
        ENTRY.pack_into(chunk, HEAD.size + number * ENTRY.size, *values)


def _segment(store: Store, rng: random.Random, least: int = 0) -> tuple[str, Segment]:
    found = [name for name, segment in store.segments.items() if segment.count >= least]
    if not found:
        raise _Nothing
    name = rng.choice(found)
    return name, store.segments[name]


def _chunk(store: Store, rng: random.Random) -> tuple[str, Segment, int, bytearray]:
    name, segment = _segment(store, rng, 1)
    slots = [
        slot
        for slot in range(segment.count)
        if segment.chunks[slot] and not segment.a["end"][slot] & 8
    ]
    if not slots:
        raise _Nothing
    slot = rng.choice(slots)
    return name, segment, slot, segment.chunks[slot]


def _compressed(segment: Segment, slot: int, chunk: bytearray) -> list[tuple[int, int, int, int]]:
    """Of each compressed field its place, its blocks, its offset and its length."""
    rows, found = int(segment.a["rows"][slot]), list[tuple[int, int, int, int]]()
    for place in range(HEAD.unpack_from(chunk)[0]):
        tag, _, block_rows, offset, nbytes = ENTRY.unpack_from(
            chunk, HEAD.size + place * ENTRY.size
        )
        if tag in (_ZSTD, _DELTA):
            found.append((place, -(-rows // block_rows), offset, nbytes))
    if not found:
        raise _Nothing
    return found


def _is_plain(path: Path) -> bool:
    """It is there, and another forgery has put nothing else in its place."""
    return path.is_file() and not path.is_symlink()


# --- files ----------------------------------------------------------------------------------------


@forgery("file: another length", 4)
def _file_length(store: Store, rng: random.Random) -> str:
    name = rng.choice([*store.segments, *store.files, "manifest.json"])
    share, more = rng.random(), rng.choice((1, 4096, 1 << 20))
    is_cut = rng.random() < 0.6

    def act(path: Path) -> None:
        if not _is_plain(path / name):
            return
        length = (path / name).stat().st_size
        os.truncate(path / name, int(length * share) if is_cut else length + more)

    if name in store.segments and rng.random() < 0.5:  # the manifest lists it
        segment = store.segments[name]
        segment.rest = b"" if is_cut else segment.rest + bytes(more)
        return f"{name}: what follows the last chunk: {len(segment.rest)} bytes"
    store.acts.append(act)
    return f"{name}: {f'cut to {share:.2f}' if is_cut else f'{more} more'}"


@forgery("file: taken for another", 3)
def _file_other(store: Store, rng: random.Random) -> str:
    names = [*store.segments, *store.files, "manifest.json"]
    if len(names) < 2:
        return ""
    one, other = rng.sample(names, 2)
    kind = rng.choice(("changed", "copied", "gone"))

    def act(path: Path) -> None:
        if not _is_plain(path / one) or not _is_plain(path / other):
            return
        data = (path / one).read_bytes(), (path / other).read_bytes()
        if kind == "gone":
            (path / one).unlink()
            return
        (path / other).write_bytes(data[0])
        if kind == "changed":
            (path / one).write_bytes(data[1])

    store.acts.append(act)
    return f"{one} {kind}" + ("" if kind == "gone" else f", {other}")


_STRANGE = (
    *"segment-00000099.bin segment-99999999.bin segment-abcdefgh.bin segment-+0000001.bin".split(),
    *"segment--0000001.bin segment-1_000_00.bin segment-000000000.bin segment-²²²²²²²².bin".split(),
    *"segment-00000000.bin.tmp segment-00000099.bin.tmp segment-00000001.bin.tmp".split(),
    *"manifest.json.tmp LOCK.tmp checkpoint-latest.bin.tmp checkpoint-.bin .hidden".split(),
    *"damaged/segment-00000000.bin.0 damaged/manifest.json.0 ledger.bin ledger.bin.tmp".split(),
    *("segment-0000 001.bin", "checkpoint-a b.bin", "segment-0000000\udcff.bin"),
    f"segment-{chr(0x661) * 8}.bin",
)


@forgery("file: a strange name", 3)
def _file_strange(store: Store, rng: random.Random) -> str:
    name = rng.choice(_STRANGE)
    sources = [each for each in (*store.segments, "manifest.json") if each]
    source = rng.choice((*sources, None))

    def act(path: Path) -> None:
        if source is not None and not _is_plain(path / source):
            return
        data = b"" if source is None else (path / source).read_bytes()
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)

    store.acts.append(act)
    return f"{name!r}: {'empty' if source is None else f'a copy of {source}'}"


_NODES = ("link", "link", "link", "fifo", "folder", "hard link")
_TARGETS = (
    *("../beside/model.bin", "../beside/model.bin", "../beside/folder", "../beside/nothing"),
    *("/dev/zero", "/dev/null", "/dev/full", ".", "ITSELF", "../beside/COPY", "../beside/COPY"),
)


@forgery("file: no plain file", 12)
def _file_node(store: Store, rng: random.Random) -> str:
    number = max((int(name[8:16]) for name in store.segments), default=-1) + 1
    following = f"segment-{number:08}.bin"
    name = rng.choice(
        (
            *("LOCK", "LOCK", "LOCK", "manifest.json", "manifest.json", "damaged", following),
            *("manifest.json.tmp", "manifest.json.tmp", f"{following}.tmp", f"{following}.tmp"),
            *(*list(store.segments)[-2:], *list(store.segments)[:1]),
            *("checkpoint-latest.bin", *["checkpoint-latest.bin.tmp"] * 2),
            *("ledger.bin", "ledger.bin.tmp", "segment-00000000.bin.tmp"),
            *("damaged/manifest.json.0", "damaged/segment-00000000.bin.0"),
        )
    )
    kind, target = rng.choice(_NODES), rng.choice(_TARGETS)

    def act(path: Path) -> None:
        _replace_by_node(path / name, kind, target)

    store.acts.append(act)
    return f"{name}: a {kind}" + (f" to {target}" if "link" in kind else "")


def _replace_by_node(path: Path, kind: str, target: str) -> None:
    """Put something else in place of a file; a copy of it is outside of the folder."""
    if path.parent.is_symlink() or (path.parent.exists() and not path.parent.is_dir()):
        return
    path.parent.mkdir(exist_ok=True)
    beside = path.parent
    while not (beside / "beside").is_dir():
        beside = beside.parent
    copied = beside / "beside" / "copy.bin"
    copied.write_bytes(path.read_bytes() if _is_plain(path) else b"nothing")
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name("moved"))
    path.unlink(missing_ok=True)
    if kind == "link":
        text = {"ITSELF": path.name, "../beside/COPY": str(copied)}.get(target, target)
        path.symlink_to(str(beside / text[3:]) if text.startswith("../") else text)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "within").write_bytes(b"x")
    else:
        is_copy = "COPY" in target
        os.link(copied if is_copy else beside / "beside" / "model.bin", path)


# --- checkpoints ----------------------------------------------------------------------------------


def _checkpoint(store: Store) -> tuple[Any, bytes]:
    data = store.files.get("checkpoint-latest.bin")
    if data is None:
        raise _Nothing
    _, _, length = CHECKPOINT.unpack_from(data)
    end = CHECKPOINT.size + length
    return json.loads(data[CHECKPOINT.size : end]), data[end + -end % 8 :]


def _put_checkpoint(store: Store, text: bytes, arrays: bytes, length: int | None = None) -> None:
    body = text + bytes(-(CHECKPOINT.size + len(text)) % 8) + arrays
    lengths = struct.pack("<I", (len(text) if length is None else length) % (1 << 32))
    data = b"\x93SWCHK\r\n" + struct.pack("<I", crc32(lengths + body)) + lengths + body
    store.files["checkpoint-latest.bin"] = data


@forgery("checkpoint: a value", 9)
def _checkpoint_value(store: Store, rng: random.Random) -> str:
    tree, arrays = _checkpoint(store)
    what = change_json(rng, tree if rng.random() < 0.5 else tree["replay"])
    _put_checkpoint(store, dumps(tree), arrays)
    return what


@forgery("checkpoint: its text or length")
def _checkpoint_text(store: Store, rng: random.Random) -> str:
    tree, arrays = _checkpoint(store)
    text = dumps(tree)
    if rng.random() < 0.3:
        length = whole_number(rng, len(text))
        _put_checkpoint(store, text, arrays, length)
        return f"length {len(text)} -> {length}"
    changed = bytes(_change_text(rng, text))
    _put_checkpoint(store, changed, arrays)
    return _short(changed)


@forgery("nothing at all", 1)
def _nothing(store: Store, rng: random.Random) -> str:
    return "as it was written"
