"""SequenceReplayBuffer: binding, adding, sampling, iterating, stores."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import (
    Chunk,
    End,
    EpisodeBuffer,
    Field,
    JoinedStorage,
    Loader,
    MemoryStorage,
    NotEnoughData,
    SequenceReplayBuffer,
    Sequences,
    Spec,
    SpecMismatch,
    StoreNotFound,
    Transitions,
)

SPEC = Spec.from_spaces(spaces.Box(0, 255, (3,), np.uint8), spaces.Discrete(5))


def chunk(episode: int = 0, length: int = 10, end: End = End.TERMINATED, **place: int) -> Chunk:
    rows: dict[str, np.ndarray] = {
        "observation": np.arange(length * 3, dtype=np.uint8).reshape(length, 3),
        "action": np.arange(length) % 5,
        "reward": np.arange(length) / 3,
    }
    where = {"stream": 0, "first_row": 0, **place}
    return Chunk(episode, where["stream"], where["first_row"], end, rows, {"n": episode})


def filled(**options: Any) -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer(seed=options.pop("seed", 0), **options)
    replay.bind(SPEC, {"recipe": {"env": "Toy", "skip": 4}})
    replay.add([chunk(0), chunk(1, stream=1)])
    return replay


def drawn(replay: SequenceReplayBuffer, **options: Any) -> list[int]:
    ids: list[int] = replay.sample_sequences(50, 3, **options).ids.tolist()
    return ids


def test_a_given_generator_is_used_instead() -> None:
    replay, other = filled(seed=3), filled(seed=4)
    assert drawn(replay, rng=np.random.default_rng(9)) == drawn(other, rng=np.random.default_rng(9))
    assert drawn(replay) == drawn(filled(seed=3))
    assert drawn(filled(seed=None)) != drawn(filled(seed=None))


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_capacity_may_be_a_float_without_a_fraction(tmp_path: Path, is_stored: bool) -> None:
    path = tmp_path / "run" if is_stored else None
    limits: dict[str, Any] = {"capacity": 1e3, "capacity_bytes": 1e8, "cache_bytes": 1e6}
    with filled(path=path, **limits) as replay:
        assert "capacity=1000, " in repr(replay)
        expected = drawn(replay)
    if path is not None:
        with SequenceReplayBuffer(path, seed=0, **limits) as again:
            assert drawn(again) == expected


def test_an_empty_replay_has_no_spec_storage_or_batches(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^threads: .*>= 1.* 0\b"):
        SequenceReplayBuffer(threads=0)
    with pytest.raises(NotEnoughData, match=rf"replay {tmp_path}/run\b.* 0\b"):
        _ = SequenceReplayBuffer(tmp_path / "run").spec
    replay = SequenceReplayBuffer()
    for use in (lambda: replay.spec, lambda: replay.storage, lambda: replay.sample_sequences(1, 1)):
        with pytest.raises(NotEnoughData, match=r"\breplay in RAM\b.*\bone\b.*\bstep\b.* 0\b"):
            use()
    assert (len(replay), replay.steps, replay.episodes, replay.nbytes) == (0, 0, 0, 0)
    assert list(replay.iter_episodes()) == []
    assert replay.sessions == ()
    assert len(replay.digest()) == 16
    replay.close()


def test_episodes_are_iterated_in_the_order_of_their_first_rows() -> None:
    replay = filled()
    replay.add([chunk(2, 5, End.NONE, stream=1)])
    replay.add([chunk(3, 5, End.TRUNCATED, stream=0)])
    replay.add([chunk(2, 5, End.TERMINATED, stream=1, first_row=5)])
    found = [(e.id, e.stream, e.steps, e.end, e.metadata) for e in replay.iter_episodes()]
    assert found == [
        (0, 0, 9, End.TERMINATED, {"n": 0}),
        (1, 1, 9, End.TERMINATED, {"n": 1}),
        (2, 1, 9, End.TERMINATED, {"n": 2}),
        (3, 0, 4, End.TRUNCATED, {"n": 3}),
    ]


def test_an_iterator_does_not_include_rows_added_meanwhile() -> None:
    replay = filled()
    replay.add([chunk(2, 5, End.PENDING)])
    episodes = replay.iter_episodes()
    replay.add([chunk(2, 5, End.TERMINATED, first_row=4), chunk(3)])
    found = [(e.id, e.rows, e.end) for e in episodes]
    assert found == [(0, 10, End.TERMINATED), (1, 10, End.TERMINATED), (2, 4, End.NONE)]


def test_an_eviction_while_iterating_is_an_error() -> None:
    replay = filled(capacity=32)
    episodes = replay.iter_episodes()
    tail = int(replay.storage.index.records["is_tail"].argmax())
    for number in range(2, 20):
        replay.add([chunk(number)])
    base = replay.storage.index.base
    with pytest.raises(NotEnoughData, match=rf"\bchunk {tail} .*\b{base}\b"):
        list(episodes)


def test_given_codecs_are_used() -> None:
    replay = filled(codecs={"observation": "raw"})
    assert replay.spec["observation"].codec == "raw"
    replay.bind(SPEC, replay.sessions[0])  # codecs do not matter here
    with pytest.raises(ValueError, match=r"^codecs .*'image'.*\baction, observation\b"):
        filled(codecs={"image": "raw"})


def test_a_storage_of_ones_own_takes_the_place_of_memory_storage() -> None:
    class Delegating:  # has the methods of a Storage, and no class of Stepwell
        def __init__(self, spec: Spec, **capacities: int | None) -> None:
            self.inner = MemoryStorage(spec, **capacities)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    make: Any = Delegating
    own, ours = filled(storage=make, capacity=15), filled(capacity=15)
    assert isinstance(own.storage, Delegating)
    assert drawn(own) == drawn(ours)
    assert own.digest() == ours.digest()
    counts = [len(list(replay.epoch(Sequences(4, 2)))) for replay in (own, ours)]
    assert counts[0] == counts[1] > 0
    transitions = [replay.sample_transitions(20).observation for replay in (own, ours)]
    assert (transitions[0] == transitions[1]).all()
    assert [one.id for one in own.iter_episodes()] == [one.id for one in ours.iter_episodes()]


def test_a_storage_and_a_path_are_not_given_together(tmp_path: Path) -> None:
    def make(spec: Spec, **capacities: int | None) -> MemoryStorage:
        return MemoryStorage(spec, **capacities)

    with pytest.raises(ValueError, match=rf"^storage: .*make.*{tmp_path}/a\b"):
        SequenceReplayBuffer(tmp_path / "a", storage=make)
    assert not (tmp_path / "a").exists()


def test_different_fields_and_envs_are_refused() -> None:
    replay = filled()
    other = Spec.from_spaces(spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(5))
    with pytest.raises(SpecMismatch, match=r"^this replay .*'observation'.*\(3,\).*\(4,\)"):
        replay.bind(other, {})
    more = SPEC.with_more([Field("info/lives", "int64", (), "narrow")])
    with pytest.raises(SpecMismatch, match=r"^this replay .*'info/lives'"):
        replay.bind(more, {})
    with pytest.raises(SpecMismatch, match=r"^this replay .*\bskip .*\b4\b.*\b3\b"):
        replay.bind(SPEC, {"recipe": {"env": "Toy", "skip": 3}})
    with pytest.raises(SpecMismatch, match=r"^this replay .*\bsticky .*\bNone\b.*\b0\.25\b"):
        replay.bind(SPEC, {"recipe": {"env": "Toy", "skip": 4, "sticky": 0.25}})
    assert len(replay.sessions) == 1
    replay.bind(SPEC, {"recipe": {"env": "Toy", "skip": 4}})
    assert len(replay.sessions) == 2


@pytest.mark.parametrize("folder", [None, "run"])
def test_a_replay_without_rows_may_get_other_fields(tmp_path: Path, folder: str | None) -> None:
    other = Spec.from_spaces(spaces.Box(0, 1, (2,), np.float64), spaces.Discrete(2))
    path = None if folder is None else tmp_path / folder
    with SequenceReplayBuffer(path, seed=0, codecs={"observation": "raw"}) as replay:
        replay.bind(other, {"recipe": {"env": "Other"}})
        with pytest.raises(NotEnoughData):
            replay.sample_sequences(1, 1)
        replay.bind(SPEC, {"recipe": {"env": "Toy"}})
        assert replay.spec == SPEC.with_codecs({"observation": "raw"})
        assert [session["recipe"] for session in replay.sessions] == [{"env": "Toy"}]
        replay.add([chunk(0)])
        assert replay.sample_sequences(2, 10).observation.shape == (2, 10, 3)
        with pytest.raises(SpecMismatch, match=r"'observation'.*\bfloat64\b"):
            replay.bind(other, {"recipe": {"env": "Other"}})
    if path is not None:
        with SequenceReplayBuffer.open(path) as again:
            assert again.spec == SPEC.with_codecs({"observation": "raw"})
            assert len(again) == 9


def test_a_replay_whose_rows_were_dropped_keeps_its_fields() -> None:
    replay = SequenceReplayBuffer(capacity=16, seed=0)
    replay.bind(SPEC, {})
    for episode in range(20):
        replay.add([chunk(episode, 2)])
    replay.drop_before(40)
    assert len(replay) == 0
    with pytest.raises(SpecMismatch, match="'info/lives'"):
        replay.bind(SPEC.with_more([Field("info/lives", "int64", (), "narrow")]), {})


def test_the_repr_is_one_line_of_names_and_values(tmp_path: Path) -> None:
    assert (
        repr(SequenceReplayBuffer()) == "SequenceReplayBuffer(capacity=None, steps=0, episodes=0)"
    )
    with filled(path=tmp_path / "run", capacity=100) as replay:
        assert repr(replay) == (
            f"SequenceReplayBuffer('{tmp_path}/run', capacity=100, steps=18, episodes=2, "
            "fields=(observation: uint8 (3,); action: int64 (); reward: float64 ()))"
        )


def test_the_reprs_of_storages_buffers_epochs_and_loaders_are_one_line(tmp_path: Path) -> None:
    fields = "fields=(observation: uint8 (3,); action: int64 (); reward: float64 ())"
    counts = f"steps=18, episodes=2, {fields}"
    replay = filled(capacity=100)
    assert repr(replay.storage) == f"MemoryStorage(capacity=100, {counts})"
    with filled(path=tmp_path / "run") as stored:
        storage = stored.storage
        assert repr(storage) == f"DiskStorage('{tmp_path}/run', capacity=None, {counts})"
        both = JoinedStorage([storage, storage])
        assert repr(both) == f"JoinedStorage(storages=2, steps=36, episodes=4, {fields})"
    buffer = EpisodeBuffer(SPEC, 2, chunk_rows=8)
    assert repr(buffer) == f"EpisodeBuffer(num_envs=2, chunk_rows=8, next_episode=0, {fields})"
    epoch = replay.epoch(Transitions(4))
    assert repr(epoch) == "Epoch(Transitions, batch_size=4, items=18, batches=5, number=0)"
    assert repr(Loader(epoch)) == "Loader(prefetch=2, threads=1, to='numpy', reuse=False)"


def test_a_call_with_an_invalid_chunk_adds_none() -> None:
    replay = filled()
    with pytest.raises(ValueError, match=r"\bepisode 3 .*\brow 4\b.*\brow 0\b"):
        replay.add([chunk(2), chunk(3, first_row=4, stream=1)])
    assert (replay.episodes, replay.steps) == (2, 18)


def test_the_digest_after_evictions_is_that_of_the_remaining_rows() -> None:
    def digest(numbers: range, capacity: int | None) -> tuple[str, list[int]]:
        replay = SequenceReplayBuffer(capacity=capacity)
        replay.bind(SPEC, {})
        for number in numbers:
            replay.add([chunk(number)])
        return replay.digest(), [episode.id for episode in replay.iter_episodes()]

    found, left = digest(range(60), 160)
    assert found == digest(range(left[0], 60), None)[0]


def test_a_reopened_store_has_the_same_rows(tmp_path: Path) -> None:
    with filled(path=tmp_path / "run") as replay:
        digest, steps = replay.digest(), replay.steps
    with SequenceReplayBuffer.open(tmp_path / "run", read_only=True, seed=0) as again:
        assert (again.digest(), again.steps, again.episodes) == (digest, steps, 2)
        assert [e.metadata for e in again.iter_episodes()] == [{"n": 0}, {"n": 1}]
        assert again.sessions[0]["recipe"] == {"env": "Toy", "skip": 4}
        assert drawn(again) == drawn(filled(seed=0))
    with SequenceReplayBuffer(tmp_path / "run") as more:
        with pytest.raises(SpecMismatch, match=rf"^{tmp_path}/run .*\bskip .*\b4\b.*\b3\b"):
            more.bind(SPEC, {"recipe": {"env": "Toy", "skip": 3}})
        more.bind(SPEC, {"recipe": {"env": "Toy", "skip": 4}})
        more.add([chunk(more.storage.index.next_episode)])
        assert [e.id for e in more.iter_episodes()] == [0, 1, 2]


def test_several_folders_are_opened_as_joined_stores(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with filled(path=tmp_path / name) as replay:
            replay.save_checkpoint()
    paths: list[str | Path] = [tmp_path / "a", str(tmp_path / "b")]
    with SequenceReplayBuffer.open(paths, weights=[1, 0], seed=0) as replay:
        assert (replay.episodes, replay.steps, replay.path) == (4, 36, None)
        assert (replay.sample_sequences(100, 3).ids < 1 << 48).all()
        assert len(list(replay.iter_episodes(where={"n": 1}))) == 2
        state, expected = replay.state_dict(), drawn(replay)
        assert not replay.refresh()
    with SequenceReplayBuffer.open(paths, weights=[1, 0]) as replay:
        replay.load_state_dict(state)
        assert drawn(replay) == expected
    with SequenceReplayBuffer.open(paths, weights=[0, 1]) as replay:
        assert (replay.sample_sequences(100, 3).ids >= 1 << 48).all()


def test_a_store_is_opened_once_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(path=tmp_path / "a"):
        pass
    (tmp_path / "link").symlink_to("a")
    monkeypatch.chdir(tmp_path)
    for again in ("a", "a/", "link", tmp_path / "a", "link/../a"):
        with pytest.raises(ValueError, match=rf"^path: expected different stores, got a .*{again}"):
            SequenceReplayBuffer.open(["a", again])
    with SequenceReplayBuffer.open(["a"]) as replay:
        assert len(replay) > 0


def test_weights_need_several_folders(tmp_path: Path) -> None:
    with filled(path=tmp_path / "a"):
        pass
    with pytest.raises(ValueError, match=r"^weights: .*\bfolders\b.*\bone folder\b"):
        SequenceReplayBuffer.open(tmp_path / "a", weights=[1])
    with pytest.raises(StoreNotFound, match=rf"^{tmp_path}/b .*\bmanifest\.json\b"):
        SequenceReplayBuffer.open([tmp_path / "a", tmp_path / "b"])
    with SequenceReplayBuffer(tmp_path / "a"):  # the first store was closed again
        pass


def test_is_being_written_is_true_while_a_writer_is_open(tmp_path: Path) -> None:
    with filled(path=tmp_path / "a") as replay:
        assert replay.is_being_written
        with SequenceReplayBuffer.open(tmp_path / "a", read_only=True) as reader:
            assert reader.is_being_written
            replay.add([chunk(2)])
            assert (reader.episodes, reader.refresh(), reader.episodes) == (2, True, 3)
            replay.close()
            assert not reader.is_being_written
            assert not reader.refresh()
    assert not filled().is_being_written


def test_refresh_needs_a_read_only_store(tmp_path: Path) -> None:
    with (
        filled(path=tmp_path / "a") as replay,
        pytest.raises(ValueError, match=rf"^{tmp_path}/a .*\bread_only=True\b"),
    ):
        replay.refresh()
    assert not filled().refresh()


# --- what a closed replay holds ---


def held(folder: Path) -> list[str]:
    """Files below a folder that this process has mapped or open."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    opened = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in (*maps, *opened) if str(folder) in name]


