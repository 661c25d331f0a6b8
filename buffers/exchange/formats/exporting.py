"""Writes the episodes of a replay as a data set in another library's format."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import NotEnoughData
from ...base.progress import Progress, Status, check_progress, episodes_status, progress_function
from ...curation.selection import choose
from ...curation.stored_episode import StoredEpisode, stored_episodes
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode import Episode
from ...storage.disk.publish import check_unused, disk_bytes, publish
from ..card import CARD, check_license, export_card
from .format import Format, Source, counted, format_of, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The result of an export, so far or planned.

    Args:
        format: Name of the format.
        path: Path of the data set.
        episodes: Episodes written.
        steps: Env steps written.
        chosen_episodes: Episodes that are to be written.
        chosen_steps: Env steps of them.
        disk_bytes: Bytes of the disk that the data set takes; 0 before the end.
        seconds: Wall time.
        notes: Notes for the user of the data set, one clause each.
        loading: Lines of Python that load it.
    """

    format: str
    path: Path
    episodes: int = 0
    steps: int = 0
    chosen_episodes: int
    chosen_steps: int
    disk_bytes: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    loading: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "path": str(self.path), "notes": list(self.notes)}


def export_episodes(
    replay: SequenceReplayBuffer,
    to: str | Format,
    out: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
    keep: Callable[[StoredEpisode], bool] | None = None,
    card: bool = False,
    license: str | None = None,
    dry_run: bool = False,
    progress: Progress[ExportReport] = None,
) -> ExportReport:
    """Write whole episodes as a data set of another library.

    It appears under its name when all of it is on the medium; until then it is in ``<name>.part``.
    After an error or Ctrl-C neither exists; files left by a killed process are removed by the
    next export. Existing files are never overwritten.

    Args:
        replay: The replay to export; it must not be written to meanwhile.
        to: Name of the format, such as ``"minari"``; `format_names` lists them. Or a `Format` of
            your own.
        out: Folder, file or, for Minari, id of the new data set.
        options: Options of the format by name; ``stepwell formats`` lists them.
        keep: Write only episodes for which this is true, for example an `EpisodeSelection`, which
            can also choose the best ones.
        card: Write a card into the data set's folder, ``README.md`` with a picture, as a hub shows
            it: contents, returns, fields, how it was made and how it is loaded.
        license: The licence of the data for the card, in the Hub's word: ``"cc-by-4.0"``.
        dry_run: Check everything, write nothing, and report what would be written.
        progress: True shows a line in a terminal or in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called after every episode with
            the report so far.

    Returns:
        The report.

    Raises:
        ValueError: The format cannot hold the rows, an option is invalid, something is at
            ``out`` already, or no episode is chosen.
        ImportError: A library that the format needs is not installed.
        NotEnoughData: The replay is empty.
        OSError: Something cannot be written.
        TypeError: ``progress`` is neither True nor a function.

    Example:
        >>> import tempfile
        >>> import gymnasium as gym
        >>> import numpy as np
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     collected = collector.collect(episodes=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_episodes(replay, "npz", f"{folder}/cartpole")
        ...     with np.load(f"{folder}/cartpole/000000.npz") as episode:
        ...         rows = len(episode["observations"]), len(episode["rewards"])
        >>> report.episodes, rows[0] - rows[1]
        (3, 1)
    """
    began = time.perf_counter()
    check_progress(progress)
    format_, chosen_options, place = checked_target(to, out, options)
    check_license(license)
    if (card and format_.kind != "folder") or (license is not None and not card):
        raise ValueError(
            f"card: expected a format that is a folder, got {format_.name!r}, which is a file; "
            f"choose another, or write it without a card"
            if card
            else f"license: expected none without a card, got {license!r}; ask for one (card=True, "
            f"--card)"
        )
    chosen, source, more_notes = _chosen(replay, keep)
    # A writer refuses what the format cannot hold, but makes no file until it begins: a dry run
    # stops between the two, and refuses what the run would.
    writer = format_.writer(source, chosen_options)
    report = ExportReport(
        format=format_.name,
        path=place,
        chosen_episodes=source.episodes,
        chosen_steps=source.steps,
        notes=(*writer.notes, *more_notes),
        loading=format_.loading(place, os.fspath(out)),
    )
    if dry_run:
        return replace(report, seconds=time.perf_counter() - began)
    kind, outside = format_.kind, replay.path
    with (
        progress_function(progress, export_status) as tell,
        _with_path(place),
        publish(place, "an export", kind=kind, outside=outside) as part,
        contextlib.closing(writer),
    ):
        writer.begin(part)
        for episode in _episodes(replay, chosen):
            writer.write(episode)
            report = counted(report, episode, began)
            if tell is not None:
                tell(report)
        writer.finish()
        if card:
            told = replace(report, notes=(*writer.notes, *more_notes))
            _write_card(replay, chosen, format_, license, part, told)
    return replace(
        report,
        disk_bytes=disk_bytes(place),
        seconds=time.perf_counter() - began,
        notes=(*writer.notes, *more_notes),
    )


