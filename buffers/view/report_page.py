"""The page of a report: HTML with its style, its script and its pictures inside."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import cast

import numpy as np

from stepwell import __version__
from stepwell.buffers.episode import End
from stepwell.buffers.json_values import member, parse
from stepwell.buffers.pictures.encode import block_size
from stepwell.buffers.pictures.image_fields import ImageField
from stepwell.buffers.pictures.markup import Markup, escape, is_number, number, sparkline
from stepwell.buffers.progress import format_bytes
from stepwell.buffers.view.episode_table import end_word, shown
from stepwell.buffers.view.histograms import ActionCounts, histogram
from stepwell.buffers.view.report_charts import bars, columns, legend, returns_in_order
from stepwell.buffers.view.summary import (
    SeedCounts,
    StoreSummary,
    describe_env,
    describe_maker,
    describe_seed,
    overview,
    statistics_of,
)

__all__ = [
    "Film",
    "ReportedEpisode",
    "ReportedStore",
    "film_bytes",
    "ordinal",
    "page",
    "strip_bytes",
]

_PAGE = Path(__file__).with_name("page")
_LONG = 600  # characters of a text of a store
_WHY = "to keep the file small"
_MOST_ROWS = 200  # of a table
_MOST_METADATA = 24
_MOST_CHARTS = 4  # of actions
_MOST_MEANS = 40  # numbers in a table of returns
_BINS = 24
_TAG_BYTES = 80  # around a picture
_FILM_BYTES = 1_000  # around the pictures of a field
_MOST_WHOLE = 1e15  # written as a whole number
_SPEEDS = (2.0, 5.0, 15.0, 30.0, 60.0, 240.0)  # rows a second
_STYLE = re.compile(' style="[^"]*"')


@dataclass(frozen=True, slots=True)
class Film:
    """The frames of an episode.

    Args:
        step: Each ``step``-th row has a frame, and the last one.
        rows: These rows [n], counted from the reset.
        sheets: Sprites of each field, each a lossless WebP file.
        strip_rows: The rows of the film strip.
        strips: The pictures of the strip of each field, WebP files; empty where there is no room.
    """

    step: int
    rows: np.ndarray
    sheets: tuple[tuple[bytes, ...], ...]
    strip_rows: np.ndarray
    strips: tuple[tuple[bytes, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the page, about."""
        return film_bytes(self.sheets) + strip_bytes(self.strips)


@dataclass(slots=True)
class ReportedEpisode:
    """An episode that is shown.

    Args:
        id: Its id.
        stream: Index of the env that played it.
        first_row: 0, or the number of leading rows that are no longer stored.
        rows: Stored rows.
        steps: Stored env steps.
        total_reward: Sum of the stored rewards.
        end: Flags of its last row.
        why: What it was chosen for, such as ``"2nd best"``.
        metadata: Facts about it.
        curves: Its curves, as of `curves`.
        singles: Names of those whose numbers are floats of 32 bits.
        num_curves: Number of curves that there are.
        actions: Names of the actions, if they are known.
        rate: Rows a second at which it plays in real time.
        images: Its fields of images.
        film: Its frames; None for none.
    """

    id: int
    stream: int
    first_row: int
    rows: int
    steps: int
    total_reward: float
    end: End
    why: tuple[str, ...]
    metadata: Mapping[str, object]
    curves: Mapping[str, object]
    singles: frozenset[str]
    num_curves: int
    actions: Sequence[str] | None
    rate: Fraction
    images: tuple[ImageField, ...]
    film: Film | None = field(default=None)

    @property
    def note(self) -> str:
        """A sentence about frames of it that are left out; empty if nothing is."""
        if not self.images:
            return ""
        if self.film is None:
            return f"its frames are left out, {_WHY}"
        if self.film.step == 1:
            return ""
        if len(self.film.rows) == 2:
            return f"only the first and the last of {self.rows:,} frames are shown, {_WHY}"
        nth = ordinal(self.film.step)
        return f"every {nth} of {self.rows:,} frames is shown, and the last one, {_WHY}"


