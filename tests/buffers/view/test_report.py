"""Reports: what is in the file, and that nothing else is needed to show it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import shutil
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import DiskStorage
from stepwell.buffers.pictures.image_fields import image_fields
from stepwell.buffers.pictures.markup import escape
from stepwell.buffers.rows.episode import End
from stepwell.buffers.view.report import (
    _short,  # the numbers of all curves go through it
    write_report,
)
from stepwell.buffers.view.summary import overview, summary_of
from support.served import Played, write_store
from support.viewed_stores import HOSTILE, LongEnv
from support.viewer import Store

VOID = {"meta", "img", "input", "br", "link", "base", "hr"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    inside: list[Node] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str, **having: str) -> list[Node]:
        """The nodes below with that tag and these attributes; `of` is a class."""
        found = [node for each in self.inside for node in (each, *each.all("*"))]
        return [
            node
            for node in found
            if tag in ("*", node.tag)
            and all(
                value in node.attributes.get("class", "").split()
                if key == "of"
                else node.attributes.get(key.replace("_", "-")) == value
                for key, value in having.items()
            )
        ]

    @property
    def words(self) -> str:
        return self.text + "".join(node.words for node in self.inside)


class Reader(HTMLParser):
    """Reads the elements of a page, each of which must be closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), attrs
        node = Node(tag, {key: value or "" for key, value in attrs})
        self.open[-1].inside.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Node(tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].text += data


def read(path: Path) -> Node:
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    (page,) = reader.open
    return page


def answers_of(path: Path) -> dict[str, Any]:
    """What the page knows of the stores."""
    (data,) = read(path).all("script", type="application/json")
    assert "<" not in data.text  # no tag and no comment can begin
    found: dict[str, Any] = json.loads(data.text)
    return found


def episodes_of(path: Path) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = answers_of(path)["episodes"]
    return list(found.values())


def shown(path: Path) -> list[int]:
    return [one["info"]["id"] for one in episodes_of(path)]


def decoded(text: str) -> npt.NDArray[np.uint8]:
    found = cv2.imdecode(np.frombuffer(base64.b64decode(text), np.uint8), cv2.IMREAD_COLOR)
    assert found is not None
    return np.asarray(found[..., ::-1], np.uint8)


def frames_in(one: dict[str, Any], place: int) -> npt.NDArray[np.uint8]:
    """The frames [n, H, W, 3] of one field of an episode, cut from its sprites."""
    image = one["info"]["images"][place]
    assert image["field"] == place
    high, wide, rows, columns = (image[key] for key in ("height", "width", "rows", "columns"))
    sheets = [decoded(sheet) for sheet in one["sheets"][place]]
    assert all(sheet.shape == (rows * high, columns * wide, 3) for sheet in sheets)
    frames = [
        sheet.reshape(rows, high, columns, wide, 3).transpose(0, 2, 1, 3, 4) for sheet in sheets
    ]
    return np.concatenate([each.reshape(-1, high, wide, 3) for each in frames])


def rows_in(one: dict[str, Any]) -> list[int]:
    first, count, step = (one["info"][key] for key in ("first_row", "rows", "step"))
    return [*range(first, first + count - 1, step), first + count - 1]


def check_frames(store: Path, report: Path) -> int:
    """Compare each frame of a report with the stored one; the number of fields that were seen."""
    seen = 0
    shown = {(one["info"]["id"], one["info"]["first_row"]): one for one in episodes_of(report)}
    with sw.SequenceReplayBuffer.open(store, read_only=True) as replay:
        images = image_fields(replay.storage.spec)
        for episode in replay.iter_episodes():
            if (one := shown.get((episode.id, episode.first_row))) is None:
                continue
            rows = np.array(rows_in(one))
            for place, image in enumerate(images):
                stored = image.pixels(episode.fields[image.name])[rows - episode.first_row]
                grey = stored[..., None].repeat(3, -1) if stored.ndim == 3 else stored
                found = frames_in(one, place)
                assert np.array_equal(found[: len(rows)], grey)
                assert not found[len(rows) :].any()
                seen += 1
    return seen


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_shortened_without_loss(value: float) -> None:
    assert json.loads(json.dumps(_short(value, is_single=False))) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_numbers_of_32_bits_take_no_more_digits_than_they_need(value: float) -> None:
    text = json.dumps(_short(value, is_single=True))
    assert np.float32(json.loads(text)) == np.float32(value)
    digits = re.sub(r"e.*|[-.]", "", text).strip("0")
    assert len(digits) <= 9 or value.is_integer(), text


