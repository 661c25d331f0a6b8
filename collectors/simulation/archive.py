"""Archives of actions: a store in a small file, and the same store by playing it again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stepwell.buffers import (
    End,
    EpisodeSelection,
    RowsDiffer,
    SequenceReplayBuffer,
    Storage,
    Unprovable,
    copy_episodes,
)
from stepwell.buffers.curation.episode_writer import check_new
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.progress import Progress, check_progress, progress_function
from stepwell.buffers.provenance.archive_file import ArchiveFile
from stepwell.buffers.provenance.archived_store import (
    ArchivedStore,
    check_archivable,
    write_archive,
)
from stepwell.buffers.provenance.chains import Chain, Play, chains_of
from stepwell.buffers.provenance.restored_rows import RestoredRows
from stepwell.buffers.storage.disk.layout import write_folder
from stepwell.buffers.storage.disk.publish import check_unused, publish
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.whole_numbers import whole_number
from stepwell.collectors.simulation.player import PlayedRows, play, played_status
from stepwell.collectors.simulation.remake import EnvMaker, EnvSource, maker_of
from stepwell.collectors.simulation.resimulate import resimulate

if TYPE_CHECKING:
    from stepwell.wrappers.nes.env import Rom

__all__ = ["ArchiveReport", "RestoreReport", "archive", "restore"]

_LOG = logging.getLogger("stepwell.collectors")
_BYTES_AT_ONCE = 32 << 20  # of decoded chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """The result of `archive`.

    Args:
        episodes: Episodes in the archive.
        steps: Env steps of them.
        left_out_episodes: Episodes that are not in it.
        raw_bytes: Bytes of their rows, uncompressed.
        stored_bytes: Bytes that they take in the store.
        archive_bytes: Bytes of the archive.
        is_proved: They were played again before, and were equal.
        seconds: Wall time.
    """

    episodes: int
    steps: int
    left_out_episodes: int
    raw_bytes: int
    stored_bytes: int
    archive_bytes: int
    is_proved: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The result of `restore`.

    Args:
        episodes: Episodes that were restored.
        steps: Env steps of them.
        left_out_episodes: Episodes of the archive that were not.
        played_steps: Env steps that were played for them.
        is_identical: The chunks of the store are those of the archived one, byte for byte, and so
            are all files but LOCK and perhaps ``ledger.bin``, if its writer had closed it.
        seconds: Wall time.
    """

    episodes: int
    steps: int
    left_out_episodes: int
    played_steps: int
    is_identical: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def archive(
    replay: SequenceReplayBuffer,
    path: str | os.PathLike[str],
    *,
    episodes: Iterable[int] | None = None,
    is_proved: bool = True,
    only_provable: bool = False,
    lanes: int | None = None,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    progress: Progress[int, int] = None,
) -> ArchiveReport:
    """Write a replay to a small file: actions, seeds and checksums, from which `restore` makes it.

    Every episode is played again first, and the first difference refuses the archive. The file
    appears when it is complete.

    Args:
        replay: The replay; nothing must be written to it meanwhile.
        path: A new file, usually ``NAME.swa``.
        episodes: Ids of the episodes; None for all. With some of them the archive is that of a
            copy with these episodes, which has other ids.
        is_proved: Play the episodes first. Without it the archive may turn out to be useless.
        only_provable: Leave out episodes that cannot be played again, instead of refusing.
        lanes: Episodes to play at a time; as in `resimulate`.
        env: How to make one env; as in `resimulate`.
        rom: The cartridge of NES games; as in `resimulate`.
        progress: True shows a line in a terminal, a bar in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called with the env steps played
            so far, and those of all episodes.

    Raises:
        RowsDiffer: An env shows other rows than are stored.
        Unprovable: An episode cannot be played again.
        ValueError: An argument is invalid, the file is there already, the envs cannot be made
            again, or chunks of the store are lost.

    Example:
        >>> import tempfile
        >>> import stepwell as sw
        >>> replay, again = sw.SequenceReplayBuffer(), sw.SequenceReplayBuffer()
        >>> envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(episodes=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = archive(replay, f"{folder}/cartpole.swa", lanes=1)
        ...     restored = restore(f"{folder}/cartpole.swa", again, lanes=1)
        >>> report.episodes, restored.steps == report.steps, again.digest() == replay.digest()
        (3, True, True)
    """
    began = time.perf_counter()
    check_progress(progress)
    if not isinstance(replay, SequenceReplayBuffer):
        raise TypeError(f"replay: expected a SequenceReplayBuffer, got {type(replay).__name__}")
    target = Path(path)
    storage = replay.storage
    check_archivable(storage)
    check_unused(target, "file")
    stored = {episode.id for episode in stored_episodes(storage)}
    asked = stored if episodes is None else _chosen(stored, episodes)
    lost = {one: why for one, why in _unprovable(storage).items() if one in asked}
    if lost and not only_provable:
        raise Unprovable(_unprovable_sentence(lost, len(asked)))
    chosen = asked - set(lost)
    if not chosen:
        raise ValueError(
            f"none of {len(stored):,} episodes would be archived, expected at least one: choose "
            f"others"
        )
    if is_proved:
        _prove(replay, chosen, progress, lanes=lanes, env=env, rom=rom)
    with publish(target, "an archive", kind="file") as part, contextlib.ExitStack() as stack:
        source = replay
        if chosen != stored:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=part.parent))
            source = stack.enter_context(SequenceReplayBuffer(Path(folder) / "some"))
            ids = tuple(range(one, one + 1) for one in sorted(chosen))
            copy_episodes(replay, source, keep=EpisodeSelection(ids=ids))
            if lost := _unprovable(source.storage):
                raise Unprovable(_unprovable_sentence(lost, len(chosen)))
        with part.open("wb") as file:
            write_archive(source.storage, file, is_proved=is_proved)
        index = source.storage.index
        report = ArchiveReport(
            episodes=index.episodes,
            steps=index.steps,
            left_out_episodes=len(stored) - len(chosen),
            raw_bytes=index.rows * source.spec.row_bytes,
            stored_bytes=int(index.records["nbytes"].sum()),
            archive_bytes=part.stat().st_size,
            is_proved=is_proved,
            seconds=time.perf_counter() - began,
        )
    _LOG.info("%s: archived %d steps in %d episodes", target, report.steps, report.episodes)
    return report


