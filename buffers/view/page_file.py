"""The viewer's page as one file: style, scripts and the answers to its questions are inside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.package import __version__
from ..pictures.markup import Markup, escape, sparkline, table
from .summary import (
    FIELD_COLUMNS,
    RUN_COLUMNS,
    SeedCounts,
    StoreSummary,
    field_lines,
    overview,
    run_lines,
)

_PAGE = Path(__file__).with_name("page")
# Each after those that it imports. In the file a module of answers stands for the server's.
_MODULES = (
    *("dom", "curves", "frames", "api", "filter", "histograms", "table"),
    *("episode", "exports", "app"),
)
_FILES = {"api": "embedded"}
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:class|const|function) (\w+))", re.MULTILINE)
_STYLE = re.compile(' style="[^"]*"')
_LONG = 600  # characters of a text of a store
_CURVE_WIDTH, _CURVE_HEIGHT = 480, 90


@dataclass(frozen=True, slots=True)
class Described:
    """A store in words."""

    name: str  # on the page
    summary: StoreSummary
    seeds: SeedCounts  # the episodes that can be played again
    digest: str | None  # of all rows; None if it was not computed


def page_file(title: str, stores: Sequence[Described], answers: bytes) -> bytes:
    """The page as one HTML file, which loads nothing and runs no script but its own."""
    # The stores are for the part that needs no script; `embedded.js` reads the answers, JSON
    # without the character "<".
    style, script = (_PAGE / "style.css").read_text("utf-8"), _script()
    heading = escape(title, _LONG)
    policy = (
        f"default-src 'none'; img-src data:; script-src '{_hash(script)}'; "
        f"style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    )
    page = (_PAGE / "index.html").read_text("utf-8")
    head, _, rest = page.partition('<link rel="stylesheet"')
    page = f"{head}<style>{style}</style>\n{rest[rest.index('</head>') :]}"
    summary = "".join(_summary(stores))
    for old, new in (
        (
            '<meta charset="utf-8">',
            '<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="referrer" content="no-referrer">\n'
            f'<meta name="generator" content="Stepwell {escape(__version__)}">',
        ),
        ("<title>Stepwell</title>", f"<title>{heading}</title>"),
        ("<h1>Stepwell</h1>", f"<h1>{heading}</h1>"),
        ('<body data-view="table">', '<body data-view="table" class="report">'),
        (page[page.index("<noscript>") : page.index("</noscript>")], f"<noscript>{_NO_SCRIPT}"),
        ("</main>", f'<section id="summary" aria-label="Summary">{summary}</section>\n</main>'),
        (
            "</body>",
            f'<script type="application/json" id="data">{answers.decode()}</script>\n'
            f'<script type="module">{script}</script>\n</body>',
        ),
    ):
        assert page.count(old) == 1, old
        page = page.replace(old, new)
    return page.encode()


_NO_SCRIPT = "Without JavaScript this page shows the main numbers, but no episodes."


def _script() -> str:
    """The page's modules as one, each in a function of its own: their names do not meet."""
    parts: list[str] = []
    for name in _MODULES:
        text = (_PAGE / f"{_FILES.get(name, name)}.js").read_text("utf-8")
        text = _IMPORT.sub(r"const { \1 } = $\2;", text)
        exported = ", ".join(_EXPORT.findall(text))
        text = _EXPORT.sub("", text)
        parts.append(f"const ${name} = (() => {{\n{text}\nreturn {{ {exported} }};\n}})();\n")
    return "".join(parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _summary(stores: Sequence[Described]) -> list[str]:
    """The main numbers, the runs and the fields of each store, as tables."""
    lines_of = [dict(overview(each.summary, each.digest, each.seeds)) for each in stores]
    for lines in lines_of:
        del lines["store"]  # where it lies is nobody's concern
    names = list(dict.fromkeys(name for lines in lines_of for name in lines))
    rows = [[name, *(lines.get(name, "") for lines in lines_of)] for name in names]
    found = [_part("Summary", _table(rows, ["store", *(each.name for each in stores)]))]
    for each in stores:
        of_store = f" of {each.name}" if len(stores) > 1 else ""
        returns = each.summary.returns
        name = f"{len(returns):,} whole episodes in their order"
        curve = sparkline(returns, name, width=_CURVE_WIDTH, height=_CURVE_HEIGHT, has_caption=True)
        found += [
            _part(f"Returns{of_store}", curve) if len(returns) > 1 and curve else "",
            _part(f"Runs{of_store}", _table(run_lines(each.summary.sessions), RUN_COLUMNS)),
            _part(
                f"Fields of a row{of_store}",
                _table(field_lines(each.summary.spec), FIELD_COLUMNS),
            ),
        ]
    made = f"Made with Stepwell {escape(__version__)}; this file loads nothing."
    return [*found, f'<p class="note">{made}</p>']


def _part(heading: str, content: Markup) -> str:
    # Styles in elements are what the page's policy forbids; all texts are escaped.
    inside = _STYLE.sub("", content)
    # Focusable, so that it can be scrolled by keys where it is wider than the page.
    return (
        f'<h3>{escape(heading, _LONG)}</h3><div class="scroll" tabindex="0" role="group" '
        f'aria-label="{escape(heading, _LONG)}">{inside}</div>'
    )


def _table(lines: Sequence[Sequence[str]], columns: Sequence[str]) -> Markup:
    return table(
        [[escape(cell, _LONG) for cell in line] for line in lines],
        [escape(name, _LONG) for name in columns],
    )