def test_nothing_is_loaded_and_only_the_own_script_runs(store: Store, tmp_path: Path) -> None:
    write_report([store("cameras"), store("cartpole")], tmp_path / "a.html")
    page = read(tmp_path / "a.html")
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.attributes["content"].split(";"))
    _, script = page.all("script")
    (style,) = page.all("style")
    for rule, node in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(node.text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    code = re.sub("//.*", "", script.text)
    assert not re.search(r"^\s*(import|export)\b", code, re.MULTILINE)
    assert not re.search(r"\b(fetch|EventSource|XMLHttpRequest|WebSocket|eval)\b", code)
    assert "url(" not in style.text
    assert "@import" not in style.text
    for node in page.all("*"):
        assert node.tag not in {"iframe", "object", "embed", "base"}
        for key, value in node.attributes.items():
            assert key != "style"
            assert not key.startswith("on")
            if key in ("src", "href", "srcset", "action", "data", "poster"):
                assert value.startswith("#") or value == "data:,"
    assert len({node.attributes["id"] for node in page.all("*") if "id" in node.attributes}) == sum(
        "id" in node.attributes for node in page.all("*")
    )


def tags(page: Node) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in page.all("*"):
        found[node.tag] = found.get(node.tag, 0) + 1
    return found


@pytest.mark.proof
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_only_text(text: str, store: Store, tmp_path: Path) -> None:
    name = "".join(character for character in text[:60] if character not in "/\0\n\r") or "x"
    folder = tmp_path / name
    shutil.copytree(store("hostile"), folder)
    plain = tmp_path / "plain"
    shutil.copytree(store("hostile"), plain)
    write_report(plain, tmp_path / "plain.html", title="plain")
    made = write_report(folder, tmp_path / "a.html", title=text)
    page = read(tmp_path / "a.html")
    assert tags(page) == tags(read(tmp_path / "plain.html"))
    (heading,) = page.all("h1")
    assert heading.words == unescape(escape(text, 600))
    assert made.nbytes < 300_000
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", (tmp_path / "a.html").read_text())
    assert len(page.all("script")) == 2
    curves = episodes_of(tmp_path / "a.html")[0]["curves"]["curves"]
    for name in ("<b>bold</b>", HOSTILE[1]):
        assert set(curves[f"extra/{name}"]["values"]) == {None}


class ChainEnv(gym.Env[npt.NDArray[np.float32], np.int64]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, episodes: list[list[float]]) -> None:
        self.rest = [list(one) for one in episodes]
        self.rewards: list[float] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.rewards = self.rest.pop(0) if self.rest else [0.0]
        return np.zeros(2, np.float32), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.rewards.pop(0)
        return np.zeros(2, np.float32), reward, not self.rewards, False, {}


def chain(folder: Path, episodes: list[list[float]]) -> Path:
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(ChainEnv(episodes), sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        collector.collect(episodes=len(episodes))
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("best:3", [2, 4, 0]),  # of equal ones the smaller id first
        ("longest:2", [3, 4]),
        ("shortest:2", [0, 1]),
        ("first:2", [0, 1]),
        ("last:2", [4, 3]),
        ("3,best:2,worst:9", [3, 2, 4, 1, 0]),
        (" 1-2 , best:1", [1, 2]),
        ("none", []),
        ("best:0", []),
    ],
)
def test_which_episodes_are_shown(words: str, expected: list[int], tmp_path: Path) -> None:
    folder = chain(tmp_path / "a", [[5], [-3], [4, 5], [1, 1, 1], [4, 5, 0]])
    made = write_report(folder, tmp_path / "a.html", episodes=words)
    assert shown(tmp_path / "a.html") == expected
    assert made.playable == len(expected)
    assert made.episodes == 5


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"episodes": "bst:3"}, "^episodes: expected .*'bst:3'"),
        ({"episodes": "best:3,,worst"}, "^episodes: expected .*''"),
        ({"episodes": "best:99999"}, "^episodes: expected .*'best:99999'"),
        ({"episodes": "best:101"}, "^episodes: expected .*100.*101"),
        ({"episodes": "77"}, "^episodes: expected .*77"),
        ({"stores": 0}, "1 to 12 stores, got 0"),
        ({"stores": 13}, "1 to 12 stores, got 13"),
        ({"out": "no/a.html"}, r"out: .*no/a\.html"),
        ({"out": ".", "overwrite": True}, "out: expected a new file"),
    ],
)
def test_wrong_arguments_are_refused_before_a_file_is_made(
    given_: dict[str, Any], said: str, store: Store
) -> None:
    arguments = {"out": "a.html", **given_}
    stores = [store("cartpole")] * arguments.pop("stores", 1)
    with pytest.raises(ValueError, match=said):
        write_report(stores, **arguments)
    assert os.listdir() == []


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of 700 frames and one of 40, which was cut."""
    folder = tmp_path_factory.mktemp("long") / "store"
    with (
        sw.SequenceReplayBuffer(folder) as replay,
        sw.Collector(LongEnv(700), sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        collector.collect(steps=1440)
    return folder


ALL = "first:3"


@pytest.fixture(scope="module")
def least(long: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Bytes of the smallest page, without frames."""
    out = tmp_path_factory.mktemp("least") / "a.html"
    with pytest.raises(ValueError, match=r"max_bytes: expected at least .* kB") as caught:
        write_report(long, out, episodes=ALL, max_bytes=1)
    assert not out.exists()
    (least,) = re.findall(r"at least ([0-9.]+) kB", str(caught.value))
    return int(1000 * float(least)) + 50  # it is rounded