def stored_pictures(path: Path, seed: int = 0) -> Path:
    """A store of rows that are mapped when they are drawn."""
    noise = np.random.default_rng(seed)
    space = spaces.Box(0, 255, (16, 16), np.uint8)
    with (
        SequenceReplayBuffer(path, seed=0) as replay,
        replay.writer((space, spaces.Discrete(2))) as writer,
    ):
        pictures = noise.integers(0, 256, (200, 16, 16), np.uint8)
        for step in range(199):
            writer.add(pictures[step], 0, 0.0, pictures[step + 1], step % 50 == 49, False)
    return path


OPENED: dict[str, Any] = {
    "writing": SequenceReplayBuffer,
    "read-only": lambda path: SequenceReplayBuffer.open(path, read_only=True),
    "joined": lambda path: SequenceReplayBuffer.open([path, stored_pictures(path / "../b")]),
}
USES: dict[str, Any] = {
    "sequences": lambda replay: replay.sample_sequences(4, 8).observation,
    "transitions": lambda replay: replay.sample_transitions(4).observation,
    "episodes": lambda replay: replay.sample_episodes(2).observation,
    "where": lambda replay: replay.sample_transitions(4, where=lambda _: True).observation,
    "epoch": lambda replay: next(iter(replay.epoch(Transitions(8)))).observation,
    "loader": lambda replay: next(replay.loader(Transitions(8))).observation,
    "read": lambda replay: next(iter(replay.iter_episodes())).observation,
    "field": lambda replay: replay.field_rows("observation", np.arange(4)),
}


@pytest.mark.proof
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", OPENED)
def test_a_closed_replay_holds_no_file_and_its_batches_stay_valid(
    way: str, use: str, tmp_path: Path
) -> None:
    replay = OPENED[way](stored_pictures(tmp_path / "a"))
    drawn = USES[use](replay)
    before = drawn.copy()
    assert held(tmp_path)
    replay.close()
    gc.collect()
    assert not held(tmp_path)
    shutil.rmtree(tmp_path / "a")
    assert (drawn == before).all()
    with pytest.raises(ValueError, match=r"closed"):
        replay.sample_transitions(4)
