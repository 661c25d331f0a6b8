"""Reads a data set in another library's format into a new replay."""

from __future__ import annotations

import contextlib
import datetime
import dis
import os
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, cast

from ...base.errors import StepwellError
from ...base.progress import Progress, Status, check_progress, episodes_status, progress_function
from ...base.untrusted_files import GivenFiles
from ...curation.episode_writer import EpisodeWriter, check_new
from ...replay.replay import SequenceReplayBuffer
from ...rows.episode import Episode
from ...spec.spec import Spec
from .format import Format, Reader, counted, format_of, parse_options

_OWN: Final = Path(__file__).parents[2]  # the folder "buffers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """The result of an import, so far or planned.

    Args:
        format: Name of the format.
        source: Path of the data set.
        episodes: Episodes stored; in a dry run, the episodes that passed the checks.
        steps: Env steps of them.
        source_episodes: Episodes of the data set, if recorded.
        source_steps: Env steps of the data set, if recorded.
        raw_bytes: Bytes of the rows, uncompressed.
        stored_bytes: Bytes of the same rows as they are stored now.
        seconds: Wall time.
        digest: Fingerprint of the rows: that of the store which the data set was exported from,
            if it was exported whole, and from Stepwell.
        notes: Limitations of the import, one clause each.
        fields: Description of each row's fields.
    """

    format: str
    source: Path
    episodes: int = 0
    steps: int = 0
    source_episodes: int | None
    source_steps: int | None
    raw_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    digest: str = ""
    notes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        lists = {"notes": list(self.notes), "fields": list(self.fields)}
        return {**asdict(self), "source": str(self.source), **lists}


def import_episodes(
    from_: str | Format,
    source: str | os.PathLike[str],
    replay: SequenceReplayBuffer,
    *,
    options: Mapping[str, object] | None = None,
    facts: Mapping[str, object] | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
    progress: Progress[ImportReport] = None,
) -> ImportReport:
    """Read a data set of another library into a new replay, in RAM or in a folder.

    A folder appears when all is read and on the medium: after an error, Ctrl-C or a kill it is not
    there.

    Args:
        from_: Name of the format, such as ``"minari"``; `format_names` lists them. Or a `Format`
            of your own.
        source: Folder, file or, for Minari, id of the data set; it is only read.
        replay: A new, empty replay: ``SequenceReplayBuffer(path)``.
        options: Options of the format by name; ``stepwell formats`` lists them.
        facts: JSON-able facts to note with the rows.
        max_bytes: Memory that one episode of the data set may unpack to; None for half of the
            free memory. Larger episodes are rejected before they are unpacked.
        dry_run: Read and check all episodes, store nothing, and report.
        progress: True shows a line in a terminal or in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called after every episode with
            the report so far.

    Returns:
        The report. Its ``notes`` list the information that the data set does not have.

    Raises:
        ValueError: The replay is in use, the data set is something else, holds what Stepwell has
            no place for, is damaged, or needs more memory than ``max_bytes``.
        FileNotFoundError: There is no such data set.
        ImportError: A library that the format needs is not installed.

    After an error or Ctrl-C a replay in RAM holds the episodes imported so far.

    A data set may be untrusted: no code in it is run, nothing is unpickled, no file outside of it
    is opened, and its metadata are checked before they are used.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import stepwell as sw
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(
        ...         f"{folder}/mine.npz",
        ...         observations=np.zeros((4, 2), np.float32),
        ...         actions=np.zeros(3, np.int64),
        ...         rewards=np.ones(3),
        ...         terminations=np.array([False, False, True]),
        ...         truncations=np.zeros(3, bool),
        ...     )
        ...     replay = sw.SequenceReplayBuffer(seed=0)
        ...     report = import_episodes("npz", folder, replay)
        >>> report.episodes, report.steps, replay.sample_transitions(2).observation.shape
        (1, 3, (2, 2))
    """
    began = time.perf_counter()
    check_progress(progress)
    format_ = format_of(from_)
    chosen_options = parse_options(format_.import_options, options or {}, f"format {format_.name}")
    check_new(replay)
    place = format_.place(os.fspath(source), chosen_options)
    files = GivenFiles(place, max_bytes)
    with _damage_as_value_error(format_.name, place):
        opened = format_.reader(files, chosen_options)
        _check_spec(opened.spec, place)
        rows = [field.row_bytes * field.stack for field in opened.spec.fields]
        # An episode has two rows at least: that of the reset, and that of a step.
        files.budget(place).take(2 * sum(rows))
    with contextlib.closing(opened) as reader, contextlib.ExitStack() as stack:
        report = ImportReport(
            format=format_.name,
            source=place,
            source_episodes=reader.episodes,
            source_steps=reader.steps,
            fields=tuple(map(str, reader.spec.fields)),
        )
        tell = stack.enter_context(progress_function(progress, import_status))
        into = None if dry_run else stack.enter_context(replay.filled_at_once("an import"))
        writer: EpisodeWriter | None = None
        try:
            for episode in _checked(reader, report):
                if into is not None and writer is None:  # the first is valid: make the store now
                    _bind(into, reader, report, facts or {})
                    writer = EpisodeWriter(into)
                if writer is not None:
                    writer.add_episode(episode)
                report = counted(report, episode, began)
                if tell is not None:
                    tell(report)
            if writer is not None:
                writer.flush()
            elif into is not None:
                raise ValueError(f"{place}: expected at least one episode, got none")
        except BaseException as error:
            if writer is not None and replay.path is None:
                error.add_note(f"kept: {writer.episodes:,} episodes, {writer.steps:,} steps")
            raise
        report = replace(report, notes=tuple(reader.notes))
        if writer is not None and into is not None:
            report = replace(
                report,
                raw_bytes=writer.raw_bytes,
                stored_bytes=into.total_bytes,
                digest=writer.digest,
            )
    return replace(report, seconds=time.perf_counter() - began)


def import_status(report: ImportReport) -> Status:
    """The progress of an import."""
    total = report.source_steps, report.source_episodes
    return episodes_status(report.steps, report.episodes, total, report.seconds)


def _checked(reader: Reader, report: ImportReport) -> Iterator[Episode]:
    episodes = iter(reader)
    while True:
        with _damage_as_value_error(report.format, report.source):
            episode = next(episodes, None)
        if episode is None:
            return
        if not episode.rows:
            raise ValueError(
                f"{report.source}: expected episodes of one row or more, got none in episode "
                f"{episode.id}"
            )
        yield episode


def _bind(
    replay: SequenceReplayBuffer,
    reader: Reader,
    report: ImportReport,
    facts: Mapping[str, object],
) -> None:
    """Bind the replay to the Spec, with the sessions of the original store."""
    now: dict[str, object] = {
        **({} if reader.sessions else {"recipe": {"source": report.format}}),
        "imported_from": {"format": report.format, "path": str(report.source)},
        **facts,
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    first, *others = [*reader.sessions, now]
    replay.bind(reader.spec, first)
    for session in others:
        replay.storage.append_session(session)


@contextlib.contextmanager
def _damage_as_value_error(format_: str, place: Path) -> Generator[None]:
    """Convert errors of readers and their libraries for a damaged data set to one sentence."""
    # Errors that Stepwell raises on purpose are passed on, and so are errors of the file system.
    # All others come from damaged or forged files: h5py, pyarrow, PyTorch, OpenCV, Minari and numpy
    # have no common class of errors for them.
    try:
        yield
    except (StepwellError, ImportError):
        raise
    except Exception as error:
        is_system_error = isinstance(error, OSError) and error.errno is not None
        if is_system_error or (_is_own(error) and not isinstance(error, AssertionError)):
            raise
        problem = " ".join(str(error).split())[:200]
        if isinstance(error, MemoryError):
            raise ValueError(
                f"{place}: expected a data set of format {format_} whose episodes fit into memory, "
                f"got one that does not ({problem}); import it where more memory is free"
            ) from error
        raise ValueError(
            f"{place}: expected a data set of format {format_}, got a damaged one, or something "
            f"that Stepwell cannot read ({type(error).__name__}: {problem}); fetch it again"
        ) from error


def _is_own(error: Exception) -> bool:
    """True if it comes from a ``raise`` in Stepwell's code."""
    trace = cast("TracebackType", error.__traceback__)
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code  # its source may not be installed
    is_raise = code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return is_raise and Path(code.co_filename).is_relative_to(_OWN)


def _check_spec(spec: Spec, where: Path) -> None:
    """Reject a Spec, as a file describes it, that is not valid for a store."""
    for field in spec.fields:
        if not (field.name.isprintable() and field.name):
            raise ValueError(
                f"{where}: expected fields with names that can be printed, got "
                f"{field.name[:60]!r}; put it back from a copy"
            )
    if "reward" not in spec.names:
        raise ValueError(f"{where}: expected a field 'reward', got {spec.names}; put it back")
    if spec["reward"].shape:
        raise ValueError(
            f"{where}: expected one number a step as reward, got the shape {spec['reward'].shape}; "
            f"write the data set with one number, and the others as an info"
        )
