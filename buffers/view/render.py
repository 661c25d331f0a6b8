"""Clips and film strips of stored episodes, as files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np

from ..base.number_checks import check_whole, is_whole
from ..base.progress import Part, Progress, Status, check_progress, progress_function
from ..base.untrusted_json import mapping_of
from ..curation.stored_episode import StoredEpisode
from ..pictures.encode import (
    GIF_FPS,
    LEAST_FPS,
    MOST_FPS,
    Mp4Writer,
    animation,
    check_fps,
    most_frames,
    png,
    replacing,
)
from ..pictures.film_strip import FilmStrip, check_frames, check_scale, scaled
from ..pictures.image_fields import ImageField, image_field, image_fields
from ..replay.replay import SequenceReplayBuffer
from ..storage.disk.publish import publish
from ..storage.field_locator import RowCopier
from ..storage.joined import ID_BITS, JoinedStorage
from ..storage.protocol import Storage
from .episode_table import RANKS, EpisodeTable

# The kind of a file of pictures is the ending of its name: a clip, or, for png, a film strip.
_Kind = Literal["mp4", "gif", "webp", "png"]
_KINDS = get_args(_Kind)

_DEFAULT_FPS = 30  # where a store does not say how fast its env plays, as in gymnasium
_CONSOLE_FPS = 60  # of the Atari 2600, whose envs declare 30, and of the NES
_MOST_SKIP = 10_000
_READ_PIXELS = 1 << 22  # at a time; of float64 they take eight times as many bytes
_MOST_HEADS = 20  # named in a message
_CONSOLES = ("make_atari", "make_nes", "NesEnv")  # makers of envs


@dataclass(frozen=True, slots=True)
class RenderReport:
    """The file that `render` has written."""

    path: Path
    episode: int
    field: str
    other_fields: tuple[str, ...]  # of images, too
    rows: Sequence[int]  # of the episode, as they are shown
    fps: float | None  # rows a second; None for a film strip
    height: int  # in pixels, before an MP4 makes it even
    width: int
    nbytes: int

    def to_json(self) -> dict[str, object]:
        """Plain data; of the rows their number, the first and the last one."""
        rows = {"rows": len(self.rows), "first_row": self.rows[0], "last_row": self.rows[-1]}
        others = list(self.other_fields)
        return {**asdict(self), "path": str(self.path), "other_fields": others, **rows}


def render(
    source: SequenceReplayBuffer | str | os.PathLike[str],
    episode: int | str,
    out: str | os.PathLike[str],
    *,
    rows: tuple[int | None, int | None] | None = None,
    fps: float | Fraction | None = None,
    scale: int = 1,
    field: str | None = None,
    frames: int = 8,
    overwrite: bool = False,
    progress: Progress[int, int] = None,
) -> RenderReport:
    """Write an episode's images to a file: a clip, or a film strip; `stepwell render` in Python."""
    # A clip shows each row once, from the reset to the final observation. The frames of a WebP or
    # GIF are held in memory, so their number is bounded; an MP4 is written as it is made. The file
    # appears when it is complete; after an error there is none.
    check_progress(progress)
    target = Path(out)
    # What the arguments alone tell is refused before the store is opened, which may take long.
    kind = cast("_Kind", target.suffix.lower().removeprefix("."))
    if kind not in _KINDS:
        raise ValueError(
            f"out: expected a name that ends in {', '.join(f'.{each}' for each in _KINDS)}, got "
            f"{target.name!r}; choose one of them"
        )
    if not isinstance(episode, str):
        check_whole("episode", episode, 0)
    elif episode not in RANKS:
        raise ValueError(f"episode: expected an id, or {', '.join(RANKS)}, got {episode!r}")
    if fps is not None:
        check_fps(fps)
    check_new_file(target, overwrite)
    opened: AbstractContextManager[SequenceReplayBuffer] = (
        nullcontext(source)
        if isinstance(source, SequenceReplayBuffer)
        else SequenceReplayBuffer.open(source, read_only=True)
    )
    with opened as replay:
        storage = replay.storage
        image = image_field(storage.spec, field)
        if isinstance(episode, str):
            episode = _ranked(storage, episode)
        stored, begin, stop = _part_of(storage, int(episode), rows)
        rate = frame_rate(_session_of(storage, stored)) if fps is None else Fraction(fps)
        with new_file(target, "a clip", overwrite) as part:
            if kind == "png":
                check_frames(image, frames, scale)
                strip = film_strip(stored, image, range(begin, stop), frames, scale)
                part.write_bytes(png(strip.pixels))
                shown: Sequence[int] = strip.rows
                height, width = strip.pixels.shape[:2]
            else:
                check_scale(image, scale)
                shown = range(begin, stop)
                height, width = image.height * scale, image.width * scale
                with progress_function(progress, frames_status()) as report:
                    pixels = _frames(stored, image, shown, scale, report)
                    _write_clip(
                        part, kind, pixels, (len(shown), height, width, image.channels), rate
                    )
            nbytes = part.stat().st_size
        others = (other.name for other in image_fields(storage.spec) if other.name != image.name)
        shown_fps = min(float(rate), GIF_FPS) if kind == "gif" else float(rate)
        return RenderReport(
            path=target,
            episode=stored.id,
            field=image.name,
            other_fields=tuple(others),
            rows=shown,
            fps=None if kind == "png" else shown_fps,
            height=height,
            width=width,
            nbytes=nbytes,
        )


