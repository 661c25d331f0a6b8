"""Batches are the same whatever codec their frames are stored with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Chunk, Codec, End, Field, SequenceReplayBuffer, Spec, copy_episodes
from stepwell.buffers.base import native
from stepwell.buffers.replay import replay as replay_module
from stepwell.buffers.sampling import copies
from support.old_chunks import writing_deltas

SPEC = Spec(
    (
        Field("observation", "uint8", (20, 24), "raw", stack=3, stack_padding="repeat"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        Field("info/depth", "float32", (8, 16), "raw"),
    ),
    observation="observation",
    action="action",
)
FRAMES = ("observation", "info/depth")
DRAWS: dict[str, Callable[[SequenceReplayBuffer], Any]] = {
    "transitions": lambda replay: replay.sample_transitions(40),
    "long sequences": lambda replay: replay.sample_sequences(2, length=150),
    "sequences across episodes": lambda replay: replay.sample_sequences(
        5, length=70, borders="cross"
    ),
    "large": lambda replay: replay.sample_sequences(300, length=64),
}


def episodes() -> Iterator[list[Chunk]]:
    """Frames in which little moves, noise, and both in the same chunk; in chunks of any length."""
    rng = np.random.default_rng(0)
    for number in range(8):
        count = int(rng.integers(160, 400))
        shown = np.repeat(rng.integers(0, 256, (1, 20, 24), np.uint8), count, axis=0)
        place = np.arange(count)
        shown[place, place % 20, place * 7 % 24] = place % 256
        depth = np.full((count, 8, 16), number, np.float32)
        depth[:, 0] += place[:, None] // 4
        noisy = {0: range(0), 1: range(count), 2: range(32, 96)}.get(number % 4, range(50, 51))
        shown[noisy] = rng.integers(0, 256, (len(noisy), 20, 24))
        depth[noisy] = rng.random((len(noisy), 8, 16))
        fields = {
            "observation": shown,
            "action": rng.integers(0, 9, count),
            "reward": rng.random(count),
            "info/depth": depth,
        }
        whole = Chunk(number, number % 2, 0, End.TERMINATED, fields)
        yield whole.split(int(rng.choice((20, 64, 100, 1000))))


def filled(path: Path | None, codec: Codec, threads: int) -> SequenceReplayBuffer:
    codecs: dict[str, Codec] = dict.fromkeys(FRAMES, codec)
    replay = SequenceReplayBuffer(path, seed=3, codecs=codecs, threads=threads)
    replay.bind(SPEC, {})
    for chunks in episodes():
        replay.add(chunks)
    return replay


def of_deltas(path: Path | None, threads: int) -> SequenceReplayBuffer:
    """As older versions wrote it."""
    with writing_deltas(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_module, "check_codecs", lambda codecs: None)
        return filled(path, "delta", threads)


@pytest.fixture(scope="module", params=["RAM", "folder"])
def replays(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Codec, SequenceReplayBuffer]]:
    folder = tmp_path_factory.mktemp("codecs") if request.param == "folder" else None
    codecs: tuple[Codec, ...] = ("raw", "zstd", "delta", "patch")
    with ExitStack() as stack:
        yield {
            codec: stack.enter_context(
                filled(folder / codec if folder else None, codec, threads=number)
                if codec != "delta"
                else of_deltas(folder / codec if folder else None, number)
            )
            for number, codec in enumerate(codecs, 1)
        }


@pytest.mark.parametrize("name", DRAWS)
def test_batches_do_not_depend_on_the_codec(
    replays: dict[Codec, SequenceReplayBuffer], name: str
) -> None:
    for _ in range(6):  # the first ones fill a cache, which later ones use
        batches = {codec: DRAWS[name](replay) for codec, replay in replays.items()}
        expected = batches.pop("raw")
        for batch in batches.values():
            assert (batch.ids == expected.ids).all()
            assert batch.observation.tobytes() == expected.observation.tobytes()
            assert batch.info["depth"].tobytes() == expected.info["depth"].tobytes()
            if "transitions" in name:
                assert batch.next_observation.tobytes() == expected.next_observation.tobytes()


def test_episodes_do_not_depend_on_the_codec(replays: dict[Codec, SequenceReplayBuffer]) -> None:
    digests = {replay.digest() for replay in replays.values()}
    assert len(digests) == 1
    read = [list(replay.iter_episodes()) for replay in replays.values()]
    for raw, *others in zip(*read, strict=True):
        for other in others:
            for name in FRAMES:
                assert other.fields[name].tobytes() == raw.fields[name].tobytes()


@pytest.mark.skipif(native.core is None, reason="numpy alone takes longer, and shares it")
def test_other_threads_take_part_where_they_wake_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    field = Field("observation", "uint8", (84, 84), "patch")
    small = Field("action", "int64", (), "raw"), Field("reward", "float64", (), "raw")
    spec = Spec((field, *small), "observation", "action")
    rows = {each.name: np.zeros((64, *each.shape), each.dtype) for each in spec.fields}
    rows["observation"][np.arange(64), np.arange(64)] = 1
    shared: list[int] = []
    executor = copies.ThreadShare._executor

    def told(self: copies.ThreadShare) -> Any:
        shared.append(1)
        return executor(self)

    monkeypatch.setattr(copies.ThreadShare, "_executor", told)
    with SequenceReplayBuffer(seed=0, threads=2) as replay:
        replay.bind(spec, {})
        for episode in range(2):
            replay.add([Chunk(episode, 0, 0, End.TRUNCATED, rows, {})])
        replay.sample_transitions(128)  # 128 x 2 rows of 7 kB
        assert not shared
        replay.sample_transitions(1_024)
        assert len(shared) == 1


def test_a_store_of_deltas_is_read_continued_and_copied_as_patches(tmp_path: Path) -> None:
    with of_deltas(tmp_path / "old", 1) as replay:
        before = replay.digest()
    with SequenceReplayBuffer.open(tmp_path / "old", seed=0) as replay:
        assert replay.spec["observation"].codec == "delta"
        assert replay.digest() == before
        rows = len(replay)
        for chunks in episodes():
            replay.add([dataclasses.replace(each, episode=each.episode + 8) for each in chunks])
        assert len(replay) == 2 * rows
        halves = list(replay.iter_episodes())
        for old, new in zip(halves[:8], halves[8:], strict=True):
            assert all(old.fields[name].tobytes() == new.fields[name].tobytes() for name in FRAMES)
        with SequenceReplayBuffer() as copied:
            copy_episodes(replay, copied)
            assert copied.spec == SPEC.with_codecs(dict.fromkeys(FRAMES, "patch"))
            assert copied.digest() == replay.digest()


def test_new_rows_are_not_stored_as_deltas() -> None:
    with pytest.raises(ValueError, match=r"'observation'.*\bdelta\b.*\bpatch\b"):
        SequenceReplayBuffer(codecs={"observation": "delta"})
    with SequenceReplayBuffer() as replay:
        replay.bind(SPEC.with_codecs({"observation": "delta"}), {})
        assert replay.spec["observation"].codec == "patch"


def test_codecs_compress_these_frames(replays: dict[Codec, SequenceReplayBuffer]) -> None:
    """So the tests above read blocks of each kind."""
    sizes = {codec: replay.total_bytes for codec, replay in replays.items()}
    assert sizes["delta"] < sizes["zstd"] < 0.6 * sizes["raw"]
    assert sizes["patch"] < 0.7 * sizes["raw"]


def test_patches_of_a_folder_are_kept_in_as_much_memory_as_was_given(tmp_path: Path) -> None:
    filled(tmp_path / "a", "patch", threads=1).close()
    drawn, cached = [], []
    for nbytes in (0, 1 << 17, 1 << 22):
        with SequenceReplayBuffer.open(
            tmp_path / "a", read_only=True, seed=0, cache_bytes=nbytes
        ) as replay:
            assert replay.cached_bytes == 0
            drawn.append(replay.sample_sequences(50, length=20))
            cached.append(replay.cached_bytes)
    for each in drawn[1:]:
        assert (each.observation == drawn[0].observation).all()
    small, few, whole = cached  # the first are small fields alone
    assert small < few <= small + (1 << 17) < whole <= small + (1 << 22)
    with pytest.raises(ValueError, match=r"cache_bytes: expected.* -1"):
        SequenceReplayBuffer(cache_bytes=-1)
