"""A report: one HTML file that shows stores without a network, a server or other files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path

import numpy as np

from stepwell.buffers.curation.selection import EpisodeSelection
from stepwell.buffers.curation.stored_episode import StoredEpisode
from stepwell.buffers.pictures.encode import block_size, sprite, webp
from stepwell.buffers.pictures.image_fields import ImageField, image_fields
from stepwell.buffers.pictures.replacing import replacing
from stepwell.buffers.progress import Part, Progress, Status, format_bytes, progress_function
from stepwell.buffers.storage.disk.publish import check_complete, publish
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.view.curves import action_names, curve_names, curves, text_names
from stepwell.buffers.view.episode_table import EpisodeTable
from stepwell.buffers.view.histograms import ActionCounts, action_counts
from stepwell.buffers.view.render import frame_rate
from stepwell.buffers.view.report_page import (
    Film,
    ReportedEpisode,
    ReportedStore,
    film_bytes,
    ordinal,
    page,
    strip_bytes,
)
from stepwell.buffers.view.summary import digest_of, seeds_of, summary_of
from stepwell.buffers.whole_numbers import is_whole

__all__ = ["EPISODES", "MOST_BYTES", "ReportFile", "report_status", "write_report"]

EPISODES = "best:3,worst:3,longest:1"
MOST_BYTES = 5_000_000
_WORDS = ("best", "worst", "longest", "shortest", "first", "last")
_WORD = re.compile(rf"({'|'.join(_WORDS)})(?::([0-9]{{1,4}}))?")
_IDS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_MOST_EPISODES = 100
_MOST_STORES = 12
_MOST_FRAMES = 1 << 18  # of an episode
_MOST_CURVES = 12
_POINTS = (2_000, 1_000, 500, 250, 100)
_STRIP_FRAMES = 8
_STRIP_HEIGHTS = (96, 64, 48, 32)
_MARGIN = 1_000
_SPARSE = 32  # rows between two frames: they are read one by one then
_COUNTED_ROWS = 1 << 22  # whose actions are counted


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A report that was written.

    Args:
        path: The file.
        nbytes: Its size.
        stores: Number of stores in it.
        episodes: Number of episodes in these stores.
        playable: Number of episodes that can be watched in it.
        notes: What was left out so that the file stays small, one sentence each.
    """

    path: str
    nbytes: int
    stores: int
    episodes: int
    playable: int
    notes: tuple[str, ...]


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
    """Write a report about one store, or several that are compared, as one HTML file.

    It has a summary, the runs, charts of returns, lengths and actions, and some episodes that can
    be played in the browser, frame by frame with their exact pixels. It loads nothing from
    elsewhere. The same stores give the same bytes.

    Args:
        folders: The folder of a store, or several.
        out: The new file.
        episodes: The episodes to show of each store, separated by commas: ``best``, ``worst``,
            ``longest``, ``shortest``, ``first`` and ``last``, each with a number as in ``best:3``,
            and ids as in ``7`` or ``12-15``. ``none`` shows none.
        title: Heading of the page. None takes the names of the folders.
        max_bytes: Size of the file at most. Where it would be larger, only every second, fourth,
            ... frame of long episodes is in it, and a note says so.
        with_digest: Compute the digest of all rows, too; this reads everything.
        overwrite: Replace a file that is there.
        progress: True shows the progress; a function gets the number of episodes that were
            encoded, and of all.

    Raises:
        ValueError: The file exists, ``episodes`` is something else, or the page needs more than
            ``max_bytes`` even without frames; nothing was written.
        StoreNotFound: There is no store in a folder.

    Example:
        >>> import tempfile
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> folder = Path(tempfile.mkdtemp())
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.SequenceReplayBuffer(folder / "cartpole") as replay:
        ...     with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...         report = collector.collect(episodes=20)
        >>> made = write_report(folder / "cartpole", folder / "report.html", episodes="best:2")
        >>> made.playable, made.nbytes < 200_000
        (2, True)
    """
    paths = [Path(folders)] if isinstance(folders, str | Path) else list(map(Path, folders))
    if not 1 <= len(paths) <= _MOST_STORES:
        raise ValueError(
            f"folders: expected 1 to {_MOST_STORES} stores, got {len(paths)}; write several reports"
        )
    wanted = _parsed(episodes)
    target = Path(out)
    _check_new(target, overwrite=overwrite)
    with progress_function(progress, report_status) as tell, ExitStack() as stack:
        stores = [
            _Store(stack, path, name, wanted, with_digest=with_digest)
            for path, name in zip(paths, _names(paths), strict=True)
        ]
        _check_found(stores, wanted, episodes)
        counts = _counted_actions(stores)
        reported, empty = list[ReportedStore](), 0
        for points in _POINTS:
            reported = [store.reported(points) for store in stores]
            empty = len(page(reported, counts, title))
            if 2 * empty <= max_bytes:  # the other half is for frames
                break
        if empty > max_bytes:
            raise ValueError(
                f"max_bytes: expected at least {-(-empty // 1000)} kB for the page without frames, "
                f"got {format_bytes(max_bytes)}; allow more (--max-size), or choose fewer episodes"
            )
        room = max_bytes - empty
        while True:
            _add_films(stores, reported, room, tell)
            data = page(reported, counts, title)
            if len(data) <= max_bytes:
                break
            # What stands around the pictures took more than was reckoned with.
            room = max(0, room - (len(data) - max_bytes) - _MARGIN)
    _write(target, data, overwrite=overwrite)
    return ReportFile(
        str(target),
        len(data),
        len(stores),
        sum(len(store.table) for store in stores),
        sum(len(store.episodes) for store in reported),
        tuple(
            f"{store.name}, episode {one.id}: {one.note}"
            for store in reported
            for one in store.episodes
            if one.note
        ),
    )