def _ranked(storage: Storage, word: str) -> int:
    """The id of the best, longest, ... episode."""
    with closing(EpisodeTable(storage)) as table:
        places = table.ranked(word, 1)
        if not len(places):
            raise ValueError(f"episode: expected a store with episodes for {word!r}, got none")
        return int(table.ids[places[0]])


def film_strip(
    episode: StoredEpisode,
    image: ImageField,
    rows: range,
    frames: int,
    scale: int = 1,
    side: int | None = None,
) -> FilmStrip:
    """Frames that are spread evenly over some rows; larger ones are reduced to ``side`` pixels."""
    # The first and the last row are among them, and few rows of a long episode are read.
    spaced = np.linspace(rows[0], rows[-1], min(frames, len(rows)))
    shown = np.rint(spaced).astype(np.int64).tolist()
    pixels: list[np.ndarray] = []
    for row in shown:
        (frame,) = image.pixels(episode.read(row, row + 1, [image.name])[image.name])
        pixels.append(frame if side is None else _reduced(frame, side))
    return FilmStrip.of(np.stack(pixels), shown, scale)


def _reduced(frame: np.ndarray, side: int) -> np.ndarray:
    """A frame whose sides have at most ``side`` pixels, each the mean of those in its place."""
    import cv2

    height, width = frame.shape[:2]
    if (most := max(height, width)) <= side:
        return frame
    size = max(1, round(width * side / most)), max(1, round(height * side / most))
    return np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA))


def frame_rate(session: Mapping[str, object]) -> Fraction:
    """Rows a second at which episodes of a session play in real time."""
    # It is the rate that the env declares, 60 a second for the consoles of Atari and NES games,
    # divided by the frames that a step skips. Where the session does not say, it is 30.
    recipe = mapping_of(session.get("recipe"))
    declared, skip = session.get("render_fps"), recipe.get("frame_skip", 1)
    name = str(recipe.get("id"))
    is_ale = name.startswith("ALE/") or "NoFrameskip-v" in name
    is_console = recipe.get("maker") in _CONSOLES or is_ale
    rate = Fraction(_DEFAULT_FPS)
    if isinstance(declared, (int, float)) and LEAST_FPS <= declared <= MOST_FPS:
        rate = Fraction(declared).limit_denominator(1001)
    is_skip = is_whole(skip) and 1 <= skip <= _MOST_SKIP
    found = (Fraction(_CONSOLE_FPS) if is_console else rate) / (int(skip) if is_skip else 1)
    return max(found, Fraction(LEAST_FPS).limit_denominator(1001))


