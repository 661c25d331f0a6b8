"""Answers to the page's questions about the stores, as plain data."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...base.untrusted_json import text_for_all
from ...curation.selection import EpisodeSelection, format_ids
from ...curation.stored_episode import StoredEpisode
from ...pictures.encode import block_size, sprite, webp
from ...rows.episode import End
from ..curves import curves, values_at
from ..episode_table import end_word, order_of, shown
from ..histograms import action_counts, course, histogram
from ..render import film_strip, render
from .export import ClipMaker, Exports
from .query import FILTER_WORDS, BadRequest, QueryParameters, filter_command, selection_of, whole
from .stores import OpenStore, ServedStore, Stores

_FIXED = ("store", "id", "first_row", "stream", "steps", "return", "end")
_MOST_KEYS, _MOST_SESSIONS = 24, 50
_MOST_COUNT, _MOST_POINTS = 1_000, 4_096
_MOST_ROW = 10**15
_ACTION_ROWS = 200_000
_BINS, _TIMELINE_POINTS = 32, 500
_STRIP_FRAMES, _STRIP_SIDE = 8, 96  # pixels of the longer side of a frame
_MOST_FRAMES, _MOST_PIXELS, _MOST_SCALE = 5_000, 1 << 28, 16  # of a clip; pixels of all frames
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

_NOTHING: Mapping[str, object] = {
    "env": "",
    "steps": 0,
    "episodes": 0,
    "is_being_written": False,
    "returns_known": 0,
    "lost_chunks": 0,
    "fields": [],
    "actions": None,
    "curves": [],
    "curves_left_out": "",
    "metadata_keys": [],
    "sessions": [],
    "made_by": "",
    "tag": "",
}


class Missing(LookupError):
    """There is no such store, episode, field or block; the message is for the user."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The episodes of one store that a filter chose."""

    store: ServedStore
    opened: OpenStore
    places: np.ndarray
    sentence: str


