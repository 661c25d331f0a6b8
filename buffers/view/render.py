"""Clips and film strips of stored episodes, as files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

import numpy as np

from stepwell.buffers.curation.stored_episode import StoredEpisode
from stepwell.buffers.pictures.changes import LEAST_FPS, MOST_FPS, check_fps
from stepwell.buffers.pictures.encode import WebpWriter, png
from stepwell.buffers.pictures.film_strip import FilmStrip, check_frames, check_scale, scaled
from stepwell.buffers.pictures.gif import GIF_FPS, GifWriter
from stepwell.buffers.pictures.image_fields import ImageField, image_field, image_fields
from stepwell.buffers.pictures.mp4 import Mp4Writer
from stepwell.buffers.pictures.replacing import replacing
from stepwell.buffers.progress import Part, Progress, Status, check_progress, progress_function
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.storage.disk.publish import publish
from stepwell.buffers.storage.field_locator import RowCopier
from stepwell.buffers.storage.joined import ID_BITS, JoinedStorage
from stepwell.buffers.storage.protocol import Storage
from stepwell.buffers.whole_numbers import check_whole, is_whole

__all__ = [
    "DEFAULT_FPS",
    "KINDS",
    "Clip",
    "Kind",
    "RenderReport",
    "frame_rate",
    "render",
    "write_clip",
]

Kind = Literal["mp4", "gif", "webp", "png"]
"""The kind of a file of pictures: a clip, or, for png, a film strip."""

KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, which are the endings of the files' names, too."""

DEFAULT_FPS = 30
"""Rows a second where a store does not say how fast its env plays, as in gymnasium."""

_CONSOLE_FPS = 60  # of the Atari 2600, whose envs declare 30, and of the NES
_MOST_SKIP = 10_000
_READ_PIXELS = 1 << 22  # at a time; of float64 they take eight times as many bytes
_MOST_HEADS = 20  # named in a message
_CONSOLES = ("make_atari", "make_nes", "NesEnv")  # makers of envs


class Clip(NamedTuple):
    """The clip that `write_clip` has written.

    Args:
        rows: Rows of the episode that are shown, in order.
        fps: Rows a second; None for a film strip.
        height: Height of the picture in pixels, before an MP4 makes it even.
        width: Its width.
    """

    rows: Sequence[int]
    fps: float | None
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class RenderReport:
    """The file that `render` has written.

    Args:
        path: The file.
        episode: Id of the episode.
        field: Name of the field that is shown.
        other_fields: Names of the other fields of images.
        rows: See `Clip`.
        fps: See `Clip`.
        height: See `Clip`.
        width: See `Clip`.
        nbytes: Bytes of the file.
    """

    path: Path
    episode: int
    field: str
    other_fields: tuple[str, ...]
    rows: Sequence[int]
    fps: float | None
    height: int
    width: int
    nbytes: int

    def to_json(self) -> dict[str, object]:
        """Plain data; of the rows their number, the first and the last one."""
        rows = {"rows": len(self.rows), "first_row": self.rows[0], "last_row": self.rows[-1]}
        others = list(self.other_fields)
        return {**asdict(self), "path": str(self.path), "other_fields": others, **rows}