@dataclass(frozen=True, slots=True)
class ReportedStore:
    """A store that is shown.

    Args:
        name: Its name.
        summary: Its numbers.
        seeds: The episodes that can be played again.
        digest: The digest of all rows; None if it was not computed.
        returns: Returns [n] of all episodes, by id.
        steps: Env steps [n].
        ends: `End` flags [n].
        first_rows: Leading rows [n] that are no longer stored.
        episodes: The episodes to show.
    """

    name: str
    summary: StoreSummary
    seeds: SeedCounts
    digest: str | None
    returns: np.ndarray
    steps: np.ndarray
    ends: np.ndarray
    first_rows: np.ndarray
    episodes: Sequence[ReportedEpisode]

    @property
    def is_whole(self) -> np.ndarray:
        """[n] bool: the episodes that are stored from their reset to their end."""
        return cast("np.ndarray", (self.ends & _FINAL != 0) & (self.first_rows == 0))


_FINAL = int(End.TERMINATED | End.TRUNCATED)


def ordinal(number: int) -> str:
    """A number as that of a place.

    Example:
        >>> [ordinal(number) for number in (1, 2, 3, 4, 12, 32, 111)]
        ['1st', '2nd', '3rd', '4th', '12th', '32nd', '111th']
    """
    is_teen = 10 < number % 100 < 20
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def film_bytes(sheets: Iterable[Iterable[bytes]]) -> int:
    """Bytes that some sprites take in a page, about."""
    return sum(
        _FILM_BYTES + sum(_TAG_BYTES + _encoded_bytes(len(each)) for each in of_field)
        for of_field in sheets
    )


def strip_bytes(strips: Iterable[Iterable[bytes]]) -> int:
    """Bytes that some film strips take in a page, about."""
    return sum(
        2 * _TAG_BYTES + _encoded_bytes(len(each)) for of_field in strips for each in of_field
    )


def page(
    stores: Sequence[ReportedStore], actions: Sequence[ActionCounts], title: str | None
) -> bytes:
    """The page.

    Args:
        stores: The stores.
        actions: How often the actions of all stores were chosen.
        title: Its heading; None for the names of the stores.
    """
    style = (_PAGE / "report.css").read_text("utf-8")
    script = _script()
    heading = escape(title or ", ".join(store.name for store in stores), _LONG)
    sections = [
        ("summary", "Summary", "".join(_summary(stores))),
        ("charts", "Returns, lengths and actions", "".join(_charts(stores, actions))),
        ("episodes", "Episodes", "".join(_episodes(stores))),
        ("provenance", "Provenance", "".join(_provenance(stores))),
        ("fields", "Fields of a row", "".join(_fields(stores))),
    ]
    links = "".join(f'<li><a href="#{key}">{name}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-heading">'
        f'<h2 id="{key}-heading">{name}</h2>{content}</section>'
        for key, name, content in sections
    )
    policy = (
        f"default-src 'none'; img-src data:; script-src '{_hash(script)}'; "
        f"style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<meta name="generator" content="Stepwell {escape(__version__)}">\n'
        f"<title>{heading}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">To the content</a>\n'
        f'<header><h1>{heading}</h1><p class="lead">{_lead(stores)}</p>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f'<main id="main">{body}</main>\n'
        f"<footer><p>Made with Stepwell {escape(__version__)}. Everything is in this one file; it "
        f"loads nothing. <code>stepwell view</code> shows every episode of a store.</p></footer>\n"
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    ).encode()


