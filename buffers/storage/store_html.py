"""A summary of a storage as HTML, for notebooks: its fields and its newest episodes.

Few rows are read, whatever the size of the store, and nothing is changed: no caches of a sampler
are made, no waiting rows are stored, and damaged chunks stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..base.errors import StepwellError
from ..pictures.image_fields import ImageField
from ..pictures.markup import Markup, paragraph, section, sparkline, table
from ..pictures.summaries import films_html
from ..rows.episode import End
from .chunk_codec import ChunkDecoder
from .chunk_index import ChunkInfo
from .protocol import Storage

_MOST_EPISODES = 40  # whose returns are read
_MOST_LISTED = 5
_MOST_RECORDS = 4_096  # in which they are looked for
_MOST_CHUNKS = 200  # that are read
_MOST_ROWS = 20_000
_MOST_BYTES = 1 << 25
_MOST_FIELDS = 30


def store_html(storage: Storage, heading: str, facts: Mapping[str, object]) -> Markup:
    """The summary of a storage."""
    # `facts` by their names come first, below the heading.
    spec = storage.spec
    fields = [
        (each.name, each.dtype, str(each.shape), each.codec, each.stack if each.stack > 1 else None)
        for each in spec.fields[:_MOST_FIELDS]
    ]
    parts = [table(facts.items()), table(fields, ["field", "dtype", "shape", "codec", "stack"])]
    if len(spec.fields) > _MOST_FIELDS:
        parts.append(paragraph(f"… {len(spec.fields) - _MOST_FIELDS:,} more fields"))
    with storage.lock:
        parts += _episodes(storage)
    return section(heading, *parts)


def _episodes(storage: Storage) -> Iterator[Markup]:
    """The newest episodes: a table, a curve of their returns, frames of the newest one."""
    reader = _NewestEpisodes(storage)
    listed = [reader.line(position) for position in reader.tails[-_MOST_LISTED:][::-1]]
    if not listed:
        return
    returns: list[float] = []
    films, problem = Markup(), ""
    try:
        returns.extend(reader.returns())
        films = films_html(storage.spec, reader.frames)
    except (StepwellError, ValueError, OSError) as error:
        # Closed, damaged, or evicted since by another process: what is in the index is still true.
        problem = str(error)
    for line, total in zip(listed, returns, strict=False):
        line[3] = total
    yield table(listed, ["newest episodes", "stream", "steps", "return", "end"])
    some = f"returns of the newest {len(returns)} episodes"
    name = "return of the newest episode" if len(returns) == 1 else some
    yield sparkline(returns[::-1], name, has_caption=True)
    yield films
    if problem:
        yield paragraph(f"some rows were not read: {problem}", most=300)


class _NewestEpisodes:
    """Reads rows of the newest episodes within fixed limits; used with the storage's lock."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._decoder = ChunkDecoder(storage.spec)
        index = storage.index
        newest = index.records[-_MOST_RECORDS:]
        tails = np.flatnonzero((newest["is_tail"] == 1) & (newest["end"] & int(End.LOST) == 0))
        first = index.base + len(index) - len(newest)
        self.tails: list[int] = (tails[-_MOST_EPISODES:] + first).tolist()
        """Positions of the last chunks of the newest episodes, the oldest first."""

    def line(self, position: int) -> list[object]:
        """Id, stream, steps, no return yet, and end of an episode."""
        record = self._storage.index.record(position)
        rows = record.first_row + record.rows - record.head
        names = [
            str(each.name).lower() for each in (End.TERMINATED, End.TRUNCATED) if record.end & each
        ]
        steps = max(0, rows - (record.head == 0))
        return [str(record.episode), str(record.stream), steps, None, ", ".join(names) or "cut"]

    def returns(self) -> Iterator[float]:
        """Returns of the newest episodes, the newest first, as far as the limits go."""
        spec = self._storage.spec
        if "reward" not in spec.names:
            return
        field = spec.names.index("reward")
        chunks = rows = nbytes = 0
        for position in self.tails[::-1]:
            chain: list[tuple[int, ChunkInfo]] = []
            for place, record in self._chain(position):
                chain.append((place, record))
                chunks, rows, nbytes = chunks + 1, rows + record.rows, nbytes + record.nbytes
                if chunks > _MOST_CHUNKS or rows > _MOST_ROWS or nbytes > _MOST_BYTES:
                    return
            with np.errstate(invalid="ignore", over="ignore"):  # inf and -inf: NaN
                parts = [
                    self._read(place, record, field, 0, record.rows).sum()
                    for place, record in chain[::-1]
                ]
                total = float(sum(parts))
            yield total

    def frames(self, field: ImageField, count: int) -> tuple[np.ndarray, str]:
        """Evenly spaced rows of an image field of the newest episode, and which they are."""
        spec = self._storage.spec
        number = spec.names.index(field.name)
        chain: list[tuple[int, ChunkInfo]] = []
        nbytes = 0
        for place, record in self._chain(self.tails[-1]):
            nbytes += record.nbytes
            if chain and (len(chain) == _MOST_CHUNKS or nbytes > _MOST_BYTES):
                break
            chain.append((place, record))
        chain = [(place, record) for place, record in chain[::-1] if record.rows > 0]
        starts = [record.first_row for _, record in chain]
        stop = chain[-1][1].first_row + chain[-1][1].rows
        wanted = np.unique(np.linspace(starts[0], stop - 1, count).astype(np.int64)).tolist()
        rows = np.empty((len(wanted), *spec[field.name].shape), spec[field.name].numpy_dtype)
        for row, out in zip(wanted, rows, strict=True):
            place, record = chain[int(np.searchsorted(starts, row, side="right")) - 1]
            out[...] = self._read(place, record, number, row - record.first_row, 1)[0]
        which = ", ".join(map(str, wanted))
        return rows, f"rows {which} of episode {chain[0][1].episode}"

    def _chain(self, position: int) -> Iterator[tuple[int, ChunkInfo]]:
        """Position and record of an episode's chunks, the newest first."""
        while position >= 0:
            record = self._storage.index.record(position)
            yield position, record
            position = record.previous

    def _read(
        self, position: int, record: ChunkInfo, field: int, start: int, count: int
    ) -> np.ndarray:
        """Rows of one field of one chunk."""
        each = self._storage.spec.fields[field]
        rows = np.empty((count, *each.shape), each.numpy_dtype)
        memory, origin = self._storage.payload(position)
        self._decoder.read(memory, origin, record.stored_rows, field, start, rows)
        return rows
