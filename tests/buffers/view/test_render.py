"""`render`: the rows of an episode as files, pixel by pixel."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Chunk, End, Field, Spec
from stepwell.buffers.curation.stored_episode import StoredEpisode
from stepwell.buffers.pictures import encode
from stepwell.buffers.pictures.encode import check_fps
from stepwell.buffers.view import render as module
from stepwell.buffers.view.render import frame_rate, render
from support.mp4_files import needs_av
from support.mp4_files import read as read_mp4
from support.pictures import Shown, as_rgb, decoded, read_gif, read_webp

READERS: dict[str, Callable[[bytes], Shown]] = {"gif": read_gif, "webp": read_webp}
SPEC = Spec(
    (
        Field("observation/grey", "uint8", (20, 31), "patch"),
        Field("observation/colour", "uint8", (16, 18, 3), "zstd"),
        Field("observation/pose", "float32", (3,), "raw"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        Field("info/depth", "float32", (16, 17), "raw"),
    ),
    {"grey": "observation/grey", "colour": "observation/colour", "pose": "observation/pose"},
    "action",
)
FIELDS = ("observation/grey", "observation/colour", "info/depth")


def chunk_of(episode: int, first: int, count: int, end: End = End.TERMINATED) -> Chunk:
    fields = {}
    for field in SPEC.fields:
        rng = np.random.default_rng([episode, *field.name.encode()])
        # Few colours: a GIF of them is nearly exact.
        values = rng.integers(0, 9, (first + count, *field.shape))
        fields[field.name] = (values * 20).astype(field.dtype)[first:]
    return Chunk(episode, 0, first, end, fields, {"session": 0})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes, of 30 rows in three chunks, and of one row; it is only read."""
    folder = tmp_path_factory.mktemp("stores") / "store"
    with sw.SequenceReplayBuffer(folder) as replay:
        replay.bind(SPEC, {"recipe": {"maker": "make_vec", "frame_skip": 2}, "render_fps": 50})
        for first in (0, 10, 20):
            replay.add([chunk_of(0, first, 10, End.TERMINATED if first == 20 else End.NONE)])
        replay.add([chunk_of(1, 0, 1)])
    return folder


def frames_of(store: Path, field: str, episode: int = 0) -> np.ndarray:
    with sw.SequenceReplayBuffer.open(store, read_only=True) as replay:
        (found,) = (one for one in replay.iter_episodes() if one.id == episode)
        return as_rgb(found.frames(field), 3)


def enlarged(frames: np.ndarray, scale: int) -> np.ndarray:
    """Each pixel as a square, by its place."""
    rows, columns = (np.arange(side * scale) // scale for side in frames.shape[1:3])
    return frames[:, rows[:, None], columns]


@pytest.mark.parametrize("kind", ["webp", "gif"])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("rows", "scale"), [(None, 1), ((3, 21), 2), ((29, 30), 1)])
def test_a_clip_shows_the_rows_pixel_by_pixel(
    store: Path, kind: str, field: str, rows: tuple[int, int] | None, scale: int
) -> None:
    out = Path(f"clip.{kind}")
    report = render(store, 0, out, rows=rows, scale=scale, field=field)
    shown = READERS[kind](out.read_bytes())
    begin, stop = rows or (0, 30)
    frames = frames_of(store, field)[begin or 0 : stop]
    difference = np.abs(shown.frames.astype(int) - enlarged(frames, scale))
    assert difference.max() <= (1 if kind == "gif" else 0)
    is_still = kind == "webp" and len(frames) == 1
    assert shown.durations == [0 if is_still else 0.04] * len(frames)
    assert list(report.rows) == list(range(begin or 0, stop))
    assert (report.field, report.other_fields) == (
        field,
        tuple(other for other in FIELDS if other != field),
    )
    assert (report.height, report.width) == shown.frames.shape[1:3]
    assert (report.fps, report.nbytes, report.path) == (25.0, out.stat().st_size, out)


@pytest.mark.parametrize("field", FIELDS)
def test_a_film_strip_is_that_of_the_replay(store: Path, field: str) -> None:
    report = render(store, 0, "strip.png", field=field, scale=2, frames=11)
    with sw.SequenceReplayBuffer.open(store, read_only=True) as replay:
        strip = replay.filmstrip(0, field, frames=11, scale=2)
    assert (decoded(Path("strip.png").read_bytes()) == as_rgb(strip.pixels, 2)).all()
    assert tuple(report.rows) == strip.rows
    assert (report.fps, report.height, report.width) == (None, *strip.pixels.shape[:2])
    report = render(store, 0, "part.png", rows=(5, 9), frames=11)
    assert tuple(report.rows) == (5, 6, 7, 8)


