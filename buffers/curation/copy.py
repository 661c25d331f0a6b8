"""Copies whole episodes from one replay, or several, into a new one."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast, get_args

from ..base.errors import SpecMismatch, StoreCorrupt
from ..base.number_checks import check_choice, is_whole
from ..base.optional_libraries import installed_version
from ..base.progress import Progress, Status, check_progress, episodes_status, progress_function
from ..replay.replay import SequenceReplayBuffer
from ..rows.episode import Chunk
from ..spec.spec import Spec
from ..storage.disk.storage import DiskStorage
from ..storage.encoded_chunk import EncodedChunk
from ..storage.episode_filter import Where, check_where, chooses
from ..storage.joined import JoinedStorage, check_same_rows, name_of, parts_of
from ..storage.protocol import Storage
from .episode_writer import EpisodeWriter, check_new, check_replay
from .repeated_episodes import Duplicates, find_repeats
from .selection import choose
from .stored_episode import StoredEpisode, stored_episodes

_LEAST_ROWS = 256  # chunks of fewer are joined


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """The result of a copy, or its progress.

    Args:
        episodes: Episodes that are copied completely.
        steps: Env steps copied.
        chosen_episodes: Episodes to copy.
        chosen_steps: Env steps of them.
        left_out_episodes: Episodes not to copy.
        left_out_steps: Env steps of them.
        duplicate_episodes: Those of them that an earlier source holds, too.
        late_starts: Episodes to copy that lack their first rows.
        not_whole_episodes: Episodes that an `EpisodeSelection` did not rank, as they were cut or
            lack their first rows.
        without_value_episodes: Further ones that it did not rank, as they have no number to sort
            by.
        raw_bytes: Bytes of the copied rows, uncompressed.
        stored_bytes: Bytes of the same rows in the target.
        seconds: Wall time.
        digest: Fingerprint of the copied rows, 16 hexadecimal digits, if it was asked for; equal to
            the source's if one source was copied completely and no chunk of it is damaged.
    """

    episodes: int = 0
    steps: int = 0
    chosen_episodes: int = 0
    chosen_steps: int = 0
    left_out_episodes: int = 0
    left_out_steps: int = 0
    duplicate_episodes: int = 0
    late_starts: int = 0
    not_whole_episodes: int = 0
    without_value_episodes: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    digest: str = ""

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def copy_episodes(
    source: SequenceReplayBuffer | Sequence[SequenceReplayBuffer],
    target: SequenceReplayBuffer,
    *,
    where: Where | None = None,
    keep: Callable[[StoredEpisode], bool] | None = None,
    any_envs: bool = False,
    duplicates: Duplicates = "refuse",
    facts: Mapping[str, object] | None = None,
    digest: bool = False,
    progress: Progress[CopyReport] = None,
) -> CopyReport:
    """Copy whole episodes into a new replay, in RAM or in a folder, with any codecs.

    A folder appears when the copy is complete and durable, and not at all after an error, Ctrl-C or
    a kill.

    Rows, streams, ends and metadata are copied bit for bit; ids are assigned again, from 0 on and
    in the same order. Stores that are read as one are copied like the same stores in a list: with
    their own streams. Small chunks that follow each other are joined into large ones. Under the
    same codecs all others are copied as they are, once their checksums were compared. The sources'
    sessions are copied, too, and one that describes the copy is added; the index of its session in
    an episode's metadata is that in the copy.

    Args:
        source: The source; several are copied one after the other.
        target: A new, empty replay: ``SequenceReplayBuffer(path, codecs=...)``.
            With a capacity it keeps the newest episodes.
        where: Copy only episodes with this metadata: keys with their values, or a function of the
            metadata.
        keep: Copy only episodes for which this is true, for example an `EpisodeSelection`, which
            can also choose the best ones: of all sources together.
        any_envs: Accept sources of different envs, as long as the fields are the same.
        duplicates: Treatment of an episode that several sources hold, all rows bit by bit:
            ``"refuse"`` the copy, ``"skip"`` it in all sources but the first, or ``"keep"`` it in
            all of them. Sources of other runs, with other seeds, may hold equal episodes: of those
            only the ones that were reset with the same seed count. Episodes of one source are not
            compared with each other.
        facts: JSON-able facts to store with the copy.
        digest: Compute the ``digest`` of the report; this decodes all rows.
        progress: True shows a line in a terminal or in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called after every write, and
            after every episode that was compared before, with the report so far.

    Returns:
        The final report.

    Raises:
        TypeError: A source or the target is no replay, or ``progress`` is neither True nor a
            function.
        ValueError: The target is not empty, or no episode is chosen, or several sources hold the
            same one; nothing was written.
        SpecMismatch: The sources hold other fields, or rows of other envs; nothing was written.
        StoreCorrupt: A source is damaged.
        StoreLocked: Another process creates a store in the target's folder.

    After an error or Ctrl-C a target in RAM holds the rows that were written until then; a note on
    the error contains their number.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> source, good = sw.SequenceReplayBuffer(seed=0), sw.SequenceReplayBuffer()
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, sw.RandomPolicy(), source, seed=0) as collector:
        ...     report = collector.collect(steps=400)
        >>> report = copy_episodes(source, good, keep=lambda episode: episode.total_reward >= 20)
        >>> report.episodes == good.episodes
        True
        >>> min(episode.total_reward for episode in good.iter_episodes()) >= 20
        True
    """
    began = time.perf_counter()
    check_progress(progress)
    sources = list(source) if isinstance(source, Iterable) else [source]
    check_replay("target", target)
    storages = _checked_sources(sources, any_envs)
    check_new(target)
    check_choice("duplicates", duplicates, get_args(Duplicates))
    if where is not None:
        check_where(where)
    # Whatever can be refused is refused before anything is written to the target.
    for storage in storages:
        _leave_out_damaged(storage)
    plan = _Plan(storages, where, keep)
    if not plan.report.chosen_episodes and plan.report.left_out_episodes:
        raise ValueError(
            f"none of {plan.report.left_out_episodes:,} episodes would be copied, expected at "
            f"least one: choose by other conditions{plan.not_ranked}"
        )
    with progress_function(progress, copy_status) as function:
        if duplicates != "keep":
            plan.leave_out_repeats(duplicates, function)
        report = plan.report
        with target.filled_at_once("a copy") as written:
            _bind(written, storages, report, facts or {})

            def tell() -> None:
                nonlocal report
                report = replace(
                    report,
                    episodes=writer.episodes,
                    steps=writer.steps,
                    raw_bytes=writer.raw_bytes,
                    stored_bytes=written.total_bytes,
                    seconds=time.perf_counter() - began,
                    digest=writer.digest,
                )
                if function is not None:
                    function(report)

            writer = EpisodeWriter(written, tell, with_digest=digest)
            try:
                _write(writer, written.spec, storages, plan.episodes())
            except BaseException as error:
                # A copy in a folder appears as a whole or not at all; in RAM what was copied stays.
                if target.path is None:
                    error.add_note(
                        f"kept: {writer.episodes:,} of {report.chosen_episodes:,} episodes, "
                        f"{writer.steps:,} of {report.chosen_steps:,} steps, in RAM"
                    )
                raise
    return report


def copy_status(report: CopyReport) -> Status:
    """The progress of a copy."""
    total = report.chosen_steps, report.chosen_episodes
    return episodes_status(
        report.steps, report.episodes, total, report.seconds, nbytes=report.raw_bytes
    )


class _Plan:
    """The episodes to copy."""

    def __init__(
        self,
        storages: Sequence[Storage],
        where: Where | None,
        keep: Callable[[StoredEpisode], bool] | None,
    ) -> None:
        self._storages = storages
        meets = bytearray()
        choice = choose(self._episodes_where(where, meets), keep)
        self.not_ranked = f"; {choice.sentence}" if choice.sentence else ""
        is_kept = iter(choice.is_chosen)
        self._is_chosen = bytearray(one and next(is_kept) for one in meets)
        self.report = self._counted(
            CopyReport(
                not_whole_episodes=choice.not_whole,
                without_value_episodes=choice.without_value,
            )
        )

    def _every(self) -> Iterator[tuple[int, StoredEpisode]]:
        """All episodes, each with the index of its storage."""
        for number, storage in enumerate(self._storages):
            for episode in stored_episodes(storage):
                yield number, episode

    def _episodes_where(self, where: Where | None, meets: bytearray) -> Iterator[StoredEpisode]:
        """The episodes with some metadata; each one is flagged in ``meets``."""
        for _, episode in self._every():
            meets.append(where is None or chooses(where, episode.metadata))
            if meets[-1]:
                yield episode

    def _counted(self, report: CopyReport) -> CopyReport:
        """The report, with the numbers of the episodes that are chosen, and of the others."""
        episodes, steps, late_starts = [0, 0], [0, 0], 0
        for is_chosen, (_, episode) in zip(self._is_chosen, self._every(), strict=True):
            episodes[is_chosen] += 1
            steps[is_chosen] += episode.steps
            late_starts += is_chosen and episode.first_row > 0
        return replace(
            report,
            chosen_episodes=episodes[True],
            chosen_steps=steps[True],
            left_out_episodes=episodes[False],
            left_out_steps=steps[False],
            late_starts=late_starts,
        )

    def leave_out_repeats(
        self, duplicates: Duplicates, progress: Callable[[CopyReport], None] | None
    ) -> None:
        """Leave out episodes that an earlier source holds, too."""
        look = (lambda: None) if progress is None else (lambda: progress(self.report))
        flags, sentence = find_repeats(self._storages, self.episodes, look)
        count = sum(flags)
        if not count:
            return
        if duplicates == "refuse":
            raise ValueError(
                f"{count:,} episodes would be copied twice, expected each once: "
                f"{sentence}; leave them out (duplicates='skip', --duplicates skip), or have "
                f"all copies (duplicates='keep', --duplicates keep)"
            )
        is_repeated = iter(flags)
        self._is_chosen = bytearray(one and not next(is_repeated) for one in self._is_chosen)
        self.report = self._counted(replace(self.report, duplicate_episodes=count))

    def episodes(self) -> Iterator[tuple[int, StoredEpisode]]:
        """The chosen episodes, each with the index of its storage."""
        pairs = zip(self._is_chosen, self._every(), strict=True)
        return (one for is_chosen, one in pairs if is_chosen)


def _write(
    writer: EpisodeWriter,
    spec: Spec,  # of the target
    storages: Sequence[Storage],
    episodes: Iterable[tuple[int, StoredEpisode]],
) -> None:
    """Write episodes, each with the index of its storage."""
    chunks: Iterable[Chunk | EncodedChunk]
    moved, most = _Places(storages).moved, writer.max_rows
    has_same_codecs = [all(part.spec == spec for part in parts_of(each)) for each in storages]
    for number, episode in episodes:
        if has_same_codecs[number]:
            chunks = episode.encoded_chunks(min(_LEAST_ROWS, most), most)
        else:
            chunks = episode.chunks(most)
        writer.add_episode(moved(number, chunk) for chunk in chunks)
    writer.flush()


class _Places:
    """The places that chunks of several storages have in the copy: stream and session."""

    def __init__(self, storages: Sequence[Storage]) -> None:
        self._storages = storages  # in the order of their sessions in the copy
        self._before: list[list[int]] = []
        """Number of sessions before those of each part of each storage."""
        self._known: tuple[bytes, int] = b"", 0
        self._found: Mapping[str, object] | None = None
        count = 0
        for storage in storages:
            self._before.append([])
            for part in parts_of(storage):
                self._before[-1].append(count)
                count += len(part.sessions)

    def moved(self, number: int, chunk: Chunk | EncodedChunk) -> Chunk | EncodedChunk:
        """A chunk of the storage with this number, with the stream and the session in the copy."""
        # The stream is that of the part that played it: the index of the env.
        storage, part, stream = self._storages[number], 0, chunk.stream
        if isinstance(storage, JoinedStorage):
            part, stream = storage.part_of(chunk.episode, stream)
        before = self._before[number][part]
        changed = self._changed(chunk, before) if before else None
        if isinstance(chunk, EncodedChunk):
            return chunk.placed(episode=chunk.episode, stream=stream, metadata=changed)
        facts = chunk.metadata if changed is None else changed
        return replace(chunk, stream=stream, metadata=facts)

    def _changed(self, chunk: Chunk | EncodedChunk, before: int) -> Mapping[str, object] | None:
        """The metadata of a chunk with the session in the copy; None if they have no session."""
        if not isinstance(chunk, EncodedChunk):
            return _with_session(chunk.metadata, before)
        key = bytes(chunk.metadata_text), before
        if key != self._known:  # as those of the chunk before are, if it is of the same episode
            self._known, self._found = key, _with_session(chunk.metadata, before)
        return self._found


def _with_session(metadata: Mapping[str, object], before: int) -> Mapping[str, object] | None:
    session = metadata.get("session")
    return {**metadata, "session": session + before} if is_whole(session) else None


def _checked_sources(sources: Sequence[SequenceReplayBuffer], any_envs: bool) -> list[Storage]:
    for each in sources:
        check_replay("source", each)
    if not sources:
        raise ValueError("source: expected at least one replay, got none: give one")
    storages = [source.storage for source in sources]
    check_same_rows(storages)
    if not any_envs:
        _check_same_envs(storages)
    return storages


def _check_same_envs(storages: Sequence[Storage]) -> None:
    """Reject storages of different envs."""
    first: tuple[str, Mapping[str, object]] | None = None
    for number, storage in enumerate(storages):
        for session in storage.sessions:
            if "recipe" not in session:
                continue
            now = name_of(storage, number), cast("Mapping[str, object]", session["recipe"])
            first = first or now
            # Those of another maker have other keys, of which none explains anything.
            keys = ("maker", *sorted({*first[1], *now[1]}))
            for key in keys if now[0] != first[0] else ():
                if first[1].get(key) != now[1].get(key):
                    raise SpecMismatch(
                        f"{now[0]} holds rows of other envs than {first[0]}: expected {key} "
                        f"{first[1].get(key)!r}, got {now[1].get(key)!r}; take stores of the same "
                        f"envs together, or allow any (any_envs=True, --any-envs)"
                    )


def _leave_out_damaged(storage: Storage) -> None:
    """Find all damaged chunks of a storage that skips them, before episodes are chosen."""
    # The rows around them are then separate episodes.
    if storage.skips_corrupt:
        index = storage.index
        for position in range(index.base, index.base + len(index)):
            try:
                storage.payload(position)
            except StoreCorrupt:
                storage.lose(position)


def _bind(
    target: SequenceReplayBuffer,
    storages: Sequence[Storage],
    plan: CopyReport,
    facts: Mapping[str, object],
) -> None:
    """Bind the target to the sources' fields, and store their sessions."""
    copy: dict[str, object] = {
        "copied_from": [origin for storage in storages for origin in _origins_of(storage)],
        "copied_episodes": plan.chosen_episodes,
        "copied_steps": plan.chosen_steps,
        **facts,
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {n: installed_version(n) or "unknown" for n in ("stepwell", "numpy")},
    }
    sessions = [*(session for storage in storages for session in storage.sessions), copy]
    spec: Spec = storages[0].spec
    target.bind(spec, sessions[0])
    for session in sessions[1:]:
        target.storage.append_session(session)


def _origins_of(storage: Storage) -> list[dict[str, object]]:
    """JSON-able facts that identify a source, or each of several joined ones."""
    if isinstance(storage, JoinedStorage):
        return [origin for one in storage.storages for origin in _origins_of(one)]
    counts = {"episodes": storage.index.episodes, "steps": storage.index.steps}
    if not isinstance(storage, DiskStorage):
        return [{**counts}]
    return [{"path": str(storage.path), "store": storage.store, **counts}]