def render(
    source: SequenceReplayBuffer | str | os.PathLike[str],
    episode: int,
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
    """Write an episode's images to a file: a clip, or a film strip.

    A clip shows each row once, from the reset to the final observation. WebP is exact; GIF is, too,
    where a frame has at most 256 colours; MP4 (``pip install 'stepwell[video]'``) is smaller, with
    no visible loss. PNG is a film strip of evenly spaced frames, exact. The file appears when it is
    complete; after an error there is none.

    Args:
        source: A replay, or the folder of a store, which is only read.
        episode: Id of the episode.
        out: The file; its ending says what it is: ``.mp4``, ``.gif``, ``.webp`` or ``.png``.
        rows: First row and the one after the last, counted from the reset; None for the border.
        fps: Rows a second; None plays in real time as far as the store says how fast that is
            (frames a second of the env, less those that it skips), else 30 a second. A GIF plays
            at most 50.
        scale: Pixels on each side of a stored pixel: they stay sharp.
        field: Name of the field of images; None takes the first one.
        frames: Frames of a film strip, from 1 to 256.
        overwrite: Replace an existing file.
        progress: True shows a display, a function gets the rows that are done and those of all.

    Raises:
        ValueError: An argument is out of range, the file exists, no such episode or rows are
            stored, or the field, or every field, is no image; nothing was written.
        ImportError: MP4, and PyAV is not installed.
        StepwellError: There is no store, or it is damaged.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> import stepwell as sw
        >>> folder = tempfile.mkdtemp()
        >>> envs = sw.make_atari("Pong", num_envs=1, backend="python")
        >>> with sw.SequenceReplayBuffer(f"{folder}/pong", seed=0) as replay:
        ...     with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...         report = collector.collect(steps=40)
        >>> made = render(f"{folder}/pong", 0, f"{folder}/clip.webp", rows=(10, 30), scale=2)
        >>> len(made.rows), made.fps, made.height, made.width
        (20, 15.0, 168, 168)
    """
    check_progress(progress)
    target = Path(out)
    kind = cast("Kind", target.suffix.lower().removeprefix("."))
    if kind not in KINDS:
        raise ValueError(
            f"out: expected a name that ends in {', '.join(f'.{each}' for each in KINDS)}, got "
            f"{target.name!r}; choose one of them"
        )
    check_whole("episode", episode, 0)
    if fps is not None:
        check_fps(fps)
    if os.path.lexists(target) and not (overwrite and target.is_file()):
        raise ValueError(
            f"out: expected a new file, got {target}, which exists; choose another name"
            + (", or overwrite it (--overwrite)" if target.is_file() else "")
        )
    with _opened(source) as replay:
        storage = replay.storage
        image = image_field(storage.spec, field)
        stored, begin, stop = _part_of(storage, int(episode), rows)
        rate = frame_rate(_session_of(storage, stored)) if fps is None else Fraction(fps)
        with _new_file(target, overwrite) as part:
            clip = write_clip(
                *(stored, image, part, kind),
                rows=range(begin, stop),
                fps=rate,
                scale=scale,
                frames=frames,
                progress=progress,
            )
            nbytes = part.stat().st_size
        others = (other.name for other in image_fields(storage.spec) if other.name != image.name)
        return RenderReport(
            path=target,
            episode=stored.id,
            field=image.name,
            other_fields=tuple(others),
            rows=clip.rows,
            fps=clip.fps,
            height=clip.height,
            width=clip.width,
            nbytes=nbytes,
        )


def write_clip(
    episode: StoredEpisode,
    image: ImageField,
    path: Path,
    kind: Kind,
    *,
    rows: range,
    fps: Fraction,
    scale: int = 1,
    frames: int = 8,
    progress: Progress[int, int] = None,
) -> Clip:
    """Write some rows of an episode as a file of pictures; one that exists is replaced.

    Args:
        episode: The episode.
        image: The field to show.
        path: The file.
        kind: What to write.
        rows: Rows, counted from the reset.
        fps: Rows a second.
        scale: See `render`.
        frames: See `render`.
        progress: See `render`.

    Raises:
        ValueError: The rows are not stored, or the picture is too large.
        ImportError: MP4, and PyAV is not installed.
        StoreCorrupt: Stored bytes are damaged.
    """
    names = [image.name]
    if kind == "png":
        check_frames(image, frames, scale)
        spaced = np.linspace(rows[0], rows[-1], min(frames, len(rows)))
        shown = np.rint(spaced).astype(np.int64).tolist()
        stored = [episode.read(row, row + 1, names)[image.name] for row in shown]
        strip = FilmStrip.of(image.pixels(np.concatenate(stored)), shown, scale)
        path.write_bytes(png(strip.pixels))
        return Clip(strip.rows, None, *strip.pixels.shape[:2])
    check_scale(image, scale)
    step = max(1, _READ_PIXELS // (image.height * image.width * image.channels))
    done = 0
    with progress_function(progress, frames_status()) as report, _writer(path, kind, fps) as add:
        for begin in range(rows.start, rows.stop, step):
            values = episode.read(begin, min(begin + step, rows.stop), names)[image.name]
            for pixels in image.pixels(values):
                add(scaled(pixels, scale))
                done += 1
                if report is not None:
                    report(done, len(rows))
    rate = min(float(fps), GIF_FPS) if kind == "gif" else float(fps)
    return Clip(rows, rate, image.height * scale, image.width * scale)


def frame_rate(session: Mapping[str, object]) -> Fraction:
    """Rows a second at which episodes of a session play in real time.

    It is the rate that the env declares, 60 a second for the consoles of Atari and NES games,
    divided by the frames that a step skips. Where the session does not say, it is 30.

    Args:
        session: Facts about the run, as in ``replay.sessions``; they are checked.

    Example:
        >>> frame_rate({"recipe": {"maker": "make_atari", "frame_skip": 4}})
        Fraction(15, 1)
        >>> frame_rate({"recipe": {"maker": "make_vec", "id": "Reacher-v5"}, "render_fps": 50})
        Fraction(50, 1)
        >>> frame_rate({})
        Fraction(30, 1)
    """
    recipe = session.get("recipe")
    recipe = recipe if isinstance(recipe, dict) else {}
    declared, skip = session.get("render_fps"), recipe.get("frame_skip", 1)
    is_console = recipe.get("maker") in _CONSOLES or _is_ale(recipe.get("id"))
    rate = Fraction(DEFAULT_FPS)
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


def _is_ale(name: object) -> bool:
    """True for the id of an Atari env."""
    return isinstance(name, str) and (name.startswith("ALE/") or "NoFrameskip-v" in name)


@contextmanager
def _opened(
    source: SequenceReplayBuffer | str | os.PathLike[str],
) -> Generator[SequenceReplayBuffer]:
    """The replay, or that of a folder, which is closed again."""
    if isinstance(source, SequenceReplayBuffer):
        yield source
    else:
        with SequenceReplayBuffer.open(source, read_only=True) as replay:
            yield replay


def _part_of(
    storage: Storage, number: int, rows: tuple[int | None, int | None] | None
) -> tuple[StoredEpisode, int, int]:
    """An episode, the first row to show and the one after the last.

    Raises:
        ValueError: There is no such episode, or these rows of it are not stored together.
    """
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


@contextmanager
def _writer(path: Path, kind: Kind, fps: Fraction) -> Generator[Callable[[np.ndarray], None]]:
    """A function that adds a frame to a file."""
    if kind == "mp4":
        video = Mp4Writer(path, fps)
        try:
            yield lambda pixels: video.add(
                pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, 2)
            )
        except BaseException:
            video.abort()
            raise
        video.close()
    else:
        with path.open("wb") as file:
            clip = (WebpWriter if kind == "webp" else GifWriter)(file, fps)
            yield clip.add
            clip.close()


@contextmanager
def _new_file(target: Path, overwrite: bool) -> Generator[Path]:
    """A path whose file gets the target's name if the block succeeds, else is removed."""
    if not overwrite or not os.path.lexists(target):
        with publish(target, "a clip", kind="file") as part:
            yield part
        return
    with replacing(target) as part:
        yield part