def frames_status() -> Callable[[int, int], Status]:
    """The progress of a clip: a function of the frames that are written, and of all."""
    began = time.perf_counter()

    def status(done: int, total: int) -> Status:
        parts = [Part(f"{done:,} / {total:,} frames")]
        return Status(parts, done / total, time.perf_counter() - began)

    return status


def _part_of(
    storage: Storage, number: int, rows: tuple[int | None, int | None] | None
) -> tuple[StoredEpisode, int, int]:
    """An episode, the first row to show and the one after the last."""
    index = storage.index
    begin, stop = rows or (None, None)
    heads = [index.record(position).head for position in index.tails_of(number)]
    head = None
    if len(heads) > 1:
        if begin is None:
            raise ValueError(
                f"rows: expected a first row, as episode {number} is stored in parts, which begin "
                f"with the rows {', '.join(map(str, heads[:_MOST_HEADS]))}, and chunks between "
                f"them are lost, got none; give one"
            )
        head = max((each for each in heads if each <= begin), default=heads[0])
    stored = StoredEpisode(storage, RowCopier(storage), index.tail_of(number, head))
    first, last = stored.first_row, stored.first_row + stored.rows
    begin = first if begin is None else begin
    stop = last if stop is None else stop
    if not (is_whole(begin) and is_whole(stop) and first <= begin < stop <= last):
        raise ValueError(
            f"rows: expected rows of episode {number} from {first} to {last}, the end excluded, "
            f"got {begin}:{stop}; give others"
        )
    return stored, int(begin), int(stop)


def _session_of(storage: Storage, episode: StoredEpisode) -> Mapping[str, object]:
    """Facts about the run that an episode is from; no facts where they are not known."""
    if isinstance(storage, JoinedStorage):
        storage = storage.storages[episode.id >> ID_BITS]
    number, sessions = episode.metadata.get("session"), storage.sessions
    if is_whole(number) and 0 <= number < len(sessions):
        return sessions[int(number)]
    return sessions[0] if len(sessions) == 1 else {}


def _frames(
    episode: StoredEpisode,
    image: ImageField,
    rows: range,
    scale: int,
    report: Callable[[int, int], None] | None,
) -> Iterator[np.ndarray]:
    """The frames of some rows, which are read in parts."""
    step = max(1, _READ_PIXELS // (image.height * image.width * image.channels))
    done = 0
    for begin in range(rows.start, rows.stop, step):
        values = episode.read(begin, min(begin + step, rows.stop), [image.name])[image.name]
        for pixels in image.pixels(values):
            yield scaled(pixels, scale)
            done += 1
            if report is not None:
                report(done, len(rows))


def _write_clip(
    path: Path,
    kind: Literal["mp4", "gif", "webp"],
    frames: Iterable[np.ndarray],
    shape: tuple[int, int, int, int],  # of all frames together
    fps: Fraction,
) -> None:
    """Write frames as a clip; a file that exists is replaced."""
    if kind != "mp4":
        if shape[0] > (most := most_frames(kind, *shape[1:])):
            raise ValueError(
                f"rows: expected at most {most:,} of {shape[1]} x {shape[2]} pixels in a .{kind} "
                f"file, which is made in memory, got {shape[0]:,}; give fewer, a smaller scale, or "
                f"write an .mp4"
            )
        path.write_bytes(animation(frames, fps, kind))
        return
    video = Mp4Writer(path, fps)
    try:
        for pixels in frames:
            video.add(pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, 2))
    except BaseException:
        video.abort()
        raise
    video.close()


def check_new_file(out: Path, overwrite: bool) -> None:
    """Refuse a path that is in use, but for a file that is to be overwritten."""
    if os.path.lexists(out) and not (overwrite and out.is_file()):
        other = ", or overwrite it (--overwrite)" if out.is_file() else ""
        raise ValueError(
            f"out: expected a new file, got {out}, which exists; choose another name{other}"
        )


@contextmanager
def new_file(target: Path, doing: str, overwrite: bool) -> Generator[Path]:
    """A path whose file gets the target's name if the block succeeds, else is removed."""
    if not overwrite or not os.path.lexists(target):
        with publish(target, doing, kind="file") as part:
            yield part
        return
    with replacing(target) as part:
        yield part