def _script() -> str:
    parts = [(_PAGE / name).read_text("utf-8") for name in ("frames.js", "curves.js", "report.js")]
    return "".join(re.sub("^export ", "", part, flags=re.MULTILINE) for part in parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _lead(stores: Sequence[ReportedStore]) -> Markup:
    envs = list(dict.fromkeys(_env(store.summary.sessions) for store in stores))
    return Markup("<br>".join(escape(env, _LONG) for env in envs))


def _env(sessions: Sequence[Mapping[str, object]]) -> str:
    """The env in words, with its id in Gymnasium's registry where that is known and another."""
    text = describe_env(sessions)
    for session in sessions:
        try:
            name = member(parse(str(session["env_spec"]).encode()), "id")
        except (KeyError, ValueError):
            continue  # not every env has one, and it may be anything
        if isinstance(name, str) and name and not text.startswith(name):
            return f"{name}: {text}"
        return text
    return text


# The summary.


def _summary(stores: Sequence[ReportedStore]) -> Iterator[str]:
    if len(stores) == 1:
        yield f'<dl class="figures">{"".join(_figures(stores[0].summary))}</dl>'
        summary = stores[0].summary
        lines = dict(overview(summary))
        if lines["steps"] == f"{summary.steps:,}":  # no limit, and none were evicted
            del lines["steps"]
        if not summary.late_starts:
            del lines["episodes"]
        yield _facts(lines, ("steps", "episodes", "size", "lost", "kept actions"))
        return
    lines_of = [dict(overview(store.summary)) for store in stores]
    keys = [key for key in _COMPARED if any(key in lines for lines in lines_of)]
    yield _table(
        ["", *(store.name for store in stores)],
        [[key, *(lines.get(key, "") for lines in lines_of)] for key in keys],
        "The stores of this report",
    )


_COMPARED = ("env", "steps", "episodes", "return", "length", "size", "lost", "kept actions")


def _figures(store: StoreSummary) -> Iterator[str]:
    counts = (("terminated", store.terminated), ("truncated", store.truncated), ("cut", store.cut))
    ends = ", ".join(f"{count:,} {name}" for name, count in counts if count)
    yield _figure("Episodes", f"{store.episodes:,}", ends)
    yield _figure("Env steps", f"{store.steps:,}", "")
    for name, numbers in (("Return", store.returns), ("Length", store.lengths)):
        found = statistics_of(numbers)
        if found is None:
            yield _figure(name, "none", "no whole episode yet")
            continue
        whole = f"{len(numbers):,} whole episode{'' if len(numbers) == 1 else 's'}"
        spread = f"{number(found['min'])} to {number(found['max'])} in {whole}"
        yield _figure(name, f"{_rounded(found['mean'])} ± {_rounded(found['std'])}", spread)
    if store.disk_bytes and store.compression >= 1.05:
        smaller = f"{number(_rounded_ratio(store.compression))}x smaller than uncompressed"
    else:
        smaller = ""
    yield _figure("Size", format_bytes(store.disk_bytes), smaller)


def _figure(name: str, value: str, more: str) -> str:
    small = f"<small>{escape(more)}</small>" if more else ""
    return f"<div><dt>{name}</dt><dd>{escape(value)}{small}</dd></div>"


def _facts(lines: Mapping[str, object], keys: Sequence[str]) -> str:
    items = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(lines[key], _LONG)}</dd>"
        for key in keys
        if lines.get(key)
    )
    return f'<dl class="facts">{items}</dl>' if items else ""


# The charts.


