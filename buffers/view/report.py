"""A report: one HTML file that shows stores without a network, a server or other files."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import cast

import numpy as np

from ..base.errors import StoreNotFound
from ..base.package import __version__
from ..base.progress import Part, Progress, Status, format_bytes, progress_function
from ..curation.stored_episode import StoredEpisode
from ..pictures.encode import block_size, sprite
from ..pictures.image_fields import ImageField
from ..pictures.markup import Markup, escape, sparkline, table
from ..storage.disk.publish import check_complete
from .curves import curve_names, curves
from .episode_table import RANKS, EpisodeTable
from .render import check_new_file, new_file
from .server.answers import Answers, json_bytes
from .server.query import QueryParameters
from .server.stores import OpenStore, Stores
from .summary import (
    FIELD_COLUMNS,
    RUN_COLUMNS,
    SeedCounts,
    StoreSummary,
    digest_of,
    field_lines,
    overview,
    run_lines,
    seeds_of,
    summary_of,
)

_PAGE = Path(__file__).with_name("page")
# Each after those that it imports. In the file a module of answers stands for the server's.
_MODULES = (
    *("dom", "curves", "frames", "api", "filter", "histograms", "table"),
    *("episode", "exports", "timeline", "app"),
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
    for each, lines in zip(stores, lines_of, strict=True):
        del lines["store"]  # where it lies is nobody's concern
        if 1 < len(each.summary.returns) < each.summary.episodes:  # histograms have the others too
            for name in ("return", "length"):
                lines[name] += f", of {len(each.summary.returns):,} whole episodes"
    names = list(dict.fromkeys(name for lines in lines_of for name in lines))
    rows = [[name, *(lines.get(name, "") for lines in lines_of)] for name in names]
    found = [_part("Summary", _table(rows, ["store", *(each.name for each in stores)]))]
    for number, each in enumerate(stores):
        of_store = f" of {each.name}" if len(stores) > 1 else ""
        returns = each.summary.returns
        name = f"{len(returns):,} whole episodes in their order"
        curve = sparkline(returns, name, width=_CURVE_WIDTH, height=_CURVE_HEIGHT, has_caption=True)
        found += [
            _part(f"Returns{of_store}", curve, f" store-{number % 8}")
            if len(returns) > 1 and curve
            else "",
            _part(f"Runs{of_store}", _table(run_lines(each.summary.sessions), RUN_COLUMNS)),
            _part(
                f"Fields of a row{of_store}",
                _table(field_lines(each.summary.spec), FIELD_COLUMNS),
            ),
        ]
    made = f"Made with Stepwell {escape(__version__)}; this file loads nothing."
    return [*found, f'<p class="note">{made}</p>']


def _part(heading: str, content: Markup, kind: str = "") -> str:
    # Styles in elements are what the page's policy forbids; all texts are escaped.
    inside = _STYLE.sub("", content)
    # Focusable, so that it can be scrolled by keys where it is wider than the page.
    return (
        f'<h3>{escape(heading, _LONG)}</h3><div class="scroll{kind}" tabindex="0" role="group" '
        f'aria-label="{escape(heading, _LONG)}">{inside}</div>'
    )


def _table(lines: Sequence[Sequence[str]], columns: Sequence[str]) -> Markup:
    return table(
        [[escape(cell, _LONG) for cell in line] for line in lines],
        [escape(name, _LONG) for name in columns],
    )


EPISODES = "best:3,worst:3,longest:1"
MOST_BYTES = 5_000_000
_WORD = re.compile(rf"({'|'.join(RANKS)})(?::([0-9]{{1,4}}))?")
_IDS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_MOST_EPISODES = 100
_MOST_STORES = 12
_MOST_FRAMES = 1 << 18  # of an episode
_MOST_CURVES = 12
_POINTS = (2_000, 1_000, 500, 250, 100)
_MARGIN = 1_000
_SPARSE = 32  # rows between two frames: they are read one by one then
_MOST_WHOLE = 1e15  # written as a whole number
_WHY = "to keep the file small"


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A report that was written."""

    path: str
    nbytes: int
    stores: int  # how many
    episodes: int  # in these stores
    playable: int  # episodes that can be watched in it
    notes: tuple[str, ...]  # what was left out so that the file stays small, one sentence each


