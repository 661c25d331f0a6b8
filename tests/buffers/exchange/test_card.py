"""Cards say what is in a data set; text of a hostile store is no Markdown, HTML or YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from stepwell.buffers import DiskStorage, End, SequenceReplayBuffer
from stepwell.buffers.exchange.card import _code, _plain, store_card
from stepwell.buffers.exchange.formats.exporting import export_episodes
from stepwell.buffers.exchange.formats.format import format_names, format_of
from stepwell.buffers.exchange.formats.importing import import_episodes
from support.crash.disk_faults import NoSyncFiles
from support.format_packages import require
from support.served import Played, rows_of, write_store

MARKDOWN = MarkdownIt("commonmark").enable("table")
FOLDERS = [
    name
    for name in format_names()
    if format_of(name).kind == "folder" and format_of(name).export_options is not None
]


def front_of(card: bytes) -> Mapping[str, Any]:
    _, front, _ = card.decode().split("---\n", 2)
    found: Mapping[str, Any] = yaml.safe_load(front)
    return found


def html_of(card: bytes) -> str:
    return str(MARKDOWN.render(card.decode().split("---\n", 2)[2]))


def test_a_card_has_the_numbers_of_the_store(tmp_path: Path) -> None:
    episodes = [
        Played([0, 1.0, 2.0]),
        Played([0, 10.0], End.TRUNCATED),
        Played([0, 5.0, 5.0, 5.0], End.NONE),
    ]
    store = write_store(tmp_path / "store", episodes)
    card = store_card(store, title="My data", pulled_as="user/data", license="mit")
    front = front_of(card["README.md"])
    assert front["license"] == "mit"
    assert front["pretty_name"] == "My data"
    assert front["size_categories"] == ["n<1K"]
    assert front["viewer"] is False
    text = card["README.md"].decode()
    for line in (
        "# My data",
        "| env steps | 6 |",
        "| episodes | 3: 1 cut, 1 terminated, 1 truncated |",
        "| of 2 whole episodes | mean | standard deviation | least | median | greatest |",
        "| return | 6.5 | 3.5 | 3 | 6.5 | 10 |",
        "| length | 1.5 | 0.5 | 1 | 1.5 | 2 |",
        "| `observation` | uint8 | 16x24 |  |",
        "stepwell pull user/data data",
        'replay = sw.SequenceReplayBuffer.open("data", read_only=True)',
    ):
        assert line in text.splitlines()
    picture = cv2.imdecode(np.frombuffer(card["picture.webp"], np.uint8), cv2.IMREAD_GRAYSCALE)
    assert picture is not None
    best = rows_of(1, [0, 10.0])["observation"]
    assert np.array_equal(picture[:16, :24], best[0])
    assert str(tmp_path) not in text


EVIL = "x|y `z` <script>alert(1)</script> [a](http://b) ![c](d) **e**\n\n# h\n- [ ] \x1b[2J\u202e"


def test_text_of_a_hostile_store_is_only_shown(tmp_path: Path) -> None:
    session = {
        "recipe": {"id": EVIL, EVIL: EVIL},
        **dict.fromkeys(("began", "seed", "policy", "num_envs"), EVIL),
        "versions": {EVIL: EVIL},
        "machine": {"system": EVIL, "python": EVIL, "libc": EVIL},
    }
    write_store(tmp_path / "store", [Played([0, 1.0], metadata={EVIL: EVIL})])
    with DiskStorage.open(tmp_path / "store", files=NoSyncFiles()) as storage:
        storage.append_session(session)
    card = store_card(tmp_path / "store", title=EVIL)["README.md"]
    assert isinstance(front_of(card)["pretty_name"], str)
    html = html_of(card)
    plain = html_of(
        store_card(write_store(tmp_path / "plain", [Played([0, 1.0])]), title="plain")["README.md"]
    )
    for tag in ("<script", "<a ", "<strong", "<h1", "<li"):
        assert html.count(tag) == plain.count(tag)
    assert html.count("<img") == 1
    assert html.count("&lt;script&gt;") > 5
    assert not {letter for letter in card.decode() if not letter.isprintable()} - {"\n"}
    tables = [table.split("</table>")[0] for table in html.split("<table>")[1:]]
    for table in tables:
        lines = table.split("<tr>")[1:]
        assert len({line.count("<td") + line.count("<th") for line in lines}) == 1


@given(st.text(st.sampled_from("`|\\<a \n*&\u0085"), max_size=12))
def test_code_shows_its_text_and_nothing_else(text: str) -> None:
    expected = _plain(text)
    rendered = MARKDOWN.render(f"b {_code(text)} c").strip()
    shown = (
        expected.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace('"', "&quot;")
    )
    assert rendered == (f"<p>b <code>{shown}</code> c</p>" if expected else "<p>b  c</p>")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_data_set_with_a_card_is_read_as_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(name)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    out = "our/data-v0" if name == "minari" else str(tmp_path / "out")
    episodes = [Played([0, *np.ones(length)]) for length in (70, 80)]
    store = write_store(tmp_path / "store", episodes)
    with SequenceReplayBuffer.open(store, read_only=True) as replay:
        report = export_episodes(replay, name, out, card=True, license="mit")
        card = (report.path / "README.md").read_bytes()
        front, text = front_of(card), card.decode()
    assert front["license"] == "mit"
    assert ("viewer" in front) != ("configs" in front)
    assert str(tmp_path) not in text
    assert f"format {name}" in text
    with SequenceReplayBuffer() as again:
        assert import_episodes(name, out, again).episodes == 2


def test_a_card_needs_a_folder_and_a_licence_needs_a_card(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [Played([0, 1.0])])
    with SequenceReplayBuffer.open(store, read_only=True) as replay:
        with pytest.raises(ValueError, match="'d3rlpy'"):
            export_episodes(replay, "d3rlpy", tmp_path / "x.h5", card=True)
        with pytest.raises(ValueError, match="'mit'"):
            export_episodes(replay, "npz", tmp_path / "x", license="mit")
        with pytest.raises(ValueError, match="'M I T'"):
            export_episodes(replay, "npz", tmp_path / "x", card=True, license="M I T")
    assert not (tmp_path / "x").exists()