@pytest.mark.proof
@needs_av
@pytest.mark.parametrize("field", FIELDS)
def test_an_mp4_shows_each_row_once(store: Path, field: str) -> None:
    report = render(store, 0, "clip.mp4", field=field, scale=4)
    facts, shown = read_mp4(Path("clip.mp4"))
    frames = enlarged(frames_of(store, field), 4)
    assert (facts["frames"], facts["fps"]) == (30, 25)
    part = shown[:, : frames.shape[1], : frames.shape[2]].astype(int)
    assert (report.height, report.width) == frames.shape[1:3]
    for t in range(30):
        assert np.argmin(np.abs(part[t] - frames).mean((1, 2, 3))) == t


def test_a_large_clip_is_read_in_parts(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    render(store, 0, "whole.webp")
    monkeypatch.setattr(module, "_READ_PIXELS", 20 * 31 * 4)
    render(store, 0, "parts.webp")
    assert Path("parts.webp").read_bytes() == Path("whole.webp").read_bytes()
    monkeypatch.setattr(module, "_READ_PIXELS", 1)
    render(store, 0, "rows.webp")
    assert Path("rows.webp").read_bytes() == Path("whole.webp").read_bytes()


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_a_clip_that_memory_should_not_hold_is_refused(
    store: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "_MOST_BYTES", 10 * 32 * 36 * 3)
    arguments: dict[str, Any] = {"field": FIELDS[1], "scale": 2}
    with pytest.raises(ValueError, match=rf"rows: .*10 of 32 x 36 .*\.{kind}.*got 11.*\.mp4"):
        render(store, 0, f"clip.{kind}", rows=(0, 11), **arguments)
    assert os.listdir() == []
    assert len(render(store, 0, f"clip.{kind}", rows=(0, 10), **arguments).rows) == 10


def test_a_replay_in_memory_and_an_open_episode_can_be_rendered() -> None:
    replay = sw.SequenceReplayBuffer()
    replay.bind(SPEC, {})
    replay.add([chunk_of(3, 0, 4, End.PENDING)])
    assert len(render(replay, 3, "clip.gif").rows) == 4
    assert len(render(replay, 3, "strip.png").rows) == 4


def test_the_rate_is_that_of_the_episodes_own_store(tmp_path: Path, store: Path) -> None:
    with sw.SequenceReplayBuffer(tmp_path / "other") as replay:
        replay.bind(SPEC, {"render_fps": 10})
        replay.add([chunk_of(0, 0, 4)])
    with sw.SequenceReplayBuffer.open([store, tmp_path / "other"]) as both:
        ids = [episode.id for episode in both.iter_episodes()]
        rates = [render(both, number, f"{number}.gif").fps for number in ids]
        assert rates == [25, 25, 10]


@needs_av
@pytest.mark.parametrize("fps", [0.1, 29.97, 999.999])
def test_an_mp4_may_have_any_rate(store: Path, fps: float) -> None:
    render(store, 0, "clip.mp4", fps=fps)
    facts, _ = read_mp4(Path("clip.mp4"))
    assert facts["frames"] == 30
    assert float(facts["fps"]) == pytest.approx(fps, rel=1e-3)


@pytest.mark.parametrize(("fps", "expected"), [(12, 12.0), (Fraction(25, 2), 12.5), (80, 50.0)])
def test_the_caller_may_set_the_rate(store: Path, fps: float, expected: float) -> None:
    assert render(store, 0, "clip.gif", fps=fps).fps == expected
    shown = sum(read_gif(Path("clip.gif").read_bytes()).durations)
    assert shown == pytest.approx(30 / expected, abs=0.011)


def test_progress_counts_the_frames(store: Path) -> None:
    calls: list[tuple[int, int]] = []
    render(store, 0, "clip.webp", rows=(5, 10), progress=lambda *counts: calls.append(counts))
    assert calls == [(done, 5) for done in range(1, 6)]
    with pytest.raises(TypeError, match="progress"):
        render(store, 0, "other.webp", progress=3)  # type: ignore[arg-type]


def test_rows_choose_a_part_of_an_episode_with_lost_chunks(store: Path) -> None:
    frames = frames_of(store, FIELDS[0])
    with sw.SequenceReplayBuffer.open(store, read_only=True, on_corrupt="skip") as replay:
        replay.storage.lose(1)
        for begin, stop in ((2, 7), (20, None), (25, 27)):
            render(replay, 0, "clip.webp", rows=(begin, stop), overwrite=True)
            shown = read_webp(Path("clip.webp").read_bytes()).frames
            assert (shown == frames[begin:stop]).all()
        for rows, message in (
            (None, "0, 20.*got none"),
            ((None, 5), "0, 20.*got none"),
            ((5, 25), "from 0 to 10.*got 5:25"),
            ((12, 15), "from 0 to 10.*got 12:15"),
        ):
            with pytest.raises(ValueError, match=f"rows: .*{message}"):
                render(replay, 0, "other.webp", rows=rows)
    assert not Path("other.webp").exists()


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"episode": 9}, "episode: .*got 9"),
        ({"episode": "greatest"}, "episode: .*an id, or best, .*last, got 'greatest'"),
        ({"out": "clip.jpg"}, r"out: .*\.mp4, \.gif, \.webp, \.png.*'clip\.jpg'"),
        ({"rows": (5, 31)}, "rows: .*from 0 to 30.*5:31"),
        ({"rows": (30, None)}, "rows: .*30:30"),
        ({"rows": (5, 5)}, "rows: .*5:5"),
        ({"rows": (1.5, None)}, "rows: .*1.5:30"),
        ({"fps": 0.09}, r"fps: .*0\.1.*got 0\.09"),
        ({"fps": -5}, "fps: .*got -5"),
        ({"fps": 1001}, "fps: .*1000.*1001"),
        ({"scale": 330}, "scale: .*1 to 328.*330"),
        ({"field": "observation/pose"}, "field: .*observation/grey.*'observation/pose'"),
        ({"frames": 0, "out": "clip.png"}, "frames: .*0"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(
    store: Path, given_: dict[str, object], message: str
) -> None:
    arguments: dict[str, object] = {"episode": 0, "out": "clip.gif", **given_}
    with pytest.raises(ValueError, match=message):
        render(store, **arguments)  # type: ignore[arg-type]
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("word", "episode"),
    [("best", 1), ("worst", 0), ("longest", 2), ("shortest", 0), ("first", 0), ("last", 2)],
)
def test_an_episode_may_be_named_by_its_rank(word: str, episode: int) -> None:
    replay = sw.SequenceReplayBuffer()
    spaces = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8), gymnasium.spaces.Discrete(2)
    with replay.writer(Spec.from_spaces(*spaces)) as writer:
        for steps, reward in ((2, 1.0), (3, 5.0), (4, 2.0)):
            images = np.zeros((steps + 1, 16, 16, 3), np.uint8)
            rewards = np.full(steps, reward / steps)
            writer.add_episode(images, np.zeros(steps, int), rewards, terminated=True)
    assert render(replay, word, "strip.png").episode == episode
    empty = sw.SequenceReplayBuffer()
    empty.bind(replay.spec, {})
    with pytest.raises(ValueError, match=r"episode: expected a store with episodes for"):
        render(empty, word, "other.png")


