"""Pages of the documentation site as a browser finds them: anchors, links, and what is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

LOADED = {"script": "src", "img": "src", "source": "srcset", "iframe": "src", "video": "src"}


@dataclass
class SitePage(HTMLParser):
    """The ids, links and loaded files of one page."""

    text: str
    ids: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    described: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "dt" and "sig-object" in values.get("class", "") and "id" in values:
            self.described.append(values["id"])
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next", "author"):
            self.loaded.append(values["href"])
        if values.get(LOADED.get(tag, "")):
            self.loaded.append(values[LOADED[tag]])


@cache
def read(file: Path) -> SitePage:
    return SitePage(file.read_text(encoding="utf-8"))


def pages(site: Path) -> list[Path]:
    """All pages of a built site, but for lists of modules' source code."""
    return sorted(site.rglob("*.html"))


def loaded_from_outside(site: Path) -> list[str]:
    """Each file of another host that a page or a style sheet would load by itself."""
    found = [
        f"{page.relative_to(site)}: {each}"
        for page in pages(site)
        for each in read(page).loaded
        if urlsplit(each).scheme not in ("", "data") or urlsplit(each).netloc
    ]
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text(encoding="utf-8")
        named = re.findall(r"(?:url\(|@import\s+)\s*[\"']?((?:https?:)?//[^\"')\s]+)", text)
        found += [f"{sheet.relative_to(site)}: {each}" for each in named]
    return found