def checked_target(
    to: str | Format, out: str | os.PathLike[str], options: Mapping[str, object] | None
) -> tuple[Format, Any, Path]:
    """The format of an export, its options, and where it goes, which is not in use."""
    format_ = format_of(to)
    if format_.export_options is None:
        raise ValueError(
            f"format: expected one that is written, got {format_.name!r}, which is only read; "
            f"choose another (see `stepwell formats`)"
        )
    chosen = parse_options(format_.export_options, options or {}, f"format {format_.name}")
    place = format_.place(os.fspath(out), chosen)
    check_unused(place, format_.kind)
    return format_, chosen, place


def export_status(report: ExportReport) -> Status:
    """The progress of an export."""
    total = report.chosen_steps, report.chosen_episodes
    return episodes_status(report.steps, report.episodes, total, report.seconds)


@contextlib.contextmanager
def _with_path(target: Path) -> Generator[None]:
    """Add the data set's path to disk errors: libraries write to files without a name."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        why = f"{os.strerror(error.errno)}: the data set was not made, and its files are removed"
        raise OSError(error.errno, why, error.filename or str(target)) from error


def _write_card(
    replay: SequenceReplayBuffer,
    chosen: frozenset[tuple[int, int]],
    format_: Format,
    license: str | None,
    part: Path,
    report: ExportReport,
) -> None:
    """Write the card of a data set whose files are in ``part`` for now."""
    own = part / CARD
    readme = own.read_text(encoding="utf-8") if own.exists() else None
    loading = report.loading  # with the data set in the current folder: others have no such path
    for parent in [*report.path.parents, *report.path.absolute().parents]:
        if parent.name:
            loading = loading.replace(f'"{parent}/', '"').replace(f'"{parent}"', '"."')
    files = export_card(
        replay.storage,
        chosen,
        format_,
        loading=loading,
        notes=report.notes,
        readme=readme,
        title=report.path.name,
        license=license,
    )
    for name, data in files.items():
        (part / name).write_bytes(data)


def _chosen(
    replay: SequenceReplayBuffer, keep: Callable[[StoredEpisode], bool] | None
) -> tuple[frozenset[tuple[int, int]], Source, list[str]]:
    """The chosen episodes by id and first row, the writer's source, and notes on the choice."""
    storage = replay.storage
    chosen: set[tuple[int, int]] = set()
    steps = transitions = 0
    choice = choose(stored_episodes(storage), keep)
    for episode, is_chosen in zip(stored_episodes(storage), choice.is_chosen, strict=True):
        if is_chosen:
            chosen.add((episode.id, episode.first_row))
            steps += episode.steps
            transitions += episode.rows - 1
    if not choice.is_chosen:
        raise NotEnoughData("export: expected at least one episode, got none; collect first")
    if not chosen:
        raise ValueError(
            f"none of {len(choice.is_chosen):,} episodes would be exported, expected at least one: "
            f"choose by other conditions{'; ' if choice.sentence else ''}{choice.sentence}"
        )
    source = Source(
        spec=replay.spec,
        sessions=storage.sessions,
        episodes=len(chosen),
        steps=steps,
        transitions=transitions,
    )
    notes = [choice.sentence] if choice.sentence else []
    if late := sum(first_row > 0 for _, first_row in chosen):
        notes.append(
            f"{late:,} of the episodes lost their first rows: they begin with the first that is "
            f"left, and their rewards do not add up to their returns"
        )
    return frozenset(chosen), source, notes


def _episodes(
    replay: SequenceReplayBuffer, chosen: frozenset[tuple[int, int]]
) -> Iterator[Episode]:
    """The chosen episodes, each read when it is requested."""
    for stored in stored_episodes(replay.storage):
        if (stored.id, stored.first_row) not in chosen:
            continue
        (chunk,) = stored.chunks(max_rows=stored.rows)
        yield Episode(
            replay.spec,
            stored.id,
            stored.stream,
            stored.first_row,
            stored.end,
            chunk.fields,
            stored.metadata,
        )