def report_status(done: int, of: int) -> Status:
    """The progress of a report: episodes whose frames are encoded."""
    return Status([Part(f"{done:,} / {of:,} episodes")], done / of if of else None)


_Wanted = tuple[str, int] | range


def _parsed(text: str) -> list[_Wanted]:
    """The parts of ``episodes``.

    Example:
        >>> _parsed("best:3, longest,7-9")
        [('best', 3), ('longest', 1), range(7, 10)]
    """
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
                f"episodes: expected {', '.join(_WORDS)} with a number such as {EPISODES}, ids "
                f"such as 7,12-15, or none, got {part!r}; correct it"
            )
    count = sum(len(each) if isinstance(each, range) else each[1] for each in found)
    if count > _MOST_EPISODES:
        raise ValueError(
            f"episodes: expected at most {_MOST_EPISODES} of each store, got {count:,} in "
            f"{text!r}; choose fewer"
        )
    return found


def _names(paths: Sequence[Path]) -> list[str]:
    """The names of the folders, with numbers where two have the same."""
    names = [path.resolve().name or str(path) for path in paths]
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


class _Store:
    """A store that is reported.

    Args:
        stack: Closes it.
        path: Its folder.
        name: Its name on the page.
        wanted: The episodes to show.
        with_digest: Compute the digest of all rows.
    """

    def __init__(
        self,
        stack: ExitStack,
        path: Path,
        name: str,
        wanted: Sequence[_Wanted],
        *,
        with_digest: bool,
    ) -> None:
        check_complete(path)
        self.name = name
        self.summary = summary_of(path)
        self.seeds = seeds_of(path)
        self.digest = digest_of(path) if with_digest else None
        self.storage = stack.enter_context(DiskStorage.open(path, read_only=True))
        self.table = EpisodeTable(self.storage)
        self.table.read_all_returns()
        self.chosen = _chosen(self.table, wanted)
        self.images = image_fields(self.storage.spec)
        self.actions = action_names(self.storage.sessions, self.storage.spec)
        self.texts = text_names(self.storage.sessions, self.storage.spec)

    def reported(self, points: int) -> ReportedStore:
        """The facts about it that the page shows, without frames.

        Args:
            points: Points of each curve at most.
        """
        table = self.table
        with table.lock:
            return ReportedStore(
                self.name,
                self.summary,
                self.seeds,
                self.digest,
                table.returns,
                table.steps,
                table.ends,
                table.first_rows,
                [self._episode(place, why, points) for place, why in self.chosen.items()],
            )

    def _episode(self, place: int, why: Sequence[str], points: int) -> ReportedEpisode:
        table = self.table
        episode = table.episode(place)
        names = curve_names(self.storage.spec, self.texts)
        return ReportedEpisode(
            episode.id,
            episode.stream,
            episode.first_row,
            episode.rows,
            episode.steps,
            float(table.returns[place]),
            episode.end,
            tuple(why),
            episode.metadata,
            curves(episode, names[:_MOST_CURVES], points=points),
            frozenset(filter(self._is_single, names)),
            len(names),
            self.actions,
            frame_rate(self._session(episode.metadata)),
            self.images,
        )

    def _is_single(self, curve: str) -> bool:
        """True for the curves of a field of floats of 32 bits."""
        return any(
            field.dtype == "float32" and (curve == field.name or curve.startswith(f"{field.name}["))
            for field in self.storage.spec.fields
        )

    def _session(self, metadata: Mapping[str, object]) -> Mapping[str, object]:
        """Facts about the run that an episode is from; no facts where they are not known."""
        number, sessions = metadata.get("session"), self.storage.sessions
        if is_whole(number) and 0 <= number < len(sessions):
            return sessions[int(number)]
        return {}