def write_report(
    folders: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    episodes: str = EPISODES,
    title: str | None = None,
    max_bytes: int = MOST_BYTES,
    with_digest: bool = False,
    overwrite: bool = False,
    progress: Progress[int, int] = None,
) -> ReportFile:
    """Write a report about one store, or several that are compared, as one HTML file."""
    # It is the page of `stepwell view` with its data inside: the main numbers, histograms of
    # returns, lengths and actions, the runs, and some episodes that can be played in the browser,
    # frame by frame with their exact pixels. It loads nothing from elsewhere. The same stores give
    # the same bytes.
    #
    # `episodes` has parts such as best:3, 7 or 12-15, with commas between them. Where the file
    # would be larger than `max_bytes`, only every second, fourth, ... frame of long episodes is in
    # it, and a note says so.
    paths = [Path(folders)] if isinstance(folders, str | Path) else list(map(Path, folders))
    if not 1 <= len(paths) <= _MOST_STORES:
        raise ValueError(
            f"folders: expected 1 to {_MOST_STORES} stores, got {len(paths)}; write several reports"
        )
    wanted = _parsed(episodes)
    target = Path(out)
    check_new_file(target, overwrite)
    if not target.parent.is_dir():
        raise ValueError(
            f"out: expected a file in a folder that exists, got {target}; make {target.parent} "
            f"first"
        )
    with progress_function(progress, report_status) as tell, ExitStack() as stack:
        for path in paths:
            check_complete(path)
        facts = [
            (summary_of(path), seeds_of(path), digest_of(path) if with_digest else None)
            for path in paths
        ]
        stores = Stores(paths, _raised)
        stack.callback(stores.close)
        described = [
            Described(store.name, *each) for store, each in zip(stores.stores, facts, strict=True)
        ]
        report = _Report(stores, wanted, episodes)
        heading = title or ", ".join(store.name for store in stores.stores)

        def written(points: int) -> bytes:
            return page_file(heading, described, json_bytes(report.answers(points)))

        points, empty = 0, 0
        for points in _POINTS:
            empty = len(written(points))
            if 2 * empty <= max_bytes:  # the other half is for frames
                break
        if empty > max_bytes:
            raise ValueError(
                f"max_bytes: expected at least {-(-empty // 1000)} kB for the page without frames, "
                f"got {format_bytes(max_bytes)}; allow more (--max-size), or choose fewer episodes"
            )
        room = max_bytes - empty
        while True:
            report.add_films(room, tell)
            data = written(points)
            if len(data) <= max_bytes:
                break
            # What stands around the pictures took more than was reckoned with.
            room = max(0, room - (len(data) - max_bytes) - _MARGIN)
        with new_file(target, "a report", overwrite) as part:
            part.write_bytes(data)
        return ReportFile(
            str(target),
            len(data),
            len(stores.stores),
            report.total,
            len(report.playable),
            tuple(
                f"{stores.stores[one.store].name}, episode {one.episode.id}: {one.note}"
                for one in report.playable
                if one.note
            ),
        )


def report_status(done: int, of: int) -> Status:
    """The progress of a report: episodes whose frames are encoded."""
    return Status([Part(f"{done:,} / {of:,} episodes")], done / of if of else None)


_Wanted = tuple[str, int] | range