def _charts(stores: Sequence[ReportedStore], actions: Sequence[ActionCounts]) -> Iterator[str]:
    names = [store.name for store in stores]
    if any(np.isfinite(store.returns).any() for store in stores):
        yield '<div class="charts">'
        is_all = all(store.is_whole.all() for store in stores)
        rings = "" if is_all else " Rings are episodes of which rows are missing, such as cut ones."
        yield _chart(
            "Returns over time",
            returns_in_order(
                [store.returns for store in stores],
                [store.is_whole for store in stores],
                "Return of each episode",
            ),
            names,
            f"Dots are episodes by their ids, the line is a moving mean of whole ones.{rings}",
            _table(["episodes", *(names if len(names) > 1 else ["return"])], _means(stores), ""),
        )
    else:
        yield '<p class="note">No episode is stored.</p><div class="charts">'
    for title, unit, values in (
        ("Returns of whole episodes", "return", [s.returns[s.is_whole] for s in stores]),
        ("Lengths of whole episodes", "env steps", [s.steps[s.is_whole] for s in stores]),
    ):
        if not any(map(len, values)):
            continue
        count = max(map(len, values))
        found = histogram(values, min(_BINS, max(5, math.ceil(2 * math.sqrt(count)))))
        left_out = sum(found.left_out)
        note = "In percent of the episodes of each store." if len(stores) > 1 else ""
        if left_out:
            note += f" {left_out:,} values that are NaN or infinite are left out."
        yield _chart(
            title,
            columns(found.labels, found.counts, title, "episodes"),
            names,
            note,
            _numbers(
                [unit, *(names if len(names) > 1 else ["episodes"])], found.labels, found.counts
            ),
        )
    for counted in actions[:_MOST_CHARTS]:
        read = counted.rows_read < counted.rows
        note = f"Counted in {counted.rows_read:,} of {counted.rows:,} rows." if read else ""
        yield _chart(
            "Actions" if counted.name == "action" else f"Actions: {counted.name}",
            bars(counted.labels, counted.counts, f"Part of the rows with each {counted.name}"),
            names,
            note,
            _numbers(
                ["action", *(names if len(names) > 1 else ["rows"])], counted.labels, counted.counts
            ),
        )
    yield "</div>"
    if len(actions) > _MOST_CHARTS:
        more = len(actions) - _MOST_CHARTS
        yield f'<p class="note">{more:,} more components of the action are not drawn.</p>'


def _means(stores: Sequence[ReportedStore]) -> list[list[object]]:
    """Returns in the order of the episodes: of each, or means of neighbours if there are many."""
    most = max(len(store.returns) for store in stores)
    step = -(-most // _MOST_MEANS)
    rows: list[list[object]] = []
    for begin in range(0, most, step):
        stop = min(begin + step, most)
        row: list[object] = [f"{begin + 1:,}" if step == 1 else f"{begin + 1:,} - {stop:,}"]
        for store in stores:
            part = store.returns[begin:stop]
            known = part[np.isfinite(part)]
            row.append(_mean(known) if len(known) else "")
        rows.append(row)
    return rows


def _mean(values: np.ndarray) -> float:
    return float((values / len(values)).sum())  # of parts: a sum of large numbers may overflow


def _chart(title: str, svg: str, names: Sequence[str], note: str, table: str) -> str:
    numbers = f"<details><summary>Numbers</summary>{table}</details>"
    text = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{svg}{legend(names)}{text}'
        f"{numbers}</figure>"
    )


def _numbers(heading: Sequence[str], labels: Sequence[str], counts: np.ndarray) -> str:
    rows = [[label, *row] for label, row in zip(labels, counts.T.tolist(), strict=True)]
    return _table(heading, rows, "")


# The episodes.


def _episodes(stores: Sequence[ReportedStore]) -> Iterator[str]:
    if not any(store.episodes for store in stores):
        yield '<p class="note">This report shows no single episodes.</p>'
        return
    yield (
        "<noscript><p class='note'>Without JavaScript the film strips and the sheets of frames are "
        "shown, but no player.</p></noscript>"
    )
    for place, store in enumerate(stores):
        if len(stores) > 1:
            yield f"<h3>{escape(store.name)}</h3>"
        level = 4 if len(stores) > 1 else 3
        for rank, episode in enumerate(store.episodes):
            yield _episode(episode, f"s{place}e{rank}", level)