KINDS = ["gif", "webp", "png", pytest.param("mp4", marks=needs_av)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_existing_file_stays_unless_the_caller_says_so(store: Path, kind: str) -> None:
    def fail(episode: object, begin: int, stop: int, names: object) -> object:
        raise KeyboardInterrupt

    out = Path(f"clip.{kind}")
    out.write_text("mine")
    with pytest.raises(ValueError, match=rf"out: .*clip\.{kind}.*--overwrite"):
        render(store, 0, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredEpisode, "read", fail)
        for path in (out, Path(f"new.{kind}")):
            with pytest.raises(KeyboardInterrupt):
                render(store, 0, path, overwrite=True)
    assert (os.listdir(), out.read_text()) == ([out.name], "mine")
    render(store, 0, out, overwrite=True)
    render(store, 0, f"new.{kind}", overwrite=True)
    assert out.read_bytes() == Path(f"new.{kind}").read_bytes()
    assert sorted(os.listdir()) == [f"clip.{kind}", f"new.{kind}"]


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ({"recipe": {"maker": "make_atari", "frame_skip": 4}, "render_fps": 30}, 15),
        ({"recipe": {"maker": "make_nes", "frame_skip": 4}}, 15),
        ({"recipe": {"maker": "make_vec", "id": "PongNoFrameskip-v4"}, "render_fps": 30}, 60),
        ({"recipe": {"maker": "make_vec", "id": "CartPole-v1", "frame_skip": 1}}, 30),
        ({"recipe": {"maker": "make_vec", "id": "CartPole-v1"}, "render_fps": 50}, 50),
        ({"recipe": {"frame_skip": 3}, "render_fps": 50}, Fraction(50, 3)),
        ({"render_fps": 1e-300}, 30),
        ({"recipe": {"frame_skip": 10_000}, "render_fps": 1}, Fraction(1, 10)),
    ],
)
def test_the_rate_plays_in_real_time(session: dict[str, object], expected: Fraction) -> None:
    assert frame_rate(session) == expected


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
recipes = st.dictionaries(st.sampled_from(["maker", "id", "frame_skip", "x"]), plain)


@given(st.fixed_dictionaries({}, optional={"recipe": plain | recipes, "render_fps": plain}))
def test_any_facts_give_a_rate(session: dict[str, object]) -> None:
    check_fps(frame_rate(session))


def test_a_collector_notes_the_rate_that_its_env_declares() -> None:
    replay = sw.SequenceReplayBuffer()
    envs = sw.make_vec("CartPole-v1", num_envs=1, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=5)
    assert frame_rate(replay.sessions[0]) == 50