def _parsed(text: str) -> list[_Wanted]:
    """The parts of ``episodes``, such as ``best:3, longest,7-9``."""
    if text.strip() == "none":
        return []
    found: list[_Wanted] = []
    for part in map(str.strip, text.split(",")):
        if word := _WORD.fullmatch(part):
            found.append((word[1], int(word[2] or 1)))
        elif ids := _IDS.fullmatch(part):
            found.append(range(int(ids[1]), int(ids[2] or ids[1]) + 1))
        else:
            raise ValueError(
                f"episodes: expected {', '.join(RANKS)} with a number such as {EPISODES}, ids "
                f"such as 7,12-15, or none, got {part!r}; correct it"
            )
    count = sum(len(each) if isinstance(each, range) else each[1] for each in found)
    if count > _MOST_EPISODES:
        raise ValueError(
            f"episodes: expected at most {_MOST_EPISODES} of each store, got {count:,} in "
            f"{text!r}; choose fewer"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Film:
    """The frames of an episode."""

    step: int  # each `step`-th row has a frame, and the last one
    frames: int
    sheets: tuple[tuple[bytes, ...], ...]  # sprites of each field, each a lossless WebP file


@dataclass(slots=True)
class _Playable:
    """An episode that is in the report."""

    store: int  # its number on the page
    opened: OpenStore
    place: int  # in the table
    why: Sequence[str]  # what it was chosen for, such as "2nd best"
    film: _Film | None = None

    @property
    def episode(self) -> StoredEpisode:
        return self.opened.table.episode(self.place)

    @property
    def note(self) -> str:
        """A sentence about frames of it that are left out; empty if nothing is."""
        rows = self.episode.rows
        if not self.opened.images or (self.film is not None and self.film.step == 1):
            return ""
        if self.film is None:
            return f"its frames are left out, {_WHY}"
        if self.film.frames == 2:
            return f"only the first and the last of {rows:,} frames are shown, {_WHY}"
        nth = _ordinal(self.film.step)
        return f"every {nth} of {rows:,} frames is shown, and the last one, {_WHY}"


class _Report:
    """The episodes of a report, and the answers to the questions of its page."""

    # The `wanted` episodes are also there as the `text` that the user gave.

    def __init__(self, stores: Stores, wanted: Sequence[_Wanted], text: str) -> None:
        self._answers = Answers(stores)
        opened: list[OpenStore] = []
        for store in stores.stores:
            if store.now is None:
                raise StoreNotFound(store.error or f"{store.path} cannot be read")
            opened.append(store.now)
            store.now.table.read_all_returns()
        _check_found([each.table for each in opened], wanted, text)
        self._histograms = self._answers.histograms(QueryParameters((), ()))
        self.total = sum(len(each.table) for each in opened)
        self.playable = [
            _Playable(number, each, place, why)
            for number, each in enumerate(opened)
            for place, why in _chosen(each.table, wanted).items()
        ]

    def answers(self, points: int) -> dict[str, object]:
        """The answers to all that the page asks for, as `embedded.js` reads them."""
        columns, rows = self._answers.rows([(one.store, one.place) for one in self.playable])
        return {
            "stores": [self._store(facts) for facts in self._answers.stores()],
            "total": self.total,
            "columns": [*columns, "chosen for"],
            "rows": [
                [*row, ", ".join(one.why)] for row, one in zip(rows, self.playable, strict=True)
            ],
            "histograms": self._histograms,
            "episodes": {
                f"{one.store}/{one.episode.id}/{one.episode.first_row}": self._episode(one, points)
                for one in self.playable
            },
        }

    def _store(self, facts: Mapping[str, object]) -> dict[str, object]:
        names = cast("list[str]", facts["curves"])
        more = len(names) - _MOST_CURVES
        left_out = f"{more:,} more curves are not in this report" if more > 0 else ""
        # Where it lies is nobody's concern.
        return {
            **facts,
            "path": facts["name"],
            "tag": "",
            "curves": names[:_MOST_CURVES],
            "curves_left_out": left_out or facts["curves_left_out"],
        }

    def _episode(self, one: _Playable, points: int) -> dict[str, object]:
        with one.opened.reading():
            episode = one.episode
            words = QueryParameters([("first_row", str(episode.first_row))], ("first_row",))
            info = self._answers.episode(one.store, episode.id, words)
            images = cast("list[dict[str, object]]", info["images"]) if one.film else []
            names = curve_names(one.opened.spec, one.opened.texts)[:_MOST_CURVES]
            return {
                "info": {
                    **info,
                    "images": [{**image, "tag": ""} for image in images],
                    "step": one.film.step if one.film else 1,
                    "note": one.note,
                },
                "curves": _short_curves(curves(episode, names, points=points), one.opened),
                "sheets": [
                    [base64.b64encode(sheet).decode() for sheet in sheets]
                    for sheets in (one.film.sheets if one.film else ())
                ],
            }

    def add_films(self, room: int, tell: Callable[[int, int], None] | None) -> None:
        """Encode the frames of all episodes, so that they take no more than ``room`` bytes."""
        films = [one for one in self.playable if one.opened.images]
        # Short ones first: what they do not need is left for the longer ones.
        films.sort(key=lambda one: one.episode.rows)
        for done, one in enumerate(films):
            with one.opened.reading():
                one.film = _film(one.episode, one.opened.images, room // (len(films) - done))
            if one.film is not None:
                room -= _sheet_bytes(one.film.sheets)
            if tell is not None:
                tell(done + 1, len(films))


def _raised(error: Exception) -> None:
    raise error


def _ordinal(number: int) -> str:
    """A number as that of a place: 1st, 2nd, 11th."""
    is_teen = 10 < number % 100 < 20
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _sheet_bytes(sheets: Iterable[Iterable[bytes]]) -> int:
    """Bytes that some sprites take in a page, about."""
    return sum(200 + sum(-(-len(each) // 3) * 4 + 3 for each in of_field) for of_field in sheets)


def _short_curves(found: Mapping[str, object], opened: OpenStore) -> dict[str, object]:
    """Curves in few bytes: without rows where all have a value, and without needless digits."""
    drawn = cast("Mapping[str, Mapping[str, object]]", found["curves"])
    is_exact = all("values" in curve for curve in drawn.values())
    singles = [field.name for field in opened.spec.fields if field.dtype == "float32"]
    return {
        **({} if is_exact else {"rows": found["rows"], "stop": found["stop"]}),
        "curves": {
            name: {
                key: _short(values, is_single=name.partition("[")[0] in singles)
                for key, values in curve.items()
            }
            for name, curve in drawn.items()
        },
    }


def _short(value: object, *, is_single: bool) -> object:
    """JSON with whole numbers as such, and floats of 32 bits with the digits that these need."""
    if isinstance(value, list):
        return [_short(each, is_single=is_single) for each in cast("list[object]", value)]
    if not isinstance(value, float):
        return value
    if value.is_integer() and abs(value) < _MOST_WHOLE:
        return int(value)
    return float(str(np.float32(value))) if is_single else value


def _chosen(table: EpisodeTable, wanted: Sequence[_Wanted]) -> dict[int, list[str]]:
    """The places of the wanted episodes in their order, each with what it was chosen for."""
    found: dict[int, list[str]] = {}
    for part in wanted:
        if isinstance(part, range):
            for place in _places_in(table, part):
                found.setdefault(place, [])
            continue
        word, count = part
        if not count:
            continue
        for rank, place in enumerate(table.ranked(word, count).tolist()):
            found.setdefault(place, []).append(f"{_ordinal(rank + 1)} {word}" if rank else word)
    return found


def _places_in(table: EpisodeTable, ids: range) -> list[int]:
    found: list[int] = np.flatnonzero((table.ids >= ids.start) & (table.ids < ids.stop)).tolist()
    return found


def _check_found(tables: Sequence[EpisodeTable], wanted: Sequence[_Wanted], text: str) -> None:
    """Refuse ids that no store has."""
    for part in wanted:
        if isinstance(part, range) and not any(_places_in(table, part) for table in tables):
            shown = f"{part.start}" if len(part) == 1 else f"{part.start}-{part.stop - 1}"
            most = max(int(table.ids.max(initial=-1)) for table in tables)
            raise ValueError(
                f"episodes: expected ids of stored episodes, got {shown} in {text!r}; the highest "
                f"stored id is {most}"
            )


def _film(episode: StoredEpisode, images: Sequence[ImageField], room: int) -> _Film | None:
    """The frames of an episode in at most ``room`` bytes; None if not even two frames fit."""
    # Where all do not fit, every second, fourth, ... one is taken, and the last one.
    step = 1 << max(0, ceil(log2(episode.rows / _MOST_FRAMES)))
    while step < 2 * episode.rows and room > 0:
        film = _encoded(episode, images, step, room)
        if isinstance(film, _Film):
            return film
        # That part of the frames took all the room.
        step = max(2 * step, 1 << ceil(log2(step / film * 0.9)))
    return None


def _encoded(
    episode: StoredEpisode, images: Sequence[ImageField], step: int, room: int
) -> _Film | float:
    """The frames of every ``step``-th row and the last; or the part of them that fits."""
    first, last = episode.first_row, episode.first_row + episode.rows - 1
    rows = np.unique(np.append(np.arange(first, last + 1, step), last))
    sizes = [block_size(image.height, image.width) for image in images]
    pending: list[list[np.ndarray]] = [[] for _ in images]
    sheets: list[list[bytes]] = [[] for _ in images]
    for stop, fields in _rows_of(episode, images, rows, min(a * b for a, b in sizes)):
        for place, image in enumerate(images):
            pending[place] += list(image.pixels(fields[image.name]))
            most = sizes[place][0] * sizes[place][1]
            while len(pending[place]) >= most or (stop == len(rows) and pending[place]):
                sheets[place].append(sprite(np.stack(pending[place][:most])))
                del pending[place][:most]
        if _sheet_bytes(sheets) > room:
            return stop / len(rows)
    return _Film(step, len(rows), tuple(map(tuple, sheets)))


def _rows_of(
    episode: StoredEpisode, images: Sequence[ImageField], rows: np.ndarray, most: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """The fields of images of at most ``most`` of some rows, and the place after the last."""
    names = [image.name for image in images]
    step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
    if step < _SPARSE:
        place = 0
        for chunk in episode.chunks(most, names):
            stop = int(np.searchsorted(rows, chunk.first_row + chunk.rows))
            if stop > place:
                within = rows[place:stop] - chunk.first_row
                yield stop, {name: chunk.fields[name][within] for name in names}
            place = stop
        return
    for place, row in enumerate(rows.tolist()):
        yield place + 1, episode.read(row, row + 1, names)