def _episode(episode: ReportedEpisode, key: str, level: int) -> str:
    end = end_word(int(episode.end))
    last = episode.first_row + episode.rows - 1
    tags = "".join(
        f'<li class="{why.rpartition(" ")[2]}">{escape(why)}</li>' for why in (*episode.why, end)
    )
    facts = [f"return {number(episode.total_reward)}", f"{episode.steps:,} steps"]
    session = episode.metadata.get("session")
    facts.append(
        f"env {episode.stream}" + (f" of run {shown(session)}" if session is not None else "")
    )
    if "seed" in episode.metadata:
        facts.append(f"seed {shown(episode.metadata['seed'])}")
    if episode.first_row:
        facts.append(f"rows {episode.first_row:,} to {last:,}; those before are no longer stored")
    left_out = _sentence(episode.note)
    warning = f'<p class="note warning">{escape(left_out, _LONG)}</p>' if left_out else ""
    notes = " ".join(_curve_notes(episode))
    note = f'<p class="note">{escape(notes, _LONG)}</p>' if notes else ""
    return (
        f'<article class="episode" id="{key}" aria-labelledby="{key}-heading">'
        f'<header><h{level} id="{key}-heading">Episode {episode.id}</h{level}>'
        f'<ul class="tags">{tags}</ul></header>'
        f'<p class="about">{escape(" · ".join(facts), _LONG)}</p>'
        f"{warning}{_player(episode, key)}{note}{_strips(episode)}{_still(episode)}"
        f"{_sheets(episode)}{_metadata(episode)}"
        f'<script type="application/json" class="data">{_data(episode)}</script></article>'
    )


def _player(episode: ReportedEpisode, key: str) -> str:
    rows = len(episode.film.rows) if episode.film else episode.rows
    screens = "".join(
        f'<figure><canvas width="{image.width}" height="{image.height}" role="img" '
        f'aria-label="{escape(image.name)} of episode {episode.id}"></canvas>'
        f"<figcaption>{escape(_about_image(image), _LONG)}</figcaption></figure>"
        for image in (episode.images if episode.film else ())
    )
    own = round(float(episode.rate), 2)
    speeds = "".join(
        f'<option value="{fps:g}"{" selected" if fps == own else ""}>{fps:g} rows/s</option>'
        for fps in sorted({*_SPEEDS, own})
    )
    stage = f'<div class="stage">{screens}</div>' if screens else ""
    is_one = episode.film is not None and len(episode.images) == 1
    is_slim = is_one and episode.images[0].width <= 1.6 * episode.images[0].height
    return (
        f'<div class="player{" beside" if is_slim else ""}" hidden>{stage}<div class="panel">'
        f'<div class="controls"><button type="button" aria-label="Play episode {episode.id}">Play'
        f'</button><label class="row" for="{key}-row">Row <input type="range" id="{key}-row" '
        f'min="0" max="{rows - 1}" value="0"></label><label>Speed <select>{speeds}</select></label>'
        f'</div><p class="readout"></p><canvas class="curves" role="img" aria-label="Curves of '
        f'episode {episode.id}; the row slider moves their cursor"></canvas></div></div>'
    )


def _about_image(image: ImageField) -> str:
    parts = [image.name, f"{image.width} x {image.height}"]
    if image.stack > 1:
        parts.append(f"newest of a stack of {image.stack}")
    parts.append("exact pixels" if image.is_exact else image.scale)
    return ", ".join(parts)


def _strips(episode: ReportedEpisode) -> str:
    film = episode.film
    if film is None or not film.strips:
        return ""
    found = ""
    for image, strip in zip(episode.images, film.strips, strict=True):
        pictures = "".join(
            f"<li>{_picture(data, f'{image.name} at row {row}')}<span>row {row:,}</span></li>"
            for row, data in zip(film.strip_rows.tolist(), strip, strict=True)
        )
        named = f"Film strip of {escape(image.name)}"
        found += f'<ul class="strip" aria-label="{named}">{pictures}</ul>'
    return found


def _sheets(episode: ReportedEpisode) -> str:
    if episode.film is None:
        return ""
    found: list[str] = []
    for place, (image, sheets) in enumerate(zip(episode.images, episode.film.sheets, strict=True)):
        columns_, rows = block_size(image.height, image.width)
        count = columns_ * rows
        pictures = "".join(
            _picture(
                data,
                f"Rows {episode.film.rows[at * count]} to "
                f"{episode.film.rows[min(len(episode.film.rows), (at + 1) * count) - 1]}",
            )
            for at, data in enumerate(sheets)
        )
        found.append(
            f'<details class="sheets" data-field="{place}"><summary>All {len(episode.film.rows):,} '
            f"frames of {escape(image.name)} as pictures</summary>"
            f'<p class="note">Each picture has {columns_} x {rows} frames, row by row.</p>'
            f"{pictures}</details>"
        )
    return "".join(found)


