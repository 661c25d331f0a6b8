"""Rows that contain their place, and a real replay that gets the same chunks as a slow model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from stepwell.buffers import Chunk, DiskStorage, End, Field, SequenceReplayBuffer, Spec
from support.crash.disk_faults import NoSyncFiles

ENDINGS = (End.TERMINATED, End.TRUNCATED, End.TERMINATED | End.TRUNCATED)


class Row(NamedTuple):
    """A stored row."""

    stream: int
    episode: int
    number: int
    """Its place in the episode, 0 for the row of the reset."""
    id: int
    is_settled: bool
    """An action was chosen from it."""


@dataclass(eq=False)
class ModelEpisode:
    """The stored rows of one episode, without gaps; ``end`` says what the last one is."""

    id: int
    stream: int
    end: End = End.NONE
    rows: list[Row] = field(default_factory=list[Row])
    next_row: int = 0
    """Number of the row that the next chunk begins with: a pending row comes again."""

    @property
    def head(self) -> int:
        """Number of the first stored row."""
        return self.rows[0].number

    @property
    def last(self) -> Row:
        return self.rows[-1]

    @property
    def has_ended(self) -> bool:
        return self.end.is_final


def numbered_spec(stack: int = 1, padding: Literal["zero", "repeat"] = "zero") -> Spec:
    """Rows with every codec, small and large; the frames are those of an env that stacks them."""
    return Spec(
        (
            Field("observation/frame", "uint8", (4, 32), "zstd", stack, padding),
            Field("observation/place", "int64", (3,), "narrow"),
            Field("action", "int64", (), "narrow"),
            Field("reward", "float64", (), "narrow"),
            Field("info/lives", "int64", (), "narrow"),
            Field("info/clock", "float64", (), "raw"),
            Field("info/scan", "float32", (20,), "raw"),
            Field("extra/memory", "float32", (2,), "raw"),
            Field("extra/code", "int64", (9,), "narrow"),
        ),
        observation={"frame": "observation/frame", "place": "observation/place"},
        action="action",
    )


def numbered(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Values of rows [n], by field."""
    table = np.array([tuple(row) for row in rows], np.int64).reshape(-1, 5)
    stream, episode, number, _, settled = table.T
    label = np.stack([episode, number], axis=1).astype("<i8")
    mixed = (label @ np.array([2_654_435_761, 40_503]))[:, None] * np.arange(1, 113)
    frames = np.concatenate([label.view(np.uint8).reshape(-1, 16), (mixed >> 7)], axis=1)
    memory = np.stack([episode + number / 2 + 1, number * -1.0 - 1], axis=1) * settled[:, None]
    return {
        "observation/frame": frames.astype(np.uint8).reshape(-1, 4, 32),
        "observation/place": np.stack([stream, episode, number], axis=1),
        "action": ((number * 37 + episode * 101) % 997 + 1) * settled,
        "reward": np.where(number > 0, ((episode * 31 + number * 7) % 23 - 11) / 4, 0.0),
        # Narrow integers take more bytes in later episodes.
        "info/lives": episode**3 * 5 - number,
        "info/clock": episode + number / 64,
        "info/scan": (mixed[:, :20] % 1_000_003).astype(np.float32),
        "extra/memory": memory.astype(np.float32),
        "extra/code": (mixed[:, :9] >> 9) * settled[:, None],
    }


class Step(NamedTuple):
    """One thing that happens to a replay."""

    stream: int
    new_rows: int
    end: End = End.NONE
    then: Literal["", "cut", "restart"] = ""
    """Afterwards the stream's recording stops, or the whole replay is closed and opened again."""


