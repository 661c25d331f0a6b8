"""`replay.episode` and `replay.filmstrip`: one episode by its id, without the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import NotEnoughData, SequenceReplayBuffer, Transitions
from stepwell.buffers import Chunk, DiskStorage, End, Episode, Field, MemoryStorage, Spec
from stepwell.buffers.storage.disk.segment import segment_path
from support.disk_stores import poke, spoil
from support.examples import examples
from support.pictures import as_rgb, decoded

SPEC = Spec(
    (
        Field("observation/id", "int64", (), "narrow"),
        Field("observation/screen", "uint8", (8, 10), "zstd"),
        Field("observation/colour", "uint8", (3, 9, 8), "patch"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
    ),
    {"id": "observation/id", "screen": "observation/screen", "colour": "observation/colour"},
    "action",
)
ENDS = [End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED]


def chunk_of(episode: int, first: int, count: int, end: End, stream: int = 0) -> Chunk:
    """Rows whose pixels are determined by the episode and the row."""
    rows = np.arange(first, first + count)
    rng = [np.random.default_rng([episode, row]) for row in rows.tolist()]
    fields = {
        "observation/id": np.full(count, episode),
        "observation/screen": np.stack([r.integers(0, 256, (8, 10)) for r in rng]).astype(np.uint8),
        "observation/colour": np.stack([r.integers(0, 256, (3, 9, 8)) for r in rng]).astype(
            np.uint8
        ),
        "action": rows,
        "reward": rows.astype(np.float64),
    }
    return Chunk(episode, stream, first, end, fields, {"number": episode})


def fill(storage: MemoryStorage, program: list[tuple[int, int, End]]) -> None:
    """Add chunks of streams, each with its rows and its end."""
    opened: dict[int, tuple[int, int]] = {}
    following = 0
    for stream, count, end in program:
        if stream not in opened:
            opened[stream] = (following, 0)
            following += 1
        episode, first = opened[stream]
        storage.add([chunk_of(episode, first, count, end, stream)])
        opened[stream] = (episode, first + count - bool(end & End.PENDING))
        if end.is_final:
            del opened[stream]


def assert_same(one: Episode, other: Episode) -> None:
    def place(episode: Episode) -> tuple[object, ...]:
        return episode.id, episode.stream, episode.first_row, episode.end, episode.metadata

    assert place(one) == place(other)
    assert list(one.fields) == list(other.fields)
    for name, rows in one.fields.items():
        assert rows.dtype == other.fields[name].dtype
        assert rows.tobytes() == other.fields[name].tobytes()


programs = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 6), st.sampled_from(ENDS)), min_size=1, max_size=20
)


@settings(max_examples=examples(80))
@given(programs, st.sets(st.integers(0, 19), max_size=5), st.integers(1, 12))
def test_an_episode_is_that_of_iter_episodes(
    program: list[tuple[int, int, End]], lost: set[int], count: int
) -> None:
    storage = MemoryStorage(SPEC)
    fill(storage, program)
    for position in lost & set(range(len(program))):
        storage.lose(position)
    replay = SequenceReplayBuffer.of(storage)
    expected = list(replay.iter_episodes())
    ids = [episode.id for episode in expected]
    for episode in expected:
        assert_same(replay.episode(episode.id, first_row=episode.first_row), episode)
        if ids.count(episode.id) == 1:
            assert_same(replay.episode(episode.id), episode)
        else:
            heads = [each.first_row for each in expected if each.id == episode.id]
            with pytest.raises(
                ValueError, match=rf"first_row: .*{', '.join(map(str, heads))}.*None"
            ):
                replay.episode(episode.id)
        for field in ("observation/screen", "observation/colour"):
            strip = replay.filmstrip(episode.id, field, frames=count, first_row=episode.first_row)
            frames = episode.frames(field)
            places = [row - episode.first_row for row in strip.rows]
            assert places == sorted(set(places))
            assert len(places) == min(count, episode.rows)
            assert places[0] == 0
            assert places[-1] == episode.rows - 1 or count == 1
            gaps = np.diff(places)
            assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
            assert (strip.pixels == strip_of(frames[places])).all()
    for number in {len(program) + 1} | (set(range(len(program))) - set(ids)):
        with pytest.raises(ValueError, match=rf"episode: .*got {number}$"):
            replay.episode(number)


def strip_of(frames: np.ndarray, scale: int = 1) -> np.ndarray:
    """The picture, frame by frame."""
    lines = -(-len(frames) // 8)
    columns = -(-len(frames) // lines)
    frames = np.stack([np.kron(frame.T, np.ones((scale, scale))).T for frame in frames])
    height, width = frames.shape[1] + 2, frames.shape[2] + 2
    sheet = np.full((lines * height - 2, columns * width - 2, *frames.shape[3:]), 128, np.uint8)
    for place, frame in enumerate(frames):
        top, left = place // columns * height, place % columns * width
        sheet[top : top + height - 2, left : left + width - 2] = frame
    return sheet


def replay_of(*lengths: int) -> SequenceReplayBuffer:
    storage = MemoryStorage(SPEC)
    fill(storage, [(0, length, End.TERMINATED) for length in lengths])
    return SequenceReplayBuffer.of(storage)


def test_other_episodes_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = replay_of(5, 6, 7)
    read: list[int] = []
    payload = MemoryStorage.payload

    def note(self: MemoryStorage, position: int) -> object:
        read.append(position)
        return payload(self, position)

    monkeypatch.setattr(MemoryStorage, "payload", note)
    assert replay.episode(1).rows == 6
    replay.filmstrip(1)
    assert set(read) == {1}


@pytest.mark.parametrize(
    ("replay", "number", "first_row", "error", "message"),
    [
        *(
            (replay_of(6), number, None, ValueError, r"episode: .*whole number")
            for number in (-1, 1.5, "3", None, True)
        ),
        *(
            (replay_of(6, 6), 1, first_row, ValueError, rf"first_row: .*1 .*\(0\).*got {first_row}")
            for first_row in (1, 6)
        ),
        (SequenceReplayBuffer(), 0, None, NotEnoughData, "replay in RAM"),
    ],
)
def test_an_episode_that_is_not_there_is_refused(
    replay: SequenceReplayBuffer, number: Any, first_row: Any, error: Any, message: str
) -> None:
    for ask in (replay.episode, replay.filmstrip):
        with pytest.raises(error, match=message):
            ask(number, first_row=first_row)
    assert replay_of(5, 6).episode(np.int64(1), first_row=0).rows == 6  # type: ignore[arg-type]


def test_episodes_of_joined_stores_and_of_a_store_on_disk(tmp_path: Path) -> None:
    for name, lengths in (("a", (5, 6)), ("b", (7,))):
        with SequenceReplayBuffer(tmp_path / name) as replay:
            replay.bind(SPEC, {})
            replay.add([chunk_of(i, 0, n, End.TERMINATED) for i, n in enumerate(lengths)])
    with SequenceReplayBuffer.open([tmp_path / "a", tmp_path / "b"]) as both:
        for episode in both.iter_episodes():
            assert_same(both.episode(episode.id), episode)
            assert both.filmstrip(episode.id, frames=100).rows == tuple(range(episode.rows))
        with pytest.raises(ValueError, match=r"episode: .*got 99"):
            both.episode(99)


def test_a_damaged_chunk_leaves_the_parts_of_its_episode(tmp_path: Path) -> None:
    with SequenceReplayBuffer(tmp_path / "a") as replay:
        replay.bind(SPEC, {})
        for first in (0, 10, 20):
            replay.add([chunk_of(0, first, 10, End.TERMINATED if first == 20 else End.NONE)])
        assert isinstance(replay.storage, DiskStorage)
        spoil(replay.storage, 1)
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True, on_corrupt="skip") as replay:
        with pytest.raises(ValueError, match=r"first_row: .*\(0, 20\).*got None.*lost"):
            replay.filmstrip(0, frames=30)
        assert replay.episode(0, first_row=20).reward.tolist() == list(range(20, 30))
        assert replay.filmstrip(0, frames=2, first_row=20).rows == (20, 29)


def test_a_count_by_metadata_leaves_damaged_chunks_out(tmp_path: Path) -> None:
    with SequenceReplayBuffer(tmp_path / "a") as replay:
        replay.bind(SPEC, {})
        for episode in range(3):
            chunk = chunk_of(episode, 0, 10, End.TERMINATED)
            replay.add([replace(chunk, metadata={"number": episode})])
        assert isinstance(replay.storage, DiskStorage)
        record = replay.storage.index.record(1)
    segment = segment_path(tmp_path / "a", record.segment)
    poke(segment, segment.read_bytes().index(b"number", record.offset))
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True, on_corrupt="skip") as replay:
        assert replay.count(Transitions(1, where=lambda facts: facts["number"] != 0)) == 9


@pytest.mark.parametrize("scale", [1, 3])
def test_a_film_strip_is_saved_pixel_by_pixel(tmp_path: Path, scale: int) -> None:
    replay = replay_of(20)
    for field in (None, "observation/colour"):
        strip = replay.filmstrip(0, field, frames=9, scale=scale)
        rows, (height, width) = (0, 2, 5, 7, 10, 12, 14, 17, 19), strip.pixels.shape[:2]
        assert repr(strip) == f"FilmStrip(rows={rows}, {height} x {width} pixels)"
        frames = replay.episode(0).frames(field)
        assert (strip.pixels == strip_of(frames[list(strip.rows)], scale)).all()
        for name in ("a.png", "a.WEBP"):
            assert strip.save(tmp_path / name) == tmp_path / name
            assert (decoded((tmp_path / name).read_bytes()) == as_rgb(strip.pixels, 2)).all()
        assert (decoded(strip._repr_png_()) == as_rgb(strip.pixels, 2)).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.WEBP", "a.png"]


def test_a_film_strip_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    strip = replay_of(20).filmstrip(0)
    with pytest.raises(ValueError, match=r"\.png or \.webp.*'a\.jpg'"):
        strip.save(tmp_path / "a.jpg")
    with pytest.raises(OSError, match="missing"):
        strip.save(tmp_path / "missing" / "a.png")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(OSError, match=r"b\.png"):
        strip.save(tmp_path / "b.png")
    assert [path.name for path in tmp_path.iterdir()] == ["b.png"]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"frames": 0}, "frames: .*got 0"),
        ({"frames": 257}, "frames: .*256.*got 257"),
        ({"frames": 2.5}, "frames: .*2.5"),
        ({"scale": 0}, "scale: .*got 0"),
        ({"scale": 916}, "scale: .*1 to 915.*got 916"),  # more than 64 million pixels
        ({"scale": 915}, "frames: .*smaller scale"),
        ({"field": "action"}, "field: .*observation/screen.*'action'"),
        ({"first_row": -1}, "first_row: .*-1"),
    ],
)
def test_a_wrong_argument_of_a_film_strip_is_named(given_: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay_of(5).filmstrip(0, **given_)  # type: ignore[arg-type]
