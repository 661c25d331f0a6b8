"""Objects in a notebook: what is shown is true, small and harmless, and showing changes nothing."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Generator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Chunk, End, Episode, Field, FilmStrip, MemoryStorage, Spec
from stepwell.buffers.sampling.batch import Batch, TransitionBatch
from stepwell.buffers.storage import store_html
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.evaluation.evaluate import EvaluatedEpisode, Evaluation
from support.disk_stores import contents, spoil
from support.html_parts import pictures_of, text_of

HOSTILE = "<script>alert('x')</script>\x00\ud800\u202e\"&"
SCREEN = Spec(
    (
        Field("observation", "uint8", (10, 12), "patch"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
    ),
    "observation",
    "action",
)


@pytest.fixture(autouse=True)
def no_error_is_hidden(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """A repr logs an error and returns None: no test is to pass over that."""
    yield
    assert not [each for each in caplog.get_records("call") if each.levelno >= logging.ERROR]


def rows_of(episode: int, first: int, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([episode, first])
    return {
        "observation": rng.integers(0, 256, (count, 10, 12), np.uint8),
        "action": rng.integers(0, 5, count),
        "reward": rng.integers(-3, 3, count).astype(np.float64),
    }


def screens(replay: sw.SequenceReplayBuffer, episodes: int = 8) -> None:
    """Fill a replay with episodes of two chunks each."""
    replay.bind(SCREEN, {"policy": HOSTILE})
    for number in range(episodes):
        for first in (0, 7):
            end = End.TERMINATED if first and number % 2 else End.NONE
            fields = rows_of(number, first, 7)
            metadata = {"note": HOSTILE.replace("\ud800", "")}
            replay.add([Chunk(number, number, first, end, fields, metadata)])


def collected(path: Path | None = None) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer(path, seed=0)
    envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=600)
    return replay


def test_a_replay_shows_its_fields_and_its_newest_episodes(tmp_path: Path) -> None:
    replay = collected(tmp_path / "store")
    markup = replay._repr_html_()
    shown = text_of(markup)
    assert str(tmp_path / "store") in shown
    assert "steps 600" in shown
    assert f"episodes {replay.episodes}" in shown
    for field in replay.spec.fields:
        assert f"{field.name} {field.dtype} {field.shape} {field.codec}" in shown
    stored = sorted(replay.iter_episodes(), key=lambda each: each.id)
    lines = 0
    for episode in stored:
        name = (episode.end & ~End.PENDING).name if episode.end.is_final else "cut"
        line = f"{episode.id} {episode.stream} {episode.steps} {episode.total_reward:g} {name}"
        lines += line.lower() in shown.lower()
    assert lines == 5
    assert f"returns of the newest {min(40, len(stored))} episodes" in shown
    assert len(markup or "") < 20_000
    replay.close()


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_showing_a_replay_changes_nothing(tmp_path: Path, on_disk: bool, is_open: bool) -> None:
    path = tmp_path / "store" if on_disk else None
    replay = collected(path)
    env = gym.make("CartPole-v1")
    with replay.writer(env) as writer:
        observation, _ = env.reset(seed=0)
        for _ in range(5):
            writer.add(observation, 0, 1.0, observation, False, False)
        if not is_open:
            replay.close()

        def state() -> object:
            files = {} if path is None else contents(path)
            return replay.state_dict(), repr(writer), len(replay), files, replay.lost_chunks

        before = state()
        shown, second = (text_of(replay._repr_html_()) for _ in range(2))
        assert shown == second
        assert str(state()) == str(before)
        assert ("open writers 1" in shown) == is_open
        assert ("is closed" in shown) == (on_disk and not is_open)
        if is_open:
            twin = np.random.default_rng(0)
            batch = replay.sample_sequences(8, length=4)
            again = replay.sample_sequences(8, length=4, rng=twin)
            assert (batch.ids == again.ids).all()
    replay.close()


def test_the_frames_are_those_of_the_newest_episode() -> None:
    replay = sw.SequenceReplayBuffer()
    screens(replay)
    markup = replay._repr_html_()
    (picture,) = pictures_of(markup)
    rows = [0, 2, 5, 7, 10, 13]
    assert f"rows {', '.join(map(str, rows))} of episode 7" in text_of(markup)
    strip = FilmStrip.of(replay.episode(7).frames()[rows], rows).pixels
    assert (picture == strip[..., None]).all()
    episode = replay.episode(3)
    (picture,) = pictures_of(episode._repr_html_())
    assert (picture == FilmStrip.of(episode.frames()[rows], rows).pixels[..., None]).all()


@given(
    lengths=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=50),
    data=st.data(),
)
def test_returns_are_those_of_the_newest_episodes(
    lengths: list[list[int]], data: st.DataObject
) -> None:
    storage = MemoryStorage(SCREEN)
    for episode, chunks in enumerate(lengths):
        first = 0
        for count in chunks:
            end = data.draw(st.sampled_from([End.NONE, End.PENDING]))
            storage.add([Chunk(episode, 0, first, end, rows_of(episode, first, count))])
            first += count - bool(end)
    replay = sw.SequenceReplayBuffer.of(storage)
    reader = store_html._NewestEpisodes(storage)
    wanted = [episode.total_reward for episode in replay.iter_episodes()][-40:]
    assert list(reader.returns())[::-1] == wanted
    shown = text_of(replay._repr_html_())
    assert (f"the newest {len(wanted)} episodes" if len(wanted) > 1 else "newest episode") in shown


@pytest.mark.proof
def test_few_rows_of_a_large_store_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage(SCREEN)
    for episode in range(20):
        for first in range(0, 120, 2):
            storage.add([Chunk(episode, 0, first, End.NONE, rows_of(episode, first, 2))])
    reads: list[int] = []
    payload = storage.payload

    def counted(position: int) -> tuple[object, int]:
        reads.append(position)
        return payload(position)

    monkeypatch.setattr(storage, "payload", counted)
    shown = text_of(sw.SequenceReplayBuffer.of(storage)._repr_html_())
    assert len(reads) <= 206
    assert "returns of the newest 3 episodes" in shown


def test_joined_empty_and_read_only_replays_are_shown(tmp_path: Path) -> None:
    assert "not known yet" in text_of(sw.SequenceReplayBuffer()._repr_html_())
    bound = sw.SequenceReplayBuffer()
    bound.bind(SCREEN, {})
    assert "episodes 0" in text_of(bound._repr_html_())
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        with sw.SequenceReplayBuffer(folder) as replay:
            screens(replay)
            kept = contents(folder)
            with sw.SequenceReplayBuffer.open(folder, read_only=True) as other:
                assert len(pictures_of(other._repr_html_())) == 1
            assert contents(folder) == kept
    with sw.SequenceReplayBuffer.open(folders) as both:
        shown = text_of(both._repr_html_())
        assert "2 stores, read as one" in shown
        assert "episodes 16" in shown


def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    with sw.SequenceReplayBuffer(tmp_path / "<b>&'") as replay:
        screens(replay)
        shown = text_of(replay._repr_html_())
        assert "<b>&'" in shown
        assert r"<script>alert('x')</script>\x00" in shown
        assert "<script>alert('x')</script>" in text_of(replay.episode(0)._repr_html_())
    report = Evaluation(tuple(EvaluatedEpisode(i, None, 1.0, 7, True, False) for i in range(99)))
    shown = text_of(report._repr_html_())
    assert "99 episodes" in shown
    assert "79 more" in shown
    assert "Evaluation of 0 episodes" in text_of(Evaluation(())._repr_html_())


def test_damaged_rows_do_not_hide_the_rest(tmp_path: Path) -> None:
    with sw.SequenceReplayBuffer(tmp_path / "store") as replay:
        screens(replay)
        assert isinstance(replay.storage, DiskStorage)
        spoil(replay.storage, 12)  # of the second newest episode
    for on_corrupt in ("raise", "skip"):
        with sw.SequenceReplayBuffer.open(
            tmp_path / "store", read_only=True, on_corrupt=on_corrupt
        ) as replay:
            shown = text_of(replay._repr_html_())
            assert "some rows were not read" in shown
            assert "return of the newest episode" in shown
            assert "observation uint8 (10, 12) patch" in shown
            assert replay.lost_chunks == 0


def test_an_object_that_cannot_be_shown_keeps_its_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(store_html, "table", fail)
    replay = sw.SequenceReplayBuffer()
    screens(replay)
    assert replay._repr_html_() is None
    assert "a bug" in caplog.text
    caplog.clear()


def test_batches_show_every_array() -> None:
    replay = collected()
    batches: list[Batch | TransitionBatch] = [
        replay.sample_sequences(4, length=3),
        replay.sample_sequences(4, length=3, fields=["reward"], time_major=True),
        replay.sample_transitions(5),
        replay.sample_episodes(3),
    ]
    if importlib.util.find_spec("torch") is not None:
        with replay.loader(sw.Sequences(4, length=5), to="torch") as tensors:
            batches.append(next(tensors))
    for batch in batches:
        shown = text_of(batch._repr_html_())
        for part in repr(batch).partition("(")[2][:-1].split("; "):
            names, colon, form = part.partition(": ")
            for name in names.split(", ") if colon else ():
                dtype, _, shape = form.partition(" ")
                assert f"{name} {dtype} {shape}" in shown
    first = batches[0]
    assert isinstance(first, Batch)
    assert f"terminated bool (4, 3) {first.terminated.sum()} of 12 are True" in shown_of(first)
    assert f"reward float32 (4, 3) {first.reward.min():g}" in shown_of(first).replace("all ", "")


def shown_of(batch: Batch | TransitionBatch) -> str:
    return text_of(batch._repr_html_())


def test_batches_show_their_first_frames() -> None:
    replay = sw.SequenceReplayBuffer(seed=0)
    screens(replay)
    batch = replay.sample_sequences(4, length=5)
    (picture,) = pictures_of(batch._repr_html_())
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    frames = np.stack([batch.observation[place] for place in places])
    assert (picture == FilmStrip.of(frames, range(6)).pixels[..., None]).all()
    transitions = replay.sample_transitions(2)
    (picture,) = pictures_of(transitions._repr_html_())
    assert (picture == FilmStrip.of(transitions.observation, range(2)).pixels[..., None]).all()
    assert "at [0] [1]" in shown_of(transitions)


def test_rollouts_minibatches_and_reports_are_shown() -> None:
    envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), seed=0) as collector:
        rollout, report = collector.rollout(32), collector.collect(steps=200)
    shown = text_of(rollout._repr_html_())
    assert f"Rollout: steps {rollout.steps}, episodes {len(rollout.episode_returns)}" in shown
    minibatch = next(iter(rollout.minibatches(1)))
    assert f"mask bool {minibatch.mask.shape}" in text_of(minibatch._repr_html_())
    shown = text_of(report._repr_html_())
    for wanted in (report.digest, "200 in", f"returns of {report.episodes} episodes"):
        assert wanted in shown


shapes = st.one_of(
    st.tuples(),
    st.tuples(st.integers(0, 5)),
    st.tuples(st.integers(8, 300), st.integers(8, 300)),
    st.tuples(st.integers(8, 200), st.integers(8, 200), st.sampled_from([1, 3, 4, 12])),
    st.tuples(st.sampled_from([1, 3, 4, 12]), st.integers(8, 200), st.integers(8, 200)),
)


@pytest.mark.proof
@given(
    shapes=st.lists(shapes, min_size=1, max_size=4),
    dtype=st.sampled_from(["uint8", "bool", "float32", "int16"]),
    count=st.integers(1, 8),
)
def test_what_is_shown_is_small_whatever_the_rows_are(
    shapes: list[tuple[int, ...]], dtype: str, count: int
) -> None:
    observations = [
        Field(f"observation/{number}", dtype, shape, "raw") for number, shape in enumerate(shapes)
    ]
    reward = Field("reward", "float64", (), "narrow")
    spec = Spec((*observations, reward), {str(n): f.name for n, f in enumerate(observations)}, {})
    rng = np.random.default_rng(count)
    fields = {
        field.name: rng.integers(0, 256, (count, *field.shape)).astype(dtype)
        for field in observations
    } | {"reward": rng.normal(size=count)}
    storage = MemoryStorage(spec)
    storage.add([Chunk(0, 0, 0, End.TRUNCATED, fields, {"note": "x" * 100_000})])
    replay = sw.SequenceReplayBuffer.of(storage)
    episode = Episode(spec, 0, 0, 0, End.TRUNCATED, fields, {"note": "x" * 100_000})
    batch = replay.sample_sequences(4, length=min(2, count))
    for shown in (replay, episode, batch):
        markup = shown._repr_html_()
        text_of(markup)
        assert len(markup or "") < 30_000


def test_frames_that_are_too_large_are_named() -> None:
    field = Field("observation", "uint8", (4_000, 4_000), "raw")
    spec = Spec((field, SCREEN["reward"]), "observation", {})
    # One row of zeros, seen many times: the test needs no memory for them.
    fields: dict[str, np.ndarray] = {
        "observation": np.broadcast_to(np.zeros((1, 1, 1), np.uint8), (1_000, 4_000, 4_000)),
        "reward": np.zeros(1_000),
    }
    shown = text_of(Episode(spec, 0, 0, 0, End.NONE, fields, {})._repr_html_())
    assert "4,000 x 4,000 pixels, too large to be shown here" in shown
