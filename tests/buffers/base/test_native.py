"""The compiled core agrees with numpy bit for bit, refuses what is wrong, and never crashes."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sysconfig
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Space
from hypothesis import example, given

import stepwell as sw
from stepwell.buffers import Chunk, End, Field, Spec, StoreCorrupt
from stepwell.buffers.base import native
from stepwell.buffers.sampling import copies as copies_module
from stepwell.buffers.sampling.copies import PlainCopies, ThreadShare
from stepwell.buffers.sampling.priorities import Priorities, SumTree
from stepwell.buffers.spec.exact_values import BadValue
from stepwell.buffers.storage.chunk_codec import ChunkDecoder, ChunkEncoder
from stepwell.wrappers.env_results import EnvResults
from support.examples import by_tier
from support.old_chunks import writing_deltas
from support.programs import run_python
from support.source_tree import CHECKOUT
from support.wild_calls import senseless_calls, wild_calls

# Also where STEPWELL_PURE=1 chooses numpy.
CORE = cast("native.Core", pytest.importorskip("stepwell.buffers.base._native"))
# One level, two and three.
CAPACITIES = (1, 2_048, 4_096, 40_000)


def in_both_paths(run: Callable[[], object]) -> tuple[object, object]:
    """The results of a call with the core and of the same call with numpy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", CORE)
        compiled = run()
        patch.setattr(native, "core", None)
        return compiled, run()


# --- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"), [("1", "numpy alone"), ("0", "compiled core"), ("", "compiled core")]
)
def test_the_environment_chooses_the_path(value: str, said: str) -> None:
    code = "from stepwell.buffers.base import native; print(native.path(), native.core is None)"
    found = python(code, STEPWELL_PURE=value)
    assert (found.returncode, found.stdout) == (0, f"{said} {said != 'compiled core'}\n")


@pytest.mark.proof
def test_another_value_is_refused() -> None:
    found = python("import stepwell.buffers.base.native", STEPWELL_PURE="yes")
    assert found.returncode == 1
    assert "STEPWELL_PURE" in found.stderr
    assert "'yes'" in found.stderr


@pytest.mark.proof
def test_a_core_of_another_build_is_refused() -> None:
    code = (
        "import sys, stepwell.buffers.base._native as core\n"
        "core.INTERFACE += 1\n"
        "sys.modules.pop('stepwell.buffers.base.native', None)\n"
        "import stepwell.buffers.base.native"
    )
    found = python(code, STEPWELL_PURE="0")
    assert found.returncode == 1
    assert f"got {CORE.INTERFACE + 1}" in found.stderr
    assert "install stepwell again" in found.stderr


@pytest.mark.proof
def test_without_a_core_numpy_serves() -> None:
    code = (
        "import sys\n"
        "sys.modules['stepwell.buffers.base._native'] = None\n"
        "from stepwell.buffers.base import native\n"
        "print(native.path())"
    )
    found = python(code, STEPWELL_PURE="0")
    assert found.stdout == "numpy alone\n", found.stderr


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", code, code=None, warnings="default", env=environment)


# --- the tree -------------------------------------------------------------------------------------


def masses_of(rng: np.random.Generator, size: int) -> np.ndarray:
    """Masses of very different sizes, whose sums depend on the order of additions."""
    return 10.0 ** rng.uniform(-9, 9, size)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_points_on_borders_find_the_same_ids(capacity: int) -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(capacity)
    leaves = masses_of(rng, tree.capacity)
    leaves[rng.random(tree.capacity) < 0.9] = 0
    leaves[rng.integers(tree.capacity)] = 1.0
    tree.set_range(0, leaves)
    borders = np.cumsum(leaves)[:: max(1, tree.capacity // 500)]
    points = np.concatenate([np.nextafter(borders, side) for side in (0, borders, np.inf)])
    points = np.append(points, [0, tree.total, 2 * tree.total])
    (ids, shares), (other_ids, other_shares) = cast(
        "Any", in_both_paths(lambda: tree.draw(points.copy(), 0))
    )
    assert ids.tolist() == other_ids.tolist()
    assert shares.tolist() == other_shares.tolist()
    assert (tree.leaves[ids] > 0).all()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "leave_before", "update", "draw", "restore"]),
        st.integers(0, 6_000) | st.integers(30_000, 60_000),  # one level of sums, two or three
        st.integers(1, 400) | st.just(5_000),
    ),
    max_size=25,
)


