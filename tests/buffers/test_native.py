"""The compiled core agrees with numpy bit for bit, refuses what is wrong, and never crashes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import stepwell as sw
from stepwell.buffers import Chunk, End, Field, Spec, native
from stepwell.buffers.sampling import copies as copies_module
from stepwell.buffers.sampling.copies import PlainCopies, ThreadShare
from stepwell.buffers.sampling.priorities import Priorities, SumTree
from support.examples import by_tier
from support.source_tree import CHECKOUT
from support.wild_calls import senseless_calls, wild_calls

# Also where STEPWELL_PURE=1 chooses numpy.
CORE = cast("native.Core", pytest.importorskip("stepwell.buffers._native"))
# One level, two and three.
CAPACITIES = (1, 2_048, 4_096, 40_000)
SIZES = (1, 2, 31, 32, 127, 128, 300, 5_000)


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
    code = "from stepwell.buffers import native; print(native.path(), native.core is None)"
    found = python(code, STEPWELL_PURE=value)
    assert (found.returncode, found.stdout) == (0, f"{said} {said != 'compiled core'}\n")


def test_another_value_is_refused() -> None:
    found = python("import stepwell.buffers.native", STEPWELL_PURE="yes")
    assert found.returncode == 1
    assert "STEPWELL_PURE" in found.stderr
    assert "'yes'" in found.stderr


def test_a_core_of_another_build_is_refused() -> None:
    code = (
        "import sys, stepwell.buffers._native as core\n"
        "core.INTERFACE += 1\n"
        "sys.modules.pop('stepwell.buffers.native', None)\n"
        "import stepwell.buffers.native"
    )
    found = python(code, STEPWELL_PURE="0")
    assert found.returncode == 1
    assert f"got {CORE.INTERFACE + 1}" in found.stderr
    assert "install stepwell again" in found.stderr


def test_without_a_core_numpy_serves() -> None:
    code = (
        "import sys\n"
        "sys.modules['stepwell.buffers._native'] = None\n"
        "from stepwell.buffers import native\n"
        "print(native.path())"
    )
    found = python(code, STEPWELL_PURE="0")
    assert found.stdout == "numpy alone\n", found.stderr


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


# --- the tree -------------------------------------------------------------------------------------


def masses_of(rng: np.random.Generator, size: int) -> np.ndarray:
    """Masses of very different sizes, whose sums depend on the order of additions."""
    return 10.0 ** rng.uniform(-9, 9, size)


def tree_bytes(tree: SumTree) -> bytes:
    """All sums of a tree."""
    assert tree.total >= 0
    return bytes(tree._memory)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("size", SIZES)
def test_updates_give_the_same_sums_and_draws_the_same_ids(capacity: int, size: int) -> None:
    def run() -> list[bytes | int]:
        rng = np.random.default_rng(size)
        tree, low = SumTree(capacity), 77
        leaves = masses_of(rng, tree.capacity)
        leaves[rng.random(tree.capacity) < 0.2] = 0
        tree.set_range(0, leaves)
        found: list[bytes | int] = []
        for _ in range(3):
            points = np.sort(rng.random(size)) * tree.total
            ids, shares = tree.draw(points, low)
            found += [ids.tobytes(), shares.tobytes()]
            ids += rng.integers(-tree.capacity, tree.capacity, size) * (rng.random(size) < 0.3)
            stop = low + tree.capacity - int(rng.integers(tree.capacity // 2))
            ids = np.append(ids, [low - 1, low, stop - 1, stop])
            values = masses_of(rng, len(ids))
            found += [tree.update(ids, values, low, stop), values.tobytes()]
            found.append(tree_bytes(tree))
        return found

    compiled, plain = in_both_paths(run)
    assert compiled == plain


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
        st.integers(0, 6_000),
        st.integers(1, 400),
    ),
    max_size=25,
)


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
        return [*found, state["ids"].tolist(), state["masses"].tolist(), state["largest"]]

    compiled, plain = in_both_paths(run)
    assert compiled == plain


def test_numpy_adds_16_numbers_as_the_core_does() -> None:
    """If this fails, another numpy adds in another order: sums differ in their last bits."""
    rows = masses_of(np.random.default_rng(0), 16_000).reshape(-1, 16)
    pairs = rows[:, :8] + rows[:, 8:]
    for _ in range(3):
        pairs = pairs[:, 0::2] + pairs[:, 1::2]
    assert np.add.reduce(rows, 1).tolist() == pairs[:, 0].tolist()


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


# --- wrong calls ----------------------------------------------------------------------------------

CALLS = by_tier(3_000, 3_000, 60_000)
SANITIZED = by_tier(20_000, 20_000, 60_000)


def test_wild_calls_are_refused_and_change_nothing() -> None:
    wild_calls(CORE, seed=0, count=CALLS)


def test_senseless_contents_do_not_crash() -> None:
    senseless_calls(CORE, seed=0, count=CALLS // 20)


@pytest.mark.proof
def test_wild_calls_under_sanitizers(tmp_path: Path) -> None:
    source, compiler = CHECKOUT / "buffers" / "_native.c", shutil.which("gcc")
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
    found = subprocess.run(
        [sys.executable, CHECKOUT / "tests/support/wild_calls.py", str(built), "1", str(SANITIZED)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-3_000:]
