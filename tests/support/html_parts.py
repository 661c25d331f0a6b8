"""Pieces of HTML, checked and taken apart."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import numpy as np

from support.pictures import decoded

_ALONE = {"img", "br"}
_ALLOWED = {
    *("div", "span", "table", "thead", "tbody", "tr", "th", "td", "img", "br"),
    *("svg", "title", "path", "circle"),
}


class _Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _ALLOWED, tag
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        assert not {name for name in names if name in ("id", "class") or name.startswith("on")}
        values = dict(attrs)
        assert "href" not in values
        if tag == "img":
            source = values["src"] or ""
            assert re.fullmatch(r"data:image/(png|webp|gif);base64,[A-Za-z0-9+/=]*", source)
            assert values["alt"]
            self.images.append(source.partition(",")[2])
        if tag == "svg":
            assert values["role"] == "img"
        assert "url(" not in (values.get("style") or "")
        if tag not in _ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _parts_of(markup: str | None) -> _Parts:
    assert markup is not None
    parts = _Parts()
    parts.feed(markup)
    parts.close()
    assert not parts.open
    markup.encode()  # a file of a notebook cannot hold lone surrogates
    return parts


def text_of(markup: str | None) -> str:
    """The text of harmless markup, in which nothing is left open and nothing is loaded."""
    return " ".join(_parts_of(markup).text)


def pictures_of(markup: str | None) -> list[np.ndarray]:
    """The pictures of harmless markup, uint8 [H, W, 3] each."""
    return [decoded(base64.b64decode(each)) for each in _parts_of(markup).images]