def _picture(data: bytes, alt: str) -> str:
    source = base64.b64encode(data).decode()
    return f'<img alt="{escape(alt)}" src="data:image/webp;base64,{source}">'


def _still(episode: ReportedEpisode) -> str:
    """Curves for those without the script; an episode with frames has a film strip instead."""
    if episode.film is not None:
        return ""
    drawn = "".join(
        f"<figure>{_unstyled(sparkline(_points(curve), name, width=300, height=60))}"
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, curve in _curves_of(episode).items()
    )
    return f'<div class="still">{drawn}</div>'


def _points(curve: Mapping[str, Sequence[float | None]]) -> np.ndarray:
    """The values of a curve in their order; for ranges the two ends of each."""
    found = [curve["values"]] if "values" in curve else [curve["low"], curve["high"]]
    return np.array(
        [math.nan if one is None else one for pair in zip(*found, strict=True) for one in pair],
        np.float64,
    )


def _curves_of(episode: ReportedEpisode) -> Mapping[str, Mapping[str, Sequence[float | None]]]:
    return cast(
        "Mapping[str, Mapping[str, Sequence[float | None]]]", episode.curves.get("curves", {})
    )


def _curve_notes(episode: ReportedEpisode) -> Iterator[str]:
    drawn = _curves_of(episode)
    if any("low" in curve for curve in drawn.values()):
        rows = math.ceil(episode.rows / len(cast("Sequence[int]", episode.curves["rows"])))
        yield f"The curves show the least and the greatest value of {rows:,} rows each."
    if len(drawn) < episode.num_curves:
        yield f"{len(drawn)} of {episode.num_curves:,} curves are shown."


def _metadata(episode: ReportedEpisode) -> str:
    pairs = list(episode.metadata.items())
    if not pairs:
        return ""
    rows = [[escape(key, 60), escape(shown(value))] for key, value in pairs[:_MOST_METADATA]]
    if len(pairs) > _MOST_METADATA:
        rows.append([escape("…"), escape(f"{len(pairs) - _MOST_METADATA:,} more")])
    return f"<details><summary>Metadata</summary>{_table(['key', 'value'], rows, '')}</details>"


def _data(episode: ReportedEpisode) -> str:
    """The data that the script needs, as JSON that is safe within a page."""
    last = episode.first_row + episode.rows - 1
    end = end_word(int(episode.end))
    # The rows of exact values are all of them.
    is_exact = all("values" in curve for curve in _curves_of(episode).values())
    kept = () if is_exact else ("rows", "stop")
    lanes = [_lane(name, episode.actions) for name in _curves_of(episode)]
    value = {
        "first": episode.first_row,
        "last": last,
        "step": episode.film.step if episode.film else 1,
        "end": "the recording was cut here" if end == "cut" else f"final observation, {end}",
        "lanes": lanes,
        "curves": {
            "curves": {
                name: {
                    key: _short(values, is_single=name in episode.singles)
                    for key, values in curve.items()
                }
                for name, curve in _curves_of(episode).items()
            },
            **{key: episode.curves[key] for key in kept},
        },
        "images": [
            {"height": image.height, "width": image.width, "columns": sides[0], "rows": sides[1]}
            for image in (episode.images if episode.film else ())
            for sides in [block_size(image.height, image.width)]
        ],
    }
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    # Neither an end of the script nor a comment can begin.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _lane(name: str, actions: Sequence[str] | None) -> dict[str, object]:
    kind = "stems" if name == "reward" else "steps" if name.startswith("action") else "line"
    if name == "action" and actions:
        return {"name": name, "kind": kind, "names": list(actions)}
    return {"name": name, "kind": kind}


