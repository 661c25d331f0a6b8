"""The answers to the page say what the stores hold, as slow models read it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")

from stepwell.buffers import Chunk, DiskStorage, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.curation.selection import parse_selection
from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from stepwell.buffers.rows.episode import End
from stepwell.buffers.view.episode_table import shown
from stepwell.buffers.view.server.query import (
    FILTER_WORDS,
    BadRequest,
    QueryParameters,
    filter_command,
    selection_of,
)
from support.crash.disk_faults import NoSyncFiles
from support.models.episode_order import in_order
from support.served import SPEC, Played, Viewer, rows_of, write_store

TASKS: list[dict[str, object]] = [
    {"task": "door", "level": 3},
    {"task": "key", "level": 1.5},
    {"level": "high"},
    {},
    {"task": None, "level": True},
    {"task": 7, "level": [1]},
]
ENDS = [End.TERMINATED, End.TRUNCATED, End.NONE, End.TERMINATED | End.TRUNCATED]


def episodes_of(seed: int, count: int) -> list[Played]:
    rng = np.random.default_rng(seed)
    return [
        Played(
            [0.0, *rng.integers(-2, 3, rng.integers(1, 30)).tolist()],
            ENDS[int(rng.integers(len(ENDS)))],
            TASKS[int(rng.integers(len(TASKS)))],
        )
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("stores")
    return [write_store(folder / name, episodes_of(len(name), 25)) for name in ("one", "second")]


@pytest.fixture(scope="module")
def viewer(folders: list[Path]) -> Iterator[Viewer]:
    with Viewer(*folders, folders[0]) as viewer:  # the first one twice
        yield viewer


@pytest.fixture(scope="module")
def stored(folders: list[Path]) -> Iterator[list[list[StoredEpisode]]]:
    replays = [SequenceReplayBuffer.open(folder, read_only=True) for folder in folders]
    found = [list(stored_episodes(replay.storage)) for replay in replays]
    yield [*found, found[0]]
    for replay in replays:
        replay.close()


def value_of(item: tuple[int, StoredEpisode], sort: str) -> Any:
    store, episode = item
    if sort == "store":
        return store
    if sort == "return":
        return episode.total_reward
    if sort == "end":
        if episode.end & End.TERMINATED:
            return "terminated"
        return "truncated" if episode.end & End.TRUNCATED else "cut"
    if sort in ("id", "stream", "steps", "first_row"):
        return getattr(episode, sort)
    return episode.metadata.get(sort)


FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "min_return": st.integers(-5, 5).map(str),
        "max_steps": st.integers(10, 30).map(str),
        "ended": st.sampled_from(["true", "false"]),
        "ids": st.sampled_from(["0-9", "3,7,9-12", "24", "99"]),
        "where": st.sampled_from(["task=door", "level=3", "level=true", "task=7", "no=1"]),
        "top": st.sampled_from(["3", "10%"]),
    },
)
SORTS = st.sampled_from(
    ["id", "store", "stream", "steps", "return", "end", "first_row", "task", "level", "missing"]
)


@given(FILTERS, SORTS, st.booleans(), st.integers(0, 60), st.integers(0, 30))
def test_the_table_is_that_of_a_slow_model(
    viewer: Viewer,
    stored: list[list[StoredEpisode]],
    words: dict[str, str],
    sort: str,
    is_descending: bool,
    start: int,
    count: int,
) -> None:
    selection = parse_selection(
        where=[words["where"]] if "where" in words else None,
        episodes=words.get("ids"),
        min_return=words.get("min_return"),
        max_steps=words.get("max_steps"),
        ended=words.get("ended") == "true",
        cut=words.get("ended") == "false",
        top=words.get("top"),
    )
    chosen = [
        (number, episode)
        for number, episodes in enumerate(stored)
        for episode, is_chosen in zip(episodes, selection.choose(episodes).is_chosen, strict=True)
        if is_chosen
    ]
    expected = in_order(chosen, lambda item: value_of(item, sort), descending=is_descending)
    order = "desc" if is_descending else "asc"
    asked = {**words, "sort": sort, "order": order, "start": start, "count": count}
    found = viewer.get(f"/api/episodes?{urlencode(asked)}")
    assert found["matching"] == len(chosen)
    assert found["total"] == 75
    columns = found["columns"]
    assert columns == ["store", "id", "first_row", "stream", "steps", "return", "end", *KEYS]
    rows = [dict(zip(columns, row, strict=True)) for row in found["rows"]]
    assert [(row["store"], row["id"]) for row in rows] == [
        (store, episode.id) for store, episode in expected[start : start + count]
    ]
    for row, (store, episode) in zip(rows, expected[start:], strict=False):
        for name in ("stream", "steps", "first_row", "end", *KEYS):
            assert row[name] == shown(value_of((store, episode), name), 0)
        assert row["return"] in (None, episode.total_reward)


KEYS = ["level", "task"]


def test_some_stores_alone(viewer: Viewer) -> None:
    found = viewer.get("/api/episodes?store=1&count=1000")
    assert {row[0] for row in found["rows"]} == {1}
    assert (found["total"], found["matching"]) == (25, 25)
    assert len(viewer.get("/api/episodes?store=0&store=2&count=1000")["rows"]) == 50


def test_stores_say_what_they_hold(viewer: Viewer, folders: list[Path]) -> None:
    facts = viewer.get("/api/stores")
    assert facts["exports"] is None
    one, second, again = facts["stores"]
    assert (one["name"], second["name"], again["name"]) == ("one", "second", "one (2)")
    assert again["path"] == one["path"] == str(folders[0])
    assert (one["error"], one["episodes"], one["is_being_written"]) == (None, 25, False)
    observation, action, *_ = one["fields"]
    assert (observation["name"], observation["shape"]) == ("observation", [16, 24])
    image = {"field": 0, "height": 16, "width": 24, "channels": 1, "columns": 8, "rows": 8}
    assert observation["image"] == {**image, "exact": True, "note": ""}
    assert action["image"] is None
    assert one["curves"][:3] == ["return so far", "reward", "action"]
    assert one["metadata_keys"] == KEYS


def test_histograms_count_every_episode_once(viewer: Viewer, stored: Any) -> None:
    for store in viewer.stores.stores:
        store.opened.table.read_all_returns()
    rows = viewer.get("/api/episodes?store=1&count=1000")["rows"]
    assert [row[5] for row in rows] == [episode.total_reward for episode in stored[1]]
    facts = viewer.get("/api/stores")["stores"]
    assert [store["returns_known"] for store in facts] == [25, 25, 25]
    found = viewer.get("/api/histograms?ended=true&store=0&store=1")
    ended = [[each for each in episodes if each.has_ended] for episodes in stored[:2]]
    for name in ("return", "steps"):
        edges = np.array(found[name]["edges"])
        values = [[value_of((0, each), name) for each in episodes] for episodes in ended]
        counts = [np.histogram(each, edges)[0].tolist() for each in values]
        assert found[name]["counts"] == [*counts, []]
    assert found["action"]["names"] == ["0", "1", "2", "3"]
    assert sum(found["action"]["counts"][0]) == sum(each.steps for each in ended[0])


def course_of(
    values: list[float], parts: list[tuple[int, int]], window: int
) -> list[tuple[float | None, float | None, float | None]]:
    """The least, the greatest value and the running mean of each part."""
    found: list[tuple[float | None, float | None, float | None]] = []
    for begin, stop in parts:
        inside = [each for each in values[begin:stop] if np.isfinite(each)]
        near = [each for each in values[:stop][-window:] if np.isfinite(each)]
        mean = sum(near) / len(near) if near and begin < min(stop, len(values)) else None
        found.append((min(inside), max(inside), mean) if inside else (None, None, mean))
    return found


@pytest.mark.parametrize("points", [500, 4, 1])
@pytest.mark.parametrize("query", ["", "ended=true", "ids=99"])
def test_a_timeline_is_that_of_a_slow_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, points: int
) -> None:
    monkeypatch.setattr("stepwell.buffers.view.server.answers._TIMELINE_POINTS", points)
    rng = np.random.default_rng(3)
    plays = [
        [Played([0.0] * int(rng.integers(2, 9)) + [value], end) for value in values]
        for values, end in (
            ([*rng.normal(size=60).tolist(), float("nan"), float("inf")], End.TERMINATED),
            ([4.0, -1.0, 5.5], End.NONE),
        )
    ]
    folders = [write_store(tmp_path / name, each) for name, each in zip("ab", plays, strict=True)]
    with Viewer(*folders) as viewer:
        for store in viewer.stores.stores:
            store.opened.table.read_all_returns()
        found = viewer.get(f"/api/timeline?{query}")
    chosen = [
        [] if query == "ids=99" or (query and query[0] == "e" and k) else plays[k] for k in (0, 1)
    ]
    total = max(map(len, chosen))
    count = min(points, total)
    edges = [k * total // max(1, count) for k in range(count + 1)]
    parts = [*pairwise(edges)]
    assert (found["rows"], found["stop"]) == (edges[:-1], total)
    for number, played in enumerate(chosen):
        for name, values in (
            ("return", [each.rewards[-1] for each in played]),
            ("steps", [len(each.rewards) - 1.0 for each in played]),
        ):
            line = found["curves"][name][number]
            wanted = course_of(values, parts, found["window"])
            assert len(line["low"]) == len(line["high"]) == len(wanted)
            assert [*zip(line["low"], line["high"], strict=True)] == [each[:2] for each in wanted]
            assert line["mean"] == pytest.approx([each[2] for each in wanted])
            for end in ("low", "high"):
                for value, key in zip(line[end], line[f"{end}_key"], strict=True):
                    assert (key is None) == (value is None)
                    assert key is None or (values[key[0]], key[1]) == (value, 0)


def test_a_timeline_is_in_the_order_of_the_last_rows(tmp_path: Path) -> None:
    def part(episode: int, first: int, stop: int, end: End = End.NONE) -> Chunk:
        rows = {name: each[first:] for name, each in rows_of(episode, [1.0] * stop).items()}
        return Chunk(episode, episode, first, end, rows)

    with DiskStorage.create(tmp_path / "live", SPEC, files=NoSyncFiles()) as storage:
        storage.add([part(0, 0, 3), part(1, 0, 4, End.TRUNCATED), part(2, 0, 5)])
        storage.add([part(0, 3, 9, End.TERMINATED)])
        with Viewer(tmp_path / "live") as viewer:  # episode 2 may still grow
            steps = viewer.get("/api/timeline")["curves"]["steps"][0]
    assert (steps["low"], steps["low_key"]) == ([3, 8], [[1, 0], [0, 0]])
    with Viewer(tmp_path / "live") as viewer:  # nobody writes to it any more
        assert viewer.get("/api/timeline")["curves"]["steps"][0]["high"] == [3, 4, 8]


def test_a_timeline_of_many_episodes_is_short(tmp_path: Path) -> None:
    with Viewer(write_store(tmp_path / "many", [Played([0.0, 1.0])] * 1_203)) as viewer:
        found = viewer.get("/api/timeline")
    assert (found["stop"], len(found["rows"]), found["rows"][:2]) == (1_203, 500, [0, 2])


def test_an_episode_says_all_about_itself(viewer: Viewer, stored: Any) -> None:
    for episode in stored[0]:
        facts = viewer.get(f"/api/episodes/0/{episode.id}")
        assert facts["return"] == episode.total_reward
        assert (facts["rows"], facts["steps"]) == (episode.rows, episode.steps)
        assert facts["terminated"] == bool(episode.end & End.TERMINATED)
        assert facts["truncated"] == bool(episode.end & End.TRUNCATED)
        assert facts["cut"] == (not episode.has_ended)
        assert not facts["is_open"]
        assert facts["metadata"] == dict(episode.metadata)
        (image,) = facts["images"]
        assert (image["field"], image["name"]) == (0, "observation")


def test_curves_and_values_are_those_of_the_rows(viewer: Viewer, stored: Any) -> None:
    episode = max(stored[0], key=lambda each: each.rows)
    rows = next(episode.chunks(1 << 20)).fields
    words = urlencode({"name": ["reward", "return so far"], "begin": 2, "stop": 9}, doseq=True)
    found = viewer.get(f"/api/curves/0/{episode.id}?{words}")
    assert found["rows"] == [*range(2, 9)]
    assert found["curves"]["reward"]["values"] == rows["reward"][2:9].tolist()
    total = rows["reward"].cumsum()[2:9].tolist()
    assert found["curves"]["return so far"]["values"] == total
    values = viewer.get(f"/api/values/0/{episode.id}/4")
    assert values["reward"] == rows["reward"][4]
    assert values["action"] == rows["action"][4]
    assert viewer.ask(f"/api/values/0/{episode.id}/{episode.rows}").status == 404


REFUSED = {
    400: [
        *(f"/api/curves/0/0?{words}" for words in ("name=observation[9999]", "name=secret")),
        "/api/curves/0/0?begin=1&stop=1",
        *("/frames/0/0/0/0.webp?rows=0", "/strip/0/0.webp?rows=0", "/strip/0/0.webp?frames=9"),
        *(f"/clip/0/0.webp?{words}" for words in ("scale=0", "scale=17", "begin=5&stop=5")),
        *(f"/clip/0/0.webp?{words}" for words in ("fps=0", "fps=999", "fps=nan", "stop=99999")),
    ],
    404: [
        *("/frames/0/0/0/0.webp?tag=0123456789abcdef", "/frames/0/0/0/0.webp?rows=1000"),
        *("/frames/0/0/0/9.webp", "/frames/0/0/1/0.webp"),
        *(f"/strip/{place}.webp" for place in ("0/99", "9/0", "0/-1", "0/1e9", f"0/{10**30}")),
    ],
}


@pytest.mark.parametrize(
    ("status", "path"), [(status, path) for status in REFUSED for path in REFUSED[status]]
)
def test_what_is_not_there_or_not_to_be_had_is_refused(
    viewer: Viewer, status: int, path: str
) -> None:
    assert viewer.ask(path).status == status


def frames_of(viewer: Viewer, store: int, episode: int) -> dict[int, np.ndarray]:
    """The frames of an episode by row, cut out of its sprites."""
    facts = viewer.get(f"/api/episodes/{store}/{episode}")
    (image,) = facts["images"]
    first, rows = facts["first_row"], facts["rows"]
    size = image["columns"] * image["rows"]
    found: dict[int, np.ndarray] = {}
    for block in range(first // size, (first + rows - 1) // size + 1):
        words = urlencode({"tag": image["tag"], "rows": rows})
        reply = viewer.ask(f"/frames/{store}/{episode}/0/{block}.webp?{words}")
        assert (reply.status, reply.header("content-type")) == (200, "image/webp")
        assert "immutable" in (reply.header("cache-control") or "")
        sheet = cv2.imdecode(np.frombuffer(reply.body, np.uint8), cv2.IMREAD_GRAYSCALE)
        assert sheet is not None
        for place in range(size):
            y, x = divmod(place, image["columns"])
            frame = sheet[16 * y : 16 * y + 16, 24 * x : 24 * x + 24]
            row = block * size + place
            if first <= row < first + rows:
                found[row] = frame
            else:
                assert not frame.any()
    return found


def test_every_frame_is_stored_pixel_by_pixel(viewer: Viewer, folders: list[Path]) -> None:
    with SequenceReplayBuffer.open(folders[1], read_only=True) as replay:
        for episode in replay.iter_episodes():
            found = frames_of(viewer, 1, episode.id)
            assert [*found] == [*range(episode.rows)]
            assert np.array_equal(np.stack([*found.values()]), episode.fields["observation"])


def test_frames_of_an_episode_without_its_beginning(tmp_path: Path) -> None:
    rows = rows_of(0, [0.0] * 200)
    with DiskStorage.create(tmp_path / "late", SPEC, files=NoSyncFiles()) as storage:
        late = {name: each[70:] for name, each in rows.items()}
        storage.add([Chunk(0, 0, 70, End.TERMINATED, late, starts_late=True)])
    with Viewer(tmp_path / "late") as viewer:
        found = frames_of(viewer, 0, 0)
        assert [*found] == [*range(70, 200)]
        assert np.array_equal(np.stack([*found.values()]), rows["observation"][70:])
        facts = viewer.get("/api/episodes/0/0")
        assert (facts["first_row"], facts["starts_late"]) == (70, True)
        assert viewer.ask("/frames/0/0/0/0.webp").status == 404
        strip = strip_of(viewer, "/strip/0/0.webp?rows=130")
        assert np.array_equal(strip[:, :24], rows["observation"][70])
        assert np.array_equal(strip[:, -24:], rows["observation"][199])
        assert viewer.ask("/api/values/0/0/69").status == 404
        assert viewer.get("/api/values/0/0/70")["reward"] == 0.0


def test_frames_of_other_rows_are_never_shown_as_these(viewer: Viewer) -> None:
    tags = {
        viewer.get(f"/api/episodes/{store}/{episode}")["images"][0]["tag"]
        for store in (0, 1, 2)
        for episode in (0, 1)
    }
    assert len(tags) == 6


def strip_of(viewer: Viewer, target: str) -> np.ndarray:
    reply = viewer.ask(target)
    assert (reply.status, reply.header("content-type")) == (200, "image/webp")
    assert "immutable" in (reply.header("cache-control") or "")
    found = cv2.imdecode(np.frombuffer(reply.body, np.uint8), cv2.IMREAD_UNCHANGED)
    assert found is not None
    return np.asarray(found[..., 0] if found.ndim == 3 else found)


def test_a_strip_has_frames_from_the_first_row_to_the_last(
    viewer: Viewer, stored: list[list[StoredEpisode]]
) -> None:
    tag = viewer.get("/api/stores")["stores"][1]["tag"]
    for episode in stored[1]:
        frames = next(episode.chunks(1 << 20)).fields["observation"]
        for rows in {episode.rows, 1 + episode.rows // 2}:
            words = urlencode({"tag": tag, "first_row": 0, "rows": rows})
            found = strip_of(viewer, f"/strip/1/{episode.id}.webp?{words}")
            count = min(8, rows)
            shown = [round(place * (rows - 1) / max(1, count - 1)) for place in range(count)]
            assert found.shape == (16, 26 * count - 2)
            for place, row in enumerate(shown):
                assert np.array_equal(found[:, 26 * place : 26 * place + 24], frames[row])


def store_of(path: Path, observations: np.ndarray) -> Path:
    """A store of an episode with these observations."""
    own = Field("observation", str(observations.dtype), observations.shape[1:], "raw")
    spec = Spec((own, *SPEC.fields[1:3]), observation="observation", action="action")
    rows = {**rows_of(0, [0.0] * len(observations)), "observation": observations}
    del rows["extra/value"]
    with DiskStorage.create(path, spec, files=NoSyncFiles()) as storage:
        storage.add([Chunk(0, 0, 0, End.TERMINATED, rows)])
    return path


def test_frames_of_a_strip_are_made_small(tmp_path: Path) -> None:
    frames = np.zeros((5, 96, 192), np.uint8)
    frames[:, ::2], frames[3, :, :96] = 100, 250
    with Viewer(store_of(tmp_path / "large", frames)) as viewer:
        found = strip_of(viewer, "/strip/0/0.webp")
        assert found.shape == (48, 98 * 5 - 2)  # half of each side
        assert (found[:, 98 * 2 : 98 * 2 + 96] == 50).all()
        assert (found[:, 98 * 3 : 98 * 3 + 48] == 250).all()


def test_a_strip_of_other_rows_is_refused(viewer: Viewer, tmp_path: Path) -> None:
    tags = [store["tag"] for store in viewer.get("/api/stores")["stores"]]
    assert len({*tags}) == 3
    rows = viewer.get("/api/episodes/0/0")["rows"]
    assert viewer.ask(f"/strip/0/0.webp?tag={tags[1]}").status == 404
    assert viewer.ask(f"/strip/0/0.webp?rows={rows + 1}").status == 404
    numbers = store_of(tmp_path / "numbers", np.zeros((9, 3), np.float32))
    with Viewer(numbers) as without_images:
        assert without_images.ask("/strip/0/0.webp").status == 404


@pytest.mark.parametrize("kind", ["webp", "gif", "png"])
def test_a_clip_is_a_download_of_some_rows(viewer: Viewer, kind: str) -> None:
    reply = viewer.ask(f"/clip/1/3.{kind}?begin=0&stop=2&scale=3&fps=7.5")
    assert reply.status == 200
    assert reply.header("content-type") == f"image/{kind}"
    name = f'attachment; filename="second-episode-3.{kind}"'
    assert reply.header("content-disposition") == name
    assert reply.body[:4] in (b"RIFF", b"GIF8", b"\x89PNG")


def test_a_long_clip_is_refused_with_the_number_of_rows_that_fit(tmp_path: Path) -> None:
    store = write_store(tmp_path / "long", [Played([0.0] * 5_002)])
    with Viewer(store) as viewer:
        reply = viewer.ask("/clip/0/0.webp")
        assert reply.status == 400
        assert "5,000" in reply.json["error"]
        assert "stepwell render" in reply.json["error"]
        assert "2,730" in viewer.ask("/clip/0/0.webp?scale=16&stop=5000").json["error"]


def test_ids_are_what_the_command_reads(viewer: Viewer) -> None:
    reply = viewer.ask("/api/ids?ids=3-5,9&store=0&store=1")
    assert reply.body == b"3-5,9\n3-5,9\n"
    assert reply.header("content-disposition") == 'attachment; filename="episodes.txt"'


QUOTED = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)


@given(QUOTED)
def test_the_command_has_the_same_words_and_no_control_characters(text: str) -> None:
    words = QueryParameters([("where", f"key={text}"), ("max_return", "-1.5")], FILTER_WORDS)
    command = filter_command(Path("/tmp/a b"), words)
    assert command.startswith("stepwell filter '/tmp/a b' --max-return=-1.5 --where ")
    assert not [one for one in command if ord(one) < 32 or 127 <= ord(one) < 160]


@pytest.mark.parametrize(
    "text", ["a'b", "a\x1b[201~\rls", "\t", "$(ls)", "`ls`", "a\\'b", "\x7f\x85", "é"]
)
def test_bash_reads_the_command_as_it_was_meant(text: str) -> None:
    words = QueryParameters([("where", f"k={text}")], FILTER_WORDS)
    command = filter_command(Path("x"), words).replace("stepwell filter", "printf '%s\\n'")
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode().split("\n")[2:-3] == f"k={text}".split("\n")


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.proof
@given(VALUES | st.dictionaries(st.sampled_from(FILTER_WORDS), VALUES))
def test_a_filter_in_json_is_read_or_refused_with_a_sentence(value: Any) -> None:
    with suppress(BadRequest):
        selection_of(QueryParameters.of_json(value, FILTER_WORDS))