@example(0, 0.6, [(name, 30_000, 5_000) for name in ("enter", "update", "draw", "update")])
@given(first=st.integers(0, 1 << 40), alpha=st.sampled_from([0.0, 0.6, 1.0, 7.0]), steps=STEPS)
def test_priorities_are_the_same_after_any_calls(
    first: int, alpha: float, steps: list[tuple[str, int, int]]
) -> None:
    def run() -> list[object]:
        rng = np.random.default_rng(first)
        priorities = Priorities(alpha)
        found: list[object] = []
        for name, place, size in steps:
            ids = first + place + rng.integers(0, 2 * size, size)
            if name == "leave_before":
                priorities.leave_before(first + place // 8)
            elif name == "update":
                found.append(priorities.update(ids, rng.standard_normal(size)))
            elif name == "restore":
                priorities.restore(priorities.state())
            elif name != "draw":
                getattr(priorities, name)(np.array([first + place]), np.array([size]))
            elif len(priorities):
                drawn, shares = priorities.draw(size, rng)
                found += [drawn.tolist(), shares.tolist(), rng.random()]
        state = priorities.state()
        return [*found, state["ids"].tolist(), state["masses"].tolist(), priorities._tree.largest]

    compiled, plain = in_both_paths(run)
    assert compiled == plain


# --- copies ---------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 4_000, 120_000, 200_000]), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 30),
    threads=st.sampled_from([1, 3]),
)
def test_copies_are_the_same(sizes: list[int], seed: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    sources = [memoryview(rng.bytes(size + int(rng.integers(0, 50)))) for size in sizes]
    begins = [int(rng.integers(0, len(s) - n + 1)) for s, n in zip(sources, sizes, strict=True)]
    targets = [sum(sizes[:k]) + k for k in range(len(sizes))]
    copies = PlainCopies(sources, begins, targets, sizes)

    def run() -> bytes:
        out, share = np.zeros(sum(sizes) + len(sizes), np.uint8), ThreadShare(threads)
        copies.make(out, share)
        share.close()
        return bytes(out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies_module, "_SHARED_BYTES", 1 << 20)
        compiled, plain = in_both_paths(run)
    assert compiled == plain
    expected = b"".join(
        bytes(source[begin : begin + size]) + b"\0"
        for source, begin, size in zip(sources, begins, sizes, strict=True)
    )
    assert compiled == expected


# --- chunks ---------------------------------------------------------------------------------------


@given(
    data=st.binary(max_size=400),
    copies=st.integers(1, 400),
    shift=st.integers(0, 70),
    value=st.integers(0, (1 << 32) - 1),
)
def test_checksums_are_those_of_zlib(data: bytes, copies: int, shift: int, value: int) -> None:
    part = memoryview(data * copies)[shift:]
    compiled, plain = in_both_paths(lambda: native.crc32(part, value))
    assert CORE.crc32(part, value) == compiled == plain == zlib.crc32(part, value)
    compiled, plain = in_both_paths(lambda: native.crc32(part))
    assert compiled == plain == zlib.crc32(part)


CHUNK_SPEC = Spec(
    (
        Field("observation", "uint8", (40, 40), "delta"),
        Field("info/picture", "uint8", (30, 10), "zstd"),
        Field("action", "int64", (), "raw"),
        Field("reward", "float64", (), "narrow"),
        Field("extra/nothing", "float32", (0,), "raw"),
    ),
    observation="observation",
    action="action",
)


def chunk_bytes(rng: np.random.Generator, rows: int, is_still: bool) -> bytearray:
    """A chunk of pictures that change little, or in every pixel."""
    pictures = rng.integers(0, 256, (rows, 40, 40), dtype=np.uint8)
    if is_still:
        pictures[:] = pictures[:1]
    fields: dict[str, np.ndarray] = {
        "observation": pictures,
        "info/picture": rng.integers(0, 256 - 250 * is_still, (rows, 30, 10), dtype=np.uint8),
        "action": rng.integers(0, 4, rows),
        "reward": rng.standard_normal(rows) if rng.random() < 0.5 else np.zeros(rows),
        "extra/nothing": np.zeros((rows, 0), np.float32),
    }
    chunk = Chunk(0, 0, 0, End.TERMINATED, fields, {"seed": int(rng.integers(1 << 30))})
    with writing_deltas():
        return bytearray(b"".join(ChunkEncoder(CHUNK_SPEC).encode(chunk)))


def is_accepted(data: bytearray, origin: int, nbytes: int, rows: int) -> bool:
    """True if the check in Python accepts a chunk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", None)
        try:
            ChunkDecoder(CHUNK_SPEC).check(data, origin, nbytes, rows)
        except StoreCorrupt:
            return False
        return True


HEAD_BYTES = 8 + 32 * len(CHUNK_SPEC.fields)


@given(
    seed=st.integers(0, 1 << 30),
    rows=st.integers(1, 150),
    is_still=st.booleans(),
    damage=st.lists(
        st.tuples(
            st.sampled_from(["head", "offset", "size", "end"]),
            st.integers(0, 255),
            st.sampled_from([-(1 << 31), -64, -8, -4, -1, 1, 4, 8, 64, 1 << 31, 1 << 40, 1 << 62]),
        ),
        max_size=2,
    ),
    other_rows=st.sampled_from([0, 0, 0, -1, 1, 16, 1 << 40]),
    other_bytes=st.sampled_from([0, 0, 0, -8, -1, 1]),
)
def test_the_core_accepts_the_same_chunks(
    seed: int,
    rows: int,
    is_still: bool,
    damage: list[tuple[str, int, int]],
    other_rows: int,
    other_bytes: int,
) -> None:
    data = chunk_bytes(np.random.default_rng(seed), rows, is_still)
    for part, place, change in damage:
        field = place % len(CHUNK_SPEC.fields)
        form, at = "<Q", 8 + 32 * field + {"offset": 16, "size": 24}.get(part, 0)
        if part == "head":
            form, at = "<B", place % HEAD_BYTES
        elif part == "end":  # of a block
            (begin,) = struct.unpack_from("<Q", data, 8 + 32 * (field % 2) + 16)
            form, at = "<I", min(begin + place % 4 * 4, len(data) - 4)
        (value,) = struct.unpack_from(form, data, at)
        struct.pack_into(form, data, at, (value + change) % (1 << 8 * struct.calcsize(form)))
    origin = seed % 9
    nbytes, rows = len(data) + min(0, other_bytes), max(1, rows + other_rows)
    padded = bytearray(bytes(origin) + data + b"1" * 9)
    forms = ChunkDecoder(CHUNK_SPEC)._forms
    expected = is_accepted(padded, origin, nbytes + max(0, other_bytes), rows)
    found = CORE.is_chunk(padded, origin, nbytes + max(0, other_bytes), rows, forms)
    if struct.unpack_from("<I", data)[0] == len(CHUNK_SPEC.fields):
        assert found == expected
    else:  # `check_head` refuses it
        assert not found
    if not damage and not other_rows and not other_bytes:
        assert found


# --- replays --------------------------------------------------------------------------------------


SPEC = Spec(
    (
        Field("observation", "uint8", (40, 40), "raw", stack=3, stack_padding="repeat"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
    ),
    observation="observation",
    action="action",
)


def rows_of(rng: np.random.Generator) -> dict[str, np.ndarray]:
    count = int(rng.integers(12, 90))
    return {
        "observation": rng.integers(0, 256, (count, 40, 40), dtype=np.uint8),
        "action": rng.integers(0, 4, count),
        "reward": rng.standard_normal(count),
    }


@pytest.mark.parametrize("capacity", [None, 400])
@pytest.mark.parametrize("seed", range(by_tier(2, 4, 40)))
def test_batches_are_the_same(seed: int, capacity: int | None) -> None:
    def run() -> list[object]:
        rng = np.random.default_rng(seed)
        found: list[object] = []
        with sw.SequenceReplayBuffer(seed=seed, capacity=capacity, threads=2) as replay:
            replay.bind(SPEC, {})
            for episode in range(8):
                replay.add(Chunk(episode, 0, 0, End.TERMINATED, rows_of(rng)).split(23))
                for count in (1, 8, 130):
                    drawn = replay.sample_transitions(count, draw="priorities")
                    found += [drawn.ids.tolist(), drawn.weights.tolist(), drawn.reward.tolist()]
                    found += [bytes(drawn.observation), bytes(drawn.next_observation)]
                    values = rng.standard_normal(count)
                    found.append(replay.update_priorities(drawn.ids, values))
                found.append(bytes(replay.sample_sequences(3, 5).observation))
                found.append(bytes(replay.sample_sequences(3, 5, time_major=True).observation))
            found.append(replay.sample_transitions(9).ids.tolist())  # the same generator state
        return found

    compiled, plain = in_both_paths(run)
    assert compiled == plain


# --- steps ----------------------------------------------------------------------------------------

OBSERVATION = np.zeros(3, np.float32)
RESULTS: list[Any] = [
    (OBSERVATION, 1.0, False, True, {"a": 1}),
    [OBSERVATION, 1.0, False, True, {}],
    (OBSERVATION.tolist(), 1, np.False_, np.array([True]), {}),
    (OBSERVATION.astype(np.float64), np.float64(0.1), False, False, {}),
    (OBSERVATION.astype(">f4"), 1.0, False, False, {}),
    (np.ma.masked_array(OBSERVATION), 1.0, False, False, {}),
    (np.full(3, 1e300), 1.0, False, False, {}),
    (np.zeros(4, np.float32), 1.0, False, False, {}),
    (np.zeros((1, 3), np.float32), 1.0, False, False, {}),
    (OBSERVATION, None, False, False, {}),
    (OBSERVATION, "1.5", False, False, {}),
    (OBSERVATION, True, False, False, {}),
    (OBSERVATION, 1.0, 0, 2, {}),
    (OBSERVATION, 1.0, False, None, {}),
    (OBSERVATION, 1.0, False, False, None),
    (OBSERVATION, 1.0, False, False, [1]),
    (OBSERVATION, 1.0, False, {}),
    (OBSERVATION, 1.0, False, False, {}, 0),
    None,
]


class Told:
    """An env whose action is the number of its result."""

    def step(self, action: int) -> Any:
        return RESULTS[action]


@pytest.mark.parametrize("space", [Box(-1, 1, (3,)), Discrete(3), Box(-1, 1, (3,), np.float64)])
def test_the_results_of_steps_are_checked_alike(space: Space[Any]) -> None:
    def run() -> list[object]:
        step, found = EnvResults(space, "env 0").stepping([None, Told()], 1), list[object]()
        for k in range(len(RESULTS)):
            try:
                result = step(k)
            except BadValue as error:
                found.append(str(error))
            else:
                found += [result is RESULTS[k], [(type(part), repr(part)) for part in result]]
        return found

    compiled, plain = in_both_paths(run)
    assert compiled == plain
    assert RESULTS[0] is EnvResults(Box(-1, 1, (3,)), "env 0").stepping([Told()], 0)(0)


def test_a_step_is_taken_by_the_env_that_is_there_now() -> None:
    class Bad:
        def step(self, action: Any) -> Any:
            raise KeyError(action)

    def run() -> list[object]:
        envs: list[Any] = [Told()]
        step = EnvResults(Box(-1, 1, (3,)), "env 0").stepping(envs, 0)
        first = step(0)
        for envs[0], wanted in ((Bad(), KeyError), (object(), AttributeError)):
            with pytest.raises(wanted):
                step(0)
        envs.clear()
        with pytest.raises(IndexError):
            step(0)
        return [first is RESULTS[0]]

    assert in_both_paths(run) == ([True], [True])


PAIRS = np.zeros((2, 3), np.float32)
FLAGS = np.zeros(2, np.bool_)


@pytest.mark.parametrize(
    ("arrays", "infos", "is_usual"),
    [
        ((PAIRS, FLAGS), [{}, {"other": True}], True),
        ((PAIRS[:, ::-1], FLAGS.copy()), [{"key": False}, {}], True),
        ((PAIRS.astype(np.float64), FLAGS), [{}, {}], False),
        ((PAIRS.astype(">f4"), FLAGS), [{}, {}], False),
        ((PAIRS.tolist(), FLAGS), [{}, {}], False),
        ((PAIRS.view(np.recarray), FLAGS), [{}, {}], False),
        ((PAIRS[0], FLAGS), [{}, {}], False),
        ((PAIRS, FLAGS.view(np.uint8)), [{}, {}], False),
        ((PAIRS, FLAGS), [{}, {"key": True}], False),
        ((PAIRS, FLAGS), [{"key": np.False_}, {}], False),
        ((PAIRS, FLAGS), [{}, {"key": 0}], False),
        ((PAIRS, FLAGS), [{}], False),
        ((PAIRS, FLAGS), ({}, {}), False),
        ((PAIRS, FLAGS), {}, False),
        ((PAIRS, FLAGS), [{}, OrderedDict[str, object]()], False),
        ((PAIRS, FLAGS), [{}, None], False),
    ],
)
def test_usual_steps_are_known(arrays: tuple[Any, ...], infos: Any, is_usual: bool) -> None:
    forms = native.forms_of((PAIRS.dtype, (2, 3)), (FLAGS.dtype, (2,)))
    assert CORE.are_usual(arrays, forms, infos, 2, "key") is is_usual


def test_forms_of_other_things_are_refused() -> None:
    right = native.forms_of((PAIRS.dtype, (2, 3)))
    for forms in (right[:-1], list(right), (*right[:1], 1, *right[2:]), (*right, *right)):
        with pytest.raises(TypeError, match="forms"):
            CORE.stepping([], 0, cast("Any", forms), len)
        with pytest.raises(TypeError, match="forms"):
            CORE.are_usual((PAIRS,), cast("Any", forms), [], 0, "key")
    for arrays, count in (([PAIRS], 0), ((PAIRS,), "0")):
        with pytest.raises(TypeError):
            CORE.are_usual(cast("Any", arrays), right, [], cast("Any", count), "key")


# --- wrong calls ----------------------------------------------------------------------------------

CALLS = by_tier(500, 3_000, 60_000)
SANITIZED = by_tier(20_000, 20_000, 60_000)


def test_wild_calls_are_refused_and_change_nothing() -> None:
    wild_calls(CORE, seed=0, count=CALLS)


def test_senseless_contents_do_not_crash() -> None:
    senseless_calls(CORE, seed=0, count=CALLS // 20)


@pytest.mark.proof
def test_wild_calls_under_sanitizers(tmp_path: Path) -> None:
    source, compiler = CHECKOUT / "buffers" / "base" / "_native.c", shutil.which("gcc")
    headers = Path(sysconfig.get_path("include"))
    if compiler is None or not source.exists() or not (headers / "Python.h").exists():
        pytest.skip("needs gcc, the source of the core, and Python.h")
    ask = [compiler, "-print-file-name=libasan.so"]
    library = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    if not library.is_absolute():
        pytest.skip("needs gcc's libasan")
    built = tmp_path / "_native.so"
    subprocess.run(
        [
            *(compiler, "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
            *(f"-I{headers}", str(source), "-o", str(built)),
        ],
        check=True,
    )
    environment = {"LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc"}
    environment["ASAN_OPTIONS"] = "detect_leaks=0"  # Python keeps much until it ends
    script = CHECKOUT / "tests/support/wild_calls.py"
    run_python(script, built, "1", str(SANITIZED), env=environment)