@dataclass
class Recording:
    """Everything that was ever added, and what of it is still stored.

    Each stream plays one episode after the other, as a collector records them.
    """

    episodes: list[ModelEpisode] = field(default_factory=list[ModelEpisode])
    open: dict[int, ModelEpisode] = field(default_factory=dict[int, ModelEpisode])
    next_episode: int = 0
    next_id: int = 0

    def chunk(self, stream: int, new_rows: int, end: End = End.NONE) -> Chunk:
        """The next chunk of a stream, with so many rows that were not there before.

        A pending row that gets its action is not one of them.
        """
        if stream not in self.open:
            self.open[stream] = ModelEpisode(self.next_episode, stream)
            self.next_episode += 1
        episode = self.open[stream]
        if episode.end & End.PENDING and episode.rows:
            episode.rows.pop()
        # An env cannot end an episode with its reset.
        least = 2 if end.is_final and episode.next_row == 0 else 1
        count = max(new_rows + bool(episode.end & End.PENDING), least)
        first, rows = episode.next_row, self._rows(episode, count, end)
        episode.rows += rows
        episode.end = end
        episode.next_row += count - bool(end & End.PENDING)
        # One of which all rows were evicted is there again, as one without a beginning.
        if episode not in self.episodes:
            self.episodes = sorted([*self.episodes, episode], key=lambda each: each.id)
        if end.is_final:
            del self.open[stream]
        return Chunk(episode.id, stream, first, end, numbered(rows), metadata_of(episode.id))

    def _rows(self, episode: ModelEpisode, count: int, end: End) -> list[Row]:
        first = episode.next_row
        is_settled = [True] * (count - 1) + [end == End.NONE]
        rows = [
            Row(episode.stream, episode.id, first + place, self.next_id + place, settled)
            for place, settled in enumerate(is_settled)
        ]
        self.next_id += count
        return rows

    def drop_before(self, row_id: int) -> None:
        """Rows were evicted: all those whose ids are lower."""
        for episode in self.episodes:
            episode.rows = [row for row in episode.rows if row.id >= row_id]
        self.episodes = [episode for episode in self.episodes if episode.rows]

    def stop(self) -> None:
        """No open episode is continued."""
        self.open.clear()


def metadata_of(episode: int) -> dict[str, object]:
    return {"number": episode, "is_even": episode % 2 == 0}


class Played:
    """A replay and the recording of what was added to it."""

    def __init__(
        self,
        spec: Spec | None = None,  # one of `numbered_spec`
        path: Path | None = None,  # folder; None for RAM
        capacity: int | None = None,  # steps to keep at most
        **options: Any,  # further arguments of the replay
    ) -> None:
        self.spec = spec or numbered_spec()
        self.path = path
        self.capacity = capacity
        self.options = {"seed": 0, "threads": 1, **options}
        self.recording = Recording()
        self.replay = self._opened()

    def _opened(self) -> SequenceReplayBuffer:
        replay = SequenceReplayBuffer(capacity=self.capacity, **self.options)
        if self.path is None:
            replay.bind(self.spec, {})
            return replay
        files = NoSyncFiles()
        if DiskStorage.exists(self.path):
            storage = DiskStorage.open(self.path, capacity=self.capacity, files=files)
        else:
            storage = DiskStorage.create(
                self.path, self.spec, capacity=self.capacity, segment_bytes=20_000, files=files
            )
        replay._path = self.path
        replay._use(storage)
        return replay

    @property
    def episodes(self) -> list[ModelEpisode]:
        """The rows that are stored."""
        return self.recording.episodes

    def add(self, *steps: Step) -> None:
        """Add chunks in one call, and follow what they evicted."""
        chunks = [self.recording.chunk(*step[:3]) for step in steps]
        self.replay.add(chunks)
        self.follow()
        for step in steps:
            if step.then == "cut":
                self.recording.open.pop(step.stream, None)
            elif step.then == "restart":
                self.restart()

    def follow(self) -> None:
        """Forget what the replay has evicted: the oldest rows, in the order in which they came."""
        records = self.replay.storage.index.records
        self.recording.drop_before(int(records["row_id"][0]))

    def restart(self) -> None:
        """Close the replay in a folder and open it again; what is open in it stays as it is."""
        if self.path is not None:
            self.replay.close()
            self.replay = self._opened()
            self.recording.stop()

    def assert_follows(self) -> None:
        """The model holds exactly the episodes that the replay holds."""
        stored = [(e.id, e.stream, e.first_row, e.rows) for e in self.replay.iter_episodes()]
        assert stored == [(e.id, e.stream, e.head, len(e.rows)) for e in self.episodes]
        if self.capacity is not None:
            assert len(self.replay) <= self.capacity

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *error: object) -> None:
        self.replay.close()


def rows_in_order(episodes: Sequence[ModelEpisode]) -> Iterator[Row]:
    """All stored rows in the order in which they arrived."""
    rows = [row for episode in episodes for row in episode.rows]
    return iter(sorted(rows, key=lambda row: row.id))


def streams_of(episodes: Sequence[ModelEpisode]) -> list[list[Row]]:
    """The stored rows of each stream, one episode after the other."""
    streams: dict[int, list[Row]] = {}
    for row in rows_in_order(episodes):
        streams.setdefault(row.stream, []).append(row)
    return list(streams.values())
