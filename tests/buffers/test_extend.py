"""`EpisodeBuffer.extend` writes what the calls of `act` and `observe` for each step write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, EpisodeBuffer, Field, SequenceReplayBuffer, Spec, SpecMismatch
from stepwell.buffers.digest import Digest
from stepwell.buffers.replay_writer import ReplayWriter
from support.examples import examples

Rows = dict[str, np.ndarray]
MORE = [Field("extra/value", "float32", (2,), "raw"), Field("info/lives", "int64", (), "narrow")]
SPECS = {
    "small": Spec.from_spaces(spaces.Box(0, 1, (2,), np.int64), spaces.Discrete(9), more=MORE),
    "nested": Spec.from_spaces(
        spaces.Dict({"a": spaces.Box(0, 1, (3,), np.float32), "b": spaces.Discrete(4)}),
        spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
    ),
    # The first field is stored where it is written, in a memory of each env.
    "large": Spec(
        (
            Field("observation", "int64", (160,), "raw"),
            Field("action", "int64", (), "narrow"),
            Field("reward", "float64", (), "narrow"),
        ),
        "observation",
        "action",
    ),
    "stacked": Spec.from_spaces(
        spaces.Box(0, 255, (3, 2), np.uint8),
        spaces.Discrete(9),
        frame_stack=3,
        stack_padding="repeat",
    ),
}


class Steps:
    """Steps of N envs, numbered values in every field.

    Args:
        spec: The fields.
        num_envs: Number of envs N.
    """

    def __init__(self, spec: Spec, num_envs: int) -> None:
        self.spec, self.num_envs, self.number = spec, num_envs, 0
        self.stacks: dict[str, np.ndarray] = {}

    def rows(self, name: str, is_first: np.ndarray) -> np.ndarray:
        """``[N, ...]`` values of a field that no other call returns."""
        field, n = self.spec[name], self.num_envs
        self.number += 1
        size = n * int(np.prod(field.shape))
        values = (self.number * 7 + np.arange(size)).reshape(n, *field.shape)
        rows = (values % 256 if field.dtype == "uint8" else values).astype(field.numpy_dtype)
        if field.stack == 1:
            return rows
        old = self.stacks.get(name, np.zeros((n, *field.source_shape), field.numpy_dtype))
        moved = np.concatenate([old[:, 1:], rows[:, None]], axis=1)
        fresh = np.repeat(rows[:, None], field.stack, axis=1)
        self.stacks[name] = np.where(is_first[:, None, None], fresh, moved)
        return self.stacks[name]

    def of(self, is_first: np.ndarray, *, chosen: bool) -> Rows:
        """The fields of the actions and extras, or all others, ``[T, N, ...]``."""
        return {
            field.name: np.stack([self.rows(field.name, first) for first in is_first])
            for field in self.spec.fields
            if field.is_chosen is chosen
        }


class Pair:
    """A buffer that is extended, and one that is stepped."""

    def __init__(self, spec: Spec, num_envs: int, chunk_rows: int) -> None:
        self.buffers = [EpisodeBuffer(spec, num_envs, chunk_rows=chunk_rows) for _ in range(2)]
        self.chunks: tuple[list[Chunk], list[Chunk]] = [], []
        self.digests = Digest(), Digest()

    def observe(self, values: Rows, **flags: Any) -> None:
        for buffer in self.buffers:
            buffer.observe(values, **flags)

    def extend(self, chosen: Rows, values: Rows, **flags: Any) -> None:
        extended, stepped = self.buffers
        extended.extend(chosen, values, **flags)
        metadata = flags.pop("metadata")
        for step in range(len(values["reward"])):
            stepped.act({name: rows[step] for name, rows in chosen.items()})
            stepped.observe(
                {name: rows[step] for name, rows in values.items()},
                **{name: rows[step] for name, rows in flags.items()},
                metadata=metadata.get(step),
            )

    def take(self, *, everything: bool) -> None:
        for buffer, chunks, digest in zip(self.buffers, self.chunks, self.digests, strict=True):
            for chunk in buffer.take(everything=everything):
                rows = {name: rows.copy() for name, rows in chunk.fields.items()}
                place = chunk.episode, chunk.stream, chunk.first_row, chunk.end
                chunks.append(Chunk(*place, rows, dict(chunk.metadata)))
                digest.update(chunk)

    def assert_same(self) -> None:
        for one, two in zip(*self.chunks, strict=True):
            assert (one.episode, one.stream, one.first_row, one.end, one.metadata) == (
                two.episode,
                two.stream,
                two.first_row,
                two.end,
                two.metadata,
            )
            for name, rows in one.fields.items():
                assert rows.tobytes() == two.fields[name].tobytes(), name
        extended, stepped = self.buffers
        assert self.digests[0].hexdigest() == self.digests[1].hexdigest()
        assert extended.is_due == stepped.is_due
        assert extended.next_episode == stepped.next_episode
        assert extended.stream_episodes == stepped.stream_episodes


def drawn_flags(
    data: st.DataObject, steps: int, num_envs: int, over: np.ndarray
) -> dict[str, np.ndarray]:
    """Flags [T, N]: a first row behind each end, few others, and ends of each kind."""
    seed = data.draw(st.integers(0, 1 << 30))
    often = data.draw(st.sampled_from([0.02, 0.2, 0.7]))
    rng = np.random.default_rng(seed)
    first, terminated, truncated = (rng.random((steps, num_envs)) < often for _ in range(3))
    first &= rng.random((steps, num_envs)) < 0.2  # of an env that was reset without an end
    for step in range(steps):
        first[step] |= over
        over = terminated[step] | truncated[step]
    return {"is_first": first, "terminated": terminated, "truncated": truncated}


@given(st.data(), st.sampled_from(sorted(SPECS)), st.integers(1, 4), st.integers(2, 40))
@settings(max_examples=examples(400), deadline=None)
def test_the_rows_chunks_and_digests_are_those_of_the_single_steps(
    data: st.DataObject, kind: str, num_envs: int, chunk_rows: int
) -> None:
    spec = SPECS[kind]
    pair, steps = Pair(spec, num_envs, chunk_rows), Steps(spec, num_envs)
    over = np.ones(num_envs, np.bool_)
    if data.draw(st.booleans()):  # else the first rows come with the steps
        rows = {name: each[0] for name, each in steps.of(over[None], chosen=False).items()}
        pair.observe(rows, is_first=over, metadata={0: {"env": 0}})
        over = np.zeros(num_envs, np.bool_)
    for _ in range(data.draw(st.integers(1, 6))):
        event = data.draw(st.sampled_from(["extend"] * 6 + ["flush", "cut one", "cut"]))
        if event == "flush":
            pair.take(everything=True)
        elif event != "extend":
            envs = [0] if event == "cut one" else list(range(num_envs))
            for buffer in pair.buffers:
                buffer.cut(envs)
            over[envs] = True
        free = pair.buffers[0].free_steps
        assert free == pair.buffers[1].free_steps
        count = data.draw(st.integers(0, min(free, 30)))
        flags = drawn_flags(data, count, num_envs, over)
        metadata = {
            int(step): {int(env): {"begun": int(step)}}
            for step, env in np.argwhere(flags["is_first"])
        }
        chosen = steps.of(flags["is_first"], chosen=True) if count else {}
        if count:
            values = steps.of(flags["is_first"], chosen=False)
            pair.extend(chosen, values, **flags, metadata=metadata)
            over = flags["terminated"][-1] | flags["truncated"][-1]
        pair.assert_same()
        while pair.buffers[0].is_due:
            pair.take(everything=False)
    pair.take(everything=True)
    pair.assert_same()


@pytest.mark.parametrize("capacity", [None, 64])
def test_a_writer_stores_more_steps_than_a_chunk_has(capacity: int | None) -> None:
    """In pieces, with the digest and the episodes of the single steps."""
    spec, n, count = SPECS["small"], 3, 1500
    rng = np.random.default_rng(0)
    ends = np.asarray(rng.random((2, count, n)) < 0.02)
    first = np.concatenate([np.zeros((1, n), np.bool_), (ends[0] | ends[1])[:-1]])
    every = np.ones(n, np.bool_)
    steps = Steps(spec, n)
    reset = {name: rows[0] for name, rows in steps.of(every[None], chosen=False).items()}
    chosen, leaves = (steps.of(first, chosen=kind) for kind in (True, False))
    facts = {int(step): {int(env): {"at": int(step)}} for step, env in np.argwhere(first)}

    def written(*, at_once: bool) -> tuple[str, list[tuple[int, int, Any, bytes]]]:
        replay = SequenceReplayBuffer(seed=0, capacity=capacity)
        replay.bind(spec, {})
        writer = ReplayWriter(replay, n, 1e9)
        begun = dict(reset)
        writer.observe(begun, begun.pop("reward"), is_first=every, metadata={})
        flags = {"is_first": first, "terminated": ends[0], "truncated": ends[1]}
        results = dict(leaves)
        reward = results.pop("reward")
        if at_once:
            writer.extend(chosen, results, reward, **flags, metadata=facts)
        else:
            for step in range(count):
                writer.act({name: rows[step] for name, rows in chosen.items()}, None)
                writer.observe(
                    {name: rows[step] for name, rows in results.items()},
                    reward[step],
                    **{name: flag[step] for name, flag in flags.items()},
                    metadata=facts.get(step),
                )
        writer.flush()
        episodes = [
            (one.id, one.stream, one.metadata, b"".join(r.tobytes() for r in one.fields.values()))
            for one in replay.iter_episodes()
        ]
        return writer.digest, episodes if capacity is None else []

    assert written(at_once=True) == written(at_once=False)


def extended(**changes: Any) -> EpisodeBuffer:
    """Extend a buffer of two envs, whose first rows are there, by three steps; some changed."""
    spec = SPECS["small"]
    buffer, steps = EpisodeBuffer(spec, 2, chunk_rows=8), Steps(spec, 2)
    every = np.ones(2, np.bool_)
    if changes.pop("is_begun", True):
        rows = {name: each[0] for name, each in steps.of(every[None], chosen=False).items()}
        buffer.observe(rows, is_first=every)
    if changes.pop("has_acted", False):
        buffer.act({name: each[0] for name, each in steps.of(every[None], chosen=True).items()})
    count: int = changes.pop("count", 3)
    flags = np.zeros((count, 2), np.bool_)
    arguments: dict[str, Any] = {
        "chosen": steps.of(flags, chosen=True) | changes.pop("more_chosen", {}),
        "values": steps.of(flags, chosen=False) | changes.pop("more_values", {}),
        **changes,
    }
    before = [buffer.next_episode, *buffer.stream_episodes]
    try:
        buffer.extend(arguments.pop("chosen"), arguments.pop("values"), **arguments)
    except Exception:
        assert [buffer.next_episode, *buffer.stream_episodes] == before
        assert buffer.waiting_rows(0) == (before[0] > 0), "a row was added in spite of the error"
        raise
    return buffer


def test_all_steps_that_are_free_can_be_added_and_no_more() -> None:
    assert extended(count=8).waiting_rows(0) == 9
    with pytest.raises(ValueError, match=r"at most 8 steps .* got 9"):
        extended(count=9)


WRONG: Mapping[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "a dtype": (
        SpecMismatch,
        "reward.*float32",
        {"more_values": {"reward": np.zeros((3, 2), "f4")}},
    ),
    "a length": (
        SpecMismatch,
        r"action.*\(2, 2\)",
        {"more_chosen": {"action": np.zeros((2, 2), int)}},
    ),
    "a field": (SpecMismatch, "unknown", {"more_values": {"unknown": np.zeros((3, 2))}}),
    "a flag": (ValueError, r"terminated.*\(2,\)", {"terminated": np.zeros(2, np.bool_)}),
    "numbers": (ValueError, "is_first.*int64", {"is_first": np.zeros((3, 2), int)}),
    "no reset": (ValueError, "env 0 .*is_first", {"is_begun": False}),
    "no reset behind an end": (
        ValueError,
        "env 1 .*is_first",
        {"truncated": np.array([[False, False], [False, True], [False, False]])},
    ),
    "two actions": (ValueError, "env 0.*awaits its action", {"has_acted": True}),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_wrong_steps_are_refused_before_any_row_is_added(what: str) -> None:
    error, words, changes = WRONG[what]
    with pytest.raises(error, match=words):
        extended(**changes)