@pytest.mark.proof
@pytest.mark.parametrize("more", [0, 2_000, 15_000, 90_000, 5_000_000])
def test_the_file_is_as_large_as_it_may_be_and_says_what_is_left_out(
    more: int, long: Path, least: int, tmp_path: Path
) -> None:
    out = tmp_path / "a.html"
    made = write_report(long, out, episodes=ALL, max_bytes=least + more)
    assert made.nbytes == out.stat().st_size <= least + more
    steps = {}
    for one in episodes_of(out):
        count, note = len(rows_in(one)), one["info"]["note"]
        if not one["info"]["images"]:
            assert "frames are left out" in note
            continue
        steps[one["info"]["id"]] = step = one["info"]["step"]
        assert len(frames_in(one, 0)) >= count
        assert (f"of {one['info']['rows']:,} frames" in note) == (step > 1)
        assert ("keep the file small" in note) == (step > 1)
    assert len(made.notes) == 3 - sum(step == 1 for step in steps.values())
    if steps:
        assert check_frames(long, out) == 3 if len(steps) == 3 else True
    if more >= 90_000:
        assert made.notes == ()


def test_the_main_numbers_need_no_script(store: Store, tmp_path: Path) -> None:
    write_report(store("cartpole"), tmp_path / "a.html", with_digest=True)
    page = read(tmp_path / "a.html")
    (summary,) = page.all("section", id="summary")
    rows = [
        [cell.words for cell in row.all("*") if cell.tag in ("th", "td")]
        for row in summary.all("tr")
    ]
    found = {row[0]: row[1] for row in rows}
    expected = dict(overview(summary_of(store("cartpole"))))
    del expected["store"]
    assert expected.items() <= found.items()
    assert re.fullmatch("[0-9a-f]{16}", found["digest"])
    assert found["observation"] == "float32"
    (curve,) = summary.all("svg")
    assert "6 whole episodes" in curve.words
    assert "main numbers" in page.all("noscript")[0].text