def restore(
    path: str | os.PathLike[str],
    target: SequenceReplayBuffer,
    *,
    episodes: Iterable[int] | None = None,
    lanes: int | None = None,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    progress: Progress[int, int] = None,
) -> RestoreReport:
    """Make the store of an archive again, by playing its episodes.

    Rows, ids, ends, metadata, sessions and chunks are those of the store that was archived; in a
    new folder without options the files are the same, too, byte for byte, with the same version of
    zstd. Checksums are compared as the rows come: no row is stored that differs. A folder appears
    when it is complete.

    Args:
        path: The archive.
        target: A new, empty replay: ``SequenceReplayBuffer(folder)``. Options such as ``codecs``
            and ``capacity`` are applied.
        episodes: Ids of the episodes to restore, as a copy with other ids; None for all.
        lanes: Episodes to play at a time; as in `resimulate`.
        env: How to make one env; as in `resimulate`.
        rom: The cartridge of NES games; as in `resimulate`.
        progress: True shows a line in a terminal, a bar in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called with the env steps played
            so far, and those of all episodes.

    Raises:
        RowsDiffer: An env shows other rows than were archived. The target then has the episodes
            that were equal until then, as a copy.
        Unprovable: An episode cannot be played again.
        StoreCorrupt: The archive is damaged.
        StoreTooNew: A later version wrote the archive.
        ValueError: An argument is invalid, the target is in use, or the envs cannot be made again.
    """
    began = time.perf_counter()
    check_progress(progress)
    if not isinstance(target, SequenceReplayBuffer):
        raise TypeError(f"target: expected a SequenceReplayBuffer, got {type(target).__name__}")
    check_new(target)
    with contextlib.ExitStack() as stack:
        archived = stack.enter_context(ArchivedStore(ArchiveFile(path)))
        scratch = stack.enter_context(tempfile.TemporaryFile(dir=_folder_for(target)))
        job = _Restore(archived, scratch, episodes)
        makers = job.plan(env, rom)
        error = job.play(makers, lanes, progress)
        is_identical = job.write(target, Path(path).name)
        if error is not None:
            raise error
        index = target.storage.index
        report = RestoreReport(
            episodes=index.episodes,
            steps=index.steps,
            left_out_episodes=len(archived.table.episode) - len(job.wanted),
            played_steps=job.steps,
            is_identical=is_identical,
            seconds=time.perf_counter() - began,
        )
    _LOG.info("%s: restored %d steps in %d episodes", path, report.steps, report.episodes)
    return report