def _chosen(table: EpisodeTable, wanted: Sequence[_Wanted]) -> dict[int, list[str]]:
    """The places of the wanted episodes in their order, each with what it was chosen for."""
    found: dict[int, list[str]] = {}
    for part in wanted:
        if isinstance(part, range):
            is_wanted = (table.ids >= part.start) & (table.ids < part.stop)
            for place in np.flatnonzero(is_wanted).tolist():
                found.setdefault(place, [])
            continue
        word, count = part
        if not count:
            continue
        for rank, place in enumerate(_ranked(table, word, count).tolist()):
            found.setdefault(place, []).append(f"{ordinal(rank + 1)} {word}" if rank else word)
    return found


def _ranked(table: EpisodeTable, word: str, count: int) -> np.ndarray:
    """The places of the best, longest, ... episodes; of all where none was recorded to its end."""
    every = np.arange(len(table))
    if word in ("first", "last"):
        return every[:count] if word == "first" else every[::-1][:count]
    is_top, sort = word in ("best", "longest"), "return" if word in ("best", "worst") else "steps"
    for include_cut in (False, True):
        choice = EpisodeSelection(
            top=count if is_top else None,
            bottom=None if is_top else count,
            sort=sort,
            include_cut=include_cut,
        )
        places = table.select(choice).places
        if len(places):
            break
    return table.order(places, sort, descending=is_top)


def _check_found(stores: Sequence[_Store], wanted: Sequence[_Wanted], text: str) -> None:
    """Refuse ids that no store has."""
    ids = [np.asarray(store.table.ids) for store in stores]
    for part in wanted:
        if isinstance(part, range) and not any(
            ((each >= part.start) & (each < part.stop)).any() for each in ids
        ):
            shown = f"{part.start}" if len(part) == 1 else f"{part.start}-{part.stop - 1}"
            most = max((int(each.max(initial=-1)) for each in ids), default=-1)
            raise ValueError(
                f"episodes: expected ids of stored episodes, got {shown} in {text!r}; the highest "
                f"stored id is {most}"
            )


def _counted_actions(stores: Sequence[_Store]) -> list[ActionCounts]:
    """Counts of the actions of all stores, by their names if these are the same."""
    names = stores[0].actions
    return action_counts(
        [(store.table, np.arange(len(store.table))) for store in stores],
        _COUNTED_ROWS,
        names if all(store.actions == names for store in stores) else None,
    )