def test_numbers_of_whole_episodes_alone_say_so(tmp_path: Path) -> None:
    ended, cut = Played([0.0, 4.0]), Played([0.0, 9.0], End.NONE)
    stores = {"all": [ended] * 2, "some": [ended, cut, ended], "one": [ended, cut]}
    for name, played in stores.items():
        write_store(tmp_path / name, played)
    write_report([tmp_path / name for name in stores], tmp_path / "a.html")
    (summary,) = read(tmp_path / "a.html").all("section", id="summary")
    cells = {row.inside[0].words: row.inside[1:] for row in summary.all("tr")}
    for kind in ("return", "length"):
        every, some, one = (cell.words for cell in cells[kind])
        assert "whole" not in every
        assert some.endswith("of 2 whole episodes")
        assert "one whole episode" in one
        assert "±" not in one
    curves = [part for part in summary.all("div", of="scroll") if part.all("svg")]
    colours = [name for part in curves for name in part.attributes["class"].split()[1:]]
    assert colours == ["store-0", "store-1"]  # as the stores have on the whole page


def test_an_empty_store(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    spec = sw.Spec.from_spaces(env.observation_space, env.action_space)
    DiskStorage.create(tmp_path / "a", spec).close()
    made = write_report(tmp_path / "a", tmp_path / "a.html")
    assert (made.episodes, made.playable) == (0, 0)
    page = read(tmp_path / "a.html")
    assert "no whole episode yet" in page.words
    assert "observation" in page.words
    assert answers_of(tmp_path / "a.html")["rows"] == []


def test_returns_that_are_not_finite(tmp_path: Path) -> None:
    folder = chain(
        tmp_path / "a", [[math.inf], [1.0], [math.nan], [-math.inf, 2.0], [1e308], [-1.7e308]]
    )
    write_report(folder, tmp_path / "a.html")
    answers = answers_of(tmp_path / "a.html")
    assert answers["histograms"]["return"]["left_out"] == 3
    returns = [row[answers["columns"].index("return")] for row in answers["rows"]]
    assert {"inf", "-inf"} <= set(returns)


@pytest.mark.proof
def test_several_stores_are_compared(store: Store, tmp_path: Path) -> None:
    other = tmp_path / "cartpole"
    shutil.copytree(store("levels"), other)
    made = write_report([store("cartpole"), other, store("cameras")], tmp_path / "a.html")
    page = read(tmp_path / "a.html")
    assert made.stores == 3
    assert made.episodes == 6 + 12 + 3
    answers = answers_of(tmp_path / "a.html")
    shown_names = [each["name"] for each in answers["stores"]]
    assert len(set(shown_names)) == 3
    assert all(name.endswith("/cartpole") for name in shown_names[:2])
    (table, *_) = page.all("table")
    assert [cell.text for cell in table.all("th")[:4]] == ["store", *shown_names]
    assert answers["total"] == 21
    assert {row[0] for row in answers["rows"]} == {0, 1, 2}
    headings = [node.text for node in page.all("h3")]
    assert [f"Runs of {name}" in headings for name in shown_names] == [True] * 3


def test_the_same_store_gives_the_same_bytes_wherever_it_is(store: Store, tmp_path: Path) -> None:
    write_report(store("cameras"), tmp_path / "a.html", with_digest=True)
    os.mkdir(tmp_path / "elsewhere")
    shutil.copytree(store("cameras"), tmp_path / "elsewhere" / "cameras")
    write_report(tmp_path / "elsewhere" / "cameras", tmp_path / "b.html", with_digest=True)
    data = (tmp_path / "a.html").read_bytes()
    assert data == (tmp_path / "b.html").read_bytes()
    assert str(tmp_path).encode() not in data
    assert str(store("cameras").parent).encode() not in data


def test_a_file_that_is_there_is_kept(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    out.write_text("mine")
    with pytest.raises(ValueError, match=r"out: expected a new file, .*a\.html.*--overwrite"):
        write_report(store("cartpole"), out)
    assert out.read_text() == "mine"

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_report(store("cameras"), out, overwrite=True, progress=stop)
    assert out.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [out]
    write_report(store("cartpole"), out, overwrite=True)
    assert shown(out)
    assert list(tmp_path.iterdir()) == [out]