class _Restore:
    """Plays the episodes of an archive, and keeps those whose checksums are right.

    Args:
        archived: The archive.
        scratch: An empty file.
        episodes: Ids of the episodes to restore; None for all.
    """

    def __init__(
        self, archived: ArchivedStore, scratch: IO[bytes], episodes: Iterable[int] | None
    ) -> None:
        self._archived = archived
        self._rows = RestoredRows(archived, scratch)
        self._place = {int(one): place for place, one in enumerate(archived.table.episode)}
        ids = set(self._place)
        self._is_whole = episodes is None
        chosen = ids if episodes is None else _chosen(ids, episodes)
        self.wanted = {self._place[one] for one in chosen}
        prints = archived.fingerprints
        self._groups = {
            group: set(prints.episodes_of(group))
            for group in {prints.group_of(place) for place in self.wanted}
        }
        self._played: set[int] = set()
        self._proved: set[int] = set()
        self.steps = 0

    def plan(self, env: EnvSource | None, rom: Rom | None) -> list[tuple[list[Chain], EnvMaker]]:
        """The chains to play, with what makes their envs.

        Raises:
            Unprovable: There is no chain to an episode.
            ValueError: The envs cannot be made again.
        """
        needed = set().union(*self._groups.values())
        chains, unreachable = chains_of(self._archived.actions())
        lost = {
            one.episode.id: one.why for one in unreachable if self._place[one.episode.id] in needed
        }
        if lost:
            raise Unprovable(_unprovable_sentence(lost, len(needed)))
        found: dict[str, tuple[Mapping[str, object], list[Chain]]] = {}
        for chain in chains:
            last = max(
                (k for k, one in enumerate(chain.plays) if self._of(one) in needed), default=-1
            )
            if last >= 0:
                key = json.dumps(chain.facts, sort_keys=True, default=str)
                shorter = replace(chain, plays=chain.plays[: last + 1])
                found.setdefault(key, (chain.facts, []))[1].append(shorter)
        self.steps = sum(chain.steps for _, chains in found.values() for chain in chains)
        spec = self._archived.spec
        return [
            (chains, maker_of(facts, spec, env=env, rom=rom)) for facts, chains in found.values()
        ]

    def play(
        self,
        jobs: Sequence[tuple[list[Chain], EnvMaker]],
        lanes: int | None,
        progress: Progress[int, int],
    ) -> RowsDiffer | None:
        """Play the chains; the error of the first difference."""
        before = 0
        with progress_function(progress, played_status()) as function:
            for chains, maker in jobs:
                report = None if function is None else partial(self._report, function, before)
                with play(chains, maker, lanes, report) as player:
                    for rows in player:
                        difference = self._take(rows)
                        if difference is not None:
                            return RowsDiffer(self._sentence(difference, maker))
                before += sum(chain.steps for chain in chains)
        return None

    def write(self, target: SequenceReplayBuffer, name: str) -> bool:
        """Write what was proved; True if the files are those of the archived store."""
        archived, table = self._archived, self._archived.table
        if not self._is_whole or len(self._proved) < len(table.episode):
            if self._proved & self.wanted:
                storage = self._rows.storage(self._proved)
                ids = {int(table.episode[place]) for place in self._proved & self.wanted}
                copy_episodes(
                    SequenceReplayBuffer.of(storage),
                    target,
                    keep=lambda episode: episode.id in ids,
                    facts={"restored_from": name},
                )
            return False
        with target.filled_at_once("a restore") as written:
            if archived.layout is None or written.path is None or target.has_options:
                self._write_chunks(written)
                return False
            chunks = map(self._rows.parts, range(len(table)))
            is_same = write_folder(
                written.path, archived.facts, archived.layout, table.columns, chunks
            )
            # Reads it all again, as one more guard before the folder gets its name.
            with DiskStorage.open(written.path) as storage:
                storage.keep_actions(archived.ledger)
        return is_same

    def _write_chunks(self, target: SequenceReplayBuffer) -> None:
        """Add all chunks, one after the other."""
        archived, table = self._archived, self._archived.table
        first, *others = archived.facts.sessions or ({},)
        target.bind(archived.spec, first)
        for session in others:
            target.storage.append_session(session)
        count = max(1, _BYTES_AT_ONCE // max(1, int(table.rows.mean()) * archived.spec.row_bytes))
        for begin in range(0, len(table), count):
            target.add(list(self._rows.chunks(range(begin, min(begin + count, len(table))))))
        target.storage.keep_actions(archived.ledger)

    def _take(self, rows: PlayedRows) -> str | None:
        """Take rows that were played; a sentence about their difference, or None."""
        place = self._of(rows.play)
        if place is None:
            return None
        episode = f"episode {self._archived.table.episode[place]}"
        if rows.rows:
            self._rows.add(place, rows.fields)
        if rows.why:
            return f"{episode}: {rows.why}"
        if not rows.is_last:
            return None
        stored = rows.play.end & (End.TERMINATED | End.TRUNCATED)
        if rows.end != stored:
            return f"{episode}: the env ended it otherwise at row {rows.play.steps}"
        self._played.add(place)
        group = self._archived.fingerprints.group_of(place)
        own = self._archived.fingerprints.episodes_of(group)
        if not self._played.issuperset(own):
            return None
        field = self._archived.check_group(group)
        if field is None:
            self._proved.update(own)
            return None
        ids = self._archived.table.episode[own.start : own.stop].tolist()
        which = episode if len(ids) == 1 else f"one of {len(ids)} episodes from {ids[0]} on"
        return f"{which}: field {field.name!r} differs from what was archived"

    def _of(self, one: Play) -> int | None:
        """The place of a play's episode in the table."""
        return None if one.episode is None else self._place[one.episode.id]

    def _sentence(self, difference: str, maker: EnvMaker) -> str:
        """The message for a difference."""
        proved, changed = len(self._proved & self.wanted), maker.differences
        return (
            f"{self._archived.file.path}: {difference}; {proved:,} of {len(self.wanted):,} "
            f"episodes were restored"
            + (f"; since then changed: {', '.join(changed)}" if changed else "")
        )

    def _report(
        self, progress: Callable[[int, int], None], before: int, steps: int, _: int
    ) -> None:
        progress(before + steps, self.steps)


def _prove(
    replay: SequenceReplayBuffer,
    chosen: set[int],
    progress: Progress[int, int],
    *,
    lanes: int | None,
    env: EnvSource | None,
    rom: Rom | None,
) -> None:
    """Play the chosen episodes.

    Raises:
        RowsDiffer: One differs.
        Unprovable: One cannot be played.
    """
    with resimulate(
        replay, episodes=chosen, lanes=lanes, env=env, rom=rom, progress=progress
    ) as proofs:
        for proof in proofs:
            if proof.first_difference is not None:
                field, row = proof.first_difference
                changed = [each for maker in proofs.makers for each in maker.differences]
                raise RowsDiffer(
                    f"episode {proof.episode}: field {field!r} differs at row {row}: {proof.why}"
                    + (f"; since then changed: {', '.join(changed)}" if changed else "")
                )
            if not proof.is_equal:
                raise Unprovable(_unprovable_sentence({proof.episode: proof.why}, len(chosen)))


def _unprovable(storage: Storage) -> dict[int, str]:
    """The ids of the episodes that cannot be played again, with the reasons."""
    _, unreachable = chains_of(storage)
    return {one.episode.id: one.why for one in unreachable}


def _chosen(ids: set[int], episodes: Iterable[int]) -> set[int]:
    """The ids that are asked for.

    Raises:
        ValueError: There is no such episode.
    """
    asked = {whole_number("episodes", one, 0) for one in episodes}
    if not asked or not asked <= ids:
        raise ValueError(
            f"episodes: expected ids of stored episodes, got "
            f"{min(asked - ids) if asked else 'none'}; `stepwell info` shows how many there are"
        )
    return asked


def _unprovable_sentence(lost: Mapping[int, str], episodes: int) -> str:
    first = min(lost)
    return (
        f"{len(lost):,} of {episodes:,} episodes cannot be played again, expected all: episode "
        f"{first}: {lost[first]}; leave them out (only_provable=True, --provable)"
    )


def _folder_for(target: SequenceReplayBuffer) -> Path | None:
    """The folder for temporary files: where the target will be, if it will be in one."""
    if target.path is None:
        return None
    folder = target.path.absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    return folder
