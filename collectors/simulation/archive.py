"""Archives of actions: a store in a small file, and the same store by playing it again."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from ...buffers import (
    Chunk,
    DiskStorage,
    End,
    MemoryStorage,
    RowsDiffer,
    SequenceReplayBuffer,
    Storage,
    Unprovable,
)
from ...buffers.base.progress import Progress, check_progress, progress_function
from ...buffers.curation.episode_writer import EpisodeWriter, check_new, check_replay
from ...buffers.curation.stored_episode import StoredEpisode, stored_episodes
from ...buffers.provenance.archive_file import (
    CHECKSUMS,
    Archived,
    check_archivable,
    opened,
    write_archive,
)
from ...buffers.provenance.chains import Chain, chains_of
from ...buffers.storage.disk.files import LateFiles
from ...buffers.storage.disk.publish import check_unused, publish
from ...buffers.storage.encoded_chunk import EncodedChunk
from .player import PlayedRows, Player, check_repeats, played_status, steps_of
from .remake import EnvMaker, EnvSource, changes_of, maker_of
from .resimulate import Resimulation, by_env, chosen_ids, first_difference, resimulate

if TYPE_CHECKING:
    from ...wrappers.nes.env import Rom

_LOG = logging.getLogger("stepwell.collectors")
_CHUNK_ROWS, _CHUNK_BYTES = 1024, 32 << 20  # of restored rows


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
        seconds: Wall time.
    """

    episodes: int
    steps: int
    left_out_episodes: int
    played_steps: int
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
    appears when it is complete. Ids of episodes are assigned again there, from 0 on and in the same
    order.

    Args:
        replay: The replay; nothing must be written to it meanwhile.
        path: A new file, usually ``NAME.swa``.
        episodes: Ids of the episodes; None for all. Those that lead to one of them in its chain
            must be among them.
        is_proved: Play the episodes first. Without it the archive may turn out to be useless.
        only_provable: Leave out episodes that cannot be played again, instead of refusing.
        lanes: Episodes to play at a time; as in `resimulate`.
        env: How to make one env; as in `resimulate`.
        rom: The cartridge of NES games; as in `resimulate`.
        progress: True shows a line in a terminal or in a notebook, or a line of text every 30
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
    check_replay("replay", replay)
    target = Path(path)
    storage = replay.storage
    check_archivable(storage)
    check_unused(target, "file")
    stored = {episode.id for episode in stored_episodes(storage)}
    asked = chosen_ids(stored, episodes)
    lost = _unprovable(storage, asked)
    if lost and not only_provable:
        raise Unprovable(_unprovable_sentence(lost, len(asked)))
    chosen = asked - set(lost)
    if not chosen:
        raise ValueError(
            f"none of {len(stored):,} episodes would be archived, expected at least one: choose "
            f"others"
        )
    if is_proved:
        _prove(
            resimulate(replay, episodes=chosen, lanes=lanes, env=env, rom=rom, progress=progress)
        )
    with publish(target, "an archive", kind="file") as part:
        with part.open("w+b") as file:
            write_archive(storage, file, chosen, is_proved=is_proved)
        steps = sum(one.steps for one in stored_episodes(storage) if one.id in chosen)
        records = storage.index.records
        records = records[np.isin(records["episode"], list(chosen))]
        report = ArchiveReport(
            episodes=len(chosen),
            steps=steps,
            left_out_episodes=len(stored) - len(chosen),
            raw_bytes=int(records["rows"].sum()) * storage.spec.row_bytes,
            stored_bytes=int(records["nbytes"].sum()),
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

    Rows, streams, ends, metadata and sessions are those of the store that was archived. Checksums
    are compared as the rows come: no episode is stored that differs. A folder appears when it is
    complete.

    Args:
        path: The archive.
        target: A new, empty replay: ``SequenceReplayBuffer(folder)``. Options such as ``codecs``
            and ``capacity`` are applied.
        episodes: Ids of the episodes to restore, which get others, as in a copy; None for all.
        lanes: Episodes to play at a time; as in `resimulate`.
        env: How to make one env; as in `resimulate`.
        rom: The cartridge of NES games; as in `resimulate`.
        progress: True shows a line in a terminal or in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called with the env steps played
            so far, and those of all episodes.

    Raises:
        RowsDiffer: An env shows other rows than were archived. The target then has the episodes
            that were equal until then.
        Unprovable: An episode cannot be played again; the target is then as with RowsDiffer.
        StoreCorrupt: The archive is damaged.
        StoreTooNew: A later version wrote the archive.
        ValueError: An argument is invalid, the target is in use, the envs cannot be made again, or
            an earlier version wrote the archive.
    """
    return restore_checked(
        path, target, episodes=episodes, lanes=lanes, env=env, rom=rom, progress=progress
    )


def restore_checked(
    path: str | os.PathLike[str],
    target: SequenceReplayBuffer,
    *,
    digest: str | None = None,  # of all rows: with it the target is whole and has it, or is absent
    episodes: Iterable[int] | None = None,
    lanes: int | None = None,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    progress: Progress[int, int] = None,
) -> RestoreReport:
    """`restore`, for callers who know what must come out."""
    began = time.perf_counter()
    check_progress(progress)
    check_replay("target", target)
    check_new(target)
    with opened(path) as archived:
        job = _Restore(archived, episodes)
        makers = job.plan(env, rom)
        with target.filled_at_once("a restore") as written:
            if written.path is not None:
                job.bind(written)
            with _scratch(archived, written.path) as scratch:
                error = job.play(makers, scratch, lanes, progress)
                if error is not None and (digest is not None or not job.proved & job.wanted):
                    raise error
                job.write(scratch, written)
            if digest is not None and (found := written.digest()) != digest:
                raise RowsDiffer(f"{path}: expected rows with the digest {digest}, got {found}")
        if error is not None:
            raise error
        index = target.storage.index
        report = RestoreReport(
            episodes=index.episodes,
            steps=index.steps,
            left_out_episodes=len(job.ids) - len(job.wanted),
            played_steps=job.steps,
            seconds=time.perf_counter() - began,
        )
    _LOG.info("%s: restored %d steps in %d episodes", path, report.steps, report.episodes)
    return report


@contextlib.contextmanager
def _scratch(archived: Archived, folder: Path | None) -> Generator[Storage]:
    """A storage for rows as they are played: in RAM, or in a folder that is removed."""
    if folder is None:
        yield MemoryStorage(archived.spec)
        return
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        DiskStorage.create(Path(name) / "rows", archived.spec, files=LateFiles()) as storage,
    ):
        yield storage


@dataclass(slots=True)
class _Played:
    """An episode that is being played."""

    crcs: dict[str, int]  # of the rows so far, of each field that is not in the archive
    # Rows that are not in the scratch yet, in pieces; their number, and the first one of them
    waiting: list[dict[str, np.ndarray]] = field(default_factory=list[dict[str, np.ndarray]])
    rows: int = 0
    first_row: int = 0


class _Restore:
    """Plays the episodes of an archive, and keeps those whose checksums are right."""

    def __init__(self, archived: Archived, episodes: Iterable[int] | None) -> None:
        self._archived = archived
        self._stored = list(stored_episodes(archived.storage))
        self._checksums = {one.id: archived.checksums(one) for one in self._stored}
        self.ids: Collection[int] = self._checksums
        self.wanted = chosen_ids(set(self.ids), episodes)
        if self.ids and not self.wanted:
            raise ValueError("episodes: expected ids of stored episodes, got none; name some")
        self.proved: set[int] = set()
        self.steps = 0
        self._place = {one.id: place for place, one in enumerate(self._stored)}
        kept = archived.storage.spec.names
        self._kept = kept
        self._left_out = [name for name in archived.spec.names if name not in kept]
        self._open: dict[int, _Played] = {}
        row_bytes = max(1, archived.spec.row_bytes)
        self._chunk_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))

    def plan(self, env: EnvSource | None, rom: Rom | None) -> list[tuple[list[Chain], EnvMaker]]:
        """The chains to play, with what makes their envs."""
        chains, unreachable = chains_of(self._archived.storage)
        lost = {one.episode.id: one.why for one in unreachable if one.episode.id in self.wanted}
        if lost:
            raise Unprovable(_unprovable_sentence(lost, len(self.wanted)))
        found = by_env(chains, lambda one: one.episode.id in self.wanted)
        self.steps = sum(steps_of(chains) for _, chains in found)
        spec = self._archived.spec
        return [(chains, maker_of(facts, spec, env=env, rom=rom)) for facts, chains in found]

    def play(
        self,
        jobs: Sequence[tuple[list[Chain], EnvMaker]],
        scratch: Storage,
        lanes: int | None,
        progress: Progress[int, int],
    ) -> RowsDiffer | Unprovable | None:
        """Play the chains; the error of the first difference, or of an env that proves nothing."""
        before = 0
        with progress_function(progress, played_status()) as report:
            for chains, maker in jobs:
                try:
                    with Player(
                        *(chains, maker, lanes, report), before=before, all_steps=self.steps
                    ) as player:
                        for rows in player:
                            difference = self._take(rows, scratch)
                            if difference is not None:
                                check_repeats(rows.chain, maker, rows)
                                return RowsDiffer(self._sentence(difference, maker))
                except Unprovable as error:
                    return error
                before += steps_of(chains)
        return None

    def bind(self, target: SequenceReplayBuffer) -> None:
        """Give the target the fields and sessions of the archived store."""
        first, *others = self._archived.storage.sessions or ({},)
        target.bind(self._archived.spec, first)
        for session in others:
            target.storage.append_session(session)

    def write(self, scratch: Storage, target: SequenceReplayBuffer) -> None:
        """Write the episodes that were proved, in the order of the archive."""
        if not target.is_bound:
            self.bind(target)
        writer = EpisodeWriter(target, with_digest=False)
        for episode in stored_episodes(scratch):
            own = self._stored[episode.id]
            if own.id in self.proved & self.wanted:
                is_same = target.spec == scratch.spec
                chunks = (
                    episode.encoded_chunks(1, 1) if is_same else episode.chunks(writer.max_rows)
                )
                writer.add_episode(_in_stream(own.stream, chunks))
        writer.flush()

    def _take(self, rows: PlayedRows, scratch: Storage) -> str | None:
        """Take rows that were played; a sentence about their difference, or None."""
        episode = rows.play.episode
        name = f"episode {episode.id}"
        played = self._open.setdefault(episode.id, _Played(dict.fromkeys(self._left_out, 0)))
        if rows.rows:
            stored = episode.read(rows.first_row, rows.first_row + rows.rows, self._kept)
            row = first_difference(stored["reward"], rows.fields["reward"])
            if row is not None:
                return f"{name}: field 'reward' differs at row {rows.first_row + row}"
            for left_out, crc in played.crcs.items():
                contents = np.ascontiguousarray(rows.fields[left_out]).data
                played.crcs[left_out] = crc32(contents, crc)
            played.waiting.append({**rows.fields, **stored})
            played.rows += rows.rows
        if rows.why:
            return f"{name}: {rows.why}"
        if rows.is_last and rows.end != rows.play.end & (End.TERMINATED | End.TRUNCATED):
            return f"{name}: the env ended it otherwise at row {rows.play.steps}"
        if rows.is_last or played.rows >= self._chunk_rows:
            self._store(played, episode, scratch, rows.play.end if rows.is_last else End.NONE)
        if not rows.is_last:
            return None
        checksums = self._checksums[episode.id]
        for (left_out, crc), known in zip(played.crcs.items(), checksums, strict=True):
            if crc != known:
                return f"{name}: field {left_out!r} differs from what was archived"
        del self._open[episode.id]
        self.proved.add(episode.id)
        return None

    def _store(self, played: _Played, episode: StoredEpisode, scratch: Storage, end: End) -> None:
        """Put the rows that wait into the scratch, where each episode has a stream of its own."""
        place = self._place[episode.id]
        fields = {
            name: np.concatenate([piece[name] for piece in played.waiting])
            for name in self._archived.spec.names
        }
        metadata = {key: one for key, one in episode.metadata.items() if key != CHECKSUMS}
        scratch.add([Chunk(place, place, played.first_row, end, fields, metadata)])
        played.first_row += played.rows
        played.waiting, played.rows = [], 0

    def _sentence(self, difference: str, maker: EnvMaker) -> str:
        return (
            f"{self._archived.path}: {difference}; {len(self.proved & self.wanted):,} of "
            f"{len(self.wanted):,} episodes were restored{changes_of([maker])}"
        )


def _in_stream(
    stream: int, chunks: Iterable[Chunk | EncodedChunk]
) -> Iterator[Chunk | EncodedChunk]:
    """The same chunks of another stream."""
    for chunk in chunks:
        if isinstance(chunk, EncodedChunk):
            yield chunk.placed(episode=chunk.episode, stream=stream)
        else:
            yield replace(chunk, stream=stream)


def _prove(proofs: Resimulation) -> None:
    """Play episodes, until one differs or cannot be played."""
    with proofs:
        for proof in proofs:
            if proof.first_difference is not None:
                field, row = proof.first_difference
                raise RowsDiffer(
                    f"episode {proof.episode}: field {field!r} differs at row {row}: {proof.why}"
                    f"{changes_of(proofs.makers)}"
                )
            if not proof.is_equal:
                raise Unprovable(f"episode {proof.episode} cannot be played again: {proof.why}")


def _unprovable(storage: Storage, asked: set[int]) -> dict[int, str]:
    """The ids of those episodes that cannot be played again without others, with the reasons."""
    chains, unreachable = chains_of(storage)
    lost = {one.episode.id: one.why for one in unreachable if one.episode.id in asked}
    for chain in chains:
        gone = -1
        for one in chain.plays:
            if one.episode.id not in asked:
                gone = one.episode.id if gone < 0 else gone
            elif gone >= 0:
                lost[one.episode.id] = f"episode {gone}, which leads to it, is not among them"
    return lost


def _unprovable_sentence(lost: Mapping[int, str], episodes: int) -> str:
    first = min(lost)
    return (
        f"{len(lost):,} of {episodes:,} episodes cannot be played again, expected all: episode "
        f"{first}: {lost[first]}; leave them out (only_provable=True, --provable)"
    )