def _short(value: object, *, is_single: bool) -> object:
    """JSON with whole numbers as such, and floats of 32 bits with the digits that these need."""
    if isinstance(value, list):
        return [_short(each, is_single=is_single) for each in cast("list[object]", value)]
    if not isinstance(value, float):
        return value
    if value.is_integer() and abs(value) < _MOST_WHOLE:
        return int(value)
    return float(str(np.float32(value))) if is_single else value


# Runs and fields.


def _provenance(stores: Sequence[ReportedStore]) -> Iterator[str]:
    for store in stores:
        if len(stores) > 1:
            yield f"<h3>{escape(store.name)}</h3>"
        lines = dict(overview(store.summary, store.digest, store.seeds))
        yield _facts(lines, ("made by", "on", "seeds", "digest"))
        sessions = store.summary.sessions
        rows = [
            [
                run,
                str(session.get("began", ""))[:16].replace("T", " "),
                session.get("num_envs", ""),
                describe_seed(session),
                describe_maker(session),
            ]
            for run, session in enumerate(sessions[:_MOST_ROWS])
        ]
        yield _table(["run", "began", "envs", "seed", "policy"], rows, "The runs that wrote it")
        if len(sessions) > _MOST_ROWS:
            yield f'<p class="note">{len(sessions) - _MOST_ROWS:,} more runs.</p>'
        if store.seeds.seeded:
            yield (
                '<p class="note">Episodes that begin with a seed, and those that follow on them, '
                "can be played again: <code>stepwell verify --replay</code> compares every row "
                "with what is stored.</p>"
            )


def _fields(stores: Sequence[ReportedStore]) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for store in stores:
        fields = store.summary.spec.fields
        rows = [
            [
                one.name,
                one.dtype,
                " x ".join(map(str, one.shape)) or "one number",
                one.codec,
                f"{one.stack}, padding {one.stack_padding}" if one.stack > 1 else "",
            ]
            for one in fields[:_MOST_ROWS]
        ]
        found = _table(["field", "dtype", "shape", "codec", "stack"], rows, "")
        if len(fields) > _MOST_ROWS:
            found += f'<p class="note">{len(fields) - _MOST_ROWS:,} more fields.</p>'
        groups.setdefault(found, []).append(store.name)
    for found, names in groups.items():
        if len(groups) > 1:
            yield f"<h3>{escape(', '.join(names), _LONG)}</h3>"
        yield found


def _table(heading: Sequence[object], rows: Sequence[Sequence[object]], caption: str) -> str:
    head = "".join(
        f'<th scope="col"{_align(rows, place)}>{escape(name)}</th>' if name else "<td></td>"
        for place, name in enumerate(heading)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{_cell(cell)}</th>'
            if place == 0
            else f"<td{_align(rows, place)}>{_cell(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    titled = f"<caption>{escape(caption)}</caption>" if caption else ""
    # Focusable, so that it can be scrolled by keys where it is wider than the page.
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption or "Table")}">'
        f"<table>{titled}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _align(rows: Sequence[Sequence[object]], place: int) -> str:
    """The class of a column of numbers."""
    cells = [row[place] for row in rows]
    are_numbers = bool(cells) and all(is_number(cell) for cell in cells)
    return ' class="number"' if are_numbers and place else ""


def _cell(cell: object) -> Markup:
    return escape(number(cast("float", cell)) if is_number(cell) else cell, _LONG)


def _unstyled(markup: Markup) -> Markup:
    """The markup without inline styles, which the page's policy forbids; texts are escaped."""
    return Markup(_STYLE.sub("", markup))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _encoded_bytes(count: int) -> int:
    return -(-count // 3) * 4


def _rounded(value: float) -> str:
    return number(round(value, 1)) if math.isfinite(value) else str(value)


def _rounded_ratio(value: float) -> float:
    return round(value) if value >= 100 else float(f"{value:.3g}")