class Answers:
    """Answers questions about the stores; each method takes checked words."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def stores(self) -> list[dict[str, object]]:
        """All stores: what they hold, and what the page needs to show it."""
        return [_store(each) for each in self._stores.stores]

    def rows(self, episodes: Sequence[tuple[int, int]]) -> tuple[list[str], list[list[object]]]:
        """Columns, and lines of the table of episodes by the number of a store and a place."""
        with self._chosen(QueryParameters((), ())) as chosen:
            keys = _keys(chosen)
            lines = [_row(chosen[number], place, keys) for number, place in episodes]
            return [*_FIXED, *keys], lines

    def episodes(self, words: QueryParameters) -> dict[str, object]:
        """One page of the table of episodes."""
        sort = words.text("sort") or "id"
        descending = words.choice("order", "asc", ("asc", "desc")) == "desc"
        start = words.whole("start", 0, 0, _MOST_ROW)
        count = words.whole("count", 100, 0, _MOST_COUNT)
        with self._chosen(words) as chosen:
            page = _page(chosen, sort, descending, start, count)
            keys = _keys(chosen)
            sentences = [each.sentence for each in chosen if each.sentence]
            return {
                "total": sum(len(each.opened.table) for each in chosen),
                "matching": sum(len(each.places) for each in chosen),
                "start": start,
                "sentence": "; ".join(dict.fromkeys(sentences)),
                "columns": [*_FIXED, *keys],
                "rows": [_row(chosen[number], place, keys) for number, place in page],
                "command": "\n".join(filter_command(each.store.path, words) for each in chosen),
            }

    def histograms(self, words: QueryParameters) -> dict[str, object]:
        """Counts of returns, lengths and actions of the episodes that a filter chooses."""
        # There is a list of counts for each store of the page; it is empty of those left out.
        with self._chosen(words) as chosen:
            found: dict[str, object] = {}
            for name, column in (("return", "returns"), ("steps", "steps")):
                bars = histogram(
                    [getattr(each.opened.table, column)[each.places] for each in chosen], _BINS
                )
                found[name] = {
                    "edges": bars.edges.tolist(),
                    "counts": self._of_every_store(chosen, bars.counts),
                    "labels": list(bars.labels),
                    "left_out": sum(bars.left_out),
                }
            names = [each.opened.actions for each in chosen]
            same = names[0] if names and all(each == names[0] for each in names) else None
            tables = [(each.opened.table, each.places) for each in chosen]
            actions = [
                {
                    "name": each.name,
                    "names": list(each.labels),
                    "counts": self._of_every_store(chosen, each.counts),
                    "rows_read": each.rows_read,
                    "of": each.rows,
                }
                for each in action_counts(tables, _ACTION_ROWS, same)
            ]
            return {**found, "action": actions[0] if actions else None, "actions": actions}

    def timeline(self, words: QueryParameters) -> dict[str, object]:
        """Returns and lengths of the chosen episodes in the order in which they were stored."""
        # Of more than 500 episodes consecutive ones are put together. Those that a writer may
        # continue are left out. There is an entry for each store of the page, perhaps None.
        with self._chosen(words) as chosen:
            ordered = [
                each.opened.table.as_stored(each.places, is_written=each.opened.is_being_written)
                for each in chosen
            ]
            total = max(map(len, ordered), default=0)
            count = min(_TIMELINE_POINTS, total)
            edges = np.arange(count + 1) * total // max(1, count)
            window = max(-(-total // _TIMELINE_POINTS), min(100, max(5, total // 10)))
            found: dict[str, list[object]] = {}
            for name, column in (("return", "returns"), ("steps", "steps")):
                found[name] = [None] * len(self._stores.stores)
                for each, places in zip(chosen, ordered, strict=True):
                    table = each.opened.table
                    keys = np.stack([table.ids[places], table.first_rows[places]], axis=1)
                    values = getattr(table, column)[places]
                    found[name][each.store.index] = course(values, keys, edges, window)
            return {"rows": edges[:-1].tolist(), "stop": total, "window": window, "curves": found}

    def _of_every_store(self, chosen: Sequence[_Chosen], counts: np.ndarray) -> list[list[int]]:
        lists: dict[int, list[int]] = {
            each.store.index: counts[number].tolist() for number, each in enumerate(chosen)
        }
        return [lists.get(store.index, []) for store in self._stores.stores]

    def episode(self, number: int, episode_id: int, words: QueryParameters) -> dict[str, object]:
        """All facts about one episode but its rows."""
        with self._episode(number, episode_id, words) as (opened, place, episode):
            metadata = opened.table.metadata(place)
            session = metadata.get("session")
            tag = opened.tag(place)
            return {
                "store": number,
                "id": episode.id,
                "stream": episode.stream,
                "first_row": episode.first_row,
                "rows": episode.rows,
                "steps": episode.steps,
                "return": episode.total_reward,
                "terminated": bool(int(episode.end) & End.TERMINATED),
                "truncated": bool(int(episode.end) & End.TRUNCATED),
                "cut": not episode.has_ended,
                "starts_late": episode.first_row > 0,
                "is_open": opened.is_growing(place),
                "metadata": shown(metadata),
                "session": session if isinstance(session, int) else None,
                "images": [
                    {**opened.image(index), "name": each.name, "tag": tag}
                    for index, each in enumerate(opened.images)
                ],
            }

    def curves(self, number: int, episode_id: int, words: QueryParameters) -> dict[str, object]:
        """Values of some rows."""
        points = words.whole("points", 1000, 1, _MOST_POINTS)
        with self._episode(number, episode_id, words) as (_, _, episode):
            begin, stop = _part_of(episode, words)
            try:
                return curves(episode, words.all("name"), begin, stop, points)
            except ValueError as error:
                raise BadRequest(f"name: {error}") from error

    def values(
        self, number: int, episode_id: int, row: int, words: QueryParameters
    ) -> dict[str, object]:
        """All values of one row, without its images."""
        with self._episode(number, episode_id, words) as (opened, _, episode):
            if not episode.first_row <= row < episode.first_row + episode.rows:
                raise Missing(f"episode {episode_id} has no row {row}")
            return values_at(episode, row, opened.texts)

    def sprite(
        self, number: int, episode_id: int, field: int, block: int, words: QueryParameters
    ) -> bytes:
        """A block of frames as one WebP image."""
        with self._episode(number, episode_id, words) as (opened, place, episode):
            if field >= len(opened.images):
                raise Missing(f"there is no image field {field}")
            image = opened.images[field]
            columns, rows = block_size(image.height, image.width)
            size = columns * rows
            stop = _shown_stop(episode, words, opened.tag(place))
            begin, end = max(block * size, episode.first_row), min((block + 1) * size, stop)
            if begin >= end:
                raise Missing(f"episode {episode_id} has no rows in block {block}")
            stored = episode.read(begin, end, [image.name])[image.name]
        pixels = image.pixels(stored)
        if begin > block * size:  # the rows before are no longer stored
            missing = np.zeros((begin - block * size, *pixels.shape[1:]), np.uint8)
            pixels = np.concatenate([missing, pixels])
        return sprite(pixels)

    def strip(self, number: int, episode_id: int, words: QueryParameters) -> bytes:
        """Some frames of an episode, small and side by side, as one WebP image."""
        with self._episode(number, episode_id, words) as (opened, _, episode):
            if not opened.images:
                raise Missing(f"the episodes of store {number} have no images")
            rows = range(episode.first_row, _shown_stop(episode, words, opened.tag()))
            strip = film_strip(episode, opened.images[0], rows, _STRIP_FRAMES, side=_STRIP_SIDE)
        return webp(strip.pixels)

    def clip(self, number: int, episode_id: int, words: QueryParameters) -> tuple[str, ClipMaker]:
        """A name of harmless characters, and what makes the clip: its rows are few enough."""
        store = self._store(number)
        with self._episode(number, episode_id, words) as (opened, _, episode):
            if not opened.images:
                raise Missing(f"the episodes of {store.name} have no images")
            image = opened.images[words.whole("field", 0, 0, len(opened.images) - 1)]
            begin, stop = _part_of(episode, words)
        scale = words.whole("scale", 1, 1, _MOST_SCALE)
        pixels = (stop - begin) * image.height * image.width * scale**2
        if stop - begin > _MOST_FRAMES or pixels > _MOST_PIXELS:
            most = min(_MOST_FRAMES, _MOST_PIXELS * (stop - begin) // pixels)
            raise BadRequest(
                f"stop: expected at most {most:,} rows at this scale, got {stop - begin:,}; choose "
                f"fewer, or run: stepwell render"
            )
        rows, fps = (begin, stop), words.real("fps", 0.1, 240)  # None plays in real time
        make = partial(
            render, store.path, episode_id, rows=rows, fps=fps, scale=scale, field=image.name
        )
        name = _NOT_IN_NAMES.sub("-", store.name).strip(".-")[:80] or "store"
        return f"{name}-episode-{episode_id}", make

    def ids(self, words: QueryParameters) -> str:
        """Ids of the chosen episodes as ``stepwell filter --episodes`` does, a line a store."""
        with self._chosen(words) as chosen:
            lines = [np.unique(each.opened.table.ids[each.places]).tolist() for each in chosen]
        return "".join(f"{format_ids(line, _MOST_ROW)}\n" for line in lines)

    def export(self, wish: object, exports: Exports) -> dict[str, object]:
        """Begin to write the chosen episodes of one store to a new one."""
        if not isinstance(wish, Mapping) or set(wish) - {"name", "filter", "store"}:
            raise BadRequest("expected name, filter and store, got something else")
        number = wish.get("store", 0)
        if isinstance(number, bool) or not isinstance(number, int):
            raise BadRequest("store: expected the number of a store, got something else")
        words = QueryParameters.of_json(wish.get("filter", {}), FILTER_WORDS)
        selection = selection_of(words)
        store = self._store(number)
        opened = store.opened
        with opened.reading():
            chosen = _select(store, opened, selection)
        return exports.begin(wish.get("name"), store, opened, chosen.places, selection)

    def _store(self, number: int) -> ServedStore:
        if not 0 <= number < len(self._stores.stores):
            raise Missing(f"there is no store {number}")
        return self._stores.stores[number]

    @contextmanager
    def _episode(
        self, number: int, episode_id: int, words: QueryParameters
    ) -> Generator[tuple[OpenStore, int, StoredEpisode]]:
        """A store, a place in its table and the episode there, which stay as they are meanwhile."""
        opened = self._store(number).opened
        with opened.reading():
            row = words.whole("first_row", -1, 0, _MOST_ROW)
            try:
                place = opened.table.find(episode_id, None if row < 0 else row)
            except KeyError as error:
                raise Missing(str(error.args[0])) from error
            yield opened, place, opened.table.episode(place)

    @contextmanager
    def _chosen(self, words: QueryParameters) -> Generator[list[_Chosen]]:
        """The episodes that a filter chooses, which stay the same until the end of the block."""
        # Stores that cannot be read are left out.
        selection = selection_of(words)
        numbers = [
            whole("store", text, 0, len(self._stores.stores) - 1) for text in words.all("store")
        ]
        with ExitStack() as stack:
            pairs: list[tuple[ServedStore, OpenStore]] = []
            for store in self._stores.stores:
                opened = store.now
                if opened is not None and (not numbers or store.index in numbers):
                    stack.enter_context(opened.lock)
                    if not opened.is_closed:
                        pairs.append((store, opened))
            yield [_select(store, opened, selection) for store, opened in pairs]


def _select(store: ServedStore, opened: OpenStore, selection: EpisodeSelection) -> _Chosen:
    if selection.is_empty:
        return _Chosen(store, opened, np.arange(len(opened.table)), "")
    found = opened.table.select(selection)
    return _Chosen(store, opened, found.places, found.sentence)


def _part_of(episode: StoredEpisode, words: QueryParameters) -> tuple[int, int]:
    """The first of the rows that are asked for, and the one after the last."""
    first, last = episode.first_row, episode.first_row + episode.rows
    begin = words.whole("begin", first, first, last - 1)
    return begin, words.whole("stop", last, begin + 1, last)


def _shown_stop(episode: StoredEpisode, words: QueryParameters, tag: str) -> int:
    """The row after the last one that the page shows; Missing if it shows another episode."""
    stop = episode.first_row + words.whole("rows", episode.rows, 1, _MOST_ROW)
    if words.text("tag") not in (None, tag) or stop > episode.first_row + episode.rows:
        raise Missing(f"episode {episode.id} has changed: open it again")
    return stop


def _store(store: ServedStore) -> dict[str, object]:
    """The facts about a store that the page shows."""
    facts: dict[str, object] = {
        **_NOTHING,
        "index": store.index,
        "name": shown(store.name),
        "path": str(store.path),
        "error": store.error,
    }
    opened = store.now
    if opened is None:
        return facts
    with opened.lock:
        if opened.is_closed:
            return facts
        table = opened.table
        return {
            **facts,
            **opened.about,
            "steps": int(table.steps.sum()),
            "episodes": len(table),
            "is_being_written": opened.is_being_written,
            "returns_known": table.returns_known,
            "lost_chunks": opened.storage.lost_chunks,
            "metadata_keys": table.metadata_keys(_MOST_KEYS),
            "tag": opened.tag(),
        }


def _keys(chosen: Sequence[_Chosen]) -> list[str]:
    """Keys of the metadata that get a column."""
    found = {key: None for each in chosen for key in each.opened.table.metadata_keys(_MOST_KEYS)}
    return sorted(key for key in found if key not in _FIXED)[:_MOST_KEYS]


def _row(chosen: _Chosen, place: int, keys: Sequence[str]) -> list[object]:
    table = chosen.opened.table
    total = float(table.returns[place])
    is_known = total == total or table.returns_known == len(table)
    metadata = table.metadata(place) if keys else {}
    return [
        chosen.store.index,
        int(table.ids[place]),
        int(table.first_rows[place]),
        int(table.streams[place]),
        int(table.steps[place]),
        total if is_known else None,
        end_word(int(table.ends[place])),
        *(shown(metadata.get(key), 0) for key in keys),
    ]


def _page(
    chosen: Sequence[_Chosen], sort: str, descending: bool, start: int, count: int
) -> list[tuple[int, int]]:
    """A part of the sorted episodes: the number of a store in the list, and a place there."""
    # Equal ones stay in the order of the stores, and of their tables.
    if not chosen:
        return []
    numbers = np.repeat(np.arange(len(chosen)), [len(each.places) for each in chosen])
    if sort == "store":
        values = numbers
    else:
        values = np.concatenate([each.opened.table.column(sort, each.places) for each in chosen])
    page = order_of(values, descending=descending)[start : start + count]
    places = np.concatenate([each.places for each in chosen])[page]
    return [*zip(numbers[page].tolist(), places.tolist(), strict=True)]


def json_bytes(value: object) -> bytes:
    """The value as JSON; numbers that are not finite become the texts "nan", "inf" and "-inf"."""
    # All characters are ASCII, and no "<" is among them, so that no reader takes it for HTML.
    return text_for_all(value, (",", ":")).replace("<", "\\u003c").encode("ascii")