def _add_films(
    stores: Sequence[_Store],
    reported: Sequence[ReportedStore],
    room: int,
    tell: Callable[[int, int], None] | None,
) -> None:
    """Encode the frames of the shown episodes, so that they take no more than ``room`` bytes."""
    films = [
        (episode, store.table, place)
        for store, page_store in zip(stores, reported, strict=True)
        for place, episode in zip(store.chosen, page_store.episodes, strict=True)
        if store.images
    ]
    # Short ones first: what they do not need is left for the longer ones.
    films.sort(key=lambda film: film[0].rows)
    for done, (episode, table, place) in enumerate(films):
        with table.lock:
            episode.film = _film(table.episode(place), episode.images, room // (len(films) - done))
        if episode.film is not None:
            room -= episode.film.nbytes
        if tell is not None:
            tell(done + 1, len(films))


def _film(episode: StoredEpisode, images: Sequence[ImageField], room: int) -> Film | None:
    """The frames of an episode in at most ``room`` bytes; None if not even two frames fit.

    Where all do not fit, every second, fourth, ... one is taken, and the last one.
    """
    step = 1 << max(0, ceil(log2(episode.rows / _MOST_FRAMES)))
    while step < 2 * episode.rows and room > 0:
        film = _encoded(episode, images, step, room)
        if isinstance(film, Film):
            return film
        # That part of the frames took all the room.
        step = max(2 * step, 1 << ceil(log2(step / film * 0.9)))
    return None


def _encoded(
    episode: StoredEpisode, images: Sequence[ImageField], step: int, room: int
) -> Film | float:
    """The frames of every ``step``-th row and the last; or the part of them that fits."""
    first, last = episode.first_row, episode.first_row + episode.rows - 1
    rows = np.unique(np.append(np.arange(first, last + 1, step), last))
    in_strip = np.unique(np.linspace(0, len(rows) - 1, min(_STRIP_FRAMES, len(rows))).astype(int))
    strip_rows = rows[in_strip]
    sizes = [block_size(image.height, image.width) for image in images]
    pending: list[list[np.ndarray]] = [[] for _ in images]
    strips: list[list[np.ndarray]] = [[] for _ in images]
    sheets: list[list[bytes]] = [[] for _ in images]
    for begin, stop, fields in _rows_of(episode, images, rows, min(a * b for a, b in sizes)):
        for place, image in enumerate(images):
            frames = image.pixels(fields[image.name])
            strips[place] += [
                frames[k] for k in np.flatnonzero(np.isin(rows[begin:stop], strip_rows))
            ]
            pending[place] += list(frames)
            most = sizes[place][0] * sizes[place][1]
            while len(pending[place]) >= most or (stop == len(rows) and pending[place]):
                sheets[place].append(sprite(np.stack(pending[place][:most])))
                del pending[place][:most]
        if film_bytes(sheets) > room:
            return stop / len(rows)
    film = Film(step, rows, tuple(map(tuple, sheets)), strip_rows, ())
    rest = room - film.nbytes
    for height in _STRIP_HEIGHTS:
        pictures = tuple(_strip(frames, height) for frames in strips)
        if strip_bytes(pictures) <= rest:
            return Film(step, rows, film.sheets, strip_rows, pictures)
    return film if rest >= 0 else 1.0


def _rows_of(
    episode: StoredEpisode, images: Sequence[ImageField], rows: np.ndarray, most: int
) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
    """Places of at most ``most`` of some rows, and their fields of images."""
    names = [image.name for image in images]
    step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
    if step < _SPARSE:
        place = 0
        for chunk in episode.chunks(most, names):
            stop = int(np.searchsorted(rows, chunk.first_row + chunk.rows))
            if stop > place:
                within = rows[place:stop] - chunk.first_row
                yield place, stop, {name: chunk.fields[name][within] for name in names}
            place = stop
        return
    for place, row in enumerate(rows.tolist()):
        yield place, place + 1, episode.read(row, row + 1, names)


def _strip(frames: Sequence[np.ndarray], height: int) -> tuple[bytes, ...]:
    """Some frames as pictures, made smaller if they are higher than ``height``."""
    import cv2

    tall, wide = frames[0].shape[:2]
    if tall > height:
        size = (max(1, round(wide * height / tall)), height)
        frames = [cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames]
    return tuple(map(webp, frames))


def _check_new(path: Path, *, overwrite: bool) -> None:
    if os.path.lexists(path) and not (overwrite and path.is_file()):
        other = ", or overwrite it (--overwrite)" if path.is_file() else ""
        raise ValueError(
            f"out: expected a new file, got {path}, which exists; choose another name{other}"
        )
    if not path.parent.is_dir():
        raise ValueError(
            f"out: expected a file in a folder that exists, got {path}; make {path.parent} first"
        )


def _write(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Write a file that gets its name when it is whole."""
    if not overwrite or not os.path.lexists(path):
        with publish(path, "a report", kind="file") as part:
            part.write_bytes(data)
        return
    with replacing(path) as part:
        part.write_bytes(data)
